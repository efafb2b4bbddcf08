"""A leader on a tree in memory with a clock that tests move, and the other parts of a cluster played by the test.

All runs in one thread and without delay: `run` handles messages until none is left, `advance` moves the clock from timer to
timer. `Starter` and `Submitter` commit the real multis of `coord/ops/work.py`, in memory or on ZooKeeper.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
import structlog

from rmgr.coord.decisions.liveness import STOPPED
from rmgr.coord.ops import membership
from rmgr.coord.ops import work as ops
from rmgr.coord.ops.leader import epoch_version, stand, take_over
from rmgr.coord.protocol import keys, paths
from rmgr.coord.protocol.multi import Committed, Multi, Outcome
from rmgr.coord.protocol.ports import Coordinator
from rmgr.coord.protocol.records import decode_block, decode_failed, decode_fragment, decode_record, encode_record
from rmgr.daemons.leader import use
from rmgr.daemons.leader.leader import Leader
from rmgr.daemons.leader.term import LeaderMetrics, Term
from rmgr.model.base import Capacity, NodeAttributes
from rmgr.model.block import NO_SEQ, BlockData, BlockKey, FailedRange, Fragment
from rmgr.model.block import Outcome as TaskOutcome
from rmgr.model.node import EpochRecord, InboxOrder, NodeRecord, NodeState, OrderKind, StarterEntry, SubmitterEntry
from rmgr.model.queue import ClusterSettings, Dispatch, PipelineSpec, QueueSpec
from rmgr.model.submission import Phase, Submission, Tail, Work
from rmgr.procedures.bootstrap import bootstrap
from rmgr.runtime.gang_clock import ClockReader, ClockReading
from rmgr.runtime.mailbox import Mailbox
from rmgr.runtime.zookeeper_clock import ZooKeeperClock
from tests.harness.memory import MemoryCoordinator
from tests.harness.memory_store import MemoryStore
from tests.harness.memory_tree import MemoryTree
from tests.harness.metric_rows import value_of

R = TypeVar("R")

_guids = itertools.count(1)


def committed(coordinator: Coordinator, multi: Multi) -> Committed:
    """Commits a multi, which must succeed."""
    outcome = coordinator.commit(multi).result(60)
    assert isinstance(outcome, Committed), f"{multi.name}: {outcome}"
    return outcome


def placing(*stages: str | dict[str, object], **more: object) -> ClusterSettings:
    """Queue batch, whose jobs the leader places by these policies. more: other tables of the pipeline's file."""
    document = json.dumps({"stage": [{"policy": one} if isinstance(one, str) else one for one in stages], **more})
    queues = (QueueSpec(name="default"), QueueSpec(name="batch", dispatch=Dispatch.PLACE))
    return ClusterSettings(queues=queues, pipelines=(PipelineSpec(partition="default", document=document),) if stages else ())


