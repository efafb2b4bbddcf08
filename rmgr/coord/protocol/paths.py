"""The table of znodes: every path of the tree, its builder and its parser, and nowhere else.

Paths are relative to the cluster's chroot (`/rmgr/<cluster>`). E = ephemeral, S = sequential, else persistent:

    /meta                             which cluster this tree belongs to          wiped or foreign ensemble: refuse
    /config                           queues, partitions, retention               changed by `rmgr config apply`
    /ids                              next submission number                      CAS inside SUBMIT
    /epoch                            epoch, leader                               version = LEADER FENCE
    /watchdogs/n-<guid>-<seq>    ES   candidates; the smallest leads
    /starters/s-<guid>-<seq>     ES   liveness of a Starter process (all its virtual nodes)
    /submitters/s-<guid>-<seq>   ES   liveness of a Submitter
    /nodes/<node>                     the node's record                           version = STARTER FENCE
    /drains/<node>                    operator's drain
    /troubles/<node>                  why its Starter takes no work there at present
    /holds/<node>/<sub>.<index>.<attempt>  cores of a placed job whose head is elsewhere
    /holds/<node>/r-<sub>.<index>     cores promised to a waiting job here, from named running jobs
    /subs/<id//1000>/<id>             a submission's record
        /gate                         exists = its blocks may be claimed              version = amendments of the record
        /tail                         next index, complete?                       version = SUBMIT CAS
        /done/r-<seq>            S    outcome fragments
        /failed/<first>.<count>.<attempt>   attempts that wait for the resubmit rule
    /nonces/<signed>.<sha256>         -> id: what users sign in place of it        version 0 = it has not ended
    /tokens/<sha256>                  -> id: the same --token again gives the same id
    /queues/<queue>/pending/<key>-<seq>  S   the task queue
    /queues/<queue>/held/<key>-<seq>  blocks set aside
    /running/<node>/<key>-<seq>       claimed blocks
    /inbox/<node>/<guid>              orders to a Starter
    /idle/<node>                      has free slots and found nothing to claim
    /usage                            cores and open jobs of users with a cap     written by leaders only
    /jobs/<partition>                 reservations, notes and holds of the scheduler there
    /gangs/<partition>                jobs that share nodes in time there, slot by slot  version = generation
    /requests/<guid>                  a user's request to the leader; its answer is written into it
    /locks/schema                E    held while changing the schema of the data store
    /identities/<key_id>              certificate of a signing key                accepted for its authority's signature
    /revoked/<key_id>                 no longer accepted                          written by the admin only
    /joins/<id>                       credentials that wait for their machine, encrypted
    /acl                              which credentials stand for a role          changed by a rotation
    /secrets/<role>                   newest secret of a role, encrypted for the WatchDogs
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import TYPE_CHECKING

from rmgr.model.base import MAX_NUMBER
from rmgr.model.block import MAX_TASKS, MOST_ATTEMPTS, MOST_TASKS, NO_SEQ, PRIORITY_RANGE, BlockKey

if TYPE_CHECKING:
    from rmgr.model.submission import Submission

META = "/meta"
CONFIG = "/config"
IDS = "/ids"
EPOCH = "/epoch"
WATCHDOGS = "/watchdogs"
STARTERS = "/starters"
SUBMITTERS = "/submitters"
NODES = "/nodes"
DRAINS = "/drains"
TROUBLES = "/troubles"
HOLDS = "/holds"
SUBS = "/subs"
NONCES = "/nonces"
TOKENS = "/tokens"
QUEUES = "/queues"
RUNNING = "/running"
INBOX = "/inbox"
IDLE = "/idle"
USAGE = "/usage"
JOBS = "/jobs"
GANGS = "/gangs"
REQUESTS = "/requests"
IDENTITIES = "/identities"
REVOKED = "/revoked"
JOINS = "/joins"
ACL = "/acl"
SECRETS = "/secrets"
LOCKS = "/locks"
SCHEMA_LOCK = "/locks/schema"

#: Created once when a cluster is set up.
SKELETON = (
    *(WATCHDOGS, STARTERS, SUBMITTERS, NODES, DRAINS, HOLDS, SUBS, TOKENS, QUEUES, RUNNING, INBOX, IDLE, JOBS, GANGS),
    *(REQUESTS, IDENTITIES, REVOKED, JOINS, SECRETS, TROUBLES, NONCES),
)

#: A number as `str` makes it: no leading zero, no sign, only ASCII digits, few enough for every codec.
_NUMBER = r"(?:0|[1-9][0-9]{0,17})"
_DECIMAL = re.compile(_NUMBER)
_THREE_NUMBERS = re.compile(rf"({_NUMBER})\.({_NUMBER})\.({_NUMBER})")
#: Names that `block_name` makes of valid keys: 1 to 256 tasks, at least one core, attempts within the key's digits.
_KEY = re.compile(
    r"([01][0-9]{6}|2000000)\.((?!0{10})[0-9]{10})\.([0-9]{10})\.((?!000)(?:[01][0-9]{2}|2[0-4][0-9]|25[0-6]))"
    r"\.(0(?!00000)[0-9]{5})\.((?!00000)[0-9]{5})\.([0-9]{9})(?:\.([a-z2-7]{6}))?-([0-9]{10})"
)
#: Lengths of a block's name without and with its user's tag; position of the tag.
BLOCK_NAMES = frozenset({67, 74})
_TAG = slice(57, 63)
#: Replaces the user's tag while an operator's raise holds: such blocks go before all users' turns. No user has this tag.
RAISED = "raised"
_NONCE = re.compile(rf"({_NUMBER})\.[0-9a-f]{{64}}")
_RESERVED = re.compile(rf"r-({_NUMBER})\.({_NUMBER})")
_SEQUENCE = re.compile(r"-([0-9]{10})\Z")


# -- processes and nodes ------------------------------------------------------------------------------------------------


def watchdog(guid: str) -> str:
    """Returns the prefix of a candidate's entry (ES)."""
    return f"{WATCHDOGS}/n-{guid}-"


