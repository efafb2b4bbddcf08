"""The gateways of a cluster as one client knows them: where they are, which one it uses now, its channel to each, and its questions.

`rmgr.v1.Work/Ask` is one question and one answer, both as bytes; a long answer comes in pieces.
"""

from __future__ import annotations

import getpass
import os
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

import grpc

from rmgr.adapters.access.auth import USER_KEY, Caller, caller_of, open_channel
from rmgr.adapters.access.errors import fail, rebuild
from rmgr.adapters.identity.credentials import Credentials
from rmgr.adapters.rpc.server import OPTIONS
from rmgr.errors import NotConnected, RmgrError, Unavailable, UsageError
from rmgr.model.cluster.identity import Role
from rmgr.v1 import work_pb2 as pb

#: A connection of its own for each purpose, so that a large value does not stand before a heartbeat.
_OPTIONS = (*OPTIONS, ("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1))


class Gateways:
    """Args:
    text: "HOST:PORT,HOST:PORT"; a client begins with any of them and goes on to the next when one fails.
    credentials: who we are, None in an open cluster.

    Raises: UsageError. Thread-safe.
    """

    def __init__(self, text: str, credentials: Credentials | None = None) -> None:
        self._credentials = credentials
        self.endpoints = tuple(parse(part) for part in text.split(",") if part.strip())
        if not self.endpoints:
            raise UsageError(f"{text!r} names no gateway", hint="--gateway HOST:PORT, or several: HOST:PORT,HOST:PORT")
        self._at = random.randrange(len(self.endpoints))
        self._channels: dict[str, grpc.Channel] = {}
        self._lock = threading.Lock()
        self._closed = False

    def __str__(self) -> str:
        return ",".join(self.endpoints)

    @property
    def current(self) -> str:
        """The gateway to ask."""
        return self.endpoints[self._at]

    def failed(self, endpoint: str) -> None:
        """`endpoint` does not answer: the next one is asked from now on."""
        with self._lock:
            if self.endpoints[self._at] == endpoint:
                self._at = (self._at + 1) % len(self.endpoints)

    def channel(self, endpoint: str) -> grpc.Channel:
        """The channel to one of them, opened on first use. Raises ValueError when closed (as a closed channel does)."""
        with self._lock:
            if self._closed:
                raise ValueError("closed")
            if endpoint not in self._channels:
                self._channels[endpoint] = open_channel(endpoint, self._credentials, Role.SUBMITTER, _OPTIONS)
            return self._channels[endpoint]

    def close(self) -> None:
        """Ends all channels. Idempotent."""
        with self._lock:
            self._closed = True
            channels = list(self._channels.values())
        for channel in channels:
            channel.close()


def parse(text: str) -> str:
    """`HOST:PORT` as it is. Raises UsageError."""
    host, colon, port = text.strip().rpartition(":")
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise UsageError(f"{text.strip()!r} is not a gateway's address", hint="--gateway HOST:PORT")
    return f"{host}:{port}"


def user_name() -> str:
    """Who this process works for, as the gateway of an open cluster is told."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return str(os.getuid()) if hasattr(os, "getuid") else "unknown"


def user_metadata() -> tuple[tuple[str, str], ...]:
    """Metadata that names the user."""
    return ((USER_KEY, quote(user_name())),)


# -- questions -----------------------------------------------------------------------------------------------------------------


#: Bytes of one piece of an answer, and of an answer that a client takes.
_PIECE_BYTES, _MOST_BYTES = 1024 * 1024, 257 * 1024 * 1024
_DEFAULT_S, _LONGEST_S = 10.0, 60.0
_ASK = "/rmgr.v1.Work/Ask"


class WorkClient:
    """Args: gateways: "HOST:PORT,...". credentials: who we are; None in an open cluster, where `user` says it ("" = nobody)."""

    def __init__(self, gateways: str, credentials: Credentials | None, user: str = "") -> None:
        self._gateways = Gateways(gateways, credentials)
        self._metadata = ((USER_KEY, quote(user)),) if user else ()

    @property
    def hosts(self) -> str:
        """All gateways."""
        return str(self._gateways)

    @property
    def endpoint(self) -> str:
        """The gateway that is asked now."""
        return self._gateways.current

    @property
    def has_others(self) -> bool:
        """There is more than one gateway."""
        return len(self._gateways.endpoints) > 1

    def failed(self, endpoint: str) -> None:
        """That one does not answer: the next is asked from now on."""
        self._gateways.failed(endpoint)

    def ask(self, data: bytes, *, timeout_s: float) -> bytes:
        """The answer. Raises what the gateway says; Unavailable when it says nothing; NotConnected when nothing can be asked any more."""
        endpoint = self.endpoint
        try:
            call: Callable[..., Any] = self._gateways.channel(endpoint).unary_stream(
                _ASK, request_serializer=pb.Packed.SerializeToString, response_deserializer=pb.Packed.FromString
            )
            pieces: list[bytes] = []
            size = 0
            for piece in call(pb.Packed(data=data), timeout=timeout_s, metadata=self._metadata):
                pieces.append(piece.data)
                size += len(piece.data)
                if size > _MOST_BYTES:
                    raise Unavailable(f"the answer of {endpoint} does not end", hint="rmgr version, here and where the gateway runs")
        except grpc.RpcError as error:
            raise rebuild(error, endpoint) from None
        except ValueError as error:  # closed by another thread
            raise NotConnected("this connection was closed", hint="call rmgr.connect() again") from error
        return b"".join(pieces)

    def close(self) -> None:
        """Ends the channels. Idempotent."""
        self._gateways.close()


def work_handler(answer: Callable[[bytes, Caller, float], bytes]) -> grpc.GenericRpcHandler:
    """For `RpcServer.add_generic`. answer: to a question, within so many seconds, or it raises; called on threads of the server."""

    def ask(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        left_s = context.time_remaining()
        timeout_s = _DEFAULT_S if left_s is None else min(left_s, _LONGEST_S)
        try:
            told = answer(request.data, caller_of(context), max(0.1, timeout_s))
        except RmgrError as error:
            fail(context, error)
            return
        for at in range(0, max(1, len(told)), _PIECE_BYTES):
            yield pb.Packed(data=told[at : at + _PIECE_BYTES])

    method = grpc.unary_stream_rpc_method_handler(
        ask, request_deserializer=pb.Packed.FromString, response_serializer=pb.Packed.SerializeToString
    )
    return grpc.method_handlers_generic_handler("rmgr.v1.Work", {"Ask": method})
