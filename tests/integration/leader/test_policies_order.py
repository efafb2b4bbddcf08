"""Every policy of the catalogue that places plain jobs starts them on real nodes in the simulator's order."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import pytest

from rmgr.bench.measuring import connected
from rmgr.bench.reality import Played, WorkloadStage, simulated
from rmgr.dev.cluster import DevCluster
from rmgr.dev.zookeeper import ZooKeeperServer
from rmgr.sim.workload.jobs import SECOND, Workload, WorkloadJob
from tests.harness.ended_sessions import LONG_S
from tests.harness.waiting import eventually
from tests.integration.commands import Shell

CORES = 4
#: (submitted at, processes, run time; s). The first has all cores until all others are there, then who starts next is the policy's choice:
#: no other is submitted before it runs, and its time begins when all are, however busy the machine is.
#: Under every policy ends are 0.4 s and more apart: who ends first is the same on a slow machine.
JOBS = ((0.0, 4, 3.0), (0.1, 3, 0.6), (0.2, 4, 1.8), (1.8, 1, 2.4), (1.9, 2, 1.0), (2.0, 4, 0.8), (2.1, 2, 2.3), (2.2, 1, 0.5))
#: Starts that the simulator sees nearer to each other than this have no order.
APART_US = 400_000
#: What a run is planned with: no end is near enough to matter.
LIMIT_US = 60 * SECOND
#: The class of a job for `queue_first_fit`, which lets them be queues that users name.
CLASSES = ("narrow", "wide")
_QUEUES = [{"name": "narrow", "max_cpus": 2}, {"name": "wide", "max_cpus": 4}]
#: Name of the partition and its queue -> the stage.
POLICIES: Mapping[str, Mapping[str, object]] = {
    "fcfs": {"policy": "fcfs"},
    "sjf": {"policy": "sjf"},
    "ljf": {"policy": "ljf"},
    "first-fit": {"policy": "first_fit"},
    "ljf-first-fit": {"policy": "ljf_first_fit"},
    "ljf-migration": {"policy": "ljf_migration"},
    "ageing": {"policy": "sjf", "parameters": {"max_wait": "2.4s"}},
    "conservative": {"policy": "conservative"},
    "fair-share": {"policy": "fair_share"},
    "queue-first-fit": {"policy": "queue_first_fit", "parameters": {"firstfit_nodes": 1}},
}


def document(name: str) -> dict[str, object]:
    tables: dict[str, object] = {"stage": [POLICIES[name]]}
    return tables | ({"queue": _QUEUES} if name == "queue-first-fit" else {})


def workload(name: str) -> Workload:
    def queue_of(processes: int) -> str:
        return CLASSES[processes > 2] if name == "queue-first-fit" else ""

    jobs = tuple(
        WorkloadJob(
            number=number,
            submit_us=round(at_s * SECOND),
            run_us=round(run_s * SECOND),
            estimate_us=LIMIT_US,
            processors=processes,
            processes=processes,
            queue=queue_of(processes),
        )
        for number, (at_s, processes, run_s) in enumerate(JOBS, 1)
    )
    return Workload(name=name, jobs=jobs, processors=CORES)


@pytest.fixture(scope="module")
def cluster(zookeeper: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    """A node of four cores for each policy, in a partition of its own; ZooKeeper is shared."""
    with DevCluster(tmp_path_factory.mktemp("order"), nodes=0, watchdogs=1, guest_of=zookeeper, session_timeout_s=LONG_S) as made:
        for name in POLICIES:
            made.start_starter(f"n-{name}", cores=CORES, options=["--partition", name])
        made.wait_healthy(nodes=len(POLICIES), deadline_s=120)
        yield made


@pytest.fixture(scope="module")
def played(cluster: DevCluster, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, list[Played]]:
    """All policies at once: what became of each one's jobs."""
    sh = Shell(tmp_path_factory.mktemp("user"), cluster.environment())
    settings = [f'[queues.{name}]\ndispatch = "place"\npartition = "{name}"\n' for name in POLICIES]
    sh.directory.joinpath("settings.toml").write_text("[queues.default]\n" + "".join(settings))
    sh.ok("config", "apply", "--remove", "settings.toml")
    for name in POLICIES:
        stage = POLICIES[name]
        lines = ["[[stage]]", f'policy = "{stage["policy"]}"']
        parameters = stage.get("parameters", {})
        assert isinstance(parameters, Mapping)
        lines += ["[stage.parameters]", *(f"{key} = {json.dumps(value)}" for key, value in parameters.items())]
        if name == "queue-first-fit":
            lines += [f'[[queue]]\nname = "{queue["name"]}"\nmax_cpus = {queue["max_cpus"]}' for queue in _QUEUES]
        sh.directory.joinpath(f"{name}.toml").write_text("\n".join(lines) + "\n")
        sh.ok("policy", "set", f"{name}.toml", "--partition", name)
    meetings = tmp_path_factory.mktemp("meetings")
    for name in POLICIES:
        meetings.joinpath(name).mkdir()
    with connected(cluster) as connection, ThreadPoolExecutor(len(POLICIES)) as threads:
        playing = {
            name: threads.submit(
                WorkloadStage(connection, queue=name).play,
                workload(name),
                checkpoints=name == "ljf-migration",
                meeting=meetings / name,
            )
            for name in POLICIES
        }
        return {name: running.result(300) for name, running in playing.items()}


