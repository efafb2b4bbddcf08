"""Values of input keys: a user's own value, or the output of another task found through its committed attempt.

Which attempt of a task was committed is remembered, so that a task with a thousand inputs reads each fragment once. In a secured
cluster the user of the task, who has signed it, must be let read each of them (`client/deeds.py`): the Starter's own rights do not count.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256

from rmgr.client.deeds import Deeds
from rmgr.client.pointers import locate
from rmgr.client.snapshot import outcomes_of, read_fragments, read_pages
from rmgr.client.values import HOW_TO_TRUST
from rmgr.coord import keys, ownership, paths, validity
from rmgr.coord.owner_ops import reign_of
from rmgr.coord.ports import About, Coordinator, Encoding, Store
from rmgr.coord.rights import Person
from rmgr.errors import DataLost, NotFound, PermissionDenied
from rmgr.model.states import State
from rmgr.model.submission import Paged

#: Submissions whose attempts are remembered.
_KEEP = 64


@dataclass(frozen=True, slots=True)
class Input:
    """The row of a value. about: what the user of the task may have: nothing else that may stand there by now; None: whatever it is."""

    row: str
    about: About | None = None

    def check(self, key: str, sha256: bytes) -> None:
        """Raises NotFound unless the bytes with that hash are those that were found."""
        if self.about is not None and sha256 != self.about.sha256:
            raise NotFound(f"the value of the input key {key!r} was replaced just now", hint="submit it again")


@dataclass(slots=True)
class _Known:
    lock: threading.Lock = field(default_factory=threading.Lock)
    next_fragment: int = 0
    attempts: dict[int, int] = field(default_factory=dict)  #: of completed tasks


class Inputs:
    """Finds the rows of input keys. Called on IO threads."""

    def __init__(self, coordinator: Coordinator, *, timeout_s: float = 10.0, deeds: Deeds | None = None) -> None:
        self._coordinator = coordinator
        self._deeds = deeds
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._known: OrderedDict[int, _Known] = OrderedDict()

    def find(self, store: Store, user: str, user_keys: Sequence[str], *, trust: Sequence[str] | None) -> list[Input]:
        """Where each value is, in order. user: whose task it is. trust: users whose pickles it loads; None: it loads none.

        Raises: NotFound naming the key that has no value; PermissionDenied; StoreUnavailable, CoordinationUnavailable.
        """
        if self._deeds is None:
            return [Input(row) for row in self.rows(store, user_keys)]
        person = Person(name=user)
        there = store.about_many([keys.named(key) for key in user_keys])
        return [self._owned(store, self._deeds, person, key, there.get(keys.named(key)), trust) for key in user_keys]

    def check_outputs(self, store: Store, user: str, user_keys: Sequence[str]) -> None:
        """Raises PermissionDenied when an output key is somebody else's. Cost: one read for all; none in an open cluster."""
        if self._deeds is None or not user_keys:
            return
        there = store.about_many([keys.named(key) for key in user_keys])
        for key in user_keys:
            about = there.get(keys.named(key))
            if about is not None:
                self._deeds.check_write(store, key, keys.named(key), about, Person(name=user))

    def _owned(self, store: Store, deeds: Deeds, person: Person, key: str, about: About | None, trust: Sequence[str] | None) -> Input:
        if about is None:
            raise NotFound(f"the input key {key!r} does not exist")
        row = keys.named(key)
        holder = deeds.check_read(store, key, row, about, person)
        if about.encoding is Encoding.POINTER:
            value = store.get(row)
            if value is None or sha256(value[0]).digest() != about.sha256:
                raise NotFound(f"the input key {key!r} was replaced just now")
            row = self._committed(store, key, keys.decode_pointer(value[0]))
            about = store.about(row)
            if about is None:
                raise NotFound(f"the value of the input key {key!r} is gone")
            its = deeds.holder(store, row, about)
            if not its.owner:
                raise DataLost(f"the value of the input key {key!r} cannot be believed: {its.why}")
            if its.owner not in (holder.owner, holder.writer):
                raise PermissionDenied(f"the input key {key!r} belongs to {holder.owner}, and points to what belongs to {its.owner}")
            holder = its
        if about.encoding is Encoding.PICKLE and trust is not None:
            ownership.check_pickle(person, key, holder, trust, how=HOW_TO_TRUST)
        return Input(row, about)

    def rows(self, store: Store, user_keys: Sequence[str]) -> list[str]:
        """The store key of each value, in order, whosever it is.

        Raises: NotFound naming the key that has no value; StoreUnavailable, CoordinationUnavailable.
        """
        wanted = [keys.named(key) for key in user_keys]
        heads = {row: store.head(row) for row in dict.fromkeys(wanted)}
        found = []
        for user_key, row in zip(user_keys, wanted, strict=True):
            head = heads[row]
            if head is None:
                raise NotFound(f"the input key {user_key!r} does not exist")
            if head[1] is not Encoding.POINTER:
                found.append(row)
                continue
            value = store.get(row)
            if value is None:
                raise NotFound(f"the input key {user_key!r} does not exist")
            found.append(self._committed(store, user_key, keys.decode_pointer(value[0])))
        return found

    def _committed(self, store: Store, user_key: str, pointer: keys.Pointer) -> str:
        with self._lock:
            known = self._known.setdefault(pointer.sub, _Known())
            self._known.move_to_end(pointer.sub)
            while len(self._known) > _KEEP:
                self._known.popitem(last=False)
        with known.lock:
            attempt = known.attempts.get(pointer.index)
            if attempt is None and not self._read_on(store, pointer, known):
                return locate(self._coordinator, store, user_key, pointer, timeout_s=self._timeout_s)
            attempt = known.attempts.get(pointer.index)
        if attempt is None:
            # It says precisely why there is no value.
            return locate(self._coordinator, store, user_key, pointer, timeout_s=self._timeout_s)
        if pointer.by and not self._is_author(pointer):
            raise NotFound(f"the input key {user_key!r} is the output of a task that was never submitted")
        return keys.output(pointer.sub, pointer.index, attempt, pointer.n)

    def _read_on(self, store: Store, pointer: keys.Pointer, known: _Known) -> bool:
        """Takes in what was committed since the last time. False: the submission is gone."""
        done = self._coordinator.get(paths.done(pointer.sub)).result(self._timeout_s + 1)
        if done is None:
            return False
        paged = validity.decode(done.data, Paged, paths.done(pointer.sub)) if done.data else Paged()
        fragments = []
        if known.next_fragment < paged.base:
            fragments += read_pages(store, pointer.sub, paged)
        start = max(known.next_fragment, paged.base)
        fragments += [fragment for _, fragment in read_fragments(self._coordinator, pointer.sub, start, done, timeout_s=self._timeout_s)]
        for fragment in fragments:
            for outcome in outcomes_of(fragment, store):
                if outcome.state is State.COMPLETED:
                    known.attempts[outcome.index] = outcome.attempt or fragment.attempt
        known.next_fragment = done.stat.creates
        return True

    def _is_author(self, pointer: keys.Pointer) -> bool:
        tail = self._coordinator.get(paths.tail(pointer.sub)).result(self._timeout_s + 1)
        if tail is None:
            return True
        return reign_of(validity.tail(tail, pointer.sub), pointer.index) in ("", pointer.by)
