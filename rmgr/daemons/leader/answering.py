"""Answers a WatchDog's gRPC questions from the leader's memory, brought up to the moment of the question.

A question first waits for every change that the asker may know about (`sync` returns after the pending watches; reads that the pace
delayed are sent at once), so `rmgr submit --wait` and then `rmgr show` never disagree. Claimed blocks are read from ZooKeeper on demand,
at most twice a second: following them all the time would cost more.

A thread dials the Starters at their advertised addresses now and then, so `rmgr status` need not. A Starter that others cannot reach
still runs work, because it pulls from ZooKeeper. But its live output, its terminals and its ranks of jobs on several nodes do not work,
and nothing else would say why.

Machines that join, and daemons that need a new secret, may ask any WatchDog, leading or not: ZooKeeper decides which request comes first.
"""

from __future__ import annotations

import math
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import msgspec
from prometheus_client.metrics_core import GaugeMetricFamily
from prometheus_client.registry import Collector, CollectorRegistry

from rmgr.adapters.access.auth import Caller
from rmgr.adapters.access.limits import Bounds
from rmgr.adapters.identity.invitation import open_secret
from rmgr.adapters.identity.pki import credential
from rmgr.adapters.rpc.services import UseAnswer, UserUse
from rmgr.coord.decisions.rights import Person, check, may
from rmgr.coord.ops import membership
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Committed, Unknown
from rmgr.coord.protocol.ports import Coordinator
from rmgr.coord.protocol.records import decode_record
from rmgr.coord.validity import check as check_record
from rmgr.coord.views import answers, health
from rmgr.coord.views.answers import on_the_move
from rmgr.coord.views.health import CertificateHolder, unreached, with_part
from rmgr.coord.views.snapshot import BlockOnNode, ClusterSnapshot
from rmgr.daemons.leader.placement.view import copied, tried
from rmgr.daemons.leader.term import LeaderMetrics
from rmgr.daemons.leader.use import UserTotals, usage, wanted
from rmgr.daemons.service.metaserver import Metaserver
from rmgr.daemons.service.serving import audited, person_of
from rmgr.errors import CoordinationUnavailable, NotFound, PermissionDenied, RmgrError, Unavailable, UsageError
from rmgr.log import audit
from rmgr.model.identity import AclRecord, Identity, Invitation, Role, SealedSecret
from rmgr.model.node import NodeRecord, NodeState
from rmgr.model.queue import CORES, JOBS
from rmgr.model.servers import GatewayReport, Pick, PickRequest, ReportAnswer, ServersView
from rmgr.model.states import State
from rmgr.model.submission import Submission
from rmgr.model.views import ExplainView, JobView, NodeView, PartView, QueueView, StatusView, WhatIfView
from rmgr.procedures.snapshot import claimed_blocks
from rmgr.runtime import machine
from rmgr.runtime.failpoint import failpoint
from rmgr.runtime.machine import Log
from rmgr.runtime.secured import is_loopback

if TYPE_CHECKING:
    from rmgr.adapters.identity.credentials import Credentials
    from rmgr.adapters.identity.trust import Trust
    from rmgr.daemons.leader.leader import Leader
    from rmgr.daemons.leader.watchdog import Watchdog

T = TypeVar("T")
#: Claimed blocks are read again for each question if a read takes less than `_QUICK_S`; otherwise they are at most `CLAIMED_S` old.
_QUICK_S, CLAIMED_S = 0.05, 0.5
#: Greatest age of the numbers of users, and of numbers that decide about a refusal.
OLD_S, FRESH_S = 2.0, 0.25
ANSWER_S = 4.0
#: Longest time to answer a scrape of metrics; after it there is no answer.
MEASURED_S = 2.0
#: Pause between two looks at the cluster's health when no node changes, and when one does.
LOOK_S, CHANGED_S = 30.0, 1.0
#: After a long look, the pause is this many times the duration of the look: the cluster is large.
_REST = 20
#: Longest wait for a copy of the scheduler's state, which is made between two passes.
COPY_S = 1.0
#: Longest time until a new leader knows its settings; until then no server is picked.
BEGINS_S = 0.8
#: Interval between dials, timeout of one dial, dials in parallel.
_EVERY_S, _DIAL_S, _AT_ONCE = 10.0, 3.0, 16
#: Failed dials in a row before a Starter is reported: a Starter may just be restarting.
_SURE = 2
#: Most pairs of queue and user with a row of their own in the metrics; user name of the merged rows.
MOST_PAIRS, OTHERS = 100, "(others)"
#: Greatest age of the cluster's metrics: scrapers that ask more often get the same answer again.
METRICS_S = 5.0
#: Time limit of one request to ZooKeeper for a machine that joins, and how often a lost race for its invitation is run again.
_TIMEOUT_S, _TRIES = 5.0, 5


