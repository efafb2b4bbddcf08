"""Tasks without a znode: the leader finds them, a Starter that has them puts them back, and all others are ended finally."""

from __future__ import annotations

import re
import uuid

import msgspec

from rmgr.coord.decisions import keeping
from rmgr.coord.decisions.progress import Codes
from rmgr.coord.ops import leader as leader_ops
from rmgr.coord.ops import work as ops
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Committed, Conflict, Delete, Gone, Multi
from rmgr.coord.protocol.records import decode_block
from rmgr.coord.views import answers
from rmgr.daemons.leader.submissions.sweep import CENSUS_S
from rmgr.model.base.states import Reason, State
from rmgr.model.tasks.block import BlockKey, Fragment, Outcome
from rmgr.model.tasks.submission import Phase
from tests.harness.leader_bench import Bench, Starter, committed


def vanish(bench: Bench, path: str) -> None:
    """Somebody deletes a znode by hand."""
    committed(bench.outside, Multi(name="BY_HAND", ops=(Delete(path),), proof=Gone(path)))


def outcomes(bench: Bench, number: int) -> dict[int, tuple[State, Reason]]:
    return {index: (outcome.state, outcome.reason) for index, outcome in bench.look.outcomes(number).items()}


def test_missing_is_what_no_end_and_no_range_covers() -> None:
    assert keeping.missing_tasks(10, codes(1, 3), [(4, 2), (8, 100)]) == [0, 2, 6, 7]
    assert keeping.missing_tasks(3, codes(0, 1, 2), []) == []
    assert keeping.missing_tasks(2, codes(), [(0, 1)]) == [1]
    assert keeping.missing_tasks(9000, codes(*range(4096), 8191, 8193), [(4096, 4094), (8190, 1)]) == [8192, *range(8194, 9000)]


def test_what_is_missing_is_found_quickly_however_many_tasks_are_claimed_to_be_there():
    found = keeping.missing_tasks(1 << 26, codes((1 << 26) - 1), [(5, 1)])
    assert found[:6] == [0, 1, 2, 3, 4, 6]
    assert len(found) == keeping.MOST_MISSING


def codes(*indices: int) -> Codes:
    made = Codes()
    for index in indices:
        made[index] = 1
    return made


def test_a_waiting_block_that_was_deleted_is_found_explained_and_ended(bench: Bench) -> None:
    leader = bench.lead()
    number = bench.submitter.submit(12, block=4)
    bench.advance(1.0)
    _, gone, _ = bench.look.pending()
    vanish(bench, paths.pending_block("default", gone))
    bench.advance(CENSUS_S + 0.5)
    assert outcomes(bench, number) == {}, "one look is not enough"
    (why,) = answers.explain(leader.snapshot(), number, 5).why
    assert (why.what, why.detail.startswith("it is nowhere in ZooKeeper")) == ("nowhere", True)
    assert any(why.what == "nowhere" for why in answers.explain(leader.snapshot(), number, None).why)
    assert all(why.what != "nowhere" for why in answers.explain(leader.snapshot(), number, 0).why)
    bench.advance(CENSUS_S)
    lost = (State.FAILED, Reason.DATA_LOST)
    assert outcomes(bench, number) == dict.fromkeys(range(4, 8), lost)
    assert re.search("it was nowhere in ZooKeeper", bench.look.outcomes(number)[4].error)
    bench.advance(5 * CENSUS_S)
    assert outcomes(bench, number) == dict.fromkeys(range(4, 8), lost), "once"
    starter = bench.starter("n1")
    for _ in range(2):
        starter.complete("n1", starter.claim("n1"))
    bench.advance(1.0)
    assert bench.phase(number) is Phase.CLOSED


def test_work_that_moves_between_the_looks_is_left_alone(bench: Bench) -> None:
    bench.lead()
    starter = bench.starter("n1", "n2")
    number = bench.submitter.submit(40, block=4, retries=9, backoff_us=1)
    for at in range(30):
        node = ("n1", "n2")[at % 2]
        key = starter.claim(node, take=2)
        if at % 3:
            starter.fail(node, key, reason=Reason.EXIT_CODE, exit_code=1)
        else:
            starter.complete(node, key, [key.first])
            bench.advance(CENSUS_S / 3)
            starter.complete(node, key)
        bench.advance(CENSUS_S / 3)
    assert {state for state, _ in outcomes(bench, number).values()} == {State.COMPLETED}


def test_a_late_complete_of_a_claim_that_was_deleted_conflicts_and_one_result_is_committed(bench: Bench, starter: Starter) -> None:
    number = bench.submitter.submit(2, block=2)
    key = starter.claim("n1")
    path = paths.running_block("n1", key)
    found = bench.outside.get(path).result(60)
    assert found is not None
    late = late_complete(bench, starter, key)
    vanish(bench, path)
    bench.advance(2 * CENSUS_S + 1)
    assert outcomes(bench, number) == dict.fromkeys(range(2), (State.FAILED, Reason.DATA_LOST))
    assert isinstance(bench.outside.commit(late).result(60), Conflict)
    back = ops.put_back("n1", starter.versions["n1"], key, decode_block(found.data))
    assert isinstance(bench.outside.commit(back).result(60), Conflict), "what was ended stays ended"


def test_a_claim_that_was_put_back_in_time_goes_on(bench: Bench, starter: Starter) -> None:
    number = bench.submitter.submit(2, block=2)
    key = starter.claim("n1")
    path = paths.running_block("n1", key)
    found = bench.outside.get(path).result(60)
    assert found is not None
    vanish(bench, path)
    bench.advance(CENSUS_S + 0.5)
    back = ops.put_back("n1", starter.versions["n1"], key, decode_block(found.data))
    assert isinstance(bench.outside.commit(back).result(60), Committed)
    bench.advance(3 * CENSUS_S)
    assert outcomes(bench, number) == {}
    starter.complete("n1", key)
    bench.advance(1.0)
    assert {state for state, _ in outcomes(bench, number).values()} == {State.COMPLETED}


def test_an_end_conflicts_with_whatever_changed_since_the_moment_it_was_decided_at(bench: Bench) -> None:
    bench.lead()
    number = bench.submitter.submit(1)
    bench.advance(0.1)
    found = bench.outside.get(paths.sub(number)).result(60)
    epoch = bench.outside.get(paths.EPOCH).result(60)
    assert found is not None
    assert epoch is not None
    followed = bench.leader.submissions.followed[number].submission
    assert followed is not None
    right = {"epoch_version": epoch.version, "version": found.version, "tail_version": 0, "failed_version": 0}
    for name in right:
        wrong = right | {name: right[name] + 1}
        multi = leader_ops.end_missing(followed, [0], stamp=uuid.uuid4().hex, **wrong)
        assert isinstance(bench.outside.commit(multi).result(60), Conflict), name
    assert isinstance(bench.outside.commit(leader_ops.end_missing(followed, [0], stamp="s", **right)).result(60), Committed)
    assert isinstance(bench.outside.commit(leader_ops.end_missing(followed, [0], stamp="t", **right)).result(60), Conflict), "a second doer"


def late_complete(bench: Bench, starter: Starter, key: BlockKey) -> Multi:
    """The COMPLETE of everything in a claimed block, built while it stands."""
    found = bench.outside.get(paths.running_block("n1", key)).result(60)
    data = msgspec.structs.replace(decode_block(found.data), done=(1 << key.count) - 1)
    fragment = Fragment(node="n1", attempt=1, outcomes=tuple(Outcome(index=index) for index in range(key.first, key.end)))
    return ops.complete("n1", starter.versions["n1"], key, data, found.version, fragment=fragment)
