"""Honest records of each kind, and copies in which one field after another holds a value that a hostile user could write."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec

from rmgr.coord.protocol.keys import Pointer
from rmgr.coord.protocol.records import encode_record
from rmgr.model.base import Capacity, NodeAttributes, Request
from rmgr.model.block import (
    Allocation,
    BlockData,
    BlockKey,
    Call,
    FailedRange,
    Fragment,
    FragmentSeal,
    KeyedPayload,
    NodeHold,
    Outcome,
    PastAttempt,
    Reserved,
    Seal,
    StopKind,
    StopRequest,
)
from rmgr.model.identity import AclRecord, Invitation, Revocation, Role, SealedSecret
from rmgr.model.line import Ahead, Claimed, ClaimStage, Hint, Told
from rmgr.model.node import (
    Drain,
    EpochRecord,
    GangClock,
    GangRecord,
    InboxOrder,
    Meta,
    NodeRecord,
    NodeState,
    OrderKind,
    StarterEntry,
    SubmitterEntry,
    Trouble,
)
from rmgr.model.queue import CappedUse, ClusterSettings, PipelineSpec, QueueSpec, UserLimits
from rmgr.model.states import Reason
from rmgr.model.submission import (
    Amendment,
    Command,
    Condition,
    Dependency,
    Paged,
    PythonEnvironment,
    Rigid,
    Submission,
    Tail,
    Terms,
    Upload,
    Work,
)

SHA = "0123456789abcdef" * 4
_TERMS = Terms(
    priority=1, time_limit_us=1, memory_bytes=1, name="a", begin_us=1, features=("f",),
    after=(Dependency(condition=Condition.OK, submission=1),), queue="batch", cores=2,
)  # fmt: skip
_PAST = PastAttempt(attempt=1, node="n1", reason=Reason.NODE_LOST)
_CALL = Call(function="a" * 64, payload=b"arguments", row=f"args/{7:010d}/{0:010d}/{'b' * 64}", at=1, keyed=True)
_SEAL = Seal(key_id="0" * 32, first=0, count=1, not_after_s=4_000_000_000, signature=b"s" * 64)
_ALLOCATION = Allocation(shares=(("n1", 1),), threads=1)
_DATA = BlockData(function=SHA, payloads=(b"x",), past=(_PAST,), seal=_SEAL, allocation=_ALLOCATION, story=("saved",))

#: One record of each kind that has rules.
SAMPLES: tuple[Any, ...] = (
    Request(features=("fast",), resources={"gpu": 1}),
    Capacity(cores=4, memory_bytes=1 << 30, resources={"gpu": 1}),
    NodeAttributes(features=("fast",)),
    Dependency(condition=Condition.OK, submission=1),
    Upload(name="data", sha256=SHA),
    Command(
        argv=("true",), env={"A": "1"}, uploads=(Upload(name="d", sha256=SHA),), input_files=(("in/7", "x"),), output_files=(("o", "y"),)
    ),
    PythonEnvironment(version="3.11", sys_path=("/x",), modules=(SHA,)),
    Rigid(processes=2, nodes=1, nodelist=("n1",), exclude=("n2",)),
    Submission(
        id=1, name="a", user="ann", queue="default", work=Work.COMMAND, command=Command(argv=("true",)), python=PythonEnvironment(),
        rigid=Rigid(), after=(Dependency(condition=Condition.ANY, submission=7),), array="1-4%2",
    ),
    _TERMS,
    Amendment(number=1, by="ann", by_us=1, terms=_TERMS, signature=f"{'0' * 32}:{'0' * 128}"),
    Tail(next=1, complete=True, enqueued="a-1", reigns=((0, "a"),)),
    Paged(base=1, counts={"COMPLETED": 1}),
    BlockKey(priority=0, seq=0, submission=1, first=0, count=1, attempt=1, cores=1, memory_mib=0),
    _PAST,
    _SEAL,
    _ALLOCATION,
    _DATA,
    KeyedPayload(inputs=("in/1",), outputs=("out/1",)),
    _CALL,
    Outcome(index=0, past=(_PAST,), helpers=("n2",), story=("saved",), value_sha256=b"h" * 32, exit_code=0, call=_CALL),
    FragmentSeal("0" * 32, b"s" * 64),
    Fragment(node="n1", outcomes=(Outcome(index=0),), ranges=((Outcome(index=0).state, 0, 1),), seal=FragmentSeal("0" * 32, b"s" * 64)),
    FailedRange(queue="default", seq=1, priority=0, cores=1, memory_mib=0, reason=Reason.NODE_LOST, block=b"x"),
    NodeHold(head="n1", key="k", cores=1),
    Reserved(shares=(("7.0.1", 2), ("", 1)), memory_mib=64, resources=(("gpu", 1),)),
    NodeRecord(node="n1", incarnation=1, state=NodeState.UP, guid="g", capacity=Capacity(cores=1, memory_bytes=1)),
    GangClock(node="n1", incarnation=1, offset_us=1),
    GangRecord(
        policy="dqt", slot_us=1_000_000, origin_us=1, slot=1, width=2, leaves=(("n1", 2),), queues=((0, ((1 << 20, 1),)),),
        clock=GangClock(node="n1", incarnation=1, offset_us=1), front=((0, 1, False),), attempts=((1 << 20, 1, 0),),
    ),
    SubmitterEntry(guid="g", host="h", pid=1, since_us=1),
    StarterEntry(guid="g", nodes=("n1",), endpoint="h:1", host="h", pid=1),
    Drain(node="n1", reason="", user="ann", since_us=1),
    Trouble(node="n1", incarnation=1, kind="disk", reason="full", since_us=1, refused={"ann": "why"}),
    EpochRecord(epoch=1, leader="g"),
    Meta(cluster_id="c"),
    InboxOrder(order=OrderKind.CANCEL, submission=1, extra={"block": "b"}),
    QueueSpec(name="default", users=("ann",)),
    PipelineSpec(partition="default", document="{}"),
    ClusterSettings(operators=("ann",), pipelines=(PipelineSpec(partition="default", document="{}"),), extra={"a": "b"}),
    UserLimits(max_cores_per_user=9, cores_of={"ann": 4}, jobs_of={"ann": 0}),
    CappedUse(cores={"ann": 4}, nodes={"ann": 2}, jobs={"ann": 1}, free=3),
    StopRequest(kind=StopKind.CHECKPOINT, submission=1, done=((1, 0, "saved"),), left=((1, 1, "gone"),)),
    Invitation(id="i", name="ann", role=Role.USER, key_id="0" * 32, expires_us=1, sealed="x"),
    Revocation(key_id="0" * 32, name="ann", role=Role.USER, by="admin", since_us=1),
    AclRecord(roles={"user": ("user:x",)}),
    SealedSecret(generation=1, sealed="x"),
    Pointer(sub=1, index=0, by="g"),
    Hint(node="n1", block="b", data=b"x"),
    Ahead(serial=1, submission=1, fragment=b"x"),
    Told(serial=1, submission=1, number=1),
    Claimed(node="n1", block="b", stage=ClaimStage.MADE),
)

#: Values that no field may hold: as JSON, and (where MessagePack can encode them) as values.
MISSING = object()
VALUES: dict[str, Any] = {
    "0": 0,
    "-1": -1,
    "2^31": 2**31,
    "2^63": 2**63,
    "2^70": 2**70,
    "10^400": 10**400,
    "NaN": float("nan"),
    "empty": "",
    "10 kB": "x" * 10_240,
    "NUL": "a\0b",
    "../": "../../x",
    "Unicode digits": "\u0661\u0662\u0663",
    "5000 digits": "9" * 5000,
    "list": [[]],
    "object": {"a": {"b": []}},
    "deep": [[[[[[[[[[[[]]]]]]]]]]]],
    "true": True,
    "1.5": 1.5,
    "bytes": b"\xff\xfe",
    "missing": MISSING,
}


def fields_of(record: Any) -> tuple[str, ...]:
    """Returns the names of a record's fields (a struct or a dataclass)."""
    return tuple(getattr(type(record), "__struct_fields__", None) or type(record).__dataclass_fields__)


