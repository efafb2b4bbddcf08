"""The data store as one client of a gateway may use it: values by name have owners (`decisions/ownership.py`), whatever it does.

Everything but `name/`, `share/`, `final/` and `led/` passes through: `rows.py` has said before what he may do there. What
he puts is his own and carries his own deed; a free name is taken in one step with the look whether it is free.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from hashlib import sha256
from typing import Any

from rmgr.adapters.access.auth import Caller
from rmgr.coord.decisions import ownership
from rmgr.coord.decisions.ownership import Holder
from rmgr.coord.decisions.rights import Person, check_operator
from rmgr.coord.protocol import keys as names
from rmgr.coord.protocol.ports import About, Encoding, Note, Store
from rmgr.daemons.gateway.rows import OwnerOf, check_content, check_rows, submission_of_row, visible
from rmgr.daemons.service.people import audited, person_of
from rmgr.daemons.starter.staging.inputs import Inputs
from rmgr.errors import NotFound, PermissionDenied
from rmgr.procedures.deeds import Deeds
from rmgr.runtime.logger import Log

#: Writes a line of audit for what is refused: (verb, row).
Audited = Callable[[str, str], AbstractContextManager[None]]
_NAMED, _SHARED, _FINAL = "name", "share", "final"
_PAGE = 1000


class OwnedStore(Store):
    """A `Store` for one person of a secured cluster. Raises PermissionDenied, audited, beside what the store raises.

    Args: inputs: finds what pointers lead to. owner_of: whose submission a number is.
    """

    def __init__(self, store: Store, person: Person, deeds: Deeds, inputs: Inputs, owner_of: OwnerOf, audited: Audited) -> None:
        self._store = store
        self._person = person
        self._deeds = deeds
        self._inputs = inputs
        self._owner_of = owner_of
        self._audited = audited

    # -- writing

    def put(
        self,
        key: str,
        value: bytes | Iterable[bytes | memoryview],
        *,
        encoding: Encoding = Encoding.RAW,
        overwrite: bool = True,
        note: Note = b"",
        **how: Any,
    ) -> None:
        """See `Store.put`."""
        if names.family(key) not in {_NAMED, _SHARED}:
            self._store.put(key, value, encoding=encoding, overwrite=overwrite, note=note, **how)
            return
        with self._audited("PUT", key):
            held = self._writable(key, self._store.about(key))

            def checked(digest: bytes) -> bytes:
                made = note if isinstance(note, bytes) else note(digest)
                self._check_deed(key, encoding, digest, made, held)
                return made

            self._store.put(key, value, encoding=encoding, overwrite=overwrite and held is not None, note=checked, **how)

    def put_many(
        self,
        rows: Sequence[tuple[str, bytes]],
        *,
        encoding: Encoding = Encoding.RAW,
        overwrite: bool = True,
        notes: Sequence[bytes] = (),
        **how: Any,
    ) -> None:
        """See `Store.put_many`. Rows under free names go first: in one step they are there, or none is."""
        owned = [key for key, _ in rows if names.family(key) in {_NAMED, _SHARED}]
        if not owned:
            self._store.put_many(rows, encoding=encoding, overwrite=overwrite, notes=notes, **how)
            return
        with self._audited("PUT", owned[0]):
            there = self._store.about_many(owned)
            free: list[tuple[tuple[str, bytes], bytes]] = []
            other: list[tuple[tuple[str, bytes], bytes]] = []
            for (key, value), note in zip(rows, notes or (b"",) * len(rows), strict=True):
                if names.family(key) not in {_NAMED, _SHARED}:
                    other.append(((key, value), note))
                    continue
                held = self._writable(key, there.get(key))
                self._check_deed(key, encoding, sha256(value).digest(), note, held)
                (free if held is None else other).append(((key, value), note))
            for some, again in ((free, False), (other, overwrite)):
                if some:
                    told = {"encoding": encoding, "overwrite": again, "notes": [note for _, note in some], **how}
                    self._store.put_many([row for row, _ in some], **told)

    def delete_many(self, keys: Sequence[str], **how: Any) -> list[str]:
        """See `Store.delete_many`. One that he may not delete refuses them all."""
        self._check_deleted(keys)
        return self._store.delete_many(keys, **how)

    def _check_deleted(self, wanted: Sequence[str]) -> None:
        there = self._store.about_many([key for key in wanted if names.family(key) in {_NAMED, _SHARED, _FINAL}])
        for key in wanted:
            with self._audited("DELETE", key):
                if names.family(key) in {_NAMED, _SHARED}:
                    self._writable(key, there.get(key))
                elif names.family(key) == _FINAL:
                    self._check_final(key, there.get(key))

    def _writable(self, key: str, about: About | None) -> Holder | None:
        """Whose the value there is; None: the name is free. Raises PermissionDenied when he may not replace it."""
        person = self._person
        if names.family(key) == _SHARED:
            owner, _ = names.parse_share(key)
            if not (person.is_free or person.owns(owner)):
                raise PermissionDenied(f"{owner} says whom {owner}'s values are shared with", hint="share your own: rmgr store share")
            return Holder(owner=owner)
        return None if about is None else self._deeds.check_write(self._store, names.user_key(key), key, about, person)

    def _check_deed(self, key: str, encoding: Encoding, digest: bytes, note: bytes, held: Holder | None) -> None:
        """What he puts he has signed, for whom it belongs to."""
        found = self._deeds.holder(self._store, key, About(0, encoding, digest, note))
        owner = held.owner if held is not None and held.owner else self._person.name
        is_adopting = self._person.is_operator and bool(found.owner)
        if found.writer != self._person.name or (found.owner != owner and not is_adopting):
            why = found.why or f"its deed says that {found.writer} wrote it for {found.owner}"
            raise PermissionDenied(f"{key!r} cannot be put by {self._person.name}: {why}", hint="is the client older? rmgr version")

    def _check_final(self, key: str, about: About | None) -> None:
        if about is None or self._person.is_free:
            return
        number = submission_of_row(key)
        deed = ownership.deed_of(about)
        owner = self._deeds.holder(self._store, key, about).owner if deed is not None else self._owner_of(number or 0)
        if not self._person.owns(owner):
            raise PermissionDenied(f"{key!r} belongs to {owner or 'nobody'}", hint="ask its owner to share it: rmgr store share")

    # -- reading

    def _row(self, key: str) -> str:
        """The row that he means, if he may have it. Raises also NotFound: nothing is there yet."""
        name = names.parse_led(key)
        if name is None:
            if names.family(key) == _NAMED:
                self._readable(key, self._store.about(key))
            elif names.family(key) == _FINAL:
                self._check_final(key, self._store.about(key))
            return key
        row = names.named(name)
        about = self._store.about(row)
        holder = self._readable(row, about)
        if about is None or holder is None:
            raise NotFound(f"there is no value under the key {name!r}", hint="rmgr store ls lists the keys")
        if about.encoding is not Encoding.POINTER:
            return row
        row = self._inputs.rows(self._store, [name])[0]
        found = self._store.about(row)
        its = self._deeds.holder(self._store, row, found) if found is not None else Holder()
        if not its.owner or its.owner not in (holder.owner, holder.writer):
            raise PermissionDenied(f"{name!r} belongs to {holder.owner}, and points to what {its.told}")
        return row

    def _readable(self, row: str, about: About | None) -> Holder | None:
        """Whose it is. Whether the bytes are to be believed his client asks: who may not read them must be able to replace them."""
        if about is None:
            return None
        look = self._deeds.look(self._store, row, about, self._person)
        ownership.check_seen(look, names.user_key(row))
        return look.holder

    def get_noted(self, key: str, **how: Any) -> tuple[bytes, About] | None:
        """See `Store.get_noted`. What is sent is what was looked at, also when it is replaced meanwhile."""
        with self._audited("GET", key):
            if names.family(key) != _NAMED:
                return self._store.get_noted(self._row(key), **how)
            found = self._store.get_noted(key, **how)
            self._readable(key, None if found is None else found[1])
            return found

    def get_noted_many(self, keys: Sequence[str], **how: Any) -> dict[str, tuple[bytes | None, About]]:
        """See `Store.get_noted_many`. What is sent is what was looked at, also when it is replaced meanwhile."""
        rows: dict[str, str] = {}
        for key in keys:
            rows[key] = key
            if names.parse_led(key) is not None:
                with self._audited("GET", key):
                    rows[key] = self._row(key)
        there = self._store.get_noted_many(list(rows.values()), **how)
        found = {key: there[row] for key, row in rows.items() if row in there}
        for key, (_, about) in found.items():
            self._check_seen(key, about)
        return found

    def stream(self, key: str, **how: Any) -> Iterator[bytes] | None:
        """See `Store.stream`."""
        with self._audited("GET", key):
            return self._store.stream(self._row(key), **how)

    def about_many(self, keys: Sequence[str], **how: Any) -> dict[str, About]:
        """See `Store.about_many`: the hash of what he may not read would tell him what it is."""
        led = [key for key in keys if names.parse_led(key) is not None]
        found = self._store.about_many([key for key in keys if names.parse_led(key) is None], **how)
        for key, about in found.items():
            self._check_seen(key, about)
        for key in led:
            with self._audited("GET", key):
                there = self._store.about(self._row(key), **how)
                if there is not None:
                    found[key] = there
        return found

    def _check_seen(self, key: str, about: About) -> None:
        """Raises PermissionDenied, audited, unless he may have what lies under `key`."""
        with self._audited("GET", key):
            if names.family(key) == _NAMED:
                self._readable(key, about)
            elif names.family(key) == _FINAL:
                self._check_final(key, about)

    # -- lists

    def keys(self, prefix: str = "", **how: Any) -> list[str]:
        """See `Store.keys`; `listed` leaves out what he does not see."""
        return self._store.keys(prefix, **how)

    def listed(self, rows: Sequence[str]) -> list[str]:
        """Those of `rows` that he is told of: of others' values those that are shared with him. What deeds say is not verified here."""
        if self._person.is_free:
            return list(rows)
        there = self._store.about_many([row for row in rows if names.family(row) == _NAMED])
        return [row for row in rows if names.family(row) != _NAMED or (row in there and self._is_listed(row, there[row]))]

    def _is_listed(self, row: str, about: About) -> bool:
        deed = ownership.deed_of(about)
        look = self._deeds.look_of(self._store, Holder(owner=deed.owner if deed is not None else ""), self._person)
        return ownership.may_read(look, names.user_key(row))

    def usage(self, prefix: str = "", **how: Any) -> tuple[int, int]:
        """See `Store.usage`: of values by name what he sees of them, of rows of submissions his own."""
        if self._person.is_free:
            return self._store.usage(prefix, **how)
        if names.family(prefix) == _NAMED and "/" in prefix:
            return self._usage_of_names(prefix, **how)
        number = submission_of_row(prefix)
        if number is None or not self._person.owns(self._owner_of(number)):
            with self._audited("USAGE", prefix):
                check_operator(self._person, f"measuring {prefix or 'the whole store'!r}")
        return self._store.usage(prefix, **how)

    def _usage_of_names(self, prefix: str, **how: Any) -> tuple[int, int]:
        count = size = 0
        after = ""
        while rows := self._store.keys(prefix, after=after, limit=_PAGE, **how):
            sizes = [about.size for about in self._store.about_many(self.listed(rows), **how).values()]
            count, size, after = count + len(sizes), size + sum(sizes), rows[-1]
            if len(rows) < _PAGE:
                break
        return count, size

    # -- the rest

    def sweep(self, **how: Any) -> int:
        """See `Store.sweep`."""
        return self._store.sweep(**how)

    def bind_cluster(self, cluster_id: str, **how: Any) -> None:
        """See `Store.bind_cluster`."""
        self._store.bind_cluster(cluster_id, **how)

    def health(self, **how: Any) -> str | None:
        """See `Store.health`."""
        return self._store.health(**how)

    def close(self) -> None:
        """The store is the gateway's."""


