"""The multis of a request to the leader: somebody asks, the leader answers, and the leader clears away."""

from __future__ import annotations

from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Create, Delete, Exists, Gone, Holds, Multi, Set
from rmgr.coord.protocol.records import encode_record
from rmgr.model.tasks.request import StopRequest


def ask(guid: str, request: StopRequest) -> Multi:
    """ASK: a new request under a name of one's own."""
    path = paths.request(guid)
    return Multi(name="ASK", ops=(Create(path, encode_record(request)),), proof=Exists(path))


def answer(guid: str, request: StopRequest, version: int) -> Multi:
    """ANSWER: by the leader, once."""
    path, data = paths.request(guid), encode_record(request)
    return Multi(name="ANSWER", ops=(Set(path, data, version),), proof=Holds(path, data))


def clear(guid: str) -> Multi:
    """CLEAR: whoever has asked has read the answer, or is gone."""
    path = paths.request(guid)
    return Multi(name="CLEAR", ops=(Delete(path),), proof=Gone(path))
