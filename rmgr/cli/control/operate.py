"""What an operator orders of the whole cluster: a node's drain, its settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rmgr.coord.decisions.rights import Person, check_operator
from rmgr.model.cluster.identity import Role

if TYPE_CHECKING:
    from rmgr.cli.session.context import Session
    from rmgr.model.cluster.node import Drain
    from rmgr.model.cluster.queue import ClusterSettings


def read_drain(session: Session, node: str) -> Drain | None:
    """The drain of a node, None when it has none."""
    from rmgr.submitter.questions import ReadDrain

    return session.ask(ReadDrain(node=node))


def drain_node(session: Session, node: str, reason: str) -> None:
    """Drains a node, or replaces the reason. Raises PermissionDenied, StateConflict, CoordinationUnavailable."""
    from rmgr.submitter.questions import DrainNode

    for_operators(session, "draining a node")
    session.ask(DrainNode(node=node, reason=reason))


def resume_node(session: Session, node: str) -> bool:
    """Ends the drain of a node; False when it was not drained. Raises PermissionDenied, StateConflict, CoordinationUnavailable."""
    from rmgr.submitter.questions import ResumeNode

    if read_drain(session, node) is None:
        return False
    for_operators(session, "resuming a node")
    return session.ask(ResumeNode(node=node))


def forget_node(session: Session, name: str) -> None:
    """No screen shows the node any more; a Starter that registers it anew brings it back.

    Raises: StateConflict unless it is stopped, empty and (in a secured cluster) revoked; PermissionDenied unless ZooKeeper lets him.
    """
    from rmgr.submitter.questions import ForgetNode

    session.ask(ForgetNode(node=name))


def for_operators(session: Session, what: str) -> None:
    """Says at once in words what would be refused; a gateway knows who is one, and says so itself. Raises PermissionDenied."""
    credentials = session.credentials()
    if credentials is not None and not session.config().cluster.uses_gateway:
        who = credentials.identity
        check_operator(Person(name=who.name, role=who.role, is_operator=who.role is not Role.USER), what)


def read_settings(session: Session) -> tuple[ClusterSettings, int]:
    """The cluster's settings with their version. Raises StateConflict where there are none."""
    from rmgr.submitter.questions import ReadSettings

    told = session.ask(ReadSettings())
    return told.settings, told.version


def apply_settings(session: Session, settings: ClusterSettings, version: int) -> None:
    """Replaces the settings that were read at `version`, making the directories of new queues first.

    Raises: StateConflict when somebody else has changed them meanwhile, or when a queue goes that still holds work.
    """
    from rmgr.submitter.questions import ApplySettings

    session.ask(ApplySettings(settings=settings, version=version))
