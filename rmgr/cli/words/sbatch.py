"""Translate `#SBATCH` lines: options of sbatch with their values as they are written here, where a bare number may mean something else."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator

MARK = "#SBATCH"


def translated(line: str) -> tuple[list[str], list[str]]:
    """(the options of a `#SBATCH` line as they are here, those that have no equal); an unknown option drops itself and its value only."""
    try:
        words = shlex.split(line.removeprefix(MARK), comments=True)
    except ValueError:
        return [], [line]
    out: list[str] = []
    dropped: list[str] = []
    for option, joint, value in _options(words):
        ours, changed = _OPTIONS.get(option, ("", None))
        told = changed(value) if changed is not None and value else value
        if not ours or (changed is not None and value and not told):
            dropped += [f"{option}={value}"] if joint == "=" else [option, *([value] if value else [])]
            continue
        out += [f"{ours}={told}"] if joint == "=" else [ours, *([told] if told else [])]
    return out, dropped


def _options(words: list[str]) -> Iterator[tuple[str, str, str]]:
    """Each option, what stands between it and its value ("=", " " or nothing), the value ("" for none)."""
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if word.startswith("--"):
            option, joint, value = word.partition("=")
        else:
            option, joint, value = word[:2], "", word[2:]
        if not joint and not value and option not in _FLAGS and at < len(words) and not words[at].startswith("-"):
            joint, value = " ", words[at]
            at += 1
        yield option, joint, value


# -- values -------------------------------------------------------------------------------------------------------------------


def _time(value: str) -> str:
    """A bare number is minutes there; of `days-hours[:minutes]` the rest is added."""
    if value.isdigit():
        return f"{value}m" if int(value) else value
    if re.fullmatch(r"\d+-\d+", value):
        return f"{value}:00:00"
    return f"{value}:00" if re.fullmatch(r"\d+-\d+:\d+", value) else value


def _size(value: str) -> str:
    """A bare number is mebibytes there."""
    return f"{value}M" if value.isdigit() and int(value) else value


def _dependency(value: str) -> str:
    for theirs, ours in (("afterok", "ok"), ("afterany", "any"), ("afternotok", "fail")):
        value = value.replace(f"{theirs}:", f"{ours}:")
    return value


def _file(value: str) -> str:
    return value.replace("%A", "%j")


def _nodes(value: str) -> str:
    """Of `2-4` the least: the number is exact here."""
    return value.partition("-")[0]


def _generic(value: str) -> str:
    found = re.fullmatch(r"(?:gres[:/])?gpu(?::[a-z][\w.-]*)?(?::(\d+))?", value)
    return "" if found is None else found[1] or "1"


def _begin(value: str) -> str:
    """`now+2hours`: units in full, seconds without one."""
    found = re.fullmatch(r"now\+(\d+)(?:(s|m|h|d)[a-z]*|(w)[a-z]*)?", value)
    if found is None:
        return value
    return f"now+{int(found[1]) * 7}d" if found[3] else f"now+{found[1]}{found[2] or 's'}"


_FLAGS = {"-H", "--hold", "-W", "--wait", "--exclusive", "--requeue", "--no-requeue", "-K", "-Q", "-v", "-O", "-s", "-k", "-h", "-V"}
#: Options of sbatch -> what they are here, and what becomes of their values.
_OPTIONS: dict[str, tuple[str, Callable[[str], str] | None]] = {
    **{same: (same, None) for same in ("-J", "-c", "-a", "--array", "-n", "-q", "-w", "-x", "--nodelist", "--exclude", "--gpus")},
    **{same: (same, None) for same in ("--account", "--hold", "--wait", "--exclusive", "--requeue", "--no-requeue", "--priority")},
    "--kill-on-bad-exit": ("--kill-on-bad-exit", None),
    **{same: (same, _time) for same in ("-t", "--time")},
    **{same: (same, _nodes) for same in ("-N", "--nodes")},
    **{same: (same, _file) for same in ("-o", "-e")},
    "--mem": ("--mem", _size),
    "--begin": ("--begin", _begin),
    "-b": ("--begin", _begin),
    "--job-name": ("--name", None),
    "-p": ("--queue", None),
    "--partition": ("--queue", None),
    "--qos": ("--queue", None),
    "--cpus-per-task": ("--cores", None),
    "--ntasks": ("--processes", None),
    "--output": ("--out", _file),
    "--error": ("--err", _file),
    "--dependency": ("--after", _dependency),
    "-d": ("--after", _dependency),
    "--chdir": ("--cwd", None),
    "-D": ("--cwd", None),
    "--constraint": ("--features", None),
    "-C": ("--features", None),
    "--nice": ("--priority", None),
    "-G": ("--gpus", None),
    "--gres": ("--gpus", _generic),
    "-A": ("--account", None),
    "-H": ("--hold", None),
    "-W": ("--wait", None),
}
