"""A list of jobs as TOML or JSON lines becomes requests: what `rmgr submit --from` reads.

[defaults]                     {"defaults": {"queue": "default"}}
queue = "default"              {"name": "prep", "command": ["./prep", "x"], "mem": "2G"}
[[job]]                        {"command": "./train | tee log", "after": ["prep"]}
name = "prep"
command = ["./prep", "x"]
"""

from __future__ import annotations

import json
import os
import re
import sys
import tomllib
from codecs import BOM_UTF8
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import click
from click.core import ParameterSource

from rmgr.cli.display.render import emit
from rmgr.cli.session import Session, WorkEnded
from rmgr.cli.session.commands import GlobalOption
from rmgr.cli.session.errors import told_anyway
from rmgr.cli.submit.submit import checked_options, doubts, told_dry, with_directives, write_dry
from rmgr.cli.words.script import Script, read_script, refused
from rmgr.client.commands.request import CommandRequest
from rmgr.client.commands.sending import CheckedRequest, ListedJob, Sent, in_order, prepare_all, send_all
from rmgr.errors import UNREADABLE_TEXT, RmgrError, UsageError, nearest
from rmgr.model.submission import Condition, Dependency
from rmgr.model.units import counted

#: Most entries of one list.
MAX_JOBS = 10_000
#: Options given once, for the whole list, on the command line; and those that only a command line has.
_OF_THE_COMMAND = {"jobs_file", "token", "dry_run", "wait", "watch", "progress", "parsable", "ignore_sbatch", "ignore_pbs", "words"}
_RUNS = ("command", "script", "args")
_CONDITIONS = {"ok": Condition.OK, "any": Condition.ANY, "fail": Condition.FAIL}
_CONDITIONS |= {"afterok": Condition.OK, "afterany": Condition.ANY}
_JOB_LINE = re.compile(rb"^[ \t]*\[\[[ \t]*\"?job\"?[ \t]*\]\]", re.MULTILINE)
_ID = re.compile(r"[0-9]{1,10}", re.ASCII)
#: Options that may stand beside `--from` on the command line.
_BESIDE = {"jobs_file", "dry_run", "wait", "watch", "progress", "parsable", "token"}


def submit_list(ctx: click.Context, session: Session, words: Sequence[str], file: str, token: str) -> None:
    """Submits all jobs of `file`, or none; prints one id per line, in their order.

    Raises: UsageError and the errors of a single `submit`, naming the entry; StateConflict if the list was given up in the meantime.
    """
    _check_alone(ctx, words)
    options = ctx.params
    entries = read_jobs(ctx, session, file)
    drafts = prepare_all(session, entries)
    if options["dry_run"]:
        _tell_dry(session, entries, drafts)
        return
    waits = options["wait"] or options["watch"] or options["progress"]
    sent = send_all(session, entries, drafts, token=token, name="stdin" if file == "-" else os.path.basename(file))
    _print_ids(session, sent, waits=waits)
    if waits:
        from rmgr.cli.submit.run import wait_for_all

        raise WorkEnded(wait_for_all(session, sent, watch=options["watch"], progress=options["progress"]))


def _check_alone(ctx: click.Context, words: Sequence[str]) -> None:
    if words:
        raise UsageError(
            f"--from takes its commands from the list, and {words[0]!r} is one more", hint="command = [...] in an entry of the list"
        )
    for option in ctx.command.params:
        name = option.name or ""
        given = ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if given and name not in _BESIDE and not isinstance(option, GlobalOption):
            word = max(option.opts, key=len)
            raise UsageError(
                f"{word} cannot stand beside --from", hint=f"write it into the list: {word[2:]} = ... in [defaults], or in an entry"
            )


# -- printing ------------------------------------------------------------------------------------------------------------------


