"""Every stretch of every job, and its nodes, equal those of `plain_cluster.py`: random clusters in which things happen at equal times."""

from __future__ import annotations

from random import Random

import pytest
from plain_cluster import Asked, Happening, PlainCluster
from plain_cluster import Node as PlainNode

from rmgr.sched.catalogue import policy_named
from rmgr.sched.job import Node
from rmgr.sched.policy import Stage
from rmgr.sched.records import Limits
from rmgr.sim.engine.driver import simulate
from rmgr.sim.engine.machine import Machine
from rmgr.sim.engine.outcome import Setting
from rmgr.sim.engine.validate import check
from rmgr.sim.workload import events
from rmgr.sim.workload.jobs import Workload, WorkloadJob

WORLDS = 60
#: One unit of the plain cluster (us).
UNIT = 1_000_000
#: Name in the catalogue -> (plain policy, order).
POLICIES = {
    "fcfs": ("head_blocking", "fcfs"),
    "sjf": ("head_blocking", "sjf"),
    "ljf_first_fit": ("first_fit", "ljf"),
    "easy": ("easy", "fcfs"),
    "conservative": ("conservative", "fcfs"),
    "migration": ("migration", "fcfs"),
    "ljf_migration": ("migration", "ljf"),
}
KINDS = {"fail": events.NodesFail, "repair": events.NodesRepaired, "drain": events.NodesDrain, "undrain": events.NodesUndrain}


def jobs_of(rng: Random, cores: int, *, memory: bool, follow: bool) -> dict[int, Asked]:
    gaps, slack = rng.choice([[0], [0, 0, 1], [0, 1, 2, 5], [0, 0, 0, 10], [3, 10]]), rng.choice([[0], [0, 0, 1, 5], [1, 10, 30]])
    runs = rng.choice([[1], [1, 2, 3], [5, 10], list(range(1, 30))])
    jobs, now = {}, 0
    for number in range(1, rng.randint(2, 25)):
        run, threads = rng.choice(runs), 1 if follow else rng.choice([1, 1, 1, 2, 4])
        processes = max(1, rng.choice([1, cores, rng.randint(1, cores), rng.randint(1, cores)]) // threads)
        after = rng.randint(1, number - 1) if follow and number > 1 and rng.random() < 0.3 else 0
        jobs[number] = Asked(
            number, now, run, run + rng.choice(slack), processes, threads, rng.choice([0, 1, 2, 4]) if memory else 0, rng.choice("abc"),
            after, rng.choice([-1, 0, 3]) if after else -1,
        )  # fmt: skip
        now += rng.choice(gaps)
    return jobs


def happenings_of(rng: Random, nodes: int, jobs: int, until: int) -> list[Happening]:
    found = [Happening(until + 1000, kind, tuple(range(nodes))) for kind in ("repair", "undrain")]
    for _ in range(rng.randint(0, 4)):
        at, some = rng.randint(0, until), tuple(sorted(rng.sample(range(nodes), rng.randint(1, nodes))))
        closes, opens = rng.choice([("fail", "repair"), ("drain", "undrain")])
        found += [Happening(at, closes, some), Happening(at + rng.randint(1, 20), opens, some)]
    found += [Happening(rng.randint(0, until), "cancel", job=rng.randint(1, jobs)) for _ in range(rng.randint(0, 3))]
    for _ in range(rng.choice([0, 0, 1, 3])):
        at, some = rng.randint(0, until), tuple(sorted(rng.sample(range(nodes), rng.randint(1, nodes))))
        start = at + rng.randint(0, 20)
        found.append(Happening(at, "window", some, start=start, end=start + rng.randint(1, 20)))
    return sorted(found, key=lambda one: one.at)


def event(what: Happening) -> events.Event:
    nodes = tuple((node, node) for node in what.nodes)
    if what.kind == "cancel":
        return events.Cancel(what.at * UNIT, what.job)
    if what.kind == "window":
        return events.Window(what.at * UNIT, what.start * UNIT, what.end * UNIT, nodes, "window")
    return KINDS[what.kind](what.at * UNIT, nodes)


def workload_of(jobs: dict[int, Asked], cores: int) -> Workload:
    made = (
        WorkloadJob(
            number=job.id, submit_us=job.submit * UNIT, run_us=job.run * UNIT, estimate_us=job.limit * UNIT, processors=job.cores,
            processes=job.processes, threads=job.threads, memory_bytes=job.memory, user=job.user, after=job.after,
            think_us=job.think * UNIT if job.think >= 0 else -1,
        )
        for job in jobs.values()
    )  # fmt: skip
    return Workload(name="random", jobs=tuple(made), processors=cores)


@pytest.mark.parametrize(
    ("policy", "what"),
    [
        *((policy, what) for policy in POLICIES for what in ("nothing", "memory", "happenings")),
        # under migration who passed whom is recorded more roughly for these, as the policy says
        *((policy, what) for policy in POLICIES if "migration" not in policy for what in ("limits", "followers", "ageing")),
    ],
)
def test_every_stretch_is_the_plain_one(policy: str, what: str) -> None:
    search, order = POLICIES[policy]
    for seed in range(WORLDS):
        rng = Random(f"{what}/{seed}")
        memory = [4, 8] if what == "memory" else [0]
        nodes = {node: PlainNode(rng.choice([2, 3, 4]), rng.choice(memory)) for node in range(rng.choice([1, 2, 3, 5]))}
        cores = sum(node.cores for node in nodes.values())
        jobs = jobs_of(rng, cores, memory=what == "memory", follow=what == "followers")
        happenings = happenings_of(rng, len(nodes), len(jobs), jobs[len(jobs)].submit + 30) if what == "happenings" else []
        most = rng.choice([(2, 0), (0, 1), (3, 2)]) if what == "limits" else (0, 0)
        max_wait = rng.choice([1, 5, 20]) if what == "ageing" else 0
        reading = {"followers": rng.choice(["head", "strict", "any"]), "suspend": rng.choice(["all", "minimal"])}
        reading = reading if search == "migration" else {}
        plain = PlainCluster(jobs, nodes, happenings, search, order, max_wait, **reading, cpus_per_user=most[0], jobs_per_user=most[1])
        plain.run_all()
        machine = tuple(Node(id=node, cores=has.cores, memory_bytes=has.memory) for node, has in nodes.items())
        limits = events.LimitsChange(0, "default", Limits(max_cpus_per_user=most[0], max_jobs_per_user=most[1]))
        params = {**reading, **({"max_wait": f"{max_wait}s"} if max_wait else {})}
        setting = Setting(
            nodes=machine,
            pipeline=(Stage(policy_named(policy, params)),),
            policy=policy,
            events=(limits, *map(event, happenings)),
        )
        workload = workload_of(jobs, cores)
        result = simulate(workload, setting)
        check(result, workload, setting)
        placed = Machine(machine).placed
        for job, outcome in zip(jobs.values(), result.outcomes, strict=True):
            where = f"world {seed}, job {job.id}"
            assert outcome.state.name == plain.over[job.id], where
            spells = [(one.start_us // UNIT, one.end_us // UNIT, one.parting.value) for one in outcome.spells]
            assert spells == [one[:3] for one in plain.stretches[job.id]], where
            nodes_of = [{node: n for a, b, n in placed(one.cores, job.threads) for node in range(a, b + 1)} for one in outcome.spells]
            assert nodes_of == [one.where for one in plain.stretches[job.id]], where


