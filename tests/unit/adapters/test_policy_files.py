"""Policies in users' files: the class that is the policy, its parameters, plug-ins, and the error for every mistake."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from rmgr.adapters.policy_files import class_of_plugin, load, plugins
from rmgr.cli.main import run
from rmgr.errors import ConfigError
from rmgr.sched.engine import run_pass
from rmgr.sched.job import Job, Node
from rmgr.sched.plan import Start
from rmgr.sched.policies.orders import Ageing, Sjf
from rmgr.sched.policy import Cause
from rmgr.sched.state.cluster import ClusterState
from tests.places import EXTRACTS

HEAD = """\
from dataclasses import dataclass, field
from typing import ClassVar
from rmgr.sched.parameters import about
from rmgr.sched.plan import Why
from rmgr.sched.policies.orders import Fcfs
from rmgr.sched.policy import Order

"""
GOOD = (
    HEAD
    + """\
@dataclass(frozen=True, slots=True)
class Anything:
    name: ClassVar[str] = "mine"
    spare: int = field(default=0, metadata=about("cores kept free", unit="cores", least=0, most=64))
    short_us: int = 3_600_000_000
    order: Order = field(default_factory=Fcfs)

    def plan(self, draft, causes):
        for job in draft.startable(self.order.arrange(draft)):
            if draft.free_cores - job.cpus >= self.spare:
                draft.start(job.id, Why("mine", "fits"))
