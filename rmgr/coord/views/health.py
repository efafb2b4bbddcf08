"""Whether work that may run will run: the one rule behind `status`, `nodes`, `explain` and `doctor`. Pure.

A *problem* makes the cluster unhealthy: no leader; ZooKeeper or store away; a node that should take work and does not (fenced, lost,
quarantined, a full disk); waiting work that only nodes that are out could run; a partition where nothing is placed. A *warning* is
intended, or has no cost yet: a drained node (even if fenced), a stopped queue, a partition without nodes and without work, a single
WatchDog, a failed policy that FCFS replaces, no Starter where servers serve calls, a Starter that others do not reach. Busy
nodes are neither, nor is a node whose Starter was stopped in good order.

What one user does is never a problem of the cluster: work that no known node could ever run, or that nodes refuse to its user alone, is a
note (kind `user`) for that user and for operators.

Certificates: daemons work as long as theirs are valid. After that, no connection to them succeeds, and nothing that they sign is accepted.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from rmgr.coord.decisions import liveness
from rmgr.coord.views.snapshot import ClusterSnapshot
from rmgr.model.base import Request, needs_of
from rmgr.model.node import Drain, NodeRecord, NodeState, Trouble, TroubleKind
from rmgr.model.queue import Dispatch, QueueSpec
from rmgr.model.states import State
from rmgr.model.submission import Phase, Rigid, Submission
from rmgr.model.units import counted, utc
from rmgr.model.views import JobView, Level, NodeView, PartView, StatusView, WhyView

#: Nodes (of one state), certificates and users that get a sentence each (more are counted).
_SHOWN = 8
#: Different requests that are compared with all nodes, and the same of one user, who must not hide others'.
_MOST_REQUESTS, _MOST_OF_ONE = 1000, 100
NOBODY_PLACES = "no WatchDog leads, so nobody places it: rmgr status"
NO_LEADER = "no WatchDog leads: pulled work goes on, jobs are not placed, losses are not noticed"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCondition:
    """Condition of a node, its reason, and what to type so that it takes work."""

    state: NodeState
    reason: str = ""
    fix: str = ""
    level: Level = Level.OK


def trouble_of(snapshot: ClusterSnapshot, record: NodeRecord) -> Trouble | None:
    """Returns what the node's live Starter says keeps it from work; ignores what an older incarnation said."""
    trouble = snapshot.troubles.get(record.node)
    is_its_own = trouble is not None and trouble.incarnation == record.incarnation
    return trouble if is_its_own and record.state is NodeState.UP and record.guid in snapshot.alive else None


