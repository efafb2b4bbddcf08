"""Clients die while they claim output keys, or compete for the same ones: each key has one value, of a committed attempt.

A ledger outside the cluster shows that no task of such a key has run twice.

on `keys_town`: 1 WatchDog, 1 Starter of 2 cores
"""

from __future__ import annotations

from pathlib import Path

import pytest
from breakable import Chaos
from keyed import Story, ended, killed

from rmgr import TaskQueue
from rmgr.client.connection import Connection
from rmgr.dev.cluster import DevCluster
from rmgr.errors import KeyExists

pytestmark = pytest.mark.chaos

TASKS = 30
PROGRAM = """
import json, sys
from rmgr import TaskQueue
from rmgr.errors import KeyExists, RmgrError
ledger, prefix, who, token, tasks, resubmit = sys.argv[1:7]
def work(value):
    import os
    with open(ledger, "a") as file:
        file.write(f"{who} {value}\\n")
    return [who, 2 * value]
queue = TaskQueue(work, token=token, resubmit=resubmit == "True")
print(queue.id, flush=True)
futures = {}
for n in range(queue.own(), int(tasks)):
    futures[n] = queue.submit([f"{prefix}/in/{n}"], [f"{prefix}/out/{n}"])
    if n % 10 == 9:
        try:
            queue.flush(60)
        except KeyExists:
            pass  # told again by the futures
queue.close()
try:
    queue.wait_all(timeout=60)
except RmgrError:
    pass
ended = {n: getattr(future.exception(60), "reason", "") for n, future in futures.items()}
print(json.dumps(ended), flush=True)
"""


@pytest.fixture
def town(keys_town: tuple[Chaos, Connection]) -> tuple[DevCluster, Connection]:
    return keys_town[0].cluster, keys_town[1]


@pytest.fixture
def story(town: tuple[DevCluster, Connection], tmp_path: Path) -> Story:
    return Story(*town, tmp_path, PROGRAM, TASKS)


@pytest.mark.parametrize("resubmit", [True, False])
@pytest.mark.parametrize("moment", ["before_enqueue:2", "after_enqueue:2"])
def test_a_client_killed_in_the_middle_of_its_claims_is_followed_by_another(story: Story, moment: str, resubmit: bool) -> None:
    killed(story.client("a", str(resubmit), failpoint=f"submitter.{moment}=kill"))
    assert set(ended(story.client("a", str(resubmit))).values()) == {""}
    assert story.values() == {n: ("a", 2 * n) for n in range(TASKS)}
    assert story.runs() == {f"a {n}": 1 for n in range(TASKS)}


@pytest.mark.parametrize("resubmit", [True, False])
def test_of_two_clients_that_want_the_same_keys_each_key_has_one(story: Story, resubmit: bool) -> None:
    clients = {who: story.client(who, str(resubmit)) for who in ("a", "b")}
    told = {who: ended(process) for who, process in clients.items()}
    values = story.values()
    assert sorted(values) == list(range(TASKS))
    for n, (who, value) in values.items():
        other = "b" if who == "a" else "a"
        assert (value, told[who][n], told[other][n]) == (2 * n, "", "OUTPUT_EXISTS")
    assert story.runs() == {f"{who} {n}": 1 for n, (who, _) in values.items()}


def test_keys_that_a_dead_client_claimed_and_never_submitted_are_free_when_its_queue_is_closed(
    story: Story, town: tuple[DevCluster, Connection]
) -> None:
    number = int(killed(story.client("dead", "True", failpoint="submitter.before_enqueue:2=kill")).splitlines()[0])
    queue = TaskQueue.attach(number, connection=town[1])
    queue.wait_all(timeout=60)
    first = len(queue)
    with pytest.raises(KeyExists, match=f"task {number}_{first} writes it"):
        story.store.check_free(f"{story.prefix}/out/{first}")
    queue.own(60)
    queue.close()
    assert ended(story.client("b", "True")) == {n: "OUTPUT_EXISTS" if n < first else "" for n in range(TASKS)}
    assert story.values() == {n: ("dead" if n < first else "b", 2 * n) for n in range(TASKS)}
    assert set(story.runs().values()) == {1}
