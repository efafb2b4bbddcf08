"""The session of one command line: its global options, the configuration and connection on demand, notes on stderr."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from rmgr.adapters.gateway.coordinator import GatewayCoordinator
    from rmgr.adapters.identity.credentials import Credentials
    from rmgr.adapters.zookeeper.client import ZkCoordinator
    from rmgr.cli.query import Query
    from rmgr.config import Config
    from rmgr.coord.protocol.ports import Store
    from rmgr.model.cluster.node import Meta

T = TypeVar("T")


@dataclass(slots=True)
class Session:
    """What the global options said, and what a command shares with its parts.

    timeout_s: `--timeout`, None when it was not given; `started` is when the command line began (monotonic).
    """

    zk: str | None = None
    store: str | None = None
    gateway: str | None = None
    config_file: str | None = None
    json: bool = False
    timeout_s: float | None = None
    verbose: int = 0
    is_quiet: bool = False  #: no notes: nobody is there to read them
    is_parsed: bool = False  #: the command's own options were understood: `json` is what the user said
    tree_id: str = ""  #: cluster id of ZooKeeper's tree and of the data store, once they are known
    store_id: str | None = None  #: "" = the store remembers no cluster
    tree: Meta | None = None  #: what ZooKeeper says of the cluster, once it is known
    followed: list[int] = field(default_factory=list)  #: submissions whose end it waits for
    started: float = field(default_factory=time.monotonic)
    _config: Config | None = None
    _credentials: Credentials | None = None
    _shown: Credentials | None = None
    _coordinator: ZkCoordinator | GatewayCoordinator | None = None
    _store: Store | None = None
    _query: Query | None = None
    _owned: list[Any] = field(default_factory=list)
    _me: str | None = None

    def config(self, overrides: Mapping[str, Mapping[str, Any]] | None = None) -> Config:
        """The configuration with the global options on top. Raises ConfigError, UsageError (the URL of a store)."""
        from rmgr import config

        if self._config is None or overrides:
            cluster = {"zk": self.zk, "store": self.store, "gateway": self.gateway}
            merged = {section: dict(values) for section, values in (overrides or {}).items()}
            merged["cluster"] = {**merged.get("cluster", {}), **{key: value for key, value in cluster.items() if value}}
            self._config = config.load(merged, file=self.config_file)
            self._credentials = self._shown = None
            if self._config.cluster.store:
                from rmgr.adapters.stores import check_url

                check_url(self._config.cluster.store)
        return self._config

    def credentials(self) -> Credentials | None:
        """Who we are, None in an open cluster; read and proved on first use. Raises ConfigError."""
        if self._credentials is None:
            from rmgr.runtime.secured import credentials_of

            self._credentials = credentials_of(self.config())
        return self._credentials

    def shown_credentials(self) -> Credentials | None:
        """The same, not proved yet: for questions to others, who will look at them. Raises ConfigError."""
        if self._credentials is None and self._shown is None and self.config().security.dir:
            from pathlib import Path

            from rmgr.adapters.identity.credentials import Credentials

            self._shown = Credentials.shown(Path(self.config().security.dir).expanduser())
        return self._credentials or self._shown

    def coordinator(self) -> ZkCoordinator | GatewayCoordinator:
        """The session in ZooKeeper or through a gateway, opened on first use.

        Raises NotConnected, CoordinationUnavailable, WrongCluster.
        """
        if self._coordinator is None:
            from rmgr.cli.reach import open_coordinator

            self._coordinator = open_coordinator(self)
        return self._coordinator

    def cluster_id(self) -> str:
        """Of ZooKeeper's tree, "" where there is none. Raises as `coordinator`."""
        coordinator = self.coordinator()
        if not self.tree_id:
            from rmgr.procedures.bootstrap import read_meta

            meta = read_meta(coordinator)
            return meta.cluster_id if meta is not None else ""
        return self.tree_id

    @property
    def via(self) -> str:
        """The gateway through which daemons are asked, "" = none."""
        return str(getattr(self.coordinator(), "endpoint", "")) if self.config().cluster.uses_gateway else ""

    def data_store(self) -> Store:
        """The data store, opened on first use. Raises StoreUnavailable, NotConnected."""
        if self._store is None:
            from rmgr.cli.reach import open_data_store

            self._store = open_data_store(self)
        return self._store

    def store_or_none(self) -> Store | None:
        """The data store, None (with a note) where it cannot be opened: for questions that it only helps to answer."""
        from rmgr.errors import RmgrError

        try:
            return self.data_store()
        except RmgrError as error:
            self.note(f"{error.message}; what lies in the data store is missing here")
            return None

    def query(self) -> Query:
        """Questions to the leader, or to znodes when there is none."""
        if self._query is None:
            from rmgr.cli.query import Query

            self._query = Query(self)
        return self._query

    @property
    def me(self) -> str:
        """The user's name, as submissions carry it: that of his credentials, else of his account."""
        if self._me is None:
            credentials = self.shown_credentials()
            if credentials is not None:
                self._me = credentials.identity.name
            else:
                import getpass

                self._me = getpass.getuser()
        return self._me

    def own(self, closable: T) -> T:
        """`closable` is closed when the command ends."""
        self._owned.append(closable)
        return closable

    def is_over(self) -> bool:
        """Nothing is left of `--timeout` that a question could be answered in."""
        if self.timeout_s is None:
            return False
        left = self.timeout_s - (time.monotonic() - self.started)
        return left < 0.2

    def left_s(self, most: float | None = None) -> float | None:
        """Seconds until `--timeout`, at most `most`; None when neither limits. Raises DeadlineExceeded when it is over."""
        if self.timeout_s is None:
            return most
        left = self.timeout_s - (time.monotonic() - self.started)
        if left <= 0:
            from rmgr.errors import DeadlineExceeded

            going_on = f"the work goes on; wait again: rmgr wait {' '.join(map(str, self.followed))}"
            hint = going_on if self.followed else "a longer --timeout; rmgr doctor looks for what is slow"
            raise DeadlineExceeded(f"not done within {self.timeout_s:g} s (--timeout)", hint=hint)
        return left if most is None else min(left, most)

    def note(self, text: str) -> None:
        """One line for people, on stderr."""
        if self.is_quiet:
            return
        from rmgr.cli.render import folded, paint, printable

        with contextlib.suppress(OSError):  # a terminal that was closed: what the command does is worth more than the note
            sys.stderr.write(paint(folded(f"rmgr: {printable(text)}", sys.stderr, indent=6), "dim", sys.stderr) + "\n")
            sys.stderr.flush()

    def detail(self, text: str) -> None:
        """A note for those who asked for more with -v."""
        if self.verbose:
            self.note(text)

    def close(self) -> None:
        """Lets go of everything. Never raises: the command has ended already."""
        for closable in (*reversed(self._owned), self._query, self._coordinator, self._store):
            if closable is not None:
                with contextlib.suppress(Exception):
                    closable.close()
        self._owned, self._query, self._coordinator, self._store = [], None, None, None
