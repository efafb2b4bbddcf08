"""Paper 001, its checks C1.1 to C1.10 (papers.md 2.5), each from the runs it asks for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise, product
from typing import NamedTuple

from rmgr.sched.catalogue import policy_named
from rmgr.sched.policy import Stage
from rmgr.sim.engine.driver import simulate
from rmgr.sim.engine.execution import MINUTE_US, NODES, UNIT, Grid
from rmgr.sim.engine.outcome import JobOutcome, Setting
from rmgr.sim.papers.paper001.runs import ALGORITHMS, INTERVALS, PENALTIES, TICK_US, Paper001Runs, differences, ratio, ratio_spread
from rmgr.sim.papers.report import PaperCheck, Within, WithinBounds, mean, spread
from rmgr.sim.workload.jobs import Workload, WorkloadJob

BUSY, LESS_BUSY = 500, 600
SR, RUN = "slowdown_ratio", "mean_run"
#: Of C1.4, which three do not decide.
SEEDS_OF_C1_4 = 6
PAIRS = (("FCFS", "FCFS/FF"), ("LJF", "LJF/FF"))
MIGRATING = (("FCFS/FF", "FCFS/FF+mig"), ("LJF/FF", "LJF/FF+mig"))
#: What the paper's text prints.
PAPER_STARVED = {"FCFS/FF": 93, "LJF/FF": 78, "FCFS/FF+mig": 0, "LJF/FF+mig": 0}
PAPER_MIGRATIONS = {"FCFS/FF+mig": 1300, "LJF/FF+mig": 361}
PAPER_RATIO = PAPER_MIGRATIONS["FCFS/FF+mig"] / PAPER_MIGRATIONS["LJF/FF+mig"]
#: (submit minute, nodes, minutes to run), in order of their numbers.
_JOBS = ((0, 512, 5000), (0, 100, 20), (5, 512, 300), (6, 128, 1000), (7, 128, 700), (8, 156, 400))
_ROOMY = ((0, 512, 5000), (0, 300, 20), (5, 412, 300), (6, 64, 1000), (7, 64, 700), (8, 84, 400))
HEAD, FOLLOWERS = 3, (4, 5, 6)
#: When the head can start: the tick at which job 2 has ended.
TICK_MIN = 20


class Reading(NamedTuple):
    """A reading of papers.md 2.2 at one inter-arrival time; it measures three seeds."""

    interval: int
    followers: str = "head"
    suspend: str = "all"
    returns: str = "own"

    def __str__(self) -> str:
        return f"{self.interval} {self.followers} {self.suspend} {self.returns}"

    def of(self, runs: Paper001Runs, measure: str) -> dict[str, float]:
        """Means by algorithm, First-Fit without and with migration."""
        its = runs.with_least_seeds().having(followers=self.followers, suspend=self.suspend, returns=self.returns)
        return {name: its.mean(measure, name, self.interval) for pair in MIGRATING for name in pair}

    def ratio(self, runs: Paper001Runs) -> float:
        """Migrations of FCFS over those of LJF."""
        found = self.of(runs, "migrations")
        return found["FCFS/FF+mig"] / max(found["LJF/FF+mig"], 1)

    def distance(self, runs: Paper001Runs) -> float:
        """From the paper's two numbers of migrations: mean of the shares by which ours differ."""
        found = self.of(runs, "migrations")
        return mean(abs(found[name] / printed - 1) for name, printed in PAPER_MIGRATIONS.items())


def readings(runs: Paper001Runs) -> list[Reading]:
    """Those that the paper leaves open; in a quick report ours alone."""
    if runs.quick:
        return [Reading(BUSY)]
    return [Reading(*each) for each in product((400, 500, 600), ("strict", "head", "any"), ("minimal", "all"), ("own", "tail"))]


def c1_1(runs: Paper001Runs) -> Iterator[PaperCheck]:
    ours = {}
    for name in ALGORITHMS:
        means = [runs.mean(SR, name, interval) for interval in runs.intervals]
        ours[name] = max(later / earlier for earlier, later in pairwise(means))
    yield PaperCheck(
        id="C1.1",
        what=f"SR falls with every step of the inter-arrival time, {INTERVALS[0]} to {INTERVALS[-1]} min: its largest step, as a factor",
        ours=ours,
        rule=WithinBounds(below=1),
    )


