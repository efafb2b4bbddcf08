"""The tree in memory answers every multi as a real ZooKeeper server does: outcome, names, versions, and the resulting tree."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rmgr.adapters.zookeeper.client import ZkCoordinator
from rmgr.adapters.zookeeper.session import SessionCoordinator
from rmgr.coord.protocol.multi import Check, Create, Delete, Exists, Multi, Op, Set
from rmgr.dev.zookeeper import ZooKeeperServer
from rmgr.errors import RmgrError
from tests.harness.ended_sessions import LONG_S
from tests.harness.memory import MemoryCoordinator

PATHS = ["/a", "/b", "/a/x", "/a/y", "/a/x/1", "/a/k-0000000001"]
VERSIONS = st.integers(-1, 2)

ops = st.one_of(
    st.builds(Create, st.sampled_from([*PATHS, "/a/k-", "/b/k-"]), st.binary(max_size=3), st.booleans(), st.booleans()),
    st.builds(Set, st.sampled_from(PATHS), st.binary(max_size=3), VERSIONS),
    st.builds(Delete, st.sampled_from(PATHS), VERSIONS),
    st.builds(Check, st.sampled_from(PATHS), VERSIONS),
    st.builds(Create, st.sampled_from(PATHS)),
)
multis = st.lists(ops, min_size=1, max_size=5).map(tuple)


@pytest.fixture(scope="module")
def session(zookeeper: ZooKeeperServer) -> Iterator[ZkCoordinator]:
    with ZkCoordinator.connect(zookeeper.hosts, f"/test/{uuid.uuid4().hex}", session_timeout_s=LONG_S) as coordinator:
        yield coordinator



def _told(coordinator: SessionCoordinator, each: tuple[Op, ...]) -> object:
    try:
        return coordinator.commit(Multi(name="ANY", ops=each, proof=Exists("/never"))).result(60)
    except RmgrError as error:
        return error.message


def _tree(coordinator: SessionCoordinator, path: str = "/") -> object:
    found = coordinator.get(path).result(60)
    assert found is not None
    stat = found.stat
    children = sorted(coordinator.children(path).result(60) or [])
    below = {name: _tree(coordinator, f"{path.rstrip('/')}/{name}") for name in children}
    return found.data, stat.version, stat.children, stat.creates, stat.ephemeral_owner != 0, below


_number = itertools.count()


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(story=st.lists(multis, min_size=1, max_size=12))
def test_both_tell_the_same_story(session: ZkCoordinator, story: list[tuple[Op, ...]]) -> None:
    memory = MemoryCoordinator(chroot="/m", guarded=False)
    memory.ensure(["/"])
    session.root = f"{session.root.rpartition('/run')[0] or session.root}/run{next(_number)}"
    session.ensure(["/"])
    for each in story:
        assert _told(session, each) == _told(memory, each)
    assert _tree(session) == _tree(memory)
