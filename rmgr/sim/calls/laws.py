"""Laws that every policy for calls must keep, tried on small seeded worlds: `rmgr policy check loth`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from hashlib import sha256
from itertools import chain
from random import Random

from rmgr.sched.engine import run_pass
from rmgr.sched.plan import Plan, Send
from rmgr.sched.policy import Cause, Stage
from rmgr.sched.records import Answered, Call, Demand, Link, Server
from rmgr.sched.state.cluster import ClusterState, Snapshot
from rmgr.sim.engine.world import shuffled
from rmgr.sim.laws.check import Finding, LawsReport, waived
from rmgr.sim.laws.world import Budget, OutOfTime

PARTITION = "calls"
LAWS = {
    "pure": "the same input gives the same plan, and a pass changes no record",
    "records": "a new leader that reads the records, in any order, decides the same",
    "runs": "no policy raises",
    "able": "no call is sent to a server that is closed, lacks the function, or is excluded by the call",
    "sent": "every call that some server can take is sent, or is told why not",
    "ties": "of servers that are equal in everything the lowest name is taken",
    "in_time": "no pass takes longer than the budget",
}
_PASSES = 8
Make = Callable[[], tuple[Stage, ...]]


def check(make: Make, *, worlds: int, seed: int = 0, budget_s: float = 0, on_progress: Callable[[int], None] | None = None) -> LawsReport:
    """Tries all laws on worlds of the seeds `seed`, `seed` + 1, ...

    Args: budget_s: wall-clock limit of a pass (s); 0 = unlimited. The first pass that takes longer ends the check.
    Cost: about 3 ms a world.
    """
    broken: dict[str, tuple[int, str]] = {}
    budget, passes, done = Budget(budget_s), 0, 0
    for number in range(seed, seed + worlds):
        done += 1
        try:
            for law, text in chain(_driven(make, Random(number), budget), _tied(make, Random(number), budget)):
                broken.setdefault(law, (number, text))
        except OutOfTime:
            broken["in_time"] = number, budget.told
            break
        passes += _PASSES + 1
        if on_progress is not None:
            on_progress(done)
    waivers = waived(make())
    findings = []
    for law, says in LAWS.items():
        at, text = broken.get(law, (0, ""))
        findings.append(Finding(law, says, done, passes, seed=at, text=text, waiver=waivers.get(law, "")))
    return LawsReport(tuple(findings), done, passes)


def digest(make: Make, *, worlds: int, seed: int = 0) -> str:
    """Returns the SHA-256 of all plans in these worlds: equal in every interpreter, whatever its hash seed and set order."""
    sum_ = sha256()

    def seen(plan: Plan) -> None:
        sum_.update(repr((plan.decisions, sorted(plan.left.items()), sorted(plan.rest.items()))).encode())

    for number in range(seed, seed + worlds):
        for _ in _driven(make, Random(number), Budget(0), seen):
            pass
    return sum_.hexdigest()


def _driven(make: Make, chance: Random, budget: Budget, seen: Callable[[Plan], None] = lambda _plan: None) -> Iterator[tuple[str, str]]:
    """Runs a few passes in a world that changes between them; yields (law, how it broke). seen: gets each plan. Raises: OutOfTime."""
    state = ClusterState()
    now = number = 0
    flying: list[tuple[Call, Send]] = []
    for _ in range(_PASSES):
        now += chance.randint(1, 30_000_000)
        for name in "abcd":
            if chance.random() < 0.5:
                state.server_changed(_server(chance, name, now))
        for _ in range(chance.randint(0, 3)):
            number += 1
            state.call_submitted(_call(chance, number, now))
        for call, sent in flying:
            took = chance.randint(1, 20_000_000)
            state.call_answered(Answered(call.id, sent.to, call.submit_us, now + took, call.operations, took // 2, took, sent.predicted_us))
        before = state.snapshot()
        plan = _planned(state, make(), now, budget)
        seen(plan)
        yield from _looked_at(before, plan)
        if state.snapshot() != before or _planned(state, make(), now, budget) != plan:
            yield "pure", f"a second pass at {now} us decides otherwise, or the first changed a record"
        fresh = ClusterState.restored(shuffled(before, chance))
        other = _planned(fresh, make(), now, budget)
        if other.decisions != plan.decisions:
            yield (
                "records",
                f"at {now} us the restored state decides {list(map(_shown, other.decisions))}, not {list(map(_shown, plan.decisions))}",
            )
        calls = {call.id: call for call in before.calls}
        flying = [(calls[decision.job_id], decision) for decision in plan.decisions if isinstance(decision, Send)]
        state.apply(plan, now)


def _looked_at(before: Snapshot, plan: Plan) -> Iterator[tuple[str, str]]:
    for fault in plan.faults:
        yield "runs", f"{fault.policy}: {fault.error}"
    if plan.refused:
        yield "able", f"{plan.refused} times a server was chosen that cannot take the call"
    sent = {decision.job_id for decision in plan.decisions if isinstance(decision, Send)}
    for call in before.calls:
        able = [one for one in before.servers if one.takes(call)]
        if able and call.id not in sent and plan.why(call.id, PARTITION) is None and not plan.faults:
            yield "sent", f"call {call.id} waits without a reason, {able[0].name} could take it"


def _tied(make: Make, chance: Random, budget: Budget) -> Iterator[tuple[str, str]]:
    """Plans the first call among servers that differ only in their names."""
    state = ClusterState()
    server = _server(chance, "a", 0)._replace(is_open=True, functions=())
    for name in chance.sample("abcde", 5):
        state.server_changed(server._replace(name=name))
    state.call_submitted(_call(chance, 1, 0)._replace(function="", excluded=()))
    plan = _planned(state, make(), 0, budget)
    chosen = [decision.to for decision in plan.decisions if isinstance(decision, Send)]
    if chosen not in (["a"], []):
        yield "ties", f"the first call went to {chosen[0]}, not to a, its equal"


def _planned(state: ClusterState, pipeline: tuple[Stage, ...], now: int, budget: Budget) -> Plan:
    causes = frozenset({Cause.CALL_SUBMITTED, Cause.SERVERS_CHANGED})
    with budget.counted():
        return run_pass(state, causes, now=now, seed=0, pipeline=pipeline)


def _server(chance: Random, name: str, now: int) -> Server:
    rates = tuple((client, chance.choice((0.0, 1e5, 1e6, 2e6))) for client in ("x", "y") if chance.random() < 0.8)
    demand = Demand(chance.random(), chance.random() * 2, chance.random() * 2)
    return Server(
        name,
        chance.choice((0.0, 1e6, 4e7, 4e8)),  # 0: nobody has declared it
        float(chance.randint(0, 4)),
        rates,
        at_us=now,
        partition=PARTITION,
        slots=chance.choice((1, 1, 2, 8)),
        functions=chance.choice(((), (), ("f",), ("f", "g"))),
        is_open=chance.random() < 0.8,
        life=chance.choice((0, 0, 1)),
        mean_load=chance.random() * 4,
        calibrated=chance.choice((0.0, 3e7)),
        demand=demand,
        links=tuple(Link(client, rate, demand) for client, rate in rates),
    )


def _call(chance: Random, number: int, now: int) -> Call:
    excluded = tuple(name for name in "abcd" if chance.random() < 0.15)
    client, function = chance.choice("xyz"), chance.choice(("", "f", "g"))
    return Call(number, now, chance.choice((0, 1000, 144_720_000)), chance.choice((0, 2_892_000)), client, PARTITION, function, excluded)


def _shown(decision: object) -> str:
    return f"call {decision.job_id} to {decision.to}" if isinstance(decision, Send) else type(decision).__name__
