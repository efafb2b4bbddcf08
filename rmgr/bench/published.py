"""Passes of a live leader: 1,000 nodes of 16 cores published in ZooKeeper, full, and 10,000 jobs that wait; jobs end and come by znodes.

The nodes are silent Starters (a record and a session each, nothing runs): the leader reads lists, makes its state, passes, and commits as
it always does. An event is the end of one job (its block goes, as by COMPLETE) or the submission of one. Times of passes and of turns of
the leader's loop are the leader's own, from its metrics: a pass has a thread of its own, and the longest turn says how long the
loop, which keeps nodes alive and answers, was not there. All processes share the machine: its load is in the figures.
"""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, replace

from rmgr.bench.jobs import AwaitedEnds
from rmgr.bench.load.processes import cpu_s
from rmgr.bench.measuring import MeasuringPlan, Row, connected, row, scratch
from rmgr.bench.scale import silent
from rmgr.client.ports import TaskSpec
from rmgr.client.specs import Options, draft_of
from rmgr.client.submission.engine import Engine
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Committed, Delete, Gone, Holds, Multi, Set
from rmgr.coord.protocol.records import encode_record
from rmgr.daemons.leader.placement.pipeline import named
from rmgr.dev.cluster import DevCluster
from rmgr.errors import Unavailable
from rmgr.model.tasks.submission import Command, Rigid, Work
from rmgr.procedures.bootstrap import read_settings

_NODES, _CORES, _PENDING, _SUBMISSIONS = 1_000, 16, 10_000, 20
_POLICIES = ("first_fit", "easy")
_EVENTS = 30
_SESSION_S, _PATIENCE_S, _READ_S = 60.0, 180.0, 30.0
_PARTITION, _QUEUE = "default", "batch"
_HOUR_S = 3600
_POLL_S = 0.02


