"""A leadership: what one leader knows and does between its TAKE-OVER and the loss of its fence.

Facts come in by watches and a jittered resync, reconcile actions go out as fenced multis; no decision lives anywhere but in
committed znodes, so that a successor reads the same facts and goes on. Liveness is read first, then the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from functools import partial

from rmgr.coord.decisions.liveness import MassLoss
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Stamped
from rmgr.coord.protocol.records import decode_record
from rmgr.coord.views.snapshot import ClusterSnapshot
from rmgr.daemons.leader.core.context import LeaderContext
from rmgr.daemons.leader.core.watched_cache import data_of, names_below
from rmgr.daemons.leader.nodes.nodes import NodeKeeper
from rmgr.daemons.leader.placement.gangs import OpenClock
from rmgr.daemons.leader.placement.placer import Placer
from rmgr.daemons.leader.submissions.census import Census
from rmgr.daemons.leader.submissions.history import HistoryKeeper
from rmgr.daemons.leader.submissions.subs import SubmissionKeeper
from rmgr.daemons.leader.term.calls import LeaderCalls
from rmgr.daemons.leader.term.caps import CapKeeper
from rmgr.daemons.leader.term.release import ReleaseKeeper
from rmgr.daemons.leader.term.requests import RequestKeeper
from rmgr.errors import WrongCluster
from rmgr.model.cluster.node import EpochRecord, NodeRecord
from rmgr.model.cluster.queue import ClusterSettings, UserLimits
from rmgr.model.cluster.servers import CALLS
from rmgr.runtime import machine
from rmgr.runtime.aside import Aside
from rmgr.runtime.gang_clock import ClockReader


class Leader:
    """Nodes, submissions, settings, placed jobs; lives in the WatchDog's loop.

    Args:
        record: what TAKE-OVER wrote into /epoch.
        resync_s: mean time between two comparisons of memory and znodes.
        inline_passes: the scheduler's passes run in the loop, not in a thread of their own.
        open_clock: makes what reads clocks of Starters; None: it asks them.
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
        self.settings = ClusterSettings()
        self.node_changes = 0  #: how often something has changed of the nodes
        self.record = record
        self._tree = tree = context.tree
        self._term = term = context.term
        self._calls = calls = context.calls
        self._coordinator = context.coordinator
        self._resync_s = resync_s
        self._ensured: frozenset[str] = frozenset()
        self._config = data_of(tree, paths.CONFIG, self._on_config)
        self._watchdogs = names_below(tree, paths.WATCHDOGS, lambda: None)
        window_s = 2 * context.coordinator.session_timeout_s
        self.nodes = NodeKeeper(tree, term, lambda: self.settings, self._queue_of, window_s=window_s, changed=self._on_nodes)
        self.placer = Placer(
            tree, term, calls, lambda: self.settings, self.nodes,
            open_clock=open_clock or partial(ClockReader, context.credentials), inline=inline_passes,
        )  # fmt: skip
        self._release = ReleaseKeeper(tree, term, calls, self.living, lambda: self._watchdogs.value or ())
        self.submissions = SubmissionKeeper(
            tree, term, calls, lambda: self.settings, lambda: self.node_names, getattr(context.coordinator, "drop_link", None),
            self.placer.amended,
        )  # fmt: skip
        self._census = Census(tree, term, calls, self.submissions.followed, lambda: self.node_names)
        self.caps = CapKeeper(tree, calls, self.submissions.followed, lambda: self.settings, self.nodes)
        self._requests = RequestKeeper(tree, term, self.placer.user_requests.add)
        self._history = HistoryKeeper(tree, term, calls, lambda: self.settings)
        self.server_calls = LeaderCalls(tree, term, calls, lambda: self.settings)

    def start(self) -> None:
        """Begins the leadership. Settings first: they say how long a grace is."""
        self._config.refresh()
        self.nodes.start()
        self.submissions.start()
        self.placer.start()
        self._watchdogs.refresh()
        self._requests.start()
        self._history.start()
        self._release.look()
        self._census.start()
        self.caps.start()
        self._tree.after(self._jitter(), self._resync)

    def close(self) -> None:
        """The leadership is over: nothing is done any more. Idempotent."""
        self.placer.close()
        self.server_calls.close()
        self._tree.close()

    def pause(self) -> None:
        """The session is in doubt: nothing is sent from now on."""
        self._tree.pause()

    def revalidate(self) -> None:
        """The same session is back: the fence is read before anything is written (CAMEL-24457 did it the other way round)."""
        future: Future[Stamped | None] = self._coordinator.get(paths.EPOCH, timeout_s=5.0)
        future.add_done_callback(lambda done: self._tree.soon(partial(self._on_epoch, done)))

    def _on_epoch(self, future: Future[Stamped | None]) -> None:
        if future.exception() is not None:
            self._tree.after(0.2, self.revalidate)
            return
        found = future.result()
        if found is None or found.version != self._term.epoch_version:
            self._tree.depose("the epoch has moved while the session was in doubt")
            return
        self._term.log.info("leadership_continued", epoch=self.record.epoch)
        self._tree.resume()

    # -- settings

    def _on_config(self) -> None:
        found = self._config.value
        if found is None:
            return
        before = self.settings
        try:
            self.settings = decode_record(found.data, ClusterSettings, paths.CONFIG)
        except WrongCluster as error:
            self._term.log.error("settings_unreadable", error=error.message)
            return
        wanted = frozenset(path for queue in self.settings.queues for path in (paths.pending(queue.name), paths.held(queue.name)))
        if wanted - self._ensured:
            self._ensure(wanted)
        self.server_calls.settings_read(self.settings)
        if _of_jobs(self.settings) != _of_jobs(before):
            self.submissions.reconsider()
            self.placer.settings_changed()

    def _ensure(self, wanted: frozenset[str]) -> None:
        """Directories of new queues; `ensure` waits, so it runs where store calls do."""
        missing = sorted(wanted - self._ensured)

        def ensured(_: object) -> None:
            self._ensured |= wanted

        self._calls.coordinator(lambda zookeeper: zookeeper.ensure(missing), ensured, lambda _: None)

    def _on_nodes(self) -> None:
        self.node_changes += 1
        self.placer.nodes_changed()

    def _queue_of(self, number: int, then: Callable[[str | None], None]) -> None:
        self.submissions.queue_of(number, then)

    # -- resync

    def _resync(self) -> None:
        self._tree.after(self._jitter(), self._resync)
        self._config.refresh()
        self._watchdogs.refresh()
        self._release.look()
        self._requests.resync()
        self.nodes.resync()
        self.submissions.resync()
        self.placer.resync()
        self._term.metrics.backlog.set(self._tree.backlog)

    def living(self) -> list[NodeRecord]:
        """Nodes whose Starters are there. In the loop."""
        return [record for record in self.nodes.records.values() if record.guid in self.nodes.alive]

    def _jitter(self) -> float:
        return self._resync_s * machine.uniform(0.5, 1.5)

    # -- answers

    @property
    def node_names(self) -> list[str]:
        """All nodes, by name. From any thread."""
        return sorted(self.nodes.records)

    @property
    def mass_loss(self) -> MassLoss | None:
        """The mass loss under way. From any thread."""
        return self.nodes.mass

    @property
    def aside(self) -> Aside:
        """What raised in this term, and is told in `rmgr status`."""
        return self._term.aside

    def hurry(self) -> bool:
        """Reads now what was put off. Returns: memory is as new as ZooKeeper was when this was first called."""
        return self.nodes.hurry() and self.submissions.hurry()

    def snapshot(self) -> ClusterSnapshot:
        """A copy of everything, for another thread; claimed blocks aside. Cost: O(submissions + tasks) bytes."""
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


def _of_jobs(settings: ClusterSettings) -> ClusterSettings:
    """Without what is of calls, and of users: another policy there, or another cap, rebuilds nothing that jobs are placed by."""
    pipelines = tuple(spec for spec in settings.pipelines if spec.partition != CALLS)
    return replace(settings, pipelines=pipelines, limits=UserLimits(), changed_by="", changed_us=0)
