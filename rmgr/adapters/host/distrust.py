"""Checks each message of a spawner that runs as a user before a Starter that is root believes it.

The user's own work runs under the same uid and can speak in the spawner's place. No message may lead root to a
process, a page of memory or an amount of bytes that does not belong to the user. (Paths are another matter: they are used
with the user's rights only, `accounts.acting`.)
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import time
from collections.abc import Iterable, Iterator

import msgspec

from rmgr.adapters.host.accounts import Account, uid_of
from rmgr.model import frames
from rmgr.model.frames import MAX_INLINE_OUTPUT, Output
from rmgr.model.states import OWN_FAILURES, Reason
from rmgr.model.stream import UNREADABLE
from rmgr.runner.host.board import SIZE

#: Exceptions that checks and later code raise for messages that make no sense.
NONSENSE = (*UNREADABLE, KeyError, IndexError, AttributeError, OSError)


class Imposture(ValueError):
    """The spawner sent a message that no honest spawner sends."""


#: Features and surprises that a spawner may report: both become labels and lines of the Starter's log.
FEATURES = frozenset({"subreaper", "cgroup", "freezer", "pids", "memory"})
SURPRISES = frozenset(
    {
        *("cgroup_failed", "directory_gone", "escaped", "fork_failed", "lease_kill"),
        *("leftovers", "output_capped", "spawner_failed", "unknown_order"),
    }
)
#: Reasons for an end that a process of the user can observe. Only the system may state others: about a submission, a node, its orders.
_SEEN = (OWN_FAILURES - {Reason.DISK_LIMIT}) | {
    *(Reason.NONE, Reason.BAD_OUTPUT, Reason.START_FAILED, Reason.USER_CANCEL),
    *(Reason.DATA_LOST, Reason.LEASE_LOST, Reason.WORKER_LOST),
}
#: Most characters of a logged or reported text; largest count of bytes, microseconds, processes.
_MAX_TEXT, _MAX_COUNT = 16 * 1024, 2**53
#: Allowance of frames that account for no work: at once, per second, and per piece of work accounted for.
_BURST, _RATE, _EARNED = 500, 50, 4
#: So many bytes of such frames count as one frame.
_FRAME_BYTES = 16 * 1024


class Talk:
    """Limit on unsolicited messages of a user's processes on one socket. For one thread."""

    def __init__(self) -> None:
        self._left: float = _BURST
        self._seen_s = time.monotonic()
        self._read = 0

    def heard(self, read_bytes: int, frames: int, awaited: int) -> None:
        """Counts `frames` frames that account for `awaited` pieces of work. Raises: Imposture if they are a flood. Cost: 0.5 us.

        read_bytes: bytes that the socket has received so far.
        """
        now_s = time.monotonic()
        earned = (now_s - self._seen_s) * _RATE + awaited * _EARNED
        cost = frames if awaited else frames + (read_bytes - self._read) // _FRAME_BYTES
        self._left = min(_BURST, self._left + earned) - cost
        self._seen_s, self._read = now_s, read_bytes
        if self._left < 0:
            raise Imposture("it floods its socket with messages that nobody waits for")


class OrderedEnds:
    """The ends that the Starter has ordered, with their reasons: only those system reasons are believed. Calls are not locked."""

    def __init__(self) -> None:
        self._ordered: dict[int, set[Reason]] = {}

    def order(self, seq: int, reason: Reason) -> None:
        """Notes that the work was ordered to end, for `reason`."""
        self._ordered.setdefault(seq, set()).add(reason)

    def over(self, seqs: Iterable[int]) -> None:
        """Forgets work that has ended or will not begin."""
        if self._ordered:
            for seq in seqs:
                self._ordered.pop(seq, None)

    def believed(self, seq: int, told: Reason) -> Reason:
        """Returns the reason to believe for an end that the user's processes explain with `told`.

        No process of a user speaks for the node or the system: any other reason counts as the loss of a worker, after which the work waits
        before it runs again. (Honest spawners say NODE_LOST if memory, space or files were missing; that counts the same.)
        """
        return told if told in _SEEN or told in self._ordered.get(seq, ()) else Reason.WORKER_LOST

    def task(self, end: frames.TaskEnd) -> frames.TaskEnd:
        """Returns the end of a call with the reason to believe."""
        if end.extra is None or (reason := self.believed(end.seq, end.extra.reason)) is end.extra.reason:
            return end
        return msgspec.structs.replace(end, extra=msgspec.structs.replace(end.extra, reason=reason))

    def command(self, end: frames.CommandEnd) -> frames.CommandEnd:
        """Returns the end of a command with the reason to believe."""
        reason = self.believed(end.seq, end.reason)
        return end if reason is end.reason else msgspec.structs.replace(end, reason=reason)


