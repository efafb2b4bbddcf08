"""Submits a command: files and scripts into the store first, then one SUBMIT, or a Submitter for what does not fit one."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from rmgr.client.commands.checks import (
    AdmissionFacts,
    check_dependencies,
    check_inputs,
    check_jobs,
    check_outputs,
    check_room,
    check_size,
    check_store,
    read_facts,
    waiting_blocks,
)
from rmgr.client.commands.request import CommandOptions, CommandRequest, command_of, output_key, payloads_of
from rmgr.client.commands.shipping import script_sha256, ship_lines, ship_script, ship_stdin, ship_uploads
from rmgr.errors import RmgrError, SubmitUnknown
from rmgr.model.base.states import Reason
from rmgr.model.base.units import format_duration
from rmgr.model.tasks.array import parse_array
from rmgr.model.tasks.submission import Phase, Submission, Work
from rmgr.runtime import machine

if TYPE_CHECKING:
    from rmgr.client.commands.again import StoredWork
    from rmgr.client.commands.doors import CommandHost, CommandSubmitter
    from rmgr.coord.ops.work import Block
    from rmgr.model.cluster.queue import ClusterSettings

#: How long SUBMIT may take when the caller has no deadline.
_SUBMIT_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A durable submission. created: just now; else the token had been used before."""

    submission: Submission
    tasks: int
    created: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedRequest:
    """A checked request, ready to be sent. payloads: one a task."""

    record: Submission
    payloads: list[bytes]
    settings: ClusterSettings
    request: CommandRequest
    is_again: bool = False  #: it was run before: its output keys belong to tasks that have left nothing under them

    @property
    def tasks(self) -> int:
        """How many tasks it makes."""
        return len(self.payloads)


def prepare(
    host: CommandHost, request: CommandRequest, facts: AdmissionFacts | None = None, *, stored: StoredWork | None = None
) -> CheckedRequest:
    """Checks a request against the cluster; nothing is written.

    Args:
        facts: what it is checked against; None: they are read. stored: what it runs again.
    Raises: UsageError, NotFound (queue, dependency), Infeasible naming the largest node or the limit, PermissionDenied,
        StateConflict (closed queue), Unavailable.
    """
    from rmgr.procedures.admission import admit

    options = request.options
    payloads = payloads_of(options) if stored is None else list(stored.payloads)
    draft = _draft(host, request, stored)
    facts = facts or read_facts(host)
    draft = admit(draft, facts.settings, facts.nodes, partition=options.partition, tasks=len(payloads))
    if options.slurm_env and draft.command is not None:
        draft = replace(draft, command=replace(draft.command, env=slurm_variables(draft, options, len(payloads)) | draft.command.env))
    if options.time_us == 0:
        limit_us = draft.request.time_limit_us
        own = f"; queue {draft.queue} gives it its own: {format_duration(limit_us / 1e6)}" if limit_us else ": it runs until it ends"
        host.note(f"-t 0 sets no time limit{own}")
    check_dependencies(host, draft)
    check_inputs(host, [key for key, _ in options.inputs])
    check_outputs(host, draft, len(payloads))
    return CheckedRequest(record=draft, payloads=payloads, settings=facts.settings, request=request, is_again=stored is not None)


def slurm_variables(record: Submission, options: CommandOptions, tasks: int) -> dict[str, str]:
    """What `--slurm-env` adds to the variables of a command here: a node makes the others (`runner/host/slurm.py`)."""
    from rmgr.runner.host.slurm import FLAG

    found = {
        FLAG: "1",
        "SLURM_SUBMIT_DIR": os.getcwd(),
        "SLURM_SUBMIT_HOST": socket.gethostname(),
        "SLURM_JOB_PARTITION": record.queue,
        "SLURM_JOB_USER": record.user,
    }
    if record.account:
        found["SLURM_JOB_ACCOUNT"] = record.account
    if options.array or options.each_line:
        parts = parse_array(options.array).parts if options.array else (range(tasks),)
        found["SLURM_ARRAY_TASK_COUNT"] = str(tasks)
        found["SLURM_ARRAY_TASK_MIN"] = str(min(part[0] for part in parts))
        found["SLURM_ARRAY_TASK_MAX"] = str(max(part[-1] for part in parts))
        found["SLURM_ARRAY_TASK_STEP"] = str(parts[0].step)
    return found


def _draft(host: CommandHost, request: CommandRequest, stored: StoredWork | None) -> Submission:
    """The record of a request, before a queue has given its defaults."""
    from rmgr.client.commands.again import command_again
    from rmgr.client.specs import Options, draft_of

    options = request.options
    draft = draft_of(
        Options(
            queue=options.queue,
            name=options.name,
            cores=options.cores,
            memory=options.memory_bytes,
            time=(options.time_us or 0) / 1e6,
            priority=options.priority or 0,
            retries=options.retries,
            backoff=options.backoff_us / 1e6,
            resubmit=options.resubmit,
            features=options.features,
            resources=dict(options.resources),
            on_disconnect=options.on_disconnect,
            token=options.token or machine.guid(),
        ),
        work=Work.COMMAND,
        command=command_of(request) if stored is None or stored.record.command is None else command_again(stored.record.command, request),
        array=options.array,
        max_running=parse_array(options.array).max_running if options.array else 0,
        max_fails=-1 if options.max_fails is None else options.max_fails,
        after=options.after,
        account=options.account,
        rigid=options.rigid,
        user=host.me,
    )
    if stored is not None:
        draft = replace(draft, umask=stored.record.umask, grace_us=stored.record.grace_us)
    if options.hold:
        return replace(draft, phase=Phase.HELD, reason=Reason.USER_HOLD)
    return replace(draft, phase=Phase.HELD, reason=Reason.DEPENDENCY) if options.after else draft


