"""A whole cluster on this machine: real ZooKeeper, WatchDogs and Starters, each in its own process (`rmgr dev`).

The directory holds everything: data of ZooKeeper and the store, logs, work, and `cluster.json`, which names each
process by pid and start time, so that `rmgr dev stop` from any shell ends exactly these and no others.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import psutil

from rmgr.adapters.identity.credentials import LOCAL_HOSTS, Credentials, ensure_authority, ensure_bundle
from rmgr.adapters.identity.pki import Authority, issue_server
from rmgr.adapters.identity.trust import publish
from rmgr.adapters.zookeeper.client import ZkCoordinator
from rmgr.config import ClusterConfig, Config, SecurityConfig, user_name
from rmgr.coord.views.snapshot import ClusterSnapshot
from rmgr.dev import keeper
from rmgr.dev.cassandra import CassandraNode
from rmgr.dev.cassandra import prepare as prepare_cassandra
from rmgr.dev.server import ServerProcess, free_port
from rmgr.dev.zookeeper import ServerTls, ZooKeeperEnsemble, ZooKeeperServer
from rmgr.errors import ConfigError, RmgrError, StateConflict, Unavailable, WrongCluster
from rmgr.model.identity import Role
from rmgr.model.node import NodeState
from rmgr.model.units import counted, format_duration
from rmgr.procedures.snapshot import read_snapshot
from rmgr.runtime.secured import close_zookeeper, credentials_of, zookeeper_options

#: Session timeout of a cluster on one machine: short, so that a user who kills a part sees the effect soon.
SESSION_TIMEOUT_S = 6.0
#: Session timeout of observers: their sessions hold nothing, and outlast a machine that stands still.
_LOOKING_S = 30.0
CHROOT = "/rmgr/dev"
#: `--store cassandra`: the store is the cluster's own node.
OWN_CASSANDRA = "cassandra"
_CASSANDRA_HEAP_MB = 400
_POLL_S = 0.05
#: Time for a process that was just killed to disappear.
_LEAVING_S = 1.0
#: For work of its Starters. By routes, Open MPI 5 finds no way from a machine to itself; and its `han` takes nodes of one machine for one.
ONE_MACHINE = {"OMPI_MCA_reachable": "weighted", "OMPI_MCA_coll": "^han"}
#: If set to 1, clusters of `rmgr dev` are open: for tests, and to see what security costs.
OPEN_VARIABLE = "RMGR_DEV_OPEN"


class DevCluster:
    """Starts, watches, breaks and stops a cluster in one directory.

    Args:
        directory: made if absent; a cluster that was stopped there continues with its data.
        nodes, cores: number of Starters, and cores of each. watchdogs, zookeepers: numbers. servers: of calls, with a gateway for them.
        zookeeper_release: "3.8", "3.9", "" = the available one (`zookeeper.class_path`).
        store: URL; default: SQLite in the directory; "cassandra": a Cassandra node of its own in the directory.
        starter_options, environment: additional options of each Starter, and variables of each daemon (failpoints).
        heap_mb: of each ZooKeeper server.
        secured: with credentials for all its processes and its user (`DevSecurity`); None: unless RMGR_DEV_OPEN=1.
        zookeeper_tls: ZooKeeper speaks only TLS, with holders of the cluster's certificates; requires `secured`.
        zookeeper_words: four-letter words that ZooKeeper answers (`dev/zookeeper.py`).
        guest_of: a running server or ensemble, shared with other clusters: it is neither started nor stopped, and this
            cluster lives below a path of its own.
    """

    def __init__(
        self,
        directory: Path,
        *,
        nodes: int = 3,
        cores: int = 2,
        watchdogs: int = 2,
        zookeepers: int = 1,
        servers: int = 0,
        store: str = "",
        session_timeout_s: float = SESSION_TIMEOUT_S,
        starter_options: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        heap_mb: int = 512,
        zookeeper_release: str = "",
        secured: bool | None = None,
        zookeeper_tls: bool = False,
        zookeeper_words: Sequence[str] = ("srvr",),
        guest_of: ZooKeeperServer | ZooKeeperEnsemble | None = None,
    ) -> None:
        self.directory = directory.resolve()
        is_secured = not is_open_asked() if secured is None else secured
        self.security = DevSecurity(self.directory / "security") if is_secured else None
        self._counts = (nodes, cores, watchdogs)
        self._servers = servers
        self._gateways: dict[str, str] = {}
        self._starter_options = tuple(starter_options)
        self._environment = dict(environment or {})
        tick_ms = int(min(1000, session_timeout_s * 1000 / 4))
        where = self.directory / "zookeeper"
        tls = self.security.server_tls() if zookeeper_tls and self.security is not None else None
        self._is_guest = guest_of is not None
        self._chroot = f"{CHROOT}-{secrets.token_hex(6)}" if self._is_guest else CHROOT
        zoo: dict[str, Any] = {"tick_ms": tick_ms, "heap_mb": heap_mb, "release": zookeeper_release, "tls": tls, "words": zookeeper_words}
        self.zookeeper: ZooKeeperServer | ZooKeeperEnsemble = guest_of or (
            ZooKeeperServer(where, **zoo) if zookeepers == 1 else ZooKeeperEnsemble(where, size=zookeepers, **zoo)
        )
        self._heap_mb = heap_mb
        self.cassandra = CassandraNode(self.directory / "cassandra", heap_mb=_CASSANDRA_HEAP_MB) if store == OWN_CASSANDRA else None
        if self.cassandra is not None:
            store = f"cassandra://{self.cassandra.contact}/rmgr?replication_factor=1"
        self.state = keeper.DevState(
            directory=str(self.directory),
            zookeeper=f"{self.zookeeper.hosts}{self._chroot}",
            store=store or f"sqlite:{self.directory / 'store.db'}",
            session_timeout_s=session_timeout_s,
            zookeeper_tls=tls is not None,
        )
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._recipes: dict[str, keeper.Recipe] = {}
        self._log_starts: dict[str, int] = {}  # offset in its log at which a name's current process begins
        self._coordinator: ZkCoordinator | None = None

    # -- life cycle -----------------------------------------------------------------------------------------------------

    def start(self, *, deadline_s: float = 60.0, report: Callable[[str], None] = lambda _: None) -> keeper.DevState:
        """Starts every part, and waits until all are healthy.

        Args:
            report: called with one line for each step.
            deadline_s: counted without the time for fetching missing jars of Cassandra.
        Raises: StateConflict if a cluster already runs in the directory; Unavailable if a part does not come up
            (then everything is stopped again, and the message contains the end of its log).
        """
        end = time.monotonic() + deadline_s
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        if self.security is not None:
            self.state = replace(self.state, security=str(self.security.owner))
        old = keeper.read_state(self.directory)
        if old is not None and old.is_running:
            raise StateConflict(
                f"a cluster runs in {self.directory} already", hint=f"rmgr dev stop --dir {self.directory}, or choose another --dir"
            )
        if old is not None and (self.directory / "zookeeper").exists():
            self._check_kind(old)
        if self.cassandra is not None:
            began_s = time.monotonic()
            prepare_cassandra(report)
            end += time.monotonic() - began_s  # a download is not counted
        try:
            report("starting ZooKeeper and Cassandra" if self.cassandra is not None else "starting ZooKeeper")
            if self.cassandra is not None:
                self.cassandra.start(wait_s=0)
                self._record_server("cassandra", "c1", self.cassandra)
            if not self._is_guest:
                self.zookeeper.start()
                servers = [self.zookeeper] if isinstance(self.zookeeper, ZooKeeperServer) else self.zookeeper.servers
                for number, server in enumerate(servers, 1):
                    self._record_server("zookeeper", f"zk{number}", server)
                self._close_root()
            if self.cassandra is not None:
                self.cassandra.wait_ready(max(1.0, end - time.monotonic()))
                self._init_store(end, report)
            nodes, cores, watchdogs = self._counts
            calls = f", a gateway and {counted(self._servers, 'server')}" if self._servers else ""
            report(f"starting {counted(watchdogs, 'WatchDog')} and {counted(nodes, 'Starter')}{calls}")
            for number in range(1, watchdogs + 1):
                self.start_watchdog(f"w{number}")
            for number in range(1, nodes + 1):
                self.start_starter(f"n{number}", cores=cores)
            self.wait_healthy(nodes=nodes, leader=watchdogs > 0, deadline_s=end - time.monotonic(), are_new=True)
            if self._servers:
                self.start_gateway()
            for number in range(1, self._servers + 1):
                self.start_server(f"s{number}")
            if self._servers:
                self.wait_servers(self._servers, deadline_s=end - time.monotonic())
            keeper.write_recipes(self.directory, self._recipes)
        except BaseException:
            self.stop()
            raise
        return self.state

    def _check_kind(self, old: keeper.DevState) -> None:
        """Checks that a cluster continues as the same kind: servers of another ensemble would be empty, and znodes keep their access lists.

        Raises: ConfigError, before anything is started.
        """
        was, asked = old.zookeeper.count(",") + 1, self.state.zookeeper.count(",") + 1
        if was != asked:
            what, fix = f"has {counted(was, 'ZooKeeper server')}, not {asked}", f"rmgr dev --zookeepers {was}"
        elif old.security and not self.state.security:  # an open cluster may become secured: its WatchDogs secure the tree
            what, fix = "is secured", "rmgr dev without RMGR_DEV_OPEN"
        elif old.store.partition(":")[0] != self.state.store.partition(":")[0]:
            kind = old.store.partition(":")[0]
            what, fix = f"keeps its values in {kind}", "rmgr dev" if kind == "sqlite" else f"rmgr dev --store {kind}"
        else:
            return
        raise ConfigError(
            f"the cluster in {self.directory} {what}",
            hint=f"go on with it: {fix}   another one beside it: --dir DIR   begin afresh, and lose its work: rm -r {self.directory}",
        )

    def _init_store(self, end: float, report: Callable[[str], None]) -> None:
        """Makes the schema in the cluster's own Cassandra; no other process uses it yet, so no lock is needed."""
        from rmgr.adapters.cassandra.setup import init_store
        from rmgr.adapters.cassandra.url import parse_url

        report("making rmgr's tables in Cassandra")
        init_store(parse_url(self.state.store), timeout_s=max(1.0, end - time.monotonic()))

    def _close_root(self) -> None:
        """Reserves ZooKeeper for this cluster, before any other process comes."""
        config = self.admin_config()
        mine = credentials_of(config)
        if mine is not None:
            close_zookeeper(config, mine, heap_mib=self._heap_mb)

    def start_watchdog(self, name: str, *, environment: Mapping[str, str] | None = None) -> int:
        """Starts a WatchDog, with additional variables. Returns its pid."""
        return self._spawn("watchdog", name, [], environment or {})

    def start_starter(self, name: str, *, cores: int = 2, options: Sequence[str] = (), environment: Mapping[str, str] | None = None) -> int:
        """Starts a Starter, with additional options and variables. Returns its pid."""
        arguments = ["--node", name, "--cores", str(cores), "--work-dir", str(self.directory / "work" / name)]
        return self._spawn("starter", name, [*arguments, *self._starter_options, *options], {**ONE_MACHINE, **(environment or {})})

    def start_gateway(self, name: str = "g1", *, environment: Mapping[str, str] | None = None) -> int:
        """Starts a gateway, at an endpoint of its own that clients and servers know. Returns its pid."""
        if name not in self._gateways:
            self._gateways[name] = f"127.0.0.1:{free_port()}"
        self.state = replace(self.state, gateway=",".join(self._gateways.values()))
        return self._spawn("submitter", name, ["--listen", self._gateways[name]], environment or {})

    def start_server(self, name: str, *, options: Sequence[str] = (), environment: Mapping[str, str] | None = None) -> int:
        """Starts a server of calls with the shipped functions. Returns its pid. It dials until the gateway is there."""
        if self.security is not None:  # as `rmgr admin add-server` does: only a published key can be revoked
            publish(self.coordinator, Credentials.load(self.security.bundle(Role.SERVER, name), roles=(Role.SERVER,)))
        arguments = ["--name", name, "--dial", self.state.gateway, "--spool", str(self.directory / "work" / name)]
        return self._spawn("server", name, [*arguments, *options], environment or {})

    def kill(self, name: str, sig: int = signal.SIGKILL) -> int:
        """Sends a signal to the process with this id. Returns its pid. Raises KeyError."""
        process = self.process(name)
        os.kill(process.pid, sig)
        child = self._children.get(name)
        if sig == signal.SIGKILL and child is not None:
            child.wait(10.0)
        return process.pid

    def process(self, name: str) -> keeper.DevProcess:
        """Returns the newest process with this id. Raises KeyError."""
        for process in reversed(self.state.processes):
            if process.id == name:
                return process
        raise KeyError(name)

    def stop(self, *, timeout_s: float = 20.0, at_once: bool = False) -> None:
        """Ends every process: Starters and WatchDogs in good order, ZooKeeper and Cassandra last. Idempotent.

        Args:
            at_once: SIGKILL for all processes and their descendants, for a cluster that will not be started again.
        """
        self.look_away()
        if at_once:
            keeper.kill_processes(self.state)
        else:
            keeper.stop_processes(self.state, timeout_s=timeout_s)
        for child in self._children.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(1.0)
        if not self._is_guest:
            self.zookeeper.stop()
        if self.cassandra is not None:
            self.cassandra.stop()
        keeper.forget(self.state)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # -- observing -------------------------------------------------------------------------------------------------------

    def look_away(self) -> None:
        """Ends the session opened by `coordinator`, which costs the cluster something. Idempotent."""
        if self._coordinator is not None:
            self._coordinator.close()
            self._coordinator = None

    @property
    def coordinator(self) -> ZkCoordinator:
        """A session with the admin's rights, opened on first use."""
        if self._coordinator is None:
            config = self.admin_config()
            options = zookeeper_options(config, credentials_of(config))
            hosts, long_s = self.zookeeper.hosts, max(_LOOKING_S, self.state.session_timeout_s)
            self._coordinator = ZkCoordinator.connect(hosts, self._chroot, session_timeout_s=long_s, **options)
        return self._coordinator

    def snapshot(self, *, submissions: bool = True) -> ClusterSnapshot:
        """Reads facts from ZooKeeper; see `read_snapshot`."""
        return read_snapshot(self.coordinator, None, submissions=submissions)

    def wait_healthy(self, *, nodes: int, leader: bool = True, deadline_s: float, are_new: bool = False) -> None:
        """Waits for a leader, and until `nodes` nodes are up. Raises Unavailable with the log of what is missing.

        are_new: counts only processes of this object. Entries of a cluster killed in this directory stay until their sessions end.
        """

        def missing() -> str:
            snapshot = self.snapshot(submissions=False)
            ours = {process.pid for process in self.state.processes}
            alive = [record for record in snapshot.nodes.values() if record.state is NodeState.UP and record.guid in snapshot.alive]
            up = sum(not are_new or record.pid in ours for record in alive)
            leads = snapshot.leader_alive and (not are_new or (snapshot.epoch is not None and snapshot.epoch.pid in ours))
            if leader and not leads:
                return "no leader"
            return "" if up >= nodes else f"{up} of {nodes} nodes up"

        self._await(missing, deadline_s)

    def wait_servers(self, count: int, *, deadline_s: float) -> None:
        """Waits until `count` servers can take calls. Raises Unavailable with the log of what is missing."""
        from rmgr.client.calls import Caller  # few clusters have servers

        config = self.admin_config()
        caller = Caller(replace(config, cluster=replace(config.cluster, gateway=self.state.gateway)))

        def missing() -> str:
            there = 0
            with contextlib.suppress(Unavailable):  # the gateway is starting
                there = sum(server.state == "open" for server in caller.asked(lambda client: client.servers("")).servers)
            return "" if there >= count else f"{there} of {count} servers are open"

        try:
            self._await(missing, deadline_s)
        finally:
            caller.close()

    def _await(self, missing: Callable[[], str], deadline_s: float) -> None:
        """Waits until `missing` names nothing. Raises Unavailable, at once if a process has ended."""
        end = time.monotonic() + deadline_s
        while True:
            for process in self.state.processes:
                if process.find() is None:
                    raise self._stillborn(process)
            if not (lacking := missing()):
                return
            if time.monotonic() > end:
                message = f"the cluster is not healthy after {format_duration(deadline_s)}: {lacking}"
                raise Unavailable(message, hint=f"logs: {self.directory / 'log'}")
            time.sleep(_POLL_S)

    def log_file(self, name: str) -> Path:
        """Returns the file with a daemon's stderr."""
        return self.directory / "log" / f"{name}.log"

    def log_tail(self, name: str, size_bytes: int = 2000) -> str:
        """Returns the end of a daemon's log."""
        with contextlib.suppress(OSError):
            return self.log_file(name).read_bytes()[-size_bytes:].decode("utf-8", "replace").strip()
        return "(no log)"

    def _stillborn(self, process: keeper.DevProcess) -> RmgrError:
        """Returns why a daemon ended at its start: its own last words, with advice for this cluster."""
        with contextlib.suppress(OSError):
            data = self.log_file(process.id).read_bytes()[self._log_starts.get(process.id, 0) :]
            _, found, words = data.decode("utf-8", "replace").rpartition("rmgr: ")
            lines = [line.strip() for line in words.splitlines() if found and line.strip()]
            wiped = f"{self.directory / 'zookeeper'} was wiped or replaced, but the data store remembers the cluster: restore it"
            emptied = f"restore it ({self.state.store}) from a backup"
            for sign, fix in (("is expected", wiped), ("the data store is empty", emptied)):
                if lines and sign in lines[0]:
                    hint = f"{fix}, or begin afresh elsewhere (rmgr dev --dir DIR), or give up all work and values: rm -r {self.directory}"
                    return WrongCluster(f"{process.role} {process.id} refuses to start: {lines[0]}", hint=hint)
            if lines:
                hint = "; ".join([*lines[1:2], f"logs: {self.directory / 'log'}"])
                return Unavailable(f"{process.role} {process.id} ended at its start: {lines[0]}", hint=hint)
        return Unavailable(
            f"{process.role} {process.id} ended at its start: {self.log_tail(process.id)}", hint=f"logs: {self.directory / 'log'}"
        )

    def environment(self) -> dict[str, str]:
        """Returns variables with which the user's rmgr programs find this cluster."""
        return {
            "RMGR_ZK": self.state.zookeeper,
            "RMGR_STORE": self.state.store,
            "RMGR_CLUSTER_SESSION_TIMEOUT_S": str(self.state.session_timeout_s),
            "RMGR_SECURITY_DIR": str(self.security.owner) if self.security is not None else "",
            "RMGR_SECURITY_ZOOKEEPER_TLS": "true" if self.state.zookeeper_tls else "false",
            **({"RMGR_GATEWAY": self.state.gateway} if self.state.gateway else {}),
        }

    def daemon_environment(self, role: str, name: str) -> dict[str, str]:
        """Returns variables of a daemon: its own credentials; work runs, and submits more, as the cluster's user."""
        variables = self.environment() | {"RMGR_SECURITY_RUN_AS": "self"}
        if self.security is not None:
            variables["RMGR_SECURITY_WORK_BUNDLE"] = variables["RMGR_SECURITY_DIR"]
            variables["RMGR_SECURITY_DIR"] = str(self.security.bundle(Role(role), name))
        return variables

    def admin_config(self) -> Config:
        """Returns the configuration of the admin, who may do everything here."""
        state = self.state
        return Config(
            cluster=ClusterConfig(zk=state.zookeeper, store=state.store, session_timeout_s=state.session_timeout_s),
            security=SecurityConfig(dir=str(self.security.admin) if self.security is not None else "", zookeeper_tls=state.zookeeper_tls),
        )

    # -- inside ------------------------------------------------------------------------------------------------------------

    def _spawn(self, role: str, name: str, options: Sequence[str], more: Mapping[str, str]) -> int:
        """Starts a daemon. Raises: StateConflict while a process of that name runs: without its name it would never be ended."""
        running = [found for process in self.state.processes if process.id == name and (found := process.find()) is not None]
        if keeper.await_ends(running, timeout_s=_LEAVING_S):
            message = f"{role} {name} of the cluster in {self.directory} runs already (pid {running[0].pid})"
            raise StateConflict(message, hint="choose another name, or end that one first")
        log = self.log_file(name)
        argv = (sys.executable, "-m", "rmgr.cli.main", role, *options)
        variables = self.daemon_environment(role, name) | self._environment | dict(more)
        self._recipes[name] = recipe = keeper.Recipe(argv=argv, cwd=str(self.directory), log=str(log), variables=variables)
        self._log_starts[name] = log.stat().st_size if log.exists() else 0
        child = recipe.start()
        self._children[name] = child
        self._record(role, name, child.pid)
        return child.pid

    def _record_server(self, role: str, name: str, server: ServerProcess) -> None:
        process = psutil.Process(server.pid or 0)
        self._recipes[name] = keeper.Recipe(argv=tuple(process.cmdline()), cwd=process.cwd(), log=str(server.log_file))
        self._record(role, name, process.pid)

    def keep(self) -> None:
        """Has processes that die restarted from now on, by a process that outlives this one (`dev/keeper.py`)."""
        argv = (sys.executable, "-m", "rmgr.dev.keeper", str(self.directory))
        self._recipes[keeper.KEEPER] = recipe = keeper.Recipe(argv=argv, cwd=str(self.directory), log=str(self.log_file(keeper.KEEPER)))
        keeper.write_recipes(self.directory, self._recipes)
        self._record(keeper.KEEPER, keeper.KEEPER, recipe.start().pid)

    def _record(self, role: str, name: str, pid: int) -> None:
        others = tuple(process for process in self.state.processes if process.id != name)
        self.state = replace(self.state, processes=(*others, keeper.DevProcess.of(role, name, pid)))
        keeper.write_state(self.state)


