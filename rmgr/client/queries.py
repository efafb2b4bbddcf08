"""Asks the leader, which answers from memory; without a leader, derives the same from znodes and notes that to the user.

Submissions that both have forgotten are read from the history in the data store. Nothing is printed here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from rmgr.errors import DaemonFailed, Infeasible, NotFound, RmgrError, Unavailable, UsageError
from rmgr.model.views import ExplainView, JobView, NodeView, QueueView, StatusView, TaskView, WhatIfView

if TYPE_CHECKING:
    from rmgr.adapters.identity.credentials import Credentials
    from rmgr.adapters.rpc.services import LeaderClient
    from rmgr.adapters.rpc.thin import ThinLeader
    from rmgr.client.reach import Reach
    from rmgr.coord.protocol.ports import Store
    from rmgr.model.node import EpochRecord, GangRecord
    from rmgr.model.submission import Submission
    from rmgr.submitter.questions import GangRead, Question

T = TypeVar("T")

#: Time limits of the leader (it answers from memory), of a Starter asked for its load, and of the node with a gang's clock (s).
_LEADER_S, _STATS_S, _CLOCK_S = 5.0, 1.0, 1.0
#: Keys of the history in one listing.
_PAGE = 500


class Query:
    """Questions of one caller.

    Every call raises Unavailable if ZooKeeper does not answer within the caller's deadline.

    It asks the leader without gRPC's library where it can, else through gRPC. is_local: no WatchDog leads, or the leader does not
    answer; nothing more is sent to it.
    """

    def __init__(self, reach: Reach) -> None:
        self._reach = reach
        self._client: LeaderClient | None = None
        self._thin: ThinLeader | None = None
        self._is_thin_tried = False
        self.is_local = False

    def jobs(self, ids: tuple[int, ...] = (), *, ended: bool = False, user: str = "") -> list[JobView]:
        """Returns submissions, oldest first: those of `ids`, else the live ones (with `ended` all), of `user` or of everyone."""
        found = self._ask(
            lambda leader: leader.jobs(ids, ended=ended, user=user),
            lambda questions: questions.DeriveJobs(ids=ids, ended=ended, user=user),
        )
        return [*found]

    def job(self, number: int) -> JobView:
        """Returns one submission, from the history if it is no longer in memory. Raises NotFound."""
        found = self.jobs((number,), ended=True)
        if found:
            return found[0]
        past = read_past(self._reach, number)
        if past is None:
            hint = "rmgr jobs -a lists those in memory, rmgr history the older ones"
            raise NotFound(f"there is no submission {number}", hint=hint)
        return past

    def check_queue(self, name: str) -> None:
        """Raises NotFound, naming the known queues and classes, for a filter by an unknown one: an empty answer would mislead."""
        known = list(dict.fromkeys(queue.id for queue in self.queues())) if name else []
        if name and name not in known:
            raise NotFound(f"there is no queue {name!r}", hint=f"queues: {', '.join(known)}")

    def nodes(self) -> list[NodeView]:
        """Returns all nodes by name, with their Starters' own figures if these answer within a second."""
        return with_stats(self.known_nodes(), self._reach.via, self._reach.shown_credentials())

    def known_nodes(self) -> list[NodeView]:
        """Returns all nodes by name, as the leader knows them."""
        return [*self._ask(lambda leader: leader.nodes(), lambda questions: questions.DeriveNodes())]

    def queues(self) -> list[QueueView]:
        """Returns all queues by name, and queue classes."""
        return [*self._ask(lambda leader: leader.queues(), lambda questions: questions.DeriveQueues())]

    def gangs(self) -> list[GangView]:
        """Returns the gangs of jobs that share nodes in time, as recorded, by partition."""
        return read_gangs(self._reach)

    def status(self) -> StatusView:
        """Returns health and counts."""

        def own(questions: Any) -> Question[StatusView]:
            asks = self._reach.asks()
            zookeeper = {"ok": True, "hosts": asks.hosts, "session_timeout_s": asks.session_timeout_s}
            return questions.DeriveStatus(zookeeper=zookeeper, store=self._store_facts())  # type: ignore[no-any-return]

        return self._ask(lambda leader: leader.status(), own)

    def explain(self, number: int, position: int | None) -> ExplainView:
        """Explains why a submission, or its task at `position`, is in its state. Raises NotFound."""

        def own(questions: Any) -> Question[ExplainView]:
            problem = str(self._store_facts().get("problem") or "")
            return questions.DeriveExplain(number=number, position=position, store_problem=problem)  # type: ignore[no-any-return]

        return self._ask(lambda leader: leader.explain(number, position), own)

    def what_if(self, record: Submission) -> WhatIfView | None:
        """Predicts where and when `record` would run; None, with a note, if unknown. Raises: Infeasible if the policy refuses the job."""
        from rmgr.coord.protocol.records import encode_record

        try:
            leader = self._find_client()
            return leader.what_if(encode_record(record)) if leader is not None else None
        except Infeasible:
            raise
        except RmgrError as error:
            self._reach.note(f"where and when it would run is not known: {error.message}")
            return None

    def tasks(self, number: int, *, first: int = 0, limit: int = 0) -> list[TaskView]:
        """Returns tasks of one submission by dense position, at most `limit` (0 = all). Raises NotFound, DataLost."""
        from rmgr.submitter.questions import ReadTasks

        found: list[TaskView] = []
        while True:
            left = max(0, limit - len(found))
            page = self._reach.ask(ReadTasks(number=number, first=first + len(found), limit=left), 30.0)
            found += page.tasks
            if page.is_last or (limit and len(found) >= limit):
                return found

    def close(self) -> None:
        """Closes the channels to the leader."""
        for client in (self._client, self._thin):
            if client is not None:
                client.close()
        self._client = self._thin = None

    # -- who answers

    def _ask(self, leader: Callable[[LeaderClient | ThinLeader], T], own: Callable[[Any], Question[T]]) -> T:
        """Returns the leader's answer, asked without gRPC's library if possible; else one derived from znodes.

        own: makes the question to ZooKeeper; gets the module of questions, which is loaded only for this.
        """
        if (asked := self._find_thin()) is not None:
            from rmgr.adapters.rpc.thin import ThinFailed

            try:
                return leader(asked)
            except ThinFailed as why:
                self._reach.detail(f"asked the leader again: {why}")
                self._thin = None
            except Unavailable as error:
                self._give_up(f"the leader does not answer ({error.message})")
        client = self._find_client()
        if client is not None:
            try:
                return leader(client)
            except (Unavailable, DaemonFailed) as error:
                self._give_up(f"the leader does not answer ({error.message})")
        from rmgr.submitter import questions

        return self._reach.ask(own(questions), 30.0)

    def _find_thin(self) -> ThinLeader | None:
        """Returns the leader to ask without gRPC's library, None if gRPC is needed."""
        if self._is_thin_tried or self.is_local or self._client is not None:
            return self._thin
        self._is_thin_tried = True
        epoch = self._reach.leader_at_a_glance()
        if epoch is None:
            return None
        from rmgr.adapters.rpc.thin import ThinLeader

        credentials = self._reach.shown_credentials()
        bundle = None if credentials is None else credentials.directory
        self._thin = ThinLeader(epoch.endpoint, timeout_s=self._reach.left_s(_LEADER_S), bundle=bundle)
        return self._thin

    def _find_client(self) -> LeaderClient | None:
        """Returns the leader to ask through gRPC; None, with a note, if no WatchDog leads."""
        if self.is_local:
            return None
        if self._client is None and (epoch := self._leader()) is not None:
            from rmgr.adapters.rpc.services import LeaderClient

            timeout_s, mine = self._reach.left_s(_LEADER_S), self._reach.shown_credentials()
            self._client = LeaderClient(epoch.endpoint, timeout_s=timeout_s, via=self._reach.via, credentials=mine)
        return self._client

    def _leader(self) -> EpochRecord | None:
        """Returns the leader's record; None, with a note, if no WatchDog leads."""
        if self.is_local:
            return None
        from rmgr.submitter.questions import WhoLeads

        epoch = self._reach.ask(WhoLeads()).leader
        if epoch is None:
            self._give_up("no WatchDog leads just now")
        return epoch

    def _give_up(self, why: str) -> None:
        """Answers from ZooKeeper from now on, and notes that to the user."""
        self._reach.note(f"{why}; this answer is read from ZooKeeper")
        self.is_local, self._thin = True, None

    def leader_endpoint(self) -> str:
        """Returns the endpoint of the leader, "" if none leads."""
        found = self._leader()
        return found.endpoint if found is not None else ""

    def has_leader(self) -> bool:
        """Returns whether a WatchDog leads, as far as ZooKeeper knows."""
        return not self.is_local and (self._client is not None or self._thin is not None or self._leader() is not None)

    def _store_facts(self) -> dict[str, object]:
        """Returns what this process finds out about the data store, in the form that `status` shows."""
        from rmgr.adapters.stores import shown
        from rmgr.procedures.bootstrap import store_problem

        store: dict[str, object] = {"ok": False, **shown(self._reach.store_url)}
        try:
            problem = store_problem(self._reach.data_store())
            store |= {"ok": problem is None} | ({"problem": problem} if problem else {})
        except RmgrError as error:
            store["problem"] = error.message
        return store


