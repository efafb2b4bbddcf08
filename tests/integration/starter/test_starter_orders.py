"""Orders of users and the scheduler to a Starter: cancel, signal, drain, hold, stop; and how its nodes share work."""

from __future__ import annotations

import pickle
import signal
import uuid
from pathlib import Path

import pytest

from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Committed, Delete, Gone, Multi
from rmgr.dev.zookeeper import ZooKeeperServer
from rmgr.model.base import Request
from rmgr.model.node import Drain, InboxOrder, OrderKind
from rmgr.model.queue import QueueSpec
from rmgr.model.states import Reason, State
from rmgr.model.submission import Command
from tests.harness.metric_rows import value_of
from tests.harness.starter_rig import Rig, call, own_rig
from tests.harness.waiting import eventually, unchanged

TRUE = Command(argv=("true",))


def waiter(go: Path, started: Path | None = None) -> Command:
    """Runs until the file is there; leaves a file of its own when it has started."""
    mark = f'touch "{started}-$RMGR_ARRAY_INDEX"; ' if started is not None else ""
    return Command(argv=("sh", "-c", f'{mark}while [ ! -e "{go}" ]; do sleep 0.02; done'))


def order(rig: Rig, what: OrderKind, submission: int, index: int = -1, node: str = "n1", **more: object) -> str:
    guid = uuid.uuid4().hex
    rig.write(paths.inbox(node, guid), InboxOrder(order=what, submission=submission, index=index, **more))
    return guid


def crossed_off(rig: Rig, guid: str, node: str = "n1") -> None:
    eventually(lambda: rig.zk.stat(paths.inbox(node, guid)).result(60) is None, "the order crossed off")


def delete(rig: Rig, path: str) -> None:
    outcome = rig.zk.commit(Multi(name="TEST", ops=(Delete(path),), proof=Gone(path))).result(60)
    assert isinstance(outcome, Committed)


@pytest.mark.parametrize("why", [Reason.NONE, Reason.OPERATOR_CANCEL, Reason.MAX_FAILS, Reason.REVOKED])
def test_a_cancel_kills_what_runs_and_ends_what_waits(rig: Rig, tmp_path: Path, why: Reason) -> None:
    rig.start()
    number = rig.submit(waiter(tmp_path / "never", tmp_path / "s"), [b""] * 2, serial=True, grace_us=100_000)
    eventually((tmp_path / "s-0").exists, "the first one to run")
    guid = order(rig, OrderKind.CANCEL, number, reason=why, detail="not needed")
    found = rig.outcomes(number, 2)
    told = {(outcome.state, outcome.reason, outcome.error) for outcome in found.values()}
    assert told == {(State.CANCELLED, why or Reason.USER_CANCEL, "not needed")}
    crossed_off(rig, guid)
    eventually(lambda: not rig.running(), "the block gone")


def test_a_cancel_of_one_task_leaves_the_others_alone(rig: Rig, tmp_path: Path) -> None:
    rig.start()
    number = rig.submit(waiter(tmp_path / "go", tmp_path / "s"), [b""] * 2, grace_us=100_000)
    eventually(lambda: (tmp_path / "s-0").exists() and (tmp_path / "s-1").exists(), "both to run")
    guid = order(rig, OrderKind.CANCEL, number, 1)
    assert rig.outcomes(number, 1)[1].state is State.CANCELLED
    crossed_off(rig, guid)
    (tmp_path / "go").touch()
    assert rig.outcomes(number, 2)[0].state is State.COMPLETED


def test_a_cancel_reaches_a_python_task(rig: Rig) -> None:
    rig.start()

    def work() -> None:
        import time

        time.sleep(60)

    number = rig.submit(work, grace_us=500_000)
    eventually(lambda: any(lane.worker.running()[0] for lane in rig.starters[0].agent().lanes if lane.worker), "it to run")
    order(rig, OrderKind.CANCEL, number)
    assert rig.outcomes(number, 1)[0].state is State.CANCELLED


def test_an_order_for_nothing_that_is_here_is_crossed_off(rig: Rig) -> None:
    rig.ready()
    crossed_off(rig, order(rig, OrderKind.CANCEL, 12345))


