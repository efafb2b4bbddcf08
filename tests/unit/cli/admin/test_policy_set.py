"""`rmgr policy set|show|check` on settings in memory: what is recorded, what is refused and what to type instead."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import rmgr.cli.policy as commands
from rmgr.cli.main import run
from rmgr.daemons.leader.placement import pipeline
from rmgr.daemons.leader.placement.pipeline import configuration
from rmgr.model.cluster.queue import ClusterSettings, Dispatch, QueueSpec
from rmgr.sched.policies.servers import Loth

Captured = pytest.CaptureFixture[str]


class Cluster:
    """Its settings, and how often they were written."""

    def __init__(self, *more: QueueSpec) -> None:
        self.settings = ClusterSettings(queues=(*ClusterSettings().queues, *more))
        self.writes = 0

    def read(self, _session: object) -> tuple[ClusterSettings, int]:
        return self.settings, self.writes

    def apply(self, _session: object, settings: ClusterSettings, version: int) -> None:
        assert version == self.writes
        self.settings, self.writes = settings, self.writes + 1


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster()
    monkeypatch.setattr(commands, "read_settings", made.read)
    monkeypatch.setattr(commands, "apply_settings", made.apply)
    return made


def test_a_policy_with_parameters_is_recorded_and_shown(cluster: Cluster, capsys: Captured) -> None:
    assert run(["policy", "set", "easy", "--param", "order=sjf"]) == 0
    assert capsys.readouterr().out == "partition default: easy (order=sjf) places its jobs\n"
    assert type(configuration(cluster.settings, "default").stages[0].policy.order).__name__ == "Sjf"  # type: ignore[attr-defined]
    assert run(["policy", "set", "easy", "--param", "order=sjf"]) == 0
    assert "already" in capsys.readouterr().out
    assert cluster.writes == 1
    assert run(["policy", "show", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "schema": "rmgr/1",
        "queues": {"default": {"policy": "fair", "parameters": {}}, "batch": {"policy": "easy", "parameters": {"order": "sjf"}}},
        "by": "",
        "since": None,
    }
    assert run(["policy", "show"]) == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()][2] == ["batch", "default", "place", "easy", "order=sjf"]
    assert run(["policy", "check"]) == 0
    assert capsys.readouterr().out == "default: fair\nbatch: easy\n"


def test_a_file_with_stages_is_recorded_under_its_name(cluster: Cluster, capsys: Captured, tmp_path: Path) -> None:
    file = tmp_path / "classes.toml"
    stages = '[[stage]]\npolicy = "queue_select"\n[[stage]]\npolicy = "easy"\n[stage.parameters]\norder = "sjf"\n'
    file.write_text(f'{stages}[[queue]]\nname = "s"\nmax_cpus = 2\n')
    assert run(["policy", "set", str(file), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["partition"], told["changed"], told["queues"]["batch"]["policy"]) == ("default", True, "classes.toml")
    assert [stage["policy"] for stage in told["queues"]["batch"]["stages"]] == ["queue_select", "easy"]
    assert configuration(cluster.settings, "default").queues[0].name == "s"
    assert run(["policy", "show", "batch"]) == 0
    assert "classes.toml  queue_select, then easy order=sjf" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["esay"], 2, "did you mean easy"),
        (["easy", "--param", "ordr=sjf"], 2, "did you mean order"),
        (["easy", "--param", "order=x"], 2, "order"),
        (["fair"], 2, "what Starters do with pull queues"),
        (["fifo"], 2, "what Starters do with pull queues"),
        (["dqt", "--param", "quantum=10ms"], 2, "nodes turn every 50ms to 1m"),
        (["dqt", "--param", "quantum=61s"], 2, "nodes turn every 50ms to 1m"),
        (["./mine.py"], 2, "entry point of group rmgr.policies"),
        (["absent.toml"], 2, "cannot be read"),
        (["easy", "--partition", "deflaut"], 3, "did you mean 'default'?"),
        (["easy", "--partition", "far"], 2, "no queue places jobs in partition far"),
    ],
)
def test_what_cannot_be_set_changes_nothing(cluster: Cluster, capsys: Captured, words: list[str], code: int, told: str) -> None:
    cluster.settings = ClusterSettings(queues=(*cluster.settings.queues, QueueSpec(name="x", partition="far")))
    assert run(["policy", "set", *words]) == code
    assert told in capsys.readouterr().err
    assert cluster.writes == 0


def test_time_sharing_is_set_and_who_has_a_pull_queue_there_is_told(cluster: Cluster, capsys: Captured) -> None:
    assert run(["policy", "set", "dqt", "--param", "quantum=500ms"]) == 0
    captured = capsys.readouterr()
    assert "dqt" in captured.out
    assert "nothing of queue default is pulled on nodes that jobs share in time" in captured.err
    assert run(["policy", "set", "easy"]) == 0
    assert capsys.readouterr().err == ""


def test_a_file_with_time_sharing_is_checked_as_it_is_set(capsys: Captured, tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    text = '[queues.default]\n[queues.batch]\ndispatch = "place"\n[pipelines.default]\npolicy = "dqt"\nparameters = {{ quantum = "{}" }}\n'
    file.write_text(text.format("1s"))
    assert run(["config", "check", str(file)]) == 0
    assert "nothing of queue default is pulled" in capsys.readouterr().err
    file.write_text(text.format("10ms"))
    assert run(["config", "check", str(file)]) == 2
    assert "nodes turn every 50ms to 1m" in capsys.readouterr().err


def test_a_plug_in_for_calls_is_not_set_for_jobs(cluster: Cluster, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "installed", lambda _name: Loth)
    assert run(["policy", "set", "mine"]) == 2
    assert "partition default: loth chooses servers for calls, it places no jobs" in capsys.readouterr().err
    assert cluster.writes == 0


def test_of_several_partitions_one_is_named(cluster: Cluster, capsys: Captured, tmp_path: Path) -> None:
    cluster.settings = Cluster(QueueSpec(name="big", partition="large", dispatch=Dispatch.PLACE, policy="conservative")).settings
    assert run(["policy", "set", "fcfs"]) == 2
    assert "--partition default" in capsys.readouterr().err
    assert run(["policy", "set", "fcfs", "--partition", "large"]) == 0
    assert [cluster.settings.policy_of(queue) for queue in cluster.settings.queues] == ["fair", "easy", "fcfs"]
    file = tmp_path / "p.toml"
    file.write_text('[[stage]]\npolicy = "easy"\npartitions = ["large"]\n')
    capsys.readouterr()
    assert run(["policy", "set", str(file), "--partition", "default"]) == 2
    assert "no [[stage]] serves partition default, only large" in capsys.readouterr().err
    cluster.settings = Cluster(QueueSpec(name="big", partition="large", dispatch=Dispatch.PLACE, policy="gone")).settings
    assert run(["policy", "check"]) == 1
    assert "big: gone; its work waits: partition large, policy gone" in capsys.readouterr().out


def test_a_class_with_the_name_of_a_queue_is_refused(cluster: Cluster, capsys: Captured, tmp_path: Path) -> None:
    """`-q NAME` could mean either; also a class of the policy's own, and a queue whose work Starters take."""
    file = tmp_path / "classes.toml"
    file.write_text('[[stage]]\npolicy = "queue_select"\n[[queue]]\nname = "batch"\nmax_cpus = 2\n')
    assert run(["policy", "set", str(file)]) == 2
    told = capsys.readouterr().err
    assert "policy classes.toml: queue class batch has the name of a queue (of partition default), so -q batch could mean either" in told
    assert "call the class otherwise, or take [queues.batch] out" in told
    cluster.settings = Cluster(QueueSpec(name="d32", partition="far")).settings
    assert run(["policy", "set", "connection_reservation"]) == 2
    assert "queue class d32 has the name of a queue (of partition far)" in capsys.readouterr().err
    assert cluster.writes == 0
    assert run(["policy", "set", "easy"]) == 0
    cluster.settings = ClusterSettings(queues=(*Cluster().settings.queues, QueueSpec(name="d33")))
    assert run(["policy", "set", "connection_reservation"]) == 0


