"""Work that is run again (`rmgr rerun`): the stored command of a submission with some of its tasks, as a request like any other.

What its user gave with it is found by hashes in its record: script, uploads, stdin, lines. In a secured cluster the record bears the
signature of who submitted it; who runs it again signs what that one has signed, and nothing that was changed since.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rmgr.client.commands.request import CommandRequest, on_node
from rmgr.coord.protocol import keys
from rmgr.errors import DataLost, PermissionDenied, UsageError
from rmgr.model.tasks.array import parse_array
from rmgr.model.tasks.submission import MAX_UPLOAD_BYTES, Command, Submission

if TYPE_CHECKING:
    from rmgr.adapters.identity.trust import Trust
    from rmgr.client.reach import Reach
    from rmgr.submitter.questions import Asks


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredWork:
    """Tasks of a submission that are to run again. payloads: the argument of each."""

    record: Submission
    payloads: tuple[bytes, ...]


def check_signature(
    record: Submission, asks: Asks, trust: Trust, cluster_id: str, *, operators: Sequence[str], timeout_s: float
) -> None:
    """In a secured cluster: the record says what its user has asked for, under this number. operators: by the settings.

    Raises: PermissionDenied; CoordinationUnavailable.
    """
    from rmgr.coord.seal import record_statement
    from rmgr.runtime import machine

    key_id, _, signature = record.signature.partition(":")
    why = "nobody has signed its record"
    if signature:
        signer = trust.find(key_id, at_s=machine.wall_s(), timeout_s=timeout_s)
        if isinstance(signer, str):
            why = signer
        elif signer.identity.name != record.user or not signer.identity.is_person:
            why = f"its record was signed by {signer.identity.role} {signer.identity.name}, and is said to be of {record.user}"
        elif signer.verify(bytes.fromhex(signature), record_statement(record, cluster_id)):
            why = _of_another(record, asks, timeout_s) or _amended_by_others(record, trust, cluster_id, operators, timeout_s)
            if not why:
                return
        else:
            why = f"its record is not what {record.user} has signed"
    raise PermissionDenied(f"submission {record.id} cannot be run again: {why}", hint="submit it anew: rmgr submit")


def _of_another(record: Submission, asks: Asks, timeout_s: float) -> str:
    """Why the record is not that of its number, "" = it is: a user signs a nonce, which has led to a number since."""
    from rmgr.submitter.questions import ReadNonce

    is_its_own = asks.ask(ReadNonce(number=record.id), timeout_s=timeout_s) == record.id
    return "" if is_its_own else f"its record is one that {record.user} has signed for another"


def _amended_by_others(record: Submission, trust: Trust, cluster_id: str, operators: Sequence[str], timeout_s: float) -> str:
    """Why an amendment of it is not that of somebody who may make it, "" = all are. (What an operator may change, its form says.)"""
    from rmgr.coord.seal import amendment_fault

    for change in record.changes:
        key_id, _, signature = change.signature.partition(":")
        signer = trust.find(key_id, at_s=change.by_us / 1e6, dated=True, timeout_s=timeout_s) if signature else "nobody has signed it"
        if isinstance(signer, str):
            why = signer
        else:
            why = amendment_fault(record.id, change, cluster_id, signer.identity, signer.verify, operators=operators)
        if why:
            return f"amendment {change.number}, by {change.by}: {why}"
    return ""


def lines_of(reach: Reach, record: Submission, positions: Sequence[int], total: int) -> tuple[bytes, ...]:
    """The lines of `--each-line` that these tasks had; nothing for each where it was none. Raises: DataLost, StoreUnavailable.

    total: tasks of the submission; several without an array come of lines.
    """
    if not record.entries:
        if total > 1 and not record.array:
            why = f"the lines of submission {record.id} are not kept: there were too many, or an older release has submitted it"
            raise DataLost(why, hint="submit them anew: --each-line")
        return (b"",) * len(positions)
    key = keys.upload(record.entries)
    found = reach.data_store().get_noted_many([key], largest=MAX_UPLOAD_BYTES, timeout_s=reach.left_s(30.0) or 30.0).get(key)
    data = found[0] if found is not None else None
    if data is None or hashlib.sha256(data).hexdigest() != record.entries:
        raise DataLost(f"the lines of submission {record.id} are not in the data store as they were", hint="submit them anew: --each-line")
    lines = data.split(b"\n")
    if any(position >= len(lines) for position in positions):
        raise DataLost(f"submission {record.id} has more tasks than stored lines", hint="submit them anew: --each-line")
    return tuple(lines[position] for position in positions)


def array_of(record: Submission, positions: Sequence[int]) -> str:
    """The array with the numbers that these tasks have, so that they keep them; "" for the only task of a submission without one."""
    if record.array:
        known = parse_array(record.array)
        numbers = [known.index_at(position) for position in positions]
    elif list(positions) == [0] and not record.entries:
        return ""
    else:
        numbers = list(positions)
    cap = f"%{record.max_running}" if record.max_running else ""
    return ",".join(_ranges(numbers)) + cap


def _ranges(numbers: Sequence[int]) -> Iterator[str]:
    """1 3 5 8 9 -> `1-5:2`, `8-9`."""
    at = 0
    while at < len(numbers):
        step = numbers[at + 1] - numbers[at] if at + 1 < len(numbers) else 0
        end = at + 1
        while step > 0 and end < len(numbers) and numbers[end] == numbers[end - 1] + step:
            end += 1
        if end - at < (2 if step == 1 else 3):
            end = at + 1
            yield f"{numbers[at]}"
        else:
            yield f"{numbers[at]}-{numbers[end - 1]}" + (f":{step}" if step > 1 else "")
        at = end


def command_again(stored: Command, request: CommandRequest) -> Command:
    """The stored command with what the request says anew. Raises: UsageError (`python`)."""
    options = request.options
    if options.python:
        raise UsageError("--python: the stored command names its interpreter itself", hint="rmgr submit --python PATH -- python program.py")
    cwd = options.cwd or stored.cwd
    return replace(
        stored,
        env=stored.env | dict(options.env),
        cwd=cwd,
        out=on_node(options.out, cwd) or stored.out,
        err=on_node(options.err, cwd) or stored.err,
        input_files=options.inputs,
        output_files=options.outputs,
    )
