"""deploy/, docker-compose.yml and the distribution as they are written: what must stay in them for the daemons' sake.

No engine is needed; `tests/compose/run.sh` drives the real thing.
"""

from __future__ import annotations

import configparser
import dataclasses
import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import rmgr
from rmgr.cli.main import cli
from rmgr.config import MAX_NODES, SECTIONS, Config, ServerConfig, StarterConfig, check_file, dev_file, load, stopped_dev
from rmgr.daemons.gateway import main as submitter
from rmgr.daemons.leader import watchdog
from rmgr.daemons.server import main as server
from rmgr.daemons.starter import main as starter
from rmgr.daemons.starter.node import loop
from rmgr.errors import ConfigError
from rmgr.model.version import DISTRIBUTION
from tests.places import ROOT

yaml = pytest.importorskip("yaml", reason="PyYAML reads the compose file; pip install '.[test]'")

COMPOSE = ROOT / "docker-compose.yml"
DAEMONS = {"watchdog": 2, "starter": 3, "submitter": 1}
SERVERS = {"zookeeper1", "zookeeper2", "zookeeper3", "cassandra1"}
ONE_SHOTS = {"security-init", "zookeeper-init", "store-init"}


def services() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())["services"]
    return found


def test_the_cluster_has_the_parts_that_the_readme_names() -> None:
    assert set(services()) == DAEMONS.keys() | SERVERS | ONE_SHOTS
    assert {name: services()[name]["deploy"].get("replicas", 1) for name in DAEMONS} == DAEMONS
    official = {name: "zookeeper:3.9" if name.startswith("zoo") else "cassandra:5.0" for name in SERVERS}
    assert {name: services()[name]["image"] for name in SERVERS} == official


@pytest.mark.parametrize("name", sorted(services()))
def test_nobody_has_more_than_he_needs(name: str) -> None:
    service = services()[name]
    assert service["init"] is True
    assert service["cap_drop"] == ["ALL"]
    assert "cap_add" not in service
    assert "privileged" not in service
    assert "no-new-privileges:true" in service["security_opt"]
    assert service.get("read_only") is True or name == "cassandra1"
    assert service.get("user") in {"zookeeper", "cassandra"} or service["image"].startswith("${RMGR_IMAGE")
    assert service["image"] in {"zookeeper:3.9", "cassandra:5.0"} or service["pull_policy"] == "never"  # nobody else's image of our name
    assert not any("docker.sock" in volume for volume in service.get("volumes", []))


@pytest.mark.parametrize("name", sorted(services()))
def test_everybody_is_limited_restarted_and_watched(name: str) -> None:
    service = services()[name]
    assert set(service["deploy"]["resources"]["limits"]) >= {"memory", "pids"}
    assert service["logging"]["options"]["max-size"]
    if name in ONE_SHOTS:
        assert service["restart"].split(":")[0] in {"no", "on-failure"}
    else:
        assert service["restart"] == "unless-stopped"
        assert service["healthcheck"]["test"][0] == "CMD"


def test_the_servers_heaps_are_bounded_below_their_memory() -> None:
    assert "-Xmx256m" in services()["zookeeper1"]["environment"]["JVMFLAGS"]
    assert "512M" in services()["cassandra1"]["environment"]["MAX_HEAP_SIZE"]


def test_zookeeper_is_closed_before_anybody_comes_and_tells_strangers_nothing() -> None:
    started = services()["zookeeper-init"]
    assert f"-Xmx{started['environment']['RMGR_ZOOKEEPER_HEAP_MIB']}m" in services()["zookeeper1"]["environment"]["JVMFLAGS"]
    assert services()["store-init"]["depends_on"]["zookeeper-init"] == {"condition": "service_completed_successfully"}
    lines = (ROOT / "deploy" / "compose" / "zoo.cfg").read_text().splitlines()
    assert {"4lw.commands.whitelist=srvr", "enforceQuota=true", "admin.enableServer=false"} <= set(lines)
    for name in ("zookeeper1", "zookeeper2", "zookeeper3"):
        assert "chmod 0700 /data /datalog" in services()[name]["entrypoint"][2]


def test_a_cassandra_that_has_the_only_copy_acknowledges_what_is_on_disk() -> None:
    options = services()["cassandra1"]["environment"]["JVM_EXTRA_OPTS"].split()
    assert "-Dcassandra.config.allow_system_properties=true" in options  # else the others mean nothing
    assert "-Dcassandra.settings.commitlog_sync=batch" in options
    assert "-Dcassandra.settings.commitlog_disk_access_mode=auto" in options


