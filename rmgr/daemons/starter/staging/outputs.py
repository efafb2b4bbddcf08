"""From the end of an attempt to what is committed: first values and logs go to the store, then comes an outcome or a failed record.

Everything small stays inline and costs no IO. A job on an IO thread (`write`) stores the rest; only with its result is the outcome
finished, and may a COMPLETE carry it.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from rmgr.adapters.access.limits import Bounds
from rmgr.adapters.host.accounts import Account, acting, open_regular
from rmgr.adapters.host.workevents import WorkerEnded
from rmgr.coord.ops.leader import Again, rule
from rmgr.coord.protocol import keys
from rmgr.coord.protocol.multi import MAX_ZNODE_BYTES
from rmgr.coord.protocol.ports import MAX_VALUE_BYTES, Encoding, Note, Store
from rmgr.daemons.starter.core.blocks import ClaimedBlock, failed_record
from rmgr.daemons.starter.core.io import Convoy, StoreIO
from rmgr.daemons.starter.staging.logs import Flushed, StoredStream
from rmgr.errors import DataLost, LimitReached, RmgrError, StoreUnavailable, Unavailable, UsageError, ValueTooLarge
from rmgr.model.block import MAX_INLINE_VALUE, Call, FailedRange, Outcome
from rmgr.model.frames import NO_OUTPUT, CommandEnd, Output, TaskEnd, Value
from rmgr.model.states import Reason, State
from rmgr.model.submission import Submission
from rmgr.model.units import format_duration, format_size, signal_name
from rmgr.procedures.authentic import Deeds
from rmgr.procedures.output_keys import delete_pointers
from rmgr.runner.host.files import remove_tree
from rmgr.runner.host.kernel import NODE_TROUBLE
from rmgr.runtime import machine
from rmgr.runtime.failpoint import failpoint

#: Most characters of an error in an outcome.
_ERROR_CHARS = 1000
#: The same in a failed record: eight of them travel in the block.
_PAST_CHARS = 250
#: Bytes in a failed record for everything except arguments and output (its past: eight errors).
_RECORD_BYTES = 6 * 1024
#: Most bytes of rows of one job, and weight of a row besides its value.
_TOGETHER_BYTES = 4 * 1024 * 1024
_ROW_BYTES = 8 * 1024
#: Larger values are written one by one, each on a thread of its own: stores keep them as files or in pieces.
_LARGE_BYTES = 256 * 1024
#: Up to this size the owner's thread itself hashes and signs.
_ALONE_BYTES = 32 * 1024
_CHUNK = 512 * 1024
#: Makes the note beside the value of an output key, which says whose it is, from its row and encoding.
Seal = Callable[[str, Encoding], Note]


@dataclass(slots=True, kw_only=True)
class Ending:
    """The end of an attempt, by whatever part of the node it was reported."""

    reason: Reason = Reason.NONE
    error: str = ""
    is_final: bool = False  #: the task does not run again, even if the rule for the reason allows it
    exit_code: int | None = None
    started_us: int = 0
    elapsed_us: int = 0
    cpu_us: int = 0
    max_rss_kib: int = 0
    served_us: int = 0
    turns: int = 0
    data: bytes = b""
    pickled: bool = True
    value: Value | None = None
    values: tuple[Value, ...] | None = None
    out: Output = NO_OUTPUT
    err: Output = NO_OUTPUT
    files: tuple[str, ...] = ()  #: output files of a command, as named by its user, in the order of its output keys
    files_home: str = ""  #: directory to which their relative paths refer
    is_far: bool = False  #: some of them may lie outside directories of the Starter
    flushed: Flushed | None = None
    kept_paths: tuple[str, ...] = ()  #: the user's own files, which stay
    directory: str = ""  #: work directory of a command, to be removed
    home: str = ""  #: directory of its slot
    log_rows: bool = False  #: no inline output: its failed record has no room for it
    account: Account | None = None  #: whose rights are used for its files; None: the Starter's
    spilled: set[str] = field(default_factory=set)  #: files written by the Starter itself
    output_cap: int = 0  #: bytes that the runner keeps of a stream, 0 = all; a user in its place could name larger files
    file_cap: int = 0  #: most bytes of a file that becomes a value, holes counted, 0 = as for any value

    @property
    def needs_store(self) -> bool:
        """Whether some of it does not fit into an outcome."""
        return bool(
            len(self.data) > MAX_INLINE_VALUE
            or self.value is not None
            or self.values is not None
            or self.files
            or self.out.path
            or self.err.path
            or self.flushed is not None
            or self.log_rows
        )

    def rights(self, path: str) -> Account | None:
        """Returns whose rights are used for one of its files."""
        return None if path in self.spilled else self.account

    @property
    def in_memory_bytes(self) -> int:
        """Bytes of values in memory, without files."""
        inline = (self.value,) if self.value is not None else ()
        return len(self.data) + sum(len(value.data) for value in (*inline, *(self.values or ())))

    @property
    def largest_bytes(self) -> int:
        """Bytes of the largest value in memory."""
        inline = (self.value,) if self.value is not None else ()
        return max(len(self.data), *(len(value.data) for value in (*inline, *(self.values or ()))), 0)

    @property
    def has_files(self) -> bool:
        """Whether some of its output is in files, or is a separate log."""
        inline = (self.value,) if self.value is not None else ()
        is_log = self.out.path or self.err.path or self.flushed is not None or self.log_rows
        return bool(self.files or is_log or any(value.path for value in (*inline, *(self.values or ()))))

    @property
    def size_bytes(self) -> int:
        """Bytes that must be stored."""
        size = len(self.data) + (self.value.size or len(self.value.data) if self.value is not None else 0)
        size += sum(value.size or len(value.data) for value in self.values or ())
        return size + sum(stream.size - stream.dropped for stream in (self.out, self.err))


def of_task(end: TaskEnd) -> Ending:
    """Returns the end of a function call."""
    extra = end.extra
    ending = Ending(started_us=end.started_us, elapsed_us=end.elapsed_us, cpu_us=end.cpu_us, data=end.data, pickled=end.pickled)
    if extra is not None:
        ending.reason, ending.error = extra.reason, extra.summary
        ending.max_rss_kib = extra.max_rss_kib
        ending.value, ending.values, ending.out, ending.err = extra.value, extra.values, extra.out, extra.err
        if extra.error:
            ending.data, ending.pickled = extra.error, True
    return ending


def of_command(end: CommandEnd) -> Ending:
    """Returns the end of a command."""
    code = 128 + end.signal if end.signal else end.exit_code
    error = end.detail
    if not error and end.reason is Reason.EXIT_CODE:
        error = f"exit code {end.exit_code}"
    elif not error and end.reason is Reason.SIGNAL:
        error = f"killed by {signal_name(end.signal)}"
    return Ending(
        reason=end.reason,
        error=error,
        exit_code=code,
        started_us=end.started_us,
        elapsed_us=end.elapsed_us,
        cpu_us=end.cpu_us,
        max_rss_kib=end.max_rss_kib,
        out=end.out,
        err=end.err,
    )


def of_worker(event: WorkerEnded) -> Ending:
    """Returns the end of the task that a worker ran when it died."""
    return Ending(
        reason=event.reason if event.reason is not Reason.NONE else Reason.WORKER_LOST,
        error=event.detail or ("" if event.reason in {Reason.TIME_LIMIT, Reason.OUT_OF_MEMORY} else f"its worker ended: {event.reason}"),
        exit_code=128 + event.signal if event.signal else event.exit_code,
        started_us=event.started_us,
        elapsed_us=event.elapsed_us,
        cpu_us=event.cpu_us,
        max_rss_kib=event.max_rss_kib,
        out=event.out,
        err=event.err,
    )


def over_limit(ending: Ending, record: Submission) -> str:
    """Returns the limit that ended an attempt (for memory with its peak) as one phrase; "" for any other end."""
    if ending.reason not in {Reason.TIME_LIMIT, Reason.OUT_OF_MEMORY}:
        return ""
    request = record.request
    if ending.reason is Reason.TIME_LIMIT and request.time_limit_us:
        return f"over its limit of {format_duration(request.time_limit_us / 1e6)}"
    if ending.reason is Reason.OUT_OF_MEMORY:
        if not request.memory_bytes:
            return "its node had no memory left"
        peak = f" (peak {format_size(ending.max_rss_kib * 1024)})" if ending.max_rss_kib else ""
        each = " a process" if record.rigid is not None and record.rigid.processes > 1 else ""
        return f"over its {format_size(request.memory_bytes)}{each}{peak}"
    return ""


def plain_outcome(block: ClaimedBlock, index: int, end: CommandEnd) -> Outcome | None:
    """Returns the outcome of a command that succeeded and left only a little output; None if it needs `conclude`.

    The same as `conclude` of `of_command`, for the thousands of short commands of an array. Cost: 2 us instead of 25.
    """
    out, err = end.out, end.err
    if end.reason is not Reason.NONE or end.signal or end.detail or end.directory or out.path or err.path:
        return None
    return Outcome(
        index=index,
        started_us=end.started_us - block.base_us,
        elapsed_us=end.elapsed_us,
        cpu_us=end.cpu_us,
        max_rss_kib=end.max_rss_kib,
        exit_code=end.exit_code,
        log=(out.data, err.data),
        past=block.data.past,
    )


# -- on an IO thread ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class Written:
    """What is now in the store of an ending."""

    value_size: int = -1
    value_sha256: bytes | None = None
    outputs: int = 0
    bad_output: str = ""  #: what is wrong with its output files
    log: tuple[bytes, bytes] = (b"", b"")
    log_parts: tuple[int, int] = (0, 0)
    data: bytes = b""


class OutputRow(NamedTuple):
    """A value to be stored. is_named: under an output key."""

    key: str
    data: bytes
    encoding: Encoding
    is_named: bool


def rows_of(submission: int, index: int, attempt: int, ending: Ending) -> tuple[list[OutputRow], Written] | None:
    """Returns what `write` would store of an ending that is all in memory; None if it has files, or logs of its own."""
    values = ending.values or ()
    if ending.has_files:
        return None
    written = Written(data=ending.data, outputs=len(values), log=(ending.out.data, ending.err.data))
    rows = [
        OutputRow(keys.output(submission, index, attempt, number), value.data, encoding_of(pickled=value.pickled), is_named=True)
        for number, value in enumerate(values)
    ]
    alone = ending.value or (Value(data=ending.data, pickled=ending.pickled) if len(ending.data) > MAX_INLINE_VALUE else None)
    if alone is not None:
        rows.append(OutputRow(keys.output(submission, index, attempt), alone.data, encoding_of(pickled=alone.pickled), is_named=False))
        written.value_size, written.value_sha256, written.data = len(alone.data), hashlib.sha256(alone.data).digest(), b""
    return rows, written


def write(
    store: Store, submission: int, index: int, attempt: int, ending: Ending, *, log_ttl_s: float | None = None, seal: Seal | None = None
) -> Written:
    """Puts the large parts of an ending into the store. Idempotent (the same rows with the same bytes).

    log_ttl_s: how long rows of its logs are kept, None = for ever. seal: of values under output keys (secured clusters); the hashes of all
    other rows are in the signed fragment. Files stay in place until `discard`. Raises: StoreUnavailable, ValueTooLarge, OSError. Faults
    of a command's output files, or of the way to them, are in the returned `bad_output`.
    """
    written = Written(data=ending.data)
    if ending.value is not None:
        target = keys.output(submission, index, attempt)
        written.value_size, written.value_sha256 = put_hashed(
            store, target, ending.value, ending.rights(ending.value.path), most=ending.file_cap
        )
        written.data = b""
    elif len(ending.data) > MAX_INLINE_VALUE:
        value = Value(data=ending.data, pickled=ending.pickled)
        written.value_size, written.value_sha256 = put_hashed(
            store, keys.output(submission, index, attempt), value, None, most=ending.file_cap
        )
        written.data = b""
    for number, value in enumerate(ending.values or ()):
        row = keys.output(submission, index, attempt, number)
        put(store, row, value, ending.rights(value.path), seal, most=ending.file_cap)
        written.outputs += 1
    try:
        for number, name in enumerate(ending.files):
            row = keys.output(submission, index, attempt, number)
            put_named(store, row, name, ending.files_home, ending.account, seal, most=ending.file_cap)
            written.outputs += 1
    except (UsageError, ValueTooLarge) as error:  # its logs are stored nevertheless
        written.outputs, written.bad_output = 0, error.message
    with ending.flushed.lock if ending.flushed is not None else nullcontext():
        written.log, written.log_parts = _write_logs(store, submission, index, attempt, ending, log_ttl_s)
    return written


def _write_logs(
    store: Store, submission: int, index: int, attempt: int, ending: Ending, ttl_s: float | None
) -> tuple[tuple[bytes, bytes], tuple[int, int]]:
    rests, parts = [], []
    for number, (stream, output) in enumerate(zip(keys.STREAMS, (ending.out, ending.err), strict=True)):
        row = partial(keys.log, submission, index, attempt, stream)
        stored = ending.flushed.streams[number] if ending.flushed is not None else StoredStream()
        part = stored.parts
        try:
            rest, part = stored.end(store, row, output, ending.account, ttl_s=ttl_s, most=ending.output_cap)
            if rest and ending.log_rows:
                store.put(row(part), rest, ttl_s=ttl_s)
                rest, part = b"", part + 1
        except LimitReached as error:  # a log is cut, and says so: the task does not fail for it
            rest = f"\n[rmgr: the rest of this output is not stored: {error.message}]\n".encode()
        rests.append(rest)
        parts.append(part)
    return (rests[0], rests[1]), (parts[0], parts[1])


def spill(ending: Ending, directory: Path) -> None:
    """Moves values from memory into files while the store is away. Raises: OSError.

    They belong to this incarnation: if it ends before the store is back, its claims are lost, and the resubmit rule decides.
    """
    if len(ending.data) > MAX_INLINE_VALUE and ending.value is None:
        ending.value = _spilled(Value(data=ending.data, pickled=ending.pickled), directory, ending)
        ending.data = b""
    elif ending.value is not None:
        ending.value = _spilled(ending.value, directory, ending)
    if ending.values is not None:
        ending.values = tuple(_spilled(value, directory, ending) for value in ending.values)


def _spilled(value: Value, directory: Path, ending: Ending) -> Value:
    if value.path or len(value.data) <= MAX_INLINE_VALUE:
        return value
    path = directory / f"spool-{machine.guid()}"
    path.touch(mode=0o600)
    ending.spilled.add(str(path))
    with path.open("wb") as file:  # memory is freed only when the disk has really taken it: a late ENOSPC shows here
        file.write(value.data)
        file.flush()
        os.fsync(file.fileno())
    return Value(pickled=value.pickled, path=str(path), size=len(value.data))


def discard(ending: Ending) -> None:
    """Removes the files of an ending that is stored."""
    named = [path for path in (ending.out.path, ending.err.path) if path not in ending.kept_paths]
    if ending.value is not None:
        named.append(ending.value.path)
    named += [value.path for value in ending.values or ()]
    for path in filter(None, named):
        with suppress(OSError), acting(ending.rights(path)):
            os.unlink(path)


def remove_directory(ending: Ending) -> None:
    """Removes the work directory of a command, with the rights of the user who named it."""
    with acting(ending.account):
        remove_tree(ending.directory)


def is_users_fault(error: Exception, ending: Ending) -> tuple[bool, bool]:
    """Returns whether a failure to store is not the node's fault, and whether files of the Starter may have been removed."""
    # The node is not to blame for a file that its user may not read, or has removed.
    is_gone = isinstance(error, FileNotFoundError) and (ending.account is None or not os.path.lexists(ending.home))
    his = isinstance(error, OSError) and ending.account is not None and error.errno not in NODE_TROUBLE and not is_gone
    his = his or isinstance(error, ValueError)  # a name that no file can have, or text instead of a number
    his = his or (isinstance(error, RmgrError) and not isinstance(error, Unavailable | DataLost))  # no store accepts it from the user
    return his, is_gone


