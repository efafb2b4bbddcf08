"""Services of daemons over gRPC, and the clients that ask them: answers of the leader and of Starters to users (`rmgr.v1.Leader`, `Node`),
how much each user holds (`Limits`), and how machines enter a secured cluster (`Join`).

Handlers take and return nouns of `rmgr.model`; errors travel as status codes with `code` and `hint` in the trailing metadata, and arrive as
the same class of `rmgr.errors`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import grpc
import msgspec

from rmgr.adapters.access.auth import USER_KEY, Caller, caller_of, open_channel, rebuild, secure_channel, service
from rmgr.adapters.identity.credentials import Credentials
from rmgr.adapters.rpc.channels import OPTIONS, Client
from rmgr.adapters.rpc.convert import carry, from_message, to_message
from rmgr.adapters.rpc.thin import LeaderQuestions
from rmgr.errors import PermissionDenied, RmgrError, Unavailable
from rmgr.model.identity import Identity, Invitation, Role
from rmgr.model.queue import UserLimits
from rmgr.model.stream import UNREADABLE, json_decoder
from rmgr.model.views import ExplainView, JobView, NodeView, QueueView, StatusView, WhatIfView
from rmgr.v1 import join_pb2, leader_pb2_grpc, limits_pb2, limits_pb2_grpc, node_pb2, node_pb2_grpc
from rmgr.v1 import leader_pb2 as pb

if TYPE_CHECKING:
    from rmgr.adapters.identity.invitation import TlsPair

#: Most jobs in one reply of `Jobs`, which at about 1 KiB per job stays below the message limit.
MAX_JOBS_PER_REPLY = 3000
_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

# -- answers of the daemons ----------------------------------------------------------------------------------------------------


class LeaderAnswers(Protocol):
    """Implemented by the WatchDog; called on threads of the server, must not block for long."""

    def jobs(self, ids: tuple[int, ...], *, ended: bool, user: str, caller: Caller | None = None) -> list[JobView]:
        """Returns the submissions that the caller may see, oldest first. Raises PermissionDenied for one of `ids` that is hidden."""

    def nodes(self) -> list[NodeView]:
        """Returns all nodes, by name."""

    def queues(self) -> list[QueueView]:
        """Returns all queues, by name."""

    def status(self, *, caller: Caller | None = None) -> StatusView:
        """Returns health and counts; names a user only if the caller may see that user's work."""

    def explain(self, submission: int, index: int | None, *, caller: Caller | None = None) -> ExplainView:
        """Returns why the submission is in its state. Raises NotFound, PermissionDenied."""

    def what_if(self, record: bytes) -> WhatIfView:
        """Returns where and when the submission in this record would run. Raises NotFound (its queue), Unavailable, UsageError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPiece:
    """A piece of output of an attempt; `ended` with empty data means that nothing follows."""

    stream: str
    data: bytes
    offset: int
    attempt: int
    ended: bool = False
    time_us: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningTask:
    """A task that is running on a node."""

    submission: int
    index: int
    attempt: int
    node: str
    started_us: int
    cores: int = 1
    memory_bytes: int = 0
    pid: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStats:
    """Measurements of a node."""

    node: str
    cores_used: int
    memory_used_bytes: int
    running: int
    load: float
    disk_free_bytes: int = 0
    spooled_bytes: int = 0
    reason: str = ""
    resources_used: dict[str, int] = field(default_factory=dict)
    freezer: str = ""  #: how parts of gangs are stopped between their turns
    clock_error_us: int | None = None  #: of the clock that times the turns, while jobs take turns there
    switches: int = 0
    late_switches: int = 0


carry({LogPiece: node_pb2.LogChunk, RunningTask: node_pb2.RunningTask, NodeStats: node_pb2.NodeStats})


class NodeAnswers(Protocol):
    """Implemented by the Starter; called on threads of the server."""

    def logs(
        self,
        submission: int,
        index: int,
        *,
        attempt: int,
        stream: str,
        follow: bool,
        offsets: tuple[int, int],
        is_active: Callable[[], bool],
        caller: Caller | None = None,
    ) -> Iterator[LogPiece]:
        """Yields an attempt's output from (stdout, stderr) offsets on. Raises NotFound if the node does not know it, PermissionDenied."""

    def running(self, submission: int, *, caller: Caller | None = None) -> list[RunningTask]:
        """Returns the tasks that run here and that the caller may see, of one submission or of all (0)."""

    def incarnation_of(self, node: str) -> int:
        """Returns the incarnation of the node's current registration. Raises: NotFound if this Starter does not serve the node."""

    def stats(self) -> list[NodeStats]:
        """Returns one entry per virtual node."""


