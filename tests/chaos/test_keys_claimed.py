"""Clients die while they claim output keys, or compete for the same ones: each key has one value, of a committed attempt.

A ledger outside the cluster shows that no task of such a key has run twice.

on `keys_town`: 1 WatchDog, 1 Starter of 2 cores
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import uuid
from collections import Counter
from pathlib import Path

import pytest
from breakable import Chaos

from rmgr import TaskQueue
from rmgr.client.connection import Connection
from rmgr.dev.cluster import DevCluster
from rmgr.errors import KeyExists
from tests.harness import forked

pytestmark = pytest.mark.chaos

TASKS = 30
PROGRAM = """
import json, sys
from rmgr import TaskQueue
from rmgr.errors import KeyExists, RmgrError
ledger, prefix, who, token, resubmit, tasks = sys.argv[1:7]
def work(value):
    import os
    with open(ledger, "a") as file:
        file.write(f"{who} {value}\\n")
    return [who, 2 * value]
queue = TaskQueue(work, token=token, resubmit=resubmit == "resubmit")
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


class Story:
    """Some inputs, the keys that clients want, and what their tasks did."""

    def __init__(self, cluster: DevCluster, connection: Connection, directory: Path) -> None:
        self._cluster = cluster
        self.store = connection.store
        self.prefix = uuid.uuid4().hex[:8]
        self._ledger = directory / "ledger"
        self._ledger.touch()
        self.store.put_many({f"{self.prefix}/in/{n}": n for n in range(TASKS)})

    def client(self, who: str, *, failpoint: str = "", token: str = "", resubmit: bool = True) -> subprocess.Popen[str]:
        environment = {key: value for key, value in os.environ.items() if not key.startswith("RMGR_") or key == "RMGR_ZOOKEEPER_LIB"}
        environment |= self._cluster.environment()
        if failpoint:
            environment["RMGR_FAILPOINT"] = failpoint
        words = [str(self._ledger), self.prefix, who, token or f"{self.prefix}-{who}", "resubmit" if resubmit else "once", str(TASKS)]
        return forked.application(PROGRAM, *words, env=environment)

    def values(self) -> dict[int, tuple[str, int]]:
        """(who wrote it, what) under each output key."""
        names = {f"{self.prefix}/out/{n}": n for n in range(TASKS)}
        return {names[key]: (value[0], value[1]) for key, value in self.store.get_many(names).items()}

    def runs(self) -> Counter[str]:
        """How often each client's task of each number has run."""
        return Counter(self._ledger.read_text().splitlines())


@pytest.fixture
def story(town: tuple[DevCluster, Connection], tmp_path: Path) -> Story:
    return Story(*town, tmp_path)


def ended(process: subprocess.Popen[str]) -> tuple[int, dict[int, str]]:
    """(its submission, how each of its tasks ended: "" or why not)."""
    try:
        out, err = process.communicate(timeout=90)
    finally:
        process.kill()
    assert process.returncode == 0, err
    number, told = out.splitlines()
    return int(number), {int(n): reason for n, reason in json.loads(told).items()}


def killed(process: subprocess.Popen[str]) -> int:
    """The submission of a client whose failpoint has killed it."""
    out, err = process.communicate(timeout=90)
    assert process.returncode == -signal.SIGKILL, err
    return int(out.splitlines()[0])


@pytest.mark.parametrize("resubmit", [True, False])
@pytest.mark.parametrize("moment", ["before_enqueue:2", "after_enqueue:2"])
def test_a_client_killed_in_the_middle_of_its_claims_is_followed_by_another(story: Story, moment: str, resubmit: bool) -> None:
    killed(story.client("a", failpoint=f"submitter.{moment}=kill", resubmit=resubmit))
    _, told = ended(story.client("a", resubmit=resubmit))
    assert set(told.values()) == {""}
    assert story.values() == {n: ("a", 2 * n) for n in range(TASKS)}
    assert story.runs() == {f"a {n}": 1 for n in range(TASKS)}


@pytest.mark.parametrize("resubmit", [True, False])
def test_of_two_clients_that_want_the_same_keys_each_key_has_one(story: Story, resubmit: bool) -> None:
    clients = {who: story.client(who, resubmit=resubmit) for who in ("a", "b")}
    told = {who: ended(process)[1] for who, process in clients.items()}
    values = story.values()
    assert sorted(values) == list(range(TASKS))
    for n, (who, value) in values.items():
        other = "b" if who == "a" else "a"
        assert (value, told[who][n], told[other][n]) == (2 * n, "", "OUTPUT_EXISTS")
    assert story.runs() == {f"{who} {n}": 1 for n, (who, _) in values.items()}


def test_keys_that_a_dead_client_claimed_and_never_submitted_are_free_when_its_queue_is_closed(
    story: Story, town: tuple[DevCluster, Connection]
) -> None:
    number = killed(story.client("dead", failpoint="submitter.before_enqueue:2=kill"))
    queue = TaskQueue.attach(number, connection=town[1])
    queue.wait_all(timeout=60)
    first = len(queue)
    with pytest.raises(KeyExists, match=f"task {number}_{first} writes it"):
        story.store.check_free(f"{story.prefix}/out/{first}")
    queue.own(60)
    queue.close()
    _, told = ended(story.client("b"))
    assert told == {n: "OUTPUT_EXISTS" if n < first else "" for n in range(TASKS)}
    assert story.values() == {n: ("dead" if n < first else "b", 2 * n) for n in range(TASKS)}
    assert set(story.runs().values()) == {1}
