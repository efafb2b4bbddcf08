"""Rows of the data store that a client may read, write and list through a gateway: by family, and by whose submission they are.

Values by name, outputs that are kept, and shares have owners: `values.py` asks for them. Whom values are shared with is told to all.
What is named by its content may be read by whoever knows the name, and holds what its name says.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from rmgr.coord.decisions.rights import Person, check, check_operator, may
from rmgr.coord.protocol import keys
from rmgr.errors import PermissionDenied

_SHA256 = re.compile(r"[0-9a-f]{64}")
#: Families of rows of one submission, and of those that clients never write.
_OF_SUBMISSION = frozenset({"args", "ckpt", "frag", "out", "log", "page", "final"})
_READ_ONLY = frozenset({"metric", "meta"})
#: Families of which `values.py` decides.
_OWNED = frozenset({"name", "share", "led"})
_HISTORY, _HISTORY_OF_USER, _FINAL = "hist", "histu", "final"
_EVENTS = frozenset({keys.EVENTS, keys.PICKS})

#: Whose submission it is, None when that is not known (it is not there yet, or long gone). May read, and block.
OwnerOf = Callable[[int], str | None]


def nobody_knows(_submission: int) -> str | None:
    """An `OwnerOf` that knows of no submission."""
    return None


def check_rows(person: Person, verb: str, rows: Sequence[str], owner_of: OwnerOf = nobody_knows) -> None:
    """verb: GET, PUT, DELETE, SWEEP, BIND. Raises PermissionDenied. Cost: O(rows), and what `owner_of` costs."""
    if verb not in {"GET", "PUT", "DELETE"}:
        raise PermissionDenied(f"{verb.lower()}: clients of a gateway may not do this to the store")
    for row in rows:
        family = row.partition("/")[0]
        if verb != "GET" and family == "meta" and "/" in row:
            raise PermissionDenied(f"the row {row!r} belongs to the cluster")
        if not person.is_open:
            _check(person, verb, row, family, owner_of)


def check_content(row: str, sha256: str) -> None:
    """A row that is named by its content holds it. Raises PermissionDenied."""
    if keys.is_by_content(row) and row.partition("/")[2] != sha256:
        raise PermissionDenied(f"the row {row!r} is named by its content, and that has another hash")


def visible(person: Person, rows: Sequence[str], owner_of: OwnerOf = nobody_knows) -> list[str]:
    """Those of `rows` that he is told of when he asks for a list."""
    if person.is_free:
        return list(rows)
    return [row for row in rows if _is_listed(person, row, owner_of)]


def _check(person: Person, verb: str, row: str, family: str, owner_of: OwnerOf) -> None:
    if family in {_HISTORY, _HISTORY_OF_USER} and verb == "DELETE":
        check_operator(person, "the leader writes the history; removing lines of it")
        return
    if family in {_HISTORY, _HISTORY_OF_USER} and verb != "GET":
        raise PermissionDenied(f"{verb.lower()} {row!r}: the leader writes the history")
    if family == _FINAL and verb == "DELETE":
        return  # goes with the name that points to it, and `values.py` asks whose it is
    if family in _EVENTS and verb == "GET":
        check_operator(person, "reading the scheduler's log")
        return
    number = submission_of_row(row)
    if number is not None:
        owner = owner_of(number)
        if owner is None and (verb == "GET" or family == "args"):
            return  # nothing is there yet: arguments are written before their submission is made
        check(person, number, owner)
    elif family == _HISTORY_OF_USER:
        if not may(person, _user_of(row)):
            raise PermissionDenied(f"{row!r} is the history of {_user_of(row)}", hint="ask an operator")
    elif family in keys.BY_CONTENT:
        if verb == "DELETE":
            hint = "functions, modules and uploads stay in the store; rmgr store du --all shows their size"
            raise PermissionDenied(f"{row!r} may be somebody else's too: it stays", hint=hint)
        if not _SHA256.fullmatch(row.partition("/")[2]):
            raise PermissionDenied(f"the row {row!r} is not named by a hash")
    elif family in _OWNED or (family in _READ_ONLY and verb == "GET"):
        return
    else:
        raise PermissionDenied(f"{verb.lower()} {row!r}: that is not for users")


def _is_listed(person: Person, row: str, owner_of: OwnerOf) -> bool:
    family = row.partition("/")[0]
    if family in _OWNED or family in _READ_ONLY:
        return True
    if family == _HISTORY_OF_USER:
        return may(person, _user_of(row))
    number = submission_of_row(row)
    return number is not None and may(person, owner_of(number))


def submission_of_row(row: str) -> int | None:
    """The submission that a row belongs to, None for rows of another kind."""
    family, _, rest = row.partition("/")
    digits = rest.partition("/")[0]
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 10):
        return None
    if family in _OF_SUBMISSION:
        return int(digits)
    return keys.parse_history(row) if family == _HISTORY else None


def _user_of(row: str) -> str:
    return row.split("/")[1] if row.count("/") >= 2 else ""
