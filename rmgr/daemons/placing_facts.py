"""Znodes as the scheduler's nouns, and back: nodes get numbers, records of submissions become jobs, placements become allocations.

Pure. Numbers of nodes are this leader's own: what is recorded names nodes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import msgspec

from rmgr.model.block import BlockKey
from rmgr.model.node import NodeRecord
from rmgr.model.placing import Allocation, Rigid, job_id
from rmgr.model.resources import MIB
from rmgr.model.submission import Submission
from rmgr.sched.job import Job, Node, Placement, Reservation, Running
from rmgr.sched.records import Hold, Note, Share, Usage
from rmgr.sched.snapshot import Snapshot

_PARTS = re.compile(r"(\d+)")


def natural(name: str) -> tuple[object, ...]:
    """Sorts n2 before n10."""
    return tuple((1, int(part)) if part.isdigit() else (0, part) for part in _PARTS.split(name))


class Names:
    """Numbers of nodes: in natural order of their names when they are learned together; a later one gets the next number."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}
        self._names: list[str] = []

    def learn(self, names: Iterable[str]) -> None:
        """Numbers for those that have none."""
        for name in sorted(set(names) - self._ids.keys(), key=natural):
            self._ids[name] = len(self._names)
            self._names.append(name)

    def id(self, name: str) -> int:
        """Its number; a node that nobody has seen yet gets one."""
        if name not in self._ids:
            self.learn((name,))
        return self._ids[name]

    def name(self, number: int) -> str:
        """The node of that number. Raises: IndexError."""
        return self._names[number]


# -- nodes and jobs ------------------------------------------------------------------------------------------------------------


def node_of(record: NodeRecord, number: int, *, closed: bool, marks: Iterable[str] = ()) -> Node:
    """The node as the scheduler sees it. marks: further features (`node_mark`)."""
    attributes = record.attributes
    return Node(
        id=number,
        cores=record.capacity.cores,
        memory_bytes=record.capacity.memory_bytes,
        partition=attributes.partition,
        features=tuple(sorted({*attributes.features, *marks})),
        name=record.node,
        speed=attributes.speed,
        site=attributes.site,
        closed=closed,
    )


def node_mark(rigid: Rigid) -> str:
    """The feature that stands for "one of the nodes that this request allows", "" when it allows all."""
    if not rigid.nodelist and not rigid.exclude:
        return ""
    return f"={','.join(sorted(rigid.nodelist))};{','.join(sorted(rigid.exclude))}"


def allows(mark: str, node: str) -> bool:
    """Whether the request of this mark allows the node."""
    only, _, never = mark[1:].partition(";")
    return (not only or node in only.split(",")) and node not in never.split(",")


