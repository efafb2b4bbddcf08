"""Output of running tasks: flushed to the store every few seconds, so that it outlives the node; and what ended lately."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from functools import partial

from rmgr.coord.protocol import keys
from rmgr.coord.protocol.ports import Store
from rmgr.daemons.starter.core.io import StoreIO
from rmgr.daemons.starter.execution.lanes import WorkerLane
from rmgr.daemons.starter.staging.outputs import LOG_PART_BYTES, Flushed
from rmgr.model.tasks.outcome import FailedRange, Outcome
from rmgr.runtime import machine

#: First flush of a task's output after this, later ones ever more rarely.
FIRST_FLUSH_S = 2.0
_RAREST_S = 60.0
#: Attempts with output whose end is remembered for those who follow them.
_RECENT = 1000

Logs = tuple[int, tuple[bytes, bytes], tuple[int, int]]


class LiveLogs:
    """Logs of the tasks of one node. ttl_s: how long rows that are written now are kept, None = for ever."""

    def __init__(self, io: StoreIO, ttl_s: Callable[[], float | None]) -> None:
        self._io = io
        self._ttl_s = ttl_s
        self._flushed: dict[int, Flushed] = {}
        #: (submission, index) -> (attempt, inline rest, parts) of what ended lately
        self.recent: OrderedDict[tuple[int, int], Logs] = OrderedDict()

    def has(self, seq: int) -> bool:
        """Some of its output is in the store already."""
        return seq in self._flushed

    def take(self, seq: int) -> Flushed | None:
        """The task has ended: how much of its output is in the store."""
        return self._flushed.pop(seq, None)

    def remember(self, submission: int, attempt: int, ended: Outcome | FailedRange, index: int) -> None:
        """For those who follow it: where the output of an attempt is now."""
        self.recent[submission, index] = (attempt, ended.log, ended.log_parts)
        if len(self.recent) > _RECENT:
            self.recent.popitem(last=False)

    def flush(self, lanes: Iterable[WorkerLane], now_s: float) -> float | None:
        """Writes what running tasks have put out since the last time; returns when to come again, None: no need to."""
        next_s = None
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
                if flushed.is_flushing:  # its end brings the loop round; a store that is away may take long to it
                    continue
                due_s = flushed.next_s
            next_s = due_s if next_s is None else min(next_s, due_s)
        return next_s

    def _start(self, lane: WorkerLane, seq: int, flushed: Flushed, now_s: float) -> None:
        block, index = lane.tasks[seq]
        flushed.is_flushing = True
        flushed.next_s = now_s + flushed.every_s
        flushed.every_s = min(flushed.every_s * 1.2, _RAREST_S)
        reader = lane.slot.live_output if lane.worker is None else lane.worker.live_output
        task = (block.key.submission, index, block.key.attempt)
        ttl_s = self._ttl_s()

        def job(store: Store) -> None:
            with flushed.lock:
                for number, stream in enumerate(keys.STREAMS):
                    while read := reader(seq, stream, flushed.sizes[number], LOG_PART_BYTES):
                        data, following = read
                        if not data:
                            break
                        store.put(keys.log(*task, stream, flushed.parts[number]), data, ttl_s=ttl_s)
                        flushed.sizes[number] = following
                        flushed.parts[number] += 1
                        if len(data) < LOG_PART_BYTES:
                            break

        self._io.run(job, partial(self._done, flushed))

    def _done(self, flushed: Flushed, _result: object) -> None:
        flushed.is_flushing = False
        flushed.next_s = max(flushed.next_s, machine.monotonic() + 1.0)
