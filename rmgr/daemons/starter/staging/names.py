"""Placeholders in the names of output files: %j job, %a array index, %t attempt, %x name, %N node, %% a percent sign."""

from __future__ import annotations

import re
from typing import Any

_PLACEHOLDER = re.compile(r"%([jatxN%])")


def expand(pattern: str, info: Any, index: int, attempt: int, node: str) -> str:
    """`pattern` for one attempt of one task; what is not a placeholder stays."""
    if "%" not in pattern:
        return pattern
    values = {
        "j": str(info.record.id),
        "a": str(info.label(index)),
        "t": str(attempt),
        "x": info.record.name.replace("/", "_"),
        "N": node,
        "%": "%",
    }
    return _PLACEHOLDER.sub(lambda match: values[match[1]], pattern)


def has_own_name(pattern: str) -> bool:
    """Each task of a submission has a file of its own."""
    return any(match[1] == "a" for match in _PLACEHOLDER.finditer(pattern))
