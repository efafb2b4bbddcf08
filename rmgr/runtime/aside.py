"""Sets aside what makes a handler raise: one poisoned znode must not stop the work of others, nor fill the log.

A *subject* is what is handled: the path of a znode, or if no more is known, a place in the code. Its version tells whether it has changed
    since. Owner's thread only.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from traceback import extract_tb
from typing import TypeVarTuple

from rmgr.runtime.machine import Log

Ts = TypeVarTuple("Ts")
#: Most subjects remembered (the oldest are forgotten first), and characters of an error.
MOST, _MOST_CHARACTERS = 1000, 300


@dataclass(frozen=True, slots=True)
class SetAside:
    """A failure. version: of the subject then, None if it has none. error: class and message."""

    version: object
    error: str


class Aside:
    """Subjects that were set aside.

    Args: log: a structlog logger. failed: called once for each failure (a counter).
    """

    def __init__(self, log: Log, failed: Callable[[], None]) -> None:
        self._log = log
        self._failed = failed
        self._kept: OrderedDict[str, SetAside] = OrderedDict()

    def run(self, subject: str, version: object, what: Callable[[*Ts], object], *given: *Ts) -> bool:
        """Calls `what` for a subject. False: it raised; the error is logged once, and the subject set aside until its version changes.

        Cost: about 0.2 us.
        """
        try:
            what(*given)
        except Exception as error:  # noqa: BLE001 - the boundary of handlers: whatever it is, it is this subject's alone
            self.add(subject, version, error)
            return False
        if self._kept:
            self._kept.pop(subject, None)
        return True

    def attempt(self, what: Callable[[*Ts], object], *given: *Ts) -> Exception | None:
        """Calls `what` for an unknown subject: a failure counts for the place in the code. Returns the exception, if any."""
        try:
            what(*given)
        except Exception as error:  # noqa: BLE001 - as above
            self.add(place_of(error), None, error)
            return error
        return None

    def holds(self, subject: str, version: object) -> bool:
        """Returns whether the subject failed at this version, and must not be tried again."""
        if not self._kept:
            return False
        kept = self._kept.get(subject)
        return kept is not None and kept.version == version

    def add(self, subject: str, version: object, error: Exception) -> None:
        """Sets a subject aside after a failure."""
        found = SetAside(version, f"{type(error).__name__}: {error}"[:_MOST_CHARACTERS])
        self._failed()
        if self._kept.get(subject) != found:
            self._log.error("set_aside", path=subject, error=found.error, exc_info=error)
        self._kept[subject] = found
        self._kept.move_to_end(subject)
        if len(self._kept) > MOST:
            self._kept.popitem(last=False)

    def forget(self, subject: str) -> None:
        """Forgets a subject that is gone."""
        self._kept.pop(subject, None)

    def keep(self, parent: str, names: Iterable[str]) -> None:
        """Forgets subjects below a path that are not among `names`, since they are gone. Cost: none if nothing is set aside."""
        if self._kept:
            there = frozenset(names)
            for subject in list(self._kept):
                above, _, name = subject.rpartition("/")
                if above == parent and name not in there:
                    del self._kept[subject]

    def told(self) -> dict[str, str]:
        """Returns subject -> error."""
        return {subject: kept.error for subject, kept in self._kept.items()}

    @property
    def words(self) -> str:
        """What was set aside, in one line that names the last; "" if nothing."""
        if not self._kept:
            return ""
        subject, last = next(reversed(self._kept.items()))
        more = f", and {len(self._kept) - 1} more before" if len(self._kept) > 1 else ""
        return f"{subject} was set aside: {last.error}{more}"


def place_of(error: BaseException) -> str:
    """Returns where an error was raised, as a subject: `nodes.py:214`."""
    frames = extract_tb(error.__traceback__)
    return f"{frames[-1].filename.rpartition('/')[2]}:{frames[-1].lineno}" if frames else "somewhere"
