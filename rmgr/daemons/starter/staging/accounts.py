"""Whose rights work of a node has: the account of the user who submitted it if possible; otherwise a refusal says what to do.

Only if the Starter is root and `[security] run_as` says so; the user is the one whose key signed the work. Files that all users share in a
Starter's cache (functions, modules, scripts, input) are copied for each user, readable by no other user.
"""

from __future__ import annotations

import math
import os
import shutil
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import cloudpickle
import msgspec

from rmgr.adapters.host.accounts import Account, find_account, obstacle
from rmgr.adapters.host.workevents import SlotLost
from rmgr.config import SecurityConfig
from rmgr.coord.protocol.ports import Store
from rmgr.daemons.starter.core.fetch import Arguments, Fetched, FetchFailure, KeptFile, OwnPiece
from rmgr.daemons.starter.core.io import StoreIO
from rmgr.errors import ConfigError, PermissionDenied
from rmgr.model.states import Reason
from rmgr.runner.host import home
from rmgr.runtime import machine
from rmgr.runtime.machine import Log

#: How long a looked-up account is trusted: groups change, people leave.
_FRESH_S = 60.0
#: How long a user is refused before the next look.
_REFUSED_S = 3.0
#: Most bytes of one call's arguments in a message; larger ones would be in the Starter's memory meanwhile.
_IN_MESSAGE = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountsPolicy:
    """Work runs as its users, whose uids are at least `min_uid`."""

    min_uid: int


def runs_as_user(security: SecurityConfig, *, euid: int) -> bool:
    """Whether work runs as its user. Raises: ConfigError if that is configured and impossible."""
    match security.run_as:
        case "self":
            return False
        case "auto":
            return euid == 0 and bool(security.dir)
        case "user" if euid != 0:
            raise ConfigError('[security] run_as = "user" takes a Starter that is root', hint='start it as root, or say run_as = "self"')
        case "user" if not security.dir:
            raise ConfigError(
                '[security] run_as = "user" takes a secured cluster: in an open one nobody proves an identity',
                hint='name the credentials, [security] dir = DIR, or say run_as = "self"',
            )
        case "user":
            return True
    raise ConfigError(f"[security] run_as = {security.run_as!r} is not known", hint="user, self or auto")


def policy_of(security: SecurityConfig) -> AccountsPolicy | None:
    """Returns how work runs as its users, None if it runs as the Starter. Raises: ConfigError."""
    return AccountsPolicy(min_uid=security.min_uid) if runs_as_user(security, euid=os.geteuid()) else None


def open_to_users(directory: Path, nodes: Sequence[str]) -> None:
    """Lets users pass through the Starter's directories to their own without listing them; closes its cache to them."""
    for path in (directory, *(directory / name for name in nodes), *(directory / name / "run" for name in nodes)):
        path.chmod(0o711)
    (directory / "blobs").chmod(0o700)


def choose(user: str, account: Account | None, *, node: str, min_uid: int) -> Account:
    """Returns the account that work of `user` runs as. Raises: PermissionDenied naming node, user and what to do."""
    if account is None:
        raise PermissionDenied(
            f"node {node} has no local account {user!r}, and work runs as its user there: "
            f'useradd {user} on {node}, or [security] run_as = "self" for its Starter'
        )
    if account.uid == 0:
        raise PermissionDenied(f"work of {user!r} is refused on node {node}: it would run as root (uid 0); submit it as an ordinary user")
    if account.uid < min_uid:
        raise PermissionDenied(
            f"work of {user!r} is refused on node {node}: its uid {account.uid} is below {min_uid}; "
            f"submit it as an ordinary user, or lower [security] min_uid of that Starter"
        )
    return account


