"""What operators order of nodes and of the whole cluster (`rmgr drain`, `resume`, settings), and jobs that move to other nodes
(`rmgr checkpoint`, `migrate`, `drain --migrate`).
"""

from __future__ import annotations

import contextlib
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import click

from rmgr.cli.display.render import emit
from rmgr.cli.session import Session, WorkEnded, command
from rmgr.cli.session.tables import find_one, named_nodes, positions_of
from rmgr.cli.words.params import DURATION_US, missing
from rmgr.coord.decisions.rights import Person, check_operator
from rmgr.errors import (
    CoordinationUnavailable,
    DeadlineExceeded,
    Infeasible,
    NotFound,
    PermissionDenied,
    RmgrError,
    StateConflict,
    Unavailable,
)
from rmgr.model.block import StopRequest, job_label
from rmgr.model.identity import Role
from rmgr.model.states import State
from rmgr.model.submission import shown_index
from rmgr.model.units import counted
from rmgr.runtime import machine
from rmgr.runtime.machine import Backoff
from rmgr.submitter import questions

if TYPE_CHECKING:
    from rmgr.model.node import Drain
    from rmgr.model.queue import ClusterSettings
    from rmgr.model.submission import Submission
    from rmgr.model.views import TaskView

_Answer = TypeVar("_Answer")
_Order: TypeAlias = questions.MoveTask | questions.VacateNode
_EXITS = "0 ok, 3 no such node, 5 ZooKeeper cannot be reached"
_MOVED_EXITS = """\
0 done (of several: some were), 1 it was refused or the job has ended (it says why), 2 usage, or no node could run it, 3 no such id or node,
4 not yours, 5 ZooKeeper or the store cannot be reached, 6 not known within --timeout: it goes on"""
#: Wait in seconds without --timeout: a job may take long to save its state, and so may storing it.
_PATIENCE_S = 3600.0
_ERRORS: dict[str, type[RmgrError]] = {kind.code: kind for kind in (Infeasible, NotFound, PermissionDenied, StateConflict, Unavailable)}
#: Time limit of one question, and the first and the longest pause between two looks at an answer (s).
_ASK_S, _SOON_S, _SELDOM_S = 10.0, 0.02, 1.0
_LAST_LOOK_S = 1.0
_GRACE = "how long it may take to save its state  [as it was submitted with: --checkpoint-grace]"


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
@click.option("--migrate", is_flag=True, help="have placed jobs there save their state and continue elsewhere; wait for them")
def drain(session: Session, nodes: tuple[str, ...], reason: str, migrate: bool) -> None:
    """Lets nodes finish their work and take no more. Draining a node again with a reason replaces the former."""
    names = named_nodes(nodes, session.query().nodes())
    for node in names:
        drain_node(session, node, reason)
    more: dict[str, dict[str, Any]] = {node: {} for node in names}
    for node in names:
        if migrate:
            more[node] = _empty_node(session, node)
        elif not session.json:
            sys.stdout.write(f"{node} drains: it finishes what it has and takes nothing new (rmgr resume {node})\n")
    _print_states(session, names, more)
    if any(found.get("left") for found in more.values()):
        raise WorkEnded(1)


def _empty_node(session: Session, node: str) -> dict[str, Any]:
    """Moves the node's placed jobs elsewhere; returns the jobs `moved`, and those `left` with the reason."""
    (answer,) = _order_moves(session, [(node, questions.VacateNode(node=node, guid=uuid.uuid4().hex))])
    if isinstance(answer, RmgrError):
        raise answer
    shown = _ids_of_jobs(session, [(number, index) for number, index, _ in (*answer.done, *answer.left)])
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
    _print_states(session, names, {node: {} for node in names})


def _print_states(session: Session, names: Sequence[str], more: dict[str, dict[str, Any]]) -> None:
    """Prints, with --json, the state of each node, or the object of a single node alone."""
    if not session.json:
        return
    views = {view.id: view for view in session.query().nodes()}
    found = [{**_state_of(session, name, views[name]), **more[name]} for name in names]
    emit(found[0] if len(found) == 1 else {"nodes": found})


