"""Checkpoints on real Starters with real processes: asked, stored, sealed, restored elsewhere; a counter never repeats a saved step.

Every program counts: it restores its step, writes each new one into a ledger outside of its directory, and saves when it is asked to.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shlex
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import psutil
import pytest

from rmgr.adapters.host.accounts import Account
from rmgr.adapters.identity.trust import Trust, ZooKeeperKeys, publish
from rmgr.coord.ops import place
from rmgr.coord.protocol import keys, paths
from rmgr.coord.protocol.keys import Checkpoint
from rmgr.coord.protocol.multi import Multi
from rmgr.coord.protocol.ports import Store
from rmgr.coord.protocol.records import decode_block
from rmgr.daemons.starter.checkpoint import directories as asking
from rmgr.daemons.starter.checkpoint import files
from rmgr.daemons.starter.checkpoint.files import StarterSeals, decode_manifest
from rmgr.daemons.starter.node import node as starter_node
from rmgr.dev.zookeeper import ZooKeeperServer
from rmgr.errors import StoreUnavailable
from rmgr.model.block import BlockData, BlockKey
from rmgr.model.identity import Role
from rmgr.model.node import OrderKind
from rmgr.model.states import Reason, State
from rmgr.model.submission import Command, Rigid
from tests.harness.bundles import session_bundles
from tests.harness.hand_leader import put, unhold, waiting
from tests.harness.reachable import open_place
from tests.harness.starter_rig import Rig, call, own_rig
from tests.harness.waiting import eventually
from tests.integration.starter.test_starter_faults import expire
from tests.integration.starter.test_starter_orders import crossed_off, order
from tests.places import ROOT

#: Counts in a shell; saves when it is told to by a signal.
SHELL = """
ledger=$0; asked=; cd "$RMGR_CHECKPOINT_DIR"; step=$(cat step 2>/dev/null || echo 0)
save() { asked=; echo $step > part; mv part step; cp .rmgr/number .rmgr/saved; [ ! -e .rmgr/stop ] || exit 85; }
trap asked=1 USR1
while [ $step -lt 100000 ] && [ ! -e $ledger.end ]; do
    step=$((step + 1)); echo $step >> $ledger; [ ! "$asked" ] || save; sleep 0.01
done
"""
#: The same in Python, which looks for itself.
PYTHON = """
import os, sys, time
from rmgr import checkpoint
ledger, name = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "state"
step = checkpoint.restore(name, default=0)
while not os.path.exists(ledger + ".end"):
    step += 1
    with open(ledger, "a") as file:
        file.write(f"{step}\\n")
    if checkpoint.requested():
        checkpoint.save(step, name)
        if checkpoint.should_stop():
            checkpoint.stop()
    time.sleep(0.01)
