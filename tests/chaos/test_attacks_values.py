"""Values have owners: reading, replacing or running another user's value by name, pointer or pickle is refused.

ann works; mallory has a user's session in ZooKeeper, the file of the data store, and a client of his own making; bob and mallory
also come through a gateway, where nothing but the gateway stands between them and the rows.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from rmgr.client.connection import Connection, connect
from rmgr.client.taskqueue import TaskQueue
from rmgr.client.values import Values
from rmgr.config import ClusterConfig, Config, SecurityConfig
from rmgr.coord.decisions.rights import ValueShare
from rmgr.coord.protocol import keys
from rmgr.coord.protocol.ports import Encoding
from rmgr.errors import DataLost, PermissionDenied, RmgrError, TaskFailed
from rmgr.model.identity import Role
from tests.harness.attacker import Bomb, Person, Scene, unique
from tests.harness.gateway_process import GatewayProcess
from tests.harness.waiting import eventually


@pytest.fixture
def town(scene: Scene) -> Iterator[Scene]:
    yield scene
    assert not scene.canary.exists()


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


@pytest.fixture(scope="module")
def gated(attacked: Scene, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Connection]]:
    """ann, bob and mallory behind one gateway."""
    security = attacked.cluster.security
    assert security is not None
    daemons = attacked.cluster.environment() | {"RMGR_SECURITY_DIR": str(security.bundle(Role.SUBMITTER, "gateway"))}
    with GatewayProcess(daemons, tmp_path_factory.mktemp("gateway")) as gateway, ExitStack() as opened:
        made = {}
        for name in ("ann", "bob", "mallory"):
            own = SecurityConfig(dir=str(security.bundle(Role.USER, name)))
            made[name] = opened.enter_context(connect(config=Config(cluster=ClusterConfig(gateway=gateway.endpoint), security=own)))
        yield made


class Unchecked:
    """A client that looks at nothing itself: whatever it submits is for the nodes to refuse."""

    def __init__(self, connection: Connection) -> None:
        self._values = connection.store
        self._connection = connection

    def __enter__(self) -> Connection:
        self._connection.store = Values(self._values._store, self._values.fates)
        return self._connection

    def __exit__(self, *_: object) -> None:
        self._connection.store = self._values


# -- one user works as ever ---------------------------------------------------------------------------------------------------------


def test_one_user_works_with_his_values_as_ever(town: Scene) -> None:
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


def test_another_users_value_is_read_neither_by_get_nor_by_inputs(town: Scene) -> None:
    key = f"in/{unique()}"
    town.hers.store.put(key, b"x" * 20_000)
    with pytest.raises(PermissionDenied, match=r"belongs to ann.*\n?") as denied:
        town.his.store.get(key)
    assert "rmgr store share" in str(denied.value.hint)
    with pytest.raises(PermissionDenied, match="belongs to ann"), TaskQueue(_size, connection=town.his, name=unique()) as queue:
        queue.submit(inputs=[key], outputs=[f"m/{unique()}"], check=True)
    with Unchecked(town.his) as his:
        failed = run(his, _size, [key], [f"m/{unique()}"])
    assert failed is not None
    assert "belongs to ann" in str(failed), failed
    assert failed.reason == "UNTRUSTED"


def test_another_users_outputs_are_read_neither_by_key_nor_by_a_pointer(town: Scene) -> None:
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


def test_another_users_unpublished_results_are_not_read_by_a_pointer(town: Scene) -> None:
    """Results without a key, too large for a fragment: ann's future has them, and nobody else."""
    with TaskQueue(_large, connection=town.hers, name=unique()) as queue:
        future = queue.submit_call(None)
        assert future.result(60) == b"secret" * 5000
        number, index = queue.id, future.index
    evil = f"evil/{unique()}"
    data = keys.encode_pointer(keys.Pointer(sub=number, index=index, n=0, by=""))
    town.his.store.write_pointers([(keys.named(evil), data)])
    with pytest.raises(DataLost, match="cannot be believed"):
        town.his.store.get(evil)
    failed = run(town.his, _size, [evil], [f"m/{unique()}"])
    assert failed is not None
    assert "cannot be believed" in str(failed)


def test_a_deed_that_mallory_makes_for_anns_value_is_not_believed(town: Scene) -> None:
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
        with pytest.raises(PermissionDenied, match=r"belongs to nobody|wrote it in the name of ann"):
            town.hers.store.get(key)
    with Unchecked(town.hers) as hers:
        failed = run(hers, _size, [key], [f"m/{unique()}"])
    assert failed is not None
    assert "in the name of ann" in str(failed)


