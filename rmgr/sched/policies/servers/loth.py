"""Server selection: LOTH (load and throughput). A call goes to the server that is expected to answer it first.

Algorithm: least operations / (P / (L + 1)) + bytes / T.
Parameters: add_load (+L: every call sent adds 1 to L until the server is measured again), share_link (+T: T is divided by 1 + the calls
sent to the server since it was measured, of all clients).
Source: papers.md 4.1. Differs from it in: nothing for servers of one slot.
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
class Loth(Choosing):
    name: ClassVar[str] = "loth"
    add_load: bool = field(default=False, metadata=about("count calls that were sent since the measurement as load (+L)"))
    share_link: bool = field(default=False, metadata=about("divide the throughput among calls sent since the measurement (+T)"))

    def added(self, sent: int) -> Added:
        return Added(load=sent if self.add_load else 0, sharing=sent if self.share_link else 0)

    def choose(self, draft: Draft, call: Call, options: Sequence[Option]) -> tuple[Option, Why]:  # noqa: ARG002 - all is in the options
        return soonest(options)


def soonest(options: Sequence[Option]) -> tuple[Option, Why]:
    """The option with the least forecast, the first of equals."""
    best = min(options, key=lambda option: option.forecast.total_s)
    computing, transfer, _ = best.forecast
    return best, Why(
        "loth", "{} is expected to take {:.3f} s of computing and {:.3f} s of transfer", (best.server.name, computing, transfer)
    )
