"""A workload: rigid jobs in submit order with exact integer times, from a trace (papers.md section 6) or a model, and its offered load.

Traces are in the Standard Workload Format, read as a stream: 18 numbers a line, `;` comments, gz too; every error names line and field
(D. G. Feitelson, Parallel Workloads Archive, "The Standard Workload Format" 2.2). Models draw from named streams of random numbers
(`stream`): one seed drives one stream per purpose, so a change of one part never changes another part's draws.
"""

from __future__ import annotations

import gzip
import hashlib
import math
import random
import stat
import zlib
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from io import BufferedReader
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

from rmgr.errors import UsageError
from rmgr.model.units import counted

#: Engine time counts microseconds; traces count seconds.
SECOND = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadJob:
    """A rigid job as drawn or recorded; its fate is a `JobOutcome`.

    Attributes:
        number: 1..n in submit order. submit_us: from the first submit, >= 0. run_us: how long it runs, > 0.
        estimate_us: requested time, never below `run_us`. processors: needed at once, > 0.
        processes, threads: its shape, processes x threads = processors. user, account, queue: names, "" if unknown.
        source: job number in the trace. communication_us: the part of `run_us` in which processes communicate, if a model has it.
        after: number of a job that must end first, 0 = none. think_us: the job is submitted this long after that end; negative: it is
        submitted at its own time and waits in the queue. memory_bytes: of one process, 0 = unknown.
    """

    number: int
    submit_us: int
    run_us: int
    estimate_us: int
    processors: int
    processes: int
    threads: int = 1
    user: str = ""
    account: str = ""
    queue: str = ""
    source: int = 0
    communication_us: int = 0
    after: int = 0
    think_us: int = -1
    memory_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Jobs in submit order, numbered 1..n, the first submitted at 0.

    Attributes:
        name: of the trace or model. jobs: at least one. processors: of the machine for which they were fitted.
        touched: change made by normalisation -> number of records, in the order of its rules.
        acknowledgement: thanks that the trace's providers ask for, "" for models.
    """

    name: str
    jobs: tuple[WorkloadJob, ...]
    processors: int
    touched: Mapping[str, int] = field(default_factory=dict)
    acknowledgement: str = ""

    @property
    def span_us(self) -> int:
        """Time between the first and the last submit."""
        return self.jobs[-1].submit_us

    @property
    def offered_load(self) -> Fraction | None:
        """Submitted work / work that the machine could do between the first and the last submit; None if all are submitted at once."""
        work = sum(job.processors * job.run_us for job in self.jobs)
        return Fraction(work, self.processors * self.span_us) if self.span_us else None

    def stretched(self, factor: Fraction) -> Workload:
        """Returns the same jobs with submit times x `factor`, rounded down to whole seconds (exact, as in the reference schedules)."""
        if factor <= 0:
            raise UsageError(f"submit times cannot be multiplied by {float(factor):g}", hint="a factor above 0; below 1 raises the load")
        above, below = factor.numerator, factor.denominator * SECOND
        return replace(self, jobs=tuple(replace(job, submit_us=job.submit_us * above // below * SECOND) for job in self.jobs))

    def first(self, count: int) -> Workload:
        """Returns the workload of the first `count` jobs, or of all if there are fewer. Raises: UsageError for less than one."""
        if count < 1:
            raise UsageError(f"a workload of {count} jobs is none", hint="at least 1")
        return replace(self, jobs=self.jobs[:count])

    def at_load(self, load: Fraction) -> Workload:
        """Returns the same jobs, arriving with offered load `load` (up to the rounding of submit times to seconds)."""
        if load <= 0:
            raise UsageError(f"an offered load of {float(load):g} is not possible", hint="a share of the machine, as 0.7")
        now = self.offered_load
        if now is None:
            raise UsageError(f"{self.name}: all jobs are submitted at once, so its load cannot be changed")
        return self.stretched(now / load)


#: What normalisation does to records, in the order of its rules; then what becomes of dependencies, if they are followed.
_RECORDS, _NO_RUN, _NO_SIZE, _NO_SUBMIT = "records read", "dropped: run time missing or zero", "dropped: no size", "dropped: no submit time"
_REQUESTED, _CUT, _NO_ESTIMATE = "size taken from the request", "size cut to the machine", "no requested time: run time taken"
_RAISED, _MOVED = "requested time raised to the run time", "moved into submit order"
_RULES = (_RECORDS, _NO_RUN, _NO_SIZE, _NO_SUBMIT, _REQUESTED, _CUT, _NO_ESTIMATE, _RAISED, _MOVED)
_FOLLOWS, _FOLLOWS_NONE = "wait for the end of another job", "dependency dropped: its job does not come before"


def read_trace(path: str | Path, *, processors: int | None = None, dependencies: bool = False) -> Workload:
    """Reads a trace, normalised by the rules of papers.md section 6.

    Size = field 5 if > 0 else field 8; records without run time, size or submit time are dropped; size = min(size, machine);
    estimate = field 9 if > 0 else the run time, never below it; sorted by (submit, original order), numbered 1..n, first submit = 0.

    Args:
        path: SWF, plain or gz. processors: of the machine; None takes `MaxProcs` (or `MaxNodes`) of the header.
        dependencies: follows fields 17 and 18: a job with a think time is submitted that long after the end of the preceding job.
    Raises: UsageError for a trace that is unreadable, holds no usable job, or does not state its machine although it is needed.
    Cost: about 5 us a record and one `WorkloadJob` (200 bytes) in memory.
    """
    reader = SwfReader(path)
    counts = Counter[str]()
    usable = list(_usable_records(reader, counts))
    if not usable:
        records = counts[_RECORDS]
        message = f"none of its {records} records has a submit time, a run time and a size" if records else "it holds no record"
        raise UsageError(f"{path}: {message}", hint="SWF has one job a line, 18 numbers; see rmgr sim run --help")
    machine = processors or reader.header_number("MaxProcs") or reader.header_number("MaxNodes")
    if not machine:
        raise UsageError(f"{path}: its header does not say how large the machine was (MaxProcs)", hint="--nodes N [--cores C]")
    counts[_MOVED] = sum(1 for before, after in pairwise(usable) if after[0] < before[0])
    usable.sort(key=itemgetter(0))  # stable: equal times keep the order of the file
    first = usable[0][0]
    jobs = []
    for number, (submit, size, run, estimate, record) in enumerate(usable, 1):
        if size > machine:
            counts[_CUT] += 1
            size = machine  # noqa: PLW2901 - the rule's own words: size = min(size, P)
        jobs.append(
            WorkloadJob(
                number=number,
                submit_us=(submit - first) * SECOND,
                run_us=run * SECOND,
                estimate_us=estimate * SECOND,
                processors=size,
                processes=size,
                user=_name_of_number("u", record.user),
                account=_name_of_number("g", record.group),
                queue=_name_of_number("q", record.queue),
                source=record.job,
                memory_bytes=max(record.requested_memory, 0) * 1024,
            )
        )
    if dependencies:
        jobs = _with_dependencies(jobs, [record for *_, record in usable], counts)
    thanks = reader.header.get("Acknowledge", "")
    touched = {rule: counts[rule] for rule in (*_RULES, *((_FOLLOWS, _FOLLOWS_NONE) if dependencies else ()))}
    return Workload(name=_name_of_trace(path), jobs=tuple(jobs), processors=machine, touched=touched, acknowledgement=thanks)


def _with_dependencies(jobs: list[WorkloadJob], records: list[Record], counts: Counter[str]) -> list[WorkloadJob]:
    """Adds to each job the number of the job it follows: the last earlier record with the preceding job's trace number."""
    seen: dict[int, int] = {}
    found = []
    for job, record in zip(jobs, records, strict=True):
        before = seen.get(record.preceding, 0) if record.preceding > 0 else 0
        if before:
            counts[_FOLLOWS] += 1
            found.append(replace(job, after=before, think_us=record.think * SECOND if record.think >= 0 else -1))
        else:
            counts[_FOLLOWS_NONE] += record.preceding > 0
            found.append(job)
        seen[record.job] = job.number
    return found


