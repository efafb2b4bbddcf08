"""Turns a user's options into the record of a submission: names, limits, environment, defaults. Reads only facts of this process."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import itertools
import os
import re
import socket
import sys
import sysconfig
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Generic, TypeVar

from rmgr.config import user_name
from rmgr.errors import UsageError
from rmgr.model.base import Request
from rmgr.model.submission import MPI, ONCE, RANKS, OnDisconnect, PythonEnvironment, Rigid, Submission, Work
from rmgr.model.units import duration_us_of, size_of
from rmgr.runner import filters, settings
from rmgr.runner.filters import Filter
from rmgr.runtime import machine

#: Most bytes of directory names that travel with a submission: half of a record's limit. Installed directories do not travel.
_MAX_DIRECTORY_BYTES = 8 * 1024
#: Of `sys.argv`, likewise.
_MAX_ARGUMENT_BYTES = 4 * 1024
#: Of filters of warnings and of settings of the interpreter, likewise.
_MAX_FILTER_BYTES = 4 * 1024
_INSTALLED = re.compile(r"(?:site|dist)-packages(?:/|$)")
#: Names under which a Starter keeps the files of shipped modules.
_ARCHIVE = re.compile(r"/[0-9a-f]{64}$")
#: How the processes of a task get its function.
LAUNCHES = {"once": ONCE, "ranks": RANKS, "mpi": MPI}

T = TypeVar("T")
#: Options that may differ from call to call, of an Executor and of a TaskQueue.
OF_CALLS = (
    "name", "queue", "cores", "memory", "time", "features", "resources", "priority", "retries", "backoff", "resubmit", "on_disconnect",
)
OF_TASKS = (*OF_CALLS, "processes", "nodes", "launch")

Duration = float | int | str | None
Size = int | str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options that TaskQueue and Executor share. Durations are seconds or text ("1h30m"), sizes bytes or text ("2G")."""

    queue: str = ""
    name: str = ""
    cores: int = 1
    processes: int = 1  #: per task, each with `cores`; more than one makes it a placed job
    nodes: int = 0  #: exact number per task, 0 = any; without `processes`, one process per node
    launch: str = "once"  #: which processes call the function: a key of `LAUNCHES`
    memory: Size = None
    time: Duration = None
    priority: int = 0
    retries: int = 0
    backoff: Duration = None
    resubmit: bool = True
    features: Sequence[str] = ()
    resources: Mapping[str, int] | None = None
    on_disconnect: str = "keep"
    python: str = ""
    token: str = ""


def draft_of(
    options: Options, *, work: Work, python: PythonEnvironment | None = None, function: str = "", user: str = "", **fields: object
) -> Submission:
    """Returns a record without number and owner. `user`: from the credentials, "" = this account's. Raises UsageError."""
    try:
        policy = OnDisconnect(options.on_disconnect)
    except ValueError:
        message = f"on_disconnect = {options.on_disconnect!r} is neither 'keep' nor 'exclusive'"
        raise UsageError(message, hint="on_disconnect='keep', or leave it out") from None
    for name, least in (("cores", 1), ("processes", 1), ("nodes", 0)):
        value = getattr(options, name)
        if type(value) is not int or value < least:
            raise UsageError(f"{name} = {value!r} is not a number from {least}", hint=f"{name}={least}, or leave it out")
    for what in ("name", "token"):
        text = getattr(options, what)
        if not isinstance(text, str) or "\0" in text or text != text.encode("utf-8", "replace").decode():
            message = f"{what} = {text!r:.80} is not text, or has NUL or half a character"
            raise UsageError(message, hint=f"{what}='some-text', or leave it out")
    if isinstance(options.features, str):
        raise UsageError(f"features = {options.features!r} is not a list of names", hint=f"features={options.features.split(',')!r}")
    if options.launch not in LAUNCHES:
        message = f"launch = {options.launch!r} is none of {', '.join(map(repr, LAUNCHES))}"
        raise UsageError(message, hint=f"launch={next(iter(LAUNCHES))!r}")
    if options.processes > 1 or options.nodes:
        processes = options.processes if options.processes > 1 else options.nodes
        fields.setdefault("rigid", Rigid(processes=processes, nodes=options.nodes, launch=LAUNCHES[options.launch]))
    elif options.launch != "once":
        raise UsageError(f"launch = {options.launch!r} needs several processes", hint="processes=4")
    return Submission(
        id=0,
        name=options.name or "python",
        user=user or user_name(),
        queue=options.queue,
        work=work,
        request=Request(
            cores=options.cores,
            memory_bytes=size_of(options.memory),
            time_limit_us=duration_us_of(options.time),
            features=tuple(options.features),
            resources=dict(options.resources or {}),
        ),
        priority=options.priority,
        resubmit=options.resubmit,
        retries=options.retries,
        backoff_us=duration_us_of(options.backoff),
        on_disconnect=policy,
        token=options.token,
        submitted_us=machine.wall_us(),
        python=python,
        function=function,
        host=socket.gethostname(),
        umask=current_umask(),
        **fields,  # type: ignore[arg-type]
    )


