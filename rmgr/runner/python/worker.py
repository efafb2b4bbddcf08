"""The Python worker: takes batches of calls from its Starter, runs them one after another, and sends back their results.

Forked by the spawner. Results are collected on the board and sent after 5 ms, or when nothing is left to do; a worker that is killed loses
only its current call.
"""

from __future__ import annotations

import _thread
import contextlib
import ctypes
import errno
import faulthandler
import fcntl
import gc
import io
import math
import mmap
import os
import resource
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from types import FrameType
from typing import Any, NoReturn, TextIO

import msgspec

from rmgr.model.frames import (
    NO_OUTPUT,
    BatchShape,
    Blocked,
    Granted,
    Leaving,
    Output,
    Skipped,
    StartWorker,
    TaskBatch,
    TaskExtra,
    TaskItem,
    ToWorker,
    Unblocking,
    WorkerRefused,
    WorkerUp,
)
from rmgr.model.states import Reason
from rmgr.model.stream import FrameError, FrameReader, encode
from rmgr.runner import filters, modules, pickles, settings
from rmgr.runner.current import TaskTerminated, gate, running
from rmgr.runner.host.board import PAGE, RESULTS_BYTES, RESULTS_HEAD, REVOKED_AFTER, REVOKED_UNTIL, SEQ, STARTED, TERM_SEQ, Board
from rmgr.runner.host.environment import TaskEnvironment, umask_of
from rmgr.runner.host.kernel import CLOCK, DISK_WAS_FULL, NODE_TROUBLE, is_full, keep_memory
from rmgr.runner.host.outputs import open_output, take
from rmgr.runner.python.calls import (
    FunctionCache,
    ResultWriter,
    WrongCount,
    arguments,
    check_versions,
    failure,
    found_no_room,
    not_begun,
    told_with_cure,
)
from rmgr.runner.unpickling import loads

_FLUSH_NS = 5_000_000
#: A larger result is sent at once instead of being kept on the board.
_DIRECT = 32 * 1024
#: After this time an idle worker checks whether tasks left processes behind.
_IDLE_S = 2.0
#: For shorter tasks the processor clock is not read.
_SHORT_NS = 1_000_000
_RECEIVE = 256 * 1024
#: Descriptors of the worker have this number or a higher one: tasks that make daemons close all below 256. `select` takes up to 1023.
_ASIDE = 960


