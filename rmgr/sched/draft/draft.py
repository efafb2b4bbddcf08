"""Gives a policy its draft: a view of one partition, an overlay of what this pass has decided, and verbs that are vetted at once.

A verb answers `Accepted`, `Insufficient` (not now) or `Infeasible` (never); only what was accepted is in the plan, so no policy can
over-commit a node, start a job twice, or break a promise that this pass or an earlier one made. The seam on one page:

| to see (`draft/view.py`) | |
|---|---|
| `sorted_by(order)`, `by_arrival()`, `queue(name)`, `queues()` | waiting jobs that could start as far as they themselves are concerned |
| `startable(jobs)`, `fits(job)`, `waiting_count` | which of them could start now |
| `job(id)`, `run(id)`, `running()`, `running_in(queue)`, `suspended()`, `is_pinned(id)` | any job; what runs or stands still; may it move |
| `free_cores`, `idle_nodes`, `nodes`, `room(job, node, cores)` | what is free |
| `promised(id)`, `holds()`, `held_for(id)` | promises |
| `note_of(kind, id)`, `notes(kind)` | what the policy remembers |
| `used_by(user)`, `usage()`, `uncharged(run, now_us)`, `gangs()` | other records |
| `calls()`, `servers()`, `measurements(server)`, `learnt(...)`, `answered()` | calls that want a server, and what is known of servers |
| `now_us`, `seed`, `partition` | of the pass |

| to decide, each with its why | |
|---|---|
| `start`, `reserve`, `unreserve` (`draft/start.py`) | place waiting jobs |
| `migrate`, `preempt`, `suspend`, `resume`, `route`, `reject` (`draft/move.py`) | move jobs |
| `send` (`draft/call.py`) | send calls to servers |
| `hold`, `shrink`, `release` (`draft/hold.py`) | promise the cores of running jobs |
| `gang` (`draft/gang.py`) | share nodes in time |
| `note`, `forget` (`draft/note.py`) | remember |
| `wake_at`, `leave_pending`, `leave_rest`, `fork` (here) | ask for a pass, say why jobs wait, try something |
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rmgr.sched.draft.call import Calling
from rmgr.sched.draft.gang import Ganging
from rmgr.sched.draft.hold import Holding
from rmgr.sched.draft.note import Noting
from rmgr.sched.draft.orphans import Inheriting
from rmgr.sched.draft.start import Starting
from rmgr.sched.plan import Accepted, Verdict, WakeAt, Why


class Trial:
    """A fork of the draft: what is written meanwhile is taken back unless `keep` was called."""

    __slots__ = ("kept",)

    def __init__(self) -> None:
        self.kept = False

    def keep(self) -> None:
        self.kept = True


class Draft(Starting, Inheriting, Holding, Ganging, Calling, Noting):
    """One partition in one pass. It is closed when the pass ends: a policy that kept it cannot use it."""

    __slots__ = ()

    @contextmanager
    def fork(self) -> Iterator[Trial]:
        """What if: `with draft.fork() as trial:` takes back every verb used inside, unless `trial.keep()` was called."""
        trial, mark = Trial(), self.mark()
        try:
            yield trial
        finally:
            if not trial.kept:
                self.back(mark)

    def wake_at(self, at_us: int, why: Why) -> Verdict:
        """Asks for a pass at this time. Infeasible unless it is later than now."""
        self._check_open()
        if not isinstance(at_us, int) or at_us <= self.now_us:
            return self._never(Why("time", "{} us is not after now", (at_us,)))
        self.decisions.append(WakeAt(at_us, why, self.partition))
        return Accepted(at_us)

    def leave_pending(self, job_id: int, why: Why) -> None:
        """Says why this job keeps waiting."""
        self.left[job_id] = why

    def leave_rest(self, why: Why) -> None:
        """Says why every waiting job without a reason of its own keeps waiting."""
        self.rest = why
