"""Starts processes of `rmgr` as forks of a process that has imported it: the same program without half a second of imports.

A run starts hundreds of daemons and thousands of commands; their imports were a third of its cost. `subprocess.Popen` of this process
hands `python -m rmgr.cli.main ...`, and programs that tests start by `application`, to a nursery: a separate process without threads or
connections, which forks. The caller gets an ordinary Popen with pid, exit code and pipes. All other programs are executed; so are these
if a variable differs that is read while Python or a library starts (`_EARLY`), or if a limit, a user or a descriptor is passed.
While RMGR_FORKED=0 is set, for the whole run or by a test, all of them are executed. Spawners of a process's own slots are forked by a
second program, as its children (`_Spawners`): those of a test, and those of a forked Starter.

Tests that measure the cost and the imports of a start execute `rmgr` themselves (`tests/unit/cli/test_main.py`).
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import faulthandler
import gc
import importlib
import json
import marshal
import os
import resource
import select
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from rmgr.coord.field_rules import BOOK
from rmgr.model.stream import json_decoder
from rmgr.runtime import failpoint
from tests.places import PYTHON, ROOT

_PROGRAM = [PYTHON, "-m", "rmgr.cli.main"]
_APPLICATION = [PYTHON, "-c"]
_applications: set[str] = set()  #: texts that may be forked
_SPAWNER = [PYTHON, "-P", "-m", "rmgr.runner.spawner"]
#: Hash seed of all forked spawners, and room for their variables in the block that /proc shows (bytes).
_SEED, _ITS_SEED, _ROOM = "PYTHONHASHSEED", "1", 64 << 10
_DAEMONS = frozenset({"starter", "watchdog", "submitter", "server"})
#: Prefixes of variables that are read while Python or a library starts: a program whose values differ from the nursery's is executed.
#: A fork can still obey those in `_LATE`, and reads RMGR_FAILPOINT again.
_EARLY = ("PYTHON", "LD_", "MALLOC_", "GRPC_", "LC_", "LANG", "TZ", "OPENSSL", "SSL_", "_RMGR_COMPLETE")
_LATE = "PYTHONFAULTHANDLER"
#: Values that may differ: a nursery imports from ROOT anyway, which a Starter puts before its own PYTHONPATH; and commands that a test runs
#: in its own process set the other one.
_SAME = {("PYTHONPATH", str(ROOT)), ("PYTHONPATH", f"{ROOT}:{ROOT}"), ("GRPC_VERBOSITY", "NONE"), ("GRPC_VERBOSITY", "ERROR")}
#: Modules that most commands use. None of them loads the library's connection, which changes how a process ends.
_FOR_COMMANDS = (
    "rmgr.cli.main",
    "rmgr.cli.submit.submit",
    "rmgr.cli.submit.run",
    "rmgr.cli.waiting",
    "rmgr.cli.listing.work",
    "rmgr.cli.listing.show",
    "rmgr.cli.listing.cluster",
    "rmgr.cli.listing.report",
    "rmgr.cli.listing.logs",
    "rmgr.cli.control.gate",
    "rmgr.cli.admin.members",
    "rmgr.cli.calls",
    "rmgr.cli.control.limits",
    "rmgr.cli.control.settings",
    "rmgr.cli.policy.laws",
    "rmgr.cli.submit.rerun",
    "rmgr.cli.help",
    "rmgr.cli.store",
    "rmgr.adapters.gateway.store",
    "rmgr.adapters.identity.credentials",
    "rmgr.adapters.identity.trust",
    "rmgr.adapters.rpc.channels",
    "rmgr.adapters.rpc.server",
    "rmgr.adapters.rpc.services",
    "rmgr.adapters.rpc.thin",
    "rmgr.adapters.sqlite.store",
    "rmgr.adapters.stores",
    "rmgr.adapters.zookeeper.client",
    "rmgr.adapters.zookeeper.server",
    "rmgr.client.calls",
    "rmgr.client.queries",
    "rmgr.client.commands.sending",
    "rmgr.client.progress",
    "rmgr.client.specs",
    "rmgr.client.submission.engine",
    "rmgr.coord.views.submission",
    "rmgr.daemons.leader.placement.pipeline",
    "rmgr.runtime.secured",
    "rmgr.submitter.answers",
    "rmgr.submitter.direct",
    "rmgr.submitter.orders",
    "rmgr.submitter.remote",
    "rmgr.submitter.talking",
    "rmgr.submitter.thread",
    "rmgr.v1.leader_pb2",
    "cryptography.hazmat.backends.openssl.backend",
    "cryptography.x509",
    "cryptography.hazmat.primitives.serialization.pkcs12",
    "encodings.idna",
    "grpc._channel",
    "grpc.experimental",
)
#: Variables that gRPC reads at its import, as commands and daemons set them.
_OF_COMMANDS, _OF_DAEMONS = {"GRPC_VERBOSITY": "NONE"}, {"GRPC_VERBOSITY": "ERROR"}
_FOR_DAEMONS = (
    "rmgr.cli.main",
    "rmgr.cli.daemons",
    "rmgr.log",
    "rmgr.daemons.starter.main",
    "rmgr.daemons.leader.watchdog",
    "rmgr.daemons.gateway.main",
    "rmgr.daemons.server.main",
    "rmgr.client.connection",
    "rmgr.client.taskqueue",
    "cryptography.x509",
    "cryptography.hazmat.primitives.serialization.pkcs12",
    "encodings.idna",
    "grpc.experimental",
)
_LARGEST = 1 << 20
_LIMITS = (resource.RLIMIT_NOFILE, resource.RLIMIT_AS, resource.RLIMIT_NPROC, resource.RLIMIT_FSIZE, resource.RLIMIT_CORE)
_ANSWERS_S = 60.0


def _early(environ: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name.startswith(_EARLY) and name != _LATE and (name, value) not in _SAME}


# -- the side that starts processes --------------------------------------------------------------------------------------


class _Nursery:
    """A nursery of this process, started when it is first needed; it ends with this process."""

    def __init__(self, modules: Sequence[str], variables: Mapping[str, str]) -> None:
        self._modules = modules
        self._variables = variables
        self._lock = threading.Lock()
        self._owner = 0  #: pid of the process that started it: a fork of that process starts its own nursery
        self._path = ""
        self._line: socket.socket | None = None  #: the nursery lives while it is open
        self._process: subprocess.Popen[bytes] | None = None
        self._early: dict[str, str] = {}
        self._limits: list[tuple[int, int]] = []

    def takes(self, environ: dict[str, str]) -> bool:
        """Whether a fork of the nursery equals an executed process with these variables."""
        with self._lock:
            if self._owner != os.getpid():
                self._start()
        return _early(environ) == self._early and [resource.getrlimit(limit) for limit in _LIMITS] == self._limits

    def start(self, order: dict[str, Any], streams: Sequence[int]) -> tuple[int, socket.socket]:
        """Starts a process. Returns its pid, and the socket on which its status will come. Raises: OSError."""
        line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            line.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _LARGEST)
            line.settimeout(_ANSWERS_S)
            line.connect(self._path)
            socket.send_fds(line, [json.dumps(order).encode()], list(streams))
            answer = json.loads(line.recv(_LARGEST))
        except BaseException:
            line.close()
            raise
        if "errno" in answer:
            line.close()
            raise OSError(answer["errno"], os.strerror(answer["errno"]), answer["file"])
        return answer["pid"], line

    def _start(self) -> None:
        self._early, self._limits = _early(dict(os.environ)), [resource.getrlimit(limit) for limit in _LIMITS]
        mine, its = socket.socketpair()
        self._path = os.path.join(tempfile.mkdtemp(prefix="rmgr-forked-"), "socket")
        words = [PYTHON, "-m", __name__, str(its.fileno()), self._path, *self._modules]
        self._process = _executed(words, pass_fds=[its.fileno()], stdin=subprocess.DEVNULL, cwd=ROOT, env={**self._variables, **os.environ})
        its.close()
        mine.settimeout(_ANSWERS_S)
        if mine.recv(1) != b".":
            raise RuntimeError("the nursery of processes has not begun")
        self._line, self._owner = mine, os.getpid()
        atexit.register(self._stop, self._owner)

    def _stop(self, owner: int) -> None:
        if os.getpid() == owner:  # not in what was forked from this process
            self._line.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(10.0)


class _Spawners:
    """The program that forks the spawners of this process (`forked_spawners.py`), started with the first one; it ends with this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner = 0
        self._line: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._early: dict[str, str] = {}
        self._limits: list[tuple[int, int]] = []

    def takes(self, words: Sequence[str], environ: dict[str, str]) -> bool:
        """Whether a fork equals an executed process with these arguments and variables."""
        if words[:4] != _SPAWNER or os.uname().machine not in ("x86_64", "aarch64"):
            return False
        with self._lock:
            if self._owner != os.getpid():
                self._start()
        early = {name: value for name, value in _early(environ).items() if name != _SEED}
        return early == self._early and [resource.getrlimit(limit) for limit in _LIMITS] == self._limits

    def start(self, order: dict[str, Any], descriptors: Sequence[int]) -> int:
        """Starts a spawner; returns its pid. Raises: OSError."""
        assert self._line is not None
        order["environ"] |= {_SEED: _ITS_SEED}
        with self._lock:
            socket.send_fds(self._line, [marshal.dumps(order)], list(descriptors))
            pid = int(self._line.recv(64))
        if pid < 0:
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return pid

    def _start(self) -> None:
        self._early, self._limits = _early(dict(os.environ)), [resource.getrlimit(limit) for limit in _LIMITS]
        mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        mine.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _LARGEST)
        words = [PYTHON, "-P", "-m", "tests.harness.forked_spawners", str(its.fileno())]
        variables = {"PYTHONPATH": str(ROOT), _SEED: _ITS_SEED, "RMGR_ROOM": "x" * _ROOM}
        environ = {**os.environ, **variables}
        self._process = _executed(
            words, pass_fds=[its.fileno()], stdin=subprocess.DEVNULL, cwd=ROOT, env=environ, start_new_session=True
        )
        its.close()
        mine.settimeout(_ANSWERS_S)
        if mine.recv(1) != b".":
            raise RuntimeError("the program that forks spawners has not begun")
        self._line, self._owner = mine, os.getpid()