def published(plan: MeasuringPlan) -> list[Row]:
    """For each policy the pass after an event, the longest turn of the loop meanwhile, and the leader's processor time an event."""
    nodes, pending = plan.count(_NODES), plan.count(_PENDING)
    setup = f"1 ZooKeeper, a leader, {nodes:,} nodes of {_CORES} cores published, full; {pending:,} jobs wait"
    with scratch() as directory:
        plan.progress(f"starting {nodes} silent Starters")
        with (
            DevCluster(directory / "cluster", nodes=0, watchdogs=1, session_timeout_s=_SESSION_S, secured=False) as cluster,
            silent(cluster, directory, "n", nodes, cores=_CORES, session_s=_SESSION_S) as starters,
        ):
            starters.told("ready")
            with connected(cluster) as connection:
                assert isinstance(connection.submitter, Engine)
                live = _Live(cluster, connection.submitter)
                plan.progress(f"placing {nodes} jobs that fill the nodes, then {pending} that wait")
                live.submit(nodes, processes=_CORES, hours=2)
                live.until(lambda told: told.placed >= nodes, "the nodes are full")
                for number in range(_SUBMISSIONS):
                    live.submit(pending // _SUBMISSIONS, processes=1 + number % _CORES, hours=1 + number % 3)
                live.until(lambda told: told.waiting >= pending - _SUBMISSIONS, "all jobs wait")
                rows: list[Row] = []
                for policy in _POLICIES:
                    plan.progress(f"{policy}: {_EVENTS} events")
                    live.set_policy(policy)
                    rows += live.measured(policy, setup)
                return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class _Told:
    """Counts and seconds since the leader's start. turns: of its loop, how many took at most so many seconds."""

    placed: float
    waiting: float
    passes: float
    pass_s: float
    turns: dict[float, float]


class _Live:
    def __init__(self, cluster: DevCluster, engine: Engine) -> None:
        self._cluster = cluster
        self._engine = engine
        line = next(line for line in cluster.log_file("w1").read_text().split("\n") if '"watchdog_listens"' in line)
        self._metrics = f"http://{json.loads(line)['address']}/metrics"

    def submit(self, count: int, *, processes: int, hours: int) -> None:
        """Jobs of one submission."""
        rigid = Rigid(processes=processes)
        draft = draft_of(
            Options(queue=_QUEUE, name="bench", time=hours * _HOUR_S), work=Work.COMMAND, command=Command(argv=("/bin/true",)), rigid=rigid
        )
        handle = self._engine.open(draft, AwaitedEnds(count), timeout_s=_READ_S)
        handle.add(TaskSpec(), [b""] * count)
        handle.complete()
        handle.flush(_PATIENCE_S)

    def set_policy(self, policy: str) -> None:
        """From the next pass on; waits for that."""
        coordinator = self._cluster.coordinator
        found = coordinator.get(paths.CONFIG).result(_READ_S)
        assert found is not None
        settings = replace(read_settings(coordinator), pipelines=(named(_PARTITION, policy, {}),))
        before = self.told().passes
        data = encode_record(settings)
        self._commit(Multi(name="SETTINGS", ops=(Set(paths.CONFIG, data, found.version),), proof=Holds(paths.CONFIG, data)))
        self.until(lambda told: told.passes > before, "the policy has passed")

    def measured(self, policy: str, setup: str) -> list[Row]:
        """Events one after another, each when the pass after the one before is over."""
        leader = self._cluster.process("w1").pid
        began, began_cpu_s = self.told(), cpu_s([leader])
        times: list[float] = []
        for number in range(_EVENTS):
            before = self.told()
            if number % 2:
                self.submit(1, processes=1 + number % _CORES, hours=1)
            else:
                self._end(number)
            after = self.until(lambda told, before=before: told.passes > before.passes, "a pass")  # type: ignore[misc]
            times.append((after.pass_s - before.pass_s) / (after.passes - before.passes) * 1e3)
        ended = self.told()
        turns = {bound: ended.turns[bound] - began.turns[bound] for bound in ended.turns}
        longest_ms = 1e3 * min((bound for bound, count in turns.items() if count == max(turns.values())), default=0.0)
        per_event_ms = (cpu_s([leader]) - began_cpu_s) / _EVENTS * 1e3
        return [
            row("rmgr", setup, f"{policy}: a pass after an event", "ms", times, passes=ended.passes - began.passes),
            row("rmgr", setup, f"{policy}: longest turn of the leader's loop, below", "ms", [longest_ms]),
            row("rmgr", setup, f"{policy}: processor of the leader, all of it", "ms/event", [per_event_ms]),
        ]

    def _end(self, number: int) -> None:
        """A job that runs on the node of that number has ended."""
        zk = self._cluster.coordinator
        for at in range(number, number + 200):
            node = f"n{at}"
            names = zk.children(paths.running_node(node)).result(_READ_S)
            if names:
                path = f"{paths.running_node(node)}/{names[0]}"
                self._commit(Multi(name="END", ops=(Delete(path),), proof=Gone(path)))
                return
        raise Unavailable("no job runs")

    def _commit(self, multi: Multi) -> None:
        outcome = self._cluster.coordinator.commit(multi).result(_READ_S)
        if not isinstance(outcome, Committed):
            raise Unavailable(f"{multi.name}: {outcome}")

    def told(self) -> _Told:
        """What the leader says."""
        with urllib.request.urlopen(self._metrics, timeout=_READ_S) as answer:  # noqa: S310 - its own address
            lines = [line.rpartition(" ") for line in answer.read().decode().splitlines() if not line.startswith("#")]
        values = {name: float(value) for name, _, value in lines}
        turn = 'rmgr_leader_pass_seconds_bucket{le="'
        return _Told(
            placed=values["rmgr_leader_placed_jobs_total"],
            waiting=values["rmgr_leader_waiting_jobs"],
            passes=values["rmgr_leader_placing_seconds_count"],
            pass_s=values["rmgr_leader_placing_seconds_sum"],
            turns={float(name.removeprefix(turn).rstrip('"}')): value for name, value in values.items() if name.startswith(turn)},
        )

    def until(self, condition: Callable[[_Told], bool], what: str) -> _Told:
        """Raises: Unavailable."""
        end_s = time.monotonic() + _PATIENCE_S
        while not condition(told := self.told()):
            if time.monotonic() > end_s:
                raise Unavailable(f"not within {_PATIENCE_S:g} s: {what}; {told}")
            time.sleep(_POLL_S)
        return told
