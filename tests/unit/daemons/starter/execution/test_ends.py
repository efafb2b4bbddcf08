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
    ends: Any = SimpleNamespace(
        _log=structlog.get_logger(),
        _on_strike=lambda what, _detail, _account: strikes.append(what),
        _on_missing=lambda: pytest.fail("nothing is missing"),
        _conclude=lambda _block, _index, ending, *_: ended.append(ending),
    )
    block: Any = SimpleNamespace(writing=1, key=SimpleNamespace(submission=1))
    Ends._written(ends, block, 0, Ending(), error)
    assert [ending.reason for ending in ended] == [reason]
    assert bool(strikes) is (reason is Reason.NODE_LOST)
