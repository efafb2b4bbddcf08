"""Calls of named functions on servers elsewhere: `rmgr.call`, `rmgr.call_async`, and the work of the command `rmgr call`.

    x = rmgr.call("linsolve", A, b, timeout=60)
    f = rmgr.call_async("linsolve", A, b); f.server, f.timing, f.result(), f.cancel()

`coord/calls/caller.py`, a pure function, decides what a call does next; this file has its thread, its streams and its clock. A call under
way holds three threads; calls beyond `AT_ONCE` wait here. Calls are not durable: work that must survive this process is submitted.
"""

from __future__ import annotations

import json
import os
import queue
import threading
from collections.abc import Sequence
from concurrent.futures import CancelledError, Executor, Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rmgr.adapters.calls.asking import Attempt, CallsClient
from rmgr.adapters.calls.links import VERSION
from rmgr.coord.calls import caller as decisions
from rmgr.coord.calls.ledger import CallId, Ending, Life, Outcome, Standing
from rmgr.errors import CallFailed, CallLost, LimitReached, NoServer, NotConnected, NotFound, RmgrError, Unavailable, UsageError
from rmgr.model import arrays
from rmgr.model.arrays import Fitting, fit_inputs, fit_outputs
from rmgr.model.interface import LENGTHS, Interface, decode_interface
from rmgr.runtime import machine
from rmgr.v1 import calls_pb2 as pb

if TYPE_CHECKING:
    from rmgr.config import Config

#: Calls of one program that run at once; the rest wait.
AT_ONCE = 64
TIMEOUT_S = 3600.0
#: How long the end of the process waits until gateways know that answers have arrived (s).
_GOODBYE_S = 2.0
#: A call that looks so long after its deadline stood still (us), and waits so long for an answer that nobody has read (s).
_STOOD_US, _GRACE_S = 1_000_000, 2.0
#: How long, and how often, a function that no server offers is looked for; how long a description read once stays valid (s).
_NOBODY_S, _LOOK_S, _FRESH_S = 10.0, 0.5, 60.0
_OUTCOMES = {
    pb.CallOutcome.OK: Outcome.RESULT,
    pb.CallOutcome.FAILED: Outcome.FAILED,
    pb.CallOutcome.TIMEOUT: Outcome.TIMEOUT,
    pb.CallOutcome.LOST: Outcome.LOST,
    pb.CallOutcome.CANCELLED: Outcome.LOST,  # not by this client, which asks for nothing after its own cancel
}


@dataclass(slots=True)
class Timing:
    """How long the parts of a call took (s).

    total: from the call to its result. arguments: transfer from the gateway to the server. waited: for a slot. ran: the function. answer:
    transfer of the result. computing, transfer: the scheduler's predictions. trace: (step, name, seconds, words), the six steps of a call.
    """

    total: float = 0.0
    arguments: float = 0.0
    waited: float = 0.0
    ran: float = 0.0
    answer: float = 0.0
    computing: float = 0.0
    transfer: float = 0.0
    trace: list[tuple[int, str, float, str]] = field(default_factory=list)


class CallFuture(Future[Any]):
    """The result of a call. server: name of the chosen server, "" before the choice. timing: durations of its parts, filled as they end."""

    def __init__(self) -> None:
        super().__init__()
        self.server = ""
        self.timing = Timing()
        self._call: _Call | None = None

    def is_of(self, call: _Call) -> None:
        """Sets the call whose result this is."""
        self._call = call

    def cancel(self) -> bool:
        """Gives the call up: the server kills it. False if it has ended."""
        if not super().cancel():
            return False
        if self._call is not None:
            self._call.put(decisions.Cancel())
        self.set_running_or_notify_cancel()
        return True


