"""The turner stops and continues real processes at the ordered boundaries, by control groups and by signals."""

from __future__ import annotations

import contextlib
import errno
import os
import queue
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from rmgr.adapters.host import leftovers
from rmgr.adapters.host.process import CgroupConfig, NodeRunner, freezer_of
from rmgr.adapters.host.slot import Slot
from rmgr.adapters.host.workevents import CommandsEnded, NodeEvent, PartBegan, PartsServed, PartStubborn, TurnerRestarted
from rmgr.errors import ConfigError
from rmgr.model.frames import BatchShape, CommandBatch, CommandItem
from rmgr.model.node import Freezer
from rmgr.runner.host import contain
from rmgr.runner.host.contain import below, state_of
from rmgr.runtime import machine
from tests.harness import gang_ledger, stamping
from tests.harness.fair_time import FairTimer
from tests.harness.gang_ledger import Stretch
from tests.harness.waiting import eventually

MS = 1_000_000
SLOT_NS = 60 * MS
METHODS = tuple(Freezer)


def now_ns() -> int:
    return machine.boottime_ns()


class Bench:
    """A node with two slots or more, whose work stamps a ledger."""

    def __init__(self, directory: Path, freezer: Freezer) -> None:
        self.events: queue.SimpleQueue[list[NodeEvent]] = queue.SimpleQueue()
        self.seen: list[NodeEvent] = []
        self.ledger = directory / "ledger"
        self.ledger.mkdir()
        self.runner = NodeRunner(
            directory=str(directory / "run"), node="n1", on_events=self.events.put, cgroups=CgroupConfig(), freezer=freezer.value
        )
        self.slots: dict[str, Slot] = {}
        self.uses_groups = freezer is Freezer.V2

    def add(self, part: str, *argv: str, spins: bool = False) -> None:
        """A part that stamps for ever, or runs this. spins: without a pause between its stamps."""
        slot = self.slots[part] = self.runner.open_slot(len(self.slots))
        self.runner.turner.add(part, slot)
        shape = BatchShape(submission=len(self.slots), environ={"RMGR_NODE": "n1"})
        item = CommandItem(seq=self.runner.next_seq(), index=0)
        pauses = () if spins else (str(self.ledger.with_name("never")),)
        told = argv or (sys.executable, "-S", stamping.__file__, str(self.ledger), "1000", *pauses)
        slot.run(CommandBatch(shape=shape, argv=told, isolate=True, halts=not self.uses_groups, items=(item,)))

    def add_both(self) -> None:
        self.add("a")
        self.add("b")

    def has_turn(self, part: str) -> None:
        """It has one from now on, and has run."""
        self.runner.turner.rows(((now_ns(), (part,)),))
        eventually(self.has_run(part, times=1))

    def lose_turner(self) -> None:
        """It is killed, and another one is there."""
        os.kill(self.runner.turner.pid, signal.SIGKILL)
        eventually(lambda: any(isinstance(event, TurnerRestarted) for event in self.take()))

    def turns(self, *parts: str, count: int = 400) -> None:
        """They take turns from now on."""
        start = now_ns() + 50 * MS
        self.runner.turner.rows(tuple((start + at * SLOT_NS, (parts[at % len(parts)],)) for at in range(count)))

    def take(self) -> list[NodeEvent]:
        while not self.events.empty():
            self.seen += self.events.get()
        return self.seen

    def stretches(self, part: str) -> list[Stretch]:
        job = str(list(self.slots).index(part) + 1)
        return [one for one in gang_ledger.stretches(self.ledger) if one.job == job]

    def processes(self, part: str) -> list[int]:
        return below(self.slots[part].pid)

    def stands(self, part: str) -> bool:
        """Whether none of its processes can run."""
        if self.uses_groups:
            return "frozen 1" in Path(self.slots[part].freeze_file).with_name("cgroup.events").read_text()
        return all(state_of(pid) in "Tt" for pid in self.processes(part))

    def has_run(self, *parts: str, times: int = 3) -> Callable[[], bool]:
        return lambda: all(len(self.stretches(part)) >= times for part in parts)

    def served(self) -> dict[str, tuple[int, int]]:
        told = [event for event in self.take() if isinstance(event, PartsServed)]
        return {name: (ns, turns) for event in told for name, ns, turns, _ in event.parts}


