"""Runs the policies of plug-ins in a process for each partition, while the leader goes on; their plans are vetted in its next pass.

A request is a copy of the partition's records; so a policy can burn its own time and memory, and nobody else's. In the leader's loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from typing import Any, NamedTuple

from rmgr.daemons.leader.core.doors import LoopTimers, Thunk
from rmgr.daemons.leader.placement.faults import Faults
from rmgr.daemons.leader.plugins.process import LIMIT_S, PolicyFailed, PolicyProcess
from rmgr.runtime import machine
from rmgr.sched.plan import Fault, WakeAt
from rmgr.sched.policy import Cause, Stage
from rmgr.sched.state.cluster import ClusterState, records_of
from rmgr.sched.state.event_log import LogError
from rmgr.sched.vetting import ForeignPlan, OutOfDate, Repeats, decode_plan

#: So many plans in a row that the draft refuses: the policy decides what nobody accepts.
_MOST_REFUSED = 10


class PolicyAnswer(NamedTuple):
    """Settings of a policy process. policies: names of the stages, which records carry. half_life_us: of the use
    that they look at, 0 = they do not."""

    problem: str = ""
    told: ForeignPlan = ForeignPlan()
    policies: tuple[str, ...] = ()
    half_life_us: int = 0


@dataclass(slots=True, kw_only=True)
class _Partition:
    """document: its pipeline. told: what is written in passes until the next plan comes."""

    document: Mapping[str, Any]
    named: str
    process: PolicyProcess = field(default_factory=lambda: PolicyProcess(LIMIT_S))
    requests: SimpleQueue[dict[str, Any] | None] = field(default_factory=SimpleQueue)
    asked: ClusterState | None = None  #: the state of the request that is under way
    causes: frozenset[Cause] = frozenset()  #: of the next request
    policies: tuple[str, ...] = ()  #: () until it has answered
    told: ForeignPlan = ForeignPlan()
    has_plan: bool = False  #: `told` is to be carried out
    refused: int = 0  #: plans in a row that were out of date
    half_life_us: int = 0

    @property
    def is_due(self) -> bool:
        """It is to be asked now."""
        return bool(self.causes) and self.asked is None and not self.has_plan


class Foreign:
    """Asks processes for plans, one request at a time for each partition.

    Args:
        wake: called when there is something to do. state: the one that is believed now.
        relearned: called when a policy turns out to need use with another half-life.
    """

    def __init__(
        self, loop: LoopTimers, faults: Faults, *, wake: Thunk, state: Callable[[], ClusterState | None], relearned: Thunk
    ) -> None:
        self._loop = loop
        self._faults = faults
        self._wake = wake
        self._state = state
        self._relearned = relearned
        self._parts: dict[str, _Partition] = {}

    def __contains__(self, partition: str) -> bool:
        return partition in self._parts

    def serve(self, documents: Mapping[str, tuple[str, Mapping[str, Any]]]) -> None:
        """These partitions from now on: partition -> (what its pipeline is called, its document). An unchanged one keeps its process."""
        for partition in [name for name, part in self._parts.items() if documents.get(name) != (part.named, part.document)]:
            part = self._parts.pop(partition)
            part.requests.put(None)
            part.process.close()
        for partition, (named, document) in documents.items():
            if partition not in self._parts:
                part = self._parts[partition] = _Partition(document=document, named=named)
                machine.Thread(target=self._run, args=(partition, part), name=f"policy-{partition}", daemon=True).start()

    def close(self) -> None:
        """The leadership is over: every process is ended."""
        self.serve({})

    @property
    def half_life_us(self) -> int:
        """Of the use that these policies look at, as far as it is known; 0 = they do not."""
        return next((part.half_life_us for part in self._parts.values() if part.half_life_us), 0)

    @property
    def has_plan(self) -> bool:
        """A plan is to be carried out."""
        return any(part.has_plan for part in self._parts.values())

    @property
    def has_work(self) -> bool:
        """A plan is to be carried out, or a request is due."""
        return any(part.has_plan or part.is_due for part in self._parts.values())

    def ask(self, state: ClusterState, causes: frozenset[Cause], now_us: int) -> None:
        """Something has happened: every partition that has jobs is asked for a plan. Cost: O(its records), off the loop the rest."""
        for partition, part in self._parts.items():
            here = state.partitions.get(partition)
            part.causes |= causes
            if here is None or partition in self._faults.benched or not (here.jobs or here.notes or here.suspended or here.holds):
                part.causes = frozenset()
            if not part.is_due or here is None:
                continue
            part.asked = state
            part.requests.put(
                {
                    "partition": partition,
                    "document": part.document,
                    "snapshot": records_of((here,), state.usage),
                    "causes": part.causes,
                    "now_us": now_us,
                    "half_life_us": state.usage_half_life_us,
                }
            )
            part.causes = frozenset()

    def stages(self, now_us: int) -> tuple[Stage, ...]:
        """What these policies have planned, for the next pass; where there is nothing new, why their jobs wait and when they are asked."""
        found: list[Stage] = []
        for partition, part in self._parts.items():
            if not part.policies or partition in self._faults.benched:
                continue  # before it has answered nobody knows whose records are whose
            told, (first, *others) = part.told, part.policies
            found += [_stage(first, told, partition), *(_stage(name, ForeignPlan(), partition) for name in others)]
            wakes = tuple(decision for decision in told.decisions if type(decision) is WakeAt and decision.at_us > now_us)
            if part.has_plan and any(type(decision) is WakeAt and decision.at_us <= now_us for decision in told.decisions):
                part.causes |= {Cause.TIMER}  # its time came while it was on its way
            part.told, part.has_plan = ForeignPlan(decisions=wakes, left=told.left, rest=told.rest), False
        return tuple(found)

    def is_forgiven(self, fault: Fault) -> bool:
        """The fault of a pass was a plan that is out of date: it is made again. Too often in a row, and the policy is to blame."""
        part = self._parts.get(fault.partition)
        if part is None or not fault.error.startswith(OutOfDate.__name__):
            return False
        part.refused += 1
        part.told, part.causes = ForeignPlan(), part.causes | {Cause.TIMER}
        if part.refused >= _MOST_REFUSED:
            self._faults.add(fault.partition, part.named, f"{part.refused} plans in a row could not be carried out: {fault.error}")
        return True

    def passed(self, faults: Iterable[Fault]) -> None:
        """A pass has ended with these faults."""
        faulty = {fault.partition for fault in faults}
        for partition, part in self._parts.items():
            if partition not in faulty:
                part.refused = 0

    # -- its thread

    def _run(self, partition: str, part: _Partition) -> None:
        """Asks, one request after the other."""
        while (request := part.requests.get()) is not None:
            try:
                answer = _read(part.process.ask(request), partition)
            except (PolicyFailed, LogError) as error:
                answer = PolicyAnswer(str(error))
            except Exception as error:  # noqa: BLE001 - loop boundary of the thread: whatever it is, the leader is told
                answer = PolicyAnswer(f"{type(error).__name__}: {error}")
            if answer.problem:
                part.process.end()  # what it has of memory goes with it
            self._loop.soon(partial(self._answered, partition, part, answer))
        part.process.end()

    def _answered(self, partition: str, part: _Partition, answer: PolicyAnswer) -> None:
        """In the loop."""
        asked, part.asked = part.asked, None
        if self._parts.get(partition) is not part:
            return
        if answer.problem:
            part.told, part.has_plan = ForeignPlan(), False
            self._faults.add(partition, part.named, answer.problem)
            return
        part.policies = answer.policies
        if asked is self._state():
            part.told, part.has_plan = answer.told, True
        else:
            part.causes |= {Cause.TAKE_OVER}
        if answer.half_life_us != part.half_life_us:
            part.half_life_us = answer.half_life_us
            self._relearned()
        self._wake()


def _stage(policy: str, told: ForeignPlan, partition: str) -> Stage:
    return Stage(Repeats(policy, told), (partition,))  # type: ignore[arg-type]  # its name is that of the policy that it repeats


def _read(answer: Mapping[str, Any], partition: str) -> PolicyAnswer:
    """Raises: LogError for what is no plan."""
    told = decode_plan(answer.get("plan", {}), partition)
    problem = "; ".join(f"{fault.policy}: {fault.error}" for fault in told.faults)
    return PolicyAnswer(problem, told, tuple(map(str, answer["policies"])), int(answer["half_life_us"]))
