"""Jittered exponential back-off: how long to wait before the n-th attempt, so that many who failed together come back apart."""

from __future__ import annotations

import random

from rmgr.runtime import machine


class Backoff:
    """Delays that grow by `factor` from `first_s` to `most_s`, each drawn between half of it and all of it.

    Args:
        rng: where the jitter comes from; tests pass a seeded one.
    """

    def __init__(self, first_s: float = 0.1, most_s: float = 5.0, *, factor: float = 2.0, rng: random.Random | None = None) -> None:
        if not 0 < first_s <= most_s or factor < 1:
            msg = f"back-off from {first_s} to {most_s} s by {factor}"
            raise ValueError(msg)
        self._first_s = first_s
        self._most_s = most_s
        self._factor = factor
        self._draw = rng.uniform if rng is not None else machine.uniform
        self._next_s = first_s
        self.attempts = 0

    def next_s(self) -> float:
        """Seconds to wait now; each call counts as one more failure."""
        full_s = self._next_s
        self._next_s = min(self._most_s, full_s * self._factor)
        self.attempts += 1
        return full_s * self._draw(0.5, 1.0)

    def reset(self) -> None:
        """It worked: the next failure starts from the beginning."""
        self._next_s = self._first_s
        self.attempts = 0
