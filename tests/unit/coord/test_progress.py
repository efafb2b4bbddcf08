"""The leader's bounded record of ended tasks: their exit codes in any order, and the number FAILED for each reason."""

from __future__ import annotations

import random
import sys

from hypothesis import given
from hypothesis import strategies as st

from rmgr.coord.decisions.progress import Codes, Progress
from rmgr.model.block import MOST_TASKS, Fragment, Outcome
from rmgr.model.states import Reason, State
from rmgr.model.submission import Tail

#: Indices that meet often, in a few pages and at their edges.
INDICES = st.one_of(st.integers(0, 200), st.sampled_from((0, 4095, 4096, 8191, 40_959, 40_960, 99_999)), st.integers(0, 60_000))
WRITES = st.lists(st.tuples(INDICES, st.integers(1, 300), st.integers(0, 3)), max_size=30)


def weight(codes: Codes) -> int:
    """Bytes of memory."""
    return sys.getsizeof(codes.pages) + sum(map(sys.getsizeof, codes.pages.values()))


@given(WRITES)
def test_it_is_what_a_table_would_be(writes: list[tuple[int, int, int]]) -> None:
    made, table = Codes(), dict[int, int]()
    for first, count, code in writes:
        for index in range(first, first + count):
            made[index] = table[index] = code
    _same(made, table)
    twin = made.copy()
    for index in range(0, 60_000, 511):
        made[index] = 3
    _same(twin, table)


def _same(made: Codes, table: dict[int, int]) -> None:
    known = {index for index, code in table.items() if code}
    assert made.count == len(known)
    assert all(made[index] == code for index, code in table.items())
    for start, stop in ((0, 70_000), (4000, 4200), (4095, 8192), (60_001, 60_002)):
        free = [index for index in range(start, stop) if index not in known]
        assert made.without(start, stop, 100) == free[:100]


def test_in_whatever_order_tasks_end() -> None:
    indices = list(range(30_000))
    random.Random(7).shuffle(indices)
    made = Codes()
    for index in indices:
        made[index] = 1
    assert made.count == 30_000
    assert made.without(0, 30_001, 9) == [30_000]


def test_what_ended_alike_weighs_next_to_nothing() -> None:
    progress = Progress()
    progress.tail = Tail(next=2_000_000)
    for at in range(0, 2_000_000, 256):
        fragment = Fragment(attempt=1, outcomes=tuple(Outcome(index=index, state=State.COMPLETED) for index in range(at, at + 256)))
        progress.apply(progress.next_fragment, fragment, fragment.outcomes, end=2_000_128)
    settled = progress.settled()
    assert settled is not None
    assert weight(settled) < 200_000


def test_outcomes_that_lie_far_from_each_other_weigh_what_they_say() -> None:
    """One in each page, as far behind as it can be; then pages of which all but one have ended."""
    far = range(4095, MOST_TASKS, 4096)
    for codes_of_a_page in (((4095, 1),), ((0, 2), *((low, 1) for low in range(1, 4095)))):
        made = Codes()
        for index in far[:: 1 if len(codes_of_a_page) == 1 else 64]:
            for low, code in codes_of_a_page:
                made[index - 4095 + low] = code
        pages = len(made.pages)
        assert weight(made) < 160 * pages + 40_000, weight(made) // pages


def test_what_differs_from_task_to_task_is_kept_as_it_is() -> None:
    made = Codes()
    for index in range(100_000):
        made[index] = 1 + index % 3
    assert all(made[index] == 1 + index % 3 for index in range(100_000))
    assert weight(made) < 130_000


def failed(index: int, code: int = 3, reason: Reason = Reason.EXIT_CODE, error: str = "") -> Outcome:
    return Outcome(index=index, state=State.FAILED, reason=reason, exit_code=code, error=error)


def progress_of(*fragments: tuple[str, list[Outcome]]) -> Progress:
    progress = Progress()
    progress.tail = Tail(next=100_000)
    for number, (node, outcomes) in enumerate(fragments):
        progress.apply(number, Fragment(node=node), outcomes)
    return progress


def test_failures_are_counted_by_reason_code_and_node_once_each() -> None:
    progress = progress_of(
        ("n1", [failed(0, error="x" * 500), Outcome(index=1), failed(2, 4)]),
        ("n2", [failed(3), failed(3, 9), Outcome(index=4, state=State.CANCELLED, reason=Reason.USER_CANCEL)]),
        ("n1", [failed(5), failed(0)]),
    )
    assert progress.failed == {
        (Reason.EXIT_CODE, 3, "n1"): (2, "x" * 200),
        (Reason.EXIT_CODE, 4, "n1"): (1, ""),
        (Reason.EXIT_CODE, 3, "n2"): (1, ""),
    }
    twin = progress.copy()
    progress.apply(3, Fragment(node="n3"), [failed(6)])
    assert len(twin.failed) == 3


def test_many_kinds_of_failures_are_not_told_apart() -> None:
    many = [(f"n{node}", [failed(node * 100 + code, code) for code in range(100)]) for node in range(50)]
    progress = progress_of(*many)
    assert len(progress.failed) <= 32
    assert sum(count for count, _ in progress.failed.values()) == 5000
