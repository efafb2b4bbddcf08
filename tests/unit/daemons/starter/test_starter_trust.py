"""From a user's signature to a Starter's gate: one signature of several blocks is verified once, and is worth what each is worth."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from rmgr.client.identity.signing import Signer
from rmgr.coord.ops import work as ops
from rmgr.coord.protocol.records import decode_block, encode_block
from rmgr.daemons.starter.core.blocks import ClaimedBlock
from rmgr.daemons.starter.core.fetch import FetchFailure
from rmgr.daemons.starter.health import trust as starter_trust
from rmgr.daemons.starter.health.trust import Gate
from rmgr.model.tasks.block import MAX_TASKS, BlockData, BlockKey
from rmgr.model.tasks.submission import Command, Submission, Work

RECORD = Submission(id=7, name="n", user="ann", queue="default", work=Work.COMMAND, command=Command(argv=("true",)))


@dataclass(eq=False)
class Key:
    """Somebody's signing key, and what its certificate says; counts what is verified with it."""

    key_id: str
    name: str = "ann"
    verified: int = 0

    @property
    def identity(self) -> Any:
        return SimpleNamespace(key_id=self.key_id, name=self.name, role="user", is_person=True)

    def sign(self, message: bytes) -> bytes:
        return hashlib.sha512(self.key_id.encode() + message).digest()

    def verify(self, signature: bytes, message: bytes) -> bool:
        self.verified += 1
        return signature == self.sign(message)


class Cluster:
    """A Starter's gate, and keys that it may know."""

    def __init__(self, *keys: Key) -> None:
        self.known: dict[str, Key | str] = {key.key_id: key for key in keys}
        self.gate = Gate(
            SimpleNamespace(),  # type: ignore[arg-type]
            SimpleNamespace(look=lambda key_id, at_s: self.known[key_id], listen=lambda _: None, was_key_of=lambda key_id, zxid: ""),  # type: ignore[arg-type]
            SimpleNamespace(is_open=lambda number, age_s: True, endings=None),  # type: ignore[arg-type]
            cluster_id="c",
        )

    def refusal(self, key: BlockKey, data: BlockData, record: Submission = RECORD) -> str:
        """Why the block may not run, "" = it may."""
        block = ClaimedBlock.claimed("n1", "default", key, decode_block(encode_block(data)))
        block.info = SimpleNamespace(origin=record, record=record, czxid=1, spec=b"")
        answer = self.gate.refusal(block)
        assert answer is not None
        return answer.error if isinstance(answer, FetchFailure) else ""


def blocks(count: int, *, by: Key, record: Submission = RECORD, tasks: int = 1) -> list[ops.Block]:
    bare = [
        (
            BlockKey(priority=0, seq=1, submission=record.id, first=at * tasks, count=tasks, attempt=1, cores=1, memory_mib=0),
            BlockData(base=at * tasks, payloads=tuple(f"{at} {number}".encode() for number in range(tasks))),
        )
        for at in range(count)
    ]
    return Signer(by, "c", ttl_s=600.0).sealer(record)(bare)  # type: ignore[arg-type]


def test_blocks_that_left_together_are_verified_once_and_so_are_their_parts() -> None:
    ann = Key("a" * 32)
    cluster = Cluster(ann)
    for key, data in blocks(50, by=ann, tasks=4):
        assert not cluster.refusal(key, data)
        part = replace(key, first=key.first + 1, count=2)
        assert not cluster.refusal(part, ops.cut(data, key.first, part.first, part.count))
    assert ann.verified == 1


def test_one_block_has_the_form_that_every_release_knows() -> None:
    [(_, data)] = blocks(1, by=Key("a" * 32))
    assert data.seal is not None
    assert len(data.seal.signature) == 64


def test_a_verified_signature_vouches_for_no_other_block() -> None:
    ann = Key("a" * 32)
    cluster = Cluster(ann)
    (key, data), (other_key, other), *_ = made = blocks(4, by=ann)
    assert not any(cluster.refusal(*block) for block in made)
    assert data.seal is not None
    assert other.seal is not None
    forged = {
        "other arguments": (key, msgspec.structs.replace(data, payloads=(b"rm",))),
        "another's seal": (key, msgspec.structs.replace(data, seal=other.seal)),
        "another's place": (other_key, data),
        "another's path": (key, _sealed(data, data.seal.signature[:64] + other.seal.signature[64:])),
        "no path": (key, _sealed(data, data.seal.signature[:64])),
        "half a path": (key, _sealed(data, data.seal.signature[:-32])),
        "later": (key, msgspec.structs.replace(data, seal=msgspec.structs.replace(data.seal, not_after_s=2**40))),
        "another function": (key, msgspec.structs.replace(data, function="f" * 64)),
    }
    for what, block in forged.items():
        assert cluster.refusal(*block), what
    second = replace(RECORD, id=8)
    assert "not what its user signed" in cluster.refusal(replace(key, submission=8), data, second)
    assert "not what its user signed" in cluster.refusal(key, data, replace(RECORD, command=Command(argv=("false",))))
    assert "run for bob" in cluster.refusal(key, data, replace(RECORD, user="bob"))
    assert not cluster.refusal(key, data)


@pytest.mark.parametrize("count", [1, 3])
def test_what_was_verified_with_one_key_is_not_believed_of_another(count: int) -> None:
    """Her old key was revoked: its signatures do not live on under the name of her new one."""
    old, new = Key("a" * 32), Key("b" * 32)
    cluster = Cluster(old, new)
    [(key, data), *_] = blocks(count, by=old)
    assert not cluster.refusal(key, data)
    cluster.known[old.key_id] = "the key was revoked"
    assert "revoked" in cluster.refusal(key, data)
    assert data.seal is not None
    renamed = msgspec.structs.replace(data, seal=msgspec.structs.replace(data.seal, key_id=new.key_id))
    assert "not what its user signed" in cluster.refusal(key, renamed)


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starter_trust, "_KEEP", 3)
    ann = Key("a" * 32)
    cluster = Cluster(ann)
    made = [blocks(2, by=ann, record=replace(RECORD, id=number)) for number in range(1, 6)]
    for number, some in enumerate(made, 1):
        assert not any(cluster.refusal(*block, replace(RECORD, id=number)) for block in some)
    assert len(cluster.gate._verified) == 3
    assert ann.verified == 5


def test_a_block_with_the_longest_path_fits_where_blocks_go() -> None:
    made = blocks(256, by=Key("a" * 32))
    alone = blocks(1, by=Key("a" * 32))
    assert max(len(encode_block(data)) for _, data in made) < len(encode_block(alone[0][1])) + 300
    assert MAX_TASKS == 256


def _sealed(data: BlockData, signature: bytes) -> BlockData:
    assert data.seal is not None
    return msgspec.structs.replace(data, seal=msgspec.structs.replace(data.seal, signature=signature))
