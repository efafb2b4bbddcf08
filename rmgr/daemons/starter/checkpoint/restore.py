"""Puts a job's newest readable checkpoint into its directory on every node before it starts.

The head chooses one by restoring it (every byte is compared with its hash), then has its helpers restore the same; one that cannot be read
is told in the job's story (DATA_LOST, or UNTRUSTED where no Starter has sealed it), and the one before it is taken, else the job begins
from the start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

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
from rmgr.runtime.story import Pause, Story

if TYPE_CHECKING:
    from rmgr.daemons.starter.checkpoint.directories import JobDirectories
    from rmgr.daemons.starter.checkpoint.notes import Notes
    from rmgr.daemons.starter.node.node import NodeAgent

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
    is_here: bool = False  #: in the directory of this node
    is_everywhere: bool = False
    is_over: bool = False


class Restores:
    """Restores the jobs of one node."""

    def __init__(self, node: NodeAgent, parts: JobDirectories, notes: Notes) -> None:
        self._node = node
        self._shared = node.shared
        self._parts = parts
        self._notes = notes
        self._cases: dict[ClaimedBlock, _Case] = {}

    def base(self, block: ClaimedBlock) -> Sequence[FileEntry]:
        """The files that its nodes began with."""
        case = self._cases.get(block)
        return case.found.manifest.files if case is not None and case.found.manifest is not None else ()

    def is_here(self, block: ClaimedBlock) -> bool:
        """What it begins with is in the directory of this node; sees to it that it gets there. Raises: OSError."""
        if block.key.attempt == 1 or _starts_anew(block):
            return True
        case = self._cases.get(block)
        if case is None:
            case = self._cases[block] = _Case(block=block)
        if not case.is_here:
            self._node.jobs.stories.begin(self._restore(case, self._parts.own_part(block)), key=("restore", case))
        return case.is_here

    def is_everywhere(self, block: ClaimedBlock) -> bool:
        """... and on its other nodes, which are ready; sees to it that it gets there."""
        case = self._cases.get(block)
        if case is None or case.found.manifest is None or case.is_everywhere:
            return True
        if case.is_here:
            self._node.jobs.stories.begin(self._spread(case, case.found.manifest, case.found.key), key=("restore", case))
        return False

    def forget(self, block: ClaimedBlock) -> None:
        """The block is over."""
        case = self._cases.pop(block, None)
        if case is not None:
            case.is_over = True

    # -- here --------------------------------------------------------------------------------------------------------------------

    def _restore(self, case: _Case, part: LocalPart) -> Story[None]:
        block, found = case.block, case.found
        store, key = self._shared.io.store, block.key
        while True:
            try:
                result: RestoredCheckpoint = yield self._parts.background(
                    lambda: newest(store, part, key.submission, key.first, found), copies=True
                )
                break
            except (StoreUnavailable, CoordinationUnavailable) as error:
                if case.is_over:
                    return
                self._node.log.warning("checkpoint_waits_for_the_store", block=paths.block_name(key), error=error.message)
                yield Pause(_PAUSE_S)
                if case.is_over:
                    return
            except Exception as error:  # noqa: BLE001 - whatever it is, it is this node's trouble
                if not case.is_over:
                    words = f"its checkpoint cannot be restored on {self._node.name}: {sentence(error)}"
                    self._node.unstartable(block, block.take_ready(), FetchFailure(Reason.NODE_LOST, words))
                return
        if case.is_over:
            return
        case.is_here = True
        for words in result.lost:
            reason = Reason.UNTRUSTED if "(UNTRUSTED)" in words else Reason.DATA_LOST
            self._node.log.error("checkpoint_lost", block=paths.block_name(block.key), reason=reason.value, detail=words)
            if reason is Reason.UNTRUSTED:
                what = f"checkpoint of {block.key.submission}_{block.key.first}"
                audit(self._node.log, who="the data store", role="", what="restore", target=what, allowed=False, why=words)
            self._shared.metrics.checkpoints.labels("lost").inc()
            self._notes.tell(block, words)
        result.lost.clear()
        if result.manifest is not None:
            words = f"attempt {block.key.attempt} begins with checkpoint {result.manifest.attempt}.{result.manifest.n}"
            self._node.log.info("checkpoint_restored", block=paths.block_name(block.key), detail=words)
            self._shared.metrics.checkpoints.labels("restored").inc()
            self._notes.tell(block, words)

    # -- on the other nodes --------------------------------------------------------------------------------------------------------

    def _spread(self, case: _Case, manifest: Manifest, key: str) -> Story[None]:
        block = case.block
        others: list[JobDirectory] = self._parts.parts(block, lambda: case.is_over or block.goes_back)[1:]
        try:
            yield self._parts.background(lambda: each(others, lambda part: part.restore(manifest, key)))
        except DataLost as error:  # readable here, and not there: the one before it
            if case.is_over:
                return
            case.found.bad.add(key)
            case.found.lost.append(f"checkpoint {key.rpartition('/')[2]} cannot be read (DATA_LOST): {error.message}")
            case.found.manifest, case.is_here = None, False
            yield from self._restore(case, self._parts.own_part(block))
        except Exception as error:  # noqa: BLE001 - whatever it is, the job begins elsewhere
            if case.is_over:
                return
            self._node.log.error("checkpoint_not_restored", block=paths.block_name(block.key), error=sentence(error))
            self._node.giving.revoke(block)
        else:
            case.is_everywhere = True


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
