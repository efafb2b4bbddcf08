"""A home directory for commands that find no cluster."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture
def bare_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home directory; nothing else says where a cluster is."""
    for name in [name for name in os.environ if name.startswith(("RMGR_", "XDG_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path
