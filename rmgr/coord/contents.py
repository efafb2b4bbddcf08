"""Rows of the data store that are named by what they hold (functions, modules, files): how long each is kept. Pure.

Several submissions may need one row, so none of them owns it. Its note is a mark: when somebody made sure that it is there.

    who needs a row                 puts it where it is missing, and again where its mark is older than `RENEW_S`
    the leader                      removes one whose mark is older than `KEPT_S`, unless a submission that is there may need it

A process may go on with what it made sure of for `TRUSTED_S`. So what a submission needs was marked at most `RENEW_S + TRUSTED_S` before
the submission was made, or before the task was added that calls it. Modules, scripts, uploads and initializers are named by records.
A function is named by blocks, too, which nobody looks through: no row of one goes that is old enough for a Python submission that is there.
What was put and never submitted, because its client died, goes like all else.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rmgr.coord.protocol import keys
from rmgr.model.tasks.submission import Submission, Work

_DAY_S = 86_400
#: A mark older than this is renewed by whoever needs the row.
RENEW_S = 30 * _DAY_S
#: How long a process trusts that a row is still there.
TRUSTED_S = _DAY_S
#: A row with an older mark goes: none that was signed with it, and was submitted late, can be run any more.
KEPT_S = 2 * RENEW_S
#: How far clocks may be apart.
_APART_S = _DAY_S
_MOST_DIGITS = 12


def mark(now_s: float) -> bytes:
    """The note of a row that is put, or made sure of, now (wall clock)."""
    return b"%d" % int(now_s)


def marked_s(note: bytes) -> int | None:
    """When a row was marked; None: never."""
    return int(note) if note.isdigit() and len(note) <= _MOST_DIGITS else None


def is_fresh(note: bytes, now_s: float) -> bool:
    """Who needs the row may leave it as it is."""
    at_s = marked_s(note)
    return at_s is not None and now_s - RENEW_S < at_s < now_s + _APART_S


def is_marked(note: bytes, now_s: float) -> bool:
    """It says when, and not in the future: otherwise nobody would ever remove its row."""
    at_s = marked_s(note)
    return at_s is not None and at_s < now_s + _APART_S


def is_old(note: bytes, now_s: float) -> bool:
    """Its row goes, unless a submission that is there may need it."""
    at_s = marked_s(note)
    return at_s is not None and at_s < now_s - KEPT_S


def named_by(record: Submission) -> set[str]:
    """Keys of the rows that a record names."""
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
    """What the submissions that are there may need. oldest_s: when the oldest Python submission of them was made (wall clock)."""

    named: frozenset[str]
    oldest_s: float

    @classmethod
    def of(cls, records: Iterable[Submission], now_s: float) -> Needs:
        """Cost: 3 us a record."""
        named: set[str] = set()
        oldest_s = now_s
        for record in records:
            named |= named_by(record)
            if record.work is Work.PYTHON:
                oldest_s = min(oldest_s, record.submitted_us / 1e6)
        return cls(frozenset(named), oldest_s)

    def may_name(self, key: str, note: bytes) -> bool:
        """One of them may need the row with this mark."""
        if key in self.named:
            return True
        at_s = marked_s(note)
        return keys.family(key) == keys.FUNCTIONS and (at_s is None or at_s + RENEW_S + TRUSTED_S + _APART_S >= self.oldest_s)
