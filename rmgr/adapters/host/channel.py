"""Sockets to a node's programs and workers: one selector thread for all of them, framed non-blocking channels, and the start of programs.

Receiving, decoding and callbacks happen on the selector thread. Sending happens on the caller's thread as far as the
socket takes the data; the selector thread sends the rest, and `backlog` tells how much that is.
"""

from __future__ import annotations

import array
import contextlib
import heapq
import itertools
import mmap
import os
import selectors
import socket
import subprocess
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Mapping

from rmgr.model.stream import FrameError, FrameReader

_RECEIVE = (1024 + 64) * 1024  # the longest result that is not a file, in one piece
_FDS = array.array("i")
#: The most descriptors that one frame carries (`WorkerForked`: a socket and a board).
_MAX_FDS = 2
#: Most reads of one `drain`: a socket's buffer holds far less, and another process may keep writing.
_DRAIN_READS = 64


def fail_stop(error: BaseException) -> None:
    """Ends this process: a Starter that no longer hears of its work is worse than a dead one (whose work is ended)."""
    traceback.print_exception(error)
    os._exit(70)


def start_program(
    argv: Callable[[int], list[str]], *, cwd: str, environ: Mapping[str, str], root: str
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Starts one of rmgr's programs, in a session of its own. Returns: (the process, our end of its socket). Raises: OSError.

    argv: makes the arguments from the descriptor of the program's end. root: directory that holds the package, "" = its interpreter's own.
    """
    ours, theirs = socket.socketpair()
    path = os.pathsep.join(filter(None, (root, environ.get("PYTHONPATH", ""))))
    try:
        process = subprocess.Popen(
            argv(theirs.fileno()),
            stdin=subprocess.DEVNULL,
            cwd=cwd,
            env={**environ, "PYTHONPATH": path},
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
        )
    except OSError:
        ours.close()
        raise
    finally:
        theirs.close()
    return process, ours


def end_program(process: subprocess.Popen[bytes], wait_s: float) -> None:
    """Waits `wait_s` for the program to end, then kills it."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(wait_s)
    if process.poll() is None:
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(2.0)


class Loop:
    """The selector thread: sockets, timers. The functions it calls must be quick and must not raise (`on_crash`)."""

    def __init__(self, name: str, *, on_crash: Callable[[BaseException], None] = fail_stop) -> None:
        self._on_crash = on_crash
        self._selector = selectors.DefaultSelector()
        self._wake_r, self._wake_w = os.pipe()
        os.set_blocking(self._wake_r, False)
        os.set_blocking(self._wake_w, False)
        # Closed only when no caller can exist any more: a late caller would write to a descriptor that has been reused.
        weakref.finalize(self, os.close, self._wake_w).atexit = False
        self._selector.register(self._wake_r, selectors.EVENT_READ, None)
        self._lock = threading.Lock()
        self._calls: list[Callable[[], None]] = []
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._closed = self._ended = False
        #: for receiving, on the selector thread only; memory is used up to the longest message so far
        self.buffer = memoryview(mmap.mmap(-1, _RECEIVE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def is_inside(self) -> bool:
        """Whether the caller is the selector thread."""
        return threading.current_thread() is self._thread

    def call(self, function: Callable[[], None]) -> bool:
        """Runs `function` on the selector thread soon; from any thread. Returns False if that thread has ended and will not run it."""
        with self._lock:
            if self._ended:
                return False
            self._calls.append(function)
        self._wake()
        return True

    def later(self, delay_s: float, function: Callable[[], None]) -> None:
        """Runs `function` on the selector thread after `delay_s`; from any thread."""
        with self._lock:
            heapq.heappush(self._timers, (time.monotonic() + delay_s, next(self._order), function))
        self._wake()

    def register(self, fd: int, events: int, handler: Callable[[int], None]) -> None:
        """Calls `handler(events)` when `fd` is ready. Selector thread only."""
        self._selector.register(fd, events, handler)

    def modify(self, fd: int, events: int, handler: Callable[[int], None]) -> None:
        """Changes the events to wait for. Selector thread only."""
        self._selector.modify(fd, events, handler)

    def unregister(self, fd: int) -> None:
        """Forgets `fd`. Selector thread only."""
        self._selector.unregister(fd)

    def close(self, timeout_s: float = 2.0) -> None:
        """Ends the thread after all functions given to `call`; the owners close their sockets.

        Idempotent: by the second call the descriptors may be in other use. Later calls of `call` return False.
        """
        if self._closed:
            return
        self._closed = True
        self._wake()
        if not self.is_inside:
            self._thread.join(timeout_s)
        if not self._thread.is_alive():
            self._selector.close()
            os.close(self._wake_r)

    def _wake(self) -> None:
        if not self.is_inside:
            try:
                os.write(self._wake_w, b"w")
            except (BlockingIOError, OSError):
                return  # the pipe is full (it will wake) or the loop is closed

    def _called(self, *, at_end: bool = False) -> list[Callable[[], None]]:
        """Takes the functions given to `call`. at_end: if there are none, refuses any further ones."""
        with self._lock:
            calls, self._calls = self._calls, []
            self._ended = at_end and not calls
        return calls

    def _due(self) -> tuple[list[Callable[[], None]], float | None]:
        due = self._called()
        with self._lock:
            now = time.monotonic()
            while self._timers and self._timers[0][0] <= now:
                due.append(heapq.heappop(self._timers)[2])
            wait = self._timers[0][0] - now if self._timers else None
        return due, wait

    def _run(self) -> None:
        try:
            self._serve()
        except BaseException as error:  # noqa: BLE001 - the boundary of the loop
            with self._lock:
                self._ended = True
            self._on_crash(error)

    def _serve(self) -> None:
        while not self._closed:
            due, wait = self._due()
            for function in due:
                function()
            if due:
                continue
            for key, events in self._selector.select(wait):
                if key.data is None:
                    try:
                        os.read(self._wake_r, 4096)
                    except BlockingIOError:
                        continue
                elif (now := self._selector.get_map().get(key.fd)) is not None and now.data == key.data:
                    key.data(events)  # not removed or replaced by an earlier handler of this round
        while calls := self._called(at_end=True):
            for function in calls:
                function()


class Channel:
    """A framed, non-blocking stream socket on a `Loop`.

    Args:
        on_frames: called with the frames of one read, in order, and the descriptors that came with them.
        on_end: called once, with the reason, when the peer is gone or the stream is broken.
        passes_fds: whether frames may bring descriptors, which their handler takes out of the list. Any other descriptor ends the channel.
    """

    def __init__(
        self,
        loop: Loop,
        sock: socket.socket,
        kind: object,
        *,
        on_frames: Callable[[list, list[int]], None],  # type: ignore[type-arg]
        on_end: Callable[[str], None],
        passes_fds: bool = False,
    ) -> None:
        sock.setblocking(False)
        self._loop = loop
        self._socket = sock
        self._reader: FrameReader[object] = FrameReader(kind)
        self._on_frames = on_frames
        self._on_end = on_end
        self._passes_fds = passes_fds
        self._fds: list[int] = []
        self._lock = threading.Lock()
        self._out = bytearray()
        self._ended = False
        self._fd = sock.fileno()
        self._writing = False
        self.received = 0  #: bytes so far
        loop.call(self._register)

    @property
    def backlog(self) -> int:
        """Bytes not yet taken by the socket."""
        return len(self._out)

    def send(self, data: bytes) -> bool:
        """Sends encoded frames; returns False if the peer is known to be gone. Never blocks. From any thread."""
        with self._lock:
            if self._ended:
                return False
            if not self._out:
                try:
                    sent = self._socket.send(data)
                except BlockingIOError:
                    sent = 0
                except OSError:
                    return False  # the selector thread will see the end
                if sent == len(data):
                    return True
                data = data[sent:]
            self._out += data
        self._loop.call(self._want_write)
        return True

    def drain(self) -> None:
        """Reads all data that has arrived. Selector thread only."""
        for _ in range(_DRAIN_READS):
            if self._ended or not self._receive():
                return

    def end(self, why: str) -> None:
        """Ends the channel as if the peer had: `on_end(why)` is called, once. Selector thread only."""
        if not self._ended:
            self._end(why)

    def close(self) -> None:
        """Closes without calling `on_end`. Selector thread, or after the loop's end."""
        with self._lock:
            if self._ended:
                return
            self._ended = True
            self._out.clear()
        with contextlib.suppress(KeyError, ValueError, RuntimeError):
            self._loop.unregister(self._fd)
        self._socket.close()

    def _register(self) -> None:
        if not self._ended:
            self._loop.register(self._fd, selectors.EVENT_READ, self._ready)

    def _want_write(self) -> None:
        if not self._ended and not self._writing:
            self._writing = True
            self._loop.modify(self._fd, selectors.EVENT_READ | selectors.EVENT_WRITE, self._ready)

    def _ready(self, events: int) -> None:
        if events & selectors.EVENT_WRITE:
            self._flush()
        if events & selectors.EVENT_READ and not self._ended:
            self._receive()

    def _flush(self) -> None:
        with self._lock:
            if self._ended:
                return
            try:
                sent = self._socket.send(self._out)
                del self._out[:sent]
            except BlockingIOError:
                return
            except OSError:
                self._out.clear()  # the read side reports the end
            if self._out:
                return
            self._writing = False
        self._loop.modify(self._fd, selectors.EVENT_READ, self._ready)

    def _receive(self) -> bool:
        """Reads once; returns False if there is nothing more at present."""
        try:
            if self._passes_fds:
                size, ancillary, flags, _ = self._socket.recvmsg_into(
                    [self._loop.buffer], socket.CMSG_SPACE(_MAX_FDS * _FDS.itemsize), _CLOEXEC
                )
                for level, kind, body in ancillary:
                    if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                        fds = array.array("i")
                        fds.frombytes(body[: len(body) - len(body) % fds.itemsize])
                        self._fds.extend(fds)
                if flags & socket.MSG_CTRUNC:  # the descriptors are lost, and so is the meaning of their frames
                    self._end("it passed more file descriptors than it may, or there is none left for them")
                    return False
            else:
                size = self._socket.recv_into(self._loop.buffer)
        except BlockingIOError:
            return False
        except OSError as error:
            self._end(error.strerror or str(error))
            return False
        if not size:
            self._end("closed")
            return False
        self.received += size
        try:
            frames = self._reader.feed(self._loop.buffer[:size])
        except FrameError as error:
            self._end(str(error))
            return False
        if frames:
            self._on_frames(frames, self._fds)
        if self._fds and len(self._fds) > (_MAX_FDS if self._reader.pending else 0) and not self._ended:
            self._end("it passed file descriptors that nobody asked for")
            return False
        return True

    def _end(self, why: str) -> None:
        self.close()
        while self._fds:  # came with frames that were never read
            os.close(self._fds.pop())
        self._on_end(why)


_CLOEXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
