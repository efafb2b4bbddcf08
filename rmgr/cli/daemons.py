"""`rmgr starter`, `watchdog`, `submitter`, `server`: the daemons; options are the keys of their section of the configuration."""

from __future__ import annotations

import importlib
import signal
from collections.abc import Callable, Mapping
from typing import Any

import click

from rmgr.cli.session import Session, WorkEnded, command
from rmgr.cli.words.params import DURATION, RESOURCE, SIZE, one_of
from rmgr.config import MAX_NODES
from rmgr.runner.host import dispositions

_EXITS = """\
0 stopped in good order (SIGTERM, SIGINT)
1 failed, 2 configuration, 5 ZooKeeper or store cannot be reached at the start"""


def _log_options(function: Callable[..., Any]) -> Callable[..., Any]:
    levels, formats = ("debug", "info", "warning", "error"), ("auto", "json", "pretty")
    function = click.option("--log-format", type=one_of("format", formats), metavar="auto|json|pretty", help="form of the log on stderr")(
        function
    )
    return click.option("--log-level", type=one_of("level", levels), metavar="LEVEL", help="debug, info, warning or error")(function)


def _metrics_option(function: Callable[..., Any]) -> Callable[..., Any]:
    message = "Prometheus metrics and /healthz; an address alone: the daemon's own port (rmgr nodes -o +metrics)  [127.0.0.1]"
    return click.option("--metrics", metavar="HOST[:PORT]", help=message)(function)


def _listen_options(function: Callable[..., Any]) -> Callable[..., Any]:
    function = _metrics_option(function)
    return click.option("--listen", metavar="HOST:PORT", help="gRPC; port 0 = any free one  [127.0.0.1:0]")(function)


def _security_options(function: Callable[..., Any]) -> Callable[..., Any]:
    function = click.option("--insecure", is_flag=True, help="listen beyond loopback although callers need no credentials")(function)
    return click.option("--security-dir", metavar="DIR", help="its bundle of credentials (rmgr admin init)  [RMGR_SECURITY_DIR]")(function)


#: role -> module whose `run` is the daemon.
MODULES = {
    "starter": "rmgr.daemons.starter.main",
    "watchdog": "rmgr.daemons.leader.watchdog",
    "submitter": "rmgr.daemons.gateway.main",
    "server": "rmgr.daemons.server.main",
}


def _run(session: Session, role: str, values: Mapping[str, Any]) -> None:
    """Loads the configuration, overridden by the options, and hands over to the daemon."""
    dispositions.begin(deaf_to=(signal.SIGHUP,))
    log = {"level": values.get("log_level"), "format": values.get("log_format")}
    own = {key: value for key, value in values.items() if not key.startswith("log_l") and not key.startswith("log_f")}
    insecure = own.pop("insecure", False)  # never from a file or a variable: it must be typed
    config = session.config({role: own, "log": log, "security": {"dir": own.pop("security_dir", None)}})
    typed = {"insecure": True} if insecure else {}
    importlib.import_module("rmgr.log")  # first of all: from here on, modules that no daemon uses are not loaded
    ended = importlib.import_module(MODULES[role]).run(config, **typed)
    if isinstance(ended, int) and ended:
        raise WorkEnded(ended)


@command(
    "starter",
    examples="""\
    rmgr starter --zk zk1:2181,zk2:2181,zk3:2181 --store sqlite:/srv/rmgr/store.db
    rmgr starter --node n1 --cores 4 --mem 8G --partition batch --features gpu,ssd
    rmgr starter --resource gpu=2 --resource licence=1
    rmgr starter --nodes 8 --cores 1            # eight virtual nodes, one process""",
    exits=_EXITS,
)
@click.option("--node", metavar="NAME", help="name of the node  [host name]; of virtual nodes the prefix")
@click.option(
    "--nodes", type=click.IntRange(1, MAX_NODES), metavar="N", help=f"virtual nodes that this process provides, at most {MAX_NODES}  [1]"
)
@click.option("--cores", "-c", type=click.IntRange(0), metavar="C", help="cores offered by each node  [0 = all of the machine]")
@click.option("--mem", "memory_bytes", type=SIZE, metavar="SIZE", help="memory offered by each node  [0 = all of the machine]")
@click.option("--partition", metavar="NAME", help="the set of nodes it belongs to  [default]")
@click.option("--site", metavar="NAME", help="location: shown only, for people and custom policies")
@click.option("--speed", type=float, metavar="X", help="relative to the cluster's reference node: shown only  [1.0]")
@click.option("--features", metavar="A,B", help="features that work may request with --features")
@click.option("--resource", "resources", metavar="NAME=N", multiple=True, type=RESOURCE, help="countable resources of each node: gpu=2")
@click.option("--work-dir", metavar="DIR", help="work directories, captured output, spool")
@click.option("--stop-grace", "stop_grace_s", type=DURATION, metavar="DURATION", help="time for running work after SIGTERM  [30s]")
@click.option("--log-cap", "log_cap_bytes", type=SIZE, metavar="SIZE", help="output kept of one stream of one task  [64M]")
@click.option("--spool-cap", "spool_cap_bytes", type=SIZE, metavar="SIZE", help="outputs kept while the store is away  [1G]")
@click.option("--staging-cap", "staging_cap_bytes", type=SIZE, metavar="SIZE", help="disk for uploads and input files of work  [16G]")
@click.option("--python", metavar="PATH", help="interpreter of workers  [this one]")
@_listen_options
@_security_options
@_log_options
def starter(session: Session, **values: Any) -> None:
    """Runs work on this machine: pulls tasks from the queues, runs them, reports their results.

    SIGTERM drains: running work may finish within the grace, and no new work is taken.
    """
    _run(session, "starter", values | {"resources": values["resources"] or None})