def send(host: CommandHost, draft: CheckedRequest) -> Sent:
    """Makes the request durable.

    Raises: SubmitUnknown (with the token), QueueFull, KeyExists (an output key), StoreUnavailable, ValueTooLarge.
    """
    record = shipped(host, draft)
    check_size(record)
    check_store(host)
    try:
        return _commit(host, record, draft)
    except KeyboardInterrupt:
        host.note(f"interrupted; whether it was submitted is not known: the same again with --token {record.token} runs it once")
        raise


def as_tried(draft: CheckedRequest) -> Submission:
    """The record for who is asked where it would run: with the hash of its script, which nobody has stored."""
    request, record = draft.request, draft.record
    if request.script is None or record.command is None:
        return record
    return replace(record, command=replace(record.command, script_sha256=script_sha256(request.script, request.options.python)))


def shipped(host: CommandHost, draft: CheckedRequest) -> Submission:
    """The record, once its script, its uploads and what it reads are in the store. Raises StoreUnavailable, ValueTooLarge, UsageError."""
    request, command = draft.request, draft.record.command
    assert command is not None
    if request.script is not None:
        command = replace(command, script_sha256=ship_script(host, request.script, request.options.python))
    if request.options.uploads:
        command = replace(command, uploads=ship_uploads(host, request.options.uploads))
    if request.options.stdin:
        command = replace(command, stdin_sha256=ship_stdin(host, request.options.stdin))
    record = replace(draft.record, command=command)
    if request.options.each_line or any(draft.payloads):
        record = replace(record, entries=ship_lines(host, draft.payloads))
    return record


def _commit(host: CommandHost, record: Submission, draft: CheckedRequest) -> Sent:
    deadline_s = machine.monotonic() + (host.left_s() or _SUBMIT_S)
    blocks = blocks_of(record, draft.payloads)
    if blocks is None or output_files(draft):
        return send_in_parts(host, host.submitter(), record, draft, deadline_s)
    from rmgr.submitter.port import Order, prepared, unsigned

    if not draft.request.options.token:  # one of the user's may stand for a submission that is in already
        check_jobs(host, draft.settings.limits, record.user)
    check_room(host, draft.settings, record.queue, len(blocks) if waiting_blocks(record, draft.tasks) else 0)
    order = Order(draft=record, blocks=blocks, tasks=draft.tasks, complete=True, held=bool(record.max_running) or None)
    if (signer := host.signer()) is not None:
        signer.publish(host.asks(), timeout_s=seconds_left(deadline_s))
    sent = host.submit(prepared(order, signer.sign if signer is not None else unsigned), timeout_s=seconds_left(deadline_s))
    return Sent(submission=sent.submission, tasks=sent.tail.next if not sent.created else draft.tasks, created=sent.created)


def blocks_of(record: Submission, payloads: list[bytes]) -> list[Block] | None:
    """All tasks as blocks of one multi (the submission's number is filled in later); None when they do not fit one."""
    from rmgr.client.ports import TaskSpec
    from rmgr.client.submission.packing import first_blocks

    return first_blocks(record, TaskSpec(resubmit=record.resubmit, retries=record.retries), payloads)


def send_in_parts(host: CommandHost, submitter: CommandSubmitter, record: Submission, draft: CheckedRequest, deadline_s: float) -> Sent:
    """A submission that needs several multis: opened, extended, completed; or one whose outputs have keys of their own."""
    from rmgr.client.ports import TaskSpec
    from rmgr.submitter.questions import CancelSubmission

    if not draft.request.options.token:  # a token of the user's may stand for a submission that is in already
        check_room(host, draft.settings, record.queue, waiting_blocks(record, draft.tasks))
    handle = submitter.open(record, SilentListener(), timeout_s=seconds_left(deadline_s))
    known = handle.view.next_index
    if known or handle.view.progress.tail.complete:  # the token had been used before
        return Sent(submission=handle.view.submission, tasks=known, created=False)
    try:
        if output_files(draft):
            pointers = _pointers(draft, handle.view.number, handle.view.reign)
            submitter.values.claim_outputs(pointers, overwrite=draft.is_again, timeout=host.left_s(30.0) or 30.0)
        handle.add(TaskSpec(resubmit=record.resubmit, retries=record.retries), list(draft.payloads))
        handle.complete()
        handle.flush(seconds_left(deadline_s))
    except SubmitUnknown:
        raise
    except RmgrError as error:
        handle.complete()  # all or nothing: what is in does not run on without the rest
        host.ask(CancelSubmission(number=handle.view.number, detail=error.message), 30.0)
        raise
    return Sent(submission=handle.view.submission, tasks=draft.tasks, created=True)


def output_files(draft: CheckedRequest) -> tuple[tuple[str, str], ...]:
    """(key, file) of what its tasks leave in the data store."""
    return draft.record.command.output_files if draft.record.command is not None else ()


def _pointers(draft: CheckedRequest, number: int, reign: str) -> list[tuple[str, Any]]:
    from rmgr.coord.protocol.keys import Pointer

    return [
        (output_key(key, draft.record, number, position), Pointer(sub=number, index=position, n=n, by=reign))
        for n, (key, _) in enumerate(output_files(draft))
        for position in range(draft.tasks)
    ]


def seconds_left(deadline_s: float) -> float:
    """Until a monotonic time, for a call that must be allowed something."""
    return max(0.1, deadline_s - machine.monotonic())


class SilentListener:
    """A listener for a submission that nobody here waits for."""

    def on_outcomes(self, fragment: Any, outcomes: Sequence[Any]) -> None:
        """See `ports.Listener`."""

    def on_progress(self) -> None:
        """See `ports.Listener`."""

    def on_dead(self, error: RmgrError) -> None:
        """See `ports.Listener`."""
