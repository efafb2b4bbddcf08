"""Messages to a Starter's loop after which no node has to settle."""

from __future__ import annotations

from collections.abc import Callable


class Quietly:
    """A message that changes nothing for which the nodes would settle."""

    __slots__ = ("_do",)

    def __init__(self, do: Callable[[], None]) -> None:
        self._do = do

    def __call__(self) -> None:
        self._do()