class Accounts:
    """Accounts of the users with work on a node, and users whose work it cannot run. directory: for users' copies of files, made if
    absent."""

    def __init__(
        self,
        policy: AccountsPolicy,
        io: StoreIO,
        *,
        node: str,
        directory: Path,
        clock: Callable[[], float],
        log: Log,
        reach: Reach,
    ) -> None:
        self._policy = policy
        self._node = node
        self._clock = clock
        self._log = log
        self._reach = reach
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        directory.chmod(0o711)
        self._found: Fetched[Account | ReachRefusal] = Fetched(
            io,
            lambda _store, user: self._find(user),
            keep=256,
            fresh_s=lambda found: _REFUSED_S if isinstance(found, ReachRefusal) else _FRESH_S,
        )
        self._copies: Fetched[KeptFile] = Fetched(io, self._copy, keep=512)
        self._pythons: Fetched[str] = Fetched(io, self._look_at_python, keep=256, fresh_s=lambda _: _FRESH_S)
        self._who: dict[str, Account] = {}
        self._met: set[str] = set()  #: users looked up at least once
        self._doubted: set[str] = set()
        self._barred: dict[str, tuple[str, float]] = {}  #: user -> why, until when (`clock`)
        self.refused: dict[str, str] = {}  #: user -> why none of the user's work can run here, and what to type

    def get(self, user: str) -> Account | FetchFailure | None:
        """Returns the account for work of `user`, a failure, or None while it is looked up or if it is refused. Owner's thread only."""
        if user in self._barred:
            why, until_s = self._barred[user]
            if self._clock() < until_s:
                self._met.add(user)
                self.refused[user] = why
                return None
            del self._barred[user]
        found = self._found.get(user, user)
        if found is None:
            return None
        self._met.add(user)
        if isinstance(found, ReachRefusal):
            if user not in self.refused:
                self._log.error("user_refused", user=user, why=found.why)
            self.refused[user] = found.why
            return None
        if self.refused.pop(user, None) is not None:
            self._log.info("user_accepted", user=user)
        return replace(found, reason=Reason.START_FAILED, blames_node=False) if isinstance(found, FetchFailure) else found

    def bar(self, user: str, what: str, for_s: float) -> None:
        """Keeps all work of a user away for a while, since the user's slots keep failing here. Owner's thread only."""
        why = (
            f"work of {user} fails on node {self._node} again and again ({what}): "
            f"what {user} may have there of processes, memory or disk may be used up; ps -u {user}, quota -u {user}"
        )
        self._barred[user] = (why, self._clock() + for_s)
        self._log.error("user_refused", user=user, why=why)
        self.get(user)

    def may_claim(self, user: str) -> bool:
        """Returns whether work of `user` is accepted; False also until the user was looked up once."""
        if user not in self._met:
            self.get(user)
        return user in self._met and user not in self.refused

    def saw(self, events: Sequence[object]) -> None:
        """Takes reports of slots: if one did not come up, something may have been closed to its user since the last look."""
        lost = {event.slot.account for event in events if isinstance(event, SlotLost) and not event.slot.is_up}
        if names := {account.name for account in lost if account is not None}:
            self._doubted |= names
            for name in names:
                self._found.forget(name)

    @property
    def barred(self) -> frozenset[str]:
        """Users who are refused because their own slots failed."""
        return frozenset(self._barred)

    @property
    def uncertain(self) -> frozenset[str]:
        """Users who are refused, or must be looked up again before more of their work starts."""
        return frozenset((*self.refused, *self._doubted))

    def settle(self) -> float:
        """Looks up users again where due. Returns: seconds until the next call, inf = no user is refused."""
        for user in {*self.refused, *self._doubted}:
            if self.get(user) is not None or user in self.refused:
                self._doubted.discard(user)
        return _REFUSED_S if self.refused else math.inf

    def python(self, account: Account, path: str) -> str | None:
        """Returns what keeps the account from an interpreter chosen by its user, "" if nothing does, None while it is checked."""
        self._who[f"{account.uid}"] = account
        found = self._pythons.get(f"{account.uid}\0{path}", account.name)
        return found.error if isinstance(found, FetchFailure) else found

    def _look_at_python(self, _store: Store, key: str) -> str:
        uid, _, path = key.partition("\0")
        return obstacle(self._who[uid], programs=[Path(path)])

    def _find(self, user: str) -> Account | ReachRefusal:
        account = self.resolve(user)
        problem = self._reach.problem(account)
        return ReachRefusal(f"work of {user} cannot run on node {self._node}: {problem}") if problem else account

    def resolve(self, user: str) -> Account:
        """Returns the account at once, on an IO thread. Raises: PermissionDenied."""
        return choose(user, find_account(user), node=self._node, min_uid=self._policy.min_uid)

    def copy(self, account: Account, path: str) -> str | FetchFailure | None:
        """Returns a copy of a cached file that only `account` may read; None while it is made. Owner's thread only."""
        if not path:
            return path
        self._who[f"{account.uid}"] = account
        return self._copies.get(f"{account.uid}\0{path}", account.name)

    def arguments(self, account: Account, arguments: Arguments) -> Arguments | FetchFailure | None:
        """Returns the arguments, large ones in a file of `account` (others travel in messages); None while it is made. Owner's thread
        only."""
        if arguments.largest <= _IN_MESSAGE or isinstance(arguments[0], OwnPiece):
            return arguments
        mine = self.copy(account, arguments.path)
        if isinstance(mine, str):
            self._copies.forget(f"{account.uid}\0{arguments.path}")  # no other account needs it, and it may be large
            return arguments.moved(mine)
        return mine

    def forget_lost(self) -> None:
        """Forgets removed copies, which the next use makes again. Owner's thread only."""
        self._copies.forget_lost(str)

    def _copy(self, _store: Store, key: str) -> KeptFile:
        uid, _, path = key.partition("\0")
        target = self._directory / f"{uid}-{machine.random_hex(16)}"
        try:
            with open(path, "rb") as source, target.open("xb") as file:
                os.fchmod(file.fileno(), 0o400)
                shutil.copyfileobj(source, file, 1024 * 1024)
                os.fchown(file.fileno(), int(uid), self._who[uid].gid)
                size = file.tell()
        except BaseException:
            target.unlink(missing_ok=True)
            raise
        return KeptFile.of(target, size)


