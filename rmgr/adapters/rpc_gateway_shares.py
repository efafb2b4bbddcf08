"""Places in a gateway that its users share: none of them may have them all, however many he asks for or does not give back."""

from __future__ import annotations

import threading
import time
from collections import Counter


class Shares:
    """`most` places at once, three quarters of them for one user. Thread-safe."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.of_one = most - most // 4
        self._taken: Counter[str] = Counter()
        self._changed = threading.Condition()

    def __len__(self) -> int:
        """How many are taken."""
        return self._taken.total()

    def take(self, user: str, timeout_s: float = 0.0) -> bool:
        """Takes a place; False when there is none for him within `timeout_s`."""
        end_s = time.monotonic() + timeout_s
        with self._changed:
            while self._taken[user] >= self.of_one or self._taken.total() >= self.most:
                left_s = end_s - time.monotonic()
                if left_s <= 0 or not self._changed.wait(left_s):
                    self._forget(user)
                    return False
            self._taken[user] += 1
            return True

    def give_back(self, user: str) -> None:
        """Once for each place that he has taken."""
        with self._changed:
            self._taken[user] -= 1
            self._forget(user)
            self._changed.notify_all()

    def _forget(self, user: str) -> None:
        if not self._taken[user]:
            del self._taken[user]