def _state_of(session: Session, name: str, view: Any) -> dict[str, Any]:
    drained = read_drain(session, name)
    state = str(view.state)
    if drained is not None and state == "up":  # the leader has not noticed the drain yet
        state = "draining" if view.running else "drained"
    elif drained is None and state in {"draining", "drained"}:
        state = "up"
    return {"node": name, "state": state, "reason": drained.reason if drained is not None else "" if state == "up" else view.reason}

# -- `rmgr checkpoint`, `migrate`, and the second half of `drain --migrate`: jobs save their state, and go on elsewhere --------


@command(
    "checkpoint",
    examples="""\
    rmgr checkpoint 42                    asks the job to save its state, waits until that is stored
    rmgr checkpoint 42_7 --grace 5m
    rmgr checkpoint last --json --timeout 10m""",
    exits=_MOVED_EXITS,
)
@click.argument("selector", metavar="ID")
@click.option("--grace", "grace_us", type=DURATION_US, metavar="TIME", default=0, help=_GRACE)
def checkpoint(session: Session, selector: str, grace_us: int) -> None:
    """Asks a running placed job to save its state, and stores the result; the job continues.

    A job that answers by ending with exit code 85 is run again from its saved state.
    """
    _ask_jobs(session, selector, stays=True, grace_us=grace_us)


@command(
    "migrate",
    examples="""\
    rmgr migrate 42                       goes on on other nodes than it is on now
    rmgr migrate 42 --to n3               its next start is on n3, as soon as there is room
    rmgr migrate 42_7 --grace 1m --json""",
    exits=_MOVED_EXITS,
)
@click.argument("selector", metavar="ID")
@click.option("--to", metavar="NODE", default="", help="nodes to continue on  [any but the current ones]")
@click.option("--grace", "grace_us", type=DURATION_US, metavar="TIME", default=0, help=_GRACE)
def migrate(session: Session, selector: str, to: str, grace_us: int) -> None:
    """Asks a running placed job to save its state and end; it waits again, and continues elsewhere from its saved state.

    Returns when the job is back in its queue, or has refused. A job submitted with --no-requeue is never asked.
    """
    _ask_jobs(session, selector, to=to, grace_us=grace_us)


def _ids_of_jobs(session: Session, jobs: Sequence[tuple[int, int]]) -> dict[tuple[int, int], str]:
    """Returns (submission, position) -> the id that users know."""
    found = {}
    arrays: dict[int, str] = {}
    for number, index in jobs:
        if number not in arrays:
            try:
                arrays[number] = session.ask(questions.ReadRecord(number=number)).record.array
            except NotFound:  # the submission has ended meanwhile, and was removed
                arrays[number] = ""
        array = arrays[number]
        found[number, index] = f"{number}_{shown_index(array, index)}" if array else job_label(number, index)
    return found


def _ask_jobs(session: Session, selector: str, *, stays: bool = False, to: str = "", grace_us: int) -> None:
    record, tasks = _running(session, selector)
    if to and to not in (known := {node.id for node in session.query().nodes()}):
        raise missing("node", to, known, listed_by="rmgr nodes")
    asked = [
        (
            str(record.id) if not record.array and task.position == 0 else task.id,
            questions.MoveTask(
                number=record.id,
                guid=uuid.uuid4().hex,
                stays=stays,
                index=task.position,
                attempt=task.attempt,
                to=to or None,
                grace_us=grace_us,
            ),
        )
        for task in tasks
    ]
    done: list[dict[str, str]] = []
    left: list[dict[str, str]] = []
    errors: list[RmgrError] = []
    for (shown, order), answer in zip(asked, _order_moves(session, asked), strict=True):
        if isinstance(answer, RmgrError):
            errors.append(_latest_error(session, order, shown, answer))
            left.append({"id": shown, "why": errors[-1].message})
        else:
            done += [{"id": shown, "detail": told} for _, _, told in answer.done]
    if len(tasks) == 1 and errors:
        raise errors[0]
    session.answer(
        {"changed": [one["id"] for one in done], "unchanged": left, "details": done},
        "".join(f"{one['id']}: {one['detail']}\n" for one in done),
        *(f"{one['id']}: {one['why']}" for one in left),
    )
    worse = max((error.exit_code for error in errors if not isinstance(error, StateConflict)), default=0)
    if worse or (left and not done):
        raise WorkEnded(worse or 1)


