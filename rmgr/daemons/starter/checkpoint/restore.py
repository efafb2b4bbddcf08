"""Puts a job's newest readable checkpoint into its directory on every node before it starts.

The head chooses one by restoring it (every byte is compared with its hash), then has its helpers restore the same; one that cannot be read
is told in the job's story (DATA_LOST, or UNTRUSTED where no Starter has sealed it), and the one before it is taken, else the job begins
from the start.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Protocol

from rmgr.coord.protocol import paths
from rmgr.coord.protocol.ports import Store
from rmgr.daemons.starter.checkpoint import rows
from rmgr.daemons.starter.checkpoint.files import FileEntry, Manifest, clear
from rmgr.daemons.starter.checkpoint.parts import JobDirectory, LocalPart, each, sentence
from rmgr.daemons.starter.core.blocks import ClaimedBlock
from rmgr.daemons.starter.core.fetch import FetchFailure
from rmgr.errors import CoordinationUnavailable, DataLost, PermissionDenied, StoreUnavailable
from rmgr.log import audit
from rmgr.model.base.states import Reason
from rmgr.model.tasks.placing import FROM_START
from rmgr.runtime.logger import Log

if TYPE_CHECKING:
    from rmgr.daemons.starter.checkpoint.doors import JobParts
    from rmgr.daemons.starter.checkpoint.notes import Notes
    from rmgr.daemons.starter.core.doors import TreeAccess
    from rmgr.daemons.starter.core.io import StoreIO
    from rmgr.daemons.starter.core.metrics import StarterMetrics

#: Pause before a store that is away is asked again.
_PAUSE_S = 1.0


@dataclass(slots=True, kw_only=True)
class RestoredCheckpoint:
    """Result of a restore here. manifest: None = nothing, it begins from the start. lost: sentences about those that cannot be read."""

    manifest: Manifest | None = None
    key: str = ""
    lost: list[str] = field(default_factory=list)
    bad: set[str] = field(default_factory=set)


@dataclass(slots=True, kw_only=True, eq=False)
class _Case:
    block: ClaimedBlock
    found: RestoredCheckpoint = field(default_factory=RestoredCheckpoint)
    is_busy: bool = False
    is_here: bool = False  #: in the directory of this node
    is_everywhere: bool = False
    is_over: bool = False


class RestoringNode(Protocol):
    """The node that runs the job's script."""

    name: str

    def return_unstarted(self, block: ClaimedBlock) -> None:
        """Gives back to its queue what of it has not begun."""
        ...


