"""Output keys of tasks: claimed by pointers, resolved to the task and its row, and deleted.

Pointers are written in batches. The Submitter writes them before the commit that submits the tasks. For a task handed straight to a
node, the Starter writes them before the task begins. A task whose key is taken ends FAILED with OUTPUT_EXISTS. Keys are created, never
overwritten: a key whose pointer is void (its task ended without a result) is replaced only if that pointer still stands there. So only
one of several contenders gets a key, whichever of them die. Called on a thread that may wait for the store. After a failure any process
may repeat a call: the pointer of a task is always the same.

The fates of the tasks behind pointers (state and committed attempt) are read once per submission, and then incrementally (`Fates`).
Clients without the submission in memory (`rmgr store get`, `connect().store.get`) go from a key to the row with its value (`locate`,
protocol.md section 4): one look costs the fragments of the submission, at most 1,000 znodes and its pages.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from rmgr.coord import validity
from rmgr.coord.decisions.progress import EndFold
from rmgr.coord.decisions.rights import Holder, Person
from rmgr.coord.ops.membership import reign_of
from rmgr.coord.protocol import keys, paths
from rmgr.coord.protocol.keys import Pointer
from rmgr.coord.protocol.ports import NOTHING, About, Coordinator, Encoding, Store
from rmgr.coord.protocol.records import decode_block, decode_keyed, decode_payloads, read_fragment
from rmgr.errors import KeyExists, NotFound, PermissionDenied, RmgrError, StoreUnavailable
from rmgr.model.block import BlockData, FailedRange, Fragment
from rmgr.model.states import LOSSES, State
from rmgr.model.submission import Paged, Submission, Tail
from rmgr.procedures.bounded import outcomes_in, page_at, row_of
from rmgr.procedures.snapshot import fetch, outcomes_of, read_pages, read_whole
from rmgr.runtime import machine

#: Pointers of one write: below the size at which a refused write could leave some behind.
_ROWS = 2000
#: Number of attempts to read and write keys while other tasks take some of them.
_TRIES = 8
#: Characters of a key shown in an error.
_SHOWN = 100
#: Advice for a key that is taken.
HOW_TO_REPLACE = "overwrite=True replaces it; or choose another key"

#: An output key, and the pointer to write under it.
Wanted = tuple[str, Pointer]
_NOBODYS: Mapping[str, Holder | None] = {}


class KeyTable(Protocol):
    """Rows of the data store under the keys of users. fates: of the tasks behind pointers."""

    @property
    def fates(self) -> FatesPort:
        """Fates of tasks."""
        ...


    @property
    def user(self) -> Person | None:
        """The claiming person; None in an open cluster, where keys have no owners."""
        ...

    def noted(self, rows: Sequence[str], *, largest: int, timeout: float = 30.0) -> dict[str, tuple[bytes | None, About]]:
        """As `Store.get_noted_many`."""
        ...

    def about(self, rows: Sequence[str], *, timeout: float = 30.0) -> dict[str, About]:
        """As `Store.about_many`."""
        ...

    def check_writable(self, key: str, about: About) -> Holder | None:
        """Returns the holder of an existing value, None if there are no owners. Raises PermissionDenied, KeyExists if it must stay."""
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
        """As `Store.put_many`, for pointers. owners: by row, other owners who let this person write there."""
        ...


@dataclass(slots=True)
class KeyState:
    """State of some keys. refused: why a key cannot be taken. ours: keys that hold this caller's pointer already.

    holders: by row, who lets this caller write there. replaces: by row, the SHA-256 of a void pointer that stands there.
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
    """Writes pointers under their keys, but none for a task with a refused key. Returns the refusals: index -> why.

    decided: called at most once, as soon as no other task can take any of the keys, a moment before they are written.

    Cost: one write of the store for 2,000 free keys; a look and another write if some are not free.
    Raises: StoreUnavailable, also if others keep taking the same keys; then some are written, and the call may be repeated.
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
        if overwrite or (is_unchanged and found.replaces):  # an older gateway does not know this condition
            values.write_pointers(_rows(left), owners=found.holders, timeout=timeout)
            return refused
    if not left:
        return refused
    raise StoreUnavailable(f"others are taking the output key {left[0][0]!r} at the same time", hint="it is tried again")


def look(values: KeyTable, wanted: Sequence[tuple[str, Pointer | None]], *, overwrite: bool, timeout: float = 30.0) -> KeyState:
    """Returns the state of output keys, each given with the pointer to write there.

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
    """Refuses the keys whose tasks have written their value, or may still write it."""
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


# -- fates: the tasks behind pointers ------------------------------------------------------------------------------------------