def starter(guid: str) -> str:
    """Returns the prefix of a Starter's entry (ES)."""
    return f"{STARTERS}/s-{guid}-"


def submitter(guid: str) -> str:
    """Returns the prefix of a Submitter's entry (ES)."""
    return f"{SUBMITTERS}/s-{guid}-"


def entry_guid(name: str) -> str:
    """Returns the guid in `s-<guid>-<seq>` or `n-<guid>-<seq>`."""
    return name[2:].rpartition("-")[0]


def entry_sequence(name: str) -> int:
    """Returns the number that the server appended."""
    match = _SEQUENCE.search(name)
    if match is None:
        raise ValueError(f"{name!r} carries no sequence number")
    return int(match[1])


def node(name: str) -> str:
    """A node's record."""
    return f"{NODES}/{name}"


def drain(name: str) -> str:
    """The operator's drain of a node."""
    return f"{DRAINS}/{name}"


def trouble(name: str) -> str:
    """The node's trouble: why it takes no work at present, as its Starter says."""
    return f"{TROUBLES}/{name}"


def hold(name: str) -> str:
    """Parent of the holds on a node, of placed jobs whose head is elsewhere."""
    return f"{HOLDS}/{name}"


def hold_of(name: str, submission: int, index: int, attempt: int) -> str:
    """The hold of a job on this node, whose head is elsewhere."""
    return f"{HOLDS}/{name}/{submission}.{index}.{attempt}"


def parse_hold(name: str) -> tuple[int, int, int]:
    """Returns the three numbers of `<submission>.<index>.<attempt>`. Raises ValueError for numbers that no hold can have."""
    submission, index, attempt = _three_numbers(name)
    if submission > MAX_NUMBER or index >= MOST_TASKS or attempt > MOST_ATTEMPTS:
        raise ValueError(f"{name[:80]!r} is not the name of a hold")
    return submission, index, attempt


def reserved_of(name: str, submission: int, index: int) -> str:
    """The promise of cores of this node to a waiting job."""
    return f"{HOLDS}/{name}/r-{submission}.{index}"


def reserved_in(names: Iterable[str] | None) -> list[tuple[str, tuple[int, int]]]:
    """Returns (name, (submission, index)) of the promises in a list of holds; skips other names."""
    found = ((name, int(match[1]), int(match[2])) for name in names or () if (match := _RESERVED.fullmatch(name)) is not None)
    return [(name, (submission, index)) for name, submission, index in found if submission <= MAX_NUMBER and index < MOST_TASKS]


def placing(partition: str) -> str:
    """The scheduler's memory of a partition: reservations, notes, holds."""
    return f"{JOBS}/{partition}"


def gangs(partition: str) -> str:
    """Which jobs have which slots on the nodes of a partition (`GangRecord` in `model/node.py`)."""
    return f"{GANGS}/{partition}"


def running_node(name: str) -> str:
    """Parent of the blocks that a node has claimed."""
    return f"{RUNNING}/{name}"


def running_of(path: str) -> str:
    """Returns the node of a path made by `running_node`, "" for other paths."""
    return path[len(RUNNING) + 1 :] if path.startswith(f"{RUNNING}/") else ""


def inbox_node(name: str) -> str:
    """Parent of the orders to a node."""
    return f"{INBOX}/{name}"


