"""Overlays a pass's decisions on the state, takes all of them back, and knows what its promises leave free.

Starts and promises, which every pass has, are fields of the draft. All other changes are in `DraftChanges`, made when the first one comes,
with a list of what undoes them: a pass that moves nothing pays nothing for them.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from functools import partial
from typing import NamedTuple, TypeVar

from rmgr.errors import StateConflict
from rmgr.sched.capacity.holds import share_of
from rmgr.sched.capacity.horizon import Closing, Ending, Horizon, Timeline
from rmgr.sched.capacity.horizon_node import NodeShadow, NodeTimeline, NodeWindows
from rmgr.sched.capacity.pool_node import NodePool
from rmgr.sched.capacity.units import UnitPool, UnitShadow, UnitTimeline
from rmgr.sched.job import Job, Placement, Reservation, Running
from rmgr.sched.plan import Decision, GangSet, Infeasible, Insufficient, Noted, ReleaseHold, Unreserve, WakeAt, Why
from rmgr.sched.records import Gang, Hold, Maintenance, Suspended
from rmgr.sched.state.partition import Partition

NOBODYS = Why("policy", "the policy that promised it no longer serves this partition")
ABANDONED = Why("policy", "the policy that stopped it no longer serves this partition")
IN_ITS_WAY = Why("policy", "a job that was stopped by a policy which has left goes on first")
#: Why the engine itself decides something, before any policy does or beside what it does.
ELSEWHERE = Why("gang", "a job of it that was sent back begins elsewhere")
OF_THE_ENGINE = frozenset({NOBODYS, ELSEWHERE, ABANDONED, IN_ITS_WAY})
BEGINS = Why("begin", "a job may start then")

Key = TypeVar("Key")
Value = TypeVar("Value")


class Mark(NamedTuple):
    """State of a draft, to return to."""

    started: int
    decisions: int
    undo: int
    promises: dict[int, Reservation]
    left: dict[int, Why]
    rest: Why | None


class DraftChanges:
    """Changes of a pass beside starts and promises. Every change is written with `put`, `drop` or `did`, so that it can be undone."""

    __slots__ = (
        "begun",
        "calls_gone",
        "extra",
        "flagged",
        "gangs",
        "gone",
        "holds",
        "left",
        "notes",
        "rejected",
        "silent",
        "suspended",
        "undo",
    )

    def __init__(self, part: Partition) -> None:
        self.extra: dict[int, Job] = {}  #: wait because of this pass: sent back, or in another queue than before
        self.gone: dict[int, None] = {}  #: do not wait any more as they did before this pass
        self.rejected: dict[int, None] = {}  #: of those that no order showed before this pass
        self.left: dict[int, Running] = {}  #: ran before this pass, and were sent away
        self.begun: dict[int, Running] = {}  #: run because of this pass otherwise than by a start: resumed, or in a gang
        self.silent: dict[int, None] = {}  #: run, but their end gives nothing back: they joined a gang
        self.suspended: dict[int, Suspended] = part.suspended.copy()
        self.holds: dict[int, Hold] = part.holds.copy()
        self.flagged: dict[int, int] = part.flagged.copy()
        self.gangs: dict[str, Gang] = part.gangs.by_name.copy()
        self.calls_gone: dict[int, None] = {}
        self.notes: dict[tuple[str, str], dict[int, tuple[int, ...] | None]] = {}
        self.undo: list[Callable[[], object]] = []

    def put(self, table: dict[Key, Value], key: Key, value: Value) -> None:
        """`table[key] = value`, until it is undone."""
        undo = partial(table.__setitem__, key, table[key]) if key in table else partial(table.__delitem__, key)
        self.undo.append(undo)
        table[key] = value

    def drop(self, table: dict[Key, Value], key: Key) -> None:
        """`del table[key]`, until it is undone."""
        self.undo.append(partial(table.__setitem__, key, table.pop(key)))

    def did(self, undo: Callable[[], object]) -> None:
        """Something was done that this takes back."""
        self.undo.append(undo)

    def back(self, mark: int) -> None:
        """Takes back everything since."""
        while len(self.undo) > mark:
            self.undo.pop()()


class Overlay:
    """The inside of a `Draft`."""

    __slots__ = (
        "_counted",
        "_horizon",
        "_marked",
        "_more",
        "_open",
        "_part",
        "_pool",
        "_promises",
        "_started",
        "_tally",
        "_timeline",
        "decisions",
        "left",
        "now_us",
        "partition",
        "policy",
        "refused",
        "rest",
        "seed",
    )

    def __init__(self, part: Partition, now_us: int, seed: int, keepers: Container[str] = ()) -> None:
        self._part = part
        self._pool = part.pool
        self._started: dict[int, Running] = {}
        self._promises: dict[int, Reservation] = {}
        self._more: DraftChanges | None = None
        self._timeline: Timeline | None = None  #: of all promises, where there may be many
        self._horizon: Horizon | None = None  #: the timeline, or the shadow of the only promise, or windows of maintenance
        self._open = True
        self._marked = False  #: somebody may go back
        self._counted, self._tally = 0, None  # type: int, dict[tuple[str, str], tuple[int, int]] | None
        self.policy = ""  #: whose turn it is; the engine sets it
        self.partition = part.name
        self.now_us = now_us
        self.seed = seed
        self.decisions: list[Decision] = []
        self.left: dict[int, Why] = {}
        self.rest: Why | None = None
        self.refused = 0
        if part.begins:
            begin_us = part.next_begin_us()
            if begin_us is not None:
                self.decisions.append(WakeAt(begin_us, BEGINS, part.name))
        if part.notes or part.holds or part.gangs.by_name:
            self._drop_orphans(keepers)
        if part.reservations:
            for held in part.reservations.values():
                if held.policy in keepers:
                    self._promises[held.job_id] = held
                else:
                    self.decisions.append(Unreserve(held.job_id, NOBODYS, part.name))
        if part.reservations or part.windows:
            self._look_again()

    # -- the engine's -----------------------------------------------------------------------------------------------------

    def mark(self) -> Mark:
        """The point to which `back` leads."""
        self._marked = True
        undo = 0 if self._more is None else len(self._more.undo)
        return Mark(len(self._started), len(self.decisions), undo, self._promises.copy(), self.left.copy(), self.rest)

    def back(self, mark: Mark) -> None:
        """Takes back everything since the mark."""
        while len(self._started) > mark.started:
            _, run = self._started.popitem()
            self._pool.give(run.job, run.placement)
        if self._more is not None:
            self._more.back(mark.undo)
        del self.decisions[mark.decisions :]
        self._promises, self.left, self.rest = mark.promises.copy(), mark.left.copy(), mark.rest
        self._tally = None
        self._look_again()

    def close(self) -> None:
        """Takes the overlay off the state again; no verb works any more."""
        self._open = False
        if self._started:
            for run in reversed(self._started.values()):
                self._pool.give(run.job, run.placement)
        if self._more is not None:
            self._more.back(0)

    @property
    def aside(self) -> Mapping[int, Why]:
        """Waiting jobs that no order shows, and why."""
        return self._part.aside

    def sealed(self) -> tuple[Decision, ...]:
        """Every decision in the order to carry them out; notes last, each once. Ask before `close`."""
        if self._more is None or not self._more.notes:
            return tuple(self.decisions)
        notes: list[Noted] = []
        for policy, kind in sorted(self._more.notes):
            before = self._part.notes.get(policy, {}).get(kind, {})
            written = self._more.notes[policy, kind]
            changed = [job_id for job_id in sorted(written) if written[job_id] != before.get(job_id)]
            notes += [Noted(policy, kind, job_id, written[job_id], self.partition) for job_id in changed]
        return (*self.decisions, *notes)

    # -- changes ------------------------------------------------------------------------------------------------------------

    def _changes(self) -> DraftChanges:
        if self._more is None:
            self._more = DraftChanges(self._part)
        return self._more

    def _waiting(self, job_id: int) -> Job | None:
        """The job as it waits after what this pass did."""
        if self._more is not None:
            job = self._more.extra.get(job_id)
            if job is not None or job_id in self._more.gone or job_id in self._more.rejected:
                return job
        return self._part.jobs.get(job_id)

    def _gang_of(self, job_id: int) -> str | None:
        """Name of the gang in which the job runs."""
        more = self._more
        if more is None:
            return self._part.gangs.of.get(job_id)
        if job_id in more.begun:
            return next((gang.name for gang in more.gangs.values() if job_id in gang.homes), None)
        return None if job_id in more.left else self._part.gangs.of.get(job_id)

    def _drop_orphans(self, keepers: Container[str]) -> None:
        """Notes and holds of policies that left the pipeline go; from their gangs, which turn on, goes what has ended."""
        part = self._part
        for gang in sorted(part.gangs.by_name.values()):
            if gang.policy not in keepers and not all(map(part.is_member, gang.homes)) and part.gang_shift_us is not None:
                rest = self._rest_of(gang, {job_id for job_id in gang.homes if part.is_member(job_id)})
                self._changes().gangs[gang.name] = rest
                self.decisions.append(GangSet(rest, NOBODYS, part.name))
        for policy in part.notes:
            if policy not in keepers:
                for kind, notes in part.notes[policy].items():
                    self._changes().notes[policy, kind] = dict.fromkeys(notes)
        for hold in sorted(part.holds.values()):
            if hold.policy not in keepers:
                self._swap_hold(part.jobs[hold.job_id], None)
                self.decisions.append(ReleaseHold(hold.job_id, NOBODYS, part.name))

    def _rest_of(self, gang: Gang, stay: Container[int]) -> Gang:
        """The record from the next slot on, with only those of its jobs that stay."""
        carousel = self._part.gangs.carousel(gang, frozenset()).copy()
        carousel.advance_to(carousel.boundary(self.now_us + (self._part.gang_shift_us or 0)))
        for job_id in gang.homes:
            if job_id not in stay:
                carousel.remove(job_id)
        return carousel.record(gang.name, gang.policy, gang.partition)

    def _swap_hold(self, job: Job, new: Hold | None) -> None:
        """The job's hold is this one from now on, in pool and flags."""
        more, pool = self._changes(), self._pool
        old = more.holds.get(job.id)
        if old is not None:
            for share in old.held:
                pool.give_share(job, share.cores)
                more.did(partial(pool.take_share, job, share.cores))
            for share in old.waits_for:
                more.drop(more.flagged, share.run_id)
            more.drop(more.holds, job.id)
        if new is not None:
            for share in new.held:
                pool.take_share(job, share.cores)
                more.did(partial(pool.give_share, job, share.cores))
            for share in new.waits_for:
                more.put(more.flagged, share.run_id, job.id)
            more.put(more.holds, job.id, new)

    @property
    def _holds(self) -> dict[int, Hold]:
        return self._part.holds if self._more is None else self._more.holds

    # -- horizons -----------------------------------------------------------------------------------------------------------

    def _look_again(self) -> None:
        """What is promised, what runs or what is held has changed."""
        if self._promises:
            self._horizon = self._timeline = self._lay_out()
        else:
            self._timeline = None
            self._horizon = self._windows_only() if self._part.windows else None

    def _lay_out(self) -> Timeline:
        """A timeline with every promise and window on it."""
        pool = self._pool
        promised: list[tuple[Job, Reservation]] = []
        for held in self._promises.values():
            job = self._waiting(held.job_id)
            assert job is not None
            promised.append((job, held))
        if isinstance(pool, UnitPool):
            return UnitTimeline(self.now_us, pool, self._endings(), ((job, held.start_us) for job, held in promised))
        timeline = NodeTimeline(self.now_us, pool, self._endings(), self._give_back)
        for start_us, nobody, nodes in self._closings():
            timeline.promise(nobody, start_us, nodes)
        for job, held in promised:
            timeline.promise(job, held.start_us, held.placement)
        return timeline

    def _windows_only(self) -> Horizon:
        """For starts it is enough to know what windows take: what comes back later helps nobody who starts now."""
        assert isinstance(self._pool, NodePool)
        return NodeWindows(self._pool, self.now_us, self._closings())

    def _closings(self) -> Iterator[Closing]:
        """A window is a promise of whole nodes to nobody."""
        for window in self._part.windows.values():
            start_us = max(window.start_us, self.now_us)
            if window.end_us > start_us:
                nodes = tuple((node, node, 1) for node in sorted(window.nodes) if node in self._part.nodes)
                yield start_us, Job(id=0, submit_us=0, exclusive=True, limit_us=window.end_us - start_us), nodes

    def _window_for(self, end_us: int, placement: Placement | None = None) -> Maintenance | None:
        """The first window into which a job from now until then would reach (on these nodes)."""
        for window in sorted(self._part.windows.values(), key=_begin):
            on_it = placement is None or any(first <= node <= last for first, last, _ in placement for node in window.nodes)
            if on_it and window.end_us > self.now_us and window.start_us < end_us:
                return window
        return None

    def _shadow(self, job: Job) -> UnitShadow | NodeShadow | None:
        pool = self._pool
        if isinstance(pool, UnitPool):
            return UnitShadow.of(job, self.now_us, pool, self._endings())
        return NodeShadow.of(job, self.now_us, pool, self._endings(), self._give_back)

    def _endings(self) -> list[Ending]:
        """When nodes come back: what ran before this pass and what it has begun, sorted."""
        part, more = self._part, self._more
        endings = part.endings
        if more is not None and more.undo:
            runs = (run for job_id, run in part.running.items() if job_id not in more.left and job_id not in more.silent)
            endings = [(run.end_us, run.job.id, self._returns(run)) for run in runs if run.job.id not in part.gangs]
            endings += [(r.end_us, r.job.id, self._returns(r)) for r in more.begun.values() if r.job.id not in more.silent]
        elif not self._started:
            return endings
        return sorted(endings + [(run.end_us, run.job.id, self._returns(run)) for run in self._started.values()])

    def _returns(self, run: Running) -> int:
        """Units of the pool that come back when it ends: not those that a hold takes over."""
        returns = self._pool.returns
        units = returns(run.job, run.placement)
        more = self._more
        if more is not None and run.job.id in more.flagged:
            units -= returns(run.job, share_of(more.holds[more.flagged[run.job.id]], run.job.id).cores)
        return units

    def _give_back(self, pool: NodePool, job_id: int) -> None:
        """The same, given to a pool of nodes."""
        run = self._run_of(job_id)
        pool.give(run.job, run.placement)
        flagged = self._part.flagged if self._more is None else self._more.flagged
        if job_id in flagged:
            holder = flagged[job_id]
            job = self._waiting(holder)
            assert job is not None
            pool.take_share(job, share_of(self._holds[holder], job_id).cores)

    def _run_of(self, job_id: int) -> Running:
        run = self._started.get(job_id)
        if run is None and self._more is not None:
            run = self._more.begun.get(job_id)
        return run or self._part.running[job_id]

    def _breaks_promises(self, mark: int) -> Insufficient | None:
        """After a change that takes capacity: back to the mark of `DraftChanges.undo` if a promise cannot be kept.

        Also where it could not be kept before (a node was lost): what is answered must not depend on how the draft came to where it is.
        """
        if not self._promises:
            if self._horizon is not None:  # of windows, or of a promise that has been kept meanwhile
                self._look_again()
            return None
        self._look_again()
        if self._timeline is None or not self._timeline.overdrawn:
            return None
        self._changes().back(mark)
        self._look_again()
        return Insufficient(Why("promise", "would take what is promised to another job"))

    # -- answers ------------------------------------------------------------------------------------------------------------

    def _never(self, why: Why) -> Infeasible:
        self.refused += 1
        return Infeasible(why)

    def _check_open(self) -> None:
        if not self._open:
            raise StateConflict(f"the draft of partition {self.partition} is closed: its pass ended", hint="a policy keeps nothing")


def _begin(window: Maintenance) -> tuple[int, int]:
    return (window.start_us, window.id)