def _latest_error(session: Session, order: questions.MoveTask, shown: str, error: RmgrError) -> RmgrError:
    """Returns the error to report for a job that refused, or that ended or was held meanwhile."""
    if not isinstance(error, StateConflict):
        return error
    state = next((task.state for task in session.query().tasks(order.number) if task.position == order.index), None)
    if state is State.HELD:
        return StateConflict(f"{shown} has left its nodes and is held: it goes on once it is released", hint=f"rmgr release {shown}")
    if state is not None and state.is_final:
        return StateConflict(f"{shown} has ended {state} meanwhile", hint=f"rmgr show {shown}")
    return error


def _running(session: Session, selector: str) -> tuple[Submission, Sequence[TaskView]]:
    """Returns the selected tasks that run. Raises: NotFound, PermissionDenied, StateConflict for anything but a running placed job."""
    target, job = find_one(session, selector)
    number = target.submission
    if job.state.is_final:
        raise StateConflict(f"{number} does not run: it has ended {job.state}", hint=f"rmgr show {number}")
    record = session.ask(questions.ReadRecord(number=number)).record
    if record.rigid is None:
        raise StateConflict(
            f"{number} is pulled work (queue {record.queue}): its tasks cannot save their state or move",
            hint="jobs of queues with dispatch place can: rmgr queues, then rmgr submit -q QUEUE",
        )
    wanted = set(positions_of(session, number, target.tasks)) if target.tasks else set()
    tasks = [task for task in session.query().tasks(number) if not wanted or task.position in wanted]
    found = [task for task in tasks if task.state in {State.RUNNING, State.STARTING, State.STOPPING, State.SUSPENDED}]
    if not found:
        states = ", ".join(sorted({str(task.state) for task in tasks})) or "gone"
        raise StateConflict(f"{selector} does not run: it is {states}", hint=f"rmgr explain {selector}")
    return record, found


def _order_moves(session: Session, asked: Sequence[tuple[str, _Order]]) -> list[StopRequest | RmgrError]:
    """Gives all orders at once: each takes as long as its job."""
    timeout_s = session.left_s(_PATIENCE_S)
    if not session.query().has_leader():
        session.note("no WatchDog leads just now: the one that will is asked")
    elif isinstance(asked[0][1], questions.MoveTask):
        shown = asked[0][0] if len(asked) == 1 else f"each of {counted(len(asked), 'job')}"
        session.note(f"{shown} is asked to save its state, and has its grace for that; Ctrl-C ends the wait, and no job")
    return move_each(session.asks(), asked, deadline_s=time.monotonic() + timeout_s)


def move_each(asks: questions.Asks, asked: Sequence[tuple[str, _Order]], *, deadline_s: float) -> list[StopRequest | RmgrError]:
    """Sends all orders, then waits for each answer.

    Args: asked: (the job or node, for messages; the order). deadline_s: monotonic.
    Returns: for each order the leader's answer (jobs that refused are in `left` if several were asked), or an error: the leader's
        (NotFound, StateConflict, Infeasible, Unavailable); DeadlineExceeded if nothing is known in time (the order stands until a
        leader carries it out); CoordinationUnavailable if it was not sent for certain. While ZooKeeper is away, answers are waited for.
    """

    def send(shown: str, order: _Order) -> None:
        asks.ask(order, timeout_s=_left_s(shown, order, deadline_s))

    sent = [(shown, order, _result_or_error(partial(send, shown, order))) for shown, order in asked]

    def answer(shown: str, order: _Order, error: RmgrError | None) -> StopRequest:
        if error is not None:
            raise error
        result = _wait_for_answer(asks, shown, order, deadline_s)
        if result.error:
            raise _ERRORS.get(result.code, RmgrError)(result.error, hint=result.hint)
        if not result.done and len(result.left) == 1 and isinstance(order, questions.MoveTask):
            raise StateConflict(result.left[0][2], hint=_look_at(order, shown))
        return result

    return [_result_or_error(partial(answer, *one)) for one in sent]


