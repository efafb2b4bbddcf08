"""Says in which order a node acts, and what it leaves out in which mode: the table that `NodeAgent.settle` runs. Pure.

A turn looks at everything and does what can be done, so no event is lost: facts only wake it. The order is the algorithm, therefore each
step says why it stands where it does.
"""

from __future__ import annotations

from enum import StrEnum


class NodeMode(StrEnum):
    """Permissions of a node at this moment."""

    WORKS = "works"
    BEHIND = "behind"  #: outputs wait for the store: it claims nothing more
    FULL = "full"  #: outputs fill the memory: nothing new begins either
    DRAINS = "drains"  #: it takes nothing new, and gives back what has not begun


class NodeStep(StrEnum):
    """A part of a turn."""

    TAKE_HANDED = "take-handed"
    BAR = "bar"
    GIVE_BACK_REFUSED = "give-back-refused"
    REOPEN = "reopen"
    CHARGE = "charge"
    TURNS = "turns"
    BEGIN = "begin"
    GRANT = "grant"
    CLAIM = "claim"
    REST = "rest"
    COMMIT = "commit"
    REPAIR_CLAIMS = "repair-claims"
    MARK_IDLE = "mark-idle"
    SPLIT = "split"
    LEVEL = "level"
    FLUSH_LOGS = "flush-logs"
    DISMISS = "dismiss"
    OBEY = "obey"
    SHOW = "show"


_ALWAYS = frozenset(NodeMode)
_BEGINS = frozenset({NodeMode.WORKS, NodeMode.BEHIND})
_CLAIMS = frozenset({NodeMode.WORKS})

#: (step, modes in which it is taken), in their order.
STEPS: tuple[tuple[NodeStep, frozenset[NodeMode]], ...] = (
    # What a client hands over lies here already: it comes before all that would be fetched.
    (NodeStep.TAKE_HANDED, _ALWAYS),
    # What may not begin any more (ended, revoked, draining) is out of the way before anything is begun ...
    (NodeStep.BAR, _ALWAYS),
    # ... and so is work of users whom this node cannot serve: it goes back while others may take it.
    (NodeStep.GIVE_BACK_REFUSED, _ALWAYS),
    # Slots that were lost are there again before work looks for one.
    (NodeStep.REOPEN, _ALWAYS),
    # Cores that blocked tasks use are not free: this is known before any are given to others.
    (NodeStep.CHARGE, _ALWAYS),
    # Parts of gangs that are over leave their slots before others begin; what goes on has its slots also where nothing begins any more.
    (NodeStep.TURNS, _ALWAYS),
    # Placed jobs first: what the leader has assigned outranks pulled work. Then what is here gets the slots that are free.
    (NodeStep.BEGIN, _BEGINS),
    # Nothing new begins, but a task that waits for its cores gets them: its end is what makes room.
    (NodeStep.GRANT, _ALWAYS - _BEGINS),
    # After BEGIN: how much lasts long enough is known only when the slots have taken theirs.
    (NodeStep.CLAIM, _CLAIMS),
    # Who claims nothing is not hungry: no other node gives anything away for its sake.
    (NodeStep.REST, _ALWAYS - _CLAIMS),
    # After CLAIM: a COMPLETE can carry the mark of a node that has just found nothing to claim.
    (NodeStep.COMMIT, _ALWAYS),
    (NodeStep.REPAIR_CLAIMS, _ALWAYS),
    # The mark by itself: only if no COMPLETE has taken it along.
    (NodeStep.MARK_IDLE, _ALWAYS),
    # Others get what is left when this node's own slots have theirs and no commit of the block is under way.
    (NodeStep.SPLIT, _ALWAYS),
    # Backlogs of lanes differ by now: those that wait behind a long task move.
    (NodeStep.LEVEL, _ALWAYS),
    # What running work has written can wait longest.
    (NodeStep.FLUSH_LOGS, _ALWAYS),
    # Workers that nobody will ask for cost memory only.
    (NodeStep.DISMISS, _ALWAYS),
    # An order is crossed off when what it asks for has been done above.
    (NodeStep.OBEY, _ALWAYS),
    (NodeStep.SHOW, _ALWAYS),
)


def steps_of(mode: NodeMode) -> tuple[NodeStep, ...]:
    """Steps of a turn, in their order."""
    return tuple(step for step, modes in STEPS if mode in modes)


def mode_of(*, drains: bool, full: bool, behind: bool) -> NodeMode:
    """The strictest that applies."""
    if drains:
        return NodeMode.DRAINS
    if full:
        return NodeMode.FULL
    return NodeMode.BEHIND if behind else NodeMode.WORKS
