"""Options of placed jobs on the command line and in scripts: their meaning, and contradictions."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest

from rmgr.cli.session import Session
from rmgr.cli.submit.submit import read_work, submit
from rmgr.cli.words.params import parse_begin, parse_nodes
from rmgr.client.commands.request import CommandOptions
from rmgr.errors import UsageError
from rmgr.model.submission import Rigid


def options(*words: str) -> CommandOptions:
    session = Session()
    with submit.make_context("submit", list(words), obj=session) as ctx:
        values = dict(ctx.params)
        return read_work(ctx, session, values, values.pop("words"), dashes="--" in words).options


@pytest.mark.parametrize(
    ("words", "rigid"),
    [
        ("-n 1 -N 1", None),
        ("--kill-on-bad-exit", None),
        ("-n 4", Rigid(processes=4)),
        ("-N 3", Rigid(processes=3, nodes=3)),
        ("-n 7 -N 2", Rigid(processes=7, nodes=2)),
        ("-n 4 -N 1", Rigid(processes=4, nodes=1)),
        ("--exclusive", Rigid(exclusive=True)),
        ("-n 2 --kill-on-bad-exit", Rigid(processes=2, kill_on_bad_exit=True)),
        ("--nodelist n[1-2],m --exclude x", Rigid(nodelist=("n1", "n2", "m"), exclude=("x",))),
        ("--checkpoint-every 10m", Rigid(checkpoint_every_us=600_000_000)),
        ("--checkpoint-grace 2m --restart-from start", Rigid(checkpoint_grace_us=120_000_000, restart="start")),
        ("--restart-from checkpoint", None),
        ("--begin 2001-01-01", None),
    ],
)
def test_options_become_the_shape_of_a_job(words: str, rigid: Rigid | None) -> None:
    assert options(*words.split(), "--", "true").rigid == rigid


def test_lines_of_a_script_are_the_same_options_and_the_command_line_wins(tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/sh\n#RMGR -n 8 -N 4 --exclusive --no-requeue\n#RMGR --partition far --gpus 2\nhostname\n")
    asked = options("-N", "2", str(script))
    assert asked.rigid == Rigid(processes=8, nodes=2, exclusive=True)
    assert (asked.resubmit, asked.partition, asked.resources) == (False, "far", (("gpu", 2),))


def test_requeue_and_gpus_are_other_names() -> None:
    assert [options(*words.split(), "--", "true").resubmit for words in ("--requeue", "--no-requeue", "--no-resubmit")] == [
        True, False, False
    ]
    assert options("--gpus", "1", "--resource", "licence=2", "--", "true").resources == (("licence", 2), ("gpu", 1))
    assert options("--gpus", "1", "--", "true").rigid is None


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("-n 2 -N 3", "-N 3 nodes are more than -n 2 processes"),
        ("--no-resubmit --requeue", "contradict each other"),
        ("--gpus 1 --resource gpu=2", "contradict each other"),
        ("--nodelist a,b --exclude b", "b: both in --nodelist and in --exclude"),
        ("--nodelist a -N 2", "--nodelist names only 1"),
        ("--begin whenever", "--begin: 'whenever' is not a time to begin at"),
        ("--begin 25:00", "no time of day"),
        ("--nodelist n[3-1]", "is no list of nodes"),
        ("--nodelist a,,b", "is no list of nodes"),
    ],
)
def test_what_contradicts_itself_is_refused(words: str, told: str) -> None:
    with pytest.raises(UsageError) as caught:
        options(*words.split(), "--", "true")
    assert told in caught.value.message
    assert caught.value.hint


def test_a_wrong_line_of_a_script_is_told_with_its_number(tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/sh\n#RMGR -n 2\n#RMGR --begin never\n")
    with pytest.raises(UsageError, match=r"job\.sh:3: .*'never'"):
        options(str(script))


def test_times_to_begin_at() -> None:
    now = datetime(2026, 11, 30, 12, 0).astimezone().timestamp()

    def told(text: str) -> str:
        begin_us = parse_begin(text, now)
        return datetime.fromtimestamp(begin_us / 1e6).isoformat(timespec="minutes") if begin_us else "at once"

    texts = ("now+30m", "2h", "16:00", "09:30", "tomorrow", "2026-12-01", "2026-12-01T08:15", "2026-11-29", "now")
    assert [told(text) for text in texts] == [
        "2026-11-30T12:30", "2026-11-30T14:00", "2026-11-30T16:00", "2026-12-01T09:30", "2026-12-01T00:00", "2026-12-01T00:00",
        "2026-12-01T08:15", "at once", "at once",
    ]  # fmt: skip
    assert parse_begin("2026-11-30T12:00:01+00:00", 0) == 1_796_040_001_000_000


def test_lists_of_nodes() -> None:
    assert parse_nodes("n[08-10],m,n09") == ("n08", "n09", "n10", "m")
    assert parse_nodes("rack[1,3]-a") == ("rack1-a", "rack3-a")
    for bad in ("n[1-" + "9" * 5000 + "]", "n[3-1]", "n[--]", "n[1,,2]", ","):
        with pytest.raises(UsageError, match="is no list of nodes"):
            parse_nodes(bad)


@pytest.mark.parametrize(
    ("line", "hint"), [("--nice=100", "--priority=-100"), ("--exclusive=user", "this job alone"), ("--gpus a100:2", "--gpus=2")]
)
def test_options_of_slurm_in_our_lines_are_answered_as_on_the_command_line(tmp_path: Path, line: str, hint: str) -> None:
    script = tmp_path / "job.sh"
    script.write_text(f"#!/bin/sh\n#RMGR {line}\n")
    with pytest.raises(UsageError, match=r"job\.sh:2: ") as caught:
        options(str(script))
    assert hint in caught.value.hint
