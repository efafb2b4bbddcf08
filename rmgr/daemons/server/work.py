"""The slots of a server, and its load. Each slot is a spawner with one Python worker, as on a node, and runs one call at a time.

A worker is started ahead, with the modules of all functions, and kept as long as the next call has the same memory limit. A worker whose
call leaves processes or threads behind is ended before the next call. If a worker ends before its call has begun, another gets the call.
"""

from __future__ import annotations

import contextlib
import math
import os
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from rmgr.adapters.host import workevents
from rmgr.adapters.host.process import NodeRunner, Slot, Worker, WorkerSpec
from rmgr.model.frames import NO_OUTPUT, BatchShape, Output, TaskBatch, TaskEnd, TaskItem
from rmgr.model.servers import ServerLoad
from rmgr.model.states import Reason
from rmgr.model.units import format_duration, format_size
from rmgr.runner.host.contain import processor_seconds
from rmgr.runner.python import served
from rmgr.runtime import machine
from rmgr.runtime.machine import Log

#: Time between SIGTERM and SIGKILL: a Python function gives way at once, and its worker lives on.
GRACE_US = 1_000_000
#: A call that comes back unbegun this often cannot be begun here.
_TRIES = 3
#: Pause before a lost slot is opened again; it doubles each time that the slot is lost before it was up.
_REOPEN_S, _REOPEN_MOST_S = 0.5, 10.0
#: Most bytes shown of the end of a dead function's stderr.
_SHOWN_BYTES = 4096
#: Most bytes kept of what one call writes to stdout or stderr.
_OUTPUT_CAP = 1 << 20
_FUNCTION = pickle.dumps(served.call, 5)
#: Other work is measured over at least this time: while a server starts, the machine is busy for a moment.
_LEAST_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A call to run. number: in this server, increasing. limit_s: what is left of its time; limits: words for the origin of that limit.

    order: arguments of `served.call` in the worker. environ: for the function.
    """

    number: int
    name: str
    order: tuple[object, ...]
    environ: dict[str, str]
    limit_s: float
    limits: str
    memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a run ended. kind: OK, FAILED, TIMEOUT, CANCELLED. bytes: of the answer's file."""

    number: int
    kind: str
    error: str = ""
    traceback: str = ""
    bytes: int = 0
    ran_us: int = 0


@dataclass(slots=True, eq=False)
class _Seat:
    """A place for one call. slot: None while none can be opened."""

    number: int
    slot: Slot | None = None
    worker: Worker | None = None
    run: Run | None = None
    seq: int = 0
    tries: int = 0
    cancelled: bool = False
    losses: int = 0
    opens_s: float = field(default=0.0)


