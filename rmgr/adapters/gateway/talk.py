"""A stream of words between a client and a gateway (`rmgr.v1.Work/Talk`): bytes whose meaning is in `rmgr/submitter/messages.py`.

    client: TalkLink, one stream to one of its gateways at a time; when the stream fails, it goes to the next gateway
    gateway: Talks, two threads per stream; a client that reads nothing is not read from either, and is finally cut off
"""

from __future__ import annotations

import queue
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import grpc

from rmgr.adapters.access.auth import Caller, caller_of, ended_error, rebuild, revoked_error, service
from rmgr.adapters.access.limits import Bounds, Rates
from rmgr.adapters.access.server_threads import Silence
from rmgr.adapters.access.turns import Turns
from rmgr.adapters.rpc.channels import Gateways, user_metadata
from rmgr.errors import CoordinationUnavailable, RmgrError, Throttled, Unavailable
from rmgr.v1 import work_pb2 as pb
from rmgr.v1 import work_pb2_grpc

#: Most words of one message, and their bytes.
_BATCH, _BATCH_BYTES = 256, 1024 * 1024
#: Most words of a client per turn; clients that are heard at once: few, see `daemons/gateway/talking.py`.
_AT_ONCE, _HEARD_AT_ONCE = 32, 2
#: Seconds between a client's pings; of silence after which a client leaves its gateway if it knows others; and if it knows none.
PING_S, SILENCE_S, ALONE_S = 0.5, 2.0, 6.0
#: Seconds of silence after which a stream is over for the gateway.
GONE_S = 10.0
#: The longest pause between two tries (s).
_SLOWEST_S = 0.5
#: Streams that one user may open at once (more than one may have: all clients come when another gateway dies), and then per second.
OPENED_AT_ONCE, OPENED_PER_S = 200.0, 20.0
#: Cost of opening a stream, which takes two threads, in units of one request.
_OPENING_COST = 25.0
#: Seconds that a stream may take to make room for another user's; pause of a stream that is ended because its user asks for too much.
_ROOM_S, _REFUSED_S = 3.0, 0.5
#: Bytes of words waiting for one client above which the gateway does not read on for it, and the seconds that it may take none of them.
MOST_UNSENT, STALLED_S = 8 * 1024 * 1024, 20.0
#: Smaller words are bounded by their number alone.
_SMALL_BYTES = 256
#: Seconds between two looks of waiting clients at their gateway, and of gateways at their clients.
LOOK_S = 0.25
#: Seconds between two looks at a client that is not read from.
_ROOM_LOOK_S = 0.05
_END = None


# -- the client's side -----------------------------------------------------------------------------------------------------------


class Outbox:
    """Words to send on one stream. Words said after its end are dropped: their senders repeat them on the next stream."""

    def __init__(self) -> None:
        self._words: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()

    def say(self, word: bytes) -> None:
        """Queues a word; never waits."""
        self._words.put(word)

    def end(self) -> None:
        """Ends the stream after the words said so far."""
        self._words.put(_END)

    def messages(self, clock: Callable[[], float]) -> Iterator[Any]:
        """Yields messages of queued words, and pings. On gRPC's thread."""
        ping, pinged_s = 0, clock()
        while True:
            message = pb.Words()
            try:
                word = self._words.get(timeout=max(0.001, pinged_s + PING_S - clock()))
                size = 0
                while True:
                    if word is _END:
                        if message.words:
                            yield message
                        return
                    message.words.append(word)
                    size += len(word)
                    if size > _BATCH_BYTES or len(message.words) >= _BATCH:
                        break
                    word = self._words.get_nowait()
            except queue.Empty:
                pass
            if clock() - pinged_s >= PING_S:
                ping, pinged_s = ping + 1, clock()
                message.ping = ping
            if message.words or message.ping:
                yield message


