"""Keeps what users wrote into the store through one gateway or Starter within a day in a row that it finds when it is restarted.

The row is written every few seconds while anything is, and at the end. A daemon that is killed forgets at most those seconds.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import msgspec

from rmgr.adapters.access.limits import Bounds
from rmgr.coord.protocol import keys
from rmgr.coord.protocol.ports import Store
from rmgr.coord.protocol.records import UNREADABLE, cut
from rmgr.errors import DataLost, RmgrError
from rmgr.model.wire.stream import json_decoder
from rmgr.procedures.bounded import row_of
from rmgr.runtime import machine
from rmgr.runtime.logger import Log

SAVE_S = 2.0
_TIMEOUT_S = 10.0
_HOUR_S = 3600
#: The row of a daemon that never comes back goes by itself.
_TTL_S = 2 * 86_400.0
#: What nobody writes within a day: a row with more was not written by a daemon.
_MOST = 1 << 62
#: 24 hours of 10,000 users are a fifth of it.
_MOST_ROW_BYTES = 32 * 2**20


class WrittenToday(msgspec.Struct, frozen=True):
    """The row. by_user: user -> hour since 1970 (UTC) -> bytes."""

    format: int
    by_user: dict[str, dict[int, int]]


def decode_written(data: bytes) -> WrittenToday:
    """The row as a gateway wrote it. Raises DataLost."""
    try:
        return json_decoder(WrittenToday).decode(data)
    except UNREADABLE as error:
        raise DataLost(f"what users have written today cannot be read: {cut(error)}") from None


class WrittenKeeper:
    """Reads the row of the daemon `name` into `bounds`, then keeps it. Never blocks its caller but in `close`.

    Args: name: where a gateway listens, `starter-` and its first node of a Starter. wall: seconds since 1970.
    """

    def __init__(self, store: Store, name: str, bounds: Bounds, log: Log, *, wall: Callable[[], float] | None = None) -> None:
        self._store = store
        self._row = keys.use(name)
        self._bounds = bounds
        self._log = log
        self._wall = wall or machine.wall_s
        self._end = threading.Event()
        self._saved: dict[str, dict[int, int]] | None = None  #: None: the row was not read yet
        self._thread = machine.Thread(target=self._run, name="written", daemon=True)

    def start(self, *, waits: bool = True) -> WrittenKeeper:
        """Begins: reads at once where the store answers, else as soon as it does. waits: for its first answer."""
        if waits:
            self._round()
        self._thread.start()
        return self

    def close(self) -> None:
        """Writes what is known. Takes a few seconds at most."""
        self._end.set()
        self._thread.join(_TIMEOUT_S)

    def _run(self) -> None:
        while not self._end.is_set():
            self._round()
            self._end.wait(SAVE_S)
        self._round()

    def _round(self) -> None:
        try:
            if self._saved is None:
                self._load()
            else:
                self._save()
        except RmgrError:
            return  # the store is away, which others tell; again in a moment
        except Exception:  # noqa: BLE001 - the loop boundary: the count goes on in memory
            self._log.exception("written_not_kept")

    def _load(self) -> None:
        try:
            found = row_of(self._store, self._row, _MOST_ROW_BYTES, timeout_s=_TIMEOUT_S)
            row = decode_written(found) if found is not None else None
        except DataLost as error:
            self._log.warning("written_unreadable", row=self._row, error=str(error)[:200])
            row = None
        self._saved = {}
        if row is None:
            return
        now = int(self._wall()) // _HOUR_S
        sane = {user: {now - at: size for at, size in hours.items() if 0 < size < _MOST} for user, hours in row.by_user.items()}
        self._bounds.recall(sane)
        self._log.info("written_recalled", users=len(sane))

    def _save(self) -> None:
        now = int(self._wall()) // _HOUR_S
        by_user = {user: {now - ago: size for ago, size in hours.items()} for user, hours in self._bounds.written().items()}
        if by_user == self._saved:
            return
        self._store.put(self._row, msgspec.json.encode(WrittenToday(1, by_user)), ttl_s=_TTL_S, timeout_s=_TIMEOUT_S)
        self._saved = by_user
