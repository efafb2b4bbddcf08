"""The ranks of a job on one node: k processes of a command with their output, and the program that runs them in a hold.

`python -I -S ranks/ranks.py DIR` serves DIR/ranks: each connection is one launch, whose processes end with it; when this program ends, its
spawner ends everything. Standard library alone, without a package around it, so that it starts in a few milliseconds. The frames on every
connection, in both directions:

    length of the rest (4 bytes), kind (1), number (4: a rank, or a signal), the rest; integers little-endian
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

#: Requests: start these (JSON), bytes for a rank's standard input (none: its end), a signal for all, the end of all. Before `SPEC`: a piece
#: of the file that its processes find as RMGR_BUNDLE.
SPEC, STDIN, SIGNAL, KILL, BUNDLE = 1, 2, 3, 4, 5
#: Reports: output of a rank, its end (code, or 128 + signal, as text), an error (number -1: of all ranks), bytes of its input that it has
#: taken (as text): at most `MOST_INPUT` are sent ahead.
OUT, ERR, EXIT, FAILED, TAKEN = 11, 12, 13, 14, 15
#: Before the end of a rank: what it has used, as read by `usage_of`. The Starter of the asking side reads it, too.
USED = 16
#: Before `FAILED` of all ranks (text): they used more memory than the job has on that node. The Starter of the asking side reads it.
STARVED = 18
#: Before the end of a rank of a launch with a bundle: a file `left.*` beside that (name, NUL, content), for the asking side.
LEFT, LEFT_PREFIX = 17, "left."
MOST_INPUT = 1 << 20
SAVED_EXIT_CODE = 85  #: a rank with this code has saved its state (rmgr/checkpoint.py), and has not failed

_HEAD = struct.Struct("<IBi")
_CHUNK = 64 * 1024
#: The largest frame: `SPEC`, with arguments and variables of a process; others carry a chunk.
MOST_FRAME_BYTES = 16 * 2**20
#: Pause between two checks of processes whose end cannot be watched.
_TICK_S = 0.05
#: Variables of the asking side that have no meaning on another node.
_THEIRS = ("RMGR_SLOT", "RMGR_RANKS", "RMGR_HOSTFILE", "RMGR_BUNDLE", "RMGR_CPU_BIND")
_MOST_UNSENT = 1 << 20  #: above this, a launch's ranks are not read from until output was sent

Tell = Callable[[int, int, bytes], None]


def frame(kind: int, number: int = 0, rest: bytes = b"") -> bytes:
    """Returns one frame."""
    return _HEAD.pack(len(rest), kind, number) + rest


def usage_of(rest: bytes) -> tuple[int, int]:
    """Returns (processor time in us, peak memory of one process in KiB) from a `USED` frame; zeros if it makes no sense."""
    try:
        cpu_us, max_rss_kib = map(int, rest.split())
    except ValueError:
        return 0, 0
    return max(0, cpu_us), max(0, max_rss_kib)


class FrameTooLong(ValueError):
    """A frame larger than any that a process of a job sends. Its own class, since this file runs where the package cannot be imported."""


class Cutter:
    """Cuts a byte stream into frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[int, int, bytes]]:
        """Yields (kind, number, rest) of all frames that `data` completes. Raises: FrameTooLong."""
        buffer = self._buffer
        buffer += data
        while len(buffer) >= _HEAD.size:
            size, kind, number = _HEAD.unpack_from(buffer)
            end = _HEAD.size + size
            if size > MOST_FRAME_BYTES:
                raise FrameTooLong(f"a frame of {size:,} bytes is announced, the limit is {MOST_FRAME_BYTES:,}")
            if len(buffer) < end:
                return
            rest = bytes(buffer[_HEAD.size : end])
            del buffer[:end]
            yield kind, number, rest


@contextlib.contextmanager
def address(path: str) -> Iterator[str]:
    """Yields a name for the socket at `path` that fits a socket address, however long the path is. Raises: OSError."""
    if len(os.fsencode(path)) < 100:
        yield path
        return
    directory = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{directory}/{os.path.basename(path)}"
    finally:
        os.close(directory)


