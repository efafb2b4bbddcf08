"""Limits who may hold a thread of a server, and for how long: callers that send no request, read nothing, or make many calls.

gRPC's Python server waits for the request of a call on a thread of its pool, without a deadline, before it asks any interceptor of ours:
a few hundred calls whose clients send headers and nothing else would mute a daemon for ever. Here every method takes a stream, so that
gRPC runs the handler at once; the Doorkeeper checks the caller, and only then does the thread wait for the (first) request. Callers that
send none hold few threads, and give way to others (`Requests`). Of a leader's or Starter's threads, people share the part that is not
reserved for daemons and operators (`Turnstile`). Calls whose other ends read nothing, or send nothing, are ended (`Stalls`).

Requests are decoded here, too, not on gRPC's single thread that takes all calls, and not by gRPC, which logs a traceback for each that
cannot be read: its call ends with INVALID_ARGUMENT, and the daemon is told who made it.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any, Protocol

import grpc

from rmgr.adapters.access.auth import Caller, Handler, Refused, Single, Wrapper, answer_with, caller_of, fail, wrapped
from rmgr.adapters.access.limits import Bounds
from rmgr.errors import DaemonFailed, RmgrError, Throttled, UsageError
from rmgr.model.identity import Role

_Decode = Callable[[grpc.ServicerContext, object], object]
#: Seconds that a request may take to come: a message of 2 MiB at 100 kB/s.
REQUEST_S = 20.0
#: Seconds for which a caller's only call is not ended in favour of another: a request normally follows its headers within a millisecond.
_YOUNG_S = 0.03
_LOOK_S = 0.5


class Cancellable(Protocol):
    """A call, seen from either end."""

    def cancel(self) -> object:
        """Ends the call."""


class Stalls:
    """Calls that wait for their other ends; those that wait too long are ended. Thread-safe; has a thread only while there are such calls.

    The time in which this process stood still does not count: what came meanwhile has not been read yet.

    Args: most_s: how long one message may wait to be taken, or to come. cut: called for every call thus ended.
    """

    def __init__(self, most_s: float, cut: Callable[[], None] = lambda: None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.most_s = most_s
        self._cut = cut
        self._clock = clock
        self._stood_s = 0.0  #: time in which this process stood still
        self._lock = threading.Lock()
        self._left: deque[int] = deque()  # a garbage collection may end a call at any moment: that is carried out by who has the lock next
        self._numbers = itertools.count()
        self._waiting: dict[int, tuple[float, Cancellable]] = {}  # (since when, call), the oldest first
        self._looks = False

    def __len__(self) -> int:
        """Number of waiting calls."""
        with self._lock:
            self._settle()
            return len(self._waiting)

    def watched(self, context: Cancellable, messages: Iterable[Any]) -> Iterator[Any]:
        """Yields the messages; ends the call if one of them waits too long. Cost: 1 us a message."""
        for message in messages:
            with self.waited(context):
                yield message

    @contextmanager
    def waited(self, context: Cancellable) -> Iterator[None]:
        """Ends the call if the block, which waits for the call's other end, takes too long. Cost: 2 us."""
        number = self.begin(context)
        try:
            yield
        finally:
            self.leave(number)

    def begin(self, context: Cancellable) -> int:
        """Counts a call as waiting; returns the number to give to `leave`."""
        with self._lock:
            return self._add(context)

    def leave(self, number: int) -> None:
        """Notes that a call waits no longer: the request has come, or the call is over. Idempotent; finalizers may call it."""
        self._left.append(number)

    # The others are called under the lock.

    def _add(self, context: Cancellable) -> int:
        self._settle()
        number = next(self._numbers)
        self._waiting[number] = self._now_s(), context
        if not self._looks:
            with suppress(RuntimeError):  # no thread can be started: the next call tries again
                threading.Thread(target=self._look, name="stalls", daemon=True).start()
                self._looks = True
        return number

    def _settle(self) -> None:
        """Forgets the calls that have left."""
        while self._left:
            self._forget(self._left.popleft())

    def _forget(self, number: int) -> None:
        self._waiting.pop(number, None)

    def _now_s(self) -> float:
        return self._clock() - self._stood_s

    def _look(self) -> None:
        """Checks for late calls as long as any wait."""
        looked_s = time.monotonic()
        while True:
            time.sleep(_LOOK_S)
            now_s = time.monotonic()
            stood_s, looked_s = now_s - looked_s - _LOOK_S, now_s
            with self._lock:
                if stood_s > _LOOK_S:
                    self._stood_s += stood_s
                self._settle()
                if not self._waiting:
                    self._looks = False
                    return
                before_s = self._now_s() - self.most_s
                late = [(number, context) for number, (since_s, context) in self._waiting.items() if since_s < before_s]
                for number, _ in late:
                    self._forget(number)
            for _, context in late:
                self._cut()
                context.cancel()