# -- outcomes and failed records ---------------------------------------------------------------------------------------------


def conclude(
    block: ClaimedBlock, index: int, ending: Ending, written: Written | None, *, backoff_us: int, max_losses: int, cancelled: str | None
) -> Outcome | FailedRange:
    """Returns the final outcome of an attempt, or the record of a failure after which the task may run again.

    Args:
        written: result of `write`, None if the store was not needed.
        cancelled: the user's words if the task is being cancelled, else None.
    """
    told = written or Written(data=ending.data, log=(ending.out.data, ending.err.data))
    reason, state = ending.reason, State.COMPLETED
    if reason is Reason.USER_CANCEL or (cancelled is not None and reason is not Reason.NONE):
        reason, state = block.cancel_reason(index), State.CANCELLED
    elif reason is not Reason.NONE:
        ruling = rule(reason, block.data, alone=block.key.count == 1, backoff_us=backoff_us, max_losses=max_losses)
        if isinstance(ruling, Again) and not ending.is_final:
            return _failed(block, index, ending, told, ruling.backoff_us)
        reason, state = reason if isinstance(ruling, Again) else ruling.reason, State.FAILED
    return Outcome(
        index=index,
        state=state,
        started_us=ending.started_us - block.base_us if ending.started_us else 0,
        elapsed_us=ending.elapsed_us,
        value=told.data,
        pickled=ending.pickled,
        cpu_us=ending.cpu_us,
        max_rss_kib=ending.max_rss_kib,
        reason=reason,
        exit_code=ending.exit_code,
        value_size=told.value_size,
        error=(cancelled or "" if state is State.CANCELLED else ending.error)[:_ERROR_CHARS],
        log=told.log,
        log_parts=told.log_parts,
        outputs=told.outputs,
        past=block.data.past,
        value_sha256=told.value_sha256,
        served_us=ending.served_us,
        turns=ending.turns,
        call=_call(block, index) if state is State.FAILED and reason is not Reason.UNTRUSTED else None,
    )


