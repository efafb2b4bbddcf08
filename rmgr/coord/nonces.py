"""Nonces: what a user signs in place of a number, and what of it can be run. Pure.

    /nonces/<time of signing>.<sha256 of user, nonce>     the submission's number; its version: 0 = it goes on, else it has ended

Who signs a submission draws a nonce, and says when: both are in its record, and in all that is signed of it (`coord/seal.py`).
SUBMIT makes the znode together with the record, in one transaction, and the leader changes it together with CLOSE. A Starter runs what
was signed only if

    the znode names the record's number               one submission for a nonce: its name is the nonce's
    both were made by one transaction                 a record that somebody puts back was made later than the znode
    nobody has changed it                             only an end changes it, whoever may write there: versions only grow
    it was made within `WINDOW_S` of the signing      by the clock of ZooKeeper's leader, which nobody forges

So the znode need not stand for as long as signatures are valid (30 days): when the window is over its name can be made again, but too
late. Leaders alone delete it, after `KEPT_S` and not before the record has gone; they know the time from its name, which is another
name for another time: what somebody writes into a record deletes nothing too early.
"""

from __future__ import annotations

from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Set, Stamped
from rmgr.coord.protocol.records import encode_record
from rmgr.model.base.units import format_duration, utc
from rmgr.model.tasks.submission import Submission

#: So long after the signing, or before it (a clock may be wrong), SUBMIT counts.
WINDOW_S = 3600
#: How long after the signing the znode stands, whatever became of its submission: the clocks of ZooKeeper's servers differ by less.
KEPT_S = WINDOW_S + 600


def place_of(record: Submission) -> str:
    """The znode of a record's nonce. Cost: 2 us."""
    return paths.nonce(record.user, record.nonce, record.signed_s)


def end_of(record: Submission) -> Set:
    """The operation that says, together with CLOSE, that the submission has ended. It conflicts where that was said before."""
    return Set(place_of(record), encode_record(record.id), 0)


def fault(record: Submission, czxid: int, found: Stamped | None) -> str:
    """Why `record` is not that of a submission that goes on, "" = it is.

    Args:
        czxid: transaction that made the record. found: what stands at `place_of(record)`.
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
    """Why what was signed with the record cannot run, made (submitted) at `made_s` by the clock of `whose`; "" = it can."""
    if abs(made_s - record.signed_s) <= WINDOW_S:
        return ""
    signed, made = (utc(round(at_s * 1e6)) for at_s in (record.signed_s, made_s))
    told = f"it was signed at {signed} by the clock of {record.host or record.user} and submitted at {made} by {whose}"
    return f"{told}: these may be {format_duration(WINDOW_S)} apart"


def is_over(name: str, now_s: float) -> bool:
    """Nothing that was signed under the name of a nonce's znode could be submitted now, nor is anything kept of its window."""
    signed_s = paths.signed_at(name)
    return signed_s is None or not now_s - KEPT_S <= signed_s <= now_s + KEPT_S
