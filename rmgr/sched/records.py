"""Records of the cluster state besides nodes, jobs and promises: what policies remember, hold and share in time, and operators' settings.

All of them are values: a new leader that reads them in any order decides as the old one would have. `partition` says where a record lives.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from rmgr.sched.job import Job, Node, Placement, Running, Span, each_node, room, spans_of

#: Cores as spans of nodes: (first node, last node, cores on each).
Cores: TypeAlias = tuple[Span, ...]


class Note(NamedTuple):
    """A policy's note on a job (kept until the job leaves the cluster, through starts, migrations and the like), or with id 0 on the
    partition. It goes when its policy leaves the pipeline. One per (policy, kind, id) and partition.
    """

    policy: str
    kind: str
    id: int
    value: tuple[int, ...]
    partition: str = "default"


class Share(NamedTuple):
    """Cores of a running job, all or some, that are promised to another job."""

    run_id: int
    cores: Cores


class Hold(NamedTuple):
    """A connection reservation: job `job_id` gets the cores of named runs once they have all left, and starts nowhere else.

    waits_for: shares of runs that still have their nodes; such a run is in no other hold. held: shares of runs that have left; these
    cores stay taken, also for pulled work, until the job starts or the hold is released. Both in order of run id.
    """

    job_id: int
    waits_for: tuple[Share, ...]
    held: tuple[Share, ...] = ()
    policy: str = ""

    @property
    def is_complete(self) -> bool:
        """Whether the job can start."""
        return not self.waits_for


class Maintenance(NamedTuple):
    """No job may run on these nodes in [start_us, end_us)."""

    id: int
    start_us: int
    end_us: int
    nodes: tuple[int, ...]
    name: str = ""
    partition: str = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a partition; 0 = none. The first three limit running work; a job whose limit exceeds max_time_us can never run."""

    max_cpus_per_user: int = 0
    max_jobs_per_user: int = 0
    max_cpus_per_account: int = 0
    max_time_us: int = 0


class Used(NamedTuple):
    """Running work of a user or an account."""

    cpus: int = 0
    jobs: int = 0


class Usage(NamedTuple):
    """Core-microseconds used by a user under an account as of `at_us`; from then on they halve every half-life."""

    user: str
    account: str
    core_us: int
    at_us: int

    def decayed(self, now_us: int, half_life_us: int) -> int:
        """Returns the usage that still counts at `now_us`."""
        past = max(now_us - self.at_us, 0)
        return int(self.core_us * 2.0 ** (-past / half_life_us)) if past else self.core_us

    def charged(self, cpus: int, since_us: int, now_us: int, half_life_us: int, given_us: int | None = None) -> Usage:
        """Returns the usage after a run on `cpus` cores from `since_us` until `now_us`, with decay of each moment since it passed.

        given_us: for how long of that time the run had its cores, evenly spread; None: always.
        """
        lasted = max(now_us - since_us, 0)
        worth = -math.expm1(-math.log(2.0) * lasted / half_life_us) * half_life_us / math.log(2.0)
        if given_us is not None:
            worth = worth * given_us / lasted if lasted else given_us
        return self._replace(core_us=self.decayed(now_us, half_life_us) + round(cpus * worth), at_us=now_us)


class Suspended(NamedTuple):
    """A job stopped in place: its cores are free, its memory is not. run: its last stretch of running."""

    run: Running
    since_us: int


class Gang(NamedTuple):
    """Jobs that share nodes in time: a queue tree with its front, from which every node computes the same slots by itself.

    Nodes on which the gang's jobs run belong to the gang as a whole. A job that has left stays in the record, and its slots stay
    empty, until the record is set again.

    slot_us, origin_us: slot k lasts slot_us from origin_us + k x slot_us. slot: the one at whose beginning queues and front hold.
    width: of the tree. leaves: its leaves from the left, as cores of nodes. queues: (tree node, (job, adjacent entries) in order of
    service).
    front: (tree node, entries still to be served in this round, has completed a round in this phase) of every node that runs.
    late: (job, tree node, entries) that wait for the root's next round. next_round: newcomers to an empty queue also wait for it.
    memory_share: a job without a memory request counts as using 1/memory_share of its cores' part of the node's memory; 0: not counted.
    """

    name: str
    slot_us: int
    origin_us: int
    slot: int
    width: int
    leaves: Cores
    queues: tuple[tuple[int, tuple[tuple[int, int], ...]], ...]
    front: tuple[tuple[int, int, bool], ...] = ()
    late: tuple[tuple[int, int, int], ...] = ()
    next_round: bool = False
    policy: str = ""
    partition: str = "default"
    memory_share: int = 0

    @property
    def homes(self) -> dict[int, int]:
        """Job -> its tree node, in order of the queues."""
        found = {job_id: node for node, entries in self.queues for job_id, _ in entries}
        return found | {job_id: node for job_id, node, _ in self.late}

    @property
    def jobs(self) -> tuple[int, ...]:
        """Ids of all jobs in the gang, ascending."""
        return tuple(sorted(self.homes))


class GangTime(NamedTuple):
    """Fields of the fact `gang_time`."""

    partition: str
    shift_us: int | None
    why: str = ""
    most: int = 0