def _call(block: ClaimedBlock, index: int) -> Call | None:
    """Returns the function call that ran, if its arguments are here or in a row; else None."""
    data = block.data
    if not data.function or block.payloads is None:
        return None
    if data.row:
        return Call(function=data.function, row=data.row, at=index - block.base, keyed=data.keyed)
    payload = block.payload(index)
    return Call(function=data.function, payload=payload, keyed=data.keyed) if isinstance(payload, bytes) else None


def crowded(block: ClaimedBlock, index: int, ending: Ending) -> bool:
    """Returns whether a failed record would have room for the arguments, but not also for the output."""
    logs = len(ending.out.data) + len(ending.err.data)
    return ending.reason is not Reason.NONE and logs > 0 and len(block.payload(index)) + logs > MAX_ZNODE_BYTES - _RECORD_BYTES


def _failed(block: ClaimedBlock, index: int, ending: Ending, told: Written, backoff_us: int) -> FailedRange:
    return failed_record(
        block,
        index,
        reason=ending.reason,
        node=block.node,
        backoff_us=backoff_us,
        exit_code=ending.exit_code,
        error=ending.error[:_PAST_CHARS],
        started_us=ending.started_us,
        ended_us=ending.started_us + ending.elapsed_us,
        log=told.log,
        log_parts=told.log_parts,
        cpu_us=ending.cpu_us,
        max_rss_kib=ending.max_rss_kib,
    )


