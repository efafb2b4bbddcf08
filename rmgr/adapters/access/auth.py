"""Callers and what they may call: mutual TLS for every gRPC channel and server of a secured cluster, denied by default.

A server demands of every caller a certificate of the cluster's authority; `METHODS` says which roles may call which method,
and methods that are not listed there are refused. A client names the role that it expects (`<role>.rmgr` in the server's
certificate), so addresses do not matter. Without credentials (an open cluster, on loopback only) there are no checks.

A single call is checked when it begins: TLS looks at dates only when a connection is made, and a person's connection lasts as long as
the person likes. So does a stream (logs, terminals, tunnels, large values): it is checked again twice a second, and ends when its
caller's key is revoked, or a person's certificate ends. Daemons renew theirs meanwhile. The streams on which clients speak of work check
themselves (`gateway/talk.py`), and give the reason.
"""

from __future__ import annotations

import json
import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import quote, unquote

import grpc
from google.protobuf.message_factory import GetMessageClass

from rmgr import errors
from rmgr.adapters.identity.credentials import Credentials, read_own
from rmgr.adapters.identity.pki import identity_of
from rmgr.errors import ConfigError, NotConnected, PermissionDenied, Unavailable
from rmgr.model.identity import Identity, Role

#: Metadata of a call: the user, percent-encoded. Believed from gateways only; in an open cluster, from everybody.
USER_KEY = "rmgr-user"
#: Metadata of a call: the user's role, `user` or `operator`.
ROLE_KEY = "rmgr-role"
#: Attribute of a call's context that remembers its caller: several layers ask for it.
_CALLER = "rmgr_caller"

_PEOPLE = frozenset({Role.USER, Role.OPERATOR, Role.ADMIN})
_ASKERS = _PEOPLE | {Role.SUBMITTER}
_DAEMONS = frozenset({Role.WATCHDOG, Role.STARTER, Role.SUBMITTER})
_STORE = ("Put", "PutRows", "Write", "GetMany", "Read", "About", "DeleteMany", "Keys", "Usage", "Health")
#: Full name of a method -> roles that may call it.
METHODS: dict[str, frozenset[Role]] = {
    **{f"/rmgr.v1.Leader/{name}": _ASKERS for name in ("Jobs", "Nodes", "Queues", "Status", "Explain", "WhatIf")},
    **{f"/rmgr.v1.Node/{name}": _ASKERS for name in ("Logs", "Running", "Stats")},
    "/rmgr.v1.Node/Clock": _ASKERS | {Role.WATCHDOG, Role.STARTER},
    **{f"/rmgr.v1.Ranks/{name}": frozenset({Role.STARTER}) for name in ("Prepare", "Suspend", "Launch", "Checkpoint")},
    "/rmgr.v1.Terminal/Attach": _PEOPLE,
    "/rmgr.v1.Work/Talk": _PEOPLE,
    "/rmgr.v1.Limits/Use": _ASKERS,
    "/rmgr.v1.Tunnel/Open": _PEOPLE,
    **{f"/rmgr.v1.Store/{name}": _PEOPLE for name in _STORE},
    **{f"/rmgr.v1.Calls/{name}": _PEOPLE for name in ("Call", "End", "Functions", "Servers", "Explain")},
    **{f"/rmgr.v1.Metaserver/{name}": frozenset({Role.SUBMITTER}) for name in ("Report", "Pick")},
    "/rmgr.v1.Metaserver/Servers": _ASKERS,
    **{f"/rmgr.v1.Calls/{name}": frozenset({Role.SERVER}) for name in ("Serve", "Take", "Give")},
    "/rmgr.v1.Join/Redeem": frozenset({Role.JOIN}),
    "/rmgr.v1.Join/Renew": _DAEMONS,
    **{f"/grpc.health.v1.Health/{name}": frozenset(Role) for name in ("Check", "Watch", "List")},
}

