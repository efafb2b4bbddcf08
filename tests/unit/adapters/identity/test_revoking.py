"""`rmgr admin revoke` records revocations, at first and repeatedly, and ends streams and sessions."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rmgr.adapters.access.auth import Caller, Expeller
from rmgr.adapters.access.limits import Bounds
from rmgr.adapters.gateway.talk import Stream, Talks
from rmgr.adapters.identity.credentials import Credentials, write_files
from rmgr.adapters.identity.pki import issue
from rmgr.adapters.identity.trust import publish
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.records import decode_record
from rmgr.errors import NotFound, PermissionDenied, UsageError
from rmgr.model.identity import Identity, Revocation, RevokedWork, Role
from rmgr.procedures.securing import revoke
from tests.harness.bundles import session_bundles
from tests.harness.memory import MemoryCoordinator
from tests.harness.memory_tree import MemoryTree
from tests.harness.talks import Echo
from tests.harness.waiting import eventually


class World:
    """A tree with the places of identities."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.zk = MemoryCoordinator(MemoryTree())
        self.zk.ensure(["/", paths.IDENTITIES, paths.REVOKED, paths.JOINS])
        self.bundles = session_bundles()

    def known(self, role: Role = Role.USER) -> str:
        """Somebody new of the name ann; his key id."""
        where = self.directory / str(len(list(self.directory.iterdir())))
        mine = Credentials.load(write_files(where, issue(self.bundles.ca, "ann", role, zookeeper=False)))
        publish(self.zk, mine)
        return mine.identity.key_id

    def revoke(self, whom: str = "ann", **more: Any) -> list[Revocation]:
        return revoke(self.zk, self.bundles.ca.cert_pem, whom, role=None, by="admin", **more)

    def stands(self, key_id: str) -> Revocation:
        found = self.zk.get(paths.revoked(key_id)).result(60)
        assert found is not None
        return decode_record(found.data, Revocation)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.zk.close()


def test_what_runs_goes_on_unless_something_else_is_said(world: World) -> None:
    keys = {world.known(), world.known()}
    assert {one.key_id for one in world.revoke()} == keys
    assert {(world.stands(key).work, world.stands(key).others) for key in keys} == {(RevokedWork.KEEP, False)}


def test_something_else_may_be_said_later_and_the_first_word_stays_on_record(world: World) -> None:
    key = world.known()
    world.revoke(work=RevokedWork.HOLD, reason="lost")
    [changed] = world.revoke(work=RevokedWork.CANCEL)
    assert changed == world.stands(key)
    assert (changed.work, changed.before, changed.reason) == (RevokedWork.CANCEL, RevokedWork.HOLD, "lost")
    assert world.revoke() == [changed]


def test_one_of_two_keys_leaves_the_other_and_the_work(world: World) -> None:
    first, second = world.known(), world.known()
    [one] = world.revoke(first)
    assert one.others
    assert {(each.key_id, each.others) for each in world.revoke(second)} == {(second, False)}
    world.revoke()
    assert not world.stands(first).others


def test_a_later_key_does_not_change_what_was_said_of_the_work_before(world: World) -> None:
    old = world.known()
    world.revoke()
    world.known()
    [changed] = world.revoke(old, work=RevokedWork.CANCEL)
    assert (changed.work, changed.others) == (RevokedWork.CANCEL, False)


def test_a_node_has_no_work_of_its_own(world: World) -> None:
    world.known(Role.STARTER)
    with pytest.raises(UsageError, match="no work of its own"):
        world.revoke(work=RevokedWork.CANCEL)
    [gone] = world.revoke()
    assert gone.work == ""
    with pytest.raises(NotFound):
        world.revoke("nobody")


# -- what is open ----------------------------------------------------------------------------------------------------------------


class Call:
    """A stream as the server of gRPC knows it."""

    def __init__(self) -> None:
        self.is_cancelled = False
        self.callbacks: list[Callable[[], None]] = []

    def add_callback(self, callback: Callable[[], None]) -> bool:
        self.callbacks.append(callback)
        return True

    def cancel(self) -> None:
        self.is_cancelled = True


def test_streams_of_a_revoked_key_end_and_no_others() -> None:
    revoked, told = set[str](), []
    made = Expeller(revoked.__contains__, lambda method, who, why: told.append((method, who and who.name, why.message)))
    calls = {}
    for name, ends_s in (("ann", math.inf), ("bob", math.inf), ("eve", time.time() + 0.2)):
        for method in ("/rmgr.v1.Node/Logs", "/rmgr.v1.Work/Talk"):
            calls[name, method] = Call()
            who = Identity(name=name, role=Role.USER, cluster="c", key_id=name)
            made.watch(method, Caller(identity=who, ends_s=ends_s), calls[name, method])  # type: ignore[arg-type]
    revoked.add("ann")
    eventually(lambda: len(told) == 2, "the end of two streams")
    logs = "/rmgr.v1.Node/Logs"
    assert {key for key, call in calls.items() if call.is_cancelled} == {("ann", logs), ("eve", logs)}, "streams of work end by themselves"
    assert sorted(told) == [(logs, "ann", "the key of user ann was revoked"), (logs, "eve", "the certificate of user eve has ended")]


def test_a_stream_is_told_why_and_who_does_not_listen_is_cut_off() -> None:
    cut: list[str] = []
    talks = Talks(Echo, most=1, is_revoked=lambda _: False, bounds=Bounds(), count=lambda _, why: cut.append(why))
    call = Call()
    stream = Stream(talks, Caller(), call)  # type: ignore[arg-type]
    why = PermissionDenied("it was revoked")
    stream.expel(why)
    assert (cut, call.is_cancelled) == ([], False)
    with pytest.raises(PermissionDenied, match="revoked"):
        list(stream.told())
    stream.expel(why)
    assert (cut, call.is_cancelled) == (["revoked"], True)
