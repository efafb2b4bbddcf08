"""Placed jobs: what a rigid parallel request asks for beside its shape, and where the leader has put one attempt of it.

A placed job is a task of a submission in a queue with `dispatch = place`: a block of one task that only the leader may give to a node.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from rmgr.model.base.ids import Newer, SpanUs, newer

#: Tasks of one submission that a scheduler's job id has room for.
MAX_INDEX = 1 << 20
#: `Rigid.launch`: what becomes of the function of a TaskQueue.
ONCE, RANKS, MPI = "", "ranks", "mpi"
#: `Rigid.restart`.
FROM_CHECKPOINT, FROM_START = "checkpoint", "start"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rigid:
    """Shape of a placed request; cores and memory of `Request` are those of one process.

    nodes: on exactly so many nodes, processes spread evenly; 0 = wherever they fit. exclusive: no other job on its nodes. nodelist: only
    on these nodes; exclude: on none of these. begin_us: not before this time (us since the epoch), 0 = at once.
    kill_on_bad_exit: all ranks end when one of them fails. checkpoint_every_us: 0 = only when asked. checkpoint_grace_us: how long it may
    take to save its state when it is asked to, unless who asks says otherwise. restart: an attempt begins with what the last checkpoint
    holds (`FROM_CHECKPOINT`), or always from the start (`FROM_START`: nothing is stored). launch, of functions: it is called once, on
    the first node (`ONCE`), in each process, with the variables of a rank (`RANKS`), or in each process of an MPI program (`MPI`).
    queue_class: the queue class that its user named; "" = the policy chooses.
    checkpoint: its program saves its state when it is asked to, so that policies may move it. max_moves: so often one may, 0 = as often as
    it likes.
    """

    processes: int = 1
    nodes: int = 0
    exclusive: bool = False
    nodelist: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    begin_us: SpanUs = 0
    kill_on_bad_exit: bool = False
    checkpoint_every_us: SpanUs = 0
    checkpoint_grace_us: SpanUs = 30_000_000
    restart: str = "checkpoint"
    launch: str = ONCE
    queue_class: str = ""
    checkpoint: bool = False
    max_moves: int = 0
    newer: Newer = newer()

    def saves(self, answered: bool = False) -> bool:
        """It loses nothing when it is moved. answered: its program has answered a request to save its state before."""
        return self.restart != FROM_START and (self.checkpoint or self.checkpoint_every_us > 0 or answered)


class Allocation(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Nodes of one attempt of a job. shares: (node, processes), the head first; on every node processes x threads cores.

    threads: cores of one process. memory_mib: of one process, 0 = not counted. started_us: when the leader placed it (its clock).
    planned_us: how long it was planned for, 0 = no limit. whole: of a job that has its nodes for itself: all cores of each node, in the
    order of `shares`; it has their other resources, too, but of the memory what it asked for. gang: it runs in the slots that
    `/gangs/<gang>` gives it, and stands still in others; "" = in none. generation: of that record, by which it was placed: an earlier
    one may have the attempt on other cores. changes: amendments of its submission's record, by which it was placed: its node reads that
    one, or a later one.
    """

    shares: tuple[tuple[str, int], ...]
    threads: int
    memory_mib: int = 0
    started_us: int = 0
    planned_us: int = 0
    whole: tuple[int, ...] = ()
    gang: str = ""
    generation: int = 0
    changes: int = 0

    @property
    def cores(self) -> tuple[int, ...]:
        """On each node, in the order of `shares`."""
        return self.whole or tuple(count * self.threads for _, count in self.shares)

    @property
    def head(self) -> str:
        """The node that runs its script and commits its end."""
        return self.shares[0][0]

    @property
    def helpers(self) -> tuple[tuple[str, int], ...]:
        """The other nodes."""
        return self.shares[1:]

    @property
    def processes(self) -> int:
        """On all nodes."""
        return sum(count for _, count in self.shares)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeHold:
    """`/holds/<node>/<submission>.<index>.<attempt>`: a job that runs elsewhere has these cores here; its Starter never pulls into them.

    head: the node that runs the job. key: name of its block there. The hold goes when that block is gone.
    cores: of its processes; whole: it has all of the node's, and all other resources. gang, generation: as those of the job's
    allocation.
    """

    head: str
    key: str
    cores: int
    memory_mib: int = 0
    processes: int = 0
    whole: bool = False
    gang: str = ""
    generation: int = 0
    newer: Newer = newer()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserved:
    """`/holds/<node>/r-<submission>.<index>`: cores that a waiting job was promised here; the Starter starts nothing else on them.

    shares: (run, cores): they are the waiting job's from the commit on that ends this run (`<submission>.<index>.<attempt>`); "" in place
    of a run that had ended when this was written. Nothing is written when it ends: that its block is gone says it. memory_mib, resources
    (name, pieces): what the waiting job will use on these cores. The record goes with the commit that places the job, or when its promise
    does.
    """

    shares: tuple[tuple[str, int], ...] = ()
    memory_mib: int = 0
    resources: tuple[tuple[str, int], ...] = ()
    newer: Newer = newer()


def run_label(submission: int, index: int, attempt: int) -> str:
    """One attempt of a job, as `Reserved.shares` and the names of holds have it."""
    return f"{submission}.{index}.{attempt}"


def job_id(submission: int, index: int) -> int:
    """The scheduler's id of a task: ids ascend in the order of submission. Raises: ValueError for an index too large."""
    if not 0 <= index < MAX_INDEX:
        raise ValueError(f"task {submission}_{index}: a placed submission has at most {MAX_INDEX} tasks")
    return submission * MAX_INDEX + index


def job_label(submission: int, index: int) -> str:
    """`42`, or `42_7` of the tasks behind its first."""
    return f"{submission}_{index}" if index else str(submission)


def task_of(job: int) -> tuple[int, int]:
    """(submission, index) of a scheduler's id."""
    return divmod(job, MAX_INDEX)
