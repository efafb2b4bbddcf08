"""The turner of a node: at the boundaries of slots it stops the parts of gangs that leave, and continues those that come.

Exec'd by the Starter (`python -m rmgr.runner.turner FD`) with one end of a socket, single-threaded, with the Starter's own rights: users'
processes are never asked to stop themselves. It knows the rows of the next half minute, so it goes on while its Starter stands still; when
the socket closes (the Starter died) it kills all parts. Spawners are never stopped.

A part is stopped by the freezer of its control group (version 2), or by SIGSTOP to everything below its spawner, again and again until no
new process is found. Processes that its spawner starts meanwhile are born stopped: in the frozen group, or halted by themselves; a look in
the part's turn continues them. No coming part is continued before all leaving parts are stopped.
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
from dataclasses import dataclass, field
from typing import NoReturn

from rmgr.model import stream
from rmgr.model.stream import FrameError, FrameReader
from rmgr.model.turns import AddPart, Began, DropPart, HoldPart, LetGo, Rows, Served, Stubborn, ToTurner
from rmgr.runner.host.contain import below, cpu_ticks, halted, send, state_of, still, write_file
from rmgr.runner.host.kernel import CLOCK

_MS = 1_000_000
#: A part that is not stopped after the first time is late; after the second it is killed if it computes.
_LATE_NS, _STUBBORN_NS = 20 * _MS, 1_000 * _MS
#: A part that used less processor time in that second sleeps; and the time that a killed part may take to die.
_LITTLE_NS, _DYING_NS = 20 * _MS, 500 * _MS
_TICK_NS = 1_000 * _MS // os.sysconf("SC_CLK_TCK")
#: Pause between two checks whether leaving parts are stopped.
_POLL_S = 0.0003
#: Pause between two looks at parts between boundaries. A stopped part's processes may have been continued by its user, or have left their
#: group; below a running part without a frozen group, processes may have been born halted.
_LOOK_NS = 50 * _MS
_REPORT_NS = 500 * _MS
_RECEIVE = 256 * 1024
#: Most messages that wait for a Starter that stands still.
_MOST_WAITING = 256


@dataclass(slots=True, eq=False)
class _Part:
    """One part. since_ns: start of its current turn. is_new: it was told to stop, and was not yet seen stopped.

    is_awake: it is stopped, but part of it sleeps where signals do not reach; is_deep: the same at its last stop. stopped: pids that were
    sent SIGSTOP.
    """

    name: str
    spawner: int
    freeze: str
    runs: bool = False
    is_new: bool = True
    has_begun: bool = False
    is_held: bool = False
    is_awake: bool = False
    is_deep: bool = False
    until_ns: int = 0  #: it may run until then
    since_ns: int = 0
    served_ns: int = 0
    turns: int = 0
    stopped: set[int] = field(default_factory=set)

    def stop(self) -> None:
        """Begins to stop all of it."""
        if self.freeze:
            write_file(self.freeze, "1")
        else:
            self.is_still()

    def is_still(self) -> bool:
        """Returns whether all of it is stopped; stops again what is not (new processes)."""
        if self.freeze:
            return b"frozen 0" not in self._read("events")  # without a group there are no processes in it
        seen = below(self.spawner)
        running = set(seen) - still(seen)
        for pid in running:
            send(pid, signal.SIGSTOP)
        self.stopped |= running
        return not running and set(below(self.spawner)) <= set(seen)  # finds processes born before their parent was stopped

    def sleeps_deeply(self) -> bool:
        """Returns whether nothing of it runs, but something waits in the kernel, and will stop when it wakes."""
        states = {pid: state_of(pid) for pid in below(self.spawner)}
        return "R" not in states.values() and "D" in states.values()

    def go(self) -> None:
        """Continues all of it."""
        if self.freeze:
            write_file(self.freeze, "0")
            return
        for pid in (*below(self.spawner), *self.stopped):
            send(pid, signal.SIGCONT)
        self.stopped.clear()

    def release(self) -> None:
        """Continues processes that were born halted in its turn."""
        if not self.freeze:
            for pid in halted(self.spawner):
                send(pid, signal.SIGCONT)

    def kill(self) -> None:
        """Kills all of it except its spawner, stopped or not."""
        if self.freeze and write_file(f"{self.freeze.removesuffix('freeze')}kill", "1"):
            return
        for pid in below(self.spawner):
            send(pid, signal.SIGKILL)

    def is_gone(self) -> bool:
        """Returns whether no process of it lives."""
        if self.freeze:
            return b"populated 1" not in self._read("events")
        return all(state_of(pid) in "ZX" for pid in below(self.spawner))

    def used_ns(self) -> int:
        """Returns the processor time of all of it."""
        if self.freeze:
            return 1000 * int((self._read("stat", "cpu").split() or (b"", b"0"))[1])  # usage_usec comes first
        return sum(map(cpu_ticks, below(self.spawner))) * _TICK_NS

    def fetch(self) -> bool:
        """Brings back processes that left the group for the slot's own, as a user may if no controller is in use. Returns: whether there
        were any."""
        escaped: list[bytes] = []
        work = os.path.dirname(self.freeze)
        if self.freeze:
            with contextlib.suppress(OSError), open(f"{os.path.dirname(work)}/cgroup.procs", "rb") as file:
                escaped = file.read().split()
        for pid in escaped:
            write_file(f"{work}/cgroup.procs", pid.decode())
        return bool(escaped)

    def _read(self, name: str, controller: str = "cgroup") -> bytes:
        with contextlib.suppress(OSError), open(f"{self.freeze.removesuffix('cgroup.freeze')}{controller}.{name}", "rb") as file:
            return file.read()
        return b""


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
        """Runs until the socket closes."""
        while True:
            now = time.clock_gettime_ns(CLOCK)
            self._count_out_of_turn(now)
            self._turn(now)
            self._look(now)
            if self._has_news and now - self._told_ns >= _REPORT_NS:
                self._tell()
            readable, _, _ = select.select([self._control], [self._control] if self._outbox else [], [], self._timeout())
            self._push()
            if readable:
                self._receive()

    def _timeout(self) -> float:
        now = time.clock_gettime_ns(CLOCK)
        moments = [part.until_ns for part in self._parts.values() if part.until_ns]
        if self._rows:
            moments.append(self._rows[0][0])
        if any(not part.runs or not part.freeze for part in self._parts.values()):
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
            if part.is_new or (part.runs and not wanted):
                leaving.append(part)
            if wanted and not part.runs:
                coming.append(part)
        if not leaving and not coming:
            return
        self._switches += bool(coming) or any(part.runs for part in leaving)
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
        """Stops parts; afterwards all are stopped, or dead, or sleep too deeply to be stopped."""
        began = time.clock_gettime_ns(CLOCK)
        for part in leaving:
            part.stop()
        waits = list(leaving)
        used: dict[str, int] = {}  # of late parts
        is_late = False
        while True:
            still_ones = [part for part in waits if part.is_still()]
            now = time.clock_gettime_ns(CLOCK)
            for part in still_ones:
                waits.remove(part)
                self._has_stopped(part, now)
                part.is_deep = False
            for part in [part for part in waits if part.is_deep and now - began > _LATE_NS and part.sleeps_deeply()]:
                waits.remove(part)  # it had a second the last time
                self._has_stopped(part, now)
                part.is_awake = is_late = True
            if not waits or (used and now - began > _STUBBORN_NS):
                break
            if now - began > _LATE_NS and not used:
                used = {part.name: part.used_ns() for part in waits}
                began = now - _LATE_NS  # this process itself may have stood still meanwhile
            time.sleep(_POLL_S if not used else 0.005)
        self._late += is_late or bool(used)
        computing = [part for part in waits if part.used_ns() - used[part.name] > _LITTLE_NS]
        for part in waits:
            self._send(Stubborn(part.name, part in computing))  # before its spawner can report its end
        while computing and time.clock_gettime_ns(CLOCK) - began < _STUBBORN_NS + _DYING_NS:
            for part in computing:
                part.kill()
            if all(part.is_gone() for part in computing):
                break
            time.sleep(0.002)
        for part in waits:
            self._has_stopped(part, time.clock_gettime_ns(CLOCK))
            part.is_awake = part.is_deep = part not in computing

    @staticmethod
    def _has_stopped(part: _Part, now: int) -> None:
        if part.runs:
            part.served_ns += now - part.since_ns
        part.runs = part.is_new = False

    def _look(self, now: int) -> None:
        """Stops parts again that should be stopped and are not: they slept too deeply, or a process of their user continued them.

        Continues processes that were born halted in their part's turn.
        """
        if now - self._looked_ns < _LOOK_NS:
            return
        self._looked_ns = now
        for part in self._parts.values():
            has_left = part.fetch()
            if part.runs:
                part.release()
                continue
            is_trusted = bool(part.freeze) and not part.is_awake  # only the Starter continues its group
            if not has_left if is_trusted else part.is_still():
                part.is_awake = False
            elif part.has_begun and not part.is_awake:
                self._late += 1
                self._has_news = True

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
                    self._send(self._report([part_or_none]))
            case Rows():
                self._rows = deque((start, frozenset(parts)) for start, parts in order.rows)
            case LetGo() if order.part in self._parts:
                self._parts[order.part].until_ns = order.until_ns
                self._told_ns, self._has_news = 0, True
            case HoldPart() if order.part in self._parts:
                self._parts[order.part].is_held = order.on

    def _end(self) -> NoReturn:
        """The Starter is dead: kills all parts, and leaves nothing stopped."""
        deadline = time.clock_gettime_ns(CLOCK) + _DYING_NS
        while True:
            for part in self._parts.values():
                part.kill()
            if all(part.is_gone() for part in self._parts.values()) or time.clock_gettime_ns(CLOCK) > deadline:
                break
            time.sleep(0.002)
        for part in self._parts.values():
            part.go()
        os._exit(0)

    # -- reports -----------------------------------------------------------------------------------------------------------

    def _tell(self) -> None:
        now = time.clock_gettime_ns(CLOCK)  # read now, since a part may just have been continued
        self._told_ns, self._has_news = now, False
        for part in self._parts.values():
            if part.runs:
                part.served_ns += now - part.since_ns
                part.since_ns = now
        self._send(self._report(list(self._parts.values())))

    def _report(self, parts: list[_Part]) -> Served:
        told = tuple((part.name, part.served_ns, part.turns, part.runs) for part in parts)
        return Served(told, self._switches, self._late, self._out_ns)

    def _send(self, frame: object) -> None:
        """Queues a frame, since a Starter that stands still must not block the turner; drops reports when too many wait."""
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
                self._outbox.clear()  # the Starter is gone: the next read sees that
                return
            if sent < len(data):
                self._outbox[0] = data[sent:]
                return
            self._outbox.popleft()


def _take_priority() -> None:
    """Takes priority over all work, if allowed."""
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
    _take_priority()
    Turner(socket.socket(fileno=fd)).run()


if __name__ == "__main__":
    main(int(sys.argv[1]))
