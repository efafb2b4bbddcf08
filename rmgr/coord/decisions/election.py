"""Election of the leader: the smallest candidate leads; everyone else watches the one before it. Pure: names in, a standing out.

A candidate is an ephemeral sequential znode `/watchdogs/n-<guid>-<seq>`. Its guid is drawn anew for each session, so an
entry is found again after a lost answer, and a create that was sent twice is seen and undone. Leading is not a
standing but a version: only TAKE-OVER (coord/ops/leader.py) makes a leader, and every write of it checks that version.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from rmgr.coord.ops.leader import epoch_check
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Committed, Create, Delete, Exists, Gone, Multi
from rmgr.coord.protocol.records import encode_record
from rmgr.model.cluster.node import EpochRecord


@dataclass(frozen=True, slots=True)
class First:
    """The candidate is the smallest: it takes over."""

    name: str


@dataclass(frozen=True, slots=True)
class Behind:
    """Others stand before it: it watches `predecessor` only, so that one departure wakes one candidate."""

    name: str
    predecessor: str


@dataclass(frozen=True, slots=True)
class Absent:
    """The candidate has no entry: its session is gone, or its create was not committed."""


Standing = First | Behind | Absent


def standing(children: Iterable[str], guid: str) -> Standing:
    """Where the candidate `guid` stands among the names below /watchdogs. Cost: O(n log n)."""
    line = sorted((paths.entry_sequence(name), name) for name in children)
    mine = next((at for at, (_, name) in enumerate(line) if paths.entry_guid(name) == guid), None)
    if mine is None:
        return Absent()
    name = line[mine][1]
    return Behind(name, line[mine - 1][1]) if mine else First(name)


def doubles(children: Iterable[str], guid: str) -> list[str]:
    """Entries of the candidate beside its smallest: its create was sent again after a lost answer."""
    mine = sorted((paths.entry_sequence(name), name) for name in children if paths.entry_guid(name) == guid)
    return [name for _, name in mine[1:]]


def stand(guid: str, record: EpochRecord) -> Multi:
    """CANDIDATE: an entry in the line. Its name is the server's choice, so its proof is found by `standing`, not by read-back."""
    prefix = paths.watchdog(guid)
    return Multi(name="CANDIDATE", ops=(Create(prefix, encode_record(record), ephemeral=True, sequence=True),), proof=Exists(prefix))


def withdraw(name: str) -> Multi:
    """WITHDRAW: an entry leaves the line (a double; a leader that hands over)."""
    path = f"{paths.WATCHDOGS}/{name}"
    return Multi(name="WITHDRAW", ops=(Delete(path),), proof=Gone(path))


def epoch_version(multi: Multi, answer: Committed) -> int:
    """E: the version of /epoch that a committed TAKE-OVER made."""
    return next(version for op, version in zip(multi.ops, answer.versions, strict=True) if op.path == paths.EPOCH)


def fenced(version: int, multi: Multi) -> Multi:
    """`multi` as a leader may send it: with the leader fence checked first.

    The multis that owner and leader share (RESUBMIT, sweeps, CLOSE, PAGE) carry no fence of their own; a deposed leader
    that wakes up late must not even do the right thing.
    """
    check = epoch_check(version)
    if check in multi.ops:
        return multi
    return replace(multi, ops=(check, *multi.ops))
