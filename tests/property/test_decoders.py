"""Whatever lies where a decoder reads, it raises its documented error or answers: values of its schema, spoilt somewhere, then their bytes.

`tests/fuzz.sh` runs the same for an hour; RMGR_FUZZ_S says how many seconds each decoder gets.
"""

from __future__ import annotations

import os
import time
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import inspect

from tests.harness.decoders import DECODERS, Decoder, Form

_SECONDS = float(os.environ.get("RMGR_FUZZ_S", "0"))
_DEEP = 3_000
_ENCODERS: dict[Form, Any] = {Form.MSGPACK: msgspec.msgpack.Encoder(), Form.JSON: msgspec.json.Encoder()}
#: Values that no schema expects: nested deep, text that is no UTF-8, surrogates, numbers without end, lengths that lie.
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
def _written(draw: st.DrawFn, decoder: Decoder) -> bytes:
    """Bytes that are nearly what `decoder` expects."""
    kinds = st.integers(0, 9)
    if decoder.form in _ENCODERS and (decoder.kind is not None or not decoder.sample or draw(kinds) < 3):
        bad = st.sampled_from(HOSTILE[decoder.form]).map(msgspec.Raw)
        known = inspect.type_info(decoder.kind) if decoder.kind is not None else inspect.AnyType()
        data: bytes = _ENCODERS[decoder.form].encode(draw(_Values(bad, draw(st.sampled_from((0, 2, 15)))).of(known)))
    elif decoder.form is Form.BYTES and draw(kinds) < 3:
        data = draw(st.binary(max_size=80))
    else:
        data = decoder.sample
        for _ in range(draw(st.integers(0, 2))):
            data = draw(_spoilt(data, HOSTILE[decoder.form]))
    for _ in range(draw(st.sampled_from((0, 0, 0, 1, 3)))):
        data = draw(_bitten(data))
    return data


class _Values:
    """Strategies for a schema. share: of a hundred values, how many are something else."""

    def __init__(self, bad: st.SearchStrategy[Any], share: int) -> None:
        self._bad = bad
        self._share = share

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
                return _INTS | st.integers(0, 300)
            case inspect.StrType():
                return st.text(max_size=12)
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
                return st.integers(least, len(fields) + 2).flatmap(
                    lambda count: st.tuples(
                        *head, *[of(field.type) for field in fields[:count]], *[self._bad] * max(0, count - len(fields))
                    )
                )
            case inspect.StructType(fields=fields) | inspect.DataclassType(fields=fields):
                have = {field.encode_name: of(field.type) for field in fields if field.required}
                may = {field.encode_name: of(field.type) for field in fields if not field.required} | {"later": self._bad}
                return st.fixed_dictionaries(have, optional=may)
            case _:
                return st.recursive(
                    st.none() | _INTS | st.text(max_size=5) | self._bad,
                    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
                    max_leaves=6,
                )


@st.composite
def _spoilt(draw: st.DrawFn, data: bytes, hostile: tuple[bytes, ...]) -> bytes:
    """A stretch of it is something else."""
    start = draw(st.integers(0, len(data)))
    end = draw(st.integers(start, min(len(data), start + 12)))
    return data[:start] + draw(st.sampled_from(hostile)) + data[end:]


@st.composite
def _bitten(draw: st.DrawFn, data: bytes) -> bytes:
    """Cut, or with another byte."""
    at = draw(st.integers(0, max(0, len(data) - 1)))
    if draw(st.booleans()) or not data:
        return data[:at]
    return data[:at] + bytes([draw(st.integers(0, 255))]) + data[at + 1 :]


def _try(decoder: Decoder, data: bytes) -> None:
    try:
        decoder.decode(data)
    except decoder.raises:
        pass
    except Exception as error:
        error.add_note(f"{decoder.name} of {data[:200]!r} ({len(data)} bytes)")
        raise


@pytest.mark.parametrize("decoder", DECODERS, ids=lambda decoder: decoder.name)
def test_nothing_but_the_documented_error_comes_out(decoder: Decoder) -> None:
    @settings(max_examples=60, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(data=_written(decoder))
    def once(data: bytes) -> None:
        _try(decoder, data)

    for hostile in HOSTILE[decoder.form]:
        _try(decoder, hostile)
    end_s = time.monotonic() + _SECONDS
    once()
    while time.monotonic() < end_s:
        settings(max_examples=100, derandomize=False, deadline=None, database=None, suppress_health_check=list(HealthCheck))(
            given(data=_written(decoder))(lambda data: _try(decoder, data))
        )()


def test_samples_are_read() -> None:
    """A fuzz of what never decodes would show nothing."""
    for decoder in DECODERS:
        if decoder.sample and decoder.name != "token":
            decoder.decode(decoder.sample)
