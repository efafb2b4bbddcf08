"""From who calls, as his certificate says, to what he may: one rule for leader, Starters and gateways."""

from __future__ import annotations

from collections.abc import Iterable

from rmgr.adapters.rpc_auth import Caller
from rmgr.coord.rights import ANYBODY, Person


def person_of(caller: Caller | None, operators: Iterable[str] = ()) -> Person:
    """operators: names of `[security] operators`. caller None: this process itself."""
    if caller is None or caller.is_open:
        return ANYBODY if caller is None or not caller.user else Person(name=caller.user, is_open=True)
    who = caller.who
    return Person(name=caller.user, role=str(who.role) if who is not None else "", is_operator=caller.is_operator(operators))
