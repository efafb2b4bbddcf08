"""Ended submissions: a fact that only leaders write, so that what was signed for one of them never runs again.

    /ended           {"below": B}: all submissions of the directories below `/subs/<B>` have ended
    /ended/<B>       125 bytes: bit `number % 1000` is set when submission `number` has ended

A leader sets the bit within a second after CLOSE, and nothing is collected before its bit is set: a record without a bit is
one that never ended, whoever has written it. The bits do not lie in `/subs/<B>`: users create there, and who creates a znode
chooses who may write it. When all bits of the lowest directory are set, `below` rises and its bits go, in one multi.

Who believes a record reads it first, then the bits, then `below`, in one session: what it does not find in the bits because
they have gone it finds in `below`. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Create, Delete, Holds, Multi, Op, Set
from rmgr.coord.protocol.records import encode_record
from rmgr.model.base.version import Newer, newer

#: Submissions of one directory, see `paths.subs_bucket`.
BUCKET = 1000
_BYTES = BUCKET // 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """Data of `/ended`. below: number of a directory of `/subs`."""

    below: int = 0
    newer: Newer = newer()


def holds(bits: bytes, number: int) -> bool:
    """The bit of a submission is set. bits: b"" = none is. Cost: 0.2 us."""
    at = number % BUCKET
    return at >> 3 < len(bits) and bool(bits[at >> 3] >> (at & 7) & 1)


def with_bits(bits: bytes, numbers: Iterable[int]) -> bytes:
    """`bits` with those of these submissions, all of one directory, set as well."""
    made = bytearray(bits.ljust(_BYTES, b"\0")[:_BYTES])
    for number in numbers:
        at = number % BUCKET
        made[at >> 3] |= 1 << (at & 7)
    return bytes(made)


def is_full(bits: bytes, bucket: int) -> bool:
    """Everything that was ever in the directory has ended. There is no submission 0."""
    return (with_bits(bits, (0,)) if bucket == 0 else bits) == b"\xff" * _BYTES


def absent(bucket: int, present: Iterable[int], next_number: int) -> list[int]:
    """Numbers of the directory that were given to a submission which is not there any more.

    Args: next_number: of `/ids`, read before `present` was listed: a submission appears with its number.
    """
    first = bucket * BUCKET
    return sorted(set(range(max(1, first), min(first + BUCKET, next_number))) - set(present))


def mark(bucket: int, bits: bytes, version: int | None) -> Multi:
    """ENDED: the bits of a directory are these. version: of its znode, None when there is none."""
    path = paths.ended(bucket)
    op: Op = Create(path, bits) if version is None else Set(path, bits, version)
    return Multi(name="ENDED", ops=(op,), proof=Holds(path, bits))


def raise_mark(record: Ended, version: int, buckets: Iterable[int]) -> Multi:
    """BELOW: `/ended` says `record`, and the bits of `buckets`, which it covers, go."""
    data = encode_record(record)
    ops: list[Op] = [Set(paths.ENDED, data, version)]
    ops += [Delete(paths.ended(bucket)) for bucket in buckets]
    return Multi(name="BELOW", ops=tuple(ops), proof=Holds(paths.ENDED, data))
