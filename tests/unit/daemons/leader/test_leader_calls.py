"""The leader's metaserver beside its loop: the policy of the settings, what status tells, and who refuses."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from rmgr.daemons.leader.calls import CallAnswering, LeaderCalls
from rmgr.daemons.leader.metrics import LeaderMetrics
from rmgr.errors import Unavailable
from rmgr.model.cluster.queue import ClusterSettings, PipelineSpec
from rmgr.model.cluster.servers import CALLS, GatewayReport, PickRequest, ServerLoad, ServerReport
from rmgr.model.views import StatusView
from tests.harness.metric_rows import value_of

STATUS = StatusView(healthy=True, leader=None, zookeeper={}, store={}, counts={}, nodes={})


class Log:
    def __init__(self) -> None:
        self.events: list[str] = []

    def info(self, event: str, **_fields: object) -> None:
        self.events.append(event)

    error = warning = info


class Term:
    epoch = 9

    def __init__(self) -> None:
        self.log, self.metrics = Log(), LeaderMetrics()

    def wall_us(self) -> int:
        return 10**15


class Loop:
    """Nothing of it comes about."""

    def clock(self) -> float:
        return 0.0

    def soon(self, what: Callable[[], None], /) -> None:
        pass

    def after(self, delay_s: float, what: Callable[[], None], /) -> Any:
        pass

    def tell(self, *_: object) -> None:
        pass


def settings(policy: str = "") -> ClusterSettings:
    spec = PipelineSpec(partition=CALLS, name=policy, document=f'{{"stage": [{{"policy": "{policy}"}}]}}')
    return ClusterSettings(pipelines=(spec,) if policy else ())


@pytest.fixture
def calls() -> LeaderCalls:
    context = SimpleNamespace(tree=Loop(), term=Term(), calls=Loop(), settings=settings())
    return LeaderCalls(context)  # type: ignore[arg-type]


SERVERS = (ServerReport(name="s1", life=1, load=ServerLoad()), ServerReport(name="s2", life=1, state="away"))
REPORT = GatewayReport(gateway="g:1", servers=SERVERS)


def test_who_does_not_lead_or_does_not_know_its_settings_yet_refuses(calls: LeaderCalls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmgr.daemons.leader.calls.BEGINS_S", 0.01)

    class Leading:
        server_calls = calls

    metrics = LeaderMetrics()
    with pytest.raises(Unavailable, match="does not lead"):
        CallAnswering(lambda: None, metrics).servers("")
    answering = CallAnswering(Leading, metrics)
    with pytest.raises(Unavailable, match="has just begun to lead"):
        answering.pick(PickRequest(gateway="g:1", function="", operations=1, bytes=1))
    calls.settings_read(settings())
    assert answering.pick(PickRequest(gateway="g:1", function="", operations=1, bytes=1)).why == "no server offers it"
    assert value_of(metrics.call_picks.labels("none")) == 1


def test_the_policy_of_the_settings_picks_and_one_that_cannot_be_used_changes_nothing(calls: LeaderCalls) -> None:
    calls.settings_read(settings())
    assert calls.shown_in(STATUS) == STATUS
    calls.settings_read(settings("loth"))
    calls.metaserver.report(REPORT)
    view = calls.shown_in(STATUS)
    assert [(one.partition, one.policy, one.servers, one.problem) for one in view.policies] == [(CALLS, "loth", 1, "")]
    calls.settings_read(settings("easy"))
    view = calls.shown_in(STATUS)
    assert view.policies[0].policy == "loth"
    assert view.healthy
    assert "easy places jobs, it chooses no servers for calls" in view.warnings[0]
    calls.settings_read(settings())
    assert [(one.policy, one.problem) for one in calls.shown_in(STATUS).policies] == [("loth+l", "")]
