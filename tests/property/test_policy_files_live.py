"""Every shipped policy file decides the same in a live leader and in the simulator: starts, nodes and order.

The simulator plays a workload on the machine of the file, and its log says when each job comes and ends. The same machine is published to a
leader on a tree in memory, and jobs come and end at the same times.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from rmgr.adapters.policy_files import load, read_toml
from rmgr.cli.control.settings import text_of
from rmgr.coord.ops import work as ops
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.records import decode_block, decode_record
from rmgr.daemons.leader.placement.pipeline import checked
from rmgr.model.base import Capacity, NodeAttributes, Request
from rmgr.model.block import BlockKey
from rmgr.model.node import InboxOrder, NodeRecord, NodeState, OrderKind, StarterEntry
from rmgr.model.queue import ClusterSettings, Dispatch, PipelineSpec, QueueSpec
from rmgr.model.submission import Rigid
from rmgr.sched.job import Node
from rmgr.sim.runs.experiment import Experiment, carry_out
from rmgr.sim.workload.jobs import Workload, WorkloadJob
from tests.harness.leader_bench import Bench, Starter, committed
from tests.places import ROOT
from tests.property.test_placing_failover import stop

FILES = sorted((ROOT / "deploy" / "policies").iterdir())
#: The bench's clock begins here.
BEGAN_S = 2000
_NODES_A_STARTER = 64


def drawn(file: str, processors: int) -> Workload:
    """Jobs for that file: enough to fill its machine twice, with users who reach its limits.

    No two things happen in one second, and no job starts again in the very pass that moves it: live, its nodes give it back first.
    """
    chance = Random(file)
    sizes = {
        "easy_fair_share.toml": (8, 16, 30, 48, 90, 100),
        "grid_migration.toml": (90, 200, 400, 620),
        "hpc2500.toml": (4, 8, 32, 100, 128, 500),
    }[file]
    jobs: list[WorkloadJob] = []
    at_s = 0
    for number in range(1, 25 if file == "grid_migration.toml" else 46):
        debug = file == "easy_fair_share.toml" and number % 4 == 0
        processes = chance.choice((1, 2, 3)) if debug else chance.choice(sizes)
        threads = chance.choice((1, 2)) if file == "hpc2500.toml" and processes <= 8 else 1
        run_s = chance.randint(20, 120) if debug else chance.randint(100, 900)
        jobs.append(
            WorkloadJob(
                number=number, submit_us=at_s * 10**6, run_us=run_s * 10**6 + number * 7919, estimate_us=run_s * 2 * 10**6,
                processors=processes * threads, processes=processes, threads=threads, user=f"u{number % 3}",
                account=("physics", "chemistry", "")[number % 3], queue="debug" if debug else "",
            )
        )
        at_s += chance.randint(2, 60)
    return Workload(name="drawn", jobs=tuple(jobs), processors=processors)


@dataclass
class Instant:
    """What happens at one time, and what is decided then: job -> processes by node."""

    submitted: list[dict[str, Any]] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)
    started: dict[int, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    moved: list[int] = field(default_factory=list)


def simulated(path: Path) -> tuple[dict[int, Instant], tuple[Node, ...]]:
    """The schedule of the simulator by time (us), and its machine."""
    found = load(str(path), {})
    lines: list[str] = []
    experiment = Experiment(source="drawn", policy=str(path), configure=load)
    result = carry_out(experiment, drawn(path.name, sum(node.cores for node in found.nodes)), log=lines.append)
    assert result.faults == ()
    instants: dict[int, Instant] = defaultdict(Instant)
    for line in map(json.loads, "".join(lines).splitlines()):
        if "fact" in line and line["fact"] == "job_submitted":
            instants[line["at"]].submitted.append(line["job"])
        elif "fact" in line and line["fact"] == "job_ended":
            instants[line["at"]].ended.append(line["job_id"])
        for decision in line.get("decisions", ()):
            if decision["do"] == "start":
                spans = decision["placement"]
                shares = tuple((node, count) for first, last, count in spans for node in range(first, last + 1))
                instants[line["at"]].started[decision["job_id"]] = shares
            elif decision["do"] == "migrate":
                instants[line["at"]].moved.append(decision["job_id"])
    assert not any(set(instant.moved) & set(instant.started) for instant in instants.values())
    return dict(instants), found.nodes


class Machine(Starter):
    """Published nodes of a policy file's machine."""

    def __init__(self, bench: Bench, nodes: tuple[Node, ...]) -> None:
        self.described = {node.name: node for node in nodes}
        super().__init__(bench.connect(), *self.described)

    def register(self) -> None:
        records = [
            NodeRecord(
                node=name, incarnation=1, state=NodeState.UP, guid=self.guid,
                capacity=Capacity(cores=node.cores, memory_bytes=node.memory_bytes),
                attributes=NodeAttributes(partition=node.partition, site=node.site, speed=node.speed, features=node.features),
            )
            for name, node in self.described.items()
        ]
        entry = StarterEntry(guid=self.guid, nodes=self.nodes, endpoint="", host="h", pid=1)
        committed(self.coordinator, ops.register([(record, None) for record in records], entry))
        self.versions = dict.fromkeys(self.described, 0)


