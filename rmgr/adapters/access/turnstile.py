"""Shares out the threads of a leader's or Starter's server: people share what is left beside the places of daemons and operators."""

from __future__ import annotations

from collections.abc import Iterator

import grpc

from rmgr.adapters.access.auth import Caller, Continuation, Handler, Wrapped, caller_of
from rmgr.adapters.access.errors import fail
from rmgr.adapters.access.limits import Bounds
from rmgr.adapters.access.shares import Shares
from rmgr.errors import RmgrError
from rmgr.model.cluster.identity import Role

#: Calls that last as long as who makes them likes.
_STREAMS = frozenset({"/rmgr.v1.Node/Logs", "/rmgr.v1.Terminal/Attach"})
#: What is rationed elsewhere (calls by gateways), or never waits.
_FREE = ("/grpc.health.v1.Health/", "/rmgr.v1.Metaserver/Pick", "/rmgr.v1.Metaserver/Report")


class Turnstile(grpc.ServerInterceptor):
    """Args: bounds: what each user may have. threads: of the server: three eighths each for streams and calls of people."""

    def __init__(self, bounds: Bounds, threads: int) -> None:
        self._bounds = bounds
        self._made = Wrapped(self._wrap)
        self._streams = bounds.places("streams", max(2, threads * 3 // 8))
        self._calls = bounds.places("calls", max(2, threads * 3 // 8))

    def intercept_service(self, continuation: Continuation, details: grpc.HandlerCallDetails) -> Handler:
        """See grpc: wraps the method's handler."""
        return self._made.of(continuation(details), details.method)

    def _wrap(self, handler: Handler, method: str) -> Handler:
        if method.startswith(_FREE):
            return handler
        name = "streams" if method in _STREAMS else "calls"
        return self._wrapped(handler, name, self._streams if name == "streams" else self._calls)

    def _enter(self, context: grpc.ServicerContext, name: str, places: Shares) -> Caller | None:
        """Who calls, with a place that is to be given back; None for a daemon; else the call ends, by an exception."""
        caller = caller_of(context)
        if not caller.is_open and caller.on_behalf_of is None and caller.who is not None and not _is_person(caller):
            return None
        try:
            self._bounds.spend(caller.user)
            if not places.take(_name(caller), is_operator=not caller.is_open and caller.is_operator()):
                raise self._bounds.no_place(name, caller.user, places)
        except RmgrError as error:
            fail(context, error)
        return caller

    def _wrapped(self, handler: Handler, name: str, places: Shares) -> Handler:
        if handler.unary_unary is not None or handler.stream_unary is not None:
            behaviour = handler.unary_unary or handler.stream_unary

            def whole(request: object, context: grpc.ServicerContext) -> object:
                caller = self._enter(context, name, places)
                try:
                    return behaviour(request, context)
                finally:
                    if caller is not None:
                        places.give_back(_name(caller))

            make = grpc.unary_unary_rpc_method_handler if handler.unary_unary is not None else grpc.stream_unary_rpc_method_handler
            return make(whole, request_deserializer=handler.request_deserializer, response_serializer=handler.response_serializer)
        streams = handler.unary_stream or handler.stream_stream

        def parts(request: object, context: grpc.ServicerContext) -> Iterator[object]:
            caller = self._enter(context, name, places)
            try:
                yield from streams(request, context)
            finally:
                if caller is not None:
                    places.give_back(_name(caller))

        make = grpc.unary_stream_rpc_method_handler if handler.unary_stream is not None else grpc.stream_stream_rpc_method_handler
        return make(parts, request_deserializer=handler.request_deserializer, response_serializer=handler.response_serializer)


def _is_person(caller: Caller) -> bool:
    who = caller.who
    return who is not None and (who.is_person or who.role in (Role.ADMIN, Role.JOIN))


def _name(caller: Caller) -> str:
    return caller.user or (str(caller.who.role) if caller.who is not None else "")
