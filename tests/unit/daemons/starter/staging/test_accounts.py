"""Users are looked up on a node before their work starts there, and again when their slots do not come up."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog

from rmgr.adapters.host.accounts import Account, find_account
from rmgr.adapters.host.workevents import SlotLost
from rmgr.daemons.starter.staging.accounts import Accounts, AccountsPolicy
from rmgr.runtime import machine
from tests.harness.claimed import StoreMail
from tests.harness.memory_store import MemoryStore
from tests.harness.waiting import eventually


def test_a_user_whose_directories_hang_is_looked_up_by_one_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks, answers, later_s = list[str](), threading.Event(), 0.0

    def problem(account: Account) -> str:
        looks.append(account.name)
        answers.wait(60)
        return ""

    began_s = time.monotonic()
    monkeypatch.setattr(machine, "monotonic", lambda: began_s + later_s)
    mail, reach = StoreMail(MemoryStore(str(tmp_path)), threads=2), SimpleNamespace(problem=problem)
    what: dict[str, Any] = {"log": structlog.get_logger(), "reach": reach, "clock": machine.monotonic}
    users = Accounts(AccountsPolicy(min_uid=1), mail.io, node="n1", directory=tmp_path / "own", **what)
    slot: Any = SimpleNamespace(account=find_account("nobody"), is_up=False)
    for _ in range(5):
        assert users.get("nobody") is None
        eventually(lambda: looks, "it is looked at")
        users.saw([SlotLost(slot=slot, why="", running=(), unstarted=(), expected=False)])
        later_s += 100.0
    answers.set()
    mail.until(lambda: users.get("nobody"))
    assert looks == ["nobody"]
    users.saw([SlotLost(slot=slot, why="", running=(), unstarted=(), expected=False)])
    assert users.get("nobody") is None, "something may have been closed to it since"
    mail.until(lambda: users.get("nobody"))
    assert len(looks) == 2
    mail.io.close()
