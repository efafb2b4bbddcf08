"""Quotas of ZooKeeper's memory for znodes that users have gateways make: a table by subtree, and limits for a heap; pure.

ZooKeeper holds every znode in its heap, and ends when that is full, with everybody's work. Below each root where they create,
its own quotas end that before: what is too much is refused (`errors.QuotaReached`). Subtrees that only daemons write have none.
A quota counts whatever is there, a Starter's outcomes below `/subs` too: it is the last wall, behind the bounds of gateways.

Sizes: two million waiting tasks take 113 B of heap each, in blocks of 256 below `/queues`, 44 % of the 512 MiB of `rmgr dev`. A znode
takes some 400 B beside its data. All subtrees full together take seven eighths of the heap, and leave 80 MiB of it at least (five
eighths of a heap of less than 128 MiB): a server keeps the last 500 requests, which takes 2.8 times their bytes, and some 6 MiB for
itself (measured: with requests of 64 KiB one of 128 MiB ends when 33 MiB are written, with such of 16 KiB at 100). So what is left
bears requests of 40 KiB, from a heap of 128 MiB on, and a block of 256 tasks is one of 30.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from rmgr.coord.protocol import paths

#: Heap of a server where nobody says how large it is (MiB): that of ZooKeeper's own scripts.
HEAP_MIB = 1000
_SMALLEST_MIB = 64
#: Znodes of a subtree, whatever the heap: what one user may leave there must not be all of it.
_FEWEST = 1280
#: What all subtrees leave free, if that is more than an eighth of the heap, and less than five eighths of it.
_FREE_MIB = 80
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class QuotaShare:
    """Share of a subtree: percent of the heap for its data, znodes for each MiB of heap."""

    percent: int
    znodes: int


@dataclass(frozen=True, slots=True)
class Quota:
    """Most znodes of a subtree (itself included), and bytes of data in them."""

    znodes: int
    data_bytes: int


#: Root -> its share. Every root of `coord/protocol/acl.py` below which gateways create is here.
SHARES: Mapping[str, QuotaShare] = {
    paths.QUEUES: QuotaShare(45, 120),
    paths.SUBS: QuotaShare(11, 160),
    paths.RUNNING: QuotaShare(5, 60),
    paths.INBOX: QuotaShare(2, 40),
    paths.REQUESTS: QuotaShare(2, 10),
    paths.IDENTITIES: QuotaShare(2, 10),
    paths.NONCES: QuotaShare(1, 55),
    paths.TOKENS: QuotaShare(1, 32),
    paths.SUBMITTERS: QuotaShare(1, 5),
    paths.DRAINS: QuotaShare(1, 5),
}


def limits(heap_mib: int) -> dict[str, Quota]:
    """Root -> quota, for servers with a heap of so many MiB."""
    heap = max(heap_mib, _SMALLEST_MIB)
    counted = min(heap, (heap - min(_FREE_MIB, heap * 5 // 8)) * 8 // 7)  # a heap of which an eighth is free
    return {root: Quota(max(share.znodes * counted, _FEWEST), share.percent * counted * _MIB // 100) for root, share in SHARES.items()}


_NUMBER = re.compile(rb"(count|bytes|countHardLimit|byteHardLimit)=(-?\d+)")


def decode(data: bytes) -> Quota:
    """What `zookeeper_limits` allows, or what `zookeeper_stats` counts; -1 = nothing is said."""
    said = {name.decode(): int(number) for name, number in _NUMBER.findall(data)}
    return Quota(said.get("countHardLimit", said.get("count", -1)), said.get("byteHardLimit", said.get("bytes", -1)))


def encode(quota: Quota) -> bytes:
    """As the znode `zookeeper_limits` holds it: hard limits only (ZooKeeper 3.7 and later, with enforceQuota=true)."""
    return f"count=-1,bytes=-1=;byteHardLimit={quota.data_bytes};countHardLimit={quota.znodes}".encode()
