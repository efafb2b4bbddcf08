"""Checkpoints of the jobs whose script one node runs: requests, their results, how an attempt is given up, and how a job begins with one.

A checkpoint is one story, `_run`, up to its answer or its refusal; `_store` follows: at once for a job that goes on, at the end of the
attempt for one that stops.

    go-on      MEASURING -> ASKED -> COPYING -> OVER        it is copied when it has answered, else at the end of its grace
    stop       MEASURING -> ASKED -> ENDING -> COPYING -> LEAVING       it ends (85), or is ended after its grace; STOP: the job waits again
    policy     MEASURING -> ASKED -> WITHDRAWING -> OVER    the same, but a job that does not answer in its grace goes on
    preempt    ENDING -> COPYING -> LEAVING                 nothing is asked or stored

A stop of a job with restart = start begins with ASKED: it is asked, so that it can end in order, but nothing is measured or stored. What
happens meanwhile ends the story at its wait: the end of the attempt, an order that kills, a stop instead of a checkpoint, a lost node.

All waiting (for files, the store, other nodes) is done on separate threads, whose results come as messages. A checkpoint that is refused,
too large or not stored is noted in the job's story (NOTE), in the log and in a metric. The job goes on, unless it has ended. A later
attempt begins with the newest readable checkpoint (`Restores`).
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from rmgr.checkpoint import SAVED_EXIT_CODE
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.keys import Checkpoint
from rmgr.coord.protocol.ports import Store
from rmgr.daemons.starter.checkpoint import directories
from rmgr.daemons.starter.checkpoint.files import FileEntry, Manifest
from rmgr.daemons.starter.core.blocks import ClaimedBlock
from rmgr.daemons.starter.core.fetch import FetchFailure
from rmgr.daemons.starter.execution.lanes import WorkerLane
from rmgr.daemons.starter.staging.logs import Flushed, StoredStream
from rmgr.daemons.starter.staging.outputs import Ending, discard, remove_directory, write
from rmgr.errors import CoordinationUnavailable, DataLost, StateConflict, StoreUnavailable, ValueTooLarge
from rmgr.log import audit
from rmgr.model.block import PastAttempt, story_line
from rmgr.model.frames import NO_OUTPUT
from rmgr.model.node import InboxOrder
from rmgr.model.states import Reason
from rmgr.model.submission import FROM_START, Rigid
from rmgr.model.units import format_duration, utc
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


class CheckpointPhase(StrEnum):
    """Phase of a checkpoint."""

    BEGUN = "begun"
    MEASURING = "measuring"
    ASKED = "asked"
    WITHDRAWING = "withdrawing"  #: its grace is over and the job goes on: the program is being told
    ENDING = "ending"
    COPYING = "copying"
    LEAVING = "leaving"  #: its STOP is being committed
    OVER = "over"


class CheckpointKind(StrEnum):
    """What becomes of the job."""

    GO_ON = "go-on"
    STOP = "stop"
    POLICY = "policy"  #: it stops if it saves its state within its grace, else it goes on
    PREEMPT = "preempt"  #: it ends at once


@dataclass(slots=True, kw_only=True, eq=False)
class OpenCheckpoint:
    """A checkpoint under way. ending: of the attempt, once it has ended; tell: reports that end.

    by_policy: a policy moves the job. is_telling: its processes are being told. answered: the program has reported that it saved.
    is_waiting: its files wait for the data store, and people were told.
    """

    block: ClaimedBlock
    number: int
    kind: CheckpointKind = CheckpointKind.GO_ON
    why: str
    grace_us: int
    by_policy: bool = False
    is_telling: bool = False
    answered: bool = False
    is_waiting: bool = False
    made_us: int  #: always the same, since a stored row never changes
    orders: list[str] = field(default_factory=list)
    phase: CheckpointPhase = CheckpointPhase.BEGUN
    ending: Ending | None = None
    tell: Callable[[], None] | None = None

    @property
    def is_over(self) -> bool:
        """Whether it is over."""
        return self.phase is CheckpointPhase.OVER

    @property
    def is_stop(self) -> bool:
        """Whether the job is to stop, if it can."""
        return self.kind is not CheckpointKind.GO_ON

    @property
    def kills(self) -> bool:
        """Whether the attempt ends now, without anything being stored."""
        return self.kind is CheckpointKind.PREEMPT

    @property
    def reason(self) -> Reason:
        """Reason of the attempt's end."""
        return Reason.PREEMPTED if self.kills else Reason.MIGRATED


