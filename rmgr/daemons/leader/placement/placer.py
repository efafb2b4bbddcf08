"""The scheduler's driver in the leader: facts from ZooKeeper, one pass, one fenced commit of what it decided, and again.

Facts are what the znodes say: names under the `pending` of place queues are jobs that wait, names under `/running/<node>` are jobs that
run, records of nodes are the machine. They are compared with the scheduler's state before each pass (`turn.py` has the order), so that no
event can be lost by being handled at the wrong moment. A commit that is refused, or whose fate is unknown, makes everything be read again
(`rebuild`), as after a take-over: the state is made anew from the records, and the next pass decides what the lost one would have.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from rmgr.coord.protocol import paths
from rmgr.daemons.leader.core.calls import WaitingCalls
from rmgr.daemons.leader.core.term import Term
from rmgr.daemons.leader.core.tree import LeaderTree
from rmgr.daemons.leader.nodes.nodes import NodeKeeper
from rmgr.daemons.leader.nodes.scheduled import ScheduledNodes
from rmgr.daemons.leader.placement.arrivals import Arrivals
from rmgr.daemons.leader.placement.building import StateBuilding
from rmgr.daemons.leader.placement.classes import ClassMetrics, views_of
from rmgr.daemons.leader.placement.faults import INSTEAD, Faults
from rmgr.daemons.leader.placement.foreign import Foreign
from rmgr.daemons.leader.placement.gangs import GangKeeper, OpenClock
from rmgr.daemons.leader.placement.holds import PlacedHolds
from rmgr.daemons.leader.placement.job_lists import JobLists
from rmgr.daemons.leader.placement.next_starts import NextStarts
from rmgr.daemons.leader.placement.node_backoffs import NodeBackoffs
from rmgr.daemons.leader.placement.orders import PlanExecution
from rmgr.daemons.leader.placement.passes import Passes
from rmgr.daemons.leader.placement.rebuild import Rebuild
from rmgr.daemons.leader.placement.stops import Stops
from rmgr.daemons.leader.placement.submissions import SubmissionRecords
from rmgr.daemons.leader.placement.turn import Turn, TurnStep, in_order, run_turn
from rmgr.daemons.leader.placement.user_requests import UserRequests
from rmgr.daemons.leader.records.job_table import JobTable
from rmgr.daemons.leader.records.record import Recording
from rmgr.daemons.leader.records.reserved import Promises
from rmgr.daemons.leader.records.served import ServedPartitions
from rmgr.daemons.leader.records.updates import StateUpdates
from rmgr.daemons.leader.records.view import jobs_view, ledger_view, partitions_view, promised_starts, shares_view
from rmgr.model.cluster.queue import ClusterSettings
from rmgr.model.tasks.placing import task_of
from rmgr.model.views import PlacingView, QueueView
from rmgr.runtime.mailbox import Timer
from rmgr.sched.plan import Plan, WakeAt
from rmgr.sched.policy import Cause, Stage
from rmgr.sched.state.cluster import ClusterState
from rmgr.sched.state.partition import Partition

_RETRY_S, _LONGEST_RETRY_S = 0.1, 5.0
#: Changed terms are taken in together, so often at most.
_AMENDED_S = 0.3
#: A plan that takes longer is stuck: each of its reads and commits has a deadline of its own, far below.
_STUCK_S = 120.0


class Placer:
    """Places the jobs of all place queues; lives in the leader's loop. It owns the parts that do it, none of which knows it.

    Attributes: state: the scheduler's, None while everything is read. plan: of the last pass.
    """

    def __init__(
        self,
        tree: LeaderTree,
        term: Term,
        calls: WaitingCalls,
        settings: Callable[[], ClusterSettings],
        nodes: NodeKeeper,
        *,
        open_clock: OpenClock,
        inline: bool = False,
    ) -> None:
        self.state: ClusterState | None = None
        self.plan = Plan()
        self.passes, self.last_pass_s = 0, 0.0
        self._tree = tree
        self._term = term
        self._known_nodes = nodes
        self._is_other_log = False  # another pipeline places somewhere since the log began
        self._nodes_changed = False
        self._has_amended = False
        self._due = False
        self._timer: Timer | None = None
        self._retry_s = _RETRY_S / 2
        self._closed = False
        self._rebuild_of: Rebuild | None = None

        self.faults = Faults(tree, term, self._others_place)
        self.served = ServedPartitions(settings, self.faults.forgive, term.log)
        self._updates = updates = StateUpdates(Recording(tree, term, calls), term.wall_us, self.wake)
        self.now_us = updates.now_us
        self.job_table = table = JobTable()
        self._records = SubmissionRecords(tree, term, table, self.wake)
        self._lists = JobLists(tree, table, self.wake)
        self._backoffs = NodeBackoffs(tree, term.log, self.nodes_changed)
        self._nodes = ScheduledNodes(nodes, self._lists.running, self._is_shut, updates)
        self.names = names = self._nodes.names
        self.gangs = GangKeeper(
            names, self.served, lambda: nodes.records,
            open_clock=open_clock, again=partial(self._look_again, Cause.NODES_CHANGED), post=tree.soon, log=term.log,
        )  # fmt: skip
        self._next_starts = NextStarts(table, self._nodes, nodes.records, updates)
        self._stops = Stops(tree, term, table, self._lists, updates)
        self._arrivals = Arrivals(
            term, table, self.served, self._records, self._nodes, self._stops, updates,
            mark_of=self._next_starts.mark_of, came_back=self._backoffs.came, again=self._lists.again,
        )  # fmt: skip
        self._building = StateBuilding(
            table, self.served, self._nodes, self._stops,
            submission=self._records.get, mark_of=self._next_starts.mark_of, refuse=self._arrivals.refuse,
        )  # fmt: skip
        self._promises = Promises(tree, table, names, self.rebuild)
        self._holds = PlacedHolds(tree, calls, table, self._promises, nodes.records)
        self._orders = PlanExecution(
            tree, term, table, names, nodes, self._stops, self._lists.watch_head, self._broke, self._promises, self.gangs
        )
        self.user_requests = UserRequests(
            tree, term, calls, table, self._stops, self._next_starts, self._orders, nodes.drains,
            is_placing=lambda: bool(self.served.queues), wake=self.wake,
        )  # fmt: skip
        self._foreign = Foreign(tree, self.faults, wake=self.wake, state=lambda: self.state, relearned=self._relearned)
        self._passes = Passes(tree, term, self.faults, forgives=self._foreign.is_forgiven, inline=inline)
        self._measured = ClassMetrics(self.served, self._class_views, tree, term.metrics)
        self._steps = in_order(
            {
                TurnStep.OPEN_LOG: self._open_log,
                TurnStep.TELL_ENDS: self._tell_ends,
                TurnStep.TELL_STOPS: self._tell_stops,
                TurnStep.TELL_NODES: self._tell_nodes,
                TurnStep.TELL_ARRIVALS: self._tell_arrivals,
                TurnStep.KEEP_PROMISES: self._keep_promises,
                TurnStep.ASK_JOBS: self._ask_jobs,
                TurnStep.SET_CLOCKS: self._set_clocks,
                TurnStep.PASS: self._pass,
                TurnStep.MEASURE: self._measure,
            }
        )

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
        self.gangs.close()
        self._updates.end_log()

    def resync(self) -> None:
        """Reads the lists again, watches or not; records of submissions that have left are forgotten."""
        if self._orders.busy_s > _STUCK_S:  # an answer was lost, or what was to be done with it failed: nothing would be placed any more
            self._tree.depose("the plan of a pass is not carried out")
            return
        kept = {task_of(job)[0] for job in (*self.job_table.waiting, *self.job_table.placed)}
        if self.state is not None:
            self.job_table.submissions = {number: record for number, record in self.job_table.submissions.items() if number in kept}
        self._lists.resync()
        self._stops.resync()
        self.user_requests.resync()

    def settings_changed(self) -> None:
        """Queues, partitions or pipelines are others."""
        self.served.read()
        self._foreign.serve(self.served.foreign)
        self.served.half_life_us = self.served.half_life_us or self._foreign.half_life_us
        self._lists.serve(self.served.queues.keys())
        self._look_at_nodes()
        self.rebuild("the settings have changed")

    def amended(self, number: int, changes: int) -> None:
        """The terms of a submission were changed, so many times in all: its jobs are others now. (PLACE starts none by the old ones.)

        What changes together is read together: many changes cost little more than one.
        """
        known = self.job_table.submissions.get(number)
        if known is not None and len(known.changes) < changes:
            del self.job_table.submissions[number]
            if not self._has_amended:
                self._has_amended = True
                self._tree.after(_AMENDED_S, self._take_amended)

    def _take_amended(self) -> None:
        self._has_amended = False
        if not self._closed:
            self.rebuild("terms of submissions were changed")

    def nodes_changed(self) -> None:
        """Nodes, their Starters or drains are others."""
        if not self._nodes_changed:
            self._nodes_changed = True
            self.wake()

    def wake(self) -> None:
        """Something may be to do; often called, once done."""
        if not self._due and not self._closed:
            self._due = True
            self._tree.soon(self._turn)

    # -- what is shown of it, in the loop

    def view(self) -> PlacingView:
        """What is shown of it. Cost: O(jobs)."""
        state, stages = self.state, self.pipeline[0]
        promised = promised_starts(state, self.plan)
        left_alone = self._backoffs.under_way()
        return PlacingView(
            partitions=partitions_view(
                state, self.served, self.faults, self.names, left_alone, (self.passes, self.last_pass_s), self.gangs.summary(state)
            ),
            jobs=jobs_view(
                state, self.plan, promised, self.job_table, self._stops.by_job, self.served.problems, stages, self.gangs.turns(state)
            ),
            ledger=ledger_view(state, promised, self.job_table, self.names),
            shares=shares_view(state, stages, self.now_us()),
            classes=views_of(state, promised, self.served, self.job_table, stages),
        )

    def _class_views(self) -> tuple[QueueView, ...]:
        promised = promised_starts(self.state, self.plan)
        return views_of(self.state, promised, self.served, self.job_table, self.pipeline[0])

    @property
    def is_passing(self) -> bool:
        """A pass is under way: the state is not to be touched."""
        return self._passes.is_running

    @property
    def pipeline(self) -> tuple[tuple[Stage, ...], int]:
        """What passes are made of, and the half-life of use (us)."""
        return self.faults.served(self.served.stages), self.served.half_life_us

    def runs_elsewhere(self, partition: str) -> bool:
        """The policies of that partition have a process of their own, and place just now."""
        return partition in self._foreign and partition not in self.faults.benched

    # -- one turn

    def _turn(self) -> None:
        self._due = False
        if self._closed or self._passes.is_running or self._orders.is_busy:
            return  # both end with a turn
        if not self.served.queues and not self.job_table.placed:
            return
        if self.state is None:
            self._try_build()
        if self.state is not None:
            run_turn(Turn(self.state, self._lists.take_news(), self.now_us()), self._steps, self.rebuild)

    def _open_log(self, turn: Turn) -> bool:
        if self._is_other_log:
            self._begin_log(turn.state)
        return True

    def _tell_ends(self, turn: Turn) -> bool:
        running = self._lists.running
        for node in sorted(paths.running_of(path) for path in turn.news):
            if node in running:
                for job in self.job_table.ended(node, running[node]):
                    self._ended(turn.state, job, turn.now_us)
        return True

    def _ended(self, state: ClusterState, job: int, now_us: int) -> None:
        placed = self.job_table.leave(job)
        if job not in self._stops.by_job:  # else it was asked to
            self._backoffs.left(job, placed)
        self._lists.watch_head(placed.node)
        self._holds.release(job, placed)
        if self._stops.vacated(job, placed):
            return
        self._updates.tell(state, "job_ended", job, placed.partition, now=now_us)
        self._updates.because(Cause.JOB_ENDED)

    def _tell_stops(self, turn: Turn) -> bool:
        self._stops.settle(turn.state, turn.now_us)
        return True

    def _tell_nodes(self, turn: Turn) -> bool:
        if self._nodes_changed:
            self._nodes_changed = False
            self._look_at_nodes()
            self._nodes.tell(turn.state)
            self._next_starts.look_again(turn.state)
            self._holds.look_for_losses()
        return True

    def _tell_arrivals(self, turn: Turn) -> bool:
        for queue, cache in self._lists.pending.items():
            if cache.path in turn.news and cache.is_known:
                self._arrivals.look(turn.state, queue, cache, turn.now_us)
        return True

    def _keep_promises(self, turn: Turn) -> bool:
        self._promises.tidy(turn.state)
        return True

    def _ask_jobs(self, turn: Turn) -> bool:
        return not self.user_requests.turn(turn.state, self.now_us(), self._carried_out)

    def _is_shut(self, node: str) -> bool:
        return self._backoffs.is_left_alone(node) or self.gangs.is_unfit(node)

    def _set_clocks(self, turn: Turn) -> bool:
        self.gangs.tell(turn.state, self._updates)
        due = self.gangs.due(turn.state)
        if due:
            self._orders.renew(turn.state, due, done=self._carried_out)
        return not due

    def _pass(self, turn: Turn) -> bool:
        state = turn.state
        if not (self._updates.causes or self._foreign.has_work) or not any(map(_has_work, state.partitions.values())):
            return True
        causes = self._updates.take_causes()
        self.gangs.tell(state, self._updates)
        now_us, has_plan = self.now_us(), self._foreign.has_plan
        self._foreign.ask(state, causes, now_us)
        if causes or has_plan:
            then = partial(self._planned, state, causes, now_us)
            stages = (*self.served.stages, *self._foreign.stages(now_us))
            self._passes.run(state, causes, stages, now_us=now_us, then=then, lost=self._carried_out)
        return True

    def _measure(self, _: Turn) -> bool:
        metrics, gangs = self._term.metrics, self.gangs.summary(self.state).values()
        metrics.waiting_jobs.set(len(self.job_table.waiting))
        metrics.gang_jobs.set(sum(gang.jobs for gang in gangs))
        metrics.gang_max_tqlb.set(max((gang.max_tqlb for gang in gangs), default=0))
        self._measured.soon()
        return True

    # -- what follows a pass

    def _planned(self, state: ClusterState, causes: frozenset[Cause], now_us: int, plan: Plan, took_s: float) -> None:
        """A pass has ended. All that follows from it has its time, as in the simulator: a log of it can be run again."""
        if state is not self.state or self._closed:
            self.wake()  # it is not believed any more
            return
        self.plan = plan
        self._foreign.passed(plan.faults)
        self.passes += 1
        self.last_pass_s = took_s
        self._term.metrics.placing_seconds.observe(took_s)
        wakes = [decision.at_us for decision in plan.decisions if type(decision) is WakeAt]
        if self._timer is not None:
            self._timer.cancel()
        on_time = partial(self._look_again, Cause.TIMER)
        self._timer = self._tree.after(max(0.0, (min(wakes) - self.now_us()) / 1e6), on_time) if wakes else None
        self._updates.log.passed(now_us, causes, plan)
        self._orders.carry_out(state, plan, now_us=now_us, done=self._carried_out)

    def _broke(self, partition: str, error: str) -> None:
        """What was decided there cannot be carried out."""
        bench = self.faults.benched.get(partition)
        names = self.served.stage_names(partition) if bench is None else [INSTEAD]
        self.faults.add(partition, ", ".join(names), error)

    def _carried_out(self, problem: str) -> None:
        if problem:
            self._retry_s = min(_LONGEST_RETRY_S, self._retry_s * 2)
            self.rebuild(problem, pause_s=self._retry_s)  # a gate that was just shut: its block is swept aside in a moment
        else:
            self._retry_s = _RETRY_S / 2
            self.wake()

    def _begin_log(self, state: ClusterState) -> None:
        self._is_other_log = False
        served = self.served
        placed = {partition for stage in served.every for partition in stage.partitions}
        self._updates.log.begin(state, served.settings(), placed, half_life_us=served.half_life_us, instead=self.faults.instead)

    def _others_place(self) -> None:
        self._is_other_log = True
        self._look_again(Cause.TAKE_OVER)

    def _relearned(self) -> None:
        """A policy in a process of its own looks at use."""
        if not self.served.half_life_us:
            self.settings_changed()

    def _look_again(self, cause: Cause) -> None:
        self._updates.because(cause)
        self.wake()

    def _look_at_nodes(self) -> None:
        """Lists of the nodes in partitions with place queues; where they are held for others is made ready."""
        if fresh := self._lists.look_on(self._nodes.learn(self.served.partitions)):
            self._holds.prepare(fresh)

    # -- everything again

    def rebuild(self, why: str, *, pause_s: float = 0.0) -> None:
        """The state is not believed any more: it is made from the znodes again (in a while, where it would only go wrong again)."""
        if self.state is not None:
            self._term.log.warning("placing_rebuilt", why=why)
        self.state = None
        self._updates.end_log()
        self._rebuild_of = None
        if pause_s:
            self._tree.after(pause_s, self.wake)
        else:
            self.wake()

    def _try_build(self) -> None:
        """One step of it; what comes wakes us."""
        if self._rebuild_of is None:
            self.job_table.forget_jobs()
            self._stops.forget()
            self._look_at_nodes()
            self._rebuild_of = Rebuild(
                self._tree, self._term,
                self.job_table, self._lists, self._records, self.served, self._building, self._updates, self.gangs,
            )  # fmt: skip
        if not self._known_nodes.hurry():
            self._tree.after(0.01, self.wake)
            return
        self._look_at_nodes()
        built = self._rebuild_of.step(self.served.half_life_us)
        if built is None:
            return
        records = self._rebuild_of.records
        self._promises.adopt(self._rebuild_of.promised)
        self.state, self._rebuild_of = built, None
        self.gangs.look_over(built)
        self._begin_log(built)
        self._orders.adopt(records)
        self.user_requests.rebuilt()
        for node in {placed.node for placed in self.job_table.placed.values()}:
            self._lists.watch_head(node)
        self._holds.look_for_holds(sorted(self._lists.running))
        self._lists.all_are_news()
        self._nodes_changed = True
        # Whatever had happened before, and was decided by a pass whose commit was never made, is decided now.
        self._updates.causes = frozenset({Cause.TAKE_OVER, Cause.JOB_ENDED, Cause.JOB_SUBMITTED})


def _has_work(part: Partition) -> bool:
    return bool(part.jobs or part.notes or part.suspended or part.gangs.by_name)
