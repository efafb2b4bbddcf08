"""The scheduler's driver in the leader: facts from ZooKeeper, one pass, one fenced commit of what it decided, and again.

Facts are what the znodes say: names under the `pending` of place queues are jobs that wait, names under `/running/<node>` are jobs that
run, records of nodes are the machine. They are compared with the scheduler's state before each pass (`_reconcile`), so that no event can
be lost by being handled at the wrong moment. A commit that is refused, or whose fate is unknown, makes everything be read again
(`rebuild`), as after a take-over: the state is made anew from the records, and the next pass decides what the lost one would have.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from rmgr.coord.protocol import paths
from rmgr.daemons.leader.core.context import LeaderContext
from rmgr.daemons.leader.core.facts import Names, allows, node_of
from rmgr.daemons.leader.core.watched_cache import WatchedCache, names_below
from rmgr.daemons.leader.nodes.nodes import NodeKeeper
from rmgr.daemons.leader.placement.arrivals import Arrivals
from rmgr.daemons.leader.placement.classes import ClassMetrics, views_of
from rmgr.daemons.leader.placement.faults import INSTEAD, Faults
from rmgr.daemons.leader.placement.foreign import Foreign
from rmgr.daemons.leader.placement.lists import LongList
from rmgr.daemons.leader.placement.node_backoffs import NodeBackoffs
from rmgr.daemons.leader.placement.orders import PlanExecution
from rmgr.daemons.leader.placement.passes import Passes
from rmgr.daemons.leader.placement.rebuild import Rebuild
from rmgr.daemons.leader.placement.stops import Stops
from rmgr.daemons.leader.placement.submissions import SubmissionRecords
from rmgr.daemons.leader.placement.user_requests import UserRequests
from rmgr.daemons.leader.records.job_table import JobTable
from rmgr.daemons.leader.records.pipeline import classes_of, configuration, document_of, is_foreign, pipeline_of
from rmgr.daemons.leader.records.record import Recording
from rmgr.daemons.leader.records.reserved import Promises
from rmgr.daemons.leader.records.view import view_of
from rmgr.errors import ConfigError, StateConflict
from rmgr.model.cluster.queue import ClusterSettings, PipelineSpec, QueueSpec
from rmgr.model.tasks.placing import task_of
from rmgr.model.tasks.submission import Submission
from rmgr.model.views import PlacingView
from rmgr.runtime.timers import Timer
from rmgr.sched.job import Node
from rmgr.sched.plan import Plan, WakeAt
from rmgr.sched.policy import Cause, Stage
from rmgr.sched.queue_class import QueueClass
from rmgr.sched.records import Limits
from rmgr.sched.state.cluster import ClusterState
from rmgr.sched.state.partition import Partition

#: Least time between two readings of one list, and what each of its names adds: where thousands wait, a new one waits for more than that.
PACE_S, PACE_A_NAME_S = 0.005, 50e-6
#: Lists that are read again at a resync: so many at once, so far apart.
_AT_ONCE, _APART_S = 50, 0.02
_RETRY_S, _LONGEST_RETRY_S = 0.1, 5.0
#: A plan that takes longer is stuck: each of its reads and commits has a deadline of its own, far below.
_STUCK_S = 120.0


class Placer:
    """Places the jobs of all place queues; lives in the leader's loop.

    Attributes: state: the scheduler's, None while everything is read. plan: of the last pass. problems: partition -> why nobody places
    there. settings: the cluster's. policies: partition -> names. limits, classes (of queues): of partitions that have any.
    """

    def __init__(self, context: LeaderContext, settings: Callable[[], ClusterSettings], nodes: NodeKeeper, *, inline: bool = False) -> None:
        self.state: ClusterState | None = None
        self.plan = Plan()
        self.job_table = JobTable()
        self.names = Names()
        self.faults = Faults(context, self._others_place)
        self._is_other_log = False  # another pipeline places somewhere since the log began
        self.problems: dict[str, str] = {}
        self.passes = 0
        self.last_pass_s = 0.0
        self.queues: dict[str, QueueSpec] = {}
        self.policies: dict[str, str] = {}
        self.limits: dict[str, Limits] = {}
        self.classes: dict[str, tuple[QueueClass, ...]] = {}
        self._context = context
        self.settings = settings
        self._measured = ClassMetrics(self, context)
        self._nodes = nodes
        self.whose = nodes.mark_of
        self._foreign = Foreign(context, self.faults, wake=self.wake, state=lambda: self.state, relearned=self._relearned)
        self._passes = Passes(context, self.faults, forgives=self._foreign.is_forgiven, inline=inline)
        self.stops = Stops(context, self)
        self.promises = Promises(context, self.job_table, self.names, self.rebuild)
        self._orders = PlanExecution(context, self.job_table, self.names, nodes, self.stops, self.watch_head, self._broke, self.promises)
        self.user_requests = UserRequests(context, self, self._orders, nodes)
        self.backoffs = NodeBackoffs(context, self.nodes_changed)
        self.arrivals = Arrivals(context, self)
        self._record = Recording(context)
        self._rebuild_of: Rebuild | None = None
        self._every: tuple[Stage, ...] = ()
        self._stages: tuple[Stage, ...] = ()  # those that run in this process
        self._specs: dict[str, PipelineSpec] = {}
        self._half_life_us = 0
        self._pending: dict[str, WatchedCache[list[str]]] = {}
        self._running: dict[str, WatchedCache[list[str]]] = {}
        self.news: set[str] = set()  #: paths of lists that have changed
        self._marks: set[str] = set()  # of requests that name nodes
        self.records = SubmissionRecords(context, self.job_table, self.wake)
        self._nodes_changed = False
        self._causes: frozenset[Cause] = frozenset()
        self._now_us = context.wall_us()
        self._due = False
        self._timer: Timer | None = None
        self._retry_s = _RETRY_S / 2
        self._closed = False

    # -- life

    def start(self) -> None:
        """Begins to read."""
        self.settings_changed()

    def close(self) -> None:
        """The leadership is over."""
        self._closed = True
        self._measured.clear()
        self._passes.close()
        self._foreign.close()
        self._record.end(self._now_us)

    def resync(self) -> None:
        """Reads the lists again, watches or not; records of submissions that have left are forgotten."""
        if self._orders.busy_s > _STUCK_S:  # an answer was lost, or what was to be done with it failed: nothing would be placed any more
            self._context.depose("the plan of a pass is not carried out")
            return
        kept = {task_of(job)[0] for job in (*self.job_table.waiting, *self.job_table.placed)}
        if self.state is not None:
            self.job_table.submissions = {number: record for number, record in self.job_table.submissions.items() if number in kept}
        self._read_again([cache for cache in (*self._pending.values(), *self._running.values()) if cache.is_watched])
        self.stops.resync()
        self.user_requests.resync()

    def _read_again(self, lists: list[WatchedCache[list[str]]]) -> None:
        """Some of them at a time: the loop has other things to do."""
        for cache in lists[:_AT_ONCE]:
            cache.refresh()
        if len(lists) > _AT_ONCE:
            self._context.after(_APART_S, partial(self._read_again, lists[_AT_ONCE:]))

    def settings_changed(self) -> None:
        """Queues, partitions or pipelines are others."""
        settings = self.settings()
        placed = settings.placed()
        self.queues = {queue.name: queue for queues in placed.values() for queue in queues if queue.state != "stopped"}
        stages: list[Stage] = []
        foreign: dict[str, tuple[str, dict[str, Any]]] = {}
        self.policies, self.problems, self.limits, self.classes, self._half_life_us = {}, {}, {}, {}, 0
        for partition in placed:
            spec = pipeline_of(settings, partition)
            if self._specs.get(partition) != spec:
                self.faults.forgive(partition)
                self._specs[partition] = spec
            try:
                found = configuration(settings, partition)
            except ConfigError as error:
                self.problems[partition] = error.message
                self._context.log.error("pipeline_unusable", partition=partition, error=error.message)
                continue
            self.policies[partition] = ", ".join(found.policies)
            stages += [Stage(stage.policy, (partition,)) for stage in found.stages]
            if is_foreign(found):
                foreign[partition] = (self.policies[partition], document_of(spec))
            self.limits |= found.limits
            self.classes[partition] = classes_of(found)
            self._half_life_us = self._half_life_us or found.usage_half_life_us
        self._every = tuple(stages)
        self._stages = tuple(stage for stage in stages if stage.partitions[0] not in foreign)
        self._foreign.serve(foreign)
        self._half_life_us = self._half_life_us or self._foreign.half_life_us
        for name in self._pending.keys() - self.queues.keys():
            self._pending.pop(name).stop()
        for name in self.queues.keys() - self._pending.keys():
            self._pending[name] = self._waiting_in(name)
        self._look_at_nodes()
        self.rebuild("the settings have changed")

    def nodes_changed(self) -> None:
        """Nodes, their Starters or drains are others."""
        if not self._nodes_changed:
            self._nodes_changed = True
            self.wake()

    def wake(self) -> None:
        """Something may be to do; often called, once done."""
        if not self._due and not self._closed:
            self._due = True
            self._context.soon(self._turn)

    def view(self) -> PlacingView:
        """What is shown of it. In the loop."""
        return replace(view_of(self), classes=views_of(self))

    @property
    def is_passing(self) -> bool:
        """A pass is under way: the state is not to be touched."""
        return self._passes.is_running

    @property
    def pipeline(self) -> tuple[tuple[Stage, ...], int]:
        """What passes are made of, and the half-life of use (us)."""
        return self.faults.served(self._stages), self._half_life_us

    def runs_elsewhere(self, partition: str) -> bool:
        """The policies of that partition have a process of their own, and place just now."""
        return partition in self._foreign and partition not in self.faults.benched

    def stage_names(self, partition: str) -> list[str]:
        """Policies that place in this partition, in order."""
        return [stage.policy.name for stage in self._every if partition in stage.partitions]

    # -- one turn

    def _turn(self) -> None:
        self._due = False
        if self._closed or self._passes.is_running or self._orders.is_busy:
            return  # both end with a turn
        if not self.queues and not self.job_table.placed:
            return
        if self.state is None:
            self._try_build()
            if self.state is None:
                return
        if self._is_other_log:
            self._begin_log(self.state)
        self._reconcile(self.state)
        if self.state is not None:
            self.promises.tidy(self.state)
        if self.state is None or self.user_requests.turn(self.state, self.now_us(), self._carried_out):
            return
        if (self._causes or self._foreign.has_work) and any(map(_has_work, self.state.partitions.values())):
            self._pass(self.state)
        self._context.metrics.waiting_jobs.set(len(self.job_table.waiting))
        self._measured.soon()

    def _pass(self, state: ClusterState) -> None:
        causes, self._causes = self._causes, frozenset()
        now_us, has_plan = self.now_us(), self._foreign.has_plan
        self._foreign.ask(state, causes, now_us)
        if causes or has_plan:
            then = partial(self._planned, state, causes, now_us)
            stages = (*self._stages, *self._foreign.stages(now_us))
            self._passes.run(state, causes, stages, now_us=now_us, then=then, lost=self._carried_out)

    def _relearned(self) -> None:
        """A policy in a process of its own looks at use."""
        if not self._half_life_us:
            self.settings_changed()

    def now_us(self) -> int:
        """The scheduler's clock: the wall's, never going back."""
        self._now_us = max(self._now_us, self._context.wall_us())
        return self._now_us

    def _planned(self, state: ClusterState, causes: frozenset[Cause], now_us: int, plan: Plan, took_s: float) -> None:
        """A pass has ended. All that follows from it has its time, as in the simulator: a log of it can be run again."""
        if state is not self.state or self._closed:
            self.wake()  # it is not believed any more
            return
        self.plan = plan
        self._foreign.passed(plan.faults)
        self.passes += 1
        self.last_pass_s = took_s
        self._context.metrics.placing_seconds.observe(took_s)
        wakes = [decision.at_us for decision in plan.decisions if type(decision) is WakeAt]
        if self._timer is not None:
            self._timer.cancel()
        on_time = partial(self._look_again, Cause.TIMER)
        self._timer = self._context.after(max(0.0, (min(wakes) - self.now_us()) / 1e6), on_time) if wakes else None
        self._record.passed(now_us, causes, plan)
        self._orders.carry_out(state, plan, now_us=now_us, done=self._carried_out)

    def _broke(self, partition: str, error: str) -> None:
        """What was decided there cannot be carried out."""
        bench = self.faults.benched.get(partition)
        names = self.stage_names(partition) if bench is None else [INSTEAD]
        self.faults.add(partition, ", ".join(names), error)

    def _carried_out(self, problem: str) -> None:
        if problem:
            self._retry_s = min(_LONGEST_RETRY_S, self._retry_s * 2)
            self.rebuild(problem, pause_s=self._retry_s)  # a gate that was just shut: its block is swept aside in a moment
        else:
            self._retry_s = _RETRY_S / 2
            self.wake()

    def tell(self, state: ClusterState, fact: str, *arguments: object, **named: object) -> None:
        """One fact: into the state, and into the log."""
        getattr(state, fact)(*arguments, **named)
        self._record.told(self._now_us, fact, *arguments, **named)

    def because(self, cause: Cause) -> None:
        """Something has happened that the next pass must look at."""
        self._causes |= {cause}

    def may_move(self, job: int) -> bool:
        """Its user lets it go back to its queue."""
        submission = self.job_table.submissions.get(task_of(job)[0])
        return submission is None or submission.resubmit

    def _begin_log(self, state: ClusterState) -> None:
        self._is_other_log = False
        placed = {partition for stage in self._every for partition in stage.partitions}
        self._record.begin(state, self.settings(), placed, half_life_us=self._half_life_us, instead=self.faults.instead)

    def _others_place(self) -> None:
        self._is_other_log = True
        self._look_again(Cause.TAKE_OVER)

    def _look_again(self, cause: Cause) -> None:
        self._causes |= {cause}
        self.wake()

    # -- facts

    def _waiting_in(self, queue: str) -> WatchedCache[list[str]]:
        path = paths.pending(queue)
        cache = LongList(self._context, path, lambda: self._listed(path, cache), lambda: self.job_table.took[queue])
        cache.is_chatty, cache.pace_s = True, PACE_S
        cache.refresh()
        return cache

    def _list(self, path: str, *, watched: bool = True) -> WatchedCache[list[str]]:
        cache = names_below(self._context, path, lambda: self._listed(path, cache))
        cache.is_chatty, cache.is_watched = True, watched
        cache.pace_s = PACE_S
        cache.refresh()
        return cache

    def watch_head(self, node: str) -> None:
        """A job runs there, or the last one has gone."""
        cache = self._running.get(node)
        if cache is None:
            cache = self._running[node] = self._list(paths.running_node(node))
        wanted = self.job_table.has_jobs(node)
        if wanted and not cache.is_watched:
            cache.is_watched = True
            cache.refresh()
        cache.is_watched = wanted

    def pending(self, queue: str) -> WatchedCache[list[str]] | None:
        """The names that wait there."""
        return self._pending.get(queue)

    def look_at(self, path: str) -> None:
        """A list is to be compared again, as it is now."""
        self.news.add(path)
        for cache in (*self._pending.values(), *self._running.values()):
            if cache.path == path:
                cache.refresh()
        self.wake()

    def _listed(self, path: str, cache: WatchedCache[list[str]]) -> None:
        cache.pace_s = PACE_S + PACE_A_NAME_S * len(cache.value or ())
        self.news.add(path)
        self.wake()

    def _look_at_nodes(self) -> None:
        """Lists of the nodes in partitions with place queues; where they are held for others is made ready."""
        partitions = {queue.partition for queue in self.queues.values()}
        wanted = {name for name, record in self._nodes.records.items() if record.attributes.partition in partitions}
        self.names.learn(wanted)
        fresh = wanted - self._running.keys()
        for name in fresh:
            # Pulled blocks come and go there all the time: it is watched while jobs run on the node, and read once to find them.
            self._running[name] = self._list(paths.running_node(name), watched=False)
        if fresh:
            self._orders.prepare(sorted(fresh))

    def _node(self, name: str) -> Node:
        record, nodes = self._nodes.records[name], self._nodes
        marks = (mark for mark in self._marks if allows(mark, name, nodes.refuses(name)))
        return node_of(record, self.names.id(name), closed=not nodes.takes_work(name) or self.backoffs.is_left_alone(name), marks=marks)

    def machine(self) -> list[Node]:
        """Every node of a partition that is placed."""
        return [self._node(name) for name in sorted(self._running, key=self.names.id) if name in self._nodes.records]

    def _reconcile(self, state: ClusterState) -> None:
        """What the lists say now, told to the state: ends first, then nodes, then arrivals."""
        news, self.news = self.news, set()
        now_us = self.now_us()
        try:
            for node in sorted(paths.running_of(path) for path in news):
                if node in self._running:
                    for job in self.job_table.ended(node, self._running[node]):
                        self._ended(state, job, now_us)
            self.stops.settle(state, now_us)
            if self._nodes_changed:
                self._nodes_changed = False
                self._look_at_nodes()
                self.tell_nodes(state)
                self.user_requests.look_at_marks(state)
                self._orders.look_for_losses()
            for queue, cache in self._pending.items():
                if cache.path in news and cache.is_known:
                    self.arrivals.look(state, queue, cache, now_us)
        except StateConflict as error:
            self.rebuild(error.message)

    def _ended(self, state: ClusterState, job: int, now_us: int) -> None:
        placed = self.job_table.leave(job)
        if job not in self.stops.by_job:  # else it was asked to
            self.backoffs.left(job, placed)
        self.watch_head(placed.node)
        self._orders.release(job, placed)
        if self.stops.vacated(job, placed):
            return
        self.tell(state, "job_ended", job, placed.partition, now=now_us)
        self._causes |= {Cause.JOB_ENDED}

    def tell_nodes(self, state: ClusterState) -> None:
        """What is different about the machine."""
        for node in self.machine():
            part = state.partitions.get(node.partition)
            if part is None or part.nodes.get(node.id) != node:
                self.tell(state, "node_changed", node)
                self._causes |= {Cause.NODES_CHANGED}

    def mark(self, mark: str) -> bool:
        """A request names nodes: those that it allows have a feature of their own. True: it is new."""
        if not mark or mark in self._marks:
            return False
        self._marks.add(mark)
        return True

    def submission(self, number: int) -> Submission | None:
        """Its record; None while it is being read, or when it is gone."""
        return self.records.get(number)

    # -- everything again

    def rebuild(self, why: str, *, pause_s: float = 0.0) -> None:
        """The state is not believed any more: it is made from the znodes again (in a while, where it would only go wrong again)."""
        if self.state is not None:
            self._context.log.warning("placing_rebuilt", why=why)
        self.state = None
        self._record.end(self._now_us)
        self._rebuild_of = None
        if pause_s:
            self._context.after(pause_s, self.wake)
        else:
            self.wake()

    def _try_build(self) -> None:
        """One step of it; what comes wakes us."""
        if self._rebuild_of is None:
            self.job_table.forget_jobs()
            self.stops.forget()
            self._look_at_nodes()
            self._rebuild_of = Rebuild(
                self._context, self, self._pending, self._running, {queue.partition for queue in self.queues.values()}
            )
        if not self._nodes.hurry():
            self._context.after(0.01, self.wake)
            return
        self._look_at_nodes()
        built = self._rebuild_of.step(self._half_life_us)
        if built is None:
            return
        records = self._rebuild_of.records
        self.promises.adopt(self._rebuild_of.promised)
        self.state, self._rebuild_of = built, None
        self._begin_log(built)
        self._orders.adopt(records)
        self.user_requests.rebuilt()
        for node in {placed.node for placed in self.job_table.placed.values()}:
            self.watch_head(node)
        self._orders.look_for_holds(sorted(self._running))
        self.news = {cache.path for cache in (*self._pending.values(), *self._running.values())}
        self._nodes_changed = True
        # Whatever had happened before, and was decided by a pass whose commit was never made, is decided now.
        self._causes = frozenset({Cause.TAKE_OVER, Cause.JOB_ENDED, Cause.JOB_SUBMITTED})


def _has_work(part: Partition) -> bool:
    return bool(part.jobs or part.notes or part.suspended or part.gangs.by_name)
