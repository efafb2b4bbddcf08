"""Questions of commands: answered by the leader from memory, or, when none answers, from znodes with a note on stderr."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from rmgr.errors import NotFound, Unavailable
from rmgr.model.views import ExplainView, JobView, NodeView, QueueView, StatusView, TaskView, WhatIfView

if TYPE_CHECKING:
    from rmgr.adapters.identity.credentials import Credentials
    from rmgr.adapters.rpc.server import LeaderClient
    from rmgr.adapters.rpc.thin import ThinLeader
    from rmgr.cli.session.connected import ConnectedInvocation
    from rmgr.coord.views.snapshot import ClusterSnapshot
    from rmgr.model.tasks.submission import Submission

T = TypeVar("T")

#: How long the leader may think; it answers from memory.
LEADER_S = 5.0
#: How long a Starter may take to tell its load.
ASK_S = 1.0


class Query:
    """Questions of one command line. Every call raises Unavailable when ZooKeeper does not answer within `--timeout`."""

    def __init__(self, session: ConnectedInvocation) -> None:
        self._session = session
        self._leader: LeaderClient | None = None
        self._thin: ThinLeader | None = None
        self._is_thin_tried = False
        self._is_local = False

    def jobs(self, ids: tuple[int, ...] = (), *, ended: bool = False, user: str = "") -> list[JobView]:
        """Submissions, oldest first: those of `ids`, else the live ones (with `ended` all), of `user` or of everyone."""

        def local(facts: ClusterSnapshot) -> list[JobView]:
            from rmgr.coord.views import answers

            return answers.jobs(facts, ids, ended=ended, user=user)

        def ask(leader: LeaderClient | ThinLeader) -> list[JobView]:
            return leader.jobs(ids, ended=ended, user=user)

        return self._ask(ask, local, ask)

    def job(self, number: int) -> JobView:
        """One submission; from the history when it is no longer in memory. Raises NotFound."""
        found = self.jobs((number,), ended=True)
        if found:
            return found[0]
        from rmgr.cli.session.past import read_past

        past = read_past(self._session, number)
        if past is None:
            hint = "rmgr jobs -a lists those in memory, rmgr history the older ones"
            raise NotFound(f"there is no submission {number}", hint=hint)
        return past

    def check_queue(self, name: str) -> None:
        """A filter by a queue or class that is not there is a mistake, not an empty answer. Raises NotFound naming the known ones."""
        known = list(dict.fromkeys(queue.id for queue in self.queues())) if name else []
        if name and name not in known:
            raise NotFound(f"there is no queue {name!r}", hint=f"queues: {', '.join(known)}")

    def nodes(self) -> list[NodeView]:
        """All nodes, by name, with what their Starters tell of themselves where they answer within a second."""
        from rmgr.coord.views import answers

        nodes = self._ask(lambda leader: leader.nodes(), answers.nodes)
        return _measured(nodes, self._session.via, self._session.credentials())

    def queues(self) -> list[QueueView]:
        """All queues, by name, and queue classes."""

        def local(facts: ClusterSnapshot) -> list[QueueView]:
            from rmgr.coord.views import answers
            from rmgr.procedures.queue_classes import class_views

            return [*answers.queues(facts), *class_views(facts.settings)]

        return self._ask(lambda leader: leader.queues(), local, lambda leader: leader.queues())

    def status(self) -> StatusView:
        """Health and counts."""
        return self._ask(lambda leader: leader.status(), self._own_status, lambda leader: leader.status())

    def explain(self, number: int, position: int | None) -> ExplainView:
        """Why it is in its state. Raises NotFound."""

        def local(facts: ClusterSnapshot) -> ExplainView:
            from rmgr.coord.views import answers

            return answers.explain(replace(facts, store_problem=str(self._store_facts().get("problem") or "")), number, position)

        def ask(leader: LeaderClient | ThinLeader) -> ExplainView:
            return leader.explain(number, position)

        return self._ask(ask, local, ask)

    def what_if(self, record: Submission) -> WhatIfView | None:
        """Where and when it would run; None, with a note, when the leader cannot say. Raises: Infeasible for what its policy ends."""
        from rmgr.coord.protocol.records import encode_record
        from rmgr.errors import Infeasible, RmgrError

        try:
            leader = self._find_leader()
            return leader.what_if(encode_record(record)) if leader is not None else None
        except Infeasible:
            raise
        except RmgrError as error:
            self._session.note(f"where and when it would run is not known: {error.message}")
            return None

    def tasks(self, number: int, *, first: int = 0, limit: int = 0) -> list[TaskView]:
        """Tasks of one submission by dense position, at most `limit` (0 = all). Raises NotFound, DataLost."""
        from rmgr.procedures.snapshot import read_tasks

        timeout_s = self._session.left_s(30.0) or 30.0
        return read_tasks(
            self._session.coordinator(), self._session.store_or_none(), number, first=first, limit=limit, timeout_s=timeout_s
        )[1]

    def close(self) -> None:
        """Ends the channel to the leader."""
        for client in (self._leader, self._thin):
            if client is not None:
                client.close()
        self._leader = self._thin = None

    # -- who answers

    def _ask(
        self, leader: Callable[[LeaderClient], T], facts: Callable[[ClusterSnapshot], T], thin: Callable[[ThinLeader], T] | None = None
    ) -> T:
        """The leader's answer, else our own. thin: the same question without gRPC's library, where the leader can be asked so."""
        if thin is not None and (asked := self._find_thin()) is not None:
            from rmgr.adapters.rpc.thin import ThinFailed

            try:
                return thin(asked)
            except ThinFailed as why:
                self._session.detail(f"asked the leader again: {why}")
                self._thin = None
            except Unavailable as error:
                self._say_local(f"the leader does not answer ({error.message})")
                self._is_local, self._thin = True, None
        client = self._find_leader()
        if client is not None:
            try:
                return leader(client)
            except Unavailable as error:
                self._say_local(f"the leader does not answer ({error.message})")
                self._is_local = True
        return facts(self._read())

    def _find_thin(self) -> ThinLeader | None:
        """The leader, found and asked at once; None where the long way must be taken."""
        if self._is_thin_tried or self._is_local or self._leader is not None:
            return self._thin
        self._is_thin_tried = True
        from rmgr.cli.session.reach import leader_at_a_glance

        epoch = leader_at_a_glance(self._session)
        if epoch is None:
            return None
        from rmgr.adapters.rpc.thin import ThinLeader

        credentials = self._session.shown_credentials()
        bundle = None if credentials is None else credentials.directory
        self._thin = ThinLeader(epoch.endpoint, timeout_s=self._session.left_s(LEADER_S) or LEADER_S, bundle=bundle)
        return self._thin

    def _find_leader(self) -> LeaderClient | None:
        if self._is_local:
            return None
        if self._leader is not None:
            return self._leader
        from rmgr.coord.protocol import paths
        from rmgr.coord.protocol.records import decode_record
        from rmgr.model.cluster.node import EpochRecord

        coordinator = self._session.coordinator()
        timeout_s = self._session.left_s(10.0) or 10.0
        asked = coordinator.get(paths.EPOCH, timeout_s=timeout_s)
        candidates = coordinator.children(paths.WATCHDOGS, timeout_s=timeout_s).result(timeout_s + 1.0) or []
        found = asked.result(timeout_s + 1.0)
        epoch = decode_record(found.data, EpochRecord, paths.EPOCH) if found is not None else None
        if epoch is None or not epoch.endpoint or epoch.candidate not in candidates:
            self._say_local("no WatchDog leads just now")
            self._is_local = True
            return None
        from rmgr.adapters.rpc.server import LeaderClient

        timeout_s = self._session.left_s(LEADER_S) or LEADER_S
        self._leader = LeaderClient(epoch.endpoint, timeout_s=timeout_s, via=self._session.via, credentials=self._session.credentials())
        return self._leader

    def _say_local(self, why: str) -> None:
        self._session.note(f"{why}; this answer is read from ZooKeeper")

    def _read(self) -> ClusterSnapshot:
        from rmgr.procedures.snapshot import read_snapshot

        timeout_s = self._session.left_s(30.0) or 30.0
        return read_snapshot(self._session.coordinator(), None, timeout_s=timeout_s)

    def leader_endpoint(self) -> str:
        """Where the leader answers, "" when none leads."""
        found = self._find_leader()
        return found.endpoint if found is not None else ""

    def has_leader(self) -> bool:
        """A WatchDog leads, as far as ZooKeeper knows."""
        return self._find_leader() is not None

    def _own_status(self, facts: ClusterSnapshot) -> StatusView:
        from rmgr.cli.display.render import now_us
        from rmgr.coord.views import answers
        from rmgr.coord.views.health import with_part
        from rmgr.model.views import PartView

        coordinator = self._session.coordinator()
        zookeeper = {"ok": True, "hosts": coordinator.hosts, "session_timeout_s": coordinator.session_timeout_s}
        view = answers.status(facts, zookeeper=zookeeper, store=self._store_facts(), now_us=now_us())
        if view.leader is None:
            return view
        problem = f"the leader {view.leader.id} on {view.leader.host} does not answer at {view.leader.endpoint}"
        return with_part(view, PartView(kind="leader", id=view.leader.id, state="silent", reason=problem, fix="rmgr doctor"))

    def _store_facts(self) -> dict[str, object]:
        """What we find out of the data store ourselves, as `status` shows it."""
        from rmgr.adapters.stores import shown
        from rmgr.errors import RmgrError

        cluster = self._session.config().cluster
        store: dict[str, object] = {"ok": False, **shown(f"gateway:{cluster.gateway}" if cluster.uses_gateway else cluster.store)}
        try:
            problem = self._session.data_store().health()
            store |= {"ok": problem is None} | ({"problem": problem} if problem else {})
        except RmgrError as error:
            store["problem"] = error.message
        return store


def _measured(nodes: list[NodeView], via: str, credentials: Credentials | None) -> list[NodeView]:
    """With load, memory and running tasks as each Starter tells them; a node whose session lives was seen just now."""
    from concurrent.futures import ThreadPoolExecutor

    from rmgr.adapters.rpc.server import NodeClient, NodeStats
    from rmgr.cli.display.render import now_us

    def ask(endpoint: str) -> dict[str, NodeStats]:
        try:
            with NodeClient(endpoint, timeout_s=ASK_S, via=via, credentials=credentials) as client:
                return {item.node: item for item in client.stats()}
        except Unavailable:
            return {}

    endpoints = sorted({node.endpoint for node in nodes if node.endpoint})
    told: dict[str, NodeStats] = {}
    if endpoints:
        with ThreadPoolExecutor(min(32, len(endpoints)), thread_name_prefix="stats") as pool:
            for answer in pool.map(ask, endpoints):
                told |= answer
    now = now_us()
    measured = []
    for node in nodes:
        stats = told.get(node.id) if node.endpoint else None
        if stats is not None:
            reason = node.reason or stats.reason
            node = replace(  # noqa: PLW2901 - the same node, better known
                node,
                load=stats.load,
                running=stats.running,
                cores_used=stats.cores_used,
                memory_used_bytes=stats.memory_used_bytes,
                resources_used=stats.resources_used or node.resources_used,
                reason=reason,
            )
        measured.append(replace(node, seen_us=now) if node.endpoint else node)
    return measured