class Work:
    """All slots of a server, for one thread.

    Args:
        runner: of the slots; its events go to `take_in`. count: of slots. calls: what workers import, as module:callable.
        environ: of workers. sys_path: where functions are found.
        python: interpreter of workers, "" = this one.
    """

    def __init__(
        self,
        runner: NodeRunner,
        count: int,
        *,
        calls: Sequence[str],
        environ: Mapping[str, str],
        sys_path: Sequence[str],
        log: Log,
        python: str = "",
    ) -> None:
        self._runner = runner
        initializer = pickle.dumps((served.warm, (tuple(calls),)), 5)
        self._spec = WorkerSpec(environ=dict(environ), sys_path=tuple(sys_path), initializer=initializer)
        self._log = log
        self._python = python
        self._seats = [_Seat(number) for number in range(count)]
        for seat in self._seats:
            self._open(seat)

    @property
    def count(self) -> int:
        """Number of slots."""
        return len(self._seats)

    @property
    def free(self) -> int:
        """Number of slots that could begin a call now."""
        return sum(seat.run is None and seat.slot is not None for seat in self._seats)

    def processor_s(self) -> float:
        """Returns the processor time of all slots so far; grows, except when a slot is lost."""
        return sum(processor_seconds(seat.slot.pid)[0] for seat in self._seats if seat.slot is not None)

    def start(self, run: Run) -> None:
        """Begins a call in a free slot: check `free` first. `take_in` returns its end."""
        seat = next(seat for seat in self._seats if seat.run is None and seat.slot is not None)
        seat.run, seat.tries, seat.cancelled = run, 0, False
        self._send(seat)

    def stop(self, number: int) -> None:
        """Cancels a run; its end follows."""
        for seat in self._seats:
            if seat.run is not None and seat.run.number == number:
                seat.cancelled = True
                if seat.worker is not None:
                    seat.worker.stop(seat.seq, reason=Reason.USER_CANCEL, grace_us=GRACE_US)

    def take_in(self, event: workevents.NodeEvent) -> list[Ended]:
        """Returns the ends of runs that an event of the runner means."""
        match event:
            case workevents.TasksEnded():
                return [ended for end in event.ends for ended in self._on_end(end)]
            case workevents.WorkerEnded():
                return self._on_worker_ended(event)
            case workevents.WorkerFailed():
                seat = self._seat_of(event.worker)
                self._log.warning("worker_failed", slot=event.slot.name, error=event.summary)
                if seat is not None and seat.run is not None:
                    seat.tries = _TRIES  # the next worker would fail, too
            case workevents.TasksReturned():
                seat = next((seat for seat in self._seats if seat.seq in event.seqs), None)
                if seat is not None and seat.run is not None:
                    return self._again(seat, "it was stopped before it began")
            case workevents.WorkerUnblocking():
                event.worker.grant(event.seq)
            case workevents.SlotUp():
                seat = next((seat for seat in self._seats if seat.slot is event.slot), None)
                if seat is not None:
                    seat.losses = 0
            case workevents.SlotLost():
                return self._on_slot_lost(event)
            case workevents.Surprised():
                self._log.warning("slot_surprised", slot=event.slot.name, what=event.what, detail=event.detail)
        return []

    def look(self) -> None:
        """Opens lost slots again. Called about once a second."""
        now_s = machine.monotonic()
        for seat in self._seats:
            if seat.slot is None and now_s >= seat.opens_s:
                self._open(seat)

    def close(self) -> None:
        """Ends everything that runs. Cost: some tenths of a second."""
        self._runner.close(timeout_s=5.0)

    # -- inside

    def _open(self, seat: _Seat) -> None:
        try:
            seat.slot = self._runner.open_slot(seat.number, python=self._python)
            seat.worker = seat.slot.start_worker(self._spec)
        except OSError as error:
            self._lost(seat, str(error))

    def _lost(self, seat: _Seat, why: str) -> None:
        seat.slot = seat.worker = None
        seat.opens_s = machine.monotonic() + min(_REOPEN_MOST_S, _REOPEN_S * 2**seat.losses)
        seat.losses = min(seat.losses + 1, 10)
        self._log.warning("slot_lost", slot=f"s{seat.number}", why=why)

    def _seat_of(self, worker: Worker) -> _Seat | None:
        return next((seat for seat in self._seats if seat.worker is worker), None)

    def _send(self, seat: _Seat) -> None:
        run, slot = seat.run, seat.slot
        assert run is not None
        assert slot is not None
        spec = replace(self._spec, memory_bytes=run.memory_bytes)
        worker = seat.worker
        if worker is None or worker.is_leaving or worker.spec != spec:
            if worker is not None and not worker.is_leaving:
                worker.stop(grace_us=0)
            worker = seat.worker = slot.start_worker(spec)
        seat.seq = self._runner.next_seq()
        shape = BatchShape(
            submission=run.number,
            limit_us=max(1, round(run.limit_s * 1e6)),
            grace_us=GRACE_US,
            memory_bytes=run.memory_bytes,
            output_cap=_OUTPUT_CAP,
            environ=run.environ,
        )
        item = TaskItem(seat.seq, 0, payload=pickle.dumps((run.order, {}), 5))
        if not worker.send(TaskBatch(shape=shape, function="served.call", blob=_FUNCTION, items=(item,))):
            seat.worker = None  # it has just ended: its last events do not concern this run
            self._send(seat)

    def _again(self, seat: _Seat, why: str) -> list[Ended]:
        """Gives a call that has not begun to another worker."""
        run = seat.run
        assert run is not None
        seat.tries += 1
        if seat.cancelled:
            return self._done(seat, Ended(number=run.number, kind="CANCELLED", error="cancelled before it began"))
        if seat.tries >= _TRIES:
            error = f"{run.name} could not be begun: {why}"
            return self._done(seat, Ended(number=run.number, kind="FAILED", error=error))
        if seat.slot is None:
            return self._done(seat, Ended(number=run.number, kind="FAILED", error=f"{run.name} could not be begun: its slot was lost"))
        self._send(seat)
        return []

    def _done(self, seat: _Seat, ended: Ended) -> list[Ended]:
        seat.run, seat.seq = None, 0
        return [ended]

    def _on_end(self, end: TaskEnd) -> list[Ended]:
        extra = end.extra
        shown = _shown(extra.out if extra is not None else NO_OUTPUT, extra.err if extra is not None else NO_OUTPUT)
        seat = next((seat for seat in self._seats if seat.seq == end.seq), None)
        if seat is None or seat.run is None:
            return []
        run = seat.run
        number, ran_us = run.number, end.elapsed_us
        if extra is None or not extra.reason:
            try:
                told = served.answer_of(end.data)
            except ValueError as spoilt:
                told = served.Answer(kind="FAILED", error=f"{run.name} has spoilt its worker, and what that says of it: {spoilt}")
                if seat.worker is not None:
                    seat.worker.stop(grace_us=0)
            ended = Ended(number=number, kind=told.kind, error=told.error, traceback=told.traceback, bytes=told.bytes, ran_us=ran_us)
            return self._done(seat, ended)
        kind, error = _meaning(run, extra.reason, extra.summary, ran_us)
        return self._done(seat, Ended(number=number, kind=kind, error=error, traceback=shown, ran_us=ran_us))

    def _on_worker_ended(self, event: workevents.WorkerEnded) -> list[Ended]:
        shown = _shown(event.out, event.err)
        seat = self._seat_of(event.worker)
        if seat is not None:
            seat.worker = None
            if event.worker.is_ready and seat.slot is not None and not seat.slot.is_lost:
                seat.worker = seat.slot.start_worker(self._spec)  # for the next call
        seat = next((seat for seat in self._seats if seat.seq and seat.seq in (event.seq, *event.unstarted)), None)
        if seat is None or seat.run is None:
            return []
        if seat.seq != event.seq:
            return self._again(seat, f"its worker ended ({event.detail or event.reason or 'for no known reason'})")
        run = seat.run
        detail = event.detail
        match event.reason:
            case Reason.EXIT_CODE:
                detail = f"it ended its process with exit code {event.exit_code}"
            case Reason.SIGNAL:
                detail = f"it crashed: {event.detail.removeprefix('the task ')}"
            case Reason.WORKER_LOST:
                detail = event.detail or "its process was lost"
        kind, error = _meaning(run, event.reason, detail, event.elapsed_us)
        return self._done(seat, Ended(number=run.number, kind=kind, error=error, traceback=shown, ran_us=event.elapsed_us))

    def _on_slot_lost(self, event: workevents.SlotLost) -> list[Ended]:
        seat = next((seat for seat in self._seats if seat.slot is event.slot), None)
        if seat is None:
            return []
        if not event.expected:
            self._lost(seat, event.why)
        if seat.run is None:
            return []
        error = f"{seat.run.name} was ended: its slot was lost ({event.why})"
        return self._done(seat, Ended(number=seat.run.number, kind="FAILED", error=error))


