"""Blocks that stand in the wrong place: one look at a queue's two directories serves every submission that asked for it.

What is to be moved is decided by `coord.keeping.moves`; this file reads, counts the room of capped submissions, and
carries the moves out. A submission is swept when a look has found nothing to move. Cancelled work that runs gets an
order in the inbox of its node, under a name that makes a second order of the same kind impossible.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import Protocol

from rmgr.coord import validity
from rmgr.coord.decisions.changing import cancel_words
from rmgr.coord.decisions.keeping import BringBack, EndBlock, Move, RenameBlock, SetBlockAside, cancel_reason, end_block, moves, room_of
from rmgr.coord.decisions.progress import Progress
from rmgr.coord.ops.leader import order
from rmgr.coord.ops.work import bring_back, rename, set_aside
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Committed, Delete, Gone, Multi, Outcome, Stamped, Stat
from rmgr.daemons.leader.core.doors import LeaderCommits
from rmgr.daemons.leader.core.term import Term
from rmgr.daemons.leader.submissions.doors import KnownSubmission
from rmgr.errors import RmgrError
from rmgr.model.cluster.node import InboxOrder, OrderKind
from rmgr.model.tasks.block import BlockData, BlockKey
from rmgr.model.tasks.submission import Phase, Tail
from rmgr.runtime.failpoint import failpoint

#: Least time between two looks at one queue, and what each of its blocks adds: a long list is not read all the time.
PACE_S, PACE_A_BLOCK_S = 0.02, 20e-6
#: A cancelled submission is looked at again after so long, doubled each time, until it has ended.
_FIRST_AGAIN_S, _LAST_AGAIN_S = 0.5, 15.0


class SweptSubmission(KnownSubmission, Protocol):
    """A submission whose blocks may be set aside, or come back. held_tasks: that are. told: amendments of which the
    nodes that run it were told. sweep_s: when it is looked at again."""

    progress: Progress
    held_tasks: int
    told: int
    swept: bool
    sweep_s: float

    @property
    def is_ended(self) -> bool:
        """All of its tasks have ended."""
        ...


@dataclass(slots=True)
class _Turn:
    """One submission in one look at its queue."""

    followed: SweptSubmission
    done: Callable[[bool], None]
    final: int  # when the look began: see `keeping.room_of`
    pending: list[BlockKey] = field(default_factory=list)
    held: list[BlockKey] = field(default_factory=list)
    strays: list[tuple[str, BlockKey, bool]] = field(default_factory=list)
    tail: Tail | None = None
    open: int = 0
    moved: int = 0
    failed: bool = False


class Sweeper:
    """Looks at queues.

    Args:
        nodes: names of all nodes.
        is_known: a submission of this number is in memory.
        amended: told of (number, amendments) once, as nodes are.
    """

    def __init__(
        self,
        tree: LeaderCommits,
        term: Term,
        nodes: Callable[[], list[str]],
        is_known: Callable[[int], bool],
        amended: Callable[[int, int], None],
    ) -> None:
        self._amended = amended
        self._tree = tree
        self._term = term
        self._nodes = nodes
        self._is_known = is_known
        self._wanted: dict[str, dict[int, tuple[SweptSubmission, Callable[[bool], None]]]] = {}
        self._next_s: dict[str, float] = {}  # when a queue may be looked at again
        self._busy: set[str] = set()
        self._again_s: dict[int, float] = {}

    def sweep(self, followed: SweptSubmission, done: Callable[[bool], None]) -> None:
        """Looks after the blocks of a submission soon; then `done` (True: it could be done)."""
        assert followed.submission is not None
        queue = followed.submission.queue
        asked = self._wanted.setdefault(queue, {})
        if not asked and queue not in self._busy:
            self._look_soon(queue)
        asked[followed.number] = (followed, done)

    def _look_soon(self, queue: str) -> None:
        wait_s = self._next_s.get(queue, float("-inf")) - self._tree.clock()
        self._tree.after(max(0.0, wait_s), partial(self._look, queue))

    # -- one look

    def _look(self, queue: str) -> None:
        asked = self._wanted.pop(queue, {})
        for followed, done in [one for one in asked.values() if one[0].submission is not None and one[0].submission.queue != queue]:
            del asked[followed.number]
            self.sweep(followed, done)  # it has gone to another one since it asked
        if not asked:
            return
        self._busy.add(queue)
        self._next_s[queue] = self._tree.clock() + PACE_S
        turns = {number: _Turn(followed, done, followed.progress.final) for number, (followed, done) in asked.items()}
        for turn in turns.values():
            turn.followed.swept = True  # whatever changes from here on says otherwise again
        give_up = partial(self._give_up, queue, turns)
        # Held first: a block that is brought back meanwhile (nobody but us does) would be seen twice, never not at all. So would one
        # that comes from a queue in which its submission was before.
        before = {one for turn in turns.values() if turn.followed.submission is not None for one in turn.followed.submission.queues}
        places = [(one, held) for one in (*sorted(before - {queue}), queue) for held in (True, False)]
        lists: list[list[str]] = []
        *others, (last, _) = places
        for one, held in others:
            self._tree.children(paths.held(one) if held else paths.pending(one), lambda names: lists.append(names or []))
        self._tree.children(paths.pending(last), lambda names: self._listed(queue, turns, places, [*lists, names or []]), failed=give_up)

    def _give_up(self, queue: str, turns: dict[int, _Turn]) -> None:
        self._finish(queue)
        for turn in turns.values():
            _abort(turn)

    def _finish(self, queue: str) -> None:
        self._busy.discard(queue)
        if self._wanted.get(queue):
            self._look_soon(queue)

    def _listed(self, queue: str, turns: dict[int, _Turn], places: list[tuple[str, bool]], lists: list[list[str]]) -> None:
        if len(lists) < len(places):
            self._give_up(queue, turns)
            return
        strangers: dict[int, list[str]] = {}
        for (where, is_held), names in zip(places, lists, strict=True):
            for name in names:
                key = _parse(name)
                if key is None:
                    continue
                turn = turns.get(key.submission)
                if turn is not None and where != queue:
                    if turn.followed.submission is not None and where in turn.followed.submission.queues:
                        turn.strays.append((where, key, is_held))
                elif turn is not None:
                    (turn.held if is_held else turn.pending).append(key)
                elif where == queue and not self._is_known(key.submission):
                    path = paths.held_block(queue, key) if is_held else paths.pending_block(queue, key)
                    strangers.setdefault(key.submission, []).append(path)
        self._next_s[queue] = self._tree.clock() + PACE_S + PACE_A_BLOCK_S * sum(map(len, lists))
        self._finish(queue)
        for number, found in strangers.items():
            self._tree.stat(paths.sub(number), partial(self._discard, number, found))
        cancelled = [turn for turn in turns.values() if turn.followed.submission and turn.followed.submission.phase is Phase.CANCELLED]
        if cancelled:
            self._order_cancels(cancelled)
        for turn in turns.values():
            self._tell_of_changes(turn.followed)
        for turn in turns.values():
            submission = turn.followed.submission
            turn.followed.held_tasks = sum(key.count for key in turn.held)
            if submission is not None and submission.max_running and submission.phase is Phase.OPEN and turn.held:
                self._count(turn)
            else:
                self._move(turn, None)

    def _discard(self, number: int, found: list[str], record: Stat | None) -> None:
        """Blocks of a submission that does not exist can never be claimed; they only stand in the way."""
        if record is not None:
            return
        self._term.log.warning("orphaned_blocks_discarded", submission=number, total=len(found), epoch=self._term.epoch)
        for path in found:
            self._tree.commit(Multi(name="DISCARD", ops=(Delete(path),), proof=Gone(path)))

    # -- the room of a capped submission

    def _count(self, turn: _Turn) -> None:
        number = turn.followed.number
        self._tree.get(paths.tail(number), partial(self._on_tail, turn))
        self._tree.children(paths.failed(number), partial(self._on_failed, turn), failed=partial(_abort, turn))

    def _on_tail(self, turn: _Turn, found: Stamped | None) -> None:
        if found is not None:
            turn.tail = validity.tail(found, turn.followed.number)

    def _on_failed(self, turn: _Turn, names: list[str] | None) -> None:
        submission = turn.followed.submission
        assert submission is not None
        if turn.tail is None:
            _abort(turn)
            return
        failed = sum(count for _, (_, count, _) in paths.failed_in(names))
        room = room_of(submission, total=turn.tail.next, final=turn.final, held=turn.followed.held_tasks, failed=failed)
        self._move(turn, room)

    # -- moves

    def _move(self, turn: _Turn, room: int | None) -> None:
        submission = turn.followed.submission
        if submission is None:
            _abort(turn)
            return
        todo = moves(submission, pending=turn.pending, held=turn.held, room=room, strays=turn.strays)
        turn.open = len(todo)
        if not todo:
            self._end(turn)
            return
        # One after the other in this order: answers of reads come in the order of the questions.
        for move in todo:
            self._carry_out(turn, move)

    def _carry_out(self, turn: _Turn, move: Move) -> None:
        submission = turn.followed.submission
        assert submission is not None
        queue = submission.queue
        moved = partial(self._moved, turn)
        match move:
            case EndBlock(key, held, where):
                failpoint("leader.before_end_block")
                self._tree.commit(end_block(submission, key, held=held, queue=where), moved)
            case RenameBlock(key, held=held, queue=where):
                path = (paths.held_block if held else paths.pending_block)(where or queue, key)
                self._tree.get(path, partial(self._rename, turn, move), failed=partial(moved, None))
            case SetBlockAside(key):
                path = paths.pending_block(queue, key)
                self._tree.get(path, partial(self._set_aside, turn, queue, key), failed=partial(moved, None))
            case BringBack(key, take):
                path = paths.held_block(queue, key)
                self._tree.get(path, partial(self._bring_back, turn, queue, key, take), failed=partial(moved, None))

    def _rename(self, turn: _Turn, move: RenameBlock, found: Stamped | None) -> None:
        submission = turn.followed.submission
        if found is None or submission is None:
            self._moved(turn, None)
            return
        failpoint("leader.before_rename")
        queue = move.queue or submission.queue
        self._tree.commit(
            rename(submission, queue, move.key, move.now, found.data, found.version, held=move.held), partial(self._moved, turn)
        )

    def _set_aside(self, turn: _Turn, queue: str, key: BlockKey, found: Stamped | None) -> None:
        if found is None:
            self._moved(turn, None)
            return
        failpoint("leader.before_set_aside")
        self._tree.commit(set_aside(queue, key, found.data, found.version), partial(self._moved, turn))

    def _bring_back(self, turn: _Turn, queue: str, key: BlockKey, take: int, found: Stamped | None) -> None:
        if found is None:
            self._moved(turn, None)
            return
        try:
            data = validity.decode(found.data, BlockData, paths.held_block(queue, key))
        except RmgrError as error:
            self._term.aside.add(paths.held_block(queue, key), found.version, error)
            self._moved(turn, None)
            return
        failpoint("leader.before_bring_back")
        multi = bring_back(queue, key, data, found.version, take=0 if data.serial else take)
        self._tree.commit(multi, partial(self._moved, turn))

    def _moved(self, turn: _Turn, outcome: Outcome | None) -> None:
        if isinstance(outcome, Committed):
            turn.moved += 1
            self._term.metrics.swept_blocks.inc()
        else:  # somebody was faster (a claim, a cancelled task), or nobody knows: the next look tells
            turn.failed = True
        turn.open -= 1
        if not turn.open:
            self._end(turn)

    def _end(self, turn: _Turn) -> None:
        followed = turn.followed
        submission = followed.submission
        if turn.moved:
            capped = submission is not None and submission.max_running and submission.phase is Phase.OPEN
            (self._term.log.debug if capped else self._term.log.info)(
                "blocks_swept",
                submission=followed.number,
                total=turn.moved,
                state=submission.phase if submission else "",
                epoch=self._term.epoch,
            )
        again_s = _FIRST_AGAIN_S
        if submission is not None and submission.phase is Phase.CANCELLED and not followed.is_ended:
            again_s = min(_LAST_AGAIN_S, self._again_s.get(followed.number, _FIRST_AGAIN_S / 2) * 2)
            self._again_s[followed.number] = again_s
        else:
            self._again_s.pop(followed.number, None)
            again_s = 0.0 if submission is not None and submission.changes and turn.moved else again_s  # renamed, and to be moved now
            if not turn.failed and again_s:
                turn.done(True)
                return
        followed.swept, followed.sweep_s = False, self._tree.clock() + again_s
        turn.done(True)

    # -- work that runs

    def _tell_of_changes(self, followed: SweptSubmission) -> None:
        """Whoever places is told of changed terms, and nodes that run something of it of time limits (also by a leader before)."""
        submission = followed.submission
        if submission is None or followed.told >= len(submission.changes):
            return
        since, followed.told = followed.told, len(submission.changes)
        self._amended(submission.id, followed.told)
        if all(change.terms.time_limit_us is None for change in submission.changes[since:]):
            return
        what = InboxOrder(order=OrderKind.UPDATE, submission=submission.id)
        for node in self._nodes():
            then = partial(self._order_update, node, what, f"update-{submission.id}-{followed.told}")
            self._tree.children(paths.running_node(node), then)

    def _order_update(self, node: str, what: InboxOrder, name: str, names: list[str] | None) -> None:
        if any(key is not None and key.submission == what.submission for key in map(_parse, names or ())):
            self._tree.commit(order(node, name, what))

    def _order_cancels(self, turns: list[_Turn]) -> None:
        wanted = {turn.followed.number: turn.followed for turn in turns}
        for node in self._nodes():
            self._tree.children(paths.running_node(node), partial(self._on_running, node, wanted))

    def _on_running(self, node: str, wanted: dict[int, SweptSubmission], names: list[str] | None) -> None:
        numbers = sorted(key.submission for name in names or () if (key := _parse(name)) is not None and key.submission in wanted)
        for number, _ in groupby(numbers):
            submission = wanted[number].submission
            if submission is not None and submission.phase is Phase.CANCELLED:
                what = InboxOrder(
                    order=OrderKind.CANCEL, submission=number, reason=cancel_reason(submission), detail=cancel_words(submission)
                )
                self._tree.commit(order(node, f"cancel-{number}", what))


def _abort(turn: _Turn) -> None:
    """It could not be read: asked again later."""
    turn.followed.swept = False
    turn.done(False)


def _parse(name: str) -> BlockKey | None:
    try:
        return paths.parse_block(name)
    except ValueError:
        return None
