"""Reasons for a drain come and go by themselves; users' work on a node's disk, and whose work ends when it is too much."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog

from rmgr.config import StarterConfig
from rmgr.coord.protocol.records import encode_record
from rmgr.daemons.starter.core.home import DiskWatch
from rmgr.daemons.starter.core.uploads import NoRoom, StagingRoom
from rmgr.daemons.starter.node import trouble
from rmgr.daemons.starter.node.trouble import MAX_DEPTH, MAX_THINGS, DiskCaps, Drains, Use, count, excess, given
from rmgr.errors import ValueTooLarge
from rmgr.model.node import Drain, TroubleKind
from rmgr.runner.host import home
from tests.harness.fair_time import FairTimer, undisturbed
from tests.harness.hanging import hanging
from tests.harness.waiting import eventually


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers that a slow machine brings late count as prompt."""
    monkeypatch.setattr(trouble, "PROMPT_S", 1.0)


@dataclass
class Node:
    name: str
    drains: dict[str, str] = field(default_factory=dict)


@dataclass
class World:
    """A disk and a spool of a Starter's nodes, as they are set here."""

    why: str = ""
    pending_bytes: int = 0
    starved_since_s: float | None = None
    down_since_s: float | None = None
    over_quota: str = ""
    directory: Path = Path("/there")

    def look(self) -> str:
        return self.why


@dataclass
class Found:
    data: bytes


def made() -> tuple[World, list[Node], Drains]:
    world, nodes = World(), [Node("n1"), Node("n2")]
    return world, nodes, drains_of(world, nodes)


def drains_of(world: World, nodes: list[Node], gate: Any = None, disk: Any = None) -> Drains:
    shared: Any = SimpleNamespace(
        agents={node.name: node for node in nodes}, disk=disk or world, io=world, committer=world, gate=gate,
        config=StarterConfig(spool_cap_bytes=100), log=structlog.get_logger(),
    )  # fmt: skip
    return Drains(shared)


def test_a_node_that_was_resumed_takes_work_again() -> None:
    _, (node, _), drains = made()
    drain = Drain(node="n1", reason="fan", user="op", since_us=1)
    for _ in range(2):
        drains.ordered(node, Found(encode_record(drain)))
        assert node.drains == {"operator": "fan"}
        drains.ordered(node, Found(encode_record(replace(drain, is_over=True))))
        assert node.drains == {}


def test_a_full_disk_drains_all_nodes_until_there_is_room() -> None:
    world, nodes, drains = made()
    world.why = "full"
    drains.settle(0.0)
    assert [node.drains for node in nodes] == [{"disk": "full"}] * 2
    world.why = ""
    drains.settle(1.0)
    assert [node.drains for node in nodes] == [{"disk": "full"}] * 2, "looked at every two seconds"
    drains.settle(2.0)
    assert [node.drains for node in nodes] == [{}, {}]


@undisturbed
def test_a_file_system_that_hangs_drains_all_nodes_and_holds_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world, nodes, _ = made()
    monkeypatch.setattr(trouble, "PROMPT_S", 0.01)
    monkeypatch.setattr(trouble, "HANGS_S", 0.5)
    place = Path(tempfile.mkdtemp(dir=tmp_path)) / "server"
    with hanging(place):
        monkeypatch.setattr(home, "ROOT", place)
        disk: Any = DiskWatch(place)
        drains = drains_of(world, nodes, disk=disk)
        for _ in range(3):
            with FairTimer() as timer:
                drains.settle(time.monotonic())
            assert timer.elapsed_s < 5
            assert [node.drains for node in nodes] == [{}, {}], "it may only be slow"
        time.sleep(0.5)
        drains.settle(time.monotonic())
        told = f"{place} has not answered for 500ms: its file system hangs; is a file server away?"
        assert nodes[0].drains == nodes[1].drains == {"disk": f"the work directory {told}", TroubleKind.OTHER: f"the package in {told}"}
    monkeypatch.undo()

    def is_over() -> bool:
        drains.settle(time.monotonic())
        return not nodes[0].drains

    eventually(is_over, lambda: nodes[0].drains)


def test_a_clock_that_would_refuse_work_drains_all_nodes_until_it_is_right() -> None:
    world, nodes, _ = made()
    told = {"fault": "its clock is 2h behind ZooKeeper's: set it right"}
    gate: Any = SimpleNamespace(fault=lambda _now_s: told["fault"])
    drains = drains_of(world, nodes, gate)
    drains.settle(0.0)
    assert [list(node.drains.values()) for node in nodes] == [[told["fault"]]] * 2
    told["fault"] = ""
    drains.settle(1.0)
    assert [node.drains for node in nodes] == [{}, {}]