class Restores:
    """Restores the jobs of one node."""

    def __init__(
        self,
        parts: JobParts,
        notes: Notes,
        node: RestoringNode,
        io: StoreIO,
        metrics: StarterMetrics,
        tree: TreeAccess,
        on_unstartable: Callable[[ClaimedBlock, FetchFailure], None],
        log: Log,
    ) -> None:
        self._on_unstartable = on_unstartable
        self._parts = parts
        self._notes = notes
        self._node = node
        self._io = io
        self._metrics = metrics
        self._tree = tree
        self._log = log
        self._cases: dict[ClaimedBlock, _Case] = {}

    def base(self, block: ClaimedBlock) -> Sequence[FileEntry]:
        """The files that its nodes began with."""
        case = self._cases.get(block)
        return case.found.manifest.files if case is not None and case.found.manifest is not None else ()

    def is_here(self, block: ClaimedBlock) -> bool:
        """What it begins with is in the directory of this node; sees to it that it gets there."""
        if block.key.attempt == 1 or _starts_anew(block):
            return True
        case = self._cases.get(block)
        if case is None:
            case = self._cases[block] = _Case(block=block)
        if not case.is_here and not case.is_busy:
            self._restore(case)
        return case.is_here

    def is_everywhere(self, block: ClaimedBlock) -> bool:
        """... and on its other nodes, which are ready; sees to it that it gets there."""
        case = self._cases.get(block)
        if case is None or case.found.manifest is None or case.is_everywhere:
            return True
        if not case.is_busy and case.is_here:
            case.is_busy = True
            manifest, key = case.found.manifest, case.found.key
            others: list[JobDirectory] = self._parts.parts(block, lambda: case.is_over or block.is_revoked)[1:]
            self._parts.background(lambda: each(others, lambda part: part.restore(manifest, key)), partial(self._spread, case))
        return False

    def forget(self, block: ClaimedBlock) -> None:
        """The block is over."""
        case = self._cases.pop(block, None)
        if case is not None:
            case.is_over = True

    # -- here --------------------------------------------------------------------------------------------------------------------

    def _restore(self, case: _Case) -> None:
        case.is_busy = True
        part, store, key = self._parts.own_part(case.block), self._io.store, case.block.key
        found = case.found
        self._parts.background(lambda: newest(store, part, key.submission, key.first, found), partial(self._restored, case), copies=True)

    def _restored(self, case: _Case, result: RestoredCheckpoint | Exception) -> None:
        case.is_busy = False
        block = case.block
        if case.is_over:
            return
        if isinstance(result, (StoreUnavailable, CoordinationUnavailable)):
            self._log.warning("checkpoint_waits_for_the_store", block=paths.block_name(block.key), error=result.message)
            case.is_busy = True
            self._tree.after(_PAUSE_S, lambda: None if case.is_over else self._restore(case))
            return
        if isinstance(result, Exception):
            words = f"its checkpoint cannot be restored on {self._node.name}: {sentence(result)}"
            self._on_unstartable(block, FetchFailure(Reason.NODE_LOST, words))
            return
        case.is_here = True
        for words in result.lost:
            reason = Reason.UNTRUSTED if "(UNTRUSTED)" in words else Reason.DATA_LOST
            self._log.error("checkpoint_lost", block=paths.block_name(block.key), reason=reason.value, detail=words)
            if reason is Reason.UNTRUSTED:
                what = f"checkpoint of {block.key.submission}_{block.key.first}"
                audit(self._log, who="the data store", role="", what="restore", target=what, allowed=False, why=words)
            self._metrics.checkpoints.labels("lost").inc()
            self._notes.tell(block, words)
        result.lost.clear()
        if result.manifest is not None:
            words = f"attempt {block.key.attempt} begins with checkpoint {result.manifest.attempt}.{result.manifest.n}"
            self._log.info("checkpoint_restored", block=paths.block_name(block.key), detail=words)
            self._metrics.checkpoints.labels("restored").inc()
            self._notes.tell(block, words)
        self._tree.wake()

    # -- on the other nodes --------------------------------------------------------------------------------------------------------

    def _spread(self, case: _Case, result: object) -> None:
        case.is_busy = False
        block = case.block
        if case.is_over:
            return
        if isinstance(result, DataLost):  # readable here, and not there: the one before it
            case.found.bad.add(case.found.key)
            case.found.lost.append(f"checkpoint {case.found.key.rpartition('/')[2]} cannot be read (DATA_LOST): {result.message}")
            case.found.manifest, case.is_here = None, False
            self._restore(case)
            return
        if isinstance(result, Exception):
            self._log.error("checkpoint_not_restored", block=paths.block_name(block.key), error=sentence(result))
            if not block.is_revoked:
                block.is_revoked = True
                self._node.return_unstarted(block)
            return
        case.is_everywhere = True
        self._tree.wake()


def newest(store: Store, part: LocalPart, sub: int, index: int, found: RestoredCheckpoint) -> RestoredCheckpoint:
    """Restores the newest checkpoint of a task that can be read, was sealed and is not in `found.bad`.

    Raises: StoreUnavailable, CoordinationUnavailable, OSError.
    """
    for checkpoint in rows.listed(store, sub, index):
        if checkpoint.key in found.bad:
            continue
        try:
            manifest = rows.read(store, checkpoint, part.seals)
            part.restore(manifest, checkpoint.key)
        except PermissionDenied as error:
            found.bad.add(checkpoint.key)
            found.lost.append(f"checkpoint {checkpoint} is refused (UNTRUSTED): {error.message}")
            continue
        except DataLost as error:
            found.bad.add(checkpoint.key)
            found.lost.append(f"checkpoint {checkpoint} cannot be read (DATA_LOST): {error.message}")
            continue
        found.manifest, found.key = manifest, checkpoint.key
        return found
    clear(part.directory, part.account)
    found.manifest, found.key = None, ""
    return found


def _starts_anew(block: ClaimedBlock) -> bool:
    rigid = block.info.record.rigid
    return rigid is not None and rigid.restart == FROM_START
