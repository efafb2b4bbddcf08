"""Filters of warnings on their way from a program to its workers: what it ignores is not shown there, what it makes an error is one.

Imported by clients and workers: standard library only.
"""

from __future__ import annotations

import builtins
import re
import warnings
from typing import Any

#: (action, pattern of messages, category as "module.name", pattern of modules, line or "0"); "" matches all.
Filter = tuple[str, str, str, str, str]
_PLAIN = re.compile("").flags
#: As if there were no filters: Python shows what none matches.
_NONE: Filter = ("default", "", "builtins.Warning", "", "0")
#: What an interpreter begins with.
USUAL: tuple[Filter, ...] = (
    ("default", "", "builtins.DeprecationWarning", "__main__", "0"),
    *(("ignore", "", f"builtins.{name}Warning", "", "0") for name in ("Deprecation", "PendingDeprecation", "Import", "Resource")),
)


def current() -> tuple[Filter, ...]:
    """Returns the filters of this process, at least one; the first that matches counts. Those that no text can describe are left out."""
    found = map(_described, warnings.filters)
    return tuple(one for one in found if one is not None) or (_NONE,)


def _described(given: Any) -> Filter | None:
    action, message, category, module, line = given
    texts = [_pattern(message, re.IGNORECASE), _pattern(module, 0)]
    if None in texts or not isinstance(category, type):
        return None
    name = category.called if isinstance(category, _Named) else f"{category.__module__}.{category.__qualname__}"
    return str(action), str(texts[0]), name, str(texts[1]), str(line)


def _pattern(given: Any, flags: int) -> str | None:
    """Returns the text of a compiled pattern or a plain word (as the interpreter's own filters have), "" for None; None for other flags."""
    if given is None:
        return ""
    if isinstance(given, str):
        return re.escape(given) + r"\Z"
    pattern: object = getattr(given, "pattern", None)
    return pattern if isinstance(pattern, str) and given.flags & ~_PLAIN == flags else None


def apply(filters: tuple[Filter, ...]) -> None:
    """Makes these the filters of this process."""
    made = [
        (action, _compiled(message, re.IGNORECASE), _category(name), _compiled(module, 0), int(line))
        for action, message, name, module, line in filters
    ]
    warnings.resetwarnings()
    warnings.filters.extend(made)  # type: ignore[attr-defined]


def _compiled(pattern: str, flags: int) -> re.Pattern[str] | None:
    return re.compile(pattern, flags) if pattern else None


def _category(name: str) -> type:
    """Returns a category: Python's own, or one that stands for a class that is imported only if the work needs it."""
    module, _, qualname = name.rpartition(".")
    found = getattr(builtins, qualname, None) if module == "builtins" else None
    return found if isinstance(found, type) else _Named("Category", (Warning,), {"called": name})


class _Named(type):
    """The kind of a category that is known by its name."""

    called: str

    def __subclasscheck__(cls, kind: type) -> bool:
        return any(f"{base.__module__}.{base.__qualname__}" == cls.called for base in kind.__mro__)
