"""One function call in a worker: the function from its blob (kept by hash), the arguments, the call, and its result."""

from __future__ import annotations

import errno
import io
import os
import pickle
import sys
import traceback
import types
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache, partial
from typing import Any

import cloudpickle
import msgspec

import rmgr
from rmgr.errors import DataLost, PickleFailed, RmgrError, VersionMismatch
from rmgr.model.frames import MAX_INLINE_VALUE, KeyedCall, StartWorker, TaskBatch, TaskExtra, TaskItem, Value
from rmgr.model.states import Reason
from rmgr.model.units import counted
from rmgr.model.version import PROTOCOL
from rmgr.runner.current import running
from rmgr.runner.host.files import write_whole
from rmgr.runner.remote import dump_exception, dump_value
from rmgr.runner.unpickling import loads

_KEPT = 128
#: Types of objects that stay the same, however often they are called.
_STATELESS = (types.FunctionType, types.BuiltinFunctionType, type, type(lru_cache(None)(id)))
_keyed = msgspec.msgpack.Decoder(KeyedCall)
_PACKAGE = rmgr.__path__[0]
_NONE = pickle.dumps(None, 5)


def _package() -> tuple[int, int]:
    """The file of the package itself and the time of its last change; (0, 0) if it was removed. Other files of a checkout may change."""
    try:
        found = os.stat(f"{_PACKAGE}/__init__.py")
    except OSError:
        return 0, 0
    return found.st_ino, found.st_mtime_ns


#: As it was when this process loaded it, or the one that it was forked from.
_LOADED = _package()


class WrongCount(RmgrError):
    """A function of the keyed form returned a number of values that differs from its output keys."""


class FunctionCache:
    """The latest functions, by hash. Other callables are unpickled for each call, so that no call finds what another left in them."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, Callable[..., object]] = OrderedDict()
        self._pickled_by = self._node = ""

    def pickled_by(self, cloudpickle: str, node: str) -> None:
        """Notes the client's cloudpickle, and the node, for the message about unreadable functions."""
        self._pickled_by, self._node = cloudpickle, node

    def get(self, batch: TaskBatch) -> Callable[..., object]:
        """Returns the function of a batch, fresh for each call unless it is stateless. Raises: as `read`."""
        kept = self._kept.get(batch.function)
        if kept is not None:
            self._kept.move_to_end(batch.function)
            return kept
        blob = batch.blob
        if not blob and batch.path:
            with open(batch.path, "rb") as file:
                blob = file.read()
        function = self.read(blob, batch.function)
        if not isinstance(function, _STATELESS):
            return partial(_call_anew, blob)
        self._kept[batch.function] = function
        if len(self._kept) > _KEPT:
            self._kept.popitem(last=False)
        return function

    def read(self, blob: bytes, digest: str) -> Callable[..., object]:
        """Reads a function from its pickle.

        Raises: VersionMismatch if our cloudpickle lacks what the client's used; whatever else the unpickling raises (a module
            that this node lacks, ...).
        """
        try:
            function: Any = loads(blob)
        except (AttributeError, ImportError) as error:
            if self._pickled_by and "cloudpickle" in str(error):
                raise mismatch(self._pickled_by, self._node) from error
            raise
        if not callable(function):
            raise PickleFailed(f"the function {digest[:12]} is a {type(function).__name__}, not a function")
        return function  # type: ignore[no-any-return]


def _call_anew(blob: bytes, /, *args: object, **kwargs: object) -> object:
    return loads(blob)(*args, **kwargs)


def arguments(item: TaskItem, *, keyed: bool) -> tuple[tuple[Any, ...], dict[str, Any], int]:
    """Returns (args, kwargs, number of output values or -1) of one call. Raises: DataLost, and whatever unpickling raises."""
    payload = item.payload
    if item.path:
        with open(item.path, "rb", buffering=0) as file:
            payload = read_part(file.fileno(), item.start, item.size) if item.size else file.read()
    if not keyed:
        if not payload:
            return (), {}, -1
        args, kwargs = loads(payload)
        return args, kwargs, -1
    call = _keyed.decode(payload)
    values = []
    for given in call.inputs:
        data = given.data
        if given.path:
            with open(given.path, "rb", buffering=0) as file:
                data = file.read()
            if given.sha256 and _hash(data) != given.sha256:
                raise DataLost(f"the stored value of the input key {given.key!r} is damaged: {len(data):,} bytes read, the hash differs")
        values.append(loads(data) if given.pickled else data)
    return tuple(values), {}, call.outputs