# -- gangs ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class GangView:
    """A gang as recorded. generation: version of the record. slot: the current slot, None = no clock could be read."""

    partition: str
    generation: int
    record: GangRecord
    slot: int | None = None


def read_gangs(reach: Reach) -> list[GangView]:
    """Returns all gangs with a running job, by partition. Raises: CoordinationUnavailable; InvalidRecord for an unreadable record."""
    from rmgr.submitter.questions import ReadGangs

    via, credentials = reach.via, reach.shown_credentials()
    return [
        GangView(partition=one.partition, generation=one.generation, record=one.record, slot=_present_slot(one, via, credentials))
        for one in reach.ask(ReadGangs())
    ]


def _present_slot(gang: GangRead, via: str, credentials: Credentials | None) -> int | None:
    from rmgr.adapters.rpc.services import NodeClient

    record, clock = gang.record, gang.record.clock
    if not gang.clock_endpoint:
        return None
    with suppress(RmgrError), NodeClient(gang.clock_endpoint, timeout_s=_CLOCK_S, via=via, credentials=credentials) as client:
        boot_us, incarnation = client.clock(clock.node)
        if incarnation == clock.incarnation:
            return int(boot_us + clock.offset_us - record.origin_us) // record.slot_us
    return None


# -- load of nodes -------------------------------------------------------------------------------------------------------------


