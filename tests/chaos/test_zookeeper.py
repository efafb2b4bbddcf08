"""ZooKeeper goes away and comes back, and answers get lost: rows 16, 19 and 23 of the fault matrix (one server)."""

from __future__ import annotations

import json
import signal
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest
from breakable import Chaos, T

from tests.harness.proxy import Proxy
from tests.harness.waiting import eventually

pytestmark = pytest.mark.chaos


def test_five_restarts_of_zookeeper_lose_no_session_and_fail_no_task(led: Chaos):
    number = led.submit(120, 0.3)
    before = {name: record.incarnation for name, record in led.cluster.snapshot().nodes.items()}
    for _ in range(5):
        ran = led.started()
        led.cluster.zookeeper.restart()
        eventually(lambda: led.started() > ran or led.ended(), "work goes on")  # noqa: B023 - called before the next round
    led.finish()
    assert {view.attempt for view in led.tasks(number)} == {1}, "no attempt failed"
    assert before == {name: record.incarnation for name, record in led.cluster.snapshot().nodes.items()}, "no session was lost"


def test_an_outage_longer_than_the_session_ends_with_everything_done(brief: Chaos):
    brief.submit(40, 0.3)
    eventually(lambda: brief.started() >= 4, "work runs")
    brief.cluster.zookeeper.pause()
    seen = brief.started()
    eventually(lambda: brief.started() >= seen, "what was claimed runs on", within_s=1)
    assert not threading.Event().wait(2 * T)  # the outage itself
    brief.cluster.zookeeper.resume()
    brief.finish()


def test_a_starter_whose_answers_get_lost_commits_once(pair: Chaos):
    with Proxy(pair.cluster.zookeeper.hosts) as proxy:
        pair.cluster.kill("n2", signal.SIGTERM)  # half of the work is for the other one
        chroot = pair.cluster.state.zookeeper.partition("/")[2]
        pair.add_node("far", cores=2, RMGR_ZK=f"{proxy.hosts}/{chroot}")
        eventually(lambda: "far" in pair.up(), "it is up")
        for nth in (1, 2, 3, 5):
            before = proxy.cuts
            proxy.lose_reply(nth)
            number = pair.submit(40, 0.2)
            pair.finish()
            assert proxy.cuts > before, f"answer {nth} was lost"
            assert "far" in {span.node for span in pair.spans(number)}, nth
            assert {view.attempt for view in pair.tasks(number)} == {1}, f"a lost answer is read back, not guessed ({nth})"
        pair.cluster.kill("far")  # it cannot go on without the proxy


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


def test_a_leader_whose_answers_get_lost_moves_everything_once(pair: Chaos):
    with ExitStack() as ends, Proxy(pair.cluster.zookeeper.hosts) as proxy:
        chroot = pair.cluster.state.zookeeper.partition("/")[2]
        pair.succeed(**{"far-dog": {"RMGR_ZK": f"{proxy.hosts}/{chroot}"}, "near-dog": {}})
        ends.callback(pair.cluster.kill, "far-dog")  # it cannot go on without the proxy
        for nth in (1, 2, 3, 4):
            if pair.leader() != "far-dog":  # the round before has cost it the lead
                pair.cluster.kill("near-dog")
                pair.cluster.start_watchdog("near-dog")
                eventually(lambda: pair.leader() == "far-dog", "it leads again")
            stop = Path(f"{pair.ledger}.stop-{nth}")
            number = pair.submit(8, 600.0, "--env", f"STOP={stop}")
            eventually(lambda: len(pair.spans(number)) >= 4, "both nodes work")  # noqa: B023
            before = proxy.cuts
            proxy.lose_reply(nth)
            pair.cluster.kill("n1")
            stop.touch()
            pair.finish()
            assert proxy.cuts > before, f"answer {nth} was lost"
            pair.add_node("n1")
            eventually(lambda: "n1" in pair.up(), "n1 is back")