class Live:
    """The leader that places by the file, on the same machine."""

    def __init__(self, path: Path, nodes: tuple[Node, ...]) -> None:
        partitions = dict.fromkeys(node.partition for node in nodes)
        document = read_toml(path)
        document.pop("simulated", None)
        text = text_of(document, path.name)
        places = [QueueSpec(name=f"to-{partition}", partition=partition, dispatch=Dispatch.PLACE) for partition in partitions]
        if "debug" in partitions:
            places = [replace(queue, name="debug") if queue.partition == "debug" else queue for queue in places]
        settings = ClusterSettings(
            queues=(QueueSpec(name="default"), *places),
            pipelines=tuple(PipelineSpec(partition=partition, document=text, name=path.name) for partition in partitions),
        )
        for partition in partitions:
            assert checked(settings, partition).stages  # an operator may set it
        self.queue = places[0].name
        self.bench = Bench(settings)
        self.bench.now_s = float(BEGAN_S)
        chunks = [nodes[at : at + _NODES_A_STARTER] for at in range(0, len(nodes), _NODES_A_STARTER)]
        self.starters = {name: machine for machine in (Machine(self.bench, chunk) for chunk in chunks) for name in machine.nodes}
        self.names = [node.name for node in nodes]
        self.running: dict[int, tuple[str, BlockKey]] = {}
        self.bench.lead()
        self.bench.advance(1.0)

    def happen(self, at_us: int, instant: Instant) -> tuple[dict[int, tuple[tuple[int, int], ...]], list[int]]:
        """What is told, and what comes of it: (starts, jobs that were asked to move)."""
        self.bench.idle(BEGAN_S + 10 + at_us / 1e6 - self.bench.now_s)
        for number in instant.ended:
            node, key = self.running.pop(number)
            self.starters[node].complete(node, key)
        for job in instant.submitted:
            number = self.bench.submitter.submit(
                1, block=1, queue=job.get("queue") or self.queue, user=job.get("user", ""), account=job.get("account", ""),
                request=Request(time_limit_us=job["limit_us"], cores=job.get("threads", 1)),
                rigid=Rigid(processes=job.get("processes", 1), checkpoint=True), submitted_us=round(self.bench.now_s * 1e6),
            )
            assert number == job["id"]
        self.bench.advance(0.3)
        moved = self._obey()
        if moved:
            self.bench.advance(0.3)
        return self._begun(), moved

    def _obey(self) -> list[int]:
        moved = []
        for number, (node, key) in list(self.running.items()):
            for guid in self.bench.look.names(paths.inbox_node(node)):
                found = self.bench.outside.get(paths.inbox(node, guid)).result(60)
                assert found is not None
                order = decode_record(found.data, InboxOrder)
                if order.order is OrderKind.CHECKPOINT and order.submission == number:
                    stop(self.starters[node], node, key, guid, queue=self.queue)
                    del self.running[number]
                    moved.append(number)
        return sorted(moved)

    def _begun(self) -> dict[int, tuple[tuple[int, int], ...]]:
        begun = {}
        for node in self.names:
            for key in map(paths.parse_block, self.bench.tree.children(paths.running_node(node))):
                if key.submission not in self.running:
                    found = self.bench.outside.get(paths.running_block(node, key)).result(60)
                    assert found is not None
                    allocation = decode_block(found.data).allocation
                    assert allocation is not None
                    begun[key.submission] = tuple(sorted((self.names.index(name), count) for name, count in allocation.shares))
                    self.running[key.submission] = (node, key)
        return begun


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_policy_file_places_live_as_it_does_in_the_simulator(path: Path) -> None:
    instants, nodes = simulated(path)
    live = Live(path, nodes)
    waits = 0
    try:
        for at_us, instant in sorted(instants.items()):
            begun, moved = live.happen(at_us, instant)
            assert (begun, moved) == (instant.started, sorted(instant.moved)), f"at {at_us / 1e6:.0f} s"
            waits += len(instant.submitted) > len(instant.started)
        assert live.bench.leader is not None
        assert not live.bench.leader.placer.faults.counts
        assert waits > 5  # it is a schedule in which the policy mattered
        assert not live.running
    finally:
        live.bench.close()
