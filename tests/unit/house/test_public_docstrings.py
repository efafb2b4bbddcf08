"""What the public API asks for is said where people look: every parameter of a public class stands in its docstring."""

from __future__ import annotations

import inspect
import re

import pytest

import rmgr


@pytest.mark.parametrize("name", ["TaskQueue", "Executor", "connect"])
def test_every_parameter_is_told(name: str) -> None:
    what = getattr(rmgr, name)
    told = inspect.getdoc(what) or ""
    parameters = set(inspect.signature(what).parameters) - {"self"}
    assert parameters
    assert {one for one in parameters if re.search(rf"\b{one}\b", told) is None} == set()
