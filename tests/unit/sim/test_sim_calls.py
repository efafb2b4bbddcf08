"""The simulation of calls: scenarios and their errors, queues against theory, the same requests under every policy, files, laws, replay."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any, ClassVar

import pytest

from rmgr.cli.main import run
from rmgr.errors import UsageError
from rmgr.sched.catalogue import CALL_POLICIES, call_policy_named
from rmgr.sched.draft import Draft
from rmgr.sched.plan import Why
from rmgr.sched.policy import Cause, Stage
from rmgr.sched.records import Call, Server
from rmgr.sim.calls import laws
from rmgr.sim.calls.runs import half_width, student_t, summed
from rmgr.sim.calls.scenario import SHIPPED, read_scenario, scenario_named
from rmgr.sim.calls.world import Background, CallRequest, FcfsStation, SharedStation, Station, replicate, wants_next

Captured = pytest.CaptureFixture[str]
SMALL = """
name = "small"
requests = 12
[[server]]
name = "a"
speed = 100e6
[[server]]
name = "b"
speed = 50e6
discipline = "shared"
[[link]]
server = "a"
capacity = 1e6
[[link]]
server = "b"
capacity = 1e6
own = false
discipline = "shared"
service = "fixed"
[[client]]
name = "c"
count = 2
operations = 100_000_000
bytes = 500_000
[[case]]
name = "A"
interval = "3s"
"""


# -- scenarios -------------------------------------------------------------------------------------------------------------------


def test_every_shipped_scenario_is_sound_and_of_its_name() -> None:
    names = sorted(path.stem for path in SHIPPED.glob("*.toml"))
    assert names == ["ninf_functions", "ninf_many", "ninf_shared", "ninf_table4", "ninf_text", "ninf_tnet"]
    assert [scenario_named(name).name for name in names] == names


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ('name = "small"', 'name = "small"\nrequest = 3', "no key of scenario is called 'request'; did you mean requests?"),
        ("requests = 12", "requests = 0", "requests of scenario is 0: it must be from 1 to 1000000"),
        ("requests = 12", 'requests = "many"', "requests of scenario is 'many': a whole number is expected"),
        ("speed = 100e6", "speed = -1.0", "speed of [[server]] 1 (a) is -1.0: it must be from 1e-06 to 1e+30"),
        ("speed = 100e6", "speed = true", "speed of [[server]] 1 (a) is True: a number is expected"),
        ("speed = 100e6", "slots = 2", "[[server]] 1 (a) needs speed"),
        ("speed = 100e6", "speed = 100e6\nbackground = 0.5", "needs background_operations"),
        ('discipline = "shared"\n[[link]]', 'discipline = "fair"\n[[link]]', "[[server]] 2 (b) is 'fair': it is none of fcfs, shared"),
        ('name = "b"', 'name = "a"', "two servers are called a"),
        ('server = "b"', 'server = "a"', "server a has 2 links"),
        ('server = "b"', 'server = "x"', "server b has 0 links"),
        ('interval = "3s"', 'interval = "soon"', "interval of [[case]] 1 (A) is 'soon': "),
        ('interval = "3s"', "interval = 0", "interval of [[case]] 1 (A) is 0: it must be from 1us to "),
        ("bytes = 500_000", 'bytes = 500_000\nfunction = "f"\nkind = "half"', "[[client]] 1 (c) is 'half': it is none of open,"),
        ("speed = 50e6", 'speed = 50e6\nfunctions = ["g"]\ntruth = 3', "a table of operations/s by function"),
        ('name = "b"', 'name = ""', "a server has no name"),
        ("speed = 50e6", "speed = 50e6\ntruth = { f = 0 }", "f on [[server]] 2 (b) is 0: it must be from 1e-06"),
        ("[[case]]", "[case]", "case is no array of tables"),
    ],
)
def test_what_a_scenario_may_not_say(before: str, after: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    assert before in SMALL
    path.write_text(SMALL.replace(before, after, 1))
    with pytest.raises(UsageError) as caught:
        read_scenario(path)
    assert message in caught.value.message
    assert str(path) in caught.value.message


def test_unknown_scenarios_and_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no scenario is called 'ninf_table'; did you mean ninf_table4\?"):
        scenario_named("ninf_table")
    with pytest.raises(UsageError, match=r"nothing\.toml cannot be read: No such file"):
        scenario_named(str(tmp_path / "nothing.toml"))
    (tmp_path / "s.toml").write_text("name = ")
    with pytest.raises(UsageError, match="is no TOML"):
        scenario_named(str(tmp_path / "s.toml"))


# -- queues ----------------------------------------------------------------------------------------------------------------------


def served(station: Station, arrivals: list[tuple[float, float]]) -> list[tuple[int, float]]:
    """(request, when it left) of requests (arrival, service)."""
    done: list[tuple[int, float]] = []
    for number, (at, service) in enumerate(arrivals):
        while station.due_s() <= at:
            done += [(one.request, one.at_s) for one in station.advance(station.due_s())]
        station.advance(at)
        station.submit(at, number, service)
    while station.requests:
        done += [(one.request, one.at_s) for one in station.advance(station.due_s())]
    return done


def test_first_come_first_served_and_shared_queues_by_hand() -> None:
    arrivals = [(0.0, 4.0), (1.0, 1.0), (2.0, 1.0)]
    assert served(FcfsStation(), arrivals) == [(0, 4.0), (1, 5.0), (2, 6.0)]
    assert served(FcfsStation(slots=2), arrivals) == [(1, 2.0), (2, 3.0), (0, 4.0)]
    # shared: alone until 1, halves until 2 (0: 2.5 left, 1: 0.5 left), thirds until 3.5 (1 leaves), halves: 2 has 0.5 left, 0 has 2.0
    assert served(SharedStation(), arrivals) == [(1, pytest.approx(3.5)), (2, pytest.approx(4.5)), (0, pytest.approx(6.0))]
    assert served(SharedStation(slots=3), arrivals) == [(1, 2.0), (2, 3.0), (0, 4.0)]


@pytest.mark.parametrize("kind", [FcfsStation, SharedStation])
def test_a_queue_with_other_work_has_the_mean_of_m_m_1(kind: type[FcfsStation | SharedStation]) -> None:
    """Poisson arrivals, exponential services, half busy: a mean response of s / (1 - rho) = 2 s, under both disciplines."""
    chance = Random(7)
    station = kind(1, Background(0.25, 1.0, 1.0, Random(8)))
    arrivals, at = [], 0.0
    for _ in range(20_000):
        at += chance.expovariate(0.25)
        arrivals.append((at, chance.expovariate(1.0)))
    ends = dict(served(station, arrivals))
    assert fmean(ends[number] - at for number, (at, _) in enumerate(arrivals)) == pytest.approx(2.0, rel=0.06)
    assert station.tally.busy_s / at == pytest.approx(0.5, rel=0.03)
    assert station.tally.cv == pytest.approx(1.0, rel=0.03)


# -- replications ----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    return path


def test_all_policies_meet_the_same_requests_and_a_seed_repeats_itself(small: Path) -> None:
    scenario = read_scenario(small)
    issued = set()
    for name in CALL_POLICIES:
        first, again = (replicate(scenario, scenario.cases[0], call_policy_named(name), seed=3) for _ in range(2))
        assert first == again
        issued.add(tuple((request.client, request.issued_s, request.draw) for request in first.requests))
        assert all(request.issued_s == request.sent_s <= request.arrived_s <= request.ended_s for request in first.requests)
    assert len(issued) == 1


@pytest.mark.parametrize("discipline", ["fcfs", "shared"])
def test_closed_clients_ask_when_they_have_their_answer(discipline: Any, small: Path) -> None:
    scenario = read_scenario(small)
    scenario = replace(
        scenario, clients=tuple(replace(client, kind="closed") for client in scenario.clients),
        servers=tuple(replace(server, discipline=discipline) for server in scenario.servers),
    )
    requests = replicate(scenario, scenario.cases[0], call_policy_named("rr"), seed=3).requests
    for client in ("c1", "c2"):
        mine = [request for request in requests if request.client == client]
        assert all(before.ended_s <= after.issued_s for before, after in pairwise(mine))


@pytest.mark.parametrize(("window", "most"), [("one", 1), ("predicted", 12), ("all", 12)])
def test_a_program_with_many_calls_keeps_its_window(window: Any, most: int, small: Path) -> None:
    scenario = read_scenario(small)
    (client,) = scenario.clients
    scenario = replace(scenario, clients=(replace(client, count=1, kind="many", window=window),))
    found = replicate(scenario, scenario.cases[0], call_policy_named("loth+lt"), seed=3)
    flying = max(sum(other.sent_s <= request.sent_s < other.ended_s for other in found.requests) for request in found.requests)
    assert flying == most if window != "predicted" else 1 < flying <= most


def test_the_predicted_window_counts_no_answered_calls_and_costs_little_time() -> None:
    """Two servers that take a call each; the policy's predictions count answered calls, too, until servers are measured again."""
    scenario = scenario_named("ninf_many")
    found = {}
    for window in ("predicted", "one", "all"):
        clients = tuple(replace(client, window=window) for client in scenario.clients)  # type: ignore[arg-type]  # one of its words
        found[window] = replicate(replace(scenario, clients=clients), scenario.cases[0], call_policy_named("loth+lt"), seed=1)
    requests = found["predicted"].requests
    assert max(sum(other.sent_s <= request.sent_s < other.ended_s for other in requests) for request in requests) <= 4
    assert found["predicted"].duration_s < 1.1 * found["all"].duration_s < 0.7 * found["one"].duration_s


