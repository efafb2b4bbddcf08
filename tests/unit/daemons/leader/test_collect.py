"""What leaves ZooKeeper: pages of old fragments, ended submissions, orphans."""

from __future__ import annotations

import pytest

from rmgr.coord.ops.membership import set_settings
from rmgr.coord.protocol import keys, paths
from rmgr.coord.protocol.multi import Create, Exists, Holds, Multi, Set
from rmgr.coord.protocol.records import decode_page, decode_record, encode_block, encode_record
from rmgr.daemons.leader.submissions import collect as leader_history
from rmgr.daemons.leader.submissions import subs as leader_subs
from rmgr.model.base.states import State
from rmgr.model.cluster.queue import ClusterSettings, QueueSpec
from rmgr.model.tasks.block import BlockData, BlockKey
from rmgr.model.tasks.submission import Paged, Phase
from rmgr.model.views import JobView
from rmgr.procedures.history import history_rows
from tests.harness.leader_bench import Bench, Starter, committed

RETENTION_S = 3600.0
SETTINGS = ClusterSettings(retention_us=round(RETENTION_S * 1e6))


# -- pages and collection ----------------------------------------------------------------------------------------------------


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
    bench.advance(2000.0)  # a nonce is kept for 70 minutes, and looked for every 12 at the latest
    assert bench.look.names(paths.NONCES) == []
    assert bench.store.get(keys.output(number, 0, 1)) is None
    assert bench.store.get(keys.arguments(number, 0, "x")) is None
    kept = bench.store.get(keys.final(pointer))
    assert kept[0] == b"value"
    assert bench.store.get(keys.history(number)) is not None
    assert bench.store.get(keys.log(number, 0, 1, "stdout", 0)) is not None
    assert bench.leader is not None
    assert bench.leader.submissions.followed == {}


def test_rows_of_submissions_that_are_gone_are_found_and_deleted(bench: Bench) -> None:
    bench.lead()
    number = bench.submitter.submit(1)
    for orphan in (500, 700):
        for at in range(3):
            bench.store.put(keys.output(orphan, at, 1), b"x")
    bench.store.put(keys.output(number, 0, 1), b"mine")
    bench.advance(4000.0)
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
    assert found is not None
    data = encode_record(ClusterSettings(queues=(QueueSpec(name="default"), QueueSpec(name="night"))))
    committed(bench.outside, Multi(name="X", ops=(Set(paths.CONFIG, data, found.version),), proof=Holds(paths.CONFIG, data)))
    bench.advance(1.0)
    assert leader.settings.queue("night") is not None
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
        bench.advance(1.3 * leader_history.LOOK_S)
        assert expected <= len(left()) <= expected + (hours == 6)
        assert left() == [100 - age for age in range(len(left()))], "the oldest go first"
    assert left() == bench.store.keys(keys.history_prefix("u")) == []