"""
)


def written(tmp_path: Path, text: str, name: str = "some_file.py") -> str:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_the_class_of_a_file_is_its_policy_whatever_their_names_and_runs(tmp_path: Path) -> None:
    found = load(written(tmp_path, GOOD), {"spare": "2", "short": "10m", "order": "sjf", "max_wait": "1h"})
    (stage,) = found.stages
    assert (stage.policy.spare, stage.policy.short_us) == (2, 600_000_000)  # type: ignore[attr-defined]
    assert stage.policy.order == Ageing(max_wait_us=3_600_000_000, base=Sjf())  # type: ignore[attr-defined]
    state = ClusterState(Node(id=i) for i in range(4))
    for job_id in range(1, 5):
        state.job_submitted(Job(id=job_id, submit_us=0))
    plan = run_pass(state, frozenset({Cause.JOB_SUBMITTED}), now=0, seed=0, pipeline=found.stages)
    assert not plan.faults
    assert [d.job_id for d in plan.decisions if isinstance(d, Start)] == [1, 2]


def test_of_two_policies_the_attribute_names_one(tmp_path: Path) -> None:
    both = GOOD + '\n@dataclass(frozen=True)\nclass Other(Anything):\n    name: ClassVar[str] = "other"\n'
    with pytest.raises(ConfigError, match=r"has 2 policies in it: Anything \(line 8\), Other \(line 20\)") as error:
        load(written(tmp_path, both), {})
    assert error.value.hint == "say which one: POLICY = Anything"
    assert load(written(tmp_path, both + "\nPOLICY = Other\n", "b.py"), {}).stages[0].policy.name == "other"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1\n\nraise RuntimeError('no licence')\n", "some_file.py, line 3: importing it raises RuntimeError: no licence"),
        ("import nowhere_at_all\n", "line 1: importing it raises ModuleNotFoundError: No module named 'nowhere_at_all'"),
        ("import sys\nsys.exit(3)\n", "line 2: importing it raises SystemExit: 3"),
        ("x = 1\ndef f(:\n", "some_file.py, line 2: not valid Python"),
        ("x = 1\n", "has no policy in it"),
        (HEAD + "class A:\n    name = 'a'\n    def plan(self, draft, causes): ...\n", r"class A \(line 8\) is no dataclass"),
        (HEAD + "@dataclass\nclass A:\n    name: ClassVar[str] = 'a'\n    def plan(self, draft, causes): ...\n", "is not frozen"),
        (HEAD + "@dataclass(frozen=True)\nclass A:\n    def plan(self, draft, causes): ...\n", "has no name"),
        (HEAD + "@dataclass(frozen=True)\nclass A:\n    name: ClassVar[str] = 'a'\n    def plan(self): ...\n", "plan must take"),
        ("POLICY = 3\n", "POLICY is no class, but int"),
        (GOOD.replace("= 3_600_000_000", ""), "non-default argument"),
        (GOOD.replace("default_factory=Fcfs", "default_factory=lambda: 1 / 0"), "a default of its fields raises ZeroDivisionError"),
    ],
)
def test_a_file_that_is_no_policy_is_answered_with_file_line_and_reason(tmp_path: Path, text: str, said: str) -> None:
    before = set(sys.modules)
    with pytest.raises(ConfigError, match=said) as error:
        load(written(tmp_path, text), {})
    assert "some_file.py" in error.value.message
    assert error.value.hint or "must" in error.value.message or "POLICY" in error.value.message
    assert not {name for name in set(sys.modules) - before if name.startswith("rmgr_policy_")} or "importing" not in said


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"spar": "1"}, "is called 'spar'; did you mean spare"),
        ({"spare": "65"}, "it must be from 0 to 64 cores"),
        ({"short": "soon"}, "'soon' is not a duration"),
        ({"order": "sfj"}, "did you mean sjf"),
        ({"search": "easy"}, "no parameter of .* is called 'search'"),
    ],
)
def test_a_wrong_parameter_of_a_file_is_told_with_its_range(tmp_path: Path, params: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load(written(tmp_path, GOOD), params)


def test_files_that_are_not_there_and_names_that_nobody_has() -> None:
    with pytest.raises(ConfigError, match=r"keeping.py cannot be read"):
        load("keeping.py", {})
    with pytest.raises(ConfigError, match=r"nowhere.toml cannot be read"):
        load("nowhere.toml", {})
    with pytest.raises(ConfigError, match=r"./mine is no policy: a policy's file ends with .py"):
        load("./mine", {})
    with pytest.raises(ConfigError, match=r"no policy is called 'esay'; did you mean easy"):
        load("esay", {})


def test_a_pipeline_names_files_beside_it_and_its_errors_name_it(tmp_path: Path) -> None:
    written(tmp_path, GOOD, "beside.py")
    good = written(tmp_path, '[[stage]]\npolicy = "beside.py"\n[stage.parameters]\nspare = 3\n', "good.toml")
    found = load(good, {})
    assert found.policies == ("beside.py",)
    assert found.stages[0].policy.spare == 3  # type: ignore[attr-defined]
    for text, said in (
        ("[[stage]\n", r"bad.toml is not valid TOML: .*line 1"),
        ('[[stage]]\npolicy = "easy"\n[stage.parameters]\nodrer = "sjf"\n', r"bad.toml: \[\[stage\]\] 1 \(easy\): .*did you mean order"),
        ('[[stage]]\npolicy = "beside.py"\n[stage.parameters]\nspare = -1\n', r"bad.toml: \[\[stage\]\] 1 .*from 0 to 64 cores"),
    ):
        with pytest.raises(ConfigError, match=said):
            load(written(tmp_path, text, "bad.toml"), {})
    with pytest.raises(ConfigError, match="has its parameters in it"):
        load(good, {"spare": "1"})


def test_an_installed_distribution_brings_policies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, GOOD, "kyoto_policies.py")
    written(tmp_path, "raise ValueError('broken')\n", "broken_policies.py")
    info = tmp_path / "kyoto-1.0.dist-info"
    info.mkdir()
    written(info, "Metadata-Version: 2.1\nName: kyoto\nVersion: 1.0\n", "METADATA")
    points = "keep = kyoto_policies:Anything\nwhole = kyoto_policies\nbad = broken_policies:X\neasy = kyoto_policies:Anything\n"
    written(info, f"[rmgr.policies]\n{points}", "entry_points.txt")
    monkeypatch.syspath_prepend(tmp_path)
    assert list(plugins()) == ["bad", "keep", "whole"]  # easy stays the catalogue's
    assert load("keep", {"spare": "1"}).stages[0].policy.spare == 1  # type: ignore[attr-defined]
    assert load("whole", {}).stages[0].policy.name == "mine"
    with pytest.raises(ConfigError, match=r"plug-in bad .*, line 1: importing it raises ValueError: broken"):
        class_of_plugin(plugins()["bad"])
    with pytest.raises(ConfigError, match="did you mean keep"):
        load("keeep", {})


TRACE = str(EXTRACTS / "kth_first_2000.swf.gz")


def test_a_file_is_run_by_sim_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = written(tmp_path, GOOD)
    for policy in (mine, "first_fit"):  # with its defaults it is First-Fit
        assert run(["sim", "run", TRACE, "--policy", policy, "--count", "300", "--json", "--validate"]) == 0
    ours, theirs = (json.loads(line)["summary"] for line in capsys.readouterr().out.splitlines())
    assert {key: ours[key] for key in ("makespan", "mean_waiting_time")} == {key: theirs[key] for key in ("makespan", "mean_waiting_time")}
    assert run(["sim", "run", TRACE, "--policy", mine, "--param", "spare=99"]) == 2
    assert "spare of" in (told := capsys.readouterr().err)
    assert "from 0 to 64 cores" in told


def test_a_sweep_loads_files_in_its_child_processes_and_is_another_one_when_a_file_has_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = written(tmp_path, GOOD)
    pipeline = written(tmp_path, '[[stage]]\npolicy = "some_file.py"\n', "two.toml")
    words = ["sim", "sweep", TRACE, "--policy", f"{mine},{pipeline}", "--count", "100", "--out", str(tmp_path / "out"), "--json"]
    assert run(words) == 0
    first, second = json.loads(capsys.readouterr().out)["runs"]
    assert (first["name"], second["name"]) == ("some_file.py-seed0", "two.toml-seed0")
    assert first["mean_waiting_time"] == second["mean_waiting_time"]
    written(tmp_path, GOOD.replace("default=0", "default=1"))
    assert run(words) == 2
    assert "its inputs differ" in capsys.readouterr().out


def test_a_field_whose_type_only_checkers_know_hides_no_other(tmp_path: Path) -> None:
    text = "from __future__ import annotations\n" + GOOD.replace("    spare: int", "    later: Sequence[int] = ()\n    spare: int")
    found = load(written(tmp_path, text), {"spare": "2", "order": "sjf"})
    assert (found.stages[0].policy.spare, found.stages[0].policy.order) == (2, Sjf())  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="no text can say later"):
        load(written(tmp_path, text), {"later": "1"})


def test_a_file_is_run_once_and_again_when_it_has_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = written(tmp_path, "print('imported')\n" + GOOD)
    assert load(mine, {}).stages == load(mine, {}).stages
    assert capsys.readouterr().out == "imported\n"
    written(tmp_path, "print('imported')\n" + GOOD.replace("default=0", "default=7"))  # of the same size, in the same second
    assert load(mine, {}).stages[0].policy.spare == 7  # type: ignore[attr-defined]
    assert [path.name for path in tmp_path.iterdir()] == ["some_file.py"]


def test_an_order_of_ones_own_is_kept_and_can_be_replaced(tmp_path: Path) -> None:
    order = "class Newest:\n    name = 'newest'\n    def arrange(self, draft):\n        return reversed(list(draft.by_arrival()))\n\n"
    mine = written(tmp_path, GOOD.replace("@dataclass", order + "@dataclass").replace("default_factory=Fcfs", "default_factory=Newest"))
    assert load(mine, {}).stages[0].policy.order.name == "newest"  # type: ignore[attr-defined]
    assert load(mine, {"max_wait": "1h"}).stages[0].policy.order.base.name == "newest"  # type: ignore[attr-defined]
    assert load(mine, {"order": "sjf"}).stages[0].policy.order == Sjf()  # type: ignore[attr-defined]


def test_a_stage_for_a_partition_that_the_machine_has_not_is_told_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pipeline = tmp_path / "batch.toml"
    stage = '[[stage]]\npolicy = "easy"\npartitions = ["batch"]\n'
    pipeline.write_text(stage)
    words = ["--policy", str(pipeline), "--count", "5"]
    for command in (["run"], ["sweep", "--out", str(tmp_path / "out")]):
        assert run(["sim", *command, "lublin99", *words]) == 2
        assert "a stage is for partition 'batch', and the file describes no machine with partitions" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    pipeline.write_text(stage + '[[partition]]\nname = "batch"\nnodes = 128\n')
    assert run(["sim", "run", "lublin99", *words]) == 0
