"""Turns a snapshot into what people see: pure functions behind `jobs`, `nodes`, `queues`, `status` and `explain`.

The leader calls them on its memory, a command without a leader on what it has read itself: both get the same answers.
"""

from __future__ import annotations

import shlex
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import msgspec

from rmgr.coord.decisions.changing import told_by, words_of
from rmgr.coord.decisions.progress import Progress, overall_state, running_count, state_counts
from rmgr.coord.decisions.rights import no_submission
from rmgr.coord.protocol import paths
from rmgr.coord.views import health
from rmgr.coord.views.health import allowed_whys, nobody_up, room_whys
from rmgr.coord.views.snapshot import BlockOnNode, ClusterSnapshot, by_node, in_all
from rmgr.coord.views.submission import asked
from rmgr.errors import NotFound
from rmgr.model.base import MIB, Needs, needs_of, taskq_name
from rmgr.model.block import job_label
from rmgr.model.node import TAKES_WORK, Drain, NodeRecord, NodeState, Trouble
from rmgr.model.queue import CORES, Dispatch, QueueSpec
from rmgr.model.states import Reason, State
from rmgr.model.submission import Phase, Rigid, Submission, Work, shown_index
from rmgr.model.units import counted, format_duration, format_size, utc
from rmgr.model.views import (
    ExplainView,
    FailureView,
    FaultView,
    JobView,
    LeaderView,
    Level,
    MovingView,
    NodeView,
    PlacedView,
    PolicyView,
    QueueView,
    StatusView,
    WhyView,
)

#: States counted by `rmgr status` and `rmgr show`, in the order shown.
COUNTED = (State.INITIAL, State.RUNNING, State.COMPLETED, State.FAILED, State.CANCELLED, State.HELD, State.SUSPENDED)
_MOST = 8  #: named nodes that refuse a user's work
#: Reasons of a hold, which a submission keeps even if its tasks failed while it was held.
_HELD_FOR = frozenset({Reason.USER_HOLD, Reason.OPERATOR_HOLD, Reason.DEPENDENCY})
#: Values of `PlacedView.state` for placed jobs, beside "waiting".
STOPPING, SUSPENDED, RUNNING = "stopping", "suspended", "running"
#: Jobs of one submission whose waits are described singly.
_MOST_TOLD = 5
_GAVE_BACK = "gave a job back that it had not begun (rmgr nodes shows why); it is tried again"
#: What a policy says that a job waits for -> the reason that `jobs` shows.
REASONS = {"begin": Reason.BEGIN_TIME, "policy": Reason.NO_POLICY, "limits": Reason.LIMIT, "after": Reason.DEPENDENCY}
T = TypeVar("T")
V = TypeVar("V", JobView, ExplainView)


def job_view(
    submission: Submission,
    progress: Progress,
    claimed: list[BlockOnNode],
    waits: PlacedView | None = None,
    waiting: Sequence[PlacedView] = (),
    *,
    is_ownerless: bool = False,
) -> JobView:
    """Returns the view of one submission.

    Args:
        claimed: its blocks. waits: its first waiting placed job, as the leader knows it; waiting: its waiting jobs that were moved
            before. is_ownerless: it may grow, but no live owner would add to it.
    Cost: O(blocks).
    """
    running = running_count((block.key, block.done) for block in claimed)
    state = moving_state(overall_state(submission, progress, running), claimed)
    counts = state_counts(submission, progress, running)
    doing = Counter(block.state for block in claimed)
    counts[State.SUSPENDED], starting = doing[State.SUSPENDED], doing[State.STARTING]
    counts[State.RUNNING] -= doing[State.SUSPENDED] + starting
    if state is State.STARTING and progress.final:
        state = State.RUNNING
    claimed_at = min((block.claimed_us for block in claimed if block.claimed_us), default=0)
    reason, detail = submission.reason, submission.reason_detail
    if told_by(submission):
        detail = words_of(submission.by, detail)
    if not reason and state is State.INITIAL:
        reason = Reason.RESOURCES if progress.total else ""
        if waits is not None:
            reason, detail = REASONS.get(waits.what, reason), waits.reason
    elif state is State.FAILED and (not reason or reason in _HELD_FOR):
        reason, detail = progress.reason, ""  # why it waited does not explain why it failed
    elif state is State.STOPPING:
        detail = claimed[0].stopping
    elif state is State.STARTING:
        detail = awaited(claimed[0])
        claimed_at = 0
    if is_ownerless and not reason and progress.final >= progress.total and not progress.is_ended:
        reason, detail = Reason.OWNER_GONE, f"owner gone, {progress.final}/{progress.total} done"
    return JobView(
        id=submission.id,
        name=submission.name,
        user=submission.user,
        queue=submission.queue,
        state=state,
        reason=reason,
        detail=detail,
        submitted_us=submission.submitted_us,
        started_us=claimed_at if progress.first_started_us is None else progress.first_started_us,
        ended_us=(submission.closed_us if progress.last_ended_us is None else progress.last_ended_us) if state.is_final else 0,
        exit_code=progress.exit_code,
        counts={str(kind): counts[kind] for kind in COUNTED} | ({str(State.STARTING): starting} if starting else {}),
        nodes=tuple(dict.fromkeys([node for block in claimed for node in block.nodes] or progress.nodes)),
        tasks=progress.total,
        priority=submission.priority,
        cpu_us=progress.cpu_us,
        max_rss_kib=progress.max_rss_kib,
        served_us=progress.served_us,
        turns=progress.turns,
        work=submission.work,
        command=command_text(submission),
        cores=submission.request.cores,
        memory_bytes=submission.request.memory_bytes,
        after=tuple(f"{item.condition}:{item.submission}" for item in submission.after),
        processes=submission.rigid.processes if submission.rigid is not None else 1,
        expected_start_us=waits.expected_start_us if waits is not None and state is State.INITIAL else 0,
        resources=dict(needs_of(submission.request.resources)),
        account=submission.account,
        # For pulled work it is not known how long a task of a lost block ran.
        run_us=progress.run_us + (progress.lost_us if submission.rigid is not None else 0),
        lost=progress.lost,
        route=submission.rigid.queue_class if submission.rigid is not None else "",
        moving=None if submission.rigid is None or state.is_final else moving_view(submission.rigid, claimed, waiting),
        asked=asked(submission),
        by_us=submission.by_us if told_by(submission) else 0,
        failures=tuple(
            FailureView(reason=why, exit_code=code, node=node, tasks=count, error=error)
            for (why, code, node), (count, error) in progress.failed.items()
        ),
    )


