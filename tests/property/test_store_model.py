"""The data store behaves as a dictionary, whatever is put, replaced, deleted, listed, reopened and swept."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from rmgr.adapters.sqlite.store import STAGE_BYTES, SqliteStore
from rmgr.adapters.store_rules import CHUNK_BYTES
from rmgr.coord.protocol.ports import Encoding, Store
from rmgr.errors import KeyExists
from tests.harness import cassandra_keyspaces
from tests.harness.cassandra_nodes import SharedNode
from tests.harness.memory_store import MemoryStore
from tests.harness.store_adapters import ADAPTERS, open_adapter

#: Few keys, so that they meet again; with prefixes of each other and characters beyond ASCII.
KEYS = st.sampled_from(["a", "a/", "a/1", "a/2", "a0", "b", "é", "🦄", "\U0010ffff", "\U0010ffffx"])
PREFIXES = st.sampled_from(["", "a", "a/", "b", "é", "\U0010ffff", "z"])
SIZES = st.sampled_from([0, 1, 7, 100, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 2 * CHUNK_BYTES, STAGE_BYTES + 1])
ENCODINGS = st.sampled_from(list(Encoding))
FILLS = st.integers(0, 255)


class Broken(Exception):
    pass


class StoreAgainstDict(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.rows: dict[str, tuple[bytes, Encoding]] = {}
        self.stores: list[Store] = [self.open()]

    def open(self) -> Store:
        raise NotImplementedError

    @property
    def store(self) -> Store:
        return self.stores[0]

    def teardown(self) -> None:
        for store in self.stores:
            store.close()

    @rule(key=KEYS, size=SIZES, fill=FILLS, encoding=ENCODINGS, streamed=st.booleans(), overwrite=st.booleans())
    def put(self, key: str, size: int, fill: int, encoding: Encoding, streamed: bool, overwrite: bool) -> None:
        value = bytes([fill]) * size
        given = iter([value[: size // 3], value[size // 3 :]]) if streamed else value
        if key in self.rows and not overwrite:
            with pytest.raises(KeyExists):
                self.store.put(key, given, encoding=encoding, overwrite=False)
        else:
            self.store.put(key, given, encoding=encoding, overwrite=overwrite)
            self.rows[key] = (value, encoding)

    @rule(rows=st.lists(st.tuples(KEYS, st.binary(max_size=20)), max_size=8), overwrite=st.booleans())
    def put_many(self, rows: list[tuple[str, bytes]], overwrite: bool) -> None:
        if not overwrite and any(key in self.rows for key, _ in rows):
            with pytest.raises(KeyExists):
                self.store.put_many(rows, overwrite=False)
        else:
            self.store.put_many(rows, overwrite=overwrite)
            self.rows |= {key: (value, Encoding.RAW) for key, value in rows}

    @rule(key=KEYS, size=SIZES)
    def put_that_breaks_off(self, key: str, size: int) -> None:
        def parts() -> Iterator[bytes]:
            yield bytes(size)
            raise Broken

        with pytest.raises(Broken):
            self.store.put(key, parts())

    @rule(key=KEYS)
    def delete(self, key: str) -> None:
        assert self.store.delete(key) == (key in self.rows)
        self.rows.pop(key, None)

    @rule(keys=st.lists(KEYS))
    def delete_many(self, keys: list[str]) -> None:
        assert self.store.delete_many(keys) == [key for key in dict.fromkeys(keys) if key in self.rows]
        for key in keys:
            self.rows.pop(key, None)

    @rule(key=KEYS)
    def read(self, key: str) -> None:
        expected = self.rows.get(key)
        assert self.store.get(key) == expected
        assert self.store.head(key) == (None if expected is None else (len(expected[0]), expected[1]))
        stream = self.store.stream(key)
        assert (None if stream is None else b"".join(stream)) == (None if expected is None else expected[0])

    @rule(keys=st.lists(KEYS))
    def read_many(self, keys: list[str]) -> None:
        assert self.store.get_many(keys) == {key: self.rows[key] for key in keys if key in self.rows}
        there = self.store.get_noted_many(keys, largest=10)
        told = {key: (value, about.size, about.encoding) for key, (value, about) in there.items()}
        rows = {key: self.rows[key] for key in keys if key in self.rows}
        assert told == {key: (value if len(value) <= 10 else None, len(value), encoding) for key, (value, encoding) in rows.items()}

    @rule(prefix=PREFIXES, after=st.one_of(st.just(""), KEYS), limit=st.integers(1, 5))
    def list_keys(self, prefix: str, after: str, limit: int) -> None:
        expected = sorted(key for key in self.rows if key.startswith(prefix) and key > after)[:limit]
        assert self.store.keys(prefix, after=after, limit=limit) == expected

    @rule(prefix=PREFIXES)
    def usage(self, prefix: str) -> None:
        sizes = [len(value) for key, (value, _) in self.rows.items() if key.startswith(prefix)]
        assert self.store.usage(prefix) == (len(sizes), sum(sizes))

    @rule()
    def sweep(self) -> None:
        self.store.sweep()

    @rule()
    def use_another_connection(self) -> None:
        if len(self.stores) < 3:
            self.stores.append(self.open())
        self.stores.append(self.stores.pop(0))

    @precondition(lambda self: len(self.stores) > 1)
    @rule()
    def close_one(self) -> None:
        self.stores.pop(0).close()

    @invariant()
    def the_same_keys(self) -> None:
        assert self.store.keys() == sorted(self.rows)


class SqliteAgainstDict(StoreAgainstDict):
    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="rmgr-store-model-"))
        super().__init__()

    def open(self) -> Store:
        return SqliteStore(self.folder / "store.db", grace_s=0)

    @precondition(lambda self: len(self.stores) == 1)
    @rule()
    def reopen(self) -> None:
        self.stores.pop().close()
        self.stores.append(self.open())

    def teardown(self) -> None:
        super().teardown()
        shutil.rmtree(self.folder)


class MemoryAgainstDict(StoreAgainstDict):
    count = 0

    def __init__(self) -> None:
        MemoryAgainstDict.count += 1
        self.name = f"model-{MemoryAgainstDict.count}"
        super().__init__()

    def open(self) -> Store:
        return MemoryStore(self.name)


class CassandraAgainstDict(StoreAgainstDict):
    count = 0

    def __init__(self) -> None:
        CassandraAgainstDict.count += 1
        self.folder = Path(f"model-{CassandraAgainstDict.count}")  # stands for what is in the keyspace
        super().__init__()

    def open(self) -> Store:
        return open_adapter(ADAPTERS["cassandra"], self.folder)


@pytest.mark.parametrize(("machine", "examples"), [(SqliteAgainstDict, 30), (MemoryAgainstDict, 60)])
def test_a_store_behaves_as_a_dictionary(machine: type[RuleBasedStateMachine], examples: int) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(max_examples=examples, stateful_step_count=25, deadline=None, suppress_health_check=[HealthCheck.too_slow]),
    )


def test_cassandra_behaves_as_a_dictionary(cassandra: SharedNode) -> None:
    cassandra_keyspaces.use(cassandra.contact)
    run_state_machine_as_test(
        CassandraAgainstDict,
        settings=settings(max_examples=6, stateful_step_count=25, deadline=None, suppress_health_check=[HealthCheck.too_slow]),
    )