class Caller:
    """All calls of one process through the gateways of one configuration. Thread-safe.

    Raises: NotConnected where no gateway is configured.
    """

    def __init__(self, config: Config) -> None:
        from rmgr.config import user_name
        from rmgr.runtime.secured import credentials_of

        self.gateways = tuple(part.strip() for part in config.cluster.gateway.split(",") if part.strip())
        if not self.gateways:
            hint = "name it: --gateway HOST:PORT or RMGR_GATEWAY; or start one: rmgr dev --servers 2"
            raise NotConnected("calls go through a gateway, and none is configured", hint=hint)
        self.guid = bytes.fromhex(machine.guid())
        self._credentials = credentials_of(config)
        self.user = self._credentials.identity.name if self._credentials is not None else user_name()
        self.numbers = decisions.Numbers()
        self.lock = threading.Lock()
        self._clients: dict[str, CallsClient] = {}
        self._interfaces: dict[str, tuple[float, Interface]] = {}
        self._pool: Executor | None = None
        self.under_way: set[_Call] = set()
        self.ending: set[Attempt] = set()  #: have their answers; the gateway is being told so
        self.is_closed = False

    def call(self, name: str, *arguments: Any, timeout: float | None = None) -> Any:
        """Calls a function and waits for its result. Raises: as `rmgr.call`."""
        future = CallFuture()
        self._make_call(future, name, arguments, timeout).run()
        return future.result()

    def call_async(self, name: str, *arguments: Any, timeout: float | None = None) -> CallFuture:
        """Calls a function on a thread; calls beyond `AT_ONCE` wait. Checks arguments at once; arrays must not change before the end."""
        future = CallFuture()
        made = self._make_call(future, name, arguments, timeout)
        with self.lock:
            if self._pool is None:
                self._pool = machine.pool(AT_ONCE, "rmgr-calls")
            self._pool.submit(made.run)
        return future

    def close(self) -> None:
        """Closes all clients and cancels calls under way. Idempotent."""
        with self.lock:
            self.is_closed = True
            under_way, pool, self._pool = list(self.under_way), self._pool, None
        for call in under_way:
            call.put(decisions.Cancel())
        if pool is not None:
            pool.shutdown(wait=True)  # each tells its server first, within the deadline of that request
        end_s = machine.monotonic() + _GOODBYE_S
        for attempt in list(self.ending):  # else servers keep answers that have arrived here
            attempt.wait(max(0.0, end_s - machine.monotonic()))
        with self.lock:
            clients, self._clients = list(self._clients.values()), {}
        for client in clients:
            client.close()

    # -- questions ---------------------------------------------------------------------------------------------------------------

    def client(self, turn: int = 0) -> CallsClient:
        """Returns the client of the gateway number `turn`, modulo their number."""
        endpoint = self.gateways[turn % len(self.gateways)]
        with self.lock:
            if endpoint not in self._clients:
                self._clients[endpoint] = CallsClient(endpoint, user=self.user, credentials=self._credentials)
            return self._clients[endpoint]

    def asked(self, question: Any) -> Any:
        """Returns the answer of the first gateway that answers. Raises: Unavailable if none does; the gateway's refusal."""
        for turn in range(len(self.gateways)):
            try:
                return question(self.client(turn))
            except Unavailable:
                if turn == len(self.gateways) - 1:
                    raise
        raise AssertionError

    def interface(self, name: str, *, fresh: bool = False, deadline_s: float = 0.0) -> Interface:
        """Returns the interface of `name` or `name@version`. Waits up to 10 s for the first server that offers it.

        While all gateways restart, the interface that is known is used, however old; without one, a process that has called before
        waits up to 10 s for a gateway.

        Raises: NotFound, with the nearest name; NoServer; Unavailable.
        """
        known = self._interfaces.get(name)
        if known is not None and not fresh and machine.monotonic() - known[0] < _FRESH_S:
            return known[1]
        plain, _, version = name.partition("@")
        end_s = machine.monotonic() + min(_NOBODY_S, deadline_s)
        while True:
            try:
                reply = self.asked(lambda client: client.functions(plain))
            except Unavailable:
                if known is not None and not fresh:
                    return known[1]
                if not self._interfaces or machine.monotonic() >= end_s:
                    raise
                machine.sleep(_LOOK_S)
                continue
            offered = [decode_interface(view.interface) for view in reply.functions if view.servers]
            found = [one for one in offered if not version or str(one.version) == version]
            if found:
                best = max(found, key=lambda one: one.version)
                self._interfaces[name] = machine.monotonic(), best
                return best
            if reply.nearest:
                raise NotFound(f"no server offers {name!r}", hint=f"did you mean {reply.nearest!r}? rmgr functions")
            if offered:
                there = ", ".join(one.key for one in offered)
                raise NotFound(f"no server offers {name!r}", hint=f"there is {there}")
            if machine.monotonic() >= end_s:
                raise NoServer(f"no server offers {name!r}", hint="rmgr functions; rmgr servers")
            machine.sleep(_LOOK_S)

    def _make_call(self, future: CallFuture, name: str, arguments: Sequence[Any], timeout: float | None) -> _Call:
        from rmgr.client.futures import check_timeout

        limit_s = TIMEOUT_S if timeout is None else check_timeout(timeout)
        began_s = machine.monotonic()
        interface = self.interface(name, deadline_s=limit_s)
        made = _Call(self, future, interface, arguments, began_s, limit_s)
        with self.lock:
            if self.is_closed:
                raise NotConnected("these calls were closed", hint="make another Caller")
            self.under_way.add(made)
        future.is_of(made)
        return made