def listen(path: str) -> socket.socket:
    """Returns a listening socket that only its owner may use. Raises: OSError."""
    door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with address(path) as name:
        door.bind(name)
        os.chmod(name, 0o600)
    door.listen(64)
    return door


def connect(path: str) -> socket.socket:
    """Connects to the socket at `path`. Raises: OSError."""
    link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with address(path) as name:
            link.connect(name)
    except OSError:
        link.close()
        raise
    return link


def peer_uid(link: socket.socket) -> int:
    """Returns the uid of the process at the other end; -1 if the system does not tell."""
    wanted = getattr(socket, "SO_PEERCRED", None)
    if wanted is None:
        return -1
    return int(struct.unpack("3i", link.getsockopt(socket.SOL_SOCKET, wanted, struct.calcsize("3i")))[1])


# -- processes ---------------------------------------------------------------------------------------------------------------


def own_share(environ: Mapping[str, str], local: int) -> dict[str, str]:
    """Returns the variables of a rank's part of the job's resources on this node (RMGR_RESOURCES: pieces of each for one process)."""
    found = {}
    for word in filter(None, environ.get("RMGR_RESOURCES", "").split(",")):
        name, _, count = word.partition("=")
        pieces, each = environ.get(name, "").split(","), int(count)
        found[name] = ",".join(pieces[local * each : (local + 1) * each])
        if name == "RMGR_RESOURCE_GPU":
            found["CUDA_VISIBLE_DEVICES"] = found[name]
    return found


def slurm_variables(environ: Mapping[str, str], local: int) -> dict[str, str]:
    """Returns the Slurm variables that differ between ranks, for work that asked for them (`runner/host/slurm.py` has the others)."""
    total, node = environ.get("RMGR_NPROCS", "1"), environ.get("RMGR_NODE", "")
    nodes = environ.get("RMGR_NODELIST", "").split(",")
    found = {"SLURM_PROCID": environ["RMGR_RANK"], "SLURM_LOCALID": str(local), "SLURM_NTASKS": total, "SLURM_NPROCS": total}
    found |= {"SLURM_STEP_NUM_TASKS": total, "SLURMD_NODENAME": node, "SLURM_NODEID": str(nodes.index(node) if node in nodes else 0)}
    return found | ({"SLURM_CPUS_ON_NODE": environ["RMGR_CPUS_ON_NODE"]} if "RMGR_CPUS_ON_NODE" in environ else {})


def _is_here(named: str, directory: str) -> bool:
    """Returns whether both names mean one directory: PWD may have symbolic links that the system's own name does not have."""
    try:
        return os.path.isabs(named) and os.path.samefile(named, directory)
    except OSError:
        return False


def _bind_to_rank(cpus: list[int], threads: int, local: int) -> dict[str, str]:
    """Binds this process, and those that it starts next, to the processors of one rank; returns the variable."""
    own = cpus[local * threads : (local + 1) * threads]
    try:
        os.sched_setaffinity(0, own if len(own) == threads else cpus)  # more ranks than processes: they share all
    except (OSError, AttributeError):
        return {}
    return {"RMGR_CPU_BIND": ",".join(map(str, own if len(own) == threads else cpus))}


class _Rank:
    """One process. streams: its open pipes, by descriptor."""

    def __init__(self, number: int, process: subprocess.Popen[bytes]) -> None:
        self.number = number
        self.process = process
        self.streams: dict[int, int] = {}
        self.pidfd = -1
        self.input = bytearray()  #: not yet written to its standard input
        self.input_ends = self.is_writing = False


