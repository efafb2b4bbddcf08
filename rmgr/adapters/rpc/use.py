"""`rmgr.v1.Limits` over gRPC: how much each user holds of the shared resources, asked of the leader or of a gateway."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import grpc
import msgspec

from rmgr.adapters.access.auth import USER_KEY, Caller, caller_of, unary
from rmgr.adapters.identity.credentials import Credentials
from rmgr.adapters.rpc.channels import Client
from rmgr.errors import Unavailable
from rmgr.model.cluster.identity import Role
from rmgr.model.cluster.queue import UserLimits
from rmgr.model.wire.stream import UNREADABLE, json_decoder
from rmgr.v1 import limits_pb2, limits_pb2_grpc


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


def handler_of(answers: UseAnswers) -> Any:
    """Returns the service for `RpcServer.add_generic`."""

    def use(request: Any, context: grpc.ServicerContext) -> Any:
        told = answers.use(tuple(request.users), fresh=request.fresh, caller=caller_of(context))
        users = [limits_pb2.UserUse(user=name, used=one.used, refused=one.refused) for name, one in told.users.items()]
        settings = msgspec.json.encode(told.limits).decode()
        return limits_pb2.UseReply(users=users, age_s=told.age_s, settings=settings, problem=told.problem)

    return grpc.method_handlers_generic_handler("rmgr.v1.Limits", {"Use": unary(use, limits_pb2.UseRequest, limits_pb2.UseReply)})


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
