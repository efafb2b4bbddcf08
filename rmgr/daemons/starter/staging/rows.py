"""Outputs of tasks on their way to the data store: those that are in memory go many at a time, the others one by one.

A task counts as ended only once all that it left is stored (`Ends`): a COMPLETE names nothing else. Rows of a block that is not
the node's any more are not written; those that were written before stay unread, and go once their attempt has failed (`delete_outputs`
in submitter/repair.py), at the latest with their submission.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from rmgr.coord.protocol import keys
from rmgr.coord.protocol.ports import Encoding, Store
from rmgr.daemons.starter.core.blocks import ClaimedBlock
from rmgr.daemons.starter.core.io import StoreIO
from rmgr.daemons.starter.staging.charged import Charge, Charges, charged
from rmgr.daemons.starter.staging.convoy import Convoy
from rmgr.daemons.starter.staging.outputs import Ending, OutputRow, Written, discard, rows_of, spill, write
from rmgr.daemons.starter.staging.put_values import Seal
from rmgr.errors import RmgrError, StoreUnavailable
from rmgr.procedures.authentic import Deeds
from rmgr.procedures.output_keys import delete_pointers
from rmgr.runtime.failpoint import failpoint

#: Bytes of rows of one job, and what a row weighs beside its value.
_TOGETHER_BYTES = 4 * 1024 * 1024
_ROW_BYTES = 8 * 1024
#: Larger values are written one by one, each on a thread of its own: stores keep them as files, or in pieces.
_LARGE_BYTES = 256 * 1024
#: Up to so many bytes the owner's thread hashes and signs itself.
_ALONE_BYTES = 32 * 1024


@dataclass(slots=True, eq=False)
class StoringEnding:
    """An ending whose parts are being stored.

    spool: for what is in memory, while the store is away. log_ttl_s: see `write`. done: told what is in the store, or why it is not.
    """

    block: ClaimedBlock
    index: int
    ending: Ending
    spool: Path
    log_ttl_s: float | None
    done: Callable[[Written | Exception], None]
    charge: Charge | None = None  #: made once it is about to be written
    in_memory_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.in_memory_bytes = self.ending.in_memory_bytes

    @property
    def owner(self) -> str:
        """Whose values are."""
        user: str = self.block.info.record.user
        return user


class OutputRows:
    """Stores what endings left, for all nodes of a Starter.

    Args:
        deeds: of a secured cluster: values under output keys get a deed each, many of them one signature.
        cap_bytes: of values in memory, above which no more work should begin. charges: of users.
    """

    def __init__(self, io: StoreIO, deeds: Deeds | None, charges: Charges, *, cap_bytes: int) -> None:
        self._io = io
        self._charges = charges
        self._deeds = deeds
        self._convoy: Convoy[StoringEnding] = Convoy(io, self._carry, self._arrived, weight=_weight, most=_TOGETHER_BYTES)
        self.in_memory_bytes = 0  #: of values that are neither in the store nor in a file
        self._lock = threading.Lock()
        self._cap_bytes = cap_bytes

    @property
    def is_full(self) -> bool:
        """Slots make more than the store takes: they wait until it has caught up."""
        return self.in_memory_bytes > self._cap_bytes

    def add(self, leaving: StoringEnding) -> None:
        """It will be stored, and its `done` be told. Owner's thread."""
        ending = leaving.ending
        with self._lock:
            self.in_memory_bytes += leaving.in_memory_bytes
        if ending.has_files or ending.largest_bytes > _LARGE_BYTES:
            done = lambda result: self._ended(leaving, result)  # noqa: E731 - beside what it is the end of
            # A file server that does not answer may keep its thread: one is left for those whose files are here.
            size, far = ending.size_bytes, ending.is_far
            self._io.run(lambda store: self._alone(store, leaving), done, user=leaving.owner, size=size, is_synced=not far, is_long=far)
        elif not self._begin(leaving):
            self._convoy.add(leaving, size=ending.size_bytes)

    def _begin(self, leaving: StoringEnding) -> bool:
        """What is alone goes without a thread in between, where the store has such a way."""
        told: list[Written] = []

        def put(store: Store, over: Callable[[RmgrError | None], None]) -> bool:
            rows, made = self._rows_of([leaving])
            if len(rows) != 1 or made[0] is None:
                return False
            told.append(made[0])
            failpoint("starter.outputs_leaving")
            [(encoding, some)] = rows.items()
            return store.put_soon([(row.key, row.data) for row, _ in some], encoding=encoding, notes=self._notes(some, encoding), done=over)

        def done(error: RmgrError | None) -> None:
            if error is None:
                self._ended(leaving, told[0])
            else:
                self._convoy.add(leaving, size=leaving.ending.size_bytes)

        size = leaving.ending.size_bytes
        return size <= _ALONE_BYTES and self._io.begin(put, done, size=size)

    def delete(self, block: ClaimedBlock, index: int, outputs: tuple[str, ...] = ()) -> None:
        """Nothing of an attempt stays. outputs: output keys of a task that does not run again, which lead nowhere else."""
        key = block.key

        def job(store: Store) -> None:
            for name in store.keys(keys.outputs_of(key.submission, index, key.attempt)):
                store.delete(name)
            if outputs:
                delete_pointers(store, key.submission, index, outputs)

        self._io.run(job, lambda _result: None)

    # -- on an IO thread

    def _carry(self, store: Store, load: list[StoringEnding]) -> list[Written | Exception]:
        try:
            try:
                return list(self._together(store, load))
            except StoreUnavailable:
                raise
            except Exception:
                if len(load) == 1:
                    raise
            return [self._tried(store, leaving) for leaving in load]  # what cannot be stored is the fault of its own task only
        except StoreUnavailable:
            for leaving in load:
                self._spill(leaving)
            raise

    def _together(self, store: Store, load: list[StoringEnding]) -> list[Written]:
        rows, made = self._rows_of(load)
        told = [one if one is not None else self._alone(store, leaving) for leaving, one in zip(load, made, strict=True)]
        failpoint("starter.outputs_leaving")
        for encoding, some in rows.items():
            store.put_many([(row.key, row.data) for row, _ in some], encoding=encoding, notes=self._notes(some, encoding))
        return told

    def _rows_of(self, load: list[StoringEnding]) -> tuple[dict[Encoding, list[tuple[OutputRow, str]]], list[Written | None]]:
        """Rows with their owners; and what will be stored of each ending, None: it was spilled, and goes alone."""
        rows: dict[Encoding, list[tuple[OutputRow, str]]] = {}
        told: list[Written | None] = []
        for leaving in load:
            key = leaving.block.key
            made = rows_of(key.submission, leaving.index, key.attempt, leaving.ending)
            if leaving.block.is_dropped:
                told.append(Written())
            elif made is None:
                told.append(None)
            else:
                told.append(made[1])
                for row in made[0]:
                    self._charge_of(leaving).row(row.key, len(row.data))
                    rows.setdefault(row.encoding, []).append((row, leaving.owner))
        return rows, told

    def _notes(self, rows: list[tuple[OutputRow, str]], encoding: Encoding) -> list[bytes]:
        """Deeds of values under output keys, none where there are none; what else is stored has its hash in the signed fragment."""
        named = [(row.key, sha256(row.data).digest(), owner) for row, owner in rows if row.is_named]
        if self._deeds is None or not named:
            return []
        made = iter(self._deeds.notes(named, encoding))
        return [next(made) if row.is_named else b"" for row, _ in rows]

    def _tried(self, store: Store, leaving: StoringEnding) -> Written | Exception:
        try:
            return self._together(store, [leaving])[0]
        except StoreUnavailable:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, its task is told
            return error

    def _alone(self, store: Store, leaving: StoringEnding) -> Written:
        key = leaving.block.key
        seal: Seal | None = None
        if self._deeds is not None:
            deeds, owner = self._deeds, leaving.owner
            seal = lambda row, encoding: deeds.noted(row, encoding, owner=owner)  # noqa: E731 - a type of its own
        try:
            store = charged(store, self._charge_of(leaving))
            written = write(store, key.submission, leaving.index, key.attempt, leaving.ending, log_ttl_s=leaving.log_ttl_s, seal=seal)
        except StoreUnavailable:
            self._spill(leaving)
            raise
        discard(leaving.ending)
        return written

    def _charge_of(self, leaving: StoringEnding) -> Charge:
        if leaving.charge is None:
            leaving.charge = self._charges(leaving.owner)
        return leaving.charge

    def _spill(self, leaving: StoringEnding) -> None:
        with suppress(OSError):  # a full disk: it stays in memory, within the same bound
            spill(leaving.ending, leaving.spool)
        self._left_memory(leaving, leaving.ending.in_memory_bytes)

    def _left_memory(self, leaving: StoringEnding, rest_bytes: int) -> None:
        with self._lock:
            self.in_memory_bytes -= max(0, leaving.in_memory_bytes - rest_bytes)
            leaving.in_memory_bytes = min(leaving.in_memory_bytes, rest_bytes)

    # -- on the owner's thread

    def _arrived(self, load: list[StoringEnding], result: list[Written | Exception] | Exception) -> bool:
        for number, leaving in enumerate(load):
            self._ended(leaving, result if isinstance(result, Exception) else result[number])
        return True

    def _ended(self, leaving: StoringEnding, result: Written | Exception) -> None:
        self._left_memory(leaving, 0)
        leaving.done(result)


def _weight(leaving: StoringEnding) -> int:
    ending = leaving.ending
    return leaving.in_memory_bytes + _ROW_BYTES * (1 + len(ending.values or ()))
