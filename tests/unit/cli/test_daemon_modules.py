"""Every daemon that the command line offers is there."""

from __future__ import annotations

import importlib

import pytest

from rmgr.cli import daemons
from rmgr.cli.main import SECTIONS


@pytest.mark.parametrize("role", sorted(SECTIONS["Daemons"]))
def test_the_module_of_each_daemon_can_be_run(role: str) -> None:
    assert callable(importlib.import_module(daemons._MODULES[role]).run)
