"""Values by key: rules of admission, output keys of a queue, targets of keys, and messages of progress."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from rmgr.client.progress import Counts, ProgressDisplay, Rate, line
from rmgr.client.specs import Options, draft_of
from rmgr.client.submission.handle import Refusals
from rmgr.client.taskqueue import TaskQueue
from rmgr.client.values import Values
from rmgr.coord.protocol import keys, paths
from rmgr.coord.protocol.multi import Committed, Create, Exists, Multi, Set
from rmgr.coord.protocol.ports import Encoding
from rmgr.coord.protocol.records import encode_fragment, encode_outcomes, encode_record, join_page
from rmgr.errors import Infeasible, KeyExists, NotFound, PickleFailed, TaskFailed, UsageError
from rmgr.model.base import Capacity, NodeAttributes
from rmgr.model.block import BlockKey, Fragment, Outcome
from rmgr.model.node import NodeRecord, NodeState
from rmgr.model.queue import ClusterSettings, QueueSpec
from rmgr.model.states import Reason, State
from rmgr.model.submission import Paged, Tail, Work
from rmgr.procedures.admission import admit
from rmgr.procedures.output_keys import Fates, locate
from tests.harness.client_cluster import Cluster
from tests.harness.memory import MemoryCoordinator
from tests.harness.memory_store import MemoryStore


@pytest.fixture
def values(request: pytest.FixtureRequest) -> Values:
    return Values(MemoryStore(f"values-{request.node.name}"), None)


# -- values


def test_bytes_stay_bytes_and_everything_else_comes_back_as_it_was(values: Values) -> None:
    for value in (b"raw", bytearray(b"x"), "text", {"a": [1, 2]}, None, 3.5, lambda x: x + 1):
        values.put("k", value)
        found = values.get("k")
        assert found(1) == 2 if callable(value) else (found == value and type(found) is type(value))


def test_keys_are_listed_by_prefix_and_deleted_for_good(values: Values) -> None:
    for name in ("a/1", "a/2", "b/1"):
        values.put(name, 1)
    assert (values.keys("a/"), values.keys()) == (["a/1", "a/2"], ["a/1", "a/2", "b/1"])
    assert (values.delete("a/1"), values.delete("a/1")) == (True, False)
    assert (values.keys("a/"), values.exists("a/1"), values.exists("a/2")) == (["a/2"], False, True)


def test_a_missing_key_is_an_error_or_the_default(values: Values) -> None:
    with pytest.raises(NotFound, match="no value under the key 'nothing'"):
        values.get("nothing")
    assert values.get("nothing", default=7) == 7
    assert values.get("nothing", default=None) is None


def test_a_value_is_replaced_only_where_that_is_allowed(values: Values) -> None:
    values.put("k", 1)
    with pytest.raises(KeyExists):
        values.put("k", 2, overwrite=False)
    values.put("k", 3)
    assert values.get("k") == 3


def test_bad_keys_and_bad_values_are_named(values: Values) -> None:
    import threading

    with pytest.raises(UsageError, match="a key cannot be empty"):
        values.put("", 1)
    with pytest.raises(UsageError, match="a key is text, not int"):
        values.put(3, 1)  # type: ignore[arg-type]
    with pytest.raises(PickleFailed, match="the value for 'k', a lock, cannot be pickled"):
        values.put("k", threading.Lock())


def test_the_output_of_a_collected_submission_is_found_in_its_final_row() -> None:
    store = MemoryStore("values-final")
    pointer = keys.Pointer(sub=7, index=3, n=1, by="g")
    store.put(keys.named("out"), keys.encode_pointer(pointer), encoding=Encoding.POINTER)
    cluster = Cluster()
    values = Values(store, Fates(store, cluster.coordinator))
    with pytest.raises(NotFound, match="no value under the key 'out'"):
        values.get("out")
    assert values.keys() == []
    store.put(keys.final(pointer), b"kept")
    again = Values(store, Fates(store, cluster.coordinator))
    assert (again.get("out"), again.keys()) == (b"kept", ["out"])
    cluster.stop()


def test_a_thousand_outputs_are_found_with_few_reads() -> None:
    cluster = Cluster()
    with cluster.connect() as connection, TaskQueue(lambda: 1, connection=connection) as queue:
        for i in range(300):
            queue.submit(outputs=[f"out/{i:03}"])
        queue.flush(60)
        cluster.start()
        queue.wait_all(timeout=60)
        reads: list[str] = []
        original = connection.coordinator.get  # type: ignore[union-attr]

        def counted(path: str, **options: object) -> object:
            reads.append(path)
            return original(path, **options)  # type: ignore[arg-type]

        connection.coordinator.get = counted  # type: ignore[union-attr, assignment, method-assign]
        assert connection.store.keys("out/") == [f"out/{i:03}" for i in range(300)]
        assert {connection.store.get(f"out/{i:03}") for i in range(300)} == {1}
        assert len(reads) < 30
    cluster.stop()


# -- admission


def node(name: str, cores: int, memory_gib: int, **attributes: object) -> NodeRecord:
    return NodeRecord(
        node=name,
        incarnation=1,
        state=NodeState.UP,
        guid=name,
        capacity=Capacity(cores=cores, memory_bytes=memory_gib << 30),
        attributes=NodeAttributes(**attributes),  # type: ignore[arg-type]
    )


def test_what_no_node_can_run_is_refused_naming_the_largest() -> None:
    nodes = [node("a", 4, 8), node("b", 16, 32), node("c", 64, 8, partition="other")]
    settings = ClusterSettings()
    with pytest.raises(Infeasible, match=r"it needs 32 cores; the largest node, b, has 16 cores and 32G"):
        admit(draft_of(Options(cores=32), work=Work.COMMAND), settings, nodes)
    with pytest.raises(Infeasible, match=r"it needs 1 core and 64G"):
        admit(draft_of(Options(memory="64G"), work=Work.COMMAND), settings, nodes)
    assert admit(draft_of(Options(cores=32), work=Work.COMMAND), settings, []).queue == "default"


def test_a_request_takes_the_defaults_of_its_queue() -> None:
    queue = QueueSpec(name="q", default_time_us=5, default_memory_bytes=6, default_priority=7)
    settings = ClusterSettings(queues=(queue,), default_queue="q")
    admitted = admit(draft_of(Options(), work=Work.COMMAND), settings, [])
    assert (admitted.queue, admitted.priority) == ("q", 7)
    assert (admitted.request.time_limit_us, admitted.request.memory_bytes) == (5, 6)
    mine = admit(draft_of(Options(time="1s", memory="1M", priority=3), work=Work.COMMAND), settings, [])
    assert (mine.request.time_limit_us, mine.request.memory_bytes, mine.priority) == (1_000_000, 1 << 20, 3)


# -- progress


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr("rmgr.runtime.machine.monotonic", lambda: now[0])
    return now


def test_a_line_of_progress_tells_share_failures_rate_and_time_left() -> None:
    now = [0.0]
    rate = Rate(lambda: now[0])
    rate.add(0)
    now[0] = 10.0
    rate.add(200)
    counts = Counts(total=1000, final=200, failed=3, cancelled=1)
    assert line("job", counts, rate) == "job  200/1000 (20%)  3 failed  1 cancelled  20/s  40s left"
    assert line("job", Counts(total=0, final=0), Rate()) == "job  0/0"


def test_the_rate_is_that_of_the_last_seconds() -> None:
    now = [0.0]
    rate = Rate(lambda: now[0])
    for second in range(100):
        now[0] = float(second)
        rate.add(second * 10 if second < 50 else 500 + (second - 50) * 100)
    assert rate.per_second() == pytest.approx(100, rel=0.05)


def test_without_a_terminal_lines_come_now_and_then(clock: list[float]) -> None:
    stream = io.StringIO()
    with ProgressDisplay("job", stream=stream) as display:
        for step in range(25):
            clock[0] = 100.0 + step
            display.update(Counts(total=25, final=step))
        display.update(Counts(total=25, final=25))
    lines = stream.getvalue().splitlines()
    assert [text.split()[1] for text in lines] == ["5/25", "10/25", "15/25", "20/25", "25/25"]


def test_a_short_wait_says_nothing_and_trouble_is_told_once(clock: list[float]) -> None:
    stream = io.StringIO()
    with ProgressDisplay("job", stream=stream) as display:
        display.update(Counts(total=1, final=1))
    assert stream.getvalue() == ""
    trouble = ["ZooKeeper does not answer"]
    with ProgressDisplay("job", enabled=False, stream=stream, trouble=lambda: trouble[0]) as display:
        for step in range(10):
            clock[0] = 200.0 + step
            display.update(Counts(total=1, final=0))
        trouble[0] = ""
        display.tick()
    assert stream.getvalue() == "rmgr: ZooKeeper does not answer; still waiting\nrmgr: the cluster answers again\n"


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
    monkeypatch.setattr("rmgr.client.submission.sender.CLAIM_S", 0.01 if is_slow else 1000.0)
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


SUB = 42


class Pointed:
    """A submission of ten tasks, submitted by "ann" up to index 4 and by "bob" from 5 on."""

    def __init__(self) -> None:
        self.coordinator = MemoryCoordinator(guarded=False)
        self.store = MemoryStore()
        self.coordinator.ensure([paths.sub(SUB)])
        tail = encode_record(Tail(next=10, reigns=((0, "ann"), (5, "bob"))))
        self.commit(Create(paths.tail(SUB), tail), Create(paths.done(SUB)))

    def commit(self, *ops: Create | Set) -> None:
        multi = Multi(name="TEST", ops=ops, proof=Exists(paths.sub(SUB)))
        assert isinstance(self.coordinator.commit(multi).result(60), Committed)

    def end(self, *fragments: Fragment) -> None:
        for fragment in fragments:
            self.commit(Create(paths.fragment_prefix(SUB), encode_fragment(fragment), sequence=True))

    def locate(self, index: int, *, n: int = 0, by: str = "") -> str:
        return locate(self.coordinator, self.store, f"out/{index}", keys.Pointer(sub=SUB, index=index, n=n, by=by), timeout_s=60)


@pytest.fixture
def pointed() -> Pointed:
    return Pointed()


def test_the_committed_attempt_is_found(pointed: Pointed) -> None:
    pointed.end(
        Fragment(attempt=1, outcomes=(Outcome(index=1),)), Fragment(attempt=3, outcomes=(Outcome(index=2), Outcome(index=3, attempt=2)))
    )
    assert pointed.locate(1) == keys.output(SUB, 1, 1)
    assert pointed.locate(2, n=4) == keys.output(SUB, 2, 3, 4)
    assert pointed.locate(3) == keys.output(SUB, 3, 2)


def test_outcomes_in_a_row_and_in_a_page_are_found(pointed: Pointed) -> None:
    pointed.store.put(keys.fragment(SUB, "g"), encode_outcomes((Outcome(index=5), Outcome(index=6))))
    paged = Fragment(attempt=4, row=keys.fragment(SUB, "g"), ranges=((State.COMPLETED, 5, 2),))
    other = Fragment(attempt=1, row=keys.fragment(SUB, "absent"), ranges=((State.COMPLETED, 8, 1),))  # never read: 8 is not asked for
    pointed.store.put(keys.page(SUB, 0), join_page([encode_fragment(other), encode_fragment(paged)]))
    pointed.commit(Set(paths.done(SUB), encode_record(Paged(base=2)), 0))
    assert pointed.locate(6) == keys.output(SUB, 6, 4)


@pytest.mark.parametrize("state", [State.FAILED, State.CANCELLED])
def test_a_task_that_failed_has_no_value(pointed: Pointed, state: State) -> None:
    pointed.end(Fragment(outcomes=(Outcome(index=1, state=state),)))
    with pytest.raises(NotFound, match=f"task 42_1 ended {state}"):
        pointed.locate(1)


def test_a_task_that_has_not_ended_has_no_value_yet(pointed: Pointed) -> None:
    with pytest.raises(NotFound, match="not there yet") as caught:
        pointed.locate(1)
    assert caught.value.hint == "rmgr wait 42"


def test_a_pointer_counts_only_if_its_author_submitted_the_task(pointed: Pointed) -> None:
    pointed.end(Fragment(outcomes=(Outcome(index=4), Outcome(index=5))))
    assert pointed.locate(4, by="ann") == keys.output(SUB, 4, 1)
    assert pointed.locate(5, by="bob") == keys.output(SUB, 5, 1)
    with pytest.raises(NotFound, match="never submitted"):
        pointed.locate(5, by="ann")
    with pytest.raises(NotFound, match="never submitted"):
        pointed.locate(10, by="bob")


def test_after_the_submission_only_the_final_value_is_left() -> None:
    coordinator, store = MemoryCoordinator(guarded=False), MemoryStore()
    pointer = keys.Pointer(sub=SUB, index=1, by="ann")
    with pytest.raises(NotFound, match="gone without a value"):
        locate(coordinator, store, "out/1", pointer, timeout_s=60)
    store.put(keys.final(pointer), b"42")
    assert locate(coordinator, store, "out/1", pointer, timeout_s=60) == keys.final(pointer)
    with pytest.raises(NotFound):
        locate(coordinator, store, "out/1", keys.Pointer(sub=SUB, index=1, by="bob"), timeout_s=60)