@pytest.mark.parametrize("name", POLICIES)
def test_jobs_start_on_real_nodes_in_the_order_of_the_simulator(name: str, played: Mapping[str, list[Played]]) -> None:
    live, virtual = played[name], simulated(workload(name), document(name), nodes=1, cores=CORES)
    assert [one.state for one in live] == [one.state for one in virtual]
    wrong = [
        (one.number, other.number)
        for one in virtual
        for other in virtual
        if one.start_us + APART_US <= other.start_us and live[one.number - 1].start_us >= live[other.number - 1].start_us
    ]
    assert not wrong, {one.number: (one.start_us, live[one.number - 1].start_us) for one in virtual}


def test_the_workload_tells_policies_apart() -> None:
    orders = set()
    for name in POLICIES:
        virtual = simulated(workload(name), document(name), nodes=1, cores=CORES)
        ends = sorted(one.end_us for one in virtual)
        assert min(after - before for before, after in pairwise(ends)) >= 400_000, name
        orders.add(tuple(one.start_us for one in virtual))
    assert len(orders) >= 6, orders


def test_people_see_priority_and_fair_shares(cluster: DevCluster, played: Mapping[str, list[Played]], tmp_path: Path) -> None:
    """By the policy that orders by them, live; nowhere else."""
    sh = Shell(tmp_path, cluster.environment())
    running = sh.submit("-q", "fair-share", "-c", str(CORES), "--account", "physics", "--", "sleep", "600")
    eventually(lambda: sh.ok("show", running, "--json").json["state"] == "RUNNING")
    waiting = sh.submit("-q", "fair-share", "-c", "1", "--priority", "3", "--", "true")
    elsewhere = sh.submit("-q", "fcfs", "--hold", "--", "true")
    try:
        of = {job["id"]: job for job in sh.ok("jobs", "--json").json["jobs"]}
        assert of[elsewhere]["share_core_seconds"] is None
        assert of[waiting]["share_core_seconds"] > 1.0, "what the jobs of this user took that were played before"
        assert of[waiting]["share_core_seconds"] == of[waiting]["account_share_core_seconds"]
        first = of[running]["share_core_seconds"]
        assert 0.0 < first == of[running]["account_share_core_seconds"]
        lines = sh.ok("jobs", "-o", "id,priority,share").out.split("\n")
        assert [line.split()[0:2] for line in lines[1:4]] == [[running, "0"], [waiting, "3"], [elsewhere, "0"]]
        assert lines[0].split() == ["ID", "PRIORITY", "SHARE"]
        assert "/" in lines[1].split()[2]
        assert lines[3].split()[2] == "-"
        told = sh.ok("explain", waiting, "--json").json
        assert told["priority"] == 3
        assert told["share_core_seconds"] == pytest.approx(of[waiting]["share_core_seconds"], rel=1e-3), "it halves in a week"
        words = sh.ok("explain", waiting).out
        assert "priority: 3" in words
        assert "fair share: its user" in words
        assert "fair share: account physics" in sh.ok("explain", running).out
        assert "fair share" not in sh.ok("explain", elsewhere).out
        again = {job["id"]: job for job in sh.ok("jobs", "--json").json["jobs"]}
        assert again[running]["share_core_seconds"] > first, "it is as of now: what runs counts"
    finally:
        sh.ok("cancel", running, waiting, elsewhere)
