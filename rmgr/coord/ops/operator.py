"""The multis of an operator: drain and resume a node, change the cluster's settings."""

from __future__ import annotations

from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Create, Delete, Gone, Holds, Multi, Set
from rmgr.coord.protocol.records import encode_record
from rmgr.model.cluster.node import Drain
from rmgr.model.cluster.queue import ClusterSettings


def drain(record: Drain, version: int | None) -> Multi:
    """The node takes nothing new. version: of the drain that it replaces, None when there is none."""
    data = encode_record(record)
    path = paths.drain(record.node)
    op = Create(path, data) if version is None else Set(path, data, version)
    return Multi(name="DRAIN", ops=(op,), proof=Holds(path, data))


def resume(node: str, version: int) -> Multi:
    """The node takes work again."""
    path = paths.drain(node)
    return Multi(name="RESUME", ops=(Delete(path, version),), proof=Gone(path))


def set_settings(settings: ClusterSettings, version: int) -> Multi:
    """Queues, limits and times of the whole cluster, replaced as one; their directories exist already."""
    data = encode_record(settings)
    return Multi(name="SETTINGS", ops=(Set(paths.CONFIG, data, version),), proof=Holds(paths.CONFIG, data))
