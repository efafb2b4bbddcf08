"""Tells the scheduler's state what has happened, writes it into the event log, and gathers why a pass is due."""

from __future__ import annotations

from collections.abc import Callable

from rmgr.daemons.leader.records.record import Recording
from rmgr.sched.policy import Cause
from rmgr.sched.state.cluster import ClusterState


class StateUpdates:
    """All facts of one leadership go through it. In the leader's loop.

    Args: wall_us: the wall's clock. wake: asks for a turn of placement; often called, once done.
    Attributes: causes: why the next pass is due. log: of events.
    """

    def __init__(self, log: Recording, wall_us: Callable[[], int], wake: Callable[[], None]) -> None:
        self.log = log
        self.wake = wake
        self.causes: frozenset[Cause] = frozenset()
        self._wall_us = wall_us
        self._now_us = wall_us()

    def now_us(self) -> int:
        """The scheduler's clock: the wall's, never going back."""
        self._now_us = max(self._now_us, self._wall_us())
        return self._now_us

    def tell(self, state: ClusterState, fact: str, *arguments: object, **named: object) -> None:
        """One fact: into the state, and into the log."""
        getattr(state, fact)(*arguments, **named)
        self.log.told(self._now_us, fact, *arguments, **named)

    def because(self, cause: Cause) -> None:
        """Something has happened that the next pass must look at."""
        self.causes |= {cause}

    def take_causes(self) -> frozenset[Cause]:
        """Why this pass is made; the next one needs new ones."""
        causes, self.causes = self.causes, frozenset()
        return causes

    def end_log(self) -> None:
        """The state is not believed any more, or the leadership is over."""
        self.log.end(self._now_us)
