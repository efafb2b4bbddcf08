"""Finding and killing everything that a piece of work started: its session, its descendants, its cgroup.

The spawner is a subreaper, so a process that forks twice to escape becomes its child. "No unknown child is left" is therefore an exact test
for emptiness, with one read of a small file. Killing goes from the cheap and usual to the certain: the process group (atomic against forks
inside it), then unknown descendants in rounds, with forking forbidden by the pids cgroup if there is one, then the cgroup.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass

#: Signals that work may send to all processes of its user (`pkill -u`). A spawner catches them, since only its Starter may end it, over the
#: socket. It does not ignore them, because its children would inherit that.
OF_WORK = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM)
#: Group below the slot's control group (version 2) that holds the groups of workers and isolated commands; frozen as a whole.
WORK = "work"
_ROUNDS_S = 0.5
_PAGE, _TICKS = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_CLK_TCK")


class Children:
    """The children of this (single-threaded) process, including those inherited as subreaper."""

    def __init__(self) -> None:
        self.none = False  #: there were none at the last look
        self._fd = -1
        with contextlib.suppress(OSError):
            self._fd = os.open(f"/proc/self/task/{os.getpid()}/children", os.O_RDONLY | os.O_CLOEXEC)

    def pids(self) -> list[int]:
        """Returns all children, also zombies. Cost: about 10 us; a scan of /proc if the kernel has no such file."""
        if self._fd >= 0:
            data = os.pread(self._fd, 65536, 0)
            self.none = not data
            return [int(pid) for pid in data.split()] if len(data) < 65000 else _children_by_scan(os.getpid())
        return _children_by_scan(os.getpid())


@dataclass(slots=True)
class Process:
    """A line of the process table."""

    pid: int
    parent: int
    session: int
    state: str


def process_table() -> list[Process]:
    """Returns all processes. Cost: about 15 us each. Empty without /proc."""
    found: list[Process] = []
    try:
        names = os.listdir("/proc")
    except OSError:
        return found
    for name in names:
        if name[0] in "0123456789":
            with contextlib.suppress(OSError, IndexError, ValueError), open(f"/proc/{name}/stat", "rb") as file:
                rest = file.read().rpartition(b") ")[2].split()
                found.append(Process(int(name), int(rest[1]), int(rest[3]), rest[0].decode()))
    return found


def descendants(roots: Iterable[int]) -> list[Process]:
    """Returns existing `roots`, and everything below them or in a session that one of them leads."""
    table = process_table()
    below: dict[int, list[Process]] = {}
    for process in table:
        below.setdefault(process.parent, []).append(process)
    wanted = set(roots)
    todo = [process for process in table if process.pid in wanted or process.session in wanted]
    found: dict[int, Process] = {}
    while todo:
        process = todo.pop()
        if process.pid not in found:
            found[process.pid] = process
            todo.extend(below.get(process.pid, ()))
    return list(found.values())


def _children_by_scan(parent: int) -> list[int]:
    return [process.pid for process in process_table() if process.parent == parent]


def send(pid: int, signum: int) -> bool:
    """Sends a signal; False if there is no such process (or it is not ours any more)."""
    try:
        os.kill(pid, signum)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def send_group(leader: int, signum: int) -> None:
    """Sends a signal to the process group that `leader` leads; atomic against forks inside it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signum)


def send_all(leader: int, signum: int, group: ControlGroup | None = None, *, leader_too: bool = True) -> None:
    """Sends a signal to everything that `leader` started and that is still below it, in its session, or in its cgroup."""
    pids = {process.pid for process in descendants((leader,))} | {leader}
    if group is not None:
        pids.update(group.members())
    if not leader_too:
        pids.discard(leader)
    for pid in sorted(pids):
        send(pid, signum)


def resident_bytes(leader: int, group: ControlGroup | None = None, *, also: Iterable[int] = ()) -> int:
    """Returns the resident memory of `leader` and its processes (shared pages count for each). Cost: about 15 us a process."""
    pids = group.members() if group is not None else _with_descendants(leader)
    total = 0
    for pid in {*pids, *also}:
        with contextlib.suppress(OSError, IndexError, ValueError), open(f"/proc/{pid}/statm", "rb") as file:
            total += int(file.read().split()[1])
    return total * _PAGE


def processor_seconds(leader: int, members: Iterable[int] = ()) -> tuple[float, float, bool]:
    """Returns (processor time, time spent waiting for a processor, whether a thread waits for or has one now) of `leader` and its living
    processes.

    members: processes that are not its children any more; their waiting counts, too: on a busy machine they would use more if they could.
    The second value covers living threads, 0 if the kernel does not tell; it grows once a wait is over. Cost: about 20 us a process and
    20 us a thread.
    """
    tree = _with_descendants(leader)
    waited = [waited_for_processor(pid) for pid in {*tree, *members}]
    return sum(map(cpu_ticks, tree)) / _TICKS, sum(waited_ns for waited_ns, _ in waited) / 1e9, any(is_ready for _, is_ready in waited)