"""


def start(rig: Rig, *nodes: str, **options: object) -> None:
    for node in nodes or ("n1", "n2"):
        rig.ready(node, cores=2, serves=True, **options)


def shell(ledger: Path) -> Command:
    return Command(argv=("sh", "-c", SHELL, str(ledger)))


def python(ledger: Path, *more: str) -> Command:
    return Command(argv=(sys.executable, "-c", PYTHON, str(ledger), *more), env={"PYTHONPATH": str(ROOT)})


def steps(ledger: Path) -> list[int]:
    return [int(line) for line in ledger.read_text().split()] if ledger.exists() else []


def grows(ledger: Path, by: int = 3) -> None:
    before = len(steps(ledger))
    eventually(lambda: len(steps(ledger)) >= before + by, f"{ledger.name} grows")


def save(rig: Rig, number: int) -> str:
    """An order to save its state and go on."""
    return order(rig, OrderKind.CHECKPOINT, number, 0, extra={"then": "go-on", "why": "user"})


def counts(rig: Rig, program: Command, ledger: Path, **fields: object) -> int:
    """A placed job that runs on n1."""
    number = rig.submit(program, queue="batch", **fields)
    put(rig, number)
    grows(ledger)
    return number


def made_once(ledger: Path) -> None:
    made = steps(ledger)
    assert made == list(range(1, len(made) + 1)), f"{ledger.name}: every step once, in order"


def stop(rig: Rig, number: int, node: str = "n1", **extra: str) -> str:
    return order(rig, OrderKind.CHECKPOINT, number, 0, node, extra={"then": "stop", "why": "user", **extra})


def running(rig: Rig, number: int, node: str = "n1") -> BlockData:
    key = next(key for key in rig.running(node) if key.submission == number)
    return decode_block(rig.zk.get(paths.running_block(node, key)).result(60).data)


def story(rig: Rig, number: int, node: str = "n1") -> tuple[str, ...]:
    return running(rig, number, node).story if any(key.submission == number for key in rig.running(node)) else ()


def back(rig: Rig, number: int, attempt: int) -> BlockData:
    """The job waits again as this attempt."""
    wanted = (number, attempt)
    key = eventually(lambda: next((key for key in rig.pending("batch") if (key.submission, key.attempt) == wanted), None), "back")
    return decode_block(rig.zk.get(paths.pending_block("batch", key)).result(60).data)


def begins(rig: Rig, number: int, words: str) -> tuple[str, ...]:
    """The story, once its last line says with what the attempt begins: the program may run before that is written."""
    eventually(lambda: words in story(rig, number)[-1:], lambda: f"{words!r} ends {story(rig, number)}")
    return story(rig, number)


def noted(monkeypatch: pytest.MonkeyPatch) -> list[BlockData]:
    """What Starters of this process write of their blocks from now on, in order: some of it stands for a moment only."""
    found: list[BlockData] = []
    real = place.note

    def note(node: str, node_version: int, key: BlockKey, data: BlockData, version: int, *, orders: Sequence[str] = ()) -> Multi:
        found.append(data)
        return real(node, node_version, key, data, version, orders=orders)

    monkeypatch.setattr(place, "note", note)
    return found


def saved(rig: Rig, number: int) -> list[str]:
    return [str(one) for one in files.checkpoints_of(rig.store, number, 0)]


def goes_on(rig: Rig, ledger: Path, number: int) -> None:
    """The last attempt ends well, and no step that was saved was made again."""
    grows(ledger)
    Path(f"{ledger}.end").touch()
    outcome = rig.outcomes(number, 1)[0]
    assert outcome.state is State.COMPLETED
    made_once(ledger)


@pytest.mark.parametrize("program", [shell, python])
def test_a_job_goes_on_elsewhere_with_what_it_has_saved(rig: Rig, tmp_path: Path, program: Callable[[Path], Command]) -> None:
    start(rig)
    ledger = tmp_path / "ledger"
    number = rig.submit(program(ledger), queue="batch")
    put(rig, number)
    for attempt, node in ((1, "n1"), (2, "n2"), (3, "n1")):
        grows(ledger)
        guid = stop(rig, number, node, why="drain")
        data = back(rig, number, attempt + 1)
        crossed_off(rig, guid, node)
        past = data.past[-1]
        assert (past.attempt, past.node, past.reason, past.exit_code) == (attempt, node, Reason.MIGRATED, 85)
        assert past.error.startswith(f"drain; checkpoint {attempt}.1 stored: 1 file, ")
        assert (data.allocation, data.stopping, data.failures, data.losses) == (None, "", 0, 0)
        put(rig, number, (("n2" if node == "n1" else "n1", 1),))
    goes_on(rig, ledger, number)
    assert saved(rig, number) == ["3.1", "2.1"]
    eventually(lambda: not list(tmp_path.glob("work/*/*/jobs/saved-*")), "what was restored is removed")


def test_a_call_of_a_placed_queue_stops_and_goes_on(rig: Rig, tmp_path: Path) -> None:
    start(rig, "n1")
    ledger = tmp_path / "ledger"

    def count(path: str) -> int:
        import time

        from rmgr import checkpoint

        step = checkpoint.restore(default=0)
        while step < 100_000:
            step += 1
            with open(path, "a") as file:
                file.write(f"{step}\n")
            if checkpoint.should_stop():
                checkpoint.save(step)
                if step > 0 and checkpoint.restore("again", default=False):
                    return step
                checkpoint.save(True, name="again")
                checkpoint.stop()
            time.sleep(0.01)
        return step

    number = rig.submit(count, [call(str(ledger))], queue="batch")
    put(rig, number)
    grows(ledger)
    stop(rig, number)
    assert back(rig, number, 2).past[-1].reason is Reason.MIGRATED
    put(rig, number)
    grows(ledger)
    guid = stop(rig, number)  # it ends by itself while it is being stopped
    assert rig.outcomes(number, 1)[0].state is State.COMPLETED
    crossed_off(rig, guid)
    made_once(ledger)


def test_a_job_that_ignores_it_is_ended_after_its_grace_and_begins_with_what_lies_there(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(rig, "n1")
    notes = noted(monkeypatch)
    script = f"""cd "$RMGR_CHECKPOINT_DIR"; echo attempt $RMGR_ATTEMPT, $(cat kept 2>/dev/null || echo nothing) >> {tmp_path}/told
    echo "of $RMGR_ATTEMPT" > kept; trap '' TERM; while :; do sleep 0.05; done"""
    number = rig.submit(Command(argv=("sh", "-c", script)), queue="batch", rigid=Rigid(checkpoint_grace_us=300_000))
    put(rig, number)
    eventually((tmp_path / "told").exists, "it to run")
    stop(rig, number)
    data = back(rig, number, 2)
    assert "user" in [note.stopping for note in notes], "its block said that it was being stopped"
    assert data.story == ("checkpoint 1.1 stored: 1 file, 5 bytes",)
    put(rig, number)
    eventually(lambda: (tmp_path / "told").read_text().count("\n") == 2, "it to run again")
    begins(rig, number, "attempt 2 begins with checkpoint 1.1")
    stop(rig, number, kill="1", grace_us="100000")
    data = back(rig, number, 3)
    assert data.past[-1].reason is Reason.PREEMPTED
    assert saved(rig, number) == ["1.1"]  # nothing was asked or stored
    put(rig, number)
    eventually(lambda: (tmp_path / "told").read_text().count("\n") == 3, "it to run again")
    assert (tmp_path / "told").read_text().split("\n")[:3] == ["attempt 1, nothing", "attempt 2, of 1", "attempt 3, of 1"]


#: Dies of the request, as a script does whose child got the signal.
FRAGILE = """cd "$RMGR_CHECKPOINT_DIR"; trap 'exit 138' USR1; echo "of $RMGR_ATTEMPT" > kept; echo $RMGR_ATTEMPT >> $0
while :; do sleep 0.02; done"""


def test_a_job_that_dies_of_the_signal_that_asked_it_has_not_failed(rig: Rig, tmp_path: Path) -> None:
    start(rig, "n1")
    number = rig.submit(Command(argv=("sh", "-c", FRAGILE, str(tmp_path / "ledger"))), queue="batch")
    put(rig, number)
    grows(tmp_path / "ledger", 1)
    stop(rig, number)
    data = back(rig, number, 2)
    assert (data.past[-1].reason, data.past[-1].exit_code, data.failures, data.losses) == (Reason.MIGRATED, 138, 0, 0)
    put(rig, number)
    grows(tmp_path / "ledger", 1)
    save(rig, number)  # nobody asked it to end: it is lost, so that it cannot go on like this for ever
    (failed,) = eventually(lambda: rig.failed(number), "lost").values()
    assert failed.reason is Reason.WORKER_LOST
    assert saved(rig, number) == ["1.1"]


def test_with_restart_from_start_nothing_is_stored(rig: Rig, tmp_path: Path) -> None:
    start(rig, "n1")
    ledger = tmp_path / "ledger"
    rigid = Rigid(restart="start", checkpoint_grace_us=30_000_000, checkpoint_every_us=50_000)
    number = counts(rig, python(ledger), ledger, rigid=rigid)
    refused = save(rig, number)
    crossed_off(rig, refused)
    assert story(rig, number) == ("checkpoint (user) refused: its job always begins from the start (--restart-from start)",)
    stop(rig, number)
    back(rig, number, 2)
    assert rig.store.keys(keys.checkpoints_of(number)) == []
    put(rig, number)
    grows(ledger)
    assert steps(ledger).count(1) == 2


def test_periodic_checkpoints_and_one_on_request_let_the_job_go_on(rig: Rig, tmp_path: Path) -> None:
    start(rig, "n1")
    ledger = tmp_path / "ledger"
    number = rig.submit(shell(ledger), queue="batch", rigid=Rigid(checkpoint_every_us=200_000))
    put(rig, number)
    eventually(lambda: any(int(one.removeprefix("1.")) >= 3 for one in saved(rig, number)), "three by the clock")
    assert len(saved(rig, number)) <= 3  # two are kept, and a third is on its way
    once = counts(rig, shell(tmp_path / "once"), tmp_path / "once")
    crossed_off(rig, save(rig, once))
    assert story(rig, once)[0].startswith("checkpoint 1.1 stored: 1 file, ")
    grows(tmp_path / "once")
    manifest = decode_manifest(rig.store.get(Checkpoint(sub=once, index=0, attempt=1, n=1).key)[0])
    assert (manifest.nodes, [entry.path for entry in manifest.files]) == (("n1",), ["step"])


def test_a_program_that_fails_while_it_is_being_stopped_has_failed(rig: Rig, tmp_path: Path) -> None:
    start(rig, "n1")
    script = f"trap 'exit 7' USR1; touch {tmp_path}/up; while :; do sleep 0.02; done"
    number = rig.submit(Command(argv=("sh", "-c", script)), queue="batch")
    put(rig, number)
    eventually((tmp_path / "up").exists, "it to run")
    crossed_off(rig, stop(rig, number))
    outcome = rig.outcomes(number, 1)[0]
    assert (outcome.reason, outcome.exit_code) == (Reason.EXIT_CODE, 7)
    other = rig.submit(Command(argv=("sh", "-c", "exit 85")), queue="batch")  # nobody has asked
    put(rig, other)
    assert rig.outcomes(other, 1)[0].exit_code == 85


def test_what_is_too_large_may_not_stop_and_is_told_with_both_sizes(rig: Rig, tmp_path: Path) -> None:
    start(rig, "n1", checkpoint_max_bytes=1000)
    ledger = tmp_path / "ledger"
    script = f"""cd "$RMGR_CHECKPOINT_DIR"; head -c 1001 /dev/zero > large; touch {tmp_path}/up
    trap 'echo signalled >> {ledger}' USR1; while :; do sleep 0.02; done"""
    number = rig.submit(Command(argv=("sh", "-c", script)), queue="batch")
    put(rig, number)
    eventually((tmp_path / "up").exists, "it to run")
    for then, what in (("stop", "stop"), ("go-on", "checkpoint")):
        crossed_off(rig, order(rig, OrderKind.CHECKPOINT, number, 0, extra={"then": then, "why": "user"}))
        assert story(rig, number)[-1].startswith(f"{what} (user) refused: its files have 1001 bytes, at most 1000 bytes are stored")
    assert running(rig, number).stopping == ""
    assert not ledger.exists(), "it was not signalled"
    once = counts(rig, shell(tmp_path / "once"), tmp_path / "once", resubmit=False)
    crossed_off(rig, stop(rig, once))
    assert story(rig, once) == ("stop (user) refused: its job may run only once (--no-requeue)",)
    grows(tmp_path / "once")


def test_a_store_that_is_away_refuses_a_stop_and_one_that_goes_meanwhile_is_waited_for(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(rig, "n1")
    ledger = tmp_path / "ledger"
    number = counts(rig, python(ledger), ledger)
    kind = type(rig.store)
    with monkeypatch.context() as patch:
        patch.setattr(kind, "health", lambda *_, **__: "it is away")
        crossed_off(rig, stop(rig, number))
    assert story(rig, number) == ("stop (user) refused: the data store is not there: it is away",)
    grows(ledger)
    refused = []

    def away(_self: object, key: str, *_args: object, **_more: object) -> None:
        refused.append(key)
        raise StoreUnavailable("it is away")

    with monkeypatch.context() as patch:
        patch.setattr(kind, "put", away)
        stop(rig, number)
        eventually(lambda: len(refused) >= 3, "it is tried again and again")
        assert rig.pending("batch") == []
        assert running(rig, number).stopping == "user"
        eventually(lambda: running(rig, number).saving == "its files wait for the data store: it is away", "people are told why it waits")
    back(rig, number, 2)
    put(rig, number)
    goes_on(rig, ledger, number)


def test_a_store_whose_answer_is_late_once_refuses_no_stop(rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when the machine stands still while the store is asked."""
    start(rig, "n1")
    ledger = tmp_path / "ledger"
    number = counts(rig, python(ledger), ledger)
    answers = iter(["it did not write a probe within 5s"])
    monkeypatch.setattr(type(rig.store), "health", lambda *_, **__: next(answers, None))
    stop(rig, number)
    assert back(rig, number, 2).past[-1].reason is Reason.MIGRATED


