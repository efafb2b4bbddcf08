"""The leader's part in calls: the metaserver of one leadership, its event log, and a WatchDog's answers about servers.

Picks are made in the threads of RPCs, not in the leader's loop: a pick takes 0.1 ms and needs nothing that the loop owns. The loop passes
the settings to the metaserver, and its log to the store.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from rmgr.coord.protocol import keys
from rmgr.coord.views.health import of_servers, with_part
from rmgr.daemons.leader.metrics import LeaderMetrics
from rmgr.daemons.leader.placement.event_log import EVERY_S, PIECE_BYTES, LogPieces
from rmgr.daemons.leader.placement.pipeline import pipeline_of
from rmgr.daemons.leader.tree import LeaderContext
from rmgr.daemons.service.metaserver import Metaserver
from rmgr.errors import ConfigError, Unavailable
from rmgr.model.cluster.queue import ClusterSettings
from rmgr.model.cluster.servers import CALLS, GatewayReport, Pick, PickRequest, ReportAnswer, ServersView
from rmgr.model.views import FaultView, Level, PartView, PolicyView, StatusView
from rmgr.runtime import machine
from rmgr.runtime.failpoint import failpoint

if TYPE_CHECKING:
    from rmgr.daemons.leader.leader import Leader

#: Longest time until a new leader knows its settings; until then no server is picked.
BEGINS_S = 0.8
#: Most characters that may wait for the loop; lines beyond it are in no log.
MOST_BYTES = 16 * PIECE_BYTES


class LeaderCalls:
    """Calls of one leadership. Attributes: metaserver: may be asked from any thread once `is_ready`."""

    def __init__(self, context: LeaderContext) -> None:
        self._term = term = context.term
        self._ready = threading.Event()
        self._log = CallLog(context)
        self._problem = ""
        self._faults: Counter[str] = Counter()
        self._errors: dict[str, str] = {}
        ahead_us = term.wall_us() - _monotonic_us()
        self.metaserver = Metaserver(
            lambda: _monotonic_us() + ahead_us,
            epoch=term.epoch,
            lines=self._log,
            failed=self._report_fault,
            about={"epoch": term.epoch, "calls": "live"},
        )

    def is_ready(self, timeout_s: float) -> bool:
        """Waits until the settings are known. Returns False after `timeout_s`."""
        return self._ready.wait(timeout_s)

    def settings_read(self, settings: ClusterSettings) -> None:
        """Sets the policy of partition `calls`. In the loop. An unusable policy changes nothing, and is reported."""
        spec = pipeline_of(settings, CALLS)
        try:
            self._problem = ""
            if self.metaserver.set_pipeline(spec):
                self._term.log.info("call_policy_set", policy=spec.name, partition=CALLS)
        except ConfigError as error:
            self._problem = f"{spec.name}: {error.message}"
            self._term.log.error("pipeline_unusable", partition=CALLS, error=error.message)
        self._ready.set()

    def shown_in(self, view: StatusView) -> StatusView:
        """Adds what `rmgr status` shows about calls; nothing while no server was reported. From any thread."""
        told = self.metaserver.servers()
        able = [server for server in told.servers if server.state in {"open", "stale", "odd"}]
        problem = self._problem or self.metaserver.instead()
        if told.servers:
            mine = PolicyView(
                partition=CALLS,
                policy=told.policy,
                passes=self.metaserver.passes,
                faults=tuple(FaultView(policy=name, count=count, error=self._errors[name]) for name, count in sorted(self._faults.items())),
                problem=problem,
                servers=len(able),
                age_s=max((server.age_s for server in able), default=0.0),
            )
            view = msgspec.structs.replace(of_servers(view) if able else view, policies=(*view.policies, mine))
        if not problem:
            return view
        fix = f"rmgr policy set NAME --partition {CALLS}"
        return with_part(view, PartView(kind="partition", id=CALLS, state="policy", reason=problem, fix=fix, level=Level.WARNING))

    def close(self) -> None:
        """Ends the metaserver with the leadership. In the loop."""
        self.metaserver.close()
        self._log.flush()

    def _report_fault(self, policy: str, error: str) -> None:
        self._errors[policy] = error
        self._faults[policy] += 1
        self._term.metrics.policy_faults.inc()
        self._term.log.error("policy_failed", policy=policy, partition=CALLS, error=error)


class CallLog:
    """Implements `service.metaserver.LogLines` for any thread; the loop stores pieces, a few times a second at most."""

    def __init__(self, context: LeaderContext) -> None:
        self._loop = context.tree
        self._pieces = LogPieces(context, keys.PICKS, lambda: context.settings.log_ttl_s)
        self._lock = threading.Lock()
        self._lines: list[str | None] = []  # None: a new log begins
        self._bytes = 0
        self._is_due = False  # a flush is scheduled in the loop
        self._is_hurried = False

    @property
    def has_room(self) -> bool:
        """See `LogLines`."""
        return self._bytes < MOST_BYTES and self._pieces.has_room

    def begin(self) -> None:
        """See `LogLines`."""
        with self._lock:
            self._lines.append(None)

    def write(self, line: str, /) -> None:
        """See `LogLines`. Cost: 1 us."""
        with self._lock:
            self._lines.append(line)
            self._bytes += len(line)
            hurry = self._bytes >= PIECE_BYTES and not self._is_hurried
            first = not self._is_due
            self._is_due, self._is_hurried = True, self._is_hurried or hurry
        if hurry:
            self._loop.soon(self.flush)
        elif first:
            self._loop.soon(self._flush_later)

    def _flush_later(self) -> None:
        self._loop.after(EVERY_S, self.flush)

    def flush(self) -> None:
        """Passes all written lines to the store. In the loop."""
        with self._lock:
            lines, self._lines, self._bytes = self._lines, [], 0
            self._is_due = self._is_hurried = False
        for line in lines:
            if line is None:
                self._pieces.begin()
            else:
                self._pieces.write(line)
        self._pieces.flush()


class CallAnswering:
    """Implements `adapters.rpc.metaserver.MetaserverAnswers`; called on threads of the server.

    Args: leader: the current leadership, None while this WatchDog does not lead.
    """

    def __init__(self, leader: Callable[[], Leader | None], metrics: LeaderMetrics) -> None:
        self._leader = leader
        self._metrics = metrics

    def report(self, report: GatewayReport) -> ReportAnswer:
        """See `MetaserverAnswers`."""
        answer = self._metaserver().report(report)
        self._metrics.call_reports.inc()
        return answer

    def pick(self, asked: PickRequest) -> Pick:
        """See `MetaserverAnswers`."""
        metaserver = self._metaserver()
        began_s = machine.perf_counter()
        failpoint("calls.scheduler")
        found = metaserver.pick(asked)
        took_s = machine.perf_counter() - began_s
        if not asked.explain:
            outcome = "sent" if found.server else "unknown" if found.unknown else "none"
            self._metrics.call_picks.labels(outcome).inc()
            self._metrics.call_pick_seconds.observe(took_s)
        return msgspec.structs.replace(found, took_us=round(took_s * 1e6))

    def servers(self, name: str) -> ServersView:
        """See `MetaserverAnswers`."""
        return self._metaserver().servers(name)

    def _metaserver(self) -> Metaserver:
        """Returns the leader's metaserver. Raises: Unavailable."""
        leader = self._leader()
        if leader is None:
            raise Unavailable("this WatchDog does not lead", hint="rmgr status finds the one that does")
        if not leader.server_calls.is_ready(BEGINS_S):
            raise Unavailable("this WatchDog has just begun to lead, and does not know the settings yet", hint="ask again in a moment")
        return leader.server_calls.metaserver


def _monotonic_us() -> int:
    return round(machine.monotonic() * 1e6)
