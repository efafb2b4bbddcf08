"""Claims output keys that a Submitter has left to the node that runs their task (HAND, protocol.md 5).

In a secured cluster the user has signed each pointer already, and the Starter writes that: nobody signs in a user's name. So a key that
somebody else owns is not claimed here, although its owner may let the user write there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from rmgr.coord.decisions.rights import Holder, Person
from rmgr.coord.protocol import keys
from rmgr.coord.protocol.keys import Pointer
from rmgr.coord.protocol.ports import NOTHING, About, Coordinator, Encoding, Store
from rmgr.daemons.starter.core.blocks import ClaimedBlock
from rmgr.errors import CoordinationUnavailable, KeyExists, PermissionDenied, RmgrError, StoreUnavailable
from rmgr.model.tasks.block import KeyedPayload
from rmgr.procedures.authentic import Deeds
from rmgr.procedures.output_keys import HOW_TO_REPLACE, Fates, Wanted, claim_pointers
from rmgr.runtime.failpoint import failpoint

_NOBODYS: Mapping[str, Holder | None] = {}


@dataclass(frozen=True, slots=True)
class Left:
    """A task whose output keys are left to this node."""

    block: ClaimedBlock
    index: int
    keyed: KeyedPayload

    @property
    def pointers(self) -> list[Wanted]:
        """What is to stand under its keys: the same, whoever writes it and how often."""
        number, guid = self.block.key.submission, self.keyed.claims_by
        return [(key, Pointer(sub=number, index=self.index, n=n, by=guid)) for n, key in enumerate(self.keyed.outputs)]


class OutputClaims:
    """Claims for all nodes of a Starter. Called on IO threads. deeds: of a secured cluster."""

    def __init__(self, store: Store, coordinator: Coordinator, deeds: Deeds | None) -> None:
        self._fates = Fates(store, coordinator)
        self._deeds = deeds

    def claim(self, store: Store, asks: Sequence[Left]) -> dict[tuple[int, int], Exception]:
        """Writes the pointers of these tasks. Returns those that cannot have a key: (submission, index) -> why.

        Cost: a write of the store for all tasks of a submission; more where keys are not free. Raises: StoreUnavailable.
        """
        failpoint("starter.claim_outputs")
        refused: dict[tuple[int, int], Exception] = {}
        for number in {ask.block.key.submission for ask in asks}:
            mine = [ask for ask in asks if ask.block.key.submission == number]
            try:
                refused |= self._claim_of(store, number, mine)
            except (StoreUnavailable, CoordinationUnavailable):
                raise
            except RmgrError as error:  # names that are no keys, rows that are no pointers: tasks of others are claimed with these
                refused |= {(number, ask.index): error for ask in mine}
        return refused

    def _claim_of(self, store: Store, number: int, asks: Sequence[Left]) -> dict[tuple[int, int], Exception]:
        """The same for tasks of one submission. Raises: RmgrError."""
        refused: dict[tuple[int, int], Exception] = {}
        tasks = []
        for ask in asks:
            if (why := self._foul(store, ask)) is None:
                tasks.append(ask)
            else:
                refused[number, ask.index] = why
        table = UserKeys(store, self._fates, self._deeds, tasks)
        wanted = [one for ask in tasks for one in ask.pointers]
        for index, why in claim_pointers(table, wanted, overwrite=False).items():
            refused[number, index] = KeyExists(why.message, hint=HOW_TO_REPLACE)  # also where the key is somebody else's
        return refused

    def _foul(self, store: Store, ask: Left) -> RmgrError | None:
        """Why nothing is written for it: a row under a user's key counts only with the user's own deed."""
        if self._deeds is None:
            return None
        user = ask.block.info.record.user
        for (key, pointer), note in zip(ask.pointers, (*ask.keyed.deeds, *[b""] * len(ask.keyed.outputs)), strict=False):
            data, row = keys.encode_pointer(pointer), keys.named(key)
            about = About(size=len(data), encoding=Encoding.POINTER, sha256=sha256(data).digest(), note=note)
            holder = self._deeds.holder(store, row, about)
            if holder.owner != user or holder.writer != user:
                return PermissionDenied(f"the claim of the output key {key!r} is not signed by {user}", hint="submit it again")
        return None


class UserKeys:
    """The `KeyTable` of one user, for tasks with deeds that the user made."""

    def __init__(self, store: Store, fates: Fates, deeds: Deeds | None, tasks: Sequence[Left]) -> None:
        self.fates = fates
        self._store = store
        self._deeds = deeds
        self._notes = {keys.named(key): note for task in tasks for key, note in zip(task.keyed.outputs, task.keyed.deeds, strict=False)}
        self._name = tasks[0].block.info.record.user if tasks else ""

    @property
    def user(self) -> Person | None:
        """See `KeyTable`."""
        return Person(name=self._name) if self._deeds is not None else None

    def noted(self, rows: Sequence[str], *, largest: int, timeout: float = 30.0) -> dict[str, tuple[bytes | None, About]]:
        """See `KeyTable`."""
        return self._store.get_noted_many(rows, largest=largest, timeout_s=timeout)

    def about(self, rows: Sequence[str], *, timeout: float = 30.0) -> dict[str, About]:
        """See `KeyTable`."""
        return self._store.about_many(rows, timeout_s=timeout) if rows else {}

    def check_writable(self, key: str, about: About) -> Holder | None:
        """See `KeyTable`. Raises KeyExists where it is somebody else's who lets the user write there."""
        if self._deeds is None or self.user is None:
            return None
        holder = self._deeds.check_write(self._store, key, keys.named(key), about, self.user)
        if not self.user.owns(holder.owner):
            raise KeyExists(f"the output key {key!r} exists already, it {holder.told}", hint=HOW_TO_REPLACE)
        return holder

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
        """See `KeyTable`."""
        del owners, decided
        beside: dict[str, Any] = {"replaces": replaces} if replaces else {}
        if self._deeds is not None:
            beside["notes"] = [self._notes[row] for row, _ in rows]
        self._store.put_many(rows, encoding=Encoding.POINTER, overwrite=overwrite, timeout_s=timeout, **beside)
