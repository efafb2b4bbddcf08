"""Values by name: what a user put under a key, or what a task wrote to its output key.

An output key holds a pointer from the moment its task is submitted; `get` follows it to the committed attempt, so that
bytes of a lost or repeated attempt are never read. Which attempt was committed is remembered per submission and read on
from where the last look ended.

In a secured cluster each value has an owner, who put it first (`client/deeds.py`): others read what he shares, and replace or delete
what he shares for writing. What others have pickled is loaded only for who says that he trusts them.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from rmgr.client.pickling import dump_value
from rmgr.client.results import load
from rmgr.client.snapshot import fetch
from rmgr.coord import keys, ownership, paths, validity
from rmgr.coord.keys import Pointer
from rmgr.coord.owner_ops import reign_of
from rmgr.coord.ownership import Holder, Share
from rmgr.coord.ports import About, Coordinator, Encoding, Note, Store
from rmgr.coord.records import decode_outcomes, decode_page, read_fragment
from rmgr.errors import DataLost, KeyExists, NotFound, PermissionDenied, StateConflict, UsageError
from rmgr.model.identity import check_name
from rmgr.model.outcome import Fragment
from rmgr.model.states import State
from rmgr.model.submission import Paged, Tail

if TYPE_CHECKING:
    from rmgr.client.deeds import Deeds

_CODE = {State.COMPLETED: 1, State.FAILED: 2, State.CANCELLED: 3}
_STATE = {code: state for state, code in _CODE.items()}
#: Submissions whose committed attempts are remembered, and fragments read at once.
_MAX_KNOWN = 64
_WINDOW = 64
_NOTHING: Any = object()
_NOBODYS: Mapping[str, Holder | None] = {}
#: What to type so that a task loads a pickle of somebody else.
HOW_TO_TRUST = 'if you trust {who}: queue.submit(..., trust="{who}")'


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
    replaces the whole value in one step. deeds: None in an open cluster, where values are everybody's.
    """

    def __init__(self, store: Store, coordinator: Coordinator | None, deeds: Deeds | None = None) -> None:
        self._store = store
        self._coordinator = coordinator
        self.deeds = deeds
        self._is_led: bool = getattr(store, "leads", False)
        self._known: OrderedDict[int, _Commits] = OrderedDict()
        self._lock = threading.Lock()

    def put(self, key: str, value: Any, *, overwrite: bool = True, timeout: float = 30.0) -> None:
        """Stores `value` under `key`, which is yours from then on unless it is somebody's.

        Raises: KeyExists (overwrite=False), PermissionDenied (somebody else's), PickleFailed, ValueTooLarge, StoreUnavailable.
        """
        encoding = Encoding.RAW if isinstance(value, bytes) else Encoding.PICKLE
        data = value if isinstance(value, bytes) else dump_value(value, f"the value for {key!r}")

        def write(overwrite: bool, note: Note) -> None:
            beside: dict[str, Any] = {"note": note} if note else {}
            self._store.put(keys.named(key), data, encoding=encoding, overwrite=overwrite, timeout_s=timeout, **beside)

        self.put_owned(key, encoding, write, overwrite=overwrite, timeout=timeout)

    def put_owned(self, key: str, encoding: Encoding, write: Callable[[bool, Note], None], *, overwrite: bool, timeout: float) -> None:
        """Has `write(overwrite, note)` write a value with the right deed, unless the key is somebody else's."""
        if self.deeds is None:
            write(overwrite, b"")
            return
        row = keys.named(key)
        about = self._store.about(row, timeout_s=timeout) if overwrite else None
        if about is None:
            try:
                write(False, self.deeds.noted(row, encoding))
                return
            except KeyExists:
                about = self._store.about(row, timeout_s=timeout)
                if about is not None:
                    self.deeds.check_write(self._store, key, row, about)
                if not overwrite:
                    raise
        owner = self.deeds.check_write(self._store, key, row, about).owner if about is not None else ""
        write(True, self.deeds.noted(row, encoding, owner=owner))

    def get(self, key: str, default: Any = _NOTHING, *, trust: str | Iterable[str] = (), timeout: float = 30.0) -> Any:
        """The value under `key`.

        Args:
            trust: users whose pickles are loaded beside your own ("all": anybody's): that runs what they wrote, as you.
        Raises: NotFound when there is none (or `default` is returned); StateConflict when the task that will write it has
            not ended; PermissionDenied when it is somebody else's, or his pickle; DataLost, PickleFailed, StoreUnavailable.
        """
        found, holder = self._read(key, default is not _NOTHING, timeout)
        if found is None:
            if default is not _NOTHING:
                return default
            raise NotFound(f"there is no value under the key {key!r}", hint="rmgr store ls lists the keys")
        if found[1] is Encoding.PICKLE and self.deeds is not None:
            self.deeds.check_pickle(key, holder, ownership.trusted(trust))
        return load(found[0], found[1], f"the value under {key!r}")

    def _read(self, key: str, lenient: bool, timeout: float) -> tuple[tuple[bytes, Encoding] | None, Holder]:
        """The bytes under a key, and whose they are. Raises: as `get`."""
        row, deeds = keys.named(key), self.deeds
        if deeds is None:
            found = self._store.get(row, timeout_s=timeout)
            if found is not None and found[1] is Encoding.POINTER:
                found = self._follow(key, keys.decode_pointer(found[0]), found[0], lenient, timeout)
            return found, Holder()
        noted = self._store.get_noted(row, timeout_s=timeout)
        if noted is None:
            return None, Holder()
        data, about = noted
        holder = deeds.check_read(self._store, key, row, about)
        if about.encoding is not Encoding.POINTER:
            return (data, about.encoding), holder
        pointer = keys.decode_pointer(data)
        if self._is_led and holder.writer != deeds.me.name:
            return self._led(key, pointer, holder, timeout), holder
        return self._follow(key, pointer, data, lenient, timeout, holder), holder

    def locate(self, key: str, find: Callable[[str, Pointer], str], *, timeout: float) -> tuple[str, About]:
        """The row that holds the value of `key`, and what was signed of it; for who reads it himself. Secured clusters only.

        Args: find: the row of a pointer's output. Raises: NotFound, PermissionDenied, DataLost, what `find` raises.
        """
        deeds, row = self._deeds_or_refuse(), keys.named(key)
        noted = self._store.get_noted(row, timeout_s=timeout) if self._is_pointer(row, timeout) else None
        about = noted[1] if noted is not None else self._store.about(row, timeout_s=timeout)
        if about is None:
            raise NotFound(f"the value {key!r} was deleted just now", hint="rmgr store ls lists the keys")
        holder = deeds.check_read(self._store, key, row, about)
        if noted is None or about.encoding is not Encoding.POINTER:
            return row, about
        pointer = keys.decode_pointer(noted[0])
        is_led = self._is_led and holder.writer != deeds.me.name
        row = keys.led(key) if is_led else find(key, pointer)
        found = self._store.about(row, timeout_s=timeout)
        if found is None:
            raise DataLost(f"the output {key!r} of task {pointer.sub}_{pointer.index} is missing from the store (row {row})")
        self._believed(key, self._origin(key, pointer, found) if is_led else row, (b"", found), holder)
        return row, found

    def _is_pointer(self, row: str, timeout: float) -> bool:
        head = self._store.head(row, timeout_s=timeout)
        return head is not None and head[1] is Encoding.POINTER

    def check_input(self, key: str, *, trust: Collection[str] = (), timeout: float = 30.0) -> None:
        """Raises PermissionDenied when a task of yours may not have the value of `key`, or would load somebody else's pickle."""
        row = keys.named(key)
        if self.deeds is None or (about := self._store.about(row, timeout_s=timeout)) is None:
            return
        holder = self.deeds.check_read(self._store, key, row, about)
        if about.encoding is Encoding.PICKLE:
            ownership.check_pickle(self.deeds.me, key, holder, trust, how=HOW_TO_TRUST)

    def check_mine(self, key: str, *, timeout: float = 30.0) -> Holder | None:
        """Raises PermissionDenied when the key is somebody else's. Returns whose it is, None where nobody asks, or nothing is there."""
        row = keys.named(key)
        about = self._store.about(row, timeout_s=timeout) if self.deeds is not None else None
        return None if about is None or self.deeds is None else self.deeds.check_write(self._store, key, row, about)

    def delete(self, key: str, *, timeout: float = 30.0) -> bool:
        """Makes the key absent; True if there was a value (or a task that will write one). Raises PermissionDenied: somebody else's."""
        self.check_mine(key, timeout=timeout)
        return self._store.delete(keys.named(key), timeout_s=timeout)

    # -- sharing

    def share(self, key: str, user: str, *, write: bool = False, is_prefix: bool = False) -> None:
        """Lets `user` ("all": everybody) read your value under `key`, with `write` replace and delete it, too.

        is_prefix: all that you have, and will have, under keys that begin with `key`. Values of others under them stay theirs.
        Raises: UsageError in an open cluster, where values are everybody's; StoreUnavailable.
        """
        deeds = self._deeds_or_refuse()
        deeds.put_share(self._store, self._share(deeds, key, user, write=write, is_prefix=is_prefix))

    def unshare(self, key: str, user: str, *, is_prefix: bool = False) -> bool:
        """Takes back what `share` has said of the same key (or prefix) and user; True if it was there. Counts within 2 s."""
        deeds = self._deeds_or_refuse()
        deeds.forget_shares()
        return self._store.delete(self._share(deeds, key, user, is_prefix=is_prefix).row)

    def shares(self) -> list[Share]:
        """What you share, and what others share with you, by owner and key. Cost: a read each."""
        deeds = self._deeds_or_refuse()
        found = {share.row: share for share in deeds.read_shares(self._store)}
        mine = {deeds.me.name, ownership.ALL}
        seen = [one for one in found.values() if deeds.me.is_free or one.owner == deeds.me.name or one.user in mine]
        return sorted(seen, key=lambda one: (one.owner, one.key, one.user))

    def adopt(self, key: str, owner: str, *, only_nobodys: bool = False, timeout: float = 30.0) -> bool:
        """Gives the value of `key` an owner ("" = oneself), as an operator; with `only_nobodys` only if it has none. True: done.

        Raises: PermissionDenied, NotFound. Cost: the value is written again.
        """
        deeds, row = self._deeds_or_refuse(), keys.named(key)
        if not deeds.me.is_operator:
            raise PermissionDenied("giving values an owner is for operators", hint="ask one: rmgr store adopt KEY --owner YOU")
        found = self._store.get_noted(row, timeout_s=timeout)
        if found is None:
            raise NotFound(f"there is no value under the key {key!r}", hint="rmgr store ls lists the keys")
        if only_nobodys and deeds.holder(self._store, row, found[1]).owner:
            return False
        note = deeds.noted(row, found[1].encoding, owner=check_name(owner) if owner else "")
        self._store.put(row, found[0], encoding=found[1].encoding, note=note, timeout_s=timeout)
        return True

    def _deeds_or_refuse(self) -> Deeds:
        if self.deeds is None:
            raise UsageError("values have no owners here: everybody may read and write them", hint="secured clusters: rmgr admin init")
        return self.deeds

    def _share(self, deeds: Deeds, key: str, user: str, *, write: bool = False, is_prefix: bool = False) -> Share:
        whom = ownership.ALL if user == ownership.ANYBODY else check_name(user)
        return Share(owner=deeds.me.name, user=whom, key=keys.check_user_key(key), is_prefix=is_prefix, write=write)

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

        Raises: KeyExists naming a key that has a value, or that another live task will write; PermissionDenied naming one that is
            somebody else's. A key whose task ended without a result, or was never submitted, is free for its owner.
        """
        rows = [(keys.named(key), keys.encode_pointer(pointer)) for key, pointer in outputs]
        if overwrite and self.deeds is None:
            self.write_pointers(rows, timeout=timeout)
            return
        try:
            self.write_pointers(rows, overwrite=False, timeout=timeout)
        except KeyExists:
            owners = {}
            for name, _ in rows:
                check = self.check_mine if overwrite else self.check_free
                owners[name] = check(keys.user_key(name), timeout=timeout)
            self.write_pointers(rows, owners=owners, timeout=timeout)

    def write_pointers(
        self,
        rows: Sequence[tuple[str, bytes]],
        *,
        overwrite: bool = True,
        owners: Mapping[str, Holder | None] = _NOBODYS,
        timeout: float = 30.0,
    ) -> None:
        """Pointers with their deeds, as `Store.put_many`. owners: of rows that are somebody else's, who lets us write them."""
        beside: dict[str, Any] = {}
        if self.deeds is not None:
            told = [(row, sha256(data).digest(), holder.owner if (holder := owners.get(row)) else "") for row, data in rows]
            beside["notes"] = self.deeds.notes(told, Encoding.POINTER)
        self._store.put_many(rows, encoding=Encoding.POINTER, overwrite=overwrite, timeout_s=timeout, **beside)

    def check_free(self, key: str, *, mine: Pointer | None = None, timeout: float = 30.0) -> Holder | None:
        """Raises KeyExists when the output key has a value, or when a live task (other than `mine`) will write it.

        Raises also PermissionDenied: it is somebody else's. Returns whose it is, as `check_mine`.
        """
        name = keys.named(key)
        holder = self.check_mine(key, timeout=timeout)
        if self.deeds is not None and holder is None:
            return None
        head = self._store.head(name, timeout_s=timeout)
        if head is None:
            return None
        found = self._store.get(name, timeout_s=timeout) if head[1] is Encoding.POINTER else None
        if found is not None and found[1] is Encoding.POINTER:
            pointer = keys.decode_pointer(found[0])
            if pointer == mine:
                return holder
            state = self._fate(pointer, timeout)
            if state in {State.FAILED, State.CANCELLED, "never"}:
                return holder
            if state == "gone" and self._store.head(keys.final(pointer), timeout_s=timeout) is None:
                return holder
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
        try:
            state = self._fate(pointer, timeout)
        except PermissionDenied:  # a gateway shows nobody what others submitted; what they share it fetches itself
            return self._is_led and self._store.head(keys.led(keys.user_key(name)), timeout_s=timeout) is not None
        return state is State.COMPLETED or (state == "gone" and self._store.head(keys.final(pointer), timeout_s=timeout) is not None)

    def _led(self, key: str, pointer: Pointer, holder: Holder, timeout: float) -> tuple[bytes, Encoding] | None:
        """What somebody else's pointer leads to, found by the gateway."""
        found = self._store.get_noted(keys.led(key), timeout_s=timeout)
        return None if found is None else self._believed(key, self._origin(key, pointer, found[1]), found, holder)

    def _origin(self, key: str, pointer: Pointer, about: About) -> str:
        """The row of an output, as its deed says it."""
        deed = ownership.deed_of(about)
        row = deed.row if deed is not None else ""
        if not keys.is_output_of(row, pointer):
            raise DataLost(f"the gateway has sent another value than that of {key!r}", hint="read it again; rmgr doctor")
        return row

    def _believed(self, key: str, row: str, found: tuple[bytes, About], holder: Holder) -> tuple[bytes, Encoding]:
        """An output with its encoding. Raises DataLost unless it was written by a Starter for whom its pointer belongs to."""
        assert self.deeds is not None
        its = self.deeds.holder(self._store, row, found[1])
        if not its.owner:
            raise DataLost(f"the value under {key!r} cannot be believed: {its.why}", hint="run the task that makes it again")
        if its.owner not in (holder.owner, holder.writer):
            whose = f"the value under {key!r}: it belongs to {holder.owner or 'nobody'}, and points to what belongs to {its.owner}"
            raise PermissionDenied(whose, hint=f"read it under the key that {its.owner} gave it")
        return found[0], found[1].encoding

    def _output(self, key: str, row: str, holder: Holder | None, timeout: float) -> tuple[bytes, Encoding] | None:
        if holder is None:
            return self._store.get(row, timeout_s=timeout)
        found = self._store.get_noted(row, timeout_s=timeout)
        return None if found is None else self._believed(key, row, found, holder)

    def _follow(
        self, key: str, pointer: Pointer, data: bytes, lenient: bool, timeout: float, holder: Holder | None = None
    ) -> tuple[bytes, Encoding] | None:
        """The output behind a pointer. holder: of the pointer; None in an open cluster."""
        task = f"{pointer.sub}_{pointer.index}"
        state = self._fate(pointer, timeout)
        if state is State.COMPLETED:
            commits = self._commits(pointer.sub)
            row = keys.output(pointer.sub, pointer.index, commits.attempts.get(pointer.index, 1), pointer.n)
            found = self._output(key, row, holder, timeout) or self._output(key, keys.final(pointer), holder, timeout)
            if found is None:
                now = self._store.get(keys.named(key), timeout_s=timeout)
                if now is None or now[0] != data:  # written anew meanwhile
                    if holder is not None:
                        raise NotFound(f"the value under {key!r} was replaced just now", hint="read it again")
                    return now if now is None or now[1] is not Encoding.POINTER else None
                raise DataLost(f"the value under {key!r}, written by task {task}, is missing from the data store", hint="rmgr doctor")
            return found
        if state == "gone":
            return self._output(key, keys.final(pointer), holder, timeout)
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
        commits.tail = validity.tail(tail, number)
        paged = validity.decode(done.data, Paged, paths.done(number)) if done.data else Paged()
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
