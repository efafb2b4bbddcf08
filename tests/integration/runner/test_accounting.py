"""Tasks recalled, stopped, killed or blocked in any order are each accounted for once, and run at most once.

The tasks write a ledger outside rmgr; what the node says of each task must agree with it.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path

import cloudpickle
import pytest

from rmgr.adapters.host.process import Worker
from rmgr.adapters.host.workevents import TasksReturned, WorkerBlocked, WorkerEnded, WorkerUnblocking
from rmgr.model.frames import BatchShape
from rmgr.model.states import Reason
from tests.harness.work_node import DEADLINE_S, WorkNode

cloudpickle.register_pickle_by_value(sys.modules[__name__])
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="nodes run Linux")
TASKS = 600


def _task(ledger: str, number: int, nap_s: float, blocks: bool) -> int:
    with open(ledger, "a") as file:
        file.write(f"{number}\n")
    if blocks:
        from rmgr.runner.current import blocking

        with blocking():
            time.sleep(nap_s)
    elif nap_s:
        time.sleep(nap_s)
    return number


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_every_task_is_accounted_for_once_and_runs_at_most_once(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    ledger = tmp_path / "ledger"
    ledger.touch()
    with WorkNode(tmp_path / "run") as node:
        slot = node.slot(0)
        workers: list[Worker] = [node.worker(slot) for _ in range(2)]
        number_of: dict[int, int] = {}  # seq -> task
        fate: dict[int, str] = {}  # seq -> what became of this attempt
        todo = list(range(TASKS))
        done: set[int] = set()
        deadline = time.monotonic() + 3 * DEADLINE_S

        def settle(seq: int, what: str) -> None:
            assert seq not in fate, f"{seq} is {fate.get(seq)} and {what}"
            fate[seq] = what
            if what == "returned":
                todo.append(number_of[seq])

        while len(done) + sum(what == "lost" for what in fate.values()) < TASKS:
            assert time.monotonic() < deadline, Counter(fate.values())
            for worker in workers:
                if worker.load < 20 and todo:
                    chosen = [todo.pop(rng.randrange(len(todo))) for _ in range(min(len(todo), rng.choice([1, 3, 40])))]
                    calls = [(str(ledger), n, rng.choice([0, 0, 0, 0, 0.001, 0.01]), rng.random() < 0.02) for n in chosen]
                    batch = node.batch(_task, *calls, shape=BatchShape(submission=1))
                    number_of.update({item.seq: n for item, n in zip(batch.items, chosen, strict=True)})
                    if not worker.send(batch):
                        todo += chosen
                        for item in batch.items:
                            del number_of[item.seq]
            match rng.randrange(12):
                case 0 | 1:
                    rng.choice(workers).recall(keep=rng.choice([0, 0, 1, 5]))
                case 2:
                    victim = rng.choice(workers)
                    if sent := tuple(victim._outstanding):
                        victim.stop(rng.choice(sent), grace_us=rng.choice([0, 200_000]))
                case 3 if rng.random() < 0.3 and (victim := rng.choice(workers)).pid:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(victim.pid, signal.SIGKILL)
            event = node.next(time.monotonic() + 0.002)
            for end in list(node.ends.values()):
                reason = end.extra.reason if end.extra else Reason.NONE
                assert reason in {Reason.NONE, Reason.USER_CANCEL}, end
                settle(end.seq, "done" if reason is Reason.NONE else "lost")
                if reason is Reason.NONE:
                    done.add(number_of[end.seq])
            node.ends.clear()
            match event:
                case TasksReturned():
                    for seq in event.seqs:
                        settle(seq, "returned")
                case WorkerEnded():
                    if event.seq:
                        settle(event.seq, "lost")
                    for seq in event.unstarted:
                        settle(seq, "returned")
                    workers.remove(event.worker)
                    workers.append(slot.start_worker(event.worker.spec))
                case WorkerUnblocking():
                    event.worker.grant(event.seq)
                case WorkerBlocked() | None | _:
                    pass
        ran = Counter(int(line) for line in ledger.read_text().split())
        assert {n: c for n, c in ran.items() if c > 1} == {}
        assert done <= set(ran)
        assert len(done) > TASKS // 2
        assert set(number_of) == set(fate)
