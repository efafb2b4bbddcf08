"""Estimates how long tasks take on this node, and what follows: how many to claim, how many to hand to a slot at once. Pure.

A Starter keeps about `AHEAD_S` of work claimed beyond what runs, so that its slots never wait for a commit, and no more,
so that others find work in the queue. Until a task of its kind has ended here a block's tasks are claimed one a free slot.
"""

from __future__ import annotations

#: Work claimed beyond what runs, in seconds of all slots.
AHEAD_S = 0.2
#: Tasks claimed beyond what runs, for each of their kind that has ended.
GROWTH = 8
#: Work handed to a slot in one message, in seconds of that slot.
BATCH_S = 0.03
#: A slot with less than this to do is handed more.
LOW_S = 0.01
#: The same for a slot that runs commands, whose spawner tells of their ends every 10 ms.
LOW_COMMANDS_S = 0.02
#: Most tasks in one message.
BATCH_TASKS = 128
#: What a task costs a slot besides its own run time.
OVERHEAD_S = 60e-6
#: Weight of one observed task.
_WEIGHT = 0.1
#: Kinds whose times are remembered.
_REMEMBERED = 4096


#: What tasks that take similar times have in common: a function's hash, a command, else their submission.
Kind = str | int


class TaskTimes:
    """Smoothed run time of the tasks of each kind, newest kinds kept."""

    def __init__(self) -> None:
        self._times: dict[Kind, float] = {}
        self._ended: dict[Kind, int] = {}

    def observe(self, kind: Kind, tasks: int, busy_s: float) -> None:
        """`tasks` tasks ended after `busy_s` of slot time in all. Cost: O(1)."""
        mean = busy_s / tasks + OVERHEAD_S
        known = self._times.get(kind)
        if known is None:
            if len(self._times) >= _REMEMBERED:
                oldest = next(iter(self._times))
                del self._times[oldest], self._ended[oldest]
            self._times[kind], self._ended[kind] = mean, tasks
            return
        keep = (1 - _WEIGHT) ** min(tasks, 100)
        self._times[kind] = known * keep + mean * (1 - keep)
        self._ended[kind] += tasks

    def of(self, kind: Kind) -> float | None:
        """Seconds of slot time a task takes, None when none has ended here."""
        return self._times.get(kind)

    def ended(self, kind: Kind) -> int:
        """How many have ended here."""
        return self._ended.get(kind, 0)


def claim_size(
    *, count: int, serial: bool, at_most_once: bool, free: int, slots: int, task_s: float | None, ended: int, ahead_s: float
) -> int:
    """How many tasks of a waiting block to claim now, 0 = none yet.

    Args:
        count: tasks in the block. serial: taken whole, it uses one slot. at_most_once: a claim means a start.
        free: tasks of this shape that could start at once. slots: how many of them an empty node runs.
        task_s: measured time of a task, None = unknown. ended: tasks of its kind that have ended here.
        ahead_s: claimed and not started, in seconds of slot time; infinite when its length is unknown.
    """
    if serial:
        return count if free > 0 else 0
    if at_most_once or task_s is None:
        return min(count, max(0, free))
    if ahead_s >= AHEAD_S * slots:
        return min(count, free)
    # What a submission with a few quick tasks in front of long ones can hoard is bounded by how many have ended.
    ahead = min(AHEAD_S * slots - ahead_s, (GROWTH * ended + slots) * task_s - ahead_s)
    return min(count, max(free, int(ahead / task_s)))


def wants_more(*, free: int, slots: int, ahead_s: float) -> bool:
    """It is time to claim: a slot is free, or the work ahead has fallen to half of what it should be."""
    return free > 0 or ahead_s < AHEAD_S * slots / 2


def batch_size(*, ready: int, slots: int, task_s: float | None) -> int:
    """How many of `ready` tasks to hand to one of `slots` slots in one message.

    One while their time is unknown; never so many that the other slots would find nothing.
    """
    if task_s is None or ready <= 1:
        return min(ready, 1)
    share = -(-ready // max(1, slots))
    return max(1, min(int(BATCH_S / task_s), share, BATCH_TASKS))