# -- outputs on their way to the store -------------------------------------------------------------------------------------
# Outputs of tasks on their way to the data store: outputs in memory go many at a time, the others one by one. A task counts as ended only
# once all of its output is stored (`Ends`), since a COMPLETE names only stored rows. Rows of a block that is not the node's any more are
# not written; earlier ones stay unread, and are deleted after their attempt has failed (`delete_outputs` in submitter/upkeep.py), at the
# latest with their submission.


@dataclass(slots=True, eq=False)
class StoringEnding:
    """An ending that is being stored.

    spool: directory for values in memory while the store is away. log_ttl_s: see `write`. done: gets what is stored, or the error.
    """

    block: ClaimedBlock
    index: int
    ending: Ending
    spool: Path
    log_ttl_s: float | None
    done: Callable[[Written | Exception], None]
    charge: Charge | None = None  #: made just before the write
    in_memory_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.in_memory_bytes = self.ending.in_memory_bytes

    @property
    def owner(self) -> str:
        """The user who owns the values."""
        user: str = self.block.info.record.user
        return user


class OutputRows:
    """Stores the outputs of endings, for all nodes of a Starter.

    Args:
        deeds: of a secured cluster: each value under an output key gets a deed; many deeds share a signature.
        cap_bytes: of values in memory; above it no more work should begin. charges: of users.
    """

    def __init__(self, io: StoreIO, deeds: Deeds | None, charges: Charges, *, cap_bytes: int) -> None:
        self._io = io
        self._charges = charges
        self._deeds = deeds
        self._convoy: Convoy[StoringEnding] = Convoy(io, self._carry, self._arrived, weight=_weight, most=_TOGETHER_BYTES)
        self.in_memory_bytes = 0  #: of values that are neither stored nor in a file
        self._lock = threading.Lock()
        self._cap_bytes = cap_bytes

    @property
    def is_full(self) -> bool:
        """Whether slots produce faster than the store takes: they must wait."""
        return self.in_memory_bytes > self._cap_bytes

    def add(self, leaving: StoringEnding) -> None:
        """Stores an ending, and then calls its `done`. Owner's thread."""
        ending = leaving.ending
        with self._lock:
            self.in_memory_bytes += leaving.in_memory_bytes
        if ending.has_files or ending.largest_bytes > _LARGE_BYTES:
            done = lambda result: self._on_ended(leaving, result)  # noqa: E731 - beside what it is the end of
            # A hanging file server may keep its thread: one thread is left for endings with local files.
            size, far = ending.size_bytes, ending.is_far
            self._io.run(lambda store: self._alone(store, leaving), done, user=leaving.owner, size=size, is_synced=not far, is_long=far)
        elif not self._begin(leaving):
            self._convoy.add(leaving, size=ending.size_bytes)

    def _begin(self, leaving: StoringEnding) -> bool:
        """Stores a single small row without a thread in between, if the store can."""
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
                self._on_ended(leaving, told[0])
            else:
                self._convoy.add(leaving, size=leaving.ending.size_bytes)

        size = leaving.ending.size_bytes
        return size <= _ALONE_BYTES and self._io.begin(put, done, size=size)

    def delete(self, block: ClaimedBlock, index: int, outputs: tuple[str, ...] = ()) -> None:
        """Deletes the outputs of an attempt. outputs: output keys of a task that does not run again, whose pointers go, too."""
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
            return [self._store_alone(store, leaving) for leaving in load]  # a value that cannot be stored only fails its own task
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
        """Returns rows with their owners, and what will be stored of each ending; None for an ending that was spilled, and goes alone."""
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
        """Returns the deeds of values under output keys; the hashes of other rows are in the signed fragment."""
        named = [(row.key, sha256(row.data).digest(), owner) for row, owner in rows if row.is_named]
        if self._deeds is None or not named:
            return []
        made = iter(self._deeds.notes(named, encoding))
        return [next(made) if row.is_named else b"" for row, _ in rows]

    def _store_alone(self, store: Store, leaving: StoringEnding) -> Written | Exception:
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
            self._on_ended(leaving, result if isinstance(result, Exception) else result[number])
        return True

    def _on_ended(self, leaving: StoringEnding, result: Written | Exception) -> None:
        self._left_memory(leaving, 0)
        leaving.done(result)


