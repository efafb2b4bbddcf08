"""The scheduler's state is made again in slices, between which the cluster does not stand still."""

from __future__ import annotations

import json

import pytest

from rmgr.coord.protocol import paths
from rmgr.daemons.leader.placement import rebuild as placing_rebuild
from rmgr.model.base.states import Reason, State
from rmgr.model.cluster.queue import ClusterSettings, Dispatch, PipelineSpec, QueueSpec
from rmgr.model.tasks.submission import Phase, Rigid
from tests.harness.leader_bench import Bench


def test_whatever_happens_between_two_slices_of_a_rebuild_is_not_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job ends, one is cancelled, one comes, a node is lost: after each message of the loop once."""
    monkeypatch.setattr(placing_rebuild, "SLICE_S", -1.0)
    monkeypatch.setattr(placing_rebuild, "SOME", 1)
    at, ended = 0, False
    while not ended:
        spec = PipelineSpec(partition="default", document=json.dumps({"stage": [{"policy": "easy"}]}))
        queues = (QueueSpec(name="default"), QueueSpec(name="batch", dispatch=Dispatch.PLACE))
        bench = Bench(ClusterSettings(queues=queues, pipelines=(spec,)))
        try:
            ended = _disturbed(bench, at)
        finally:
            bench.close()
        at += 3
    assert at > 30


def _disturbed(bench: Bench, at: int) -> bool:
    """True: the rebuild had ended before that message."""
    placer = bench.lead().placer
    nodes, lost = bench.starter("n1", "n2", "n3"), bench.starter("n4")
    numbers = [bench.submitter.submit(1, block=1, queue="batch", rigid=Rigid()) for _ in range(12)]
    bench.advance(1)
    where = {key.submission: (node, key) for node in nodes.nodes for key in bench.look.keys(paths.running_node(node))}
    placer.rebuild("as a test")
    for _ in range(at):
        message = bench.mailbox.get(0)
        if message is not None:
            message()
    is_over = placer.state is not None
    nodes.complete(*where[min(where)])
    bench.submitter.change(numbers[-1], gate=False, phase=Phase.CANCELLED, reason=Reason.USER_CANCEL)
    numbers.append(bench.submitter.submit(1, block=1, queue="batch", rigid=Rigid()))
    lost.close()
    for _ in range(12):
        bench.advance(15)
        running = {node: bench.look.keys(paths.running_node(node)) for node in nodes.nodes}
        assert max(map(len, running.values())) <= 2
        for node, keys in running.items():
            for key in keys:
                nodes.complete(node, key)
    bench.advance(15)
    ends = {number: [outcome.state for outcome in bench.look.outcomes(number).values()] for number in numbers}
    cancelled = numbers[-2]
    assert ends == {number: [State.CANCELLED if number == cancelled else State.COMPLETED] for number in numbers}
    return is_over
