"""Large arguments, results and values of a user behind a gateway, with work run as its user: whole, signed, counted.

anna's program --(gateway)--> store  <-- Starter (root) --copy--> file of anna <-- worker of anna
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import cloudpickle
import pytest

import rmgr
from rmgr.adapters.host.accounts import Account
from rmgr.client.connection import Connection
from rmgr.config import load
from rmgr.dev.cluster import DevCluster
from rmgr.model.identity import Role
from rmgr.runner.host import home
from tests.harness.gateway_process import GatewayProcess
from tests.harness.local_accounts import LocalAccounts
from tests.harness.reachable import work_that_users_reach
from tests.harness.waiting import eventually
from tests.integration.commands import Lend, Shell

cloudpickle.register_pickle_by_value(sys.modules[__name__])

MIB = 2**20
#: Above what one value could have at first, and what a message between a Starter and its worker bears.
LARGE, MEDIUM = 300 * MIB, 70 * MIB
#: Daemons may grow by so much meanwhile, far less than what passes. Parts that a gateway has sent stay in the arenas of malloc,
#: 10 to 150 MiB by chance: giving them back would cost a third more of its processor.
ROOM_KIB = {"starter": 80 * 1024, "gateway": 200 * 1024}


@dataclass
class Place:
    """A cluster whose work runs as its users, and its gateway."""

    cluster: DevCluster
    gateway: GatewayProcess
    work: Path
    anna: Account

    def bundle(self, role: Role, name: str) -> str:
        assert self.cluster.security is not None
        return str(self.cluster.security.bundle(role, name))

    def most_kib(self) -> dict[str, int]:
        """The most memory that the Starter and the gateway have had."""
        pids = {"starter": next(item.pid for item in self.cluster.state.processes if item.role == "starter"), "gateway": self.gateway.pid}
        lines = {name: Path(f"/proc/{pid}/status").read_text().splitlines() for name, pid in pids.items()}
        return {name: next(int(line.split()[1]) for line in told if line.startswith("VmHWM:")) for name, told in lines.items()}

    def copies(self) -> list[Path]:
        """Files of users that stand on the node."""
        return [path for path in (self.work / "n1" / "n1" / "private").iterdir() if path.stat().st_size > MIB]


@pytest.fixture(scope="module")
def place(lend_secured: Lend, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    work = Path(tempfile.mkdtemp(prefix="rmgr-large-", dir="/var/tmp"))  # users get to it, as they do not to pytest's own
    work.chmod(0o755)
    directory = tmp_path_factory.mktemp("dev")
    try:
        with LocalAccounts() as accounts, work_that_users_reach(), lend_secured() as cluster:
            own = {"RMGR_SECURITY_RUN_AS": "user", "PYTHONPATH": str(home.ROOT)}
            cluster.start_starter("n1", options=["--work-dir", str(work / "n1")], environment=own)
            cluster.wait_healthy(nodes=1, leader=True, deadline_s=60)
            with GatewayProcess(cluster.daemon_environment("submitter", "g1"), directory) as gateway:
                yield Place(cluster, gateway, work, accounts.make("a"))
    finally:
        shutil.rmtree(work, ignore_errors=True)


@pytest.fixture
def anna(place: Place) -> Iterator[Connection]:
    """Her connection, which reaches the gateway and nothing else."""
    cluster = {"zk": "", "store": "", "gateway": place.gateway.endpoint}
    config = load({"cluster": cluster, "security": {"dir": place.bundle(Role.USER, place.anna.name)}})
    with rmgr.connect(config=config) as made:
        yield made


def weigh(value: bytes) -> tuple[int, str, int]:
    return len(value), hashlib.sha256(value).hexdigest(), os.getuid()


def both(value: bytes, other: bytes) -> bytes:
    return value[:1] * len(other) + other[:1]


@pytest.mark.parametrize("size", [MEDIUM, LARGE])
def test_arguments_of_a_user_pass_through_no_daemon(place: Place, anna: Connection, size: int) -> None:
    before = place.most_kib()
    large = b"x" * (size + 7)
    with rmgr.TaskQueue(weigh, connection=anna) as queue:
        assert queue.submit_call(large).result(60) == (len(large), hashlib.sha256(large).hexdigest(), place.anna.uid)
    for name, most in place.most_kib().items():
        assert most - before[name] < ROOM_KIB[name], (name, before[name], most)
    eventually(lambda: not place.copies(), "her copy is gone with its block", within_s=20.0)


def test_results_of_a_user_pass_through_no_daemon(place: Place, anna: Connection) -> None:
    before = place.most_kib()
    with rmgr.TaskQueue(both, connection=anna) as queue:
        few, many = b"a" * (5 * MIB), b"b" * LARGE
        assert queue.submit_call(few, many).result(120) == b"a" * LARGE + b"b"
    for name, most in place.most_kib().items():
        assert most - before[name] < ROOM_KIB[name], (name, before[name], most)


def test_arguments_of_several_calls_in_one_block(place: Place, anna: Connection) -> None:
    """Some large, some small: each gets its own."""
    sizes = [5 * MIB, 10, 6 * MIB, 0, 4 * MIB]
    with rmgr.TaskQueue(weigh, connection=anna) as queue:
        values = [bytes([97 + at]) * size for at, size in enumerate(sizes)]
        answers = [future.result(120) for future in [queue.submit_call(value) for value in values]]
    assert [answer[:2] for answer in answers] == [(len(value), hashlib.sha256(value).hexdigest()) for value in values]
    eventually(lambda: not place.copies(), "her copy is gone with its block", within_s=20.0)


def test_a_value_is_its_owners_and_counts_as_his(place: Place, anna: Connection, tmp_path: Path) -> None:
    store, large = anna.store, b"v" * LARGE
    store.put("large/v", large)
    assert store.get("large/v") == large
    with rmgr.TaskQueue(weigh, connection=anna) as queue:
        queue.submit(inputs=["large/v"], outputs=["large/size", "large/hash", "large/uid"], overwrite=True)
        queue.wait_all(timeout=120)
    assert store.get("large/size") == LARGE
    assert store.get("large/hash") == hashlib.sha256(large).hexdigest()
    through = {"RMGR_GATEWAY": place.gateway.endpoint, "RMGR_SECURITY_DIR": place.bundle(Role.USER, place.anna.name)}
    (counted,) = [one for one in Shell(tmp_path, through).ok("limits", "--json").json["limits"] if one["name"] == "store_bytes"]
    assert counted["used"] >= LARGE
