"""`rmgr submit`: submits a command, a script or standard input, and prints the id once it is durable.

The first part is shared with `rmgr run`: the names of options, and how `#RMGR` lines and the command line become one request.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Any

import click
from click.core import ParameterSource

from rmgr.cli.display.render import clock, emit, here, iso
from rmgr.cli.session import Session, WorkEnded, command
from rmgr.cli.session.errors import hint_of, told_anyway
from rmgr.cli.words.params import (
    AFTER,
    BEGIN,
    BEGINS,
    DURATION_US,
    MEMORY,
    RESOURCE,
    TIME_LIMIT_US,
    WORK_EXITS,
    Parsed,
    listed,
    one_of,
    parse_nodes,
    parse_pair,
)
from rmgr.cli.words.script import (
    PBS,
    SBATCH,
    Script,
    check_interpreter,
    ignoring,
    looks_like_script,
    read_script,
    refused,
    translation,
    unset_other,
    unset_slurm,
)
from rmgr.client.commands.request import CommandOptions, CommandRequest
from rmgr.client.commands.sending import CheckedRequest, Sent, as_tried, prepare, send
from rmgr.errors import RmgrError, UsageError
from rmgr.model.block import MOST_ATTEMPTS, PRIORITY_RANGE
from rmgr.model.submission import FROM_CHECKPOINT, FROM_START, OnDisconnect, Phase, Rigid, has_own_name, parse_array, unknown_placeholder
from rmgr.model.units import counted, format_duration, format_size
from rmgr.model.views import WhatIfView

#: Options end at the first word: `rmgr submit -J x echo -n hello` submits `echo -n hello`.
WORDS_AFTER_OPTIONS = {"allow_interspersed_args": False}
#: Of a command whose --timeout is over before it has sent anything.
UNDONE = "nothing was submitted"
_EXITS = f"""\
0 submitted; 2 usage or infeasible, 3 no such queue or dependency, 7 queue full,
8 not known whether it was committed (send it again with --token)
with --wait: {WORK_EXITS}"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Afterwards:
    """Flags for the submitting command itself."""

    dry_run: bool = False
    wait: bool = False
    watch: bool = False
    progress: bool = False
    parsable: bool = False

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Afterwards:
        """Returns the flags among parsed options."""
        return cls(**{name: values[name] for name in cls.__dataclass_fields__ if name in values})

    @property
    def waits(self) -> bool:
        """Whether the command ends with the work."""
        return self.wait or self.watch or self.progress


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkRequest(CommandRequest):
    """A request with the flags for the command itself."""

    afterwards: Afterwards = Afterwards()


# -- values --------------------------------------------------------------------------------------------------------------------


def parse_env(text: str) -> tuple[str, str]:
    """Parses `K=V`, or `K` alone, with its value here. Raises UsageError."""
    name, equals, value = text.partition("=")
    if not name or "\0" in text or any(char.isspace() for char in name):
        raise UsageError(f"{text!r} is not an environment variable", hint="write it as NAME=VALUE, or NAME to pass on its value here")
    if equals:
        return name, value
    if name not in os.environ:
        each = " ".join(f"--env {one}" for one in name.split(",") if one)
        hint = f"one option for each: {each[:200]}" if "," in name else f"give it a value: --env {name}=VALUE"
        raise UsageError(f"the variable {name} is not set here", hint=hint)
    return name, os.environ[name]


def _checked_array(text: str) -> str:
    parse_array(text)
    return text

NODES = Parsed("nodes", parse_nodes)
ARRAY = Parsed("array", _checked_array)
ENV = Parsed("variable", parse_env)
KEY_FILE = Parsed("KEY=FILE", parse_pair("KEY=FILE"))
OF_FILE = Parsed("KEY=FILE", parse_pair("KEY=FILE", else_="; what the work prints goes to -o FILE, and is read by rmgr logs"))

