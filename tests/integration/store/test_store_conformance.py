"""Requirements for every data store adapter: values, keys, time, owners. Runs on each of them (tests/harness/store_adapters.py)."""

from __future__ import annotations

import gc
import mmap
import random
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace

import pytest

from rmgr.adapters import store_rules
from rmgr.adapters.sqlite.store import STAGE_BYTES
from rmgr.adapters.store_rules import CHUNK_BYTES, MAX_VALUE_BYTES, now_ms
from rmgr.coord.protocol import keys
from rmgr.coord.protocol.ports import Encoding, Store
from rmgr.daemons.leader.submissions import actions as leader_actions
from rmgr.daemons.leader.submissions.actions import stored_submissions
from rmgr.daemons.starter.staging.outputs import Ending, write
from rmgr.errors import KeyExists, StoreUnavailable, UsageError, ValueTooLarge, WrongCluster
from rmgr.model.frames import Output
from rmgr.model.queue import ClusterSettings
from rmgr.model.states import State
from rmgr.model.views import JobView
from rmgr.procedures.history import ended_before, forget, history_rows, oldest_end
from tests.harness.store_adapters import Adapter, pattern, run_threads
from tests.harness.waiting import eventually

DAY_US = 86_400_000_000


def job(number: int, *, ended_us: int, user: str = "anna") -> JobView:
    """A line of the history."""
    return JobView(id=number, name="x", user=user, queue="default", state=State.COMPLETED, ended_us=ended_us)


# -- round trips --------------------------------------------------------------------------------------------------------

SIZES = [0, 1, 1000, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, STAGE_BYTES - 1, STAGE_BYTES, STAGE_BYTES + 1, 5 * 2**20]


@pytest.mark.parametrize("size", SIZES)
def test_a_value_comes_back_as_it_was(store: Store, size: int, tmp_path: Path) -> None:
    value = pattern(size)
    store.put("k", value)
    file = tmp_path / "fetched"
    fetched = store.fetch("k", str(file), largest=size)
    assert (file.read_bytes() if fetched[0] is None else fetched[0], fetched[1]) == (value, sha256(value).digest())
    assert file.exists() == (fetched[0] is None)
    assert store.get("k") == (value, Encoding.RAW)
    assert store.head("k") == (size, Encoding.RAW)
    assert b"".join(store.stream("k") or ()) == value
    assert store.get_many(["k"]) == {"k": (value, Encoding.RAW)}
    assert store.usage() == (1, size)


@pytest.mark.parametrize("size", [1000, CHUNK_BYTES + 1])
def test_a_value_above_the_readers_bound_becomes_no_file(store: Store, size: int, tmp_path: Path) -> None:
    store.put("k", pattern(size))
    with pytest.raises(ValueTooLarge, match=f"'k' has {size:,} bytes"):
        store.fetch("k", str(tmp_path / "fetched"), largest=size - 1)
    assert not (tmp_path / "fetched").exists()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("part", [700_000, 65_536])
def test_a_streamed_value_equals_the_whole_one(store: Store, size: int, part: int) -> None:
    value = pattern(size)
    store.put("k", (value[start : start + part] for start in range(0, size, part)), encoding=Encoding.PICKLE)
    assert store.get("k") == (value, Encoding.PICKLE)


def test_streamed_chunks_have_the_size_of_a_chunk(store: Store) -> None:
    store.put("k", pattern(2 * CHUNK_BYTES + 5))
    assert [len(chunk) for chunk in store.stream("k") or ()] == [CHUNK_BYTES, CHUNK_BYTES, 5]


def test_an_iterable_may_hold_empty_and_odd_parts(store: Store) -> None:
    store.put("k", iter([b"", b"a", b"", bytearray(b"bc"), memoryview(b"d"), b""]))
    assert store.get("k") == (b"abcd", Encoding.RAW)
    store.put("k", iter([]))
    assert store.get("k") == (b"", Encoding.RAW)


def test_an_absent_key_is_none_everywhere(store: Store) -> None:
    assert store.get("k") is None
    assert store.head("k") is None
    assert store.stream("k") is None
    assert store.get_many(["k", "l"]) == {}
    assert store.delete("k") is False
    assert store.keys() == []
    assert store.usage() == (0, 0)


