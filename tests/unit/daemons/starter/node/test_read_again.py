"""Commits of a node, and what it reads again: what it could not read or did not expect; ends of placed jobs go together in one commit."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog

from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Committed, Conflict, ConflictKind, Create, Delete, Multi, Stamped
from rmgr.coord.protocol.records import encode_block, encode_record, read_fragment
from rmgr.daemons.starter.core.blocks import BlockVerdict, ClaimedBlock, failed_record
from rmgr.daemons.starter.core.tree import IdleMark
from rmgr.daemons.starter.jobs.jobs import Jobs
from rmgr.daemons.starter.node.commits import GATHER_S, MOST_BYTES, SHORT_S, Completing, DeletedClaims, Giving, Joint, Notes
from rmgr.daemons.starter.node.loop import Registrant, Registry
from rmgr.daemons.starter.node.orders import Amendments, Inbox
from rmgr.errors import CoordinationUnavailable, PermissionDenied, RequestTooLarge
from rmgr.model.block import Allocation, BlockData, BlockKey, Outcome
from rmgr.model.node import InboxOrder, OrderKind
from rmgr.model.states import Reason, State
from rmgr.runtime.aside import Aside
from rmgr.runtime.story import Stories

KEY = BlockKey(priority=0, seq=5, submission=42, first=0, count=2, attempt=1, cores=1, memory_mib=0)
AWAY = CoordinationUnavailable("ZooKeeper does not answer")


class Logged:
    def __init__(self) -> None:
        self.words: list[str] = []

    def __getattr__(self, _level: str) -> Any:
        return lambda event, **_: self.words.append(event)


class Node:
    """A node whose reads and pauses the test ends."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Future[Any]]] = []
        self.paused: list[Callable[[], object]] = []
        self.name, self.incarnation = "n1", 1
        self.log = Logged()
        self.dropped: list[ClaimedBlock] = []
        self.blocks = {KEY: ClaimedBlock.claimed("n1", "default", KEY, BlockData(), 3)}
        self.left: list[BlockKey] = []
        self.stories = Stories(self)
        self.committer = SimpleNamespace(is_registered=True, may_commit=True)
        get: Any = self._ask
        self.coordinator = SimpleNamespace(get=get, children=lambda path, **_: get(path), get_many=lambda some: get(some[0]))
        self.shared: Any = SimpleNamespace(
            coordinator=self.coordinator, committer=self.committer, metrics=SimpleNamespace(resyncs=SimpleNamespace(inc=lambda: None)),
            gate=None, post=self.post,
        )

    def post(self, job: Callable[[], object]) -> None:
        job()

    def after(self, _delay_s: float, job: Callable[[], object]) -> None:
        self.paused.append(job)

    def drop_block(self, block: ClaimedBlock) -> None:
        self.dropped.append(block)

    def over(self, block: ClaimedBlock) -> None:
        self.dropped.append(block)

    def go_on(self) -> None:
        """The pause is over."""
        self.paused.pop()()

    def _ask(self, path: str) -> Future[Any]:
        self.asked.append((path, Future()))
        return self.asked[-1][1]

    def answer(self, what: object) -> None:
        """To the last question."""
        answer = self.asked[-1][1]
        if isinstance(what, Exception):
            answer.set_exception(what)
        else:
            answer.set_result(what)


def stamped(data: bytes, version: int = 9) -> Stamped:
    stat: Any = SimpleNamespace(version=version, czxid=1, mzxid=1, creates=0, children=0)
    return Stamped(data, stat)


@pytest.fixture
def node() -> Node:
    return Node()


def reread(node: Any) -> ClaimedBlock:
    """A commit of a block has met something."""
    block: ClaimedBlock = node.blocks[KEY]
    block.hand_out(1)
    block.give_back(1, 7, "stamp")
    Completing(node).reread(block, Conflict(2, paths.running_block("n1", KEY), ConflictKind.BAD_VERSION))
    return block


@pytest.mark.parametrize("trouble", [AWAY, PermissionDenied("not you")])
def test_a_block_that_cannot_be_read_is_read_again_after_a_pause(node: Node, trouble: Exception) -> None:
    block = reread(node)
    node.answer(trouble)
    assert (len(node.asked), len(node.paused)) == (1, 1), "not at once, again and again"
    node.go_on()
    node.answer(stamped(encode_block(block.data)))
    assert (block.version, block.sending, node.dropped) == (9, None, [])