class Inline(Executor):
    """An executor that runs each call at once in the caller's thread."""

    def submit(self, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(call(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


class Starter:
    """A Starter without work: registers nodes, claims and completes blocks when told to."""

    def __init__(
        self,
        coordinator: Coordinator,
        *nodes: str,
        key_id: str = "",
        partition: str = "default",
        cores: int = 2,
        freezer: str = "",
        memory_bytes: int = 0,
    ) -> None:
        self.memory_bytes = memory_bytes
        self.partition = partition
        self.freezer = freezer
        self.cores = cores
        self.coordinator = coordinator
        self.nodes = nodes
        self.key_id = key_id
        self.guid = f"s{next(_guids)}"
        self.versions: dict[str, int] = {}
        self.register()

    def register(self) -> None:
        records: list[tuple[NodeRecord, int | None]] = []
        for name in self.nodes:
            found = self.coordinator.get(paths.node(name)).result(60)
            old = None if found is None else decode_record(found.data, NodeRecord)
            record = NodeRecord(
                node=name, incarnation=1 if old is None else old.incarnation + 1, state=NodeState.UP, guid=self.guid,
                capacity=Capacity(cores=self.cores, memory_bytes=self.memory_bytes), attributes=NodeAttributes(partition=self.partition),
                key_id=self.key_id, freezer=self.freezer, endpoint=f"{name}:1" if self.freezer else "",
            )
            records.append((record, None if found is None else found.version))
        entry = StarterEntry(guid=self.guid, nodes=self.nodes, endpoint="", host="h", pid=1)
        committed(self.coordinator, ops.register(records, entry))
        for record, version in records:
            self.versions[record.node] = 0 if version is None else version + 1

    def claim(self, node: str, queue: str = "default", take: int = 0) -> BlockKey:
        """Claims the first waiting block of the queue."""
        names = self.coordinator.children(paths.pending(queue)).result(60) or []
        key = min((paths.parse_block(name) for name in names), key=BlockKey.sort_key)
        found = self.coordinator.get(paths.pending_block(queue, key)).result(60)
        assert found is not None
        multi, mine = ops.claim(node, self.versions[node], queue, key, decode_block(found.data), found.version, take=take or key.count)
        committed(self.coordinator, multi)
        return mine

    def claim_any(self, node: str, queue: str = "default") -> BlockKey | None:
        """Claims the first waiting block whose submission has a gate; returns None if there is none."""
        names = self.coordinator.children(paths.pending(queue)).result(60) or []
        for key in sorted((paths.parse_block(name) for name in names), key=BlockKey.sort_key):
            found = self.coordinator.get(paths.pending_block(queue, key)).result(60)
            if found is not None:
                multi, mine = ops.claim(node, self.versions[node], queue, key, decode_block(found.data), found.version, take=key.count)
                if isinstance(self.coordinator.commit(multi).result(60), Committed):
                    return mine
        return None

    def complete(
        self,
        node: str,
        key: BlockKey,
        indices: Sequence[int] | None = None,
        *,
        base_us: int = 1_000_000,
        elapsed_us: int = 5,
        **fields: Any,
    ) -> Outcome:
        """Commits COMPLETE for some indices (default: all that are left). base_us: 0 = none of the tasks began."""
        found = self.coordinator.get(paths.running_block(node, key)).result(60)
        assert found is not None
        data = decode_block(found.data)
        todo = [i for i in range(key.first, key.end) if not data.done >> (i - key.first) & 1] if indices is None else list(indices)
        mask = data.done
        for index in todo:
            mask |= 1 << (index - key.first)
        fragment = Fragment(
            node=node, attempt=key.attempt, base_us=base_us,
            outcomes=tuple(TaskOutcome(index=index, elapsed_us=elapsed_us, **fields) for index in todo),
        )
        new = _struct_replace(data, done=mask, stamp=f"c{next(_guids)}")
        return self.coordinator.commit(ops.complete(node, self.versions[node], key, new, found.version, fragment=fragment)).result(60)

    def fail(self, node: str, key: BlockKey, queue: str = "default", **fields: Any) -> None:
        """Commits COMPLETE for attempts that ended FAILED and may run again."""
        from rmgr.coord.protocol.records import encode_block

        found = self.coordinator.get(paths.running_block(node, key)).result(60)
        assert found is not None
        data = decode_block(found.data)
        record = FailedRange(
            queue=queue, seq=key.seq, priority=key.priority, cores=key.cores, memory_mib=key.memory_mib, block=encode_block(data),
            node=node, **fields,
        )
        new = _struct_replace(data, done=(1 << key.count) - 1)
        multi = ops.complete(node, self.versions[node], key, new, found.version, fragment=None, failed=[(key.first, key.count, record)])
        committed(self.coordinator, multi)

    def leave(self) -> None:
        """Fences its own nodes, as a Starter that ends in good order."""
        found = [self.coordinator.get(paths.node(name)).result(60) for name in self.nodes]
        records = [(decode_record(one.data, NodeRecord), one.version) for one in found if one is not None]
        committed(self.coordinator, ops.leave(records, STOPPED))

    def close(self) -> None:
        self.coordinator.close()


class Submitter:
    """Submits with the real multis; owns its submissions only if it has an entry."""

    def __init__(self, coordinator: Coordinator) -> None:
        self.coordinator = coordinator
        self.guid = f"o{next(_guids)}"

    def enter(self, user: str = "") -> None:
        committed(self.coordinator, membership.enter(SubmitterEntry(guid=self.guid, host="h", pid=1, since_us=1, user=user)))

    def submit(
        self,
        tasks: int,
        *,
        complete: bool = True,
        block: int = 4,
        data: BlockData | None = None,
        held: bool = False,
        tag: str | None = None,
        **fields: Any,
    ) -> int:
        """Submits `tasks` tasks in blocks of `block`. tag: in the names of the blocks, None = the user's."""
        found = self.coordinator.get(paths.IDS).result(60)
        assert found is not None
        number = int(decode_record(found.data, int))
        record = replace(
            Submission(
                id=number, name=f"s{number}", user="u", queue="default", work=Work.PYTHON, token=f"t{number}", nonce=f"{number:032x}"
            ),
            **({"submitted_us": 1} | fields),
        )
        blocks = [
            (
                BlockKey(
                    priority=record.priority, seq=NO_SEQ, submission=number, first=at, count=min(block, tasks - at), attempt=1, cores=1,
                    memory_mib=0, user=paths.user_tag(record.user) if tag is None else tag,
                ),
                BlockData(resubmit=record.resubmit, retries=record.retries) if data is None else msgspec.structs.replace(data, base=at),
            )
            for at in range(0, tasks, block)
        ]
        tail = Tail(next=tasks, complete=complete)
        bucket = self.coordinator.stat(paths.subs_bucket(number)).result(60)
        multi = ops.submit(record, ids_version=found.version, tail=tail, blocks=[] if held else blocks, make_bucket=bucket is None)
        if held:
            multi = replace(multi, ops=(*multi.ops, *(ops.enter("default", key, value, held=True) for key, value in blocks)))
        committed(self.coordinator, multi)
        return number

    def change(self, number: int, *, gate: bool | None, **fields: Any) -> None:
        """Commits GATE: changes some fields of the record."""
        found = self.coordinator.get(paths.sub(number)).result(60)
        assert found is not None
        record = replace(decode_record(found.data, Submission), **fields)
        committed(self.coordinator, ops.set_record(record, version=found.version, gate=gate))


class Tree:
    """Reads the tree of a cluster."""

    def __init__(self, coordinator: Coordinator) -> None:
        self.coordinator = coordinator
        self._fragments: dict[str, Fragment] = {}

    def names(self, path: str) -> list[str]:
        return sorted(self.coordinator.children(path).result(60) or [])

    def keys(self, path: str) -> list[BlockKey]:
        return sorted((paths.parse_block(name) for name in self.names(path)), key=BlockKey.sort_key)

    def pending(self, queue: str = "default") -> list[BlockKey]:
        return self.keys(paths.pending(queue))

    def held(self, queue: str = "default") -> list[BlockKey]:
        return self.keys(paths.held(queue))

    def read(self, path: str, kind: type[R]) -> R:
        """The record that stands there."""
        return decode_record(self.coordinator.get(path).result(60).data, kind)

    def node(self, name: str) -> NodeRecord:
        return self.read(paths.node(name), NodeRecord)

    def running(self, *nodes: str) -> list[int]:
        """Submissions whose blocks these nodes have, node after node, in the order of their names."""
        return [key.submission for node in nodes for key in self.keys(paths.running_node(node))]

    def orders(self, *nodes: str) -> list[tuple[str, str, InboxOrder]]:
        """(node, name, order) of everything but starts that these nodes are asked."""
        names = [(node, guid) for node in nodes for guid in self.names(paths.inbox_node(node))]
        asked = [(node, guid, self.read(paths.inbox(node, guid), InboxOrder)) for node, guid in names]
        return [one for one in asked if one[2].order is not OrderKind.START]

    def sub(self, number: int) -> Submission | None:
        found = self.coordinator.get(paths.sub(number)).result(60)
        return None if found is None else decode_record(found.data, Submission)

    def outcomes(self, number: int) -> dict[int, TaskOutcome]:
        """Returns final outcomes by index; two for one task are an error."""
        found: dict[int, TaskOutcome] = {}
        for name in self.names(paths.done(number)):
            path = f"{paths.done(number)}/{name}"
            if path not in self._fragments:  # fragments never change
                stamped = self.coordinator.get(path).result(60)
                assert stamped is not None
                self._fragments[path] = decode_fragment(stamped.data)
            for outcome in self._fragments[path].outcomes:
                assert outcome.index not in found, f"task {outcome.index} ended twice"
                found[outcome.index] = outcome
        return found

    def failed(self, number: int) -> dict[str, FailedRange]:
        found = {}
        for name in self.names(paths.failed(number)):
            stamped = self.coordinator.get(f"{paths.failed(number)}/{name}").result(60)
            assert stamped is not None
            found[name] = decode_failed(stamped.data)
        return found


class HandClock(ClockReader):
    """Reads the boot clocks of a bench's machines, without delay."""

    def __init__(self, bench: Bench, told: Callable[[], None]) -> None:
        super().__init__(None, told)
        self._bench = bench
        self.problem = "nobody answers"
        bench.readers.append(self)

    @property
    def reading(self) -> ClockReading | None:
        """Returns the first reading, which stays; the next Starter of the node is followed anew."""
        node = self._target[0] if self._target is not None else ""
        if self._reading is None and (ahead_us := self._bench.boot_us.get(node)) is not None:
            self._reading = ClockReading(ahead_us, 50, 0)
        return self._reading

    def follow(self, node: str, incarnation: int, endpoint: str) -> None:
        assert incarnation
        if self._target is None or (node, incarnation) != self._target[:2]:
            self._target, self._reading = (node, incarnation, endpoint), None

    def answer(self) -> None:
        """Reports that there is a first reading."""
        self._told()

    def close(self) -> None:
        self._bench.readers.remove(self)


class HandWallClock(ZooKeeperClock):
    """ZooKeeper's clock, moved by the test."""

    def __init__(self, bench: Bench) -> None:
        super().__init__()
        self._bench = bench

    def wall_us(self) -> int:
        return round(self._bench.now_s * 1e6)


class Bench:
    """A cluster in memory. boot_us: node -> lead of its machine's boot clock over the leader's (us); other nodes do not answer."""

    def __init__(self, settings: ClusterSettings | None = None, *, session_timeout_s: float = 10.0) -> None:
        self.now_s = 1000.0
        self.tree = MemoryTree()
        self.session_timeout_s = session_timeout_s
        self.store = MemoryStore(f"bench{next(_guids)}")
        self.metrics = LeaderMetrics()
        self.mailbox: Mailbox[Callable[[], None]] = Mailbox(clock=lambda: self.now_s)
        self.deposed: list[str] = []
        self.log: list[dict[str, Any]] = []
        self._opened: list[MemoryCoordinator] = []
        self.outside = self.connect()
        self.meta = bootstrap(self.outside, settings=settings)
        self.look = Tree(self.outside)
        self.submitter = Submitter(self.outside)
        self.leader_coordinator = self.connect()
        self.leader: Leader | None = None
        self.boot_us: dict[str, int] = {}
        self.readers: list[HandClock] = []

    def connect(self) -> MemoryCoordinator:
        coordinator = MemoryCoordinator(self.tree, session_timeout_s=self.session_timeout_s, guarded=False)
        self._opened.append(coordinator)
        return coordinator

    def close(self) -> None:
        """Ends all sessions."""
        for coordinator in self._opened:
            coordinator.close()

    def starter(
        self, *nodes: str, key_id: str = "", partition: str = "default", cores: int = 2, freezer: str = "", memory_bytes: int = 0
    ) -> Starter:
        return Starter(self.connect(), *nodes, key_id=key_id, partition=partition, cores=cores, freezer=freezer, memory_bytes=memory_bytes)

    def count(self, metric: Any) -> float:
        return value_of(metric)

    def lead(self, coordinator: MemoryCoordinator | None = None) -> Leader:
        """Makes a leader: candidate, take-over, leadership, and everything that follows at once."""
        coordinator = coordinator or self.leader_coordinator
        guid = f"w{next(_guids)}"
        committed(coordinator, stand(guid, EpochRecord()))
        name = next(item for item in self.look.names(paths.WATCHDOGS) if paths.entry_guid(item) == guid)
        found = self.outside.get(paths.EPOCH).result(60)
        old = EpochRecord() if found is None else decode_record(found.data, EpochRecord)
        record = replace(old, epoch=old.epoch + 1, leader=guid, candidate=name)
        multi = take_over(name, record, None if found is None else found.version)
        version = epoch_version(multi, committed(coordinator, multi))
        log = structlog.wrap_logger(None, processors=[self._logged])
        term = Term(
            coordinator, self.store, Inline(), self.mailbox, epoch=record.epoch, epoch_version=version, log=log, metrics=self.metrics,
            deposed=self.deposed.append, may_act=lambda: True, clock=lambda: self.now_s, wall=HandWallClock(self),
        )  # fmt: skip
        self.leader = Leader(term, record, resync_s=20.0, inline_passes=True, open_clock=partial(HandClock, self))
        self.leader.start()
        self.run()
        return self.leader

    def _logged(self, _logger: Any, level: str, event: dict[str, Any]) -> Any:
        self.log.append({"level": level, **event})
        raise structlog.DropEvent

    def events(self, name: str) -> list[dict[str, Any]]:
        return [line for line in self.log if line["event"] == name]

    def run(self, limit: int = 100_000) -> None:
        """Handles messages until none is left and no timer is due."""
        for _ in range(limit):
            message = self.mailbox.get(0)
            if message is None:
                return
            message()
        raise AssertionError("the loop does not come to rest")

    def advance(self, seconds: float) -> None:
        """Moves the clock, from timer to timer."""
        end_s = self.now_s + seconds
        self.run()
        while (due := self.mailbox.due_s()) is not None and due <= end_s:
            self.now_s = max(self.now_s, due)
            self.run()
        self.now_s = end_s
        self.run()

    def refuse(self, call: str, error: Exception, where: Callable[[Any], bool], times: int = 2) -> list[int]:
        """The leader's next calls of its coordinator that are meant raise this. Returns how many are left."""
        left, known = [times], getattr(self.leader_coordinator, call)

        def calling(what: Any, **options: Any) -> Future[Any]:
            if not left[0] or not where(what):
                return known(what, **options)
            left[0] -= 1
            answer: Future[Any] = Future()
            answer.set_exception(error)
            return answer

        setattr(self.leader_coordinator, call, calling)
        return left

    def last_log(self, file: Path, *, before: int = 0) -> Path:
        """Writes the scheduler's log of the last leader there. before: so many logs earlier."""
        found = self.store.keys(keys.events_of())
        wanted = sorted({keys.parse_events(key)[:2] for key in found})[-1 - before]
        file.write_bytes(b"".join(row[0] for key in found if keys.parse_events(key)[:2] == wanted and (row := self.store.get(key))))
        return file

    def idle(self, seconds: float) -> None:
        """As `advance`, for hours: leaves out most looks of every 20 s (memory and znodes) and every second (users with caps)."""
        assert self.leader is not None
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self.leader, "resync_s", seconds)
            patch.setattr(use, "LOOK_S", 60.0)
            self.advance(seconds)

    def run_all(self, starter: Starter, node: str = "n1", take: int = 0, **fields: Any) -> None:
        """Claims and completes all waiting blocks, `take` tasks at a time."""
        while self.look.pending():
            starter.complete(node, starter.claim(node, take=take), **fields)
        self.advance(1.0)

    def phase(self, number: int) -> Phase | None:
        record = self.look.sub(number)
        return None if record is None else record.phase


def _struct_replace(data: BlockData, **fields: Any) -> BlockData:
    import msgspec

    return msgspec.structs.replace(data, **fields)


__all__ = ["Bench", "Inline", "Starter", "Submitter", "Tree", "committed", "encode_record", "placing"]
