"""All readers of fragments see the same end of each task: the first one that the table of transitions allows."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmgr.cli.waiting import read_ends
from rmgr.coord.decisions.progress import EndFold, Progress, claimed_state, stated
from rmgr.coord.decisions.rights import ANYBODY
from rmgr.coord.protocol import keys, paths
from rmgr.coord.protocol.keys import Pointer
from rmgr.coord.protocol.multi import Committed, Create, Exists, Multi, Set
from rmgr.coord.protocol.records import encode_fragment, encode_record
from rmgr.coord.views.answers import moving_state
from rmgr.coord.views.snapshot import BlockOnNode
from rmgr.daemons.leader.submissions.actions import keep_outputs
from rmgr.daemons.starter.staging.inputs import Inputs
from rmgr.errors import NotFound
from rmgr.model.block import MOST_TASKS, BlockKey, Fragment, Outcome
from rmgr.model.states import TRANSITIONS, State
from rmgr.model.submission import Paged, Submission, Tail, Work
from rmgr.procedures.history import paged_with
from rmgr.procedures.output_keys import Fates, locate
from rmgr.procedures.snapshot import read_progress, read_tasks
from rmgr.submitter.answers import Answers
from tests.harness.memory import MemoryCoordinator
from tests.harness.memory_store import MemoryStore

SUB = 42
TASKS = 4
#: What no Starter of this release commits: a second end, an end after another, a state that is no end, a task that was never submitted.
FORGED = (
    Fragment(attempt=1, outcomes=(Outcome(index=0, outputs=1), Outcome(index=1, state=State.RUNNING, outputs=1))),
    Fragment(
        attempt=2, outcomes=(Outcome(index=0, outputs=1), Outcome(index=1, state=State.FAILED), Outcome(index=2, state=State.CANCELLED))
    ),
    Fragment(attempt=3, outcomes=(Outcome(index=1, outputs=1), Outcome(index=2, outputs=1), Outcome(index=9, outputs=1))),
)
ENDED = {0: State.COMPLETED, 1: State.FAILED, 2: State.CANCELLED}  #: task 3 is open


class Place:
    """A submission of four tasks in ZooKeeper and in a store."""

    def __init__(self) -> None:
        self.coordinator = MemoryCoordinator(guarded=False)
        self.store = MemoryStore()
        self.tail = Tail(next=TASKS, complete=True)
        record = Submission(id=SUB, name="job", user="ann", queue="default", work=Work.PYTHON, submitted_us=1, owner="gone")
        self.coordinator.ensure([paths.SUBS, paths.NODES, paths.pending("default"), paths.held("default")])
        self.coordinator.ensure([paths.sub(SUB).rpartition("/")[0]])
        self.commit(
            paths.SUBS, Create(paths.sub(SUB), encode_record(record)), Create(paths.tail(SUB), encode_record(self.tail)),
            Create(paths.done(SUB)), Create(paths.failed(SUB)),
        )
        for fragment in FORGED:
            self.commit(paths.sub(SUB), Create(paths.fragment_prefix(SUB), encode_fragment(fragment), sequence=True))
        for index in range(TASKS):
            for attempt in (1, 2, 3):
                self.store.put(keys.output(SUB, index, attempt, 0), b"value of %d" % attempt)

    def commit(self, proof: str, *ops: Create | Set) -> None:
        multi = Multi(name="TEST", ops=ops, proof=Exists(proof))
        assert isinstance(self.coordinator.commit(multi).result(60), Committed)


@pytest.fixture(scope="module")
def place() -> Place:
    return Place()


def of_progress(place: Place) -> dict[int, State]:
    found = read_progress(place.coordinator, place.store, SUB)
    assert found is not None
    return {index: state for index in range(10) if (state := found[1].state_of(index)) is not None}


def of_tasks(place: Place) -> dict[int, State]:
    return {view.position: view.state for view in read_tasks(place.coordinator, place.store, SUB)[1] if view.state is not State.INITIAL}


def of_commands(place: Place) -> dict[int, State]:
    answers = Answers(place.coordinator, lambda: place.store, ANYBODY)
    session = SimpleNamespace(ask=lambda question, most_s: answers.ask(question, timeout_s=most_s), store_or_none=lambda: place.store)
    return {end.position: end.state for end in read_ends(session, SUB)}  # type: ignore[arg-type]


def of_values(place: Place) -> dict[int, State]:
    fates = Fates(place.store, place.coordinator)
    found = {index: fates.fate(Pointer(sub=SUB, index=index, n=0), 60) for index in range(TASKS)}
    return {index: state for index, state in found.items() if isinstance(state, State)}


@pytest.mark.parametrize("reader", [of_progress, of_tasks, of_commands, of_values])
def test_each_reader_sees_the_same_ends(place: Place, reader: Callable[[Place], dict[int, State]]) -> None:
    assert reader(place) == ENDED


def test_a_value_is_that_of_the_attempt_that_ended_the_task_whoever_looks_for_it(place: Place) -> None:
    whole = Pointer(sub=SUB, index=0, n=0)
    right = keys.output(SUB, 0, 1, 0)
    assert locate(place.coordinator, place.store, "out/0", whole, timeout_s=60) == right
    fates = Fates(place.store, place.coordinator)
    assert (fates.fate(whole, 60), fates.attempt(whole)) == (State.COMPLETED, 1)
    inputs = Inputs(place.coordinator, timeout_s=60)
    assert inputs.committed(place.store, "out/0", whole) == right
    for index in (1, 2):
        with pytest.raises(NotFound, match=f"42_{index} ended"):
            inputs.committed(place.store, f"out/{index}", Pointer(sub=SUB, index=index, n=0))


def test_only_values_of_tasks_that_completed_are_kept(place: Place) -> None:
    store = MemoryStore()
    for index in range(10):
        for attempt in (1, 2, 3):
            store.put(keys.output(SUB, index, attempt, 0), b"value of %d" % attempt)
    assert keep_outputs(store, number=SUB, tail=place.tail, base=0, fragments=list(FORGED)) == 1
    kept = store.get(keys.final(Pointer(sub=SUB, index=0, n=0)))
    assert kept[0] == b"value of 1"


def test_a_page_counts_each_end_once() -> None:
    forged = [Fragment(outcomes=tuple(one for one in fragment.outcomes if one.index < TASKS)) for fragment in FORGED]
    paged = paged_with(Paged(), forged)
    assert paged.counts == {"COMPLETED": 1, "FAILED": 1, "CANCELLED": 1}
    progress = Progress()
    progress.tail = Tail(next=TASKS, complete=True)
    progress.skip_to(Paged(base=3, counts={"COMPLETED": 1, "RUNNING": 3}))
    assert not progress.is_ended


# -- the fold and the table ----------------------------------------------------------------------------------------------------------


OUTCOMES = st.lists(st.tuples(st.integers(-1, 5), st.sampled_from(list(State))), max_size=20)


@given(OUTCOMES)
def test_the_fold_does_what_the_table_allows_and_nothing_else(given: list[tuple[int, State]]) -> None:
    ends, known = EndFold(), dict[int, State]()
    fresh = ends.fold((Outcome(index=index, state=state) for index, state in given), TASKS)
    allowed = 0
    for index, state in given:
        former = [known[index]] if index in known else [state for state in State if not state.is_final]
        if 0 <= index < TASKS and state.is_final and any((old, state) in TRANSITIONS for old in former):
            known[index] = state
            allowed += 1
    assert {index: ends.state_of(index) for index in known} == known
    assert ends.codes.count == len(known)
    assert (len(fresh), ends.refused) == (allowed, len(given) - allowed)
    assert ends.counts == {state: list(known.values()).count(state) for state in ends.counts}


_PLACES = st.sampled_from([0, 1, 63, 64, 4094, 4095, 4096, 4097, 8191, 8192, 12_300])
RANGES = st.lists(st.tuples(st.sampled_from(list(State)), _PLACES, _PLACES), max_size=6)


@given(st.lists(RANGES, max_size=3), st.sampled_from([4096, 5000, 9000, MOST_TASKS]), st.sampled_from([1, 4095, 5000, 10**9]))
def test_ranges_are_folded_like_the_outcomes_that_they_state(told: list[list[tuple[State, int, int]]], end: int, most: int) -> None:
    one_by_one, together = Progress(), Progress()
    for number, ranges in enumerate(told):
        fragment = Fragment(attempt=1, row="frag/1/x", node="n1", base_us=7 + number, ranges=tuple(ranges))
        one_by_one.apply(number, fragment, stated(fragment, end=end, most=most), end=end)
        together.apply_stated(number, fragment, most=most, end=end)
    for name in ("counts", "duplicates", "strange"):
        assert getattr(together.ends, name) == getattr(one_by_one.ends, name)
    for index in range(0, 25_000, 7):
        assert together.state_of(index) == one_by_one.state_of(index)
    for name in ("next_fragment", "nodes", "first_started_us", "last_ended_us", "cpu_us", "run_us", "lost", "reason", "exit_code"):
        assert getattr(together, name) == getattr(one_by_one, name)


@pytest.mark.parametrize("old", list(State))
@pytest.mark.parametrize("new", list(State))
def test_each_change_of_each_state_has_an_answer(old: State, new: State) -> None:
    ends = EndFold()
    if old.is_final:
        ends.fold([Outcome(index=0, state=old)])
    before = ends.state_of(0)
    took = bool(ends.fold([Outcome(index=0, state=new)]))
    reachable = (old, new) in TRANSITIONS if old.is_final else any((former, new) in TRANSITIONS for former in State if not former.is_final)
    assert took == (reachable and new.is_final)
    assert ends.state_of(0) == (new if took else before), "what the table forbids leaves the former state"
    assert ends.refused == (not took)


@pytest.mark.parametrize(("starting", "suspended", "stopping"), list(product((False, True), repeat=3)))
def test_what_a_claimed_block_does_is_reached_along_the_table(starting: bool, suspended: bool, stopping: bool) -> None:
    state = claimed_state(is_starting=starting, is_suspended=suspended, is_stopping=stopping)
    assert state is (State.STOPPING if stopping else State.STARTING if starting else State.SUSPENDED if suspended else State.RUNNING)
    block = BlockOnNode(
        node="n1", key=BlockKey(0, 1, SUB, 0, 1, 1, 1, 0), is_starting=starting, is_suspended=suspended,
        stopping="preempted" if stopping else "",
    )
    assert moving_state(State.RUNNING, [block, block]) is state
    assert moving_state(State.COMPLETED, [block]) is State.COMPLETED
