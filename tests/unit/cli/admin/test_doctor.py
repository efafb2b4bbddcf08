"""`rmgr doctor` judges the answers of ZooKeeper's servers about themselves."""

from __future__ import annotations

from importlib import metadata

import pytest

from rmgr.adapters.zookeeper import server as zk_server
from rmgr.cli import doctor
from rmgr.cli import doctor as checks_work

_SAID = {"conf": "clientPort=2181\nmaxClientCnxns=0\n"}


@pytest.mark.parametrize(("mismatches", "is_well"), [("", True), ("0", True), ("3", False)])
def test_a_server_whose_data_differ_from_the_leader_s_is_named_with_the_way_out(
    monkeypatch: pytest.MonkeyPatch, mismatches: str, is_well: bool
) -> None:
    mntr = "zk_version\t3.9.5\nzk_avg_fsynctime\t1.5\nzk_max_fsynctime\t9\n"
    mntr += f"zk_digest_mismatches_count\t{mismatches}\n" if mismatches else ""
    monkeypatch.setattr(zk_server, "four_letter", lambda _host, _port, word, **_options: {**_SAID, "mntr": mntr}[word])
    found = list(doctor.measured("zookeeper a:2181", "a:2181", None))
    assert all(check.ok for check in found) is is_well
    diverged = [check for check in found if check.name == "zookeeper a:2181 data"]
    assert len(diverged) == (0 if is_well else 1)
    for check in diverged:
        assert "3 digests" in check.detail
        for words in ("stop this server", "version-2", "keep myid", "fetches all from the leader", "majority"):
            assert words in check.fix


def test_a_server_of_a_secured_cluster_that_tells_strangers_much_gets_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    said = {"mntr": "zk_version\t3.9.5\n", "conf": "clientPort=2181\nmaxClientCnxns=0\n"}
    monkeypatch.setattr(zk_server, "four_letter", lambda _host, _port, word, **_options: said[word])
    [words] = [check for check in doctor.measured("zookeeper a:2181", "a:2181", None, is_secured=True) if check.name.endswith("words")]
    assert words.ok
    assert "conf, mntr" in words.detail
    assert "4lw.commands.whitelist=srvr" in words.fix
    said |= dict.fromkeys(said, "mntr is not executed because it is not in the whitelist.\n")
    assert list(doctor.measured("zookeeper a:2181", "a:2181", None, is_secured=True)) == []


def test_a_starter_that_cannot_hold_the_scores_of_work_is_told() -> None:
    assert not checks_work.judged("CapInh:\t0\nCapEff:\t000001ffffffffff\n", "0\n").fix
    lacking = checks_work.judged("CapEff:\t000001fffeffffff\n", "-200\n")
    assert lacking.ok
    assert "to -200" in lacking.fix
    assert "CAP_SYS_RESOURCE" in lacking.fix


def test_packages_are_held_to_what_the_installation_requires(monkeypatch: pytest.MonkeyPatch) -> None:
    required = ["kazoo>=2.11,<2.12", "rich>=13.7,<16", "structlog>=24.1", "numpy>=1.24 ; extra == 'examples'".replace("'", '"')]
    has = {"kazoo": "2.12.0", "rich": "13.6.2"}

    def version(package: str) -> str:
        if package not in has:
            raise metadata.PackageNotFoundError(package)
        return has[package]

    monkeypatch.setattr(metadata, "requires", lambda _package: required)
    monkeypatch.setattr(metadata, "version", version)
    _, packages = doctor.this_python(None)  # type: ignore[arg-type]
    assert not packages.ok
    assert packages.detail == (
        "kazoo 2.12.0 is too new, it must be before 2.12; rich 13.6.2 is too old, it must be 13.7 at least; structlog is missing"
    )
    has |= {"kazoo": "2.11.3", "rich": "15.9", "structlog": "26.1.0"}
    _, packages = doctor.this_python(None)  # type: ignore[arg-type]
    assert (packages.ok, packages.detail) == (True, "3 packages are as required")
