"""One call of a task of several processes, as the worker of its first node sees it: a bundle, a launcher, an answer.

    worker --bundle--> `rmgr run` or mpirun --> runner/python/rank_task.py, a process a rank --answer of rank 0--> worker

The worker reads neither function nor arguments: a module of theirs may begin MPI, and this process is no rank.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import msgspec

from rmgr.errors import RmgrError
from rmgr.model.base.states import Reason
from rmgr.model.wire.frames import KeyedCall, KeyedInput, StartWorker, TaskBatch, TaskExtra, TaskItem
from rmgr.runner.current import running
from rmgr.runner.host import home
from rmgr.runner.host.kernel import NODE_TROUBLE
from rmgr.runner.host.removal import remove_tree
from rmgr.runner.python.blocking import TaskTerminated
from rmgr.runner.python.calls import failure, read_part
from rmgr.runner.ranks import ranks

_PROGRAM = f"import sys; sys.path.append({str(home.ROOT)!r}); from rmgr.runner.python.rank_task import main; main()"
#: What Open MPI wants to hear from root; who runs work as root has decided so.
_AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
_keyed = msgspec.msgpack.Decoder(KeyedCall)


class RankFailed(RmgrError):
    """A rank ended badly without a word, and with it the call."""


class Bundle(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """All that a rank needs, on whichever node it is.

    spec: of the worker; archives: the bytes of its archives. payload: arguments, with nothing in files. directory: of the worker, and
    answer: where rank 0, which is on its node, leaves values and what came of the call. launch: see `Rigid.launch`.
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
    """(data, pickled, extra) of rank 0, or what went wrong. Raises: TaskTerminated when the task is to end, and its ranks have.

    Cost: an interpreter a rank, and its bundle once a node.
    """
    try:
        return _run(batch, item, spec, directory)
    except OSError as error:
        is_ours = error.errno in NODE_TROUBLE or isinstance(error, FileNotFoundError)
        return b"", True, failure(error, Reason.NODE_LOST if is_ours else Reason.START_FAILED)
    except RankFailed as error:
        return b"", True, failure(error, Reason.EXCEPTION)


def _run(batch: TaskBatch, item: TaskItem, spec: StartWorker, directory: str) -> tuple[bytes, bool, TaskExtra | None]:
    place = os.path.join(directory, f"ranks-{item.seq}")
    os.mkdir(place, 0o700)
    try:
        path, answer = os.path.join(place, "bundle"), os.path.join(place, "answer")
        launch = batch.shape.environ["RMGR_LAUNCH"]
        bundle = Bundle(
            spec=spec,
            archives=tuple(_bytes(archive) for archive in spec.archives),
            launch=launch,
            function=batch.function,
            blob=batch.blob or _bytes(batch.path),
            keyed=batch.keyed,
            payload=_payload(item, keyed=batch.keyed),
            seq=item.seq,
            directory=directory,
            answer=answer,
        )
        with open(path, "wb") as file:
            file.write(msgspec.msgpack.encode(bundle))
        code = _launch(launch, {"RMGR_BUNDLE": path, "PYTHONUNBUFFERED": "1", "PYTHONHASHSEED": running.hash_seed or "random"})
        left = sorted(name for name in os.listdir(place) if name.startswith(ranks.LEFT_PREFIX))
        for one in (answer, *(os.path.join(place, name) for name in left)):
            told = msgspec.msgpack.decode(_bytes(one), type=RankAnswer) if os.path.exists(one) else None
            if told is not None and (code == 0 or (told.extra is not None and told.extra.error)):
                return told.data, told.pickled, told.extra
        raise RankFailed(f"a rank ended with code {code}, and with it the others", hint="the task's log says which, and why")
    finally:
        remove_tree(place)


def _bytes(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _payload(item: TaskItem, *, keyed: bool) -> bytes:
    """The arguments without files."""
    payload = item.payload
    if item.path:
        with open(item.path, "rb", buffering=0) as file:
            payload = read_part(file.fileno(), item.start, item.size) if item.size else file.read()
    if not keyed:
        return payload
    call = _keyed.decode(payload)
    inputs = tuple(KeyedInput(data=_bytes(one.path) if one.path else one.data, pickled=one.pickled) for one in call.inputs)
    return msgspec.msgpack.encode(KeyedCall(inputs=inputs, outputs=call.outputs))


def _launch(launch: str, variables: dict[str, str]) -> int:
    """The launcher's exit code. Raises: OSError, RankFailed where there is no launcher, TaskTerminated."""
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
        process.wait()  # or the grace ends, and this process with it
        raise