def condition(record: NodeRecord, *, is_alive: bool, drain: Drain | None, trouble: Trouble | None, is_empty: bool) -> NodeCondition:
    """Returns the condition of one node. is_alive: its Starter has an entry. is_empty: nothing runs there."""
    name = record.node
    if record.state is NodeState.FENCED and record.reason == liveness.STOPPED:
        return NodeCondition(state=NodeState.DOWN, reason="stopped", fix=f"start its Starter{_on(record)}")
    if record.state is NodeState.FENCED or not is_alive:
        is_fenced = record.state is NodeState.FENCED
        state, reason = (NodeState.FENCED, record.reason) if is_fenced else (NodeState.LOST, "its Starter does not answer")
        if drain is not None:
            message = f"{reason}; drained" + (f": {drain.reason}" if drain.reason else "")
            return NodeCondition(
                state=state, reason=message, fix=f"start its Starter{_on(record)}, and rmgr resume {name}", level=Level.WARNING
            )
        if is_fenced and reason == liveness.REVOKED:
            fix = f"rmgr admin add-node {name} lets it in again; if it is not to come back: rmgr nodes --forget {name}"
            return NodeCondition(state=state, reason=reason, fix=fix, level=Level.WARNING)
        fix = f"start its Starter{_on(record)}; if the node is not to come back: rmgr drain {name}"
        return NodeCondition(state=state, reason=reason, fix=fix, level=Level.PROBLEM)
    leaving = NodeState.DRAINED if is_empty else NodeState.DRAINING
    if drain is not None:
        message = "; ".join(why for why in (drain.reason, trouble.reason if trouble is not None else "") if why)
        return NodeCondition(state=leaving, reason=message, fix=f"rmgr resume {name}", level=Level.WARNING)
    if trouble is None:
        return NodeCondition(state=NodeState.UP)
    if trouble.kind == TroubleKind.QUARANTINE:
        fix = f"its Starter tries again by itself then; its log{_on(record)} tells more"
        return NodeCondition(state=NodeState.QUARANTINED, reason=trouble.reason, fix=fix, level=Level.PROBLEM)
    if trouble.kind == TroubleKind.USERS and trouble.refused.keys() <= set(trouble.barred):
        fix = "it takes their work again a minute later"
        return NodeCondition(state=NodeState.UP, reason=trouble.reason, fix=fix, level=Level.WARNING)
    if trouble.kind == TroubleKind.USERS:
        fix = f"type that command there{_on(record)}, or install where all users get to; such work starts seconds later"
        return NodeCondition(state=NodeState.UP, reason=trouble.reason, fix=fix, level=Level.PROBLEM)
    if trouble.kind == TroubleKind.ASIDE:
        fix = f"its log{_on(record)} has the traceback (set_aside); report it, and restart that Starter to forget it"
        return NodeCondition(state=NodeState.UP, reason=trouble.reason, fix=fix, level=Level.WARNING)
    mended = {
        TroubleKind.DISK: f"free space there{_on(record)}",
        TroubleKind.STORE: "rmgr doctor looks at the data store",
        TroubleKind.QUOTA: "rmgr doctor looks at the quotas",
        TroubleKind.TRUST: f"as it says{_on(record)}",
    }
    fix = next((fix for kind, fix in mended.items() if kind == trouble.kind), f"look at its Starter's log{_on(record)}")
    return NodeCondition(state=leaving, reason=trouble.reason, fix=f"{fix}; it goes on by itself once that is mended", level=Level.PROBLEM)


def parts(
    snapshot: ClusterSnapshot,
    views: Sequence[NodeView],
    live: Iterable[JobView],
    *,
    zookeeper: Mapping[str, object],
    store: Mapping[str, object],
) -> tuple[PartView, ...]:
    """Returns everything that is not well, the worst for everybody first.

    Args: views: all nodes. live: submissions that have not ended. zookeeper, store: "ok", and what is wrong ("problem").
    Cost: O(submissions + different requests x nodes).
    """
    found = []
    for kind, name, facts in (("zookeeper", "ZooKeeper", zookeeper), ("store", "store", store)):
        if not facts.get("ok"):
            why = str(facts.get("problem") or "does not answer")
            fix = store_fix(why) if kind == "store" else "rmgr doctor"
            found.append(PartView(kind=kind, id=str(facts.get("url", "")), state="away", reason=why, fix=fix, told=f"{name}: {why}"))
    if snapshot.epoch is None or not snapshot.leader_alive:
        found.append(PartView(kind="leader", id="", state="none", reason=NO_LEADER, fix="start one: rmgr watchdog"))
    elif snapshot.watchdogs == 1:
        message = "one WatchDog alone: when it dies nobody takes over"
        found.append(PartView(kind="watchdogs", id="", state="alone", reason=message, fix="rmgr watchdog", level=Level.WARNING))
    takes = [view for view in views if view.state == NodeState.UP]
    if not takes:
        found.append(PartView(kind="nodes", id="", state="none", reason=nobody_up_anywhere(views), fix="rmgr nodes"))
    for view in views:
        if view.level != Level.OK:
            message = f"node {view.id} is {state_words(view)}" + (f": {view.reason}" if view.reason else "")
            words = {"state": view.state, "reason": view.reason, "fix": view.fix, "level": view.level, "told": message}
            found.append(PartView(kind="node", id=view.id, **words))
    for name, item in sorted(snapshot.placing.partitions.items()):
        if item.problem:
            reason = f"nobody places the jobs of partition {name}: {item.problem}"
            found.append(PartView(kind="partition", id=name, state="not placed", reason=reason, fix="rmgr policy show; rmgr policy set"))
        elif item.instead:
            level = Level.PROBLEM if item.is_stopped else Level.WARNING
            reason = f"partition {name}: {item.instead}"
            fix = "mend the policy, or rmgr policy set another one"
            found.append(PartView(kind="partition", id=name, state="policy failed", reason=reason, fix=fix, level=level))
    for path, error in sorted(snapshot.aside.items())[:_SHOWN]:
        reason = f"the leader has set {path} aside: {error}"
        what = "mend or remove that znode" if path.startswith("/") else "report it"  # else a place in the code
        fix = f"{what}; the leader's log has the traceback (set_aside)"
        found.append(PartView(kind="record", id=path, state="set aside", reason=reason, fix=fix, level=Level.WARNING))
    if (more := len(snapshot.aside) - _SHOWN) > 0:
        reason = f"the leader has set {counted(more, 'more znode')} aside"
        found.append(PartView(kind="record", id="", state="set aside", reason=reason, fix="its log names them", level=Level.WARNING))
    return tuple(found + _waiting(snapshot, views, live))


