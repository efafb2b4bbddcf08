"""deploy/rmgr.toml: every key of rmgr/config.py, with its true default, explained."""

from __future__ import annotations

import dataclasses
import os
import re
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from rmgr.cli.main import cli
from rmgr.config import _SECTIONS, Config, check_file, dev_file, load, stopped_dev
from rmgr.errors import ConfigError
from tests.places import ROOT

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
    assert found == {section: {field.name for field in dataclasses.fields(kind)} for section, kind in _SECTIONS.items()}
    assert dataclasses.replace(check_file(switched_on), source="") == DEFAULTS


@pytest.mark.parametrize("section", _SECTIONS)
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
    assert keys == [field.name for field in dataclasses.fields(_SECTIONS[section])]


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