def c1_2(runs: Paper001Runs) -> Iterator[PaperCheck]:
    low = ("SJF", "FCFS/FF", "LJF/FF")
    by_name = {name: runs.of(SR, name, BUSY) for name in ("LJF", "FCFS", *low)}
    largest = max(low, key=lambda name: mean(by_name[name]))
    pairs = {"LJF / FCFS": ("LJF", "FCFS"), "FCFS / the largest of SJF, FCFS/FF, LJF/FF": ("FCFS", largest)}
    yield PaperCheck(
        id="C1.2",
        what=f"at {BUSY} min: SR(LJF) > SR(FCFS) > SR of SJF, FCFS/FF and LJF/FF",
        ours={row: ratio(by_name[above], by_name[below]) for row, (above, below) in pairs.items()},
        spread={row: ratio_spread(by_name[above], by_name[below]) for row, (above, below) in pairs.items()},
        rule=WithinBounds(above=1),
    )


def c1_3(runs: Paper001Runs) -> Iterator[PaperCheck]:
    ours, spreads = {}, {}
    for without, with_search in PAIRS:
        for interval in runs.intervals:
            below, above = runs.of(SR, without, interval), runs.of(SR, with_search, interval)
            row = f"{with_search} / {without} at {interval}"
            ours[row], spreads[row] = ratio(above, below), ratio_spread(above, below)
    yield PaperCheck(
        id="C1.3", what="First-Fit lowers SR at every inter-arrival time", ours=ours, spread=spreads, rule=WithinBounds(below=1)
    )


def c1_4(runs: Paper001Runs) -> Iterator[PaperCheck]:
    for (without, migrating), part in zip(MIGRATING, ("", "b"), strict=True):
        ours, spreads = {}, {}
        for interval in (BUSY, LESS_BUSY):
            above = runs.of(SR, migrating, interval, least_seeds=SEEDS_OF_C1_4)
            below = runs.of(SR, without, interval, least_seeds=SEEDS_OF_C1_4)
            row = f"at {interval}"
            ours[row], spreads[row] = ratio(above, below), ratio_spread(above, below)
        yield PaperCheck(
            id=f"C1.4{part}",
            what=f"SR({migrating}) / SR({without}), at least {SEEDS_OF_C1_4} seeds",
            ours=ours,
            spread=spreads,
            rule=WithinBounds(at_most=1),
            required=not part,
        )


def c1_5(runs: Paper001Runs) -> Iterator[PaperCheck]:
    found = {
        migrating: differences(runs.of("utilisation", migrating, BUSY), runs.of("utilisation", without, BUSY))
        for without, migrating in MIGRATING
    }
    yield PaperCheck(
        id="C1.5",
        what=f"at {BUSY} min migration does not lower the utilisation: with - without",
        ours={name: mean(values) for name, values in found.items()},
        spread={name: spread(values) for name, values in found.items()},
        rule=WithinBounds(at_least=0),
    )


def c1_6(runs: Paper001Runs) -> Iterator[PaperCheck]:
    found = differences(runs.of("utilisation", "LJF", BUSY), runs.of("utilisation", "SJF", BUSY))
    yield PaperCheck(
        id="C1.6",
        what=f"at {BUSY} min: utilisation(LJF) - utilisation(SJF)",
        ours=mean(found),
        spread=spread(found),
        rule=WithinBounds(at_least=0),
    )


def growth(runs: Paper001Runs, algorithm: str, penalty: int = PENALTIES[-1]) -> list[float]:
    """By how much the mean run time grows from the lowest penalty to this one, a share, seed by seed."""
    low = runs.of(RUN, algorithm, BUSY, penalty=PENALTIES[0])
    high = runs.of(RUN, algorithm, BUSY, penalty=penalty)
    return [b / a - 1 for a, b in zip(low, high, strict=True)]


def _charged(runs: Paper001Runs, algorithm: str) -> list[float]:
    """Growth of the mean run time as a share of what the counted migrations cost more, seed by seed."""
    low, high = ({m: runs.of(m, algorithm, BUSY, penalty=p) for m in (RUN, "charged")} for p in (PENALTIES[0], PENALTIES[-1]))
    costs = [PENALTIES[-1] * b - PENALTIES[0] * a for a, b in zip(low["charged"], high["charged"], strict=True)]
    return [(b - a) / max(cost, 1) for a, b, cost in zip(low[RUN], high[RUN], costs, strict=True)]


