"""One leadership: what a leader knows and does between its TAKE-OVER and the loss of its fence.

Facts come from watches and a jittered resync; actions go out as fenced multis. Every decision lives in committed znodes, so a successor
reads the same facts and continues. Liveness is read first, then the rest.

Picks of servers for calls are made in the threads of RPCs, not in the leader's loop: a pick takes 0.1 ms and needs nothing that the loop
owns. The loop passes the settings to the metaserver, and its log to the store.
"""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import replace

import msgspec

from rmgr.coord.ops import leader as leader_ops
from rmgr.coord.protocol import keys, paths
from rmgr.coord.protocol.multi import Committed, Stamped
from rmgr.coord.protocol.records import decode_record
from rmgr.coord.views.health import of_servers, with_part
from rmgr.coord.views.snapshot import ClusterSnapshot
from rmgr.daemons.leader.nodes import NodeKeeper
from rmgr.daemons.leader.placement.event_log import EVERY_S, PIECE_BYTES, LogPieces
from rmgr.daemons.leader.placement.gangs import OpenClock
from rmgr.daemons.leader.placement.pipeline import pipeline_of
from rmgr.daemons.leader.placement.placer import Placer
from rmgr.daemons.leader.submissions.subs import SubmissionKeeper
from rmgr.daemons.leader.submissions.sweep import Census
from rmgr.daemons.leader.term import Term, read_again
from rmgr.daemons.leader.use import CapKeeper
from rmgr.daemons.service.metaserver import Metaserver
from rmgr.errors import ConfigError, WrongCluster
from rmgr.model.node import EpochRecord, Meta, NodeRecord
from rmgr.model.queue import ClusterSettings, UserLimits
from rmgr.model.servers import CALLS
from rmgr.model.version import raised, release
from rmgr.model.views import FaultView, Level, PartView, PolicyView, StatusView
from rmgr.runtime import machine
from rmgr.runtime.gang_clock import ClockReader
from rmgr.runtime.story import Pause, Story, each, insist

#: Most characters that may wait for the loop; lines beyond it are in no log.
MOST_BYTES = 16 * PIECE_BYTES


