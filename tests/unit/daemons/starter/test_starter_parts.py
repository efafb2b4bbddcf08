"""Small parts of the Starter: strikes, names of output files, safe unpacking, watching, store jobs, disk."""

from __future__ import annotations

import errno
import math
import threading
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import structlog

from rmgr.coord.protocol.multi import Stat
from rmgr.coord.protocol.ports import Store
from rmgr.daemons.starter.core.fetch import Blob, Fetcher, FetchFailure, reason_of
from rmgr.daemons.starter.core.home import DiskWatch
from rmgr.daemons.starter.core.io import StoreIO
from rmgr.daemons.starter.core.tree import CountedChildren, WatchedZnode
from rmgr.daemons.starter.node.trouble import OUT_S, OWN, SUBMISSIONS, WINDOW_S, Strikes
from rmgr.daemons.starter.staging.stage import inside
from rmgr.errors import CoordinationUnavailable, DataLost, PermissionDenied, StoreUnavailable
from rmgr.model.frames import MAX_INLINE_FUNCTION
from rmgr.model.states import Reason
from rmgr.runtime.aside import Aside
from tests.harness.memory_store import MemoryStore
from tests.harness.waiting import eventually


def test_failures_of_the_node_in_a_row_put_it_out_for_a_while() -> None:
    strikes = Strikes()
    for n in range(OWN):
        assert not strikes.is_out(float(n))
        strikes.add("slot_lost", "x", float(n))
    assert strikes.is_out(float(OWN))
    assert not strikes.is_out(OWN + OUT_S)


def test_failures_far_apart_do_not() -> None:
    strikes = Strikes()
    for n in range(3 * OWN):
        strikes.add("slot_lost", "x", n * WINDOW_S)
    assert not strikes.is_out(3 * OWN * WINDOW_S)


def test_one_user_whose_slots_fail_stays_out_alone() -> None:
    strikes = Strikes()
    assert [strikes.add("fork_failed", "x", float(n), user="anna") for n in range(OWN)] == [False] * (OWN - 1) + [True]
    assert not any(strikes.add("fork_failed", "x", OWN + n * WINDOW_S, user="anna") for n in range(1, 3 * OWN))
    assert not strikes.is_out(3 * OWN * WINDOW_S)


def test_several_users_whose_slots_fail_put_the_node_out_and_so_does_the_starter() -> None:
    strikes = Strikes()
    for n in range(OWN - 1):
        strikes.add("fork_failed", "x", float(n), user="anna")
    strikes.add("fork_failed", "x", float(OWN), user="ben")
    assert not strikes.is_out(float(OWN))
    for what in ("slot_not_opened", "output_not_stored"):
        strikes.add(what, "x", float(OWN))
    assert strikes.is_out(float(OWN))


def test_one_bad_submission_puts_no_node_out_several_do() -> None:
    strikes = Strikes()
    for _ in range(100):
        strikes.add("start_failed", "7: no such file", 1.0)
    assert not strikes.is_out(1.0)
    for number in range(SUBMISSIONS):
        strikes.add("start_failed", f"{number}: no such file", 2.0)
    assert strikes.is_out(2.0)


def test_bad_submissions_of_one_user_keep_only_that_user_out() -> None:
    strikes = Strikes()
    several = [strikes.add("start_failed", f"{number}: no interpreter", 1.0, user="anna") for number in range(2 * SUBMISSIONS)]
    assert several == [*[False] * (SUBMISSIONS - 1), True] * 2
    assert not strikes.is_out(1.0)
    for number in range(SUBMISSIONS - 1):
        assert not strikes.add("start_failed", f"{number}: no interpreter", 2.0, user="anna")
    assert not strikes.add("start_failed", "9: no interpreter", 2.0, user="ben")
    assert strikes.is_out(2.0)


@pytest.mark.parametrize("name", ["../x", "a/../../x", "/etc/passwd"])
def test_names_that_lead_out_of_the_work_directory_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(PermissionDenied):
        inside(tmp_path, name)
    assert inside(tmp_path, "a/./b") == tmp_path / "a" / "b"


class Away:
    """A store that comes back after some calls."""

    def __init__(self, store: Store, calls: int) -> None:
        self.store, self.calls = store, calls

    def get(self, key: str) -> Any:
        self.calls -= 1
        if self.calls >= 0:
            raise StoreUnavailable("away")
        return self.store.get(key)


