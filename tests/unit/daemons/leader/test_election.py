"""Standing in the line of candidates, doubles, and the fence that every write of a leader carries."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmgr.coord.decisions import liveness
from rmgr.coord.decisions.liveness import Absent, Behind, First
from rmgr.coord.ops.leader import epoch_check, epoch_version, fail, fenced, take_over
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Check, Committed, Create, Delete, Gone, Holds, Multi, Set
from rmgr.coord.protocol.records import encode_record
from rmgr.daemons.leader.election import Candidacy
from rmgr.model.cluster.node import EpochRecord
from rmgr.procedures.bootstrap import bootstrap
from rmgr.runtime.mailbox import Mailbox
from tests.harness.memory import MemoryCoordinator


def entry(guid: str, sequence: int) -> str:
    return f"n-{guid}-{sequence:010d}"


def test_the_smallest_candidate_is_first_whatever_its_guid() -> None:
    line = [entry("zz", 3), entry("aa", 7), entry("mm", 5)]
    assert liveness.standing(line, "zz") == First(entry("zz", 3))


def test_everyone_else_watches_the_one_just_before_it() -> None:
    line = [entry("zz", 3), entry("aa", 7), entry("mm", 5)]
    assert liveness.standing(line, "aa") == Behind(entry("aa", 7), entry("mm", 5))
    assert liveness.standing(line, "mm") == Behind(entry("mm", 5), entry("zz", 3))


def test_a_candidate_without_entry_is_absent() -> None:
    assert liveness.standing([entry("zz", 3)], "aa") == Absent()
    assert liveness.standing([], "aa") == Absent()


def test_a_create_that_was_sent_twice_keeps_the_older_place_and_undoes_the_other() -> None:
    line = [entry("a", 1), entry("b", 2), entry("b", 3), entry("c", 4)]
    assert liveness.standing(line, "b") == Behind(entry("b", 2), entry("a", 1))
    assert liveness.doubles(line, "b") == [entry("b", 3)]
    assert liveness.doubles(line, "c") == []


@given(st.lists(st.integers(0, 10_000), unique=True, min_size=1, max_size=20), st.randoms())
def test_exactly_one_candidate_is_first_and_predecessors_form_one_chain(numbers: list[int], random: object) -> None:
    line = [entry(f"g{number}", number) for number in numbers]
    random.shuffle(line)  # type: ignore[attr-defined]
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
    candidacy = Candidacy(coordinator, EpochRecord(), loop, leads=lambda record, _: led.append(record.epoch), log=log)

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
    assert found is not None
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
    from rmgr.model.base.states import Reason
    from rmgr.model.tasks.block import BlockData, BlockKey

    key = BlockKey(priority=0, seq=1, submission=1, first=0, count=1, attempt=1, cores=1, memory_mib=0)
    multi = fail(Check("/nodes/a", 4), "a", "default", key, encode_block(BlockData()), 0, reason=Reason.NODE_LOST, now_us=1)
    assert fenced(7, multi).ops[:2] == (epoch_check(7), Check("/nodes/a", 4))
