"""Order: the job's own priority.

Algorithm: 1. the larger priority first; 2. at equal priority the earlier submit time; 3. then the smaller job id.
Parameters: none. Source: Slurm's habit. Differs from it in: a fixed number per job, no factors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from rmgr.sched.draft import Draft
from rmgr.sched.job import Job


@dataclass(frozen=True, slots=True)
class Priority:
    name: ClassVar[str] = "priority"
    waives: ClassVar[Mapping[str, str]] = {"endless": "a larger priority goes first, however long the smaller one waits; max_wait cures it"}

    def key(self, job: Job) -> tuple[int, ...]:
        return (-job.priority, job.submit_us, job.id)

    def arrange(self, draft: Draft) -> Iterator[Job]:
        return draft.sorted_by(self)
