"""Output keys of tasks that are about to be submitted: pointers written together, before the commit that submits the tasks.

`submit` looks at each key and refuses at once; what somebody else takes between that look and this write ends FAILED
with OUTPUT_EXISTS. Called on a thread that may wait for the store; may be repeated after a failure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rmgr.client.packing import Packed
from rmgr.client.values import Values
from rmgr.coord import keys
from rmgr.coord.ports import Encoding, Store
from rmgr.coord.records import decode_keyed
from rmgr.errors import KeyExists

#: Pointers of one write: below the size up to which a refused write leaves nothing behind.
_ROWS = 2000


def claim(values: Values, store: Store, number: int, reign: str, blocks: Iterable[Packed]) -> dict[int, str]:
    """Writes the pointers of all keyed tasks in `blocks`. Returns those that were refused: index -> why."""
    fresh: list[tuple[str, keys.Pointer]] = []
    anew: list[tuple[str, keys.Pointer]] = []
    for block in blocks:
        if not block.spec.keyed:
            continue
        for index, payload in enumerate(block.payloads, block.first):
            keyed = decode_keyed(payload)
            pointers = [(key, keys.Pointer(sub=number, index=index, n=n, by=reign)) for n, key in enumerate(keyed.outputs)]
            (anew if keyed.overwrite else fresh).extend(pointers)
    refused: dict[int, str] = {}
    for at in range(0, len(fresh), _ROWS):
        refused |= _claim_fresh(values, store, fresh[at : at + _ROWS])
    for at in range(0, len(anew), _ROWS):
        store.put_many(_rows(anew[at : at + _ROWS]), encoding=Encoding.POINTER)
    return refused


def _claim_fresh(values: Values, store: Store, pointers: Sequence[tuple[str, keys.Pointer]]) -> dict[int, str]:
    try:
        store.put_many(_rows(pointers), encoding=Encoding.POINTER, overwrite=False)
    except KeyExists:
        pass
    else:
        return {}
    refused: dict[int, str] = {}
    for key, pointer in pointers:
        try:
            values.check_free(key, mine=pointer)
        except KeyExists as error:
            refused.setdefault(pointer.index, error.message)
    left = [item for item in pointers if item[1].index not in refused]
    if left:
        store.put_many(_rows(left), encoding=Encoding.POINTER)
    return refused


def _rows(pointers: Sequence[tuple[str, keys.Pointer]]) -> list[tuple[str, bytes]]:
    return [(keys.named(key), keys.encode_pointer(pointer)) for key, pointer in pointers]
