"""Input and output keys of tasks at the store: the value of an input key, and the claim of output keys that were left to this node.

An input key leads to a user's own value, or to the output of another task, found through its committed attempt. The committed attempts of
tasks are remembered, so that a task with a thousand inputs reads each fragment once. In a secured cluster the user of the task, who has
signed it, must have the right to read each value (`procedures/authentic.py`): the Starter's own rights do not count.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, TypeVar, TypeVarTuple

from rmgr.coord import validity
from rmgr.coord.decisions import rights
from rmgr.coord.decisions.progress import EndFold
from rmgr.coord.decisions.rights import Holder, Person
from rmgr.coord.ops.membership import reign_of
from rmgr.coord.protocol import keys, paths
from rmgr.coord.protocol.keys import Pointer
from rmgr.coord.protocol.ports import NOTHING, About, Coordinator, Encoding, Store
from rmgr.daemons.starter.core.blocks import ClaimedBlock
from rmgr.errors import CoordinationUnavailable, DataLost, KeyExists, NotFound, PermissionDenied, RmgrError, StoreUnavailable
from rmgr.model.block import KeyedPayload
from rmgr.model.states import State
from rmgr.model.submission import Paged
from rmgr.procedures.authentic import Deeds
from rmgr.procedures.output_keys import HOW_TO_REPLACE, Fates, Wanted, claim_pointers, locate
from rmgr.procedures.snapshot import outcomes_of, read_fragments, read_pages
from rmgr.runtime.failpoint import failpoint

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
#: Rows that were read; None instead of bytes that are too many.
Rows = dict[str, tuple[bytes | None, About]]
#: Most submissions whose attempts are remembered.
_KEEP = 64
#: Most rows read together, and bytes of them that one read holds, unless its first rows have more.
ROWS_TOGETHER = 128
_HELD_BYTES = 1024 * 1024
_NOBODYS: Mapping[str, Holder | None] = {}


@dataclass(frozen=True, slots=True)
class Input:
    """The row of a value. about: the only content that the user of the task may have, even if another one stands there by now; None: any.

    data: its bytes, None if not asked for or too many. pickled: whether the bytes are a pickle.
    """

    row: str
    about: About | None = None
    data: bytes | None = None
    size: int = 0
    pickled: bool = False

    def check(self, key: str, sha256: bytes) -> None:
        """Raises NotFound unless `sha256` is the hash of the value that was found."""
        if self.about is not None and sha256 != self.about.sha256:
            raise NotFound(f"the value of the input key {key!r} was replaced just now", hint="submit it again")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskReads:
    """What one task reads. user: its owner. trust: users whose pickles it loads; None: it loads none. outputs: the owner's keys."""

    user: str
    inputs: Sequence[str]
    outputs: Sequence[str] = ()
    trust: Sequence[str] | None = None


@dataclass(slots=True, kw_only=True)
class _Found:
    """The value of an input key, not yet checked. row: of the value; key: the user's name for it. holder: of the key."""

    key: str
    row: str
    data: bytes | None
    about: About
    holder: Holder


