"""`rmgr policy list|check|set|show` and `rmgr admin limit` on settings in memory: what they list, record and refuse, and their hints."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import rmgr.cli.policy as commands
from rmgr.cli.control import limits
from rmgr.cli.control.settings import left_out, parse_settings, to_toml
from rmgr.cli.main import run
from rmgr.daemons.leader.placement import pipeline
from rmgr.daemons.leader.placement.pipeline import configuration
from rmgr.errors import ConfigError
from rmgr.model.queue import CORES, ClusterSettings, Dispatch, QueueSpec, UserLimits
from rmgr.sched.catalogue import POLICIES
from rmgr.sched.policies.servers import Loth

Captured = pytest.CaptureFixture[str]

MINE = '''\
"""Search: keeps cores free."""
from dataclasses import dataclass, field
from typing import ClassVar
from rmgr.sched.parameters import about

@dataclass(frozen=True)
class KeepRoom:
    name: ClassVar[str] = "keep_room"
    spare_cores: int = field(default=2, metadata=about("cores for short jobs", unit="cores", least=0, most=64))
    short_us: int = 3_600_000_000

    def plan(self, draft, causes): ...
'''


def test_json_has_every_policy_with_its_parameters(capsys: Captured) -> None:
    assert run(["policy", "list", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    listed = {policy["name"]: policy for policy in answer["policies"]}
    assert list(listed)[: len(POLICIES) + 2] == ["fair", "fifo", *POLICIES]
    assert listed["fifo"] == {"name": "fifo", "summary": listed["fifo"]["summary"], "parameters": {}, "dispatch": "pull"}
    assert listed["sjf"]["parameters"]["order"]["default"] == "sjf"
    assert listed["easy"]["parameters"]["max_wait"]["unit"] == "s"
    assert all(policy["summary"] for policy in answer["policies"])


def test_text_tells_where_they_work_and_how_one_is_set(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(["policy", "list"]) == 0
    told = capsys.readouterr()
    assert [line.split()[0] for line in told.out.splitlines()][:4] == ["POLICY", "fair", "fifo", "fcfs"]
    assert "order=ljf" in told.out
    assert "rmgr policy set NAME" in told.err
    assert run(["policy", "list", "easy"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split()[:4] == ["PARAMETER", "KIND", "DEFAULT", "RANGE"]
    assert [line.split()[0] for line in lines[2:5]] == ["search", "order", "max_wait"]
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    assert run(["policy", "list", "easy"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    at = lines.index("half_life  duration; default 7d; from 1s to 36500d")
    assert lines[at + 1] == "    with order=fair_share: use counts half after so long"
    assert run(["policy", "list", "esay"]) == 2
    assert "did you mean easy" in capsys.readouterr().err


def test_a_file_and_plug_ins_are_listed_broken_ones_with_their_error(
    tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text(MINE)
    (tmp_path / "broken_one.py").write_text("1 / 0\n")
    info = tmp_path / "kyoto-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: kyoto\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[rmgr.policies]\nkeep = mine:KeepRoom\nbroken = broken_one:X\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert run(["policy", "list", "--json"]) == 0
    *_, broken, keep = json.loads(capsys.readouterr().out)["policies"]
    assert (broken["name"], "raises ZeroDivisionError" in broken["error"]) == ("broken", True)
    assert (keep["origin"], keep["summary"]) == ("mine:KeepRoom", "Search: keeps cores free")
    assert keep["parameters"]["spare_cores"] == {
        "kind": "integer",
        "default": 2,
        "unit": "cores",
        "least": 0,
        "most": 64,
        "summary": "cores for short jobs",
    }
    assert keep["parameters"]["short"]["default"] == 3600.0
    assert run(["policy", "list", str(mine)]) == 0
    assert "from 0 to 64 cores" in capsys.readouterr().out


HEAD = """\
from dataclasses import dataclass
from typing import ClassVar
from rmgr.sched.plan import Why

WHY = Why("mine", "because")
MEMORY = []

@dataclass(frozen=True)
class Mine:
    name: ClassVar[str] = "mine"

    def plan(self, draft, causes):
        draft.leave_rest(WHY)
