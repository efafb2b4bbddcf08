"""`rmgr admin limit` on settings in memory: whose cap it sets, and what it refuses; and caps in files of settings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rmgr.cli.control import limits
from rmgr.cli.control.settings import left_out, parse_settings, to_toml
from rmgr.cli.main import run
from rmgr.errors import ConfigError
from rmgr.model.cluster.queue import CORES, ClusterSettings, UserLimits
from tests.unit.cli.admin.test_policy import Cluster

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster()
    monkeypatch.setattr(limits, "read_settings", made.read)
    monkeypatch.setattr(limits, "apply_settings", made.apply)
    return made


def test_a_user_gets_a_cap_and_loses_it_again(cluster: Cluster, capsys: Captured) -> None:
    assert run(["admin", "limit", "ann", "--cores", "40", "--jobs", "200"]) == 0
    assert capsys.readouterr().out == "ann: cores none -> 40\nann: open jobs none -> 200\n"
    assert run(["admin", "limit", "--cores", "100"]) == 0
    assert capsys.readouterr().out == "everybody: cores none -> 100\n"
    assert run(["admin", "limit", "bob", "--cores", "none", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"schema": "rmgr/1", "user": "bob", "cores": None, "jobs": None, "changed": True}
    assert cluster.settings.limits == UserLimits(max_cores_per_user=100, cores_of={"ann": 40, "bob": 0}, jobs_of={"ann": 200})
    assert run(["admin", "limit"]) == 0
    shown = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert shown == [["USER", "CORES", "JOBS"], ["(everybody)", "100", "none"], ["ann", "40", "200"], ["bob", "none", "none"]]
    assert run(["admin", "limit", "ann", "--cores", "default"]) == 0
    assert capsys.readouterr().out == "ann: cores 40 -> 100\n"
    assert cluster.writes == 4
    assert run(["admin", "limit", "ann", "--cores", "default"]) == 0
    assert cluster.writes == 4, "nothing has changed"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["ann", "--cores", "0"], "'0' is no cap"),
        (["ann", "--jobs", "many"], "'many' is no cap"),
        (["a/b", "--jobs", "1"], "no user's name"),
        (["", "--jobs", "1"], "no user's name"),
    ],
)
def test_what_is_no_cap_is_refused(cluster: Cluster, capsys: Captured, words: list[str], told: str) -> None:
    assert run(["admin", "limit", *words]) == 2
    assert told in capsys.readouterr().err
    assert cluster.writes == 0


def test_caps_stand_in_a_file_and_who_leaves_one_out_is_told(tmp_path: Path) -> None:
    limits = UserLimits(max_jobs_per_user=500, cores_of={"ann": 40, "b c": 0})
    text = to_toml(ClusterSettings(limits=limits))
    assert parse_settings(text, "c.toml").limits == limits
    file = tmp_path / "c.toml"
    file.write_text(text.replace("ann = 40, ", "").replace("max_jobs_per_user = 500", ""))
    gone = left_out(file, ClusterSettings(limits=limits), parse_settings(file.read_text(), "c.toml"))
    assert gone == ["limits.cores_of.ann (40 -> (none))", "limits.max_jobs_per_user (500 -> 0)"]


def test_policies_have_another_word_for_the_same_limit() -> None:
    queue = "[queues.default]\n[limits]\n"
    assert parse_settings(f"{queue}max_cpus_per_user = 7\n", "c.toml").limits.of(CORES, "ann") == 7
    with pytest.raises(ConfigError, match=r"c.toml:3: max_cpus_per_user and max_cores_per_user are the same limit"):
        parse_settings(f"{queue}max_cpus_per_user = 7\nmax_cores_per_user = 7\n", "c.toml")
    with pytest.raises(ConfigError, match=r"c.toml:3: cores_of"):
        parse_settings(f"{queue}cores_of = {{ ann = -1 }}\n", "c.toml")
