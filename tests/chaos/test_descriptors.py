"""A Starter runs out of file descriptors for a while: delayed work begins later or counts as lost, and nothing hangs."""

from __future__ import annotations

import resource
import threading

import pytest
from breakable import Chaos

from tests.harness.waiting import eventually

pytestmark = pytest.mark.chaos

#: Starts ranks again and again: some start while the Starter has no descriptor left.
LAUNCHES = '#!/bin/sh\nset -e\nwhile ! [ -e "$LEDGER.stop" ]; do rmgr run true; echo . >> "$LEDGER.$RMGR_JOB_ID"; done\n'


@pytest.mark.parametrize("starved", [0, 1], ids=["of a script", "of its ranks"])
def test_jobs_on_two_nodes_go_on_after_a_starter_had_no_descriptors(pair: Chaos, starved: int) -> None:
    script = pair.directory / "launches.sh"
    script.write_text(LAUNCHES)
    numbers = []
    for _ in range(2):
        done = pair.rmgr("submit", "--parsable", "-n", "2", "-N", "2", "--env", f"LEDGER={pair.ledger}", str(script))
        assert done.returncode == 0, done.stderr
        numbers.append(int(done.stdout))
        pair.submissions.append(numbers[-1])  # if it goes wrong, nobody after this one finds them

    def launches(number: int) -> int:
        path = pair.ledger.with_name(f"{pair.ledger.name}.{number}")
        return path.stat().st_size if path.exists() else 0

    eventually(lambda: all(launches(number) > 4 for number in numbers), "both start ranks")
    pid = pair.cluster.process(pair.nodes_of(numbers[0])[starved]).pid
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (4, limits[1]))  # what is open stays open
    assert not threading.Event().wait(3)  # the outage itself
    resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
    seen = {number: launches(number) for number in numbers}
    eventually(lambda: all(launches(number) > seen[number] + 4 for number in numbers), "both go on")
    pair.let_end()
    eventually(lambda: all(pair.tasks(number)[0].state.is_final for number in numbers), "both have ended")
    for number in numbers:
        (view,) = pair.tasks(number)
        assert view.state == "COMPLETED", view
        assert {old.reason for old in view.attempts} <= {"", "NODE_LOST"}, view