def hand_over(path: Path, account: Account) -> None:
    """Gives a file, or a directory with its content, to a user, closed to all others. It must not belong to the user already.

    No link leads out of it, and no user can be in it meanwhile: the directory itself is handed over last.
    """
    if path.is_dir() and not path.is_symlink():
        for root, directories, files in os.walk(path, topdown=False):
            for name in (*directories, *files):
                os.lchown(os.path.join(root, name), account.uid, account.gid)
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        os.fchmod(fd, 0o700 if stat.S_ISDIR(os.fstat(fd).st_mode) else 0o400)
        os.fchown(fd, account.uid, account.gid)
    finally:
        os.close(fd)


# -- what users can reach --------------------------------------------------------------------------------------------------
# Checks with a user's rights whether the user's work can run on this node, before any of it is claimed; otherwise names what is closed.
# Without this check the user's slots would keep dying, since their spawners cannot even load. A refusal is published with the node's
# troubles (`starter/node/trouble.py`). Work of the user on the node goes back to its queue, and is taken again seconds after the directory
# was opened.


@dataclass(frozen=True, slots=True)
class ReachRefusal:
    """Why work of a user cannot run on this node, and what to type there."""

    why: str


@dataclass(frozen=True, slots=True)
class Reach:
    """Programs and directories that all work of users needs on a node.

    python: interpreter of workers, "" = the Starter's. directory: the Starter's own.
    """

    python: str
    directory: Path

    def problem(self, account: Account) -> str:
        """Returns what keeps the account out, "" if nothing does. Cost: about 1 ms, on an IO thread. Raises: OSError."""
        programs = [Path(path) for path in (home.PYTHON, self.python) if path]
        modules = [home.source(name) for name in ("rmgr.__init__", "rmgr.runner.spawner", "rmgr.model.frames")]
        modules += [Path(module.__file__) for module in (os, msgspec, cloudpickle) if module.__file__] if home.IS_OWN else ()
        return obstacle(account, directories=[self.directory], programs=programs, modules=modules)
