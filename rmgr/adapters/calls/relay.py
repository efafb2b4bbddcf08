"""The gateway's service of calls: each try of a client is offered to a server, and its bytes pass from one RPC to the other.

    client --Call--> Try --offer--> ServerLink --> server
                      |  <--verdict--
      pieces of the arguments:  Call's requests --read by--> Take's answers
      pieces of the answer:     Give's requests --read by--> Call's answers

Small arguments and answers go through the server's stream, both ways.

Nothing is stored: the thread that forwards also reads, so a slow reader slows its sender down. A try costs a thread while it waits.
`proto/rmgr/v1/calls.proto` defines the results of a try and a client's next step; the client decides.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import grpc

from rmgr.adapters.access.auth import Caller, caller_of, service
from rmgr.adapters.access.limits import Bounds
from rmgr.adapters.access.server_threads import Silence, Stalls
from rmgr.adapters.calls.links import BEAT_S, SAID_BYTES, STALLED_S, VERSION, Links, ServerLink
from rmgr.coord.calls.ledger import Life, Standing
from rmgr.errors import NotFound, RmgrError, StateConflict, UsageError, VersionMismatch
from rmgr.model.arrays import PIECE_BYTES
from rmgr.v1 import calls_pb2 as pb

#: Most calls under way through one gateway; each holds up to three threads.
MAX_CALLS = 256
#: Seconds within which a server must say whether it takes a call; otherwise it is passed over.
VERDICT_S = 5.0
#: Seconds between two looks of a call that waits for room, besides those after changes.
_LOOK_S = 1.0
#: Seconds to wait for the news that a stream broke: until then, a broken stream reads like one that its sender ended.
_BROKEN_S = 1.0
#: A server that gets a call with less time left (s) than this may bar it because its time is over.
_OVER_S = 0.1
_LONGEST_S = 7 * 86400.0
#: Most calls that one message ends: far more than a program has under way.
_MOST_ENDED = 1000


_TAKES = frozenset({pb.Verdict.ACCEPTED, pb.Verdict.JOINED})
_REFUSALS = frozenset({pb.Verdict.REFUSED, pb.Verdict.BARRED})


@dataclass(frozen=True, slots=True)
class Wanted:
    """A request as the gateway understands it. function: name@version. bytes: both ways. sizes: `n=600`, for people."""

    function: str
    operations: int
    bytes: int
    sizes: str = ""
    took_s: float = 0.0  #: time it took to understand the request


class Choosing(Protocol):
    """The daemon's part. Called on threads of RPCs; may block for about a second."""

    def understood(self, caller: Caller, ask: Any) -> Wanted | Any:
        """Interprets a `pb.CallAsk`; None: no server offers it; a `pb.NoneNow`: another interface. Raises: UsageError, PermissionDenied."""

    def offering(self, wanted: Wanted) -> Sequence[ServerLink]:
        """Returns the servers that offer exactly this function, by name."""

    def pick(self, wanted: Wanted, user: str, links: Sequence[ServerLink]) -> tuple[Any, Sequence[Any]]:
        """Returns (`pb.PickReply`, trace steps 1 to 5). Never raises: without a leader it picks by itself."""

    def forwarding(self, count: int) -> None:
        """Notes that `count` bytes of arguments are about to go to a server. May block, for tests."""

    def ended(self, wanted: Wanted, link: ServerLink, outcome: Any, took_s: float, out_s: float, pick: Any) -> None:
        """Notes that a call has its answer. took_s: since its server was named; out_s: the part for the answer's way to the client."""

    def functions(self, request: Any) -> Any:
        """Returns a `pb.FunctionsReply`."""

    def servers(self, request: Any) -> Any:
        """Returns a `pb.ServersReply`."""

    def explain(self, caller: Caller, request: Any) -> Any:
        """Returns a `pb.PickReply`. Raises: NotFound, UsageError."""

    def count(self, what: str, kind: str, amount: float = 1) -> None:
        """Counts as `GatewayMetrics.count` does."""


#: The server that takes a call, the pick that chose it, and trace steps 1 to 5.
_Accepted: TypeAlias = tuple[ServerLink, Any, Sequence[Any]]