#: A word that is one of these is read by a shell, or may be.
_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "csh", "tcsh", "fish", "perl", "ssh", "make", "xargs", "parallel"})
#: A variable of rmgr that a shell would read.
_OURS = re.compile(r"\$\{?RMGR_[A-Z_]+\}?")

_EXCLUSIVE = "when its node loses contact: run on, or be dead before it can run elsewhere  [keep]"

#: Sections of options in the help of `submit` and `run`, by names of parameters.
SECTIONS = {
    "What it needs": (
        *("queue", "partition", "cores", "memory_bytes", "time_us", "processes", "nodes", "gpus", "resources", "features"),
        *("exclusive", "nodelist", "exclude", "python"),
    ),
    "When it starts, and how often": (
        *("array", "max_fails", "each_line", "after", "begin_us", "hold", "priority", "retries", "backoff_us", "resubmit", "requeue"),
        *("on_disconnect", "kill_on_bad_exit"),
    ),
    "Files and output": ("out", "err", "stdin", "cwd", "env", "slurm_env", "inputs", "outputs", "uploads"),
    "Checkpoints": ("checkpoint", "checkpoint_every_us", "checkpoint_grace_us", "restart_from", "max_moves"),
    "Submitting": (
        "jobs_file", "name", "account", "token", "dry_run", "wait", "watch", "progress", "parsable", "ignore_sbatch", "ignore_pbs",
    ),
}


def work_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options of `submit` and `run`; the function gets them all as keywords."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def afterwards_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options of `submit` and `rerun` about what follows."""
    for option in reversed(_AFTERWARDS):
        function = option(function)
    return function


