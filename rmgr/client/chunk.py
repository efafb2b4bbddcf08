"""Several calls in one task (`Executor.map(..., chunksize=n)`). Workers import this file, so it imports nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def call_each(function: Callable[..., Any], calls: list[tuple[Any, ...]]) -> list[Any]:
    """Calls `function` with each tuple of arguments and returns the results."""
    return [function(*args) for args in calls]
