"""What the Submitter knows of the cluster: settings, node records, records of submissions, and roughly how full the queues are."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, TypeVar

from rmgr.coord import validity
from rmgr.coord.decisions.rights import no_submission
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Stat
from rmgr.coord.protocol.ports import Coordinator
from rmgr.errors import RmgrError
from rmgr.model.node import NodeRecord
from rmgr.model.queue import ClusterSettings
from rmgr.procedures.snapshot import fetch, read_names, read_record
from rmgr.runtime import machine
from rmgr.runtime.story import Stories, Story, StoryLoop
from rmgr.submitter.port import Stored

T = TypeVar("T")

#: Age at which cached answers are read again (s).
FRESH_S = 5.0


class Lately(Generic[T]):
    """Caches the answer of `read`, which takes a timeout (s), for 5 s. Thread-safe, though two threads may read at once."""

    def __init__(self, read: Callable[[float], T]) -> None:
        self._read = read
        self._read_s = -math.inf
        self._known: T

    def __call__(self, *, timeout_s: float) -> T:
        if machine.monotonic() - self._read_s >= FRESH_S:
            self._known = self._read(timeout_s)
            self._read_s = machine.monotonic()
        return self._known


class ClusterRecords:
    """Reads settings and node records, and keeps them for 5 s. Thread-safe."""

    def __init__(self, coordinator: Coordinator) -> None:
        self.known_settings = ClusterSettings()
        self.settings = Lately(self._read_settings)
        self.nodes = Lately(lambda timeout_s: read_nodes(coordinator, timeout_s=timeout_s))
        self._coordinator = coordinator

    def most_pending(self, queue: str) -> int:
        """Returns how many blocks may wait in a queue, 0 = no limit, by the settings last read. Never waits."""
        spec = self.known_settings.queue(queue)
        return spec.max_pending_blocks if spec is not None else 0

    def _read_settings(self, timeout_s: float) -> ClusterSettings:
        self.known_settings = read_record(self._coordinator, paths.CONFIG, ClusterSettings, timeout_s=timeout_s) or self.known_settings
        return self.known_settings


def read_nodes(coordinator: Coordinator, *, timeout_s: float) -> list[NodeRecord]:
    """Returns the records of all nodes, by name. Leaves out records that cannot be read, as those of a newer release."""
    names = read_names(coordinator, paths.NODES, timeout_s=timeout_s)
    found = fetch([paths.node(name) for name in sorted(names)], coordinator.get, timeout_s=timeout_s)
    records = []
    for item in found:
        if item is not None:
            with suppress(RmgrError):
                records.append(validity.decode(item.data, NodeRecord, paths.NODES))
    return records


def read_stored(coordinator: Coordinator, number: int, *, timeout_s: float) -> Stored:
    """Reads record and tail of a submission. Raises NotFound, CoordinationUnavailable."""
    where = [paths.sub(number), paths.tail(number)]
    record, tail = fetch(where, lambda path: coordinator.get(path, timeout_s=timeout_s), timeout_s=timeout_s + 1)
    if record is None or tail is None:
        raise no_submission(number)
    return Stored(
        submission=validity.submission(record.data, number),
        version=record.version,
        tail=validity.tail(tail, number),
        tail_version=tail.version,
    )


# -- how full the queues are ------------------------------------------------------------------------------------------------------

#: Age at which a measurement is renewed, and pause between two looks at a full queue (s).
_GAUGE_FRESH_S = 1.0
FULL_LOOK_S = 0.2


@dataclass(slots=True)
class _Level:
    blocks: int = 0
    measured_s: float | None = None
    measuring: Future[Stat | None] | None = None


class Gauge:
    """Estimates how full the queues of this Submitter are: counts waiting blocks beside the commits, rarely before them.

    Lives on the Submitter's thread. A queue is full if the next block would exceed its `max_pending_blocks`.
    """

    def __init__(self, loop: StoryLoop, coordinator: Coordinator) -> None:
        self._loop = loop
        self._coordinator = coordinator
        self._stories = Stories(loop)
        self._levels: dict[str, _Level] = {}

    def admit(self, queue: str, blocks: int, cap: int) -> Story[bool]:
        """Returns whether `blocks` more may enter, and counts them if so. False: ask again after `FULL_LOOK_S`. cap: 0 = no limit."""
        if cap <= 0 or not blocks:
            return True
        level = self._levels.setdefault(queue, _Level())
        known_s = level.measured_s
        if known_s is None or machine.monotonic() - known_s > (_GAUGE_FRESH_S if level.blocks < cap // 2 else FULL_LOOK_S):
            if (measuring := level.measuring) is None:
                measuring = level.measuring = self._coordinator.stat(paths.pending(queue))
                self._stories.begin(self._measure(level, measuring))
            if known_s is None or level.blocks >= cap // 2:
                with suppress(RmgrError):  # the commit that waits here meets the same error
                    yield measuring
        if level.blocks + blocks > cap:
            return False
        level.blocks += blocks
        return True

    def admit_now(self, queue: str, blocks: int, cap: int, timeout_s: float) -> bool:
        """Admits as `admit` does, from any other thread, waiting for the measurement. Also False if that takes longer than `timeout_s`."""
        if cap <= 0 or not blocks:
            return True
        answer: Future[bool] = Future()

        def ask() -> Story[None]:
            answer.set_result((yield from self.admit(queue, blocks, cap)))

        self._loop.post(lambda: self._stories.begin(ask()))
        try:
            return machine.result(answer, timeout_s)
        except TimeoutError:
            return False

    def _measure(self, level: _Level, asked: Future[Stat | None]) -> Story[None]:
        with suppress(RmgrError):  # as above
            stat = yield asked
            level.blocks = stat.children if stat else 0
        level.measuring, level.measured_s = None, machine.monotonic()