class UserStores:
    """`adapters.gateway.rows.StoreGate` of a gateway.

    Args:
        owned: the store as one person may use it; None where values have no owners. operators: of the gateway's configuration.
        count: as `GatewayMetrics.count`.
    """

    def __init__(
        self,
        store: Store,
        log: Log,
        *,
        owner_of: OwnerOf,
        owned: Callable[[Person], OwnedStore] | None,
        operators: Sequence[str],
        count: Callable[[str, str, float], None],
    ) -> None:
        self._store = store
        self._log = log
        self._owner_of = owner_of
        self._owned = owned
        self._operators = tuple(operators)
        self._count = count

    def permit_store(self, caller: Caller, verb: str, keys: Sequence[str]) -> None:
        """See `StoreGate`."""
        person = person_of(caller, self._operators)
        with audited(self._log, person, verb, keys[0] if keys else ""):
            check_rows(person, verb, keys, self._owner_of)

    def permit_content(self, caller: Caller, key: str, sha256: str) -> None:
        """See `StoreGate`."""
        with audited(self._log, person_of(caller, self._operators), "PUT", key):
            check_content(key, sha256)

    def store_of(self, caller: Caller) -> Store:
        """See `StoreGate`."""
        person = person_of(caller, self._operators)
        return self._store if person.is_open or self._owned is None else self._owned(person)

    def visible(self, caller: Caller, keys: Sequence[str]) -> list[str]:
        """See `StoreGate`."""
        person = person_of(caller, self._operators)
        rows = visible(person, keys, self._owner_of)
        return rows if person.is_open or self._owned is None else self._owned(person).listed(rows)

    def count(self, what: str, kind: str, amount: float = 1) -> None:
        """See `StoreGate`."""
        self._count(what, kind, amount)
