"""Releases side by side: which may work together in one cluster, and what an older one keeps of a newer one's records.

A *protocol* is the form of records and RPC that a release knows; it rises by one when a release writes something that the
release before does not know. A cluster is upgraded one process at a time, so releases whose protocols differ by one
work together; all others are refused. The rules for changing a record:

- fields are only added, with a default; their type and meaning never change; no name is used again;
- JSON records keep unknown fields (`Newer` in `model/base/ids.py`) when an older release rewrites them;
- MessagePack structs get new fields only at the end; blocks keep unknown trailing elements;
- a new reason of an end may come at any time: a release that does not know it reads `Reason.OTHER`;
- another new value of an enum is written only when `Meta.oldest` has reached the release that knows it;
- the same holds for a new field that is signed with the work (`coord/seal.py`), because a release that cannot honour it must refuse
  the work, and for a new form of its signature, which the release before would take for a forgery.

A new cluster admits no release older than its creator's, so all that this release writes may be used at once. A cluster upgraded to
this release still admits the one before, and begins to write such values once the next release is everywhere.

    1  the first
"""

from __future__ import annotations

from dataclasses import dataclass

#: Version of the package, for people.
VERSION = "0.2.0"
#: Protocol of this release, and the oldest that it works with.
PROTOCOL = 1
#: Most difference of protocols that work side by side.
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
    """Why a release may not join a cluster, and what to do."""

    what: str
    hint: str


def refusal(mine: Release, *, protocol: int, oldest: int) -> Refusal | None:
    """Returns why `mine` may not join, None if it may.

    Args:
        protocol: of all processes of the cluster. oldest: the oldest that may join.
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
    """Returns the new protocol of a cluster whose leader and members speak `members`: their lowest, but never below `protocol`."""
    return max(protocol, min(members, default=protocol))