@pytest.fixture(params=METHODS, ids=lambda method: method.value)
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    try:
        made = Bench(tmp_path, request.param)
    except ConfigError:
        pytest.skip("no control group of version 2 may be made here: the other method is tried")
    pids: list[int] = []
    yield made
    pids += [pid for part in made.slots for pid in made.processes(part)]
    made.runner.close()
    eventually(lambda: not any(psutil.pid_exists(pid) and state_of(pid) not in "ZX" for pid in pids))


def test_two_parts_take_turns_and_never_run_together(bench: Bench) -> None:
    with FairTimer() as timer:
        bench.add_both()
        bench.turns("a", "b")
        eventually(bench.has_run("a", "b", times=8))
        found = bench.stretches("a") + bench.stretches("b")
        assert not gang_ledger.overlaps(found)
        eventually(lambda: bench.served().get("a", (0, 0))[1] >= 4)
        ns, turns = bench.served()["a"]
    assert ns <= turns * 3 * SLOT_NS + timer.withheld_s * 1e9, "a turner that stands still itself counts on"
    assert {event.part for event in bench.take() if isinstance(event, PartBegan)} == {"a", "b"}


def test_a_part_stands_still_until_its_first_turn(bench: Bench) -> None:
    bench.add("a")
    eventually(lambda: bench.slots["a"].is_up)
    time.sleep(0.4)
    assert not any(isinstance(event, PartBegan) for event in bench.take())
    bench.runner.turner.rows(((now_ns(), ("a",)),))
    eventually(lambda: any(isinstance(event, PartBegan) for event in bench.take()))
    eventually(bench.has_run("a", times=1))


def test_what_is_started_out_of_turn_runs_nothing_until_then(bench: Bench, tmp_path: Path) -> None:
    bench.add("a")
    bench.has_turn("a")
    bench.add("b", "/bin/sh", "-c", f"touch {tmp_path}/began; exec sleep 60")
    eventually(lambda: bench.processes("b"))
    time.sleep(0.2)
    assert not (tmp_path / "began").exists()
    bench.runner.turner.rows(((now_ns(), ("b",)),))
    eventually((tmp_path / "began").exists)


def test_what_is_started_before_the_turner_hears_of_it_runs_nothing_until_its_turn(bench: Bench) -> None:
    bench.add("a")
    bench.has_turn("a")
    os.kill(bench.runner.turner.pid, signal.SIGSTOP)
    try:
        bench.add("b")
        eventually(lambda: bench.processes("b") and bench.stands("b"))
    finally:
        os.kill(bench.runner.turner.pid, signal.SIGCONT)
    bench.has_turn("b")
    assert not gang_ledger.overlaps(bench.stretches("a") + bench.stretches("b"))


def test_the_last_row_stands_until_others_come(bench: Bench) -> None:
    bench.add("a")
    bench.has_turn("a")
    before = bench.stretches("a")[-1].end
    eventually(lambda: bench.stretches("a")[-1].end > before + 300 * MS)


def test_who_is_let_go_runs_out_of_turn_until_then(bench: Bench) -> None:
    bench.add_both()
    bench.has_turn("a")
    bench.runner.turner.let_go("b", now_ns() + 60_000 * MS)
    eventually(bench.has_run("b", times=1))
    before = bench.stretches("b")[-1].end
    eventually(lambda: bench.stretches("b")[-1].end > before + 200 * MS)
    bench.runner.turner.let_go("b", 0)
    stopped(bench, "b")


def stopped(bench: Bench, part: str) -> None:
    """Its stamps do not grow any more."""

    def stands() -> bool:
        before = bench.stretches(part)[-1].end
        time.sleep(0.25)
        return bench.stretches(part)[-1].end == before

    eventually(stands)


def test_who_is_held_has_idle_turns(bench: Bench) -> None:
    bench.add_both()
    bench.turns("a", "b", count=2000)
    eventually(bench.has_run("a", "b"))
    bench.runner.turner.hold("a", on=True)
    stopped(bench, "a")
    bench.runner.turner.hold("a", on=False)
    count = len(bench.stretches("a"))
    eventually(lambda: len(bench.stretches("a")) > count + 1)


def test_a_turner_that_is_killed_is_followed_by_another_one(bench: Bench) -> None:
    bench.add_both()
    bench.turns("a", "b", count=2000)
    eventually(bench.has_run("a", "b"))
    dead = bench.runner.turner.pid
    bench.lose_turner()
    assert bench.runner.turner.pid != dead
    since = now_ns()
    eventually(lambda: all(len([one for one in bench.stretches(part) if one.start > since]) >= 4 for part in "ab"))
    assert not gang_ledger.overlaps(one for part in "ab" for one in bench.stretches(part) if one.start > since + SLOT_NS)
    assert bench.runner.turner.restarts == 1


