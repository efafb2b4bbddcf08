"""A slot that dies under work is that work's failure; a node that cannot open slots any more is visibly quarantined."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rmgr.coord.protocol import paths
from rmgr.coord.protocol.records import decode_record
from rmgr.daemons.starter.core.blocks import ClaimedBlock
from rmgr.daemons.starter.node.trouble import OWN
from rmgr.model.base import Request
from rmgr.model.block import Outcome
from rmgr.model.node import OrderKind, Trouble
from rmgr.model.states import Reason, State
from rmgr.model.submission import Command
from tests.harness.fair_time import FairTimer
from tests.harness.starter_rig import Rig, call
from tests.harness.waiting import eventually
from tests.integration.starter.test_starter_orders import order


def trouble(rig: Rig, node: str = "n1") -> Trouble | None:
    found = rig.zk.get(paths.trouble(node)).result(60)
    return None if found is None else decode_record(found.data, Trouble)


def test_a_quarantine_is_published_until_it_is_over_and_one_of_an_older_life_is_removed(rig: Rig) -> None:
    rig.write(paths.trouble("n1"), Trouble(node="n1", incarnation=0, kind="disk", reason="of an older life", since_us=1))
    running = rig.ready()
    eventually(lambda: trouble(rig) is None, "the old record to go")
    agent = running.agent()

    def strike() -> None:
        for number in range(OWN):
            agent.strikes.add("slot_not_opened", f"no memory {number}", time.monotonic())

    running.starter.ask(strike)
    told = eventually(lambda: trouble(rig), "the quarantine to be published")
    assert (told.kind, told.incarnation) == ("quarantine", agent.incarnation)
    assert "slot_not_opened: no memory 4" in told.reason
    assert 50 < (told.until_us - told.since_us) / 1e6 < 61
    running.starter.ask(lambda: setattr(agent.strikes, "out_until_s", time.monotonic()))
    eventually(lambda: trouble(rig) is None, "its end to be published")
    assert not agent.is_draining


def test_a_node_one_of_whose_steps_raises_does_all_others_and_says_so(rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    running = rig.ready(cores=2)
    agent = running.agent()
    gate = tmp_path / "gate"
    short = rig.submit(Command(argv=("sh", "-c", f"while ! [ -e {gate} ]; do sleep 0.1; done")))
    endless = rig.submit(Command(argv=("sleep", "600")))
    eventually(lambda: agent.lanes.free_cores == 0, "both run")

    def broken(*_: object) -> None:
        raise RuntimeError("a defect")

    def told(kind: str) -> str | None:
        found = trouble(rig)
        return found.reason if found is not None and found.kind == kind else None

    with monkeypatch.context() as patch:
        patch.setattr(type(agent.puller), "run", broken)
        reason = eventually(lambda: told("other"), "its trouble to be published")
        assert re.fullmatch(r"its turns fail, test_quarantine.py:\d+: RuntimeError: a defect", reason)
        assert not agent.is_draining, "what it has stays, and takes no other node with it"
        gate.touch()
        assert rig.outcomes(short, 1)[0].state is State.COMPLETED
        order(rig, OrderKind.CANCEL, endless, 0, reason=Reason.USER_CANCEL)
        assert rig.outcomes(endless, 1)[0].state is State.CANCELLED
    reason = eventually(lambda: told("aside"), "it works again, and says what happened")
    assert re.fullmatch(r"test_quarantine.py:\d+ was set aside: RuntimeError: a defect", reason)
    rig.outcomes(rig.submit(Command(argv=("true",))), 1)


def test_a_block_at_which_claiming_raises_keeps_no_other_from_being_claimed(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = rig.ready().agent()
    consider, bad = type(agent.puller)._consider, rig.next_number()

    def broken(puller: object, board: object, candidate: Any, *rest: object) -> Any:
        if candidate.key.submission == bad:
            raise RuntimeError("a defect")
        return consider(puller, board, candidate, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(type(agent.puller), "_consider", broken)
        number = rig.submit(Command(argv=("true",)))
        assert number == bad
        assert rig.outcomes(rig.submit(Command(argv=("true",))), 1)[0].state is State.COMPLETED
        assert rig.outcomes(number, 0) == {}
    assert rig.outcomes(number, 1)[0].state is State.COMPLETED, "it is tried again"


def test_an_end_that_cannot_be_written_down_is_its_tasks_alone(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = rig.ready(cores=2).agent()
    settle, bad = ClaimedBlock.settle, rig.next_number()

    def broken(block: ClaimedBlock, outcomes: Iterable[Outcome], now_s: float) -> None:
        some = list(outcomes)
        if block.key.submission == bad:  # a lone surrogate, which no encoder takes
            some = [msgspec.structs.replace(one, error="\udcff") if one.index == 1 else one for one in some]
        settle(block, some, now_s)

    monkeypatch.setattr(ClaimedBlock, "settle", broken)
    first = rig.submit(Command(argv=("true",)), [b"", b"", b""])
    assert first == bad
    assert rig.outcomes(rig.submit(Command(argv=("true",))), 1)[0].state is State.COMPLETED
    ends = rig.outcomes(first, 3)
    assert [ends[index].state for index in range(3)] == [State.COMPLETED, State.FAILED, State.COMPLETED]
    assert ends[1].reason is Reason.BAD_OUTPUT
    assert "UnicodeEncodeError" in ends[1].error
    eventually(lambda: agent.is_empty, "it has heard that its outcomes are written")


def kill_parent() -> Callable[[], None]:
    """A function that travels by value, and ends what has forked its worker."""

    def kill() -> None:
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(60)  # else it may return before it dies

    return kill


@pytest.mark.parametrize("work", [Command(argv=("sh", "-c", "kill -9 $PPID; sleep 60")), kill_parent()], ids=["command", "call"])
def test_work_that_kills_its_slot_wears_out_its_own_attempts_and_not_the_node(rig: Rig, work: Command | Callable[[], None]) -> None:
    running = rig.start()
    bad = rig.submit(work, [b"" if isinstance(work, Command) else call()] * 6, blocks=6)
    eventually(lambda: rig.failed(bad), "the first of them to fail")
    with FairTimer() as timer:
        good = rig.submit(Command(argv=("true",)), user="somebody else")
        assert rig.outcomes(good, 1)[0].state is State.COMPLETED
    ends = rig.outcomes_in_the_end(bad, 6).values()
    assert {(end.reason, len(end.past)) for end in ends} == {(Reason.POISON, 4)}
    assert {past.reason for end in ends for past in end.past} == {Reason.WORKER_LOST}
    assert all("was killed by SIGKILL" in end.error for end in ends), [end.error for end in ends]
    assert not running.agent().strikes.last, "no fault of the node"
    assert trouble(rig) is None
    assert timer.elapsed_s < 5, "it was a minute"


def test_work_that_stops_its_slot_is_ended_at_its_limit_and_when_it_is_cancelled(rig: Rig) -> None:
    rig.start()
    script = Command(argv=("sh", "-c", "kill -STOP $PPID; sleep 60"))
    limited = rig.submit(script, request=Request(cores=1, time_limit_us=500_000), grace_us=100_000)
    assert rig.outcomes(limited, 1)[0].reason is Reason.TIME_LIMIT
    endless = rig.submit(script)
    (key,) = eventually(rig.running, "it to run")
    order(rig, OrderKind.CANCEL, endless, 0, reason=Reason.USER_CANCEL)
    assert rig.outcomes(endless, 1)[0].state is State.CANCELLED
    assert key.submission == endless


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own that is soon full."""
    folder = tmp_path / "small"
    folder.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=16m", "none", str(folder)]
    if os.geteuid() or shutil.which("mount") is None or subprocess.run(words, capture_output=True, check=False).returncode:
        pytest.skip("a file system that is filled must be mounted: needs root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], capture_output=True, check=False)

FILLS = "cat /dev/zero > big"


@pytest.mark.parametrize("is_command", [True, False], ids=["command", "call"])
def test_what_fails_on_a_full_disk_is_lost_and_the_node_says_so(rig: Rig, small_disk: Path, is_command: bool) -> None:
    def fill_the_disk() -> None:
        with open("big", "wb", buffering=0) as file:
            while True:
                file.write(bytes(1 << 20))

    work: Any = Command(argv=("sh", "-c", FILLS)) if is_command else fill_the_disk
    rig.start(work_dir=str(small_disk), cores=1)
    bad = rig.submit(work, [b"" if isinstance(work, Command) else call()] * 5, blocks=5, resubmit=False)
    ends = rig.outcomes(bad, 5).values()
    assert {(end.state, end.reason) for end in ends} == {(State.FAILED, Reason.NODE_LOST)}, [end.error for end in ends]
    assert all(end.error.startswith("the disk was full on node n1 when it ended (") for end in ends), [end.error for end in ends]
    told = eventually(lambda: trouble(rig), "the trouble to be published")
    assert "disk" in told.reason


def test_what_asks_for_more_than_there_is_or_fills_another_disk_has_failed_by_itself(rig: Rig, small_disk: Path) -> None:
    rig.start()
    elsewhere = rig.submit(Command(argv=("sh", "-c", f"cd {small_disk}; {FILLS}")))
    assert rig.outcomes(elsewhere, 1)[0].reason is Reason.EXIT_CODE
    (small_disk / "big").unlink()
    rig.start("n2", work_dir=str(small_disk))
    too_much = rig.submit(Command(argv=("sh", "-c", "exit 1")), request=Request(cores=1))
    assert rig.outcomes(too_much, 1)[0].reason is Reason.EXIT_CODE
