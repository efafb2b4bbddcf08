"""Signatures over one or several blocks: every field is signed or not, and each block verifies with its own path."""

from __future__ import annotations

import hashlib
from contextlib import nullcontext
from dataclasses import fields, replace

import msgspec
import pytest

from rmgr.coord.ops import work as ops
from rmgr.coord.protocol.multi import MAX_ZNODE_BYTES
from rmgr.coord.protocol.records import (
    NOTHING,
    decode_block,
    decode_fragment,
    decode_page,
    encode_block,
    encode_failed,
    encode_fragment,
    glance_fragment,
    join_page,
    read_fragment,
    split_page,
)
from rmgr.coord.seal import (
    BLOCK_UNSIGNED,
    KEY_UNSIGNED,
    MAX_LEAVES,
    RECORD_UNSIGNED,
    NotSealed,
    block_statement,
    check_shape,
    fragment_statement,
    named_digest,
    needs_seal,
    opened,
    row_digest,
    seal_blocks,
    seal_fragment,
    sign_together,
    spec_digest,
)
from rmgr.model.base import Request
from rmgr.model.block import MAX_INLINE_BYTES, MAX_TASKS, Allocation, BlockData, BlockKey, FailedRange, Fragment, Outcome, PastAttempt
from rmgr.model.states import Reason, State
from rmgr.model.submission import Command, Dependency, OnDisconnect, Phase, PythonEnvironment, Rigid, Submission, Upload, Work

RECORD = Submission(id=7, name="n", user="ann", queue="default", work=Work.COMMAND, command=Command(argv=("true",)))
KEY = BlockKey(priority=0, seq=1, submission=7, first=10, count=6, attempt=1, cores=1, memory_mib=0)
#: Another value for every signed field of a record.
OTHER_RECORD: dict[str, object] = {
    "name": "m",
    "user": "bob",
    "queue": "other",
    "work": Work.PYTHON,
    "request": Request(cores=2),
    "resubmit": False,
    "retries": 1,
    "backoff_us": 1,
    "on_disconnect": OnDisconnect.EXCLUSIVE,
    "after": (Dependency(condition="ok", submission=1),),
    "nonce": "a" * 32,
    "signed_s": 1,
    "submitted_us": 1,
    "array": "1-6",
    "max_running": 1,
    "umask": 0o077,
    "command": Command(argv=("false",)),
    "python": PythonEnvironment(),
    "function": "f" * 64,
    "account": "a",
    "host": "h",
    "grace_us": 1,
    "rigid": Rigid(processes=2),
    "spec_sha256": "e" * 64,
}
OTHER_PARTS: list[object] = [
    *(
        Command(argv=("true",), **other)
        for other in (
            {"script_sha256": "a" * 64},
            {"script_name": "x"},
            {"env": {"LD_PRELOAD": "x"}},
            {"cwd": "/"},
            {"out": "o"},
            {"err": "e"},
            {"named_only": True},
            {"stdin_sha256": "b" * 64},
            {"uploads": (Upload(name="u", sha256="c" * 64),)},
            {"input_files": (("k", "f"),)},
            {"output_files": (("k", "f"),)},
        )
    ),
    *(
        PythonEnvironment(**other)
        for other in (
            {"python": "/bin/python"},
            {"version": "3.11"},
            {"cloudpickle": "3.1.1"},
            {"program": "9"},
            {"sys_path": ("/x",)},
            {"argv": ("x",)},
            {"warnings": (("ignore", "", "builtins.Warning", "", "0"),)},
            {"settings": (("recursion", "5000"),)},
            {"modules": ("d" * 64,)},
            {"initializer": "e" * 64},
            {"worker_group": "g"},
        )
    ),
    *(
        Request(**other)
        for other in ({"cores": 2}, {"memory_bytes": 1}, {"time_limit_us": 1}, {"features": ("gpu",)}, {"resources": {"gpu": 1}})
    ),
]
#: Another value for every signed field of a block; `payloads` and `row` are the arguments.
OTHER_BLOCK: dict[str, object] = {
    "function": "e" * 64,
    "resubmit": False,
    "retries": 3,
    "keyed": True,
    "serial": True,
    "payloads": (b"x",) * 6,
    "row": f"args/0000000007/0000000010/{'a' * 64}",
}


def signature(text: bytes) -> bytes:
    return hashlib.sha512(text).digest()


def sealed(data: BlockData, key: BlockKey = KEY) -> BlockData:
    told = {"cluster_id": "c", "user": "ann", "spec": spec_digest(RECORD), "key_id": "k" * 32}
    [(_, made)] = seal_blocks([(key, data)], not_after_s=9, sign=signature, **told)
    return made


