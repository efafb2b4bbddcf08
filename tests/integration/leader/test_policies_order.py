"""Every policy of the catalogue that places plain jobs starts them on real nodes in the simulator's order.

Jobs end when they are told to, in the order in which they end in the simulator, and each only once everything has begun that begins before
it there. So what is compared are events, and no time of this machine matters.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from rmgr.bench.measuring import connected
from rmgr.bench.reality import command_draft, send
from rmgr.client.connection import Connection
from rmgr.client.specs import Options
from rmgr.dev.cluster import DevCluster
from rmgr.model.submission import Rigid
from rmgr.runtime import machine
from rmgr.sched.pipeline import pipeline_from
from rmgr.sim.engine.driver import simulate
from rmgr.sim.engine.outcome import Parting, Setting
from rmgr.sim.workload.jobs import SECOND, Workload, WorkloadJob
from tests.harness.waiting import eventually
from tests.integration.commands import Lend, Shell

CORES = 4
HOUR = 3600.0
#: (submitted at, processes, run time; s). The first has all cores until all others are there, then who starts next is the policy's choice.
#: At its end, the second and the third have waited for hours, all others for a second.
JOBS = (
    (0.0, 4, 3 * HOUR), (0.1, 3, 0.6), (0.2, 4, 1.8), (3 * HOUR - 1.2, 1, 2.4), (3 * HOUR - 1.1, 2, 1.0), (3 * HOUR - 1.0, 4, 0.8),
    (3 * HOUR - 0.9, 2, 2.3), (3 * HOUR - 0.8, 1, 0.5),
)  # fmt: skip
#: What a run is planned with: no end is near enough to matter.
LIMIT_US = round(4 * HOUR) * SECOND
#: Job "$2" notes in "$1/log" what it does, and ends when the FIFO "$1/$2" says so. Asked to move, it has nothing to save.
_JOB = """log=$1/log job=$2
save() { cd "$RMGR_CHECKPOINT_DIR"; cp .rmgr/number .rmgr/saved; [ ! -e .rmgr/stop ] || { echo "$job moves" >> "$log"; exit 85; }; }
trap save USR1; exec 3<>"$1/$2"; echo "$job runs" >> "$log"; until read -r word <&3; do :; done; echo "$job ends" >> "$log"
"""
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
    "ageing": {"policy": "sjf", "parameters": {"max_wait": "1h"}},
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


def simulated(name: str) -> list[str]:
    """What happens in the simulator, in order."""
    setting = Setting(nodes=1, cores=CORES, pipeline=pipeline_from(document(name)).stages, policy=name)
    result = simulate(workload(name), setting)
    assert not result.faults
    words = {Parting.ENDED: "ends", Parting.MIGRATED: "moves"}
    spells = [(one.job.number, spell) for one in result.outcomes for spell in one.spells]
    ends = [(spell.end_us, spell.parting is not Parting.ENDED, f"{number} {words[spell.parting]}") for number, spell in spells]
    assert len({at_us for at_us, is_move, _ in ends if not is_move}) == len(JOBS), "no two end at once"
    return in_order(what for _, _, what in sorted([*ends, *((spell.start_us, True, f"{number} runs") for number, spell in spells)]))


def in_order(events: Iterable[str]) -> list[str]:
    """The same events, and between two ends sorted: one decision has several consequences, in no order."""
    found: list[str] = []
    since: list[str] = []
    for event in events:
        if event.endswith("ends"):
            found += [*sorted(since), event]
            since = []
        else:
            since.append(event)
    return found + sorted(since)


def play(connection: Connection, sh: Shell, name: str, directory: Path) -> tuple[list[str], list[int]]:
    """Returns what happens on the node of a policy, up to the first event that is another one than in the simulator; and the jobs' numbers.

    The jobs say that they were submitted as long before the first one ends as in the workload.
    """
    planned, jobs = simulated(name), workload(name).jobs
    (directory / "log").touch()

    def happened() -> list[str]:
        return in_order((directory / "log").read_text().splitlines())

    began_us = machine.wall_us() - jobs[0].run_us
    numbers = []
    for job in jobs:
        os.mkfifo(directory / str(job.number))
        since_us = began_us + job.submit_us
        numbers.append(submit(connection, job, job.queue or name, directory, submitted_us=since_us, moves="migration" in name))
        eventually(happened)  # the first one runs before the others come
    eventually(lambda: are_known(sh, numbers[1:]), f"{name}: all are known to the leader, who could not choose them otherwise")
    for count, event in enumerate(planned):
        if event.endswith("ends"):
            eventually(lambda: len(happened()) >= count, lambda: f"{event} after {planned[:count]}, not after {happened()}")  # noqa: B023
            if happened()[:count] != planned[:count]:
                break
            (directory / event.split()[0]).write_text("end\n")
    eventually(lambda: len(happened()) >= len(planned) or happened() != planned[: len(happened())])
    return happened(), numbers


def are_known(sh: Shell, numbers: Iterable[int]) -> bool:
    """Whether the leader says of each waiting job what it waits for."""
    told = {job["id"]: job["detail"] for job in sh.ok("jobs", "--json").json["jobs"]}
    return all(told[str(number)] for number in numbers)


def submit(connection: Connection, job: WorkloadJob, queue: str, directory: Path, *, submitted_us: int, moves: bool) -> int:
    engine = connection.submitter
    options = Options(queue=queue, name=f"job-{job.number}", cores=job.threads, time=job.estimate_us / 1e6)
    argv = ("/bin/sh", "-c", _JOB, "sh", str(directory), str(job.number))
    draft = command_draft(engine, argv, options, rigid=Rigid(processes=job.processes, checkpoint=moves))
    return send(engine, replace(draft, submitted_us=submitted_us))


@pytest.fixture(scope="module")
def cluster(lend_secured: Lend) -> Iterator[DevCluster]:
    """A node of four cores for each policy, in a partition of its own."""
    with lend_secured() as lent:
        for name in POLICIES:
            lent.start_starter(f"n-{name}", cores=CORES, options=["--partition", name])
        lent.wait_healthy(nodes=len(POLICIES), deadline_s=120)
        yield lent


@pytest.fixture(scope="module")
def played(cluster: DevCluster, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, list[str]]:
    """All policies at once: what happened to each one's jobs."""
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
    stages = tmp_path_factory.mktemp("stages")
    for name in POLICIES:
        stages.joinpath(name).mkdir()
    with connected(cluster) as connection, ThreadPoolExecutor(len(POLICIES)) as threads:
        playing = {name: threads.submit(play, connection, sh, name, stages / name) for name in POLICIES}
        found = {name: running.result(300) for name, running in playing.items()}
    for name, (happened, numbers) in found.items():
        if happened == simulated(name):
            sh.ok("wait", *map(str, numbers))
    return {name: happened for name, (happened, _) in found.items()}


@pytest.mark.parametrize("name", POLICIES)
def test_jobs_start_on_real_nodes_in_the_order_of_the_simulator(name: str, played: Mapping[str, list[str]]) -> None:
    assert played[name] == simulated(name)


def test_the_workload_tells_policies_apart() -> None:
    orders = {tuple(simulated(name)) for name in POLICIES}
    assert len(orders) >= 8, orders


def test_people_see_priority_and_fair_shares(cluster: DevCluster, played: Mapping[str, list[str]], tmp_path: Path) -> None:
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
