"""A Python worker as its Starter sees it: tasks out, facts back, each task accounted for exactly once, whatever dies.

A worker runs tasks in the order sent. Tasks that have not begun can be taken back at any moment (`recall`), even while another holds
the interpreter, because the worker looks at the shared board before each task.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from rmgr.adapters.host import distrust, workevents
from rmgr.adapters.host.accounts import live_output
from rmgr.adapters.host.channel import Channel
from rmgr.model import frames, stream
from rmgr.model.frames import Output, TaskBatch, TaskEnd, WorkerGone
from rmgr.model.states import Reason
from rmgr.runner.host.board import SETTLE_S, Board

if TYPE_CHECKING:
    from rmgr.adapters.host.slot import Slot

#: Seconds of silence after which the results of a worker that has tasks are read from its board.
_RESCUE_S = 0.05
_CRASHES = frozenset({signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE, signal.SIGSYS})
_PART = 4 * 1024 * 1024
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_ends = msgspec.msgpack.Decoder(tuple[TaskEnd, ...])


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """Specification of a worker; work with the same specification may share a worker.

    environ: set in the worker from its first instruction (OMP_NUM_THREADS must be there before numpy is loaded).
    sys_path: added where they exist. argv: `sys.argv`. warnings: filters, () = the usual ones. archives: zip files on this node.
    initializer: pickle of (function, args).
    python_version, cloudpickle: the client's "3.11" and "3.1.1". memory_bytes: limit of the worker's own cgroup, 0 = none.
    group: workers of different groups are never shared (an Executor with an initializer, another user's work). program: nor are
        workers of different programs, which differ in `__main__`.
    """

    environ: dict[str, str] = field(default_factory=dict, hash=False)
    sys_path: tuple[str, ...] = ()
    argv: tuple[str, ...] = ()
    warnings: tuple[tuple[str, str, str, str, str], ...] = ()
    archives: tuple[str, ...] = ()
    initializer: bytes = b""
    python_version: str = ""
    cloudpickle: str = ""
    memory_bytes: int = 0
    group: str = ""
    program: str = ""


class Worker:
    """Handle of one worker; made by `Slot.start_worker`. Its methods may be called from any thread and never block."""

    def __init__(self, slot: Slot, number: int, spec: WorkerSpec) -> None:
        self.slot = slot
        self.number = number
        self.spec = spec
        self.pid = 0
        self.directory = ""
        self.is_ready = False
        self.is_refused = False  #: its environment could not be set up
        self.is_leaving = False  #: takes no more tasks (it ends itself, or is dead)
        self.blocked_seq = 0
        self._lock = threading.Lock()
        self._outstanding: dict[int, None] = {}
        self._last_seq = 0
        self._highest = 0  # every task up to this one has been run or skipped
        self._revoked = (0, 0)
        self._early: list[bytes] = []
        self._channel: Channel | None = None
        self._board: Board | None = None
        self._watching = False
        self._heard = False
        self._talk = distrust.Talk() if slot.account is not None else None
        self._ordered_ends = distrust.OrderedEnds()
        self._is_asking = False  #: whether it asks for the cores of its blocked task

    # -- the Starter's side ----------------------------------------------------------------------------------------

    @property
    def load(self) -> int:
        """Number of outstanding tasks."""
        return len(self._outstanding)

    @property
    def backlog(self) -> int:
        """Bytes sent but not yet taken by the worker."""
        channel = self._channel
        return channel.backlog if channel is not None else sum(map(len, self._early))

    def running(self) -> tuple[int, int]:
        """Returns (seq, started_ns CLOCK_BOOTTIME) of the running task, or (0, 0) if none runs."""
        board = self._board
        try:
            return board.running() if board is not None and self._outstanding else (0, 0)
        except ValueError:  # the worker has just ended: the board is closed
            return 0, 0

    def send(self, batch: TaskBatch) -> bool:
        """Sends tasks (seqs from `NodeRunner.next_seq`, ascending). Returns False if the worker is gone; then nothing was sent.

        Raises: FrameError when one task alone is longer than a frame may be (large payloads go in files).
        """
        data = b"".join(stream.encode(part) for part in _parts(batch))
        with self._lock:
            if self.is_leaving:
                return False
            for item in batch.items:
                self._outstanding[item.seq] = None
            self._last_seq = batch.items[-1].seq
            if self._channel is None:
                self._early.append(data)
                return True
            watch = not self._watching and len(self._outstanding) > 1  # a single task waits for no other: its end is reported at once
            self._watching = self._watching or watch
        self._channel.send(data)
        if watch:
            self.slot.loop.later(_RESCUE_S, self._rescue)
        return True

    def recall(self, *, keep: int = 0) -> None:
        """Takes back the tasks that have not begun, beyond the next `keep` (all of them while the worker is being forked).

        `TasksReturned` follows after a few ms; it is empty if there was nothing to take back.
        """
        self.slot.loop.call(lambda: self._recall(keep))

    def stop(self, seq: int = 0, *, reason: Reason = Reason.USER_CANCEL, grace_us: int = 5_000_000) -> None:
        """Ends task `seq`; 0 ends the worker.

        A running task gets SIGTERM, then SIGKILL after `grace_us`; it is reported in `TasksEnded` (it gave way, the worker lives on) or in
        `WorkerEnded`, with `reason`. A task that has not begun comes back in `TasksReturned`, together with the tasks behind it.
        """
        order = frames.Stop(worker=self.number, seq=seq, reason=reason, grace_us=grace_us)
        if seq:
            with self._lock:
                if seq in self._outstanding and self.slot.account is not None:
                    self._ordered_ends.order(seq, reason)
            self.slot.loop.call(lambda: self._stop(order))
        else:
            self.slot.order(order)

    def signal(self, signum: int, seq: int = 0) -> None:
        """Sends a signal to all processes of the running task."""
        self.slot.order(frames.Signal(worker=self.number, seq=seq, signum=signum))

    def suspend(self) -> None:
        """Stops the worker and its child processes in place."""
        self.slot.order(frames.SuspendWork(worker=self.number))

    def resume(self) -> None:
        """Continues after `suspend`."""
        self.slot.order(frames.SuspendWork(worker=self.number, resume=True))

    def limit(self, seq: int, limit_us: int) -> None:
        """Changes the time limit of the running task (us, 0 = none)."""
        self.slot.order(frames.LimitWork(worker=self.number, seq=seq, limit_us=limit_us))

    def grant(self, seq: int) -> None:
        """Answers `WorkerUnblocking`: the task gets its cores back."""
        self.blocked_seq = 0
        self._is_asking = False
        if self._channel is not None:
            self._channel.send(stream.encode(frames.Granted(seq)))

    def live_output(self, seq: int, stream: str, offset: int, limit: int = 64 * 1024) -> tuple[bytes, int] | None:
        """Returns (output of the running task `seq` on "stdout" or "stderr" from `offset`, next offset), as `Slot.live_output` does."""
        board = self._board
        if board is None or self.running()[0] != seq:
            return None
        try:
            cap = board.output_cap
        except ValueError:  # the worker has just ended: the board is closed
            return None
        read = live_output(os.path.join(self.directory, stream), self.slot.account, offset, limit, cap)
        return read if self.running()[0] == seq else None

    # -- the selector thread's side ----------------------------------------------------------------------------------

    def attach(self, pid: int, directory: str, given: list[int]) -> None:
        """Connects to the worker that the spawner has forked. given: descriptors of its socket (taken out of the list) and its board."""
        if self._channel is not None:
            raise distrust.Imposture("it forks a worker twice")
        self.pid, self.directory = pid, directory
        self._board = Board(given[1])
        channel = Channel(
            self.slot.loop,
            distrust.stream_socket(given),
            frames.FromWorker,
            on_frames=self._on_frames,
            on_end=_nothing,  # the spawner reports its death
        )
        with self._lock:  # nothing overtakes what was sent early
            early, self._early = self._early, []
            for data in early:
                channel.send(data)
            self._channel = channel
            self._watching = bool(early)
        if early:
            self.slot.loop.later(_RESCUE_S, self._rescue)

    def end(self, gone: WorkerGone) -> None:
        """Accounts for every task of the dead worker, after reading the results that it left."""
        with self._lock:
            self.is_leaving = True
        started = current = 0
        if self._channel is not None:
            self._channel.drain()
        if self._board is not None:
            self._take_unsent()
            current, started = self._board.running()
        with self._lock:
            left, self._outstanding = tuple(self._outstanding), {}
        seq = current if current in left else 0
        in_initializer = not self.is_ready and not self.is_refused and bool(self.spec.initializer)
        if not self.is_ready and not self.is_refused and (gone.exit_code is not None or gone.signal in _CRASHES):
            how = f"exit code {gone.exit_code}" if gone.exit_code is not None else signal.Signals(gone.signal).name
            where = "initializer" if in_initializer else "set-up"
            self._refuse(b"", f"the worker process ended in its {where} ({how})", in_initializer, gone.out, gone.err)
        if self._channel is not None:
            self._channel.close()
        if self._board is not None:
            self._board.close()
            self._board = None
        started_us, elapsed_us = _wall_times(started) if seq else (0, 0)
        unstarted = tuple(other for other in left if other != seq)
        if seq and self.slot.account is not None:
            gone = msgspec.structs.replace(gone, reason=self._ordered_ends.believed(seq, gone.reason))
        ended = workevents.WorkerEnded(
            slot=self.slot,
            worker=self,
            seq=seq,
            reason=gone.reason,
            exit_code=gone.exit_code,
            signal=gone.signal,
            detail=f"{gone.detail} while its initializer ran" if in_initializer and gone.detail else gone.detail,
            started_us=started_us,
            elapsed_us=elapsed_us,
            cpu_us=gone.cpu_us if seq else 0,
            max_rss_kib=gone.max_rss_kib,
            out=gone.out,
            err=gone.err,
            unstarted=unstarted,
        )
        self.slot.tell(ended)

    def _on_frames(self, received: list[object], _fds: list[int]) -> None:
        with self.slot.guarded():
            if self._talk is not None and self._channel is not None:
                self._talk.heard(self._channel.received, len(received), self._awaited(received))
            self._take(received)

    def _awaited(self, received: list[object]) -> int:
        """Counts the pieces of its work that these frames account for."""
        seqs: set[int] = set()
        asks = False
        for frame in received:
            match frame:
                case frames.TaskEnds():
                    seqs.update([end.seq for end in frame.ends])
                case frames.Skipped():
                    seqs.update(frame.seqs)
                case frames.Blocked():
                    asks = asks or not self.blocked_seq
                case frames.Unblocking():  # after which it waits for an answer
                    asks = asks or not self._is_asking
        return sum(seq in self._outstanding for seq in seqs) + asks

    def _take(self, received: list[object]) -> None:
        self._heard = True
        slot = self.slot
        for frame in received:
            match frame:
                case frames.TaskEnds():
                    if known := self._account(frame.ends):
                        slot.tell(workevents.TasksEnded(slot, self, known))
                case frames.Skipped():
                    with self._lock:
                        self._highest = max(self._highest, frame.seqs[-1])
                        seqs = tuple(seq for seq in frame.seqs if self._outstanding.pop(seq, self) is None)
                        self._ordered_ends.over(frame.seqs)
                    if seqs:
                        slot.tell(workevents.TasksReturned(slot, self, seqs, Reason.NONE))
                case frames.Blocked():
                    self.blocked_seq = frame.seq
                    slot.tell(workevents.WorkerBlocked(slot, self, frame.seq))
                    self._recall(0)
                case frames.Unblocking():
                    if frame.seq in self._outstanding:
                        self._is_asking = True
                        slot.tell(workevents.WorkerUnblocking(slot, self, frame.seq))
                    else:  # a thread that outlived its task: no task needs cores
                        self.grant(frame.seq)
                case frames.WorkerUp():
                    if self.is_ready:
                        raise distrust.Imposture("a worker is up twice")
                    self.is_ready = True
                case frames.WorkerRefused():
                    distrust.check_output(frame.out, frame.err)
                    self._refuse(frame.error, frame.summary, frame.initializer, frame.out, frame.err)
                case frames.Leaving():
                    self.is_leaving = True

    def _refuse(self, error: bytes, summary: str, initializer: bool, out: Output, err: Output) -> None:
        self.is_leaving = self.is_refused = True
        self.slot.tell(workevents.WorkerFailed(self.slot, self, error, summary, initializer, out, err))

    def _account(self, ends: tuple[TaskEnd, ...]) -> tuple[TaskEnd, ...]:
        """Removes the tasks from the outstanding ones; returns those not yet accounted for (socket and board may both bring an end)."""
        if self.slot.account is not None:
            for end in ends:
                distrust.check_end(end, self.slot.account)
            with self._lock:
                ends = tuple([self._ordered_ends.task(end) for end in ends])
                self._ordered_ends.over(end.seq for end in ends)
        with self._lock:
            self._highest = max(self._highest, ends[-1].seq)
            pop = self._outstanding.pop
            known = tuple([end for end in ends if pop(end.seq, self) is None])
        if known and known[-1].seq == self.blocked_seq:
            self.blocked_seq = 0
        return known

    def _recall(self, keep: int, *, answer: bool = True) -> None:
        board = self._board
        if board is None:
            with self._lock:  # not forked yet: nothing has been sent
                seqs = tuple(self._outstanding)
                self._early.clear()
                self._outstanding.clear()
            self.slot.tell(workevents.TasksReturned(self.slot, self, seqs, Reason.NONE))
            return
        with self._lock:
            current = board.begun
            ahead = [seq for seq in self._outstanding if seq > current]
            if len(ahead) > keep:
                after = ahead[keep - 1] if keep else current
                if max(self._highest, current) < self._revoked[1]:  # tasks revoked before and not yet skipped stay revoked
                    after = min(after, self._revoked[0])
                self._revoked = (after, self._last_seq)
                board.revoke(*self._revoked)
            revoked = self._revoked
        self.slot.loop.later(SETTLE_S, lambda: self._settle(*revoked, answer=answer))

    def _stop(self, order: frames.Stop) -> None:
        board = self._board
        begun = board.begun if board is not None else 0  # read once, and first: a task that begins later counts as ahead, and is rechecked
        with self._lock:
            ahead = [seq for seq in self._outstanding if seq > begun]
        if order.seq in ahead:
            self._recall(ahead.index(order.seq), answer=False)
            # if it has begun in the meantime, it is still outstanding, and this stops it
            self.slot.loop.later(2 * SETTLE_S, lambda: self._stop(order))
        elif board is not None and board.seq == order.seq:
            self.slot.order(order)

    def _settle(self, after: int, until: int, *, answer: bool) -> None:
        """Returns the tasks revoked a moment ago that are still ahead of the worker: they cannot start any more."""
        board = self._board
        if board is None:  # the worker has died in the meantime: everything is accounted for
            if answer:
                self.slot.tell(workevents.TasksReturned(self.slot, self, (), Reason.NONE))
            return
        with self._lock:
            after = max(after, board.begun)
            seqs = tuple(seq for seq in self._outstanding if after < seq <= until)
            for seq in seqs:
                del self._outstanding[seq]
            self._ordered_ends.over(seqs)
        if seqs or answer:
            self.slot.tell(workevents.TasksReturned(self.slot, self, seqs, Reason.NONE))

    def _rescue(self) -> None:
        """Reads results from the board, so that a quick task's result does not wait for a slow task later in its batch."""
        with self._lock:
            if len(self._outstanding) < 2 or self._board is None:
                self._watching = False
                return
        if not self._heard:
            self._take_unsent()
        self._heard = False
        self.slot.loop.later(_RESCUE_S, self._rescue)

    def _take_unsent(self) -> None:
        if self._board is None:
            return
        data, count = self._board.unsent()
        if count:
            with self.slot.guarded():
                known = self._account(ends_on_board(data, count))
                if known:
                    self.slot.tell(workevents.TasksEnded(self.slot, self, known))


def ends_on_board(data: bytes, count: int) -> tuple[TaskEnd, ...]:
    """Decodes the `count` ends that a worker has left on its board. Raises FrameError, as for a frame of the worker."""
    try:
        return _ends.decode(b"\xdd" + count.to_bytes(4, "big") + data)
    except stream.UNREADABLE as error:
        raise stream.FrameError(f"the board does not decode: {str(error)[:300]}") from None


def _parts(batch: TaskBatch) -> list[TaskBatch]:
    """Splits the batch where its payloads would make a frame too long."""
    parts, start, size = [], 0, 0
    for number, item in enumerate(batch.items):
        size += len(item.payload)
        if size > _PART and number > start:
            parts.append(msgspec.structs.replace(batch, items=batch.items[start:number]))
            start, size = number, len(item.payload)
    if not parts:
        return [batch]
    parts.append(msgspec.structs.replace(batch, items=batch.items[start:]))
    return parts


def _wall_times(started_ns: int) -> tuple[int, int]:
    """Returns (started_us since the epoch, elapsed_us) of work that started at CLOCK_BOOTTIME `started_ns` and ends now."""
    elapsed_us = max(0, (time.clock_gettime_ns(_CLOCK) - started_ns) // 1000)
    return time.time_ns() // 1000 - elapsed_us, elapsed_us


def _nothing(_why: str) -> None:
    """Ignores the end of a data socket: the spawner reports it better."""