class Crew:
    """The processes of one launch on this node; reports go to `tell` (kind, rank, bytes)."""

    def __init__(self, selector: selectors.BaseSelector, tell: Tell, *, is_jammed: Callable[[], bool] = lambda: False) -> None:
        self._selector = selector
        self._tell = tell
        self._is_jammed = is_jammed
        self._ranks: dict[int, _Rank] = {}

    @property
    def alive(self) -> int:
        """Number of processes whose end was not reported yet."""
        return len(self._ranks)

    @property
    def tick_s(self) -> float | None:
        """Longest wait before `reap`, None: until something happens."""
        return _TICK_S if any(rank.pidfd < 0 for rank in self._ranks.values()) or self._is_jammed() else None

    def start(self, spec: Mapping[str, Any], *, stdin: int | None = None) -> None:
        """Starts all ranks. stdin: of the first one; otherwise `spec["stdin"]` says whether it comes as frames.

        `spec["binds"]`: each rank has processors of its own, if the job has some here. `spec["slots"]`: processes of the job here; if the
        job has more processors than they asked for, all ranks share all of them.
        """
        binding = [int(cpu) for cpu in spec["environ"].get("RMGR_CPU_BIND", "").split(",") if cpu] if spec.get("binds") else []
        if len(binding) > int(spec["environ"].get("RMGR_THREADS", "1")) * spec.get("slots", len(binding)):
            binding = []
        for local in range(spec["count"]):
            number = spec["first"] + local
            environ = spec["environ"] | {"RMGR_RANK": str(number), "RMGR_LOCAL_RANK": str(local)}
            environ |= own_share(environ, local)
            if "RMGR_SLURM_ENV" in environ:
                environ |= slurm_variables(environ, local)
            if binding:
                environ |= _bind_to_rank(binding, int(environ.get("RMGR_THREADS", "1")), local)
            source: int = subprocess.DEVNULL
            if local == 0 and stdin is not None:
                source = stdin
            elif local == 0 and spec.get("stdin"):
                source = subprocess.PIPE
            cwd = spec["cwd"] if os.path.isdir(spec["cwd"]) else None
            if not _is_here(environ.get("PWD", ""), cwd or "."):
                environ.pop("PWD", None)
            try:
                process = subprocess.Popen(
                    spec["argv"],
                    stdin=source,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    env=environ,
                    cwd=cwd,
                    start_new_session=True,
                    umask=spec["umask"],
                )
            except OSError as error:
                self._tell(FAILED, number, f"{spec['argv'][0]} cannot be started: {error.strerror}".encode())
                self._tell(EXIT, number, b"127" if isinstance(error, FileNotFoundError) else b"126")
                continue
            except ValueError as error:
                self._tell(FAILED, number, f"the command cannot be started: {error}".encode())
                self._tell(EXIT, number, b"126")
                continue
            self._watch(_Rank(number, process))
        if binding:
            _bind_to_rank(binding, len(binding), 0)

    def _watch(self, rank: _Rank) -> None:
        self._ranks[rank.number] = rank
        assert rank.process.stdout is not None
        assert rank.process.stderr is not None
        for stream, kind in ((rank.process.stdout, OUT), (rank.process.stderr, ERR)):
            fd = stream.fileno()
            os.set_blocking(fd, False)
            rank.streams[fd] = kind
            self._selector.register(fd, selectors.EVENT_READ, lambda fd=fd: self._read(rank, fd))
        with contextlib.suppress(OSError, AttributeError):
            rank.pidfd = os.pidfd_open(rank.process.pid)
            self._selector.register(rank.pidfd, selectors.EVENT_READ, lambda: self._ended(rank))

    def _read(self, rank: _Rank, fd: int, *, to_the_end: bool = False) -> None:
        while fd in rank.streams and (to_the_end or not self._is_jammed()):
            try:
                data = os.read(fd, _CHUNK)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._selector.unregister(fd)
                del rank.streams[fd]
            else:
                self._tell(rank.streams[fd], rank.number, data)
                if not to_the_end:
                    return

    def reap(self) -> None:
        """Takes the ends of ranks."""
        for rank in list(self._ranks.values()):
            self._ended(rank)

    def _ended(self, rank: _Rank) -> None:
        if rank.number not in self._ranks:
            return
        pid, status, usage = os.wait4(rank.process.pid, os.WNOHANG)
        if not pid:
            return
        code = rank.process.returncode = os.waitstatus_to_exitcode(status)
        for fd in list(rank.streams):
            self._read(rank, fd, to_the_end=True)
            if fd in rank.streams:  # a process that it left behind still has it
                self._selector.unregister(fd)
        if rank.pidfd >= 0:
            self._selector.unregister(rank.pidfd)
            os.close(rank.pidfd)
        self._unwatch_input(rank)
        for stream in (rank.process.stdin, rank.process.stdout, rank.process.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        del self._ranks[rank.number]
        self._tell(USED, rank.number, b"%d %d" % ((usage.ru_utime + usage.ru_stime) * 1e6, usage.ru_maxrss))
        self._tell(EXIT, rank.number, str(128 - code if code < 0 else code).encode())

    def write(self, number: int, data: bytes) -> None:
        """Writes to the standard input of a rank; b"" ends it. Keeps what the rank does not read yet."""
        rank = self._ranks.get(number)
        if rank is None or rank.process.stdin is None:
            self._tell(TAKEN, number, str(len(data)).encode())
            return
        rank.input += data
        rank.input_ends = rank.input_ends or not data
        if not rank.is_writing:
            os.set_blocking(rank.process.stdin.fileno(), False)
            self._selector.register(rank.process.stdin, selectors.EVENT_WRITE, lambda: self._write(rank))
            rank.is_writing = True

    def _write(self, rank: _Rank) -> None:
        stdin = rank.process.stdin
        assert stdin is not None
        try:
            taken = os.write(stdin.fileno(), rank.input[:_CHUNK]) if rank.input else 0
        except BlockingIOError:
            return
        except OSError:  # the rank has closed it
            taken, rank.input_ends = len(rank.input), True
        del rank.input[:taken]
        if taken:
            self._tell(TAKEN, rank.number, str(taken).encode())
        if not rank.input:
            self._unwatch_input(rank)
            if rank.input_ends:
                stdin.close()
                rank.process.stdin = None

    def _unwatch_input(self, rank: _Rank) -> None:
        if rank.is_writing and rank.process.stdin is not None:
            self._selector.unregister(rank.process.stdin)
        rank.is_writing = False

    def signal(self, signum: int) -> None:
        """Sends a signal to every process of every rank's session."""
        for rank in self._ranks.values():
            for pid in _processes_of_session(rank.process.pid):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signum)

    def kill(self) -> None:
        """Kills all ranks and what they have started; their ends are reported later."""
        pids = _descendants([rank.process.pid for rank in self._ranks.values()])
        for rank in self._ranks.values():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(rank.process.pid, signal.SIGKILL)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def _all_processes() -> list[tuple[int, int, int]]:
    """Returns (pid, parent, session) of all processes; empty without /proc."""
    found = []
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc"):
            if name.isdigit():
                with contextlib.suppress(OSError, IndexError, ValueError), open(f"/proc/{name}/stat", "rb") as file:
                    rest = file.read().rpartition(b") ")[2].split()
                    found.append((int(name), int(rest[1]), int(rest[3])))
    return found


