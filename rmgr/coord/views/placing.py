"""Describes placed jobs: who places, what each job waits for, and when it is expected to start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import msgspec

from rmgr.coord.views.snapshot import BlockOnNode, ClusterSnapshot
from rmgr.model.base.resources import MIB
from rmgr.model.base.states import Reason, State
from rmgr.model.base.units import counted, format_duration, format_size, utc
from rmgr.model.cluster.node import NodeState
from rmgr.model.cluster.queue import QueueSpec
from rmgr.model.tasks.block import job_label
from rmgr.model.tasks.submission import Rigid, Submission
from rmgr.model.views import ExplainView, FaultView, JobView, MovingView, PlacedView, PolicyView, WhyView

V = TypeVar("V", JobView, ExplainView)

#: `PlacedView.state` beside "waiting".
STOPPING, SUSPENDED, RUNNING = "stopping", "suspended", "running"
#: Jobs of one submission whose waits are told one by one.
_MOST = 5
_GAVE_BACK = "gave a job back that it had not begun (rmgr nodes shows why); it is tried again"
#: What a policy calls the thing that a job waits for -> the reason that `jobs` shows.
REASONS = {"begin": Reason.BEGIN_TIME, "policy": Reason.NO_POLICY, "limits": Reason.LIMIT, "after": Reason.DEPENDENCY}


def on_the_move(claimed: tuple[BlockOnNode, ...], snapshot: ClusterSnapshot) -> tuple[BlockOnNode, ...]:
    """The same blocks, with what the placing leader knows of jobs that it has asked to stop, or to stand still."""
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
    """`state` of a submission, or what all of it that runs is doing just now: about to begin, giving its nodes up, or standing still."""
    if state is not State.RUNNING or not claimed:
        return state
    doing = {block.state for block in claimed}
    return doing.pop() if len(doing) == 1 else state


def awaited(block: BlockOnNode, snapshot: ClusterSnapshot | None = None) -> str:
    """What a job that has not begun waits for, and since when. snapshot: tells which Starters are gone."""
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


def stop_whys(blocks: Sequence[BlockOnNode], snapshot: ClusterSnapshot | None = None) -> list[WhyView]:
    """What is said of jobs that have not begun, are giving their nodes up, or stand still."""
    whys = []
    starting = [block for block in blocks if block.is_starting and not block.stopping]
    for block in starting[:_MOST]:
        shown = job_label(block.key.submission, block.key.first)
        whys.append(WhyView(what="starting", id=shown, detail=f"placed on {', '.join(block.nodes)}, {awaited(block, snapshot)}"))
    for block in blocks:
        shown, where = job_label(block.key.submission, block.key.first), ", ".join(block.nodes)
        view = None if snapshot is None else snapshot.placing.jobs.get((block.key.submission, block.key.first))
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
    """What is said of the requests to save their state that jobs have now, and why no policy moves those that run."""
    whys = []
    for block in [block for block in blocks if block.allocation is not None and not block.is_starting][:_MOST]:
        shown = job_label(block.key.submission, block.key.first)
        if block.saving:
            whys.append(WhyView(what="checkpoint", id=shown, detail=block.saving))
        view = snapshot.placing.jobs.get((block.key.submission, block.key.first))
        if view is not None and view.state == RUNNING and view.reason:
            whys.append(WhyView(what="stays", id=shown, detail=view.reason))
    return whys


def moving_view(rigid: Rigid, claimed: Sequence[BlockOnNode], waiting: Sequence[PlacedView]) -> MovingView:
    """Of a submission. waiting: those of its jobs that wait and were moved before."""
    moves = sum(block.moves for block in claimed) + sum(view.moves for view in waiting)
    answered = bool(claimed) and all(block.answered for block in claimed)
    saves = rigid.saves(answered) or (not claimed and any(view.saves for view in waiting))
    return MovingView(saves=saves, moves=moves, most=rigid.max_moves)


def moved_waits(snapshot: ClusterSnapshot) -> dict[int, list[PlacedView]]:
    """Submission -> those of its jobs that wait and of which more is known than their record says. Cost: O(placed jobs)."""
    found: dict[int, list[PlacedView]] = {}
    for (submission, _), view in snapshot.placing.jobs.items():
        if view.state == "waiting" and (view.moves or view.saves):
            found.setdefault(submission, []).append(view)
    return found


#: Put to the name of a policy that does not place because it has failed.
FAILED = " (failed)"


def first_waits(snapshot: ClusterSnapshot) -> dict[int, PlacedView]:
    """Submission -> the first of its jobs that waits to be placed. Cost: O(placed jobs)."""
    found: dict[int, tuple[int, PlacedView]] = {}
    for (submission, index), view in snapshot.placing.jobs.items():
        if view.state == "waiting" and (submission not in found or index < found[submission][0]):
            found[submission] = (index, view)
    return {submission: view for submission, (_, view) in found.items()}


def first_routes(snapshot: ClusterSnapshot) -> dict[int, str]:
    """Submission -> the queue class of the first of its jobs that has one. Cost: O(placed jobs)."""
    found: dict[int, tuple[int, str]] = {}
    for (submission, index), view in snapshot.placing.jobs.items():
        if view.route and (submission not in found or index < found[submission][0]):
            found[submission] = (index, view.route)
    return {submission: route for submission, (_, route) in found.items()}


def policy_views(snapshot: ClusterSnapshot) -> tuple[PolicyView, ...]:
    """Who places in each partition with place queues, and how it does."""
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
    """With its part of the slots, and for how long it was served, where it shares its cores in time."""
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
        memory_bytes=view.memory_bytes or memory,  # who asked for none has a part of his nodes'
    )


def with_shares(view: V, snapshot: ClusterSnapshot, submission: Submission) -> V:
    """With its priority and account; and what that and its user have used against their shares, where its policy orders by it now."""
    view = msgspec.structs.replace(view, priority=submission.priority, account=submission.account)
    queue = snapshot.settings.queue(submission.queue) if snapshot.placing.shares and not view.state.is_final else None
    found = None if queue is None else snapshot.placing.shares.get((queue.partition, submission.account, submission.user))
    return view if found is None else msgspec.structs.replace(view, account_share=found[0], share=found[1])


def failed_policies(snapshot: ClusterSnapshot) -> dict[str, str]:
    """Partition -> why its own policy does not place just now, and who does."""
    return {partition: view.instead for partition, view in sorted(snapshot.placing.partitions.items()) if view.instead}


def route_whys(snapshot: ClusterSnapshot, submission: Submission, position: int | None) -> list[WhyView]:
    """The queue classes of its jobs, and the rule that chose each: a policy's, or its user."""
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
    """What waiting jobs of the submission (one of them) wait for, and the earliest expected start, 0 = unknown."""
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
        for (what, blocker, detail), count in list(told.items())[:_MOST]
    ]
    if len(told) > _MOST:
        whys.append(WhyView(what="more", id=str(number), detail=f"{len(told) - _MOST} other reasons: rmgr explain {number}_INDEX"))
    whys += failed or [
        WhyView(what="fault", id=name, detail=f"policy {name} was skipped {counted(count, 'time')}, the last time because {error}")
        for name, count, error in part.faults
    ]
    resting = [(node, f"{node} {_GAVE_BACK} in {format_duration(left_s)}") for node, left_s in part.resting[:_MOST]]
    whys += [WhyView(what="node", id=node, detail=detail) for node, detail in resting]
    return whys, min((view.expected_start_us for _, view in mine if view.expected_start_us), default=0)
