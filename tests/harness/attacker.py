"""A secured cluster on one machine, with a user who works in it (ann) and an attacker who writes to ZooKeeper and the store (mallory)."""

from __future__ import annotations

import functools
import json
import os
import shlex
import time
import uuid
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from rmgr.adapters.identity.credentials import Credentials
from rmgr.adapters.stores import open_store
from rmgr.adapters.zookeeper.client import ZkCoordinator
from rmgr.client.connection import Connection, connect
from rmgr.client.identity import Signer
from rmgr.config import ClusterConfig, Config, SecurityConfig
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Committed, Conflict, Create, Exists, Multi, Op, Set
from rmgr.coord.protocol.records import decode_fragment, encode_block, encode_record
from rmgr.coord.views import answers
from rmgr.dev.cluster import CHROOT, DevCluster
from rmgr.model.block import NO_SEQ, BlockData, BlockKey, Outcome
from rmgr.model.identity import Role
from rmgr.model.submission import Command, Submission, Work
from rmgr.procedures.snapshot import read_submission
from rmgr.runtime.secured import zookeeper_options
from tests.harness.ended_sessions import LONG_S
from tests.harness.submitted import submit
from tests.harness.waiting import eventually

DEADLINE_S = 60.0
#: Of the scene's ZooKeeper server, if a test does not say otherwise; how much may be written into it follows from that.
HEAP_MIB = 128


class Bomb:
    """Unpickled, it leaves the canary."""

    def __init__(self, canary: Path) -> None:
        self.canary = str(canary)

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (self.canary,))


class Person:
    """A user with a bundle and a ZooKeeper session."""

    def __init__(self, cluster: DevCluster, role: Role, name: str) -> None:
        assert cluster.security is not None
        self.name = name
        directory = cluster.security.admin if role is Role.ADMIN else cluster.security.bundle(role, name)
        self.credentials = Credentials.load(directory)
        self.config = Config(
            cluster=ClusterConfig(zk=cluster.state.zookeeper, store=cluster.state.store, session_timeout_s=LONG_S),
            security=SecurityConfig(dir=str(directory)),
        )
        options = zookeeper_options(self.config, self.credentials)
        self.zk = ZkCoordinator.connect(cluster.zookeeper.hosts, CHROOT, session_timeout_s=LONG_S, **options)

    def connection(self) -> Connection:
        """Returns a connection of the Python API."""
        return connect(config=self.config)

    def commit(self, *ops: Op, name: str = "ATTACK") -> Committed | Conflict:
        """Commits operations with the person's rights in ZooKeeper."""
        outcome = self.zk.commit(Multi(name=name, ops=ops, proof=Exists(ops[0].path))).result(60)
        assert isinstance(outcome, Committed | Conflict), outcome
        return outcome


