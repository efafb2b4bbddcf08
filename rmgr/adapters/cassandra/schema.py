"""The tables in Cassandra and their versions, the places of rows in them, and every statement that the store sends.

Only `rmgr admin init-store` changes the schema: CREATE TABLE from two nodes at once corrupts a table silently (CASSANDRA-9424), so
the command holds a lock, and the id of every table follows from its name, so that even two commands would make the same table. A daemon
reads the version (`version_problem`) and refuses to work with another one.

To change the schema, append a `SchemaMigration`. Never edit one that was released; its statements may run twice.

Every partition is addressed by its full key and stays below 10 MB:

- a chunk: 16 chunks of 512 KiB per partition;
- the index of keys: a partition for each of 16 hash buckets of a *scope*. A scope is the family of the key, or for divided
  families one submission, user or node in it (`out/0000000042/`): a collected submission takes its tombstones along, and
  no listing of another submission crosses them;
- the journal: an hour, in four parts.

There is no DELETE, no compare-and-set (IF), no ALLOW FILTERING: tests/unit/adapters/cassandra/test_cassandra_rows.py checks. Writes carry
their own timestamp and may be repeated: each of them is idempotent.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID
from zlib import crc32

from rmgr.coord.protocol import keys
from rmgr.errors import ConfigError

_NAMESPACE = uuid.UUID("5b7b1f52-7a5e-5d0c-9f8e-2f1d6f0b6d11")
_INIT = "rmgr admin init-store"
#: Names of rows in the table `info`: the version, and when the first schema was made (ms since 1970).
VERSION_NAME, FOUNDED_NAME = "schema_version", "founded_ms"
#: Expired rows that are never written again need not wait ten days for a repair, only for hints (three hours).
_SHORT_GRACE = "gc_grace_seconds = 10800"
#: A hanging replica must not make a quorum read time out: the third one is asked after this time.
_IMPATIENT = "speculative_retry = '100ms'"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    """One table: `columns` and `options` as in CQL; `idea` is its comment."""

    name: str
    columns: str
    idea: str
    options: str = ""

    def cql(self, keyspace: str) -> str:
        """Returns its CREATE TABLE; the id depends on keyspace and name alone."""
        identity = uuid.uuid5(_NAMESPACE, f"{keyspace}.{self.name}")
        options = f" AND {self.options}" if self.options else ""
        return (
            f"CREATE TABLE IF NOT EXISTS {keyspace}.{self.name} ({self.columns})"
            f" WITH ID = {identity} AND comment = '{self.idea}' AND {_IMPATIENT}{options}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaMigration:
    """Statements that lead from the previous version to `version`. `statements` hold `{ks}` for the keyspace and may run twice."""

    version: int
    what: str
    tables: tuple[_Table, ...] = ()
    statements: tuple[str, ...] = ()

    def cql(self, keyspace: str) -> list[str]:
        """Returns all statements, in order."""
        return [table.cql(keyspace) for table in self.tables] + [text.format(ks=keyspace) for text in self.statements]


MIGRATIONS: tuple[SchemaMigration, ...] = (
    SchemaMigration(
        version=1,
        what="values, their chunks and the index of their keys",
        tables=(
            _Table(name="info", columns="name text PRIMARY KEY, value text", idea="facts of this store; probes of its health"),
            _Table(
                name="value",
                # One cell, so that of two writers in the same microsecond one wins completely.
                columns="key text PRIMARY KEY, manifest frozen<tuple<bigint, blob, text, bigint, uuid, int, blob>>",
                idea="size, sha256, encoding, expires_ms, generation and number of chunks, or the bytes of a small value; size -1: deleted",
            ),
            _Table(
                name="chunk",
                columns="generation uuid, bucket int, number int, data blob, sha256 blob, PRIMARY KEY ((generation, bucket), number)",
                idea="pieces of 512 KiB of one writing of a large value",
            ),
            _Table(
                name="key_index",
                columns="scope text, bucket int, key text, entry frozen<tuple<bigint, bigint>>, PRIMARY KEY ((scope, bucket), key)",
                idea="which keys there are, for listings: size and expires_ms",
            ),
            _Table(
                name="scope",
                columns="family text, scope text, since_ms bigint, PRIMARY KEY (family, scope)",
                idea="which scopes the index has",
                options="gc_grace_seconds = 86400",
            ),
        ),
    ),
    SchemaMigration(
        version=2,
        what="create-once without a compare-and-set; collection of chunks that no value refers to",
        tables=(
            _Table(
                name="claim",
                columns="key text, claimant uuid, held boolean, PRIMARY KEY (key, claimant)",
                idea="who is about to create a key that must be new",
                options=_SHORT_GRACE,
            ),
            _Table(
                name="journal",
                columns="hour bigint, part int, generation uuid, key text, PRIMARY KEY ((hour, part), generation)",
                idea="chunks that may be unreferenced once their hour is over",
                options=_SHORT_GRACE,
            ),
        ),
    ),
)
NEWEST = MIGRATIONS[-1].version


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundSchema:
    """State of a cluster's schema: replication is None without the keyspace, version 0 without a schema."""

    nodes_up: int
    datacenters: tuple[str, ...]
    replication: dict[str, int] | None = None
    version: int = 0
    auth_replication: int | None = None  #: of system_auth in the local data centre, if the cluster asks for passwords


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationStep:
    """One step: `cql` to run, or (if empty) the version to record."""

    what: str
    cql: str = ""
    version: int = 0