def _print_ids(session: Session, sent: Sequence[Sent], *, waits: bool) -> None:
    with told_anyway(f"submitted jobs {', '.join(str(item.submission.id) for item in sent)}"):
        if session.json:
            if not waits:
                emit({"jobs": [_shown(item) for item in sent]})
        else:
            out = sys.stderr if waits else sys.stdout
            out.write("".join(f"{item.submission.id}\n" for item in sent))
    sys.stderr.flush()
    if not any(item.created for item in sent):
        session.note("the token was used before: this is the same list again, nothing new was submitted")


def _shown(item: Sent) -> dict[str, object]:
    shown = {"id": str(item.submission.id), "name": item.submission.name, "tasks": item.tasks}
    return shown | ({} if item.created else {"created": False})


def _tell_dry(session: Session, entries: Sequence[ListedJob], drafts: Sequence[CheckedRequest]) -> None:
    names = [entry.name or f"job {place}" for place, entry in enumerate(entries, 1)]
    if session.json:
        jobs = []
        for entry, draft in zip(entries, drafts, strict=True):
            after = [f"{item.condition}:{item.submission}" for item in draft.record.after]
            after += [f"{condition}:{names[place]}" for condition, place in entry.needs]
            jobs.append(told_dry(draft) | {"after": after})
        emit({"dry_run": True, "jobs": jobs})
        return
    for entry, draft in zip(entries, drafts, strict=True):
        write_dry(draft)
        if entry.needs:
            sys.stdout.write(f"  after {', '.join(f'{condition}:{names[place]}' for condition, place in entry.needs)}\n")


# -- the list ------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Raw:
    where: str
    told: dict[str, Any]

    @property
    def name(self) -> str:
        name = self.told.get("name", "")
        return name if isinstance(name, str) else ""

    def refuse(self, told: str, hint: str) -> NoReturn:
        raise UsageError(f"{self.where}: {told}", hint=hint)


def read_jobs(ctx: click.Context, session: Session, file: str) -> list[ListedJob]:
    """Returns all jobs of a file (`-`: standard input), in order, each checked by itself, and against the names of the others.

    Raises: UsageError naming file, entry or line, name, key, cause, and what to write. Cost: 0.1 ms per entry.
    """
    shown = "stdin" if file == "-" else file
    raw = raw_jobs(file, shown)
    if not raw:
        raise UsageError(
            f"{shown} holds no job", hint='[[job]] and command = ["echo", "hello"] below it; or a line {"command": "..."} each'
        )
    if len(raw) > MAX_JOBS:
        raise UsageError(
            f"{shown} holds {counted(len(raw), 'job')}; a list holds at most {MAX_JOBS:,}", hint="--array and --each-line make tasks of one"
        )
    keys = _keys(ctx)
    places: dict[str, list[int]] = {}
    for place, item in enumerate(raw):
        if item.name:
            places.setdefault(item.name, []).append(place)
    entries = [_entry(ctx, session, item, keys, places) for item in raw]
    if told := next(filter(None, map(_doubt, entries)), ""):
        session.note(told)  # one note is enough
    _refuse_cycles(shown, entries)
    return entries


# -- files ---------------------------------------------------------------------------------------------------------------------


def raw_jobs(file: str, shown: str) -> list[_Raw]:
    """Returns the jobs as their tables say them, with the defaults. file: "-" is stdin. Raises: UsageError naming the line."""
    try:
        data = (sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()).removeprefix(BOM_UTF8)
    except OSError as error:
        raise UsageError(
            f"--from: {file} cannot be read: {error.strerror}", hint="name a file of TOML or JSON lines, or - for stdin"
        ) from error
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise UsageError(f"--from: {shown} is no text in UTF-8", hint="a file of TOML ([[job]]) or of JSON lines") from None
    is_json = file.endswith((".jsonl", ".ndjson", ".json")) or (not file.endswith(".toml") and text.lstrip().startswith("{"))
    return _from_lines(text, shown) if is_json else _from_toml(text, data, shown)


