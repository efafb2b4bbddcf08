"""Requests between the Starters of one job: hold your part ready (Prepare), and run processes in it (Launch)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import grpc

from rmgr import errors
from rmgr.adapters.access.auth import open_channel, rebuild, service
from rmgr.adapters.identity.credentials import Credentials
from rmgr.adapters.rpc.channels import IDLE_OPTIONS, OPTIONS, Channels
from rmgr.model.identity import Role
from rmgr.v1 import node_pb2, node_pb2_grpc

#: Seconds that a handler waits before it checks whether its caller is still there.
_LOOK_S = 0.5
#: Longest wait (s) for a hold that is requested without a deadline.
_LONGEST_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of a checkpoint on another node: measure, ask, collect, restore. The fields are those of the message."""

    step: str
    number: int = 0
    stop: bool = False
    left_us: int = 0
    max_bytes: int = 0
    row: str = ""


class RanksLink(Protocol):
    """Both directions of one launch, on the node that runs it."""

    def send(self, data: bytes) -> bool:
        """Passes bytes on; returns False if the program there is gone."""

    def pieces(self) -> Iterator[bytes]:
        """Yields the bytes that come back, until they end."""

    def close(self) -> None:
        """Ends the program, from any thread. Idempotent."""


class RanksAnswers(Protocol):
    """Implemented by the Starter; called on threads of the server."""

    def prepare(self, node: str, hold: str, *, head: str, cores: int) -> Future[Any]:
        """Returns a future, done once the hold on that node has its cores, with the `life` and `incarnation` of the node.

        Raises: NotFound if this Starter does not serve the node.
        """

    def suspend(self, node: str, hold: str, *, resume: bool, out_of_turn_us: int = 0) -> None:
        """Stops or continues all work in the hold. out_of_turn_us: how long a gang's work may run so. Raises: NotFound, Unavailable."""

    def checkpoint(self, node: str, hold: str, step: Step) -> tuple[int, str]:
        """Does the step; returns (bytes, key of a row). Takes as long as the files take. Raises: NotFound, DataLost, ValueTooLarge, ..."""

    def launch(self, node: str, hold: str) -> RanksLink:
        """Starts a launch in the hold. Raises: NotFound if no such hold has its cores; Unavailable."""


