"""What is typed for `rmgr call`: files as arguments."""

from __future__ import annotations

import pytest

from rmgr.cli import calls
from rmgr.errors import UsageError
from rmgr.model.calls import arrays


def test_a_file_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "MAX_BYTES", 1 << 20)
    for read in (calls._file, lambda path: calls._array("A", path)):
        with pytest.raises(UsageError, match="more than the 1,048,576 bytes that an argument may have"):
            read("/dev/zero")
