"""From a request to a durable submission: files and scripts into the store first, then one SUBMIT (or an Engine for large ones)."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from rmgr.cli.sending.options import WorkOptions, WorkRequest, read_entries
from rmgr.cli.sending.shipping import interpreted, ship_script, ship_stdin, ship_uploads, whole_path
from rmgr.errors import KeyExists, NotFound, QueueFull, RequestTooLarge, RmgrError, StoreUnavailable, SubmitUnknown, UsageError
from rmgr.model.base.states import Reason
from rmgr.model.base.units import counted, format_duration
from rmgr.model.tasks.array import parse_array
from rmgr.model.tasks.block import MAX_TASKS
from rmgr.model.tasks.submission import Command, Phase, Submission
from rmgr.model.tasks.submission import Work as Kind

if TYPE_CHECKING:
    from rmgr.cli.session.context import Session
    from rmgr.client.identity.signing import Signer
    from rmgr.client.submitter.engine import Engine
    from rmgr.client.values.values import Values
    from rmgr.coord.ops.work import Block
    from rmgr.coord.protocol.ports import Coordinator
    from rmgr.model.cluster.node import NodeRecord
    from rmgr.model.cluster.queue import ClusterSettings

#: Of a record in its znode; the rest of 16 KiB is for what is not command and environment.
_MAX_RECORD_BYTES = 15 * 1024
#: Letters of a name, an account, a token.
_MAX_WORD = 1000
#: How long SUBMIT may take when `--timeout` does not say.
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
    work: WorkRequest

    @property
    def tasks(self) -> int:
        """How many tasks it makes."""
        return len(self.payloads)


@dataclass(frozen=True, slots=True)
class Ground:
    """Facts that requests are checked against, read once."""

    settings: ClusterSettings
    nodes: list[NodeRecord]


def read_ground(session: Session) -> Ground:
    """Settings and nodes of the cluster, as they are now. Raises Unavailable."""
    from rmgr.coord.protocol import paths
    from rmgr.coord.protocol.records import decode_record
    from rmgr.model.cluster.node import NodeRecord
    from rmgr.procedures.bootstrap import read_settings
    from rmgr.procedures.snapshot import fetch

    coordinator = session.coordinator()
    timeout_s = session.left_s(10.0) or 10.0
    settings = read_settings(coordinator, timeout_s=timeout_s)
    names = coordinator.children(paths.NODES, timeout_s=timeout_s).result(timeout_s + 1.0) or []
    found = fetch([paths.node(name) for name in names], coordinator.get, timeout_s=timeout_s)
    return Ground(settings, [decode_record(item.data, NodeRecord, paths.NODES) for item in found if item is not None])


def prepare(session: Session, work: WorkRequest, ground: Ground | None = None) -> CheckedRequest:
    """Checks a request against the cluster; nothing is written.

    Args:
        ground: what it is checked against; None reads it, for one of many it is read before.
    Raises: UsageError, NotFound (queue, dependency), Infeasible naming the largest node or the limit, PermissionDenied,
        StateConflict (closed queue), Unavailable.
    """
    from rmgr.client.specs import Options, draft_of
    from rmgr.procedures.admission import admit

    options = work.options
    payloads = _payloads(options)
    command = _command(work)
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
            token=options.token or uuid.uuid4().hex,
        ),
        work=Kind.COMMAND,
        command=command,
        array=options.array,
        max_running=parse_array(options.array).max_running if options.array else 0,
        max_fails=-1 if options.max_fails is None else options.max_fails,
        after=options.after,
        account=options.account,
        rigid=options.rigid,
        user=session.me,
    )
    if options.hold:
        draft = replace(draft, phase=Phase.HELD, reason=Reason.USER_HOLD)
    elif options.after:
        draft = replace(draft, phase=Phase.HELD, reason=Reason.DEPENDENCY)
    ground = ground or read_ground(session)
    settings = ground.settings
    draft = admit(draft, settings, ground.nodes, partition=options.partition, tasks=len(payloads))
    if options.time_us == 0:
        limit_us = draft.request.time_limit_us
        told = f"; queue {draft.queue} gives it its own: {format_duration(limit_us / 1e6)}" if limit_us else ": it runs until it ends"
        session.note(f"-t 0 sets no time limit{told}")
    _check_dependencies(session, session.coordinator(), draft)
    _check_inputs(session, options)
    _check_outputs(session, draft, len(payloads))
    return CheckedRequest(record=draft, payloads=payloads, settings=settings, work=work)


def send(session: Session, draft: CheckedRequest) -> Sent:
    """Makes the request durable.

    Raises: SubmitUnknown (with the token), QueueFull, KeyExists (an output key), StoreUnavailable, ValueTooLarge.
    """
    record = shipped(session, draft)
    check_size(record)
    check_store(session)
    try:
        return _commit(session, record, draft)
    except KeyboardInterrupt:
        session.note(f"interrupted; whether it was submitted is not known: the same again with --token {record.token} runs it once")
        raise


def shipped(session: Session, draft: CheckedRequest) -> Submission:
    """The record, once its script, its uploads and what it reads are in the store. Raises StoreUnavailable, ValueTooLarge, UsageError."""
    work = draft.work
    command = draft.record.command
    assert command is not None
    if work.script is not None:
        command = replace(command, script_sha256=ship_script(session, work))
    if work.options.uploads:
        command = replace(command, uploads=ship_uploads(session, work.options.uploads))
    if work.options.stdin:
        command = replace(command, stdin_sha256=ship_stdin(session, work.options.stdin))
    return replace(draft.record, command=command)


def check_store(session: Session) -> None:
    """Work that is accepted while its outputs could not be stored would only fill the nodes' disks. Raises StoreUnavailable."""
    from rmgr.cli.session.reach import STORE_READ_S
    from rmgr.procedures.bootstrap import not_submitted, require_store

    timeout_s = min(STORE_READ_S, session.left_s(STORE_READ_S) or STORE_READ_S)
    try:
        store = session.data_store()
    except StoreUnavailable as error:
        raise not_submitted(error) from error
    require_store(store, timeout_s=timeout_s)


def _commit(session: Session, record: Submission, draft: CheckedRequest) -> Sent:
    deadline_s = time.monotonic() + (session.left_s() or _SUBMIT_S)
    blocks = blocks_of(record, draft.payloads)
    if blocks is None or draft.work.options.outputs:
        return send_by_engine(session, engine_of(session), record, draft, deadline_s)
    from rmgr.client.submitter import submitting

    coordinator = session.coordinator()
    _check_room(coordinator, record, draft.settings, len(blocks))
    sent = submitting.submit(
        coordinator,
        record,
        owner="",
        deadline_s=deadline_s,
        blocks=lambda number: [(replace(key, submission=number), data) for key, data in blocks],
        tasks=draft.tasks,
        complete=True,
        held=bool(record.max_running) or None,
        signer=_signer(session),
    )
    return Sent(submission=sent.submission, tasks=sent.tail.next if not sent.created else draft.tasks, created=sent.created)


def engine_of(session: Session) -> Engine:
    """A Submitter of this process, on the session's own connections; ends with the command."""
    from rmgr.client.submitter.engine import Engine

    return session.own(Engine(session.coordinator(), session.data_store(), **_secured(session)))


def _signer(session: Session) -> Signer | None:
    """Who signs what needs no Engine; None in an open cluster."""
    credentials = session.shown_credentials()
    if credentials is None:
        return None
    from rmgr.client.identity.signing import Signer

    return Signer(credentials, session.cluster_id(), ttl_s=session.config().security.payload_ttl_s)


def _secured(session: Session) -> dict[str, Any]:
    """Who signs, and what is believed; nothing in an open cluster."""
    credentials = session.credentials()
    if credentials is None:
        return {}
    from rmgr.client.identity.secured import engine_options

    return engine_options(session.coordinator(), credentials, session.config().security, session.cluster_id())


# -- parts --------------------------------------------------------------------------------------------------------------------


