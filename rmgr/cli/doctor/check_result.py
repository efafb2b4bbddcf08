"""Tells what one check of `rmgr doctor` found, and how to mend it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """Finding of one look. fix: the command to type or the thing to change; with `ok` it is advice."""

    name: str
    ok: bool
    detail: str
    fix: str = ""
