"""Checkpoints, for programs that run as placed jobs: their state is kept, and they go on with it on whatever node they run next.

    from rmgr import checkpoint

    step, state = checkpoint.restore(default=(0, None))
    while step < 1000:
        state = work(step, state)
        step += 1
        if checkpoint.requested():              # the job is to move, or somebody wants its state kept
            checkpoint.save((step, state))
            if checkpoint.should_stop():        # only here: asked by itself it may become true after the question whether to save
                checkpoint.stop()               # exit code 85: "saved, run me again"

The files in `directory()` ($RMGR_CHECKPOINT_DIR) are what is kept: with `save`, or written in any other way (write a temporary file and
rename it; what lies in `.rmgr` is not kept). Programs in other languages look at `.rmgr/request` there (JSON), or catch SIGUSR1; when they
have saved they copy `.rmgr/number` to `.rmgr/saved`, and end with code 85 where `.rmgr/stop` says so. (One that ends with 85 although it
might go on is run again with what it has saved; 85 of a program that nobody has asked is a failure as any other.) In a shell:

    cd "$RMGR_CHECKPOINT_DIR"; step=$(cat step 2>/dev/null || echo 0); asked=
    trap asked=1 USR1
    save() { asked=; echo $step > new; mv new step; cp .rmgr/number .rmgr/saved; [ ! -e .rmgr/stop ] || exit 85; }
    while [ $step -lt 1000 ]; do work $step; step=$((step + 1)); [ ! "$asked" ] || save; done

A program of several processes saves a file a rank, and all must save the same step: let the ranks agree on it (an allreduce of
`should_stop()`), save under names of their own, wait for each other (a barrier), and let rank 0 `answer()`; with more than one process
`save` does not answer by itself. Each node has a directory of its own; together they are one checkpoint, put back whole on every node.

Outside of a job nothing is ever requested, nothing is kept, and `restore` gives its default; with RMGR_CHECKPOINT_DIR set by hand all of it
works. Standard library alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

#: Exit code of a program that was asked to stop and has saved what it needs to go on (as HTCondor has it).
SAVED_EXIT_CODE = 85
VARIABLE = "RMGR_CHECKPOINT_DIR"
#: Below the directory: what the Starter and the program tell each other.
CONTROL, REQUEST, NUMBER, STOP, SAVED = ".rmgr", "request", "number", "stop", "saved"
_SUFFIX = ".pickle"


@dataclass(frozen=True, slots=True)
class Request:
    """Request to the program. number: counts requests. stop: it is to end. deadline: until when (seconds since the epoch)."""

    number: int
    stop: bool
    deadline: float


def directory() -> Path:
    """Where the program's state is kept. Raises: RuntimeError outside of a job that has one."""
    found = os.environ.get(VARIABLE, "")
    if not found:
        raise RuntimeError(f"there is no checkpoint directory: {VARIABLE} is not set (it is in jobs of queues with dispatch = place)")
    return Path(found)


def request() -> Request | None:
    """The last request, answered or not; None: there was none. Cost: opening a small file, 5 us."""
    home = os.environ.get(VARIABLE, "")
    if not home:
        return None
    try:
        with open(os.path.join(home, CONTROL, REQUEST), "rb") as file:
            told = json.loads(file.read())
        return Request(int(told["number"]), bool(told["stop"]), float(told["deadline"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def requested() -> bool:
    """The state is to be saved now: there is a request that was not answered. Look whenever it can be saved."""
    found = request()
    return found is not None and found.number > _answered()


def should_stop() -> bool:
    """The program is to save its state and then to end (`stop`), so that it can go on elsewhere."""
    found = request()
    return found is not None and found.stop


def save(obj: Any, name: str = "state", *, answer: bool | None = None) -> None:
    """Keeps an object (pickled) under a name, whole or not at all, and answers the request if there is one.

    Args:
        name: a file name; each process of a job needs its own. answer: this is all there is to save; default: in a job of one process.
    Raises: ValueError for a name that is none; OSError (disk full); whatever pickling raises.
    """
    home = os.environ.get(VARIABLE, "")
    if not home:
        return
    asked = request()
    _write(Path(home), _file_name(name), pickle.dumps(obj, pickle.HIGHEST_PROTOCOL))
    if asked is not None and (os.environ.get("RMGR_NPROCS", "1") in {"", "1"} if answer is None else answer):
        _answer(Path(home), asked.number)


def restore(name: str = "state", default: Any = None) -> Any:
    """What was saved under the name, by this attempt or the one whose checkpoint it began with; `default`: nothing was.

    Raises: ValueError; OSError; whatever unpickling raises.
    """
    home = os.environ.get(VARIABLE, "")
    if not home:
        return default
    try:
        data = (Path(home) / _file_name(name)).read_bytes()
    except FileNotFoundError:
        return default
    return pickle.loads(data)  # noqa: S301 - the program's own


def answer() -> None:
    """Everything that the request asks for has been saved. Nothing happens where there is none. Raises: OSError."""
    asked = request()
    if asked is not None:
        _answer(directory(), asked.number)


def stop() -> NoReturn:
    """Ends the process with the code that says "saved, run me again". Raises: SystemExit."""
    sys.exit(SAVED_EXIT_CODE)


def _file_name(name: str) -> str:
    if not name or name.startswith(".") or "/" in name or "\0" in name:
        raise ValueError(f"{name!r} cannot be the name of something that is kept: a file name, not beginning with a dot")
    return name + _SUFFIX


def _answered() -> int:
    try:
        return int((directory() / CONTROL / SAVED).read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 0


def _answer(home: Path, number: int) -> None:
    _write(home, f"{CONTROL}/{SAVED}", str(number).encode())


def _write(home: Path, name: str, data: bytes) -> None:
    """A file with this content, durable, or the one before."""
    control = home / CONTROL
    control.mkdir(exist_ok=True)
    part = control / f"part-{os.getpid()}-{threading.get_ident()}"
    try:
        with part.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        part.replace(home / name)
    finally:
        with contextlib.suppress(FileNotFoundError):
            part.unlink()
    with contextlib.suppress(OSError):  # not every file system lets a directory be synced
        fd = os.open(home, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
