"""Submits a command: checks it against cluster and store, puts files and scripts into the store, then makes one SUBMIT, or has an engine
send what does not fit one. Or submits a list of different commands, all or nothing.
"""

from __future__ import annotations

import hashlib
import io
import os
import socket
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rmgr.client.commands.request import CommandOptions, CommandRequest, ScriptText, command_again, command_of, output_key, payloads_of
from rmgr.client.content import put_content
from rmgr.coord.protocol import keys
from rmgr.coord.protocol.records import encode_record
from rmgr.errors import (
    CoordinationUnavailable,
    KeyExists,
    NotFound,
    QueueFull,
    RequestTooLarge,
    RmgrError,
    StateConflict,
    StoreUnavailable,
    SubmitUnknown,
    UsageError,
    ValueTooLarge,
)
from rmgr.model.block import MAX_TASKS
from rmgr.model.states import Reason
from rmgr.model.submission import (
    MAX_UPLOAD_BYTES,
    MAX_UPLOAD_MEMBERS,
    Command,
    Condition,
    Dependency,
    Phase,
    Submission,
    Upload,
    Work,
    parse_array,
)
from rmgr.model.units import counted, format_duration, format_size
from rmgr.runtime import machine
from rmgr.runtime.failpoint import failpoint

if TYPE_CHECKING:
    from rmgr.client.commands.request import StoredWork
    from rmgr.client.reach import Reach
    from rmgr.client.submission.engine import Engine
    from rmgr.coord.ops.work import Block
    from rmgr.model.node import NodeRecord
    from rmgr.model.queue import ClusterSettings, UserLimits
    from rmgr.submitter.port import Submitted

#: How long SUBMIT may take if the caller has no deadline (s).
_SUBMIT_S = 30.0
#: Most bytes of a record in its znode; the rest of 16 KiB is for other than command and environment.
MAX_RECORD_BYTES = 15 * 1024
#: Most characters of a name, an account, or a token.
_MAX_WORD = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A durable submission. created: made just now; False: its token had been used before. made: as committed just now, if it is known."""

    submission: Submission
    tasks: int
    created: bool
    made: Submitted | None = None

    @classmethod
    def of(cls, found: Submitted) -> Sent:
        """Returns what a SUBMIT with all tasks has made or found."""
        return cls(submission=found.submission, tasks=found.tail.next, created=found.created, made=found if found.created else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedRequest:
    """A checked request, ready to be sent. payloads: one per task."""

    record: Submission
    payloads: list[bytes]
    settings: ClusterSettings
    request: CommandRequest
    is_again: bool = False  #: run before; its output keys belong to tasks that left no values under them

    @property
    def tasks(self) -> int:
        """Number of tasks that it makes."""
        return len(self.payloads)


@dataclass(frozen=True, slots=True)
class AdmissionFacts:
    """Settings and nodes that requests are checked against, read once."""

    settings: ClusterSettings
    nodes: list[NodeRecord]


def prepare(
    reach: Reach, request: CommandRequest, facts: AdmissionFacts | None = None, *, stored: StoredWork | None = None
) -> CheckedRequest:
    """Checks a request against the cluster; writes nothing.

    Args:
        facts: settings and nodes to check against; None: read now. stored: the work that is run again.
    Raises: UsageError, NotFound (queue, dependency), Infeasible naming the largest node or the limit, PermissionDenied,
        StateConflict (closed queue), Unavailable.
    """
    from rmgr.procedures.admission import admit

    options = request.options
    payloads = payloads_of(options) if stored is None else list(stored.payloads)
    draft = _draft(reach, request, stored)
    facts = facts or read_facts(reach)
    draft = admit(draft, facts.settings, facts.nodes, partition=options.partition, tasks=len(payloads))
    if options.slurm_env and draft.command is not None:
        draft = replace(draft, command=replace(draft.command, env=slurm_variables(draft, options, len(payloads)) | draft.command.env))
    if options.time_us == 0:
        limit_us = draft.request.time_limit_us
        own = f"; queue {draft.queue} gives it its own: {format_duration(limit_us / 1e6)}" if limit_us else ": it runs until it ends"
        reach.note(f"-t 0 sets no time limit{own}")
    check_shipped(options)
    check_dependencies(reach, draft)
    check_inputs(reach, [key for key, _ in options.inputs])
    check_outputs(reach, draft, len(payloads))
    return CheckedRequest(record=draft, payloads=payloads, settings=facts.settings, request=request, is_again=stored is not None)


def slurm_variables(record: Submission, options: CommandOptions, tasks: int) -> dict[str, str]:
    """Returns the variables that `--slurm-env` sets here; the node sets the others (`runner/host/slurm.py`)."""
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


def _draft(reach: Reach, request: CommandRequest, stored: StoredWork | None) -> Submission:
    """Returns the record of a request, before its queue's defaults are applied."""
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
        user=reach.me,
    )
    if stored is not None:
        draft = replace(draft, umask=stored.record.umask, grace_us=stored.record.grace_us)
    if options.hold:
        return replace(draft, phase=Phase.HELD, reason=Reason.USER_HOLD)
    return replace(draft, phase=Phase.HELD, reason=Reason.DEPENDENCY) if options.after else draft


