"""`rmgr run --pty`: connects this terminal to a command on the first node of a placed job, until the command ends."""

from __future__ import annotations

import contextlib
import math
import os
import queue
import select
import shutil
import signal
import sys
import termios
import threading
import time
import tty
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rmgr.cli.session import WorkEnded
from rmgr.cli.session.errors import INTERRUPTED, Terminated
from rmgr.cli.submit.submit import WorkRequest
from rmgr.cli.waiting import PATIENCE_S, AwaitedSubmission, Follow, codes, tell_failure, tell_why
from rmgr.client.logs import nodes_of
from rmgr.errors import LimitReached, NotFound, PermissionDenied, QueueFull, RmgrError, Unavailable, UsageError, VersionMismatch
from rmgr.model.submission import Rigid
from rmgr.runner.host import dispositions
from rmgr.runner.ranks import ranks, terminal

if TYPE_CHECKING:
    from rmgr.adapters.identity.credentials import Credentials
    from rmgr.cli.session import Session

#: Variables that tell a node the kind of this terminal.
_FROM_HERE = ("TERM", "COLORTERM", "LANG", "LC_ALL", "LC_CTYPE")
_FIRST_LOOK_S, _SLOWEST_LOOK_S = 0.03, 0.5
#: Seconds that a command's end may take to be committed after it was seen here.
_SETTLE_S = 15.0
_LOST = 125
#: Answers of a Starter or a gateway after which asking again is useless.
_FINAL = (PermissionDenied, LimitReached, QueueFull, VersionMismatch)


def interactive(session: Session, work: WorkRequest) -> WorkRequest:
    """Returns the work of a command with a terminal: placed, once, one task. Raises UsageError without a terminal, or if contradictory."""
    if not (os.isatty(0) and os.isatty(1)):
        what = "stdin" if not os.isatty(0) else "stdout"
        raise UsageError(f"--pty needs a terminal, and {what} is none", hint="without --pty the output comes all the same")
    options = work.options
    others = {"--json": session.json, "--array": options.array, "--each-line": options.each_line, "--stdin": options.stdin}
    for name, is_said in others.items():
        if is_said:
            raise UsageError(f"--pty and {name} exclude each other", hint="drop one of them")
    told = dict(options.env)
    env = tuple((name, os.environ[name]) for name in _FROM_HERE if name in os.environ and name not in told)
    options = replace(options, rigid=options.rigid or Rigid(), resubmit=False, retries=0, env=(*env, *options.env))
    return replace(work, options=options, words=("rmgr", "terminal", *work.words))


def sit_down(session: Session, number: int) -> int:
    """Waits for the job's start, is its terminal until it ends, and returns its exit code. If this terminal goes, the job ends."""
    follow = Follow(session)
    try:
        item = follow.add(number)
        try:
            code = _attach(session, follow, item)
        except _FINAL:
            _cancel(session, number, "its terminal was refused")
            raise
        if code is None:
            gone = "the gateway is gone, its node is lost, or" if session.via else "its node is lost, or"
            session.note(f"job {number} has no terminal any more: {gone} its Starter ended; waiting for the end of the job")
        _until_ended(follow, item, None if code is None else _SETTLE_S)
    except KeyboardInterrupt as error:
        _cancel(session, number, "interrupted before it started")
        session.note(f"cancelled {number}: it had not started, and its terminal is needed")
        return error.exit_code if isinstance(error, Terminated) else INTERRUPTED
    if code is not None:
        return code
    tell_failure(session, item, with_tail=False)
    return codes(follow.items) or _LOST


def _cancel(session: Session, number: int, why: str) -> None:
    from rmgr.cli.control.gate import cancel_ids

    cancel_ids(session, [str(number)], reason=why)


def _until_ended(follow: Follow, item: AwaitedSubmission, limit_s: float | None) -> None:
    end_s = time.monotonic() + limit_s if limit_s is not None else None
    while not item.is_ended and (end_s is None or time.monotonic() < end_s):
        for _ in follow.next(0.2):
            pass


