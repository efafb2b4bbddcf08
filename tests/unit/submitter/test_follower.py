"""The cost of following: each fragment is read once, when it exists or is announced, in order, and none waits for another."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Self

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmgr.client.submission import handle
from rmgr.client.submission.handle import ReadFragments
from rmgr.coord import validity
from rmgr.coord.protocol import keys, paths
from rmgr.coord.protocol.multi import Create, Delete, Exists, Holds, Multi, Set
from rmgr.coord.protocol.records import encode_fragment, encode_record, join_page
from rmgr.errors import CoordinationUnavailable, DataLost, InvalidRecord, RmgrError, Unavailable
from rmgr.model.block import Fragment, Outcome
from rmgr.model.line import Ahead, Told
from rmgr.model.states import State
from rmgr.model.submission import Paged, Tail
from rmgr.procedures import bounded
from rmgr.runtime.story import Semaphore
from rmgr.submitter.follower import Follower
from rmgr.submitter.port import Read
from tests.harness.memory import MemoryCoordinator
from tests.harness.memory_store import MemoryStore
from tests.harness.sparing_store import SparingStore


class Counting(MemoryCoordinator):
    """A coordinator that counts reads."""

    def __init__(self) -> None:
        super().__init__()
        self.gets = self.stats = self.bulks = 0

    def get_many(self, names: Sequence[str], **options: Any) -> Any:  # type: ignore[override]  # `paths` is a module here
        self.bulks += 1
        gets = self.gets
        found = super().get_many(names, **options)
        self.gets = gets
        return found

    def get(self, path: str, **options: Any) -> Any:
        self.gets += 1
        return super().get(path, **options)

    def stat(self, path: str, **options: Any) -> Any:
        self.stats += 1
        return super().stat(path, **options)


class World:
    """The follower's host, and what the follower has delivered: `seen` by number of fragment, `indices` of the tasks.

    authenticity: judges fragments, None = all are believed. options: of the follower.
    """

    def __init__(self, *, authenticity: Any = None, **options: Any) -> None:
        self.coordinator = Counting()
        self.coordinator.ensure([paths.done(1)])
        self.messages: deque[Callable[[], None]] = deque()
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.seen: list[int] = []
        self.outcomes: list[Outcome] = []
        self.errors: list[Exception] = []
        self.store: Any = None
        self.indices: list[tuple[int, int]] = []
        self.may_end = self.is_last = False
        self.rests_at = -1
        self.number, self.engine = 1, SimpleNamespace(authenticity=authenticity)
        handle: Any = self
        self.loop = handle
        self.pages = Semaphore(2)
        self.fragments = ReadFragments(handle)
        self.follower = Follower(1, handle, self.fragments.take, self.on_dead, may_end=lambda: self.may_end, **options)

    @classmethod
    @contextmanager
    def started(cls, **options: Any) -> Iterator[Self]:
        """Yields a world whose follower follows a new submission from its beginning."""
        made = cls(**options)
        made.follower.start(fresh=True)
        made.run()
        made.reads()
        try:
            yield made
            assert not made.errors
        finally:
            made.follower.stop()
            made.coordinator.close()

    def deliver(self, number: int, _fragment: Fragment, outcomes: Sequence[Outcome]) -> None:
        self.seen.append(number)
        self.outcomes += outcomes
        self.indices += [(number, outcome.index) for outcome in outcomes]
        if self.is_last:
            self.follower.stop()
        if number == self.rests_at:
            self.follower.rest(is_resting=True)

    def on_dead(self, error: Exception) -> None:
        self.errors.append(error)

    def read_tail(self) -> Future[Tail]:
        return self.io(lambda: validity.tail(self.coordinator.get(paths.tail(1)).result(60), 1))

    def post(self, job: Callable[[], None]) -> None:
        self.messages.append(job)

    def after(self, delay_s: float, job: Callable[[], None]) -> Any:
        self.timers.append((delay_s, job))
        return Future()

    def ring(self, within_s: float = 0.1) -> int:
        """Fires the timers that are due within `within_s`; returns their number."""
        due = [job for delay_s, job in self.timers if delay_s <= within_s]
        self.timers = [(delay_s, job) for delay_s, job in self.timers if delay_s > within_s]
        for job in due:
            job()
        return len(due)

    def io(self, job: Callable[[], Any]) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(job())
        except RmgrError as error:
            done.set_exception(error)
        return done

    def jitter(self, seconds: float) -> float:
        return seconds

    def run(self, count: int = 1_000_000) -> None:
        """Delivers up to `count` messages."""
        while self.messages and count:
            self.messages.popleft()()
            count -= 1

    def add(self, index: int, count: int = 1) -> None:
        """Commits a fragment with `count` outcomes of a task."""
        self.write(fragment(index, count))

    def write(self, data: bytes) -> None:
        """Commits `data` as a fragment."""
        path = paths.fragment_prefix(1)
        self.coordinator.commit(Multi(name="T", ops=(Create(path, data, sequence=True),), proof=Exists(path))).result(60)

    def reads(self) -> tuple[int, int]:
        """Returns the numbers of reads and of stats since the last call."""
        found = self.coordinator.gets, self.coordinator.stats
        self.coordinator.gets = self.coordinator.stats = 0
        return found


def fragment(index: int, count: int = 1) -> bytes:
    """Returns the fragment that a Starter commits for a task that COMPLETED."""
    return encode_fragment(Fragment(attempt=1, outcomes=tuple(Outcome(index=index, state=State.COMPLETED) for _ in range(count))))


@pytest.fixture
def world() -> Iterator[World]:
    with World.started() as made:
        yield made


@pytest.mark.parametrize("together", [1, 2])
def test_fragments_that_come_one_by_one_or_in_pairs_cost_a_reading_and_a_look_each(world: World, together: int) -> None:
    for number in range(10 * together):
        world.add(number)
        if number % together == together - 1:
            world.run()
    assert (world.seen, world.reads()) == (list(range(10 * together)), (10 * together, 10 * together))


def test_behind_one_that_may_be_the_last_is_looked_only_when_it_was_not(world: World) -> None:
    world.may_end = True
    for number in range(4):
        world.add(number)
        world.run()
    assert (world.seen, world.reads()) == ([0, 1, 2, 3], (4, 4))
    world.is_last = True
    world.add(4)
    world.run()
    assert (world.seen[4:], world.reads()) == ([4], (1, 0))


def test_many_at_once_are_counted_and_then_read_together(world: World) -> None:
    for number in range(100):
        world.add(number)
    world.run()
    assert world.seen == list(range(100))
    gets, stats = world.reads()
    assert gets <= 106
    assert stats <= 12


def test_a_result_is_delivered_before_the_look_behind_it_is_answered(world: World) -> None:
    other = MemoryCoordinator(world.coordinator.tree)
    world.coordinator.auto = False
    path = paths.fragment_prefix(1)
    other.commit(Multi(name="T", ops=(Create(path, fragment(0), sequence=True),), proof=Exists(path))).result(60)
    assert world.coordinator.client_step()  # the watch: its thread asks at once
    world.run()
    assert world.coordinator.server_step()
    assert world.coordinator.client_step()
    world.run()
    assert world.seen == [0]
    world.coordinator.run()  # the look behind it
    world.run()
    assert world.seen == [0]
    other.close()


@pytest.fixture
def crowd() -> Iterator[World]:
    """1,000 tasks are out."""
    with World.started(unfinished=lambda: 1000 - len(made.seen)) as made:
        yield made


def ring(world: World) -> int:
    """Timers that are due soon, and what comes of them."""
    rung = world.ring()
    world.run()
    return rung


def test_of_a_dense_stream_several_are_read_by_one_request(crowd: World) -> None:
    crowd.add(0)
    crowd.run()  # how large they are is not known yet
    assert crowd.seen == [0]
    crowd.reads()
    for number in range(1, 100):
        crowd.add(number)
        crowd.run()
        if not number % 4:
            ring(crowd)
    while ring(crowd):
        pass
    assert crowd.seen == list(range(100))
    gets, stats = crowd.reads()
    assert gets + stats + crowd.coordinator.bulks <= 60  # two each when they are read as they come
    crowd.add(100)  # the stream has dried up, and the next one is watched again
    crowd.run()
    ring(crowd)
    assert crowd.seen[-1] == 100


def test_of_a_thin_stream_each_costs_a_reading_and_a_look(crowd: World) -> None:
    for number in range(10):
        crowd.add(number)
        crowd.run()
        while ring(crowd):
            pass
        assert crowd.seen == list(range(number + 1))
    gets, stats = crowd.reads()
    assert gets + crowd.coordinator.bulks <= 11
    assert stats == 10


def test_nothing_is_late_where_few_tasks_are_out_or_fragments_are_large(crowd: World) -> None:
    crowd.seen += [-1] * 970
    for number in range(5):
        crowd.add(number)
        crowd.run()
    assert crowd.seen[970:] == list(range(5))
    del crowd.seen[:970]
    crowd.add(5, count=50)
    crowd.run()
    ring(crowd)
    for number in range(6, 10):
        crowd.add(number, count=50)
        crowd.run()
    assert crowd.seen == list(range(10))
    assert crowd.coordinator.bulks <= 1


@pytest.mark.parametrize(("unfinished", "is_together"), [(5000, True), (300, False)])
def test_full_fragments_of_quick_tasks_are_read_together_until_the_end_is_near(unfinished: int, is_together: bool) -> None:
    with World.started(unfinished=lambda: unfinished) as world:
        world.add(0, count=256)
        world.run()
        world.reads()
        for number in range(1, 21):
            world.add(number, count=256)
            world.run()
            if not number % 4:
                ring(world)
        while ring(world):
            pass
        assert world.seen == list(range(21))
        gets, stats = world.reads()
        assert (gets + stats + world.coordinator.bulks <= 15) is is_together
        assert bool(world.coordinator.bulks) is is_together


def test_what_was_paged_out_while_it_gathered_is_read_from_its_page(crowd: World) -> None:
    crowd.add(0)
    crowd.run()
    crowd.add(1)
    crowd.run()
    data = crowd.coordinator.get(paths.fragment(1, 1)).result(60)
    pages = {0: [encode_fragment(Fragment(attempt=1)), data.data]}
    crowd.store = MemoryStore()
    crowd.store.put(keys.page(1, 0), join_page(pages[0]))
    paged = encode_record(Paged(base=2))
    ops = (*(Delete(paths.fragment(1, number)) for number in (0, 1)), Set(paths.done(1), paged, 0))
    crowd.coordinator.commit(Multi(name="T", ops=ops, proof=Holds(paths.done(1), paged))).result(60)
    crowd.run()
    ring(crowd)
    assert crowd.seen == [0, 1]


def follow_while_paged(world: World, *, page_after: int) -> int:
    """Follows 90 fragments, of which a leader pages 70 out after so many requests; returns how many there were when nothing moved."""
    leader = MemoryCoordinator(world.coordinator.tree)
    world.store, world.coordinator.auto = MemoryStore(), False
    path, datas = paths.fragment_prefix(1), [fragment(number) for number in range(90)]
    for data in datas:
        leader.commit(Multi(name="T", ops=(Create(path, data, sequence=True),), proof=Exists(path))).result(60)
    world.follower.start(fresh=False)
    requests = settle(world, most=page_after)
    done = encode_record(Paged(base=70))
    world.store.put(keys.page(1, 0), join_page(datas[:70]))
    ops = (*(Delete(paths.fragment(1, number)) for number in range(70)), Set(paths.done(1), done, 0))
    leader.commit(Multi(name="T", ops=ops, proof=Holds(paths.done(1), done))).result(60)
    requests += settle(world)
    leader.close()
    return requests


def settle(world: World, most: int = 1_000_000) -> int:
    """Serves at most so many requests, and all that comes of them; a slow resync is not waited for. Returns how many these were."""
    for served in range(most):
        while not world.coordinator.server_step():
            if not world.coordinator.client_step() and not world.messages and not world.ring():
                return served
            world.run()
    return most


@pytest.mark.parametrize("unfinished", [0, 1000])
def test_fragments_may_be_paged_out_between_any_two_requests(unfinished: int) -> None:
    page_after = requests = 0
    while page_after <= requests:
        world = World(unfinished=lambda: unfinished)
        requests = follow_while_paged(world, page_after=page_after)
        assert world.seen == list(range(90)), f"paged out after {page_after} requests of {requests}"
        world.follower.stop()
        world.coordinator.close()
        page_after += 1


def test_a_listener_without_room_gets_one_page_of_many() -> None:
    pages = [[fragment(3 * page + at) for at in range(3)] for page in range(4)]
    world = World()
    world.store = MemoryStore()
    for at, page in enumerate(pages):
        world.store.put(keys.page(1, 3 * at), join_page(page))
    page_out(world, 12)
    world.rests_at = 2
    world.follower.start(fresh=False)
    world.run()
    assert world.seen == [0, 1, 2]
    world.follower.rest(is_resting=False)
    world.run()
    assert world.seen == list(range(12))
    world.follower.stop()
    world.coordinator.close()


# -- what a user may have written ----------------------------------------------------------------------------------------------


def page_out(world: World, base: int) -> None:
    """The leader says that so many fragments lie in pages."""
    paged = encode_record(Paged(base=base))
    world.coordinator.commit(Multi(name="T", ops=(Set(paths.done(1), paged, 0),), proof=Holds(paths.done(1), paged))).result(60)


PAGES = {
    "is missing": None,
    "is empty": join_page([]),
    "is no page": b"\xc1",
    "is no page of fragments: RecursionError": b"\x91" * 100_000,
    "more than rmgr ever writes": bytes(1001),
}


@pytest.mark.parametrize("why", PAGES)
def test_a_page_that_is_none_ends_the_following_with_what_is_wrong(monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    world = World()
    world.store = store = SparingStore()
    data = PAGES[why]
    if data is not None:
        store.put(keys.page(1, 0), data)
    if why == "more than rmgr ever writes":
        monkeypatch.setattr(bounded, "MOST_PAGE_BYTES", 1000)
        store.large.add(keys.page(1, 0))
    page_out(world, 5)
    world.follower.start(fresh=False)
    world.run()
    [error] = world.errors
    assert isinstance(error, DataLost)
    assert why in error.message
    assert error.hint == "rmgr doctor"
    assert world.seen == []
    world.coordinator.close()


def grown(world: World, total: int) -> None:
    """So many tasks were submitted."""
    world.coordinator.ensure([paths.tail(1)])
    tail = encode_record(Tail(next=total))
    world.coordinator.commit(Multi(name="T", ops=(Set(paths.tail(1), tail, 0),), proof=Holds(paths.tail(1), tail))).result(60)


LOST_ROWS = {
    "are missing from the data store": None,
    "is not what its name says": b"else",
    "does not hold outcomes": b"\xc1",
    "more than rmgr ever writes": bytes(1001),
}


@pytest.mark.parametrize("why", LOST_ROWS)
def test_of_a_row_that_is_none_no_more_outcomes_are_made_than_there_are_tasks(
    world: World, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    world.store = store = SparingStore()
    data = LOST_ROWS[why]
    row = keys.fragment(1, hashlib.sha256(b"other" if data == b"else" else data or b"").hexdigest())
    if data is not None:
        store.put(row, data)
    if why == "more than rmgr ever writes":
        monkeypatch.setattr(handle, "MOST_OUTCOMES_BYTES", 1000)
        store.large.add(row)
    grown(world, 5)
    forged = ((State.COMPLETED, 0, 2**26), (State.FAILED, 3, 2**26), (State.COMPLETED, 2**26, 7)) * 200
    for ranges in (forged, ((State.COMPLETED, 1, 2), (State.FAILED, 4, 1))):
        world.write(encode_fragment(Fragment(attempt=1, row=row, ranges=ranges)))
    world.run()
    assert world.seen == [0, 1]
    assert world.indices == [(0, 0), (0, 1), (0, 2), (0, 3), (0, 4), (1, 1), (1, 2), (1, 4)]
    assert [one.state for one in world.outcomes[5:]] == [State.COMPLETED, State.COMPLETED, State.FAILED]
    assert all(one.error.startswith("DATA_LOST: ") and why in one.error for one in world.outcomes)


def test_a_submission_whose_tail_is_nonsense_is_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.store = SparingStore()
    world.follower.start(fresh=True)
    grown(world, 2**26)  # by one change
    world.write(encode_fragment(Fragment(attempt=1, row=keys.fragment(1, "x"), ranges=((State.COMPLETED, 0, 2**26),))))
    world.run()
    [error] = world.errors
    assert isinstance(error, InvalidRecord)
    assert world.seen == []
    world.coordinator.close()


class Unreachable:
    """Whoever knows the keys does not answer at first; by the next look they are known."""

    def __init__(self) -> None:
        self.asked = 0

    def doubt(self, *_: object) -> str | None:
        return "" if self.asked else None

    def find_doubt(self, *_: object) -> str:
        self.asked += 1
        raise Unavailable("nobody says whose key it is")


def test_a_fragment_whose_key_is_known_by_the_next_look_is_delivered_then_and_holds_nothing_up(world: World) -> None:
    world.fragments.authenticity = Unreachable()  # type: ignore[assignment]
    world.add(0)
    world.run()
    assert world.seen == []
    world.ring()
    world.run()
    assert world.seen == [0]


class Starters(World):
    """And the Starters' side of the submission."""

    made = 0
    serial = 0

    def settle(self) -> None:
        """Delivers everything and rings what is not the slow resync, which nothing here may need."""
        for _ in range(50):
            self.run()
            self.follower.heard_s = 0.0  # the pause is over
            if not self.ring(within_s=0.9):
                return
        raise AssertionError("it never comes to rest")

    def ahead(self, index: int) -> Told:
        """What a Starter says before it commits; the answer is what it says after."""
        self.serial += 1
        self.follower.heard(Ahead(self.serial, 1, fragment(index)))
        return Told(self.serial, 1, self.made)

    def commit(self, index: int) -> None:
        self.add(index)
        self.made += 1