#: Submissions whose committed attempts are remembered; fragments read at once.
_MAX_KNOWN = 64
_WINDOW = 64


@dataclass(slots=True)
class _Commits:
    """The committed attempts of one submission's tasks, as far as they were read."""

    next: int = 0
    gone: bool = False
    tail: Tail = field(default_factory=Tail)
    ends: EndFold = field(default_factory=EndFold)
    attempts: dict[int, int] = field(default_factory=dict)  #: attempts other than 1
    lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, fragment: Fragment, store: Store) -> None:
        for outcome in self.ends.fold(outcomes_in(store, fragment.row) if fragment.row else fragment.outcomes):
            attempt = outcome.attempt or fragment.attempt
            if attempt != 1:
                self.attempts[outcome.index] = attempt


class FatesPort(Protocol):
    """Knows the fates of the tasks behind pointers."""

    def fate(self, pointer: Pointer, timeout: float) -> State | str:
        """Returns the final state of the task behind a pointer; "open", "never" (not submitted), or "gone" (collected).

        Raises: PermissionDenied, by a gateway; CoordinationUnavailable, StoreUnavailable, DataLost.
        """

    def fates(self, pointers: Iterable[Pointer], timeout: float) -> list[State | str]:
        """Returns the fates of several tasks, in order; "denied" if a gateway withholds one."""

    def attempt(self, pointer: Pointer) -> int:
        """Returns the committed attempt of a task just found COMPLETED."""


class Fates:
    """A `FatesPort` that asks ZooKeeper, and remembers. Thread-safe. coordinator: None means that every submission is gone."""

    def __init__(self, store: Store, coordinator: Coordinator | None) -> None:
        self._store = store
        self._coordinator = coordinator
        self._known: OrderedDict[int, _Commits] = OrderedDict()
        self._lock = threading.Lock()

    def fate(self, pointer: Pointer, timeout: float) -> State | str:
        return self._fate(pointer, set(), timeout)

    def fates(self, pointers: Iterable[Pointer], timeout: float) -> list[State | str]:
        """Returns the fates of several tasks, in order; "denied" if a gateway withholds one.

        Cost: a look at each submission with tasks that were not known to have ended.
        """
        looked: set[int] = set()
        found: list[State | str] = []
        for pointer in pointers:
            try:
                found.append(self._fate(pointer, looked, timeout))
            except PermissionDenied:
                found.append("denied")
        return found

    def attempt(self, pointer: Pointer) -> int:
        """Returns the committed attempt of a task just found COMPLETED."""
        return self._commits(pointer.sub).attempts.get(pointer.index, 1)

    def _fate(self, pointer: Pointer, looked: set[int], timeout: float) -> State | str:
        commits = self._commits(pointer.sub)
        with commits.lock:
            known = commits.ends.state_of(pointer.index)
            if (known is None or (pointer.by and not commits.tail.reigns)) and pointer.sub not in looked:
                self._catch_up(pointer.sub, commits, timeout)
                looked.add(pointer.sub)
                known = commits.ends.state_of(pointer.index)
            if commits.gone and known is None:
                return "gone"
            if commits.tail.complete and pointer.index >= commits.tail.next:
                return "never"
            if pointer.by and commits.tail.reigns and reign_of(commits.tail, pointer.index) != pointer.by:
                return "never"
            return "open" if known is None else known

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
        end_s = machine.monotonic() + timeout
        tail, done = fetch([paths.tail(number), paths.done(number)], self._coordinator.get, timeout_s=timeout)
        if tail is None or done is None:
            commits.gone = True
            return
        commits.tail = validity.tail(tail, number)
        paged = validity.decode(done.data, Paged, paths.done(number)) if done.data else Paged()
        at = 0
        while commits.next < paged.base and at < paged.base:
            page = page_at(self._store, number, at, timeout_s=timeout)
            for fragment in page[max(0, commits.next - at) :]:
                commits.take(fragment, self._store)
            at += len(page)
            commits.next = max(commits.next, at)
        while commits.next < done.stat.creates:
            some = range(commits.next, min(done.stat.creates, commits.next + _WINDOW))
            left_s = max(0.1, end_s - machine.monotonic())
            for found in fetch([paths.fragment(number, item) for item in some], self._coordinator.get, timeout_s=left_s):
                if found is None:
                    return  # paged out meanwhile: the next look reads the page
                commits.take(read_fragment(found.data), self._store)
                commits.next += 1


# -- from a key to its row -----------------------------------------------------------------------------------------------------


