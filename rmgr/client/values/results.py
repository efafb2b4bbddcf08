"""Turns the outcome of a task into a value or an exception for who waits for it. Decoded in the caller's thread."""

from __future__ import annotations

import hashlib
import pickle
from concurrent.futures import CancelledError
from typing import Protocol

import msgspec

from rmgr.coord.protocol import keys
from rmgr.coord.protocol.ports import Encoding, Store
from rmgr.errors import DataLost, PickleFailed, TaskFailed
from rmgr.model.base.states import Reason, State
from rmgr.model.tasks.outcome import Outcome
from rmgr.procedures.authentic import LOST

#: Lines of a failed task's output that its error shows.
TAIL_LINES = 10


#: What a call raises to end its own process is no order to end this one.
_ENDS = (SystemExit, KeyboardInterrupt, GeneratorExit)
#: What unpickling raises, which runs code of users; Ctrl-C is another's word.
_RAISED = (Exception, SystemExit, GeneratorExit)


class Settled(msgspec.Struct, eq=False, gc=False):
    """End of a task, as little as must be kept of it. (Millions of them pass.)

    node: "" when it never ran.
    """

    outcome: Outcome
    node: str
    attempt: int


class Where(Protocol):
    """A submission, and the store that has its large values."""

    @property
    def number(self) -> int: ...
    @property
    def store(self) -> Store: ...


def value_of(settled: Settled, where: Where, timeout_s: float | None) -> object:
    """The value of a COMPLETED task. Large values are fetched from the store.

    Raises: DataLost, StoreUnavailable; PickleFailed when it cannot be unpickled here.
    """
    outcome = settled.outcome
    if outcome.error.startswith(LOST):
        why = outcome.error.partition(": ")[2]
        raise DataLost(f"task {where.number}_{outcome.index} completed, but {why}", hint="submit it again")
    if outcome.value_size >= 0:
        return _stored_value(settled, where, 60.0 if timeout_s is None else max(1.0, timeout_s))
    if not outcome.pickled:
        return outcome.value
    if not outcome.value:
        return None  # a command, or the keyed form: there is nothing to return
    try:
        return pickle.loads(outcome.value)  # noqa: S301 - results of the user's own functions, decoded in the user's process
    except _RAISED as error:  # code of users: __setstate__ may raise anything
        raise _unreadable(f"the result of task {where.number}_{outcome.index}", error) from error


def _stored_value(settled: Settled, where: Where, timeout_s: float) -> object:
    outcome = settled.outcome
    task, key = f"{where.number}_{outcome.index}", keys.output(where.number, outcome.index, settled.attempt)
    found = where.store.get_noted_many([key], largest=outcome.value_size, timeout_s=timeout_s).get(key)
    if found is None:
        raise DataLost(f"the result of task {task} ({key}) is missing from the data store", hint="submit it again")
    data, about = found
    if data is None or (outcome.value_sha256 is not None and hashlib.sha256(data).digest() != outcome.value_sha256):
        raise DataLost(f"the result of task {task} ({key}) in the data store is not what its node has stored", hint="submit it again")
    return load(data, about.encoding, f"the result of task {task}")


def load(data: bytes, encoding: Encoding, what: str) -> object:
    """Bytes of the store -> object. Raises PickleFailed naming `what`."""
    if encoding is not Encoding.PICKLE:
        return data
    try:
        return pickle.loads(data)  # noqa: S301 - as above
    except _RAISED as error:  # as above
        raise _unreadable(what, error) from error


def _unreadable(what: str, error: BaseException) -> PickleFailed:
    why = f"{what} cannot be unpickled here: {type(error).__name__}: {error}"
    return PickleFailed(why, hint="is the module that defines it importable here?")


def error_of(settled: Settled, number: int, *, loses: bool = False) -> BaseException:
    """The exception of a task that did not complete: its own, with the traceback there as cause, or TaskFailed.

    Args:
        loses: always TaskFailed, also when the task raised (what `wait_all` raises; its own exception is then the cause). So it is for
            exceptions that would end this process, or a generator of it, in silence.
    """
    outcome = settled.outcome
    if outcome.state is State.CANCELLED:
        return CancelledError(f"task {number}_{outcome.index} was cancelled")
    raised = raised_by(outcome)
    if raised is not None and not loses and not isinstance(raised, _ENDS):
        return raised
    failed = TaskFailed(
        _sentence(settled, number),
        task_id=f"{number}_{outcome.index}",
        reason=str(outcome.reason),
        attempts=max(1, settled.attempt),
        node=settled.node,
        log_tail=log_tail(outcome),
        work_exit_code=outcome.exit_code,
        hint=_KEYWORDS.get(outcome.reason) or f"rmgr logs {number}_{outcome.index}",
    )
    failed.__cause__ = raised
    return failed


def raised_by(outcome: Outcome) -> BaseException | None:
    """The exception that the task raised, None when it did not end so or it cannot be rebuilt here."""
    if not outcome.value or outcome.reason not in {Reason.EXCEPTION, Reason.BAD_OUTPUT, Reason.START_FAILED}:
        return None
    try:
        error = pickle.loads(outcome.value)  # noqa: S301 - as above
    except _RAISED:  # as above; its summary is in the outcome
        return None
    return error if isinstance(error, BaseException) else None


#: How a limit is moved: TaskQueue and Executor take the same keywords.
_KEYWORDS = {
    Reason.TIME_LIMIT: "a longer limit: TaskQueue(f, time=SECONDS or '15m'), and the same of Executor",
    Reason.OUT_OF_MEMORY: "say what it needs: TaskQueue(f, memory=BYTES or '2G'), and the same of Executor",
}


def _sentence(settled: Settled, number: int) -> str:
    outcome = settled.outcome
    where = f" on {settled.node}" if settled.node else ""
    again = f", attempt {settled.attempt}" if settled.attempt > 1 else ""
    what = outcome.error or (f"exit code {outcome.exit_code}" if outcome.exit_code is not None else "no details")
    return f"task {number}_{outcome.index} failed{where}{again}: {outcome.reason} ({what})"


def log_tail(outcome: Outcome) -> str:
    """The last lines of its output, stderr before stdout."""
    for stream in (1, 0):
        data = outcome.log[stream].strip()
        if data:
            return b"\n".join(data.splitlines()[-TAIL_LINES:]).decode("utf-8", "replace")
    return ""
