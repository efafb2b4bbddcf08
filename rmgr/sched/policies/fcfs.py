"""Order: first come, first served.

Algorithm: 1. the earliest submit time first; 2. at equal times the smaller job id.
Parameters: none. Source: papers.md 2.2 (FCFS). Differs from it in: nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from rmgr.sched.draft import Draft
from rmgr.sched.job import Job


@dataclass(frozen=True, slots=True)
class Fcfs:
    name: ClassVar[str] = "fcfs"

    def arrange(self, draft: Draft) -> Iterator[Job]:
        return draft.by_arrival()
