"""One rank of a task of several processes: reads its bundle, makes the call, and as rank 0 leaves what came of it for the worker."""

from __future__ import annotations

import inspect
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

import msgspec

from rmgr.model.base.states import Reason
from rmgr.model.wire.frames import TaskItem
from rmgr.runner import program
from rmgr.runner.current import running
from rmgr.runner.host.kernel import NODE_TROUBLE, is_full
from rmgr.runner.python.calls import FunctionCache, ResultWriter, WrongCount, arguments, failure, found_no_room
from rmgr.runner.python.rank_call import Bundle, RankAnswer
from rmgr.runner.python.versions import check_versions
from rmgr.runner.ranks import ranks

#: What mpirun calls a rank, and how work knows it.
_MPI = {"OMPI_COMM_WORLD_RANK": "RMGR_RANK", "OMPI_COMM_WORLD_LOCAL_RANK": "RMGR_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE": "RMGR_NPROCS"}


class NoMpi(Exception):
    """mpi4py is missing here."""


def main() -> NoReturn:
    """The whole life of a rank."""
    for theirs, ours in _MPI.items():
        if theirs in os.environ:
            os.environ[ours] = os.environ[theirs]
    path = os.environ.pop("RMGR_BUNDLE")  # not for what the function starts
    os.environ.pop("PYTHONHASHSEED", None)  # as above
    place = os.path.dirname(path)
    rank, node = int(os.environ["RMGR_RANK"]), os.environ.get("RMGR_NODE", "")
    running.node = node
    with open(path, "rb") as file:
        bundle = msgspec.msgpack.decode(file.read(), type=Bundle)
    program.serve(bundle.spec.program)
    comm: Any = None
    try:
        check_versions(bundle.spec, node)
        _find_modules(bundle, os.path.join(place, "modules"))
        comm = _communicator() if bundle.launch == "mpi" else None
        function = FunctionCache().read(bundle.blob, bundle.function)
        args, kwargs, outputs = arguments(TaskItem(bundle.seq, 0, payload=bundle.payload), keyed=bundle.keyed)
        if comm is not None and _takes_comm(function):
            kwargs = {"comm": comm} | kwargs
    except BaseException as error:  # noqa: BLE001 - a pickle may raise anything
        _fail(bundle, place, rank, error, Reason.START_FAILED, comm)
    try:
        value = function(*args, **kwargs)
    except BaseException as error:  # noqa: BLE001 - a task may raise anything, SystemExit and KeyboardInterrupt too
        _fail(bundle, place, rank, error, Reason.NODE_LOST if found_no_room(error) and is_full(place) else Reason.EXCEPTION, comm)
    if rank == 0:
        try:
            results = ResultWriter(bundle.directory)
            if outputs >= 0:
                data, pickled, extra = b"", True, results.keyed(bundle.seq, value, outputs)
            else:
                data, pickled, extra = results.plain(bundle.seq, value)  # type: ignore[assignment]
            _answer(bundle.answer, RankAnswer(data, pickled, extra))
        except WrongCount as error:
            _fail(bundle, place, rank, error, Reason.BAD_OUTPUT, comm)
        except OSError as error:
            _fail(bundle, place, rank, error, Reason.NODE_LOST if error.errno in NODE_TROUBLE else Reason.EXCEPTION, comm)
        except Exception as error:  # noqa: BLE001 - __reduce__ of the result's class may raise anything
            _fail(bundle, place, rank, error, Reason.EXCEPTION, comm)
    sys.exit(0)


def _find_modules(bundle: Bundle, directory: str) -> None:
    """The modules that travel with the function, where this rank can import them."""
    os.makedirs(directory, exist_ok=True)
    for name, data in zip(reversed(bundle.spec.archives), reversed(bundle.archives), strict=True):
        path = os.path.join(directory, os.path.basename(name))
        if not os.path.exists(path):
            with open(f"{path}.{os.getpid()}", "wb") as file:
                file.write(data)
            os.rename(file.name, path)  # another rank of this node may be doing the same
        sys.path.insert(0, path)
    sys.path.extend(path for path in bundle.spec.sys_path if path not in sys.path and os.path.exists(path))


def _communicator() -> Any:
    """Of all ranks. Raises: NoMpi."""
    try:
        from mpi4py import MPI
    except ImportError as error:
        node = os.environ.get("RMGR_NODE", "this node")
        raise NoMpi(f"mpi4py cannot be imported on {node} by {sys.executable}: {error}") from None
    return MPI.COMM_WORLD


def _takes_comm(function: Callable[..., object]) -> bool:
    try:
        return "comm" in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False


def _answer(path: str, answer: RankAnswer) -> None:
    hidden = os.path.join(os.path.dirname(path), f".{os.path.basename(path)}")
    with open(hidden, "wb") as file:
        file.write(msgspec.msgpack.encode(answer))
    os.rename(hidden, path)


def _fail(bundle: Bundle, place: str, rank: int, error: BaseException, reason: Reason, comm: Any) -> NoReturn:
    """Tells it, and ends the others, which may be waiting for this one. place: directory of the bundle."""
    answer = RankAnswer(b"", True, failure(error, reason))
    if rank == 0:
        _answer(bundle.answer, answer)
    if isinstance(error, SystemExit) and error.code == ranks.SAVED_EXIT_CODE:
        sys.exit(0)  # the others save themselves
    if rank:  # on another node, perhaps: it travels back as the bundle came
        _answer(os.path.join(place, f"{ranks.LEFT_PREFIX}{rank}"), answer)
        sys.stderr.write(f"rank {rank} on node {running.node}:\n{''.join(traceback.format_exception(error))}")
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    if comm is not None:
        comm.Abort(1)
    os._exit(1)
