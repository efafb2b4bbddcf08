"""Claims output keys of tasks: writes their pointers, many together.

The Submitter does it before the commit that submits the tasks. For a task that it hands straight to a node, the Starter does, before
the task begins. A task whose key somebody else has taken ends FAILED with OUTPUT_EXISTS. Keys are created, never overwritten: a key that
is free although something stands there (its task ended without a result) is replaced only if that still stands there. So of several who
want a key one has it, whoever dies. Called on a thread that may wait for the store. May be repeated after a failure, by anybody: the
pointer of a task is always the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from rmgr.coord.decisions.rights import Holder, Person
from rmgr.coord.protocol import keys
from rmgr.coord.protocol.keys import Pointer
from rmgr.coord.protocol.ports import NOTHING, About, Encoding
from rmgr.errors import KeyExists, PermissionDenied, RmgrError, StoreUnavailable
from rmgr.model.base.states import State
from rmgr.procedures.fates import FatesPort

#: Pointers of one write: below the size up to which a refused write leaves nothing behind.
_ROWS = 2000
#: How often keys are looked at and written while others take some of them.
_TRIES = 8
#: Characters of a key that an error shows.
_SHOWN = 100
#: What to do about a key that somebody else has.
HOW_TO_REPLACE = "overwrite=True replaces it; or choose another key"

#: An output key and what is to stand under it.
Wanted = tuple[str, Pointer]
_NOBODYS: Mapping[str, Holder | None] = {}


class KeyTable(Protocol):
    """Rows of the data store under the keys of users. fates: of the tasks behind pointers."""

    @property
    def fates(self) -> FatesPort:
        """What became of tasks."""
        ...


    @property
    def user(self) -> Person | None:
        """Who claims; None in an open cluster, where keys are everybody's."""
        ...

    def noted(self, rows: Sequence[str], *, largest: int, timeout: float = 30.0) -> dict[str, tuple[bytes | None, About]]:
        """As `Store.get_noted_many`."""
        ...

    def about(self, rows: Sequence[str], *, timeout: float = 30.0) -> dict[str, About]:
        """As `Store.about_many`."""
        ...

    def check_writable(self, key: str, about: About) -> Holder | None:
        """Whose what was found there is, None where nobody asks. Raises PermissionDenied, KeyExists: it is not to be replaced."""
        ...

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
        """As `Store.put_many` of pointers. owners: of rows that are somebody else's, who lets us write them."""
        ...


@dataclass(slots=True)
class KeyState:
    """State of some keys. refused: why a key cannot be had. ours: keys that hold our pointer already.

    holders: by row, who lets us write there. replaces: by row, the SHA-256 of what stands there and means nothing any more.
    """

    refused: dict[str, RmgrError] = field(default_factory=dict)
    ours: set[str] = field(default_factory=set)
    holders: dict[str, Holder | None] = field(default_factory=dict)
    replaces: dict[str, bytes] = field(default_factory=dict)


def claim_pointers(
    values: KeyTable,
    wanted: Sequence[Wanted],
    *,
    overwrite: bool,
    decided: Callable[[], None] | None = None,
    timeout: float = 30.0,
) -> dict[int, RmgrError]:
    """Writes pointers under their keys; of a task with a key that cannot be had none. Returns those: index -> why.

    decided: called at most once, as soon as nobody else can have any of free keys: they are written a moment later.

    Cost: one write of the store for 2,000 keys that are free; a look and another one where some are not.
    Raises: StoreUnavailable, also when others go on taking the same keys; then some are written, and it may be repeated.
    """
    refused: dict[int, RmgrError] = {}
    for at in range(0, len(wanted), _ROWS):
        some = wanted[at : at + _ROWS]
        if overwrite and values.user is None:
            values.write_pointers(_rows(some), timeout=timeout)
        else:
            told = decided if len(some) == len(wanted) else None
            refused |= _claim_some(values, some, overwrite=overwrite, decided=told, timeout=timeout)
    return refused


