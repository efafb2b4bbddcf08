"""Making and upgrading the schema in Cassandra, step by step and resumable: the work of `rmgr admin init-store`.

The caller holds the lock. Every step may be carried out twice: a command that was killed can be repeated.

Every node of the ring must have a change (`Ring`). Cassandra pushes it to the nodes that its coordinator considers alive at that moment;
the others fetch it later, after up to a minute. Two coordinators in turn would each begin with half of the schema. So all statements go to
one node; each must have reached every node that answers before the next one is sent; and a node that missed one gets it directly.
All statements may run twice, and the ids of tables are fixed, so the result is the same schema.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from rmgr.adapters.cassandra.driver import DriverConnection, enter
from rmgr.adapters.cassandra.link import Lost
from rmgr.adapters.cassandra.schema import FOUNDED_NAME, MIGRATIONS, VERSION_NAME, FoundSchema, MigrationStep, SchemaMigration, advice, plan
from rmgr.adapters.cassandra.url import CassandraTarget
from rmgr.adapters.store_rules import now_ms
from rmgr.errors import ConfigError, RmgrError, StoreUnavailable

_PAUSE_S = 0.5
#: Seconds that starting nodes get before they count as dead.
_ASSEMBLE_S = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """Steps that were done, or with `dry_run` would be, as lines for people. `version`: the schema's afterwards."""

    done: tuple[str, ...]
    statements: tuple[str, ...]
    advice: tuple[str, ...]
    version: int


def init_store(
    target: CassandraTarget,
    *,
    replication_factor: int | None = None,
    dry_run: bool = False,
    force: bool = False,
    timeout_s: float = 60.0,
    tell: Callable[[str], None] = lambda _: None,
    migrations: tuple[SchemaMigration, ...] = MIGRATIONS,
) -> Prepared:
    """Brings the keyspace of `target` to the newest schema.

    Args:
        replication_factor: of the keyspace, even an existing one; None: the URL's, for a new keyspace only.
        dry_run: look and change nothing. force: allow more replicas than nodes. timeout_s: to wait for the cluster.
        tell: called with each step before it is taken.
    Raises: `ConfigError` (with the fix), `PermissionDenied`, `StoreUnavailable`.
    """
    connection = _connect(target, timeout_s, tell)
    try:
        ring = Ring(connection)
        factor = replication_factor or target.replication_factor
        if not ring.assemble(min(factor, len(target.hosts)), min(_ASSEMBLE_S, timeout_s)):
            tell("waiting no longer for nodes that do not answer")
        found = look_around(connection, target, ring)
        steps = plan(
            found,
            keyspace=target.keyspace,
            local_dc=target.local_dc,
            replication_factor=factor,
            change_replication=replication_factor is not None,
            force=force,
            migrations=migrations,
        )
        steps += _missing(ring, target.keyspace, found.version)
        done: list[str] = []
        for step in steps:
            if step.what not in done:
                done.append(step.what)
                tell(step.what)
            if not dry_run:
                _take(ring, target, step)
        changed = any("alter keyspace" in line for line in done)
        effective = factor if changed or found.replication is None else found.replication.get(target.local_dc, 0)
        hints = advice(found, keyspace=target.keyspace, local_dc=target.local_dc, wanted=factor, effective=effective)
        if effective == 1:
            hints += _durability(connection)
        version = max([found.version, *(step.version for step in steps)])
        if not dry_run:
            ring.verify(target.keyspace, _tables(target.keyspace, version))
        return Prepared(done=tuple(done), statements=tuple(step.cql for step in steps if step.cql), advice=tuple(hints), version=version)
    except Lost as lost:
        hint = "it is safe to type the command again; rmgr doctor looks closer"
        raise StoreUnavailable(f"Cassandra at {target.where}: {lost}", hint=hint) from None
    finally:
        connection.close()