def send(reach: Reach, draft: CheckedRequest) -> Sent:
    """Makes the request durable.

    Raises: SubmitUnknown (with the token), QueueFull, KeyExists (an output key), StoreUnavailable, ValueTooLarge.
    """
    check_store(reach)
    record = shipped(reach, draft)
    check_size(record)
    return _commit(reach, record, draft)


def as_tried(draft: CheckedRequest) -> Submission:
    """Returns the record for asking where it would run: with the hash of its script, which is not stored."""
    request, record = draft.request, draft.record
    if request.script is None or record.command is None:
        return record
    return replace(record, command=replace(record.command, script_sha256=script_sha256(request.script, request.options.python)))


def shipped(reach: Reach, draft: CheckedRequest) -> Submission:
    """Stores script, uploads and input; returns the record with their hashes. Raises StoreUnavailable, ValueTooLarge, UsageError."""
    request, command = draft.request, draft.record.command
    assert command is not None
    if request.script is not None:
        command = replace(command, script_sha256=ship_script(reach, request.script, request.options.python))
    if request.options.uploads:
        command = replace(command, uploads=ship_uploads(reach, request.options.uploads))
    if request.options.stdin:
        command = replace(command, stdin_sha256=ship_stdin(reach, request.options.stdin))
    record = replace(draft.record, command=command)
    if request.options.each_line or any(draft.payloads):
        record = replace(record, entries=ship_lines(reach, draft.payloads))
    return record


def _commit(reach: Reach, record: Submission, draft: CheckedRequest) -> Sent:
    deadline_s = machine.monotonic() + reach.patience_s(_SUBMIT_S)
    blocks = blocks_of(record, draft.payloads)
    if blocks is None or output_files(draft):
        return send_in_parts(reach, reach.submitter(), record, draft, deadline_s)
    from rmgr.submitter.port import Order, prepared, unsigned

    if (signer := reach.signer()) is not None:
        reach.expect(signer.publication)
    if not draft.request.options.token:  # the user's own token may name an existing submission
        check_jobs(reach, draft.settings.limits, record.user)
    check_room(reach, draft.settings, record.queue, len(blocks) if waiting_blocks(record, draft.tasks) else 0)
    order = Order(draft=record, blocks=blocks, tasks=draft.tasks, complete=True, held=bool(record.max_running) or None)
    if signer is not None:
        signer.publish(reach.asks(), timeout_s=seconds_left(deadline_s))
    try:
        return Sent.of(reach.submit(prepared(order, signer.sign if signer is not None else unsigned), timeout_s=seconds_left(deadline_s)))
    except KeyboardInterrupt:
        reach.note(f"interrupted; whether it was submitted is not known: the same again with --token {record.token} runs it once")
        raise


