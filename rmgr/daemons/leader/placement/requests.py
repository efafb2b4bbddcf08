"""Carries out users' requests (`/requests`) to running jobs: save the state, go on elsewhere, leave a node; writes the answer.

Only the leader moves running placed jobs. Every turn looks at each open request, by what is known then, until it is settled: so it
does not matter which leader began with it, or whether one of its commits was made. Answers are deleted later.

Before that come the nodes as the scheduler sees them: those of partitions with place queues, with features for requests that name nodes.
If a job was asked to go elsewhere, the nodes for its next start have a feature that only this job requires (`NextStarts`).

A node that gave a job back without beginning it gets nothing for a while. A Starter takes nothing new while its disk is full, its store
is away, or too much went wrong on it; it logs that, but the leader sees only that jobs come back. Such a node is the emptiest of
all: every waiting job would go there and come back, again and again.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Collection
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import TYPE_CHECKING

from rmgr.coord import validity
from rmgr.coord.ops import leader as leader_ops
from rmgr.coord.protocol import keys, paths
from rmgr.coord.protocol.multi import Stamped, Unknown
from rmgr.coord.protocol.ports import Store
from rmgr.coord.protocol.records import decode_record
from rmgr.daemons.leader.facts import allows, node_mark, node_of
from rmgr.daemons.leader.placement.job_table import PlacedJob
from rmgr.daemons.leader.placement.stops import DRAIN, GO_ON, THEN, USER, PendingStop, SentOrder, stop_order
from rmgr.daemons.leader.placement.view import label
from rmgr.errors import Infeasible, NotFound, RmgrError, StateConflict, Unavailable, UsageError
from rmgr.model.block import MAX_INDEX, BlockKey, StopKind, StopRequest, job_id, job_label, task_of
from rmgr.model.node import InboxOrder, OrderKind
from rmgr.model.submission import FROM_START
from rmgr.model.units import counted
from rmgr.runtime import machine
from rmgr.runtime.story import Pause, Story
from rmgr.sched.job import Job, Node, Running, nodes_of, room
from rmgr.sched.policy import Cause
from rmgr.sched.state.cluster import ClusterState

if TYPE_CHECKING:
    from rmgr.daemons.leader.placement.placer import Placer

#: The first and the longest back-off of a node; one that follows closely on the last is twice as long.
_FIRST_S, _LONGEST_S = 1.0, 60.0
#: A job that waits again later than this after it left its node was released by a user, not given back.
_SOON_S = 10.0
#: Most recently left jobs that are remembered; most of them have ended.
_KEPT = 1_000
#: How long an answer stays for its client.
_KEEP_S = 60.0
#: Longest time until a requested drain is seen.
_DRAIN_S = 10.0
_RETRY_S = 0.2
#: Pause after an answer with an unknown outcome.
_ANSWER_AGAIN_S = 1.0
#: Longest delay of a checkpoint order's end after the end of its block, and of the next attempt after the lost one.
_ORDER_S, _BACK_S = 10.0, 2.0
#: Most bytes of texts about jobs in an answer: it is one znode.
_TOLD_BYTES = 6 * 1024


class ScheduledNodes:
    """Nodes as the scheduler sees them. In the leader's loop.

    Attributes: mark_of: returns the feature of nodes that run work of a user.
    """

    def __init__(self, placer: Placer) -> None:
        self.names = placer.names
        self.mark_of = placer.known_nodes.mark_of
        self._placer = placer
        self._nodes = placer.known_nodes
        self._listed = placer.lists.running  # the nodes whose running blocks are known take part
        self._updates = placer.updates
        self._marks: set[str] = set()  # of requests that name nodes

    def learn(self, partitions: Collection[str]) -> set[str]:
        """Returns the nodes of these partitions, and gives each a number."""
        found = {name for name, record in self._nodes.records.items() if record.attributes.partition in partitions}
        self.names.learn(found)
        return found

    def all(self) -> list[Node]:
        """Returns every node that takes part."""
        return [self._node(name) for name in sorted(self._listed, key=self.names.id) if name in self._nodes.records]

    def tell(self, state: ClusterState) -> None:
        """Tells the state which nodes have changed."""
        for node in self.all():
            part = state.partitions.get(node.partition)
            if part is None or part.nodes.get(node.id) != node:
                self._updates.tell(state, "node_changed", node)
                self._updates.because(Cause.NODES_CHANGED)

    def mark(self, mark: str) -> bool:
        """Gives the nodes that a request allows a feature of their own. Returns whether the feature is new."""
        if not mark or mark in self._marks:
            return False
        self._marks.add(mark)
        return True

    def _node(self, name: str) -> Node:
        record, nodes = self._nodes.records[name], self._nodes
        marks = (mark for mark in self._marks if allows(mark, name, nodes.refuses(name)))
        return node_of(record, self.names.id(name), closed=not nodes.takes_work(name) or self._placer.is_shut(name), marks=marks)


def only(node: str) -> str:
    """Returns the feature of one node alone."""
    return f"={node};"


class NextStarts:
    """Next starts of all jobs that users asked to move; the job table holds the features. In the leader's loop."""

    def __init__(self, placer: Placer) -> None:
        self._job_table = placer.job_table
        self._nodes = placer.nodes
        self._records = placer.known_nodes.records
        self._updates = placer.updates

    def mark_for(self, run: Running, placed: PlacedJob, to: str) -> str:
        """Returns the feature of nodes for the job's next start. to: one node, "" = any but those of its run.

        Raises: NotFound, StateConflict, Infeasible.
        """
        job = run.job
        shown = label(job.id, self._job_table.submissions)
        if not to:
            here = [self._nodes.names.name(node) for node in nodes_of(run.placement)]
            for never in (here, [placed.node]):
                mark = f"=;{','.join(sorted(never))}"
                if self._could_run(job, mark):
                    return mark
            raise Infeasible(
                f"job {shown} cannot go elsewhere: no other open node of partition {placed.partition} could run it",
                hint=f"rmgr nodes; rmgr checkpoint {shown} saves its state where it is",
            )
        if to not in self._records:
            raise NotFound(f"there is no node {to!r}", hint="rmgr nodes")
        node = next((node for node in self._nodes.all() if node.name == to), None)
        if node is None or node.partition != job.partition:
            raise Infeasible(f"node {to} is not in partition {job.partition}, where job {shown} is placed", hint="rmgr nodes -o +partition")
        if node.closed:
            why = f"node {to} takes nothing new: it is drained, or its Starter is gone"
            raise StateConflict(why, hint=f"rmgr nodes {to}; rmgr resume {to}")
        if not self._could_run(job, only(to)):
            wanted = f"{job.processes} x {counted(job.threads, 'core')}"
            raise Infeasible(f"node {to} is too small for job {shown}: it needs {wanted}, {to} has {node.cores}", hint="rmgr nodes")
        return only(to)

    def mark_of(self, job: Job) -> str:
        """Returns the feature for the next start of a job that comes to its queue; "" = any node, also if the feature became impossible."""
        mark = self._job_table.marks.get(job.id, "")
        if mark and not self._could_run(job, mark):
            del self._job_table.marks[job.id]
            return ""
        return mark

    def look_again(self, state: ClusterState) -> None:
        """Lets a job that waits for a node that is gone use any node, after a change of nodes."""
        for job_, mark in list(self._job_table.marks.items()):
            waiting = self._job_table.waiting.get(job_)
            job = state.partitions[waiting.partition].jobs.get(job_) if waiting is not None else None
            if job is None or mark not in job.features:
                continue
            plain = replace(job, features=tuple(name for name in job.features if name != mark))
            if not self._could_run(plain, mark):
                del self._job_table.marks[job_]
                self._updates.tell(state, "job_requeued", plain)

    def _could_run(self, job: Job, mark: str) -> bool:
        """Whether the open nodes that the mark allows could run the job if they were empty."""
        plain = replace(job, features=tuple(name for name in job.features if not name.startswith("=")))
        submission = self._job_table.submissions.get(task_of(job.id)[0])
        # The mark of an earlier move is over.
        own = node_mark(submission.rigid) if submission is not None and submission.rigid is not None else ""

        def is_allowed(node: Node) -> bool:
            return node.partition == job.partition and allows(mark, node.name) and (not own or allows(own, node.name))

        return sum(room(plain, node, node.cores) for node in self._nodes.all() if is_allowed(node)) >= job.processes


