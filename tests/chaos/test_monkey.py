"""Row 40 of the fault matrix: random faults on real processes, and all invariants at the end.

RMGR_MONKEY_S=600 goes on for longer, RMGR_MONKEY_SEED=7 makes other moves. The seed names the moves; when they fall is up to the machine.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable

import pytest
from breakable import Chaos, T

from rmgr.model.states import State
from tests.harness.waiting import eventually

pytestmark = pytest.mark.chaos

SECONDS = float(os.environ.get("RMGR_MONKEY_S", "25"))
SEED = int(os.environ.get("RMGR_MONKEY_SEED", "1"))
NODES, CORES = ("n1", "n2", "n3"), 2
#: Of one kind: enough that nodes always have work, and that what is left at the end takes some seconds.
MOST_OPEN = 60


class Monkey:
    """Breaks, mends and submits. told: what it did, for whoever looks for the cause."""

    def __init__(self, chaos: Chaos, seed: int) -> None:
        self.chaos = chaos
        self.watchdogs = chaos.watchdogs()
        self.random = random.Random(seed)
        self.began_s = time.monotonic()
        self.told: list[str] = []
        self.due: list[tuple[float, str, Callable[[], object]]] = []  #: (monotonic time, words, what mends)
        self.hurt: set[str] = set()  #: paused or dead, until it is mended
        self.cancelled: set[int] = set()
        self.once: set[int] = set()
        self.drained: set[str] = set()

    # -- moves

    def move(self) -> None:
        """Mends what is due, then does something."""
        for at_s, words, mend in sorted(self.due, key=lambda one: one[0]):
            if at_s <= time.monotonic():
                self.due.remove((at_s, words, mend))
                self.tell(words)
                mend()
        moves = (
            *((self.kill, 3), (self.pause, 3), (self.leave, 1), (self.zookeeper, 1)),
            *((self.submit, 6), (self.drain, 1), (self.gate, 1), (self.cancel, 1)),
        )
        self.random.choices([move for move, _ in moves], [weight for _, weight in moves])[0]()

    def tell(self, words: str) -> None:
        self.told.append(f"{time.monotonic() - self.began_s:7.2f} {words}")

    def later(self, seconds: float, words: str, mend: Callable[[], object]) -> None:
        self.due.append((time.monotonic() + seconds, words, mend))

    def victim(self, *, most: int = 2) -> str:
        """A process that is well, as long as not too many are hurt; else ""."""
        well = [name for name in (*NODES, *self.watchdogs) if name not in self.hurt]
        return self.random.choice(well) if len(self.hurt) < most else ""

    def kill(self) -> None:
        if name := self.victim():
            self.hurt.add(name)
            self.tell(f"kill -9 {name}")
            self.chaos.cluster.kill(name)
            self.later(self.random.choice((0.0, 0.5, 2.0, 2 * T)), f"start {name}", lambda: self.start(name))

    def leave(self) -> None:
        """In good order: what it has begun is ended, or given back."""
        if name := self.victim():
            self.hurt.add(name)
            self.tell(f"kill -15 {name}")
            self.chaos.cluster.kill(name, signal.SIGTERM)
            self.later(self.random.choice((1.0, 2 * T)), f"start {name}", lambda: self.start(name))

    def pause(self) -> None:
        if name := self.victim():
            self.hurt.add(name)
            self.tell(f"kill -STOP {name}")
            self.chaos.cluster.kill(name, signal.SIGSTOP)
            self.later(self.random.choice((0.2, 1.0, T, 2 * T)), f"kill -CONT {name}", lambda: self.resume(name))

    def zookeeper(self) -> None:
        server = self.chaos.cluster.zookeeper
        if self.random.random() < 0.5:
            seconds = self.random.choice((0.3, 1.0, T))
            self.tell(f"ZooKeeper is silent for {seconds} s")
            server.pause()
            time.sleep(seconds)
            server.resume()
        else:
            self.tell("ZooKeeper is killed, and starts again")
            server.restart()

    def submit(self) -> None:
        chaos = self.chaos
        if sum(not view.state.is_final for number in chaos.submissions for view in chaos.tasks(number)) > MOST_OPEN:
            return
        kind = self.random.choice(("short", "long", "once", "broad", "placed", "wide"))
        match kind:
            case "short":
                number = chaos.submit(self.random.randint(1, 30), 0.1)
            case "long":
                number = chaos.submit(self.random.randint(1, 4), 2.0)
            case "once":
                number = chaos.submit(self.random.randint(1, 6), 0.5, "--no-resubmit")
                self.once.add(number)
            case "broad":
                number = chaos.submit(self.random.randint(2, 8), 0.3, "-c", "2")
            case "placed":
                number = chaos.submit(1, 1.0, "-q", "batch", "-t", "1m")
            case _:
                number = chaos.submit_job(self.random.randint(2, 4), 1.0, "-q", "batch", "-t", "1m")
        self.tell(f"submission {number}: {kind}")

    def drain(self) -> None:
        name = self.random.choice(NODES)
        self.tell(f"drain {name}")
        self.command("drain", name, "--reason", "the monkey")
        self.drained.add(name)
        self.later(self.random.choice((0.5, 4.0)), f"resume {name}", lambda: self.let(name))

    def let(self, name: str) -> None:
        if name in self.drained:
            self.drained.discard(name)
            self.command("resume", name)

    def gate(self) -> None:
        if number := self.open_one():
            self.tell(f"hold {number}")
            self.command("hold", str(number))
            self.later(self.random.choice((0.2, 2.0)), f"release {number}", lambda: self.command("release", str(number)))

    def cancel(self) -> None:
        if number := self.open_one():
            self.tell(f"cancel {number}")
            self.cancelled.add(number)
            self.command("cancel", str(number))

    # -- parts

    def open_one(self) -> int:
        left = [number for number in self.chaos.submissions if any(not view.state.is_final for view in self.chaos.tasks(number))]
        return self.random.choice(left) if left else 0

    def command(self, *words: str) -> None:
        """It may have ended meanwhile, or nobody leads: then the user is told so. No command crashes."""
        done = self.chaos.rmgr(*words)
        assert done.returncode in {0, 1, 3, 4, 5, 6}, (words, done)
        assert "Traceback" not in done.stderr, (words, done)
        if done.returncode:
            self.tell(f"{' '.join(words)}: {done.stderr.strip()[:200]}")

    def start(self, name: str) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.chaos.cluster.kill(name)  # one that is still leaving
        if name in self.watchdogs:
            self.chaos.cluster.start_watchdog(name)
        else:
            self.chaos.add_node(name, cores=CORES)
        self.hurt.discard(name)

    def resume(self, name: str) -> None:
        self.chaos.cluster.kill(name, signal.SIGCONT)
        self.hurt.discard(name)

    def mend(self) -> None:
        """Everything is as it should be, and goes on alone."""
        for at_s, words, mend in sorted(self.due, key=lambda one: one[0]):
            self.due.remove((at_s, words, mend))
            self.tell(words)
            mend()
        for number in self.chaos.submissions:
            self.command("release", str(number))
        eventually(self.chaos.leader, "somebody leads")
        for name in NODES:
            self.command("resume", name)
        eventually(lambda: set(NODES) <= self.chaos.up(), "the nodes are up")


def test_no_monkey_makes_the_cluster_lose_or_double_a_task(brief: Chaos) -> None:
    # A stop, or a silence of ZooKeeper, may outlast a session or not.
    brief.add_node("n3", cores=CORES)
    eventually(lambda: set(NODES) == brief.up(), "all nodes are up")
    monkey = Monkey(brief, SEED)
    try:
        while time.monotonic() < monkey.began_s + SECONDS:
            monkey.move()
            time.sleep(monkey.random.uniform(0.0, 0.6))
        monkey.mend()
        tasks = brief.finish()
    except BaseException:
        print("\n".join(monkey.told))
        raise
    for task, view in tasks.items():
        if view.submission in monkey.once:
            assert len([span for span in brief.spans(view.submission) if span.task == task]) <= 1, f"{task} began twice"
        if view.submission not in monkey.cancelled | monkey.once:
            assert view.state is State.COMPLETED, (task, view.state, view.reason, view.attempt)
    assert len(tasks) == brief.acknowledged > 0