def work_options_but(names: Collection[str]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Adds the same options without these parameters."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        before = list(getattr(function, "__click_params__", ()))
        made = work_options(function)
        made.__click_params__ = [  # type: ignore[attr-defined]
            parameter
            for parameter in made.__click_params__  # type: ignore[attr-defined]
            if parameter in before or parameter.name not in names
        ]
        return made

    return decorate

_REQUEUE = "the same as --[no-]resubmit"
_PLACED_OPTIONS = (
    click.option("-n", "--processes", type=click.IntRange(1), metavar="P", help="processes of one job, -c cores each  [1, or one a node]"),
    click.option("-N", "--nodes", type=click.IntRange(1), metavar="N", help="use exactly N nodes, spread evenly  [wherever they fit]"),
    click.option("--partition", metavar="NAME", default="", help="partition to run in  [that of the queue]"),
    click.option("--exclusive", is_flag=True, help="do not share its nodes: take all their cores and resources"),
    click.option("-w", "--nodelist", type=NODES, metavar="NODES", default=(), help="use only these nodes, as n1,n2 or n[1-3]"),
    click.option("-x", "--exclude", type=NODES, metavar="NODES", default=(), help="avoid these nodes"),
    click.option("--begin", "begin_us", type=BEGIN, metavar="TIME", default=0, help=f"not before: {BEGINS}"),
    click.option("--gpus", type=click.IntRange(1), metavar="N", help="GPUs for each process; same as --resource gpu=N"),
    click.option("--requeue/--no-requeue", default=None, help=_REQUEUE),
    click.option("--kill-on-bad-exit", is_flag=True, help="end all processes of a job when one fails"),
    click.option("--checkpoint-every", "checkpoint_every_us", type=DURATION_US, metavar="TIME", default=0, help="interval of saving state"),
    click.option(
        "--checkpoint-grace", "checkpoint_grace_us", type=DURATION_US, metavar="TIME", default=None, help="time to save its state  [30s]"
    ),
    click.option("--checkpoint", is_flag=True, help="it saves its state on request, so policies may move it"),
    click.option("--max-moves", type=click.IntRange(1, MOST_ATTEMPTS), metavar="N", help="let a policy move it at most N times  [no cap]"),
    click.option("--restart-from", type=click.Choice((FROM_CHECKPOINT, FROM_START)), default=FROM_CHECKPOINT, help="start of a moved job"),
)  # fmt: skip

_OPTIONS = (
    click.option("-J", "--name", metavar="NAME", help="name of the job  [the command's]"),
    click.option("-q", "--queue", metavar="NAME", help="queue, or a queue class (rmgr queues)  [the cluster's default]"),
    click.option("-c", "--cores", type=click.IntRange(1, 99_999), metavar="C", default=1, help="cores of each task, or process  [1]"),
    click.option("--mem", "memory_bytes", type=MEMORY, metavar="SIZE", help="memory of each task, as 512M or 2G"),
    click.option("-t", "--time", "time_us", type=TIME_LIMIT_US, metavar="TIME", help="limit of each task, as 90, 15m, 1h30m, HH:MM:SS"),
    click.option(
        "--priority", type=click.IntRange(-PRIORITY_RANGE, PRIORITY_RANGE), metavar="N",
        help="higher goes first; in a fair queue among your own work  [the queue's]",
    ),
    click.option("-d", "--after", type=AFTER, metavar="ok:ID,any:ID,fail:ID", default=(), help="wait until these have ended this way"),
    click.option("-a", "--array", type=ARRAY, metavar="1-100:2%8", help="one task per number (RMGR_ARRAY_INDEX); %8: at most 8 at once"),
    click.option("--max-fails", type=click.IntRange(0), metavar="N", help="cancel the rest once more than N failed  [never]"),
    click.option("--each-line", metavar="FILE", default="", help="one task per line of FILE (- is stdin), in RMGR_ENTRY"),
    click.option("--retries", type=click.IntRange(0, 99_998), metavar="N", default=0, help="retry a failed task up to N times  [0]"),
    click.option("--backoff", "backoff_us", type=DURATION_US, metavar="TIME", default=0, help="pause before a retry, doubles  [0]"),
    click.option("--resubmit/--no-resubmit", default=True, help="run a task again if its node is lost, or run it at most once  [resubmit]"),
    click.option("-o", "--out", metavar="FILE", default="", help="write stdout to FILE on the node; --wait fetches it; %j %a %t %x %N"),
    click.option("-e", "--err", metavar="FILE", default="", help="the same for stderr"),
    click.option("--env", type=ENV, metavar="K=V", multiple=True, help="environment variable; K alone passes on its value"),
    click.option("--slurm-env", is_flag=True, help="set the variables of Slurm (SLURM_JOB_ID, ...), and provide srun"),
    click.option("--cwd", metavar="DIR", default="", help="working directory on the node  [a private one]"),
    click.option("--input", "inputs", type=KEY_FILE, metavar="KEY=FILE", multiple=True, help="stored value as FILE in the directory"),
    click.option("--output", "outputs", type=OF_FILE, metavar="KEY=FILE", multiple=True, help="FILE of the directory into the data store"),
    click.option("--stdin", metavar="FILE", default="", help="file for the work's stdin; - is the stdin of this command  [nothing]"),
    click.option("--upload", "uploads", metavar="PATH", multiple=True, type=click.Path(), help="ship a file or directory there"),
    click.option("--hold", is_flag=True, help="do not start before rmgr release"),
    click.option("--on-disconnect", type=one_of("choice", list(OnDisconnect)), metavar="keep|exclusive", default="keep", help=_EXCLUSIVE),
    click.option("--python", metavar="PATH", default="", help="interpreter on the nodes, put first in PATH"),
    click.option("--features", metavar="A,B", default="", help="use only nodes with all of these features"),
    click.option("--resource", "resources", type=RESOURCE, metavar="NAME=N", multiple=True, help="countable resources of a node"),
    click.option("--account", metavar="NAME", default="", help="recorded with the work"),
    click.option("--token", metavar="T", default="", help="repeating a token returns the same job id"),
    click.option("--dry-run", is_flag=True, help="print what would be submitted, where and when; submit nothing"),
    *_PLACED_OPTIONS,
)  # fmt: skip

_AFTERWARDS = (
    click.option("--wait", is_flag=True, help="wait until it has ended; print its output, exit with its code"),
    click.option("--watch", is_flag=True, help="as --wait, with a line for each task that ends"),
    click.option("--progress", is_flag=True, help="as --wait, with a progress bar instead of output"),
    click.option("--parsable", is_flag=True, help="print only the id"),
)


# -- the part of options of placed jobs in the record of a submission ----------------------------------------------------------


def shape_of(values: Mapping[str, Any]) -> Rigid | None:
    """Returns the shape of a job by its options; None for one process anywhere. Raises UsageError for -N above -n.

    -N without -n: one process per node. Options that ask for nothing special (-n 1, -N 1) change nothing.
    """
    nodes = values["nodes"] or 0
    processes = values["processes"] or nodes or 1
    rigid = Rigid(
        processes=processes,
        nodes=nodes if processes > 1 or nodes > 1 else 0,
        exclusive=values["exclusive"],
        nodelist=values["nodelist"],
        exclude=values["exclude"],
        begin_us=values["begin_us"],
        checkpoint_every_us=values["checkpoint_every_us"],
        checkpoint_grace_us=Rigid().checkpoint_grace_us if values["checkpoint_grace_us"] is None else values["checkpoint_grace_us"],
        restart=values["restart_from"],
        checkpoint=values["checkpoint"],
        max_moves=values["max_moves"] or 0,
    )
    if rigid == Rigid():
        return None
    from rmgr.procedures.admission import check_shape

    check_shape(rigid)
    return replace(rigid, kill_on_bad_exit=values["kill_on_bad_exit"])


def resources_of(values: Mapping[str, Any]) -> tuple[tuple[str, int], ...]:
    """Returns `--resource`, with `--gpus`. Raises UsageError if they contradict each other."""
    resources: tuple[tuple[str, int], ...] = tuple(values["resources"])
    gpus = values["gpus"]
    if gpus is None:
        return resources
    other = dict(resources).get("gpu", gpus)
    if other != gpus:
        raise UsageError(f"--gpus {gpus} and --resource gpu={other} contradict each other", hint="drop one of them")
    return (*(pair for pair in resources if pair[0] != "gpu"), ("gpu", gpus))


def resubmit_of(values: Mapping[str, Any]) -> bool:
    """Returns `--[no-]resubmit`, under either of its names. Raises UsageError if both are given, and differ."""
    resubmit: bool = values["resubmit"]
    requeue: bool | None = values["requeue"]
    if requeue and not resubmit:
        raise UsageError("--no-resubmit and --requeue contradict each other", hint="they are two names of one thing: drop one")
    return resubmit if requeue is None else requeue


# -- command line + script -> request ------------------------------------------------------------------------------------------


def read_work(
    ctx: click.Context,
    session: Session,
    values: dict[str, Any],
    words: Sequence[str],
    *,
    dashes: bool,
    script: bool = True,
    ignored: Collection[str] = (),
) -> WorkRequest:
    """Returns what the command line, and the directives of the script that it names, ask for. The command line overrides.

    Args:
        values: the options of the command line. words: the words after them.
        dashes: `--` stood before the words: they are a command, never a script. script: the command takes scripts.
        ignored: `#SBATCH`, `#PBS`: run a script with such lines without them.
    Raises: UsageError naming the option, or file and line of a directive.
    """
    if not words or not words[0]:  # a shell makes "" of "$UNSET"
        more = ", a script, or - for a script on stdin" if script else ""
        quoted = next((word for word in ctx.meta.get("rmgr.args", ()) if word.startswith("-") and " " in word), "")
        is_one = f"; {quoted[:60]!r} is one word, by its quotes" if quoted else ""
        raise UsageError(f"there is nothing to run{is_one}", hint=f"{ctx.command_path} -- CMD ARGS...{more}")
    found: Script | None = None
    if script and not dashes and (words[0] == "-" or looks_like_script(words[0])):
        found = read_script(words[0], sys.stdin.buffer if words[0] == "-" else None)
        obeyed = ignoring(found, ignored)
        if obeyed.foreign:
            for line in translation(obeyed):
                session.note(line)
            raise refused(obeyed)
        for note in found.notes:
            session.note(note)
        given = {name for name in values if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE}
        values = with_directives(ctx, found, values, given)
        words = words[1:]
    options = checked_options(values)
    if found is None:
        _check_one_word(words)
    if found is not None and not options.python:
        check_interpreter(found)
    for message in doubts(options, found, words):
        session.note(message)
    if not options.name:
        name = os.path.basename(found.name if found is not None else words[0]) or "work"
        options = replace(options, name=name[:200])
    return WorkRequest(options=options, words=tuple(words), script=found, afterwards=Afterwards.of(values))


def _check_one_word(words: Sequence[str]) -> None:
    """Raises UsageError for a whole command line that was quoted as one word: no program is called so."""
    line = words[0]
    first = line.split(None, 1)[0] if line.strip() else ""
    if len(words) == 1 and first != line and not _is_here(line) and _is_here(first):
        hint = f"type the words apart ({line[:80]}), or let a shell read them: sh -c {shlex.quote(line)[:120]}"
        raise UsageError(f"{line[:80]!r} is one word, and no program is called so", hint=hint)


def _is_here(name: str) -> bool:
    return os.path.exists(name) or shutil.which(name) is not None


def doubts(options: CommandOptions, script: Script | None, words: Sequence[str]) -> list[str]:
    """Returns what its user may have meant otherwise: what work reads and nothing sets, and what stays as it is."""
    known = [name for name, _ in options.env]
    messages = [unset_other(script, words, known)]
    if not options.slurm_env:
        messages.append(unset_slurm(script, words, known))
    if script is None and not options.cwd and not options.uploads:
        messages.append(_left_behind(words, [os.path.normpath(file) for _, file in options.inputs]))
    if script is None and not any(os.path.basename(word) in _SHELLS for word in words):
        read = next((found[0] for word in words if (found := _OURS.search(word))), "")
        messages.append(f"no shell reads this command: {read} stays as it is; sh -c 'CMD {read}'" if read else "")
        if options.each_line and any("{}" in word for word in words):
            messages.append("{} stays as it is: each line is in RMGR_ENTRY; sh -c 'CMD \"$RMGR_ENTRY\"'")
    for option, name in (("-o", options.out), ("-e", options.err)):
        strange = unknown_placeholder(name)
        ours = "%j is the job, %a the index, %t the attempt, %x the name, %N the node"
        messages.append(f"{option}: {strange} stays as it is: {ours}" if strange else "")
        if name and name != os.devnull and (options.array or options.each_line) and not has_own_name(name):
            messages.append(f"{option}: all tasks write into {name}, and rmgr logs has none of it; %a in its name gives each its own file")
    return list(filter(None, messages))


def _left_behind(words: Sequence[str], there: Collection[str]) -> str:
    """Returns a warning for a command that names a file of this directory, in which it does not run; "" for another.

    there: files that are where it runs."""
    if "/" not in words[0] and os.path.isfile(words[0]) and shutil.which(words[0]) is None:
        return f"{words[0]} is sought in the PATH of its node; the file here is ./{words[0]}"
    named = (word for word in words[1:] if not os.path.isabs(word) and os.path.normpath(word) not in there)
    file = next(filter(os.path.isfile, named), "")
    if not file:
        return ""
    return f"the work runs in a directory of its own, without {file}: --upload {shlex.quote(file)}, or --cwd={shlex.quote(os.getcwd())}"


def with_directives(ctx: click.Context, script: Script, values: dict[str, Any], given: AbstractSet[str]) -> dict[str, Any]:
    """Adds a script's directives to `values`; `given` options override them. Raises UsageError naming file and line."""
    merged = dict(values)
    repeatable = {parameter.name for parameter in ctx.command.params if getattr(parameter, "multiple", False)}
    told: dict[str, Any] = {}
    for line, words in script.directives:
        for name, value in _parse_directive(ctx, script, line, words).items():
            told[name] = (*told.get(name, ()), *value) if name in repeatable else value
    for name, value in told.items():
        if name in repeatable:
            merged[name] = (*value, *values[name])  # a later value for the same name overrides
        elif name not in given:
            merged[name] = value
    return merged


def _parse_directive(ctx: click.Context, script: Script, line: int, words: tuple[str, ...]) -> dict[str, Any]:
    """Parses the options on one line. Raises UsageError naming file and line."""
    aside = Session()
    try:
        with ctx.command.make_context("#RMGR", list(words), obj=aside) as parsed:
            said = {
                name: value for name, value in parsed.params.items() if parsed.get_parameter_source(name) is ParameterSource.COMMANDLINE
            }
    except click.exceptions.Exit:
        raise UsageError(f"{script.where(line)}: this option cannot stand in a script", hint="type it on the command line") from None
    except click.UsageError as error:
        hint = hint_of(error, otherwise=f"{ctx.command_path} --help")
        raise UsageError(f"{script.where(line)}: {error.format_message()}", hint=hint) from None
    except RmgrError as error:
        raise UsageError(f"{script.where(line)}: {error.message}", hint=error.hint) from None
    extra = said.pop("words", ())
    if extra:
        raise UsageError(f"{script.where(line)}: {extra[0]!r} is not an option", hint="the command is the script itself")
    if aside.json or aside.zk or aside.store or aside.gateway or aside.config_file or aside.timeout_s is not None or aside.verbose:
        raise UsageError(f"{script.where(line)}: global options cannot stand in a script", hint="type them on the command line")
    return said


def checked_options(values: dict[str, Any]) -> CommandOptions:
    """Returns what parsed options ask for together, by names of parameters. Raises UsageError for contradictions."""
    known = CommandOptions.__dataclass_fields__
    taken = {name: value for name, value in values.items() if name in known}
    taken["features"] = listed(values["features"])
    taken["on_disconnect"] = OnDisconnect(values["on_disconnect"])
    for name in ("name", "queue", "array"):
        taken[name] = values[name] or ""
    taken |= {"rigid": shape_of(values), "resources": resources_of(values), "resubmit": resubmit_of(values)}
    options = CommandOptions(**taken)
    options.check()
    return options


# -- `rmgr submit` -------------------------------------------------------------------------------------------------------------


def has_dashes(ctx: click.Context, words: tuple[str, ...]) -> bool:
    """Returns whether `--` stood before the words (click removes it)."""
    given = list(ctx.meta.get("rmgr.args", ()))
    return len(given) > len(words) and given[len(given) - len(words) - 1] == "--"


@command(
    "submit",
    examples="""\
    rmgr submit -- ./simulate --steps 1000        prints: Submitted job 42
    rmgr submit job.sh input.dat                  a script; its #RMGR lines are options
    rmgr submit --wait -- echo hello              prints hello
    rmgr submit --array 1-100%8 --progress -- sh -c 'work.py $RMGR_ARRAY_INDEX'
    rmgr submit --each-line files.txt -- sh -c 'gzip "$RMGR_ENTRY"'
    rmgr submit -c 4 --mem 2G -t 1h --after ok:41 -- ./post.sh
    rmgr submit -n 16 -N 4 -t 1h -- mpirun ./solve     a placed job: 16 processes on 4 nodes
    rmgr submit --from jobs.toml --wait                [[job]] name = "a", command = ["./a"]
    id=$(rmgr submit --parsable -- make test)
    printf '#!/bin/sh\\nhostname\\n' | rmgr submit -""",
    exits=_EXITS,
    settings=WORDS_AFTER_OPTIONS,
    sections=SECTIONS,
)
@work_options
@click.option("--from", "jobs_file", metavar="FILE", help="many jobs, all or nothing: TOML or JSON lines, keys are options; - is stdin")
@afterwards_options
@click.option("--ignore-sbatch", is_flag=True, help="ignore the script's #SBATCH lines")
@click.option("--ignore-pbs", is_flag=True, help="ignore the script's #PBS lines")
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="SCRIPT|CMD...")
def submit(session: Session, words: tuple[str, ...], ignore_sbatch: bool, ignore_pbs: bool, jobs_file: str | None, **values: Any) -> None:
    """Submits a command, a script, with - a script from standard input, or with --from a list of jobs."""
    ctx = click.get_current_context()
    session.undone = UNDONE
    if jobs_file is not None:
        from rmgr.cli.submit.jobs_file import submit_list  # submitting a single job does not load it

        submit_list(ctx, session, words, jobs_file, values["token"])
        return
    ignored = [mark for mark, is_ignored in ((SBATCH, ignore_sbatch), (PBS, ignore_pbs)) if is_ignored]
    work = read_work(ctx, session, values, words, dashes=has_dashes(ctx, words), ignored=ignored)
    draft = prepare(session, work)
    if work.options.priority is not None:
        from rmgr.daemons.leader.placement.pipeline import idle_priority  # imports the policies, which other submissions do not load

        if told := idle_priority(draft.settings, draft.record.queue):
            session.note(told)
    carry_out(session, draft, work)


