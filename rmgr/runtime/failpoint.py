"""Failpoints: named places where a test makes a process die, stop, wait or fail. Without RMGR_FAILPOINT they do nothing.

RMGR_FAILPOINT=name:n=kill|stop|delay:S|until:FILE|error (comma separated): the n-th pass of `failpoint(name)` triggers, n from 1, default
1. kill: SIGKILL to this process; stop: SIGSTOP; delay: sleeps S seconds; until: sleeps until FILE exists, for a minute at most, while its
sessions live on; error: raises FailpointError.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import dataclass

from rmgr.errors import ConfigError, RmgrError

VARIABLE = "RMGR_FAILPOINT"
_ACTIONS = ("kill", "stop", "delay", "until", "error")
_WITH_ARGUMENT = ("delay", "until")
_UNTIL_S, _LOOK_S = 60.0, 0.05


class FailpointError(RmgrError):
    """Raised by a failpoint whose action is `error`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailpointTrigger:
    """Action at the `nth` pass of a failpoint."""

    nth: int
    action: str
    seconds: float = 0.0
    file: str = ""


def parse(text: str) -> dict[str, tuple[FailpointTrigger, ...]]:
    """Returns the triggers in the variable's value, by failpoint. Raises: ConfigError."""
    found: dict[str, tuple[FailpointTrigger, ...]] = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        where, equals, what = entry.partition("=")
        name, _, nth = where.partition(":")
        action, _, argument = what.partition(":")
        try:
            file = argument if action == "until" else ""
            trigger = FailpointTrigger(nth=int(nth or 1), action=action, seconds=0.0 if file else float(argument or 0), file=file)
        except ValueError:
            trigger = FailpointTrigger(nth=0, action="")
        if not name or not equals or trigger.nth < 1 or action not in _ACTIONS or (action in _WITH_ARGUMENT) != bool(argument):
            msg = f"{VARIABLE}: '{entry}' is not name:n=kill|stop|delay:SECONDS|until:FILE|error"
            raise ConfigError(msg)
        found[name] = (*found.get(name, ()), trigger)
    return found


class Failpoints:
    """The failpoints of one process, with the number of passes of each. Thread-safe."""

    def __init__(self, text: str) -> None:
        self._triggers = parse(text)
        self._passes: dict[str, int] = {}
        self._lock = threading.Lock()

    def hit(self, name: str) -> None:
        """Counts a pass of `name`, and triggers."""
        triggers = self._triggers.get(name)
        if triggers is None:
            return
        with self._lock:
            passes = self._passes[name] = self._passes.get(name, 0) + 1
        for trigger in triggers:
            if trigger.nth == passes:
                _act(name, trigger)


def _act(name: str, trigger: FailpointTrigger) -> None:
    match trigger.action:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "delay":
            time.sleep(trigger.seconds)
        case "until":
            end_s = time.monotonic() + _UNTIL_S
            while not os.path.exists(trigger.file) and time.monotonic() < end_s:
                time.sleep(_LOOK_S)
        case _:
            msg = f"failpoint {name}, pass {trigger.nth}"
            raise FailpointError(msg)


_ACTIVE = Failpoints(os.environ[VARIABLE]) if os.environ.get(VARIABLE) else None


def failpoint(name: str) -> None:
    """Marks a place where a test may interfere. Cost if RMGR_FAILPOINT is unset: one comparison."""
    if _ACTIVE is not None:
        _ACTIVE.hit(name)
