"""`rmgr report` prints exact figures from fabricated histories, by windows and days, over a real SQLite file without a cluster."""

from __future__ import annotations

import csv
import io
import json
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rmgr.adapters.sqlite.store import SqliteStore
from rmgr.cli import main
from rmgr.cli.listing import report as command
from rmgr.cli.listing.report import Days, Report, Wanted, core_us
from rmgr.coord.decisions.progress import Progress
from rmgr.model.base import Request
from rmgr.model.block import Fragment, Outcome, PastAttempt
from rmgr.model.states import Reason, State
from rmgr.model.submission import Rigid, Submission, Tail, Work
from rmgr.model.units import percentile
from rmgr.model.views import JobView
from rmgr.procedures.history import history_rows, summary

HOUR = 3_600_000_000
DAY0 = 1_772_323_200_000_000  # 2026-03-01T00:00:00Z
DAY1 = DAY0 + 24 * HOUR


def a_job(number: int, user: str, begin: float, end: float, *, waited: float = 0.0, core_hours: float = 0.0, **fields: Any) -> JobView:
    """Hours since DAY0; begin = end: it never started."""
    started = DAY0 + round(begin * HOUR) if begin < end else 0
    known: dict[str, Any] = {
        "name": f"j{number}",
        "queue": "batch",
        "state": State.COMPLETED,
        "submitted_us": DAY0 + round((begin - waited) * HOUR),
        "started_us": started,
        "ended_us": DAY0 + round(end * HOUR),
        "tasks": 1,
        "counts": {"COMPLETED": 1},
    } | fields
    width = known.get("cores", 1) * known.get("processes", 1)
    return JobView(id=number, user=user, run_us=round(core_hours * HOUR / width), **known)