class LeaderAnswering:
    """Implements `adapters.rpc.LeaderAnswers`; called on threads of the server.

    Args:
        store: what is known about the data store ("ok", "since", "problem"); does not wait.
        operators: users who see everybody's work, besides users whose certificate allows it. log: for audit lines, None if there is none.
        ends_s: when certificates expire, as far as known; does not wait.
        unreached: node -> endpoint, of Starters that could not be reached lately; does not wait.
    """

    def __init__(
        self,
        watchdog: Watchdog,
        store: Callable[[], dict[str, object]],
        *,
        hosts: str = "",
        operators: Sequence[str] = (),
        log: Log | None = None,
        ends_s: Callable[[ClusterSnapshot], Mapping[CertificateHolder, float]] = lambda _: {},
        unreached: Callable[[ClusterSnapshot], Mapping[str, str]] = lambda _: {},
    ) -> None:
        self._watchdog = watchdog
        self._coordinator = watchdog.coordinator
        self._store = store
        self._ends_s = ends_s
        self._unreached = unreached
        self._operators = tuple(operators)
        self._log = log
        self._hosts = hosts
        self._lock = threading.Lock()
        self._claimed: tuple[float, float, tuple[BlockOnNode, ...]] = (-math.inf, 0.0, ())  # read at, duration, blocks
        self._health = (0, False, 0)  # epoch, healthy, since when (us)

    def jobs(self, ids: tuple[int, ...], *, ended: bool, user: str, caller: Caller | None = None) -> list[JobView]:
        """Returns the submissions that the caller may see, oldest first. Raises PermissionDenied if one of `ids` is not among them."""
        person = person_of(caller, self._operators)
        found = answers.jobs(self._snapshot(), ids, ended=ended, user=user)
        if ids:
            for job in found:
                self._check(person, job.id, job.user)
        return [job for job in found if may(person, job.user)]

    def nodes(self) -> list[NodeView]:
        """Returns all nodes, by name."""
        return answers.nodes(self._snapshot())

    def queues(self) -> list[QueueView]:
        """Returns all queues, by name."""
        return answers.queues(self._snapshot())

    def explain(self, submission: int, index: int | None, *, caller: Caller | None = None) -> ExplainView:
        """Explains why a submission, or a task of it, is in its state. Raises NotFound, PermissionDenied."""
        snapshot = self._snapshot()
        known = snapshot.submissions.get(submission)
        if known is not None:
            self._check(person_of(caller, self._operators), submission, known[0].user)
        return answers.explain(snapshot, submission, index)

    def what_if(self, record: bytes) -> WhatIfView:
        """Returns where and when the submission in this record would run. Raises NotFound, Infeasible, Unavailable, UsageError."""
        submission = decode_record(record, Submission, "the request")
        check_record(replace(submission, id=1), where="the request")  # no number yet; a number from its sender must not reach policies
        end_s = machine.monotonic() + COPY_S
        while True:
            try:
                trial = self._in_loop(lambda leader: copied(leader.placer, submission), end_s)
            except KeyError:
                raise NotFound(f"nothing is placed in queue {submission.queue}", hint="rmgr queues") from None
            except ValueError as error:
                raise UsageError(str(error)) from None
            except FutureTimeout:
                trial = None
            if trial is not None:
                return tried(trial)
            if machine.monotonic() > end_s:
                raise Unavailable("the scheduler is busy", hint="ask again in a moment")
            machine.sleep(0.02)

    def status(self, *, caller: Caller | None = None) -> StatusView:
        """Returns health and counts; names users only as far as the caller may see their work."""
        view = self.since(self._status())
        person = person_of(caller, self._operators)
        users = {name: cores for name, cores in view.users.items() if may(person, name)}
        others = sum(view.users.values()) - sum(users.values())
        view = health.only_known(view, partial(may, person))
        return msgspec.structs.replace(view, users=users | ({"": others} if others else {}))

    def watch_health(self, log: Log) -> None:
        """Looks at the health after each change of the nodes, and every `LOOK_S`, so that `status` can say since when it has been as it is.

        Never returns. Reads nothing while nothing changes.
        """
        pause_s, due_s, seen = CHANGED_S, -math.inf, 0
        while True:
            machine.sleep(pause_s)
            pause_s, began_s = CHANGED_S, machine.monotonic()
            leader = self._watchdog.leader
            if leader is None or (leader.node_changes == seen and began_s < due_s):
                continue
            changes = leader.node_changes
            try:
                self.status()
            except RmgrError:  # another WatchDog leads, or ZooKeeper is away
                continue
            except Exception as error:  # noqa: BLE001 - nobody waits for this look, and the next one may work
                log.warning("health_not_seen", error=str(error))
            seen, due_s = changes, machine.monotonic() + LOOK_S
            pause_s = max(CHANGED_S, _REST * (machine.monotonic() - began_s))

    def since(self, view: StatusView) -> StatusView:
        """Adds since when the health has been as it is, as far as this leader has looked; a new leader starts with its own take-over."""
        if view.leader is None:
            return view
        with self._lock:
            epoch, healthy, since_us = self._health
            if epoch != view.leader.epoch:
                since_us = view.leader.since_us
            elif healthy != view.healthy:
                since_us = view.leader.since_us + round(view.uptime_s * 1e6)  # when the view was made
            self._health = view.leader.epoch, view.healthy, since_us
        return msgspec.structs.replace(view, healthy_since_us=since_us)

    def _status(self) -> StatusView:
        snapshot = self._snapshot()
        leader = self._watchdog.leader
        now_us = machine.wall_us() if leader is None else leader.term.wall_us()
        zookeeper: dict[str, object] = {"ok": True, "hosts": self._hosts, "session_timeout_s": self._coordinator.session_timeout_s}
        view = answers.status(snapshot, zookeeper=zookeeper, store=self._store(), now_us=now_us)
        for part in (*health.ending(self._ends_s(snapshot), now_us / 1e6), *unreached(self._unreached(snapshot))):
            view = with_part(view, part)
        if leader is None:
            return view
        if fault := leader.term.wall.fault():
            view = with_part(view, health.wrong_clock(leader.record.host, fault))
        if refusal := leader.term.refusal:
            message = f"ZooKeeper refuses what the leader has to commit: {refusal}"
            view = with_part(view, PartView(kind="zookeeper", id="", state="refuses", reason=message, fix="rmgr doctor"))
        view, mass = leader.server_calls.shown_in(view), leader.nodes.mass
        if mass is None:
            return view
        message = f"{mass.lost} of {mass.known} Starters were lost at once: their work is requeued slowly"
        return with_part(view, PartView(kind="nodes", id="", state="mass loss", reason=message, fix="rmgr nodes"))

    def measured(self) -> tuple[list[NodeView], list[JobView]]:
        """Returns all nodes and the open submissions as this leader knows them; only claimed blocks are read for it.

        Raises Unavailable.
        """
        _required(self._watchdog)
        claimed = self.read_claimed()
        try:
            facts = self._in_loop(lambda leader: leader.snapshot(), machine.monotonic() + MEASURED_S)
        except FutureTimeout:
            raise CoordinationUnavailable("the leader is busy") from None
        facts = replace(facts, claimed=_without_final(claimed, facts))
        return answers.nodes(facts), answers.jobs(facts, (), ended=False, user="")

    # -- inside

    def _check(self, person: Person, submission: int, owner: str) -> None:
        with audited(self._log, person, "see", str(submission)):
            check(person, submission, owner)

    def _snapshot(self) -> ClusterSnapshot:
        """Raises Unavailable if this WatchDog does not lead, or if ZooKeeper does not answer."""
        end_s = machine.monotonic() + ANSWER_S
        _required(self._watchdog)
        claimed = self.read_claimed()
        try:
            self._coordinator.sync(timeout_s=ANSWER_S).result(ANSWER_S + 1.0)
            while not self._in_loop(lambda leader: leader.hurry(), end_s) and machine.monotonic() < end_s:
                machine.sleep(0.005)
            facts = self._in_loop(lambda leader: replace(leader.snapshot(), placing=leader.placer.view()), end_s)
        except FutureTimeout:
            raise CoordinationUnavailable("the leader is busy", hint="ask again in a moment; rmgr doctor") from None
        here = on_the_move(_without_final(claimed, facts), facts)
        problem = str(self._store().get("problem") or "")
        return replace(facts, claimed=here, cluster_id=self._watchdog.meta.cluster_id, store_problem=problem)

    def _in_loop(self, what: Callable[[Leader], T], end_s: float) -> T:
        asked = self._watchdog.mailbox.ask(lambda: what(_required(self._watchdog)))
        return asked.result(max(0.1, end_s - machine.monotonic()))

    def read_claimed(self) -> tuple[BlockOnNode, ...]:
        """Returns claimed blocks. Callers that arrive during a read wait for the next one and share it."""
        asked_s = machine.monotonic()
        with self._lock:
            read_s, took_s, _ = self._claimed
            if read_s < (asked_s if took_s < _QUICK_S else asked_s - CLAIMED_S):
                started_s = machine.monotonic()
                names = sorted(_required(self._watchdog).nodes.records)
                found = claimed_blocks(self._coordinator, names, timeout_s=ANSWER_S)
                self._claimed = (started_s, machine.monotonic() - started_s, found)
            return self._claimed[2]


