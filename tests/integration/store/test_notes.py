"""Every data store keeps the note beside a value, and changes and removes both in one step."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from rmgr.adapters.store_rules import CHUNK_BYTES
from rmgr.coord.protocol.ports import MAX_VALUE_BYTES, About, Encoding, Store
from rmgr.errors import UsageError
from tests.harness.store_adapters import Adapter, pattern
from tests.harness.store_ways import WAYS, opened


@pytest.fixture(params=WAYS)
def store(adapter: Adapter, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    with opened(adapter, request.param, tmp_path) as made:
        yield made


@pytest.mark.parametrize("size", [0, 1000, CHUNK_BYTES + 1, 5 * 2**20])
def test_a_note_is_kept_beside_a_value_and_goes_with_it(store: Store, size: int) -> None:
    value = pattern(size)
    digest = sha256(value).digest()
    store.put("name/a", value, encoding=Encoding.PICKLE, note=lambda found: b"note of " + found)
    about = About(size, Encoding.PICKLE, digest, b"note of " + digest)
    assert store.get_noted("name/a") == (value, about)
    assert store.about("name/a") == about
    assert store.about_many(["name/a", "name/b"]) == {"name/a": about}
    assert store.head("name/a") == (size, Encoding.PICKLE)
    assert store.get("name/a") == (value, Encoding.PICKLE)
    assert store.get_many(["name/a"]) == {"name/a": (value, Encoding.PICKLE)}
    assert b"".join(store.stream("name/a") or ()) == value
    store.put("name/a", iter([value, b"x"]))
    assert store.about("name/a") == About(size + 1, Encoding.RAW, sha256(value + b"x").digest(), b"")
    assert store.get_noted("name/b") is None
    assert store.about("name/b") is None


def test_many_values_have_a_note_each(store: Store) -> None:
    rows = [(f"name/{n}", b"%d" % n) for n in range(3)]
    store.put_many(rows, notes=[b"", b"one", b"\x00two"])
    found = store.about_many([key for key, _ in rows])
    assert [found[key].note for key, _ in rows] == [b"", b"one", b"\x00two"]
    with pytest.raises(UsageError):
        store.put_many(rows, notes=[b"one"])


def test_many_values_are_read_with_what_is_known_of_them_and_large_ones_only_told_of(store: Store) -> None:
    sizes = {"name/none": 0, "name/some": 1000, "name/whole": CHUNK_BYTES, "name/large": 2 * CHUNK_BYTES + 1, "name/largest": 5 * 2**20}
    values = {key: pattern(size, size) for key, size in sizes.items()}
    for key, value in values.items():
        store.put(key, value, encoding=Encoding.PICKLE, note=key.encode())
    about = {key: About(len(value), Encoding.PICKLE, sha256(value).digest(), key.encode()) for key, value in values.items()}
    asked = [*values, "name/absent", "name/some"]
    assert store.get_noted_many(asked, largest=MAX_VALUE_BYTES) == {key: (value, about[key]) for key, value in values.items()}
    for largest in (0, 999, CHUNK_BYTES, 3 * CHUNK_BYTES):
        told = {key: (value if len(value) <= largest else None, about[key]) for key, value in values.items()}
        assert store.get_noted_many(asked, largest=largest) == told
    assert store.get_noted_many([], largest=MAX_VALUE_BYTES) == {}


@pytest.mark.parametrize("count", [1, 3, 1100])  # more than a part of claims (500), SQLite's variables (999), a page of keys (1,000)
def test_many_are_deleted_and_told_of_which_were_there(store: Store, count: int) -> None:
    rows = [(f"name/{n:04d}", b"%d" % n) for n in range(count)]
    store.put_many([*rows, ("name/kept", b"kept")], timeout_s=60)
    store.put("name/0000", pattern(CHUNK_BYTES + 1))
    asked = [key for key, _ in reversed(rows)]
    assert store.delete_many([*asked, "name/absent", asked[0]]) == asked
    assert store.delete_many(asked) == []
    assert store.delete_many([]) == []
    assert store.get_many(asked) == {}
    assert store.keys("name/") == ["name/kept"]
    store.put_many(rows, overwrite=False, timeout_s=60)
    assert store.usage("name/")[0] == count + 1


def test_what_a_note_raises_leaves_the_old_value(store: Store) -> None:
    def refuse(_digest: bytes) -> bytes:
        raise UsageError("no")

    store.put("name/a", b"old", note=b"old")
    for value in (b"new", pattern(CHUNK_BYTES + 1)):
        with pytest.raises(UsageError):
            store.put("name/a", value, note=refuse)
    assert store.get_noted("name/a") == (b"old", About(3, Encoding.RAW, sha256(b"old").digest(), b"old"))
