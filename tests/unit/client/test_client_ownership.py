"""Ownership of a submission, on a cluster in memory: losses and retries, lost answers and sessions, owners that die or are dropped."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from dataclasses import replace
from types import SimpleNamespace, TracebackType
from typing import TYPE_CHECKING, cast

import pytest

from rmgr.bench.reality import command_draft
from rmgr.client.commands.request import CommandOptions, CommandRequest
from rmgr.client.commands.sending import CheckedRequest, send_in_parts
from rmgr.client.specs import Options
from rmgr.client.submission.handle import SubmissionHandle
from rmgr.client.taskqueue import TaskQueue
from rmgr.client.tasks import when_dropped
from rmgr.coord.ops import membership
from rmgr.coord.protocol import keys, paths
from rmgr.coord.protocol.multi import Committed, Create, Exists, Multi, Set
from rmgr.coord.protocol.ports import Encoding, SessionState
from rmgr.coord.protocol.records import decode_record, encode_record
from rmgr.errors import InvalidRecord, NotConnected, NotFound, StateConflict, TaskFailed, Unavailable, UsageError
from rmgr.model.block import BlockKey, Outcome
from rmgr.model.node import SubmitterEntry
from rmgr.model.queue import ClusterSettings
from rmgr.model.states import Reason, State
from rmgr.model.submission import Phase, Submission, Tail
from rmgr.runtime import machine
from rmgr.submitter.direct import Submitter
from rmgr.submitter.port import Order, Submitted
from rmgr.submitter.questions import CancelSubmission
from rmgr.submitter.thread import SubmitterThread
from tests.harness.client_cluster import Cluster, running
from tests.harness.virtual import VirtualMachine
from tests.harness.waiting import eventually

if TYPE_CHECKING:
    from rmgr.client.reach import Reach


def double(x: int) -> int:
    if x < 0:
        raise ValueError(f"negative: {x}")
    return 2 * x


def record_of(cluster: Cluster, number: int) -> Submission:
    return decode_record(cluster.coordinator.get(paths.sub(number)).result(60).data, Submission)


def tail_of(cluster: Cluster, number: int) -> Tail:
    return decode_record(cluster.coordinator.get(paths.tail(number)).result(60).data, Tail)


# -- losses, retries


def test_the_owner_runs_a_lost_task_again_and_gives_up_where_the_rule_says(cluster: Cluster) -> None:
    losses = {1: 1, 2: 99}

    def on_call(key: BlockKey, index: int) -> Reason | Outcome | None:
        if losses.get(index, 0) >= key.attempt:
            return Reason.NODE_LOST
        return None

    cluster.on_call = on_call
    cluster.start()
    with cluster.connect() as connection, TaskQueue(double, connection=connection) as queue:
        futures = queue.map(None, range(4))
        assert [futures[at].result(60) for at in (0, 1, 3)] == [0, 2, 6]
        assert futures[1].attempt == 2
        with pytest.raises(TaskFailed) as caught:
            futures[2].result(60)
        # Its first loss was not alone in its block; five that were make it poison.
        assert (caught.value.reason, caught.value.attempts) == ("POISON", 6)


def test_retries_come_after_their_back_off(cluster: Cluster) -> None:
    cluster.on_call = lambda key, index: Reason.EXIT_CODE if key.attempt < 3 else None
    cluster.start()
    with cluster.connect() as connection, TaskQueue(double, retries=2, backoff=0.1, connection=connection) as queue:
        started = time.monotonic()
        assert queue.submit_call(4).result(60) == 8
        assert time.monotonic() - started >= 0.1 + 0.2


def test_a_task_that_may_run_once_fails_at_its_loss_and_leaves_no_output(cluster: Cluster) -> None:
    cluster.on_call = lambda key, index: Reason.NODE_LOST
    cluster.start()
    with cluster.connect() as connection, TaskQueue(double, resubmit=False, connection=connection) as queue:
        connection.store.put("in", 1)
        connection.submitter.store.put(keys.output(queue.id, 0, 1), b"half", encoding=Encoding.RAW)
        queue.submit(["in"], ["out"])
        counts, failed = queue.wait_all(timeout=60)
        assert (counts["FAILED"], failed) == (1, [f"{queue.id}_0"])
        eventually(lambda: connection.submitter.store.keys("out/") == [])
        eventually(lambda: connection.submitter.store.head(keys.named("out")) is None)


# -- the session


def test_a_submitter_knows_at_once_that_zookeeper_answers_however_late_its_thread_runs(cluster: Cluster) -> None:
    thread = SubmitterThread()
    assert Submitter(thread, cluster.coordinator, cluster.store).session_state is SessionState.CONNECTED


# -- interrupted submissions


@pytest.mark.parametrize("is_made", [True, False])
def test_what_ctrl_c_interrupts_while_it_is_submitted_is_cancelled_and_the_queue_goes_on(
    monkeypatch: pytest.MonkeyPatch, is_made: bool
) -> None:
    with running() as (cluster, connection), TaskQueue(double, connection=connection) as queue:
        work = connection.submitter.work
        submit, calls = work.submit, []

        def interrupted(order: Order, *, timeout_s: float) -> Submitted:
            calls.append(order)
            if len(calls) > 1 or is_made:
                made = submit(order, timeout_s=timeout_s)
            if len(calls) == 1:
                raise KeyboardInterrupt
            return made

        cluster.on_call = lambda key, index: Reason.NODE_LOST  # nothing of it ends by itself
        monkeypatch.setattr(work, "submit", interrupted)
        with pytest.raises(KeyboardInterrupt):
            queue.map(None, range(3))
        record = record_of(cluster, 1)
        assert (record.phase, record.reason_detail) == (Phase.CANCELLED, "interrupted while it was submitted")
        assert calls[1].tasks == 0
        assert tail_of(cluster, 1).next == (3 if is_made else 0)
        cluster.on_call = lambda key, index: None
        assert queue.submit_call(4).result(60) == 8
        assert queue.id == 2


@pytest.mark.parametrize(("answers", "told"), [(True, "1 was not submitted as a whole, and is cancelled"), (False, "rmgr cancel 1")])
def test_ctrl_c_ends_a_command_of_many_parts_even_if_it_cannot_be_cancelled(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, answers: bool, told: str
) -> None:
    notes: list[str] = []
    limits: list[float] = []

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with cluster.connect() as connection:
        engine = connection.submitter

        def ask(question: CancelSubmission, timeout_s: float) -> object:
            limits.append(timeout_s)
            if not answers:
                raise Unavailable("ZooKeeper does not answer")
            return engine.asks.ask(question, timeout_s=timeout_s)

        record = command_draft(engine, ("/bin/true",), Options())
        request = CommandRequest(words=("/bin/true",), options=CommandOptions(token="mine"))
        draft = CheckedRequest(record=record, payloads=[b""] * 3, settings=ClusterSettings(), request=request)
        reach = cast("Reach", SimpleNamespace(ask=ask, note=notes.append))
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(SubmissionHandle, "flush", interrupted)
            send_in_parts(reach, engine, record, draft, machine.monotonic() + 60.0)
        assert told in notes[-1]
        assert limits == [2.0], "nobody waits longer after Ctrl-C"
        assert (record_of(cluster, 1).phase is Phase.CANCELLED) is answers


# -- lost answers, lost sessions


@pytest.mark.parametrize("fault", ["lose_reply", "lose_request"])
@pytest.mark.parametrize("nth", [1, 2, 3])
def test_an_answer_lost_on_the_way_neither_loses_nor_doubles_a_task(fault: str, nth: int) -> None:
    with running() as (cluster, connection):
        coordinator = connection.coordinator
        getattr(coordinator, fault)(nth)
        with TaskQueue(double, connection=connection) as queue:
            for batch in range(5):
                doubled = [future.result(60) for future in queue.map(None, range(batch, batch + 3))]
                assert doubled == [2 * x for x in range(batch, batch + 3)]
        assert queue.wait_all(timeout=60).counts == {"COMPLETED": 15, "FAILED": 0, "CANCELLED": 0}
        ran = sorted(index for key, _ in cluster.claims for index in range(key.first, key.end))
        assert ran == list(range(15))


def test_a_lost_session_changes_nothing_for_whoever_waits() -> None:
    with running() as (cluster, connection), TaskQueue(double, connection=connection) as queue:
        futures = queue.map(None, range(50))
        connection.coordinator.expire()  # type: ignore[union-attr]
        futures += queue.map(None, range(50))
        connection.coordinator.expire()  # type: ignore[union-attr]
        futures += queue.map(None, range(50))
        assert sum(future.result(60) for future in futures) == 3 * sum(2 * x for x in range(50))
        ran = sorted(index for key, _ in cluster.claims for index in range(key.first, key.end))
        assert ran == list(range(150))

        def entries() -> list[str]:
            return [paths.entry_guid(name) for name in cluster.coordinator.children(paths.SUBMITTERS).result(60) or []]

        eventually(lambda: entries() == [connection.submitter.guid], "it has its entry again, which may come after the last answer")


# -- another process goes on


def test_a_queue_is_taken_over_when_its_owner_is_gone(cluster: Cluster) -> None:
    first = cluster.connect()
    queue = TaskQueue(double, connection=first)
    queue.map(None, range(5))
    queue.flush(60)
    cluster.run_one(take=2)
    with cluster.connect() as second:
        attached = TaskQueue.attach(queue.name, connection=second)
        assert len(attached) == 5
        with pytest.raises(StateConflict, match="looked after by another Submitter, which lives"):
            attached.submit(["in"], ["out"], timeout=0.1)
        first.coordinator.close()  # type: ignore[union-attr] - as kill -9: its session goes, its entry with it
        added = attached.submit_call(100)
        cluster.start()
        assert [future.result(60) for future in attached.futures()] == [0, 2, 4, 6, 8, 200]
        assert added.result(60) == 200
        assert attached.wait_all(timeout=60).counts["COMPLETED"] == 6
        record, tail = record_of(cluster, queue.id), cluster.coordinator.get(paths.tail(queue.id)).result(60)
        assert record.owner == second.submitter.guid
        assert tail is not None
        assert decode_record(tail.data, Tail).reigns == ((0, first.submitter.guid), (5, second.submitter.guid))
        attached.close()
    first.close()


def test_who_enters_with_the_guid_of_another_users_dead_submitter_keeps_nobody_from_taking_over(cluster: Cluster) -> None:
    first = cluster.connect()
    queue = TaskQueue(double, connection=first)
    queue.submit_call(1)
    queue.flush(60)
    with cluster.connect() as second, cluster.connect() as third:
        attached = TaskQueue.attach(queue.name, connection=second)
        entry = SubmitterEntry(guid=first.submitter.guid, host="h", pid=1, since_us=1, user="mallory")
        for multi in (membership.enter(entry), _entry(entry.guid, b"\xff")):
            assert isinstance(third.coordinator.commit(multi).result(60), Committed)  # type: ignore[union-attr]
        first.coordinator.close()  # type: ignore[union-attr]
        attached.submit_call(100)
        attached.flush(60)
        assert record_of(cluster, queue.id).owner == second.submitter.guid
        cluster.start()
        assert sorted(future.result(60) for future in attached.futures()) == [2, 200]
        attached.close()
    first.close()


def _entry(guid: str, data: bytes) -> Multi:
    path = paths.submitter(guid)
    return Multi(name="ENTER", ops=(Create(path, data, ephemeral=True, sequence=True),), proof=Exists(path))


@pytest.mark.parametrize("what", ["record", "tail"])
def test_a_record_that_nobody_should_believe_ends_the_waits_for_it_and_no_other(cluster: Cluster, what: str) -> None:
    with cluster.connect() as first, cluster.connect() as second:
        spoilt, other = (TaskQueue(double, connection=first, name=name) for name in ("a", "b"))
        for queue in (spoilt, other):
            queue.submit_call(1)
            queue.flush(60)
        attached = [TaskQueue.attach(queue.id, connection=second) for queue in (spoilt, other)]
        waits = [queue.futures()[0] for queue in attached]
        path = paths.sub(spoilt.id) if what == "record" else paths.tail(spoilt.id)
        bad = replace(record_of(cluster, spoilt.id), id=other.id) if what == "record" else replace(tail_of(cluster, spoilt.id), next=10**9)
        assert isinstance(cluster.coordinator.commit(ops_set(path, encode_record(bad))).result(60), Committed)
        with pytest.raises(InvalidRecord, match=path):
            waits[0].result(60)
        cluster.start()
        assert waits[1].result(60) == 2
        with pytest.raises(InvalidRecord, match=path):
            TaskQueue.attach(spoilt.id, connection=second)


def ops_set(path: str, data: bytes) -> Multi:
    return Multi(name="ATTACK", ops=(Set(path, data, -1),), proof=Exists(path, data))


def test_a_former_owner_that_comes_back_is_told(cluster: Cluster) -> None:
    first, second = cluster.connect(), cluster.connect()
    queue = TaskQueue(double, connection=first)
    queue.submit_call(1)
    queue.flush(60)
    first.coordinator.pause()  # type: ignore[union-attr]
    first.coordinator.tree.end_session(first.coordinator.session_id)  # type: ignore[union-attr]
    attached = TaskQueue.attach(queue.id, connection=second)
    assert attached.submit_call(2) is not None
    attached.flush(60)
    late = queue.submit_call(3)
    first.coordinator.resume()  # type: ignore[union-attr]
    first.coordinator.cut()  # type: ignore[union-attr]
    with pytest.raises(StateConflict, match="was taken over by another Submitter"):
        late.result(60)
    with pytest.raises(StateConflict, match="was taken over"):
        queue.submit_call(4)
    assert sum(key.count for key in cluster.pending()) == 2
    first.close()
    second.close()


def test_attaching_to_what_does_not_exist_is_refused(cluster: Cluster) -> None:
    with cluster.connect() as connection:
        with pytest.raises(NotFound, match="there is no submission 77"):
            TaskQueue.attach("taskq-0000000077", connection=connection)
        with pytest.raises(UsageError, match="'frog' is not a submission id"):
            TaskQueue.attach("frog", connection=connection)


def test_the_same_token_gives_the_same_queue(cluster: Cluster) -> None:
    with cluster.connect() as connection:
        first = TaskQueue(double, token="experiment-7", connection=connection)
        first.submit_call(1)
        first.flush(60)
        assert TaskQueue(double, token="experiment-7", connection=connection).id == first.id
        assert TaskQueue(double, token="experiment-8", connection=connection).id != first.id


# -- the end


def test_a_finished_queue_is_let_go_and_the_leader_closes_it_unasked() -> None:
    with running() as (cluster, connection):
        with TaskQueue(double, connection=connection) as queue:
            queue.submit_call(1)
        queue.wait_all(timeout=60)
        eventually(lambda: not connection.submitter.handles)
        assert record_of(cluster, queue.id).owner == connection.submitter.guid


def test_a_queue_that_nobody_holds_is_completed_and_its_tasks_still_end() -> None:
    with running() as (cluster, connection):
        queue = TaskQueue(double, connection=connection)
        number, futures = queue.id, queue.map(None, range(10))
        del queue
        gc.collect()
        assert [future.result(60) for future in futures] == [2 * x for x in range(10)]
        eventually(lambda: tail_of(cluster, number).complete)


def test_a_closed_connection_breaks_waits_off_instead_of_letting_them_hang(cluster: Cluster) -> None:
    connection = cluster.connect()
    queue = TaskQueue(double, connection=connection)
    future = queue.submit_call(1)
    queue.flush(60)
    threading.Timer(0.1, connection.close).start()
    with pytest.raises(NotConnected, match="the connection was closed"):
        future.result(60)
    with pytest.raises(NotConnected):
        queue.submit_call(2)
    with pytest.raises(NotConnected):
        queue.wait_all(timeout=60)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_is_told_to_connect_anew(cluster: Cluster) -> None:
    with cluster.connect() as connection:
        queue = TaskQueue(double, connection=connection)
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                queue.submit_call(1)
                said = b"nothing"
            except NotConnected as error:
                said = str(error).encode()
            except BaseException as error:
                said = repr(error).encode()
            os.write(writing, said)
            os._exit(0)
        os.close(writing)
        with open(reading, "rb") as answer:
            assert b"belongs to the parent process" in answer.read()
        os.waitpid(pid, 0)


def test_states_of_waited_are_the_final_ones() -> None:
    with running() as (_, connection), TaskQueue(double, connection=connection) as queue:
        assert queue.wait_all(timeout=60) == ({str(state): 0 for state in (State.COMPLETED, State.FAILED, State.CANCELLED)}, [])


class Owner:
    pass


def fail() -> None:
    raise ValueError("it cannot be let go")


def test_a_job_that_raises_is_told_and_stops_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[BaseException] = []
    let_go: list[str] = []

    def tell(_kind: type[BaseException], error: BaseException, _trace: TracebackType | None) -> None:
        told.append(error)

    monkeypatch.setattr(sys, "excepthook", tell)
    when_dropped(Owner(), fail)
    when_dropped(Owner(), lambda: let_go.append("the next"))
    eventually(lambda: let_go)
    assert [str(error) for error in told] == ["it cannot be let go"]


def test_a_machine_without_threads_that_was_in_place_of_this_one_leaves_nothing_behind() -> None:
    let_go: list[str] = []
    with machine.replaced(VirtualMachine(1)):
        when_dropped(Owner(), lambda: let_go.append("of the other"))
    when_dropped(Owner(), lambda: let_go.append("of this one"))
    eventually(lambda: "of this one" in let_go)
