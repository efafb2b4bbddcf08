"""Messages of a client and a gateway on the stream `rmgr.v1.Work/Talk` (MessagePack structs).

A client asks (`questions.py`), or says hello, orders submissions, has some of them kept, and grows them; of each it hears what a
`port.KeptListener` hears. Everything may be repeated on another stream, to the same gateway or another one: an order is known by its
nonce, a growth by the stamp in its tail, and a `Keep` names its next fragment. Records travel as they are in ZooKeeper,
and are checked by the same rules (`coord/validity`); blocks are the names and data of their znodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec

from rmgr.adapters.access.auth import name_of, named_error
from rmgr.coord import validity
from rmgr.coord.ops.work import Block
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import MAX_OPS
from rmgr.coord.protocol.records import encode_block, encode_fragment, encode_record
from rmgr.errors import InvalidRecord, RmgrError
from rmgr.model.block import BlockData, Fragment
from rmgr.model.line import ClaimStage
from rmgr.model.submission import Tail
from rmgr.submitter.port import Growth, Order, Read, Stored, Submitted, gone

#: Version of these messages; a gateway serves only clients of its own version.
VERSION = 1
#: Most bytes of a message (the largest growth, `MAX_MULTI_BYTES`, and its frame), and of a question, which `questions.py` bounds.
MAX_BYTES, _ASK_BYTES = 512 * 1024, 1024 * 1024 + 64
#: Bytes of fragments, or of an answer, in one message.
FRAGMENT_BYTES = 256 * 1024

#: Stands for the number in the record and the blocks of an order before it has one.
UNNUMBERED = 1

_Id: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
_Guid: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{32}\Z")]
_Name: TypeAlias = Annotated[str, msgspec.Meta(max_length=300)]
_Blocks: TypeAlias = Annotated[list[tuple[_Name, bytes]], msgspec.Meta(max_length=MAX_OPS)]
_Ended: TypeAlias = Annotated[list[bytes], msgspec.Meta(max_length=MAX_OPS)]


class _Message(msgspec.Struct, array_like=True, gc=False):
    """id: of an order, or of a kept submission; the client numbers both in one sequence per process."""


class Fault(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An error of `rmgr.errors`."""

    name: str
    message: str
    hint: str = ""

    @classmethod
    def of(cls, error: RmgrError) -> Fault:
        """Returns the error in the form that travels."""
        return cls(name_of(error), error.message, error.hint)

    def error(self) -> RmgrError:
        """Returns the error that was sent."""
        return named_error(self.name, self.message, self.hint)


# -- from a client -----------------------------------------------------------------------------------------------------------------


class Hello(_Message, tag="hello"):
    """The first message of a stream. guid: the owner's name. user: accepted only in an open cluster."""

    version: int
    guid: _Guid
    user: _Name
    host: _Name
    pid: _Id
    since_us: _Id


class Place(_Message, tag="submit"):
    """An order. timeout_ms: how long the client waits. is_repeat: it was sent on another stream. Answered by `Placed` or `Refused`."""

    id: _Id
    record: bytes
    blocks: _Blocks
    tasks: _Id
    complete: bool
    held: bool | None
    is_owned: bool
    timeout_ms: _Id
    is_repeat: bool = False


class Keep(_Message, tag="keep"):
    """Follows a submission from `fragment` on, and looks after it if it is owned. is_fresh: made just now, on this stream."""

    id: _Id
    number: _Id
    fragment: _Id
    is_owned: bool
    wants_ownership: bool
    is_fresh: bool


class Grow(_Message, tag="grow"):
    """A growth of a kept submission, see `port.Growth`. is_announced: a hint that it will come. Answered by `DidGrow`."""

    id: _Id
    tail: bytes
    blocks: _Blocks
    ended: _Ended
    is_alone: bool
    leaves_keys: bool
    is_announced: bool = False


class Claiming(_Message, tag="claiming"):
    """Tells how far the output keys left by the last growth are claimed. A hint."""

    id: _Id
    stage: ClaimStage


class AskTail(_Message, tag="tail?"):
    """Asks for the tail. Answered by `TailIs` with the same serial."""

    id: _Id
    serial: _Id


class Leave(_Message, tag="leave"):
    """Ends the keeping of a submission."""

    id: _Id


class Bye(_Message, tag="bye"):
    """The client is done with submissions: the leader, or a Submitter that wants them, may have those it owned at once."""


