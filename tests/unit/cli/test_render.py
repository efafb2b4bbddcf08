"""Tables: columns that fit, are chosen, sorted, dropped; text of others that cannot steer a terminal."""

from __future__ import annotations

import io
import json
import math
import re

import pytest

from rmgr.cli.display import render
from rmgr.cli.display.render import Column, Layout, folded, table, told_counts, width_of
from rmgr.errors import UsageError

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
    names = ("JOBID", "NAME", "USER", "QUEUE", "STATE", "NODES(REASON)")
    row = {"JOBID": "42", "NAME": "n" * 60, "USER": "u" * 20, "QUEUE": "q" * 20, "STATE": "INITIAL", "NODES(REASON)": reason}
    columns = [
        Column(name=name, text=lambda item, name=name: item[name], is_id=name == "JOBID", state=name == "STATE") for name in names
    ]
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
    with ProgressDisplay("x", stream=screen) as display:
        display._drawn_s = -math.inf
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
