"""Work that submits work, on hand-started Starters of a secured cluster: it runs as its own user, or names the missing setting."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmgr.adapters.host.accounts import Account
from rmgr.dev.cluster import DevCluster
from rmgr.model.identity import Role
from rmgr.runner.host import home
from tests.harness.gateway_process import GatewayProcess
from tests.harness.local_accounts import LocalAccounts
from tests.harness.reachable import CLIENT, work_that_users_reach


@pytest.fixture
def users() -> Iterator[tuple[Account, Account]]:
    with LocalAccounts() as accounts, work_that_users_reach(also=CLIENT):
        yield accounts.make("a"), accounts.make("b")


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that users can get to (pytest's own is closed to them)."""
    directory = Path(tempfile.mkdtemp(prefix="rmgr-users-", dir="/var/tmp"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)

NESTED = """
import os
import rmgr

def inner():
    return os.getuid()

def outer():
    open_to = [name for name in (BUNDLES) if os.access(name, os.R_OK)]
    with rmgr.TaskQueue(inner) as queue:
        return os.getuid(), queue.submit_call().result(60), open_to

with rmgr.TaskQueue(outer, features=["FEATURE"]) as queue:
    future = queue.submit_call()
    try:
        print(*future.result(90))
    except rmgr.errors.PermissionDenied as error:
        print("refused", error.message, error.hint)
"""


def test_work_submits_work_as_its_user_on_a_starter_that_was_started_by_hand_or_is_told_the_key(
    secured: DevCluster, tmp_path: Path, place: Path, users: tuple[Account, Account]
) -> None:
    anna, ben = users
    assert secured.security is not None
    bundles = {user.name: secured.security.bundle(Role.USER, user.name) for user in (anna, ben)}
    for user in (anna, ben):
        mine = Path(user.home) / ".config" / "rmgr" / "bundle"
        shutil.copytree(bundles[user.name], mine)
        for path in (mine.parent.parent, mine.parent, mine, *mine.rglob("*")):
            os.chown(path, user.uid, user.gid)
    with GatewayProcess(secured.daemon_environment("submitter", "g1"), tmp_path) as gateway:
        own = {"RMGR_SECURITY_RUN_AS": "user", "RMGR_SECURITY_WORK_BUNDLE": "", "PYTHONPATH": str(home.ROOT)}
        secured.start_starter("n1", options=["--work-dir", str(place / "bare"), "--features", "bare"], environment=own)
        own["RMGR_SECURITY_WORK_GATEWAY"] = gateway.endpoint
        secured.start_starter("n2", options=["--work-dir", str(place / "told"), "--features", "told"], environment=own)
        secured.wait_healthy(nodes=2, leader=True, deadline_s=60)
        closed = [str(secured.security.bundle(Role.STARTER, "n2") / "sign.key"), str(Path(ben.home) / ".config/rmgr/bundle/sign.key")]

        def ended(feature: str) -> str:
            environment = {**os.environ, **secured.environment(), "RMGR_SECURITY_DIR": str(bundles[anna.name])}
            program = NESTED.replace("BUNDLES", repr(closed)).replace("FEATURE", feature)
            words = [sys.executable, "-c", program]
            done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False)
            assert done.returncode == 0, done.stderr
            return done.stdout

        assert ended("told") == f"{anna.uid} {anna.uid} []\n"
        refused = ended("bare")
        assert refused.startswith("refused")
        assert '[security] work_gateway = "HOST:PORT"' in refused
