"""Strategies for messages that no honest program writes: spoilt values of a schema, then spoilt bytes; the same ones for the same seed.

    for data in drawn(written(Form.MSGPACK, frames.FromWorker), seed=7, count=40): ...

`property/test_decoders.py` passes them to decoders, `chaos/test_fuzz_behind.py` to daemons.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, TypeVar

import msgspec
from google.protobuf.message_factory import GetMessageClass
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st
from msgspec import inspect

from tests.harness.decoders import Form

T = TypeVar("T")

_DEEP = 3_000
ENCODERS: dict[Form, Any] = {Form.MSGPACK: msgspec.msgpack.Encoder(), Form.JSON: msgspec.json.Encoder()}
#: Values that no schema expects: deep nesting, text that is not UTF-8, surrogates, endless numbers, false lengths.
HOSTILE = {
    Form.MSGPACK: (
        b"\x91" * _DEEP + b"\xc0",
        b"\x81\xa1a" * _DEEP + b"\xc0",
        b"\x81\x90\xc0",
        b"\x81\x80\xc0",
        b"\xa3\xed\xa0\x80",
        b"\xa2\xff\xfe",
        b"\xcf" + b"\xff" * 8,
        b"\xd3\x80" + b"\0" * 7,
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\xcb\x7f\xf8" + b"\0" * 6,
        b"\xcb\x7f\xf0" + b"\0" * 6,
        b"\xc1",
        b"\xd6\xff\xff\xff\xff\xff",
        b"\xc7\x05\x01hello",
        b"\x9f",
        b"\xc2",
        b"\xc0",
    ),
    Form.JSON: (
        b"[" * _DEEP + b"]" * _DEEP,
        b'{"a":' * _DEEP + b"1" + b"}" * _DEEP,
        b'"\\ud800"',
        b'"\xff\xfe"',
        b'"\xed\xa0\x80"',
        b'"\\u0000"',
        b"9" * 5_000,
        b"-" + b"9" * 30,
        b"1e999",
        b"1e-999",
        b"1e9999999999999999999",
        b"NaN",
        b"Infinity",
        b"18446744073709551616",
        b'{"a":1,"a":2}',
        b"null",
        b"true",
        b"[]",
        b"{}",
        b'""',
    ),
    Form.TOML: (
        b"[" * _DEEP,
        b"{a = " * _DEEP,
        b"9" * 5_000,
        b'"\\ud800"',
        b'"\xff"',
        b"1979-99-99",
        b"0001-01-01T00:00:00+23:59",
        b"nan",
        b"[]",
        b"{}",
        b"[[1]]",
        b"1e999",
    ),
    Form.BYTES: (b"\xff" * 9, b"\0" * 64, b"/" * 5_000, b"9" * 5_000, "٣²½".encode(), b"%" * 30),
}
_INTS = st.integers(-(2**63), 2**64 - 1)


@st.composite
def written(
    draw: st.DrawFn, form: Form, kind: Any = None, sample: bytes = b"", *, ints: tuple[int, ...] = (), texts: tuple[str, ...] = ()
) -> bytes:
    """Draws the bytes of a value, with few defects.

    kind: the value's type; None = spoil `sample`, or draw any value. ints, texts: numbers and words that have a meaning for the reader.
    """
    kinds = st.integers(0, 9)
    if form in ENCODERS and (kind is not None or not sample or draw(kinds) < 3):
        data: bytes = ENCODERS[form].encode(draw(_values(form, kind, draw(st.sampled_from((0, 2, 15))), ints, texts)))
    elif form is Form.BYTES and draw(kinds) < 3:
        data = draw(st.binary(max_size=80))
    else:
        data = sample
        for _ in range(draw(st.integers(0, 2))):
            data = draw(_spoilt(data, HOSTILE[form]))
    for _ in range(draw(st.sampled_from((0, 0, 0, 1, 3)))):
        data = draw(_bitten(data))
    return data


@cache
def _values(form: Form, kind: Any, share: int, ints: tuple[int, ...], texts: tuple[str, ...]) -> st.SearchStrategy[Any]:
    """Returns the strategy for a type. Cached: for a large schema, building the strategy takes longer than drawing from it."""
    known = inspect.type_info(kind) if kind is not None else inspect.AnyType()
    return _Values(st.sampled_from(HOSTILE[form]).map(msgspec.Raw), share, ints, texts).of(known)


class _Values:
    """Strategies for a schema. share: percentage of values that are replaced by wrong ones. ints, texts: see `written`."""

    def __init__(self, bad: st.SearchStrategy[Any], share: int, ints: tuple[int, ...], texts: tuple[str, ...]) -> None:
        self._bad = bad
        self._share = share
        self._ints = _INTS | st.integers(0, 300)
        self._texts = st.text(max_size=12)
        if ints:
            self._ints = st.sampled_from(ints) | self._ints
        if texts:
            self._texts = st.sampled_from(texts) | self._texts

    def of(self, info: Any, depth: int = 0) -> st.SearchStrategy[Any]:
        good = self._good(info, depth)
        if not self._share:
            return good
        return st.integers(0, 99).flatmap(lambda drawn: self._bad if drawn < self._share else good)

    def _good(self, info: Any, depth: int) -> st.SearchStrategy[Any]:
        most = 0 if depth > 6 else 3
        of = lambda inner: self.of(inner, depth + 1)  # noqa: E731
        match info:
            case inspect.IntType():
                return self._ints
            case inspect.StrType():
                return self._texts
            case inspect.BytesType() | inspect.ByteArrayType() | inspect.MemoryViewType():
                return st.binary(max_size=12)
            case inspect.BoolType():
                return st.booleans()
            case inspect.FloatType():
                return st.floats(allow_nan=False, allow_infinity=False)
            case inspect.NoneType():
                return st.none()
            case inspect.EnumType(cls):
                return st.sampled_from([member.value for member in cls])
            case inspect.LiteralType(values):
                return st.sampled_from(values)
            case inspect.TupleType(items):
                return st.tuples(*map(of, items))
            case inspect.CollectionType(item):
                return st.lists(st.deferred(lambda: of(item)), max_size=most)
            case inspect.DictType(key, value):
                return st.dictionaries(self._good(key, depth + 1), st.deferred(lambda: of(value)), max_size=most)
            case inspect.UnionType(types):
                return st.one_of([of(one) for one in types])
            case inspect.StructType(fields=fields, tag=tag, array_like=True):
                head = [] if tag is None else [st.just(tag)]
                least = sum(field.required for field in fields)
                part = cache(lambda at: of(fields[at].type) if at < len(fields) else self._bad)
                return st.integers(least, len(fields) + 2).flatmap(cache(lambda count: st.tuples(*head, *map(part, range(count)))))
            case inspect.StructType(fields=fields) | inspect.DataclassType(fields=fields):
                have = {field.encode_name: of(field.type) for field in fields if field.required}
                may = {field.encode_name: of(field.type) for field in fields if not field.required} | {"later": self._bad}
                return st.fixed_dictionaries(have, optional=may)
            case _:
                return st.recursive(
                    st.none() | _INTS | st.text(max_size=5) | self._bad,
                    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3), max_leaves=6,
                )


@st.composite
def _spoilt(draw: st.DrawFn, data: bytes, hostile: tuple[bytes, ...]) -> bytes:
    """Replaces a stretch of the data."""
    start = draw(st.integers(0, len(data)))
    end = draw(st.integers(start, min(len(data), start + 12)))
    return data[:start] + draw(st.sampled_from(hostile)) + data[end:]


@st.composite
def _bitten(draw: st.DrawFn, data: bytes) -> bytes:
    """Cuts the data, or changes one byte."""
    at = draw(st.integers(0, max(0, len(data) - 1)))
    if draw(st.booleans()) or not data:
        return data[:at]
    return data[:at] + bytes([draw(st.integers(0, 255))]) + data[at + 1 :]


def drawn(strategy: st.SearchStrategy[T], *, seed: int, count: int) -> list[T]:
    """Returns `count` values of a strategy, the same ones for the same seed."""
    found: list[T] = []

    @seeded(seed)
    @settings(max_examples=count, deadline=None, database=None, phases=(Phase.generate,), suppress_health_check=list(HealthCheck))
    @given(strategy)
    def draw(value: T) -> None:
        found.append(value)

    draw()
    return found


# -- messages in transit -----------------------------------------------------------------------------------------------------------


def marked(number: int) -> int:
    """Returns a number of nine bytes in MessagePack that is never drawn; the sender of the message replaces it."""
    return 0xF5EC_F5EC_F5EC_F500 + number


#: Large bodies: of tiny values, of one long value, of invalid text.
_LARGE = (
    b"\xdd\x00\x08\x00\x00" + b"\xc0" * (1 << 19),
    b"\xc6\x00\x30\x00\x00" + bytes(3 << 20),
    b"\xdb\x00\x10\x00\x00" + b"\xed\xa0\x80" * 349526,
)


@st.composite
def framed(draw: st.DrawFn, kind: Any, *, ints: tuple[int, ...] = (), texts: tuple[str, ...] = (), most: int = 1 << 32) -> bytes:
    """Draws a frame (`model/stream.py`) whose length may be false. most: of a large body (bytes)."""
    body = draw(written(Form.MSGPACK, kind, ints=ints, texts=texts))
    if draw(st.integers(0, 30)) == 0:
        large = draw(st.sampled_from(_LARGE))
        body = draw(st.sampled_from((large, b"\x92\x3c" + large, b"\x93\x3f\xc4\x00" + large)))[:most]
    length = draw(st.sampled_from((*[len(body)] * 12, len(body) + 1, max(0, len(body) - 1), 0, 2**32 - 1, 1 << 26)))
    return length.to_bytes(4, "little") + body


def spoils(hostile: tuple[bytes, ...]) -> st.SearchStrategy[Callable[[bytes], bytes]]:
    """Draws functions that spoil bytes: they replace a stretch, change a byte, or cut the end."""

    def way(drawn_: tuple[float, int, bytes, int]) -> Callable[[bytes], bytes]:
        where, length, piece, kind = drawn_

        def change(data: bytes) -> bytes:
            at = int(where * len(data))
            if kind == 0:
                return data[:at]
            if kind == 1:
                return data[:at] + bytes([length]) + data[at + 1 :]
            return data[:at] + piece + data[at + length :]

        return change

    return st.tuples(st.floats(0, 1), st.integers(0, 12), st.sampled_from(hostile), st.integers(0, 3)).map(way)


#: Bytes that no message of gRPC holds: groups without end, false lengths, unknown fields, deep nesting.
_WIRE = (
    b"\x0b" * 200,
    b"\x0a\xff\xff\xff\xff\x0f",
    b"\xff" * 11,
    b"\x0a\x02\xff\xfe",
    b"\xfa\xff\xff\xff\x0f\x00",
    b"\x12\x03\x0a\x01" * 60,
    b"\x0a\x03\xed\xa0\x80",
)


def calls(methods: Sequence[Any], *, ints: tuple[int, ...] = (), texts: tuple[str, ...] = ()) -> st.SearchStrategy[tuple[str, list[bytes]]]:
    """Draws the path and the messages of a call of one of these methods (descriptors of protobuf)."""

    @st.composite
    def call(draw: st.DrawFn) -> tuple[str, list[bytes]]:
        method = draw(st.sampled_from(methods))
        kind = method.input_type
        most = draw(st.integers(1, 5)) if method.client_streaming else 1
        found = []
        for at in range(most):
            message = draw(_message(kind, ints, texts, 0))
            if at == 0 and kind.name == "Asks" and draw(st.integers(0, 9)):
                message.hello.version, message.hello.session_timeout_ms = 1, 10_000
            data = message.SerializeToString()
            for _ in range(draw(st.sampled_from((0, 0, 0, 1, 2)))):
                data = draw(_spoilt(data, _WIRE) | _bitten(data))
            found.append(data)
        return f"/{method.containing_service.full_name}/{method.name}", found

    return call()


@st.composite
def _message(draw: st.DrawFn, kind: Any, ints: tuple[int, ...], texts: tuple[str, ...], depth: int) -> Any:
    message = GetMessageClass(kind)()
    for field in kind.fields:
        if draw(st.integers(0, 9)) < (2 if depth < 3 else 5):
            continue
        is_many = field.label == field.LABEL_REPEATED
        values = [draw(_field(field, ints, texts, depth)) for _ in range(draw(st.integers(0, 3)) if is_many else 1)]
        place = getattr(message, field.name)
        for value in values:
            if field.message_type is not None and field.message_type.GetOptions().map_entry:
                continue
            if is_many:
                place.append(value)
            elif field.message_type is not None:
                place.CopyFrom(value)
            else:
                setattr(message, field.name, value)
    return message


def _field(field: Any, ints: tuple[int, ...], texts: tuple[str, ...], depth: int) -> st.SearchStrategy[Any]:
    bits = {field.CPPTYPE_INT32: (-(2**31), 2**31 - 1), field.CPPTYPE_INT64: (-(2**63), 2**63 - 1)}
    bits |= {field.CPPTYPE_UINT32: (0, 2**32 - 1), field.CPPTYPE_UINT64: (0, 2**64 - 1)}
    match field.cpp_type:
        case field.CPPTYPE_MESSAGE:
            return _message(field.message_type, ints, texts, depth + 1)
        case field.CPPTYPE_STRING if field.type == field.TYPE_BYTES:
            return st.binary(max_size=40) | st.sampled_from(HOSTILE[Form.JSON] + HOSTILE[Form.MSGPACK])
        case field.CPPTYPE_STRING:
            return st.sampled_from(texts) | st.text(st.characters(exclude_categories=("Cs",)), max_size=12)
        case field.CPPTYPE_BOOL:
            return st.booleans()
        case field.CPPTYPE_ENUM:
            return st.integers(-1, 9)
        case field.CPPTYPE_FLOAT | field.CPPTYPE_DOUBLE:
            return st.floats(width=32)
        case cpp:
            least, most = bits[cpp]
            return st.sampled_from((*ints, least, most)) | st.integers(least, most)
