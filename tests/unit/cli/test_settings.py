"""Cluster settings as TOML: there and back, and errors that name file, line and the nearest key."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rmgr.cli.control.settings import differences, parse_settings, to_document, to_toml
from rmgr.cli.submit.submit import doubts, parse_env
from rmgr.cli.words.params import parse_after, parse_resource, parse_states
from rmgr.client.commands.request import CommandOptions
from rmgr.daemons.leader.placement.pipeline import named
from rmgr.errors import ConfigError, UsageError
from rmgr.model.queue import ClusterSettings, Dispatch, PipelineSpec, QueueSpec, UserLimits
from rmgr.model.states import State
from rmgr.model.submission import Condition, Dependency

BATCH = "[queues.default]\n[queues.batch]\ndispatch = 'place'\n"
FULL = ClusterSettings(
    queues=(
        QueueSpec(name="default", order="fifo"),
        QueueSpec(
            name="fast.one", partition="p2", dispatch=Dispatch.PLACE, state="closed", default_time_us=90_000_000,
            max_time_us=1_234_567_890_123, max_memory_bytes=3 << 30, users=("ada", "bob"), backfill_pull=True,
        ),
    ),
    default_queue="fast.one",
    grace_us=1_500_000,
    mass_loss_share=0.25,
    operators=("root",),
    extra={"a": 'b"c'},
)


CLASSES = '{"queue": [{"max_cpus": 8, "name": "small"}], "stage": [{"policy": "queue_select"}, {"partitions": ["p2"], "policy": "easy"}]}'
PLACED = replace(
    FULL,
    queues=(*FULL.queues, QueueSpec(name="batch", dispatch=Dispatch.PLACE)),
    pipelines=(
        PipelineSpec(partition="default", name="fair_share", document='{"stage": [{"policy": "fair_share", "shares": {"a.b": 3}}]}'),
        PipelineSpec(partition="p2", name="classes.toml", document=CLASSES),
    ),
)


ODD_NAMES = replace(FULL, limits=UserLimits(cores_of={"\U0001f600 \\ud83d": 3, "del\x7f": 1}))


@pytest.mark.parametrize("settings", [ClusterSettings(), FULL, PLACED, ODD_NAMES])
def test_settings_survive_the_way_through_a_file(settings: ClusterSettings) -> None:
    assert parse_settings(to_toml(settings), "c.toml") == settings


def test_people_write_durations_and_sizes() -> None:
    text = 'retention = "2h"\n[queues.default]\nmax_time = "1h30m"\nmax_memory = "2G"\ndefault_time = 90\n'
    settings = parse_settings(text, "c.toml")
    assert settings.retention_us == 7_200_000_000
    queue = settings.queues[0]
    assert (queue.max_time_us, queue.max_memory_bytes, queue.default_time_us) == (5_400_000_000, 2 << 30, 90_000_000)


@pytest.mark.parametrize(
    ("text", "told", "hint"),
    [
        ("[queues.default]\nmax_tim = 1\n", "c.toml:2: unknown key 'max_tim' in section [queues.default]", "'max_time'"),
        ("[queues.default]\norder = 'fari'\n", "c.toml:2: there is no order 'fari', only fair and fifo", "'fair'"),
        ("[queues.b]\ndispatch = 'place'\norder = 'fifo'\n", "c.toml:3: order is of queues that Starters pull", "policy = "),
        ("\nretentoin = 1\n[queues.default]\n", "c.toml:2: unknown key 'retentoin'", "'retention'"),
        ("[queues.default]\n\n[queues.b]\nmax_time = '1x'\n", "c.toml:4: max_time = '1x' is not valid", "1h30m"),
        ("[queues.default]\nmax_time = inf\n", "c.toml:2: max_time = inf is not valid", ""),
        ("[queues.default]\nmax_time = -5\n", "c.toml:2: max_time = -5 is not valid", "36525d at most"),
        ("[queues.default]\nmax_cores = -4\n", "c.toml:2: max_cores = -4 is not valid", ""),
        ("mass_loss_share = nan\n[queues.default]\n", "c.toml:1: mass_loss_share = nan is not valid", ""),
        ("[queues.default]\nmax_cores = 'x'\n", "c.toml:2: max_cores = 'x' is not valid", ""),
        ("[queues.default]\nstate = 'opn'\n", "c.toml:2: there is no queue state 'opn'", "'open'"),
        ("[queues.default]\ndispatch = 'psuh'\n", "c.toml:2: dispatch = 'psuh' is not valid", "known: place, pull"),
        ("[queues.default]\ndispatch = 'plac'\n", "c.toml:2: dispatch = 'plac' is not valid", "did you mean 'place'?"),
        ("default_queue = 'x'\n[queues.y]\n", "c.toml:1: the default queue 'x' is not among the queues", "y"),
        ("[queues.default]\n[queues.'a b']\n", "'a b' cannot be the name of a queue", "letters"),
        ("[queues.default]\ndefault_time = 20\nmax_time = 10\n", "c.toml:2: default_time is above max_time", "shorter"),
        ("[queues.default]\npolicy = 'easy'\n", "c.toml:2: queue default is pulled by Starters", "place"),
        ("[queues.default]\ndispatch = 'place'\npolicy = 'esay'\n", "c.toml:1: partition default, policy esay: [[stage]] 1 (esay)", "easy"),
        (
            f"{BATCH}[pipelines.default]\npolicy = 'esay'\n",
            "c.toml:4: partition default, policy esay: [[stage]] 1 (esay): no policy is called 'esay'; did you mean easy?",
            "",
        ),
        (f"{BATCH}[pipelines.default]\npolicy = 'easy'\nparameters = {{ordr = 1}}\n", "no parameter of easy is called 'ordr'", "order"),
        (f"{BATCH}[pipelines.default]\npolicy = 'easy'\nstage = []\n", "has policy and stage", "policy, or stage"),
        (f"{BATCH}[pipelines.default]\nstage = [{{policy = './my.py'}}]\n", "the WatchDogs cannot have it", "entry point"),
        (f"{BATCH}[pipelines.x]\npolicy = 'easy'\n", "c.toml:4: no queue places jobs in partition x", "default"),
        (
            f"{BATCH}[pipelines.default]\nstage = [{{policy = 'easy', partitions = ['x']}}]\n",
            "no [[stage]] serves partition default",
            "leave",
        ),
        ("retention = 1\n", "there is no queue", "[queues.default]"),
        ('\nlog_retention = "7000d"\n[queues.default]\n', "c.toml:2: log_retention is longer than 19 years", "0 keeps logs for ever"),
        ("x = [\n", "not valid TOML", ""),
    ],
)
def test_mistakes_name_file_line_and_the_nearest(text: str, told: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_settings(text, "c.toml")
    assert told in caught.value.message
    assert hint in caught.value.hint


def test_differences_are_told_by_key() -> None:
    changed = replace(FULL, grace_us=2_000_000, queues=FULL.queues[:1], default_queue="default")
    told = {key: (old, new) for key, old, new in differences(FULL, changed)}
    assert told["grace_s"] == (1.5, 2.0)
    assert told["queues.fast.one.state"] == ("closed", None)
    assert differences(FULL, FULL) == []
    assert to_document(FULL)["queues"]["fast.one"]["max_time_s"] == 1234567.890123


def test_a_pipeline_is_told_by_partition() -> None:
    assert to_document(PLACED)["pipelines"]["default"] == {"policy": "fair_share", "shares": {"a.b": 3}}
    changes = differences(PLACED, replace(PLACED, pipelines=(named("default", "easy", {"order": "sjf"}), *PLACED.pipelines[1:])))
    assert ("pipelines.default.policy", "fair_share", "easy") in changes
    assert ("pipelines.default.parameters.order", None, "sjf") in changes


def test_dependencies_in_our_words_and_slurms() -> None:
    ok, any_, fail = Condition.OK, Condition.ANY, Condition.FAIL
    assert parse_after("ok:12,any:13,fail:14") == tuple(
        Dependency(condition=condition, submission=number) for condition, number in ((ok, 12), (any_, 13), (fail, 14))
    )
    assert parse_after("afterok:1:2,3") == tuple(Dependency(condition=ok, submission=number) for number in (1, 2, 3))
    for bad in ("", "ok:", "ok:x", "soon:1", "ok:1,,2"):
        with pytest.raises(UsageError, match="is not a dependency"):
            parse_after(bad)


@pytest.mark.parametrize(
    ("text", "why", "hint"),
    [
        ("afternotok:7", "cancelled before it began", "fail:7"),
        ("ok:3,afternotok:7:8", "cancelled before it began", "fail:7"),
        ("after:7", "beginning", "any:7"),
        ("after:7+10", "beginning", "any:7"),
        ("aftercorr:7", "one for one", "ok:7"),
        ("afterburstbuffer:7", "burst buffers", "any:7"),
        ("expand:7", "larger", "submit"),
        ("singleton", "one name", "any:ID"),
        ("afterok:7?afterany:8", "one of several", "ok:12,any:13"),
        ("ok:7_1", "whole submission", "ok:7;"),
        ("afterany:7+5", "whole submission", "afterany:7;"),
        ("ok:last", "whole submission", "ok:ID;"),
    ],
)
def test_dependencies_that_slurm_alone_has_are_refused_with_the_reason(text: str, why: str, hint: str) -> None:
    with pytest.raises(UsageError, match="is not a dependency") as caught:
        parse_after(text)
    assert why in caught.value.message
    assert hint in caught.value.hint


def test_states_in_the_words_of_others() -> None:
    assert parse_states("pd,Running,canceled") == (State.INITIAL, State.RUNNING, State.CANCELLED)
    with pytest.raises(UsageError, match="no state 'FAILD'") as caught:
        parse_states("faild")
    assert "FAILED" in caught.value.hint


def test_variables_and_resources(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERE", "v")
    assert (parse_env("A=b=c"), parse_env("A="), parse_env("HERE")) == (("A", "b=c"), ("A", ""), ("HERE", "v"))
    assert parse_resource("gpu=2") == ("gpu", 2)
    for bad in ("=x", "NOT_SET_ANYWHERE", "a b=c"):
        with pytest.raises(UsageError):
            parse_env(bad)
    with pytest.raises(UsageError) as caught:
        parse_env("A,B")
    assert caught.value.hint == "one option for each: --env A --env B"
    with pytest.raises(UsageError):
        parse_resource("gpu=two")


def test_a_command_that_names_files_of_this_directory_is_told_that_it_runs_in_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.txt").write_text("x")
    told = "without in.txt: --upload in.txt, or --cwd="
    for options, words, expected in (
        (CommandOptions(), ["cat", "in.txt"], told),
        (CommandOptions(), ["sh", "-c", "cat in.txt"], ""),
        (CommandOptions(), ["cat", str(tmp_path / "in.txt")], ""),
        (CommandOptions(cwd=str(tmp_path)), ["cat", "in.txt"], ""),
        (CommandOptions(uploads=("in.txt",)), ["cat", "in.txt"], ""),
        (CommandOptions(inputs=(("key", "in.txt"),)), ["cat", "./in.txt"], ""),
        (CommandOptions(inputs=(("key", "other"),)), ["cat", "in.txt", "other"], told),
        (CommandOptions(), ["in.txt"], "in.txt is sought in the PATH of its node; the file here is ./in.txt"),
        (CommandOptions(), ["./in.txt"], ""),
    ):
        messages = doubts(options, None, words)
        assert (expected in messages[0] if expected else not messages), (words, messages)
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert doubts(CommandOptions(), None, ["cat", "in.txt"]) == []


def test_durations_are_printed_in_the_largest_unit_that_is_exact() -> None:
    lines = to_toml(ClusterSettings(grace_us=1_500_000, log_retention_us=0)).splitlines()
    wanted = {'retention = "1h"', 'history_retention = "365d"', "log_retention = 0", 'grace = "1.5s"', 'barrier = "30s"'}
    assert wanted <= set(lines), lines
