"""The gateway's side of the data store: the Store port as gRPC calls, with the rights of users, bounded memory and a deadline on each."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from hashlib import sha256
from typing import Any, Self

import grpc

from rmgr.adapters.access.auth import caller_of, fail
from rmgr.adapters.access.server_threads import Stalls, WaitingRoom
from rmgr.adapters.gateway.store import MESSAGE_BYTES, PAGE_KEYS
from rmgr.coord.contents import mark
from rmgr.coord.decisions.rights import Person
from rmgr.coord.protocol.keys import is_by_content
from rmgr.coord.protocol.ports import About, Encoding, Store
from rmgr.daemons.gateway.values import GatewayContext, OwnedStore, check_content, check_rows, visible
from rmgr.daemons.service.serving import audited
from rmgr.errors import PermissionDenied, RmgrError, StoreUnavailable, UsageError
from rmgr.runtime import machine
from rmgr.v1 import gateway_pb2 as pb

#: Bytes of rows that `PutRows` gathers before it writes them: the store commits about that much at once.
GATHER_BYTES = 8 * 1024 * 1024
#: Calls to the store at once; calls that may wait for their turn, and for how long (then they are refused, and their clients retry).
MAX_CALLS, _MOST_IN_LINE, _LINE_S = 32, 64, 5.0
#: Most of these calls that wait for the next part of a value: as many as one user may have; the rest is left to others.
MAX_WAITING = MAX_CALLS - MAX_CALLS // 4
#: Values up to this size (bytes) are read, however many are read together.
_LEAST_BYTES = 8 * 1024
#: Seconds after which a call is ended whose client takes no answer.
STALLED_S = 20.0
#: Rows of one answer to About: below 1 MiB with their keys.
ABOUT_ROWS = 500
_DEFAULT_S = 30.0
_LONGEST_S = 3600.0


class Rows:
    """The servicer of `rmgr.v1.Store`. owned: returns the store for one person, whose calls may raise PermissionDenied, too; None: values
    have no owners."""

    def __init__(self, context: GatewayContext, owned: Callable[[Person], OwnedStore] | None) -> None:
        self.context = context
        self.count, bounds = context.count, context.bounds
        self.turns = bounds.turns("calls", at_once=MAX_CALLS, of_one=MAX_WAITING, most=_MOST_IN_LINE, what="calls to the store")
        self._owned = owned
        self._uploads = WaitingRoom(MAX_WAITING, _LONGEST_S)  # a pipe may stay silent for long
        self._stalls = Stalls(STALLED_S, lambda: context.count("cut", "stalled", 1))

    def store_of(self, person: Person) -> Store:
        """Returns the store as this person may use it."""
        return self.context.store if self._owned is None else self._owned(person)

    def permit(self, person: Person, verb: str, keys: Sequence[str]) -> None:
        """See `check_rows`; audits a refusal."""
        with audited(self.context.log, person, verb, keys[0] if keys else ""):
            check_rows(person, verb, keys, self.context.owner_of)

    def permit_content(self, person: Person, key: str, digest: str) -> None:
        """See `check_content`; audits a refusal."""
        with audited(self.context.log, person, "PUT", key):
            check_content(key, digest)

    def visible(self, person: Person, keys: Sequence[str]) -> list[str]:
        """Returns those of `keys` that the person may know of."""
        rows = visible(person, keys, self.context.owner_of)
        return rows if self._owned is None else self._owned(person).listed(rows)

    @property
    def handler(self) -> grpc.GenericRpcHandler:
        """Handler for `RpcServer.add_generic`: a method that is not listed here does not exist."""
        unary, up = grpc.unary_unary_rpc_method_handler, grpc.stream_unary_rpc_method_handler
        down = grpc.unary_stream_rpc_method_handler
        methods = {
            "Put": self._method(unary, lambda request, call: self._put(iter([request]), call), pb.PutRequest),
            "PutRows": self._method(up, self._put, pb.PutRequest),
            "Write": self._method(up, self._write, pb.ValuePart),
            "GetMany": self._method(down, self.get_many, pb.KeysRequest),
            "Read": self._method(down, self._read, pb.KeyRequest),
            "About": self._method(down, self._about, pb.KeysRequest),
            "DeleteMany": self._method(unary, self._delete_many, pb.KeysRequest),
            "Keys": self._method(unary, self._keys, pb.ListRequest),
            "Usage": self._method(unary, self._usage, pb.ListRequest),
            "Health": self._method(unary, self._health, pb.HealthRequest),
        }
        return grpc.method_handlers_generic_handler("rmgr.v1.Store", methods)

    def _method(self, make: Callable[..., Any], answer: Callable[[Any, _Call], Any], request: Any) -> Any:
        streams, gathers = make is grpc.unary_stream_rpc_method_handler, make is grpc.stream_unary_rpc_method_handler

        def whole(message: Any, context: grpc.ServicerContext) -> Any:
            with _Call(self, context) as call:
                return answer(self._uploads.awaited(message, context) if gathers else message, call)

        def parts(message: Any, context: grpc.ServicerContext) -> Iterator[Any]:
            with _Call(self, context) as call:
                yield from self._stalls.watched(context, answer(message, call))

        handler = parts if streams else whole
        return make(handler, request_deserializer=request.FromString, response_serializer=lambda reply: reply.SerializeToString())

    # -- writing

    def _put(self, requests: Iterator[Any], call: _Call) -> Any:
        rows: list[Any] = []
        size = 0
        last: Any = None
        for request in requests:
            if size > GATHER_BYTES:
                self._put_rows(rows, last, call)
                rows, size = [], 0
            rows += request.rows
            size += request.ByteSize()
            last = request
        if rows:
            self._put_rows(rows, last, call)
        return pb.PutReply()

    def _put_rows(self, told: list[Any], request: Any, call: _Call) -> None:
        rows = [(row.key, row.data) for row in told]
        self.permit(call.person, "PUT", [key for key, _ in rows])
        notes = [row.note for row in told]
        for at, (key, value) in enumerate(rows):
            if is_by_content(key):
                self.permit_content(call.person, key, sha256(value).hexdigest())
                notes[at] = _mark_of(key, request)
        call.wrote(sum(len(value) for _, value in rows))
        options: dict[str, Any] = {
            "encoding": _encoding(request.encoding),
            "ttl_s": request.ttl_s if request.HasField("ttl_s") else None,
            "overwrite": request.overwrite,
            "timeout_s": call.left_s(),
        }
        replaces = {row.key: row.sha256 for row in told if row.sha256}
        if replaces:
            call.store.put_many(rows, notes=notes, replaces=replaces, **options)
        elif len(rows) == 1:
            call.store.put(*rows[0], note=notes[0], **options)
        else:
            call.store.put_many(rows, notes=notes, **options)

    def _write(self, parts: Iterator[Any], call: _Call) -> Any:
        first = next(parts, None)
        if first is None:
            raise UsageError("a value begins with its key")
        self.permit(call.person, "PUT", [first.key])
        note = b""

        def data() -> Iterator[bytes]:
            nonlocal note
            part = first
            digest = sha256()
            while not part.last:
                if part.data:
                    call.wrote(len(part.data))
                    digest.update(part.data)
                    yield part.data
                part = next(parts, None)
                if part is None:
                    raise StoreUnavailable("the value was broken off by the client")
            note = part.note
            if is_by_content(first.key):
                note = _mark_of(first.key, first)
                self.permit_content(call.person, first.key, digest.hexdigest())  # raises: then nothing is stored

        call.store.put(
            first.key,
            data(),
            encoding=_encoding(first.encoding),
            ttl_s=first.ttl_s if first.HasField("ttl_s") else None,
            overwrite=first.overwrite,
            note=lambda _digest: note,  # known only after the last part
            timeout_s=call.left_s(),
        )
        return pb.PutReply()

    def _delete_many(self, request: Any, call: _Call) -> Any:
        keys = list(request.keys)
        self.permit(call.person, "DELETE", keys)
        return pb.KeysReply(keys=call.store.delete_many(keys, timeout_s=call.left_s()))

    # -- reading

    def _about(self, request: Any, call: _Call) -> Iterator[Any]:
        keys = list(request.keys)
        self.permit(call.person, "GET", keys)
        for at in range(0, len(keys), ABOUT_ROWS):
            found = call.store.about_many(keys[at : at + ABOUT_ROWS], timeout_s=call.left_s())
            yield pb.Rows(
                rows=[
                    pb.Row(key=key, encoding=about.encoding.value, size=about.size, sha256=about.sha256, note=about.note)
                    for key, about in found.items()
                ]
            )

    def get_many(self, request: Any, call: _Call) -> Iterator[Any]:
        keys = list(request.keys)
        self.permit(call.person, "GET", keys)
        # The client reads in parts what does not fit a message.
        largest = min(request.largest, MESSAGE_BYTES) if request.HasField("largest") else MESSAGE_BYTES
        waiting = deque(keys)
        some = min(8, len(keys))  # how many at once: about as many as one message holds, judged by the size of the previous ones
        while waiting:
            asked = [waiting.popleft() for _ in range(min(some, len(waiting)))]
            # Small values may precede large ones: with this cap, so many rows never hold much more than a message.
            cap = min(largest, max(MESSAGE_BYTES // some, _LEAST_BYTES))
            found = call.store.get_noted_many(asked, largest=cap, timeout_s=call.left_s())
            again = [key for key, (value, about) in found.items() if value is None and about.size <= largest and cap < largest]
            sizes = [found[key][1].size for key in again] or [len(value) for value, _ in found.values() if value is not None]
            some = max(1, min(512, MESSAGE_BYTES * max(1, len(sizes)) // max(1, sum(sizes))))
            for key in again:
                del found[key]
            waiting.extendleft(reversed(again))
            call.read(sum(len(value) for value, _ in found.values() if value is not None))
            yield from row_messages(found)

    def _read(self, request: Any, call: _Call) -> Iterator[Any]:
        self.permit(call.person, "GET", [request.key])
        about = call.store.about(request.key, timeout_s=call.left_s())
        chunks = None if about is None else call.store.stream(request.key, timeout_s=call.left_s())
        if about is None or chunks is None:
            yield pb.ValuePart(last=True)
            return
        yield pb.ValuePart(found=True, key=request.key, encoding=about.encoding.value, note=about.note, sha256=about.sha256)
        for chunk in chunks:
            call.read(len(chunk))
            yield pb.ValuePart(data=chunk)
        yield pb.ValuePart(last=True)

    def _keys(self, request: Any, call: _Call) -> Any:
        most = min(request.limit, PAGE_KEYS)
        after: str = request.after
        told: list[str] = []
        while len(told) < most:  # an empty answer would mean that there are no more
            found = call.store.keys(request.prefix, after=after, limit=most, timeout_s=call.left_s())
            told += self.visible(call.person, found)
            if len(found) < most:
                break
            after = found[-1]
        return pb.KeysReply(keys=told[:most])

    def _usage(self, request: Any, call: _Call) -> Any:
        values, size = call.store.usage(request.prefix, timeout_s=call.left_s())
        return pb.UsageReply(values=values, bytes=size)

    def _health(self, _request: Any, call: _Call) -> Any:
        return pb.HealthReply(problem=call.store.health(timeout_s=min(5.0, call.left_s())) or "")


class _Call:
    """One call: its caller and its remaining time; holds a place and turns errors into statuses."""

    def __init__(self, rows: Rows, context: grpc.ServicerContext) -> None:
        self._rows = rows
        self._context = context
        self._caller = caller_of(context)
        self._held = ExitStack()
        self.person = rows.context.person_of(self._caller)
        self.store = rows.store_of(self.person)

    def left_s(self) -> float:
        """Seconds until the client's deadline."""
        left_s = self._context.time_remaining()
        return _DEFAULT_S if left_s is None else min(_LONGEST_S, left_s)

    def read(self, size: int) -> None:
        """Counts bytes that were read."""
        self._rows.count("stored_bytes", "get", size)

    def wrote(self, size: int) -> None:
        """Counts bytes that are about to be stored. Raises LimitReached."""
        self._rows.context.bounds.write(self._caller.user, size)
        self._rows.count("stored_bytes", "put", size)

    def __enter__(self) -> Self:
        user, is_operator = self._caller.user, self._caller.is_certified_operator
        try:
            self._rows.context.bounds.spend(user)
            self._held.enter_context(self._rows.turns.turn(user, min(_LINE_S, self.left_s()), is_operator=is_operator))
        except RmgrError as error:
            self._rows.count("refused", "StoreBusy", 1)
            fail(self._context, error)
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        self._held.close()
        if isinstance(error, RmgrError):
            self._rows.count("refused", type(error).__name__, 1)
            fail(self._context, error)


