"""`rmgr history purge` and `rmgr store du --by-user`, over a real SQLite file and without a cluster."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rmgr.adapters.sqlite.store import SqliteStore
from rmgr.cli import main
from rmgr.cli import store as store_usage
from rmgr.cli.submit.run import tell_end
from rmgr.cli.waiting import FollowedEnd
from rmgr.coord.protocol import keys
from rmgr.errors import PermissionDenied
from rmgr.model.states import State
from rmgr.model.views import JobView
from rmgr.procedures.history import history_rows

DAY_US = 86_400_000_000


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    """Submissions 1 to 10: the n-th ended (10 - n) days ago and an hour, odd ones are anna's, even ones ben's."""
    now_us = time.time_ns() // 1000
    with SqliteStore(tmp_path / "store.db") as opened:
        for number in range(1, 11):
            ended_us = now_us - (10 - number) * DAY_US - 3_600_000_000
            user = "anna" if number % 2 else "ben"
            view = JobView(id=number, name="x", user=user, queue="q", state=State.COMPLETED, ended_us=ended_us)
            opened.put_many(history_rows(view))
        yield opened


@pytest.fixture
def run(store: SqliteStore, bare_home: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def call(*words: str) -> tuple[int, str, str]:
        code = main.run([*words, "--store", f"sqlite:{bare_home / 'store.db'}"])
        out, error = capsys.readouterr()
        return code, out, error

    return call


def left(store: SqliteStore) -> list[int]:
    rows = [keys.parse_history(name) for name in store.keys(keys.history_prefix())]
    of_users = [keys.parse_history(name) for user in ("anna", "ben") for name in store.keys(keys.history_prefix(user))]
    assert sorted(rows) == sorted(of_users)
    return sorted(rows)


def test_purge_removes_what_ended_before_and_says_whose_it_was(store: SqliteStore, run: Callable[..., tuple[int, str, str]]) -> None:
    code, out, _ = run("history", "purge", "--older-than", "7d", "--dry-run")
    assert (code, out.split(" ended before ")[0], out.rsplit(": ", 1)[1]) == (0, "3", "would be removed (anna 2, ben 1)\n")
    assert left(store) == list(range(1, 11))
    code, out, _ = run("history", "purge", "--older-than", "7d", "--json")
    document = json.loads(out)
    assert {name: document[name] for name in ("schema", "found", "removed", "dry_run", "users")} == {
        "schema": "rmgr/1",
        "found": 3,
        "removed": 3,
        "dry_run": False,
        "users": [{"user": "anna", "submissions": 2}, {"user": "ben", "submissions": 1}],
    }
    assert left(store) == list(range(4, 11))
    assert run("history", "purge", "--before", "5d", "--user", "anna")[0] == 0
    assert left(store) == [4, 6, 7, 8, 9, 10]
    code, out, _ = run("history", "purge", "--older-than", "7d")
    assert (code, out.split(" ")[0]) == (0, "0"), "nothing to remove is no failure"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "one of --older-than and --before"),
        (("--older-than", "7d", "--before", "1d"), "one of --older-than and --before"),
        (("--older-than", "soon"), "is not a duration"),
        (("--before", "soon"), "neither a duration nor a date"),
    ],
)
def test_a_purge_without_one_clear_moment_is_refused(
    store: SqliteStore, run: Callable[..., tuple[int, str, str]], words: tuple[str, ...], told: str
) -> None:
    code, _, error = run("history", "purge", *words)
    assert code == 2
    assert told in error
    assert len(left(store)) == 10


def test_a_purge_is_for_operators(store: SqliteStore, run: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_session: Any, what: str) -> None:
        raise PermissionDenied(f"{what} is for operators")

    monkeypatch.setattr("rmgr.cli.control.operate.for_operators", refuse)
    assert run("history", "purge", "--older-than", "7d")[0] == 4
    assert len(left(store)) == 10


def test_help_and_misplaced_words_lead_to_the_command(run: Callable[..., tuple[int, str, str]]) -> None:
    assert "history purge --older-than 90d" in run("history", "--help")[1]
    code, out, _ = run("history", "purge", "--help")
    assert code == 0
    assert "Exit codes:" in out
    code, out, _ = run("history", "--json", "purge")
    assert code == 2
    assert "rmgr history purge --older-than" in json.loads(out)["error"]["hint"]


def test_du_by_user_tells_whose_work_the_rows_belong_to(store: SqliteStore, run: Callable[..., tuple[int, str, str]]) -> None:
    store.put(keys.log(1, 0, 1, "stdout", 0), bytes(100_000))
    store.put(keys.output(3, 0, 1), bytes(50_000))
    store.put(keys.log(2, 0, 1, "stdout", 0), bytes(20_000))
    store.put(keys.log(77, 0, 1, "stdout", 0), bytes(7))
    store.put(keys.named("x"), b"12345")
    code, out, _ = run("store", "du", "--by-user", "--json")
    document = json.loads(out)
    sums = {row["user"]: row["values"] for row in document["users"]}
    assert code == 0
    assert sums == {"anna": 2 + 5, "ben": 1 + 5, "(shared)": 10 + 1, "(unknown)": 1}
    assert [row["user"] for row in document["users"]][:2] == ["anna", "ben"], "the largest first"
    assert document["bytes"] == store.usage()[1]
    header, first, *_ = run("store", "du", "--by-user")[1].splitlines()
    assert header.split() == ["VALUES", "SIZE", "USER"]
    assert first.split()[0::2] == ["7", "anna"]
    assert run("store", "du", "--by-user", "a/")[0] == run("store", "du", "--by-user", "--all")[0] == 2


def test_every_family_of_rows_has_a_name_in_du() -> None:
    table = {line.split("`")[1].partition("/")[0] for line in (keys.__doc__ or "").splitlines() if line.startswith("| `")}
    assert {family.rstrip("/") for family in store_usage.FAMILIES} == table


def test_a_value_with_a_time_to_live_expires(
    store: SqliteStore, run: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("store", "put", "a", "--value", "1", "--ttl", "2d")[0] == run("store", "put", "b", "--value", "2")[0] == 0
    assert store.keys("name/") == [keys.named("a"), keys.named("b")]
    real = time.time
    with monkeypatch.context() as later:
        later.setattr(time, "time", lambda: real() + 3 * 86_400)
        assert store.keys("name/") == [keys.named("b")]
    assert run("store", "put", "a", "--value", "1", "--ttl", "0")[0] == 2


def test_names_that_somebody_wrote_into_the_history_do_not_steer_the_terminal(
    store: SqliteStore, run: Callable[..., tuple[int, str, str]]
) -> None:
    ended_us = time.time_ns() // 1000 - 100 * DAY_US
    store.put_many(history_rows(JobView(id=99, name="x", user="eve\x1b[2J", queue="q", state=State.COMPLETED, ended_us=ended_us)))
    code, out, _ = run("history", "purge", "--older-than", "50d", "--dry-run")
    assert code == 0
    assert "eve" in out
    assert "\x1b" not in out


def test_errors_and_nodes_of_tasks_do_not_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    end = FollowedEnd(
        submission=1, position=0, index=0, state=State.FAILED, reason="X", exit_code=None, node="n\x1b[1m", attempt=1, error="\x1b[2J"
    )
    tell_end(end)
    told = capsys.readouterr().out
    assert "  n\\x1b[1m  " in told
    assert "  \\x1b[2J" in told
