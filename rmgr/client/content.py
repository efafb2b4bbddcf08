"""Values named by their content, written once by the first process that needs them; and large pickles in parts, without a second copy.

The pickler writes bytes of more than 64 KiB, and buffers (of arrays), to its file as the objects that they are. These objects
are kept beside the small frames between them.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import sha256
from itertools import islice
from typing import TYPE_CHECKING, Any

from rmgr.coord import contents
from rmgr.coord.protocol.records import encode_payloads
from rmgr.runtime import machine

if TYPE_CHECKING:
    from rmgr.coord.protocol.ports import Store

#: Size from which a row of arguments is written alone, without joining its parts first (bytes).
LARGE_BYTES = 512 * 1024
#: Size of one argument or value from which its pickle is made in parts (bytes).
SCATTER_BYTES = 16 * 1024 * 1024
#: Members of a container that are looked at.
_MEMBERS = 64
#: Types without bytes worth keeping apart.
_SMALL = frozenset({str, int, float, bool, type(None)})
Part = bytes | memoryview


class Scattered:
    """A pickle in parts. Parts of buffers that may change are views: store them before the caller goes on."""

    __slots__ = ("_parts", "_size")

    def __init__(self, parts: list[Part]) -> None:
        self._parts = parts
        self._size = sum(map(len, parts))

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Part]:
        return iter(self._parts)

    @property
    def parts(self) -> list[Part]:
        """The parts, in order."""
        return self._parts

#: A pickle; a large one may be in parts.
Payload = bytes | Scattered


def put_content(store: Store, key: str, data: bytes, *, timeout_s: float) -> None:
    """Ensures that `data` is stored under a key that names its hash: writes it unless it is there and was confirmed not long ago.

    Raises: StoreUnavailable, PermissionDenied, ValueTooLarge. Cost: one look, and one write in 30 days.
    """
    now_s, about = machine.wall_s(), store.about(key, timeout_s=timeout_s)
    if about is None or not contents.is_fresh(about.note, now_s):
        store.put(key, data, note=contents.mark(now_s), timeout_s=timeout_s)


def renew_content(store: Store, key: str, *, timeout_s: float) -> bool:
    """Confirms a value that is there, under a key that names its hash; False if there is none. Errors and cost as of `put_content`."""
    now_s, about = machine.wall_s(), store.about(key, timeout_s=timeout_s)
    if about is None:
        return False
    if contents.is_fresh(about.note, now_s):
        return True
    value = store.stream(key, timeout_s=timeout_s)
    if value is not None:
        store.put(key, value, note=contents.mark(now_s), timeout_s=timeout_s)
    return value is not None


def whole(payloads: Iterable[Payload]) -> list[bytes]:
    """Returns each payload in one piece; copies those in parts."""
    return [b"".join(payload) if isinstance(payload, Scattered) else payload for payload in payloads]


def parts_of(payloads: tuple[Payload, ...]) -> Sequence[Part]:
    """Returns the row of these arguments in parts, without copying large ones, for `coord.protocol.records.decode_payloads`."""
    if sum(map(len, payloads)) < LARGE_BYTES:
        return (encode_payloads(tuple(whole(payloads))),)
    parts: list[Part] = [b"\xdc" + len(payloads).to_bytes(2, "big")]  # a MessagePack array: a block has at most 256 tasks
    for payload in payloads:
        size = len(payload)
        # MessagePack ends at 4 GiB; larger ones begin with 0xc1, which MessagePack never uses (`daemons.starter.core.fetch` reads it).
        parts.append(b"\xc6" + size.to_bytes(4, "big") if size < 1 << 32 else b"\xc1" + size.to_bytes(8, "big"))
        parts += payload.parts if isinstance(payload, Scattered) else (payload,)
    return parts


def hash_of(parts: Sequence[Part]) -> str:
    """Returns the SHA-256 of all parts together, in hex."""
    digest = sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def put_rows(store: Store, rows: Sequence[tuple[str, Sequence[Part]]]) -> None:
    """Writes rows of arguments, named by their SHA-256: small ones together, large ones one by one without hashing them again.

    Raises: as `Store.put`.
    """
    put_hashed: Any = getattr(store, "put_hashed", None)
    small: list[tuple[str, bytes]] = []
    large: list[tuple[str, Sequence[Part]]] = []
    for key, parts in rows:
        if sum(map(len, parts)) < LARGE_BYTES:
            small.append((key, b"".join(parts)))
        else:
            large.append((key, parts))
    if small:
        store.put_many(small)
    for key, parts in large:
        if put_hashed is None:
            store.put(key, parts)
        else:
            put_hashed(key, parts, bytes.fromhex(key.rpartition("/")[2]))


# -- pickles in parts ----------------------------------------------------------------------------------------------------------


def is_large(values: Iterable[Any], depth: int = 1) -> bool:
    """Returns whether a pickle in parts is worth it, by the size of bytes and arrays, also one level deep. Cost: < 1 us for few."""
    for value in values:
        if type(value) in _SMALL:
            continue
        if isinstance(value, bytes | bytearray):
            if len(value) >= SCATTER_BYTES:
                return True
        elif isinstance(value, list | tuple | dict):
            members = value.values() if isinstance(value, dict) else value
            if depth and is_large(islice(members, _MEMBERS), depth - 1):
                return True
        else:
            size = value.nbytes if hasattr(type(value), "nbytes") else 0  # never asks `__getattr__`, which may do anything
            if isinstance(size, int) and size >= SCATTER_BYTES:
                return True
    return False


def scattered(value: object, protocol: int, *, is_plain: bool = False) -> Scattered:
    """Pickles `value` in parts. Raises: as `pickle.dumps`.

    Args:
        is_plain: nothing in `value` mentions a module.
    """
    parts = _Parts()
    pickle.Pickler(parts, protocol).dump(value)
    if is_plain:
        return Scattered(parts.made())
    from rmgr.runner import pickles, program  # commands do without it

    if not parts.mention(program.mentions):
        return Scattered(parts.made())
    parts = _Parts()
    front, _ = pickles.dump(value, parts)
    return Scattered([*([front] if front else []), *parts.made()])


class _Parts:
    """The file of a pickler: gathers frames, keeps large objects as they are."""

    def __init__(self) -> None:
        self._done: list[Part] = []
        self._frames = bytearray()

    def write(self, data: bytes | bytearray | memoryview | pickle.PickleBuffer) -> int:
        if isinstance(data, pickle.PickleBuffer):
            data = data.raw()  # holds the buffer's owner
        elif isinstance(data, bytearray):
            data = memoryview(data)
        elif isinstance(data, memoryview):
            data = bytes(data)  # copies memory that the pickler may free
        if len(data) < SCATTER_BYTES:
            self._frames += data
        else:
            self._end_frames()
            self._done.append(data)
        return len(data)

    def mention(self, mentions: Callable[[bytes | bytearray], bool]) -> bool:
        """Returns whether `mentions` holds of some part. Names of modules are in frames, never in large objects."""
        return mentions(self._frames) or any(mentions(part) for part in self._done if isinstance(part, bytes) and len(part) < SCATTER_BYTES)

    def made(self) -> list[Part]:
        self._end_frames()
        return self._done

    def _end_frames(self) -> None:
        if self._frames:
            self._done.append(bytes(self._frames))
            self._frames.clear()
