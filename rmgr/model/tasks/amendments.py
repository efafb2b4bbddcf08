"""A submission's terms as they were sent, and as amendments have made them (`Submission.was`, `.changes`). Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

from rmgr.model.base.resources import MIB
from rmgr.model.tasks.block import BlockKey
from rmgr.model.tasks.submission import Amendment, Submission, Terms

#: Amendments of one submission: each is in its record, and raises the version of its gate by one.
MOST_CHANGES = 20
#: What an operator may change of others' work.
OF_OPERATORS = frozenset({"priority", "time_limit_us"})


def terms_of(record: Submission) -> Terms:
    """All of a record's terms as they are. begin_us: None where no leader places it, so that it cannot wait for a time."""
    request, rigid = record.request, record.rigid
    return Terms(
        priority=record.priority,
        time_limit_us=request.time_limit_us,
        memory_bytes=request.memory_bytes,
        name=record.name,
        begin_us=rigid.begin_us if rigid is not None else None,
        after=record.after,
        features=request.features,
        queue=record.queue,
        cores=request.cores,
    )


def with_terms(record: Submission, terms: Terms) -> Submission:
    """The record with these in place of its own, and nothing else changed."""
    said = terms.said()
    request = {name: said.pop(name) for name in ("time_limit_us", "memory_bytes", "features", "cores") if name in said}
    begin_us = said.pop("begin_us", None)
    rigid = record.rigid if record.rigid is None or begin_us is None else replace(record.rigid, begin_us=begin_us)
    return replace(record, request=replace(record.request, **request) if request else record.request, rigid=rigid, **said)


def as_signed(record: Submission) -> Submission:
    """The record as its user has sent it, as to its terms. Cost: none where they were never changed."""
    if record.was is None and not record.changes:
        return record
    return replace(with_terms(record, record.was or Terms()), was=None, changes=())


def history_of(record: Submission) -> Iterator[tuple[Amendment, Submission, Submission]]:
    """Each amendment with the record before and after it, as far as terms are concerned; oldest first."""
    before = as_signed(record)
    for change in record.changes:
        after = with_terms(before, change.terms)
        yield change, before, after
        before = after


def as_started(record: Submission, number: int) -> Submission:
    """The record for what was started when it had so many amendments: in that queue, with those cores and that memory."""
    if number >= len(record.changes):
        return record
    _, then, _ = next(islice(history_of(record), number, None))
    request = then.request
    return with_terms(record, Terms(queue=then.queue, cores=request.cores, memory_bytes=request.memory_bytes))


def key_now(key: BlockKey, record: Submission) -> BlockKey:
    """The key of a waiting block with the priority, cores and memory of its submission now: its name tells those that it came with."""
    if not record.changes:
        return key
    cores, memory_mib = record.request.cores, -(-record.request.memory_bytes // MIB)
    if (key.priority, key.cores, key.memory_mib) == (record.priority, cores, memory_mib):
        return key
    return replace(key, priority=record.priority, cores=cores, memory_mib=memory_mib)


def fault_of(record: Submission) -> str:
    """Why what a record says of its changes cannot be, "" = it can: its terms are what they make of the signed ones, no other.

    Cost: 0.2 us where nothing was changed, else 10 us an amendment.
    """
    if record.was is None and not record.changes:
        return ""
    if [change.number for change in record.changes] != list(range(1, len(record.changes) + 1)):
        return "amendments are numbered 1, 2, ..."
    last = as_signed(record)
    names: set[str] = set()
    for change, _, after in history_of(record):
        last = after
        names |= change.terms.said().keys()
        if change.is_operators and change.by != record.user and not change.terms.said().keys() <= OF_OPERATORS:
            return "an operator changes priority and time limit alone"
        if not change.is_operators and change.by != record.user:
            return "who changes others' work does so as an operator"
    if record.was is None or record.was.said().keys() != names or not names:
        return "what was signed of the terms that were changed stands beside them"
    return "" if terms_of(last) == terms_of(record) else "terms are those that the amendments make"
