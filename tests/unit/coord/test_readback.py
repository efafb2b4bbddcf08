"""The read-back rule, case by case: the meaning of a lost answer, and which requests are sent again in which order."""

from __future__ import annotations

import pytest

from rmgr.coord.protocol.multi import (
    Check,
    Committed,
    Conflict,
    ConflictKind,
    Create,
    Delete,
    Exists,
    Gone,
    GoneOrHolds,
    Holds,
    Multi,
    Op,
    Proof,
    Set,
    Stamped,
    Stat,
    Unknown,
)
from rmgr.coord.protocol.readback import (
    Answer,
    Order,
    Pending,
    Pipeline,
    Prove,
    Refuse,
    SendOperation,
    Sync,
    Verdict,
    destroys,
    implies,
    judge,
    proof_paths,
    resolved,
)

DONE = Committed(paths=("/x",), versions=(0,))


def stamped(data: bytes = b"", version: int = 0) -> Stamped:
    return Stamped(data, Stat(version=version, mzxid=1, children=0, creates=0, ephemeral_owner=0, mtime_ms=0))


def multi(*ops: Op, proof: Proof, guard: Check | None = None) -> Multi:
    return Multi(name="TEST", ops=ops, proof=proof, guard=guard)


def create(path: str) -> Pending:
    return Pending(multi(Create(path), proof=Exists(path)))


# -- the verdict ----------------------------------------------------------------------------------------------------------

JUDGED = [
    (Exists("/x"), (Create("/x"),), None, False),
    (Exists("/x"), (Create("/x"),), stamped(), True),
    (Exists("/x", b"mine"), (Create("/x", b"mine"),), stamped(b"theirs"), False),
    (Exists("/x", b"mine"), (Create("/x", b"mine"),), stamped(b"mine"), True),
    (Gone("/x"), (Delete("/x"),), stamped(), False),
    (Gone("/x"), (Delete("/x"),), None, True),
    (Holds("/x", b"1"), (Set("/x", b"1", 4),), None, False),
    (Holds("/x", b"1"), (Set("/x", b"1", 4),), stamped(b"0", 5), False),
    (Holds("/x", b"1"), (Set("/x", b"1", 4),), stamped(b"1", 5), True),
    (Holds("/x", b"1"), (Set("/x", b"1", 4),), stamped(b"1", 4), False),  # the same bytes stood there before
    (Holds("/x", b"1"), (Set("/x", b"1", -1),), stamped(b"1", 4), True),
    (GoneOrHolds("/x", b"1"), (Set("/x", b"1", 4),), None, True),
    (GoneOrHolds("/x", b"1"), (Set("/x", b"1", 4),), stamped(b"1", 5), True),
    (GoneOrHolds("/x", b"1"), (Set("/x", b"1", 4),), stamped(b"1", 4), False),
]


@pytest.mark.parametrize(("proof", "ops", "found", "proven"), JUDGED)
def test_a_proof_is_read_with_its_version(proof: Proof, ops: tuple[Op, ...], found: Stamped | None, proven: bool) -> None:
    assert judge(multi(*ops, proof=proof), [found]) is (Verdict.PROVEN if proven else Verdict.NOT_PROVEN)


@pytest.mark.parametrize(
    ("fence", "verdict"), [(stamped(version=3), Verdict.PROVEN), (stamped(version=4), Verdict.GUARD_FELL), (None, Verdict.GUARD_FELL)]
)
def test_a_guard_is_read_after_the_proof(fence: Stamped | None, verdict: Verdict) -> None:
    guard = Check("/nodes/n", 3)
    claim = multi(guard, Create("/x"), proof=Exists("/x"), guard=guard)
    assert proof_paths(claim) == ("/x", "/nodes/n")
    assert judge(claim, [stamped(), fence]) is verdict
    assert judge(claim, [None, fence]) is Verdict.NOT_PROVEN


def test_a_later_success_proves_the_earlier_change_that_it_overwrote() -> None:
    first = multi(Set("/x", b"1", 0), proof=Holds("/x", b"1"))
    assert implies(Set("/x", b"2", 1), first)
    assert implies(Check("/x", 1), first)
    assert not implies(Set("/x", b"2", -1), first)
    assert not implies(Set("/y", b"2", 1), first)
    assert implies(Set("/x", b"1", 0), multi(Create("/x"), proof=Exists("/x")))
    assert not implies(Create("/x"), multi(Delete("/x"), proof=Gone("/x")))