class _Call:
    """One call: its thread runs `run`; threads of its streams put events."""

    def __init__(
        self, caller: Caller, future: CallFuture, interface: Interface, arguments: Sequence[Any], began_s: float, limit_s: float
    ) -> None:
        self._caller, self._future = caller, future
        self._interface, self._arguments = interface, tuple(arguments)
        self._fit()
        self._began_s = began_s
        self._deadline_us = round((began_s + limit_s) * 1e6)
        self._events: queue.SimpleQueue[decisions.Event] = queue.SimpleQueue()
        self._attempt: Attempt | None = None
        self._refusal: RmgrError | None = None
        self._answer: bytearray = bytearray()
        self._named_s = 0.0
        with caller.lock:
            number = caller.numbers.take()
        self.id = CallId(caller.user, caller.guid.hex(), number)

    def _fit(self) -> None:
        """Converts the arguments. Raises: UsageError, ValueTooLarge if they do not fit the interface."""
        self._fitting: Fitting = fit_inputs(self._interface, self._arguments)
        self._parts = arrays.encode(self._fitting.values)
        lengths = sum(len(one) for one in self._fitting.values if isinstance(one, str | bytes))
        self._sizes = json.dumps(self._fitting.sizes | ({LENGTHS: lengths} if lengths else {}))

    def put(self, event: decisions.Event) -> None:
        """Adds an event. Callable from any thread."""
        self._events.put(event)

    def run(self) -> None:
        """Runs the call to its end, and gives its result or error to the future."""
        try:
            ending = self._run_steps()
            result = self._result(ending)
        except BaseException as error:
            if not self._future.cancelled():
                self._future.set_exception(error)
            if not isinstance(error, Exception):
                raise
        else:
            if not self._future.cancelled():
                self._future.set_result(result)
        finally:
            if self._attempt is not None and self._attempt not in self._caller.ending:
                self._attempt.close()
            with self._caller.lock:
                self._caller.under_way.discard(self)
                self._caller.numbers.close(self.id.number)

    def _run_steps(self) -> Ending:
        new = decisions.Calling(call=self.id, deadline_us=self._deadline_us, idempotent=self._interface.idempotent)
        call, steps = decisions.next_step(new, decisions.Begin(), _now_us())
        while True:
            for step in steps:
                if isinstance(step, decisions.Ask):
                    self._open(step)
                elif isinstance(step, decisions.Acknowledge):
                    self._acknowledge()
                elif isinstance(step, decisions.Finish):
                    return step.ending
            event: decisions.Event = decisions.Tick()
            wake_us = call.wake_us
            with suppress(queue.Empty):
                event = self._events.get(timeout=None if wake_us is None else max(0.0, (wake_us - _now_us()) / 1e6))
            if _now_us() > self._deadline_us + _STOOD_US and not isinstance(event, decisions.Answered | decisions.Cancel):
                event = self._come_meanwhile() or event
            call, steps = decisions.next_step(call, event, _now_us())

    def _come_meanwhile(self) -> decisions.Answered | decisions.Cancel | None:
        """Returns how the call has ended while this process stood still, beyond the deadline: nobody has read its answer yet."""
        end_s = machine.monotonic() + _GRACE_S
        with suppress(queue.Empty):
            while (left_s := end_s - machine.monotonic()) > 0:
                event = self._events.get(timeout=left_s)
                if isinstance(event, decisions.Answered | decisions.Cancel):
                    return event
        return None

    def _open(self, ask: decisions.Ask) -> None:
        """Opens another request in place of the current one."""
        if self._attempt is not None:
            self._attempt.close()
        caller = self._caller
        with caller.lock:
            lowest = caller.numbers.lowest
        message = pb.CallAsk(
            version=VERSION,
            guid=caller.guid,
            number=self.id.number,
            lowest=lowest,
            function=self._interface.name,
            function_version=self._interface.version,
            sizes=self._sizes,
            bytes=sum(len(memoryview(part).cast("B")) for part in self._parts),
            left_ms=max(0, ask.left_us // 1000),
            bound_server=ask.to.server if ask.to is not None else "",
            bound_life=ask.to.number if ask.to is not None else 0,
            without=[life.number for life in ask.without],
            interface=bytes.fromhex(self._interface.digest),
            attempt=ask.attempt,
        )
        self._attempt = caller.client(ask.attempt - 1).attempt(message, lambda: arrays.pieces(self._parts))
        machine.Thread(target=self._read, args=(self._attempt, ask), name="rmgr-call", daemon=True).start()

    def _read(self, attempt: Attempt, ask: decisions.Ask) -> None:
        """Turns the messages of one request into events, on a thread of its own."""
        life = ask.to
        try:
            for message in attempt.messages():
                life = self._take_message(message, ask.attempt, life)
        except LimitReached:
            self.put(decisions.NoRoom(ask.attempt))
        except Unavailable:
            self.put(decisions.Broken(ask.attempt))
        except RmgrError as error:
            self._refusal = error
            self.put(decisions.Denied(ask.attempt, error.message))
        else:
            self.put(decisions.Broken(ask.attempt))  # has no effect on a request that has its answer
        finally:
            self._caller.ending.discard(attempt)

    def _take_message(self, message: Any, attempt: int, life: Life | None) -> Life | None:
        what = message.WhichOneof("what")
        if what == "named":
            life = Life(message.named.server, message.named.life)
            self._trace(message.named)
            self.put(decisions.Named(attempt, life, message.named.known))
        elif what == "verdict" and life is not None and message.verdict.kind in {pb.Verdict.REFUSED, pb.Verdict.BARRED}:
            self.put(decisions.Rejected(attempt, life, message.verdict.reason, message.verdict.kind == pb.Verdict.REFUSED))
        elif what == "none":
            self._on_no_server(message.none, attempt)
        elif what == "over" and life is not None:
            standing = {pb.Over.ENDED: Standing.OVER, pb.Over.SILENT: Standing.SILENT}.get(message.over.kind, Standing.HEARD)
            self.put(decisions.LifeIs(life, standing))
        elif what == "outcome":
            self._outcome = message.outcome
            self._answer = bytearray()
            self._outcome_s = machine.monotonic()
            size = message.outcome.bytes
            if size > arrays.MAX_BYTES and life is not None:
                why = f"its answer has {size:,} bytes, {arrays.MAX_BYTES:,} are the most"
                self.put(decisions.Answered(self.id, life, Ending(Outcome.FAILED, why)))
        elif what == "data":
            self._answer += message.data
        if what in {"outcome", "data"} and life is not None and len(self._answer) >= self._outcome.bytes:
            self._finish(life, attempt)
        return life

    def _on_no_server(self, none: Any, attempt: int) -> None:
        if none.kind == pb.NoneNow.UNKNOWN:
            self.put(decisions.NoneOffers(attempt))
        elif none.kind == pb.NoneNow.FULL:
            self.put(decisions.NoRoom(attempt))
        else:
            try:
                self._interface = self._caller.interface(self._interface.key, fresh=True)
                self._fit()
                self.put(decisions.Broken(attempt))
            except RmgrError as error:
                self._refusal = error
                self.put(decisions.Denied(attempt, error.message))

    def _finish(self, life: Life, attempt: int) -> None:
        outcome, now_s = self._outcome, machine.monotonic()
        if outcome.kind == pb.CallOutcome.BARRED:
            self.put(decisions.Rejected(attempt, life, outcome.error, again=False))
            return
        timing = self._future.timing
        timing.arguments, timing.waited, timing.ran = outcome.in_us / 1e6, outcome.waited_us / 1e6, outcome.ran_us / 1e6
        timing.answer, timing.total = now_s - self._outcome_s, now_s - self._began_s
        words = (
            f"in {timing.arguments * 1e3:.1f}, waited {timing.waited * 1e3:.0f}, ran {timing.ran * 1e3:.0f}, out {timing.answer * 1e3:.1f}"
        )
        timing.trace.append((6, "forward", now_s - self._named_s, words))
        why = "\n".join(part for part in (outcome.error, outcome.traceback) if part)
        self.put(decisions.Answered(self.id, life, Ending(_OUTCOMES.get(outcome.kind, Outcome.LOST), why)))

    def _trace(self, named: Any) -> None:
        self._named_s = machine.monotonic()
        self._future.server = named.server
        timing = self._future.timing
        timing.computing, timing.transfer = named.pick.computing_s, named.pick.transfer_s
        if named.trace:
            timing.trace = [(step.step, step.name, step.took_us / 1e6, step.text) for step in named.trace]

    def _acknowledge(self) -> None:
        """Tells the server to forget or kill the call: on the request that brought the answer, else through any gateway."""
        if self._attempt is not None and self._answer_is_here:
            self._caller.ending.add(self._attempt)
            self._attempt.acknowledge()
            return
        with suppress(RmgrError):
            self._caller.asked(lambda client: client.end(self._caller.guid, self._caller.numbers.lowest, cancelled=[self.id.number]))

    @property
    def _answer_is_here(self) -> bool:
        return self._outcome is not None and len(self._answer) >= self._outcome.bytes

    _outcome: Any = None
    _outcome_s = 0.0

    def _result(self, ending: Ending) -> Any:
        """Returns the caller's result. Raises: CallFailed, CallTimeout, NoServer, CallLost, CancelledError; a gateway's refusal."""
        if ending.outcome is Outcome.CANCELLED:
            raise CancelledError
        if ending.outcome is Outcome.DENIED:
            raise self._refusal or CallLost(f"call {self.id} was refused: {ending.why}")
        error = decisions.error_of(self.id, ending)
        if error is not None:
            raise error
        try:
            values = fit_outputs(self._interface, arrays.decode(self._answer), self._fitting.sizes)
        except (arrays.ArraysError, UsageError) as error:
            raise CallFailed(f"call {self.id}: the answer of {self._future.server} does not fit {self._interface.key}: {error}") from None
        return values[0] if len(values) == 1 else values or None


def _now_us() -> int:
    return round(machine.monotonic() * 1e6)


_callers: dict[tuple[int, str, str], Caller] = {}
_lock = threading.Lock()


def _default() -> Caller:
    """Returns the Caller of this process (a forked child has its own) and its configuration."""
    from rmgr.config import load

    config = load()
    key = os.getpid(), config.cluster.gateway, config.security.dir
    with _lock:
        if key not in _callers:
            from rmgr.client.connection import at_end

            _callers[key] = Caller(config)
            at_end("calls", _close_all)
        return _callers[key]


def _close_all() -> None:
    """Cancels calls under way and acknowledges answers at the end of this process; leaves alone the callers of a parent process."""
    for key in [key for key in _callers if key[0] == os.getpid()]:
        _callers.pop(key).close()


def call(name: str, *arguments: Any, timeout: float | None = None) -> Any:
    """Calls a function that servers offer, and waits for its result: one output as it is, several as a tuple, none as None.

    Args:
        name: `linsolve` (the highest version), or `linsolve@1`. arguments: the inputs in order: anything that numpy converts to an array
            of the declared type, numbers, text, bytes. timeout: seconds until the call is given up; default one hour.
    Raises: NotFound, UsageError (before anything is sent), CallFailed (the function raised), CallTimeout, NoServer, CallLost (it may have
        run), PermissionDenied, NotConnected.
    """
    return _default().call(name, *arguments, timeout=timeout)


def call_async(name: str, *arguments: Any, timeout: float | None = None) -> CallFuture:
    """Starts the same call without waiting; returns a future with `.server`, `.timing` and `.cancel()`."""
    return _default().call_async(name, *arguments, timeout=timeout)