class Checkpoints:
    """Checkpoints of one node. directory: contains a directory for each job."""

    def __init__(self, node: NodeAgent, directory: Path) -> None:
        self._node = node
        self._shared = node.shared
        self._seals = node.shared.seals
        self.directories = directories.JobDirectories(node, directory)
        self.open: dict[ClaimedBlock, OpenCheckpoint] = {}
        self._numbers: dict[ClaimedBlock, int] = {}
        self._timed: set[ClaimedBlock] = set()
        self._asked: set[ClaimedBlock] = set()  #: blocks whose program has been asked
        self.restores = Restores(node, self.directories)

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
            if kills and not case.kills and case.ending is None:  # an attempt that has ended leaves as planned
                case.kind, case.grace_us = CheckpointKind.PREEMPT, grace_us
                self._node.jobs.stories.end(case)
                self._end(case, grace_us)
            return
        orders = [guid]
        if case is not None:  # a stop does not wait for a checkpoint of a job that goes on
            orders += case.orders
            self._over(case)
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
        found = self.open[block] = OpenCheckpoint(block=block, number=number, why=why, grace_us=grace_us, made_us=machine.wall_us(), **more)
        return found

    def begin(self, case: OpenCheckpoint) -> None:
        block, kind = paths.block_name(case.block.key), "stop" if case.is_stop else "go-on"
        self._node.log.info("checkpoint_begun", block=block, kind=kind, why=case.why)
        self._node.jobs.stories.begin(self._run(case), key=case)

    def _over(self, case: OpenCheckpoint) -> None:
        """Ends a checkpoint: what still comes of it is ignored."""
        case.phase = CheckpointPhase.OVER
        if self.open.get(case.block) is case:
            del self.open[case.block]
        self._node.jobs.stories.end(case)

    def _run(self, case: OpenCheckpoint) -> Story[None]:
        """Measures, asks the program to save its state, and waits for its answer within its grace.

        asked -> answered                         it has saved its state, which is stored (if the job is to stop: once it has ended)
        asked -> silent -> what lies there        of a job that goes on: its files are stored as they are
        asked -> silent -> ended                  of a job that is to stop on a person's order
        asked -> silent -> withdrawn -> goes on   of a job that a policy would move: it loses nothing, and learns that it need not stop

        Each step is noted in the block (`saving`, `stopping`, `story`), for people and for any leader.
        """
        block, from_start = case.block, rigid_of(case.block).restart == FROM_START
        if case.is_stop and not block.data.resubmit:  # it cannot go back to its queue; it can save its state and go on
            self._refuse(case, "its job may run only once (--no-requeue)")
            return
        if case.kills:  # a preemption does not wait for an answer
            self._node.notes.tell(block, "", stopping=case.why or "preempted")
            self._end(case, case.grace_us)
            return
        if from_start and case.kind is not CheckpointKind.STOP:  # useless, and a policy would move it at the price of all its work
            self._refuse(case, "its job always begins from the start (--restart-from start)")
            return
        parts = self.directories.parts(block, lambda: case.is_over)
        if not from_start:  # it is better known before the program is disturbed that its files cannot be stored
            case.phase = CheckpointPhase.MEASURING
            store, limit = self._shared.io.store, self._shared.config.checkpoint_max_bytes
            try:
                yield self.directories.background(lambda: directories.check(parts, store, limit))
            except Exception as error:  # noqa: BLE001 - whatever it is, the job is told
                self._refuse(case, error)
                return
        case.phase, own = CheckpointPhase.ASKED, self.directories.own_part(block)
        end_s = machine.monotonic() + case.grace_us / 1e6
        self._ask(case, own, parts)
        while True:
            yield Pause(_LOOK_S)
            case.answered = case.answered or directories.answered(own.directory, block.info.account) >= case.number
            if (case.answered and not case.is_stop) or machine.monotonic() >= end_s:
                break
        if not case.is_stop:  # without an answer it may have saved its state earlier; the copy notices if files change meanwhile
            yield from self._store(case)
        elif case.answered or case.kind is CheckpointKind.STOP:  # it should have ended by itself
            self._node.log.warning("checkpoint_ignored", block=paths.block_name(block.key), seconds=case.grace_us / 1e6)
            self._end(case, KILL_US)
        else:
            yield from self._withdraw(case, parts)

    def _ask(self, case: OpenCheckpoint, own: directories.LocalPart, parts: list[directories.JobDirectory]) -> None:
        block, now_us = case.block, machine.wall_us()
        self._asked.add(block)
        asked = directories.SaveRequest(number=case.number, stop=case.is_stop, end_s=machine.monotonic() + case.grace_us / 1e6)
        lane = self.lane_of(block)
        if lane is not None:
            own.marker, own.spare = lane.slot.marker, (lane.slot.pid,)
        saving = f"asked at {utc(now_us)} ({case.why or 'stop'}), has until {utc(now_us + case.grace_us)}"
        self._node.notes.tell(block, "", stopping=(case.why or "stop") if case.is_stop else None, saving=saving)
        if case.is_stop:
            self._node.jobs.let_go(block, case.grace_us + KILL_US)
        if case.is_stop and lane is not None:  # a stopped job could not answer
            lane.suspend(resume=True)
        self._node.jobs.stories.begin(self._remind(case, parts, asked))

    def _remind(self, case: OpenCheckpoint, parts: list[directories.JobDirectory], asked: directories.SaveRequest) -> Story[None]:
        """Repeats the request until the program answers: it may begin to listen only now."""
        while case.phase is CheckpointPhase.ASKED:  # later its slot may belong to another job
            case.is_telling = True
            try:
                yield self.directories.background(lambda: directories.each(parts, lambda part: part.ask(asked)))
            except Exception as error:  # noqa: BLE001 - whatever it is, it is tried again
                if not case.is_over:
                    name = paths.block_name(case.block.key)
                    self._node.log.warning("checkpoint_not_asked", block=name, error=directories.sentence(error))
            case.is_telling = False
            yield Pause(_AGAIN_S)

    def _withdraw(self, case: OpenCheckpoint, parts: list[directories.JobDirectory]) -> Story[None]:
        """Tells a program that did not answer that it need not stop any more: a policy must not cost work.

        The last request does not ask for a stop: a program that saves its state only now goes on after that.
        """
        case.phase = CheckpointPhase.WITHDRAWING
        self._node.log.warning("checkpoint_withdrawn", block=paths.block_name(case.block.key), seconds=case.grace_us / 1e6)
        while case.is_telling:  # a request is still being sent
            yield Pause(_LOOK_S)
        case.number = self.next_number(case.block)
        asked = directories.SaveRequest(number=case.number, stop=False, end_s=machine.monotonic())
        try:
            yield self.directories.background(lambda: directories.each(parts, lambda part: part.ask(asked)))
        except Exception as error:  # noqa: BLE001 - whatever it is, the job goes on
            self._node.log.warning("checkpoint_not_withdrawn", block=paths.block_name(case.block.key), error=directories.sentence(error))
        self._refuse(case, f"it has not saved its state within {format_duration(case.grace_us / 1e6)}", outcome="ignored")

    def _end(self, case: OpenCheckpoint, grace_us: int) -> None:
        """Ends the attempt now; `is_awaited` goes on."""
        case.phase = CheckpointPhase.ENDING
        self._node.stop_tasks(case.block, None, case.reason, grace_us)

    # -- the end of the attempt --------------------------------------------------------------------------------------------------

    def is_awaited(self, block: ClaimedBlock, ending: Ending, tell: Callable[[], None]) -> bool:
        """Takes the end of an attempt that has failed. True: its job goes back to its queue; `tell` is called if it cannot.

        Either it was stopped, or it ended with code 85 after any request: programs need not know whether they may go on. One that dies of
        the signal of a request that did not ask for a stop has been lost: rmgr has sent that signal.
        """
        case, again = self.open.get(block), block in self._asked and says_saved(ending)
        if block.cancel_words(block.key.first) is not None:
            return False
        if case is None or not case.is_stop:
            if case is not None and died_of_it(case, ending):
                ending.reason, ending.error = Reason.WORKER_LOST, f"it died of SIGUSR1, which asked it to save its state ({ending.error})"
            if not again or not block.data.resubmit:
                return False
            case = self._ended_as_stop(block, case)
        elif not again and not was_stopped(case, ending):
            return False
        case.ending, case.tell = ending, tell
        case.answered = case.answered or (again and not case.kills)
        ending.account, ending.log_rows = block.info.account, True
        self._node.jobs.stories.end(case)
        self._node.jobs.stories.begin(self._store(case), key=case)
        return True

    def _ended_as_stop(self, block: ClaimedBlock, case: OpenCheckpoint | None) -> OpenCheckpoint:
        """Opens a STOP for a job that was only asked to save its state, but has ended and wants to run again."""
        if case is not None:
            self._over(case)
        why = f"it ended with {SAVED_EXIT_CODE} after it was asked to save its state"
        return self.case(block, why, 0, kind=CheckpointKind.STOP, answered=True, orders=case.orders if case is not None else [])

    def _store(self, case: OpenCheckpoint) -> Story[None]:
        """Stores the content of its directories, and the output of an attempt that has ended, which then leaves."""
        block, name, copies = case.block, paths.block_name(case.block.key), 0
        case.phase = CheckpointPhase.COPYING
        if case.answered and not block.data.answered:  # the next commit carries it
            block.data = msgspec.structs.replace(block.data, answered=True)
        while True:
            self._shared.after(_LONG_COPY_S, lambda: self._tell_copy(case))
            result, error = "", None
            try:
                result = yield self._copied(case)
            except Exception as caught:  # noqa: BLE001 - whatever it is, what follows is below
                error = caught
            if result and not result.startswith(directories.NOTHING):
                self._node.log.info("checkpoint_stored", block=name, detail=result)
                self._shared.metrics.checkpoints.labels("stored").inc()
            if case.is_stop and block.cancel_words(block.key.first) is not None:  # cancelled meanwhile, and that wins
                self._end_as(case, "", Reason.USER_CANCEL)
            elif isinstance(error, StoreUnavailable) and case.is_stop:  # the work is saved here, and waits for the store
                if not case.is_waiting:
                    case.is_waiting = True
                    self._node.log.warning("checkpoint_waits_for_the_store", block=name, error=error.message)
                    self._node.notes.tell(block, "", saving=story_line(f"its files wait for the data store: {error.message}"))
                yield Pause(_STORE_PAUSE_S)
                continue
            elif isinstance(error, StateConflict) and not case.is_stop and copies < _COPIES:  # the files of an ended job do not change
                copies += 1
                yield Pause(_COPY_PAUSE_S)
                continue
            elif error is not None and not case.is_stop:  # it will be asked another time
                self._refuse(case, error)
            elif error is not None:  # it has ended: it waits again, with its previous checkpoint
                words = f"checkpoint {block.key.attempt}.{case.number} was not stored: {directories.sentence(error)}"
                self._node.log.error("checkpoint_not_stored", block=name, error=words)
                self._shared.metrics.checkpoints.labels("too_large" if isinstance(error, ValueTooLarge) else "not_stored").inc()
                self._leave(case, words)
            elif case.is_stop:
                self._leave(case, result)
            else:
                self._over(case)
                self._node.notes.tell(block, result, orders=case.orders, saving="")
            return

    def _copied(self, case: OpenCheckpoint) -> Future[str]:
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
                stop, made_us, is_over = case.is_stop, case.made_us, lambda: case.is_over
                return directories.take(parts, store, saved, base, stop=stop, limit=limit, made_us=made_us, is_over=is_over, seals=seals)

        return self.directories.background(job, copies=True)

    def _tell_copy(self, case: OpenCheckpoint) -> None:
        if case.phase is CheckpointPhase.COPYING and not case.is_waiting:
            how = "it has answered" if case.answered else "without an answer"
            self._node.notes.tell(case.block, "", saving=f"{how}: its files are being stored")

    def _end_as(self, case: OpenCheckpoint, why: str, reason: Reason) -> None:
        """Ends the attempt, which has ended, with this reason."""
        self._over(case)
        assert case.ending is not None
        assert case.tell is not None
        case.ending.reason, case.ending.error = reason, why or case.ending.error
        case.tell()

    def _leave(self, case: OpenCheckpoint, words: str) -> None:
        """Gives the attempt up with a STOP."""
        case.phase = CheckpointPhase.LEAVING
        block, ending = case.block, case.ending
        assert ending is not None
        error = "; ".join(filter(None, (case.why, words)))
        self._node.log.info("job_given_up", block=paths.block_name(block.key), reason=case.reason.value, why=case.why, detail=words)
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
        self._node.notes.give_up(block, past, words, case.orders, moved=case.by_policy)

    def lose(self, block: ClaimedBlock, node: str) -> bool:
        """Handles the loss of a node. True: the attempt had been stopped, and ends as a loss, since its files there are gone."""
        case = self.open.get(block)
        if case is None or case.ending is None or case.phase is not CheckpointPhase.COPYING:
            return False
        self._end_as(case, f"node {node} was lost while the job was being stopped", Reason.NODE_LOST)
        return True

    def _refuse(self, case: OpenCheckpoint, why: str | Exception, *, outcome: str = "refused") -> None:
        """Refuses the checkpoint; the job goes on."""
        self._over(case)
        large, why = isinstance(why, ValueTooLarge), directories.sentence(why) if isinstance(why, Exception) else why
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
            self._over(case)
        self._timed.discard(block)
        self._asked.discard(block)
        self._numbers.pop(block, None)
        self.directories.forget(block)
        self._node.notes.forget(block)
        self.restores.forget(block)


