"""Nodes that close and open while jobs come and go: what is kept up to date is what would be derived from the records."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from rmgr.sched.catalogue import policy_named
from rmgr.sched.engine import run_pass
from rmgr.sched.job import Job, Node
from rmgr.sched.policy import Cause, Stage
from rmgr.sched.state import ClusterState


@pytest.mark.parametrize("cores", [1, 3])
@pytest.mark.parametrize("policy", ["first_fit", "easy", "conservative"])
def test_closing_and_opening_nodes_keeps_the_pool_that_the_records_make(policy: str, cores: int) -> None:
    chance = random.Random(11)
    nodes = [Node(id=n, cores=cores) for n in range(12)]
    state = ClusterState(nodes)
    pipeline = (Stage(policy_named(policy)),)
    started = 0
    for now in range(400):
        for run in list(state.partitions["default"].running.values()):
            if chance.random() < 0.15:
                state.job_ended(run.job.id)
        if chance.random() < 0.6:
            size = chance.randint(1, 5 * cores)
            state.job_submitted(Job(id=now, submit_us=now, processes=size, limit_us=chance.randint(1, 20)))
        node = state.partitions["default"].nodes[chance.randrange(12)]
        state.node_changed(replace(node, closed=chance.random() < 0.4))
        again = ClusterState.restored(state.snapshot())
        ours, theirs = state.partitions["default"], again.partitions["default"]
        assert ours.endings == theirs.endings
        assert ours.pool.free == theirs.pool.free
        plans = [run_pass(each, frozenset({Cause.TIMER}), now=now, seed=0, pipeline=pipeline) for each in (state, again)]
        assert plans[0] == plans[1]
        state.apply(plans[0], now)
        started += len(plans[0].decisions)
    assert started > 100
