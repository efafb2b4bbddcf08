"""Turns the reports of a node's slots into outcomes of tasks, and stores the output of running tasks.

The path of the common case (a quick call, a small result) is short.
"""

from __future__ import annotations

import math
import os
from collections import OrderedDict
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rmgr.adapters.host import workevents
from rmgr.adapters.host.process import Worker
from rmgr.adapters.host.slot import lost_words
from rmgr.coord.protocol import keys
from rmgr.coord.protocol.paths import user_tag
from rmgr.coord.protocol.ports import Store
from rmgr.daemons.starter.core.blocks import ClaimedBlock
from rmgr.daemons.starter.core.fetch import FetchFailure
from rmgr.daemons.starter.core.io import StoreIO
from rmgr.daemons.starter.execution.holds import HeldPart
from rmgr.daemons.starter.execution.lanes import Reopening, Task, WorkerLane
from rmgr.daemons.starter.staging import outputs
from rmgr.daemons.starter.staging.logs import LOG_PART_BYTES, Flushed
from rmgr.errors import LimitReached, RmgrError
from rmgr.log import BOOK, audit
from rmgr.model.block import INITIALIZER_FAILED, MAX_INLINE_VALUE, FailedRange, Outcome, PastAttempt
from rmgr.model.frames import CommandEnd, TaskEnd
from rmgr.model.states import Reason, State
from rmgr.runner.host.kernel import DIRECTORY_GONE, DISK_WAS_FULL
from rmgr.runtime import machine
from rmgr.runtime.aside import place_of
from rmgr.runtime.failpoint import failpoint

if TYPE_CHECKING:
    from rmgr.daemons.starter.node.node import NodeAgent

#: Time that starting a command takes from its slot, besides its run time.
_COMMAND_S = 0.001
#: Report of a spawner that cannot start workers (no memory, no processes). Its work may be the cause: a fresh spawner shows that.
_FORK_FAILED = "fork_failed"
#: Workers and slots that may die in a row with tasks of a block before one has begun. An interpreter that its user chose can die like this
#: for ever, and a worker can claim on its board that its task has not begun; each time costs the node a process.
MOST_IN_VAIN = 5
#: First flush of a task's output after this time, later flushes ever less often; again after this time if some output was left over.
FIRST_FLUSH_S = 2.0
_RAREST_S = 60.0
#: Most parts of a stream written at once: output faster than the store must not keep the thread from others.
_PARTS_AT_ONCE = 64
#: Most ended attempts with output that are remembered for their followers.
_RECENT = 1000

Logs = tuple[int, tuple[bytes, bytes], tuple[int, int]]


class _AttemptBoundary:
    """The boundary of one attempt while its end is handled: an exception there ends this attempt, for `reason`, and nothing else."""

    __slots__ = ("_block", "_counts", "_ends", "_index", "_now_s", "_reason")

    def __init__(self, ends: Ends, block: ClaimedBlock, index: int, reason: Reason, now_s: float) -> None:
        self._ends = ends
        self._block = block
        self._index = index
        self._reason = reason
        self._now_s = now_s
        self._counts = block.live - 1, block.writing

    def __enter__(self) -> None:
        return

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> bool:
        if not isinstance(error, Exception):
            return False
        self._ends.failed(self._block, self._index, self._reason, error, self._now_s, counts=self._counts)
        return True