def c1_7(runs: Paper001Runs) -> Iterator[PaperCheck]:
    both = [migrating for _, migrating in MIGRATING]
    grown = {name: growth(runs, name) for name in both}
    yield PaperCheck(
        id="C1.7",
        what=f"at {BUSY} min the mean run time grows with the penalty, {PENALTIES[0]} to {PENALTIES[-1]} min a node: share",
        ours={name: mean(values) for name, values in grown.items()},
        spread={name: spread(values) for name, values in grown.items()},
        rule=WithinBounds(above=0),
    )
    charged = {name: _charged(runs, name) for name in both}
    yield PaperCheck(
        id="C1.7c",
        what="it grows by what (4) charges, N x penalty for each migration at the speed of (2): growth / charge",
        paper=dict.fromkeys(both, 1),
        ours={name: mean(values) for name, values in charged.items()},
        spread={name: spread(values) for name, values in charged.items()},
        rule=Within(relative=0.25),
    )
    more = differences(*grown.values())
    yield PaperCheck(
        id="C1.7b",
        what=f"it grows at least as much for {both[0]} as for {both[1]}: difference of the shares",
        ours=mean(more),
        spread=spread(more),
        rule=WithinBounds(at_least=0),
    )


def c1_8(runs: Paper001Runs) -> Iterator[PaperCheck]:
    found = {name: runs.of("migrations", name, BUSY) for _, name in MIGRATING}
    first, second = found.values()
    yield PaperCheck(
        id="C1.8",
        what=f"at {BUSY} min there are 10^2 to 10^3 migrations",
        paper=PAPER_MIGRATIONS,
        ours={name: mean(values) for name, values in found.items()},
        spread={name: spread(values) for name, values in found.items()},
        rule=WithinBounds(at_least=100, at_most=max(PAPER_MIGRATIONS.values())),
    )
    needless = {name: mean(runs.of("needless", name, BUSY)) for _, name in MIGRATING}
    yield PaperCheck(
        id="C1.8d",
        what="migrations that no head explains which the migrated job had passed, by the schedule alone",
        paper=dict.fromkeys(needless, 0),
        ours=needless,
        rule=Within(),
    )
    yield PaperCheck(
        id="C1.8b",
        what="more of them with FCFS/FF than with LJF/FF: ratio",
        paper=PAPER_RATIO,
        ours=ratio(first, second),
        spread=ratio_spread(first, second),
        rule=WithinBounds(above=1),
    )


def c1_8_readings(runs: Paper001Runs) -> Iterator[PaperCheck]:
    found = {str(reading): reading.ratio(runs) for reading in readings(runs)}
    nearest = min(found, key=lambda name: abs(found[name] - PAPER_RATIO))
    yield PaperCheck(
        id="C1.8c",
        what=f"that ratio as the paper has it; nearest of {len(found)} readings: {nearest}",
        paper=PAPER_RATIO,
        ours=found[nearest],
        rule=Within(relative=0.5),
    )


def c1_9(runs: Paper001Runs) -> Iterator[PaperCheck]:
    counts = {name: runs.of("starved", name, BUSY) for pair in MIGRATING for name in pair}
    fallen = {after: [1 - b / max(a, 1) for a, b in zip(counts[before], counts[after], strict=True)] for before, after in MIGRATING}
    yield PaperCheck(
        id="C1.9",
        what=f"at {BUSY} min migration lowers the number of starved jobs, rule (6), by 30 % and more: share",
        paper=dict.fromkeys(fallen, 1),
        ours={after: 1 - ratio(counts[after], counts[before]) for before, after in MIGRATING},
        spread={name: spread(values) for name, values in fallen.items()},
        rule=WithinBounds(at_least=0.3),
    )
    held = {migrating: mean(runs.of("held", migrating, BUSY)) for _, migrating in MIGRATING}
    yield PaperCheck(
        id="C1.9e",
        what="jobs that stood at the head while (1) held, by the schedule alone",
        paper=dict.fromkeys(held, 0),
        ours=held,
        rule=Within(),
    )


