"""Names what was changed of a submission since it was sent, for `rmgr show`, `rmgr update` and TaskQueue. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rmgr.model.base.units import format_duration, format_size
from rmgr.model.tasks.amendments import history_of, terms_of
from rmgr.model.tasks.submission import Submission

#: Terms by the names of `show --json`, and what they are called in a sentence.
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
    """Its amendments, oldest first: {by, at, operator, changed}. at: us since the epoch. Cost: 10 us each."""
    return [
        {"by": one.by, "at": one.by_us, "operator": one.is_operators, "changed": differences(before, after)}
        for one, before, after in history_of(record)
    ]


def differences(before: Submission, after: Submission) -> dict[str, dict[str, Any]]:
    """Term -> {old, new}, of those that differ. Durations in seconds, times in us since the epoch, None = no limit, at once."""
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


def in_words(changed: Mapping[str, Mapping[str, Any]], clock: Callable[[int], str]) -> str:
    """`priority 0 -> 5, time limit 1h -> 2h`. clock: says a time."""
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