def test_what_would_take_a_proof_away_is_recognised() -> None:
    assert destroys(Delete("/x"), Exists("/x"))
    assert destroys(Delete("/x"), Holds("/x", b""))
    assert destroys(Create("/x"), Gone("/x"))
    assert not destroys(Delete("/x"), GoneOrHolds("/x", b""))
    assert not destroys(Create("/x", sequence=True), Gone("/x"))
    assert not destroys(Set("/x", b"", 0), Exists("/x"))


def test_a_resolved_answer_claims_no_sequential_name() -> None:
    ops = (Create("/q-", sequence=True), Create("/x"), Set("/y", b"", 4), Check("/z", 2), Delete("/w", 1))
    assert resolved(multi(*ops, proof=Exists("/x"))) == Committed(
        paths=("/q-", "/x", "/y", "/z", "/w"), versions=(-1, 0, 5, 2, -1), resolved=True
    )


# -- the pipeline ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def pipe() -> Pipeline:
    up = Pipeline(window=3)
    assert up.up() == []
    return up


def proofs(orders: list[Order]) -> list[Pending]:
    return [order.op for order in orders if isinstance(order, Prove)]


def test_operations_beyond_the_window_follow_as_answers_come(pipe: Pipeline) -> None:
    ops = [create(f"/{n}") for n in range(5)]
    assert [pipe.give(op) for op in ops] == [True, True, True, False, False]
    assert pipe.answered(ops[0], DONE) == [Answer(ops[0], DONE), SendOperation(ops[3])]


def test_nothing_is_sent_before_the_link_is_up() -> None:
    pipe = Pipeline()
    first, second = create("/1"), Pending(None)
    assert not pipe.give(first)
    assert not pipe.give(second)
    assert pipe.up() == [SendOperation(first), SendOperation(second)]


def test_doubts_are_proven_first_and_the_rest_goes_out_in_the_old_order(pipe: Pipeline) -> None:
    first, read, second, third = create("/1"), Pending(None), create("/2"), create("/3")
    for op in (first, read, second, third):
        pipe.give(op)
    pipe.down()
    orders = pipe.up()
    assert orders[0] == Sync()
    assert proofs(orders) == [first, second]  # the third was never sent
    late = create("/4")
    assert not pipe.give(late)  # not before the proofs are read
    assert pipe.proved(first, [stamped()]) == []
    orders = pipe.proved(second, [None])
    assert orders == [Answer(first, resolved(first.multi)), SendOperation(read), SendOperation(second), SendOperation(third)]  # type: ignore[arg-type]


def test_a_conflict_after_sending_again_is_checked_before_it_is_believed(pipe: Pipeline) -> None:
    op = create("/1")
    pipe.give(op)
    pipe.down()
    pipe.up()
    assert pipe.proved(op, [None]) == [SendOperation(op)]
    conflict = Conflict(index=0, path="/1", kind=ConflictKind.NODE_EXISTS)
    assert pipe.answered(op, conflict) == [Prove(op, ("/1",))]
    assert pipe.proved(op, [stamped()]) == [Answer(op, resolved(op.multi))]  # type: ignore[arg-type]


@pytest.mark.parametrize("cut_again", [False, True])
def test_a_conflict_that_the_proof_does_not_contradict_stands(pipe: Pipeline, cut_again: bool) -> None:
    op = Pending(multi(Set("/1", b"x", 3), proof=Holds("/1", b"x")))
    pipe.give(op)
    pipe.down()
    pipe.up()
    pipe.proved(op, [stamped(b"y", 7)])
    conflict = Conflict(index=0, path="/1", kind=ConflictKind.BAD_VERSION)
    pipe.answered(op, conflict)
    if cut_again:
        pipe.down()
        assert proofs(pipe.up()) == [op]
    assert pipe.proved(op, [stamped(b"y", 7)]) == [Answer(op, conflict)]


def test_a_first_conflict_is_believed_at_once(pipe: Pipeline) -> None:
    op = create("/1")
    pipe.give(op)
    conflict = Conflict(index=0, path="/1", kind=ConflictKind.NODE_EXISTS)
    assert pipe.answered(op, conflict) == [Answer(op, conflict)]


