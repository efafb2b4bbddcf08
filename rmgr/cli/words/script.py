"""Scripts: which file is one, what its `#RMGR` lines say, and help for people who bring one from another system.

As with sbatch: directives stand in the leading block of comments, the command line overrides them, the text is taken
at submit (later edits change nothing), and the file need not be executable.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
from codecs import BOM_UTF8
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from rmgr.client.commands.request import ScriptText
from rmgr.errors import UsageError, closest
from rmgr.model.submission import MAX_SCRIPT_BYTES

_MARK = "#RMGR"
#: Ends of names of scripts that no shell can read -> what can.
_INTERPRETERS = {".py": "python3", ".R": "Rscript", ".r": "Rscript", ".pl": "perl", ".jl": "julia", ".rb": "ruby", ".js": "node"}
_SUFFIXES = {".sh", ".bash", ".zsh", ".csh", ".ksh", ".job", ".slurm", ".sbatch", ".pbs", ".batch", ".cmd", *_INTERPRETERS}
SBATCH, PBS = "#SBATCH", "#PBS"
#: A variable of Slurm that is read: $SLURM_X, ${SLURM_X}, environ["SLURM_X"], getenv("SLURM_X").
_SLURMS = re.compile(r"""(?:\$\{?[#!]?|environ\W{1,3}|environ\.get\W{1,3}|getenv\W{1,3})(SLURMD?_[A-Z_]+)""")
#: A variable of PBS, Grid Engine, LSF or HyperQueue that a shell reads.
_OTHERS = re.compile(r"\$\{?((?:PBS|SGE|LSB|HQ)_[A-Z_]+)")
#: What holds the same here.
_EQUALS = {
    "PBS_ARRAYID": "RMGR_ARRAY_INDEX", "PBS_ARRAY_INDEX": "RMGR_ARRAY_INDEX", "SGE_TASK_ID": "RMGR_ARRAY_INDEX",
    "LSB_JOBINDEX": "RMGR_ARRAY_INDEX", "HQ_TASK_ID": "RMGR_ARRAY_INDEX", "HQ_ENTRY": "RMGR_ENTRY", "PBS_JOBID": "RMGR_JOB_ID",
    "LSB_JOBID": "RMGR_JOB_ID", "HQ_JOB_ID": "RMGR_JOB_ID",
}
#: A comment that is meant as a directive, and is none.
_NEARLY = re.compile(rf"{_MARK}\s*(?=-)", re.IGNORECASE)
#: A variable, or a home directory, in a directive.
_VARIABLE = re.compile(r"\$(?:\{\w+\}|[A-Za-z_]\w*)|(?<=[\s=])~(?=/)")
#: srun where a shell takes it for a command.
_SRUN = re.compile(r"(?:^|[;&|(]|\b(?:then|do|else|time|exec))\s*srun\s")
#: Systems whose lines are translated.
_TRANSLATED = (SBATCH, PBS)
_FOREIGN = (*_TRANSLATED, "#BSUB", "#HQ", "#$ ", "#COBALT", "#PJM", "#FLUX:", "#flux:", "#OAR ", "#MSUB ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Script(ScriptText):
    """A script's text and the words of its directives, by line."""

    directives: tuple[tuple[int, tuple[str, ...]], ...] = ()
    notes: tuple[str, ...] = ()  #: notes for its author
    foreign: tuple[tuple[int, str], ...] = ()  #: lines of Slurm and PBS, which are not obeyed here; empty beside `#RMGR` lines

    def where(self, line: int) -> str:
        """Returns `job.sh:3`, for messages."""
        return f"{self.name}:{line}"


def looks_like_script(word: str) -> bool:
    """Returns whether the first word of `rmgr submit WORD...` names a script here: a text file, rather than a command on PATH.

    Raises: UsageError if it is the name of a missing file, or a directory.
    """
    path = Path(word)
    if path.is_dir() and "/" in word:
        raise UsageError(f"{word} is a directory", hint="name a script or a command; --upload ships directories")
    on_path = "/" not in word and shutil.which(word) is not None
    if path.is_file():
        head = _head(path)
        return b"\0" not in head and (not on_path or head.startswith(b"#!"))
    if not on_path and (path.suffix in _SUFFIXES or word.startswith(("./", "../", "~/"))):
        near = closest(path.name, _names(path.parent))
        message = f"did you mean {path.parent / near[0] if '/' in word else near[0]}?" if near else "a command of the nodes goes after --"
        raise UsageError(f"there is no script {word}", hint=message)
    return False


def read_script(word: str, stdin: BinaryIO | None = None) -> Script:
    """Reads a script file, or standard input for `-`.

    Raises: UsageError if it cannot be read, is empty, binary, too large, has DOS line ends or a malformed directive.
    """
    if word == "-":
        assert stdin is not None
        name, text = "stdin", stdin.read(MAX_SCRIPT_BYTES + 1)
    else:
        name = word
        try:
            with Path(word).open("rb") as file:
                text = file.read(MAX_SCRIPT_BYTES + 1)
        except OSError as error:
            raise UsageError(f"the script {word} cannot be read: {error.strerror}", hint="rmgr submit -- CMD runs a command") from error
    text = text.removeprefix(BOM_UTF8)  # no kernel accepts a BOM before #!
    if len(text) > MAX_SCRIPT_BYTES:
        raise UsageError(f"the script {name} is larger than {MAX_SCRIPT_BYTES >> 20} MiB", hint="ship data with --upload or --input")
    if not text.strip():
        raise UsageError(f"the script {name} is empty", hint="the first line of a script is #!/bin/sh or the like")
    if b"\0" in text:
        raise UsageError(f"{name} is no text, so no script", hint="run a program with: rmgr submit -- PROGRAM ARGS")
    line = text.find(b"\r\n")
    if line >= 0:
        number = text.count(b"\n", 0, line) + 1
        hint = "tr -d '\\r' before it" if word == "-" else f"sed -i 's/\\r$//' {shlex.quote(name)}"
        raise UsageError(f"{name}:{number}: DOS line ends (CR LF)", hint=hint)
    lines = text.decode("utf-8", "replace").split("\n")
    block = [(number, line) for number, line in _leading(lines) if line.startswith((_MARK, *_FOREIGN))]
    is_ours = any(line.startswith(_MARK) for _, line in block)
    return Script(
        name=name,
        text=text,
        directives=tuple(_directives(name, lines)),
        notes=tuple(_notes(name, lines)),
        foreign=() if is_ours else tuple((number, line) for number, line in block if line.startswith(_TRANSLATED)),
    )


def check_interpreter(script: Script) -> None:
    """Raises UsageError for a script of Python and the like without a line that says so: a shell would read it."""
    program = _INTERPRETERS.get(os.path.splitext(script.name)[1])
    if program is not None and not script.text.startswith(b"#!"):
        file, name = shlex.quote(script.name), shlex.quote(os.path.basename(script.name))
        hint = f"begin it with #!/usr/bin/env {program}, or: rmgr submit --upload {file} -- {program} {name}"
        raise UsageError(f"{script.name} does not begin with #!, so a shell would read it", hint=hint)


def ignoring(script: Script, marks: Collection[str]) -> Script:
    """Returns the script without its lines that begin with one of `marks`."""
    return replace(script, foreign=tuple((number, line) for number, line in script.foreign if not line.startswith(tuple(marks))))


def translation(script: Script) -> list[str]:
    """Returns the `#RMGR` lines to write instead of its lines of Slurm, or else of PBS, then those without an equal, with reasons."""
    from rmgr.cli.words import qsub, sbatch  # loaded only for such a script

    theirs = [line for _, line in script.foreign if line.startswith(SBATCH)]
    lines, without = sbatch.translated(theirs) if theirs else qsub.translated([line for _, line in script.foreign])
    told = [f"{_MARK} {shlex.join(words)}" for words in lines if words]
    told += [f"{_MARK} --slurm-env"] if unset_slurm(script, ()) else []
    return [*told, *(f"# without an equal here: {what}  ({why})" for what, why in without)]


def unset_slurm(script: Script | None, words: Sequence[str], known: Collection[str] = ()) -> str:
    """Returns a warning for work that reads variables of Slurm, or calls srun, without `--slurm-env`; "" for other work.

    Args:
        words: its command, or the arguments of its script. known: variables that its user has set.
    """
    for where, line in _executed(script, words):
        read = next((name for name in _SLURMS.findall(line) if name not in known), "")
        what = f"reads {read}, which nothing sets" if read else "calls srun, which is not there" if _SRUN.search(line) else ""
        if what:
            return f"{where} {what}: --slurm-env sets Slurm's variables and provides srun"
    return ""


def unset_other(script: Script | None, words: Sequence[str], known: Collection[str] = ()) -> str:
    """Returns a warning for work that reads a variable of PBS, Grid Engine, LSF or HyperQueue; "" for other work.

    Args: as of `unset_slurm`.
    """
    for where, line in _executed(script, words):
        read = next((name for name in _OTHERS.findall(line) if name not in known), "")
        if read:
            instead = f"here it is {_EQUALS[read]}" if read in _EQUALS else f"--env {read}=VALUE sets it"
            return f"{where} reads {read}, which nothing sets: {instead}"
    return ""


def _executed(script: Script | None, words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yields (subject of a sentence about it, text) for each line of the script without comments, and for each word."""
    if script is not None:
        for number, line in enumerate(script.text.decode("utf-8", "replace").split("\n"), 1):
            if not line.lstrip().startswith("#"):
                yield f"{script.where(number)}: it", line
    for word in words:
        yield "it", word


def refused(script: Script) -> UsageError:
    """Returns the error for a script whose lines of Slurm or PBS would be ignored."""
    mark, where = next((mark, script.where(number)) for mark in _TRANSLATED for number, line in script.foreign if line.startswith(mark))
    option = "--ignore-sbatch" if mark == SBATCH else "--ignore-pbs"
    return UsageError(
        f"{where}: {mark} lines are not obeyed here", hint=f"add the {_MARK} lines above to it, or {option}: run it without them"
    )


def _directives(name: str, lines: Sequence[str]) -> Iterator[tuple[int, tuple[str, ...]]]:
    for number, line in _leading(lines):
        if not line.startswith(_MARK) or line[len(_MARK) :][:1] not in {"", " ", "\t"}:
            continue
        try:
            words = shlex.split(line[len(_MARK) :], comments=True)
        except ValueError as error:
            raise UsageError(f"{name}:{number}: {_MARK} line cannot be read: {error}", hint="quote as in a shell") from None
        if words and not words[0].startswith("-"):
            hint = f"options as on the command line: {_MARK} --{words[0].lstrip('-')} ..."
            raise UsageError(f"{name}:{number}: {_MARK} line has {words[0]!r} where an option should be", hint=hint)
        if words:
            yield number, tuple(words)


def _leading(lines: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Yields the leading block: comments and empty lines."""
    for number, line in enumerate(lines, 1):
        if line.strip() and not line.lstrip().startswith("#"):
            return
        yield number, line.strip()


def _notes(name: str, lines: Sequence[str]) -> Iterator[str]:
    block = dict(_leading(lines))
    for number, line in enumerate(lines, 1):
        if number not in block and line.startswith(f"{_MARK} "):
            yield f"{name}:{number}: {_MARK} after the first command is ignored, as any comment; move it up"
            break
    for number, line in block.items():
        if _NEARLY.match(line) and not line.startswith((f"{_MARK} ", f"{_MARK}\t")):
            yield f"{name}:{number}: only lines that begin with {_MARK} and a blank are obeyed"
            break
    for number, line in block.items():
        if line.startswith(f"{_MARK} ") and (found := _VARIABLE.search(line)):
            yield f"{name}:{number}: no shell reads {_MARK} lines: {found[0]} stays as it is"
            break
    foreign = [(number, line) for number, line in block.items() if line.startswith(_FOREIGN) and not line.startswith(_TRANSLATED)]
    if foreign and not any(line.startswith(_MARK) for line in block.values()):
        number, line = foreign[0]
        yield f"{name}:{number}: {line.split()[0]} lines are not read here; write them as {_MARK} lines"


def _head(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(4096).removeprefix(BOM_UTF8)
    except OSError as error:
        raise UsageError(f"the script {path} cannot be read: {error.strerror}", hint="chmod u+r, or name another") from error


def _names(directory: Path) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []
