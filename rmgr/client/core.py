"""Holds what outlives an Executor that is let go: its submission, its futures, and the rule of its end.

The Executor holds the core, never the other way round: dropping an Executor shuts it down, and its calls still end.
"""

from __future__ import annotations

import concurrent.futures as stdlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any

from rmgr.client.connection import Connection, is_ending
from rmgr.client.echo import LiveEcho, LongEcho
from rmgr.client.futures import Future
from rmgr.client.ports import TaskSpec
from rmgr.client.specs import Options, draft_of, python_environment
from rmgr.client.submission.opening import SubmissionOpening
from rmgr.client.tasks import HELD_BYTES, Tasks
from rmgr.client.throttle import OutgoingTask, Throttle
from rmgr.client.values import content
from rmgr.client.values.modules import ship
from rmgr.client.values.pickling import dump_call, dump_function, name_of
from rmgr.client.values.results import raised_by
from rmgr.client.values.scattered import Payload
from rmgr.client.waiting import giving_slot_back
from rmgr.coord.protocol.ports import Store
from rmgr.errors import NotConnected, RemoteTraceback, RmgrError
from rmgr.model.base.states import Reason, State
from rmgr.model.cluster.node import NodeState
from rmgr.model.tasks.outcome import INITIALIZER_FAILED, Fragment, Outcome
from rmgr.model.tasks.submission import Work
from rmgr.procedures.admission import admit

Output = Callable[[Store, int, Outcome, int], None]


class BrokenExecutor(RmgrError, stdlib.BrokenExecutor):
    """The initializer failed: no worker can be made, no call can run. `__cause__` is what it raised."""


class Core(Tasks):
    """The tasks of one Executor.

    Args:
        cap: most slots in use at once, None = no cap. on_output: what becomes of what calls print. is_live: it is written as it comes.
        group: workers are shared inside it only. is_named: its user has named it.
    """

    def __init__(
        self,
        connection: Connection,
        options: Options,
        *,
        cap: int | None,
        modules: tuple[ModuleType | str, ...],
        initializer: tuple[Callable[..., object], tuple[Any, ...]] | None,
        group: str,
        on_output: Output | None,
        is_live: bool = False,
        is_named: bool = True,
        timeout_s: float,
    ) -> None:
        super().__init__(connection)
        submitter = connection.submitter
        self.broken: BrokenExecutor | None = None
        self.is_shut = False
        self._timeout_s = timeout_s
        self._on_output = on_output
        self._live = LiveEcho(self) if is_live else LongEcho(self) if on_output is not None else None
        self._has_initializer = initializer is not None
        digest = ""
        if initializer is not None:
            digest = connection.functions.initializer(dump_function(initializer)[0], timeout_s=timeout_s)  # type: ignore[arg-type]
        environment = python_environment(
            python=options.python, modules=ship(submitter.store, modules, timeout_s=timeout_s), initializer=digest, group=group
        )
        draft = draft_of(options, work=Work.PYTHON, python=environment, user=submitter.cluster.user, ends_with_owner=True)
        self._draft = admit(draft, submitter.cluster.settings(timeout_s=timeout_s), submitter.cluster.nodes(timeout_s=timeout_s))
        self._opening = SubmissionOpening(submitter, self._draft, timeout_s=timeout_s)
        self._throttle = Throttle(self, cap) if cap is not None else None
        self._adding = threading.Lock()
        self._completed = False
        self._is_named = is_named

    @property
    def tasks(self) -> Core:
        """Itself: the tasks of the executor."""
        return self

    @property
    def has_pending(self) -> bool:
        """Calls were added that have not ended."""
        return bool(self._pending) or not (self._throttle is None or self._throttle.is_empty)

    @property
    def is_over(self) -> bool:
        """Shut down, and nothing is left to end."""
        return self.is_shut and not self._pending

    # -- adding

    def check_open(self) -> None:
        """Raises what stands in the way of another call."""
        if self.broken is not None:
            raise self._break(self.broken)
        if self.is_shut:
            raise RuntimeError("cannot schedule new futures after shutdown")
        if is_ending():
            raise RuntimeError("cannot schedule new futures after interpreter shutdown")

    def spec_of(self, function: Callable[..., Any]) -> TaskSpec:
        """What its calls share; the function is uploaded if the store lacks it."""
        if not callable(function):
            raise TypeError(f"{function!r} is not callable")
        digest = self.connection.functions.register(function, timeout_s=self._timeout_s)
        return TaskSpec(function=digest, resubmit=self._draft.resubmit, retries=self._draft.retries)

    def name_after(self, function: Callable[..., Any]) -> None:
        """Nobody has named it, and nothing was called before: the submission has the name of this function."""
        if not self._is_named and self._opening is not None and callable(function):
            self._is_named = True
            self._opening.draft = replace(self._opening.draft, name=name_of(function)[:200])

    def add_calls(self, spec: TaskSpec, name: str, calls: list[tuple[Any, ...]]) -> list[Future]:
        """Adds a call for each tuple of arguments."""
        return self.add(spec, [dump_call(args, {}, name) for args in calls])

    def add(self, spec: TaskSpec, payloads: Sequence[Payload], **_: Any) -> list[Future]:
        """Adds calls; their futures. The first one makes the submission."""
        if self.handle is not None:
            self.wait_room(block=True, timeout_s=None)
        with self._adding:
            self.check_open()
            if self._throttle is None:
                added = super().add(spec, payloads)
                if self._live is not None:
                    self._live.begin()
                return added
            self.opened()
            calls = [OutgoingTask(spec, *self._slim(payload), Future(self)) for payload in payloads]
            self._throttle.add(calls)
            if self._live is not None:
                self._live.begin()
            return [call.future for call in calls]

    def _slim(self, payload: Payload) -> tuple[bytes, str]:
        """(arguments, "") or, when they are large, (b"", the row that holds them)."""
        return (content.whole([payload])[0], "") if len(payload) <= HELD_BYTES else (b"", self.store_row(payload))

    def slots(self) -> int:
        """Calls that the cluster can run at once."""
        request = self._draft.request
        nodes = [node for node in self.connection.submitter.cluster.nodes() if node.state is NodeState.UP]
        return max(1, sum(node.capacity.cores // request.cores for node in nodes))

    # -- from the Submitter

    def on_outcomes(self, fragment: Fragment, outcomes: Sequence[Outcome]) -> None:
        """See `ports.Listener`."""
        if self._has_initializer and self.broken is None:
            refused = next((outcome for outcome in outcomes if _is_refusal(outcome)), None)
            if refused is not None:
                self._fail(refused)
        if (live := self._live) is not None:
            live.heard()
            for outcome in outcomes:
                attempt = outcome.attempt or fragment.attempt
                if not live.takes(outcome, attempt) and (outcome.log != (b"", b"") or outcome.log_parts != (0, 0)):
                    self._write_output(outcome, attempt)
        super().on_outcomes(fragment, outcomes)
        if self._throttle is not None:
            self._throttle.ended(outcomes)
        if self.is_shut:
            self._complete()

    def on_dead(self, error: RmgrError) -> None:
        """See `ports.Listener`."""
        super().on_dead(error)
        if isinstance(error, NotConnected):
            error = NotConnected("the connection was closed before this call was sent: it will not run")
        if self._throttle is not None:
            for future in self._throttle.take_back():
                future.break_off(error)

    def _write_output(self, outcome: Outcome, attempt: int) -> None:
        assert self._on_output is not None
        write, store, number = self._on_output, self.store, self.number
        self.call_soon(lambda: write(store, number, outcome, attempt))

    def _fail(self, outcome: Outcome) -> None:
        """No worker can be made: every call ends with the same error, and so do those to come."""
        error = BrokenExecutor(f"the initializer of the workers failed: {outcome.error}", hint=f"rmgr logs {self.number}_{outcome.index}")
        raised = raised_by(outcome)
        error.__cause__ = raised if raised is not None else RemoteTraceback(outcome.error)
        self.broken = error
        for future in self._throttle.take_back() if self._throttle is not None else ():
            future.break_off(self._break(error))
        while self._pending:
            try:
                _, future = self._pending.popitem()
            except KeyError:
                break
            future.break_off(self._break(error))
        self.call_soon(self._cancel_rest)

    def _cancel_rest(self) -> None:
        from rmgr.submitter.questions import CancelSubmission

        try:
            self.connection.asks.ask(CancelSubmission(number=self.number, detail="the initializer failed"), timeout_s=10.0)
        except RmgrError:
            return  # its tasks fail one by one instead

    def let_go(self) -> None:
        """Its Executor was dropped."""
        if not self.is_shut:
            self.shut(cancel=False)

    def _break(self, error: BrokenExecutor) -> BrokenExecutor:
        """A copy for each who raises it: tracebacks are not shared."""
        copy = BrokenExecutor(error.message, hint=error.hint)
        copy.__cause__ = error.__cause__
        return copy

    # -- futures.Source

    def cancel_futures(self, futures: Sequence[Future]) -> list[Future]:
        """See `futures.Source`."""
        if self._throttle is not None:
            for future in self._throttle.take_back(set(futures)):
                future.mark_cancelled()
            if self.is_shut:
                self._complete()
        if self.handle is None or all(future.done() for future in futures):
            return [future for future in futures if future.cancelled()]
        return super().cancel_futures(futures)

    def abandon(self, futures: list[Future]) -> None:
        """Nobody will ask for these: cancelled as far as they have not started, without waiting for the cluster."""

        def cancel() -> None:
            try:
                self.cancel_futures(futures)
            except RmgrError:
                return  # they run, and nobody looks

        if self._throttle is not None:
            for future in self._throttle.take_back(set(futures)):
                future.mark_cancelled()
        self.call_soon(cancel)

    # -- the end

    def shut(self, *, cancel: bool) -> None:
        """No call can be added. cancel: those that have not started are cancelled."""
        with self._adding:
            self.is_shut = True
        if cancel and self._throttle is not None:  # what went out counts as started, as the call queue of a process pool
            for future in self._throttle.take_back():
                future.mark_cancelled()
        elif cancel and (left := self.unfinished()):
            self.cancel_futures(left)
        self._complete()

    def _complete(self) -> None:
        if self._completed or self.handle is None or not self.connection.is_usable or self.dead is not None:
            return
        if self._throttle is None or self._throttle.is_empty:
            self._completed = True
            self.handle.complete()

    def count_left(self) -> int:
        """Calls that have not ended."""
        return len(self.unfinished()) + (len(self._throttle.waiting()) if self._throttle is not None else 0)

    def leave(self) -> None:
        """Nobody waits any more: what was sent goes on; what this process holds back to keep a cap is cancelled."""
        self.is_shut = True
        for future in self._throttle.take_back() if self._throttle is not None else ():
            future.mark_cancelled()
        self._complete()

    def wait_done(self) -> None:
        """Waits until every call has ended, and what it printed was written. In a forked child they are its parent's to wait for."""
        if self.connection.is_forked:
            return
        with giving_slot_back():
            while left := [*self.unfinished(), *(self._throttle.waiting() if self._throttle is not None else ())]:
                for future in left:
                    future.wait()
        if self._live is not None and self.connection.is_usable:
            self._live.settle(10.0)
        if self._on_output is not None and self.handle is not None and self.connection.is_usable:
            written = threading.Event()
            self.call_soon(written.set)
            written.wait(10.0)
        if self.handle is not None and self._completed and self.connection.is_usable and self.dead is None:
            try:
                self.handle.flush(10.0)
            except RmgrError:
                return  # the leader declares it complete


def _is_refusal(outcome: Outcome) -> bool:
    return outcome.state is State.FAILED and outcome.reason is Reason.START_FAILED and outcome.error.startswith(INITIALIZER_FAILED)