def inbox(name: str, guid: str) -> str:
    """One order to a node."""
    return f"{INBOX}/{name}/{guid}"


def start_order(guid: str, block: BlockKey | str) -> str:
    """Returns the name of an order to start a block (its key, or its name); the name says which, so the order need not be read."""
    return f"{guid}+{block if isinstance(block, str) else block_name(block)}"


def parse_start_order(name: str) -> BlockKey | None:
    """Returns the block that an order of this name starts; None: it must be read."""
    guid, plus, block = name.partition("+")
    return _block(block) if guid and plus else None


def idle(name: str) -> str:
    """The idle marker of a node."""
    return f"{IDLE}/{name}"


# -- identities -----------------------------------------------------------------------------------------------------------


def identity(key_id: str) -> str:
    """The certificate of a signing key."""
    return f"{IDENTITIES}/{key_id}"


def revoked(key_id: str) -> str:
    """Exists if the key is revoked."""
    return f"{REVOKED}/{key_id}"


def join(invitation: str) -> str:
    """Credentials that wait for their machine."""
    return f"{JOINS}/{invitation}"


def secret(role: str) -> str:
    """The newest secret of a role, encrypted."""
    return f"{SECRETS}/{role}"


def request(guid: str) -> str:
    """A user's request to the leader."""
    return f"{REQUESTS}/{guid}"


# -- submissions -----------------------------------------------------------------------------------------------------------


def subs_bucket(submission: int) -> str:
    """Parent of a submission's record: a thousand to a directory."""
    return f"{SUBS}/{submission // 1000}"


def sub(submission: int) -> str:
    """A submission's record."""
    return f"{SUBS}/{submission // 1000}/{submission}"


def gate(submission: int) -> str:
    """Exists while its blocks may be claimed."""
    return f"{sub(submission)}/gate"


def tail(submission: int) -> str:
    """The submission's tail: how far it has grown."""
    return f"{sub(submission)}/tail"


def done(submission: int) -> str:
    """Parent of its outcome fragments; its data says what was paged out."""
    return f"{sub(submission)}/done"


def fragment_prefix(submission: int) -> str:
    """Returns the prefix of the fragments that COMPLETE creates (S)."""
    return f"{sub(submission)}/done/r-"


def fragment(submission: int, number: int) -> str:
    """Fragment `number`, in commit order from 0."""
    return f"{sub(submission)}/done/r-{number:010d}"


def failed(submission: int) -> str:
    """Parent of its failed attempts."""
    return f"{sub(submission)}/failed"


def failed_range(submission: int, first: int, count: int, attempt: int) -> str:
    """A range of attempts that ended FAILED."""
    return f"{sub(submission)}/failed/{first}.{count}.{attempt}"


def parse_failed_range(name: str) -> tuple[int, int, int]:
    """Returns the three numbers of `<first>.<count>.<attempt>`. Raises ValueError for numbers that no range of attempts can have."""
    first, count, attempt = _three_numbers(name)
    if not (1 <= count <= MAX_TASKS and first + count <= MOST_TASKS and 1 <= attempt <= MOST_ATTEMPTS):
        raise ValueError(f"{name[:80]!r} is not the name of failed attempts")
    return first, count, attempt


def holds_in(names: Iterable[str] | None) -> list[tuple[str, tuple[int, int, int]]]:
    """Returns (name, its numbers) of the holds in a list; skips other names."""
    return _parse_names(names, parse_hold)


def failed_in(names: Iterable[str] | None) -> list[tuple[str, tuple[int, int, int]]]:
    """Returns (name, its numbers) of the failed ranges in a list; skips other names, because submitters may create there, too."""
    return _parse_names(names, parse_failed_range)


def _parse_names(names: Iterable[str] | None, parse: Callable[[str], tuple[int, int, int]]) -> list[tuple[str, tuple[int, int, int]]]:
    found = []
    for name in names or ():
        try:
            found.append((name, parse(name)))
        except ValueError:
            continue
    return found


def _three_numbers(name: str) -> tuple[int, int, int]:
    match = _THREE_NUMBERS.fullmatch(name)
    if match is None:
        raise ValueError(f"{name[:80]!r} is not three numbers")
    first, second, third = match.groups()
    return int(first), int(second), int(third)


def parse_number(name: str) -> int | None:
    """Reads a submission's number, or its bucket's, as `str` makes it. Returns None for other names."""
    number = int(name) if _DECIMAL.fullmatch(name) else None
    return number if number is not None and number <= MAX_NUMBER else None


def nonce(user: str, nonce: str, signed_s: int) -> str:
    """The znode of a nonce that a user drew at `signed_s`."""
    digest = hashlib.sha256(f"{user}\0{nonce}".encode()).hexdigest()
    return f"{NONCES}/{signed_s}.{digest}"


