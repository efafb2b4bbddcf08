"""Reservations beside pulled work (seed 000, 3.2): cores freed for a job stay free of other work, with any leader or none.

Judged from what the work itself wrote down: who was on how many cores of which node, and when.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from breakable import Chaos
from test_reservation import Machine

from rmgr.coord.protocol import paths
from tests.harness.waiting import eventually

pytestmark = pytest.mark.chaos

#: A line in the ledger: begin or end, task, nanoseconds, node:cores,...
SAY = """
place=$(sed 's/ slots=/:/' "${RMGR_HOSTFILE:-/dev/null}" 2>/dev/null | tr '\\n' ','); place=${place:-$RMGR_NODELIST:1}
say() { echo "$1 $RMGR_TASK_ID $(date +%s%N) $place" >> "$OUTSIDE"; }
say begin
"""
UNTIL = SAY + 'while [ ! -e "$GATES/$RMGR_JOB_ID" ]; do sleep 0.1; done; say end'
PULLED = SAY + "sleep 0.4; say end"
CORES = 4


@dataclass
class Spell:
    """A task on its nodes. cores: by node. Times in ns, `end` far away while it runs."""

    task: str
    cores: dict[str, int]
    begin: int
    end: int = 1 << 62

    @property
    def number(self) -> int:
        return int(self.task.partition("_")[0])


class Beside(Machine):
    """The machine of the other test, with a load of pulled tasks that never ends."""

    def __init__(self, chaos: Chaos, directory: Path) -> None:
        super().__init__(chaos, directory)
        self.outside = directory / "outside"
        self.outside.touch()
        self.load = 0
        self.promises: dict[int, set[int]] = {}

    def submit(self, processes: int, *words: str) -> int:
        options = ("-q", "batch", "-t", "1h", "-n", str(processes), "--env", f"GATES={self.gates}", "--env", f"OUTSIDE={self.outside}")
        return int(self.rmgr("submit", "--parsable", *options, "--", *(words or ("sh", "-c", UNTIL))))

    def pull(self) -> None:
        """Far more tasks than the nodes will ever get."""
        options = ("-q", "default", "--array", "0-4999", "--env", f"OUTSIDE={self.outside}")
        self.load = int(self.rmgr("submit", "--parsable", *options, "--", "sh", "-c", PULLED))

    def reserves(self, number: int) -> set[int]:
        """Once it does: whose cores it is promised, which its nodes have heard of."""
        eventually(lambda: self.promised(number) and self.kept(number), f"{number} reserves")
        self.promises[number] = self.promised(number)
        return self.promises[number]

    def kept(self, number: int) -> list[str]:
        """Nodes that were told to keep cores for it."""
        lists = {node: self.chaos.cluster.coordinator.children(paths.hold(node)).result(60) or () for node in ("n1", "n2")}
        return [node for node, names in lists.items() if f"r-{number}.0" in names]

    def spells(self) -> list[Spell]:
        found: dict[str, Spell] = {}
        for line in self.outside.read_text().splitlines():
            what, task, at, place = line.split()
            if what == "begin":
                where = dict(one.split(":") for one in place.split(",") if one)
                found[task] = Spell(task, {node: int(cores) for node, cores in where.items()}, int(at))
            else:
                found[task].end = int(at)
        return list(found.values())

    def begun(self, since: int = 0) -> list[Spell]:
        """Pulled tasks."""
        return [one for one in self.spells() if one.number == self.load and one.begin > since]

    def has_begun(self, number: int) -> bool:
        return any(one.number == number for one in self.spells())

    def let_go_of(self, numbers: set[int]) -> None:
        """Without asking rmgr anything: they have ended when they say so."""
        for number in numbers:
            Path(self.gates / str(number)).touch()
        over = lambda: numbers <= {one.number for one in self.spells() if one.end < 1 << 62}  # noqa: E731
        eventually(over, f"{numbers} have ended")

    def goes_on(self, seconds: int) -> None:
        """Pulled work goes on for so long, on what is nobody's."""
        latest = max(one.begin for one in self.begun())
        eventually(lambda: self.begun(latest + seconds * 10**9), "pulled work goes on")

    def intruders(self) -> list[str]:
        """Pulled tasks that began where that left too little for what runs there and for what is held there, each told."""
        spells = self.spells()
        by_number = {one.number: one for one in spells if one.number != self.load}
        told = []
        for pulled in self.begun():
            (node,) = pulled.cores
            at = pulled.begin
            used = sum(one.cores.get(node, 0) for one in spells if one.begin <= at < one.end)
            held = 0
            for number, chosen in self.promises.items():
                requester = by_number.get(number)
                if requester is None or at < requester.begin:
                    ended = sum(by_number[one].cores.get(node, 0) for one in chosen if by_number[one].end <= at)
                    held += min(ended, requester.cores.get(node, 0)) if requester is not None else 0
            if used + held > CORES:
                told.append(f"{pulled.task} on {node}: {used} cores of {CORES} are used, {held} held")
        return told