class TalkLink:
    """Keeps up one stream at a time until `close`.

    Args:
        user: the user's name in an open cluster; "" = no name, or a secured cluster.
        up: called when a stream begins, with its outbox. heard: called with words from the gateway. down: called when a stream is over.
            All on the link's thread.
    """

    def __init__(
        self,
        gateways: Gateways,
        *,
        user: str = "",
        up: Callable[[Outbox], None],
        heard: Callable[[list[bytes]], None],
        down: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.failure: RmgrError | None = None  #: why the last stream has ended, until a gateway sends something again
        self.refusal: RmgrError | None = None  #: a gateway's reason to turn this client away
        self.endpoint = ""  #: endpoint of the gateway that has the stream
        self._gateways = gateways
        self._metadata = user_metadata(user)
        self._up, self._heard, self._down = up, heard, down
        self._clock = clock
        self._begun_s = clock()
        self._silence = Silence(LOOK_S, clock)
        self._call: Any = None
        self._outbox: Outbox | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rmgr-gateway", daemon=True)

    @property
    def last_error(self) -> str:
        """The message of `failure`, "" if none."""
        return self.failure.message if self.failure is not None else ""

    def start(self) -> None:
        """Begins to connect."""
        self._thread.start()

    def close(self, timeout_s: float) -> None:
        """Sends what was said before, and ends. Idempotent."""
        self._closing.set()
        outbox = self._outbox
        if outbox is not None:
            outbox.end()
        if threading.current_thread() is not self._thread and self._thread.is_alive():
            self._thread.join(timeout_s)
            self._cancel()
            self._thread.join(1.0)
        self._gateways.close()

    def _cancel(self) -> None:
        call = self._call
        if call is not None:
            call.cancel()

    def check(self) -> None:
        """Leaves a gateway that is silent. To be called every `LOOK_S` while the client waits for anything."""
        limit_s = SILENCE_S if self._has_others else ALONE_S
        if self._silence.look() > limit_s and self._call is not None:
            self._silence.heard()
            self._leave(f"the gateway at {self.endpoint} says nothing")

    def leave(self, why: str) -> None:
        """Moves to another gateway, if there is one and this one has had time to answer."""
        if self._has_others and self._clock() - self._begun_s > SILENCE_S:
            self._leave(why)

    @property
    def _has_others(self) -> bool:
        return len(self._gateways.endpoints) > 1

    def _leave(self, why: str) -> None:
        self.failure = Unavailable(why, hint="rmgr doctor")
        self._cancel()

    def _run(self) -> None:
        tries = 0
        while not self._closing.is_set():
            endpoint = self._gateways.current
            self.endpoint = endpoint
            was_up = False
            try:
                was_up = self._stream(endpoint)
            except grpc.RpcError as error:
                told = rebuild(error, endpoint)
                if not isinstance(told, Unavailable):
                    self.refusal = told
                if error.code() is not grpc.StatusCode.CANCELLED or self.failure is None:
                    self.failure = told
            except ValueError as error:  # the channel was closed
                self.failure = Unavailable(str(error))
            self._down()
            self._gateways.failed(endpoint)
            tries = 0 if was_up else tries + 1
            self._closing.wait(min(_SLOWEST_S, 0.02 * 2**tries) * random.uniform(0.5, 1.0))

    def _stream(self, endpoint: str) -> bool:
        """Runs one stream to its end; returns whether anything was heard on it."""
        outbox = Outbox()
        self._begun_s = self._clock()
        self._silence.heard()
        stub = work_pb2_grpc.WorkStub(self._gateways.channel(endpoint))
        call = self._call = stub.Talk(outbox.messages(self._clock), metadata=self._metadata)
        self._outbox = outbox
        was_up = False
        try:
            self._up(outbox)
            for message in call:
                self._silence.heard()
                if not was_up:
                    was_up, self.failure, self.refusal = True, None, None
                if message.words:
                    self._heard(list(message.words))
        finally:
            self._call = self._outbox = None
            outbox.end()
            call.cancel()
        return was_up


# -- the gateway's side ----------------------------------------------------------------------------------------------------------


class Talker(Protocol):
    """Answers one client. Called on the thread that reads its stream, one call at a time."""

    def heard(self, words: Sequence[bytes]) -> Sequence[Callable[[], None]]:
        """Handles some words in the client's turn. Returns calls to make after the turn, since they may wait: reading pauses meanwhile.

        Raises RmgrError: the stream ends with it.
        """
        ...

    def taken(self) -> None:
        """Notes that the client has taken its waiting words, so `is_full` no longer holds. On another thread."""

    def over(self) -> None:
        """Notes that the stream has ended."""


class Talks:
    """The servicer of `rmgr.v1.Work/Talk`.

    Args:
        talker: makes the `Talker` of a client. most: streams at once. is_revoked: asked now and then about the key id of a client.
        bounds: each user's limits at this gateway. count: as `GatewayMetrics.count`.
    """

    def __init__(
        self,
        talker: Callable[[Caller, Stream], Talker],
        *,
        most: int,
        is_revoked: Callable[[str], bool],
        bounds: Bounds,
        count: Callable[[str, str], None],
    ) -> None:
        self.bounds = bounds
        self.count = count
        self.turns = Turns(bounds.had, at_once=_HEARD_AT_ONCE, of_one=1, most=most, what="streams")
        self._talker = talker
        self._is_revoked = is_revoked
        self._places = bounds.places("sessions", most)
        self._opened = Rates(OPENED_PER_S, OPENED_AT_ONCE, all_=float(most))
        self._live: set[Stream] = set()
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        threading.Thread(target=self._look, name="gateway-talks", daemon=True).start()

    def __len__(self) -> int:
        return len(self._live)

    @property
    def handler(self) -> grpc.GenericRpcHandler:
        """Handler for `RpcServer.add_generic`."""
        return service(pb, "Work", Talk=self._serve)

    def stop(self, grace_s: float) -> None:
        """Takes no more streams and ends the existing ones: their clients move to another gateway."""
        self._stopping.set()
        for stream in self._streams():
            stream.end(CoordinationUnavailable("the gateway is stopping", hint="another one, or this one again, goes on"))
        end_s = time.monotonic() + grace_s
        while self._live and time.monotonic() < end_s:
            time.sleep(0.02)

    def _streams(self) -> list[Stream]:
        with self._lock:
            return list(self._live)

    def _serve(self, requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
        caller = caller_of(context)
        try:
            if self._stopping.is_set():
                raise CoordinationUnavailable("the gateway is stopping")
            self._check_opened(caller)
            self._take_place(caller)
            stream = Stream(self, caller, context)
            with self._lock:
                self._live.add(stream)
            try:
                stream.begin(self._talker(caller, stream), requests)
                yield from stream.told()
            finally:
                stream.close()
                with self._lock:
                    self._live.discard(stream)
                self._places.give_back(caller.user)
        except RmgrError as error:
            self.count("refused", type(error).__name__)
            raise

    def _check_opened(self, caller: Caller) -> None:
        """Raises Throttled if the user opens more streams than anybody needs: a stream costs more than the questions asked on it."""
        self.bounds.spend(caller.user, _OPENING_COST)
        with self._lock:
            may = self._opened.may(caller.user)
        if not may:
            message = f"{caller.user or 'this user'} opens streams to this gateway without end: {OPENED_PER_S:.0f} a second are taken"
            raise Throttled(message, hint="ask, and submit, on one connection: rmgr.connect(), or --array")

    def _take_place(self, caller: Caller) -> None:
        """Takes a place. If all are taken, the user with the most gives one up, if that is more than the caller would have. May wait.

        Raises: QueueFull, LimitReached.
        """
        user, is_operator = caller.user, caller.is_certified_operator
        if self._places.take(user, is_operator=is_operator):
            return
        greediest = self._places.greediest(user)
        if greediest is not None and (his := [stream for stream in self._streams() if stream.user == greediest]):
            his[-1].make_room()
            if self._places.take(user, _ROOM_S, is_operator=is_operator):
                return
        raise self.bounds.no_place("sessions", user, self._places, f"this gateway serves {self._places.most} clients already")

    def _look(self) -> None:
        while not self._stopping.wait(LOOK_S):
            for stream in self._streams():
                stream.look()
                who = stream.caller.identity
                if who is not None and self._is_revoked(who.key_id):
                    stream.expel(revoked_error(who))
                elif who is not None and stream.caller.has_ended:
                    stream.expel(ended_error(who))


class Stream:
    """One client's stream at the gateway."""

    def __init__(self, talks: Talks, caller: Caller, context: grpc.ServicerContext) -> None:
        self.user = caller.user
        self.caller = caller
        self._talks = talks
        self._bounds = talks.bounds
        self._context = context
        self._talker: Talker | None = None
        self._out: queue.SimpleQueue[bytes | int | RmgrError | None] = queue.SimpleQueue()
        self._lock = threading.RLock()  # reentrant: a garbage collection on this thread may end the stream
        self._unsent = 0  # bytes
        self._held = 0  # bytes of them that count as held by the user
        self._was_full = False
        self._draining = False
        self._held_up = False
        self._ping = 0  #: the last ping without an answer; a client that reads no answers cannot pile them up
        self._over = threading.Event()
        self._unheard, self._untaken = Silence(LOOK_S), Silence(LOOK_S)  #: what the client does not say, what it does not take

    # -- for its talker

    @property
    def is_full(self) -> bool:
        """Whether so much waits for the client that nothing more should be said."""
        if self._unsent <= MOST_UNSENT and self._bounds.has_room("held_bytes", self.user):
            return False
        self._was_full = True
        return True

    def say(self, word: bytes) -> None:
        """Queues a word; never waits."""
        size = len(word)
        with self._lock:
            if not self._unsent:
                self._untaken.heard()
            self._unsent += size
            if size >= _SMALL_BYTES and not self._over.is_set():
                self._held += size
                self._bounds.hold("held_bytes", self.user, size)
        self._out.put(word)

    def end(self, error: RmgrError) -> None:
        """Ends the stream with `error`, after the words said so far."""
        self._out.put(error)

    # -- life

    def begin(self, talker: Talker, requests: Iterator[Any]) -> None:
        """Begins to read."""
        self._talker = talker
        if self._context.add_callback(self._gone):
            threading.Thread(target=self._read, args=(requests,), name="gateway-reader", daemon=True).start()
        else:
            self._gone()

    def expel(self, why: RmgrError) -> None:
        """Takes no more words from a client whose key is not believed any more, and tells it why; at the second call, cuts it off."""
        if self._draining:
            self._cut("revoked")
        else:
            self._draining = True
            self.end(why)

    def make_room(self) -> None:
        """Ends the stream in favour of a user with fewer streams."""
        self._talks.count("cut", "made room")
        self.end(Throttled("the gateway is full, and others have fewer streams than you", hint="end some of your clients; rmgr limits"))
        if self._unsent > 0 or self._held_up:
            self._cut("stalled")

    def close(self) -> None:
        """Ends the stream and releases what it holds. Idempotent."""
        self._gone()
        with self._lock:
            self._release(self._held)
        if self._talker is not None:
            self._talker.over()

    def look(self) -> None:
        """Cuts off a silent or stalled client; tells the talker when there is room again."""
        unheard_s, untaken_s = self._unheard.look(), self._untaken.look()
        if self._over.is_set():
            return
        if unheard_s > GONE_S and not self._held_up:
            self._cut("silent")
        elif self._unsent > 0 and untaken_s > STALLED_S:
            self._cut("stalled")
        elif self._was_full and not self.is_full:
            self._was_full = False
            if self._talker is not None:
                self._talker.taken()

    def _cut(self, why: str) -> None:
        """Ends the stream without a message."""
        self._talks.count("cut", why)
        self._over.set()
        self._context.cancel()

    def _gone(self) -> None:
        self._over.set()
        self._out.put(_END)

    # -- from the client

    def _read(self, requests: Iterator[Any]) -> None:
        try:
            for message in requests:
                self._unheard.heard()
                if message.ping:
                    self._pong(message.ping)
                with self._bounds.had.waiting(self.user, len(message.words)):
                    for at in range(0, len(message.words), _AT_ONCE):
                        if not self._hear(message.words[at : at + _AT_ONCE]):
                            return
        except RmgrError as error:
            self.end(error)
        except grpc.RpcError:
            pass  # the client has gone
        finally:
            self._out.put(_END)

    def _hear(self, words: Sequence[bytes]) -> bool:
        """Handles some words. Returns whether the stream goes on. Raises RmgrError: it ends with that."""
        assert self._talker is not None
        self._pause(True)
        try:
            self._wait_for_room()
            self._wait_for_rate(words)
            if self._draining or self._over.is_set():
                return False
            with self._talks.turns.turn(self.user, STALLED_S):
                later = self._talker.heard(words)
            for call in later:
                call()
        finally:
            self._pause(False)
        return True

    def _pong(self, ping: int) -> None:
        was, self._ping = self._ping, ping
        if not was:
            self._out.put(ping)

    def _wait_for_room(self) -> None:
        """Waits until the client has taken its waiting words, or the user's other streams give room."""
        while self._unsent and self.is_full and not self._draining and not self._over.wait(_ROOM_LOOK_S):
            pass

    def _wait_for_rate(self, words: Sequence[bytes]) -> None:
        """Waits until the user may say these words. Raises Throttled if that would take too long."""
        try:
            wait_s = self._bounds.wait_s(self.user, sum(map(len, words)), cost=len(words))
        except Throttled:
            self._over.wait(_REFUSED_S)
            raise
        if wait_s > 0:
            self._over.wait(wait_s)

    def _pause(self, begins: bool) -> None:
        """Begins or ends a pause in reading, in which the client's silence does not count."""
        self._held_up = begins
        self._unheard.heard()

    # -- to the client

    def told(self) -> Iterator[Any]:
        """Yields messages for the client, until one side ends the stream."""
        while True:
            entry = self._out.get()
            message = pb.Words()
            size = held = 0
            while True:
                if entry is _END or isinstance(entry, RmgrError):
                    break
                if isinstance(entry, int):
                    message.ping, self._ping = self._ping, 0
                else:
                    message.words.append(entry)
                    size += len(entry)
                    held += len(entry) if len(entry) >= _SMALL_BYTES else 0
                if size >= _BATCH_BYTES:
                    break
                try:
                    entry = self._out.get_nowait()
                except queue.Empty:
                    break
            if message.words or message.ping:
                yield message  # returns when gRPC has taken it
                with self._lock:
                    self._untaken.heard()
                    self._unsent -= size
                self._release(held)
            if entry is _END:
                return
            if isinstance(entry, RmgrError):
                raise entry

    def _release(self, size: int) -> None:
        """Gives back bytes that the user held."""
        with self._lock:
            size = min(size, self._held)
            self._held -= size
            if size:
                self._bounds.give_back("held_bytes", self.user, size)
