"""`rmgr jobs` as people read it: what is done, what is left, where or why, and all of it together."""

from __future__ import annotations

import io

import pytest

from rmgr.cli.display.columns import job_columns, time_left, totals, where_or_why
from rmgr.cli.display.render import Layout, choose, table, width_of
from rmgr.model.base.states import Reason, State
from rmgr.model.views import FailureView, JobView

T0 = 1_790_000_000_000_000
S = 1_000_000


def job(number: int = 42, state: State = State.RUNNING, **fields: object) -> JobView:
    given: dict[str, object] = {"name": "train", "user": "ada", "queue": "default", "tasks": 1, "submitted_us": T0, **fields}
    return JobView(id=number, state=state, **given)  # type: ignore[arg-type]


def running(**fields: object) -> JobView:
    return job(started_us=T0, nodes=("n1",), **{"counts": {"RUNNING": 1}, **fields})


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("shown", "after_s", "left"),
    [
        (running(), 60, ""),
        (running(asked={"time_limit": 600.0}), 30, "<9m30s"),
        (running(asked={"time_limit": 7200.0}), 30, "<2h"),
        (running(asked={"time_limit": 10.0}), 30, "<1s"),
        (running(asked={"time_limit": 600.0}, turns=3), 30, ""),
        (running(tasks=100, counts={"RUNNING": 2, "COMPLETED": 20, "INITIAL": 78}), 60, "~4m"),
        (running(tasks=100, counts={"INITIAL": 80, "FAILED": 20}), 60, "~4m"),
        (running(tasks=100, counts={"RUNNING": 2, "INITIAL": 98}, asked={"time_limit": 600.0}), 60, ""),
        (running(tasks=100_000, counts={"RUNNING": 2, "COMPLETED": 7}), 60, "~9d22h"),
        (job(state=State.COMPLETED, started_us=T0, ended_us=T0 + S, counts={"COMPLETED": 1}), 60, ""),
        (job(state=State.INITIAL, counts={"INITIAL": 1}), 60, ""),
    ],
)
def test_what_is_left_is_told_where_somebody_can_know(shown: JobView, after_s: int, left: str) -> None:
    assert time_left(shown, T0 + after_s * S) == left


@pytest.mark.parametrize(
    ("shown", "words"),
    [
        (running(), "n1"),
        (job(state=State.HELD, reason=Reason.DEPENDENCY, after=("ok:41", "any:7")), "waits for ok:41, any:7"),
        (job(state=State.HELD, reason=Reason.USER_HOLD), "held by its user"),
        (job(state=State.HELD, reason=Reason.USER_HOLD, detail="no input yet"), "held: no input yet"),
        (job(state=State.HELD, reason=Reason.OPERATOR_HOLD, detail="by root: disk is full"), "held by root: disk is full"),
        (job(state=State.INITIAL, reason=Reason.RESOURCES), "waits for room"),
        (job(state=State.INITIAL, reason=Reason.RESOURCES, detail="needs 6 x 1 core, 2 are free"), "needs 6 x 1 core, 2 are free"),
        (job(state=State.CANCELLED, reason=Reason.DEPENDENCY_FAILED, detail="ok:3: submission 3 ended FAILED"), "job 3 ended FAILED"),
        (job(state=State.CANCELLED, reason=Reason.OPERATOR_CANCEL, detail="by root"), "cancelled by root"),
        (job(state=State.FAILED, reason=Reason.EXIT_CODE, exit_code=3, nodes=("n1",)), "exit code 3"),
        (job(state=State.FAILED, failures=(FailureView(reason="TIME_LIMIT", node="n1", tasks=1),)), "out of time on n1"),
        (job(state=State.RUNNING, reason=Reason.OWNER_GONE, detail="owner gone, 1/1 done"), "owner gone, 1/1 done"),
        (job(state=State.CANCELLED, reason=Reason.USER_CANCEL, detail="bad\x1b[31m\nname"), "cancelled: bad\\x1b[31m name"),
    ],
)
def test_where_or_why_begins_with_what_matters(shown: JobView, words: str) -> None:
    assert where_or_why(shown) == words


@pytest.mark.parametrize("reason", list(Reason))
def test_every_reason_has_words(reason: Reason) -> None:
    for state in (State.INITIAL, State.HELD, State.FAILED, State.CANCELLED):
        assert where_or_why(job(state=state, reason=reason, detail="")).strip() or reason == Reason.NONE or reason == Reason.OWNER_GONE


def test_all_jobs_together_are_told_in_a_line() -> None:
    many = [
        running(tasks=1000, counts={"RUNNING": 3, "COMPLETED": 95, "FAILED": 2, "INITIAL": 900}),
        job(7, State.HELD, counts={"HELD": 1}),
        job(8, State.FAILED, counts={"FAILED": 1}),
    ]
    assert totals(many) == "3 jobs: 1 run, 1 wait, 1 ended; 98 of 1,002 tasks done, 3 run, 3 failed"
    assert totals(many[1:]) == "2 jobs: 1 wait, 1 ended; 1 failed"


def test_users_are_told_of_everybodys_jobs_and_old_names_of_columns_stay() -> None:
    assert [column.name for column in choose(job_columns(T0, of_all=True), "")][:4] == ["ID", "NAME", "USER", "STATE"]
    assert "USER" not in [column.name for column in choose(job_columns(T0), "")]
    old = "JOBID,NAME,USER,QUEUE,STATE,TIME,TASKS,NODES(REASON)"
    found = " ".join(column.name for column in choose(job_columns(T0), old))
    assert found == "ID NAME USER QUEUE STATE TIME TASKS WHERE/WHY"


@pytest.mark.parametrize("of_all", [False, True])
def test_the_usual_columns_fit_80_and_leave_room_for_the_reason(monkeypatch: pytest.MonkeyPatch, of_all: bool) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    rows = [
        running(name="日本語の仕事" * 5, tasks=10_000, counts={"RUNNING": 3, "COMPLETED": 35, "FAILED": 2, "INITIAL": 9_960}),
        job(1043, State.CANCELLED, name="n" * 80, user="u" * 30, reason=Reason.OPERATOR_CANCEL, detail="by root: the disk is full of logs"),
    ]
    screen = Terminal()
    monkeypatch.setenv("NO_COLOR", "1")
    table(rows, job_columns(T0 + 3600 * S, of_all=of_all), Layout(), screen)
    lines = screen.getvalue().splitlines()
    assert max(map(width_of, lines)) <= 80
    assert "cancelled by" in lines[2]
