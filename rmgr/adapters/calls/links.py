"""The servers of calls that keep a stream to this gateway: what they offer, what they have to do, how fast the link to them is.

    server --Serve--> ServerLink <-- Links --> tries of calls (relay.py), looks of the monitor (daemons/gateway/calls.py)
           --Take, Give--> Probe

A link is one life of a server at this gateway. Messages to the server go through a queue that its stream empties; its messages arrive on a
thread of their own. A server that is silent for `SILENT_S` counts as gone, and its stream is ended.
"""

from __future__ import annotations

import math
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import grpc

from rmgr.adapters.access.server_threads import Silence
from rmgr.coord.calls.ledger import Life, Lives, Standing
from rmgr.errors import RmgrError, UsageError, VersionMismatch
from rmgr.model.arrays import PIECE_BYTES
from rmgr.model.base import check_name
from rmgr.model.interface import ALL_BYTES, MOST_BYTES, MOST_FUNCTIONS
from rmgr.v1 import calls_pb2 as pb

if TYPE_CHECKING:
    from rmgr.adapters.calls.relay import Try

VERSION = 1
#: Longest pause (s) between two messages of either end; silence (s) that ends a stream.
BEAT_S, SILENT_S = 2.0, 10.0
#: Seconds without a piece after which a bulk transfer is ended.
STALLED_S = 30.0
#: Seconds for which facts about a server that has gone are kept.
KEEP_S = 3600.0
#: Most bytes of a probe, its largest share of a link, and its bytes without an earlier measurement.
PROBE_BYTES, PROBE_PART, FIRST_PROBE_BYTES = 256 * 1024, 0.01, 64 * 1024
#: Fewest bytes of a transfer that counts as a measurement: smaller ones are too short.
MEASURED_BYTES = 64 * 1024
#: Most bytes of arguments and answers that go through the server's stream: a separate RPC would take longer than they do.
SAID_BYTES = 4096
#: More slots than this are a mistake: no machine has so many.
MOST_SLOTS = 10_000
#: Most unsent messages to one server: far more than its waiting calls can cause.
_MOST_UNSENT = 10_000
_OF_ENDS = frozenset({"closed", "cancel"})


@dataclass(slots=True)
class Measured:
    """A measurement of the link from this gateway to a server. bytes_per_s: 0 = never measured. at_s: monotonic."""

    bytes_per_s: float = 0.0
    round_trip_s: float = 0.0
    at_s: float = -math.inf


@dataclass(slots=True)
class _Probe:
    key: bytes
    size: int
    asked_s: float
    taken_s: float = 0.0