def kind_of(order: Mapping[str, str]) -> CheckpointKind:
    """Returns the kind that an order asks for in its `extra`."""
    if order.get("then") != "stop":
        return CheckpointKind.GO_ON
    if order.get("kill") == "1":
        return CheckpointKind.PREEMPT
    return CheckpointKind.POLICY if order.get("unsaved") == "go-on" else CheckpointKind.STOP


def rigid_of(block: ClaimedBlock) -> Rigid:
    """Returns its job's request."""
    found: Rigid | None = block.info.record.rigid
    return found or Rigid()


def was_stopped(case: OpenCheckpoint, ending: Ending) -> bool:
    """Returns whether an attempt ended because it was asked to stop, or was stopped."""
    if ending.reason in {Reason.MIGRATED, Reason.PREEMPTED}:
        return True
    if case.phase not in {CheckpointPhase.ASKED, CheckpointPhase.WITHDRAWING, CheckpointPhase.ENDING}:
        return False
    return says_saved(ending) or died_of_it(case, ending)


def died_of_it(case: OpenCheckpoint, ending: Ending) -> bool:
    """Returns whether the request's own signal has ended the program: it was about to get a handler, or to become another program."""
    was_sent = case.phase not in {CheckpointPhase.BEGUN, CheckpointPhase.MEASURING}
    return was_sent and ending.reason in {Reason.SIGNAL, Reason.EXIT_CODE} and ending.exit_code == 128 + signal.SIGUSR1