def test_ports_are_published_on_loopback_only() -> None:
    published = [port for service in services().values() for port in service.get("ports", [])]
    assert published == ["127.0.0.1:${RMGR_GATEWAY_PORT-7071}:7071"]


def test_daemons_start_when_what_they_need_is_there() -> None:
    for name in DAEMONS:
        waits = {other: wait["condition"] for other, wait in services()[name]["depends_on"].items()}
        assert waits == dict.fromkeys(sorted(SERVERS), "service_healthy") | {"store-init": "service_completed_successfully"}


def test_everybody_is_given_his_own_credentials_alone() -> None:
    given = {
        name: {volume.split(":")[0] for volume in service.get("volumes", []) if volume.startswith("security-")}
        for name, service in services().items()
        if name != "security-init"
    }
    assert given["watchdog"] == {"security-watchdog"}
    assert given["starter"] == {"security-starter"}
    assert given["submitter"] == {"security-submitter", "security-user"}
    assert all("security-ca" not in volumes for volumes in given.values())
    writable = {
        name
        for name, service in services().items()
        for volume in service.get("volumes", [])
        if volume.startswith("security-") and not volume.endswith(":ro")
    }
    assert writable == {"security-init"}


def test_every_named_volume_is_declared_and_used() -> None:
    document = yaml.safe_load(COMPOSE.read_text())
    used = {v.split(":")[0] for s in services().values() for v in s.get("volumes", []) if not v.startswith((".", "/"))}
    assert used == set(document["volumes"])


def test_the_image_is_built_for_a_fixed_user_and_says_its_version() -> None:
    text = (ROOT / "deploy" / "Dockerfile").read_text()
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f"ARG VERSION={version}" in text
    assert re.search(r"^USER rmgr$", text, re.MULTILINE)
    assert "--uid 10001" in text
    assert "HEALTHCHECK" not in text.replace("Health checks", "")
    ignored = (ROOT / ".dockerignore").read_text().split()
    assert ignored[ignored.index("*") + 1] == "!pyproject.toml"


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
        ["systemd-analyze", "verify", "--man=no", f"./{name}.service"], cwd=units, capture_output=True, text=True, timeout=60, check=False
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
    needs_s = StarterConfig().stop_grace_s + loop.KILL_GRACE_S + loop.LAST_COMMITS_S + loop.CLOSE_S
    assert int(options("rmgr-starter")["Service"]["TimeoutStopSec"]) > needs_s
    assert int(options("rmgr-server")["Service"]["TimeoutStopSec"]) > ServerConfig().stop_grace_s + server.CLOSE_S
    assert int(options("rmgr-server")["Service"]["TimeoutStartSec"]) > server.LOOK_S


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


FILE = ROOT / "deploy" / "rmgr.toml"
_KEY = re.compile(r"^#([a-z_]+) = (.*)$")
DEFAULTS = Config()


def test_the_file_as_it_is_means_the_defaults() -> None:
    assert dataclasses.replace(check_file(FILE), source="") == DEFAULTS
    done = CliRunner().invoke(cli, ["config", "check", str(FILE)])
    assert (done.exit_code, done.output) == (0, f"{FILE}: configuration, nothing wrong\n")


def test_the_keys_in_it_switched_on_are_all_keys_with_their_defaults(tmp_path: Path) -> None:
    text = "\n".join(_KEY.sub(r"\1 = \2", line) for line in FILE.read_text().splitlines())
    switched_on = tmp_path / "config.toml"
    switched_on.write_text(text)
    found = {section: set(table) for section, table in tomllib.loads(text).items()}
    assert found == {section: {field.name for field in dataclasses.fields(kind)} for section, kind in SECTIONS.items()}
    assert dataclasses.replace(check_file(switched_on), source="") == DEFAULTS


@pytest.mark.parametrize("section", SECTIONS)
def test_every_key_is_explained_in_the_order_of_the_code(section: str) -> None:
    lines = FILE.read_text().splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(f"[{section}]"))
    end = next((number for number, line in enumerate(lines) if number > start and line.startswith("[")), len(lines))
    assert "#" in lines[start], "what the section is for"
    keys = []
    for number in range(start + 1, end):
        match = _KEY.match(lines[number])
        if match:
            keys.append(match[1])
            assert lines[number - 1].startswith("# "), f"{match[1]} is not explained"
    assert keys == [field.name for field in dataclasses.fields(SECTIONS[section])]