@dataclass(eq=False)
class ServerLink:
    """The stream of one life of a server. Many threads read its fields; only its stream's thread writes them."""

    name: str
    site: str
    life: int
    slots: int
    mops: float
    mops_declared: bool
    functions: tuple[bytes, ...]  #: canonical JSON of each interface
    most_waiting: int
    users: dict[str, frozenset[str]] = field(default_factory=dict)  #: name@version -> who may call it, if not everybody
    said_bytes: int = 0  #: most bytes of arguments that may go into its stream
    identity: str = ""  #: the name in its certificate, "" in an open cluster
    heard_s: float = field(default_factory=time.monotonic)
    silence: Silence = field(default_factory=lambda: Silence(BEAT_S))
    load: Any = field(default_factory=pb.Load)
    loaded_s: float = -math.inf  #: when `load` was asked for
    link: Measured = field(default_factory=Measured)
    is_leaving: bool = False
    is_over: bool = False  #: the server has said so
    ended: bool = False
    out: queue.SimpleQueue[Any] = field(default_factory=queue.SimpleQueue)
    tries: dict[bytes, Try] = field(default_factory=dict)
    answered: deque[Any] = field(default_factory=lambda: deque(maxlen=10_000))  #: `pb.CallReport`s since the last report
    _asked: tuple[int, float] = (0, -math.inf)
    _probe: _Probe | None = None

    def tell(self, **what: Any) -> None:
        """Puts a message into the server's stream; does nothing if that has ended, or is full.

        Users who end calls fill half of it at most: what they send in plenty displaces no offer, and no arguments of others.
        """
        most = _MOST_UNSENT // 2 if what.keys() <= _OF_ENDS else _MOST_UNSENT
        if not self.ended and self.out.qsize() < most:
            self.out.put(pb.ToServer(**what))

    def ask(self) -> None:
        """Asks the server for its load; the answer arrives as `load`."""
        self._asked = self._asked[0] + 1, time.monotonic()
        self.tell(ask=self._asked[0])

    def probe(self, refresh_s: float) -> None:
        """Measures the link, unless that is under way. Cost: at most `PROBE_PART` of the link in `refresh_s`, both ways."""
        if self._probe is not None and time.monotonic() - self._probe.asked_s < SILENT_S:
            return
        rate = self.link.bytes_per_s
        size = min(PROBE_BYTES, int(rate * refresh_s * PROBE_PART / 2)) if rate else FIRST_PROBE_BYTES
        self._probe = _Probe(os.urandom(16), size, time.monotonic())
        self.tell(probe=pb.Probe(key=self._probe.key, bytes=size))

    def transferred(self, count: int, took_s: float) -> None:
        """Takes a transfer of `count` bytes as a measurement. took_s: without the time spent waiting for the client."""
        if count >= MEASURED_BYTES:
            self.link = Measured(count / max(took_s, 1e-6), self.link.round_trip_s, time.monotonic())

    # -- the server's messages

    def take_in(self, message: Any) -> None:
        """Handles a message of the server's stream."""
        self.heard_s = time.monotonic()
        self.silence.heard()
        what = message.WhichOneof("what")
        if what == "load" and message.load.ask == self._asked[0]:
            self.load, self.loaded_s = message.load, self._asked[1]
        elif what == "verdict":
            one = self.tries.get(message.verdict.key)
            if one is not None:
                one.said(message.verdict)
        elif what == "answer":
            one = self.tries.pop(message.answer.key, None)  # a second answer finds no try
            if one is not None:
                one.answered(message.answer)
        elif what == "leaving":
            self.is_leaving = True
        elif what == "over":
            self.is_over = self.is_leaving = True

    def probe_pieces(self, key: bytes) -> Iterator[Any] | None:
        """Returns the pieces with which `Take` answers a probe, or None if the probe is not this link's."""
        probe = self._probe
        if probe is None or probe.key != key:
            return None
        probe.taken_s = time.monotonic()
        self.link = Measured(self.link.bytes_per_s, probe.taken_s - probe.asked_s, probe.taken_s)
        return (pb.Piece(data=bytes(min(PIECE_BYTES, probe.size - at))) for at in range(0, probe.size, PIECE_BYTES))

    def probe_given(self, key: bytes, parts: Iterator[Any], first: int) -> bool:
        """Reads the bytes that `Give` brings for a probe; returns False if the probe is not this link's."""
        probe = self._probe
        if probe is None or probe.key != key:
            return False
        count = first
        for part in parts:
            count += len(part.data)
            if count > probe.size:
                break
        if probe.size and count == probe.size:
            known, now_s = self.link, time.monotonic()
            took_s = now_s - probe.taken_s
            if took_s > 2 * known.round_trip_s:
                rate = 2 * probe.size / max(took_s - known.round_trip_s, 1e-6)
            else:  # mostly the round trip, so the rate is a lower bound: taken as the rate, it would make the next probe smaller still
                rate = max(known.bytes_per_s, 2 * probe.size / max(took_s, 1e-6))
            self.link = Measured(rate, known.round_trip_s, now_s)
        self._probe = None
        return True