def plan(
    found: FoundSchema,
    *,
    keyspace: str,
    local_dc: str,
    replication_factor: int,
    change_replication: bool,
    force: bool,
    migrations: Sequence[SchemaMigration] = MIGRATIONS,
) -> list[MigrationStep]:
    """Returns the steps from `found` to the newest schema; none if it is up to date.

    Args:
        change_replication: alter the replication of an existing keyspace (data follows only with a repair).
        force: accept a replication factor above the number of nodes.
        migrations: up to the wanted version.
    Raises: `ConfigError` naming the part and the fix.
    """
    if local_dc not in found.datacenters:
        raise no_datacenter(local_dc, found.datacenters)
    current = None if found.replication is None else found.replication.get(local_dc, 0)
    changes = current is None or (change_replication and current != replication_factor)
    if changes and replication_factor > found.nodes_up and not force:
        hint = f"start more nodes, or --replication-factor {max(found.nodes_up, 1)}, or --force if the others come later"
        raise ConfigError(f"{found.nodes_up} nodes are up in {local_dc}, replication factor {replication_factor} needs as many", hint=hint)
    if found.version > NEWEST:
        raise too_new(keyspace, found.version)
    return [*_keyspace(found, keyspace, local_dc, replication_factor, changes), *_migrate(found.version, keyspace, migrations)]


def _keyspace(found: FoundSchema, keyspace: str, local_dc: str, factor: int, changes: bool) -> Iterator[MigrationStep]:
    if not changes:
        return
    replication = {**(found.replication or {}), local_dc: factor}
    options = ", ".join(f"'{name}': {count}" for name, count in sorted(replication.items()))
    verb, how = ("CREATE", " IF NOT EXISTS") if found.replication is None else ("ALTER", "")
    cql = f"{verb} KEYSPACE{how} {keyspace} WITH replication = {{'class': 'NetworkTopologyStrategy', {options}}} AND durable_writes = true"
    yield MigrationStep(what=f"{verb.lower()} keyspace {keyspace}, replication factor {factor} in {local_dc}", cql=cql)


def _migrate(version: int, keyspace: str, migrations: Sequence[SchemaMigration]) -> Iterator[MigrationStep]:
    for migration in migrations:
        if migration.version <= version:
            continue
        what = f"version {migration.version}: {migration.what}"
        yield from (MigrationStep(what=what, cql=cql) for cql in migration.cql(keyspace))
        yield MigrationStep(what=f"schema version {migration.version}", version=migration.version)


def advice(found: FoundSchema, *, keyspace: str, local_dc: str, wanted: int, effective: int) -> list[str]:
    """Returns what an operator should know or do after `plan` was carried out; `effective` is the keyspace's replication factor now."""
    lines = []
    before = effective if found.replication is None else found.replication.get(local_dc, 0)
    if before != effective:
        lines.append(f"existing data follows only with a repair, on every node, one after the other: nodetool repair -full {keyspace}")
    elif effective != wanted:
        lines.append(
            f"keyspace {keyspace} has replication factor {effective} in {local_dc}, not {wanted}; to change it: "
            f"{_INIT} --replication-factor {wanted}, then nodetool repair -full {keyspace} on every node"
        )
    if effective < 3:
        lines.append(f"replication factor {effective}: with one node lost, data is unavailable or gone; use 3 for real clusters")
    if found.auth_replication is not None and found.auth_replication < min(3, found.nodes_up):
        lines.append(
            "logins fail when a node is away: ALTER KEYSPACE system_auth WITH replication = "
            f"{{'class': 'NetworkTopologyStrategy', '{local_dc}': {min(3, found.nodes_up)}}}, then nodetool repair -full system_auth"
        )
    return lines


