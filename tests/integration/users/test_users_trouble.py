"""Users' work that kills its own runner, and removed directories, on a Starter that runs work as its users."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmgr.adapters.host.accounts import Account
from rmgr.dev.zookeeper import ZooKeeperServer
from rmgr.model.base.states import Reason
from rmgr.model.tasks.submission import Command, Upload
from tests.harness.fair_time import FairTimer
from tests.harness.starter_rig import Rig, Running, call, own_rig, sh
from tests.integration.users.test_run_as_user import told


@pytest.fixture(scope="module")
def rig(zookeeper: ZooKeeperServer, place: Path) -> Iterator[Rig]:
    with own_rig(zookeeper, place) as made:
        yield made


@pytest.fixture(scope="module")
def node(rig: Rig) -> Running:
    """A Starter of two cores whose work runs as its users (whose names are proven elsewhere)."""
    running = rig.start("n1", as_users=True)
    rig.wait_registered()
    return running


@pytest.mark.parametrize(("signum", "reason"), [(signal.SIGTERM, Reason.SIGNAL), (signal.SIGKILL, Reason.WORKER_LOST)])
def test_a_script_that_ends_all_processes_of_its_user_ends_itself_and_holds_up_nobody(
    rig: Rig, node: Running, anna: Account, ben: Account, signum: signal.Signals, reason: Reason
) -> None:
    script = f"sleep 0.2; {sys.executable} -c 'import os; os.kill(-1, {int(signum)})'; sleep 60"
    for _ in range(3):  # both slots at once: one of them dies by the other's hand
        assert {told(rig, sh("id -u"), user) for user in (anna, ben)} == {f"{anna.uid}\n", f"{ben.uid}\n"}
        bad = rig.submit(sh(script), [b""] * 2, user=anna.name, blocks=2, resubmit=False)
        outcomes = rig.outcomes(bad, 2).values()
        assert {outcome.reason for outcome in outcomes} == {reason}, outcomes
        with FairTimer() as timer:
            assert told(rig, sh("id -un"), ben) == f"{ben.name}\n"
        assert timer.elapsed_s < 5
    assert node.agent().strikes.last == "", "no fault of the node"
    assert node.agent().drains == {}


def test_work_of_users_goes_on_when_directories_are_removed_and_no_user_can_lead_the_starter_elsewhere(
    rig: Rig, node: Running, place: Path, anna: Account, ben: Account
) -> None:
    root, victim = place / "work" / "n1", place / "victim"
    script, upload = rig.upload(b"echo made > file && cat file && id -u"), rig.upload(b"u" * 1000)
    ballast = os.urandom(200_000)

    def everything() -> None:
        for user in (anna, ben):
            assert told(rig, Command(script_sha256=script), user) == f"made\n{user.uid}\n"
            assert told(rig, sh("cat up", uploads=(Upload(name="up", sha256=upload, is_dir=False),)), user) == "u" * 1000
            assert told(rig, lambda: (len(ballast), os.getuid()), user, payloads=[call()]) == (200_000, user.uid)

    place.chmod(0o1777)  # users may write where it lies
    everything()
    for kind in ("", "n1", "n1/run", "n1/private", "n1/stage", "blobs", "n1/run/s*"):
        for path in list(root.glob(kind)) if kind else [root]:
            shutil.rmtree(path, ignore_errors=True)
        if not kind:
            victim.mkdir()
            os.chown(victim, anna.uid, anna.gid)
            root.symlink_to(victim)  # it is looked at before files are made in it
        everything()
        assert not list(victim.iterdir()), kind
        assert (root.stat().st_mode & 0o777, (root / "blobs").stat().st_mode & 0o777) == (0o711, 0o700)
    assert node.agent().drains == {}
    node.agent().strikes._own.clear()
    place.chmod(0o755)
