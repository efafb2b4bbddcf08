"""A slot that dies under work is that work's failure; a node that cannot open slots any more is quarantined, and everybody can see it."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rmgr.adapters.zookeeper.client import ZkCoordinator
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.records import decode_record
from rmgr.daemons.starter.health.strikes import OWN
from rmgr.dev.zookeeper import ZooKeeperServer
from rmgr.model.base.resources import Request
from rmgr.model.base.states import Reason, State
from rmgr.model.cluster.node import OrderKind, Trouble
from rmgr.model.tasks.outcome import Outcome
from rmgr.model.tasks.submission import Command
from tests.harness.fair_time import FairTimer
from tests.harness.starter_rig import Rig, call, wait_for
from tests.integration.starter.test_starter_orders import order


@pytest.fixture
def rig(coordinator: ZkCoordinator, zookeeper: ZooKeeperServer, chroot: str, tmp_path: Path) -> Iterator[Rig]:
    with Rig(coordinator, zookeeper.hosts, chroot, tmp_path) as made:
        yield made


def trouble(rig: Rig, node: str = "n1") -> Trouble | None:
    found = rig.zk.get(paths.trouble(node)).result(60)
    return None if found is None else decode_record(found.data, Trouble)


def test_a_quarantine_is_published_until_it_is_over_and_one_of_an_older_life_is_removed(rig: Rig) -> None:
    rig.write(paths.trouble("n1"), Trouble(node="n1", incarnation=0, kind="disk", reason="of an older life", since_us=1))
    running = rig.start()
    rig.wait_registered()
    wait_for(lambda: trouble(rig) is None, "the old record to go")
    agent = running.agent()

    def strike() -> None:
        for number in range(OWN):
            agent.strikes.add("slot_not_opened", f"no memory {number}", time.monotonic())

    running.parts.starter.ask(strike)
    told = wait_for(lambda: trouble(rig), "the quarantine to be published")
    assert (told.kind, told.incarnation) == ("quarantine", agent.incarnation)
    assert "slot_not_opened: no memory 4" in told.reason
    assert 50 < told.until_us / 1e6 - time.time() < 61
    running.parts.starter.ask(lambda: setattr(agent.strikes, "out_until_s", time.monotonic()))
    wait_for(lambda: trouble(rig) is None, "its end to be published")
    assert not agent.is_draining


def test_a_node_whose_turns_raise_is_shown_as_troubled_until_one_comes_to_its_end(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    running = rig.start()
    rig.wait_registered()
    agent = running.agent()

    def broken(*_: object) -> None:
        raise RuntimeError("a defect")

    with monkeypatch.context() as patch:
        patch.setattr(type(agent.puller), "run", broken)
        told = wait_for(lambda: trouble(rig), "its trouble to be published")
        assert (told.kind, told.until_us) == ("other", 0)
        assert re.fullmatch(r"its turns fail, test_quarantine.py:\d+: RuntimeError: a defect", told.reason)
        assert not agent.is_draining, "what it has stays, and takes no other node with it"
    wait_for(lambda: trouble(rig) is None, "its end to be published")
    rig.outcomes(rig.submit(Command(argv=("true",))), 1)


def kill_parent() -> Callable[[], None]:
    """A function that travels by value, and ends what has forked its worker."""

    def kill() -> None:
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(60)  # else it may return before it dies

    return kill


def worn_out(rig: Rig, number: int, count: int) -> dict[int, Outcome]:
    """Outcomes of tasks that are run again whenever they failed, as a Submitter does it (without its pauses)."""

    def over() -> bool:
        for where, failed in rig.failed(number).items():
            rig.resubmit(number, where, failed)
        return rig.finals(number) >= count

    wait_for(over, f"{count} outcomes of {number}")
    return rig.outcomes(number, count)


@pytest.mark.parametrize("work", [Command(argv=("sh", "-c", "kill -9 $PPID; sleep 60")), kill_parent()], ids=["command", "call"])
def test_work_that_kills_its_slot_wears_out_its_own_attempts_and_not_the_node(rig: Rig, work: Command | Callable[[], None]) -> None:
    running = rig.start()
    bad = rig.submit(work, [b"" if isinstance(work, Command) else call()] * 6, blocks=6)
    wait_for(lambda: rig.failed(bad), "the first of them to fail")
    with FairTimer() as timer:
        good = rig.submit(Command(argv=("true",)), user="somebody else")
        assert rig.outcomes(good, 1)[0].state is State.COMPLETED
    ends = worn_out(rig, bad, 6).values()
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
    (key,) = wait_for(rig.running, "it to run")
    order(rig, OrderKind.CANCEL, endless, 0, reason=Reason.USER_CANCEL)
    assert rig.outcomes(endless, 1)[0].state is State.CANCELLED
    assert key.submission == endless
