"""One checkpoint, from the directories of a job to its rows in the store. Called on a thread that may wait."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

from rmgr.coord.protocol.keys import Checkpoint
from rmgr.coord.protocol.ports import Store
from rmgr.daemons.starter.checkpoint import rows
from rmgr.daemons.starter.checkpoint.files import FileEntry, Manifest, check_size, size_text
from rmgr.daemons.starter.checkpoint.parts import JobDirectory, each
from rmgr.daemons.starter.checkpoint.seal import OPEN, Seals
from rmgr.daemons.starter.checkpoint.union import united
from rmgr.daemons.starter.staging.outputs import Ending, Flushed, discard, remove_directory, write
from rmgr.errors import RmgrError, StateConflict, StoreUnavailable
from rmgr.model.wire.frames import NO_OUTPUT

#: What `take` says of directories without files.
NOTHING = "nothing was saved: its checkpoint directory has no files"


def check(parts: Sequence[JobDirectory], store: Store, limit: int) -> None:
    """Raises: ValueTooLarge naming both sizes, StoreUnavailable when nothing could be stored now."""
    wrong = store.health()
    if wrong is not None:
        raise StoreUnavailable(f"the data store is not there: {wrong}")
    check_size(sum(each(parts, lambda part: part.measure())), limit)


def take(
    parts: Sequence[JobDirectory],
    store: Store,
    saved: Checkpoint,
    base: Sequence[FileEntry],
    *,
    stop: bool,
    limit: int,
    made_us: int,
    is_over: Callable[[], bool],
    seals: Seals = OPEN,
) -> str:
    """Makes one checkpoint; says what it is. Raises: ValueTooLarge, StateConflict, StoreUnavailable, OSError, RmgrError."""
    files = united(each(parts, lambda part: part.collect(stop=stop, max_bytes=limit)), base)
    size = sum(entry.size for entry in files)
    check_size(size, limit)
    count = sum(not entry.is_dir for entry in files)
    lacks = "".join(f"; {part.lacks}" for part in parts if part.lacks)
    if not count:
        return NOTHING + lacks
    if is_over():
        raise StateConflict("the job has ended meanwhile")
    rows.write(
        store,
        seals.seal(
            Manifest(
                sub=saved.sub,
                index=saved.index,
                attempt=saved.attempt,
                n=saved.n,
                made_us=made_us,
                nodes=tuple(part.node for part in parts),
                size_bytes=size,
                files=files,
            )
        ),
    )
    with contextlib.suppress(RmgrError):  # else they go with the next one, or with the submission
        rows.prune(store, saved.sub, saved.index, saved.attempt, seals)
    return f"checkpoint {saved} stored: {count} file{'s' if count > 1 else ''}, {size_text(size)}{lacks}"


def put_away(store: Store, saved: Checkpoint, ending: Ending, *, log_ttl_s: float | None) -> None:
    """The output of an attempt that has ended goes to the store, its files go. May be called again.

    log_ttl_s: how long the rows of its output are kept, None = for ever.
    """
    written = write(store, saved.sub, saved.index, saved.attempt, ending, log_ttl_s=log_ttl_s)
    discard(ending)
    ending.out = ending.err = NO_OUTPUT
    ending.flushed = Flushed(parts=list(written.log_parts))
    if ending.directory:
        remove_directory(ending)
