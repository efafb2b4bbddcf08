"""A server of calls handles answers while its machine lacks a resource."""

from __future__ import annotations

import errno
import queue
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rmgr.adapters.calls import serving
from rmgr.adapters.calls.serving import CallEnd, GatewayLine, Given


@pytest.mark.parametrize("code", [errno.EMFILE, errno.EIO])
def test_an_answer_outlives_a_lack_of_descriptors_and_is_lost_only_with_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    (tmp_path / "answer").write_bytes(b"42")
    lacks = 2

    def opened(*given: Any, **named: Any) -> Any:
        nonlocal lacks
        lacks -= 1
        if lacks >= 0:
            raise OSError(code, "refused")
        return open(*given, **named)

    monkeypatch.setattr(serving, "open", opened, raising=False)
    told: list[Any] = []
    waiting: list[Callable[[], None]] = []
    line: Any = GatewayLine.__new__(GatewayLine)
    line._out, line._tell, line._givers = queue.SimpleQueue(), told.append, None
    line._submit = lambda _pool, work, _instead: waiting.append(work)
    line.give(b"key", CallEnd(kind="OK", bytes=2), str(tmp_path / "answer"), said_bytes=100)
    if code == errno.EIO:
        assert (told[0].is_taken, told[0].is_ours, waiting) == (False, True, [])
        return
    assert told == [], "whoever owns the calls does not wait, and does not give the answer up"
    (work,) = waiting
    work()
    assert told == [Given(b"key", True)]
    assert line._out.get_nowait().answer.data == b"42"
