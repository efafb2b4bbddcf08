"""One signature over several blocks: each opens with its own path, and nothing else that is put beside it does."""

from __future__ import annotations

import hashlib

import msgspec
import pytest

from rmgr.coord.seal import MAX_LEAVES, NotSealed, opened, sign_together

ALONE = 64
HEAD = ALONE + 4


def sign(message: bytes) -> bytes:
    return hashlib.sha512(message).digest()


def is_signed(signature: bytes, statement: bytes) -> bool:
    try:
        found, message = opened(signature, statement)
    except NotSealed:
        return False
    return found == sign(message)


def statements(count: int, tag: str = "") -> list[bytes]:
    return [f"{tag}statement {number}".encode() for number in range(count)]


def test_a_block_alone_has_the_signature_of_its_statement() -> None:
    assert sign_together([b"one"], sign) == [sign(b"one")]
    assert opened(sign(b"one"), b"one") == (sign(b"one"), b"one")
    assert sign_together([], sign) == []


@pytest.mark.parametrize("count", [*range(2, 19), 31, 33, 192, 255, 256])
def test_every_block_opens_with_its_path_to_the_one_signature(count: int) -> None:
    signed: list[bytes] = []

    def once(message: bytes) -> bytes:
        signed.append(message)
        return sign(message)

    told = statements(count)
    signatures = sign_together(told, once)
    assert {opened(*pair) for pair in zip(signatures, told, strict=True)} == {(sign(signed[0]), signed[0])}
    assert len(signed) == 1
    assert max(map(len, signatures)) <= HEAD + 8 * 32 < ALONE + 300


def test_more_blocks_than_one_tree_takes_share_several_signatures() -> None:
    told = statements(2 * MAX_LEAVES + 1)
    signatures = sign_together(told, sign)
    assert all(map(is_signed, signatures, told))
    assert len({signature[:ALONE] for signature in signatures}) == 3
    assert len(signatures[-1]) == ALONE


@pytest.mark.parametrize("count", [2, 3, 6, 8, 13])
def test_no_other_path_place_count_or_statement_opens(count: int) -> None:
    told = statements(count)
    signatures = sign_together(told, sign)
    strangers = sign_together(statements(count, "other "), sign)
    for place, signature in enumerate(signatures):
        for other in range(count):
            assert is_signed(signature, told[other]) == (other == place)
            # its place or its path beside another's signature; and its path beside another root
            for mixed in (
                signature[:ALONE] + signatures[other][ALONE:],
                signature[:ALONE] + signatures[other][ALONE:HEAD] + signature[HEAD:],
                signature[:HEAD] + signatures[other][HEAD:],
            ):
                assert not is_signed(mixed, told[place]) or mixed == signature
            assert not is_signed(strangers[other][:ALONE] + signature[ALONE:], told[place])
            assert not is_signed(strangers[other], told[place])
        for size in range(len(signature)):
            assert not is_signed(signature[:size], told[place]), size
        for more in (b"\0", bytes(32), signature[HEAD : HEAD + 32]):
            assert not is_signed(signature + more, told[place])
        for claimed in range(300):
            changed = signature[: ALONE + 2] + claimed.to_bytes(2, "big") + signature[HEAD:]
            assert is_signed(changed, told[place]) == (claimed == count)
            moved = signature[:ALONE] + claimed.to_bytes(2, "big") + signature[ALONE + 2 :]
            assert is_signed(moved, told[place]) == (claimed == place)
        for bit in range(8 * ALONE, 8 * len(signature)):
            bent = bytearray(signature)
            bent[bit // 8] ^= 1 << bit % 8
            assert not is_signed(bytes(bent), told[place])


def test_a_node_stands_for_no_leaf_and_a_leaf_for_no_node() -> None:
    """Whoever sees a tree knows all its hashes, and may call any of them a level higher or lower."""
    told = statements(4)
    signatures = sign_together(told, sign)
    leaves = [hashlib.sha256(b"rmgr leaf\0" + text).digest() for text in told]
    right = signatures[0][HEAD + 32 :]
    assert right == hashlib.sha256(b"rmgr node\0" + leaves[2] + leaves[3]).digest()
    head = signatures[0][:ALONE]
    for statement in (leaves[0] + leaves[1], b"rmgr node\0" + leaves[0] + leaves[1], leaves[0], right):
        for place, count in ((0, 2), (0, 3), (0, 4), (1, 2), (2, 3)):
            for path in (b"", right, leaves[1] + right, leaves[0] + right):
                assert not is_signed(head + place.to_bytes(2, "big") + count.to_bytes(2, "big") + path, statement)


def test_a_signature_of_one_form_is_none_of_the_other() -> None:
    """What is signed for several is no statement of a block, and the root is worth nothing as the signature of a block alone."""
    told = statements(3)
    signatures = sign_together(told, sign)
    found, message = opened(signatures[0], told[0])
    assert not is_signed(found, told[0])
    assert msgspec.msgpack.decode(message)[:2] == ["rmgr works 1", 3]
    assert not is_signed(sign(told[0]) + signatures[0][ALONE:], told[0])