def test_get_many_reads_small_and_large_values_and_leaves_out_absent_ones(store: Store) -> None:
    small = {f"s/{n}": pattern(n, n) for n in range(600)}
    store.put_many(list(small.items()))
    large = pattern(3 * CHUNK_BYTES)
    store.put("large", large, encoding=Encoding.PICKLE)
    found = store.get_many([*small, "absent", "large", "s/1"])
    assert found == {key: (value, Encoding.RAW) for key, value in small.items()} | {"large": (large, Encoding.PICKLE)}


def test_put_many_takes_rows_of_any_size(store: Store) -> None:
    rows = [("a", b""), ("b", pattern(CHUNK_BYTES)), ("c", pattern(STAGE_BYTES + 3)), ("d", b"4"), ("a", b"last wins")]
    store.put_many(rows, encoding=Encoding.POINTER)
    assert {key: store.get(key) for key in "abcd"} == {key: (value, Encoding.POINTER) for key, value in dict(rows).items()}


def test_put_many_of_nothing_is_nothing(store: Store) -> None:
    store.put_many([])
    assert store.usage() == (0, 0)


def test_put_many_of_many_rows_keeps_all(store: Store) -> None:
    rows = [(f"r/{n:05d}", b"%d" % n) for n in range(1111)]  # more than any store takes in one request, or shows on a page
    store.put_many(rows)
    assert store.usage("r/") == (1111, sum(len(value) for _, value in rows))
    assert store.get("r/01110") == (b"1110", Encoding.RAW)


# -- replacing, refusing, deleting ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("old", [3, STAGE_BYTES + 1])
@pytest.mark.parametrize("new", [4, STAGE_BYTES + 2])
def test_a_second_put_replaces_the_first(store: Store, old: int, new: int) -> None:
    store.put("k", pattern(old, 1), encoding=Encoding.PICKLE)
    store.put("k", pattern(new, 2))
    assert store.get("k") == (pattern(new, 2), Encoding.RAW)
    store.sweep()
    assert store.get("k") == (pattern(new, 2), Encoding.RAW)
    assert store.usage() == (1, new)


@pytest.mark.parametrize("size", [3, CHUNK_BYTES + 1, STAGE_BYTES + 1])
def test_an_existing_key_is_refused_without_overwrite(store: Store, size: int) -> None:
    store.put("k", pattern(size, 1), overwrite=False)
    with pytest.raises(KeyExists, match="'k'"):
        store.put("k", pattern(size, 2), overwrite=False)
    with pytest.raises(KeyExists, match="'k'"):
        store.put("k", iter([pattern(size, 2)]), overwrite=False)
    assert store.get("k") == (pattern(size, 1), Encoding.RAW)
    store.delete("k")
    store.put("k", b"again", overwrite=False)
    assert store.get("k") == (b"again", Encoding.RAW)


def test_put_many_without_overwrite_writes_all_or_names_what_exists(store: Store) -> None:
    store.put_many([("a", b"1"), ("b", b"2")], overwrite=False)
    with pytest.raises(KeyExists, match="'b'"):
        store.put_many([("c", b"3"), ("b", b"x")], overwrite=False)
    assert store.keys() == ["a", "b"]
    assert store.get("b") == (b"2", Encoding.RAW)


@pytest.mark.parametrize("size", [10, STAGE_BYTES + 1])
def test_of_many_who_create_one_key_exactly_one_succeeds(store: Store, size: int) -> None:
    barrier = threading.Barrier(6)
    won: list[int] = []

    def create(number: int) -> None:
        barrier.wait(60)
        try:
            store.put("k", (part for part in [pattern(size, number)]), overwrite=False)
        except KeyExists:
            return
        won.append(number)

    run_threads(create, 6)
    assert len(won) == 1
    assert store.get("k") == (pattern(size, won[0]), Encoding.RAW)


@pytest.mark.parametrize("size", [10, STAGE_BYTES + 1])
def test_a_deleted_value_is_gone_for_all_readers(store: Store, size: int) -> None:
    store.put("k", pattern(size))
    assert store.delete("k") is True
    assert store.get("k") is None
    assert store.head("k") is None
    assert store.stream("k") is None
    assert store.keys() == []
    assert store.delete("k") is False