@command(
    "watchdog",
    examples="""\
    rmgr watchdog --zk zk1:2181,zk2:2181,zk3:2181 --store sqlite:/srv/rmgr/store.db
    rmgr watchdog --listen 127.0.0.1:7070 --metrics 127.0.0.1:9100""",
    exits=_EXITS,
)
@click.option("--resync", "resync_s", type=DURATION, metavar="DURATION", help="full comparison of memory and znodes  [20s]")
@_listen_options
@_security_options
@_log_options
def watchdog(session: Session, **values: Any) -> None:
    """Watches over nodes and work. Run two or more: one leads, the others take over when it dies."""
    _run(session, "watchdog", values)


@command(
    "submitter",
    examples="""\
    rmgr submitter --zk zk1:2181 --store sqlite:/srv/rmgr/store.db --listen 127.0.0.1:7071
    rmgr submitter --listen 10.0.0.5:7071 --insecure       # on a network where everybody may do anything
    RMGR_GATEWAY=gate:7071 rmgr submit -- echo hello       # elsewhere""",
    exits=_EXITS,
)
@_listen_options
@_security_options
@_log_options
def submitter(session: Session, **values: Any) -> None:
    """A gateway for clients that cannot reach ZooKeeper: the same operations over gRPC."""
    _run(session, "submitter", values)


@command(
    "server",
    examples="""\
    rmgr server --name j90 --site etl --functions solvers.toml --slots 4 --dial g1:7071,g2:7071
    rmgr server --speed 400                       # no measurement at the start: 400 million operations a second of one slot
    rmgr server --spool /var/tmp/calls --spool-cap 20G""",
    exits=_EXITS.replace(", 5 ZooKeeper or store cannot be reached at the start", ""),
)
@click.option("--name", metavar="NAME", help="name of the server, unique in the cluster  [host name]")
@click.option("--site", metavar="NAME", help="the network that it is in")
@click.option("--functions", metavar="FILE", help="TOML file of the functions it offers  [the shipped ones]")
@click.option("--slots", type=click.IntRange(0), metavar="K", help="calls that run at once  [0 = one per processor]")
@click.option("--dial", metavar="HOST:PORT,...", help="gateways, to each of which it opens a stream  [[cluster] gateway]")
@click.option("--speed", type=float, metavar="MOPS", help="million operations a second of one slot  [0 = measured at the start]")
@click.option("--spool", metavar="DIR", help="arguments and answers, exclusively its own")
@click.option("--spool-cap", "spool_cap_bytes", type=SIZE, metavar="SIZE", help="disk for arguments and answers  [4G]")
@click.option("--max-bytes", "max_bytes", type=SIZE, metavar="SIZE", help="arguments, or answer, of one call  [1G]")
@click.option("--most-waiting", type=click.IntRange(1), metavar="N", help="most calls that wait for a slot  [100]")
@click.option("--per-user", type=click.IntRange(1), metavar="N", help="most calls of one user that wait for a slot  [50]")
@click.option("--python", metavar="PATH", help="interpreter of workers  [this one]")
@click.option("--stop-grace", "stop_grace_s", type=DURATION, metavar="DURATION", help="time for running calls after SIGTERM  [30s]")
@_metrics_option
@_security_options
@_log_options
def server(session: Session, **values: Any) -> None:
    """Runs named functions for calls that come through gateways.

    It needs no ZooKeeper, no store and no open port: it dials the gateways, and redials lost ones. SIGTERM: running calls may end
    within the grace, and no new calls are taken.
    """
    _run(session, "server", values)