def test_an_older_value_of_hers_is_put_back_and_believed(town: Scene) -> None:
    """What she signed once stays signed: shown, so that nobody takes it for impossible."""
    key = f"in/{unique()}"
    row = keys.named(key)
    town.hers.store.put(key, b"old")
    kept = town.store.about(row)
    assert kept is not None
    town.hers.store.put(key, b"new", overwrite=True)
    town.store.put(row, b"old", note=kept.note)
    assert town.hers.store.get(key) == b"old"


# -- H3: pickles of others ------------------------------------------------------------------------------------------------------------


def test_a_pickle_of_another_user_is_not_loaded_by_the_client_nor_on_the_node(town: Scene) -> None:
    key = f"cfg/{unique()}"
    town.his.store.put(key, Bomb(town.canary))
    with pytest.raises(PermissionDenied, match="belongs to mallory"):
        town.hers.store.get(key)
    share(town.his, key, "ann")
    eventually(lambda: _is_readable(town.hers, key), "it is shared")
    with pytest.raises(PermissionDenied, match=r"pickle.*written by mallory") as denied:
        town.hers.store.get(key)
    assert 'trust="mallory"' in str(denied.value.hint)
    with pytest.raises(PermissionDenied, match="pickle"), TaskQueue(_size, connection=town.hers, name=unique()) as queue:
        queue.submit(inputs=[key], outputs=[f"m/{unique()}"], check=True)
    with Unchecked(town.hers) as hers:
        failed = run(hers, _size, [key], [f"m/{unique()}"])
    assert failed is not None
    assert failed.reason == "UNTRUSTED"
    assert "written by mallory" in str(failed)


def test_a_pickle_under_an_output_of_hers_is_not_loaded(town: Scene) -> None:
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


def test_whoever_says_so_loads_the_pickle_of_another(town: Scene) -> None:
    key, out = f"cfg/{unique()}", f"m/{unique()}"
    town.hers.store.put(key, [1, 2, 3])
    share(town.hers, key, "mallory")
    eventually(lambda: _is_readable(town.his, key), "it is shared")
    assert town.his.store.get(key, trust="ann") == [1, 2, 3]
    assert run(town.his, _size, [key], [out], trust="ann") is None
    assert town.his.store.get(out) == 3
    with pytest.raises(PermissionDenied):
        town.his.store.get(key, trust="bob")


# -- replacing what is another's ---------------------------------------------------------------------------------------------------------


def test_another_users_key_is_neither_replaced_nor_deleted_nor_an_output(town: Scene) -> None:
    key = f"in/{unique()}"
    town.hers.store.put(key, b"hers")
    for attack in (
        lambda: town.his.store.put(key, b"his"),
        lambda: town.his.store.put(key, b"his", overwrite=False),
        lambda: town.his.store.delete(key),
        lambda: run(town.his, _nothing, [], [key], overwrite=True, check=True),
        lambda: run(town.his, _nothing, [], [key], check=True),
    ):
        with pytest.raises(PermissionDenied, match="belongs to ann"):
            attack()
    for options in ({}, {"overwrite": True}):
        with TaskQueue(_nothing, connection=town.his, name=unique()) as queue:
            failed = queue.submit(outputs=[key], **options)
            fine = queue.submit(outputs=[f"his/{unique()}"])
            with pytest.raises(PermissionDenied, match=r"task \d+_0: the key .* belongs to ann"):
                queue.flush(60)
            queue.flush(60)
            with pytest.raises(TaskFailed, match=r"OUTPUT_EXISTS \(the key .* belongs to ann"):
                failed.result(60)
            assert fine.result(60) is None
            with pytest.raises(TaskFailed, match="OUTPUT_EXISTS"):
                queue.wait_all(timeout=60)
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


# -- through a gateway: nothing but the gateway stands between a client of his own making and the rows ----------------------------------


