"""Every statement that the store sends to Cassandra, by name. All of them address rows by their full partition key.

There is no DELETE, no compare-and-set (IF), no ALLOW FILTERING: tests/unit/adapters/cassandra/test_ddl.py looks. Writes carry
their own timestamp and may be repeated: each of them is idempotent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Statement:
    """`cql` holds `{ks}` for the keyspace."""

    cql: str
    is_write: bool


@dataclass(frozen=True, slots=True)
class StatementRequest:
    """A statement by name with the values of its markers; several `rows` are one batch within one partition.

    beside: another write that goes with it in one batch, to a partition of its own: one round trip and one sync of a commit log for
    both, but of the two one alone may be carried out.
    """

    name: str
    rows: tuple[tuple[Any, ...], ...]
    beside: StatementRequest | None = None

    @property
    def is_write(self) -> bool:
        """True for those that change something."""
        return STATEMENTS[self.name].is_write


def ask(name: str, *values: Any) -> StatementRequest:
    """The request for one row."""
    return StatementRequest(name, (values,))


def _read(cql: str) -> Statement:
    return Statement(cql, is_write=False)


def _write(cql: str) -> Statement:
    return Statement(cql, is_write=True)


STATEMENTS: dict[str, Statement] = {
    # values: the first is what readers take, the second what writers need to go above it
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
    "claims": _read("SELECT claimant, held FROM {ks}.claim WHERE key = ?"),
    "set_claim": _write("INSERT INTO {ks}.claim (key, claimant, held) VALUES (?, ?, ?) USING TIMESTAMP ? AND TTL ?"),
    # chunks that may be unreferenced
    "journal": _read("SELECT generation, key FROM {ks}.journal WHERE hour = ? AND part = ? AND generation > ? LIMIT ?"),
    "set_journal": _write("INSERT INTO {ks}.journal (hour, part, generation, key) VALUES (?, ?, ?, ?) USING TIMESTAMP ? AND TTL ?"),
    # facts and probes
    "info": _read("SELECT value FROM {ks}.info WHERE name = ?"),
    "set_info": _write("INSERT INTO {ks}.info (name, value) VALUES (?, ?) USING TIMESTAMP ? AND TTL ?"),
}