def signed_at(name: str) -> int | None:
    """Returns when the nonce of this name was drawn; None for other names."""
    match = _NONCE.fullmatch(name)
    return int(match[1]) if match is not None else None


def token(digest: str) -> str:
    """The record of a submit token, by sha256(user NUL token) in hex."""
    return f"{TOKENS}/{digest}"


# -- queues and blocks ------------------------------------------------------------------------------------------------------


def queue(name: str) -> str:
    """A queue's directory."""
    return f"{QUEUES}/{name}"


def pending(name: str) -> str:
    """Parent of the waiting blocks of a queue."""
    return f"{QUEUES}/{name}/pending"


def held(name: str) -> str:
    """Parent of the blocks of a queue that were set aside."""
    return f"{QUEUES}/{name}/held"


def block_prefix(key: BlockKey) -> str:
    """Returns the name of a block without its sequence number, ending in `-`, for a sequential create."""
    inverted = PRIORITY_RANGE - key.priority
    tag = f".{key.user}" if key.user else ""
    return (
        f"{inverted:07d}.{key.submission:010d}.{key.first:010d}.{key.count:03d}.{key.attempt:06d}.{key.cores:05d}.{key.memory_mib:09d}{tag}-"
    )


def block_name(key: BlockKey) -> str:
    """Returns the whole name of a block's znode."""
    return f"{block_prefix(key)}{key.seq:010d}"


def has_digits(key: BlockKey) -> bool:
    """Returns whether cores and memory fit into the name of a block (its other parts are as in its waiting name)."""
    return key.cores < 10**5 and key.memory_mib < 10**9


def blocks_in(names: Iterable[str] | None) -> list[tuple[str, BlockKey]]:
    """Returns (name, key) of the blocks in a list; skips other names, because submitters may create there, too."""
    return [(name, key) for name in names or () if (key := _block(name)) is not None]


def parse_block(name: str) -> BlockKey:
    """Returns the key in the name of a block's znode. Raises ValueError for a name that `block_name` never makes. Cost: 2 us."""
    key = _block(name)
    if key is None:
        raise ValueError(f"{name[:100]!r} is not the name of a block")
    return key


def _block(name: str) -> BlockKey | None:
    match = _KEY.fullmatch(name)
    if match is None:
        return None
    *numbers, user, number = match.groups()
    inverted, submission, first, count, attempt, cores, memory = map(int, numbers)
    if first + count > MOST_TASKS:
        return None
    return BlockKey(
        priority=PRIORITY_RANGE - inverted,
        seq=int(number),
        submission=submission,
        first=first,
        count=count,
        attempt=attempt,
        cores=cores,
        memory_mib=memory,
        user=user or "",
    )


@lru_cache(4096)
def user_tag(user: str) -> str:
    """Returns six characters that stand for a user in names of blocks. Among 1,000 users, two share a tag with a chance of 1 in 2,000."""
    tag = base64.b32encode(hashlib.sha256(user.encode("utf-8", "surrogatepass")).digest()[:5]).decode().lower()[:6]
    return tag if tag != RAISED else "raisee"


def tag_of(record: Submission) -> str:
    """Returns the tag of a submission's blocks: of its user, or RAISED."""
    return RAISED if record.is_raised else user_tag(record.user)


def tag_in(name: str) -> str:
    """Returns the user's tag in the name of a block, "" if there is none; without parsing it."""
    return name[_TAG] if len(name) == 74 else ""


def submission_in(name: str) -> int:
    """Returns the submission in the name of a block, -1 if it is no such name; without parsing it."""
    digits = name[8:18]
    return int(digits) if digits.isascii() and digits.isdigit() else -1


def claim_order(name: str) -> str:
    """Returns the sort key of a block's name: (priority, seq, first); without parsing all of it."""
    return name[:7] + name[-10:] + name[19:29]


def pending_block(queue_name: str, key: BlockKey) -> str:
    """A waiting block with its sequence number."""
    return f"{QUEUES}/{queue_name}/pending/{block_name(key)}"


def held_block(queue_name: str, key: BlockKey) -> str:
    """A block set aside, with its sequence number (or `NO_SEQ`)."""
    return f"{QUEUES}/{queue_name}/held/{block_name(key)}"


def running_block(node_name: str, key: BlockKey) -> str:
    """A claimed block."""
    return f"{RUNNING}/{node_name}/{block_name(key)}"


def has_place(key: BlockKey) -> bool:
    """Returns whether the block has been in `pending`: it keeps its place when it returns there."""
    return key.seq != NO_SEQ
