"""Finds what keeps a user from a file: the directory that is closed to the user's account, and the command that opens it.

Looked at with his rights (`acting`), so groups and access lists count as they do for the kernel.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable
from pathlib import Path

from rmgr.adapters.host.accounts import Account, acting


def obstacle(account: Account, *, directories: Iterable[Path] = (), programs: Iterable[Path] = (), modules: Iterable[Path] = ()) -> str:
    """What is in the way of `account`, and what to type; "" if nothing is.

    Args:
        directories: must be passable. programs: so must all directories on the way to them, links followed.
        modules: must be readable as well, and the directories that they lie in: Python imports nothing from others.
    Cost: about 30 us a directory. Raises: OSError when the rights of the account cannot be taken.
    """
    for path in directories:
        if found := _closed(account, path, path):
            return found
    read = list(modules)
    for path in (*programs, *read):
        if found := _closed(account, path.parent, path) or _closed(account, Path(os.path.realpath(path)).parent, path):
            return found
        if found := _missing(account, path):
            return found
    for place in dict.fromkeys(place for path in read for place in (path.parent, path)):
        if found := _unreadable(account, place):
            return found
    return ""


def _closed(account: Account, directory: Path, wanted: Path) -> str:
    """The first directory on the way to `directory` that the account cannot pass."""
    for place in _way(directory):
        try:
            with acting(account):
                os.stat(f"{place}/.")  # takes the right to pass it
        except PermissionError:
            below = f", and {wanted} is below it" if wanted != place else ""
            return f"{place} is closed to that account{below}: chmod {_class(account, place)}+x {shlex.quote(str(place))}"
        except OSError as error:
            return f"{wanted} cannot be used: {place}: {error.strerror}"
    return ""


def _missing(account: Account, path: Path) -> str:
    try:
        with acting(account):
            os.stat(path)
    except OSError as error:
        return f"{path} cannot be used: {error.strerror}"
    return ""


def _unreadable(account: Account, path: Path) -> str:
    try:
        with acting(account):
            os.close(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))
    except PermissionError:
        return f"{path} cannot be read by that account: chmod -R {_class(account, path)}+rX {shlex.quote(str(path))}"
    except OSError as error:
        return f"{path} cannot be used: {error.strerror}"
    return ""


def _way(directory: Path) -> list[Path]:
    """All directories that have to be passed, from the root; for a link those on the way to what it stands for."""
    found: dict[Path, None] = {}
    for place in (*reversed(directory.parents), directory):
        real = Path(os.path.realpath(place))
        found.update(dict.fromkeys((*reversed(real.parents), real)))
    return list(found)


def _class(account: Account, place: Path) -> str:
    """Whose permission bits count for the account there, as chmod names them."""
    try:
        found = os.stat(place)
    except OSError:
        return "o"
    if found.st_uid == account.uid:
        return "u"
    return "g" if found.st_gid in {account.gid, *account.groups} else "o"