def test_a_stream_goes_on_while_its_value_is_replaced(store: Store) -> None:
    store.put("k", pattern(3 * CHUNK_BYTES, 1))
    stream = store.stream("k")
    assert stream is not None
    first = next(stream)
    store.put("k", b"new")
    assert first + b"".join(stream) == pattern(3 * CHUNK_BYTES, 1)
    assert store.get("k") == (b"new", Encoding.RAW)


@pytest.mark.parametrize(
    "adapter", ["sqlite", *(pytest.param(name, marks=pytest.mark.long) for name in ("cassandra", "memory"))], indirect=True
)
def test_a_value_above_256_mib_is_as_any_other(store: Store) -> None:
    part = random.Random(7).randbytes(4 * 2**20)
    wanted = sha256()

    def parts() -> Iterator[bytes]:
        for _ in range(64):
            wanted.update(part)
            yield part
        wanted.update(b"end")
        yield b"end"

    store.put("large", parts())
    size = 256 * 2**20 + 3
    about = store.about("large")
    assert (about.size, about.sha256, store.usage()) == (size, wanted.digest(), (1, size))
    seen = sha256()
    for piece in store.stream("large") or ():
        seen.update(piece)
    assert seen.digest() == wanted.digest()
    found = store.get("large")
    assert (len(found[0]), found[0][-3:]) == (size, b"end")
    assert store.delete("large")


# -- what must leave nothing behind ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [10, CHUNK_BYTES + 1, 3 * STAGE_BYTES])
def test_an_iterable_that_raises_half_way_leaves_nothing(store: Store, size: int) -> None:
    def parts() -> Iterator[bytes]:
        yield pattern(size)
        raise ZeroDivisionError

    store.put("old", b"old")
    for key in ("new", "old"):
        with pytest.raises(ZeroDivisionError):
            store.put(key, parts())
    assert store.keys() == ["old"]
    assert store.get("old") == (b"old", Encoding.RAW)
    store.sweep()
    assert store.usage() == (1, 3)


def test_a_value_over_the_limit_is_refused_and_leaves_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = memoryview(mmap.mmap(-1, MAX_VALUE_BYTES + 1))  # no memory is touched
    for value in (whole, iter([whole])):
        with pytest.raises(ValueTooLarge, match="5 GiB"):
            store.put("k", value)
    monkeypatch.setattr(store_rules, "MAX_VALUE_BYTES", 4 * 2**20)
    with pytest.raises(ValueTooLarge, match=r"over 0\.00391 GiB"):
        store.put("k", iter([bytes(4 * 2**20), b"1"]))
    assert store.get("k") is None
    assert store.sweep() <= 1
    assert store.usage() == (0, 0)


def test_what_is_no_bytes_is_refused(store: Store) -> None:
    for value in ("text", ["text"], [1]):
        with pytest.raises(UsageError):
            store.put("k", value)  # type: ignore[arg-type]
    with pytest.raises(UsageError):
        store.put_many([("a", b"1"), ("b", "2")])  # type: ignore[list-item]
    assert store.keys() == []


# -- keys -----------------------------------------------------------------------------------------------------------------

WEIRD = [
    "a",
    "a/",
    "a//b",
    " ",
    "\n",
    "%",
    "_",
    "*",
    "'; DROP TABLE manifest; --",
    "é",
    "e\u0301",
    "名前",
    "🦄",
    "\U0010ffff",
    "\x01",
    "x" * 1024,
]


def test_any_unicode_text_is_a_key(store: Store) -> None:
    store.put_many([(key, key.encode()) for key in WEIRD])
    assert store.keys() == sorted(WEIRD)
    for key in WEIRD:
        assert store.get(key) == (key.encode(), Encoding.RAW)
        assert key in store.keys(key)
        assert store.usage(key)[0] == sum(other.startswith(key) for other in WEIRD)
    assert all(store.delete(key) for key in WEIRD)


@pytest.mark.parametrize("key", ["", "a\0b", "x" * 1025, "é" * 513, "\ud800"])
def test_what_is_no_key_is_refused(store: Store, key: str) -> None:
    calls: list[Callable[[], object]] = [
        lambda: store.put(key, b""),
        lambda: store.put_many([(key, b"")]),
        lambda: store.get(key),
        lambda: store.get_many([key]),
        lambda: store.head(key),
        lambda: store.stream(key),
        lambda: store.delete(key),
    ]
    for call in calls:
        with pytest.raises(UsageError, match="key"):
            call()


