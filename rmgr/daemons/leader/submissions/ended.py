"""Writes down which submissions have ended (`coord/decisions/ended.py`): within a second after their end, and before anything of them goes.

Ends gather for a moment, so that a stream of short submissions costs one commit a second and directory. A leader of a
release that did not know these bits may have collected without setting them: who begins to lead sets the bits of all
numbers that were given away and have no record any more.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from rmgr.coord.decisions import ended
from rmgr.coord.decisions.ended import BUCKET, Ended
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Committed, Outcome, Stamped
from rmgr.coord.protocol.records import decode_record
from rmgr.daemons.leader.core.doors import LeaderCommits
from rmgr.daemons.leader.core.term import Term
from rmgr.runtime.failpoint import failpoint

#: How long ends are gathered, and how long to wait after a commit that met another one.
GATHER_S, _RETRY_S = 0.5, 1.0
#: Directories that may be looked through together, and whose bits go in one commit.
_TOGETHER = 64
#: Directories between the mark and the newest one: more (10 million submissions) are nobody's work.
_MOST = 10_000
#: Of a number; submitters create among them what they like.
_DIGITS = 18


class EndedSubmission(Protocol):
    """A submission that may have ended."""

    number: int

    @property
    def is_closed(self) -> bool: ...


class EndedKeeper:
    """All that one leader writes below `/ended`. In its loop."""

    def __init__(self, tree: LeaderCommits, term: Term) -> None:
        self._tree = tree
        self._term = term
        self._bits: dict[int, bytes] = {}  #: as committed, of directories that this leader has had to do with
        self._below = 0
        self._floor = 0  #: no directory below this one is there, as it was when this leadership began
        self._new: dict[int, set[int]] = {}  #: by directory: to be written
        self._waiting: dict[int, list[Callable[[bool], None]]] = {}  #: by directory: told when what stood in `_new` was written
        self._told: set[int] = set()
        self._timer = False
        self._raising = False

    def start(self) -> None:
        """Reads how far everything has ended."""
        self._tree.get(paths.ENDED, self._on_mark)

    def holds(self, number: int) -> bool:
        """It is written down that the submission has ended, as far as this leader knows."""
        return number // BUCKET < self._below or ended.holds(self._bits.get(number // BUCKET, b""), number)

    def is_put_back(self, followed: EndedSubmission) -> bool:
        """What ended was closed: somebody has written its record again, and nothing is done for it. (It would change its history.)"""
        if followed.is_closed or not self.holds(followed.number):
            return False
        if followed.number not in self._told:
            self._told.add(followed.number)
            self._term.log.warning("ended_submission_put_back", submission=followed.number, epoch=self._term.epoch)
        return True

    def note(self, number: int) -> None:
        """It has ended: that is written down soon. Cost: 1 us."""
        if self.holds(number):
            return
        self._new.setdefault(number // BUCKET, set()).add(number)
        if not self._timer:
            self._timer = True
            self._tree.after(GATHER_S, self._flush)

    def ensure(self, number: int, then: Callable[[bool], None]) -> None:
        """`then(True)` once it is written down; `then(False)`: not now, try again later."""
        if self.holds(number):
            then(True)
            return
        self._new.setdefault(number // BUCKET, set()).add(number)
        self._waiting.setdefault(number // BUCKET, []).append(then)
        self._write(number // BUCKET)

    def heal(self) -> None:
        """Marks what has no record any more. Numbers are read before records: a submission appears together with its number."""
        self._tree.get(paths.IDS, self._on_ids, failed=self._heal_later)

    def _heal_later(self) -> None:
        self._tree.after(_RETRY_S, self.heal)

    # -- writing

    def _flush(self) -> None:
        self._timer = False
        for bucket in list(self._new):
            self._write(bucket)

    def _write(self, bucket: int) -> None:
        """Both are read first: nobody's number is marked that was not given away, whatever stands in a record."""
        numbers, told = self._new.pop(bucket, set()), self._waiting.pop(bucket, [])
        if numbers:
            failed = partial(self._failed, numbers, told)
            wanted = [paths.ended(bucket), paths.IDS]
            self._tree.get_all(wanted, partial(self._on_bits, bucket, numbers, told), failed=failed)

    def _on_bits(self, bucket: int, numbers: set[int], told: list[Callable[[bool], None]], found: list[Stamped | None]) -> None:
        bits, ids = found
        given = decode_record(ids.data, int, paths.IDS) if ids is not None else 0
        old = bits.data if bits is not None else b""
        real = {number for number in numbers if number < given}
        new = ended.with_bits(old, real)
        if bits is not None and new == old:
            self._written(bucket, new, told)
        elif real:
            failpoint("leader.before_ended")
            done = partial(self._on_written, bucket, new, numbers, told)
            self._tree.commit(ended.mark(bucket, new, bits.version if bits is not None else None), done)
        else:
            _tell(told, success=False)

    def _on_written(self, bucket: int, bits: bytes, numbers: set[int], told: list[Callable[[bool], None]], outcome: Outcome) -> None:
        if isinstance(outcome, Committed):
            failpoint("leader.after_ended")
            self._written(bucket, bits, told)
        else:
            self._failed(numbers, told)

    def _written(self, bucket: int, bits: bytes, told: list[Callable[[bool], None]]) -> None:
        self._bits[bucket] = bits
        _tell(told, success=True)
        if bucket == self._below and ended.is_full(bits, bucket):
            self._raise()

    def _failed(self, numbers: set[int], told: list[Callable[[bool], None]]) -> None:
        self._tree.after(_RETRY_S, partial(self._again, numbers))
        _tell(told, success=False)

    def _again(self, numbers: set[int]) -> None:
        for number in numbers:
            self.note(number)

    # -- below

    def _on_mark(self, found: Stamped | None) -> None:
        if found is not None and found.data:
            self._below = decode_record(found.data, Ended, paths.ENDED).below

    def _raise(self) -> None:
        """The lowest directories are over: one number says so from now on."""
        if not self._raising:
            self._raising = True
            self._tree.children(paths.ENDED, self._on_names, failed=self._not_raised)

    def _on_names(self, names: list[str] | None) -> None:
        there = {int(name) for name in names or () if _is_number(name)}
        self._tree.get(paths.ENDED, partial(self._on_lowest, there), failed=self._not_raised)

    def _not_raised(self) -> None:
        self._raising = False

    def _on_lowest(self, there: set[int], found: Stamped | None) -> None:
        self._raising = False
        if found is None:
            return
        record = decode_record(found.data, Ended, paths.ENDED) if found.data else Ended()
        self._below = record.below
        high = max(record.below, self._floor)
        while ended.is_full(self._bits.get(high, b""), high):
            high += 1
        if high > record.below:
            self._raising = True
            gone = sorted(bucket for bucket in there if bucket < high)[:_TOGETHER]
            multi = ended.raise_mark(Ended(below=high, newer=record.newer), found.version, gone)
            self._tree.commit(multi, partial(self._on_raised, high))

    def _on_raised(self, high: int, outcome: Outcome) -> None:
        self._raising = False
        if isinstance(outcome, Committed):
            self._below = high
            self._bits = {bucket: bits for bucket, bits in self._bits.items() if bucket >= high}
            self._term.log.info("ended_below", first=high * BUCKET, epoch=self._term.epoch)

    # -- what went without its bit

    def _on_ids(self, found: Stamped | None) -> None:
        if found is not None:
            given = decode_record(found.data, int, paths.IDS)
            self._tree.children(paths.SUBS, partial(self._on_directories, given), failed=self._heal_later)

    def _on_directories(self, given: int, names: list[str] | None) -> None:
        last = given // BUCKET
        if last - self._below > _MOST:  # somebody has written that: nothing is concluded from it
            self._term.log.error("ids_not_believed", first=given, epoch=self._term.epoch)
            return
        there = {int(name) for name in names or () if _is_number(name)}
        self._floor = min([last, *(bucket for bucket in there if bucket < last)])
        if self._floor > self._below:
            self._raise()
        first = max(self._floor, self._below)
        gone = (bucket for bucket in range(first, min(last, first + _TOGETHER) + 1) if bucket not in there)
        for bucket in [*gone, *sorted(bucket for bucket in there if first <= bucket <= last)]:
            listed = partial(self._absent, bucket, given)
            self._tree.children(paths.subs_bucket(bucket * BUCKET), listed, failed=self._heal_later)

    def _absent(self, bucket: int, given: int, names: list[str] | None) -> None:
        present = {int(name) for name in names or () if _is_number(name)}
        self._tree.get(paths.ended(bucket), partial(self._on_lacking, bucket, ended.absent(bucket, present, given)))

    def _on_lacking(self, bucket: int, lacking: list[int], found: Stamped | None) -> None:
        if found is not None:
            self._bits.setdefault(bucket, found.data)
        for number in lacking:
            self.note(number)


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdecimal() and len(name) <= _DIGITS


def _tell(told: list[Callable[[bool], None]], *, success: bool) -> None:
    for then in told:
        then(success)
