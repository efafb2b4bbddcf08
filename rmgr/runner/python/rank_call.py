"""One call of a task with several processes: a bundle, a launcher, an answer.

    worker --bundle--> `rmgr run` or mpirun --> `main`, a process a rank --answer of rank 0--> worker

The worker of the first node reads neither function nor arguments: their modules may begin MPI, and that process is no rank.
"""

from __future__ import annotations

import inspect
import os
import shutil
import subprocess
import sys
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

import msgspec

from rmgr.errors import RmgrError
from rmgr.model.frames import KeyedCall, KeyedInput, StartWorker, TaskBatch, TaskExtra, TaskItem
from rmgr.model.states import Reason
from rmgr.runner import filters, modules, pickles, settings
from rmgr.runner.current import TaskTerminated, running
from rmgr.runner.host import home
from rmgr.runner.host.files import remove_tree
from rmgr.runner.host.kernel import NODE_TROUBLE, is_full
from rmgr.runner.python.calls import FunctionCache, ResultWriter, WrongCount, arguments, check_versions, failure, found_no_room, read_part
from rmgr.runner.ranks import ranks

_PROGRAM = f"import sys; sys.path.append({str(home.ROOT)!r}); from rmgr.runner.python.rank_call import main; main()"
#: Variables that let Open MPI run as root, as the administrator of the node has decided.
_AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
_keyed = msgspec.msgpack.Decoder(KeyedCall)


class RankFailed(RmgrError):
    """A rank failed without an answer, and with it the call."""