def _with_reason(view: JobView, snapshot: ClusterSnapshot, submission: Submission, used: Mapping[str, int], there: set[str]) -> JobView:
    """Corrects the reason of waiting work: tasks that failed wait for their retry, pulled work for a node, or its user's cap.

    Args: used: cores by user. there: partitions that have a live Starter.
    """
    if view.state is not State.INITIAL or view.reason != Reason.RESOURCES:
        return view
    queue = snapshot.settings.queue(submission.queue)
    if queue is not None and queue.dispatch is Dispatch.PLACE and not snapshot.leader_alive:
        return msgspec.structs.replace(view, reason=Reason.NO_POLICY, detail=health.NOBODY_PLACES)
    if queue is not None and queue.dispatch is Dispatch.PLACE and queue.partition not in snapshot.placing.partitions:
        return msgspec.structs.replace(view, detail="only the leader knows, and did not tell")
    if snapshot.waiting.get(view.id, 0) >= view.counts[State.INITIAL]:
        return msgspec.structs.replace(view, reason=Reason.BACKOFF)
    if queue is not None and queue.dispatch is not Dispatch.PLACE and queue.partition not in there:
        return msgspec.structs.replace(view, detail=f"no node of partition {queue.partition} is up: rmgr nodes")
    most, has = snapshot.settings.limits.of(CORES, view.user), used.get(view.user, 0)
    if not most or submission.rigid is not None or has + view.cores <= most:
        return view
    message = f"{view.user} has {has} of {counted(most, 'core')}, it needs {view.cores}"
    return msgspec.structs.replace(view, reason=Reason.LIMIT, detail=message)


def _partitions_up(snapshot: ClusterSnapshot) -> set[str]:
    """Returns the partitions that have a live Starter. Cost: O(nodes)."""
    known = snapshot.nodes.values()
    return {record.attributes.partition for record in known if record.state is NodeState.UP and record.guid in snapshot.alive}


def command_text(submission: Submission) -> str:
    """Returns what the submission runs, in one line."""
    if submission.work is Work.PYTHON or submission.command is None:
        return submission.name
    command = submission.command
    return shlex.join([command.script_name, *command.argv] if command.script_name else command.argv)


def jobs(snapshot: ClusterSnapshot, ids: tuple[int, ...] = (), *, ended: bool = False, user: str = "") -> list[JobView]:
    """Returns submissions, oldest first: those of `ids`, else the live ones (with `ended` all), of `user` or of everyone."""
    blocks, waits, routes = _claimed_by_submission(snapshot), first_waits(snapshot), _of_first(snapshot, lambda view: view.route)
    moved = moved_waits(snapshot)
    used = cores_of_users(snapshot) if snapshot.settings.limits.has_caps else {}
    there = _partitions_up(snapshot)
    wanted = [number for number in ids if number in snapshot.submissions] if ids else sorted(snapshot.submissions)
    views = []
    for number in wanted:
        submission, progress = snapshot.submissions[number]
        if user and submission.user != user:
            continue
        if not ids and not ended and (progress.is_ended or submission.phase is Phase.CLOSED):
            continue
        mine = blocks.get(number, [])
        view = job_view(submission, progress, mine, waits.get(number), moved.get(number, ()), is_ownerless=number in snapshot.ownerless)
        view = msgspec.structs.replace(view, route=routes[number]) if number in routes else view
        view = _with_reason(view, snapshot, submission, used, there)
        views.append(with_turns(with_shares(view, snapshot, submission), mine, snapshot))
    return views


def nodes(snapshot: ClusterSnapshot) -> list[NodeView]:
    """Returns all nodes, by name; a caller that can ask the Starters adds load and memory in use."""
    used: dict[str, list[BlockOnNode]] = defaultdict(list)
    others: dict[str, Counter[str]] = defaultdict(Counter)
    helped: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for block in snapshot.claimed:
        used[block.node].append(block)
        _count_others(snapshot, block, others)
        if block.allocation is not None and not block.done:
            for (name, processes), cores in zip(block.allocation.helpers, block.allocation.cores[1:], strict=True):
                helped[name].append((cores, processes * block.allocation.memory_mib * MIB))
    views = [
        _node_view(snapshot, record, used.get(name, []), helped.get(name, []))
        for name, record in sorted(snapshot.nodes.items())
        if not record.forgotten
    ]
    return [
        msgspec.structs.replace(view, resources_used=_capped(others[view.id], view.resources)) if view.resources else view
        for view in views
    ]


def _count_others(snapshot: ClusterSnapshot, block: BlockOnNode, others: dict[str, Counter[str]]) -> None:
    """Adds a claimed block's use of other resources than cores and memory, on each of its nodes."""
    known = snapshot.submissions.get(block.key.submission)
    needs = needs_of(known[0].request.resources) if known is not None else ()
    left = block.key.count - block.done.bit_count()
    if left and block.allocation is not None and block.allocation.whole:
        for node, _ in block.allocation.shares:
            if node in snapshot.nodes:
                others[node].update(snapshot.nodes[node].capacity.resources)
        return
    if not needs or not left:
        return
    for node, times in block.allocation.shares if block.allocation is not None else ((block.node, left),):
        for name, count in needs:
            others[node][name] += count * times


