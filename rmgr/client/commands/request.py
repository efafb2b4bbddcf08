"""Requests to run a command or script: their options, the part that is recorded, and records as requests again (`rmgr rerun`)."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import sys
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rmgr.coord.protocol import keys
from rmgr.errors import DataLost, PermissionDenied, UsageError
from rmgr.model.submission import (
    MAX_UPLOAD_BYTES,
    Command,
    Dependency,
    OnDisconnect,
    Rigid,
    Submission,
    parse_array,
    path_fault,
    shown_index,
)

if TYPE_CHECKING:
    from rmgr.adapters.identity.trust import Trust
    from rmgr.client.reach import Reach
    from rmgr.submitter.questions import Asks

_ENTRY_BYTES = 64 * 1024
_PYTHON = re.compile(r"^python(?:\d(?:\.\d+)?)?$")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptText:
    """A script as it was read. name: its path, or "stdin"."""

    name: str
    text: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandOptions:
    """Options of one request, named as those of `rmgr submit`. Times in us, sizes in bytes, None: not given.

    each_line, stdin: files of this machine, "-" = standard input. inputs, outputs: (key of the store, file).
    """

    name: str = ""
    queue: str = ""
    cores: int = 1
    memory_bytes: int | None = None
    time_us: int | None = None
    priority: int | None = None
    after: tuple[Dependency, ...] = ()
    array: str = ""
    each_line: str = ""
    max_fails: int | None = None
    retries: int = 0
    backoff_us: int = 0
    resubmit: bool = True
    out: str = ""
    err: str = ""
    env: tuple[tuple[str, str], ...] = ()
    cwd: str = ""
    inputs: tuple[tuple[str, str], ...] = ()
    outputs: tuple[tuple[str, str], ...] = ()
    hold: bool = False
    on_disconnect: OnDisconnect = OnDisconnect.KEEP
    uploads: tuple[str, ...] = ()
    stdin: str = ""
    python: str = ""
    token: str = ""
    features: tuple[str, ...] = ()
    resources: tuple[tuple[str, int], ...] = ()
    account: str = ""
    partition: str = ""
    rigid: Rigid | None = None
    slurm_env: bool = False

    def check(self) -> None:
        """Raises UsageError for options that contradict each other."""
        if self.array and self.each_line:
            raise UsageError("--array and --each-line exclude each other", hint="--each-line makes one task for each line")
        if not self.resubmit and self.retries:
            raise UsageError("--no-resubmit (at most once) and --retries exclude each other", hint="drop one of them")
        for option, name in (("--out", self.out), ("--err", self.err)):
            if name == "-":
                hint = "leave it out: rmgr logs, --wait and rmgr run show what work prints; a file of this name is ./-"
                raise UsageError(f"{option} - names no file", hint=hint)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandRequest:
    """A request: its options, and `words` as argv, or as the arguments of `script`."""

    options: CommandOptions
    words: tuple[str, ...]
    script: ScriptText | None = None


def payloads_of(options: CommandOptions) -> list[bytes]:
    """Returns the argument of each task: its line, or b"". Raises UsageError (the file of `each_line`)."""
    if options.each_line:
        return read_entries(options.each_line)
    return [b""] * (len(parse_array(options.array)) if options.array else 1)


def read_entries(file: str) -> list[bytes]:
    """Reads the lines of `file` ("-": standard input), without line ends and empty lines. Raises UsageError."""
    try:
        with contextlib.nullcontext(sys.stdin.buffer) if file == "-" else Path(file).open("rb") as lines:
            entries = [line.rstrip(b"\r\n") for line in lines]
            entries[:1] = [entry.removeprefix(BOM_UTF8) for entry in entries[:1]]
    except OSError as error:
        raise UsageError(
            f"--each-line: {file} cannot be read: {error.strerror}", hint="name a file with one task a line, or - for stdin"
        ) from error
    for number, entry in enumerate(entries, 1):
        if b"\0" in entry:
            raise UsageError(f"{file}:{number}: the line holds a NUL byte, and a variable cannot", hint="is it a text file?")
        if len(entry) > _ENTRY_BYTES:
            raise UsageError(
                f"{file}:{number}: the line has {len(entry)} bytes; the limit is {_ENTRY_BYTES}",
                hint="put the data into the store: --input",
            )
    entries = [entry for entry in entries if entry]
    if not entries:
        raise UsageError(f"--each-line: {file} has no line", hint="one task a line")
    return entries


def command_of(request: CommandRequest) -> Command:
    """Returns the command to record, still without the hashes of script and uploads. Raises UsageError (`python`, file names)."""
    options = request.options
    out, err = on_node(options.out, options.cwd), on_node(options.err, options.cwd)
    if options.cwd and not os.path.isabs(options.cwd):
        message = f"--cwd: nodes know no directory of yours, so {options.cwd[:80]!r} says nothing to them"
        here = os.path.abspath(os.path.expanduser(os.path.expandvars(options.cwd)))  # quoted, or in a script, no shell has read it
        raise UsageError(message, hint=f"the whole path: --cwd={here[:200]}")
    for option, name in (("--out", out), ("--err", err), ("--cwd", options.cwd), ("--python", options.python)):
        _check_name(option, name)
    _check_files("--input", options.inputs, absolute=False)
    _check_files("--output", options.outputs, absolute=True)
    moved = bool(options.cwd or options.uploads or options.inputs)
    words = tuple(request.words)
    if request.script is None:
        words = interpreted(options.python, words if moved else (whole_path(words[0]), *words[1:]))
    environment = dict(options.env)
    if options.python:
        environment.setdefault("RMGR_PYTHON", options.python)
    return Command(
        argv=words,
        script_name=os.path.basename(request.script.name) if request.script is not None else "",
        env=environment,
        cwd=options.cwd,
        out=out,
        err=err,
        named_only=_lacks_directories(out, err),
        input_files=tuple(options.inputs),
        output_files=tuple(options.outputs),
    )


def _check_files(option: str, pairs: Iterable[tuple[str, str]], *, absolute: bool) -> None:
    """Raises UsageError for a file name that the Starter would refuse after queueing. absolute: absolute paths are allowed."""
    for key, name in pairs:
        _check_name(option, name)
        way = os.path.normpath(name)
        if way in {".", ".."} or way.startswith("../") or (os.path.isabs(way) and not absolute):
            raise UsageError(
                f"{option}: the file name {name[:80]!r} leads out of the work directory",
                hint=f"name a file below it: {option} {key}={os.path.basename(way.rstrip('.')) or 'FILE'}",
            )


def _check_name(option: str, name: str) -> None:
    """Raises UsageError for a name that no file can have."""
    if fault := path_fault(name):
        raise UsageError(f"{option}: no file can have the name {name[:80]!r}: it {fault}", hint="a shorter name, of plain characters")


def whole_path(word: str) -> str:
    """Makes a relative path of an existing command absolute, because nodes run it in another directory."""
    return os.path.abspath(word) if "/" in word and not os.path.isabs(word) and os.path.isfile(word) else word


def interpreted(python: str, words: tuple[str, ...]) -> tuple[str, ...]:
    """Applies `--python PATH`: `python x.py` and `x.py` run with that interpreter. Raises UsageError if neither form is used."""
    if not python:
        return words
    if _PYTHON.match(os.path.basename(words[0])):
        return (python, *words[1:])
    if words[0].endswith(".py"):
        return (python, *words)
    raise UsageError(f"--python: {words[0]!r} is no Python program", hint="rmgr submit --python PATH -- python program.py")


def output_key(pattern: str, record: Submission, number: int, position: int) -> str:
    """Returns the key of `--output` for one task: %a is its array index, %j the job, %x the name."""
    shown = str(shown_index(record.array, position))
    return pattern.replace("%a", shown).replace("%j", str(number)).replace("%x", record.name)


def on_node(pattern: str, cwd: str) -> str:
    """Returns an output file's path on the node: below `--cwd`, else below the directory of the submission."""
    return os.path.abspath(os.path.join(cwd, pattern)) if pattern else ""


