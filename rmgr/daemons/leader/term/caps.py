"""Tells Starters and clients what users who have a cap have of it: cores in use and open jobs, in `/usage`, each second.

Nothing is looked at while nobody has a cap, and nothing written while nothing has changed. Starters go by what was told last
(`daemons/starter/pull/caps.py`), also while nobody leads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial

import msgspec

from rmgr.coord.decisions import admitted
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Committed, Outcome, Stamped
from rmgr.coord.protocol.records import decode_block
from rmgr.coord.views import snapshot
from rmgr.coord.views.snapshot import BlockOnNode
from rmgr.daemons.leader.core.doors import StoreCalls
from rmgr.daemons.leader.core.tree import LeaderTree
from rmgr.daemons.leader.nodes.nodes import NodeKeeper
from rmgr.daemons.leader.submissions.usage import CountedSubmission, usage
from rmgr.model.cluster.queue import CappedUse, ClusterSettings
from rmgr.model.tasks.block import BlockKey

#: Between two looks.
LOOK_S = 1.0
#: Blocks that are read in one look, to know what of them is left and where they stand; of more than these all that was claimed counts.
MOST_READ = 2_000


class CapKeeper:
    """All that one leader writes into `/usage`. In its loop.

    Args: followed: submissions in memory, by number.
    Attributes: cores: from any thread.
    """

    def __init__(
        self,
        tree: LeaderTree,
        calls: StoreCalls,
        followed: Mapping[int, CountedSubmission],
        settings: Callable[[], ClusterSettings],
        nodes: NodeKeeper,
    ) -> None:
        self._tree = tree
        self._calls = calls
        self._followed = followed
        self._settings = settings
        self._nodes = nodes
        self._version: int | None = None  #: of the znode, None: it is not there, or not known
        self._told: tuple[dict[str, dict[str, int]], CappedUse] | None = None  #: what was counted when it was written last
        self.cores: Mapping[str, int] = {}  #: in use, by user, as of the last look; nobody's while nobody has a cap
        self._is_looking = False

    def start(self) -> None:
        """Begins to look."""
        self._tree.after(LOOK_S, self._round)

    def _round(self) -> None:
        self._tree.after(LOOK_S, self._round)
        if not self._settings().limits.has_caps:
            self.cores, self._told = {}, None  # when somebody has one again all of it is told anew
            return
        if self._is_looking:
            return
        if self._told is None:
            self._is_looking = True
            self._tree.get(paths.USAGE, self._begin, failed=self._over)
        else:
            self._look()

    def _over(self) -> None:
        self._is_looking = False

    def _begin(self, found: Stamped | None) -> None:
        self._version = found.version if found is not None else None
        self._look()

    def _look(self) -> None:
        self._is_looking = True
        nodes = sorted(self._nodes.records)
        names: dict[str, list[str]] = {}
        for node in nodes:
            self._tree.children(paths.running_node(node), partial(self._listed, len(nodes), names, node), failed=self._over)
        if not nodes:
            self._read({})

    def _listed(self, count: int, names: dict[str, list[str]], node: str, found: list[str] | None) -> None:
        names[node] = found or []
        if len(names) == count:  # else some are on their way, or one was not answered, and this look is over
            self._parse(names)

    def _parse(self, names: dict[str, list[str]]) -> None:
        self._calls.store(lambda _: {node: paths.blocks_in(found) for node, found in names.items()}, self._read, lambda _: self._over())

    def _read(self, claimed: dict[str, list[tuple[str, BlockKey]]]) -> None:
        blocks = [(node, key) for node, found in claimed.items() for _, key in found]
        placed = [(node, key) for node, key in blocks if self._is_placed(key)]
        several = [(node, key) for node, key in blocks if key.count > 1 and not self._is_placed(key)]
        wanted = [*placed, *several][:MOST_READ]
        then = partial(self._count, blocks, wanted)
        if wanted:
            self._tree.get_all([paths.running_block(node, key) for node, key in wanted], then, failed=self._over)
        else:
            then([])

    def _is_placed(self, key: BlockKey) -> bool:
        followed = self._followed.get(key.submission)
        return followed is not None and followed.submission is not None and followed.submission.rigid is not None

    def _count(self, blocks: Iterable[tuple[str, BlockKey]], wanted: list[tuple[str, BlockKey]], found: list[Stamped | None]) -> None:
        settings = self._settings()
        counted = usage(self._followed.values())
        tags = {paths.user_tag(user): user for user in (*settings.limits.cores_of, *counted)}
        data = dict(zip(wanted, found, strict=True))
        cores = {node: record.capacity.cores for node, record in self._nodes.records.items()}
        claimed = [block for one in blocks if (block := _block(*one, data)) is not None]
        used = snapshot.by_node(claimed, partial(self._user_of, tags), cores)
        jobs = {user: one.open_submissions for user, one in counted.items()}
        self.cores = snapshot.in_all(used)
        up = self._up()
        free = sum(cores[node] > sum(used.get(node, {}).values()) for node in up)
        told = admitted.capped(settings.limits, used, jobs, free or len(up))
        if self._told != (used, told):
            self._tree.commit(admitted.tell_use(told, self._version), partial(self._written, used, told))
        else:
            self._is_looking = False

    def _up(self) -> list[str]:
        """Nodes whose Starters could claim."""
        return [node for node, record in self._nodes.records.items() if record.guid in self._nodes.alive and node not in self._nodes.drains]

    def _user_of(self, tags: Mapping[str, str], block: BlockOnNode) -> str | None:
        followed = self._followed.get(block.key.submission)
        if followed is not None and followed.submission is not None:
            return followed.submission.user
        return tags.get(block.key.user)  # its record was not read yet: what its name says does for a moment

    def _written(self, used: dict[str, dict[str, int]], told: CappedUse, outcome: Outcome) -> None:
        self._is_looking = False
        if isinstance(outcome, Committed):
            self._version, self._told = 0 if self._version is None else self._version + 1, (used, told)
        else:
            self._told = None  # its version is read before the next look


def _block(node: str, key: BlockKey, data: Mapping[tuple[str, BlockKey], Stamped | None]) -> BlockOnNode | None:
    """None: it has gone meanwhile. What cannot be read counts as it was claimed."""
    if (node, key) not in data:
        return BlockOnNode(node=node, key=key)
    found = data[node, key]
    if found is None:
        return None
    try:
        read = decode_block(found.data)
    except msgspec.MsgspecError:
        return BlockOnNode(node=node, key=key)
    return BlockOnNode(node=node, key=key, done=read.done, allocation=read.allocation, serial=read.serial)
