"""`rmgr run` inside a job: one process a rank on all of its nodes, their output, signals and codes; and the launcher of mpirun.

Ranks of this node are children of this process; the others are started through the socket RMGR_RANKS (runner/ranks/ranks.py has the
protocol). Standard library alone, since mpirun's launcher runs without anything else; and little of that, since each rank's start waits for
it.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from rmgr.runner.host import dispositions
from rmgr.runner.ranks import ranks

#: Time between SIGTERM and SIGKILL for ranks that are ended because one has failed.
_GRACE_S = 2.0
_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
#: Output without an end of line is held back up to so many bytes.
_LINE_BYTES = 64 * 1024
_LOST = 125
#: Most ranks that are named because they failed.
_MOST_TOLD = 5
_FLAGS = {"-l": "label", "--label": "label", "-K": "kill", "--kill-on-bad-exit": "kill"}
#: Variables for two nodes on one machine (`rmgr dev`): Open MPI 4 names the shared memory of a node's ranks, and its files, after the
#: machine, and crashes. So only one node has such memory; tests/integration/starter/test_starter_ranks.py would fail without this.
_ON_ONE_MACHINE = {"OMPI_MCA_btl": "self,tcp", "OMPI_MCA_orte_tmpdir_base": "{directory}"}
#: Variables that mpirun's daemons on other nodes do not get. Nor RMGR_RESOURCES: their ranks get everything that the job has there.
_OF_MPIRUN = ("OMPI_", "PMIX_", "PMI_", "PRTE_", "RMGR_RESOURCES")
_CHUNK = 64 * 1024


class NotInJob(ValueError):
    """The environment describes no valid job."""


class OwnAllocation(NamedTuple):
    """The allocation around this process. shares: (node, processes), the node of the script first."""

    here: str
    shares: tuple[tuple[str, int], ...]
    door: str

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> OwnAllocation:
        """Reads it from the job's variables. Raises: NotInJob."""
        try:
            with open(environ["RMGR_HOSTFILE"], encoding="utf-8") as file:
                lines = [line.split() for line in file if line.strip()]
            shares = tuple((line[0], int(line[1].removeprefix("slots="))) for line in lines)
            return cls(here=environ["RMGR_NODE"], shares=shares, door=environ["RMGR_RANKS"])
        except KeyError as error:
            raise NotInJob(f"this is not the script of a placed job: {error.args[0]} is not set") from None
        except (OSError, IndexError, ValueError) as error:
            raise NotInJob(f"this is not the script of a placed job: {error}") from None

    @property
    def processes(self) -> int:
        """Processes on all nodes."""
        return sum(count for _, count in self.shares)

    def spread(self, processes: int) -> list[tuple[str, int, int]]:
        """Returns (node, first rank, ranks), filling node after node. Raises: NotInJob for more than there are."""
        if not 0 < processes <= self.processes:
            raise NotInJob(f"-n {processes} is more than the job has ({self.processes}): rmgr submit -n {processes} asks for so many")
        found, first = [], 0
        for node, count in self.shares:
            taken = min(count, processes - first)
            if taken:
                found.append((node, first, taken))
            first += taken
        return found


class _Remote:
    """The ranks of another node. waiting: those that have not ended."""

    def __init__(self, node: str, link: socket.socket, waiting: set[int]) -> None:
        self.node, self.link, self.waiting = node, link, waiting
        self.cutter = ranks.Cutter()


class _Printer:
    """Prints output of ranks to this process's own streams: lines stay whole; with labels each begins with its rank."""

    def __init__(self, *, label: bool, is_single: bool) -> None:
        self._label = label
        self._is_plain = is_single and not label
        self._rests: dict[tuple[int, int], bytes] = {}

    def take(self, kind: int, rank: int, data: bytes) -> None:
        if self._is_plain:
            _write_all(kind, data)
            return
        data = self._rests.pop((kind, rank), b"") + data
        whole, end, rest = data.rpartition(b"\n")
        if len(rest) > _LINE_BYTES:
            whole, end, rest = data, b"\n", b""
        if rest:
            self._rests[kind, rank] = rest
        if end:
            self._print(kind, rank, whole)

    def finish(self, rank: int) -> None:
        """Prints output that the rank left without an end of line."""
        for kind in (ranks.OUT, ranks.ERR):
            rest = self._rests.pop((kind, rank), b"")
            if rest:
                self._print(kind, rank, rest)

    def _print(self, kind: int, rank: int, lines: bytes) -> None:
        if self._label:
            lines = b"\n".join(b"%d: %b" % (rank, line) for line in lines.split(b"\n"))
        _write_all(kind, lines + b"\n")


def _write_all(kind: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(1 if kind == ranks.OUT else 2, view) :]


