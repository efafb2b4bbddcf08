"""Maps a caller's certificate to a person and permissions, and logs what was refused: for leader, Starters and gateways."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from rmgr.adapters.access.auth import Caller
from rmgr.coord.decisions.rights import ANYBODY, Person
from rmgr.errors import InvalidRecord, PermissionDenied
from rmgr.log import audit
from rmgr.runtime.logger import Log


def person_of(caller: Caller | None, operators: Iterable[str] = ()) -> Person:
    """operators: names of `[security] operators`. caller None: this process itself."""
    if caller is None or caller.is_open:
        return ANYBODY if caller is None or not caller.user else Person(name=caller.user, is_open=True)
    who = caller.who
    return Person(name=caller.user, role=str(who.role) if who is not None else "", is_operator=caller.is_operator(operators))


@contextmanager
def audited(log: Log | None, person: Person, what: str, target: str) -> Iterator[None]:
    """A refusal within it is written to the audit, and goes on. log: None = there is none."""
    try:
        yield
    except (PermissionDenied, InvalidRecord) as error:
        if log is not None:
            audit(log, who=person.name, role=person.role, what=what, target=target, allowed=False, why=error.message)
        raise
