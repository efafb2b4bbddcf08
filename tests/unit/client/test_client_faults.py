"""The client while ZooKeeper or the data store is away: nothing hangs, is half done or lost, and every outcome is named."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from rmgr.client.connection import Connection
from rmgr.client.executor import Executor
from rmgr.client.specs import Options, draft_of
from rmgr.client.submission.engine import engine_here
from rmgr.client.submission.handle import SilentListener
from rmgr.client.taskqueue import TaskQueue
from rmgr.config import Config
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Multi
from rmgr.coord.protocol.ports import SessionState
from rmgr.coord.protocol.records import decode_record
from rmgr.errors import CoordinationUnavailable, DataLost, DeadlineExceeded, StateConflict, StoreUnavailable, SubmitUnknown, ValueTooLarge
from rmgr.model.block import Outcome
from rmgr.model.queue import ClusterSettings, QueueSpec
from rmgr.model.states import State
from rmgr.model.submission import Command, Submission, Tail, Work
from rmgr.submitter import submitting
from rmgr.submitter.port import Order
from tests.harness.client_cluster import Cluster, running, told_full
from tests.harness.memory import MemoryCoordinator
from tests.harness.submitted import submit
from tests.harness.waiting import eventually

TRUE = Command(argv=("true",))


def double(x: int) -> int:
    return 2 * x


class Moody:
    """A store that refuses when told to."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.is_away = False

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            if self.is_away and name != "close":
                raise StoreUnavailable("the data store does not answer")
            return method(*args, **kwargs)

        return call


def moody(cluster: Cluster) -> tuple[Connection, Moody]:
    store = Moody(cluster.store)
    coordinator = MemoryCoordinator(cluster.tree)
    return Connection(engine_here(coordinator, store), Config(), coordinator), store


def subs(cluster: Cluster) -> list[str]:
    return cluster.coordinator.children(f"{paths.SUBS}/0").result(60) or []


# -- SUBMIT


def test_a_submission_whose_answers_are_lost_is_made_once(cluster: Cluster) -> None:
    for nth in range(1, 6):
        coordinator = MemoryCoordinator(cluster.tree)
        coordinator.lose_reply(1)
        coordinator.lose_request(2)
        draft = draft_of(Options(name=f"n{nth}", queue="default"), work=Work.COMMAND, command=TRUE)
        made = submit(coordinator, draft, owner="", deadline_s=time.monotonic() + 60, complete=True)
        assert made.submission.id == nth
        coordinator.close()
    assert len(subs(cluster)) == 5


