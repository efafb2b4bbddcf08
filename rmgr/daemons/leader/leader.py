"""One leadership: what a leader knows and does between its TAKE-OVER and the loss of its fence.

Facts come from watches and a jittered resync; actions go out as fenced multis. Every decision lives in committed znodes, so a successor
reads the same facts and continues. Liveness is read first, then the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

from rmgr.coord.decisions.liveness import MassLoss
from rmgr.coord.ops import leader as leader_ops
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Committed, Stamped
from rmgr.coord.protocol.records import decode_record
from rmgr.coord.views.snapshot import ClusterSnapshot
from rmgr.daemons.leader.calls import LeaderCalls
from rmgr.daemons.leader.nodes import NodeKeeper
from rmgr.daemons.leader.placement.gangs import OpenClock
from rmgr.daemons.leader.placement.placer import Placer
from rmgr.daemons.leader.submissions.subs import SubmissionKeeper
from rmgr.daemons.leader.submissions.sweep import Census
from rmgr.daemons.leader.tree import LeaderContext
from rmgr.daemons.leader.use import CapKeeper
from rmgr.errors import RmgrError, WrongCluster
from rmgr.model.base.version import raised
from rmgr.model.cluster.node import EpochRecord, Meta, NodeRecord
from rmgr.model.cluster.queue import ClusterSettings, UserLimits
from rmgr.model.cluster.servers import CALLS
from rmgr.runtime import machine
from rmgr.runtime.aside import Aside
from rmgr.runtime.gang_clock import ClockReader
from rmgr.runtime.release import release
from rmgr.runtime.story import Pause, Story, each


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
        context: LeaderContext,
        record: EpochRecord,
        *,
        resync_s: float,
        inline_passes: bool = False,
        open_clock: OpenClock | None = None,
    ) -> None:
        self.node_changes = 0  #: number of changes of nodes so far
        self.record = record
        self.context = context
        self._tree, self._term, self._calls = context.tree, context.term, context.calls
        self._resync_s = resync_s
        self._ensured: frozenset[str] = frozenset()
        self._config = self._tree.mirror.data(paths.CONFIG, self._on_config)
        self._watchdogs = self._tree.mirror.names(paths.WATCHDOGS, lambda: None)
        window_s = 2 * context.coordinator.session_timeout_s
        self.nodes = NodeKeeper(context, self._queue_of, window_s=window_s, changed=self._on_nodes)
        open_clock = open_clock or partial(ClockReader, context.credentials)
        self.placer = Placer(context, self.nodes, open_clock=open_clock, inline=inline_passes)
        self.submissions = SubmissionKeeper(context, lambda: self.node_names, self.placer.amended)
        self._census = Census(context, self.submissions.followed, lambda: self.node_names)
        self.caps = CapKeeper(context, self.submissions.followed, self.nodes)
        self._release = ReleaseKeeper(context, self.living, lambda: self._watchdogs.value or ())
        self.server_calls = LeaderCalls(context)

    def start(self) -> None:
        """Begins the leadership. Settings come first: they hold the length of the grace."""
        self._config.refresh()
        self.nodes.start()
        self.submissions.start()
        self.placer.start()
        self._watchdogs.refresh()
        self._release.look()
        self._census.start()
        self.caps.start()
        self._tree.tell(self._resyncs(), "the resync")

    def close(self) -> None:
        """Ends the leadership: nothing is done any more. Idempotent."""
        self.placer.close()
        self.server_calls.close()
        self._tree.close()

    def pause(self) -> None:
        """Sends nothing from now on: the session is in doubt."""
        self._tree.pause()

    def revalidate(self) -> None:
        """Reads the fence before anything is written, because the same session is back (CAMEL-24457 used the opposite order)."""
        self._tree.stories.end("the fence")
        self._tree.tell(self._read_fence(), "the fence")

    def _read_fence(self) -> Story[None]:
        while True:
            try:
                found = yield self.context.coordinator.get(paths.EPOCH, timeout_s=5.0)
                break
            except RmgrError:
                yield Pause(0.2)
        if found is None or found.version != self._term.epoch_version:
            self._tree.depose("the epoch has moved while the session was in doubt")
            return
        self._term.log.info("leadership_continued", epoch=self.record.epoch)
        self._tree.resume()

    # -- settings

    @property
    def settings(self) -> ClusterSettings:
        """The cluster's current settings."""
        return self.context.settings

    def _on_config(self) -> None:
        found = self._config.value
        if found is None:
            return
        before = self.settings
        try:
            self.context.settings = decode_record(found.data, ClusterSettings, paths.CONFIG)
        except WrongCluster as error:
            self._term.log.error("settings_unreadable", error=error.message)
            return
        wanted = frozenset(path for queue in self.settings.queues for path in (paths.pending(queue.name), paths.held(queue.name)))
        if wanted - self._ensured:
            self._tree.tell(self._ensure(wanted), "directories of queues", key=wanted)
        self.server_calls.settings_read(self.settings)
        if _placement_settings(self.settings) != _placement_settings(before):
            self.submissions.reconsider()
            self.placer.settings_changed()

    def _ensure(self, wanted: frozenset[str]) -> Story[None]:
        """Makes the directories of new queues; `ensure` waits, so it runs where store calls run."""
        missing = sorted(wanted - self._ensured)
        yield self._calls.coordinator(lambda zookeeper: zookeeper.ensure(missing))
        self._ensured |= wanted

    def _on_nodes(self) -> None:
        self.node_changes += 1
        self.placer.nodes_changed()

    def _queue_of(self, number: int) -> Story[str | None]:
        return self.submissions.queue_of(number)

    # -- resync

    def _resyncs(self) -> Story[None]:
        while True:
            yield Pause(self._resync_s * machine.uniform(0.5, 1.5))
            self._term.aside.attempt(self._resync)

    def _resync(self) -> None:
        self._release.look()
        self.nodes.resync()  # records before the list of entries
        self._tree.tell(self._tree.mirror.read_again(), "what is mirrored")
        self.submissions.resync()
        self.placer.resync()
        self._term.metrics.backlog.set(self._tree.backlog)

    def living(self) -> list[NodeRecord]:
        """Returns the nodes whose Starters are alive. In the loop."""
        return [record for record in self.nodes.records.values() if record.guid in self.nodes.alive]

    # -- answers

    @property
    def node_names(self) -> list[str]:
        """Names of all nodes, sorted. From any thread."""
        return sorted(self.nodes.records)

    @property
    def mass_loss(self) -> MassLoss | None:
        """The current mass loss, or None. From any thread."""
        return self.nodes.mass

    @property
    def aside(self) -> Aside:
        """What raised in this term; `rmgr status` shows it."""
        return self._term.aside

    def hurry(self) -> bool:
        """Sends the reads that were put off. Returns whether memory is as new as ZooKeeper was at the first call."""
        return self.nodes.hurry() and self.submissions.hurry()

    def snapshot(self) -> ClusterSnapshot:
        """Returns a copy of everything but claimed blocks, for another thread. Cost: O(submissions + tasks) bytes."""
        known = [followed for followed in self.submissions.followed.values() if followed.submission is not None and followed.is_loaded]
        return ClusterSnapshot(
            settings=self.settings,
            epoch=self.record,
            leader_alive=True,
            watchdogs=len(self._watchdogs.value or ()),
            submissions={item.number: (item.submission, item.progress.copy()) for item in known if item.submission is not None},
            nodes=dict(self.nodes.records),
            alive=self.nodes.alive,
            drains=dict(self.nodes.drains),
            resumed=dict(self.nodes.resumed),
            troubles=dict(self.nodes.troubles),
            aside=self._term.aside.told(),
            nowhere=dict(self._census.nowhere),
            ownerless=self.submissions.ownerless(),
            waiting={item.number: sum(seen.count for seen in item.failed.values()) for item in known if item.failed},
        )


