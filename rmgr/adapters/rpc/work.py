"""`rmgr.v1.Work/Ask` over gRPC: one question, one answer, both as bytes; a long answer comes in pieces."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol
from urllib.parse import quote

import grpc

from rmgr.adapters.access.auth import USER_KEY, Caller, caller_of
from rmgr.adapters.access.errors import fail, rebuild
from rmgr.adapters.identity.credentials import Credentials
from rmgr.adapters.rpc.gateways import Gateways
from rmgr.errors import NotConnected, RmgrError, Unavailable
from rmgr.v1 import work_pb2 as pb

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


class WorkAnswers(Protocol):
    """Implemented by the gateway; called on threads of the server."""

    def answer(self, data: bytes, caller: Caller, timeout_s: float) -> bytes:
        """The answer to a question. Raises what it is refused for."""


def handler_of(answers: WorkAnswers) -> grpc.GenericRpcHandler:
    """For `RpcServer.add_generic`."""

    def ask(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        left_s = context.time_remaining()
        timeout_s = _DEFAULT_S if left_s is None else min(left_s, _LONGEST_S)
        try:
            answer = answers.answer(request.data, caller_of(context), max(0.1, timeout_s))
        except RmgrError as error:
            fail(context, error)
            return
        for at in range(0, max(1, len(answer)), _PIECE_BYTES):
            yield pb.Packed(data=answer[at : at + _PIECE_BYTES])

    method = grpc.unary_stream_rpc_method_handler(
        ask, request_deserializer=pb.Packed.FromString, response_serializer=pb.Packed.SerializeToString
    )
    return grpc.method_handlers_generic_handler("rmgr.v1.Work", {"Ask": method})
