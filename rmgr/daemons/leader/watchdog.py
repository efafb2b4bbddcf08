"""The WatchDog: a process that stands for election, leads when elected, and hands over when asked to end.

    session -> entry -> first? -> TAKE-OVER committed -> leads under the version E of /epoch
                    -> behind: watch the predecessor only, look again when it goes

One thread owns all state and takes messages (thunks) from one mailbox; callbacks of ZooKeeper and the store only put messages there.
Entries and watches are only hints: a WatchDog leads only by the version that its TAKE-OVER gave to /epoch, which each of its writes checks.
Loss of the session or of the lease ends a leadership at once; only the fence decides which commits still succeeded.
"""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import replace

from rmgr.adapters.identity.credentials import Credentials
from rmgr.adapters.rpc import metaserver as rpc_metaserver
from rmgr.adapters.rpc.services import join_handler, leader_handler, use_handler
from rmgr.adapters.zookeeper.tree import secure_tree
from rmgr.config import Config
from rmgr.coord.decisions import liveness
from rmgr.coord.decisions.liveness import Absent, Behind, First
from rmgr.coord.ops import leader as ops
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Committed
from rmgr.coord.protocol.ports import Coordinator, SessionState, Store
from rmgr.coord.protocol.records import decode_record
from rmgr.daemons.leader.answering import CallAnswering, ClusterMetrics, Joining, LeaderAnswering, LeaderUse, StarterReach, certificate_ends
from rmgr.daemons.leader.leader import Leader
from rmgr.daemons.leader.term import LeaderMetrics, Term
from rmgr.daemons.service.serving import DaemonShell
from rmgr.errors import RmgrError, VersionMismatch, WrongCluster
from rmgr.model.identity import Role
from rmgr.model.node import EpochRecord, Meta, NodeRecord
from rmgr.model.version import check_release, release
from rmgr.procedures.bootstrap import bootstrap, check_same
from rmgr.runtime import machine
from rmgr.runtime.aside import Aside
from rmgr.runtime.failpoint import failpoint
from rmgr.runtime.interpreter import set_for_daemon
from rmgr.runtime.machine import Log
from rmgr.runtime.mailbox import Mailbox, run_loop
from rmgr.runtime.secured import advertised, advertised_metrics
from rmgr.runtime.story import Bell, Pause, Stories, Story, StoryLoop, insist
from rmgr.runtime.supervision import Lease, Notifier, StallGuard
from rmgr.runtime.zookeeper_clock import ZooKeeperClock

Thunk = Callable[[], object]
#: A leader takes over anew because of clocks at most this often: where two time services set one in turn, no term would come to anything.
_HEARING_S = 300.0
#: Pause before a look at the line of candidates that failed is repeated, about.
_AGAIN_S = 0.2
#: A loop that takes longer than this for one message counts as dead: the process ends and its successor takes over.
STALL_S = 12.0
#: The loop wakes up at least this often.
_ROUND_S = 2.5
_IO_THREADS = 2
_RPC_THREADS = 64
#: Longest time for the loop to list the nodes.
_ANSWER_S = 4.0


