"""The data store as a daemon has it: it may be away at the start and go at any time, and it must belong to this cluster.

`WatchedStore` is a `Store` in front of another one. A thread checks it (often while it is away) and knows since when it does not serve, and
why. While its cluster is unknown or another one, nothing is read from it or written to it: every call fails at once with
`StoreUnavailable`, and its callers wait as for an absent store.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

from rmgr.adapters.stores import open_store, shown
from rmgr.coord.protocol.ports import Store, Writing
from rmgr.errors import ConfigError, RmgrError, StoreUnavailable, WrongCluster
from rmgr.model.version import emptied
from rmgr.runtime.machine import Log

T = TypeVar("T")

#: Pause between two checks of a file that serves, of a server that serves, and of a store that does not (s). A check of a file is a commit,
#: 1 ms of processor in each daemon; a failed call causes a check at once.
CALM_S, SERVER_CALM_S, AWAY_S = 10.0, 2.0, 0.5
_HEALTH_S = 2.0
#: How long a daemon waits at its start for a store to answer, before it goes on without.
FIRST_S = 2.0


def meet_store(url: str, *, log: Log, patience_s: float, create: bool = True) -> tuple[WatchedStore, str | None]:
    """Returns a daemon's store, and the cluster id that it remembers (None: none, or it is away).

    Args:
        patience_s: for a file that another process holds; it cannot be away for long, so the daemon gives up afterwards.
        create: make a file that does not exist.
    Raises: `ConfigError`, `UsageError`; `StoreUnavailable` for a file only: a server that is away is awaited later.
    """
    is_file = url.startswith("sqlite:")
    store = WatchedStore(partial(open_store, url, create=create), log=log, calm_s=CALM_S if is_file else SERVER_CALM_S, url=url)
    try:
        known = store.meet(wait_s=patience_s if is_file else FIRST_S)
        if is_file and store.failure is not None:
            raise store.failure
    except BaseException:
        store.close()
        raise
    return store, known


def _passed(name: str) -> Any:
    """Returns the method that calls the real store's method of this name, if the store serves."""

    def method(self: WatchedStore, *given: Any, **how: Any) -> Any:
        return self._through(lambda store: getattr(store, name)(*given, **how))

    return method


