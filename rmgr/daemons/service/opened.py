"""Opens what every daemon works with, ZooKeeper and the data store, and closes them in order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rmgr.adapters.identity.credentials import Credentials
from rmgr.adapters.zookeeper.client import ZkCoordinator
from rmgr.config import Config
from rmgr.runtime.logger import Log
from rmgr.runtime.secured import open_zookeeper
from rmgr.runtime.store_watch import WatchedStore, meet_store


@contextmanager
def opened(
    config: Config, credentials: Credentials | None, log: Log, *, insecure: bool, create: bool = True
) -> Iterator[tuple[ZkCoordinator, WatchedStore, str | None]]:
    """Yields a session that is connected, the store, and the cluster id that the store remembers (None: none, or it is away).

    Args: insecure: see `runtime.secured.check_exposure`. create: a store that is a file is made.
    Raises: NotConnected after `connect_timeout_s`; ConfigError, StoreUnavailable as `meet_store`.
    """
    coordinator = open_zookeeper(config, credentials, insecure=insecure)
    try:
        wait_s = config.cluster.connect_timeout_s
        coordinator.require_connected(wait_s)
        store, known = meet_store(config.cluster.store, log=log, patience_s=wait_s, create=create)
        try:
            yield coordinator, store, known
        finally:
            store.close()
    finally:
        coordinator.close(timeout_s=2.0)