class Candidacy:
    """This WatchDog's place in the line of candidates.

    Args:
        record: endpoint, host and pid of this WatchDog; epoch, candidate and time are filled in at each take-over.
        loop: the loop that it lives in.
        leads: called with the record, the version E of /epoch and ZooKeeper's clock after a committed take-over.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        record: EpochRecord,
        loop: StoryLoop,
        *,
        leads: Callable[[EpochRecord, int, ZooKeeperClock], None],
        log: Log,
    ) -> None:
        self._coordinator = coordinator
        self._record = record
        self._loop = loop
        self._leads = leads
        self._log = log
        self._stories = Stories(loop)
        self._guid = ""  # of the entry; each session has its own, so an entry of an old session is never taken for the current one
        self._is_leading = False
        self._unreadable = ""  # why `/epoch` could not be read
        self.is_standing = False  #: in the line, or leading

    def enter(self) -> None:
        """Makes a new entry for a new session."""
        self._guid = machine.guid()
        self._is_leading = False
        self._begin(self._stand(enters=True))

    def leave(self) -> None:
        """Forgets the entry, which went with its session."""
        self._stories.stop()
        self._guid = ""
        self._is_leading = False
        self.is_standing = False

    def look(self) -> None:
        """Looks again at the place in the line, after a reconnection or a hint."""
        if self._guid and not self._is_leading:
            self._begin(self._stand())

    def stepped_down(self) -> None:
        """Returns to the line after a pause: the leadership ended, but the session may still be there."""
        self._is_leading = False
        if self._guid:
            self._begin(self._stand(pauses=True))

    def _begin(self, story: Story[None]) -> None:
        """Replaces the current story; its answers are ignored from now on."""
        self._stories.stop()
        self._stories.begin(story)

    def _stand(self, *, enters: bool = False, pauses: bool = False) -> Story[None]:
        """Stays in the line until this WatchDog leads."""
        while True:
            if pauses:
                yield Pause(_AGAIN_S * machine.uniform(0.5, 1.5))
            pauses = True
            try:
                if enters:
                    enters = False
                    yield self._coordinator.commit(ops.stand(self._guid, replace(self._record, since_us=machine.wall_us())))
                # Whatever the outcome, the list of candidates shows it.
                children = (yield self._coordinator.children(paths.WATCHDOGS)) or []
                for double in liveness.doubles(children, self._guid):
                    self._coordinator.commit(ops.leave_line(double))
                match liveness.standing(children, self._guid):
                    case Absent():
                        enters = True
                    case First(name):
                        if (yield from self._take_over(name)):
                            return
                    case Behind(name, predecessor):
                        self.is_standing, pauses = True, False
                        self._log.info("candidate_waits", candidate=name, leader=predecessor)
                        gone = Bell(self._loop)
                        if (yield self._coordinator.stat(f"{paths.WATCHDOGS}/{predecessor}", watch=gone.ring)) is not None:
                            yield gone.heard()
            except RmgrError as error:
                pauses = True
                self._log.debug("election_read_failed", error=error.message)

    def _take_over(self, name: str) -> Story[bool]:
        """Tries to take over. Returns whether this WatchDog leads."""
        found = yield self._coordinator.get(paths.EPOCH)
        try:
            old = EpochRecord() if found is None else decode_record(found.data, EpochRecord, paths.EPOCH)
        except WrongCluster as error:  # nobody leads until an operator mends `/epoch`, or this installation
            if self._unreadable != error.message:  # reported once
                self._unreadable = error.message
                self._log.warning("epoch_unreadable", path=paths.EPOCH, error=error.message, hint=error.hint)
            return False
        self._unreadable = ""
        record = replace(self._record, epoch=old.epoch + 1, candidate=name, since_us=machine.wall_us())
        failpoint("leader.before_take_over")
        multi = ops.take_over(name, record, None if found is None else found.version)
        outcome = yield self._coordinator.commit(multi)
        if not isinstance(outcome, Committed):
            self._log.info("take_over_not_committed", epoch=record.epoch, outcome=type(outcome).__name__)
            return False
        failpoint("leader.after_take_over")
        clock, made = ZooKeeperClock(), (yield self._coordinator.stat(paths.EPOCH))
        clock.heard(made.mtime_ms if made is not None else 0)
        self._is_leading = self.is_standing = True
        self._leads(replace(record, since_us=clock.wall_us()), ops.epoch_version(multi, outcome), clock)
        return True


class Watchdog:
    """One WatchDog, candidate or leader. `serve` is its loop.

    Args:
        meta: the cluster that this WatchDog belongs to.
        endpoint: where it answers gRPC.
        resync_s: mean time between two comparisons of memory with znodes while it leads.
        credentials: of this WatchDog, None in an open cluster.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        store: Store,
        meta: Meta,
        *,
        endpoint: str,
        resync_s: float,
        log: Log,
        metrics: LeaderMetrics,
        metrics_at: str = "",
        credentials: Credentials | None = None,
    ) -> None:
        self.guid = machine.guid()[:12]
        self.meta = meta
        self.leader: Leader | None = None
        self.failure: RmgrError | None = None
        self.coordinator = coordinator
        self._store = store
        self._resync_s = resync_s
        self._log = log
        self._metrics = metrics
        self._credentials = credentials
        self.mailbox: Mailbox[Thunk] = Mailbox()
        self._io = machine.steady_pool(_IO_THREADS, "store")
        self._lease = Lease(coordinator)
        self._next_hearing_s = -math.inf  #: by the boot clock
        self._session = 0
        self._stories = Stories(self.mailbox)  # of the current session
        self._stopping = False
        self._guard: StallGuard | None = None
        self._notifier: Notifier | None = None
        self._aside = Aside(log, metrics.loop_errors.inc)  # messages that raised; each place in the code is reported once
        mine = release()
        record = EpochRecord(
            leader=self.guid,
            endpoint=endpoint,
            host=socket.gethostname(),
            pid=os.getpid(),
            version=mine.version,
            protocol=mine.protocol,
            metrics=metrics_at,
        )
        self._candidacy = Candidacy(
            coordinator,
            record,
            self.mailbox,
            leads=self._on_lead,
            log=log,
        )

    # -- from any thread

    def stop(self) -> None:
        """Ends the loop at its next message, and hands over."""
        self._stopping = True
        self.mailbox.put(lambda: None)

    def living(self) -> Sequence[NodeRecord]:
        """Returns nodes with live Starters, none while this WatchDog does not lead. From any thread but the loop. Raises: TimeoutError."""
        leader = self.leader
        return () if leader is None else self.mailbox.ask(leader.living).result(_ANSWER_S)

    def unable(self) -> str:
        """Returns why this WatchDog neither leads nor could take over, "" if it does either. From any thread."""
        return "" if self.leader is not None or self._candidacy.is_standing else "not standing for election"

    # -- the loop

    def serve(self, guard: StallGuard | None = None, notifier: Notifier | None = None) -> None:
        """Runs until `stop`, or until the ensemble turns out to be another cluster's (`failure`)."""
        self.begin(guard, notifier)
        run_loop(self)
        if notifier is not None:
            notifier.stopping()
        self._end_leadership("this process was asked to end")

    def begin(self, guard: StallGuard | None = None, notifier: Notifier | None = None) -> None:
        """Starts listening to the session; from now on `turn` may be called (see `LoopOwner`)."""
        self._guard, self._notifier = guard, notifier
        self.coordinator.listen(lambda state: self.mailbox.put(lambda: self._on_session(state)))

    def wait_s(self) -> float:
        """See `LoopOwner`."""
        return _ROUND_S if self._notifier is None else self._notifier.round_s(_ROUND_S)

    def turn(self, message: Thunk | None) -> bool:
        """See `LoopOwner`."""
        if self._guard is not None:
            self._guard.progress()
        if self._notifier is not None:
            self._tell(self._notifier)
        failpoint("watchdog.round")
        if message is not None:
            started_s = machine.perf_counter()
            # Loop boundary: one bad record must not cost the cluster its leader.
            (self._aside if self.leader is None else self.leader.term.aside).attempt(message)
            self._metrics.pass_seconds.observe(machine.perf_counter() - started_s)
        return not self._stopping

    def _tell(self, notifier: Notifier) -> None:
        """Reports readiness once this WatchDog stands for election, and its current role."""
        if self._candidacy.is_standing:
            notifier.ready()
        if self.leader is not None:
            notifier.tell(f"leading, epoch {self.leader.record.epoch}")
        elif self._candidacy.is_standing:
            notifier.tell("candidate, another WatchDog leads")
        else:
            notifier.tell("degraded: not standing for election" if self._session else "degraded: no session with ZooKeeper")

    def close(self) -> None:
        """Ends the session at once (the successor's watch fires), then the threads. Call it after `serve`."""
        self.coordinator.close(timeout_s=2.0)
        self._io.shutdown(wait=False, cancel_futures=True)

    # -- the session

    def _on_session(self, state: SessionState) -> None:
        match state:
            case SessionState.CONNECTED if self._session != self.coordinator.session_id:
                self._end_leadership("the session was replaced")
                self._session = self.coordinator.session_id
                self._lease.rearm()
                self._stories.stop()
                self._stories.begin(self._recognise())
            case SessionState.CONNECTED if self.leader is not None:
                self.leader.revalidate()
            case SessionState.CONNECTED:
                self._candidacy.look()
            case SessionState.SUSPENDED if self.leader is not None:
                self._log.warning("leadership_suspended", epoch=self.leader.record.epoch)
                self.leader.term.pause()
            case SessionState.SUSPENDED:
                pass
            case SessionState.LOST:
                self._end_leadership("the session was lost")
                self._stories.stop()
                self._candidacy.leave()
                self._session = 0

    def _recognise(self) -> Story[None]:
        """Checks that a new session is with the same cluster: it may be with other servers, or with wiped ones."""
        found = yield from insist(lambda: self.coordinator.get(paths.META), 0.5)
        meta = None if found is None else decode_record(found.data, Meta, paths.META)
        try:
            check_release(check_same(meta, self.meta.cluster_id))  # the cluster may have been upgraded meanwhile
        except (WrongCluster, VersionMismatch) as error:
            self.failure, self._stopping = error, True
            return
        self._candidacy.enter()

    # -- leadership

    def _on_lead(self, record: EpochRecord, epoch_version: int, clock: ZooKeeperClock) -> None:
        term = Term(
            self.coordinator,
            self._store,
            self._io,
            self.mailbox,
            epoch=record.epoch,
            epoch_version=epoch_version,
            log=self._log,
            metrics=self._metrics,
            deposed=self._on_deposed,
            may_act=self._lease.is_valid,
            wall=clock,
            credentials=self._credentials,
        )
        self.leader = leader = Leader(term, record, resync_s=self._resync_s)
        self._metrics.leader.set(1)
        self._metrics.epoch.set(record.epoch)
        self._metrics.take_overs.inc()
        self._log.info("leadership_began", epoch=record.epoch, candidate=record.candidate)
        if fault := clock.fault():
            self._log.warning("clock_is_wrong", epoch=record.epoch, why=f"this machine's clock is {fault}; the leader goes by ZooKeeper's")
        leader.start()
        self._stories.begin(self._watch_lease(leader))

    def _on_deposed(self, why: str) -> None:
        self._end_leadership(why)
        self._candidacy.stepped_down()

    def _end_leadership(self, why: str) -> None:
        leader, self.leader = self.leader, None
        if leader is None:
            return
        leader.close()
        self._metrics.leader.set(0)
        self._metrics.epoch.set(0)
        self._log.warning("leadership_ended", epoch=leader.record.epoch, why=why)

    def _watch_lease(self, leader: Leader) -> Story[None]:
        """Ends the leadership when no answer came for longer than the lease: another WatchDog may lead now, whatever the session says.

        Also when ZooKeeper's clock must be heard anew: the next term does, and begins with times that fit together.
        """
        while self.leader is leader and self._lease.is_valid():
            now_s = machine.boottime_ns() / 1e9
            if leader.term.wall.is_outdated() and now_s >= self._next_hearing_s:
                self._next_hearing_s = now_s + _HEARING_S
                self._on_deposed("a clock was set")
                return
            # Wakes at the end of the lease, and soon after it even if the host was suspended, which stops the timers' clock.
            yield Pause(max(0.1, min(self._lease.remaining_s(), self._lease.length_s / 2)))
        if self.leader is leader:
            self._on_deposed("the lease is over")


