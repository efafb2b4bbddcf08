"""What clients of a gateway may read, write and list in the data store.

Rows are judged by family, and by the owner of their submission (`check_rows`). Values by name (`name/`, `share/`, `final/`, `led/`) have
owners (`decisions/rights.py`), which `OwnedStore` checks in every operation: what a user puts belongs to that user and carries the user's
deed; a free name is checked and taken in one step. A row named by its content may be read by anybody who knows the name, and must hold
the content that its name says.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import msgspec

from rmgr.adapters.access.auth import Caller
from rmgr.adapters.access.limits import Bounds
from rmgr.coord import validity
from rmgr.coord.decisions import rights
from rmgr.coord.decisions.rights import Holder, Person, check, check_operator, may
from rmgr.coord.protocol import keys as names
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.ports import About, Coordinator, Encoding, Store, Writing
from rmgr.daemons.service.serving import audited, person_of
from rmgr.daemons.starter.staging.inputs import Inputs
from rmgr.errors import NotFound, PermissionDenied
from rmgr.model.submission import Submission
from rmgr.procedures.authentic import Deeds
from rmgr.procedures.history import summary_of
from rmgr.runtime.machine import Log

#: Returns the user of a submission, None if unknown (not there yet, or long gone). May read, and block.
OwnerOf = Callable[[int], str | None]

_SHA256 = re.compile(r"[0-9a-f]{64}")
#: Families of rows of one submission, and families that clients never write.
_OF_SUBMISSION = frozenset({"args", "ckpt", "frag", "out", "log", "page", "final"})
_READ_ONLY = frozenset({"metric", "meta"})
#: Families of values that have owners.
_NAMED, _SHARED, _FINAL = "name", "share", "final"
_OWNED = frozenset({_NAMED, _SHARED, "led"})
_HISTORY, _HISTORY_OF_USER = "hist", "histu"
_EVENTS = frozenset({names.EVENTS, names.PICKS})
#: Rows of one list; submissions whose owners are remembered.
_PAGE, _KEEP = 1000, 20_000
_TIMEOUT_S = 5.0


def nobody_knows(_submission: int) -> str | None:
    """Knows no submission: an `OwnerOf`."""
    return None


def check_rows(person: Person, verb: str, rows: Sequence[str], owner_of: OwnerOf = nobody_knows) -> None:
    """Checks access to rows. verb: GET, PUT, DELETE. Raises PermissionDenied. Cost: O(rows), and that of `owner_of`."""
    for row in rows:
        family = row.partition("/")[0]
        if verb != "GET" and family == "meta" and "/" in row:
            raise PermissionDenied(f"the row {row!r} belongs to the cluster")
        if not person.is_open:
            _check(person, verb, row, family, owner_of)


def check_content(row: str, digest: str) -> None:
    """Checks that a row named by its content holds it. Raises PermissionDenied."""
    if names.is_by_content(row) and row.partition("/")[2] != digest:
        raise PermissionDenied(f"the row {row!r} is named by its content, and that has another hash")


def visible(person: Person, rows: Sequence[str], owner_of: OwnerOf = nobody_knows) -> list[str]:
    """Returns those of `rows` that the person sees in lists."""
    if person.is_free:
        return list(rows)
    return [row for row in rows if _is_listed(person, row, owner_of)]


def _check(person: Person, verb: str, row: str, family: str, owner_of: OwnerOf) -> None:
    if family in {_HISTORY, _HISTORY_OF_USER} and verb == "DELETE":
        check_operator(person, "the leader writes the history; removing lines of it")
        return
    if family in {_HISTORY, _HISTORY_OF_USER} and verb != "GET":
        raise PermissionDenied(f"{verb.lower()} {row!r}: the leader writes the history")
    if family == _FINAL and verb == "DELETE":
        return  # goes with the name that points to it; `OwnedStore` checks its owner
    if family in _EVENTS and verb == "GET":
        check_operator(person, "reading the scheduler's log")
        return
    number = submission_of_row(row)
    if number is not None:
        owner = owner_of(number)
        if owner is None and (verb == "GET" or family == "args"):
            return  # nothing is there yet: arguments are written before their submission exists
        check(person, number, owner)
    elif family == _HISTORY_OF_USER:
        if not may(person, _user_of(row)):
            raise PermissionDenied(f"{row!r} is the history of {_user_of(row)}", hint="ask an operator")
    elif family in names.BY_CONTENT:
        if verb == "DELETE":
            hint = "functions, modules and uploads go by themselves, when nobody has needed them for 60 days"
            raise PermissionDenied(f"{row!r} may be somebody else's too: it stays", hint=hint)
        if not _SHA256.fullmatch(row.partition("/")[2]):
            raise PermissionDenied(f"the row {row!r} is not named by a hash")
    elif family in _OWNED or (family in _READ_ONLY and verb == "GET"):
        return
    else:
        raise PermissionDenied(f"{verb.lower()} {row!r}: that is not for users")


def _is_listed(person: Person, row: str, owner_of: OwnerOf) -> bool:
    family = row.partition("/")[0]
    if family in _OWNED or family in _READ_ONLY:
        return True
    if family == _HISTORY_OF_USER:
        return may(person, _user_of(row))
    number = submission_of_row(row)
    return number is not None and may(person, owner_of(number))


def submission_of_row(row: str) -> int | None:
    """Returns the submission that a row belongs to, None for rows of another kind."""
    family, _, rest = row.partition("/")
    digits = rest.partition("/")[0]
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 10):
        return None
    if family in _OF_SUBMISSION:
        return int(digits)
    return names.parse_history(row) if family == _HISTORY else None


def _user_of(row: str) -> str:
    return row.split("/")[1] if row.count("/") >= 2 else ""


class Owners:
    """An `OwnerOf`. Thread-safe. A submission never changes its user, so known answers are remembered; unknown ones are asked again."""

    def __init__(self, coordinator: Coordinator, store: Store) -> None:
        self._coordinator = coordinator
        self._store = store
        self._lock = threading.Lock()
        self._known: OrderedDict[int, str] = OrderedDict()

    def __call__(self, submission: int) -> str | None:
        """Returns the user, None if unknown. Cost: two reads the first time. Raises: CoordinationUnavailable, StoreUnavailable."""
        with self._lock:
            known = self._known.get(submission)
            if known is not None:
                self._known.move_to_end(submission)
                return known
        path = paths.sub(submission)
        found = self._coordinator.get(path, timeout_s=_TIMEOUT_S).result(_TIMEOUT_S + 1)
        if found is not None:
            user = validity.decode(found.data, Submission, path).user
        else:
            kept = summary_of(self._store, submission, timeout_s=_TIMEOUT_S)
            user = kept.user if kept is not None else ""
        if user:
            with self._lock:
                self._known[submission] = user
                while len(self._known) > _KEEP:
                    self._known.popitem(last=False)
        return user or None


class OwnedStore(Store):
    """A `Store` for one person of a secured cluster. Raises PermissionDenied, audited, besides what the store raises.

    Args: inputs: resolves pointers. owner_of: returns the user of a submission.
    """

    def __init__(self, store: Store, person: Person, deeds: Deeds, inputs: Inputs, owner_of: OwnerOf, log: Log | None) -> None:
        self._store = store
        self._person = person
        self._deeds = deeds
        self._inputs = inputs
        self._owner_of = owner_of
        self._log = log

    # -- writing

    def write(self, key: str, value: bytes | Iterable[bytes | memoryview], how: Writing) -> None:
        if names.family(key) not in {_NAMED, _SHARED}:
            self._store.write(key, value, how)
            return
        with audited(self._log, self._person, "PUT", key):
            held = self._writable(key, self._store.about(key))

            def checked(digest: bytes) -> bytes:
                made = how.note if isinstance(how.note, bytes) else how.note(digest)
                self._check_deed(key, how.encoding, digest, made, held)
                return made

            self._store.write(key, value, msgspec.structs.replace(how, overwrite=how.overwrite and held is not None, note=checked))

    def write_many(self, rows: Sequence[tuple[str, bytes]], how: Writing) -> None:
        """See `Store.put_many`. Rows under free names go first, in one step: all of them are written, or none is."""
        owned = [key for key, _ in rows if names.family(key) in {_NAMED, _SHARED}]
        if not owned:
            self._store.write_many(rows, how)
            return
        with audited(self._log, self._person, "PUT", owned[0]):
            there = self._store.about_many(owned)
            free: list[tuple[tuple[str, bytes], bytes]] = []
            other: list[tuple[tuple[str, bytes], bytes]] = []
            for (key, value), note in zip(rows, how.notes or (b"",) * len(rows), strict=True):
                if names.family(key) not in {_NAMED, _SHARED}:
                    other.append(((key, value), note))
                    continue
                held = self._writable(key, there.get(key))
                self._check_deed(key, how.encoding, sha256(value).digest(), note, held)
                (free if held is None else other).append(((key, value), note))
            for some, again in ((free, False), (other, how.overwrite)):
                if some:
                    amended = msgspec.structs.replace(how, overwrite=again, notes=[note for _, note in some])
                    self._store.write_many([row for row, _ in some], amended)

    def delete_many(self, keys: Sequence[str], **how: Any) -> list[str]:
        """See `Store.delete_many`. One row that the person may not delete refuses them all."""
        self._check_deleted(keys)
        return self._store.delete_many(keys, **how)

    def _check_deleted(self, wanted: Sequence[str]) -> None:
        there = self._store.about_many([key for key in wanted if names.family(key) in {_NAMED, _SHARED, _FINAL}])
        for key in wanted:
            with audited(self._log, self._person, "DELETE", key):
                if names.family(key) in {_NAMED, _SHARED}:
                    self._writable(key, there.get(key))
                elif names.family(key) == _FINAL:
                    self._check_final(key, there.get(key))

    def _writable(self, key: str, about: About | None) -> Holder | None:
        """Returns the value's holder, None if the name is free. Raises PermissionDenied if the person may not replace it."""
        person = self._person
        if names.family(key) == _SHARED:
            owner, _ = names.parse_share(key)
            if not (person.is_free or person.owns(owner)):
                raise PermissionDenied(f"{owner} says whom {owner}'s values are shared with", hint="share your own: rmgr store share")
            return Holder(owner=owner)
        return None if about is None else self._deeds.check_write(self._store, names.user_key(key), key, about, person)

    def _check_deed(self, key: str, encoding: Encoding, digest: bytes, note: bytes, held: Holder | None) -> None:
        """Checks that the person has signed the value, for its owner."""
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
        deed = rights.deed_of(about)
        owner = self._deeds.holder(self._store, key, about).owner if deed is not None else self._owner_of(number or 0)
        if not self._person.owns(owner):
            raise PermissionDenied(f"{key!r} belongs to {owner or 'nobody'}", hint="ask its owner to share it: rmgr store share")

    # -- reading

    def _row(self, key: str) -> str:
        """Returns the row behind a key, if the person may have it. Raises also NotFound if there is none yet."""
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
        """Returns the holder of a value that the person may read. Foul bytes pass, so that they can be replaced; clients check them."""
        if about is None:
            return None
        look = self._deeds.look(self._store, row, about, self._person)
        rights.check_seen(look, names.user_key(row))
        return look.holder

    def get_noted_many(self, keys: Sequence[str], **how: Any) -> dict[str, tuple[bytes | None, About]]:
        """See `Store.get_noted_many`. Sends exactly what was checked, even if it is replaced meanwhile.

        A value that the person may not read is not mentioned at all: its hash would reveal its content.
        """
        rows: dict[str, str] = {}
        for key in keys:
            rows[key] = key
            if names.parse_led(key) is not None:
                with audited(self._log, self._person, "GET", key):
                    rows[key] = self._row(key)
        there = self._store.get_noted_many(list(rows.values()), **how)
        found = {key: there[row] for key, row in rows.items() if row in there}
        for key, (_, about) in found.items():
            self._check_seen(key, about)
        return found

    def stream(self, key: str, **how: Any) -> Iterator[bytes] | None:
        with audited(self._log, self._person, "GET", key):
            return self._store.stream(self._row(key), **how)

    def _check_seen(self, key: str, about: About) -> None:
        """Raises PermissionDenied, audited, unless the person may have the value under `key`."""
        with audited(self._log, self._person, "GET", key):
            if names.family(key) == _NAMED:
                self._readable(key, about)
            elif names.family(key) == _FINAL:
                self._check_final(key, about)

    # -- lists

    def keys(self, prefix: str = "", **how: Any) -> list[str]:
        """See `Store.keys`; `listed` removes what the person does not see."""
        return self._store.keys(prefix, **how)

    def listed(self, rows: Sequence[str]) -> list[str]:
        """Returns those of `rows` that the person sees: of others' values, the shared ones. Deeds are not verified here."""
        if self._person.is_free:
            return list(rows)
        there = self._store.about_many([row for row in rows if names.family(row) == _NAMED])
        return [row for row in rows if names.family(row) != _NAMED or (row in there and self._is_listed(row, there[row]))]

    def _is_listed(self, row: str, about: About) -> bool:
        deed = rights.deed_of(about)
        look = self._deeds.look_of(self._store, Holder(owner=deed.owner if deed is not None else ""), self._person)
        return rights.may_read(look, names.user_key(row))

    def usage(self, prefix: str = "", **how: Any) -> tuple[int, int]:
        """See `Store.usage`: values by name as far as the person sees them, and rows of the person's own submissions."""
        if self._person.is_free:
            return self._store.usage(prefix, **how)
        if names.family(prefix) == _NAMED and "/" in prefix:
            return self._usage_of_names(prefix, **how)
        number = submission_of_row(prefix)
        if number is None or not self._person.owns(self._owner_of(number)):
            with audited(self._log, self._person, "USAGE", prefix):
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
        return self._store.sweep(**how)

    def health(self, **how: Any) -> str | None:
        return self._store.health(**how)

    def close(self) -> None:
        """Does nothing: the store is the gateway's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayContext:
    """What the parts of a gateway share. owner_of: the user of a submission. operators: as configured. count: see `GatewayMetrics`."""

    coordinator: Coordinator
    store: Store
    log: Log
    bounds: Bounds
    owner_of: OwnerOf
    operators: tuple[str, ...] = ()
    count: Callable[..., None] = lambda *_: None

    def person_of(self, caller: Caller) -> Person:
        """Returns the caller as a person."""
        return person_of(caller, self.operators)