@pytest.fixture
def machine(wide_pair: Chaos, tmp_path: Path) -> Beside:
    return Beside(wide_pair, tmp_path)


def test_no_pulled_task_begins_on_cores_that_are_held_for_a_job_though_nobody_leads_when_they_come_free(machine: Beside) -> None:
    cluster = machine.chaos.cluster
    small = [machine.submit(1) for _ in range(8)]
    eventually(lambda: all(map(machine.has_begun, small)), "a full machine")
    machine.pull()

    # 0. Who is cancelled keeps nothing from anybody.
    nobody = machine.submit(4)
    eventually(lambda: machine.kept(nobody), "it reserves")
    leaver = min(machine.promised(nobody))
    machine.let_go_of({leaver})
    eventually(lambda: machine.held() == [(str(nobody), 1)], "its core is held")
    assert machine.begun() == []
    machine.rmgr("cancel", str(nobody))
    eventually(machine.begun, "the core is anybody's")
    eventually(lambda: not machine.kept(nobody), "nothing says that it is kept")
    small = [*(number for number in small if number != leaver), machine.submit(1)]
    eventually(lambda: all(map(machine.has_begun, small)), "a full machine")

    # 1. It came to an empty queue; nobody leads when what it was promised ends.
    first = machine.submit(4)
    chosen = machine.reserves(first)
    assert len(chosen) == 4
    second = machine.submit(4)
    others = sorted(set(small) - chosen)
    for name in [process.id for process in cluster.state.processes if process.role == "watchdog" and process.state == "running"]:
        cluster.kill(name)
    machine.let_go_of({others[0]})
    machine.goes_on(0)
    machine.let_go_of(chosen)
    machine.goes_on(2)
    assert not machine.has_begun(first)
    machine.chaos.new_watchdog()
    machine.chaos.new_watchdog()
    eventually(lambda: machine.has_begun(first), "the first starts")

    # 2. Overtaken more often than its threshold allows.
    for number in others[1:3]:
        machine.let_go(number)
    for _ in range(2):
        passer = machine.submit(2, "true")
        eventually(lambda passer=passer: machine.is_over(passer), "one passes it")  # type: ignore[misc]
    assert machine.reserves(second) == {first}
    filling = [machine.submit(1) for _ in range(3)]
    eventually(lambda: all(map(machine.has_begun, filling)), "they run")
    large = machine.submit(8)
    machine.let_go(first)
    eventually(lambda: machine.has_begun(second), "the second starts")

    # 3. The first of its queue when something has ended, on all nodes.
    rest = machine.reserves(large)
    assert second in rest
    machine.let_go_of(rest - {others[3]})
    cluster.kill(machine.chaos.leader())
    machine.let_go_of({others[3]})
    eventually(lambda: machine.has_begun(large), "the large one starts")
    assert machine.intruders() == []
