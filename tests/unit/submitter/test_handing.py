"""HAND from the client's side: when a block goes straight to a node, its queueing after a refusal, and its outcome."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from rmgr.client.connection import Connection
from rmgr.client.futures import Future
from rmgr.client.taskqueue import TaskQueue
from rmgr.coord.ops import work as ops
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Committed, Conflict, ConflictKind, Delete, Gone, Multi, Set, Unknown
from rmgr.coord.protocol.records import decode_block, decode_record, encode_record
from rmgr.model.node import NodeRecord
from rmgr.model.submission import Submission, Tail, Work
from rmgr.submitter.handing import Handing
from rmgr.submitter.upkeep import Fate, fate_of
from tests.harness.client_cluster import Cluster


def double(x: int) -> int:
    return 2 * x


class Hungry(Cluster):
    """A node that takes what it is handed, and shows its mark when told to."""

    def __init__(self, *, takes: bool = True) -> None:
        super().__init__(cores=2)
        record = decode_record(self.coordinator.get(paths.node("n1")).result(60).data, NodeRecord)
        self.version += 1
        self.commit(Set(paths.node("n1"), encode_record(replace(record, takes_handed=takes)), 0))

    def commit(self, *changes: Set | Delete) -> None:
        multi = Multi(name="TEST", ops=changes, proof=Gone("/nothing"))
        assert isinstance(self.coordinator.commit(multi).result(60), Committed)

    def show_mark(self) -> None:
        assert isinstance(self.coordinator.commit(ops.mark_idle("n1", self.version, idle=True)).result(60), Committed)

    def handed(self) -> list[str]:
        return self.coordinator.children(paths.running_node("n1")).result(60) or []

    def end_handed(self) -> None:
        (name,) = self.handed()
        found = self.coordinator.get(f"{paths.running_node('n1')}/{name}").result(60)
        self.complete(paths.parse_block(name), decode_block(found.data))

    def run_queued(self, connection: Connection, queue: TaskQueue, value: int) -> None:
        future = queue.submit_call(value)
        queue.flush(60)
        assert self.run_one()
        assert future.result(60) == 2 * value


@pytest.fixture
def cluster() -> Iterator[Hungry]:
    made = Hungry()
    yield made
    made.stop()


def handed_call(cluster: Hungry, queue: TaskQueue, value: int) -> Future:
    """A call that goes straight to the node: the Submitter read the node's record when the call before it ended."""
    future = queue.submit_call(value)
    queue.flush(60)
    assert cluster.handed(), "queued, where any node could take it"
    return future


def test_the_next_call_goes_straight_to_the_node_that_waits_for_it(cluster: Hungry) -> None:
    with cluster.connect() as connection, TaskQueue(double, connection=connection) as queue:
        cluster.run_queued(connection, queue, 1)
        cluster.show_mark()
        future = handed_call(cluster, queue, 5)
        assert cluster.pending() == []
        assert cluster.coordinator.stat(paths.idle("n1")).result(60) is None, "its mark went with the block"
        assert paths.parse_block(cluster.handed()[0]).seq == ops.HANDED_SEQ
        cluster.end_handed()
        assert future.result(60) == 10


def test_a_call_is_queued_where_no_mark_stands(cluster: Hungry) -> None:
    with cluster.connect() as connection, TaskQueue(double, connection=connection) as queue:
        for value in range(3):
            cluster.run_queued(connection, queue, value)
        assert not cluster.handed()


def test_a_call_is_queued_where_the_node_was_fenced(cluster: Hungry) -> None:
    with cluster.connect() as connection, TaskQueue(double, connection=connection) as queue:
        cluster.run_queued(connection, queue, 0)
        cluster.show_mark()
        handed = handed_call(cluster, queue, 3)
        cluster.end_handed()
        assert handed.result(60) == 6
        cluster.show_mark()
        found = cluster.coordinator.get(paths.node("n1")).result(60)
        cluster.version += 1
        cluster.commit(Set(paths.node("n1"), found.data, found.version))
        future = queue.submit_call(7)
        queue.flush(60)
        assert not cluster.handed(), "the version of its record has changed"
        assert cluster.run_one()
        assert future.result(60) == 14


def test_nothing_is_handed_to_a_starter_of_an_older_release() -> None:
    cluster = Hungry(takes=False)
    try:
        with cluster.connect() as connection, TaskQueue(double, connection=connection) as queue:
            cluster.run_queued(connection, queue, 0)
            cluster.show_mark()
            for value in range(3):
                cluster.run_queued(connection, queue, value)
            assert not cluster.handed()
    finally:
        cluster.stop()


@pytest.mark.parametrize(("takes_left", "has_line"), [(True, True), (False, True), (True, False)])
def test_output_keys_are_left_only_to_who_takes_them_and_can_be_told(cluster: Hungry, *, takes_left: bool, has_line: bool) -> None:
    record = decode_record(cluster.coordinator.get(paths.node("n1")).result(60).data, NodeRecord)
    submission = Submission(id=1, name="n", user="u", queue="default", work=Work.PYTHON)
    submitter: Any = SimpleNamespace(lines=Lines(has_line=has_line), loop=None)
    handing = Handing(submitter, submission)
    handing.ran_on = handing.node = "n1"
    handing.known = (0, replace(record, takes_left=takes_left))
    assert (handing.most_left > 0) is (takes_left and has_line)
    handing.ran_on = ""
    assert handing.most_left == 0, "nobody knows a node that waits"


class Lines:
    """There is a line to every Starter, or to none."""

    def __init__(self, *, has_line: bool) -> None:
        self._has_line = has_line

    def of(self, _record: NodeRecord) -> Any:
        return self if self._has_line else None

    def want(self, _record: NodeRecord) -> None: ...


def test_what_ends_when_it_is_lost_is_queued(cluster: Hungry) -> None:
    with cluster.connect() as connection, TaskQueue(double, connection=connection, resubmit=False) as queue:
        for value in range(3):
            if cluster.coordinator.stat(paths.idle("n1")).result(60) is None:
                cluster.show_mark()
            cluster.run_queued(connection, queue, value)
        assert not cluster.handed()


BEFORE = Tail(next=4, reigns=((0, "me"),), enqueued="me-1")
SENT = replace(BEFORE, next=9, enqueued="me-2")
REFUSED = Conflict(index=0, path="/subs/1/tail", kind=ConflictKind.BAD_VERSION)
#: Answer to a commit that the connection lost
LOST = Unknown(cause="connection lost")


@pytest.mark.parametrize(
    ("now", "version", "answer", "fate"),
    [
        (SENT, 6, LOST, Fate.COMMITTED),
        (SENT, 6, REFUSED, Fate.COMMITTED),
        (replace(BEFORE, complete=True), 6, REFUSED, Fate.COMPLETED),
        (replace(BEFORE, complete=True, reigns=((0, "me"), (4, "you"))), 6, REFUSED, Fate.TAKEN_OVER),
        (replace(BEFORE, reigns=((0, "me"), (4, "you"))), 6, LOST, Fate.TAKEN_OVER),
        (BEFORE, 5, LOST, Fate.OPEN),
        (BEFORE, 5, REFUSED, Fate.REFUSED),
    ],
)
def test_the_tail_says_what_became_of_a_growth(now: Tail, version: int, answer: Conflict | Unknown, fate: Fate) -> None:
    assert fate_of(SENT, before=(BEFORE, 5), now=(now, version), answer=answer) is fate
