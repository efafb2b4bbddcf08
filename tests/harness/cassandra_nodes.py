"""One real Cassandra node for a whole test run, shared by all its processes and ended after the last of them.

A keeper process owns the node. Each user holds a shared lock on the file `users`, which the kernel drops with the process,
however that ends. When no user is left, the keeper gets the exclusive lock, kills the node and ends. The node dies with its
keeper (PR_SET_PDEATHSIG). The next run finds and kills a node that survives all the same, by its pid and start time.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from rmgr.dev.cassandra import CassandraNode
from tests.places import ROOT

START_S = 90.0
_POLL_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedNode:
    """Address of the shared node, and pid and start time of its process."""

    host: str
    port: int
    pid: int
    started: float

    @property
    def contact(self) -> str:
        return f"{self.host}:{self.port}"

    def is_alive(self) -> bool:
        return _lives(self.pid, self.started)


@contextlib.contextmanager
def shared_node(directory: Path) -> Iterator[SharedNode]:
    """Yields the node of this run, which the first caller starts. directory: common to all processes of the run.

    Raises: RuntimeError with the end of the log if the node does not come up.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "users").open("a") as users:
        with (directory / "starting").open("a") as starting:
            fcntl.flock(starting, fcntl.LOCK_EX)
            fcntl.flock(users, fcntl.LOCK_SH)
            node = _read(directory)
            if node is None or not node.is_alive():
                node = _start_keeper(directory)
        yield node


def _start_keeper(directory: Path) -> SharedNode:
    """Starts the keeper as a separate process, so that the node belongs to no single worker of pytest-xdist."""
    (directory / "node.json").unlink(missing_ok=True)
    with (directory / "keeper.log").open("wb") as log:
        keeper = subprocess.Popen(
            [sys.executable, "-m", "tests.harness.cassandra_nodes", str(directory)], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            cwd=ROOT, start_new_session=True,
        )
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        if (node := _read(directory)) is not None:
            return node
        if keeper.poll() is not None:
            raise RuntimeError((directory / "keeper.log").read_text().strip()[-3000:])
        time.sleep(_POLL_S)
    keeper.terminate()
    raise RuntimeError(f"no Cassandra after {START_S:g} s; see {directory}")


def keep(directory: Path) -> None:
    """Runs the keeper: starts the node, waits until no user is left, kills the node and removes its data."""
    end_leftovers()
    where = directory / "cassandra"
    node = CassandraNode(where, die_with_parent=True).start(wait_s=START_S - 10)
    assert node.pid is not None
    shared = SharedNode(host=node.address, port=node.port, pid=node.pid, started=psutil.Process(node.pid).create_time())
    record = _records() / f"{node.pid}.json"
    record.write_text(json.dumps(asdict(shared)))
    try:
        _write(directory, shared)
        with (directory / "users").open("a") as users:
            fcntl.flock(users, fcntl.LOCK_EX)  # granted when no user is left
            (directory / "node.json").unlink(missing_ok=True)
    finally:
        node.kill()
        record.unlink(missing_ok=True)
        shutil.rmtree(where / "data", ignore_errors=True)
        shutil.rmtree(where / "commitlog", ignore_errors=True)


def end_leftovers() -> None:
    """Kills nodes of earlier runs that outlived their killed keeper, on systems where a node cannot be made to die with it."""
    for record in _records().glob("*.json"):
        with contextlib.suppress(OSError, ValueError, TypeError, psutil.Error):
            node = SharedNode(**json.loads(record.read_text()))
            if node.is_alive():
                process = psutil.Process(node.pid)
                parent = process.parent()
                if parent is not None and any("tests.harness.cassandra_nodes" in word for word in parent.cmdline()):
                    continue  # belongs to another run that is still going on
                process.kill()
            record.unlink(missing_ok=True)


def _records() -> Path:
    path = Path(tempfile.gettempdir()) / f"rmgr-test-cassandra-{os.getuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    return path


def _lives(pid: int, started: float) -> bool:
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        return abs(process.create_time() - started) < 1.0 and process.status() != psutil.STATUS_ZOMBIE
    return False


def _write(directory: Path, node: SharedNode) -> None:
    draft = directory / "node.json.new"
    draft.write_text(json.dumps(asdict(node)))
    draft.replace(directory / "node.json")


def _read(directory: Path) -> SharedNode | None:
    with contextlib.suppress(OSError, ValueError, TypeError):
        return SharedNode(**json.loads((directory / "node.json").read_text()))
    return None


if __name__ == "__main__":
    keep(Path(sys.argv[1]))
