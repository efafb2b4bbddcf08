"""What a client may do through a gateway: deny by default, decided from the change itself and not only from its name.

One table: for each operation of protocol.md that a client does, which znodes it may touch and how. Whatever fences,
claims, completes, registers or leads is not in it, so it is refused under every name.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto

from rmgr.coord import paths
from rmgr.coord.multi import Check, Create, Delete, Multi, Op, Set
from rmgr.errors import PermissionDenied


class Place(Enum):
    """Kinds of znodes that a client may have to do with."""

    IDS = auto()
    CONFIG = auto()
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
    OTHER = auto()


_Allowed = frozenset[tuple[type[Op], Place]]


def _set(*places: Place) -> _Allowed:
    return frozenset((Set, place) for place in places)


def _create(*places: Place) -> _Allowed:
    return frozenset((Create, place) for place in places)


def _delete(*places: Place) -> _Allowed:
    return frozenset((Delete, place) for place in places)


_P = Place
_ENTER_QUEUE = _create(_P.PENDING, _P.HELD)

#: Operation -> what it consists of. A multi of this name that does anything else is refused.
OPERATIONS: dict[str, _Allowed] = {
    # a Submitter
    "SUBMIT": _set(_P.IDS) | _create(_P.TOKEN, _P.BUCKET, _P.RECORD, _P.TAIL, _P.DONE, _P.FAILED, _P.GATE) | _ENTER_QUEUE,
    "ENQUEUE": _set(_P.TAIL) | _ENTER_QUEUE | _create(_P.FRAGMENT),
    "RESUBMIT": _delete(_P.FAILED_RANGE) | _ENTER_QUEUE,
    "GIVE_UP": _delete(_P.FAILED_RANGE) | _create(_P.FRAGMENT),
    "CANCEL_FAILED": _delete(_P.FAILED_RANGE) | _create(_P.FRAGMENT),
    "TAKE_OUT": _delete(_P.PENDING, _P.HELD) | _ENTER_QUEUE | _create(_P.FRAGMENT),
    "SET_ASIDE": _delete(_P.PENDING) | _create(_P.HELD),
    "BRING_BACK": _delete(_P.HELD) | _ENTER_QUEUE | {(Check, _P.GATE)},
    "ENTER": _create(_P.SUBMITTER),
    "TAKE_OWNERSHIP": _set(_P.RECORD, _P.TAIL),
    "RELEASE": _set(_P.RECORD),
    # a user
    "GATE": _set(_P.RECORD) | _create(_P.GATE) | _delete(_P.GATE),
    "ORDER": _create(_P.ORDER),
    # an operator
    "DRAIN": _create(_P.DRAIN) | _set(_P.DRAIN),
    "RESUME": _delete(_P.DRAIN),
    "SETTINGS": _set(_P.CONFIG),
}

#: Rows that belong to the cluster itself.
_CLUSTERS_OWN = "meta/"


def permitted(user: str, multi: Multi) -> bool:
    """Whether `user` may commit `multi` through a gateway. Cost: O(operations).

    The user is who the client says he is; what users may do to each other's work is decided here once it is known.
    """
    del user
    allowed = OPERATIONS.get(multi.name)
    if allowed is None:
        return False
    for op in multi.ops:
        if (type(op), place_of(op.path)) not in allowed:
            return False
        if isinstance(op, Create) and op.ephemeral is not (multi.name == "ENTER"):
            return False
    return True


def check_commit(user: str, multi: Multi) -> None:
    """Raises PermissionDenied unless `permitted`."""
    if not permitted(user, multi):
        raise PermissionDenied(f"{multi.name}: clients of a gateway may not do this", hint="daemons need ZooKeeper itself: --zk")


def check_create(user: str, path: str) -> None:
    """Of empty znodes only the directories of queues are made. Raises PermissionDenied."""
    del user
    if path != paths.QUEUES and place_of(path) is not Place.QUEUE:
        raise PermissionDenied(f"{path}: clients of a gateway may not make it", hint="daemons need ZooKeeper itself: --zk")


def check_store(user: str, verb: str, keys: Sequence[str]) -> None:
    """verb: PUT, DELETE, SWEEP, BIND. Raises PermissionDenied."""
    del user
    if verb not in {"PUT", "DELETE"}:
        raise PermissionDenied(f"{verb.lower()}: clients of a gateway may not do this to the store")
    mine = next((key for key in keys if key.startswith(_CLUSTERS_OWN)), None)
    if mine is not None:
        raise PermissionDenied(f"the row {mine!r} belongs to the cluster")


# -- paths -------------------------------------------------------------------------------------------------------------------


def place_of(path: str) -> Place:
    """What stands at `path`, as far as a client has to do with it; a name is compared with what its builder makes."""
    if path == paths.IDS:
        return Place.IDS
    if path == paths.CONFIG:
        return Place.CONFIG
    parts = path.split("/")
    if len(parts) < 3:
        return Place.OTHER
    match f"/{parts[1]}":
        case paths.SUBS:
            return _of_submission(path, parts)
        case paths.QUEUES:
            return _of_queue(path, parts)
        case paths.TOKENS if len(parts) == 3:
            return Place.TOKEN
        case paths.SUBMITTERS if len(parts) == 3 and parts[2].startswith("s-"):
            return Place.SUBMITTER
        case paths.DRAINS if len(parts) == 3:
            return Place.DRAIN
        case paths.INBOX if len(parts) == 4:
            return Place.ORDER
    return Place.OTHER


def _of_submission(path: str, parts: list[str]) -> Place:
    if len(parts) == 3:
        return Place.BUCKET if parts[2].isdecimal() else Place.OTHER
    if not parts[3].isdecimal():
        return Place.OTHER
    number = int(parts[3])
    known = {
        paths.sub(number): Place.RECORD,
        paths.gate(number): Place.GATE,
        paths.tail(number): Place.TAIL,
        paths.done(number): Place.DONE,
        paths.failed(number): Place.FAILED,
    }
    if path in known:
        return known[path]
    above = path.rpartition("/")[0]
    if above == paths.done(number) and path.startswith(paths.fragment_prefix(number)):
        return Place.FRAGMENT
    return Place.FAILED_RANGE if above == paths.failed(number) else Place.OTHER


def _of_queue(path: str, parts: list[str]) -> Place:
    name = parts[2]
    if path in {paths.queue(name), paths.pending(name), paths.held(name)}:
        return Place.QUEUE
    above = path.rpartition("/")[0]
    if above == paths.pending(name):
        return Place.PENDING
    return Place.HELD if above == paths.held(name) else Place.OTHER
