"""Looks at the blocks of submissions: moves those that stand in the wrong place, and finds tasks that no block covers.

One look of the sweeper at a queue's two directories serves every submission that asked for it. `coord.keeping.moves` decides what is to be
moved; this file reads, counts the room of capped submissions, and carries the moves out. A submission is swept when a look finds nothing
to move. Running cancelled work gets an order in the inbox of its node, under a name that excludes a second order of the same kind.

The census ends tasks that are nowhere in ZooKeeper (`coord/decisions/keeping.py` explains why that is safe), in one round every `CENSUS_S`
while anything is unfinished. The first look compares memory with the names of all blocks; it is cheap, but memory may lag. So suspects
are read again, together with everything that decides, as of one moment. A task that is nowhere in two successive rounds is ended; until
then `explain` reports it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from rmgr.coord import validity
from rmgr.coord.decisions import keeping
from rmgr.coord.decisions.changing import cancel_words
from rmgr.coord.decisions.keeping import BringBack, EndBlock, Move, RenameBlock, SetBlockAside, moves, room_of
from rmgr.coord.decisions.progress import Codes
from rmgr.coord.ops.leader import cancel_reason, discard, end_block, end_missing
from rmgr.coord.ops.work import bring_back, rename, set_aside
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Committed, Outcome, Stamped
from rmgr.errors import RmgrError
from rmgr.model.block import BlockData, BlockKey
from rmgr.model.node import InboxOrder, OrderKind
from rmgr.model.submission import Phase, Submission
from rmgr.runtime import machine
from rmgr.runtime.failpoint import failpoint
from rmgr.runtime.story import Pause, Story, each

if TYPE_CHECKING:
    from rmgr.daemons.leader.submissions.follow import Followed
    from rmgr.daemons.leader.submissions.subs import SubmissionKeeper

#: Least time between two looks at one queue, and the addition for each of its blocks, so that a long list is not read all the time.
PACE_S, PACE_A_BLOCK_S = 0.02, 20e-6
#: Pause before the next look at a cancelled submission, doubled each time until it has ended.
_FIRST_AGAIN_S, _LAST_AGAIN_S = 0.5, 15.0
#: Blocks read by one request.
_TOGETHER = 64
#: Pause between rounds of the census. Three of them are less than the 30 s within which a lost task must be found.
CENSUS_S = 8.0
#: Most submissions examined closely in one round.
MOST = 32
#: Most tasks of one submission remembered in one round; a multi ends fewer.
_MOST_OF_ONE = 4096
Found: TypeAlias = list[Stamped | list[str] | None]


@dataclass(slots=True, eq=False)
class _Turn:
    """One submission in one look at its queue. ended: what its story returns. final: final tasks at its beginning (`keeping.room_of`)."""

    followed: Followed
    ended: Future[bool] = field(default_factory=Future)
    final: int = 0
    pending: list[BlockKey] = field(default_factory=list)
    held: list[BlockKey] = field(default_factory=list)
    strays: list[tuple[str, BlockKey, bool]] = field(default_factory=list)

    def abort(self) -> None:
        """Ends the turn without success; the submission is looked at again later."""
        if not self.ended.done():
            self.followed.swept = False
            self.ended.set_result(False)


class Sweeper:
    """Looks at queues on behalf of submissions."""

    def __init__(self, keeper: SubmissionKeeper) -> None:
        self._keeper = keeper
        self._term = keeper.term
        self._wanted: dict[str, dict[int, _Turn]] = {}
        self._next_s: dict[str, float] = {}  # when a queue may be looked at again
        self._again_s: dict[int, float] = {}

    def sweep(self, followed: Followed) -> Story[bool]:
        """Looks at the blocks of a submission soon. Returns whether that succeeded."""
        turn = _Turn(followed)
        self._ask(turn)
        return (yield turn.ended)  # type: ignore[no-any-return]

    def _ask(self, turn: _Turn) -> None:
        assert turn.followed.submission is not None
        queue = turn.followed.submission.queue
        self._wanted.setdefault(queue, {})[turn.followed.number] = turn
        self._term.tell(self._look_after(queue), f"blocks of queue {queue}")

    def _look_after(self, queue: str) -> Story[None]:
        """Looks at the queue while submissions ask for it, but not too often."""
        while self._wanted.get(queue):
            yield Pause(max(0.0, self._next_s.get(queue, -math.inf) - self._term.clock()))
            turns = self._wanted.pop(queue, {})
            for turn in [turn for turn in turns.values() if turn.followed.submission and turn.followed.submission.queue != queue]:
                del turns[turn.followed.number]
                self._ask(turn)  # it was moved to another queue since it asked
            try:
                yield from self._look(queue, turns)
            except Exception as error:  # noqa: BLE001 - the boundary of one look: the next one tells
                if not isinstance(error, RmgrError):
                    self._term.aside.add(f"blocks of queue {queue}", None, error)
                for turn in turns.values():
                    turn.abort()

    # -- one look

    def _look(self, queue: str, turns: dict[int, _Turn]) -> Story[None]:
        if not turns:
            return
        self._next_s[queue] = self._term.clock() + PACE_S
        for turn in turns.values():
            turn.final = turn.followed.progress.final
            turn.followed.swept = True  # any later change resets this
        # Held first: a block that is brought back meanwhile (only this leader does so) may be seen twice, but is never missed. The same
        # holds for a block from a queue in which its submission was before.
        before = {one for turn in turns.values() if turn.followed.submission is not None for one in turn.followed.submission.queues}
        places = [(one, is_held) for one in (*sorted(before - {queue}), queue) for is_held in (True, False)]
        lists = yield from each([self._term.children((paths.held if is_held else paths.pending)(one)) for one, is_held in places])
        self._next_s[queue] = self._term.clock() + PACE_S + PACE_A_BLOCK_S * sum(len(names or ()) for names in lists)
        strangers: dict[int, list[str]] = {}
        for (where, is_held), names in zip(places, lists, strict=True):
            for _, key in paths.blocks_in(names):
                asking = turns.get(key.submission)
                if asking is not None and where != queue:
                    if asking.followed.submission is not None and where in asking.followed.submission.queues:
                        asking.strays.append((where, key, is_held))
                elif asking is not None:
                    (asking.held if is_held else asking.pending).append(key)
                elif where == queue and key.submission not in self._keeper.followed:
                    path = paths.held_block(queue, key) if is_held else paths.pending_block(queue, key)
                    strangers.setdefault(key.submission, []).append(path)
        for number, found in strangers.items():
            self._term.tell(self._discard(number, found), f"blocks of no submission {number}")
        cancelled = {number: turn.followed for number, turn in turns.items() if _is_in(turn.followed, Phase.CANCELLED)}
        if cancelled:
            self._term.tell(self._order_cancels(cancelled), "orders to cancel", key=object())
        for turn in turns.values():
            self._tell_of_changes(turn.followed)
        for turn in turns.values():
            self._term.tell(self._serve(turn), f"blocks of submission {turn.followed.number}", key=turn)

    def _discard(self, number: int, found: Iterable[str]) -> Story[None]:
        """Deletes blocks of a submission that does not exist: they can never be claimed, and only stand in the way."""
        if (yield self._term.stat(paths.sub(number))) is None:
            found = list(found)
            self._term.log.warning("orphaned_blocks_discarded", submission=number, total=len(found))
            for path in found:
                self._term.commit(discard(path))

    # -- the blocks of one submission

    def _serve(self, turn: _Turn) -> Story[None]:
        try:
            yield from self._move(turn)
        except RmgrError:
            turn.abort()
        except Exception:
            turn.abort()
            raise

    def _move(self, turn: _Turn) -> Story[None]:
        followed, room = turn.followed, None
        followed.held_tasks = sum(key.count for key in turn.held)
        if turn.held and _is_in(followed, Phase.OPEN) and followed.submission is not None and followed.submission.max_running:
            room = yield from self._read_room(turn)
        submission = followed.submission
        if submission is None:
            turn.abort()
            return
        todo = moves(submission, pending=turn.pending, held=turn.held, room=room, strays=turn.strays)
        sent: list[Future[Outcome] | None] = []
        for at in range(0, len(todo), _TOGETHER):
            some = todo[at : at + _TOGETHER]
            blocks = yield from self._read(submission.queue, some)
            sent += [self._carry_out(submission, move, block) for move, block in zip(some, blocks, strict=True)]
        outcomes = yield from each([answer for answer in sent if answer is not None])
        moved = sum(isinstance(outcome, Committed) for outcome in outcomes)
        self._term.metrics.swept_blocks.inc(moved)
        # Else another process was faster (a claim, a cancelled task), or the outcome is unknown: the next look shows it.
        self._end(turn, moved, is_whole=moved == len(todo))

    def _read_room(self, turn: _Turn) -> Story[int | None]:
        """Returns the room of a capped submission."""
        number = turn.followed.number
        asked: list[Future[Any]] = [self._term.get(paths.tail(number)), self._term.children(paths.failed(number))]
        tail, names = yield from each(asked)
        submission = turn.followed.submission
        if tail is None or submission is None:
            raise RmgrError("it is not there")
        failed = sum(count for _, (_, count, _) in paths.failed_in(names))
        total = validity.tail(tail, number).next
        return room_of(submission, total=total, final=turn.final, held=turn.followed.held_tasks, failed=failed)

    def _read(self, queue: str, some: list[Move]) -> Story[list[Stamped | None]]:
        """Reads the blocks that are to be moved; None for blocks that end."""
        wanted = []
        for move in some:
            match move:
                case RenameBlock(key, held=is_held, queue=where):
                    wanted.append((paths.held_block if is_held else paths.pending_block)(where or queue, key))
                case SetBlockAside(key):
                    wanted.append(paths.pending_block(queue, key))
                case BringBack(key):
                    wanted.append(paths.held_block(queue, key))
        if not wanted:
            return [None] * len(some)
        try:
            return (yield self._term.get_all(wanted))  # type: ignore[no-any-return]
        except RmgrError:
            return [None] * len(some)

    def _carry_out(self, submission: Submission, move: Move, found: Stamped | None) -> Future[Outcome] | None:
        """Commits a move. Returns None if the block is gone."""
        queue = submission.queue
        match move:
            case EndBlock(key, is_held, where):
                failpoint("leader.before_end_block")
                return self._term.commit(end_block(submission, key, held=is_held, queue=where))
            case RenameBlock(key, now, held=is_held, queue=where) if found is not None:
                failpoint("leader.before_rename")
                return self._term.commit(rename(submission, where or queue, key, now, found.data, found.version, held=is_held))
            case SetBlockAside(key) if found is not None:
                failpoint("leader.before_set_aside")
                return self._term.commit(set_aside(queue, key, found.data, found.version))
            case BringBack(key, take) if found is not None:
                try:
                    data = validity.decode(found.data, BlockData, paths.held_block(queue, key))
                except RmgrError as error:
                    self._term.aside.add(paths.held_block(queue, key), found.version, error)
                    return None
                failpoint("leader.before_bring_back")
                return self._term.commit(bring_back(queue, key, data, found.version, take=0 if data.serial else take))
        return None

    def _end(self, turn: _Turn, moved: int, *, is_whole: bool) -> None:
        followed = turn.followed
        submission = followed.submission
        if moved:
            capped = submission is not None and submission.max_running and submission.phase is Phase.OPEN
            tell = self._term.log.debug if capped else self._term.log.info
            tell("blocks_swept", submission=followed.number, total=moved, state=submission.phase if submission else "")
        again_s = _FIRST_AGAIN_S
        if submission is not None and submission.phase is Phase.CANCELLED and not followed.is_ended:
            again_s = min(_LAST_AGAIN_S, self._again_s.get(followed.number, _FIRST_AGAIN_S / 2) * 2)
            self._again_s[followed.number] = again_s
        else:
            self._again_s.pop(followed.number, None)
            again_s = 0.0 if submission is not None and submission.changes and moved else again_s  # renamed, so to be moved now
            if is_whole and again_s:
                turn.ended.set_result(True)
                return
        followed.swept, followed.sweep_s = False, self._term.clock() + again_s
        turn.ended.set_result(True)

    # -- running work

    def _tell_of_changes(self, followed: Followed) -> None:
        """Tells the placer of changed terms, and the submission's nodes of new time limits (also of changes under an earlier leader)."""
        submission = followed.submission
        if submission is None or followed.told >= len(submission.changes):
            return
        since, followed.told = followed.told, len(submission.changes)
        self._keeper.leader.placer.amended(submission.id, followed.told)
        if any(change.terms.time_limit_us is not None for change in submission.changes[since:]):
            name, what = f"update-{submission.id}-{followed.told}", InboxOrder(order=OrderKind.UPDATE, submission=submission.id)
            orders = self._keeper.order_runners(lambda number: (name, what) if number == what.submission else None, insists=True)
            self._term.tell(orders, "orders to update", key=name)

    def _order_cancels(self, wanted: dict[int, Followed]) -> Story[None]:
        """Orders the nodes to cancel; the next look repeats the orders."""

        def order_of(number: int) -> tuple[str, InboxOrder] | None:
            submission = wanted[number].submission if number in wanted else None
            if submission is None or submission.phase is not Phase.CANCELLED:
                return None
            reason, detail = cancel_reason(submission), cancel_words(submission)
            return f"cancel-{number}", InboxOrder(order=OrderKind.CANCEL, submission=number, reason=reason, detail=detail)

        return self._keeper.order_runners(order_of, insists=False)


