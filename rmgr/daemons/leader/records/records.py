"""Codes what policies remember of a partition for `/jobs/<partition>`: nodes by name, for their numbers are one leader's own. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias, TypeVar

import msgspec

from rmgr.coord.protocol.records import unpack
from rmgr.daemons.leader.core.facts import Names
from rmgr.daemons.leader.records.job_table import JobTable
from rmgr.sched.job import Placement, Reservation, spans_of
from rmgr.sched.records import Hold, Note, Share, Usage
from rmgr.sched.state.cluster import ClusterState, notes_of
from rmgr.sched.state.partition import Partition

#: (node, how many), one entry a node.
_Where: TypeAlias = tuple[tuple[str, int], ...]
#: (run, where).
_Shares: TypeAlias = tuple[tuple[int, _Where], ...]
_T = TypeVar("_T")


class Stopped(msgspec.Struct, array_like=True, frozen=True):
    """A job that was asked to give its nodes up: which attempt of it, by which order; its last stretch; since when, None = unknown."""

    job: int
    attempt: int
    guid: str
    start_us: int
    end_us: int
    asked_us: int | None = None


class Records(msgspec.Struct, array_like=True, frozen=True):
    """reservations (job, start, where, policy), notes (policy, kind, job, value), holds (job, policy, waits, held), usage (user, account,
    core-us, as of), routes (job, queue that was chosen for it); where use is kept, runs (job, user, account, cpus, start): what one has
    used that is gone when this is read is charged then; since (job, us): when the first cores were held for it.

    Of jobs on the move: stops: those that were asked to give their nodes up; suspended (job, start, end, since): those that stand still;
    stays (job, start, end) of those that went on after either; queued (job, us): back in the queue since; marks (job, feature): where the
    next start must be; pins (job, us): no policy may send it back until then.
    """

    reservations: tuple[tuple[int, int, _Where, str], ...] = ()
    notes: tuple[tuple[str, str, int, tuple[int, ...]], ...] = ()
    holds: tuple[tuple[int, str, _Shares, _Shares], ...] = ()
    usage: tuple[tuple[str, str, int, int], ...] = ()
    routes: tuple[tuple[int, str], ...] = ()
    runs: tuple[tuple[int, str, str, int, int], ...] = ()
    since: tuple[tuple[int, int], ...] = ()
    stops: tuple[Stopped, ...] = ()
    suspended: tuple[tuple[int, int, int, int], ...] = ()
    stays: tuple[tuple[int, int, int], ...] = ()
    queued: tuple[tuple[int, int], ...] = ()
    marks: tuple[tuple[int, str], ...] = ()
    pins: tuple[tuple[int, int], ...] = ()

    def of_jobs(
        self, partition: str, names: Names, waiting: frozenset[int], running: frozenset[int], others: frozenset[int] = frozenset()
    ) -> tuple[list[Reservation], list[Note], list[Hold]]:
        """The scheduler's records. Of jobs that have left meanwhile nothing is kept, and a share of such a run is free by now.

        others: jobs that are there, and neither wait nor run.
        """

        def placed(named: _Where) -> Placement:
            return spans_of(sorted((names.id(name), count) for name, count in named))

        reservations = [Reservation(job, start, placed(where), policy) for job, start, where, policy in self.reservations if job in waiting]
        known = waiting | running | others | {0}
        notes = [Note(policy, kind, job, value, partition) for policy, kind, job, value in self.notes if job in known]
        holds = []
        for job, policy, waits, held in self.holds:
            if job not in waiting:
                continue
            left = tuple(Share(run, placed(where)) for run, where in waits if run in running)
            freed = tuple(Share(run, placed(where)) for run, where in waits if run not in running)
            mine = tuple(Share(run, placed(where)) for run, where in held)
            holds.append(Hold(job, left, tuple(sorted((*mine, *freed))), policy))
        return reservations, notes, holds

    def charged(self, running: frozenset[int], now_us: int, half_life_us: int) -> list[Usage]:
        """The use of everybody, with that of runs that were recorded and have ended since, as if they had ended now."""
        found = {(user, account): Usage(user, account, core_us, at_us) for user, account, core_us, at_us in self.usage}
        for job, user, account, cpus, start_us in self.runs if half_life_us else ():
            if job not in running:
                had = found.get((user, account)) or Usage(user, account, 0, now_us)
                found[user, account] = had.charged(cpus, start_us, now_us, half_life_us)
        return sorted(found.values())


_pack = msgspec.msgpack.Encoder()
_unpack = msgspec.msgpack.Decoder(Records)


def decode_records(data: bytes) -> Records:
    """Raises: msgspec.DecodeError for what is no such record."""
    return unpack(_unpack.decode, data) if data else Records()


def encode_records(
    part: Partition,
    names: Names,
    job_table: JobTable,
    orders: Mapping[int, tuple[int, str, int | None]],
    *,
    users: ClusterState | None = None,
) -> bytes:
    """b"" when there is nothing to remember. Cost: O(records), however many jobs wait.

    Args:
        job_table: what the leader remembers of jobs. orders: (attempt, order, since) of those that were asked to give their nodes up.
        users: whose use stands in this partition's record, None: in another's, or it is not kept.
    """

    def named(placement: Placement) -> _Where:
        return tuple((names.name(node), count) for first, last, count in placement for node in range(first, last + 1))

    def shares(some: Iterable[Share]) -> _Shares:
        return tuple((share.run_id, named(share.cores)) for share in some)

    def here(kept: Mapping[int, _T]) -> tuple[tuple[int, _T], ...]:
        tables = (part.jobs, part.running, part.suspended, part.stopping)
        return tuple(sorted((job, value) for job, value in kept.items() if any(job in table for table in tables)))

    since, holds = job_table.since, sorted(part.holds.values())
    stopping = [(run, orders[job]) for job, run in sorted(part.stopping.items()) if job in orders]
    found = Records(
        reservations=tuple((r.job_id, r.start_us, named(r.placement), r.policy) for r in sorted(part.reservations.values())),
        notes=tuple((note.policy, note.kind, note.id, note.value) for note in sorted(notes_of(part))),
        holds=tuple((hold.job_id, hold.policy, shares(hold.waits_for), shares(hold.held)) for hold in holds),
        usage=tuple(tuple(use) for use in sorted(users.usage.values())) if users is not None else (),  # type: ignore[misc]  # its fields
        routes=here(job_table.routes),
        runs=_runs(users) if users is not None else (),
        since=tuple((hold.job_id, since[hold.job_id]) for hold in holds if hold.job_id in since),
        stops=tuple(Stopped(run.job.id, attempt, guid, run.start_us, run.end_us, asked_us) for run, (attempt, guid, asked_us) in stopping),
        suspended=tuple((job, one.run.start_us, one.run.end_us, one.since_us) for job, one in sorted(part.suspended.items())),
        stays=tuple((job, *stay) for job, stay in here(job_table.stays)),
        queued=here(job_table.queued),
        marks=here(job_table.marks),
        pins=here(job_table.pins),
    )
    return b"" if users is None and found == Records() else _pack.encode(found)


def _runs(state: ClusterState) -> tuple[tuple[int, str, str, int, int], ...]:
    runs = (run for part in state.partitions.values() for run in part.running.values())
    return tuple(sorted((run.job.id, run.job.user, run.job.account, run.job.cpus, run.start_us) for run in runs))
