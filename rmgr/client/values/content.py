"""Values that are named by what they hold: written once, by whoever needs them first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from rmgr.client.values.scattered import Part, Payload, Scattered
from rmgr.coord.protocol.records import encode_payloads
from rmgr.errors import KeyExists

if TYPE_CHECKING:
    from rmgr.coord.protocol.ports import Store


def put_once(store: Store, key: str, data: bytes, *, timeout_s: float) -> None:
    """Writes `data` under a key that names its hash, unless it is there: then it holds the same, and may be somebody else's.

    Raises: StoreUnavailable, PermissionDenied, ValueTooLarge.
    """
    with suppress(KeyExists):
        store.put(key, data, overwrite=False, timeout_s=timeout_s)


#: From this many bytes a row of arguments is written by itself, and is not put together before.
LARGE_BYTES = 512 * 1024


def whole(payloads: Iterable[Payload]) -> list[bytes]:
    """Payloads in one piece each: what is in parts is copied."""
    return [b"".join(payload) if isinstance(payload, Scattered) else payload for payload in payloads]


def parts_of(payloads: tuple[Payload, ...]) -> Sequence[Part]:
    """The row of these arguments, for `coord.records.decode_payloads`, in parts: large ones are not copied."""
    if sum(map(len, payloads)) < LARGE_BYTES:
        return (encode_payloads(tuple(whole(payloads))),)
    parts: list[Part] = [b"\xdc" + len(payloads).to_bytes(2, "big")]  # an array, as MessagePack has it: a block has at most 256 tasks
    for payload in payloads:
        size = len(payload)
        # MessagePack ends at 4 GiB; 0xc1 is what it never uses (`daemons.starter.core.arguments` reads it).
        parts.append(b"\xc6" + size.to_bytes(4, "big") if size < 1 << 32 else b"\xc1" + size.to_bytes(8, "big"))
        parts += payload.parts if isinstance(payload, Scattered) else (payload,)
    return parts


def hash_of(parts: Sequence[Part]) -> str:
    """SHA-256 of all parts together, in hex."""
    digest = sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def put_rows(store: Store, rows: Sequence[tuple[str, Sequence[Part]]]) -> None:
    """Writes rows of arguments, named by their SHA-256: small ones together, large ones one by one, hashed no second time.

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