class Ends:
    """Ends of attempts of one node.

    An exception while an end is handled ends that attempt, and no other: reports of a slot come from a user's processes. A defect that one
    of them triggers costs the others nothing, and leaves nothing RUNNING.

    Args: spool: directory where values wait while the store is away.
    """

    def __init__(self, node: NodeAgent, *, spool: Path) -> None:
        self._node = node
        self._shared = node.shared
        self._lanes = node.lanes
        self._stager = node.stager
        self._logs = node.logs
        self._rows = node.shared.rows
        self._times = node.shared.times
        self._aside = node.shared.aside
        self.reopening = Reopening(node.lanes, node.strike)
        self._spool = spool
        self._refused: dict[Worker, outputs.Ending] = {}

    def take(self, events: list[workevents.WorkEvent]) -> None:
        """Takes in the reports of slots."""
        now_s = machine.monotonic()
        for event in events:
            error = self._aside.attempt(self._take, event, now_s)  # later events belong to other attempts
            if error is not None:
                self._give_up(event, error, now_s)

    def _give_up(self, event: workevents.WorkEvent, error: Exception, now_s: float) -> None:
        """Ends the slot of a failed event, since its state is unknown; the tasks of a slot that is already gone end here."""
        match event:
            case workevents.WorkerEnded():
                lane = self._lanes.drop_worker(event.worker)
            case workevents.SlotLost():
                lane = self._lanes.drop_slot(event.slot)
            case _:
                lane = None
                event.slot.kill()
        for block, index in lane.tasks.values() if lane is not None else ():
            block.live -= 1
            self._end_for_good(block, (index,), Reason.WORKER_LOST, error, now_s)

    def _take(self, event: workevents.WorkEvent, now_s: float) -> None:
        match event:
            case workevents.TasksEnded():
                self._tasks_ended(event, now_s)
            case workevents.CommandsEnded():
                self._commands_ended(event, now_s)
            case workevents.TasksReturned():
                lane = self._lanes.of_worker(event.worker) if event.worker is not None else self._lanes.of_slot(event.slot)
                if lane is not None:
                    self.returned(self._lanes.ended(lane, event.seqs, None), now_s)
                    lane.recalling = False
            case workevents.WorkerBlocked():
                if (lane := self._lanes.of_worker(event.worker)) is not None:
                    self._lanes.block(lane, event.seq)
            case workevents.WorkerUnblocking():
                if (lane := self._lanes.of_worker(event.worker)) is not None:
                    self._lanes.unblock(lane, event.seq)
            case workevents.WorkerFailed():
                error = f"{INITIALIZER_FAILED}: {event.summary}" if event.initializer else event.summary
                self._refused[event.worker] = outputs.Ending(
                    reason=Reason.START_FAILED, error=error, data=event.error, out=event.out, err=event.err
                )
            case workevents.WorkerEnded():
                self.worker_ended(event, now_s)
            case workevents.SlotUp():
                self.reopening.up(event.slot)
            case workevents.SlotLost():
                self.slot_lost(event, now_s)
            case workevents.Surprised():
                self._shared.metrics.surprises.labels(event.what).inc()
                if event.what == "lease_kill":
                    self._shared.metrics.lease_kills.inc()
                if event.what == _FORK_FAILED and event.slot.uses <= 1 and not self._lanes.is_his_own_doing(event.slot):
                    self._node.strike(event.what, event.detail, event.slot.account)
                elif event.what == _FORK_FAILED:
                    event.slot.kill()
                elif event.what == DIRECTORY_GONE:
                    self._node.missed()
                    self._lanes.retire(event.slot)
                self._node.log.warning("slot_surprised", kind=event.what, detail=event.detail, slot=event.slot.number)

    # -- calls ---------------------------------------------------------------------------------------------------------------

    def _tasks_ended(self, event: workevents.TasksEnded, now_s: float) -> None:
        lane = self._lanes.of_worker(event.worker)
        if lane is None:
            return
        take, has_flushed, completed = lane.tasks.pop, self._logs.has, State.COMPLETED
        quick: list[Outcome] = []
        busy: dict[ClaimedBlock, list[int]] = {}  #: tasks, microseconds, and tasks that were not quick
        current: ClaimedBlock | None = None
        counts = [0, 0, 0]
        base_us = 0
        past: tuple[PastAttempt, ...] = ()
        for end in event.ends:
            task = take(end.seq, None)
            if task is None:
                continue
            block, index = task
            if block is not current:
                if quick and current is not None:
                    self._settle_quick(current, quick, now_s)
                    quick = []
                current, base_us, past = block, block.base_us, block.data.past
                counts = busy.setdefault(block, [0, 0, 0])
            elapsed_us, data = end.elapsed_us, end.data
            counts[0] += 1
            counts[1] += elapsed_us
            if end.extra is None and len(data) <= MAX_INLINE_VALUE and not has_flushed(end.seq):
                quick.append(Outcome(index, completed, end.started_us - base_us, elapsed_us, data, end.pickled, end.cpu_us, past=past))
            else:
                counts[2] += 1
                with _AttemptBoundary(self, block, index, Reason.BAD_OUTPUT, now_s):
                    self._task_ended(event, end, block, index, now_s)
        if quick and current is not None:
            self._settle_quick(current, quick, now_s)
        self._lanes.left(lane, now_s)
        for block, (count, busy_us, others) in busy.items():
            block.in_vain = 0
            self._times.observe(block.kind, count, busy_us / 1e6)
            self._charge(block, count, busy_us / 1e6, now_s)
            if count > others:
                self._node.ended(State.COMPLETED, count - others, busy_us / 1e6 / count)

    def _task_ended(self, event: workevents.TasksEnded, end: TaskEnd, block: ClaimedBlock, index: int, now_s: float) -> None:
        """Takes the end of a call that is not quick."""
        ending = outputs.of_task(end)
        ending.home = str(event.slot.directory)
        self._flushed(block, index, end.seq, ending, now_s)

    def _flushed(self, block: ClaimedBlock, index: int, seq: int, ending: outputs.Ending, now_s: float) -> None:
        ending.flushed = self._logs.take(seq)
        self.ended(block, index, ending, now_s)

    def _settle_quick(self, block: ClaimedBlock, outcomes: list[Outcome], now_s: float) -> None:
        def settle() -> None:
            block.settle(outcomes, now_s)
            if self._stager.is_needed(block):
                for outcome in outcomes:
                    self._stager.done(block, outcome.index)

        block.live -= len(outcomes)
        if (error := self._aside.attempt(settle)) is not None:
            self._end_for_good(block, [outcome.index for outcome in outcomes], Reason.BAD_OUTPUT, error, now_s)

    def worker_ended(self, event: workevents.WorkerEnded, now_s: float) -> None:
        lane = self._lanes.of_worker(event.worker)
        refusal = self._refused.pop(event.worker, None)
        if lane is None:
            return
        tasks = dict(lane.tasks)
        if refusal is None and not event.slot.is_up and self._lanes.has_chosen_python(event.slot):
            where = f"on {next(iter(tasks.values()))[0].node} " if tasks else ""
            python = self._lanes.python_of(event.slot)
            message = f"the interpreter {python} {where}cannot run rmgr's worker ({event.detail}): is rmgr in it?"
            refusal = outputs.Ending(reason=Reason.START_FAILED, error=message)
        self._lanes.drop_worker(event.worker)
        if event.seq and event.seq in tasks:
            block, index = tasks.pop(event.seq)
            with _AttemptBoundary(self, block, index, Reason.WORKER_LOST, now_s):
                self._flushed(block, index, event.seq, outputs.of_worker(event), now_s)
            block.in_vain = 0
        if refusal is None:
            self._unbegun(list(tasks.values()), event.detail or "its worker has died", now_s)
            return
        for block, index in tasks.values():
            with _AttemptBoundary(self, block, index, Reason.START_FAILED, now_s):
                self.ended(block, index, refusal, now_s)

    # -- commands ------------------------------------------------------------------------------------------------------------

    def _commands_ended(self, event: workevents.CommandsEnded, now_s: float) -> None:
        lane = self._lanes.of_slot(event.slot)
        if lane is None:
            return
        busy: dict[ClaimedBlock, list[int]] = {}
        plain: dict[ClaimedBlock, list[Outcome]] = {}
        for end in event.ends:
            task = lane.tasks.get(end.seq)
            if task is None:
                if isinstance(lane.owner, HeldPart):
                    lane.owner.ended(end)
                continue
            block, index = task
            counts = busy.get(block)
            if counts is None:
                counts = busy[block] = [0, 0]
                if _is_plain(block):
                    plain[block] = []
            counts[0] += 1
            counts[1] += end.elapsed_us
            outcomes = plain.get(block)
            if outcomes is not None and not self._logs.has(end.seq) and (outcome := outputs.plain_outcome(block, index, end)) is not None:
                outcomes.append(outcome)
                if end.out.size or end.err.size:
                    self._logs.remember(block.key.submission, block.key.attempt, outcome, index)
                continue
            with _AttemptBoundary(self, block, index, Reason.BAD_OUTPUT, now_s):
                self._command_ended(event, end, block, index, now_s)
        for block, outcomes in plain.items():
            if outcomes:
                self._settle_quick(block, outcomes, now_s)
        self._lanes.ended(lane, [end.seq for end in event.ends], now_s)
        for outcomes in filter(None, plain.values()):
            self._node.ended(State.COMPLETED, len(outcomes), sum([one.elapsed_us for one in outcomes]) / 1e6 / len(outcomes))
        for block, (count, busy_us) in busy.items():
            block.in_vain = 0
            self._times.observe(block.kind, count, busy_us / 1e6 + _COMMAND_S * count)
            self._charge(block, count, busy_us / 1e6, now_s)

    def _charge(self, block: ClaimedBlock, count: int, busy_s: float, now_s: float) -> None:
        """Charges its user for these core-seconds of the queue."""
        if not block.is_placed:
            self._shared.turns[block.queue].charge(user_tag(block.info.record.user), block.key.cores, busy_s, count, now_s)

    def _command_ended(self, event: workevents.CommandsEnded, end: CommandEnd, block: ClaimedBlock, index: int, now_s: float) -> None:
        ending = outputs.of_command(end)
        ending.home = str(event.slot.directory)
        self._collect(block, index, end, ending)
        self._flushed(block, index, end.seq, ending, now_s)

    def _collect(self, block: ClaimedBlock, index: int, end: CommandEnd, ending: outputs.Ending) -> None:
        """Notes a command's output files, and the files that the user named for its streams."""
        command = block.info.record.command
        if command is None:
            return
        ending.kept_paths = tuple(path for path in self._stager.named_outputs(block, index) if path)
        ending.directory = end.directory
        if ending.reason is Reason.NONE:  # whether they exist is seen where they are stored: here a hanging file server would stop all
            ending.files = tuple(name for _, name in command.output_files)
            ending.files_home = os.path.join(end.directory or "/", command.cwd)
            ending.is_far = bool(command.cwd) or any(map(os.path.isabs, ending.files))

    # -- the boundary of one attempt -------------------------------------------------------------------------------------

    def failed(self, block: ClaimedBlock, index: int, reason: Reason, error: Exception, now_s: float, *, counts: tuple[int, int]) -> None:
        """Ends an attempt whose handling has raised. counts: live and writing tasks of its block after this end."""
        self._aside.add(place_of(error), None, error)
        block.live, block.writing = counts
        self._end_for_good(block, (index,), reason, error, now_s)

    def _end_for_good(self, block: ClaimedBlock, indices: Iterable[int], reason: Reason, error: Exception, now_s: float) -> None:
        """Ends those of the tasks that have no outcome yet: another try would meet the same error."""
        there = {outcome.index for outcome in block.arrived} | {index for index, _ in block.failed}
        left = [index for index in indices if index not in there]
        words = f"node {self._node.name} could not take in how it ended: {type(error).__name__}: {error}"[:300]
        block.settle([_outcome_of_a_defect(block, index, reason, words) for index in left], now_s)
        if left:
            self._node.ended(State.FAILED, len(left), 0.0)

    # -- slots ---------------------------------------------------------------------------------------------------------------

    def slot_lost(self, event: workevents.SlotLost, now_s: float) -> None:
        lane = self._lanes.of_slot(event.slot)
        tasks, owner = (dict(lane.tasks), lane.owner) if lane is not None else ({}, None)
        running = frozenset(event.running)
        chosen = not event.slot.is_up and self._lanes.has_chosen_python(event.slot)
        self._lanes.drop_slot(event.slot)
        for seq, (block, index) in tasks.items():
            if seq in running:
                ran_us = int((now_s - lane.since_s) * 1e6) if lane is not None else 0
                ending = outputs.Ending(
                    reason=Reason.WORKER_LOST, error=lost_words(event.why), started_us=machine.wall_us() - ran_us, elapsed_us=ran_us
                )
                with _AttemptBoundary(self, block, index, Reason.WORKER_LOST, now_s):
                    self._flushed(block, index, seq, ending, now_s)
                block.in_vain = 0
                self._charge(block, 1, ran_us / 1e6, now_s)
        unbegun = [task for seq, task in tasks.items() if seq not in running]
        if event.expected:
            self.returned(unbegun, now_s)
            self.reopening.closed(event.slot, now_s)
        else:
            self._unbegun(unbegun, lost_words(event.why), now_s)
        if not event.expected and not chosen:
            self._node.log.warning("slot_lost", slot=event.slot.number, why=event.why, running=len(running))
            self.reopening.lost(event.slot, event.why, now_s)
        if isinstance(owner, HeldPart) and owner.seq in event.running:
            owner.lost(lost_words(event.why))

    def _unbegun(self, tasks: list[Task], why: str, now_s: float) -> None:
        """Lets tasks wait again whose worker or slot died before they began; after too many deaths in a row they are lost."""
        blocks = list({id(block): block for block, _ in tasks}.values())
        for block in blocks:
            block.in_vain += 1
        self.returned([task for task in tasks if task[0].in_vain < MOST_IN_VAIN], now_s)
        for block, index in tasks:
            if block.in_vain >= MOST_IN_VAIN:
                error = f"what was to run it died {block.in_vain} times before it began, the last time: {why}"
                with _AttemptBoundary(self, block, index, Reason.WORKER_LOST, now_s):
                    self.ended(block, index, outputs.Ending(reason=Reason.WORKER_LOST, error=error, started_us=machine.wall_us()), now_s)

    # -- from an end to an outcome ---------------------------------------------------------------------------------------------

    def returned(self, tasks: list[Task], now_s: float) -> None:
        """Lets tasks that did not start wait again; ends them as CANCELLED if that was asked for."""
        for block, index in tasks:
            with _AttemptBoundary(self, block, index, Reason.WORKER_LOST, now_s):
                self._put_back(block, index, now_s)

    def _put_back(self, block: ClaimedBlock, index: int, now_s: float) -> None:
        block.put_back((index,))
        words = block.cancel_words(index)
        if words is not None:
            block.take_ready((index,))
            block.settle([cancelled(index, words, block.cancel_reason(index))], now_s)

    def unstartable(self, block: ClaimedBlock, indices: list[int], failure: FetchFailure) -> None:
        """Ends tasks (no longer in ready) that cannot be started."""
        now_s = machine.monotonic()
        for index in indices:
            block.live += 1
            now_us = machine.wall_us()
            ending = outputs.Ending(reason=failure.reason, error=failure.error, started_us=now_us, is_final=failure.is_final)
            with _AttemptBoundary(self, block, index, failure.reason, now_s):
                self.ended(block, index, ending, now_s)
        if failure.is_refusal and indices:
            key, user = block.key, block.info.record.user
            what = f"{key.submission}_{indices[0]}" + (f"-{indices[-1]}" if len(indices) > 1 else "")
            audit(self._node.log, who=user, role="user", what="run", target=what, allowed=False, why=failure.error)
        if failure.blames_node:
            # Where all work has the Starter's own rights, nobody else can be the cause of trouble with its files, disk and processes.
            is_own = failure.reason is Reason.NODE_LOST and self._node.accounts is None
            user = "" if is_own else block.info.record.user
            self._node.strike("start_failed", f"{block.key.submission}: {failure.error}", user=user)

    def ended(self, block: ClaimedBlock, index: int, ending: outputs.Ending, now_s: float) -> None:
        """Takes the end of a live attempt."""
        if block.is_placed and self._node.jobs.is_awaited(block, ending, lambda: self._end_run(block, index, ending, machine.monotonic())):
            return
        self._end_run(block, index, ending, now_s)

    def _end_run(self, block: ClaimedBlock, index: int, ending: outputs.Ending, now_s: float) -> None:
        block.live -= 1
        if ending.reason is Reason.NODE_LOST or (ending.reason is Reason.WORKER_LOST and block.info.account is not None):
            self._node.missed()  # processes of a user never report that the node was at fault (`adapters/host/distrust.py`)
        elif ending.reason is Reason.DISK_LIMIT:
            ending.error = block.over_limit.get(index, ending.error)
        elif not (block.is_placed and ending.reason is Reason.OUT_OF_MEMORY and ending.error):  # ranks report which node had no more
            ending.error = outputs.over_limit(ending, block.info.record) or ending.error
        if ending.error.startswith(DISK_WAS_FULL):  # the node looks well again once the work's files are gone
            self._node.strike("disk_full", f"{block.key.submission}_{index}: {ending.error}", block.info.account)
        ending.account, ending.output_cap = block.info.account, self._shared.config.log_cap_bytes
        ending.file_cap = self._shared.disk_caps.user_bytes
        if block.payloads is not None and outputs.crowded(block, index, ending):
            ending.log_rows = True
        if not ending.needs_store:
            self._conclude(block, index, ending, None, now_s)
            return
        block.writing += 1
        done = partial(self._on_stored, block, index, ending)
        self._rows.add(outputs.StoringEnding(block, index, ending, spool=self._spool, log_ttl_s=self._shared.settings.log_ttl_s, done=done))

    def _on_stored(self, block: ClaimedBlock, index: int, ending: outputs.Ending, result: outputs.Written | Exception) -> None:
        counts = block.live, block.writing - 1
        try:
            self._written(block, index, ending, result)
        except Exception as error:  # noqa: BLE001 - the boundary of one attempt
            self.failed(block, index, Reason.BAD_OUTPUT, error, machine.monotonic(), counts=counts)

    def _written(self, block: ClaimedBlock, index: int, ending: outputs.Ending, result: outputs.Written | Exception) -> None:
        block.writing -= 1
        written = result if isinstance(result, outputs.Written) else None
        if written is not None and written.bad_output:
            ending.reason, ending.error = Reason.BAD_OUTPUT, written.bad_output
            self._rows.delete(block, index)
        if isinstance(result, Exception):
            what = result.message if isinstance(result, RmgrError) else f"{type(result).__name__}: {result}"
            his, is_gone = outputs.is_users_fault(result, ending)
            user: str = block.info.record.user
            if not his or BOOK.admits(f"outputs of {user}", lambda more: self._node.log.info("outputs_not_stored", user=user, count=more)):
                self._node.log.error("output_not_stored", task_id=f"{block.key.submission}_{index}", error=what)
            ending.reason = Reason.BAD_OUTPUT if his else Reason.NODE_LOST
            ending.error = f"its output could not be stored: {what}"
            if ending.values is not None or ending.files:
                self._rows.delete(block, index)  # some of them may be stored
            ending.data, ending.value, ending.values, ending.files = b"", None, None, ()
            if is_gone:
                self._node.missed()
            elif not his:
                self._node.strike("output_not_stored", what, ending.account)
        failpoint("starter.output_written")
        self._conclude(block, index, ending, written, machine.monotonic())

    def _conclude(self, block: ClaimedBlock, index: int, ending: outputs.Ending, written: outputs.Written | None, now_s: float) -> None:
        if ending.reason is Reason.NONE and self._stager.left.has(block):
            block.writing += 1
            self._stager.left.when_claimed(block, index, lambda refusal: self._on_claimed(block, index, ending, written, refusal))
        else:
            self._end(block, index, ending, written, now_s)

    def _on_claimed(
        self, block: ClaimedBlock, index: int, ending: outputs.Ending, written: outputs.Written | None, refusal: Exception | None
    ) -> None:
        """Ends a task once its output keys are claimed, or another process has them (its client died before it claimed them)."""
        block.writing -= 1
        if refusal is not None:
            failure = FetchFailure.of(refusal, refusal.message if isinstance(refusal, RmgrError) else str(refusal))
            ending.reason = Reason.NODE_LOST if failure.blames_node else failure.reason
            ending.error = failure.error
            ending.data, ending.value, ending.values, ending.files = b"", None, None, ()
            self._rows.delete(block, index)
            written = None
        self._end(block, index, ending, written, machine.monotonic())

    def _end(self, block: ClaimedBlock, index: int, ending: outputs.Ending, written: outputs.Written | None, now_s: float) -> None:
        key, record = block.key, block.info.record
        ended = outputs.conclude(
            block,
            index,
            ending,
            written,
            backoff_us=record.backoff_us,
            max_losses=self._shared.settings.max_losses,
            cancelled=block.cancel_words(index),
        )
        if isinstance(ended, Outcome):
            block.settle([ended], now_s)
            self._node.ended(ended.state, 1, ended.elapsed_us / 1e6)
            if ended.state is not State.COMPLETED and not block.data.resubmit and ended.reason is not Reason.UNTRUSTED:
                self._rows.delete(block, index, self._stager.outputs_of(block, index))
        else:
            block.settle_failed(index, ended, now_s)
            self._node.ended(None, 1, ending.elapsed_us / 1e6)
        if ended.log[0] or ended.log[1] or ended.log_parts != (0, 0):
            self._logs.remember(key.submission, key.attempt, ended, index)
        self._stager.done(block, index)
        if ending.directory and not self._stager.is_needed(block):  # else its staged files are being removed: two would collide
            self._shared.io.run(lambda _store: outputs.remove_directory(ending), lambda _result: None)


