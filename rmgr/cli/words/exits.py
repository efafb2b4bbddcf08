"""Maps the end of work to the exit code of the command that waited for it (cli.md section 6)."""

from __future__ import annotations

from collections.abc import Iterable

from rmgr.model.base.states import LOSSES, Reason, State

TIME_LIMIT = 124
INFRASTRUCTURE = 125
CANCELLED = 130
_KILLED = 128 + 9

_INFRASTRUCTURE = LOSSES | {Reason.POISON}

#: For the help of commands that wait.
WORK_EXITS = """\
the work's own code (of several the highest; after --max-fails of those that failed),
128+N on signal N, 124 its time limit,
125 infrastructure (its node or data were lost for good), 1 an exception, 127 no such command (126: it cannot run),
130 cancelled, or detached by Ctrl-C; 2 usage, 3 no such id, 5 service unavailable, 6 --timeout ran out"""


def exit_code_of(state: State, reason: str, exit_code: int | None) -> int:
    """Exit code for one task (or one submission) that has ended.

    Args:
        exit_code: of a command; negative or below 128 with reason SIGNAL it is the signal's number.
    Returns: 0 for COMPLETED; 130 cancelled; 124 time limit; 125 the cluster's fault; 128+N signal N; else the work's
        own code, as a shell's for a command that does not exist (127) or cannot run (126); 1 where it has none (an exception).
    """
    if state is State.COMPLETED:
        return 0
    if state is State.CANCELLED:
        return CANCELLED
    if reason == Reason.TIME_LIMIT:
        return TIME_LIMIT
    if reason in _INFRASTRUCTURE:
        return INFRASTRUCTURE
    if exit_code is not None and exit_code < 0:
        return 128 - exit_code
    if reason == Reason.SIGNAL:
        return _KILLED if not exit_code else exit_code if exit_code > 128 else 128 + exit_code
    if reason == Reason.OUT_OF_MEMORY:
        return _KILLED
    if reason in {Reason.EXIT_CODE, Reason.NONE, Reason.START_FAILED} and exit_code:
        return exit_code
    return 1


def highest(codes: Iterable[int]) -> int:
    """The exit code for several: the highest."""
    return max(codes, default=0)