def _claim_some(
    values: KeyTable, wanted: Sequence[Wanted], *, overwrite: bool, decided: Callable[[], None] | None, timeout: float
) -> dict[int, RmgrError]:
    refused: dict[int, RmgrError] = {}
    left, found = list(wanted), KeyState()
    for _ in range(_TRIES):
        rows = _rows(left)
        if not rows:
            return refused
        try:
            told = decided if not refused else None
            values.write_pointers(
                rows, overwrite=False, owners=found.holders, replaces=found.replaces, decided=told, timeout=timeout
            )
        except KeyExists:
            pass
        else:
            return refused
        before, found = found, look(values, left, overwrite=overwrite, timeout=timeout)
        is_unchanged = found.replaces == before.replaces and not found.refused and not found.ours
        for key, pointer in left:
            if key in found.refused:
                refused.setdefault(pointer.index, found.refused[key])
        left = [(key, pointer) for key, pointer in left if pointer.index not in refused and key not in found.ours]
        if overwrite or (is_unchanged and found.replaces):  # an older gateway knows no such condition
            values.write_pointers(_rows(left), owners=found.holders, timeout=timeout)
            return refused
    if not left:
        return refused
    raise StoreUnavailable(f"others are taking the output key {left[0][0]!r} at the same time", hint="it is tried again")


def look(values: KeyTable, wanted: Sequence[tuple[str, Pointer | None]], *, overwrite: bool, timeout: float = 30.0) -> KeyState:
    """What stands under output keys, each with the pointer that is to stand there.

    Cost: one read of the store, and one of each submission that they point to.
    """
    found = KeyState()
    there = values.noted([keys.named(key) for key, _ in wanted], largest=keys.POINTER_BYTES, timeout=timeout)
    pointers: dict[str, Pointer] = {}
    for key, mine in wanted:
        row = keys.named(key)
        if row not in there:
            continue
        data, about = there[row]
        try:
            found.holders[row] = values.check_writable(key, about)
        except (PermissionDenied, KeyExists) as error:
            found.refused[key] = error
            continue
        if overwrite:
            continue
        if about.encoding is not Encoding.POINTER or data is None:
            found.refused[key] = _exists(values, key, found.holders[row], "it has a value")
        elif (pointer := keys.decode_pointer(data)) == mine:
            found.ours.add(key)
        else:
            pointers[key] = pointer
            found.replaces[row] = about.sha256
    _judge(values, pointers, found, timeout)
    return found


def _judge(values: KeyTable, pointers: dict[str, Pointer], found: KeyState, timeout: float) -> None:
    """Refuses the keys whose tasks have written their value, or will."""
    fates = dict(zip(pointers, values.fates.fates(pointers.values(), timeout), strict=True))
    kept = values.about([keys.final(pointers[key]) for key, fate in fates.items() if fate == "gone"], timeout=timeout)
    for key, fate in fates.items():
        pointer, row = pointers[key], keys.named(key)
        if fate in {State.FAILED, State.CANCELLED, "never"} or (fate == "gone" and keys.final(pointer) not in kept):
            continue
        del found.replaces[row]
        if fate == "denied":
            found.refused[key] = PermissionDenied(f"the output key {key!r} points to a task of somebody else", hint=HOW_TO_REPLACE)
            continue
        verb = "writes" if fate == "open" else "wrote"
        found.refused[key] = _exists(values, key, found.holders[row], f"task {pointer.sub}_{pointer.index} {verb} it")


def _exists(values: KeyTable, key: str, holder: Holder | None, what: str) -> KeyExists:
    shown = key if len(key) <= _SHOWN else f"{key[: _SHOWN // 2]}...{key[-_SHOWN // 2 :]}"
    is_anothers = holder is not None and holder.owner and values.user is not None and not values.user.owns(holder.owner)
    whose = f", it {holder.told}" if is_anothers and holder is not None else ""
    return KeyExists(f"the output key {shown!r} exists already: {what}{whose}", hint=HOW_TO_REPLACE)


def _rows(pointers: Sequence[Wanted]) -> list[tuple[str, bytes]]:
    return [(keys.named(key), keys.encode_pointer(pointer)) for key, pointer in pointers]