def test_a_block_is_not_read_again_once_the_registration_is_over(node: Node) -> None:
    reread(node)
    node.answer(AWAY)
    node.committer.is_registered = False
    node.go_on()
    assert (len(node.asked), len(node.stories)) == (1, 0)


@pytest.mark.parametrize("stands", [None, stamped(b"no block")])
def test_where_no_block_stands_any_more_its_work_ends(node: Node, stands: Stamped | None) -> None:
    block = reread(node)
    node.answer(stands)
    assert node.dropped == [block]


def test_an_order_that_could_not_be_read_is_read_again_soon_and_nothing_is_crossed_off_before(node: Any) -> None:
    cancelled: list[int | None] = []
    node.cancel = lambda _block, index, *_, **__: cancelled.append(index)
    node.blocks[KEY].info = SimpleNamespace(record=SimpleNamespace(grace_us=0))
    node.jobs = SimpleNamespace(verdicts=SimpleNamespace(cancelled=lambda _: None))
    inbox = Inbox(node)
    inbox.settle()
    node.answer(["guid"])
    node.answer(AWAY)
    assert not inbox.is_settled
    node.go_on()
    node.answer(stamped(encode_record(InboxOrder(order=OrderKind.CANCEL, submission=42, index=1))))
    assert (cancelled, inbox.is_settled) == ([1], True)


def test_what_is_no_order_is_read_once(node: Any) -> None:
    inbox = Inbox(node)
    inbox.settle()
    node.answer(["guid"])
    node.answer(stamped(b"no order"))
    assert (node.paused, node.log.words) == ([], ["order_not_readable"])


def amended(node: Any, *records: object) -> Amendments:
    """An order to read the record of 42, which is found so, one time after another."""
    left = list(records)

    def renewed(_submission: int) -> Any:
        yield from ()
        found = left.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    node.shared.records = SimpleNamespace(renewed=renewed)
    amendments = Amendments(node)
    amendments.order(42)
    return amendments


def test_a_record_that_cannot_be_read_now_is_read_again(node: Node) -> None:
    amendments = amended(node, AWAY, None)
    assert amendments.is_under_way(42)
    node.go_on()
    assert not amendments.is_under_way(42)


def test_an_order_about_a_record_that_is_gone_is_carried_out(node: Node) -> None:
    """Else its order would stand in the inbox for ever, and its node would ask for the record every second."""
    assert not amended(node, None).is_under_way(42)
    assert node.paused == []


