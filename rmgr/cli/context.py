"""The session of one command line: its global options, the configuration and connection on demand, notes on stderr."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rmgr.config import Config


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
    started: float = field(default_factory=time.monotonic)
    _config: Config | None = None
    _connection: Any = None

    def config(self, overrides: Mapping[str, Mapping[str, Any]] | None = None) -> Config:
        """The configuration with the global options on top. Raises ConfigError."""
        from rmgr import config

        if self._config is None or overrides:
            cluster = {"zk": self.zk, "store": self.store, "gateway": self.gateway}
            merged = {section: dict(values) for section, values in (overrides or {}).items()}
            merged["cluster"] = {**merged.get("cluster", {}), **{key: value for key, value in cluster.items() if value}}
            self._config = config.load(merged, file=self.config_file)
        return self._config

    def left_s(self, most: float | None = None) -> float | None:
        """Seconds until `--timeout`, at most `most`; None when neither limits. Raises DeadlineExceeded when it is over."""
        if self.timeout_s is None:
            return most
        left = self.timeout_s - (time.monotonic() - self.started)
        if left <= 0:
            from rmgr.errors import DeadlineExceeded

            raise DeadlineExceeded(f"not done within {self.timeout_s:g} s (--timeout)", hint="the work goes on; wait again: rmgr wait ID")
        return left if most is None else min(left, most)

    def note(self, text: str) -> None:
        """One line for people, on stderr."""
        from rmgr.cli.render import paint, printable

        sys.stderr.write(paint(f"rmgr: {printable(text)}", "dim", sys.stderr) + "\n")
        sys.stderr.flush()

    def detail(self, text: str) -> None:
        """A note for those who asked for more with -v."""
        if self.verbose:
            self.note(text)

    def close(self) -> None:
        """Lets go of the connection. Never raises: the command has ended already."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(Exception):
                connection.close()
