"""Server selection: RR. Calls go to the servers in turn, in order of arrival.

Algorithm: a note remembers the place in the list of names that comes next; a server that cannot take the call is passed over.
Parameters: those of every policy for calls, for predictions that are reported only. Source: papers.md 4.1. Differs from it in: nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from rmgr.sched.draft import Draft
from rmgr.sched.plan import Why
from rmgr.sched.policies.servers.choosing import Choosing, Option
from rmgr.sched.records import Call


@dataclass(frozen=True, slots=True)
class RoundRobin(Choosing):
    name: ClassVar[str] = "rr"

    def choose(self, draft: Draft, call: Call, options: Sequence[Option]) -> tuple[Option, Why]:  # noqa: ARG002 - all calls are alike
        names = [server.name for server in draft.servers()]
        (place,) = draft.note_of("next", 0) or (0,)
        by_name = {option.server.name: option for option in options}
        turn = next(at for step in range(len(names)) if names[at := (place + step) % len(names)] in by_name)
        draft.note("next", 0, (turn + 1,))
        return by_name[names[turn]], Why("rr", "{} is next", (names[turn],))