def row_messages(found: dict[str, tuple[bytes | None, About]]) -> Iterator[Any]:
    """Empties `found` into messages: gRPC holds a message twice until its reader has it, so nothing of it is held here as well."""
    while found:
        yield _row_message(found)


def _row_message(found: dict[str, tuple[bytes | None, About]]) -> Any:
    message, size = pb.Rows(), 0
    for key in list(found):
        value, about = found[key]
        weight = len(value or b"") + 4 * len(key) + len(about.note) + 128
        if size and size + weight > MESSAGE_BYTES:
            break
        del found[key]
        told: dict[str, Any] = {"encoding": about.encoding.value, "size": about.size, "sha256": about.sha256, "note": about.note}
        message.rows.add(key=key, data=value or b"", large=value is None, **told)
        size += weight
    return message


def _mark_of(key: str, request: Any) -> bytes:
    """Returns the mark of a row named by its content: other users may rely on the row, so the client does not choose its mark."""
    if request.HasField("ttl_s"):
        raise PermissionDenied(f"{key!r} may be somebody else's too: it does not expire", hint="put it without a lifetime")
    return mark(machine.wall_s())


def _encoding(text: str) -> Encoding:
    try:
        return Encoding(text)
    except ValueError:
        raise UsageError(f"unknown encoding {text!r}", hint="is the client newer than the gateway? rmgr version") from None
