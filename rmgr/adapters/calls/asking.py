"""The client's end of calls: one RPC per try, and questions. `rmgr/client/calls.py` decides what follows from a try."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any
from urllib.parse import quote

import grpc

from rmgr.adapters.access.auth import USER_KEY, open_channel, rebuild
from rmgr.adapters.access.server_threads import Stalls
from rmgr.adapters.calls.links import SILENT_S, STALLED_S
from rmgr.adapters.identity.credentials import Credentials
from rmgr.adapters.rpc.channels import OPTIONS, answered
from rmgr.errors import NoServer, Unavailable
from rmgr.model.arrays import PIECE_BYTES
from rmgr.model.identity import Role
from rmgr.model.units import format_duration
from rmgr.v1 import calls_pb2 as pb
from rmgr.v1 import calls_pb2_grpc

_ANSWER_S = 10.0


class CallsClient:
    """Calls through one gateway. credentials: this client's; None in an open cluster, where `user` is believed. Thread-safe."""

    def __init__(self, endpoint: str, *, user: str, credentials: Credentials | None = None) -> None:
        self.endpoint = endpoint
        self._channel = open_channel(endpoint, credentials, Role.SUBMITTER, (*OPTIONS, ("grpc.use_local_subchannel_pool", 1)))
        self._stub = calls_pb2_grpc.CallsStub(self._channel)
        self._metadata = ((USER_KEY, quote(user)),) if credentials is None and user else ()
        self._silent, self._stalled = Stalls(SILENT_S), Stalls(STALLED_S)

    def close(self) -> None:
        """Ends the channel and its tries. Idempotent."""
        self._channel.close()

    def functions(self, name: str = "") -> Any:
        """Returns a `pb.FunctionsReply`. Raises, as all methods below: Unavailable; the gateway's refusals."""
        return self._asked(self._stub.Functions, pb.FunctionsRequest(name=name))

    def servers(self, name: str = "", *, timeout_s: float = _ANSWER_S) -> Any:
        """Returns a `pb.ServersReply`."""
        return self._asked(self._stub.Servers, pb.ServersRequest(name=name), timeout_s)

    def explain(self, function: str, version: int, sizes: str) -> Any:
        """Returns a `pb.PickReply` with all terms. sizes: JSON."""
        return self._asked(self._stub.Explain, pb.ExplainCallRequest(function=function, function_version=version, sizes=sizes))

    def end(self, guid: bytes, lowest: int, *, acknowledged: Sequence[int] = (), cancelled: Sequence[int] = ()) -> int:
        """Tells all servers of this gateway; returns their number."""
        request = pb.EndRequest(guid=guid, lowest=lowest, acknowledged=acknowledged, cancelled=cancelled)
        return int(self._asked(self._stub.End, request).servers)

    def attempt(self, ask: Any, arguments: Callable[[], Iterable[bytes]]) -> Attempt:
        """Begins a try. arguments: returns pieces of at most 1 MiB; called once the server is known."""
        call = partial(self._stub.Call, metadata=self._metadata)
        return Attempt(call, ask, arguments, self.endpoint, silent=self._silent, stalled=self._stalled)

    def _asked(self, method: Callable[..., Any], request: Any, timeout_s: float = _ANSWER_S) -> Any:
        try:
            return answered(method, request, timeout_s, self._metadata)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                message = f"the gateway at {self.endpoint} passes no calls on ([submitter] calls = false there)"
                raise NoServer(message, hint="name another one: --gateway HOST:PORT or RMGR_GATEWAY") from None
            raise rebuild(error, self.endpoint) from None


class Attempt:
    """One try of a call: a thread of gRPC sends, the caller's thread reads `messages`. Silence ends it: 10 s, or 30 s within an answer."""

    def __init__(
        self,
        call: Callable[[Iterator[Any]], Any],
        ask: Any,
        arguments: Callable[[], Iterable[bytes]],
        endpoint: str,
        *,
        silent: Stalls,
        stalled: Stalls,
    ) -> None:
        self._ask = ask
        self._arguments = arguments
        self._endpoint = endpoint
        self._changed = threading.Condition()
        self._ended = threading.Event()
        self._is_named = self._is_known = self._has_answer = self._is_over = False
        self._waits, self._stalled = silent, stalled  #: the first ends the try on silence until the answer begins
        self._call = call(self._messages())

    def messages(self) -> Iterator[Any]:
        """Yields each `pb.ToCaller` except beats. Raises: Unavailable if the gateway is gone or silent; the gateway's refusals."""
        try:
            while (message := self._next()) is not None:
                what = message.WhichOneof("what")
                if what == "outcome":
                    self._waits = self._stalled  # its pieces may come over a slow link, with no beats between them
                elif what == "named":
                    self._let(named=True, known=message.named.known)
                if not message.beat:
                    yield message
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.CANCELLED and not self._is_over:
                why = f"the gateway at {self._endpoint} has said nothing for {format_duration(self._waits.most_s)}"
                raise Unavailable(why, hint="rmgr doctor") from None
            raise rebuild(error, self._endpoint) from None
        finally:
            self._let(over=True)
            self._ended.set()

    def _next(self) -> Any:
        with self._waits.waited(self._call):
            return next(self._call, None)

    def acknowledge(self) -> None:
        """Notes that the whole answer is here, so the server may forget it. The gateway ends the stream when it has heard so."""
        self._let(answer=True)

    def wait(self, timeout_s: float) -> None:
        """Waits until `messages` has ended."""
        self._ended.wait(timeout_s)

    def close(self) -> None:
        """Ends the try, from any thread. An acknowledged one ends by itself: cancelling would also lose the acknowledgement. Idempotent."""
        self._let(over=True)
        if not self._has_answer:
            self._call.cancel()

    def _let(self, *, named: bool = False, known: bool = False, answer: bool = False, over: bool = False) -> None:
        with self._changed:
            self._is_named |= named
            self._is_known |= known
            self._has_answer |= answer
            self._is_over |= over
            self._changed.notify_all()

    def _messages(self) -> Iterator[Any]:
        """Yields the messages to send, on a thread of gRPC."""
        yield pb.FromCaller(ask=self._ask)
        with self._changed:
            self._changed.wait_for(lambda: self._is_named or self._is_over)
            if not self._is_named or self._is_over:
                return
        for data in () if self._is_known else self._arguments():
            if len(data) > PIECE_BYTES:
                raise ValueError(f"a piece of {len(data)} bytes")
            yield pb.FromCaller(data=data)
        with self._changed:
            self._changed.wait_for(lambda: self._has_answer or self._is_over)
            if not self._has_answer:
                return
        yield pb.FromCaller(acknowledged=True)
