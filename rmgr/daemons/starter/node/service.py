"""What a Starter reports about itself: answers to gRPC questions (live output, running tasks, its nodes), and metrics for Prometheus.

Questions come on threads of the server; the thread that owns the nodes answers whatever concerns them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from prometheus_client.metrics import Counter, Gauge, Histogram
from prometheus_client.registry import CollectorRegistry

from rmgr.adapters.access.auth import Caller
from rmgr.adapters.rpc.services import LogPiece, NodeStats, RunningTask
from rmgr.coord.decisions.rights import Person, check, may
from rmgr.coord.protocol import keys
from rmgr.daemons.service.serving import audited, person_of
from rmgr.errors import NotFound, Unavailable
from rmgr.model.base import MIB
from rmgr.model.block import place
from rmgr.model.states import State
from rmgr.procedures.bounded import MOST_LOG_PART_BYTES, rows_within
from rmgr.runtime import machine

T = TypeVar("T")

if TYPE_CHECKING:
    from rmgr.daemons.starter.node.loop import Starter

#: Pause between two looks at followed output, and its largest piece.
_POLL_S = 0.1
_PIECE_BYTES = 64 * 1024
#: How long to wait until the output of an attempt that has just ended is stored.
_SETTLE_S = 10.0
_BUCKETS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000, 3600, 10_800)

Reader = Callable[[int, str, int, int], tuple[bytes, int] | None]


@dataclass(frozen=True, slots=True)
class _Live:
    attempt: int
    seq: int
    read: Reader


@dataclass(frozen=True, slots=True)
class _EndedTask:
    attempt: int
    log: tuple[bytes, bytes]
    parts: tuple[int, int]


class NodeAnswering:
    """The `NodeAnswers` (`adapters/rpc/services.py`) of one Starter."""

    def __init__(self, starter: Starter, operators: Sequence[str] = ()) -> None:
        self._operators = tuple(operators)
        self._starter = starter
        self._shared = starter.shared

    # -- output ------------------------------------------------------------------------------------------------------------

    def logs(
        self,
        submission: int,
        index: int,
        *,
        attempt: int,
        stream: str,
        follow: bool,
        offsets: tuple[int, int],
        is_active: Callable[[], bool],
        caller: Caller | None = None,
    ) -> Iterator[LogPiece]:
        """Yields the output of an attempt; see `NodeAnswers.logs`."""
        self._check(person_of(caller, self._operators), submission, index)
        streams = [name for name in keys.STREAMS if stream in ("", name)]
        at = dict(zip(keys.STREAMS, offsets, strict=True))
        seen = 0
        ending_s: float | None = None
        while is_active():
            found = self._find(submission, index)
            if found is None or (attempt and found.attempt != attempt) or (seen and found.attempt != seen):
                if not seen:
                    raise NotFound(f"task {submission}_{index} does not run on this node", hint=f"rmgr logs {submission}_{index}")
                # The attempt has ended, and its output is still on the way to the store (or there never was any).
                if ending_s is None:
                    ending_s = machine.monotonic() + (_SETTLE_S if found is None and self._is_here(submission, index) else 0.0)
                if machine.monotonic() >= ending_s:
                    yield LogPiece(stream="", data=b"", offset=0, attempt=seen, ended=True)
                    return
                machine.sleep(_POLL_S)
                continue
            seen = found.attempt
            if isinstance(found, _EndedTask):
                yield from self._rest(submission, index, found, streams, at)
                yield LogPiece(stream="", data=b"", offset=0, attempt=seen, ended=True)
                return
            grew = False
            for name in streams:
                while read := found.read(found.seq, name, at[name], _PIECE_BYTES):
                    data, following = read
                    if not data:
                        break
                    grew = True
                    # The line that marks a gap is shorter than the gap; counted back from `following`, the piece ends where the reader must
                    # go on.
                    offset = following - len(data)
                    yield LogPiece(stream=name, data=data, offset=offset, attempt=seen, time_us=machine.wall_us())
                    at[name] = following
            if not follow:
                yield LogPiece(stream="", data=b"", offset=0, attempt=seen, ended=False)
                return
            if not grew:
                machine.sleep(_POLL_S)

    def _rest(self, submission: int, index: int, ended: _EndedTask, streams: list[str], at: dict[str, int]) -> Iterator[LogPiece]:
        """Yields the output of an ended attempt beyond the offsets: parts from the store, then the inline rest."""
        for number, name in enumerate(keys.STREAMS):
            if name not in streams:
                continue
            for placed in place(self._stored_parts(submission, index, ended, number)):
                if fresh := placed.fresh(at[name]):
                    offset = placed.end - len(fresh)
                    yield LogPiece(stream=name, data=fresh, offset=offset, attempt=ended.attempt, time_us=machine.wall_us())

    def _stored_parts(self, submission: int, index: int, ended: _EndedTask, number: int) -> Iterator[bytes]:
        for part in range(ended.parts[number]):
            row = keys.log(submission, index, ended.attempt, keys.STREAMS[number], part)
            yield rows_within(self._shared.io.store, [row], MOST_LOG_PART_BYTES).get(row, b"")
        yield ended.log[number]

    def _find(self, submission: int, index: int) -> _Live | _EndedTask | None:
        return self._ask(lambda: self._look(submission, index))

    def _look(self, submission: int, index: int) -> _Live | _EndedTask | None:
        for agent in self._starter.agents.values():
            for lane in agent.lanes:
                seq = lane.running_seq
                block, running = lane.tasks[seq]
                if running == index and block.key.submission == submission:
                    return _Live(block.key.attempt, seq, lane.runs_by.live_output)
            ended = agent.logs.recent.get((submission, index))
            if ended is not None:
                return _EndedTask(*ended)
        return None

    def _is_here(self, submission: int, index: int) -> bool:
        def look() -> bool:
            return any(
                block.key.submission == submission and block.key.first <= index < block.key.end and block.writing > 0
                for agent in self._starter.agents.values()
                for block in agent.blocks.values()
            )

        return self._ask(look)

    def _check(self, person: Person, submission: int, index: int) -> None:
        """Raises PermissionDenied or NotFound unless the task is known to be the caller's."""
        if person.is_free:
            return
        owner = self._ask(lambda: next((agent.owner_of(submission) for agent in self._starter.agents.values()), None))
        if owner is None:
            raise NotFound(f"task {submission}_{index} does not run on this node", hint=f"rmgr logs {submission}_{index}")
        with audited(self._shared.log, person, "logs", str(submission)):
            check(person, submission, owner)

    def _ask(self, question: Callable[[], T]) -> T:
        try:
            return self._starter.ask(question)
        except TimeoutError:
            raise Unavailable("the Starter is busy or registering", hint="try again in a moment") from None

    # -- what runs -----------------------------------------------------------------------------------------------------------

    def running(self, submission: int, *, caller: Caller | None = None) -> list[RunningTask]:
        """Returns the running tasks that the caller may see, of one submission or of all (0)."""
        person = person_of(caller, self._operators)

        def look() -> list[RunningTask]:
            now_us, now_s = machine.wall_us(), machine.monotonic()
            found = []
            for agent in self._starter.agents.values():
                for lane in agent.lanes:
                    block, index = lane.tasks[lane.running_seq]
                    if submission in (0, block.key.submission) and may(person, block.info.record.user):
                        found.append(
                            RunningTask(
                                submission=block.key.submission,
                                index=index,
                                attempt=block.key.attempt,
                                node=agent.name,
                                started_us=now_us - int((now_s - lane.since_s) * 1e6),
                                cores=agent.lanes.size_of(block)[0],
                                memory_bytes=block.key.memory_mib * MIB,
                                pid=lane.runs_by.pid,
                            )
                        )
            return found

        return self._ask(look)

    def incarnation_of(self, node: str) -> int:
        """See `NodeAnswers.incarnation_of`. It does not wait for the owner's thread: its round trips measure the clocks of gangs."""
        agent = self._starter.agents.get(node)
        if agent is None:
            raise NotFound(f"node {node} is not served here")
        return agent.incarnation

    def stats(self) -> list[NodeStats]:
        """Returns one entry for each virtual node."""
        load, free, spooled = os.getloadavg()[0], self._shared.disk.free_bytes, self._shared.io.pending_bytes
        note = self._shared.store_note()

        def look() -> list[NodeStats]:
            return [
                NodeStats(
                    node=agent.name,
                    cores_used=agent.lanes.cores - agent.lanes.free_cores,
                    memory_used_bytes=(agent.lanes.memory_mib - agent.lanes.free_memory_mib) * MIB,
                    running=sum(1 for _ in agent.lanes) + sum(hold.is_ready for hold in agent.jobs.holds),
                    load=load,
                    disk_free_bytes=free,
                    spooled_bytes=spooled,
                    reason="; ".join([*agent.drains.values(), *([note] if note else [])]),
                    resources_used={name: has - agent.lanes.free_of(name) for name, has in agent.lanes.resources.items()},
                    freezer=agent.runner.freezer,
                    clock_error_us=agent.jobs.gangs.clock_error_us(),
                    switches=agent.jobs.gangs.switches,
                    late_switches=agent.jobs.gangs.late_switches,
                )
                for agent in self._starter.agents.values()
            ]

        return self._ask(look)


