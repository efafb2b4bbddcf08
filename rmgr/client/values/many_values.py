"""Many values by name in few round trips: put, read and deleted in steps of bounded size, each with its owner as a single one.

A step that cannot be done whole for some of its keys falls back to them one by one (`client/values/stored.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from itertools import islice
from typing import Any

from rmgr.client.progress import Counts, ProgressDisplay
from rmgr.client.values import content
from rmgr.client.values.results import load
from rmgr.client.values.stored import StoredValues, encoded
from rmgr.coord.decisions.ownership import Holder
from rmgr.coord.protocol import keys
from rmgr.coord.protocol.keys import Pointer
from rmgr.coord.protocol.ports import MAX_VALUE_BYTES, Encoding
from rmgr.errors import KeyExists
from rmgr.model.base.states import State

#: How a caller follows a long call, as `Values.put_many` has it.
Following = bool | Callable[[int, int], None]
#: Of one step of a put: values, and bytes above which no other one is added.
_PUT_VALUES, _PUT_BYTES = 1000, 4 * 2**20
#: Keys of one step of a read, and of a deletion.
_GET_KEYS, _DELETE_KEYS = 256, 1000


def put_many(
    values: StoredValues, given: Mapping[str, Any] | Iterable[tuple[str, Any]], *, overwrite: bool, progress: Following, timeout: float
) -> int:
    """See `Values.put_many`."""
    pairs = given.items() if isinstance(given, Mapping) else given
    done = 0
    with _told("put", given, progress) as tell:
        for step in _steps(pairs):
            for encoding in (Encoding.RAW, Encoding.PICKLE):
                rows = {key: data for key, (its, data) in step.items() if its is encoding}
                if rows:
                    _put(values, rows, encoding, overwrite=overwrite, timeout=timeout)
            values.seen.add(step)
            done += len(step)
            tell(done)
    return done


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


def _put(values: StoredValues, given: Mapping[str, bytes], encoding: Encoding, *, overwrite: bool, timeout: float) -> None:
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
            for row, data in free:  # somebody has come between: what it is now is found one by one
                values.put_row(keys.user_key(row), encoding, data, overwrite=True, timeout=timeout)
    if there:
        values.write_rows([(row, rows[row]) for row in there], encoding, overwrite=True, owners=owners, timeout=timeout)


def get_many(values: StoredValues, wanted: Iterable[str], *, trust: Sequence[str], progress: Following, timeout: float) -> dict[str, Any]:
    """See `Values.get_many`."""
    found: dict[str, Any] = {}
    asked = dict.fromkeys(wanted)
    with _told("get", asked, progress) as tell:
        for done, step in _parts(asked, _GET_KEYS):
            there = _get(values, step, timeout)
            for key in step:
                if key in there:
                    data, encoding, holder = there[key]
                    if encoding is Encoding.PICKLE and values.deeds is not None:
                        values.deeds.check_pickle(key, holder, trust)
                    found[key] = load(data, encoding, f"the value under {key!r}")
            tell(done)
    return found


def _get(values: StoredValues, wanted: Sequence[str], timeout: float) -> dict[str, tuple[bytes, Encoding, Holder]]:
    """Bytes, how they are to be read, and whose they are. Pointers are followed together."""
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


def _rows(values: StoredValues, pointers: Mapping[str, Pointer], timeout: float) -> tuple[dict[str, str], list[str]]:
    """Where the values lie of tasks that have completed; and keys whose values, if any, are found one by one."""
    rows: dict[str, str] = {}
    others: list[str] = []
    for (key, pointer), fate in zip(pointers.items(), values.fates.fates(pointers.values(), timeout), strict=True):
        if fate is State.COMPLETED:
            rows[key] = keys.output(pointer.sub, pointer.index, values.fates.attempt(pointer), pointer.n)
        elif fate in {"gone", "denied"}:
            others.append(key)
    return rows, others


def delete_many(values: StoredValues, wanted: Iterable[str], *, progress: Following, timeout: float) -> int:
    """See `Values.delete_many`."""
    deleted = 0
    asked = dict.fromkeys(wanted)
    with _told("delete", asked, progress) as tell:
        for done, step in _parts(asked, _DELETE_KEYS):
            deleted += values.delete_some(step, timeout=timeout)
            tell(done)
    return deleted


def _parts(wanted: Iterable[str], size: int) -> Iterator[tuple[int, list[str]]]:
    """(how many with these, these)."""
    rest, done = iter(wanted), 0
    while part := list(islice(rest, size)):
        done += len(part)
        yield done, part


@contextmanager
def _told(doing: str, of: object, progress: Following) -> Iterator[Callable[[int], None]]:
    total = len(of) if isinstance(of, Sized) else 0
    if callable(progress):
        yield lambda done: progress(done, total)
        return
    with ProgressDisplay(f"store.{doing}_many", enabled=progress) as display:
        yield lambda done: display.update(Counts(total=max(total, done), final=done))
