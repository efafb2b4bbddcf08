"""Making and upgrading the schema in Cassandra, step by step and resumable: what `rmgr admin init-store` does.

The caller holds the lock. Every step may be carried out twice: a command that was killed is typed again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from rmgr.adapters.cassandra import DriverConnection, enter
from rmgr.adapters.cassandra_link import Lost
from rmgr.adapters.cassandra_schema import FOUNDED_NAME, MIGRATIONS, VERSION_NAME, Found, Migration, Step, advice, plan
from rmgr.adapters.cassandra_url import CassandraTarget
from rmgr.adapters.store_rules import now_ms
from rmgr.errors import ConfigError, StoreUnavailable

_PAUSE_S = 0.5
_DDL_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What was done, or with `dry_run` would be: lines for people. `version` is the schema's when it is over."""

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
    migrations: tuple[Migration, ...] = MIGRATIONS,
) -> Prepared:
    """Brings the keyspace of `target` to the newest schema.

    Args:
        replication_factor: of the keyspace, also of one that exists; None: the URL's, for a new one only.
        dry_run: look and change nothing. force: more replicas than nodes. timeout_s: to wait for the cluster.
        tell: is given each step before it is taken.
    Raises: `ConfigError` (with the fix), `PermissionDenied`, `StoreUnavailable`.
    """
    connection = _entered(target, timeout_s, tell)
    try:
        found = look_around(connection, target)
        factor = replication_factor or target.replication_factor
        steps = plan(
            found,
            keyspace=target.keyspace,
            local_dc=target.local_dc,
            replication_factor=factor,
            change_replication=replication_factor is not None,
            force=force,
            migrations=migrations,
        )
        done: list[str] = []
        for step in steps:
            if step.what not in done:
                done.append(step.what)
                tell(step.what)
            if not dry_run:
                _take(connection, target, step)
        changed = any("alter keyspace" in line for line in done)
        effective = factor if changed or found.replication is None else found.replication.get(target.local_dc, 0)
        hints = advice(found, keyspace=target.keyspace, local_dc=target.local_dc, wanted=factor, effective=effective)
        version = max([found.version, *(step.version for step in steps)])
        return Prepared(done=tuple(done), statements=tuple(step.cql for step in steps if step.cql), advice=tuple(hints), version=version)
    except Lost as lost:
        hint = "it is safe to type the command again; rmgr doctor looks closer"
        raise StoreUnavailable(f"Cassandra at {target.where}: {lost}", hint=hint) from None
    finally:
        connection.close()


def look_around(connection: DriverConnection, target: CassandraTarget) -> Found:
    """What the cluster has of rmgr's schema."""
    replication = _replication(connection, target.keyspace)
    version = 0
    if replication is not None:
        tables = connection.run("SELECT table_name FROM system_schema.tables WHERE keyspace_name = %s", (target.keyspace,))
        if ("info",) in [tuple(row) for row in tables]:
            rows = connection.run(f"SELECT value FROM {target.keyspace}.info WHERE name = %s", (VERSION_NAME,))  # noqa: S608
            version = int(rows[0][0]) if rows else 0
        elif tables:
            names = ", ".join(sorted(row[0] for row in tables)[:3])
            raise ConfigError(
                f"keyspace {target.keyspace} of Cassandra belongs to something else: it has tables ({names}) and none of rmgr",
                hint="name another keyspace in the store's URL",
            )
    auth = _replication(connection, "system_auth") if target.user else None
    return Found(
        nodes_up=connection.nodes_up(),
        datacenters=connection.datacenters(),
        replication=replication,
        version=version,
        auth_replication=None if auth is None else auth.get(target.local_dc, auth.get("", 1)),
    )


def _replication(connection: DriverConnection, keyspace: str) -> dict[str, int] | None:
    """Copies for each data centre; under "" those of SimpleStrategy. None without the keyspace."""
    rows = connection.run("SELECT replication FROM system_schema.keyspaces WHERE keyspace_name = %s", (keyspace,))
    if not rows:
        return None
    options = dict(rows[0][0])
    options.pop("class", "")
    return {("" if name == "replication_factor" else name): int(count) for name, count in options.items()}


def _take(connection: DriverConnection, target: CassandraTarget, step: Step) -> None:
    if step.cql:
        connection.run(step.cql, timeout_s=_DDL_S)
        return
    cql = f"INSERT INTO {target.keyspace}.info (name, value) VALUES (%s, %s)"  # noqa: S608 - the URL's grammar has checked it
    if step.version == 1:
        connection.run(cql, (FOUNDED_NAME, str(now_ms())))
    connection.run(cql, (VERSION_NAME, str(step.version)))


def _entered(target: CassandraTarget, timeout_s: float, tell: Callable[[str], None]) -> DriverConnection:
    """A connection; waits for a cluster that is just starting."""
    end_s = time.monotonic() + timeout_s
    told = ""
    while True:
        try:
            return enter(target)
        except Lost as lost:
            if time.monotonic() + _PAUSE_S >= end_s:
                hint = "are its nodes running? rmgr doctor looks closer"
                raise StoreUnavailable(f"Cassandra at {target.where} does not answer: {lost}", hint=hint) from None
            if not told:
                told = f"waiting for Cassandra at {target.where}"
                tell(told)
        time.sleep(_PAUSE_S)