class WatchedStore(Store):
    """A `Store` (coord/protocol/ports.py) that knows whether it serves. Thread-safe.

    Args:
        opener: opens the real store; called again while it raises StoreUnavailable.
        url: of the real store, for people.
    """

    def __init__(self, opener: Callable[[], Store], *, log: Log, calm_s: float = CALM_S, away_s: float = AWAY_S, url: str = "") -> None:
        self._opener = opener
        self._shown = shown(url) if url else {}
        self._log = log
        self._calm_s = calm_s
        self._away_s = away_s
        self._store: Store | None = None
        self._cluster_id = ""
        self._is_ours = True  #: False: unknown, or known not to be ours
        self._was_bound = False  #: the cluster has used it: an empty store is refused from then on
        self.failure: StoreUnavailable | None = None  #: why `meet` found no store
        self._trouble = ""
        self._away_since: datetime | None = None
        self._away_since_s = math.inf
        self._look_now = threading.Event()
        self._closing = threading.Event()
        self._lock = threading.Lock()  #: held during a check
        self._thread: threading.Thread | None = None

    # -- the start

    def meet(self, *, wait_s: float = FIRST_S) -> str | None:
        """Opens the store; returns the cluster id that it remembers, None if it remembers none or is away.

        Raises: errors that waiting does not heal (`ConfigError`, `UsageError`: wrong URL, keyspace, credentials, schema).
        """
        end_s = time.monotonic() + wait_s
        while True:
            try:
                return self._opened().cluster_id(timeout_s=max(0.5, wait_s))
            except StoreUnavailable as error:
                if time.monotonic() < end_s:
                    time.sleep(0.1)
                    continue
                self.failure = error
                self._tell(_sentence(error))
                return None

    def belong_to(self, cluster_id: str, *, was_bound: bool = False) -> None:
        """Requires that the store is this cluster's; binds a new one. Starts the thread that checks it.

        Args:
            was_bound: the cluster has bound its store before (`Meta.store_bound_us`), so an empty store has lost its data.
        Raises: `WrongCluster`, `ConfigError` if that is known at once.
        """
        self._cluster_id, self._was_bound = cluster_id, was_bound
        self._is_ours = False
        if not self._trouble:
            try:
                self._bind(self._opened(), timeout_s=_HEALTH_S * 2)
            except StoreUnavailable as error:
                self._tell(_sentence(error))
        self._thread = threading.Thread(target=self._watch, name="store-watch", daemon=True)
        self._thread.start()

    # -- state of the store

    @property
    def trouble(self) -> str:
        """Why it does not serve, "" while it does; as of the last check, which every failed call causes. Never waits."""
        return self._trouble

    @property
    def is_up(self) -> bool:
        """Whether it serves."""
        return not self._trouble

    def facts(self) -> dict[str, object]:
        """Returns facts for `rmgr status`: ok, kind and url; while it does not serve, also since when (ISO 8601) and why."""
        since, trouble = self._away_since, self._trouble
        if not trouble:
            return {"ok": True, **self._shown}
        iso = _iso(since) if since else None
        message = f"away since {iso}: {trouble}" if since else trouble
        return {"ok": False, **self._shown, "since": iso, "problem": message}

    def note(self) -> str:
        """Returns one clause for people, "" while it serves."""
        since = self._away_since
        return f"data store away since {_iso(since)}" if self._trouble and since else ""

    # -- the port

    write, write_many, adopt, fetch = _passed("write"), _passed("write_many"), _passed("adopt"), _passed("fetch")
    get_noted_many, delete_many = _passed("get_noted_many"), _passed("delete_many")
    keys, usage, sweep = _passed("keys"), _passed("usage"), _passed("sweep")

    def adopts_above(self, directory: str) -> int | None:
        """See `Store.adopts_above`; None while the store is away."""
        return self._store.adopts_above(directory) if self._store is not None else None

    @property
    def puts_soon(self) -> bool:
        """See `Store.puts_soon`; False while it is away."""
        return self._is_ours and self._store is not None and self._store.puts_soon

    def write_soon(self, rows: Sequence[tuple[str, bytes]], how: Writing, done: Callable[[RmgrError | None], None]) -> bool:
        def over(error: RmgrError | None) -> None:
            if isinstance(error, StoreUnavailable):
                self._look_now.set()
            done(error)

        return self._through(lambda store: store.write_soon(rows, how, over))

    def stream(self, key: str, *, timeout_s: float = 30.0) -> Iterator[bytes] | None:
        chunks = self._through(lambda store: store.stream(key, timeout_s=timeout_s))
        return None if chunks is None else self._streamed(chunks)

    def health(self, *, timeout_s: float = 5.0) -> str | None:  # noqa: ARG002 - the port's
        """Returns the result of the last check; never waits."""
        return self._trouble or None

    def close(self) -> None:
        """Ends the thread, closes the real store. Idempotent."""
        self._closing.set()
        self._look_now.set()
        if self._thread is not None:
            self._thread.join(_HEALTH_S + 1.0)
        if self._store is not None:
            self._store.close()

    # -- inside

    def _through(self, call: Callable[[Store], T]) -> T:
        store = self._store
        if store is None or not self._is_ours:
            why = self._trouble or "it is not known yet whose it is"
            raise StoreUnavailable(f"the data store is not used: {why}", hint="rmgr waits for it; rmgr doctor looks closer")
        try:
            return call(store)
        except (ConfigError, WrongCluster) as error:  # it came back as another store: wait for the right one
            self._look_now.set()
            raise StoreUnavailable(error.message, hint=error.hint) from error
        except StoreUnavailable:
            self._look_now.set()
            raise

    def _streamed(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        try:
            yield from chunks
        except StoreUnavailable:
            self._look_now.set()
            raise

    def _opened(self) -> Store:
        if self._store is None:
            self._store = self._opener()
        return self._store

    def _watch(self) -> None:
        while True:
            hurry = self._look_now.wait(self._away_s if self._trouble else self._calm_s)
            if self._closing.is_set():
                return
            self._look_now.clear()
            self._tell(self._look())
            if hurry and not self._trouble:
                self._closing.wait(0.1)  # many calls failed at once: one check is enough

    def _look(self) -> str:
        try:
            store = self._opened()
            if problem := store.health(timeout_s=_HEALTH_S):
                return problem
            if self._trouble or not self._is_ours:  # it was away: it may be another one now
                self._bind(store, timeout_s=_HEALTH_S)
            elif not store.cluster_id(timeout_s=_HEALTH_S):  # emptied meanwhile: waiting work must not run without its inputs
                raise emptied(self._cluster_id)
        except WrongCluster as error:
            self._is_ours = False
            return _sentence(error)
        except RmgrError as error:
            return _sentence(error)
        except Exception as error:  # noqa: BLE001 - loop boundary of the thread: a surprise of an adapter must not end the watch
            return f"{type(error).__name__}: {error}"
        return ""

    def _bind(self, store: Store, *, timeout_s: float) -> None:
        if self._was_bound and not store.cluster_id(timeout_s=timeout_s):
            raise emptied(self._cluster_id)
        store.bind_cluster(self._cluster_id, timeout_s=timeout_s)
        self._is_ours = self._was_bound = True

    def _tell(self, trouble: str) -> None:
        if self._closing.is_set():
            return
        if trouble and not self._trouble:
            self._away_since, self._away_since_s = datetime.now(UTC), time.monotonic()
            self._log.warning("store_away", why=trouble)
        elif trouble and trouble != self._trouble and not self._is_ours:
            self._log.warning("store_refused", why=trouble)
        elif not trouble and self._trouble:
            self._log.info("store_back", elapsed_s=round(time.monotonic() - self._away_since_s, 1))
            self._away_since = None
        self._trouble = trouble


def _sentence(error: RmgrError) -> str:
    return f"{error.message} ({error.hint})" if error.hint and isinstance(error, ConfigError | WrongCluster) else error.message


def _iso(moment: datetime) -> str:
    """As `model.units.utc`."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
