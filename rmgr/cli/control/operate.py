"""Commits an operator's changes at once, not through the leader: a node's drain, the cluster's settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from rmgr.coord.decisions.rights import Person, check_operator
from rmgr.coord.ops import operator as operator_ops
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Committed, Conflict, Multi
from rmgr.coord.protocol.records import decode_record
from rmgr.errors import CoordinationUnavailable, PermissionDenied, StateConflict
from rmgr.model.base.units import counted
from rmgr.model.cluster.identity import Role
from rmgr.model.cluster.node import Drain, NodeRecord, NodeState
from rmgr.model.cluster.queue import ClusterSettings

if TYPE_CHECKING:
    from rmgr.cli.session.context import Session

#: Somebody else may change the same thing meanwhile; so often it is read and tried again.
_TRIES = 5


def read_drain(session: Session, node: str) -> Drain | None:
    """The drain of a node, None when it has none."""
    found = _get(session, paths.drain(node))
    drain = decode_record(found[0], Drain, paths.drain(node)) if found else None
    return None if drain is None or drain.is_over else drain


def drain_node(session: Session, node: str, reason: str) -> None:
    """Drains a node, or replaces the reason. Raises PermissionDenied, StateConflict, CoordinationUnavailable."""
    for_operators(session, "draining a node")
    record = _drain(session, node, reason)

    def attempt() -> Multi:
        found = _get(session, paths.drain(node))
        return operator_ops.drain(record, found[1] if found else None)

    _commit(session, attempt, f"the drain of {node}")


def resume_node(session: Session, node: str) -> bool:
    """Ends the drain of a node; False when it was not drained. Raises StateConflict, CoordinationUnavailable."""
    if read_drain(session, node) is None:
        return False
    for_operators(session, "resuming a node")
    record = _drain(session, node, "")

    def attempt() -> Multi | None:
        found = _get(session, paths.drain(node))
        return operator_ops.resume(record, found[1]) if found else None

    _commit(session, attempt, f"the drain of {node}")
    return True


def _drain(session: Session, node: str, reason: str) -> Drain:
    from rmgr.cli.display.render import now_us

    return Drain(node=node, reason=reason, user=session.me, since_us=now_us())


def forget_node(session: Session, name: str) -> None:
    """No screen shows the node any more; a Starter that registers it anew brings it back.

    Raises: StateConflict unless it is stopped, empty and (in a secured cluster) revoked; PermissionDenied unless ZooKeeper lets him.
    """
    timeout_s = session.left_s(10.0) or 10.0
    coordinator = session.coordinator()

    def attempt() -> Multi:
        found = _get(session, paths.node(name))
        assert found is not None, name
        record = decode_record(found[0], NodeRecord, paths.node(name))
        if record.state is not NodeState.FENCED:
            raise StateConflict(
                f"{name} is not stopped, so it is not forgotten", hint=f"stop its Starter on {record.host or name}; rmgr nodes {name}"
            )
        if coordinator.children(paths.running_node(name), timeout_s=timeout_s).result(timeout_s + 1.0):
            raise StateConflict(f"{name} has work that the leader has not taken away yet", hint=f"try again; rmgr nodes {name}")
        if record.key_id and _get(session, paths.revoked(record.key_id)) is None:
            told = f"the credentials of {name} are still believed"
            raise StateConflict(told, hint=f"rmgr admin revoke {name} --role starter; then this again")
        return operator_ops.forget(record, found[1])

    try:
        _commit(session, attempt, f"the record of {name}")
    except PermissionDenied as error:
        raise PermissionDenied(f"{name}: forgetting a node is for the admin", hint="run it with the bundle of rmgr admin init") from error


def for_operators(session: Session, what: str) -> None:
    """Says in words what ZooKeeper would refuse; a gateway knows who is one, and says so itself. Raises PermissionDenied."""
    credentials = session.credentials()
    if credentials is not None and not session.config().cluster.uses_gateway:
        who = credentials.identity
        check_operator(Person(name=who.name, role=who.role, is_operator=who.role is not Role.USER), what)


def read_settings(session: Session) -> tuple[ClusterSettings, int]:
    """The cluster's settings with their version."""
    found = _get(session, paths.CONFIG)
    if found is None:
        raise StateConflict("the cluster has no settings", hint="rmgr doctor")
    return decode_record(found[0], ClusterSettings, paths.CONFIG), found[1]


def apply_settings(session: Session, settings: ClusterSettings, version: int) -> None:
    """Replaces the settings that were read at `version`, making the directories of new queues first.

    Raises: StateConflict when somebody else has changed them meanwhile, or when a queue goes that still holds work.
    """
    for_operators(session, "changing the settings of the cluster")
    coordinator = session.coordinator()
    timeout_s = session.left_s(10.0) or 10.0
    old, _ = read_settings(session)
    for queue in old.queues:
        if settings.queue(queue.name) is None:
            for path in (paths.pending(queue.name), paths.held(queue.name)):
                names = coordinator.children(path, timeout_s=timeout_s).result(timeout_s + 1.0)
                if names:
                    raise StateConflict(
                        f"queue {queue.name} still holds work ({counted(len(names), 'block')}), so it cannot be removed",
                        hint=f'let it run dry first (state = "closed"), or: rmgr cancel --queue {queue.name} --user USER',
                    )
    directories = [path for queue in settings.queues for path in (paths.pending(queue.name), paths.held(queue.name))]
    coordinator.ensure(directories, timeout_s=timeout_s)
    from rmgr.cli.display.render import now_us

    settings = replace(settings, changed_by=session.me, changed_us=now_us())
    answer = coordinator.commit(operator_ops.set_settings(settings, version), timeout_s=timeout_s).result(timeout_s + 5.0)
    match answer:
        case Committed():
            return
        case Conflict():
            raise StateConflict(
                "somebody else has changed the settings just now; nothing was changed", hint="look again: rmgr config show --cluster"
            )
    raise CoordinationUnavailable("it is not known whether the settings were changed", hint="look: rmgr config show --cluster")


def _get(session: Session, path: str) -> tuple[bytes, int] | None:
    timeout_s = session.left_s(10.0) or 10.0
    found = session.coordinator().get(path, timeout_s=timeout_s).result(timeout_s + 1.0)
    return (found.data, found.stat.version) if found is not None else None


def _commit(session: Session, attempt: Callable[[], Multi | None], what: str) -> None:
    for _ in range(_TRIES):
        multi = attempt()
        if multi is None:
            return
        timeout_s = session.left_s(10.0) or 10.0
        answer = session.coordinator().commit(multi, timeout_s=timeout_s).result(timeout_s + 5.0)
        match answer:
            case Committed():
                return
            case Conflict():
                continue
        raise CoordinationUnavailable(f"it is not known whether {what} was changed", hint="look, and try again: rmgr nodes")
    raise StateConflict(f"{what} keeps being changed by somebody else", hint="rmgr nodes")
