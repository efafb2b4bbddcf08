"""A Starter under test: the rig builds a cluster's tree, submits with bare multis, and reads outcomes from fragments."""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import signal
import subprocess
import sys
import tarfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import cloudpickle
import pytest
import structlog

from rmgr.adapters.host.cgroup import CgroupConfig
from rmgr.adapters.rpc.ranks import handler_of
from rmgr.adapters.rpc.server import RpcServer
from rmgr.adapters.stores import open_store
from rmgr.adapters.zookeeper.client import ZkCoordinator
from rmgr.config import ClusterConfig, Config, StarterConfig
from rmgr.coord.ops import leader as leader_ops
from rmgr.coord.ops import work as ops
from rmgr.coord.protocol import keys, paths
from rmgr.coord.protocol.multi import Committed, Create, Holds, Multi
from rmgr.coord.protocol.ports import Encoding
from rmgr.coord.protocol.records import (
    decode_failed,
    decode_fragment,
    decode_outcomes,
    decode_record,
    encode_keyed,
    encode_payloads,
    encode_record,
)
from rmgr.daemons.starter import main as starter_main
from rmgr.daemons.starter.jobs.ranks import RanksAnswering
from rmgr.daemons.starter.main import build
from rmgr.daemons.starter.node.loop import Registrant, Starter
from rmgr.daemons.starter.staging.accounts import AccountsPolicy
from rmgr.dev.zookeeper import ZooKeeperServer
from rmgr.model.block import NO_SEQ, BlockData, BlockKey, FailedRange, KeyedPayload, Outcome
from rmgr.model.node import NodeRecord
from rmgr.model.queue import ClusterSettings, Dispatch, QueueSpec
from rmgr.model.submission import Command, PythonEnvironment, Submission, Tail, Work
from rmgr.procedures.bootstrap import bootstrap
from rmgr.runtime.supervision import StallGuard
from tests.harness.ended_sessions import LONG_S
from tests.harness.live_files import below, size_of
from tests.harness.waiting import eventually
from tests.places import ROOT

DEADLINE_S = 60.0
#: Default queues: one whose work is pulled, one whose work is placed.
_QUEUES = (QueueSpec(name="default"), QueueSpec(name="batch", dispatch=Dispatch.PLACE, policy="easy"))


@dataclass
class Running:
    """A Starter that runs on a thread of this process."""

    starter: Starter
    coordinator: ZkCoordinator
    thread: threading.Thread
    failure: list[BaseException] = field(default_factory=list)
    server: RpcServer | None = None

    def stop(self, deadline_s: float = 15.0) -> None:
        """Stops the Starter in good order."""
        self.starter.stop()
        self.thread.join(deadline_s)
        alive = self.thread.is_alive()
        self.coordinator.close()
        self.starter.close()
        self.end_server()
        assert not alive, "the Starter did not stop"

    def end_server(self) -> None:
        if self.server is not None:
            self.server.stop(0.1)

    def agent(self, name: str = "n1") -> Any:
        return self.starter.agents[name]