@dataclass(slots=True)
class _Known:
    lock: threading.Lock = field(default_factory=threading.Lock)
    next_fragment: int = 0
    ends: EndFold = field(default_factory=EndFold)
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
        """Returns where each value is, in order. user: of the task. trust: users whose pickles it loads; None: it loads none.

        Raises: NotFound naming the key without a value; PermissionDenied; StoreUnavailable, CoordinationUnavailable.
        """
        found = self.find_many(store, [TaskReads(user=user, inputs=user_keys, trust=trust)], largest=keys.POINTER_BYTES)[0]
        if isinstance(found, Exception):
            raise found
        return found

    def rows(self, store: Store, user_keys: Sequence[str]) -> list[str]:
        """Returns the store key of each value, in order. Raises: as `find`."""
        return [found.row for found in self.find(store, "", user_keys, trust=None)]

    def find_many(self, store: Store, asks: Sequence[TaskReads], *, largest: int) -> list[list[Input] | Exception]:
        """Returns the inputs of each task, with values of up to `largest` bytes; or the error of a task that cannot have one of them.

        Cost: one read of the store for all tasks together, another one if keys lead to outputs of tasks.
        Raises: StoreUnavailable.
        """
        try:
            return self._find_many(store, asks, max(largest, keys.POINTER_BYTES))
        except StoreUnavailable:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, the task that meets it alone is told
            if len(asks) == 1:
                return [error]
        return [self.find_many(store, [ask], largest=largest)[0] for ask in asks]

    def _find_many(self, store: Store, asks: Sequence[TaskReads], largest: int) -> list[list[Input] | Exception]:
        names = {key for ask in asks for key in (*ask.inputs, *(ask.outputs if self._deeds is not None else ()))}
        there = _values(store, [keys.named(key) for key in names], largest)
        found = [_attempt(self._named, store, ask, there) for ask in asks]
        led = {one.row for ones in found if not isinstance(ones, Exception) for one in ones if one.row not in there}
        values = there | _values(store, list(led), largest) if led else there
        return [
            ones if isinstance(ones, Exception) else _attempt(self._read, store, ask, ones, values)
            for ask, ones in zip(asks, found, strict=True)
        ]

    def _named(self, store: Store, ask: TaskReads, there: Rows) -> list[_Found]:
        """Returns what the keys name; follows pointers. Raises: NotFound, PermissionDenied, CoordinationUnavailable."""
        person, deeds = Person(name=ask.user), self._deeds
        for key in ask.outputs if deeds is not None else ():
            taken = there.get(keys.named(key))
            if taken is not None and deeds is not None:
                deeds.check_write(store, key, keys.named(key), taken[1], person)
        found = []
        for key in ask.inputs:
            row = keys.named(key)
            if row not in there:
                raise NotFound(f"the input key {key!r} does not exist")
            data, about = there[row]
            holder = deeds.check_read(store, key, row, about, person) if deeds is not None else Holder()
            if about.encoding is Encoding.POINTER:
                if data is None:
                    raise DataLost(f"the pointer under the input key {key!r} has {about.size} bytes")
                row = self.committed(store, key, keys.decode_pointer(data))
            found.append(_Found(key=key, row=row, data=data, about=about, holder=holder))
        return found

    def _read(self, store: Store, ask: TaskReads, found: list[_Found], values: Rows) -> list[Input]:
        """Checks and returns the values. Raises: NotFound, PermissionDenied, DataLost."""
        person, deeds = Person(name=ask.user), self._deeds
        inputs = []
        for one in found:
            if one.about.encoding is Encoding.POINTER:
                if one.row not in values:
                    raise NotFound(f"the value of the input key {one.key!r} is gone")
                one.data, one.about = values[one.row]
                if deeds is not None:
                    its = deeds.holder(store, one.row, one.about)
                    if not its.owner:
                        raise DataLost(f"the value of the input key {one.key!r} cannot be believed: {its.why}")
                    if its.owner not in (one.holder.owner, one.holder.writer):
                        whose = f"belongs to {one.holder.owner}, and points to what belongs to {its.owner}"
                        raise PermissionDenied(f"the input key {one.key!r} {whose}")
                    one.holder = its
            about, is_pickle = one.about, one.about.encoding is Encoding.PICKLE
            if deeds is not None and is_pickle and ask.trust is not None:
                rights.check_pickle(person, one.key, one.holder, ask.trust, how=rights.HOW_TO_TRUST)
            known = about if deeds is not None else None
            inputs.append(Input(one.row, known, one.data, about.size, is_pickle))
        return inputs

    def committed(self, store: Store, user_key: str, pointer: keys.Pointer) -> str:
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
            # raises the error that says precisely why there is no value
            return locate(self._coordinator, store, user_key, pointer, timeout_s=self._timeout_s)
        if pointer.by and not self._is_author(pointer):
            raise NotFound(f"the input key {user_key!r} is the output of a task that was never submitted")
        return keys.output(pointer.sub, pointer.index, attempt, pointer.n)

    def _read_on(self, store: Store, pointer: keys.Pointer, known: _Known) -> bool:
        """Takes in what was committed since the last call. False: the submission is gone."""
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
            for outcome in known.ends.fold(outcomes_of(fragment, store)):
                if outcome.state is State.COMPLETED:
                    known.attempts[outcome.index] = outcome.attempt or fragment.attempt
        known.next_fragment = done.stat.creates
        return True

    def _is_author(self, pointer: keys.Pointer) -> bool:
        tail = self._coordinator.get(paths.tail(pointer.sub)).result(self._timeout_s + 1)
        if tail is None:
            return True
        return reign_of(validity.tail(tail, pointer.sub), pointer.index) in ("", pointer.by)