def test_a_signal_reaches_the_command(rig: Rig, tmp_path: Path) -> None:
    rig.start()
    script = f'trap "echo got it; exit 0" USR1; touch "{tmp_path}/up"; while :; do sleep 0.02; done'
    number = rig.submit(Command(argv=("sh", "-c", script)))
    eventually((tmp_path / "up").exists, "the trap")
    crossed_off(rig, order(rig, OrderKind.SIGNAL, number, signal=int(signal.SIGUSR1)))
    outcome = rig.outcomes(number, 1)[0]
    assert (outcome.state, outcome.log[0]) == (State.COMPLETED, b"got it\n")


def test_suspended_work_stands_still_until_it_is_resumed(rig: Rig, tmp_path: Path) -> None:
    rig.start()
    ticks = tmp_path / "ticks"
    number = rig.submit(Command(argv=("sh", "-c", f'while [ ! -e "{tmp_path}/go" ]; do echo >> "{ticks}"; sleep 0.01; done')))
    eventually(lambda: ticks.exists() and ticks.stat().st_size > 3, "ticks")
    crossed_off(rig, order(rig, OrderKind.SUSPEND, number))

    eventually(lambda: unchanged(lambda: ticks.stat().st_size), "no more ticks")
    (tmp_path / "go").touch()
    crossed_off(rig, order(rig, OrderKind.RESUME, number))
    assert rig.outcomes(number, 1)[0].state is State.COMPLETED


def test_a_drained_node_finishes_returns_the_rest_and_takes_nothing_new(rig: Rig, tmp_path: Path) -> None:
    rig.start()
    number = rig.submit(waiter(tmp_path / "go", tmp_path / "s"), [b""] * 6, serial=True)
    eventually((tmp_path / "s-0").exists, "it to run")
    rig.write(paths.drain("n1"), Drain(node="n1", reason="repair", user="op", since_us=1))
    eventually(lambda: [(key.first, key.count) for key in rig.pending()] == [(1, 5)], f"the rest returned: {rig.pending()}")
    (tmp_path / "go").touch()
    assert list(rig.outcomes(number, 1)) == [0]
    eventually(lambda: not rig.running(), "nothing claimed")
    assert len(rig.pending()) == 1
    delete(rig, paths.drain("n1"))
    rig.outcomes(number, 6)


def test_what_a_drained_node_returns_of_a_held_submission_is_set_aside(rig: Rig, tmp_path: Path) -> None:
    rig.start()
    number = rig.submit(waiter(tmp_path / "go", tmp_path / "s"), [b""] * 3, serial=True)
    eventually((tmp_path / "s-0").exists, "it to run")
    delete(rig, paths.gate(number))
    rig.write(paths.drain("n1"), Drain(node="n1", reason="repair", user="op", since_us=1))
    eventually(lambda: rig.zk.children(paths.held("default")).result(60), "set aside")
    assert rig.pending() == []
    (tmp_path / "go").touch()
    rig.outcomes(number, 1)


def test_nothing_without_a_gate_is_claimed_and_others_pass(rig: Rig) -> None:
    rig.ready()
    rig.start("n2")
    held = rig.submit(TRUE, [b""] * 2, drop_gate=True)
    other = rig.submit(TRUE)
    rig.outcomes(other, 1)
    assert [key.submission for key in rig.pending()] == [held]


def test_sigterm_finishes_what_runs_and_ends_the_session_at_once(rig: Rig, tmp_path: Path) -> None:
    process = rig.spawn()
    rig.wait_registered()
    number = rig.submit(waiter(tmp_path / "go", tmp_path / "s"), [b""] * 4)
    eventually(lambda: (tmp_path / "s-0").exists() and (tmp_path / "s-1").exists(), "two to run")
    process.send_signal(signal.SIGTERM)
    eventually(lambda: "stopping" in rig.log_of("n1"), "the signal")
    (tmp_path / "go").touch()
    assert process.wait(60) == 0, rig.log_of("n1")
    found = rig.outcomes(number, 2)
    assert {outcome.state for outcome in found.values()} == {State.COMPLETED}
    assert rig.running() == []
    assert rig.zk.children(paths.STARTERS).result(60) == []
    assert sum(key.count for key in rig.pending()) == 2


