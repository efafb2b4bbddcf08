"""A submission and its first tasks are one commit: both are there or neither, whatever is lost on the way."""

from __future__ import annotations

from typing import Any

import pytest

from rmgr.client.connection import Connection
from rmgr.client.executor import Executor
from rmgr.client.submission.engine import engine_here
from rmgr.client.taskqueue import TaskQueue
from rmgr.config import Config
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Multi
from rmgr.coord.protocol.ports import SessionState
from rmgr.coord.protocol.records import decode_record
from rmgr.errors import QueueFull, StateConflict, SubmitUnknown
from rmgr.model.cluster.queue import ClusterSettings, QueueSpec
from rmgr.model.tasks.submission import Tail
from tests.harness.client_cluster import Cluster
from tests.harness.memory import MemoryCoordinator
from tests.harness.waiting import eventually


class Recording(MemoryCoordinator):
    """Remembers what was committed. at_submit: the fate of the next SUBMIT."""

    def __init__(self, *args: Any) -> None:
        self.names: list[str] = []
        self.at_submit = ""
        super().__init__(*args)

    def commit(self, multi: Multi, **options: Any) -> Any:
        fate = ""
        if multi.name != "ENTER":
            self.names.append(multi.name)
        if multi.name == "SUBMIT":
            fate, self.at_submit = self.at_submit, ""
        if fate == "request lost":
            self.lose_request(1)
        elif fate == "reply lost":
            self.lose_reply(1)
        elif fate == "ZooKeeper gone":
            self.auto = False
        asked = super().commit(multi, **options)
        if fate == "ZooKeeper gone":
            self.server_step()  # it is executed, and nobody hears of it
            self.cut()
        return asked


def double(x: int) -> int:
    return x * 2


def connect(cluster: Cluster) -> tuple[Connection, Recording]:
    coordinator = Recording(cluster.tree)
    engine = engine_here(coordinator, cluster.store)
    connection = Connection(engine, Config(), coordinator)
    eventually(lambda: engine.session_state is SessionState.CONNECTED)
    engine.thread.post(engine.work._entry.want)  # type: ignore[attr-defined]
    eventually(lambda: cluster.coordinator.children(paths.SUBMITTERS).result(60))  # so that what is lost below is a SUBMIT
    return connection, coordinator


def submissions(cluster: Cluster) -> int:
    return decode_record(cluster.coordinator.get(paths.IDS).result(60).data, int, paths.IDS) - 1


def tail(cluster: Cluster, number: int) -> Tail:
    return decode_record(cluster.coordinator.get(paths.tail(number)).result(60).data, Tail)


def test_the_first_tasks_of_a_queue_and_of_an_executor_go_with_their_submission(cluster: Cluster) -> None:
    connection, coordinator = connect(cluster)
    with connection, TaskQueue(double, connection=connection) as queue, Executor(connection=connection) as executor:
        assert coordinator.names == []
        futures = queue.map(None, range(5))
        assert coordinator.names == ["SUBMIT"]
        assert [key.count for key in cluster.pending()] == [5]
        assert tail(cluster, queue.id).next == 5
        futures += [executor.submit(double, 5)]
        assert coordinator.names == ["SUBMIT", "SUBMIT"]
        cluster.start()
        assert [future.result(60) for future in futures] == [0, 2, 4, 6, 8, 10]
        assert queue.submit_call(21).result(60) == 42
        assert futures[4].task_id == f"{queue.id}_4"


def test_a_queue_that_is_never_used_is_never_recorded_unless_somebody_asks_for_its_name(cluster: Cluster) -> None:
    connection, _ = connect(cluster)
    with connection:
        with TaskQueue(double, connection=connection) as unused:
            assert (len(unused), unused.futures(), "unused" in repr(unused)) == (0, [], True)
            unused.flush()
        assert submissions(cluster) == 0
        assert unused.name == "taskq-0000000001"
        with pytest.raises(StateConflict, match="is complete"):
            unused.submit_call(1)
        eventually(lambda: tail(cluster, 1).complete)


@pytest.mark.parametrize("fate", ["request lost", "reply lost"])
def test_the_first_tasks_are_there_once_whatever_is_lost(cluster: Cluster, fate: str) -> None:
    connection, coordinator = connect(cluster)
    with connection, TaskQueue(double, connection=connection) as queue:
        coordinator.at_submit = fate
        futures = queue.map(None, range(3))
        assert (submissions(cluster), [key.count for key in cluster.pending()]) == (1, [3])
        cluster.start()
        assert [future.result(60) for future in futures] == [0, 2, 4]


def test_a_queue_of_which_it_is_not_known_whether_it_exists_takes_nothing_more(cluster: Cluster) -> None:
    connection, coordinator = connect(cluster)
    with connection:
        queue = TaskQueue(double, connection=connection, timeout=0.3)
        coordinator.at_submit = "ZooKeeper gone"
        with pytest.raises(SubmitUnknown):
            queue.submit_call(1)
        coordinator.auto = True
        coordinator.reconnect()
        with pytest.raises(SubmitUnknown):
            queue.submit_call(2)
        assert submissions(cluster) == 1
        assert [key.count for key in cluster.pending()] == [1], "the one of which the caller was told that nobody knows"


def test_into_a_full_queue_go_no_first_tasks_but_they_wait_for_room() -> None:
    cluster = Cluster(ClusterSettings(queues=(QueueSpec(name="default", max_pending_blocks=1),)))
    try:
        connection, coordinator = connect(cluster)
        with connection:
            first = TaskQueue(double, connection=connection)
            first.submit_call(1)
            second = TaskQueue(double, connection=connection)
            future = second.submit_call(2)
            assert coordinator.names == ["SUBMIT", "SUBMIT"]
            assert len(cluster.pending()) == 1
            eventually(lambda: second._handle._sender.full)
            with pytest.raises(QueueFull):
                second.flush(0.3)
            cluster.start()
            assert future.result(60) == 4
    finally:
        cluster.stop()


def test_what_does_not_fit_the_commit_follows_it(cluster: Cluster) -> None:
    connection, coordinator = connect(cluster)
    cluster.start()
    with connection, TaskQueue(len, connection=connection) as queue:
        lengths = queue.map(None, [bytes(9_000)] * 3)  # together they need a row, which needs the number
        assert [future.result(60) for future in lengths] == [9_000] * 3
        assert coordinator.names[:2] == ["SUBMIT", "ENQUEUE"]
