"""Calls that a gateway forwards unchanged: questions to the leader, and live logs from the Starter that has them.

Messages pass as bytes. Only the methods listed here exist, and only daemons that the cluster itself names are called: the leader that
`/epoch` names, and the endpoints that nodes have registered.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Generic, TypeVar

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from rmgr.adapters.access.auth import ERROR_KEY, caller_of, fail, open_channel, speaking_for
from rmgr.adapters.access.limits import Bounds
from rmgr.adapters.access.server_threads import Stalls
from rmgr.adapters.identity.credentials import Credentials
from rmgr.adapters.rpc.channels import IDLE_OPTIONS, OPTIONS, TARGET_KEY, Channels, Client
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.ports import Coordinator
from rmgr.coord.protocol.records import decode_record
from rmgr.errors import NotFound, PermissionDenied, RmgrError, Unavailable
from rmgr.model.identity import Role
from rmgr.model.node import EpochRecord, NodeRecord

C = TypeVar("C", bound=Client)
T = TypeVar("T")

LEADER_METHODS = ("Jobs", "Nodes", "Queues", "Status", "Explain", "WhatIf")
NODE_METHODS = ("Running", "Stats")
NODE_STREAMS = ("Logs",)
#: Logs followed at once through one gateway: each holds a thread.
MAX_STREAMS = 100
#: Questions under way, including those that wait for their turn; questions at once: a single interpreter answers for the leader.
MAX_QUESTIONS, _AT_ONCE = 128, 8
#: Cost of a question: the leader gathers everything it knows for it.
QUESTION_COST = 5.0
#: Seconds after which a followed log that nobody reads (a pager waits for a key) counts as forgotten.
FORGOTTEN_S = 900.0
_DEFAULT_S, _LONGEST_S = 5.0, 60.0
_NEVER_S = 1e8
#: Greatest age of the list of endpoints if it contains the wanted one; least age before another read if it does not.
FRESH_S, LOOK_AGAIN_S = 5.0, 0.5
_READ_S = 3.0


class ClusterRoutes:
    """Permitted destinations of calls in one cluster. Thread-safe. count: see `GatewayMetrics.count`."""

    def __init__(self, coordinator: Coordinator, count: Callable[[str, str], None]) -> None:
        self.count = count
        self._coordinator = coordinator
        self._lock = threading.Lock()
        self._leader: str | None = None  #: None: to be read again
        self._nodes: frozenset[str] = frozenset()
        self._nodes_read_s = -math.inf

    def leader(self, wanted: str) -> str:
        """Returns the leader's endpoint; `wanted` ("" = any leader) must be that endpoint. Raises Unavailable.

        Cost: nothing while `/epoch` does not change.
        """
        leader = self._leader
        if leader is None or (wanted and wanted != leader):
            leader = self._read_leader()
        if not leader:
            raise Unavailable("no WatchDog leads just now", hint="rmgr doctor")
        if wanted and wanted != leader:
            raise Unavailable(f"{wanted} does not lead any more", hint="ask again")
        return leader

    def node(self, wanted: str) -> str:
        """Returns `wanted` if it is the endpoint of a node of this cluster. Raises PermissionDenied, NotFound.

        Cost: a read of every node's record, at most once in 0.5 s.
        """
        if not wanted:
            raise NotFound("which node is to answer? the call names no endpoint")
        with self._lock:
            age_s = time.monotonic() - self._nodes_read_s
            found = wanted in self._nodes
        if age_s > (FRESH_S if found else LOOK_AGAIN_S):
            found = wanted in self._read_nodes()
        if not found:
            raise PermissionDenied(f"{wanted} is not the endpoint of a node of this cluster", hint="rmgr nodes -o NODE,ENDPOINT")
        return wanted

    def lost(self, endpoint: str) -> None:
        """Notes that `endpoint` did not answer: it may no longer be the right one."""
        if endpoint == self._leader:
            self._forget_leader()

    def _forget_leader(self) -> None:
        self._leader = None

    def _read_leader(self) -> str:
        found = self._coordinator.get(paths.EPOCH, watch=self._forget_leader, timeout_s=_READ_S).result(_READ_S + 1)
        leader = self._leader = "" if found is None else decode_record(found.data, EpochRecord, paths.EPOCH).endpoint
        return leader

    def _read_nodes(self) -> frozenset[str]:
        names = self._coordinator.children(paths.NODES, timeout_s=_READ_S).result(_READ_S + 1) or []
        records = self._coordinator.get_many([paths.node(name) for name in names], timeout_s=_READ_S).result(_READ_S + 1)
        endpoints = set()
        for name, record in zip(names, records, strict=True):
            if record is not None:
                with suppress(RmgrError):  # a record of another release may be unreadable
                    endpoints.add(decode_record(record.data, NodeRecord, paths.node(name)).endpoint)
        with self._lock:
            self._nodes, self._nodes_read_s = frozenset(endpoints - {""}), time.monotonic()
            return self._nodes


class LeaderLink(Generic[C]):
    """A client of the current leader, kept as long as it leads. Thread-safe. make: makes the client of an endpoint."""

    def __init__(self, routes: ClusterRoutes, make: Callable[[str], C]) -> None:
        self._routes = routes
        self._make = make
        self._lock = threading.Lock()
        self._client: C | None = None
        self.endpoint = ""  #: of the leader asked last

    def ask(self, question: Callable[[C], T]) -> T:
        """Returns the leader's answer. Raises what `ClusterRoutes.leader` and the question raise; Unavailable if the channel was closed."""
        self.endpoint = endpoint = self._routes.leader("")  # may ask ZooKeeper, each question for itself
        with self._lock:
            if self._client is None or self._client.endpoint != endpoint:
                self._drop()
                self._client = self._make(endpoint)
            client = self._client
        try:
            return question(client)
        except ValueError as error:  # in favour of the next leader's
            raise Unavailable(f"{endpoint}: {error}") from None
        except RmgrError:
            self._routes.lost(endpoint)
            self.close()  # the next one is opened with this gateway's certificate as of then
            raise

    def close(self) -> None:
        """Ends the channel; the next question opens another."""
        with self._lock:
            self._drop()

    def _drop(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None


class Forwarder:
    """The servicers of `rmgr.v1.Leader` and `rmgr.v1.Node` in a gateway.

    credentials: the gateway's own, None in an open cluster. The gateway tells daemons for whom it speaks.
    bounds: each user's limits at this gateway.
    """

    def __init__(self, routes: ClusterRoutes, *, credentials: Credentials | None = None, bounds: Bounds | None = None) -> None:
        self._routes = routes
        options = (*OPTIONS, *IDLE_OPTIONS)
        self._leaders = Channels(lambda endpoint: open_channel(endpoint, credentials, Role.WATCHDOG, options))
        self._nodes = Channels(lambda endpoint: open_channel(endpoint, credentials, Role.STARTER, options))
        self._bounds = bounds or Bounds()
        self._streams = self._bounds.places("streams", MAX_STREAMS)
        self._questions = self._bounds.turns("calls", at_once=_AT_ONCE, of_one=_AT_ONCE // 2, most=MAX_QUESTIONS - _AT_ONCE)
        self._stalls = Stalls(FORGOTTEN_S, lambda: routes.count("cut", "stalled"))

    @property
    def handlers(self) -> list[grpc.GenericRpcHandler]:
        """Handlers for `RpcServer.add_generic`."""
        leader = {name: grpc.unary_unary_rpc_method_handler(self._unary("Leader", name, self._routes.leader)) for name in LEADER_METHODS}
        node = {name: grpc.unary_unary_rpc_method_handler(self._unary("Node", name, self._routes.node)) for name in NODE_METHODS}
        node |= {name: grpc.unary_stream_rpc_method_handler(self._stream("Node", name, self._routes.node)) for name in NODE_STREAMS}
        return [
            grpc.method_handlers_generic_handler("rmgr.v1.Leader", leader),
            grpc.method_handlers_generic_handler("rmgr.v1.Node", node),
        ]

    def close(self) -> None:
        """Ends the channels. Idempotent."""
        for channels in (self._leaders, self._nodes):
            channels.close()

    def _unary(self, service: str, name: str, route: Callable[[str], str]) -> Callable[[bytes, grpc.ServicerContext], Any]:
        def pass_on(request: bytes, context: grpc.ServicerContext) -> Any:
            caller, end_s = caller_of(context), time.monotonic() + min(_left_s(context) or _DEFAULT_S, _LONGEST_S)
            with self._counted(context):
                self._bounds.spend(caller.user, QUESTION_COST)
                wait_s = max(0.1, end_s - time.monotonic())
                with self._questions.turn(caller.user, wait_s, is_operator=caller.is_certified_operator):
                    endpoint = route(_target(context))
                    call = self._channel(endpoint, service).unary_unary(f"/rmgr.v1.{service}/{name}")
                    self._routes.count("passed_on", name)
                    try:
                        return call(request, timeout=max(0.1, end_s - time.monotonic()), metadata=speaking_for(caller))
                    except grpc.RpcError as error:
                        return self._failed(context, endpoint, error)

        return pass_on

    def _stream(self, service: str, name: str, route: Callable[[str], str]) -> Callable[[bytes, grpc.ServicerContext], Iterator[Any]]:
        def pass_on(request: bytes, context: grpc.ServicerContext) -> Iterator[Any]:
            caller = caller_of(context)
            with self._counted(context):
                self._bounds.spend(caller.user, QUESTION_COST)
                with self._bounds.place("streams", caller.user, self._streams, is_operator=caller.is_certified_operator):
                    endpoint = route(_target(context))
                    begin = self._channel(endpoint, service).unary_stream(f"/rmgr.v1.{service}/{name}")
                    call = begin(request, timeout=_left_s(context), metadata=speaking_for(caller))
                    self._routes.count("passed_on", name)
                    if not context.add_callback(call.cancel):
                        call.cancel()
                        return
                    try:
                        yield from self._stalls.watched(context, call)
                    except grpc.RpcError as error:
                        self._failed(context, endpoint, error)
                    finally:
                        call.cancel()

        return pass_on

    @contextmanager
    def _counted(self, context: grpc.ServicerContext) -> Iterator[None]:
        """Ends the call by an exception if the block refuses it, and counts that."""
        try:
            yield
        except RmgrError as error:
            self._routes.count("refused", type(error).__name__)
            fail(context, error)

    def starter(self, context: grpc.ServicerContext) -> str:
        """Returns the endpoint that a call names, once a Starter of the cluster has answered there; else ends the call by an exception."""
        with self._counted(context):
            endpoint = self._routes.node(_target(context))
        try:
            health = health_pb2_grpc.HealthStub(self._channel(endpoint, "Node"))
            health.Check(health_pb2.HealthCheckRequest(service=""), timeout=_DEFAULT_S)
        except grpc.RpcError as error:
            self._failed(context, endpoint, error)
        self._routes.count("passed_on", "Open")
        return endpoint

    def _channel(self, endpoint: str, service: str) -> grpc.Channel:
        return (self._leaders if service == "Leader" else self._nodes).get(endpoint)

    def _failed(self, context: grpc.ServicerContext, endpoint: str, error: Any) -> None:
        """Passes on the daemon's own error unchanged; reports a missing answer as Unavailable."""
        trailing = tuple((key, value) for key, value in error.trailing_metadata() or () if key == ERROR_KEY)
        if trailing:
            context.set_trailing_metadata(trailing)
            context.abort(error.code(), error.details() or "")
        if error.code() is grpc.StatusCode.UNAVAILABLE:
            self._routes.lost(endpoint)
            for channels in (self._leaders, self._nodes):
                channels.forget(endpoint)
        late = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        message = "did not answer in time" if late else f"cannot be reached ({error.code().name.lower().replace('_', ' ')})"
        fail(context, Unavailable(f"{endpoint} {message}", hint="rmgr doctor"))


def _target(context: grpc.ServicerContext) -> str:
    """Returns the endpoint that a call names, "" for none."""
    return next((str(value) for key, value in context.invocation_metadata() if key == TARGET_KEY), "")


def _left_s(context: grpc.ServicerContext) -> float | None:
    """Returns the time until the caller's deadline, or None if absent: gRPC then reports hundreds of years, but rejects such a timeout."""
    left_s = context.time_remaining()
    return None if left_s is None or left_s > _NEVER_S else left_s