class Work(StoreIO):
    """Jobs whose ends wait in `messages`. `stands` is a job that stays until the gate is open; `begun` has who began it."""

    def __init__(self, store: Any = None, **options: int) -> None:
        self.messages: deque[Callable[[], None]] = deque()
        self.gate, self.begun = threading.Event(), list[str]()
        super().__init__(store or MemoryStore(), self.messages.append, **options)

    def stands(self, _store: Any, user: str = "") -> None:
        self.begun.append(user)
        assert self.gate.wait(60)

    def handle_next(self) -> None:
        eventually(lambda: self.messages)
        self.messages.popleft()()

    def end(self, count: int) -> None:
        """Opens the gate; so many jobs end, and no other is left."""
        self.gate.set()
        eventually(lambda: len(self.messages) == count)
        eventually(lambda: self.is_idle)
        self.close()


def test_jobs_wait_for_a_store_that_is_away_and_errors_are_handed_over() -> None:
    inner = MemoryStore()
    inner.put("k", b"v")
    before = set(threading.enumerate())
    work = Work(Away(inner, 2), threads=1)
    found: list[Any] = []
    work.run(lambda store: store.get("k"), found.append, size=10)
    eventually(lambda: work.down_since_s is not None)
    assert work.pending_bytes == 10
    work.handle_next()
    assert found[0][0] == b"v"
    assert (work.down_since_s, work.pending_bytes) == (None, 0)
    work.run(lambda _store: 1 // 0, found.append)
    work.handle_next()
    assert isinstance(found[1], ZeroDivisionError)
    work.close()
    assert set(threading.enumerate()) <= before


def test_every_job_meets_an_absent_store_once_and_all_go_on_when_it_is_back() -> None:
    inner = MemoryStore()
    inner.outage = "away"
    work = Work(inner, threads=2)
    tried: list[int] = []

    def job(number: int, store: Any) -> None:
        tried.append(number)
        store.put(f"k{number}", b"v")

    for number in range(20):  # more than there are threads: none of them is held by the outage
        work.run(partial(job, number), lambda _result: None, size=1, is_read=number == 7)
    eventually(lambda: set(tried) == set(range(20)))
    assert work.pending_bytes == 20
    assert work.starved_since_s is not None
    local: list[Any] = []
    work.run(lambda _store: 1, local.append)  # does not ask the store, and says nothing about it
    work.handle_next()
    assert local == [1]
    assert work.down_since_s is not None
    inner.outage = ""
    eventually(lambda: len(work.messages) == 20)
    assert (work.pending_bytes, work.down_since_s, work.starved_since_s) == (0, None, None)
    work.close()


def test_results_do_not_wait_for_slow_staging(tmp_path: Path) -> None:
    work = Work(threads=3)
    for _ in range(5):
        work.run(work.stands, lambda _: None, is_long=True)
    for _ in range(5):
        work.run(lambda _: None, lambda _: None)
    eventually(lambda: len(work.messages) == 5 and len(work.begun) == 2)
    assert not work.is_idle
    work.end(10)


def test_jobs_that_only_wait_have_more_threads_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk syncs many files in little more than the time of one, if it is asked for all of them."""
    monkeypatch.setattr("rmgr.daemons.starter.core.io.HELPER_REST_S", 0.05)
    work = Work(threads=2)
    before, together, told = set(threading.enumerate()), threading.Barrier(8), list[Any]()
    for _ in range(8):
        work.run(lambda _: together.wait(60), told.append, is_synced=True)
    eventually(lambda: len(work.messages) == 8)
    while work.messages:
        work.messages.popleft()()
    assert sorted(told) == list(range(8)), "all of them were under way at once"
    eventually(lambda: set(threading.enumerate()) <= before)
    for _ in range(100):
        work.run(work.stands, told.append)
    eventually(lambda: len(work.begun) == 2)
    assert set(threading.enumerate()) <= before, "there are helpers only for what waits for the disk"
    for _ in range(100):
        work.run(work.stands, told.append, is_synced=True)
    eventually(lambda: len(work.begun) == 14)
    assert len([one for one in threading.enumerate() if one not in before]) == 12
    work.end(200)


def test_helpers_that_rest_come_back_however_much_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them rest, a hundred inputs wait to be read, then outputs come: they waited behind those for two threads."""
    monkeypatch.setattr("rmgr.daemons.starter.core.io.HELPER_REST_S", 3600.0)
    work = Work(threads=2)
    together = threading.Barrier(14)
    for _ in range(14):
        work.run(lambda _: together.wait(60), lambda _: None, is_synced=True)
    eventually(lambda: len(work.messages) == 14)
    eventually(lambda: work.is_idle)
    for _ in range(100):
        work.run(work.stands, lambda _: None)
    eventually(lambda: len(work.begun) == 2)
    for _ in range(20):
        work.run(work.stands, lambda _: None, is_synced=True)
    eventually(lambda: len(work.begun) == 14)
    work.end(134)


def test_jobs_go_in_turns_of_their_users_and_the_starters_own_first() -> None:
    work = StoreIO(MemoryStore(), lambda _: None, threads=0)
    order: list[str] = []
    for user, count in (("ann", 4), ("bob", 2), ("", 2), ("cyd", 1)):
        for number in range(count):
            work.run(lambda _, name=f"{user}{number}": order.append(name), lambda _: None, user=user)
    while work.step():
        pass
    assert order == ["0", "1", "ann0", "bob0", "cyd0", "ann1", "bob1", "ann2", "ann3"]
    assert work.is_idle


@pytest.mark.parametrize("is_long", [False, True])
def test_who_has_nothing_under_way_does_not_wait_for_the_long_jobs_of_another(is_long: bool) -> None:
    work = Work(threads=2)
    for user in ("ann", "bob"):
        for _ in range(20):
            work.run(partial(work.stands, user=user), lambda _: None, user=user, is_long=is_long)
    eventually(lambda: {"ann", "bob"} <= set(work.begun))
    work.run(lambda _: work.begun.append("cyd"), lambda _: None, user="cyd", is_long=is_long)
    eventually(lambda: "cyd" in work.begun)
    assert len(work.begun) <= 6, "two threads, a helper for each who came later; and what the last of them takes then"
    work.end(41)


def test_who_writes_to_a_file_server_that_hangs_holds_some_threads_and_others_go_on() -> None:
    work = Work()
    crooked = [f"crook{number}" for number in range(4)]
    for user in crooked:
        for number in range(40):
            work.run(partial(work.stands, user=user), lambda _: None, user=user, is_synced=number % 2 == 0, is_long=number % 3 == 0)
    eventually(lambda: set(crooked) <= set(work.begun))
    done: list[str] = []
    for number in range(30):
        for user in ("", "ann", "bob"):
            work.run(lambda _, user=user: done.append(user), lambda _: None, user=user, is_long=number % 2 == 0)
    eventually(lambda: len(done) == 90)
    assert max(Counter(work.begun).values()) <= 12, Counter(work.begun)
    work.end(4 * 40 + 90)


def test_what_waits_for_the_store_is_tried_again_also_where_all_other_threads_hang() -> None:
    store = MemoryStore()
    work = Work(store, threads=1)
    gate, begun, is_away, done = threading.Event(), threading.Event(), [True], list[bytes]()

    def hangs(_store: Any) -> None:
        begun.set()
        assert gate.wait(60)

    def reads(_store: Any) -> None:
        if is_away:
            raise StoreUnavailable("away")
        done.append(b"read")

    work.run(hangs, lambda _: None, user="crook")
    assert begun.wait(60)
    work.run(reads, lambda _: None, user="ann")
    eventually(lambda: work.down_since_s is not None)
    is_away.clear()
    eventually(lambda: done)
    gate.set()
    eventually(lambda: work.is_idle)
    work.close()


def test_what_work_needs_is_fetched_once_and_absence_is_told(tmp_path: Path) -> None:
    store = MemoryStore()
    store.put("small", b"s")
    store.put("large", b"l" * (MAX_INLINE_FUNCTION + 1))
    work = Work(store, threads=2)
    fetcher = Fetcher(work, tmp_path / "blobs")

    def get(key: str) -> Any:
        if (found := fetcher.blobs.get(key)) is None:
            work.handle_next()
            found = fetcher.blobs.get(key)
        return found

    assert get("small") == Blob(b"s", "", 1)
    large = get("large")
    assert Path(large.path).read_bytes() == b"l" * (MAX_INLINE_FUNCTION + 1)
    failure = get("absent")
    assert isinstance(failure, FetchFailure)
    assert (failure.reason, failure.is_final, failure.blames_node) == (Reason.DATA_LOST, True, False)
    work.close()


def test_files_that_no_work_needs_any_more_are_removed_by_their_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    for number in range(5):
        store.put(f"m{number}", bytes([number]) * 100_000)
    work = Work(store, threads=2)
    fetcher = Fetcher(work, tmp_path / "blobs")
    monkeypatch.setattr("rmgr.daemons.starter.core.fetch.KEEP_BYTES", 250_000)

    def get(key: str) -> str:
        while (found := fetcher.files.get(key)) is None:
            work.handle_next()
        assert isinstance(found, str)
        return found

    def on_disk() -> int:
        return sum(1 for path in (tmp_path / "blobs").iterdir() if path.is_file())

    held = [get("m0"), get("m1")]
    get("m2")
    assert on_disk() == 3, "together they are too much, but all were asked for just now"
    monkeypatch.setattr("rmgr.daemons.starter.core.fetch.RECENT_S", -1.0)
    get("m3")
    assert on_disk() == 4, "m0 and m1 are in use"
    assert [Path(path).read_bytes()[:1] for path in held] == [bytes([0]), bytes([1])]
    held.clear()
    assert on_disk() == 2
    again = get("m0")
    assert Path(again).read_bytes() == bytes(100_000)
    assert on_disk() == 2
    work.close()


class Source:
    """Something to watch, driven by hand."""

    def __init__(self, **options: float) -> None:
        self.asked: list[tuple[Callable[[], None], Future[int]]] = []
        self.told: list[int] = []
        self.later: list[Callable[[], None]] = []
        aside = Aside(structlog.get_logger(), lambda: None)
        self.watched = WatchedZnode(self.ask, "/watched", self.told.append, loop=self, aside=aside, **options)

    def post(self, call: Callable[[], object]) -> None:
        call()

    def ask(self, _path: str, *, watch: Callable[[], None]) -> Future[int]:
        future: Future[int] = Future()
        self.asked.append((watch, future))
        return future

    def after(self, _delay_s: float, call: Callable[[], None]) -> Any:
        self.later.append(call)
        return _Timer()


class _Timer:
    def cancel(self) -> None:
        return


def test_a_watch_is_a_hint_to_read_again() -> None:
    source = Source()
    source.watched.start()
    watch, future = source.asked[0]
    future.set_result(1)
    watch()
    source.asked[1][1].set_result(2)
    assert source.told == [1, 2]


def test_a_change_during_a_reading_is_not_forgotten() -> None:
    source = Source()
    source.watched.start()
    watch, future = source.asked[0]
    watch()
    assert len(source.asked) == 1
    future.set_result(1)
    source.asked[1][1].set_result(2)
    assert source.told == [1, 2]


def test_a_failed_reading_is_tried_again_and_an_old_one_is_ignored() -> None:
    source = Source()
    source.watched.start()
    source.asked[0][1].set_exception(CoordinationUnavailable("away"))
    source.later.pop()()
    assert len(source.asked) == 2
    source.watched.start()
    source.asked[1][1].set_result(7)
    assert source.told == []
    source.asked[2][1].set_result(8)
    assert source.told == [8]
    source.watched.stop()
    assert not source.watched.is_on


def test_what_is_never_read_without_a_hint_is_read_when_its_owner_asks() -> None:
    source = Source(resync_s=math.inf)
    source.watched.look()
    assert not source.asked, "it does not watch yet"
    source.watched.start()
    source.asked[0][1].set_result(1)
    assert not source.later, "nothing is due"
    source.watched.look()
    source.asked[1][1].set_exception(CoordinationUnavailable("away"))
    source.later.pop()()  # what failed is tried again all the same
    source.asked[2][1].set_result(2)
    assert source.told == [1, 2]


def test_children_that_were_missed_show_in_what_their_parent_has_counted() -> None:
    def stat(made: int, standing: int) -> Stat:
        return Stat(version=0, mzxid=1, children=standing, creates=made, ephemeral_owner=0, mtime_ms=0)

    held = CountedChildren()
    held.list_from(stat(5, 1))
    assert not held.has_missed(stat(6, 2)), "their list is on its way"
    held.listed(["a"])
    assert not held.has_missed(stat(5, 1))
    held.listed(["a", "b", "c"])  # a watch fired
    held.listed(["c"])
    assert not held.has_missed(stat(7, 1))
    assert held.has_missed(stat(8, 2)), "one more, and no watch fired"
    assert held.has_missed(stat(8, 1)), "one was replaced, perhaps by one of its name"
    assert held.has_missed(stat(7, 0)), "one is gone"
    held.list_from(stat(8, 1))
    held.listed(["c"])
    assert not held.has_missed(stat(8, 1))


def test_a_directory_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    disk = DiskWatch(tmp_path)
    assert disk.look() == ""
    assert disk.free_bytes > 0
    gone = DiskWatch(tmp_path / "gone")
    assert "cannot be written" in gone.look()
    (tmp_path / "gone").mkdir()
    assert gone.look() == ""


def test_a_full_disk_is_the_node_s_trouble_and_no_failure_of_the_work() -> None:
    assert reason_of(OSError(errno.ENOSPC, "No space left on device")) is Reason.NODE_LOST
    assert reason_of(FileNotFoundError(errno.ENOENT, "No such file")) is Reason.NODE_LOST, "a cleaner has removed it"
    assert reason_of(OSError(errno.ENAMETOOLONG, "File name too long")) is Reason.START_FAILED
    assert reason_of(DataLost("a chunk is gone")) is Reason.DATA_LOST
    assert reason_of(LookupError("no such row")) is Reason.START_FAILED
