"""The turner of a node as its Starter sees it: the parts that it turns, the rows that it was given, and another one when it dies."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from rmgr.adapters.host import leftovers
from rmgr.adapters.host.channel import Channel, Loop
from rmgr.adapters.host.slot import Slot
from rmgr.adapters.host.workevents import PartBegan, PartsServed, PartStubborn, TurnerRestarted, TurnEvent
from rmgr.model.wire import stream, turns
from rmgr.runner.host import home

#: A turner that dies is followed by another one after so long.
_AGAIN_S = 0.5


class Turner:
    """Stops and continues parts of gangs. Every method returns at once, from the Starter's one thread; events come on the selector thread.

    Args:
        directory: of the node, where the program is written down for the next incarnation. freezer: "" = parts are stopped by signals.
    """

    def __init__(
        self,
        loop: Loop,
        directory: Path,
        *,
        environ: Mapping[str, str],
        uses_freezer: bool,
        emit: Callable[[list[TurnEvent]], None],
    ) -> None:
        self._loop = loop
        self._directory = directory
        self._environ = environ
        self._uses_freezer = uses_freezer
        self._emit = emit
        self._parts: dict[str, turns.AddPart] = {}
        self._held: set[str] = set()
        self._rows = turns.Rows(())
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None
        self._closed = False

    @property
    def pid(self) -> int:
        """Of the program, 0 = there is none."""
        return self._process.pid if self._process is not None else 0

    def add(self, part: str, slot: Slot) -> None:
        """The part's work runs in this slot, and stands still until its first turn. Raises: OSError when no turner can be started."""
        self._parts[part] = turns.AddPart(part, slot.pid, slot.freeze_file if self._uses_freezer else "")
        if self._channel is None:
            self._start()
        else:
            self._order(self._parts[part])

    def drop(self, part: str) -> None:
        """It is over."""
        if self._parts.pop(part, None) is not None:
            self._held.discard(part)
            self._order(turns.DropPart(part))

    def rows(self, rows: tuple[tuple[int, tuple[str, ...]], ...]) -> None:
        """Whose turn is when (CLOCK_BOOTTIME, ns), in place of what was told before."""
        self._rows = turns.Rows(rows)
        self._order(self._rows)

    def let_go(self, part: str, until_ns: int) -> None:
        """It runs until then, whosever turn it is."""
        self._order(turns.LetGo(part, until_ns))

    def hold(self, part: str, on: bool) -> None:
        """It is suspended (on): its turns pass idle."""
        (self._held.add if on else self._held.discard)(part)
        self._order(turns.HoldPart(part, on))

    def close(self) -> None:
        """Ends the program; what its parts still run is killed. Idempotent."""
        self._closed = True
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(2.0)
            if self._process.poll() is None:
                self._process.kill()
                self._process.wait(2.0)

    def _order(self, frame: turns.ToTurner) -> None:
        if self._channel is not None:
            self._channel.send(stream.encode(frame))

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "rmgr.runner.turner", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                cwd="/",
                env={**self._environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(home.ROOT), self._environ.get("PYTHONPATH", ""))))},
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        leftovers.record_spawner(self._directory, "turner", pid=self._process.pid, marker="")
        self._channel = Channel(self._loop, ours, turns.FromTurner, on_frames=self._on_frames, on_end=self._on_end)
        for part in self._parts.values():
            self._order(part)
        for held in self._held:
            self._order(turns.HoldPart(held, on=True))
        self._order(self._rows)

    # -- on the selector thread --------------------------------------------------------------------------------------------

    def _on_frames(self, received: list[object], _fds: list[int]) -> None:
        events: list[TurnEvent] = []
        for frame in received:
            match frame:
                case turns.Began():
                    events.append(PartBegan(frame.part))
                case turns.Served():
                    events.append(PartsServed(frame.parts, frame.switches, frame.late, frame.out_of_turn_ns))
                case turns.Stubborn():
                    events.append(PartStubborn(frame.part, frame.killed))
        self._emit(events)

    def _on_end(self, _why: str) -> None:
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(1.0)
        if not self._closed:
            self._loop.later(_AGAIN_S, self._again)

    def _again(self) -> None:
        if self._closed:
            return
        try:
            self._start()
        except OSError:
            self._loop.later(_AGAIN_S, self._again)
        else:
            self._emit([TurnerRestarted()])