def read_part(fd: int, start: int, size: int) -> bytes:
    """Reads a part of a file, in pieces, since the kernel returns 2 GiB at most. The result is shorter if the file ends before."""
    data = os.pread(fd, size, start)
    if len(data) == size:
        return data
    whole = io.BytesIO()  # returns its bytes without a copy
    while data:
        whole.write(data)
        data = os.pread(fd, size - whole.tell(), start + whole.tell())
    return whole.getvalue()


class ResultWriter:
    """Turns results of calls into bytes; values above `inline_bytes` go to files in `directory`."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self.inline_bytes = MAX_INLINE_VALUE

    def plain(self, seq: int, value: object) -> tuple[bytes, bool, TaskExtra | None]:
        """Returns (data, pickled, extra) for a result of the plain form. Raises: PickleFailed, OSError (full disk)."""
        if value is None:
            return _NONE, True, None
        pickled = type(value) is not bytes
        data = dump_value(value) if pickled else value
        if len(data) > self.inline_bytes:  # type: ignore[arg-type]
            return b"", pickled, TaskExtra(value=self._spool(seq, 0, data, pickled))  # type: ignore[arg-type]
        return data, pickled, None  # type: ignore[return-value]

    def keyed(self, seq: int, value: object, count: int) -> TaskExtra:
        """Returns one value for each output key. Raises: WrongCount, PickleFailed, OSError."""
        if count == 1:
            values: tuple[object, ...] = (value,)
        elif count == 0 and value is None:
            values = ()
        elif isinstance(value, (tuple, list)) and len(value) == count:
            values = tuple(value)
        else:
            got = f"{counted(len(value), 'value')}" if isinstance(value, (tuple, list)) else f"one {type(value).__name__}"
            raise WrongCount(
                f"the function returned {got} for {counted(count, 'output key')}", hint="return a tuple with one value for each output key"
            )
        return TaskExtra(values=tuple(self._value(seq, number, one) for number, one in enumerate(values)))

    def _value(self, seq: int, number: int, value: object) -> Value:
        pickled = not isinstance(value, bytes)
        data = dump_value(value) if not isinstance(value, bytes) else value
        if len(data) > self.inline_bytes:
            return self._spool(seq, number, data, pickled)
        return Value(data=data, pickled=pickled)

    def _spool(self, seq: int, number: int, data: bytes, pickled: bool) -> Value:
        path = os.path.join(self._directory, f"v{seq}.{number}")
        with open(path, "wb", buffering=0) as file:
            write_whole(file.fileno(), data)
        return Value(path=path, size=len(data), pickled=pickled, sha256=_hash(data))


def _hash(data: bytes) -> bytes:
    from hashlib import sha256  # a worker without large values needs no OpenSSL

    return sha256(data).digest()


def failure(error: BaseException, reason: Reason) -> TaskExtra:
    """Returns the report of a call that raised."""
    data, line = told_with_cure(error)
    return TaskExtra(reason=reason, error=data, summary=line)


def told_with_cure(error: BaseException) -> tuple[bytes, str]:
    """As `dump_exception`; for what a node lacks it also says where, and what to do."""
    cure = _cure(error).encode("utf-8", "backslashreplace").decode()  # names of files may contain lone surrogates
    if not cure:
        return dump_exception(error)
    with suppress(Exception):  # a class may refuse attributes
        error.add_note(cure)
    data, line = dump_exception(error)
    return data, f"{line}; {cure}"


def _cure(error: BaseException) -> str:
    node = f"node {running.node or '?'}"
    if isinstance(error, ModuleNotFoundError) and error.name:
        top = error.name.partition(".")[0]
        return (
            f"{node} runs {sys.executable}, which has no {error.name!r}: install it for that interpreter, "
            f"ship one of your own with modules=[{top!r}], or name another interpreter with python="
        )
    if isinstance(error, FileNotFoundError) and isinstance(error.filename, str) and not os.path.isabs(error.filename):
        with suppress(OSError):
            return f"{node} looked for it in {os.getcwd()}, where the work ran: give the whole path of a file that the node has"
    if isinstance(error, KeyError) and _asked_environment(error):
        return f"{node} does not get variables of your program: pass the value, or set {error.args[0]!r} in an initializer of an Executor"
    if _asked_a_manager(error):
        return (
            f"an object of a multiprocessing.Manager is reached by processes that its program has started, not from {node}: "
            "pass values, or keys of the data store"
        )
    return ""


def _asked_a_manager(error: BaseException) -> bool:
    """It was raised where an argument, an object that a manager of another process keeps, looked for that process."""
    frames = (frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__))
    return any(code.co_name == "RebuildProxy" and code.co_filename.endswith("multiprocessing/managers.py") for code in frames)


def _asked_environment(error: KeyError) -> bool:
    """It was raised by `os.environ[...]`."""
    frames = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]
    return bool(frames) and frames[-1] is type(os.environ).__getitem__.__code__


def found_no_room(error: BaseException) -> bool:
    """Returns whether the error, or one behind it, is a write to a full disk."""
    seen: set[int] = set()
    todo: list[BaseException | None] = [error]
    while todo:
        one = todo.pop()
        if one is None or id(one) in seen:
            continue
        if isinstance(one, OSError) and one.errno == errno.ENOSPC:
            return True
        seen.add(id(one))
        todo += [one.__cause__, one.__context__]
    return False


def not_begun(error: BaseException, path: str, *, keyed: bool = False) -> TaskExtra:
    """Returns the report of a call that could not begin. path: its file. keyed: it may have several."""
    if isinstance(error, DataLost):
        return TaskExtra(reason=Reason.DATA_LOST, summary=error.message)
    if isinstance(error, ImportError) and (error.name or "").partition(".")[0] == "rmgr" and _package() != _LOADED:
        why = f"rmgr was changed or removed in {_PACKAGE} of node {running.node or '?'} while its Starter ran ({error})"
        return TaskExtra(reason=Reason.NODE_LOST, summary=why)
    is_removed = isinstance(error, FileNotFoundError) and (keyed or error.filename == path)  # a file of the Starter
    return failure(error, Reason.NODE_LOST if is_removed else Reason.START_FAILED)


# -- versions: can this interpreter run the work? Checked before anything is unpickled -----------------------------------------


def check_versions(spec: StartWorker, node: str) -> None:
    """Raises VersionMismatch naming the node and both versions."""
    where = f"node {node} runs {sys.executable}"
    if spec.protocol and spec.protocol != PROTOCOL:
        raise VersionMismatch(
            f"{where} with rmgr of protocol {PROTOCOL}, its Starter speaks {spec.protocol}",
            hint="install the Starter's release of rmgr in that interpreter, or name another one with --python",
        )
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    if spec.python_version and spec.python_version != here:
        raise VersionMismatch(
            f"the work was submitted by Python {spec.python_version}, node {node} runs Python {here}",
            hint=f"submit with Python {here}, or name an interpreter of the nodes with python=",
        )
    if spec.cloudpickle and _major(spec.cloudpickle) != _major(cloudpickle.__version__):
        raise mismatch(spec.cloudpickle, node)


def mismatch(theirs: str, node: str) -> VersionMismatch:
    """Returns the error for a cloudpickle that differs from ours."""
    here = cloudpickle.__version__
    return VersionMismatch(
        f"the work was pickled by cloudpickle {theirs}, node {node} has cloudpickle {here} ({sys.executable})",
        hint="install the same cloudpickle on both sides, or name an interpreter that has it with python=",
    )


def _major(version: str) -> str:
    return version.partition(".")[0]
