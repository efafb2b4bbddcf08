"""Tests that compare times pass on a machine that has just booted and on one with a long uptime.

`time.monotonic()` is the time since boot, so whatever stands for "never" or "long ago" is tried where the clock is near 0
and where it is far from it. Each machine is a time namespace, in which pytest runs a choice of the other tests.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.places import ROOT

YOUNG_S, OLDER_BY_S = 5, 100_000
DEADLINE_S = 500.0
#: What counts from moments: trust, revocation, leases, liveness, due times, back-off, caches with an age. The first 30 s of a
#: young machine matter most, so these come first and the whole takes less than that.
FILES = (
    "integration/security/test_rpc_auth.py",
    "unit/client/test_authentic.py",
    "unit/submitter/test_handing.py",
    "unit/daemons/leader/test_leader_tree.py",
    "unit/coord/test_keeping.py",
    "unit/coord/test_liveness.py",
    "unit/daemons/leader/test_leader_nodes.py",
    "unit/runtime/test_mailbox.py",
    "unit/daemons/leader/placement/test_turn.py",
    "unit/runner/test_runner_parts.py",
    "unit/runtime/test_runtime.py",
    "unit/daemons/starter/core/test_blocks.py",
    "unit/daemons/starter/pull/test_board.py",
    "unit/daemons/starter/execution/test_dispatch.py",
    "unit/daemons/starter/node/test_read_again.py",
    "unit/daemons/starter/execution/test_lanes.py",
    "unit/daemons/starter/test_starter_parts.py",
    "unit/daemons/starter/checkpoint/test_checkpoint_files.py",
    "unit/runtime/test_store_watch.py",
    "unit/adapters/zookeeper/test_session.py",
    "integration/zookeeper/test_zk_faults.py::test_the_lease_stands_still_when_answers_do_not_come",
    "integration/zookeeper/test_zk_faults.py::test_a_server_that_falls_silent_is_noticed_within_half_a_session",
    "integration/starter/test_hands.py",
    "integration/starter/test_starter_orders.py::test_a_node_is_never_over_committed",
    "integration/starter/test_starter_orders.py::test_work_that_outlives_the_grace_is_failed_as_a_loss",
    "integration/runner/test_commands.py::test_a_suspended_command_stands_still_and_its_limit_too",
)


def since_boot_s() -> int:
    return int(time.clock_gettime(time.CLOCK_BOOTTIME))


def inside(offset_s: int, *words: str) -> list[str]:
    """The command that runs `words` with both clocks since boot moved by `offset_s`."""
    return ["unshare", "--time", "--fork", "--kill-child", f"--monotonic={offset_s}", f"--boottime={offset_s}", *words]


def missing() -> str:
    """Why there can be no time namespaces here, "" when there can."""
    if not Path("/proc/self/ns/time").exists():
        return "this kernel has no time namespaces (Linux 5.6 and later have)"
    if os.geteuid() != 0:
        return "time namespaces need root"
    if shutil.which("unshare") is None:
        return "time namespaces need unshare (Debian: util-linux)"
    tried = subprocess.run(inside(1, "true"), capture_output=True, text=True, timeout=60, check=False)
    return f"time namespaces cannot be made here: {tried.stderr.strip()}" if tried.returncode else ""


@pytest.fixture(scope="module", autouse=True)
def time_namespaces() -> None:
    why = missing()
    if why and os.environ.get("CI") != "true":
        pytest.skip(why)
    assert not why, why


@pytest.mark.parametrize("uptime", ["young", "old"])
def test_what_counts_from_moments_works_at_every_uptime(uptime: str) -> None:
    offset_s = YOUNG_S - since_boot_s() if uptime == "young" else OLDER_BY_S
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "COV"))}
    workers = "2" if uptime == "young" else "0"  # who is not young has time, and one ZooKeeper is cheaper than two
    options = ["-q", "-n", workers, "--no-header", "--dist", "loadfile", "-p", "no:cacheprovider", "-o", "addopts=", "--maxfail", "3"]
    words = [sys.executable, "-m", "pytest", *options, *(f"tests/{name}" for name in FILES)]
    ran = subprocess.run(inside(offset_s, *words), cwd=ROOT, env=environ, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert ran.returncode == 0, f"at an uptime of {since_boot_s() + offset_s} s:\n{ran.stdout[-8000:]}{ran.stderr[-2000:]}"
    assert " passed" in ran.stdout
