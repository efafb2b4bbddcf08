"""The gateway's side of a session: one gRPC stream of a client carried out on one ZooKeeper session, in order.

Three threads a session: one reads the client's requests, ZooKeeper's own answers them, one sends. A client that reads
nothing is not read from either, and is cut off in the end; no session waits for another one.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import grpc

from rmgr.adapters.access.auth import Caller, caller_of
from rmgr.adapters.access.expel import expel
from rmgr.adapters.access.limits import SESSION_COST, Bounds
from rmgr.adapters.gateway.answers import RequestedCommit, check_path, committed, made, name_pieces, refused
from rmgr.adapters.gateway.bounds import ANSWER_BYTES, ROOM_LOOK_S, SMALL_BYTES, Booking, Tarpit, take_place
from rmgr.adapters.gateway.convert import error_to, multi_from, outcome_to, stat_to, znode_to
from rmgr.adapters.gateway.dial import VERSION, check_version
from rmgr.adapters.rpc.server import fail
from rmgr.adapters.zookeeper.session import SessionCoordinator
from rmgr.coord.protocol.multi import Committed, Conflict, Create, Exists, Multi, Stamped, Stat, Unknown
from rmgr.coord.protocol.ports import SessionState, Store
from rmgr.errors import CoordinationUnavailable, RequestTooLarge, RmgrError, Throttled, UsageError
from rmgr.v1 import gateway_pb2 as pb

#: Requests of one session under way; our own clients stay far below.
MAX_ASKS = 2000
#: And their bytes, if they are many: what a client has not been answered is held in memory.
MAX_ASKED_BYTES = 16 * 1024 * 1024
#: Watches of one session that have not fired.
MAX_WATCHES = 50_000
#: Answers (bytes) that wait for one client: above it nothing more of his is read.
MAX_UNSENT_BYTES = 8 * 1024 * 1024
#: A client that takes nothing for so long is cut off.
STALLED_S = 20.0
#: How long a session may be without ZooKeeper before its client is sent to another gateway.
LONELY_S = 10.0
_HELLO_S = 10.0
_BATCH_BYTES = 512 * 1024
_LONGEST_S, _TIMEOUTS_S = 3600.0, (0.5, 60.0)
_LOOK_S = 0.5


class GatewayPort(Protocol):
    """Decides for the daemon, and counts. Called on threads of the server. caller: who the client is, as its certificate says."""

    endpoint: str
    store: Store

    def open(self, caller: Caller, session_timeout_s: float) -> SessionCoordinator:
        """A session of its own, that connects in the background."""

    def permit_commit(self, caller: Caller, multi: Multi) -> RequestedCommit | Conflict:
        """What is committed for him, built by the gateway itself; or the conflict that `multi` would surely meet.

        May read itself, and so block. Raises PermissionDenied, what else may not be, CoordinationUnavailable.
        """

    def permit_create(self, caller: Caller, path: str) -> None:
        """Raises PermissionDenied."""

    def permit_read(self, caller: Caller, kind: str, path: str) -> None:
        """kind: get, stat, children. May read itself, and so block. Raises PermissionDenied, CoordinationUnavailable."""

    def permit_answer(self, caller: Caller, path: str, found: Stamped) -> None:
        """What a get has found, which may have come into being after `permit_read`. Must not block. Raises PermissionDenied."""

    def permit_store(self, caller: Caller, verb: str, keys: Sequence[str]) -> None:
        """verb: GET, PUT, DELETE, SWEEP, BIND. May read itself, and so block. Raises PermissionDenied."""

    def permit_content(self, caller: Caller, key: str, sha256: str) -> None:
        """A row that is put holds bytes of this hash. Raises PermissionDenied."""

    def store_of(self, caller: Caller) -> Store:
        """The store as he may use it. Its calls raise PermissionDenied, beside what `permit_store` refuses."""

    def visible(self, caller: Caller, keys: Sequence[str]) -> list[str]:
        """Those of `keys` that he may know of."""

    def count(self, what: str, kind: str, amount: float = 1) -> None:
        """Something happened: `asked`, `committed`, `refused`, `cut`, `stored_bytes`, `passed_on`, ... of one kind."""


class Sessions:
    """The servicer of `rmgr.v1.Gateway`.

    Args:
        most: sessions at once. is_revoked: told the key_id of a client now and then; his session ends when it says True.
        bounds: what each user may have of this gateway.
    """

    def __init__(
        self, gate: GatewayPort, *, most: int = 200, is_revoked: Callable[[str], bool] = lambda _: False, bounds: Bounds | None = None
    ) -> None:
        self._gate = gate
        self._is_revoked = is_revoked
        self._bounds = bounds or Bounds()
        self._places = self._bounds.places("sessions", most)
        self._live: set[_Session] = set()
        self._tarpit = Tarpit()
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._abandon = False
        threading.Thread(target=self._look, name="gateway-sessions", daemon=True).start()

    def __len__(self) -> int:
        return len(self._live)

    @property
    def handler(self) -> grpc.GenericRpcHandler:
        """For `RpcServer.add_generic`."""
        method = grpc.stream_stream_rpc_method_handler(
            self._serve, request_deserializer=pb.Asks.FromString, response_serializer=pb.Tells.SerializeToString
        )
        return grpc.method_handlers_generic_handler("rmgr.v1.Gateway", {"Session": method})

    def stop(self, grace_s: float, *, abandon: bool) -> None:
        """Takes no more requests, waits up to `grace_s` for what is under way, ends the streams.

        abandon: the process ends now. ZooKeeper keeps the sessions until they time out, so that clients which come back
        through another gateway meanwhile are never missed; else they are closed.
        """
        self._abandon = abandon
        self._stopping.set()
        end_s = time.monotonic() + grace_s
        with self._lock:
            live = list(self._live)
        for session in live:
            session.drain()
        for session in live:
            session.wait_idle(end_s)
            session.say(CoordinationUnavailable("the gateway is stopping", hint="another one, or this one again, goes on"))

    def _serve(self, requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
        caller = caller_of(context)
        try:
            self._bounds.spend(caller.user, SESSION_COST)
            take_place(self._bounds, self._places, caller, lambda: list(self._live))
        except RmgrError as error:
            self._gate.count("refused", type(error).__name__)
            self._tarpit.hold(error, self._stopping)
            fail(context, error)
        session = _Session(self._gate, context, self._bounds, caller.user)
        with self._lock:
            self._live.add(session)
        try:
            if self._stopping.is_set():
                raise CoordinationUnavailable("the gateway is stopping")
            yield from session.run(requests)
        except RmgrError as error:
            self._gate.count("refused", type(error).__name__)
            fail(context, error)
        finally:
            try:
                session.finish(close=not self._abandon)
            finally:
                with self._lock:
                    self._live.discard(session)
                self._places.give_back(caller.user)

    def _look(self) -> None:
        while not self._stopping.wait(_LOOK_S):
            with self._lock:
                live = list(self._live)
            now = time.monotonic()
            for session in live:
                session.look(now)
                if session.key_id and self._is_revoked(session.key_id):
                    expel(session.drain, session.say, session.cut)


class _Session:
    def __init__(self, gate: GatewayPort, context: grpc.ServicerContext, bounds: Bounds, user: str) -> None:
        self.user = user
        self._gate = gate
        self._context = context
        self._holds = Booking(bounds, user)
        self._caller = Caller()
        self._coordinator: SessionCoordinator | None = None
        self._out: queue.SimpleQueue[tuple[Any, ...] | RmgrError | None] = queue.SimpleQueue()
        self._moved = threading.Condition()
        self._unsent = 0  # bytes
        self._asked = 0  # requests without an answer
        self._asked_bytes = 0
        self._draining = False
        self._held_up = False  # the reader waits until the client has taken his answers
        self._over = threading.Event()
        now = time.monotonic()
        self._heard_s = self._sent_s = self._seen_s = now  #: last word of the client, to the client, of ZooKeeper
        self._silence_s = _HELLO_S
        self._told = SessionState.LOST

    # -- life

    @property
    def key_id(self) -> str:
        """Of the client's key, "" in an open cluster and before his first word."""
        return self._caller.identity.key_id if self._caller.identity is not None else ""

    def run(self, requests: Iterator[Any]) -> Iterator[Any]:
        """What the client is told, until one side ends it."""
        if not self._context.add_callback(self._gone):
            return
        try:
            hello = next(requests).hello
        except (StopIteration, grpc.RpcError):
            return
        check_version(hello.version)
        timeout_s = min(_TIMEOUTS_S[1], max(_TIMEOUTS_S[0], hello.session_timeout_ms / 1000))
        caller = caller_of(self._context)
        self._caller = replace(caller, claimed=hello.user) if caller.is_open else caller
        self._silence_s = timeout_s
        self._coordinator = self._gate.open(self._caller, timeout_s)
        self._gate.count("sessions", "opened")
        self._coordinator.listen(self._on_state)
        threading.Thread(target=self._read, args=(requests,), name="gateway-reader", daemon=True).start()
        yield pb.Tells(tells=[pb.Tell(welcome=pb.Welcome(version=VERSION, gateway=self._gate.endpoint))])
        yield from self._tells()

    def drain(self) -> bool:
        """Requests that come from now on are left to the client, who knows that they had no answer. Returns: it was so before."""
        was, self._draining = self._draining, True
        return was

    def wait_idle(self, end_s: float) -> None:
        """Until everything under way is answered, or `end_s`."""
        with self._moved:
            self._moved.wait_for(lambda: self._asked == 0 or self._over.is_set(), max(0.0, end_s - time.monotonic()))

    def say(self, error: RmgrError) -> None:
        """Ends the stream with `error`, after what waits to be sent."""
        self._out.put(error)

    def make_room(self) -> None:
        """Ends it for somebody who has fewer: with a word, and where that is not taken at once without one."""
        self._gate.count("cut", "made room")
        self.say(Throttled("the gateway is full, and others have fewer sessions than you", hint="end some of your clients; rmgr limits"))
        if self._unsent > 0 or self._held_up:
            self.cut("stalled")

    def finish(self, *, close: bool) -> None:
        """Ends the session, with its ephemerals, and gives back what its user held. Idempotent."""
        self._over.set()
        self._out.put(None)
        with self._moved:
            self._moved.notify_all()
        self._holds.close()
        if self._coordinator is not None and close:
            self._coordinator.close(timeout_s=2.0)

    def look(self, now: float) -> None:
        """Called now and then: cuts off whoever is silent, stalled, or without ZooKeeper."""
        if self._over.is_set():
            return
        if now - self._heard_s > self._silence_s + 1.0 and not self._held_up:
            self.cut("silent")
        elif self._unsent > 0 and now - self._sent_s > STALLED_S:
            self.cut("stalled")
        elif self._coordinator is not None and self._told is not SessionState.CONNECTED:
            if now - self._seen_s > max(LONELY_S, 2 * self._silence_s):
                self.say(CoordinationUnavailable("this gateway has lost ZooKeeper", hint="rmgr doctor"))
        else:
            self._seen_s = now

    def cut(self, why: str) -> None:
        self._gate.count("cut", why)
        self._over.set()
        self._context.cancel()

    def _gone(self) -> None:
        """The call has ended, whoever ended it."""
        self._over.set()
        self._out.put(None)
        with self._moved:
            self._moved.notify_all()

    # -- from the client

    def _read(self, requests: Iterator[Any]) -> None:
        try:
            for message in requests:
                self._heard_s = time.monotonic()
                if message.ping:
                    self._holds.wait_turn("ping", 0, self._over, self._pause)
                    self._put(("pong", message.ping), 16)
                for ask in self._holds.begin(message.asks):
                    self._take(ask)
        except grpc.RpcError:
            pass  # he is gone
        finally:
            coordinator = self._coordinator
            if coordinator is not None and not self._draining:
                coordinator.close(timeout_s=2.0)  # before he hears that it is over
            self._out.put(None)

    def _take(self, ask: Any) -> None:
        if self._draining:
            return
        kind = ask.WhichOneof("what") or ""
        size = ask.ByteSize()
        late = self._holds.wait_turn(ask.commit.name or kind, size, self._over, self._pause)
        size += ANSWER_BYTES.get(kind, 0)
        with self._moved:
            if not self._has_room():
                self._held_up = True
                while not (self._over.is_set() or self._has_room()):
                    self._moved.wait(ROOM_LOOK_S)  # his other sessions give room, too
                self._held_up, self._heard_s = False, time.monotonic()
            self._asked += 1
            self._asked_bytes += size
            self._holds.book(size)
        self._gate.count("asked", kind)
        try:
            if late is not None:
                raise late
            future = self._begin(ask, kind)
        except Exception as error:  # noqa: BLE001 - whatever he has sent, he is told, and his session goes on
            self._holds.failed(ask.id, error)
            self._gate.count("refused", type(error).__name__)
            self._answer(ask.id, error if isinstance(error, RmgrError) else RmgrError(f"{kind}: {error!r}"[:500]), size)
        else:
            future.add_done_callback(partial(self._answered, ask.id, kind, size))

    def _pause(self, begins: bool) -> None:
        """Nothing is read from him meanwhile, so his silence is none."""
        self._held_up, self._heard_s = begins, time.monotonic()

    def _has_room(self) -> bool:
        mine = self._asked < MAX_ASKS and self._asked_bytes < MAX_ASKED_BYTES and self._unsent <= MAX_UNSENT_BYTES
        return mine and (self._asked == 0 == self._unsent or self._holds.has_room())

    def _begin(self, ask: Any, kind: str) -> Future[Any]:
        coordinator = self._coordinator
        assert coordinator is not None
        if ask.session != coordinator.session_id:
            return refused(kind)
        timeout_s = min(_LONGEST_S, ask.timeout_ms / 1000)
        if kind == "commit":
            multi = multi_from(ask.commit)
            for path in (multi.proof.path, *(op.path for op in multi.ops), *((multi.guard.path,) if multi.guard else ())):
                check_path(path)
            return committed(self._gate.permit_commit(self._caller, multi), coordinator, timeout_s, name=multi.name, count=self._gate.count)
        if kind == "sync":
            return coordinator.sync(timeout_s=timeout_s)
        if kind == "create":
            path = check_path(ask.create)
            self._gate.permit_create(self._caller, path)
            return coordinator.commit(Multi(name="MAKE", ops=(Create(path),), proof=Exists(path)), timeout_s=timeout_s)
        if kind not in {"get", "stat", "children"}:
            raise UsageError("unknown kind of request", hint="is the client newer than the gateway? rmgr version")
        path = check_path(getattr(ask, kind))
        self._gate.permit_read(self._caller, kind, path)
        watch = None
        if ask.watch:
            if self._holds.watch(ask.id) > MAX_WATCHES:
                raise RequestTooLarge(f"more than {MAX_WATCHES} watches in one session")
            watch = partial(self._fired, ask.id)
        future = getattr(coordinator, kind)(path, watch=watch, timeout_s=timeout_s)
        assert isinstance(future, Future)
        return self._vetted(path, future) if kind == "get" else future

    def _vetted(self, path: str, future: Future[Any]) -> Future[Any]:
        """The answer of a get, or why the client is not told."""
        vetted: Future[Any] = Future()

        def arrived(done: Future[Any]) -> None:
            try:
                found = done.result()
                if found is not None:
                    self._gate.permit_answer(self._caller, path, found)
            except Exception as error:  # noqa: BLE001 - whatever it is, the client is told, and no callback raises
                vetted.set_exception(error)
            else:
                vetted.set_result(found)

        future.add_done_callback(arrived)
        return vetted

    # -- from ZooKeeper

    def _on_state(self, state: SessionState) -> None:
        """The client is told of every state after the first CONNECTED."""
        first = self._told is SessionState.LOST and state is not SessionState.CONNECTED
        self._told = state
        if not first:
            coordinator = self._coordinator
            assert coordinator is not None
            if state is SessionState.CONNECTED:
                self._silence_s = coordinator.session_timeout_s
            self._put(("session", state, coordinator.session_id, coordinator.session_timeout_s), 0)

    def _fired(self, number: int) -> None:
        self._holds.unwatch(number)
        self._put(("fired", number), 0)

    def _answered(self, number: int, kind: str, size: int, future: Future[Any]) -> None:
        error = future.exception()
        value: Any = error if isinstance(error, RmgrError) else RmgrError(repr(error)) if error is not None else future.result()
        if error is not None:
            self._holds.unwatch(number)
        elif kind == "create":
            value = made(value)
        self._answer(number, value, size)

    def _answer(self, number: int, value: Any, size: int) -> None:
        if isinstance(value, list):
            self._holds.charge(len(value))
            pieces = list(name_pieces(value, _BATCH_BYTES))
            for names in pieces[:-1]:
                self._put(("names", number, names, True), _BATCH_BYTES)
            self._put(("names", number, pieces[-1], False), 64 * len(pieces[-1]))
        else:
            self._put(("answer", number, value), len(value.data) if isinstance(value, Stamped) else 64)
        with self._moved:
            self._asked -= 1
            self._asked_bytes -= size
            self._holds.end(size)
            if self._held_up or not self._asked:
                self._moved.notify_all()

    # -- to the client

    def _put(self, item: tuple[Any, ...], size: int) -> None:
        with self._moved:
            if not self._unsent:
                self._sent_s = time.monotonic()
            self._unsent += size
            self._holds.book(size)
        self._out.put((size, item))

    def _tells(self) -> Iterator[Any]:
        while True:
            entry = self._out.get()
            message = pb.Tells()
            size = booked = 0
            ended: RmgrError | None = None
            while True:
                if entry is None or isinstance(entry, RmgrError):
                    ended = entry
                    break
                size += entry[0]
                booked += entry[0] if entry[0] >= SMALL_BYTES else 0
                self._write(message.tells.add(), entry[1])
                if size >= _BATCH_BYTES:
                    break
                try:
                    entry = self._out.get_nowait()
                except queue.Empty:
                    break
            if message.tells:
                yield message  # returns when gRPC has taken it
                self._sent(size, booked)
            if entry is None:
                return
            if ended is not None:
                raise ended

    def _sent(self, size: int, booked: int) -> None:
        with self._moved:
            self._sent_s = time.monotonic()
            self._unsent -= size
            self._holds.release(booked)
            if self._held_up:
                self._moved.notify_all()

    def _write(self, tell: Any, item: tuple[Any, ...]) -> None:
        match item:
            case ("answer", number, value):
                answer = tell.answer
                answer.id = number
                match value:
                    case Stamped():
                        znode_to(value, answer.znode)
                    case Stat():
                        stat_to(value, answer.stat)
                    case Committed() | Conflict() | Unknown():
                        outcome_to(value, answer.outcome)
                    case RmgrError():
                        error_to(value, answer.error)
            case ("names", number, names, more):
                tell.answer.id = number
                tell.answer.names.names.extend(names)
                tell.answer.names.more = more
            case ("fired", number):
                tell.fired = number
            case ("pong", number):
                assert self._coordinator is not None
                tell.pong.ping = number
                tell.pong.age_s = time.monotonic() - self._coordinator.last_answer_s()
            case ("session", state, number, timeout_s):
                tell.session.state, tell.session.session = state.value, number
                tell.session.session_timeout_ms = round(timeout_s * 1000)
