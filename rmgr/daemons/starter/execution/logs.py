"""Output of running tasks: flushed to the store every few seconds, so that it outlives the node; and what ended lately."""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

from rmgr.coord.protocol import keys
from rmgr.coord.protocol.ports import Store
from rmgr.daemons.starter.core.io import StoreIO
from rmgr.daemons.starter.execution.lanes import WorkerLane
from rmgr.daemons.starter.staging.outputs import LOG_PART_BYTES, Charges, Flushed
from rmgr.errors import LimitReached
from rmgr.model.tasks.block import FailedRange, Outcome
from rmgr.model.tasks.gap import gap_line
from rmgr.runtime import machine

#: First flush of a task's output after this, later ones ever more rarely; as soon again where not all was written.
FIRST_FLUSH_S = 2.0
_RAREST_S = 60.0
#: Parts of one stream that are written at once: who puts out more than the store takes would keep its thread from all others.
_PARTS_AT_ONCE = 64
#: Attempts with output whose end is remembered for those who follow them.
_RECENT = 1000

Logs = tuple[int, tuple[bytes, bytes], tuple[int, int]]


@dataclass(slots=True)
class _Kept:
    """Parts of one stream that are in the store: about its first and its last half cap, as in the file itself, and a line for the rest.

    head: bytes before the gap. tail: (part, its bytes in the output as it was written, its bytes in the store). gap: part that counts
    what is missed, -1 = nothing is.
    """

    head: int = 0
    tail: deque[tuple[int, int, int]] = field(default_factory=deque)
    tail_bytes: int = 0
    gap: int = -1
    dropped: int = 0

    def add(self, part: int, written: int, stored: int, cap: int) -> None:
        """One more is there."""
        if self.head < cap // 2:
            self.head += stored
        else:
            self.tail.append((part, written, stored))
            self.tail_bytes += stored

    def cut(self, store: Store, row: Callable[[int], str], cap: int, ttl_s: float | None) -> None:
        """Deletes the oldest parts of a tail that has grown too long. Done again after a failure it does the same."""
        left, surplus = self.tail_bytes, 0
        while left > cap - cap // 2 and surplus < len(self.tail) - 1:
            left -= self.tail[surplus][2]
            surplus += 1
        if not surplus:
            return
        gone = [self.tail[at] for at in range(surplus)]
        gap = gone[0][0] if self.gap < 0 else self.gap
        dropped = self.dropped + sum(written for _, written, _ in gone)
        store.put(row(gap), gap_line(dropped, cap), ttl_s=ttl_s)
        store.delete_many([row(part) for part, _, _ in gone if part != gap])
        self.gap, self.dropped, self.tail_bytes = gap, dropped, left
        for _ in gone:
            self.tail.popleft()


@dataclass(slots=True, kw_only=True)
class _Flushing(Flushed):
    """Of a task that runs."""

    kept: tuple[_Kept, _Kept] = field(default_factory=lambda: (_Kept(), _Kept()))


class LiveLogs:
    """Logs of the tasks of one node.

    ttl_s: how long rows that are written now are kept, None = for ever. output_cap: about so many bytes of a stream are in the store while
    it grows; at its end comes what its file holds beyond.
    """

    def __init__(self, io: StoreIO, ttl_s: Callable[[], float | None], output_cap: int, charges: Charges) -> None:
        self._io = io
        self._charges = charges
        self._ttl_s = ttl_s
        self._output_cap = output_cap
        self._flushed: dict[int, _Flushing] = {}
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

    def flush(self, lanes: Iterable[WorkerLane], now_s: float) -> float:
        """Writes what running tasks have put out since the last time; returns when to come again, inf = no need to."""
        next_s = math.inf
        for lane in lanes:
            seq = lane.running_seq
            if not seq:
                continue
            flushed = self._flushed.get(seq)
            if flushed is None:
                due_s = lane.since_s + FIRST_FLUSH_S
                if now_s >= due_s:
                    flushed = self._flushed[seq] = _Flushing()
            if flushed is not None:
                if now_s >= flushed.next_s and not flushed.is_flushing:
                    self._start(lane, seq, flushed, now_s)
                if flushed.is_flushing:  # its end brings the loop round; a store that is away may take long to it
                    continue
                due_s = flushed.next_s
            next_s = min(next_s, due_s)
        return next_s

    def _start(self, lane: WorkerLane, seq: int, flushed: _Flushing, now_s: float) -> None:
        block, index = lane.tasks[seq]
        flushed.is_flushing = True
        flushed.next_s = now_s + flushed.every_s
        flushed.every_s = min(flushed.every_s * 1.2, _RAREST_S)
        reader = lane.slot.live_output if lane.worker is None else lane.worker.live_output
        task = (block.key.submission, index, block.key.attempt)
        ttl_s, cap, charge = self._ttl_s(), self._output_cap, self._charges(block.info.record.user)

        def job(store: Store) -> bool:
            is_behind = False
            with flushed.lock:
                for number, stream in enumerate(keys.STREAMS):
                    row, kept = partial(keys.log, *task, stream), flushed.kept[number]
                    for _ in range(_PARTS_AT_ONCE):
                        offset, part = flushed.sizes[number], flushed.parts[number]
                        data, following = reader(seq, stream, offset, LOG_PART_BYTES) or (b"", 0)
                        if not data:
                            break
                        try:
                            charge.row(row(part), len(data))
                        except LimitReached:  # what is left of it is for the end, which says so
                            break
                        store.put(row(part), data, ttl_s=ttl_s)
                        flushed.sizes[number] = following
                        flushed.parts[number] += 1
                        kept.add(part, following - offset, len(data), cap)
                        if len(data) < LOG_PART_BYTES:
                            break
                    else:
                        is_behind = True
                    kept.cut(store, row, cap, ttl_s)
            return is_behind

        self._io.run(job, partial(self._done, flushed), user=block.info.record.user)

    def _done(self, flushed: Flushed, is_behind: bool | Exception) -> None:
        now_s = machine.monotonic()
        if is_behind is True:  # there is more: it would be lost with the node
            flushed.next_s = min(flushed.next_s, now_s + FIRST_FLUSH_S)
        flushed.is_flushing = False
        flushed.next_s = max(flushed.next_s, now_s + 1.0)