@dataclass(slots=True)
class _Backoff:
    length_s: float
    until_s: float


class NodeBackoffs:
    """Knows which nodes get nothing for now, and how long. In the leader's loop."""

    def __init__(self, placer: Placer) -> None:
        self._placer = placer
        self._term = placer.term
        self._left: OrderedDict[int, tuple[BlockKey, str, float]] = OrderedDict()  # job -> its block, its node, when it left
        self._backoffs: dict[str, _Backoff] = {}

    def left(self, job: int, placed: PlacedJob) -> None:
        """Remembers a job that left its node: it has ended, or comes back."""
        if len(placed.allocation.shares) > 1:
            return  # it is unknown which of its nodes was not ready
        self._left[job] = (placed.key, placed.node, self._term.clock())
        if len(self._left) > _KEPT:
            self._left.popitem(last=False)

    def came(self, job: int, key: BlockKey) -> bool:
        """Looks at a waiting job: if its attempt is the same, it was not begun. Returns whether its node is left alone from now on."""
        before = self._left.pop(job, None)
        if before is None or before[0] != key or self._term.clock() - before[2] > _SOON_S:
            return False
        return self._back_off(before[1])

    def _back_off(self, node: str) -> bool:
        now_s, last = self._term.clock(), self._backoffs.get(node)
        if last is not None and now_s < last.until_s:
            return False  # the node was given several jobs at once
        is_again = last is not None and now_s < last.until_s + max(_SOON_S, last.length_s)
        length_s = min(_LONGEST_S, last.length_s * 2) if last is not None and is_again else _FIRST_S
        self._backoffs[node] = _Backoff(length_s, now_s + length_s)
        self._term.log.warning("node_backs_off", node=node, seconds=length_s, why="it gave a job back that it had not begun")
        self._term.after(length_s, self._placer.nodes_changed)
        return True

    def under_way(self) -> dict[str, float]:
        """Returns node -> seconds until it is tried again."""
        now_s = self._term.clock()
        return {node: backoff.until_s - now_s for node, backoff in self._backoffs.items() if backoff.until_s > now_s}

    def is_left_alone(self, node: str) -> bool:
        """Whether nothing may be placed there now."""
        backoff = self._backoffs.get(node)
        return backoff is not None and self._term.clock() < backoff.until_s


