"""Answers a client's single requests at a gateway: the paths that it takes, the forms of outcomes and of long lists."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from rmgr.adapters.zookeeper.session import SessionCoordinator
from rmgr.coord.protocol.multi import Committed, Conflict, ConflictKind, Multi, Unknown
from rmgr.errors import CoordinationUnavailable, RmgrError, StateConflict, UsageError


def check_path(path: str) -> str:
    """Returns `path` if it is one below the cluster's root. Raises UsageError: a crooked one could lead out of it."""
    parts = path.split("/")
    if path != "/" and (len(parts) < 2 or parts[0] or any(part in {"", ".", ".."} or "\0" in part for part in parts[1:])):
        raise UsageError(f"{path[:200]!r} is not the path of a znode")
    return path


def refused(kind: str) -> Future[Any]:
    """The answer to what was asked in a session that is gone."""
    cause = "the session in which it was asked is gone"
    future: Future[Any] = Future()
    if kind == "commit":
        future.set_result(Unknown(cause))
    else:
        future.set_exception(CoordinationUnavailable(f"ZooKeeper: {cause}"))
    return future


@dataclass(frozen=True, slots=True)
class RequestedCommit:
    """A change that a client may make. then: called when it has been made, before the answer; met: with the conflict otherwise.
    Both must not block."""

    multi: Multi
    then: Callable[[], None] | None = None
    met: Callable[[Conflict], None] | None = None


def committed(
    permitted: RequestedCommit | Conflict,
    coordinator: SessionCoordinator,
    timeout_s: float,
    *,
    name: str,
    count: Callable[[str, str], None],
) -> Future[Any]:
    """What a client asks for, as the gateway has built it, or the conflict that it would meet. name: of the operation, for the count."""
    if isinstance(permitted, Conflict):
        future: Future[Any] = Future()
        future.set_result(permitted)
        count("committed", f"{name} {Conflict.__name__}")
        return future
    future = coordinator.commit(permitted.multi, timeout_s=timeout_s)

    def ended(done: Future[Any]) -> None:
        outcome = outcome_name(done)
        count("committed", f"{name} {outcome}")
        if permitted.then is not None and outcome == Committed.__name__:
            permitted.then()
        elif permitted.met is not None and outcome == Conflict.__name__:
            permitted.met(done.result(0))

    future.add_done_callback(ended)
    return future


def made(outcome: object) -> RmgrError | None:
    """What a create comes to."""
    match outcome:
        case Committed() | Conflict(kind=ConflictKind.NODE_EXISTS):
            return None
        case Conflict(path=path):
            return StateConflict(f"{path} cannot be made: its parent does not exist")
    return CoordinationUnavailable("it is not known whether the znode was made", hint="rmgr doctor")


def outcome_name(done: Future[Any]) -> str:
    """How a commit ended, for the count."""
    with contextlib.suppress(Exception):
        return type(done.result(0)).__name__
    return "Failed"


def name_pieces(names: Sequence[str], size_bytes: int) -> Iterator[Sequence[str]]:
    """Names in pieces of about `size_bytes`; at least one, perhaps empty."""
    start, size = 0, 0
    for at, name in enumerate(names):
        size += len(name) + 4
        if size > size_bytes:
            yield names[start:at]
            start, size = at, len(name) + 4
    yield names[start:]
