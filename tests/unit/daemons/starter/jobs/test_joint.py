"""Ends of placed jobs in one commit: which go together, its content, and the consequences of a refusal."""

from __future__ import annotations

import math
from collections import Counter
from types import SimpleNamespace
from typing import Any

import structlog

from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Committed, Conflict, ConflictKind, Create, Delete, Multi
from rmgr.coord.protocol.records import read_fragment
from rmgr.daemons.starter.core.blocks import ClaimedBlock
from rmgr.daemons.starter.core.tree import IdleMark
from rmgr.daemons.starter.node.commits import GATHER_S, MOST_BYTES, SHORT_S, Completing, Joint
from rmgr.model.base.states import Reason, State
from rmgr.model.tasks.block import Allocation, BlockData, BlockKey, Outcome
from rmgr.runtime.aside import Aside


class Bench:
    """A node with nothing but blocks, and a committer that keeps what it is given."""

    def __init__(self) -> None:
        self.sent: list[tuple[Multi, Any]] = []
        self.over: list[ClaimedBlock] = []
        self.read: list[ClaimedBlock] = []
        self.crossed: Counter[str] = Counter()
        orders = SimpleNamespace(
            obeyed_by=lambda block, _: (f"start-{block.key.first}",),
            settled=self.crossed.update,
            released=lambda _guids: None,
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
        self.node.completing = made = Completing(self.node)  # type: ignore[arg-type]
        made.reread = lambda block, _: self.read.append(block)  # type: ignore[method-assign,assignment]
        self.joint = Joint(self.node)  # type: ignore[arg-type]

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
