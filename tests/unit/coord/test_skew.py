"""Releases side by side: records of 0.1.0 and of the next release are read, and survive being rewritten here."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from rmgr.coord.ops import leader as leader_ops
from rmgr.coord.ops import work as ops
from rmgr.coord.ops.leader import GiveUp, rule
from rmgr.coord.ops.membership import take_ownership, taken_over
from rmgr.coord.protocol import paths, records
from rmgr.coord.protocol.multi import Create, Multi, Set
from rmgr.errors import WrongCluster
from rmgr.model.block import BlockData, BlockKey, Outcome
from rmgr.model.node import Meta, NodeRecord
from rmgr.model.queue import ClusterSettings
from rmgr.model.states import Reason
from rmgr.model.submission import Paged, Submission, Tail
from rmgr.model.version import PROTOCOL, SKEW, Release, raised, refusal
from tests.harness.records_of_0_1_0 import BLOCK, FRAGMENT, PACKS, RECORDS, golden

KEY = BlockKey(priority=0, seq=5, submission=42, first=10, count=3, attempt=1, cores=1, memory_mib=0)


# -- the release before ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_of_0_1_0_means_what_it_meant(name: str) -> None:
    value = RECORDS[name]
    read = records.decode_record(golden(name), type(value), name)
    assert read == value
    before, after = json.loads(golden(name)), json.loads(records.encode_record(read))
    assert holds(after, before), "and what is written back is the same, but for new fields"


def holds(new: Any, old: Any) -> bool:
    """Everything of `old` is in `new`, at its place."""
    if isinstance(old, dict) and isinstance(new, dict):
        return all(key in new and holds(new[key], value) for key, value in old.items())
    if isinstance(old, list) and isinstance(new, list):
        return len(old) == len(new) and all(holds(*pair) for pair in zip(new, old, strict=True))
    return bool(new == old)


@pytest.mark.parametrize("name", PACKS)
def test_a_pack_of_0_1_0_means_what_it_meant(name: str) -> None:
    kind, value = PACKS[name]
    assert getattr(records, f"decode_{kind}")(golden(name)) == value


@pytest.mark.parametrize("name", ["block", "block_wide", "fragment", "failed"])
def test_new_elements_of_a_pack_stand_at_its_end(name: str) -> None:
    kind, value = PACKS[name]
    old = msgspec.msgpack.decode(golden(name))
    new = msgspec.msgpack.decode(getattr(records, f"encode_{kind}")(value))
    assert begins(new, old)


def begins(new: Any, old: Any) -> bool:
    """Every list of `new` begins with that of `old`."""
    if isinstance(new, list) and isinstance(old, list):
        return len(new) >= len(old) and all(begins(*pair) for pair in zip(new, old, strict=False))
    return bool(new == old)


# -- the release after -------------------------------------------------------------------------------------------------------


def of_next(raw: Any) -> Any:
    """A JSON record with more fields in each object that may be rewritten (free maps have no fields of their own)."""
    if isinstance(raw, list):
        return [of_next(item) for item in raw]
    if not isinstance(raw, dict):
        return raw
    free = {"env", "resources", "extra", "counts"}
    more = {"a_next": {"newer": {"x": 1}}, "z_next": [1, "two"]}
    return more | {key: item if key in free else of_next(item) for key, item in raw.items()}


REWRITTEN = ["submission_command", "submission_python", "tail", "paged", "node", "meta", "settings"]


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_of_the_next_release_is_read(name: str) -> None:
    data = json.dumps(of_next(json.loads(golden(name))), sort_keys=True, separators=(",", ":")).encode()
    read = records.decode_record(data, type(RECORDS[name]), name)
    known = json.loads(records.encode_record(RECORDS[name]))
    assert {key: value for key, value in json.loads(msgspec.json.encode(read)).items() if key in known}.keys() == known.keys()
    if name in REWRITTEN:
        assert holds(json.loads(records.encode_record(read)), json.loads(data))


def next_record(name: str) -> Any:
    data = json.dumps(of_next(json.loads(golden(name)))).encode()
    return records.decode_record(data, type(RECORDS[name]), name)


def written(multi: Multi, path: str) -> Any:
    return json.loads(next(op.data for op in multi.ops if isinstance(op, Set) and op.path == path))


MORE = {"a_next": {"newer": {"x": 1}}, "z_next": [1, "two"]}


def test_fields_of_the_next_release_survive_every_multi_that_rewrites_a_record() -> None:
    submission, tail, node = next_record("submission_command"), next_record("tail"), next_record("node")
    assert isinstance(submission, Submission)
    assert isinstance(tail, Tail)
    assert isinstance(node, NodeRecord)
    gone = written(ops.set_record(replace(submission, reason_detail="held"), version=3, gate=None), paths.sub(42))
    assert gone["reason_detail"] == "held"
    for place in (gone, gone["request"], gone["command"], gone["command"]["uploads"][1], gone["after"][0]):
        assert {key: place[key] for key in MORE} == MORE
    multi = take_ownership(replace(submission, owner="me"), 3, taken_over(tail, "me", "stamp"), 4)
    assert written(multi, paths.sub(42))["z_next"] == MORE["z_next"]
    assert written(multi, paths.tail(42)) | MORE == written(multi, paths.tail(42))
    fenced = written(leader_ops.fence(1, node, 2, "lost"), paths.node("n1"))
    assert (fenced["state"], fenced["a_next"], fenced["attributes"]["z_next"]) == ("fenced", MORE["a_next"], MORE["z_next"])
    paged = next_record("paged")
    assert isinstance(paged, Paged)
    assert written(leader_ops.page(42, replace(paged, base=600), 1, 500, 100), paths.done(42)) | MORE | {"base": 600} == written(
        leader_ops.page(42, replace(paged, base=600), 1, 500, 100), paths.done(42)
    )


def test_a_queue_keeps_its_own_newer_fields_when_queues_are_added_and_moved() -> None:
    settings = next_record("settings")
    assert isinstance(settings, ClusterSettings)
    one, two = settings.queues
    changed = replace(settings, queues=(replace(two, policy="sjf"), replace(one, name="fresh", newer=msgspec.UNSET), one))
    queues = json.loads(records.encode_record(changed))["queues"]
    assert [queue.get("z_next") for queue in queues] == [MORE["z_next"], None, MORE["z_next"]]
    assert queues[0]["policy"] == "sjf"


def test_a_users_text_is_never_taken_for_newer_fields() -> None:
    tricky = '{"newer":{"x":1}} "newer":{'
    command = replace(RECORDS["submission_command"].command, env={"newer": tricky, "k": '"newer":{'})
    submission = replace(RECORDS["submission_command"], name=tricky, command=command)
    assert records.decode_record(records.encode_record(submission), Submission) == submission
    assert json.loads(records.encode_record(submission))["name"] == tricky


def of_next_pack(data: bytes) -> bytes:
    return msgspec.msgpack.encode([*msgspec.msgpack.decode(data), b"signature", {"more": 1}])


@pytest.mark.parametrize("done", [5, (1 << 200) | 5])
def test_elements_of_the_next_release_stay_on_a_block_through_claim_complete_split_fail_and_resubmit(done: int) -> None:
    tail = [b"signature", {"more": 1}]
    data = of_next_pack(records.encode_block(msgspec.structs.replace(BLOCK, done=done, payloads=(b"a", b"b", b"c"))))
    block = records.decode_block(data)
    assert isinstance(block, BlockData)
    assert (block.done, block.stamp, block.payloads) == (done, BLOCK.stamp, (b"a", b"b", b"c"))
    assert records.encode_block(block) == data
    fresh = msgspec.structs.replace(block, done=0)

    def ends(multi: Multi) -> list[Any]:
        found = [op for op in multi.ops if isinstance(op, (Create, Set)) and ("/running/" in op.path or "/queues/" in op.path)]
        assert found
        return [msgspec.msgpack.decode(op.data)[-2:] for op in found]

    claim, mine = ops.claim("n1", 1, "q", KEY, fresh, 0, take=2)
    assert ends(claim) == [tail, tail]
    assert ends(ops.complete("n1", 1, mine, msgspec.structs.replace(fresh, done=1), 0, fragment=None)) == [tail]
    assert ends(ops.give_back("n1", 1, "q", KEY, fresh, 0, first=11)[0]) == [tail, tail]
    assert ends(ops.adopt("n1", 1, KEY, fresh, 0)) == [tail]
    running = msgspec.structs.replace(fresh, resubmit=True)
    failed = leader_ops.fail(leader_ops.epoch_check(1), "n1", "q", KEY, records.encode_block(running), 0, reason=Reason.NODE_LOST, now_us=1)
    record = records.decode_failed(next(op.data for op in failed.ops if isinstance(op, Create)))
    again, _ = leader_ops.resubmit(RECORDS["submission_command"], 10, 3, 1, record, 0, gate=True, max_losses=5)
    assert ends(again) == [tail] * 3


def test_other_packs_of_the_next_release_are_read_and_pages_keep_their_bytes() -> None:
    for name in ("fragment", "failed", "keyed"):
        kind, value = PACKS[name]
        data = of_next_pack(getattr(records, f"encode_{kind}")(value))
        assert getattr(records, f"decode_{kind}")(data) == value
    outcome = msgspec.msgpack.encode([[*msgspec.msgpack.decode(msgspec.msgpack.encode(Outcome(index=9, attempt=1, past=()))), 0, 0]])
    assert records.decode_outcomes(outcome)[0].index == 9
    theirs = of_next_pack(records.encode_fragment(FRAGMENT))
    page = records.join_page([golden("fragment"), theirs])
    assert records.decode_page(page) == (FRAGMENT, FRAGMENT)
    assert theirs in page
    assert records.join_page([records.encode_fragment(FRAGMENT)] * 2) == msgspec.msgpack.encode((FRAGMENT, FRAGMENT))


def test_a_reason_that_only_the_next_release_knows_is_read_as_other_and_never_run_again() -> None:
    raw = msgspec.msgpack.decode(golden("fragment"))
    raw[3][0][8] = "EATEN_BY_A_GRUE"
    fragment = records.decode_fragment(msgspec.msgpack.encode(raw))
    assert [outcome.reason for outcome in fragment.outcomes] == [Reason.OTHER, Reason.NONE]
    assert fragment.outcomes[0].error == "ValueError: no"
    ruling = rule(Reason.OTHER, BlockData(retries=3), alone=True, backoff_us=0, max_losses=5)
    assert ruling == GiveUp(Reason.OTHER)


@pytest.mark.parametrize("count", [0, 1, 15, 16, 300, 70_000])
def test_arrays_are_put_together_and_counted_as_messagepack_has_them(count: int) -> None:
    assert records.array_of([b"\x01"] * count) == msgspec.msgpack.encode([1] * count)
    assert records.array_length(msgspec.msgpack.encode([1] * count)) == count


def test_a_record_whose_meaning_changed_is_refused() -> None:
    raw = json.loads(golden("meta")) | {"format": 2}
    with pytest.raises(WrongCluster, match="newer release"):
        records.decode_record(json.dumps(raw).encode(), Meta, "/meta")


# -- who may join ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mine", "protocol", "oldest", "told"),
    [(2, 2, 1, ""), (1, 2, 1, ""), (3, 2, 1, ""), (1, 3, 2, "too old"), (4, 2, 1, "too new"), (0, 2, 1, "too old")],
)
def test_releases_one_apart_work_together_and_others_are_refused(mine: int, protocol: int, oldest: int, told: str) -> None:
    refused = refusal(Release(version="9.9", protocol=mine), protocol=protocol, oldest=oldest)
    assert (refused is None) == (not told)
    if refused is not None:
        assert told in refused.message
        assert f"protocol {protocol}" in refused.message
        assert "9.9" in refused.message
        assert "upgrade" in refused.hint


def test_the_cluster_speaks_what_all_its_daemons_speak_and_never_goes_back() -> None:
    assert (raised(1, [2, 2, 3]), raised(1, [1, 2]), raised(2, [1]), raised(1, [])) == (2, 1, 2, 1)
    assert PROTOCOL >= 1
    assert SKEW == 1
