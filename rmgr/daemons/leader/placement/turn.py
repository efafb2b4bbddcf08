"""The order of one turn of placement, as a table: what is done, after what, and what ends the turn early. The placer runs it.

A turn begins when no pass and no plan is under way, so that the scheduler's state is the loop's alone. It ends with at most one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import TypeAlias

from rmgr.errors import StateConflict
from rmgr.sched.state.cluster import ClusterState


class TurnStep(Enum):
    """Steps of a turn, in this order. The state is there: it was made of znodes before the first one."""

    #: Another pipeline places than the log says: a new log, before a fact is written into it.
    OPEN_LOG = auto()
    #: Jobs that are not on their nodes any more. First of the facts: what they free is there for whoever comes.
    TELL_ENDS = auto()
    #: Jobs that were asked to leave their nodes: they have ended, or go on. After ends, which say who has left.
    TELL_STOPS = auto()
    #: Nodes that came, went, or are drained. Before arrivals, which may ask for them by name.
    TELL_NODES = auto()
    #: Jobs that have come to wait, or have gone. A job that was stopped comes back here.
    TELL_ARRIVALS = auto()
    #: What is held for jobs that have left is given back: the state is what the lists say by now.
    KEEP_PROMISES = auto()
    #: Requests of users, and jobs that are to give nodes back. Ends the turn when one was sent: its commit comes before a plan.
    ASK_JOBS = auto()
    #: Gangs whose clock another node has by now: their records are set anew. Ends the turn when one was sent.
    SET_CLOCKS = auto()
    #: The policies plan, where one has a reason to. Last: nothing that is known is kept from them.
    PASS = auto()
    MEASURE = auto()


ORDER = tuple(TurnStep)
#: Steps that tell the state facts. One that contradicts it ends the turn: the state is made again.
FACTS = frozenset({TurnStep.TELL_ENDS, TurnStep.TELL_STOPS, TurnStep.TELL_NODES, TurnStep.TELL_ARRIVALS})


@dataclass(frozen=True, slots=True)
class Turn:
    """Inputs of one turn. news: paths of lists to compare. now_us: the time of all facts that it tells."""

    state: ClusterState
    news: Collection[str]
    now_us: int


#: Takes one step. Returns: whether the turn goes on.
Action: TypeAlias = Callable[[Turn], bool]


def in_order(actions: Mapping[TurnStep, Action]) -> tuple[tuple[TurnStep, Action], ...]:
    """Every step with what takes it. Raises: KeyError for one that nothing takes."""
    return tuple((step, actions[step]) for step in ORDER)


def run_turn(turn: Turn, steps: tuple[tuple[TurnStep, Action], ...], conflict: Callable[[str], None]) -> TurnStep:
    """Takes the steps, until one says that the turn is over. Returns: the last one.

    Args: conflict: told why the state is not to be believed any more.
    """
    for step, action in steps:
        try:
            goes_on = action(turn)
        except StateConflict as error:
            if step not in FACTS:
                raise
            conflict(error.message)
            return step
        if not goes_on:
            return step
    return step