def waited_for_processor(pid: int) -> tuple[int, bool]:
    """Returns (ns for which its threads have waited for a processor, whether one of them waits for or has one)."""
    waited_ns, is_ready = 0, False
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError, IndexError, ValueError):
                with open(f"/proc/{pid}/task/{thread}/schedstat", "rb") as file:
                    waited_ns += int(file.read().split()[1])
                with open(f"/proc/{pid}/task/{thread}/stat", "rb") as file:
                    is_ready = file.read().rpartition(b") ")[2].startswith(b"R") or is_ready
    return waited_ns, is_ready


def below(root: int) -> list[int]:
    """Returns all descendants of `root`, without `root`. Cost: about 20 us a process."""
    return _with_descendants(root)[1:]


def halted(spawner: int) -> list[int]:
    """Returns children of `spawner` that stopped themselves before exec: their command line is still the spawner's.

    Cost: about 20 us, and 20 more for each stopped child.
    """
    own = _content_or_nothing(f"/proc/{spawner}/cmdline")
    children = map(int, _content_or_nothing(f"/proc/{spawner}/task/{spawner}/children").split())
    return [pid for pid in children if state_of(pid) in "Tt" and _content_or_nothing(f"/proc/{pid}/cmdline") == own]


def _content_or_nothing(path: str) -> bytes:
    with contextlib.suppress(OSError), open(path, "rb") as file:
        return file.read()
    return b""


def lists_children() -> bool:
    """Returns whether the kernel lists the children of a process; otherwise `below` finds nothing."""
    return os.path.exists(f"/proc/self/task/{os.getpid()}/children")


def state_of(pid: int) -> str:
    """Returns the letter of the process's state (`T`: stopped), "X" if there is none."""
    return _parsed_stat(f"/proc/{pid}/stat")[0]


def still(pids: list[int]) -> set[int]:
    """Returns those that execute nothing until continued: stopped, or dead, or in vfork for a stopped child.

    A process whose first thread has ended has the state of a zombie, but runs on in other threads. Cost: about 15 us a process.
    """
    states = {pid: _parsed_stat(f"/proc/{pid}/stat") for pid in pids}
    forking = {parent for state, parent in states.values() if state in "Tt"}
    found = set()
    for pid, (state, _) in states.items():
        if state == "Z":
            with contextlib.suppress(OSError):
                if not all(_parsed_stat(f"/proc/{pid}/task/{thread}/stat")[0] in "TtZX" for thread in os.listdir(f"/proc/{pid}/task")):
                    continue
        if state in "TtZX" or (state == "D" and pid in forking):
            found.add(pid)
    return found


def _parsed_stat(path: str) -> tuple[str, int]:
    """Returns (letter, parent)."""
    with contextlib.suppress(OSError, IndexError, ValueError), open(path, "rb") as file:
        words = file.read().rpartition(b") ")[2].split(None, 2)
        return words[0].decode(), int(words[1])
    return "X", 0


def cpu_ticks(pid: int) -> int:
    """Returns the processor time of a process and of the children that it waited for, in ticks of the kernel."""
    with contextlib.suppress(OSError, IndexError, ValueError), open(f"/proc/{pid}/stat", "rb") as file:
        return sum(map(int, file.read().rpartition(b") ")[2].split()[11:15]))
    return 0


def _with_descendants(root: int) -> list[int]:
    """Returns `root` and its descendants by the kernel's lists of children; only `root` without such lists."""
    found, todo = [], [root]
    while todo:
        pid = todo.pop()
        found.append(pid)
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{pid}/task"):
                with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                    todo.extend(int(child) for child in file.read().split())
    return found


def kill_strangers(children: Children, known: Iterable[int], *, forks: Forks | None = None) -> tuple[int, int]:
    """Kills all children of this process that are not `known`, and their descendants, until there are none.

    Args:
        known: children that live on.
        forks: switch that forbids forking meanwhile, None = there is none.
    Returns: (number killed, number still alive after half a second: in uninterruptible sleep, or not ours).
    Cost: one read if there is nothing to do.
    """
    keep = set(known)
    strangers = [pid for pid in children.pids() if pid not in keep]
    if not strangers:
        return 0, 0
    killed: set[int] = set()
    deadline = time.monotonic() + _ROUNDS_S
    forbidden = False
    rounds = 0
    try:
        while strangers:
            rounds += 1
            if forks is not None and rounds == 3:
                forbidden = forks.forbid()
            living = [process for process in descendants(strangers) if process.pid not in keep]
            for process in living:
                if process.state != "Z":
                    killed.add(process.pid)
                send(process.pid, signal.SIGKILL)
            for pid in strangers:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
            strangers = [pid for pid in children.pids() if pid not in keep]
            if not strangers:
                break
            if time.monotonic() > deadline:
                return len(killed), len(strangers)
            time.sleep(0.0005)
    finally:
        if forbidden and forks is not None:
            forks.allow()
    return len(killed), 0


