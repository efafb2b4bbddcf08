"""Requests to run a command or a script: what they ask for, and what of it is recorded."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from codecs import BOM_UTF8
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rmgr.errors import UsageError
from rmgr.model.tasks.array import parse_array, shown_index
from rmgr.model.tasks.placing import Rigid
from rmgr.model.tasks.submission import Command, Dependency, OnDisconnect, Submission, path_fault

_ENTRY_BYTES = 64 * 1024
_PYTHON = re.compile(r"^python(?:\d(?:\.\d+)?)?$")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptText:
    """A script as it was when it was read. name: its path, or "stdin"."""

    name: str
    text: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandOptions:
    """Options of one request; their names are those of `rmgr submit`. Times in us, sizes in bytes, None: not said.

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


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandRequest:
    """A request with what it runs: `words` as argv, or as the arguments of `script`."""

    options: CommandOptions
    words: tuple[str, ...]
    script: ScriptText | None = None


def payloads_of(options: CommandOptions) -> list[bytes]:
    """The argument of each task: its line, or nothing. Raises UsageError (the file of `each_line`)."""
    if options.each_line:
        return read_entries(options.each_line)
    return [b""] * (len(parse_array(options.array)) if options.array else 1)


def read_entries(file: str) -> list[bytes]:
    """Lines of `file` ("-": standard input), without their ends; empty ones are left out. Raises UsageError."""
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
    """The command as it is recorded; script and uploads are named later, by their hashes. Raises UsageError (`python`, names of files)."""
    options = request.options
    out, err = on_node(options.out, options.cwd), on_node(options.err, options.cwd)
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
        input_files=tuple(options.inputs),
        output_files=tuple(options.outputs),
    )


def _check_files(option: str, pairs: Iterable[tuple[str, str]], *, absolute: bool) -> None:
    """Raises UsageError for a file that the Starter would refuse after the work has been queued. absolute: a whole path may stand there."""
    for key, name in pairs:
        _check_name(option, name)
        way = os.path.normpath(name)
        if way in {".", ".."} or way.startswith("../") or (os.path.isabs(way) and not absolute):
            raise UsageError(
                f"{option}: the file name {name[:80]!r} leads out of the work directory",
                hint=f"name a file below it: {option} {key}={os.path.basename(way.rstrip('.')) or 'FILE'}",
            )


def _check_name(option: str, name: str) -> None:
    """Raises UsageError for what no file can be called."""
    if fault := path_fault(name):
        raise UsageError(f"{option}: no file can have the name {name[:80]!r}: it {fault}", hint="a shorter name, of plain characters")


def whole_path(word: str) -> str:
    """The absolute path of a command that exists here by a relative one: nodes run it in another directory."""
    return os.path.abspath(word) if "/" in word and not os.path.isabs(word) and os.path.isfile(word) else word


def interpreted(python: str, words: tuple[str, ...]) -> tuple[str, ...]:
    """`--python PATH`: `python x.py` and `x.py` run with that interpreter. Raises UsageError when nothing here is Python's."""
    if not python:
        return words
    if _PYTHON.match(os.path.basename(words[0])):
        return (python, *words[1:])
    if words[0].endswith(".py"):
        return (python, *words)
    raise UsageError(f"--python: {words[0]!r} is no Python program", hint="rmgr submit --python PATH -- python program.py")


def output_key(pattern: str, record: Submission, number: int, position: int) -> str:
    """Key of `--output` for one task: %a is its array index, %j the job, %x the name."""
    shown = str(shown_index(record.array, position))
    return pattern.replace("%a", shown).replace("%j", str(number)).replace("%x", record.name)


def on_node(pattern: str, cwd: str) -> str:
    """An output file as the node sees it: below `--cwd`, else below the directory where it was submitted."""
    return os.path.abspath(os.path.join(cwd, pattern)) if pattern else ""
