"""Tables: columns that fit, are chosen, sorted, dropped; foreign text that cannot steer a terminal; jobs as people read them."""

from __future__ import annotations

import errno
import io
import json
import re
import signal
import time

import pytest

from rmgr.cli.display import render
from rmgr.cli.display.columns import job_columns, time_left, totals, where_or_why
from rmgr.cli.display.render import Column, Layout, choose, folded, here, table, told_counts, width_of
from rmgr.errors import UsageError
from rmgr.model.states import Reason, State
from rmgr.model.views import FailureView, JobView

COLUMNS = (
    Column(name="ID", text=lambda r: str(r[0]), order=lambda r: r[0], is_id=True, right=True),
    Column(name="NAME", text=lambda r: r[1]),
    Column(name="STATE", text=lambda r: r[2], state=True),
    Column(name="NOTE", text=lambda r: r[3]),
    Column(name="MORE", text=lambda r: "x" * r[0], default=False),
)
ROWS = [(1, "alpha", "RUNNING", ""), (12, "beta", "FAILED", ""), (3, "", "INITIAL", "")]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def locale(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that can show everything, whoever runs the tests."""
    monkeypatch.setenv("LC_ALL", "C.UTF-8")


def drawn(rows: list[tuple[int, str, str, str]] = ROWS, out: io.StringIO | None = None, **layout: object) -> list[str]:
    out = out or io.StringIO()
    table(rows, COLUMNS, Layout(**layout), out)  # type: ignore[arg-type]
    return out.getvalue().splitlines()


def test_empty_columns_are_dropped_and_numbers_stand_right() -> None:
    assert drawn() == ["ID  NAME   STATE", " 1  alpha  RUNNING", "12  beta   FAILED", " 3         INITIAL"]


def test_no_rows_show_all_column_names() -> None:
    assert drawn([]) == ["ID  NAME  STATE  NOTE"]


def test_columns_are_chosen_and_empty_ones_that_were_asked_for_stay() -> None:
    assert drawn(columns="note,id") == ["NOTE  ID", "       1", "      12", "       3"]
    assert drawn(columns="+more")[0] == "ID  NAME   STATE    NOTE  MORE"


def test_an_unknown_column_suggests_the_nearest() -> None:
    with pytest.raises(UsageError, match="no column 'STAET'") as caught:
        drawn(columns="id,staet")
    assert "STATE" in caught.value.hint


def test_rows_are_sorted_by_value_and_empty_ones_come_last() -> None:
    assert [line.split()[0] for line in drawn(sort="id")[1:]] == ["1", "3", "12"]
    assert [line.split()[0] for line in drawn(sort="-name")[1:]] == ["12", "1", "3"]
    assert [line.split()[0] for line in drawn(sort="-id")[1:]] == ["12", "3", "1"]


def test_colour_only_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert "\x1b" not in "".join(drawn())
    assert "\x1b[36mRUNNING" in "".join(drawn(out=Terminal()))
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in "".join(drawn(out=Terminal()))


@pytest.mark.parametrize("width", [20, 30, 40, 80])
def test_on_a_terminal_lines_fit_and_ids_are_whole(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("NO_COLOR", "1")
    rows = [(1234567890, "a-very-long-name-of-some-work", "RUNNING", "because of something that takes long to tell")]
    lines = drawn(rows, out=Terminal())
    assert all("1234567890" in line for line in lines[1:])
    if width >= 40:
        assert max(map(len, lines)) <= width
    if width < 80:
        assert any("…" in line for line in lines)


def test_a_pipe_gets_everything() -> None:
    long = "n" * 300
    assert long in drawn([(1, long, "RUNNING", "")])[1]


def test_wide_characters_count_twice() -> None:
    assert drawn([(1, "水分子", "RUNNING", ""), (2, "abcdef", "FAILED", "")])[1:] == [" 1  水分子  RUNNING", " 2  abcdef  FAILED"]


def test_control_characters_do_not_reach_the_terminal() -> None:
    line = drawn([(1, "a\x1b[31mb\nc\r", "RUNNING", "")])[1]
    assert "\x1b" not in line
    assert "\\x1b[31mb c\\r" in line


@pytest.mark.parametrize("text", ["\x9b31m", "\x7f\x00\x1b[2J", "\u202e", "\u2028", "\ud800", "\U000e0001", "a\u00a0b"])
def test_json_holds_no_character_that_steers_a_terminal_and_keeps_its_values(text: str) -> None:
    out = io.StringIO()
    render.emit({"name": text, "other": ["水分子 é"]}, out)
    line = out.getvalue()
    assert line[:-1].isprintable()
    assert "水分子 é" in line
    assert json.loads(line)["name"] == text
    assert render.harmless_json(line) == line


def test_times_are_iso_8601_in_utc() -> None:
    assert render.iso(0) is None
    assert render.iso(1_790_000_000_123_456) == "2026-09-21T14:13:20.123Z"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", render.iso(1) or "")


@pytest.mark.parametrize("width", [80, 140])
def test_a_table_fits_the_terminal_and_the_reason_is_cut_last(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("NO_COLOR", "1")
    reason = "RESOURCES: waits for four cores"
    names = ("JOBID", "NAME", "USER", "QUEUE", "STATE", "WHERE/WHY")
    row = {"JOBID": "42", "NAME": "n" * 60, "USER": "u" * 20, "QUEUE": "q" * 20, "STATE": "INITIAL", "WHERE/WHY": reason}
    columns = [Column(name=name, text=lambda item, name=name: item[name], is_id=name == "JOBID", state=name == "STATE") for name in names]
    screen = Terminal()
    table([row], columns, Layout(), screen)
    lines = screen.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    assert lines[1].endswith(reason)
    assert len(lines[1]) > width - 6  # what room there is is used


def test_names_are_cut_before_the_reason_and_only_as_far_as_they_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    columns = [Column(name=name, text=lambda item, name=name: item[name]) for name in ("NAME", "QUEUE", "REASON")]
    row = {"NAME": "n" * 30, "QUEUE": "default", "REASON": "needs four cores, none is free before noon"}
    told = {}
    for width in (80, 60, 50, 30):
        monkeypatch.setenv("COLUMNS", str(width))
        screen = Terminal()
        table([row], columns, Layout(), screen)
        told[width] = screen.getvalue().splitlines()[1].split("  ")
        assert width_of("  ".join(told[width])) <= width
    assert told[80] == ["n" * 26 + "…", "default", row["REASON"]]
    assert told[60] == ["nnnnnnn…", "default", row["REASON"][:40] + "…"]
    assert told[50][:2] == ["nnnnnnn…", "default"]
    assert [len(cell) for cell in told[30]] == [5, 5, 16]


def test_a_column_that_is_there_already_is_not_added_again() -> None:
    columns = [Column(name=name, text=str, default=name == "NAME") for name in ("NAME", "MORE")]
    assert [column.name for column in render.choose(columns, "+name,more,more")] == ["NAME", "MORE"]


def test_sentences_are_folded_between_words_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    told = "none of the nodes that are up fits, and n3 drains"
    assert folded(told, Terminal(), begin=6, indent=4) == "none of the nodes that\n    are up fits, and n3 drains"
    assert folded(told, io.StringIO(), begin=6, indent=4) == told
    assert folded(command := "rmgr drain n3 --reason 'a disk is to be built in'", Terminal()) == command
    assert folded("a " + "x" * 60, Terminal(), indent=2) == "a\n  " + "x" * 60
    assert folded("水" * 10 + " " + "水" * 10, Terminal()) == "水" * 10 + "\n" + "水" * 10
    assert folded("a stands here for  b", Terminal()) == "a stands here for  b"
    assert folded("a stands here for some time  beside b", Terminal(), indent=2) == "a stands here for some time\n  beside b"


@pytest.mark.parametrize(("named", "more"), [("C", "+"), ("POSIX", "+"), ("C.UTF-8", "…"), ("de_DE.UTF-8", "…")])
def test_what_is_cut_ends_with_what_the_terminal_can_show(monkeypatch: pytest.MonkeyPatch, named: str, more: str) -> None:
    monkeypatch.setenv("LC_ALL", named)
    monkeypatch.setenv("COLUMNS", "20")
    lines = drawn([(1, "a-very-long-name", "RUNNING", "")], out=Terminal())
    assert f"a-very{more}" in lines[1]


@pytest.mark.parametrize(
    ("environment", "is_drawn", "piece"),
    [({"LC_ALL": "C"}, True, "-" * 8), ({"LC_ALL": "C.UTF-8"}, True, "━" * 8), ({"TERM": "dumb"}, False, "x  1/2")],
)
def test_a_bar_is_made_of_what_the_terminal_can_show(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], is_drawn: bool, piece: str
) -> None:
    from rmgr.client.progress import Counts, ProgressDisplay

    for name, value in ({"COLUMNS": "60", "TERM": "xterm"} | environment).items():
        monkeypatch.setenv(name, value)
    screen = Terminal()
    for pause in ("REDRAW_S", "LINE_S"):
        monkeypatch.setattr(f"rmgr.client.progress.{pause}", 0.0)
    with ProgressDisplay("x", stream=screen) as display:
        display.update(Counts(total=2, final=1))
    assert piece in screen.getvalue()
    assert ("\x1b" in screen.getvalue()) is is_drawn
    assert screen.getvalue().isascii() is (environment.get("LC_ALL") != "C.UTF-8")


def test_states_are_counted_in_the_order_of_a_life() -> None:
    counts = {"COMPLETED": 7, "RUNNING": 2, "FAILED": 0, "HELD": 1, "INITIAL": 30}
    assert told_counts(counts) == "1 HELD, 30 INITIAL, 2 RUNNING, 7 COMPLETED"
    assert (told_counts({"fenced": 1, "up": 2}), told_counts({})) == ("2 up, 1 fenced", "")


@pytest.mark.parametrize("width", [80, 140])
def test_a_progress_bar_fits_the_terminal_and_uses_it(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    from rmgr.client.progress import Counts, ProgressDisplay

    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm")
    screen = Terminal()
    with ProgressDisplay("a-name-that-is-much-longer-than-a-name-should-be", stream=screen) as display:
        display.update(Counts(total=1_000_000, final=123_456, failed=4_321))
    drawn = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue())
    lines = [line for line in re.split(r"[\r\n]+", drawn) if "123456" in line]
    assert lines
    assert "123456/1000000" in lines[-1]
    assert "4321 failed" in lines[-1]
    assert width - 2 <= len(lines[-1]) <= width


def test_a_terminal_that_was_closed_takes_no_wait_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    from rmgr.cli.session.errors import Terminated
    from rmgr.client.progress import ProgressDisplay

    class Closed(Terminal):
        is_closed = False

        def write(self, text: str) -> int:
            if self.is_closed:
                raise OSError(errno.EIO, "Input/output error")
            return super().write(text)

    monkeypatch.setenv("TERM", "xterm")
    screen = Closed()
    with pytest.raises(Terminated, match="SIGHUP"), ProgressDisplay("x", stream=screen):
        screen.is_closed = True
        raise Terminated(signal.SIGHUP)


def test_moments_in_the_words_of_a_daemon_are_shown_by_this_machines_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        told = here("held by root, an operator, since 2026-09-21T14:13:20Z (disk\tis full)")
        assert told == "held by root, an operator, since 2026-09-21 23:13:20 (disk is full)"
        assert here("v2026-09-21T14:13:20Zulu is a name") == "v2026-09-21T14:13:20Zulu is a name"
        assert here("2026-99-21T14:13:20Z is none") == "2026-99-21T14:13:20Z is none"
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_fold_leaves_commands_and_numbers_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    told = folded("if it is not to come: rmgr drain n2 --reason x, and 12 CANCELLED", Terminal(), indent=2)
    assert told.splitlines() == ["if it is not to come:", "  rmgr drain n2 --reason x,", "  and 12 CANCELLED"]
    assert folded("a (rmgr resume n1) " + "b" * 20, Terminal()).splitlines() == ["a (rmgr resume n1)", "b" * 20]
    assert folded("x" * 26 + "  rmgr", Terminal()).splitlines() == ["x" * 26, "rmgr"]


T0 = 1_790_000_000_000_000
S = 1_000_000


def job(number: int = 42, state: State = State.RUNNING, **fields: object) -> JobView:
    given: dict[str, object] = {"name": "train", "user": "ada", "queue": "default", "tasks": 1, "submitted_us": T0, **fields}
    return JobView(id=number, state=state, **given)  # type: ignore[arg-type]


def running(**fields: object) -> JobView:
    return job(started_us=T0, nodes=("n1",), **{"counts": {"RUNNING": 1}, **fields})


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