def carry_out(session: Session, draft: CheckedRequest, work: WorkRequest, *, again: int = 0) -> None:
    """Submits checked work, or only describes it, and does what follows. again: the submission that is repeated, 0 = none."""
    if work.afterwards.dry_run:
        tell_dry(session, draft)
        return
    follow_up(session, send(session, draft), work.afterwards, again=again)


def follow_up(session: Session, sent: Sent, afterwards: Afterwards, *, again: int = 0) -> None:
    """Prints the id of what was submitted, and waits for its end if that was asked for. Raises: WorkEnded then."""
    number, waits = sent.submission.id, afterwards.waits
    with told_anyway(f"submitted job {number}"):
        if session.json:
            if not waits:
                told = {"id": str(number), "tasks": sent.tasks} | ({"of": str(again)} if again else {})
                emit(told | ({} if sent.created else {"created": False}))
        elif afterwards.parsable:
            sys.stdout.write(f"{number}\n")
        else:
            out = sys.stderr if waits else sys.stdout  # with --wait, stdout is the work's
            out.write(f"Submitted job {number}" + (f": {counted(sent.tasks, 'task')} of {again}\n" if again else "\n"))
    sys.stderr.flush()
    if not sent.created:
        session.note(f"the token was used before: this is submission {number} again, nothing new was submitted")
    if waits:
        from rmgr.cli.submit.run import wait_for  # imports streams, follower, gRPC: not loaded unless waiting

        raise WorkEnded(wait_for(session, sent, afterwards))


