"""Deletes what lost or failed attempts wrote under output keys, and the pointers of tasks that ended without a result."""

from __future__ import annotations

import logging

import msgspec

from rmgr.coord.protocol import keys
from rmgr.coord.protocol.ports import Encoding, Store
from rmgr.coord.protocol.records import decode_block, decode_keyed, decode_payloads
from rmgr.errors import RmgrError
from rmgr.model.base.states import LOSSES
from rmgr.model.tasks.block import BlockData
from rmgr.model.tasks.outcome import FailedRange
from rmgr.model.tasks.submission import Submission
from rmgr.procedures.bounded import row_of

_LOG = logging.getLogger("rmgr.submitter")
#: Rows that are deleted together.
_ROWS = 2000
#: Names of the keys of 256 tasks (bytes).
_MOST_PAYLOADS_BYTES = 64 * 2**20


def delete_outputs(
    store: Store, submission: Submission, first: int, count: int, attempt: int, failed: FailedRange, *, is_final: bool
) -> None:
    """What lost attempts may have written under output keys; is_final: and the pointers to it. On an IO thread.

    Readers follow committed attempts, so this frees space and names; it may fail without harm: then rows go with their submission. Rows
    are found by their names, not in a listing: a writer that died may have left one that is in none.
    Cost: for a lost attempt that wrote nothing a look of the store, many together; a read where arguments are not in the record.
    """
    block = decode_block(failed.block)
    try:
        outputs = _outputs_of(store, submission, block, range(first, first + count))
        if failed.reason in LOSSES:
            some = [(index, n) for index, named in outputs.items() for n in range(max(1, len(named)))]
            for at in range(0, len(some), _ROWS):
                store.delete_many([keys.output(submission.id, index, attempt, n) for index, n in some[at : at + _ROWS]])
        for index, named in outputs.items() if is_final and block.keyed else ():
            delete_pointers(store, submission.id, index, named)
    except (RmgrError, msgspec.DecodeError, IndexError) as error:  # fewer arguments than tasks: its row is not what it was
        _LOG.info("outputs_not_deleted", extra={"error": str(error)})


def _outputs_of(store: Store, submission: Submission, block: BlockData, indices: range) -> dict[int, tuple[str, ...]]:
    """Output keys of each task, or what has as many."""
    if submission.command is not None:
        return dict.fromkeys(indices, tuple(key for key, _ in submission.command.output_files))
    payloads = block.payloads if block.keyed else ()
    if block.keyed and block.row:
        row = row_of(store, block.row, _MOST_PAYLOADS_BYTES)
        payloads = decode_payloads(row) if row else ()
    if not payloads:
        return dict.fromkeys(indices, ())
    return {index: decode_keyed(payloads[index - block.base]).outputs for index in indices}


def delete_pointers(store: Store, number: int, index: int, outputs: tuple[str, ...]) -> None:
    """Frees the output keys of a task that ended without a result; keys that somebody else has taken stay."""
    for output in outputs:
        data, about = store.get_noted_many([keys.named(output)], largest=keys.POINTER_BYTES).get(keys.named(output), (None, None))
        if data is not None and about is not None and about.encoding is Encoding.POINTER:
            pointer = keys.decode_pointer(data)
            if (pointer.sub, pointer.index) == (number, index):
                store.delete(keys.named(output))
