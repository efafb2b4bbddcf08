"""Looks, as the user, whether his work can run on this node, before any of it is claimed; else names what is closed to him.

Without this his slots would die again and again, for their spawners cannot even load. A refusal is published with the node's
troubles (`starter/health/trouble.py`). What the node has of the user's work goes back to its queue, and is taken again seconds after
the directory was opened.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Container
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import cloudpickle
import msgspec

from rmgr.adapters.host.accounts import Account
from rmgr.adapters.host.reach import obstacle
from rmgr.runner import home

if TYPE_CHECKING:
    from rmgr.daemons.starter.execution.reopen import Reopening
    from rmgr.daemons.starter.node.node import NodeAgent


@dataclass(frozen=True, slots=True)
class ReachRefusal:
    """Why work of a user cannot run on this node, and what to type there."""

    why: str


@dataclass(frozen=True, slots=True)
class Reach:
    """What all work of users needs on a node. python: interpreter of workers, "" = the Starter's. directory: the Starter's own."""

    python: str
    directory: Path

    def problem(self, account: Account) -> str:
        """What is in the way of the account, "" if nothing is. Cost: about 1 ms, on an IO thread. Raises: OSError."""
        programs = [Path(path) for path in (home.PYTHON, self.python) if path]
        modules = [home.ROOT / "rmgr" / name for name in ("__init__.py", "runner/spawner.py", "model/frames.py")]
        modules += [Path(module.__file__) for module in (os, msgspec, cloudpickle) if module.__file__] if home.IS_OWN else ()
        return obstacle(account, directories=[self.directory], programs=programs, modules=modules)


def settle_refused(node: NodeAgent, reopening: Reopening, withhold: Callable[[Container[str]], None]) -> float:
    """Gives back what has not begun of refused users' work; no slot of theirs has to prove itself.

    Args:
        withhold: keeps work of these users from starting before they were looked at again. Else what waits would open slot
            after slot that cannot come up, and never be seen waiting long enough to be given back.
    Returns: seconds until the next call that is needed, inf = when something changes.
    """
    if node.accounts is None:
        return math.inf
    again_s, users = node.accounts.settle(), node.accounts.refused
    if uncertain := node.accounts.uncertain:
        withhold(uncertain)
    if not users:
        return again_s
    reopening.forget(users)
    for block in list(node.blocks.values()):
        if block.ready and block.info.record.user in users:
            block.is_revoked = True
            node.return_unstarted(block)
    return again_s
