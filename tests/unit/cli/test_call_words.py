"""What is typed for `rmgr call`: files as arguments."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmgr.cli import calls
from rmgr.errors import UsageError
from rmgr.model.calls import arrays


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "A.npy").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(UsageError, match=r"A: .*A\.npy has more than the 1,073,741,824 bytes"):
        calls._array("A", str(tmp_path / "A.npy"))


def test_of_several_outputs_one_that_cannot_be_written_is_kept_and_the_others_are_where_they_should_be(tmp_path: Path) -> None:
    assert calls._keep("text", tmp_path / "good") is None
    trouble = calls._keep(b"bytes", Path("/dev/full"))
    assert isinstance(trouble, UsageError)
    kept = Path(trouble.hint.split()[1])
    assert kept.read_bytes() == b"bytes"
    kept.unlink()
    kept.parent.rmdir()


def test_a_file_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "MAX_BYTES", 1 << 20)
    for read in (calls._file, lambda path: calls._array("A", path)):
        with pytest.raises(UsageError, match="more than the 1,048,576 bytes that an argument may have"):
            read("/dev/zero")
