"""Paper 000: whose resources are promised (papers.md C0.3, C0.4, C0.5), and which of them are given back early."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from rmgr.sched.job import Job, Running
from rmgr.sched.policies.connection_reservation import chosen, spans_of, spared


def a_job(job_id: int, processes: int, threads: int = 1) -> Job:
    return Job(id=job_id, submit_us=0, processes=processes, threads=threads)


def a_run(job_id: int, processes: int, threads: int = 1, *, since: int = 0, node: int = 0) -> Running:
    return Running(a_job(job_id, processes, threads), since, 1 << 60, ((node, node, processes),))


def room(job: Job, _node: int, cores: int) -> int:
    return cores // job.threads


def ids(job: Job, mine: Iterable[Running], others: Iterable[Running] = (), promised: Iterable[int] = (), **options: bool) -> list[int]:
    return [run.job.id for run in chosen(job, list(mine), list(others), frozenset(promised).__contains__, room, **options)]


def test_c0_3_a_match_goes_before_a_larger_job_and_the_earliest_of_matches_first() -> None:
    runs = [a_run(1, 128), a_run(2, 32, since=5), a_run(3, 32, since=3), a_run(4, 64)]
    assert ids(a_job(9, 32), runs) == [3]
    assert ids(a_job(9, 32), runs, promised=[3]) == [2]
    assert ids(a_job(9, 32), runs, promised=[2, 3]) == [1]


def test_c0_3_promised_jobs_are_never_chosen_again() -> None:
    runs = [a_run(1, 64, since=1), a_run(2, 64, since=2)]
    assert ids(a_job(9, 64), runs, promised=[1]) == [2]
    assert ids(a_job(9, 64), runs, promised=[1, 2]) == []
    assert ids(a_job(9, 100), runs, promised=[2]) == [], "nothing is promised when it would not be enough"


def test_a_match_is_one_of_processes_and_threads_or_of_cpus_where_that_is_configured() -> None:
    runs = [a_run(1, 16, 2, since=1), a_run(2, 32, 1, since=2), a_run(3, 64, 1)]
    assert ids(a_job(9, 32), runs) == [2]
    assert ids(a_job(9, 32), runs, by_cpus=True) == [1]
    spread = Running(a_job(1, 32), 0, 1 << 60, ((0, 1, 16),))  # 32 CPUs, but 16 on each of two nodes
    assert ids(a_job(9, 1, 32), [spread, a_run(2, 40, node=2)], by_cpus=True) == [2], "a match that it does not fit on is none"


def test_c0_4_the_largest_first_and_the_earlier_of_equals() -> None:
    runs = [a_run(1, 32, since=7, node=1), a_run(2, 64), a_run(3, 32, since=4, node=2)]
    assert ids(a_job(9, 96), runs) == [2, 3]
    assert ids(a_job(9, 97), runs) == [2, 3, 1]


def test_equal_cpus_are_chosen_by_threads_before_start() -> None:
    runs = [a_run(1, 64, 1, since=1), a_run(2, 2, 32, since=9, node=1)]
    assert ids(a_job(9, 10), runs) == [2]


def test_c0_5_all_running_jobs_are_candidates_when_the_queue_has_fewer_cpus() -> None:
    d512 = [a_run(1, 128, node=0), a_run(2, 128, node=1)]
    others = [a_run(3, 256, node=2), a_run(4, 64, node=3), a_run(5, 128, since=-1, node=4)]
    assert ids(a_job(9, 512), d512, others) == [3, 5, 1]
    assert ids(a_job(9, 256), d512, others, promised=[1]) == [], "not widened: its queue has enough, though promised"


def test_threads_of_a_process_stay_inside_a_node() -> None:
    runs = [a_run(1, 48, node=0), a_run(2, 40, node=1), a_run(3, 20, node=1)]
    assert ids(a_job(9, 3, 32), runs) == [], "32 + 16 and 32 + 28 cores hold two processes of 32"
    assert ids(a_job(9, 2, 32), runs) == [1, 2]
    closed = {0}

    def room_of_open(job: Job, node: int, cores: int) -> int:
        return 0 if node in closed else cores // job.threads

    assert [run.job.id for run in chosen(a_job(9, 32), runs, [], lambda _: False, room_of_open)] == [1, 2]


def test_surplus_comes_from_the_job_that_ended_first() -> None:
    requester = a_job(9, 80)
    assert spared(requester, {0: 32}, {1: 64}, room) == {0: 16}
    assert spared(requester, {1: 64}, {0: 32}, room) == {1: 16}
    assert spared(requester, {0: 16}, {1: 64}, room) == {}, "given back once"
    assert spared(requester, {0: 64, 1: 64, 2: 32}, {}, room) is not None
    assert spared(requester, {0: 16}, {1: 63}, room) is None


cores = st.dictionaries(st.integers(0, 3), st.integers(0, 9), max_size=4)


@settings(max_examples=200, deadline=None)
@given(held=cores, coming=cores, processes=st.integers(1, 6), threads=st.integers(1, 4))
def test_nobody_could_spare_more(held: dict[int, int], coming: dict[int, int], processes: int, threads: int) -> None:
    job = a_job(1, processes, threads)
    found = spared(job, held, coming, room)
    nodes = sorted(held.keys() | coming.keys())
    best = -1
    for counts in product(*(range(1 + (held.get(n, 0) + coming.get(n, 0)) // threads) for n in nodes)):
        if sum(counts) == processes:
            left = zip(nodes, counts, strict=True)
            best = max(best, sum(min(held.get(n, 0), held.get(n, 0) + coming.get(n, 0) - count * threads) for n, count in left))
    assert (-1 if found is None else sum(found.values())) == best
    if found is not None:
        left_over = {n: held[n] - found.get(n, 0) for n in held}
        assert spared(job, left_over, coming, room) == {}, "what it can spare is given back at once"
        assert sum((left_over.get(n, 0) + coming.get(n, 0)) // threads for n in nodes) >= processes


def test_cores_as_spans() -> None:
    assert spans_of({0: 4, 1: 4, 2: 4, 3: 0, 4: 2, 5: 4}) == ((0, 2, 4), (4, 4, 2), (5, 5, 4))
