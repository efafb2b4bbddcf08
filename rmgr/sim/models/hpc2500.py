"""Workload model: batch jobs of Kyoto's HPC2500, guessed from paper 000, since the machine's log is not public.

Algorithm:
1. CPUs by weights: 1: .34, 2: .06, 4: .16, 8: .16, 16: .10, 32: .08, 64: .05, 128: .04, 256: .007, 512: .003.
2. Shape. Up to 8 CPUs: with probability .5 one process with a thread per CPU, else one process per CPU with a single thread. More CPUs:
   with probability .25 one process on one node, if that makes at most 128 threads; else the number of threads is drawn uniformly from the
   divisors of the CPUs up to 32, and processes = CPUs / threads.
3. Elapsed time: log-normal, its median by CPUs from table 1 (CPU time / parallelism; 2 CPUs: 40 s, 256 CPUs: 24,000 s), sigma 2.2 of the
   natural logarithm, cut to [5 s, 72 h], whole seconds. The requested time is the elapsed time.
4. Arrivals: Poisson at load 1 of the machine; `Workload.at_load` stretches them to the desired load.
5. The user's queue (kind `user`): drawn uniformly from the queues that admit the job; a job that ss8 admits goes to ss8 with probability
   .5 before that draw. Without the kind, the scheduler chooses the queue. Both kinds have exactly the same jobs.
Parameters: jobs, processors (for the arrival rate), seed; each purpose has its own random stream.
Source: papers.md 1.6 (all of it a choice of the project; medians of paper 000, table 1). Differs from it in: nothing.
"""

from __future__ import annotations

import math
import random
from itertools import accumulate

from rmgr.errors import UsageError
from rmgr.sched import job as sched
from rmgr.sched.queue_class import HPC2500, admitting
from rmgr.sim.workload.jobs import SECOND, Workload, WorkloadJob, stream

#: 11 nodes with 128 CPUs each (papers.md 1.1, a choice: the paper does not say).
NODES = 11
CPUS_PER_NODE = 128
PROCESSORS = NODES * CPUS_PER_NODE
#: Who chooses the queue: "" = the scheduler, "user" = the user, as at Kyoto.
KINDS = ("", "user")

#: CPUs -> weight.
WEIGHTS = {1: 0.34, 2: 0.06, 4: 0.16, 8: 0.16, 16: 0.10, 32: 0.08, 64: 0.05, 128: 0.04, 256: 0.007, 512: 0.003}
#: CPUs -> median CPU time (ms): table 1.
TABLE_1_MS = {1: 1.26e4, 4: 5.17e5, 8: 3.62e5, 16: 1.41e7, 32: 2.38e8, 64: 1.63e8, 128: 1.86e9, 512: 1.99e10}
#: CPUs -> median elapsed time (s).
MEDIAN_S = {cpus: ms / 1000 / cpus for cpus, ms in TABLE_1_MS.items()} | {2: 40.0, 256: 24_000.0}
SIGMA = 2.2
SHORTEST_S = 5
LONGEST_S = 72 * 3600
_WHOLE_PROCESS = 0.25
_PREFER_SHORT = 0.5


def hpc2500(jobs: int, *, processors: int = PROCESSORS, seed: int = 0, kind: str = "", small: int = 1) -> Workload:
    """Draws `jobs` jobs that arrive at about load 1. small: factor by which jobs of up to 8 CPUs are more frequent.

    Raises: UsageError for fewer than one job, or a machine of fewer than 512 processors. Cost: 20 us a job.
    """
    if jobs < 1 or processors < max(WEIGHTS):
        raise UsageError(
            f"hpc2500 cannot make {jobs} jobs for {processors} processors", hint=f"at least 1 job and {max(WEIGHTS)} processors"
        )
    sizes, shapes = stream(seed, "hpc2500/sizes"), stream(seed, "hpc2500/shapes")
    lengths, arrivals, queues = (stream(seed, f"hpc2500/{purpose}") for purpose in ("lengths", "arrivals", "queues"))
    cpus_of = list(WEIGHTS)
    bounds = list(accumulate(weight * (small if cpus <= 8 else 1) for cpus, weight in WEIGHTS.items()))
    found = []
    for number in range(1, jobs + 1):
        cpus = sizes.choices(cpus_of, cum_weights=bounds)[0]
        processes, threads = _shape(cpus, shapes)
        run_us = _elapsed_s(cpus, lengths) * SECOND
        found.append((number, processes, threads, run_us, _users_queue(processes, threads, run_us, queues), arrivals.expovariate(1.0)))
    mean_gap_us = sum(p * t * run_us for _, p, t, run_us, _, _ in found) / (processors * jobs)
    made, at_us = [], 0
    for number, processes, threads, run_us, queue, gap in found:
        if number > 1:
            at_us += round(gap * mean_gap_us)
        made.append(
            WorkloadJob(
                number=number,
                submit_us=at_us,
                run_us=run_us,
                estimate_us=run_us,
                processors=processes * threads,
                processes=processes,
                threads=threads,
                queue=queue if kind else "",
            )
        )
    return Workload(name=f"hpc2500{f':{kind}' if kind else ''}", jobs=tuple(made), processors=processors)


def _shape(cpus: int, rng: random.Random) -> tuple[int, int]:
    """Draws (processes, threads per process)."""
    if cpus <= 8:
        return (1, cpus) if rng.random() < 0.5 else (cpus, 1)
    if cpus <= CPUS_PER_NODE and rng.random() < _WHOLE_PROCESS:
        return 1, cpus
    threads = rng.choice([t for t in range(1, 33) if cpus % t == 0])
    return cpus // threads, threads


def _elapsed_s(cpus: int, rng: random.Random) -> int:
    return min(max(round(MEDIAN_S[cpus] * math.exp(SIGMA * rng.gauss(0.0, 1.0))), SHORTEST_S), LONGEST_S)


def _users_queue(processes: int, threads: int, run_us: int, rng: random.Random) -> str:
    job = sched.Job(id=1, submit_us=0, processes=processes, threads=threads, limit_us=run_us)
    able = [queue.name for queue in admitting(job, HPC2500)]
    prefers = rng.random() < _PREFER_SHORT
    chosen = rng.choice(able)
    return "ss8" if prefers and "ss8" in able else chosen
