"""An upgrade under load, one daemon at a time: old and new daemons work side by side, and nothing is lost."""

from __future__ import annotations

import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest
from breakable import Chaos
from ledger import read_ledger

from rmgr.coord.protocol import paths
from rmgr.coord.protocol.records import decode_record
from rmgr.model.node import Meta
from rmgr.model.states import State
from rmgr.model.version import PROTOCOL
from tests.harness.waiting import eventually
from tests.places import HARNESS

pytestmark = pytest.mark.chaos

NEXT_RELEASE = HARNESS / "next_release"


def ahead(releases: int) -> dict[str, str]:
    """Variables of a daemon that is so many releases ahead of this one."""
    return {"PYTHONPATH": str(NEXT_RELEASE), "RMGR_TEST_RELEASES_AHEAD": str(releases), "RMGR_WATCHDOG_RESYNC_S": "0.5"}


def meta(chaos: Chaos) -> Meta:
    found = chaos.cluster.coordinator.get(paths.META).result(60)
    assert found is not None
    return decode_record(found.data, Meta)


def replace_starter(chaos: Chaos, name: str) -> None:
    chaos.cluster.kill(name, signal.SIGTERM)
    eventually(lambda: chaos.cluster.process(name).state == "dead", f"{name} has drained")
    chaos.add_node(name, cores=2, **ahead(1))


def replace_watchdog(chaos: Chaos, name: str) -> None:
    chaos.cluster.kill(name, signal.SIGTERM)
    eventually(lambda: chaos.cluster.process(name).state == "dead", f"{name} has ended")
    chaos.cluster.start_watchdog(name, environment=ahead(1))
    eventually(lambda: chaos.cluster.snapshot().watchdogs == 2, f"{name} stands for election")


def test_a_rolling_upgrade_loses_no_work_and_fails_no_attempt(chaos: Chaos) -> None:
    #  n1 n2 w1 w2   all old          n1' n2 w1 w2   a new Starter beside old WatchDogs
    #  n1' n2 w1' w2  and so on       n1' n2' w1' w2'  the cluster's protocol rises
    chaos.start(nodes=2, cores=2)
    number = chaos.submit(240, 0.5)  # enough for a slow machine, too: what is left when both are replaced need not last
    eventually(lambda: {span.node for span in read_ledger(chaos.ledger)} >= {"n1", "n2"}, "both work")
    assert meta(chaos).protocol == PROTOCOL

    replace_starter(chaos, "n1")
    old = sum(span.node == "n1" for span in read_ledger(chaos.ledger))
    replace_watchdog(chaos, "w1")
    eventually(lambda: sum(span.node == "n1" for span in read_ledger(chaos.ledger)) > old, "the new Starter works")
    assert chaos.cluster.snapshot().nodes["n1"].protocol == PROTOCOL + 1
    assert meta(chaos).protocol == PROTOCOL, "old daemons are still there"
    replace_watchdog(chaos, "w2")
    replace_starter(chaos, "n2")
    chaos.let_end()
    eventually(lambda: meta(chaos).protocol == PROTOCOL + 1, "the cluster speaks the new protocol")
    assert meta(chaos).oldest == PROTOCOL

    chaos.add_node("n3", cores=2)  # of the release before: it may still join
    chaos.cluster.wait_healthy(nodes=3, deadline_s=60)
    late = chaos.submit(8, 0.2)
    tasks = chaos.finish()
    assert {view.state for view in tasks.values()} == {State.COMPLETED}
    assert {view.attempt for sub in (number, late) for view in chaos.tasks(sub)} == {1}, "drained, not killed"
    versions = {node["id"]: node["version"] for node in json_nodes(chaos)}
    assert (versions["n1"], versions["n2"]) == ("9.1.0", "9.1.0")
    for name in ("n1", "n2", "n3", "w1", "w2"):
        log = chaos.cluster.log_file(name).read_text()
        assert "Traceback" not in log, f"{name}: {log[-3000:]}"


def json_nodes(chaos: Chaos) -> list[dict[str, str]]:
    import json

    done = chaos.rmgr("nodes", "--json")
    assert done.returncode == 0, done.stderr
    nodes: list[dict[str, str]] = json.loads(done.stdout)["nodes"]
    return nodes


def test_a_daemon_or_client_two_releases_away_is_told_what_to_do(pair: Chaos) -> None:
    def start(words: list[str]) -> subprocess.CompletedProcess[str]:
        own = {} if words[0] == "jobs" else pair.cluster.daemon_environment(words[0], "n9")
        return pair.rmgr(*words, **ahead(2), **own)

    with ThreadPoolExecutor(3) as together:
        found = list(together.map(start, (["starter", "--node", "n9"], ["watchdog"], ["jobs"])))
    for refused in found:
        assert refused.returncode == 2, refused
        assert f"9.2.0 (protocol {PROTOCOL + 2}) is too new for the cluster, which speaks protocol {PROTOCOL}" in refused.stderr
        assert f"upgrade every daemon to a release with protocol {PROTOCOL + 1} first" in refused.stderr
