"""Describes what a submission asks for beside cores, memory, processes and resources, and how it was changed. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rmgr.model.base.units import format_duration, format_size
from rmgr.model.tasks.submission import FROM_CHECKPOINT, Command, OnDisconnect, Rigid, Submission, history_of, terms_of

#: Usual values, by the names of `show --json`, in the order shown. Durations in seconds, times in us since the epoch.
USUAL: dict[str, Any] = {
    "time_limit": None,
    "features": [],
    "nodes_asked": None,
    "exclusive": False,
    "nodelist": [],
    "exclude": [],
    "begin": None,
    "array": "",
    "cap": None,
    "max_fails": None,
    "retries": 0,
    "backoff": 0.0,
    "resubmit": True,
    "on_disconnect": str(OnDisconnect.KEEP),
    "kill_on_bad_exit": False,
    "checkpoint_every": None,
    "restart_from": FROM_CHECKPOINT,
    "cwd": "",
    "env": [],
    "uploads": [],
    "inputs": [],
    "outputs": [],
    "out": "",
    "err": "",
    "python": "",
    "changes": [],
}


def asked(submission: Submission) -> dict[str, Any]:
    """Returns a submission's unusual values. Of variables only the names, because values may be secrets of the user. Cost: 3 us."""
    request, rigid, command = submission.request, submission.rigid or _NONE, submission.command or _NO_COMMAND
    told = {
        "time_limit": request.time_limit_us / 1e6 or None,
        "features": list(request.features),
        "nodes_asked": rigid.nodes or None,
        "exclusive": rigid.exclusive,
        "nodelist": list(rigid.nodelist),
        "exclude": list(rigid.exclude),
        "begin": rigid.begin_us or None,
        "array": submission.array,
        "cap": submission.max_running or None,
        "max_fails": submission.max_fails if submission.max_fails >= 0 else None,
        "retries": submission.retries,
        "backoff": submission.backoff_us / 1e6,
        "resubmit": submission.resubmit,
        "on_disconnect": str(submission.on_disconnect),
        "kill_on_bad_exit": rigid.kill_on_bad_exit,
        "checkpoint_every": rigid.checkpoint_every_us / 1e6 or None,
        "restart_from": rigid.restart,
        "cwd": command.cwd,
        "env": sorted(command.env.keys() - {"RMGR_PYTHON"}),
        "uploads": [upload.name for upload in command.uploads],
        "inputs": [f"{key}={name}" for key, name in command.input_files],
        "outputs": [f"{key}={name}" for key, name in command.output_files],
        "out": command.out,
        "err": command.err,
        "python": command.env.get("RMGR_PYTHON", "") or (submission.python.python if submission.python is not None else ""),
        "changes": changes_of(submission) if submission.changes else [],
    }
    return {name: value for name, value in told.items() if value != USUAL[name]}


def in_words(told: Mapping[str, Any], clock: Callable[[int], str]) -> str:
    """Returns the same as words, "" if all is usual. clock: formats a time."""
    say: dict[str, Callable[[Any], str]] = {
        "time_limit": lambda value: f"at most {format_duration(value)}",
        "features": lambda value: f"nodes with {', '.join(value)}",
        "nodes_asked": lambda value: f"on {value} node{'s' if value != 1 else ''}",
        "exclusive": lambda _: "alone on its nodes",
        "nodelist": lambda value: f"only on {', '.join(value)}",
        "exclude": lambda value: f"not on {', '.join(value)}",
        "begin": lambda value: f"not before {clock(value)}",
        "array": lambda value: f"array {value}",
        "cap": lambda value: f"{value} at once",
        "max_fails": lambda value: f"the rest cancelled after more than {value} failure{'s' if value != 1 else ''}",
        "retries": lambda value: f"{value} retr{'ies' if value != 1 else 'y'}",
        "backoff": lambda value: f"back-off {format_duration(value)}",
        "resubmit": lambda _: "never again after a loss",
        "on_disconnect": lambda value: f"on disconnect {value}",
        "kill_on_bad_exit": lambda _: "killed when one process fails",
        "checkpoint_every": lambda value: f"a checkpoint every {format_duration(value)}",
        "restart_from": lambda value: f"begins again from the {value}",
        "cwd": lambda value: f"in {value}",
        "env": lambda value: f"with the variables {', '.join(value)}",
        "uploads": lambda value: f"with {', '.join(value)} uploaded",
        "inputs": lambda value: f"inputs {', '.join(value)}",
        "outputs": lambda value: f"outputs {', '.join(value)}",
        "out": lambda value: f"stdout to {value}",
        "err": lambda value: f"stderr to {value}",
        "python": lambda value: f"with {value}",
    }
    return ", ".join(say[name](told[name]) for name in say if name in told)


_NONE = Rigid()
_NO_COMMAND = Command()


# -- changes -------------------------------------------------------------------------------------------------------------------


#: Terms: their names in `show --json`, and in a sentence.
_NAMES = {
    "priority": ("priority", "priority"),
    "time_limit_us": ("time_limit", "time limit"),
    "memory_bytes": ("mem_bytes", "memory"),
    "name": ("name", "name"),
    "begin_us": ("begin", "begin"),
    "after": ("after", "after"),
    "features": ("features", "features"),
    "queue": ("queue", "queue"),
    "cores": ("cores", "cores"),
}


def changes_of(record: Submission) -> list[dict[str, Any]]:
    """Returns the amendments, oldest first: {by, at, operator, changed}. at: us since the epoch. Cost: 10 us each."""
    return [
        {"by": one.by, "at": one.by_us, "operator": one.is_operators, "changed": differences(before, after)}
        for one, before, after in history_of(record)
    ]


def differences(before: Submission, after: Submission) -> dict[str, dict[str, Any]]:
    """Returns term -> {old, new} of terms that differ. Durations in seconds, times in us since the epoch, None = no limit, or at once."""
    old, new = terms_of(before), terms_of(after)
    return {
        name: {"old": _plain(term, getattr(old, term)), "new": _plain(term, getattr(new, term))}
        for term, (name, _) in _NAMES.items()
        if getattr(old, term) != getattr(new, term)
    }


def _plain(term: str, value: Any) -> Any:
    match term:
        case "time_limit_us":
            return value / 1e6 or None
        case "memory_bytes" | "begin_us":
            return value or None
        case "after":
            return [f"{item.condition}:{item.submission}" for item in value]
        case "features":
            return list(value)
    return value


def changes_in_words(changed: Mapping[str, Mapping[str, Any]], clock: Callable[[int], str]) -> str:
    """Returns `priority 0 -> 5, time limit 1h -> 2h`. clock: formats a time."""
    say: dict[str, Callable[[Any], str]] = {
        "time_limit": lambda value: format_duration(value) if value else "none",
        "mem_bytes": lambda value: format_size(value) if value else "none",
        "begin": lambda value: clock(value) if value else "at once",
        "after": lambda value: ",".join(value) or "nothing",
        "features": lambda value: ",".join(value) or "none",
    }
    told = [
        f"{word} {say.get(name, str)(changed[name]['old'])} -> {say.get(name, str)(changed[name]['new'])}"
        for name, word in _NAMES.values()
        if name in changed
    ]
    return ", ".join(told)
