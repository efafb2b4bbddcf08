"""The whole exception tree: every error that crosses a layer of rmgr, with its code (cli.md section 5) and a hint.

A message says what happened, and to which id; `hint` says what to type next.
"""

from __future__ import annotations

from _pickle import PicklingError  # `pickle` itself would cost each command 3 ms
from collections.abc import Iterable

#: What parsers of text (`json`, `tomllib`) raise for unreadable text: a plain ValueError for numbers of thousands of digits, an
#: ArithmeticError for decimals with too large an exponent, a RecursionError for nesting thousands deep.
UNREADABLE_TEXT = (ValueError, ArithmeticError, RecursionError, MemoryError)


class RmgrError(Exception):
    """Root of the tree. `code` is the machine-readable error code, `exit_code` that of the command line."""

    code = "INTERNAL"
    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        if hint:
            self.add_note(f"hint: {hint}")  # shown in tracebacks, so that scripts also say what to do next

    def __reduce__(self) -> tuple[object, ...]:
        """Pickles with its attributes: errors travel between processes."""
        return (_rebuild, (type(self), self.message, self.__dict__))


def _rebuild(cls: type[RmgrError], message: str, state: dict[str, object]) -> RmgrError:
    error = cls.__new__(cls)
    Exception.__init__(error, message)
    error.__dict__.update(state)
    return error


def nearest(name: str, known: Iterable[str], otherwise: str = "", *, cutoff: float = 0.6) -> str:
    """Returns for the hint about a name that does not exist the one that was probably meant; else `otherwise`, or all of them."""
    names = sorted(map(str, known))  # of an enumeration the values, as they are typed
    close = closest(name, names, cutoff=cutoff)
    return f"did you mean {close[0]!r}?" if close else otherwise or f"known: {', '.join(names) or 'none'}"


def meant(name: str, known: Iterable[str], *, cutoff: float = 0.5) -> str:
    """Returns for the end of a message the name that was probably meant, for hints that list all of them; else nothing."""
    return "".join(f"; did you mean {one}?" for one in closest(name, known, cutoff=cutoff))


def closest(name: str, known: Iterable[str], most: int = 1, *, cutoff: float = 0.6) -> list[str]:
    """Returns up to `most` known names whose likeness to `name`, capitals or not, is `cutoff` at least: the most similar first."""
    import difflib  # typing errors are rare

    by_small = {one.lower(): one for one in known}
    return [by_small[one] for one in difflib.get_close_matches(name[:64].lower(), by_small, most, cutoff)]


# -- errors of the caller ---------------------------------------------------------------------------------------------


class UsageError(RmgrError):
    """A malformed request: unknown name, bad duration, bad array, ..."""

    code = "USAGE"
    exit_code = 2


class InvalidRecord(UsageError):
    """A record or name with a value that rmgr never writes; the message names the place, the field, and valid values."""


class ConfigError(UsageError):
    """An invalid configuration file or variable; the message names file and line."""


class Infeasible(RmgrError):
    """No node of the cluster can ever satisfy the request."""

    code = "INFEASIBLE"
    exit_code = 2


class NotFound(RmgrError):
    """No such id, queue, node or key."""

    code = "NOT_FOUND"
    exit_code = 3


class PermissionDenied(RmgrError):
    """The user may not do this."""

    code = "PERMISSION"
    exit_code = 4


class StateConflict(RmgrError):
    """The item is not in a state that allows the operation, or another process changed it meanwhile."""

    code = "CONFLICT"
    exit_code = 1


class KeyExists(StateConflict):
    """An output key exists already, and `overwrite=True` is not set."""


class ValueTooLarge(RmgrError):
    """A value above 5 GiB, or something else above its limit."""

    code = "RESOURCE_EXHAUSTED"
    exit_code = 7


class RequestTooLarge(RmgrError):
    """A multi or znode above the caps; refused before it is sent."""

    code = "RESOURCE_EXHAUSTED"
    exit_code = 7


class QueueFull(RmgrError):
    """The queue holds its maximum of pending blocks."""

    code = "RESOURCE_EXHAUSTED"
    exit_code = 7


