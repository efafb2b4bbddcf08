"""The leader records the end of a nonce together with CLOSE, leaves put-back submissions alone, and removes old nonces."""

from __future__ import annotations

from dataclasses import replace

from rmgr.coord import nonces
from rmgr.coord.protocol import keys, paths
from rmgr.coord.protocol.multi import Create, Delete, Exists, Gone, Holds, Multi, Set, Stamped
from rmgr.coord.protocol.records import decode_record, encode_fragment, encode_record
from rmgr.model.block import Fragment, Outcome
from rmgr.model.queue import ClusterSettings
from rmgr.model.states import Reason, State
from rmgr.model.submission import Phase, Submission, Tail
from rmgr.runtime import machine
from tests.harness.leader_bench import Bench, Starter, committed

RETENTION_S = 300.0
SETTINGS = ClusterSettings(retention_us=round(RETENTION_S * 1e6))


def record_of(bench: Bench, number: int) -> Submission:
    return decode_record(bench.outside.get(paths.sub(number)).result(60).data, Submission)


def nonce_of(bench: Bench, record: Submission) -> Stamped | None:
    return bench.outside.get(nonces.place_of(record)).result(60)


def test_an_end_is_said_together_with_close(bench: Bench, starter: Starter) -> None:
    number = bench.submitter.submit(1)
    other = bench.submitter.submit(1, phase=Phase.HELD, reason=Reason.USER_HOLD)
    record = record_of(bench, number)
    found = nonce_of(bench, record)
    assert (found.data, found.version) == (encode_record(number), 0)
    bench.run_all(starter)
    bench.advance(1.0)
    ended = nonce_of(bench, record)
    assert (ended.data, ended.version) == (encode_record(number), 1)
    closed = bench.outside.get(paths.sub(number)).result(60)
    assert closed.stat.mzxid == ended.stat.mzxid, "one commit"
    goes_on = nonce_of(bench, record_of(bench, other))
    assert goes_on.version == 0


def test_a_nonce_stays_behind_its_submission_until_nothing_can_be_submitted_under_it(bench: Bench, starter: Starter) -> None:
    number = bench.submitter.submit(1, signed_s=round(bench.now_s))
    record = record_of(bench, number)
    bench.run_all(starter)
    bench.advance(RETENTION_S + 60)
    assert bench.look.sub(number) is None
    bench.advance(nonces.KEPT_S - RETENTION_S - 120)
    assert nonce_of(bench, record) is not None
    bench.advance(1200.0)
    assert nonce_of(bench, record) is None


def test_a_nonce_stays_while_its_submission_lasts_and_goes_after_it(bench: Bench) -> None:
    bench.lead()
    number = bench.submitter.submit(1)
    record = record_of(bench, number)
    bench.idle(5000.0)
    assert nonce_of(bench, record) is not None
    bench.lead(bench.connect())
    bench.idle(5000.0)
    assert nonce_of(bench, record) is not None
    bench.run_all(bench.starter("n1"))
    bench.advance(RETENTION_S + 1300)
    assert nonce_of(bench, record) is None


def test_one_that_cannot_be_deleted_keeps_no_other(bench: Bench) -> None:
    """Its maker has put something below it."""
    bench.lead()
    there = [paths.nonce("u", f"{number:032x}", 1) for number in range(400)]
    kept = (there[0], there[200], there[399])
    for path in (*there, *(f"{path}/x" for path in kept)):
        committed(bench.outside, Multi(name="X", ops=(Create(path),), proof=Exists(path)))
    bench.idle(6000.0)
    assert bench.look.names(paths.NONCES) == sorted(path.rpartition("/")[2] for path in kept)


def test_what_time_it_is_says_zookeeper(bench: Bench) -> None:
    """The clock of a WatchDog that is ahead (of the bench by decades) deletes nothing too early."""
    assert machine.wall_s() > bench.now_s + 1e9
    bench.lead()
    number = bench.submitter.submit(1, signed_s=round(bench.now_s))
    record = record_of(bench, number)
    bench.run_all(bench.starter("n1"))
    bench.advance(3600.0)
    assert bench.look.sub(number) is None
    assert nonce_of(bench, record) is not None


def test_what_nobody_may_have_written_among_nonces_goes(bench: Bench) -> None:
    bench.lead()
    ahead = paths.nonce("u", "f" * 32, 10**9)
    for path, data in ((f"{paths.NONCES}/x", b"\xff"), (paths.nonce("u", "e" * 32, 1), b"77"), (ahead, b"1e9")):
        committed(bench.outside, Multi(name="X", ops=(Create(path, data),), proof=Exists(path)))
    bench.idle(5000.0)
    assert bench.look.names(paths.NONCES) == []


def test_what_is_put_back_changes_no_history(bench: Bench, starter: Starter) -> None:
    """Neither under the leader that has seen it end, nor under its successor."""
    number = bench.submitter.submit(1)
    found = bench.outside.get(paths.sub(number)).result(60)
    bench.run_all(starter)
    bench.advance(RETENTION_S + 60)
    assert bench.look.sub(number) is None
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


def test_nothing_is_closed_while_its_record_names_another_nonce(bench: Bench) -> None:
    """Its end could not be said where Starters look. Once the record is as it was, it is."""
    leader = bench.lead()
    starter = bench.starter("n1")
    number = bench.submitter.submit(1)
    other = bench.submitter.submit(1, phase=Phase.HELD, reason=Reason.USER_HOLD)
    found = bench.outside.get(paths.sub(number)).result(60)
    bench.advance(1.0)
    leader.submissions.followed[number].nonce = nonces.place_of(record_of(bench, number)), nonce_of(bench, record_of(bench, number))
    record, theirs = decode_record(found.data, Submission), record_of(bench, other)
    own = paths.nonce("u", "d" * 32, 0)
    committed(bench.outside, Multi(name="X", ops=(Create(own, encode_record(number)),), proof=Exists(own)))
    for version, nonce in enumerate((theirs.nonce, "d" * 32, "c" * 32)):
        false = encode_record(replace(record, nonce=nonce))
        committed(bench.outside, Multi(name="X", ops=(Set(paths.sub(number), false, version),), proof=Holds(paths.sub(number), false)))
        bench.run_all(starter)
        bench.advance(60.0)
        assert bench.phase(number) is Phase.OPEN
    committed(bench.outside, Multi(name="X", ops=(Set(paths.sub(number), found.data, 3),), proof=Holds(paths.sub(number), found.data)))
    bench.advance(60.0)
    assert bench.phase(number) is Phase.CLOSED
    for one, version in ((record, 1), (theirs, 0)):
        stands = nonce_of(bench, one)
        assert stands.version == version


def test_a_nonce_that_has_gone_is_no_reason_to_collect_nothing(bench: Bench, starter: Starter) -> None:
    """Somebody with a leader's credentials has deleted it: what has ended goes all the same."""
    number = bench.submitter.submit(1)
    path = nonces.place_of(record_of(bench, number))
    bench.run_all(starter)
    bench.advance(5.0)
    assert bench.phase(number) is Phase.CLOSED
    committed(bench.outside, Multi(name="X", ops=(Delete(path),), proof=Gone(path)))
    bench.advance(RETENTION_S + 60)
    assert bench.look.sub(number) is None