def _lacks_directories(*files: str) -> bool:
    """Returns whether one of these files could be written on a node only: this machine has no such directory, so nobody fetches it."""
    return not all(os.path.isdir(os.path.dirname(file)) for file in files if file)


# -- stored work that runs again: hashes in its record lead to what its user gave with it (script, uploads, stdin, lines). In a
# secured cluster the record has its submitter's signature; a user who runs it again signs exactly what the submitter signed,
# without later changes.


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredWork:
    """Tasks of a submission that are to run again. payloads: the argument of each."""

    record: Submission
    payloads: tuple[bytes, ...]


def check_signature(record: Submission, asks: Asks, trust: Trust, cluster_id: str, *, operators: Sequence[str], timeout_s: float) -> None:
    """Checks, in a secured cluster, that the user signed this record for this number. operators: from the settings.

    Raises: PermissionDenied; CoordinationUnavailable.
    """
    from rmgr.coord.seal import record_statement
    from rmgr.runtime import machine

    key_id, _, signature = record.signature.partition(":")
    why = "nobody has signed its record"
    if signature:
        signer = trust.find(key_id, at_s=machine.wall_s(), timeout_s=timeout_s)
        if isinstance(signer, str):
            why = signer
        elif signer.identity.name != record.user or not signer.identity.is_person:
            why = f"its record was signed by {signer.identity.role} {signer.identity.name}, and is said to be of {record.user}"
        elif signer.verify(bytes.fromhex(signature), record_statement(record, cluster_id)):
            why = _why_foreign(record, asks, timeout_s) or _amended_by_others(record, trust, cluster_id, operators, timeout_s)
            if not why:
                return
        else:
            why = f"its record is not what {record.user} has signed"
    raise PermissionDenied(f"submission {record.id} cannot be run again: {why}", hint="submit it anew: rmgr submit")


