"""gRPC of terminals: a person's keys to a command on a node, and what it shows back."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

import grpc

from rmgr import errors
from rmgr.adapters.access.auth import Caller, caller_of, open_channel
from rmgr.adapters.access.errors import fail, rebuild
from rmgr.adapters.identity.credentials import Credentials
from rmgr.adapters.rpc.ranks import RanksLink, feed
from rmgr.adapters.rpc.server import OPTIONS
from rmgr.model.cluster.identity import Role
from rmgr.v1 import terminal_pb2, terminal_pb2_grpc

if TYPE_CHECKING:
    from rmgr.adapters.terminals.tunnel import Tunnel


class TerminalAnswers(Protocol):
    """Implemented by the Starter; called on threads of the server."""

    def attach(self, submission: int, index: int, *, caller: Caller) -> RanksLink:
        """The terminal of a command that runs here. Raises: NotFound, PermissionDenied, Unavailable while it is not there yet."""


def handler_of(answers: TerminalAnswers) -> Any:
    """For `RpcServer.add_generic`."""

    def attach(requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
        first = next(requests, None)
        if first is None:
            return
        try:
            link = answers.attach(first.submission, first.index, caller=caller_of(context))
        except errors.RmgrError as error:
            fail(context, error)
        context.add_callback(link.close)
        threading.Thread(target=feed, args=(requests, link, first.data), name="terminal-in", daemon=True).start()
        try:
            for piece in link.pieces():
                yield terminal_pb2.TerminalChunk(data=piece)
        finally:
            link.close()

    return grpc.method_handlers_generic_handler(
        "rmgr.v1.Terminal",
        {
            "Attach": grpc.stream_stream_rpc_method_handler(
                attach,
                request_deserializer=terminal_pb2.TerminalChunk.FromString,
                response_serializer=terminal_pb2.TerminalChunk.SerializeToString,
            )
        },
    )


class TerminalClient:
    """A channel to the Starter of one node. via: a gateway that passes its bytes on, "" = none."""

    def __init__(self, endpoint: str, *, via: str = "", credentials: Credentials | None = None) -> None:
        self._endpoint = endpoint
        self._tunnel = _tunnel(via, endpoint, credentials) if via else None
        target = self._tunnel.target if self._tunnel is not None else endpoint
        self._channel = open_channel(target, credentials, Role.STARTER, OPTIONS)

    def attach(self, submission: int, index: int, sent: Iterator[bytes]) -> Iterator[bytes]:
        """What the command shows, until it has ended or `close`.

        Iterating raises: NotFound, PermissionDenied, Unavailable; of a gateway also QueueFull, VersionMismatch.
        """

        def chunks() -> Iterator[Any]:
            yield terminal_pb2.TerminalChunk(submission=submission, index=index)
            for data in sent:
                yield terminal_pb2.TerminalChunk(data=data)

        try:
            for chunk in terminal_pb2_grpc.TerminalStub(self._channel).Attach(chunks()):
                yield chunk.data
        except grpc.RpcError as error:
            refusal = self._tunnel.refusal if self._tunnel is not None else None
            raise refusal or rebuild(error, self._endpoint) from None

    def close(self) -> None:
        """Idempotent."""
        self._channel.close()
        if self._tunnel is not None:
            self._tunnel.close()


def _tunnel(via: str, endpoint: str, credentials: Credentials | None) -> Tunnel:
    from rmgr.adapters.terminals.tunnel import Tunnel

    return Tunnel(via, endpoint, credentials=credentials)