def _weight(leaving: StoringEnding) -> int:
    ending = leaving.ending
    return leaving.in_memory_bytes + _ROW_BYTES * (1 + len(ending.values or ()))


# -- values ----------------------------------------------------------------------------------------------------------------
# Puts values of tasks into the store: from memory, from files of their runner, from files that users name. On an IO thread. A file is
# opened with its user's rights; its size is checked before and during the read, since it may be all holes, and it may grow.


def put_hashed(store: Store, key: str, value: Value, account: Account | None, *, most: int) -> tuple[int, bytes]:
    """Stores a value; returns its size and the SHA-256 of its bytes, for the task's outcome. Raises: as `put`."""
    made = _adopt(store, key, value, account, b"")
    if made is not None:
        return made
    digest = hashlib.sha256()
    if not value.path:
        digest.update(value.data)
    return put(store, key, value, account, digest=digest, is_kept=True, most=most), digest.digest()


def put(
    store: Store,
    key: str,
    value: Value,
    account: Account | None,
    seal: Seal | None = None,
    *,
    most: int,
    digest: hashlib._Hash | None = None,
    is_kept: bool = False,
) -> int:
    """Stores a value; returns its size.

    Args:
        most: largest size of a file. digest: updated with what is read. is_kept: the file stays its user's, and may change.
    Raises: ValueTooLarge, StoreUnavailable, OSError.
    """
    encoding = encoding_of(pickled=value.pickled)
    note = seal(key, encoding) if seal is not None else b""
    if not value.path:
        store.put(key, value.data, encoding=encoding, note=note)
        return len(value.data)
    if not is_kept and (made := _adopt(store, key, value, account, note)) is not None:
        return made[0]
    return _put_file(store, key, open_regular(value.path, account), value.path, encoding, note, most=most, digest=digest)


