"""What is to happen when an owner is dropped happens, whatever became of the thread that did it before."""

from __future__ import annotations

import sys
from types import TracebackType

import pytest

from rmgr.client.tasks import when_dropped
from rmgr.runtime import machine
from tests.harness.virtual import VirtualMachine
from tests.harness.waiting import eventually


class Owner:
    pass


def fail() -> None:
    raise ValueError("it cannot be let go")


def test_a_job_that_raises_is_told_and_stops_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[BaseException] = []
    let_go: list[str] = []

    def tell(_kind: type[BaseException], error: BaseException, _trace: TracebackType | None) -> None:
        told.append(error)

    monkeypatch.setattr(sys, "excepthook", tell)
    when_dropped(Owner(), fail)
    when_dropped(Owner(), lambda: let_go.append("the next"))
    eventually(lambda: let_go)
    assert [str(error) for error in told] == ["it cannot be let go"]


def test_a_machine_without_threads_that_was_in_place_of_this_one_leaves_nothing_behind() -> None:
    let_go: list[str] = []
    with machine.replaced(VirtualMachine(1)):
        when_dropped(Owner(), lambda: let_go.append("of the other"))
    when_dropped(Owner(), lambda: let_go.append("of this one"))
    eventually(lambda: "of this one" in let_go)
