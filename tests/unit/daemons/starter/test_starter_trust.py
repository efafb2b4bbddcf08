"""From a user's signature to a Starter's gate: a signature over several blocks is verified once, and counts as much as single ones."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from rmgr.client.identity import Signer
from rmgr.coord import nonces
from rmgr.coord.decisions.changing import Change, Doer, amended, signed
from rmgr.coord.ops import work as ops
from rmgr.coord.protocol.multi import Stamped, Stat
from rmgr.coord.protocol.records import decode_block, encode_block, encode_record
from rmgr.daemons.starter.core import submissions as starter_trust
from rmgr.daemons.starter.core.blocks import ClaimedBlock
from rmgr.daemons.starter.core.fetch import FetchFailure
from rmgr.daemons.starter.core.submissions import Admission, Gate, Info, RecordState, admission_of
from rmgr.model.block import MAX_TASKS, BlockData, BlockKey
from rmgr.model.identity import Role
from rmgr.model.queue import QueueSpec
from rmgr.model.submission import Command, Submission, Terms, Work
from rmgr.runtime import machine

SIGNED_S = 1_800_000_000
RECORD = Submission(
    id=7, name="n", user="ann", queue="default", work=Work.COMMAND, command=Command(argv=("true",)), nonce="a" * 32, signed_s=SIGNED_S
)


@dataclass(eq=False)
class Key:
    """Somebody's signing key, and what its certificate says; counts what is verified with it."""

    key_id: str
    name: str = "ann"
    verified: int = 0
    role: Role = Role.USER

    @property
    def identity(self) -> Any:
        return SimpleNamespace(key_id=self.key_id, name=self.name, role=self.role, is_person=self.role in {Role.USER, Role.OPERATOR})

    def sign(self, message: bytes) -> bytes:
        return hashlib.sha512(self.key_id.encode() + message).digest()

    def verify(self, signature: bytes, message: bytes) -> bool:
        self.verified += 1
        return signature == self.sign(message)


def standing(number: int = 7, *, version: int = 0, made_s: float = SIGNED_S, czxid: int = 1) -> Stamped:
    """What stands for a nonce."""
    stat = Stat(
        version=version, mzxid=czxid, children=0, creates=0, ephemeral_owner=0, mtime_ms=0, czxid=czxid, ctime_ms=round(made_s * 1000)
    )
    return Stamped(encode_record(number), stat)


class Cluster:
    """A Starter's gate, and keys that it may know. nonce: what stands for that of each record; None: what SUBMIT has made."""

    def __init__(self, *keys: Key) -> None:
        self.known: dict[str, Key | str] = {key.key_id: key for key in keys}
        self.nonce: SimpleNamespace | None = None
        self.state = RecordState.OPEN
        self.number = 0
        self.mine = SimpleNamespace(not_after_s=math.inf, identity=SimpleNamespace(name="n1"))
        self.gate = Gate(
            self.mine,
            SimpleNamespace(
                look=lambda key_id, at_s, dated=False: self.known[key_id], listen=lambda _: None, was_key_of=lambda key_id, zxid: ""
            ),
            SimpleNamespace(
                state=lambda number, age_s: self.state,
                nonces=SimpleNamespace(generation=0, look=lambda path: self.nonce or SimpleNamespace(found=standing(self.number))),
                operators=("eva",),
            ),
            cluster_id="c",
        )

    def refusal(self, key: BlockKey, data: BlockData, record: Submission = RECORD) -> str:
        """Why the block may not run, "" = it may."""
        block = ClaimedBlock.claimed("n1", "default", key, decode_block(encode_block(data)))
        block.info = SimpleNamespace(origin=record, record=record, czxid=1, spec=b"", nonce=nonces.place_of(record))
        self.number = record.id
        answer = self.gate.admission(block)
        assert answer is not Admission.AWAITED
        return answer.error if isinstance(answer, FetchFailure) else ""


def blocks(count: int, *, by: Key, record: Submission = RECORD, tasks: int = 1) -> list[ops.Block]:
    bare = [
        (
            BlockKey(priority=0, seq=1, submission=record.id, first=at * tasks, count=tasks, attempt=1, cores=1, memory_mib=0),
            BlockData(base=at * tasks, payloads=tuple(f"{at} {number}".encode() for number in range(tasks))),
        )
        for at in range(count)
    ]
    return Signer(by, "c", ttl_s=600.0).sealer(record)(bare)


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
    assert len(data.seal.signature) == 64


