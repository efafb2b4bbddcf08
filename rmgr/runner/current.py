"""Answers what the running task asks about itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rmgr.model.wire.frames import BatchShape, TaskItem


@dataclass(frozen=True, slots=True, kw_only=True)
class Current:
    """The attempt that runs in this worker. task_id: "42_7". token: "42_7.2", grows with each attempt (fences writes)."""

    submission: int
    index: int
    array_index: int
    attempt: int
    task_id: str
    token: str
    node: str
    cores: int


class _Running:
    """Set by the worker before each task; nothing is built unless somebody asks."""

    __slots__ = ("hash_seed", "item", "node", "shape")

    def __init__(self) -> None:
        self.shape: BatchShape | None = None
        self.item: TaskItem | None = None
        self.node = ""
        self.hash_seed = ""  #: PYTHONHASHSEED of this interpreter, for other interpreters of the same task


running = _Running()


def current() -> Current | None:
    """The task that runs in this process, None outside of work (also in a Python that a command started)."""
    shape, item = running.shape, running.item
    if shape is None or item is None:
        return None
    label = item.index if item.label < 0 else item.label
    task = f"{shape.submission}_{label}"
    return Current(
        submission=shape.submission,
        index=item.index,
        array_index=label,
        attempt=item.attempt,
        task_id=task,
        token=f"{task}.{item.attempt}",
        node=running.node,
        cores=shape.cores,
    )