def test_parts_take_turns_after_one_could_not_be_added(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    slot = bench.runner.open_slot(0)
    with monkeypatch.context() as disk:
        disk.setattr(leftovers, "record_spawner", full)
        with pytest.raises(OSError, match="No space left"):
            bench.runner.turner.add("early", slot)
    slot.close()
    bench.add("a")
    bench.turns("a")
    eventually(bench.has_run("a", times=1))


def test_what_ran_on_without_a_turner_stands_still_before_others_go_on(bench: Bench) -> None:
    bench.add_both()
    bench.has_turn("a")
    eventually(lambda: bench.processes("b"))
    os.kill(bench.runner.turner.pid, signal.SIGKILL)
    bench.has_turn("b")
    stopped(bench, "a")
    assert not gang_ledger.overlaps(bench.stretches("a") + bench.stretches("b"))


def test_what_was_counted_stays_counted_when_a_turner_dies(bench: Bench) -> None:
    bench.add_both()
    bench.turns("a", "b", count=2000)
    eventually(lambda: bench.served().get("a", (0, 0))[1] >= 6)
    bench.lose_turner()
    count = len(bench.seen)
    eventually(lambda: any(isinstance(event, PartsServed) for event in bench.take()[count:]))
    told = [event for event in bench.take() if isinstance(event, PartsServed)]
    assert [event.switches for event in told] == sorted(event.switches for event in told)
    of_a = [(ns, turns) for event in told for name, ns, turns, _ in event.parts if name == "a"]
    assert of_a == sorted(of_a)
    assert all(ns >= 0 for ns, _ in of_a)


def test_who_is_let_go_or_held_stays_so_when_a_turner_dies(bench: Bench) -> None:
    for part in "abc":
        bench.add(part)
    bench.runner.turner.rows(((now_ns(), ("a", "c")),))
    eventually(bench.has_run("a", "c", times=1))
    bench.runner.turner.let_go("b", now_ns() + 600_000 * MS)
    bench.runner.turner.hold("c", on=True)
    stopped(bench, "c")
    bench.lose_turner()
    since = now_ns()
    eventually(lambda: all((found := bench.stretches(part)) and found[-1].end > since + 300 * MS for part in "ab"))
    stopped(bench, "c")
    assert bench.stretches("c")[-1].end < since


def test_who_computes_on_is_killed_and_the_next_goes_on(tmp_path: Path) -> None:
    """Somebody outside continues him at once, again and again."""
    bench = Bench(tmp_path, Freezer.SIGNALS)
    helper = None
    try:
        bench.add("a", spins=True)
        bench.add("b")
        bench.has_turn("a")
        helper = psutil.Popen([sys.executable, "-c", gang_ledger.CONTINUE, *map(str, bench.processes("a"))], stderr=-3)
        eventually(lambda: helper.poll() is not None or os.sched_getscheduler(helper.pid) == os.SCHED_RR)
        if helper.poll() is not None:
            pytest.skip("no process may go before others here")
        # He is found standing still where the helper is late by chance: then his next turn ends as well.
        start = now_ns()
        bench.runner.turner.rows(tuple((start + at * 1_500 * MS, ("ba"[at % 2],)) for at in range(80)))
        eventually(lambda: PartStubborn("a", killed=True) in bench.take())
        eventually(bench.has_run("b", times=1))
        assert bench.slots["a"].is_up, "his spawner tells of his end"
        eventually(lambda: any(isinstance(event, CommandsEnded) and event.slot is bench.slots["a"] for event in bench.take()))
        seen = [type(event) for event in bench.take() if not isinstance(event, CommandsEnded) or event.slot is bench.slots["a"]]
        assert seen.index(PartStubborn) < seen.index(CommandsEnded), "who hears of the end knows why"
    finally:
        if helper is not None:
            helper.kill()
            helper.wait(60)
        bench.runner.close()


def test_who_sleeps_too_deeply_is_left_and_stopped_when_he_wakes(bench: Bench) -> None:
    """A process that version 1's freezer holds is in state D, as one that waits for a file server is."""
    place = Path("/sys/fs/cgroup/freezer") / f"rmgr-test-{os.getpid()}"
    try:
        place.mkdir()
    except OSError:
        pytest.skip("no freezer of version 1 may be used here, which holds a process in state D")
    try:
        bench.add_both()
        bench.has_turn("a")
        for pid in bench.processes("a"):
            (place / "cgroup.procs").write_text(str(pid))
        (place / "freezer.state").write_text("FROZEN")
        eventually(lambda: "FROZEN" in (place / "freezer.state").read_text())
        bench.runner.turner.rows(((now_ns(), ("b",)),))
        eventually(lambda: PartStubborn("a", killed=False) in bench.take())
        eventually(bench.has_run("b", times=1))
        bench.turns("a", "b", count=2000)
        turns = bench.served().get("b", (0, 0))[1]
        eventually(lambda: bench.served().get("b", (0, 0))[1] > turns + 5)
        assert bench.take().count(PartStubborn("a", killed=False)) == 1, "a second is given to it once"
        bench.runner.turner.rows(((now_ns(), ("b",)),))
        before = bench.stretches("b")[-1].end
        eventually(lambda: bench.stretches("b")[-1].end > before + 300 * MS)
        (place / "freezer.state").write_text("THAWED")
        stopped(bench, "a")
        assert bench.processes("a")
        bench.runner.turner.rows(((now_ns(), ("a",)),))
        before = bench.stretches("a")[-1].end
        eventually(lambda: bench.stretches("a")[-1].end > before + 100 * MS)
    finally:
        (place / "freezer.state").write_text("THAWED")
        bench.runner.close()
        eventually(lambda: not (place / "cgroup.procs").read_text())
        place.rmdir()


def test_who_forks_for_ever_is_stopped_with_all_his_processes(bench: Bench) -> None:
    born = "  if not os.fork(): time.sleep(0.01); os._exit(0)\n"
    fork = f"import os, time\nwhile True:\n{born}  os.waitpid(-1, os.WNOHANG)\n  time.sleep(0.001)"
    bench.add("a", sys.executable, "-c", fork)
    bench.add("b")
    bench.turns("a", "b", count=2000)
    eventually(bench.has_run("b", times=4))
    bench.runner.turner.rows(((now_ns(), ("b",)),))

    def all_stand() -> bool:
        states = [state_of(pid) for pid in bench.processes("a")]
        return bool(states) and (bench.slots["a"].freeze_file != "" or all(state in "TtZX" for state in states))

    eventually(all_stand)
    assert bench.slots["b"].is_up


def test_what_a_process_of_its_user_continues_is_stopped_again(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Freezer.SIGNALS)
    try:
        bench.add_both()
        bench.turns("a", "b", count=2000)
        eventually(bench.has_run("a", "b"))
        bench.runner.turner.rows(((now_ns(), ("b",)),))
        stopped(bench, "a")
        for pid in bench.processes("a"):
            os.kill(pid, signal.SIGCONT)
        stopped(bench, "a")
        eventually(lambda: any(event.late for event in bench.take() if isinstance(event, PartsServed)))
    finally:
        bench.runner.close()


def test_a_part_that_is_over_leaves_nothing_stopped(bench: Bench) -> None:
    bench.add_both()
    bench.has_turn("b")
    slot = bench.slots["a"]
    slot.stop(1, grace_us=0)
    eventually(lambda: any(isinstance(event, CommandsEnded) and event.slot is slot for event in bench.take()))
    bench.runner.turner.drop("a")
    bench.runner.turner.rows(((now_ns(), ("a", "b")),))
    eventually(lambda: not bench.processes("a"))


def test_it_goes_on_while_its_starter_stands_still_and_kills_all_when_that_dies(tmp_path: Path) -> None:
    """The Starter is a process of its own here: SIGSTOP, then SIGKILL."""
    program = f"""
import sys, time
sys.path.insert(0, {str(Path(gang_ledger.__file__).parents[2])!r})
from pathlib import Path
from tests.unit.runner.test_turner import Bench, Freezer
bench = Bench(Path({str(tmp_path)!r}), Freezer.SIGNALS)
bench.add("a"); bench.add("b")
bench.turns("a", "b", count=2000)
print(*(slot.pid for slot in bench.slots.values()), flush=True)
time.sleep(600)
"""
    starter = psutil.Popen([sys.executable, "-c", program], stdout=-1, text=True)
    try:
        spawners = [int(word) for word in starter.stdout.readline().split()]
        ledger = tmp_path / "ledger"
        eventually(lambda: len(gang_ledger.stretches(ledger)) > 8)
        work = [pid for spawner in spawners for pid in below(spawner)]
        os.kill(starter.pid, signal.SIGSTOP)
        since = now_ns()
        eventually(lambda: len([one for one in gang_ledger.stretches(ledger) if one.start > since]) > 8)
        assert not gang_ledger.overlaps(one for one in gang_ledger.stretches(ledger) if one.start > since + SLOT_NS)
    finally:
        starter.kill()
        starter.wait(60)
    eventually(lambda: not any(psutil.pid_exists(pid) and state_of(pid) not in "ZX" for pid in (*work, *spawners)))


# -- what stands still ---------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def program(text: str) -> Iterator[int]:
    """A Python program that has printed a line."""
    process = psutil.Popen([sys.executable, "-c", text], stdout=-1, text=True, start_new_session=True)
    try:
        assert process.stdout.readline()
        yield process.pid
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(60)


def test_a_process_whose_first_thread_has_ended_stands_still_when_the_others_do() -> None:
    text = "import ctypes, threading\ndef spin():\n  while True: pass\nthreading.Thread(target=spin).start()\nprint('up', flush=True)\n"
    with program(f"{text}ctypes.CDLL(None).pthread_exit(None)") as pid:
        eventually(lambda: state_of(pid) == "Z")
        assert contain.still([pid]) == set()
        os.kill(pid, signal.SIGSTOP)
        eventually(lambda: contain.still([pid]) == {pid})


def test_who_waits_in_vfork_for_a_child_that_is_stopped_stands_still() -> None:
    text = "import ctypes, time\nprint('up', flush=True)\nif ctypes.PyDLL(None).vfork() == 0:\n  while True: pass"
    with program(text) as pid:
        (child,) = eventually(lambda: below(pid))
        for each in (pid, child):
            os.kill(each, signal.SIGSTOP)
        eventually(lambda: contain.still([pid, child]) == {pid, child})
        assert state_of(pid) == "D"


def test_a_node_says_how_its_work_can_be_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    assert freezer_of(None, "auto") == Freezer.SIGNALS
    for wanted, words in (("v2", "control groups of version 2"), ("v1", "not known")):
        with pytest.raises(ConfigError, match=words):
            freezer_of(None, wanted)
    monkeypatch.setattr("rmgr.adapters.host.process.lists_children", lambda: False)  # a kernel without CONFIG_PROC_CHILDREN
    assert freezer_of(None, "auto") == ""
    with pytest.raises(ConfigError, match="does not list the children"):
        freezer_of(None, "signals")


def test_the_ledger_sees_what_must_not_be(tmp_path: Path) -> None:
    one, two = Stretch(0, 100, "1", "0", "n1"), Stretch(90, 200, "2", "0", "n1")
    assert gang_ledger.overlaps([one, two])
    assert not gang_ledger.overlaps([one, Stretch(100, 200, "2", "0", "n1")])
    assert not gang_ledger.overlaps([one, Stretch(0, 100, "2", "0", "n2")])
    assert not gang_ledger.overlaps([one, Stretch(0, 100, "1", "1", "n1")]), "ranks of one job"
    gap, long = stamping.GAP_NS, Stretch(0, 10 * stamping.GAP_NS, "2", "0", "n1")
    assert gang_ledger.overlaps([long, Stretch(gap, 2 * gap, "1", "0", "n1")])
    assert not gang_ledger.overlaps([long, Stretch(gap, 2 * gap - 1, "1", "0", "n1")]), "the other may have been away"
    tree = {
        "quantum_seconds": 1e-7,
        "origin_us": 0,
        "clock": {"offset_us": 0},
        "leaves": [{"node": "n1", "cores": 1}, {"node": "n2", "cores": 1}],
        "matrix": [{"slot": 0, "cores": ["1", "1"]}, {"slot": 1, "cores": ["2", None]}],
    }
    assert gang_ledger.in_its_slots([one, Stretch(120, 180, "2", "0", "n1")], "1", tree) == 1.0
    assert gang_ledger.in_its_slots([Stretch(80, 120, "2", "0", "n1")], "2", tree) == pytest.approx(0.5)
    assert gang_ledger.in_its_slots([one, Stretch(120, 140, "1", "1", "n2")], "1", tree) == 0.0, "one of its processes ran beside them"
    assert gang_ledger.in_its_slots([one, Stretch(120, 140, "1", "1", "n2")], "1", tree, until=110) == 1.0
    assert gang_ledger.in_its_slots([one], "2", tree) == 0.0
