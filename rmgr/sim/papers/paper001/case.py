"""Paper 001, figure 1 by hand: a head of 512 nodes, three followers, and the 512 nodes that are idle or theirs.

minute      0         5        10                 20
job 1       512 nodes until minute 5,000
job 2       100 nodes until minute 20
job 3                 asks for 512, 412 are idle  starts: 100 idle + 412 of its followers
jobs 4,5,6            ask      start past job 3   suspended; go on when job 3 has ended

Where the head needs fewer nodes than idle and followers' ones together (`_ROOMY`), `suspend` decides whom it costs:

minute      0         5        10                 20
job 2       300 nodes until minute 20
job 3                 asks for 412, 212 are idle  starts; 300 are idle: it needs 112 of 212 that its followers have
jobs 4,5,6            64 + 64 + 84 start past it  minimal: 6 and 5 are suspended; all: 4 too, which starts again at once
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rmgr.sched.catalogue import policy_named
from rmgr.sched.policy import Stage
from rmgr.sim.engine.driver import simulate
from rmgr.sim.engine.execution import MINUTE_US, NODES, UNIT, Grid
from rmgr.sim.engine.outcome import JobOutcome, Setting
from rmgr.sim.papers.paper001.runs import TICK_US
from rmgr.sim.workload.jobs import Workload, WorkloadJob

#: (submit minute, nodes, minutes to run), in order of their numbers.
_JOBS = ((0, 512, 5000), (0, 100, 20), (5, 512, 300), (6, 128, 1000), (7, 128, 700), (8, 156, 400))
_ROOMY = ((0, 512, 5000), (0, 300, 20), (5, 412, 300), (6, 64, 1000), (7, 64, 700), (8, 84, 400))
HEAD, FOLLOWERS = 3, (4, 5, 6)
#: When the head can start: the tick at which job 2 has ended.
TICK_MIN = 20


def workload(rows: Sequence[tuple[int, int, int]] = _JOBS) -> Workload:
    jobs = tuple(
        WorkloadJob(
            number=number,
            submit_us=submit * MINUTE_US,
            run_us=run * MINUTE_US,
            estimate_us=run * MINUTE_US,
            processors=nodes,
            processes=nodes,
        )
        for number, (submit, nodes, run) in enumerate(rows, 1)
    )
    return Workload(name="figure 1", jobs=jobs, processors=NODES)


def outcomes(
    policy: str = "migration",
    *,
    penalty: int = 1,
    parameters: Mapping[str, str] | None = None,
    rows: Sequence[tuple[int, int, int]] = _JOBS,
) -> tuple[JobOutcome, ...]:
    """The fate of each job on 1,024 equal nodes of one site; penalty: minutes a node."""
    grid = Grid(specs=(UNIT,) * NODES, sites=(0,) * NODES, penalty_us=penalty * MINUTE_US)
    setting = Setting(
        nodes=grid.nodes(),
        pipeline=(Stage(policy_named(policy, parameters or {})),),
        policy=policy,
        tick_us=TICK_US,
        execution=grid,
    )
    return tuple(simulate(workload(rows), setting).outcomes)


def found(penalty: int = 1) -> tuple[dict[str, float], dict[str, float]]:
    """(what the text demands, what happens): minutes from the tick to the head's start; what each follower runs longer."""
    jobs = outcomes(penalty=penalty)
    demanded: dict[str, float] = {"head starts after the tick [min]": 0}
    happens: dict[str, float] = {"head starts after the tick [min]": jobs[HEAD - 1].start_us / MINUTE_US - TICK_MIN}
    for number in FOLLOWERS:
        outcome = jobs[number - 1]
        name = f"job {number}, {outcome.job.processors} nodes, runs longer [min]"
        demanded[name] = outcome.job.processors * penalty
        happens[name] = (outcome.ran_us - outcome.job.run_us) / MINUTE_US
    return demanded, happens


def differing(penalty: int = 1) -> tuple[dict[str, float], dict[str, float]]:
    """(what each setting of `suspend` demands, what happens): minutes that each follower runs longer in the roomy case."""
    demanded: dict[str, float] = {}
    happens: dict[str, float] = {}
    for suspend, spared in (("all", ()), ("minimal", (4,))):
        jobs = outcomes(penalty=penalty, parameters={"suspend": suspend}, rows=_ROOMY)
        happens[f"{suspend}: head starts after the tick"] = jobs[HEAD - 1].start_us / MINUTE_US - TICK_MIN
        demanded[f"{suspend}: head starts after the tick"] = 0
        for number in FOLLOWERS:
            outcome = jobs[number - 1]
            demanded[f"{suspend}: job {number}"] = 0 if number in spared else outcome.job.processors * penalty
            happens[f"{suspend}: job {number}"] = (outcome.ran_us - outcome.job.run_us) / MINUTE_US
    return demanded, happens
