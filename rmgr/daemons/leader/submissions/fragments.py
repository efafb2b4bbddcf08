"""Fragments as the leader reads them: whole pages from the store, how far one reaches, and what it changes of what is known."""

from __future__ import annotations

from collections import deque
from itertools import islice

from rmgr.coord.decisions.progress import MOST_STATED, Progress
from rmgr.coord.protocol.ports import Store
from rmgr.daemons.leader.core.term import Term
from rmgr.model.tasks.block import Fragment
from rmgr.procedures.bounded import page_at


class FragmentSizes:
    """Adds up the bytes of fragments that lie in ZooKeeper."""

    def __init__(self) -> None:
        self.total = 0
        self._each: deque[tuple[int, int]] = deque()  # (number, bytes)

    def add(self, number: int, size: int) -> None:
        """The next one is so long."""
        self._each.append((number, size))
        self.total += size

    def drop_below(self, base: int) -> None:
        """Those before this number lie in pages of the store."""
        while self._each and self._each[0][0] < base:
            self.total -= self._each.popleft()[1]


def reaches(fragment: Fragment, end: int) -> bool:
    """It tells of tasks from `end` on. Cost: O(outcomes)."""
    if fragment.row:
        return any(first + count > end for _, first, count in fragment.ranges)
    return bool(fragment.outcomes) and max([outcome.index for outcome in fragment.outcomes]) >= end


def read_pages(store: Store, *, number: int, start: int, base: int) -> list[tuple[int, Fragment]]:
    """Paged fragments from `start` to below `base`; a page is named by its first fragment. On a thread that may wait."""
    found: list[tuple[int, Fragment]] = []
    at = 0
    while at < base:
        fragments = page_at(store, number, at)
        found += [(at + offset, fragment) for offset, fragment in enumerate(fragments) if at + offset >= start]
        at += len(fragments)
    return found


def apply(fragment: Fragment, progress: Progress, number: int, term: Term) -> None:
    """Takes the next fragment of submission `number` into its progress. What it cannot truly tell is logged, and counted, not believed."""
    ends, end = progress.ends, progress.tail.next
    known, strange = ends.duplicates, ends.strange
    if fragment.row:
        progress.apply_stated(progress.next_fragment, fragment, most=MOST_STATED, end=end)
    else:
        progress.apply(progress.next_fragment, fragment, islice(fragment.outcomes, MOST_STATED), end=end)
    if ends.strange > strange and not strange:
        term.log.warning("outcomes_ignored", submission=number, why="of tasks that were never submitted, or no ends")
    if ends.duplicates > known:
        term.metrics.duplicates.inc(ends.duplicates - known)
        if not known:  # once for each submission: the metric counts them all
            term.log.error("outcome_committed_twice", submission=number, node=fragment.node, total=ends.duplicates)
