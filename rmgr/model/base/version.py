"""Releases side by side: which may work together in one cluster, and what an older one keeps of a newer one's records.

A *protocol* is what records and RPC look like to a release; it rises by one when a release writes something that the
release before does not know. A cluster is upgraded one process at a time, so releases whose protocols differ by one
work together; everything else is refused. The rules for whoever changes a record:

- fields are only added, with a default; their type and meaning never change; none is used again;
- JSON records keep fields that they do not know (`Newer` in `model/base/ids.py`) when an older release rewrites them;
- MessagePack structs get new fields at the end only; blocks keep trailing elements that they do not know;
- a reason of an end may be new at any time: who does not know it reads `Reason.OTHER`;
- another new value of an enum is written only when `Meta.oldest` has reached the release that knows it;
- so is a new field that is signed with the work (`coord/seal.py`): a release that cannot honour it must refuse the work; and
  a new form of its signature, which the release before would take for a forgery.

A new cluster lets in nobody older than who made it: what this release writes may be used at once. One that was upgraded to
this release may still be joined by the one before, and begins to write such values when the release after it is everywhere.

    1  the first
"""

from __future__ import annotations

from dataclasses import dataclass

#: Of the package, for people.
VERSION = "0.2.0"
#: What this release speaks, and the oldest that it works with.
PROTOCOL = 1
#: Releases side by side: protocols that may differ by this much.
SKEW = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """Release that a process runs. version: of the package, for people."""

    version: str = ""
    protocol: int = PROTOCOL

    def __str__(self) -> str:
        return f"{self.version or 'an unknown version'} (protocol {self.protocol})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Reason for which a release may not join a cluster, and what to do."""

    what: str
    hint: str


def refusal(mine: Release, *, protocol: int, oldest: int) -> Refusal | None:
    """May `mine` join?

    Args:
        protocol: that all processes of the cluster speak. oldest: the oldest that may join it.
    Returns: None if it may.
    """
    if mine.protocol < oldest:
        return Refusal(
            what=f"this rmgr {mine} is too old for the cluster, which speaks protocol {protocol} and lets in {oldest} and later",
            hint="upgrade this installation",
        )
    if mine.protocol > protocol + SKEW:
        return Refusal(
            what=f"this rmgr {mine} is too new for the cluster, which speaks protocol {protocol}: one release at a time",
            hint=f"upgrade every daemon to a release with protocol {protocol + SKEW} first",
        )
    return None


def raised(protocol: int, members: list[int]) -> int:
    """The protocol of a cluster whose leader and members speak `members`: theirs once all do, never back."""
    return max(protocol, min(members, default=protocol))
