"""The server of calls: named functions of a TOML file, run for clients that come through gateways.

It dials its gateways and opens no port; it needs neither ZooKeeper nor a store. A *life* is a random number, announced to every gateway;
within one life no call is executed twice (`owner.py`). A process begins another life only after all gateways had lost it for a minute.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from rmgr import log as logs
from rmgr.adapters.calls.serving import Hello, Lines
from rmgr.adapters.host.process import CgroupConfig, NodeRunner
from rmgr.adapters.identity.credentials import Credentials
from rmgr.adapters.rpc.channels import parse
from rmgr.config import Config, ServerConfig
from rmgr.daemons.server.owner import Message, Server, ServerLimits, ServerMetrics, Stop, Worked
from rmgr.daemons.server.work import LoadMeter, Work, machine_busy_s
from rmgr.daemons.service.metrics_place import MetricsPlace
from rmgr.errors import ConfigError, NotConnected, StateConflict
from rmgr.model.base import check_name
from rmgr.model.identity import Role
from rmgr.model.interface import Function, encode_interface, read_functions
from rmgr.model.units import counted, format_duration
from rmgr.runner.host import home
from rmgr.runner.host.files import remove_tree
from rmgr.runner.python import served
from rmgr.runtime import machine
from rmgr.runtime.interpreter import check_descriptors, set_for_daemon
from rmgr.runtime.machine import Log
from rmgr.runtime.mailbox import Mailbox, SignalMessages, run_loop
from rmgr.runtime.secured import check_exposure, credentials_of
from rmgr.runtime.supervision import Notifier, StallGuard

__all__ = ["run"]

#: Longest turn of the loop before the process ends itself.
STALL_S = 30.0
#: Time limit for importing the modules of all functions, and measuring the speed.
LOOK_S = 120.0
#: At the end: time for the streams to end in good order.
_GOODBYE_S = 2.0
#: Time from the end of the grace until the process has ended: slots are killed, streams end.
CLOSE_S = 10.0
#: For libraries that would use all cores: a slot is one core.
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
_SHIPPED = home.source("rmgr.runner.python.shipped").with_suffix(".toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What a server offers. directory: of the TOML file, where the functions' modules are found. mops: of one slot."""

    functions: tuple[Function, ...]
    directory: str
    mops: float
    mops_declared: bool


def run(config: Config, *, insecure: bool = False) -> int:
    """Runs a server until SIGTERM or SIGINT; returns its exit code.

    Args: insecure: see `runtime.secured.check_exposure`.
    Raises: ConfigError; NotConnected if no gateway is named; StateConflict if another live server uses its spool. Gateways that do not
        answer are no error: they are dialled again.
    """
    own = config.server
    notifier = Notifier.from_environment()  # first of all, so that no child process can notify in its name
    check_descriptors()
    credentials = credentials_of(config, Role.SERVER)
    check_exposure(credentials, listen="127.0.0.1", metrics=own.metrics, insecure=insecure)
    name = check_name("server", own.name or socket.gethostname().partition(".")[0])
    endpoints = gateways_of(config)
    log = logs.setup(config.log, "server", name=name)
    spool_directory(own, name)
    offer = look(own)
    try:
        while _lived(config, name, endpoints, spool_directory(own, name), offer, log, credentials, notifier):
            pass
    finally:
        notifier.close()
    log.info("server_stopped")
    sys.stderr.flush()
    return 0


def gateways_of(config: Config) -> tuple[str, ...]:
    """Returns HOST:PORT of each gateway, without duplicates. Raises: NotConnected, UsageError."""
    text = config.server.dial or config.cluster.gateway
    endpoints = tuple(dict.fromkeys(parse(part) for part in text.split(",") if part.strip()))
    if not endpoints:
        raise NotConnected("a server of calls needs gateways, and none is named", hint="--dial HOST:PORT,HOST:PORT or RMGR_GATEWAY")
    return endpoints


def spool_directory(config: ServerConfig, name: str) -> Path:
    """Returns the directory for arguments and answers, made if absent. Raises ConfigError."""
    service = os.environ.get("STATE_DIRECTORY", "").partition(":")[0]  # systemd's StateDirectory=
    place = Path(service) if service else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rmgr"
    directory = Path(config.spool).resolve() if config.spool else place / f"server-{name}"
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise ConfigError(f"the spool {directory} cannot be used: {error.strerror}", hint="choose another one with --spool") from None
    return directory


def look(config: ServerConfig) -> Offer:
    """Reads the functions, checks in a process of its own that each can be called, and measures the speed unless it is given.

    Raises: ConfigError with file, function and cause. Cost: a second or two.
    """
    file = Path(config.functions).resolve() if config.functions else _SHIPPED
    try:
        functions = read_functions(file.read_text("utf-8"), str(file))
    except OSError as error:
        raise ConfigError(f"the functions {file} cannot be read: {error.strerror}", hint="--functions FILE") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"the functions {file} are no UTF-8: {error}") from None
    directory = str(file.parent)
    calls = list(dict.fromkeys(function.call for function in functions))
    found = _found(config.python, served.Question(calls=tuple(calls), sys_path=(directory,), measures=not config.speed))
    interfaces = [function.interface for function in functions]
    needs = [one.name for one in interfaces if any(argument.shape is not None for argument in one.arguments)]
    if not found.numpy and (needs or not config.speed):
        what = f"arrays (function {needs[0]})" if needs else "a measurement of the speed"
        hint = "pip install 'numpy>=1.24'" + ("" if needs else ", or give --speed MOPS")
        raise ConfigError(f"{what} need numpy, which {config.python or 'this Python'} does not have", hint=hint)
    for function in functions:
        if function.call in found.troubles:
            why = found.troubles[function.call]
            raise ConfigError(f"{file}: function {function.interface.name}: {function.call} cannot be called: {why}")
    return Offer(functions=functions, directory=directory, mops=config.speed or found.mops, mops_declared=bool(config.speed))


