"""Outputs that cannot be stored: whose fault it is."""

from __future__ import annotations

import errno
from types import SimpleNamespace
from typing import Any

import pytest
import structlog

from rmgr.daemons.starter.execution.ends import Ends
from rmgr.daemons.starter.staging.outputs import Ending
from rmgr.errors import StoreUnavailable, ValueTooLarge
from rmgr.model.base.states import Reason


def block() -> Any:
    info = SimpleNamespace(record=SimpleNamespace(user="ann"))
    return SimpleNamespace(writing=1, key=SimpleNamespace(submission=1), info=info)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ValueError("embedded null byte"), Reason.BAD_OUTPUT),
        (ValueError("Exceeds the limit (4300 digits) for integer string conversion"), Reason.BAD_OUTPUT),
        (ValueTooLarge("6 GiB"), Reason.BAD_OUTPUT),
        (StoreUnavailable("away"), Reason.NODE_LOST),
        (OSError(errno.EIO, "the disk"), Reason.NODE_LOST),
    ],
)
def test_what_users_choose_blames_no_node(error: Exception, reason: Reason) -> None:
    strikes: list[str] = []
    ended: list[Ending] = []
    node = SimpleNamespace(
        log=structlog.get_logger(),
        strike=lambda what, _detail, _account: strikes.append(what),
        missed=lambda: pytest.fail("nothing is missing"),
    )
    ends: Any = SimpleNamespace(_node=node, _conclude=lambda _block, _index, ending, *_: ended.append(ending))
    Ends._written(ends, block(), 0, Ending(), error)
    assert [ending.reason for ending in ended] == [reason]
    assert bool(strikes) is (reason is Reason.NODE_LOST)


def test_outputs_that_a_user_cannot_store_fill_no_log() -> None:
    lines: list[str] = []
    log = SimpleNamespace(error=lambda event, **_: lines.append(event), info=lambda event, **_: lines.append(event))
    ends: Any = SimpleNamespace(_node=SimpleNamespace(log=log), _conclude=lambda *_: None)
    for _ in range(1000):
        Ends._written(ends, block(), 0, Ending(), ValueTooLarge("6 GiB"))
    assert 0 < len(lines) < 200
