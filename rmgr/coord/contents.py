"""Rows of the data store that are named by their content (functions, modules, files), and how long each is kept. Pure.

Several submissions may need one row, so none of them owns it. Its note is a mark: the time when a client last confirmed it.

    a client that needs a row       puts it if it is missing, and again if its mark is older than `RENEW_S`
    the leader                      removes a row whose mark is older than `KEPT_S`, unless an existing submission may need it

A process may rely on a confirmed row for `TRUSTED_S`. So what a submission needs was marked at most `RENEW_S + TRUSTED_S` before
the submission was made, or before the task that calls it was added. Records name modules, scripts, uploads and initializers.
A function is also named by blocks, which are not searched: a function's row stays if it is young enough for some existing Python
submission. Rows that were put and never submitted, because their client died, go like all others.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rmgr.coord.protocol import keys
from rmgr.model.submission import Submission, Work

_DAY_S = 86_400
#: Age of a mark at which a client that needs the row renews it.
RENEW_S = 30 * _DAY_S
#: How long a process relies on a confirmed row.
TRUSTED_S = _DAY_S
#: Age of a mark at which its row goes: signatures that need it, even if submitted late, have expired.
KEPT_S = 2 * RENEW_S
#: How far clocks may differ.
_APART_S = _DAY_S
_MOST_DIGITS = 12


def mark(now_s: float) -> bytes:
    """Returns the note of a row that is put, or confirmed, now (wall clock)."""
    return b"%d" % int(now_s)


def marked_s(note: bytes) -> int | None:
    """Returns when a row was marked, None if never."""
    return int(note) if note.isdigit() and len(note) <= _MOST_DIGITS else None


def is_fresh(note: bytes, now_s: float) -> bool:
    """Returns whether a client that needs the row may leave it as it is."""
    at_s = marked_s(note)
    return at_s is not None and now_s - RENEW_S < at_s < now_s + _APART_S


def is_marked(note: bytes, now_s: float) -> bool:
    """Returns whether the note has a time that is not in the future: otherwise the row would never be removed."""
    at_s = marked_s(note)
    return at_s is not None and at_s < now_s + _APART_S


def is_old(note: bytes, now_s: float) -> bool:
    """Returns whether the row may go, unless an existing submission may need it."""
    at_s = marked_s(note)
    return at_s is not None and at_s < now_s - KEPT_S


def named_by(record: Submission) -> set[str]:
    """Returns the keys of the rows that a record names."""
    found = {keys.function(record.function)} if record.function else set()
    if (python := record.python) is not None:
        found.update(map(keys.module, python.modules))
        if python.initializer:
            found.add(keys.function(python.initializer))
    if (command := record.command) is not None:
        digests = (command.script_sha256, command.stdin_sha256, *(one.sha256 for one in command.uploads))
        found.update(keys.upload(digest) for digest in digests if digest)
    if record.entries:
        found.add(keys.upload(record.entries))
    return found


@dataclass(frozen=True, slots=True)
class Needs:
    """What existing submissions may need. oldest_s: when the oldest Python submission of them was made (wall clock)."""

    named: frozenset[str]
    oldest_s: float

    @classmethod
    def of(cls, records: Iterable[Submission], now_s: float) -> Needs:
        """Collects the needs of `records`. Cost: 3 us per record."""
        named: set[str] = set()
        oldest_s = now_s
        for record in records:
            named |= named_by(record)
            if record.work is Work.PYTHON:
                oldest_s = min(oldest_s, record.submitted_us / 1e6)
        return cls(frozenset(named), oldest_s)

    def may_name(self, key: str, note: bytes) -> bool:
        """Returns whether one of them may need the row with this mark."""
        if key in self.named:
            return True
        at_s = marked_s(note)
        return keys.family(key) == keys.FUNCTIONS and (at_s is None or at_s + RENEW_S + TRUSTED_S + _APART_S >= self.oldest_s)
