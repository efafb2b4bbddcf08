"""Connection reservation: which running jobs are promised to a job, and which of their cores it will use.

Algorithm (papers.md 1.5, `reserve`):
1. C = the running jobs of the requester's queue whose resources are promised to nobody (flag F unset).
2. A match: of the jobs in C with the same CPU request (processes and threads; option: CPUs only) the one that started first. The requester
   takes over exactly its cores.
3. No match: if everything that runs from the queue together has fewer CPUs than the requester needs, C becomes all running jobs with F
   unset (widening).
4. Take the largest job of C: most CPUs, then most threads, then the earliest start; until the requester can be placed on what is freed.
   C runs empty before that: nothing is promised.
5. Surplus: whenever one of the chosen jobs has ended, as many of its cores as the requester can spare are given back at once. So they come
   from the job that ends first among those that have any.
"Can be placed" knows nodes: the threads of a process lie inside one node, a node that is closed or lacks a feature counts for nothing.
Ties end with the lowest job id, and the lowest node id. CPUs that are idle already are not collected.
Parameters: match (`shape` or `cpus`). Source: papers.md 1.5, paper 000 section 3.2. Differs from it in: step 5 fixes what the paper calls a
suitable job, and does so when jobs end, not beforehand: who ends first is not known earlier.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from heapq import heapify, heapreplace
from typing import TypeAlias

from rmgr.sched.capacity.holds import cores_of
from rmgr.sched.job import Job, Running
from rmgr.sched.records import Cores as Spans

#: Node id -> cores.
Cores: TypeAlias = Mapping[int, int]
#: (job, node id, cores there) -> how many of the job's processes fit into them.
Room: TypeAlias = Callable[[Job, int, int], int]


def chosen(job: Job, mine: Sequence[Running], others: Sequence[Running], promised: Callable[[int], bool], room: Room, *,
           by_cpus: bool = False) -> tuple[Running, ...]:  # fmt: skip
    """The running jobs whose resources the job is promised; none when nothing does.

    Args:
        mine, others: what runs from the job's queue, and from every other. promised: by job id, flag F is set.
        room: nodes as they are. by_cpus: a match has as many CPUs; else as many processes and threads.
    Cost: O(runs), and a sort of them without a match.
    """
    candidates = [run for run in mine if not promised(run.job.id)]
    matches = (run for run in sorted(candidates, key=_earliest) if _matches(job, run.job, by_cpus=by_cpus))
    match = next((run for run in matches if _fits(job, cores_of(run), room)), None)
    if match is not None:
        return (match,)
    if sum(run.job.cpus for run in mine) < job.cpus:
        candidates += [run for run in others if not promised(run.job.id)]
    taken: list[Running] = []
    freed: Counter[int] = Counter()
    processes = 0
    for run in sorted(candidates, key=_largest):
        taken.append(run)
        for node, cores in cores_of(run).items():
            before = freed[node]
            freed[node] = before + cores
            processes += room(job, node, before + cores) - (room(job, node, before) if before else 0)
        if processes >= job.processes:
            return tuple(taken)
    return ()


def spared(job: Job, held: Cores, coming: Cores, room: Room) -> Cores | None:
    """Of the cores that are held for the job already, as many as it can spare: node -> how many. None: it fits on nothing of this.

    Args:
        held: cores that ended jobs have left it. coming: cores of chosen jobs that still run.
    Most cores are spared when each process is put where that costs least; cost falls nowhere on a node, so one process at a time does it.
    Cost: O((nodes + processes) log nodes).
    """
    # (what the next process there costs, node, processes there so far); a node counts only as far as processes fit
    costs: list[tuple[int, int, int]] = []
    most: dict[int, int] = {}
    for node in sorted(held.keys() | coming.keys()):
        most[node] = room(job, node, held.get(node, 0) + coming.get(node, 0))
        if most[node]:
            costs.append((_cost(job, held.get(node, 0), coming.get(node, 0), 1), node, 0))
    if sum(most.values()) < job.processes:
        return None
    heapify(costs)
    used: Counter[int] = Counter()
    for _ in range(job.processes):
        _, node, count = costs[0]
        count += 1
        used[node] = count
        next_cost = _cost(job, held.get(node, 0), coming.get(node, 0), count + 1) if count < most[node] else _NEVER
        heapreplace(costs, (next_cost, node, count))
    found = {node: _spare(job, cores, coming.get(node, 0), used[node]) for node, cores in held.items()}
    return {node: cores for node, cores in found.items() if cores}


def spans_of(cores: Cores) -> Spans:
    """Node -> cores as spans, ascending."""
    spans: list[tuple[int, int, int]] = []
    for node, count in sorted(cores.items()):
        if count and spans and spans[-1][1] == node - 1 and spans[-1][2] == count:
            spans[-1] = (spans[-1][0], node, count)
        elif count:
            spans.append((node, node, count))
    return tuple(spans)


_NEVER = 1 << 60


def _matches(job: Job, other: Job, *, by_cpus: bool) -> bool:
    return other.wanted_cpus == job.wanted_cpus if by_cpus else other.wanted == job.wanted


def _fits(job: Job, cores: Cores, room: Room) -> bool:
    return sum(room(job, node, count) for node, count in cores.items()) >= job.processes


def _spare(job: Job, held: int, coming: int, processes: int) -> int:
    """Cores of the held ones that so many processes on this node leave."""
    return min(held, held + coming - processes * job.threads)


def _cost(job: Job, held: int, coming: int, processes: int) -> int:
    """Held cores that the last of so many processes uses up."""
    return _spare(job, held, coming, processes - 1) - _spare(job, held, coming, processes)


def _earliest(run: Running) -> tuple[int, int]:
    return (run.start_us, run.job.id)


def _largest(run: Running) -> tuple[int, int, int, int]:
    return (-run.job.cpus, -run.job.threads, run.start_us, run.job.id)