def statement(data: BlockData, key: BlockKey = KEY, **other: object) -> bytes:
    assert data.seal is not None
    told = {"cluster_id": "c", "user": "ann", "spec": spec_digest(RECORD)} | other
    text = block_statement(key, data, seal=data.seal, payloads=data.payloads, base=data.base, **told)  # type: ignore[arg-type]
    return signature(text)


def test_every_field_of_a_record_is_signed_or_listed_with_the_reason_why_not() -> None:
    assert {field.name for field in fields(Submission)} == OTHER_RECORD.keys() | RECORD_UNSIGNED.keys()
    assert not OTHER_RECORD.keys() & RECORD_UNSIGNED.keys()
    known = spec_digest(RECORD)
    for name, value in OTHER_RECORD.items():
        assert spec_digest(replace(RECORD, **{name: value})) != known, name
    changed = replace(RECORD, id=8, phase=Phase.CLOSED, reason="r", reason_detail="d", owner="o", priority=5, closed_us=4, token="t")
    assert spec_digest(changed) == known


def test_every_field_of_what_runs_and_what_it_needs_is_signed() -> None:
    for kind, name in ((Command, "command"), (PythonEnvironment, "python"), (Request, "request")):
        others = [other for other in OTHER_PARTS if type(other) is kind]
        bare = kind(argv=("true",)) if kind is Command else kind()
        names = {field.name for field in fields(kind)} - {"newer", "argv"}
        assert {field for field in names if any(getattr(other, field) != getattr(bare, field) for other in others)} == names
        digests = {spec_digest(replace(RECORD, **{name: other})) for other in (bare, *others)}
        assert len(digests) == len(others) + 1


def test_every_field_of_a_block_is_signed_or_listed_with_the_reason_why_not() -> None:
    assert set(BlockData.__struct_fields__) == OTHER_BLOCK.keys() | BLOCK_UNSIGNED.keys()
    assert {field.name for field in fields(BlockKey)} == KEY_UNSIGNED.keys() | {"cores", "memory_mib"}
    data = sealed(BlockData(function="f" * 64, base=10, payloads=tuple(bytes([n]) for n in range(6)), stamp="s"))
    known = statement(data)
    assert data.seal is not None
    assert known == data.seal.signature
    for name, value in OTHER_BLOCK.items():
        changed = msgspec.structs.replace(data, **{name: value})
        assert statement(changed) != known, name
    assert statement(data, replace(KEY, submission=8)) == known, "a number is given later; its record's nonce is in the spec"
    for other in ({"cluster_id": "d"}, {"user": "bob"}, {"spec": b"other"}):
        assert statement(data, **other) != known
    for later in ({"not_after_s": 10}, {"first": 9, "count": 7}, {"count": 7}):
        seal = msgspec.structs.replace(data.seal, **later)
        with pytest.raises(NotSealed) if "count" in later else nullcontext():
            assert statement(msgspec.structs.replace(data, seal=seal)) != known


def test_a_task_outside_the_signed_range_is_refused() -> None:
    data = sealed(BlockData())
    for first, count in ((9, 2), (10, 7), (16, 1), (0, 1)):
        with pytest.raises(NotSealed, match=r"not among 10\.\.15"):
            statement(data, replace(KEY, first=first, count=count))


def test_arguments_in_a_row_are_named_by_their_content() -> None:
    row = f"args/0000000007/0000000010/{'a' * 64}"
    data = sealed(BlockData(base=10, row=row))
    known = statement(data)
    assert statement(ops.cut(data, 10, 12, 2), replace(KEY, first=12, count=2)) == known
    with pytest.raises(NotSealed, match="named by its content"):
        statement(msgspec.structs.replace(data, row="args/0000000007/0000000010/some-guid"))
    with pytest.raises(NotSealed, match="named by its content"):
        statement(msgspec.structs.replace(data, base=11))
    other = f"args/0000000008/0000000010/{'a' * 64}"
    assert statement(msgspec.structs.replace(data, row=other)) == known, "the same bytes, wherever they lie"
    assert row_digest(f"frag/1/{'a' * 64}") is None
    assert named_digest(f"frag/0000000001/{'a' * 64}") == "a" * 64
    assert named_digest(f"frag/0000000001/{'A' * 64}") is None


