"""Claims the output keys of packed blocks, and makes all that a node needs to claim those that are left to it (`handed_keys.py`).

Left are only keys that are created. One that is overwritten is claimed when its task is submitted and never again, for a later task may
have overwritten it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import msgspec

from rmgr.client.submission.packing import Packed
from rmgr.client.values.values import Values
from rmgr.coord.protocol import keys
from rmgr.coord.protocol.keys import Pointer
from rmgr.coord.protocol.records import decode_keyed, encode_keyed
from rmgr.errors import RmgrError
from rmgr.model.tasks.block import MAX_LEFT_KEYS, KeyedPayload
from rmgr.procedures.claims import Wanted

#: Bytes of the arguments of a block whose output keys are left to a node.
_LEFT_BYTES = 8 * 1024


def claim(
    values: Values, number: int, reign: str, blocks: Iterable[Packed], *, decided: Callable[[], None] | None = None
) -> dict[int, RmgrError]:
    """Writes the pointers of all keyed tasks in `blocks`. Returns those that were refused: index -> why. Raises: StoreUnavailable.

    decided: see `claim_pointers`.
    """
    fresh: list[Wanted] = []
    anew: list[Wanted] = []
    for block in blocks:
        for index, payload in enumerate(block.payloads, block.first) if block.spec.keyed else ():
            keyed = decode_keyed(payload)
            (anew if keyed.overwrite else fresh).extend(_pointers(keyed, number, index, reign))
    return values.claim_pointers(fresh, overwrite=False, decided=decided) | values.claim_pointers(anew, overwrite=True)


def _pointers(keyed: KeyedPayload, number: int, index: int, reign: str) -> list[Wanted]:
    return [(key, Pointer(sub=number, index=index, n=n, by=reign)) for n, key in enumerate(keyed.outputs)]


def may_leave(block: Packed) -> bool:
    """Its output keys may be claimed by the node that runs it."""
    if not block.spec.keyed or block.row or block.to_row or block.count > MAX_LEFT_KEYS:
        return False
    if sum(map(len, block.payloads)) > _LEFT_BYTES:
        return False
    keyed = list(map(decode_keyed, block.payloads))
    return not any(one.overwrite for one in keyed) and sum(len(one.outputs) for one in keyed) <= MAX_LEFT_KEYS


def outputs_of(block: Packed) -> list[str]:
    """Output keys of its tasks."""
    return [key for one in block.payloads for key in decode_keyed(one).outputs]


@dataclass(frozen=True, slots=True)
class LeftBlock:
    """A block with its output keys left unclaimed, and the pointers that are to stand there.

    notes: deeds of these; none in an open cluster.
    """

    block: Packed
    rows: tuple[tuple[str, bytes], ...]
    notes: tuple[bytes, ...]


def left_by(block: Packed, values: Values, number: int, reign: str) -> LeftBlock:
    """The block as the Submitter with this guid leaves it: it signs what the node is to write for its user."""
    payloads = []
    rows: list[tuple[str, bytes]] = []
    notes: list[bytes] = []
    for index, payload in enumerate(block.payloads, block.first):
        keyed = decode_keyed(payload)
        some = [(keys.named(key), keys.encode_pointer(pointer)) for key, pointer in _pointers(keyed, number, index, reign)]
        deeds = values.pointer_notes(some)
        payloads.append(encode_keyed(msgspec.structs.replace(keyed, claims_by=reign, deeds=deeds)))
        rows += some
        notes += deeds
    return LeftBlock(replace(block, payloads=tuple(payloads)), tuple(rows), tuple(notes))
