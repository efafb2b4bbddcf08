"""The tree of a cluster is made once, recognised afterwards, and refused if it belongs to another cluster."""

from __future__ import annotations

import pytest

from rmgr.coord.protocol import paths
from rmgr.errors import NotConnected, WrongCluster
from rmgr.model.queue import ClusterSettings, QueueSpec
from rmgr.procedures.bootstrap import bootstrap, read_settings, verify
from tests.harness.memory import MemoryCoordinator
from tests.harness.memory_store import MemoryStore
from tests.harness.memory_tree import MemoryTree


@pytest.fixture
def tree() -> MemoryTree:
    return MemoryTree()


def connect(tree: MemoryTree) -> MemoryCoordinator:
    return MemoryCoordinator(tree, guarded=False)


def test_the_first_founds_the_cluster_and_the_second_finds_it(tree: MemoryTree) -> None:
    first, second = connect(tree), connect(tree)
    meta = bootstrap(first)
    assert bootstrap(second) == meta
    assert verify(second, meta.cluster_id) == meta
    assert set(first.children("/").result() or ()) >= {path.strip("/") for path in paths.SKELETON}
    assert first.children(paths.queue("default")).result() is not None
    assert sorted(first.children(paths.queue("default")).result() or ()) == ["held", "pending"]


def test_a_new_cluster_has_the_settings_it_was_given_and_directories_for_its_queues(tree: MemoryTree) -> None:
    coordinator = connect(tree)
    settings = ClusterSettings(queues=(QueueSpec(name="default"), QueueSpec(name="night")))
    bootstrap(coordinator, settings=settings)
    assert read_settings(coordinator) == settings
    assert coordinator.children(paths.pending("night")).result() == []
    bootstrap(coordinator, settings=ClusterSettings())
    assert read_settings(coordinator) == settings


def test_an_empty_tree_is_refused_by_who_remembers_a_cluster(tree: MemoryTree) -> None:
    with pytest.raises(WrongCluster, match="no cluster in ZooKeeper") as refused:
        bootstrap(connect(tree), "4711")
    assert "rmgr doctor" in refused.value.hint
    with pytest.raises(WrongCluster):
        verify(connect(tree), "4711")
    with pytest.raises(NotConnected, match="no rmgr cluster") as missing:
        verify(connect(tree))
    assert "rmgr dev" in missing.value.hint


def test_the_tree_of_another_cluster_is_refused(tree: MemoryTree) -> None:
    meta = bootstrap(connect(tree))
    for check in (bootstrap, verify):
        with pytest.raises(WrongCluster, match=meta.cluster_id):
            check(connect(tree), "4711")


def test_a_store_remembers_its_cluster() -> None:
    store = MemoryStore("bootstrap")
    assert store.cluster_id() is None
    store.bind_cluster("4711")
    assert store.cluster_id() == "4711"
