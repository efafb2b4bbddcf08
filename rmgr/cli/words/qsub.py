"""Translates options of qsub, with their values, into rmgr's; for an option without an equal, names the reason and the alternative.

Source: qsub(1B) and pbs_resources(7B) of OpenPBS 23.06, option by option, and two options of Torque (`-d`, `-t`). In comments, "there" is
PBS and "here" is rmgr. A value passes only in a form with the same meaning: memory and GPUs are counted per chunk there and per process
here. So all lines are read together.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from rmgr.cli.words.sbatch import NO_MAIL, Pairs, Unlike, array, plain, translate
from rmgr.cli.words.script import PBS
from rmgr.errors import UsageError
from rmgr.model.units import parse_duration_us


class _Given(NamedTuple):
    """An option as written. value: None if absent."""

    name: str
    value: str | None = None

    def __str__(self) -> str:
        return shlex.join([self.name] if self.value is None else [self.name, self.value])


@dataclass(frozen=True, slots=True)
class _Asked:
    """What all lines together ask for, as far as the meaning of one option depends on others; the last option of a name counts."""

    options: Mapping[str, str]
    resources: Mapping[str, str]  #: those of `-l`

    @classmethod
    def by(cls, given: Sequence[_Given]) -> _Asked:
        resources = {name: value for item in given if item.name == "-l" for name, value in _resources(item.value or "")}
        return cls({item.name: item.value or "" for item in given}, resources)


def translated(lines: Sequence[str]) -> tuple[list[list[str]], list[tuple[str, str]]]:
    """Returns (rmgr's options for each `#PBS` line, options without an equal: as written, with reason and alternative)."""

    def read(line: str) -> Iterator[_Given]:
        for given in _options(shlex.split(re.split(r"\s#", line.removeprefix(PBS), maxsplit=1)[0])):
            yield from _split_lists(given)

    return translate(lines, read, _Asked.by, _translated)


def said(name: str, value: str | None) -> list[str]:
    """Translates a single option; returns an empty list if none is needed. Raises Unlike."""
    items = list(_split_lists(_Given(name, value)))
    asked = _Asked.by(items)
    return [word for item in items for word in _translated(item, asked)]


def takes_value(name: str) -> bool:
    """Returns whether the next word is the option's value."""
    return name not in _FLAGS


def _options(words: Sequence[str]) -> Iterator[_Given]:
    """Yields options as getopt reads them: flags may be joined, and may precede an option with its value."""
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if not re.match(r"-[A-Za-z]", word):
            yield _Given(word)
            continue
        while len(word) > 2 and word[:2] in _FLAGS:
            yield _Given(word[:2])
            word = f"-{word[2:]}"
        if word in _FLAGS:
            yield _Given(word)
        elif len(word) > 2:
            yield _Given(word[:2], word[2:])
        else:
            yield _Given(word, words[at] if at < len(words) else None)
            at += 1


def _split_lists(given: _Given) -> Iterator[_Given]:
    """Yields each resource of `-l`, and each attribute of `-W`, separately."""
    if given.name == "-l" and given.value:
        for name, value in _resources(given.value):
            yield _Given("-l", f"{name}={value}" if value else name)
    elif given.name == "-W" and given.value:
        for part in re.split(r",(?=\s*[a-z_]+=)", given.value):
            yield _Given("-W", part.strip())
    else:
        yield given


def _resources(value: str) -> Iterator[tuple[str, str]]:
    """Splits resources: `ncpus=4:mem=1gb` is two; a chunk and a place are one each."""
    for part in value.split(","):
        is_whole = re.match(r"\s*(select|nodes|place)=", part) is not None
        for single in [part] if is_whole else re.split(r":(?=[A-Za-z]\w*=)", part):
            name, _, told = single.strip().partition("=")
            if name:
                yield name, told


def _translated(given: _Given, asked: _Asked) -> list[str]:
    rule = RULES.get(given.name)
    if rule is None:
        raise Unlike("qsub has no such option either: rmgr submit --help")
    if isinstance(rule, str):
        raise Unlike(rule)
    if not given.value and given.name not in _FLAGS:
        raise Unlike("its value is missing")
    return [ours if value is None else f"{ours}={value}" for ours, value in rule(given.value or "", asked)]


# -- values -------------------------------------------------------------------------------------------------------------------

_Rule = Callable[[str, _Asked], Pairs]


def _count(value: str, why: str) -> int:
    if re.fullmatch(r"0*[1-9]\d{0,8}", value, re.ASCII) is None:
        raise Unlike(why)
    return int(value)


def _date(value: str, _asked: _Asked) -> Pairs:
    """Translates `[[[[CC]YY]MM]DD]hhmm[.SS]`: a time of day is the next one, as here."""
    found = re.fullmatch(r"((\d\d)?\d\d\d{4})?(\d\d)(\d\d)(?:\.(\d\d))?", value, re.ASCII)
    if found is None:
        raise Unlike("write the whole date, or the time alone: --begin=2026-11-30T08:00 or 16:00")
    day, century, hour, minute, second = found.groups()
    clock = f"{hour}:{minute}:{second}" if second else f"{hour}:{minute}"
    date = f"{'' if century else '20'}{day[:-4]}-{day[-4:-2]}-{day[-2:]}T" if day else ""
    try:
        datetime.fromisoformat(f"{date or '2000-01-01T'}{clock}")
    except ValueError:
        raise Unlike("no time there either: --begin=2026-11-30T08:00 or 16:00") from None
    return [("--begin", date + clock)]


def _file(value: str) -> str:
    """Translates a file name: `^array_index^` is the index there; a percent sign begins a placeholder here, and means nothing there."""
    if ":" in value:
        raise Unlike("a file of one machine there; here of the node where the work runs: name it without a host")
    if "$" in value:
        raise Unlike("variables are not filled in: %j (job), %a (index), %x (name) and %N (node) are")
    if value.endswith("/"):
        raise Unlike("a directory there; here the name of a file: %j is the job")
    return value.replace("%", "%%").replace("^array_index^", "%a")


def _output(value: str, asked: _Asked) -> Pairs:
    join = asked.options.get("-j", "n")
    return [] if join == "eo" else [("--out", _file(value)), *([("--err", _file(value))] if join == "oe" else [])]


def _error(value: str, asked: _Asked) -> Pairs:
    join = asked.options.get("-j", "n")
    return [] if join == "oe" else [("--err", _file(value)), *([("--out", _file(value))] if join == "eo" else [])]


def _join(value: str, asked: _Asked) -> Pairs:
    """Translates `-j`; returns nothing if `-o` or `-e` already says the same."""
    if value == "n" or asked.options.get({"oe": "-o", "eo": "-e"}.get(value, "")):
        return []
    if value not in {"oe", "eo"}:
        raise Unlike("there is no such value there either: -j oe, eo or n")
    raise Unlike("rmgr logs shows both; one file has both where both name it: --out=FILE --err=FILE")


def _keep(value: str, _asked: _Asked) -> Pairs:
    if value == "n" or re.fullmatch(r"(?=.*d)[doe]+", value):  # d: straight into the file, as here
        return []
    raise Unlike("names that PBS makes are not made here: --out=%x.o%j and --err=%x.e%j, which stay on the node")


def _range(value: str, asked: _Asked) -> Pairs:
    if re.fullmatch(r"\d+-\d+(:\d+)?(%\d+)?", value, re.ASCII) is None:
        raise Unlike("no range there either: --array=0-15:2%4")
    return array(value, asked)


def _variables(value: str, _asked: _Asked) -> Pairs:
    """Translates `-v`: a value with commas is quoted."""
    parts = re.findall(r"(?:[^,'\"]|'[^']*'|\"[^\"]*\")+", value)
    out: Pairs = []
    if ",".join(parts) != value.strip(","):
        raise Unlike("its quotes do not match: --env=NAME=VALUE")
    for part in parts:
        found = re.fullmatch(r"([A-Za-z_]\w*)(?:=(?:'([^']*)'|\"([^\"]*)\"|([^'\"]*)))?", part.strip(), re.ASCII)
        if found is None:
            raise Unlike("write each variable by itself: --env=NAME=VALUE")
        told = next((text for text in found.groups()[1:] if text is not None), None)
        out.append(("--env", found[1] if told is None else f"{found[1]}={told}"))
    return out


def _rerun(value: str, asked: _Asked) -> Pairs:
    if value not in {"y", "n"}:
        raise Unlike("no value there either: --requeue or --no-requeue")
    if value == "n" and "-J" in asked.options:
        raise Unlike("an array is always run again there: --no-requeue, where that is meant")
    return [("--requeue" if value == "y" else "--no-requeue", None)]


def _checkpoint(value: str, _asked: _Asked) -> Pairs:
    if value in {"n", "u"}:
        return []
    if value == "s":
        raise Unlike("work runs on while daemons stop: leave it out")
    raise Unlike("a program saves its state itself here, when it is asked: --checkpoint-every=10m")


def _mail(value: str, _asked: _Asked) -> Pairs:
    if value == "n":
        return []
    raise Unlike(NO_MAIL)


# -- attributes of -W ---------------------------------------------------------------------------------------------------------


def _attribute(value: str, _asked: _Asked) -> Pairs:
    name, equals, told = value.partition("=")
    if name == "block" and equals:
        return [("--wait", None)] if told.lower() in _TRUE else []
    if name == "depend" and told:
        return [("--after", dependency(told))]
    if name == "umask":
        if re.fullmatch(r"[0-7]{1,4}", told, re.ASCII) is None or int(told, 8) > 0o777:
            raise Unlike("no umask there either: --env=RMGR_UMASK=0022")
        return [("--env", f"RMGR_UMASK={told:0>4}")]
    if name == "sandbox" and told.upper() == "PRIVATE":
        return []
    if name == "interactive" and told.lower() not in _TRUE:
        return []
    raise Unlike(ATTRIBUTES.get(name, f"there is no attribute {name!r} here: rmgr submit --help"))


_TRUE = {"true", "t", "yes", "y", "1"}
ATTRIBUTES = {
    "depend": "it names nothing: --after=ok:1",
    "group_list": "work runs with the groups of its user",
    "interactive": "rmgr run --pty bash",
    "pwd": "no password goes along",
    "run_count": "how often work ran is counted, not set: --retries says how often it may run again",
    "sandbox": "no home directory is known on nodes: --cwd=/home/me",
    "stagein": "--upload=PATH ships files, --input=KEY=FILE brings a value of the data store",
    "stageout": "--output=KEY=FILE takes a file into the data store; files that --out names stay on the node",
}
#: PBS's kinds of dependencies without an equal -> reason and alternative.
UNLIKE_DEPENDENCIES = {
    "after": "a beginning cannot be waited for: --after=any:ID waits for the end",
    "afterany": "it does not follow what was deleted before it ran, and any: does: --after=any:ID where that does not matter",
    "on": "what comes later waits for what was there before: --after of the later one",
    "runone": "one of two cannot be left out here: rmgr cancel the other",
} | dict.fromkeys(
    ("before", "beforeok", "beforenotok", "beforeany"),
    "work that is there already waits for nothing new: submit that one later",
)


def dependency(value: str) -> str:
    """Translates a list of dependencies to the form of `--after`. Raises Unlike."""
    found = []
    for part in value.split(","):
        kind, _, ids = part.strip().partition(":")
        numbers = [re.sub(r"^(\d{1,10})(\[\])?(\.[\w.@:-]*)?$", r"\1", told, flags=re.ASCII) for told in ids.split(":")]
        if kind in UNLIKE_DEPENDENCIES:
            raise Unlike(UNLIKE_DEPENDENCIES[kind].replace("ID", next(iter(re.findall(r"\d+", ids, re.ASCII)), "ID")))
        if kind not in {"afterok", "afternotok"} or not ids:
            raise Unlike(f"{part!r} is no dependency there either: --after=ok:1 or fail:1")
        if not all(re.fullmatch(r"\d{1,10}", number, re.ASCII) for number in numbers):
            raise Unlike("single tasks cannot be waited for: --after=ok:ID, of a whole submission")
        found.append(f"{'ok' if kind == 'afterok' else 'fail'}:{':'.join(numbers)}")
    return ",".join(found)


# -- resources of -l ----------------------------------------------------------------------------------------------------------


def _resource(value: str, asked: _Asked) -> Pairs:
    name, _, told = value.partition("=")
    rule = RESOURCES.get(name)
    if isinstance(rule, str):
        raise Unlike(rule)
    if rule is None:
        raise Unlike(_of_site(name, told))
    if not told:
        raise Unlike("its value is missing")
    if name in _OLD and "select" in asked.resources:
        raise Unlike("it cannot stand beside select= there either")
    return rule(told, asked)


def _of_site(name: str, told: str) -> str:
    if re.fullmatch(r"\d{1,9}", told, re.ASCII):
        return f"of a chunk or job there, of each process here: --resource={name}={told}, where nodes have it"
    return f"nodes are asked for by --features: --features={told or name}, where nodes have it"


def _walltime(value: str, _asked: _Asked) -> Pairs:
    try:
        if not re.fullmatch(r"\d{1,9}(:\d{1,2}){0,2}", value, re.ASCII) or not parse_duration_us(value):
            raise UsageError("")
    except UsageError:
        raise Unlike("no time there either: --time=90 (seconds), 15m or 1:30:00") from None
    return [("--time", value)]


def _bytes(value: str) -> int:
    """Parses a size to bytes; a bare number is bytes; w is a word of 8."""
    found = re.fullmatch(r"(\d{1,15})([kmgtp]?)([bw]?)", value, re.IGNORECASE | re.ASCII)
    if found is None or not int(found[1]):
        raise Unlike("no size there either: --mem=512M or 4G")
    return int(found[1]) * (8 if found[3].lower() == "w" else 1) << 10 * " kmgtp".index(found[2].lower() or " ")


def _memory_of(size_bytes: int, processes: int) -> Pairs:
    """Translates the memory of all these processes to the memory of each."""
    if size_bytes % processes:
        raise Unlike(f"of {processes} processes together there, of each here: --mem with what one process needs")
    each, unit = size_bytes // processes, 0
    if each < 1 << 20:
        raise Unlike("nothing runs in so little: --mem=512M or 4G, of each process")
    while unit < len("KMGT") and each % (1 << 10) == 0:
        each, unit = each >> 10, unit + 1
    return [("--mem", f"{each}{' KMGT'[unit].strip()}")]


def _memory(value: str, asked: _Asked) -> Pairs:
    """Translates the memory of the whole job."""
    return _memory_of(_bytes(value), _processes(*_nodes_of(asked.resources["nodes"])[:2]) if "nodes" in asked.resources else 1)


def _cores(value: str, asked: _Asked) -> Pairs:
    if "nodes" in asked.resources:
        raise Unlike("of all nodes together there: --cores with what one process needs")
    return [("--cores", str(_count(value, _CORES)))]


_CORES = "a number of cores: --cores=4"
_PLACES = {"free", "pack", "scatter", "vscatter", "excl", "exclhost", "shared"}


def _place(value: str, asked: _Asked) -> Pairs:
    if "select" not in asked.resources:
        raise Unlike("it stands beside select= there: --nodes=N spreads processes, --exclusive keeps nodes for a job")
    parts = value.split(":")
    for part in parts:
        if part.startswith("group="):
            raise Unlike("which nodes are near each other is not known: --features, or --nodelist")
        if part not in _PLACES:
            raise Unlike("no place there either: --nodes=N spreads processes, --exclusive keeps nodes for a job")
    return [("--exclusive", None)] if {"excl", "exclhost"} & set(parts) else []


def _select(value: str, asked: _Asked) -> Pairs:
    count, chunk = _alike([_chunk(part) for part in value.split("+")])
    return _shape(count, chunk, set(asked.resources.get("place", "free").split(":")))


def _nodes(value: str, _asked: _Asked) -> Pairs:
    count, chunk, suffix = _nodes_of(value)
    return _shape(count, chunk, {"scatter"}) + ([("--exclusive", None)] if suffix == "excl" else [])


def _nodes_of(value: str) -> tuple[int, dict[str, str], str]:
    """Returns the number of chunks, the contents of each, and the suffix."""
    head, _, suffix = value.partition("#")
    if suffix not in {"", "excl", "shared"}:
        raise Unlike(f"a feature of nodes is asked for by --features={suffix}")
    groups = []
    for part in head.split("+"):
        count, told = _chunk(part, of_nodes=True)
        each, cores = told.pop("ppn", "1"), told.pop("cpp", told.pop("ncpus", "1"))
        if told:
            raise Unlike("nodes=N:ppn=P alone is known here; others are --features, --mem and --resource")
        number = _count(each, _CORES)
        groups.append((count, {"mpiprocs": each, "ncpus": str(_count(cores, _CORES) * number)}))
    return *_alike(groups), suffix


def _chunk(text: str, *, of_nodes: bool = False) -> tuple[int, dict[str, str]]:
    first, *rest = text.split(":")
    if first.isdigit() and first.isascii():
        count = _count(first, "a number of chunks: -l select=4:ncpus=2")
    else:
        count, rest = 1, [first, *rest]
    told: dict[str, str] = {}
    for part in rest:
        name, equals, value = part.partition("=")
        if of_nodes and name and not equals:
            raise Unlike(f"a feature or the name of a node there: --features={name} or --nodelist={name}")
        if not re.fullmatch(r"[A-Za-z][\w.-]*", name, re.ASCII) or not value or name in told:
            raise Unlike("no chunk there either: -l select=4:ncpus=2:mem=4gb")
        told[name] = value
    return count, told


def _alike(groups: Sequence[tuple[int, dict[str, str]]]) -> tuple[int, dict[str, str]]:
    if any(chunk != groups[0][1] for _, chunk in groups):
        raise Unlike("processes of a job are alike here: the most that one of them needs, or jobs of their own (rmgr submit --from FILE)")
    return sum(count for count, _ in groups), groups[0][1]


def _processes(count: int, chunk: Mapping[str, str]) -> int:
    return count * _count(chunk.get("mpiprocs", "1"), "a number of processes: --processes=4")


def _shape(count: int, chunk: Mapping[str, str], places: set[str]) -> Pairs:
    """Translates `count` chunks, each on one node; a node may have several of them if they are placed freely.

    If each chunk has a node of its own, the processes of a chunk stay together here: one of the placements allowed there.
    """
    processes = _processes(count, chunk)
    each = processes // count
    nodes = 1 if "pack" in places else count if each > 1 or {"scatter", "vscatter"} & places else 0
    out: Pairs = [("--processes", str(processes))] if processes > 1 else []
    if nodes and processes > 1:
        out.append(("--nodes", str(nodes)))
    cores = _count(chunk.get("ncpus", str(each)), _CORES)
    if cores % each:
        raise Unlike(f"{cores} cores for {each} processes there, as many for each here: --cores with what one process needs")
    if cores > each:
        out.append(("--cores", str(cores // each)))
    features = []
    for name, value in chunk.items():
        if name in {"mpiprocs", "ncpus"}:
            continue
        if name == "mem":
            out += _memory_of(_bytes(value), each)
        elif name == "ngpus" and each == 1:
            out.append(("--gpus", str(_count(value, "a number of GPUs: --gpus=2"))))
        elif name == "ngpus":
            raise Unlike(f"of a chunk there, of each of its {each} processes here: --gpus with what one process needs")
        elif name == "ompthreads":
            out.append(("--env", f"OMP_NUM_THREADS={_count(value, 'a number of threads: --env=OMP_NUM_THREADS=4')}"))
        elif name in {"host", "vnode"} and (count == 1 or nodes == 1) and re.fullmatch(r"[\w.-]+", value, re.ASCII):
            out.append(("--nodelist", value))
        elif name in {"host", "vnode"}:
            raise Unlike("names of nodes are written in one list: --nodelist=n1,n2")
        elif value.lower() == "true":
            features.append(name)
        elif value.lower() == "false":
            raise Unlike(f"nodes without {name} cannot be asked for: --exclude=n1,n2")
        elif isinstance(rule := RESOURCES.get(name), str):
            raise Unlike(rule)
        else:
            raise Unlike(_of_site(name, value))
    return [*out, ("--features", ",".join(features))] if features else out


_CPU_TIME = "CPU time is measured, not limited: --time limits how long it runs"
_ADDRESSES = "addresses are not limited: --mem limits the memory that is used"
#: Resources of `-l` that cannot stand beside select=.
_OLD = {"nodes", "ncpus", "mem"}
RESOURCES: dict[str, _Rule | str] = {
    "arch": "nodes are asked for by --features, where they have it",
    "cput": _CPU_TIME,
    "file": "files are not limited in size: ulimit -f in the script",
    "host": "-l select=1:host=NAME there: --nodelist=NAME",
    "max_walltime": "a limit is one number: --time",
    "mem": _memory,
    "min_walltime": "a limit is one number: --time",
    "ncpus": _cores,
    "nice": "work runs with the usual nice value: nice -n 10 COMMAND in the script",
    "nodes": _nodes,
    "pcput": _CPU_TIME,
    "place": _place,
    "pmem": "a limit of each process there, for which no memory is kept free: --mem does both, for each process",
    "pvmem": _ADDRESSES,
    "select": _select,
    "soft_walltime": "a limit is one number: --time",
    "software": "licenses are not counted; things of a node are: --resource=NAME=1, where nodes have it",
    "vmem": _ADDRESSES,
    "walltime": _walltime,
}


# -- table --------------------------------------------------------------------------------------------------------------------

_NO_DISPLAY = "no display goes along: rmgr run --pty for a terminal"
#: Option of qsub -> the reader of its values, or the reason why it has no equal, with the alternative.
RULES: dict[str, _Rule | str] = {
    "-A": plain("--account"),
    "-a": _date,
    "-C": "options stand in lines that begin with #RMGR",
    "-c": _checkpoint,
    "-d": plain("--cwd", r"/.*", "nodes know no directory of yours: write the whole path, --cwd=/home/me/work"),  # Torque
    "-e": _error,
    "-f": lambda _value, _asked: [],  # here, no process outlives its command
    "-G": _NO_DISPLAY,
    "-h": lambda _value, _asked: [("--hold", None)],
    "-I": "rmgr run --pty bash",
    "-J": _range,
    "-j": _join,
    "-k": _keep,
    "-l": _resource,
    "-M": NO_MAIL,
    "-m": _mail,
    "-N": plain("--name"),
    "-o": _output,
    "-P": "one label is recorded with the work: --account=NAME",
    "-p": plain("--priority", r"-?0*\d{1,4}", "no priority there either: --priority=100; higher goes first, 0 is usual"),
    "-q": plain("--queue", r"[^@]+", "one command speaks to one cluster: --zk names it, --queue=NAME its queue"),
    "-R": "files that --out and --err name stay: rm them in the script",
    "-r": _rerun,
    "-S": "the first line of a script names its shell: #!/bin/bash",
    "-t": array,  # Torque
    "-u": "nobody submits for another user",
    "-V": "the whole environment does not go along: --env=NAME for each variable that the work needs",
    "-v": _variables,
    "-W": _attribute,
    "-X": _NO_DISPLAY,
    "-z": "the id is always printed: rmgr submit ... > /dev/null",
    "--": "the command line is the script itself: rmgr submit -- CMD runs a command",
    "--version": "rmgr version",
}
_FLAGS = frozenset({"-f", "-G", "-h", "-I", "-V", "-X", "-z", "--", "--version"})
