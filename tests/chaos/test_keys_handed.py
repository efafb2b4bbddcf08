"""A client or Starter dies while the client claims output keys beside its HAND, or two clients compete for the same keys.

Each key has one value, of a committed attempt, and a ledger outside the cluster shows that no task with a key has run twice.

with SQLite on `keys_town`, which is secured; with Cassandra on an open cluster for these tests, of the same shape
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from breakable import Chaos
from keyed import Story, ended, killed

from rmgr.bench.measuring import connected
from rmgr.client.connection import Connection
from rmgr.dev.cluster import DevCluster
from rmgr.dev.zookeeper import ZooKeeperServer
from tests.harness.cassandra_nodes import SharedNode
from tests.harness.ended_sessions import LONG_S, expiring
from tests.harness.waiting import eventually

pytestmark = pytest.mark.chaos

TASKS = 60
#: One task after another: the first ones are queued (a dozen may be over before the client sees that its node is idle), the others are
#: handed over, and soon over a direct line.
PROGRAM = """
import json, sys
from rmgr import TaskQueue
from rmgr.errors import KeyExists, RmgrError
ledger, prefix, who, token, tasks = sys.argv[1:6]
def work(value):
    import os
    with open(ledger, "a") as file:
        file.write(f"{who} {value}\\n")
    return [who, 2 * value]
queue = TaskQueue(work, token=token)
told = {}
for n in range(queue.own(60), int(tasks)):
    try:
        future = queue.submit([f"{prefix}/in/{n}"], [f"{prefix}/out/{n}"])
        told[n] = getattr(future.exception(60), "reason", "")
    except KeyExists:
        told[n] = "AT_ONCE"
queue.close()
try:
    queue.wait_all(timeout=60)
except RmgrError:
    pass
print(json.dumps(told), flush=True)
"""


@pytest.fixture(scope="module")
def on_cassandra(
    breakable_zookeeper: ZooKeeperServer, cassandra: SharedNode, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[DevCluster, Connection]]:
    from rmgr.adapters.cassandra.setup import init_store
    from rmgr.adapters.cassandra.url import parse_url

    store = f"cassandra://{cassandra.contact}/k{uuid.uuid4().hex[:16]}?replication_factor=1"
    init_store(parse_url(store), timeout_s=60)
    cluster = DevCluster(
        tmp_path_factory.mktemp("handed"),
        nodes=1,
        cores=2,
        watchdogs=1,
        store=store,
        session_timeout_s=LONG_S,
        secured=False,
        guest_of=breakable_zookeeper.start(),
    )
    with cluster, expiring(cluster), connected(cluster) as connection:
        yield cluster, connection


@pytest.fixture(params=["sqlite", "cassandra"])
def town(request: pytest.FixtureRequest) -> tuple[DevCluster, Connection]:
    if request.param == "sqlite":
        chaos, connection = request.getfixturevalue("keys_town")
        return chaos.cluster, connection
    found: tuple[DevCluster, Connection] = request.getfixturevalue("on_cassandra")
    return found


@pytest.fixture
def story(town: tuple[DevCluster, Connection], tmp_path: Path) -> Story:
    return Story(*town, tmp_path, PROGRAM, TASKS)


#: Before its claim, before it can say that the keys are claimed; and, of a store where that comes earlier, when nobody else can have them.
MOMENTS = [("sqlite", "before_handed_claim"), ("sqlite", "handed_claimed")]
MOMENTS += [("cassandra", moment) for moment in ("before_handed_claim", "handed_decided", "handed_claimed")]


@pytest.mark.parametrize(("town", "moment"), MOMENTS, indirect=["town"])
def test_a_client_killed_while_it_claims_beside_its_hand_is_followed_by_another(story: Story, moment: str) -> None:
    killed(story.client("a", failpoint=f"submitter.{moment}:2=kill"))
    assert set(ended(story.client("a")).values()) == {""}
    assert story.values() == {n: ("a", 2 * n) for n in range(TASKS)}
    assert story.runs() == {f"a {n}": 1 for n in range(TASKS)}


def test_a_starter_killed_while_it_claims_for_a_client_that_stands_still_is_followed_by_another(
    keys_town: tuple[Chaos, Connection], tmp_path: Path
) -> None:
    chaos, connection = keys_town
    chaos.restart("n1", RMGR_FAILPOINT="starter.claim_outputs=kill")
    story = Story(chaos.cluster, connection, tmp_path, PROGRAM, TASKS)
    client = story.client("a", failpoint=f"submitter.before_handed_claim:2=until:{tmp_path / 'never'}")
    eventually(lambda: chaos.cluster.process("n1").state == "dead", "the Starter claims, and dies")
    client.kill()
    client.communicate(timeout=60)
    chaos.add_node("n2")
    assert set(ended(story.client("a")).values()) == {""}
    assert story.values() == {n: ("a", 2 * n) for n in range(TASKS)}
    assert story.runs() == {f"a {n}": 1 for n in range(TASKS)}


def test_of_two_clients_that_want_the_same_keys_one_after_another_each_key_has_one(story: Story) -> None:
    clients = {who: story.client(who) for who in ("a", "b")}
    told = {who: ended(process) for who, process in clients.items()}
    values = story.values()
    assert sorted(values) == list(range(TASKS))
    for n, (who, value) in values.items():
        other = "b" if who == "a" else "a"
        assert (value, told[who][n]) == (2 * n, "")
        assert told[other][n] in ("OUTPUT_EXISTS", "AT_ONCE")
    assert story.runs() == {f"{who} {n}": 1 for n, (who, _) in values.items()}
