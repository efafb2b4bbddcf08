"""Rights to each znode by role and place, and how much of ZooKeeper's memory users may fill: two tables, and their readers. Pure.

Rights follow from the multis of protocol.md (rule 39 of reliability.md): a role has what its operations need, and READ elsewhere;
outsiders have nothing. In ZooKeeper, CREATE and DELETE are rights on the *parent*, an access list is not inherited, and a right
on a parent holds for every child. All Starters share one credential, so a stolen one can spoil any claimed block (signatures stop
forged work and results, `coord/seal.py`).

The roles: ADMIN sets up, rotates and revokes. WATCHDOG leads: everything but the admin's places. STARTER claims and
completes. SUBMITTER is a gateway, which acts for its users and operators and checks whose work it is, or a user who was trusted
with its secret (`rmgr admin add-user --direct`). Other users and operators have no rights here.

Quotas: ZooKeeper holds every znode in its heap, and stops when that is full, with everybody's work. Each root below which users
create through gateways has a quota that ends growth earlier: the excess is refused (`errors.QuotaReached`). Subtrees that only
daemons write have none. A quota counts everything there, also a Starter's outcomes below `/subs`: it is the last wall, behind the
bounds of gateways.

Sizes: two million waiting tasks take 113 B of heap each, in blocks of 256 below `/queues`, 44 % of the 512 MiB of `rmgr dev`. A znode
takes some 400 B beside its data. All subtrees full together take seven eighths of the heap, and leave at least 80 MiB of it (five
eighths of a heap of less than 128 MiB). A server keeps the last 500 requests, which take 2.8 times their bytes, and needs some 6 MiB for
itself (measured: one with 128 MiB fails after 33 MiB of requests of 64 KiB, or 100 MiB of requests of 16 KiB). So the rest
bears requests of 40 KiB, from a heap of 128 MiB on; a block of 256 tasks is one of 30 KiB.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntFlag

from rmgr.coord.protocol import paths
from rmgr.model.identity import Role


class Right(IntFlag):
    """ZooKeeper's permissions, with its numbers."""

    NONE = 0
    READ = 1
    WRITE = 2
    CREATE = 4  #: of children
    DELETE = 8  #: of children
    ADMIN = 16  #: changes the access list


Rights = Mapping[Role, Right]

R, W, C, D = Right.READ, Right.WRITE, Right.CREATE, Right.DELETE
ALL = R | W | C | D | Right.ADMIN

#: Roles that ZooKeeper distinguishes, in the order of every access list.
ROLES = (Role.ADMIN, Role.WATCHDOG, Role.STARTER, Role.SUBMITTER)


def _line(*, starter: Right = R, submitter: Right = R, watchdog: Right = ALL) -> dict[Role, Right]:
    """Returns one line of the table."""
    return {Role.ADMIN: ALL, Role.WATCHDOG: watchdog, Role.STARTER: starter, Role.SUBMITTER: submitter}


_READ = _line()
#: Only the admin, who sets the cluster up, changes these; WatchDogs obey them, too.
_ADMINS = _line(watchdog=R)

#: Place (`*` = any name) -> rights there. At places not in it, every role may read, and WatchDogs write.
TABLE: Mapping[str, Rights] = {
    "/": _READ,
    paths.META: _READ,
    paths.CONFIG: _line(submitter=R | W),  # SETTINGS
    paths.IDS: _line(submitter=R | W),  # SUBMIT
    paths.EPOCH: _READ,
    paths.WATCHDOGS: _READ,
    paths.STARTERS: _line(starter=R | C | D),  # REGISTER, and removing the entry of a Starter's own former life
    paths.SUBMITTERS: _line(submitter=R | C | D),  # ENTER; EXIT: a gateway's client leaves, the session stays
    paths.NODES: _line(starter=R | C),  # REGISTER
    f"{paths.NODES}/*": _line(starter=R | W),
    paths.DRAINS: _line(submitter=R | C | D),  # DRAIN, RESUME
    f"{paths.DRAINS}/*": _line(submitter=R | W),
    paths.TROUBLES: _line(starter=R | C | D),  # TROUBLE
    f"{paths.TROUBLES}/*": _READ,
    paths.HOLDS: _READ,
    paths.SUBS: _line(submitter=R | C),  # SUBMIT: the directory of a thousand
    f"{paths.SUBS}/*": _line(submitter=R | C),
    f"{paths.SUBS}/*/*": _line(submitter=R | W | C | D),  # GATE, UPDATE, TAKE_OWNERSHIP: the record; the gate below it comes and goes
    f"{paths.SUBS}/*/*/gate": _line(submitter=R | W),  # UPDATE
    f"{paths.SUBS}/*/*/tail": _line(submitter=R | W),  # ENQUEUE
    f"{paths.SUBS}/*/*/done": _line(starter=R | C, submitter=R | C),  # COMPLETE; outcomes of tasks that never ran
    f"{paths.SUBS}/*/*/done/*": _READ,
    f"{paths.SUBS}/*/*/failed": _line(starter=R | C, submitter=R | D),  # COMPLETE; RESUBMIT, GIVE_UP, CANCEL_FAILED
    f"{paths.SUBS}/*/*/failed/*": _READ,
    paths.NONCES: _line(submitter=R | C),  # SUBMIT; signed work that has ended must stay refused, so no other writes or deletes here
    f"{paths.NONCES}/*": _READ,
    paths.TOKENS: _line(submitter=R | C),  # SUBMIT
    f"{paths.TOKENS}/*": _READ,
    paths.QUEUES: _line(submitter=R | C),  # directories of a new queue
    f"{paths.QUEUES}/*": _line(submitter=R | C),
    f"{paths.QUEUES}/*/pending": _line(starter=R | C | D, submitter=R | C | D),  # CLAIM, SPLIT, RETURN; SUBMIT, ENQUEUE; TAKE_OUT
    f"{paths.QUEUES}/*/pending/*": _READ,
    f"{paths.QUEUES}/*/held": _line(starter=R | C, submitter=R | C | D),  # RETURN of held work; SUBMIT; TAKE_OUT
    f"{paths.QUEUES}/*/held/*": _READ,
    paths.RUNNING: _line(starter=R | C),  # REGISTER
    f"{paths.RUNNING}/*": _line(starter=R | C | D, submitter=R | C),  # CLAIM, COMPLETE; HAND
    f"{paths.RUNNING}/*/*": _line(starter=R | W),
    paths.INBOX: _line(starter=R | C),  # REGISTER
    f"{paths.INBOX}/*": _line(starter=R | D, submitter=R | C),  # OBEY; ORDER
    f"{paths.INBOX}/*/*": _READ,
    paths.IDLE: _line(starter=R | C | D, submitter=R | D),  # CLAIM, COMPLETE, IDLE; HAND
    f"{paths.IDLE}/*": _READ,
    paths.USAGE: _READ,
    paths.JOBS: _READ,
    paths.GANGS: _READ,
    paths.REQUESTS: _line(submitter=R | C),  # ASK
    f"{paths.REQUESTS}/*": _READ,
    paths.IDENTITIES: _line(starter=R | C, submitter=R | C),  # a certificate is accepted for its authority's signature
    f"{paths.IDENTITIES}/*": _READ,
    paths.REVOKED: _ADMINS,
    f"{paths.REVOKED}/*": _ADMINS,
    paths.ACL: _ADMINS,
    # Credentials that wait for a machine are encrypted; even so, only the roles that hand them out may read them.
    paths.JOINS: _line(watchdog=R | D, starter=Right.NONE, submitter=R | D),
    f"{paths.JOINS}/*": _line(watchdog=R | W, starter=Right.NONE, submitter=R | W),
    paths.SECRETS: _line(watchdog=R, starter=Right.NONE, submitter=Right.NONE),
    f"{paths.SECRETS}/*": _line(watchdog=R, starter=Right.NONE, submitter=Right.NONE),
}