def _from_toml(text: str, data: bytes, shown: str) -> list[_Raw]:
    try:
        document = tomllib.loads(text)
    except UNREADABLE_TEXT as error:
        raise UsageError(
            f"{shown} is no TOML: {error}", hint='strings are quoted: command = "echo hello"; each job begins with [[job]]'
        ) from None
    for key in document:
        if key not in {"defaults", "job"}:
            raise UsageError(f"{shown}: {key!r} stands for nothing here", hint="a list has [defaults] and [[job]] alone")
    jobs, defaults = document.get("job", []), document.get("defaults", {})
    if not isinstance(jobs, list) or not all(isinstance(job, dict) for job in jobs):
        raise UsageError(f"{shown}: job is no list of tables", hint="each job begins with [[job]], in two pairs of brackets")
    lines = [data.count(b"\n", 0, match.start()) + 1 for match in _JOB_LINE.finditer(data)]
    exact = lines if len(lines) == len(jobs) else []  # text of several lines may contain a line like one of these
    found = []
    for number, job in enumerate(jobs, 1):
        line = f", line {exact[number - 1]}" if exact else ""
        found.append(_Raw(f"{shown}: job {number}{line}{_shown_name(job)}", job))
    return _with_defaults(shown, defaults, found)


def _from_lines(text: str, shown: str) -> list[_Raw]:
    found: list[_Raw] = []
    defaults: Any = {}
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        where = f"{shown}: line {number}"
        try:
            told = json.loads(line)
        except UNREADABLE_TEXT as error:
            hint = 'one object a line: {"name": "prep", "command": ["./prep"]}'
            if not found and line.lstrip()[:1] in {"[", "{"}:  # it may be JSON over several lines
                words = "'.[]'" if line.lstrip()[0] == "[" else "."
                hint += f"; jq -c {words} {shown} makes lines of it"
            raise UsageError(f"{where} is no JSON: {error}", hint=hint) from None
        if not isinstance(told, dict):
            raise UsageError(f"{where} is no object", hint='one object a line: {"name": "prep", "command": ["./prep"]}')
        if not found and set(told) == {"defaults"}:
            defaults = told["defaults"]
        else:
            found.append(_Raw(f"{where}{_shown_name(told)}", told))
    return _with_defaults(shown, defaults, found)


def _shown_name(told: Mapping[str, Any]) -> str:
    return f" ({told['name']})" if isinstance(told.get("name"), str) and told["name"] else ""


def _with_defaults(shown: str, defaults: Any, jobs: Sequence[_Raw]) -> list[_Raw]:
    if not isinstance(defaults, dict):
        raise UsageError(f"{shown}: defaults is no table", hint="[defaults], and below it options as key = value")
    common = _Raw(f"{shown}: [defaults]", _with_underscores(_Raw(f"{shown}: [defaults]", defaults)))
    if "name" in common.told:
        common.refuse("key name: all jobs would have the same", "name each job by itself")
    found = []
    for job in jobs:
        told = _with_underscores(job)
        runs = {key: value for key, value in common.told.items() if key not in _RUNS or not ({"command", "script"} & set(told))}
        found.append(_Raw(job.where, {**runs, **told}))
    return found


def _with_underscores(raw: _Raw) -> dict[str, Any]:
    """Returns the table with `_` for `-` in its keys."""
    found: dict[str, Any] = {}
    for key, value in raw.told.items():
        name = key.replace("-", "_")
        if name in found:
            raw.refuse(f"key {key}: it stands there twice, with - and with _", "drop one of them")
        found[name] = value
    return found


# -- entries -------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Key:
    """A key of an entry: the option with that long name; no: the form of a switch that turns it off."""

    option: click.Option
    no: bool


def _keys(ctx: click.Context) -> dict[str, _Key]:
    found = {}
    for option in ctx.command.params:
        if isinstance(option, GlobalOption) or not isinstance(option, click.Option) or option.name in _OF_THE_COMMAND:
            continue
        for no, words in ((False, option.opts), (True, option.secondary_opts)):
            found.update({word[2:].replace("-", "_"): _Key(option, no) for word in words if word.startswith("--")})
    return found


