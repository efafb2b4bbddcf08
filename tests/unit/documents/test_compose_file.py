"""docker-compose.yml as it is written: what every service of the cluster must say about health, rights, limits and ports.

No engine is needed; `tests/compose/run.sh` drives the real thing.
"""

from __future__ import annotations

import re
import tomllib
from typing import Any

import pytest

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
