"""Any sequence of cuts of a sealed block verifies, and no change of signed fields does; alone or signed with others."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from rmgr.coord.ops import work as ops
from rmgr.coord.protocol.records import decode_block, encode_block
from rmgr.coord.seal import NotSealed, block_statement, opened, seal_blocks
from rmgr.model.block import BlockData, BlockKey

_payloads = st.lists(st.one_of(st.binary(max_size=3), st.binary(min_size=30, max_size=34), st.just(b"")), min_size=1, max_size=256)
_flag = st.booleans()


@st.composite
def sealed_blocks(draw: st.DrawFn) -> tuple[BlockKey, BlockData]:
    payloads = tuple(draw(_payloads))
    first = draw(st.integers(0, 10**6))
    key = BlockKey(priority=0, seq=5, submission=7, first=first, count=len(payloads), attempt=1, cores=1, memory_mib=0)
    data = BlockData(
        function=draw(st.sampled_from(["", "f" * 64])), resubmit=draw(_flag), keyed=draw(_flag), serial=draw(_flag),
        retries=draw(st.integers(0, 3)), base=first, payloads=payloads if any(payloads) else (),
    )
    told = {"cluster_id": "c", "user": "ann", "spec": b"s" * 32}
    beside = [(replace(key, first=key.end + at, count=1), BlockData()) for at in range(draw(st.integers(0, 5)))]
    place = draw(st.integers(0, len(beside)))
    blocks = [*beside[:place], (key, data), *beside[place:]]
    return seal_blocks(blocks, key_id="k", not_after_s=99, sign=sign, **told)[place]


def sign(message: bytes) -> bytes:
    return hashlib.sha512(message).digest()


def check(key: BlockKey, data: BlockData, *, user: str = "ann", cluster: str = "c", spec: bytes = b"s" * 32) -> bool:
    assert data.seal is not None
    try:
        statement = block_statement(
            key, data, seal=data.seal, payloads=data.payloads, base=data.base, cluster_id=cluster, user=user, spec=spec
        )
        signature, signed = opened(data.seal.signature, statement)
    except NotSealed:
        return False
    return signature == sign(signed)


def cuts(draw: st.DrawFn, key: BlockKey, data: BlockData, most: int) -> tuple[BlockKey, BlockData]:
    for _ in range(draw(st.integers(0, most))):
        low = draw(st.integers(0, key.count - 1))
        high = draw(st.integers(low + 1, key.count))
        part = replace(key, first=key.first + low, count=high - low, attempt=key.attempt + draw(st.integers(0, 1)))
        data = decode_block(encode_block(ops.cut(data, key.first, part.first, part.count)))
        counted = {"losses": draw(st.integers(0, 3)), "failures": 1, "claimed_us": 4, "incarnation": 2, "stamp": "t"}
        key, data = part, msgspec.structs.replace(data, **counted)
    return key, data


@given(st.data(), sealed_blocks())
@settings(max_examples=150, deadline=None)
def test_any_sequence_of_cuts_verifies_and_holds_the_same_arguments(data: st.DataObject, block: tuple[BlockKey, BlockData]) -> None:
    whole, given_data = block
    key, part = cuts(data.draw, whole, given_data, 5)
    assert check(key, part)
    for index in range(key.first, key.end):
        mine = part.payloads[index - part.base] if part.payloads else b""
        assert mine == (given_data.payloads[index - whole.first] if given_data.payloads else b"")


@given(st.data(), sealed_blocks())
@settings(max_examples=300, deadline=None)
def test_any_change_of_what_was_signed_is_refused(data: st.DataObject, block: tuple[BlockKey, BlockData]) -> None:
    key, part = cuts(data.draw, *block, 3)
    seal = part.seal
    assert seal is not None
    shift = data.draw(st.sampled_from([-16, -1, 1, 16]))
    index = data.draw(st.integers(0, max(0, len(part.payloads) - 1)))
    fields = {
        "payload": lambda: (key, _with(part, payloads=_flipped(part.payloads, index, data.draw(st.integers(0, 7))))),
        "dropped arguments": lambda: (key, _with(part, payloads=())),
        "order": lambda: (key, _with(part, payloads=part.payloads[::-1])),
        "index": lambda: (replace(key, first=max(0, key.first + shift)), _with(part, base=max(0, part.base + shift))),
        "base": lambda: (key, _with(part, base=part.base + shift)),
        "signed first": lambda: (key, _with(part, seal=_with(seal, first=seal.first + shift))),
        "signed count": lambda: (key, _with(part, seal=_with(seal, count=seal.count + shift))),
        "more tasks": lambda: (replace(key, first=seal.first, count=seal.count + 1), part),
        "function": lambda: (key, _with(part, function="e" * 64)),
        "keyed": lambda: (key, _with(part, keyed=not part.keyed)),
        "serial": lambda: (key, _with(part, serial=not part.serial)),
        "resubmit": lambda: (key, _with(part, resubmit=not part.resubmit)),
        "retries": lambda: (key, _with(part, retries=part.retries + 1)),
        "row": lambda: (key, _with(part, row=f"args/1/2/{'a' * 64}")),
        "not after": lambda: (key, _with(part, seal=_with(seal, not_after_s=seal.not_after_s + 1))),
        "path cut off": lambda: (key, _with(part, seal=_with(seal, signature=seal.signature[: data.draw(st.integers(0, 340))]))),
        "path": lambda: (key, _with(part, seal=_with(seal, signature=_bent(seal.signature, data.draw(st.integers(0, 400)))))),
        "proof": lambda: (key, _with(part, seal=_with(seal, proof=_flipped(seal.proof, 0, 0)))),
    }
    what = data.draw(st.sampled_from(sorted(fields)))
    other_key, other = fields[what]()
    if (other_key, other) == (key, part) or (what in {"base", "index"} and not part.payloads):
        return  # nothing was changed, or what was changed means nothing there
    if what == "dropped arguments" and not part.payloads:
        return
    if what == "index" and other.payloads == block[1].payloads[other_key.first - block[0].first : other_key.end - block[0].first]:
        return  # the same arguments were signed for that index, too
    assert not check(other_key, other), what


@given(st.data(), sealed_blocks())
@settings(max_examples=30, deadline=None)
def test_another_owner_cluster_or_record_is_refused(data: st.DataObject, block: tuple[BlockKey, BlockData]) -> None:
    key, part = cuts(data.draw, *block, 2)
    assert not check(key, part, user="bob")
    assert not check(key, part, cluster="d")
    assert not check(key, part, spec=b"t" * 32)


@given(sealed_blocks(), st.lists(st.binary(max_size=40), max_size=40), st.integers(-3, 300), st.integers(-3, 300), st.integers(0, 300))
@settings(max_examples=150, deadline=None)
def test_a_forged_seal_never_breaks_who_cuts_it(
    block: tuple[BlockKey, BlockData], proof: list[bytes], first: int, count: int, base: int
) -> None:
    key, part = block
    assert part.seal is not None
    forged = _with(part, base=base, seal=_with(part.seal, first=first, count=count, proof=tuple(proof)))
    half = replace(key, count=max(1, key.count // 2))
    check(half, ops.cut(forged, key.first, half.first, half.count))


def _with(item: object, **changes: object):  # type: ignore[no-untyped-def]
    return msgspec.structs.replace(item, **changes)


def _bent(signature: bytes, at: int) -> bytes:
    at %= len(signature)
    return signature[:at] + bytes([signature[at] ^ 1]) + signature[at + 1 :]


def _flipped(items: tuple[bytes, ...], at: int, bit: int) -> tuple[bytes, ...]:
    if not items:
        return items
    data = items[at]
    changed = bytes([data[0] ^ 1 << bit]) + data[1:] if data else b"\0"
    return (*items[:at], changed, *items[at + 1 :])