class Rig:
    """A cluster without WatchDog and Submitter."""

    def __init__(self, coordinator: ZkCoordinator, hosts: str, chroot: str, directory: Path, **settings: Any) -> None:
        self.zk = coordinator
        self.hosts, self.chroot, self.directory = hosts, chroot, directory
        self.store_url = f"sqlite:{directory / 'store.db'}"
        self.store = open_store(self.store_url)
        self.meta = bootstrap(coordinator, settings=ClusterSettings(**({"queues": _QUEUES, "default_queue": "default"} | settings)))
        self.store.bind_cluster(self.meta.cluster_id)
        self.starters: list[Running] = []
        self.processes: list[subprocess.Popen[bytes]] = []

    # -- Starters ----------------------------------------------------------------------------------------------------------

    def config(self, node: str = "n1", **options: Any) -> Config:
        own = {"cores": 2, "memory_bytes": 1 << 30, "work_dir": str(self.directory / "work" / node), "stop_grace_s": 5.0} | options
        return Config(
            cluster=ClusterConfig(zk=f"{self.hosts}{self.chroot}", store=self.store_url, session_timeout_s=LONG_S),
            starter=StarterConfig(node=node, **own),
        )

    def start(
        self,
        node: str = "n1",
        *,
        names: tuple[str, ...] | None = None,
        serves: bool = False,
        has_groups: bool = False,
        as_users: bool = False,
        session_timeout_s: float = LONG_S,
        **options: Any,
    ) -> Running:
        """Starts a Starter in this process.

        Args: serves: whether other Starters may ask it over gRPC. has_groups: whether it makes control groups if it can. as_users: whether
            work runs as its users, who need no certificate. session_timeout_s: T, of which its lease is a part.
        """
        config = self.config(node, **options)
        coordinator = ZkCoordinator.connect(self.hosts, self.chroot, session_timeout_s=session_timeout_s)
        directory = Path(config.starter.work_dir)
        directory.mkdir(parents=True, exist_ok=True)
        log = structlog.get_logger().bind(role="starter")
        server = RpcServer("127.0.0.1:0") if serves else None
        groups = CgroupConfig() if has_groups else None
        identity = Registrant(endpoint=server.endpoint if server is not None else "127.0.0.1:1")
        with pytest.MonkeyPatch.context() as patch:  # undone at once, for other Starters of this process
            if as_users:
                patch.setattr(starter_main, "policy_of", lambda _security: AccountsPolicy(min_uid=1000))
            starter = build(config, names or (node,), directory, coordinator, self.store, self.meta, log, identity, cgroups=groups)
        if server is not None:
            server.add_generic(handler_of(RanksAnswering(starter)))
            server.start()
        thread = threading.Thread(target=lambda: starter.serve(StallGuard(60)), name=f"starter-{node}", daemon=True)
        running = Running(starter, coordinator, thread, server=server)
        self.starters.append(running)
        thread.start()
        return running

    def ready(self, node: str = "n1", **options: Any) -> Running:
        """As `start`, and waits until the Starter has registered."""
        running = self.start(node, **options)
        self.wait_registered(node)
        return running

    def spawn(
        self,
        node: str = "n1",
        *,
        env: dict[str, str] | None = None,
        options: Sequence[str] = (),
        cores: int = 2,
        before: Sequence[str] = (),
    ) -> subprocess.Popen[bytes]:
        """Starts a Starter as a separate process. before: a command that executes the words after it."""
        command = [
            *before, sys.executable, "-m", "rmgr.cli.main", "--zk", f"{self.hosts}{self.chroot}", "--store", self.store_url,
            "starter", "--node", node, "--cores", str(cores), "--mem", "1G", "--work-dir", str(self.directory / "work" / node),
            "--stop-grace", "5s", *options,
        ]  # fmt: skip
        own = {"PYTHONPATH": str(ROOT), "RMGR_CLUSTER_SESSION_TIMEOUT_S": str(LONG_S), "RMGR_STRICT_LOG": "1"}
        environ = {**os.environ, **own, **(env or {})}
        with (self.directory / f"{node}.log").open("ab") as out:
            process = subprocess.Popen(command, env=environ, stdout=out, stderr=out, cwd=self.directory)
        self.processes.append(process)
        return process

    def log_of(self, node: str) -> str:
        return (self.directory / f"{node}.log").read_text()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self.store.close()

    def stop(self) -> None:
        """Ends all Starters, whose ZooKeeper must still be there. Idempotent."""
        for running in self.starters:
            if running.thread.is_alive():
                running.starter.stop()
                running.starter.stop()
        for running in self.starters:
            running.thread.join(60)
            running.coordinator.close()
            running.starter.close()
            running.end_server()
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.send_signal(signal.SIGKILL)
            process.wait(60)

    # -- submissions ---------------------------------------------------------------------------------------------------------

    def next_number(self) -> int:
        """Returns the number of the next submission."""
        return int(self.zk.get(paths.IDS).result(60).data)

    def submit(
        self,
        work: Callable[..., Any] | Command,
        payloads: Sequence[bytes] = (b"",),
        *,
        keyed: Sequence[KeyedPayload] = (),
        blocks: int = 1,
        cores: int = 1,
        memory_mib: int = 0,
        resubmit: bool = True,
        retries: int = 0,
        serial: bool = False,
        row: bool = False,
        store_function: bool = True,
        store_row: bool = True,
        drop_gate: bool = False,
        queue: str = "default",
        tagged: bool = True,
        **record: Any,
    ) -> int:
        """Submits work in `blocks` equal blocks; returns the submission's number. tagged: whether names of blocks show the user."""
        found = self.zk.get(paths.IDS).result(60)
        number = int(found.data)
        function = ""
        if isinstance(work, Command):
            extra: dict[str, Any] = {"work": Work.COMMAND, "command": work}
        else:
            blob = cloudpickle.dumps(work)
            function = hashlib.sha256(blob).hexdigest()
            if store_function:
                self.store.put(keys.function(function), blob)
            extra = {"work": Work.PYTHON, "python": PythonEnvironment()}
        extra |= {"nonce": uuid.uuid4().hex, "signed_s": int(time.time())}
        submission = Submission(**({"id": number, "name": "test", "user": "tester", "queue": queue} | extra | record))
        args = [encode_keyed(one) for one in keyed] or list(payloads)
        tail = Tail(next=len(args), complete=True)
        size = -(-len(args) // blocks)
        made = []
        for first in range(0, len(args), size):
            part = tuple(args[first : first + size])
            args_row = ""
            if row:
                args_row = keys.arguments(number, first, uuid.uuid4().hex)
                if store_row:
                    self.store.put(args_row, encode_payloads(part))
            key = BlockKey(
                priority=record.get("priority", 0), seq=NO_SEQ, submission=number, first=first, count=len(part), attempt=1, cores=cores,
                memory_mib=memory_mib, user=paths.user_tag(submission.user) if tagged else "",
            )
            data = BlockData(
                function=function, resubmit=resubmit, retries=retries, base=first, payloads=part if any(part) and not row else (),
                row=args_row, keyed=bool(keyed), serial=serial,
            )
            made.append((key, data))
        bucket = self.zk.stat(paths.subs_bucket(number)).result(60) is None
        multi = ops.submit(submission, ids_version=found.version, tail=tail, blocks=made, make_bucket=bucket)
        if drop_gate:  # as if held just after the submission
            multi = replace(multi, ops=tuple(op for op in multi.ops if op.path != paths.gate(number)))
        outcome = self.zk.commit(multi).result(60)
        assert isinstance(outcome, Committed), outcome
        return number

    def end_of(self, *work: Any, **fields: Any) -> Outcome:
        """Submits one task, as `submit` does, and waits for its end."""
        return self.outcomes(self.submit(*work, **fields), 1)[0]

    def outcomes(self, number: int, count: int, deadline_s: float = DEADLINE_S) -> dict[int, Outcome]:
        """Waits for `count` final outcomes and returns them by index; a second one for a task is an error."""
        found: dict[int, Outcome] = {}
        seen = 0

        def read() -> bool:
            nonlocal seen
            while (data := self.zk.get(paths.fragment(number, seen)).result(60)) is not None:
                seen += 1
                for outcome in self._outcomes_of(data.data):
                    assert outcome.index not in found, f"two outcomes of {number}_{outcome.index}"
                    found[outcome.index] = outcome
            return len(found) >= count

        eventually(read, lambda: f"{count} outcomes of {number}, there are {len(found)}", within_s=deadline_s)
        return found

    def outcomes_in_the_end(self, number: int, count: int) -> dict[int, Outcome]:
        """Runs failed tasks again as a Submitter does, without its pauses; returns the final outcomes."""

        def over() -> bool:
            for where, failed in self.failed(number).items():
                self.resubmit(number, where, failed)
            return self.finals(number) >= count

        eventually(over, f"{count} outcomes of {number}")
        return self.outcomes(number, count)

    def finals(self, number: int) -> int:
        """Returns how many tasks of a submission have a final outcome in a fragment."""
        names = self.zk.children(paths.done(number)).result(60) or []
        found = [self.zk.get(f"{paths.done(number)}/{name}").result(60) for name in names]
        return sum(len(self._outcomes_of(one.data)) for one in found if one is not None)

    def _outcomes_of(self, data: bytes) -> Sequence[Outcome]:
        """Returns the outcomes of a fragment; a large fragment's are in a row of the store."""
        fragment = decode_fragment(data)
        if not fragment.row:
            return fragment.outcomes
        row = self.store.get(fragment.row)
        assert row is not None
        return decode_outcomes(row[0])

    def failed(self, number: int) -> dict[tuple[int, int, int], FailedRange]:
        """Returns the failed ranges that wait for the rule."""
        names = self.zk.children(paths.failed(number)).result(60) or []
        records = {}
        for name in names:
            first, count, attempt = paths.parse_failed_range(name)
            found = self.zk.get(paths.failed_range(number, first, count, attempt)).result(60)
            if found is not None:
                records[first, count, attempt] = decode_failed(found.data)
        return records

    def resubmit(self, number: int, where: tuple[int, int, int], failed: FailedRange) -> Outcome | None:
        """Commits RESUBMIT of a failed range; returns the final outcome if the rule refuses another attempt."""
        found = self.zk.get(paths.sub(number)).result(60)
        submission = decode_record(found.data, Submission)
        multi, final = leader_ops.resubmit(submission, *where, failed, 0, gate=True, max_losses=5)
        outcome = self.zk.commit(multi).result(60)
        assert isinstance(outcome, Committed), outcome
        return final

    def upload(self, data: bytes) -> str:
        digest = hashlib.sha256(data).hexdigest()
        self.store.put(keys.upload(digest), data)
        return digest

    def upload_directory(self, directory: Path) -> str:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as tar:
            for path in sorted(directory.rglob("*")):
                tar.add(path, arcname=str(path.relative_to(directory)), recursive=False)
        return self.upload(buffer.getvalue())

    def point(self, user_key: str, number: int, index: int, n: int) -> None:
        """Creates an output key, as a submitter does."""
        pointer = keys.encode_pointer(keys.Pointer(sub=number, index=index, n=n))
        self.store.put(keys.named(user_key), pointer, encoding=Encoding.POINTER)

    def spool_is_empty(self, node: str = "n1") -> bool:
        """Waits until no result, input or work directory is left in the node's directory."""

        def left() -> list[Path]:
            home = self.directory / "work" / node / node
            known = {"records", "cache"}
            spooled = [path for path in home.glob("run/s*/*/*") if path.is_file() and path.parent.name not in known]
            return [*below(home / "stage"), *(path for path in spooled if size_of(path))]

        eventually(lambda: not left(), f"nothing left of {left()}")
        return True

    # -- the tree ------------------------------------------------------------------------------------------------------------

    def pending(self, queue: str = "default") -> list[BlockKey]:
        names = self.zk.children(paths.pending(queue)).result(60) or []
        return sorted((paths.parse_block(name) for name in names), key=BlockKey.sort_key)

    def running(self, node: str = "n1") -> list[BlockKey]:
        names = self.zk.children(paths.running_node(node)).result(60) or []
        return sorted((paths.parse_block(name) for name in names), key=BlockKey.sort_key)

    def record(self, node: str = "n1") -> NodeRecord | None:
        found = self.zk.get(paths.node(node)).result(60)
        return None if found is None else decode_record(found.data, NodeRecord)

    def write(self, path: str, record: object) -> None:
        """Creates a znode."""
        data = encode_record(record)
        outcome = self.zk.commit(Multi(name="TEST", ops=(Create(path, data),), proof=Holds(path, data))).result(60)
        assert isinstance(outcome, Committed), outcome

    def wait_registered(self, node: str = "n1", incarnation: int = 1) -> NodeRecord:

        def there() -> NodeRecord | None:
            record = self.record(node)
            return record if record is not None and record.incarnation >= incarnation else None

        return eventually(there, f"{node} registered")


@contextmanager
def own_rig(zookeeper: ZooKeeperServer, directory: Path, **settings: Any) -> Iterator[Rig]:
    """Yields a rig in its own chroot: for a file whose tests share one, or a test that needs other settings."""
    chroot = f"/test/{uuid.uuid4().hex[:12]}"
    with ZkCoordinator.connect(zookeeper.hosts, chroot, session_timeout_s=LONG_S) as coordinator:
        coordinator.ensure(["/"])
        with Rig(coordinator, zookeeper.hosts, chroot, directory, **settings) as made:
            yield made


def sh(script: str, *arguments: str, **more: Any) -> Command:
    """Returns a shell command. arguments: its $0, $1, ..."""
    return Command(argv=("sh", "-c", script, *arguments), **more)


def call(*args: object, **kwargs: object) -> bytes:
    """Returns the payload of a Python call."""
    return pickle.dumps((args, kwargs))
