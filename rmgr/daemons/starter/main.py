"""`rmgr starter`: one process that runs work for one or more nodes; puts its parts together and takes them apart again."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from zlib import crc32

import psutil

from rmgr.adapters import terminals as rpc_terminal
from rmgr.adapters.access.limits import Bounds
from rmgr.adapters.host.accounts import Account
from rmgr.adapters.host.cgroup import CgroupConfig
from rmgr.adapters.host.process import NodeRunner, gpus_here
from rmgr.adapters.identity.credentials import Credentials
from rmgr.adapters.identity.trust import Trust
from rmgr.adapters.rpc.ranks import handler_of
from rmgr.adapters.rpc.services import node_handler
from rmgr.config import MAX_NODES, Config, StarterConfig
from rmgr.coord.protocol.ports import Coordinator, Store
from rmgr.daemons.service.keepers import SecretKeeper, WrittenKeeper, recognise
from rmgr.daemons.service.serving import DaemonShell
from rmgr.daemons.starter.execution.lanes import processors_of
from rmgr.daemons.starter.jobs.ranks import RanksAnswering, TerminalAnswering
from rmgr.daemons.starter.node.loop import Registrant, Starter
from rmgr.daemons.starter.node.node import Call, NodeAgent, Shared, passing_directories
from rmgr.daemons.starter.node.service import NodeAnswering
from rmgr.daemons.starter.node.trouble import WorkLimits
from rmgr.daemons.starter.pull.hands import Switchboard
from rmgr.daemons.starter.staging.accounts import Reach, open_to_users, policy_of, runs_as_user
from rmgr.errors import ConfigError
from rmgr.model.base import CUDA, GPU, Capacity, check_name
from rmgr.model.frames import MAX_INLINE_VALUE
from rmgr.model.identity import Role
from rmgr.model.node import Meta
from rmgr.model.units import counted
from rmgr.runner.host.files import remove_tree
from rmgr.runtime.interpreter import set_for_daemon
from rmgr.runtime.machine import Log
from rmgr.runtime.mailbox import Mailbox
from rmgr.runtime.secured import advertised, advertised_metrics

__all__ = ["run"]

#: Longest turn of the loop before the process ends itself; registering takes longer, and reports progress meanwhile.
STALL_S = 15.0
_META_WAIT_S = 30.0
#: Stands for users who are in no group that this machine's files name.
_STRANGER = Account(name="others", uid=65534, gid=65534)


def run(config: Config, *, insecure: bool = False) -> int:
    """Runs a Starter until SIGTERM or SIGINT; returns its exit code.

    Args: insecure: see `runtime.secured.check_exposure`.
    Raises: ConfigError; NotConnected, CoordinationUnavailable, WrongCluster at the start; StateConflict if another live
        Starter serves the node. A data store that does not answer is awaited in the background.
    """
    own, operators = config.starter, config.security.operators
    names = node_names(own)
    offered_cores(own)  # checked before anything is begun
    directory = work_directory(own, names[0], shared=runs_as_user(config.security, euid=os.geteuid()))
    with DaemonShell.opened(config, own, Role.STARTER, insecure=insecure, nodes=list(names)) as shell:
        coordinator, store, log, notifier = shell.coordinator, shell.store, shell.log, shell.notifier
        meta, credentials = recognise(coordinator, shell.credentials, config, shell.known, wait_s=_META_WAIT_S, log=log)
        where = {"zookeeper": coordinator.hosts, "store": config.cluster.store, "directory": str(directory)}
        log.info("starter_started", cluster_id=meta.cluster_id, **where)
        shell.belong_to(meta, credentials)
        server = shell.listen(Role.STARTER)
        agents: dict[str, NodeAgent] = {}
        lines = _open_lines(shell, agents)
        endpoint = advertised(server.endpoint, own.advertise)
        identity = Registrant(
            endpoint=endpoint,
            key_id=credentials.identity.key_id if credentials is not None else "",
            line=f"{endpoint.rpartition(':')[0]}:{lines.port}" if lines is not None else "",
            metrics=advertised_metrics(shell.measured.address, own.advertise),
        )
        starter = build(
            config,
            names,
            directory,
            coordinator,
            store,
            meta,
            log,
            identity,
            cgroups=CgroupConfig(),
            store_note=store.note,
            credentials=credentials,
            trust=shell.trust,
            bounds=shell.bounds,
        )
        agents.update(starter.agents)
        secret = None
        if credentials is not None:
            secret = SecretKeeper(coordinator, credentials, config, log).start()
            written = WrittenKeeper(store, f"starter-{names[0]}", shell.bounds, log).start(waits=False)
            shell.at_end.callback(written.close)
        shell.at_end.callback(starter.close)
        if lines is not None:
            shell.at_end.callback(lines.close)
        server.add_generic(node_handler(NodeAnswering(starter, operators)))
        server.add_generic(handler_of(RanksAnswering(starter)))
        server.add_generic(rpc_terminal.handler_of(TerminalAnswering(starter, operators)))
        with shell.serving(
            starter.shared.metrics.registry, starter.stop, starter.unable, whose="the Starter's", stall_s=STALL_S,
            ends_if_mute=False, patience=2, secret=secret,
        ) as guard:  # fmt: skip
            log.info("starter_listens", endpoint=server.endpoint, address=shell.measured.address)
            set_for_daemon()
            try:
                starter.serve(guard, notifier if notifier.is_on else None)
            finally:
                coordinator.close(timeout_s=2.0)  # first: the cluster need not wait for the session to expire
        if starter.failure is not None:
            raise starter.failure
        log.info("starter_stopped")
    return 0


def node_names(config: StarterConfig) -> tuple[str, ...]:
    """Returns the names of the process's nodes. Raises: ConfigError, UsageError."""
    base = check_name("node", config.node or socket.gethostname().partition(".")[0])
    if not 1 <= config.nodes <= MAX_NODES:
        raise ConfigError(f"nodes = {config.nodes} in one Starter; the limit is {MAX_NODES}", hint="start several Starters")
    return (base,) if config.nodes == 1 else tuple(check_name("node", f"{base}-{number}") for number in range(config.nodes))