def _entry(ctx: click.Context, session: Session, raw: _Raw, keys: Mapping[str, _Key], places: Mapping[str, Sequence[int]]) -> ListedJob:
    values = dict(ctx.params)
    for name in ("words", "jobs_file", "ignore_sbatch", "ignore_pbs"):
        values.pop(name, None)
    given = set()
    after: tuple[Dependency, ...] = ()
    needs: tuple[tuple[Condition, int], ...] = ()
    for key, value in raw.told.items():
        if key == "after":
            after, needs = _dependencies_of(raw, value, places)
        elif key not in _RUNS:
            known = keys.get(key) or _unknown(raw, key, keys)
            values[str(known.option.name)] = _value(ctx, raw, key, known, value)
            given.add(str(known.option.name))
    words, script_name = _words_and_script(raw)
    try:
        script = None
        if script_name:
            script = read_script(script_name)
            if script.foreign:
                raise refused(script)
            for note in script.notes:
                session.note(note)
            values = with_directives(ctx, script, values, given)
        options = checked_options(values)
    except RmgrError as error:
        raise UsageError(f"{raw.where}: {error.message}", hint=error.hint) from None
    for key, told in (("stdin", options.stdin), ("each_line", options.each_line)):
        if told == "-":
            raw.refuse(f"key {key}: a list has no standard input to give away", "name a file")
    shown = raw.name or (script_name or _first_word(raw)).rpartition("/")[2] or "work"
    options = replace(options, name=shown[:200], after=(*options.after, *after))
    return ListedJob(where=raw.where, name=raw.name, request=CommandRequest(options=options, words=words, script=script), needs=needs)


def _doubt(job: ListedJob) -> str:
    """Returns the first of `submit.doubts`, with its place."""
    script = job.request.script
    assert script is None or isinstance(script, Script)
    found = doubts(job.request.options, script, job.request.words)
    return f"{job.where}: {found[0]}" if found else ""


def _unknown(raw: _Raw, key: str, keys: Mapping[str, _Key]) -> NoReturn:
    if key in _OF_THE_COMMAND | {"from"}:
        raw.refuse(f"key {key}: that is said of the whole list", f"rmgr submit --from FILE --{key.replace('_', '-')}")
    from rmgr.cli.words.foreign import option_for  # with all that the options of other systems mean

    hint = nearest(key, [*keys, *_RUNS], "rmgr submit --help lists them: keys are the long names")
    elsewhere = option_for(f"--{key.replace('_', '-')}")
    ours = {word: name for name, known in keys.items() for word in (known.option.opts if not known.no else ())}
    named = next((ours[word] for word in elsewhere.split() if word in ours), "")
    raw.refuse(f"key {key}: there is no such option", f"here it is {named}" if named else elsewhere or hint)


def _words_and_script(raw: _Raw) -> tuple[tuple[str, ...], str]:
    """Returns (words, script) of an entry."""
    command, script, args = (raw.told.get(key) for key in _RUNS)
    example = 'command = ["./solve", "x"], or command = "one | two" for a shell, or script = "job.sh"'
    if (command is None) == (script is None):
        raw.refuse("it has both a command and a script" if command is not None else "key command: there is nothing to run", example)
    if args is not None and script is None:
        raw.refuse("key args: only a script has them", 'command = ["./solve", "x"]')
    if script is not None:
        if not isinstance(script, str) or not script or script == "-":
            raw.refuse(f"key script: {script!r} is no name of a file", 'script = "job.sh"')
        return _texts(raw, "args", args if args is not None else []), script
    if isinstance(command, str) and command.strip():
        return ("/bin/sh", "-c", command), ""
    words = _texts(raw, "command", command) if isinstance(command, list) else ()
    if not words or not words[0]:
        raw.refuse(f"key command: {command!r} is no command", example)
    return words, ""


