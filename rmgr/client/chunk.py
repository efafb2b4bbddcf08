"""Several calls in one task (`Executor.map(..., chunksize=n)`). Imported by workers: nothing else is imported here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def call_each(function: Callable[..., Any], calls: list[tuple[Any, ...]]) -> list[Any]:
    """`function` called with each tuple of arguments."""
    return [function(*args) for args in calls]