def c1_9_readings(runs: Paper001Runs) -> Iterator[PaperCheck]:
    found = {str(reading): reading.of(runs, "starved") for reading in readings(runs)}
    nearest = min(found, key=lambda name: sum(abs(found[name][row] - printed) for row, printed in PAPER_STARVED.items()))
    yield PaperCheck(
        id="C1.9b",
        what=f"starved jobs, rule (6), within a half of the paper's; nearest of {len(found)} readings: {nearest}",
        paper=PAPER_STARVED,
        ours=found[nearest],
        rule=Within(relative=0.5),
    )


def c1_9_by_hand(_runs: Paper001Runs) -> Iterator[PaperCheck]:
    demanded, happens = found()
    what = "figure 1 by hand: the head starts at the next tick, its followers run exactly N x penalty longer"
    yield PaperCheck(id="C1.9c", what=what, paper=demanded, ours=happens, rule=Within())
    demanded, happens = differing()
    what = "a case by hand in which suspend=all and suspend=minimal differ: what each follower runs longer"
    yield PaperCheck(id="C1.9d", what=what, paper=demanded, ours=happens, rule=Within())


def c1_10(runs: Paper001Runs) -> Iterator[PaperCheck]:
    kinds = (
        (
            "",
            "mean_of_ratios",
            "the mean of the jobs' own ratios ranks otherwise than (5): migration makes it worse",
            WithinBounds(above=1),
        ),
        ("b", SR, "(5), the ratio of means, as the other checks take it: with / without migration", WithinBounds(at_most=1)),
    )
    for part, measure, what, rule in kinds:
        found = {f"{b} / {a}": (runs.of(measure, b, BUSY), runs.of(measure, a, BUSY)) for a, b in MIGRATING}
        yield PaperCheck(
            id=f"C1.10{part}",
            what=f"at {BUSY} min {what}",
            ours={row: ratio(*values) for row, values in found.items()},
            spread={row: ratio_spread(*values) for row, values in found.items()},
            rule=rule,
            required=not part,
        )


def at_both(check: Callable[[Paper001Runs], Iterator[PaperCheck]]) -> Callable[[Paper001Runs], Iterator[PaperCheck]]:
    """The check with all followers suspended, and, reported, with as few as the head needs (its id has an `m`)."""

    def checks(runs: Paper001Runs) -> Iterator[PaperCheck]:
        yield from check(runs)
        for fewest in () if runs.quick else check(runs.having(suspend="minimal")):
            yield replace(fewest, id=f"{fewest.id}m", what=f"suspend=minimal: {fewest.what}", required=False)

    return checks


def joined(*checks: Callable[[Paper001Runs], Iterator[PaperCheck]]) -> Callable[[Paper001Runs], Iterator[PaperCheck]]:
    """All of them under one id."""
    return lambda runs: (found for check in checks for found in check(runs))


CHECKS: Mapping[str, Callable[[Paper001Runs], Iterator[PaperCheck]]] = {
    "C1.1": at_both(c1_1),
    "C1.2": c1_2,
    "C1.3": c1_3,
    "C1.4": at_both(c1_4),
    "C1.5": at_both(c1_5),
    "C1.6": c1_6,
    "C1.7": at_both(c1_7),
    "C1.8": joined(at_both(c1_8), c1_8_readings),
    "C1.9": joined(at_both(c1_9), c1_9_readings, c1_9_by_hand),
    "C1.10": at_both(c1_10),
}


# -- figure 1 by hand ----------------------------------------------------------------------------------------------------------

# Paper 001, figure 1 by hand: a head of 512 nodes, three followers, and the 512 nodes that are idle or theirs.
#
# minute      0         5        10                 20
# job 1       512 nodes until minute 5,000
# job 2       100 nodes until minute 20
# job 3                 asks for 512, 412 are idle  starts: 100 idle + 412 of its followers
# jobs 4,5,6            ask      start past job 3   suspended; go on when job 3 has ended
#
# Where the head needs fewer nodes than idle and followers' ones together (`_ROOMY`), `suspend` decides whom it costs:
#
# minute      0         5        10                 20
# job 2       300 nodes until minute 20
# job 3                 asks for 412, 212 are idle  starts; 300 are idle: it needs 112 of 212 that its followers have
# jobs 4,5,6            64 + 64 + 84 start past it  minimal: 6 and 5 are suspended; all: 4 too, which starts again at once


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