def leader_handler(answers: LeaderAnswers) -> grpc.GenericRpcHandler:
    """Returns the service `rmgr.v1.Leader`."""

    def jobs(request: Any, context: grpc.ServicerContext) -> Any:
        found = answers.jobs(tuple(request.ids), ended=request.ended, user=request.user, caller=caller_of(context))
        return pb.JobsReply(jobs=[to_message(job) for job in found[-MAX_JOBS_PER_REPLY:]])

    def nodes(_: Any, __: grpc.ServicerContext) -> Any:
        return pb.NodesReply(nodes=[to_message(node) for node in answers.nodes()])

    def queues(_: Any, __: grpc.ServicerContext) -> Any:
        return pb.QueuesReply(queues=[to_message(queue) for queue in answers.queues()])

    def status(_: Any, context: grpc.ServicerContext) -> Any:
        return to_message(answers.status(caller=caller_of(context)))

    def explain(request: Any, context: grpc.ServicerContext) -> Any:
        index = request.index if request.HasField("index") else None
        return to_message(answers.explain(request.submission, index, caller=caller_of(context)))

    def what_if(request: Any, _: grpc.ServicerContext) -> Any:
        return to_message(answers.what_if(request.submission))

    return service(pb, "Leader", Jobs=jobs, Nodes=nodes, Queues=queues, Status=status, Explain=explain, WhatIf=what_if)


