"""Admission at a job's door: a bounded number of the job's processes, and only its owner to its terminal."""

from __future__ import annotations

import os
import socket
import threading
import uuid
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from rmgr.adapters.access.auth import Caller
from rmgr.daemons.starter.jobs import ranks as starter_ranks
from rmgr.daemons.starter.jobs.ranks import Door, Places, RanksAnswering, SocketLink, TerminalAnswering
from rmgr.errors import NotFound, PermissionDenied, Unavailable
from rmgr.model.identity import Identity, Role
from rmgr.runner.ranks import ranks, terminal
from tests.harness.waiting import eventually


class Nodes:
    """Other nodes: what is launched there runs until its caller has gone."""

    def __init__(self) -> None:
        self.launched = 0

    def launch(self, _endpoint: str, _node: str, _hold: str, sent: Iterator[bytes]) -> tuple[Iterator[bytes], Callable[[], None]]:
        self.launched += 1
        over = threading.Event()

        def pieces() -> Iterator[bytes]:
            threading.Thread(target=lambda: list(sent), daemon=True).start()
            over.wait(60)
            yield from ()

        return pieces(), over.set


@pytest.fixture
def nodes() -> Nodes:
    return Nodes()


@pytest.fixture
def door(nodes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Door]:
    monkeypatch.setattr(starter_ranks, "LINKS_MORE", 4)
    monkeypatch.setattr(starter_ranks, "PLACES", Places(40))
    made = Door(tmp_path / "door", nodes, nodes=frozenset({"n2"}), endpoint_of=lambda _node: "here:1", hold="1.0.1")
    yield made
    made.close()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0


def words(link: socket.socket) -> bytes:
    link.settimeout(30)
    with link:
        return b"".join(iter(lambda: link.recv(4096), b""))


def test_a_job_has_so_many_connections_and_the_next_one_is_told(door: Door, nodes: Nodes, tmp_path: Path) -> None:
    at_first, held = descriptors(), []
    for _ in range(8):
        held.append(ranks.connect(str(tmp_path / "door")))
        held[-1].sendall(b'{"node": "n2"}\n')
    eventually(lambda: nodes.launched == 8, "all are served")
    before = descriptors()
    for _ in range(50):
        assert b"may have no more" in words(ranks.connect(str(tmp_path / "door")))
    assert descriptors() <= before + 2
    assert nodes.launched == 8
    held.pop().close()
    eventually(lambda: descriptors() <= before - 2, "the place is given back")
    held.append(ranks.connect(str(tmp_path / "door")))
    held[-1].sendall(b'{"node": "n2"}\n')
    eventually(lambda: nodes.launched == 9, "the next one is served")
    for link in held:
        link.close()
    eventually(lambda: descriptors() <= at_first, "all are given back")


def test_a_connection_that_never_says_for_which_node_it_is_ends(door: Door, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starter_ranks, "LINE_S", 0.2)
    at_first = descriptors()
    silent = ranks.connect(str(tmp_path / "door"))
    trickles = ranks.connect(str(tmp_path / "door"))
    trickles.sendall(b"{")
    assert words(silent) == words(trickles) == b""
    eventually(lambda: descriptors() <= at_first, "they are given back")


def test_what_a_connection_may_take_is_time_in_which_its_job_runs(nodes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starter_ranks, "LINE_S", 0.2)
    monkeypatch.setattr(starter_ranks, "LOOK_S", 0.05)
    served_s = 100.0
    door = Door(tmp_path / "door", nodes, nodes=frozenset({"n2"}), endpoint_of=lambda _node: "here:1", hold="1.0.1", clock=lambda: served_s)
    at_first = descriptors()
    try:
        slow, silent = (ranks.connect(str(tmp_path / "door")) for _ in range(2))
        slow.sendall(b"{")
        silent.settimeout(1)  # five times as long as it may take
        with pytest.raises(TimeoutError):
            silent.recv(1)
        slow.sendall(b'"node": "n2"}\n')
        eventually(lambda: nodes.launched == 1, "the one that stood still is served")
        served_s += 0.3
        assert words(silent) == b""
        slow.close()
        eventually(lambda: descriptors() <= at_first, "both are given back")
    finally:
        door.close()