class RequestStage(Enum):
    """Progress of a request."""

    OPEN = auto()  #: no order was sent for it
    BEGUN = auto()  #: an order is in flight
    SENT = auto()  #: the job was asked, by this request's committed order or by another one
    OVER = auto()  #: it has its answer


@dataclass(slots=True, kw_only=True, eq=False)
class UserRequest:
    """One open request, or its part for one job.

    block: of the requested checkpoint; gone_s: since when it is gone. error, told: its result. settled: gets the answer at the end.
    """

    guid: str
    request: StopRequest
    end_s: float
    stage: RequestStage = RequestStage.OPEN
    block: str = ""
    gone_s: float | None = None
    before: keys.Checkpoint | None = None
    parts: list[UserRequest] | None = None
    error: RmgrError | None = None
    told: str = ""
    settled: Future[StopRequest] = field(default_factory=Future)

    @property
    def job(self) -> int:
        """The scheduler's id of the job."""
        return job_id(self.request.submission, self.request.index)

    @property
    def has_begun(self) -> bool:
        """Whether the job was asked, or is being asked."""
        return self.stage is RequestStage.BEGUN or self.stage is RequestStage.SENT

    @property
    def is_over(self) -> bool:
        """Whether the result is known."""
        return self.stage is RequestStage.OVER

    def end(self, what: str | RmgrError) -> None:
        """Records the result."""
        self.stage = RequestStage.OVER
        if isinstance(what, RmgrError):
            self.error = what
        else:
            self.told = what