def test_a_job_that_is_cancelled_while_its_files_wait_for_the_store_does_not_wait_for_it(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(rig, "n1")
    ledger = tmp_path / "ledger"
    number = counts(rig, python(ledger), ledger)
    refused = []
    put_soundly = type(rig.store).put

    def away(self: Store, key: str, *values: Any, **more: Any) -> None:
        if not key.startswith("ckpt/"):
            return put_soundly(self, key, *values, **more)
        refused.append(key)
        raise StoreUnavailable("it is away")

    monkeypatch.setattr(type(rig.store), "put", away)
    stop(rig, number)
    eventually(lambda: refused, "it waits for the store")
    order(rig, OrderKind.CANCEL, number, 0, detail="enough")
    assert rig.outcomes(number, 1)[0].state is State.CANCELLED


def test_a_newest_one_that_is_damaged_is_told_and_the_one_before_is_taken(rig: Rig, tmp_path: Path) -> None:
    start(rig, "n1")
    ledger = tmp_path / "ledger"
    number = rig.submit(python(ledger), queue="batch")
    put(rig, number)
    kept = []
    for attempt in (1, 2):
        grows(ledger)
        stop(rig, number)
        back(rig, number, attempt + 1)
        kept.append(steps(ledger)[-1])
        if attempt == 1:
            put(rig, number)
    manifest = files.read_checkpoint(rig.store, next(files.checkpoints_of(rig.store, number, 0)))
    rig.store.put(keys.checkpoint_piece(number, 0, 2, manifest.files[0].rows[0][0]), b"something else")
    put(rig, number)
    grows(ledger)
    lost, restored = begins(rig, number, "attempt 3 begins with checkpoint 1.1")[-2:]
    assert lost.startswith("checkpoint 2.1 cannot be read (DATA_LOST): the piece ")
    made = steps(ledger)
    assert made[kept[1] : kept[1] + 2] == [kept[0] + 1, kept[0] + 2], "from the one before, not from the start"
    Path(f"{ledger}.end").touch()
    outcome = rig.outcomes(number, 1)[0]
    assert outcome.story[-2:] == (lost, restored)


def test_a_job_of_two_nodes_is_one_checkpoint_whole_on_both(rig: Rig, tmp_path: Path) -> None:
    start(rig)
    ledgers = [tmp_path / "rank0", tmp_path / "rank1"]
    count = f"PYTHONPATH={ROOT} exec {shlex.quote(sys.executable)} -c {shlex.quote(PYTHON)} {tmp_path}/rank$RMGR_RANK rank$RMGR_RANK"
    rank = shlex.quote(f"ls $RMGR_CHECKPOINT_DIR >> {tmp_path}/found$RMGR_RANK; {count}")
    script = f'cp "$0" "$RMGR_CHECKPOINT_DIR/script.of.the.head"; rmgr run sh -c {rank}'
    number = rig.submit(Command(argv=("sh", "-c", script, __file__)), queue="batch", rigid=Rigid(processes=2))
    job = put(rig, number, (("n1", 1), ("n2", 1)))
    for attempt, head, other in ((1, "n1", "n2"), (2, "n2", "n1"), (3, "n1", "n2")):
        for ledger in ledgers:
            grows(ledger)
        made = 0
        # One that goes on, of both nodes; again when a rank was held up, and saved when its half second was over.
        while attempt == 2 and (not made or "the files changed while they were copied" in story(rig, number, head)[-1]):
            made += 1
            crossed_off(rig, order(rig, OrderKind.CHECKPOINT, number, 0, head, extra={"then": "go-on", "grace_us": "500000"}), head)
        assert not made or story(rig, number, head)[-1].startswith(f"checkpoint 2.{made} stored: 3 files, ")
        stop(rig, number, head)
        data = back(rig, number, attempt + 1)
        assert data.story[-1].startswith(f"checkpoint {attempt}.{made + 1} stored: 3 files, ")
        unhold(rig, job)
        eventually(lambda other=other: rig.zk.children(paths.hold(other)).result(60) == [], "the hold gone")
        job = put(rig, number, ((other, 1), (head, 1)))
    for ledger in ledgers:
        grows(ledger)
        Path(f"{ledger}.end").touch()
    assert rig.outcomes(number, 1)[0].state is State.COMPLETED
    unhold(rig, job)
    for rank, ledger in enumerate(ledgers):
        made_once(ledger)
        found = (tmp_path / f"found{rank}").read_text().split()
        assert found[-3:] == ["rank0.pickle", "rank1.pickle", "script.of.the.head"]


def test_a_job_that_has_not_started_goes_back_as_it_is(rig: Rig, tmp_path: Path) -> None:
    start(rig, "n1")
    ledger = tmp_path / "ledger"
    first = rig.submit(python(ledger), queue="batch")
    put(rig, first, (("n1", 2),))
    grows(ledger)
    second = rig.submit(Command(argv=("true",)), queue="batch")
    put(rig, second)
    eventually(lambda: len(rig.running()) == 2, "both are the node's")
    crossed_off(rig, stop(rig, second))
    assert waiting(rig, second).attempt == 1
    crossed_off(rig, stop(rig, first, grace_us="60000000"))
    back(rig, first, 2)
    assert saved(rig, first) == ["1.1"]


def test_a_starter_that_dies_before_its_last_word_has_saved_the_work(rig: Rig, tmp_path: Path) -> None:
    rig.spawn("n1", env={"RMGR_FAILPOINT": "starter.before_stop=kill"})
    rig.wait_registered()
    ledger = tmp_path / "ledger"
    number = counts(rig, python(ledger), ledger)
    stop(rig, number, block=paths.block_name(rig.running("n1")[0]))  # it outlives its Starter; the next attempt is not meant
    eventually(lambda: rig.processes[0].poll() is not None, "it was killed")
    assert saved(rig, number) == ["1.1"]
    rig.spawn("n1")
    rig.wait_registered(incarnation=2)
    (where, failed), = eventually(lambda: list(rig.failed(number).items()), "a loss")
    assert failed.reason is Reason.NODE_LOST
    rig.resubmit(number, where, failed)
    put(rig, number)
    goes_on(rig, ledger, number)


def test_a_session_that_is_lost_while_a_job_is_stopped_changes_nothing(rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process = rig.ready("n1", cores=2)
    ledger = tmp_path / "ledger"
    number = counts(rig, python(ledger), ledger)

    def away(*_args: object, **_more: object) -> None:
        raise StoreUnavailable("it is away")

    with monkeypatch.context() as patch:
        patch.setattr(type(rig.store), "put", away)
        guid = stop(rig, number)
        eventually(lambda: running(rig, number).stopping and not process.agent().lanes.free_cores < 2, "its processes are gone")
        expire(rig, process)
        rig.wait_registered(incarnation=2)
        eventually(lambda: running(rig, number).incarnation == 2, "the job is adopted")
    assert len(back(rig, number, 2).past) == 1
    crossed_off(rig, guid)
    put(rig, number)
    goes_on(rig, ledger, number)


def test_a_cancel_outranks_a_stop_and_a_call_that_ignores_it_is_ended(rig: Rig, tmp_path: Path) -> None:
    start(rig, "n1")

    def deaf(path: str) -> None:
        import time

        with open(os.path.join(os.environ["RMGR_CHECKPOINT_DIR"], "kept"), "a") as file:
            file.write("x")
        open(path, "w").close()
        while True:
            time.sleep(0.05)

    number = rig.submit(deaf, [call(str(tmp_path / "up"))], queue="batch", rigid=Rigid(checkpoint_grace_us=200_000))
    put(rig, number)
    eventually((tmp_path / "up").exists, "it to run")
    stop(rig, number)
    data = back(rig, number, 2)
    assert (data.past[-1].reason, saved(rig, number)) == (Reason.MIGRATED, ["1.1"])
    (tmp_path / "up").unlink()
    put(rig, number)
    eventually((tmp_path / "up").exists, "it to run again")
    stop(rig, number, grace_us="60000000")
    eventually(lambda: running(rig, number).stopping == "user", "it is being stopped")
    guid = order(rig, OrderKind.CANCEL, number, 0, detail="enough")
    outcome = rig.outcomes(number, 1)[0]
    assert (outcome.state, outcome.error) == (State.CANCELLED, "enough")
    crossed_off(rig, guid)
    eventually(lambda: rig.zk.children(paths.inbox_node("n1")).result(60) == [], "no order is left")


def test_where_work_runs_as_its_user_his_files_are_his_own(zookeeper: ZooKeeperServer, anna: Account) -> None:
    with open_place(mode=0o777) as directory, own_rig(zookeeper, directory) as rig:
        start(rig, as_users=True)
        script = """rmgr run sh -c 'cd "$RMGR_CHECKPOINT_DIR" && id -un > who$RMGR_RANK; ls -ld . who? > $0/$RMGR_ATTEMPT.$RMGR_RANK
            trap "exit 85" USR1; touch $0/up$RMGR_ATTEMPT.$RMGR_RANK; while :; do sleep 0.05; done' $0"""
        number = rig.submit(Command(argv=("sh", "-c", script, str(directory))), queue="batch", rigid=Rigid(processes=2), user=anna.name)
        for attempt, shares in ((1, (("n1", 1), ("n2", 1))), (2, (("n2", 1), ("n1", 1)))):
            job = put(rig, number, shares)
            for rank in (0, 1):
                eventually((directory / f"up{attempt}.{rank}").exists, f"rank {rank} to run")
            stop(rig, number, shares[0][0])
            back(rig, number, attempt + 1)
            unhold(rig, job)
            eventually(lambda node=shares[1][0]: rig.zk.children(paths.hold(node)).result(60) == [], "the hold gone")
        listed = (directory / "2.1").read_text().splitlines()
        assert len(listed) == 3, "its directory and the files of both ranks"
        assert all(line.split()[2] == anna.name for line in listed)


#: Writes what it is told; ready once its handler stands.
LISTENS = """
import pathlib, signal, sys, time
signal.signal(signal.SIGUSR1, lambda *_: pathlib.Path(sys.argv[1] + ".told").touch())
pathlib.Path(sys.argv[1]).touch()
while True: time.sleep(0.05)
"""
#: Its child is another program once it may be.
FORKS = """
import os, pathlib, signal, sys, time
signal.signal(signal.SIGUSR1, lambda *_: None)
parent, child = os.getpid(), os.fork()
if child == 0:
    while not os.path.exists(sys.argv[1] + ".exec") and os.getppid() == parent: time.sleep(0.01)
    os.execvp("sleep", ["sleep", "60"])
pathlib.Path(sys.argv[1] + ".child").write_text(f"{child}\\n")
pathlib.Path(sys.argv[1]).touch()
os.waitpid(child, 0)
"""
DEAF = LISTENS.replace('signal.signal(signal.SIGUSR1, lambda *_: pathlib.Path(sys.argv[1] + ".told").touch())', "")
IGNORES = LISTENS.replace("lambda *_:", "signal.SIG_IGN) #")


class Family:
    """Processes with the mark of one slot."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.marker = uuid.uuid4().hex
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, program: str, *, command: tuple[str, ...] = (sys.executable,), marker: str = "") -> None:
        argv = (*command, "-c", program, str(self.directory / name))
        self.processes[name] = subprocess.Popen(argv, env={**os.environ, "RMGR_SLOT": marker or self.marker})
        eventually((self.directory / name).exists, f"{name} is up")

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait(60)


@pytest.fixture
def family(tmp_path: Path) -> Iterator[Family]:
    made = Family(tmp_path)
    yield made
    made.close()


def test_only_processes_of_the_job_that_catch_the_signal_get_it(family: Family, tmp_path: Path) -> None:
    launcher = tmp_path / "mpirun"
    launcher.symlink_to(sys.executable)
    family.start("listens", LISTENS)
    family.start("deaf", DEAF)
    family.start("ignores", IGNORES)
    family.start("launcher", LISTENS, command=(str(launcher),))
    family.start("rmgr", LISTENS + "\nif 0: import rmgr.runner.ranks.client")
    family.start("other job", LISTENS, marker="another")
    told = asking.notify(family.marker, None)
    assert told == [family.processes["listens"].pid]
    eventually((tmp_path / "listens.told").exists, "it was told")
    assert asking.notify(family.marker, None, told) == []
    assert sorted(path.name for path in tmp_path.glob("*.told")) == ["listens.told"]
    assert all(process.poll() is None for process in family.processes.values()), "nobody has died of it"


def test_a_bash_that_catches_every_signal_to_clean_up_is_told_only_where_its_script_names_it(family: Family, tmp_path: Path) -> None:
    waits = "while :; do sleep 0.05; done"
    family.start("cleans", f'trap : EXIT; touch "$0"; {waits}', command=("bash",))
    family.start("reads", 'exec 9<> <(:); touch "$0"; while :; do read -rt 0.05 -u 9; done', command=("bash",))
    family.start("traps", f"""trap : EXIT; trap 'touch "$0.told"' USR1; touch "$0"; {waits}""", command=("bash",))
    script = tmp_path / "script.sh"
    script.write_text(f"""trap : EXIT; trap 'touch "$3.told"' SIGUSR1; touch "$3"; {waits}""")
    family.start("file", "", command=("bash", str(script)))
    family.start("small", f"""trap : EXIT; trap 'touch "$0.told"' usr1; touch "$0"; {waits}""", command=("bash",))
    family.start("number", f"""trap : EXIT; trap 'touch "$0.told"' {int(signal.SIGUSR1)}; touch "$0"; {waits}""", command=("bash",))
    family.start("sleeps", f"""trap 'sleep 10' EXIT; touch "$0"; {waits}""", command=("bash",))
    eventually(lambda: asking.catches(family.processes["reads"].pid, signal.SIGUSR1), "it reads with a time limit")
    names = ("traps", "file", "small", "number")
    assert {*asking.notify(family.marker, None)} == {family.processes[name].pid for name in names}
    eventually(lambda: all((tmp_path / f"{name}.told").exists() for name in names), "all were told")
    assert all(process.poll() is None for process in family.processes.values()), "nobody has died of it"


def test_a_script_of_a_megabyte_of_traps_holds_no_starter_up(family: Family, tmp_path: Path) -> None:
    """No thread of the Starter runs while the text is looked through: its length squared was an hour, and the node was lost."""
    script = tmp_path / "script.sh"
    script.write_text('trap : EXIT; touch "$3"; while :; do sleep 0.05; done; ' + "trap " * 200_000)
    family.start("traps", "", command=("bash", str(script)))
    assert asking.notify(family.marker, None) == []


def test_a_child_that_has_not_become_another_program_yet_does_not_die_of_its_parents_handler(
    family: Family, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    family.start("script", FORKS)
    child = int((tmp_path / "script.child").read_text())

    def sleep(_: float) -> None:
        (tmp_path / "script.exec").touch()
        eventually(lambda: not asking.catches(child, signal.SIGUSR1), "it runs the other program")

    monkeypatch.setattr(asking, "machine", SimpleNamespace(sleep=sleep))
    assert asking.catches(child, signal.SIGUSR1)
    assert asking.notify(family.marker, None) == [family.processes["script"].pid]
    assert psutil.Process(child).name() == "sleep"
    psutil.Process(child).kill()


def test_what_is_left_of_a_part_is_ended_and_others_are_not(family: Family) -> None:
    family.start("one", LISTENS)
    family.start("server", DEAF)
    family.start("other job", DEAF, marker="another")
    assert asking.end_all(family.marker, None, (family.processes["server"].pid,))
    assert {name: process.poll() for name, process in family.processes.items()} == {"one": -9, "server": None, "other job": None}


def test_a_request_is_whole_and_an_answer_that_makes_no_sense_is_none(tmp_path: Path) -> None:
    begun_s = time.time()
    asking.write_request(tmp_path, None, number=3, stop=True, left_us=5_500_000)
    told = json.loads((tmp_path / ".rmgr" / "request").read_text())
    assert begun_s + 5.5 <= told.pop("deadline") + 0.001 <= time.time() + 5.502
    assert told == {"number": 3, "stop": True}
    assert (tmp_path / ".rmgr" / "number").read_text() == "3\n"
    assert (tmp_path / ".rmgr" / "stop").exists()
    assert asking.answered(tmp_path, None) == 0
    (tmp_path / ".rmgr" / "saved").write_text("three")
    assert asking.answered(tmp_path, None) == 0
    (tmp_path / ".rmgr" / "saved").write_text("3\n")
    assert asking.answered(tmp_path, None) == 3
    (tmp_path / ".rmgr" / "saved").unlink()
    os.mkfifo(tmp_path / ".rmgr" / "saved")  # whoever reads it must not wait
    assert asking.answered(tmp_path, None) == 0


#: Ends whenever it is asked; the second time it answers first, and the third attempt is not asked.
ALWAYS = """cd "$RMGR_CHECKPOINT_DIR"; trap 'asked=1' USR1; asked=; echo "$(cat kept 2>/dev/null || echo nothing)" >> $0
while [ ! "$asked" ]; do sleep 0.02; [ $RMGR_ATTEMPT -lt 3 ] || exit 85; done
echo "of $RMGR_ATTEMPT" > kept
[ $RMGR_ATTEMPT = 1 ] || { cp .rmgr/number .rmgr/saved; while [ ! -e $0.end ]; do sleep 0.02; done; }; exit 85"""


def test_a_program_that_ends_with_85_when_it_may_go_on_runs_again(rig: Rig, tmp_path: Path) -> None:
    start(rig, "n1")
    told, other = tmp_path / "told", tmp_path / "other"
    number = rig.submit(Command(argv=("sh", "-c", ALWAYS, str(told))), queue="batch")
    once = rig.submit(Command(argv=("sh", "-c", ALWAYS, str(other))), queue="batch", resubmit=False)

    def ask(number: int, told: Path, lines: int) -> str:
        put(rig, number)
        eventually(lambda: told.exists() and told.read_text().count("\n") == lines, f"{lines} attempts")
        return save(rig, number)

    crossed_off(rig, ask(once, other, 1))
    assert (rig.outcomes(once, 1)[0].reason, rig.outcomes(once, 1)[0].exit_code) == (Reason.EXIT_CODE, 85), "it may run once"
    crossed_off(rig, ask(number, told, 1))
    past = back(rig, number, 2).past[-1]
    assert (past.reason, past.exit_code, "stored: 1 file" in past.error) == (Reason.MIGRATED, 85, True), past.error
    crossed_off(rig, ask(number, told, 2))
    assert saved(rig, number)[0] == "2.1"
    Path(f"{told}.end").touch()
    assert "stored: 1 file" in back(rig, number, 3).past[-1].error
    assert saved(rig, number) == ["2.2", "2.1"]
    put(rig, number)
    assert rig.outcomes(number, 1)[0].exit_code == 85, "nobody has asked the third attempt"
    assert told.read_text().split("\n")[:3] == ["nothing", "of 1", "of 2"]


#: Its first step takes as long as the test wants; saves when it is asked to, between two steps, and stops where it is still to stop.
SLOW = """cd "$RMGR_CHECKPOINT_DIR"; asked=; trap 'asked=1' USR1; end=$0.end
while [ ! -e $end ]; do
    echo begins >> $0; while [ ! -e $0.go ]; do sleep 0.05; done; sleep 0.1
    if [ "$asked" ]; then asked=; echo kept > kept; cp .rmgr/number .rmgr/saved; echo saved >> $0; [ ! -e .rmgr/stop ] || exit 85; fi
done"""


def test_one_that_a_policy_would_move_goes_on_when_it_does_not_answer_in_its_grace(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it answers later: the request does not ask it to stop any more."""
    start(rig, "n1")
    notes = noted(monkeypatch)
    told = tmp_path / "told"
    rigid = Rigid(checkpoint=True, checkpoint_grace_us=1_000_000)
    number = rig.submit(Command(argv=("sh", "-c", SLOW, str(told))), queue="batch", rigid=rigid)
    put(rig, number)
    eventually(told.exists, "it to run")
    guid = order(rig, OrderKind.CHECKPOINT, number, 0, extra={"then": "stop", "why": "policy", "unsaved": "go-on"})
    crossed_off(rig, guid)
    assert any("has until" in note.saving for note in notes), "its block said that it was asked, and until when"
    data = running(rig, number)
    assert data.story == ("stop (policy) refused: it has not saved its state within 1s",)
    assert (data.stopping, data.saving, data.answered, data.moves) == ("", "", False, 0)
    Path(f"{told}.go").touch()
    eventually(lambda: "saved" in told.read_text(), "its late answer")
    lines = told.read_text().count("begins")
    eventually(lambda: told.read_text().count("begins") > lines, "it to go on behind it")
    assert running(rig, number).allocation is not None
    guid = order(rig, OrderKind.CHECKPOINT, number, 0, extra={"then": "go-on", "why": "user", "grace_us": "30000000"})
    crossed_off(rig, guid)
    assert running(rig, number).answered, "it has answered: so it saves"
    order(rig, OrderKind.CHECKPOINT, number, 0, extra={"then": "stop", "why": "policy", "unsaved": "go-on", "grace_us": "30000000"})
    data = back(rig, number, 2)
    assert (data.past[-1].reason, data.answered, data.moves, data.saving) == (Reason.MIGRATED, True, 1, "")
    put(rig, number)
    eventually(lambda: running(rig, number).moves == 1, "what was counted is there")
    Path(f"{told}.end").touch()
    assert rig.outcomes(number, 1)[0].state is State.COMPLETED


def test_what_has_begun_is_not_taken_back_and_what_has_not_is(rig: Rig, tmp_path: Path) -> None:
    start(rig, "n1")
    told = tmp_path / "told"
    first = rig.submit(Command(argv=("sh", "-c", SLOW, str(told))), queue="batch", rigid=Rigid(processes=2))
    second = rig.submit(Command(argv=("true",)), queue="batch")
    put(rig, first, (("n1", 2),))
    eventually(told.exists, "it to run")
    put(rig, second)  # no core is free
    extra = {"then": "stop", "why": "policy", "unsaved": "go-on", "unbegun": "1"}
    crossed_off(rig, order(rig, OrderKind.CHECKPOINT, first, 0, extra=extra))
    assert running(rig, first).stopping == ""
    crossed_off(rig, order(rig, OrderKind.CHECKPOINT, second, 0, extra=extra))
    assert back(rig, second, 1).past == ()
    Path(f"{told}.end").touch()
    Path(f"{told}.go").touch()
    assert rig.outcomes(first, 1)[0].state is State.COMPLETED
    put(rig, second)
    assert rig.outcomes(second, 1)[0].state is State.COMPLETED


def test_a_forged_checkpoint_is_refused_and_the_job_goes_on_from_the_sealed_one(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mallory can write the data store; the Starter has its key, and the cluster's certificates lie in ZooKeeper."""
    bundles = session_bundles()
    mine, mallory = bundles.credentials(Role.STARTER, "n1"), bundles.credentials(Role.USER, "mallory")
    for credentials in (mine, mallory):
        publish(rig.zk, credentials)
    trust = Trust(ZooKeeperKeys(rig.zk), bundles.ca.cert_pem)
    seals = StarterSeals(mine, trust, cluster_id="c")
    monkeypatch.setattr(starter_node, "seals_of", lambda *_: seals)
    start(rig, "n1")
    ledger = tmp_path / "ledger"
    number = counts(rig, python(ledger), ledger)
    stop(rig, number)
    back(rig, number, 2)
    kept = steps(ledger)[-1]
    true = files.read_checkpoint(rig.store, next(files.checkpoints_of(rig.store, number, 0)), seals)
    evil = pickle.dumps(100_000)
    digest = hashlib.sha256(evil).hexdigest()
    rig.store.put(keys.checkpoint_piece(number, 0, 1, digest), evil)
    entry = msgspec.structs.replace(true.files[0], size=len(evil), sha256=digest, rows=((digest, 0, len(evil)),))
    forged = msgspec.structs.replace(true, n=2, files=(entry,), size_bytes=len(evil))
    files.write_checkpoint(rig.store, forged)
    files.write_checkpoint(rig.store, StarterSeals(mallory, trust, cluster_id="c").seal(msgspec.structs.replace(forged, n=3)))
    put(rig, number)
    grows(ledger)
    *refused, _ = begins(rig, number, "attempt 2 begins with checkpoint 1.1")[-3:]
    assert refused[0].startswith("checkpoint 1.3 is refused (UNTRUSTED): it was sealed by user mallory")
    assert refused[1].startswith("checkpoint 1.2 is refused (UNTRUSTED): it is not what Starter n1 has sealed")
    assert steps(ledger)[kept] == kept + 1
    Path(f"{ledger}.end").touch()
    assert rig.outcomes(number, 1)[0].state is State.COMPLETED