def test_a_verified_signature_vouches_for_no_other_block() -> None:
    ann = Key("a" * 32)
    cluster = Cluster(ann)
    (key, data), (other_key, other), *_ = made = blocks(4, by=ann)
    assert not any(cluster.refusal(*block) for block in made)
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
    second = replace(RECORD, id=8, nonce="b" * 32)
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
    monkeypatch.setattr(starter_trust, "KEEP_VERIFIED", 3)
    ann = Key("a" * 32)
    cluster = Cluster(ann)
    records = [replace(RECORD, id=number, nonce=f"{number:032x}") for number in range(1, 6)]
    for record in records:
        assert not any(cluster.refusal(*block, record) for block in blocks(2, by=ann, record=record))
    assert ann.verified == 5
    for record, verified in ((records[-1], 5), (records[2], 5), (records[0], 6)):  # the oldest is forgotten
        assert not any(cluster.refusal(*block, record) for block in blocks(2, by=ann, record=record))
        assert ann.verified == verified


def test_a_block_with_the_longest_path_fits_where_blocks_go() -> None:
    made = blocks(256, by=Key("a" * 32))
    alone = blocks(1, by=Key("a" * 32))
    assert max(len(encode_block(data)) for _, data in made) < len(encode_block(alone[0][1])) + 300
    assert MAX_TASKS == 256


def _sealed(data: BlockData, signature: bytes) -> BlockData:
    assert data.seal is not None
    return msgspec.structs.replace(data, seal=msgspec.structs.replace(data.seal, signature=signature))


def changed(record: Submission, terms: Terms, by: Key, *, as_operator: bool = False, sign: bool = True) -> Submission:
    """The record with an amendment of somebody."""
    change = amended(record, terms, Doer(name=by.name, is_operator=as_operator, now_us=5))
    assert isinstance(change, Change), change
    signature = Signer(by, "c", ttl_s=600.0).amendment(record.id, change.record.changes[-1])
    return signed(change.record, signature if sign else "")


def test_amendments_are_of_those_who_may_make_them() -> None:
    ann, bob, eva = Key("a" * 32), Key("b" * 32, name="bob"), Key("d" * 32, name="eva")
    olga, node = Key("c" * 32, name="olga", role=Role.OPERATOR), Key("e" * 32, name="n1", role=Role.STARTER)
    cluster = Cluster(ann, bob, olga, eva, node)
    [(key, data)] = blocks(1, by=ann)
    mine = changed(RECORD, Terms(time_limit_us=9, name="m"), ann)
    assert not cluster.refusal(key, data, mine)
    assert not cluster.refusal(key, data, changed(mine, Terms(priority=5), olga, as_operator=True))
    assert not cluster.refusal(key, data, changed(mine, Terms(priority=5), eva, as_operator=True)), "by the settings"
    assert "bob is no operator" in cluster.refusal(key, data, changed(mine, Terms(priority=5), bob, as_operator=True))
    assert "nobody signed it" in cluster.refusal(key, data, changed(RECORD, Terms(name="m"), ann, sign=False))
    [own], stamp = mine.changes, mine.changes[0].signature
    assert "not what was signed" in cluster.refusal(key, data, signed(changed(RECORD, Terms(time_limit_us=99, name="m"), ann), stamp))
    for other in (bob, node):
        theirs = replace(own, signature=f"{other.key_id}:{'0' * 128}")
        assert "it was signed by" in cluster.refusal(key, data, replace(mine, changes=(theirs,)))
    # Of another submission, or of another place in the same one.
    eighth = changed(replace(RECORD, id=8), Terms(time_limit_us=9, name="m"), ann)
    assert "not what was signed" in cluster.refusal(key, data, replace(mine, changes=eighth.changes))
    again = changed(mine, Terms(time_limit_us=10), ann)
    replayed = replace(again, changes=(own, replace(again.changes[1], signature=own.signature)))
    assert "not what was signed" in cluster.refusal(key, data, replayed)
    # Without the signed terms beside it the work is not what its user signed.
    assert "not what its user signed" in cluster.refusal(key, data, replace(mine, was=None, changes=()))
    cluster.known[olga.key_id] = "the key was revoked"  # as for what it has signed since
    assert "revoked" in cluster.refusal(key, data, changed(mine, Terms(priority=5), olga, as_operator=True))


def test_a_record_that_none_may_believe_is_nobodys_and_bars_no_key() -> None:
    ann = Key("a" * 32)
    [(key, data)] = blocks(1, by=ann)
    block = ClaimedBlock.claimed("n1", "default", key, decode_block(encode_block(data)))
    nobodys = Submission(id=RECORD.id, name="", user="", queue="", work=Work.COMMAND)
    block.info = Info(nobodys, QueueSpec(name=""), None, refusal="no release has written that")
    gate = Cluster(ann).gate
    assert not gate.is_barred(block.seal, block.info)
    answer = admission_of(block, gate)
    assert isinstance(answer, FetchFailure)
    assert "no release has written that" in answer.error


