"""`rmgr admin init-store`: makes the data store, or brings its schema to this release, under a lock in ZooKeeper. With --accept-loss it
also binds an emptied store to its cluster again, which otherwise refuses that store. `rmgr admin export-events`: writes the scheduler's
log, which leaders keep in the data store.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rmgr.cli.admin.members import as_admin, authority_option
from rmgr.cli.display.render import harmless_json
from rmgr.cli.session import Session, command
from rmgr.coord.protocol import paths
from rmgr.errors import CoordinationUnavailable, NotConnected, NotFound, PermissionDenied, StateConflict, StoreUnavailable, UsageError
from rmgr.model.identity import Role
from rmgr.model.servers import CALLS
from rmgr.model.units import counted

if TYPE_CHECKING:
    from rmgr.adapters.zookeeper.client import ZkCoordinator
    from rmgr.coord.protocol.ports import Store

_EXITS = (
    "0 done, or nothing to do; 2 wrong URL, keyspace, data centre or replication factor; 4 not admitted; 5 store or ZooKeeper unavailable"
)
_MAY_LOCK = (Role.ADMIN, Role.WATCHDOG)
_WAIT_S = 60.0
_POLL_S = 0.3


@command(
    "init-store",
    examples="""\
    rmgr admin init-store --dry-run              what it would do, statement by statement
    rmgr admin init-store                        make it, or upgrade it to this release
    rmgr admin init-store --replication-factor 3
    rmgr admin init-store --accept-loss          the store was emptied: go on without all that was in it""",
    exits=_EXITS,
)
@click.option(
    "--replication-factor",
    type=click.IntRange(1, 100),
    metavar="N",
    help="copies of everything; changes a keyspace that exists  [the URL's, for a new one]",
)
@click.option("--dry-run", is_flag=True, help="check and print the statements, change nothing")
@click.option("--force", is_flag=True, help="more copies than there are nodes now")
@click.option("--accept-loss", is_flag=True, help="bind an emptied store to its cluster again: values, functions and history are lost")
@authority_option
def init_store(
    session: Session, replication_factor: int | None, dry_run: bool, force: bool, accept_loss: bool, authority: str | None
) -> None:
    """Creates the data store that --store names, or upgrades its schema to this release. It may be repeated at any time.

    For Cassandra it holds a lock in ZooKeeper, which in a secured cluster only the admin or a WatchDog may do.
    """
    url = session.config().cluster.store
    if not url:
        raise NotConnected("no data store is configured", hint="name it: --store cassandra://host1,host2/rmgr or RMGR_STORE")
    if accept_loss and dry_run:
        raise UsageError("--accept-loss changes the store; it has no --dry-run", hint="leave out one of them")
    if url.startswith("cassandra:"):
        if not dry_run:
            _as_who_may_lock(session, authority)
        _cassandra(session, url, replication_factor, dry_run=dry_run, force=force)
    else:
        if replication_factor or force:
            hint = "leave out --replication-factor and --force; Cassandra has copies: --store cassandra://HOST1,HOST2/KEYSPACE"
            raise UsageError("a SQLite store is one file: it has no replication factor", hint=hint)
        _sqlite(session, url, dry_run=dry_run)
    if accept_loss:
        _accept_loss(session, url)


def _accept_loss(session: Session, url: str) -> None:
    """Binds an empty store to the cluster in ZooKeeper. Raises NotConnected, StoreUnavailable; WrongCluster for another cluster's store."""
    from rmgr.adapters.stores import open_store
    from rmgr.procedures.bootstrap import read_meta

    wait_s = session.left_s(_WAIT_S)
    coordinator = _connected(session, time.monotonic() + wait_s)
    try:
        meta = read_meta(coordinator)
    finally:
        coordinator.close(timeout_s=2.0)
    if meta is None:
        raise NotConnected("there is no rmgr cluster in ZooKeeper: nothing was lost", hint="start a WatchDog: rmgr watchdog")
    store = open_store(url, create=False)
    try:
        was_empty = store.cluster_id(timeout_s=wait_s) is None
        store.bind_cluster(meta.cluster_id, timeout_s=wait_s)
    finally:
        store.close()
    message = "is the empty store of cluster" if was_empty else "was not emptied; it is the store of cluster"
    session.note(f"{url} {message} {meta.cluster_id}; start the daemons (again)")


def _as_who_may_lock(session: Session, authority: str | None) -> None:
    """Gives the session the admin's rights where its own do not suffice. Raises ConfigError, PermissionDenied."""
    credentials = session.credentials()
    if credentials is None or (authority is None and credentials.identity.role in _MAY_LOCK):
        return
    try:
        as_admin(session, authority)
    except PermissionDenied:
        raise PermissionDenied(
            f"init-store holds a lock in ZooKeeper, which {credentials.identity.role} {credentials.identity.name} may not make",
            hint="type it where the authority is (--authority DIR), or with a WatchDog's bundle in RMGR_SECURITY_DIR",
        ) from None