#: Roots whose children differ by name, not only by depth: root -> depth of that name.
_NAMED = {paths.SUBS: 4, paths.QUEUES: 3}


def place_of(path: str) -> str:
    """Returns the line of `TABLE` for a path (relative to the chroot), even if the table does not have it.

    Cost: about 1 us.
    """
    if path in {"", "/"}:
        return "/"
    parts = path.split("/")
    root = f"/{parts[1]}"
    stars = ["*"] * (len(parts) - 2)
    named = _NAMED.get(root, 0)
    if named and len(parts) > named:
        stars[named - 2] = parts[named]
    return "/".join([root, *stars])


def rights(path: str) -> Rights:
    """Returns each role's rights to the znode at `path`."""
    return TABLE.get(place_of(path), _READ)


def may(role: Role, right: Right, path: str) -> bool:
    """Returns whether `role` has all of `right` on the znode at `path` (CREATE and DELETE: of its children)."""
    return rights(path).get(role, Right.NONE) & right == right


# -- quotas --------------------------------------------------------------------------------------------------------------------


#: Heap of a server if not configured (MiB): that of ZooKeeper's own scripts.
HEAP_MIB = 1000
_SMALLEST_MIB = 64
#: Fewest znodes of a subtree, whatever the heap: one user's share must not be all of it.
_FEWEST = 1280
#: Heap that all subtrees leave free (MiB), if that is more than an eighth of it and less than five eighths.
_FREE_MIB = 80
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class QuotaShare:
    """Share of a subtree: percent of the heap for its data, znodes per MiB of heap."""

    percent: int
    znodes: int


@dataclass(frozen=True, slots=True)
class Quota:
    """Most znodes of a subtree (itself included), and most bytes of data in them."""

    znodes: int
    data_bytes: int


#: Root -> its share. Every root of `TABLE` below which gateways create is here.
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
    """Returns root -> quota, for servers with a heap of `heap_mib`."""
    heap = max(heap_mib, _SMALLEST_MIB)
    counted = min(heap, (heap - min(_FREE_MIB, heap * 5 // 8)) * 8 // 7)  # a heap of which an eighth is free
    return {root: Quota(max(share.znodes * counted, _FEWEST), share.percent * counted * _MIB // 100) for root, share in SHARES.items()}


_NUMBER = re.compile(rb"(count|bytes|countHardLimit|byteHardLimit)=(-?\d+)")


def decode(data: bytes) -> Quota:
    """Reads the quota in `zookeeper_limits`, or the counts in `zookeeper_stats`; -1 = not given."""
    said = {name.decode(): int(number) for name, number in _NUMBER.findall(data)}
    return Quota(said.get("countHardLimit", said.get("count", -1)), said.get("byteHardLimit", said.get("bytes", -1)))


def encode(quota: Quota) -> bytes:
    """Returns the data of `zookeeper_limits`: hard limits only (ZooKeeper 3.7 and later, with enforceQuota=true)."""
    return f"count=-1,bytes=-1=;byteHardLimit={quota.data_bytes};countHardLimit={quota.znodes}".encode()