class Ask(_Message, tag="ask"):
    """A question (`questions.py`); needs no hello. timeout_ms: how long the client waits. Answered by `Answer` with the same id."""

    id: _Id
    question: bytes
    timeout_ms: _Id


FromClient: TypeAlias = Hello | Place | Keep | Grow | Claiming | AskTail | Leave | Bye | Ask


# -- from a gateway ----------------------------------------------------------------------------------------------------------------


class Welcome(_Message, tag="welcome"):
    """Answers a hello."""

    version: int
    session_timeout_ms: _Id


class State(_Message, tag="state"):
    """Whether ZooKeeper answers the gateway."""

    state: str


class _Stored(_Message):
    """A submission. version: -1 = it was collected meanwhile, and only the number is left."""

    id: _Id
    number: _Id
    record: bytes
    version: int
    tail: bytes
    tail_version: int


class Owned(_Stored, tag="owned"):
    """The client owns the submission from now on."""


class Placed(_Stored, tag="placed"):
    """A durable submission."""

    created: bool


class Refused(_Message, tag="refused"):
    """The refusal of an order."""

    id: _Id
    fault: Fault


class Fragments(_Message, tag="fragments"):
    """The next fragments, from `first` on: zxid of the commit, data."""

    id: _Id
    first: _Id
    fragments: list[tuple[int, bytes]]


class DidGrow(_Message, tag="grown"):
    """A growth is durable; taken=False: no node took a block that leaves its keys, and nothing was committed."""

    id: _Id
    stamp: str
    taken: bool
    tail: bytes


class TailIs(_Message, tag="tail"):
    """The tail. serial: of the question, 0 = the owner has changed the tail. fault: it cannot be read."""

    id: _Id
    tail: bytes
    serial: _Id = 0
    fault: Fault | None = None


class RecordIs(_Message, tag="record"):
    """The record has changed; b"" = the submission is gone."""

    id: _Id
    record: bytes
    version: int


class Full(_Message, tag="full"):
    """See `port.KeptListener.on_full`."""

    id: _Id
    most: _Id


class Trouble(_Message, tag="trouble"):
    """See `port.KeptListener.on_trouble`."""

    id: _Id
    fault: Fault


class Leaves(_Message, tag="leaves"):
    """The value of `port.Kept.most_left` from now on."""

    id: _Id
    most: int


class Dead(_Message, tag="dead"):
    """Nothing more comes of this submission."""

    id: _Id
    fault: Fault


class Answer(_Message, tag="answer"):
    """A piece of the answer to a question. fault: there is no answer."""

    id: _Id
    piece: bytes
    is_last: bool
    fault: Fault | None = None


FromGateway: TypeAlias = (
    Welcome | State | Placed | Refused | Fragments | DidGrow | TailIs | RecordIs | Owned | Full | Trouble | Leaves | Dead | Answer
)

_T = TypeVar("_T")
_encode = msgspec.msgpack.Encoder().encode
_from_client: msgspec.msgpack.Decoder[FromClient] = msgspec.msgpack.Decoder(FromClient)
_from_gateway: msgspec.msgpack.Decoder[FromGateway] = msgspec.msgpack.Decoder(FromGateway)


def encode(message: FromClient | FromGateway) -> bytes:
    """Returns a message as bytes."""
    return _encode(message)


def read_client(data: bytes) -> FromClient:
    """Reads a client's message. Raises InvalidRecord."""
    return _read(_from_client, data)


def read_gateway(data: bytes) -> FromGateway:
    """Reads a gateway's message. Raises InvalidRecord."""
    return _read(_from_gateway, data)


def _read(decoder: msgspec.msgpack.Decoder[_T], data: bytes) -> _T:
    if len(data) > _ASK_BYTES:
        raise _too_long(data)
    try:
        message = decoder.decode(data)
    except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidRecord(f"what was said is no message of this service: {str(error)[:200]}", hint="rmgr version") from None
    if len(data) > MAX_BYTES and not isinstance(message, Ask):
        raise _too_long(data)
    return message


def _too_long(data: bytes) -> InvalidRecord:
    return InvalidRecord(f"a message of {len(data):,} bytes is none of this service", hint="rmgr version")


# -- parts -------------------------------------------------------------------------------------------------------------------------