# -- the dry run ---------------------------------------------------------------------------------------------------------------


def tell_dry(session: Session, draft: CheckedRequest) -> None:
    """Describes what would be submitted; for a placed job, where and when it would run."""
    record = draft.record
    trial = session.query().what_if(as_tried(draft)) if record.rigid is not None and record.phase is Phase.OPEN else None
    if session.json:
        emit({"dry_run": True} | told_dry(draft) | ({"would": _would(trial)} if trial is not None else {}))
    else:
        write_dry(draft, trial)


def told_dry(draft: CheckedRequest) -> dict[str, Any]:
    """Returns what would be submitted, as JSON."""
    from rmgr.coord.views.answers import command_text

    record = draft.record
    limit = record.request.time_limit_us
    queue = draft.settings.queue(record.queue)
    return {
        "tasks": draft.tasks,
        "name": record.name,
        "queue": record.queue,
        "cores": record.request.cores,
        "mem_bytes": record.request.memory_bytes,
        "time_limit": limit / 1e6 if limit else None,
        "priority": record.priority,
        "state": str(record.phase),
        "command": command_text(record),
        "partition": queue.partition if queue is not None else "",
        "policy": draft.settings.policy_of(queue) if queue is not None else "",
    } | ({"placed": _shape(record.rigid)} if record.rigid is not None else {})