def blocks_of(record: Submission, payloads: list[bytes]) -> list[Block] | None:
    """Returns all tasks as blocks of one multi (the submission's number is filled in later); None if they do not fit."""
    from rmgr.client.submission.packing import TaskSpec, first_blocks

    return first_blocks(record, TaskSpec(resubmit=record.resubmit, retries=record.retries), payloads)


def send_in_parts(reach: Reach, submitter: Engine, record: Submission, draft: CheckedRequest, deadline_s: float) -> Sent:
    """Sends a submission that needs several multis (opens, extends, completes it), or whose outputs have keys."""
    from rmgr.client.submission.engine import GIVE_UP_S
    from rmgr.client.submission.handle import INTERRUPTED, SilentListener
    from rmgr.client.submission.packing import TaskSpec
    from rmgr.submitter.questions import CancelSubmission

    if not draft.request.options.token:  # the user's own token may name an existing submission
        check_room(reach, draft.settings, record.queue, waiting_blocks(record, draft.tasks))
    reach.undone = ""
    handle = submitter.open(record, SilentListener(), timeout_s=seconds_left(deadline_s))
    known = handle.next_index
    if known or handle.progress.tail.complete:  # the token had been used before
        return Sent(submission=handle.submission, tasks=known, created=False)
    try:
        if output_files(draft):
            pointers = _pointers(draft, handle.number, handle.guid)
            submitter.values.claim_outputs(pointers, overwrite=draft.is_again, timeout=reach.left_s(30.0))
        handle.add(TaskSpec(resubmit=record.resubmit, retries=record.retries), list(draft.payloads))
        handle.complete()
        handle.flush(seconds_left(deadline_s))
    except SubmitUnknown:
        raise
    except RmgrError as error:
        handle.complete()  # all or nothing: tasks that are in must not run without the rest
        reach.ask(CancelSubmission(number=handle.number, detail=error.message), 30.0)
        raise
    except KeyboardInterrupt:
        handle.complete()
        done = f"interrupted; {handle.number} was not submitted as a whole, and "
        try:
            reach.ask(CancelSubmission(number=handle.number, detail=INTERRUPTED), GIVE_UP_S)
            reach.note(f"{done}is cancelled")
        except RmgrError:
            reach.note(f"{done}could not be cancelled: rmgr cancel {handle.number}")
        raise
    return Sent(submission=handle.submission, tasks=draft.tasks, created=True)


def output_files(draft: CheckedRequest) -> tuple[tuple[str, str], ...]:
    """Returns (key, file) of the outputs that tasks leave in the data store."""
    return draft.record.command.output_files if draft.record.command is not None else ()


def _pointers(draft: CheckedRequest, number: int, reign: str) -> list[tuple[str, Any]]:
    return [
        (output_key(key, draft.record, number, position), keys.Pointer(sub=number, index=position, n=n, by=reign))
        for n, (key, _) in enumerate(output_files(draft))
        for position in range(draft.tasks)
    ]


def seconds_left(deadline_s: float) -> float:
    """Returns seconds until a monotonic time, at least 0.1, for a call that needs some time."""
    return max(0.1, deadline_s - machine.monotonic())


# -- checks against the cluster and the store: nothing is written; a change in between is refused later -----------------------


def read_facts(reach: Reach) -> AdmissionFacts:
    """Returns the cluster's current settings and nodes. Raises Unavailable."""
    from rmgr.submitter.questions import ReadNodes, ReadSettings

    reach.expect(ReadSettings(), ReadNodes())
    return AdmissionFacts(reach.ask(ReadSettings()).settings, [*reach.ask(ReadNodes())])


