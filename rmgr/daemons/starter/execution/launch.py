"""Launch specifications of blocks, and what dispatch asks about placed jobs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import msgspec

from rmgr.adapters.host.process import WorkerSpec
from rmgr.daemons.starter.core.blocks import ClaimedBlock
from rmgr.daemons.starter.core.fetch import Blob
from rmgr.daemons.starter.execution.lanes import WorkerLane
from rmgr.model.tasks.submission import Command
from rmgr.model.wire.frames import BatchShape


@dataclass(slots=True)
class LaunchSpec:
    """Launch specification that all tasks of a block share."""

    shape: BatchShape
    spec: WorkerSpec | None = None
    function: str = ""
    blob: Blob | None = None
    command: Command | None = None
    script: str = ""
    stdin: Blob | None = None

    @property
    def files(self) -> list[str]:
        """Of this node, that its tasks read."""
        blobs = [blob.path for blob in (self.blob, self.stdin) if blob is not None and blob.path]
        return blobs + list(self.spec.archives if self.spec is not None else ())


class PlacedWork(Protocol):
    """The node's placed jobs, as far as starting them goes."""

    def may_start(self, block: ClaimedBlock) -> bool:
        """Whether its files are here and all its nodes are ready. Raises: OSError when no slot can be opened."""
        ...

    def shape(self, block: ClaimedBlock, shape: BatchShape) -> BatchShape:
        """`shape` with the variables of the block's allocation. Raises: OSError when its host file cannot be made."""
        ...

    def part_of(self, block: ClaimedBlock) -> str:
        """The name under which it takes turns with others (`run_label`), "" = it does not."""
        ...

    def forget(self, block: ClaimedBlock) -> None:
        """The block is over."""
        ...


def with_own(shape: BatchShape, lane: WorkerLane) -> BatchShape:
    """The shape with the variables of what is the lane's own."""
    return msgspec.structs.replace(shape, environ=shape.environ | lane.variables)


def os_text(data: bytes) -> str:
    """Bytes as a variable's text, whatever they are."""
    return data.decode(errors="surrogateescape").replace("\0", "")


def words_of(error: Exception) -> str:
    """Its class and its message."""
    return f"{type(error).__name__}: {error}"
