"""Checkpoints of the jobs whose script one node runs: requests, their results, how an attempt is given up, and how a job begins with one.

`way.py` has the table of steps; `Checkpoints.happened` runs it, with a method for each effect: effects that take time are stories. All
waiting (for files, the store, other nodes) is done on separate threads, whose results come as messages. A checkpoint that is refused, too
large or not stored is noted in the job's story (NOTE), in the log and in a metric. The job goes on, unless it has ended. A later attempt
begins with the newest readable checkpoint (`Restores`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from rmgr.checkpoint import SAVED_EXIT_CODE
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.keys import Checkpoint
from rmgr.coord.protocol.ports import Store
from rmgr.daemons.starter.checkpoint.directories import JobDirectories, JobDirectory, LocalPart, SaveRequest, answered, each, sentence
from rmgr.daemons.starter.checkpoint.files import (
    OPEN,
    FileEntry,
    Manifest,
    Seals,
    check_size,
    checkpoints_of,
    clear,
    prune_checkpoints,
    read_checkpoint,
    size_text,
    united,
    write_checkpoint,
)
from rmgr.daemons.starter.checkpoint.way import (
    CheckpointEffect,
    CheckpointEvent,
    CheckpointKind,
    CheckpointPhase,
    OpenCheckpoint,
    kind_of,
    next_step,
    rigid_of,
    says_saved,
    was_stopped,
)
from rmgr.daemons.starter.core.blocks import ClaimedBlock
from rmgr.daemons.starter.core.fetch import FetchFailure
from rmgr.daemons.starter.execution.lanes import WorkerLane
from rmgr.daemons.starter.staging.logs import Flushed, StoredStream
from rmgr.daemons.starter.staging.outputs import Ending, discard, remove_directory, write
from rmgr.errors import CoordinationUnavailable, DataLost, PermissionDenied, RmgrError, StateConflict, StoreUnavailable, ValueTooLarge
from rmgr.log import audit
from rmgr.model.base.states import Reason
from rmgr.model.base.units import format_duration, utc
from rmgr.model.cluster.node import InboxOrder
from rmgr.model.tasks.block import PastAttempt, story_line
from rmgr.model.tasks.submission import FROM_START
from rmgr.model.wire.frames import NO_OUTPUT
from rmgr.runtime import machine
from rmgr.runtime.story import Pause, Story

if TYPE_CHECKING:
    from rmgr.daemons.starter.node.node import NodeAgent

#: A copy that takes longer (s) is noted in the job's story.
_LONG_COPY_S = 1.0
#: How often a copy is repeated because files changed meanwhile, and the pause.
_COPIES, _COPY_PAUSE_S = 4, 0.3
#: Pause before an absent store is tried again, after the job has ended or before it begins.
_STORE_PAUSE_S = 1.0
_LONGEST_WHY = 250
#: How often the turner reports the served time of jobs.
_SERVED_S = 0.5
#: Pause between two looks for an answer, and between two requests to processes that were not told yet.
_LOOK_S, _AGAIN_S = 0.1, 1.0
#: Time between SIGTERM and SIGKILL for a job that has not ended by itself.
KILL_US = 2_000_000
#: Result of `take` for directories without files.
NOTHING = "nothing was saved: its checkpoint directory has no files"


class Checkpoints:
    """Checkpoints of one node. directory: contains a directory for each job."""

    def __init__(self, node: NodeAgent, directory: Path) -> None:
        self._node = node
        self._shared = node.shared
        self._seals = node.shared.seals
        self.directories = JobDirectories(node, directory)
        self.open: dict[ClaimedBlock, OpenCheckpoint] = {}
        self._numbers: dict[ClaimedBlock, int] = {}
        self._timed: set[ClaimedBlock] = set()
        self._asked: set[ClaimedBlock] = set()  #: blocks whose program has been asked
        self.restores = Restores(node, self.directories)
        self.effects: dict[CheckpointEffect, Callable[[OpenCheckpoint, str | Exception], Story[None] | None]] = {
            CheckpointEffect.NOTHING: lambda _case, _detail: None,
            CheckpointEffect.MEASURE: self._measure,
            CheckpointEffect.ASK: self._ask,
            CheckpointEffect.WITHDRAW: self._withdraw,
            CheckpointEffect.PREEMPT: self._preempt,
            CheckpointEffect.END: lambda case, _detail: self._end(case, case.grace_us),
            CheckpointEffect.END_SILENT: self._end_silent,
            CheckpointEffect.COPY: self._copy,
            CheckpointEffect.COPY_SOON: self._copy_soon,
            CheckpointEffect.TELL: lambda case, words: node.notes.tell(case.block, str(words), orders=case.orders, saving=""),
            CheckpointEffect.LEAVE: self._leave,
            CheckpointEffect.LEAVE_UNSTORED: self._leave_unstored,
            CheckpointEffect.REFUSE: self._refuse,
            CheckpointEffect.REFUSE_SILENT: lambda case, why: self._refuse(case, why, outcome="ignored"),
            CheckpointEffect.TELL_CANCELLED: lambda case, why: self._end_as(case, why, reason=Reason.USER_CANCEL),
            CheckpointEffect.TELL_LOST: lambda case, why: self._end_as(case, why, reason=Reason.NODE_LOST),
        }

    def happened(self, case: OpenCheckpoint, event: CheckpointEvent, detail: str | Exception = "") -> bool:
        """Takes the table's step for an event. False: the event came too late, and nothing changes."""
        step = next_step(case.phase, event, case.kind)
        if step is None:
            return False
        case.phase = step.phase
        if case.is_over and self.open.get(case.block) is case:  # an open request stays; a late answer is ignored
            del self.open[case.block]
        story = self.effects[step.effect](case, detail)
        if story is not None:  # an effect that takes time
            self._node.jobs.stories.begin(story)
        return True

    def lane_of(self, block: ClaimedBlock) -> WorkerLane | None:
        """Returns the lane that runs its script, None if it does not run."""
        return next((lane for lane in self._node.lanes if any(task[0] is block for task in lane.tasks.values())), None)

    # -- orders and the clock --------------------------------------------------------------------------------------------------

    def order(self, block: ClaimedBlock, guid: str, order: InboxOrder) -> None:
        """Takes a CHECKPOINT order. The inbox crosses off one that is not taken up."""
        extra, kind = order.extra, kind_of(order.extra)
        is_stop, kills = kind is not CheckpointKind.GO_ON, kind is CheckpointKind.PREEMPT
        by_policy = is_stop and not kills and extra.get("why") == "policy"
        case = self.open.get(block)
        if case is not None and guid in case.orders:
            return  # read again after a new registration
        if not block.is_placed:
            self._node.log.warning("checkpoint_refused", block=paths.block_name(block.key), why="it is work that Starters pull")
            return
        if block.ready:
            if is_stop:
                self._node.giving.revoke(block)
            else:
                self._node.notes.tell(block, "checkpoint refused: its job has not started yet", orders=(guid,))
            return
        if not block.live or (case is not None and case.phase is CheckpointPhase.LEAVING):
            return
        if extra.get("unbegun") == "1":
            self._node.notes.tell(block, "", orders=(guid,))  # the job has begun, and goes on
            return
        why = order.detail or extra.get("why", "")
        given_us = int(extra.get("grace_us", "0"))  # a number, as checked by `coord/validity.py`
        grace_us = given_us or (KILL_US if kills else rigid_of(block).checkpoint_grace_us)
        if case is not None and (not is_stop or case.is_stop):
            case.orders.append(guid)
            if kills and not case.kills and case.ending is None:
                case.kind, case.grace_us = CheckpointKind.PREEMPT, grace_us
                self.happened(case, CheckpointEvent.KILL)
            return
        orders = [guid]
        if case is not None:  # a stop does not wait for a checkpoint of a job that goes on
            orders += case.orders
            self.happened(case, CheckpointEvent.REPLACED)
        self.begin(self.case(block, why, grace_us, kind=kind, by_policy=by_policy, orders=orders))

    def is_obeying(self, guid: str) -> bool:
        """Returns whether a commit of a checkpoint will cross the order off."""
        return any(guid in case.orders for case in self.open.values()) or self._node.notes.carries(guid)

    def started(self, block: ClaimedBlock) -> None:
        """Starts the clock of periodic checkpoints when its script starts."""
        every_us = rigid_of(block).checkpoint_every_us
        if every_us > 0 and rigid_of(block).restart != FROM_START and block not in self._timed:
            self._timed.add(block)
            self._node.jobs.stories.begin(self._periodic(block, every_us))

    def _periodic(self, block: ClaimedBlock, every_us: int) -> Story[None]:
        """Takes periodic checkpoints; for a job of a gang, served time counts."""
        at_us = every_us
        yield Pause(every_us / 1e6)
        while block in self._timed:
            served_us = self._node.jobs.served_us(block)
            if served_us is not None and served_us < at_us:
                yield Pause(max((at_us - served_us) / 1e6, _SERVED_S))
                continue
            if block.live and block not in self.open:
                self.begin(self.case(block, "periodic", rigid_of(block).checkpoint_grace_us))
            at_us = (served_us or 0) + every_us
            yield Pause(every_us / 1e6)

    # -- measuring and asking --------------------------------------------------------------------------------------------------

    def next_number(self, block: ClaimedBlock) -> int:
        """Returns the number of the next request to its program."""
        number = self._numbers[block] = self._numbers.get(block, 0) + 1
        return number

    def case(self, block: ClaimedBlock, why: str, grace_us: int, **more: Any) -> OpenCheckpoint:
        """Opens a new checkpoint. more: its other fields."""
        number = self.next_number(block)
        found = self.open[block] = OpenCheckpoint(
            block=block, number=number, why=why, grace_us=grace_us, made_us=machine.wall_us(), **more
        )
        return found

    def begin(self, case: OpenCheckpoint) -> None:
        block, is_stop, why = case.block, case.is_stop, case.why
        self._node.log.info("checkpoint_begun", block=paths.block_name(block.key), kind="stop" if is_stop else "go-on", why=why)
        if is_stop and not block.data.resubmit:
            self.happened(case, CheckpointEvent.RUNS_ONCE, "its job may run only once (--no-requeue)")
        elif rigid_of(block).restart == FROM_START:
            self.happened(case, CheckpointEvent.FROM_START, "its job always begins from the start (--restart-from start)")
        else:
            self.happened(case, CheckpointEvent.SAVES)

    def _measure(self, case: OpenCheckpoint, _detail: str | Exception) -> Story[None]:
        parts = self.directories.parts(case.block, lambda: case.is_over)
        store, limit = self._shared.io.store, self._shared.config.checkpoint_max_bytes
        try:
            yield self.directories.background(lambda: check(parts, store, limit))
        except Exception as error:  # noqa: BLE001 - whatever it is, the job is told
            self.happened(case, CheckpointEvent.UNFIT, error)
        else:
            self.happened(case, CheckpointEvent.FITS)

    def _ask(self, case: OpenCheckpoint, _detail: str | Exception) -> Story[None]:
        """Asks the program to save its state, and waits for its answer within its grace.

        asked -> answered                         it has saved its state, which is stored (if the job is to stop: once it has ended)
        asked -> silent -> what lies there        of a job that goes on: its files are stored as they are
        asked -> silent -> ended                  of a job that is to stop on a person's order
        asked -> silent -> withdrawn -> goes on   of a job that a policy would move: it loses nothing, and learns that it need not stop

        Each step is noted in the block (`saving`, `stopping`, `story`), for people and for any leader.
        """
        block, now_us = case.block, machine.wall_us()
        self._asked.add(block)
        case.end_s = machine.monotonic() + case.grace_us / 1e6
        asked = SaveRequest(number=case.number, stop=case.is_stop, deadline_us=now_us + case.grace_us)
        lane, own = self.lane_of(block), self.directories.own_part(block)
        parts = self.directories.parts(block, lambda: case.is_over)
        if lane is not None:
            own.marker, own.spare = lane.slot.marker, (lane.slot.pid,)
        saving = f"asked at {utc(now_us)} ({case.why or 'stop'}), has until {utc(asked.deadline_us)}"
        self._node.notes.tell(block, "", stopping=(case.why or "stop") if case.is_stop else None, saving=saving)
        if case.is_stop:
            self._node.jobs.let_go(block, case.grace_us + KILL_US)
        if case.is_stop and lane is not None:  # a stopped job could not answer
            lane.suspend(resume=True)
        self._node.jobs.stories.begin(self._remind(case, parts, asked))
        while True:
            yield Pause(_LOOK_S)
            if not case.is_asked:
                return
            if not case.answered and answered(own.directory, block.info.account) >= case.number:
                case.answered = True
                self.happened(case, CheckpointEvent.ANSWERED)
            if machine.monotonic() >= case.end_s:
                self.happened(case, CheckpointEvent.LATE if case.answered else CheckpointEvent.SILENT)
                return

    def _remind(self, case: OpenCheckpoint, parts: list[JobDirectory], asked: SaveRequest) -> Story[None]:
        """Repeats the request until the program answers: it may begin to listen only now."""
        while case.is_asked:  # later its slot may belong to another job
            case.is_telling = True
            try:
                yield self.directories.background(lambda: each(parts, lambda part: part.ask(asked)))
            except Exception as error:  # noqa: BLE001 - whatever it is, it is tried again
                if not case.is_over:
                    self._node.log.warning("checkpoint_not_asked", block=paths.block_name(case.block.key), error=sentence(error))
            case.is_telling = False
            if case.phase is CheckpointPhase.WITHDRAWING:
                yield from self._tell_withdrawn(case)
                return
            yield Pause(_AGAIN_S)

    def _withdraw(self, case: OpenCheckpoint, _detail: str | Exception) -> Story[None] | None:
        """Tells the program that it need not stop any more, after any request that is still being sent."""
        self._node.log.warning("checkpoint_withdrawn", block=paths.block_name(case.block.key), seconds=case.grace_us / 1e6)
        return None if case.is_telling else self._tell_withdrawn(case)

    def _tell_withdrawn(self, case: OpenCheckpoint) -> Story[None]:
        """Sends a last request that does not ask for a stop: a program that saves its state only now goes on after that."""
        case.number = self.next_number(case.block)
        parts = self.directories.parts(case.block, lambda: case.is_over)
        asked = SaveRequest(number=case.number, stop=False, deadline_us=machine.wall_us())
        try:
            yield self.directories.background(lambda: each(parts, lambda part: part.ask(asked)))
        except Exception as error:  # noqa: BLE001 - whatever it is, the job goes on
            if case.phase is CheckpointPhase.WITHDRAWING:
                self._node.log.warning("checkpoint_not_withdrawn", block=paths.block_name(case.block.key), error=sentence(error))
        why = f"it has not saved its state within {format_duration(case.grace_us / 1e6)}"
        self.happened(case, CheckpointEvent.WITHDRAWN, why)

    def _preempt(self, case: OpenCheckpoint, _detail: str | Exception) -> None:
        self._node.notes.tell(case.block, "", stopping=case.why or "preempted")
        self._end(case, case.grace_us)

    def _end_silent(self, case: OpenCheckpoint, _detail: str | Exception) -> None:
        self._node.log.warning("checkpoint_ignored", block=paths.block_name(case.block.key), seconds=case.grace_us / 1e6)
        self._end(case, KILL_US)

    def _end(self, case: OpenCheckpoint, grace_us: int) -> None:
        """Ends the attempt now."""
        self._node.stop_tasks(case.block, None, case.reason, grace_us)

    # -- the end of the attempt --------------------------------------------------------------------------------------------------

    def is_awaited(self, block: ClaimedBlock, ending: Ending, tell: Callable[[], None]) -> bool:
        """Takes the end of an attempt that has failed. True: its job goes back to its queue; `tell` is called if it cannot.

        Either it was stopped, or it ended with code 85 after any request: programs need not know whether they may go on.
        """
        case, again = self.open.get(block), block in self._asked and says_saved(ending)
        if block.cancel_words(block.key.first) is not None:
            return False
        if case is None or not case.is_stop:
            if not again or not block.data.resubmit:
                return False
            case = self._ended_as_stop(block, case)
        elif not again and not was_stopped(case, ending):
            return False
        case.ending, case.tell = ending, tell
        case.answered = case.answered or (again and not case.kills)
        ending.account, ending.log_rows = block.info.account, True
        self.happened(case, CheckpointEvent.ENDED)
        return True

    def _ended_as_stop(self, block: ClaimedBlock, case: OpenCheckpoint | None) -> OpenCheckpoint:
        """Opens a STOP for a job that was only asked to save its state, but has ended and wants to run again."""
        if case is not None:
            self.happened(case, CheckpointEvent.REPLACED)
        why = f"it ended with {SAVED_EXIT_CODE} after it was asked to save its state"
        return self.case(block, why, 0, kind=CheckpointKind.STOP, answered=True, orders=case.orders if case is not None else [])

    def _copy(self, case: OpenCheckpoint, _detail: str | Exception = "") -> Story[None]:
        """Stores the content of its directories, and the output of an attempt that has ended."""
        block, ending, key = case.block, case.ending, case.block.key
        keeps = not case.kills and rigid_of(block).restart != FROM_START
        parts = self.directories.parts(block, lambda: case.is_over)
        store, limit = self._shared.io.store, self._shared.config.checkpoint_max_bytes
        base, one_at_a_time = self.restores.base(block), self.directories.own_part(block).copying
        saved = Checkpoint(sub=key.submission, index=key.first, attempt=key.attempt, n=case.number)
        log_ttl_s, seals = self._shared.settings.log_ttl_s, self._seals

        def job() -> str:
            if ending is not None:
                put_away(store, saved, ending, log_ttl_s=log_ttl_s)
            if not keeps:
                return ""
            with one_at_a_time:  # an obsolete copy must not remove pieces of this one
                stop, made_us = case.is_stop, case.made_us
                return take(parts, store, saved, base, stop=stop, limit=limit, made_us=made_us, is_over=lambda: case.is_over, seals=seals)

        self._learn(case)
        self._shared.after(_LONG_COPY_S, lambda: self._tell_copy(case))
        try:
            result: str | Exception = yield self.directories.background(job, copies=True)
        except Exception as error:  # noqa: BLE001 - whatever it is, the table says what follows
            result = error
        self._on_copied(case, result)

    def _tell_copy(self, case: OpenCheckpoint) -> None:
        if case.phase is CheckpointPhase.COPYING and not case.is_waiting:
            how = "it has answered" if case.answered else "without an answer"
            self._node.notes.tell(case.block, "", saving=f"{how}: its files are being stored")

    def _learn(self, case: OpenCheckpoint) -> None:
        """Notes in the block that its program answers; the next commit carries it."""
        if case.answered and not case.block.data.answered:
            case.block.data = msgspec.structs.replace(case.block.data, answered=True)

    def _on_copied(self, case: OpenCheckpoint, result: str | Exception) -> None:
        if case.is_over:
            return
        block = case.block
        if isinstance(result, str) and result and not result.startswith(NOTHING):
            self._node.log.info("checkpoint_stored", block=paths.block_name(block.key), detail=result)
            self._shared.metrics.checkpoints.labels("stored").inc()
        if case.is_stop and block.cancel_words(block.key.first) is not None:  # cancelled meanwhile
            self.happened(case, CheckpointEvent.CANCELLED)
        elif isinstance(result, StoreUnavailable):
            self.happened(case, CheckpointEvent.STORE_AWAY, result)
        elif isinstance(result, StateConflict) and case.copies < _COPIES:
            case.copies += 1
            self.happened(case, CheckpointEvent.CHANGED, result)
        else:
            self.happened(case, CheckpointEvent.NOT_STORED if isinstance(result, Exception) else CheckpointEvent.COPIED, result)

    def _copy_soon(self, case: OpenCheckpoint, why: str | Exception) -> Story[None]:
        pause_s = _COPY_PAUSE_S
        if isinstance(why, StoreUnavailable):
            pause_s = _STORE_PAUSE_S
            if not case.is_waiting:
                case.is_waiting = True
                self._node.log.warning("checkpoint_waits_for_the_store", block=paths.block_name(case.block.key), error=why.message)
                self._node.notes.tell(case.block, "", saving=story_line(f"its files wait for the data store: {why.message}"))
        yield Pause(pause_s)
        if not case.is_over:
            yield from self._copy(case)

    def _leave_unstored(self, case: OpenCheckpoint, error: str | Exception) -> None:
        why = sentence(error) if isinstance(error, Exception) else error
        words = f"checkpoint {case.block.key.attempt}.{case.number} was not stored: {why}"
        self._node.log.error("checkpoint_not_stored", block=paths.block_name(case.block.key), error=words)
        self._shared.metrics.checkpoints.labels("too_large" if isinstance(error, ValueTooLarge) else "not_stored").inc()
        self._leave(case, words)

    def _end_as(self, case: OpenCheckpoint, why: str | Exception, *, reason: Reason) -> None:
        """Ends the attempt, which has ended, with this reason."""
        assert case.ending is not None
        assert case.tell is not None
        case.ending.reason, case.ending.error = reason, str(why) or case.ending.error
        case.tell()

    def _leave(self, case: OpenCheckpoint, words: str | Exception) -> None:
        """Gives the attempt up with a STOP."""
        block, ending = case.block, case.ending
        assert ending is not None
        error = "; ".join(filter(None, (case.why, str(words))))
        self._node.log.info("job_given_up", block=paths.block_name(block.key), reason=case.reason.value, why=case.why, detail=str(words))
        past = PastAttempt(
            attempt=block.key.attempt,
            node=self._node.name,
            reason=case.reason,
            exit_code=ending.exit_code,
            started_us=ending.started_us,
            ended_us=ending.started_us + ending.elapsed_us,
            error=error[:_LONGEST_WHY],
            cpu_us=ending.cpu_us,
            max_rss_kib=ending.max_rss_kib,
        )
        self._node.notes.give_up(block, past, str(words), case.orders, moved=case.by_policy)

    def lose(self, block: ClaimedBlock, node: str) -> bool:
        """Handles the loss of a node. True: the attempt had been stopped, and ends as a loss, since its files there are gone."""
        case = self.open.get(block)
        why = f"node {node} was lost while the job was being stopped"
        return case is not None and self.happened(case, CheckpointEvent.NODE_LOST, why)

    def _refuse(self, case: OpenCheckpoint, why: str | Exception, *, outcome: str = "refused") -> None:
        """Refuses the checkpoint; the job goes on."""
        large, why = isinstance(why, ValueTooLarge), sentence(why) if isinstance(why, Exception) else why
        what = "stop" if case.is_stop else "checkpoint"
        words = f"{what}{f' ({case.why})' if case.why else ''} refused: {why}"
        self._node.log.warning("checkpoint_refused", block=paths.block_name(case.block.key), kind=what, why=why)
        self._shared.metrics.checkpoints.labels("too_large" if large else outcome).inc()
        self._node.notes.tell(case.block, words, orders=case.orders, stopping="", saving="")

    # -- the end of the block ----------------------------------------------------------------------------------------------------

    def given_up(self, block: ClaimedBlock) -> None:
        """Notes that the STOP is committed."""
        case = self.open.get(block)
        if case is not None and case.ending is not None:
            self._shared.metrics.ended(None, 1, case.ending.elapsed_us / 1e6)
        self._node.over(block)

    def forget(self, block: ClaimedBlock) -> None:
        """Forgets a block that is over, or no longer the node's own."""
        case = self.open.get(block)
        if case is not None:
            self.happened(case, CheckpointEvent.FORGOTTEN)
        self._timed.discard(block)
        self._asked.discard(block)
        self._numbers.pop(block, None)
        self.directories.forget(block)
        self._node.notes.forget(block)
        self.restores.forget(block)


