"""Values by name: values that a user put under a key, or that a task wrote to its output key; one at a time, or many at once.

An output key holds a pointer from the moment its task is submitted. `get` follows the pointer to the committed attempt, so it
never reads bytes of a lost or repeated attempt. Committed attempts are remembered per submission; each look reads on
from where the last one ended.

In a secured cluster each value has an owner, the user who first put it (`procedures/authentic.py`). Other users read values that the
owner shares with them, and replace or delete values shared for writing. Pickles of others are loaded only if the caller trusts them.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from hashlib import sha256
from itertools import islice
from typing import TYPE_CHECKING, Any

from rmgr.client import content
from rmgr.client.content import Payload, Scattered
from rmgr.client.pickling import dump_value, load
from rmgr.coord.decisions import rights
from rmgr.coord.decisions.rights import Holder, Person, ValueShare
from rmgr.coord.protocol import keys
from rmgr.coord.protocol.keys import Pointer
from rmgr.coord.protocol.ports import MAX_VALUE_BYTES, NOTHING, About, Encoding, Note, Store
from rmgr.errors import DataLost, KeyExists, NotFound, PermissionDenied, RmgrError, StateConflict, UsageError
from rmgr.model.identity import check_name
from rmgr.model.states import State
from rmgr.procedures.output_keys import Fates, FatesPort, claim_pointers, look
from rmgr.submitter.questions import MOST_POINTERS, Asks, FateRead, ReadFates

if TYPE_CHECKING:
    from rmgr.procedures.authentic import Deeds

#: How a caller follows a long call: True for a display, or a function that gets (keys done so far, keys in all or 0).
Progress = bool | Callable[[int, int], None]
#: Limits of one step of a put: number of values, and bytes beyond which no further value is added.
_PUT_VALUES, _PUT_BYTES = 1000, 4 * 2**20
#: Keys in one step of a read, and of a deletion.
_GET_KEYS, _DELETE_KEYS = 256, 1000
#: Keys remembered as taken, the latest ones: some MB.
MOST_SEEN = 65_536
#: Tasks whose ends are remembered.
_MOST_FATES = 20_000
_NOTHING: Any = object()
_NOBODYS: Mapping[str, Holder | None] = {}


class SeenKeys:
    """Keys that this process knows to be taken: keys it put, output keys of its tasks, and keys it found to exist. Thread-safe.

    It is bounded, and its keys may be free again by now: a caller that finds a key here checks the store.
    """

    def __init__(self) -> None:
        self._keys: dict[str, None] = {}
        self._lock = threading.Lock()

    def __contains__(self, key: str) -> bool:
        return key in self._keys

    def add(self, keys: Iterable[str]) -> None:
        """Notes keys as taken, forgetting the oldest beyond the limit. Cost: O(keys)."""
        with self._lock:
            for key in keys:
                self._keys.pop(key, None)
                self._keys[key] = None
            while len(self._keys) > MOST_SEEN:
                del self._keys[next(iter(self._keys))]

    def forget(self, keys: Iterable[str]) -> None:
        """Notes keys as free."""
        with self._lock:
            for key in keys:
                self._keys.pop(key, None)


class Values:
    """`connect().store`: put, get, delete, keys. Thread-safe.

    Bytes are stored as they are, any other object is pickled. Values have at most 5 GiB and are immutable: putting a key again
    replaces the whole value in one step. fates: None if every submission is gone. deeds: None in an open cluster, where every
    user may read and write every value.
    """

    def __init__(self, store: Store, fates: FatesPort | None, deeds: Deeds | None = None) -> None:
        self._store = store
        self.deeds = deeds
        self.fates: FatesPort = fates or Fates(store, None)
        self.seen = SeenKeys()
        self._is_led: bool = getattr(store, "leads", False)

    def put(self, key: str, value: Any, *, overwrite: bool = True, timeout: float = 30.0) -> None:
        """Stores `value` under `key`. The key then belongs to you, unless it already belongs to another user.

        Raises: KeyExists (overwrite=False), PermissionDenied (another user's key), PickleFailed, ValueTooLarge, StoreUnavailable.
        """
        self.put_row(key, *encoded(key, value), overwrite=overwrite, timeout=timeout)
        self.seen.add([key])

    def put_row(self, key: str, encoding: Encoding, data: Payload, *, overwrite: bool, timeout: float) -> None:
        """Stores data that is pickled already, as `put`."""
        row, whole = keys.named(key), data.parts if isinstance(data, Scattered) else data

        def write(overwrite: bool, note: Note) -> None:
            beside: dict[str, Any] = {"note": note} if note else {}
            self._store.put(row, whole, encoding=encoding, overwrite=overwrite, timeout_s=timeout, **beside)

        self.put_owned(key, encoding, write, overwrite=overwrite, timeout=timeout)

    def put_owned(self, key: str, encoding: Encoding, write: Callable[[bool, Note], None], *, overwrite: bool, timeout: float) -> None:
        """Has `write(overwrite, note)` write a value with the right deed. Raises PermissionDenied if the key is another user's."""
        keys.check_new_key(key)
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
        """Returns the value under `key`.

        Args:
            trust: other users whose pickles may be loaded ("all": anybody's). Loading runs those users' code under your name.
        Raises: NotFound if there is none (unless `default` is given, which is returned); StateConflict if the task that will write it
            has not ended; PermissionDenied if the value, or its pickle, is another user's; DataLost, PickleFailed, StoreUnavailable.
        """
        found, holder = self.read(key, default is not _NOTHING, timeout)
        if found is None:
            if default is not _NOTHING:
                return default
            raise NotFound(f"there is no value under the key {key!r}", hint="rmgr store ls lists the keys")
        if found[1] is Encoding.PICKLE and self.deeds is not None:
            self.deeds.check_pickle(key, holder, rights.trusted(trust))
        return load(found[0], found[1], f"the value under {key!r}")

    def read(self, key: str, lenient: bool, timeout: float) -> tuple[tuple[bytes, Encoding] | None, Holder]:
        """Returns the bytes under a key, and their owner. lenient: None if there are no bytes, yet or ever. Raises: as `get`."""
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
            return self._read_pointed(key, pointer, holder, timeout), holder
        return self._follow(key, pointer, data, lenient, timeout, holder), holder

    def locate(self, key: str, find: Callable[[str, Pointer], str], *, timeout: float) -> tuple[str, About]:
        """Returns the row that holds the value of `key`, and its signed note, for callers that read the row themselves.

        Secured clusters only. Args: find: gives a pointer's output row. Raises: NotFound, PermissionDenied, DataLost, errors of `find`.
        """
        deeds, row = self._deeds_or_refuse(), keys.named(key)
        there = self.noted([row], largest=keys.POINTER_BYTES, timeout=timeout)
        if row not in there:
            raise NotFound(f"the value {key!r} was deleted just now", hint="rmgr store ls lists the keys")
        data, about = there[row]
        holder = deeds.check_read(self._store, key, row, about)
        if about.encoding is not Encoding.POINTER:
            return row, about
        pointer = _pointer(key, data, about)
        is_led = self._is_led and holder.writer != deeds.me.name
        row = keys.led(key) if is_led else find(key, pointer)
        found = self._store.about(row, timeout_s=timeout)
        if found is None:
            raise keys.output_missing(key, pointer, row)
        self.believed(key, self._origin(key, pointer, found) if is_led else row, (b"", found), holder)
        return row, found

    def check_input(self, key: str, *, trust: Collection[str] = (), timeout: float = 30.0) -> None:
        """Raises PermissionDenied if your task may not read the value of `key`, or would load a pickle of a user outside `trust`."""
        row = keys.named(key)
        if self.deeds is None or (about := self._store.about(row, timeout_s=timeout)) is None:
            return
        holder = self.deeds.check_read(self._store, key, row, about)
        if about.encoding is Encoding.PICKLE:
            rights.check_pickle(self.deeds.me, key, holder, trust, how=rights.HOW_TO_TRUST)

    def check_mine(self, key: str, *, timeout: float = 30.0) -> Holder | None:
        """Returns the key's owner, None in an open cluster or if there is no value. Raises PermissionDenied if it is another user's."""
        row = keys.named(key)
        about = self._store.about(row, timeout_s=timeout) if self.deeds is not None else None
        return None if about is None else self.check_writable(key, about)

    def check_writable(self, key: str, about: About) -> Holder | None:
        """Returns the same for `about`, read from the store before."""
        return None if self.deeds is None else self.deeds.check_write(self._store, key, keys.named(key), about)

    def check_readable(self, key: str, about: About) -> Holder:
        """Returns the owner of a value; about: as read from the store. Raises PermissionDenied unless you may read the value."""
        return Holder() if self.deeds is None else self.deeds.check_read(self._store, key, keys.named(key), about)

    def delete(self, key: str, *, timeout: float = 30.0) -> bool:
        """Makes the key absent; True if it had a value, or a task that will write one. Raises PermissionDenied if it is another user's."""
        self.check_mine(key, timeout=timeout)
        self.seen.forget([key])
        return self._store.delete(keys.named(key), timeout_s=timeout)

    def delete_some(self, some: Sequence[str], *, timeout: float) -> int:
        """Deletes up to 1,000 keys at once; returns how many existed. Raises PermissionDenied, deleting none, if one is another user's."""
        rows = [keys.named(key) for key in some]
        if self.deeds is not None:
            for row, about in self.about(rows, timeout=timeout).items():
                self.check_writable(keys.user_key(row), about)
        self.seen.forget(some)
        return len(self._store.delete_many(rows, timeout_s=timeout))

    # -- many at once

    def put_many(
        self,
        values: Mapping[str, Any] | Iterable[tuple[str, Any]],
        *,
        overwrite: bool = True,
        progress: Progress = False,
        timeout: float = 30.0,
    ) -> int:
        """Stores many values, 1,000 or 4 MiB at a time, each as `put` would; returns how many. Does not hold a whole iterable in memory.

        Args:
            progress: True shows it on stderr; a function is called with (keys so far, keys in all or 0) after each step.
            timeout: of each step.
        Raises: as `put`; earlier steps stay. A step with a refused key stores nothing, if its values are all bytes or all pickled.
        """
        pairs = values.items() if isinstance(values, Mapping) else values
        done = 0
        with _progress_of("put", values, progress) as tell:
            for step in _steps(pairs):
                for encoding in (Encoding.RAW, Encoding.PICKLE):
                    rows = {key: data for key, (its, data) in step.items() if its is encoding}
                    if rows:
                        _put(self, rows, encoding, overwrite=overwrite, timeout=timeout)
                self.seen.add(step)
                done += len(step)
                tell(done)
        return done

    def get_many(
        self, keys: Iterable[str], *, trust: str | Iterable[str] = (), progress: Progress = False, timeout: float = 30.0
    ) -> dict[str, Any]:
        """Returns the values of those `keys` that have one now, in the order of `keys`. Holds all of them in memory.

        Args: trust: as in `get`. progress, timeout: as in `put_many`, per step of 256 keys.
        Raises: PermissionDenied if a value, or its pickle, is another user's; DataLost, PickleFailed, StoreUnavailable.
        """
        trusted = rights.trusted(trust)
        found: dict[str, Any] = {}
        asked = dict.fromkeys(keys)
        with _progress_of("get", asked, progress) as tell:
            for done, step in _parts(asked, _GET_KEYS):
                there = _get(self, step, timeout)
                for key in step:
                    if key in there:
                        data, encoding, holder = there[key]
                        if encoding is Encoding.PICKLE and self.deeds is not None:
                            self.deeds.check_pickle(key, holder, trusted)
                        found[key] = load(data, encoding, f"the value under {key!r}")
                tell(done)
        return found

    def delete_many(self, keys: Iterable[str], *, progress: Progress = False, timeout: float = 30.0) -> int:
        """Makes many keys absent; returns how many existed. progress, timeout: as in `put_many`, per step of 1,000 keys.

        Raises: PermissionDenied if a key is another user's (then none of its step is deleted); StoreUnavailable.
        """
        deleted = 0
        asked = dict.fromkeys(keys)
        with _progress_of("delete", asked, progress) as tell:
            for done, step in _parts(asked, _DELETE_KEYS):
                deleted += self.delete_some(step, timeout=timeout)
                tell(done)
        return deleted

    # -- sharing

    def share(self, key: str, user: str, *, write: bool = False, is_prefix: bool = False) -> None:
        """Lets `user` ("all": everybody) read your value under `key`; with `write` also replace and delete it.

        is_prefix: shares all values that you have, now or later, under keys that begin with `key`; other users' values there stay theirs.
        Raises: UsageError in an open cluster, where values have no owners, and above 10,000 shares with one user; StoreUnavailable.
        Cost: lists what you share with that user.
        """
        deeds = self._deeds_or_refuse()
        share = self._share(deeds, key, user, write=write, is_prefix=is_prefix)
        there = self._store.keys(keys.shares_of(share.owner, share.user), limit=rights.MOST_SHARES)
        if len(there) >= rights.MOST_SHARES and share.row not in there:
            raise UsageError(
                f"you share {rights.MOST_SHARES:,} keys and prefixes with {user} already, the most that counts",
                hint="share a prefix of many keys: rmgr store share --prefix",
            )
        deeds.put_share(self._store, share)

    def unshare(self, key: str, user: str, *, is_prefix: bool = False) -> bool:
        """Takes back a `share` of the same key (or prefix) and user; True if it existed. Takes effect within 2 s."""
        deeds = self._deeds_or_refuse()
        deeds.forget_shares()
        return self._store.delete(self._share(deeds, key, user, is_prefix=is_prefix).row)

    def shares(self) -> list[ValueShare]:
        """Returns what you share, and what others share with you, by owner and key. Cost: one read per share."""
        deeds = self._deeds_or_refuse()
        mine, told = {deeds.me.name, rights.ALL}, deeds.read_shares(self._store)
        seen = (one for one in told if deeds.me.is_free or one.owner == deeds.me.name or one.user in mine)
        return sorted(seen, key=lambda one: (one.owner, one.key, one.user))

    def adopt(self, key: str, owner: str, *, only_nobodys: bool = False, timeout: float = 30.0) -> bool:
        """Gives the value of `key` to `owner` ("" = yourself), as an operator; with `only_nobodys` only if it has no owner. True if done.

        Raises: PermissionDenied, NotFound. Cost: writes the value again.
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

    def _share(self, deeds: Deeds, key: str, user: str, *, write: bool = False, is_prefix: bool = False) -> ValueShare:
        whom = rights.ALL if user == rights.TRUST_ANYBODY else check_name(user)
        return ValueShare(owner=deeds.me.name, user=whom, key=keys.check_user_key(key), is_prefix=is_prefix, write=write)

    def keys(self, prefix: str = "", *, timeout: float = 30.0) -> list[str]:
        """Returns the keys that begin with `prefix` and have a value now, sorted. Cost: one look at each output key of a task."""
        return list(self.iterate(prefix, timeout=timeout))

    def iterate(self, prefix: str = "", *, timeout: float = 30.0) -> Iterator[str]:
        """Yields the same keys as `keys`, one by one."""
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
        """Returns whether there is a value under `key` now."""
        return self._has_value(keys.named(key), timeout)

    # -- output keys

    def claim_outputs(self, outputs: Iterable[tuple[str, Pointer]], *, overwrite: bool, timeout: float = 30.0) -> None:
        """Writes pointers under output keys, before their task is submitted.

        Raises: KeyExists naming a key that has a value, or that another live task will write; PermissionDenied naming one that is
            another user's. A key whose task ended without a result, or was never submitted, is free for its owner.
        """
        for error in self.claim_pointers(list(outputs), overwrite=overwrite, timeout=timeout).values():
            raise error

    def claim_pointers(
        self,
        wanted: Sequence[tuple[str, Pointer]],
        *,
        overwrite: bool,
        decided: Callable[[], None] | None = None,
        timeout: float = 30.0,
    ) -> dict[int, RmgrError]:
        """Calls `procedures.output_keys.claim_pointers`, and remembers the keys as taken."""
        refused = claim_pointers(self, wanted, overwrite=overwrite, decided=decided, timeout=timeout)
        self.seen.add(key for key, _ in wanted)
        return refused

    def check_free(self, key: str, *, timeout: float = 30.0) -> None:
        """Raises KeyExists if the output key has a value or a live task will write it; PermissionDenied if it is another user's."""
        for error in look(self, [(key, None)], overwrite=False, timeout=timeout).refused.values():
            raise error

    @property
    def user(self) -> Person | None:
        """The user that claims output keys; None in an open cluster."""
        return self.deeds.me if self.deeds is not None else None

    def pointer_notes(self, rows: Sequence[tuple[str, bytes]]) -> tuple[bytes, ...]:
        """Returns deeds of pointers to be written under free keys, or over the user's own; () in an open cluster."""
        if self.deeds is None:
            return ()
        return tuple(self.deeds.notes([(row, sha256(data).digest(), "") for row, data in rows], Encoding.POINTER))

    @property
    def begins_writes(self) -> bool:
        """Whether the store supports `begin_pointers`."""
        return self._store.puts_soon

    def begin_pointers(
        self,
        rows: Sequence[tuple[str, bytes]],
        notes: Sequence[bytes],
        *,
        decided: Callable[[], None],
        done: Callable[[RmgrError | None], None],
    ) -> bool:
        """Begins to write pointers under new keys, with deeds from `pointer_notes`; see `Store.put_soon`."""
        return self._store.put_soon(rows, encoding=Encoding.POINTER, notes=notes, done=done, overwrite=False, decided=decided)

    def noted(self, rows: Sequence[str], *, largest: int, timeout: float = 30.0) -> dict[str, tuple[bytes | None, About]]:
        """Calls `Store.get_noted_many`."""
        return self._store.get_noted_many(rows, largest=largest, timeout_s=timeout)

    def about(self, rows: Sequence[str], *, timeout: float = 30.0) -> dict[str, About]:
        """Calls `Store.about_many`."""
        return self._store.about_many(rows, timeout_s=timeout) if rows else {}

    def write_pointers(
        self,
        rows: Sequence[tuple[str, bytes]],
        *,
        overwrite: bool = True,
        owners: Mapping[str, Holder | None] = _NOBODYS,
        replaces: Mapping[str, bytes] = NOTHING,
        decided: Callable[[], None] | None = None,
        timeout: float = 30.0,
    ) -> None:
        """Writes pointers as `write_rows` does."""
        self.write_rows(rows, Encoding.POINTER, overwrite=overwrite, owners=owners, replaces=replaces, decided=decided, timeout=timeout)

    def write_rows(
        self,
        rows: Sequence[tuple[str, bytes]],
        encoding: Encoding,
        *,
        overwrite: bool,
        owners: Mapping[str, Holder | None] = _NOBODYS,
        replaces: Mapping[str, bytes] = NOTHING,
        decided: Callable[[], None] | None = None,
        timeout: float,
    ) -> None:
        """Writes rows with their deeds by `Store.put_many`. owners: owners of rows that belong to others and are shared for writing."""
        beside: dict[str, Any] = {"replaces": replaces} if replaces else {}
        if decided is not None:
            beside["decided"] = decided
        if self.deeds is not None:
            told = [(row, sha256(data).digest(), holder.owner if (holder := owners.get(row)) else "") for row, data in rows]
            beside["notes"] = self.deeds.notes(told, encoding)
        self._store.put_many(rows, encoding=encoding, overwrite=overwrite, timeout_s=timeout, **beside)

    def _has_value(self, name: str, timeout: float) -> bool:
        there = self.noted([name], largest=keys.POINTER_BYTES, timeout=timeout)
        if name not in there:
            return False
        data, about = there[name]
        if about.encoding is not Encoding.POINTER:
            return True
        if data is None:  # a pointer is never that large
            return False
        pointer = keys.decode_pointer(data)
        try:
            state = self.fates.fate(pointer, timeout)
        except PermissionDenied:  # a gateway tells nobody about others' submissions, but it fetches what they share
            return self._is_led and self._store.head(keys.led(keys.user_key(name)), timeout_s=timeout) is not None
        return state is State.COMPLETED or (state == "gone" and self._store.head(keys.final(pointer), timeout_s=timeout) is not None)

    def _read_pointed(self, key: str, pointer: Pointer, holder: Holder, timeout: float) -> tuple[bytes, Encoding] | None:
        """Returns the output behind another user's pointer, found by the gateway."""
        found = self._store.get_noted(keys.led(key), timeout_s=timeout)
        return None if found is None else self.believed(key, self._origin(key, pointer, found[1]), found, holder)

    def _origin(self, key: str, pointer: Pointer, about: About) -> str:
        """Returns the row of an output that its deed names. Raises DataLost if that is not an output of `pointer`."""
        deed = rights.deed_of(about)
        row = deed.row if deed is not None else ""
        if not keys.is_output_of(row, pointer):
            raise DataLost(f"the gateway has sent another value than that of {key!r}", hint="read it again; rmgr doctor")
        return row

    def believed(self, key: str, row: str, found: tuple[bytes, About], holder: Holder) -> tuple[bytes, Encoding]:
        """Returns an output with its encoding. Raises DataLost unless a deed proves it; PermissionDenied if its owner is another user."""
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
        return None if found is None else self.believed(key, row, found, holder)

    def _follow(
        self, key: str, pointer: Pointer, data: bytes, lenient: bool, timeout: float, holder: Holder | None = None
    ) -> tuple[bytes, Encoding] | None:
        """Returns the output behind a pointer. holder: owner of the pointer; None in an open cluster."""
        task = f"{pointer.sub}_{pointer.index}"
        state = self.fates.fate(pointer, timeout)
        if state is State.COMPLETED:
            row = keys.output(pointer.sub, pointer.index, self.fates.attempt(pointer), pointer.n)
            found = self._output(key, row, holder, timeout) or self._output(key, keys.final(pointer), holder, timeout)
            if found is None:
                now = self._store.get(keys.named(key), timeout_s=timeout)
                if now is None or now[0] != data:  # replaced meanwhile
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


def encoded(key: str, value: Any) -> tuple[Encoding, Payload]:
    """Returns a value as it is stored. Raises PickleFailed, ValueTooLarge."""
    return (Encoding.RAW, value) if isinstance(value, bytes) else (Encoding.PICKLE, dump_value(value, f"the value for {key!r}"))


def _pointer(key: str, data: bytes | None, about: About) -> Pointer:
    if data is None:
        raise DataLost(f"the pointer under the key {key!r} has {about.size:,} bytes", hint="rmgr store rm, or have a task write it again")
    return keys.decode_pointer(data)


# -- many at once: in steps of bounded size; owners are checked for each key, as for a single one ------------------------------


# A step that fails because of some keys falls back to single keys.


def _steps(pairs: Iterable[tuple[str, Any]]) -> Iterator[dict[str, tuple[Encoding, bytes]]]:
    step: dict[str, tuple[Encoding, bytes]] = {}
    size = 0
    for key, value in pairs:
        encoding, data = encoded(keys.check_new_key(key), value)
        made = encoding, content.whole([data])[0]
        if step and (len(step) >= _PUT_VALUES or size + len(made[1]) > _PUT_BYTES or key in step):
            yield step
            step, size = {}, 0
        step[key] = made
        size += len(made[1])
    if step:
        yield step


def _put(values: Values, given: Mapping[str, bytes], encoding: Encoding, *, overwrite: bool, timeout: float) -> None:
    rows = {keys.named(key): data for key, data in given.items()}
    if values.deeds is None:
        values.write_rows(list(rows.items()), encoding, overwrite=overwrite, timeout=timeout)
        return
    there = values.about(list(rows), timeout=timeout) if overwrite else {}
    owners = {row: values.check_writable(keys.user_key(row), about) for row, about in there.items()}
    free = [(row, data) for row, data in rows.items() if row not in there]
    if free:
        try:
            values.write_rows(free, encoding, overwrite=False, timeout=timeout)
        except KeyExists:
            for row, about in values.about([row for row, _ in free], timeout=timeout).items():
                values.check_writable(keys.user_key(row), about)
            if not overwrite:
                raise
            for row, data in free:  # another client wrote meanwhile: look at each key now
                values.put_row(keys.user_key(row), encoding, data, overwrite=True, timeout=timeout)
    if there:
        values.write_rows([(row, rows[row]) for row in there], encoding, overwrite=True, owners=owners, timeout=timeout)


def _get(values: Values, wanted: Sequence[str], timeout: float) -> dict[str, tuple[bytes, Encoding, Holder]]:
    """Returns bytes, their encoding and their owner by key. Follows all pointers together."""
    found: dict[str, tuple[bytes, Encoding, Holder]] = {}
    pointers: dict[str, tuple[Pointer, Holder]] = {}
    there = values.noted([keys.named(key) for key in wanted], largest=MAX_VALUE_BYTES, timeout=timeout)
    for key in wanted:
        data, about = there.get(keys.named(key), (None, None))
        if data is None or about is None:
            continue
        holder = values.check_readable(key, about)
        if about.encoding is Encoding.POINTER:
            pointers[key] = keys.decode_pointer(data), holder
        else:
            found[key] = data, about.encoding, holder
    rows, others = _rows(values, {key: pointer for key, (pointer, _) in pointers.items()}, timeout)
    outputs = values.noted(list(rows.values()), largest=MAX_VALUE_BYTES, timeout=timeout) if rows else {}
    for key, row in rows.items():
        data, about = outputs.get(row, (None, None))
        if data is None or about is None:
            others.append(key)
            continue
        holder = pointers[key][1]
        found[key] = (*values.believed(key, row, (data, about), holder), holder) if values.deeds else (data, about.encoding, holder)
    for key in others:
        one, holder = values.read(key, True, timeout)
        if one is not None:
            found[key] = *one, holder
    return found


def _rows(values: Values, pointers: Mapping[str, Pointer], timeout: float) -> tuple[dict[str, str], list[str]]:
    """Returns the rows of values whose tasks have completed, and the keys whose values, if any, must be read one by one."""
    rows: dict[str, str] = {}
    others: list[str] = []
    for (key, pointer), fate in zip(pointers.items(), values.fates.fates(pointers.values(), timeout), strict=True):
        if fate is State.COMPLETED:
            rows[key] = keys.output(pointer.sub, pointer.index, values.fates.attempt(pointer), pointer.n)
        elif fate in {"gone", "denied"}:
            others.append(key)
    return rows, others


def _parts(wanted: Iterable[str], size: int) -> Iterator[tuple[int, list[str]]]:
    """Yields (keys so far including this part, the part)."""
    rest, done = iter(wanted), 0
    while part := list(islice(rest, size)):
        done += len(part)
        yield done, part


@contextmanager
def _progress_of(doing: str, of: object, progress: Progress) -> Iterator[Callable[[int], None]]:
    total = len(of) if isinstance(of, Sized) else 0
    if callable(progress):
        yield lambda done: progress(done, total)
        return
    from rmgr.client.progress import ProgressDisplay

    with ProgressDisplay(f"store.{doing}_many", enabled=progress) as display:
        yield lambda done: display.tell(done, max(total, done))


class AskedFates:
    """A `FatesPort` that asks the cluster what became of the tasks behind pointers, and remembers final states. Thread-safe."""

    def __init__(self, asks: Asks) -> None:
        self._asks = asks
        self._known: OrderedDict[Pointer, FateRead] = OrderedDict()
        self._lock = threading.Lock()

    def fate(self, pointer: Pointer, timeout: float) -> State | str:
        """See `FatesPort`."""
        (found,) = self.fates([pointer], timeout)
        if found == "denied":
            message = f"it is not yours to know what became of task {pointer.sub}_{pointer.index}"
            raise PermissionDenied(message, hint="its owner or an operator may do that: ask an operator")
        return found

    def fates(self, pointers: Iterable[Pointer], timeout: float) -> list[State | str]:
        """See `FatesPort`. Cost: one question per 1,000 pointers whose tasks are not known to have ended."""
        wanted = list(pointers)
        with self._lock:
            missing = [pointer for pointer in dict.fromkeys(wanted) if pointer not in self._known]
        found: dict[Pointer, FateRead] = {}
        for at in range(0, len(missing), MOST_POINTERS):
            some = tuple(missing[at : at + MOST_POINTERS])
            told = self._asks.ask(ReadFates(pointers=some), timeout_s=timeout)
            found |= dict(zip(some, told, strict=True))
        with self._lock:
            answers = [_state_of(found.get(pointer) or self._known[pointer]) for pointer in wanted]
            self._known.update((pointer, read) for pointer, read in found.items() if isinstance(_state_of(read), State))
            while len(self._known) > _MOST_FATES:
                self._known.popitem(last=False)
        return answers

    def attempt(self, pointer: Pointer) -> int:
        """See `FatesPort`."""
        with self._lock:
            known = self._known.get(pointer)
        return known.attempt if known is not None else 1


def _state_of(read: FateRead) -> State | str:
    return State(read.fate) if read.fate in State.__members__.values() else read.fate