class UserRequests:
    """All requests of one leadership."""

    def __init__(self, placer: Placer) -> None:
        self._term = placer.term
        self._job_table = placer.job_table
        self._stops = placer.stops
        self._next_starts = placer.next_starts
        self._drains = placer.known_nodes.drains
        self._served = placer.served
        self._wake = placer.wake
        self._open: dict[str, UserRequest] = {}
        self._names = self._term.mirror.names(paths.REQUESTS, self._on_names)
        self._rebuilt_s = -math.inf

    def start(self) -> None:
        """Starts looking."""
        self._names.refresh()

    def rebuilt(self) -> None:
        """Reopens requests whose order is missing after everything was read again, with all committed stops."""
        self._rebuilt_s = self._term.clock()
        for user_request in self._open.values():
            for one in (user_request, *(user_request.parts or ())):
                if one.stage is RequestStage.BEGUN:
                    one.stage = RequestStage.OPEN

    # -- from a request's znode to its answer

    def _on_names(self) -> None:
        for guid in sorted(self._names.value or ()):
            self._term.tell(self._serve(guid), paths.request(guid))

    def _serve(self, guid: str) -> Story[None]:
        """Serves one request until its answer is deleted. Repeating it does no harm: a successor serves requests without an answer."""
        found = yield self._term.get(paths.request(guid))
        if found is None:
            return
        answer = yield from self._answer_to(guid, found)
        if answer is not None:
            self._term.log.info("request_answered", submission=answer.submission, count=len(answer.done), error=answer.error)
            until_s = self._term.clock() + _KEEP_S
            while isinstance((yield self._term.commit(leader_ops.answer_request(guid, answer, found.version))), Unknown):
                if self._term.clock() > until_s:
                    break
                yield Pause(_ANSWER_AGAIN_S)
        yield Pause(_KEEP_S)  # without an answer, too: its client has given up long before
        yield self._term.commit(leader_ops.clear_request(guid))

    def _answer_to(self, guid: str, found: Stamped) -> Story[StopRequest | None]:
        """Returns the answer, None if it has one already, or is no request."""
        path = paths.request(guid)
        try:
            request = validity.decode(found.data, StopRequest, path)
        except RmgrError as error:
            self._term.log.warning("request_unreadable", path=path, error=error.message)
            with suppress(RmgrError):  # tell the client, if it is a request at all
                request = decode_record(found.data, StopRequest, path)
                return None if request.answered else replace(request, answered=True, error=error.message)
            return None
        if request.answered:
            return None
        try:
            return (yield self._take(guid, request))  # type: ignore[no-any-return]
        except Exception as error:  # noqa: BLE001 - the boundary of one request: whoever has asked is told
            self._term.aside.add(path, found.version, error)
            return replace(request, answered=True, error=f"the leader cannot handle it: {error}")

    def _take(self, guid: str, request: StopRequest) -> Future[StopRequest]:
        """Opens a request. Returns its answer to come: the request with its result."""
        user_request = UserRequest(guid=guid, request=request, end_s=self._term.clock() + _DRAIN_S)
        if self._served.queues and 0 <= request.index < MAX_INDEX:
            self._open[guid] = user_request
            self._wake()
        else:  # nothing is placed in this cluster, or the index is impossible
            if request.kind is StopKind.VACATE:
                user_request.parts = []
            else:
                user_request.error = _not_running(request)
            self._settle(user_request)
        return user_request.settled

    def _settle(self, user_request: UserRequest) -> None:
        self._term.stories.end(user_request)
        user_request.settled.set_result(answer_of(user_request))

    # -- a turn

    def turn(self, state: ClusterState, now_us: int) -> list[SentOrder] | None:
        """Looks at every open request. Returns orders to commit, None if there is nothing to commit."""
        asked = self._stops.taken_back()
        for user_request in list(self._open.values()):
            asked += self._step(state, user_request, now_us)
            if user_request.is_over:
                del self._open[user_request.guid]
                self._settle(user_request)
        if not asked and not self._stops.is_dirty:
            return None
        self._stops.is_dirty = False
        return asked

    def _step(self, state: ClusterState, user_request: UserRequest, now_us: int) -> list[SentOrder]:
        if user_request.is_over:
            return []
        try:
            if user_request.request.kind is StopKind.VACATE:
                return self._vacate(state, user_request, now_us)
            return self._one(state, user_request, now_us)
        except RmgrError as error:
            user_request.end(error)
            return []
        except Exception as error:  # noqa: BLE001 - the boundary of one request: whoever has asked is told
            self._term.aside.add(paths.request(user_request.guid), None, error)
            user_request.end(StateConflict(f"the leader cannot handle this request: {type(error).__name__}: {error}"))
            return []

    def _vacate(self, state: ClusterState, user_request: UserRequest, now_us: int) -> list[SentOrder]:
        """Asks every job with a part on the node to move, once nothing new comes there."""
        node = user_request.request.node
        if user_request.parts is None:
            if node not in self._drains:
                if self._term.clock() > user_request.end_s:
                    raise StateConflict(f"node {node} is not drained", hint=f"rmgr drain {node} --migrate")
                self._term.after(_RETRY_S, self._wake)
                return []
            placed = sorted(self._job_table.placed.items())
            user_request.parts = [
                self._part(user_request, job) for job, one in placed if any(name == node for name, _ in one.allocation.shares)
            ]
        asked = [one for part in user_request.parts for one in self._step(state, part, now_us)]
        if all(part.is_over for part in user_request.parts):
            user_request.stage = RequestStage.OVER
        return asked

    def _part(self, user_request: UserRequest, job: int) -> UserRequest:
        submission, index = task_of(job)
        attempt = self._job_table.placed[job].key.attempt
        request = replace(user_request.request, kind=StopKind.MIGRATE, submission=submission, index=index, attempt=attempt)
        return UserRequest(guid=machine.guid()[:12], request=request, end_s=user_request.end_s)

    def _one(self, state: ClusterState, user_request: UserRequest, now_us: int) -> list[SentOrder]:
        job_table, request, job, shown = self._job_table, user_request.request, user_request.job, self._label(user_request.job)
        stop, placed, waiting = self._stops.by_job.get(job), job_table.placed.get(job), job_table.waiting.get(job)
        if stop is not None:
            if stop.is_refused:
                raise _refusal_error(shown, stop.why)
            if not user_request.has_begun and stop.guid != user_request.guid and request.kind is StopKind.MIGRATE and not request.node:
                self._redirect(user_request, stop)
            user_request.stage = RequestStage.SENT
            return []
        left = placed is None or placed.name != user_request.block
        if user_request.block and user_request.stage is RequestStage.SENT and left and self._is_young(user_request, _ORDER_S):
            return []  # this may be its answer (exit code 85): the end of its order shows whether the state was stored
        if placed is not None:
            if 0 < request.attempt < placed.key.attempt:
                where = ", ".join(name for name, _ in placed.allocation.shares)
                if request.to and where != request.to:
                    raise _moved_error(shown, request.to, f"its attempt {placed.key.attempt} runs on {where}, not on {request.to}")
                user_request.end(f"it runs again on {where}, attempt {placed.key.attempt}")
                return []
            if request.kind is StopKind.CHECKPOINT:
                if not user_request.has_begun:
                    self._order_checkpoint(user_request, placed)
                return []
            if user_request.has_begun:
                raise _refusal_error(shown, self._stops.refusals.get(job, ""))
            return [self._order_stop(state, user_request, placed, now_us)]
        if waiting is not None:
            if user_request.has_begun or 0 < request.attempt < waiting.key.attempt:
                if request.to and job_table.marks.get(job) != only(request.to):
                    what = f"its attempt {waiting.key.attempt} waits in queue {waiting.queue}, and not for node {request.to}"
                    raise _moved_error(shown, request.to, what)
                user_request.end(f"it waits in queue {waiting.queue} for its next start, attempt {waiting.key.attempt}")
                return []
            raise StateConflict(f"job {shown} does not run: it waits in queue {waiting.queue}", hint=f"rmgr explain {shown}")
        if user_request.has_begun:
            if self._is_young(user_request, _BACK_S):
                return []
            raise StateConflict(f"job {shown} is off its nodes and does not wait: it has ended, or is held", hint=f"rmgr show {shown}")
        if self._term.clock() - self._rebuilt_s < _BACK_S:
            # Queues are read before nodes: a job that went back to its queue between the two reads is still in neither.
            self._term.after(_BACK_S, self._wake)
            return []
        raise _not_running(request)

    def _is_young(self, user_request: UserRequest, limit_s: float) -> bool:
        """Whether it is so recent that the job left its nodes that the consequences may not be seen yet."""
        if user_request.gone_s is None:
            user_request.gone_s = self._term.clock()
            self._term.after(limit_s + 0.1, self._wake)
        return self._term.clock() - user_request.gone_s < limit_s

    def _label(self, job: int) -> str:
        return label(job, self._job_table.submissions)

    # -- stops

    def _order_stop(self, state: ClusterState, user_request: UserRequest, placed: PlacedJob, now_us: int) -> SentOrder:
        job, request, shown = user_request.job, user_request.request, self._label(user_request.job)
        if not self._job_table.may_move(job):
            raise StateConflict(
                f"job {shown} was submitted with --no-requeue: it runs once, and is never asked to stop",
                hint=f"let it end, or: rmgr cancel {shown}",
            )
        part = state.partitions[placed.partition]
        run = part.running.get(job) or (part.suspended[job].run if job in part.suspended else None)
        if run is None:
            raise Unavailable(f"job {shown} is just being placed", hint="try again in a moment")
        mark = self._next_starts.mark_for(run, placed, request.to) if not request.node else ""
        order = stop_order(job, why=DRAIN if request.node else USER, detail=request.detail, grace_us=request.grace_us)
        stop = self._stops.begin(state, run, user_request.guid, now_us)
        if mark:
            self._job_table.marks[job] = mark
        else:
            self._job_table.marks.pop(job, None)
        user_request.stage = RequestStage.BEGUN
        return SentOrder(job, user_request.guid, order, stop)

    def _redirect(self, user_request: UserRequest, stop: PendingStop) -> None:
        """Applies this request's destination to a job that is being stopped for another reason. Raises: as `NextStarts.mark_for`."""
        marks, to = self._job_table.marks, user_request.request.to
        if to or user_request.job not in marks:
            marks[user_request.job] = self._next_starts.mark_for(stop.run, stop.placed, to)
            self._stops.is_dirty = True

    # -- checkpoints of jobs that go on

    def _order_checkpoint(self, user_request: UserRequest, placed: PlacedJob) -> None:
        submission = self._job_table.submissions.get(user_request.request.submission)
        if submission is not None and submission.rigid is not None and submission.rigid.restart == FROM_START:
            why = f"job {self._label(user_request.job)} was submitted with --restart-from start: nothing of it is stored"
            raise StateConflict(why, hint="submit it without that option")
        user_request.stage = RequestStage.BEGUN
        self._term.tell(self._checkpoint(user_request, placed), f"the checkpoint of job {user_request.job}", key=user_request)

    def _checkpoint(self, user_request: UserRequest, placed: PlacedJob) -> Story[None]:
        """Orders the job's head to save the state; once it has obeyed, the store shows the result."""
        request, shown = user_request.request, self._label(user_request.job)
        saved = keys.checkpoints_of(request.submission, request.index)
        try:
            user_request.before = yield self._term.in_store(newest_checkpoint, prefix=saved)
            user_request.block = placed.name
            extra = {THEN: GO_ON, "why": USER, "block": placed.name} | ({"grace_us": str(request.grace_us)} if request.grace_us else {})
            order = InboxOrder(
                order=OrderKind.CHECKPOINT, submission=request.submission, index=request.index, detail=request.detail, extra=extra
            )
            outcome = yield self._term.commit(leader_ops.order(placed.node, user_request.guid, order))
            # A conflict: an earlier leader has sent it already; unknown: the inbox will show.
            if isinstance(outcome, Unknown):
                self._term.log.warning("checkpoint_order_unknown", submission=request.submission, cause=outcome.cause)
            user_request.stage = RequestStage.SENT
            yield from self._term.mirror.until_gone(paths.inbox(placed.node, user_request.guid))
            try:
                block = yield self._term.get(paths.running_block(placed.node, placed.key))
            except RmgrError:
                block = None
            newest = yield self._term.in_store(newest_checkpoint, prefix=saved)
        except RmgrError as error:
            if user_request.stage is RequestStage.SENT:
                words, hint = f"job {shown} was asked to save its state; whether that is stored is not known", f"rmgr show {shown}"
            else:
                words, hint = f"job {shown} is not asked to save its state", "rmgr status"
            user_request.end(Unavailable(f"{words}: {error.message}", hint=hint))
        else:
            said = self._stops.said_of(user_request.job, block.data) if block is not None else ""
            if newest is not None and (user_request.before is None or newest.order > user_request.before.order):
                user_request.end(said if str(newest) in said else f"checkpoint {newest} is stored")
            elif block is None:
                why = f"job {shown} ended, or left its node, before it had saved its state"
                user_request.end(StateConflict(why, hint=f"rmgr show {shown}"))
            else:
                user_request.end(StateConflict(f"job {shown} was not stored: {_reason_or_default(said)}", hint=f"rmgr show {shown}"))
        self._wake()