def test_keys_are_listed_in_pages(store: Store) -> None:
    names = [f"p/{n:03d}" for n in range(25)]
    store.put_many([(name, b"") for name in [*names, "o", "p", "p0", "q"]])
    pages = []
    after = ""
    while page := store.keys("p/", after=after, limit=10):
        pages.append(page)
        after = page[-1]
    assert pages == [names[:10], names[10:20], names[20:]]
    assert store.keys("p/", after="q") == []
    assert store.keys("p/", after="a", limit=1) == ["p/000"]
    assert store.keys("nothing") == []
    with pytest.raises(UsageError):
        store.keys(limit=0)


def test_usage_counts_only_what_has_the_prefix(store: Store) -> None:
    store.put_many([("a/1", b"12"), ("a/2", b"345"), ("b/1", b"6")])
    store.put("a/3", pattern(CHUNK_BYTES * 2))
    assert store.usage("a/") == (3, 5 + CHUNK_BYTES * 2)
    assert store.usage("") == (4, 6 + CHUNK_BYTES * 2)


# -- time ------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Moves the wall clock of the store in this process: it is `days` later than it really is."""

    def move(days: float) -> None:
        clock = SimpleNamespace(time=lambda: time.time() + days * 86_400, monotonic=time.monotonic)
        monkeypatch.setattr(store_rules, "time", clock)

    return move


def test_logs_live_as_long_as_the_clusters_settings_say_and_named_values_for_ever(
    store: Store, tmp_path: Path, later: Callable[[float], None]
) -> None:
    for number, settings in enumerate((ClusterSettings(log_retention_us=2 * DAY_US), ClusterSettings(log_retention_us=0))):
        output = tmp_path / f"out{number}"
        output.write_bytes(pattern(CHUNK_BYTES))
        ending = Ending(out=Output(size=CHUNK_BYTES, path=str(output)))
        write(store, number, 0, 1, ending, log_ttl_s=settings.log_ttl_s)
    store.put(keys.named("stays"), b"1")
    store.put(keys.named("goes"), b"2", ttl_s=86_400)
    later(1.9)
    assert len(store.keys(keys.logs_of(0))) == len(store.keys(keys.logs_of(1))) > 0
    later(2.1)
    assert store.keys(keys.logs_of(0)) == []
    assert store.keys(keys.logs_of(1))
    assert store.keys("name/") == [keys.named("stays")]


def test_rows_of_a_collected_submission_go_and_those_that_are_kept_longer_stay(store: Store) -> None:
    for number in (41, 42):
        gone = [keys.arguments(number, 0, "g"), keys.fragment(number, "g"), keys.output(number, 0, 1), keys.page(number, 0)]
        kept = [keys.log(number, 0, 1, "stdout", 0), keys.final(keys.Pointer(sub=number, index=0)), keys.history(number)]
        store.put_many([(key, b"x") for key in (*gone, *kept)])
    assert stored_submissions(store) == [41, 42]
    while leader_actions._delete_some(store, number=42):
        pass
    assert stored_submissions(store) == [41]
    left = store.keys()
    assert [key for key in left if key.split("/")[1] == f"{42:010d}"] == sorted(kept[:2])
    assert store.head(kept[2]) is not None


def test_old_history_is_found_from_its_oldest_end_and_removed(store: Store) -> None:
    views = [job(number, ended_us=(2000 if number == 7 else number) * DAY_US) for number in range(1, 151)]  # 7 lived long
    store.put_many([row for view in views for row in history_rows(view)])
    before_us = 100 * DAY_US
    assert keys.parse_history(store.keys(keys.history_prefix(), after=oldest_end(store, before_us), limit=1)[0]) < 120
    assert store.keys(keys.history_prefix(), after=oldest_end(store, 0)) == []
    old = list(ended_before(store, before_us, after=oldest_end(store, before_us)))
    assert [view.id for view in old] == [number for number in range(99, 0, -1) if number != 7]
    assert old == list(ended_before(store, before_us))
    for view in [*old, old[0]]:
        forget(store, view)
    assert store.usage(keys.history_prefix())[0] == store.usage(keys.history_prefix("anna"))[0] == 52
    assert list(ended_before(store, before_us, after=oldest_end(store, before_us))) == []