def test_a_start_whose_record_is_gone_is_given_up_once_its_block_is_gone_too(
    node: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.shared.records = SimpleNamespace(get=lambda _number: None, is_refused=lambda _number: True)
    node.orders = SimpleNamespace(left=node.left.append)
    monkeypatch.setattr("rmgr.daemons.starter.jobs.jobs.REFUSED_S", 0.0)
    node.shared.stories, node.shared.after, node.shared.seals = lambda: node.stories, node.after, None
    jobs: Any = Jobs(node, tmp_path)
    jobs.reservations = jobs.holds = SimpleNamespace(settle=lambda: None)
    node.blocks.clear()
    jobs.begin([("guid", KEY)])
    node.answer([stamped(encode_block(BlockData(incarnation=1, allocation=Allocation(shares=(("n1", 1),), threads=1))))])
    jobs.settle()
    assert jobs.is_taking(42)
    jobs.settle()
    node.answer([None])
    assert not jobs.is_taking(42), "else no order about it would ever be crossed off"
    assert node.left == [KEY]


def test_a_claim_that_was_made_though_nobody_heard_of_it_is_the_block_that_it_would_have_been(node: Any) -> None:
    """With its verdict: what was claimed only to be refused would run otherwise."""
    claimed = ClaimedBlock.claimed("n1", "default", KEY, BlockData(incarnation=1, stamp="invalid"))
    claimed.judge(BlockVerdict.REFUSED, "no block looks so")
    there = stamped(encode_block(claimed.data), version=0)
    answers = {paths.running_node("n1"): [paths.block_name(KEY)], paths.running_block("n1", KEY): there, paths.idle("n1"): None}
    answered: Any = lambda what: (made := Future(), made.set_result(what))[0]  # noqa: E731
    coordinator = SimpleNamespace(
        get=lambda path: answered(answers[path]), children=lambda path: answered(answers[path]), stat=lambda path: answered(answers[path]),
        commit=lambda _multi, timeout_s: answered(Committed((0,))),
    )
    shared = SimpleNamespace(coordinator=coordinator, log=node.log)
    starter: Any = SimpleNamespace(progress=lambda: None, is_stopping=False, shared=shared)
    registry = Registry(starter, Registrant(endpoint="h:1"))
    node.blocks.clear()
    node.puller = SimpleNamespace(in_doubt=lambda: {KEY: claimed})
    node.registered = lambda _incarnation, *, idle: None
    registry.take_over(node, 2, 7)
    assert node.blocks == {KEY: claimed}
    assert (claimed.verdict, claimed.version, claimed.data.incarnation) == (BlockVerdict.REFUSED, 1, 2)


def test_orders_that_were_to_be_crossed_off_together_go_each_alone_when_one_was_gone(node: Any) -> None:
    sent: list[tuple[Any, Future[Any]]] = []

    def outcome_of(multi: Any) -> Future[Any]:
        sent.append((multi, Future()))
        return sent[-1][1]

    node.shared.committer = SimpleNamespace(outcome_of=outcome_of, fence=lambda _: 7)
    node.blocks.clear()
    node.puller = SimpleNamespace(is_claiming=lambda _: False)
    begun: list[Any] = []
    node.jobs = SimpleNamespace(checkpoints=SimpleNamespace(is_obeying=lambda _: False), is_taking=lambda _: False, begin=begun.extend)
    inbox: Any = Inbox(node)
    inbox.settle()
    names = [paths.start_order("one", KEY), paths.start_order("two", replace(KEY, first=2))]
    node.answer(names)
    assert [name for name, _ in begun] == names
    inbox.left(KEY)
    inbox.settle()
    (multi, answer) = sent.pop()
    assert len(multi.ops) == 1 + len(names)
    answer.set_result(Conflict(1, paths.inbox("n1", names[0]), ConflictKind.NO_NODE))
    assert [len(multi.ops) for multi, _ in sent] == [2, 2]
    sent[0][1].set_result(Conflict(1, paths.inbox("n1", names[0]), ConflictKind.NO_NODE))
    sent[1][1].set_result(Committed((0,)))
    assert not inbox.active


@pytest.mark.parametrize("is_stored", [True, False])
def test_ends_that_need_a_row_are_committed_once_it_is_stored_and_else_wait_for_the_next_commit(node: Any, is_stored: bool) -> None:
    row: Future[None] = Future()
    completed: list[ClaimedBlock] = []
    struck: list[str] = []
    node.shared.io = SimpleNamespace(answer=lambda _job, size: row)
    node.strike = lambda what, _why: struck.append(what)
    block = node.blocks[KEY]
    block.hand_out(2)
    block.live = 0
    block.settle([Outcome(index, value=b"x") for index in range(2)], 1.0)
    part = block.take_part()
    made: Any = Completing(node)
    made.complete = lambda block, _part: completed.append(block)
    node.stories.begin(made.complete_by_row(block, part))
    assert not completed
    if is_stored:
        row.set_result(None)
    else:
        row.set_exception(OSError("no room"))
    assert (completed, struck) == (([block], []) if is_stored else ([], ["fragment_not_stored"]))
    assert (block.sending is part, len(block.arrived)) == ((True, 0) if is_stored else (False, 2))


@pytest.mark.parametrize("can_be_mended", [True, False])
def test_ends_whose_commit_cannot_be_built_after_their_row_was_stored_do_not_wait_for_a_registration(
    node: Any, can_be_mended: bool
) -> None:
    row: Future[None] = Future()
    row.set_result(None)
    released: list[Any] = []
    failed: list[Exception] = []
    node.shared.io = SimpleNamespace(answer=lambda _job, size: row)
    node.shared.aside = Aside(structlog.get_logger(), lambda: None)
    node.orders = SimpleNamespace(released=released.append)
    node.failed = lambda error, _now_s: failed.append(error)
    block = node.blocks[KEY]
    block.hand_out(2)
    block.live = 0
    block.settle([Outcome(0, value=b"x")], 1.0)
    record = failed_record(block, 1, reason=Reason.WORKER_LOST, node="n1", error="\ud800" if can_be_mended else "as it was")
    block.settle_failed(1, record, 1.0)
    part = block.take_part()
    made: Any = Completing(node)

    def building(_block: ClaimedBlock, part: Any) -> None:
        part.orders = ("guid",)
        raise ValueError("what nobody thought of")

    made.complete = building
    node.stories.begin(made.complete_by_row(block, part))
    assert block.sending is part, "not at once, again and again"
    node.go_on()
    assert (block.sending, released, len(node.stories)) == (None, [("guid",)], 0)
    ended = sorted((one.index, one.reason) for one in block.arrived)
    if can_be_mended:
        assert (ended, block.failed, failed) == ([(0, Reason.NONE), (1, Reason.BAD_OUTPUT)], [], [])
    else:
        assert (ended, [index for index, _ in block.failed], len(failed)) == ([(0, Reason.NONE)], [1], 1)


def test_a_block_waits_for_nothing_that_could_not_be_sent(node: Any) -> None:
    def refuse(_multi: object) -> None:
        raise RequestTooLarge("too large")

    node.shared.committer = SimpleNamespace(outcome_of=refuse, fence=lambda _: 7, is_registered=True, may_commit=True)
    node.stager = SimpleNamespace(done=lambda *_: None)
    block = node.blocks[KEY]
    Giving(node).give_back(block, 1, name="SPLIT", held=False)
    assert (block.sending, list(block.ready)) == (None, [0, 1])
    Notes(node).tell(block, "it waits")
    assert block.sending is None
    claims = DeletedClaims(node)
    claims.settle(1.0)
    node.answer([])
    assert (block.sending, len(node.stories)) == (None, 0)
    assert node.dropped == []


class Bench:
    """A node with nothing but blocks, and a committer that keeps what it is given."""

    def __init__(self) -> None:
        self.sent: list[tuple[Multi, Any]] = []
        self.over: list[ClaimedBlock] = []
        self.read: list[ClaimedBlock] = []
        self.crossed: Counter[str] = Counter()
        orders = SimpleNamespace(
            obeyed_by=lambda block, _: (f"start-{block.key.first}",), settled=self.crossed.update, released=lambda _guids: None,
            gone=lambda guid: self.crossed.update([guid]),
        )
        idle = IdleMark()
        self.node = SimpleNamespace(
            name="n1", blocks={}, orders=orders, idle=idle, puller=SimpleNamespace(is_hungry=True), log=structlog.get_logger(),
            over=self.over.append,
        )  # fmt: skip
        committer = SimpleNamespace(fence=lambda _: 7, commit=lambda multi, done: self.sent.append((multi, done)))
        metrics = SimpleNamespace(committed=lambda _outcomes, _failed: None, resyncs=SimpleNamespace(inc=lambda: None))
        self.task_s: float | None = None
        times = SimpleNamespace(of=lambda _kind: self.task_s)
        self.node.shared = SimpleNamespace(gate=None, committer=committer, metrics=metrics, times=times)
        self.node.shared.aside = Aside(structlog.get_logger(), lambda: None)
        self.node.completing = made = Completing(self.node)
        made.reread = lambda block, _: self.read.append(block)
        self.joint = Joint(self.node)

    def ends(self, index: int, *, submission: int = 4, attempt: int = 1, value: bytes = b"") -> ClaimedBlock:
        """A job that has ended, started at a time of its own."""
        key = BlockKey(priority=0, seq=index, submission=submission, first=index, count=1, attempt=attempt, cores=1, memory_mib=0)
        data = BlockData(claimed_us=1000 + index, allocation=Allocation(shares=(("n1", 1),), threads=1))
        block = ClaimedBlock.claimed("n1", "batch", key, data, 3)
        block.hand_out(1)
        block.live = 0
        block.settle([Outcome(index, started_us=50, value=value)], 0.0)
        self.node.blocks[key] = block
        return block

    def runs(self, index: int, *, submission: int = 4) -> ClaimedBlock:
        """A job that runs."""
        block = self.ends(index, submission=submission)
        block.arrived.clear()
        block.live = 1
        return block

    def told(self, at: int) -> dict[int, int]:
        """Index -> absolute start of the outcomes of that commit."""
        (made,) = [op for op in self.sent[at][0].ops if isinstance(op, Create) and op.sequence]
        fragment = read_fragment(made.data)
        return {outcome.index: fragment.base_us + outcome.started_us for outcome in fragment.outcomes}


def test_a_job_alone_goes_at_once_and_what_ends_meanwhile_goes_together() -> None:
    bench = Bench()
    first = bench.ends(0)
    assert bench.joint.flush(0.0) == []
    later = [bench.ends(index) for index in (1, 2, 3)]
    other = bench.ends(9, submission=5)
    again = bench.ends(6, attempt=2)
    assert bench.joint.flush(0.0) == []
    assert [bench.told(at) for at in range(3)] == [{0: 1050}, {9: 1059}, {6: 1056}]
    bench.sent[0][1](Committed((0,)))
    assert bench.over == [first]
    bench.joint.flush(0.0)
    assert bench.told(3) == {1: 1051, 2: 1052, 3: 1053}
    gone = {op.path for op in bench.sent[3][0].ops if isinstance(op, Delete)}
    assert gone == {paths.running_block("n1", block.key) for block in later} | {paths.inbox("n1", f"start-{at}") for at in (1, 2, 3)}
    bench.sent[3][1](Committed((0,)))
    assert bench.over == [first, *later]
    assert bench.node.idle.is_set, "the first of them carried the idle marker"
    assert set(bench.crossed) == {f"start-{at}" for at in range(4)}
    assert all(block.sending is not None for block in (other, again))


def test_what_needs_a_row_of_its_own_is_left_to_others_and_none_holds_more_than_fits() -> None:
    bench = Bench()
    large = bench.ends(0, value=b"x" * (MOST_BYTES + 1))
    some = [bench.ends(index, value=b"x" * (MOST_BYTES // 3)) for index in (1, 2, 3)]
    assert bench.joint.flush(0.0) == [large]
    assert bench.told(0).keys() == {1, 2}
    assert some[2].sending is None


def test_a_refused_commit_reads_the_odd_one_again_and_sends_the_others() -> None:
    bench = Bench()
    odd, good = bench.ends(1), bench.ends(2)
    bench.joint.flush(0.0)
    bench.sent[0][1](Conflict(1, paths.running_block("n1", odd.key), ConflictKind.BAD_VERSION))
    assert bench.read == [odd]
    assert good.sending is None
    assert bench.joint.flush(0.0) == []
    assert len(bench.sent) == 1, "not before it is known what became of the other"
    bench.node.blocks.pop(odd.key)
    bench.joint.flush(0.0)
    assert bench.told(1) == {2: 1052}
    bench.sent[1][1](Conflict(3, paths.inbox("n1", "start-2"), ConflictKind.NO_NODE))
    assert bench.crossed["start-2"] == 1
    bench.joint.flush(0.0)
    assert bench.told(2) == {2: 1052}


def test_an_end_that_cannot_be_written_ends_as_a_failure_and_the_others_go() -> None:
    bench = Bench()
    bad, good = bench.ends(1), bench.ends(2)
    bad.arrived = [Outcome(1, error="\ud800")]
    assert bench.joint.flush(0.0) == []
    assert (bench.sent, bad.sending, good.sending, bench.joint.due_s) == ([], None, None, 0.0)
    [failed] = bad.arrived
    assert (failed.state, failed.reason) == (State.FAILED, Reason.BAD_OUTPUT)
    bench.joint.flush(0.0)
    assert bench.told(0).keys() == {1, 2}
    bench.sent[0][1](Committed((0,)))
    assert bench.over == [bad, good]
    assert bench.node.idle.is_set, "the mark went with the commit that was made"


def test_ends_of_short_jobs_gather_while_others_of_their_submission_run() -> None:
    bench = Bench()
    bench.task_s = SHORT_S / 2
    bench.ends(0)
    running = bench.runs(1)
    bench.runs(7, submission=5)
    assert bench.joint.flush(0.0) == []
    assert (bench.sent, bench.joint.due_s) == ([], GATHER_S)
    bench.ends(2)
    bench.joint.flush(GATHER_S)
    assert bench.told(0).keys() == {0, 2}, "not for ever"
    assert bench.joint.due_s == math.inf
    bench.sent[0][1](Committed((0,)))
    bench.node.blocks = {running.key: running}
    running.live = 0
    running.settle([Outcome(1, started_us=50)], 0.0)
    bench.joint.flush(0.0)
    assert bench.told(1).keys() == {1}, "nobody is left to wait for"


def test_ends_of_long_jobs_and_of_unknown_ones_wait_for_nobody() -> None:
    for task_s in (None, SHORT_S):
        bench = Bench()
        bench.task_s = task_s
        bench.ends(0)
        bench.runs(1)
        bench.joint.flush(0.0)
        assert bench.told(0).keys() == {0}