def _meaning(run: Run, reason: Reason, detail: str, ran_us: int) -> tuple[str, str]:
    """Returns (kind, one line) for an end that the function did not choose, or chose by ending its process."""
    ran = format_duration(ran_us / 1e6)
    match reason:
        case Reason.TIME_LIMIT:
            return "TIMEOUT", f"{run.name} was killed after {ran}: {run.limits}"
        case Reason.USER_CANCEL:
            return "CANCELLED", f"{run.name} was cancelled after {ran}"
        case Reason.OUT_OF_MEMORY:
            limit = f"more memory than its {format_size(run.memory_bytes)}" if run.memory_bytes else "more memory than there is"
            return "FAILED", f"{run.name} was killed after {ran}: it used {limit}"
        case Reason.START_FAILED:
            return "FAILED", f"{run.name} could not be begun: {detail}"
        case _:
            return "FAILED", f"{run.name} failed after {ran}: {detail or reason}"


def _shown(*outputs: Output) -> str:
    """Returns the end of the last output, for the traceback; removes the files of outputs."""
    text = b""
    for output in outputs:
        data = output.data
        if output.path:
            with contextlib.suppress(OSError):
                with open(output.path, "rb") as file:
                    file.seek(max(0, os.fstat(file.fileno()).st_size - _SHOWN_BYTES))
                    data = file.read()
                os.unlink(output.path)
        text = data or text
    return text[-_SHOWN_BYTES:].decode("utf-8", "replace")