@pytest.mark.parametrize(("names", "wants"), [("a", False), ("ab", True)])
def test_a_call_that_was_measured_on_its_way_to_the_server_is_not_taken_from_its_load(names: str, wants: bool) -> None:
    """0.2 s if the next call goes now (to b: 0.1 s); 0.1 s and 0.05 s that are left of the first one if it waits."""
    flying = CallRequest(1, "c", 100, 100, "", 59.95, 1.0, server="a", sent_s=59.95, predicted_s=0.1)
    measured = {name: Server(name, 1e6, 0.0, (("c", 1e3),), at_us=60_000_000, partition="calls") for name in names}
    assert wants_next("predicted", Call(2, 0, 100, 100, "c", "calls"), measured, [flying], 60.0) is wants


@pytest.mark.parametrize("kind", ["open", "closed", "many"])
def test_a_policy_that_sends_nothing_is_an_error_not_an_endless_run(kind: Any, small: Path) -> None:
    scenario = read_scenario(small)
    scenario = replace(scenario, clients=tuple(replace(client, kind=kind, count=3) for client in scenario.clients))
    with pytest.raises(RuntimeError, match=r"policy idle sends no calls: \[1, 2, 3\] wait"):
        replicate(scenario, scenario.cases[0], Idle(), seed=1)


