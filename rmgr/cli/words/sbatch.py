"""Translates options of sbatch, with their values, into rmgr's; for an option without an equal, names the reason and the alternative.

Source: sbatch(1) of Slurm 25.05, option by option. In comments, "there" is Slurm and "here" is rmgr. A value passes only in a form with the
same meaning: a bare number may be minutes or mebibytes there, and memory and GPUs are counted per node there and per process here. So all
lines of a script are read together.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from rmgr.cli.words.params import parse_nodes
from rmgr.cli.words.script import SBATCH
from rmgr.errors import UsageError
from rmgr.model.block import PRIORITY_RANGE
from rmgr.model.submission import parse_array
from rmgr.model.units import parse_duration_us

G = TypeVar("G")
A = TypeVar("A")


class Unlike(Exception):
    """An option, or its value, has no equal here; the text gives the reason and the alternative."""


class _Given(NamedTuple):
    """An option as written. joint: the text before its value, "=", " " or nothing. value: None if absent."""

    name: str
    joint: str = ""
    value: str | None = None

    def __str__(self) -> str:
        if self.value is None:
            return self.name
        return shlex.join([f"{self.name}={self.value}"] if self.joint == "=" else [self.name, self.value])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """What all lines together ask for, as far as the meaning of one option depends on others; None: not given."""

    processes: int | None = None
    nodes: int | None = None
    each_node: int | None = None  #: `--ntasks-per-node`
    cores: int | None = None
    listed: int | None = None  #: number of names in `--nodelist`, all of which a job gets there
    names: frozenset[str] = frozenset()

    @classmethod
    def by(cls, given: Sequence[_Given]) -> _Asked:
        last = {_long(item.name): item.value or "" for item in given}

        def number(name: str) -> int | None:
            found = re.match(r"\d{1,9}", last.get(name, ""), re.ASCII)
            return int(found[0]) if found else None

        return cls(
            processes=number("--ntasks"),
            nodes=number("--nodes"),
            each_node=number("--ntasks-per-node"),
            cores=number("--cpus-per-task"),
            listed=_count(last.get("--nodelist", "")),
            names=frozenset(last),
        )

    @property
    def width(self) -> int:
        """Number of processes."""
        return self.processes or (self.nodes or self.listed or 1) * (self.each_node or 1)

    @property
    def on_a_node(self) -> int | None:
        """Number of processes on each node; None if that differs or is unknown."""
        if self.width == 1:
            return 1
        nodes = self.nodes or self.listed
        return self.width // nodes if nodes and self.width % nodes == 0 else None


def translated(lines: Sequence[str]) -> tuple[list[list[str]], list[tuple[str, str]]]:
    """Returns (rmgr's options for each `#SBATCH` line, options without an equal: as written, with reason and alternative)."""
    return translate(lines, lambda line: _options(shlex.split(line.removeprefix(SBATCH), comments=True)), _Asked.by, _translated)


def translate(
    lines: Sequence[str], read: Callable[[str], Iterable[G]], asked_by: Callable[[Sequence[G]], A], said: Callable[[G, A], list[str]]
) -> tuple[list[list[str]], list[tuple[str, str]]]:
    """Does the work of `translated`, for other systems too.

    Args: read: options of a line; raises ValueError. asked_by: what they all ask for together. said: translates an option; raises Unlike.
    """
    without: list[tuple[str, str]] = []
    given: list[list[G]] = []
    for line in lines:
        try:
            given.append(list(read(line)))
        except ValueError as error:
            given.append([])
            without.append((line, f"it cannot be read: {error}"))
    asked = asked_by([item for items in given for item in items])
    out: list[list[str]] = []
    for items in given:
        out.append([])
        for item in items:
            try:
                out[-1] += said(item, asked)
            except Unlike as why:
                without.append((str(item), str(why)))
    return out, without


def said(name: str, value: str | None) -> list[str]:
    """Translates a single option; returns an empty list if none is needed. Raises Unlike."""
    given = _Given(name, "=" if name.startswith("--") and value is not None else " ", value)
    return _translated(given, _Asked.by([given]))


def is_known(name: str) -> bool:
    """Returns whether Slurm has an option of exactly this name."""
    return name in RULES or name in SHORT


def takes_value(name: str) -> bool:
    """Returns whether the next word is the option's value."""
    return _long(name) not in FLAGS | MAYBE


def _options(words: Sequence[str]) -> Iterator[_Given]:
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        name, joint, value = word, "", ""
        if word.startswith("--"):
            name, joint, value = word.partition("=")
        elif word.startswith("-"):
            name, value = word[:2], word[2:]
        if joint or value:
            yield _Given(name, joint or " ", value)
        elif takes_value(name) and word.startswith("-") and at < len(words) and not words[at].startswith("-"):
            yield _Given(name, " ", words[at])
            at += 1
        else:
            yield _Given(name)


def _long(name: str) -> str:
    """Returns the long name of an option, given its short name or an unambiguous beginning of its long name."""
    if name in SHORT:
        return SHORT[name]
    if name in RULES or not re.match(r"--\w\w", name):
        return name
    found = [known for known in RULES if known.startswith(name)]
    return found[0] if len(found) == 1 else name


def _translated(given: _Given, asked: _Asked) -> list[str]:
    name = _long(given.name)
    rule = RULES.get(name)
    if rule is None and name.startswith("-"):
        raise Unlike("there is no such option here: rmgr submit --help")
    if rule is None:
        raise Unlike("jobs of several parts are jobs of their own here: rmgr submit --from FILE")
    if isinstance(rule, str):
        raise Unlike(rule)
    if given.value is None and name not in FLAGS | MAYBE:
        raise Unlike("its value is missing")
    if given.value is not None and name in FLAGS:
        raise Unlike("it takes no value")
    out: list[str] = []
    for ours, value in rule(given.value or "", asked):
        option = given.name if ALIKE.get(given.name) == ours else ours
        out += [option] if value is None else [f"{option}={value}"] if given.joint == "=" or value.startswith("-") else [option, value]
    return out


# -- values -------------------------------------------------------------------------------------------------------------------

#: Pairs of an option and its value (None if it has none).
Pairs = list[tuple[str, str | None]]
_Rule = Callable[[str, _Asked], Pairs]


def plain(ours: str, form: str = r".+", why: str = "such a value is not known here") -> Callable[[str, object], Pairs]:
    """Returns a rule that passes a value of this form unchanged to the option `ours`."""

    def rule(value: str, _asked: object) -> Pairs:
        if re.fullmatch(form, value, re.ASCII if form != r".+" else 0) is None:
            raise Unlike(why)
        return [(ours, value)]

    return rule


def _flag(ours: str) -> _Rule:
    return lambda _value, _asked: [(ours, None)]


def _switch(ours: str, why: dict[str, str], *, on: tuple[str, ...] = ("",), off: tuple[str, ...] = ()) -> _Rule:
    """Returns a rule for a flag that may have a value."""

    def rule(value: str, _asked: _Asked) -> Pairs:
        if value in on:
            return [(ours, None)]
        if value in off:
            return []
        raise Unlike(why.get(value, f"{value!r} is not known here: {ours} alone"))

    return rule


def _needless(*values: str, why: str) -> _Rule:
    """Returns a rule for values that ask for what rmgr does anyway."""

    def rule(value: str, _asked: _Asked) -> Pairs:
        if value.upper() in values:
            return []
        raise Unlike(why)

    return rule


def _time(value: str, _asked: _Asked) -> Pairs:
    """Translates minutes, M:S, H:M:S, D-H, D-H:M, D-H:M:S."""
    if value in {"0", "-1"} or value.upper() in {"UNLIMITED", "INFINITE"}:
        raise Unlike("no limit there: leave --time out, and the queue's own holds (rmgr queues)")
    days = re.fullmatch(r"\d+-\d+((?::\d+){0,2})", value, re.ASCII)
    message = f"{value}m" if value.isdigit() else value + ":00" * (2 - days[1].count(":")) if days else value
    try:
        if not re.fullmatch(r"[\d:-]+m?", message, re.ASCII):
            raise UsageError("")
        parse_duration_us(message)
    except UsageError:
        raise Unlike("no time there either: --time=90m, 1:30:00 or 1-12:00:00") from None
    return [("--time", message)]


_SIZE = re.compile(r"(\d{1,15})([KMGT]?)B?", re.IGNORECASE | re.ASCII)
_KIB = {"K": 1, "": 1 << 10, "M": 1 << 10, "G": 1 << 20, "T": 1 << 30}


def _kib(value: str) -> int:
    """Parses a size to KiB; a bare number is mebibytes there."""
    found = _SIZE.fullmatch(value)
    if found is None:
        raise Unlike("no size there either: --mem=512M or 4G")
    return int(found[1]) * _KIB[found[2].upper()]


def _sized(kib: int) -> str:
    return f"{kib >> 10}M" if kib % (1 << 10) == 0 else f"{kib}K"


def _memory(value: str, asked: _Asked) -> Pairs:
    kib, each = _kib(value), asked.on_a_node
    if not kib:
        raise Unlike("all memory of a node there: --exclusive, and --mem with as much as its program needs")
    if each == 1:
        return [("--mem", value if not value.isdigit() else f"{value}M")]
    if each is None or kib % each:
        raise Unlike(f"of a node there, of each of {asked.width} processes here: --mem with what one process needs")
    return [("--mem", _sized(kib // each))]


def _memory_of_cores(value: str, asked: _Asked) -> Pairs:
    if not _kib(value):
        raise Unlike("no limit there: leave --mem out")
    return [("--mem", _sized(_kib(value) * (asked.cores or 1)))]


def dependency(value: str) -> str:
    """Translates a list of dependencies to the form of `--after`. Raises Unlike."""
    if "?" in value:
        raise Unlike("one of several is enough there; here all must be met: --after=ok:1,any:2")
    found = []
    for part in value.split(","):
        kind, colon, ids = part.partition(":")
        kind = kind.lower()
        if re.fullmatch(r"\d+(:\d+)*", part, re.ASCII):  # an end of any kind there
            kind, colon, ids = "afterany", ":", part
        if kind in UNLIKE_DEPENDENCIES:
            raise Unlike(UNLIKE_DEPENDENCIES[kind].replace("ID", next(iter(re.findall(r"\d+", ids, re.ASCII)), "ID")))
        if kind not in {"afterok", "afterany"} or not colon:
            raise Unlike(f"{part!r} is no dependency there either: --after=ok:1 or any:1")
        if not ids.strip(":"):
            raise Unlike(f"no id stands behind {kind}: is a variable empty? --after=ok:ID")
        if not re.fullmatch(r"\d{1,10}(:\d{1,10})*", ids, re.ASCII):
            raise Unlike("single tasks, and times behind an id, cannot be waited for: --after=ok:ID, of a whole submission")
        found.append(f"{kind.removeprefix('after')}:{ids}")
    return ",".join(found)


#: Slurm's kinds of dependencies without an equal -> reason and alternative.
UNLIKE_DEPENDENCIES = {
    "afternotok": "it follows also what was cancelled before it began, no failure here: --after=fail:ID where that does not matter",
    "after": "a beginning cannot be waited for: --after=any:ID waits for the end",
    "aftercorr": "tasks of an array do not wait one for one: --after=ok:ID waits for all of them",
    "afterburstbuffer": "there are no burst buffers: --after=any:ID",
    "expand": "a job cannot be made larger: submit one of the whole size",
    "singleton": "jobs of one name do not wait for each other: --after=any:ID, with the id of the one before",
}


_PATTERN = re.compile(r"%(\d*)(.?)", re.DOTALL)


def _file(value: str) -> str:
    """Translates placeholders in a file name. `%t` is the attempt here and a rank there; other differing ones do not exist here."""
    if "\\" in value:
        raise Unlike("a backslash turns placeholders off there: name a file without one")
    if value.lower() == "none":
        raise Unlike("/dev/null there: leave it out; what is printed is kept, and rmgr logs shows it")
    for digits, letter in _PATTERN.findall(value):
        if digits or letter not in set("jAaxN%"):
            raise Unlike(f"%{digits}{letter} is not the same here: %j (job), %a (index), %x (name) and %N (node) are")
    return _PATTERN.sub(lambda found: "%j" if found[2] == "A" else found[0], value)


def _output(value: str, asked: _Asked) -> Pairs:
    """Translates `--output`: there, stderr goes to the same file unless it has one of its own."""
    told = _file(value)
    return [("--out", told), *([] if "--error" in asked.names else [("--err", told)])]


def array(value: str, _asked: object) -> Pairs:
    """Passes an array expression on."""
    try:
        parse_array(value)
    except UsageError as error:
        raise Unlike(f"{error.message}: --array=0-15:2%4") from None
    return [("--array", value)]


def _nodes(value: str, _asked: _Asked) -> Pairs:
    """Translates `--nodes`: of `2-4`, the least is allowed there; the number is exact here."""
    if re.fullmatch(r"[1-9]\d{0,4}(-\d+)?", value, re.ASCII) is None:
        raise Unlike("one number of nodes can be asked for: --nodes=4")
    return [("--nodes", value.partition("-")[0])]


def _tasks_of_nodes(value: str, asked: _Asked) -> Pairs:
    if re.fullmatch(r"[1-9]\d{0,8}", value, re.ASCII) is None:
        raise Unlike("--nodes=2 --processes=8: they are spread evenly")
    if asked.nodes and asked.processes is None:
        return [("--processes", str(asked.nodes * int(value)))]
    if asked.nodes and asked.processes and -(-asked.processes // asked.nodes) <= int(value):
        return []  # the most per node there, and they are spread evenly here
    raise Unlike("say how many nodes, and processes in all: --nodes=2 --processes=8; they are spread evenly")


def _node_list(value: str, asked: _Asked) -> Pairs:
    """Translates `--nodelist`: there a job gets all of these nodes, here it gets no others."""
    count = _names(value, "--nodelist")
    if asked.nodes == count or (count == 1 and asked.nodes is None):
        return [("--nodelist", value)]
    if asked.nodes is None and (asked.processes is None or asked.processes >= count):
        return [("--nodelist", value), ("--nodes", str(count))]
    raise Unlike("all of them, and others, there; none but these here: --nodelist with as many names as --nodes says, or --features")


def _excluded(value: str, _asked: _Asked) -> Pairs:
    _names(value, "--exclude")
    return [("--exclude", value)]


def _names(value: str, option: str) -> int:
    if "/" in value:
        raise Unlike(f"a file of names there: {option}=n1,n2 or n[1-3]")
    count = _count(value)
    if count is None:
        raise Unlike(f"no list of nodes: {option}=n1,n2 or n[1-3]")
    return count


def _count(value: str) -> int | None:
    try:
        return len(parse_nodes(value))
    except UsageError:
        return None


def _features(value: str, _asked: _Asked) -> Pairs:
    if re.fullmatch(r"[\w.-]+([&,][\w.-]+)*", value, re.ASCII) is None:
        raise Unlike("only all of several features can be asked for: --features=a,b")
    return [("--features", value.replace("&", ","))]


def _one_gpu_kind(value: str, option: str) -> int:
    kind, _, count = value.rpartition(":")
    if "," in value or re.fullmatch(r"[1-9]\d{0,8}", count, re.ASCII) is None:
        raise Unlike(f"one number of GPUs can be asked for: {option}=2")
    if kind:
        raise Unlike(f"kinds of GPUs are features of nodes here: --gpus={count} --features={kind}, where nodes have it")
    return int(count)


def _gpus(value: str, asked: _Asked) -> Pairs:
    count = _one_gpu_kind(value, "--gpus")
    if asked.width > 1:
        raise Unlike(f"of the whole job there, of each of {asked.width} processes here: --gpus with what one process needs")
    return [("--gpus", str(count))]


def _of_nodes(asked: _Asked, ours: str, value: str) -> Pairs:
    if asked.on_a_node != 1:
        raise Unlike(f"of a node there, of each of {asked.width} processes here: {ours} with what one process needs")
    return [(ours, value)]


_GENERIC = re.compile(r"(?:gres[:/])?(?P<name>[A-Za-z][\w.-]*)(?::(?P<kind>[A-Za-z][\w.-]*))?(?:[:=](?P<count>\d{1,9}))?", re.ASCII)


def _generic(value: str, asked: _Asked) -> Pairs:
    if value.lower() == "none":
        return []
    out: Pairs = []
    for part in value.split(","):
        found = _GENERIC.fullmatch(part)
        if found is None or part == "help":
            raise Unlike("write each by itself, with a plain number: --gpus=2, --resource=NAME=2")
        name, kind, count = found["name"], found["kind"], found["count"] or "1"
        if kind and name == "gpu":
            raise Unlike(f"kinds of GPUs are features of nodes here: --gpus={count} --features={kind}, where nodes have it")
        if kind:
            raise Unlike(f"kinds are resources of their own here: --resource={name}.{kind}={count}, where nodes have it")
        out += _of_nodes(asked, "--gpus", count) if name == "gpu" else _of_nodes(asked, "--resource", f"{name}={count}")
    return out


def _export(value: str, _asked: _Asked) -> Pairs:
    """Translates `--export`: here, only named variables are passed on."""
    if value.upper() in {"NONE", "NIL"}:
        return []
    names = value.split(",")
    if "ALL" in {name.upper() for name in names}:
        raise Unlike("the whole environment does not go along: --env=NAME for each variable that the work needs")
    if not all(re.fullmatch(r"[A-Za-z_]\w*(=[^'\"]*)?", name, re.ASCII) for name in names):
        raise Unlike("write each variable by itself: --env=NAME=VALUE")
    return [("--env", name) for name in names]


_UNITS = ("seconds", "minutes", "hours", "days", "weeks")
_HOURS = {"noon": "12:00", "elevenses": "11:00", "fika": "15:00", "teatime": "16:00"}


def _begin(value: str, _asked: _Asked) -> Pairs:
    word = value.strip().lower()
    since = re.fullmatch(r"now(?:\s*\+\s*(\d{1,9})\s*([a-z]*))?", word, re.ASCII)
    clock = re.fullmatch(r"(\d{1,2}):(\d{2})(:\d{2})?\s*(am|pm)?", word, re.ASCII)
    day = re.fullmatch(r"(\d{1,2})[/.](\d{1,2})[/.](\d{2})", word, re.ASCII)
    if since is not None:
        unit = next((name for name in _UNITS if name.startswith(since[2])), "") if since[1] and since[2] else "seconds"
        if unit == "weeks":
            return [("--begin", f"now+{int(since[1]) * 7}d")]
        if unit:
            return [("--begin", f"now+{since[1]}{unit[0]}" if since[1] else "now")]
    elif clock is not None and not (clock[4] and not 1 <= int(clock[1]) <= 12) and int(clock[1]) < 24 and int(clock[2]) < 60:
        hour = int(clock[1]) % 12 + 12 * (clock[4] == "pm") if clock[4] else int(clock[1])
        return [("--begin", f"{hour:02d}:{clock[2]}{clock[3] or ''}")]
    elif word in {"today", "tomorrow", "midnight"}:
        return [("--begin", word)]
    elif word in _HOURS:
        return [("--begin", _HOURS[word])]
    elif day is not None:
        return [("--begin", f"20{day[3]}-{int(day[1]):02d}-{int(day[2]):02d}")]
    elif re.fullmatch(r"\d{4}-\d{2}-\d{2}(t\d{2}(:\d{2}){0,2})?", word, re.ASCII):
        return [("--begin", value.strip())]
    raise Unlike("write it as --begin=16:00, now+2h, tomorrow or 2026-11-30T08:00")


def _nice(value: str, _asked: _Asked) -> Pairs:
    """Translates `--nice`: it lowers the priority there, and a larger priority is earlier here."""
    if re.fullmatch(r"-?\d{1,10}", value or "100", re.ASCII) is None or abs(int(value or "100")) > PRIORITY_RANGE:
        raise Unlike(f"--priority=-100 is later than the usual 0; it goes from -{PRIORITY_RANGE} to {PRIORITY_RANGE}")
    return [("--priority", str(-int(value or "100")))] if int(value or "100") else []


def _priority(value: str, _asked: _Asked) -> Pairs:
    if re.fullmatch(r"\d{1,10}", value, re.ASCII) is None or int(value) > PRIORITY_RANGE:
        raise Unlike(f"--priority goes from -{PRIORITY_RANGE} to {PRIORITY_RANGE}, and a queue has its own most (rmgr queues)")
    return [("--priority", value)] if int(value) else [("--hold", None)]  # 0 means held there


def _directory(value: str, _asked: _Asked) -> Pairs:
    if not value.startswith("/"):
        raise Unlike("nodes know no directory of yours: write the whole path, --cwd=/home/me/work")
    return [("--cwd", value)]


def _quality(value: str, asked: _Asked) -> Pairs:
    if "," in value or "--partition" in asked.names:
        raise Unlike("a job has one queue, and --queue says both: the one of the two that is meant")
    return [("--queue", value)]


# -- table --------------------------------------------------------------------------------------------------------------------

NO_MAIL = "no mail is sent: rmgr wait ID; mail -s done me"
_NO_TOPOLOGY = "which nodes are near each other is not known: --features, or --nodelist"
#: Option of sbatch -> the reader of its values, or the reason why it has no equal, with the alternative.
RULES: dict[str, _Rule | str] = {
    "--account": plain("--account"),
    "--array": array,
    "--batch": "a script runs on the first node of its job: --features for all of them",
    "--begin": _begin,
    "--chdir": _directory,
    "--constraint": _features,
    "--cpus-per-gpu": "cores are of each process: --cores with what one process needs",
    "--cpus-per-task": plain("--cores", r"0*[1-9]\d{0,4}", "a number of cores: --cores=4"),
    "--deadline": "work has no time by which it must have ended: --time limits how long it runs",
    "--dependency": lambda value, _asked: [("--after", dependency(value))],
    "--error": lambda value, _asked: [("--err", _file(value))],
    "--exclude": _excluded,
    "--exclusive": _switch(
        "--exclusive",
        {
            "user": "a node cannot be kept for one user's jobs: --exclusive is for this job alone",
            "mcs": "there are no such labels: --exclusive is for this job alone",
            "topo": f"{_NO_TOPOLOGY}; --exclusive is for whole nodes",
        },
    ),
    "--export": _export,
    "--export-file": "write each variable by itself: --env=NAME=VALUE",
    "--get-user-env": "no login shell runs before the work: begin the script with #!/bin/bash -l, or --env=NAME for each variable",
    "--gpu-bind": "each process has GPUs of its own: --gpus",
    "--gpus": _gpus,
    "--gpus-per-node": lambda value, asked: _of_nodes(asked, "--gpus", str(_one_gpu_kind(value, "--gpus"))),
    "--gpus-per-task": lambda value, _asked: [("--gpus", str(_one_gpu_kind(value, "--gpus")))],
    "--gres": _generic,
    "--hold": _flag("--hold"),
    "--ignore-pbs": lambda _value, _asked: [],  # lines of PBS are not read here
    "--immediate": "work that does not start at once waits on: rmgr cancel ID ends it; --begin says when it may start",
    "--input": "a file of the node there; here one of this machine, read at once: --stdin=FILE",
    "--job-name": plain("--name"),
    "--kill-on-bad-exit": _switch("--kill-on-bad-exit", {}, on=("", "1"), off=("0",)),
    "--kill-on-invalid-dep": _needless("YES", why="what can never begin is cancelled here; rmgr explain ID says so"),
    "--licenses": "of the cluster there; things of a node alone are counted here: --resource=NAME=2, where nodes have it",
    "--mail-type": _needless("NONE", why=NO_MAIL),
    "--mail-user": NO_MAIL,
    "--mem": _memory,
    "--mem-per-cpu": _memory_of_cores,
    "--mem-per-gpu": "memory is of each process: --mem with what one process needs",
    "--nice": _nice,
    "--no-kill": _needless("OFF", why="a job ends when it loses a node, and runs again: --no-requeue to run it once at most"),
    "--no-requeue": _flag("--no-requeue"),
    "--nodefile": "write the names: --nodelist=n1,n2 or n[1-3]",
    "--nodelist": _node_list,
    "--nodes": _nodes,
    "--ntasks": plain("--processes", r"0*[1-9]\d{0,8}", "a number of processes: --processes=4"),
    "--ntasks-per-gpu": "GPUs are of each process: --gpus",
    "--ntasks-per-node": _tasks_of_nodes,
    "--oom-kill-step": "a process that has no memory left fails: --mem with more; --kill-on-bad-exit ends the others",
    "--open-mode": "a file is appended to, and emptied first where its name has %a: --out=NAME.%j is a new one, or rm it before",
    "--output": _output,
    "--overcommit": "a core is given to one process at a time: --cores",
    "--oversubscribe": "a core is given to one process at a time: leave it out; without --exclusive nodes are shared",
    "--parsable": _flag("--parsable"),
    "--partition": plain("--queue", r"[^,]+", "a job has one queue: --queue=NAME"),
    "--prefer": "what is asked for is needed: --features",
    "--priority": _priority,
    "--propagate": "limits of this shell do not go along: ulimit in the script",
    "--qos": _quality,
    "--quiet": "--parsable prints the id alone",
    "--requeue": _switch("--requeue", {"expedited": "work that runs again has the place of its --priority: --requeue alone"}),
    "--reservation": "nodes are not reserved by name: --queue or --partition, which its operator keeps for some",
    "--resv-ports": "ports are not reserved: a program binds to port 0",
    "--signal": "at the limit work gets SIGTERM, and time to end, before it nothing: timeout -s USR1 --preserve-status 58m CMD sends one",
    "--stepmgr": "rmgr run starts processes in a job; there is nothing to choose",
    "--tasks-per-node": _tasks_of_nodes,
    "--test-only": _flag("--dry-run"),
    "--time": _time,
    "--time-min": "a limit is not lowered to begin earlier: --time with the least that is enough",
    "--tmp": "space on disks is not counted: --features for nodes that have it",
    "--tres-per-task": "write each by itself: --cores=4, --gpus=1, --resource=NAME=2",
    "--use-min-nodes": lambda _value, _asked: [],  # the least of a range is used here
    "--verbose": "type -v on the command line",
    "--version": "rmgr version",
    "--wait": _flag("--wait"),
    "--wait-all-nodes": _needless("1", why="work begins once all of its nodes are ready"),
    "--wrap": "rmgr submit -- sh -c 'COMMAND'",
    "--x11": "no display goes along: rmgr run --pty for a terminal",
}
#: Reason and alternative -> options of sbatch that share it.
RULES |= {
    name: why
    for why, names in {
        "where in a node a process runs cannot be said: --cores, or --exclusive for whole nodes": (
            "--core-spec --cores-per-socket --extra-node-info --gpus-per-socket --gres-flags --hint --mem-bind --ntasks-per-core "
            "--ntasks-per-socket --sockets-per-node --thread-spec --threads-per-core --tres-bind"
        ),
        "processes are spread evenly over --nodes": "--distribution --spread-job",
        "only --name and --account are recorded with the work": "--comment --mcs-label --wckey",
        "one command speaks to one cluster: --zk names it": "--cluster-constraint --clusters",
        "nobody submits for another user, and nodes are their operators'": "--delay-boot --gid --power --reboot --uid",
        _NO_TOPOLOGY: "--consolidate-segments --contiguous --segment --spread-segments --switches",
        "containers are what a command starts: rmgr submit -- podman run IMAGE": "--container --container-id",
        "it is not measured: rmgr show has CPU time and memory": "--acctg-freq --profile",
        "nodes are asked for by --cores, --mem, --features and --resource": "--cpu-freq --extra --gpu-freq --mincpus --network --resources",
        "there are no burst buffers: --input and --upload bring files": "--bb --bbf",
        "rmgr submit --help": "--help --usage",
    }.items()
    for name in names.split()
}
FLAGS = frozenset(
    {"--consolidate-segments", "--contiguous", "--get-user-env", "--help", "--hold", "--ignore-pbs", "--no-requeue", "--overcommit"}
    | {"--oversubscribe", "--parsable", "--quiet", "--reboot", "--spread-job", "--spread-segments", "--stepmgr", "--test-only", "--usage"}
    | {"--use-min-nodes", "--verbose", "--version", "--wait"}
)
#: A value can follow only "=".
MAYBE = frozenset(
    {"--exclusive", "--immediate", "--kill-on-bad-exit", "--nice", "--no-kill", "--oom-kill-step", "--propagate", "--requeue"}
    | {"--resv-ports", "--x11"}
)
# fmt: off
SHORT = {
    "-A": "--account", "-a": "--array", "-b": "--begin", "-B": "--extra-node-info", "-C": "--constraint", "-c": "--cpus-per-task",
    "-D": "--chdir", "-d": "--dependency", "-e": "--error", "-F": "--nodefile", "-G": "--gpus", "-H": "--hold", "-h": "--help",
    "-I": "--immediate", "-i": "--input", "-J": "--job-name", "-K": "--kill-on-bad-exit", "-k": "--no-kill", "-L": "--licenses",
    "-M": "--clusters", "-m": "--distribution", "-N": "--nodes", "-n": "--ntasks", "-O": "--overcommit", "-o": "--output",
    "-p": "--partition", "-Q": "--quiet", "-q": "--qos", "-S": "--core-spec", "-s": "--oversubscribe", "-t": "--time", "-u": "--usage",
    "-V": "--version", "-v": "--verbose", "-W": "--wait", "-w": "--nodelist", "-x": "--exclude",
}
#: Short options that mean the same here -> their long names here.
ALIKE = {
    "-J": "--name", "-c": "--cores", "-a": "--array", "-n": "--processes", "-q": "--queue", "-w": "--nodelist", "-x": "--exclude",
    "-t": "--time", "-N": "--nodes", "-o": "--out", "-e": "--err",
}
# fmt: on