def test_a_gateway_shows_nobody_the_rows_of_others(town: Scene, gated: dict[str, Connection]) -> None:
    key = f"in/{unique()}"
    gated["ann"].store.put(key, b"x" * 20_000)
    rows = gated["mallory"].submitter.store
    row = keys.named(key)
    several = (lambda it: rows.get_many([it]), lambda it: rows.get_noted_many([it], largest=1), lambda it: list(rows.stream(it) or ()))
    for read in (rows.get, rows.get_noted, rows.head, rows.about, *several):
        for name in (row, keys.led(key)):
            with pytest.raises(PermissionDenied, match="belongs to ann"):
                read(name)
    assert row not in rows.keys(row)
    assert rows.usage(row) == (0, 0)
    assert gated["ann"].submitter.store.keys(row) == [row]
    assert gated["ann"].submitter.store.usage(row) == (1, 20_000)
    with pytest.raises(PermissionDenied):
        rows.usage("")


def test_a_gateway_lets_nobody_write_rows_of_others_nor_in_their_names(town: Scene, gated: dict[str, Connection]) -> None:
    key, free = f"in/{unique()}", f"in/{unique()}"
    gated["ann"].store.put(key, b"hers")
    mallory = gated["mallory"]
    rows, deeds = mallory.submitter.store, mallory.store.deeds
    assert deeds is not None
    row = keys.named(key)
    for attack in (
        lambda: rows.put(row, b"his", note=deeds.noted(row, Encoding.RAW)),
        lambda: rows.put(row, iter([b"his"]), note=deeds.noted(row, Encoding.RAW)),
        lambda: rows.put_many([(row, b"his")], notes=[b""]),
        lambda: rows.put(keys.named(free), b"unsigned"),
        lambda: rows.put(keys.named(free), iter([b"unsigned"])),
        lambda: rows.put(keys.named(free), b"in her name", note=deeds.noted(keys.named(free), Encoding.RAW, owner="ann")),
        lambda: rows.put_many([(keys.named(free), b"other")], notes=deeds.notes([(keys.named(free), b"1" * 32, "")], Encoding.RAW)),
        lambda: rows.delete(row),
        lambda: rows.delete_many([keys.named(free), row]),
    ):
        with pytest.raises(PermissionDenied):
            attack()
    forged = ValueShare(owner="ann", user="mallory", key="in/", is_prefix=True, write=True)
    for attack in (lambda: deeds.put_share(rows, forged), lambda: rows.delete(forged.row)):
        with pytest.raises(PermissionDenied):
            attack()
    assert gated["ann"].store.get(key) == b"hers"
    assert town.store.head(keys.named(free)) is None


