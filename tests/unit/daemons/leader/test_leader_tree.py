"""Shared parts of a leadership: the fence of every write, stories that end with it, reads that wait; the line of candidates."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmgr.coord.decisions import liveness
from rmgr.coord.decisions.liveness import Absent, Behind, First
from rmgr.coord.ops.leader import epoch_check, epoch_version, fail, fenced, take_over
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Check, Committed, Create, Delete, Exists, Gone, Holds, Multi, Op, Outcome, Set, Unknown
from rmgr.coord.protocol.records import encode_record
from rmgr.daemons.leader.term import Term
from rmgr.daemons.leader.watchdog import Candidacy
from rmgr.errors import InvalidRecord, QuotaReached, Unavailable
from rmgr.model.node import EpochRecord
from rmgr.procedures.bootstrap import bootstrap
from rmgr.runtime.mailbox import Mailbox
from rmgr.runtime.story import Pause, Story
from tests.harness.leader_bench import Bench, committed
from tests.harness.memory import MemoryCoordinator


def term_of(bench: Bench) -> Term:
    return bench.lead().term


def test_a_story_reads_and_commits_under_the_fence_and_ends_with_the_leadership(bench: Bench) -> None:
    term, told = term_of(bench), []

    def story() -> Story[None]:
        told.append((yield term.get("/nothing")))
        told.append(type((yield term.commit(Multi(name="MAKE", ops=(Create("/made"),), proof=Exists("/made"))))))
        yield Pause(5.0)
        told.append("never")

    term.tell(story(), "a test")
    bench.advance(1.0)
    assert told == [None, Committed]
    bench.leader.close()
    bench.advance(10.0)
    assert (told, len(term.stories)) == ([None, Committed], 0)


def test_what_escapes_from_a_story_sets_aside_what_it_is_about_until_one_of_it_ends_well(bench: Bench) -> None:
    term, aside = term_of(bench), bench.leader.term.aside

    def story(error: Exception | None) -> Story[None]:
        yield Pause(0.0)
        if error is not None:
            raise error

    term.tell(story(InvalidRecord("what stands there is none")), "a block")
    term.tell(story(Unavailable("no answer")), "a list")
    term.tell(story(ZeroDivisionError("by zero")), "a number")
    bench.advance(1.0)
    assert aside.told() == {"a block": "InvalidRecord: what stands there is none", "a number": "ZeroDivisionError: by zero"}
    term.tell(story(None), "a block")
    bench.advance(1.0)
    assert list(aside.told()) == ["a number"]


def test_while_the_session_is_in_doubt_reads_and_commits_wait_in_their_order(bench: Bench) -> None:
    term, told = term_of(bench), []

    def story() -> Story[None]:
        found = yield term.stat(paths.EPOCH)
        told.append(found is not None)
        told.append(type((yield term.commit(Multi(name="MAKE", ops=(Create("/made"),), proof=Exists("/made"))))))

    term.pause()
    term.tell(story(), "a test")
    bench.advance(1.0)
    assert told == []
    term.resume()
    bench.advance(1.0)
    assert told == [True, Committed]


def test_a_refused_commit_is_told_once_and_is_no_unknown_one(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    term, told = term_of(bench), []
    refused: Future[Outcome] = Future()
    refused.set_exception(QuotaReached("the quota of /subs is used up"))
    monkeypatch.setattr(term.coordinator, "commit", lambda _multi, **_: refused)

    def story() -> Story[None]:
        told.append((yield term.commit(Multi(name="MAKE", ops=(Create("/made"),), proof=Exists("/made")))))

    term.tell(story(), "a test")
    bench.advance(1.0)
    assert told == [Unknown("the quota of /subs is used up")]
    assert [len(bench.events(event)) for event in ("leader_commit_refused", "leader_commit_unknown")] == [1, 0]
    assert bench.count(bench.metrics.unknown_commits) == 0
    assert bench.leader.term.refusal == "the quota of /subs is used up"
    bench.advance(61.0)
    assert bench.leader.term.refusal == ""


def do(bench: Bench, *ops: Op) -> None:
    committed(bench.outside, Multi(name="TEST", ops=ops, proof=Exists("/no")))
    bench.advance(0.1)


def test_the_mirror_tells_each_child_that_comes_is_another_is_made_anew_or_goes(bench: Bench) -> None:
    term = term_of(bench)
    do(bench, Create("/kept"), Create("/kept/a", b"1"))
    first: list[str] = []
    second: list[str] = []
    kept = term.mirror.below("/kept", first.append)
    assert term.mirror.below("/kept", second.append) is kept
    kept.refresh()
    bench.advance(0.1)
    do(bench, Create("/kept/b", b"2"))
    do(bench, Set("/kept/a", b"3", -1))
    do(bench, Delete("/kept/b"), Create("/kept/b", b"4"))
    assert {name: found.data for name, found in kept.values.items()} == {"a": b"3", "b": b"4"}
    do(bench, Delete("/kept/a"))
    assert (kept.names, list(kept.values)) == (["b"], ["b"])
    assert first == second
    assert (first[:3], first[-1]) == (["a", "b", "a"], "a")
    assert term.mirror.hurry()


def test_what_the_mirror_could_not_read_it_reads_again(bench: Bench) -> None:
    term = term_of(bench)
    do(bench, Create("/kept"), Create("/kept/a", b"1"))
    bench.refuse("get", Unavailable("not now"), lambda path: path == "/kept/a")
    kept = term.mirror.below("/kept", lambda _: None)
    kept.refresh()
    bench.advance(0.1)
    assert kept.values == {}
    bench.advance(5.0)
    assert kept.values["a"].data == b"1"


def test_watches_that_were_lost_are_made_up_for_when_the_mirror_is_read_again(bench: Bench) -> None:
    term = term_of(bench)
    do(bench, Create("/kept"), Create("/kept/a", b"1"))
    kept = term.mirror.below("/kept", lambda _: None)
    kept.refresh()
    bench.advance(0.1)
    bench.leader_coordinator.lose_watches()
    do(bench, Set("/kept/a", b"2", -1), Create("/kept/b", b"3"))
    assert {name: found.data for name, found in kept.values.items()} == {"a": b"1"}
    bench.advance(31.0)
    assert {name: found.data for name, found in kept.values.items()} == {"a": b"2", "b": b"3"}


def entry(guid: str, sequence: int) -> str:
    return f"n-{guid}-{sequence:010d}"


LINE = [entry("zz", 3), entry("aa", 7), entry("mm", 5)]


@pytest.mark.parametrize(
    ("line", "who", "stands"),
    [
        (LINE, "zz", First(entry("zz", 3))),
        (LINE, "aa", Behind(entry("aa", 7), entry("mm", 5))),
        (LINE, "mm", Behind(entry("mm", 5), entry("zz", 3))),
        ([entry("zz", 3)], "aa", Absent()),
        ([], "aa", Absent()),
    ],
)
def test_the_smallest_candidate_is_first_and_everyone_else_watches_the_one_just_before_it(line: list[str], who: str, stands: Any) -> None:
    assert liveness.standing(line, who) == stands


def test_a_create_that_was_sent_twice_keeps_the_older_place_and_undoes_the_other() -> None:
    line = [entry("a", 1), entry("b", 2), entry("b", 3), entry("c", 4)]
    assert liveness.standing(line, "b") == Behind(entry("b", 2), entry("a", 1))
    assert liveness.doubles(line, "b") == [entry("b", 3)]
    assert liveness.doubles(line, "c") == []


@given(st.lists(st.integers(0, 10_000), unique=True, min_size=1, max_size=20), st.randoms())
def test_exactly_one_candidate_is_first_and_predecessors_form_one_chain(numbers: list[int], random: object) -> None:
    line = [entry(f"g{number}", number) for number in numbers]
    random.shuffle(line)
    found = [liveness.standing(line, f"g{number}") for number in sorted(numbers)]
    assert isinstance(found[0], First)
    names = [entry(f"g{number}", number) for number in sorted(numbers)]
    assert [place.predecessor for place in found[1:] if isinstance(place, Behind)] == names[:-1]


def test_the_epoch_version_comes_from_the_answer_of_the_take_over() -> None:
    first = take_over("n-a-1", EpochRecord(epoch=1), None)
    assert epoch_version(first, Committed(paths=("", paths.EPOCH), versions=(-1, 0))) == 0
    later = take_over("n-a-1", EpochRecord(epoch=2), 0)
    assert epoch_version(later, Committed(paths=("", paths.EPOCH), versions=(-1, 1))) == 1


@pytest.mark.parametrize("stands", [b"no record", b'{"format":99}'])
def test_a_candidate_that_cannot_read_the_epoch_says_so_once_and_leads_when_it_is_mended(stands: bytes) -> None:
    coordinator, led = MemoryCoordinator(guarded=False), []
    bootstrap(coordinator)
    version = coordinator.stat(paths.EPOCH).result(60)
    make: Any = Create(paths.EPOCH, stands) if version is None else Set(paths.EPOCH, stands, version.version)
    assert isinstance(coordinator.commit(Multi(name="X", ops=(make,), proof=Holds(paths.EPOCH, stands))).result(60), Committed)
    mailbox: Mailbox[Any] = Mailbox(clock=lambda: clock[0])
    clock, told = [0.0], []
    loop: Any = SimpleNamespace(post=mailbox.put, after=mailbox.after)
    log: Any = SimpleNamespace(
        warning=lambda event, **fields: told.append((event, fields)), debug=lambda *_, **__: None, info=lambda *_, **__: None
    )
    candidacy = Candidacy(coordinator, EpochRecord(), loop, leads=lambda record, *_: led.append(record.epoch), log=log)

    def until(end_s: float) -> None:
        while clock[0] < end_s:
            clock[0] += 0.05
            while (message := mailbox.get(0)) is not None:
                message()

    candidacy.enter()
    until(5.0)
    assert not led
    [(event, fields)] = told
    assert event == "epoch_unreadable"
    assert fields["path"] == paths.EPOCH
    assert "rmgr" in fields["hint"]
    found = coordinator.stat(paths.EPOCH).result(60)
    whole = encode_record(EpochRecord(epoch=4))
    coordinator.commit(Multi(name="X", ops=(Set(paths.EPOCH, whole, found.version),), proof=Holds(paths.EPOCH, whole))).result(60)
    until(6.0)
    assert (led, len(told)) == ([5], 1)
    coordinator.close()


def test_a_fenced_multi_checks_the_epoch_first_and_only_once() -> None:
    multi = Multi(name="X", ops=(Delete("/a", 3),), proof=Gone("/a"))
    assert fenced(7, multi).ops == (epoch_check(7), Delete("/a", 3))
    assert fenced(7, fenced(7, multi)).ops == (epoch_check(7), Delete("/a", 3))
    assert fenced(7, multi).proof == multi.proof


def test_a_multi_with_its_own_guard_keeps_it() -> None:
    from rmgr.coord.protocol.records import encode_block
    from rmgr.model.block import BlockData, BlockKey
    from rmgr.model.states import Reason

    key = BlockKey(priority=0, seq=1, submission=1, first=0, count=1, attempt=1, cores=1, memory_mib=0)
    multi = fail(Check("/nodes/a", 4), "a", "default", key, encode_block(BlockData()), 0, reason=Reason.NODE_LOST, now_us=1)
    assert fenced(7, multi).ops[:2] == (epoch_check(7), Check("/nodes/a", 4))
