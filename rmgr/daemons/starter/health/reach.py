"""Checks with a user's rights whether the user's work can run on this node, before any of it is claimed; else names what is closed.

Without this his slots would die again and again, for their spawners cannot even load. A refusal is published with the node's
troubles (`starter/health/trouble.py`). What the node has of the user's work goes back to its queue, and is taken again seconds after
the directory was opened.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import cloudpickle
import msgspec

from rmgr.adapters.host.accounts import Account, obstacle
from rmgr.runner.host import home

if TYPE_CHECKING:
    from rmgr.daemons.starter.core.blocks import ClaimedBlock


@dataclass(frozen=True, slots=True)
class ReachRefusal:
    """Reason for which work of a user cannot run on this node, and what to type there."""

    why: str


@dataclass(frozen=True, slots=True)
class Reach:
    """Programs and directories that all work of users needs on a node.

    python: interpreter of workers, "" = the Starter's. directory: the Starter's own.
    """

    python: str
    directory: Path

    def problem(self, account: Account) -> str:
        """What is in the way of the account, "" if nothing is. Cost: about 1 ms, on an IO thread. Raises: OSError."""
        programs = [Path(path) for path in (home.PYTHON, self.python) if path]
        modules = [home.source(name) for name in ("rmgr.__init__", "rmgr.runner.spawner", "rmgr.model.wire.frames")]
        modules += [Path(module.__file__) for module in (os, msgspec, cloudpickle) if module.__file__] if home.IS_OWN else ()
        return obstacle(account, directories=[self.directory], programs=programs, modules=modules)


class LookedAt(Protocol):
    """Users of one node, as far as they were looked at. refused: user -> why."""

    @property
    def refused(self) -> Mapping[str, str]: ...

    @property
    def uncertain(self) -> frozenset[str]:
        """Users who must be looked at again before more of their work starts."""
        ...

    def settle(self) -> float:
        """Looks again where it is time. Returns: seconds until the next look, inf = none is due."""
        ...


def settle_refused(
    users: LookedAt | None,
    blocks: Iterable[ClaimedBlock],
    *,
    give_back: Callable[[ClaimedBlock], None],
    spare: Callable[[Container[str]], None],
    withhold: Callable[[Container[str]], None],
) -> float:
    """Gives back what has not begun of refused users' work; no slot of theirs has to prove itself.

    Args:
        users: None: work runs with the Starter's rights. blocks: all that the node has. give_back: returns what has not begun.
        spare: no slot of these users has to prove itself.
        withhold: keeps work of these users from starting before they were looked at again. Else what waits would open slot
            after slot that cannot come up, and never be seen waiting long enough to be given back.
    Returns: seconds until the next call that is needed, inf = when something changes.
    """
    if users is None:
        return math.inf
    again_s, refused = users.settle(), users.refused
    if uncertain := users.uncertain:
        withhold(uncertain)
    if not refused:
        return again_s
    spare(refused)
    for block in list(blocks):
        if block.ready and block.info.record.user in refused:
            block.is_revoked = True
            give_back(block)
    return again_s