def _values(store: Store, rows: Sequence[str], largest: int) -> Rows:
    """Reads rows. Of a task with very many inputs, only the first rows come with their bytes; the others become files."""
    found: Rows = {}
    held = 0
    for start in range(0, len(rows), ROWS_TOGETHER):
        some = store.get_noted_many(rows[start : start + ROWS_TOGETHER], largest=largest if held <= _HELD_BYTES else keys.POINTER_BYTES)
        held += sum(len(data) for data, _ in some.values() if data is not None)
        found |= some
    return found


def _attempt(call: Callable[[*Ts], T], *given: *Ts) -> T | Exception:
    """Returns the result or the exception of `call` with these arguments; raises only StoreUnavailable, which concerns all tasks."""
    try:
        return call(*given)
    except StoreUnavailable:
        raise
    except Exception as error:  # noqa: BLE001 - whatever it is, its task is told
        return error


# -- claims of output keys -------------------------------------------------------------------------------------------------
# Claims output keys that a Submitter has left to the node that runs their task (HAND, protocol.md 5). In a secured cluster the user has
# signed each pointer already, and the Starter writes it as it is, since only users sign in their names. So a key owned by another user is
# not claimed here, even if its owner lets the user write there.


@dataclass(frozen=True, slots=True)
class Left:
    """A task whose output keys are left to this node."""

    block: ClaimedBlock
    index: int
    keyed: KeyedPayload

    @property
    def pointers(self) -> list[Wanted]:
        """The pointers for its keys: always the same, whichever process writes them."""
        number, guid = self.block.key.submission, self.keyed.claims_by
        return [(key, Pointer(sub=number, index=self.index, n=n, by=guid)) for n, key in enumerate(self.keyed.outputs)]


class OutputClaims:
    """Claims for all nodes of a Starter. Called on IO threads. deeds: of a secured cluster."""

    def __init__(self, store: Store, coordinator: Coordinator, deeds: Deeds | None) -> None:
        self._fates = Fates(store, coordinator)
        self._deeds = deeds

    def claim(self, store: Store, asks: Sequence[Left]) -> dict[tuple[int, int], Exception]:
        """Writes the pointers of these tasks. Returns the tasks that cannot have a key: (submission, index) -> why.

        Cost: one write of the store for all tasks of a submission; more if keys are taken. Raises: StoreUnavailable.
        """
        failpoint("starter.claim_outputs")
        refused: dict[tuple[int, int], Exception] = {}
        for number in {ask.block.key.submission for ask in asks}:
            mine = [ask for ask in asks if ask.block.key.submission == number]
            try:
                refused |= self._claim_of(store, number, mine)
            except (StoreUnavailable, CoordinationUnavailable):
                raise
            except RmgrError as error:  # invalid keys or pointers: other submissions' tasks are claimed in the same call
                refused |= {(number, ask.index): error for ask in mine}
        return refused

    def _claim_of(self, store: Store, number: int, asks: Sequence[Left]) -> dict[tuple[int, int], Exception]:
        """Claims for the tasks of one submission. Raises: RmgrError."""
        refused: dict[tuple[int, int], Exception] = {}
        tasks = []
        for ask in asks:
            if (why := self._why_foul(store, ask)) is None:
                tasks.append(ask)
            else:
                refused[number, ask.index] = why
        table = UserKeys(store, self._fates, self._deeds, tasks)
        wanted = [one for ask in tasks for one in ask.pointers]
        for index, why in claim_pointers(table, wanted, overwrite=False).items():
            refused[number, index] = KeyExists(why.message, hint=HOW_TO_REPLACE)  # also if the key belongs to another user
        return refused

    def _why_foul(self, store: Store, ask: Left) -> RmgrError | None:
        """Returns why nothing is written for a task: a row under a user's key counts only with the user's own deed."""
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
        return Person(name=self._name) if self._deeds is not None else None

    def noted(self, rows: Sequence[str], *, largest: int, timeout: float = 30.0) -> dict[str, tuple[bytes | None, About]]:
        return self._store.get_noted_many(rows, largest=largest, timeout_s=timeout)

    def about(self, rows: Sequence[str], *, timeout: float = 30.0) -> dict[str, About]:
        return self._store.about_many(rows, timeout_s=timeout) if rows else {}

    def check_writable(self, key: str, about: About) -> Holder | None:
        """See `KeyTable`. Raises KeyExists if the key is another user's, even one who lets this user write there."""
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
        del owners, decided
        beside: dict[str, Any] = {"replaces": replaces} if replaces else {}
        if self._deeds is not None:
            beside["notes"] = [self._notes[row] for row, _ in rows]
        self._store.put_many(rows, encoding=Encoding.POINTER, overwrite=overwrite, timeout_s=timeout, **beside)