def _payloads(options: WorkOptions) -> list[bytes]:
    if options.each_line:
        return read_entries(options.each_line)
    return [b""] * (len(parse_array(options.array)) if options.array else 1)


def _command(work: WorkRequest) -> Command:
    """The command as it is recorded; script and uploads are named later, by their hashes."""
    options = work.options
    moved = bool(options.cwd or options.uploads or options.inputs)
    words = tuple(work.words)
    if work.script is None:
        words = interpreted(options.python, words if moved else (whole_path(words[0]), *words[1:]))
    environment = dict(options.env)
    if options.python:
        environment.setdefault("RMGR_PYTHON", options.python)
    return Command(
        argv=words,
        script_name=os.path.basename(work.script.name) if work.script is not None else "",
        env=environment,
        cwd=options.cwd,
        out=_on_node(options.out, options.cwd),
        err=_on_node(options.err, options.cwd),
        input_files=tuple(options.inputs),
        output_files=tuple(options.outputs),
    )


def _on_node(pattern: str, cwd: str) -> str:
    """An output file as the node sees it: below `--cwd`, else below the directory where it was submitted."""
    return os.path.abspath(os.path.join(cwd, pattern)) if pattern else ""


def blocks_of(record: Submission, payloads: list[bytes]) -> list[Block] | None:
    """All tasks as blocks of one multi (the submission's number is filled in later); None when they do not fit one."""
    from rmgr.client.ports import TaskSpec
    from rmgr.client.submission.packing import first_blocks

    return first_blocks(record, TaskSpec(resubmit=record.resubmit, retries=record.retries), payloads)