def answer_of(user_request: UserRequest) -> StopRequest:
    """Returns the request with its result."""
    parts = user_request.parts if user_request.parts is not None else [user_request] if user_request.error is None else []
    error = user_request.error
    told = [(part.request.submission, part.request.index, part.told if part.error is None else part.error.message) for part in parts]
    brief = list(zip(parts, _shorten(told), strict=True))
    return replace(
        user_request.request,
        answered=True,
        done=tuple(text for part, text in brief if part.error is None),
        left=tuple(text for part, text in brief if part.error is not None),
        error=error.message if error is not None else "",
        code=error.code if error is not None else "",
        hint=(error.hint or "") if error is not None else "",
    )


def newest_checkpoint(store: Store, *, prefix: str) -> keys.Checkpoint | None:
    """Returns the newest checkpoint by its key; skips keys that are none of a checkpoint. Cost: a read for each 1,000 rows."""
    newest: keys.Checkpoint | None = None
    after = ""
    while names := store.keys(prefix, after=after):
        for name in names:
            with suppress(UsageError):
                found = keys.parse_checkpoint(name)
                if found is not None and (newest is None or found.order > newest.order):
                    newest = found
        after = names[-1]
    return newest


def _shorten(texts: list[tuple[int, int, str]]) -> list[tuple[int, int, str]]:
    """Shortens the texts about hundreds of jobs that left one node to what an answer can hold."""
    most = _TOLD_BYTES // max(1, len(texts))
    return [(submission, index, text if len(text.encode()) <= most else f"{text[: most // 4]}...") for submission, index, text in texts]


def _not_running(request: StopRequest) -> RmgrError:
    shown = job_label(request.submission, request.index)
    return StateConflict(f"{shown} is no placed job that runs", hint=f"rmgr show {shown}")


def _reason_or_default(why: str) -> str:
    return why or "its node did not say why"


def _moved_error(shown: str, to: str, what: str) -> StateConflict:
    """Returns the error of a job that moved elsewhere: another request, a policy or a lost node came between, or that node is closed."""
    return StateConflict(f"job {shown} has left its nodes meanwhile: {what}", hint=f"rmgr show {shown}; rmgr nodes {to}")


def _refusal_error(shown: str, why: str) -> StateConflict:
    return StateConflict(f"job {shown} goes on where it is: {_reason_or_default(why)}", hint=f"rmgr show {shown}")
