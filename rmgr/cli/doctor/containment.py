"""Checks for `rmgr doctor` what holds work in its bounds on this machine, and from what nothing keeps it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from rmgr.cli.doctor.check_result import CheckResult

if TYPE_CHECKING:
    from collections.abc import Iterator

_SYS_RESOURCE = 24  #: number of the capability


def containment() -> Iterator[CheckResult]:
    """Linux only."""
    yield _cgroups()
    if os.geteuid() == 0:
        yield _scores()


def _cgroups() -> CheckResult:
    """Whether tasks started here can be put into cgroups of their own (memory limits, whole kills, counted processes)."""
    root = Path("/sys/fs/cgroup")
    try:
        own = Path("/proc/self/cgroup").read_text()
    except OSError as error:
        return CheckResult(
            name="cgroups", ok=True, detail=f"cannot be read: {error.strerror}", fix="tasks are killed by session and process tree instead"
        )
    if (root / "cgroup.controllers").exists():
        line = next((line for line in own.splitlines() if line.startswith("0::")), "0::/")
        mine = root / line[3:].strip().lstrip("/")
        writable = os.access(mine, os.W_OK)
        detail = f"v2, {mine}" + ("" if writable else " (not writable)")
    else:
        mine = root / "memory"
        writable = mine.is_dir() and os.access(mine, os.W_OK)
        detail = "v1, memory controller " + ("writable" if writable else "not writable")
    fix = (
        "memory limits are watched instead of enforced by the kernel, processes are limited for each user and not for each slot, and work "
        "that kills its spawner can outlive its task; run Starters as a service with Delegate=yes"
    )
    fix = "" if writable else fix
    return CheckResult(name="cgroups", ok=True, detail=detail, fix=fix)


def _scores() -> CheckResult:
    try:
        return judged(Path("/proc/self/status").read_text(), Path("/proc/self/oom_score_adj").read_text())
    except OSError as error:
        return CheckResult(name="oom scores", ok=True, detail=f"cannot be read: {error.strerror}")


def judged(status: str, score: str) -> CheckResult:
    """Whether a Starter that is root keeps work among the OOM killer's first choices. status, score: as /proc has them for this process."""
    held = next((int(line.split()[1], 16) for line in status.splitlines() if line.startswith("CapEff:")), 0)
    if held >> _SYS_RESOURCE & 1:
        return CheckResult(name="oom scores", ok=True, detail="work goes before daemons when memory runs out")
    fix = f"a task can lower its score to {score.strip()}, that of its Starter; give Starters CAP_SYS_RESOURCE (deploy/systemd has it)"
    return CheckResult(name="oom scores", ok=True, detail="without CAP_SYS_RESOURCE work begins with 500 and is not held there", fix=fix)