def _placement_settings(settings: ClusterSettings) -> ClusterSettings:
    """Returns settings without those of calls and users, whose change need not rebuild the placement of jobs."""
    pipelines = tuple(spec for spec in settings.pipelines if spec.partition != CALLS)
    return replace(settings, pipelines=pipelines, limits=UserLimits(), changed_by="", changed_us=0)


class ReleaseKeeper:
    """Raises the cluster's protocol version once all members support it, and marks the data store as bound.

    Args: starters: records of the nodes whose Starters live. watchdogs: names of all candidates.
    """

    def __init__(
        self,
        context: LeaderContext,
        starters: Callable[[], Iterable[NodeRecord]],
        watchdogs: Callable[[], Iterable[str]],
    ) -> None:
        self._tree, self._term, self._calls = context.tree, context.term, context.calls
        self._starters = starters
        self._watchdogs = watchdogs

    def look(self) -> None:
        """Starts one comparison. Cost: one read while nothing changes."""
        self._tree.tell(self._look(), paths.META)

    def _look(self) -> Story[None]:
        found = yield self._tree.get(paths.META)
        if found is None:
            return
        meta, mine = decode_record(found.data, Meta, paths.META), release().protocol
        if not meta.store_bound_us:
            owner = yield self._calls.store(lambda store: store.cluster_id())
            if owner == meta.cluster_id:
                self._tree.commit(leader_ops.mark_store(meta, found.version, self._term.wall_us()))
            return  # the protocol is checked by the next look
        members, names = [mine, *(record.protocol for record in self._starters())], sorted(self._watchdogs())
        if mine <= meta.protocol or raised(meta.protocol, members) == meta.protocol or not names:
            return
        entries = yield from each([self._tree.get(f"{paths.WATCHDOGS}/{name}") for name in names])  # an unreadable entry postpones the rise
        protocol = raised(meta.protocol, [*members, *(mine if one is None else _protocol(one) for one in entries)])
        if protocol > meta.protocol:
            outcome = yield self._tree.commit(leader_ops.raise_protocol(meta, found.version, protocol))
            if isinstance(outcome, Committed):
                self._term.log.info("protocol_raised", version=protocol, epoch=self._term.epoch)


def _protocol(found: Stamped) -> int:
    """Returns the protocol that a candidate supports, 0 if its entry cannot be read."""
    try:
        return decode_record(found.data, EpochRecord, paths.WATCHDOGS).protocol
    except WrongCluster:
        return 0
