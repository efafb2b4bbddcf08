"""The turner of a node: at the boundaries of slots it stops the parts of gangs that leave, and continues those that come.

Exec'd by the Starter (`python -m rmgr.runner.turner FD`) with one end of a socket, single-threaded, with the Starter's own rights: work
of users is never asked to give way by itself. It knows the rows of the next half minute, so it goes on while its Starter stands still;
when the socket closes (the Starter died) it kills all parts. Spawners are never stopped.

A part is stopped by the freezer of its control group (version 2), or by SIGSTOP to everything below its spawner, again and again until no
new process is found. Nobody who comes is continued before all who leave stand still.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import time
from collections import deque
from dataclasses import dataclass
from typing import NoReturn

from rmgr.model.wire import stream
from rmgr.model.wire.stream import FrameError, FrameReader
from rmgr.model.wire.turns import AddPart, Began, DropPart, HoldPart, LetGo, Rows, Served, Stubborn, ToTurner
from rmgr.runner.host.contain import below, cpu_ticks, send, state_of, write_file
from rmgr.runner.host.kernel import CLOCK

_MS = 1_000_000
#: Who does not stand still after this is late; after the second he is killed, if he computes.
_LATE_NS, _STUBBORN_NS = 20 * _MS, 1_000 * _MS
#: Between two looks whether those that leave stand still.
_POLL_S = 0.0003
#: How often a part that is stopped by signals is looked at in between: a process of its user may have continued it.
_LOOK_NS = 50 * _MS
_REPORT_NS = 500 * _MS
_RECEIVE = 256 * 1024
#: Messages that wait for a Starter that stands still.
_MOST_WAITING = 256


@dataclass(slots=True, eq=False)
class _Part:
    """since_ns: it runs since then. is_awake: it is stopped, and something of it sleeps where no signal reaches."""

    name: str
    spawner: int
    freeze: str
    runs: bool = False
    has_begun: bool = False
    is_held: bool = False
    is_awake: bool = False
    until_ns: int = 0  #: it was let go until then
    since_ns: int = 0
    served_ns: int = 0
    turns: int = 0

    def stop(self) -> None:
        """Asks all of it to stand still."""
        if self.freeze:
            write_file(self.freeze, "1")
            return
        for pid in below(self.spawner):
            send(pid, signal.SIGSTOP)

    def is_still(self) -> bool:
        """All of it stands still; what does not is stopped again (it was born meanwhile)."""
        if self.freeze:
            with contextlib.suppress(OSError), open(f"{self.freeze.removesuffix('freeze')}events", "rb") as file:
                return b"frozen 1" in file.read()
            return True  # the group is gone, and all that was in it
        is_still = True
        for pid in below(self.spawner):
            if state_of(pid) not in "TtZX":
                send(pid, signal.SIGSTOP)
                is_still = False
        return is_still

    def go(self) -> None:
        """Continues all of it."""
        if self.freeze:
            write_file(self.freeze, "0")
            return
        for pid in below(self.spawner):
            send(pid, signal.SIGCONT)

    def kill(self) -> None:
        """Kills all of it but its spawner, stopped or not."""
        if self.freeze and write_file(f"{self.freeze.removesuffix('freeze')}kill", "1"):
            return
        for _ in range(3):
            for pid in below(self.spawner):
                send(pid, signal.SIGKILL)

    def ticks(self) -> int:
        """Processor time of all of it."""
        return sum(map(cpu_ticks, below(self.spawner)))


class Turner:
    """State of the turner process."""

    def __init__(self, control: socket.socket) -> None:
        control.setblocking(False)
        self._control = control
        self._reader: FrameReader[object] = FrameReader(ToTurner)
        self._outbox: deque[bytes] = deque()
        self._parts: dict[str, _Part] = {}
        self._rows: deque[tuple[int, frozenset[str]]] = deque()
        self._row: frozenset[str] = frozenset()
        self._switches = self._late = self._out_ns = 0
        self._looked_ns = self._told_ns = self._seen_ns = 0
        self._has_news = False

    def run(self) -> NoReturn:
        """Until the socket closes."""
        while True:
            now = time.clock_gettime_ns(CLOCK)
            self._count_out_of_turn(now)
            self._turn(now)
            self._look(now)
            if self._has_news and now - self._told_ns >= _REPORT_NS:
                self._tell(now)
            readable, _, _ = select.select([self._control], [self._control] if self._outbox else [], [], self._timeout())
            self._push()
            if readable:
                self._receive()

    def _timeout(self) -> float:
        now = time.clock_gettime_ns(CLOCK)
        moments = [part.until_ns for part in self._parts.values() if part.until_ns]
        if self._rows:
            moments.append(self._rows[0][0])
        if any(not part.freeze or part.is_awake for part in self._parts.values()):
            moments.append(self._looked_ns + _LOOK_NS)
        if self._has_news or any(part.runs for part in self._parts.values()):
            moments.append(self._told_ns + _REPORT_NS)
            self._has_news = True
        return max(0, min(moments, default=now + 3_600_000 * _MS) - now) / 1e9

    # -- a boundary --------------------------------------------------------------------------------------------------------

    def _turn(self, now: int) -> None:
        while self._rows and self._rows[0][0] <= now:
            self._row = self._rows.popleft()[1]
        leaving: list[_Part] = []
        coming: list[_Part] = []
        for part in self._parts.values():
            if part.until_ns and part.until_ns <= now:
                part.until_ns = 0
            wanted = bool(part.until_ns) or (part.name in self._row and not part.is_held)
            if part.runs and not wanted:
                leaving.append(part)
            elif wanted and not part.runs:
                coming.append(part)
        if not leaving and not coming:
            return
        self._switches += 1
        if leaving:
            self._stop(leaving)
        for part in coming:
            part.go()
            part.runs, part.is_awake, part.since_ns = True, False, time.clock_gettime_ns(CLOCK)
            part.turns += 1
            if not part.has_begun:
                part.has_begun = True
                self._send(Began(part.name))
        self._has_news = True

    def _stop(self, leaving: list[_Part]) -> None:
        """All of them stand still afterwards, or are dying, or sleep too deeply to be stopped."""
        began = time.clock_gettime_ns(CLOCK)
        for part in leaving:
            part.stop()
        waits = list(leaving)
        is_late = False
        ticks: dict[str, int] = {}
        while True:
            waits = [part for part in waits if not part.is_still()]
            now = time.clock_gettime_ns(CLOCK)
            if not waits:
                break
            if now - began > _LATE_NS and not is_late:
                is_late = True
                ticks = {part.name: part.ticks() for part in waits}
            if now - began > _STUBBORN_NS:
                break
            time.sleep(_POLL_S if not is_late else 0.005)
        self._late += is_late
        for part in leaving:
            part.runs = False
            part.served_ns += now - part.since_ns
        for part in waits:
            computes = part.ticks() > ticks.get(part.name, 0)
            if computes:
                part.kill()
            part.is_awake = not computes
            self._send(Stubborn(part.name, computes))

    def _look(self, now: int) -> None:
        """Stops again what should stand still and does not: it slept too deeply, or a process of its user has continued it."""
        if now - self._looked_ns < _LOOK_NS:
            return
        self._looked_ns = now
        for part in self._parts.values():
            if part.runs or (part.freeze and not part.is_awake):
                continue
            is_still = part.is_still()
            if part.freeze:
                part.is_awake = not is_still
            elif not is_still and part.has_begun and not part.is_awake:
                self._late += 1
                self._has_news = True
            elif is_still:
                part.is_awake = False

    def _count_out_of_turn(self, now: int) -> None:
        if self._seen_ns:
            strays = sum(part.runs and part.name not in self._row for part in self._parts.values())
            self._out_ns += strays * (now - self._seen_ns)
        self._seen_ns = now

    # -- orders ------------------------------------------------------------------------------------------------------------

    def _receive(self) -> None:
        try:
            data = self._control.recv(_RECEIVE)
            orders = self._reader.feed(data)
        except BlockingIOError:
            return
        except (OSError, FrameError):
            data = b""
        if not data:
            self._end()
        for order in orders:
            self._obey(order)

    def _obey(self, order: object) -> None:
        match order:
            case AddPart():
                part = self._parts[order.part] = _Part(order.part, order.spawner, order.freeze)
                part.stop()
            case DropPart():
                part_or_none = self._parts.pop(order.part, None)
                if part_or_none is not None:
                    now = time.clock_gettime_ns(CLOCK)
                    if part_or_none.runs:
                        part_or_none.served_ns += now - part_or_none.since_ns
                    part_or_none.go()
                    self._send(self._report([part_or_none], now))
            case Rows():
                self._rows = deque((start, frozenset(parts)) for start, parts in order.rows)
            case LetGo() if order.part in self._parts:
                self._parts[order.part].until_ns = order.until_ns
            case HoldPart() if order.part in self._parts:
                self._parts[order.part].is_held = order.on

    def _end(self) -> NoReturn:
        """The Starter is dead: nothing of its work goes on, and nothing stays stopped."""
        for part in self._parts.values():
            part.kill()
            part.go()
        os._exit(0)

    # -- telling -----------------------------------------------------------------------------------------------------------

    def _tell(self, now: int) -> None:
        self._told_ns, self._has_news = now, False
        for part in self._parts.values():
            if part.runs:
                part.served_ns += now - part.since_ns
                part.since_ns = now
        self._send(self._report(list(self._parts.values()), now))

    def _report(self, parts: list[_Part], now: int) -> Served:  # noqa: ARG002
        told = tuple((part.name, part.served_ns, part.turns, part.runs) for part in parts)
        return Served(told, self._switches, self._late, self._out_ns)

    def _send(self, frame: object) -> None:
        """Queues a frame: a Starter that stands still does not stop the turner, and is not told all that it has missed."""
        if isinstance(frame, Served) and len(self._outbox) > _MOST_WAITING:
            return
        self._outbox.append(stream.encode(frame))
        self._push()

    def _push(self) -> None:
        while self._outbox:
            data = self._outbox[0]
            try:
                sent = self._control.send(data)
            except BlockingIOError:
                return
            except OSError:
                self._outbox.clear()  # the Starter is gone: the read side says so
                return
            if sent < len(data):
                self._outbox[0] = data[sent:]
                return
            self._outbox.popleft()


def _hurry() -> None:
    """Before all work, where that is allowed."""
    with contextlib.suppress(OSError, AttributeError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
        return
    with contextlib.suppress(OSError):
        os.nice(-10)


def main(fd: int) -> NoReturn:
    """Runs a turner on control socket `fd`."""
    os.set_inheritable(fd, False)
    for signum in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(signum, signal.SIG_IGN)  # it ends with its Starter's socket, and not before
    _hurry()
    Turner(socket.socket(fileno=fd)).run()


if __name__ == "__main__":
    main(int(sys.argv[1]))
