"""ZooKeeper is silent for longer than every session: ranks lost by the system count as lost, never as failed work."""

from __future__ import annotations

import contextlib
import threading

import pytest
from breakable import Chaos, T

from tests.harness.waiting import eventually

pytestmark = pytest.mark.chaos

#: Starts ranks again and again: some start while ZooKeeper is silent.
LAUNCHES = '#!/bin/sh\nset -e\nwhile ! [ -e "$LEDGER.stop" ]; do rmgr run sleep 0.3; done\n'


@pytest.mark.parametrize("brief", [4], indirect=True, ids=["short sessions"])
def test_jobs_on_two_nodes_outlive_a_silence_of_zookeeper(brief: Chaos) -> None:
    script = brief.directory / "silent_launches.sh"
    script.write_text(LAUNCHES)
    numbers = [brief.submit_job(2, 600.0, "-N", "2") for _ in range(2)]
    for _ in range(2):
        done = brief.rmgr("submit", "--parsable", "-n", "2", "-N", "2", "--env", f"LEDGER={brief.ledger}", str(script))
        assert done.returncode == 0, done.stderr
        numbers.append(int(done.stdout))
    eventually(lambda: all(len(brief.spans(number)) == 2 for number in numbers[:2]), "their ranks run")
    eventually(lambda: all(brief.nodes_of(number) for number in numbers), "all have begun")
    before = {name: record.incarnation for name, record in brief.snapshot().nodes.items()}

    def is_anew() -> bool:
        nodes = brief.snapshot().nodes
        return len(brief.up()) == 2 and any(nodes[name].incarnation > incarnation for name, incarnation in before.items())

    for _ in range(5):  # a server that wakes may hear its clients before it looks at its clock: their sessions go on
        brief.cluster.zookeeper.pause()
        assert not threading.Event().wait(2 * T)  # the outage itself
        brief.cluster.zookeeper.resume()
        with contextlib.suppress(AssertionError):
            eventually(is_anew, "the nodes have registered anew", within_s=15.0)
            break
    eventually(is_anew, "the nodes have registered anew")
    brief.let_end()
    eventually(lambda: all(brief.tasks(number)[0].state.is_final for number in numbers), "all have ended")
    for number in numbers:
        (view,) = brief.tasks(number)
        assert view.state == "COMPLETED", view
        assert {old.reason for old in view.attempts} <= {"", "NODE_LOST"}, view