def node_handler(answers: NodeAnswers) -> grpc.GenericRpcHandler:
    """Returns the service `rmgr.v1.Node`."""

    def logs(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        pieces = answers.logs(
            request.submission,
            request.index,
            attempt=request.attempt,
            stream=request.stream,
            follow=request.follow,
            offsets=(request.stdout_offset, request.stderr_offset),
            is_active=context.is_active,
            caller=caller_of(context),
        )
        return map(to_message, pieces)

    def running(request: Any, context: grpc.ServicerContext) -> Any:
        tasks = answers.running(request.submission, caller=caller_of(context))
        return node_pb2.RunningReply(tasks=[to_message(task) for task in tasks])

    def stats(_: Any, __: grpc.ServicerContext) -> Any:
        return node_pb2.StatsReply(nodes=[to_message(node) for node in answers.stats()], time_us=time.time_ns() // 1000)

    def clock(request: Any, _: grpc.ServicerContext) -> Any:
        incarnation = answers.incarnation_of(request.node)
        boot_us = time.clock_gettime_ns(_BOOTTIME) // 1000  # read last, so that it is true when it leaves
        return node_pb2.ClockReply(boot_us=boot_us, incarnation=incarnation)

    return service(node_pb2, "Node", Logs=logs, Running=running, Stats=stats, Clock=clock)


# -- clients -------------------------------------------------------------------------------------------------------------------


class LeaderClient(Client, LeaderQuestions):
    """Questions to the leading WatchDog over gRPC."""

    stub = leader_pb2_grpc.LeaderStub

    def _ask(self, method: str, request: Any) -> Any:
        return self._call(getattr(self._stub, method), request)

    def what_if(self, record: bytes) -> WhatIfView:
        """Returns where and when the submission in this record would run."""
        return from_message(WhatIfView, self._ask("WhatIf", pb.WhatIfRequest(submission=record)))


class NodeClient(Client):
    """Questions to a Starter."""

    role = Role.STARTER
    stub = node_pb2_grpc.NodeStub

    def logs(
        self,
        submission: int,
        index: int,
        *,
        attempt: int = 0,
        stream: str = "",
        follow: bool = False,
        offsets: tuple[int, int] = (0, 0),
        timeout_s: float | None = None,
    ) -> Iterator[LogPiece]:
        """Yields an attempt's output as it comes; with `follow`, until the attempt has ended or `timeout_s` (None: no end) is over.

        Raises: NotFound if the node does not know the attempt (any more); Unavailable if the node cannot be reached.
        """
        request = node_pb2.LogsRequest(
            submission=submission,
            index=index,
            attempt=attempt,
            stream=stream,
            follow=follow,
            stdout_offset=offsets[0],
            stderr_offset=offsets[1],
        )
        deadline = timeout_s if follow or timeout_s is not None else self.timeout_s
        try:
            for chunk in self._stub.Logs(request, timeout=deadline, metadata=self._metadata):
                yield from_message(LogPiece, chunk)
        except grpc.RpcError as error:
            raise rebuild(error, self.endpoint) from None

    def running(self, submission: int = 0) -> list[RunningTask]:
        """Returns the tasks that run there."""
        reply = self._call(self._stub.Running, node_pb2.RunningRequest(submission=submission))
        return [from_message(RunningTask, task) for task in reply.tasks]

    def stats(self) -> list[NodeStats]:
        """Returns one entry per virtual node."""
        reply = self._call(self._stub.Stats, node_pb2.StatsRequest())
        return [from_message(NodeStats, node) for node in reply.nodes]

    def clock(self, node: str) -> tuple[int, int]:
        """Returns (us since the machine booted, incarnation of the node). Raises: NotFound if the node is not served there."""
        reply = self._call(self._stub.Clock, node_pb2.ClockRequest(node=node))
        return reply.boot_us, reply.incarnation

    def time_us(self) -> int:
        """Returns the machine's time: microseconds since the epoch."""
        return int(self._call(self._stub.Stats, node_pb2.StatsRequest()).time_us)


# -- use and limits of users (rmgr.v1.Limits), asked of the leader or of a gateway ---------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class UserUse:
    """Use of one user: amounts held, and numbers of recently refused requests, both by name of the limit."""

    used: Mapping[str, int] = field(default_factory=dict)
    refused: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class UseAnswer:
    """An answer. age_s: of its oldest number. problem: why the cluster's numbers are missing, "" if they are there."""

    users: Mapping[str, UserUse]
    age_s: float = 0.0
    limits: UserLimits = UserLimits()
    problem: str = ""


class UseAnswers(Protocol):
    """Implemented by leader and gateway; called on threads of the server."""

    def use(self, users: Sequence[str], *, fresh: bool, caller: Caller) -> UseAnswer:
        """Returns the use of `users`; none = of the caller, for a gateway of everybody. Raises PermissionDenied, Unavailable."""


def use_handler(answers: UseAnswers) -> grpc.GenericRpcHandler:
    """Returns the service `rmgr.v1.Limits`."""

    def use(request: Any, context: grpc.ServicerContext) -> Any:
        told = answers.use(tuple(request.users), fresh=request.fresh, caller=caller_of(context))
        users = [limits_pb2.UserUse(user=name, used=one.used, refused=one.refused) for name, one in told.users.items()]
        settings = msgspec.json.encode(told.limits).decode()
        return limits_pb2.UseReply(users=users, age_s=told.age_s, settings=settings, problem=told.problem)

    return service(limits_pb2, "Limits", Use=use)


class UseClient(Client):
    """Asks at `endpoint`, which must prove the `role`. credentials: None in an open cluster. user: name of the asking user there."""

    stub = limits_pb2_grpc.LimitsStub

    def __init__(self, endpoint: str, *, role: Role, credentials: Credentials | None, timeout_s: float = 5.0, user: str = "") -> None:
        self.role = role
        super().__init__(endpoint, timeout_s=timeout_s, credentials=credentials)
        self._metadata = ((USER_KEY, user),) if user else ()

    def use(self, users: Sequence[str] = (), *, fresh: bool = False) -> UseAnswer:
        """Returns the use of `users`. Raises PermissionDenied, Unavailable."""
        request = limits_pb2.UseRequest(users=users, fresh=fresh)
        reply = self._call(self._stub.Use, request)
        found = {one.user: UserUse(used=dict(one.used), refused=dict(one.refused)) for one in reply.users}
        try:
            limits = json_decoder(UserLimits).decode(reply.settings) if reply.settings else UserLimits()
        except UNREADABLE as error:
            raise Unavailable(f"the limits of {self.endpoint} cannot be read: {error}", hint="rmgr version there and here") from None
        return UseAnswer(users=found, age_s=reply.age_s, limits=limits, problem=reply.problem)


# -- entry into a secured cluster, and a role's new secret (rmgr.v1.Join) ------------------------------------------------------


_JOIN = "rmgr.v1.Join"
_JOIN_S = 15.0


class JoinAnswers(Protocol):
    """Implemented by the WatchDog; called on threads of the server."""

    def redeem(self, invitation: str, nonce: str) -> Invitation:
        """Returns an invitation's bundle. Raises PermissionDenied, CoordinationUnavailable."""

    def renew(self, who: Identity, generation: int) -> tuple[int, str]:
        """Returns (generation, "role:secret") for the role of `who`. Raises PermissionDenied, CoordinationUnavailable."""


def join_handler(answers: JoinAnswers) -> grpc.GenericRpcHandler:
    """Returns the service `rmgr.v1.Join`. `METHODS` of `access/auth.py` says who may ask; in an open cluster nobody may."""

    def redeem(request: Any, context: grpc.ServicerContext) -> Any:
        identity = caller_of(context).identity
        if identity is None:
            raise PermissionDenied("this cluster is open: there is nothing to redeem")
        found = answers.redeem(identity.name, request.nonce)
        return join_pb2.RedeemReply(name=found.name, role=found.role, sealed=found.sealed.encode())

    def renew(request: Any, context: grpc.ServicerContext) -> Any:
        identity = caller_of(context).identity
        if identity is None:
            raise PermissionDenied("this cluster is open: there are no secrets")
        generation, secret = answers.renew(identity, request.generation)
        return join_pb2.RenewReply(generation=generation, secret=secret)

    return service(join_pb2, "Join", Redeem=redeem, Renew=renew)


def redeem(endpoints: Sequence[str], pair: TlsPair, nonce: str, *, timeout_s: float = _JOIN_S) -> tuple[str, Role, str, str]:
    """Returns (name, role, sealed bundle, endpoint that answered) for the holder of a token's certificate; asks WatchDogs in turn.

    Raises: PermissionDenied (used, expired, withdrawn, no nonce); Unavailable, which names the endpoints asked.
    """

    def dial(endpoint: str) -> grpc.Channel:
        return secure_channel(endpoint, (pair.ca, pair.key, pair.certificate), Role.WATCHDOG, OPTIONS)

    reply, endpoint = _ask(endpoints, dial, "Redeem", join_pb2.RedeemRequest(nonce=nonce), join_pb2.RedeemReply, timeout_s)
    return reply.name, Role(reply.role), reply.sealed.decode(), endpoint


def renew(endpoints: Sequence[str], credentials: Credentials, generation: int) -> tuple[int, str]:
    """Returns (generation, "role:secret"), the newest secret of our own role. Raises PermissionDenied, Unavailable."""

    def dial(endpoint: str) -> grpc.Channel:
        return open_channel(endpoint, credentials, Role.WATCHDOG, OPTIONS)

    reply, _ = _ask(endpoints, dial, "Renew", join_pb2.RenewRequest(generation=generation), join_pb2.RenewReply, _JOIN_S)
    return int(reply.generation), str(reply.secret)


def _ask(
    endpoints: Sequence[str], dial: Callable[[str], grpc.Channel], name: str, request: Any, reply: Any, timeout_s: float
) -> tuple[Any, str]:
    """Returns the first answer and its endpoint; after an endpoint that does not answer, asks the next."""
    trouble: RmgrError = Unavailable("no WatchDog is known to ask", hint="name one: --watchdog HOST:PORT")
    for endpoint in endpoints:
        with dial(endpoint) as channel:
            call = channel.unary_unary(f"/{_JOIN}/{name}", type(request).SerializeToString, reply.FromString)
            try:
                return call(request, timeout=timeout_s / max(1, len(endpoints)), wait_for_ready=False), endpoint
            except grpc.RpcError as error:
                trouble = rebuild(error, endpoint)
        if not isinstance(trouble, Unavailable):
            break
    raise trouble
