"""A root Starter whose interpreter, package or directory a user cannot reach refuses the user's work and names the remedy."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmgr.adapters.host.accounts import Account, obstacle
from rmgr.dev.cluster import DevCluster
from rmgr.model.identity import Role
from rmgr.runner.host import home
from tests.harness.local_accounts import LocalAccounts
from tests.harness.reachable import open_place
from tests.harness.waiting import eventually
from tests.integration.commands import Shell
from tests.places import ROOT

_LIMIT_S = 120


@pytest.fixture
def place() -> Iterator[Path]:
    """For each test its own."""
    with open_place() as directory:
        yield directory


# -- what is in the way --------------------------------------------------------------------------------------------------------


def test_the_directory_in_the_way_is_named_with_the_command_that_opens_it(place: Path, anna: Account, group: str) -> None:
    module = place / "outer" / "inner" / "module.py"
    module.parent.mkdir(parents=True)
    module.touch(0o644)
    outer, link = module.parents[1], place / "link"
    link.symlink_to(module)
    for path in (module, link):
        assert obstacle(anna, modules=[path], programs=[path], directories=[module.parent]) == ""
        outer.chmod(0o700)
        closed = f"{outer} is closed to that account, and {path} is below it: chmod o+x {outer}"
        assert obstacle(anna, programs=[path]) == closed
        assert obstacle(anna, modules=[path]) == closed
        outer.chmod(0o711)
        assert obstacle(anna, modules=[path]) == ""
    outer.chmod(0o700)
    assert obstacle(anna, directories=[outer]) == f"{outer} is closed to that account: chmod o+x {outer}"
    shutil.chown(outer, group=group)
    assert obstacle(anna, directories=[outer]).endswith(f"chmod g+x {outer}")
    outer.chmod(0o710)  # his group may
    assert obstacle(anna, modules=[module]) == ""
    module.parent.chmod(0o711)
    assert obstacle(anna, modules=[module]).endswith(f"chmod -R o+rX {module.parent}"), "Python imports nothing from there"
    assert obstacle(anna, programs=[module]) == ""
    module.parent.chmod(0o755)
    module.chmod(0o600)
    assert obstacle(anna, modules=[module]).endswith(f"chmod -R o+rX {module}")
    assert "No such file" in obstacle(anna, programs=[module.with_name("gone")])


# -- the whole of it -----------------------------------------------------------------------------------------------------------


def test_work_that_its_user_cannot_reach_waits_and_everybody_says_what_to_type(
    secured: DevCluster, tmp_path: Path, place: Path, anna: Account
) -> None:
    closed = place / "closed"
    shutil.copytree(home.ROOT / "rmgr", closed / "rmgr", ignore=shutil.ignore_patterns("__pycache__"))
    closed.chmod(0o700)
    command = f"chmod o+x {closed}"
    assert secured.security is not None

    def start(node: str, root: Path) -> None:
        environment = {"RMGR_SECURITY_RUN_AS": "user", "PYTHONPATH": str(root)}
        secured.start_starter(node, options=["--cores", "1", "--work-dir", str(place / node)], environment=environment)

    start("n1", closed)
    secured.wait_healthy(nodes=1, leader=True, deadline_s=60)
    shells = [
        Shell(tmp_path / name, secured.environment() | {"RMGR_SECURITY_DIR": str(secured.security.bundle(role, name))})
        for name, role in ((anna.name, Role.USER), ("root", Role.OPERATOR))
    ]
    user, operator = shells
    pulled = user.submit("--", "id", "-un")
    placed = user.submit("-q", "batch", "--", "id", "-un")
    for number in (pulled, placed):
        eventually(
            lambda number=number: command in user("explain", number).out, f"explain {number} names the command", within_s=_LIMIT_S
        )
        told = user("explain", number).out
        assert f"node n1: {closed} is closed" in told, told
    for words in ("doctor", "status"):
        eventually(lambda words=words: ((told := operator(words)).code, command in told.out) == (1, True), f"{words} says so")
    nodes = operator.ok("nodes", "--json", "n1").json["nodes"]
    assert [(node["state"], command in node["reason"]) for node in nodes] == [("up", True)]
    assert "spawner" not in secured.log_file("n1").read_text(), "no slot was opened for it"
    assert secured.log_file("n1").read_text().count('"user_refused"') == 1

    start("n2", home.ROOT)  # another node can: nobody has to wait for the first
    assert user.ok("wait", pulled, placed).code == 0
    assert [user.ok("logs", number).out for number in (pulled, placed)] == [f"{anna.name}\n"] * 2
    assert {node for number in (pulled, placed) for node in user.ok("show", number, "--json").json["nodes"]} == {"n2"}

    operator.ok("drain", "n2")
    waits = user.submit("--", "id", "-un")
    eventually(lambda: command in user("explain", waits).out, "explain names the command again", within_s=_LIMIT_S)
    subprocess.run(command, shell=True, check=True)
    assert user("wait", waits).code == 0, "it is looked at again every few seconds"
    assert user.ok("logs", waits).out == f"{anna.name}\n"
    eventually(lambda: command not in operator("doctor").out, "doctor is content", within_s=_LIMIT_S)
    assert secured.log_file("n1").read_text().count('"user_refused"') == 1
    assert user.ok("submit", "--wait", "-q", "batch", "--", "hostname").code == 0

    # Closed while his slot is open: it is seen when the next one does not come up.
    script = f'[ "$RMGR_ATTEMPT" -gt 1 ] || {{ until [ -e {place}/closed-now ]; do sleep 0.05; done; kill -9 $PPID; }}; id -un'
    broken = user.submit("--", "sh", "-c", script)
    eventually(lambda: "RUNNING" in user("tasks", broken).out, "it runs", within_s=_LIMIT_S)
    (place / "n1").chmod(0o700)
    (place / "closed-now").touch()
    command = f"chmod o+x {place / 'n1'}"
    eventually(lambda: command in user("explain", broken).out, "explain names the command once more", within_s=_LIMIT_S)
    assert [node["state"] for node in operator.ok("nodes", "--json", "n1").json["nodes"]] == ["up"]
    subprocess.run(command, shell=True, check=True)
    assert user("wait", broken).code == 0


def test_an_interpreter_that_its_user_cannot_reach_fails_the_work_with_that_reason(
    secured: DevCluster, tmp_path: Path, place: Path, anna: Account
) -> None:
    (place / "env").mkdir(mode=0o700)
    python = place / "env" / "python"
    python.symlink_to(sys.executable)
    assert secured.security is not None
    environment = {"RMGR_SECURITY_RUN_AS": "user", "PYTHONPATH": str(home.ROOT)}
    secured.start_starter("n1", options=["--work-dir", str(place / "n1")], environment=environment)
    secured.wait_healthy(nodes=1, leader=True, deadline_s=60)
    bundle = secured.security.bundle(Role.USER, anna.name)
    user = Shell(tmp_path / "anna", secured.environment() | {"RMGR_SECURITY_DIR": str(bundle)})
    made = f"rmgr.TaskQueue(os.getuid, python={str(python)!r})"
    user.file("mine.py", f"import rmgr, os\nwith {made} as queue:\n    print(queue.submit_call().exception(60))\n")
    words = [sys.executable, "mine.py"]
    ended = subprocess.run(words, cwd=user.directory, env=user.environment, capture_output=True, text=True, timeout=90, check=False)
    assert f"chmod o+x {place / 'env'}" in ended.stdout, ended
    assert user.ok("submit", "--wait", "--", "id", "-un").out == f"{anna.name}\n"


# -- the tests themselves ------------------------------------------------------------------------------------------------------


def test_tests_of_work_as_its_user_pass_in_a_checkout_that_is_closed(accounts: LocalAccounts, tmp_path: Path) -> None:
    """As in root's own home on a fresh Debian: the checkout and its environment lie below a directory of mode 0700."""
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    checkout, environment = private / "checkout", private / "environment"
    skip = shutil.ignore_patterns("__pycache__")
    for name in ("rmgr", "tests"):
        shutil.copytree(ROOT / name, checkout / name, ignore=skip)
    shutil.copy(ROOT / "pyproject.toml", checkout)
    packages = environment / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    packages.mkdir(parents=True)
    paths = sysconfig.get_paths()
    (packages / "others.pth").write_text("\n".join([str(checkout), paths["purelib"], paths["platlib"]]))
    (environment / "bin").mkdir()
    python = environment / "bin" / "python"
    python.symlink_to(os.path.realpath(sys.executable))
    (environment / "pyvenv.cfg").write_text(f"home = {python.resolve().parent}\n")
    chosen = "tests/integration/users/test_run_as_user.py::test_a_call_is_its_users_and_workers_are_not_shared"
    words = ["-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", chosen]
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "PYTHON"))} | {"RMGR_SECOND_GO": "1"}
    ended = subprocess.run([python, *words], cwd=checkout, env=clean, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
    assert "1 passed" in ended.stdout, ended.stdout + ended.stderr