def check_dependencies(reach: Reach, draft: Submission) -> None:
    """Raises NotFound unless all submissions that `draft` waits for exist, or did."""
    from rmgr.submitter.questions import WhichExist

    numbers = tuple(dict.fromkeys(item.submission for item in draft.after))
    there = reach.ask(WhichExist(numbers=numbers)) if numbers else ()
    for number in numbers:
        if number not in there and reach.data_store().head(keys.history(number)) is None:
            raise NotFound(f"--after: there is no submission {number} to wait for", hint="rmgr jobs -a lists them, rmgr history older ones")


def check_inputs(reach: Reach, names: Iterable[str]) -> None:
    """Raises NotFound or PermissionDenied unless all input keys exist and may be read."""
    if not names:
        return
    from rmgr.coord.decisions.rights import TRUST_ANYBODY

    values, wait_s = reach.values(), reach.left_s(30.0)
    for key in names:
        values.check_input(key, trust=(TRUST_ANYBODY,), timeout=wait_s)  # a file of bytes, never unpickled
        if reach.data_store().head(keys.named(key), timeout_s=wait_s) is None:
            raise NotFound(
                f"--input: there is no key {key!r} in the data store", hint=f"rmgr store put {key} FILE; rmgr store ls lists keys"
            )


def check_outputs(reach: Reach, draft: Submission, tasks: int) -> None:
    """Raises KeyExists or UsageError unless output keys are free. `claim_outputs` refuses keys taken in between."""
    command = draft.command
    if command is None or not command.output_files:
        return
    values, wait_s = reach.values(), reach.left_s(30.0)
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