def _waiting(snapshot: ClusterSnapshot, views: Sequence[NodeView], live: Iterable[JobView]) -> list[PartView]:
    """Returns queues, partitions and users with waiting work that no node will run, and partitions where nothing could run."""
    here: dict[str, list[NodeView]] = defaultdict(list)
    for view in views:
        here[view.partition].append(view)
    stuck: dict[str, list[tuple[JobView, int, str]]] = defaultdict(list)  #: by partition
    hopeless: dict[str, list[tuple[JobView, int, str]]] = defaultdict(list)  #: by user
    stopped: Counter[str] = Counter()
    known: dict[object, tuple[str, bool]] = {}
    compared: Counter[str] = Counter()
    refusing = any(trouble.refused for trouble in snapshot.troubles.values())
    for job in live:
        submission = snapshot.submissions[job.id][0]
        count = job.counts[State.INITIAL] - snapshot.waiting.get(job.id, 0)
        queue = snapshot.settings.queue(submission.queue)
        if count <= 0 or submission.phase is not Phase.OPEN or job.counts[State.RUNNING] or job.counts.get(State.STARTING):
            continue
        if queue is None or queue.state == "stopped":
            stopped[submission.queue] += count
            continue
        request = submission.request
        who = submission.user if refusing else ""
        key = (queue.name, who, request.cores, request.memory_bytes, request.features, needs_of(request.resources), submission.rigid)
        if key not in known and len(known) < _MOST_REQUESTS and compared[submission.user] < _MOST_OF_ONE:
            compared[submission.user] += 1
            known[key] = _cannot(snapshot, here[queue.partition], submission, queue)
        why, is_its_users = known.get(key, ("", False))
        if why:
            (hopeless[submission.user] if is_its_users else stuck[queue.partition]).append((job, count, why))
    found = []
    for name, count in sorted(stopped.items()):
        is_gone = snapshot.settings.queue(name) is None
        state, fix = ("not configured", "rmgr queues") if is_gone else ("stopped", "rmgr config apply opens it")
        level = Level.PROBLEM if is_gone else Level.WARNING
        reason = f"{_tasks(count)} in queue {name}, which is {state}"
        found.append(PartView(kind="queue", id=name, state=state, reason=reason, fix=fix, level=level))
    for name, jobs in sorted(stuck.items()):
        found.append(PartView(kind="partition", id=name, state="stuck", reason=_stuck(jobs), fix=f"rmgr explain {jobs[0][0].id}"))
    for name, jobs in sorted(hopeless.items())[:_SHOWN]:
        reason, fix = f"{name}: {_stuck(jobs)}".removeprefix(": "), f"rmgr explain {jobs[0][0].id}"
        found.append(PartView(kind="user", id=name, state="infeasible", reason=reason, fix=fix, level=Level.WARNING))
    if (more := len(hopeless) - _SHOWN) > 0:
        reason = f"work of {counted(more, 'more user')} waits that no node can run"
        found.append(PartView(kind="user", id="", state="infeasible", reason=reason, fix="rmgr jobs -A", level=Level.WARNING))
    if any(view.state == NodeState.UP for view in views):
        used = {queue.partition for queue in snapshot.settings.queues} - stuck.keys()
        for name in sorted(used):
            if not any(view.state == NodeState.UP for view in here[name]):
                reason = nobody_up(here[name], name)
                found.append(PartView(kind="partition", id=name, state="empty", reason=reason, fix="rmgr nodes", level=Level.WARNING))
    return found


