"""A gateway process of a secured cluster, an admin who sets limits, and two users of its own: amy works, moll floods."""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from rmgr.adapters.identity.credentials import Credentials
from rmgr.adapters.rpc.services import UseAnswer, UseClient
from rmgr.coord.protocol import keys
from rmgr.errors import RmgrError
from rmgr.model.identity import Role
from rmgr.model.queue import UserLimits
from tests.harness.attacker import Person, Scene
from tests.harness.cluster_settings import read_settings, write_settings
from tests.harness.gateway_process import GatewayProcess
from tests.harness.handmade import Handmade
from tests.harness.waiting import PATIENCE_S, eventually


class Flooded:
    """A gateway of the scene's cluster, and an admin who sets limits."""

    def __init__(self, scene: Scene, directory: Path) -> None:
        self.cluster, self.store, self.cluster_id = scene.cluster, scene.store, scene.cluster_id
        security = self.cluster.security
        assert security is not None
        self.admin = Person(self.cluster, Role.ADMIN, "admin")
        daemons = self.cluster.environment() | {"RMGR_SECURITY_DIR": str(security.bundle(Role.SUBMITTER, "gateway"))}
        self.gateway = GatewayProcess(daemons, directory).start()
        self.people = {name: Credentials.load(security.bundle(Role.USER, name)) for name in ("amy", "moll")}
        epoch = self.cluster.snapshot().epoch
        assert epoch is not None
        self.leader = epoch.endpoint
        [node] = self.cluster.snapshot().nodes.values()
        self.node = node
        self.broken = ""  #: why the next test needs a new gateway, "" if it does not
        self.patience_s = PATIENCE_S  #: how long the gateway may take to report what a test waits for

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.gateway.kill()
        self.admin.zk.close()

    @property
    def places(self) -> dict[str, tuple[str, Role]]:
        """Returns the address and role of each kind of daemon."""
        return {
            "leader": (self.leader, Role.WATCHDOG),
            "Starter": (self.node.endpoint, Role.STARTER),
            "gateway": (self.gateway.endpoint, Role.SUBMITTER),
        }

    def told(self, user: str = "moll", *, fresh: bool = True) -> UseAnswer:
        client = UseClient(self.gateway.endpoint, role=Role.SUBMITTER, credentials=self.people[user])
        try:
            return client.use(fresh=fresh)
        finally:
            client.close()

    def used(self, name: str, user: str = "moll") -> int:
        return self.told(user).users[user].used.get(name, 0)

    def asked(self, kind: str) -> float:
        """Returns how many requests of a kind the gateway has taken since its start."""
        with urllib.request.urlopen(f"http://{self.gateway.metrics}/metrics", timeout=60) as answer:
            lines = answer.read().decode().splitlines()
        return next((float(line.split()[-1]) for line in lines if line.startswith(f'rmgr_gateway_requests_total{{kind="{kind}"}}')), 0.0)

    def set_limits(self, limits: UserLimits) -> None:
        """Sets limits of users as `rmgr config apply` does, and waits until the gateway and the leader apply them."""
        write_settings(self.admin.zk, replace(read_settings(self.admin.zk), limits=limits))
        self.until_told("the gateway has the limits", lambda told: told.limits == limits)

    def until_told(self, what: str, condition: Callable[[UseAnswer], bool]) -> None:
        """Waits until the gateway's answer to amy satisfies the condition. If it does not, fails and marks the gateway as broken."""
        last: Any = None

        def asked() -> bool:
            nonlocal last
            try:
                last = self.told("amy")
            except RmgrError as error:
                last = repr(error)
                return False
            return condition(last)

        def why() -> str:
            self.broken = f"(it said last: {last})\n{self.gateway.autopsy()}"
            return self.broken

        eventually(asked, lambda: f"{what}: {why()}", within_s=self.patience_s)

    def client(self, user: str, **more: Any) -> Handmade:
        """Returns a hand-made client of a user."""
        return Handmade(self.gateway.endpoint, self.people[user], self.cluster_id, **more)

    def rmgr(self, user: str, *words: str) -> subprocess.CompletedProcess[str]:
        """Runs a command as a user, through the gateway."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith("RMGR_")}
        own = {"RMGR_GATEWAY": self.gateway.endpoint, "RMGR_SECURITY_DIR": str(self.people[user].directory)}
        return run_command(kept | own, *words)

    def works(self) -> None:
        """Checks that amy is still served."""
        done = self.rmgr("amy", "submit", "--wait", "--", "echo", "served")
        assert (done.returncode, done.stdout) == (0, "served\n"), done.stderr


def run_command(environment: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rmgr.cli.main", *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


def quietly(ask: Callable[[], Any]) -> Any:
    with contextlib.suppress(RmgrError):
        return ask()
    return None


def upload(data: bytes) -> str:
    """Returns the row of an uploaded file."""
    return keys.upload(hashlib.sha256(data).hexdigest())