def test_a_value_with_a_time_to_live_goes_and_is_swept(adapter: Adapter, store: Store) -> None:
    store.put("stays", b"1")
    store.put("long", b"2", ttl_s=3600)
    store.put("short", pattern(CHUNK_BYTES + 1), ttl_s=0.15)
    store.put_many([("many/1", b"3")], ttl_s=0.15)
    eventually(lambda: store.get("short") is None and store.get("many/1") is None)
    assert store.keys() == ["long", "stays"]
    assert store.usage() == (2, 2)
    assert store.head("short") is None
    assert store.stream("short") is None
    assert store.get_many(["short", "long"]) == {"long": (b"2", Encoding.RAW)}
    assert store.delete("short") is False
    assert store.sweep(now_ms=now_ms() - 86_400_000) == 0, "by the cluster's clock they have not expired, so the machine's is wrong"
    assert (store.sweep(now_ms=now_ms() + 86_400_000) >= 1) == adapter.sweeps_expired
    assert store.sweep() == 0
    assert store.sweep(now_ms=now_ms() + 86_400_000) == 0, "by the machine's clock the long one has not expired"
    assert store.keys() == ["long", "stays"]


def test_an_expired_key_may_be_created_again(store: Store) -> None:
    store.put("k", pattern(CHUNK_BYTES + 1), ttl_s=0.1)
    eventually(lambda: store.head("k") is None)
    store.put("k", b"new", overwrite=False)
    assert store.get("k") == (b"new", Encoding.RAW)
    store.put("k", b"for ever")
    assert store.sweep() >= 0
    assert store.get("k") == (b"for ever", Encoding.RAW)


@pytest.mark.parametrize("ttl_s", [0, -1])
def test_a_time_to_live_must_be_positive(store: Store, ttl_s: float) -> None:
    with pytest.raises(UsageError, match="time to live"):
        store.put("k", b"", ttl_s=ttl_s)


def test_a_call_without_time_is_refused_at_once(store: Store) -> None:
    store.put("k", b"1")
    for call in (lambda: store.get("k", timeout_s=0), lambda: store.put("k", b"2", timeout_s=0), lambda: store.keys(timeout_s=0)):
        with pytest.raises(StoreUnavailable):
            call()


# -- whose it is, how it is, its end ------------------------------------------------------------------------------------------


def test_a_store_belongs_to_one_cluster(store: Store) -> None:
    store.bind_cluster("one")
    store.bind_cluster("one")
    with pytest.raises(WrongCluster, match="one, not to two"):
        store.bind_cluster("two")


def test_a_healthy_store_says_so(store: Store) -> None:
    assert store.health() is None
    assert store.keys() == []


def test_what_was_written_and_read_is_let_go_without_the_garbage_collector(store: Store) -> None:
    value = pattern(2 * 2**20)
    store.put("k", value)
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(8):
            store.put(f"k{number % 2}", value)
            assert store.get("k") is not None
        eventually(lambda: tracemalloc.get_traced_memory()[0] - before < 6 * 2**20)  # the driver's timers last 2 s
    finally:
        tracemalloc.stop()
        gc.enable()


def test_a_closed_store_answers_with_an_error(store: Store) -> None:
    store.put("k", b"1")
    store.close()
    store.close()
    assert store.health() is not None
    for call in (lambda: store.get("k"), lambda: store.put("k", b"2"), store.keys, lambda: store.delete("k")):
        with pytest.raises(StoreUnavailable, match="closed"):
            call()


def test_many_threads_share_one_store(store: Store) -> None:
    def work(number: int) -> None:
        for n in range(15):
            store.put(f"t/{number}/{n}", pattern(200, n))
            store.put_many([(f"m/{number}/{n}/{i}", b"%d" % i) for i in range(5)])
            assert store.get(f"t/{number}/{n}") == (pattern(200, n), Encoding.RAW)

    run_threads(work, 8)
    assert store.usage("t/")[0] == 8 * 15
    assert store.usage("m/")[0] == 8 * 15 * 5
