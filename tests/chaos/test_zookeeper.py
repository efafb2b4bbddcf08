"""ZooKeeper goes away and comes back, and answers get lost: rows 16, 19 and 23 of the fault matrix (one server)."""

from __future__ import annotations

import json
import signal
import threading

import pytest
from breakable import LONG_T, RECOVERY_S, Chaos, T, eventually

from tests.harness.proxy import Proxy

pytestmark = pytest.mark.chaos


@pytest.mark.parametrize("chaos", [LONG_T], indirect=True, ids=["long sessions"])
def test_five_restarts_of_zookeeper_lose_no_session_and_fail_no_task(chaos: Chaos):
    chaos.start(nodes=2, cores=2)
    number = chaos.submit(120, 0.3)
    before = {name: record.incarnation for name, record in chaos.cluster.snapshot().nodes.items()}
    for _ in range(5):
        ran = chaos.started()
        chaos.cluster.zookeeper.restart()
        eventually("work goes on", lambda: chaos.started() > ran or chaos.ended(), within=60)  # noqa: B023 - called before the next round
    chaos.finish(within=90)
    assert {view.attempt for view in chaos.tasks(number)} == {1}, "no attempt failed"
    assert before == {name: record.incarnation for name, record in chaos.cluster.snapshot().nodes.items()}, "no session was lost"


def test_an_outage_longer_than_the_session_ends_with_everything_done(brief: Chaos):
    brief.submit(40, 0.3)
    eventually("work runs", lambda: brief.started() >= 4, within=60)
    brief.cluster.zookeeper.pause()
    seen = brief.started()
    eventually("what was claimed runs on", lambda: brief.started() >= seen, within=1)
    assert not threading.Event().wait(2 * T)  # the outage itself
    brief.cluster.zookeeper.resume()
    brief.finish(within=RECOVERY_S + 90)


def test_a_starter_whose_answers_get_lost_commits_once(pair: Chaos):
    with Proxy(pair.cluster.zookeeper.hosts) as proxy:
        pair.cluster.kill("n2", signal.SIGTERM)  # half of the work is for the other one
        chroot = pair.cluster.state.zookeeper.partition("/")[2]
        pair.add_node("far", cores=2, RMGR_ZK=f"{proxy.hosts}/{chroot}")
        eventually("it is up", lambda: "far" in pair.up(), within=60)
        for nth in (1, 2, 3, 5):
            before = proxy.cuts
            proxy.lose_reply(nth)
            number = pair.submit(40, 0.2)
            pair.finish(within=RECOVERY_S + 90)
            assert proxy.cuts > before, f"answer {nth} was lost"
            assert "far" in {span.node for span in pair.spans(number)}, nth
            assert {view.attempt for view in pair.tasks(number)} == {1}, f"a lost answer is read back, not guessed ({nth})"


def test_a_submit_whose_answer_gets_lost_is_one_submission(pair: Chaos):
    chroot = pair.cluster.state.zookeeper.partition("/")[2]
    for nth in (1, 2):
        with Proxy(pair.cluster.zookeeper.hosts) as proxy:
            proxy.lose_reply(nth)
            words = ("submit", "--parsable", "--name", pair.ledger.name, "--wait", "--", "echo", "once")
            done = pair.rmgr(*words, RMGR_ZK=f"{proxy.hosts}/{chroot}")
        assert done.returncode == 0, done.stderr
        jobs = json.loads(pair.rmgr("jobs", "-a", "-A", "--json").stdout)["jobs"]
        assert [job["name"] for job in jobs].count(pair.ledger.name) == nth, jobs  # one more each time


def test_a_leader_whose_answers_get_lost_moves_everything_once(chaos: Chaos):
    with Proxy(chaos.cluster.zookeeper.hosts) as proxy:
        chroot = chaos.cluster.state.zookeeper.partition("/")[2]
        chaos.start(nodes=2, first={"RMGR_ZK": f"{proxy.hosts}/{chroot}"})
        for nth in (1, 2, 3, 4):
            if chaos.leader() != "w1":  # the round before has cost it the lead
                chaos.cluster.kill("w2")
                chaos.cluster.start_watchdog("w2")
                eventually("it leads again", lambda: chaos.leader() == "w1", within=60)
            stop = chaos.directory / f"stop-{nth}"
            number = chaos.submit(8, 600.0, "--env", f"STOP={stop}")
            eventually("both nodes work", lambda: len(chaos.spans(number)) >= 4, within=60)  # noqa: B023
            before = proxy.cuts
            proxy.lose_reply(nth)
            chaos.cluster.kill("n1")
            stop.touch()
            chaos.finish(within=RECOVERY_S + 60)
            assert proxy.cuts > before, f"answer {nth} was lost"
            chaos.add_node("n1")
            eventually("n1 is back", lambda: "n1" in chaos.up(), within=60)
