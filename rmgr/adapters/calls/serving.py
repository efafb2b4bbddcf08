"""A server of calls at its gateways: one stream to each, dialled again whenever it ends, and a second channel for bulk.

    owner  <-- Joined, Offered, Taken, ... --  GatewayLine  --Serve-->       gateway
           --  load, verdict, take, give  -->               --Take, Give-->

Events come on threads of the lines; their receiver must only enqueue. Orders to a line go into a queue that its stream empties.
"""

from __future__ import annotations

import errno
import os
import queue
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import grpc
import msgspec

from rmgr.adapters.access.auth import open_channel, rebuild
from rmgr.adapters.access.server_threads import Silence
from rmgr.adapters.calls.links import BEAT_S, SAID_BYTES, SILENT_S, STALLED_S, VERSION
from rmgr.adapters.identity.credentials import Credentials
from rmgr.adapters.rpc.channels import OPTIONS
from rmgr.coord.calls.ledger import CallId
from rmgr.model.arrays import PIECE_BYTES
from rmgr.model.identity import Role
from rmgr.model.servers import ServerLoad
from rmgr.model.units import format_duration
from rmgr.runner.host.files import write_whole
from rmgr.v1 import calls_pb2 as pb
from rmgr.v1 import calls_pb2_grpc

#: Longest pause (s) between two tries to reach a gateway.
_SLOWEST_S = 0.7
_FIRST_S = 0.05
#: Seconds between two checks for silence.
_LOOK_S = 1.0
#: Errors of a machine that lacks something for a while, and pause before another try.
_SHORT, _SHORT_PAUSE_S = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM}), 0.2
#: A failed connection is retried soon, at the pace of the tries; bulk and beats have separate connections.
_OPTIONS = (
    *(option for option in OPTIONS if option[0] != "grpc.max_reconnect_backoff_ms"),
    ("grpc.max_reconnect_backoff_ms", 300),
    ("grpc.use_local_subchannel_pool", 1),
)
#: Threads for answers and probes. Arguments have as many as there can be calls that wait for theirs.
_GIVERS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """A server's introduction to each gateway; see `calls.proto`.

    functions: canonical JSON of each interface. users: (name@version, who may call it), for functions that not everybody may call.
    """

    name: str
    site: str
    life: int
    slots: int
    mops: float
    mops_declared: bool
    functions: tuple[bytes, ...]
    most_waiting: int
    users: tuple[tuple[str, tuple[str, ...]], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CallEnd:
    """How a call ended, as `CallOutcome` of `calls.proto`. kind: a name of its enum."""

    kind: str
    error: str = ""
    traceback: str = ""
    bytes: int = 0
    waited_us: int = 0
    ran_us: int = 0


# -- events of a line --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Joined:
    """The gateway has welcomed this server."""

    line: GatewayLine


@dataclass(frozen=True, slots=True)
class Parted:
    """No stream leads there any more. was_up: one did; otherwise another try failed."""

    line: GatewayLine
    why: str
    was_up: bool


@dataclass(frozen=True, slots=True)
class Outlived:
    """The gateways have given this life up: a server that goes on must begin another."""

    line: GatewayLine
    why: str


@dataclass(frozen=True, slots=True)
class Asked:
    """The gateway asks for the load."""

    line: GatewayLine
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Offered:
    """A call is offered. key: of this try at this gateway. attempt: of the client. lowest: its lowest open number. version: 0 = any.

    said_bytes: answers up to this size may go into the stream. is_said: the arguments come in the stream.
    """

    line: GatewayLine
    key: bytes
    id: CallId
    attempt: int
    lowest: int
    function: str
    version: int
    size_bytes: int
    left_s: float
    said_bytes: int = 0
    is_said: bool = False


@dataclass(frozen=True, slots=True)
class Said:
    """The arguments of try `key`."""

    key: bytes
    data: bytes


@dataclass(frozen=True, slots=True)
class Cancelled:
    """A call is no longer wanted."""

    id: CallId


@dataclass(frozen=True, slots=True)
class Orphaned:
    """The call's client is gone from that gateway."""

    line: GatewayLine
    id: CallId


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """The client has the answers of all its calls below `lowest`, and of `numbers`."""

    user: str
    guid: str
    lowest: int
    numbers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Taken:
    """The arguments of try `key` are in their file, or `trouble` says why not. is_ours: the trouble is this machine's (its disk)."""

    key: bytes
    trouble: str = ""
    is_ours: bool = False


@dataclass(frozen=True, slots=True)
class Given:
    """An answer was passed on by try `key`. is_taken: the client has all of it, or will have it if the stream lasts.

    is_ours: the trouble is this machine's (its disk), and trying again does not help.
    """

    key: bytes
    is_taken: bool
    trouble: str = ""
    is_ours: bool = False


LineEvent: TypeAlias = Joined | Parted | Outlived | Asked | Offered | Said | Cancelled | Orphaned | Acknowledged | Taken | Given


class _Transfer:
    """A bulk transfer under way. call: the RPC, to end it by. unreadable: why the file to send could not be read."""

    __slots__ = ("call", "moved_s", "unreadable")

    def __init__(self) -> None:
        self.call: Any = None
        self.unreadable = ""
        self.moved_s = time.monotonic()

    def moved(self) -> None:
        self.moved_s = time.monotonic()

    def cancel(self) -> None:
        if self.call is not None:
            self.call.cancel()


class Lines:
    """The lines to all gateways of a server.

    Args:
        endpoints: HOST:PORT of each. credentials: this server's, None in an open cluster. tell: takes events. takes: most transfers of
            arguments at once.
    """

    def __init__(
        self, endpoints: Sequence[str], hello: Hello, credentials: Credentials | None, tell: Callable[[LineEvent], None], *, takes: int
    ) -> None:
        self._takers = ThreadPoolExecutor(takes, thread_name_prefix="take")
        self._givers = ThreadPoolExecutor(_GIVERS, thread_name_prefix="give")
        self.lines = tuple(GatewayLine(endpoint, hello, credentials, tell, self._takers, self._givers) for endpoint in endpoints)
        self._closing = threading.Event()
        self._watch = threading.Thread(target=self._look, name="calls-watch", daemon=True)

    def start(self) -> None:
        """Begins to dial."""
        for line in self.lines:
            line.start()
        self._watch.start()

    def close(self, timeout_s: float) -> None:
        """Announces that this life is over, so nothing may run any more; the streams end properly within `timeout_s`. Idempotent."""
        self._closing.set()
        end_s = time.monotonic() + timeout_s
        for line in self.lines:
            line.hang_up()
        for line in self.lines:
            line.close(max(0.0, end_s - time.monotonic()))
        self._takers.shutdown(wait=False, cancel_futures=True)
        self._givers.shutdown(wait=False, cancel_futures=True)

    def _look(self) -> None:
        while not self._closing.wait(_LOOK_S):
            for line in self.lines:
                line.check()


class GatewayLine:
    """The connection to one gateway; made by `Lines`. Its methods may be called from any thread; none blocks but `close`."""

    def __init__(
        self,
        endpoint: str,
        hello: Hello,
        credentials: Credentials | None,
        tell: Callable[[LineEvent], None],
        takers: ThreadPoolExecutor,
        givers: ThreadPoolExecutor,
    ) -> None:
        self.endpoint = endpoint
        self._hello = hello
        self._credentials = credentials
        self._tell = tell
        self._takers, self._givers = takers, givers
        self.out: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._call: Any = None
        self._bulk: grpc.Channel | None = None
        self._bulk_stub: Any = None
        self._silence = Silence(_LOOK_S)
        self._is_up = False
        self._lock = threading.Lock()
        self._transfers: dict[bytes, _Transfer] = {}
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"gateway {endpoint}", daemon=True)

    def __repr__(self) -> str:
        return f"GatewayLine({self.endpoint})"

    # -- orders of the owner

    def load(self, ask: int, load: ServerLoad) -> None:
        """Answers `Asked`."""
        self.out.put(pb.FromServer(load=pb.Load(ask=ask, **msgspec.structs.asdict(load))))

    def verdict(self, key: bytes, kind: str, reason: str = "") -> None:
        """Answers an offered call. kind: a name of `Verdict.Kind`."""
        self.out.put(pb.FromServer(verdict=pb.Verdict(key=key, kind=kind, reason=reason)))

    def leaving(self) -> None:
        """Announces that this server takes nothing new and will end."""
        self.out.put(pb.FromServer(leaving=True))

    def take(self, key: bytes, path: str, size_bytes: int) -> None:
        """Fetches the arguments of try `key` into a new file; `Taken` follows."""
        self._submit(self._takers, lambda: self._take(key, path, size_bytes), Taken(key, "this server ends"))

    def give(self, key: bytes, end: CallEnd, path: str = "", *, said_bytes: int = 0) -> None:
        """Passes an answer on, with the bytes of the file `path` if it is OK; `Given` follows.

        said_bytes: an answer up to this size goes into the stream, now: a file just written is in memory.
        """
        if end.bytes + len(end.error) + len(end.traceback) <= said_bytes:
            self._say(key, end, path)
            return
        self._submit(self._givers, lambda: self._give(key, end, path), Given(key, False, "this server ends"))

    def drop(self, key: bytes) -> None:
        """Ends a transfer that is under way; its event follows."""
        with self._lock:
            transfer = self._transfers.get(key)
        if transfer is not None:
            transfer.cancel()

    # -- life

    def start(self) -> None:
        """Begins to dial."""
        self._thread.start()

    def check(self) -> None:
        """Ends streams and transfers that have been silent for too long. Called every `_LOOK_S`."""
        now_s = time.monotonic()
        call = self._call
        if self._silence.look() > SILENT_S and call is not None:
            call.cancel()
        with self._lock:
            stalled = [one for one in self._transfers.values() if now_s - one.moved_s > STALLED_S]
        for one in stalled:
            one.cancel()

    def hang_up(self) -> None:
        """Announces that this life is over, and ends the stream from this side; the gateway ends its own side."""
        self._closing.set()
        self.out.put(pb.FromServer(over=True))
        self.out.put(None)

    def close(self, timeout_s: float) -> None:
        """Follows `hang_up`: cuts the connection after `timeout_s`. Idempotent."""
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        if self._call is not None:
            self._call.cancel()
        with self._lock:
            bulk, self._bulk = self._bulk, None
        if bulk is not None:
            bulk.close()

    # -- the line's thread

    def _run(self) -> None:
        tries = 0
        while not self._closing.is_set():
            why = "the gateway has ended the stream"
            try:
                why = self._streamed() or why
            except grpc.RpcError as error:
                is_silent = error.code() is grpc.StatusCode.CANCELLED
                why = f"it has said nothing for {format_duration(SILENT_S)}" if is_silent else rebuild(error, self.endpoint).message
            except Exception as error:  # noqa: BLE001 - loop boundary: what cannot be read of one gateway must not end the line
                why = f"what it says cannot be read: {error!r}"
            tries = 0 if self._is_up else tries + 1
            self._part(why)
            self._closing.wait(min(_SLOWEST_S, _FIRST_S * 2 ** min(tries, 5)) * random.uniform(0.5, 1.0))

    def _streamed(self) -> str:
        """Runs one stream from its hello to its end; returns why the gateway ended it, if it said so. Raises: grpc.RpcError."""
        out = self.out = queue.SimpleQueue()
        if self._closing.is_set():
            return ""
        self._silence.heard()
        channel = open_channel(self.endpoint, self._credentials, Role.SUBMITTER, _OPTIONS)
        try:
            call = self._call = calls_pb2_grpc.CallsStub(channel).Serve(self._messages(out))
            try:
                for message in call:
                    self._silence.heard()
                    refused = self._on_message(message)
                    if refused:
                        return refused
            finally:
                self._call = None
                out.put(None)
                call.cancel()
        finally:
            channel.close()
        return ""

    def _messages(self, out: queue.SimpleQueue[Any]) -> Iterator[Any]:
        """Yields the messages to send; gRPC takes them on a thread of its own."""
        hello = {name: getattr(self._hello, name) for name in Hello.__slots__ if name != "users"}
        users = [pb.FunctionUsers(function=function, users=users) for function, users in self._hello.users]
        yield pb.FromServer(hello=pb.ServerHello(version=VERSION, users=users, said_bytes=SAID_BYTES, **hello))
        while True:
            try:
                message = out.get(timeout=BEAT_S)
            except queue.Empty:
                message = pb.FromServer(beat=True)
            if message is None:
                return
            yield message

    def _on_message(self, message: Any) -> str:
        """Passes a message on to the owner; returns why the gateway refuses this server, or ""."""
        match message.WhichOneof("what"):
            case "welcome":
                if message.welcome.over:
                    self._closing.set()  # this life does not come back
                    self._tell(Outlived(self, message.welcome.refused))
                if message.welcome.refused:
                    return f"it refuses this server: {message.welcome.refused}"
                self._is_up = True
                self._tell(Joined(self))
            case "ask":
                self._tell(Asked(self, message.ask))
            case "offer":
                offer = message.offer
                self._tell(
                    Offered(
                        line=self,
                        key=offer.key,
                        id=_id(offer.id),
                        attempt=offer.attempt,
                        lowest=offer.lowest,
                        function=offer.function,
                        version=offer.function_version,
                        size_bytes=offer.bytes,
                        left_s=offer.left_ms / 1000,
                        said_bytes=offer.said_bytes,
                        is_said=offer.is_said,
                    )
                )
            case "arguments":
                self._tell(Said(message.arguments.key, message.arguments.data))
            case "cancel":
                self._tell(Cancelled(_id(message.cancel)))
            case "orphan":
                self._tell(Orphaned(self, _id(message.orphan)))
            case "closed":
                closed = message.closed
                self._tell(Acknowledged(closed.user, closed.guid.hex(), closed.lowest, tuple(closed.numbers)))
            case "probe":
                key, size = message.probe.key, message.probe.bytes
                self._submit(self._givers, lambda: self._probe(key, size), None)
        return ""

    def _part(self, why: str) -> None:
        was_up, self._is_up = self._is_up, False
        with self._lock:
            transfers = list(self._transfers.values())
            bulk, self._bulk = self._bulk, None
        for transfer in transfers:  # the gateway's tries end with the stream
            transfer.cancel()
        if bulk is not None:
            bulk.close()
        if not self._closing.is_set() or was_up:
            self._tell(Parted(self, why, was_up))

    # -- bulk

    def _submit(self, pool: ThreadPoolExecutor, work: Callable[[], None], instead: LineEvent | None) -> None:
        try:
            pool.submit(work)
        except RuntimeError:  # closed, or no thread can be started
            if instead is not None:
                self._tell(instead)

    def _stub(self) -> Any:
        with self._lock:
            if self._bulk is None:
                self._bulk = open_channel(self.endpoint, self._credentials, Role.SUBMITTER, _OPTIONS)
                self._bulk_stub = calls_pb2_grpc.CallsStub(self._bulk)
            return self._bulk_stub

    def _begun(self, key: bytes) -> _Transfer:
        transfer = _Transfer()
        with self._lock:
            self._transfers[key] = transfer
        return transfer

    def _over(self, key: bytes) -> None:
        with self._lock:
            self._transfers.pop(key, None)

    def _take(self, key: bytes, path: str, size_bytes: int) -> None:
        count, trouble, is_ours = 0, "", False
        transfer = self._begun(key)
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                transfer.call = call = self._stub().Take(pb.TakeRequest(key=key))
                for piece in call:
                    transfer.moved()
                    count += len(piece.data)
                    if count > size_bytes:
                        call.cancel()
                        break
                    write_whole(fd, piece.data)
            finally:
                os.close(fd)
        except grpc.RpcError as error:
            trouble = rebuild(error, self.endpoint).message
        except OSError as error:
            trouble, is_ours = f"{path}: {error.strerror}", True
            transfer.cancel()
        except ValueError:  # the channel was closed in the meantime
            trouble = "the line to the gateway is lost"
        finally:
            self._over(key)
        if not trouble and count != size_bytes:
            trouble = f"its arguments have {size_bytes:,} bytes, and {'more' if count > size_bytes else f'{count:,}'} came"
        self._tell(Taken(key, trouble, is_ours))

    def _say(self, key: bytes, end: CallEnd, path: str, *, patience_s: float = 0.0) -> None:
        trouble = ""
        try:
            with _open_answer(path, patience_s) as file:
                data = file.read()
            self.out.put(pb.FromServer(answer=pb.GivePart(key=key, outcome=_outcome(end), data=data)))
        except OSError as error:
            if error.errno in _SHORT and not patience_s:  # the owner's thread waits for nothing
                later = partial(self._say, key, end, path, patience_s=STALLED_S)
                self._submit(self._givers, later, Given(key, False, "this server ends"))
                return
            trouble = f"{path}: {error.strerror}"
        self._tell(Given(key, not trouble, trouble, is_ours=bool(trouble)))

    def _give(self, key: bytes, end: CallEnd, path: str) -> None:
        trouble, is_taken = "", False
        transfer = self._begun(key)
        try:
            with _open_answer(path, STALLED_S) as file:
                first = pb.GivePart(key=key, outcome=_outcome(end))
                method = self._stub().Give.future(_parts(first, file, transfer))
                transfer.call = method
                is_taken = bool(method.result().is_taken)
        except grpc.RpcError as error:
            trouble = rebuild(error, self.endpoint).message
        except grpc.FutureCancelledError:
            trouble = "it was broken off"
        except OSError as error:
            transfer.unreadable = f"{path}: {error.strerror}"
        except ValueError:
            trouble = "the line to the gateway is lost"
        finally:
            self._over(key)
        self._tell(Given(key, is_taken, transfer.unreadable or trouble, is_ours=bool(transfer.unreadable)))

    def _probe(self, key: bytes, size_bytes: int) -> None:
        """Takes the probe's bytes, and gives them back."""
        transfer = self._begun(key)
        try:
            with suppress(grpc.RpcError, grpc.FutureCancelledError, ValueError):
                transfer.call = call = self._stub().Take(pb.TakeRequest(key=key))
                count = sum(len(piece.data) for piece in call)
                if count == size_bytes:
                    starts = range(0, max(1, count), PIECE_BYTES)
                    parts = (pb.GivePart(key=key if not at else b"", data=bytes(min(PIECE_BYTES, count - at))) for at in starts)
                    transfer.call = given = self._stub().Give.future(parts)
                    given.result()
        finally:
            self._over(key)


def _open_answer(path: str, patience_s: float) -> Any:
    """Opens an answer ("" = none). A machine that lacks descriptors has some again soon; an answer that is given up is lost.

    Raises: OSError.
    """
    end_s = time.monotonic() + patience_s
    while True:
        try:
            return open(path or os.devnull, "rb", buffering=0)
        except OSError as error:
            if error.errno not in _SHORT or time.monotonic() > end_s:
                raise
        time.sleep(_SHORT_PAUSE_S)


def _parts(first: Any, file: Any, transfer: _Transfer) -> Iterator[Any]:
    """Yields the messages of one answer; a small one is one message. A file that cannot be read breaks the stream off."""
    try:
        first.data = file.read(PIECE_BYTES)
        yield first
        while data := file.read(PIECE_BYTES):
            transfer.moved()
            yield pb.GivePart(data=data)
    except OSError as error:
        transfer.unreadable = f"{file.name}: {error.strerror}"
        raise
    transfer.moved()


def _outcome(end: CallEnd) -> Any:
    return pb.CallOutcome(**{name: getattr(end, name) for name in CallEnd.__slots__})


def _id(message: Any) -> CallId:
    return CallId(message.user, message.guid.hex(), message.number)