def _required(watchdog: Watchdog) -> Leader:
    """Returns the current leadership. Raises: Unavailable if this WatchDog does not lead."""
    leader = watchdog.leader
    if leader is None:
        raise Unavailable("this WatchDog does not lead", hint="rmgr status finds the one that does")
    return leader


def _without_final(claimed: Sequence[BlockOnNode], facts: ClusterSnapshot) -> tuple[BlockOnNode, ...]:
    """Removes finished tasks: blocks were read before the outcomes, so tasks that are final by now no longer run."""
    kept: list[BlockOnNode] = []
    for block in claimed:
        found = facts.submissions.get(block.key.submission)
        done = block.done
        if found is not None:
            for offset in range(block.key.count):
                if found[1].state_of(block.key.first + offset) is not None:
                    done |= 1 << offset
        if done != (1 << block.key.count) - 1:
            kept.append(replace(block, done=done))
    return tuple(kept)


class CallAnswering:
    """Implements `adapters.rpc.metaserver.MetaserverAnswers`; called on threads of the server."""

    def __init__(self, watchdog: Watchdog, metrics: LeaderMetrics) -> None:
        self._watchdog = watchdog
        self._metrics = metrics

    def report(self, report: GatewayReport) -> ReportAnswer:
        answer = self._metaserver().report(report)
        self._metrics.call_reports.inc()
        return answer

    def pick(self, asked: PickRequest) -> Pick:
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
        return self._metaserver().servers(name)

    def _metaserver(self) -> Metaserver:
        """Returns the leader's metaserver. Raises: Unavailable."""
        leader = _required(self._watchdog)
        if not leader.server_calls.is_ready(BEGINS_S):
            raise Unavailable("this WatchDog has just begun to lead, and does not know the settings yet", hint="ask again in a moment")
        return leader.server_calls.metaserver