@dataclass(eq=False)
class _ServerAnswer:
    """An answer from a server: its `Give` waits until the client's RPC has read all of it.

    first: first bytes of the answer; the rest is in `parts`. context: of the `Give`, None for an answer that is complete here.
    """

    outcome: Any
    first: bytes
    parts: Iterator[Any] = field(default_factory=lambda: iter(()))
    context: grpc.ServicerContext | None = None
    at_s: float = field(default_factory=time.monotonic)
    done: threading.Event = field(default_factory=threading.Event)
    is_read: bool = False  #: the client's RPC reads it, however long that takes
    is_taken: bool = False

    def __post_init__(self) -> None:
        if self.outcome.kind not in pb.CallOutcome.Kind.values():
            words = f"what its server says of its end is no outcome ({self.outcome.kind})"
            self.outcome.CopyFrom(pb.CallOutcome(kind=pb.CallOutcome.LOST, error=words))


@dataclass(eq=False)
class Try:
    """One `Call` RPC. Events from other threads queue up in it; its own thread takes them.

    Its server's link calls `said`, `answered` and `lost`, which do not block.
    """

    caller: Caller
    ask: Any
    requests: Iterator[Any]
    context: grpc.ServicerContext
    deadline_s: float
    key: bytes = field(default_factory=lambda: os.urandom(16))
    link: ServerLink | None = None
    is_accepted: bool = False
    is_known: bool = False  #: the server already has the call
    is_said: bool = False  #: the arguments go into the server's stream
    has_ended: bool = False
    sent_s: float = 0.0  #: when the first piece of the arguments went to the server
    client_s: float = 0.0  #: time since then spent waiting for the client
    taker: grpc.ServicerContext | None = None
    events: deque[Any] = field(default_factory=deque)
    changed: threading.Condition = field(default_factory=threading.Condition)

    @property
    def id(self) -> Any:
        return pb.CallId(user=self.caller.user, guid=self.ask.guid, number=self.ask.number)

    @property
    def left_s(self) -> float:
        return self.deadline_s - time.monotonic()

    def put(self, event: Any) -> None:
        with self.changed:
            self.events.append(event)
            self.changed.notify_all()

    def take(self, timeout_s: float) -> Any:
        """Returns the next event, or None if there is none in time."""
        with self.changed:
            self.changed.wait_for(lambda: self.events, max(0.0, timeout_s))
            return self.events.popleft() if self.events else None

    def said(self, verdict: Any) -> None:
        """Takes the server's `pb.Verdict`."""
        self.put(verdict)

    def answered(self, answer: Any) -> None:
        """Takes the server's whole answer (`pb.GivePart`)."""
        self.put(_ServerAnswer(answer.outcome, answer.data))

    def lost(self) -> None:
        """Notes that the server's stream is gone."""
        self.put("lost")


