"""Tells what one check of `rmgr doctor` found, and how to mend it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """What one look found. fix: what to type or change; with `ok` it is advice."""

    name: str
    ok: bool
    detail: str
    fix: str = ""
