"""What leaders seal of what they place, and who is believed: every field counts, each placing is taken once, fail-over changes nothing."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from rmgr.adapters.identity.pki import Certified
from rmgr.coord.protocol.records import decode_block, encode_block
from rmgr.daemons.leader.core.seals import AGAIN, Begun, Placings
from rmgr.model.cluster.identity import Identity, Role
from rmgr.model.tasks.block import BlockData
from rmgr.model.tasks.placing import Allocation, PlacingSeal

NAME = "1000000.0000000002.0000000000.001.000001.00001.000000000-0000000001"
ALLOCATION = Allocation(shares=(("n1", 2), ("n2", 1)), threads=2, memory_mib=7, started_us=5, planned_us=6, whole=(8, 8))
#: Another value of each field.
OTHERS: dict[str, Any] = {
    "shares": (("n1", 2), ("n3", 1)),
    "threads": 1,
    "memory_mib": 8,
    "started_us": 6,
    "planned_us": 7,
    "whole": (8, 9),
    "seal": None,
    "gang": "default",
    "generation": 4,
    "changes": 1,
}


class Signer:
    """A key whose signatures are what they sign."""

    def __init__(self, role: Role, key_id: str) -> None:
        self.identity = Identity(cluster="c", role=role, name="w1", key_id=key_id)

    def sign(self, data: bytes) -> bytes:
        return _digest(self.identity.key_id, data)

    def verify(self, signature: bytes, data: bytes) -> bool:
        return signature == _digest(self.identity.key_id, data)


def _digest(key_id: str, data: bytes) -> bytes:
    import hashlib

    return hashlib.sha512(key_id.encode() + data).digest()


class Known:
    """Keys, and which of them are revoked since which transaction."""

    def __init__(self, *signers: Signer) -> None:
        self.signers = {one.identity.key_id: one for one in signers}
        self.revoked: dict[str, int] = {}
        self.is_here = True

    def look(self, key_id: str, *, at_s: float, zxid: int = 0) -> Certified | str | None:
        if not self.is_here:
            return None
        if key_id in self.revoked and not 0 < zxid < self.revoked[key_id]:
            return "revoked"
        return self.signers.get(key_id, "nobody is known by it")  # type: ignore[return-value]


def placings(signer: Signer, known: Known) -> Placings:
    return Placings(signer, known, cluster_id="c")  # type: ignore[arg-type]


@pytest.fixture
def leader() -> Signer:
    return Signer(Role.WATCHDOG, "a" * 32)


@pytest.mark.parametrize("count", [1, 2, 33, 70])
def test_what_is_placed_together_is_believed_one_by_one(leader: Signer, count: int) -> None:
    mine = placings(leader, Known(leader))
    jobs = [(f"{NAME[:-2]}{place:02d}", ALLOCATION, 3) for place in range(count)]
    sealed = mine.seal(jobs, epoch=7)
    assert [mine.look("n1", name, one, zxid=9) for (name, _, _), one in zip(jobs, sealed, strict=True)] == [""] * count
    assert [one.seal.serial for one in sealed if one.seal] == list(range(1, count + 1))
    assert mine.seal([jobs[0]], epoch=7)[0].seal.serial == count + 1  # type: ignore[union-attr]


def test_every_field_is_sealed(leader: Signer) -> None:
    mine = placings(leader, Known(leader))
    [sealed] = mine.seal([(NAME, ALLOCATION, 3)], epoch=7)
    assert OTHERS.keys() == set(Allocation.__struct_fields__)
    for field, value in OTHERS.items():
        assert mine.look("n1", NAME, msgspec.structs.replace(sealed, **{field: value}), zxid=9), field
    assert sealed.seal is not None
    for field in set(PlacingSeal.__struct_fields__) - {"signature"}:
        value = "b" * 32 if field == "key_id" else getattr(sealed.seal, field) + 1
        other = msgspec.structs.replace(sealed, seal=msgspec.structs.replace(sealed.seal, **{field: value}))
        assert mine.look("n1", NAME, other, zxid=9), field
    assert mine.look("n1", NAME.replace(".001.", ".002."), sealed, zxid=9)
    assert mine.look("n2", NAME, sealed, zxid=9)
    assert mine.look("n1", NAME, msgspec.structs.replace(sealed, shares=()), zxid=9)
    for signature in (b"", b"x" * 64, b"x" * 70, b"x" * 300):
        other = msgspec.structs.replace(sealed, seal=msgspec.structs.replace(sealed.seal, signature=signature))
        assert mine.look("n1", NAME, other, zxid=9), signature
    assert Placings(leader, Known(leader), cluster_id="d").look("n1", NAME, sealed, zxid=9)  # type: ignore[arg-type]


@pytest.mark.parametrize("role", [role for role in Role if role is not Role.WATCHDOG])
def test_only_leaders_place(role: Role) -> None:
    other = Signer(role, "b" * 32)
    mine = placings(other, Known(other))
    [sealed] = mine.seal([(NAME, ALLOCATION, 3)], epoch=7)
    assert "only leaders place" in str(mine.look("n1", NAME, sealed, zxid=9))


def test_what_a_leader_before_has_placed_is_believed_also_when_its_key_was_revoked_since(leader: Signer) -> None:
    before, known = Signer(Role.WATCHDOG, "b" * 32), Known(leader)
    [sealed] = placings(before, known).seal([(NAME, ALLOCATION, 3)], epoch=6)
    mine = placings(leader, known)
    assert mine.look("n1", NAME, sealed, zxid=9) == "nobody is known by it"
    known.signers[before.identity.key_id] = before
    assert mine.look("n1", NAME, sealed, zxid=9) == ""
    known.revoked[before.identity.key_id] = 10
    assert mine.look("n1", NAME, sealed, zxid=9) == ""
    assert mine.look("n1", NAME, sealed, zxid=11) == "revoked"
    known.is_here = False
    assert mine.look("n1", NAME, sealed, zxid=9) is None


def test_what_has_no_seal_is_believed_in_open_clusters_only(leader: Signer) -> None:
    assert "nobody signed" in str(placings(leader, Known(leader)).look("n1", NAME, ALLOCATION, zxid=9))
    assert Placings().look("n1", NAME, ALLOCATION, zxid=9) == ""
    assert Placings().seal([(NAME, ALLOCATION, 3)], epoch=7) == [ALLOCATION]


def test_a_placing_begins_once() -> None:
    begun = Begun()
    assert not any(begun.take(seal(serial)) for serial in range(2, 5000))
    assert begun.take(seal(4000)) is AGAIN
    assert "placed again" in begun.take(seal(2))
    assert "placed again" in begun.take(seal(1))
    assert begun.take(seal(1, epoch=8)) == ""  # the leader after
    assert begun.take(seal(1, epoch=8)) is AGAIN
    assert begun.take(None) == begun.take(None) == ""


def test_what_is_read_late_begins_all_the_same() -> None:
    begun = Begun()
    assert not any(begun.take(seal(serial)) for serial in range(2, 4000))
    assert begun.take(seal(1)) == ""


def seal(serial: int, epoch: int = 7) -> PlacingSeal:
    return PlacingSeal(key_id="a" * 32, epoch=epoch, serial=serial, incarnation=3)


def test_a_seal_outlives_what_the_node_writes_into_its_block(leader: Signer) -> None:
    """An adoption gives the block another incarnation; who leads next looks at it again."""
    mine = placings(leader, Known(leader))
    [sealed] = mine.seal([(NAME, ALLOCATION, 3)], epoch=7)
    data = BlockData(allocation=sealed, incarnation=3, stamp="x")
    read = decode_block(encode_block(msgspec.structs.replace(data, incarnation=4, stamp="y", stopping="z")))
    assert read.allocation is not None
    assert mine.look("n1", NAME, read.allocation, zxid=9) == ""