_executed = subprocess.Popen
_spawners = _Spawners()
_nurseries = {True: _Nursery(_FOR_DAEMONS, _OF_DAEMONS), False: _Nursery(_FOR_COMMANDS, _OF_COMMANDS)}


def application(text: str, *words: str, **more: Any) -> subprocess.Popen[str]:
    """Starts a user's program as `python -c` does; it can import `rmgr` and this checkout's `tests`. more: arguments of Popen."""
    _applications.add(text)
    return subprocess.Popen([*_APPLICATION, text, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, **more)


class ForkingPopen(subprocess.Popen):  # type: ignore[type-arg]
    """Forks `rmgr`, executes everything else."""

    _status: socket.socket | None = None  #: socket for the status of a fork that has not been waited for

    def _execute_child(self, args: Any, *rest: Any) -> None:  # as `Popen.__init__` of Python 3.11 to 3.13 calls it
        executable, preexec_fn, close_fds, pass_fds, cwd, env, _, _, shell, *pipes, _, gid, gids, uid, umask, new_session, group = rest
        words = list(args) if isinstance(args, list | tuple) else []
        environ = {os.fsdecode(name): os.fsdecode(value) for name, value in (os.environ if env is None else env).items()}
        is_plain = os.environ.get("RMGR_FORKED") != "0" and not (shell or executable or preexec_fn) and close_fds and umask == -1
        is_plain = is_plain and gid is None and gids is None and uid is None and group == -1
        streams = [number if given == -1 else given for number, given in enumerate((pipes[0], pipes[3], pipes[5]))]
        if is_plain and new_session and os.path.isdir(cwd or "") and _spawners.takes(words, environ):
            sys.audit("subprocess.Popen", words[0], words, cwd, env)
            order = {"words": words, "environ": environ, "cwd": os.fspath(cwd), "passed": list(pass_fds)}
            self.pid = _spawners.start(order, [*streams, *pass_fds])
            self._child_created = True
            self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]
            return
        is_application = words[:2] == _APPLICATION and words[2] in _applications
        is_daemon = not _DAEMONS.isdisjoint(words)
        # A daemon starts work with its own interpreter, so that must be the nursery's. A command starts none: any interpreter will do.
        is_rmgr = words[1:3] == _PROGRAM[1:] and words[0] in (_PROGRAM[0], "" if is_daemon else sys.executable)
        nursery = _nurseries.get(is_application or is_daemon)
        if nursery is None or not is_plain or pass_fds or not (is_application or is_rmgr) or not nursery.takes(environ):
            super()._execute_child(args, *rest)  # type: ignore[misc]
            return
        sys.audit("subprocess.Popen", words[0], words, cwd, env)
        order = {
            "text": words[2] if is_application else "",
            "words": [str(word) for word in words[3:]],
            "environ": environ,
            "cwd": os.path.abspath(os.fsdecode(cwd) if cwd is not None else os.getcwd()),
            "umask": _umask(),
            "is_leader": bool(new_session),
        }
        self.pid, self._status = nursery.start(order, streams)
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]

    def _internal_poll(self, _deadstate: Any = None, *rest: Any) -> Any:
        if self._status is None:
            return super()._internal_poll(_deadstate, *rest)  # type: ignore[misc]
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._wait(0)
        return self.returncode

    def _wait(self, timeout: float | None) -> Any:
        if self._status is None:
            return super()._wait(timeout)  # type: ignore[misc]
        end_s = None if timeout is None else time.monotonic() + timeout
        while self.returncode is None:
            left_s = 0.5 if end_s is None else max(0.0, min(0.5, end_s - time.monotonic()))
            if _is_readable(self._status, left_s):
                with self._waitpid_lock:  # type: ignore[attr-defined]
                    if self.returncode is None:
                        self._handle_exitstatus(int(self._status.recv(64) or b"9"))  # type: ignore[attr-defined]
                        self._status.close()
            elif end_s is not None and time.monotonic() >= end_s:
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return self.returncode


