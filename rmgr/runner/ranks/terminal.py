"""A command on a terminal of its own, for a user elsewhere: `rmgr run --pty` runs it as the script of a placed job.

It waits until the user attaches (through the node's Starter), and ends when the user leaves. It uses the frames of runner/ranks/ranks.py:
`STDIN` and `SIZE` (lines and columns) come, `OUT` and `EXIT` go. Standard library alone.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import pty
import selectors
import signal
import socket
import struct
import sys
import termios
import time
from collections.abc import Sequence
from typing import NoReturn

from rmgr.model.units import format_duration
from rmgr.runner.ranks import ranks

#: An additional kind of frame: lines and columns of the user's terminal.
SIZE = 6
#: Longest wait for the user, and time for the command to end after the user has left.
ARRIVE_S, _LEAVE_S = 60.0, 2.0
#: Most that one wait counts: the time for which a job of a gang is stopped between its turns must not count.
_LOOK_S = 0.05
_CHUNK = 64 * 1024
#: Most unread keys; while there are more, none are taken.
_MOST_KEYS = 64 * 1024
#: Signals that a command on a terminal must get, and those that Python ignores.
_KEYS = (signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
_OF_TERMINALS = (*_KEYS, signal.SIGHUP, signal.SIGTERM, signal.SIGPIPE)
_SIZE = struct.Struct("<HH")


def address(hosts: str) -> str:
    """Returns the address of the socket of the job with this host file; it is in no directory, so that it needs no rights."""
    return "\0rmgr-terminal-" + hashlib.sha256(hosts.encode()).hexdigest()[:40]


def size_frame(lines: int, columns: int) -> bytes:
    """Returns the frame that sets the size of the terminal."""
    return ranks.frame(SIZE, 0, _SIZE.pack(min(lines, 0xFFFF), min(columns, 0xFFFF)))


def serve(argv: Sequence[str]) -> int:
    """Runs the program; returns the command's exit code, 128 + its signal, or 129 if the user has left."""
    if not argv:
        sys.stderr.write("rmgr: there is no command for the terminal\n")
        return 2
    link = arrival(address(os.environ["RMGR_HOSTFILE"]))
    if link is None:
        sys.stderr.write(f"rmgr: nobody came to the job's terminal within {format_duration(ARRIVE_S)}\n")
        return 1
    return _Session(link, argv).run()


def arrival(name: str) -> socket.socket | None:
    """Returns the first connection, None if no user comes. Raises: OSError."""
    waited_s = 0.0
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as door:
        door.bind(name)
        door.listen(4)
        door.settimeout(_LOOK_S)
        while waited_s < ARRIVE_S:
            begun_s = time.monotonic()
            with contextlib.suppress(TimeoutError):
                link, _ = door.accept()
                if ranks.peer_uid(link) in {-1, 0, os.getuid()}:
                    return link
                link.close()
            waited_s += min(time.monotonic() - begun_s, _LOOK_S)
    return None