class LeaderUse:
    """Implements `UseAnswers` in a WatchDog. Thread-safe."""

    def __init__(self, watchdog: Watchdog, bounds: Bounds, operators: Sequence[str] = ()) -> None:
        self._watchdog = watchdog
        self._bounds = bounds
        self._operators = tuple(operators)
        self._lock = threading.Lock()
        self._read_s = -math.inf
        self._found: dict[str, UserTotals] = {}

    def use(self, users: Sequence[str], *, fresh: bool, caller: Caller) -> UseAnswer:
        found, read_s = self._read(FRESH_S if fresh else OLD_S)
        leader, told = self._watchdog.leader, {}
        cores = {} if leader is None else leader.caps.cores
        for user in wanted(users, caller, self._operators, lambda: sorted({*found, *self._bounds.users()})):
            one = found.get(user, UserTotals())
            used = {
                **{name: count for name, count in self._bounds.used(user).items() if count},
                **({CORES: cores.get(user, 0)} if self._bounds.limits.of(CORES, user) else {}),
                JOBS: one.open_submissions,
                "open_submissions": one.open_submissions,
                "unfinished_tasks": one.unfinished_tasks,
                "zookeeper_bytes": one.zookeeper_bytes,
            }
            told[user] = UserUse(used=used, refused=self._bounds.refused(user))
        return UseAnswer(users=told, age_s=machine.monotonic() - read_s, limits=self._bounds.limits)

    def _read(self, age_s: float) -> tuple[dict[str, UserTotals], float]:
        """Counts again if the last count is older than `age_s`. One thread counts, the others wait for it. Raises Unavailable."""
        followed = _required(self._watchdog).submissions.followed
        with self._lock:
            if machine.monotonic() - self._read_s > age_s:
                began_s = machine.monotonic()
                try:
                    self._found = self._watchdog.mailbox.ask(lambda: usage(followed.values())).result(ANSWER_S)
                except FutureTimeout:
                    raise Unavailable("the leader is busy", hint="ask again in a moment; rmgr doctor") from None
                self._read_s = began_s
            return self._found, self._read_s


