"""Nonces: what a user signs in place of a number, and which signed work may run. Pure.

    /nonces/<time of signing>.<sha256 of user, nonce>     the submission's number; version 0 = it goes on, else it has ended

A user who signs a submission draws a nonce and names the time; both are in its record and in all that is signed of it
(`coord/seal.py`). SUBMIT makes the znode together with the record, in one transaction, and the leader changes it together with CLOSE. A
Starter runs signed work only if

    the znode names the record's number               one submission per nonce: the znode is named after it
    both were made by one transaction                 a record that was put back later is newer than the znode
    the znode is unchanged                            only an end changes it, even if others may write there: versions only grow
    it was made within `WINDOW_S` of the signing      by the clock of ZooKeeper's leader, which nobody can forge

So the znode need not stay as long as signatures are valid (30 days): after the window its name can be made again, but too
late. Only leaders delete it, after `KEPT_S` and not before the record is gone. They know the time from its name; another time is
another name, so nothing written into a record makes them delete a znode too early.
"""

from __future__ import annotations

from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Set, Stamped
from rmgr.coord.protocol.records import encode_record
from rmgr.model.submission import Submission
from rmgr.model.units import format_duration, utc

#: How far SUBMIT may be from the time of signing, on either side, because clocks differ (s).
WINDOW_S = 3600
#: How long after the signing the znode stays, whatever became of its submission (s): clocks of ZooKeeper's servers differ by less.
KEPT_S = WINDOW_S + 600


def place_of(record: Submission) -> str:
    """Returns the znode of a record's nonce. Cost: 2 us."""
    return paths.nonce(record.user, record.nonce, record.signed_s)


def end_of(record: Submission) -> Set:
    """Returns the operation that marks the submission as ended, together with CLOSE. It conflicts if that was done before."""
    return Set(place_of(record), encode_record(record.id), 0)


def fault(record: Submission, czxid: int, found: Stamped | None) -> str:
    """Returns why `record` is not that of a submission that goes on, "" if it is.

    Args:
        czxid: transaction that made the record. found: the znode at `place_of(record)`.
    """
    if not record.nonce:
        return "its record names no nonce"
    if found is None:
        return "its submission is closed, or was never made: nothing stands for its nonce"
    if found.data != encode_record(record.id):
        return "its nonce is that of another submission"
    if found.version:
        return "its submission is closed"
    return "" if found.stat.czxid == czxid else "its record was written anew since its nonce was used"


def untimely(record: Submission, made_s: float, whose: str) -> str:
    """Returns why work signed with the record cannot run if submitted at `made_s` by the clock of `whose`; "" if it can."""
    if abs(made_s - record.signed_s) <= WINDOW_S:
        return ""
    signed, made = (utc(round(at_s * 1e6)) for at_s in (record.signed_s, made_s))
    message = f"it was signed at {signed} by the clock of {record.host or record.user} and submitted at {made} by {whose}"
    return f"{message}: these may be {format_duration(WINDOW_S)} apart"


def is_over(name: str, now_s: float) -> bool:
    """Returns whether a nonce's znode of this name is outdated: nothing signed under it could be submitted now."""
    signed_s = paths.signed_at(name)
    return signed_s is None or not now_s - KEPT_S <= signed_s <= now_s + KEPT_S