class _Session:
    """One command and its terminal, until either ends."""

    def __init__(self, link: socket.socket, argv: Sequence[str]) -> None:
        self._link = link
        self._cutter = ranks.Cutter()
        self._keys = bytearray()
        self._code: int | None = None
        self._is_left = False
        self._wake_r, self._wake_w = os.pipe()
        os.set_blocking(self._wake_r, False)
        os.set_blocking(self._wake_w, False)
        self._pid, self._master = pty.fork()
        if self._pid == 0:
            _become(argv)
        os.set_blocking(self._master, False)
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(signum, lambda _signum, _frame: self._hang_up())
        signal.signal(signal.SIGCHLD, lambda _signum, _frame: None)
        signal.set_wakeup_fd(self._wake_w)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake_r, selectors.EVENT_READ, lambda _events: self._reap())
        self._selector.register(self._master, selectors.EVENT_READ, self._on_master)
        self._selector.register(self._link, selectors.EVENT_READ, lambda _events: self._on_link())
        self._tell(ranks.frame(ranks.OUT))  # shows that it is there even if the command is silent

    def run(self) -> int:
        self._reap()  # it may have ended before the handler was set
        end_s: float | None = None
        while self._code is None:
            for key, events in self._selector.select(max(0.0, end_s - time.monotonic()) if end_s is not None else None):
                if key.fd in self._selector.get_map():
                    key.data(events)
            if self._is_left and end_s is None:
                end_s = time.monotonic() + _LEAVE_S
            elif end_s is not None and time.monotonic() >= end_s:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self._pid, signal.SIGKILL)
                end_s = time.monotonic() + _LEAVE_S
        if self._is_left:
            return 128 + signal.SIGHUP
        while self._show():
            pass
        self._tell(ranks.frame(ranks.EXIT, 0, str(self._code).encode()))
        self._link.close()
        return self._code

    def _on_master(self, events: int) -> None:
        if events & selectors.EVENT_WRITE:
            self._type()
        if events & selectors.EVENT_READ:
            self._show()

    def _show(self) -> bool:
        """Passes on output of the command; False if there is none now."""
        try:
            data = os.read(self._master, _CHUNK)
        except OSError as error:
            if error.errno == errno.EIO and self._master in self._selector.get_map():  # no process has the terminal open any more
                self._selector.unregister(self._master)
            return False
        self._tell(ranks.frame(ranks.OUT, 0, data))
        return bool(data)

    def _tell(self, frame: bytes) -> None:
        if not self._is_left:
            try:
                self._link.sendall(frame)
            except OSError:
                self._leave()

    def _on_link(self) -> None:
        try:
            data = self._link.recv(_CHUNK)
        except OSError:
            data = b""
        if not data:
            self._leave()
            return
        for kind, _, rest in self._cutter.feed(data):
            if kind == ranks.STDIN:
                self._keys += rest
            elif kind == SIZE:
                fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", *_SIZE.unpack(rest), 0, 0))
        self._type()

    def _type(self) -> None:
        with contextlib.suppress(OSError):
            while self._keys:
                del self._keys[: os.write(self._master, self._keys[:4096])]
        if self._master in self._selector.get_map():
            more = selectors.EVENT_WRITE if self._keys else 0
            self._selector.modify(self._master, selectors.EVENT_READ | more, self._on_master)
        is_heard = self._link in self._selector.get_map()
        if not self._is_left and is_heard != (len(self._keys) < _MOST_KEYS):
            if is_heard:
                self._selector.unregister(self._link)
            else:
                self._selector.register(self._link, selectors.EVENT_READ, lambda _events: self._on_link())

    def _leave(self) -> None:
        """Notes that the user has left."""
        self._is_left = True
        if self._link in self._selector.get_map():
            self._selector.unregister(self._link)
        self._link.close()
        self._hang_up()

    def _hang_up(self) -> None:
        """Acts like a terminal that is switched off, since shells ignore SIGTERM."""
        for signum in (signal.SIGHUP, signal.SIGCONT):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._pid, signum)
            with contextlib.suppress(OSError):
                os.killpg(os.tcgetpgrp(self._master), signum)

    def _reap(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_r, 4096)
        pid, status = os.waitpid(self._pid, os.WNOHANG)
        if pid:
            code = os.waitstatus_to_exitcode(status)
            self._code = 128 - code if code < 0 else code


def _become(argv: Sequence[str]) -> NoReturn:
    """Becomes the command, in the child."""
    try:
        for signum in _OF_TERMINALS:  # they may be ignored here, and would stay ignored
            signal.signal(signum, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.execvp(argv[0], list(argv))  # noqa: S606 - that is the point
    except OSError as error:
        os.write(2, f"rmgr: {argv[0]} cannot be started: {error.strerror}\r\n".encode())
        os._exit(127 if error.errno == errno.ENOENT else 126)
