"""An output key leads to the row of the committed attempt, and to nothing else."""

from __future__ import annotations

import pytest

from rmgr.coord.protocol import keys, paths
from rmgr.coord.protocol.multi import Committed, Create, Exists, Multi, Set
from rmgr.coord.protocol.records import encode_fragment, encode_outcomes, encode_record, join_page
from rmgr.errors import NotFound
from rmgr.model.base.states import State
from rmgr.model.tasks.block import Fragment, Outcome
from rmgr.model.tasks.submission import Paged, Tail
from rmgr.procedures.output_keys import locate
from tests.harness.memory import MemoryCoordinator
from tests.harness.memory_store import MemoryStore

SUB = 42


class Cluster:
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
def cluster() -> Cluster:
    return Cluster()


def test_the_committed_attempt_is_found(cluster: Cluster) -> None:
    cluster.end(
        Fragment(attempt=1, outcomes=(Outcome(index=1),)), Fragment(attempt=3, outcomes=(Outcome(index=2), Outcome(index=3, attempt=2)))
    )
    assert cluster.locate(1) == keys.output(SUB, 1, 1)
    assert cluster.locate(2, n=4) == keys.output(SUB, 2, 3, 4)
    assert cluster.locate(3) == keys.output(SUB, 3, 2)


def test_outcomes_in_a_row_and_in_a_page_are_found(cluster: Cluster) -> None:
    cluster.store.put(keys.fragment(SUB, "g"), encode_outcomes((Outcome(index=5), Outcome(index=6))))
    paged = Fragment(attempt=4, row=keys.fragment(SUB, "g"), ranges=((State.COMPLETED, 5, 2),))
    other = Fragment(attempt=1, row=keys.fragment(SUB, "absent"), ranges=((State.COMPLETED, 8, 1),))  # never read: 8 is not asked for
    cluster.store.put(keys.page(SUB, 0), join_page([encode_fragment(other), encode_fragment(paged)]))
    cluster.commit(Set(paths.done(SUB), encode_record(Paged(base=2)), 0))
    assert cluster.locate(6) == keys.output(SUB, 6, 4)


@pytest.mark.parametrize("state", [State.FAILED, State.CANCELLED])
def test_a_task_that_failed_has_no_value(cluster: Cluster, state: State) -> None:
    cluster.end(Fragment(outcomes=(Outcome(index=1, state=state),)))
    with pytest.raises(NotFound, match=f"task 42_1 ended {state}"):
        cluster.locate(1)


def test_a_task_that_has_not_ended_has_no_value_yet(cluster: Cluster) -> None:
    with pytest.raises(NotFound, match="not there yet") as caught:
        cluster.locate(1)
    assert caught.value.hint == "rmgr wait 42"


def test_a_pointer_counts_only_if_its_author_submitted_the_task(cluster: Cluster) -> None:
    cluster.end(Fragment(outcomes=(Outcome(index=4), Outcome(index=5))))
    assert cluster.locate(4, by="ann") == keys.output(SUB, 4, 1)
    assert cluster.locate(5, by="bob") == keys.output(SUB, 5, 1)
    with pytest.raises(NotFound, match="never submitted"):
        cluster.locate(5, by="ann")
    with pytest.raises(NotFound, match="never submitted"):
        cluster.locate(10, by="bob")


def test_after_the_submission_only_the_final_value_is_left() -> None:
    coordinator, store = MemoryCoordinator(guarded=False), MemoryStore()
    pointer = keys.Pointer(sub=SUB, index=1, by="ann")
    with pytest.raises(NotFound, match="gone without a value"):
        locate(coordinator, store, "out/1", pointer, timeout_s=60)
    store.put(keys.final(pointer), b"42")
    assert locate(coordinator, store, "out/1", pointer, timeout_s=60) == keys.final(pointer)
    with pytest.raises(NotFound):
        locate(coordinator, store, "out/1", keys.Pointer(sub=SUB, index=1, by="bob"), timeout_s=60)
