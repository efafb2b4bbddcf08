"""The multis of an operator: drain, resume and forget a node, change the cluster's settings."""

from __future__ import annotations

from dataclasses import replace

from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Create, Delete, Holds, Multi, Op, Set
from rmgr.coord.protocol.records import encode_record
from rmgr.model.cluster.node import Drain, NodeRecord
from rmgr.model.cluster.queue import ClusterSettings


def drain(record: Drain, version: int | None) -> Multi:
    """The node takes nothing new. version: of the drain that it replaces, None when there is none."""
    return Multi(name="DRAIN", ops=_made_anew(record, version), proof=Holds(paths.drain(record.node), encode_record(record)))


def resume(record: Drain, version: int) -> Multi:
    """The node takes work again; who has resumed it stays to be told. version: of the drain that ends."""
    over = replace(record, is_over=True)
    return Multi(name="RESUME", ops=_made_anew(over, version), proof=Holds(paths.drain(over.node), encode_record(over)))


def _made_anew(record: Drain, version: int | None) -> tuple[Op, ...]:
    """Not set: the leader watches which drains there are."""
    made = Create(paths.drain(record.node), encode_record(record))
    return (made,) if version is None else (Delete(made.path, version), made)


def forget(record: NodeRecord, version: int) -> Multi:
    """FORGET: nothing shows the node any more. Its znode stays, and its version: a Starter that registers it anew goes on from there."""
    path, data = paths.node(record.node), encode_record(replace(record, forgotten=True))
    return Multi(name="FORGET", ops=(Set(path, data, version),), proof=Holds(path, data))


def set_settings(settings: ClusterSettings, version: int) -> Multi:
    """Queues, limits and times of the whole cluster, replaced as one; their directories exist already."""
    data = encode_record(settings)
    return Multi(name="SETTINGS", ops=(Set(paths.CONFIG, data, version),), proof=Holds(paths.CONFIG, data))
