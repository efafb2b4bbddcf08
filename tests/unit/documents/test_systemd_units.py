"""deploy/systemd: what systemd itself says of the units, and what must stay in them for the daemons' sake."""

from __future__ import annotations

import configparser
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rmgr.config import ServerConfig, StarterConfig
from rmgr.daemons.gateway import main as submitter
from rmgr.daemons.leader import watchdog
from rmgr.daemons.server import main as server
from rmgr.daemons.starter import main as starter
from rmgr.daemons.starter.node import loop
from tests.places import ROOT

UNITS = ROOT / "deploy" / "systemd"
#: `systemd-analyze security`: 0 = locked up, 10 = open. The Starter runs users' work, from which little can be taken.
MOST_EXPOSED = {"rmgr-watchdog": 1.5, "rmgr-submitter": 1.5, "rmgr-server": 2.0, "rmgr-starter": 6.5}
EXECUTABLE = "/opt/rmgr/bin/rmgr"


@pytest.fixture(scope="module")
def units(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The units, starting a program that exists here; skipped where systemd-analyze is not installed."""
    if shutil.which("systemd-analyze") is None:
        told = "systemd-analyze is not installed (Debian: apt-get install systemd)"
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(told)
    directory = tmp_path_factory.mktemp("units")
    for unit in UNITS.glob("*.service"):
        (directory / unit.name).write_text(unit.read_text().replace(EXECUTABLE, sys.executable))
    return directory


def options(name: str) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(strict=False, interpolation=None, delimiters=("=",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(UNITS / f"{name}.service")
    return parser


@pytest.mark.parametrize("name", MOST_EXPOSED)
def test_systemd_finds_nothing_wrong_in_a_unit(units: Path, name: str) -> None:
    done = subprocess.run(
        ["systemd-analyze", "verify", f"./{name}.service"], cwd=units, capture_output=True, text=True, timeout=60, check=False
    )
    mine = [line for line in done.stderr.splitlines() if name in line]
    assert (done.returncode, mine) == (0, []), done.stderr


@pytest.mark.parametrize(("name", "most"), MOST_EXPOSED.items())
def test_a_unit_exposes_no_more_than_it_must(units: Path, name: str, most: float) -> None:
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=yes", "--no-pager", f"./{name}.service"],
        cwd=units, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    found = re.search(r"exposure level for \S+: ([\d.]+)", done.stdout)
    assert found, done.stdout + done.stderr
    assert float(found[1]) <= most, done.stdout


@pytest.mark.parametrize("name", MOST_EXPOSED)
def test_a_unit_is_notified_watched_and_started_again(name: str) -> None:
    service, unit = options(name)["Service"], options(name)["Unit"]
    assert (service["Type"], service["KillMode"], service["Restart"]) == ("notify", "mixed", "always")
    assert service["ExecStart"] == f"{EXECUTABLE} {name.removeprefix('rmgr-')}"
    # Restarted for ever while ZooKeeper is away (10 s to find out, then RestartSec), not when it ends at once.
    starts = int(unit["StartLimitIntervalSec"]) / int(service["RestartSec"])
    assert starts > int(unit["StartLimitBurst"]) > int(unit["StartLimitIntervalSec"]) / (int(service["RestartSec"]) + 10)
    assert service["NoNewPrivileges"] == "yes"


def test_times_of_the_units_fit_those_of_the_daemons() -> None:
    stall = {"rmgr-watchdog": watchdog.STALL_S, "rmgr-starter": starter.STALL_S, "rmgr-submitter": submitter.STALL_S}
    stall["rmgr-server"] = server.STALL_S
    for name, limit_s in stall.items():
        assert int(options(name)["Service"]["WatchdogSec"]) >= 1.5 * limit_s, "the guard inside, which shows the stacks, comes first"
    needs_s = StarterConfig().stop_grace_s + loop._KILL_GRACE_S + loop._LAST_COMMITS_S + loop._CLOSE_S
    assert int(options("rmgr-starter")["Service"]["TimeoutStopSec"]) > needs_s
    assert int(options("rmgr-server")["Service"]["TimeoutStopSec"]) > ServerConfig().stop_grace_s + server._CLOSE_S
    assert int(options("rmgr-server")["Service"]["TimeoutStartSec"]) > server._LOOK_S


def test_every_unit_is_looked_at_and_installed() -> None:
    assert {unit.stem for unit in UNITS.glob("*.service")} == set(MOST_EXPOSED)
    told = (ROOT / "deploy" / "README.md").read_text()
    assert [name for name in MOST_EXPOSED if f"systemctl enable --now {name}" not in told] == []


def test_the_starter_keeps_what_work_needs() -> None:
    service = options("rmgr-starter")["Service"]
    assert service["Delegate"] == "yes"
    forbidden = {
        "PrivateTmp", "PrivateDevices", "ProtectHome", "ProtectControlGroups", "RestrictNamespaces", "MemoryDenyWriteExecute",
        "RestrictSUIDSGID", "ProtectClock", "PrivateUsers", "RestrictAddressFamilies",
    }  # fmt: skip
    assert not forbidden & set(service)
    assert {"CAP_SETUID", "CAP_SETGID", "CAP_KILL", "CAP_CHOWN"} <= set(service["CapabilityBoundingSet"].split())