class DevSecurity:
    """Bundles below `directory`, made on demand. Cost: 2 ms each, once."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def bundle(self, role: Role, name: str) -> Path:
        """Returns the bundle of a daemon or person; renews an expired one."""
        where = self.directory / "bundles" / f"{role}-{name}"
        ensure_bundle(self._ca(), where, name, role, hosts=LOCAL_HOSTS, renew=True)
        return where

    @property
    def owner(self) -> Path:
        """The bundle of the cluster's user, who may act on everybody's work, and has a gateway's ZooKeeper secret."""
        return self.bundle(Role.OPERATOR, user_name())

    @property
    def admin(self) -> Path:
        """The admin's bundle, which contains the authority."""
        self._ca()
        return self.directory

    def server_tls(self) -> ServerTls:
        """Returns the identity that ZooKeeper's servers on this machine show."""
        authority = self._ca()
        certificate, key = issue_server(authority, "zookeeper", LOCAL_HOSTS)
        return ServerTls(certificate=certificate, key=key, ca=authority.cert_pem)

    def _ca(self) -> Authority:
        return ensure_authority(self.directory)[0]  # read anew: a revocation changes the secret of a role


def is_open_asked() -> bool:
    """Whether the variable asks for open clusters."""
    return os.environ.get(OPEN_VARIABLE, "").lower() in {"1", "true", "yes", "on"}
