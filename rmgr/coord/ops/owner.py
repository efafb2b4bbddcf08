"""The multis of an owner besides SUBMIT and ENQUEUE: saying that it lives, taking over a submission, giving it back to the leader.

A submission grows only through its tail, whose version is the fence of its owner; a take-over changes the tail, so
that nothing of the former owner can be committed any more. Which owner submitted an index is written into the tail
(`reigns`), because pointers to outputs are written before the commit and one that was never committed must not be believed.
"""

from __future__ import annotations

from dataclasses import replace

from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Create, Delete, Exists, Gone, Holds, Multi, Set
from rmgr.coord.protocol.records import encode_record
from rmgr.model.cluster.node import SubmitterEntry
from rmgr.model.tasks.submission import Submission, Tail


def reign_of(tail: Tail, index: int) -> str:
    """Guid of the Submitter that submitted task `index`; "" when it was not recorded. Cost: O(take-overs)."""
    guid = ""
    for first, owner in tail.reigns:
        if first > index:
            break
        guid = owner
    return guid


def is_owner(entry: SubmitterEntry, submission: Submission) -> bool:
    """Whether who made `entry` looks after `submission`: it is named there, and the entry names no other user."""
    return bool(entry.guid) and entry.guid == submission.owner and entry.user in {"", submission.user}


def taken_over(tail: Tail, owner: str, stamp: str) -> Tail:
    """The tail when `owner` goes on from here."""
    kept = tuple(reign for reign in tail.reigns if reign[0] < tail.next)
    return replace(tail, reigns=(*kept, (tail.next, owner)), enqueued=stamp)


def take_ownership(submission: Submission, version: int, tail: Tail, tail_version: int) -> Multi:
    """TAKE_OWNERSHIP: `submission` names its new owner, `tail` comes from `taken_over`."""
    data = encode_record(tail)
    ops = (
        Set(paths.sub(submission.id), encode_record(submission), version),
        Set(paths.tail(submission.id), data, tail_version),
    )
    return Multi(name="TAKE_OWNERSHIP", ops=ops, proof=Holds(paths.tail(submission.id), data))


def enter(entry: SubmitterEntry) -> Multi:
    """ENTER: a Submitter lives. The sequential name is not known beforehand: an unknown outcome is simply tried again."""
    path = paths.submitter(entry.guid)
    return Multi(name="ENTER", ops=(Create(path, encode_record(entry), ephemeral=True, sequence=True),), proof=Exists(path))


def leave(path: str) -> Multi:
    """EXIT: an owner has gone, while the session that holds its entry goes on (a gateway's client)."""
    return Multi(name="EXIT", ops=(Delete(path),), proof=Gone(path))
