"""Connection reservation on live nodes (seed 000): each of the three triggers, and a leader killed between promise and start."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from breakable import Chaos

from rmgr.coord.protocol import paths
from rmgr.daemons.leader.placement.job_table import decode_records
from rmgr.model.block import job_id, task_of
from tests.harness.waiting import eventually

pytestmark = pytest.mark.chaos

#: Eight cores in all; the classes of HPC2500 in small.
CLASSES = """
[[stage]]
policy = "connection_reservation"
[[queue]]
name = "small"
max_cpus = 1
max_processes = 1
max_threads = 1
[[queue]]
name = "medium"
max_cpus = 4
max_processes = 4
max_threads = 1
reservation_threshold = 1
max_reservations = 1
[[queue]]
name = "large"
max_cpus = 8
max_processes = 8
max_threads = 1
reservation_threshold = 20
max_reservations = 1
head_trigger = true
"""
#: Runs until its file is there.
UNTIL = 'while [ ! -e "$GATES/$RMGR_JOB_ID" ]; do sleep 0.1; done'


@pytest.fixture
def machine(wide_pair: Chaos, tmp_path: Path) -> Machine:
    return Machine(wide_pair, tmp_path)


class Machine:
    def __init__(self, chaos: Chaos, directory: Path) -> None:
        self.chaos = chaos
        self.gates = directory / "gates"
        self.gates.mkdir()
        file = directory / "classes.toml"
        file.write_text(CLASSES)
        assert "classes.toml (connection_reservation) places its jobs" in self.rmgr("policy", "set", str(file))

    def rmgr(self, *words: str) -> str:
        done = self.chaos.rmgr(*words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def submit(self, processes: int, *words: str) -> int:
        """A job that names no queue of the classes; runs until it is let go, unless it has words of its own."""
        command = words or ("sh", "-c", UNTIL)
        # `batch` is none of the classes: so the class is chosen for it
        options = ("-q", "batch", "-t", "1h", "-n", str(processes), "--env", f"GATES={self.gates}")
        return int(self.rmgr("submit", "--parsable", *options, "--", *command))

    def let_go(self, number: int) -> None:
        Path(self.gates / str(number)).touch()
        eventually(lambda: self.is_over(number), f"{number} has ended")

    def is_over(self, number: int) -> bool:
        return all(view.state.is_final for view in self.chaos.tasks(number))

    def runs(self, number: int) -> bool:
        return bool(self.chaos.nodes_of(number))

    def promised(self, number: int) -> set[int]:
        """Jobs whose cores it is promised, running or gone, as the scheduler's record has it; empty: it has no reservation."""
        found = self.chaos.cluster.coordinator.get(paths.placing("default")).result(60)
        for job, _, waits_for, held in decode_records(found.data).holds if found is not None else ():
            if job == job_id(number, 0):
                return {task_of(share[0])[0] for share in (*waits_for, *held)}
        return set()

    def held(self) -> list[tuple[str, int]]:
        """What `rmgr queues` says: (job, cores that have come free for it)."""
        queues = json.loads(self.rmgr("queues", "--json"))["queues"]
        cores = Counter[str]()
        for one in (held for queue in queues for held in queue["held"]):
            cores[one["for"].partition("_")[0]] += one["cores"]
        return sorted(cores.items())

    def why(self, number: int) -> str:
        return " ".join("{what} {id}: {detail}".format(**one) for one in json.loads(self.rmgr("explain", str(number), "--json"))["why"])

    def change_leader(self) -> None:
        """kill -9, and another one leads."""
        before, epoch = self.chaos.leader(), self.chaos.epoch()
        self.chaos.new_watchdog()
        self.chaos.cluster.kill(before)
        eventually(lambda: self.chaos.leader() not in {"", before} and self.chaos.epoch() > epoch, "another leads")


def test_each_trigger_reserves_holds_what_comes_free_and_starts_its_job_whoever_leads(machine: Machine) -> None:
    small = [machine.submit(1) for _ in range(8)]
    eventually(lambda: all(map(machine.runs, small)), "a full machine")
    assert "class small" in machine.why(small[0])
    assert "the strictest that admits it (CPUs <= 1, processes <= 1, threads a process <= 1)" in machine.why(small[0])

    # 1. It came to an empty queue and cannot start.
    first = machine.submit(4)
    eventually(lambda: machine.promised(first), "the first reserves")
    second = machine.submit(4)
    waiting = machine.submit(1)
    chosen = machine.promised(first)
    assert len(chosen) == 4
    assert chosen < set(small)
    assert machine.held() == []
    assert "starts when running job" in machine.why(first)
    leaver = min(chosen)
    machine.let_go(leaver)
    eventually(lambda: machine.held() == [(str(first), 1)], "its core is held")
    machine.change_leader()
    assert machine.promised(first) == chosen
    eventually(lambda: machine.held() == [(str(first), 1)], "the next leader holds it, too")
    assert not machine.runs(waiting)
    others = sorted(set(small) - chosen)
    machine.let_go(others[0])
    eventually(lambda: machine.runs(waiting), "what is not promised is free for all")
    for number in sorted(chosen - {leaver})[:-1]:
        machine.let_go(number)
        assert not machine.runs(first)
    machine.let_go(max(chosen))
    eventually(lambda: machine.runs(first), "the first starts on the resources of the last")

    # 2. Overtaken more often than its threshold.
    assert not machine.promised(second)
    for number in others[1:3]:
        machine.let_go(number)
    for _ in range(2):
        assert not machine.promised(second)
        passer = machine.submit(2, "true")
        eventually(lambda passer=passer: machine.is_over(passer), "one passes it")  # type: ignore[misc]
    eventually(lambda: machine.promised(second), "the second reserves")
    assert machine.promised(second) == {first}, "the running job of the same shape"
    filling = [machine.submit(1) for _ in range(2)]
    eventually(lambda: all(map(machine.runs, filling)), "a full machine")
    large = machine.submit(8)
    eventually(lambda: "large" in machine.why(large), "it waits in its class")
    machine.change_leader()
    assert machine.promised(second) == {first}
    assert not machine.promised(large), "too little runs that is promised to nobody else"
    machine.let_go(first)
    eventually(lambda: machine.runs(second), "the second starts")

    # 3. The first of its queue when something has ended.
    rest = {second, waiting, others[3], *filling}
    eventually(lambda: machine.promised(large) == rest, "the large one reserves all that runs")
    machine.let_go(second)
    eventually(lambda: machine.held() == [(str(large), 4)], "its cores are held")
    machine.change_leader()
    assert machine.promised(large) == rest
    for number in sorted(rest - {second})[:-1]:
        machine.let_go(number)
        assert not machine.runs(large)
    machine.let_go(max(rest - {second}))
    eventually(lambda: machine.runs(large), "the large one starts")
    machine.let_go(large)
    # nothing is left of any promise
    eventually(lambda: not machine.held(), "an empty ledger")
