"""`store.put_many`, `get_many`, `delete_many` on every store, directly and through a gateway, and with owners in a secured cluster."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmgr import TaskQueue
from rmgr.client.connection import Connection
from rmgr.client.values import Values
from rmgr.config import ClusterConfig, Config, SecurityConfig
from rmgr.coord.protocol.ports import Store
from rmgr.dev.cluster import DevCluster
from rmgr.dev.zookeeper import ZooKeeperServer
from rmgr.errors import KeyExists, PermissionDenied, PickleFailed, UsageError
from rmgr.model.cluster.identity import Role
from tests.harness.ended_sessions import LONG_S
from tests.harness.gateway_process import GatewayProcess
from tests.harness.store_adapters import Adapter
from tests.harness.store_ways import WAYS, opened


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
def town(zookeeper: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Connection]]:
    """ann and mallory, each directly and behind a gateway ("ann gated")."""
    from contextlib import ExitStack

    from rmgr.client.connection import connect

    folder = tmp_path_factory.mktemp("many")
    cluster = DevCluster(folder / "cluster", nodes=1, cores=2, watchdogs=1, secured=True, guest_of=zookeeper, session_timeout_s=LONG_S)
    with ExitStack() as stack:
        stack.callback(cluster.stop)
        cluster.start()
        security = cluster.security
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
