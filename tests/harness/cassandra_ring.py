"""Several Cassandra nodes on loopback addresses, for tests of outages of single nodes."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from rmgr.dev.cassandra import CassandraNode
from rmgr.dev.server import free_port, wait_all_ready

_POLL_S = 0.05


class CassandraRing:
    """Several nodes on loopback addresses of one machine; each `nodes[i]` may be stopped, killed, paused and started by itself.

    All listen on the same port, so that a client which learns addresses from one node finds the others. Linux answers
    on every address of 127.0.0.0/8; on other systems, add the addresses to the loopback interface first.
    """

    def __init__(
        self,
        data_dir: Path | str,
        *,
        addresses: Sequence[str] = ("127.0.0.1", "127.0.0.2", "127.0.0.3"),
        heap_mb: int = 300,
        settings: Mapping[str, object] | None = None,
        die_with_parent: bool = False,
    ) -> None:
        self.data_dir = Path(data_dir)
        self.port, storage_port = free_port("0.0.0.0"), free_port("0.0.0.0")
        seeds = tuple(f"{address}:{storage_port}" for address in addresses)  # all are seeds, so that none waits for another at its start
        self.nodes = [
            CassandraNode(
                self.data_dir / address, address=address, port=self.port, storage_port=storage_port, seeds=seeds, heap_mb=heap_mb,
                settings=settings, die_with_parent=die_with_parent,
            )
            for address in addresses
        ]
        self._to_meet: list[tuple[CassandraNode, CassandraNode, int]] = []  # (node, other, times met before launch)

    @property
    def contacts(self) -> str:
        """Contact points, as "address:port,address:port,..."."""
        return ",".join(node.contact for node in self.nodes)

    def start(self, *, wait_s: float = 120.0) -> Self:
        """Launches the nodes and waits until they are ready. Raises: Unavailable, after killing all nodes."""
        self.launch()
        try:
            self.wait_ready(wait_s)
        except BaseException:
            self.kill()
            raise
        return self

    def launch(self) -> None:
        """Starts the nodes that do not run, without waiting for them."""
        started = [node for node in self.nodes if not node.running]
        pairs = [(node, other) for node in self.nodes for other in self.nodes if node is not other and {node, other} & set(started)]
        self._to_meet = [(node, other, 0 if node in started else _times_met(node, other)) for node, other in pairs]
        for node in started:
            node.start(wait_s=0)

    def wait_ready(self, deadline_s: float) -> None:
        """Waits until the launched nodes serve, and every node sees every other one alive. Raises: Unavailable."""
        end = time.monotonic() + deadline_s
        wait_all_ready(self.nodes, deadline_s)
        for node, other, before in self._to_meet:
            while _times_met(node, other) <= before:
                if time.monotonic() > end:
                    raise node.trouble(f"does not take {other.address} for alive")
                time.sleep(_POLL_S)

    def stop(self) -> None:
        """Stops all nodes."""
        for node in self.nodes:
            node.stop()

    def kill(self) -> None:
        """Kills all nodes."""
        for node in self.nodes:
            node.kill()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_exc: object) -> None:
        self.kill()


def _times_met(node: CassandraNode, other: CassandraNode) -> int:
    """Returns how often a node's log, since its start, has reported the other node up."""
    return node.log().count(f"InetAddress /{other.address}:{other.storage_port} is now UP")
