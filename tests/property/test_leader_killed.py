"""A leader dies before or after its k-th commit, for every k; its successor finishes, and nothing is lost or done twice.

The scenario (settings that make everything happen within seconds of the test's clock):

    brief, of an owner who lives .......... CLOSE
    n1 claims two blocks and dies ......... FENCE, FAIL, RESUBMIT
    plain, capped ......................... BRING_BACK under a cap, CLOSE, PAGE, COLLECT
    held, then released ................... SET_ASIDE, BRING_BACK
    cancelled while growing ............... END, ORDER, CANCEL_FAILED, END_TAIL, CLOSE
    dependents of the cancelled one ....... MET, UNMET
"""

from __future__ import annotations

from collections import Counter
from concurrent.futures import Future
from typing import Any

import pytest

from rmgr.coord.protocol import keys, paths
from rmgr.coord.protocol.multi import Multi, Outcome, Unknown
from rmgr.model.node import NodeState
from rmgr.model.queue import ClusterSettings
from rmgr.model.states import Reason, State
from rmgr.model.submission import Condition, Dependency, Phase
from rmgr.procedures.history import decode_summary
from tests.harness.leader_bench import Bench
from tests.harness.memory import MemoryCoordinator

SETTINGS = ClusterSettings(grace_us=1_000_000, retention_us=40_000_000, max_fragments=180)
TASKS = 8


class Mortal(MemoryCoordinator):
    """Its owner dies at the k-th commit: nothing that follows happens, and nobody hears an answer."""

    def __init__(self, *args: Any, **fields: Any) -> None:
        self.left = -1
        self.after = False
        self.dead = False
        self.names: Counter[str] = Counter()
        super().__init__(*args, guarded=False, **fields)

    def commit(self, multi: Multi, *, timeout_s: float = 10.0) -> Future[Outcome]:
        if not self.dead and self.left == 0:
            if self.after:
                super().commit(multi, timeout_s=timeout_s)
            self.dead = True
            self.close()
        if self.dead:
            lost: Future[Outcome] = Future()
            lost.set_result(Unknown("dead"))
            return lost
        self.left -= 1
        self.names[multi.name] += 1
        return super().commit(multi, timeout_s=timeout_s)