# -- the partition of calls -------------------------------------------------------------------------------------------------------


def test_a_policy_for_calls_is_set_shown_and_checked_in_the_partition_of_calls(cluster: Cluster, capsys: Captured) -> None:
    assert run(["policy", "show", "--partition", "calls"]) == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()][1] == ["(calls)", "calls", "call", "loth+l"]
    assert run(["policy", "set", "loth+lt", "--partition", "calls", "--param", "performance=learnt"]) == 0
    assert capsys.readouterr().out == "partition calls: loth+lt (performance=learnt) picks servers for calls\n"
    assert [(found.partition, found.name) for found in cluster.settings.pipelines] == [("calls", "loth+lt")]
    assert run(["policy", "set", "loth+lt", "--partition", "calls", "--param", "performance=learnt"]) == 0
    assert (capsys.readouterr().out.endswith("already\n"), cluster.writes) == (True, 1)
    assert run(["policy", "show", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["calls"] == {"policy": "loth+lt", "parameters": {"performance": "learnt"}}
    assert list(told["queues"]) == ["default", "batch"]
    assert run(["policy", "check"]) == 0
    assert capsys.readouterr().out == "default: fair\nbatch: easy\n(calls): loth+lt\n"
    assert run(["policy", "set", "fcfs"]) == 0  # of the place queues, as before
    assert cluster.settings.pipeline("default") is not None


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["easy", "--partition", "calls"], ["easy places jobs, it chooses no servers for calls", "for calls: rr, load, load+l, loth"]),
        (["loth+l"], ["loth+l chooses servers for calls, it places no jobs", "rmgr policy set NAME --partition calls"]),
        (["./mine.py", "--partition", "calls"], ["./mine.py", "files and plug-ins are for rmgr sim calls SCENARIO --policy ./mine.py"]),
        (["classes.toml", "--partition", "calls"], ["classes.toml", "live calls have only rmgr's own"]),
        (["my_plugin", "--partition", "calls"], ["my_plugin", "live calls have only rmgr's own"]),
        (["loth+k", "--partition", "calls"], ["loth+k", "did you mean"]),
        (["rr", "--partition", "calls", "--param", "add_load=true"], ["add_load"]),
        (["load", "--partition", "call"], ["no partition", "did you mean 'calls'?"]),
    ],
)
def test_what_cannot_pick_servers_is_refused_with_what_to_type(
    cluster: Cluster, capsys: Captured, words: list[str], told: list[str]
) -> None:
    assert run(["policy", "set", *words]) in {2, 3}
    error = capsys.readouterr().err
    assert [word for word in told if word not in error] == [], error
    assert cluster.writes == 0


