"""Values by name: what a user put under a key, or what a task wrote to its output key.

An output key holds a pointer from the moment its task is submitted; `get` follows it to the committed attempt, so that
bytes of a lost or repeated attempt are never read. Which attempt was committed is remembered per submission and read on
from where the last look ended.

In a secured cluster each value has an owner, who put it first (`procedures/deeds.py`): others read what the owner shares, and replace
or delete what is shared for writing. What others have pickled is loaded only for callers who say that they trust them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from rmgr.client.values.pickling import dump_value
from rmgr.client.values.results import load
from rmgr.client.values.scattered import Payload, Scattered
from rmgr.client.values.seen import SeenKeys
from rmgr.coord.decisions import ownership
from rmgr.coord.decisions.ownership import Holder, ValueShare
from rmgr.coord.decisions.rights import Person
from rmgr.coord.protocol import keys
from rmgr.coord.protocol.keys import Pointer
from rmgr.coord.protocol.ports import NOTHING, About, Encoding, Note, Store
from rmgr.errors import DataLost, KeyExists, NotFound, PermissionDenied, RmgrError, StateConflict, UsageError
from rmgr.model.base.states import State
from rmgr.model.cluster.identity import check_name
from rmgr.procedures.fates import Fates, FatesPort

if TYPE_CHECKING:
    from rmgr.procedures.deeds import Deeds

_NOTHING: Any = object()
_NOBODYS: Mapping[str, Holder | None] = {}


def encoded(key: str, value: Any) -> tuple[Encoding, Payload]:
    """A value as it is stored. Raises PickleFailed, ValueTooLarge."""
    return (Encoding.RAW, value) if isinstance(value, bytes) else (Encoding.PICKLE, dump_value(value, f"the value for {key!r}"))


class StoredValues:
    """`connect().store`: put, get, delete, keys. Thread-safe.

    Bytes are stored as they are, any other object pickled. Values have at most 5 GiB and are immutable: putting a key again
    replaces the whole value in one step. fates: None: every submission is gone. deeds: None in an open cluster, where values are
    everybody's.
    """

    def __init__(self, store: Store, fates: FatesPort | None, deeds: Deeds | None = None) -> None:
        self._store = store
        self.deeds = deeds
        self.fates: FatesPort = fates or Fates(store, None)
        self.seen = SeenKeys()
        self._is_led: bool = getattr(store, "leads", False)

    def put(self, key: str, value: Any, *, overwrite: bool = True, timeout: float = 30.0) -> None:
        """Stores `value` under `key`, which is yours from then on unless it is somebody's.

        Raises: KeyExists (overwrite=False), PermissionDenied (somebody else's), PickleFailed, ValueTooLarge, StoreUnavailable.
        """
        self.put_row(key, *encoded(key, value), overwrite=overwrite, timeout=timeout)
        self.seen.add([key])

    def put_row(self, key: str, encoding: Encoding, data: Payload, *, overwrite: bool, timeout: float) -> None:
        """As `put`, of what is pickled already."""

        row, whole = keys.named(key), data.parts if isinstance(data, Scattered) else data

        def write(overwrite: bool, note: Note) -> None:
            beside: dict[str, Any] = {"note": note} if note else {}
            self._store.put(row, whole, encoding=encoding, overwrite=overwrite, timeout_s=timeout, **beside)

        self.put_owned(key, encoding, write, overwrite=overwrite, timeout=timeout)

    def put_owned(self, key: str, encoding: Encoding, write: Callable[[bool, Note], None], *, overwrite: bool, timeout: float) -> None:
        """Has `write(overwrite, note)` write a value with the right deed, unless the key is somebody else's."""
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
        """The value under `key`.

        Args:
            trust: users whose pickles are loaded beside your own ("all": anybody's): that runs what they wrote, as you.
        Raises: NotFound when there is none (or `default` is returned); StateConflict when the task that will write it has
            not ended; PermissionDenied when it is somebody else's, or their pickle; DataLost, PickleFailed, StoreUnavailable.
        """
        found, holder = self.read(key, default is not _NOTHING, timeout)
        if found is None:
            if default is not _NOTHING:
                return default
            raise NotFound(f"there is no value under the key {key!r}", hint="rmgr store ls lists the keys")
        if found[1] is Encoding.PICKLE and self.deeds is not None:
            self.deeds.check_pickle(key, holder, ownership.trusted(trust))
        return load(found[0], found[1], f"the value under {key!r}")

    def read(self, key: str, lenient: bool, timeout: float) -> tuple[tuple[bytes, Encoding] | None, Holder]:
        """The bytes under a key, and whose they are. lenient: None when there are none yet, or never. Raises: as `get`."""
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
        """The row that holds the value of `key`, and what was signed of it; for callers who read it themselves. Secured clusters only.

        Args: find: the row of a pointer's output. Raises: NotFound, PermissionDenied, DataLost, what `find` raises.
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
            raise DataLost(f"the output {key!r} of task {pointer.sub}_{pointer.index} is missing from the store (row {row})")
        self.believed(key, self._origin(key, pointer, found) if is_led else row, (b"", found), holder)
        return row, found

    def check_input(self, key: str, *, trust: Collection[str] = (), timeout: float = 30.0) -> None:
        """Raises PermissionDenied when a task of yours may not have the value of `key`, or would load somebody else's pickle."""
        row = keys.named(key)
        if self.deeds is None or (about := self._store.about(row, timeout_s=timeout)) is None:
            return
        holder = self.deeds.check_read(self._store, key, row, about)
        if about.encoding is Encoding.PICKLE:
            ownership.check_pickle(self.deeds.me, key, holder, trust, how=ownership.HOW_TO_TRUST)

    def check_mine(self, key: str, *, timeout: float = 30.0) -> Holder | None:
        """Raises PermissionDenied when the key is somebody else's. Returns whose it is, None where nobody asks, or nothing is there."""
        row = keys.named(key)
        about = self._store.about(row, timeout_s=timeout) if self.deeds is not None else None
        return None if about is None else self.check_writable(key, about)

    def check_writable(self, key: str, about: About) -> Holder | None:
        """The same, of what was found there."""
        return None if self.deeds is None else self.deeds.check_write(self._store, key, keys.named(key), about)

    def check_readable(self, key: str, about: About) -> Holder:
        """Whose it is. Raises PermissionDenied unless it may be read; about: what was found there."""
        return Holder() if self.deeds is None else self.deeds.check_read(self._store, key, keys.named(key), about)

    def delete(self, key: str, *, timeout: float = 30.0) -> bool:
        """Makes the key absent; True if there was a value (or a task that will write one). Raises PermissionDenied: somebody else's."""
        self.check_mine(key, timeout=timeout)
        self.seen.forget([key])
        return self._store.delete(keys.named(key), timeout_s=timeout)

    def delete_some(self, some: Sequence[str], *, timeout: float) -> int:
        """Up to 1,000 keys in one step. Raises PermissionDenied: one is somebody else's, and none was deleted."""
        rows = [keys.named(key) for key in some]
        if self.deeds is not None:
            for row, about in self.about(rows, timeout=timeout).items():
                self.check_writable(keys.user_key(row), about)
        self.seen.forget(some)
        return len(self._store.delete_many(rows, timeout_s=timeout))

    # -- sharing

    def share(self, key: str, user: str, *, write: bool = False, is_prefix: bool = False) -> None:
        """Lets `user` ("all": everybody) read your value under `key`, with `write` replace and delete it, too.

        is_prefix: all that you have, and will have, under keys that begin with `key`. Values of others under them stay theirs.
        Raises: UsageError in an open cluster, where values are everybody's, and above 10,000 for one user; StoreUnavailable.
        Cost: a listing of what you share with that user.
        """
        deeds = self._deeds_or_refuse()
        share = self._share(deeds, key, user, write=write, is_prefix=is_prefix)
        there = self._store.keys(keys.shares_of(share.owner, share.user), limit=ownership.MOST_SHARES)
        if len(there) >= ownership.MOST_SHARES and share.row not in there:
            raise UsageError(
                f"you share {ownership.MOST_SHARES:,} keys and prefixes with {user} already, the most that counts",
                hint="share a prefix of many keys: rmgr store share --prefix",
            )
        deeds.put_share(self._store, share)

    def unshare(self, key: str, user: str, *, is_prefix: bool = False) -> bool:
        """Takes back what `share` has said of the same key (or prefix) and user; True if it was there. Counts within 2 s."""
        deeds = self._deeds_or_refuse()
        deeds.forget_shares()
        return self._store.delete(self._share(deeds, key, user, is_prefix=is_prefix).row)

    def shares(self) -> list[ValueShare]:
        """What you share, and what others share with you, by owner and key. Cost: a read each."""
        deeds = self._deeds_or_refuse()
        mine, told = {deeds.me.name, ownership.ALL}, deeds.read_shares(self._store)
        seen = (one for one in told if deeds.me.is_free or one.owner == deeds.me.name or one.user in mine)
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

    def _share(self, deeds: Deeds, key: str, user: str, *, write: bool = False, is_prefix: bool = False) -> ValueShare:
        whom = ownership.ALL if user == ownership.ANYBODY else check_name(user)
        return ValueShare(owner=deeds.me.name, user=whom, key=keys.check_user_key(key), is_prefix=is_prefix, write=write)

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

    @property
    def user(self) -> Person | None:
        """Who claims output keys; None in an open cluster."""
        return self.deeds.me if self.deeds is not None else None

    def pointer_notes(self, rows: Sequence[tuple[str, bytes]]) -> tuple[bytes, ...]:
        """Deeds of pointers that are written under free keys, or where one's own stand; none in an open cluster."""
        if self.deeds is None:
            return ()
        return tuple(self.deeds.notes([(row, sha256(data).digest(), "") for row, data in rows], Encoding.POINTER))

    @property
    def begins_writes(self) -> bool:
        """`begin_pointers` is worth asking for."""
        return self._store.puts_soon

    def begin_pointers(
        self,
        rows: Sequence[tuple[str, bytes]],
        notes: Sequence[bytes],
        *,
        decided: Callable[[], None],
        done: Callable[[RmgrError | None], None],
    ) -> bool:
        """Begins to write pointers under new keys, with deeds of `pointer_notes`; see `Store.put_soon`."""
        return self._store.put_soon(rows, encoding=Encoding.POINTER, notes=notes, done=done, overwrite=False, decided=decided)

    def noted(self, rows: Sequence[str], *, largest: int, timeout: float = 30.0) -> dict[str, tuple[bytes | None, About]]:
        """As `Store.get_noted_many`."""
        return self._store.get_noted_many(rows, largest=largest, timeout_s=timeout)

    def about(self, rows: Sequence[str], *, timeout: float = 30.0) -> dict[str, About]:
        """As `Store.about_many`."""
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
        """As `write_rows`, of pointers."""
        self.write_rows(
            rows, Encoding.POINTER, overwrite=overwrite, owners=owners, replaces=replaces, decided=decided, timeout=timeout
        )

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
        """Rows with their deeds, as `Store.put_many`. owners: of rows that are somebody else's, who lets us write them."""
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
        if data is None:  # it leads nowhere
            return False
        pointer = keys.decode_pointer(data)
        try:
            state = self.fates.fate(pointer, timeout)
        except PermissionDenied:  # a gateway shows nobody what others submitted; what they share it fetches itself
            return self._is_led and self._store.head(keys.led(keys.user_key(name)), timeout_s=timeout) is not None
        return state is State.COMPLETED or (state == "gone" and self._store.head(keys.final(pointer), timeout_s=timeout) is not None)

    def _led(self, key: str, pointer: Pointer, holder: Holder, timeout: float) -> tuple[bytes, Encoding] | None:
        """What somebody else's pointer leads to, found by the gateway."""
        found = self._store.get_noted(keys.led(key), timeout_s=timeout)
        return None if found is None else self.believed(key, self._origin(key, pointer, found[1]), found, holder)

    def _origin(self, key: str, pointer: Pointer, about: About) -> str:
        """The row of an output, as its deed says it."""
        deed = ownership.deed_of(about)
        row = deed.row if deed is not None else ""
        if not keys.is_output_of(row, pointer):
            raise DataLost(f"the gateway has sent another value than that of {key!r}", hint="read it again; rmgr doctor")
        return row

    def believed(self, key: str, row: str, found: tuple[bytes, About], holder: Holder) -> tuple[bytes, Encoding]:
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
        return None if found is None else self.believed(key, row, found, holder)

    def _follow(
        self, key: str, pointer: Pointer, data: bytes, lenient: bool, timeout: float, holder: Holder | None = None
    ) -> tuple[bytes, Encoding] | None:
        """The output behind a pointer. holder: of the pointer; None in an open cluster."""
        task = f"{pointer.sub}_{pointer.index}"
        state = self.fates.fate(pointer, timeout)
        if state is State.COMPLETED:
            row = keys.output(pointer.sub, pointer.index, self.fates.attempt(pointer), pointer.n)
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


def _pointer(key: str, data: bytes | None, about: About) -> Pointer:
    if data is None:
        raise DataLost(f"the pointer under the key {key!r} has {about.size:,} bytes", hint="rmgr store rm, or have a task write it again")
    return keys.decode_pointer(data)
