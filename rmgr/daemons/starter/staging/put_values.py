"""Puts values that tasks have made into the store: from memory, from files of their runner, from files that users name.

On an IO thread. What is in a file is opened with its user's rights, and bounded before it is read and while it is: it may be all holes,
and it may grow.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from typing import BinaryIO

from rmgr.adapters.host.accounts import Account, open_regular
from rmgr.coord.protocol.ports import MAX_VALUE_BYTES, Encoding, Note, Store
from rmgr.errors import UsageError, ValueTooLarge
from rmgr.model.base.units import format_size
from rmgr.model.wire.frames import Value
from rmgr.runner.host.kernel import NODE_TROUBLE

_CHUNK = 512 * 1024
#: What lies beside the value of an output key, by its row and encoding: whose it is.
Seal = Callable[[str, Encoding], Note]


def put_hashed(store: Store, key: str, value: Value, account: Account | None, *, most: int) -> tuple[int, bytes]:
    """Stores a value; returns its size and the SHA-256 of its bytes, which is said where its task is. Raises: as `put`."""
    made = _adopted(store, key, value, account, b"")
    if made is not None:
        return made
    digest = hashlib.sha256()
    if not value.path:
        digest.update(value.data)
    return put(store, key, value, account, digest=digest, is_kept=True, most=most), digest.digest()


def put(
    store: Store,
    key: str,
    value: Value,
    account: Account | None,
    seal: Seal | None = None,
    *,
    most: int,
    digest: hashlib._Hash | None = None,
    is_kept: bool = False,
) -> int:
    """Stores a value; returns its size.

    Args:
        most: bytes that a file may have. digest: of what is read from it. is_kept: it stays its user's, to be changed.
    Raises: ValueTooLarge, StoreUnavailable, OSError.
    """
    encoding = encoding_of(pickled=value.pickled)
    note = seal(key, encoding) if seal is not None else b""
    if not value.path:
        store.put(key, value.data, encoding=encoding, note=note)
        return len(value.data)
    if not is_kept and (made := _adopted(store, key, value, account, note)) is not None:
        return made[0]
    return _put_file(store, key, open_regular(value.path, account), value.path, encoding, note, most=most, digest=digest)


def put_named(store: Store, key: str, name: str, home: str, account: Account | None, seal: Seal | None, *, most: int) -> None:
    """Stores an output file of a command under the name that its user gave it, below `home` unless that is a whole path.

    Raises: UsageError, ValueTooLarge with words for the user: nothing about the node is wrong; StoreUnavailable; OSError.
    """
    note = seal(key, Encoding.RAW) if seal is not None else b""
    try:
        fd = open_regular(name, account, below=home)
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError(f"its output file {name[:300]!r} was not written") from None
    except OSError as error:
        if error.errno in NODE_TROUBLE:
            raise
        raise UsageError(f"its output file {name[:300]!r} cannot be stored: {error.strerror}") from None
    except ValueError:  # NUL, or what is no UTF-8
        raise UsageError(f"its output file {name[:300]!r} cannot be stored: no file can have this name") from None
    _put_file(store, key, fd, name, Encoding.RAW, note, most=most)


def _put_file(
    store: Store, key: str, fd: int, name: str, encoding: Encoding, note: Note, *, most: int, digest: hashlib._Hash | None = None
) -> int:
    size, most = 0, min(most or MAX_VALUE_BYTES, MAX_VALUE_BYTES)

    def check(found: int) -> None:
        if found > most:
            has = f"{format_size(found)} ({found} bytes, holes counted)"
            raise ValueTooLarge(f"its file {name[:300]!r} has {has}, and one that is stored has at most {format_size(most)}")

    def chunks(file: BinaryIO) -> Iterator[bytes]:
        nonlocal size
        while data := file.read(_CHUNK):
            if digest is not None:
                digest.update(data)
            size += len(data)
            check(size)
            yield data

    with open(fd, "rb") as file:
        check(os.fstat(fd).st_size)
        store.put(key, chunks(file), encoding=encoding, note=note)
    return size


def _adopted(store: Store, key: str, value: Value, account: Account | None, note: Note) -> tuple[int, bytes] | None:
    """Stores a value whose file is the Starter's own, where it need not be copied; returns its size and SHA-256."""
    if not value.path or account is not None:
        return None
    return store.adopt(key, value.path, encoding=encoding_of(pickled=value.pickled), note=note, sha256=value.sha256)


def encoding_of(*, pickled: bool) -> Encoding:
    """How the bytes of a value are written."""
    return Encoding.PICKLE if pickled else Encoding.RAW