class Scene:
    """One node, one leader. ann works; mallory attacks with what a stolen gateway has: its ZooKeeper session and the data store."""

    def __init__(self, directory: Path, *, heap_mb: int = HEAP_MIB) -> None:
        self.directory = directory
        self.cluster = DevCluster(directory / "cluster", nodes=1, watchdogs=1, session_timeout_s=LONG_S, heap_mb=heap_mb, secured=True)
        self.cluster.start()
        self.ann = Person(self.cluster, Role.USER, "ann")
        self.mallory = Person(self.cluster, Role.USER, "mallory")
        self.store = open_store(self.cluster.state.store)
        self.cluster_id = self.cluster.snapshot().cluster_id
        self.canary = directory / "canary"
        self._opened = ExitStack()

    @functools.cached_property
    def hers(self) -> Connection:
        """ann's connection of the Python API."""
        return self._opened.enter_context(self.ann.connection())

    @functools.cached_property
    def his(self) -> Connection:
        """mallory's connection of the Python API."""
        return self._opened.enter_context(self.mallory.connection())

    def close(self) -> None:
        self._opened.close()
        for person in (self.ann, self.mallory):
            person.zk.close()
        self.store.close()
        self.cluster.stop()

    # -- ann's work

    @property
    def touch(self) -> Command:
        """Returns a command that creates the canary file, which shows that it has run."""
        return Command(argv=("/bin/sh", "-c", f"echo ran >> {shlex.quote(str(self.canary))}"))

    def signer(self, who: Person | None = None, *, ttl_s: float = 600.0) -> Signer:
        return Signer((who or self.ann).credentials, self.cluster_id, ttl_s=ttl_s)

    def submit(self, *, payloads: tuple[bytes, ...] = (b"",), signer: Signer | None = None, **record: Any) -> int:
        """Submits work as ann; returns the submission's number."""
        return self._submit(payloads, signer or self.signer(), record)[0]

    def intercepted(self, payloads: tuple[bytes, ...] = (b"",), **record: Any) -> tuple[int, BlockKey, BlockData]:
        """Submits work as ann, but hands its one block, signed by her, to mallory instead of the queue; returns number, key and data."""
        return self._submit(payloads, self.signer(), record, intercept=True)

    def intercepted_together(self, count: int = 3) -> tuple[int, list[tuple[BlockKey, BlockData]]]:
        """As `intercepted`, with `count` blocks of one task each that share a signature."""
        number, key, data = self._submit((b"",) * count, self.signer(), {}, intercept=True)
        bare = [(replace(key, first=at, count=1), changed(data, base=at, payloads=(b"",), seal=None)) for at in range(count)]
        return number, self.signer().sealer(read_submission(self.ann.zk, number))(bare)

    def _submit(
        self, payloads: tuple[bytes, ...], signer: Signer, record: dict[str, Any], *, intercept: bool = False
    ) -> tuple[int, BlockKey, BlockData]:
        draft = Submission(
            **({"id": 0, "name": "a", "user": "ann", "queue": "default", "work": Work.COMMAND, "command": self.touch} | record)
        )
        key = BlockKey(priority=0, seq=NO_SEQ, submission=0, first=0, count=len(payloads), attempt=1, cores=1, memory_mib=0)
        data = BlockData(payloads=payloads if any(payloads) else (), retries=record.get("retries", 0))
        made = submit(
            self.ann.zk, draft, owner="", deadline_s=time.monotonic() + DEADLINE_S, blocks=[] if intercept else [(key, data)],
            tasks=len(payloads), complete=True, signer=signer,
        )
        number = made.submission.id
        key = replace(key, submission=number)
        [(_, sealed)] = signer.sealer(made.submission)([(key, data)])
        return number, key, sealed

    # -- mallory's

    def plant(self, key: BlockKey, data: BlockData, *, more: tuple[Op, ...] = ()) -> None:
        """Puts a block into the queue, and opens the gate of its submission."""
        gate = paths.gate(key.submission)
        ops: list[Op] = list(more)
        if self.mallory.zk.stat(gate).result(60) is None:
            ops.append(Create(gate))
        ops.append(Create(f"{paths.pending('default')}/{paths.block_prefix(key)}", encode_block(data), sequence=True))
        outcome = self.mallory.commit(*ops)
        assert isinstance(outcome, Committed), outcome

    def commit_block(self, key: BlockKey, data: bytes) -> None:
        """Puts any bytes into the queue as a block."""
        outcome = self.mallory.commit(Create(f"{paths.pending('default')}/{paths.block_prefix(key)}", data, sequence=True))
        assert isinstance(outcome, Committed), outcome

    def rewrite(self, number: int, **changes: Any) -> Set:
        """Returns the operation that changes a submission's record."""
        found = self.mallory.zk.get(paths.sub(number)).result(60)
        assert found is not None
        record = replace(read_submission(self.mallory.zk, number), **changes)
        return Set(paths.sub(number), encode_record(record), found.version)

    # -- what came of it

    def outcomes(self, number: int, count: int = 1) -> list[Outcome]:
        """Waits for `count` final outcomes of a submission, and returns them as committed."""
        found: list[Outcome] = []
        seen = 0

        def read() -> bool:
            nonlocal seen
            while (item := self.ann.zk.get(paths.fragment(number, seen)).result(60)) is not None:
                seen += 1
                found.extend(decode_fragment(item.data).outcomes)
            return len(found) >= count

        eventually(read, lambda: f"{count} outcomes of {number}: {self.story(number)}")
        return found

    def story(self, number: int) -> str:
        """Returns why a submission waits, what its node lacks, and the end of every daemon's log: for the message of a failed test."""
        snapshot = self.cluster.snapshot()
        lines = [f"leader {snapshot.epoch} alive {snapshot.leader_alive}", f"nodes {snapshot.nodes} alive {snapshot.alive}"]
        lines += [f"troubles {snapshot.troubles} store {snapshot.store_problem!r} aside {snapshot.aside}"]
        lines += [f"explained {answers.explain(snapshot, number, None)}"]
        lines += [f"{one.id}: {self.cluster.log_tail(one.id, 4000)}" for one in self.cluster.state.processes]
        return "\n".join(("", *lines))

    def audited(self, target: str) -> list[str]:
        """Returns the reasons with which the node refused a target, one per line of the audit."""
        lines = (json.loads(line) for line in self.cluster.log_file("n1").read_text().split("\n") if line.startswith("{"))
        return [line["why"] for line in lines if line["event"] == "audit" and line["target"] == target and line["allowed"] is False]


def changed(item: Any, **changes: Any) -> Any:
    """Returns a changed copy of a struct."""
    return msgspec.structs.replace(item, **changes)


def unique() -> str:
    """Returns a unique name."""
    return uuid.uuid4().hex[:8]
