"""What `rmgr history` lists of what is named; empty lists say what was looked for: a filter that nothing passes is no empty cluster."""

from __future__ import annotations

import getpass
import json
import os
from pathlib import Path

import msgspec
import pytest

from rmgr.adapters.sqlite.store import SqliteStore
from rmgr.cli.listing import work
from rmgr.cli.main import run
from rmgr.cli.words.selectors import Filter
from rmgr.model.base.states import State
from rmgr.model.views import JobView
from rmgr.procedures.history import history_rows

ENDED = JobView(
    id=1,
    user="ann",
    name="j1",
    queue="default",
    state=State.COMPLETED,
    submitted_us=1_000_000,
    started_us=2_000_000,
    ended_us=3_000_000,
    tasks=1,
    counts={"COMPLETED": 1},
)


def test_a_filter_that_no_job_passes_is_named() -> None:
    of_ann = Filter(name="x*", user="ann")
    assert work.nothing_listed(Filter(), ended=False, everyone=False) == (
        "nothing waits or runs; -a shows what has ended; -A shows everyone's"
    )
    assert work.nothing_listed(of_ann, ended=False, everyone=False) == "nothing waits or runs that matches; -a shows what has ended"
    assert work.nothing_listed(of_ann, ended=True, everyone=False) == (
        "nothing is in memory that matches; rmgr history lists what ended earlier"
    )
    assert work.nothing_listed(Filter(), ended=True, everyone=True) == "nothing is in memory; rmgr history lists what ended earlier"


@pytest.fixture
def history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store with two submissions of ann and one of whoever runs this, which have ended; nothing else is configured."""
    for name in [name for name in os.environ if name.startswith(("RMGR_", "XDG_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    path = tmp_path / "store.db"
    with SqliteStore(path) as store:
        for number, user in ((1, "ann"), (5, "ann"), (3, getpass.getuser())):
            store.put_many(history_rows(msgspec.structs.replace(ENDED, id=number, user=user)))
    return path


@pytest.mark.parametrize(
    ("words", "ids"),
    [
        (["5", "1"], ["5", "1"]),
        (["1-9"], ["5", "3", "1"]),
        (["last"], ["3"]),
        (["1-5", "--limit", "1"], ["5"]),
        (["1-500", "-u", "ann"], ["5", "1"]),
    ],
)
def test_what_is_named_is_listed(words: list[str], ids: list[str], history: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["history", *words, "--json", "--store", f"sqlite:{history}"]) == 0
    assert [job["id"] for job in json.loads(capsys.readouterr().out)["history"]] == ids


def test_what_is_named_and_not_there_is_said(history: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["history", "5", "4", "--store", f"sqlite:{history}"]) == 3
    assert "4 is not in the history" in capsys.readouterr().err


@pytest.mark.parametrize("words", [("--state", "failed"), ("--since", "1s"), ("-u", "zoe")])
def test_a_filter_that_nothing_in_the_history_passes_is_no_empty_history(
    words: tuple[str, ...], history: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    everyone = () if "-u" in words else ("-A",)
    assert run(["history", *everyone, *words, "--store", f"sqlite:{history}"]) == 0
    told = capsys.readouterr().err
    assert "nothing that matches has ended" in told
    assert "yet" not in told
    assert "-A" not in told