def _stuck(jobs: Sequence[tuple[JobView, int, str]]) -> str:
    first, _, why = jobs[0]
    return f"{_tasks(sum(count for _, count, _ in jobs))} that no node can run, {first.id} first: {why}"


def _tasks(count: int) -> str:
    return f"{count} task{'s wait' if count != 1 else ' waits'}"


def _cannot(snapshot: ClusterSnapshot, views: Sequence[NodeView], submission: Submission, queue: QueueSpec) -> tuple[str, bool]:
    """Returns why no node that takes work could run it, even empty, "" if one could; and whether that is its user's matter alone.

    It is if no known node would run it, or if nodes refuse the user: why these refuse is told of them. views: of its partition.
    """
    takes = [view for view in views if view.state == NodeState.UP]
    if not takes:
        return nobody_up(views, queue.partition), False
    if why := _why_no_room(snapshot, views, submission, queue):
        return why, not _has_room(snapshot, views, submission, queue)
    refused = refused_whys(snapshot, takes, submission.user)
    if refused and _why_no_room(snapshot, [view for view in views if view.id not in refused], submission, queue):
        return f"node {next(iter(refused))} cannot run work of user {submission.user}: {next(iter(refused.values())).detail}", True
    return "", False


def _why_no_room(snapshot: ClusterSnapshot, views: Sequence[NodeView], submission: Submission, queue: QueueSpec) -> str:
    """Returns what these nodes lack, "" if those that take work have it."""
    if queue.dispatch is Dispatch.PLACE:
        return "; ".join(why.detail for why in room_whys(views, submission.request, submission.rigid, queue.partition))
    is_able = any(view.state == NodeState.UP and can_run(snapshot, view, submission) for view in views)
    return "" if is_able else unfit(snapshot, views, submission)


def _has_room(snapshot: ClusterSnapshot, views: Sequence[NodeView], submission: Submission, queue: QueueSpec) -> bool:
    """Returns whether these nodes could run it if all of them were up and empty."""
    if queue.dispatch is not Dispatch.PLACE:
        return any(can_run(snapshot, view, submission) for view in views)
    rigid = submission.rigid or Rigid()
    return _fits(sorted((room for _, room in _able(views, submission.request, rigid)), reverse=True), rigid)


def can_run(snapshot: ClusterSnapshot, view: NodeView, submission: Submission) -> bool:
    """Returns whether the empty node has room for one of its tasks, and the features that it asks for."""
    request = submission.request
    return snapshot.nodes[view.id].capacity.fits(request) and set(request.features) <= set(view.features)


def unfit(snapshot: ClusterSnapshot, views: Sequence[NodeView], submission: Submission) -> str:
    """Says that no node that takes work fits pulled work, and which others would. views: of its partition, some of them up."""
    request, needs = submission.request, needs_of(submission.request.resources)
    up = [view for view in views if view.state == NodeState.UP]
    detail = f"none of {counted(len(up), 'node')} up fits {counted(request.cores, 'core')}, {request.memory_bytes // (1024 * 1024)} MiB"
    detail += "".join(f", {count} {name}" for name, count in needs)
    detail += f", features {','.join(request.features)}" if request.features else ""
    detail += kept_for_calls(views)
    out = [view for view in views if view.state != NodeState.UP and can_run(snapshot, view, submission)]
    told = [f"{view.id} would, and is {state_words(view)}{f' ({view.reason})' if view.reason else ''}: {view.fix}" for view in out[:_SHOWN]]
    return "; ".join([detail, *told]) + (f"; and {len(out) - _SHOWN} more" if len(out) > _SHOWN else "")


def refused_whys(snapshot: ClusterSnapshot, views: Sequence[NodeView], user: str) -> dict[str, WhyView]:
    """Returns, by name, those nodes whose Starters cannot run work of the user: why, and what to type there."""
    found = {}
    for view in views:
        trouble = trouble_of(snapshot, snapshot.nodes[view.id])
        if trouble is not None and user in trouble.refused:
            found[view.id] = WhyView(what="refused", id=view.id, detail=trouble.refused[user])
    return found


