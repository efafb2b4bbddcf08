"""Order: largest job first.

Algorithm: 1. more CPUs (processes x threads) first; 2. at equal CPUs the earlier submit time; 3. then the smaller job id.
Parameters: none. Source: papers.md 2.2 (LJF). Differs from it in: nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from rmgr.sched.draft import Draft
from rmgr.sched.job import Job


@dataclass(frozen=True, slots=True)
class Ljf:
    name: ClassVar[str] = "ljf"
    waives: ClassVar[Mapping[str, str]] = {"endless": "papers.md 2.6: starvation that comes from sorting the queue; max_wait cures it"}

    def key(self, job: Job) -> tuple[int, ...]:
        return (-job.cpus, job.submit_us, job.id)

    def arrange(self, draft: Draft) -> Iterator[Job]:
        return draft.sorted_by(self)