def with_stats(nodes: list[NodeView], via: str, credentials: Credentials | None) -> list[NodeView]:
    """Returns `nodes` with load, memory and running tasks if their Starters answer in time; nodes with a live session count as seen now."""
    from rmgr.adapters.rpc.services import NodeClient, NodeStats
    from rmgr.runtime import machine

    def ask(endpoint: str) -> dict[str, NodeStats]:
        try:
            with NodeClient(endpoint, timeout_s=_STATS_S, via=via, credentials=credentials) as client:
                return {item.node: item for item in client.stats()}
        except (Unavailable, DaemonFailed):
            return {}

    endpoints = sorted({node.endpoint for node in nodes if node.endpoint})
    answers: dict[str, NodeStats] = {}
    if endpoints:
        with machine.pool(min(32, len(endpoints)), "stats") as pool:
            for answer in pool.map(ask, endpoints):
                answers |= answer
    now = machine.wall_us()
    measured = []
    for node in nodes:
        stats = answers.get(node.id) if node.endpoint else None
        if stats is not None:
            reason = node.reason or stats.reason
            node = msgspec.structs.replace(  # noqa: PLW2901 - the same node, better known
                node,
                load=stats.load,
                running=stats.running,
                cores_used=stats.cores_used,
                memory_used_bytes=stats.memory_used_bytes,
                resources_used=stats.resources_used or node.resources_used,
                reason=reason,
                freezer=stats.freezer,
                clock_error_us=stats.clock_error_us,
                switches=stats.switches,
                late_switches=stats.late_switches,
            )
        measured.append(msgspec.structs.replace(node, seen_us=now) if node.endpoint else node)
    return measured


# -- history -------------------------------------------------------------------------------------------------------------------


def store_or_none(reach: Reach) -> Store | None:
    """Returns the data store, for questions that it only helps to answer; None, with a note, if it cannot be opened."""
    try:
        return reach.data_store()
    except RmgrError as error:
        reach.note(f"{error.message}; what lies in the data store is missing here")
        return None


def read_past(reach: Reach, number: int) -> JobView | None:
    """Returns the summary of one submission, None if there is none or no data store."""
    return past_of(reach, number) if store_or_none(reach) is not None else None


def past_of(reach: Reach, number: int) -> JobView | None:
    """Returns the summary of one submission, None if there is none. Raises: StoreUnavailable, NotConnected, DataLost. Cost: one read."""
    from rmgr.procedures.history import summary_of

    return summary_of(reach.data_store(), number, timeout_s=reach.left_s(30.0))


def list_past(reach: Reach, *, user: str | None) -> Iterator[JobView]:
    """Yields summaries, newest first, with 50 of them in memory. Raises StoreUnavailable. Cost: eleven reads per 500."""
    from rmgr.coord.protocol import keys
    from rmgr.procedures.history import summaries

    store = reach.data_store()
    try:
        prefix, after = keys.history_prefix(user), ""
    except UsageError:  # no key can hold this name: its rows are under all users
        yield from (job for job in list_past(reach, user=None) if job.user == user)
        return
    while True:
        timeout_s = reach.left_s(30.0)
        names = store.keys(prefix, after=after, limit=_PAGE, timeout_s=timeout_s)
        if not names:
            return
        yield from summaries(store, names, lambda why: reach.note(f"{why} (left out)"), timeout_s=timeout_s)
        after = names[-1]
