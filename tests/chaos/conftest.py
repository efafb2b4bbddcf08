"""A cluster that a test starts as it likes and breaks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from breakable import Chaos


@pytest.fixture
def chaos(zookeeper_parts: None, tmp_path: Path) -> Iterator[Chaos]:
    """A cluster that the test starts as it likes; stopped, and its logs shown when the test fails."""
    made = Chaos(tmp_path)
    try:
        yield made
    finally:
        made.stop()