#: gRPC's types, which it does not declare: the handler of a method; the function by which an interceptor asks for it.
Handler: TypeAlias = grpc.RpcMethodHandler
Continuation = Callable[[grpc.HandlerCallDetails], Handler]
#: (method, caller or None, why): for the audit.
Refused = Callable[[str, Identity | None, errors.RmgrError], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The maker of a call.

    identity: the holder of the connection's certificate, None in an open cluster. on_behalf_of: the person for whom a gateway
    speaks. claimed: the name that the caller of an open cluster gives. ends_s: when the certificate of a person ends (wall clock).
    """

    identity: Identity | None = None
    on_behalf_of: Identity | None = None
    claimed: str = ""
    ends_s: float = math.inf

    @property
    def has_ended(self) -> bool:
        """Whether the certificate was valid when the connection was made, and is not any more."""
        return time.time() > self.ends_s

    @property
    def is_open(self) -> bool:
        """Whether the cluster is open: nobody is identified, everybody may do everything."""
        return self.identity is None

    @property
    def who(self) -> Identity | None:
        """The person or daemon whose wish the call is."""
        return self.on_behalf_of or self.identity

    @property
    def user(self) -> str:
        """The user's name; "" = unknown, or not a person (a gateway that speaks for nobody)."""
        if self.identity is None:
            return self.claimed
        who = self.on_behalf_of or self.identity
        return who.name if who.is_person or who.role is Role.ADMIN else ""

    def is_operator(self, operators: Iterable[str] = ()) -> bool:
        """Whether the caller may act on everybody's work: operators and admins by certificate, users named in `operators`."""
        who = self.who
        if who is None:
            return True
        return who.role in (Role.OPERATOR, Role.ADMIN) or (who.role is Role.USER and who.name in tuple(operators))

    @property
    def is_certified_operator(self) -> bool:
        """Whether the caller is an operator or admin by certificate, with reserved places where others wait. Never in an open cluster."""
        return not self.is_open and self.is_operator()


def caller_of(context: grpc.ServicerContext) -> Caller:
    """Returns the caller. Cost: 10 us the first time, then 0.2 us. Raises PermissionDenied if the certificate names nobody."""
    known = getattr(context, _CALLER, None)
    if not isinstance(known, Caller):
        known = _found(context)
        with suppress(AttributeError):  # not every kind of context has attributes
            setattr(context, _CALLER, known)
    return known


def _found(context: grpc.ServicerContext) -> Caller:
    metadata = {key: value for key, value in context.invocation_metadata() if isinstance(value, str)}
    told = unquote(metadata.get(USER_KEY, ""))
    auth = context.auth_context()
    if auth.get("transport_security_type") != [b"ssl"]:
        return Caller(claimed=told)
    names = auth.get("x509_subject_alternative_name")
    identity = identity_of([name.decode("utf-8", "replace") for name in names or ()])
    person: Identity | None = None
    ends_s = _ends_s(b"".join(auth.get("x509_pem_cert") or ())) if identity.role in _PEOPLE else math.inf
    if identity.role is Role.SUBMITTER and told:
        role = Role.OPERATOR if metadata.get(ROLE_KEY) == Role.OPERATOR else Role.USER
        person = Identity(name=told, role=role, cluster=identity.cluster)
    return Caller(identity=identity, on_behalf_of=person, ends_s=ends_s)


@lru_cache(1024)
def _ends_s(pem: bytes) -> float:
    """Returns when a certificate ends, which TLS has accepted. Cost: 0.05 ms the first time."""
    return read_own(pem).not_after_s if pem else math.inf


def speaking_for(caller: Caller) -> tuple[tuple[str, str], ...]:
    """Returns the metadata with which a gateway forwards a call of `caller`."""
    role = Role.OPERATOR if caller.is_certified_operator else Role.USER
    return ((USER_KEY, quote(caller.user)), (ROLE_KEY, role.value)) if caller.user else ()


#: The process whose threads run gRPC here, 0 = none yet.
_owner = 0


def check_not_forked() -> None:
    """Checks that gRPC works in this process: its threads live in the process that used it first; in a fork, no call would ever end.

    Raises: NotConnected.
    """
    if _owner not in {0, os.getpid()}:
        raise NotConnected(
            f"process {_owner}, from which this one was forked, has used gRPC (a gateway, output of running tasks): here it cannot be used",
            hint='start it anew, as multiprocessing.get_context("spawn") and subprocess do; or fork before rmgr.connect()',
        )


def _own() -> None:
    global _owner
    check_not_forked()
    _owner = os.getpid()


def open_channel(endpoint: str, credentials: Credentials | None, role: Role, options: Sequence[tuple[str, Any]]) -> grpc.Channel:
    """Returns a channel to a daemon that must prove a `role` of the cluster; a plain one without credentials.

    The channel presents the bundle's current certificate for its whole life.
    Raises: NotConnected in a forked child of a process that had a channel.
    """
    _own()
    if credentials is None:
        return grpc.insecure_channel(endpoint, options=options)
    certificate, key = credentials.newest().tls_pair
    return secure_channel(endpoint, (credentials.ca_pem, key, certificate), role, options)


def secure_channel(endpoint: str, pem: tuple[bytes, bytes, bytes], role: Role, options: Sequence[tuple[str, Any]]) -> grpc.Channel:
    """Returns a channel to a daemon that must prove the `role`. pem: the authority, our key and certificate. Raises as `open_channel`."""
    _own()
    expected = ("grpc.ssl_target_name_override", f"{role}.rmgr")
    return grpc.secure_channel(endpoint, grpc.ssl_channel_credentials(*pem), options=(*options, expected))


class ServerIdentity:
    """The certificate that a server presents: always the bundle's newest, so that a renewed one needs no restart."""

    def __init__(self, credentials: Credentials) -> None:
        self._shown = credentials
        self._file = Path(credentials.path("tls.crt"))
        self._stamp = self._look()

    @property
    def credentials(self) -> grpc.ServerCredentials:
        """For `Server.add_secure_port`: a caller without a certificate of the cluster fails the handshake."""
        return grpc.dynamic_ssl_server_credentials(_configuration(self._shown), self._fetch, require_client_authentication=True)

    def _look(self) -> tuple[int, int]:
        try:
            found = self._file.stat()
        except OSError:
            return 0, 0
        return found.st_mtime_ns, found.st_ino

    def _fetch(self) -> grpc.ServerCertificateConfiguration | None:
        """Returns a changed configuration, else None. Called at every handshake. Cost: a look at the file's time."""
        stamp = self._look()
        if stamp != self._stamp:
            with suppress(ConfigError):  # half written, or another cluster's: the old certificate stays valid until it ends
                fresh = Credentials.load(self._file.parent, roles=(self._shown.identity.role,))
                self._stamp = stamp
                if fresh.ca_pem == self._shown.ca_pem:
                    self._shown = fresh
                    return _configuration(fresh)
        return None


@dataclass(frozen=True)
class Single(grpc.RpcMethodHandler):
    """A handler that takes a stream but reads one request only, so that it does not count as a stream to be watched."""

    request_streaming: bool
    response_streaming: bool
    request_deserializer: Callable[[bytes], object] | None
    response_serializer: Callable[[object], bytes] | None
    unary_unary: None = None
    unary_stream: None = None
    stream_unary: Callable[..., object] | None = None
    stream_stream: Callable[..., object] | None = None


class Wrapper(grpc.ServerInterceptor):
    """Wraps the handlers of methods: each once, not for each call on the single thread that takes all calls."""

    def __init__(self) -> None:
        self._made: dict[str, tuple[Handler, Handler]] = {}

    def intercept_service(self, continuation: Continuation, details: grpc.HandlerCallDetails) -> Handler:
        """See grpc. Cost: 0.2 us after the first time."""
        handler, method = continuation(details), details.method
        if handler is None:
            return None
        known = self._made.get(method)
        if known is None or known[0] is not handler:
            self._made[method] = known = handler, self._wrap(handler, method)
        return known[1]

    def _wrap(self, handler: Handler, method: str) -> Handler:
        """Returns the wrapped handler of a method."""
        raise NotImplementedError


def wrapped(handler: Handler, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Handler:
    """Returns the handler with its function wrapped, whose arguments are the request, or requests, and the context."""
    behaviour = handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
    make = _MAKERS[bool(handler.request_streaming), bool(handler.response_streaming)]
    return make(
        wrap(behaviour), request_deserializer=handler.request_deserializer, response_serializer=handler.response_serializer
    )


#: (many requests, many replies) -> maker of such a method's handler.
_MAKERS: dict[tuple[bool, bool], Callable[..., Handler]] = {
    (False, False): grpc.unary_unary_rpc_method_handler,
    (False, True): grpc.unary_stream_rpc_method_handler,
    (True, False): grpc.stream_unary_rpc_method_handler,
    (True, True): grpc.stream_stream_rpc_method_handler,
}


def service(messages: Any, name: str, **methods: Callable[[Any, grpc.ServicerContext], Any]) -> grpc.GenericRpcHandler:
    """Returns the service of this name, for `RpcServer.add_generic`; without the methods that are not named here.

    messages: the module made of its `.proto`, which says what each method takes and returns. methods: each is called with the request, or
    requests, and the context of the call; an RmgrError ends the call with it.
    """
    described = messages.DESCRIPTOR.services_by_name[name]
    handlers = {method: _handler(described.methods_by_name[method], answer) for method, answer in methods.items()}
    return grpc.method_handlers_generic_handler(described.full_name, handlers)


def _handler(described: Any, answer: Callable[[Any, grpc.ServicerContext], Any]) -> Handler:
    def whole(message: Any, context: grpc.ServicerContext) -> Any:
        try:
            return answer(message, context)
        except errors.RmgrError as error:
            return fail(context, error)

    def parts(message: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        try:
            yield from answer(message, context)
        except errors.RmgrError as error:
            fail(context, error)

    request, reply = GetMessageClass(described.input_type), GetMessageClass(described.output_type)
    make = _MAKERS[described.client_streaming, described.server_streaming]
    return make(
        parts if described.server_streaming else whole,
        request_deserializer=request.FromString,
        response_serializer=reply.SerializeToString,
    )


class Doorkeeper(Wrapper):
    """Admits a call if `METHODS` allows it for the caller's role and the caller's key is not revoked; ends open streams on revocation.

    Args:
        cluster: the trust domain that certificates must name. is_revoked: called with a key id.
        refused: called for every rejected call.
    """

    def __init__(self, cluster: str, *, is_revoked: Callable[[str], bool] = lambda _: False, refused: Refused | None = None) -> None:
        super().__init__()
        self._cluster = cluster
        self._is_revoked = is_revoked
        self._refused = refused or (lambda *_: None)
        self._streams = Expeller(is_revoked, self._refused)

    def _wrap(self, handler: Handler, method: str) -> Handler:
        is_stream = bool(handler.response_streaming or (handler.request_streaming and not isinstance(handler, Single)))

        def checking(behaviour: Callable[..., Any]) -> Callable[..., Any]:
            def checked(request: object, context: grpc.ServicerContext) -> object:
                self._check(method, context, is_stream=is_stream)
                return behaviour(request, context)

            return checked

        return wrapped(handler, checking)

    def _check(self, method: str, context: grpc.ServicerContext, *, is_stream: bool) -> None:
        """Ends the call by an exception unless it is allowed."""
        who: Identity | None = None
        try:
            caller = caller_of(context)
            who = caller.identity
            if who is None or who.cluster != self._cluster:
                raise PermissionDenied("this cluster is secured, and the call does not say who makes it")
            if who.role not in METHODS.get(method, frozenset()):
                is_person = who.role in (Role.USER, Role.OPERATOR)
                hint = "" if is_person else "commands take a person's bundle: rmgr admin add-user NAME makes one"
                raise PermissionDenied(f"{method} is not for a {who.role} such as {who.name}", hint=hint)
            if not who.key_id or self._is_revoked(who.key_id):
                raise revoked_error(who)
            if caller.has_ended:
                raise ended_error(who)
            if is_stream:
                self._streams.watch(method, caller, context)
        except PermissionDenied as error:
            self._refused(method, who, error)
            fail(context, error)
        except Unavailable as error:
            fail(context, error)


# -- inside ------------------------------------------------------------------------------------------------------------------


def revoked_error(who: Identity) -> PermissionDenied:
    """Returns why nothing more is done for somebody whose key was revoked."""
    return PermissionDenied(f"the key of {who.role} {who.name} was revoked", hint="ask the cluster's admin for a new one")


def ended_error(who: Identity) -> Unavailable:
    """Returns why nothing more is done on a connection that has shown a certificate which has ended: another may show a renewed one."""
    hint = "ask the cluster's admin for a new bundle; if this one was renewed, try again"
    return Unavailable(f"the certificate of {who.role} {who.name} has ended", hint=hint)


def _configuration(credentials: Credentials) -> grpc.ServerCertificateConfiguration:
    certificate, key = credentials.tls_pair
    return grpc.ssl_server_certificate_configuration([(key, certificate)], root_certificates=credentials.ca_pem)


# -- streams of callers whose key is revoked, or whose certificate ends ---------------------------------------------------------


#: Streams that end themselves and give the reason.
_OWN = frozenset({"/rmgr.v1.Work/Talk"})
_LOOK_S = 0.5
#: Number of idle checks after which the thread ends.
_IDLE_LOOKS = 20


class Expeller:
    """Ends the streams of one server's expelled users. Thread-safe; has a thread only while there are streams.

    Args: is_revoked: called with a key id. expelled: called for each ended stream.
    """

    def __init__(self, is_revoked: Callable[[str], bool], expelled: Refused) -> None:
        self._is_revoked = is_revoked
        self._expelled = expelled
        self._live: dict[grpc.ServicerContext, tuple[str, Caller]] = {}
        self._lock = threading.Lock()
        self._looks = False

    def watch(self, method: str, caller: Caller, context: grpc.ServicerContext) -> None:
        """Watches a stream that begins. Cost: 5 us. Raises Unavailable if no thread can be started: then the stream must end."""
        if method in _OWN:
            return
        with self._lock:
            if not self._looks:
                try:
                    threading.Thread(target=self._look, name="rpc-revoked", daemon=True).start()
                except RuntimeError as error:
                    raise Unavailable(f"this daemon has no thread left ({error})", hint="try again; rmgr doctor") from None
                self._looks = True
            self._live[context] = method, caller
        if not context.add_callback(lambda: self._over(context)):
            self._over(context)

    def _over(self, context: grpc.ServicerContext) -> None:
        with self._lock:
            self._live.pop(context, None)

    def _look(self) -> None:
        pause = threading.Event()
        idle = 0
        while True:
            pause.wait(_LOOK_S)
            with self._lock:
                live = list(self._live.items())
                idle = 0 if live else idle + 1
                if idle > _IDLE_LOOKS:
                    self._looks = False
                    return
            for context, (method, caller) in live:
                who = caller.identity
                if who is not None and (caller.has_ended or self._is_revoked(who.key_id)):
                    self._over(context)
                    context.cancel()
                    self._expelled(method, who, ended_error(who) if caller.has_ended else revoked_error(who))


# -- errors: a failed call carries class, code and hint of its error, and the caller raises the same class again ---------------


#: Trailing metadata of a failed call: class, code and hint of the error.
ERROR_KEY = "rmgr-error"
#: Most characters of an error message: it travels in a header, and headers are limited.
_ERROR_CHARS = 2000
#: gRPC's words for a server whose certificate is not the expected one.
_NOT_THE_ONE = ("CERTIFICATE_VERIFY_FAILED", "Verification Check failed", "is not in peer certificate")
#: Its words, of several releases, for a name without an address.
_NO_SUCH_HOST = ("errors resolving ", "DNS resolution failed", "Name resolution failure")

_STATUS = {
    "USAGE": grpc.StatusCode.INVALID_ARGUMENT,
    "NOT_FOUND": grpc.StatusCode.NOT_FOUND,
    "PERMISSION": grpc.StatusCode.PERMISSION_DENIED,
    "UNAVAILABLE": grpc.StatusCode.UNAVAILABLE,
    "RESOURCE_EXHAUSTED": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "INFEASIBLE": grpc.StatusCode.FAILED_PRECONDITION,
    "CONFLICT": grpc.StatusCode.ABORTED,
}


def fail(context: grpc.ServicerContext, error: errors.RmgrError) -> None:
    """Ends a call with `error`; raises, so that the handler ends as well."""
    code, words = answer_with(context, error)
    context.abort(code, words)


def answer_with(context: grpc.ServicerContext, error: errors.RmgrError) -> tuple[grpc.StatusCode, str]:
    """Makes `error` the answer of a call whose handler ends without another one; returns it as gRPC has it."""
    told = {"type": name_of(error), "code": error.code, "hint": error.hint[:_ERROR_CHARS]}
    code, words = _STATUS.get(error.code, grpc.StatusCode.INTERNAL), error.message[:_ERROR_CHARS]
    context.set_trailing_metadata(((ERROR_KEY, json.dumps(told)),))
    context.set_code(code)
    context.set_details(words)
    return code, words


def name_of(error: errors.RmgrError) -> str:
    """Returns the name under which an error travels: the other end knows the classes of `rmgr.errors`, not those derived elsewhere."""
    return next(kind.__name__ for kind in type(error).__mro__ if kind.__module__ == errors.__name__)


def named_error(name: str, message: str, hint: str) -> errors.RmgrError:
    """Returns an error of class `name` of `rmgr.errors`; for a class that this release does not know, an RmgrError."""
    kind = getattr(errors, name, None)
    if not (isinstance(kind, type) and issubclass(kind, errors.RmgrError)):
        kind = errors.RmgrError
    made = kind.__new__(kind)
    errors.RmgrError.__init__(made, message, hint=hint)
    return made


def rebuild(error: grpc.RpcError, endpoint: str) -> errors.RmgrError:
    """Returns the peer's error as its own class, or Unavailable if there was no answer."""
    trailing = dict(error.trailing_metadata() or ())
    if ERROR_KEY in trailing:
        try:
            told = json.loads(trailing[ERROR_KEY])
            return named_error(str(told["type"]), error.details() or "", str(told["hint"]))
        except (*errors.UNREADABLE_TEXT, KeyError, TypeError):
            return errors.Unavailable(f"{endpoint} answers with an error that cannot be read", hint="rmgr version")
    code = error.code()
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return errors.Unavailable(f"{endpoint} did not answer in time", hint="rmgr doctor")
    details = error.details() or ""
    if any(words in details for words in _NOT_THE_ONE):
        return errors.PermissionDenied(
            f"what answers at {endpoint} has no certificate of this cluster for what it should be",
            hint="is the address right? is [security] dir (RMGR_SECURITY_DIR) that of this cluster?",
        )
    if "WRONG_VERSION_NUMBER" in details:
        return errors.PermissionDenied(
            f"what answers at {endpoint} does not speak TLS: that cluster is open, and here are credentials",
            hint="is the address right? for an open cluster unset [security] dir (RMGR_SECURITY_DIR)",
        )
    if details.startswith("failed to connect") and details.endswith("Socket closed"):
        hint = "it hangs up at once: if that cluster is secured, set RMGR_SECURITY_DIR to your bundle of it; rmgr doctor"
        return errors.Unavailable(f"{endpoint} does not talk to us", hint=hint)
    if details.startswith(_NO_SUCH_HOST):
        told = f"{endpoint} cannot be reached: no host of this name is known here"
        return errors.Unavailable(told, hint="is the name right? rmgr doctor")
    why = "nothing listens there" if details.endswith("Connection refused") else code.name.lower().replace("_", " ")
    return errors.Unavailable(f"{endpoint} cannot be reached ({why})", hint="rmgr doctor")
