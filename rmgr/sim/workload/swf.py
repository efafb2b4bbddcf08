"""The Standard Workload Format, read as a stream: 18 numbers a line, `;` comments, gz too; every error names line and field.

Format: D. G. Feitelson, Parallel Workloads Archive, "The Standard Workload Format" 2.2; papers.md section 6.
"""

from __future__ import annotations

import gzip
import math
import stat
import zlib
from codecs import BOM_UTF8
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import NamedTuple

from rmgr.errors import UsageError
from rmgr.model.base.units import counted

#: The 18 fields, in order, as error messages name them.
FIELDS = (
    "job number",
    "submit time",
    "wait time",
    "run time",
    "allocated processors",
    "average CPU time",
    "used memory",
    "requested processors",
    "requested time",
    "requested memory",
    "status",
    "user",
    "group",
    "executable",
    "queue",
    "partition",
    "preceding job",
    "think time",
)
_GZIP = b"\x1f\x8b"
_LONGEST_SHOWN = 40
#: Beyond it a number is damage, not a time: 10^15 seconds are 30 million years, and engine time counts microseconds.
LARGEST = 10**15


class Record(NamedTuple):
    """One line of the trace as it stands there, fractions cut off; -1 is "unknown". Times in seconds, memory in KB a processor."""

    job: int
    submit: int
    wait: int
    run: int
    allocated: int
    average_cpu: int
    used_memory: int
    requested: int
    requested_time: int
    requested_memory: int
    status: int
    user: int
    group: int
    executable: int
    queue: int
    partition: int
    preceding: int
    think: int


class SwfReader:
    """Iterates over the records of one trace; `header` fills as comment lines pass.

    Args:
        path: file, plain or gz (told by its first bytes, not by its name).
    Raises (while iterating): UsageError for a file that cannot be read, a damaged or truncated gz, a line that is not 18 numbers.
    Cost: O(1) memory, about 3 us a line.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.header: dict[str, str] = {}

    def __iter__(self) -> Iterator[Record]:
        number = 0
        try:
            with _opened(self.path) as stream:
                for number, line in enumerate(stream, 1):
                    if number == 1:
                        line = line.removeprefix(BOM_UTF8)  # noqa: PLW2901 - which some editors put there
                    words = line.split()
                    if not words:
                        continue
                    if words[0].startswith(b";"):
                        self._note(line)
                        continue
                    try:  # nearly every line is 18 plain integers
                        record = Record(*map(int, words))
                    except (ValueError, TypeError):
                        record = self._slowly(words, number)
                    if b"_" in line or max(record) > LARGEST or min(record) < -LARGEST:
                        record = self._slowly(words, number)
                    yield record
        except EOFError as error:
            raise UsageError(
                f"{self.path}: the gz file ends in the middle, after line {number}", hint="it was not copied whole; fetch it again"
            ) from error
        except (gzip.BadGzipFile, zlib.error) as error:
            raise UsageError(f"{self.path}: the gz file is damaged after line {number}: {error}", hint="fetch it again") from error
        except OSError as error:
            raise UsageError(f"{self.path} cannot be read: {error.strerror or error}", hint="name a trace in SWF, plain or gz") from error

    def header_number(self, key: str) -> int | None:
        """A whole number of the header (`MaxProcs`, `MaxNodes`, `UnixStartTime`), None when it is missing or no number."""
        words = self.header.get(key, "").split()
        return int(words[0]) if words and words[0].isascii() and words[0].isdigit() else None

    def _note(self, line: bytes) -> None:
        text = line.decode("utf-8", "replace").lstrip("; \t").rstrip()
        key, colon, value = text.partition(":")
        if colon and key and " " not in key:
            self.header.setdefault(key, value.strip())

    def _slowly(self, words: list[bytes], line: int) -> Record:
        """The line field by field: fractions are cut off, anything else is told."""
        values = [self._number(word, line, at) for at, word in enumerate(words[: len(FIELDS)])]
        if len(words) < len(FIELDS):
            missing = FIELDS[len(words)]
            raise UsageError(
                f"{self.path}, line {line}: {counted(len(words), 'field')} instead of 18, field {len(words) + 1} ({missing}) is missing",
                hint="a trace that was cut off ends like this; unknown values are written as -1",
            )
        if len(words) > len(FIELDS):
            raise UsageError(f"{self.path}, line {line}: {counted(len(words), 'field')} instead of 18", hint="comments begin with ';'")
        return Record(*values)

    def _number(self, word: bytes, line: int, at: int) -> int:
        try:
            value = math.nan if b"_" in word else float(word)
        except ValueError:
            value = math.nan
        if math.isfinite(value) and abs(value) <= LARGEST:
            try:
                return int(word)
            except ValueError:
                return int(value)
        shown = word[:_LONGEST_SHOWN].decode("utf-8", "backslashreplace")
        is_one = not math.isnan(value) and word.lstrip(b"+-")[:1].lower() != b"i"
        raise UsageError(
            f"{self.path}, line {line}, field {at + 1} ({FIELDS[at]}): {shown!r} is {'beyond 10^15' if is_one else 'not a number'}",
            hint="SWF has 18 numbers a line; comments begin with ';', unknown values are -1",
        )


def _opened(path: Path) -> gzip.GzipFile | BufferedReader:
    """The text of the file, unpacked when it begins as gz does."""
    mode = path.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # opening a directory says itself what is wrong
        raise UsageError(
            f"{path} is no file: a trace is read more than once, and named with its digest", hint="write what comes out of a pipe to a file"
        )
    with path.open("rb") as probe:
        packed = probe.read(2) == _GZIP
    return gzip.open(path, "rb") if packed else path.open("rb")