def test_what_was_signed_runs_under_the_number_of_its_nonce_and_until_that_has_ended() -> None:
    ann = Key("a" * 32)
    cluster = Cluster(ann)
    [(key, data)] = blocks(1, by=ann)

    def refusal(found: Stamped | None, record: Submission = RECORD) -> str:
        cluster.nonce = SimpleNamespace(found=found)
        return cluster.refusal(replace(key, submission=record.id), data, record)

    assert not refusal(standing())
    assert "nonce is that of another submission" in refusal(standing(6))
    assert not refusal(standing(9), replace(RECORD, id=9)), "any number may be given to it, one is"
    assert "nothing stands for its nonce" in refusal(None)
    assert "its submission is closed" in refusal(standing(version=1))
    assert "its record was written anew" in refusal(standing(czxid=2))
    [(key, data)] = blocks(1, by=ann, record=replace(RECORD, nonce=""))
    assert "names no nonce" in refusal(standing(), replace(RECORD, nonce=""))


def test_what_was_signed_runs_only_if_it_was_submitted_within_the_hour_before_or_after() -> None:
    ann = Key("a" * 32)
    cluster = Cluster(ann)
    [(key, data)] = blocks(1, by=ann)
    for late_s, counts in ((0, True), (3600, True), (3601, False), (-3600, True), (-3601, False), (30 * 86_400, False)):
        cluster.nonce = SimpleNamespace(found=standing(made_s=SIGNED_S + late_s))
        assert ("" if counts else "2027-01-15T08:00:00Z") in (told := cluster.refusal(key, data))
        assert bool(told) is not counts
    # Who says another time is another submission: it is in what is signed.
    moved = replace(RECORD, signed_s=SIGNED_S + 30 * 86_400)
    assert "not what its user signed" in cluster.refusal(key, data, moved)


def test_a_record_that_another_connection_has_read_is_read_again_before_a_nonce_counts_as_missing() -> None:
    ann = Key("a" * 32)
    cluster = Cluster(ann)
    [(key, data)] = blocks(1, by=ann)
    cluster.nonce = SimpleNamespace(found=None)
    cluster.state = RecordState.ASKED
    block = ClaimedBlock.claimed("n1", "default", key, data)
    block.info = SimpleNamespace(origin=RECORD, record=RECORD, czxid=1, spec=b"", nonce=nonces.place_of(RECORD))
    assert cluster.gate.admission(block) is Admission.AWAITED


@pytest.mark.parametrize(("ahead_s", "told"), [(7_200.0, "2h ahead of"), (-7_200.0, "2h behind")])
def test_a_machine_whose_clock_is_wrong_refuses_nothing_and_takes_nothing_for_a_minute(
    monkeypatch: pytest.MonkeyPatch, ahead_s: float, told: str
) -> None:
    ann = Key("a" * 32)
    cluster = Cluster(ann)
    ((key, data),) = blocks(1, by=ann)
    cluster.gate.registered(round(machine.wall_s() * 1000))
    cluster.known[ann.key_id] = "the certificate of user ann was not valid then"  # by this machine's clock
    assert "not valid then" in cluster.refusal(key, data), "its clock is right: it says so"
    assert cluster.gate.fault(machine.monotonic()) == ""
    wall_s = machine.wall_s
    monkeypatch.setattr(machine, "wall_s", lambda: wall_s() + ahead_s)
    assert cluster.gate.fault(machine.monotonic()) == "", "nothing was met that it would refuse"
    block = ClaimedBlock.claimed("n1", "default", key, decode_block(encode_block(data)))
    block.info = SimpleNamespace(origin=RECORD, record=RECORD, czxid=1, spec=b"", nonce=nonces.place_of(RECORD))
    assert cluster.gate.admission(block) is Admission.AWAITED
    assert cluster.gate.fault(machine.monotonic()) == f"its clock is {told} ZooKeeper's: set it right"
    assert cluster.gate.fault(machine.monotonic() + 61) == "", "it tries again"
    monkeypatch.undo()
    assert cluster.gate.fault(machine.monotonic()) == ""


def test_a_starter_whose_certificate_ends_takes_no_work_that_nobody_would_believe(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster()
    cluster.gate.registered(round(machine.wall_s() * 1000))
    cluster.mine.not_after_s = machine.wall_s() + starter_trust.LAST_S + 60
    assert cluster.gate.fault(machine.monotonic()) == ""
    for left_s, told in ((60.0, "its certificate ends at"), (-60.0, "its certificate ended at")):
        cluster.mine.not_after_s = machine.wall_s() + left_s
        assert cluster.gate.fault(machine.monotonic()).startswith(told)
        assert "rmgr admin add-node n1 --renew, then restart its Starter" in cluster.gate.fault(machine.monotonic())
    wall_s = machine.wall_s
    cluster.mine.not_after_s = wall_s() + 86_400
    monkeypatch.setattr(machine, "wall_s", lambda: wall_s() + 2 * 86_400)
    assert cluster.gate.fault(machine.monotonic()) == "its clock is 2d ahead of ZooKeeper's: set it right", "the clock is wrong"
