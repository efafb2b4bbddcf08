"""Asks the leader, which answers from memory; where none answers, the same is made of znodes, with a note to the user."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from rmgr.client.queries.doors import HistoryHost, LeaderHost
from rmgr.client.queries.leaders import LeaderSearch
from rmgr.errors import NotFound, Unavailable
from rmgr.model.views import ExplainView, JobView, NodeView, QueueView, StatusView, TaskView, WhatIfView

if TYPE_CHECKING:
    from rmgr.adapters.rpc.server import LeaderClient
    from rmgr.adapters.rpc.thin import ThinLeader
    from rmgr.client.queries.gangs import GangView
    from rmgr.model.tasks.submission import Submission
    from rmgr.submitter.questions import Question

T = TypeVar("T")


class Query:
    """Questions of one caller.

    Every call raises Unavailable when ZooKeeper does not answer within the caller's deadline.

    Args: leaders: ways to the leader, and to ZooKeeper. history: the way to the data store.
    """

    def __init__(self, leaders: LeaderHost, history: HistoryHost) -> None:
        self._leaders = leaders
        self._history = history
        self._search = LeaderSearch(leaders)

    def jobs(self, ids: tuple[int, ...] = (), *, ended: bool = False, user: str = "") -> list[JobView]:
        """Submissions, oldest first: those of `ids`, else the live ones (with `ended` all), of `user` or of everyone."""

        def local() -> list[JobView]:
            from rmgr.submitter.questions import DeriveJobs

            return [*self._derived(DeriveJobs(ids=ids, ended=ended, user=user))]

        def ask(leader: LeaderClient | ThinLeader) -> list[JobView]:
            return leader.jobs(ids, ended=ended, user=user)

        return self._ask(ask, local, ask)

    def job(self, number: int) -> JobView:
        """One submission; from the history when it is no longer in memory. Raises NotFound."""
        found = self.jobs((number,), ended=True)
        if found:
            return found[0]
        from rmgr.client.queries.past import read_past

        past = read_past(self._history, number)
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
        from rmgr.client.queries.node_stats import with_stats
        from rmgr.submitter.questions import DeriveNodes

        nodes = self._ask(lambda leader: leader.nodes(), lambda: [*self._derived(DeriveNodes())])
        return with_stats(nodes, self._leaders.via, self._leaders.credentials())

    def queues(self) -> list[QueueView]:
        """All queues, by name, and queue classes."""

        def local() -> list[QueueView]:
            from rmgr.submitter.questions import DeriveQueues

            return [*self._derived(DeriveQueues())]

        return self._ask(lambda leader: leader.queues(), local, lambda leader: leader.queues())

    def gangs(self) -> list[GangView]:
        """Who shares nodes in time, as the records say it, by partition."""
        from rmgr.client.queries.gangs import read_gangs

        return read_gangs(self._leaders)

    def status(self) -> StatusView:
        """Health and counts."""
        return self._ask(lambda leader: leader.status(), self._own_status, lambda leader: leader.status())

    def explain(self, number: int, position: int | None) -> ExplainView:
        """Why it is in its state. Raises NotFound."""

        def local() -> ExplainView:
            from rmgr.submitter.questions import DeriveExplain

            problem = str(self._store_facts().get("problem") or "")
            return self._derived(DeriveExplain(number=number, position=position, store_problem=problem))

        def ask(leader: LeaderClient | ThinLeader) -> ExplainView:
            return leader.explain(number, position)

        return self._ask(ask, local, ask)

    def what_if(self, record: Submission) -> WhatIfView | None:
        """Where and when it would run; None, with a note, when the leader cannot say. Raises: Infeasible for what its policy ends."""
        from rmgr.coord.protocol.records import encode_record
        from rmgr.errors import Infeasible, RmgrError

        try:
            leader = self._search.client()
            return leader.what_if(encode_record(record)) if leader is not None else None
        except Infeasible:
            raise
        except RmgrError as error:
            self._leaders.note(f"where and when it would run is not known: {error.message}")
            return None

    def tasks(self, number: int, *, first: int = 0, limit: int = 0) -> list[TaskView]:
        """Tasks of one submission by dense position, at most `limit` (0 = all). Raises NotFound, DataLost."""
        from rmgr.submitter.questions import ReadTasks

        found: list[TaskView] = []
        while True:
            left = max(0, limit - len(found))
            page = self._leaders.ask(ReadTasks(number=number, first=first + len(found), limit=left), 30.0)
            found += page.tasks
            if page.is_last or (limit and len(found) >= limit):
                return found

    def close(self) -> None:
        """Ends the channel to the leader."""
        self._search.close()

    # -- who answers

    def _ask(
        self, leader: Callable[[LeaderClient], T], local: Callable[[], T], thin: Callable[[ThinLeader], T] | None = None
    ) -> T:
        """The leader's answer, else our own. thin: the same question without gRPC's library, where the leader can be asked so."""
        search = self._search
        if thin is not None and (asked := search.thin()) is not None:
            from rmgr.adapters.rpc.thin import ThinFailed

            try:
                return thin(asked)
            except ThinFailed as why:
                search.without_thin(str(why))
            except Unavailable as error:
                search.give_up(f"the leader does not answer ({error.message})")
        client = search.client()
        if client is not None:
            try:
                return leader(client)
            except Unavailable as error:
                search.give_up(f"the leader does not answer ({error.message})")
        return local()

    def _derived(self, question: Question[T]) -> T:
        """What is made of znodes."""
        return self._leaders.ask(question, 30.0)

    def leader_endpoint(self) -> str:
        """Where the leader answers, "" when none leads."""
        found = self._search.client()
        return found.endpoint if found is not None else ""

    def has_leader(self) -> bool:
        """A WatchDog leads, as far as ZooKeeper knows."""
        return self._search.client() is not None

    def _own_status(self) -> StatusView:
        from rmgr.submitter.questions import DeriveStatus

        asks = self._leaders.asks()
        zookeeper = {"ok": True, "hosts": asks.hosts, "session_timeout_s": asks.session_timeout_s}
        return self._derived(DeriveStatus(zookeeper=zookeeper, store=self._store_facts()))

    def _store_facts(self) -> dict[str, object]:
        """What we find out of the data store ourselves, as `status` shows it."""
        from rmgr.adapters.stores import shown
        from rmgr.errors import RmgrError

        store: dict[str, object] = {"ok": False, **shown(self._history.store_url)}
        try:
            problem = self._history.data_store().health()
            store |= {"ok": problem is None} | ({"problem": problem} if problem else {})
        except RmgrError as error:
            store["problem"] = error.message
        return store