class Call(NamedTuple):
    """A request to be sent to a server: its number of operations, and its bytes over the link of this client.

    function: name of the called function, "" = one that every server has. excluded: servers that failed it before and must not get it.
    """

    id: int
    submit_us: int
    operations: int
    bytes: int
    client: str = ""
    partition: str = "default"
    function: str = ""
    excluded: tuple[str, ...] = ()


class Demand(NamedTuple):
    """A monitor's measurements of a queue: arrivals/s, mean service in seconds, coefficient of variation of the services."""

    arrivals_per_s: float = 0.0
    service_s: float = 0.0
    cv: float = 1.0


class Link(NamedTuple):
    """The network between a client and a server. capacity: bytes/s of one transfer alone. demand: of all transfers on it."""

    client: str
    capacity: float
    demand: Demand = Demand()


class Server(NamedTuple):
    """A server for calls, as last measured at `at_us`.

    speed: declared operations/s of a call alone. load: calls running and waiting there, and other work in units of a call.
    throughput: (client, bytes/s), ascending by client. slots: calls that run at a time. functions: offered ones, () = every function.
    site: where it stands. life: number of its incarnation. is_open: calls may be sent to it. mean_load: load averaged since the
    previous measurement. calibrated: operations/s of a benchmark alone there, 0 = never run. demand: calls and other work that came.
    links: by client, ascending. sent: calls sent there after `at_us` and before this record arrived; its load does not include them.
    """

    name: str
    speed: float
    load: float
    throughput: tuple[tuple[str, float], ...] = ()
    at_us: int = 0
    partition: str = "default"
    slots: int = 1
    functions: tuple[str, ...] = ()
    site: str = ""
    life: int = 0
    is_open: bool = True
    mean_load: float = 0.0
    calibrated: float = 0.0
    demand: Demand = Demand()
    links: tuple[Link, ...] = ()
    sent: int = 0

    def offers(self, function: str) -> bool:
        """Whether calls of this function can run here."""
        return not self.functions or not function or function in self.functions

    def takes(self, call: Call) -> bool:
        """Whether the call may be sent here: the server is open, offers the function, and is not excluded."""
        return self.is_open and self.offers(call.function) and self.name not in call.excluded

    def age_us(self, now_us: int) -> int:
        """Returns the age of the measurements."""
        return max(now_us - self.at_us, 0)


class Answered(NamedTuple):
    """An answered call.

    service_us: computing time of the call alone, without waiting or sharing. alone_us: time the whole call would have taken on an idle
    server and link. predicted_us: the policy's forecast when it sent the call, 0 = none.
    """

    call_id: int
    server: str
    submit_us: int
    end_us: int
    operations: int
    service_us: int
    alone_us: int
    predicted_us: int = 0
    function: str = ""
    partition: str = "default"

    @property
    def took_us(self) -> int:
        """Time from submission to answer."""
        return self.end_us - self.submit_us


class Learnt(NamedTuple):
    """Performance that answered calls showed: operations/s of one function with 2^power <= operations < 2^(power + 1) on one server."""

    server: str
    function: str
    power: int
    operations_per_s: float
    calls: int = 1
    partition: str = "default"


# -- arithmetic of held cores: where a job starts on its shares, which shares are valid ------------------------------------------------


def are_spans(spans: object, nodes: int) -> bool:
    """Checks a record's spans: a tuple of integer triples (first node, last node, count), none longer than `nodes` nodes."""
    return type(spans) is tuple and all(
        type(span) is tuple and [*map(type, span)] == [int, int, int] and span[1] - span[0] < nodes for span in spans
    )


def by_node(cores: Iterable[Cores]) -> dict[int, int]:
    """Returns node id -> total cores over all these spans, in ascending order of id."""
    total: dict[int, int] = {}
    for spans in cores:
        for node, count in each_node(spans):
            total[node] = total.get(node, 0) + count
    return dict(sorted(total.items()))


def placed_on(job: Job, shares: Iterable[Share], nodes: Mapping[int, Node]) -> Placement | None:
    """Places the job on the nodes of lowest id among the shares; None if they have no room for all its processes."""
    wanted = job.processes
    found: list[tuple[int, int]] = []
    for node, cores in by_node(share.cores for share in shares).items():
        if count := min(room(job, nodes.get(node), cores), wanted):
            found.append((node, count))
            wanted -= count
        if not wanted:
            return spans_of(found)
    return None


def is_within(part: Cores, whole: Mapping[int, int]) -> bool:
    """Whether `part` names no node twice and takes no more cores of any node than `whole` has."""
    seen: set[int] = set()
    if any(count < 1 or last < first for first, last, count in part):
        return False
    for node, count in each_node(part):
        if node in seen or count > whole.get(node, 0):
            return False
        seen.add(node)
    return True


def cores_of(run: Running) -> dict[int, int]:
    """Returns node id -> cores that the run has there."""
    return {node: count * run.job.threads for node, count in each_node(run.placement)}


def share_of(hold: Hold, run_id: int) -> Share:
    """Returns the share of the hold that waits for this run. Raises: StopIteration if there is none."""
    return next(share for share in hold.waits_for if share.run_id == run_id)


def after_leaving(hold: Hold, run_id: int) -> Hold:
    """Returns the hold after the run has left: the run's share moves from `waits_for` to `held`."""
    waits_for = tuple(share for share in hold.waits_for if share.run_id != run_id)
    return hold._replace(waits_for=waits_for, held=tuple(sorted((*hold.held, share_of(hold, run_id)))))