def test_a_queue_in_the_partition_of_calls_is_refused(capsys: Captured, tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text('[queues.default]\n[queues.mine]\npartition = "calls"\n')
    assert run(["config", "check", str(file)]) == 2
    error = capsys.readouterr().err
    assert f"{file}:2: partition calls is for calls of functions on servers" in error
    assert 'partition = "default"' in error
    file.write_text('[queues.default]\n[pipelines.calls]\npolicy = "loth"\n')
    assert run(["config", "check", str(file)]) == 0
    file.write_text('[queues.default]\n[pipelines.calls]\npolicy = "easy"\n')
    assert run(["config", "check", str(file)]) == 2
    assert "easy places jobs, it chooses no servers for calls" in capsys.readouterr().err


def test_a_policy_is_checked_for_the_partition_that_it_would_be_set_in(cluster: Cluster, capsys: Captured) -> None:
    assert run(["policy", "check", "--partition", "calls"]) == 0
    assert capsys.readouterr().out == "(calls): loth+l\n"
    assert run(["policy", "check", "easy", "--partition", "calls"]) == 2
    assert "easy places jobs, it chooses no servers for calls" in capsys.readouterr().err
    assert run(["policy", "check", "loth", "--partition", "default"]) == 2
    assert "loth chooses servers for calls, it places no jobs" in capsys.readouterr().err
    assert run(["policy", "check", "rr", "--partition", "calls", "--worlds", "3"]) == 0
    assert "every law holds" in capsys.readouterr().out
    assert run(["policy", "check", "--partition", "default", "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)["queues"]) == ["default", "batch"]
    assert cluster.writes == 0