class Bundle(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """All that a rank needs, on any node.

    spec: of the worker; archives: the bytes of its archives. payload: arguments, nothing in files. directory: of the worker; answer: file
    for the result from rank 0, which is on the worker's node. launch: see `Rigid.launch`.
    """

    spec: StartWorker
    archives: tuple[bytes, ...]
    launch: str
    function: str
    blob: bytes
    keyed: bool
    payload: bytes
    seq: int
    directory: str
    answer: str


class RankAnswer(msgspec.Struct, frozen=True, array_like=True):
    """Result of rank 0, as `WorkerProcess._call` returns it."""

    data: bytes
    pickled: bool
    extra: TaskExtra | None


def in_ranks(batch: TaskBatch, item: TaskItem, spec: StartWorker, *, directory: str) -> tuple[bytes, bool, TaskExtra | None]:
    """Returns (data, pickled, extra) of rank 0, or a failure. Raises: TaskTerminated if the task is to end, after its ranks have ended.

    Cost: an interpreter a rank, and its bundle once a node.
    """
    try:
        return _run_ranks(batch, item, spec, directory)
    except OSError as error:
        is_ours = error.errno in NODE_TROUBLE or isinstance(error, FileNotFoundError)
        return b"", True, failure(error, Reason.NODE_LOST if is_ours else Reason.START_FAILED)
    except RankFailed as error:
        return b"", True, failure(error, Reason.EXCEPTION)


def _run_ranks(batch: TaskBatch, item: TaskItem, spec: StartWorker, directory: str) -> tuple[bytes, bool, TaskExtra | None]:
    place = os.path.join(directory, f"ranks-{item.seq}")
    os.mkdir(place, 0o700)
    try:
        path, answer = os.path.join(place, "bundle"), os.path.join(place, "answer")
        launch = batch.shape.environ["RMGR_LAUNCH"]
        bundle = Bundle(
            spec=spec,
            archives=tuple(_file_content(archive) for archive in spec.archives),
            launch=launch,
            function=batch.function,
            blob=batch.blob or _file_content(batch.path),
            keyed=batch.keyed,
            payload=_payload_without_files(item, keyed=batch.keyed),
            seq=item.seq,
            directory=directory,
            answer=answer,
        )
        with open(path, "wb") as file:
            file.write(msgspec.msgpack.encode(bundle))
        code = _launch_ranks(launch, {"RMGR_BUNDLE": path, "PYTHONUNBUFFERED": "1", "PYTHONHASHSEED": running.hash_seed or "random"})
        left = sorted(name for name in os.listdir(place) if name.startswith(ranks.LEFT_PREFIX))
        for one in (answer, *(os.path.join(place, name) for name in left)):
            told = msgspec.msgpack.decode(_file_content(one), type=RankAnswer) if os.path.exists(one) else None
            if told is not None and (code == 0 or (told.extra is not None and told.extra.error)):
                return told.data, told.pickled, told.extra
        raise RankFailed(f"a rank ended with code {code}, and with it the others", hint="the task's log says which, and why")
    finally:
        remove_tree(place)


def _file_content(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _payload_without_files(item: TaskItem, *, keyed: bool) -> bytes:
    """Returns the arguments without files."""
    payload = item.payload
    if item.path:
        with open(item.path, "rb", buffering=0) as file:
            payload = read_part(file.fileno(), item.start, item.size) if item.size else file.read()
    if not keyed:
        return payload
    call = _keyed.decode(payload)
    inputs = tuple(KeyedInput(data=_file_content(one.path) if one.path else one.data, pickled=one.pickled) for one in call.inputs)
    return msgspec.msgpack.encode(KeyedCall(inputs=inputs, outputs=call.outputs))


def _launch_ranks(launch: str, variables: dict[str, str]) -> int:
    """Returns the launcher's exit code. Raises: OSError, RankFailed if there is no launcher, TaskTerminated."""
    python = [sys.executable, "-c", _PROGRAM]
    if launch == "mpi":
        if shutil.which("mpirun") is None:
            raise RankFailed("there is no mpirun on the node", hint='install Open MPI and mpi4py there, or TaskQueue(..., launch="ranks")')
        argv = ["mpirun", "-n", os.environ["RMGR_NPROCS"], *python]
        variables = variables | (_AS_ROOT if os.geteuid() == 0 else {})
    else:
        argv = [os.path.join(os.path.dirname(os.environ["RMGR_HOSTFILE"]), "bin", "rmgr"), "run", "--kill-on-bad-exit", *python]
    process = subprocess.Popen(argv, env=os.environ | variables, stdin=subprocess.DEVNULL)
    try:
        return process.wait()
    except TaskTerminated:
        process.terminate()
        process.wait()  # or the grace ends, and kills this process
        raise


# -- one rank: reads its bundle, makes the call, and as rank 0 leaves the result for the worker --------------------------------


#: mpirun's variables -> ours
_MPI = {"OMPI_COMM_WORLD_RANK": "RMGR_RANK", "OMPI_COMM_WORLD_LOCAL_RANK": "RMGR_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE": "RMGR_NPROCS"}


class NoMpi(Exception):
    """mpi4py is missing here."""


def main() -> NoReturn:
    """Runs the whole life of a rank."""
    for theirs, ours in _MPI.items():
        if theirs in os.environ:
            os.environ[ours] = os.environ[theirs]
    path = os.environ.pop("RMGR_BUNDLE")  # not for processes that the function starts
    os.environ.pop("PYTHONHASHSEED", None)  # as above
    place = os.path.dirname(path)
    rank, node = int(os.environ["RMGR_RANK"]), os.environ.get("RMGR_NODE", "")
    running.node = node
    with open(path, "rb") as file:
        bundle = msgspec.msgpack.decode(file.read(), type=Bundle)
    pickles.serve(bundle.spec.program, bundle.spec.group)
    sys.argv = list(bundle.spec.argv) or [""]
    comm: Any = None
    try:
        check_versions(bundle.spec, node)
        _find_modules(bundle, os.path.join(place, "modules"))
        if bundle.spec.warnings:
            filters.apply(bundle.spec.warnings)
        settings.apply(bundle.spec.settings)
        comm = _communicator() if bundle.launch == "mpi" else None
        function = FunctionCache().read(bundle.blob, bundle.function)
        args, kwargs, outputs = arguments(TaskItem(bundle.seq, 0, payload=bundle.payload), keyed=bundle.keyed)
        if comm is not None and _takes_comm(function):
            kwargs = {"comm": comm} | kwargs
    except BaseException as error:  # noqa: BLE001 - a pickle may raise anything
        _report_failure(bundle, place, rank, error, Reason.START_FAILED, comm)
    try:
        value = function(*args, **kwargs)
    except BaseException as error:  # noqa: BLE001 - a task may raise anything, SystemExit and KeyboardInterrupt too
        _report_failure(bundle, place, rank, error, Reason.NODE_LOST if found_no_room(error) and is_full(place) else Reason.EXCEPTION, comm)
    if rank == 0:
        try:
            results = ResultWriter(bundle.directory)
            if outputs >= 0:
                data, pickled, extra = b"", True, results.keyed(bundle.seq, value, outputs)
            else:
                data, pickled, extra = results.plain(bundle.seq, value)  # type: ignore[assignment]
            _write_answer(bundle.answer, RankAnswer(data, pickled, extra))
        except WrongCount as error:
            _report_failure(bundle, place, rank, error, Reason.BAD_OUTPUT, comm)
        except OSError as error:
            _report_failure(bundle, place, rank, error, Reason.NODE_LOST if error.errno in NODE_TROUBLE else Reason.EXCEPTION, comm)
        except Exception as error:  # noqa: BLE001 - __reduce__ of the result's class may raise anything
            _report_failure(bundle, place, rank, error, Reason.EXCEPTION, comm)
    sys.exit(0)


def _find_modules(bundle: Bundle, directory: str) -> None:
    """Writes the modules that travel with the function, and lets this rank import them."""
    os.makedirs(directory, exist_ok=True)
    for name, data in zip(reversed(bundle.spec.archives), reversed(bundle.archives), strict=True):
        path = os.path.join(directory, os.path.basename(name))
        if not os.path.exists(path):
            with open(f"{path}.{os.getpid()}", "wb") as file:
                file.write(data)
            os.rename(file.name, path)  # another rank of this node may be doing the same
        sys.path.insert(0, path)
    modules.find_modules_in(bundle.spec.sys_path)


def _communicator() -> Any:
    """Returns the communicator of all ranks. Raises: NoMpi."""
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


def _write_answer(path: str, answer: RankAnswer) -> None:
    hidden = os.path.join(os.path.dirname(path), f".{os.path.basename(path)}")
    with open(hidden, "wb") as file:
        file.write(msgspec.msgpack.encode(answer))
    os.rename(hidden, path)


def _report_failure(bundle: Bundle, place: str, rank: int, error: BaseException, reason: Reason, comm: Any) -> NoReturn:
    """Reports a failure, and ends the other ranks, which may be waiting for this one. place: directory of the bundle."""
    answer = RankAnswer(b"", True, failure(error, reason))
    if rank == 0:
        _write_answer(bundle.answer, answer)
    if isinstance(error, SystemExit) and error.code == ranks.SAVED_EXIT_CODE:
        sys.exit(0)  # the other ranks save themselves
    if rank:  # perhaps on another node: the answer travels back as the bundle came
        _write_answer(os.path.join(place, f"{ranks.LEFT_PREFIX}{rank}"), answer)
        sys.stderr.write(f"rank {rank} on node {running.node}:\n{''.join(traceback.format_exception(error))}")
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    if comm is not None:
        comm.Abort(1)
    os._exit(1)
