"""Runs passes in a thread of their own, one at a time; abandons a policy that does not come back, and lets others place instead of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from queue import SimpleQueue

from rmgr.daemons.leader.core.doors import LoopTimers
from rmgr.daemons.leader.core.term import Term
from rmgr.daemons.leader.placement.faults import Faults
from rmgr.model.base.units import format_duration
from rmgr.runtime import machine
from rmgr.runtime.mailbox import Timer
from rmgr.sched.engine import run_pass
from rmgr.sched.plan import Fault, Plan
from rmgr.sched.policy import Cause, Stage
from rmgr.sched.state.cluster import ClusterState
from rmgr.sched.vetting import Vetted

#: A pass may take so long.
LIMIT_S = 10.0


class Passes:
    """Runs passes and tells their plans in the leader's loop.

    Args:
        forgives: says of a fault that it is nobody's. limit_s: a pass may take so long.
        inline: passes run at once in the loop (tests that move the clock by hand).
    """

    def __init__(
        self,
        loop: LoopTimers,
        term: Term,
        faults: Faults,
        *,
        forgives: Callable[[Fault], bool] = lambda _: False,
        limit_s: float = LIMIT_S,
        inline: bool = False,
    ) -> None:
        self._forgives = forgives
        self._inline = inline
        self.faults = faults
        self._loop = loop
        self._term = term
        self._limit_s = limit_s
        self._thread = _Thread()
        self._running: object | None = None
        self._turn = ("", "")  # policy and partition
        self._timer: Timer | None = None

    @property
    def is_running(self) -> bool:
        """A pass is under way: the state is not to be touched."""
        return self._running is not None

    def run(
        self,
        state: ClusterState,
        causes: frozenset[Cause],
        stages: tuple[Stage, ...],
        *,
        now_us: int,
        then: Callable[[Plan, float], None],
        lost: Callable[[str], None],
    ) -> None:
        """One pass; `then` gets the plan and its time (s), or `lost` why there is none: the state is lost with it."""
        now_s = self._loop.clock()
        served = self.faults.served(stages)
        pipeline = tuple(Stage(Vetted(stage.policy, self._at_turn), stage.partitions) for stage in served)  # type: ignore[arg-type]
        mark = self._running = object()
        end_s = now_s + self._limit_s

        def work() -> None:
            began_s = machine.perf_counter()
            try:
                plan = run_pass(state, causes, now=now_us, seed=0, pipeline=pipeline, expired=lambda: self._loop.clock() > end_s)
            except Exception as error:  # noqa: BLE001 - a defect of the scheduler, or of a record: nothing but another state can help
                self._loop.soon(partial(self._failed, mark, error, lost))
                return
            took_s = machine.perf_counter() - began_s
            self._loop.soon(lambda: self._done(mark, plan, took_s, then))

        if self._inline:
            work()
            return
        self._timer = self._loop.after(self._limit_s * 1.5, lambda: self._overdue(mark, lost))
        self._thread.submit(work)

    def close(self) -> None:
        """No plan is told any more."""
        self._running = None
        if self._timer is not None:
            self._timer.cancel()
        self._thread.stop()

    def _at_turn(self, policy: str, partition: str) -> None:
        self._turn = (policy, partition)

    def _done(self, mark: object, plan: Plan, took_s: float, then: Callable[[Plan, float], None]) -> None:
        if self._running is not mark:
            return  # it was given up
        self._running = None
        if self._timer is not None:
            self._timer.cancel()
        for fault in plan.faults:
            if not self._forgives(fault):
                self.faults.add(fault.partition, fault.policy, fault.error)
        then(plan, took_s)

    def _failed(self, mark: object, error: Exception, lost: Callable[[str], None]) -> None:
        """The pass itself has raised, not a policy."""
        if self._running is not mark:
            return
        self._running = None
        if self._timer is not None:
            self._timer.cancel()
        self._term.metrics.loop_errors.inc()
        self._term.log.error("pass_failed", error=f"{type(error).__name__}: {error}", exc_info=error)
        lost(f"the pass failed: {type(error).__name__}: {error}")

    def _overdue(self, mark: object, lost: Callable[[str], None]) -> None:
        """Nothing ends a thread of Python: it is left to itself, with the state that it has."""
        if self._running is not mark:
            return
        policy, partition = self._turn
        self._running = None
        self.faults.add(partition, policy, f"did not end within {format_duration(self._limit_s * 1.5)}")
        self._thread.stop()
        self._thread = _Thread()
        lost(f"policy {policy} is stuck with the old state")


class _Thread:
    """One thread that does what it is given, and does not keep the process from ending."""

    def __init__(self) -> None:
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._started = False

    def submit(self, work: Callable[[], None]) -> None:
        if not self._started:
            self._started = True
            machine.Thread(target=self._run, name="pass", daemon=True).start()
        self._work.put(work)

    def stop(self) -> None:
        """After what it does now."""
        self._work.put(None)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()