def _cores(block: BlockOnNode) -> int:
    """Returns the cores of one of its tasks on the claiming node."""
    return block.key.cores if block.allocation is None else block.allocation.cores[0]


def _capped(used: Counter[str], has: dict[str, int]) -> dict[str, int]:
    return {name: min(used[name], count) for name, count in sorted(has.items())}


def _node_view(snapshot: ClusterSnapshot, record: NodeRecord, claimed: list[BlockOnNode], helped: list[tuple[int, int]]) -> NodeView:
    alive = record.guid in snapshot.alive
    trouble = health.trouble_of(snapshot, record)
    tasks = running_count((block.key, block.done) for block in claimed) + len(helped)
    drain = snapshot.drains.get(record.node)
    how = health.condition(record, is_alive=alive, drain=drain, trouble=trouble, is_empty=not tasks)
    wanted = sum(_cores(block) * (block.key.count - block.done.bit_count()) for block in claimed) + sum(cores for cores, _ in helped)
    memory = sum(block.key.memory_mib * MIB * min(block.key.count - block.done.bit_count(), record.capacity.cores) for block in claimed)
    memory += sum(size for _, size in helped)
    return NodeView(
        id=record.node,
        state=how.state,
        cores=record.capacity.cores,
        cores_used=min(wanted, record.capacity.cores),
        memory_bytes=record.capacity.memory_bytes,
        memory_used_bytes=min(memory, record.capacity.memory_bytes),
        running=min(tasks, record.capacity.cores),
        incarnation=record.incarnation,
        pid=record.pid,
        host=record.host,
        reason=how.reason,
        partition=record.attributes.partition,
        site=record.attributes.site,
        speed=record.attributes.speed,
        features=record.attributes.features,
        call_cores=record.attributes.call_cores,
        endpoint=record.endpoint if alive else "",
        seen_us=record.registered_us if alive else 0,  # when a dead one was last alive is not recorded
        version=record.version,
        resources=dict(record.capacity.resources),
        trouble=trouble.kind if trouble is not None and trouble.kind not in TAKES_WORK else "",
        until_us=trouble.until_us if trouble is not None else 0,
        metrics=record.metrics if alive else "",
        fix=how.fix,
        level=how.level,
        by=_doer(record, drain, snapshot.resumed.get(record.node), how.state),
        since_us=_since_us(record, drain, trouble, snapshot.resumed.get(record.node), alive=alive),
    )


def _doer(record: NodeRecord, drain: Drain | None, resumed: Drain | None, state: NodeState) -> str:
    """Returns who has drained the node, or resumed it since it registered; "" = nobody."""
    if drain is not None:
        return drain.user
    return resumed.user if resumed is not None and state is NodeState.UP and resumed.since_us > record.registered_us else ""


def _since_us(record: NodeRecord, drain: Drain | None, trouble: Trouble | None, resumed: Drain | None, *, alive: bool) -> int:
    """Returns since when the node is in its state; 0 = unknown."""
    if drain is not None:
        return drain.since_us
    if trouble is not None:
        return trouble.since_us
    if not alive or record.state is not NodeState.UP:
        return 0
    return max(record.registered_us, resumed.since_us if resumed is not None else 0)