# -- the load --------------------------------------------------------------------------------------------------------------
# The current and past load of a server: the answer to a gateway's question.


class LoadMeter:
    """Measures the load of a server.

    Args: slots: of the server. cores: of the machine. now_s: monotonic. busy_s: returns processor seconds of the whole machine since
        boot, None if unknown. own_s: the same for this server's slots.
    """

    def __init__(self, slots: int, cores: int, now_s: float, *, busy_s: Callable[[], float | None], own_s: Callable[[], float]) -> None:
        self._free_cores = max(0, cores - slots)
        self._busy_s, self._own_s = busy_s, own_s
        self._begun_s = self._changed_s = now_s
        self._load = 0
        self._load_s = 0.0  #: load x time
        self._told: dict[object, tuple[float, float]] = {}  #: by asker: when, load x time then
        self._other = 0.0
        self._looked: tuple[float, float, float] = (now_s, busy_s() or 0.0, own_s())
        self._arrivals = 0
        self._served = 0
        self._mean_s = self._squares = 0.0

    def arrived(self) -> None:
        """Counts an accepted call."""
        self._arrivals += 1

    def served(self, seconds: float) -> None:
        """Takes in the run time of a call."""
        self._served += 1
        off = seconds - self._mean_s
        self._mean_s += off / self._served
        self._squares += off * (seconds - self._mean_s)

    def changed(self, now_s: float, load: int) -> None:
        """Takes in a change of the number of running and waiting calls."""
        self._load_s += self._load * (now_s - self._changed_s)
        self._changed_s, self._load = now_s, load

    def now(self, now_s: float, running: int, waiting: int, who: object) -> ServerLoad:
        """Returns the load; `mean_load` covers the time since the last question of `who`."""
        self.changed(now_s, running + waiting)
        at_s, load_s = self._told.get(who, (self._begun_s, 0.0))
        self._told[who] = now_s, self._load_s
        lasted_s = now_s - at_s
        self._look(now_s)
        return ServerLoad(
            running=running,
            waiting=waiting,
            other=self._other,
            mean_load=(self._load_s - load_s) / lasted_s if lasted_s > 0 else float(self._load),
            arrivals_per_s=self._arrivals / (now_s - self._begun_s) if now_s > self._begun_s else 0.0,
            service_s=self._mean_s,
            service_cv=math.sqrt(self._squares / self._served) / self._mean_s if self._served and self._mean_s > 0 else 0.0,
        )

    def _look(self, now_s: float) -> None:
        """Computes OTHER: cores busy with other processes, beyond the cores that are no slots."""
        at_s, busy_s, own_s = self._looked
        lasted_s = now_s - at_s
        if lasted_s < _LEAST_S:
            return
        busy = self._busy_s()
        if busy is None:
            return
        own = self._own_s()
        others = (busy - busy_s - max(0.0, own - own_s)) / lasted_s
        self._looked = now_s, busy, own
        self._other = max(0.0, others - self._free_cores)


def machine_busy_s() -> float | None:
    """Returns processor seconds used by all processes since the machine's boot, None if the kernel does not say."""
    try:
        first = Path("/proc/stat").read_text(encoding="ascii").partition("\n")[0].split()
        user, nice, system, _, _, irq, softirq = (int(word) for word in first[1:8])
    except (OSError, ValueError):
        return None
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")