def hostile(record: Any) -> Iterator[tuple[str, str, bytes]]:
    """Yields (field, label of the value, bytes of the record in its znode), with one field after another spoilt."""
    if isinstance(record, msgspec.Struct):
        plain = msgspec.msgpack.decode(msgspec.msgpack.encode(record))
        tagged = len(plain) - len(fields_of(record))
        for number, field in enumerate(fields_of(record)):
            for label, value in VALUES.items():
                encoded = packed(plain, max(0, tagged) + number, value)
                if encoded is not None:
                    yield field, label, encoded
    else:
        plain = json.loads(encode_record(record))
        for field in fields_of(record):
            for label, value in VALUES.items():
                yield field, label, spoilt_json(plain, field, value)


def packed(plain: list[Any], number: int, value: Any) -> bytes | None:
    """Returns a MessagePack array with one element replaced (or cut off there), or None if MessagePack cannot encode the value."""
    if value is MISSING:
        return msgspec.msgpack.encode(plain[:number])
    if number >= len(plain):
        return None
    try:
        return msgspec.msgpack.encode([*plain[:number], value, *plain[number + 1 :]])
    except OverflowError:
        return None


def spoilt_json(plain: dict[str, Any], field: str, value: Any) -> bytes:
    """Returns a JSON object with one field replaced or left out."""
    if value is MISSING:
        return json.dumps({name: item for name, item in plain.items() if name != field}).encode()
    return json.dumps(plain | {field: value.decode("latin-1") if isinstance(value, bytes) else value}).encode()
