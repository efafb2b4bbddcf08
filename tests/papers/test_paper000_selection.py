"""Paper 000: the selection table (papers.md C0.1), the ladder of other sites, and the arithmetic of individual priority (C0.2)."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from rmgr.sched.job import Job
from rmgr.sched.policies.connection_reservation import Overtaken, constant, exceeds
from rmgr.sched.queue_class import HOUR_US, HPC2500, QueueClass, admitting, checked, selected

CLASSES = {queue.name: queue for queue in HPC2500}


def a_job(processes: int = 1, threads: int = 1, hours: float = 1, job_id: int = 1) -> Job:
    return Job(id=job_id, submit_us=0, processes=processes, threads=threads, limit_us=round(hours * HOUR_US))


# papers.md C0.1; "*" are tried on both sides of two hours
TABLE = [
    (1, 8, 1, "ss8"),
    (8, 1, 2, "s8"),
    *[(1, 64, h, "s128") for h in (1, 2)],
    *[(2, 64, h, "s128") for h in (1, 2)],
    *[(16, 1, h, "d32") for h in (1, 2)],
    *[(16, 2, h, "d32") for h in (1, 2)],
    *[(33, 1, h, "d128") for h in (1, 2)],
    *[(16, 8, h, "d128") for h in (1, 2)],
    *[(8, 16, h, "s128") for h in (1, 2)],
    *[(129, 1, h, "d512") for h in (1, 2)],
    *[(16, 32, h, "d512") for h in (1, 2)],
    *[(1, 129, h, None) for h in (1, 2)],
    *[(9, 64, h, None) for h in (1, 2)],
    *[(513, 1, h, None) for h in (1, 2)],
]


@pytest.mark.parametrize(("processes", "threads", "hours", "queue"), TABLE)
def test_selection_table(processes: int, threads: int, hours: float, queue: str | None) -> None:
    found = selected(a_job(processes, threads, hours), HPC2500)
    assert (found.name if found else None) == queue


def by_hand(p: int, t: int, hours: float) -> str | None:
    """papers.md 1.3, word by word."""
    cpu = p * t
    if cpu <= 8:
        return "ss8" if hours < 2 else "s8"
    if t > 32:
        return "s128" if p <= 8 and cpu <= 128 else None
    if cpu <= 32:
        return "d32"
    if cpu <= 128:
        return "d128" if p > 8 else "s128"
    return "d512" if cpu <= 512 else None


def test_the_ladder_of_the_classes_is_the_rule_of_the_paper_for_every_shape() -> None:
    for processes in range(1, 515):
        for threads in range(1, 514 // processes + 1):
            found = selected(a_job(processes, threads, 1), HPC2500)
            assert (found.name if found else None) == by_hand(processes, threads, 1), (processes, threads)
    for hours in (1.999999, 2, 0):
        found = selected(a_job(2, 2, hours), HPC2500)
        assert found is not None
        assert found.name == ("ss8" if 0 < hours < 2 else "s8")


def test_thread_affinity_sends_jobs_of_few_processes_to_the_queue_for_threads() -> None:
    for processes, threads, without, with_it in [
        (1, 16, "d32", "s128"),
        (8, 4, "d32", "s128"),
        (16, 2, "d32", "d32"),
        (4, 2, "ss8", "ss8"),
    ]:
        job = a_job(processes, threads)
        assert [getattr(selected(job, HPC2500, thread_affinity=affine), "name", None) for affine in (False, True)] == [without, with_it]


def test_the_ladder_of_another_site_follows_from_its_classes_in_any_order() -> None:
    site = (
        QueueClass(name="huge"),
        QueueClass(name="long", max_cpus=16),
        QueueClass(name="short", max_cpus=16, max_time_us=HOUR_US),
        QueueClass(name="debug", max_cpus=2, max_time_us=HOUR_US // 4),
    )
    expected = [((1, 1, 0.1), "debug"), ((1, 2, 0.25), "short"), ((16, 1, 0.5), "short"), ((16, 1, 1), "long"), ((17, 1, 0.1), "huge")]
    for classes in (site, site[::-1]):
        assert [getattr(selected(a_job(*shape), classes), "name", None) for shape, _ in expected] == [name for _, name in expected]


def test_a_job_may_run_in_every_queue_that_admits_it() -> None:
    assert [q.name for q in admitting(a_job(1, 4, 1), HPC2500)] == ["ss8", "s8", "s128", "d32", "d128", "d512"]
    assert [q.name for q in admitting(a_job(1, 64, 1), HPC2500)] == ["s128"]
    elsewhere = replace(CLASSES["d32"], partition="other")
    assert not elsewhere.admits(a_job())


def test_classes_that_mean_nothing_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="queue q: max_cpus is -1"):
        QueueClass(name="q", max_cpus=-1)
    with pytest.raises(ValueError, match="queue q: reservations need max_cpus and max_threads"):
        QueueClass(name="q", max_reservations=1)
    with pytest.raises(ValueError, match="queue d32 is configured twice"):
        checked((*HPC2500, CLASSES["d32"]))


@pytest.mark.parametrize(
    ("processes", "threads", "queue", "w"),
    [(9, 1, "d32", 10.667), (1, 32, "d32", 1.0), (2, 64, "s128", 1.4142), (512, 1, "d512", 5.65685), (16, 32, "d512", 1.0)],
)
def test_constants_of_formula_1(processes: int, threads: int, queue: str, w: float) -> None:
    assert constant(a_job(processes, threads), CLASSES[queue]) == pytest.approx(w, abs=5e-4)


@pytest.mark.parametrize(
    ("processes", "threads", "queue", "at"), [(512, 1, "d512", 4), (16, 32, "d512", 21), (1, 32, "d32", 21), (9, 1, "d32", 2)]
)
def test_the_overtaking_at_which_a_job_reserves(processes: int, threads: int, queue: str, at: int) -> None:
    job = a_job(processes, threads)
    assert [exceeds(count, job, CLASSES[queue]) for count in (at - 1, at, at + 1)] == [False, True, True]


def test_a_start_counts_for_those_ahead_of_it_and_for_nobody_else() -> None:
    jobs = [replace(a_job(16, 32, job_id=i), submit_us=i, queued_us=-1) for i in (1, 2, 3)]
    places = [(job.submit_us, job.id) for job in jobs]
    found = Overtaken().passed([places[0], places[1], places[1]], places[0], CLASSES["d512"])  # one starts behind 1, two behind 2
    assert [found.of(place) for place in places] == [3, 2, 0]
    assert Overtaken.recorded(found.record()) == found
    d512 = replace(CLASSES["d512"], reservation_threshold=1)  # of these jobs w = 1: above it at the second
    assert [job.id for job in found.above(jobs, d512)] == [1, 2]
    after = found.passed([], places[1], CLASSES["d512"])  # 1 has started: what passed only 1 is gone
    assert [after.of(place) for place in places[1:]] == [2, 0]
    assert after.passed([], places[2], CLASSES["d512"]) == Overtaken()


def test_the_record_of_a_queue_is_no_longer_than_its_threshold_and_says_all_that_counts() -> None:
    queue = CLASSES["d32"]
    waiting = [replace(a_job(1, 32, job_id=i), submit_us=i, queued_us=-1) for i in range(1, 201)]  # w = 1, the least there is
    found, passed = Overtaken(), Counter[int]()
    chance = random.Random(1)
    for _ in range(300):
        ahead = chance.randint(1, 200)
        found = found.passed([(ahead, ahead)], (1, 1), queue)
        passed.update(range(1, ahead + 1))
        assert [job.id for job in found.above(waiting, queue)] == [job.id for job in waiting if passed[job.id] > 20]
    assert len(found.places) <= 21
