"""The guard of a client: it sleeps while nothing is under way, and misses no deadline that is given meanwhile."""

from __future__ import annotations

import threading
import time

from rmgr.adapters.zookeeper.session import Guard
from rmgr.errors import RmgrError
from tests.harness.memory import MemoryCoordinator
from tests.harness.waiting import eventually

_DEADLINE_S = 30.0


class Looks:
    """What a guard was told to look for; each look is noted."""

    def __init__(self, again_s: float | None = None) -> None:
        self.times_s: list[float] = []
        self.lock = threading.Lock()
        self.again_s = again_s
        self.raises = 0
        self.thread: threading.Thread | None = None
        self.guard = Guard(self.lock, self.look, time.monotonic)

    def look(self) -> float | None:
        self.thread = threading.current_thread()
        self.times_s.append(time.monotonic())
        if self.raises:
            self.raises -= 1
            raise OSError("a surprise")
        return None if self.again_s is None else time.monotonic() + self.again_s

    def at(self, delay_s: float) -> float:
        due_s = time.monotonic() + delay_s
        with self.lock:
            self.guard.at(due_s)
        return due_s

    def stop(self) -> None:
        """Ends the guard and shows that its thread is gone."""
        with self.lock:
            self.guard.stop()
        assert self.thread is not None
        self.thread.join(_DEADLINE_S)
        assert not self.thread.is_alive()


def test_it_sleeps_until_what_is_due_first_and_then_until_somebody_says_more() -> None:
    looks = Looks()
    looks.guard.start()
    eventually(lambda: len(looks.times_s) == 1)
    looks.at(1000.0)
    due_s = looks.at(0.3)  # earlier than what it sleeps for
    looks.at(2000.0)
    eventually(lambda: len(looks.times_s) == 2)
    assert looks.times_s[1] >= due_s
    assert looks.guard.until_s == float("inf")
    due_s = looks.at(0.2)
    eventually(lambda: len(looks.times_s) == 3)
    assert looks.times_s[2] >= due_s
    looks.stop()


def test_many_deadlines_one_after_the_other_are_looked_at_together_and_a_look_that_raises_is_repeated() -> None:
    looks = Looks(again_s=0.0)
    looks.raises = 2
    looks.guard.start()
    eventually(lambda: len(looks.times_s) >= 5)
    looks.stop()
    assert all(later - earlier >= 0.09 for earlier, later in zip(looks.times_s, looks.times_s[1:], strict=False))


def test_an_operation_given_to_an_idle_client_ends_at_its_deadline() -> None:
    client = MemoryCoordinator()
    client.get("/").result(_DEADLINE_S)
    eventually(lambda: client._guard.until_s > time.monotonic() + 5)  # it sleeps for long
    client.pause()
    given_s = time.monotonic()
    slow, fast = client.get("/", timeout_s=1000.0), client.get("/", timeout_s=0.3)
    error = fast.exception(_DEADLINE_S)
    assert isinstance(error, RmgrError)
    assert time.monotonic() - given_s >= 0.3
    assert not slow.done()
    client.close()
    assert isinstance(slow.exception(_DEADLINE_S), RmgrError)
