"""Decides what a client may do through a gateway: deny by default, from the change itself and not only from its name.

One table: for each operation of protocol.md that a client does, which znodes it may touch and how. Whatever fences,
claims, completes, registers or leads is not in it, so it is refused under every name. In a secured cluster it also
matters whose work is touched: a user's own, or for operators everybody's. (Rows of the store: `submitter_rows`.)
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto

from rmgr.coord.decisions.rights import Person, check, check_operator
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Check, Create, Delete, Multi, Op, Set
from rmgr.coord.seal import nonces
from rmgr.coord.validity import records as validity
from rmgr.errors import PermissionDenied, RmgrError, UsageError
from rmgr.model.cluster.node import InboxOrder
from rmgr.model.tasks.request import AnyRequest, StopKind
from rmgr.model.tasks.submission import Submission

#: What only daemons and the admin read.
_SECRET = frozenset({paths.JOINS, paths.SECRETS})


class ZnodeKind(Enum):
    """Kinds of znodes that a client may have to do with."""

    IDS = auto()
    CONFIG = auto()
    NONCE = auto()
    TOKEN = auto()
    BUCKET = auto()
    RECORD = auto()
    GATE = auto()
    TAIL = auto()
    DONE = auto()
    FAILED = auto()
    FRAGMENT = auto()
    FAILED_RANGE = auto()
    PENDING = auto()
    HELD = auto()
    QUEUE = auto()
    SUBMITTER = auto()
    DRAIN = auto()
    ORDER = auto()
    REQUEST = auto()
    IDENTITY = auto()
    NODE = auto()
    IDLE = auto()
    RUNNING = auto()
    OTHER = auto()


_Allowed = frozenset[tuple[type[Op], ZnodeKind]]


def _set(*places: ZnodeKind) -> _Allowed:
    return frozenset((Set, place) for place in places)


def _create(*places: ZnodeKind) -> _Allowed:
    return frozenset((Create, place) for place in places)


def _delete(*places: ZnodeKind) -> _Allowed:
    return frozenset((Delete, place) for place in places)


_P = ZnodeKind
_ENTER_QUEUE = _create(_P.PENDING, _P.HELD)
_OF_SUBMISSION = (_P.BUCKET, _P.RECORD, _P.TAIL, _P.DONE, _P.FAILED, _P.GATE)

#: Operation -> what it consists of. A multi of this name that does anything else is refused.
OPERATIONS: dict[str, _Allowed] = {
    # a Submitter
    "SUBMIT": _set(_P.IDS) | _create(_P.NONCE, _P.TOKEN, *_OF_SUBMISSION) | _ENTER_QUEUE,
    "ENQUEUE": _set(_P.TAIL) | _ENTER_QUEUE | _create(_P.FRAGMENT),
    "HAND": _set(_P.TAIL) | {(Check, _P.GATE), (Check, _P.NODE)} | _delete(_P.IDLE) | _create(_P.RUNNING),
    "RESUBMIT": _delete(_P.FAILED_RANGE) | _ENTER_QUEUE,
    "GIVE_UP": _delete(_P.FAILED_RANGE) | _create(_P.FRAGMENT),
    "CANCEL_FAILED": _delete(_P.FAILED_RANGE) | _create(_P.FRAGMENT),
    "TAKE_OUT": _delete(_P.PENDING, _P.HELD) | _ENTER_QUEUE | _create(_P.FRAGMENT),
    "ENTER": _create(_P.SUBMITTER),
    "IDENTIFY": _create(_P.IDENTITY),
    "TAKE_OWNERSHIP": _set(_P.RECORD, _P.TAIL),
    # a user
    "GATE": _set(_P.RECORD, _P.GATE) | _create(_P.GATE) | _delete(_P.GATE),
    "UPDATE": _set(_P.RECORD, _P.GATE) | _create(_P.GATE) | _delete(_P.GATE) | {(Check, _P.PENDING), (Check, _P.HELD)},
    "ORDER": _create(_P.ORDER),
    "ASK": _create(_P.REQUEST),
    # an operator
    "DRAIN": _delete(_P.DRAIN) | _create(_P.DRAIN),
    "RESUME": _delete(_P.DRAIN) | _create(_P.DRAIN),
    "SETTINGS": _set(_P.CONFIG),
}

#: A HAND is exactly this: no mark goes for a block that is not there, and none is put anywhere without a mark.
_HAND = (_P.TAIL, _P.GATE, _P.NODE, _P.IDLE, _P.RUNNING)

#: What concerns all, not one submission.
OF_OPERATORS = {"DRAIN": "draining a node", "RESUME": "resuming a node", "SETTINGS": "changing the settings of the cluster"}

#: Whose submission it is, None when that is not known (it is not there yet, or long gone). May read, and block.
OwnerOf = Callable[[int], str | None]


def nobody_knows(_submission: int) -> str | None:
    """An `OwnerOf` that knows of no submission."""
    return None


def is_of_clients(multi: Multi) -> bool:
    """Whether a client does such a thing at all, whoever he is. Cost: O(operations)."""
    allowed = OPERATIONS.get(multi.name)
    if allowed is None or (multi.name == "HAND" and tuple(place_of(op.path) for op in multi.ops) != _HAND):
        return False
    for op in multi.ops:
        if (type(op), place_of(op.path)) not in allowed:
            return False
        if isinstance(op, Create) and op.ephemeral is not (multi.name == "ENTER"):
            return False
    return True


def check_commit(person: Person, multi: Multi, owner_of: OwnerOf = nobody_knows) -> frozenset[str]:
    """Raises PermissionDenied unless `person` may commit `multi` through a gateway; returns whose work it changes, but for his own.

    Of submissions that are there; of a new one `check_new` asks.

    Cost: O(operations), and what `owner_of` costs for each submission that it touches.
    """
    if not is_of_clients(multi):
        raise PermissionDenied(f"{multi.name}: clients of a gateway may not do this", hint="daemons need ZooKeeper itself: --zk")
    if person.is_open:
        return frozenset()
    if multi.name in OF_OPERATORS:
        check_operator(person, OF_OPERATORS[multi.name])
        return frozenset()
    if multi.name == "ASK" and any(_is_about_a_node(op) for op in multi.ops):
        check_operator(person, "emptying a node")
        return frozenset()
    others: set[str] = set()
    for op in multi.ops:
        number = submission_of(op)
        if number is None:
            continue
        owner = owner_of(number)
        check(person, number, owner)
        _check_record(op, number, owner)
        if owner is not None and owner != person.name:
            others.add(owner)
    return frozenset(others)


def _is_about_a_node(op: Op) -> bool:
    """A request that concerns everybody's jobs on a node."""
    return isinstance(op, Create) and validity.decode(op.data, AnyRequest, op.path).kind == StopKind.VACATE


