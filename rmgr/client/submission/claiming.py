"""Claims the output keys of packed blocks before the commit that submits their tasks."""

from __future__ import annotations

from collections.abc import Iterable

from rmgr.client.submission.packing import Packed
from rmgr.client.values.claims import Wanted, claim_pointers
from rmgr.client.values.values import Values
from rmgr.coord.protocol.keys import Pointer
from rmgr.coord.protocol.records import decode_keyed
from rmgr.errors import RmgrError


def claim(values: Values, number: int, reign: str, blocks: Iterable[Packed]) -> dict[int, RmgrError]:
    """Writes the pointers of all keyed tasks in `blocks`. Returns those that were refused: index -> why."""
    fresh: list[Wanted] = []
    anew: list[Wanted] = []
    for block in blocks:
        if not block.spec.keyed:
            continue
        for index, payload in enumerate(block.payloads, block.first):
            keyed = decode_keyed(payload)
            pointers = [(key, Pointer(sub=number, index=index, n=n, by=reign)) for n, key in enumerate(keyed.outputs)]
            (anew if keyed.overwrite else fresh).extend(pointers)
    return claim_pointers(values, fresh, overwrite=False) | claim_pointers(values, anew, overwrite=True)
