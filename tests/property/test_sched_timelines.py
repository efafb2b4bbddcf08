"""The fast timelines give the same answers as the plainest ones to any questions in any order."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from unittest.mock import patch

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from plain_timelines import PlainNodeTimeline, PlainUnitTimeline

from rmgr.sched.capacity import units
from rmgr.sched.capacity.nodes import Ending, Horizon, NodePool, NodeTimeline, NodeWindows, Timeline
from rmgr.sched.capacity.units import UnitPool, UnitTimeline
from rmgr.sched.job import Job, Node, Placement, resources_of

NOW = 100
MANY = settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
SEEDS = given(seed=st.integers(0, 1 << 32))


def a_job(chance: random.Random, number: int, cpus: int, *, plain: bool) -> Job:
    limit_us = chance.choice((0, chance.randint(1, 6), chance.randint(1, 40), chance.randint(1, 1 << 40)))
    if plain:
        return Job(id=number, submit_us=0, processes=chance.randint(1, cpus), limit_us=limit_us)
    return Job(
        id=number, submit_us=0, processes=chance.randint(1, max(1, cpus // 2)), threads=chance.choice((1, 1, 2, 3)), limit_us=limit_us,
        memory_bytes=chance.choice((0, 0, chance.randint(1, 40))), features=chance.choice(((), (), ("fast",))),
        exclusive=chance.random() < 0.15, spread=chance.random() < 0.15,
        resources=resources_of({"gpu": chance.choice((0, 0, 0, 1, 2)), "tape": chance.choice((0, 0, 0, 1))}),
    )


def endings_of(chance: random.Random, runs: dict[int, tuple[Job, Placement]], returns: Callable[[Job, Placement], int]) -> list[Ending]:
    """Of what runs, some of it overdue."""
    return sorted((NOW + chance.randint(-5, 50), number, returns(job, placement)) for number, (job, placement) in runs.items())


def same_answers(chance: random.Random, ours: Timeline, plain: Timeline, pool: NodePool | UnitPool, some_job: Callable[[int], Job]) -> None:
    """Promises of all kinds, also some that cannot be kept; every answer is compared."""
    promised: list[tuple[Job, int, Placement]] = []
    for number in range(100, 100 + chance.randint(1, 60)):
        job = some_job(number)
        deed = chance.random()
        if deed < 0.5:
            found, wanted = ours.earliest(job), plain.earliest(job)
            assert found == wanted
            if found is not None:
                at_us, placement = found[0] + chance.choice((0, 0, 0, 3, -3)), found[1]  # it may overdraw
                for each in (ours, plain):
                    each.promise(job, at_us, placement)
                promised.append((job, at_us, placement))
        elif deed < 0.6 and promised:
            gone = promised.pop(chance.randrange(len(promised)))
            for each in (ours, plain):
                each.withdraw(*gone)
        elif deed < 0.85 and promised:
            job, at_us, placement = promised.pop(chance.randrange(len(promised)))
            plain.withdraw(job, at_us, placement)
            wanted = plain.earliest(job)
            if wanted is not None:
                plain.promise(job, *wanted)
                promised.append((job, *wanted))
            assert ours.move(job, (at_us, placement)) == wanted
        elif pool.fits(job):
            where = plain.place(job)
            assert ours.place(job) == where
            assert ours.admits(job) == plain.admits(job) == (where is not None)
            placement = pool.pick(job)
            assert placement is not None
            assert ours.allows(job, placement) == plain.allows(job, placement)
            if where is not None and pool.holds(job, where):
                pool.take(job, where)
                for each in (ours, plain):
                    each.started(job, where)
        assert ours.overdrawn == plain.overdrawn


@MANY
@SEEDS
@example(seed=2155)  # a shape beyond those that have an index: enough is free long after enough is for the rougher one
def test_a_timeline_of_nodes_answers_as_one_with_a_pool_for_every_step(seed: int) -> None:
    chance = random.Random(seed)
    pool, cores = a_pool(chance)
    runs = fill(chance, pool, lambda number: a_job(chance, number, cores, plain=False))
    endings = endings_of(chance, runs, pool.returns)

    def give_back(later: NodePool, job_id: int) -> None:
        later.give(*runs[job_id])

    timelines = [make(NOW, pool, endings, give_back) for make in (NodeTimeline, PlainNodeTimeline)]
    same_answers(chance, *timelines, pool, lambda number: a_job(chance, number, cores, plain=False))


@MANY
@SEEDS
def test_a_timeline_of_counts_answers_as_one_that_looks_at_every_step(seed: int) -> None:
    chance = random.Random(seed)
    pool = UnitPool([Node(id=n) for n in range(chance.randint(1, 12))])
    total = pool.total
    runs = fill(chance, pool, lambda number: a_job(chance, number, total, plain=True))
    endings = endings_of(chance, runs, pool.returns)
    promises = [
        (a_job(chance, number, total, plain=True), NOW + chance.randint(-20, 30)) for number in range(50, 50 + chance.randint(0, 4))
    ]
    ours, plain = UnitTimeline(NOW, pool, endings, promises), PlainUnitTimeline(NOW, pool, endings)
    for job, start_us in promises:
        plain.promise(job, start_us, ())
    with patch.object(units, "MOST_OPENED", chance.choice((1, 2, units.MOST_OPENED))):
        same_answers(chance, ours, plain, pool, lambda number: a_job(chance, number, total, plain=True))


@MANY
@SEEDS
def test_windows_leave_to_starts_what_a_timeline_of_them_leaves(seed: int) -> None:
    chance = random.Random(seed)
    pool, cores = a_pool(chance)
    fill(chance, pool, lambda number: a_job(chance, number, cores, plain=False))
    closings = []
    for _ in range(chance.randint(1, 4)):
        nodes = sorted(chance.sample([node.id for node in pool.nodes], chance.randint(1, len(pool.nodes))))
        nobody = Job(id=0, submit_us=0, exclusive=True, limit_us=chance.randint(1, 30))
        closings.append((NOW + chance.randint(0, 40), nobody, tuple((node, node, 1) for node in nodes)))
    ours: Horizon = NodeWindows(pool, NOW, closings)
    plain = PlainNodeTimeline(NOW, pool, (), lambda _pool, _job_id: None)
    for start_us, nobody, where in closings:
        plain.promise(nobody, start_us, where)
    for number in range(30):
        job = a_job(chance, 200 + number, cores, plain=False)
        if not pool.fits(job):
            continue
        found = plain.place(job)
        assert ours.place(job) == found
        assert ours.admits(job) == (found is not None)
        anywhere = pool.pick(job)
        assert anywhere is not None
        assert ours.allows(job, anywhere) == plain.allows(job, anywhere)
        if found is not None and chance.random() < 0.7:
            pool.take(job, found)
            ours.started(job, found)
            plain.started(job, found)


def a_pool(chance: random.Random) -> tuple[NodePool, int]:
    kinds = [Node(id=0, cores=chance.randint(1, 6), memory_bytes=chance.choice((0, 64, 100))) for _ in range(2)]
    kinds.append(replace(kinds[0], features=("fast",)))
    kinds += [replace(kinds[1], resources=resources_of({"gpu": chance.randint(1, 4), "tape": chance.randint(0, 2)})), kinds[2]]
    nodes = [replace(chance.choice(kinds), id=2 * n - n % 2, closed=chance.random() < 0.1) for n in range(chance.randint(1, 8))]
    return NodePool(nodes), sum(node.cores for node in nodes)


def fill(chance: random.Random, pool: NodePool | UnitPool, some_job: Callable[[int], Job]) -> dict[int, tuple[Job, Placement]]:
    runs = {}
    for number in range(1, chance.randint(1, 8)):
        job = some_job(number)
        if pool.feasible(job) and pool.fits(job):
            placement = pool.pick(job)
            assert placement is not None
            pool.take(job, placement)
            runs[number] = (job, placement)
    return runs