def test_calls_of_no_work_and_no_bytes_take_no_time(small: Path) -> None:
    """The defaults of a scenario: a program's calls are all answered at the instant 0."""
    scenario = read_scenario(small)
    clients = tuple(replace(client, kind="many", count=1, operations=0, bytes=0) for client in scenario.clients)
    found = summed([replicate(replace(scenario, clients=clients), scenario.cases[0], call_policy_named("loth"), seed=1)])
    assert (found.total_s, found.makespan_s, found.requests_per_s, found.busy) == (0.0, 0.0, 0.0, {"a": 0.0, "b": 0.0})


def test_results_are_means_with_students_confidence(small: Path) -> None:
    scenario = read_scenario(small)
    found = summed([replicate(scenario, scenario.cases[0], call_policy_named("rr"), seed=seed) for seed in (1, 2, 3)])
    assert found.total_s == pytest.approx(found.computing_s + found.transfer_s)
    assert (sum(found.chosen.values()), set(found.response_s)) == (1.0, {"c1", "c2"})
    assert half_width([1.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx(2.132 * (2.5 / 5) ** 0.5, rel=5e-3)
    assert [student_t(0.95, n) for n in (4, 10, 49)] == [pytest.approx(value, rel=5e-3) for value in (2.132, 1.812, 1.677)]


# -- laws ------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Idle:
    name: ClassVar[str] = "idle"
    for_calls: ClassVar[bool] = True

    def plan(self, draft: Draft, causes: frozenset[Cause]) -> None:
        """Sends nothing, and says nothing."""


@dataclass(frozen=True)
class Mutant:
    """Sends each call to a server that `choose` names."""

    choose: Callable[[Draft, list[str]], str]
    name: ClassVar[str] = "mutant"

    def plan(self, draft: Draft, causes: frozenset[Cause]) -> None:
        for call in draft.calls():
            able = [one.name for one in draft.servers() if one.is_open and one.offers(call.function) and one.name not in call.excluded]
            if able:
                draft.send(call.id, self.choose(draft, able), Why("mutant", "it is chosen"))


def last_name(_: Draft, able: list[str]) -> str:
    return able[-1]


def any_name(draft: Draft, _: list[str]) -> str:
    return next(iter(draft.servers())).name


def in_memory(_: Draft, able: list[str]) -> str:
    TURNS.append(1)
    return able[len(TURNS) % len(able)]


def raising(_: Draft, able: list[str]) -> str:
    raise KeyError(able[0])


TURNS: list[int] = []


@pytest.mark.parametrize("name", CALL_POLICIES)
@pytest.mark.parametrize("params", [{}, {"predictor": "queueing", "performance": "learnt"}, {"predictor": "ewma", "load": "mean"}])
def test_every_shipped_policy_for_calls_is_lawful(name: str, params: dict[str, str]) -> None:
    report = laws.check(lambda: (Stage(call_policy_named(name, params)),), worlds=25)
    assert [finding for finding in report.findings if finding.text] == []


@pytest.mark.parametrize(
    ("policy", "broken"),
    [
        (Idle(), {"sent"}),
        (Mutant(last_name), {"ties"}),
        (Mutant(any_name), {"able", "sent"}),
        (Mutant(in_memory), {"pure", "records"}),
        (Mutant(raising), {"runs"}),
    ],
    ids=["idle", "last", "any", "memory", "raises"],
)
def test_each_law_finds_the_policy_that_breaks_it(policy: Any, broken: set[str]) -> None:
    report = laws.check(lambda: (Stage(policy),), worlds=25)
    assert {finding.law for finding in report.findings if finding.text} - {"ties"} == broken - {"ties"}
    assert not report.is_lawful


def test_a_policy_for_calls_that_does_not_come_back_is_interrupted() -> None:
    def asleep(_: Draft, able: list[str]) -> str:
        time.sleep(30)
        return able[0]

    report = laws.check(lambda: (Stage(Mutant(asleep)),), worlds=25, budget_s=0.05)
    assert {finding.law: finding.text for finding in report.findings if finding.text} == {"in_time": "a pass takes longer than 0.05 s"}
    assert report.worlds < 25


# -- commands --------------------------------------------------------------------------------------------------------------------


def test_calls_are_simulated_written_drawn_and_replayed(small: Path, tmp_path: Path, capsys: Captured) -> None:
    out, log = tmp_path / "out", tmp_path / "log.gz"
    argv = ["sim", "calls", str(small), "--policy", "loth+l", "--seeds", "3", "--jobs", "1"]
    assert run([*argv, "--out", str(out), "--record", str(log)]) == 0
    told = capsys.readouterr().out
    assert "small: no description; 3 replications of 12 requests" in told
    assert len((out / "calls.csv").read_text().splitlines()) == 1 + 3 * 12
    assert run([*argv, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document == json.loads((out / "summary.json").read_text())
    pytest.importorskip("matplotlib")
    assert run(["sim", "plot", str(out), "--kind", "calls"]) == 0
    assert (out / "plots" / "calls-a-loth-l.png").stat().st_size > 10_000
    capsys.readouterr()
    assert run(["sim", "replay", str(log)]) == 0
    assert "decisions are the recorded ones" in capsys.readouterr().out
    assert run(["sim", "replay", str(log), "--policy", "rr", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["replayed"]["policy"], sum(found["replayed"]["calls"].values())) == ("rr", sum(found["recorded"]["calls"].values()))
    assert abs(found["replayed"]["calls"]["a"] - found["replayed"]["calls"]["b"]) <= 1


LAST = """
from dataclasses import dataclass
from typing import ClassVar

from rmgr.sched.draft import Draft
from rmgr.sched.plan import Why


@dataclass(frozen=True)
class Last:
    name: ClassVar[str] = "last"
    for_calls: ClassVar[bool] = FOR_CALLS
    loud: bool = False

    def plan(self, draft: Draft, causes: object) -> None:
        for call in draft.calls():
            draft.send(call.id, list(draft.servers())[-1].name, Why("last", "it is the last"))
"""


#: Lawful but for the reason that it gives: the names in it stand in the order of their hashes.
SETS = """min(
                one.name for one in draft.servers() if one.takes(call)
            ), Why("sets", "of {}", (str({one.name for one in draft.servers()}),))
        ) if any(one.takes(call) for one in draft.servers()) else draft.leave_pending(call.id, Why("sets", "none can")
"""


def test_a_policy_of_one_s_own_for_calls_is_simulated_and_replayed(small: Path, tmp_path: Path, capsys: Captured) -> None:
    mine, other, log = tmp_path / "forecast.py", tmp_path / "jobs.py", tmp_path / "log.gz"
    mine.write_text(LAST.replace("FOR_CALLS", "True"))
    other.write_text(LAST.replace("FOR_CALLS", "False"))
    argv = ["sim", "calls", str(small), "--seeds", "2", "--jobs", "2"]
    assert run([*argv, "--policy", f"{mine},loth", "--param", "loud=yes"]) == 2
    assert "no parameter of loth is called 'loud'" in capsys.readouterr().err
    assert run([*argv, "--policy", f"{mine},loth", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["calls"]
    assert [(row["policy"], row["chosen"]["b"] == 1) for row in rows] == [(str(mine), True), ("loth", False)]
    assert run([*argv, "--policy", str(mine), "--record", str(log), "--json"]) == 0
    capsys.readouterr()
    assert run(["sim", "replay", str(log)]) == 0
    assert run(["sim", "replay", str(log), "--policy", "rr"]) == 0
    assert "go to the same server under rr" in capsys.readouterr().out
    assert run([*argv, "--policy", str(other)]) == 2
    assert f"{other} places jobs, it chooses no servers" in capsys.readouterr().err
    assert run(["sim", "run", "lublin99", "--nodes", "4", "--count", "5", "--policy", str(mine)]) == 2
    assert f"{mine} chooses servers for calls, it places no jobs" in capsys.readouterr().err
    for path, dispatch in ((mine, "call"), (other, "place")):
        assert run(["policy", "list", str(path), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["policies"][0]["dispatch"] == dispatch


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["sim", "calls", "{small}", "--policy", "easy"], "easy places jobs"),
        (["sim", "calls", "{small}", "--policy", "loth", "--param", "order=sjf"], "no parameter of loth is called 'order'"),
        (["sim", "calls", "nowhere"], "no scenario is called 'nowhere'"),
        (["sim", "calls", "{small}", "--policy", "rr,loth", "--record", "{tmp}/log"], "--record writes the log of one policy"),
        (["sim", "run", "lublin99", "--policy", "loth"], "loth chooses servers for calls"),
        (["sim", "plot", "{tmp}", "--kind", "calls"], "holds no results"),
    ],
)
def test_wrong_words_are_answered_with_what_to_type(argv: list[str], message: str, small: Path, tmp_path: Path, capsys: Captured) -> None:
    assert run([word.format(small=small, tmp=tmp_path) for word in argv]) == 2
    assert message in capsys.readouterr().err


def test_policies_for_calls_are_listed_and_checked(capsys: Captured) -> None:
    assert run(["policy", "list", "loth+t", "--json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)["policies"]
    assert (told["dispatch"], told["parameters"]["share_link"]["default"]) == ("call", True)
    assert run(["policy", "check", "loth+t", "--worlds", "5"]) == 0
    told = capsys.readouterr().out
    assert "every law holds: 5 worlds" in told
    assert "hashes" in told


def test_a_policy_for_calls_that_goes_through_a_set_of_names_is_found(tmp_path: Path, capsys: Captured) -> None:
    path = tmp_path / "sets.py"
    path.write_text(LAST.replace("FOR_CALLS", "True").replace('list(draft.servers())[-1].name, Why("last", "it is the last")', SETS))
    assert run(["policy", "check", str(path), "--worlds", "5"]) == 1
    assert "hashes is broken: PYTHONHASHSEED=1 and 2 give different plans" in capsys.readouterr().out
