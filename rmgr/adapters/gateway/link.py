"""One client's stream to a gateway, as a link of `zk_session`: what kazoo's connection is to ZooKeeper.

A stream is one session: when it breaks, the next stream is another session, and whatever had no answer is read back
there. While the stream stands, the gateway's own session carries everything over a lost ZooKeeper connection, so a
SUSPENDED from there loses nothing here. Answers are delivered in the order of the requests, as ZooKeeper's are.
"""

from __future__ import annotations

import logging
import math
import os
import queue
import random
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

import grpc

from rmgr.adapters.gateway.convert import error_from, multi_to, outcome_from
from rmgr.adapters.gateway.dial import VERSION
from rmgr.adapters.rpc.gateways import Gateways, user_metadata, user_name
from rmgr.adapters.rpc.server import rebuild
from rmgr.adapters.zookeeper.link import LinkState, LinkTrouble, ZookeeperLink
from rmgr.adapters.zookeeper.wire import Acl
from rmgr.coord.protocol.ports import SessionState
from rmgr.coord.protocol.readback import Pending
from rmgr.errors import RmgrError, Unavailable
from rmgr.model.base.units import format_duration
from rmgr.v1 import gateway_pb2 as pb
from rmgr.v1 import gateway_pb2_grpc

_LOG = logging.getLogger("rmgr.gateway")
_LOG.addHandler(logging.NullHandler())

#: Requests of one message, and their data (bytes): below the message limit with room to spare.
_BATCH = 256
_BATCH_BYTES = 1024 * 1024
#: A gateway that says nothing for so long at the start is left for the next one.
_WELCOME_S = 3.0
#: Twice as long after each try in vain, so often at most: who gives up before a gateway full of work comes to him begins at its end again.
_MOST_DOUBLED = 2
_DEFAULT_TIMEOUT_S = 10.0
_SLOWEST_S = 1.0  # between two tries
_END = None


class LinkOwner(Protocol):
    """The session that the link reports to."""

    def link_changing(self, link: ZookeeperLink, state: LinkState) -> None: ...
    def link_changed(self, link: ZookeeperLink, state: LinkState) -> None: ...
    def on_answer(self, op: Any, value: object) -> None: ...


class _Request(NamedTuple):
    kind: str
    path: str
    watch: Callable[[object], None] | None = None


class _Raw(NamedTuple):
    """A znode's stat with the server's own names."""

    version: int
    mzxid: int
    mtime: int
    cversion: int
    numChildren: int  # noqa: N815 - as on ZooKeeper's wire
    ephemeralOwner: int  # noqa: N815
    czxid: int = 0  #: neither is told
    ctime: int = 0


class _Flying:
    """A request that is on its way to the gateway or back."""

    __slots__ = ("answer", "fired", "id", "names", "reply", "request", "sent_s", "session")

    def __init__(self, number: int, session: int, request: Any, reply: Any, sent_s: float) -> None:
        self.id = number
        self.session = session  # in which it was given
        self.request = request
        self.reply = reply
        self.sent_s = sent_s
        self.answer: Any = None
        self.names: list[str] | None = None
        self.fired = False


class _Absent(Exception):
    """There is no such znode."""


