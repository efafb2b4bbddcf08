"""Functions, modules and files that nobody needs leave the data store; what somebody may still need stays."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rmgr.coord import contents
from rmgr.coord.contents import KEPT_S, RENEW_S
from rmgr.coord.protocol import keys
from rmgr.daemons.leader.submissions import collect
from rmgr.model.tasks.submission import Command, Work
from tests.harness.leader_bench import Bench

ONE, TWO = "1" * 64, "2" * 64
ALL = (keys.function, keys.module, keys.upload)


@pytest.fixture
def bench() -> Iterator[Bench]:
    one = Bench()
    one.now_s = 4.0 * KEPT_S
    yield one
    one.close()


def put(bench: Bench, key: str, age_s: float) -> None:
    bench.store.put(key, b"x", note=contents.mark(bench.now_s - age_s))


def look(bench: Bench) -> list[str]:
    """What is left after the leader has looked."""
    bench.advance(collect.CONTENTS_S * 1.3)
    return [key for family in sorted(keys.BY_CONTENT) for key in bench.store.keys(f"{family}/")]


@pytest.mark.parametrize("name", ALL)
def test_what_was_put_and_never_submitted_goes_after_its_time(bench: Bench, name: object) -> None:
    assert callable(name)
    bench.lead()
    put(bench, name(ONE), KEPT_S - 20 * 3600)
    put(bench, name(TWO), KEPT_S + 60)
    assert look(bench) == [name(ONE)]
    assert look(bench) == [name(ONE)]
    bench.advance(6 * 3600.0)
    assert look(bench) == [], "its time is over, too"
    assert [event["total"] for event in bench.events("contents_removed")] == [1, 1]


def test_what_a_submission_names_stays_until_that_is_collected(bench: Bench) -> None:
    bench.lead()
    number = bench.submitter.submit(1, work=Work.COMMAND, command=Command(script_sha256=ONE), submitted_us=round(bench.now_s * 1e6))
    bench.run()
    put(bench, keys.upload(ONE), KEPT_S + 60)
    put(bench, keys.upload(TWO), KEPT_S + 60)
    assert look(bench) == [keys.upload(ONE)]
    bench.run_all(bench.starter("n1"))
    bench.advance(4000.0)  # longer than its retention
    assert bench.look.sub(number) is None
    assert look(bench) == []


def test_a_function_stays_that_a_block_of_an_old_submission_may_name(bench: Bench) -> None:
    bench.lead()
    bench.submitter.submit(1, submitted_us=round((bench.now_s - KEPT_S + RENEW_S) * 1e6))
    bench.run()
    put(bench, keys.function(ONE), KEPT_S + 60)
    put(bench, keys.module(ONE), KEPT_S + 60)
    assert look(bench) == [keys.function(ONE)]
    bench.run_all(bench.starter("n1"))
    bench.advance(4000.0)
    assert look(bench) == []


def test_who_needs_it_again_at_the_last_moment_has_it(bench: Bench) -> None:
    key = keys.function(ONE)
    put(bench, key, KEPT_S + 60)
    seen = {key: contents.mark(bench.now_s - KEPT_S - 60)}
    put(bench, key, 0)  # a client made sure of it after the leader had looked
    assert collect._remove_contents(bench.store, marks=seen) == 0
    assert bench.store.get(key) is not None


def test_nothing_goes_while_submissions_are_still_being_read(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    leader = bench.lead()
    monkeypatch.setattr(type(leader.submissions), "is_loaded", property(lambda _: False))
    put(bench, keys.upload(ONE), KEPT_S + 60)
    assert look(bench) == [keys.upload(ONE)]


@pytest.mark.parametrize("note", [b"", b"soon", contents.mark(1e11)])
def test_what_bears_no_mark_of_today_gets_one_and_its_time(bench: Bench, note: bytes) -> None:
    bench.lead()
    bench.store.put(keys.upload(ONE), b"x", note=note)
    assert look(bench) == [keys.upload(ONE)]
    found = bench.store.about(keys.upload(ONE))
    assert found is not None
    assert contents.is_fresh(found.note, bench.now_s)


def test_many_are_looked_through(bench: Bench) -> None:
    bench.lead()
    for at in range(250):
        put(bench, keys.upload(f"{at:064x}"), KEPT_S + 60 if at % 2 else 0)
    assert len(look(bench)) == 125