# -- the process --------------------------------------------------------------------------------------------------------------


def run(config: Config, *, insecure: bool = False) -> int:
    """Runs a WatchDog until SIGTERM or SIGINT; returns its exit code.

    Args: insecure: see `runtime.secured.check_exposure`.
    Raises: ConfigError, NotConnected, CoordinationUnavailable, Unavailable, WrongCluster at the start. A data store that does
        not answer is no error: the WatchDog waits for it in the background.
    """
    own, metrics = config.watchdog, LeaderMetrics()
    with DaemonShell.opened(config, own, Role.WATCHDOG, insecure=insecure) as shell:
        coordinator, store, log, credentials = shell.coordinator, shell.store, shell.log, shell.credentials
        meta = bootstrap(coordinator, config.cluster.cluster_id or shell.known)
        if credentials is not None and (mended := secure_tree(coordinator).mended):
            log.warning("tree_secured", count=mended)
        shell.belong_to(meta, credentials)
        log.info("watchdog_started", cluster_id=meta.cluster_id, zookeeper=coordinator.hosts, store=config.cluster.store)
        server = shell.listen(Role.WATCHDOG, threads=_RPC_THREADS)
        watchdog = Watchdog(
            coordinator,
            store,
            meta,
            endpoint=advertised(server.endpoint, own.advertise),
            resync_s=own.resync_s,
            log=log,
            metrics=metrics,
            metrics_at=advertised_metrics(shell.measured.address, own.advertise),
            credentials=credentials,
        )
        reach = StarterReach(watchdog.living, log)
        answering = LeaderAnswering(
            watchdog,
            store.facts,
            hosts=config.cluster.hosts_and_chroot()[0],
            operators=config.security.operators,
            log=log,
            ends_s=lambda snapshot: certificate_ends(shell.trust, credentials, snapshot),
            unreached=reach.unreached,
        )
        server.add_generic(leader_handler(answering))
        machine.Thread(target=answering.watch_health, args=(log,), name="health", daemon=True).start()
        ClusterMetrics(answering.measured, metrics.registry)
        server.add_generic(rpc_metaserver.handler_of(CallAnswering(watchdog, metrics)))
        if credentials is not None:
            server.add_generic(join_handler(Joining(coordinator, credentials.zookeeper_secrets, log)))
        server.add_generic(use_handler(LeaderUse(watchdog, shell.bounds, config.security.operators)))
        with shell.serving(metrics.registry, watchdog.stop, watchdog.unable, whose="the WatchDog's", stall_s=STALL_S) as guard:
            log.info("watchdog_listens", endpoint=server.endpoint, address=shell.measured.address)
            set_for_daemon()
            reach.start()
            try:
                watchdog.serve(guard, shell.notifier if shell.notifier.is_on else None)
            finally:
                watchdog.close()  # first of all, because the successor waits for it
                reach.stop()
        if watchdog.failure is not None:
            raise watchdog.failure
        log.info("watchdog_stopped")
    return 0
