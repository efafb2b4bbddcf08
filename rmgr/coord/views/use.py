"""Cores that users have in use, from claimed blocks: for the leader, who tells it, and for `explain`. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from rmgr.coord.views.snapshot import BlockOnNode


def by_node(
    claimed: Iterable[BlockOnNode], user_of: Callable[[BlockOnNode], str | None], cores: Mapping[str, int]
) -> dict[str, dict[str, int]]:
    """Cores in use: node -> user -> cores. Of what is claimed ahead counts what the node could run at once.

    Args: user_of: None = nobody knows it, and it does not count. cores: that each node has.
    Cost: O(blocks), about 2 us each.
    """
    pulled: dict[str, Counter[str]] = {}
    placed: dict[str, Counter[str]] = {}
    for block in claimed:
        tasks = block.key.count - block.done.bit_count()
        user = user_of(block) if tasks else None
        if user is None:
            continue
        if block.allocation is None:
            pulled.setdefault(block.node, Counter())[user] += block.key.cores * (1 if block.serial else tasks)
        elif not block.is_suspended:
            for (node, _), count in zip(block.allocation.shares, block.allocation.cores, strict=True):
                placed.setdefault(node, Counter())[user] += count
    found: dict[str, dict[str, int]] = {}
    for node in {**pulled, **placed}:
        could_run = Counter({user: min(most, cores.get(node, 0)) for user, most in pulled.get(node, {}).items()})
        found[node] = dict(placed.get(node, Counter()) + could_run)
    return found


def in_all(used: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    """The same of all nodes, by user; without those who have none."""
    total: Counter[str] = Counter()
    for each in used.values():
        total.update(each)
    return {user: cores for user, cores in sorted(total.items()) if cores}
