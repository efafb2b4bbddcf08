"""Values by key on every store, directly and through a gateway: many at once, their owners, and output keys that several clients claim."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from rmgr import TaskQueue
from rmgr.client.connection import Connection
from rmgr.client.values import Values
from rmgr.config import ClusterConfig, Config, SecurityConfig
from rmgr.coord.protocol import keys
from rmgr.coord.protocol.keys import Pointer
from rmgr.coord.protocol.ports import Encoding, Store
from rmgr.errors import KeyExists, PermissionDenied, PickleFailed, UsageError
from rmgr.model.identity import Role
from rmgr.procedures.output_keys import Fates, claim_pointers, look
from tests.harness.ended_sessions import LONG_S
from tests.harness.gateway_process import GatewayProcess
from tests.harness.store_adapters import Adapter, run_threads
from tests.harness.store_ways import WAYS, opened
from tests.integration.commands import Lend


@pytest.fixture(params=WAYS)
def store(adapter: Adapter, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    with opened(adapter, request.param, tmp_path) as made:
        yield made


def test_many_values_come_back_in_the_order_they_were_asked_for_and_go(store: Store) -> None:
    values = Values(store, None)
    given = {f"m/{n:04d}": (b"%d" % n if n % 3 else {"n": n}) for n in range(1500)} | {"m/large": bytes(3 * 2**20), "m/text": "text"}
    told: list[tuple[int, int]] = []
    assert values.put_many(given, progress=lambda done, of: told.append((done, of))) == len(given)
    assert told[-1] == (1502, 1502)
    assert len(told) >= 2
    asked = ["m/absent", *reversed(given)]
    found = values.get_many(asked, progress=lambda done, of: told.append((done, of)))
    assert found == given
    assert list(found) == list(reversed(given))
    assert told[-1] == (1503, 1503)
    with pytest.raises(KeyExists, match="'name/m/0007'"):
        values.put_many([("m/new", b"1"), ("m/0007", b"2")], overwrite=False)
    assert values.get_many(["m/new", "m/0007"]) == {"m/0007": b"7"}
    assert values.put_many((key, n) for n, key in enumerate(["m/0007", "m/new", "m/0007"])) == 3
    assert values.get_many(["m/0007", "m/new"]) == {"m/0007": 2, "m/new": 1}
    assert values.delete_many(asked) == 1502
    assert values.delete_many(asked) == 0
    assert values.keys() == ["m/new"]


def test_what_cannot_be_a_key_or_a_value_is_named_and_nothing_of_its_step_is_there(store: Store) -> None:
    values = Values(store, None)
    with pytest.raises(UsageError, match="a key cannot be empty"):
        values.put_many({"m/1": 1, "": 2})
    with pytest.raises(PickleFailed, match="the value for 'm/2'"):
        values.put_many({"m/1": 1, "m/2": (n for n in range(3))})
    assert values.put_many({}) == 0
    assert values.get_many([]) == {}
    assert values.delete_many([]) == 0
    assert values.keys() == []


# -- owners: a secured cluster, directly and through its gateway ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def town(lend_secured: Lend, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Connection]]:
    """ann and mallory, each directly and behind a gateway ("ann gated")."""
    from contextlib import ExitStack

    from rmgr.client.connection import connect

    folder = tmp_path_factory.mktemp("many")
    with ExitStack() as stack:
        cluster = stack.enter_context(lend_secured())
        cluster.start_starter("n1", cores=2)
        cluster.wait_healthy(nodes=1, deadline_s=60)
        security = cluster.security
        assert security is not None
        daemons = cluster.environment() | {"RMGR_SECURITY_DIR": str(security.bundle(Role.SUBMITTER, "gateway"))}
        gateway = stack.enter_context(GatewayProcess(daemons, folder))
        made = {}
        for name in ("ann", "mallory"):
            own = SecurityConfig(dir=str(security.bundle(Role.USER, name)))
            direct = ClusterConfig(zk=cluster.state.zookeeper, store=cluster.state.store, session_timeout_s=LONG_S)
            made[name] = stack.enter_context(connect(config=Config(cluster=direct, security=own)))
            gated = ClusterConfig(gateway=gateway.endpoint)
            made[f"{name} gated"] = stack.enter_context(connect(config=Config(cluster=gated, security=own)))
        yield made


def _twice(value: int) -> int:
    return 2 * value


@pytest.mark.parametrize("way", ["", " gated"])
def test_many_values_have_owners_and_pointers_are_followed(town: dict[str, Connection], way: str) -> None:
    ann, mallory = town[f"ann{way}"], town[f"mallory{way}"]
    name = uuid.uuid4().hex[:8]
    given: dict[str, object] = {f"{name}/{n}": n for n in range(300)} | {f"{name}/bytes": b"bytes"}
    assert ann.store.put_many(given) == 301
    assert ann.store.put_many(given) == 301  # hers already
    with TaskQueue(_twice, connection=ann) as queue:
        for n in range(20):
            queue.submit([f"{name}/{n}"], [f"{name}/out/{n}"])
        queue.wait_all(timeout=60)
    outputs = [f"{name}/out/{n}" for n in range(20)]
    for reader in (ann, town["ann"]):
        assert reader.store.get_many([*given, *outputs, f"{name}/absent"]) == given | {key: 2 * n for n, key in enumerate(outputs)}
    for attack in (
        lambda: mallory.store.get_many([f"{name}/1"]),
        lambda: mallory.store.get_many(outputs),
        lambda: mallory.store.put_many({f"{name}/mine": b"1", f"{name}/1": b"2"}),
        lambda: mallory.store.put_many({f"{name}/mine": b"1", f"{name}/1": b"2"}, overwrite=False),
        lambda: mallory.store.delete_many([f"{name}/mine", f"{name}/1"]),
    ):
        with pytest.raises(PermissionDenied, match="belongs to ann"):
            attack()
    assert not mallory.store.exists(f"{name}/mine")
    ann.store.share(f"{name}/", "mallory", is_prefix=True)
    assert mallory.store.get_many([f"{name}/bytes"]) == {f"{name}/bytes": b"bytes"}
    with pytest.raises(PermissionDenied, match="pickle"):
        mallory.store.get_many([f"{name}/1"])
    assert mallory.store.get_many([f"{name}/1", *outputs[:2]], trust="ann") == {f"{name}/1": 1, outputs[0]: 0, outputs[1]: 2}
    assert ann.store.delete_many([*given, *outputs]) == 321


def test_a_value_is_replaced_only_while_it_is_the_one_that_was_seen(store: Store) -> None:
    store.put_many([("name/a", b"old"), ("name/b", b"other")])
    seen = {"name/a": sha256(b"old").digest(), "name/c": sha256(b"").digest()}
    store.put_many([("name/a", b"new"), ("name/c", b"fresh")], overwrite=False, replaces=seen)
    assert store.get_many(["name/a", "name/b", "name/c"]) == {
        "name/a": (b"new", Encoding.RAW),
        "name/b": (b"other", Encoding.RAW),
        "name/c": (b"fresh", Encoding.RAW),
    }
    for rows in ([("name/a", b"newer")], [("name/d", b"1"), ("name/a", b"newer")]):
        with pytest.raises(KeyExists, match="'name/a'"):
            store.put_many(rows, overwrite=False, replaces=seen)
    assert store.get_many(["name/a", "name/d"]) == {"name/a": (b"new", Encoding.RAW)}


def test_of_clients_that_want_the_same_keys_each_key_has_one_winner(store: Store) -> None:
    """Half of the keys are free, half were left by tasks that are gone without a value: those may be taken, once."""
    names = [f"out/{n:03d}" for n in range(40)]
    gone = [(keys.named(name), keys.encode_pointer(Pointer(sub=1, index=n, by="gone"))) for n, name in enumerate(names[::2])]
    store.put_many(gone, encoding=Encoding.POINTER)
    barrier = threading.Barrier(3)
    won: dict[str, list[int]] = {name: [] for name in names}

    def client(number: int) -> None:
        values = Values(store, Fates(store, _Nothing()))  # type: ignore[arg-type]
        wanted = [(name, Pointer(sub=10 + number, index=n, by=f"c{number}")) for n, name in enumerate(names)]
        wanted = wanted[number * 13 :] + wanted[: number * 13]
        barrier.wait(60)
        refused: dict[int, object] = {}
        for at in range(0, len(wanted), 10):
            refused |= claim_pointers(values, wanted[at : at + 10], overwrite=False)
        for name, pointer in wanted:
            if pointer.index not in refused:
                won[name].append(pointer.sub)

    run_threads(client, 3)
    assert {name: len(subs) for name, subs in won.items()} == dict.fromkeys(names, 1)
    there = store.get_many([keys.named(name) for name in names])
    assert {name: keys.decode_pointer(there[keys.named(name)][0]).sub for name in names} == {name: subs[0] for name, subs in won.items()}


def test_a_claim_that_is_repeated_finds_its_own(store: Store) -> None:
    values = Values(store, Fates(store, _Nothing()))  # type: ignore[arg-type]
    wanted = [(f"out/{n}", Pointer(sub=12, index=n, by="me")) for n in range(5)]
    assert values.claim_pointers(wanted[:3], overwrite=False) == {}
    assert values.claim_pointers(wanted, overwrite=False) == {}
    assert look(values, list(wanted), overwrite=False).ours == {key for key, _ in wanted}
    assert "out/4" in values.seen


class _Nothing:
    """A coordinator whose submissions from 10 on are there and open; those below are gone."""

    def get(self, path: str, **_: object) -> object:
        from concurrent.futures import Future

        from rmgr.coord.protocol import paths
        from rmgr.coord.protocol.multi import Stamped, Stat
        from rmgr.coord.protocol.records import encode_record
        from rmgr.model.submission import Tail

        future: Future[Stamped | None] = Future()
        number = next((n for n in range(10, 14) if path in (paths.tail(n), paths.done(n))), None)
        data = encode_record(Tail(next=100, reigns=((0, f"c{number - 10}"),))) if number and path == paths.tail(number) else b""
        future.set_result(None if number is None else Stamped(data, Stat(0, 0, 0, 0, 0, 0)))
        return future