def test_a_package_that_was_removed_drains_all_nodes_until_it_is_there_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, nodes, drains = made()
    drains.settle(0.0)
    assert [node.drains for node in nodes] == [{}, {}]
    with monkeypatch.context() as patch:
        patch.setattr(home, "ROOT", tmp_path)
        drains.settle(1.0)
        told = f"rmgr was removed from {tmp_path}: install it there, or restart the Starter elsewhere"
        assert [list(node.drains.values()) for node in nodes] == [[told]] * 2
    drains.settle(2.0)
    assert [node.drains for node in nodes] == [{}, {}]


def test_a_package_that_was_replaced_drains_all_nodes_until_the_starter_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, nodes, drains = made()
    monkeypatch.setattr(home, "ROOT", tmp_path)
    spawner = home.source("rmgr.runner.spawner")
    spawner.parent.mkdir(parents=True)
    spawner.touch()
    drains.settle(0.0)
    (spawner.parent / "another.py").touch()  # a checkout that grows is the same
    shutil.copy2(spawner, tmp_path / "same")
    (tmp_path / "same").replace(spawner)  # and file systems exist where the number of a file does not last
    drains.settle(1.0)
    assert [node.drains for node in nodes] == [{}, {}]
    (tmp_path / "new").touch()
    os.utime(tmp_path / "new", (1, 1))
    (tmp_path / "new").replace(spawner)
    drains.settle(2.0)
    told = f"rmgr was replaced in {tmp_path}: restart the Starter, which runs what was there before"
    assert [list(node.drains.values()) for node in nodes] == [[told]] * 2
    _, (node, _), drains = made()
    drains.settle(3.0)
    assert node.drains == {}


