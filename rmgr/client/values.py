"""Values by name: what a user put under a key, or what a task wrote to its output key.

An output key holds a pointer from the moment its task is submitted; `get` follows it to the committed attempt, so that
bytes of a lost or repeated attempt are never read. Which attempt was committed is remembered per submission and read on
from where the last look ended.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from rmgr.client.pickling import dump_value
from rmgr.client.results import load
from rmgr.client.snapshot import fetch
from rmgr.coord import keys, paths
from rmgr.coord.keys import Pointer
from rmgr.coord.owner_ops import reign_of
from rmgr.coord.ports import Coordinator, Encoding, Store
from rmgr.coord.records import decode_outcomes, decode_page, decode_record, read_fragment
from rmgr.errors import DataLost, KeyExists, NotFound, StateConflict
from rmgr.model.outcome import Fragment
from rmgr.model.states import State
from rmgr.model.submission import Paged, Tail

_CODE = {State.COMPLETED: 1, State.FAILED: 2, State.CANCELLED: 3}
_STATE = {code: state for state, code in _CODE.items()}
#: Submissions whose committed attempts are remembered, and fragments read at once.
_MAX_KNOWN = 64
_WINDOW = 64
_NOTHING: Any = object()


@dataclass(slots=True)
class _Commits:
    """Which attempt of which task of one submission was committed, as far as it was read."""

    next: int = 0
    gone: bool = False
    tail: Tail = field(default_factory=Tail)
    states: bytearray = field(default_factory=bytearray)
    attempts: dict[int, int] = field(default_factory=dict)  #: those that are not 1
    lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, fragment: Fragment, store: Store) -> None:
        outcomes = fragment.outcomes
        if fragment.row:
            row = store.get(fragment.row)
            if row is None:
                raise DataLost(f"outcomes in row {fragment.row} are missing from the store", hint="rmgr doctor")
            outcomes = decode_outcomes(row[0])
        for outcome in outcomes:
            if outcome.index >= len(self.states):
                self.states.extend(bytes(outcome.index + 1 - len(self.states)))
            if not self.states[outcome.index]:
                self.states[outcome.index] = _CODE[outcome.state]
                attempt = outcome.attempt or fragment.attempt
                if attempt != 1:
                    self.attempts[outcome.index] = attempt


class Values:
    """`connect().store`: put, get, delete, keys. Thread-safe.

    Bytes are stored as they are, any other object pickled. Values are at most 256 MiB and immutable: putting a key again
    replaces the whole value in one step.
    """

    def __init__(self, store: Store, coordinator: Coordinator | None) -> None:
        self._store = store
        self._coordinator = coordinator
        self._known: OrderedDict[int, _Commits] = OrderedDict()
        self._lock = threading.Lock()

    def put(self, key: str, value: Any, *, overwrite: bool = True, timeout: float = 30.0) -> None:
        """Stores `value` under `key`. Raises KeyExists (overwrite=False), PickleFailed, ValueTooLarge, StoreUnavailable."""
        named = keys.named(key)
        if isinstance(value, bytes):
            self._store.put(named, value, overwrite=overwrite, timeout_s=timeout)
        else:
            data = dump_value(value, f"the value for {key!r}")
            self._store.put(named, data, encoding=Encoding.PICKLE, overwrite=overwrite, timeout_s=timeout)

    def get(self, key: str, default: Any = _NOTHING, *, timeout: float = 30.0) -> Any:
        """The value under `key`.

        Raises: NotFound when there is none (or `default` is returned); StateConflict when the task that will write it has
            not ended; DataLost, PickleFailed, StoreUnavailable.
        """
        found = self._store.get(keys.named(key), timeout_s=timeout)
        if found is not None and found[1] is Encoding.POINTER:
            found = self._follow(key, keys.decode_pointer(found[0]), found[0], default is not _NOTHING, timeout)
        if found is None:
            if default is not _NOTHING:
                return default
            raise NotFound(f"there is no value under the key {key!r}", hint="rmgr store ls lists the keys")
        return load(found[0], found[1], f"the value under {key!r}")

    def delete(self, key: str, *, timeout: float = 30.0) -> bool:
        """Makes the key absent; True if there was a value (or a task that will write one)."""
        return self._store.delete(keys.named(key), timeout_s=timeout)

    def keys(self, prefix: str = "", *, timeout: float = 30.0) -> list[str]:
        """Keys that begin with `prefix` and have a value now, sorted. Cost: a look at each key that a task writes."""
        return list(self.iterate(prefix, timeout=timeout))

    def iterate(self, prefix: str = "", *, timeout: float = 30.0) -> Iterator[str]:
        """As `keys`, one by one."""
        start, after = keys.named_prefix(prefix), ""
        while True:
            names = self._store.keys(start, after=after, limit=1000, timeout_s=timeout)
            for name in names:
                key = keys.user_key(name)
                if self._has_value(name, timeout):
                    yield key
            if len(names) < 1000:
                return
            after = names[-1]

    def exists(self, key: str, *, timeout: float = 30.0) -> bool:
        """There is a value under `key` now."""
        return self._has_value(keys.named(key), timeout)

    # -- output keys

    def claim_outputs(self, outputs: Iterable[tuple[str, Pointer]], *, overwrite: bool, timeout: float = 30.0) -> None:
        """Writes pointers under output keys, before their task is submitted.

        Raises: KeyExists naming a key that has a value, or that another live task will write. A key whose task ended
            without a result, or was never submitted, is free.
        """
        rows = [(keys.named(key), keys.encode_pointer(pointer)) for key, pointer in outputs]
        if overwrite:
            self._store.put_many(rows, encoding=Encoding.POINTER, timeout_s=timeout)
            return
        try:
            self._store.put_many(rows, encoding=Encoding.POINTER, overwrite=False, timeout_s=timeout)
        except KeyExists:
            for name, _ in rows:
                self.check_free(keys.user_key(name), timeout=timeout)
            self._store.put_many(rows, encoding=Encoding.POINTER, timeout_s=timeout)

    def check_free(self, key: str, *, mine: Pointer | None = None, timeout: float = 30.0) -> None:
        """Raises KeyExists when the output key has a value, or when a live task (other than `mine`) will write it."""
        name = keys.named(key)
        head = self._store.head(name, timeout_s=timeout)
        if head is None:
            return
        found = self._store.get(name, timeout_s=timeout) if head[1] is Encoding.POINTER else None
        if found is not None and found[1] is Encoding.POINTER:
            pointer = keys.decode_pointer(found[0])
            if pointer == mine:
                return
            state = self._fate(pointer, timeout)
            if state in {State.FAILED, State.CANCELLED, "never"}:
                return
            if state == "gone" and self._store.head(keys.final(pointer), timeout_s=timeout) is None:
                return
            what = f"task {pointer.sub}_{pointer.index} writes it" if state == "open" else f"task {pointer.sub}_{pointer.index} wrote it"
            raise KeyExists(f"the output key {key!r} exists already: {what}", hint="overwrite=True replaces it; or choose another key")
        raise KeyExists(f"the output key {key!r} exists already", hint="overwrite=True replaces it; or choose another key")

    def _has_value(self, name: str, timeout: float) -> bool:
        head = self._store.head(name, timeout_s=timeout)
        if head is None:
            return False
        if head[1] is not Encoding.POINTER:
            return True
        found = self._store.get(name, timeout_s=timeout)
        if found is None or found[1] is not Encoding.POINTER:
            return found is not None
        pointer = keys.decode_pointer(found[0])
        state = self._fate(pointer, timeout)
        return state is State.COMPLETED or (state == "gone" and self._store.head(keys.final(pointer), timeout_s=timeout) is not None)

    def _follow(self, key: str, pointer: Pointer, data: bytes, lenient: bool, timeout: float) -> tuple[bytes, Encoding] | None:
        task = f"{pointer.sub}_{pointer.index}"
        state = self._fate(pointer, timeout)
        if state is State.COMPLETED:
            commits = self._commits(pointer.sub)
            row = keys.output(pointer.sub, pointer.index, commits.attempts.get(pointer.index, 1), pointer.n)
            found = self._store.get(row, timeout_s=timeout) or self._store.get(keys.final(pointer), timeout_s=timeout)
            if found is None:
                now = self._store.get(keys.named(key), timeout_s=timeout)
                if now is None or now[0] != data:  # written anew meanwhile
                    return now if now is None or now[1] is not Encoding.POINTER else None
                raise DataLost(f"the value under {key!r}, written by task {task}, is missing from the data store", hint="rmgr doctor")
            return found
        if state == "gone":
            return self._store.get(keys.final(pointer), timeout_s=timeout)
        if state == "open" and not lenient:
            raise StateConflict(f"the value under {key!r} is not there yet: task {task} has not ended", hint=f"rmgr wait {task}")
        if state in {State.FAILED, State.CANCELLED} and not lenient:
            raise NotFound(f"there is no value under the key {key!r}: task {task} ended {state}", hint=f"rmgr show {task}")
        return None

    # -- which attempt was committed

    def _fate(self, pointer: Pointer, timeout: float) -> State | str:
        """Final state of the task behind a pointer; "open", "never" (it was not submitted), or "gone" (collected)."""
        commits = self._commits(pointer.sub)
        with commits.lock:
            known = self._state(commits, pointer.index)
            if known is None or (pointer.by and not commits.tail.reigns):
                self._catch_up(pointer.sub, commits, timeout)
                known = self._state(commits, pointer.index)
            if commits.gone and known is None:
                return "gone"
            if pointer.by and commits.tail.reigns and reign_of(commits.tail, pointer.index) != pointer.by:
                return "never"
            return "open" if known is None else known

    def _state(self, commits: _Commits, index: int) -> State | None:
        return _STATE.get(commits.states[index]) if index < len(commits.states) else None

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
        end_s = time.monotonic() + timeout
        tail, done = fetch([paths.tail(number), paths.done(number)], self._coordinator.get, timeout_s=timeout)
        if tail is None or done is None:
            commits.gone = True
            return
        commits.tail = decode_record(tail.data, Tail, paths.tail(number))
        paged = decode_record(done.data, Paged, paths.done(number)) if done.data else Paged()
        at = 0
        while commits.next < paged.base and at < paged.base:
            row = self._store.get(keys.page(number, at), timeout_s=timeout)
            if row is None:
                raise DataLost(f"page {at} of submission {number} is missing from the store", hint="rmgr doctor")
            page = decode_page(row[0])
            for fragment in page[max(0, commits.next - at) :]:
                commits.take(fragment, self._store)
            at += len(page)
            commits.next = max(commits.next, at)
        while commits.next < done.stat.creates:
            some = range(commits.next, min(done.stat.creates, commits.next + _WINDOW))
            left_s = max(0.1, end_s - time.monotonic())
            for found in fetch([paths.fragment(number, item) for item in some], self._coordinator.get, timeout_s=left_s):
                if found is None:
                    return  # paged out meanwhile: the next look reads the page
                commits.take(read_fragment(found.data), self._store)
                commits.next += 1