def aside(fd: int) -> int:
    """Moves a descriptor of the worker out of the way of tasks that close all descriptors they do not know; returns its new number."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, max(3, min(_ASIDE, most - 64)))
    os.close(fd)
    return moved


def run(spec: StartWorker, sock: socket.socket, board: Board, directory: str, node: str, poke: Callable[[], None]) -> NoReturn:
    """Runs the whole life of a worker, from after the fork (session, descriptors, cgroup are settled) to its `_exit`."""
    worker = WorkerProcess(sock, board, directory, node, poke)
    if worker.furnish(spec):
        worker.serve()
    os._exit(0)


@dataclass(frozen=True, slots=True)
class _Beginning:
    """With what each batch begins, whatever the calls before it have done.

    umask: None = the submitter's. handlers: of SIGTERM and SIGINT in place of the worker's. outputs: descriptors in place of 1 and 2.
    streams: sys.stdout and sys.stderr; None = those of the worker.
    """

    cwd: str
    umask: int | None = None
    handlers: dict[int, Any] = field(default_factory=dict)
    outputs: dict[int, int] = field(default_factory=dict)
    streams: tuple[TextIO, TextIO] | None = None


class WorkerProcess:
    """State of the worker process; everything except `blocking()` happens on its main thread."""

    def __init__(self, sock: socket.socket, board: Board, directory: str, node: str, poke: Callable[[], None]) -> None:
        self._socket = sock
        self._board = board
        self._directory = directory
        self._cwd = os.path.join(directory, "cwd")
        self._begins = _Beginning(self._cwd)
        self._node = node
        self._poke = poke
        self._pid = os.getpid()
        self._reader: FrameReader[TaskBatch | Granted] = FrameReader(ToWorker)
        self._queue: deque[TaskBatch] = deque()
        # Only pages that a message has ever reached exist: an idle worker has few.
        self._buffer = memoryview(mmap.mmap(-1, _RECEIVE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        self._functions = FunctionCache()
        self._results = ResultWriter(directory)
        self._encoder = msgspec.msgpack.Encoder()
        self._size = self._count = 0
        self._unsent_since = -math.inf
        self._skipped: list[int] = []
        self._send_lock, self._receive_lock = threading.Lock(), threading.Lock()
        self._granted = 0
        self._seq = 0
        self._in_call = False
        self._missed = 0  # task of a SIGTERM that came outside of a call
        self._ordered = 0  # task of the last SIGTERM that the spawner had announced
        self._forking: dict[int, set[int]] = {}  # forking threads, with their signal masks
        self._submission = self._newest = -1
        self._born_ns = time.time_ns()
        self._shape: BatchShape | None = None
        self._paths = [os.path.join(directory, "stdout"), os.path.join(directory, "stderr")]
        self._fds = [-1, -1]
        self._cpu_us = 0

    # -- set-up ------------------------------------------------------------------------------------------------------

    def furnish(self, spec: StartWorker) -> bool:
        """Makes the environment that the spec asks for; False if that is impossible, and the Starter was told."""
        self._spec = spec
        self._results.inline_bytes = spec.inline_bytes
        self._open_outputs()
        os.chdir(self._cwd)
        pickles.serve(spec.program, spec.group)
        sys.argv = list(spec.argv) or [""]
        os.environ.update(spec.environ)
        os.environ["PWD"] = self._cwd  # the variable inherited from the Starter names another directory
        os.environ.pop("OLDPWD", None)
        self._environment = TaskEnvironment(self._node)
        running.node = self._node
        faulthandler.enable(self._fds[1])  # its log shows where a task crashed the interpreter
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, self._on_signal)
        os.register_at_fork(before=self._before_fork, after_in_parent=self._in_parent, after_in_child=self._in_child)
        gate.seq, gate.block, gate.unblock = (lambda: self._seq), self._block, self._unblock
        in_initializer = False
        try:
            check_versions(spec, self._node)
            self._functions.pickled_by(spec.cloudpickle, self._node)
            sys.path[:0] = [path for path in spec.archives if path not in sys.path]
            modules.find_modules_in(spec.sys_path)
            if spec.warnings:
                filters.apply(spec.warnings)
            settings.apply(spec.settings)
            if spec.initializer:
                in_initializer = True
                function, args = loads(spec.initializer)
                mask = _current_umask()
                function(*args)
                self._begins = self._left_by_initializer(mask)
        except BaseException as error:  # noqa: BLE001 - an initializer raises anything, SystemExit too
            data, line = told_with_cure(error)
            self._send(encode(WorkerRefused(data, line, in_initializer, *self._take_outputs(0))))
            return False
        self._send(encode(WorkerUp(self._pid)))
        return True

    def _left_by_initializer(self, mask: int) -> _Beginning:
        """What it has changed of that with which each batch begins. mask: the umask that it found."""
        umask = _current_umask()
        outputs = {}
        for number, fd in enumerate(self._fds, 1):
            with contextlib.suppress(OSError):  # it has closed it
                if not os.path.sameopenfile(number, fd):
                    outputs[number] = aside(os.dup(number))
        handlers = {int(signum): signal.getsignal(signum) for signum in (signal.SIGTERM, signal.SIGINT)}  # None: set by C code
        given = (sys.stdout, sys.stderr)
        return _Beginning(
            cwd=os.getcwd(),
            umask=umask if umask != mask else None,
            handlers={signum: handler for signum, handler in handlers.items() if handler is not None and handler != self._on_signal},
            outputs=outputs,
            streams=given if given != self._streams else None,
        )

    def _open_outputs(self) -> None:
        for number in range(2):
            self._open_output(number)
        self._open_streams()
        self._libc = ctypes.CDLL(None)
        keep_memory()
        for name in ("stdout", "stderr"):  # output of C's printf shows while the task runs
            try:
                self._libc.setvbuf(ctypes.c_void_p.in_dll(self._libc, name), None, 1, 0)
            except ValueError:
                continue

    def _open_output(self, number: int) -> None:
        fd = self._fds[number] = aside(open_output(self._paths[number]))
        os.dup2(self._begins.outputs.get(number + 1, fd), number + 1)

    def _open_streams(self) -> None:
        self._streams = (_stream(1, "<stdout>"), _stream(2, "<stderr>"))
        sys.__stdout__, sys.__stderr__ = self._streams  # type: ignore[misc]
        sys.stdout, sys.stderr = self._streams

    # -- the loop ----------------------------------------------------------------------------------------------------

    def serve(self) -> None:
        """Runs tasks until the Starter is gone or this worker should be replaced."""
        gc.collect()
        gc.freeze()
        idle_checked = True
        while True:
            if not self._queue:
                self._flush()
                self._board.rest()
                self._seq = 0
                self._board.busy = False
                if not idle_checked and not select.select([self._socket], [], [], _IDLE_S)[0]:
                    idle_checked = True
                    if self._left_children():
                        self._leave("tasks left processes behind")
                        return
                if not self._receive():
                    return
                if not self._queue:
                    continue
            self._board.busy = True
            if not self._board.watched:
                self._poke()
            batch = self._queue.popleft()
            idle_checked = False
            if batch.shape.submission != self._submission:
                if self._submission >= 0 and (why := self._why_replaced(batch.shape.submission)):
                    self._leave(why)
                    return
                self._submission = batch.shape.submission
                self._newest = max(self._newest, self._submission)
            self._run(batch)

    def _run(self, batch: TaskBatch) -> None:
        """Runs one batch. The code of the loop costs each task about 4 us in all."""
        shape = batch.shape
        board = self._board
        try:
            os.chdir(self._begins.cwd)
        except OSError:
            os._exit(0)  # the directory was removed: nothing of this batch has begun
        for number, fd in enumerate(self._fds, 1):
            os.dup2(self._begins.outputs.get(number, fd), number)
        sys.stdout, sys.stderr = self._streams  # first: what a task has put there may close them when it goes
        if any(map(_is_closed, self._streams)):  # by a task
            self._open_streams()
        if self._begins.streams is not None:
            sys.stdout, sys.stderr = self._begins.streams
        for signum in (signal.SIGTERM, signal.SIGINT):  # a task may have set its own handlers
            signal.signal(signum, self._begins.handlers.get(signum, self._on_signal))
        if shape != self._shape:
            self._shape = shape
            board.set_batch(
                limit_ns=shape.limit_us * 1000,
                grace_ns=shape.grace_us * 1000,
                exclusive=shape.exclusive,
                memory_bytes=shape.memory_bytes,
                output_cap=shape.output_cap,
            )
            self._environment.start_batch(shape)
            os.umask(umask_of(shape.environ) if self._begins.umask is None else self._begins.umask)
        in_ranks = "RMGR_LAUNCH" in shape.environ
        call = partial(self._call_ranks, batch) if in_ranks else self._call
        start_task, encode_end, cap = self._environment.start_task, self._encoder.encode, shape.output_cap
        words = board.words
        clock, getpid, keyed, exclusive = time.clock_gettime_ns, os.getpid, batch.keyed, shape.exclusive
        running.shape = shape
        self._cpu_us = _cpu_us()
        function: Callable[..., object] | None = None
        broken: TaskExtra | None = None
        now = clock(CLOCK)
        board.start(batch.items[0].seq, now)  # a module that crashes the worker counts against the first task
        try:
            function = self._leave if in_ranks else self._functions.get(batch)  # not read here if for ranks: it may begin MPI
        except BaseException as error:  # noqa: BLE001 - a pickle may raise anything
            broken = not_begun(error, batch.path)
        wall = time.time_ns() - clock(CLOCK)
        for item in batch.items:
            seq = item.seq
            words[STARTED] = now
            words[SEQ] = seq
            if words[REVOKED_AFTER] < seq <= words[REVOKED_UNTIL]:
                self._skipped.append(seq)
                continue
            if exclusive and clock(CLOCK) >= board.lease_end_ns:
                self._add(encode_end((seq, (now + wall) // 1000, 0, 0, b"", True, TaskExtra(reason=Reason.LEASE_LOST))), now)
                continue
            self._seq = seq
            start_task(item.index, item.attempt, item.label)
            running.item = item
            if function is None:
                data, pickled, extra = b"", True, broken
            else:
                try:
                    data, pickled, extra = call(function, item, keyed)
                except TaskTerminated as error:  # raised while another exception was being handled
                    data, pickled, extra = b"", True, failure(error, Reason.USER_CANCEL)
            if getpid() != self._pid:
                os._exit(0)  # the task forked, and its child returned from the function: it must not go on as a second worker
            then, now = now, clock(CLOCK)
            elapsed = now - then
            if words[TERM_SEQ] == seq:
                data, extra = b"", _terminated(extra, board.terminated[1])
            out, err = self._take_outputs(seq, cap, long=elapsed > _SHORT_NS)
            if elapsed < _SHORT_NS:
                cpu_us, rss = elapsed // 1000, 0
                self._cpu_us += cpu_us
            else:
                cpu_us, rss = self._usage()
            if out is not NO_OUTPUT or err is not NO_OUTPUT or rss:
                extra = msgspec.structs.replace(extra or _NOTHING, out=out, err=err, max_rss_kib=rss)
            if extra is None and pickled:
                end = encode_end((seq, (then + wall) // 1000, elapsed // 1000, cpu_us, data))
            else:
                end = encode_end((seq, (then + wall) // 1000, elapsed // 1000, cpu_us, data, pickled, extra))
            self._add(end, now)
        self._seq = 0
        running.item = None

    def _call(self, function: Callable[..., object], item: TaskItem, keyed: bool) -> tuple[bytes, bool, TaskExtra | None]:
        """Decodes, calls, encodes; every outcome of the call is an answer."""
        try:
            args, kwargs, outputs = arguments(item, keyed=keyed)
        except BaseException as error:  # noqa: BLE001 - a pickle may raise anything
            return b"", True, not_begun(error, item.path, keyed=keyed)
        try:
            self._in_call = True
            if self._missed == item.seq:
                self._give_way()
            value = function(*args, **kwargs)
            self._in_call = False
        except TaskTerminated as error:
            self._in_call = False
            return b"", True, failure(error, Reason.USER_CANCEL)
        except BaseException as error:  # noqa: BLE001 - a task may raise anything, SystemExit and KeyboardInterrupt too
            self._in_call = False
            if os.getpid() != self._pid:
                _end_of_child(error)
            return b"", True, self._raised(error)
        try:
            if outputs >= 0:
                return b"", True, self._results.keyed(item.seq, value, outputs)
            return self._results.plain(item.seq, value)
        except WrongCount as error:
            return b"", True, failure(error, Reason.BAD_OUTPUT)
        except OSError as error:  # the spool file: the node is at fault, not the task
            is_ours = error.errno in NODE_TROUBLE or isinstance(error, FileNotFoundError)
            return b"", True, failure(error, Reason.NODE_LOST if is_ours else Reason.EXCEPTION)
        except Exception as error:  # noqa: BLE001 - __reduce__ of the result's class may raise anything
            return b"", True, failure(error, Reason.EXCEPTION)

    def _raised(self, error: BaseException) -> TaskExtra:
        """Reports an exception of a call: its own failure, unless the node took away its directory or room on the disk."""
        if not os.path.isdir(self._cwd):
            return failure(error, Reason.NODE_LOST)
        if found_no_room(error) and is_full(self._directory):
            extra = failure(error, Reason.NODE_LOST)
            return msgspec.structs.replace(extra, summary=f"{DISK_WAS_FULL} on node {self._node} when it ended ({extra.summary})")
        return failure(error, Reason.EXCEPTION)

    def _call_ranks(self, batch: TaskBatch, _f: object, item: TaskItem, _keyed: bool) -> tuple[bytes, bool, TaskExtra | None]:
        """As `_call`; each process of the job makes the call, and the answer of rank 0 counts."""
        from rmgr.runner.python.rank_call import in_ranks

        try:
            self._in_call = True
            if self._missed == item.seq:
                self._give_way()
            return in_ranks(batch, item, self._spec, directory=self._directory)
        except TaskTerminated as error:
            return b"", True, failure(error, Reason.USER_CANCEL)
        finally:
            self._in_call = False

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        if self._forking or self._is_in_hook(frame):  # what is raised while a hook of fork runs is lost
            _thread.start_new_thread(_send_soon, (os.getpid(), signum))
            return
        before, self._ordered = self._ordered, self._board.terminated[0]
        if not self._in_call:
            self._missed = self._ordered  # the call that is just beginning will check this
        elif signum == signal.SIGINT:
            raise KeyboardInterrupt
        elif self._ordered == self._seq:
            self._give_way()
        elif self._ordered == before:  # not a late one for an earlier task: the call, or somebody else, sent it to end this process
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)

    def _before_fork(self) -> None:
        """Delays a child's early SIGTERM until `_in_child`: before, the handler inherited from this process would take and lose it."""
        if signal.getsignal(signal.SIGTERM) == self._on_signal:
            me = threading.get_ident()
            self._forking[me] = set()
            self._forking[me] = {int(one) for one in signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM,))}

    def _in_parent(self) -> None:
        me = threading.get_ident()
        if me in self._forking:
            signal.pthread_sigmask(signal.SIG_SETMASK, self._forking[me])
            del self._forking[me]

    def _in_child(self) -> None:
        """Lets signals end processes of a task as usual: a pool of processes relies on that."""
        mask = self._forking.get(threading.get_ident())
        self._forking.clear()
        if signal.getsignal(signal.SIGTERM) == self._on_signal:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if signal.getsignal(signal.SIGINT) == self._on_signal:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if mask is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def _is_in_hook(self, frame: FrameType | None) -> bool:
        hooks = (self._before_fork.__code__, self._in_parent.__code__)
        while frame is not None and frame.f_code not in hooks:
            frame = frame.f_back
        return frame is not None

    def _give_way(self) -> NoReturn:
        raise TaskTerminated(f"terminated: {self._board.terminated[1]}")

    # -- after a call ------------------------------------------------------------------------------------------------

    def _take_outputs(self, seq: int, cap: int = 1 << 30, *, long: bool = True) -> tuple[Output, Output]:
        """Takes the output of a task. Cost: two lseeks if there is none."""
        given = (sys.stdout, sys.stderr)
        for stream in self._streams if given == self._streams else (*given, *self._streams):
            try:  # `suppress` would cost each task 0.4 us
                stream.flush()
            except Exception:  # noqa: BLE001, S112 - a full disk, closed by a task; what a task has put there may raise anything
                continue
        if long:
            self._libc.fflush(None)
        lseek, fds = os.lseek, self._fds
        try:
            if not lseek(fds[0], 0, os.SEEK_END) and not lseek(fds[1], 0, os.SEEK_END):
                return NO_OUTPUT, NO_OUTPUT
        except OSError:  # the task has closed them
            for number in range(2):
                self._open_output(number)
        taken = []
        for number, (path, name) in enumerate(zip(self._paths, ("out", "err"), strict=True)):
            try:
                output = take(fds[number], path, os.path.join(self._directory, f"{seq}.{name}"), cap)
            except OSError as error:
                output = Output(size=0, data=f"[rmgr: the output is lost: {error}]\n".encode())
            if output.path:
                os.close(fds[number])
                self._open_output(number)
            taken.append(output)
        return taken[0], taken[1]

    def _usage(self) -> tuple[int, int]:
        """Returns (processor time in us, peak memory in KiB) of the task that just ended, with its dead children."""
        before, self._cpu_us = self._cpu_us, _cpu_us()
        return max(0, self._cpu_us - before), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    def _left_children(self) -> bool:
        """Returns whether a task's process still lives; reaps dead ones."""
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return False
        return True

    def _why_replaced(self, submission: int) -> str:
        """Returns why a fresh worker should run this submission, the next one here; "" if there is no reason."""
        if self._left_children() or _left_threads():
            return "tasks of another submission left processes or threads behind"
        if submission > self._newest and modules.is_edited(self._born_ns):
            return "a module was edited since it was imported"
        return ""

    # -- messages to and from the Starter ------------------------------------------------------------------------------

    def _add(self, end: bytes, now: int) -> None:
        size = len(end)
        if size > _DIRECT:
            self._flush()
            self._send(ends_header(1, size) + end)
            return
        if self._size + size > RESULTS_BYTES - RESULTS_HEAD:
            self._flush()
        start = PAGE + RESULTS_HEAD + self._size
        self._board.view[start : start + size] = end
        if not self._count:
            self._unsent_since = now
        self._size += size
        self._count += 1
        self._board.set_results(self._size, self._count)
        if now - self._unsent_since > _FLUSH_NS:
            self._flush()

    def _flush(self) -> None:
        if self._skipped:
            self._send(encode(Skipped(tuple(self._skipped))))
            self._skipped.clear()
        if self._count:
            header = ends_header(self._count, self._size)
            begin = PAGE + RESULTS_HEAD
            self._board.view[begin - len(header) : begin] = header
            self._send(self._board.view[begin - len(header) : begin + self._size])
            self._board.clear_results()
            self._size = self._count = 0

    def _send(self, data: bytes | memoryview) -> None:
        with self._send_lock:
            try:
                self._socket.sendall(data)
            except OSError as error:  # the Starter is gone, or finds what is on the board
                if error.errno in {errno.EBADF, errno.ENOTSOCK}:
                    os.write(2, b"[rmgr: the task has closed the descriptors of its worker, which ends]\n")
                os._exit(0)

    def _receive(self, *, only_if_ready: bool = False) -> bool:
        """Takes messages that have arrived, waiting for one; False if the Starter is gone."""
        with self._receive_lock:
            if only_if_ready and not select.select([self._socket], [], [], 0)[0]:
                return True  # another thread has taken it
            try:
                size = self._socket.recv_into(self._buffer)
                frames = self._reader.feed(self._buffer[:size])
            except (OSError, FrameError):
                return False
            for frame in frames:
                if isinstance(frame, TaskBatch):
                    self._queue.append(frame)
                else:
                    self._granted = frame.seq
            return bool(size)

    # A signal must not raise in the middle of a message: `_in_call` is False during sending and receiving.

    def _block(self, seq: int) -> None:
        main = threading.current_thread() is threading.main_thread()
        if main:
            self._in_call = False
            self._flush()  # for another thread, the Starter reads them from the board
        self._send(encode(Blocked(seq)))
        if main:
            self._back_in_call(seq)

    def _unblock(self, seq: int) -> None:
        main = threading.current_thread() is threading.main_thread()
        if main:
            self._in_call = False
        self._send(encode(Unblocking(seq)))
        while self._granted != seq:
            if main:
                self._back_in_call(seq)
            select.select([self._socket], [], [])  # here a time limit or a cancel may interrupt
            if main:
                self._in_call = False
            if not self._receive(only_if_ready=True):
                os._exit(0)
        if main:
            self._back_in_call(seq)

    def _back_in_call(self, seq: int) -> None:
        self._in_call = True
        if self._missed == seq:
            self._give_way()

    def _leave(self, why: str) -> None:
        self._flush()
        self._send(encode(Leaving(why)))