class Launch:
    """One command on some ranks of a job, until the last of them has ended.

    Args:
        spread: (node, first rank, ranks). environ: of all ranks. This process's standard input goes to the first rank.
        binds: each rank has processors of its own, if the job has some on its nodes.
    """

    def __init__(
        self,
        place: OwnAllocation,
        argv: Sequence[str],
        spread: Sequence[tuple[str, int, int]],
        *,
        environ: Mapping[str, str],
        label: bool = False,
        kill_on_bad_exit: bool = False,
        binds: bool = True,
    ) -> None:
        self._place = place
        self._argv = list(argv)
        self._spread = list(spread)
        self._binds = binds
        self._kill_on_bad_exit = kill_on_bad_exit
        total = sum(count for _, _, count in spread)
        self._environ = dict(environ) | {"RMGR_NPROCS": str(total)}
        self._umask = os.umask(0o077)  # no other thread of this process creates files
        os.umask(self._umask)
        self._printer = _Printer(label=label, is_single=total == 1)
        self._selector = selectors.DefaultSelector()
        self._crew = ranks.Crew(self._selector, self._told)
        self._remotes: list[_Remote] = []
        self._codes: dict[int, int] = {}
        self._total = total
        self._names = {first + at: node for node, first, count in spread for at in range(count)}
        self._kill_s: float | None = None
        self._first_bad = 0  #: code of the rank whose failure ended the others
        self._is_ending = False  #: ranks were sent a signal, or given up: how they end says nothing new
        self._told_bad = 0
        self._unbegun: set[int] = set()
        self._signals: list[tuple[int, int]] = []
        self._wake_r, self._wake_w = os.pipe()
        self._input: tuple[_Remote, int] | None = None  #: the rank on another node that gets our standard input
        self._input_ahead = 0  #: bytes sent that the rank has not taken yet
        self._input_is_watched = False

    def run(self) -> int:
        """Returns the highest code of all ranks, or of the rank whose failure ended the others; 125 if a node was lost."""
        os.set_blocking(self._wake_r, False)
        self._selector.register(self._wake_r, selectors.EVENT_READ, self._on_signals)
        forwarded = [signum for signum in _FORWARDED if signum != signal.SIGHUP or not dispositions.is_deaf_to(signum)]  # for nohup
        old = {signum: signal.signal(signum, self._caught) for signum in forwarded}
        mask: set[int] | None = None  # this thread's former mask
        try:
            for node, first, count in self._spread:
                self._start(node, first, count)
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, forwarded)  # not earlier: ranks would inherit it
            threading.Thread(target=self._catch, args=(_spawner_pid(),), name="signals", daemon=True).start()
            while len(self._codes) < self._total:
                self._turn()
        except BrokenPipeError:
            self._kill()
            return 128 + signal.SIGPIPE
        finally:
            for remote in self._remotes:
                remote.link.close()
            self._crew.kill()
            for signum, handler in old.items():
                signal.signal(signum, handler)
            if mask is not None:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        return self._first_bad or max(self._codes.values())

    def _turn(self) -> None:
        waits = [self._crew.tick_s] if self._crew.tick_s is not None else []
        if self._kill_s is not None:
            waits.append(max(0.0, self._kill_s - time.monotonic()))
        for key, _ in self._selector.select(min(waits, default=None)):
            if key.fd in self._selector.get_map():
                key.data()
        if self._crew.tick_s is not None:
            self._crew.reap()
        if self._kill_s is not None and time.monotonic() >= self._kill_s:
            self._kill()

    # -- starting ----------------------------------------------------------------------------------------------------------

    def _start(self, node: str, first: int, count: int) -> None:
        is_local = node == self._place.here
        gets_stdin = first == self._spread[0][1]
        spec = {
            "argv": self._argv,
            "environ": self._environ | {"RMGR_NODE": node},
            "cwd": os.getcwd(),
            "umask": self._umask,
            "first": first,
            "count": count,
            "slots": dict(self._place.shares).get(node, count),
            "stdin": gets_stdin and not is_local,
            "binds": self._binds,
            "machine": socket.gethostname(),
            "on_one_machine": _ON_ONE_MACHINE,
        }
        if is_local:
            self._crew.start(spec, stdin=0 if gets_stdin else None)
            return
        try:
            link = ranks.connect(self._place.door)
        except OSError as error:
            self._complain(f"the Starter of this node cannot be asked: {error.strerror}")
            self._lose(range(first, first + count))
            return
        remote = _Remote(node, link, set(range(first, first + count)))
        self._remotes.append(remote)
        try:
            link.sendall(json.dumps({"node": node}).encode() + b"\n")
            self._send_bundle(link)
            link.sendall(ranks.frame(ranks.SPEC, 0, json.dumps(spec).encode()))
        except OSError:  # refused: the reason and the end of the link will arrive
            with contextlib.suppress(OSError):
                link.shutdown(socket.SHUT_WR)
        self._selector.register(link, selectors.EVENT_READ, lambda: self._hear(remote))
        if spec["stdin"]:
            self._input = (remote, first)
            self._watch_input()

    def _send_bundle(self, link: socket.socket) -> None:
        """Sends the file of which ranks on another node get a copy. Raises: OSError."""
        if "RMGR_BUNDLE" in self._environ:
            with open(self._environ["RMGR_BUNDLE"], "rb") as file:
                while piece := file.read(_CHUNK):
                    link.sendall(ranks.frame(ranks.BUNDLE, 0, piece))

    def _watch_input(self) -> None:
        """Reads our standard input as fast as the rank takes it."""
        wanted = self._input is not None and self._input_ahead < ranks.MOST_INPUT
        if wanted and not self._input_is_watched:
            try:
                self._selector.register(0, selectors.EVENT_READ, self._feed)
                self._input_is_watched = True
            except (OSError, ValueError):  # a file is always ready, and ends
                while self._input is not None and self._input_ahead < ranks.MOST_INPUT:
                    self._feed()
        elif not wanted and self._input_is_watched:
            self._selector.unregister(0)
            self._input_is_watched = False

    def _feed(self) -> None:
        assert self._input is not None
        remote, rank = self._input
        try:
            data = os.read(0, _CHUNK)
            remote.link.sendall(ranks.frame(ranks.STDIN, rank, data))
        except OSError:
            data = b""
        self._input_ahead += len(data)
        if not data:
            self._input = None
        if self._input_is_watched:
            self._watch_input()

    # -- reports of ranks --------------------------------------------------------------------------------------------------

    def _hear(self, remote: _Remote) -> None:
        try:
            data = remote.link.recv(_CHUNK)
        except OSError:
            data = b""
        for kind, number, rest in remote.cutter.feed(data):
            if kind == ranks.EXIT:
                remote.waiting.discard(number)
            elif kind == ranks.TAKEN:
                self._input_ahead -= int(rest)
                self._watch_input()
            self._told(kind, number, rest)
        if not data:
            self._selector.unregister(remote.link)
            if remote.waiting:
                self._complain(f"the processes on node {remote.node} are gone all at once: {_name_ranks(remote.waiting)}")
                self._lose(remote.waiting)

    def _told(self, kind: int, number: int, rest: bytes) -> None:
        if kind in {ranks.OUT, ranks.ERR}:
            self._printer.take(kind, number, rest)
        elif kind == ranks.FAILED:
            self._unbegun.add(number)
            where = f"rank {number} on node {self._names[number]}: " if number in self._names else ""
            self._complain(where + rest.decode(errors="replace"))
        elif kind == ranks.LEFT:
            self._keep_left(rest)
        elif kind == ranks.EXIT:
            self._printer.finish(number)
            code = self._codes[number] = int(rest)
            if code not in {0, ranks.SAVED_EXIT_CODE} and not self._is_ending:
                ends = self._kill_on_bad_exit and len(self._codes) < self._total
                self._tell_bad(number, ": the others are ended" if ends else "")
                if ends:
                    self._first_bad = code
                    self._end()

    def _tell_bad(self, number: int, more: str) -> None:
        """Says which rank failed, and where: nothing else does. One alone is told by the job's own end; one that never began was told."""
        self._told_bad += 1
        if self._total > 1 and (self._told_bad <= _MOST_TOLD or more) and number not in self._unbegun:
            from rmgr.model.units import told_code  # no start of a rank waits for this import

            self._complain(f"rank {number} on node {self._names[number]} ended with code {told_code(self._codes[number])}{more}")

    def _keep_left(self, rest: bytes) -> None:
        name, _, data = rest.partition(b"\0")
        path = os.path.join(os.path.dirname(self._environ.get("RMGR_BUNDLE", "")), os.path.basename(os.fsdecode(name)))
        if "RMGR_BUNDLE" in self._environ and name.startswith(ranks.LEFT_PREFIX.encode()):
            with contextlib.suppress(OSError), open(f"{path}.new", "wb") as file:
                file.write(data)
            with contextlib.suppress(OSError):
                os.rename(f"{path}.new", path)

    def _lose(self, numbers: Sequence[int] | set[int] | range) -> None:
        """Gives up ranks that are gone without a code; ends the others, too."""
        self._is_ending = True
        for number in sorted(numbers):
            self._codes[number] = _LOST
        self._first_bad = self._first_bad or _LOST
        if len(self._codes) < self._total:
            self._end()

    def _end(self) -> None:
        self._forward(signal.SIGTERM, to_local=True)
        self._kill_s = time.monotonic() + _GRACE_S

    def _kill(self) -> None:
        self._kill_s = None
        self._crew.kill()
        for remote in self._remotes:
            with contextlib.suppress(OSError):
                remote.link.sendall(ranks.frame(ranks.KILL))

    def _complain(self, words: str) -> None:
        with contextlib.suppress(OSError):
            os.write(2, f"rmgr run: {words}\n".encode())

    # -- signals -----------------------------------------------------------------------------------------------------------

    def _caught(self, signum: int, _frame: object) -> None:
        self._post(signum, 0)

    def _catch(self, spawner: int) -> None:
        """Waits for signals and their senders: signals from the Starter to the job have already reached the ranks of this node."""
        while True:
            info = signal.sigwaitinfo(_FORWARDED)
            self._post(info.si_signo, info.si_pid if info.si_pid == spawner else 0)

    def _post(self, signum: int, spawner: int) -> None:
        self._signals.append((signum, spawner))
        with contextlib.suppress(OSError):
            os.write(self._wake_w, b"s")

    def _on_signals(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_r, 4096)
        while self._signals:
            signum, spawner = self._signals.pop(0)
            self._forward(signum, to_local=not spawner)

    def _forward(self, signum: int, *, to_local: bool) -> None:
        self._is_ending = self._is_ending or signum not in {signal.SIGUSR1, signal.SIGUSR2}
        if to_local:
            self._crew.signal(signum)
        for remote in self._remotes:
            with contextlib.suppress(OSError):
                remote.link.sendall(ranks.frame(ranks.SIGNAL, int(signum)))


