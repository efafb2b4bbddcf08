"""Checks every field of every record that anybody can write into ZooKeeper before it is believed. Pure.

Whoever reads what a client could have written asks here: the gateway, which refuses it, Starters, the leader and followers,
who set it aside (it concerns its owner only). The table is in `validity/work.py` and `validity/cluster.py`, what a rule is in
`validity/rules.py`; a field without a rule fails a test. Names of znodes are refused by the parsers of `coord/protocol/paths.py`: what
they accept, their builders make.

What depends on who asks is a parameter: a submission's record belongs to the number that its path says (`submission`).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, TypeVar

from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import MAX_OPS, Stamped
from rmgr.coord.protocol.records import cut, decode_block, decode_failed, decode_fragment, decode_keyed, decode_record
from rmgr.coord.validity.cluster import FILLED
from rmgr.coord.validity.rules import FieldFault, shown
from rmgr.errors import InvalidRecord, WrongCluster
from rmgr.model.base.ids import MAX_NUMBER
from rmgr.model.tasks.block import MAX_TASKS, BlockData, BlockKey, KeyedPayload
from rmgr.model.tasks.outcome import FailedRange, Fragment
from rmgr.model.tasks.submission import Submission, Tail

#: Tasks that one ENQUEUE can bring.
_MOST_IN_A_MULTI = MAX_OPS * MAX_TASKS
#: Records of submissions of up to so many bytes are remembered for a moment.
_REMEMBERED_BYTES = 4096

T = TypeVar("T")

_HINT = "only rmgr's own commands and library write such records; rmgr version"
#: Records that are not JSON.
PACKED: dict[type, Any] = {
    BlockData: decode_block,
    Fragment: decode_fragment,
    FailedRange: decode_failed,
    KeyedPayload: decode_keyed,
}


def kinds() -> dict[type, frozenset[str]]:
    """Every record that has rules, and the fields that have one."""
    return FILLED.kinds()


def check(record: object, *, where: str) -> None:
    """Raises InvalidRecord, naming `where`, the field and what may stand there, unless every field holds what may stand in it.

    Cost: of a plain submission 6 us, of a block's data 1.3 us and 0.2 us for each argument; nothing is built.
    """
    fault = FILLED.fault(record)
    if fault is not None:
        raise invalid(where, fault)


def decode(data: bytes, kind: type[T], where: str) -> T:
    """Bytes of a znode or a row -> the record, checked. Raises InvalidRecord; WrongCluster when a newer release wrote it."""
    packed = PACKED.get(kind)
    try:
        record: T = packed(data) if packed is not None else decode_record(data, kind, where)
    except WrongCluster as error:
        if isinstance(error.__cause__, Exception):  # it could not be read, not: it is newer
            raise InvalidRecord(error.message, hint=_HINT) from error
        raise
    except (ValueError, OverflowError, RecursionError) as error:
        raise InvalidRecord(f"{where}: what stands there is no {kind.__name__}: {cut(error)}", hint=_HINT) from None
    if kind is int:
        if not 0 <= record <= MAX_NUMBER:  # type: ignore[operator]
            raise invalid(where, FieldFault("", record, f"a number from 0 to {MAX_NUMBER}"))
        return record
    check(record, where=where)
    return record


def submission(data: bytes, number: int) -> Submission:
    """The record of that submission. Raises: as `decode`, also when it says that it is another's.

    Cost: 15 us for a plain one, 1 us when the same bytes were asked about a moment ago: a leader and a Starter read a record twice.
    """
    return _remembered(data, number) if len(data) <= _REMEMBERED_BYTES else _submission(data, number)


def _submission(data: bytes, number: int) -> Submission:
    where = paths.sub(number)
    record = decode(data, Submission, where)
    if record.id != number:
        raise invalid(where, FieldFault("id", record.id, f"{number}"))
    return record


#: Frozen, so whoever asks may have the same; what is refused is looked at again each time.
_remembered = lru_cache(256)(_submission)


def tail(found: Stamped, number: int) -> Tail:
    """How far that submission has grown. Raises: as `decode`, also for more tasks than its changes can have brought.

    Each change of a tail brings as many as one multi holds: who claims millions has written thousands of times.
    """
    where = paths.tail(number)
    record = decode(found.data, Tail, where)
    most = (found.stat.version + 1) * _MOST_IN_A_MULTI
    if record.next > most:
        raise invalid(where, FieldFault("next", record.next, f"what {found.stat.version + 1} changes can bring, {most} at most,"))
    return record


def check_block(key: BlockKey, data: BlockData, *, where: str = "", pulled: bool = False) -> None:
    """Data (checked already) of a block that waits fit its name: nothing is done, and they hold the arguments of all its tasks.

    pulled: it waits where Starters take it, so that no leader has placed it. Raises InvalidRecord.
    """
    if data.done:
        fault = FieldFault("done", data.done, "0, as long as it waits,")
    elif pulled and data.allocation is not None:
        fault = FieldFault("allocation", data.allocation, "nothing, for only the leader places jobs,")
    elif data.payloads and not (data.base <= key.first and key.end <= data.base + len(data.payloads)):
        fault = FieldFault("payloads", len(data.payloads), f"arguments of all tasks from {key.first} to {key.end - 1}")
    else:
        return
    raise invalid(where or paths.block_name(key), fault)


def check_failed(failed: FailedRange, submission: Submission, first: int, count: int, *, where: str) -> None:
    """A failed range (checked already) is of that submission's work: its queue, its shape, a block of it. Raises InvalidRecord."""
    if failed.queue != submission.queue:
        raise invalid(where, FieldFault("queue", failed.queue, submission.queue))
    data = decode(failed.block, BlockData, f"{where}: block")
    if data.payloads and not (data.base <= first and first + count <= data.base + len(data.payloads)):
        raise invalid(
            where, FieldFault("block.payloads", len(data.payloads), f"arguments of all tasks from {first} to {first + count - 1}")
        )


def invalid(where: str, fault: FieldFault) -> InvalidRecord:
    """The error for a fault."""
    field = f" {fault.path}" if fault.path else ""
    return InvalidRecord(f"{where}:{field} is {shown(fault.value)}, where only {fault.what} may stand", hint=_HINT)