def test_a_block_may_ask_for_nothing_but_what_its_record_asks_for() -> None:
    record = replace(RECORD, request=Request(cores=2, memory_bytes=3 << 20))
    check_shape(replace(KEY, cores=2, memory_mib=3), record)
    for cores, memory in ((1, 3), (2, 0), (3, 3), (2, 4)):
        with pytest.raises(NotSealed, match="its submission for 2 and 3"):
            check_shape(replace(KEY, cores=cores, memory_mib=memory), record)


def test_a_job_of_a_gang_that_asks_for_no_memory_has_what_its_leader_lets_it_have() -> None:
    record = replace(RECORD, request=Request(), rigid=Rigid(processes=3))
    gang = Allocation(shares=(("n1", 2), ("n2", 1)), threads=1, memory_mib=512, gang="default")
    key = replace(KEY, cores=2, memory_mib=1024)
    check_shape(key, record, gang)
    for other, asked in ((msgspec.structs.replace(gang, gang=""), record), (gang, replace(record, request=Request(memory_bytes=1 << 20)))):
        with pytest.raises(NotSealed, match="it asks for 2 cores and 1024 MiB"):
            check_shape(key, asked, other)


def test_a_seal_that_does_not_fit_its_block_is_cut_without_harm() -> None:
    data = sealed(BlockData(base=10, payloads=tuple(bytes([n]) * 40 for n in range(6))))
    assert data.seal is not None
    for base, seal in ((11, {}), (3, {}), (10, {"first": 400}), (10, {"count": -3}), (10, {"count": 10**9}), (10, {"proof": (b"x",) * 99})):
        bent = msgspec.structs.replace(data, base=base, seal=msgspec.structs.replace(data.seal, **seal))
        part = ops.cut(bent, 10, 12, 2)
        try:
            found = statement(part, replace(KEY, first=12, count=2))
        except NotSealed:
            continue
        assert found != data.seal.signature