class StarterReach:
    """Dials the Starters of living nodes on a thread of its own. Cost: one connection to each every 10 s, closed at once.

    Args: living: returns the nodes whose Starters are alive, none while this WatchDog does not lead; may wait.
    """

    def __init__(self, living: Callable[[], Sequence[NodeRecord]], log: Log) -> None:
        self._living = living
        self._log = log
        self._host = socket.gethostname()
        self._failed: dict[tuple[str, str], int] = {}  # (node, endpoint) -> failures in a row
        self._stopped = threading.Event()
        self._thread = machine.Thread(target=self._run, name="reach", daemon=True)

    def start(self) -> StarterReach:
        """Starts the thread; the first look is 10 s later."""
        self._thread.start()
        return self

    def stop(self) -> None:
        """Asks the thread to end."""
        self._stopped.set()

    def unreached(self, snapshot: ClusterSnapshot) -> dict[str, str]:
        """Returns node -> endpoint of live Starters that could not be reached lately. Never waits. From any thread."""
        sure = [known for known, count in self._failed.items() if count >= _SURE]
        records = [snapshot.nodes[node] for node, endpoint in sure if node in snapshot.nodes and snapshot.nodes[node].endpoint == endpoint]
        return {record.node: record.endpoint for record in records if record.guid in snapshot.alive}

    def look(self) -> None:
        """Dials all Starters once. Raises: what `living` raises."""
        living = [record for record in self._living() if record.endpoint]
        several = len({self._host, *(record.host for record in living)}) > 1
        alone = {record.endpoint for record in living if several and is_loopback(record.endpoint)}
        dialled = sorted({record.endpoint for record in living} - alone)
        if dialled:
            with machine.pool(min(_AT_ONCE, len(dialled)), "reach") as pool:
                alone |= {endpoint for endpoint, answers in zip(dialled, pool.map(_answers, dialled), strict=True) if not answers}
        failed = {}
        for record in living:
            if record.endpoint in alone:
                failed[record.node, record.endpoint] = count = self._failed.get((record.node, record.endpoint), 0) + 1
                if count == _SURE:
                    self._log.warning("starter_unreached", node=record.node, endpoint=record.endpoint)
        self._failed = failed

    def _run(self) -> None:
        while not self._stopped.wait(_EVERY_S):
            try:
                self.look()
            except (RmgrError, FutureTimeout):  # the loop is busy, or this WatchDog no longer leads
                continue


