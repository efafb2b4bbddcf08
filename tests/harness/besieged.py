"""Three nodes whose root Starters run work as its users, a gateway, a canary of one user, and another one who attacks: one secured cluster.

    with Besieged() as made:
        with made.siege("what is tried"):      # the canary answers meanwhile and afterwards, daemons live and keep their size
            made.attack(Command(...))

mallory has a gateway bundle and clients of her own making: `attack` signs and sends whatever record she likes.
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
from rmgr.model.base.resources import Request
from rmgr.model.cluster.identity import Role
from rmgr.model.tasks.block import NO_SEQ, BlockData, BlockKey, Outcome
from rmgr.model.tasks.submission import Command, PythonEnvironment, Submission, Work
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
#: Longest that any answer may take (fair s); how many times longer than before its median may be (the issue's two numbers).
LONGEST_S, TIMES = 10.0, 5.0
#: A median below this is no slowness: quiet ones are 0.03 to 0.6 s, and two processors that mallory's own work may use serve all daemons.
FLOOR_S = 2.0
#: Answers of each kind before the first attack, during and after each. Of so many, one may be slowed down by the machine alone.
QUIET, AFTERWARDS = 8, 3
#: What a daemon may grow by in an attack, at its highest (bytes). The largest frame is 64 MiB, and is held three times on its way.
MAY_GROW = 300 << 20
DEADLINE_S = 60.0


class Besieged:
    """The cluster. Root only; takes accounts on this machine, which go with it."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self.broken = False  #: an attack has succeeded: the next one takes another cluster

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
        began_s = sorted(one.asked_s for one in self.canary.answers())[len(KINDS)]  # the first of each kind starts workers
        self.quiet = self.canary.medians(began_s)
        self.quiet_longest_s = max(one.took_s for one in self.canary.answers(began_s))
        self.canary.rest()

    # -- what mallory does

    def connection(self) -> Connection:
        """The Python API's way in, hers."""
        return connect(config=Config(cluster=ClusterConfig(gateway=self.gateway.endpoint), security=SecurityConfig(dir=str(self.bundle))))

    def _close_client(self) -> None:
        self._client.close()

    @property
    def client(self) -> Handmade:
        """Her client; another one when a gateway has ended its stream."""
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
        """Submits whatever she likes, and signs it. Returns: its number. Raises what the gateway refuses it for.

        work: a command, the sha256 of a function, or None: a command that `spec_sha256` names.
        payloads: one a task. row: they lie there, whatever these bytes are. data: more fields of each block. record: of the submission.
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
        """The sha256 of a function of hers that lies in the store."""
        return self.row_of("fn", cloudpickle.dumps(function))

    def row_of(self, family: str, data: bytes) -> str:
        """The sha256 of what she puts there under its hash."""
        digest = hashlib.sha256(data).hexdigest()
        self.rows.put(f"{family}/{digest}", data)
        return digest

    def outcomes(self, number: int, count: int = 1, *, deadline_s: float = DEADLINE_S) -> list[Outcome]:
        """How tasks of a submission have ended, as committed."""
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
        """What a command of hers puts out."""
        done = self.rmgr_of(self.mallory, *words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def rmgr_of(self, who: Account, *words: str) -> subprocess.CompletedProcess[str]:
        """A command of one of the two, through the gateway."""
        assert self.cluster.security is not None
        kept = {name: value for name, value in os.environ.items() if not name.startswith("RMGR_")}
        bundle = self.cluster.security.bundle(Role.USER, who.name)
        return run_command(kept | {"RMGR_GATEWAY": self.gateway.endpoint, "RMGR_SECURITY_DIR": str(bundle)}, *words)

    # -- what may come of it

    @contextmanager
    def siege(self, *, longest_s: float = LONGEST_S, grow: int = MAY_GROW) -> Iterator[None]:
        """The canary answers while it lasts and afterwards; daemons are those that they were, and have not grown by more than `grow`."""
        self.broken = True
        for pid in self.daemons.values():
            Path(f"/proc/{pid}/clear_refs").write_text("5")  # the highest size counts from now on
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
        """What the canary asked for since then was answered in time."""
        answers = self.canary.answers(began_s)
        assert not [one for one in answers if one.wrong], [one for one in answers if one.wrong][:3]
        assert (longest := max(answers, key=lambda one: one.took_s)).took_s <= longest_s, longest
        for kind, median in self.canary.medians(began_s).items():
            assert median <= max(FLOOR_S, TIMES * self.quiet[kind]), (kind, median, self.quiet)

    def relieved(self) -> None:
        """All of hers can be cancelled and is gone; every node takes work; no daemon has been started again."""
        self.rmgr("cancel", "all")
        self.until("her work is gone", lambda: not self.hers())

        def taken(node: str) -> int | None:
            """The number of her next command. None: her own ends (a million may be) still fill what she may have in ZooKeeper."""
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
        """Blocks of mallory's that wait or are claimed, and processes that run as her for a task."""
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
        """Who submitted it, "" when it is gone."""
        found = self.cluster.coordinator.get(paths.sub(number)).result(60)
        return "" if found is None else str(msgspec.json.decode(found.data)["user"])

    def processes(self) -> list[psutil.Process]:
        """That run as mallory."""
        return of_account(self.mallory)

    def words(self, name: str) -> str:
        """The last of a daemon's log."""
        return self.gateway.log()[-4000:] if name == "gateway" else self.cluster.log_tail({"leader": "w1"}.get(name, name), 4000)

    def until(self, what: str, condition: Any, *, deadline_s: float = DEADLINE_S) -> Any:
        """The first true answer. Fails with the last words of every daemon."""

        def why() -> str:
            return "\n".join([what, *(f"{name}: {self.words(name)[-1500:]}" for name in getattr(self, "daemons", {}))])

        return eventually(condition, why, within_s=deadline_s)


def highest(pid: int) -> int:
    """The most memory that a process has had since it was last reset (bytes)."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    return 0


def of_account(account: Account) -> list[psutil.Process]:
    """Processes that run as it."""
    return [one for one in psutil.process_iter(["uids"]) if one.info["uids"] and one.info["uids"].real == account.uid]