def launch_of(function: Callable[..., Any] | str, *, several: bool) -> str:
    """Returns how the processes of a task get its function by default, judged by its parameters."""
    if not several:
        return "once"
    try:
        wants_mpi = not isinstance(function, str) and "comm" in inspect.signature(function).parameters
    except (TypeError, ValueError):  # a function of C without a signature
        wants_mpi = False
    return "mpi" if wants_mpi else "ranks"


def python_environment(*, python: str = "", modules: tuple[str, ...] = (), initializer: str = "", group: str = "") -> PythonEnvironment:
    """Returns what workers need to run functions of this process: its versions of Python and cloudpickle, its directories."""
    import cloudpickle

    from rmgr.runner import program

    own = settings.current()
    return PythonEnvironment(
        python=python,
        version=f"{sys.version_info.major}.{sys.version_info.minor}",
        cloudpickle=cloudpickle.__version__,
        sys_path=source_directories(),
        argv=program_arguments(),
        warnings=filters_of_warnings(_MAX_FILTER_BYTES - sum(len(name) + len(text) for name, text in own)),
        settings=own,
        modules=tuple(dict.fromkeys((*modules, *inherited()))),
        initializer=initializer,
        worker_group=group or program.mine().workers["group"],
        program=program.mine().number,
    )


def source_directories() -> tuple[str, ...]:
    """Returns directories of the user's modules: the script's, others of sys.path that are not installed, and the current one.

    "" stands where installed ones begin: a module of a directory in front of it hides an installed one of the same name.
    """
    here = current_directory()  # "" once it was removed: nothing can be imported from there
    found = [os.path.normpath(os.path.join(here, path)) if here or os.path.isabs(path) else None for path in sys.path]
    marked = ["" if path and at and _INSTALLED.search(path) else path for at, path in enumerate(found)]
    users = [path for at, path in enumerate(marked) if path is not None and (not path or not at or _is_users(path))]
    wanted = list(dict.fromkeys(path for path in users if not path or (os.path.exists(path) and _is_text(path))))  # a zip file, too
    last = [here] if here not in wanted and os.path.exists(here) and _is_text(here) else []
    ends = itertools.accumulate(len(os.fsencode(path)) + 1 for path in (*last, *wanted))
    kept = [path for path, end in zip((*last, *wanted), ends, strict=True) if end <= _MAX_DIRECTORY_BYTES][len(last) :]
    if left_out := len(wanted) - len(kept):
        _warn_left_out(left_out, wanted[len(kept)])
    return (*kept, *last)


def program_arguments() -> tuple[str, ...]:
    """`sys.argv`; the program's name alone, or nothing, where no record holds it: there is too much, or something that is no text."""
    given = getattr(sys, "argv", [])  # a program may put anything there
    for words in (tuple(given), tuple(given[:1])):
        with contextlib.suppress(TypeError, UnicodeEncodeError):
            joined = "\n".join(words)
            if len(joined.encode()) <= _MAX_ARGUMENT_BYTES and "\0" not in joined:
                return words
    return ()


def filters_of_warnings(left: int = _MAX_FILTER_BYTES) -> tuple[Filter, ...]:
    """Returns this process's filters of warnings, () if they are the usual ones; the first of them if a record cannot hold all."""
    kept: list[Filter] = []
    for one in filters.current():
        joined = "".join(one)
        with contextlib.suppress(UnicodeEncodeError):
            left -= len(joined.encode()) + 20
            if left < 0:
                break
            if "\0" not in joined:
                kept.append(one)
    return () if tuple(kept) == filters.USUAL else tuple(kept)


def current_umask() -> int:
    """Returns this process's umask. Cost: 20 us. Reads it without changing it on Linux: other threads may be creating files."""
    try:
        with open("/proc/self/status", encoding="utf-8") as status:
            return next(int(line.split()[1], 8) for line in status if line.startswith("Umask:"))
    except (OSError, StopIteration):  # not Linux
        mask = os.umask(0o077)
        os.umask(mask)
        return mask