def test_proofs_interrupted_by_another_cut_are_ordered_again(pipe: Pipeline) -> None:
    first, second = create("/1"), create("/2")
    pipe.give(first)
    pipe.give(second)
    pipe.down()
    pipe.up()
    pipe.proved(first, [stamped()])
    pipe.down()
    assert proofs(pipe.up()) == [first, second]


def test_a_chain_of_sets_is_proven_by_its_last(pipe: Pipeline) -> None:
    chain = [Pending(multi(Set("/x", bytes([n]), n), proof=GoneOrHolds("/x", bytes([n])))) for n in range(3)]
    for op in chain:
        pipe.give(op)
    pipe.down()
    pipe.up()
    orders = [order for op in chain for order in pipe.proved(op, [stamped(b"\x01", 2)])]  # the second was the last to arrive
    assert orders == [Answer(chain[0], resolved(chain[0].multi)), Answer(chain[1], resolved(chain[1].multi)), SendOperation(chain[2])]  # type: ignore[arg-type]


def test_what_nobody_waits_for_any_more_still_proves_what_was_before_it(pipe: Pipeline) -> None:
    chain = [Pending(multi(Set("/x", bytes([n]), n), proof=Holds("/x", bytes([n])))) for n in range(2)]
    for op in chain:
        pipe.give(op)
    pipe.down()
    pipe.give_up(chain[1])
    assert proofs(pipe.up()) == chain
    pipe.proved(chain[0], [stamped(b"\x01", 2)])
    assert pipe.proved(chain[1], [stamped(b"\x01", 2)]) == [Answer(chain[0], resolved(chain[0].multi))]  # type: ignore[arg-type]


def test_what_was_given_up_is_neither_sent_nor_answered(pipe: Pipeline) -> None:
    pipe.down()
    waiting, sent = create("/1"), create("/2")
    pipe.give(waiting)
    pipe.give_up(waiting)
    assert pipe.up() == []
    pipe.give(sent)
    pipe.give_up(sent)
    assert pipe.answered(sent, DONE) == []
    assert list(pipe.unresolved()) == []


def test_a_lost_session_refuses_what_was_not_sent_and_only_reads_back_the_rest() -> None:
    pipe = Pipeline(window=2)
    pipe.up()
    committed, not_committed, unsent, read = create("/1"), create("/2"), create("/3"), Pending(None)
    for op in (committed, not_committed, unsent, read):
        pipe.give(op)
    pipe.down()
    assert pipe.session_lost() == [Refuse(unsent, "the session was lost"), Refuse(read, "the session was lost")]
    assert proofs(pipe.up()) == [committed, not_committed]
    pipe.proved(committed, [stamped()])
    orders = pipe.proved(not_committed, [None])
    assert orders[0] == Answer(committed, resolved(committed.multi))  # type: ignore[arg-type]
    assert [type(order.value) for order in orders[1:] if isinstance(order, Answer)] == [Unknown]


def test_an_answer_of_a_fallen_link_is_ignored(pipe: Pipeline) -> None:
    op = create("/1")
    pipe.give(op)
    pipe.down()
    assert pipe.answered(op, DONE) == []


def test_a_proof_that_may_not_be_read_leaves_the_outcome_unknown(pipe: Pipeline) -> None:
    op, later = create("/1"), create("/2")
    pipe.give(op)
    pipe.down()
    pipe.up()
    pipe.give(later)
    assert pipe.unprovable(op, "no permission") == [Refuse(op, "no permission"), SendOperation(later)]


def test_a_multi_that_would_take_a_proof_away_waits_for_the_answer(pipe: Pipeline) -> None:
    made, after = create("/1"), create("/2")
    undone = Pending(multi(Delete("/1"), proof=Exists("/log")))
    assert [pipe.give(op) for op in (made, undone, after)] == [True, False, False]  # and nothing overtakes it
    assert pipe.answered(made, DONE) == [Answer(made, DONE), SendOperation(undone), SendOperation(after)]


def test_the_end_refuses_everything(pipe: Pipeline) -> None:
    ops = [create(f"/{n}") for n in range(5)]
    for op in ops:
        pipe.give(op)
    assert pipe.close("closed") == [Refuse(op, "closed") for op in ops]
    assert list(pipe.unresolved()) == []