class Relay:
    """The servicer of `rmgr.v1.Calls`.

    Args:
        choosing: the daemon. bounds: each user's limits at this gateway.
    """

    def __init__(self, choosing: Choosing, *, bounds: Bounds | None = None) -> None:
        self._choosing = choosing
        self._bounds = bounds or Bounds()
        self._places = self._bounds.places("remote_calls", MAX_CALLS)
        self._stalls = Stalls(STALLED_S, lambda: choosing.count("cut", "stalled"))
        self._changed = threading.Condition()
        self._changes = 0
        self.endpoint = ""
        self.links = Links(self._note_change)

    def __len__(self) -> int:
        """Number of calls under way."""
        return len(self._places)

    @property
    def handler(self) -> grpc.GenericRpcHandler:
        """Handler for `RpcServer.add_generic`."""
        choosing = self._choosing
        questions = {
            "Functions": self._asked(lambda _, request: choosing.functions(request)),
            "Servers": self._asked(lambda _, request: choosing.servers(request)),
            "Explain": self._asked(choosing.explain),
        }
        return service(pb, "Calls", Serve=self._serve, Call=self._call, Take=self._take, Give=self._give, End=self._end, **questions)

    def _note_change(self) -> None:
        with self._changed:
            self._changes += 1
            self._changed.notify_all()

    # -- servers -----------------------------------------------------------------------------------------------------------

    def _serve(self, requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
        identity = caller_of(context).identity
        with self._counted():
            yield from self.links.served(requests, context, identity.name if identity is not None else "", self.endpoint)

    def _try_of(self, key: bytes, context: grpc.ServicerContext) -> Try | None:
        """Returns the try of a key; only the server that was told a key may use it."""
        return next((one for link in self._of(context) if (one := link.tries.get(key)) is not None), None)

    def _take(self, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        """Returns the arguments for this key. Raises: NotFound, StateConflict; UsageError for a client that broke off."""
        return self._stalls.watched(context, self._arguments_for(request.key, context))

    def _arguments_for(self, key: bytes, context: grpc.ServicerContext) -> Iterator[Any]:
        one = self._try_of(key, context)
        if one is None:
            probes = (link.probe_pieces(key) for link in self._of(context))
            pieces = next((found for found in probes if found is not None), None)
            if pieces is None:
                raise NotFound("nothing is there for this key: its call has gone elsewhere or ended, or it was told to another server")
            return pieces
        with one.changed:
            if one.taker is not None or one.has_ended or one.is_said:
                raise StateConflict("these arguments were taken before: they are not kept")
            one.taker = context
        return self._arguments(one)

    def _arguments(self, one: Try) -> Iterator[Any]:
        """Reads what the client sends, on the thread that forwards it."""
        left = one.ask.bytes
        try:
            while left:
                began_s = time.monotonic()
                with self._stalls.waited(one.context):
                    message = next(one.requests)
                if one.sent_s:
                    one.client_s += time.monotonic() - began_s
                data = message.data
                left -= len(data)
                if not data or len(data) > PIECE_BYTES or left < 0:
                    raise UsageError("the arguments are not as many bytes as were announced, in pieces of up to 1 MiB")
                self._choosing.forwarding(len(data))
                one.sent_s = one.sent_s or time.monotonic()
                yield pb.Piece(data=data)
        except (StopIteration, grpc.RpcError, UsageError) as error:
            one.put("cut")
            raise UsageError(f"the client of this call went away in the middle of its arguments ({type(error).__name__})") from None

    def _of(self, context: grpc.ServicerContext) -> list[ServerLink]:
        identity = caller_of(context).identity
        return [link for link in self.links.all() if identity is None or link.identity == identity.name]

    def _give(self, requests: Iterator[Any], context: grpc.ServicerContext) -> Any:
        first = next(requests, None)
        if first is None:
            return pb.GiveReply()
        one = self._try_of(first.key, context)
        if one is None:
            for link in self._of(context):
                if link.probe_given(first.key, requests, len(first.data)):
                    return pb.GiveReply(is_taken=True)
            return pb.GiveReply()
        given = _ServerAnswer(first.outcome, first.data, requests, context)
        one.put(given)
        while not given.done.wait(BEAT_S):
            if not context.is_active() or (one.has_ended and not given.is_read):
                break
        given.done.wait(0.1)
        return pb.GiveReply(is_taken=given.is_taken)

    # -- clients -------------------------------------------------------------------------------------------------------------

    def _call(self, requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
        caller = caller_of(context)
        one: Try | None = None
        with self._counted():
            self._bounds.spend(caller.user)
            with self._bounds.place("remote_calls", caller.user, self._places, is_operator=caller.is_certified_operator):
                try:
                    one = self._begun(caller, requests, context)
                    if one is not None:
                        yield from self._stalls.watched(context, self._run_try(one))
                finally:
                    if one is not None:
                        self._forget(one)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        try:
            yield
        except RmgrError as error:
            self._choosing.count("refused", type(error).__name__)
            raise

    def _begun(self, caller: Caller, requests: Iterator[Any], context: grpc.ServicerContext) -> Try | None:
        with self._stalls.waited(context):
            try:
                ask = next(requests).ask
            except (StopIteration, grpc.RpcError):
                return None
        if ask.version != VERSION:
            raise VersionMismatch(f"this client speaks version {ask.version} of calls, the gateway {VERSION}", hint="rmgr version")
        if len(ask.guid) != 16 or not 1 <= ask.lowest <= ask.number or not ask.attempt:
            raise UsageError("a call needs the 16 bytes of its client, a number not below that client's lowest open one, and an attempt")
        one = Try(caller, ask, requests, context, time.monotonic() + min(ask.left_ms / 1000, _LONGEST_S))
        return one if context.add_callback(lambda: one.put("gone")) else None

    def _run_try(self, one: Try) -> Iterator[Any]:
        """Yields the messages of one try, from its question to its end."""
        life = Life(one.ask.bound_server, one.ask.bound_life)
        if life.number and self.links.find(life) is None:  # even if no server offers its function any more
            yield self._life_ended(life)
            return
        wanted = yield from self._understood(one)
        if wanted is None:
            return
        accepted = yield from self._offer_call(one, wanted)
        if accepted is None:
            return
        link, pick, trace = accepted
        one.is_accepted = True
        yield pb.ToCaller(named=pb.Named(server=link.name, life=link.life, pick=pick, trace=trace, known=one.is_known))
        began_s = time.monotonic()
        if one.is_said and not one.is_known:
            with suppress(UsageError):  # the try is cut then
                data = b"".join(piece.data for piece in self._arguments(one))
                link.tell(arguments=pb.GivePart(key=one.key, data=data))
        while True:
            event = one.take(min(BEAT_S, max(0.0, one.left_s)))
            if isinstance(event, _ServerAnswer):
                given_s = time.monotonic()
                yield from self._forward_answer(one, event)
                ended_s = time.monotonic()
                self._choosing.ended(wanted, link, event.outcome, ended_s - began_s, ended_s - given_s, pick)
                return
            if event == "gone":
                return
            if event in ("lost", "cut"):
                yield self._life_ended(Life(link.name, link.life))
                return
            if isinstance(event, pb.Verdict):
                if event.kind in _REFUSALS:
                    one.has_ended = True
                    yield _verdict(event, link.life)
                    return
            elif event is None:
                yield pb.ToCaller(beat=True)

    def _understood(self, one: Try) -> Generator[Any, None, Wanted | None]:
        """Returns the interpreted request, or None if the try has ended."""
        wanted = self._choosing.understood(one.caller, one.ask)
        if wanted is None:
            yield from self._wait_for_servers(one, _LOOK_S)  # its server may be starting
            wanted = self._choosing.understood(one.caller, one.ask)
        if isinstance(wanted, Wanted):
            return wanted
        yield pb.ToCaller(none=wanted or pb.NoneNow(kind=pb.NoneNow.UNKNOWN, reason=f"no server offers {one.ask.function}"))
        return None

    def _offer_call(self, one: Try, wanted: Wanted) -> Generator[Any, None, _Accepted | None]:
        """Offers the call until a server takes it. Returns (link, pick, trace), or None if the try has ended.

        Raises: UsageError if every server that offers the function has barred the call, for instance as too large.
        """
        ask = one.ask
        if ask.bound_life:
            return (yield from self._bound(one))
        full: list[ServerLink] = []
        barred: dict[int, str] = {}  # life -> why it takes no attempt of this call
        while True:
            seen = self._changes
            offering = self._choosing.offering(wanted)
            links = [link for link in offering if link.life not in ask.without and link not in full and not link.is_leaving]
            pick, trace = self._choosing.pick(wanted, one.caller.user, links) if links else (pb.PickReply(), ())
            link = next((link for link in links if link.name == pick.server), None)
            if link is not None:
                verdict = self._offer(one, link, wanted)
                if verdict is not None and verdict.kind in _TAKES:
                    return link, pick, trace
                if verdict is not None and verdict.kind == pb.Verdict.BARRED:
                    barred[link.life] = verdict.reason
                full.append(link)  # it has refused this attempt, which must not be offered to it again
                continue
            if barred and one.left_s > _OVER_S and all(link.life in barred for link in offering):
                why = next(iter(barred.values()))
                raise UsageError(f"no server takes this call of {wanted.function}: {why}", hint="rmgr functions; rmgr servers")
            yield from self._wait_for_servers(one, _LOOK_S, seen)  # the next attempt asks a server that gets room, or a new one
            reason = pick.why or (f"every server of {wanted.function} is full" if full else f"no server takes {wanted.function} now")
            yield pb.ToCaller(none=pb.NoneNow(kind=pb.NoneNow.FULL, reason=reason))
            return None

    def _bound(self, one: Try) -> Generator[Any, None, _Accepted | None]:
        """Offers the call again to the life that may have it."""
        life = Life(one.ask.bound_server, one.ask.bound_life)
        link = self.links.find(life)
        verdict = self._offer(one, link, None) if link is not None else None
        if link is None or verdict is None:
            yield self._life_ended(life)
            return None
        if verdict.kind in _TAKES:
            return link, pb.PickReply(server=link.name, life=link.life), ()
        yield _verdict(verdict, link.life)
        return None

    def _offer(self, one: Try, link: ServerLink, wanted: Wanted | None) -> Any:
        """Offers the call to a server; returns its verdict, or None if it gives none in time."""
        one.key, one.link = os.urandom(16), link  # a new key for each offer: a late answer to an earlier one finds no try
        one.is_said = one.ask.bytes <= link.said_bytes
        link.tries[one.key] = one
        name, _, version = wanted.function.partition("@") if wanted is not None else (one.ask.function, "", str(one.ask.function_version))
        offer = pb.Offer(
            key=one.key,
            id=one.id,
            lowest=one.ask.lowest,
            function=name,
            function_version=int(version or 0),
            bytes=one.ask.bytes,
            left_ms=max(0, round(one.left_s * 1000)),
            attempt=one.ask.attempt,
            said_bytes=SAID_BYTES,
            is_said=one.is_said,
        )
        link.tell(offer=offer)
        waited, most_s = Silence(_LOOK_S), min(VERDICT_S, max(0.0, one.left_s))
        while True:
            left_s = most_s - waited.look()
            event = one.take(min(_LOOK_S, left_s))
            if event is None and left_s > _LOOK_S:
                continue
            if isinstance(event, pb.Verdict) and event.key == one.key:
                one.is_known = event.kind == pb.Verdict.JOINED
                if event.kind not in _TAKES:
                    link.tries.pop(one.key, None)
                return event
            if isinstance(event, _ServerAnswer) or event == "cut":  # it has overtaken the verdict: they travel on two connections
                one.events.appendleft(event)
                one.is_known = event != "cut"
                return pb.Verdict(key=one.key, kind=pb.Verdict.JOINED if one.is_known else pb.Verdict.ACCEPTED)
            if event is None or event in ("lost", "gone"):
                link.tries.pop(one.key, None)
                return None

    def _forward_answer(self, one: Try, given: _ServerAnswer) -> Iterator[Any]:
        """Reads the server's answer, on the thread that forwards it; then the client's acknowledgement."""
        one.has_ended = given.is_read = True
        link, outcome = one.link, given.outcome
        there_s = one.client_s + (outcome.waited_us + outcome.ran_us) / 1e6  # the rest of the time the bytes were on their way
        in_s = max(0.0, given.at_s - one.sent_s - there_s) if one.sent_s else 0.0
        outcome.in_us = round(in_s * 1e6)
        left, out_s = outcome.bytes, 0.0
        try:
            yield pb.ToCaller(outcome=outcome)
            data: bytes | None = given.first
            while left:
                if not data:
                    began_s = time.monotonic()
                    data = self._more(given)
                    out_s += time.monotonic() - began_s
                left -= len(data or b"")
                if not data or len(data) > PIECE_BYTES or left < 0:
                    outcome.CopyFrom(_unlike(link.name if link is not None else "?", outcome.bytes, data, left))
                    yield pb.ToCaller(outcome=outcome)
                    break
                yield pb.ToCaller(data=data)
                data = b""
            given.is_taken = True
        except grpc.RpcError:
            return  # the stream has broken: the client asks again, and the server keeps the answer
        finally:
            given.done.set()
        if link is not None and in_s > 0 and not left:  # else the answer came before this RPC or not at all, or clocks disagree
            link.transferred(one.ask.bytes + outcome.bytes, in_s + out_s)
        with suppress(StopIteration, grpc.RpcError), self._stalls.waited(one.context):
            if next(one.requests).acknowledged and link is not None:
                link.tell(closed=pb.Closed(user=one.caller.user, guid=one.ask.guid, lowest=one.ask.lowest, numbers=[one.ask.number]))

    def _more(self, given: _ServerAnswer) -> bytes | None:
        """Returns the next bytes of the answer, or None if its server has ended it. Raises: grpc.RpcError if the stream has broken."""
        if given.context is None:
            return None
        with self._stalls.waited(given.context):
            part = next(given.parts, None)
        if part is not None:
            return bytes(part.data)
        broken = threading.Event()
        if not given.context.add_callback(broken.set) or broken.wait(_BROKEN_S):
            raise grpc.RpcError
        return None

    def _life_ended(self, life: Life) -> Any:
        """Returns what is known here of a life that does not answer."""
        standing = self.links.standing(life)
        kind = {Standing.OVER: pb.Over.ENDED, Standing.SILENT: pb.Over.SILENT, Standing.HEARD: pb.Over.ELSEWHERE}[standing]
        return pb.ToCaller(over=pb.Over(kind=kind, life=life.number))

    def _wait_for_servers(self, one: Try, most_s: float, seen: int | None = None) -> Iterator[Any]:
        """Waits until servers have changed; sends the client a beat first."""
        yield pb.ToCaller(beat=True)
        with self._changed:
            before = self._changes if seen is None else seen
            self._changed.wait_for(lambda: self._changes != before, min(most_s, max(0.0, one.left_s)))

    def _forget(self, one: Try) -> None:
        """Forgets the try when its RPC is over. Tells a server that has the call that its client is gone, unless that has the answer."""
        link = one.link
        if link is not None:
            link.tries.pop(one.key, None)
            if one.is_accepted and not one.has_ended:
                link.tell(orphan=one.id)
        one.has_ended = True
        self._note_change()

    def _end(self, request: Any, context: grpc.ServicerContext) -> Any:
        user = caller_of(context).user
        acknowledged, cancelled = set(request.acknowledged), set(request.cancelled)
        self._bounds.spend(user, 1 + len(cancelled))
        if len(acknowledged) + len(cancelled) > _MOST_ENDED:
            raise UsageError(f"{len(acknowledged) + len(cancelled):,} calls are ended at once: {_MOST_ENDED:,} are the most")
        links = self.links.all()
        for link in links:
            link.tell(closed=pb.Closed(user=user, guid=request.guid, lowest=request.lowest, numbers=acknowledged))
            for number in cancelled:
                link.tell(cancel=pb.CallId(user=user, guid=request.guid, number=number))
        return pb.EndReply(servers=len(links))

    # -- questions -------------------------------------------------------------------------------------------------------------

    def _asked(self, answer: Callable[[Caller, Any], Any]) -> Callable[[Any, grpc.ServicerContext], Any]:
        def asked(request: Any, context: grpc.ServicerContext) -> Any:
            caller = caller_of(context)
            self._bounds.spend(caller.user)
            return answer(caller, request)

        return asked


def _unlike(server: str, announced: int, data: bytes | None, left: int) -> Any:
    """Returns the outcome that replaces an answer other than announced: asked again, the server would send the same.

    data: the last piece, or None if the answer has ended. left: bytes not yet sent.
    """
    if data is None:
        why = f"fewer bytes than the {announced:,} of its answer: {announced - left:,}"
    else:
        why = f"more bytes than the {announced:,} of its answer" if left < 0 else f"pieces that are empty, or above {PIECE_BYTES:,} bytes"
    return pb.CallOutcome(kind=pb.CallOutcome.FAILED, error=f"server {server} sends {why}")


def _verdict(verdict: Any, life: int) -> Any:
    verdict.life = life
    return pb.ToCaller(verdict=verdict)
