"""Carries out calls that wait, of the data store and of ZooKeeper, on other threads; what comes of them comes back into the loop."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from typing import TypeVar

from rmgr.coord.protocol.ports import Coordinator, Store
from rmgr.daemons.leader.core.doors import Thunk
from rmgr.daemons.leader.core.term import Term
from rmgr.errors import RmgrError

T = TypeVar("T")


class WaitingCalls:
    """Calls of one leadership.

    Args: io: where the calls run. soon: brings their results into the loop.
    """

    def __init__(self, coordinator: Coordinator, store: Store, io: Executor, soon: Callable[[Thunk], None], term: Term) -> None:
        self._coordinator = coordinator
        self._store = store
        self._io = io
        self._soon = soon
        self._term = term

    def store(self, call: Callable[[Store], T], then: Callable[[T], None], failed: Callable[[RmgrError], None]) -> None:
        """Carries out `call` on the store in another thread; its result goes into `then`, an error into `failed`."""
        self._io.submit(call, self._store).add_done_callback(lambda done: self._soon(partial(self._done, done, then, failed)))

    def coordinator(self, call: Callable[[Coordinator], T], then: Callable[[T], None], failed: Callable[[RmgrError], None]) -> None:
        """The same with ZooKeeper, for what waits there. What it commits has no leader fence."""
        self._io.submit(call, self._coordinator).add_done_callback(lambda done: self._soon(partial(self._done, done, then, failed)))

    def _done(self, future: Future[T], then: Callable[[T], None], failed: Callable[[RmgrError], None]) -> None:
        try:
            value = future.result()
        except RmgrError as error:
            self._term.log.warning("leader_store_failed", error=error.message)
            failed(error)
            return
        except Exception as error:
            self._term.log.exception("leader_store_raised")
            failed(RmgrError(f"{type(error).__name__}: {error}"))
            return
        then(value)
