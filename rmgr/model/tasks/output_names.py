"""Placeholders in the names of output files: %j job, %a array index, %t attempt, %x name, %N node, %% a percent sign.

The node that runs a task expands them, and so does the command that fetches its files.
"""

from __future__ import annotations

import re

_PLACEHOLDER = re.compile(r"%([jatxN%])")
#: What other systems have as placeholders, too: %A, %4j.
_ANY = re.compile(r"%\d*[A-Za-z%]")


def expand(pattern: str, *, job: int, index: int, attempt: int, name: str, node: str) -> str:
    """Returns `pattern` for one attempt of one task, with its placeholders replaced. index: the array index."""
    if "%" not in pattern:
        return pattern
    values = {"j": str(job), "a": str(index), "t": str(attempt), "x": name.replace("/", "_"), "N": node, "%": "%"}
    return _PLACEHOLDER.sub(lambda match: values[match[1]], pattern)


def has_own_name(pattern: str) -> bool:
    """Returns whether each task of a submission has a file of its own."""
    return any(match[1] == "a" for match in _PLACEHOLDER.finditer(pattern))


def unknown_placeholder(pattern: str) -> str:
    """Returns the first placeholder of another system, which stays as it is here; "" if there is none."""
    return next((match[0] for match in _ANY.finditer(pattern) if not _PLACEHOLDER.fullmatch(match[0])), "")