def write_dry(draft: CheckedRequest, trial: WhatIfView | None = None) -> None:
    """Describes what would be submitted, in words; `trial`: where and when."""
    from rmgr.coord.views.answers import command_text

    record = draft.record
    limit = record.request.time_limit_us
    queue = draft.settings.queue(record.queue)
    memory = f", {format_size(record.request.memory_bytes)}" if record.request.memory_bytes else ""
    time = f", at most {format_duration(limit / 1e6)}" if limit else ""
    out = sys.stdout
    out.write(f"would submit {record.name}: {draft.tasks} task{'s' if draft.tasks != 1 else ''} to queue {record.queue}\n")
    rigid = record.rigid
    several = f"{counted(rigid.processes, 'process')} of " if rigid is not None and rigid.processes > 1 else ""
    out.write(
        f"  each: {several}{counted(record.request.cores, 'core')}{memory}{time}, retries {record.retries}, "
        f"resubmit {'yes' if record.resubmit else 'no'}\n"
    )
    if rigid is not None:
        assert queue is not None
        words = [f"on {rigid.nodes} node{'s' if rigid.nodes != 1 else ''}" if rigid.nodes else "wherever they fit"]
        words += ["alone on its nodes"] if rigid.exclusive else []
        words += [f"of {','.join(rigid.nodelist)}"] if rigid.nodelist else []
        words += [f"without {','.join(rigid.exclude)}"] if rigid.exclude else []
        words += [f"not before {clock(rigid.begin_us)}"] if rigid.begin_us else []
        out.write(f"  placed by {draft.settings.policy_of(queue)} in partition {queue.partition}: {', '.join(words)}\n")
    if trial is not None:
        out.write(f"  {_would_text(trial)}\n")
    out.write(f"  runs: {command_text(record)}\n")
    if record.after:
        out.write(f"  after {', '.join(f'{item.condition}:{item.submission}' for item in record.after)}\n")