def _first_word(raw: _Raw) -> str:
    command = raw.told["command"]
    return str(command.split()[0] if isinstance(command, str) else command[0])


def _texts(raw: _Raw, key: str, value: Any) -> tuple[str, ...]:
    items = value if isinstance(value, list) else [value]
    for item in items:
        if isinstance(item, bool) or not isinstance(item, str | int | float) or (isinstance(item, str) and "\0" in item):
            raw.refuse(f"key {key}: {item!r} is neither text nor a number", f'{key} = ["a", "b"]')
    return tuple(str(item) for item in items)


def _value(ctx: click.Context, raw: _Raw, key: str, known: _Key, value: Any) -> Any:
    option = known.option
    if option.is_flag:
        if not isinstance(value, bool):
            raw.refuse(f"key {key}: {value!r} is neither true nor false", f"{key} = true")
        return value is not known.no
    if isinstance(value, dict) and option.multiple:
        value = [f"{name}={_texts(raw, key, told)[0]}" for name, told in value.items()]
    texts = _texts(raw, key, value)
    try:
        return option.process_value(ctx, texts if option.multiple else ",".join(texts))
    except click.UsageError as error:
        told = error.message.rstrip(".")
        raise UsageError(f"{raw.where}: key {key}: {told}", hint=f"rmgr submit --help says what --{key.replace('_', '-')} takes") from None
    except RmgrError as error:
        raise UsageError(f"{raw.where}: key {key}: {error.message}", hint=error.hint) from None


# -- dependencies --------------------------------------------------------------------------------------------------------------


def _dependencies_of(
    raw: _Raw, value: Any, places: Mapping[str, Sequence[int]]
) -> tuple[tuple[Dependency, ...], tuple[tuple[Condition, int], ...]]:
    """Returns (dependencies on existing submissions, on jobs of the list)."""
    from rmgr.cli.words.sbatch import UNLIKE_DEPENDENCIES

    ids: dict[Dependency, None] = {}
    needs: dict[tuple[Condition, int], None] = {}
    for text in _texts(raw, "after", value):
        head, _, tail = text.partition(":")
        is_one = text in places or (head in _CONDITIONS and tail in places)  # a name may hold a comma
        for part in [text] if is_one else text.split(","):
            word, colon, name = part.strip().partition(":")
            condition = _CONDITIONS.get(word) if colon and part.strip() not in places else None
            if part.strip() not in places and word in UNLIKE_DEPENDENCIES:
                why, _, hint = UNLIKE_DEPENDENCIES[word].replace("ID", name or "ID").partition(": ")
                raw.refuse(f"key after: {word}: {why}", hint.replace("--after=", "after = ", 1))
            target = name if condition is not None else part.strip()
            here = places.get(target, ())
            if len(here) > 1:
                raw.refuse(f"key after: {len(here)} jobs have the name {target!r}", "give each a name of its own")
            if here:
                needs[condition or Condition.OK, here[0]] = None
            elif _ID.fullmatch(target):
                ids[Dependency(condition=condition or Condition.OK, submission=int(target))] = None
            else:
                ids_too = 'after = ["prep"], or ["ok:41", "any:prep"]: names of this list, ids of others'
                raw.refuse(f"key after: no job of this list has the name {target!r}", nearest(target, places, ids_too))
    return tuple(ids), tuple(needs)


def _refuse_cycles(shown: str, entries: Sequence[ListedJob]) -> None:
    left = {place: {need for _, need in entry.needs} for place, entry in enumerate(entries)}
    for place in in_order(entries):
        del left[place]
    if not left:
        return
    way = [min(left)]
    while way.count(way[-1]) == 1:
        way.append(min(need for need in left[way[-1]] if need in left))
    names = " -> ".join(entries[place].name for place in way[way.index(way[-1]) :])
    raise UsageError(f"{shown}: jobs wait for each other: {names}", hint="drop one after of them")
