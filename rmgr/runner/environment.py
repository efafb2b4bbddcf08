"""The RMGR_* variables of work, made from its ids: for a command a few strings, for Python tasks buffers written in place.

A worker runs hundreds of thousands of tasks a second and setenv() never frees a value it has seen, so the variables that
change with each task are buffers handed to putenv() once and overwritten.
"""

from __future__ import annotations

import ctypes
import os

from rmgr.model.frames import CommandItem, Shape, TaskItem

#: Variables that differ from task to task.
_CHANGING = ("RMGR_TASK_ID", "RMGR_ARRAY_INDEX", "RMGR_ATTEMPT", "RMGR_TOKEN")
_ROOM = 64


def shared_variables(shape: Shape, node: str) -> dict[str, str]:
    """Variables that all tasks of a batch share; `shape.environ` (jobs: ranks, host file) goes before them."""
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


def task_variables(shape: Shape, item: CommandItem | TaskItem) -> tuple[str, str, str, str]:
    """Values of `_CHANGING` for one attempt."""
    label = item.index if item.label < 0 else item.label
    task = f"{shape.submission}_{label}"
    return task, str(label), str(item.attempt), f"{task}.{item.attempt}"


def command_environment(base: dict[str, str], shape: Shape, item: CommandItem) -> dict[str, str]:
    """The whole environment of one command. base: everything that its batch shares."""
    environ = dict(base)
    environ.update(zip(_CHANGING, task_variables(shape, item), strict=True))
    if item.environ:
        environ.update(item.environ)
    return environ


class TaskEnvironment:
    """Sets the variables in this process: os.environ and the C environment that programs started by a task inherit."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._libc = ctypes.CDLL(None)
        self._libc.putenv.argtypes = (ctypes.c_void_p,)
        self._data: dict[bytes, bytes] | None = getattr(os.environ, "_data", None)
        self._buffers = [ctypes.create_string_buffer(f"{name}=".encode(), len(name) + 1 + _ROOM) for name in _CHANGING]
        for buffer in self._buffers:  # the C environment points at them until the very end of the process
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(buffer))
        self._views = [memoryview(buffer).cast("B") for buffer in self._buffers]
        self._starts = [len(name) + 1 for name in _CHANGING]
        self._names = [name.encode() for name in _CHANGING]
        self._batch: list[str] = []
        self._task, self._index, self._attempt, self._token = self._views
        self._job = b""

    def start_batch(self, shape: Shape) -> None:
        """Variables that the tasks to come share. OMP_NUM_THREADS has an effect only on libraries not yet loaded."""
        variables = shared_variables(shape, self._node)
        for name in self._batch:
            if name not in variables:
                os.environ.pop(name, None)
        self._batch = list(variables)
        os.environ.update(variables)
        self._job = f"{shape.submission}_".encode()
        for buffer in self._buffers:  # again: a task may have set or removed them
            self._libc.putenv(ctypes.addressof(buffer))

    def start_task(self, index: int, attempt: int, label: int) -> None:
        """Variables of the next task. Cost: about a microsecond."""
        number = b"%d" % (index if label < 0 else label)
        tries = b"%d" % attempt
        task = self._job + number
        values = (task, number, tries, b"%b.%b" % (task, tries))
        data = self._data
        for view, start, name, value in zip(self._views, self._starts, self._names, values, strict=False):
            end = start + len(value)
            view[start : end + 1] = value + b"\0"
            if data is not None:
                data[name] = value
        if data is None:
            for name, value in zip(_CHANGING, values, strict=True):
                os.environ[name] = value.decode()
