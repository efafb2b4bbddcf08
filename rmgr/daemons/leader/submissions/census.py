"""Finds tasks that are nowhere in ZooKeeper, and ends them (`coord/decisions/keeping.py` explains why that is safe).

One round every `CENSUS_S` while anything is unfinished. The first look compares memory with the names of all blocks; it is cheap, but
memory may lag. So suspects are read again, together with everything that decides, as of one moment. A task that is nowhere in two
successive rounds is ended; until then `explain` reports it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from rmgr.coord import validity
from rmgr.coord.decisions import keeping
from rmgr.coord.decisions.progress import Codes
from rmgr.coord.ops.leader import end_missing
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Committed, Stamped
from rmgr.daemons.leader.tree import LeaderContext
from rmgr.errors import RmgrError
from rmgr.runtime import machine
from rmgr.runtime.story import Pause, Story

if TYPE_CHECKING:
    from rmgr.daemons.leader.submissions.follow import Followed

#: Pause between rounds. Three of them are less than the 30 s within which a lost task must be found.
CENSUS_S = 8.0
#: Most submissions examined closely in one round.
MOST = 32

#: Most tasks of one submission remembered in one round; a multi ends fewer.
_MOST_OF_ONE = 4096

Found: TypeAlias = list[Stamped | list[str] | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Facts:
    """Facts of one submission, for the comparing thread. failed: its failed ranges (first, count)."""

    number: int
    total: int
    settled: Codes
    failed: tuple[tuple[int, int], ...]


class Census:
    """The census rounds of one leadership.

    Args:
        followed: submissions in memory, by number. nodes: names of all nodes.
    Attributes: nowhere: missing tasks found by the last round, by submission.
    """

    def __init__(self, context: LeaderContext, followed: Mapping[int, Followed], nodes: Callable[[], list[str]]) -> None:
        self.nowhere: dict[int, frozenset[int]] = {}
        self._tree, self._term, self._calls = context.tree, context.term, context.calls
        self._followed = followed
        self._nodes = nodes
        self._more: frozenset[str] = frozenset()  # nodes that memory did not know yet

    def start(self) -> None:
        """Starts the rounds."""
        self._tree.tell(self._rounds(), "the census")

    def _rounds(self) -> Story[None]:
        while True:
            yield Pause(CENSUS_S)
            self._tree.tell(self._round(), "a round of the census")  # the round before may still run

    def _round(self) -> Story[None]:
        suspects = [facts for item in list(self._followed.values()) if (facts := _facts(item)) is not None]
        if not suspects:
            self.nowhere = {}
            return
        found, _ = yield from self._look([], [], [facts.number for facts in suspects])
        if found is None:
            return
        absent = yield self._calls.store(lambda _: _absent(suspects, found))
        self.nowhere = {number: indices for number, indices in self.nowhere.items() if number in absent}
        known = sorted(absent, key=lambda number: (number not in self.nowhere, number))[:MOST]
        numbers = [number for number in known if number in self._followed]
        if numbers:
            yield from self._look_closely(numbers)

    def _look_closely(self, numbers: list[int]) -> Story[None]:
        """Reads everything that decides about these submissions as of one moment, and ends tasks that are missing again."""
        wanted = [path for number in numbers for path in (paths.sub(number), paths.tail(number), paths.done(number), paths.failed(number))]
        found, own = yield from self._look(wanted, [paths.failed(number) for number in numbers], numbers)
        if found is None:
            return
        records, failed = own[: len(wanted)], own[len(wanted) :]
        judged, facts = {}, []
        for at, number in enumerate(numbers):
            one = self._decide(number, records[4 * at : 4 * at + 4], failed[at])
            if one is not None:
                judged[number] = records[4 * at : 4 * at + 4]
                facts.append(one)
        absent = yield self._calls.store(lambda _: _absent(facts, found))
        before, self.nowhere = self.nowhere, {number: frozenset(indices) for number, indices in absent.items()}
        for number, indices in absent.items():
            again = [index for index in indices if index in before.get(number, ())]
            if number not in before:
                self._term.log.warning(
                    "tasks_are_nowhere", submission=number, first=indices[0], total=len(indices), epoch=self._term.epoch
                )
            if again:
                self._tree.tell(self._end(number, again, judged[number]), f"lost tasks of submission {number}")

    def _look(self, wanted: list[str], lists: list[str], numbers: Iterable[int]) -> Story[tuple[Found | None, Found]]:
        """Returns block names from all places for these submissions (None if nodes were left out), and the answers to `wanted`, `lists`."""
        known = [item.submission for number in numbers if (item := self._followed.get(number)) is not None and item.submission]
        queues = {queue for submission in known for queue in submission.queues}
        nodes = sorted({*self._nodes(), *self._more})
        places = [place(queue) for queue in sorted(queues) for place in (paths.held, paths.pending)]
        found: Found = yield self._tree.at_one_moment(wanted, [*lists, paths.RUNNING, *places, *map(paths.running_node, nodes)])
        own, (running, *blocks) = found[: len(wanted) + len(lists)], found[len(wanted) + len(lists) :]
        self._more = frozenset(running if isinstance(running, list) else ()) - set(self._nodes())
        return (blocks if self._more <= set(nodes) else None), own  # the next round includes those nodes

    def _decide(self, number: int, records: Found, failed: Stamped | list[str] | None) -> _Facts | None:
        """Returns the deciding facts, None if memory cannot be compared with what was read: then the next round decides."""
        item, (record, tail, done, directory) = self._followed.get(number), records
        if item is None or not all(isinstance(one, Stamped) for one in (record, tail, done, directory)) or not isinstance(failed, list):
            return None
        assert isinstance(record, Stamped)
        assert isinstance(tail, Stamped)
        assert isinstance(done, Stamped)
        if done.stat.creates > item.progress.next_fragment:
            item.refresh()  # its end may be on the way
            return None
        try:
            total = validity.tail(tail, number).next
            validity.submission(record.data, number)
        except RmgrError:
            return None
        settled = item.progress.settled()
        ranges = tuple(numbers[:2] for _, numbers in paths.failed_in(failed))
        return None if settled is None else _Facts(number=number, total=total, settled=settled, failed=ranges)

    def _end(self, number: int, indices: list[int], records: Found) -> Story[None]:
        record, tail, _, directory = records
        assert isinstance(record, Stamped)
        assert isinstance(tail, Stamped)
        assert isinstance(directory, Stamped)
        outcome = yield self._tree.commit(
            end_missing(
                validity.submission(record.data, number),
                indices,
                epoch_version=self._term.epoch_version,
                version=record.version,
                tail_version=tail.version,
                failed_version=directory.version,
                stamp=machine.guid(),
            )
        )
        if isinstance(outcome, Committed):
            self._term.log.error(
                "tasks_were_nowhere", submission=number, first=indices[0], total=len(indices), epoch=self._term.epoch
            )
        if (item := self._followed.get(number)) is not None:
            item.refresh()


def _facts(item: Followed) -> _Facts | None:
    """Returns facts of a submission if memory knows tasks of it that are neither final nor failed."""
    if item.submission is None or not item.is_loaded or item.is_closed or item.is_spoilt:
        return None
    progress = item.progress
    failed = tuple((seen.first, seen.count) for seen in item.failed.values())
    if progress.total - progress.final <= sum(count for _, count in failed) or (settled := progress.settled()) is None:
        return None
    return _Facts(number=item.number, total=progress.total, settled=settled, failed=failed)


def _absent(suspects: Iterable[_Facts], lists: Found) -> dict[int, list[int]]:
    """Returns by submission the tasks that no block in `lists` and no failed range covers, if there are any.

    At most `MOST_MISSING` in all: later rounds find the rest. On a thread that may take its time.
    """
    covered: dict[int, list[tuple[int, int]]] = {facts.number: list(facts.failed) for facts in suspects}
    for names in lists:
        for _, key in paths.blocks_in(names if isinstance(names, list) else ()):
            if key.submission in covered:
                covered[key.submission].append((key.first, key.count))
    absent: dict[int, list[int]] = {}
    left = keeping.MOST_MISSING
    for facts in suspects:
        indices = keeping.missing_tasks(facts.total, facts.settled, covered[facts.number], min(left, _MOST_OF_ONE))
        if indices:
            absent[facts.number] = indices
            left -= len(indices)
        if left <= 0:
            break
    return absent
