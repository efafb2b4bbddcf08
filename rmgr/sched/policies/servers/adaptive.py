"""Server selection that adapts to congestion: LOTH while calls are quick, spreading while they hinder each other.

The paper's second open point: under frequent calls those that interfere least did best (RR), under rare ones those that know most (LOTH).
Algorithm: 1. of the last 20 answered calls the share that took more than `slow` times their time alone; 2. above `spread_above` spread:
calls go round in proportion to performance (least (calls sent in this mode + 1) / P); below `return_below` back to LOTH; between them the
mode stays. Mode and counts are notes.
Parameters: slow (1.5), spread_above (0.6), return_below (0.3). Source: papers.md 4, paper 004 section 4. Differs from it in: all of it is
ours, the paper only asks for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from rmgr.sched.draft import Draft
from rmgr.sched.parameters import about
from rmgr.sched.plan import Why
from rmgr.sched.policies.servers.choosing import Choosing, Option
from rmgr.sched.policies.servers.loth import soonest
from rmgr.sched.policy import Cause
from rmgr.sched.records import Call

_LOTH, _SPREAD = 0, 1


@dataclass(frozen=True, slots=True)
class Adaptive(Choosing):
    name: ClassVar[str] = "adaptive"
    slow: float = field(default=1.5, metadata=about("a call is slow beyond so many times its time alone", least=1, most=1000))
    spread_above: float = field(default=0.6, metadata=about("share of slow calls above which calls are spread", least=0, most=1))
    return_below: float = field(default=0.3, metadata=about("share of slow calls below which LOTH is used again", least=0, most=1))

    def __post_init__(self) -> None:
        """Raises: ValueError where the two shares would make the mode swing; as every policy for calls."""
        super(Adaptive, self).__post_init__()
        if self.return_below > self.spread_above:
            raise ValueError(f"return_below {self.return_below:g} is above spread_above {self.spread_above:g}")

    def plan(self, draft: Draft, causes: frozenset[Cause]) -> None:
        (mode,) = draft.note_of("mode", 0) or (_LOTH,)
        answered = draft.answered()
        if answered:
            slow = sum(one.took_us > self.slow * one.alone_us for one in answered) / len(answered)
            wanted = _SPREAD if slow > self.spread_above else _LOTH if slow < self.return_below else mode
            if wanted != mode:
                draft.note("mode", 0, (wanted,))
                for kind in ("turns " + server.name for server in draft.servers()):
                    draft.forget(kind, 0)
        super(Adaptive, self).plan(draft, causes)

    def choose(self, draft: Draft, call: Call, options: Sequence[Option]) -> tuple[Option, Why]:  # noqa: ARG002 - all is in the options
        (mode,) = draft.note_of("mode", 0) or (_LOTH,)
        if mode == _LOTH:
            return soonest(options)
        turns = {option.server.name: (draft.note_of("turns " + option.server.name, 0) or (0,))[0] for option in options}
        best = min(options, key=lambda option: (turns[option.server.name] + 1) / option.speed)
        draft.note("turns " + best.server.name, 0, (turns[best.server.name] + 1,))
        return best, Why("adaptive", "calls hinder each other: {} is next in proportion to performance", (best.server.name,))