@pytest.mark.parametrize("takes_turns", [False, True])
def test_who_stands_still_may_take_his_time_to_listen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, takes_turns: bool) -> None:
    monkeypatch.setattr(starter_ranks, "CONNECT_S", 0.2)
    hold = Mock(place=tmp_path, is_ready=True, info=None, seq=1)
    hold.record.gang = "default" if takes_turns else ""
    served_us = [7_000_000]
    jobs = Mock(**{"holds.get.return_value": hold, "gangs.served_us": lambda _part: (served_us[0], 3)})
    answering = RanksAnswering(Mock(agents={"n2": Mock(jobs=jobs)}, ask=lambda question, _timeout_s: question()))
    if not takes_turns:
        with pytest.raises(Unavailable, match="does not start processes"):
            answering.launch("n2", "1.0.1")
        return
    found: list[object] = []
    asking = threading.Thread(target=lambda: found.append(answering.launch("n2", "1.0.1")), daemon=True)
    asking.start()
    asking.join(1)
    assert asking.is_alive()  # five times as long as it may take
    with ranks.listen(str(tmp_path / "ranks")):
        asking.join(60)
        assert [type(link) for link in found] == [SocketLink]
        found[0].close()
    os.unlink(tmp_path / "ranks")
    served_us[0] = 0
    jobs.gangs.served_us = lambda _part: (served_us.append(served_us.pop() + 50_000) or served_us[0], 3)
    with pytest.raises(Unavailable, match="does not start processes"):
        answering.launch("n2", "1.0.1")


@pytest.mark.parametrize("line", [b"[" * 4000, b'{"node": ' + b"9" * 4000 + b"}", b"\xff\xfe", b"[]", b"{}"])
def test_a_line_that_names_no_node_is_told_so(door: Door, tmp_path: Path, line: bytes) -> None:
    assert door.lost == ""
    link = ranks.connect(str(tmp_path / "door"))
    link.sendall(line + b"\n")
    assert b"node" in words(link)


def test_a_user_leaves_connections_to_others() -> None:
    places = Places(10)
    assert [places.take(1) for _ in range(6)] == [True] * 5 + [False]
    assert [places.take(2) for _ in range(6)] == [True] * 5 + [False]
    assert not places.take(3)
    places.give(1)
    assert places.take(3)
    assert not places.take(1)


class OneJob:
    """A Starter on which a job of anna's runs."""

    agents: dict[str, Any] = {}
    shared = SimpleNamespace(log=None)

    def __init__(self, hosts: str, uid: int) -> None:
        self.found: tuple[str, int, str] | None = (hosts, uid, "anna")

    def ask(self, _question: Callable[[], Any]) -> Any:
        return self.found


def somebody(name: str, role: Role = Role.USER) -> Caller:
    return Caller(identity=Identity(name=name, role=role, cluster="c", key_id="k"))


def test_only_its_owner_may_type_into_a_command_and_no_operator() -> None:
    answering = TerminalAnswering(OneJob(f"/nowhere/{uuid.uuid4()}", os.getuid()), operators=("olga",))
    for caller in (somebody("bob"), somebody("olga"), somebody("root", Role.OPERATOR), somebody("root", Role.ADMIN)):
        with pytest.raises(PermissionDenied, match="7 belongs to anna"):
            answering.attach(7, 0, caller=caller)
    with pytest.raises(Unavailable, match="job 7 has no terminal yet"):
        answering.attach(7, 0, caller=somebody("anna"))


def test_what_listens_by_the_name_of_a_job_must_be_its_users() -> None:
    hosts = f"/nowhere/{uuid.uuid4()}"
    starter = OneJob(hosts, os.getuid() + 1)
    answering = TerminalAnswering(starter)
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
    waits = threading.Thread(target=lambda: found.append(terminal.arrival(name)), daemon=True)
    waits.start()
    waits.join(0.5)
    assert waits.is_alive()
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(name)
        waits.join(60)
    (came,) = found
    came.close()
    monkeypatch.setattr(terminal, "ARRIVE_S", 0.2)
    assert terminal.arrival(name) is None
