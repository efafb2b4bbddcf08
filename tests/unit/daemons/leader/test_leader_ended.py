"""What the leader writes down of ends: soon, before anything is collected, and of what went without it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from rmgr.coord.decisions import ended
from rmgr.coord.decisions.ended import BUCKET, Ended
from rmgr.coord.protocol import keys, paths
from rmgr.coord.protocol.multi import Create, Delete, Exists, Gone, Holds, Multi, Set
from rmgr.coord.protocol.records import decode_record, encode_fragment, encode_record
from rmgr.model.base.states import Reason, State
from rmgr.model.cluster.queue import ClusterSettings
from rmgr.model.tasks.outcome import Fragment, Outcome
from rmgr.model.tasks.submission import Phase, Submission, Tail, Work
from tests.harness.leader_bench import Bench, committed

RETENTION_S = 3600.0


@pytest.fixture
def bench() -> Iterator[Bench]:
    one = Bench(ClusterSettings(retention_us=round(RETENTION_S * 1e6)))
    yield one
    one.close()


def bits(bench: Bench, bucket: int = 0) -> bytes:
    found = bench.outside.get(paths.ended(bucket)).result(60)
    return b"" if found is None else found.data


def below(bench: Bench) -> int:
    found = bench.outside.get(paths.ENDED).result(60)
    assert found is not None
    return decode_record(found.data, Ended).below if found.data else 0


def set_ids(bench: Bench, number: int) -> None:
    found = bench.outside.get(paths.IDS).result(60)
    assert found is not None
    data = encode_record(number)
    committed(bench.outside, Multi(name="X", ops=(Set(paths.IDS, data, found.version),), proof=Holds(paths.IDS, data)))


def test_an_end_is_written_down_within_a_second_and_many_at_once(bench: Bench) -> None:
    bench.lead()
    starter = bench.starter("n1")
    numbers = [bench.submitter.submit(1) for _ in range(5)]
    bench.run_all(starter)
    bench.advance(1.0)
    found = bench.outside.get(paths.ended(0)).result(60)
    assert found is not None
    assert [number for number in range(1, 20) if ended.holds(found.data, number)] == numbers
    assert found.version <= 1


def test_what_has_not_ended_has_no_bit(bench: Bench) -> None:
    bench.lead()
    number = bench.submitter.submit(1)
    bench.advance(10.0)
    assert not ended.holds(bits(bench), number)


def test_nothing_is_collected_before_its_bit_is_set(bench: Bench) -> None:
    """The bits cannot be written: what has ended stays."""
    bench.lead()
    committed(bench.outside, Multi(name="X", ops=(Delete(paths.ENDED),), proof=Gone(paths.ENDED)))
    starter = bench.starter("n1")
    number = bench.submitter.submit(1)
    bench.run_all(starter)
    bench.advance(RETENTION_S + 60)
    assert bench.look.sub(number) is not None
    committed(bench.outside, Multi(name="X", ops=(Create(paths.ENDED),), proof=Exists(paths.ENDED)))
    bench.advance(60.0)
    assert bench.look.sub(number) is None
    assert ended.holds(bits(bench), number)


def test_a_new_leader_marks_what_an_older_release_has_collected(bench: Bench) -> None:
    numbers = [bench.submitter.submit(1) for _ in range(3)]
    gone = numbers[1]
    for path in (paths.gate(gone), paths.tail(gone), paths.done(gone), paths.failed(gone), paths.sub(gone)):
        committed(bench.outside, Multi(name="X", ops=(Delete(path),), proof=Gone(path)))
    bench.lead()
    bench.advance(2.0)
    assert [ended.holds(bits(bench), number) for number in numbers] == [False, True, False]


def test_a_number_that_nobody_was_given_is_not_marked_whatever_its_record_says(bench: Bench) -> None:
    bench.lead()
    bench.submitter.submit(1)
    false = Submission(id=500, name="x", user="u", queue="default", work=Work.PYTHON, phase=Phase.CLOSED, closed_us=2**60)
    places = (paths.tail(500), paths.done(500), paths.failed(500))
    ops = (Create(paths.sub(500), encode_record(false)), *(Create(path, b"{}" if path.endswith("tail") else b"") for path in places))
    committed(bench.outside, Multi(name="X", ops=ops, proof=Exists(paths.sub(500))))
    bench.advance(5.0)
    assert not ended.holds(bits(bench), 500)


def test_what_is_put_back_changes_no_history(bench: Bench) -> None:
    """Neither under the leader that has seen it end, nor under its successor."""
    bench.lead()
    starter = bench.starter("n1")
    number = bench.submitter.submit(1)
    found = bench.outside.get(paths.sub(number)).result(60)
    assert found is not None
    bench.run_all(starter)
    bench.advance(RETENTION_S + 60)
    history = bench.store.get(keys.history(number))
    assert history is not None
    tail = encode_record(Tail(next=1, complete=True))
    places = (Create(paths.done(number)), Create(paths.failed(number)))
    ops = (Create(paths.sub(number), found.data), Create(paths.tail(number), tail), *places)
    false = encode_fragment(Fragment(outcomes=(Outcome(index=0, state=State.FAILED, reason=Reason.UNTRUSTED),)))
    committed(bench.outside, Multi(name="X", ops=ops, proof=Exists(paths.sub(number))))
    committed(bench.outside, Multi(name="X", ops=(Create(paths.fragment(number, 0), false),), proof=Exists(paths.fragment(number, 0))))
    bench.advance(60.0)
    assert bench.phase(number) is Phase.OPEN
    bench.lead(bench.connect())
    bench.advance(60.0)
    assert bench.phase(number) is Phase.OPEN
    assert bench.store.get(keys.history(number)) == history
    assert [line["submission"] for line in bench.log if line["event"] == "ended_submission_put_back"] == [number, number]


def test_when_a_directory_is_over_one_number_says_so(bench: Bench) -> None:
    set_ids(bench, 998)
    bench.lead()
    starter = bench.starter("n1")
    numbers = [bench.submitter.submit(1) for _ in range(4)]
    assert numbers[-1] == 1001
    bench.run_all(starter)
    bench.advance(5.0)
    assert below(bench) == 1
    assert bench.outside.stat(paths.ended(0)).result(60) is None
    assert ended.holds(bits(bench, 1), 1001)
    bench.advance(RETENTION_S + 60)
    assert bench.look.names(paths.SUBS) == ["1"]
    successor = bench.lead(bench.connect())
    bench.advance(5.0)
    assert successor.submissions._ended.holds(7)
    assert bench.outside.stat(paths.ended(0)).result(60) is None


def test_directories_that_are_not_there_any_more_are_over(bench: Bench) -> None:
    set_ids(bench, 3500)
    bench.lead()
    bench.advance(5.0)
    assert below(bench) == 3
    assert not ended.holds(bits(bench, 3), 3500)
    assert ended.holds(bits(bench, 3), 3499)


def test_a_submission_made_while_a_leader_looks_for_lost_ones_is_not_taken_for_one(bench: Bench) -> None:
    """Its directory is made between the leader's reading of numbers and of directories."""
    set_ids(bench, 1000)
    keeper = bench.lead().submissions._ended
    bench.advance(2.0)
    tree, children = keeper._tree, keeper._tree.children

    def late(path: str, *args: object, **more: object) -> None:
        if path == paths.SUBS and tree.__dict__.pop("children", None):
            bench.submitter.submit(1)
        children(path, *args, **more)  # type: ignore[arg-type]

    tree.children = late  # type: ignore[method-assign]
    keeper.heal()
    bench.advance(5.0)
    assert bench.look.names(f"{paths.SUBS}/1") == ["1000"]
    assert below(bench) <= 1
    assert not ended.holds(bits(bench, 1), 1000)


def test_a_next_number_that_cannot_be_marks_nothing(bench: Bench) -> None:
    set_ids(bench, 9_999_999_999)
    bench.lead()
    bench.advance(5.0)
    assert (below(bench), bench.look.names(paths.ENDED)) == (0, [])


def test_bits_of_a_directory() -> None:
    some = ended.with_bits(b"", (0, 1007, 999))
    assert [number for number in range(BUCKET) if ended.holds(some, number)] == [0, 7, 999]
    assert not ended.is_full(some, 3)
    whole = ended.with_bits(b"", range(BUCKET))
    assert ended.is_full(whole, 3)
    assert ended.is_full(ended.with_bits(b"", range(1, BUCKET)), 0)
    assert not ended.is_full(ended.with_bits(b"", range(1, BUCKET)), 3)
    assert ended.absent(1, [1001, 1003], 1005) == [1000, 1002, 1004]
    assert ended.absent(2, [], 1005) == []
    assert replace(Ended(below=3), below=4).below == 4