class Forks:
    """Forbids forking in a pids cgroup for a moment (`pids.max` below the current number)."""

    def __init__(self, directory: str) -> None:
        self._path = os.path.join(directory, "pids.max")
        self._old = ""

    def forbid(self) -> bool:
        """Forbids forking. Returns: False if not possible."""
        try:
            with open(self._path, encoding="ascii") as file:
                self._old = file.read().strip()
        except OSError:
            return False
        return write_file(self._path, "1")

    def allow(self) -> None:
        """Restores the old limit."""
        write_file(self._path, self._old)


class ControlGroup:
    """A leaf cgroup of one worker or one isolated command: version 2, with version 1 controllers beside it."""

    def __init__(self, unified: str, freezer: str, memory: str, name: str, *, has_memory: bool) -> None:
        self._unified = os.path.join(unified, name) if unified else ""
        self._freezer = os.path.join(freezer, name) if freezer else ""
        self._memory = os.path.join(memory, name) if memory else ""
        self._has_memory = has_memory
        for path in self._paths():
            os.mkdir(path)

    def _paths(self) -> list[str]:
        return [path for path in (self._unified, self._freezer, self._memory) if path]

    @property
    def limits_memory(self) -> bool:
        """Whether the kernel enforces `set_memory`."""
        return bool(self._memory) or (bool(self._unified) and self._has_memory)

    def enter(self) -> bool:
        """Moves this process into the group (before it starts anything)."""
        entered = [write_file(os.path.join(path, "cgroup.procs"), str(os.getpid())) for path in self._paths()]
        return all(entered)

    def set_memory(self, limit: int) -> bool:
        """Sets a limit in bytes, 0 = none."""
        if self._unified and self._has_memory:
            write_file(os.path.join(self._unified, "memory.swap.max"), "0")
            write_file(os.path.join(self._unified, "memory.oom.group"), "1" if limit else "0")  # no script goes on without its child
            return write_file(os.path.join(self._unified, "memory.max"), str(limit) if limit else "max")
        return bool(self._memory) and write_file(os.path.join(self._memory, "memory.limit_in_bytes"), str(limit or -1))

    def had_oom(self) -> bool:
        """Returns whether the kernel killed something here for lack of memory."""
        if self._unified and self._has_memory:
            return _counter_in_file(os.path.join(self._unified, "memory.events"), "oom_kill") > 0
        return bool(self._memory) and _counter_in_file(os.path.join(self._memory, "memory.oom_control"), "oom_kill") > 0

    def peak_bytes(self) -> int:
        """Returns the most memory used here at a time, 0 if the kernel does not tell."""
        for path, name in ((self._unified, "memory.peak"), (self._memory, "memory.max_usage_in_bytes")):
            with contextlib.suppress(OSError, ValueError), open(os.path.join(path or "/", name), "rb") as file:
                return int(file.read())
        return 0

    def members(self) -> list[int]:
        """Returns the pids of its processes."""
        for path in self._paths():
            with contextlib.suppress(OSError), open(os.path.join(path, "cgroup.procs"), encoding="ascii") as file:
                return [int(pid) for pid in file.read().split()]
        return []

    def kill(self) -> None:
        """Kills all its processes: at once (version 2), or frozen first (version 1)."""
        if self._unified:
            write_file(os.path.join(self._unified, "cgroup.kill"), "1")
            return
        self.freeze(True)
        for pid in self.members():
            send(pid, signal.SIGKILL)
        self.freeze(False)

    def freeze(self, frozen: bool) -> bool:
        """Stops or continues all its processes."""
        if self._unified:
            return write_file(os.path.join(self._unified, "cgroup.freeze"), "1" if frozen else "0")
        return bool(self._freezer) and write_file(os.path.join(self._freezer, "freezer.state"), "FROZEN" if frozen else "THAWED")

    def is_frozen(self) -> bool:
        """Returns whether its processes, also those that enter, are stopped (version 2)."""
        path = os.path.join(self._unified or "/", "cgroup.events")  # the root has no such file
        with contextlib.suppress(OSError), open(path, "rb") as file:
            return b"frozen 1" in file.read()
        return False

    def remove(self) -> bool:
        """Removes the directories; False if a process is still in one."""
        for path in self._paths():
            try:
                os.rmdir(path)
            except FileNotFoundError:
                continue
            except OSError:
                return False
        return True


def _counter_in_file(path: str, name: str) -> int:
    with contextlib.suppress(OSError, ValueError, IndexError), open(path, encoding="ascii") as file:
        for line in file:
            words = line.split()
            if words[0] == name:
                return int(words[1])
    return 0


def write_file(path: str, text: str) -> bool:
    """Writes to a control file; False if refused or absent."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        os.write(fd, text.encode("ascii"))
    except OSError:
        return False
    finally:
        os.close(fd)
    return True