def per_node(rigid: Rigid) -> int:
    """Ranks of one of the scheduler's processes: 1, or where the number of nodes was asked for, as many as one node has of them at most."""
    return -(-rigid.processes // rigid.nodes) if rigid.nodes else 1


def job_of(submission: Submission, key: BlockKey, partition: str, now_us: int) -> Job:
    """A waiting task as a job. Where nodes were asked for, a process of the scheduler is all that one node gets.

    Raises: ValueError when it cannot be one.
    """
    request, rigid = submission.request, submission.rigid or Rigid()
    mark, together = node_mark(rigid), per_node(rigid)
    return Job(
        id=job_id(key.submission, key.first),
        submit_us=min(submission.submitted_us, now_us),
        processes=rigid.nodes or rigid.processes,
        threads=request.cores * together,
        limit_us=request.time_limit_us,
        memory_bytes=request.memory_bytes * together,
        features=(*request.features, mark) if mark else request.features,
        exclusive=rigid.exclusive,
        spread=bool(rigid.nodes),
        partition=partition,
        queue=submission.queue,
        user=submission.user,
        account=submission.account,
        priority=key.priority,
        begin_us=rigid.begin_us,
        restarts=key.attempt - 1,
    )


# -- placements ----------------------------------------------------------------------------------------------------------------


def allocation_of(submission: Submission, placement: Placement, names: Names, now_us: int) -> Allocation:
    """Nodes and ranks of a job that starts now; the first node is its head."""
    request, rigid = submission.request, submission.rigid or Rigid()
    counts = [(names.name(node), processes) for first, last, processes in placement for node in range(first, last + 1)]
    if rigid.nodes:
        share, more = divmod(rigid.processes, rigid.nodes)
        counts = [(name, share + (at < more)) for at, (name, _) in enumerate(counts)]
    return Allocation(
        shares=tuple(counts),
        threads=request.cores,
        memory_mib=-(-request.memory_bytes // MIB),
        started_us=now_us,
        planned_us=request.time_limit_us,
    )


def running_of(job: Job, allocation: Allocation, submission: Submission, names: Names) -> Running:
    """A job that has been placed, as the scheduler sees it."""
    rigid = submission.rigid or Rigid()
    shares = sorted((names.id(name), 1 if rigid.nodes else count) for name, count in allocation.shares)
    start_us = allocation.started_us
    return Running(job, start_us, start_us + job.planned_us, spans(shares))


def spans(shares: Sequence[tuple[int, int]]) -> Placement:
    """(node, processes), ascending -> spans."""
    found: list[tuple[int, int, int]] = []
    for node, count in shares:
        if found and found[-1][1] == node - 1 and found[-1][2] == count:
            found[-1] = (found[-1][0], node, count)
        else:
            found.append((node, node, count))
    return tuple(found)


# -- what is recorded -----------------------------------------------------------------------------------------------------------


#: (node, how many), one entry a node.
_Where: TypeAlias = tuple[tuple[str, int], ...]
#: (run, where).
_Shares: TypeAlias = tuple[tuple[int, _Where], ...]


class _Records(msgspec.Struct, array_like=True):
    """`/jobs/<partition>`: reservations (job, start, where, policy), notes (policy, kind, job, value), holds (job, policy, waits, held),
    usage (user, account, core-us, as of), routes (job, queue that was chosen for it); where use is
    kept, runs (job, user, account, cpus, start): what one has used that is gone when this is read is charged then; since (job, us): when
    the first cores were held for it."""

    reservations: tuple[tuple[int, int, _Where, str], ...] = ()
    notes: tuple[tuple[str, str, int, tuple[int, ...]], ...] = ()
    holds: tuple[tuple[int, str, _Shares, _Shares], ...] = ()
    usage: tuple[tuple[str, str, int, int], ...] = ()
    routes: tuple[tuple[int, str], ...] = ()
    runs: tuple[tuple[int, str, str, int, int], ...] = ()
    since: tuple[tuple[int, int], ...] = ()


_pack = msgspec.msgpack.Encoder()
_unpack = msgspec.msgpack.Decoder(_Records)


def encode_records(
    snapshot: Snapshot,
    partition: str,
    homes: Mapping[int, str],
    names: Names,
    routes: Mapping[int, str],
    *,
    since: Mapping[int, int] | None = None,
    with_usage: bool,
) -> bytes:
    """What policies remember of a partition. homes: partition of each job that reservations and holds may name; routes: of its jobs.

    since: when cores began to be held for a job (us); of those with a hold it is kept.
    """
    since = since or {}

    def named(placement: Placement) -> _Where:
        return tuple((names.name(node), count) for first, last, count in placement for node in range(first, last + 1))

    def shares(some: tuple[Share, ...]) -> _Shares:
        return tuple((share.run_id, named(share.cores)) for share in some)

    return _pack.encode(
        _Records(
            reservations=tuple(
                (r.job_id, r.start_us, named(r.placement), r.policy) for r in snapshot.reservations if homes.get(r.job_id) == partition
            ),
            notes=tuple((n.policy, n.kind, n.id, n.value) for n in snapshot.notes if n.partition == partition),
            holds=tuple(
                (h.job_id, h.policy, shares(h.waits_for), shares(h.held)) for h in snapshot.holds if homes.get(h.job_id) == partition
            ),
            usage=tuple((u.user, u.account, u.core_us, u.at_us) for u in snapshot.usage) if with_usage else (),
            routes=tuple(sorted(routes.items())),
            runs=tuple((r.job.id, r.job.user, r.job.account, r.job.cpus, r.start_us) for r in snapshot.running) if with_usage else (),
            since=tuple((h.job_id, since[h.job_id]) for h in snapshot.holds if homes.get(h.job_id) == partition and h.job_id in since),
        )
    )


def decode_records(
    data: bytes, partition: str, names: Names, waiting: frozenset[int], running: frozenset[int]
) -> tuple[list[Reservation], list[Note], list[Hold], list[Usage]]:
    """The same as records of the scheduler (routes aside, see `decode_routes`). Of jobs that have left meanwhile nothing is kept, and a
    share of such a run is free by now.

    Raises: msgspec.MsgspecError for what is no such record.
    """
    found = _unpack.decode(data)

    def placed(named: _Where) -> Placement:
        return spans(sorted((names.id(name), count) for name, count in named))

    reservations = [Reservation(job, start, placed(where), policy) for job, start, where, policy in found.reservations if job in waiting]
    known = waiting | running | {0}
    notes = [Note(policy, kind, job, value, partition) for policy, kind, job, value in found.notes if job in known]
    holds = []
    for job, policy, waits, held in found.holds:
        if job not in waiting:
            continue
        left = tuple(Share(run, placed(where)) for run, where in waits if run in running)
        freed = tuple(Share(run, placed(where)) for run, where in waits if run not in running)
        mine = tuple(Share(run, placed(where)) for run, where in held)
        holds.append(Hold(job, left, tuple(sorted((*mine, *freed))), policy))
    return reservations, notes, holds, [Usage(*use) for use in found.usage]


def decode_routes(data: bytes) -> dict[int, str]:
    """Job -> the queue that was chosen for it. Raises: msgspec.MsgspecError."""
    return dict(_unpack.decode(data).routes) if data else {}


def decode_since(data: bytes) -> dict[int, int]:
    """Job -> when cores began to be held for it (us). Raises: msgspec.MsgspecError."""
    return dict(_unpack.decode(data).since) if data else {}


def charged(data: bytes, running: frozenset[int], usage: Iterable[Usage], now_us: int, half_life_us: int) -> list[Usage]:
    """`usage`, with that of runs that were recorded and have ended since, as if they had ended now. Raises: msgspec.MsgspecError."""
    found = {(use.user, use.account): use for use in usage}
    for job, user, account, cpus, start_us in _unpack.decode(data).runs if data and half_life_us else ():
        if job not in running:
            had = found.get((user, account)) or Usage(user, account, 0, now_us)
            found[user, account] = had.charged(cpus, start_us, now_us, half_life_us)
    return sorted(found.values())
