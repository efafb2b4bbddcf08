"""Settings of a running cluster, read and written as its admin does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rmgr.coord.ops.membership import set_settings
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Committed
from rmgr.coord.protocol.ports import Coordinator
from rmgr.coord.protocol.records import decode_record
from rmgr.model.queue import ClusterSettings


def read_settings(coordinator: Coordinator) -> ClusterSettings:
    found = coordinator.get(paths.CONFIG).result(60)
    assert found is not None
    return decode_record(found.data, ClusterSettings, paths.CONFIG)


def write_settings(coordinator: Coordinator, settings: ClusterSettings) -> None:
    found = coordinator.get(paths.CONFIG).result(60)
    assert found is not None
    assert isinstance(coordinator.commit(set_settings(settings, found.version)).result(60), Committed)


@contextmanager
def changed_settings(coordinator: Coordinator, change: Callable[[ClusterSettings], ClusterSettings]) -> Iterator[None]:
    """Meanwhile the cluster has other settings."""
    usual = read_settings(coordinator)
    write_settings(coordinator, change(usual))
    try:
        yield
    finally:
        write_settings(coordinator, usual)