def look_around(connection: DriverConnection, target: CassandraTarget, ring: Ring) -> FoundSchema:
    """Returns what the cluster has of rmgr's schema."""
    replication = _replication(ring, target.keyspace)
    version = 0
    if replication is not None:
        tables = {row[0] for row in ring.ask("SELECT table_name FROM system_schema.tables WHERE keyspace_name = %s", (target.keyspace,))}
        if "info" in tables:
            rows = ring.ask(f"SELECT value FROM {target.keyspace}.info WHERE name = %s", (VERSION_NAME,))  # noqa: S608
            version = int(rows[0][0]) if rows else 0
        elif tables - _tables(target.keyspace, MIGRATIONS[-1].version).keys():
            names = ", ".join(sorted(tables)[:3])
            raise ConfigError(
                f"keyspace {target.keyspace} of Cassandra belongs to something else: it has tables ({names}) and none of rmgr",
                hint="name another keyspace in the store's URL",
            )
    auth = _replication(ring, "system_auth") if target.user else None
    return FoundSchema(
        nodes_up=connection.nodes_up(),
        datacenters=connection.datacenters(),
        replication=replication,
        version=version,
        auth_replication=None if auth is None else auth.get(target.local_dc, auth.get("", 1)),
    )


def _replication(ring: Ring, keyspace: str) -> dict[str, int] | None:
    """Returns the number of copies by data centre, for SimpleStrategy under ""; None without the keyspace."""
    rows = ring.ask("SELECT replication FROM system_schema.keyspaces WHERE keyspace_name = %s", (keyspace,))
    if not rows:
        return None
    options = dict(rows[0][0])
    options.pop("class", "")
    return {("" if name == "replication_factor" else name): int(count) for name, count in options.items()}


def _tables(keyspace: str, version: int) -> dict[str, str]:
    """Returns the tables of a schema of `version`: name -> statement that makes it."""
    return {table.name: table.cql(keyspace) for migration in MIGRATIONS if migration.version <= version for table in migration.tables}


def _durability(connection: DriverConnection) -> list[str]:
    """Returns a warning if nodes that have the only copy acknowledge it before it is on disk; nothing if they do not tell."""
    try:
        answers = connection.ask_each("SELECT value FROM system_views.settings WHERE name = %s", ("commitlog_sync",), timeout_s=5.0)
    except RmgrError:
        return []
    if any(rows and str(rows[0][0]) == "periodic" for rows in answers.values()):
        return ["a node that is killed forgets what it acknowledged last: commitlog_sync: batch in its cassandra.yaml, or more copies"]
    return []


def _missing(ring: Ring, keyspace: str, version: int) -> list[MigrationStep]:
    """Returns the steps that remake tables of this version that some node lacks."""
    tables = _tables(keyspace, version)
    names = sorted({name for lacking in ring.lacking(keyspace, tables).values() for name in lacking}) if tables else []
    return [MigrationStep(what=f"make table {name} where it is missing", cql=tables[name]) for name in names]


def _take(ring: Ring, target: CassandraTarget, step: MigrationStep) -> None:
    if step.cql:
        ring.change(step.cql)
        return
    ring.verify(target.keyspace, _tables(target.keyspace, step.version))  # a version in the table asserts that its tables are there
    cql = f"INSERT INTO {target.keyspace}.info (name, value) VALUES (%s, %s)"  # noqa: S608 - the URL's grammar has checked it
    if step.version == 1:
        ring.ask(cql, (FOUNDED_NAME, str(now_ms())))
    ring.ask(cql, (VERSION_NAME, str(step.version)))


def _connect(target: CassandraTarget, timeout_s: float, tell: Callable[[str], None]) -> DriverConnection:
    """Returns a connection; waits for a cluster that is just starting."""
    end_s = time.monotonic() + timeout_s
    message = ""
    while True:
        try:
            return enter(target, agreement_s=0)
        except Lost as lost:
            if time.monotonic() + _PAUSE_S >= end_s:
                hint = "are its nodes running? rmgr doctor looks closer"
                raise StoreUnavailable(f"Cassandra at {target.where} does not answer: {lost}", hint=hint) from None
            if not message:
                message = f"waiting for Cassandra at {target.where}"
                tell(message)
        time.sleep(_PAUSE_S)


# -- agreement of a ring -------------------------------------------------------------------------------------------------------


T = TypeVar("T")

_POLL_S = 0.1
_ASK_S = 2.0
_DDL_S = 20.0
#: Seconds that Cassandra gets to agree by itself, and again after mending; seconds for which a lost statement is repeated.
_AGREE_S, _MEND_S, _REPEAT_S = 5.0, 15.0, 30.0
_HINT = "nodetool describecluster shows which; then type the command again"