def _is_in(followed: Followed, phase: Phase) -> bool:
    return followed.submission is not None and followed.submission.phase is phase


@dataclass(frozen=True, slots=True, kw_only=True)
class _Facts:
    """Facts of one submission, for the comparing thread. failed: its failed ranges (first, count)."""

    number: int
    total: int
    settled: Codes
    failed: tuple[tuple[int, int], ...]


class Census:
    """The census rounds of one leadership.

    Attributes: nowhere: missing tasks found by the last round, by submission.
    """

    def __init__(self, keeper: SubmissionKeeper) -> None:
        self.nowhere: dict[int, frozenset[int]] = {}
        self._leader = keeper.leader
        self._term = keeper.term
        self._followed = keeper.followed
        self._more: frozenset[str] = frozenset()  # nodes that memory did not know yet

    def start(self) -> None:
        """Starts the rounds."""
        self._term.tell(self._rounds(), "the census")

    def _rounds(self) -> Story[None]:
        while True:
            yield Pause(CENSUS_S)
            self._term.tell(self._round(), "a round of the census")  # the round before may still run

    def _round(self) -> Story[None]:
        suspects = [facts for item in list(self._followed.values()) if (facts := _facts(item)) is not None]
        if not suspects:
            self.nowhere = {}
            return
        found, _ = yield from self._look([], [], [facts.number for facts in suspects])
        if found is None:
            return
        absent = yield self._term.in_store(lambda _: _absent(suspects, found))
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
        absent = yield self._term.in_store(lambda _: _absent(facts, found))
        before, self.nowhere = self.nowhere, {number: frozenset(indices) for number, indices in absent.items()}
        for number, indices in absent.items():
            again = [index for index in indices if index in before.get(number, ())]
            if number not in before:
                self._term.log.warning("tasks_are_nowhere", submission=number, first=indices[0], total=len(indices))
            if again:
                self._term.tell(self._end(number, again, judged[number]), f"lost tasks of submission {number}")

    def _look(self, wanted: list[str], lists: list[str], numbers: Iterable[int]) -> Story[tuple[Found | None, Found]]:
        """Returns block names from all places for these submissions (None if nodes were left out), and the answers to `wanted`, `lists`."""
        known = [item.submission for number in numbers if (item := self._followed.get(number)) is not None and item.submission]
        queues = {queue for submission in known for queue in submission.queues}
        nodes = sorted({*self._leader.nodes.records, *self._more})
        places = [place(queue) for queue in sorted(queues) for place in (paths.held, paths.pending)]
        found: Found = yield self._term.at_one_moment(wanted, [*lists, paths.RUNNING, *places, *map(paths.running_node, nodes)])
        own, (running, *blocks) = found[: len(wanted) + len(lists)], found[len(wanted) + len(lists) :]
        self._more = frozenset(running if isinstance(running, list) else ()) - self._leader.nodes.records.keys()
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
        outcome = yield self._term.commit(
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
            self._term.log.error("tasks_were_nowhere", submission=number, first=indices[0], total=len(indices))
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