def _result_or_error(call: Callable[[], _Answer]) -> _Answer | RmgrError:
    try:
        return call()
    except RmgrError as error:
        return error


def _wait_for_answer(asks: questions.Asks, shown: str, order: _Order, deadline_s: float) -> StopRequest:
    """Waits for the answer to one order."""
    pauses = Backoff(_SOON_S, _SELDOM_S, factor=1.5)
    look: questions.ReadMoved | questions.ReadVacated
    if isinstance(order, questions.MoveTask):
        look = questions.ReadMoved(number=order.number, guid=order.guid)
    else:
        look = questions.ReadVacated(node=order.node, guid=order.guid)
    while True:
        with contextlib.suppress(CoordinationUnavailable):  # for a time: the order stands
            # Looks before it judges: a process that stood still has not read the answer that came meanwhile.
            found = asks.ask(look, timeout_s=max(_LAST_LOOK_S, min(_ASK_S, deadline_s - machine.monotonic())))
            if found.answered:
                return found
        machine.sleep(min(pauses.next_s(), _left_s(shown, order, deadline_s)))


def _left_s(shown: str, order: _Order, deadline_s: float) -> float:
    left_s = deadline_s - machine.monotonic()
    if left_s <= 0:
        raise DeadlineExceeded(f"{shown}: it is not known in time what came of it, and it goes on", hint=_look_at(order, shown))
    return min(_ASK_S, left_s)


def _look_at(order: _Order, shown: str) -> str:
    return f"rmgr nodes {order.node}; rmgr jobs" if isinstance(order, questions.VacateNode) else f"rmgr show {shown}; rmgr status"


# -- orders of operators -------------------------------------------------------------------------------------------------------


def read_drain(session: Session, node: str) -> Drain | None:
    """Returns the drain of a node, or None if it has none."""
    return session.ask(questions.ReadDrain(node=node))


def drain_node(session: Session, node: str, reason: str) -> None:
    """Drains a node, or replaces the reason. Raises PermissionDenied, StateConflict, CoordinationUnavailable."""
    for_operators(session, "draining a node")
    session.ask(questions.DrainNode(node=node, reason=reason))


def resume_node(session: Session, node: str) -> bool:
    """Ends the drain of a node; returns False if it was not drained. Raises PermissionDenied, StateConflict, CoordinationUnavailable."""
    if read_drain(session, node) is None:
        return False
    for_operators(session, "resuming a node")
    return session.ask(questions.ResumeNode(node=node))


def for_operators(session: Session, what: str) -> None:
    """Refuses early, in words, what ZooKeeper would refuse; a gateway knows the operators and refuses itself. Raises PermissionDenied."""
    credentials = session.shown_credentials()
    if credentials is not None and not session.config().cluster.uses_gateway:

        who = credentials.identity
        check_operator(Person(name=who.name, role=who.role, is_operator=who.role is not Role.USER), what)


def read_settings(session: Session) -> tuple[ClusterSettings, int]:
    """Returns the cluster's settings with their version. Raises StateConflict if there are none."""
    told = session.ask(questions.ReadSettings())
    return told.settings, told.version


def apply_settings(session: Session, settings: ClusterSettings, version: int) -> None:
    """Replaces the settings that were read at `version`; makes the directories of new queues first.

    Raises: StateConflict if somebody else has changed them meanwhile, or if a removed queue still holds work.
    """
    session.ask(questions.ApplySettings(settings=settings, version=version))