def _name_ranks(numbers: set[int]) -> str:
    return f"rank {', '.join(map(str, sorted(numbers)))}"


def _spawner_pid() -> int:
    """Returns the process that started the job on this node, the parent of its session's leader; 0 if unknown."""
    with contextlib.suppress(OSError, IndexError, ValueError), open(f"/proc/{os.getsid(0)}/stat", "rb") as file:
        return int(file.read().rpartition(b") ")[2].split()[1])
    return 0


def run(
    argv: Sequence[str],
    *,
    processes: int = 0,
    label: bool = False,
    kill_on_bad_exit: bool = False,
    environ: Mapping[str, str] | None = None,
) -> int:
    """Runs a command on all nodes of the job around us, one process a rank; returns the highest code. Raises: NotInJob.

    Args:
        processes: number of ranks, 0 = as many as the job has.
    """
    environ = os.environ if environ is None else environ
    place = OwnAllocation.of(environ)
    spread = place.spread(processes or place.processes)
    kill = kill_on_bad_exit or environ.get("RMGR_KILL_ON_BAD_EXIT") == "1"
    theirs = {name: value for name, value in environ.items() if name != "RMGR_RANKS"}
    return Launch(place, argv, spread, environ=theirs, label=label, kill_on_bad_exit=kill).run()


