"""Whose terminal it is: only the owner of a job may sit down at it, and only where his own program listens."""

from __future__ import annotations

import os
import socket
import threading
import uuid
from collections.abc import Callable
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from rmgr.adapters.access.auth import Caller
from rmgr.daemons.starter.jobs.ranks import TerminalAnswering
from rmgr.errors import NotFound, PermissionDenied, Unavailable
from rmgr.model.cluster.identity import Identity, Role
from rmgr.runner.ranks import terminal


class OneJob:
    """A Starter on which a job of anna's runs."""

    agents: dict[str, Any] = {}

    def __init__(self, hosts: str, uid: int) -> None:
        self.found: tuple[str, int, str] | None = (hosts, uid, "anna")

    def ask(self, _question: Callable[[], Any]) -> Any:
        return self.found


def somebody(name: str, role: Role = Role.USER) -> Caller:
    return Caller(identity=Identity(name=name, role=role, cluster="c", key_id="k"))


def test_only_its_owner_may_type_into_a_command_and_no_operator() -> None:
    answering = TerminalAnswering(OneJob(f"/nowhere/{uuid.uuid4()}", os.getuid()), operators=("olga",))  # type: ignore[arg-type]
    for caller in (somebody("bob"), somebody("olga"), somebody("root", Role.OPERATOR), somebody("root", Role.ADMIN)):
        with pytest.raises(PermissionDenied, match="7 belongs to anna"):
            answering.attach(7, 0, caller=caller)
    with pytest.raises(Unavailable, match="job 7 has no terminal yet"):
        answering.attach(7, 0, caller=somebody("anna"))


def test_what_listens_by_the_name_of_a_job_must_be_its_users() -> None:
    hosts = f"/nowhere/{uuid.uuid4()}"
    starter = OneJob(hosts, os.getuid() + 1)
    answering = TerminalAnswering(starter)  # type: ignore[arg-type]
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(terminal.address(hosts))
        door.listen()
        with pytest.raises(Unavailable, match="is not its user's"):
            answering.attach(7, 0, caller=somebody("anna"))
        starter.found = (hosts, os.getuid(), "anna")
        answering.attach(7, 0, caller=somebody("anna")).close()
    starter.found = None
    with pytest.raises(NotFound):
        answering.attach(7, 0, caller=somebody("anna"))


def test_time_in_which_a_job_stood_still_is_none_in_which_nobody_came(monkeypatch: pytest.MonkeyPatch) -> None:
    leaps = count(0, 1000)
    monkeypatch.setattr(terminal, "time", SimpleNamespace(monotonic=lambda: next(leaps)))
    name = terminal.address(f"/nowhere/{uuid.uuid4()}")
    found: list[socket.socket | None] = []
    waits = threading.Thread(target=lambda: found.append(terminal._arrival(name)), daemon=True)
    waits.start()
    waits.join(0.5)
    assert waits.is_alive()
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(name)
        waits.join(60)
    (came,) = found
    assert came is not None
    came.close()
    monkeypatch.setattr(terminal, "_ARRIVE_S", 0.2)
    assert terminal._arrival(name) is None
