"""Passes in a thread of their own, one at a time; a policy that does not come back is left behind, and left out for a while."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import SimpleQueue

from rmgr.daemons.leader_desk import Desk
from rmgr.runtime.timers import Timer
from rmgr.sched.draft import Draft
from rmgr.sched.engine import run_pass
from rmgr.sched.plan import Plan
from rmgr.sched.policy import Cause, Policy, Stage
from rmgr.sched.state import ClusterState

#: A pass may take so long; and how long a policy that took longer is left out.
LIMIT_S, BENCH_S = 10.0, 300.0


@dataclass(slots=True)
class Faults:
    """Of policies, by name: how often, and the last one."""

    counts: Counter[str] = field(default_factory=Counter)
    last: dict[str, str] = field(default_factory=dict)
    benched_until_s: dict[str, float] = field(default_factory=dict)

    def add(self, policy: str, error: str) -> bool:
        """Notes one. Returns: it says something new."""
        new = self.last.get(policy) != error
        self.counts[policy] += 1
        self.last[policy] = error
        return new

    def served(self, stages: tuple[Stage, ...], now_s: float) -> tuple[Stage, ...]:
        """Without those of policies that are left out for a while."""
        return tuple(stage for stage in stages if self.benched_until_s.get(stage.policy.name, -math.inf) <= now_s)


class _Named:
    """A policy that says when its turn is."""

    def __init__(self, policy: Policy, turn: Callable[[str], None]) -> None:
        self.name = policy.name
        self._policy, self._turn = policy, turn

    def plan(self, draft: Draft, causes: frozenset[Cause]) -> None:
        self._turn(self.name)
        self._policy.plan(draft, causes)


class Passes:
    """Runs passes and tells their plans in the leader's loop.

    Args:
        limit_s: a pass may take so long. inline: passes run at once in the loop (tests that move the clock by hand).
    """

    def __init__(self, desk: Desk, faults: Faults, *, limit_s: float = LIMIT_S, inline: bool = False) -> None:
        self._inline = inline
        self.faults = faults
        self._desk = desk
        self._limit_s = limit_s
        self._thread = _Thread()
        self._running: object | None = None
        self._turn = ""
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
        """One pass; `then` gets the plan and its time (s), or `lost` the policy that did not come back: the state is lost with it."""
        now_s = self._desk.clock()
        served = self.faults.served(stages, now_s)
        pipeline = tuple(Stage(_Named(stage.policy, self._at_turn), stage.partitions) for stage in served)  # type: ignore[arg-type]
        mark = self._running = object()
        end_s = now_s + self._limit_s

        def work() -> None:
            began_s = time.perf_counter()
            plan = run_pass(state, causes, now=now_us, seed=0, pipeline=pipeline, expired=lambda: self._desk.clock() > end_s)
            took_s = time.perf_counter() - began_s
            self._desk.soon(lambda: self._done(mark, plan, took_s, then))

        if self._inline:
            work()
            return
        self._timer = self._desk.after(self._limit_s * 1.5, lambda: self._overdue(mark, lost))
        self._thread.submit(work)

    def close(self) -> None:
        """No plan is told any more."""
        self._running = None
        if self._timer is not None:
            self._timer.cancel()
        self._thread.stop()

    def _at_turn(self, name: str) -> None:
        self._turn = name

    def _done(self, mark: object, plan: Plan, took_s: float, then: Callable[[Plan, float], None]) -> None:
        if self._running is not mark:
            return  # it was given up
        self._running = None
        if self._timer is not None:
            self._timer.cancel()
        for fault in plan.faults:
            if self.faults.add(fault.policy, fault.error):
                self._desk.log.error("policy_failed", policy=fault.policy, partition=fault.partition, error=fault.error)
            self._desk.metrics.policy_faults.inc()
        then(plan, took_s)

    def _overdue(self, mark: object, lost: Callable[[str], None]) -> None:
        """Nothing ends a thread of Python: it is left to itself, with the state that it has."""
        if self._running is not mark:
            return
        policy = self._turn
        self._running = None
        self.faults.benched_until_s[policy] = self._desk.clock() + BENCH_S
        self.faults.add(policy, f"did not end within {self._limit_s * 1.5:g} s: left out for {BENCH_S:g} s")
        self._desk.metrics.policy_faults.inc()
        self._desk.log.error("policy_stuck", policy=policy, seconds=self._limit_s * 1.5)
        self._thread.stop()
        self._thread = _Thread()
        lost(policy)


class _Thread:
    """One thread that does what it is given, and does not keep the process from ending."""

    def __init__(self) -> None:
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._started = False

    def submit(self, work: Callable[[], None]) -> None:
        if not self._started:
            self._started = True
            threading.Thread(target=self._run, name="pass", daemon=True).start()
        self._work.put(work)

    def stop(self) -> None:
        """After what it does now."""
        self._work.put(None)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()