def _usable_records(records: Iterable[Record], counts: Counter[str]) -> Iterable[tuple[int, int, int, int, Record]]:
    """Yields (submit, size, run, estimate, record) of each usable record, in seconds, in the order of the file."""
    for record in records:
        counts[_RECORDS] += 1
        run, size = record.run, record.allocated
        if run <= 0:
            counts[_NO_RUN] += 1
            continue
        if size <= 0:
            size = record.requested
            if size <= 0:
                counts[_NO_SIZE] += 1
                continue
            counts[_REQUESTED] += 1
        if record.submit < 0:
            counts[_NO_SUBMIT] += 1
            continue
        estimate = record.requested_time
        if estimate <= 0:
            counts[_NO_ESTIMATE] += 1
            estimate = run
        elif estimate < run:
            counts[_RAISED] += 1
            estimate = run
        yield record.submit, size, run, estimate, record


def _name_of_number(letter: str, number: int) -> str:
    return f"{letter}{number}" if number >= 0 else ""


def _name_of_trace(path: str | Path) -> str:
    """Returns `KTH-SP2-1996-2.1-cln` for `KTH-SP2-1996-2.1-cln.swf.gz`."""
    name = Path(path).name
    for suffix in (".gz", ".swf", ".txt"):
        name = name.removesuffix(suffix)
    return name or "trace"