def _found(python: str, question: served.Question) -> served.Found:
    environ = {**os.environ, **_ONE_THREAD}
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(home.ROOT), environ.get("PYTHONPATH", ""))))
    argv = [python or home.PYTHON, "-P", "-m", "rmgr.runner.python.served", msgspec.json.encode(question).decode()]
    try:
        ended = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, env=environ, timeout=LOOK_S, check=False)
    except OSError as error:
        raise ConfigError(f"the interpreter {argv[0]} cannot be started: {error.strerror}", hint="--python PATH") from None
    except subprocess.TimeoutExpired:
        what = f"importing the functions, and measuring the speed, took more than {format_duration(LOOK_S)}"
        raise ConfigError(what, hint="--speed MOPS") from None
    try:
        return served.found_of(ended.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        shown = ended.stderr.decode("utf-8", "replace").strip().splitlines()[-1:] or [f"exit code {ended.returncode}"]
        raise ConfigError(f"the functions cannot be imported: {shown[0]}") from None


def _runner(spool: Path, name: str, mailbox: Mailbox[Message]) -> NodeRunner:
    try:
        return NodeRunner(
            directory=str(spool / "run"), node=name, on_events=lambda events: mailbox.put(Worked(tuple(events))), cgroups=CgroupConfig()
        )
    except StateConflict:
        raise StateConflict(
            f"the spool {spool} is used by another server that is alive", hint="stop it, or give this one another --name or --spool"
        ) from None


def _lived(
    config: Config,
    name: str,
    endpoints: Sequence[str],
    spool: Path,
    offer: Offer,
    log: Log,
    credentials: Credentials | None,
    notifier: Notifier,
) -> bool:
    """Runs one life, and cleans up after it. Returns whether another one is to begin."""
    own = config.server
    life = int(machine.random_hex(8), 16) or 1
    mailbox: Mailbox[Message] = Mailbox()
    metrics = ServerMetrics()
    measured = MetricsPlace(own.metrics, Role.SERVER)
    runner = _runner(spool, name, mailbox)
    for reaped in runner.reaped:
        log.warning("leftover_ended", detail=reaped)
    files = spool / "calls"
    remove_tree(files)
    files.mkdir(mode=0o700)
    slots = own.slots or len(os.sched_getaffinity(0))
    environ = {**_ONE_THREAD, "RMGR_CALL_MOPS": repr(offer.mops)}
    calls = tuple(dict.fromkeys(function.call for function in offer.functions))
    work = Work(runner, slots, calls=calls, environ=environ, sys_path=(offer.directory,), python=own.python, log=log)
    load = LoadMeter(slots, os.cpu_count() or 1, machine.monotonic(), busy_s=machine_busy_s, own_s=work.processor_s)
    guard = StallGuard(STALL_S, name="the server's loop", on_progress=notifier.beat).start()
    limits = ServerLimits(
        most_waiting=own.most_waiting,
        per_user=own.per_user,
        spool_bytes=own.spool_cap_bytes,
        max_bytes=own.max_bytes,
        grace_s=own.stop_grace_s,
    )

    def progress() -> None:
        guard.progress()
        if server.is_leaving:
            notifier.stopping(within_s=own.stop_grace_s + CLOSE_S)
        if notifier.is_on:
            notifier.tell(f"{counted(server.gateways, 'gateway')}; {server.running} running, {server.waiting} waiting")

    server = Server(
        offer.functions,
        work,
        files,
        limits,
        beside=Path(runner.directory),
        life=life,
        mailbox=mailbox,
        load=load,
        metrics=metrics,
        log=log,
        progress=progress,
    )
    hello = Hello(
        name=name,
        site=own.site,
        life=life,
        slots=slots,
        mops=offer.mops,
        mops_declared=offer.mops_declared,
        functions=tuple(encode_interface(function.interface) for function in offer.functions),
        most_waiting=own.most_waiting,
        users=tuple((function.interface.key, function.users) for function in offer.functions if function.users),
    )
    lines = Lines(endpoints, hello, credentials, mailbox.put, takes=own.most_waiting + slots)
    metrics.gateways.set_function(lambda: server.gateways)
    metrics.running.set_function(lambda: server.running)
    metrics.waiting.set_function(lambda: server.waiting)
    metrics.spool_bytes.set_function(lambda: server.used_bytes)
    end_metrics = measured.serve(
        metrics.registry, lambda: "" if server.gateways else "no gateway has its stream", credentials=credentials, trust=None
    )
    signals = SignalMessages(lambda _signal: mailbox.put(Stop()))
    signals.install()
    set_for_daemon()
    lines.start()
    log.info(
        "server_started",
        incarnation=f"{life:016x}",
        endpoint=",".join(endpoints),
        address=measured.address,
        directory=str(spool),
        cores=slots,
        count=len(offer.functions),
        rate=round(offer.mops, 1),
    )
    notifier.ready()
    try:
        run_loop(server)
    finally:
        goes_on = server.is_outlived and not server.is_leaving
        if not goes_on:
            notifier.stopping()
        guard.stop()
        work.close()
        lines.close(_GOODBYE_S)
        end_metrics()
        signals.restore()
        remove_tree(files)
    return goes_on
