"""A job is STARTING from its placement to its first instruction, across leaders and on a node that stands still."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from breakable import Chaos

from tests.harness.waiting import eventually

pytestmark = pytest.mark.chaos

#: Says that it runs; then runs until its file is there.
UNTIL = 'touch "$GATES/begun.$RMGR_JOB_ID"; while [ ! -e "$GATES/$RMGR_JOB_ID" ]; do sleep 0.1; done'


class Watched:
    """Jobs that begin and end where the test can see it."""

    def __init__(self, chaos: Chaos, directory: Path) -> None:
        self.chaos = chaos
        self.gates = directory / "gates"
        self.gates.mkdir()

    def ask(self, *words: str) -> Any:
        done = self.chaos.rmgr(*words, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def submit(self, *options: str) -> int:
        words = ("submit", "--parsable", "--env", f"GATES={self.gates}", *options, "--", "sh", "-c", UNTIL)
        done = self.chaos.rmgr(*words)
        assert done.returncode == 0, done.stderr
        return int(done.stdout)

    def has_begun(self, number: int) -> bool:
        return (self.gates / f"begun.{number}").exists()

    def let_go(self, number: int) -> None:
        Path(self.gates / str(number)).touch()

    def state(self, number: int) -> str:
        return str(self.ask("show", str(number))["state"])

    def is_starting(self, number: int, *told: str) -> bool:
        """Everywhere where somebody could look; and it is told what for."""
        explained = self.ask("explain", str(number))
        words = " ".join(one["detail"] for one in explained["why"] if one["what"] == "starting")
        shown, (job,) = self.ask("show", str(number)), self.ask("jobs", str(number))["jobs"]
        (task,) = self.ask("tasks", str(number))["tasks"]
        states = {explained["state"], shown["state"], job["state"], task["state"]}
        assert "RUNNING" not in states or self.has_begun(number), states
        is_told = all(word in words and word in job["detail"] for word in told)
        counted = {state: count for state, count in shown["counts"].items() if count}
        return states == {"STARTING"} == set(counted) and is_told and shown["started"] is None


def test_a_job_is_starting_until_its_first_instruction(led: Chaos, tmp_path: Path) -> None:
    watched = Watched(led, tmp_path)

    # Placed where pulled work runs, which ends first.
    pulled = [watched.submit("-q", "default") for _ in range(4)]
    eventually(lambda: all(map(watched.has_begun, pulled)), "nodes that are full of pulled work")
    alone = watched.submit("-q", "batch")
    eventually(lambda: watched.is_starting(alone, "waits for n", "since 20"), "it is starting")
    leader, epoch = led.leader(), led.epoch()
    led.cluster.kill(leader, signal.SIGTERM)  # a killed one is replaced after T, and says nothing else
    eventually(lambda: led.leader() not in {"", leader} and led.epoch() > epoch, "another leads")
    eventually(lambda: watched.is_starting(alone, "waits for n"), "the next one says so, too")
    assert not watched.has_begun(alone)
    for number in pulled:
        watched.let_go(number)
    eventually(lambda: watched.has_begun(alone), "it begins")
    eventually(lambda: watched.state(alone) == "RUNNING", "it runs")
    watched.let_go(alone)
    eventually(lambda: watched.state(alone) == "COMPLETED", "it is over")

    # On two nodes, one of which stands still, and is not lost, however long the commands take.
    with led.unexpired():
        led.cluster.kill("n2", signal.SIGSTOP)
        try:
            both = watched.submit("-q", "batch", "-N", "2", "-n", "2")
            eventually(lambda: watched.is_starting(both, "waits for n2 to say", "since 20"), "it waits for one of them")
            assert not watched.has_begun(both)
        finally:
            led.cluster.kill("n2", signal.SIGCONT)
    eventually(lambda: watched.has_begun(both), "it begins")
    eventually(lambda: watched.state(both) == "RUNNING", "it runs")
