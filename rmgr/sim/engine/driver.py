"""The simulator's driver: virtual time feeds facts to the scheduler's state, runs one pass an instant, and carries out its plan.

The leader does the same with facts from ZooKeeper and a real clock: state, vetting, policies and cadence are the very same objects.
At one instant: ends, then changes of nodes, then arrivals, then timers, then exactly one pass (papers.md, common rules). With
`tick_us`, passes happen only at its multiples, as in systems whose scheduler runs every few minutes.
Related files: `world.py` has the clock, the facts and their effects; `machine.py` the cores of each job.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain, count

from rmgr.errors import RmgrError, UsageError
from rmgr.model.units import counted
from rmgr.sched.engine import run_pass
from rmgr.sched.job import Node
from rmgr.sched.plan import Migrate, Plan, Preempt, Reject, ReleaseHold, Resume, Route, Start, Suspend, WakeAt
from rmgr.sched.policy import Cause
from rmgr.sched.records import Maintenance
from rmgr.sched.state.event_log import Recorder
from rmgr.sim.engine.outcome import Result, Setting
from rmgr.sim.engine.world import Rank, World
from rmgr.sim.workload import events
from rmgr.sim.workload.jobs import Workload, WorkloadJob

#: Plain integers, because each event compares one.
_END, _NODE, _ARRIVAL, _TIME = int(Rank.END), int(Rank.NODE), int(Rank.ARRIVAL), int(Rank.TIMER)
_ENDED = frozenset({Cause.JOB_ENDED})
_SUBMITTED = frozenset({Cause.JOB_SUBMITTED})
_TIMER = frozenset({Cause.TIMER})
_NOTHING: frozenset[Cause] = frozenset()
_REPORT_EVERY = 1024
#: Decisions after which another pass may find something new.
_MOVING = frozenset({Start, Migrate, Preempt, Suspend, Resume, Reject, Route, ReleaseHold})
#: Limit of passes in a row that changed nothing and were requested almost at once: beyond it, time stands still.
MOST_IDLE, _AT_ONCE_US = 10_000, 1000
_SHOWN = 3
#: Limit of requested passes in a row that started nothing while nothing runs and nothing else is to come.
MOST_FRUITLESS = 10_000
_NODES = frozenset({Cause.NODES_CHANGED})
_LOST = frozenset({Cause.NODES_CHANGED, Cause.JOB_ENDED})
_TAKE_OVER = frozenset({Cause.TAKE_OVER})
#: Reasons in the log for the facts that follow an event.
_REASONS: Mapping[type, str] = {
    events.NodesFail: "failed", events.NodesRepaired: "repaired", events.NodesDrain: "drained", events.NodesUndrain: "undrained",
    events.WindowBegins: "maintenance", events.Cancel: "cancelled",
}
#: Limit of failures in a row while jobs wait and none runs: beyond it, the machine is never whole enough for them.
_IN_VAIN = 10_000


def simulate(
    workload: Workload, setting: Setting, *, on_progress: Callable[[int], None] | None = None, recorder: Recorder | None = None
) -> Result:
    """Runs the whole workload.

    Args:
        on_progress: called now and then with the number of jobs that are over. recorder: is told every fact and every pass.
    Raises: RmgrError if jobs are left waiting and nothing can come that would start them; UsageError for an impossible machine, or
        events that name what does not exist.
    Cost: one pass for each instant with an event.
    """
    return _Run(workload, setting, on_progress, recorder).to_the_end()


class _Run:
    def __init__(self, workload: Workload, setting: Setting, on_progress: Callable[[int], None] | None, recorder: Recorder | None) -> None:
        self._setting, self._on_progress, self._recorder = setting, on_progress, recorder
        self._world = World(workload, setting, recorder)
        self._upsets = Upsets(self._world, setting)
        self._kernel = self._world.kernel
        self._arrivals = self._world.arrivals()
        self._expected: WorkloadJob | None = None
        self._wake_us = -1  # time of the pass that the last plan requested
        self._tick_us = -1  # multiple of the tick at which a pass is due
        self._timers = count()
        self._fruitless = 0  # such passes in a row, see MOST_FRUITLESS
        self._idle = 0  # such passes in a row, see MOST_IDLE
        self._report_at = self._world.open - _REPORT_EVERY
        self._faults: Counter[str] = Counter()
        self._plan = Plan()
        self._passes = 0

    def to_the_end(self) -> Result:
        began = time.perf_counter()
        world, kernel, tick = self._world, self._kernel, self._setting.tick_us
        self._expect_arrival()
        due = _NOTHING  # causes that wait for the next tick, or for a leader
        while world.open and kernel.advance():
            new = self._happen()
            due = due | new if due else new
            if not due or kernel.now_us < self._upsets.leaderless_until_us:
                continue
            if tick and kernel.now_us % tick:
                self._wait_for(kernel.now_us - kernel.now_us % tick + tick)
                continue
            self._pass(due)
            due = _NOTHING
            if world.open <= self._report_at:
                self._report()
        self._check_all_ran()
        if self._recorder is not None:
            self._recorder.end(kernel.now_us)
        return Result(
            outcomes=world.outcomes(),
            processors=world.machine.processors,
            policy=self._setting.policy,
            seed=self._setting.seed,
            passes=self._passes,
            wall_seconds=time.perf_counter() - began,
            faults=tuple(sorted(self._faults.items())),
        )

    # -- events -> facts -------------------------------------------------------------------------------------------------------

    def _happen(self) -> frozenset[Cause]:
        """Handles all events of this instant, in order. Returns the causes for a pass."""
        world, causes = self._world, _NOTHING
        following = self._kernel.next
        while event := following():
            at_us, rank, _, what = event
            if rank == _END:
                if world.end(what):  # type: ignore[arg-type]  # the rank says what it is
                    causes = _ENDED
            elif rank == _ARRIVAL:
                if what is self._expected:
                    self._expect_arrival()
                world.arrive(what)  # type: ignore[arg-type]
                causes = causes | _SUBMITTED if causes else _SUBMITTED
            elif rank == _NODE:
                causes |= self._upsets.happen(what)  # type: ignore[arg-type]
            elif at_us in {self._wake_us, self._tick_us}:
                causes |= _TIMER
        return causes

    def _expect_arrival(self) -> None:
        """Puts the next arrival on the heap, one at a time (jobs that follow an end aside), so that the heap stays small."""
        job = self._expected = next(self._arrivals, None)
        if job is not None:
            self._kernel.put(job.submit_us, _ARRIVAL, job.number, job)

    # -- passes -> effects -----------------------------------------------------------------------------------------------------

    def _pass(self, causes: frozenset[Cause]) -> None:
        world, now = self._world, self._kernel.now_us
        plan = self._plan = run_pass(world.state, causes, now=now, seed=self._setting.seed, pipeline=world.pipeline)
        self._passes += 1
        if self._recorder is not None:
            self._recorder.passed(now, causes, plan)
        state, wake_us = world.state, -1
        for decision in plan.decisions:
            if type(decision) is Start:
                world.begin(state.carried_out(decision, now))  # type: ignore[arg-type]  # a start begins a run
            elif type(decision) is WakeAt:
                wake_us = decision.at_us if wake_us < 0 else min(wake_us, decision.at_us)
            else:
                world.carry_out(decision)
        if causes == _TIMER and now < wake_us < now + _AT_ONCE_US and not any(type(decision) in _MOVING for decision in plan.decisions):
            self._check_hope()
        else:
            self._idle = 0
        if wake_us != self._wake_us:  # replaces the earlier request
            self._wake_us = wake_us
            self._put_timer(wake_us)
        if wake_us >= 0:
            self._fruitless = 0 if len(self._kernel) > 1 else self._fruitless + 1
            if self._fruitless >= MOST_FRUITLESS:
                raise self._starves(f"it asked for {MOST_FRUITLESS:,} passes in a row and started nothing in them")
        if plan.faults:
            self._faults.update(f"{fault.policy}: {fault.error}" for fault in plan.faults)

    def _check_hope(self) -> None:
        self._idle += 1
        if self._idle > MOST_IDLE:
            raise RmgrError(
                f"policy {self._setting.policy} asks again and again for passes in which nothing starts: "
                f"{MOST_IDLE:,} until {self._kernel.now_us} us",
                hint="draft.wake_at is for a time at which something can start; every end and arrival is a pass of its own",
            )

    def _wait_for(self, tick_us: int) -> None:
        if tick_us != self._tick_us:
            self._tick_us = tick_us
            self._put_timer(tick_us)

    def _put_timer(self, at_us: int) -> None:
        if at_us >= 0:
            self._kernel.put(at_us, _TIME, next(self._timers), None)

    # -- the end ---------------------------------------------------------------------------------------------------------------

    def _report(self) -> None:
        self._report_at = self._world.open - _REPORT_EVERY
        if self._on_progress is not None:
            self._on_progress(self._world.count - self._world.open)

    def _check_all_ran(self) -> None:
        if self._world.open:
            raise self._starves("nothing runs and nothing is to come that could start them: the policy starves them")

    def _starves(self, why: str) -> RmgrError:
        stuck, setting = self._world.waiting(), self._setting
        told = "; ".join(f"job {job.number} ({counted(job.processors, 'processor')}): {self._why(job)}" for job in stuck[:_SHOWN])
        more = f" (and {len(stuck) - _SHOWN} more)" if len(stuck) > _SHOWN else ""
        faults = f"; it failed {counted(sum(self._faults.values()), 'time')}, {next(iter(self._faults))}" if self._faults else ""
        closed = self._upsets.closed
        if closed:
            why = f"{closed} of {len(self._world.nodes)} nodes are down or drained, and nothing is to come that would open them"
        return RmgrError(f"policy {setting.policy} leaves {counted(len(stuck), 'job')} waiting for ever: {told}{more}{faults}", hint=why)

    def _why(self, job: WorkloadJob) -> str:
        return str(self._plan.why(job.number, self._world.partition_of(job)) or "no reason given")


# -- changes of the cluster besides its jobs: facts for the state, and the ends of what runs there ------------------------------


class Upsets:
    """Puts events on the world's clock and carries them out. `leaderless_until_us`: no pass happens before.

    Raises: UsageError for an event that names a node, a partition or a job that does not exist.
    """

    def __init__(self, world: World, setting: Setting) -> None:
        self._world = world
        known = setting.events or setting.failures is not None
        self._nodes: dict[int, Node] = {node.id: node for node in world.nodes} if known else {}
        self._failed: set[int] = set()
        self._drained: set[int] = set()
        self._serials = count()
        self._in_vain = 0
        self.leaderless_until_us = 0
        for event in setting.events:
            self._check(event)
            self._put(event.at_us, event)
        self._failures = setting.failures.of(list(self._nodes), setting.seed) if setting.failures is not None else iter(())
        self._expect_failure()

    @property
    def closed(self) -> int:
        """Number of nodes that are down or drained now."""
        return len(self._failed | self._drained)

    def happen(self, event: events.Event) -> frozenset[Cause]:
        """Carries out one event. Returns the causes for a pass."""
        self._world.because(_REASONS.get(type(event), ""))
        try:
            return self._carry_out(event)
        finally:
            self._world.because("")

    # -- kinds of events -------------------------------------------------------------------------------------------------------

    def _carry_out(self, event: events.Event) -> frozenset[Cause]:
        match event:
            case events.NodesFail() | events.NodesRepaired() | events.NodesDrain() | events.NodesUndrain():
                return self._nodes_change(event)
            case events.Cancel(job=number):
                cause = self._world.cancel(number)
                return _NOTHING if cause is None else frozenset({cause})
            case events.FailOver(for_us=for_us):
                now = self._world.kernel.now_us
                self.leaderless_until_us = max(self.leaderless_until_us, now + for_us)
                if for_us:
                    self._put(now + for_us, events.TakeOver(now + for_us))
                    return _NOTHING
                return self._take_over()
            case events.TakeOver():
                return self._take_over()
            case events.Window():
                return self._plan(event)
            case events.WindowBegins(nodes=nodes):
                return self._lose(nodes)
            case events.WindowEnds(id=number):
                self._world.tell.maintenance_over(number)
                return _NODES
            case events.SlotEnds():
                self._world.turns.slot_ends(event)
                return _NOTHING
            case events.LimitsChange(partition=partition, limits=limits):
                self._world.tell.limits_changed(partition, limits)
                self._world.refuse_infeasible(partition)
                return _NODES

    def _nodes_change(self, event: events.NodesFail | events.NodesRepaired | events.NodesDrain | events.NodesUndrain) -> frozenset[Cause]:
        reasons = self._failed if isinstance(event, events.NodesFail | events.NodesRepaired) else self._drained
        closes = isinstance(event, events.NodesFail | events.NodesDrain)
        before = {node for node in self._of(event.nodes) if node in self._failed or node in self._drained}
        reasons.update(self._of(event.nodes)) if closes else reasons.difference_update(self._of(event.nodes))
        causes = self._lose(event.nodes) if isinstance(event, events.NodesFail) else _NOTHING
        changed = []
        for node in self._of(event.nodes):
            closed = node in self._failed or node in self._drained
            if closed != (node in before):
                changed.append(replace(self._nodes[node], closed=closed))
        for other in changed:
            self._world.tell.node_changed(other)
        if isinstance(event, events.NodesFail | events.NodesRepaired) and event.drawn:
            self._expect_failure()
            self._check_hope()
        return causes | _NODES if changed else causes

    def _lose(self, nodes: events.NodeRanges) -> frozenset[Cause]:
        lost = self._world.stays.on(nodes)
        for number in lost:
            self._world.lose(number)
        return _LOST if lost else _NOTHING

    def _plan(self, window: events.Window) -> frozenset[Cause]:
        """Plans one maintenance record for each affected partition."""
        homes: dict[str, list[int]] = {}
        for node in self._of(window.nodes):
            homes.setdefault(self._nodes[node].partition, []).append(node)
        for partition, nodes in homes.items():
            number = next(self._serials)
            record = Maintenance(number, window.start_us, window.end_us, tuple(nodes), window.name, partition)
            self._world.tell.maintenance_planned(record)
            self._put(window.end_us, events.WindowEnds(window.end_us, number))
        self._put(window.start_us, events.WindowBegins(window.start_us, window.nodes))
        return _NODES

    def _take_over(self) -> frozenset[Cause]:
        if self._world.kernel.now_us < self.leaderless_until_us:
            return _NOTHING  # the next leader died, too
        self._world.take_over()
        return _TAKE_OVER

    # -- the clock -------------------------------------------------------------------------------------------------------------

    def _put(self, at_us: int, event: events.Event) -> None:
        self._world.kernel.put(at_us, _NODE, next(self._serials), event)

    def _expect_failure(self) -> None:
        """Puts the next failure or repair on the clock, one at a time."""
        event = next(self._failures, None)
        if event is not None:
            self._put(event.at_us, event)

    def _check_hope(self) -> None:
        world = self._world
        waits = not world.stays.running and any(part.jobs for part in world.state.partitions.values())
        self._in_vain = self._in_vain + 1 if waits else 0
        if self._in_vain > _IN_VAIN:
            raise RmgrError(
                f"{_IN_VAIN:,} failures and repairs since a job last ran, and jobs wait: the machine is never whole enough for them",
                hint="a larger --mtbf, a smaller --mttr, or more nodes",
            )

    # -- checks ----------------------------------------------------------------------------------------------------------------

    def _of(self, nodes: events.NodeRanges) -> Iterator[int]:
        """Yields ids in ascending order, skipping ids that the machine does not have."""
        return (node for first, last in nodes for node in range(first, last + 1) if node in self._nodes)

    def _check(self, event: events.Event) -> None:
        if isinstance(event, events.Cancel) and event.job > self._world.count:
            raise UsageError(f"the events cancel job {event.job}, and the workload has {self._world.count}", hint="numbers of jobs.csv")
        if isinstance(event, events.LimitsChange) and event.partition not in self._world.state.partitions:
            raise UsageError(f"the events limit partition {event.partition!r}: {_known(self._world.state.partitions)}")
        if isinstance(event, events.NodesFail | events.NodesRepaired | events.NodesDrain | events.NodesUndrain | events.Window):
            for node in chain.from_iterable(event.nodes):
                if node not in self._nodes:
                    raise UsageError(f"the events name node {node}, which the machine has not", hint=f"it has {len(self._nodes):,} nodes")


def _known(names: Iterable[str]) -> str:
    return f"known: {', '.join(names)}"