@pytest.mark.parametrize("size", [0, 1, 31, 32, 40, 47])
def test_a_part_is_never_larger_than_its_block_and_the_largest_fits_a_znode(size: int) -> None:
    count = min(MAX_TASKS, MAX_INLINE_BYTES // (size + 5))
    key = replace(KEY, first=10**9, count=count)
    payloads = (b"\xff" * size,) * (count - 1) + (b"1" * max(1, size),)
    data = sealed(BlockData(function="f" * 64, base=key.first, payloads=payloads, stamp="s" * 12), key)
    whole = len(encode_block(data))
    assert whole < MAX_ZNODE_BYTES - 2048
    for low in range(0, count, 7):
        for high in {low + 1, min(low + 5, count), min(low + 40, count), count}:
            part = ops.cut(data, key.first, key.first + low, high - low)
            assert len(encode_block(part)) <= whole + 64  # headers; groups of empty arguments
            assert statement(part, replace(key, first=key.first + low, count=high - low)) == data.seal.signature  # type: ignore[union-attr]


def test_a_failed_record_with_a_long_past_has_room_for_the_proof() -> None:
    payloads = (*(b"1" * 33 for _ in range(100)), b"x" * 7500, *(b"2" * 33 for _ in range(20)))
    key = replace(KEY, count=len(payloads))
    past = tuple(PastAttempt(attempt=n, node="n" * 63, reason=Reason.EXIT_CODE, exit_code=1, error="e" * 250) for n in range(1, 9))
    data = sealed(BlockData(base=10, payloads=payloads, past=past), key)
    part = ops.cut(data, 10, 110, 1)
    about = {"reason": Reason.EXIT_CODE, "node": "n" * 63, "error": "e" * 250}
    record = FailedRange(queue="q" * 63, seq=1, priority=0, cores=1, memory_mib=0, block=encode_block(part), **about)
    assert len(encode_failed(record)) < MAX_ZNODE_BYTES
    assert statement(part, replace(key, first=110, count=1)) == data.seal.signature  # type: ignore[union-attr]


def test_a_seal_survives_the_codecs() -> None:
    data = sealed(BlockData(base=10, payloads=tuple(bytes([n]) * 40 for n in range(6))))
    part = ops.cut(data, 10, 13, 2)
    assert decode_block(encode_block(part)) == part
    wide = msgspec.structs.replace(data, done=(1 << 256) - 2)
    assert decode_block(encode_block(wide)) == wide
    fragment = Fragment(node="n", outcomes=(Outcome(index=3, value=b"v", value_sha256=b"h" * 32),))
    signed = seal_fragment(fragment, cluster_id="c", submission=7, key_id="k", sign=bytes)
    assert decode_fragment(encode_fragment(signed)) == signed
    assert signed.seal is not None
    assert signed.seal.signature == fragment_statement(decode_fragment(encode_fragment(signed)), cluster_id="c", submission=7)


def test_every_change_of_a_fragment_changes_what_is_signed() -> None:
    fragment = Fragment(node="n", base_us=5, outcomes=(Outcome(index=3, value=b"v"),))
    known = fragment_statement(fragment, cluster_id="c", submission=7)
    others = {
        "node": "m",
        "attempt": 2,
        "base_us": 6,
        "outcomes": (Outcome(index=3, value=b"w"),),
        "row": "frag/1/x",
        "ranges": ((State.COMPLETED, 0, 1),),
    }
    assert others.keys() | {"seal"} == set(Fragment.__struct_fields__)
    for name, value in others.items():
        assert fragment_statement(msgspec.structs.replace(fragment, **{name: value}), cluster_id="c", submission=7) != known, name
    sealed_one = seal_fragment(fragment, cluster_id="c", submission=7, key_id="k", sign=bytes)
    written = encode_fragment(sealed_one)
    assert fragment_statement(sealed_one, cluster_id="c", submission=7, data=written) == known
    for at in range(len(written) - len(msgspec.msgpack.encode(sealed_one.seal))):
        bent = written[:at] + bytes([written[at] ^ 1]) + written[at + 1 :]
        assert fragment_statement(sealed_one, cluster_id="c", submission=7, data=bent) != known
    assert fragment_statement(fragment, cluster_id="d", submission=7) != known
    assert fragment_statement(fragment, cluster_id="c", submission=8) != known


def test_what_a_newer_release_wrote_into_an_outcome_is_signed_with_it() -> None:
    """An older reader does not know the last element: it verifies what was written, not what it has understood."""
    newer = [*msgspec.msgpack.decode(msgspec.msgpack.encode(Outcome(index=3, value=b"v"))), "what is new"]
    fields = [*msgspec.msgpack.decode(encode_fragment(Fragment(node="n")))]
    fields[3] = [newer]
    bare = msgspec.msgpack.encode(fields)
    statement = fragment_statement(decode_fragment(bare), cluster_id="c", submission=7)
    fields[-1] = ["k", b"s" * 64]
    written = msgspec.msgpack.encode(fields)
    assert fragment_statement(decode_fragment(written), cluster_id="c", submission=7) == statement  # what this release understands
    whole = fragment_statement(decode_fragment(written), cluster_id="c", submission=7, data=written)
    expected = hashlib.sha256(bare[:-1]).digest()
    assert expected in whole
    assert whole != statement


def test_a_seal_is_needed_where_something_completed_or_could_be_unpickled() -> None:
    failed = Outcome(index=1, state=State.FAILED, reason=Reason.EXIT_CODE, error="exit code 1", log=(b"text", b""))
    assert not needs_seal(Fragment(outcomes=(failed, Outcome(index=2, state=State.CANCELLED))))
    for precious in ({"state": State.COMPLETED}, {"value": b"p"}, {"value_size": 0}, {"outputs": 1}):
        assert needs_seal(Fragment(outcomes=(failed, msgspec.structs.replace(failed, **precious))))
    assert needs_seal(Fragment(row="frag/1/x"))


def test_a_page_keeps_the_bytes_that_were_signed_and_garbage_spoils_nothing() -> None:
    fragment = seal_fragment(Fragment(node="n", outcomes=(Outcome(index=3),)), cluster_id="c", submission=7, key_id="k", sign=signature)
    written = encode_fragment(fragment)
    page = join_page([written, encode_fragment(NOTHING)])
    assert split_page(page) == [written, encode_fragment(NOTHING)]
    assert decode_page(page) == (fragment, NOTHING)
    for garbage in (b"", b"\xc1", b"{}", b"\x91"):
        assert read_fragment(garbage) is NOTHING
        assert glance_fragment(garbage) is NOTHING


def test_a_glance_at_a_fragment_tells_all_but_what_outcomes_say() -> None:
    outcomes = tuple(Outcome(index=at, value=b"v", past=(PastAttempt(attempt=1, node="n", reason=Reason.EXIT_CODE),)) for at in range(3))
    fragment = Fragment(node="n", outcomes=outcomes, base_us=7, row="frag/7/x", ranges=((State.FAILED, 1, 2),))
    seen = glance_fragment(encode_fragment(fragment))
    assert len(seen.outcomes) == 3
    assert {name: getattr(seen, name) for name in Fragment.__struct_fields__ if name != "outcomes"} == {
        name: getattr(fragment, name) for name in Fragment.__struct_fields__ if name != "outcomes"
    }


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
