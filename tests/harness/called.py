"""A cluster with gateways and servers of calls, whose functions record each execution in a file outside rmgr."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from rmgr.bench.load.call_load import ShapedLink
from rmgr.client.calls import Caller
from rmgr.config import load
from rmgr.dev.cluster import DevCluster
from rmgr.dev.keeper import kill_processes
from rmgr.dev.zookeeper import ZooKeeperServer
from tests.harness.ended_sessions import LONG_S, expiring
from tests.harness.proxy import Proxy
from tests.harness.waiting import eventually

#: The servers' functions. `note` writes one line per execution: the function, the call, the server's life.
SOLVERS = '''
import os, signal, time

def note(name):
    fd = os.open(os.environ["EXECUTIONS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, f"{name} {os.environ['RMGR_CALL_ID']} {os.environ['RMGR_SERVER_LIFE']}\\n".encode())
    os.close(fd)

def nap(seconds):
    note("nap")
    time.sleep(seconds)
    return seconds

def again(seconds):
    note("again")
    time.sleep(seconds)
    return seconds

def wait_for(path):
    note("wait_for")
    while not os.path.exists(path):
        time.sleep(0.02)
    return 1

def hangs(number):
    note("hangs")
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        time.sleep(0.1)

def twice(x):
    note("twice")
    x *= 2
    return x

def doubled_after(x, path):
    note("doubled_after")
    while not os.path.exists(path):
        time.sleep(0.02)
    return x * 2

def both(x):
    return x + 1, float(x.sum())

def fail(text):
    raise ValueError(f"no {text} here")
'''
FUNCTIONS = """
[[function]]
name = "nap"
call = "solvers:nap"
arguments = ["in seconds float", "out slept float"]
operations = "1000000"

[[function]]
name = "again"
call = "solvers:again"
arguments = ["in seconds float", "out slept float"]
operations = "1000000"
idempotent = true

[[function]]
name = "wait_for"
call = "solvers:wait_for"
arguments = ["in path str", "out n int"]
operations = "1000000"

[[function]]
name = "hangs"
call = "solvers:hangs"
arguments = ["in number int", "out n int"]
operations = "1000000"

[[function]]
name = "twice"
call = "solvers:twice"
arguments = ["inout x float64[n]"]
operations = "n"

[[function]]
name = "doubled_after"
call = "solvers:doubled_after"
arguments = ["in x float64[n]", "in path str", "out y float64[n]"]
operations = "n"

[[function]]
name = "both"
call = "solvers:both"
arguments = ["in x float64[n]", "out y float64[n]", "out total float"]
operations = "n"
idempotent = true

[[function]]
name = "alices"
call = "solvers:nap"
arguments = ["in seconds float", "out slept float"]
operations = "1"
users = ["alice"]

[[function]]
name = "fail"
call = "solvers:fail"
arguments = ["in text str", "out n int"]
operations = "1"

