"""Arguments, results and values above 256 MiB pass a whole cluster unharmed, with little memory of its daemons."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

import rmgr

if TYPE_CHECKING:
    from rmgr.client.connection import Connection
    from rmgr.dev.cluster import DevCluster

#: A little more than what one value could have at first.
SIZE = 256 * 2**20 + 7
#: A daemon may grow by so much meanwhile (KiB): a fifth of what passes.
ROOM_KIB = 50 * 1024


def most_kib(pid: int) -> int:
    """The most memory that a process has had."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


def daemons(cluster: DevCluster) -> dict[str, int]:
    return {item.id: most_kib(item.pid) for item in cluster.state.processes if item.role in {"starter", "watchdog"}}


def weigh(value: bytes) -> tuple[int, str]:
    return len(value), hashlib.sha256(value).hexdigest()


def grow(size: int) -> bytes:
    return b"x" * size


def test_arguments_and_results_above_256_mib_pass_through_no_daemon(live: DevCluster, connection: Connection) -> None:
    before = daemons(live)
    assert before, "the test looks at no daemon"
    large = b"x" * SIZE
    with rmgr.TaskQueue(weigh, connection=connection) as queue:
        assert queue.submit_call(large).result(120) == weigh(large)
    with rmgr.TaskQueue(grow, connection=connection) as queue:
        assert queue.submit_call(SIZE).result(120) == large
    for name, most in daemons(live).items():
        assert most - before.get(name, most) < ROOM_KIB, name


def test_values_above_256_mib_are_inputs_and_outputs(live: DevCluster, connection: Connection) -> None:
    store, before = connection.store, daemons(live)
    large = b"y" * SIZE
    store.put("large/in", large)
    try:
        with rmgr.TaskQueue(lambda value: value, connection=connection) as queue:
            queue.submit(inputs=["large/in"], outputs=["large/out"], overwrite=True)
            queue.wait_all(timeout=120)
        assert store.get("large/out") == large
        for name, most in daemons(live).items():
            assert most - before.get(name, most) < ROOM_KIB, name
    finally:
        store.delete("large/in")
        store.delete("large/out")
