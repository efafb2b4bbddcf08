"""Terminals of the commands of a Starter: who may sit down at one, and the way there.

The command of an interactive job is runner/ranks/terminal.py, which waits at a socket whose name follows from the job's host file.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from rmgr.adapters.access.auth import Caller
from rmgr.adapters.rpc.ranks import RanksLink
from rmgr.coord.decisions.rights import denied
from rmgr.daemons.service.serving import audited, person_of
from rmgr.daemons.starter.jobs.ranks import SocketLink
from rmgr.errors import NotFound, Unavailable
from rmgr.runner.ranks import ranks, terminal
from rmgr.runtime.logger import Log

if TYPE_CHECKING:
    from rmgr.daemons.starter.core.blocks import ClaimedBlock
    from rmgr.daemons.starter.jobs.jobs import Jobs
    from rmgr.model.tasks.block import BlockKey


T = TypeVar("T")


class TerminalNode(Protocol):
    """A node with the commands of interactive jobs."""

    blocks: dict[BlockKey, ClaimedBlock]
    jobs: Jobs


class TerminalStarter(Protocol):
    """The Starter of this machine."""

    @property
    def agents(self) -> Mapping[str, TerminalNode]: ...

    def ask(self, question: Callable[[], T], timeout_s: float = 5.0) -> T:
        """The answer of the thread that owns the nodes. Raises: TimeoutError."""
        ...


class TerminalAnswering:
    """`adapters.rpc_terminal.TerminalAnswers` of one Starter."""

    def __init__(self, starter: TerminalStarter, *, operators: Sequence[str] = (), log: Log | None = None) -> None:
        self._starter = starter
        self._operators = tuple(operators)
        self._log = log

    def attach(self, submission: int, index: int, *, caller: Caller) -> RanksLink:
        """See `TerminalAnswers.attach`. Only its owner may type into a command, operators may not."""
        try:
            found = self._starter.ask(lambda: self._look(submission, index))
        except TimeoutError:
            raise Unavailable("the Starter is busy or registering", hint="try again in a moment") from None
        if found is None:
            raise NotFound(f"job {submission} does not run on this node")
        hosts, uid, owner = found
        person = person_of(caller, self._operators)
        with audited(self._log, person, "terminal", str(submission)):
            if not (person.is_open or person.owns(owner)):
                raise denied(submission, owner)
        link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            link.connect(terminal.address(hosts))
            if ranks.peer_uid(link) != uid:  # everybody may listen by any name
                raise Unavailable(f"what listens for job {submission} is not its user's")
        except OSError as error:
            link.close()
            raise Unavailable(f"job {submission} has no terminal yet: {error.strerror}") from None
        except Unavailable:
            link.close()
            raise
        return SocketLink(link)

    def _look(self, submission: int, index: int) -> tuple[str, int, str] | None:
        """(host file, whose processes, whose job)."""
        for agent in self._starter.agents.values():
            for block in agent.blocks.values():
                if block.key.submission == submission and block.key.first == index and block.is_placed:
                    place = agent.jobs.place_of(block)
                    account = block.info.account if block.info is not None else None
                    if place is not None:
                        return str(place / "hosts"), account.uid if account is not None else os.getuid(), block.info.record.user
        return None