def work_directory(config: StarterConfig, node: str, *, shared: bool = False) -> Path:
    """Returns the directory for everything that work needs on this node, made if absent. Raises: ConfigError.

    shared: other users' work runs in it, so it must not be in a home directory.
    """
    service = os.environ.get("STATE_DIRECTORY", "").partition(":")[0] or ("/var/lib/rmgr" if shared else "")  # systemd's StateDirectory=
    home = Path(service) if service else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rmgr"
    directory = Path(config.work_dir).resolve() if config.work_dir else home / node
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o755)
        for place in (directory, Path(config.work_dir or directory)) if shared else ():  # a link and its target
            owner = os.lstat(place).st_uid
            if owner not in (0, os.geteuid()):
                why = f"the work directory {place} belongs to uid {owner}, who could exchange what this Starter writes there"
                raise ConfigError(why, hint=f"rm -r {place}, chown root {place}, or choose another one with --work-dir")
        probe = directory / ".probe"
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        raise ConfigError(f"the work directory {directory} cannot be used: {error.strerror}", hint="choose one with --work-dir") from None
    return directory


def offered_cores(config: StarterConfig) -> int:
    """Returns the cores of each node for work, without those kept for calls. Raises: ConfigError."""
    cores = config.cores or len(os.sched_getaffinity(0))
    if not 0 <= config.call_cores < cores:
        most = f"0 to {cores - 1}" if cores > 1 else "0"
        raise ConfigError(
            f"[starter] call_cores = {config.call_cores} of a node of {counted(cores, 'core')}: one at least is left for its work",
            hint=f"call_cores = {most}; a machine for calls alone needs rmgr server and no Starter",
        )
    return cores - config.call_cores