def locate(coordinator: Coordinator, store: Store, user_key: str, pointer: keys.Pointer, *, timeout_s: float) -> str:
    """Returns the key of the row with the value of `pointer`, found under `user_key`.

    Raises: NotFound if the task has not completed, failed, was never submitted, or is gone without a value.
    """
    task = f"{pointer.sub}_{pointer.index}"
    tail, done = fetch([paths.tail(pointer.sub), paths.done(pointer.sub)], coordinator.get, timeout_s=timeout_s)
    if tail is None or done is None:
        final = keys.final(pointer)
        if store.head(final, timeout_s=timeout_s) is not None:
            return final
        raise NotFound(
            f"{user_key!r} was an output of task {task}, whose submission is gone without a value", hint=f"rmgr history {pointer.sub}"
        )
    record = validity.tail(tail, pointer.sub)
    if pointer.index >= record.next or (pointer.by and reign_of(record, pointer.index) not in ("", pointer.by)):
        raise NotFound(f"{user_key!r} is the output of a task that was never submitted", hint="submit it again")
    paged, fragments = read_whole(coordinator, pointer.sub, done, timeout_s=timeout_s)
    recent = [fragment for _, fragment in fragments]
    for state, attempt in _ends(store, [*read_pages(store, pointer.sub, paged), *recent], pointer.index):
        if state is State.COMPLETED:
            return keys.output(pointer.sub, pointer.index, attempt, pointer.n)
        raise NotFound(f"{user_key!r} has no value: task {task} ended {state}", hint=f"rmgr show {task}")
    raise NotFound(f"{user_key!r} is not there yet: task {task} has not ended", hint=f"rmgr wait {pointer.sub}")


def _ends(store: Store, fragments: list[Fragment], index: int) -> Iterator[tuple[State, int]]:
    """Yields how a task ended, and its attempt; skips rows without the task."""
    ends = EndFold()
    for fragment in fragments:
        if fragment.row and fragment.ranges and not any(first <= index < first + count for _, first, count in fragment.ranges):
            continue
        its = (outcome for outcome in outcomes_of(fragment, store) if outcome.index == index)
        for outcome in ends.fold(its):
            yield outcome.state, outcome.attempt or fragment.attempt


# -- what lost or failed attempts wrote ----------------------------------------------------------------------------------------


_LOG = logging.getLogger("rmgr.submitter")
#: Most bytes of a row with the output keys of 256 tasks.
_MOST_PAYLOADS_BYTES = 64 * 2**20


def delete_outputs(
    store: Store, submission: Submission, first: int, count: int, attempt: int, failed: FailedRange, *, is_final: bool
) -> None:
    """Deletes what lost attempts may have written under output keys and, if is_final, the pointers. On an IO thread.

    Readers follow committed attempts, so this only frees space and names; a failure does no harm: rows then go with their submission. Rows
    are deleted by name, not from a listing, which may lack the row of a writer that died.
    Cost: for a lost attempt that wrote nothing a look of the store, many together; a read if arguments are not in the record.
    """
    block = decode_block(failed.block)
    try:
        outputs = _outputs_of(store, submission, block, range(first, first + count))
        if failed.reason in LOSSES:
            some = [(index, n) for index, named in outputs.items() for n in range(max(1, len(named)))]
            for at in range(0, len(some), _ROWS):
                store.delete_many([keys.output(submission.id, index, attempt, n) for index, n in some[at : at + _ROWS]])
        for index, named in outputs.items() if is_final and block.keyed else ():
            delete_pointers(store, submission.id, index, named)
    except (RmgrError, msgspec.DecodeError, IndexError) as error:  # fewer arguments than tasks: the row was changed
        _LOG.info("outputs_not_deleted", extra={"error": str(error)})


def _outputs_of(store: Store, submission: Submission, block: BlockData, indices: range) -> dict[int, tuple[str, ...]]:
    """Returns the output keys of each task, or a tuple of the same length."""
    if submission.command is not None:
        return dict.fromkeys(indices, tuple(key for key, _ in submission.command.output_files))
    payloads = block.payloads if block.keyed else ()
    if block.keyed and block.row:
        row = row_of(store, block.row, _MOST_PAYLOADS_BYTES)
        payloads = decode_payloads(row) if row else ()
    if not payloads:
        return dict.fromkeys(indices, ())
    return {index: decode_keyed(payloads[index - block.base]).outputs for index in indices}


def delete_pointers(store: Store, number: int, index: int, outputs: tuple[str, ...]) -> None:
    """Frees the output keys of a task that ended without a result; keys taken by another task stay."""
    for output in outputs:
        data, about = store.get_noted_many([keys.named(output)], largest=keys.POINTER_BYTES).get(keys.named(output), (None, None))
        if data is not None and about is not None and about.encoding is Encoding.POINTER:
            pointer = keys.decode_pointer(data)
            if (pointer.sub, pointer.index) == (number, index):
                store.delete(keys.named(output))
