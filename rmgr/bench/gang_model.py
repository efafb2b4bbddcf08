"""Jobs that share cores in time on real nodes beside the simulator of the same jobs: what they use, and who gets how much.

Jobs of 1 to 8 processes come at .8 of the machine and sleep 10 ms at a time: a sleep that ends while a job stands still ends unseen, so the
job needs its turns. Then equals, jobs of all nodes and of one length, come at once. The simulator has no costs: starts, stops and Python
take no time in it.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Mapping, Sequence

from rmgr.bench.load.live_workload import Played, WorkloadStage, pipeline_with
from rmgr.bench.measuring import MeasuringPlan, Row, row
from rmgr.bench.reality import compare, simulated
from rmgr.sim.workload.jobs import SECOND, Workload, WorkloadJob

LOAD = 0.8
_JOBS, _EQUALS, _SEED = 24, 4, 11
#: Slots of this length (s).
_QUANTUM_S = 0.5


def model(plan: MeasuringPlan, stage: WorkloadStage, nodes: int, setup: str) -> list[Row]:
    """Rows beside what the simulator says. Raises: RmgrError for a job that does not run to its end."""
    document: Mapping[str, object] = {"stage": [{"policy": "dqt", "parameters": {"quantum": f"{_QUANTUM_S:g}s"}}]}
    stage.use(pipeline_with("dqt", document))
    jobs, equals = coming(max(1, round(_JOBS * plan.scale)), nodes), _workload([(0, nodes, 2_000_000)] * _EQUALS, nodes)
    used: list[float] = []
    apart: list[float] = []
    virtual, virtual_equals = simulated(jobs, document, nodes=nodes), simulated(equals, document, nodes=nodes)
    for _ in plan.rounds(f"{len(jobs.jobs)} jobs at a load of {LOAD:g}, then {_EQUALS} equals, live and simulated"):
        live = stage.play(jobs, naps=True)
        compare(live, virtual)
        used.append(utilisation(jobs, live))
        live_equals = stage.play(equals, naps=True)
        compare(live_equals, virtual_equals)
        apart.append(100 * farthest(live_equals, virtual_equals))
    told = utilisation(jobs, virtual)
    return [
        row("the simulator", "the same jobs", f"{len(jobs.jobs)} jobs at a load of {LOAD:g}: utilisation", "", [told]),
        row("rmgr", setup, "... on nodes", "", used, ratio=statistics.median(used) / told, apart=told - statistics.median(used)),
        row("rmgr", setup, f"shares of {_EQUALS} equals, live and simulated apart, the farthest", "%", apart),
    ]


def coming(count: int, nodes: int) -> Workload:
    """Jobs of 1 to all processes and 0.5 to 3 s that ask for `LOAD` of the machine."""
    rng = random.Random(_SEED)
    at_us, made = 0.0, []
    for _ in range(count):
        processes = rng.choice([size for size in (1, 1, 2, 4, 8) if size <= nodes])
        run_us = 10_000 * rng.randrange(50, 300)
        made.append((round(at_us), processes, run_us))
        at_us += processes * run_us / nodes / LOAD
    return _workload(made, nodes)


def utilisation(jobs: Workload, played: Sequence[Played]) -> float:
    """Of the machine, until the last job has ended."""
    return sum(job.processes * job.run_us for job in jobs.jobs) / jobs.processors / max(one.end_us for one in played)


def farthest(live: Sequence[Played], virtual: Sequence[Played]) -> float:
    """By what part the share of an equal (its work / its stay) differs from the simulated one, the first of both and so on: the most."""
    stays, others = (sorted(one.end_us - one.start_us for one in played) for played in (live, virtual))
    return max(abs(other / stay - 1) for stay, other in zip(stays, others, strict=True))


def _workload(jobs: Sequence[tuple[int, int, int]], nodes: int) -> Workload:
    made = [
        WorkloadJob(
            number=number, submit_us=at_us, run_us=run_us, estimate_us=600 * SECOND, processors=processes, processes=processes
        )
        for number, (at_us, processes, run_us) in enumerate(jobs, 1)
    ]
    return Workload(name="gang", jobs=tuple(made), processors=nodes)