def test_a_running_dev_cluster_is_found_while_any_of_its_zookeepers_lives(tmp_path: Path) -> None:
    gone, alive, home = 2**22 + 1, os.getpid(), {"HOME": str(tmp_path)}
    (tmp_path / ".rmgr").mkdir()
    for dev, is_found in ((f"pids = [{gone}, {alive}]", True), (f"pids = [{gone}]", False), (f"pid = {alive}", True), ("pids = 3", False)):
        (tmp_path / ".rmgr" / "dev.toml").write_text(f'[dev]\n{dev}\n[cluster]\nzk = "h:1/x"\nstore = "sqlite:/s"\n')
        assert (load(env=home).cluster.zk == "h:1/x") is is_found, dev


def test_a_dev_cluster_whose_zookeeper_died_is_named(tmp_path: Path) -> None:
    env = {"HOME": str(tmp_path)}
    recorded = dev_file(env)
    recorded.parent.mkdir()
    recorded.write_text('[dev]\npids = [4194301]\ndirectory = "/somewhere/dev"\n\n[cluster]\nzk = "127.0.0.1:1/rmgr/dev"\n')
    assert stopped_dev(env) == "/somewhere/dev"
    recorded.write_text(recorded.read_text().replace("4194301", str(os.getpid())))
    assert stopped_dev(env) == ""
    recorded.unlink()
    assert stopped_dev(env) == ""