def _cassandra(session: Session, url: str, replication_factor: int | None, *, dry_run: bool, force: bool) -> None:
    from rmgr.adapters.cassandra.setup import init_store as prepare
    from rmgr.adapters.cassandra.url import parse_url

    with contextlib.ExitStack() as stack:
        still_ours: Callable[[], None] = (lambda: None) if dry_run else stack.enter_context(schema_lock(session))

        def tell(line: str) -> None:
            still_ours()
            session.note(f"{'would ' if dry_run and not line.startswith('waiting') else ''}{line}")

        found = prepare(
            parse_url(url),
            replication_factor=replication_factor,
            dry_run=dry_run,
            force=force,
            timeout_s=session.left_s(_WAIT_S),
            tell=tell,
        )
    for line in found.advice:
        session.note(line)
    document = {"store": url, "version": found.version, "dry_run": dry_run, "done": [*found.done], "statements": [*found.statements]}
    document["advice"] = [*found.advice]
    if dry_run:
        notes = [] if found.statements else [f"nothing to do: {url} has schema version {found.version}"]
        session.answer(document, "".join(f"{statement};\n" for statement in found.statements), *notes)
    else:
        session.answer(document, f"{url} is ready, schema version {found.version}{'' if found.done else ' (nothing to do)'}\n")


def _sqlite(session: Session, url: str, *, dry_run: bool) -> None:
    from rmgr.adapters.stores import open_store
    from rmgr.procedures.bootstrap import store_problem

    try:
        store = open_store(url, create=not dry_run)
    except StoreUnavailable:
        if not dry_run:
            raise
        session.note(f"would make {url}")
        problem = None
    else:
        problem = store_problem(store)
        store.close()
    if problem:
        raise StoreUnavailable(f"{url} cannot be used: {problem}", hint="rmgr doctor looks closer")
    session.answer({"store": url, "dry_run": dry_run}, "" if dry_run else f"{url} is ready\n")


# -- the lock that lets one command at a time change the schema ----------------------------------------------------------------


@contextlib.contextmanager
def schema_lock(session: Session) -> Iterator[Callable[[], None]]:
    """Holds the lock; yields a check that it is still held, to be called before each step.

    The lock is an ephemeral znode, which goes with this process, however the process ends. Losing it in mid-step is harmless:
    steps may be repeated, and tables have ids of their own; the check only ends the command before the next step.

    Raises: `StateConflict` if another command holds it until the deadline; `NotConnected`, `CoordinationUnavailable`.
    """
    from rmgr.coord.ops import membership
    from rmgr.coord.protocol.multi import Committed, Conflict

    end = time.monotonic() + session.left_s(_WAIT_S)
    coordinator = _connected(session, end)
    try:
        coordinator.ensure([paths.LOCKS])
        me = f"{socket.gethostname()} pid {os.getpid()} {time.time_ns()}".encode()
        take = membership.lock_schema(me)
        told = False
        while True:
            match coordinator.commit(take, timeout_s=10.0).result(11.0):
                case Committed():
                    break
                case Conflict():
                    holder = coordinator.get(paths.SCHEMA_LOCK).result(11.0)
                    who = " ".join(holder.data.decode(errors="replace").split()[:3]) if holder else "somebody"
                case _:
                    raise CoordinationUnavailable("ZooKeeper did not answer in time; the lock is not held", hint="type the command again")
            if time.monotonic() > end:
                raise StateConflict(f"another rmgr admin init-store is at work ({who})", hint="wait for it, then type this again")
            if not told:
                session.note(f"another rmgr admin init-store is at work ({who}); waiting for it")
                told = True
            time.sleep(_POLL_S)
        held = coordinator.session_id

        def check() -> None:
            if coordinator.session_id != held:
                raise CoordinationUnavailable("the session that held the lock has ended", hint="type the command again: it goes on")

        yield check
    finally:
        coordinator.close(timeout_s=2.0)


def _connected(session: Session, end: float) -> ZkCoordinator:
    """Opens a separate session: there may be no cluster yet, which other commands would refuse."""
    from rmgr.runtime.secured import open_zookeeper

    config = session.config()
    if config.cluster.uses_gateway or not config.cluster.zk:
        raise NotConnected(
            "init-store holds a lock in ZooKeeper while it changes the schema, and no ZooKeeper is configured", hint="--zk HOSTS or RMGR_ZK"
        )
    coordinator = open_zookeeper(config, session.credentials())
    try:
        coordinator.require_connected(max(0.1, end - time.monotonic()))
    except BaseException:
        coordinator.close(timeout_s=1.0)
        raise
    return coordinator

# -- `rmgr admin export-events`: the live event log of the placing leader as a file for `rmgr sim replay` ----------------------


_PAGE = 1000
#: Most bytes of a piece that is read. A leader writes pieces of 256 KiB, or more for one long entry.
_MOST_PIECE_BYTES = 64 * 2**20


