"""What the leader keeps of tasks that FAILED: how many for which reason, with which exit code, on which node; bounded."""

from __future__ import annotations

from rmgr.coord.decisions.progress import Progress
from rmgr.model.base.states import Reason, State
from rmgr.model.tasks.block import Fragment, Outcome
from rmgr.model.tasks.submission import Tail


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
