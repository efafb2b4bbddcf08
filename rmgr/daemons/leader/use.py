"""What users have: counted from the leader's memory, and published to Starters and clients.

For users with a cap, `/usage` holds cores in use and open jobs, refreshed each second. Nothing is read while no user has a cap, and
nothing is written while nothing changes. Starters go by the latest numbers (`daemons/starter/core/shares.py`), also without a leader.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from rmgr.adapters.access.auth import Caller
from rmgr.coord.decisions import admitted
from rmgr.coord.decisions.rights import check_operator
from rmgr.coord.ops.leader import tell_use
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Committed, Stamped
from rmgr.coord.protocol.records import decode_block
from rmgr.coord.views import snapshot
from rmgr.coord.views.snapshot import BlockOnNode
from rmgr.daemons.leader.submissions.follow import Followed
from rmgr.daemons.service.serving import person_of
from rmgr.model.block import BlockKey
from rmgr.model.identity import Role
from rmgr.model.queue import CappedUse
from rmgr.runtime.story import Pause, Story, each

if TYPE_CHECKING:
    from rmgr.daemons.leader.leader import Leader

#: Estimate of ZooKeeper's memory for the other znodes of a submission, in bytes.
_ZNODES_BYTES = 1000
#: Pause between two looks.
LOOK_S = 1.0
#: Blocks read in one look, to learn how much of them is left and where it stands; further blocks count with all that was claimed.
MOST_READ = 2_000


@dataclass(slots=True)
class UserTotals:
    """Use of one user: submissions that have not ended, their tasks that are not final, bytes below `/subs`."""

    open_submissions: int = 0
    unfinished_tasks: int = 0
    zookeeper_bytes: int = 0


def usage(followed: Iterable[Followed]) -> dict[str, UserTotals]:
    """Returns totals by user. Cost: about 1 us a submission.

    A new submission counts as open at once; its tasks count after its tail was read (half a second).
    """
    found: dict[str, UserTotals] = {}
    for item in followed:
        submission = item.submission
        if submission is None:
            continue
        mine = found.get(submission.user)
        if mine is None:
            mine = found[submission.user] = UserTotals()
        mine.zookeeper_bytes += _ZNODES_BYTES + item.record_bytes + item.fragment_bytes
        if not (item.is_closed or item.is_ended):
            mine.open_submissions += 1
            mine.unfinished_tasks += max(0, item.progress.total - item.progress.final)
    return found


class CapKeeper:
    """Keeps `/usage` up to date for one leader. In its loop.

    Attributes: cores: may be read from any thread.
    """

    def __init__(self, leader: Leader) -> None:
        self._term = leader.term
        self._followed = leader.submissions.followed
        self._nodes = leader.nodes
        self._version: int | None = None  #: of the znode; None if absent or unknown
        self._told: tuple[dict[str, dict[str, int]], CappedUse] | None = None  #: the counts at the last write
        self.cores: Mapping[str, int] = {}  #: in use, by user, as of the last look; empty while no user has a cap

    def start(self) -> None:
        """Starts looking."""
        self._term.tell(self._rounds(), "looks at users with caps")

    def _rounds(self) -> Story[None]:
        while True:
            yield Pause(LOOK_S)
            if self._term.settings.limits.has_caps:
                self._term.tell(self._look(), paths.USAGE)
            else:
                self.cores, self._told = {}, None  # when a user gets a cap again, everything is written anew

    def _look(self) -> Story[None]:
        if self._told is None:
            znode = yield self._term.get(paths.USAGE)
            self._version = znode.version if znode is not None else None
        nodes = sorted(self._nodes.records)
        lists = yield from each([self._term.children(paths.running_node(node)) for node in nodes])
        claimed: dict[str, list[tuple[str, BlockKey]]]
        claimed = yield self._term.in_store(lambda _: {node: paths.blocks_in(names) for node, names in zip(nodes, lists, strict=True)})
        blocks = [(node, key) for node, found in claimed.items() for _, key in found]
        placed = [(node, key) for node, key in blocks if self._is_placed(key)]
        several = [(node, key) for node, key in blocks if key.count > 1 and not self._is_placed(key)]
        wanted = [*placed, *several][:MOST_READ]
        read = (yield self._term.get_all([paths.running_block(node, key) for node, key in wanted])) if wanted else []
        used, told = self._count(blocks, dict(zip(wanted, read, strict=True)))
        if self._told != (used, told):
            outcome = yield self._term.commit(tell_use(told, self._version))
            if isinstance(outcome, Committed):
                self._version, self._told = 0 if self._version is None else self._version + 1, (used, told)
            else:
                self._told = None  # the version is read before the next look

    def _is_placed(self, key: BlockKey) -> bool:
        followed = self._followed.get(key.submission)
        return followed is not None and followed.submission is not None and followed.submission.rigid is not None

    def _count(
        self, blocks: Iterable[tuple[str, BlockKey]], data: Mapping[tuple[str, BlockKey], Stamped | None]
    ) -> tuple[dict[str, dict[str, int]], CappedUse]:
        """Returns cores by node and user, and the record for `/usage`."""
        settings = self._term.settings
        counted = usage(self._followed.values())
        tags = {paths.user_tag(user): user for user in (*settings.limits.cores_of, *counted)}
        cores = {node: record.capacity.cores for node, record in self._nodes.records.items()}
        claimed = [block for one in blocks if (block := _block(*one, data)) is not None]
        used = snapshot.by_node(claimed, lambda block: self._user_of(tags, block), cores)
        jobs = {user: one.open_submissions for user, one in counted.items()}
        self.cores = snapshot.in_all(used)
        known = self._nodes
        up = [node for node, record in known.records.items() if record.guid in known.alive and node not in known.drains]
        free = sum(cores[node] > sum(used.get(node, {}).values()) for node in up)
        return used, admitted.capped(settings.limits, used, jobs, free or len(up))

    def _user_of(self, tags: Mapping[str, str], block: BlockOnNode) -> str | None:
        followed = self._followed.get(block.key.submission)
        if followed is not None and followed.submission is not None:
            return followed.submission.user
        return tags.get(block.key.user)  # the record was not read yet; the tag in the block's name does for a moment


def _block(node: str, key: BlockKey, data: Mapping[tuple[str, BlockKey], Stamped | None]) -> BlockOnNode | None:
    """Returns the block, None if it has gone meanwhile. A block that cannot be read counts as it was claimed."""
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


def wanted(users: Sequence[str], caller: Caller, operators: Sequence[str], known: Callable[[], Sequence[str]]) -> Sequence[str]:
    """Returns the users to report on: those named, or the caller if none is. Raises PermissionDenied.

    known: returns all users, for a gateway that asks for itself and for an operator who names nobody.
    """
    if not caller.is_open and caller.who is not None and caller.who.role is Role.SUBMITTER:
        return users or known()
    person = person_of(caller, operators)
    if any(user != person.name for user in users) and not person.is_free:
        check_operator(person, "asking for the limits of others")
    return users or ((person.name,) if person.name else known())
