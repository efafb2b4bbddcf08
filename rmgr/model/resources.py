"""What work asks for and what nodes have: integers (cores, bytes) and a few attributes."""

from __future__ import annotations

from dataclasses import dataclass, field

from rmgr.model.version import Newer, newer

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What one task needs on its node.

    cores: at least 1. memory_bytes: 0 = not limited and not counted. time_limit_us: 0 = the queue's default.
    features: node features it needs, all of them. resources: other countable things by name.
    """

    cores: int = 1
    memory_bytes: int = 0
    time_limit_us: int = 0
    features: tuple[str, ...] = ()
    resources: dict[str, int] = field(default_factory=dict)
    newer: Newer = newer()


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """What a node has in all."""

    cores: int
    memory_bytes: int
    resources: dict[str, int] = field(default_factory=dict)
    newer: Newer = newer()

    def fits(self, request: Request) -> bool:
        """An empty node of this capacity could run `request`."""
        return (
            request.cores <= self.cores
            and request.memory_bytes <= self.memory_bytes
            and all(self.resources.get(name, 0) >= count for name, count in request.resources.items())
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAttributes:
    """What a node is: published by its Starter, shown by `rmgr nodes`."""

    partition: str = "default"
    site: str = ""
    speed: float = 1.0  #: relative to the cluster's reference node
    features: tuple[str, ...] = ()
    newer: Newer = newer()