def handler_of(answers: RanksAnswers) -> grpc.GenericRpcHandler:
    """Returns the service `rmgr.v1.Ranks`."""

    def prepare(request: Any, context: grpc.ServicerContext) -> Any:
        ready = answers.prepare(request.node, request.hold, head=request.head, cores=request.cores)
        left_s = min(context.time_remaining() or _LONGEST_S, _LONGEST_S)
        while left_s > 0 and context.is_active():
            with suppress(TimeoutError):
                hold = ready.result(min(_LOOK_S, left_s))
                return node_pb2.PrepareReply(process=hold.life, incarnation=hold.incarnation)
            left_s -= _LOOK_S
        ready.cancel()
        raise errors.DeadlineExceeded(f"node {request.node} has no room for {request.hold} yet")

    def suspend(request: Any, _: grpc.ServicerContext) -> Any:
        answers.suspend(request.node, request.hold, resume=request.resume, out_of_turn_us=request.out_of_turn_us)
        return node_pb2.SuspendReply()

    def checkpoint(request: Any, _: grpc.ServicerContext) -> Any:
        step = Step(**{name: getattr(request, name) for name in Step.__slots__})
        size, row = answers.checkpoint(request.node, request.hold, step)
        return node_pb2.CheckpointReply(size_bytes=size, row=row)

    def launch(requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
        first = next(requests, None)
        if first is None:
            return
        link = answers.launch(first.node, first.hold)
        for piece in carried(link, requests, first.data, context, "ranks-in"):
            yield node_pb2.LaunchChunk(data=piece)

    return service(node_pb2, "Ranks", Prepare=prepare, Suspend=suspend, Checkpoint=checkpoint, Launch=launch)


def carried(link: RanksLink, requests: Iterator[Any], first: bytes, context: grpc.ServicerContext, thread: str) -> Iterator[bytes]:
    """Yields what the link sends, while a thread of this name passes the caller's bytes to the link. The link ends with the call."""
    context.add_callback(link.close)
    threading.Thread(target=_feed, args=(requests, link, first), name=thread, daemon=True).start()
    try:
        yield from link.pieces()
    finally:
        link.close()


def _feed(requests: Iterator[Any], link: RanksLink, first: bytes) -> None:
    """Passes on the caller's bytes until there are no more: the program goes on. If they cannot be read, the link ends."""
    try:
        if first and not link.send(first):
            return
        for chunk in requests:
            if not link.send(chunk.data):
                return
    except grpc.RpcError:
        link.close()


class Peers:
    """The other Starters, as seen by the one that runs a job's script. Thread-safe; one channel per endpoint."""

    def __init__(self, credentials: Credentials | None = None) -> None:
        options = (*OPTIONS, *IDLE_OPTIONS)
        self._channels = Channels(lambda endpoint: open_channel(endpoint, credentials, Role.STARTER, options))

    def prepare(
        self,
        endpoint: str,
        node: str,
        hold: str,
        *,
        head: str,
        cores: int,
        timeout_s: float,
    ) -> Future[Any]:
        """Asks; the reply has the life (`process`) and the incarnation of the node once it is ready."""
        return self._ask(endpoint, "Prepare", node_pb2.PrepareRequest(node=node, hold=hold, head=head, cores=cores), timeout_s)

    def suspend(
        self,
        endpoint: str,
        node: str,
        hold: str,
        *,
        resume: bool,
        out_of_turn_us: int = 0,
        timeout_s: float,
    ) -> Future[Any]:
        """Asks; the reply comes when it is done."""
        request = node_pb2.SuspendRequest(node=node, hold=hold, resume=resume, out_of_turn_us=out_of_turn_us)
        return self._ask(endpoint, "Suspend", request, timeout_s)

    def _ask(self, endpoint: str, method: str, request: Any, timeout_s: float) -> Future[Any]:
        """Returns the reply to come, or an error of `rmgr.errors`; whoever gives the question up may end the future."""
        answer: Future[Any] = Future()

        def answered(future: Any) -> None:
            with suppress(InvalidStateError):  # the question was given up
                try:
                    answer.set_result(future.result())
                except grpc.RpcError as error:
                    answer.set_exception(rebuild(error, endpoint))
                except grpc.FutureCancelledError:
                    answer.set_exception(errors.Unavailable(f"{endpoint}: the question was withdrawn"))

        ask = getattr(node_pb2_grpc.RanksStub(self._channels.get(endpoint)), method)
        ask.future(request, timeout=timeout_s, wait_for_ready=True).add_done_callback(answered)
        return answer

    def checkpoint(self, endpoint: str, node: str, hold: str, step: Step, *, timeout_s: float) -> tuple[int, str]:
        """Asks and waits; returns (bytes, key of a row). Raises: the other Starter's error; Unavailable, DeadlineExceeded."""
        request = node_pb2.CheckpointRequest(node=node, hold=hold, **asdict(step))
        try:
            reply = node_pb2_grpc.RanksStub(self._channels.get(endpoint)).Checkpoint(request, timeout=timeout_s)
        except grpc.RpcError as error:
            raise rebuild(error, endpoint) from None
        return reply.size_bytes, reply.row

    def launch(self, endpoint: str, node: str, hold: str, sent: Iterator[bytes]) -> tuple[Iterator[bytes], Callable[[], None]]:
        """Returns (the bytes that come back until they end, a function that ends the call). Iterating raises errors of `rmgr.errors`."""

        def chunks() -> Iterator[Any]:
            yield node_pb2.LaunchChunk(node=node, hold=hold)
            for data in sent:
                yield node_pb2.LaunchChunk(data=data)

        call = node_pb2_grpc.RanksStub(self._channels.get(endpoint)).Launch(chunks())

        def pieces() -> Iterator[bytes]:
            try:
                for chunk in call:
                    yield chunk.data
            except grpc.RpcError as error:
                raise rebuild(error, endpoint) from None

        return pieces(), call.cancel

    def close(self) -> None:
        """Ends all channels. Idempotent."""
        self._channels.close()
