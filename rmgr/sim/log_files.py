"""The files in which logs of schedulers are (rmgr/sched/state/event_log.py): written whole or not at all, checked when they are read."""

from __future__ import annotations

import gzip
import io
import os
import zlib
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from rmgr.errors import UsageError
from rmgr.sched.state.event_log import End, Entry, LogError, Opening, Passed, decode
from rmgr.sim.runs.output import not_written, refuse_existing

_GZIP = b"\x1f\x8b"


@contextmanager
def new_log(path: Path) -> Iterator[Callable[[str], object]]:
    """A new file of text that takes its name only when the block ends well; packed when it is called .gz.

    Raises: UsageError when the name is taken; RmgrError when the disk is full.
    """
    refuse_existing(path)
    partial = path.absolute().parent / f".{path.name}.partial-{os.getpid()}"
    try:
        with partial.open("wb") as file:
            packed = gzip.GzipFile(filename="", mode="wb", fileobj=file, compresslevel=6, mtime=0) if path.suffix == ".gz" else None
            with io.TextIOWrapper(packed or file, encoding="utf-8", newline="\n", write_through=False) as text:
                yield text.write
                text.flush()
                if packed is not None:
                    packed.close()
                file.flush()
                os.fsync(file.fileno())
        refuse_existing(path)
        partial.rename(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise not_written(path, error) from error
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def read_log(path: str | Path, *, whole: bool = True) -> Generator[Entry, None, None]:
    """The entries of a log, packed or not, checked: opening first, times and passes in order, counted at its end.

    Args:
        whole: an end is asked for; else a log that was cut off, or is still being written, gives what it has.
    Raises: UsageError naming line and field.
    """
    facts = passes = number = 0
    at_us = None
    try:
        with _opened(Path(path)) as lines:
            for number, line in enumerate(lines, 1):
                if not whole and not line.endswith(b"\n"):
                    return
                where = f"{path}, line {number}"
                try:
                    entry = decode(line.decode("utf-8"))
                except (LogError, UnicodeDecodeError) as error:
                    cut = not line.endswith(b"\n")
                    raise UsageError(f"{where}: {error}", hint=_CUT if cut else _WRITERS) from error
                if (number == 1) is not isinstance(entry, Opening):
                    raise UsageError(f"{where}, field log: a log begins with it, once", hint=_WRITERS)
                if isinstance(entry, Opening):
                    yield entry
                    continue
                if at_us is not None and entry.at_us < at_us:
                    raise UsageError(f"{where}, field at: {entry.at_us} us is earlier than the line before, {at_us} us")
                at_us = entry.at_us
                if isinstance(entry, End):
                    if (entry.facts, entry.passes) != (facts, passes):
                        raise UsageError(f"{where}, field end: {facts} facts and {passes} passes stand before it", hint="lines are missing")
                    yield entry
                    return
                if isinstance(entry, Passed):
                    passes += 1
                    if entry.number != passes:
                        raise UsageError(f"{where}, field pass: {entry.number} follows pass {passes - 1}", hint="lines are missing")
                else:
                    facts += 1
                yield entry
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        if whole:
            raise UsageError(f"{path}: the gz file is damaged or ends in the middle, after line {number}", hint=_CUT) from error
        return
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}", hint=_WRITERS) from error
    if whole:
        raise UsageError(f"{path} has no end: it was cut off after line {number}, or is still being written", hint=_CUT)


_WRITERS = "rmgr sim run --record and rmgr admin export-events write such logs"
_CUT = "--partial replays what is there"


def _opened(path: Path) -> IO[bytes] | gzip.GzipFile:
    with path.open("rb") as probe:
        packed = probe.read(2) == _GZIP
    return gzip.open(path, "rb") if packed else path.open("rb")
