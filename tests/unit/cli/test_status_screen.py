"""`rmgr status` as an operator reads it: health and its start, load, users; then things to do and things to know."""

from __future__ import annotations

import time
from collections.abc import Iterator

import msgspec
import pytest

from rmgr.cli.display import render
from rmgr.cli.listing import cluster
from rmgr.model.views import Level, PartView, StatusView
from tests.unit.cli.test_golden import NOW, STATUS


@pytest.fixture(autouse=True)
def tokyo(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Not UTC, so that a time that was not made local shows."""
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    monkeypatch.setattr(cluster, "now_us", lambda: NOW)
    yield
    monkeypatch.undo()
    time.tzset()


def drawn(view: StatusView, capsys: pytest.CaptureFixture[str]) -> list[str]:
    cluster.draw_status(view)
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(
    ("fix", "told"),
    [
        ("start its Starter on vm; if it is lost: rmgr drain n2", "rmgr dev start n2; if it is lost: rmgr drain n2"),
        ("start its Starter, and rmgr resume n2", "rmgr dev start n2, and rmgr resume n2"),
        ("rmgr resume n2", "rmgr resume n2"),
    ],
)
def test_a_starter_of_rmgr_dev_is_started_by_a_command(fix: str, told: str) -> None:
    assert cluster.in_dev(fix, "n2") == told


def test_the_screen(capsys: pytest.CaptureFixture[str]) -> None:
    away = PartView(
        kind="store", id="", state="away", reason="away since 2026-09-21T15:00:00Z: disk full", fix="rmgr doctor", told="store: disk full"
    )
    alone = PartView(kind="watchdogs", id="", state="alone", reason="one WatchDog alone", fix="rmgr watchdog", level=Level.WARNING)
    view = msgspec.structs.replace(STATUS, parts=(away, alone), warnings=("one WatchDog alone",))
    assert drawn(view, capsys) == [
        "NOT HEALTHY since 2026-09-21 23:14:20 (1h1m5s)",
        "leader     on h1, pid 99 since 2026-09-21 23:13:20 (1h2m5s)",
        "watchdogs  2",
        "zookeeper  ok  h1:2181",
        "store      NOT OK  sqlite:/srv/store.db",
        "nodes      1 up, 1 draining, 1 fenced",
        "cores      20 of 32 busy",
        "memory     8.0G of 64G asked for",
        "tasks      1 HELD, 60 INITIAL, 3 RUNNING, 35 COMPLETED, 2 FAILED",
        "waiting    60 tasks, the oldest since 2026-09-21 23:13:21 (1h2m4s)",
        "users      ada 14 cores, ben 2, others 4",
        "placing    mine, easy in partition default; 120 passes, the last 1.5ms",
        "DO         store: disk full",
        "        -> rmgr doctor",
        "NOTE       one WatchDog alone",
        "        -> rmgr watchdog",
        "NOTE       policy mine of partition default was skipped 2 times, the last time: ZeroDivisionError: division by zero",
    ]


def test_an_empty_cluster_without_a_leader_says_little(capsys: pytest.CaptureFixture[str]) -> None:
    view = StatusView(healthy=False, leader=None, zookeeper={"ok": True}, store={"ok": True}, counts={}, nodes={}, cluster_id="c0ffee")
    lines = drawn(view, capsys)
    assert lines == [
        *("NOT HEALTHY", "leader     none", "watchdogs  0", "zookeeper  ok", "store      ok", "nodes      none", "tasks      none")
    ]
    assert "c0ffee" not in "".join(lines), "nobody reads hexadecimal numbers"


def test_names_of_others_steer_no_terminal_and_many_are_summed(capsys: pytest.CaptureFixture[str]) -> None:
    users = {f"u{n}": 100 - n for n in range(12)} | {"a\x1b[31m\nb": 1000}
    told = next(line for line in drawn(msgspec.structs.replace(STATUS, users=users), capsys) if line.startswith("users"))
    assert told.startswith("users      a\\x1b[31m b 1,000 cores, u0 100, u1 99")
    assert told.endswith("u6 94, others 455")
    assert render.printable(told) == told