def agent(words: Sequence[str]) -> int:
    """Runs NODE CMD... as ssh would: CMD goes to a shell there. Variables that mpirun has set for itself stay here.

    A daemon of mpirun's stays in the foreground: when it goes, its part of the job has ended.
    """
    if len(words) < 2:
        raise NotInJob("rmgr agent NODE CMD...")
    node, argv = words[0], ["/bin/sh", "-c", " ".join(word for word in words[1:] if word != "--daemonize")]
    place = OwnAllocation.of(os.environ)
    plain = {name: value for name, value in os.environ.items() if not name.startswith(_OF_MPIRUN)}
    return Launch(place, argv, [(node, 0, 1)], environ=plain, binds=False).run()


def main(words: Sequence[str]) -> int:
    """Runs as `rmgr` on the PATH of a job's script, and as mpirun's launcher: `run` and `agent` start fast here."""
    try:
        if words[:1] == ["agent"]:
            return agent(words[1:])
        if words[:1] == ["terminal"]:
            from rmgr.runner.ranks import terminal

            return terminal.serve(words[1:])
        plain = _plain_run(words)
        if plain is not None:
            return plain()
    except NotInJob as error:
        sys.stderr.write(f"rmgr {words[0]}: {error}\n")
        return 2
    return os.execv(sys.executable, [sys.executable, "-m", "rmgr.cli.main", *words])  # noqa: S606 - the rest is the whole command line's


def _plain_run(words: Sequence[str]) -> Callable[[], int] | None:
    """Returns the call for a `run` with simple options, None for everything else."""
    if words[:1] != ["run"]:
        return None
    rest, processes, flags = list(words[1:]), 0, set()
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        if word == "--":
            break
        if word in _FLAGS:
            flags.add(_FLAGS[word])
        elif word in {"-n", "--processes"} and rest and rest[0].isdigit():
            processes = int(rest.pop(0))
        else:
            return None
    if not rest or (processes == 0 and "-n" in words[: len(words) - len(rest)]):
        return None
    return partial(run, rest, processes=processes, label="label" in flags, kill_on_bad_exit="kill" in flags)