def store_whys(snapshot: ClusterSnapshot) -> list[WhyView]:
    """Says that the store is away, so work with values there waits, and the end of running work."""
    if not snapshot.store_problem:
        return []
    detail = f"{snapshot.store_problem}; what needs it waits: {store_fix(snapshot.store_problem)}"
    return [WhyView(what="store", id="", detail=detail)]


def store_fix(problem: str) -> str:
    """Returns what to do about a store that is away, and what that means for work."""
    first = "free some space there" if "no space left" in problem else "start it, or let the daemons reach it: rmgr doctor"
    return f"{first}; running work goes on, its outputs wait on their nodes"


def sentences(found: Sequence[PartView], level: Level) -> tuple[str, ...]:
    """Returns sentences about the parts of one level. Of many nodes in one state, some are named and the others counted."""
    told = []
    seen: Counter[str] = Counter()
    for part in found:
        if part.level != level:
            continue
        if part.kind == "node":
            seen[part.state] += 1
            if seen[part.state] > _SHOWN:
                continue
        told.append(part.told or part.reason)
    told += [f"{state}: {counted(count - _SHOWN, 'more node')}: rmgr nodes" for state, count in seen.items() if count > _SHOWN]
    return tuple(told)


def with_part(view: StatusView, part: PartView) -> StatusView:
    """Returns a status with a part that only the caller knows."""
    told = part.told or part.reason
    problems = (*view.problems, told) if part.level == Level.PROBLEM else view.problems
    warnings = (*view.warnings, told) if part.level == Level.WARNING else view.warnings
    since_us = view.healthy_since_us if view.healthy == (not problems) else 0
    return msgspec.structs.replace(
        view, healthy=not problems, parts=(*view.parts, part), problems=problems, warnings=warnings, healthy_since_us=since_us
    )


def only_known(view: StatusView, may_know: Callable[[str], bool]) -> StatusView:
    """Returns the status without notes on users of whose work the asker may not know."""
    found = tuple(part for part in view.parts if part.kind != "user" or may_know(part.id))
    return msgspec.structs.replace(view, parts=found, warnings=sentences(found, Level.WARNING))


def unreached(endpoints: Mapping[str, str]) -> tuple[PartView, ...]:
    """Returns a warning for nodes whose Starters work but cannot be reached at their endpoints. endpoints: by node."""
    if not endpoints:
        return ()
    named = [f"{node} at {endpoint}" for node, endpoint in sorted(endpoints.items())]
    more = f", and {len(named) - _SHOWN} more" if len(named) > _SHOWN else ""
    lacks = "their output comes late, and terminals and ranks of jobs on several nodes do not work there"
    reason = f"the leader does not reach {'node ' if len(named) == 1 else 'nodes '}{', '.join(named[:_SHOWN])}{more}: {lacks}"
    fix = 'a firewall, or [starter] listen there: listen = "ADDRESS:0" with the address of the machine; rmgr doctor looks from here'
    return (PartView(kind="nodes", id="", state="unreached", reason=reason, fix=fix, level=Level.WARNING),)


def wrong_clock(host: str, fault: str) -> PartView:
    """Returns a warning for a leader's machine whose clock is wrong. fault: how, as `ZooKeeperClock.fault`."""
    reason = f"the clock of the leader's machine {host} is {fault}; the leader goes by ZooKeeper's"
    fix = "set the wrong one of the two right: chrony or systemd-timesyncd there"
    return PartView(kind="leader", id="", state="clock", reason=reason, fix=fix, level=Level.WARNING)


def of_servers(view: StatusView) -> StatusView:
    """Returns the status of a cluster that serves calls: without a Starter it still does its job.

    Only if no Starter was ever started, or all were stopped in good order; waiting work is a problem of its own (`_waiting`).
    """
    if any(count for state, count in view.nodes.items() if state != NodeState.DOWN):
        return view
    message = "no Starter: submitted work waits"
    calm = PartView(kind="nodes", id="", state="none", reason=message, fix="rmgr starter on a machine runs it", level=Level.WARNING)
    found = tuple(calm if (part.kind, part.state) == ("nodes", "none") else part for part in view.parts)
    problems = sentences(found, Level.PROBLEM)
    return msgspec.structs.replace(
        view, healthy=not problems, parts=found, problems=problems, warnings=sentences(found, Level.WARNING)
    )