class Leader:
    """Nodes, submissions, settings and placed jobs of one leadership; lives in the WatchDog's loop.

    Args:
        record: what TAKE-OVER wrote into /epoch.
        resync_s: mean time between two comparisons of memory with znodes.
        inline_passes: the scheduler's passes run in the loop instead of a thread of their own.
        open_clock: makes the reader of the Starters' clocks; None asks the Starters.
    """

    def __init__(
        self,
        term: Term,
        record: EpochRecord,
        *,
        resync_s: float,
        inline_passes: bool = False,
        open_clock: OpenClock | None = None,
    ) -> None:
        self.node_changes = 0  #: number of changes of nodes so far
        self.record = record
        self.term = term
        self.resync_s = resync_s
        self._ensured: frozenset[str] = frozenset()
        self._config = self.term.mirror.data(paths.CONFIG, self._on_config)
        self._watchdogs = self.term.mirror.names(paths.WATCHDOGS, lambda: None)
        self.nodes = NodeKeeper(self)
        open_clock = open_clock or (lambda told: ClockReader(term.credentials, told))
        self.placer = Placer(term, self.nodes, open_clock=open_clock, inline=inline_passes)
        self.submissions = SubmissionKeeper(self)
        self._census = Census(self.submissions)
        self.caps = CapKeeper(self)
        self.server_calls = LeaderCalls(term)

    def start(self) -> None:
        """Begins the leadership. Settings come first: they hold the length of the grace."""
        self._config.refresh()
        self.nodes.start()
        self.submissions.start()
        self.placer.start()
        self._watchdogs.refresh()
        self.term.tell(self._keep_release(), paths.META)
        self._census.start()
        self.caps.start()
        self.term.tell(self._resyncs(), "the resync")

    def close(self) -> None:
        """Ends the leadership: nothing is done any more. Idempotent."""
        self.placer.close()
        self.server_calls.close()
        self.term.close()

    def revalidate(self) -> None:
        """Reads the fence before anything is written, because the same session is back (CAMEL-24457 used the opposite order)."""
        self.term.stories.end("the fence")
        self.term.tell(self._read_fence(), "the fence")

    def _read_fence(self) -> Story[None]:
        found = yield from insist(lambda: self.term.coordinator.get(paths.EPOCH, timeout_s=5.0), 0.2)
        if found is None or found.version != self.term.epoch_version:
            self.term.depose("the epoch has moved while the session was in doubt")
            return
        self.term.log.info("leadership_continued")
        self.term.resume()

    # -- settings

    def _on_config(self) -> None:
        found = self._config.value
        if found is None:
            return
        before = self.term.settings
        try:
            self.term.settings = now = decode_record(found.data, ClusterSettings, paths.CONFIG)
        except WrongCluster as error:
            self.term.log.error("settings_unreadable", error=error.message)
            return
        wanted = frozenset(path for queue in now.queues for path in (paths.pending(queue.name), paths.held(queue.name)))
        if wanted - self._ensured:
            self.term.tell(self._ensure(wanted), "directories of queues", key=wanted)
        self.server_calls.settings_read(now)
        if _placement_settings(now) != _placement_settings(before):
            self.submissions.reconsider()
            self.placer.settings_changed()

    def _ensure(self, wanted: frozenset[str]) -> Story[None]:
        """Makes the directories of new queues; `ensure` waits, so it runs where store calls run."""
        missing = sorted(wanted - self._ensured)
        yield self.term.in_zookeeper(lambda zookeeper: zookeeper.ensure(missing))
        self._ensured |= wanted

    def nodes_changed(self) -> None:
        """Takes in that nodes, entries or drains have changed."""
        self.node_changes += 1
        self.placer.nodes_changed()

    # -- resync

    def _resyncs(self) -> Story[None]:
        while True:
            yield Pause(self.resync_s * machine.uniform(0.5, 1.5))
            self.term.aside.attempt(self._resync)

    def _resync(self) -> None:
        self.term.tell(self._keep_release(), paths.META)
        self.nodes.resync()  # records before the list of entries
        self.term.tell(read_again(self.term.mirror.current()), "what is mirrored")
        self.submissions.resync()
        self.placer.resync()
        self.term.metrics.backlog.set(self.term.backlog)

    def _keep_release(self) -> Story[None]:
        """Raises the cluster's protocol version once all members support it, and marks the data store as bound. Cost: one read mostly."""
        found = yield self.term.get(paths.META)
        if found is None:
            return
        meta, mine = decode_record(found.data, Meta, paths.META), release().protocol
        if not meta.store_bound_us:
            owner = yield self.term.in_store(lambda store: store.cluster_id())
            if owner == meta.cluster_id:
                self.term.commit(leader_ops.mark_store(meta, found.version, self.term.wall_us()))
            return  # the protocol is checked by the next look
        members, names = [mine, *(record.protocol for record in self.living())], sorted(self._watchdogs.value or ())
        if mine <= meta.protocol or raised(meta.protocol, members) == meta.protocol or not names:
            return
        entries = yield from each([self.term.get(f"{paths.WATCHDOGS}/{name}") for name in names])  # an unreadable entry postpones the rise
        protocol = raised(meta.protocol, [*members, *(mine if one is None else _protocol(one) for one in entries)])
        if protocol > meta.protocol:
            outcome = yield self.term.commit(leader_ops.raise_protocol(meta, found.version, protocol))
            if isinstance(outcome, Committed):
                self.term.log.info("protocol_raised", version=protocol)

    def living(self) -> list[NodeRecord]:
        """Returns the nodes whose Starters are alive. In the loop."""
        return [record for record in self.nodes.records.values() if record.guid in self.nodes.alive]

    # -- answers

    def hurry(self) -> bool:
        """Sends the reads that were put off. Returns whether memory is as new as ZooKeeper was at the first call."""
        return self.nodes.hurry() and self.submissions.hurry()

    def snapshot(self) -> ClusterSnapshot:
        """Returns a copy of everything but claimed blocks, for another thread. Cost: O(submissions + tasks) bytes."""
        known = [followed for followed in self.submissions.followed.values() if followed.submission is not None and followed.is_loaded]
        return ClusterSnapshot(
            settings=self.term.settings,
            epoch=self.record,
            leader_alive=True,
            watchdogs=len(self._watchdogs.value or ()),
            submissions={item.number: (item.submission, item.progress.copy()) for item in known if item.submission is not None},
            nodes=dict(self.nodes.records),
            alive=self.nodes.alive,
            drains=dict(self.nodes.drains),
            resumed=dict(self.nodes.resumed),
            troubles=dict(self.nodes.troubles),
            aside=self.term.aside.told(),
            nowhere=dict(self._census.nowhere),
            ownerless=self.submissions.ownerless(),
            waiting={item.number: sum(seen.count for seen in item.failed.values()) for item in known if item.failed},
        )


def _placement_settings(settings: ClusterSettings) -> ClusterSettings:
    """Returns settings without those of calls and users, whose change need not rebuild the placement of jobs."""
    pipelines = tuple(spec for spec in settings.pipelines if spec.partition != CALLS)
    return replace(settings, pipelines=pipelines, limits=UserLimits(), changed_by="", changed_us=0)


def _protocol(found: Stamped) -> int:
    """Returns the protocol that a candidate supports, 0 if its entry cannot be read."""
    try:
        return decode_record(found.data, EpochRecord, paths.WATCHDOGS).protocol
    except WrongCluster:
        return 0


class LeaderCalls:
    """Calls of one leadership. Attributes: metaserver: may be asked from any thread once `is_ready`."""

    def __init__(self, term: Term) -> None:
        self._term = term
        self._ready = threading.Event()
        self._log = CallLog(term)
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

    def __init__(self, term: Term) -> None:
        self._term = term
        self._pieces = LogPieces(term, keys.PICKS, lambda: term.settings.log_ttl_s)
        self._lock = threading.Lock()
        self._lines: list[str | None] = []  # None: a new log begins
        self._bytes = 0
        self._is_due = False  # a flush is scheduled in the loop
        self._is_hurried = False

    @property
    def has_room(self) -> bool:
        return self._bytes < MOST_BYTES and self._pieces.has_room

    def begin(self) -> None:
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
            self._term.soon(self.flush)
        elif first:
            self._term.soon(lambda: self._term.after(EVERY_S, self.flush))

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


def _monotonic_us() -> int:
    return round(machine.monotonic() * 1e6)
