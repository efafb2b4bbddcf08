"""Questions and their answers as bytes: MessagePack, with bounds for whatever the other end sends."""

from __future__ import annotations

from functools import cache, reduce
from operator import or_
from typing import Any, TypeVar, cast, get_args

import msgspec

from rmgr.coord.protocol.records import cut, is_deep, unpack
from rmgr.errors import RequestTooLarge, Unavailable, UsageError
from rmgr.model.wire.stream import msgpack_decoder
from rmgr.submitter.questions import Question
from rmgr.submitter.rights import RIGHTS

A = TypeVar("A")

#: Bytes of a question, values in it; bytes and values of an answer.
MAX_QUESTION_BYTES, _QUESTION_VALUES = 1024 * 1024, 300_000
MAX_ANSWER_BYTES, _ANSWER_VALUES = 256 * 1024 * 1024, 30_000_000

_encoder = msgspec.msgpack.Encoder()
_plain = msgspec.msgpack.Decoder()


@cache
def _any_question() -> Any:
    return reduce(or_, RIGHTS)


def encode_question(question: Question[Any]) -> bytes:
    """Raises RequestTooLarge."""
    data = _encoder.encode(question)
    if len(data) > MAX_QUESTION_BYTES:
        raise RequestTooLarge(f"{type(question).__name__}: {len(data)} bytes are asked at once, at most {MAX_QUESTION_BYTES} may be")
    return data


def decode_question(data: bytes) -> Question[Any]:
    """Whatever somebody has sent. Raises UsageError, RequestTooLarge; nothing else."""
    if len(data) > MAX_QUESTION_BYTES:
        raise RequestTooLarge(f"a question has {len(data)} bytes, at most {MAX_QUESTION_BYTES} may be asked at once")
    try:
        if is_deep(unpack(_plain.decode, data, _QUESTION_VALUES)):
            raise UsageError("a question is nested too deep")
        return cast(Question[Any], unpack(msgpack_decoder(_any_question()).decode, data, _QUESTION_VALUES))
    except msgspec.DecodeError as error:
        raise UsageError(f"a question cannot be read: {cut(error)}", hint="rmgr version, here and where the gateway runs") from None


def encode_answer(answer: object) -> bytes:
    """Raises RequestTooLarge."""
    data = _encoder.encode(answer)
    if len(data) > MAX_ANSWER_BYTES:
        raise RequestTooLarge(f"the answer has {len(data)} bytes, at most {MAX_ANSWER_BYTES} are sent", hint="ask for less at once")
    return data


def decode_answer(question: Question[A], data: bytes) -> A:
    """Raises Unavailable: it is not what answers that question."""
    try:
        return cast(A, unpack(msgpack_decoder(answer_type(type(question))).decode, data, _ANSWER_VALUES))
    except msgspec.DecodeError as error:
        told = f"the answer to {type(question).__name__} cannot be read: {cut(error)}"
        raise Unavailable(told, hint="rmgr version, here and where the gateway runs") from None


@cache
def answer_type(kind: type[Question[Any]]) -> Any:
    """What answers questions of a kind: the parameter of its base."""
    return get_args(kind.__orig_bases__[0])[0]  # type: ignore[attr-defined]
