"""Says why the nodes are missing that a job waits for: none or too few of a partition take work, or the request allows no others."""

from __future__ import annotations

from collections.abc import Sequence

from rmgr.model.base.resources import Request, needs_of
from rmgr.model.base.units import counted, utc
from rmgr.model.cluster.node import NodeState
from rmgr.model.tasks.placing import Rigid
from rmgr.model.views import NodeView, WhyView

#: Nodes that are named; of more, how many.
_SHOWN = 8
_DRAINED = frozenset({NodeState.DRAINING, NodeState.DRAINED})


def state_words(view: NodeView) -> str:
    """State of a node in words: `up`, `quarantined until 2026-11-22T16:04:12Z`."""
    return f"{view.state} until {utc(view.until_us)}" if view.state == NodeState.QUARANTINED and view.until_us else str(view.state)


def _resumable(views: Sequence[NodeView]) -> list[str]:
    """Nodes that an operator has drained."""
    return [view.id for view in views if view.state in _DRAINED and not view.trouble]


def nobody_up(views: Sequence[NodeView], partition: str) -> str:
    """Why no node of the partition takes work, and what to type. views: its nodes, none of them up."""
    drained, out = _resumable(views), [view for view in views if view.trouble]
    if not views:
        return f"no node of partition {partition} is up: it has none yet; rmgr starter on a machine adds one"
    if len(drained) == len(views):
        hint = f"rmgr resume {drained[0]}"
    elif out:
        hint = "they come back by themselves once that is over" + (f", or rmgr resume {drained[0]}" if drained else "") + "; rmgr nodes"
    else:
        hint = "start their Starters" + (f", or rmgr resume {drained[0]}" if drained else "") + "; rmgr nodes"
    return f"no node of partition {partition} is up: {_told(views)}: {hint}"


def nobody_up_anywhere(views: Sequence[NodeView]) -> str:
    """The same, of a whole cluster."""
    drained = _resumable(views)
    if any(view.trouble for view in views):
        return f"no node takes work: {_told(views)} (they come back by themselves once that is over; rmgr nodes)"
    if drained:
        return f"no node takes work: {_told(views)} (rmgr resume {drained[0]}, or start another one: rmgr starter)"
    return "no node is up: nothing can run (start one: rmgr starter)"


def allowed_whys(views: Sequence[NodeView], rigid: Rigid | None) -> list[WhyView]:
    """The nodes of `--nodelist`, as they are now: a job that waits for them is not told by what the others have."""
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
    """That it cannot start even when everything else has ended, and which nodes are missing. views: of its partition, some of them up."""
    rigid, wanted = rigid or Rigid(), set(request.features)
    able = [
        (view, room)
        for view in views
        if wanted <= set(view.features) and view.id not in rigid.exclude and (not rigid.nodelist or view.id in rigid.nodelist)
        if (room := _room(view, request))
    ]
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
    kept = kept_for_calls(views) + (f"; {_told(gone)}" if gone else "")
    return [WhyView(what="nodes", id=partition, detail=f"{detail}, even when they are empty{kept}: {hint}")]


def kept_for_calls(views: Sequence[NodeView]) -> str:
    """`; n1 keeps 2 of its 8 cores for calls`: of those that are up, for who is told that they are too small."""
    kept = [view for view in views if view.call_cores and view.state == NodeState.UP]
    told = (f"{view.id} keeps {view.call_cores} of its {view.cores + view.call_cores} cores for calls" for view in kept[:_SHOWN])
    return "".join(f"; {words}" for words in told) + _more(len(kept))


def _room(view: NodeView, request: Request) -> int:
    """How many of its processes the empty node takes."""
    room = view.cores // max(1, request.cores)
    if request.memory_bytes and view.memory_bytes:
        room = min(room, view.memory_bytes // request.memory_bytes)
    return min([room, *(view.resources.get(name, 0) // count for name, count in needs_of(request.resources))])


def _fits(rooms: Sequence[int], rigid: Rigid) -> bool:
    """rooms: of each node, descending."""
    if not rigid.nodes:
        return sum(rooms) >= rigid.processes
    return len(rooms) >= rigid.nodes and rooms[rigid.nodes - 1] >= -(-rigid.processes // rigid.nodes)


def _told(views: Sequence[NodeView]) -> str:
    return ", ".join(f"{view.id} {_state(view)}" for view in views[:_SHOWN]) + _more(len(views))


def _state(view: NodeView) -> str:
    return f"{state_words(view)} ({view.reason})" if view.reason else state_words(view)


def _more(count: int) -> str:
    return f", and {count - _SHOWN} more" if count > _SHOWN else ""