def test_a_package_that_cannot_be_reached_drains_all_nodes_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not "not there" but an error: a server of files that is away, rights that have changed, or, for root too, a name that is too long."""
    _, nodes, drains = made()
    with monkeypatch.context() as patch:
        patch.setattr(home, "ROOT", tmp_path / ("x" * 300))
        drains.settle(0.0)
        assert [["cannot be read" in why for why in node.drains.values()] for node in nodes] == [[True]] * 2
    drains.settle(1.0)
    assert [node.drains for node in nodes] == [{}, {}]


def test_a_quota_of_zookeeper_that_is_used_up_drains_all_nodes_and_is_named() -> None:
    world, nodes, drains = made()
    world.over_quota = "COMPLETE: ZooKeeper's quota of /subs is used up"
    drains.settle(0.0)
    told = "its commits wait: COMPLETE: ZooKeeper's quota of /subs is used up"
    assert [node.drains for node in nodes] == [{TroubleKind.QUOTA: told}] * 2
    world.over_quota = ""
    drains.settle(7.0)
    assert [node.drains for node in nodes] == [{}, {}]


def test_a_store_that_is_away_drains_late_and_a_full_spool_until_half_of_it_is_free() -> None:
    world, (node, _), drains = made()
    world.starved_since_s = 10.0
    drains.settle(12.0)
    assert node.drains == {}
    drains.settle(12.1)
    assert "does not answer" in node.drains["store"]
    world.starved_since_s, world.down_since_s, world.pending_bytes = None, 10.0, 100
    drains.settle(13.0)
    world.pending_bytes = 50
    drains.settle(14.0)
    assert "store" in node.drains, "it is still away"
    world.pending_bytes = 49
    drains.settle(15.0)
    assert node.drains == {}


def test_an_operators_drain_is_the_nodes_own_and_outlasts_the_others() -> None:
    world, (first, second), drains = made()
    found: Any = Found(encode_record(Drain(node="n1", user="op", since_us=1, reason="new memory")))
    drains.ordered(first, found)
    world.why = "full"
    drains.settle(0.0)
    world.why = ""
    drains.settle(2.0)
    assert (first.drains, second.drains) == ({"operator": "new memory"}, {})
    drains.ordered(first, None)
    assert first.drains == {}
    drains.stopping()
    assert set(first.drains) == set(second.drains) == {"stopping"}


MIB = 1024 * 1024
CAPS = DiskCaps(user_bytes=100, all_bytes=250)


def use(path: str, uid: int, size: int, things: int = 1, *, is_deep: bool = False) -> Use:
    return Use(path=path, uid=uid, size_bytes=size, things=things, is_deep=is_deep)


def test_files_are_counted_once_and_links_are_not_followed(tmp_path: Path) -> None:
    place = tmp_path / "work"
    (place / "a" / "b").mkdir(parents=True)
    (tmp_path / "outside").write_bytes(b"x" * 5 * MIB)
    (place / "file").write_bytes(b"x" * MIB)
    (place / "a" / "again").hardlink_to(place / "file")
    (place / "a" / "b" / "link").symlink_to(tmp_path)
    (place / "sparse").touch()
    os.truncate(place / "sparse", 10**9)
    found = count(str(place), 1, max_things=MAX_THINGS)
    assert MIB <= found.size_bytes < 2 * MIB
    assert (found.things, found.is_deep) == (6, False)
    assert count(str(tmp_path / "nothing"), 1, max_things=MAX_THINGS).things == 0
    assert count(str(place / "a" / "b" / "link"), 1, max_things=MAX_THINGS).things == 0, "what was put in the place of a directory"


def test_counting_ends_at_the_limits(tmp_path: Path) -> None:
    for number in range(30):
        (tmp_path / f"{number}").touch()
    assert count(str(tmp_path), 1, max_things=10).things == 11
    deep = tmp_path / "deep"
    here = os.open(tmp_path, os.O_RDONLY)
    os.mkdir("deep", dir_fd=here)
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    here = _sink(os.open(deep, os.O_RDONLY), here, MAX_DEPTH + 50)
    os.close(here)
    assert count(str(deep), 1, max_things=MAX_THINGS).is_deep
    if before:
        assert len(os.listdir("/proc/self/fd")) < before
    shutil.rmtree(deep)


def _sink(here: int, above: int, steps: int) -> int:
    for _ in range(steps):
        os.close(above)
        os.mkdir("d", dir_fd=here)
        here, above = os.open("d", os.O_RDONLY, dir_fd=here), here
    os.close(above)
    return here


def test_what_goes_while_it_is_counted_is_no_error(tmp_path: Path) -> None:
    over = threading.Event()

    def churn() -> None:
        while not over.is_set():
            (tmp_path / "d").mkdir()
            (tmp_path / "d" / "f").touch()
            shutil.rmtree(tmp_path / "d")
            (tmp_path / "d").symlink_to("/")
            (tmp_path / "d").unlink()

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        assert max(count(str(tmp_path), 1, max_things=MAX_THINGS).things for _ in range(500)) <= 2
    finally:
        over.set()
        thread.join(20)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give directories away")
def test_only_directories_that_were_given_to_users_count(tmp_path: Path) -> None:
    for kind in ("run", "stage"):
        for name, uid in (("mine", 0), ("anna", 4711)):
            (tmp_path / kind / name).mkdir(parents=True)
            os.chown(tmp_path / kind / name, uid, uid)
    assert sorted(given(tmp_path)) == [(str(tmp_path / "run" / "anna"), 4711), (str(tmp_path / "stage" / "anna"), 4711)]


def test_the_largest_directories_of_who_takes_too_much_end() -> None:
    uses = [use("a1", 1, 60), use("a2", 1, 50), use("a3", 1, 40), use("b", 2, 90)]
    ended = excess(uses, CAPS, max_things=MAX_THINGS)
    assert [one.path for one, _ in ended] == ["a1"]
    assert "work_cap_user_bytes" in ended[0][1]
    assert excess(uses[1:], CAPS, max_things=MAX_THINGS) == []


def test_all_together_have_a_limit_and_who_takes_most_ends_first() -> None:
    ended = excess([use("a", 1, 95), use("b", 2, 90), use("c", 3, 80)], CAPS, max_things=MAX_THINGS)
    assert [one.path for one, _ in ended] == ["a"]
    assert "work_cap_bytes" in ended[0][1]


def test_names_are_limited_too() -> None:
    ended = excess([use("a1", 1, 1, 600), use("a2", 1, 2, 500), use("b", 2, 1, 999)], CAPS, max_things=1000)
    assert [one.path for one, _ in ended] == ["a1"]
    assert excess([use("a", 1, 1, is_deep=True), use("b", 2, 1)], CAPS, max_things=MAX_THINGS)[0][0].path == "a"


def test_a_user_has_a_share_of_the_room_for_staged_files() -> None:
    room = StagingRoom(1000, 600)
    room.take(500, "task 1_0", user="anna")
    with pytest.raises(NoRoom) as short:
        room.take(200, "task 1_1", user="anna")
    assert short.value.user == "anna"
    room.take(400, "task 2_0", user="ben")
    with pytest.raises(NoRoom) as short:
        room.take(200, "task 2_1", user="ben")
    assert short.value.user == "", "now it is that of all"
    with pytest.raises(ValueTooLarge, match=r"of one user is 600 .*staging_cap_user_bytes"):
        room.take(700, "task 3_0", user="eve")
    room.settle(500, 0, user="anna")
    room.take(550, "task 1_1", user="anna")
    assert room.used_bytes == 950
    whole = StagingRoom(1000)
    whole.take(900, "task", user="anna")