def place_of(order_id: int, order: Order, timeout_s: float) -> Place:
    """Returns the message of a signed order."""
    return Place(
        order_id,
        encode_record(replace(order.draft, id=UNNUMBERED)),
        blocks_to([(replace(key, submission=UNNUMBERED), data) for key, data in order.blocks]),
        order.tasks,
        order.complete,
        order.held,
        order.is_owned,
        max(1, round(timeout_s * 1000)),
    )


def order_of(place: Place) -> Order:
    """Returns a client's order. Raises InvalidRecord."""
    record = validity.submission(place.record, UNNUMBERED)
    return Order(
        draft=record,
        blocks=[(replace(key, submission=0), data) for key, data in blocks_from(place.blocks)],
        tasks=place.tasks,
        complete=place.complete,
        held=place.held,
        is_owned=place.is_owned,
    )


def grow_of(kept_id: int, growth: Growth, *, is_announced: bool = False) -> Grow:
    """Returns the message of a growth."""
    return Grow(
        kept_id,
        encode_record(growth.tail),
        blocks_to(growth.blocks),
        [encode_fragment(fragment) for fragment in growth.ended],
        growth.is_alone,
        growth.leaves_keys,
        is_announced,
    )


def growth_of(grow: Grow) -> Growth:
    """Returns a client's growth. Raises InvalidRecord."""
    return Growth(
        tail=validity.decode(grow.tail, Tail, "the tail"),
        blocks=blocks_from(grow.blocks),
        ended=[validity.decode(data, Fragment, "an outcome") for data in grow.ended],
        is_alone=grow.is_alone,
        leaves_keys=grow.leaves_keys,
    )


def placed_of(order_id: int, made: Submitted) -> Placed:
    """Returns the answer to an order."""
    of = owned_of(order_id, made)
    return Placed(of.id, of.number, of.record, of.version, of.tail, of.tail_version, made.created)


def owned_of(kept_id: int, stored: Stored) -> Owned:
    """Returns the message about a submission that was taken over."""
    record, tail = encode_record(stored.submission), encode_record(stored.tail)
    return Owned(kept_id, stored.submission.id, record, stored.version, tail, stored.tail_version)


def submitted_of(placed: Placed) -> Submitted:
    """Returns the result of an order. Raises InvalidRecord."""
    return gone(placed.number) if placed.version < 0 else Submitted(**_parts(placed, placed.number), created=placed.created)


def stored_of(owned: Owned, number: int) -> Stored:
    """Returns the submission of that number, which was taken over. Raises InvalidRecord."""
    return Stored(**_parts(owned, number))


def _parts(of: _Stored, number: int) -> dict[str, Any]:
    record, tail = validity.submission(of.record, number), validity.decode(of.tail, Tail, "the tail")
    return {"submission": record, "version": of.version, "tail": tail, "tail_version": of.tail_version}


def fragments_of(kept_id: int, fragments: Sequence[Read]) -> list[Fragments]:
    """Returns fragments in messages of bounded size."""
    made: list[Fragments] = []
    size = FRAGMENT_BYTES
    for one in fragments:
        if size >= FRAGMENT_BYTES:
            made.append(Fragments(kept_id, one.number, []))
            size = 0
        made[-1].fragments.append((one.zxid, one.data))
        size += len(one.data) + 16
    return made


def answers_of(ask_id: int, answer: bytes) -> Iterator[Answer]:
    """Yields an answer in messages of bounded size."""
    last = max(0, len(answer) - 1) // FRAGMENT_BYTES * FRAGMENT_BYTES
    for at in range(0, last + 1, FRAGMENT_BYTES):
        yield Answer(ask_id, answer[at : at + FRAGMENT_BYTES], at == last)


def blocks_to(blocks: Sequence[Block]) -> list[tuple[str, bytes]]:
    """Returns blocks in the form that travels, without a place in a queue."""
    return [(paths.block_prefix(key), encode_block(data)) for key, data in blocks]


def blocks_from(blocks: Sequence[tuple[str, bytes]]) -> list[Block]:
    """Reads blocks that a client has packed. Raises InvalidRecord."""
    found: list[Block] = []
    for name, data in blocks:
        try:
            key = paths.parse_block(f"{name}{0:010d}")
        except ValueError:
            raise InvalidRecord(f"{name[:120]!r} is not the name of a block", hint="rmgr version") from None
        found.append((key, validity.decode(data, BlockData, name)))
    return found


