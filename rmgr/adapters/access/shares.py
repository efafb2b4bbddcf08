"""Places in a server that its users share: none may have them all, however many one asks for or does not give back."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable


class Shares:
    """`most` places at once, three quarters of them for one user, or fewer. Thread-safe.

    Args:
        reserved: places that only operators get. of_one: what the settings give one user, 0 = no more than said above.
    """

    def __init__(self, most: int, *, reserved: int = 0, of_one: Callable[[], int] = lambda: 0) -> None:
        self.most = most
        self._for_all = most - reserved
        self._of_one = of_one
        self._taken: Counter[str] = Counter()
        self._changed = threading.Condition()

    def __len__(self) -> int:
        """How many are taken."""
        return self._taken.total()

    @property
    def of_one(self) -> int:
        """How many one user may have."""
        return min(self._of_one() or self.most, self.most - self.most // 4)

    def taken(self, user: str) -> int:
        """How many he has."""
        return self._taken[user]

    def take(self, user: str, timeout_s: float = 0.0, *, is_operator: bool = False) -> bool:
        """Takes a place; False when there is none for him within `timeout_s`."""
        end_s = time.monotonic() + timeout_s
        most = self.most if is_operator else self._for_all
        with self._changed:
            while self._taken[user] >= self.of_one or self._taken.total() >= most:
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

    def greediest(self, user: str) -> str | None:
        """Who is to make room for him: whoever has the most places, and more than he would have then; None = he waits his turn."""
        with self._changed:
            [(other, most)] = self._taken.most_common(1) or [("", 0)]
            return other if other != user and self._taken.get(user, 0) + 1 < most and self._taken.get(user, 0) < self.of_one else None

    def _forget(self, user: str) -> None:
        if not self._taken[user]:
            del self._taken[user]