class Links:
    """All servers of this gateway, by name. Thread-safe.

    Args:
        changed: called, on any thread, when servers or their capacity to take calls have changed.
    """

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._lock = threading.Lock()
        self._live: dict[str, ServerLink] = {}
        self._lives = Lives()
        self._gone: dict[Life, ServerLink] = {}  # of the last hour

    def __len__(self) -> int:
        return len(self._live)

    def all(self) -> list[ServerLink]:
        """Returns the servers that have a stream here, by name."""
        with self._lock:
            return sorted(self._live.values(), key=lambda link: link.name)

    def gone(self) -> list[ServerLink]:
        """Returns the servers of the last hour that no longer have a stream here."""
        with self._lock:
            before_s = time.monotonic() - KEEP_S
            self._gone = {life: link for life, link in self._gone.items() if link.heard_s > before_s}
            for link in self._live.values():  # otherwise a server that is here would count as unheard
                self._lives.heard(Life(link.name, link.life), round(link.heard_s * 1e6))
            self._lives.forget(_now_us())
            return list(self._gone.values())

    def find(self, life: Life) -> ServerLink | None:
        """Returns the link of this life."""
        with self._lock:
            link = self._live.get(life.server)
            return link if link is not None and link.life == life.number else None

    def standing(self, life: Life) -> Standing:
        """Returns the standing of this life, by all gateways whose reports have come here."""
        with self._lock:
            link = self._live.get(life.server)
            if link is not None and link.life == life.number:
                self._lives.heard(life, round(link.heard_s * 1e6))
            return self._lives.standing(life, _now_us())

    def heard_elsewhere(self, life: Life, ago_us: int, *, is_over: bool) -> None:
        """Takes another gateway's report on a life. A life that is over but still has a stream here is told to begin another."""
        with self._lock:
            if not is_over:
                self._lives.heard(life, _now_us() - ago_us)
                return
            self._lives.over(life, _now_us())
            link = self._live.get(life.server)
        if link is not None and link.life == life.number and not link.is_over:
            link.tell(welcome=pb.ServerWelcome(version=VERSION, refused=_given_up(life.server), over=True))
            link.out.put(None)

    def served(self, requests: Iterator[Any], context: grpc.ServicerContext, identity: str, gateway: str) -> Iterator[Any]:
        """Yields the messages to a server, while its stream lasts: the body of `Serve`.

        Raises: UsageError, VersionMismatch for an impossible hello.
        """
        try:
            hello = next(requests).hello
        except (StopIteration, grpc.RpcError):
            return
        link = self._link_of(hello, identity)
        welcome = pb.ServerWelcome(version=VERSION, gateway=gateway)
        refusal = self._enter(link)
        if refusal:
            is_over = self.standing(Life(link.name, link.life)) is Standing.OVER
            yield pb.ToServer(welcome=pb.ServerWelcome(version=VERSION, gateway=gateway, refused=refusal, over=is_over))
            return
        if not context.add_callback(lambda: link.out.put(None)):
            self._leave(link)
            return
        threading.Thread(target=self._read, args=(link, requests, context), name="calls-server", daemon=True).start()
        try:
            yield pb.ToServer(welcome=welcome)
            link.ask()
            link.probe(KEEP_S)
            self._changed()
            yield from self._messages_to(link)
        finally:
            self._leave(link)

    def _messages_to(self, link: ServerLink) -> Iterator[Any]:
        while True:
            try:
                message = link.out.get(timeout=BEAT_S)
            except queue.Empty:
                message = pb.ToServer(beat=True)
            if message is None or link.silence.look() > SILENT_S:
                return
            yield message

    def _read(self, link: ServerLink, requests: Iterator[Any], context: grpc.ServicerContext) -> None:
        with suppress(grpc.RpcError):
            for message in requests:
                was_leaving, loaded_s = link.is_leaving, link.loaded_s
                link.take_in(message)
                if (link.is_leaving, link.loaded_s) != (was_leaving, loaded_s):
                    self._changed()
        link.out.put(None)
        with suppress(RmgrError):
            context.cancel()

    @staticmethod
    def _link_of(hello: Any, identity: str) -> ServerLink:
        if hello.version != VERSION:
            words = f"server {hello.name or '?'} speaks version {hello.version} of calls, this gateway {VERSION}"
            raise VersionMismatch(words, hint="rmgr version")
        if identity and identity != hello.name:
            raise UsageError(f"server {hello.name[:100]!r} has a certificate of {identity}", hint=f"rmgr server --name {identity}")
        check_name("server", hello.name[:100])
        wrong = _why_impossible(hello)
        if wrong:
            raise UsageError(f"server {hello.name} says hello with {wrong}")
        return ServerLink(
            hello.name,
            hello.site,
            hello.life,
            hello.slots,
            hello.mops,
            hello.mops_declared,
            tuple(hello.functions),
            hello.most_waiting,
            {one.function: frozenset(one.users) for one in hello.users if one.users},
            min(hello.said_bytes, SAID_BYTES),
            identity,
        )

    def _enter(self, link: ServerLink) -> str:
        """Admits a server; returns why it cannot be here, or "". A new life of a name ends the old one."""
        with self._lock:
            known = self._live.get(link.name)
            if known is not None and known.life != link.life and time.monotonic() - known.heard_s < SILENT_S:
                return f"another server {link.name} is here (site {known.site or '-'}): a name is of one server"
            if not self._lives.hello(Life(link.name, link.life), _now_us()):
                return _given_up(link.name)
            self._live[link.name] = link
            self._gone.pop(Life(link.name, link.life), None)
        if known is not None:
            self._end(known)
        return ""

    def _leave(self, link: ServerLink) -> None:
        with self._lock:
            mine = self._live.get(link.name) is link
            if mine:
                del self._live[link.name]
        if mine:
            self._end(link)

    def _end(self, link: ServerLink) -> None:
        link.ended = True
        link.out.put(None)
        life = Life(link.name, link.life)
        with self._lock:
            known = self._live.get(link.name)
            if known is None or known.life != link.life:
                self._gone[life] = link
                if link.is_over:
                    self._lives.over(life, _now_us())
                else:
                    self._lives.heard(life, round(link.heard_s * 1e6))
        for one in list(link.tries.values()):
            one.lost()
        self._changed()


def _why_impossible(hello: Any) -> str:
    """Returns what is impossible in a hello, or "". A hello that passes is kept, reported every 5 s and shown."""
    if not hello.life:
        return "no life"
    if not 1 <= hello.slots <= MOST_SLOTS:
        return f"{hello.slots:,} slots: 1 to {MOST_SLOTS:,} can be"
    if not 0 < hello.mops < math.inf:
        return f"a speed of {hello.mops} million operations a second"
    if len(hello.site) > 64 or not hello.site.isprintable():
        return f"site {hello.site[:64]!r}: at most 64 printable characters"
    if len(hello.functions) > MOST_FUNCTIONS:
        return f"{len(hello.functions):,} functions: {MOST_FUNCTIONS:,} are the most"
    largest, count = max(map(len, hello.functions), default=0), sum(map(len, hello.functions))
    if largest > MOST_BYTES or count > ALL_BYTES:
        return f"interfaces of {count:,} bytes, the largest of {largest:,}: {ALL_BYTES:,} and {MOST_BYTES:,} are the most"
    return ""


def _given_up(name: str) -> str:
    return f"server {name} was silent for too long: what it had is given up, and it has to begin another life"


def _now_us() -> int:
    return time.monotonic_ns() // 1000
