"""Server selection: LOAD. A call goes where load and performance promise most: least (L + 1) / P; transfer does not count.

Parameters: add_load (+L: every call sent adds 1 to the load known of its server, until that is measured again).
Source: papers.md 4.1. Differs from it in: a server of k slots counts max(1, (L + 1) / k) for L + 1 (k = 1: nothing).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from rmgr.sched.draft import Draft
from rmgr.sched.parameters import about
from rmgr.sched.plan import Why
from rmgr.sched.policies.servers.choosing import Choosing, Option
from rmgr.sched.predictors.forecast import Added
from rmgr.sched.records import Call


@dataclass(frozen=True, slots=True)
class Load(Choosing):
    name: ClassVar[str] = "load"
    add_load: bool = field(default=False, metadata=about("count calls that were sent since the measurement (+L)"))

    def added(self, sent: int) -> Added:
        return Added(load=sent if self.add_load else 0)

    def choose(self, draft: Draft, call: Call, options: Sequence[Option]) -> tuple[Option, Why]:  # noqa: ARG002 - of the servers alone
        best = min(options, key=lambda option: option.forecast.sharing / option.speed)
        return best, Why("load", "{} has least load for its performance", (best.server.name,))