def test_whether_it_was_committed_is_unknown_only_when_nobody_can_say(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    draft = draft_of(Options(name="x", token="t-1", queue="default"), work=Work.COMMAND, command=TRUE)
    silent = MemoryCoordinator(cluster.tree)
    silent.pause()
    with pytest.raises(CoordinationUnavailable):
        submit(silent, draft, owner="", deadline_s=time.monotonic() + 0.3)
    silent.close()

    now_s = [0.0]
    leaves = MemoryCoordinator(cluster.tree, auto=False, clock=lambda: now_s[0])
    over = threading.Event()

    def stop_after_the_commit() -> None:
        while subs(cluster) == []:
            leaves.server_step()
            if subs(cluster) == []:
                leaves.client_step()
        while not over.wait(0.005):
            now_s[0] += 100.0
            leaves.guard()

    server = threading.Thread(target=stop_after_the_commit, daemon=True)
    with monkeypatch.context() as patched:
        clock = SimpleNamespace(monotonic=lambda: now_s[0], sleep=time.sleep, guid=lambda: "a" * 32, wall_s=time.time)
        patched.setattr(submitting, "machine", clock)
        server.start()
        with pytest.raises(SubmitUnknown) as caught:
            submit(leaves, draft, owner="", deadline_s=60.0)
    over.set()
    server.join(60)
    assert caught.value.token == "t-1"
    again = MemoryCoordinator(cluster.tree)
    made = submit(again, draft, owner="", deadline_s=time.monotonic() + 60)
    assert (made.created, made.submission.id, subs(cluster)) == (False, 1, ["1"])
    leaves.close()
    again.close()


def test_many_who_submit_at_once_get_numbers_of_their_own(cluster: Cluster) -> None:
    numbers: list[int] = []

    def submit_some() -> None:
        coordinator = MemoryCoordinator(cluster.tree)
        for _ in range(10):
            draft = draft_of(Options(name="x", queue="default"), work=Work.COMMAND, command=TRUE)
            numbers.append(submit(coordinator, draft, owner="", deadline_s=time.monotonic() + 60).submission.id)
        coordinator.close()

    threads = [threading.Thread(target=submit_some) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(numbers) == list(range(1, 51))


def test_the_thousandth_submission_gets_a_directory(cluster: Cluster) -> None:
    from rmgr.coord.protocol.multi import Gone, Multi, Set
    from rmgr.coord.protocol.records import encode_record

    ids = cluster.coordinator.get(paths.IDS).result(60)
    cluster.coordinator.commit(Multi(name="SKIP", ops=(Set(paths.IDS, encode_record(2345), ids.version),), proof=Gone("/x"))).result(60)
    for expected in (2345, 2346):
        draft = draft_of(Options(name="x", queue="default"), work=Work.COMMAND, command=TRUE)
        made = submit(cluster.coordinator, draft, owner="", deadline_s=time.monotonic() + 60)
        assert made.submission.id == expected
    assert sorted(cluster.coordinator.children(f"{paths.SUBS}/2").result(60) or []) == ["2345", "2346"]


# -- ZooKeeper away


def test_a_cut_between_client_and_gateway_is_told_as_the_gateways_silence() -> None:
    link = SimpleNamespace(session_state=SessionState.LOST)
    connection: Any = SimpleNamespace(submitter=link, is_forked=False, is_closed=False, where="g1:7000")
    connection.config = SimpleNamespace(cluster=SimpleNamespace(uses_gateway=True))
    assert Connection.trouble(connection) == "the gateway at g1:7000 does not answer, or has lost ZooKeeper"
    link.session_state = SessionState.SUSPENDED  # the gateway says that of its own session
    assert Connection.trouble(connection) == "ZooKeeper does not answer"


def test_while_zookeeper_is_away_waits_end_in_time_and_go_on_afterwards() -> None:
    with running() as (cluster, connection):
        queue = TaskQueue(double, connection=connection)
        queue.submit_call(1).result(60)
        coordinator: Any = connection.coordinator
        coordinator.auto = False
        coordinator.cut()
        future = queue.submit_call(2)
        eventually(connection.trouble)
        with pytest.raises(DeadlineExceeded, match="ZooKeeper does not answer"):
            future.result(0.2)
        with pytest.raises(DeadlineExceeded, match="ZooKeeper does not answer"):
            queue.wait_all(timeout=0.2)
        with pytest.raises(SubmitUnknown, match="are not known to be durable") as caught:
            queue.flush(0.2)
        assert caught.value.task_id == f"{queue.id}_1"
        with pytest.raises(CoordinationUnavailable):
            TaskQueue(double, connection=connection, timeout=0.2)
        coordinator.auto = True
        coordinator.reconnect()
        assert future.result(60) == 4
        queue.close()
        assert cluster.pending() == []


def test_a_wait_tells_on_stderr_that_the_cluster_went_away(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmgr.client.progress.SILENCE_S", 0.05)
    monkeypatch.setattr("rmgr.client.taskqueue.TICK_S", 0.02)
    with running() as (_, connection):
        queue = TaskQueue(double, connection=connection)
        assert queue.name, "it is recorded before its first task"
        coordinator: Any = connection.coordinator
        coordinator.auto = False
        coordinator.cut()
        queue.submit_call(1)
        told: list[str] = []

        def is_told() -> bool:
            told.append(capsys.readouterr().err)
            return "rmgr: ZooKeeper does not answer; still waiting" in "".join(told)

        with ThreadPoolExecutor(1) as pool:
            waits = pool.submit(queue.wait_all, timeout=60)
            eventually(is_told)
            coordinator.auto = True
            coordinator.reconnect()
            assert waits.result(60).counts["COMPLETED"] == 1
        queue.close()


# -- the data store away


def test_while_the_store_is_away_submitting_fails_at_once_and_small_work_goes_on(cluster: Cluster) -> None:
    connection, store = moody(cluster)
    with connection:
        cluster.start()
        queue = TaskQueue(double, connection=connection)
        executor = Executor(connection=connection)
        assert queue.name, "it is recorded before its first task"
        store.is_away = True
        with pytest.raises(StoreUnavailable):
            TaskQueue(lambda x: x, connection=connection)
        with pytest.raises(StoreUnavailable):
            queue.submit(["in"], ["out"], check=True)
        with pytest.raises(StoreUnavailable):
            queue.submit_call(bytes(1_000_000))
        with pytest.raises(StoreUnavailable):
            executor.submit(lambda: 1)
        assert len(queue) == 0
        store.is_away = False
        connection.register(len)
        store.is_away = True
        assert queue.submit_call(4).result(60) == 8
        lengths = queue.map(len, [bytes(9_000)] * 3)  # together they need a row: sent when the store is back
        store.is_away = False
        assert [future.result(60) for future in lengths] == [9_000] * 3
        executor.shutdown()


def test_a_large_result_that_is_gone_is_told_as_lost(cluster: Cluster) -> None:
    cluster.on_call = lambda key, index: (
        Outcome(index=index, value_size=1000) if index else Outcome(index=index, error="DATA_LOST: row gone")
    )
    cluster.start()
    with cluster.connect() as connection, TaskQueue(double, connection=connection) as queue:
        first, second = queue.map(None, [1, 2])
        with pytest.raises(DataLost, match=r"task 1_0 completed, but row gone"):
            first.result(60)
        with pytest.raises(DataLost, match=r"the result of task 1_1 .* is missing"):
            second.result(60)


def test_a_store_that_is_away_for_a_moment_does_not_spoil_a_large_result(cluster: Cluster) -> None:
    cluster.on_call = lambda key, index: Outcome(index=index, value_size=3, pickled=False)
    cluster.start()
    connection, store = moody(cluster)
    with connection, TaskQueue(double, connection=connection) as queue:
        from rmgr.coord.protocol import keys

        cluster.store.put(keys.output(queue.id, 0, 1), b"abc")
        future = queue.submit_call(1)
        future.wait(60)
        store.is_away = True
        with pytest.raises(StoreUnavailable):
            future.result(60)
        store.is_away = False
        assert future.result(60) == b"abc"


def test_arguments_above_the_limit_are_refused_before_anything_is_sent(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmgr.client.pickling.MAX_VALUE_BYTES", 100_000)
    with cluster.connect() as connection, TaskQueue(double, connection=connection) as queue:
        with pytest.raises(ValueTooLarge, match=r"the arguments of .*double have \d+ bytes; the limit is 100000"):
            queue.submit_call(bytes(200_000))
        with pytest.raises(ValueTooLarge, match="the value for 'big'"):
            connection.store.put("big", [bytes(200_000)])
        assert len(queue) == 0


# -- following


def test_outcomes_in_rows_and_pages_are_read_in_their_order() -> None:
    """Fragments 0 and 1 paged out, 2 in a row of the store, 3 in its znode: a newcomer sees all of them."""
    from rmgr.coord.ops.leader import page
    from rmgr.coord.protocol import keys
    from rmgr.coord.protocol.records import encode_outcomes, join_page
    from rmgr.model.block import Fragment
    from rmgr.model.submission import Paged

    cluster = Cluster()
    with cluster.connect() as connection:
        queue = TaskQueue(double, connection=connection)
        for x in range(4):
            queue.submit_call(x)
            queue.flush(60)
            cluster.run_one()
        number = queue.id
        from rmgr.coord.protocol.records import decode_fragment, encode_fragment

        fragments = [
            decode_fragment(cluster.coordinator.get(paths.fragment(number, at)).result(60).data)  # type: ignore[union-attr]
            for at in range(4)
        ]
        cluster.store.put(keys.page(number, 0), join_page([*map(encode_fragment, fragments[:2])]))
        cluster.store.put(keys.fragment(number, "g"), encode_outcomes(fragments[2].outcomes))
        from rmgr.coord.protocol.multi import Committed, Gone, Multi, Set
        from rmgr.coord.protocol.records import encode_fragment

        row = Fragment(node="n1", base_us=1, row=keys.fragment(number, "g"), ranges=((State.COMPLETED, 2, 1),))
        cluster.coordinator.commit(
            Multi(name="X", ops=(Set(paths.fragment(number, 2), encode_fragment(row), 0),), proof=Gone("/x"))
        ).result(60)
        done = cluster.coordinator.get(paths.done(number)).result(60)
        assert done is not None
        paged = Paged(base=2, counts={"COMPLETED": 2})
        assert isinstance(cluster.coordinator.commit(page(number, paged, done.version, 0, 2)).result(60), Committed)
        with cluster.connect() as other:
            attached = TaskQueue.attach(number, connection=other)
            assert [future.result(60) for future in attached.futures()] == [0, 2, 4, 6]
        assert decode_record(cluster.coordinator.get(paths.done(number)).result(60).data, Paged).base == 2  # type: ignore[union-attr]
    cluster.stop()


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


def connect(cluster: Cluster) -> tuple[Connection, Recording]:
    coordinator = Recording(cluster.tree)
    engine = engine_here(coordinator, cluster.store)
    connection = Connection(engine, Config(), coordinator)
    eventually(lambda: engine.session_state is SessionState.CONNECTED)
    engine.thread.post(engine.work.entry.want)  # type: ignore[attr-defined]
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
            eventually(lambda: told_full(second))
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


def test_what_was_just_made_is_followed_without_being_read_again(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    connection, _ = connect(cluster)
    with connection:
        engine = connection.submitter
        order = Order(draft=draft_of(Options(queue="default"), work=Work.COMMAND, command=TRUE, user="ann"), complete=True)
        made = engine.submit(order, timeout_s=60)
        monkeypatch.setattr(engine.work, "read", None)
        handle = engine.attach(made.submission.id, SilentListener(), own=False, timeout_s=60, made=made)
        assert handle.submission == decode_record(cluster.coordinator.get(paths.sub(handle.number)).result(60).data, Submission)