def put_named(store: Store, key: str, name: str, home: str, account: Account | None, seal: Seal | None, *, most: int) -> None:
    """Stores an output file of a command under the name that its user gave it, relative to `home`.

    Raises: UsageError, ValueTooLarge with words for the user, for which the node is not to blame; StoreUnavailable; OSError.
    """
    note = seal(key, Encoding.RAW) if seal is not None else b""
    try:
        fd = open_regular(name, account, below=home)
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError(f"its output file {name[:300]!r} was not written") from None
    except OSError as error:
        if error.errno in NODE_TROUBLE:
            raise
        raise UsageError(f"its output file {name[:300]!r} cannot be stored: {error.strerror}") from None
    except ValueError:  # NUL, or no valid UTF-8
        raise UsageError(f"its output file {name[:300]!r} cannot be stored: no file can have this name") from None
    _put_file(store, key, fd, name, Encoding.RAW, note, most=most)


def _put_file(
    store: Store, key: str, fd: int, name: str, encoding: Encoding, note: Note, *, most: int, digest: hashlib._Hash | None = None
) -> int:
    size, most = 0, min(most or MAX_VALUE_BYTES, MAX_VALUE_BYTES)

    def check(found: int) -> None:
        if found > most:
            has = f"{format_size(found)} ({found} bytes, holes counted)"
            raise ValueTooLarge(f"its file {name[:300]!r} has {has}, and one that is stored has at most {format_size(most)}")

    def chunks(file: BinaryIO) -> Iterator[bytes]:
        nonlocal size
        while data := file.read(_CHUNK):
            if digest is not None:
                digest.update(data)
            size += len(data)
            check(size)
            yield data

    with open(fd, "rb") as file:
        check(os.fstat(fd).st_size)
        store.put(key, chunks(file), encoding=encoding, note=note)
    return size