@contextlib.contextmanager
def taken(fds: list[int], count: int) -> Iterator[list[int]]:
    """Yields the first `count` of `fds`, and at the end closes those that were not taken out of the list (set to -1)."""
    mine = [fds.pop(0) for _ in range(count)]
    try:
        yield mine
    finally:
        for fd in mine:
            if fd >= 0:
                os.close(fd)


def stream_socket(given: list[int]) -> socket.socket:
    """Makes a socket of the first descriptor in the list, which it takes out of the list (-1). Raises: Imposture, OSError."""
    made = socket.socket(fileno=given[0])
    if (made.family, made.type) != (socket.AF_UNIX, socket.SOCK_STREAM):
        made.detach()
        raise Imposture("a worker's socket is none")
    given[0] = -1
    return made


def check_up(up: frames.SpawnerUp, account: Account | None, *, again: bool) -> None:
    """Checks that a spawner reports once that it is up, with known features. Raises: Imposture."""
    if account is not None and (again or not FEATURES.issuperset(up.features) or len(up.features) > len(FEATURES)):
        raise Imposture("it is up more than once, or has features that there are not")


def check_surprise(surprise: frames.Surprise, account: Account | None) -> None:
    """Checks that a surprise is one of the known ones. Raises: Imposture."""
    if account is not None and (surprise.what not in SURPRISES or len(surprise.detail) > _MAX_TEXT):
        raise Imposture("it is surprised by what there is not")


def check_gone(gone: frames.WorkerGone, account: Account | None) -> None:
    """Checks that a worker's death is possible. Raises: Imposture."""
    check_output(gone.out, gone.err)
    if account is not None:
        _check_counts(gone.cpu_us, gone.max_rss_kib)
        _check_exit(gone.exit_code, gone.signal, gone.detail)


def _check_counts(*counts: int) -> None:
    if min(counts) < 0 or max(counts) > _MAX_COUNT:
        raise Imposture("it counts what cannot be")


def _check_exit(exit_code: int | None, signum: int, detail: str) -> None:
    if not 0 <= (exit_code or 0) <= 255 or not 0 <= signum <= 64 or len(detail) > _MAX_TEXT:
        raise Imposture("an end that no process has")


def check_process(pid: int, account: Account | None) -> None:
    """Checks that the process is one of the user's. Raises: Imposture."""
    if account is not None and uid_of(pid) not in (account.uid, -1):
        raise Imposture(f"it names process {pid}, which is not of {account.name}")


def check_board(fd: int, account: Account | None) -> None:
    """Checks that the page cannot be truncated while the Starter uses it. Raises: Imposture, OSError."""
    if account is None:
        return
    seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    if not seals & fcntl.F_SEAL_SHRINK or os.fstat(fd).st_size < SIZE:
        raise Imposture("its shared page is not sealed")


def check_output(*outputs: Output) -> None:
    """Checks that output inside a message is small. Raises: Imposture."""
    for output in outputs:
        if len(output.data) > MAX_INLINE_OUTPUT or output.size < 0:
            raise Imposture("more output in one message than there may be")


def check_end(end: frames.CommandEnd | frames.TaskEnd, account: Account | None) -> None:
    """Checks that the end of a task is possible. Raises: Imposture."""
    if account is None:
        return
    _check_counts(end.started_us, end.elapsed_us, end.cpu_us)
    if isinstance(end, frames.CommandEnd):
        check_output(end.out, end.err)
        _check_counts(end.max_rss_kib, end.leftovers)
        _check_exit(end.exit_code, end.signal, end.detail)
    elif end.extra is not None:
        check_output(end.extra.out, end.extra.err)
        _check_counts(end.extra.max_rss_kib)