_NOTHING = TaskExtra()


def _terminated(extra: TaskExtra | None, reason: Reason) -> TaskExtra:
    """Makes the order to end the reason of an end, even if the task ended by itself just then."""
    if extra is None or not extra.error:
        return failure(TaskTerminated(f"terminated: {reason}"), reason)
    return msgspec.structs.replace(extra, reason=reason)


def _stream(fd: int, name: str) -> io.TextIOWrapper:
    """Makes a text stream with the attributes that those of an interpreter have."""
    raw: Any = io.FileIO(fd, "w", closefd=False)
    raw.name = name
    stream: Any = io.TextIOWrapper(raw, "utf-8", "backslashreplace", line_buffering=True)
    stream.mode = "w"
    return stream  # type: ignore[no-any-return]


def _is_closed(stream: TextIO) -> bool:
    try:
        return stream.closed
    except ValueError:  # detached from its buffer
        return True


def _current_umask() -> int:
    mask = os.umask(0o022)  # reading it means setting it
    os.umask(mask)
    return mask


def _send_soon(pid: int, signum: int) -> None:
    time.sleep(0.01)
    os.kill(pid, signum)


def _end_of_child(error: BaseException) -> NoReturn:
    """Ends a process that a task has forked as it would end elsewhere."""
    status = 1
    with contextlib.suppress(Exception):  # a stream that the task has closed
        if not isinstance(error, SystemExit):
            traceback.print_exception(error)
        elif error.code is None or isinstance(error.code, int):
            status = (error.code or 0) & 0xFF
        else:
            print(error.code, file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)


def ends_header(count: int, size: int) -> bytes:
    """Returns the frame header and the beginning of `TaskEnds` for `count` encoded ends of `size` bytes: [60, [..."""
    body = b"\x92\x3c\xdd" + count.to_bytes(4, "big")
    return (len(body) + size).to_bytes(4, "little") + body


def _cpu_us() -> int:
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return int((own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime) * 1e6)


def _left_threads() -> bool:
    return any(not thread.daemon and thread is not threading.main_thread() for thread in threading.enumerate())