def _is_readable(line: socket.socket, within_s: float) -> bool:
    if line.fileno() < 0:  # another thread has read the exit code
        return False
    poll = select.poll()  # not select(), which refuses file numbers above 1,023
    poll.register(line, select.POLLIN)
    return bool(poll.poll(within_s * 1000))


def _umask() -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines():
        if line.startswith("Umask:"):
            return int(line.split()[1], 8)
    raise RuntimeError("the kernel does not tell the umask")


def install() -> None:
    """Makes `subprocess.Popen`, and everything built on it, fork `rmgr`."""
    subprocess.Popen = ForkingPopen  # type: ignore[misc]


# -- the nursery ------------------------------------------------------------------------------------------------------------


def _main(line: socket.socket, path: str, modules: Sequence[str]) -> str:
    """Forks children until the process that started the nursery is gone. Returns in each child: its program's text, "" for `rmgr`."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(path)
    listener.listen(128)
    sys.argv = ["-m"]  # as while `python -m` imports its module
    for module in modules:
        importlib.import_module(module)
    for kind in BOOK.kinds():
        json_decoder(kind)  # each costs 0.1 to 1 ms, and a command needs a dozen
    gc.collect()
    gc.freeze()
    line.send(b".")
    wake, ended = socket.socketpair()
    wake.setblocking(False)
    ended.setblocking(False)
    usual = signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(ended.fileno())
    children: dict[int, socket.socket] = {}
    with selectors.DefaultSelector() as selector:
        for one in (line, listener, wake):
            selector.register(one, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is line:
                    os.unlink(path)
                    os.rmdir(os.path.dirname(path))
                    os._exit(0)
                elif key.fileobj is wake:
                    with contextlib.suppress(BlockingIOError):
                        wake.recv(4096)
                    _reap(children)
                else:
                    asked, _ = listener.accept()
                    message, streams, _, _ = socket.recv_fds(asked, _LARGEST, 3)
                    pid = os.fork() if message else -1
                    if pid == 0:
                        signal.set_wakeup_fd(-1)
                        signal.signal(signal.SIGCHLD, usual)
                        selector.close()
                        for one in (line, listener, wake, ended, *children.values()):
                            one.close()
                        order = json.loads(message)
                        _become(order, streams, asked)
                        return str(order["text"])
                    for stream in streams:
                        os.close(stream)
                    if pid > 0:
                        children[pid] = asked


def _reap(children: dict[int, socket.socket]) -> None:
    while children:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        with children.pop(pid) as line, contextlib.suppress(OSError):  # no process may wait for it any more
            line.send(str(status).encode())


def _become(order: dict[str, Any], streams: Sequence[int], asked: socket.socket) -> None:
    """Gives a forked process the variables, directory, streams and arguments of an executed one."""
    try:
        os.chdir(order["cwd"])
    except OSError as error:
        asked.send(json.dumps({"errno": error.errno, "file": order["cwd"]}).encode())
        os._exit(127)
    if order["is_leader"]:
        os.setsid()
    os.umask(order["umask"])
    os.environ.clear()
    os.environ.update(order["environ"])
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    for stream in streams:
        os.close(stream)
    sys.stdin = open(0, encoding=sys.stdin.encoding, errors=sys.stdin.errors, closefd=False)  # noqa: SIM115 - to the end
    sys.stdout = open(1, "w", encoding=sys.stdout.encoding, errors=sys.stdout.errors, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding=sys.stderr.encoding, errors="backslashreplace", buffering=1, closefd=False)  # noqa: SIM115
    if os.environ.get(_LATE):
        faulthandler.enable()
    if order["text"]:
        sys.argv = ["-c", *order["words"]]
        sys.orig_argv = [*_APPLICATION, order["text"], *order["words"]]
    else:
        sys.argv = [str(sys.modules["rmgr.cli.main"].__file__), *order["words"]]
        sys.orig_argv = [*_PROGRAM, *order["words"]]
    points = os.environ.get(failpoint.VARIABLE)
    failpoint._ACTIVE = failpoint.Failpoints(points) if points else None
    asked.send(json.dumps({"pid": os.getpid()}).encode())
    asked.close()


def _run(words: Sequence[str]) -> NoReturn:
    """Runs `rmgr` to its end. A daemon ends as Python does, but destroys no objects: that would copy the nursery's pages, in 40 ms."""
    from rmgr.cli.main import main

    if not _DAEMONS.isdisjoint(words):
        _nurseries.clear()  # it forks the spawners of its slots, nothing else
        install()
    try:
        main(words)
    except SystemExit as ended:
        if _DAEMONS.isdisjoint(words) or not isinstance(ended.code, int):
            raise
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(ended.code)
    raise AssertionError("main() ends the process")


if __name__ == "__main__":
    if text := _main(socket.socket(fileno=int(sys.argv[1])), sys.argv[2], sys.argv[3:]):
        sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(text, "<string>", "exec"), vars(sys.modules["__main__"]))
    else:
        _run(sys.argv[1:])