def _on(record: NodeRecord) -> str:
    return f" on {record.host}" if record.host else ""


# -- nodes that a job waits for and that are missing, and why ------------------------------------------------------------------


_DRAINED = frozenset({NodeState.DRAINING, NodeState.DRAINED})


def state_words(view: NodeView) -> str:
    """Returns the state of a node in words: `up`, `quarantined until 2026-11-22T16:04:12Z`."""
    return f"{view.state} until {utc(view.until_us)}" if view.state == NodeState.QUARANTINED and view.until_us else str(view.state)


def _resumable(views: Sequence[NodeView]) -> list[str]:
    """Returns the nodes that an operator has drained."""
    return [view.id for view in views if view.state in _DRAINED and not view.trouble]


def nobody_up(views: Sequence[NodeView], partition: str) -> str:
    """Says why no node of the partition takes work, and what to type. views: its nodes, none of them up."""
    drained, out = _resumable(views), [view for view in views if view.trouble]
    if not views:
        return f"no node of partition {partition} is up: it has none yet; rmgr starter on a machine adds one"
    if len(drained) == len(views):
        hint = f"rmgr resume {drained[0]}"
    elif out:
        hint = "they come back by themselves once that is over" + (f", or rmgr resume {drained[0]}" if drained else "") + "; rmgr nodes"
    else:
        hint = "start their Starters" + (f", or rmgr resume {drained[0]}" if drained else "") + "; rmgr nodes"
    return f"no node of partition {partition} is up: {_node_states(views)}: {hint}"


def nobody_up_anywhere(views: Sequence[NodeView]) -> str:
    """Says the same of a whole cluster."""
    drained = _resumable(views)
    if any(view.trouble for view in views):
        return f"no node takes work: {_node_states(views)} (they come back by themselves once that is over; rmgr nodes)"
    if drained:
        return f"no node takes work: {_node_states(views)} (rmgr resume {drained[0]}, or start another one: rmgr starter)"
    return "no node is up: nothing can run (start one: rmgr starter)"


def allowed_whys(views: Sequence[NodeView], rigid: Rigid | None) -> list[WhyView]:
    """Describes the current nodes of `--nodelist`: what other nodes have does not matter to a job that waits for these."""
    if rigid is None or not rigid.nodelist:
        return []
    known = {view.id: view for view in views}
    parts = []
    for name in rigid.nodelist[:_SHOWN]:
        view = known.get(name)
        if view is None:
            parts.append(f"{name} is not known")
        else:
            free = max(0, view.cores - view.cores_used)
            parts.append(f"{name} is {_state(view)}, {free} of its {counted(view.cores, 'core')} free")
    return [WhyView(what="nodelist", id=",".join(rigid.nodelist[:_SHOWN]), detail="; ".join(parts) + _more(len(rigid.nodelist)))]


def room_whys(views: Sequence[NodeView], request: Request, rigid: Rigid | None, partition: str) -> list[WhyView]:
    """Says that the job cannot start even on empty nodes, and which nodes are missing. views: of its partition, some of them up."""
    rigid = rigid or Rigid()
    able = _able(views, request, rigid)
    rooms = sorted((room for view, room in able if view.state == NodeState.UP), reverse=True)
    if _fits(rooms, rigid):
        return []
    gone = [view for view, _ in able if view.state != NodeState.UP]
    drained = _resumable(gone)
    starts = gone and not any(view.trouble for view in gone)
    hint = f"rmgr resume {drained[0]}" if drained else "start their Starters; rmgr nodes" if starts else "rmgr nodes"
    detail = f"the nodes that are up have room for {sum(rooms)} of its {counted(rigid.processes, 'process')}"
    if sum(rooms) >= rigid.processes:
        detail = f"too few nodes are up for {counted(rigid.processes, 'process')}, spread over {counted(rigid.nodes, 'node')}"
    kept = kept_for_calls(views) + (f"; {_node_states(gone)}" if gone else "")
    return [WhyView(what="nodes", id=partition, detail=f"{detail}, even when they are empty{kept}: {hint}")]


