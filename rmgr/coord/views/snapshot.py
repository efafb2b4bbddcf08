"""Everything known of a cluster at one moment: what the leader keeps in memory, or what a command reads without a leader."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from rmgr.coord.decisions.progress import Progress, claimed_state
from rmgr.model.block import Allocation, BlockKey
from rmgr.model.node import Drain, EpochRecord, NodeRecord, Trouble
from rmgr.model.queue import ClusterSettings
from rmgr.model.states import State
from rmgr.model.submission import Submission
from rmgr.model.views import PlacingView


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockOnNode:
    """A block under `/running/<node>`. done: bit i = task first + i does not run there (any more). allocation: of a placed job.

    stopping: why the job gives up its nodes, "" if it does not. is_suspended: it is stopped for now. is_starting: it has not begun; awaits:
    what it waits for, as its Starter recorded. saving, answered, moves, serial: as in its block.
    """

    node: str
    key: BlockKey
    done: int = 0
    claimed_us: int = 0
    allocation: Allocation | None = None
    stopping: str = ""
    is_suspended: bool = False
    is_starting: bool = False
    awaits: str = ""
    saving: str = ""
    answered: bool = False
    moves: int = 0
    serial: bool = False

    @property
    def state(self) -> State:
        """The block's current state."""
        return claimed_state(is_starting=self.is_starting, is_suspended=self.is_suspended, is_stopping=bool(self.stopping))

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes where it runs, the head first."""
        return tuple(name for name, _ in self.allocation.shares) if self.allocation is not None else (self.node,)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSnapshot:
    """Facts, read together as far as ZooKeeper allows (each is true, but not all are of the same instant).

    alive: guids of Starters with an entry. leader_alive: the recorded leader's candidate entry exists.
    waiting: failed ranges that wait for the resubmit rule, as numbers of tasks by submission. nowhere: tasks that the leader has found
    without a znode, by submission. placing: what only the leader knows.
    aside: what made the leader's handlers fail, and is not tried again until it changes: path -> error.
    ownerless: submissions that may still grow, whose owner is gone.
    store_problem: why the data store does not work, "" if it does, or was not asked.
    """

    cluster_id: str = ""
    settings: ClusterSettings = ClusterSettings()
    epoch: EpochRecord | None = None
    leader_alive: bool = False
    watchdogs: int = 0
    submissions: Mapping[int, tuple[Submission, Progress]] = field(default_factory=dict)
    claimed: tuple[BlockOnNode, ...] = ()
    nodes: Mapping[str, NodeRecord] = field(default_factory=dict)
    alive: frozenset[str] = frozenset()
    drains: Mapping[str, Drain] = field(default_factory=dict)
    resumed: Mapping[str, Drain] = field(default_factory=dict)  #: nodes that were drained, with who resumed them and when
    troubles: Mapping[str, Trouble] = field(default_factory=dict)
    waiting: Mapping[int, int] = field(default_factory=dict)
    nowhere: Mapping[int, frozenset[int]] = field(default_factory=dict)
    placing: PlacingView = PlacingView()
    aside: Mapping[str, str] = field(default_factory=dict)
    ownerless: frozenset[int] = frozenset()
    store_problem: str = ""


# -- cores that users have in use, from claimed blocks: for the leader, which publishes it, and for `explain` -------------------


def by_node(
    claimed: Iterable[BlockOnNode], user_of: Callable[[BlockOnNode], str | None], cores: Mapping[str, int]
) -> dict[str, dict[str, int]]:
    """Returns cores in use: node -> user -> cores. Blocks claimed ahead, and jobs that take turns, count up to what the node has.

    Args: user_of: the block's user, None = unknown: the block does not count. cores: number of cores of each node.
    Cost: O(blocks), about 2 us each.
    """
    pulled: dict[str, Counter[str]] = {}
    placed: dict[str, Counter[str]] = {}
    shared: dict[str, Counter[str]] = {}  # by jobs of a gang: a user has at most the rest of the node at a time
    for block in claimed:
        tasks = block.key.count - block.done.bit_count()
        user = user_of(block) if tasks else None
        if user is None:
            continue
        if block.allocation is None:
            pulled.setdefault(block.node, Counter())[user] += block.key.cores * (1 if block.serial else tasks)
        elif not block.is_suspended:
            kept = shared if block.allocation.gang else placed
            for (node, _), count in zip(block.allocation.shares, block.allocation.cores, strict=True):
                kept.setdefault(node, Counter())[user] += count
    found: dict[str, dict[str, int]] = {}
    for node in {**pulled, **placed, **shared}:
        has, own = cores.get(node, 0), placed.get(node, Counter())
        could_run = Counter({user: min(most, has) for user, most in pulled.get(node, {}).items()})
        in_turns = Counter({user: min(most, max(0, has - own[user])) for user, most in shared.get(node, {}).items()})
        found[node] = dict(own + could_run + in_turns)
    return found


def in_all(used: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    """Returns cores in use over all nodes, by user, without users who have none."""
    total: Counter[str] = Counter()
    for each in used.values():
        total.update(each)
    return {user: cores for user, cores in sorted(total.items()) if cores}