def stream(seed: int, purpose: str) -> random.Random:
    """Returns the random stream of `purpose` ("arrivals", "sizes", ...) under `seed`.

    The same seed and purpose give the same numbers on every machine and Python (Mersenne Twister, seeded with 256 bits of SHA-256);
    two purposes share nothing. So compared policies get the same workload: common random numbers.
    """
    digest = hashlib.sha256(f"rmgr/{seed}/{purpose}".encode()).digest()
    return random.Random(int.from_bytes(digest, "big"))


# -- the format of traces ------------------------------------------------------------------------------------------------------

#: The 18 fields, in order, as error messages name them.
FIELDS = (
    "job number", "submit time", "wait time", "run time", "allocated processors", "average CPU time", "used memory", "requested processors",
    "requested time", "requested memory", "status", "user", "group", "executable", "queue", "partition", "preceding job", "think time",
)
_GZIP = b"\x1f\x8b"
_LONGEST_SHOWN = 40
#: Beyond it a number is damage, not a time: 10^12 seconds are 30,000 years, and results keep times as microseconds in 64 bits.
LARGEST = 10**12


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
            with _open_trace(self.path) as lines:
                for number, line in enumerate(lines, 1):
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
        is_text = word.isascii() and b"\0" not in word
        raise UsageError(
            f"{self.path}, line {line}, field {at + 1} ({FIELDS[at]}): {shown!r} is {'beyond 10^12' if is_one else 'not a number'}",
            hint="SWF has 18 numbers a line; comments begin with ';', unknown values are -1"
            if is_text
            else "SWF is ASCII text, plain or gz: this is something else, packed or encoded in another way",
        )


def _open_trace(path: Path) -> gzip.GzipFile | BufferedReader:
    mode = path.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # opening a directory says itself what is wrong
        raise UsageError(
            f"{path} is no file: a trace is read more than once, and named with its digest", hint="write what comes out of a pipe to a file"
        )
    return open_plain_or_gz(path)


def open_plain_or_gz(path: Path) -> gzip.GzipFile | BufferedReader:
    """Opens a file to read its bytes, unpacked if it begins as gz does."""
    with path.open("rb") as probe:
        packed = probe.read(2) == _GZIP
    return gzip.open(path, "rb") if packed else path.open("rb")
