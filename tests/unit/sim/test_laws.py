"""The laws find defects: each defect planted in the scheduling core breaks one of them within a few hundred worlds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from rmgr.sched.capacity.nodes import NodePool
from rmgr.sched.capacity.units import UnitPool
from rmgr.sched.catalogue import policy_named
from rmgr.sched.draft import Draft
from rmgr.sched.job import Job, Node
from rmgr.sched.policies.searches import FITS, FirstFit
from rmgr.sched.policy import Stage
from rmgr.sched.queue_class import QueueClass
from rmgr.sched.records import Maintenance
from rmgr.sched.state import cluster
from rmgr.sched.state.partition import Partition
from rmgr.sched.view import View
from rmgr.sim.laws.check import Drawn, check, digest, tried
from rmgr.sim.laws.world import LawsJob, Outage, Seeded, SmallWorld, shrunk, smaller, world_of

CLASSES = (QueueClass(name="large", max_cpus=8, max_processes=8, max_threads=2, max_reservations=2, head_trigger=True),)
MOST = 400
SECOND = 1_000_000


def nothing(*_: object, **__: object) -> None:
    """In place of what matters."""


def without_notes(snap: cluster.Snapshot, *rest: Any) -> cluster.ClusterState:
    return RESTORED(replace(snap, notes=()), *rest)


def opened_late(self: Partition, windows: dict[int, Maintenance]) -> None:
    SET_WINDOWS(self, {number: window._replace(start_us=window.end_us - 1) for number, window in windows.items()})


def sized_unseen(self: Partition, node: Node) -> None:
    known = self.nodes.get(node.id)
    if known is None or known.cores == node.cores:
        SET_NODE(self, node)
    else:
        self.nodes[node.id] = node


def plan_from_memory(self: FirstFit, draft: Draft, causes: object) -> None:
    if next(CALLS) % 3:
        for job in draft.startable(draft.by_arrival()):
            draft.start(job.id, FITS)
    draft.leave_rest(FITS)


CALLS = count()
SET_WINDOWS = Partition.set_windows
SET_NODE = Partition.set_node
RESTORED = cluster.ClusterState.restored

#: What is broken -> (where, name, what stands there instead, policy that stumbles, laws that may break).
DEFECTS: dict[str, tuple[Any, str, Any, str, set[str]]] = {
    "nodes_are_given_twice": (NodePool, "change", nothing, "first_fit", {"capacity"}),
    "ranges_are_never_taken": (UnitPool, "take", nothing, "first_fit", {"capacity", "applies"}),
    "limits_are_forgotten": (View, "over_limits", lambda *_: None, "first_fit", {"permission"}),
    "windows_open_late": (Partition, "set_windows", opened_late, "fcfs", {"permission"}),
    "jobs_begin_when_they_come": (Partition, "why_never", lambda *_: None, "fcfs", {"served", "applies", "sound"}),
    "dependencies_are_forgotten": (cluster.ClusterState, "waits_on", lambda *_: None, "fcfs", {"permission"}),
    "a_fork_leaves_starts_behind": (View, "back", nothing, "first_fit", {"fork"}),
    "notes_are_not_restored": (cluster.ClusterState, "restored", without_notes, "migration", {"stateless"}),
    "held_cores_are_free_for_all": (NodePool, "take_share", nothing, "connection_reservation", {"capacity", "stateless", "applies"}),
    "a_policy_counts_its_calls": (FirstFit, "plan", plan_from_memory, "first_fit", {"pure", "stateless", "fork"}),
    "a_node_has_other_cores_and_nobody_counts": (Partition, "set_node", sized_unseen, "first_fit", {"stateless", "capacity", "applies"}),
    "nobody_says_why": (Draft, "leave_rest", nothing, "first_fit", {"explained"}),
}


@pytest.mark.parametrize(("where", "name", "instead", "policy", "laws"), DEFECTS.values(), ids=DEFECTS)
def test_a_planted_defect_breaks_a_law(
    monkeypatch: pytest.MonkeyPatch, where: Any, name: str, instead: Callable[..., Any], policy: str, laws: set[str]
) -> None:
    records = CLASSES if policy == "connection_reservation" else ()

    def make() -> tuple[Stage, ...]:
        return (Stage(policy_named(policy, records=records)),)

    monkeypatch.setattr(where, name, instead)
    results = (tried(world_of(Seeded(seed)), make) for seed in range(MOST))
    breach = next((result.breach for result in results if result.breach is not None), None)
    assert breach is not None
    assert breach.law in laws, breach.text


def test_the_same_seed_is_the_same_world_and_a_smaller_world_is_whole() -> None:
    assert world_of(Seeded(5)) == world_of(Seeded(5))
    assert len({repr(world_of(Seeded(seed))) for seed in range(50)}) == 50
    for seed in range(30):
        for world in smaller(world_of(Seeded(seed))):
            nodes = {node.id for node in world.nodes}
            jobs = {work.job.id for work in world.works}
            assert all(set(work.job.after) <= jobs for work in world.works)
            assert all(outage.node in nodes for outage in world.outages)
            assert {joining.node.partition for joining in world.joinings} <= {node.partition for node in world.nodes}
            assert all(set(window.plan.nodes) <= nodes for window in world.windows)
            assert all(work.run_us <= work.job.planned_us for work in world.works)


def test_nodes_join_and_come_back_with_other_cores() -> None:
    worlds = [world_of(Seeded(seed)) for seed in range(400)]
    joinings = [joining for world in worlds for joining in world.joinings]
    assert {5} < {joining.node.id for joining in joinings}
    assert all(len({node.id for node in world.every_node}) == len(world.every_node) for world in worlds)
    assert {outage.loses for world in worlds for outage in world.outages if outage.cores} == {True, False}


def test_who_waits_for_a_job_that_no_node_holds_any_longer_is_not_starved() -> None:
    node, jobs = Node(id=0, cores=2), (Job(id=1, submit_us=0, processes=2, limit_us=9), Job(id=2, submit_us=0, limit_us=9, after=(1,)))
    world = SmallWorld(
        nodes=(node,), works=tuple(LawsJob(job=job, run_us=5) for job in jobs),
        outages=(Outage(at_us=2, until_us=4, node=0, loses=True, cores=1),),
    )
    assert tried(world, lambda: (Stage(policy_named("fcfs")),)).breach is None


def test_an_exclusive_job_of_a_gang_keeps_its_leaves_when_its_node_comes_back_with_more_cores() -> None:
    world = SmallWorld(
        nodes=(Node(id=0, cores=1),),
        works=tuple(LawsJob(job=Job(id=n, submit_us=n * SECOND, limit_us=9 * SECOND, exclusive=n == 1), run_us=5 * SECOND) for n in (1, 2)),
        outages=(Outage(at_us=2 * SECOND, until_us=3 * SECOND, node=0, loses=False, cores=2),),
    )
    result = tried(world, lambda: (Stage(policy_named("dqt", {"quantum": "1s"})),))
    assert result.breach is None, result.breach.text


def test_shrinking_ends_with_nothing_to_spare() -> None:
    def breaks(world: SmallWorld) -> bool:
        return sum(work.job.processes for work in world.works) >= 3

    found = shrunk(world_of(Seeded(4)), breaks)
    assert sum(work.job.processes for work in found.works) == 3
    assert len(found.nodes) == 1


def test_a_digest_tells_pipelines_apart_and_counts_every_world() -> None:
    def make(name: str) -> Callable[[], tuple[Stage, ...]]:
        return lambda: (Stage(policy_named(name)),)

    assert digest(make("fcfs"), worlds=3) == digest(make("fcfs"), worlds=3) != digest(make("first_fit"), worlds=3)
    report = check(make("easy"), worlds=10, seed=3, drawn=Drawn(partitions=("batch", "debug")))
    assert report.is_lawful
    assert {finding.worlds for finding in report.findings} == {10, 3}