def check_new(person: Person, record: Submission) -> None:
    """A new submission, which was built anew and so is one in every respect, is the caller's own. Raises PermissionDenied."""
    if not person.is_open and record.user != person.name:
        raise PermissionDenied(f"SUBMIT: {person.name} cannot submit for {record.user}", hint="work belongs to whoever submits it")


def check_timely(person: Person, record: Submission, now_s: float) -> None:
    """Starters will not refuse a new submission for the time at which it was signed. Raises UsageError."""
    if not person.is_open and (why := nonces.untimely(record, now_s, "the gateway's clock")):
        raise UsageError(f"SUBMIT: {why}", hint="set the clock of the machine that signs, then submit it again")


def _check_record(op: Op, number: int, owner: str | None) -> None:
    """A submission stays whose it is."""
    if isinstance(op, Set) and place_of(op.path) is ZnodeKind.RECORD:
        record = validity.decode(op.data, Submission, op.path)
        if (record.id, record.user) != (number, owner):
            raise PermissionDenied(f"submission {number} belongs to {owner}, and cannot be given away")


def check_create(person: Person, path: str) -> None:
    """Of empty znodes only the directories of queues are made, by those who make queues. Raises PermissionDenied."""
    check_operator(person, "making a queue")
    if path != paths.QUEUES and place_of(path) is not ZnodeKind.QUEUE:
        raise PermissionDenied(f"{path}: clients of a gateway may not make it", hint="daemons need ZooKeeper itself: --zk")


def check_read(person: Person, kind: str, path: str, owner_of: OwnerOf = nobody_knows) -> None:
    """kind: get, stat, children. Raises PermissionDenied: of others' work a user sees names, no more.

    What is not there is nobody's, and may be looked for.
    """
    if person.is_free:
        return
    root = f"/{path.split('/')[1]}" if path != "/" else path
    if root in _SECRET:
        raise PermissionDenied(f"{root} is for daemons and the admin")
    number = submission_of(path)
    if number is None:
        if root == paths.INBOX and kind == "get":
            raise PermissionDenied("orders are read by the nodes that they are for")
        return
    if kind != "get" and not path.startswith(f"{paths.SUBS}/"):
        return  # that a block waits, or runs, is in everybody's list
    owner = owner_of(number)
    if owner is not None:
        check(person, number, owner)