class WaitingRoom(Stalls):
    """Calls whose request has not come.

    When `most` wait, a new call takes the place of the oldest call of the caller with the most; the greediest caller itself is refused.
    If every caller has just one, which came just now, up to `most` more are admitted. Cost of a call: about 2 us.
    """

    def __init__(self, most: int, most_s: float = REQUEST_S, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(most_s, clock=clock)
        self._most = most
        self._whose: dict[int, str] = {}
        self._counts: Counter[str] = Counter()

    def enter(self, who: str, context: Cancellable) -> int:
        """As `begin`, for a caller. Raises Throttled."""
        with self._lock:
            self._settle()
            ended = self._make_room(who) if len(self._waiting) >= self._most else None
            number = self._add(context)
            self._whose[number] = who
            self._counts[who] += 1
        if ended is not None:
            ended.cancel()
        return number

    def _forget(self, number: int) -> None:
        super()._forget(number)
        who = self._whose.pop(number, "")
        self._counts[who] -= 1
        if self._counts[who] <= 0:
            del self._counts[who]

    def awaited(self, messages: Iterator[object], context: grpc.ServicerContext) -> Iterator[object]:
        """Yields the messages unchanged; waits for each here. Raises Throttled."""
        who = name_of(context)
        while True:
            number = self.enter(who, context)
            try:
                message = next(messages, None)
            finally:
                self.leave(number)
            if message is None:
                return
            yield message

    def _make_room(self, who: str) -> Cancellable | None:
        """Returns the call to end in favour of a new one of `who`, if any. Cost: O(waiting calls)."""
        most, mine = max(self._counts.values()), self._counts.get(who, 0)
        if mine and mine + 1 >= most:
            raise Throttled(f"{mine} calls of {who} wait for what they ask", hint="send the request with the call, or fewer calls at once")
        number = next(at for at, other in self._whose.items() if self._counts[other] == most)
        since_s, context = self._waiting[number]
        if most > 1 or self._now_s() - since_s >= _YOUNG_S:
            self._forget(number)
            return context
        if len(self._waiting) >= 2 * self._most:
            raise Throttled("this daemon waits for what many calls ask", hint="try again in a moment")
        return None


class Requests(Wrapper):
    """Stands between the check of the caller and the count of its calls.

    Args: threads: of the server; an eighth of them may wait. refused: called for every request that cannot be read.
    """

    def __init__(self, threads: int, most_s: float = REQUEST_S, *, refused: Refused | None = None) -> None:
        super().__init__()
        self._room = WaitingRoom(max(1, threads // 8), most_s)
        self._refused = refused or (lambda *_: None)

    def _wrap(self, handler: Handler, method: str) -> Handler:
        decode = partial(self._decoded, method, handler.request_deserializer) if handler.request_deserializer is not None else None
        if handler.stream_stream is not None:  # sessions, tunnels and terminals are counted before they are read
            return self._stream(handler, decode)
        if handler.stream_unary is not None:
            return self._with_first_request(handler, decode, method)
        return self._whole(handler, decode, method) if handler.unary_unary is not None else self._parts(handler, decode, method)

    def _whole(self, handler: Handler, decode: _Decode | None, method: str) -> Handler:
        answer = handler.unary_unary

        def whole(requests: Iterator[object], context: grpc.ServicerContext) -> object:
            try:
                return answer(self._one(requests, decode, context), context)
            except Exception as error:
                _tell_defect(context, method, error)
                raise

        return Single(True, False, None, handler.response_serializer, stream_unary=whole)

    def _parts(self, handler: Handler, decode: _Decode | None, method: str) -> Handler:
        answer = handler.unary_stream

        def parts(requests: Iterator[object], context: grpc.ServicerContext) -> Iterator[object]:
            try:
                yield from answer(self._one(requests, decode, context), context)
            except Exception as error:
                _tell_defect(context, method, error)
                raise

        return Single(True, True, None, handler.response_serializer, stream_stream=parts)

    def _stream(self, handler: Handler, decode: _Decode | None) -> Handler:
        answer = handler.stream_stream

        def stream(requests: Iterator[object], context: grpc.ServicerContext) -> object:
            return answer(requests if decode is None else map(partial(decode, context), requests), context)

        return grpc.stream_stream_rpc_method_handler(stream, response_serializer=handler.response_serializer)

    def _with_first_request(self, handler: Handler, decode: _Decode | None, method: str) -> Handler:
        """Waits for the first of many requests; the others are waited for where their sender is counted."""
        answer = handler.stream_unary

        def gathered(requests: Iterator[object], context: grpc.ServicerContext) -> object:
            first = self._next(requests, context)
            whole = requests if first is None else itertools.chain((first,), requests)
            try:
                return answer(whole if decode is None else map(partial(decode, context), whole), context)
            except Exception as error:
                _tell_defect(context, method, error)
                raise

        return grpc.stream_unary_rpc_method_handler(gathered, response_serializer=handler.response_serializer)

    def _one(self, requests: Iterator[object], decode: _Decode | None, context: grpc.ServicerContext) -> object:
        data = self._next(requests, context)
        if data is None:
            fail(context, UsageError("the call has ended without a request"))
        return data if decode is None else decode(context, data)

    def _decoded(self, method: str, decode: Callable[[object], object], context: grpc.ServicerContext, data: object) -> object:
        """Returns the request. Raises what handlers, and threads that read for them, take for a caller who has gone."""
        try:
            return decode(data)
        except Exception as error:  # noqa: BLE001 - whatever a decoder raises: the bytes are the caller's
            told = UsageError(f"the request cannot be read: {error!r}"[:200], hint="rmgr version there and here")
        self._refused(method, caller_of(context).who, told)
        with suppress(Exception):  # sets the status, and raises a bare Exception
            fail(context, told)
        raise grpc.RpcError(told.message)

    def _next(self, requests: Iterator[object], context: grpc.ServicerContext) -> object:
        """Returns the next message, or None if there is none. Raises what silently ends the call if its client is gone or too slow."""
        try:
            number = self._room.enter(name_of(context), context)
        except Throttled as error:
            fail(context, error)
        try:
            return next(requests, None)
        finally:
            self._room.leave(number)


def _tell_defect(context: grpc.ServicerContext, method: str, error: Exception) -> None:
    """Makes what a handler should not have raised its answer; gRPC logs it. Without one the daemon would seem unreachable, and be asked
    again and again.
    """
    if context.code() is None and not isinstance(error, grpc.RpcError):  # else it has an answer, or its caller has gone
        words = f"{method.rpartition('/')[2]} failed there: {type(error).__name__}: {error}"
        answer_with(context, DaemonFailed(words, hint="this is a defect of rmgr: the log of that daemon shows where; please report it"))


def name_of(context: grpc.ServicerContext) -> str:
    """Returns the name under which calls count together: a person's, a daemon's; in an open cluster, a connection's."""
    caller = caller_of(context)
    who = caller.who
    return str(context.peer()) if who is None else f"{who.role} {who.name}"


# -- shares --------------------------------------------------------------------------------------------------------------------


#: Calls that last as long as their callers like.
_STREAMS = frozenset({"/rmgr.v1.Node/Logs", "/rmgr.v1.Terminal/Attach"})
#: Methods that are rationed elsewhere (calls, by gateways), or never wait.
_FREE = ("/grpc.health.v1.Health/", "/rmgr.v1.Metaserver/Pick", "/rmgr.v1.Metaserver/Report")
#: Longest wait (s) of a call for its turn.
_LONGEST_S = 10.0


class Turnstile(Wrapper):
    """Args: bounds: limits of each user. threads: of the server: three eighths each for streams and calls of people."""

    def __init__(self, bounds: Bounds, threads: int) -> None:
        super().__init__()
        self._bounds = bounds
        self._streams = bounds.places("streams", max(2, threads * 3 // 8))
        at_once = max(2, threads * 3 // 16)
        self._calls = bounds.turns("calls", at_once=at_once, of_one=at_once - at_once // 4, most=at_once)

    def _wrap(self, handler: Handler, method: str) -> Handler:
        if method.startswith(_FREE):
            return handler
        admitted = partial(self._admitted, is_stream=method in _STREAMS)

        def admitting(behaviour: Callable[..., Any]) -> Callable[..., Any]:
            def whole(request: object, context: grpc.ServicerContext) -> object:
                with admitted(context):
                    return behaviour(request, context)

            def parts(request: object, context: grpc.ServicerContext) -> Iterator[object]:
                with admitted(context):
                    yield from behaviour(request, context)

            return parts if handler.response_streaming else whole

        return wrapped(handler, admitting)

    @contextmanager
    def _admitted(self, context: grpc.ServicerContext, *, is_stream: bool) -> Iterator[None]:
        """Admits daemons; people if there is a place or a turn for them, else ends the call by an exception."""
        caller = caller_of(context)
        with ExitStack() as stack:
            if caller.is_open or caller.on_behalf_of is not None or caller.who is None or _is_person(caller):
                name, is_operator = _name(caller), caller.is_certified_operator
                try:
                    self._bounds.spend(caller.user)
                    if is_stream:
                        stack.enter_context(self._bounds.place("streams", name, self._streams, is_operator=is_operator))
                    else:
                        wait_s = min(_LONGEST_S, context.time_remaining() or _LONGEST_S)
                        stack.enter_context(self._calls.turn(name, wait_s, is_operator=is_operator))
                except RmgrError as error:
                    fail(context, error)
            yield


def _is_person(caller: Caller) -> bool:
    who = caller.who
    return who is not None and (who.is_person or who.role in (Role.ADMIN, Role.JOIN))


def _name(caller: Caller) -> str:
    return caller.user or (str(caller.who.role) if caller.who is not None else "")


# -- silence -------------------------------------------------------------------------------------------------------------------


class Silence:
    """How long another end has been silent, for an owner that looks every `look_s` seconds and may stand still itself.

    Each look adds at most twice `look_s`: what came while this process stood still has not been read yet. `heard` may be called on any
    thread, `look` on one.
    """

    __slots__ = ("_clock", "_heard_s", "_looked_s", "_most_s", "_silent_s")

    def __init__(self, look_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._most_s = clock, 2 * look_s
        self._silent_s = 0.0
        self._heard_s = self._looked_s = clock()

    def heard(self) -> None:
        """Notes that something has come."""
        self._heard_s = self._clock()

    def look(self) -> float:
        """Returns for how many seconds nothing has come."""
        now_s, heard_s = self._clock(), self._heard_s
        if heard_s >= self._looked_s:
            self._looked_s, self._silent_s = heard_s, 0.0
        self._silent_s += min(now_s - self._looked_s, self._most_s)
        self._looked_s = now_s
        return self._silent_s
