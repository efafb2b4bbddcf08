"""The laws that every policy keeps, tried on small worlds: what `rmgr policy check` and the property tests both run.

A law has a name, a sentence, and a place where it is looked at: in a pass, after its decisions were carried out, or at the end of a world.
A policy whose paper says that it breaks one declares it: `waives: ClassVar[Mapping[str, str]] = {"endless": "papers.md 2.2: ..."}`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import zip_longest
from random import Random
from traceback import extract_tb
from typing import TypeAlias, cast

from rmgr.sched.draft import Draft
from rmgr.sched.plan import Decision, Plan, Reserve, Start, WakeAt
from rmgr.sched.policy import Cause, Policy, Stage
from rmgr.sched.state.cluster import ClusterState, Snapshot
from rmgr.sim.laws.budget import Budget, OutOfTime
from rmgr.sim.laws.drive import MOST_PASSES, Drive, StoryLine, StoryStay, where
from rmgr.sim.laws.records import overcommitted
from rmgr.sim.laws.world import SmallWorld

#: name -> what must hold
LAWS: Mapping[str, str] = {
    "pure": "the same input gives the same plan, and a pass changes no record",
    "stateless": "another leader, with a new policy object and shuffled records, decides the same",
    "fork": "what a fork takes back leaves no trace",
    "contained": "a policy that raises or takes too long loses its decisions, and nothing else is touched",
    "sound": "it does not raise",
    "applies": "what is decided can be carried out, and what happens can be told",
    "in_time": "a pass takes no longer than its budget",
    "explained": "every job that starts or waits has a reason",
    "capacity": "no core, memory or exclusive node is given twice",
    "permission": "nothing starts before its submit, begin time or dependencies, on a closed node, into a window or over a limit",
    "served": "every job has its turn where what arrives is finite",
}
EVERY_LAW = frozenset(LAWS)


@dataclass(frozen=True, slots=True)
class Breach:
    """A law that did not hold: where, and what had happened until then."""

    law: str
    text: str
    at_us: int
    world: SmallWorld
    story: tuple[StoryLine, ...]
    stays: tuple[StoryStay, ...] = ()


class Broken(Exception):
    """A law does not hold. Caught by `tried`."""

    def __init__(self, law: str, text: str) -> None:
        super().__init__(f"{law}: {text}")
        self.law = law
        self.text = text


@dataclass(frozen=True, slots=True)
class Tried:
    """One world: how many passes were looked at, and the first law that broke."""

    passes: int
    breach: Breach | None = None


#: New objects of the same pipeline, each time it is called.
Make: TypeAlias = Callable[[], tuple[Stage, ...]]


def tried(
    world: SmallWorld, make: Make, *, laws: Collection[str] = EVERY_LAW, budget: Budget | None = None, most_passes: int = MOST_PASSES
) -> Tried:
    """Runs the pipeline through the world and looks at every pass, until a law breaks. Cost: about six passes for each."""
    drive = Drive(world, make(), budget=budget or Budget(0))
    try:
        while drive.passes < most_passes and drive.advance():
            drive.decide()
            other = _look_at_pass(drive, make, laws)
            drive.carry_out()
            if "stateless" in laws:
                other.apply(drive.plan, drive.now_us)
                if other.snapshot() != drive.state.snapshot():
                    raise Broken("stateless", f"the plan leaves other records with another leader: {_other(other, drive.state)}")
            _hold("capacity", laws, overcommitted(drive.state.snapshot()))
            _hold("permission", laws, drive.wrongs)
        if drive.passes < most_passes:
            _hold("served", laws, drive.left_waiting())
    except Broken as broken:
        return Tried(drive.passes, Breach(broken.law, broken.text, drive.now_us, world, tuple(drive.story), tuple(drive.stays)))
    except Exception as error:  # noqa: BLE001 - whatever it is, facts, passes and decisions must not raise; it is told with its world
        frame = extract_tb(error.__traceback__)[-1]
        text = f"{type(error).__name__}: {error} ({frame.filename.rpartition('/')[2]}, line {frame.lineno})"
        return Tried(drive.passes, Breach("applies", text, drive.now_us, world, tuple(drive.story), tuple(drive.stays)))
    except OutOfTime:
        return Tried(drive.passes, Breach("in_time", drive.budget.told, drive.now_us, world, tuple(drive.story), tuple(drive.stays)))
    return Tried(drive.passes)


def _look_at_pass(drive: Drive, make: Make, laws: Collection[str]) -> ClusterState:
    """Every law of one pass, with the state as it was before it. The drive goes on with the state it has had all along.

    Returns: the state of another leader at the same point.
    """
    state, plan = drive.state, drive.plan
    for fault in plan.faults:
        name = "in_time" if fault.error == "out of time" else "sound"
        _hold(name, laws, [f"policy {fault.policy}: {fault.error}"])
    before = state.snapshot()
    if "pure" in laws:
        _same("pure", "the pass once more", plan, drive.planned(state, drive.pipeline))
        if state.snapshot() != before:
            raise Broken("pure", "the pass changed records of the state")
    fresh = ClusterState.restored(shuffled(before, drive.world.seed), drive.world.half_life_us)
    if "stateless" in laws:
        if fresh.snapshot() != before:
            raise Broken("stateless", f"the records say something else to another leader: {_other(fresh, state)}")
        _same("stateless", "another leader, restored from shuffled records", plan, drive.planned(fresh, make()))
    if "fork" in laws:
        forked = drive.planned(state, _wrapped(make(), _Forked))
        _same("fork", "the pass after a fork that was taken back", plan, forked, counts=False)
    if "contained" in laws and not plan.faults:
        lost = drive.planned(state, _wrapped(make(), _Raises))
        idle = drive.planned(state, _wrapped(make(), _Idle))
        _same("contained", "the pass whose policy raised at its end", idle, lost, counts=False)
        late = drive.planned(state, make(), expired=_always)
        _same("contained", "the pass whose policy took too long", idle, late, counts=False)
        if state.snapshot() != before:
            raise Broken("contained", "a policy that raised or took too long changed records of the state")
    _hold("explained", laws, _unexplained(drive))
    return fresh


def _other(fresh: ClusterState, state: ClusterState) -> str:
    """The first records that are not the same."""
    its, mine = fresh.snapshot(), state.snapshot()
    name = next(name for name in Snapshot.__slots__ if getattr(its, name) != getattr(mine, name))
    return f"{name} {getattr(its, name)} instead of {getattr(mine, name)}"


def _always() -> bool:
    return True


def _unexplained(drive: Drive) -> Iterator[str]:
    for decision in drive.plan.decisions:
        if not str(decision.why):
            yield f"{decision!r} has no reason"
    for name, part in drive.state.partitions.items():
        for job_id in part.jobs:
            if drive.plan.why(job_id, name) is None:
                yield f"job {job_id} waits and no reason is given: draft.leave_pending or draft.leave_rest"


def _same(law: str, what: str, first: Plan, second: Plan, *, counts: bool = True) -> None:
    """counts: faults and refused verbs are the same, too."""
    for mine, its in zip_longest(first.decisions, second.decisions):
        if mine != its:
            raise Broken(law, f"{what}: {shown(its)} instead of {shown(mine)}")
    for job_id in sorted({*first.left, *second.left}):
        mine_why, its_why = first.left.get(job_id), second.left.get(job_id)
        if mine_why != its_why:
            raise Broken(law, f"{what}: job {job_id} waits for another reason: {its_why} instead of {mine_why}")
    if first.rest != second.rest:
        raise Broken(law, f"{what}: jobs wait for other reasons: {second.rest} instead of {first.rest}")
    if counts and first.faults != second.faults:
        raise Broken(law, f"{what}: {_faults(second)} instead of {_faults(first)}")
    if counts and first.refused != second.refused:
        raise Broken(law, f"{what}: {second.refused} refused verbs instead of {first.refused}")


def shown(decision: Decision | None) -> str:
    """A decision in a few words."""
    match decision:
        case None:
            return "nothing"
        case Start(job_id, placement):
            return f"start job {job_id} on {where(placement)}"
        case WakeAt(at_us):
            return f"wake at {at_us} us"
        case Reserve(job_id, start_us):
            return f"reserve {start_us} us for job {job_id}"
        case _:
            return repr(decision)


def _faults(plan: Plan) -> str:
    return "; ".join(f"{fault.policy}: {fault.error}" for fault in plan.faults) or "no fault"


def _hold(law: str, laws: Collection[str], breaches: Iterator[str] | list[str]) -> None:
    if law in laws:
        for text in breaches:
            raise Broken(law, text)


def shuffled(snapshot: Snapshot, seed: int) -> Snapshot:
    """The same records in another order."""
    chance = Random(seed)
    return replace(
        snapshot,
        **{name: tuple(chance.sample(rows := list(getattr(snapshot, name)), len(rows))) for name in Snapshot.__slots__},
    )


def _wrapped(pipeline: tuple[Stage, ...], kind: type[_Wrapped]) -> tuple[Stage, ...]:
    return tuple(replace(stage, policy=cast("Policy", kind(stage.policy))) for stage in pipeline)


@dataclass(frozen=True)
class _Wrapped:
    """A policy under its own name, so that its records stay its records."""

    policy: Policy

    @property
    def name(self) -> str:  # a wrapper's name is its policy's
        return self.policy.name


class _Forked(_Wrapped):
    def plan(self, draft: Draft, causes: frozenset[Cause]) -> None:
        with draft.fork():
            self.policy.plan(draft, causes)
        self.policy.plan(draft, causes)


class _Raises(_Wrapped):
    def plan(self, draft: Draft, causes: frozenset[Cause]) -> None:
        self.policy.plan(draft, causes)
        raise RuntimeError("raises after it decided")


class _Idle(_Wrapped):
    def plan(self, draft: Draft, causes: frozenset[Cause]) -> None:
        pass
