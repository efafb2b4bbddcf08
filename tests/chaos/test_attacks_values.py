"""Values have owners: who reads, replaces or runs what is another's, by name, by pointer, or by pickle, is refused.

ann works; mallory has a user's session in ZooKeeper, the file of the data store, and a client of his own making; bob and mallory
also come through a gateway, where nothing but the gateway stands between them and the rows.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rmgr.client.connection import Connection
from rmgr.client.taskqueue import TaskQueue
from rmgr.client.values import Values
from rmgr.coord import keys
from rmgr.coord.ports import Encoding
from rmgr.errors import DataLost, PermissionDenied, TaskFailed
from tests.harness.attacker import Scene, unique, until


class Bomb:
    """Unpickled, it leaves the canary."""

    def __init__(self, canary: Path) -> None:
        self.canary = str(canary)

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (self.canary,))


class Town(Scene):
    """Also connections of ann and mallory, and stores of theirs."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.hers = self.ann.connection()
        self.his = self.mallory.connection()

    def close(self) -> None:
        self.hers.close()
        self.his.close()
        super().close()


@pytest.fixture(scope="module")
def world(zookeeper_parts: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    made = Town(tmp_path_factory.mktemp("values"))
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def town(world: Town) -> Iterator[Town]:
    assert not world.canary.exists()
    yield world
    assert not world.canary.exists()


def _size(value: Any) -> int:
    return len(value)


def _large(_value: Any) -> bytes:
    return b"secret" * 5000


def run(connection: Connection, function: Callable[..., Any], inputs: list[str], outputs: list[str], **options: Any) -> TaskFailed | None:
    """One task in the keyed form; why it failed."""
    with TaskQueue(function, connection=connection, name=unique()) as queue:
        future = queue.submit(inputs=inputs, outputs=outputs, **options)
        try:
            future.result(60)
        except TaskFailed as error:
            return error
    return None


class Unchecked:
    """A client that looks at nothing itself: whatever it submits is for the nodes to refuse."""

    def __init__(self, connection: Connection) -> None:
        self._values = connection.store
        self._connection = connection

    def __enter__(self) -> Connection:
        self._connection.store = Values(self._values._store, self._values._coordinator)
        return self._connection

    def __exit__(self, *_: object) -> None:
        self._connection.store = self._values


# -- one user works as ever ---------------------------------------------------------------------------------------------------------


def test_one_user_works_with_his_values_as_ever(town: Town) -> None:
    name = unique()
    town.hers.store.put(f"in/{name}", b"abc")
    assert run(town.hers, _large, [f"in/{name}"], [f"out/{name}"]) is None
    assert town.hers.store.get(f"out/{name}") == b"secret" * 5000
    town.hers.store.put(f"in/{name}", {"a": 1})
    assert town.hers.store.get(f"in/{name}") == {"a": 1}
    assert run(town.hers, _size, [f"in/{name}"], [f"out2/{name}"]) is None
    assert town.hers.store.get(f"out2/{name}") == 1
    assert run(town.hers, _size, [f"out/{name}"], [f"out3/{name}"]) is None
    assert town.hers.store.get(f"out3/{name}") == 30_000
    assert town.hers.store.delete(f"in/{name}")


# -- H2: reading what is another's -----------------------------------------------------------------------------------------------------


def test_another_users_value_is_read_neither_by_get_nor_by_inputs(town: Town) -> None:
    key = f"in/{unique()}"
    town.hers.store.put(key, b"x" * 20_000)
    with pytest.raises(PermissionDenied, match=r"belongs to ann.*\n?") as denied:
        town.his.store.get(key)
    assert "rmgr store share" in str(denied.value.hint)
    with pytest.raises(PermissionDenied, match="belongs to ann"), TaskQueue(_size, connection=town.his, name=unique()) as queue:
        queue.submit(inputs=[key], outputs=[f"m/{unique()}"])
    with Unchecked(town.his) as his:
        failed = run(his, _size, [key], [f"m/{unique()}"])
    assert failed is not None
    assert "belongs to ann" in str(failed), failed
    assert failed.reason == "UNTRUSTED"


def test_another_users_outputs_are_read_neither_by_key_nor_by_a_pointer(town: Town) -> None:
    name, evil = unique(), f"evil/{unique()}"
    town.hers.store.put(f"in/{name}", b"abc")
    with TaskQueue(_large, connection=town.hers, name=unique()) as queue:
        future = queue.submit(inputs=[f"in/{name}"], outputs=[f"out/{name}"])
        assert future.result(60) is None
        number, index = queue.id, future.index
    with pytest.raises(PermissionDenied, match="belongs to ann"):
        town.his.store.get(f"out/{name}")
    data = keys.encode_pointer(keys.Pointer(sub=number, index=index, n=0, by=""))
    town.his.store.write_pointers([(keys.named(evil), data)])
    with pytest.raises(PermissionDenied, match="belongs to mallory, and points to what belongs to ann"):
        town.his.store.get(evil)
    failed = run(town.his, _size, [evil], [f"m/{unique()}"])
    assert failed is not None
    assert "points to what belongs to ann" in str(failed)


def test_a_deed_that_mallory_makes_for_anns_value_is_not_believed(town: Town) -> None:
    """He may write the file of the store: he puts his own deed, a copied one, and one in her name beside her bytes."""
    key, other = f"in/{unique()}", f"in/{unique()}"
    row = keys.named(key)
    town.hers.store.put(other, b"other")
    copied = town.store.about(keys.named(other))
    assert copied is not None
    deeds = town.his.store.deeds
    assert deeds is not None
    for note in (b"", b"\xc1", copied.note, deeds.noted(row, Encoding.RAW, owner="ann")):
        town.store.put(row, b"forged", note=note)
        with pytest.raises(PermissionDenied, match="belongs to nobody"):
            town.hers.store.get(key)
    with Unchecked(town.hers) as hers:
        failed = run(hers, _size, [key], [f"m/{unique()}"])
    assert failed is not None
    assert "belongs to nobody" in str(failed)


# -- H3: pickles of others ------------------------------------------------------------------------------------------------------------


def test_a_pickle_of_another_user_is_not_loaded_by_the_client_nor_on_the_node(town: Town) -> None:
    key = f"cfg/{unique()}"
    town.his.store.put(key, Bomb(town.canary))
    with pytest.raises(PermissionDenied, match="belongs to mallory"):
        town.hers.store.get(key)
    share(town.his, key, "ann")
    until("it is shared", lambda: _is_readable(town.hers, key))
    with pytest.raises(PermissionDenied, match=r"pickle.*written by mallory") as denied:
        town.hers.store.get(key)
    assert 'trust="mallory"' in str(denied.value.hint)
    with pytest.raises(PermissionDenied, match="pickle"), TaskQueue(_size, connection=town.hers, name=unique()) as queue:
        queue.submit(inputs=[key], outputs=[f"m/{unique()}"])
    with Unchecked(town.hers) as hers:
        failed = run(hers, _size, [key], [f"m/{unique()}"])
    assert failed is not None
    assert failed.reason == "UNTRUSTED"
    assert "written by mallory" in str(failed)


def test_a_pickle_under_an_output_of_hers_is_not_loaded(town: Town) -> None:
    """In the rows of her task's outputs, as bytes and as another encoding of the same bytes."""
    name = unique()
    town.hers.store.put(f"in/{name}", b"abc")
    with TaskQueue(_poisoned, connection=town.hers, name=unique()) as queue:
        future = queue.submit(inputs=[f"in/{name}"], outputs=[f"out/{name}"])
        assert future.result(60) is None
        row = keys.output(queue.id, future.index, 1)
    about = town.store.about(row)
    assert about is not None
    for data, note in ((pickle.dumps(Bomb(town.canary)), about.note), (b"cos\nmkdir\n", about.note)):
        town.store.put(row, data, encoding=Encoding.PICKLE, note=note)
        with pytest.raises(DataLost, match="cannot be believed"):
            town.hers.store.get(f"out/{name}")
        failed = run(town.hers, _size, [f"out/{name}"], [f"m/{unique()}"])
        assert failed is not None
        assert "cannot be believed" in str(failed)


def _poisoned(_value: Any) -> bytes:
    return b"cos\nmkdir\n"


def test_whoever_says_so_loads_the_pickle_of_another(town: Town) -> None:
    key, out = f"cfg/{unique()}", f"m/{unique()}"
    town.hers.store.put(key, [1, 2, 3])
    share(town.hers, key, "mallory")
    until("it is shared", lambda: _is_readable(town.his, key))
    assert town.his.store.get(key, trust="ann") == [1, 2, 3]
    assert run(town.his, _size, [key], [out], trust="ann") is None
    assert town.his.store.get(out) == 3
    with pytest.raises(PermissionDenied):
        town.his.store.get(key, trust="bob")


# -- replacing what is another's ---------------------------------------------------------------------------------------------------------


def test_another_users_key_is_neither_replaced_nor_deleted_nor_an_output(town: Town) -> None:
    key = f"in/{unique()}"
    town.hers.store.put(key, b"hers")
    for attack in (
        lambda: town.his.store.put(key, b"his"),
        lambda: town.his.store.put(key, b"his", overwrite=False),
        lambda: town.his.store.delete(key),
        lambda: run(town.his, _size, [], [key], overwrite=True),
        lambda: run(town.his, _size, [], [key]),
    ):
        with pytest.raises(PermissionDenied, match="belongs to ann"):
            attack()
    with Unchecked(town.his) as his:
        failed = run(his, _nothing, [], [key], overwrite=True)
    assert failed is not None
    assert "belongs to ann" in str(failed)
    assert town.hers.store.get(key) == b"hers"


def _nothing() -> bytes:
    return b"his"


def share(connection: Connection, key: str, user: str, *, write: bool = False, is_prefix: bool = False) -> None:
    connection.store.share(key, user, write=write, is_prefix=is_prefix)


def _is_readable(connection: Connection, key: str) -> bool:
    try:
        connection.store.check_input(key, trust=("all",))
    except PermissionDenied:
        return False
    return True