[[function]]
name = "linsolve"
call = "rmgr.runner.python.shipped:linsolve"
arguments = ["in A float64[n,n]", "in b float64[n]", "out x float64[n]"]
operations = "2/3*n**3 + 2*n**2"
idempotent = true
"""


@contextmanager
def cluster_for_calls(directory: Path, zookeeper: ZooKeeperServer, *, watchdogs: int = 1) -> Iterator[DevCluster]:
    """Yields an open cluster of WatchDogs."""
    cluster = DevCluster(directory, nodes=0, watchdogs=watchdogs, secured=False, guest_of=zookeeper, session_timeout_s=LONG_S)
    cluster.start()
    try:
        with expiring(cluster):
            yield cluster
    finally:
        cluster.stop(at_once=True)


class Called:
    """Gateways g1.. and servers with two slots each, in a running cluster. Each file has other names for its servers.

    Args: linked: servers reach each gateway through a proxy of `links`, so that the link can be cut. shaped: each server reaches the first
        gateway through a link of its own of `shaped`, with a rate that can be set. speeds: million operations a second, where not 100.
    """

    def __init__(
        self,
        directory: Path,
        cluster: DevCluster,
        *,
        gateways: int = 1,
        servers: Sequence[str] = ("s1", "s2"),
        gateway: Mapping[str, str] | None = None,
        linked: bool = False,
        shaped: bool = False,
        speeds: Mapping[str, int] | None = None,
    ) -> None:
        self.directory = directory
        self.executions_file = directory / "executions"
        (directory / "solvers.py").write_text(SOLVERS)
        self.functions = directory / "functions.toml"
        self.functions.write_text(FUNCTIONS)
        self.gateway_variables = {"RMGR_SUBMITTER_REFRESH": "1s", **(gateway or {})}
        self.cluster = cluster
        for number in range(1, gateways + 1):
            self.cluster.start_gateway(f"g{number}", environment=self.gateway_variables)
        self.gateways = dict(zip((f"g{number}" for number in range(1, gateways + 1)), self.cluster.state.gateway.split(","), strict=True))
        self.links = {name: Proxy(endpoint, framed=False) for name, endpoint in self.gateways.items() if linked}
        self.shaped = {name: ShapedLink(self.gateways["g1"]) for name in servers if shaped}
        self.speeds = speeds or {}
        for name in servers:
            self.start_server(name)
        with self.caller() as caller:
            eventually(lambda: self.open_servers(caller) == len(servers), "as many are open as were started")
            eventually(lambda: set(self.names_of_open(caller)) == set(servers), "it is these that are open")

    def start_server(self, name: str, **variables: str) -> int:
        options = ["--functions", str(self.functions), "--slots", "2", "--speed", str(self.speeds.get(name, 100))]
        if name in self.shaped:
            options += ["--dial", self.shaped[name].endpoint]
        if self.links:
            options += ["--dial", ",".join(link.hosts for link in self.links.values())]
        return self.cluster.start_server(name, options=options, environment={"EXECUTIONS": str(self.executions_file), **variables})

    @contextmanager
    def caller(self, bundle: Path | None = None, *, gateway: str = "") -> Iterator[Caller]:
        """Yields a caller as the cluster's owner, or as the owner of `bundle`. gateway: name of the only gateway to use; default: all."""
        state, security = self.cluster.state, self.cluster.security
        where = str(bundle or (security.owner if security is not None else ""))
        sections = {"cluster": {"zk": state.zookeeper, "gateway": self.gateways.get(gateway, state.gateway)}, "security": {"dir": where}}
        made = Caller(load(sections, env={"HOME": "/"}))
        try:
            yield made
        finally:
            made.close()

    @staticmethod
    def names_of_open(caller: Caller) -> list[str]:
        """Returns the servers that the leader knows as open, for a moment also those of the gateway's life before."""
        return [server.name for server in caller.asked(lambda client: client.servers("")).servers if server.state == "open"]

    @classmethod
    def open_servers(cls, caller: Caller) -> int:
        try:
            return len(cls.names_of_open(caller))
        except Exception:  # the gateway is still starting
            return -1

    def executions(self, name: str = "") -> Counter[str]:
        """Returns how often each call was executed, by its id. name: counts this function only."""
        if not self.executions_file.exists():
            return Counter()
        lines = [line.split() for line in self.executions_file.read_text().splitlines()]
        return Counter(call for function, call, _ in lines if name in ("", function))

    def environment(self) -> dict[str, Any]:
        plain = {name: value for name, value in os.environ.items() if not name.startswith("RMGR_")}
        return plain | self.cluster.environment()

    def close(self) -> None:
        borrowed = [process for process in self.cluster.state.processes if process.role in {"submitter", "server"}]
        kill_processes(replace(self.cluster.state, processes=tuple(borrowed)))
        kept = tuple(process for process in self.cluster.state.processes if process not in borrowed)
        self.cluster.state = replace(self.cluster.state, processes=kept, gateway="")
        for link in self.links.values():
            link.close()
        for shaped in self.shaped.values():
            shaped.close()
