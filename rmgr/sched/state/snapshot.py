"""Every record of a cluster state as values, and back: what a new leader reads. The order of records means nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from rmgr.sched.job import Job, Node, Reservation, Running
from rmgr.sched.records import Answered, Call, Gang, GangTime, Hold, Learnt, Limits, Maintenance, Note, Server, Suspended, Usage
from rmgr.sched.state.partition import Partition


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Sorted when `ClusterState.snapshot` makes it."""

    nodes: tuple[Node, ...] = ()
    waiting: tuple[Job, ...] = ()
    running: tuple[Running, ...] = ()
    suspended: tuple[Suspended, ...] = ()
    stopping: tuple[Running, ...] = ()
    pinned: tuple[tuple[str, int], ...] = ()  #: (partition, job)
    reservations: tuple[Reservation, ...] = ()
    notes: tuple[Note, ...] = ()
    holds: tuple[Hold, ...] = ()
    gangs: tuple[Gang, ...] = ()
    gang_times: tuple[GangTime, ...] = ()  #: of partitions where it is not the time of passes
    windows: tuple[Maintenance, ...] = ()
    limits: tuple[tuple[str, Limits], ...] = ()  #: (partition, its limits)
    usage: tuple[Usage, ...] = ()
    calls: tuple[Call, ...] = ()
    servers: tuple[Server, ...] = ()
    measured: tuple[Server, ...] = ()  #: of each server the last measurements, the latest included
    answered: tuple[Answered, ...] = ()
    learnt: tuple[Learnt, ...] = ()


def records_of(parts: Iterable[Partition], usage: Mapping[tuple[str, str], Usage]) -> Snapshot:
    """What these partitions consist of."""
    parts = tuple(parts)
    return Snapshot(
        nodes=tuple(sorted((node for part in parts for node in part.nodes.values()), key=lambda node: node.id)),
        waiting=tuple(sorted((job for part in parts for job in part.jobs.values()), key=lambda job: job.id)),
        running=tuple(sorted((run for part in parts for run in part.running.values()), key=lambda run: run.job.id)),
        suspended=tuple(sorted((stop for part in parts for stop in part.suspended.values()), key=lambda stop: stop.run.job.id)),
        stopping=tuple(sorted((run for part in parts for run in part.stopping.values()), key=lambda run: run.job.id)),
        pinned=tuple((part.name, job_id) for part in parts for job_id in sorted(part.pinned)),
        reservations=tuple(sorted(r for part in parts for r in part.reservations.values())),
        notes=tuple(sorted(note for part in parts for note in notes_of(part))),
        holds=tuple(sorted(hold for part in parts for hold in part.holds.values())),
        gangs=tuple(sorted(gang for part in parts for gang in part.gangs)),
        gang_times=tuple(
            GangTime(part.name, part.gang_shift_us, part.gang_why, part.gang_most)
            for part in parts
            if (part.gang_shift_us, part.gang_most) != (0, 0)
        ),
        windows=tuple(sorted(window for part in parts for window in part.windows.values())),
        limits=tuple((part.name, part.limits) for part in parts if part.limits is not None),
        usage=tuple(sorted(usage.values())),
        calls=tuple(sorted(call for part in parts for call in part.calls.values())),
        servers=tuple(sorted(server for part in parts for server in part.servers.values())),
        measured=tuple(sorted(one for part in parts for known in part.records_of_calls.measured.values() for one in known)),
        answered=tuple(sorted(answer for part in parts for answer in part.records_of_calls.answered)),
        learnt=tuple(sorted(known for part in parts for known in part.records_of_calls.learnt.values())),
    )


def notes_of(part: Partition) -> Iterable[Note]:
    for policy, kinds in part.notes.items():
        for kind, notes in kinds.items():
            for job_id, value in notes.items():
                yield Note(policy, kind, job_id, value, part.name)


def restore(snapshot: Snapshot, partition: Callable[[str], Partition], usage: dict[tuple[str, str], Usage]) -> None:
    """Lays the records into new partitions, those before that others build on; dependencies are the caller's."""
    for name, limits in snapshot.limits:
        partition(name).set_limits(limits)
    windows: dict[str, dict[int, Maintenance]] = {}
    for window in snapshot.windows:
        windows.setdefault(window.partition, {})[window.id] = window
    for name, planned in windows.items():
        partition(name).set_windows(planned)
    for gang in snapshot.gangs:
        partition(gang.partition).gangs.put(gang)
    for run in snapshot.running:
        partition(run.job.partition).add_running(run)
    for run in snapshot.stopping:
        part = partition(run.job.partition)
        part.stopping[run.job.id] = run
        if run.job.id in part.gangs:
            part.gangs.enter(part.pool, run)
    for gang in snapshot.gangs:
        part = partition(gang.partition)
        part.gangs.keep({*part.running, *part.stopping})
    for time in snapshot.gang_times:
        part = partition(time.partition)
        part.gang_shift_us, part.gang_why, part.gang_most = time.shift_us, time.why, time.most
    for stopped in snapshot.suspended:
        part = partition(stopped.run.job.partition)
        part.suspended[stopped.run.job.id] = stopped
        part.pool.park(stopped.run.job, stopped.run.placement)
    for name, job_id in snapshot.pinned:
        partition(name).pinned.add(job_id)
    home: dict[int, Partition] = {}
    for job in snapshot.waiting:
        home[job.id] = partition(job.partition)
        home[job.id].add_job(job)
    for reservation in snapshot.reservations:
        home[reservation.job_id].reservations[reservation.job_id] = reservation
    for hold in snapshot.holds:
        home[hold.job_id].set_hold(hold)
    for call in snapshot.calls:
        partition(call.partition).calls[call.id] = call
    for note in snapshot.notes:
        partition(note.partition).set_note(note.policy, note.kind, note.id, note.value)
    for use in snapshot.usage:
        usage[use.user, use.account] = use
    for server in snapshot.servers:
        partition(server.partition).servers[server.name] = server
    _restore_calls(snapshot, partition)


def _restore_calls(snapshot: Snapshot, partition: Callable[[str], Partition]) -> None:
    measured = {*snapshot.measured, *snapshot.servers}  # logs of older releases have the latest measurement only
    records = (
        *(one.partition for one in measured),
        *(one.partition for one in snapshot.answered),
        *(one.partition for one in snapshot.learnt),
    )
    for name in sorted(set(records)):
        partition(name).records_of_calls.restore(
            (one for one in measured if one.partition == name),
            (one for one in snapshot.answered if one.partition == name),
            (one for one in snapshot.learnt if one.partition == name),
        )