def _answers(endpoint: str) -> bool:
    host, _, port = endpoint.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), _DIAL_S):
            return True
    except (OSError, ValueError):
        return False


def certificate_ends(trust: Trust | None, credentials: Credentials | None, snapshot: ClusterSnapshot) -> dict[CertificateHolder, float]:
    """Returns expiry in seconds since 1970 by holder; empty in an open cluster. Never waits: expiries not read yet appear in a later call.

    Cost: 2 us a node.
    """
    if trust is None or credentials is None:
        return {}
    our_name = credentials.identity
    found = {CertificateHolder(role=our_name.role.value, name=our_name.name): credentials.not_after_s}
    for record in snapshot.nodes.values():
        at_s = trust.ends_s(record.key_id) if record.key_id and record.guid in snapshot.alive else None
        if at_s is not None:
            found[CertificateHolder(role="starter", name=record.node)] = at_s
    return found


class Joining:
    """Implements `JoinAnswers`; called on threads of the server.

    Args:
        secrets: role -> ZooKeeper secret, from this WatchDog's bundle; the WatchDogs' own secret opens `/secrets`.
    """

    def __init__(self, coordinator: Coordinator, secrets: Mapping[str, str], log: Log) -> None:
        self._coordinator = coordinator
        self._secrets = secrets
        self._log = log

    def redeem(self, invitation: str, nonce: str) -> Invitation:
        """Hands over the invitation to the holder of its token, once. Every use leaves an audit line, also a refused one.

        Raises: PermissionDenied (used, expired, withdrawn, no nonce); CoordinationUnavailable (ask again with the same nonce).
        """
        try:
            return self._redeem(invitation, nonce)
        except PermissionDenied as refused:
            audit(self._log, who=invitation, role=str(Role.JOIN), what="join", target=invitation, allowed=False, why=refused.message)
            raise

    def _redeem(self, invitation: str, nonce: str) -> Invitation:
        membership.check_nonce(nonce)
        path = paths.join(invitation)
        for _ in range(_TRIES):
            found = self._coordinator.get(path, timeout_s=_TIMEOUT_S).result(_TIMEOUT_S + 1)
            if found is None:
                raise PermissionDenied("nothing waits for this token: it was withdrawn, or is over", hint="rmgr admin add-node NAME")
            record = decode_record(found.data, Invitation, path)
            multi = membership.redeem(record, found.version, nonce, machine.wall_us())
            if multi is None:
                self._audit_hand_over(record, "again, to the same machine")
                return record
            outcome = self._coordinator.commit(multi, timeout_s=_TIMEOUT_S).result(_TIMEOUT_S + 1)
            if isinstance(outcome, Committed):
                self._audit_hand_over(record, "the token's first use")
                return record
            if isinstance(outcome, Unknown):
                raise CoordinationUnavailable("it is not known whether the token was redeemed", hint="the same command again is safe")
        raise CoordinationUnavailable("others keep changing the invitation", hint="type the command again")

    def _audit_hand_over(self, record: Invitation, why: str) -> None:
        audit(self._log, who=record.name, role=str(record.role), what="join", target=record.key_id, allowed=True, why=why)

    def renew(self, who: Identity, generation: int) -> tuple[int, str]:
        """Returns (generation, "role:secret"), the newest secret of the caller's role. Raises: PermissionDenied, CoordinationUnavailable.

        The door learns of revocations by a watch, which may be late. So the caller's revocation is read here, after the secret and in the
        same session: a rotation because of a revocation commits the revocation first, so a server that shows the new secret shows it, too.
        """
        role = who.role
        wanted = (paths.ACL, paths.secret(role), paths.revoked(who.key_id))
        asked = [self._coordinator.get(path, timeout_s=_TIMEOUT_S) for path in wanted]
        acl, sealed, revoked = (future.result(_TIMEOUT_S + 1) for future in asked)
        if revoked is not None:
            audit(self._log, who=who.name, role=str(role), what="renew", target=who.key_id, allowed=False)
            raise PermissionDenied(f"the key of {role} {who.name} was revoked", hint="ask the cluster's admin for a new one")
        if sealed is None:
            secret = self._secrets.get(role)
            if secret is None:
                raise PermissionDenied(f"{role} has no secret of ZooKeeper")
            return 0, credential(role, secret)
        record = decode_record(sealed.data, SealedSecret, paths.secret(role))
        current = decode_record(acl.data, AclRecord, paths.ACL).generation if acl is not None else record.generation
        self._log.info("secret_renewed", role=str(role), generation=record.generation, why=f"the caller had {generation} of {current}")
        return record.generation, credential(role, open_secret(self._secrets[Role.WATCHDOG], role, record))


