"""The two adapters of the Coordinator port for the conformance suite: it opens clients on one tree, and injects faults."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any

from rmgr.adapters.zookeeper.client import ZkCoordinator
from rmgr.adapters.zookeeper.session import SessionCoordinator
from rmgr.coord.protocol.ports import SessionState
from rmgr.dev.zookeeper import ZooKeeperServer
from tests.harness import ended_sessions
from tests.harness.ended_sessions import LONG_S
from tests.harness.memory import MemoryCoordinator
from tests.harness.memory_tree import MemoryTree
from tests.harness.proxy import Proxy
from tests.harness.waiting import eventually


class States:
    """A listener that records session states."""

    def __init__(self, coordinator: SessionCoordinator) -> None:
        self.seen: list[SessionState] = []
        coordinator.listen(self.seen.append)

    def wait(self, *states: SessionState, timeout_s: float = 60.0) -> None:
        """Waits until the last recorded states are `states`."""
        eventually(lambda: tuple(self.seen[-len(states) :]) == states, f"{states} after {self.seen}", within_s=timeout_s)


class World(abc.ABC):
    """A tree and its clients. Faults are per client."""

    def __init__(self) -> None:
        self.opened: list[SessionCoordinator] = []

    def open(self, session_timeout_s: float = LONG_S) -> SessionCoordinator:
        """Opens a connected client in the world's chroot. It notices a silent server after a third of its session timeout."""
        coordinator = self._open(session_timeout_s)
        self.opened.append(coordinator)
        return coordinator

    def close(self) -> None:
        """Closes all clients."""
        for coordinator in self.opened:
            coordinator.close()

    @abc.abstractmethod
    def _open(self, session_timeout_s: float) -> SessionCoordinator: ...
    @abc.abstractmethod
    def lose_reply(self, coordinator: SessionCoordinator, nth: int = 1) -> None: ...
    @abc.abstractmethod
    def lose_request(self, coordinator: SessionCoordinator, nth: int = 1) -> None: ...
    @abc.abstractmethod
    def cut(self, coordinator: SessionCoordinator) -> None: ...
    @abc.abstractmethod
    def silence(self, coordinator: SessionCoordinator, silent: bool) -> None: ...
    @abc.abstractmethod
    def expire(self, coordinator: SessionCoordinator) -> None: ...


class MemoryWorld(World):
    """Clients of one tree in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.tree = MemoryTree()

    def _open(self, session_timeout_s: float) -> MemoryCoordinator:
        coordinator = MemoryCoordinator(self.tree, "/conformance", session_timeout_s=session_timeout_s)
        coordinator.ensure(["/"])
        return coordinator

    def lose_reply(self, coordinator: Any, nth: int = 1) -> None:
        coordinator.lose_reply(nth)

    def lose_request(self, coordinator: Any, nth: int = 1) -> None:
        coordinator.lose_request(nth)

    def cut(self, coordinator: Any) -> None:
        coordinator.cut()

    def silence(self, coordinator: Any, silent: bool) -> None:
        if silent:
            coordinator.pause()
        else:
            coordinator.resume()

    def expire(self, coordinator: Any) -> None:
        coordinator.expire()


class ZkWorld(World):
    """Clients of real servers, each behind its own proxy; in an ensemble, each new client takes the next server."""

    def __init__(self, servers: Sequence[ZooKeeperServer], chroot: str) -> None:
        super().__init__()
        self.servers = servers
        self.chroot = chroot
        self.proxies: dict[int, Proxy] = {}
        self.server_of: dict[int, ZooKeeperServer] = {}

    def _open(self, session_timeout_s: float) -> ZkCoordinator:
        server = self.servers[len(self.proxies) % len(self.servers)]
        proxy = Proxy(server.hosts)
        coordinator = ZkCoordinator.connect(proxy.hosts, self.chroot, session_timeout_s=session_timeout_s)
        self.proxies[id(coordinator)] = proxy
        self.server_of[id(coordinator)] = server
        coordinator.ensure(["/"])
        return coordinator

    def close(self) -> None:
        super().close()
        for proxy in self.proxies.values():
            proxy.close()

    def proxy(self, coordinator: SessionCoordinator) -> Proxy:
        """Returns the proxy of a client."""
        return self.proxies[id(coordinator)]

    def lose_reply(self, coordinator: SessionCoordinator, nth: int = 1) -> None:
        self.proxy(coordinator).lose_reply(nth)

    def lose_request(self, coordinator: SessionCoordinator, nth: int = 1) -> None:
        self.proxy(coordinator).lose_request(nth)

    def cut(self, coordinator: SessionCoordinator) -> None:
        self.proxy(coordinator).cut()

    def silence(self, coordinator: SessionCoordinator, silent: bool) -> None:
        self.proxy(coordinator).black_hole(to_client=silent, to_server=silent)

    def expire(self, coordinator: SessionCoordinator) -> None:
        server = self.server_of[id(coordinator)]
        ended_sessions.expire(server.hosts, coordinator.session_id)