def waiting_blocks(record: Submission, tasks: int) -> int:
    """Returns the number of blocks that would wait in the queue right after submission."""
    if record.phase is not Phase.OPEN or record.max_running:
        return 0
    return tasks if record.rigid is not None else -(-tasks // MAX_TASKS)


def check_room(reach: Reach, settings: ClusterSettings, queue: str, more: int, *, what: str = "this is") -> None:
    """Raises QueueFull unless the queue has room for `more` blocks. Cost: one read if the queue has a cap."""
    from rmgr.submitter.questions import CountWaiting

    spec = settings.queue(queue)
    cap = spec.max_pending_blocks if spec is not None else 0
    if not cap or not more:
        return
    waiting = reach.ask(CountWaiting(queue=queue))
    if waiting + more > cap:
        shorter = "send more tasks in one submission: --array, --each-line" if what == "this is" else "submit shorter lists"
        raise QueueFull(
            f"queue {queue} is full: {counted(waiting, 'waiting block')}, at most {cap} may wait, and {what} {more} more",
            hint=f"wait until some have run (rmgr queues), or {shorter}",
        )


def check_jobs(reach: Reach, limits: UserLimits, user: str, *, new: int = 1) -> None:
    """Checks whether `user` may submit `new` more jobs. Errors and cost as of `admission.check_cap`."""
    from rmgr.procedures.admission import check_cap
    from rmgr.submitter.questions import ReadUse

    check_cap(lambda: reach.ask(ReadUse(user=user)).jobs, limits, user, new=new)


def check_size(record: Submission) -> None:
    """Raises UsageError or RequestTooLarge for a request that does not fit a record."""
    size = len(encode_record(record))
    for option, text in (("--name", record.name), ("--account", record.account), ("--token", record.token)):
        if len(text) > _MAX_WORD:
            raise UsageError(f"{option} has {len(text)} characters; at most {_MAX_WORD} are recorded", hint="a shorter one")
    if size > MAX_RECORD_BYTES:
        raise RequestTooLarge(
            f"the command and its environment take {size} bytes; at most {MAX_RECORD_BYTES} are recorded",
            hint="put long argument lists into a file (--upload FILE, --each-line FILE), and variables into the script",
        )


def check_store(reach: Reach) -> None:
    """Raises StoreUnavailable if outputs could not be stored: accepted work would only fill the nodes' disks."""
    from rmgr.procedures.bootstrap import STORE_READ_S, not_submitted, require_store

    timeout_s = reach.left_s(STORE_READ_S)
    try:
        store = reach.data_store()
    except StoreUnavailable as error:
        named_by = "--store" if reach.store else "RMGR_STORE" if os.environ.get("RMGR_STORE") else ""
        raise not_submitted(error, named_by=named_by) from error
    require_store(store, timeout_s=timeout_s)


# -- scripts, files and directories that travel to nodes: each stored once, by the hash of its content ------------------------


def ship_script(reach: Reach, script: ScriptText, python: str = "") -> str:
    """Stores the script's text; returns its hash. `python` replaces the interpreter of a `#!...python` line."""
    return _store(reach, _script_text(script, python))


def script_sha256(script: ScriptText, python: str = "") -> str:
    """Returns the hash that `ship_script` returns, without storing the script."""
    return hashlib.sha256(_script_text(script, python)).hexdigest()


def _script_text(script: ScriptText, python: str) -> bytes:
    text = script.text
    if python:
        head, newline, rest = text.partition(b"\n")
        if head.startswith(b"#!") and b"python" in head:
            text = b"#!" + os.fsencode(python) + newline + rest
        elif not head.startswith(b"#!") and script.name.endswith(".py"):
            text = b"#!" + os.fsencode(python) + b"\n" + text
    return text


def check_shipped(options: CommandOptions) -> None:
    """Raises UsageError for files of this machine that are named and are not there, before anything is stored (`--dry-run`)."""
    for name in options.uploads:
        _check_upload(name)
    if options.stdin and options.stdin != "-" and not os.path.exists(options.stdin):
        raise UsageError(f"--stdin: there is no file {options.stdin}", hint="name a file of this machine, or - for stdin")


def ship_stdin(reach: Reach, name: str) -> str:
    """Stores the standard input of the work; `-` is this process's own. Raises UsageError, ValueTooLarge."""
    try:
        with nullcontext(sys.stdin.buffer) if name == "-" else Path(name).open("rb") as file:
            data = file.read(MAX_UPLOAD_BYTES + 1)
    except OSError as error:
        raise UsageError(f"--stdin: {name} cannot be read: {error.strerror}", hint="name a file, or - for stdin") from error
    if len(data) > MAX_UPLOAD_BYTES:
        raise _too_large(f"--stdin {name}", len(data))
    return _store(reach, data)


def ship_lines(reach: Reach, lines: Sequence[bytes]) -> str:
    """Stores the lines of `--each-line`, so that tasks can run again; returns "" if they are too many for that."""
    data = b"\n".join(lines)
    return _store(reach, data) if len(data) <= MAX_UPLOAD_BYTES else ""


def ship_uploads(reach: Reach, names: Sequence[str]) -> tuple[Upload, ...]:
    """Stores files as they are and directories as archives. Raises UsageError, ValueTooLarge."""
    uploads = []
    for name in names:
        path = Path(name)
        shown = _upload_name(name)
        try:
            _check_upload(name)
            if path.is_dir():
                uploads.append(Upload(name=shown, sha256=_store(reach, pack_directory(path)), is_dir=True))
            else:
                uploads.append(Upload(name=shown, sha256=_store(reach, _content(path))))
        except OSError as error:
            message = f"--upload: {error.filename or name} cannot be read: {error.strerror}"
            raise UsageError(message, hint="whoever submits must be able to read all of it") from None
    if len({upload.name for upload in uploads}) != len(uploads):
        raise UsageError("--upload: two of them have the same name", hint="put them into one directory and upload that")
    return tuple(uploads)


def pack_directory(directory: Path) -> bytes:
    """Packs a tar archive whose bytes depend only on names, modes and contents, so that the same code is stored once.

    Raises: UsageError naming a member that cannot travel (special file, link out of the directory); ValueTooLarge; OSError.
    """
    import tarfile

    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for count, path in enumerate(_tree(directory)):
            if count >= MAX_UPLOAD_MEMBERS:
                raise ValueTooLarge(f"--upload: {directory} has more than {MAX_UPLOAD_MEMBERS} files", hint="pack them into one file first")
            inside = path.relative_to(directory)
            tar.inodes.clear()  # type: ignore[attr-defined]  # a second name of a file is a file of its own
            member = tar.gettarinfo(path, arcname=str(inside))
            member.mtime, member.uid, member.gid, member.uname, member.gname = 0, 0, 0, "", ""
            if member.issym():
                _check_link(directory, inside, member.linkname)
            if out.tell() + member.size > MAX_UPLOAD_BYTES:
                raise _too_large(str(directory), out.tell() + member.size)
            if member.isreg():
                with path.open("rb") as content:
                    tar.addfile(member, content)
            else:
                tar.addfile(member)
    return out.getvalue()


def _tree(directory: Path) -> Iterator[Path]:
    """Yields everything below `directory` by name, without Python's caches and without following links. Raises: UsageError, OSError."""
    with os.scandir(directory) as entries:
        found = sorted(entries, key=lambda entry: entry.name)
    for entry in found:
        if entry.name == "__pycache__":
            continue
        path = Path(entry.path)
        if entry.is_dir(follow_symlinks=False):
            yield path
            yield from _tree(path)
        elif entry.is_file(follow_symlinks=False) or entry.is_symlink():
            yield path
        else:
            raise UsageError(f"--upload: {path} is neither a file, a directory nor a link", hint="pipes, sockets and devices cannot travel")


def _check_link(directory: Path, inside: Path, to: str) -> None:
    """Raises UsageError for a link out of the directory: the node has only what travels with it."""
    where = os.path.normpath(inside.parent / to)
    if os.path.isabs(to) or where.split(os.sep)[0] == "..":
        raise UsageError(
            f"--upload: the link {directory / inside} leads out of {directory}, to {to}",
            hint="replace it by what it leads to, or leave it out",
        )


def _check_upload(name: str) -> None:
    path = Path(name)
    if not path.exists():
        raise UsageError(f"--upload: there is no file or directory {name}", hint="paths are those of this machine")
    if not (path.is_dir() or path.is_file()):
        raise UsageError(f"--upload: {name} is neither a file nor a directory", hint="pipes, sockets and devices cannot travel")


def _content(path: Path) -> bytes:
    size = path.stat().st_size
    if size > MAX_UPLOAD_BYTES:
        raise _too_large(str(path), size)
    return path.read_bytes()


def _upload_name(name: str) -> str:
    """Returns the name of an upload in the work directory."""
    shown = os.path.basename(os.path.abspath(name))
    try:
        shown.encode()
    except UnicodeEncodeError:
        message = f"--upload: the name of {os.fsencode(name)!r} is not UTF-8"
        raise UsageError(message, hint="rename it, or put it into a directory") from None
    if not shown:
        raise UsageError(f"--upload: {name} has no name to go by in the work directory", hint="name a directory below it")
    return shown


def _too_large(name: str, size: int) -> ValueTooLarge:
    limit = format_size(MAX_UPLOAD_BYTES)
    return ValueTooLarge(f"{name} has {format_size(size)} or more; the limit is {limit}", hint="use a shared file system, or several")


def _store(reach: Reach, data: bytes) -> str:
    digest = hashlib.sha256(data).hexdigest()
    put_content(reach.data_store(), keys.upload(digest), data, timeout_s=reach.left_s(30.0))
    return digest


# -- a list of different jobs, all or nothing ----------------------------------------------------------------------------------

# The anchor, a submission without tasks, is held while its program lives. Every job of the list is made durable behind it (it waits for
# the anchor's end with `ok`). One write on the anchor, its release, starts them all. A program that dies earlier leaves an anchor without
# owner: the leader cancels it (`Abandon` in `coord/decisions/keeping.py`), and with it all jobs that wait for it.

_LIST_S = 60.0
_CANCEL_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedJob:
    """One job of a list. where: `jobs.toml: job 3, line 17 (prep)`; needs: (condition, index in the list) of jobs that it waits for."""

    where: str
    name: str
    request: CommandRequest
    needs: tuple[tuple[Condition, int], ...]


def in_order(entries: Sequence[ListedJob]) -> Iterator[int]:
    """Yields indices of entries, each after those that it needs; leaves out entries in a cycle. Cost: O(entries + needs)."""
    missing = [len({need for _, need in entry.needs}) for entry in entries]
    waiting: dict[int, list[int]] = {}
    for place, entry in enumerate(entries):
        for need in {need for _, need in entry.needs}:
            waiting.setdefault(need, []).append(place)
    ready = [place for place, count in enumerate(missing) if not count]
    while ready:
        yield from ready
        following = []
        for place in ready:
            for other in waiting.get(place, ()):
                missing[other] -= 1
                if not missing[other]:
                    following.append(other)
        ready = sorted(following)


def prepare_all(reach: Reach, entries: Sequence[ListedJob]) -> list[CheckedRequest]:
    """Checks each entry against the cluster, and all together against the room of their queues; writes nothing.

    Raises: as `prepare`, naming the entry; QueueFull; LimitReached.
    """
    facts = read_facts(reach)
    drafts = []
    for entry in entries:
        try:
            draft = prepare(reach, entry.request, facts)
            check_size(replace(draft.record, after=_after(draft.record, entry, dict.fromkeys(range(len(entries)), 1 << 31), 1 << 31)))
        except RmgrError as error:
            error.message = f"{entry.where}: {error.message}"
            error.args = (error.message,)
            raise
        drafts.append(draft)
    more: dict[str, int] = {}
    for draft in drafts:
        more[draft.record.queue] = more.get(draft.record.queue, 0) + waiting_blocks(draft.record, draft.tasks)
    for queue, blocks in more.items():
        check_room(reach, facts.settings, queue, blocks, what="this list is")
    if drafts:
        check_jobs(reach, facts.settings.limits, drafts[0].record.user, new=len(drafts))
    return drafts


def send_all(reach: Reach, entries: Sequence[ListedJob], drafts: Sequence[CheckedRequest], *, token: str, name: str) -> list[Sent]:
    """Makes all entries durable, in their order, or none.

    Args:
        token: "" = a new one. name: of the list.
    Raises: the errors of a single `send`; StateConflict if the list was given up meanwhile.
    """
    from rmgr.client.submission.handle import SilentListener
    from rmgr.submitter.port import Order
    from rmgr.submitter.questions import CancelSubmission

    check_store(reach)
    records = [shipped(reach, draft) for draft in drafts]
    deadline_s = machine.monotonic() + reach.patience_s(_LIST_S)
    submitter = reach.submitter()
    mine = token or machine.guid()
    reach.undone = ""
    handle = submitter.open(_anchor(drafts[0].record, mine, name), SilentListener(), timeout_s=seconds_left(deadline_s))
    anchor = handle.submission
    if not _is_sent(anchor, submitter.guid, mine):
        failpoint("list.before_entries")
    sent: dict[int, Sent] = {}
    wave: dict[int, Order] = {}

    def flush() -> None:
        made = submitter.submit_many(list(wave.values()), timeout_s=seconds_left(deadline_s))
        sent.update((place, Sent.of(found)) for place, found in zip(wave, made, strict=True))
        wave.clear()

    try:
        for place in in_order(entries):
            entry, draft = entries[place], drafts[place]
            if any(need not in sent for _, need in entry.needs):
                flush()
            after = _after(records[place], entry, {need: sent[need].submission.id for _, need in entry.needs}, anchor.id)
            record = replace(records[place], after=after, token=f"{mine}.{place + 1}")
            if record.phase is not Phase.HELD:
                record = replace(record, phase=Phase.HELD, reason=Reason.DEPENDENCY)
            blocks = blocks_of(record, draft.payloads)
            if blocks is None or output_files(draft):
                sent[place] = send_in_parts(reach, submitter, record, draft, deadline_s)
            else:
                wave[place] = Order(draft=record, blocks=blocks, tasks=draft.tasks, complete=True)
        flush()
        failpoint("list.before_release")
    except (RmgrError, KeyboardInterrupt) as error:
        with suppress(RmgrError):  # else the leader does it once this program is gone
            reach.ask(CancelSubmission(number=anchor.id, detail="not all of its list could be submitted"), _CANCEL_S)
        if isinstance(error, SubmitUnknown):
            what = "ZooKeeper went away while the list was submitted; it was not let go, and nothing of it runs"
            raise CoordinationUnavailable(what, hint="rmgr doctor; then submit it again") from error
        raise
    if anchor.phase is Phase.HELD:
        _release(reach, anchor.id, mine, seconds_left(deadline_s))
        failpoint("list.after_release")
        handle.complete()
        handle.flush(seconds_left(deadline_s))
    return [sent[place] for place in range(len(entries))]


def _anchor(like: Submission, token: str, name: str) -> Submission:
    """Returns the submission that the list waits for: held, without tasks, and without owner once its program is gone."""
    return Submission(
        id=0,
        name=f"list {name}"[:200],
        user=like.user,
        queue=like.queue,
        work=Work.COMMAND,
        request=like.request,
        priority=like.priority,
        phase=Phase.HELD,
        reason=Reason.USER_HOLD,
        token=token,
        submitted_us=like.submitted_us,
        command=Command(argv=("/bin/true",)),
        rigid=like.rigid,
        host=like.host,
        ends_with_owner=True,
    )


def _is_sent(anchor: Submission, me: str, token: str) -> bool:
    """Returns whether the token was used before for a list that is complete now. me: this Submitter. Raises StateConflict if incomplete."""
    if anchor.owner == me:
        return False
    if anchor.phase in (Phase.OPEN, Phase.CLOSED) and not anchor.reason:
        return True
    why = "is still being submitted" if anchor.phase is Phase.HELD else "was given up before all of it was there"
    hint = "wait until that command has ended" if anchor.phase is Phase.HELD else "submit it with another --token"
    raise StateConflict(f"the list of --token {token} (submission {anchor.id}) {why}", hint=hint)


def _after(record: Submission, entry: ListedJob, ids: Mapping[int, int], anchor: int) -> tuple[Dependency, ...]:
    needs = (Dependency(condition=condition, submission=ids[place]) for condition, place in entry.needs)
    return (*record.after, *needs, Dependency(condition=Condition.OK, submission=anchor))


def _release(reach: Reach, anchor: int, token: str, timeout_s: float) -> None:
    """Commits the list: from here on all of it runs."""
    from rmgr.submitter.questions import ReleaseSubmission

    try:
        changed = reach.ask(ReleaseSubmission(number=anchor), timeout_s)
    except CoordinationUnavailable:
        raise SubmitUnknown(
            "it is not known whether the list was let go: ZooKeeper went away meanwhile",
            token=token,
            hint=f"rmgr show {anchor}: CANCELLED (soon after this command has ended) means that none of it runs; it is let go otherwise",
        ) from None
    now = changed.after
    if now.phase in (Phase.CANCELLED, Phase.HELD) or (now.phase is Phase.CLOSED and now.reason):
        raise StateConflict(
            f"the list was not let go: submission {anchor}, which it waits for, is {now.phase} ({now.reason}); nothing of it runs",
            hint="submit it again",
        )