def test_work_that_outlives_the_grace_is_failed_as_a_loss(rig: Rig, tmp_path: Path) -> None:
    process = rig.spawn(options=["--stop-grace", "0.2s"])
    rig.wait_registered()
    number = rig.submit(waiter(tmp_path / "never", tmp_path / "s"))
    once = rig.submit(waiter(tmp_path / "never", tmp_path / "t"), resubmit=False)
    eventually(lambda: (tmp_path / "s-0").exists() and (tmp_path / "t-0").exists(), "both to run")
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0, rig.log_of("n1")
    assert [record.reason for record in rig.failed(number).values()] == [Reason.NODE_LOST]
    outcome = rig.outcomes(once, 1)[0]
    assert (outcome.state, outcome.reason) == (State.FAILED, Reason.NODE_LOST)
    assert rig.running() == []


def test_a_node_is_never_over_committed(rig: Rig, tmp_path: Path) -> None:
    rig.ready(cores=3, memory_bytes=1000 << 20)
    ledger = tmp_path / "ledger"
    script = f'echo "+$RMGR_ENTRY" >> "{ledger}"; sleep 0.05; echo "-$RMGR_ENTRY" >> "{ledger}"'
    numbers = []
    for cores, memory in ((1, 0), (2, 0), (3, 0), (1, 600), (2, 400)):
        entry = f"{cores}:{memory}".encode()
        numbers.append(rig.submit(Command(argv=("sh", "-c", script)), [entry] * 4, cores=cores, memory_mib=memory))
    for number in numbers:
        rig.outcomes(number, 4)
    used = [0, 0]
    for line in ledger.read_text().splitlines():
        sign = 1 if line[0] == "+" else -1
        for at, value in enumerate(map(int, line[1:].split(":"))):
            used[at] += sign * value
        assert used[0] <= 3
        assert used[1] <= 1000
    assert used == [0, 0]


def test_a_large_task_is_not_starved_by_small_ones_behind_it(rig: Rig, tmp_path: Path) -> None:
    rig.ready(cores=2)
    first = rig.submit(waiter(tmp_path / "go", tmp_path / "s"))
    eventually((tmp_path / "s-0").exists, "one core in use")
    large = rig.submit(Command(argv=("sh", "-c", f"date +%s%N > {tmp_path}/large")), cores=2)
    eventually(lambda: any(key.submission == large for key in rig.running()), "claimed to drain for it")
    small = rig.submit(Command(argv=("sh", "-c", f"date +%s%N > {tmp_path}/small")))
    with pytest.raises(AssertionError):
        rig.outcomes(small, 1, 0.5)
    (tmp_path / "go").touch()
    for number in (first, large, small):
        rig.outcomes(number, 1)
    assert int((tmp_path / "large").read_text()) < int((tmp_path / "small").read_text())


def test_small_tasks_pass_a_large_one_where_the_queue_allows_it(zookeeper: ZooKeeperServer, tmp_path: Path) -> None:
    spec = QueueSpec(name="default", backfill_pull=True)
    with own_rig(zookeeper, tmp_path, queues=(spec,)) as rig:
        rig.ready(cores=2)
        first = rig.submit(waiter(tmp_path / "go", tmp_path / "s"))
        eventually((tmp_path / "s-0").exists, "one core in use")
        large = rig.submit(TRUE, cores=2)
        small = rig.submit(TRUE)
        rig.outcomes(small, 1)
        (tmp_path / "go").touch()
        rig.outcomes(large, 1)
        rig.outcomes(first, 1)


def test_blocks_that_do_not_suit_the_node_are_left_to_others(rig: Rig) -> None:
    rig.ready(cores=2, memory_bytes=512 << 20)
    big = rig.submit(TRUE, cores=3)
    fat = rig.submit(TRUE, memory_mib=600)
    picky = rig.submit(TRUE, request=Request(features=("gpu",)))
    fine = rig.submit(TRUE)
    rig.outcomes(fine, 1)
    assert {key.submission for key in rig.pending()} == {big, fat, picky}
    rig.start("n2", cores=4, memory_bytes=1 << 30, features=("gpu",))
    for number in (big, fat, picky):
        rig.outcomes(number, 1)