# -- metrics ---------------------------------------------------------------------------------------------------------------


class StarterMetrics:
    """Metrics of one Starter process, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        registry = self.registry
        self.tasks_completed = Counter("rmgr_starter_tasks_completed", "attempts that ended, by how", ["state"], registry=registry)
        self.task_seconds = Histogram("rmgr_starter_task_seconds", "run time of attempts", buckets=_BUCKETS, registry=registry)
        self.outcomes_committed = Counter("rmgr_starter_outcomes_committed", "final outcomes committed", registry=registry)
        self.failures_committed = Counter(
            "rmgr_starter_failures_committed", "failed attempts committed that may run again", registry=registry
        )
        self.claims = Counter("rmgr_starter_claims", "blocks claimed", registry=registry)
        self.claim_conflicts = Counter("rmgr_starter_claim_conflicts", "claims that somebody else or a gate forestalled", registry=registry)
        self.given_back = Counter("rmgr_starter_tasks_given_back", "tasks split off or returned unstarted", registry=registry)
        self.fenced_writes = Counter("rmgr_starter_fenced_writes", "commits refused because the node was fenced", registry=registry)
        self.ambiguous_commits = Counter("rmgr_starter_ambiguous_commits", "commits whose answer was lost and read back", registry=registry)
        self.lease_kills = Counter("rmgr_starter_lease_kills", "exclusive work killed because contact was lost", registry=registry)
        self.registrations = Counter("rmgr_starter_registrations", "incarnations registered by this process", registry=registry)
        self.resyncs = Counter("rmgr_starter_resyncs", "blocks read again because a commit met something unexpected", registry=registry)
        self.surprises = Counter("rmgr_starter_surprises", "unusual things that slots reported", ["kind"], registry=registry)
        self.checkpoints = Counter("rmgr_starter_checkpoints", "checkpoints, by what became of them", ["outcome"], registry=registry)
        self.slots_busy = Gauge("rmgr_starter_slots_busy", "cores in use", ["node"], registry=registry)
        self.spooled_bytes = Gauge("rmgr_starter_spooled_bytes", "results that wait for the data store", registry=registry)
        self.disk_bytes = Gauge("rmgr_starter_disk_bytes", "size of the disk that has the work directory", registry=registry)
        self.disk_free_bytes = Gauge("rmgr_starter_disk_free_bytes", "bytes of it that are free", registry=registry)
        self.staged_bytes = Gauge("rmgr_starter_staged_bytes", "disk that uploads and staged files take", registry=registry)
        held = "memory of values of keyed tasks: read ahead, or on their way to the data store"
        self.values_bytes = Gauge("rmgr_starter_values_bytes", held, registry=registry)
        self.gang_switches = Counter("rmgr_gang_switches", "boundaries at which parts of gangs stop or go on", registry=registry)
        late = "boundaries at which a part did not stop at once, or ran out of its turn"
        self.gang_late = Counter("rmgr_gang_late_switches", late, registry=registry)
        self.gang_out_of_turn = Counter("rmgr_gang_out_of_turn_seconds", "for how long parts ran out of their turn", registry=registry)
        self.gang_clock_error = Gauge("rmgr_gang_clock_error_seconds", "error of the clock by which slots are counted", registry=registry)
        self.loop_errors = Counter("rmgr_starter_loop_errors", "messages whose handling raised (always 0)", registry=registry)
        self.pass_seconds = Histogram("rmgr_starter_pass_seconds", "time of one turn of the loop", registry=registry)
        self._by_state = {state: self.tasks_completed.labels(state.value) for state in State if state.is_final}
        self._again = self.tasks_completed.labels("FAILED_AGAIN")

    def ended(self, state: State | None, count: int, seconds: float) -> None:
        """Counts `count` attempts that ended after `seconds` each; state None: they FAILED and may run again."""
        (self._by_state[state] if state is not None else self._again).inc(count)
        self.task_seconds.observe(seconds)

    def committed(self, outcomes: int, failures: int) -> None:
        """Counts a committed COMPLETE."""
        self.outcomes_committed.inc(outcomes)
        self.failures_committed.inc(failures)

    def count(self, event: str) -> None:
        """Counts an event of the committer."""
        (self.fenced_writes if event == "fenced_writes" else self.ambiguous_commits).inc()
