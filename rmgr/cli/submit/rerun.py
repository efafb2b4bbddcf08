"""`rmgr rerun ID`: a new submission of a stored command with some of its tasks, and with changed options if given."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace
from typing import Any

import click
from click.core import ParameterSource

from rmgr.cli.session import Session, command
from rmgr.cli.session.tables import find_one, positions_of
from rmgr.cli.submit import submit as submitting
from rmgr.cli.words.params import WORK_EXITS, Parsed, listed
from rmgr.client.commands.request import StoredWork, array_of, check_signature, lines_of
from rmgr.client.commands.sending import MAX_RECORD_BYTES, Sent, prepare
from rmgr.coord.protocol.records import encode_record
from rmgr.errors import NotFound, PermissionDenied, RequestTooLarge, UsageError
from rmgr.model.states import LOSSES, Reason, State
from rmgr.model.submission import Array, Rigid, Submission, parse_array, shown_index
from rmgr.model.units import counted

#: Options that choose tasks, or the interpreter; here the stored ones apply.
_NOT_HERE = frozenset({"array", "each_line", "python"})
_LOST = LOSSES | {Reason.POISON}
#: Bytes of a record reserved for what options add.
_BESIDE = 1024
_EXITS = f"""\
0 submitted, or nothing to run again; 2 usage or infeasible, 3 no such id, or no longer kept,
4 another user's without --trust, 7 queue full, 8 not known whether it was committed
with --wait: {WORK_EXITS}"""


@command(
    "rerun",
    examples="""\
    rmgr rerun 42                          all of it, as it was submitted
    rmgr rerun 42 --failed --mem 2G -t 1h  what failed, with more of both
    rmgr rerun 42 --lost                   what went with its node, or with its data
    rmgr rerun 42 --tasks 3,7-9 --wait     array indices keep their numbers
    rmgr rerun 42 --failed --tasks 1-5000  of these, those that failed
    rmgr rerun last --failed --dry-run""",
    exits=_EXITS,
    sections={"Which tasks": ("failed", "lost", "tasks"), **submitting.SECTIONS},
)
@click.argument("selector", metavar="ID")
@click.option("--failed", is_flag=True, help="those that FAILED")
@click.option("--lost", is_flag=True, help="those that FAILED because their node or their data were lost")
@click.option("--tasks", type=Parsed("tasks", parse_array), metavar="3,7-9", help="only these; with --failed or --lost: among these  [all]")
@click.option("--trust", metavar="USER", default="", help="run this user's code as you: for others' work")
@submitting.work_options_but(_NOT_HERE)
@submitting.afterwards_options
def rerun(session: Session, selector: str, failed: bool, lost: bool, tasks: Array | None, trust: str, **values: Any) -> None:
    """Submits stored work again: all of its tasks, or some, with the same options or others.

    The new submission is yours and has your rights. --after, --begin and --token are not repeated.
    What was submitted can be run again as long as it is kept (`retention`).
    """
    if failed and lost:
        raise UsageError("--failed and --lost exclude each other", hint=f"rmgr rerun {selector} --failed")
    session.undone = submitting.UNDONE
    target, _ = find_one(session, selector)
    if target.tasks and (failed or lost or tasks is not None):
        raise UsageError(f"{selector} names a task already", hint=f"rmgr rerun {target.submission} --tasks {target.tasks[0]}")
    record, total = _read_stored(session, target.submission, trust)
    numbers = target.tasks or tuple(tasks or ())
    positions = _chosen_positions(session, record, numbers, total, failed=failed, lost=lost)
    if not positions:
        which = "was lost" if lost else "has failed" if failed else "was submitted"
        session.answer({"id": "", "tasks": 0, "of": str(record.id)})
        session.note(f"nothing to run again: no task of {record.id} {which}")
        return
    ctx = click.get_current_context()
    given = {name for name in values if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE}
    changed = {name: value for name, value in values.items() if name in given}
    if record.command is None:
        _submit_calls(session, record, positions, changed, values)
    else:
        check_numbers(record, positions, " --lost" if lost else " --failed" if failed else "")
        _submit_command(session, record, positions, total, changed, values)


def check_numbers(record: Submission, positions: list[int], which: str) -> None:
    """Checks that the task numbers fit: scattered ones are listed singly, a record holds some thousands. Raises: RequestTooLarge."""

    room = MAX_RECORD_BYTES - _BESIDE - len(encode_record(replace(record, array="")))
    if len(array_of(record, positions)) <= max(room, len(record.array)):
        return
    fitting = bisect_right(range(1, len(positions)), room, key=lambda count: len(array_of(record, positions[:count])))
    if not fitting:
        return  # the command is too long
    first, last = (shown_index(record.array, position) for position in (positions[0], positions[fitting - 1]))
    raise RequestTooLarge(
        f"the numbers of these {counted(len(positions), 'task')} are too scattered for one submission",
        hint=f"the first {fitting:,}: rmgr rerun {record.id}{which} --tasks {first}-{last}; then those behind {last}",
    )


def _submit_command(
    session: Session, record: Submission, positions: list[int], total: int, given: dict[str, Any], values: dict[str, Any]
) -> None:

    assert record.command is not None
    known = values | _values_of(record) | {"array": array_of(record, positions)}
    if "requeue" in given:
        known["resubmit"] = given["requeue"]
    if "gpus" in given:
        known["resources"] = tuple(pair for pair in known["resources"] if pair[0] != "gpu")
    merged = known | {name: (*known[name], *value) if name in {"inputs", "outputs"} else value for name, value in given.items()}
    asked, afterwards = submitting.checked_options(merged), submitting.Afterwards.of(values)
    work = submitting.WorkRequest(options=asked, words=record.command.argv, afterwards=afterwards)
    stored = StoredWork(record=record, payloads=lines_of(session, record, positions, total))
    submitting.carry_out(session, prepare(session, work, stored=stored), work, again=record.id)


#: Options that functions have too -> their names in a TaskQueue.
_OF_CALLS = {
    **{name: name for name in ("name", "queue", "cores", "priority", "retries", "resubmit", "on_disconnect", "processes", "nodes")},
    "memory_bytes": "memory",
    "time_us": "time",
    "backoff_us": "backoff",
    "features": "features",
    "resources": "resources",
}


def _submit_calls(session: Session, record: Submission, positions: list[int], given: dict[str, Any], values: dict[str, Any]) -> None:
    """Submits functions of a Python program again; those that FAILED have left their arguments."""
    from rmgr.client.connection import connect
    from rmgr.client.taskqueue import TaskQueue

    afterwards = submitting.Afterwards.of(values)
    if others := sorted(given.keys() - _OF_CALLS.keys() - submitting.Afterwards.__dataclass_fields__.keys()):
        ctx = click.get_current_context()
        option = next(parameter.opts[-1] for parameter in ctx.command.params if parameter.name == others[0])
        raise UsageError(f"{option} is for commands, and {record.id} has functions of a Python program", hint="rmgr rerun --help")
    options = {_OF_CALLS[name]: value for name, value in given.items() if name in _OF_CALLS}
    for name in {"time", "backoff"} & options.keys():
        options[name] /= 1e6
    if "features" in options:
        options["features"] = listed(options["features"])
    if "resources" in options:
        options["resources"] = dict(options["resources"])
    if afterwards.dry_run:
        raise UsageError(f"--dry-run is for commands, and {record.id} has functions of a Python program", hint=f"rmgr show {record.id}")
    with connect(config=session.config()) as connection:
        session.undone = ""
        made = TaskQueue.attach(record.id, connection=connection).rerun_failed(positions, timeout=session.left_s(60.0), **options)
        sent = Sent(submission=replace(record, id=made.id), tasks=len(made), created=True)
    submitting.follow_up(session, sent, afterwards, again=record.id)


def _read_stored(session: Session, number: int, trust: str) -> tuple[Submission, int]:
    """Returns the record of a submission, as its user has signed it, and its number of tasks so far.

    Raises: NotFound if it is history; PermissionDenied.
    """
    from rmgr.submitter.questions import ReadRecord

    timeout_s = session.left_s(10.0)
    try:
        found = session.ask(ReadRecord(number=number))
    except NotFound:
        session.query().job(number)  # raises if there never was one
        message = f"{number} cannot be run again: what was submitted is kept for `retention`, and that is over"
        raise NotFound(message, hint="submit it anew: rmgr submit; how long it is kept: rmgr config show --cluster") from None
    record = found.record
    if record.user not in {session.me, trust}:
        message = f"{number} is {record.user}'s: it would run what {record.user} wrote as you, {session.me}"
        raise PermissionDenied(message, hint=f"rmgr rerun {number} --trust {record.user}")
    credentials = session.credentials()
    if credentials is not None:
        from rmgr.adapters.identity.trust import Trust
        from rmgr.cli.control.operate import read_settings
        from rmgr.client.identity import AskedKeys

        asks = session.asks()
        known = Trust(AskedKeys(asks), credentials.ca_pem)
        operators = read_settings(session)[0].operators
        check_signature(record, asks, known, session.cluster_id(), operators=operators, timeout_s=timeout_s)
    return record, found.tail.next


def _chosen_positions(session: Session, record: Submission, numbers: tuple[int, ...], total: int, *, failed: bool, lost: bool) -> list[int]:
    """Returns positions of the chosen tasks, in order. Raises: NotFound naming a missing task."""
    if not failed and not lost:
        return sorted(set(positions_of(session, record.id, numbers, total=total))) if numbers else list(range(total))
    from rmgr.cli.waiting import read_ends

    meant = set(numbers)
    ends = [end for end in read_ends(session, record.id) if end.state is State.FAILED and (not meant or end.index in meant)]
    return sorted(end.position for end in ends if failed or end.reason in _LOST)


def _values_of(record: Submission) -> dict[str, Any]:
    """Returns options that would ask for the same, by parameter; without --after, --begin, --token, and anything stored by hash."""
    request, rigid, command = record.request, record.rigid or Rigid(), record.command
    return {
        "name": record.name,
        "queue": rigid.queue_class or record.queue,
        "cores": request.cores,
        "memory_bytes": request.memory_bytes,
        "time_us": request.time_limit_us or None,
        "priority": record.priority,
        "max_fails": record.max_fails if record.max_fails >= 0 else None,
        "each_line": "",
        "python": "",
        "retries": record.retries,
        "backoff_us": record.backoff_us,
        "resubmit": record.resubmit,
        "env": (),
        "inputs": command.input_files if command is not None else (),
        "outputs": command.output_files if command is not None else (),
        "on_disconnect": str(record.on_disconnect),
        "features": ",".join(request.features),
        "resources": tuple(request.resources.items()),
        "account": record.account,
        "processes": rigid.processes if rigid.processes > 1 else None,
        "nodes": rigid.nodes or None,
        "exclusive": rigid.exclusive,
        "nodelist": rigid.nodelist,
        "exclude": rigid.exclude,
        "kill_on_bad_exit": rigid.kill_on_bad_exit,
        "checkpoint_every_us": rigid.checkpoint_every_us,
        "checkpoint_grace_us": rigid.checkpoint_grace_us,
        "checkpoint": rigid.checkpoint,
        "max_moves": rigid.max_moves or None,
        "restart_from": rigid.restart,
    }