@command(
    "export-events",
    examples="""\
    rmgr admin export-events -o live.jsonl       the newest log: one leader, from its take-over on
    rmgr admin export-events --list              which logs there are
    rmgr admin export-events --partition gpu     one partition only, as a log of its own
    rmgr admin export-events --partition calls   which server each call was sent to, and why; numbered apart
    rmgr sim replay live.jsonl --policy fcfs     what another policy would have done""",
    exits="0 written; 2 the file exists; 3 there is no such log; 5 the store is away",
)
@click.option("-o", "--out", metavar="FILE", default="", help="file to write; .gz compresses it  [stdout]")
@click.option("--log", "which", metavar="EPOCH[.LOG]", default="", help="only of this leader (several, if it has reread all)")
@click.option("--partition", metavar="NAME", default="", help="only facts and decisions of this partition; calls: picks of servers")
@click.option("--list", "listed", is_flag=True, help="show the logs, write none")
def export_events(session: Session, out: str, which: str, partition: str, listed: bool) -> None:
    """Writes facts and decisions of the scheduler as they happened, one JSON object per line. The last seconds may be missing."""
    from rmgr.coord.protocol import keys

    store = session.data_store()
    family = keys.PICKS if partition == CALLS else keys.EVENTS
    logs = _logs(store, family)
    if listed:
        found = [(f"{epoch}.{log}", count) for (epoch, log), count in sorted(logs.items())]
        text = "".join(f"{name}\t{counted(count, 'piece')}\n" for name, count in found)
        session.answer({"logs": [{"log": name, "pieces": count} for name, count in found]}, text)
        return
    from rmgr.procedures.bounded import row_of

    epoch, log = _chosen_log(logs, which, partition)
    rows = (row_of(store, keys.events(epoch, log, piece, family=family), _MOST_PIECE_BYTES) for piece in range(logs[epoch, log]))
    pieces: Iterator[str] = (row.decode(errors="replace") for row in rows if row is not None)
    if partition and partition != CALLS:
        pieces = _cut(pieces, partition, f"{epoch}.{log}")
    if not out:
        sys.stdout.writelines(map(harmless_json, pieces))
        return
    _write(out, pieces)
    session.note(f"log {epoch}.{log} is in {out}; rmgr sim replay {out}" + ("" if session.json else " --partial if its leader still leads"))
    session.answer({"log": f"{epoch}.{log}", "file": out})


def _cut(pieces: Iterable[str], partition: str, log: str) -> Iterator[str]:
    """Yields the lines of one partition. Raises: NotFound if the log does not know it."""
    from rmgr.sched.state.event_log import Opening, decode, encode, only

    entries = (decode(line) for line in _lines(pieces))
    first = next(entries, None)
    if isinstance(first, Opening) and first.pipelines and partition not in first.pipelines:
        raise NotFound(f"log {log} has no partition {partition}", hint=f"it has {', '.join(sorted(first.pipelines))}")
    for entry in only(chain([first] if first is not None else [], entries), partition):
        yield encode(entry) + "\n"


def _lines(pieces: Iterable[str]) -> Iterator[str]:
    """Yields whole lines, without a last one that a dead leader left incomplete."""
    rest = ""
    for piece in pieces:
        *whole, rest = (rest + piece).split("\n")
        yield from whole


def _logs(store: Store, family: str) -> dict[tuple[int, int], int]:
    """Returns (epoch, log) -> number of its pieces."""
    from rmgr.coord.protocol import keys

    found: dict[tuple[int, int], int] = {}
    after = ""
    while page := store.keys(keys.events_of(family=family), after=after, limit=_PAGE):
        for key in page:
            epoch, log, piece = keys.parse_events(key, family=family)
            found[epoch, log] = max(found.get((epoch, log), 0), piece + 1)
        after = page[-1]
    return found


def _chosen_log(logs: dict[tuple[int, int], int], which: str, partition: str) -> tuple[int, int]:
    if not logs:
        begins = "when a gateway reports its first server" if partition == CALLS else "as soon as a queue has dispatch = place"
        hint = f"the leader writes one {begins}; through a gateway only operators are shown it"
        raise NotFound("no scheduler's log is in the data store", hint=hint)
    if not which:
        return max(logs)
    epoch, _, log = which.partition(".")
    fitting = [known for known in logs if str(known[0]) == epoch and log in ("", str(known[1]))]
    if not fitting:
        names = ", ".join(f"{epoch}.{log}" for epoch, log in sorted(logs))
        calls = f" --partition {CALLS}" if partition == CALLS else ""
        raise NotFound(f"there is no log {which}; there are {names}", hint=f"rmgr admin export-events{calls} --list")
    return max(fitting)


def _write(out: str, pieces: Iterator[str]) -> None:
    from rmgr.sim.runs.output import new_log

    with new_log(Path(out)) as write:
        for piece in pieces:
            write(piece)
