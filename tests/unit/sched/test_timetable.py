"""All readers of a generation compute the same slots, however late, and whatever else the tree holds."""

from __future__ import annotations

import random

import pytest

from rmgr.model.block import job_id, run_label
from rmgr.model.node import GangClock, GangRecord
from rmgr.sched.capacity.gangs import Carousel, Timetable
from rmgr.sched.records import Gang

NODES = (("n1", 2), ("n2", 1), ("n3", 4), ("n4", 1))
SLOT_US = 100_000


def grown(seed: int) -> Carousel:
    """A tree of four nodes with some jobs, that has turned for a while."""
    chance = random.Random(seed)
    leaves = tuple((at, at, cores) for at, (_, cores) in enumerate(NODES))
    carousel = Carousel(Gang("dqt", SLOT_US, 5_000, 0, 2, leaves, ()))
    for number in range(1, chance.randint(3, 12)):
        open_nodes = [node for node in range(carousel.tree.nodes) if carousel.tree.sizes[node]]
        carousel.add(job_id(number, 0), chance.choice(open_nodes), chance.randint(1, 3))
        carousel.advance_to(carousel.rotation.now + chance.randint(0, 9))
    return carousel


def published(carousel: Carousel) -> GangRecord:
    gang = carousel.record("dqt", "dqt", "default")
    return GangRecord(
        policy="dqt", slot_us=gang.slot_us, origin_us=gang.origin_us, slot=gang.slot, width=gang.width, leaves=NODES,
        clock=GangClock(node="n1", incarnation=1, offset_us=0), queues=gang.queues, front=gang.front, late=gang.late,
        next_round=gang.next_round, attempts=tuple((job, 1, 0) for job in gang.jobs),
    )


@pytest.mark.parametrize("seed", range(12))
def test_rows_of_nodes_are_those_of_the_leaders_tree(seed: int) -> None:
    carousel = grown(seed)
    tables = {name: Timetable(published(carousel), name) for name, _ in NODES}
    firsts = {"n1": 0, "n2": 2, "n3": 3, "n4": 7}
    for _ in range(60):
        row = carousel.rotation.row()
        spans = {run_label(job // (1 << 20), 0, 1): carousel.tree.span(node) for node, job in row}
        taken = [leaf for low, high in spans.values() for leaf in range(low, high)]
        assert len(taken) == len(set(taken)), "one job a core"
        for name, cores in NODES:
            first = firsts[name]
            there = {part for part, (low, high) in spans.items() if low < first + cores and high > first}
            found = tables[name].next()
            assert set(found.parts) == there
            assert found.start_us == carousel.origin_us + carousel.rotation.now * SLOT_US
            for part in there:
                low, high = spans[part]
                assert tables[name].cores_of(part) == (max(low - first, 0), min(high, first + cores) - max(low, first))
        carousel.advance_to(carousel.rotation.now + 1)


@pytest.mark.parametrize("seed", range(12))
def test_loads_are_counted_when_somebody_places_by_them_and_are_the_same(seed: int) -> None:
    carousel = grown(seed)
    gang = carousel.record("dqt", "dqt", "default")
    again = Carousel(gang)
    again.advance_to(gang.slot + 20)
    assert again.loads is None  # who reads slots pays nothing for them
    carousel.remove(gang.jobs[0])
    again.remove(gang.jobs[0])
    for mine, other in ((carousel.entries, again.entries), (carousel.jobs, again.jobs)):
        assert [(mine.lengths, mine.longest, mine.shortest, mine.apa)] == [(other.lengths, other.longest, other.shortest, other.apa)]
    assert again.copy().entries.lengths == again.entries.lengths


@pytest.mark.parametrize("seed", range(12))
def test_who_reads_late_computes_the_same(seed: int) -> None:
    record = published(grown(seed))
    early, late = Timetable(record, "n3"), Timetable(record, "n3")
    rows = [early.next() for _ in range(500)]
    late.skip_to(record.slot + 437)
    assert [late.next() for _ in range(63)] == rows[437:]


def test_a_generation_goes_on_where_the_one_before_stands() -> None:
    carousel = grown(3)
    before = Timetable(published(carousel), "n1")
    carousel.advance_to(carousel.rotation.now + 17)
    after = Timetable(published(carousel), "n1")
    before.skip_to(after.slot)
    assert [after.next() for _ in range(200)] == [before.next() for _ in range(200)]


def test_a_node_that_the_record_does_not_have_runs_nothing() -> None:
    table = Timetable(published(grown(1)), "elsewhere")
    assert all(not table.next().parts for _ in range(50))
    assert all(table.cores_of(part) is None for part in table.names)
