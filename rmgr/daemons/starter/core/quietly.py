"""Messages to a Starter's loop after which no node has to settle."""

from __future__ import annotations

from collections.abc import Callable


class Quietly:
    """A message that changes nothing for which the nodes would settle, unless `do` returns True."""

    __slots__ = ("_do", "is_quiet")

    def __init__(self, do: Callable[[], bool | None]) -> None:
        self._do = do
        self.is_quiet = True  #: once it was handled

    def __call__(self) -> None:
        self.is_quiet = False  # where it raises
        self.is_quiet = not self._do()


def was_quiet(message: Callable[[], None]) -> bool:
    """No node has to settle after this message, which was handled."""
    return isinstance(message, Quietly) and message.is_quiet
