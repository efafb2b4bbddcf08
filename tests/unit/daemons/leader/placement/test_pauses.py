"""Jobs that a policy stops in place on a live cluster: they go on there, under other leaders, and when their policy has left."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from rmgr.daemons.leader.placement import pipeline
from rmgr.daemons.leader.placement.pipeline import configuration
from rmgr.model.cluster.node import OrderKind
from rmgr.model.cluster.queue import ClusterSettings
from rmgr.sched.draft import Draft
from rmgr.sched.pipeline import Configuration
from rmgr.sched.plan import Accepted, Why
from rmgr.sched.policy import Cause, Stage
from rmgr.sched.state.cluster import ClusterState
from tests.unit.daemons.leader.placement.test_moves import Cluster, cluster

__all__ = ["cluster"]


class Pausing:
    """Whoever waits gets the nodes of the first that runs; who was stopped goes on when there is room again."""

    name = "pausing"

    def plan(self, draft: Draft, causes: frozenset[Cause]) -> None:
        for job in list(draft.by_arrival()):
            if not isinstance(draft.start(job.id, Why("x", "fits")), Accepted):
                draft.suspend(next(draft.running()).job.id, Why("x", "gives way"))
                draft.start(job.id, Why("x", "fits now"))
        for stopped in draft.suspended():
            draft.resume(stopped.run.job.id, Why("x", "goes on"))


@pytest.fixture
def pausing(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], ClusterState]:
    """Lets `Pausing` place from now on, or not any more; also under a leader that has just taken over."""
    stage = Stage(Pausing(), ("default",))

    def configured_so(settings: ClusterSettings, partition: str) -> Configuration:
        found = configuration(settings, partition)
        return found if cluster.policy is None else replace(found, stages=(stage,), policies=("pausing",))

    monkeypatch.setattr(pipeline, "configuration", configured_so)

    def lead(serves: bool = True) -> ClusterState:
        cluster.policy = stage if serves else None
        assert cluster.bench.leader is not None
        placer = cluster.bench.leader.placer
        placer.settings_changed()
        cluster.bench.advance(1)
        assert placer.state is not None
        return placer.state

    return lead


@pytest.mark.parametrize("how", ["policy set", "policy set, then a fail-over", "a fail-over, and its cores are free"])
def test_a_job_goes_on_whose_policy_has_left_since_it_stopped_it(
    cluster: Cluster, pausing: Callable[[bool], ClusterState], how: str
) -> None:
    """At once where its cores are free, else as soon as they are, before whoever waits."""
    cluster.is_one_pipeline = False
    pausing(True)
    first, _, _, fourth = (cluster.submit(2) for _ in range(4))
    assert [order.order for _, _, order in cluster.orders()] == [OrderKind.SUSPEND]
    if "free" in how:
        assert cluster.bench.leader is not None
        cluster.bench.leader.close()
        cluster.end(fourth)
        cluster.policy = None
        cluster.another_leader()
        state = pausing(False)
    else:
        state = pausing(False)
        if "fail-over" in how:
            cluster.another_leader()
            state = pausing(False)
        assert [stopped.run.job.id >> 20 for stopped in state.snapshot().suspended] == [first]
        fifth = cluster.submit(2)
        cluster.end(fourth)
        assert cluster.where(fifth) == {}
        state = pausing(False)
    assert {order.order for _, _, order in cluster.orders()} == {OrderKind.SUSPEND, OrderKind.RESUME}
    snapshot = state.snapshot()
    assert (snapshot.suspended, [run.job.id >> 20 for run in snapshot.running]) == ((), [1, 2, 3])


@pytest.mark.parametrize("fails_over", [False, True])
def test_a_suspended_job_keeps_its_place_gives_its_cores_and_goes_on_under_another_leader(
    cluster: Cluster, pausing: Callable[..., ClusterState], fails_over: bool
) -> None:
    lead = pausing
    lead()
    first, _, _, fourth = (cluster.submit(2) for _ in range(4))
    assert cluster.where(first) == cluster.where(fourth) == {"n1": 2}
    assert [order.order for _, _, order in cluster.orders()] == [OrderKind.SUSPEND]
    before = lead().snapshot()
    if fails_over:
        cluster.another_leader()
        assert lead().snapshot().suspended == before.suspended
    cluster.end(fourth)
    assert {order.order for _, _, order in cluster.orders()} == {OrderKind.SUSPEND, OrderKind.RESUME}
    runs = lead().snapshot()
    assert (runs.suspended, [run.job.id >> 20 for run in runs.running]) == ((), [1, 2, 3])
    if fails_over:
        cluster.another_leader()
        assert lead().snapshot().running == runs.running
