"""One signature for several blocks that leave together: of the root of a hash tree over their statements. Pure.

    a block alone                 signature                                             64 bytes, of its statement
    one of several                signature, place, count, path to the root             64 + 4 + 32 a level, of `_signed`

              root                A leaf is the hash of a whole statement (`coord/seal/work.py`), so that all that a seal covers is covered,
             /    \\               and any block can be verified without the others. Leaves, nodes and what is signed begin differently,
          node     \\              and what is signed tells the number of leaves, which fixes the length of every path: a node cannot
         /    \\     \\             stand for a leaf, nor a leaf for a node. A node without a neighbour goes up as it is.
        0      1     2

Whoever cuts a block keeps all of it as it is: what differs between the parts of a block is not in its statement.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import msgspec

#: Most blocks of one signature: 8 levels, 324 bytes beside each.
MAX_LEAVES = 256

_SIGNED = "rmgr works 1"
_LEAF = b"rmgr leaf\0"
_NODE = b"rmgr node\0"
_HASH = 32
#: Bytes of an Ed25519 signature, and with place and count.
_ALONE = 64
_HEAD = _ALONE + 4

_pack = msgspec.msgpack.Encoder()


class NotSealed(Exception):
    """Reason (a sentence) for which a block or a fragment cannot be what was signed."""


def sign_together(statements: Sequence[bytes], sign: Callable[[bytes], bytes]) -> list[bytes]:
    """A signature for each statement. Cost: `sign` once for up to `MAX_LEAVES` of them, and two hashes each."""
    signatures: list[bytes] = []
    for at in range(0, len(statements), MAX_LEAVES):
        some = statements[at : at + MAX_LEAVES]
        signatures += _signed_tree(some, sign) if len(some) > 1 else [sign(some[0])]
    return signatures


def opened(signature: bytes, statement: bytes) -> tuple[bytes, bytes]:
    """The Ed25519 signature in the `signature` of a block with that statement, and what it must be a signature of.

    Raises: NotSealed when it has no form that a signature can have. Cost: of one of several a hash, and one a level.
    """
    if len(signature) == _ALONE:
        return signature, statement
    place, count = int.from_bytes(signature[_ALONE : _ALONE + 2], "big"), int.from_bytes(signature[_ALONE + 2 : _HEAD], "big")
    if not (len(signature) > _HEAD and 2 <= count <= MAX_LEAVES and place < count):
        raise NotSealed(f"its signature has {len(signature)} bytes, and no form that one can have")
    found, at, left = hashlib.sha256(_LEAF + statement).digest(), _HEAD, count
    while left > 1:
        if place ^ 1 < left:
            beside = signature[at : at + _HASH]
            at += _HASH
            found = hashlib.sha256(_NODE + beside + found if place & 1 else _NODE + found + beside).digest()
        place, left = place >> 1, (left + 1) >> 1
    if at != len(signature):  # too short as well: what is cut off counts as if it were there
        raise NotSealed(f"its path has {len(signature) - _HEAD} bytes where {at - _HEAD} are needed")
    return signature[:_ALONE], _message(count, found)


def _signed_tree(statements: Sequence[bytes], sign: Callable[[bytes], bytes]) -> list[bytes]:
    level = [hashlib.sha256(_LEAF + statement).digest() for statement in statements]
    levels = []
    while len(level) > 1:
        levels.append(level)
        pairs = zip(level[::2], level[1::2], strict=False)
        level = [hashlib.sha256(_NODE + left + right).digest() for left, right in pairs] + level[len(level) & ~1 :]
    beside = [b""]  # the way from each node of a level to the root, from the top down
    for nodes in reversed(levels):
        beside = [b"".join(nodes[at ^ 1 : (at ^ 1) + 1]) + beside[at >> 1] for at in range(len(nodes))]
    count = len(statements)
    head = sign(_message(count, level[0]))
    size = count.to_bytes(2, "big")
    return [head + place.to_bytes(2, "big") + size + path for place, path in enumerate(beside)]


def _message(count: int, root: bytes) -> bytes:
    return _pack.encode((_SIGNED, count, root))