"""
#: What it does -> the law that it breaks.
BAD = {
    "remembers": ("MEMORY.append(1); len(MEMORY) % 2 or [draft.start(j.id, WHY) for j in draft.by_arrival()]", "pure"),
    "raises": ("[draft.start(j.id, WHY) for j in draft.by_arrival() if 1 / (j.id - 2)]", "sound"),
    "sleeps": ("while True: pass", "in_time"),
    "refuses": ("[draft.start(j.id, WHY) for j in draft.by_arrival() if j.processes < 3]", "served"),
    "is_silent": ("draft.rest = None; [draft.start(j.id, WHY) for j in draft.by_arrival()]", "explained"),
    "passes_by": ("[draft.start(j.id, WHY) for j in draft.by_arrival()]", "endless"),
}
GOOD = "\n        ".join(("for job in draft.by_arrival():", "    if not hasattr(draft.start(job.id, WHY), 'at_us'):", "        return"))
WAIVED = HEAD.replace('"mine"\n\n    def', '"mine"\n    waives: ClassVar[dict] = {"endless": "a whim of mine"}\n\n    def')


def policy(tmp_path: Path, does: str, head: str = HEAD) -> str:
    path = tmp_path / "mine.py"
    path.write_text(f"{head}        {does}\n", "utf-8")
    return str(path)


@pytest.mark.parametrize(("does", "law"), BAD.values(), ids=BAD)
def test_a_broken_law_is_named_with_a_small_world_and_how_to_repeat_it(tmp_path: Path, capsys: Captured, does: str, law: str) -> None:
    file, budget = policy(tmp_path, does), "0.05" if law == "in_time" else "60"
    assert run(["policy", "check", file, "--worlds", "25", "--budget", budget]) == 1
    told = capsys.readouterr().out
    (seed,) = re.findall(rf"^{law} is broken: .*?--seed (\d+) --worlds 1$", told, re.DOTALL | re.MULTILINE)
    assert "in the smallest world found:" in told
    if law == "endless":
        return
    assert run(["policy", "check", file, "--worlds", "1", "--seed", seed, "--budget", budget, "--json"]) == 1
    laws = {row["law"]: row for row in json.loads(capsys.readouterr().out)["laws"]}
    assert laws[law]["verdict"] == "broken"
    jobs = [line for line in laws[law]["breach"]["story"] if re.match(r"  job \d+: ", line)]
    assert len(jobs) <= 3


def test_a_lawful_policy_passes_and_a_waiver_is_told(tmp_path: Path, capsys: Captured) -> None:
    assert run(["policy", "check", policy(tmp_path, GOOD), "--worlds", "40", "--budget", "60", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["lawful"]
    assert {row["verdict"] for row in answer["laws"]} == {"holds"}
    assert answer["worlds"] == 40
    does, _ = BAD["passes_by"]
    assert run(["policy", "check", policy(tmp_path, does, WAIVED), "--worlds", "5", "--budget", "60"]) == 0
    assert "endless is waived: a whim of mine" in capsys.readouterr().out


def test_what_is_no_policy_is_a_usage_error(tmp_path: Path, capsys: Captured) -> None:
    assert run(["policy", "check", "easi"]) == 2
    assert "did you mean easy" in capsys.readouterr().err
    assert run(["policy", "check", policy(tmp_path, "return", "import nothing_there\n" + HEAD)]) == 2
    assert "line 1" in capsys.readouterr().err
    assert run(["policy", "check", "--param", "order=sjf"]) == 2


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
    for module in (commands, limits):
        monkeypatch.setattr(module, "read_settings", made.read)
        monkeypatch.setattr(module, "apply_settings", made.apply)
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


# -- caps of users


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
    caps = UserLimits(max_jobs_per_user=500, cores_of={"ann": 40, "b c": 0})
    text = to_toml(ClusterSettings(limits=caps))
    assert parse_settings(text, "c.toml").limits == caps
    file = tmp_path / "c.toml"
    file.write_text(text.replace("ann = 40, ", "").replace("max_jobs_per_user = 500", ""))
    gone = left_out(file, ClusterSettings(limits=caps), parse_settings(file.read_text(), "c.toml"))
    assert gone == ["limits.cores_of.ann (40 -> (none))", "limits.max_jobs_per_user (500 -> 0)"]


def test_policies_have_another_word_for_the_same_limit() -> None:
    queue = "[queues.default]\n[limits]\n"
    assert parse_settings(f"{queue}max_cpus_per_user = 7\n", "c.toml").limits.of(CORES, "ann") == 7
    with pytest.raises(ConfigError, match=r"c.toml:3: max_cpus_per_user and max_cores_per_user are the same limit"):
        parse_settings(f"{queue}max_cpus_per_user = 7\nmax_cores_per_user = 7\n", "c.toml")
    with pytest.raises(ConfigError, match=r"c.toml:3: cores_of"):
        parse_settings(f"{queue}cores_of = {{ ann = -1 }}\n", "c.toml")