@pytest.fixture
def starters() -> Iterator[Starters]:
    with Starters.started() as made:
        yield made


def test_what_is_told_is_neither_read_nor_watched(starters: Starters) -> None:
    told = starters.ahead(0)
    starters.commit(0)
    starters.run()  # the first watch tells of it
    starters.follower.heard(told)
    starters.coordinator.gets = starters.coordinator.stats = 0
    for index in range(1, 20):
        told = starters.ahead(index)
        starters.commit(index)
        starters.follower.heard(told)
        starters.run()
    assert starters.indices == [(number, number) for number in range(20)]
    assert (starters.coordinator.gets, starters.coordinator.stats) == (0, 0)


def test_after_a_pause_the_next_one_is_watched_again(starters: Starters) -> None:
    for index in range(3):
        told = starters.ahead(index)
        starters.commit(index)
        starters.follower.heard(told)
    starters.settle()
    starters.commit(3)
    starters.run()
    assert starters.indices == [(number, number) for number in range(4)]


def test_what_was_announced_and_never_told_is_read(starters: Starters) -> None:
    starters.ahead(0)
    starters.commit(0)
    starters.settle()
    assert starters.indices == [(0, 0)]


def test_what_was_announced_and_not_committed_is_not_delivered(starters: Starters) -> None:
    starters.ahead(7)
    starters.settle()
    assert starters.indices == []
    starters.commit(8)
    starters.settle()
    assert starters.indices == [(0, 8)]


