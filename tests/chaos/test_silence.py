"""ZooKeeper is silent for longer than every session: ranks lost by the system count as lost, never as failed work."""

from __future__ import annotations

import contextlib
import threading

import pytest
from breakable import Chaos, T, eventually

from tests.harness.fair_time import PATIENCE_S

pytestmark = pytest.mark.chaos

#: Starts ranks again and again: some start while ZooKeeper is silent.
LAUNCHES = '#!/bin/sh\nset -e\nwhile ! [ -e "$LEDGER.stop" ]; do rmgr run sleep 0.3; done\n'


@pytest.mark.parametrize("chaos", [T], indirect=True, ids=["short sessions"])
def test_jobs_on_two_nodes_outlive_a_silence_of_zookeeper(chaos: Chaos) -> None:
    chaos.start(nodes=2, cores=4)
    script = chaos.directory / "launches.sh"
    script.write_text(LAUNCHES)
    numbers = [chaos.submit_job(2, 600.0, "-N", "2") for _ in range(2)]
    for _ in range(2):
        done = chaos.rmgr("submit", "--parsable", "-n", "2", "-N", "2", "--env", f"LEDGER={chaos.ledger}", str(script))
        assert done.returncode == 0, done.stderr
        numbers.append(int(done.stdout))
    eventually("their ranks run", lambda: all(len(chaos.spans(number)) == 2 for number in numbers[:2]), within=PATIENCE_S)
    eventually("all have begun", lambda: all(chaos.nodes_of(number) for number in numbers), within=PATIENCE_S)
    before = {name: record.incarnation for name, record in chaos.cluster.snapshot().nodes.items()}

    def is_anew() -> bool:
        nodes = chaos.cluster.snapshot().nodes
        return len(chaos.up()) == 2 and any(nodes[name].incarnation > incarnation for name, incarnation in before.items())

    for _ in range(5):  # a server that wakes may hear its clients before it looks at its clock: their sessions go on
        chaos.cluster.zookeeper.pause()
        assert not threading.Event().wait(2 * T)  # the outage itself
        chaos.cluster.zookeeper.resume()
        with contextlib.suppress(AssertionError):
            eventually("the nodes have registered anew", is_anew, within=PATIENCE_S / 4)
            break
    eventually("the nodes have registered anew", is_anew, within=PATIENCE_S)
    chaos.let_end()
    eventually("all have ended", lambda: all(chaos.tasks(number)[0].state.is_final for number in numbers), within=PATIENCE_S)
    for number in numbers:
        (view,) = chaos.tasks(number)
        assert view.state == "COMPLETED", view
        assert {old.reason for old in view.attempts} <= {"", "NODE_LOST"}, view