def _adopt(store: Store, key: str, value: Value, account: Account | None, note: Note) -> tuple[int, bytes] | None:
    """Stores a value from a file of the Starter's own that need not be copied; returns its size and SHA-256, None if that is impossible."""
    if not value.path or account is not None:
        return None
    return store.adopt(key, value.path, encoding=encoding_of(pickled=value.pickled), note=note, sha256=value.sha256)


def encoding_of(*, pickled: bool) -> Encoding:
    """Returns how the bytes of a value are written."""
    return Encoding.PICKLE if pickled else Encoding.RAW


# -- charging users --------------------------------------------------------------------------------------------------------
# Counts what work writes into the data store for its user before it is written, as a gateway counts what clients write (`store_bytes`).
# Each Starter and each gateway counts by itself: a user may write the limit through each of them within a day.


class Charge:
    """Counts what one task writes: each row once, even if it is tried several times. For one thread at a time."""

    __slots__ = ("_bounds", "_rows", "_user")

    def __init__(self, bounds: Bounds, user: str) -> None:
        self._bounds = bounds
        self._user = user
        self._rows: dict[str, int] = {}

    def row(self, key: str, size: int) -> None:
        """Counts bytes of a row that is about to be written. Raises: LimitReached; then the row must not be written."""
        more = size - self._rows.get(key, 0)
        if more > 0:
            self._bounds.write(self._user, more)
            self._rows[key] = size


class ChargedStore:
    """A store for `outputs.write` and for pieces of checkpoints: writes are counted and may raise LimitReached; the rest is the store's."""

    def __init__(self, store: Store, charge: Charge) -> None:
        self._store = store
        self._charge = charge

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def put(self, key: str, value: bytes | Iterable[bytes | memoryview], **options: Any) -> None:
        if isinstance(value, bytes):
            self._charge.row(key, len(value))
            self._store.put(key, value, **options)
        else:
            self._store.put(key, self._counted(key, value), **options)

    def adopt(self, key: str, path: str, **options: Any) -> tuple[int, bytes] | None:
        """See `Store.adopt`."""
        self._charge.row(key, os.stat(path).st_size)
        return self._store.adopt(key, path, **options)

    def _counted(self, key: str, chunks: Iterable[bytes | memoryview]) -> Iterator[bytes | memoryview]:
        size = 0
        for chunk in chunks:
            size += len(chunk)
            self._charge.row(key, size)
            yield chunk


def charged(store: Store, charge: Charge) -> Store:
    """Returns `store` with its writes charged."""
    made: Any = ChargedStore(store, charge)
    typed: Store = made
    return typed


#: Makes the charge of a user.
Charges = Callable[[str], Charge]
