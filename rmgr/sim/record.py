"""A simulation's log (rmgr/sched/event_log.py): every fact and every pass as it happens; and the files such logs are in."""

from __future__ import annotations

import gzip
import io
import os
import zlib
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from rmgr.errors import UsageError
from rmgr.sched.event_log import AT_ONCE, End, Entry, LogError, Opening, Passed, decode, described, encode, fact
from rmgr.sched.plan import Plan
from rmgr.sched.policy import Cause
from rmgr.sched.state import ClusterState
from rmgr.sim.output import not_written, refuse_existing

_GZIP = b"\x1f\x8b"


class Recorder:
    """Writes one log. `because`: the reason of the facts that are told next."""

    def __init__(self, write: Callable[[str], object], *, policy: str, parameters: Mapping[str, str], about: Mapping[str, Any]) -> None:
        self._write = write
        self._policy, self._parameters, self._about = policy, dict(parameters), about
        self._facts = self._passes = 0
        self.because = ""

    def begin(self, state: ClusterState, *, seed: int, half_life_us: int) -> None:
        """The first line."""
        self._line(Opening(self._policy, self._parameters, seed, state.snapshot(), AT_ONCE, half_life_us, self._about))

    def around(self, state: ClusterState, now: Callable[[], int]) -> ClusterState:
        """The state, where each fact is also written down."""
        return _Telling(state, self, now)  # type: ignore[return-value]  # it has its facts, and nothing else is asked of it

    def told(self, now_us: int, name: str, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        self._facts += 1
        self._line(fact(now_us, name, arguments, named, self.because))

    def passed(self, now_us: int, causes: frozenset[Cause], plan: Plan) -> None:
        self._passes += 1
        self._line(Passed(now_us, self._passes, tuple(sorted(causes)), described(plan.decisions)))

    def end(self, now_us: int) -> None:
        """The last line."""
        self._line(End(now_us, self._facts, self._passes))

    def _line(self, entry: Entry) -> None:
        self._write(encode(entry) + "\n")


class _Telling:
    def __init__(self, state: ClusterState, recorder: Recorder, now: Callable[[], int]) -> None:
        self._state, self._recorder, self._now = state, recorder, now

    def __getattr__(self, name: str) -> Callable[..., Any]:
        tell = getattr(self._state, name)

        def told(*arguments: Any, **named: Any) -> Any:
            self._recorder.told(self._now(), name, arguments, named)
            return tell(*arguments, **named)

        return told


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
                    raise UsageError(f"{where}: {error}", hint=_CUT if cut else "rmgr sim run --record writes such logs") from error
                if (number == 1) is not isinstance(entry, Opening):
                    raise UsageError(f"{where}, field log: a log begins with it, once", hint="rmgr sim run --record writes such logs")
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
        raise UsageError(f"{path} cannot be read: {error.strerror or error}", hint="name a log of rmgr sim run --record") from error
    if whole:
        raise UsageError(f"{path} has no end: it was cut off after line {number}, or is still being written", hint=_CUT)


_CUT = "--partial replays what is there"


def _opened(path: Path) -> IO[bytes] | gzip.GzipFile:
    with path.open("rb") as probe:
        packed = probe.read(2) == _GZIP
    return gzip.open(path, "rb") if packed else path.open("rb")