def capacity_of(config: StarterConfig) -> Capacity:
    """Returns what each node offers: as configured, else all of this machine; GPUs are found only if it is one node."""
    found = gpus_here() if config.nodes == 1 and GPU not in config.resources else 0
    resources = {GPU: found} | config.resources
    return Capacity(
        resources={name: count for name, count in sorted(resources.items()) if count},
        cores=offered_cores(config),
        memory_bytes=config.memory_bytes or psutil.virtual_memory().total,
    )


def build(
    config: Config,
    names: tuple[str, ...],
    directory: Path,
    coordinator: Coordinator,
    store: Store,
    meta: Meta,
    log: Log,
    identity: Registrant,
    *,
    cgroups: CgroupConfig | None = None,
    store_note: Callable[[], str] = str,
    credentials: Credentials | None = None,
    trust: Trust | None = None,
    make_runner: Callable[..., NodeRunner] = NodeRunner,
    bounds: Bounds | None = None,
) -> Starter:
    """Puts a Starter together; ends leftovers of older incarnations first. Registers nothing yet.

    bounds: limits of each user.
    make_runner: makes what stands in for the runner of a node where work is not really run (`bench/load/virtual_starters.py`).
    """
    own, users = config.starter, policy_of(config.security)
    mailbox: Mailbox[Call] = Mailbox()

    def to_agent(name: str, events: list[Any]) -> None:
        """Takes reports of slots, which may come before their agent is made; the messages are handled later."""
        mailbox.put(lambda: shared.agents[name].on_work(events))

    capacity = capacity_of(own)
    processors = processors_of(
        names, cores=capacity.cores, mode=own.bind_cpus, has_all=not own.cores, available=sorted(os.sched_getaffinity(0))
    )
    runners: list[NodeRunner] = []
    for name in names:
        runner = make_runner(
            directory=str(directory / name / "run"),
            node=name,
            on_events=partial(to_agent, name),
            cgroups=cgroups,
            freezer=config.starter.freezer,
        )
        if capacity.resources.get(GPU):
            runner.environ[CUDA] = ""  # for work that asks for none
        runner.inline_bytes = min(MAX_INLINE_VALUE, store.adopts_above(str(directory)) or MAX_INLINE_VALUE)
        runner.hash_seed = crc32(meta.cluster_id.encode())
        runners.append(runner)
        for reaped in runner.reaped:
            log.warning("leftover_ended", node=name, detail=reaped)
    for left in passing_directories(directory, names):
        remove_tree(left)
    shared = Shared(
        config,
        directory,
        coordinator,
        store,
        meta,
        mailbox,
        log,
        credentials=credentials,
        trust=trust,
        bounds=bounds or Bounds(),
        users=users,
        store_note=store_note,
    )
    if users is not None:
        open_to_users(directory, names)
        if problem := Reach(python=own.python, directory=directory).problem(_STRANGER):
            log.warning("work_of_users_refused", why=problem)
    for name, runner in zip(names, runners, strict=True):
        runner.check = shared.home.check
        shared.agents[name] = NodeAgent(name, shared, runner, capacity=capacity, processors=processors.get(name, ()))
    kept = [directory / name / kind for name in names for kind in ("", "run", "run/cache", "stage", "jobs", "private")]
    shared.home.keep(directory, directory / "blobs", *filter(Path.is_dir, kept))
    if users is not None:
        WorkLimits(shared)
    return Starter(shared, identity)


def _open_lines(shell: DaemonShell, nodes: dict[str, NodeAgent]) -> Switchboard | None:
    """Opens the port for direct lines of clients; None if there is none, and everything works without."""
    own, trust = shell.config.starter, shell.trust
    if own.line_port < 0:
        return None
    is_revoked = trust.is_revoked if trust is not None else lambda _: False
    try:
        address = own.listen.rpartition(":")[0].strip("[]"), own.line_port
        return Switchboard(address, nodes, credentials=shell.credentials, is_revoked=is_revoked, log=shell.log, bounds=shell.bounds)
    except OSError as error:
        shell.log.warning("no_lines", error=str(error))
        return None
