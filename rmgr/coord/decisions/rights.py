"""Rights to see and change work: users theirs, operators everybody's; an open cluster asks nobody. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from rmgr.errors import PermissionDenied


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """Requester of something, as far as that is proven.

    name: "" = somebody who is no user (a gateway that speaks for nobody). role: for the audit. is_open: an open cluster.
    """

    name: str = ""
    role: str = ""
    is_operator: bool = False
    is_open: bool = False

    @property
    def is_free(self) -> bool:
        """May do with everybody's work what its owner may."""
        return self.is_open or self.is_operator

    def owns(self, owner: str | None) -> bool:
        """Work of `owner` (None: it is not known whose) is his."""
        return bool(self.name) and owner == self.name


#: Whoever asks in an open cluster.
ANYBODY = Person(is_open=True)


def may(person: Person, owner: str | None) -> bool:
    """`person` may see and change work of `owner` (None: it is not known whose it is)."""
    return person.is_free or person.owns(owner)


def check(person: Person, submission: int, owner: str | None) -> None:
    """Raises PermissionDenied, naming the owner, unless `may`."""
    if not may(person, owner):
        raise denied(submission, owner)


def denied(submission: int, owner: str | None) -> PermissionDenied:
    """Why somebody may not have to do with a submission."""
    whose = f"{submission} belongs to {owner}" if owner else f"it is not known whose submission {submission} is"
    return PermissionDenied(whose, hint="its owner or an operator may do that: ask an operator")


def check_operator(person: Person, what: str) -> None:
    """Raises PermissionDenied unless he may do what concerns all."""
    if not person.is_free:
        raise PermissionDenied(f"{what} is for operators", hint="ask an operator; rmgr admin add-user NAME --operator makes one")
