"""Output keys of tasks that are about to be submitted: pointers written together, before the commit that submits the tasks.

`submit` looks at each key and refuses at once; what somebody else takes between that look and this write ends FAILED
with OUTPUT_EXISTS. Called on a thread that may wait for the store; may be repeated after a failure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from rmgr.client.packing import Packed
from rmgr.client.values import Values
from rmgr.coord import keys
from rmgr.coord.ownership import Holder
from rmgr.coord.records import decode_keyed
from rmgr.errors import KeyExists, PermissionDenied

#: Pointers of one write: below the size up to which a refused write leaves nothing behind.
_ROWS = 2000


def claim(values: Values, number: int, reign: str, blocks: Iterable[Packed]) -> dict[int, str]:
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
        refused |= _claim_fresh(values, fresh[at : at + _ROWS])
    for at in range(0, len(anew), _ROWS):
        refused |= _claim_anew(values, anew[at : at + _ROWS])
    return refused


def _claim_fresh(values: Values, pointers: Sequence[tuple[str, keys.Pointer]]) -> dict[int, str]:
    try:
        values.write_pointers(_rows(pointers), overwrite=False)
    except KeyExists:
        pass
    else:
        return {}
    return _claim_each(values, pointers, lambda key, pointer: values.check_free(key, mine=pointer))


def _claim_anew(values: Values, pointers: Sequence[tuple[str, keys.Pointer]]) -> dict[int, str]:
    if values.deeds is None:
        values.write_pointers(_rows(pointers))
        return {}
    try:
        values.write_pointers(_rows(pointers), overwrite=False)
    except KeyExists:
        return _claim_each(values, pointers, lambda key, _: values.check_mine(key))
    return {}


def _claim_each(
    values: Values, pointers: Sequence[tuple[str, keys.Pointer]], check: Callable[[str, keys.Pointer], Holder | None]
) -> dict[int, str]:
    """Some keys are taken: those that `check` lets pass are replaced, the others refused."""
    refused: dict[int, str] = {}
    owners: dict[str, Holder | None] = {}
    for key, pointer in pointers:
        try:
            owners[keys.named(key)] = check(key, pointer)
        except (KeyExists, PermissionDenied) as error:
            refused.setdefault(pointer.index, error.message)
    left = [item for item in pointers if item[1].index not in refused]
    if left:
        values.write_pointers(_rows(left), owners=owners)
    return refused


def _rows(pointers: Sequence[tuple[str, keys.Pointer]]) -> list[tuple[str, bytes]]:
    return [(keys.named(key), keys.encode_pointer(pointer)) for key, pointer in pointers]
