"""The turner of a node as its Starter sees it: the parts that it turns, the rows that it was given, and another one when it dies."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

from rmgr.adapters.host import leftovers
from rmgr.adapters.host.channel import Channel, end_program, start_program
from rmgr.adapters.host.slot import Slot
from rmgr.adapters.host.workevents import NodeEvent, PartBegan, PartsServed, PartStubborn, TurnerRestarted
from rmgr.model.cluster.node import Freezer
from rmgr.model.wire import stream, turns
from rmgr.runner.host import home

if TYPE_CHECKING:
    from rmgr.adapters.host.process import NodeRunner

#: Turners are started so far apart at least.
_APART_S = 1.0
_NONE = (0, 0)


class Turner:
    """Stops and continues parts of gangs. Every method returns at once, from any thread; events come on the selector thread.

    What it counts goes on over the death of a program, but for the half second that this one had not told.
    """

    def __init__(self, node: NodeRunner) -> None:
        self._node = node
        self._lock = threading.Lock()  #: of all below: the Starter's thread and that of the loop
        self._parts: dict[str, turns.AddPart] = {}
        self._held: set[str] = set()
        self._let_go: dict[str, int] = {}
        self._rows = turns.Rows(())
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None
        self._started_s = -_APART_S
        self._closed = False
        self._served: dict[str, tuple[int, int]] = {}  #: of each part, as last told to the Starter (ns, turns)
        self._served_before: dict[str, tuple[int, int]] = {}  #: of it under the turners before
        self._counts = self._counts_before = (0, 0, 0)
        self.restarts = 0

    @property
    def pid(self) -> int:
        """Of the program, 0 = there is none."""
        return self._process.pid if self._process is not None else 0

    def add(self, part: str, slot: Slot) -> None:
        """The part's work runs in this slot, and stands still until its first turn. Raises: OSError when no turner can be started."""
        with self._lock:
            added = turns.AddPart(part, slot.pid, slot.freeze_file if self._node.freezer == Freezer.V2 else "")
            self._parts[part] = added
            self._served_before.pop(part, None)
            if self._process is not None:
                self._order(added)  # where the program has just died the next one is told
                return
            try:
                self._start()
            except OSError:
                del self._parts[part]
                raise

    def drop(self, part: str) -> None:
        """It is over."""
        with self._lock:
            if self._parts.pop(part, None) is not None:
                self._held.discard(part)
                self._let_go.pop(part, None)
                self._order(turns.DropPart(part))

    def rows(self, rows: tuple[tuple[int, tuple[str, ...]], ...]) -> None:
        """Whose turn is when (CLOCK_BOOTTIME, ns), in place of what was told before."""
        with self._lock:
            self._rows = turns.Rows(rows)
            self._order(self._rows)

    def let_go(self, part: str, until_ns: int) -> None:
        """It runs until then, whosever turn it is; 0: it returns to its turns."""
        with self._lock:
            if part in self._parts:
                self._let_go[part] = until_ns
                self._order(turns.LetGo(part, until_ns))

    def hold(self, part: str, on: bool) -> None:
        """It is suspended (on): its turns pass idle."""
        with self._lock:
            if part in self._parts:
                (self._held.add if on else self._held.discard)(part)
                self._order(turns.HoldPart(part, on))

    def close(self) -> None:
        """Ends the program; what its parts still run is killed. Idempotent."""
        with self._lock:
            self._closed = True
            channel, self._channel = self._channel, None
            process = self._process
        if channel is not None:
            channel.close()
        if process is not None:
            end_program(process, 2.0)

    # -- under the lock ----------------------------------------------------------------------------------------------------

    def _order(self, frame: turns.ToTurner) -> None:
        if self._channel is not None:
            self._channel.send(stream.encode(frame))

    def _start(self) -> None:
        self._started_s = time.monotonic()
        argv = [sys.executable, "-P", "-m", "rmgr.runner.turner"]
        process, ours = start_program(lambda fd: [*argv, str(fd)], cwd="/", environ=self._node.environ, root=str(home.ROOT))
        try:
            leftovers.record_spawner(self._node.directory, "turner", pid=process.pid, marker="")
        except OSError:  # one that is not written down would outlive a Starter that is killed
            ours.close()
            end_program(process, 0.0)
            raise
        self._process = process
        self._channel = Channel(self._node.loop, ours, turns.FromTurner, on_frames=self._on_frames, on_end=self._on_end)
        for part in self._parts.values():
            self._order(part)
        for held in sorted(self._held):
            self._order(turns.HoldPart(held, on=True))
        for part_name, until_ns in self._let_go.items():
            self._order(turns.LetGo(part_name, until_ns))
        self._order(self._rows)

    # -- on the selector thread --------------------------------------------------------------------------------------------

    def _on_frames(self, received: list[object], _fds: list[int]) -> None:
        events: list[NodeEvent] = []
        for frame in received:
            match frame:
                case turns.Began():
                    events.append(PartBegan(frame.part))
                case turns.Served():
                    events.append(self._in_all(frame))
                case turns.Stubborn():
                    events.append(PartStubborn(frame.part, frame.killed))
        self._node.on_events(events)

    def _in_all(self, told: turns.Served) -> PartsServed:
        """With what turners before have counted."""
        with self._lock:
            parts = []
            for part, ns, count, runs in told.parts:
                before_ns, before = self._served_before.get(part, _NONE)
                self._served[part] = (before_ns + ns, before + count)
                parts.append((part, *self._served[part], runs))
            for gone in self._served.keys() - self._parts.keys():
                del self._served[gone]
                self._served_before.pop(gone, None)
            switches, late, out_ns = self._counts_before
            self._counts = (switches + told.switches, late + told.late, out_ns + told.out_of_turn_ns)
            return PartsServed(tuple(parts), *self._counts)

    def _on_end(self, _why: str) -> None:
        process = self._process
        if process is not None:
            end_program(process, 0.5)  # before another one turns what it may still turn
        with self._lock:
            self._channel = None
            if not self._closed:
                self._node.loop.later(max(0.0, self._started_s + _APART_S - time.monotonic()), self._again)

    def _again(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._served_before, self._counts_before = dict(self._served), self._counts
            try:
                self._start()
            except OSError:
                self._node.loop.later(_APART_S, self._again)
                return
            self.restarts += 1
        self._node.on_events([TurnerRestarted()])