def version_problem(keyspace: str, version: int) -> ConfigError | None:
    """Returns why a daemon of this release must not use a schema of `version`; None if it may."""
    if version == NEWEST:
        return None
    if version > NEWEST:
        return too_new(keyspace, version)
    if version == 0:
        return ConfigError(f"keyspace {keyspace} of the data store has no tables of rmgr yet", hint=f"make them, once: {_INIT}")
    return ConfigError(f"the data store has schema version {version}, this rmgr needs {NEWEST}", hint=f"upgrade it: {_INIT}")


def too_new(keyspace: str, version: int) -> ConfigError:
    """Returns the error for a schema that a later release made."""
    return ConfigError(
        f"keyspace {keyspace} of the data store has schema version {version}, this rmgr knows {NEWEST} and older ones",
        hint="upgrade rmgr on this machine, from a newer checkout: pip install --upgrade .",
    )


def no_datacenter(name: str, known: Sequence[str]) -> ConfigError:
    """Returns the error for a data centre that the cluster does not have."""
    message = f"Cassandra has no data centre {name!r}: it has {', '.join(known) or 'none'}"
    return ConfigError(message, hint="local_dc=NAME in the store's URL")


def no_keyspace(keyspace: str) -> ConfigError:
    """Returns the error for a keyspace that does not exist."""
    return ConfigError(
        f"there is no keyspace {keyspace!r} in this Cassandra",
        hint=f"check the name in the store's URL, or make it, once: {_INIT}",
    )


# -- statements ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement; `cql` holds `{ks}` for the keyspace."""

    cql: str
    is_write: bool


@dataclass(frozen=True, slots=True)
class StatementRequest:
    """A statement by name with the values of its markers; several `rows` make one batch within one partition.

    beside: another write in the same batch, to a partition of its own: one round trip and one sync of a commit log for
        both, but only one of the two may be carried out.
    """

    name: str
    rows: tuple[tuple[Any, ...], ...]
    beside: StatementRequest | None = None

    @property
    def is_write(self) -> bool:
        """Whether the statement changes anything."""
        return STATEMENTS[self.name].is_write


def ask(name: str, *values: Any) -> StatementRequest:
    """Returns the request for one row."""
    return StatementRequest(name, (values,))


def _read(cql: str) -> Statement:
    return Statement(cql, is_write=False)


def _write(cql: str) -> Statement:
    return Statement(cql, is_write=True)


STATEMENTS: dict[str, Statement] = {
    # values: the first for readers, the second for writers, which must exceed its timestamp
    "value": _read("SELECT manifest FROM {ks}.value WHERE key = ?"),
    "value_seen": _read("SELECT manifest, WRITETIME(manifest) FROM {ks}.value WHERE key = ?"),
    "set_value": _write("INSERT INTO {ks}.value (key, manifest) VALUES (?, ?) USING TIMESTAMP ? AND TTL ?"),
    "chunk": _read("SELECT data, sha256 FROM {ks}.chunk WHERE generation = ? AND bucket = ? AND number = ?"),
    "chunk_numbers": _read("SELECT number FROM {ks}.chunk WHERE generation = ? AND bucket = ?"),
    "set_chunk": _write(
        "INSERT INTO {ks}.chunk (generation, bucket, number, data, sha256) VALUES (?, ?, ?, ?, ?) USING TIMESTAMP ? AND TTL ?"
    ),
    # the index of keys
    "index": _read("SELECT key, entry FROM {ks}.key_index WHERE scope = ? AND bucket = ? AND key >= ? AND key < ? LIMIT ?"),
    "set_index": _write("INSERT INTO {ks}.key_index (scope, bucket, key, entry) VALUES (?, ?, ?, ?) USING TIMESTAMP ? AND TTL ?"),
    "scopes": _read("SELECT scope, since_ms FROM {ks}.scope WHERE family = ? AND scope >= ? LIMIT ?"),
    "set_scope": _write("INSERT INTO {ks}.scope (family, scope, since_ms) VALUES (?, ?, ?) USING TIMESTAMP ? AND TTL ?"),
    # keys that must be new
    "claims": _read("SELECT claimant, held, WRITETIME(held) FROM {ks}.claim WHERE key = ?"),
    "set_claim": _write("INSERT INTO {ks}.claim (key, claimant, held) VALUES (?, ?, ?) USING TIMESTAMP ? AND TTL ?"),
    # chunks that may be unreferenced
    "journal": _read("SELECT generation, key FROM {ks}.journal WHERE hour = ? AND part = ? AND generation > ? LIMIT ?"),
    "set_journal": _write("INSERT INTO {ks}.journal (hour, part, generation, key) VALUES (?, ?, ?, ?) USING TIMESTAMP ? AND TTL ?"),
    # facts and probes
    "info": _read("SELECT value FROM {ks}.info WHERE name = ?"),
    "set_info": _write("INSERT INTO {ks}.info (name, value) VALUES (?, ?) USING TIMESTAMP ? AND TTL ?"),
}


