"""A job is STARTING from its placement to its first instruction, across leaders and on a node that stands still."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from breakable import Chaos, eventually

from tests.harness.ended_sessions import LONG_S
from tests.harness.fair_time import PATIENCE_S

pytestmark = pytest.mark.chaos

#: Says that it runs; then runs until its file is there.
UNTIL = 'touch "$GATES/begun.$RMGR_JOB_ID"; while [ ! -e "$GATES/$RMGR_JOB_ID" ]; do sleep 0.1; done'


class Watched:
    """Jobs that begin and end where the test can see it."""

    def __init__(self, chaos: Chaos) -> None:
        self.chaos = chaos
        self.gates = chaos.directory / "gates"
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


@pytest.mark.parametrize("chaos", [LONG_S], indirect=True, ids=["long sessions"])  # nobody is to be lost, however long the commands take
def test_a_job_is_starting_until_its_first_instruction(chaos: Chaos) -> None:
    chaos.start(nodes=2, cores=2, watchdogs=2)
    watched = Watched(chaos)

    # Placed where pulled work runs, which ends first.
    pulled = [watched.submit("-q", "default") for _ in range(4)]
    eventually("nodes that are full of pulled work", lambda: all(map(watched.has_begun, pulled)), within=PATIENCE_S)
    alone = watched.submit("-q", "batch")
    eventually("it is starting", lambda: watched.is_starting(alone, "waits for n", "since 20"), within=PATIENCE_S)
    leader, epoch = chaos.leader(), chaos.epoch()
    chaos.cluster.kill(leader, signal.SIGTERM)  # a killed one is replaced after T, and says nothing else
    eventually("another leads", lambda: chaos.leader() not in {"", leader} and chaos.epoch() > epoch, within=PATIENCE_S)
    eventually("the next one says so, too", lambda: watched.is_starting(alone, "waits for n"), within=PATIENCE_S)
    assert not watched.has_begun(alone)
    for number in pulled:
        watched.let_go(number)
    eventually("it begins", lambda: watched.has_begun(alone), within=PATIENCE_S)
    eventually("it runs", lambda: watched.state(alone) == "RUNNING", within=PATIENCE_S)
    watched.let_go(alone)
    eventually("it is over", lambda: watched.state(alone) == "COMPLETED", within=PATIENCE_S)

    # On two nodes, one of which stands still.
    chaos.cluster.kill("n2", signal.SIGSTOP)
    try:
        both = watched.submit("-q", "batch", "-N", "2", "-n", "2")
        eventually("it waits for one of them", lambda: watched.is_starting(both, "waits for n2 to say", "since 20"), within=PATIENCE_S)
        assert not watched.has_begun(both)
    finally:
        chaos.cluster.kill("n2", signal.SIGCONT)
    eventually("it begins", lambda: watched.has_begun(both), within=PATIENCE_S)
    eventually("it runs", lambda: watched.state(both) == "RUNNING", within=PATIENCE_S)
