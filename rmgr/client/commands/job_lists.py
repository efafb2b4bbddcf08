"""Submits a list of different jobs, all or nothing.

The anchor, a submission without tasks, is held while its program lives. Every job of the list is made durable behind it (it waits
for the anchor's end with `ok`). One write on the anchor, its release, starts them all. A program that dies earlier leaves an anchor
without owner: the leader cancels it (`Abandon` in `coord/decisions/keeping.py`), and with it all jobs that wait for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rmgr.client.commands.request import CommandRequest
from rmgr.client.commands.sending import (
    CheckedRequest,
    Sent,
    blocks_of,
    check_jobs,
    check_room,
    check_size,
    check_store,
    output_files,
    prepare,
    read_facts,
    seconds_left,
    send_in_parts,
    shipped,
    waiting_blocks,
)
from rmgr.errors import CoordinationUnavailable, RmgrError, StateConflict, SubmitUnknown
from rmgr.model.base.states import Reason
from rmgr.model.tasks.submission import Command, Condition, Dependency, Phase, Submission, Work
from rmgr.runtime import machine
from rmgr.runtime.failpoint import failpoint

if TYPE_CHECKING:
    from rmgr.client.queries import Reach
    from rmgr.client.submission.engine import Engine

_SUBMIT_S = 60.0
_CANCEL_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedJob:
    """One job of a list. where: `jobs.toml: job 3, line 17 (prep)`; needs: (condition, index in the list) of jobs that it waits for."""

    where: str
    name: str
    request: CommandRequest
    needs: tuple[tuple[Condition, int], ...]


def in_order(entries: Sequence[ListedJob]) -> Iterator[int]:
    """Yields indices of entries, each after those that it needs; leaves out entries in a cycle. Cost: O(entries + needs)."""
    missing = [len({need for _, need in entry.needs}) for entry in entries]
    waiting: dict[int, list[int]] = {}
    for place, entry in enumerate(entries):
        for need in {need for _, need in entry.needs}:
            waiting.setdefault(need, []).append(place)
    ready = [place for place, count in enumerate(missing) if not count]
    while ready:
        yield from ready
        following = []
        for place in ready:
            for other in waiting.get(place, ()):
                missing[other] -= 1
                if not missing[other]:
                    following.append(other)
        ready = sorted(following)


def prepare_all(reach: Reach, entries: Sequence[ListedJob]) -> list[CheckedRequest]:
    """Checks each entry against the cluster, and all together against the room of their queues; writes nothing.

    Raises: as `sending.prepare`, naming the entry; QueueFull; LimitReached.
    """
    facts = read_facts(reach)
    drafts = []
    for entry in entries:
        try:
            draft = prepare(reach, entry.request, facts)
            check_size(replace(draft.record, after=_after(draft.record, entry, dict.fromkeys(range(len(entries)), 1 << 31), 1 << 31)))
        except RmgrError as error:
            error.message = f"{entry.where}: {error.message}"
            error.args = (error.message,)
            raise
        drafts.append(draft)
    more: dict[str, int] = {}
    for draft in drafts:
        more[draft.record.queue] = more.get(draft.record.queue, 0) + waiting_blocks(draft.record, draft.tasks)
    for queue, blocks in more.items():
        check_room(reach, facts.settings, queue, blocks, what="this list is")
    if drafts:
        check_jobs(reach, facts.settings.limits, drafts[0].record.user, new=len(drafts))
    return drafts


def send_all(reach: Reach, entries: Sequence[ListedJob], drafts: Sequence[CheckedRequest], *, token: str, name: str) -> list[Sent]:
    """Makes all entries durable, in their order, or none.

    Args:
        token: "" = a new one. name: of the list.
    Raises: the errors of a single `send`; StateConflict if the list was given up meanwhile.
    """
    from rmgr.client.submission.handle import SilentListener
    from rmgr.submitter.questions import CancelSubmission

    records = [shipped(reach, draft) for draft in drafts]
    check_store(reach)
    deadline_s = machine.monotonic() + (reach.left_s() or _SUBMIT_S)
    submitter = reach.submitter()
    mine = token or machine.guid()
    handle = submitter.open(_anchor(drafts[0].record, mine, name), SilentListener(), timeout_s=seconds_left(deadline_s))
    anchor = handle.submission
    if not _is_sent(anchor, submitter.guid, mine):
        failpoint("list.before_entries")
    try:
        sent = _make(reach, submitter, entries, drafts, records, anchor.id, mine, deadline_s)
        failpoint("list.before_release")
    except (RmgrError, KeyboardInterrupt) as error:
        with suppress(RmgrError):  # else the leader does it once this program is gone
            reach.ask(CancelSubmission(number=anchor.id, detail="not all of its list could be submitted"), _CANCEL_S)
        if isinstance(error, SubmitUnknown):
            what = "ZooKeeper went away while the list was submitted; it was not let go, and nothing of it runs"
            raise CoordinationUnavailable(what, hint="rmgr doctor; then submit it again") from error
        raise
    if anchor.phase is Phase.HELD:
        _release(reach, anchor.id, mine, seconds_left(deadline_s))
        failpoint("list.after_release")
        handle.complete()
        handle.flush(seconds_left(deadline_s))
    return sent


def _anchor(like: Submission, token: str, name: str) -> Submission:
    """Returns the submission that the list waits for: held, without tasks, and without owner once its program is gone."""
    return Submission(
        id=0,
        name=f"list {name}"[:200],
        user=like.user,
        queue=like.queue,
        work=Work.COMMAND,
        request=like.request,
        priority=like.priority,
        phase=Phase.HELD,
        reason=Reason.USER_HOLD,
        token=token,
        submitted_us=like.submitted_us,
        command=Command(argv=("/bin/true",)),
        rigid=like.rigid,
        host=like.host,
        ends_with_owner=True,
    )


def _is_sent(anchor: Submission, me: str, token: str) -> bool:
    """Returns whether the token was used before for a list that is complete now. me: this Submitter. Raises StateConflict if incomplete."""
    if anchor.owner == me:
        return False
    if anchor.phase in (Phase.OPEN, Phase.CLOSED) and not anchor.reason:
        return True
    why = "is still being submitted" if anchor.phase is Phase.HELD else "was given up before all of it was there"
    hint = "wait until that command has ended" if anchor.phase is Phase.HELD else "submit it with another --token"
    raise StateConflict(f"the list of --token {token} (submission {anchor.id}) {why}", hint=hint)


def _after(record: Submission, entry: ListedJob, ids: Mapping[int, int], anchor: int) -> tuple[Dependency, ...]:
    needs = (Dependency(condition=condition, submission=ids[place]) for condition, place in entry.needs)
    return (*record.after, *needs, Dependency(condition=Condition.OK, submission=anchor))


def _make(
    reach: Reach,
    submitter: Engine,
    entries: Sequence[ListedJob],
    drafts: Sequence[CheckedRequest],
    records: Sequence[Submission],
    anchor: int,
    token: str,
    deadline_s: float,
) -> list[Sent]:
    """Makes all entries durable, each after those that it needs."""
    from rmgr.submitter.port import Order

    sent: dict[int, Sent] = {}
    wave: dict[int, Order] = {}

    def flush() -> None:
        made = submitter.submit_many(list(wave.values()), timeout_s=seconds_left(deadline_s))
        for place, found in zip(wave, made, strict=True):
            sent[place] = Sent.of(found)
        wave.clear()

    for place in in_order(entries):
        entry, draft = entries[place], drafts[place]
        if any(need not in sent for _, need in entry.needs):
            flush()
        ids = {need: sent[need].submission.id for _, need in entry.needs}
        after = _after(records[place], entry, ids, anchor)
        record = replace(records[place], after=after, token=f"{token}.{place + 1}")
        if record.phase is not Phase.HELD:
            record = replace(record, phase=Phase.HELD, reason=Reason.DEPENDENCY)
        blocks = blocks_of(record, draft.payloads)
        if blocks is None or output_files(draft):
            sent[place] = send_in_parts(reach, submitter, record, draft, deadline_s)
        else:
            wave[place] = Order(draft=record, blocks=blocks, tasks=draft.tasks, complete=True)
    flush()
    return [sent[place] for place in range(len(entries))]


def _release(reach: Reach, anchor: int, token: str, timeout_s: float) -> None:
    """Commits the list: from here on all of it runs."""
    from rmgr.submitter.questions import ReleaseSubmission

    try:
        changed = reach.ask(ReleaseSubmission(number=anchor), timeout_s)
    except CoordinationUnavailable:
        raise SubmitUnknown(
            "it is not known whether the list was let go: ZooKeeper went away meanwhile",
            token=token,
            hint=f"rmgr show {anchor}: CANCELLED (soon after this command has ended) means that none of it runs; it is let go otherwise",
        ) from None
    now = changed.after
    if now.phase in (Phase.CANCELLED, Phase.HELD) or (now.phase is Phase.CLOSED and now.reason):
        raise StateConflict(
            f"the list was not let go: submission {anchor}, which it waits for, is {now.phase} ({now.reason}); nothing of it runs",
            hint="submit it again",
        )
