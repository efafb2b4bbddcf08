"""Worlds for property tests: drawn by Hypothesis, which shrinks them; and a policy that does whatever comes to its mind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import ClassVar, TypeVar

from hypothesis import strategies as st

from rmgr.sched.capacity.gangs import leaves_of
from rmgr.sched.draft import Draft
from rmgr.sched.plan import Why
from rmgr.sched.policy import Cause
from rmgr.sched.records import Gang, Share
from rmgr.sched.tree.shape import Tree
from rmgr.sim.laws.world import SmallWorld, world_of

Option = TypeVar("Option")


class Drawn:
    """Chance as Hypothesis has it: the lower number and the first option are what it shrinks to."""

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw

    def between(self, low: int, high: int) -> int:
        return self._draw(st.integers(low, high))

    def one_of(self, options: Sequence[Option]) -> Option:
        return self._draw(st.sampled_from(options))


@st.composite
def worlds(draw: st.DrawFn, *, one_core: bool | None = None, events: bool = True) -> SmallWorld:
    return world_of(Drawn(draw), one_core=one_core, events=events)


MONKEY = Why("monkey", "it came to its mind")


@dataclass(frozen=True, slots=True)
class Monkey:
    """Uses every verb of a draft at random, forks, and raises now and then; the same draft and seed, the same verbs."""

    name: ClassVar[str] = "monkey"
    seed: int = 0
    raises: bool = False

    def plan(self, draft: Draft, causes: frozenset[Cause]) -> None:
        chance = Random(f"{self.seed} {draft.seed} {draft.now_us} {draft.partition}")
        self._play(draft, chance, chance.randint(0, 9))
        if self.raises and not chance.randrange(4):
            raise RuntimeError("it fell off its tree")

    def _play(self, draft: Draft, chance: Random, verbs: int) -> None:
        for _ in range(verbs):
            if chance.randrange(6):
                getattr(self, chance.choice(VERBS))(draft, chance)
                continue
            with draft.fork() as trial:
                self._play(draft, chance, chance.randint(0, 4))
                if chance.randrange(2):
                    trial.keep()

    def start(self, draft: Draft, chance: Random) -> None:
        placement = None if chance.randrange(4) else ((some(chance, NODES), some(chance, NODES), chance.randint(0, 3)),)
        draft.start(waiting(draft, chance), MONKEY, placement)

    def start_all(self, draft: Draft, chance: Random) -> None:
        for job in draft.startable(draft.by_arrival()):
            draft.start(job.id, MONKEY)

    def reserve(self, draft: Draft, chance: Random) -> None:
        draft.reserve(waiting(draft, chance), MONKEY, keep=bool(chance.randrange(2)))

    def unreserve(self, draft: Draft, chance: Random) -> None:
        draft.unreserve(waiting(draft, chance), MONKEY)

    def wake_at(self, draft: Draft, chance: Random) -> None:
        draft.wake_at(draft.now_us + chance.randint(-1, 3), MONKEY)

    def migrate(self, draft: Draft, chance: Random) -> None:
        draft.migrate(running(draft, chance), MONKEY)

    def preempt(self, draft: Draft, chance: Random) -> None:
        draft.preempt(running(draft, chance), MONKEY)

    def suspend(self, draft: Draft, chance: Random) -> None:
        draft.suspend(running(draft, chance), MONKEY)

    def resume(self, draft: Draft, chance: Random) -> None:
        draft.resume(some(chance, [stopped.run.job.id for stopped in draft.suspended()]), MONKEY)

    def hold(self, draft: Draft, chance: Random) -> None:
        shares = []
        for run in draft.running():
            if chance.randrange(2):
                cores = tuple((first, last, count * run.job.threads if chance.randrange(3) else 1) for first, last, count in run.placement)
                shares.append(Share(run.job.id, cores[: chance.randint(0, len(cores))] if not chance.randrange(4) else cores))
        draft.hold(waiting(draft, chance), shares, MONKEY)

    def release(self, draft: Draft, chance: Random) -> None:
        draft.release(waiting(draft, chance), MONKEY)

    def note(self, draft: Draft, chance: Random) -> None:
        draft.note(chance.choice("ab"), some(chance, [0, waiting(draft, chance), running(draft, chance), 505]), (chance.randint(0, 3),))

    def forget(self, draft: Draft, chance: Random) -> None:
        kind = chance.choice("ab")
        draft.forget(kind, some(chance, sorted(draft.notes(kind))))

    def route(self, draft: Draft, chance: Random) -> None:
        draft.route(waiting(draft, chance), chance.choice(("default", "small", "large")), MONKEY)

    def send(self, draft: Draft, chance: Random) -> None:
        servers = [server.name for server in draft.servers()]
        to = chance.choice([*servers, "nowhere"])
        draft.send(some(chance, [call.id for call in draft.calls()]), to, MONKEY, predicted_us=chance.randint(0, 9))

    def reject(self, draft: Draft, chance: Random) -> None:
        if not chance.randrange(8):
            draft.reject(waiting(draft, chance), MONKEY)

    def gang(self, draft: Draft, chance: Random) -> None:
        """Mostly one that could be: who is in it stays, who comes gets a tree node."""
        if not draft.nodes:
            return
        name = chance.choice("xy")
        old = next((gang for gang in draft.gangs() if gang.name == name), None)
        stays = {job_id: node for job_id, node in old.homes.items() if chance.randrange(9)} if old is not None else {}
        nodes = {at: node for at, node in draft.nodes.items() if chance.randrange(4)} or dict(draft.nodes)
        leaves = old.leaves if old is not None and chance.randrange(9) else leaves_of(nodes)
        width = old.width if old is not None else chance.randint(2, 3)
        tree = Tree(width, sum((last - first + 1) * cores for first, last, cores in leaves))
        homes = stays | {job.id: chance.randrange(tree.nodes) for job in draft.by_arrival() if not chance.randrange(3)}
        homes |= {run.job.id: chance.randrange(tree.nodes) for run in draft.running() if not chance.randrange(20)}
        if not chance.randrange(20):
            homes[NOBODY] = 0
        queues: dict[int, list[tuple[int, int]]] = {}
        for job_id, node in homes.items():
            queues.setdefault(node, []).append((job_id, chance.randint(1, 2)))
        record = Gang(name, chance.randint(0, 9), 0, chance.randint(0, 9), width, leaves, tuple((at, tuple(queues[at])) for at in queues))
        draft.gang(record, MONKEY)

    def say(self, draft: Draft, chance: Random) -> None:
        draft.leave_pending(waiting(draft, chance), MONKEY)
        draft.leave_rest(MONKEY)


VERBS = sorted(name for name in vars(Monkey) if not name.startswith("_") and name not in {"plan", "name", "seed", "raises"})
VERBS += ["start_all", "hold", "hold", "gang"]  # oftener than the others
#: Ids of nodes in these worlds, and some that are not there.
NODES = (0, 1, 11, 30, 31, 41, 60, 61, 99)
NOBODY = 999


def some(chance: Random, ids: Sequence[int]) -> int:
    """One of them, now and then one that is not."""
    return chance.choice(ids) if ids and chance.randrange(8) else NOBODY


def waiting(draft: Draft, chance: Random) -> int:
    return some(chance, [job.id for job in draft.by_arrival()])


def running(draft: Draft, chance: Random) -> int:
    return some(chance, [run.job.id for run in draft.running()])
