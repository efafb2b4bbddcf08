"""One call of the program: its global options, its configuration and credentials, its deadline, notes on stderr. It reaches nothing yet."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from rmgr.model.base.units import format_duration

if TYPE_CHECKING:
    from rmgr.adapters.identity.credentials import Credentials
    from rmgr.config import Config
    from rmgr.model.cluster.node import Meta

T = TypeVar("T")


@dataclass(slots=True)
class Invocation:
    """Holds what the global options said, and what a command shares with its parts. `Session` (`context.py`) is the whole of it.

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

    @property
    def me(self) -> str:
        """The user's name, as submissions carry it: of the credentials, else of the account."""
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
            raise DeadlineExceeded(f"not done within {format_duration(self.timeout_s)} (--timeout)", hint=hint)
        return left if most is None else min(left, most)

    def note(self, text: str) -> None:
        """One line for people, on stderr."""
        if self.is_quiet:
            return
        from rmgr.cli.display.render import folded, here, paint

        with contextlib.suppress(OSError):  # a terminal that was closed: what the command does is worth more than the note
            sys.stderr.write(paint(folded(f"rmgr: {here(text)}", sys.stderr, indent=6), "dim", sys.stderr) + "\n")
            sys.stderr.flush()

    def detail(self, text: str) -> None:
        """A note for those who asked for more with -v."""
        if self.verbose:
            self.note(text)

    def close(self) -> None:
        """Lets go of what it owns, the latest first. Never raises: the command has ended already."""
        for closable in reversed(self._owned):
            with contextlib.suppress(Exception):
                closable.close()
        self._owned = []
