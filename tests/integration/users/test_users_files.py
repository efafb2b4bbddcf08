"""Files that users name, anywhere and in any state: a bad file ends only its own task."""

from __future__ import annotations

import os
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rmgr.adapters.host.accounts import Account
from rmgr.coord.protocol import keys
from rmgr.dev.zookeeper import ZooKeeperServer
from rmgr.model.states import Reason, State
from rmgr.model.submission import Command, Upload
from tests.harness.starter_rig import Rig, call, own_rig, sh
from tests.harness.waiting import eventually

MIB = 1024 * 1024


@pytest.fixture(scope="module")
def rig(zookeeper: ZooKeeperServer, place: Path) -> Iterator[Rig]:
    """A Starter of two cores whose work runs as its users, who may have 30 MiB of files each."""
    with own_rig(zookeeper, place) as made:
        made.ready("n1", as_users=True, cores=2, work_cap_user_bytes=30 * MIB)
        yield made


@pytest.fixture
def canary(rig: Rig, ben: Account) -> Iterator[None]:
    """A task of another user runs meanwhile; afterwards both cores are free, and nothing is blamed on the node."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as place:
        os.chmod(place, 0o755)
        begun = Path(ben.home, uuid.uuid4().hex)
        number = rig.submit(sh(f"touch {begun}; until [ -e {place}/go ]; do sleep 0.05; done; echo on"), user=ben.name)
        eventually(begun.exists, "the canary runs")
        yield
        Path(place, "go").touch()
        assert rig.outcomes(number, 1)[0].log[0] == b"on\n"
        both = sh(
            f"touch {ben.home}/both-$RMGR_ARRAY_INDEX; until [ -e {ben.home}/both-0 ] && [ -e {ben.home}/both-1 ]; do sleep 0.05; done"
        )
        for index in range(2):
            Path(ben.home, f"both-{index}").unlink(missing_ok=True)
        number = rig.submit(both, [b""] * 2, blocks=2, user=ben.name, array="0-1")
        assert {outcome.state for outcome in rig.outcomes(number, 2).values()} == {State.COMPLETED}
    running = rig.starters[0]
    assert running.agent().drains == {}
    assert running.agent().strikes.last == ""
    assert running.agent().aside.told() == {}

CLOSED = "mkdir -p d/e; touch d/e/f; chmod 000 d"


@pytest.mark.parametrize(
    ("script", "name", "words"),
    [
        ("true", "/etc/ssl/private/x", "Permission denied"),
        (CLOSED, "d/e/f", "Permission denied"),
        ("true", "none", "was not written"),
        ("touch a", "a/b", "was not written"),
        ("mkdir a", "a", "not a plain file"),
        ("mkfifo a", "a", "not a plain file"),
        ("true", "/dev/zero", "not a plain file"),
        ("true", "/proc/self/maps", "tells of itself"),
        ("true", "/proc/self/cwd/x", "tells of itself"),
        ("ln -s /proc/self here", "here/maps", "out of the work directory"),
        ("ln -s /etc here", "here/passwd", "out of the work directory"),
        ("ln -s /etc/passwd a", "a", "is a link"),
        ("true", "../../../store.db", "out of the work directory"),
    ],
)
def test_an_output_file_that_cannot_be_stored_ends_its_task(
    rig: Rig, canary: None, anna: Account, script: str, name: str, words: str
) -> None:
    number = rig.submit(sh(f"echo told; {script}", output_files=(("k", name),)), user=anna.name)
    outcome = rig.outcomes(number, 1)[0]
    assert (outcome.state, outcome.reason) == (State.FAILED, Reason.BAD_OUTPUT), outcome
    assert words in outcome.error
    assert name in outcome.error
    assert outcome.log[0] == b"told\n"
    assert list(rig.store.keys(keys.outputs_of(number, 0, 1))) == []


def test_a_name_that_no_file_can_have_is_no_record(rig: Rig, canary: None, anna: Account) -> None:
    for name in ("n" * 300, "d/" * 2100 + "f", "f\0"):
        for more in ({"output_files": (("k", name),)}, {"out": name}, {"cwd": name}):
            outcome = rig.outcomes(rig.submit(sh("true", **more), user=anna.name), 1)[0]
            assert (outcome.state, outcome.reason) == (State.FAILED, Reason.UNTRUSTED), outcome


def test_a_file_of_holes_is_as_large_as_it_says(rig: Rig, canary: None, anna: Account) -> None:
    number = rig.submit(sh("truncate -s 3600M a", output_files=(("k", "a"),)), user=anna.name)
    outcome = rig.outcomes(number, 1)[0]
    assert outcome.reason is Reason.BAD_OUTPUT
    assert f"({3600 * MIB} bytes, holes counted), and one that is stored has at most 30M" in outcome.error
    assert list(rig.store.keys(keys.outputs_of(number, 0, 1))) == []
    fits = rig.submit(sh("truncate -s 20M a", output_files=(("k2", "a"),)), user=anna.name)
    assert rig.outcomes(fits, 1)[0].state is State.COMPLETED


def _left(home: Path, told: list[Path], *patterns: str) -> list[Path]:
    try:
        told[:] = [path for pattern in patterns for path in home.glob(pattern)]
    except FileNotFoundError:  # something went between two looks of this one: another look
        told[:] = [home]
    return told


@pytest.mark.parametrize("where", ["its slot", "its own with an output", "what was staged", "of a call"])
def test_what_a_task_has_closed_to_itself_does_not_stay(rig: Rig, anna: Account, where: str) -> None:
    script = r"mkdir -p a/b/c; touch a/b/f; mkdir $(printf 'x\377'); i=0; (while [ $i -lt 90 ]; do mkdir d && cd d; i=$((i+1)); done)"
    script += "; echo x > out; chmod 000 a/b a .; true"
    work: Command | Callable[[], None]
    match where:
        case "its slot":
            work = sh(script)
        case "its own with an output":
            work = sh(script.replace("a/b a .", "a/b a"), output_files=((f"k/{where}", "out"),))
        case "what was staged":
            work = sh(script, uploads=(Upload(name="data", sha256=rig.upload(b"uploaded")),))
        case _:

            def closes() -> None:
                import os as system

                system.makedirs("a/b/c")
                system.chmod("a/b", 0)
                system.chmod("a", 0)

            work = closes
    outcome = rig.outcomes(rig.submit(work, [call()] if callable(work) else [b""], user=anna.name), 1)[0]
    assert outcome.state is State.COMPLETED, (outcome.error, outcome.log)
    home = rig.directory / "work" / "n1" / "n1"
    left: list[Path] = []
    if where != "of a call":  # a worker is kept for a while, and its directory with it
        eventually(lambda: not _left(home, left, "run/s*/t*", "stage/*"), lambda: f"this is left of it: {left}")
    for slot in rig.starters[0].agent().lanes.slots():
        slot.close()
    eventually(lambda: not _left(home, left, "run/s*/*/a", "run/s*/a"), lambda: f"this is left with its slot: {left}")