def _shape(rigid: Rigid) -> dict[str, Any]:
    """Returns the shape of a placed job, as JSON."""
    return {
        "processes": rigid.processes,
        "nodes": rigid.nodes or None,
        "exclusive": rigid.exclusive,
        "nodelist": list(rigid.nodelist),
        "exclude": list(rigid.exclude),
        "begin": iso(rigid.begin_us),
        "kill_on_bad_exit": rigid.kill_on_bad_exit,
        "checkpoint_every": rigid.checkpoint_every_us / 1e6 or None,
        "checkpoint": rigid.saves(),
        "max_moves": rigid.max_moves or None,
    }


def _would(trial: WhatIfView) -> dict[str, Any]:
    """Returns where and when, as JSON."""
    return {
        "start": iso(trial.start_us),
        "at_once": trial.at_once,
        "nodes": [{"id": share.node, "processes": share.processes} for share in trial.nodes],
        "why": trial.reason,
        "class": trial.route,
    }


def _would_text(trial: WhatIfView) -> str:
    """Describes where and when, in a sentence."""
    chosen = f"; queue class {trial.route}" if trial.route else ""
    nodes = ", ".join(f"{share.node} ({share.processes})" for share in trial.nodes)
    if trial.at_once:
        return f"would start at once on {nodes}{chosen}"
    waits = f"would wait: {here(trial.reason)}" if trial.reason else "would wait"
    if not nodes:
        return f"{waits}; when it could start, nobody can say: that depends on nodes that are away, or on work without a time limit{chosen}"
    return f"{waits}; would start by {clock(trial.start_us)} on {nodes}, when nothing else comes{chosen}"
