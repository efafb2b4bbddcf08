"""The RMGR_* variables of work, made from its ids: for a command a few strings, for Python tasks buffers written in place.

A worker runs hundreds of thousands of tasks a second, and setenv() never frees a value that it has seen. So the variables that change with
each task are buffers handed to putenv() once and overwritten.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping

from rmgr.model.frames import BatchShape, CommandItem, TaskItem
from rmgr.runner.host import kernel, slurm

#: Variables that differ from task to task.
_CHANGING = ("RMGR_TASK_ID", "RMGR_ARRAY_INDEX", "RMGR_ATTEMPT", "RMGR_TOKEN")
_ROOM = 64
#: Variable with the submitter's umask, in octal digits.
UMASK = "RMGR_UMASK"
_DEFAULT_UMASK = 0o022


def umask_of(environ: Mapping[str, str]) -> int:
    """Returns the umask with which the work's processes create files; ignores an invalid one, which a user may have set."""
    text = environ.get(UMASK, "")
    try:
        mask = int(text, 8)
    except ValueError:
        return _DEFAULT_UMASK
    return mask if 0 <= mask <= 0o777 else _DEFAULT_UMASK


def shared_variables(shape: BatchShape, node: str) -> dict[str, str]:
    """Returns variables that all tasks of a batch share; `shape.environ` (jobs: ranks, host file) overrides them."""
    threads = str(shape.cores)
    return {
        "RMGR_JOB_ID": str(shape.submission),
        "RMGR_NODELIST": node,
        "RMGR_NPROCS": "1",
        "RMGR_RANK": "0",
        "RMGR_THREADS": threads,
        "OMP_NUM_THREADS": threads,
        **shape.environ,
    }


def task_variables(shape: BatchShape, item: CommandItem | TaskItem) -> tuple[str, str, str, str]:
    """Returns the values of `_CHANGING` for one attempt."""
    label = item.index if item.label < 0 else item.label
    task = f"{shape.submission}_{label}"
    return task, str(label), str(item.attempt), f"{task}.{item.attempt}"


def command_environment(base: dict[str, str], shape: BatchShape, item: CommandItem) -> dict[str, str]:
    """Returns the whole environment of one command. base: the variables that its batch shares."""
    environ = dict(base)
    environ.update(zip(_CHANGING, task_variables(shape, item), strict=True))
    if item.entry:
        environ["RMGR_ENTRY"] = os.fsdecode(item.entry)
    if slurm.FLAG in shape.environ:
        slurm.add(environ, shape.memory_bytes, shape.environ)
    return environ


class TaskEnvironment:
    """Sets the variables in this process: os.environ, and the C environment that programs started by a task inherit."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._libc = ctypes.CDLL(None)
        self._libc.putenv.argtypes = (ctypes.c_void_p,)
        self._data: dict[bytes, bytes] | None = getattr(os.environ, "_data", None)
        self._buffers = [ctypes.create_string_buffer(f"{name}=".encode(), len(name) + 1 + _ROOM) for name in _CHANGING]
        for buffer in self._buffers:  # the C environment points at them until the end of the process
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(buffer))
        self._views = [memoryview(buffer).cast("B") for buffer in self._buffers]
        self._batch: list[str] = []
        self._submission = -1
        self._task, self._index, self._attempt, self._token = self._views
        self._tries = 0
        self._job = b""

    def start_batch(self, shape: BatchShape) -> None:
        """Sets variables that the coming tasks share. OMP_NUM_THREADS only affects libraries that are not yet loaded."""
        variables = shared_variables(shape, self._node)
        for name in self._batch:
            if name not in variables:
                os.environ.pop(name, None)
        self._batch = list(variables)
        data = self._data
        if data is None or shape.submission != self._submission:
            os.environ.update(variables)
        else:  # batches of one submission mostly have the same values, and each putenv() searches all variables
            for name, value in variables.items():
                if data.get(os.fsencode(name)) != os.fsencode(value):
                    os.environ[name] = value
        self._submission = shape.submission
        kernel.bind_processors(variables.get(kernel.CPU_BIND, ""), every_thread=True)
        self._job = f"{shape.submission}_".encode()
        self._tries = 0
        for buffer in self._buffers:  # again: a task may have set or removed them
            self._libc.putenv(ctypes.addressof(buffer))

    def start_task(self, index: int, attempt: int, label: int) -> None:
        """Sets the variables of the next task. Cost: a microsecond (which is why it is written out)."""
        number = b"%d" % (index if label < 0 else label)
        task = self._job + number
        token = b"%b.%d" % (task, attempt)
        data = self._data
        if data is None:
            for name, value in zip(_CHANGING, (task, number, b"%d" % attempt, token), strict=True):
                os.environ[name] = value.decode()
            return
        data[b"RMGR_TASK_ID"] = task
        data[b"RMGR_ARRAY_INDEX"] = number
        data[b"RMGR_TOKEN"] = token
        length = len(task)
        self._task[13 : 14 + length] = task + b"\0"
        self._token[11 : 12 + len(token)] = token + b"\0"
        self._index[17 : 18 + len(number)] = number + b"\0"
        if attempt != self._tries:
            self._tries = attempt
            tries = b"%d" % attempt
            data[b"RMGR_ATTEMPT"] = tries
            self._attempt[13 : 14 + len(tries)] = tries + b"\0"