def send_by_engine(session: Session, engine: Engine, record: Submission, draft: CheckedRequest, deadline_s: float) -> Sent:
    """A submission that needs several multis: opened, extended, completed; or one whose outputs have keys of their own."""
    from rmgr.cli.control.gate import ControlReach
    from rmgr.client.ports import TaskSpec
    from rmgr.procedures.control import cancel_submission

    if not draft.work.options.token:  # a token of the user's may stand for a submission that is in already
        _check_room(engine.coordinator, record, draft.settings, draft.tasks if record.rigid is not None else -(-draft.tasks // MAX_TASKS))
    handle = engine.open(record, SilentListener(), timeout_s=max(0.1, deadline_s - time.monotonic()))
    known = handle.next_index
    if known or handle.progress.tail.complete:  # the token had been used before
        return Sent(submission=handle.submission, tasks=known, created=False)
    try:
        if draft.work.options.outputs:
            _claim_outputs(session, engine.values, handle.number, handle.reign, draft)
        handle.add(TaskSpec(resubmit=record.resubmit, retries=record.retries), list(draft.payloads))
        handle.complete()
        handle.flush(max(0.1, deadline_s - time.monotonic()))
    except SubmitUnknown:
        raise
    except RmgrError as error:
        handle.complete()  # all or nothing: what is in does not run on without the rest
        cancel_submission(ControlReach(engine.coordinator), handle.number, detail=error.message)
        raise
    return Sent(submission=handle.submission, tasks=draft.tasks, created=True)


def _claim_outputs(session: Session, values: Values, number: int, reign: str, draft: CheckedRequest) -> None:
    from rmgr.coord.protocol.keys import Pointer

    pointers = [
        (output_key(key, draft.record, number, position), Pointer(sub=number, index=position, n=n, by=reign))
        for n, (key, _) in enumerate(draft.work.options.outputs)
        for position in range(draft.tasks)
    ]
    values.claim_outputs(pointers, overwrite=False, timeout=session.left_s(30.0) or 30.0)


def output_key(pattern: str, record: Submission, number: int, position: int) -> str:
    """Key of `--output` for one task: %a is its array index, %j the job, %x the name."""
    from rmgr.model.tasks.array import shown_index

    shown = str(shown_index(record.array, position))
    return pattern.replace("%a", shown).replace("%j", str(number)).replace("%x", record.name)


def _check_dependencies(session: Session, coordinator: Coordinator, draft: Submission) -> None:
    from rmgr.coord.protocol import keys, paths
    from rmgr.procedures.snapshot import fetch

    numbers = list(dict.fromkeys(item.submission for item in draft.after))
    stats = fetch([paths.sub(number) for number in numbers], coordinator.stat, timeout_s=session.left_s(10.0) or 10.0)
    for number, stat in zip(numbers, stats, strict=True):
        if stat is None and session.data_store().head(keys.history(number)) is None:
            raise NotFound(f"--after: there is no submission {number} to wait for", hint="rmgr jobs -a lists them, rmgr history older ones")


def _check_inputs(session: Session, options: WorkOptions) -> None:
    if not options.inputs:
        return
    from rmgr.cli.store.values import values_of
    from rmgr.coord.decisions.ownership import ANYBODY
    from rmgr.coord.protocol import keys

    values, wait_s = values_of(session, session.data_store()), session.left_s(30.0) or 30.0
    for key, _ in options.inputs:
        values.check_input(key, trust=(ANYBODY,), timeout=wait_s)  # a file of bytes: nobody unpickles it
        if session.data_store().head(keys.named(key), timeout_s=wait_s) is None:
            raise NotFound(
                f"--input: there is no key {key!r} in the data store", hint=f"rmgr store put {key} FILE; rmgr store ls lists keys"
            )


def _check_outputs(session: Session, draft: Submission, tasks: int) -> None:
    """Refused before anything is recorded; whoever comes between is refused by `claim_outputs`."""
    command = draft.command
    if command is None or not command.output_files:
        return
    from rmgr.cli.store.values import values_of

    values, wait_s = values_of(session, session.data_store(), session.coordinator()), session.left_s(30.0) or 30.0
    for key, _ in command.output_files:
        names = [output_key(key, draft, 0, position) for position in range(tasks if "%a" in key else 1)] if "%j" not in key else []
        if tasks > 1 and "%a" not in key:
            raise UsageError(f"--output: all {tasks} tasks would write the key {key!r}", hint="put %a (the array index) into the key")
        for name in names:
            values.check_mine(name, timeout=wait_s)
            if values.exists(name, timeout=wait_s):
                raise KeyExists(
                    f"--output: the key {name!r} exists already", hint=f"choose another key, or delete it: rmgr store rm {name}"
                )


def _check_room(coordinator: Coordinator, record: Submission, settings: ClusterSettings, more: int) -> None:
    from rmgr.coord.protocol import paths

    spec = settings.queue(record.queue)
    cap = spec.max_pending_blocks if spec is not None else 0
    if not cap or record.phase is not Phase.OPEN or record.max_running:
        return
    stat = coordinator.stat(paths.pending(record.queue), timeout_s=10.0).result(11.0)
    if stat is not None and stat.children + more > cap:
        raise QueueFull(
            f"queue {record.queue} is full: {counted(stat.children, 'waiting block')}, at most {cap} may wait, and this is {more} more",
            hint="wait until some have run (rmgr queues), or send more tasks in one submission: --array, --each-line",
        )


def check_size(record: Submission) -> None:
    """Refuses what does not fit a record. Raises UsageError, RequestTooLarge."""
    from rmgr.coord.protocol.records import encode_record

    size = len(encode_record(record))
    for option, text in (("--name", record.name), ("--account", record.account), ("--token", record.token)):
        if len(text) > _MAX_WORD:
            raise UsageError(f"{option} has {len(text)} characters; at most {_MAX_WORD} are recorded", hint="a shorter one")
    if size > _MAX_RECORD_BYTES:
        raise RequestTooLarge(
            f"the command and its environment take {size} bytes; at most {_MAX_RECORD_BYTES} are recorded",
            hint="put long argument lists into a file (--upload FILE, --each-line FILE), and variables into the script",
        )


class SilentListener:
    """A listener for a submission that nobody here waits for."""

    def on_outcomes(self, fragment: Any, outcomes: Sequence[Any]) -> None:
        """See `ports.Listener`."""

    def on_progress(self) -> None:
        """See `ports.Listener`."""

    def on_dead(self, error: RmgrError) -> None:
        """See `ports.Listener`."""
