"""`rmgr checkpoint`, `migrate`, and the second half of `drain --migrate`: jobs that run save their state, and go on elsewhere."""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from rmgr.cli.display.render import emit
from rmgr.cli.session.command import command
from rmgr.cli.session.context import Session
from rmgr.cli.session.errors import WorkEnded
from rmgr.cli.session.tables import positions_of
from rmgr.cli.words.params import DURATION_US
from rmgr.cli.words.selectors import parse_one, resolve
from rmgr.errors import NotFound, RmgrError, StateConflict
from rmgr.model.base.states import State
from rmgr.model.base.units import counted

if TYPE_CHECKING:
    from rmgr.model.tasks.array import Array
    from rmgr.model.tasks.request import StopRequest
    from rmgr.model.tasks.submission import Submission
    from rmgr.model.views import TaskView
    from rmgr.submitter.questions import MoveTask, VacateNode

_EXITS = """\
0 done (of several: some were), 1 it was refused or the job has ended (it says why), 2 usage, or no node could run it, 3 no such id or node,
4 not yours, 5 ZooKeeper or the store cannot be reached, 6 not known within --timeout: it goes on"""
#: Without --timeout: a job may take long to save its state, and so may storing it.
_PATIENCE_S = 3600.0
_GRACE = "how long it may take to save its state  [as it was submitted with: --checkpoint-grace]"


@command(
    "checkpoint",
    examples="""\
    rmgr checkpoint 42                    asks the job to save its state, waits until that is stored
    rmgr checkpoint 42_7 --grace 5m
    rmgr checkpoint last --json --timeout 10m""",
    exits=_EXITS,
)
@click.argument("selector", metavar="ID")
@click.option("--grace", "grace_us", type=DURATION_US, metavar="TIME", default=0, help=_GRACE)
def checkpoint(session: Session, selector: str, grace_us: int) -> None:
    """Asks a placed job that runs to save its state, and stores what it has saved; the job goes on.

    One that ends with exit code 85 as its answer is run again, from what it has saved.
    """
    _ask_all(session, selector, stays=True, grace_us=grace_us)


@command(
    "migrate",
    examples="""\
    rmgr migrate 42                       goes on on other nodes than it is on now
    rmgr migrate 42 --to n3               its next start is on n3, as soon as there is room
    rmgr migrate 42_7 --grace 1m --json""",
    exits=_EXITS,
)
@click.argument("selector", metavar="ID")
@click.option("--to", metavar="NODE", default="", help="where it goes on  [any node but those that it is on]")
@click.option("--grace", "grace_us", type=DURATION_US, metavar="TIME", default=0, help=_GRACE)
def migrate(session: Session, selector: str, to: str, grace_us: int) -> None:
    """Asks a placed job that runs to save its state and to end; it waits again, and goes on elsewhere from what it has saved.

    Returns when the job is back in its queue, or has refused. A job that was submitted with --no-requeue is never asked.
    """
    _ask_all(session, selector, to=to, grace_us=grace_us)


def vacate(session: Session, node: str) -> StopRequest:
    """Every placed job with a part on a drained node goes on elsewhere. Raises as `move_each` returns."""
    from rmgr.submitter.questions import VacateNode

    (answer,) = _ask(session, [(node, VacateNode(node=node, guid=uuid.uuid4().hex))])
    if isinstance(answer, RmgrError):
        raise answer
    return answer


def shown_jobs(session: Session, jobs: Sequence[tuple[int, int]]) -> dict[tuple[int, int], str]:
    """(submission, position) -> the id that people know."""
    from rmgr.model.tasks.array import shown_index
    from rmgr.model.tasks.placing import job_label
    from rmgr.submitter.questions import ReadRecord

    found = {}
    arrays: dict[int, str] = {}
    for number, index in jobs:
        if number not in arrays:
            try:
                arrays[number] = session.ask(ReadRecord(number=number)).record.array
            except NotFound:  # it has ended meanwhile, and was removed
                arrays[number] = ""
        array = arrays[number]
        found[number, index] = f"{number}_{shown_index(array, index)}" if array else job_label(number, index)
    return found


