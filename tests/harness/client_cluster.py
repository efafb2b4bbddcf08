"""A cluster in memory for tests of the client: the tree, the store, and a Starter that runs calls in this process."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from rmgr.client.connection import Connection
from rmgr.client.submission.engine import engine_here
from rmgr.client.taskqueue import TaskQueue
from rmgr.config import Config
from rmgr.coord.ops import work as ops
from rmgr.coord.protocol import keys, paths
from rmgr.coord.protocol.multi import Committed
from rmgr.coord.protocol.records import decode_block, decode_keyed, decode_payloads, encode_fragment
from rmgr.errors import QueueFull, RmgrError
from rmgr.model.base import Capacity
from rmgr.model.block import BlockData, BlockKey, FailedRange, Fragment, Outcome
from rmgr.model.node import NodeRecord, NodeState, StarterEntry
from rmgr.model.queue import ClusterSettings
from rmgr.model.states import Reason, State
from rmgr.procedures.bootstrap import bootstrap
from rmgr.runner.remote import dump_exception
from tests.harness.memory import MemoryCoordinator
from tests.harness.memory_store import MemoryStore
from tests.harness.memory_tree import MemoryTree


class Cluster:
    """A cluster without a client. `start()` runs work in a thread; `run_one()` runs one block in the caller's thread."""

    def __init__(self, settings: ClusterSettings | None = None, *, cores: int = 4) -> None:
        self.tree = MemoryTree()
        self.store = MemoryStore(f"client-{id(self)}-{time.monotonic_ns()}")
        self.coordinator = MemoryCoordinator(self.tree)
        bootstrap(self.coordinator, settings=settings)
        record = NodeRecord(node="n1", incarnation=1, state=NodeState.UP, guid="g1", capacity=Capacity(cores=cores, memory_bytes=8 << 30))
        entry = StarterEntry(guid="g1", nodes=("n1",), endpoint="", host="h", pid=1)
        assert isinstance(self.coordinator.commit(ops.register([(record, None)], entry)).result(60), Committed)
        self.version = 0
        self.claims: list[tuple[BlockKey, BlockData]] = []
        self._stop = threading.Event()
        self._news = threading.Event()
        self._thread: threading.Thread | None = None
        self.on_call: Callable[[BlockKey, int], Outcome | Reason | None] = lambda key, index: None

    def connect(self, **options: Any) -> Connection:
        """Returns a client with its own session."""
        coordinator = MemoryCoordinator(self.tree)
        return Connection(engine_here(coordinator, self.store, **options), Config(), coordinator)

    # -- the Starter

    def pending(self, queue: str = "default") -> list[BlockKey]:
        names = self.coordinator.children(paths.pending(queue)).result(60) or []
        return sorted((paths.parse_block(name) for name in names), key=BlockKey.sort_key)

    def run_one(self, *, take: int | None = None) -> bool:
        """Claims the first block and completes it. Returns False if there is none."""
        claimed = self.claim(take=take)
        if claimed is None:
            return False
        self.complete(*claimed)
        return True

    def claim(self, *, take: int | None = None) -> tuple[BlockKey, BlockData] | None:
        for key in self.pending():
            found = self.coordinator.get(paths.pending_block("default", key)).result(60)
            if found is None:
                continue
            data = msgspec.structs.replace(decode_block(found.data), incarnation=1, claimed_us=1, stamp="s")
            multi, mine = ops.claim("n1", self.version, "default", key, data, found.version, take=min(take or key.count, key.count))
            if isinstance(self.coordinator.commit(multi).result(60), Committed):
                self.claims.append((mine, data))
                return mine, ops.cut(data, key.first, mine.first, mine.count)
        return None

    def complete(self, key: BlockKey, data: BlockData) -> None:
        outcomes: list[Outcome] = []
        failed: list[tuple[int, int, FailedRange]] = []
        for index in range(key.first, key.end):
            ruled = self.on_call(key, index)
            if isinstance(ruled, Reason):
                failed.append((index, 1, self._failed(key, data, index, ruled)))
            else:
                outcomes.append(ruled or self._call(key, data, index))
        done = msgspec.structs.replace(data, done=(1 << key.count) - 1)
        fragment = Fragment(node="n1", attempt=key.attempt, base_us=1, outcomes=tuple(outcomes)) if outcomes else None
        answer = self.coordinator.commit(ops.complete("n1", self.version, key, done, 0, fragment=fragment, failed=failed)).result(60)
        assert isinstance(answer, Committed), answer

    def _failed(self, key: BlockKey, data: BlockData, index: int, reason: Reason) -> FailedRange:
        from rmgr.coord.protocol.records import encode_block

        part = ops.cut(data, key.first, index, 1)
        return FailedRange(
            queue="default", seq=key.seq, priority=key.priority, cores=key.cores, memory_mib=key.memory_mib, reason=reason,
            block=encode_block(part), node="n1", error="told to fail", alone=key.count == 1,
        )  # fmt: skip

    def _call(self, key: BlockKey, data: BlockData, index: int) -> Outcome:
        payloads = data.payloads
        if data.row:
            row = self.store.get(data.row)
            assert row is not None
            payloads = decode_payloads(row[0])
        payload = payloads[index - data.base] if payloads else b""
        blob = self.store.get(keys.function(data.function))
        assert blob is not None
        try:
            function = pickle.loads(blob[0])
            if data.keyed:
                return self._call_keyed(key, function, payload, index)
            args, kwargs = pickle.loads(payload) if payload else ((), {})
            return Outcome(index=index, value=pickle.dumps(function(*args, **kwargs)), elapsed_us=10)
        except Exception as error:
            data_, line = dump_exception(error)
            return Outcome(index=index, state=State.FAILED, reason=Reason.EXCEPTION, value=data_, error=line)

    def _call_keyed(self, key: BlockKey, function: Callable[..., Any], payload: bytes, index: int) -> Outcome:
        keyed = decode_keyed(payload)
        values = []
        for name in keyed.inputs:
            found = self.store.get(keys.named(name))
            assert found is not None
            values.append(found[0] if found[1].value == "raw" else pickle.loads(found[0]))
        result = function(*values)
        for n, value in enumerate(result if len(keyed.outputs) > 1 else (result,)):
            from rmgr.coord.protocol.ports import Encoding

            self.store.put(keys.output(key.submission, index, key.attempt, n), pickle.dumps(value), encoding=Encoding.PICKLE)
        return Outcome(index=index, outputs=len(keyed.outputs))

    def start(self) -> None:
        """Runs work in a thread until `stop`."""
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._news.clear()
            self.coordinator.children(paths.pending("default"), watch=self._news.set).result(60)
            while not self._stop.is_set() and self.run_one():
                pass
            self._news.wait(0.2)

    def stop(self) -> None:
        self._stop.set()
        self._news.set()
        if self._thread is not None:
            self._thread.join(60)
        self.coordinator.close()


def told_full(queue: TaskQueue) -> str:
    """Returns the message with which `flush` reports that the queue is full."""
    try:
        queue.flush(0.3)
    except QueueFull as full:
        return str(full)
    except RmgrError:
        return ""
    return ""


@contextmanager
def running(settings: ClusterSettings | None = None, **options: Any) -> Iterator[tuple[Cluster, Connection]]:
    """Yields a cluster whose Starter runs, and a client. options: of the client's Engine."""
    cluster = Cluster(settings)
    connection = cluster.connect(**options)
    cluster.start()
    try:
        yield cluster, connection
    finally:
        connection.close()
        cluster.stop()


__all__ = ["Cluster", "encode_fragment", "running", "told_full"]
