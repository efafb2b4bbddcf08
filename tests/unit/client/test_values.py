"""Values by key, the rules of admission, and the words of progress."""

from __future__ import annotations

import io

import pytest

from rmgr.client.progress import Counts, ProgressDisplay, Rate, line
from rmgr.client.specs import Options, draft_of
from rmgr.client.taskqueue import TaskQueue
from rmgr.client.values import Values
from rmgr.coord.protocol import keys
from rmgr.coord.protocol.ports import Encoding
from rmgr.errors import Infeasible, KeyExists, NotFound, PickleFailed, UsageError
from rmgr.model.base.resources import Capacity, NodeAttributes
from rmgr.model.cluster.node import NodeRecord, NodeState
from rmgr.model.cluster.queue import ClusterSettings, QueueSpec
from rmgr.model.tasks.submission import Work
from rmgr.procedures.admission import admit
from rmgr.procedures.output_keys import Fates
from tests.harness.client_cluster import Cluster
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
