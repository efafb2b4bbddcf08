"""What a spawner that runs as a user may tell a Starter that is root: checked here, before anybody believes it.

The user's own work shares his uid with it, so it can speak in the spawner's place. Nothing it says may lead root to a
process, a page of memory or an amount of bytes that is not the user's to give. (Paths are another matter: they are used
with his rights only, `accounts.acting`.)
"""

from __future__ import annotations

import fcntl
import os

from rmgr.adapters.accounts import Account, uid_of
from rmgr.model import frames
from rmgr.model.frames import MAX_INLINE_OUTPUT, Output
from rmgr.runner.board import SIZE

#: What checks and what believes raise of words that make no sense.
NONSENSE = (ValueError, KeyError, IndexError, OverflowError, TypeError, AttributeError, OSError)


class Imposture(ValueError):
    """It said what the spawner never says."""


def check_process(pid: int, account: Account | None) -> None:
    """It is a process of the user. Raises: Imposture."""
    if account is not None and uid_of(pid) not in (account.uid, -1):
        raise Imposture(f"it names process {pid}, which is not of {account.name}")


def check_board(fd: int, account: Account | None) -> None:
    """The page cannot be cut short under the Starter's feet. Raises: Imposture, OSError."""
    if account is None:
        return
    seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    if not seals & fcntl.F_SEAL_SHRINK or os.fstat(fd).st_size < SIZE:
        raise Imposture("its shared page is not sealed")


def check_output(*outputs: Output) -> None:
    """Output that travels in a message is small. Raises: Imposture."""
    for output in outputs:
        if len(output.data) > MAX_INLINE_OUTPUT or output.size < 0:
            raise Imposture("more output in one message than there may be")


def check_end(end: frames.CommandEnd | frames.TaskEnd, account: Account | None) -> None:
    """The end of a task is one that a runner tells. Raises: Imposture."""
    if account is None:
        return
    if isinstance(end, frames.CommandEnd):
        check_output(end.out, end.err)
    elif end.extra is not None:
        check_output(end.extra.out, end.extra.err)
