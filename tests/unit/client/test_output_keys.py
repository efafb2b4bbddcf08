"""Output keys of a queue in memory: what `submit` refuses at once, what `flush`, futures and `wait_all` tell, what `check` waits for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from rmgr.client.submission.handle import Refusals
from rmgr.client.taskqueue import TaskQueue
from rmgr.client.values import Values
from rmgr.coord.protocol import keys
from rmgr.errors import KeyExists, TaskFailed
from rmgr.model.base.states import Reason, State
from rmgr.model.tasks.block import BlockKey, Outcome
from tests.harness.client_cluster import Cluster


def double(x: int) -> int:
    return 2 * x


def test_submission_reads_nothing_of_the_store_and_flush_tells_what_was_taken(cluster: Cluster) -> None:
    with cluster.connect() as connection, TaskQueue(double, connection=connection) as queue:
        theirs = Values(connection.submitter.store, connection.store.fates)
        theirs.put("in", 4)
        for taken in ("out/3", "out/7"):
            theirs.put(taken, "theirs")
        assert queue.id
        reads: list[str] = []
        store = connection.submitter.store
        for name in ("get", "get_many", "get_noted", "get_noted_many", "head", "about", "about_many", "put_many"):
            setattr(store, name, _told(getattr(store, name), reads, name))
        blocked, go = threading.Event(), threading.Event()
        connection.submitter.thread.post(lambda: (blocked.set(), go.wait(60)))  # type: ignore[attr-defined]
        assert blocked.wait(60)
        futures = [queue.submit(["in"], [f"out/{i}"]) for i in range(1000)]
        assert reads == []
        go.set()
        told = r"task 1_3: the output key 'out/3' exists already: it has a value \(2 tasks were refused in all\)"
        with pytest.raises(KeyExists, match=told):
            queue.flush(60)
        assert len(reads) < 10
        queue.flush(60)
        with pytest.raises(KeyExists, match="'out/3' exists already"):  # seen by now
            queue.submit(["in"], ["out/3"])
        cluster.start()
        with pytest.raises(TaskFailed, match=r"OUTPUT_EXISTS \(the output key 'out/3' exists already") as failed:
            queue.wait_all(timeout=60)
        assert (failed.value.reason, futures[7].exception(60).reason) == ("OUTPUT_EXISTS", "OUTPUT_EXISTS")  # type: ignore[union-attr]
        assert [connection.store.get(f"out/{i}") for i in (2, 3, 4)] == [8, "theirs", 8]


def test_a_checked_submission_has_its_keys_when_it_returns(cluster: Cluster) -> None:
    with cluster.connect() as connection, TaskQueue(double, connection=connection) as queue:
        theirs = Values(connection.submitter.store, connection.store.fates)
        theirs.put("in", 4)
        theirs.put("taken", "theirs")
        queue.submit(["in"], ["mine"], check=True)
        assert queue.id
        assert connection.submitter.store.head(keys.named("mine")) is not None
        with pytest.raises(KeyExists, match="'taken' exists already"):
            queue.submit(["in"], ["taken"], check=True)
        assert len(queue) == 1
        look = connection.store.check_free

        def late(key: str, **options: object) -> None:
            look(key, **options)  # type: ignore[arg-type]
            theirs.put(key, "theirs")  # between the look and the claim

        connection.store.check_free = late  # type: ignore[method-assign]
        with pytest.raises(KeyExists, match="'late' exists already"):
            queue.submit(["in"], ["late"], check=True)
        queue.flush(60)  # told already
        assert len(queue) == 2
        assert theirs.get("late") == "theirs"


def _told(call: Callable[..., Any], told: list[str], name: str) -> Callable[..., Any]:
    def made(*arguments: Any, **options: Any) -> Any:
        told.append(name)
        return call(*arguments, **options)

    return made


@pytest.mark.parametrize("is_slow", [False, True])
def test_so_many_keys_are_claimed_at_once_as_the_store_takes_in_a_moment(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, is_slow: bool
) -> None:
    """Nodes run the first tasks while keys of the later ones are claimed."""
    monkeypatch.setattr("rmgr.client.submission.sender._CLAIM_S", 0.01 if is_slow else 1000.0)
    with cluster.connect() as connection, TaskQueue(double, connection=connection) as queue:
        assert queue.id
        sizes: list[int] = []
        store = connection.submitter.store
        put_many = store.put_many

        def counted(rows: list[tuple[str, bytes]], **options: Any) -> None:
            sizes.append(len(rows))
            if is_slow:
                threading.Event().wait(0.03)
            put_many(rows, **options)

        store.put_many = counted  # type: ignore[method-assign, assignment]
        blocked, go = threading.Event(), threading.Event()
        connection.submitter.thread.post(lambda: (blocked.set(), go.wait(60)))  # type: ignore[attr-defined]
        assert blocked.wait(60)
        for n in range(1500):
            queue.submit(outputs=[f"out/{n}"])
        go.set()
        queue.flush(60)
        assert sum(sizes) == 1500
        assert sizes == ([256] * 5 + [220] if is_slow else [256, 512, 732])


@pytest.mark.parametrize("keyed", [True, False], ids=["keyed", "plain"])
def test_what_lost_attempts_have_written_goes_when_the_task_runs_again(cluster: Cluster, *, keyed: bool) -> None:
    """Nobody knew of it: the Starter died between its rows and their commit. Rows of the others stay."""
    rows: dict[int, str] = {}

    def lose_the_first(key: BlockKey, index: int) -> Reason | None:
        if index % 2 and key.attempt == 1:
            rows[index] = keys.output(key.submission, index, key.attempt)
            cluster.store.put(rows[index], b"of an attempt that is lost")
            return Reason.NODE_LOST
        return None

    cluster.on_call = lose_the_first
    with cluster.connect() as connection, TaskQueue(double, connection=connection) as queue:
        connection.store.put("in", 4)
        for index in range(6):
            _ = queue.submit(["in"], [f"out/{index}"]) if keyed else queue.submit_call(4)
        cluster.start()
        queue.wait_all(timeout=60)
        assert sorted(rows) == [1, 3, 5]
        end_s = time.monotonic() + 60
        while any(cluster.store.get(row) is not None for row in rows.values()):
            assert time.monotonic() < end_s, cluster.store.keys("out/")
            time.sleep(0.01)
        assert [connection.store.get(f"out/{index}") for index in range(6)] == [8] * 6 if keyed else True
        committed = [keys.output(queue.id, index, 1 + index % 2) for index in range(6)] if keyed else []
        assert cluster.store.keys("out/") == committed


# -- who says first that a task was refused


def ended(index: int, reason: Reason) -> Outcome:
    return Outcome(index=index, state=State.FAILED, reason=reason, error="the output key 'out' exists already")


def test_what_was_refused_here_is_not_told_again_by_the_node() -> None:
    refusals, why = Refusals(), KeyExists("taken")
    refusals.add({3: why}, is_early=True)
    assert refusals.take() == {3: why}
    refusals.add({3: why}, is_early=True)  # the claim was tried again
    refusals.read([ended(3, Reason.OUTPUT_EXISTS)])
    assert refusals.take() == {}


def test_what_only_the_node_has_refused_is_told_with_its_words() -> None:
    refusals = Refusals()
    refusals.read([ended(4, Reason.EXCEPTION), ended(5, Reason.OUTPUT_EXISTS)])
    found = refusals.take(5)
    assert {index: (type(why), str(why).splitlines()[0]) for index, why in found.items()} == {
        5: (KeyExists, "the output key 'out' exists already")
    }
    assert refusals.take(5) == refusals.take() == {}


def test_the_latest_are_kept() -> None:
    refusals, why = Refusals(), KeyExists("taken")
    refusals.add(dict.fromkeys(range(30_000), why))
    assert list(refusals.take()) == list(range(10_000, 30_000))