def kept_for_calls(views: Sequence[NodeView]) -> str:
    """Returns `; n1 keeps 2 of its 8 cores for calls` for nodes that are up, where nodes turn out too small."""
    kept = [view for view in views if view.call_cores and view.state == NodeState.UP]
    told = (f"{view.id} keeps {view.call_cores} of its {view.cores + view.call_cores} cores for calls" for view in kept[:_SHOWN])
    return "".join(f"; {words}" for words in told) + _more(len(kept))


def _able(views: Sequence[NodeView], request: Request, rigid: Rigid) -> list[tuple[NodeView, int]]:
    """Returns the nodes that could have some of its processes, and how many when empty."""
    wanted = set(request.features)
    return [
        (view, room)
        for view in views
        if wanted <= set(view.features) and view.id not in rigid.exclude and (not rigid.nodelist or view.id in rigid.nodelist)
        if (room := _processes_in(view, request))
    ]


def _processes_in(view: NodeView, request: Request) -> int:
    """Returns how many of its processes the empty node takes."""
    room = view.cores // max(1, request.cores)
    if request.memory_bytes and view.memory_bytes:
        room = min(room, view.memory_bytes // request.memory_bytes)
    return min([room, *(view.resources.get(name, 0) // count for name, count in needs_of(request.resources))])


def _fits(rooms: Sequence[int], rigid: Rigid) -> bool:
    """Returns whether the job fits. rooms: of each node, descending."""
    if not rigid.nodes:
        return sum(rooms) >= rigid.processes
    return len(rooms) >= rigid.nodes and rooms[rigid.nodes - 1] >= -(-rigid.processes // rigid.nodes)


def _node_states(views: Sequence[NodeView]) -> str:
    return ", ".join(f"{view.id} {_state(view)}" for view in views[:_SHOWN]) + _more(len(views))


def _state(view: NodeView) -> str:
    return f"{state_words(view)} ({view.reason})" if view.reason else state_words(view)


def _more(count: int) -> str:
    return f", and {count - _SHOWN} more" if count > _SHOWN else ""


# -- certificates that end soon: owners, dates, and what to type before ---------------------------------------------------------


#: Days before its end from which a certificate is a warning.
SOON_DAYS = 14
_DAY_S = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class CertificateHolder:
    """Owner of a certificate. role: as in the certificate. is_person: a user or an operator, who has nothing to restart."""

    role: str
    name: str
    is_person: bool = False


def ending(ends_s: Mapping[CertificateHolder, float], now_s: float) -> tuple[PartView, ...]:
    """Returns a warning for each that ends within `SOON_DAYS`, and a problem for each that has ended; the first to end first.

    Args: ends_s: when the first certificate of each owner ends, seconds since 1970.
    """
    soon = sorted((at_s, holder) for holder, at_s in ends_s.items() if at_s - now_s < SOON_DAYS * _DAY_S)
    found = [_part(holder, at_s, now_s) for at_s, holder in soon[:_SHOWN]]
    if more := soon[_SHOWN:]:
        is_over = any(at_s <= now_s for at_s, _ in more)
        reason = f"{counted(len(more), 'more certificate')} end within {SOON_DAYS} days"
        level = Level.PROBLEM if is_over else Level.WARNING
        found.append(PartView(kind="certificate", id="", state="ends", reason=reason, fix="rmgr admin rotate tls --help", level=level))
    return tuple(found)


def _part(holder: CertificateHolder, at_s: float, now_s: float) -> PartView:
    left_days = (at_s - now_s) / _DAY_S
    day = dt.datetime.fromtimestamp(at_s, dt.UTC).strftime("%Y-%m-%d")
    when = f"in {counted(int(left_days), 'day')}" if left_days >= 1 else "within a day"
    message = f"ends {when} ({day})" if left_days > 0 else f"has ended ({day})"
    if holder.is_person:
        fix = f"ask the cluster's admin for a new bundle: rmgr admin add-user {holder.name}"
    else:
        renew = f"rmgr admin add-node {holder.name} --role {holder.role} --renew"
        fix = f"{renew} (where its bundle lies: rmgr admin rotate tls DIR), then restart it"
    return PartView(
        kind="certificate",
        id=f"{holder.role} {holder.name}",
        state="ends" if left_days > 0 else "ended",
        reason=f"the certificate of {holder.role} {holder.name} {message}",
        fix=fix,
        level=Level.WARNING if left_days > 0 else Level.PROBLEM,
    )
