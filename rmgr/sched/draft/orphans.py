"""Clears up after policies that have left the pipeline: the engine does it before the policies of this pass plan.

Notes and holds of theirs go, promises are taken back, gangs turn on until their jobs have ended (`Overlay`). A job that such a policy has
stopped in place would stand still for ever: it goes on as soon as its cores are free. Until then what is free of them is given to nobody
else, and promises that count on them are taken back (their policies make them again in this pass, around it). So it waits at most for the
runs, and the holds, that have its cores.
"""

from __future__ import annotations

from collections.abc import Container
from functools import partial

from rmgr.sched.draft.move import STANDS_STILL, Moving
from rmgr.sched.draft.overlay import ABANDONED, IN_ITS_WAY
from rmgr.sched.job import Job, Placement, Running
from rmgr.sched.plan import Accepted, Unreserve
from rmgr.sched.records import Suspended


class Inheriting(Moving):
    """A part of `Draft`; the engine's."""

    __slots__ = ()

    def inherit(self, keepers: Container[str]) -> None:
        """Lets go on what no policy of the pipeline has stopped. Cost: O(suspended jobs), and of each such job that of its placement."""
        for stopped in sorted(self._part.suspended.values(), key=_since):
            job_id = stopped.run.job.id
            if not any(policy in keepers for policy in self._noted(STANDS_STILL, job_id)):
                self._go_on(stopped.run)

    def _go_on(self, run: Running) -> None:
        job_id = run.job.id
        if isinstance(self.resume(job_id, ABANDONED), Accepted):
            return
        if self._pool.can_resume(run.job, run.placement):
            self._take_back_promises()
            self.resume(job_id, ABANDONED)  # a limit, or a window of maintenance, may be in its way: that passes
            return
        self._keep_cores(run)

    def _keep_cores(self, run: Running) -> None:
        """Nobody else gets what is free of its cores in this pass."""
        more, pool = self._changes(), self._pool
        for first, last, processes in run.placement:
            for node in range(first, last + 1):
                wanted = self._part.nodes[node].cores if run.job.exclusive else processes * run.job.threads
                where: Placement = ((node, node, 1),)
                free = next((count for count in range(wanted, 0, -1) if pool.holds(_cores(count), where)), 0)
                if free:
                    pool.take(_cores(free), where)
                    more.did(partial(pool.give, _cores(free), where))
        self._look_again()
        if self._timeline is not None and self._timeline.overdrawn:
            self._take_back_promises()

    def _take_back_promises(self) -> None:
        for job_id in sorted(self._promises):
            self.decisions.append(Unreserve(job_id, IN_ITS_WAY, self.partition))
        self._promises.clear()
        self._look_again()


def _cores(count: int) -> Job:
    """Stands for so many cores of a node."""
    return Job(id=0, submit_us=0, threads=count)


def _since(stopped: Suspended) -> tuple[int, int]:
    return (stopped.since_us, stopped.run.job.id)