class Ring:
    """The nodes that answer, as seen by a change of the schema."""

    def __init__(self, connection: DriverConnection) -> None:
        self._connection = connection
        self._coordinator = ""
        self._silent: set[str] = set()

    def assemble(self, wanted: int, timeout_s: float) -> bool:
        """Waits for nodes that are starting or not yet connected; returns whether all are there."""
        end = time.monotonic() + timeout_s
        while self._connection.nodes_up() < max(wanted, self._connection.nodes_expected()):
            if time.monotonic() > end:
                return False
            time.sleep(_POLL_S)
        return True

    def ask(self, cql: str, values: tuple[Any, ...] = ()) -> list[Any]:
        """Returns the rows of a statement from the coordinator; repeats it while its answers are lost."""
        return self.patiently(lambda: self._connection.run(cql, values, node=self._chosen()))

    def change(self, cql: str) -> None:
        """Changes the schema and waits until all nodes that answer have the change. Raises: `StoreUnavailable`."""
        self.patiently(lambda: self._connection.run(cql, timeout_s=_DDL_S, node=self._chosen()))
        if not (dissenters := self._dissenters(_AGREE_S)):
            return
        for node in dissenters:
            self.patiently(lambda node=node: self._connection.run(cql, timeout_s=_DDL_S, node=node))  # type: ignore[misc]
        if dissenters := self._dissenters(_MEND_S):
            raise StoreUnavailable(f"the nodes of Cassandra do not agree on the schema: {', '.join(dissenters)}", hint=_HINT)

    def lacking(self, keyspace: str, tables: Mapping[str, str]) -> dict[str, list[str]]:
        """Returns node -> missing ones of `tables`; nodes that do not answer are left out."""
        answers = self._ask_each("SELECT table_name FROM system_schema.tables WHERE keyspace_name = %s", (keyspace,))
        found = {node: {row[0] for row in rows} for node, rows in answers.items() if rows is not None}
        return {node: missing for node, names in found.items() if (missing := [name for name in tables if name not in names])}

    def verify(self, keyspace: str, tables: Mapping[str, str]) -> None:
        """Ensures that every node that answers has all `tables` (name -> statement that makes it).

        Raises: `StoreUnavailable`, which names a node and what it lacks.
        """
        begun = time.monotonic()
        mend_s = begun + _AGREE_S
        while lacking := self.lacking(keyspace, tables):
            now = time.monotonic()
            if now > begun + _AGREE_S + _MEND_S:
                node, names = next(iter(lacking.items()))
                raise StoreUnavailable(f"Cassandra on {node} has no table {', '.join(names)} of keyspace {keyspace}", hint=_HINT)
            if now > mend_s:
                mend_s = now + _AGREE_S
                for node, names in lacking.items():
                    for name in names:
                        self.patiently(lambda cql=tables[name], node=node: self._connection.run(cql, timeout_s=_DDL_S, node=node))  # type: ignore[misc]
            time.sleep(_POLL_S)

    def patiently(self, act: Callable[[], T]) -> T:
        """Repeats an act while its answer is lost, at another node unless the act names one."""
        end = time.monotonic() + _REPEAT_S
        pause_s = _POLL_S
        while True:
            try:
                return act()
            except Lost:
                self._coordinator = ""
                if time.monotonic() > end:
                    raise
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, 1.0)

    def _chosen(self) -> str:
        names = self._connection.node_names()
        if not names:
            raise Lost("no node is connected", is_outage=True)
        if self._coordinator not in names:
            self._coordinator = next((name for name in names if name not in self._silent), names[0])
        return self._coordinator

    def _ask_each(self, cql: str, values: tuple[Any, ...] = ()) -> dict[str, list[Any] | None]:
        answers = self._connection.ask_each(cql, values, timeout_s=_ASK_S)
        self._silent = {node for node, rows in answers.items() if rows is None}
        return answers

    def _dissenters(self, timeout_s: float) -> list[str]:
        """Returns the nodes whose schema still differs from the coordinator's when the time is over; empty once all agree.

        Nodes that do not answer are not waited for: they fetch the schema when they are back.
        """
        end = time.monotonic() + timeout_s
        while True:
            answers = self._ask_each("SELECT schema_version FROM system.local")
            versions = {node: str(rows[0][0]) for node, rows in answers.items() if rows}
            reference = versions.get(self._coordinator) or next(iter(versions.values()), "")
            dissenters = [node for node, version in versions.items() if version != reference]
            if (versions and not dissenters) or time.monotonic() > end:
                return dissenters if versions else ["no node answers"]
            time.sleep(_POLL_S)
