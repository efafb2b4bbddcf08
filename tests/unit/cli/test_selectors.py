"""Selectors: what words and filters mean, and the errors of those that mean nothing."""

from __future__ import annotations

import pytest

from rmgr.cli.words.selectors import Filter, Target, parse, parse_one, resolve
from rmgr.errors import NotFound, RmgrError, UsageError
from rmgr.model.base.states import State
from rmgr.model.views import JobView


def a_job(number: int, **fields: object) -> JobView:
    return JobView(id=number, **{"name": f"j{number}", "user": "ada", "queue": "default", "state": State.RUNNING, **fields})  # type: ignore[arg-type]


JOBS = [
    a_job(1, state=State.COMPLETED),
    a_job(2, queue="fast"),
    a_job(3, name="train-a"),
    a_job(4, name="train-b", state=State.INITIAL),
    a_job(9, user="bob"),
]


def select(*words: str, **filters: object) -> list[str]:
    targets = resolve(parse(words, Filter(**filters)), JOBS, me="ada")  # type: ignore[arg-type]
    return [id_ for target in targets for id_ in target.ids]


def test_words_select() -> None:
    assert select("3") == ["3"]
    assert select("taskq-0000000003", "1") == ["1", "3"]
    assert select("1-9:2") == ["1", "3", "9"]
    assert select("1,4") == ["1", "4"]
    assert select("last") == ["4"]  # bob's 9 is newer, and not ada's
    assert select("all") == ["1", "2", "3", "4"]
    assert select("2_7", "2_1-3", "2_[5]") == ["2_7", "2_1", "2_2", "2_3", "2_5"]
    assert select("2_7", "2") == ["2"]  # the whole swallows its part


def test_filters_select_among_ones_own_unless_a_user_is_named() -> None:
    assert select(name="train-*") == ["3", "4"]
    assert select(queue="fast") == ["2"]
    assert select(states=(State.INITIAL,)) == ["4"]
    assert select(user="bob") == ["9"]
    assert select("1-4", states=(State.RUNNING,)) == ["2", "3"]
    assert select("last", name="j*") == ["2"]


@pytest.mark.parametrize(
    ("words", "kind", "told"),
    [
        ((), UsageError, "nothing is selected"),
        (("x",), UsageError, "'x' selects nothing"),
        (("1-",), UsageError, "'1-' selects nothing"),
        (("5-1",), UsageError, "backwards"),
        (("2_x",), UsageError, "selects nothing"),
        (("7",), NotFound, "no submission 7"),
        (("7_1",), NotFound, "no submission 7"),
        (("20-30",), NotFound, "nothing matches"),
    ],
)
def test_what_selects_nothing_is_an_error_with_a_hint(words: tuple[str, ...], kind: type[RmgrError], told: str) -> None:
    with pytest.raises(kind, match=told) as caught:
        select(*words)
    assert caught.value.hint


def test_all_of_nothing_is_nothing() -> None:
    assert resolve(parse(["all"]), [], me="ada") == []


def test_one_is_one() -> None:
    assert resolve(parse_one("2_7"), JOBS, me="ada") == [Target(submission=2, tasks=(7,))]
    for word in ("all", "1-3", "2_1-2"):
        with pytest.raises(UsageError, match="more than one"):
            parse_one(word)