def test_one_that_comes_from_elsewhere_in_between_is_read_first(starters: Starters) -> None:
    told = starters.ahead(1)
    starters.commit(9)  # another Starter's, which has no line
    late = Told(told.serial, 1, starters.made)
    starters.commit(1)
    starters.follower.heard(late)
    starters.settle()
    assert starters.indices == [(0, 9), (1, 1)]


def test_what_would_not_be_believed_is_read_and_judged_as_ever() -> None:
    with Starters.started(believes=lambda *_: False) as starters:
        told = starters.ahead(0)
        starters.commit(0)
        starters.follower.heard(told)
        starters.settle()
        assert starters.indices == [(0, 0)]
        assert starters.coordinator.gets


STEPS = st.sampled_from(["ahead", "told", "told twice", "commit", "commit other", "message", "messages", "ring", "drop", "wrong"])


@settings(max_examples=300, deadline=None)
@given(st.lists(STEPS, max_size=40))
def test_whatever_is_lost_or_late_every_fragment_comes_once_and_in_order(steps: list[str]) -> None:
    expected: list[int] = []
    index = 0
    told: Told | None = None
    state = ""
    with Starters.started() as starters:
        for step in steps:
            match step:
                case "ahead" if state == "":
                    index += 1
                    told, state = starters.ahead(index), "announced"
                case "commit" if state == "announced":
                    assert told is not None
                    told = Told(told.serial, 1, starters.made)
                    starters.commit(index)
                    expected.append(index)
                    state = "committed"
                case "commit other":
                    starters.commit(1000 + len(expected))
                    expected.append(1000 + len(expected))
                case "told" | "told twice" if state == "committed" and told is not None:
                    starters.follower.heard(told)
                    if step == "told twice":
                        starters.follower.heard(told)
                    state = ""
                case "drop":  # neither its commit nor its news come
                    state = ""
                case "wrong" if told is not None:
                    starters.follower.heard(Told(told.serial + 1, 1, told.number))
                case "message":
                    starters.run(1)
                case "messages":
                    starters.run()
                case "ring":
                    starters.ring()
                case _:
                    pass
        starters.settle()
        assert starters.indices == list(enumerate(expected))


class Keys:
    """Knows whose keys they are once somebody has answered."""

    is_away = True

    def doubt(self, *_: object) -> str | None:
        return None if self.is_away else ""

    def find_doubt(self, *_: object) -> str:
        raise CoordinationUnavailable("the gateway does not answer")


def test_what_could_not_be_judged_at_once_is_delivered_when_it_can() -> None:
    keys = Keys()
    world = World(authenticity=keys)
    world.fragments.take([Read(at, Fragment(outcomes=(Outcome(index=at),)), 5, b"data") for at in range(3)])
    world.run()
    assert (world.seen, len(world.timers)) == ([], 3)
    keys.is_away = False
    world.ring()
    world.run()
    assert world.seen == [0, 1, 2]
    world.coordinator.close()