def says_saved(ending: Ending) -> bool:
    """Returns whether the program ended with the code for "saved, run me again"."""
    if ending.reason is Reason.EXCEPTION:
        return ending.error.startswith(f"SystemExit: {SAVED_EXIT_CODE}")
    return ending.reason is Reason.EXIT_CODE and ending.exit_code == SAVED_EXIT_CODE


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


class _Stage(StrEnum):
    """Where a job's initial files are. COMING -> HERE -> EVERYWHERE; HERE -> COMING if another node cannot read them; all -> OVER."""

    COMING = "coming"
    HERE = "here"  #: in this node's directory
    EVERYWHERE = "everywhere"
    OVER = "over"  #: no longer needed


@dataclass(slots=True, kw_only=True, eq=False)
class _Case:
    block: ClaimedBlock
    found: directories.RestoredCheckpoint = field(default_factory=directories.RestoredCheckpoint)
    stage: _Stage = _Stage.COMING
    is_waiting: bool = False  #: for the store, and that is in the log


class Restores:
    """Restores jobs of one node."""

    def __init__(self, node: NodeAgent, parts: directories.JobDirectories) -> None:
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
            self._node.jobs.stories.end(("restore", case))

    # -- on this node ------------------------------------------------------------------------------------------------------------

    def _restore(self, case: _Case, part: directories.LocalPart) -> Story[None]:
        block, found = case.block, case.found
        store, key = self._shared.io.store, block.key
        while True:
            try:
                result: directories.RestoredCheckpoint = yield self._parts.background(
                    lambda: directories.newest(store, part, key.submission, key.first, found), copies=True
                )
                break
            except (StoreUnavailable, CoordinationUnavailable) as error:
                if not case.is_waiting:
                    case.is_waiting = True
                    self._node.log.warning("checkpoint_waits_for_the_store", block=paths.block_name(key), error=error.message)
                yield Pause(_STORE_PAUSE_S)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is this node's trouble
                words = f"its checkpoint cannot be restored on {self._node.name}: {directories.sentence(error)}"
                self._node.ends.unstartable(block, block.take_ready(), FetchFailure(Reason.NODE_LOST, words))
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
        others: list[directories.JobDirectory] = self._parts.parts(block, lambda: case.stage is _Stage.OVER or block.goes_back)[1:]
        try:
            yield self._parts.background(lambda: directories.each(others, lambda part: part.restore(manifest, key)))
        except DataLost as error:  # readable here but not there: take the one before it
            case.found.bad.add(key)
            case.found.lost.append(f"checkpoint {key.rpartition('/')[2]} cannot be read (DATA_LOST): {error.message}")
            case.found.manifest, case.stage = None, _Stage.COMING
            yield from self._restore(case, self._parts.own_part(block))
        except Exception as error:  # noqa: BLE001 - whatever it is, the job begins elsewhere
            self._node.log.error("checkpoint_not_restored", block=paths.block_name(block.key), error=directories.sentence(error))
            self._node.giving.revoke(block)
        else:
            case.stage = _Stage.EVERYWHERE
