"""One coordinator, its caller and its guard: a link that died is replaced once, also while the client is being closed."""

from __future__ import annotations

import math
import threading
import time
from typing import Any

from rmgr.adapters.zookeeper.session import LinkState, SessionCoordinator


class Wire:
    """A link that only notes that it was ended."""

    session_timeout_s = 4.0
    session = (0, b"")
    last_answer_s = -math.inf
    last_error = ""

    def __init__(self) -> None:
        self.ended = threading.Event()

    def end(self, _timeout_s: float) -> None:
        self.ended.set()

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} was not to be used")


class Client(SessionCoordinator):
    """Opens links when it is let."""

    def __init__(self, *, guarded: bool = False) -> None:
        self.now_s = 0.0
        self.wires: list[Wire] = []
        self.let, self.opening = threading.Event(), threading.Event()
        self.let.set()
        self.failures = 0
        super().__init__("", clock=lambda: self.now_s, guarded=guarded)

    def _open(self, session: tuple[int, bytes] | None) -> Any:
        self.opening.set()
        assert self.let.wait(60)
        if self.failures:
            self.failures -= 1
            raise OSError("no file is left")
        self.wires.append(Wire())
        return self.wires[-1]

    def lose_link(self) -> None:
        self.link_changed(self._link, LinkState.DEAD)
        self.now_s += 60.0


def test_a_client_closed_while_its_guard_opens_another_link_leaves_none_behind() -> None:
    client = Client()
    client.opening.clear()
    client.let.clear()
    client.lose_link()
    guard = threading.Thread(target=client.guard, daemon=True)
    guard.start()
    assert client.opening.wait(60)
    closer = threading.Thread(target=client.close, daemon=True)
    closer.start()
    client.let.set()
    guard.join(60)
    closer.join(60)
    assert len(client.wires) == 2
    assert all(wire.ended.is_set() for wire in client.wires)


def test_a_closed_client_opens_no_link() -> None:
    client = Client()
    client.lose_link()
    client.close()
    client.guard()
    assert [wire.ended.is_set() for wire in client.wires] == [True]


def test_a_link_that_cannot_be_opened_is_tried_again_by_a_guard_that_lives_on() -> None:
    client = Client(guarded=True)
    first, client.failures = client.wires[0], 1
    client.lose_link()
    assert first is client.wires[0]
    end_s = time.monotonic() + 60
    while len(client.wires) < 2:
        assert time.monotonic() < end_s
        client.now_s += 60.0
        time.sleep(0.01)
    client.close()
    assert [wire.ended.is_set() for wire in client.wires] == [True, True]
    assert client.failures == 0
