"""A secured cluster under attack: three nodes whose root Starters run work as its users, a gateway, a user's canary, and an attacker.

    with Besieged() as made:
        with made.siege():      # checks that the canary answers during and after it, and that daemons live and do not grow
            made.attack(Command(...))

mallory has a gateway bundle and makes her own clients: `attack` signs and sends any record.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import cloudpickle
import msgspec
import psutil

from rmgr.adapters.gateway.store import GatewayStore
from rmgr.adapters.host.accounts import Account
from rmgr.adapters.identity.credentials import Credentials
from rmgr.adapters.stores import open_store
from rmgr.client.connection import Connection, connect
from rmgr.config import ClusterConfig, Config, SecurityConfig
from rmgr.coord.protocol import keys, paths
from rmgr.coord.protocol.records import decode_fragment
from rmgr.dev.cluster import DevCluster
from rmgr.errors import LimitReached
from rmgr.model.base import Request
from rmgr.model.block import NO_SEQ, BlockData, BlockKey, Outcome
from rmgr.model.identity import Role
from rmgr.model.submission import Command, PythonEnvironment, Submission, Work
from rmgr.submitter import messages as m
from tests.harness.canary import KINDS, Canary
from tests.harness.ended_sessions import LONG_S
from tests.harness.flooded import run_command
from tests.harness.gateway_process import GatewayProcess
from tests.harness.handmade import Handmade
from tests.harness.local_accounts import LocalAccounts
from tests.harness.reachable import work_that_users_reach
from tests.harness.waiting import eventually

NODES, CORES = ("n1", "n2", "n3"), 3
#: Longest time of any answer (fair s); largest ratio of the median during an attack to the quiet median.
LONGEST_S, TIMES = 10.0, 5.0
#: A median below this (s) is not slow: quiet ones are 0.03 to 0.6 s, and mallory's permitted work shares two processors with all daemons.
FLOOR_S = 2.0
#: Answers of each kind to wait for before the first attack, and after each attack: enough that one slow answer does not decide.
QUIET, AFTERWARDS = 8, 3
#: Largest growth of a daemon's peak memory in an attack (bytes). The largest frame is 64 MiB, and is held three times on its way.
MAY_GROW = 300 << 20
DEADLINE_S = 60.0


class Besieged:
    """The cluster under attack. Needs root; makes accounts on this machine and removes them at its end."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self.broken = False  #: whether an attack has succeeded: the next one needs a new cluster

    def __enter__(self) -> Self:
        try:
            self._begin()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _begin(self) -> None:
        accounts = self._stack.enter_context(LocalAccounts())
        self._stack.enter_context(work_that_users_reach())
        self.ann, self.mallory = accounts.make("a"), accounts.make("m")
        self.place = Path(tempfile.mkdtemp(prefix="rmgr-siege-", dir="/var/tmp"))
        self._stack.callback(shutil.rmtree, self.place, ignore_errors=True)
        self.place.chmod(0o755)
        (self.place / "cluster").mkdir(mode=0o755)
        variables = {"RMGR_SECURITY_RUN_AS": "user"}
        where = self.place / "cluster"
        self.cluster = DevCluster(where, nodes=0, watchdogs=1, secured=True, environment=variables, session_timeout_s=LONG_S)
        self._stack.callback(self.cluster.stop, at_once=True)
        self.cluster.start()
        for node in NODES:
            self.cluster.start_starter(node, cores=CORES, options=("--features", node, "--log-cap", "4M"))
        self.cluster.wait_healthy(nodes=len(NODES), deadline_s=DEADLINE_S)
        security = self.cluster.security
        assert security is not None
        daemons = self.cluster.environment() | {"RMGR_SECURITY_DIR": str(security.bundle(Role.SUBMITTER, "gateway"))}
        self.gateway = self._stack.enter_context(GatewayProcess(daemons, self.place))
        self.bundle = security.bundle(Role.USER, self.mallory.name)
        self.credentials = Credentials.load(self.bundle)
        self._client = Handmade(self.gateway.endpoint, self.credentials, self.cluster.snapshot().cluster_id)
        self._stack.callback(self._close_client)
        self.rows = GatewayStore(self.gateway.endpoint, credentials=self.credentials)
        self._stack.callback(self.rows.close)
        self.store = open_store(self.cluster.state.store)
        self._stack.callback(self.store.close)
        self.daemons = {"gateway": self.gateway.pid, "leader": self.cluster.process("w1").pid}
        self.daemons |= {node: self.cluster.process(node).pid for node in NODES}
        self.canary = self._stack.enter_context(
            Canary(self.gateway.endpoint, security.bundle(Role.USER, self.ann.name), self.place / "canary.log")
        )
        self.canary.sing()
        self.until("the canary sings", lambda: self.canary.enough(0.0, QUIET), deadline_s=4 * DEADLINE_S)
        began_s = sorted(one.asked_s for one in self.canary.answers())[len(KINDS)]  # not the first of each kind, which start workers
        self.quiet = self.canary.medians(began_s)
        self.quiet_longest_s = max(one.took_s for one in self.canary.answers(began_s))
        self.canary.rest()

    # -- what mallory does

    def connection(self) -> Connection:
        """Returns mallory's connection of the Python API."""
        return connect(config=Config(cluster=ClusterConfig(gateway=self.gateway.endpoint), security=SecurityConfig(dir=str(self.bundle))))

    def _close_client(self) -> None:
        self._client.close()

    @property
    def client(self) -> Handmade:
        """Returns mallory's client, or a new one if the gateway has ended its stream."""
        if self._client.is_over:
            self._close_client()
            self._client = Handmade(self.gateway.endpoint, self.credentials, self.cluster.snapshot(submissions=False).cluster_id)
        return self._client

    def attack(
        self,
        work: Command | str | None,
        payloads: Sequence[bytes] = (b"",),
        *,
        data: dict[str, Any] | None = None,
        row: bytes = b"",
        deadline_s: float = DEADLINE_S,
        **record: Any,
    ) -> int:
        """Signs and submits any work as mallory. Returns its number. Raises the gateway's refusal.

        work: a command, the sha256 of a function, or None: a command that `spec_sha256` names.
        payloads: one per task. row: bytes that the store's row of arguments holds in their place. data: more fields of each block.
        record: more fields of the submission.
        """
        draft = Submission(**({"id": 0, "name": "attack", "user": self.mallory.name, "queue": "default", "resubmit": False} | {
            "work": Work.PYTHON if isinstance(work, str) else Work.COMMAND,
            "command": work if isinstance(work, Command) else None,
            "python": PythonEnvironment() if isinstance(work, str) else None,
        } | record))  # fmt: skip
        fields = {"payloads": tuple(payloads) if any(payloads) else (), "resubmit": False}
        block = BlockData(function=work if isinstance(work, str) else "", **(fields | (data or {})))
        key = BlockKey(priority=0, seq=NO_SEQ, submission=0, first=0, count=1, attempt=1, cores=1, memory_mib=0)
        client = self.client
        if not row:
            each = [block.payloads[at : at + 1] for at in range(len(payloads))]
            blocks = [(replace(key, first=at), msgspec.structs.replace(block, base=at, payloads=mine)) for at, mine in enumerate(each)]
            return client.submit(draft, blocks, timeout_s=deadline_s).submission.id
        placed = client.submit(draft, complete=False, is_owned=True, timeout_s=deadline_s)
        made = placed.submission
        where = keys.arguments(made.id, 0, hashlib.sha256(row).hexdigest())
        self.rows.put(where, row)
        one = replace(key, submission=made.id, count=len(payloads)), msgspec.structs.replace(block, row=where, payloads=())
        kept = client.keep(made.id, is_owned=True, is_fresh=True)
        tail = replace(placed.tail, next=len(payloads), complete=True, enqueued="rows")
        client.grow(kept, tail, client.signer.sealer(made)([one]))
        client.say(m.Leave(kept))
        return made.id

    def function(self, function: Any) -> str:
        """Stores a function; returns its sha256."""
        return self.row_of("fn", cloudpickle.dumps(function))

    def row_of(self, family: str, data: bytes) -> str:
        """Stores data under its sha256 in a family of rows; returns the sha256."""
        digest = hashlib.sha256(data).hexdigest()
        self.rows.put(f"{family}/{digest}", data)
        return digest

    def outcomes(self, number: int, count: int = 1, *, deadline_s: float = DEADLINE_S) -> list[Outcome]:
        """Waits for the outcomes of `count` tasks of a submission, and returns them as committed."""
        found: list[Outcome] = []
        seen = 0

        def read() -> bool:
            nonlocal seen
            while (item := self.cluster.coordinator.get(paths.fragment(number, seen)).result(60)) is not None:
                seen += 1
                found.extend(decode_fragment(item.data).outcomes)
            return len(found) >= count

        self.until(f"{count} outcomes of {number}", read, deadline_s=deadline_s)
        return found

    def rmgr(self, *words: str) -> str:
        """Runs a command as mallory, which must succeed; returns its output."""
        done = self.rmgr_of(self.mallory, *words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def rmgr_of(self, who: Account, *words: str) -> subprocess.CompletedProcess[str]:
        """Runs a command as one of the two users, through the gateway."""
        assert self.cluster.security is not None
        kept = {name: value for name, value in os.environ.items() if not name.startswith("RMGR_")}
        bundle = self.cluster.security.bundle(Role.USER, who.name)
        return run_command(kept | {"RMGR_GATEWAY": self.gateway.endpoint, "RMGR_SECURITY_DIR": str(bundle)}, *words)

    # -- what may come of it

    @contextmanager
    def siege(self, *, longest_s: float = LONGEST_S, grow: int = MAY_GROW) -> Iterator[None]:
        """Checks that the canary is answered during and after the block, and that daemons live on and grow by less than `grow` bytes."""
        self.broken = True
        for pid in self.daemons.values():
            Path(f"/proc/{pid}/clear_refs").write_text("5")  # resets the peak of its memory
        before = {name: psutil.Process(pid).memory_info().rss for name, pid in self.daemons.items()}
        began_s = time.monotonic()
        self.canary.sing()
        yield
        ended_s = time.monotonic()
        self.until("the canary's answers afterwards", lambda: self.canary.enough(ended_s, AFTERWARDS))
        self.canary.rest()
        self.sound(began_s, longest_s)
        grown = {name: highest(pid) - before[name] for name, pid in self.daemons.items()}
        assert max(grown.values()) < grow, {name: f"{size >> 20} MiB" for name, size in grown.items()}
        self.relieved()
        self.broken = False

    def sound(self, began_s: float, longest_s: float = LONGEST_S) -> None:
        """Checks that all questions of the canary since `began_s` were answered rightly and in time."""
        answers = self.canary.answers(began_s)
        assert not [one for one in answers if one.wrong], [one for one in answers if one.wrong][:3]
        assert (longest := max(answers, key=lambda one: one.took_s)).took_s <= longest_s, longest
        for kind, median in self.canary.medians(began_s).items():
            assert median <= max(FLOOR_S, TIMES * self.quiet[kind]), (kind, median, self.quiet)

    def relieved(self) -> None:
        """Checks that all of mallory's work can be cancelled and ends, that every node takes work, and that no daemon has restarted."""
        self.rmgr("cancel", "all")
        self.until("her work is gone", lambda: not self.hers())

        def taken(node: str) -> int | None:
            """Returns the number of mallory's next command, or None while her ended tasks (up to a million) still fill her quota."""
            with contextlib.suppress(LimitReached):
                return self.attack(Command(argv=("true",)), request=Request(features=(node,)))
            return None

        numbers = {node: self.until(f"{node} takes work of hers again", lambda node=node: taken(node)) for node in NODES}
        for node, number in numbers.items():
            [outcome] = self.outcomes(number)
            assert outcome.state.value == "COMPLETED", (node, outcome)
        for name, pid in self.daemons.items():
            assert psutil.pid_exists(pid), f"{name} has ended: {self.words(name)}"
        assert {record.pid for record in self.cluster.snapshot(submissions=False).nodes.values()} == {self.daemons[node] for node in NODES}

    def hers(self) -> list[str]:
        """Returns mallory's blocks that wait or are claimed, and the processes of tasks that run as her."""
        coordinator, found = self.cluster.coordinator, []
        parents = [paths.pending("default"), paths.held("default"), *(f"{paths.RUNNING}/{node}" for node in NODES)]
        for parent in parents:
            for name in coordinator.children(parent).result(60) or ():
                with contextlib.suppress(ValueError):
                    key = paths.parse_block(name)
                    if self.owner(key.submission) == self.mallory.name:
                        found.append(f"{parent}/{name}")
        return found

    def owner(self, number: int) -> str:
        """Returns the user of a submission, or "" if it is gone."""
        found = self.cluster.coordinator.get(paths.sub(number)).result(60)
        return "" if found is None else str(msgspec.json.decode(found.data)["user"])

    def processes(self) -> list[psutil.Process]:
        """Returns the processes that run as mallory."""
        return of_account(self.mallory)

    def words(self, name: str) -> str:
        """Returns the end of a daemon's log."""
        return self.gateway.log()[-4000:] if name == "gateway" else self.cluster.log_tail({"leader": "w1"}.get(name, name), 4000)

    def until(self, what: str, condition: Any, *, deadline_s: float = DEADLINE_S) -> Any:
        """Waits for a condition and returns its first true value. Fails with the end of every daemon's log."""

        def why() -> str:
            return "\n".join([what, *(f"{name}: {self.words(name)[-1500:]}" for name in getattr(self, "daemons", {}))])

        return eventually(condition, why, within_s=deadline_s)


def highest(pid: int) -> int:
    """Returns the peak memory of a process since its last reset (bytes)."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    return 0


def of_account(account: Account) -> list[psutil.Process]:
    """Returns the processes that run as an account."""
    return [one for one in psutil.process_iter(["uids"]) if one.info["uids"] and one.info["uids"].real == account.uid]