class LimitReached(RmgrError):
    """One user has, or wants, more of a shared resource than the settings allow; the message names the limit and its value."""

    code = "RESOURCE_EXHAUSTED"
    exit_code = 7


class Throttled(LimitReached, QueueFull):
    """A limit that soon lifts by itself: clients try again."""


class QuotaReached(RmgrError):
    """ZooKeeper's quota of a subtree is used up, and nothing was changed. The message names the subtree."""

    code = "RESOURCE_EXHAUSTED"
    exit_code = 7


class PickleFailed(UsageError, PicklingError):
    """A function, argument or result that cannot be pickled; the message names it. Programs that expect `pickle.PicklingError` catch it."""


class VersionMismatch(UsageError):
    """A Python or package version that cannot run the work; the message names both versions."""


# -- what rmgr depends on -----------------------------------------------------------------------------------------------


class Unavailable(RmgrError):
    """A required part does not answer."""

    code = "UNAVAILABLE"
    exit_code = 5


class NotConnected(Unavailable):
    """No cluster is configured or running."""


class CoordinationUnavailable(Unavailable):
    """ZooKeeper did not answer within the deadline."""


class StoreUnavailable(Unavailable):
    """The data store did not answer within the deadline, or refused."""


class WrongCluster(Unavailable):
    """The ensemble or the store belongs to another cluster, or was wiped (the cluster id changed)."""


class DaemonFailed(RmgrError):
    """A daemon could not answer because of a defect of its own, which its log shows; asking again would most likely fail as well."""


class DataLost(RmgrError):
    """A stored value is incomplete or its hash differs."""

    code = "INTERNAL"
    exit_code = 125


class RowGone(DataLost):
    """A row that was written before its task was committed is gone: the store was emptied, or lost it."""


class DeadlineExceeded(RmgrError, TimeoutError):
    """The caller's own timeout ran out; that changed nothing."""

    code = "UNAVAILABLE"
    exit_code = 6


class SubmitUnknown(RmgrError):
    """The submission may or may not be committed; sending it again with the same token is safe."""

    code = "UNKNOWN_OUTCOME"
    exit_code = 8

    def __init__(self, message: str, *, token: str, task_id: str = "", hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.token = token
        self.task_id = task_id


# -- the work itself ---------------------------------------------------------------------------------------------------


class TaskFailed(RmgrError):
    """A task ended FAILED.

    Attributes: task_id ("42_7"), reason (a name of `model.states.Reason`), attempts (their number), node (the last one), log_tail
        (last lines of its output), work_exit_code (of a command, else None), exit_code (of `rmgr`).
    """

    code = "INTERNAL"
    exit_code = 1

    def __init__(
        self,
        message: str,
        *,
        task_id: str,
        reason: str,
        attempts: int = 1,
        node: str = "",
        log_tail: str = "",
        work_exit_code: int | None = None,
        hint: str = "",
    ) -> None:
        super().__init__(message, hint=hint)
        self.task_id = task_id
        self.reason = reason
        self.attempts = attempts
        self.node = node
        self.log_tail = log_tail
        self.work_exit_code = work_exit_code


class CallFailed(RmgrError):
    """The function of a live call raised, or ended its process; the message is its traceback as text."""


class CallTimeout(DeadlineExceeded):
    """A live call reached its deadline: it never ran, or was killed; the message says which."""


class NoServer(Unavailable):
    """No server offers the function of a live call, and nothing was sent."""


class CallLost(RmgrError):
    """A live call may have run, and its answer will not come."""

    code = "UNKNOWN_OUTCOME"
    exit_code = 8


class RemoteTraceback(Exception):
    """The `__cause__` of an exception from a task: its traceback there, as text."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f'\n"""\n{self.text}"""'


class RemoteError(RmgrError):
    """Stands for an exception of a task that could not travel (its class or contents cannot be pickled or rebuilt).

    Attributes: type_name (of the original), traceback (its text there).
    """

    def __init__(self, message: str, *, type_name: str = "", traceback: str = "", hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.type_name = type_name
        self.traceback = traceback
