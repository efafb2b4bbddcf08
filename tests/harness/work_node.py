"""A node's slots under test: real spawners and workers, their events, and waits with deadlines."""

from __future__ import annotations

import hashlib
import os
import pickle
import queue
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import cloudpickle
import psutil

from rmgr.adapters.host.process import CgroupConfig, NodeRunner, Slot, Worker, WorkerSpec
from rmgr.adapters.host.workevents import CommandsEnded, SlotUp, TasksEnded
from rmgr.model.frames import BatchShape, CommandBatch, CommandEnd, CommandItem, TaskBatch, TaskEnd, TaskItem
from tests.harness.waiting import eventually

DEADLINE_S = 60.0


class WorkNode:
    """A NodeRunner with a queue of its events; a context manager that checks at its end that nothing is left."""

    def __init__(self, directory: Path, *, cgroups: bool = True, **options: Any) -> None:
        self.directory = directory
        self._queue: queue.Queue[object] = queue.Queue()
        self.seen: list[object] = []
        self.ends: dict[int, Any] = {}
        self.messages = 0  # number of messages that brought events
        self.runner = NodeRunner(
            directory=str(directory), node="n1", on_events=self._enqueue, cgroups=CgroupConfig() if cgroups else None, **options
        )
        self.markers: list[str] = []

    def _enqueue(self, events: list[Any]) -> None:
        for event in events:
            self._queue.put(event)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.runner.close(timeout_s=10)
        assert not self.directory.exists()
        assert [process for marker in self.markers for process in marked(marker)] == []

    def slot(self, number: int = 0, **options: Any) -> Slot:
        """Opens a slot and waits until it is up."""
        slot = self.runner.open_slot(number, **options)
        self.markers.append(slot.marker)
        self.wait(SlotUp, lambda event: event.slot is slot)
        return slot

    def worker(self, slot: Slot, spec: WorkerSpec | None = None) -> Worker:
        """Starts a worker and waits until it is ready."""
        worker = slot.start_worker(spec or WorkerSpec())
        eventually(lambda: worker.is_ready, "a worker that is ready")
        return worker

    def wait(
        self, kind: type | tuple[type, ...], condition: Callable[[Any], bool] = lambda event: True, timeout_s: float = DEADLINE_S
    ) -> Any:
        """Returns the first event of `kind` that satisfies the condition, seen or yet to come. Ends of work are in `ends` instead."""
        deadline = time.monotonic() + timeout_s
        for event in self.seen:
            if isinstance(event, kind) and condition(event):
                self.seen.remove(event)
                return event
        while True:
            event = self.next(deadline)
            assert event is not None, f"no {kind} in {timeout_s} s; seen: {[type(other).__name__ for other in self.seen]}"
            if isinstance(event, kind) and condition(event):
                return event
            if not isinstance(event, (CommandsEnded, TasksEnded)):
                self.seen.append(event)

    def next(self, deadline: float) -> object | None:
        """Returns the next event, or None if none comes before `deadline` (monotonic)."""
        try:
            event = self._queue.get(timeout=max(0.001, deadline - time.monotonic()))
        except queue.Empty:
            return None
        if isinstance(event, (CommandsEnded, TasksEnded)):
            self.messages += 1
            for end in event.ends:
                assert end.seq not in self.ends, f"{end.seq} ended twice"
                self.ends[end.seq] = end
        return event

    def _end(self, seq: int, timeout_s: float) -> Any:
        deadline = time.monotonic() + timeout_s
        while seq not in self.ends:
            event = self.next(deadline)
            assert event is not None, f"{seq} has not ended in {timeout_s} s; seen: {[type(other).__name__ for other in self.seen]}"
            if not isinstance(event, (CommandsEnded, TasksEnded)):
                self.seen.append(event)
        return self.ends[seq]

    # -- commands ----------------------------------------------------------------------------------------------------

    def run(self, slot: Slot, *argv: str, shape: BatchShape | None = None, **options: Any) -> int:
        """Queues one command; returns its seq."""
        seq = self.runner.next_seq()
        item = {key: options.pop(key) for key in ("out", "err", "directory", "index", "attempt", "label") if key in options}
        item.setdefault("index", 0)
        batch = CommandBatch(shape=shape or BatchShape(submission=42), argv=argv, items=(CommandItem(seq, **item),), **options)
        assert slot.run(batch)
        return seq

    def shell(self, slot: Slot, text: str, **options: Any) -> int:
        """Queues `sh -c text`."""
        return self.run(slot, "sh", "-c", text, **options)

    def end_of(self, seq: int, timeout_s: float = DEADLINE_S) -> CommandEnd:
        """Waits for the end of command `seq`, and returns it."""
        end: CommandEnd = self._end(seq, timeout_s)
        return end

    # -- tasks -------------------------------------------------------------------------------------------------------

    def batch(self, function: Callable[..., Any], *calls: tuple[Any, ...], shape: BatchShape | None = None) -> TaskBatch:
        """Returns a batch of calls."""
        blob = cloudpickle.dumps(function)
        items = tuple(
            TaskItem(self.runner.next_seq(), index, payload=cloudpickle.dumps((args, {}))) for index, args in enumerate(calls or ((),))
        )
        return TaskBatch(shape=shape or BatchShape(submission=42), function=hashlib.sha256(blob).hexdigest(), blob=blob, items=items)

    def call(self, worker: Worker, function: Callable[..., Any], *args: Any, shape: BatchShape | None = None) -> int:
        """Sends one call to a worker; returns its seq."""
        batch = self.batch(function, args, shape=shape)
        assert worker.send(batch)
        return batch.items[0].seq

    def ended(self, seq: int, timeout_s: float = DEADLINE_S) -> TaskEnd:
        """Waits for the end of task `seq`, and returns it."""
        end: TaskEnd = self._end(seq, timeout_s)
        return end

    def result(self, seq: int) -> Any:
        """Waits for task `seq`, and returns its result."""
        end = self.ended(seq)
        assert end.extra is None or not end.extra.reason, end.extra
        return pickle.loads(end.data) if end.pickled else end.data


def error_of(end: TaskEnd) -> BaseException:
    """Returns the exception that a task raised, as its client sees it."""
    assert end.extra is not None
    error = pickle.loads(end.extra.error)
    assert isinstance(error, BaseException)
    return error


def marked(marker: str) -> list[psutil.Process]:
    """Returns the living processes that a slot has started, found by the mark in their environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and process.environ().get("RMGR_SLOT") == marker:
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


def is_alive(pid: int) -> bool:
    """Whether there is a process, not a zombie, with this pid."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def pid_in(path: Path) -> int:
    """Waits for the pid that work writes to a file, and returns it."""
    return int(eventually(lambda: path.read_text().strip() if path.exists() else "", f"{path} has no pid"))


def boottime_ns() -> int:
    """Reads the clock of leases."""
    return time.clock_gettime_ns(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


assert os.name == "posix"