def test_higher_priority_goes_first(rig: Rig, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    script = Command(argv=("sh", "-c", f'echo $RMGR_JOB_NAME >> "{ledger}"'))
    numbers = [rig.submit(script, name=name, priority=priority) for name, priority in (("low", -5), ("mid", 0), ("high", 7))]
    rig.start(cores=1)
    for number in numbers:
        rig.outcomes(number, 1)
    assert ledger.read_text().split() == ["high", "mid", "low"]


def test_at_most_once_is_never_claimed_beyond_the_free_slots(rig: Rig, tmp_path: Path) -> None:
    rig.ready(cores=2)
    quick = rig.submit(lambda: None, [call()] * 50, resubmit=False)
    rig.outcomes(quick, 50)
    number = rig.submit(waiter(tmp_path / "go", tmp_path / "s"), [b""] * 20, resubmit=False)
    eventually(lambda: (tmp_path / "s-0").exists() and (tmp_path / "s-1").exists(), "two to run")
    assert sum(key.count for key in rig.running()) == 2
    assert sum(key.count for key in rig.pending()) == 18
    (tmp_path / "go").touch()
    rig.outcomes(number, 20)


def test_a_serial_block_runs_one_task_after_another(rig: Rig, tmp_path: Path) -> None:
    rig.start(cores=2)
    ledger = tmp_path / "ledger"
    number = rig.submit(Command(argv=("sh", "-c", f'echo + >> "{ledger}"; sleep 0.01; echo - >> "{ledger}"')), [b""] * 20, serial=True)
    rig.outcomes(number, 20)
    assert ledger.read_text().split() == ["+", "-"] * 20


def test_a_serial_python_block_has_one_slot(rig: Rig) -> None:
    rig.start(cores=2)

    def pid(_: int) -> int:
        import os

        return os.getpid()

    number = rig.submit(pid, [call(x) for x in range(200)], serial=True)
    assert len({pickle.loads(outcome.value) for outcome in rig.outcomes(number, 200).values()}) == 1


def test_a_hungry_node_gets_half_of_what_another_has_claimed(rig: Rig, tmp_path: Path) -> None:
    first = rig.ready("n1", cores=1)

    def work(path: str, x: int) -> str:
        import os
        import pathlib
        import time

        while x >= 350 and not pathlib.Path(path).exists():
            time.sleep(0.005)
        return os.environ["RMGR_NODELIST"]

    # The last block is less than it claims ahead of quick tasks.
    number = rig.submit(work, [call(str(tmp_path / "go"), x) for x in range(400)], blocks=8)
    eventually(lambda: rig.running("n1") and not rig.pending(), "all claimed by the first")
    rig.start("n2", cores=1)
    eventually(lambda: value_of(first.starter.shared.metrics.given_back) > 0, "a split")
    eventually(lambda: rig.running("n2"), "the second has some of them")
    (tmp_path / "go").touch()
    found = rig.outcomes(number, 400)
    assert {pickle.loads(found[index].value) for index in range(350, 400)} == {"n1", "n2"}


def test_many_nodes_share_many_tasks_and_each_is_committed_once(rig: Rig, tmp_path_factory: pytest.TempPathFactory) -> None:
    rig.start("v", names=("v-0", "v-1", "v-2"), cores=1)
    rig.start("w", cores=2)

    met = str(tmp_path_factory.mktemp("met"))

    def where() -> str:
        import os
        import time

        node = os.environ["RMGR_NODELIST"]
        open(os.path.join(met, node), "w").close()
        while len(os.listdir(met)) < 4:  # nobody has done all of it before the last of them comes
            time.sleep(0.01)
        return node

    number = rig.submit(where, [call()] * 400, blocks=2)
    found = rig.outcomes(number, 400)
    assert {pickle.loads(outcome.value) for outcome in found.values()} == {"v-0", "v-1", "v-2", "w"}
    for node in ("v-0", "v-1", "v-2", "w"):
        eventually(lambda node=node: not rig.running(node), f"{node} has nothing left")