def _attach(session: Session, follow: Follow, item: AwaitedSubmission) -> int | None:
    """Returns the exit code that came through the command's terminal; None if it was cut off, or there was none."""
    began_s, wait_s, has_told = time.monotonic(), _FIRST_LOOK_S, False
    silent_s: float | None = None  # since when its node does not answer
    while not item.is_ended:
        trouble = ""
        with contextlib.suppress(Unavailable, NotFound):
            for node, endpoint in nodes_of(session, item.number):
                seat = _Seat(endpoint, item.number, via=session.via, credentials=session.shown_credentials())
                try:
                    if seat.sit():
                        return seat.code
                finally:
                    seat.close()
                trouble = f"node {node}: {seat.trouble}" if seat.trouble else trouble
        silent_s = (silent_s or time.monotonic()) if trouble else None
        if silent_s is not None and time.monotonic() - silent_s > PATIENCE_S:
            silent_s = math.inf
            session.note(f"job {item.number} has no terminal yet: {trouble}; Ctrl-C cancels it")
        for _ in follow.next(wait_s):
            pass
        wait_s = min(_SLOWEST_LOOK_S, wait_s * 1.5)
        if not has_told and time.monotonic() - began_s > PATIENCE_S:
            has_told = True
            tell_why(session, item)
    return None


class _Seat:
    """This terminal at a command. code: the command's exit code, once it has ended."""

    def __init__(self, endpoint: str, number: int, *, via: str, credentials: Credentials | None) -> None:
        from rmgr.adapters.terminals import TerminalClient

        self.code: int | None = None
        self.trouble = ""  #: why no node answered
        self._number = number
        self._client = TerminalClient(endpoint, via=via, credentials=credentials)
        self._sent: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._is_over = threading.Event()
        self._keys: threading.Thread | None = None
        self._saved: list[Any] | None = None
        self._old: dict[int, Any] = {}

    def sit(self) -> bool:
        """Connects until the command ends; returns False if there is no terminal yet. Raises: errors that waiting does not cure."""
        self._send_size()
        cutter = ranks.Cutter()
        try:
            for data in self._client.attach(self._number, 0, self._sending()):
                if self._saved is None:
                    self._enter()
                for kind, _, rest in cutter.feed(data):
                    if kind == ranks.OUT:
                        _show(rest)
                    elif kind == ranks.EXIT:
                        self.code = int(rest)
        except _FINAL:
            raise
        except RmgrError as error:
            if self._saved is None:
                self.trouble = error.message if isinstance(error, Unavailable) else ""
                return False
        finally:
            self._leave()
        return True

    def close(self) -> None:
        """Ends the connection."""
        self._sent.put(None)
        self._client.close()

    def _sending(self) -> Iterator[bytes]:
        while (data := self._sent.get()) is not None:
            yield data

    def _send_size(self) -> None:
        columns, lines = shutil.get_terminal_size()
        with contextlib.suppress(OSError):
            columns, lines = os.get_terminal_size(0)
        self._sent.put(terminal.size_frame(lines, columns))

    # -- this terminal ---------------------------------------------------------------------------------------------------------

    def _enter(self) -> None:
        """Gives all keys to the command from now on, even Ctrl-C."""
        self._saved = termios.tcgetattr(0)
        hangup = () if dispositions.is_deaf_to(signal.SIGHUP) else (signal.SIGHUP,)
        for signum in (signal.SIGTERM, *hangup):
            self._old[signum] = signal.signal(signum, _ended_by)
        self._old[signal.SIGWINCH] = signal.signal(signal.SIGWINCH, lambda _signum, _frame: self._send_size())
        tty.setraw(0, termios.TCSADRAIN)
        self._keys = threading.Thread(target=self._read_keys, name="keys", daemon=True)
        self._keys.start()

    def _leave(self) -> None:
        self._is_over.set()
        if self._saved is None:
            return
        assert self._keys is not None
        self._keys.join(1.0)
        termios.tcsetattr(0, termios.TCSADRAIN, self._saved)
        for signum, handler in self._old.items():
            signal.signal(signum, handler)

    def _read_keys(self) -> None:
        while not self._is_over.is_set():
            try:
                if not select.select([0], [], [], 0.1)[0]:
                    continue
                data = os.read(0, 4096)
            except OSError:
                data = b""
            if not data:  # the terminal is gone
                self._sent.put(None)
                self._client.close()
                return
            self._sent.put(ranks.frame(ranks.STDIN, 0, data))


def _show(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]
    sys.stdout.flush()


def _ended_by(signum: int, _frame: object) -> None:
    raise WorkEnded(128 + signum)