def test_two_who_put_a_free_name_at_once_do_not_both_own_it(town: Scene, gated: dict[str, Connection]) -> None:
    key = f"race/{unique()}"
    told: dict[str, object] = {}

    def put(name: str) -> None:
        try:
            gated[name].store.put(key, name.encode())
            told[name] = True
        except RmgrError as error:
            told[name] = error

    threads = [threading.Thread(target=put, args=(name,)) for name in ("ann", "bob")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    [owner] = [name for name, found in told.items() if found is True]
    assert gated[owner].store.get(key) == owner.encode()


def test_what_is_shared_is_read_through_a_gateway_outputs_too(town: Scene, gated: dict[str, Connection]) -> None:
    name = unique()
    ann, bob = gated["ann"], gated["bob"]
    ann.store.put(f"{name}/in", b"abc")
    assert run(ann, _large, [f"{name}/in"], [f"{name}/out"]) is None
    with pytest.raises(PermissionDenied, match="belongs to ann"):
        bob.store.get(f"{name}/out")
    ann.store.share(f"{name}/", "bob", is_prefix=True)
    assert [one.key for one in bob.store.shares() if one.key.startswith(name)] == [f"{name}/"]
    eventually(lambda: _is_readable(bob, f"{name}/out"), "it is shared")
    assert bob.store.get(f"{name}/in") == b"abc"
    assert bob.store.get(f"{name}/out") == b"secret" * 5000
    assert bob.store.keys(f"{name}/") == [f"{name}/in", f"{name}/out"]
    assert run(bob, _size, [f"{name}/out"], [f"bob/{name}"]) is None
    assert bob.store.get(f"bob/{name}") == 30_000
    with pytest.raises(PermissionDenied, match="belongs to ann"):
        bob.store.put(f"{name}/in", b"his")
    with pytest.raises(PermissionDenied, match="belongs to ann"):
        gated["mallory"].store.get(f"{name}/out")
    assert ann.store.unshare(f"{name}/", "bob", is_prefix=True)
    eventually(lambda: not _is_readable(bob, f"{name}/out"), "it is not shared any more")
    with pytest.raises(PermissionDenied, match="belongs to ann"):
        bob.store.get(f"{name}/out")


def test_who_may_write_does_and_it_stays_the_owners(town: Scene, gated: dict[str, Connection]) -> None:
    name = unique()
    ann, bob = gated["ann"], gated["bob"]
    for key in ("in", "out"):
        ann.store.put(f"{name}/{key}", b"hers")
    ann.store.share(f"{name}/", "bob", write=True, is_prefix=True)
    eventually(lambda: _is_readable(bob, f"{name}/in"), "it is shared")
    bob.store.put(f"{name}/in", [Path("/")])
    with pytest.raises(PermissionDenied, match="written by bob"):
        ann.store.get(f"{name}/in")
    assert ann.store.get(f"{name}/in", trust="bob") == [Path("/")]
    assert run(bob, _nothing, [], [f"{name}/out"], overwrite=True) is None
    assert ann.store.get(f"{name}/out") == b"his"
    assert bob.store.get(f"{name}/out") == b"his"
    ann.store.unshare(f"{name}/", "bob", is_prefix=True)
    eventually(lambda: not _is_readable(bob, f"{name}/in"), "it is not shared any more")
    with pytest.raises(PermissionDenied, match="bob wrote it in the name of ann"):
        ann.store.get(f"{name}/in", trust="bob")
    ann.store.put(f"{name}/in", b"hers again")
    assert ann.store.get(f"{name}/in") == b"hers again"


# -- what earlier releases wrote ----------------------------------------------------------------------------------------------------------


def test_what_nobody_signed_is_nobodys_until_an_operator_gives_it_an_owner(town: Scene) -> None:
    key = f"old/{unique()}"
    town.store.put(keys.named(key), b"old")
    with pytest.raises(PermissionDenied, match="belongs to nobody"):
        town.hers.store.get(key)
    with pytest.raises(PermissionDenied, match="for operators"):
        town.his.store.adopt(key, "mallory")
    boss = Person(town.cluster, Role.OPERATOR, "boss")
    try:
        with boss.connection() as connection:
            assert connection.store.get(key) == b"old"
            assert connection.store.adopt(key, "ann")
    finally:
        boss.zk.close()
    assert town.hers.store.get(key) == b"old"
    with pytest.raises(PermissionDenied, match="belongs to ann"):
        town.his.store.get(key)


# -- the shell ---------------------------------------------------------------------------------------------------------------------------


def shell(town: Scene, who: Person, *words: str, stdin: bytes = b"", code: int = 0) -> bytes:
    """`rmgr WORDS` of a person."""
    environment = os.environ | town.cluster.environment() | {"RMGR_SECURITY_DIR": who.config.security.dir}
    command = [sys.executable, "-m", "rmgr.cli.main", *words]
    done = subprocess.run(command, input=stdin, capture_output=True, env=environment, timeout=120, check=False)
    assert done.returncode == code, (words, done.returncode, done.stdout, done.stderr)
    return done.stdout if code == 0 else done.stderr


def test_the_shell_asks_whose_values_are_and_shares_them(town: Scene) -> None:
    name = unique()
    ann, mallory = town.ann, town.mallory
    shell(town, ann, "store", "put", f"{name}/in", stdin=b"hers")
    told = shell(town, mallory, "store", "get", f"{name}/in", code=4)
    assert b"belongs to ann" in told
    assert b"rmgr store share" in told
    assert b"belongs to ann" in shell(town, mallory, "store", "put", f"{name}/in", "--value", "x", code=4)
    assert b"belongs to ann" in shell(town, mallory, "submit", "--input", f"{name}/in=in.txt", "--", "true", code=4)
    shell(town, ann, "store", "share", f"{name}/", "--with", "mallory")
    listed = shell(town, mallory, "store", "shares", "--no-header").decode()
    assert ["ann", "mallory", "read", f"{name}/*"] in [line.split() for line in listed.splitlines()]
    words = ["--input", f"{name}/in=in.txt", "--output", f"{name}/out=o.txt", "--", "sh", "-c", "cp in.txt o.txt"]
    shell(town, ann, "submit", "--wait", *words)
    assert shell(town, mallory, "store", "get", f"{name}/out") == b"hers"
    shell(town, ann, "store", "unshare", f"{name}/", "--with", "mallory")
    assert b"belongs to ann" in shell(town, mallory, "store", "get", f"{name}/out", code=4)
    assert town.hers.store.keys(f"{name}/") == [f"{name}/in", f"{name}/out"]
