"""Finds the tasks behind pointers: their state and the attempt that was committed, read once a submission and then read on."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from rmgr.coord import validity
from rmgr.coord.decisions.progress import EndFold
from rmgr.coord.ops.membership import reign_of
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.keys import Pointer
from rmgr.coord.protocol.ports import Coordinator, Store
from rmgr.coord.protocol.records import read_fragment
from rmgr.errors import PermissionDenied
from rmgr.model.base.states import State
from rmgr.model.tasks.outcome import Fragment
from rmgr.model.tasks.submission import Paged, Tail
from rmgr.procedures.bounded import outcomes_in, page_at
from rmgr.procedures.snapshot import fetch
from rmgr.runtime import machine

#: Submissions whose committed attempts are remembered, and fragments read at once.
_MAX_KNOWN = 64
_WINDOW = 64


@dataclass(slots=True)
class _Commits:
    """Which attempt of which task of one submission was committed, as far as it was read."""

    next: int = 0
    gone: bool = False
    tail: Tail = field(default_factory=Tail)
    ends: EndFold = field(default_factory=EndFold)
    attempts: dict[int, int] = field(default_factory=dict)  #: those that are not 1
    lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, fragment: Fragment, store: Store) -> None:
        for outcome in self.ends.fold(outcomes_in(store, fragment.row) if fragment.row else fragment.outcomes):
            attempt = outcome.attempt or fragment.attempt
            if attempt != 1:
                self.attempts[outcome.index] = attempt


class FatesPort(Protocol):
    """Knows what became of the tasks behind pointers."""

    def fate(self, pointer: Pointer, timeout: float) -> State | str:
        """Final state of the task behind a pointer; "open", "never" (it was not submitted), or "gone" (collected).

        Raises: PermissionDenied, by a gateway; CoordinationUnavailable, StoreUnavailable, DataLost.
        """

    def fates(self, pointers: Iterable[Pointer], timeout: float) -> list[State | str]:
        """The same of several, in their order; "denied" where a gateway does not say it."""

    def attempt(self, pointer: Pointer) -> int:
        """The committed attempt of a task that was found COMPLETED just now."""


class Fates:
    """A `FatesPort` that asks ZooKeeper, remembers. Thread-safe. coordinator: None: every submission is gone."""

    def __init__(self, store: Store, coordinator: Coordinator | None) -> None:
        self._store = store
        self._coordinator = coordinator
        self._known: OrderedDict[int, _Commits] = OrderedDict()
        self._lock = threading.Lock()

    def fate(self, pointer: Pointer, timeout: float) -> State | str:
        """See `FatesPort`."""
        return self._fate(pointer, set(), timeout)

    def fates(self, pointers: Iterable[Pointer], timeout: float) -> list[State | str]:
        """The same of several, in their order; "denied" where a gateway does not say it.

        Cost: a look at each submission with tasks that were not known to have ended.
        """
        looked: set[int] = set()
        found: list[State | str] = []
        for pointer in pointers:
            try:
                found.append(self._fate(pointer, looked, timeout))
            except PermissionDenied:
                found.append("denied")
        return found

    def attempt(self, pointer: Pointer) -> int:
        """The committed attempt of a task that was found COMPLETED just now."""
        return self._commits(pointer.sub).attempts.get(pointer.index, 1)

    def _fate(self, pointer: Pointer, looked: set[int], timeout: float) -> State | str:
        commits = self._commits(pointer.sub)
        with commits.lock:
            known = commits.ends.state_of(pointer.index)
            if (known is None or (pointer.by and not commits.tail.reigns)) and pointer.sub not in looked:
                self._catch_up(pointer.sub, commits, timeout)
                looked.add(pointer.sub)
                known = commits.ends.state_of(pointer.index)
            if commits.gone and known is None:
                return "gone"
            if commits.tail.complete and pointer.index >= commits.tail.next:
                return "never"
            if pointer.by and commits.tail.reigns and reign_of(commits.tail, pointer.index) != pointer.by:
                return "never"
            return "open" if known is None else known

    def _commits(self, number: int) -> _Commits:
        with self._lock:
            commits = self._known.get(number)
            if commits is None:
                commits = self._known[number] = _Commits()
                while len(self._known) > _MAX_KNOWN:
                    self._known.popitem(last=False)
            return commits

    def _catch_up(self, number: int, commits: _Commits, timeout: float) -> None:
        if self._coordinator is None or commits.gone:
            commits.gone = True
            return
        end_s = machine.monotonic() + timeout
        tail, done = fetch([paths.tail(number), paths.done(number)], self._coordinator.get, timeout_s=timeout)
        if tail is None or done is None:
            commits.gone = True
            return
        commits.tail = validity.tail(tail, number)
        paged = validity.decode(done.data, Paged, paths.done(number)) if done.data else Paged()
        at = 0
        while commits.next < paged.base and at < paged.base:
            page = page_at(self._store, number, at, timeout_s=timeout)
            for fragment in page[max(0, commits.next - at) :]:
                commits.take(fragment, self._store)
            at += len(page)
            commits.next = max(commits.next, at)
        while commits.next < done.stat.creates:
            some = range(commits.next, min(done.stat.creates, commits.next + _WINDOW))
            left_s = max(0.1, end_s - machine.monotonic())
            for found in fetch([paths.fragment(number, item) for item in some], self._coordinator.get, timeout_s=left_s):
                if found is None:
                    return  # paged out meanwhile: the next look reads the page
                commits.take(read_fragment(found.data), self._store)
                commits.next += 1