# -- taking a checkpoint ---------------------------------------------------------------------------------------------------
# Takes a checkpoint: from the directories of a job to its rows in the store. Called on a thread that may wait.


def check(parts: Sequence[JobDirectory], store: Store, limit: int) -> None:
    """Raises: ValueTooLarge naming both sizes, StoreUnavailable if nothing could be stored now."""
    wrong = store.health()
    if wrong is not None:
        raise StoreUnavailable(f"the data store is not there: {wrong}")
    check_size(sum(each(parts, lambda part: part.measure())), limit)


def take(
    parts: Sequence[JobDirectory],
    store: Store,
    saved: Checkpoint,
    base: Sequence[FileEntry],
    *,
    stop: bool,
    limit: int,
    made_us: int,
    is_over: Callable[[], bool],
    seals: Seals = OPEN,
) -> str:
    """Makes one checkpoint and describes it. Raises: ValueTooLarge, StateConflict, StoreUnavailable, OSError, RmgrError."""
    files = united(each(parts, lambda part: part.collect(stop=stop, max_bytes=limit)), base)
    size = sum(entry.size for entry in files)
    check_size(size, limit)
    count = sum(not entry.is_dir for entry in files)
    lacks = "".join(f"; {part.lacks}" for part in parts if part.lacks)
    if not count:
        return NOTHING + lacks
    if is_over():
        raise StateConflict("the job has ended meanwhile")
    write_checkpoint(
        store,
        seals.seal(
            Manifest(
                sub=saved.sub,
                index=saved.index,
                attempt=saved.attempt,
                n=saved.n,
                made_us=made_us,
                nodes=tuple(part.node for part in parts),
                size_bytes=size,
                files=files,
            )
        ),
    )
    with contextlib.suppress(RmgrError):  # else the next checkpoint, or the submission's end, removes them
        prune_checkpoints(store, saved.sub, saved.index, saved.attempt, seals)
    return f"checkpoint {saved} stored: {count} file{'s' if count > 1 else ''}, {size_text(size)}{lacks}"


