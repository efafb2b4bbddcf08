"""What an operator orders of the whole cluster: `rmgr drain` and `resume` (nodes that take nothing new), its settings."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from rmgr.cli.display.render import emit
from rmgr.cli.session.command import command
from rmgr.cli.session.context import Session
from rmgr.cli.session.errors import WorkEnded
from rmgr.cli.words.params import nearest
from rmgr.errors import NotFound
from rmgr.model.base.units import counted

if TYPE_CHECKING:
    from rmgr.model.cluster.node import Drain
    from rmgr.model.cluster.queue import ClusterSettings
    from rmgr.model.views import NodeView

_EXITS = "0 ok, 3 no such node, 5 ZooKeeper cannot be reached"


@command(
    "drain",
    examples="""\
    rmgr drain n1 --reason 'fan replaced at noon'
    rmgr drain n1 n2; rmgr drain 'n[1-3],m7'
    rmgr drain n1 --migrate               its placed jobs save their state and go on elsewhere
    rmgr drain n1 --json""",
    exits=f"{_EXITS} (then none of several is drained); with --migrate: 1 a job stays there (it says why), 6 not known within --timeout",
)
@click.argument("nodes", nargs=-1, required=True, metavar="NODE...")
@click.option("--reason", metavar="TEXT", default="", help="shown to users who ask why nothing runs there")
@click.option("--migrate", is_flag=True, help="placed jobs there are asked to save their state, and go on elsewhere; waits for them")
def drain(session: Session, nodes: tuple[str, ...], reason: str, migrate: bool) -> None:
    """Lets nodes finish what they have and take nothing new. Drained again, the reason is replaced."""
    names = named_nodes(nodes, session.query().nodes())
    for node in names:
        drain_node(session, node, reason)
    more: dict[str, dict[str, Any]] = {node: {} for node in names}
    for node in names:
        if migrate:
            more[node] = _emptied(session, node)
        elif not session.json:
            sys.stdout.write(f"{node} drains: it finishes what it has and takes nothing new (rmgr resume {node})\n")
    _answer(session, names, more)
    if any(found.get("left") for found in more.values()):
        raise WorkEnded(1)


def _emptied(session: Session, node: str) -> dict[str, Any]:
    """Its placed jobs have gone on elsewhere, or say why not: `moved`, `left`."""
    from rmgr.cli.control.migrate import shown_jobs, vacate

    answer = vacate(session, node)
    shown = shown_jobs(session, [(number, index) for number, index, _ in (*answer.done, *answer.left)])
    moved = [shown[number, index] for number, index, _ in answer.done]
    left = [{"id": shown[number, index], "why": why} for number, index, why in answer.left]
    if not session.json:
        sys.stdout.write(f"{node} drains: {counted(len(moved), 'job')} left it{': ' * bool(moved)}{' '.join(moved)} (rmgr resume {node})\n")
        for number, index, what in answer.done:
            sys.stdout.write(f"{shown[number, index]}: {what}\n")
    for one in left:
        session.note(f"{one['id']} stays on {node}: {one['why']}")
    return {"moved": moved, "left": left}


@command("resume", examples="rmgr resume n1\nrmgr resume 'n[1-3]'", exits=_EXITS)
@click.argument("nodes", nargs=-1, required=True, metavar="NODE...")
def resume(session: Session, nodes: tuple[str, ...]) -> None:
    """Lets drained nodes take work again."""
    names = named_nodes(nodes, session.query().nodes())
    for node in names:
        was_drained = resume_node(session, node)
        if not session.json:
            sys.stdout.write(f"{node} takes work again\n" if was_drained else f"{node} was not drained\n")
    _answer(session, names, {node: {} for node in names})


def named_nodes(words: Sequence[str], found: Sequence[NodeView]) -> list[str]:
    """The nodes that `n1`, `n1,n2` or `n[1-3]` name, each once. Raises: UsageError; NotFound for one that is not there."""
    from rmgr.cli.words.placed_options import parse_nodes

    names = list(dict.fromkeys(name for word in words for name in parse_nodes(word)))
    known = {node.id for node in found}
    for name in names:
        if name not in known:  # the nearest one is named
            raise NotFound(f"there is no node {name!r}", hint=nearest("node", name, known, listed_by="rmgr nodes").hint)
    return names


def _answer(session: Session, names: Sequence[str], more: dict[str, dict[str, Any]]) -> None:
    """With --json: how each node stands now; of one node alone its own object."""
    if not session.json:
        return
    views = {view.id: view for view in session.query().nodes()}
    found = [{**_state(session, name, views[name]), **more[name]} for name in names]
    emit(found[0] if len(found) == 1 else {"nodes": found})


def _state(session: Session, name: str, view: Any) -> dict[str, Any]:
    drained = read_drain(session, name)
    state = str(view.state)
    if drained is not None and state == "up":  # the leader has not seen it yet
        state = "draining" if view.running else "drained"
    elif drained is None and state in {"draining", "drained"}:
        state = "up"
    return {"node": name, "state": state, "reason": drained.reason if drained is not None else "" if state == "up" else view.reason}


# -- orders of operators -------------------------------------------------------------------------------------------------------


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
    credentials = session.shown_credentials()
    if credentials is not None and not session.config().cluster.uses_gateway:
        from rmgr.coord.decisions.rights import Person, check_operator
        from rmgr.model.cluster.identity import Role

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