# -- places of rows, and the timestamps that order writes ----------------------------------------------------------------------


CHUNKS_PER_PARTITION = 16
INDEX_BUCKETS = 16
JOURNAL_PARTS = 4
#: Scope of keys without a slash.
NO_FAMILY = "(none)"
#: Sorts above every key: keys have at most 1,024 bytes; this has more, all of the last character.
ABOVE_ALL = "\U0010ffff" * 257

#: Families that are divided by the part after the first slash: a submission, a user, a node.
DIVIDED = frozenset({"args", "ckpt", "frag", "log", "out", "page", "histu", "metric"})
#: Families in which every writer of a key writes the same bytes (`coord/protocol/keys.py`).
_IMMUTABLE = DIVIDED | keys.BY_CONTENT | {"final", "hist"}
_OUTPUT = "out/"
#: Partition of the register of scopes that holds the undivided scopes.
FAMILIES = "/"


def scope_of(key: str) -> str:
    """Returns `out/0000000042/` for a key of a divided family, `name/` for others, `NO_FAMILY` without a slash."""
    family, slash, rest = key.partition("/")
    if not slash:
        return NO_FAMILY
    if family in DIVIDED:
        part, slash, _ = rest.partition("/")
        if slash:
            return f"{family}/{part}/"
    return f"{family}/"


def register_of(scope: str) -> str:
    """Returns the partition of the register that lists `scope`: `out/` for `out/0000000042/`, `FAMILIES` for `name/`."""
    family, _, rest = scope.partition("/")
    return f"{family}/" if rest else FAMILIES


def bucket_of(key: str) -> int:
    """Returns the partition of its scope's index that holds `key`."""
    return crc32(key.encode()) % INDEX_BUCKETS


def is_found_unlisted(key: str) -> bool:
    """Returns whether a dead writer's leftovers under this key are freed by name (`delete_outputs` in procedures/output_keys.py)."""
    return key.startswith(_OUTPUT)


def is_immutable(key: str) -> bool:
    """Returns whether every writer of this key writes the same bytes, so that the order of their writes does not matter."""
    return key.partition("/")[0] in _IMMUTABLE


def span(prefix: str, after: str) -> tuple[str, str]:
    """Returns (from, below) for keys that begin with `prefix` and come after `after`. No key holds a NUL, so \\x01 means "just after"."""
    return max(prefix, f"{after}\x01" if after else ""), (keys.prefix_end(prefix) if prefix else None) or ABOVE_ALL


def may_hold(scope: str, prefix: str) -> bool:
    """Returns whether a key of `scope` can begin with `prefix`."""
    if scope == NO_FAMILY:
        return "/" not in prefix
    return scope.startswith(prefix) or prefix.startswith(scope)


def chunk_place(generation: UUID | None, number: int) -> tuple[UUID | None, int, int]:
    """Returns (generation, bucket, number), the primary key of a chunk."""
    return generation, number // CHUNKS_PER_PARTITION, number


def journal_part(generation: UUID) -> int:
    """Returns the part of an hour's journal that holds `generation`."""
    return generation.bytes[-1] % JOURNAL_PARTS


class WriteClock:
    """Timestamps (us) of writes: never the same twice in a process, and later than any that was seen.

    Cassandra keeps the cell with the greatest timestamp, and clocks of machines differ. A writer that may replace another's
    value reads the value's timestamp first and exceeds it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last_us = time.time_ns() // 1000

    def next_us(self, seen_us: int | None = None) -> int:
        """Returns a timestamp for one write that must win over the one at `seen_us`."""
        now_us = time.time_ns() // 1000
        with self._lock:
            self._last_us = max(now_us, self._last_us + 1, (seen_us or 0) + 1)
            return self._last_us