def put_away(store: Store, saved: Checkpoint, ending: Ending, *, log_ttl_s: float | None) -> None:
    """Stores the output of an ended attempt and removes its files. May be repeated.

    log_ttl_s: how long the rows of its output are kept, None = for ever.
    """
    written = write(store, saved.sub, saved.index, saved.attempt, ending, log_ttl_s=log_ttl_s)
    discard(ending)
    ending.out = ending.err = NO_OUTPUT
    ending.flushed = Flushed(streams=(StoredStream(parts=written.log_parts[0]), StoredStream(parts=written.log_parts[1])))
    if ending.directory:
        remove_directory(ending)


# -- beginning with a checkpoint -------------------------------------------------------------------------------------------
# Puts a job's newest readable checkpoint into its directory on every node before it starts. The head chooses one by restoring it (every
# byte is compared with its hash), then has its helpers restore the same. An unreadable checkpoint is noted in the job's story (DATA_LOST,
# or UNTRUSTED if no Starter has sealed it), and the one before it is taken; without any, the job begins from the start.


@dataclass(slots=True, kw_only=True)
class RestoredCheckpoint:
    """Result of a restore here. manifest: None if the job begins from the start. lost: sentences about unreadable checkpoints."""

    manifest: Manifest | None = None
    key: str = ""
    lost: list[str] = field(default_factory=list)
    bad: set[str] = field(default_factory=set)