JOBS = [
    a_job(
        1, "ann", 10, 12, waited=0.5, core_hours=8, cores=2, cpu_us=6 * HOUR, account="physics", queue="default", state=State.FAILED,
        tasks=2, counts={"COMPLETED": 1, "FAILED": 1}, lost=1, max_rss_kib=1000,
    ),
    a_job(2, "ben", 22, 28, waited=2, core_hours=24, processes=4, cpu_us=12 * HOUR, max_rss_kib=5000),  # over midnight
    a_job(3, "ann", 29, 29, waited=1, account="physics", state=State.CANCELLED, counts={"CANCELLED": 1}),
    a_job(4, "ann", 24, 25, core_hours=1, cpu_us=HOUR // 2, account="chemistry", max_rss_kib=2000),
]


class Shell:
    def __init__(self, path: Path, capture: pytest.CaptureFixture[str]) -> None:
        self.path = path
        self.error = ""
        self.capture = capture

    def __call__(self, *words: str, code: int = 0) -> str:
        self.capture.readouterr()
        found = main.run(["report", *words, "--store", f"sqlite:{self.path}"])
        out, self.error = self.capture.readouterr()
        assert found == code, self.error
        return out

    def json(self, *words: str, code: int = 0) -> Any:
        return json.loads(self(*words, "--json", code=code))


@pytest.fixture
def fill(tmp_path: Path) -> Iterator[Callable[[list[JobView]], None]]:
    with SqliteStore(tmp_path / "store.db") as store:

        def put(jobs: list[JobView]) -> None:
            store.put_many([row for job in jobs for row in history_rows(job)])

        yield put


@pytest.fixture
def shell(
    fill: Callable[[list[JobView]], None], bare_home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Shell]:
    monkeypatch.setattr(command, "cluster_cores", lambda _session: 8)
    fill(JOBS)
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        yield Shell(bare_home / "store.db", capsys)
    time.tzset()


UNTIL = ("--until", "2026-03-03")


def test_usage_by_user_and_account_is_exact(shell: Shell) -> None:
    told = shell.json(*UNTIL)
    assert (told["schema"], told["by"], told["since"], told["until"]) == (
        "rmgr/1",
        ["user", "account"],
        "2026-03-01T09:30:00.000Z",
        "2026-03-03T00:00:00.000Z",
    )
    rows = [(row["user"], row["account"], row["jobs"], row["tasks"], row["failed"], row["cancelled"], row["lost"]) for row in told["rows"]]
    assert rows == [
        ("ben", "", 1, 1, 0, 0, 0),
        ("ann", "physics", 2, 3, 1, 1, 1),
        ("ann", "chemistry", 1, 1, 0, 0, 0),
    ]
    used = [(row["core_seconds"], row["cpu_seconds"], row["max_rss_bytes"]) for row in told["rows"]]
    assert used == [
        (24 * 3600, 12 * 3600, 5000 * 1024),
        (8 * 3600, 6 * 3600, 1000 * 1024),
        (3600, 1800, 2000 * 1024),
    ]
    assert (told["total"]["jobs"], told["total"]["core_seconds"]) == (4, 33 * 3600)
    assert told["cluster"] == {"cores": 8, "core_seconds": 38.5 * 8 * 3600}
    assert told["total"]["utilisation"] == 33 / (38.5 * 8)


def test_waits_are_percentiles_of_what_started(shell: Shell) -> None:
    assert shell.json()["waits"] == [
        {"queue": "batch", "jobs": 2, "p50": 0.0, "p90": 7200.0, "p99": 7200.0, "max": 7200.0},
        {"queue": "default", "jobs": 1, "p50": 1800.0, "p90": 1800.0, "p99": 1800.0, "max": 1800.0},
    ]
    ascending = list(range(1, 101))
    assert [percentile(ascending, percent) for percent in (1, 50, 90, 99, 100)] == [1, 50, 90, 99, 100]
    assert [percentile([7], percent) for percent in (0, 50, 99)] == [7, 7, 7]


def test_a_job_over_midnight_is_divided_between_its_days_and_counted_where_it_ended(shell: Shell) -> None:
    told = shell.json("--by", "day", *UNTIL)
    assert [(row["day"], row["jobs"], row["core_seconds"] / 3600, row["cpu_seconds"] / 3600) for row in told["rows"]] == [
        ("2026-03-01", 1, 16.0, 10.0),
        ("2026-03-02", 3, 17.0, 8.5),
    ]
    assert [row["utilisation"] for row in told["rows"]] == [16 / (14.5 * 8), 17 / (24 * 8)]


def test_a_window_cuts_what_was_used_and_counts_what_ended_in_it(shell: Shell) -> None:
    first, second = shell.json("--by", "user", "--until", "2026-03-02"), shell.json("--by", "user", "--since", "2026-03-02", *UNTIL)
    assert [(row["user"], row["jobs"], row["core_seconds"] / 3600) for row in first["rows"]] == [("ann", 1, 8.0), ("ben", 0, 8.0)]
    assert [(row["user"], row["jobs"], row["core_seconds"] / 3600) for row in second["rows"]] == [("ben", 1, 16.0), ("ann", 2, 1.0)]
    assert second["cluster"]["core_seconds"] == 24 * 8 * 3600
    only = shell.json("--account", "physics", "--user", "ann", "--by", "queue")
    assert [(row["queue"], row["jobs"]) for row in only["rows"]] == [("default", 1), ("batch", 1)]


def test_tables_are_aligned_and_days_are_local(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    lines = shell("--by", "day,user", "--since", "2026-03-01", *UNTIL).splitlines()
    assert lines[:5] == [
        "DAY         USER  JOBS  TASKS  FAILED  LOST  CPUHOURS  COREHOURS   UTIL  MAXRSS",
        "2026-03-01  ann      1      2       1     1     6.000      8.000   4.2%   1000K",
        "2026-03-02  ben      1      1       0     0    12.000     24.000  12.5%    4.9M",
        "2026-03-02  ann      2      2       0     0     0.500      1.000   0.5%    2.0M",
        "",
    ]
    assert lines[5].split() == ["QUEUE", "STARTED", "WAIT", "P50", "WAIT", "P90", "WAIT", "P99", "MAX"]
    assert lines[-1] == "33.000 core hours used by 4 submissions from 2026-03-01 00:00:00 to 2026-03-03 00:00:00, 8.6% of what 8 cores have"


def test_comma_separated_values_have_the_same_numbers(shell: Shell) -> None:
    rows = list(csv.DictReader(io.StringIO(shell("--by", "user", "--csv", *UNTIL))))
    assert [(row["user"], row["jobs"], float(row["core_seconds"])) for row in rows] == [("ben", "1", 86400.0), ("ann", "3", 32400.0)]
    assert "two formats" in shell.json("--csv", code=2)["error"]["message"]


def test_what_cannot_be_told_is_said(shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert shell("--user", "zoe") == ""
    assert "the history is empty: nothing has ended yet of user zoe" in shell.error
    assert shell("--since", "2026-03-05", "--until", "2026-03-06") == ""
    assert "nothing of the 4 submissions" in shell.error
    assert shell.json("--user", "zoe")["rows"] == []
    assert "did you mean 'user'" in shell.json("--by", "users", code=2)["error"]["hint"]
    assert "not before" in shell.json("--since", "1d", "--until", "2d", code=2)["error"]["message"]
    monkeypatch.setattr(command, "cluster_cores", lambda _session: 0)
    told = shell.json()
    assert (told["cluster"], told["total"]["utilisation"]) == (None, None)
    away = Shell(tmp_path / "nowhere" / "store.db", shell.capture)
    assert away.json(code=5)["error"]["code"] == "UNAVAILABLE"


def test_days_and_windows_add_up_to_the_whole_to_the_microsecond() -> None:
    rng = random.Random(7)
    jobs = []
    for number in range(200):
        begin = rng.randrange(DAY0, DAY0 + 90 * HOUR)
        jobs.append(
            JobView(
                id=number, name="j", user="u", queue="q", state=State.COMPLETED, submitted_us=begin, started_us=begin,
                ended_us=begin + rng.choice((1, 7, 999_999, 50 * HOUR + 1)), run_us=rng.randrange(1 << 45), cpu_us=rng.randrange(1 << 45),
                cores=3,
            )
        )

    def of(**wanted: Any) -> Report:
        made = Report(wanted=Wanted(by=("day",), **wanted), days=Days())
        for job in jobs:
            made.add(job)
        return made

    whole = of()
    assert sum(row.core_us for row in whole.rows()) == whole.total.core_us == sum(3 * job.run_us for job in jobs)
    assert sum(row.cpu_us for row in whole.rows()) == sum(job.cpu_us for job in jobs)
    cut = DAY0 + 33 * HOUR + 12_345_678
    before, after = of(until_us=cut), of(since_us=cut)
    assert before.total.core_us + after.total.core_us == whole.total.core_us
    assert before.total.jobs + after.total.jobs == whole.total.jobs == 200


def test_what_shared_its_cores_in_time_is_charged_for_what_it_had_of_them() -> None:
    progress = Progress()
    served = Outcome(0, State.COMPLETED, elapsed_us=4_000, served_us=1_000, turns=2)
    lost = Outcome(1, State.FAILED, reason=Reason.NODE_LOST, elapsed_us=900, served_us=300, turns=1)
    alone = Outcome(2, State.COMPLETED, elapsed_us=50)
    progress.account(Fragment(node="n1", base_us=DAY0), (served, lost, alone))
    assert (progress.run_us, progress.lost_us, progress.served_us) == (1_050, 300, 1_300)


def test_lost_attempts_are_counted_with_the_time_that_they_ran() -> None:
    progress = Progress()
    progress.tail = Tail(next=2, complete=True)
    past = (
        PastAttempt(1, "n1", Reason.NODE_LOST, started_us=DAY0, ended_us=DAY0 + 5),
        PastAttempt(2, "n2", Reason.MIGRATED, started_us=DAY0 + 10, ended_us=DAY0 + 20, cpu_us=7, max_rss_kib=9),
    )
    ended = Outcome(0, started_us=0, elapsed_us=100, cpu_us=90, max_rss_kib=8, attempt=3, past=past)
    lost = Outcome(1, State.FAILED, reason=Reason.NODE_LOST)
    progress.apply(0, Fragment(node="n3", base_us=DAY0 + 30, outcomes=(ended,)), (ended,))
    progress.apply(1, Fragment(outcomes=(lost,)), (lost,))
    assert (progress.run_us, progress.lost_us, progress.lost, progress.first_started_us) == (110, 5, 2, DAY0)
    assert (progress.cpu_us, progress.max_rss_kib) == (97, 9)
    pulled = Submission(id=1, name="n", user="ann", queue="default", work=Work.COMMAND, account="physics")
    placed = replace(pulled, rigid=Rigid(processes=3), request=Request(cores=2))
    views = [summary(record, progress, now_us=DAY1) for record in (pulled, placed)]
    assert [(view.account, view.run_us, core_us(view), view.lost) for view in views] == [("physics", 110, 110, 2), ("physics", 115, 690, 2)]