def queues(snapshot: ClusterSnapshot) -> list[QueueView]:
    """Returns all queues, by name; then the queue classes, in the order of their file."""
    blocks = _claimed_by_submission(snapshot)
    failed = {partition: view.instead for partition, view in sorted(snapshot.placing.partitions.items()) if view.instead}
    totals: dict[str, Counter[State]] = defaultdict(Counter)
    for number, (submission, progress) in snapshot.submissions.items():
        if not progress.is_ended:
            running = running_count((block.key, block.done) for block in blocks.get(number, []))
            totals[submission.queue].update(state_counts(submission, progress, running))
    views = []
    for queue in sorted(snapshot.settings.queues, key=lambda item: item.name):
        limits: dict[str, int | str] = {
            name: value
            for name, value in (
                ("max_time_s", queue.max_time_us // 1_000_000),
                ("max_cores", queue.max_cores),
                ("max_memory_bytes", queue.max_memory_bytes),
                ("max_pending_blocks", queue.max_pending_blocks),
            )
            if value
        }
        count = totals[queue.name]
        is_failed = queue.dispatch is Dispatch.PLACE and queue.partition in failed
        views.append(
            QueueView(
                id=queue.name,
                partition=queue.partition,
                dispatch=queue.dispatch,
                policy=snapshot.settings.policy_of(queue) + (FAILED if is_failed else ""),
                state=queue.state,
                pending=count[State.INITIAL],
                running=count[State.RUNNING],
                held_tasks=count[State.HELD],
                limits=limits,
                held=tuple(held for held in snapshot.placing.ledger if held.queue == queue.name),
            )
        )
    return [*views, *snapshot.placing.classes]


def status(snapshot: ClusterSnapshot, *, zookeeper: dict[str, object], store: dict[str, object], now_us: int) -> StatusView:
    """Returns health (`coord/views/health.py`) and counts. `zookeeper` and `store` have "ok" and what is wrong ("problem")."""
    counts: Counter[str] = Counter({str(state): 0 for state in COUNTED})
    known = jobs(snapshot, ended=True)
    for job in known:
        counts.update(job.counts)
    views = nodes(snapshot)
    states = Counter(view.state for view in views)
    takes = [view for view in views if view.state == NodeState.UP]
    found = health.parts(snapshot, views, (job for job in known if not job.state.is_final), zookeeper=zookeeper, store=store)
    problems = health.sentences(found, Level.PROBLEM)
    leader = None
    if snapshot.epoch is not None and snapshot.leader_alive:
        record = snapshot.epoch
        leader = LeaderView(
            id=record.leader,
            host=record.host,
            pid=record.pid,
            epoch=record.epoch,
            since_us=record.since_us,
            endpoint=record.endpoint,
            version=record.version,
            metrics=record.metrics,
        )
    return StatusView(
        healthy=not problems,
        leader=leader,
        zookeeper=zookeeper,
        store=store,
        counts=dict(counts),
        nodes={
            "up": states[NodeState.UP],
            "draining": states[NodeState.DRAINING] + states[NodeState.DRAINED],
            "quarantined": states[NodeState.QUARANTINED],
            "fenced": states[NodeState.FENCED] + states[NodeState.LOST],
            "down": states[NodeState.DOWN],
        },
        cluster_id=snapshot.cluster_id,
        problems=problems,
        watchdogs=snapshot.watchdogs,
        uptime_s=max(0, now_us - leader.since_us) / 1e6 if leader else 0.0,
        policies=policy_views(snapshot),
        warnings=health.sentences(found, Level.WARNING),
        parts=found,
        cores=sum(view.cores for view in takes),
        cores_used=sum(view.cores_used for view in takes),
        memory_bytes=sum(view.memory_bytes for view in takes),
        memory_used_bytes=sum(view.memory_used_bytes for view in takes),
        oldest_us=min((job.submitted_us for job in known if job.state is State.INITIAL and job.counts[State.INITIAL]), default=0),
        users=cores_of_users(snapshot),
    )


def explain(snapshot: ClusterSnapshot, number: int, position: int | None) -> ExplainView:
    """Explains why a submission, or one task of it, is in its state: what blocks it, or how it ended. Raises NotFound."""
    if number not in snapshot.submissions:
        raise no_submission(number)
    return with_shares(_explain(snapshot, number, position), snapshot, snapshot.submissions[number][0])


def _explain(snapshot: ClusterSnapshot, number: int, position: int | None) -> ExplainView:
    submission, progress = snapshot.submissions[number]
    blocks = _blocks(snapshot, number)
    job = job_view(submission, progress, blocks, first_waits(snapshot).get(number), is_ownerless=number in snapshot.ownerless)
    if position is None:
        used = cores_of_users(snapshot) if snapshot.settings.limits.has_caps else {}
        job = _with_reason(job, snapshot, submission, used, _partitions_up(snapshot))
        whys, start_us = _why(snapshot, submission, job, None)
        return ExplainView(id=str(number), state=job.state, reason=job.reason, why=tuple(whys), expected_start_us=start_us)
    if position >= progress.total:
        raise NotFound(f"there is no task {number}_{position}: {number} has {counted(progress.total, 'task')}", hint=f"rmgr tasks {number}")
    shown = f"{number}_{shown_index(submission.array, position)}"
    final = progress.state_of(position)
    here = next((b for b in blocks if b.key.first <= position < b.key.end and not b.done >> (position - b.key.first) & 1), None)
    if final is not None:
        why = (WhyView(what="ended", id=shown, detail=f"it ended {final}: rmgr show {shown} tells how"),)
        return ExplainView(id=shown, state=final, reason="", why=why)
    if here is not None:
        verb = "claimed by" if here.allocation is None else "placed on"
        why = (WhyView(what="node", id=here.node, detail=f"{verb} {', '.join(here.nodes)}, attempt {here.key.attempt}"),)
        return ExplainView(id=shown, state=here.state, reason="", why=(*why, *stop_whys([here], snapshot)))
    state = State.HELD if submission.phase is Phase.HELD else State.INITIAL
    if position in snapshot.nowhere.get(number, ()):
        return ExplainView(id=shown, state=state, reason=job.reason, why=(_nowhere(shown, 1),))
    whys, start_us = _why(snapshot, submission, job, position)
    return ExplainView(id=shown, state=state, reason=job.reason, why=tuple(whys), expected_start_us=start_us)


def _nowhere(id_: str, count: int) -> WhyView:
    message = "it is nowhere" if count == 1 else f"{count} tasks are nowhere"
    detail = f"{message} in ZooKeeper: not ended, and no block of it waits or runs (was a znode deleted?)"
    return WhyView(what="nowhere", id=id_, detail=f"{detail}; if the leader's next look finds the same, it ends FAILED, DATA_LOST")


def _all_ended(job: JobView) -> str:
    if not job.tasks:
        return "no task was submitted to it"
    return f"all {job.tasks} tasks have ended" if job.tasks != 1 else "its only task has ended"


def _held_words(submission: Submission) -> str:
    """Returns by whom it is held, and who may release it."""
    if told := told_by(submission):
        return f"{told}; operators alone release it: ask {submission.by}, or another operator"
    words = f" ({submission.reason_detail})" if submission.reason_detail else ""
    return f"held by its user{words}; rmgr release {submission.id} lets it go on"


def _why(snapshot: ClusterSnapshot, submission: Submission, job: JobView, position: int | None) -> tuple[list[WhyView], int]:
    """Returns what the job waits for, and when it is expected to start, 0 = unknown."""
    if job.state.is_final:
        ended = ", ".join(f"{count} {state}" for state, count in job.counts.items() if count)
        words = f": {job.detail}" if job.detail else ""
        rest = f"rmgr show {job.id} tells when and where, rmgr logs {job.id} what was put out" if job.started_us else "it never ran"
        detail = f"{_all_ended(job)}{f' ({ended})' if ended else ''}{words}" + (f"; {rest}" if job.tasks else "")
        return [WhyView(what="ended", id=str(job.id), detail=detail)], 0
    why, start_us = [], 0
    if position is None and (absent := snapshot.nowhere.get(job.id, ())):
        why.append(_nowhere(str(job.id), len(absent)))
    if submission.phase is Phase.HELD and submission.reason == Reason.DEPENDENCY:
        for item in submission.after:
            other = snapshot.submissions.get(item.submission)
            now = (
                "it is not in memory any more" if other is None else f"it is {job_view(*other, _blocks(snapshot, item.submission)).state}"
            )
            why.append(WhyView(what="dependency", id=str(item.submission), detail=f"waits for {item.condition}:{item.submission}; {now}"))
    elif submission.phase is Phase.HELD and submission.reason == Reason.REVOKED:
        message = f"{submission.reason_detail}; nothing that they signed starts: submit it again with new ones, and rmgr cancel {job.id}"
        why.append(WhyView(what="revoked", id=str(job.id), detail=message))
    elif submission.phase is Phase.HELD:
        why.append(WhyView(what="hold", id=str(job.id), detail=_held_words(submission)))
    elif submission.phase is Phase.CANCELLED:
        why.append(WhyView(what="cancel", id=str(job.id), detail=f"{told_by(submission) or 'cancelled'}; what still runs is being stopped"))
    if waiting := snapshot.waiting.get(job.id, 0):
        first_s = submission.backoff_us / 1e6
        message = f"{counted(waiting, 'task')} to run again after a failed attempt"
        if first_s:
            message += f"; the first pause is {format_duration(first_s)}, each further one twice as long, up to 64 times (--backoff)"
        why.append(WhyView(what="backoff", id=str(job.id), detail=message))
    if running := job.counts[State.RUNNING]:  # tasks that have not begun are described separately
        message = ("run on", "runs on")[running == 1] if submission.rigid is not None else ("are claimed by", "is claimed by")[running == 1]
        some = f"{running} of {counted(job.tasks, 'task')}"
        why.append(WhyView(what="running", id=str(job.id), detail=f"{some} {message} {', '.join(job.nodes)}"))
    if error := snapshot.aside.get(paths.sub(job.id)):
        why.append(WhyView(what="set aside", id=str(job.id), detail=f"the leader does nothing for it until it changes: {error}"))
    why += stop_whys(_blocks(snapshot, job.id), snapshot)
    why += saving_whys(_blocks(snapshot, job.id), snapshot)
    is_waiting = submission.phase is Phase.OPEN and job.counts[State.INITIAL] > 0 and not snapshot.waiting.get(job.id, 0)
    if running or is_waiting:
        why += health.store_whys(snapshot)
    if is_waiting:
        queue = snapshot.settings.queue(submission.queue)
        if queue is not None and queue.dispatch is Dispatch.PLACE and queue.state != "stopped":
            views = [view for view in nodes(snapshot) if view.partition == queue.partition]
            if cap := _cap(submission, job):
                why += cap
            elif any(view.state == NodeState.UP for view in views):
                more, start_us = placed_whys(snapshot, submission, queue, position)
                why += list(health.refused_whys(snapshot, views, submission.user).values())[:_MOST]
                why += more + _resource_whys(snapshot, submission, queue) + allowed_whys(views, submission.rigid)
                why += room_whys(views, submission.request, submission.rigid, queue.partition)
            else:
                why.append(WhyView(what="nodes", id=queue.partition, detail=nobody_up(views, queue.partition)))
        else:
            why += _resources(snapshot, submission, job)
    if why:
        return (why + route_whys(snapshot, submission, position) if submission.rigid is not None else why), start_us
    if job.reason == Reason.OWNER_GONE:
        goes_on = f'TaskQueue.attach("{taskq_name(job.id)}") reads its results and adds more; rmgr cancel {job.id} ends it'
        if submission.ends_with_owner:
            goes_on = "the leader ends it in a moment"
        return [WhyView(what="owner", id=str(job.id), detail=f"{job.detail}; its program does not live any more: {goes_on}")], 0
    held = _all_ended(job) if job.tasks else "it has no task yet"
    detail = f"{held}; its TaskQueue is still open for more (close() ends it, or rmgr cancel {job.id})"
    return [WhyView(what="open", id=str(job.id), detail=detail)], 0


def _resources(snapshot: ClusterSnapshot, submission: Submission, job: JobView) -> list[WhyView]:
    queue = snapshot.settings.queue(submission.queue)
    if queue is None:
        return [WhyView(what="queue", id=submission.queue, detail="its queue is not configured any more: rmgr queues")]
    if queue.state == "stopped":
        return [WhyView(what="queue", id=queue.name, detail="the queue is stopped")]
    views = [view for view in nodes(snapshot) if view.partition == queue.partition]
    up = [view for view in views if view.state == NodeState.UP]
    if not up:
        return [WhyView(what="nodes", id=queue.partition, detail=nobody_up(views, queue.partition))]
    request, needs = submission.request, needs_of(submission.request.resources)
    fitting = [view for view in up if health.can_run(snapshot, view, submission)]
    if not fitting:
        return [WhyView(what="nodes", id=queue.partition, detail=health.unfit(snapshot, views, submission))]
    if cap := _cap(submission, job):
        return cap
    refused = health.refused_whys(snapshot, fitting, submission.user)
    if len(refused) == len(fitting):
        return list(refused.values())[:_MOST]
    fitting = [view for view in fitting if view.id not in refused]
    free = [view for view in fitting if view.cores - view.cores_used >= request.cores]
    here = [other for other in jobs(snapshot) if other.queue == job.queue]
    waiting = [other for other in here if other.counts[State.INITIAL] > snapshot.waiting.get(other.id, 0)]
    used = cores_of_users(snapshot)
    most = snapshot.settings.limits.of(CORES, job.user)
    if most and request.cores > most:
        message = f"each of its tasks takes {counted(request.cores, 'core')}, and {job.user} may have {most} at once, so it does not start"
        typed = f"rmgr update {job.id} -c {most}; or an operator: rmgr admin limit {job.user} --cores {request.cores}"
        return [WhyView(what="limit", id=job.user, detail=f"{message}; {typed}")]
    if most and used.get(job.user, 0) + request.cores > most:
        message = f"{job.user} has {used.get(job.user, 0)} of the {most} cores that {job.user} may have at once"
        return [WhyView(what="limit", id=job.user, detail=f"{message}; rmgr limits {job.user}")]
    raised = {other.id for other in waiting if queue.is_fair and snapshot.submissions[other.id][0].is_raised}
    turn = [] if job.id in raised else _turn_whys(queue, job, {other.user for other in waiting if other.reason != Reason.LIMIT}, used)
    lacking = _lacking(free, needs) if free and needs else ""
    before = f"{_ahead(queue, job, waiting, raised)} before it in queue {queue.name}"
    if free and not lacking:
        return [WhyView(what="nodes", id=free[0].id, detail=f"about to be claimed; {before}"), *turn]
    if lacking:
        return [WhyView(what="resources", id=queue.name, detail=f"{lacking}; {before}"), *turn]
    busy = f"all {len(fitting)} fitting nodes are busy" if len(fitting) != 1 else "the only fitting node is busy"
    detail = f"{busy}; {before}"
    return [WhyView(what="resources", id=queue.name, detail=detail), *turn]


def _ahead(queue: QueueSpec, job: JobView, waiting: list[JobView], raised: set[int]) -> str:
    """Returns what stands before it; in a fair queue, work that an operator raised, which precedes all turns, and its user's own."""

    def tasks(others: list[JobView]) -> int:
        return sum(other.counts[State.INITIAL] for other in others)

    earlier = [other for other in waiting if (-other.priority, other.id) < (-job.priority, job.id)]
    if not queue.is_fair:
        return counted(tasks(earlier), "task") if earlier else "nothing"
    first = tasks([other for other in (earlier if job.id in raised else waiting) if other.id in raised])
    message = f"{counted(first, 'task')} that an operator raised" if first else ""
    if job.id in raised:
        return message or "nothing"
    own = tasks([other for other in earlier if other.user == job.user and other.id not in raised])
    if message and not own:
        return message
    mine = f"{counted(own, 'task') if own else 'nothing'} of {job.user}'s"
    return f"{message} and {mine}" if message else mine


def cores_of_users(snapshot: ClusterSnapshot) -> dict[str, int]:
    """Returns cores in use by user. Cost: O(claimed blocks)."""

    def user_of(block: BlockOnNode) -> str | None:
        known = snapshot.submissions.get(block.key.submission)
        return known[0].user if known is not None else None

    return in_all(by_node(snapshot.claimed, user_of, {name: record.capacity.cores for name, record in snapshot.nodes.items()}))


def _turn_whys(queue: QueueSpec, job: JobView, users: set[str], used: dict[str, int]) -> list[WhyView]:
    """Says which users are before the user of a waiting job, as far as known: each Starter counts turns itself, and tells nobody."""
    if not queue.is_fair or not users - {job.user}:
        return []
    order = sorted(users | {job.user}, key=lambda user: (used.get(user, 0), user != job.user, user))
    before = order[: order.index(job.user)]
    if not before:
        message = f"{job.user} has fewest cores now ({used.get(job.user, 0)}), and is next"
    else:
        others = f"; so do {len(before) - 1} more" if len(before) > 1 else ""
        fewer = f"{before[0]} has fewer cores now ({used.get(before[0], 0)}) than {job.user} ({used.get(job.user, 0)})"
        message = f"{fewer}, and goes first{others}"
    return [WhyView(what="turn", id=queue.name, detail=f"{counted(len(order), 'user')} wait there, and take turns: {message}")]


def _cap(submission: Submission, job: JobView) -> list[WhyView]:
    """Explains the wait while as many tasks run as the submission allows itself (`--array 1-9%2`)."""
    if not submission.max_running or job.counts[State.RUNNING] + job.counts.get(State.STARTING, 0) < submission.max_running:
        return []
    return [WhyView(what="limit", id=str(job.id), detail=f"at most {submission.max_running} of its tasks run at once")]


def _resource_whys(snapshot: ClusterSnapshot, submission: Submission, queue: QueueSpec) -> list[WhyView]:
    """Explains a placed job's wait for a resource other than cores and memory."""
    needs = needs_of(submission.request.resources)
    if not needs:
        return []
    up = [view for view in nodes(snapshot) if view.partition == queue.partition and view.state == NodeState.UP]
    processes = submission.rigid.processes if submission.rigid is not None else 1
    lacking = _lacking(up, needs, processes)
    return [WhyView(what="resources", id=queue.name, detail=lacking)] if lacking else []


def _lacking(views: list[NodeView], needs: Needs, processes: int = 1) -> str:
    """Returns which resource of all these nodes is too little for that many processes, "" if none."""
    for name, count in needs:
        left = {view.id: view.resources.get(name, 0) - view.resources_used.get(name, 0) for view in views}
        if sum(free // count for free in left.values()) >= processes:
            continue
        if processes > 1:
            has = sum(view.resources.get(name, 0) for view in views)
            return f"it needs {processes} x {count} {name}, and {sum(left.values())} of {has} are free"
        if views:
            best = max(views, key=lambda view: (left[view.id], view.id))
            has = best.resources.get(name, 0)
            return f"it needs {count} {name}, and on node {best.id} {has - left[best.id]} of {has} are in use"
    return ""


def _blocks(snapshot: ClusterSnapshot, number: int) -> list[BlockOnNode]:
    return [block for block in snapshot.claimed if block.key.submission == number]


def _claimed_by_submission(snapshot: ClusterSnapshot) -> dict[int, list[BlockOnNode]]:
    blocks: dict[int, list[BlockOnNode]] = defaultdict(list)
    for block in snapshot.claimed:
        blocks[block.key.submission].append(block)
    return blocks


# -- placed jobs: who places, what each job waits for, and when it is expected to start --------------------------------------


def on_the_move(claimed: tuple[BlockOnNode, ...], snapshot: ClusterSnapshot) -> tuple[BlockOnNode, ...]:
    """Returns the blocks with what the placing leader knows of jobs that it has asked to stop or to be suspended."""
    moving = {job: view for job, view in snapshot.placing.jobs.items() if view.state in {STOPPING, SUSPENDED}}
    if not moving:
        return claimed
    found = []
    for block in claimed:
        view = moving.get((block.key.submission, block.key.first)) if block.allocation is not None else None
        if view is None:
            found.append(block)
        elif view.state == SUSPENDED:
            found.append(replace(block, is_suspended=True))
        else:
            found.append(replace(block, stopping=block.stopping or view.reason or "asked to go on elsewhere"))
    return tuple(found)


def moving_state(state: State, claimed: Sequence[BlockOnNode]) -> State:
    """Returns the common state of all running blocks (starting, stopping or suspended), else `state` of the submission."""
    if state is not State.RUNNING or not claimed:
        return state
    doing = {block.state for block in claimed}
    return doing.pop() if len(doing) == 1 else state


def awaited(block: BlockOnNode, snapshot: ClusterSnapshot | None = None) -> str:
    """Returns what a job that has not begun waits for, and since when. snapshot: shows which Starters are gone."""
    since = f" since {utc(block.claimed_us)}" if block.claimed_us else ""
    if snapshot is not None and (gone := [node for node in block.nodes if not _is_alive(snapshot, node)]):
        return f"waits for {', '.join(gone)}{since}: no Starter answers there"
    if block.awaits:
        return f"waits for {block.awaits}{since}"
    helpers = f", {', '.join(block.nodes[1:])} and its first instruction" if len(block.nodes) > 1 else ""
    if block.allocation is not None and block.allocation.gang:
        return f"waits for its first turn on {', '.join(block.nodes)}{since}"
    what = "" if helpers else " to begin it: what runs there ends first, or what it needs is on its way"
    return f"waits for {block.node}{helpers}{what}{since}"


def _is_alive(snapshot: ClusterSnapshot, node: str) -> bool:
    record = snapshot.nodes.get(node)
    return record is not None and record.guid in snapshot.alive and record.state is not NodeState.FENCED


def stop_whys(blocks: Sequence[BlockOnNode], snapshot: ClusterSnapshot) -> list[WhyView]:
    """Explains jobs that have not begun, are giving up their nodes, or are suspended."""
    whys = []
    starting = [block for block in blocks if block.is_starting and not block.stopping]
    for block in starting[:_MOST_TOLD]:
        shown = job_label(block.key.submission, block.key.first)
        whys.append(WhyView(what="starting", id=shown, detail=f"placed on {', '.join(block.nodes)}, {awaited(block, snapshot)}"))
    for block in blocks:
        shown, where = job_label(block.key.submission, block.key.first), ", ".join(block.nodes)
        view = snapshot.placing.jobs.get((block.key.submission, block.key.first))
        if view is not None and view.turns and block.allocation is not None and block.allocation.gang:
            memory = block.allocation.memory_mib * MIB
            limited = f"; a process has {format_size(memory)}" if memory else ""
            whys.append(WhyView(what="gang", id=shown, detail=view.turns + limited))
        if block.stopping:
            whys.append(WhyView(what="stopping", id=shown, detail=f"it saves its state and gives up {where}: {block.stopping}"))
        elif block.is_suspended and not (view is not None and view.turns):
            whys.append(WhyView(what="suspended", id=shown, detail=f"it stands still on {where}, and goes on there"))
    return whys


def saving_whys(blocks: Sequence[BlockOnNode], snapshot: ClusterSnapshot) -> list[WhyView]:
    """Explains current requests to save state, and why no policy moves running jobs."""
    whys = []
    for block in [block for block in blocks if block.allocation is not None and not block.is_starting][:_MOST_TOLD]:
        shown = job_label(block.key.submission, block.key.first)
        if block.saving:
            whys.append(WhyView(what="checkpoint", id=shown, detail=block.saving))
        view = snapshot.placing.jobs.get((block.key.submission, block.key.first))
        if view is not None and view.state == RUNNING and view.reason:
            whys.append(WhyView(what="stays", id=shown, detail=view.reason))
    return whys


def moving_view(rigid: Rigid, claimed: Sequence[BlockOnNode], waiting: Sequence[PlacedView]) -> MovingView:
    """Returns the moves of a submission. waiting: its waiting jobs that were moved before."""
    moves = sum(block.moves for block in claimed) + sum(view.moves for view in waiting)
    answered = bool(claimed) and all(block.answered for block in claimed)
    saves = rigid.saves(answered) or (not claimed and any(view.saves for view in waiting))
    return MovingView(saves=saves, moves=moves, most=rigid.max_moves)


def moved_waits(snapshot: ClusterSnapshot) -> dict[int, list[PlacedView]]:
    """Returns submission -> its waiting jobs of which more is known than their record says. Cost: O(placed jobs)."""
    found: dict[int, list[PlacedView]] = {}
    for (submission, _), view in snapshot.placing.jobs.items():
        if view.state == "waiting" and (view.moves or view.saves):
            found.setdefault(submission, []).append(view)
    return found


def _of_first(snapshot: ClusterSnapshot, told: Callable[[PlacedView], T | None]) -> dict[int, T]:
    """Returns submission -> what its first job tells of which anything is told. Cost: O(placed jobs)."""
    found: dict[int, tuple[int, T]] = {}
    for (submission, index), view in snapshot.placing.jobs.items():
        if (one := told(view)) and (submission not in found or index < found[submission][0]):
            found[submission] = (index, one)
    return {submission: one for submission, (_, one) in found.items()}


def first_waits(snapshot: ClusterSnapshot) -> dict[int, PlacedView]:
    """Returns submission -> its first job that waits to be placed."""
    return _of_first(snapshot, lambda view: view if view.state == "waiting" else None)


#: Added to the name of a policy that does not place because it has failed.
FAILED = " (failed)"


def policy_views(snapshot: ClusterSnapshot) -> tuple[PolicyView, ...]:
    """Returns the policy of each partition with place queues, and how it does."""
    found = []
    for partition, queues in sorted(snapshot.settings.placed().items()):
        view = snapshot.placing.partitions.get(partition)
        policy = snapshot.settings.policy_of(queues[0])
        if view is None:
            found.append(PolicyView(partition=partition, policy=policy))
            continue
        faults = tuple(FaultView(policy=name, count=count, error=error) for name, count, error in view.faults)
        found.append(
            PolicyView(
                partition=partition,
                policy=policy,
                passes=view.passes,
                last_pass_s=view.last_pass_s,
                faults=faults,
                problem=view.problem,
                generation=view.gang.generation if view.gang is not None else None,
                max_tqlb=view.gang.max_tqlb if view.gang is not None else 0,
            )
        )
    return tuple(found)


def with_turns(view: JobView, claimed: Sequence[BlockOnNode], snapshot: ClusterSnapshot) -> JobView:
    """Returns the view with its share of slots and its served time, if it shares its cores in time."""
    placed = [
        found
        for block in claimed
        if block.allocation is not None
        and block.allocation.gang
        and (found := snapshot.placing.jobs.get((block.key.submission, block.key.first))) is not None
        and found.slots
    ]
    if not placed:
        return view
    memory = max(block.allocation.memory_mib * MIB for block in claimed if block.allocation is not None and block.allocation.gang)
    return msgspec.structs.replace(
        view,
        slots=placed[0].slots,
        served_us=view.served_us + sum(one.served_us for one in placed),
        memory_bytes=view.memory_bytes or memory,  # jobs that asked for none have a share of their nodes' memory
    )


def with_shares(view: V, snapshot: ClusterSnapshot, submission: Submission) -> V:
    """Adds priority and account; and what account and user have used against their shares, if the current policy orders by that."""
    view = msgspec.structs.replace(view, priority=submission.priority, account=submission.account)
    queue = snapshot.settings.queue(submission.queue) if snapshot.placing.shares and not view.state.is_final else None
    found = None if queue is None else snapshot.placing.shares.get((queue.partition, submission.account, submission.user))
    return view if found is None else msgspec.structs.replace(view, account_share=found[0], share=found[1])


def route_whys(snapshot: ClusterSnapshot, submission: Submission, position: int | None) -> list[WhyView]:
    """Names the queue classes of its jobs, and what chose each: a policy's rule, or the user."""
    queue, rigid = snapshot.settings.queue(submission.queue), submission.rigid
    named = rigid.queue_class if rigid is not None else ""
    routes = dict.fromkeys(
        view.route
        for (owner, index), view in sorted(snapshot.placing.jobs.items())
        if owner == submission.id and view.route and position in {None, index}
    )
    known = {view.id: view.of_class for view in snapshot.placing.classes if queue is not None and view.partition == queue.partition}
    shape = f"{counted(rigid.processes, 'process')} x {counted(submission.request.cores, 'thread')}" if rigid is not None else ""
    whys = []
    for route in routes or ([named] if named else []):
        found = known.get(route)
        chosen = f"chosen for {shape} {found.chosen if found is not None else 'by a policy'}"
        rule = f"named by its user (-q {route})" if route == named else chosen
        whys.append(WhyView(what="class", id=route, detail=f"its queue class, {rule}{f' ({found.limits})' if found is not None else ''}"))
    return whys


def placed_whys(snapshot: ClusterSnapshot, submission: Submission, queue: QueueSpec, position: int | None) -> tuple[list[WhyView], int]:
    """Explains what waiting jobs of the submission (or one) wait for; returns also the earliest expected start, 0 = unknown."""
    number = submission.id
    if not snapshot.leader_alive:
        return [WhyView(what="leader", id=queue.partition, detail="no WatchDog leads, so nobody places jobs just now: rmgr status")], 0
    part = snapshot.placing.partitions.get(queue.partition)
    if part is None:
        return [WhyView(what="leader", id=queue.partition, detail="only the leader knows, and it did not tell: ask again in a moment")], 0
    if part.problem:
        return [WhyView(what="policy", id=part.policy or queue.partition, detail=f"nobody places here: {part.problem}")], 0
    failed = [WhyView(what="policy", id=part.policy or queue.partition, detail=part.instead)] if part.instead else []
    mine = sorted(
        (index, view)
        for (owner, index), view in snapshot.placing.jobs.items()
        if owner == number and view.state == "waiting" and position in {None, index}
    )
    if not mine:
        return [WhyView(what="pass", id=queue.partition, detail="the next scheduling pass will look at it"), *failed], 0
    told: dict[tuple[str, str, str], int] = {}
    for _, view in mine:
        key = (view.what or "order", view.blocker or queue.partition, view.reason)
        told[key] = told.get(key, 0) + 1
    whys = [
        WhyView(what=what, id=blocker, detail=detail if len(mine) == 1 else f"{count} of its jobs: {detail}")
        for (what, blocker, detail), count in list(told.items())[:_MOST_TOLD]
    ]
    if len(told) > _MOST_TOLD:
        whys.append(WhyView(what="more", id=str(number), detail=f"{len(told) - _MOST_TOLD} other reasons: rmgr explain {number}_INDEX"))
    whys += failed or [
        WhyView(what="fault", id=name, detail=f"policy {name} was skipped {counted(count, 'time')}, the last time because {error}")
        for name, count, error in part.faults
    ]
    resting = [(node, f"{node} {_GAVE_BACK} in {format_duration(left_s)}") for node, left_s in part.resting[:_MOST_TOLD]]
    whys += [WhyView(what="node", id=node, detail=detail) for node, detail in resting]
    return whys, min((view.expected_start_us for _, view in mine if view.expected_start_us), default=0)