class _Stage(StrEnum):
    """Where a job's initial files are. COMING -> HERE -> EVERYWHERE; HERE -> COMING if another node cannot read them; all -> OVER."""

    COMING = "coming"
    HERE = "here"  #: in this node's directory
    EVERYWHERE = "everywhere"
    OVER = "over"  #: no longer needed


@dataclass(slots=True, kw_only=True, eq=False)
class _Case:
    block: ClaimedBlock
    found: RestoredCheckpoint = field(default_factory=RestoredCheckpoint)
    stage: _Stage = _Stage.COMING
    is_waiting: bool = False  #: for the store, and that is in the log

    @property
    def is_over(self) -> bool:
        return self.stage is _Stage.OVER


class Restores:
    """Restores jobs of one node."""

    def __init__(self, node: NodeAgent, parts: JobDirectories) -> None:
        self._node = node
        self._shared = node.shared
        self._parts = parts
        self._cases: dict[ClaimedBlock, _Case] = {}

    def base(self, block: ClaimedBlock) -> Sequence[FileEntry]:
        """Returns the files with which its nodes began."""
        case = self._cases.get(block)
        return case.found.manifest.files if case is not None and case.found.manifest is not None else ()

    def is_here(self, block: ClaimedBlock) -> bool:
        """Returns whether its initial files are in this node's directory; restores them. Raises: OSError."""
        if block.key.attempt == 1 or rigid_of(block).restart == FROM_START:
            return True
        case = self._cases.get(block)
        if case is None:
            case = self._cases[block] = _Case(block=block)
        if case.stage is _Stage.COMING:
            self._node.jobs.stories.begin(self._restore(case, self._parts.own_part(block)), key=("restore", case))
        return case.stage is not _Stage.COMING

    def is_everywhere(self, block: ClaimedBlock) -> bool:
        """Returns whether they are also on its other nodes, which are ready; restores them there."""
        case = self._cases.get(block)
        if case is None or case.found.manifest is None or case.stage is _Stage.EVERYWHERE:
            return True
        if case.stage is _Stage.HERE:
            self._node.jobs.stories.begin(self._spread(case, case.found.manifest, case.found.key), key=("restore", case))
        return False

    def forget(self, block: ClaimedBlock) -> None:
        """Forgets a block that is over."""
        case = self._cases.pop(block, None)
        if case is not None:
            case.stage = _Stage.OVER

    # -- on this node ------------------------------------------------------------------------------------------------------------

    def _restore(self, case: _Case, part: LocalPart) -> Story[None]:
        block, found = case.block, case.found
        store, key = self._shared.io.store, block.key
        while True:
            try:
                result: RestoredCheckpoint = yield self._parts.background(
                    lambda: newest(store, part, key.submission, key.first, found), copies=True
                )
                break
            except (StoreUnavailable, CoordinationUnavailable) as error:
                if case.is_over:
                    return
                if not case.is_waiting:
                    case.is_waiting = True
                    self._node.log.warning("checkpoint_waits_for_the_store", block=paths.block_name(key), error=error.message)
                yield Pause(_STORE_PAUSE_S)
                if case.is_over:
                    return
            except Exception as error:  # noqa: BLE001 - whatever it is, it is this node's trouble
                if not case.is_over:
                    words = f"its checkpoint cannot be restored on {self._node.name}: {sentence(error)}"
                    self._node.unstartable(block, block.take_ready(), FetchFailure(Reason.NODE_LOST, words))
                return
        if case.is_over:
            return
        case.stage = _Stage.HERE
        for words in result.lost:
            reason = Reason.UNTRUSTED if "(UNTRUSTED)" in words else Reason.DATA_LOST
            self._node.log.error("checkpoint_lost", block=paths.block_name(block.key), reason=reason.value, detail=words)
            if reason is Reason.UNTRUSTED:
                what = f"checkpoint of {block.key.submission}_{block.key.first}"
                audit(self._node.log, who="the data store", role="", what="restore", target=what, allowed=False, why=words)
            self._shared.metrics.checkpoints.labels("lost").inc()
            self._node.notes.tell(block, words)
        result.lost.clear()
        if result.manifest is not None:
            words = f"attempt {block.key.attempt} begins with checkpoint {result.manifest.attempt}.{result.manifest.n}"
            self._node.log.info("checkpoint_restored", block=paths.block_name(block.key), detail=words)
            self._shared.metrics.checkpoints.labels("restored").inc()
            self._node.notes.tell(block, words)

    # -- on the other nodes --------------------------------------------------------------------------------------------------------

    def _spread(self, case: _Case, manifest: Manifest, key: str) -> Story[None]:
        block = case.block
        others: list[JobDirectory] = self._parts.parts(block, lambda: case.is_over or block.goes_back)[1:]
        try:
            yield self._parts.background(lambda: each(others, lambda part: part.restore(manifest, key)))
        except DataLost as error:  # readable here but not there: take the one before it
            if case.is_over:
                return
            case.found.bad.add(key)
            case.found.lost.append(f"checkpoint {key.rpartition('/')[2]} cannot be read (DATA_LOST): {error.message}")
            case.found.manifest, case.stage = None, _Stage.COMING
            yield from self._restore(case, self._parts.own_part(block))
        except Exception as error:  # noqa: BLE001 - whatever it is, the job begins elsewhere
            if case.is_over:
                return
            self._node.log.error("checkpoint_not_restored", block=paths.block_name(block.key), error=sentence(error))
            self._node.giving.revoke(block)
        else:
            if not case.is_over:
                case.stage = _Stage.EVERYWHERE


def newest(store: Store, part: LocalPart, sub: int, index: int, found: RestoredCheckpoint) -> RestoredCheckpoint:
    """Restores the newest checkpoint of a task that can be read, was sealed and is not in `found.bad`.

    Raises: StoreUnavailable, CoordinationUnavailable, OSError.
    """
    for checkpoint in checkpoints_of(store, sub, index):
        if checkpoint.key in found.bad:
            continue
        try:
            manifest = read_checkpoint(store, checkpoint, part.seals)
            part.restore(manifest, checkpoint.key)
        except PermissionDenied as error:
            found.bad.add(checkpoint.key)
            found.lost.append(f"checkpoint {checkpoint} is refused (UNTRUSTED): {error.message}")
            continue
        except DataLost as error:
            found.bad.add(checkpoint.key)
            found.lost.append(f"checkpoint {checkpoint} cannot be read (DATA_LOST): {error.message}")
            continue
        found.manifest, found.key = manifest, checkpoint.key
        return found
    clear(part.directory, part.account)
    found.manifest, found.key = None, ""
    return found