def current_directory() -> str:
    """Returns this process's current directory, "" if it was removed."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return ""


@cache
def _warn_left_out(count: int, first: str) -> None:
    """Warns, once for each, that workers will not find modules there."""
    what = f"{count} directories at the end of sys.path are too many for workers, which will not find modules there: {first} is the first"
    warnings.warn(f"{what}; shorten sys.path, or ship modules with modules=", RuntimeWarning, stacklevel=2)


@cache
def _is_text(path: str) -> bool:
    """Returns whether a record can hold this name of a directory; else warns, once for each, that workers will not find modules there."""
    is_text = path == path.encode("utf-8", "replace").decode()
    if not is_text:
        what = f"the name of the directory {path!a} is not UTF-8: workers will not find modules there"
        warnings.warn(f"{what}; rename it, or ship modules with modules=", RuntimeWarning, stacklevel=2)
    return is_text


@cache
def _standard_directories() -> tuple[str, ...]:
    """Returns the interpreter's own directories. Cached: asking `sysconfig` costs 0.3 ms or more for each TaskQueue."""
    return tuple({os.path.abspath(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")})


@lru_cache(maxsize=1024)
def _is_users(path: str) -> bool:
    """Returns whether a directory, by its name, is neither installed nor the interpreter's own."""
    return not _INSTALLED.search(path) and not any(Path(path).is_relative_to(own) for own in _standard_directories())


def inherited() -> tuple[str, ...]:
    """Returns ids of the shipped modules of the running task, which its own calls need too; () outside a worker."""
    if "rmgr.runner.python.worker" not in sys.modules:
        return ()
    archives = [path for path in sys.path if _ARCHIVE.search(path) and os.path.isfile(path)]
    return tuple(hashlib.sha256(Path(path).read_bytes()).hexdigest() for path in archives)


class Variants(Generic[T]):
    """Calls with other options: `queue.with_options(cores=2).submit_call(...)`, and the same for an Executor. Thread-safe.

    The record of a submission holds what its calls need, so each set of options is a submission of its own. It is made at its
    first use, kept for later calls with the same options, and ends with the queue or executor that it was made from.

    Args:
        make: makes one, given all options. options: those of the origin. names: options that may change.
    """

    def __init__(self, make: Callable[..., T], options: Mapping[str, Any], names: tuple[str, ...]) -> None:
        self._make = make
        self._options = dict(options)
        self._names = names
        self._known: dict[str, T] = {}
        self._lock = threading.Lock()

    def get(self, origin: T, changes: Mapping[str, Any]) -> T:
        """Returns the variant with these options, or `origin` if nothing changes. Raises: UsageError, and errors of making one."""
        if unknown := [name for name in changes if name not in self._names]:
            raise UsageError(f"with_options has no option {unknown[0]!r}", hint=f"a call may have its own {', '.join(self._names)}")
        changed = {name: value for name, value in sorted(changes.items()) if value != self._options.get(name)}
        if not changed:
            return origin
        key = repr(changed)
        with self._lock:
            known = self._known.get(key)
            if known is None:
                options = self._options | changed
                if token := options.get("token"):
                    options["token"] = f"{token} {key}"
                known = self._known[key] = self._make(**options)
            return known

    def all(self) -> list[T]:
        """Returns all variants made so far, oldest first."""
        with self._lock:
            return list(self._known.values())


def options_of(record: Submission) -> dict[str, Any]:
    """Returns the options of a TaskQueue with this record. (Its modules are not known by name, so an attached queue has none.)"""
    request, rigid = record.request, record.rigid
    options: dict[str, Any] = {
        "function": record.function,
        "queue": record.queue,
        "name": record.name,
        "cores": request.cores,
        "memory": request.memory_bytes or None,
        "time": request.time_limit_us / 1e6 or None,
        "features": request.features,
        "resources": dict(request.resources),
        "priority": record.priority,
        "retries": record.retries,
        "backoff": record.backoff_us / 1e6 or None,
        "resubmit": record.resubmit,
        "on_disconnect": str(record.on_disconnect),
        "python": record.python.python if record.python is not None else "",
    }
    if rigid is not None:
        launch = next(name for name, number in LAUNCHES.items() if number == rigid.launch)
        options |= {"processes": rigid.processes, "nodes": rigid.nodes, "launch": launch}
    return options
