"""Removals from ZooKeeper and the data store: pages of old fragments, ended submissions, orphans, unneeded contents."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rmgr.coord import contents
from rmgr.coord.contents import KEPT_S, RENEW_S
from rmgr.coord.ops.membership import set_settings
from rmgr.coord.protocol import keys, paths
from rmgr.coord.protocol.multi import Create, Exists, Holds, Multi, Set
from rmgr.coord.protocol.ports import Encoding
from rmgr.coord.protocol.records import decode_page, decode_record, encode_block, encode_record
from rmgr.daemons.leader.submissions import actions
from rmgr.daemons.leader.submissions import subs as leader_subs
from rmgr.model.block import BlockData, BlockKey
from rmgr.model.queue import ClusterSettings, QueueSpec
from rmgr.model.states import State
from rmgr.model.submission import Command, Paged, Phase, Work
from rmgr.model.views import JobView
from rmgr.procedures.history import history_rows
from tests.harness.leader_bench import Bench, Starter, committed

RETENTION_S = 3600.0
SETTINGS = ClusterSettings(retention_us=round(RETENTION_S * 1e6))


def test_old_fragments_are_paged_out_and_a_new_leader_reads_them_back() -> None:
    bench = Bench(ClusterSettings(max_fragments=200))
    bench.lead()
    starter = bench.starter("n1")
    number = bench.submitter.submit(420, complete=False)
    bench.run_all(starter, take=1, cpu_us=1)
    done = bench.outside.get(paths.done(number)).result(60)
    paged = decode_record(done.data, Paged)
    assert paged.base == 360
    assert paged.counts == {"COMPLETED": 360}
    assert len(bench.look.names(paths.done(number))) == 60
    row = bench.store.get(keys.page(number, 180))
    assert len(decode_page(row[0])) == 180
    successor = bench.lead(bench.connect())
    progress = successor.submissions.followed[number].progress
    assert (progress.final, progress.cpu_us, progress.next_fragment) == (420, 420, 420)


def test_without_the_store_a_new_leader_still_knows_the_counts() -> None:
    bench = Bench(ClusterSettings(max_fragments=200))
    bench.lead()
    starter = bench.starter("n1")
    number = bench.submitter.submit(420, complete=False)
    bench.run_all(starter, take=1)
    for at in (0, 180):
        bench.store.delete(keys.page(number, at))
    successor = bench.lead(bench.connect())
    progress = successor.submissions.followed[number].progress
    assert (progress.final, progress.next_fragment) == (420, 420)


def test_after_retention_everything_goes_but_history_named_outputs_and_logs(bench: Bench, starter: Starter) -> None:
    number = bench.submitter.submit(1)
    pointer = keys.Pointer(sub=number, index=0)
    bench.store.put(keys.named("res"), keys.encode_pointer(pointer))
    bench.store.put(keys.output(number, 0, 1), b"value")
    bench.store.put(keys.log(number, 0, 1, "stdout", 0), b"said")
    bench.store.put(keys.arguments(number, 0, "x"), b"args")
    starter.complete("n1", starter.claim("n1"), outputs=1)
    bench.advance(1.0)
    assert bench.phase(number) is Phase.CLOSED
    bench.advance(RETENTION_S - 10)
    assert bench.look.sub(number) is not None
    bench.advance(20.0)
    assert bench.look.sub(number) is None
    assert bench.look.names(paths.TOKENS) == []
    bench.idle(2000.0)  # a nonce is kept for 70 minutes, and looked for every 12 at the latest
    assert bench.look.names(paths.NONCES) == []
    assert bench.store.get(keys.output(number, 0, 1)) is None
    assert bench.store.get(keys.arguments(number, 0, "x")) is None
    kept = bench.store.get(keys.final(pointer))
    assert kept[0] == b"value"
    assert bench.store.get(keys.history(number)) is not None
    assert bench.store.get(keys.log(number, 0, 1, "stdout", 0)) is not None
    assert bench.leader.submissions.followed == {}


def test_rows_of_submissions_that_are_gone_are_found_and_deleted(bench: Bench) -> None:
    bench.lead()
    number = bench.submitter.submit(1)
    for orphan in (500, 700):
        for at in range(3):
            bench.store.put(keys.output(orphan, at, 1), b"x")
    bench.store.put(keys.output(number, 0, 1), b"mine")
    bench.idle(4000.0)
    assert bench.store.keys("out/") == [keys.output(number, 0, 1)]


def test_a_large_submission_is_collected_in_several_multis(bench: Bench, starter: Starter) -> None:
    number = bench.submitter.submit(400)
    bench.run_all(starter, take=1)
    bench.advance(RETENTION_S + 60)
    assert bench.look.sub(number) is None


def test_an_empty_directory_of_old_submissions_goes_and_the_present_one_stays(bench: Bench) -> None:
    found = bench.outside.get(paths.IDS).result(60)
    committed(bench.outside, Multi(name="X", ops=(Set(paths.IDS, b"999", found.version),), proof=Holds(paths.IDS, b"999")))
    bench.lead()
    starter = bench.starter("n1")
    for _ in range(2):
        bench.submitter.submit(1)
    assert bench.look.names(paths.SUBS) == ["0", "1"]
    bench.run_all(starter)
    bench.advance(RETENTION_S + 60)
    assert bench.look.names(paths.SUBS) == ["1"]
    assert bench.look.names(f"{paths.SUBS}/1") == []
    assert bench.submitter.submit(1) == 1001


def test_blocks_of_a_submission_that_does_not_exist_are_discarded(bench: Bench) -> None:
    bench.lead()
    key = BlockKey(priority=0, seq=7, submission=77, first=0, count=1, attempt=1, cores=1, memory_mib=0)
    stranger = paths.pending_block("default", key)
    committed(bench.outside, Multi(name="X", ops=(Create(stranger, encode_block(BlockData())),), proof=Exists(stranger)))
    bench.submitter.submit(1, complete=False)
    bench.advance(100.0)
    assert [key.submission for key in bench.look.pending()] == [1]


def test_watches_that_nobody_needs_are_shed_with_the_connection(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader_subs, "MOST_LEFT_WATCHES", 3)
    leader = bench.lead()
    starter = bench.starter("n1")
    for _ in range(4):
        bench.submitter.submit(1)
    session = bench.leader_coordinator.session_id
    bench.run_all(starter)
    bench.advance(RETENTION_S + 60)
    assert len(bench.events("watches_shed")) == 1
    assert bench.leader_coordinator.session_id == session
    number = bench.submitter.submit(1)
    bench.run_all(starter)
    assert bench.phase(number) is Phase.CLOSED
    assert leader.submissions.is_loaded


def test_a_queue_that_is_added_to_the_settings_gets_its_directories(bench: Bench) -> None:
    leader = bench.lead()
    found = bench.outside.get(paths.CONFIG).result(60)
    data = encode_record(ClusterSettings(queues=(QueueSpec(name="default"), QueueSpec(name="night"))))
    committed(bench.outside, Multi(name="X", ops=(Set(paths.CONFIG, data, found.version),), proof=Holds(paths.CONFIG, data)))
    bench.advance(1.0)
    assert leader.term.settings.queue("night") is not None
    assert bench.look.names(paths.queue("night")) == ["held", "pending"]


def test_history_is_removed_after_its_own_retention_and_kept_for_ever_at_zero(bench: Bench) -> None:
    hour_us = 3_600_000_000
    bench.now_s = 1e6
    bench.lead()
    for age in range(9):  # submission 100 has ended now, 99 an hour ago, ...
        ended_us = round(bench.now_s * 1e6) - age * hour_us
        view = JobView(id=100 - age, name="x", user="u", queue="q", state=State.COMPLETED, ended_us=ended_us)
        bench.store.put_many(history_rows(view))

    def left() -> list[int]:
        return [keys.parse_history(key) for key in bench.store.keys(keys.history_prefix())]

    for hours, expected in ((0, 9), (6, 4), (1, 0)):
        found = bench.outside.get(paths.CONFIG).result(60)
        committed(bench.outside, set_settings(ClusterSettings(history_retention_us=hours * hour_us), found.version))
        bench.advance(1.3 * actions.LOOK_S)
        assert expected <= len(left()) <= expected + (hours == 6)
        assert left() == [100 - age for age in range(len(left()))], "the oldest go first"
    assert left() == bench.store.keys(keys.history_prefix("u")) == []


def test_an_output_whose_key_was_deleted_or_replaced_goes_at_the_second_look(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actions, "MOST_OUTPUTS", 2)
    monkeypatch.setattr(actions, "SETTLED", 2)
    bench.lead()
    outputs = [keys.Pointer(sub=7, index=index) for index in range(6)]
    for at, output in enumerate(outputs):
        bench.store.put(keys.final(output), b"value")
        bench.store.put(keys.named(f"key/{at}"), keys.encode_pointer(output), encoding=Encoding.POINTER)
    bench.store.delete(keys.named("key/1"))
    bench.store.put(keys.named("key/2"), b"another value", overwrite=True)
    bench.store.put(keys.named("key/5"), keys.encode_pointer(keys.Pointer(sub=8, index=0)), encoding=Encoding.POINTER, overwrite=True)
    bench.store.put(keys.named("foul"), b"{", encoding=Encoding.POINTER)

    def left() -> list[int]:
        return [at for at, output in enumerate(outputs) if bench.store.head(keys.final(output)) is not None]

    bench.idle(actions.CONTENTS_S)
    assert left() == [*range(6)], "there was one look"
    bench.idle(actions.CONTENTS_S * 3.8)  # three more
    assert left() == [0, 3, 4]
    assert [event["total"] for event in bench.events("outputs_removed")] == [2, 1], "a look remembers two"


ONE, TWO = "1" * 64, "2" * 64
ALL = (keys.function, keys.module, keys.upload)


@pytest.fixture
def aged() -> Iterator[Bench]:
    one = Bench()
    one.now_s = 4.0 * KEPT_S
    yield one
    one.close()


def put(aged: Bench, key: str, age_s: float) -> None:
    aged.store.put(key, b"x", note=contents.mark(aged.now_s - age_s))


def look(aged: Bench) -> list[str]:
    """What is left after the leader has looked."""
    aged.idle(actions.CONTENTS_S * 1.3)
    return [key for family in sorted(keys.BY_CONTENT) for key in aged.store.keys(f"{family}/")]


@pytest.mark.parametrize("name", ALL)
def test_what_was_put_and_never_submitted_goes_after_its_time(aged: Bench, name: object) -> None:
    assert callable(name)
    aged.lead()
    put(aged, name(ONE), KEPT_S - 20 * 3600)
    put(aged, name(TWO), KEPT_S + 60)
    assert look(aged) == [name(ONE)]
    assert look(aged) == [name(ONE)]
    aged.idle(6 * 3600.0)
    assert look(aged) == [], "its time is over, too"
    assert [event["total"] for event in aged.events("contents_removed")] == [1, 1]


def test_what_a_submission_names_stays_until_that_is_collected(aged: Bench) -> None:
    aged.lead()
    number = aged.submitter.submit(1, work=Work.COMMAND, command=Command(script_sha256=ONE), submitted_us=round(aged.now_s * 1e6))
    aged.run()
    put(aged, keys.upload(ONE), KEPT_S + 60)
    put(aged, keys.upload(TWO), KEPT_S + 60)
    assert look(aged) == [keys.upload(ONE)]
    aged.run_all(aged.starter("n1"))
    aged.idle(4000.0)  # longer than its retention
    assert aged.look.sub(number) is None
    assert look(aged) == []


def test_a_function_stays_that_a_block_of_an_old_submission_may_name(aged: Bench) -> None:
    aged.lead()
    aged.submitter.submit(1, submitted_us=round((aged.now_s - KEPT_S + RENEW_S) * 1e6))
    aged.run()
    put(aged, keys.function(ONE), KEPT_S + 60)
    put(aged, keys.module(ONE), KEPT_S + 60)
    assert look(aged) == [keys.function(ONE)]
    aged.run_all(aged.starter("n1"))
    aged.idle(4000.0)
    assert look(aged) == []


def test_who_needs_it_again_at_the_last_moment_has_it(aged: Bench) -> None:
    key = keys.function(ONE)
    put(aged, key, KEPT_S + 60)
    seen = {key: contents.mark(aged.now_s - KEPT_S - 60)}
    put(aged, key, 0)  # a client made sure of it after the leader had looked
    assert actions.remove_contents(aged.store, marks=seen) == 0
    assert aged.store.get(key) is not None


def test_nothing_goes_while_submissions_are_still_being_read(aged: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    leader = aged.lead()
    monkeypatch.setattr(type(leader.submissions), "is_loaded", property(lambda _: False))
    put(aged, keys.upload(ONE), KEPT_S + 60)
    assert look(aged) == [keys.upload(ONE)]


@pytest.mark.parametrize("note", [b"", b"soon", contents.mark(1e11)])
def test_what_bears_no_mark_of_today_gets_one_and_its_time(aged: Bench, note: bytes) -> None:
    aged.lead()
    aged.store.put(keys.upload(ONE), b"x", note=note)
    assert look(aged) == [keys.upload(ONE)]
    found = aged.store.about(keys.upload(ONE))
    assert contents.is_fresh(found.note, aged.now_s)


def test_many_are_looked_through(aged: Bench) -> None:
    aged.lead()
    for at in range(250):
        put(aged, keys.upload(f"{at:064x}"), KEPT_S + 60 if at % 2 else 0)
    assert len(look(aged)) == 125