class GatewayLink:
    """Args:
    owner: whose link it is. gateways: where to go. session_timeout_s: asked for, then what ZooKeeper made of it.
    clock: monotonic seconds.

    Runs from `start` to `end`, trying again for ever.
    """

    def __init__(
        self, owner: LinkOwner, gateways: Gateways, *, session_timeout_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.session_timeout_s = session_timeout_s
        self.last_answer_s = -math.inf
        self.last_error = ""
        self.refusal: RmgrError | None = None  #: what the gateway said when it turned this client away
        self.is_welcome = False
        self.endpoint = ""  #: of the gateway that has this session
        self._wanted_s = session_timeout_s
        self._owner = owner
        self._gateways = gateways
        self._clock = clock
        self._session = 0
        self._up = False
        self._last_id = 0
        self._last_ping = 0
        self._pings: dict[int, float] = {}
        self._flight: deque[_Flying] = deque()
        self._by_id: dict[int, _Flying] = {}
        self._watches: dict[int, Callable[[object], None]] = {}
        self._outbox: queue.SimpleQueue[_Flying | None] = queue.SimpleQueue()
        self._call: Any = None
        self._heard_s = clock()
        self._tries = 0  # in a row that came to nothing
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gateway", daemon=True)

    def start(self) -> None:
        """Begins to connect."""
        self._thread.start()

    # -- zk_link.Link

    @property
    def session(self) -> tuple[int, bytes]:
        return self._session, b""

    def push(self, request: Any, reply: Any) -> None:
        """Under the session's lock: requests get their numbers in the order in which they are given."""
        self._last_id += 1
        flying = _Flying(self._last_id, self._session, request, reply, self._clock())
        self._flight.append(flying)
        self._by_id[flying.id] = flying
        self._outbox.put(flying)

    def drop_link(self) -> None:
        call = self._call
        if call is not None:
            call.cancel()

    def end(self, timeout_s: float) -> None:
        """Ends the stream; the gateway ends the session before it answers that."""
        self._closing.set()
        self._outbox.put(_END)
        if threading.current_thread() is not self._thread and self._thread.is_alive():
            self._thread.join(timeout_s)
            self.drop_link()
            self._thread.join(1.0)
        self._gateways.close()

    def get_request(self, path: str, watch: Callable[[object], None] | None) -> _Request:
        return _Request("get", path, watch)

    def stat_request(self, path: str, watch: Callable[[object], None] | None) -> _Request:
        return _Request("stat", path, watch)

    def children_request(self, path: str, watch: Callable[[object], None] | None) -> _Request:
        return _Request("children", path, watch)

    def sync_request(self, path: str) -> _Request:
        return _Request("sync", path)

    def create_request(self, path: str, acl: tuple[Acl, ...]) -> _Request:
        del acl  # the gateway's
        return _Request("create", path)

    def trouble(self, error: Exception) -> LinkTrouble:
        return LinkTrouble.ABSENT if isinstance(error, _Absent) else LinkTrouble.OTHER

    def check(self) -> None:
        """Leaves a gateway that has said nothing for too long. Called every 0.1 s."""
        limit_s = max(2.0, self.session_timeout_s / 2) if self._up else _WELCOME_S * 2 ** min(self._tries, _MOST_DOUBLED)
        if self._call is not None and self._clock() - self._heard_s > limit_s:
            self.last_error = f"the gateway has said nothing for {format_duration(limit_s)}"
            self._heard_s = self._clock()
            self.drop_link()

    # -- the stream's thread

    def _run(self) -> None:
        while not self._closing.is_set():
            endpoint = self._gateways.current
            was_up = False
            try:
                self._stream(endpoint)
            except grpc.RpcError as error:
                self._note(error, endpoint)
            except Exception as error:  # noqa: BLE001 - loop boundary: an answer that this release cannot read must not end all
                self.last_error = f"what the gateway at {endpoint} says cannot be read: {error!r}"
                if not self._closing.is_set():
                    _LOG.exception("gateway_stream_failed")
            finally:
                was_up = self._up
                self._lost()
            self._gateways.failed(endpoint)
            self._tries = 0 if was_up else self._tries + 1
            self._closing.wait(min(_SLOWEST_S, 0.05 * 2**self._tries) * random.uniform(0.5, 1.0))

    def _stream(self, endpoint: str) -> None:
        outbox = self._outbox = queue.SimpleQueue()
        if self._closing.is_set():
            return
        self._pings.clear()
        self._heard_s = self._clock()
        self.is_welcome = False
        stub = gateway_pb2_grpc.GatewayStub(self._gateways.channel(endpoint))
        call = self._call = stub.Session(self._asks(outbox), metadata=user_metadata())
        try:
            for tells in call:
                self._heard_s = self._clock()
                for tell in tells.tells:
                    self._on_tell(tell, endpoint)
        finally:
            self._call = None
            outbox.put(_END)
            call.cancel()

    def _note(self, error: grpc.RpcError, endpoint: str) -> None:
        code = error.code()
        if code is grpc.StatusCode.CANCELLED and self.last_error:
            return
        told = rebuild(error, endpoint)
        self.last_error = told.message
        if not isinstance(told, Unavailable):
            self.refusal = told

    def _on_tell(self, tell: Any, endpoint: str) -> None:
        match tell.WhichOneof("what"):
            case "answer":
                self._on_answer(tell.answer)
            case "fired":
                self._on_fired(tell.fired)
            case "pong":
                sent_s = self._pings.pop(tell.pong.ping, None)
                if sent_s is not None:
                    # No later than our ping came there, ZooKeeper had answered what was sent so long before.
                    self.last_answer_s = max(self.last_answer_s, sent_s - tell.pong.age_s)
            case "session":
                self._on_session(tell.session)
            case "welcome":
                self.is_welcome = True
                self.endpoint = endpoint
                self.last_error, self.refusal = "", None

    def _on_session(self, change: Any) -> None:
        match change.state:
            case SessionState.CONNECTED:
                self._session = change.session
                self.session_timeout_s = change.session_timeout_ms / 1000
                self._up = True
                self._owner.link_changed(self, LinkState.CONNECTED)
            case SessionState.SUSPENDED:
                # Requests go on to the gateway, which holds them: no `link_changing`, nothing here is in doubt.
                self._owner.link_changed(self, LinkState.CONNECTING)
            case SessionState.LOST:
                self._owner.link_changing(self, LinkState.EXPIRED)
                self._forget()
                self._owner.link_changed(self, LinkState.EXPIRED)

    def _lost(self) -> None:
        """The stream is over, and its session with it."""
        if self._up:
            self._up = False
            self._owner.link_changing(self, LinkState.CONNECTING)
            self._forget()
            self._owner.link_changed(self, LinkState.CONNECTING)

    def _forget(self) -> None:
        self._flight.clear()
        self._by_id.clear()
        watches, self._watches = self._watches, {}
        for watch in watches.values():
            watch(None)

    # -- answers

    def _on_answer(self, answer: Any) -> None:
        flying = self._by_id.get(answer.id)
        if flying is None:
            return  # of a session that is gone
        if answer.WhichOneof("value") == "names":
            flying.names = [*(flying.names or ()), *answer.names.names]
            if answer.names.more:
                return
        flying.answer = answer
        while self._flight and self._flight[0].answer is not None:
            head = self._flight.popleft()
            del self._by_id[head.id]
            self._deliver(head)

    def _on_fired(self, number: int) -> None:
        flying = self._by_id.get(number)
        if flying is not None:
            flying.fired = True  # its answer waits for its turn
        else:
            watch = self._watches.pop(number, None)
            if watch is not None:
                watch(None)

    def _deliver(self, flying: _Flying) -> None:
        answer, reply, request = flying.answer, flying.reply, flying.request
        kind = answer.WhichOneof("value")
        if kind == "error":
            error = error_from(answer.error)
            if isinstance(reply, Pending):
                self._owner.on_answer(reply, error)
            else:
                reply.set_exception(error)
            return
        if kind == "outcome":
            if answer.outcome.WhichOneof("what") != "unknown":
                self.last_answer_s = max(self.last_answer_s, flying.sent_s)
            reply.set([outcome_from(answer.outcome)])
            return
        self.last_answer_s = max(self.last_answer_s, flying.sent_s)
        watch = request.watch
        if watch is not None and not flying.fired:
            self._watches[flying.id] = watch
        match kind:
            case "znode":
                reply.set((answer.znode.data, _raw(answer.znode.stat)))
            case "stat":
                reply.set(_raw(answer.stat))
            case "names":
                reply.set(flying.names)
            case _ if request.kind in {"get", "children"}:
                reply.set_exception(_Absent(request.path))
            case _:
                reply.set(None)
        if watch is not None and flying.fired:
            watch(None)

    # -- gRPC's thread that sends

    def _asks(self, outbox: queue.SimpleQueue[_Flying | None]) -> Iterator[Any]:
        yield pb.Asks(
            hello=pb.Hello(
                version=VERSION,
                session_timeout_ms=round(self._wanted_s * 1000),
                user=user_name(),
                host=socket.gethostname(),
                pid=os.getpid(),
            )
        )
        pinged_s = -math.inf
        while True:
            message = pb.Asks()
            every_s = max(0.2, self.session_timeout_s / 8)
            try:
                flying = outbox.get(timeout=max(0.001, pinged_s + every_s - self._clock()))
                size = 0
                while True:
                    if flying is _END:
                        if message.asks:
                            yield message
                        return
                    size += self._write(message.asks.add(), flying)
                    if size > _BATCH_BYTES or len(message.asks) >= _BATCH:
                        break
                    flying = outbox.get_nowait()
            except queue.Empty:
                pass
            now = self._clock()
            if now - pinged_s >= every_s:
                pinged_s = now
                self._last_ping += 1
                self._pings[self._last_ping] = now
                message.ping = self._last_ping
            if message.asks or message.ping:
                yield message

    def _write(self, ask: Any, flying: _Flying) -> int:
        """Writes a request into a message; about how many bytes it takes there."""
        reply, request = flying.reply, flying.request
        deadline_s = getattr(reply, "deadline_s", flying.sent_s + _DEFAULT_TIMEOUT_S)
        ask.id = flying.id
        ask.session = flying.session
        ask.timeout_ms = max(1, round((deadline_s - self._clock()) * 1000))
        if not isinstance(request, _Request):
            multi_to(request.multi, ask.commit)
            return int(request.multi.size_bytes())
        ask.watch = request.watch is not None
        if request.kind == "sync":
            ask.sync = True
        else:
            setattr(ask, request.kind, request.path)
        return 64 + len(request.path)


def _raw(stat: Any) -> _Raw:
    return _Raw(stat.version, stat.mzxid, stat.mtime_ms, stat.creates * 2 - stat.children, stat.children, stat.ephemeral_owner)
