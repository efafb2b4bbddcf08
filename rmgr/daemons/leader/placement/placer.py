"""The scheduler's driver in the leader: facts from ZooKeeper, one pass, one fenced commit of its decisions, and again.

Znodes are the facts: names under the `pending` of place queues are waiting jobs, names under `/running/<node>` are running jobs, records
of nodes are the machine. They are compared with the scheduler's state before each pass (`turn`), so that no event is lost by being
handled at the wrong moment. After a refused commit, or one with an unknown outcome, everything is read again (`rebuild`), as after a
take-over: the state is made anew from the records, and the next pass decides what the lost one would have decided.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from rmgr.coord.protocol import paths
from rmgr.daemons.leader.facts import Names
from rmgr.daemons.leader.nodes import NodeKeeper
from rmgr.daemons.leader.placement.arrivals import Arrivals, JobLists, Rebuild, SubmissionRecords
from rmgr.daemons.leader.placement.event_log import StateUpdates
from rmgr.daemons.leader.placement.gangs import GangKeeper, OpenClock
from rmgr.daemons.leader.placement.job_table import JobTable
from rmgr.daemons.leader.placement.orders import PlacedHolds, PlanExecution, Promises
from rmgr.daemons.leader.placement.passes import INSTEAD, Faults, Foreign, Passes, PassLost
from rmgr.daemons.leader.placement.pipeline import ServedPartitions
from rmgr.daemons.leader.placement.requests import NextStarts, NodeBackoffs, ScheduledNodes, UserRequests
from rmgr.daemons.leader.placement.stops import Stops
from rmgr.daemons.leader.placement.view import ClassMetrics, placing_view
from rmgr.daemons.leader.term import Term
from rmgr.errors import StateConflict
from rmgr.model.block import task_of
from rmgr.model.views import PlacingView
from rmgr.runtime.mailbox import Timer
from rmgr.runtime.story import Bell, Story
from rmgr.sched.plan import Plan, WakeAt
from rmgr.sched.policy import Cause, Stage
from rmgr.sched.state.cluster import ClusterState
from rmgr.sched.state.partition import Partition

_RETRY_S, _LONGEST_RETRY_S = 0.1, 5.0
#: Pause in which changed terms are collected.
_AMENDED_S = 0.3
#: Time after which a plan counts as stuck: its reads and commits have much shorter deadlines of their own.
_STUCK_S = 120.0
_STATE = "the state of the scheduler"


class Placer:
    """Places the jobs of all place queues; lives in the leader's loop, and owns the parts that do the work.

    Attributes: state: the scheduler's, None while everything is read. plan: of the last pass. known_nodes: all of the cluster. nodes: as
    the scheduler sees them; names: their numbers.
    """

    def __init__(self, term: Term, nodes: NodeKeeper, *, open_clock: OpenClock, inline: bool = False) -> None:
        self.state: ClusterState | None = None
        self.plan = Plan()
        self.passes, self.last_pass_s = 0, 0.0
        self.term = term
        self.known_nodes = nodes
        self.names = Names()
        self._is_other_log = False  # another pipeline places somewhere since the log began
        self._nodes_changed = False
        self._has_amended = False
        self.is_due = False
        self._timer: Timer | None = None
        self._retry_s = _RETRY_S / 2
        self._closed = False
        self._news = Bell(self.term)  # wakes the story that builds the state

        self.faults = Faults(term, self._on_benches_changed)
        self.served = ServedPartitions(term, self.faults.forgive)
        self.updates = StateUpdates(term, self.wake)
        self.now_us = self.updates.now_us
        self.job_table = JobTable()
        # Each part takes from here what it needs of the parts that were made before it.
        self.records = SubmissionRecords(self)
        self.lists = JobLists(self)
        self.backoffs = NodeBackoffs(self)
        self.nodes = ScheduledNodes(self)
        self.gangs = GangKeeper(self, open_clock)
        self.next_starts = NextStarts(self)
        self.stops = Stops(self)
        self.arrivals = Arrivals(self)
        self.promises = Promises(self)
        self.holds = PlacedHolds(self)
        self._orders = PlanExecution(self)
        self._requests = UserRequests(self)
        self._foreign = Foreign(self)
        self._passes = Passes(term, self.faults, forgives=self._foreign.is_forgiven, inline=inline)
        self._measured = ClassMetrics(self)

    # -- life cycle

    def start(self) -> None:
        """Starts reading."""
        self.settings_changed()
        self._requests.start()

    def close(self) -> None:
        """Stops placing: the leadership is over."""
        self._closed = True
        self._measured.clear()
        self._passes.close()
        self._foreign.close()
        self.gangs.close()
        self.updates.end_log()

    def resync(self) -> None:
        """Reads the lists again, watched or not; forgets records of submissions that have left."""
        if self._orders.busy_s > _STUCK_S:  # an answer or its handling was lost: without a new leader nothing would be placed
            self.term.depose("the plan of a pass is not carried out")
            return
        kept = {task_of(job)[0] for job in (*self.job_table.waiting, *self.job_table.placed)}
        if self.state is not None:
            self.job_table.submissions = {number: record for number, record in self.job_table.submissions.items() if number in kept}
        self.lists.resync()

    def settings_changed(self) -> None:
        """Takes in changed queues, partitions or pipelines."""
        self.served.read()
        self._foreign.serve(self.served.foreign)
        self.served.half_life_us = self.served.half_life_us or self._foreign.half_life_us
        self.lists.serve(self.served.queues.keys())
        self._look_at_nodes()
        self.rebuild("the settings have changed")

    def amended(self, number: int, changes: int) -> None:
        """Takes in that a submission's terms have changed `changes` times in all. (PLACE starts no job by the old terms.)

        Waits a moment to collect changes: many cost little more than one.
        """
        known = self.job_table.submissions.get(number)
        if known is not None and len(known.changes) < changes:
            del self.job_table.submissions[number]
            if not self._has_amended:
                self._has_amended = True
                self.term.after(_AMENDED_S, self._take_amended)

    def _take_amended(self) -> None:
        self._has_amended = False
        if not self._closed:
            self.rebuild("terms of submissions were changed")

    def nodes_changed(self) -> None:
        """Looks at nodes, their Starters and drains again in the next turn."""
        if not self._nodes_changed:
            self._nodes_changed = True
            self.wake()

    def wake(self) -> None:
        """Asks for a turn; repeated calls cause one turn."""
        if not self.is_due and not self._closed:
            self.is_due = True
            self.term.soon(self.turn)

    # -- what is known, in the loop

    def view(self) -> PlacingView:
        """Returns the placer's state as users see it. Cost: O(jobs)."""
        return placing_view(self)

    @property
    def partitions(self) -> Mapping[str, Partition]:
        """The scheduler's partitions, none while everything is read."""
        return self.state.partitions if self.state is not None else {}

    @property
    def is_passing(self) -> bool:
        """Whether a pass is running: then the state must not be touched."""
        return self._passes.is_running

    @property
    def pipeline(self) -> tuple[tuple[Stage, ...], int]:
        """The stages of a pass, and the half-life of use (us)."""
        return self.faults.served(self.served.stages), self.served.half_life_us

    def runs_elsewhere(self, partition: str) -> bool:
        """Whether the partition's policies have a process of their own, and place just now."""
        return partition in self._foreign and partition not in self.faults.benched

    # -- one turn

    def turn(self) -> None:
        """Takes in all facts, then lets the policies plan. A step that has sent orders ends the turn: their commit comes before a plan."""
        self.is_due = False
        if self._closed or self._passes.is_running or self._orders.is_busy:
            return  # the end of either begins a turn
        if not self.served.queues and not self.job_table.placed:
            return
        state = self.state
        if state is None:
            self._news.ring()
            self.term.tell(self._build(), _STATE)
            return
        news, now_us = self.lists.take_news(), self.now_us()
        if self._is_other_log:  # before a fact is written into it
            self._begin_log(state)
        try:
            self._tell_facts(state, news, now_us)
        except StateConflict as error:
            self.rebuild(error.message)
            return
        self.promises.tidy(state)  # the state now matches the lists
        asked = self._requests.turn(state, self.now_us())
        if asked is not None:
            self._carry_out(self._orders.ask(state, asked))
            return
        self.gangs.tell(state)
        due = self.gangs.due(state)
        if due:  # another node has the clock of these gangs now
            self._carry_out(self._orders.renew(state, due))
            return
        self._pass(state)
        metrics, gangs = self.term.metrics, self.gangs.summary().values()
        metrics.waiting_jobs.set(len(self.job_table.waiting))
        metrics.gang_jobs.set(sum(gang.jobs for gang in gangs))
        metrics.gang_max_tqlb.set(max((gang.max_tqlb for gang in gangs), default=0))
        self._measured.soon()

    def _tell_facts(self, state: ClusterState, news: Collection[str], now_us: int) -> None:
        """Tells the state what has happened. news: paths of lists to compare. Raises: StateConflict if the state is no longer valid."""
        # Jobs that have left their nodes come first, so that later facts see the freed cores.
        running = self.lists.running
        for node in sorted(paths.running_of(path) for path in news):
            if node in running:
                for job in self.job_table.ended(node, running[node]):
                    self._end_job(state, job, now_us)
        # Jobs that were asked to leave: they ended, or go on.
        self.stops.settle(state, now_us)
        # Nodes that came, went, or are drained. Before arrivals, which may ask for nodes by name.
        if self._nodes_changed:
            self._nodes_changed = False
            self._look_at_nodes()
            self.nodes.tell(state)
            self.next_starts.look_again(state)
        # Jobs that came to wait, or went. A job that was stopped comes back here.
        for queue, cache in self.lists.pending.items():
            if cache.path in news and cache.is_known:
                self.arrivals.look(state, queue, cache, now_us)

    def _end_job(self, state: ClusterState, job: int, now_us: int) -> None:
        placed = self.job_table.leave(job)
        if job not in self.stops.by_job:  # otherwise it was asked to leave
            self.backoffs.left(job, placed)
        self.lists.watch_head(placed.node)
        self.holds.release(job, placed)
        if self.stops.vacated(job, placed):
            return
        self.updates.tell(state, "job_ended", job, placed.partition, now=now_us)
        self.updates.because(Cause.JOB_ENDED)

    def is_shut(self, node: str) -> bool:
        """Whether nothing may be placed on the node now."""
        return self.backoffs.is_left_alone(node) or self.gangs.is_unfit(node)

    def _pass(self, state: ClusterState) -> None:
        """Lets the policies plan if there is a reason; last, so that they know all facts."""
        if not (self.updates.causes or self._foreign.has_work) or not any(map(_has_work, state.partitions.values())):
            return
        causes = self.updates.take_causes()
        self.gangs.tell(state)
        now_us, has_plan = self.now_us(), self._foreign.has_plan
        self._foreign.ask(state, causes, now_us)
        if causes or has_plan:
            stages = (*self.served.stages, *self._foreign.stages(now_us))
            self.term.tell(self._plan(state, causes, stages, now_us), "a pass", key=object())

    # -- a pass, and its consequences

    def _plan(self, state: ClusterState, causes: frozenset[Cause], stages: tuple[Stage, ...], now_us: int) -> Story[None]:
        """Runs a pass and carries out its plan. All consequences have the pass's time, as in the simulator: its log can be replayed."""
        try:
            plan, took_s = yield from self._passes.run(state, causes, stages, now_us=now_us)
        except PassLost as lost:
            self._on_orders_done(str(lost))
            return
        if state is not self.state or self._closed:
            self.wake()  # the state was dropped meanwhile
            return
        self.plan = plan
        self._foreign.passed(plan.faults)
        self.passes += 1
        self.last_pass_s = took_s
        self.term.metrics.placing_seconds.observe(took_s)
        wakes = [decision.at_us for decision in plan.decisions if type(decision) is WakeAt]
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if wakes:
            self._timer = self.term.after(max(0.0, (min(wakes) - self.now_us()) / 1e6), lambda: self.look_again(Cause.TIMER))
        self.updates.passed(now_us, causes, plan)
        self._on_orders_done((yield from self._orders.carry_out(state, plan, now_us=now_us)))

    def _carry_out(self, orders: Story[str]) -> None:
        self.term.tell(self._run_orders(orders), "orders to jobs", key=object())

    def _run_orders(self, orders: Story[str]) -> Story[None]:
        self._on_orders_done((yield from orders))

    def broke(self, partition: str, error: str) -> None:
        """Records that a decision for the partition cannot be carried out."""
        bench = self.faults.benched.get(partition)
        names = self.served.stage_names(partition) if bench is None else [INSTEAD]
        self.faults.add(partition, ", ".join(names), error)

    def _on_orders_done(self, problem: str) -> None:
        if problem:
            self._retry_s = min(_LONGEST_RETRY_S, self._retry_s * 2)
            self.rebuild(problem, pause_s=self._retry_s)  # perhaps a gate was just shut: its block is swept aside in a moment
        else:
            self._retry_s = _RETRY_S / 2
            self.wake()

    def _begin_log(self, state: ClusterState) -> None:
        self._is_other_log = False
        served = self.served
        placed = {partition for stage in served.every for partition in stage.partitions}
        self.updates.begin_log(state, self.term.settings, placed, half_life_us=served.half_life_us, instead=self.faults.instead)

    def _on_benches_changed(self) -> None:
        self._is_other_log = True
        self.look_again(Cause.TAKE_OVER)

    def relearned(self) -> None:
        """Reads the settings again if a foreign policy turns out to consider use."""
        if not self.served.half_life_us:
            self.settings_changed()

    def look_again(self, cause: Cause) -> None:
        """Asks for a turn with this cause for the next pass."""
        self.updates.because(cause)
        self.wake()

    def _look_at_nodes(self) -> None:
        """Follows the lists of new nodes in partitions with place queues, and prepares their directories of holds."""
        if fresh := self.lists.look_on(self.nodes.learn(self.served.partitions)):
            self.holds.prepare(fresh)

    # -- rebuild

    def rebuild(self, why: str, *, pause_s: float = 0.0) -> None:
        """Drops the state and makes it again from the znodes, after `pause_s` if it would fail again at once."""
        if self.state is not None:
            self.term.log.warning("placing_rebuilt", why=why)
        self.state = None
        self.updates.end_log()
        self.term.stories.end(_STATE)
        if pause_s:
            self.term.after(pause_s, self.wake)
        else:
            self.wake()

    def _build(self) -> Story[None]:
        self.job_table.forget_jobs()
        self.stops.forget()
        self._look_at_nodes()
        rebuild = Rebuild(self, self._news)
        self.state = built = yield from rebuild.build()
        self.promises.adopt(rebuild.promised)
        self.gangs.look_over(built)
        self._begin_log(built)
        self._orders.adopt(rebuild.records)
        self._requests.rebuilt()
        for node in {placed.node for placed in self.job_table.placed.values()}:
            self.lists.watch_head(node)
        self.holds.look_for_holds(sorted(self.lists.running))
        self.lists.all_are_news()
        self._nodes_changed = True
        # Decides again what a pass may have decided without its commit being made.
        self.updates.causes = frozenset({Cause.TAKE_OVER, Cause.JOB_ENDED, Cause.JOB_SUBMITTED})
        self.wake()

    def knows_nodes(self) -> bool:
        """Whether the known nodes are up to date, and their lists are requested."""
        is_known = self.known_nodes.hurry()
        if is_known:
            self._look_at_nodes()
        return is_known


def _has_work(part: Partition) -> bool:
    return bool(part.jobs or part.notes or part.suspended or part.gangs.by_name)