def _ask_all(session: Session, selector: str, *, stays: bool = False, to: str = "", grace_us: int) -> None:
    from rmgr.submitter.questions import MoveTask

    record, tasks = _running(session, selector)
    if to and to not in (known := {node.id for node in session.query().nodes()}):
        from rmgr.cli.words.params import nearest

        raise NotFound(f"there is no node {to!r}", hint=nearest("node", to, known, listed_by="rmgr nodes").hint)
    asked = [
        (
            str(record.id) if not record.array and task.position == 0 else task.id,
            MoveTask(
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
    for (shown, order), answer in zip(asked, _ask(session, asked), strict=True):
        if isinstance(answer, RmgrError):
            errors.append(_since(session, order, shown, answer))
            left.append({"id": shown, "why": errors[-1].message})
        else:
            done += [{"id": shown, "detail": told} for _, _, told in answer.done]
    if len(tasks) == 1 and errors:
        raise errors[0]
    if session.json:
        emit({"changed": [one["id"] for one in done], "unchanged": left, "details": done})
    else:
        for one in done:
            sys.stdout.write(f"{one['id']}: {one['detail']}\n")
        for one in left:
            session.note(f"{one['id']}: {one['why']}")
    worse = max((error.exit_code for error in errors if not isinstance(error, StateConflict)), default=0)
    if worse or (left and not done):
        raise WorkEnded(worse or 1)


def _since(session: Session, order: MoveTask, shown: str, error: RmgrError) -> RmgrError:
    """What is said of a job that refused, or was ended or held meanwhile."""
    if not isinstance(error, StateConflict):
        return error
    state = next((task.state for task in session.query().tasks(order.number) if task.position == order.index), None)
    if state is State.HELD:
        return StateConflict(f"{shown} has left its nodes and is held: it goes on once it is released", hint=f"rmgr release {shown}")
    if state is not None and state.is_final:
        return StateConflict(f"{shown} has ended {state} meanwhile", hint=f"rmgr show {shown}")
    return error


def _running(session: Session, selector: str) -> tuple[Submission, Sequence[TaskView]]:
    """What was selected, as far as it runs. Raises: NotFound, PermissionDenied, StateConflict for what is no placed job that runs."""
    from rmgr.submitter.questions import ReadRecord

    selection = parse_one(selector)
    number = selection.named[0] if selection.named else resolve(selection, session.query().jobs(ended=True), me=session.me)[0].submission
    job = session.query().job(number)
    if job.state.is_final:
        raise StateConflict(f"{number} does not run: it has ended {job.state}", hint=f"rmgr show {number}")
    record = session.ask(ReadRecord(number=number)).record
    if record.rigid is None:
        raise StateConflict(
            f"{number} is pulled work (queue {record.queue}): its tasks cannot save their state or move",
            hint="jobs of queues with dispatch place can: rmgr queues, then rmgr submit -q QUEUE",
        )
    wanted = {position for one, array in selection.tasks for position in positions_of(session, one, _numbers(array))}
    tasks = [task for task in session.query().tasks(number) if not wanted or task.position in wanted]
    found = [task for task in tasks if task.state in {State.RUNNING, State.STARTING, State.STOPPING, State.SUSPENDED}]
    if not found:
        states = ", ".join(sorted({str(task.state) for task in tasks})) or "gone"
        raise StateConflict(f"{selector} does not run: it is {states}", hint=f"rmgr explain {selector}")
    return record, found


def _numbers(array: Array) -> list[int]:
    return [array.index_at(at) for at in range(len(array))]


def _ask(session: Session, asked: Sequence[tuple[str, MoveTask | VacateNode]]) -> list[StopRequest | RmgrError]:
    """All at once: each takes as long as its job."""
    from rmgr.client.commands.moving import move_each
    from rmgr.submitter.questions import MoveTask

    timeout_s = session.left_s(_PATIENCE_S) or _PATIENCE_S
    if not session.query().has_leader():
        session.note("no WatchDog leads just now: the one that will is asked")
    elif isinstance(asked[0][1], MoveTask):
        shown = asked[0][0] if len(asked) == 1 else f"each of {counted(len(asked), 'job')}"
        session.note(f"{shown} is asked to save its state, and has its grace for that; Ctrl-C ends the wait, and no job")
    return move_each(session.asks(), asked, deadline_s=time.monotonic() + timeout_s)