def _why_foreign(record: Submission, asks: Asks, timeout_s: float) -> str:
    """Returns why the record is not that of its number, "" if it is. The user signs a nonce, which was assigned a number later."""
    from rmgr.submitter.questions import ReadNonce

    is_its_own = asks.ask(ReadNonce(number=record.id), timeout_s=timeout_s) == record.id
    return "" if is_its_own else f"its record is one that {record.user} has signed for another"


def _amended_by_others(record: Submission, trust: Trust, cluster_id: str, operators: Sequence[str], timeout_s: float) -> str:
    """Returns why an amendment was made by a user who may not make it, "" if all are valid. (Its form limits what operators may change.)"""
    from rmgr.coord.seal import amendment_fault

    for change in record.changes:
        key_id, _, signature = change.signature.partition(":")
        signer = trust.find(key_id, at_s=change.by_us / 1e6, dated=True, timeout_s=timeout_s) if signature else "nobody has signed it"
        if isinstance(signer, str):
            why = signer
        else:
            why = amendment_fault(record.id, change, cluster_id, signer.identity, signer.verify, operators=operators)
        if why:
            return f"amendment {change.number}, by {change.by}: {why}"
    return ""


def lines_of(reach: Reach, record: Submission, positions: Sequence[int], total: int) -> tuple[bytes, ...]:
    """Returns the lines of `--each-line` of these tasks, b"" for each if there were none. Raises: DataLost, StoreUnavailable.

    total: tasks of the submission; several tasks without an array came from lines.
    """
    if not record.entries:
        if total > 1 and not record.array:
            why = f"the lines of submission {record.id} are not kept: there were too many, or an older release has submitted it"
            raise DataLost(why, hint="submit them anew: --each-line")
        return (b"",) * len(positions)
    key = keys.upload(record.entries)
    found = reach.data_store().get_noted_many([key], largest=MAX_UPLOAD_BYTES, timeout_s=reach.left_s(30.0)).get(key)
    data = found[0] if found is not None else None
    if data is None or hashlib.sha256(data).hexdigest() != record.entries:
        raise DataLost(f"the lines of submission {record.id} are not in the data store as they were", hint="submit them anew: --each-line")
    lines = data.split(b"\n")
    if any(position >= len(lines) for position in positions):
        raise DataLost(f"submission {record.id} has more tasks than stored lines", hint="submit them anew: --each-line")
    return tuple(lines[position] for position in positions)


def array_of(record: Submission, positions: Sequence[int]) -> str:
    """Returns an array with the index of each of these tasks, so that they keep it; "" for the only task of a plain submission."""
    if record.array:
        known = parse_array(record.array)
        numbers = [known.index_at(position) for position in positions]
    elif list(positions) == [0] and not record.entries:
        return ""
    else:
        numbers = list(positions)
    cap = f"%{record.max_running}" if record.max_running else ""
    return ",".join(_ranges(numbers)) + cap


def _ranges(numbers: Sequence[int]) -> Iterator[str]:
    """Yields ranges: 1 3 5 8 9 -> `1-5:2`, `8-9`."""
    at = 0
    while at < len(numbers):
        step = numbers[at + 1] - numbers[at] if at + 1 < len(numbers) else 0
        end = at + 1
        while step > 0 and end < len(numbers) and numbers[end] == numbers[end - 1] + step:
            end += 1
        if end - at < (2 if step == 1 else 3):
            end = at + 1
            yield f"{numbers[at]}"
        else:
            yield f"{numbers[at]}-{numbers[end - 1]}" + (f":{step}" if step > 1 else "")
        at = end


def command_again(stored: Command, request: CommandRequest) -> Command:
    """Returns the stored command with the request's changes. Raises: UsageError (`python`)."""
    options = request.options
    if options.python:
        raise UsageError("--python: the stored command names its interpreter itself", hint="rmgr submit --python PATH -- python program.py")
    cwd = options.cwd or stored.cwd
    out, err = on_node(options.out, cwd) or stored.out, on_node(options.err, cwd) or stored.err
    return replace(
        stored,
        env=stored.env | dict(options.env),
        cwd=cwd,
        out=out,
        err=err,
        named_only=_lacks_directories(out, err),
        input_files=options.inputs,
        output_files=options.outputs,
    )