def test_how_often_servers_are_asked_is_bounded(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    for value, is_good in (("1", True), ('"1h"', True), ("0", False), ("0.9", False), ('"2h"', False), ("-5", False)):
        file.write_text(f"[submitter]\nrefresh_s = {value}\n")
        if is_good:
            check_file(file)
            continue
        with pytest.raises(ConfigError, match=r"refresh_s = .* is not valid") as refused:
            check_file(file)
        assert refused.value.message.startswith(f"{file}:2: "), refused.value.message
    with pytest.raises(ConfigError, match="servers are asked every 1 s to 1 h"):
        load(env={"RMGR_SUBMITTER_REFRESH": "0"})


def test_a_number_out_of_its_bounds_and_an_unknown_word_are_refused_where_they_stand(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    for section, line, told in (
        ("starter", "cores = -5", "0 to 99999"),
        ("starter", "call_cores = -1", "0 to 99999"),
        ("starter", "nodes = 0", f"1 to {MAX_NODES}"),
        ("starter", "line_port = 70000", "-1 to 65535"),
        ("starter", "speed = nan", "0 or more"),
        ("server", "slots = -1", "0 to 99999"),
        ("server", "speed = inf", "0 or more"),
        ("server", "per_user = 0", "1 to 99999"),
        ("starter", 'bind_cpus = "maybe"', "auto, yes, no"),
        ("starter", 'freezer = "v3"', "auto, v2, signals"),
        ("security", 'run_as = "root"', "auto, user, self"),
        ("log", 'level = "loud"', "debug, info, warning, error"),
        ("log", 'format = "xml"', "auto, json, pretty"),
    ):
        file.write_text(f"[{section}]\n{line}\n")
        with pytest.raises(ConfigError, match=told) as refused:
            check_file(file)
        assert refused.value.message.startswith(f"{file}:2: {line.partition(' ')[0]} = "), refused.value.message
    with pytest.raises(ConfigError, match="variable RMGR_STARTER_CORES: cores = '-5' is not valid: it is a number of 0 to 99999"):
        load(env={"RMGR_STARTER_CORES": "-5"})


@pytest.mark.parametrize(
    ("section", "line", "told"),
    [
        ("cluster", 'zk = "zk1:2181,zk2"', ""),
        ("cluster", 'zk = "[::1]:2181/rmgr/x"', ""),
        ("cluster", 'zk = "zk1:99999"', "'zk1:99999' is not HOST or HOST:PORT: ports are 1 to 65535"),
        ("cluster", 'zk = "zookeeper://zk1"', "'zookeeper:' is not HOST or HOST:PORT"),
        ("cluster", 'zk = "zk1/rmgr//x"', "'/rmgr//x' is not the path of a znode"),
        ("cluster", 'store = "mysql://me:geheim@db/x"', "is not the URL of a store"),
        ("cluster", 'store = "sqlite:"', "'sqlite:' is not the URL of a store"),
        ("cluster", 'gateway = "gw1:7071,gw2:7071"', ""),
        ("cluster", 'gateway = "gw1"', "'gw1' is not HOST:PORT"),
        ("cluster", 'gateway = "gw1:7071,gw2"', "'gw2' is not HOST:PORT"),
        ("cluster", 'gateway = "http://gw1:7071"', "'http://gw1:7071' is not HOST:PORT"),
        ("cluster", 'gateway = "gw1:0"', "ports are 1 to 65535"),
        ("starter", 'listen = "0.0.0.0:0"', ""),
        ("starter", 'listen = "somewhere"', "'somewhere' is not HOST:PORT"),
        ("starter", 'listen = ""', "'' is not HOST:PORT"),
        ("watchdog", 'listen = "256.0.0.1:7070"', "'256.0.0.1' is no address"),
        ("submitter", 'listen = "127.0.0.1:70000"', "ports are 0 to 65535"),
        ("submitter", 'listen = "[::g]:7071"', "is not HOST:PORT"),
        ("starter", 'advertise = "n1.example.org"', ""),
        ("starter", 'advertise = "n1:0"', "ports are 1 to 65535"),
        ("watchdog", 'advertise = "http://n1"', "is not HOST or HOST:PORT"),
        ("starter", 'metrics = "[::1]"', ""),
        ("starter", 'metrics = "anywhere"', "'anywhere' is no address"),
        ("server", 'metrics = "0.0.0.0:99999"', "ports are 0 to 65535"),
        ("server", 'dial = "gw1:7071,"', ""),
        ("server", 'dial = "gw1"', "'gw1' is not HOST:PORT"),
        ("security", 'work_gateway = "gw1"', "'gw1' is not HOST:PORT"),
        ("starter", 'node = "n/1"', "'n/1' cannot be the name of a node"),
        ("starter", 'partition = ".."', "'..' cannot be the name of a partition"),
        ("server", 'name = "a b"', "'a b' cannot be the name of a server"),
    ],
)
def test_a_place_that_is_none_is_refused_where_it_stands_with_what_to_write(tmp_path: Path, section: str, line: str, told: str) -> None:
    file = tmp_path / "config.toml"
    file.write_text(f"[{section}]\n{line}\n")
    if not told:
        check_file(file)
        return
    with pytest.raises(ConfigError) as refused:
        check_file(file)
    key, _, value = line.partition(" = ")
    shown = value.strip('"').replace("me:geheim@", "***@")
    assert refused.value.message.startswith(f"{file}:2: {key} = {shown!r} is not valid: "), refused.value.message
    assert told in refused.value.message
    assert refused.value.hint


def test_config_check_looks_at_the_whole_url_of_a_store(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    for url, told in (
        ("sqlite://host/file", "names no file"),
        ("cassandra://host/rmgr?colour=red", "has no option 'colour'"),
        ("cassandra://host:0/rmgr", "'0' is not a port"),
    ):
        file.write_text(f'[cluster]\nstore = "{url}"\n')
        refused = CliRunner().invoke(cli, ["config", "check", str(file)]).exception
        assert isinstance(refused, ConfigError), refused
        assert refused.message.startswith(f"{file}:2: store = {url!r} is not valid: "), refused.message
        assert told in refused.message
    file.write_text('[cluster]\nstore = "cassandra://host1,host2/rmgr?replication_factor=3"\n')
    assert CliRunner().invoke(cli, ["config", "check", str(file)]).exit_code == 0


_TEXTS = ("*.md", "*.py", "*.sh", "*.yml", "*.toml", "Dockerfile")
#: `pip install rmgr`, `pip install 'rmgr[mpi]'`, `pip install --upgrade rmgr`: what would fetch somebody else's package.
_FOREIGN = re.compile(r"""pip3? install(?: +--?[\w-]+)* +['"]?rmgr(?=[\s'"`\[=<>,.;)]|$)""", re.MULTILINE)


def test_what_would_fetch_another_package_is_found() -> None:
    for told in ("pip install rmgr", "pip install 'rmgr[mpi]'", 'pip install "rmgr[calls]" on', "`pip install --upgrade rmgr`"):
        assert _FOREIGN.search(told), told
    for told in ("pip install '.[mpi]'", "pip install 'rmgr-cluster[cassandra]'", "pip install .", "cd rmgr && pip install -e ."):
        assert not _FOREIGN.search(told), told


def test_nothing_tells_to_install_a_package_called_rmgr() -> None:
    places = [path for top in ("rmgr", "deploy", "tests", ".ci") for kind in _TEXTS for path in (ROOT / top).rglob(kind)]
    places += [path for kind in _TEXTS for path in ROOT.glob(kind)]
    found = [path for path in places if path.name != "test_deploy.py" and _FOREIGN.search(path.read_text("utf-8"))]
    assert [str(path.relative_to(ROOT)) for path in found] == []


def test_the_distribution_is_what_the_code_asks_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    assert project["project"]["name"] == DISTRIBUTION != "rmgr"
    assert project["tool"]["flit"]["module"]["name"] == "rmgr"
    assert list(project["project"]["scripts"]) == ["rmgr"]
    assert rmgr.__version__ == metadata.version(DISTRIBUTION) == project["project"]["version"]