def _processes_of_session(leader: int) -> list[int]:
    """Returns all processes in a rank's session, or only the rank if that is unknown."""
    return [pid for pid, _, session in _all_processes() if session == leader] or [leader]


def _descendants(roots: list[int]) -> list[int]:
    """Returns `roots`, their descendants, and all processes in these sessions."""
    found, table = set(roots), _all_processes()
    grew = bool(roots)
    while grew:
        more = {pid for pid, parent, session in table if parent in found or session in found} - found
        found |= more
        grew = bool(more)
    return list(found)


# -- the program ---------------------------------------------------------------------------------------------------------------


def _passed_on(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns variables of the asking side that are valid on another node, without the pieces of resources lent to the job there."""
    theirs = (*_THEIRS, "CUDA_VISIBLE_DEVICES") if "RMGR_RESOURCE_GPU" in environ else _THEIRS
    return {name: value for name, value in environ.items() if name not in theirs and not name.startswith("RMGR_RESOURCE_")}


class _Launch:
    """One launch, over one connection."""

    def __init__(self, host: _Host, link: socket.socket) -> None:
        self.link = link
        self._host = host
        self._cutter = Cutter()
        self._unsent = bytearray()
        self.directory = ""  #: of files that came with the launch
        self.crew = Crew(host.selector, self._tell, is_jammed=lambda: len(self._unsent) > _MOST_UNSENT)
        link.setblocking(False)
        host.selector.register(link, selectors.EVENT_READ, self._ready)

    def _tell(self, kind: int, number: int, rest: bytes) -> None:
        if kind == EXIT and self.directory:
            with contextlib.suppress(OSError):
                self._send_left(number)
        self._unsent += frame(kind, number, rest)
        self._push()

    def _send_left(self, number: int) -> None:
        for name in [name for name in os.listdir(self.directory) if name.startswith(LEFT_PREFIX)]:
            path = os.path.join(self.directory, name)
            with open(path, "rb") as file:
                self._unsent += frame(LEFT, number, name.encode() + b"\0" + file.read())
            os.unlink(path)

    def _push(self) -> None:
        try:
            while self._unsent:
                sent = self.link.send(self._unsent)
                del self._unsent[:sent]
        except BlockingIOError:
            pass
        except OSError:
            self._unsent.clear()  # the next read sees the end
        with contextlib.suppress(KeyError, ValueError):
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._unsent else 0)
            self._host.selector.modify(self.link, events, self._ready)

    def _ready(self) -> None:
        self._push()
        try:
            data = self.link.recv(_CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._host.end(self)
            return
        for kind, number, rest in self._cutter.feed(data):
            if kind == SPEC:
                spec = json.loads(rest)
                spec["environ"] = self._host.shared(spec) | _passed_on(spec["environ"]) | self._host.own | self._bundle()
                self.crew.start(spec)
            elif kind == BUNDLE:
                self._keep(rest)
            elif kind == STDIN:
                self.crew.write(number, rest)
            elif kind == SIGNAL:
                self.crew.signal(number)
            elif kind == KILL:
                self.crew.kill()

    def _keep(self, piece: bytes) -> None:
        if not self.directory:
            self.directory = os.path.join(self._host.directory, f"bundle-{os.urandom(8).hex()}")
            os.mkdir(self.directory, 0o700)
        with open(os.path.join(self.directory, "bundle"), "ab") as file:
            file.write(piece)

    def _bundle(self) -> dict[str, str]:
        return {"RMGR_BUNDLE": os.path.join(self.directory, "bundle")} if self.directory else {}


class _Host:
    """All launches of one hold. own: variables that every rank here has."""

    def __init__(self, directory: str) -> None:
        self.selector = selectors.DefaultSelector()
        own = ("RMGR_SLOT", "RMGR_NODE", "RMGR_CHECKPOINT_DIR", "CUDA_VISIBLE_DEVICES", "RMGR_CPU_BIND", "RMGR_CPUS_ON_NODE")
        self.own = {name: value for name, value in os.environ.items() if name in own or name.startswith("RMGR_RESOURCE_")}
        self.directory = directory
        self._door = listen(os.path.join(directory, "ranks"))
        self._launches: set[_Launch] = set()
        self._leaving: list[_Launch] = []
        self.selector.register(self._door, selectors.EVENT_READ, self._accept)

    def serve(self) -> None:
        """Serves until the process is ended from outside."""
        while True:
            crews = [launch.crew for launch in (*self._launches, *self._leaving)]
            ticks = [crew.tick_s for crew in crews]
            for key, _ in self.selector.select(_TICK_S if any(tick is not None for tick in ticks) else None):
                if key.fd in self.selector.get_map():
                    key.data()
            for crew in crews:
                if crew.tick_s is not None:
                    crew.reap()
            self._leaving = [launch for launch in self._leaving if launch.crew.alive]

    def shared(self, spec: Mapping[str, Any]) -> dict[str, str]:
        """Returns variables for ranks of a node on the same machine as the asking side."""
        if spec["machine"] != socket.gethostname():
            return {}
        return {name: value.replace("{directory}", self.directory) for name, value in spec["on_one_machine"].items()}

    def end(self, launch: _Launch) -> None:
        """Ends the processes of a launch whose connection is closed."""
        self.selector.unregister(launch.link)
        launch.link.close()
        launch.crew.kill()
        if launch.directory:
            import shutil  # loads compressors, which few launches need

            shutil.rmtree(launch.directory, ignore_errors=True)
        self._launches.discard(launch)
        self._leaving.append(launch)

    def _accept(self) -> None:
        try:
            link, _ = self._door.accept()
        except OSError:  # no descriptor is left: the connection waits for a later round
            time.sleep(_TICK_S)
            return
        if peer_uid(link) in (-1, 0, os.getuid()):
            self._launches.add(_Launch(self, link))
        else:
            link.close()


if __name__ == "__main__":
    _Host(sys.argv[1]).serve()