class Scenario:
    """One run, up to the end of everything."""

    def __init__(self) -> None:
        self.bench = bench = Bench(SETTINGS)
        self.mortal = Mortal(bench.tree, auto=True)
        self.seen: dict[int, dict[int, State]] = {}
        self.leaders = 1
        bench.lead(self.mortal)

    def play(self) -> None:
        """The users' part."""
        submitter, bench = self.bench.submitter, self.bench
        submitter.enter()
        n0 = bench.starter("n0")
        self.brief = submitter.submit(TASKS, owner=submitter.guid)
        bench.run()
        while bench.look.pending():
            n0.complete("n0", n0.claim("n0"))
        self.cancelled = submitter.submit(TASKS, complete=False, retries=2, backoff_us=3_000_000)
        self.plain, self.held = submitter.submit(TASKS), submitter.submit(TASKS)
        self.capped = submitter.submit(TASKS, held=True, max_running=3)
        after = [(Dependency(condition=condition, submission=self.cancelled),) for condition in (Condition.ANY, Condition.OK)]
        self.met, self.unmet = (submitter.submit(TASKS, phase=Phase.HELD, reason=Reason.DEPENDENCY, after=item) for item in after)
        bench.advance(0.2)
        n1, n3 = bench.starter("n1"), bench.starter("n3")
        self.n3 = n3
        failing, self.running = n3.claim("n3"), n3.claim("n3")
        n3.fail("n3", failing, reason=Reason.EXIT_CODE)
        for _ in range(2):
            n1.claim("n1")
        n1.close()
        submitter.change(self.held, gate=False, phase=Phase.HELD, reason=Reason.USER_HOLD)
        bench.advance(0.5)
        submitter.change(self.cancelled, gate=False, phase=Phase.CANCELLED, reason=Reason.USER_CANCEL)
        bench.advance(0.5)
        submitter.change(self.held, gate=True, phase=Phase.OPEN, reason="")

    def finish(self) -> None:
        """Time passes; a successor comes when the leader is dead; a Starter takes whatever waits."""
        bench = self.bench
        n2 = bench.starter("n2")
        for _ in range(25):
            if self.mortal.dead and self.leaders == 1 and bench.leader is not None:
                self.leaders = 2
                bench.leader.close()  # the process is gone
                bench.lead(bench.connect())
            bench.advance(1.0)
            self._obey()
            while (key := n2.claim_any("n2")) is not None:
                n2.complete("n2", key)
                assert self._on_the_way(self.capped) <= 3
            self._note()

    def _obey(self) -> None:
        for guid in self.bench.look.names(paths.inbox_node("n3")):
            if self.bench.look.names(paths.running_node("n3")):
                self.n3.complete("n3", self.running, state=State.CANCELLED, reason=Reason.USER_CANCEL)
            assert guid == f"cancel-{self.cancelled}"

    def _on_the_way(self, number: int) -> int:
        places = [paths.pending("default"), *(paths.running_node(node) for node in ("n1", "n2", "n3"))]
        return sum(key.count for place in places for key in self.bench.look.keys(place) if key.submission == number)

    def _note(self) -> None:
        for number in (self.brief, self.plain, self.held, self.capped, self.cancelled, self.met, self.unmet):
            for index, outcome in self.bench.look.outcomes(number).items():  # fails when a task has two
                self.seen.setdefault(number, {})[index] = outcome.state

    def check(self) -> None:
        """Everything has ended as it must, and nothing is left."""
        bench = self.bench
        completed, cancelled = dict.fromkeys(range(TASKS), State.COMPLETED), dict.fromkeys(range(TASKS), State.CANCELLED)
        assert self.seen == {
            self.brief: completed,
            self.plain: completed,
            self.held: completed,
            self.capped: completed,
            self.met: completed,
            self.cancelled: cancelled,
            self.unmet: cancelled,
        }
        assert {bench.phase(number) for number in self.seen} == {Phase.CLOSED}
        assert bench.look.pending() == []
        assert bench.look.held() == []
        assert all(bench.look.failed(number) == {} for number in self.seen)
        assert bench.look.node("n1").state is NodeState.FENCED
        assert bench.look.names(paths.running_node("n1")) == []
        for number in self.seen:
            row = bench.store.get(keys.history(number))
            assert row is not None
            assert decode_summary(row[0]).tasks == TASKS
        bench.advance(60.0)
        assert bench.look.names(paths.subs_bucket(self.plain)) == []
        assert bench.look.names(paths.TOKENS) == []
        bench.idle(5000.0)
        assert bench.look.names(paths.NONCES) == []
        assert bench.store.keys("out/") + bench.store.keys("page/") == []
        assert bench.count(bench.metrics.duplicates) == 0
        bench.close()
        self.mortal.close()


def commits_of_an_undisturbed_run() -> Counter[str]:
    scenario = Scenario()
    scenario.mortal.left = -1
    scenario.mortal.names.clear()
    scenario.play()
    scenario.finish()
    scenario.check()
    return scenario.mortal.names


def test_an_undisturbed_run_does_everything() -> None:
    names = commits_of_an_undisturbed_run()
    expected = {
        "FENCE", "FAIL", "RESUBMIT", "SET_ASIDE", "BRING_BACK", "END", "ORDER", "CANCEL_FAILED", "END_TAIL", "CLOSE", "MET", "UNMET"
    }
    assert expected <= set(names)
    assert names["COLLECT"] == 14


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_leader_may_die_at_any_commit(after: bool) -> None:
    names = commits_of_an_undisturbed_run()
    total = names.total() - names["FORGET_NONCES"]
    assert total >= 36
    died = 0
    for left in range(total - 14):
        scenario = Scenario()
        scenario.mortal.left, scenario.mortal.after = left, after
        scenario.play()
        scenario.finish()
        scenario.check()
        died += scenario.leaders == 2
    assert died >= total - 26, "runs differ a little in their number of commits"


@pytest.mark.parametrize("fault", ["lose_reply", "lose_request"])
def test_the_link_may_fall_at_any_commit(fault: str) -> None:
    total = commits_of_an_undisturbed_run().total()
    for nth in range(1, total):
        scenario = Scenario()
        getattr(scenario.mortal, fault)(nth)
        scenario.play()
        scenario.finish()
        scenario.check()
        assert scenario.leaders == 1
        assert scenario.bench.count(scenario.bench.metrics.unknown_commits) == 0