def _is_plain(block: ClaimedBlock) -> bool:
    """Returns whether its commands have no files to collect or keep, and run on this node only."""
    command, allocation = block.info.record.command, block.data.allocation
    leaves_files = command is None or command.output_files or command.out or command.err
    return not leaves_files and not (allocation is not None and allocation.helpers)


def cancelled(index: int, words: str, reason: Reason = Reason.USER_CANCEL) -> Outcome:
    """Returns the outcome of a task that was cancelled before it started."""
    return Outcome(index=index, state=State.CANCELLED, reason=reason, error=words)


def _outcome_of_a_defect(block: ClaimedBlock, index: int, reason: Reason, words: str) -> Outcome:
    cancelled = block.cancel_words(index)
    if cancelled is not None:
        return Outcome(index=index, state=State.CANCELLED, reason=block.cancel_reason(index), error=cancelled)
    return Outcome(index=index, state=State.FAILED, reason=reason, error=words)


# -- output of running tasks -----------------------------------------------------------------------------------------------
# The output of running tasks is flushed to the store every few seconds, so that it outlives the node. Recent ends are remembered for
# followers.


class LiveLogs:
    """Logs of the tasks of one node.

    ttl_s: how long new rows are kept, None = for ever. output_cap: about so many bytes of a stream are stored.
    """

    def __init__(self, io: StoreIO, ttl_s: Callable[[], float | None], output_cap: int, charges: outputs.Charges) -> None:
        self._io = io
        self._charges = charges
        self._ttl_s = ttl_s
        self._output_cap = output_cap
        self._flushed: dict[int, Flushed] = {}
        #: (submission, index) -> (attempt, inline rest, parts) of recent ends
        self.recent: OrderedDict[tuple[int, int], Logs] = OrderedDict()

    def has(self, seq: int) -> bool:
        """Returns whether some of its output is in the store."""
        return seq in self._flushed

    def take(self, seq: int) -> Flushed | None:
        """Returns how much of an ended task's output is in the store, and forgets it."""
        return self._flushed.pop(seq, None)

    def remember(self, submission: int, attempt: int, ended: Outcome | FailedRange, index: int) -> None:
        """Remembers for followers where the output of an ended attempt is."""
        self.recent[submission, index] = (attempt, ended.log, ended.log_parts)
        if len(self.recent) > _RECENT:
            self.recent.popitem(last=False)

    def flush(self, lanes: Iterable[WorkerLane], now_s: float) -> float:
        """Writes new output of running tasks; returns when to call again, inf = no need to."""
        next_s = math.inf
        for lane in lanes:
            seq = lane.running_seq
            if not seq:
                continue
            flushed = self._flushed.get(seq)
            if flushed is None:
                due_s = lane.since_s + FIRST_FLUSH_S
                if now_s >= due_s:
                    flushed = self._flushed[seq] = Flushed()
            if flushed is not None:
                if now_s >= flushed.next_s and not flushed.is_flushing:
                    self._start(lane, seq, flushed, now_s)
                if flushed.is_flushing:  # its end wakes the loop; with an absent store that may take long
                    continue
                due_s = flushed.next_s
            next_s = min(next_s, due_s)
        return next_s

    def _start(self, lane: WorkerLane, seq: int, flushed: Flushed, now_s: float) -> None:
        block, index = lane.tasks[seq]
        flushed.is_flushing = True
        flushed.next_s = now_s + flushed.every_s
        flushed.every_s = min(flushed.every_s * 1.2, _RAREST_S)
        task = (block.key.submission, index, block.key.attempt)
        read, ttl_s, cap, charge = lane.runs_by.live_output, self._ttl_s(), self._output_cap, self._charges(block.info.record.user)

        def job(store: Store) -> bool:
            is_behind = False
            with flushed.lock:
                for stream, stored in zip(keys.STREAMS, flushed.streams, strict=True):
                    row = partial(keys.log, *task, stream)
                    for _ in range(_PARTS_AT_ONCE):
                        data, following = read(seq, stream, stored.size, LOG_PART_BYTES) or (b"", 0)
                        if not data:
                            break
                        try:
                            charge.row(row(stored.parts), len(data))
                        except LimitReached:  # the rest is left to the end, which reports it
                            break
                        store.put(row(stored.parts), data, ttl_s=ttl_s)
                        stored.add(following, len(data), cap)
                        if len(data) < LOG_PART_BYTES:
                            break
                    else:
                        is_behind = True
                    stored.cut(store, row, cap, ttl_s)
            return is_behind

        self._io.run(job, lambda is_behind: self._on_flushed(flushed, is_behind), user=block.info.record.user)

    def _on_flushed(self, flushed: Flushed, is_behind: bool | Exception) -> None:
        now_s = machine.monotonic()
        if is_behind is True:  # there is more: it would be lost with the node
            flushed.next_s = min(flushed.next_s, now_s + FIRST_FLUSH_S)
        flushed.is_flushing = False
        flushed.next_s = max(flushed.next_s, now_s + 1.0)
