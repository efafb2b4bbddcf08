"""The world of the protocol machine: a tree, actors with stale views, and what must hold of the tree at any time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from rmgr.coord.protocol import paths, records
from rmgr.coord.protocol.multi import Multi, Outcome
from rmgr.coord.seal import block_statement, spec_digest
from rmgr.model.block import BlockData, BlockKey, Fragment, pending_indices
from rmgr.model.node import NodeRecord, NodeState
from rmgr.model.submission import Submission, Tail
from tests.harness.memory import MemoryCoordinator
from tests.harness.memory_tree import MemoryTree

#: The invariants decode the same bytes again and again.
decode_block = lru_cache(10_000)(records.decode_block)
decode_fragment = lru_cache(10_000)(records.decode_fragment)
decode_record = lru_cache(10_000)(records.decode_record)
decode_failed = lru_cache(10_000)(records.decode_failed)

QUEUE = "default"
NODES = ("n1", "n2")
LEADERS = ("w1", "w2")


@dataclass
class Held:
    """A block that a Starter has claimed, as it believes."""

    key: BlockKey
    data: BlockData
    version: int = 0
    busy: bool = False


@dataclass
class Actor:
    """A process: its session, and what it waits for."""

    name: str
    link: MemoryCoordinator
    flying: list[tuple[object, Callable[[Outcome], None]]] = field(default_factory=list)
    fence: int | None = None  #: version of /nodes/<n> or /epoch under which it acts
    incarnation: int = 0
    seen: tuple[BlockKey, bytes, int] | None = None
    claimed: dict[BlockKey, Held] = field(default_factory=dict)

    def send(self, multi: Multi, then: Callable[[Outcome], None]) -> None:
        self.flying.append((self.link.commit(multi, timeout_s=1e9), then))

    def settle(self) -> None:
        landed = [item for item in self.flying if item[0].done()]
        self.flying = [item for item in self.flying if not item[0].done()]
        for future, then in landed:
            then(future.result())


class World:
    """Everything that a test needs to read and check; `test_protocol_machine` adds what actors do."""

    def __init__(self) -> None:
        self.tree = MemoryTree()
        self.actors = {
            name: Actor(name, MemoryCoordinator(self.tree, auto=False, clock=lambda: 0.0)) for name in (*NODES, *LEADERS, "user")
        }
        self.stamp = 0
        self.fragments: dict[str, Fragment] = {}
        self.attempts: dict[tuple[int, int], int] = {}
        self.log: list[str] = []

    # -- reading ---------------------------------------------------------------------------------------------------------

    def znode(self, path: str) -> tuple[bytes, int] | None:
        if self.tree.exists(path) is None:
            return None
        data, stat = self.tree.get(path)
        return data, stat.version

    def names(self, path: str) -> list[str]:
        return sorted(self.tree.children(path)) if self.tree.exists(path) is not None else []

    def fresh(self) -> str:
        self.stamp += 1
        return str(self.stamp)

    def submissions(self) -> Iterator[tuple[int, Submission, Tail]]:
        for bucket in self.names(paths.SUBS):
            for name in self.names(f"{paths.SUBS}/{bucket}"):
                number = int(name)
                yield (
                    number,
                    decode_record(self.tree.get(paths.sub(number))[0], Submission),
                    decode_record(self.tree.get(paths.tail(number))[0], Tail),
                )

    # -- what must always hold --------------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """New fragments: who wrote them was entitled to (I3)."""
        for number, _, _ in self.submissions():
            for name in self.names(paths.done(number)):
                path = f"{paths.done(number)}/{name}"
                if path in self.fragments:
                    continue
                fragment = self.fragments[path] = decode_fragment(self.tree.get(path)[0])
                for outcome in fragment.outcomes:
                    if outcome.value:
                        node, _, incarnation = outcome.value.decode().partition(".")
                        record = decode_record(self.tree.get(paths.node(node))[0], NodeRecord)
                        assert (record.state, record.incarnation) == (NodeState.UP, int(incarnation)), (
                            "a fenced incarnation committed an outcome"
                        )

    def check_places(self) -> None:
        places: dict[tuple[int, int], list[str]] = {}

        def put(number: int, indices: object, place: str) -> None:
            for index in indices:
                places.setdefault((number, index), []).append(place)

        for name in self.names(paths.pending(QUEUE)):
            key = paths.parse_block(name)
            put(key.submission, range(key.first, key.end), f"pending {name}")
            self.rising(key, range(key.first, key.end))
        for node in NODES:
            for name in self.names(paths.running_node(node)):
                key = paths.parse_block(name)
                data = decode_block(self.tree.get(f"{paths.running_node(node)}/{name}")[0])
                put(key.submission, pending_indices(key, data.done), f"running {node} {name}")
                self.rising(key, pending_indices(key, data.done))
        expected = set()
        for number, _, tail in self.submissions():
            expected |= {(number, index) for index in range(tail.next)}
            for name in self.names(paths.failed(number)):
                first, count, _ = paths.parse_failed_range(name)
                put(number, range(first, first + count), f"failed {name}")
            for name in self.names(paths.done(number)):
                fragment = decode_fragment(self.tree.get(f"{paths.done(number)}/{name}")[0])
                put(number, [outcome.index for outcome in fragment.outcomes], f"done {name}")
        assert set(places) == expected, "I1: a task was lost, or appeared from nowhere"
        doubled = {task: where for task, where in places.items() if len(where) != 1}
        assert not doubled, f"I2: {doubled}"

    def check_seals(self) -> None:
        """Blocks that wait or failed: signed, and each task with its own argument (I5)."""
        records = {number: record for number, record, _ in self.submissions()}
        for parent in (paths.pending(QUEUE), paths.held(QUEUE)):
            for name in self.names(parent):
                key = paths.parse_block(name)
                check_seal(key, decode_block(self.tree.get(f"{parent}/{name}")[0]), records[key.submission])
        for number, record in records.items():
            for name in self.names(paths.failed(number)):
                first, count, attempt = paths.parse_failed_range(name)
                block = decode_block(decode_failed(self.tree.get(f"{paths.failed(number)}/{name}")[0]).block)
                key = BlockKey(priority=0, seq=0, submission=number, first=first, count=count, attempt=attempt, cores=1, memory_mib=0)
                check_seal(key, block, record)

    def rising(self, key: BlockKey, indices: Iterable[int]) -> None:
        for index in indices:
            before = self.attempts.get((key.submission, index), 0)
            assert key.attempt >= before, "I4: the attempt of a task fell"
            self.attempts[key.submission, index] = key.attempt

    def final(self, number: int) -> int:
        return sum(
            len(decode_fragment(self.tree.get(f"{paths.done(number)}/{name}")[0]).outcomes) for name in self.names(paths.done(number))
        )


def signed_by(record: Submission) -> dict[str, Any]:
    """What the seals of a submission's blocks are about."""
    return {"cluster_id": "c", "user": record.user, "spec": spec_digest(record)}


def check_seal(key: BlockKey, data: BlockData, record: Submission) -> None:
    """Raises NotSealed, AssertionError."""
    assert data.seal is not None
    statement = block_statement(key, data, seal=data.seal, payloads=data.payloads, base=data.base, **signed_by(record))
    assert statement == data.seal.signature, f"{key} is not what its user signed"
    for index in range(key.first, key.end):
        assert data.payloads[index - data.base] == bytes([index])