def check_answer(person: Person, path: str, data: bytes) -> None:
    """A record that was not there when `check_read` looked for its owner names him itself. Raises PermissionDenied."""
    if not person.is_free and place_of(path) is ZnodeKind.RECORD:
        record = validity.decode(data, Submission, path)
        check(person, record.id, record.user)


# -- paths -------------------------------------------------------------------------------------------------------------------


def submission_of(where: Op | str) -> int | None:
    """The submission whose work an operation changes, or a path belongs to; None for what belongs to no one submission."""
    path = where if isinstance(where, str) else where.path
    parts = path.split("/")
    root = f"/{parts[1]}" if len(parts) > 1 else ""
    try:
        if root == paths.SUBS and len(parts) > 3:
            return int(parts[3])
        if (root == paths.QUEUES and len(parts) > 4) or (root == paths.RUNNING and len(parts) > 3):
            name = parts[4] if root == paths.QUEUES else parts[3]
            return paths.parse_block(name if name[-1:] != "-" else f"{name}{0:010d}").submission
        if root == paths.INBOX and isinstance(where, (Create, Set)):
            return validity.decode(where.data, InboxOrder, path).submission
        if root == paths.REQUESTS and isinstance(where, (Create, Set)):
            return validity.decode(where.data, AnyRequest, path).submission
    except (ValueError, RmgrError):
        raise PermissionDenied(f"{path}: it cannot be told whose work that is") from None
    return None


def place_of(path: str) -> ZnodeKind:
    """What stands at `path`, as far as a client has to do with it; a name is compared with what its builder makes."""
    if path == paths.IDS:
        return ZnodeKind.IDS
    if path == paths.CONFIG:
        return ZnodeKind.CONFIG
    parts = path.split("/")
    if len(parts) < 3:
        return ZnodeKind.OTHER
    match f"/{parts[1]}":
        case paths.SUBS:
            return _of_submission(path, parts)
        case paths.QUEUES:
            return _of_queue(path, parts)
        case paths.NONCES if len(parts) == 3:
            return ZnodeKind.NONCE
        case paths.TOKENS if len(parts) == 3:
            return ZnodeKind.TOKEN
        case paths.SUBMITTERS if len(parts) == 3 and parts[2].startswith("s-"):
            return ZnodeKind.SUBMITTER
        case paths.DRAINS if len(parts) == 3:
            return ZnodeKind.DRAIN
        case paths.INBOX if len(parts) == 4:
            return ZnodeKind.ORDER
        case paths.REQUESTS if len(parts) == 3:
            return ZnodeKind.REQUEST
        case paths.IDENTITIES if len(parts) == 3:
            return ZnodeKind.IDENTITY
        case paths.NODES if len(parts) == 3:
            return ZnodeKind.NODE
        case paths.IDLE if len(parts) == 3:
            return ZnodeKind.IDLE
        case paths.RUNNING if len(parts) == 4:
            return ZnodeKind.RUNNING
    return ZnodeKind.OTHER


def _of_submission(path: str, parts: list[str]) -> ZnodeKind:
    if len(parts) == 3:
        return ZnodeKind.BUCKET if parts[2].isdecimal() else ZnodeKind.OTHER
    if not (parts[3].isascii() and parts[3].isdecimal() and len(parts[3]) <= 10):
        return ZnodeKind.OTHER
    number = int(parts[3])
    known = {
        paths.sub(number): ZnodeKind.RECORD,
        paths.gate(number): ZnodeKind.GATE,
        paths.tail(number): ZnodeKind.TAIL,
        paths.done(number): ZnodeKind.DONE,
        paths.failed(number): ZnodeKind.FAILED,
    }
    if path in known:
        return known[path]
    above = path.rpartition("/")[0]
    if above == paths.done(number) and path.startswith(paths.fragment_prefix(number)):
        return ZnodeKind.FRAGMENT
    return ZnodeKind.FAILED_RANGE if above == paths.failed(number) else ZnodeKind.OTHER


def _of_queue(path: str, parts: list[str]) -> ZnodeKind:
    name = parts[2]
    if path in {paths.queue(name), paths.pending(name), paths.held(name)}:
        return ZnodeKind.QUEUE
    above = path.rpartition("/")[0]
    if above == paths.pending(name):
        return ZnodeKind.PENDING
    return ZnodeKind.HELD if above == paths.held(name) else ZnodeKind.OTHER