# -- metrics of the cluster ------------------------------------------------------------------------------------------------


class ClusterMetrics(Collector):
    """Collects the cluster's metrics, on demand. Their label sets are bounded: smaller pairs of queue and user are merged into one.

    Args: facts: returns all nodes and the open submissions. Raises RmgrError if this WatchDog does not lead, or is busy.
    Cost: O(submissions), at most once in `METRICS_S`.
    """

    def __init__(self, facts: Callable[[], tuple[Sequence[NodeView], Sequence[JobView]]], registry: CollectorRegistry) -> None:
        self._facts = facts
        self._lock = threading.Lock()
        self._made_s = float("-inf")
        self._made: list[GaugeMetricFamily] = []
        registry.register(self)

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """Returns the names; called at the registration, when there are no facts yet."""
        return iter(families((), (), 0))

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Returns the current values, nothing if there are none."""
        with self._lock:
            if machine.monotonic() - self._made_s >= METRICS_S:
                try:
                    nodes, jobs = self._facts()
                    self._made = families(nodes, jobs, machine.wall_us())
                except RmgrError:
                    self._made = []
                self._made_s = machine.monotonic()
            return iter(self._made)


def families(nodes: Sequence[NodeView], jobs: Sequence[JobView], now_us: int) -> list[GaugeMetricFamily]:
    """Builds the metrics from these facts. Pure."""
    up = [node for node in nodes if node.state == NodeState.UP]
    cores = GaugeMetricFamily("rmgr_cluster_cores", "cores of nodes that take work", value=sum(node.cores for node in up))
    busy = GaugeMetricFamily("rmgr_cluster_cores_busy", "cores of these that are in use", value=sum(node.cores_used for node in up))
    states = GaugeMetricFamily("rmgr_cluster_nodes", "nodes by state", labels=["state"])
    counts = Counter(str(node.state) for node in nodes)
    for state in NodeState:
        states.add_metric([str(state)], counts[str(state)])
    waiting = GaugeMetricFamily("rmgr_cluster_waiting_tasks", "tasks that wait, by queue and user", labels=["queue", "user"])
    for (queue, user), tasks in sorted(_count_tasks(jobs).items()):
        waiting.add_metric([queue, user], tasks)
    oldest = GaugeMetricFamily("rmgr_cluster_oldest_wait_seconds", "wait of the oldest submission that has not begun", labels=["queue"])
    first: dict[str, int] = {}
    for job in jobs:
        if job.state is State.INITIAL and job.counts.get(State.INITIAL):
            first[job.queue] = min(first.get(job.queue, job.submitted_us), job.submitted_us)
    for queue, since_us in sorted(first.items()):
        oldest.add_metric([queue], max(0, now_us - since_us) / 1e6)
    return [cores, busy, states, waiting, oldest]


def _count_tasks(jobs: Sequence[JobView]) -> Counter[tuple[str, str]]:
    """Counts waiting tasks by queue and user, smaller pairs merged."""
    tasks: Counter[tuple[str, str]] = Counter()
    for job in jobs:
        if count := job.counts.get(State.INITIAL, 0):
            tasks[job.queue, job.user] += count
    found = Counter(dict(tasks.most_common(MOST_PAIRS)))
    for (queue, user), count in tasks.items():
        if (queue, user) not in found:
            found[queue, OTHERS] += count
    return found
