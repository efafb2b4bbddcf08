"""A checkpoint is restored with the seal of a Starter of the cluster only: forged, copied, renamed and unsealed ones are refused."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from rmgr.coord.protocol import keys
from rmgr.coord.protocol.keys import Checkpoint
from rmgr.coord.seal import CheckpointSeal
from rmgr.daemons.starter.checkpoint import directories, files
from rmgr.daemons.starter.checkpoint.checkpoint import RestoredCheckpoint, newest, take
from rmgr.daemons.starter.checkpoint.directories import LocalPart, RemotePart, answer
from rmgr.daemons.starter.checkpoint.files import OPEN, Manifest, Seals, StarterSeals, decode_manifest, encode_manifest, seals_of
from rmgr.errors import DataLost, PermissionDenied
from rmgr.model.cluster.identity import Role
from rmgr.model.cluster.node import Meta
from tests.harness.bundles import session_bundles
from tests.harness.memory_store import MemoryStore

BUNDLES = session_bundles()
PEOPLE = {"starter": (Role.STARTER, "n1"), "user": (Role.USER, "mallory")}


class Known:
    """Certificates of the cluster, and keys that were revoked."""

    def __init__(self) -> None:
        self.revoked: set[str] = set()

    def find(self, key_id: str, *, at_s: float, zxid: int = 0, timeout_s: float = 10.0) -> Any:
        for who in PEOPLE.values():
            mine = BUNDLES.credentials(*who)
            if mine.identity.key_id == key_id and key_id not in self.revoked:
                from rmgr.adapters.identity.pki import verify_certificate

                return verify_certificate(mine.certificate_pem, BUNDLES.ca.cert_pem, now_s=at_s)
        return f"nobody is known by the key {key_id}"


@pytest.fixture
def known() -> Known:
    return Known()


def seals(known: Known, who: str = "starter", *, cluster_id: str = "c") -> StarterSeals:
    return StarterSeals(BUNDLES.credentials(*PEOPLE[who]), known, cluster_id=cluster_id)  # type: ignore[arg-type]


class Job:
    """The directory of a job, and its checkpoints."""

    def __init__(self, tmp_path: Path, mine: Seals, sub: int = 42) -> None:
        self.store = MemoryStore("")
        self.seals = mine
        self.sub = sub
        self.home = tmp_path / f"job-{sub}"
        self.home.mkdir()

    def part(self, attempt: int = 1) -> LocalPart:
        return LocalPart(
            node="n1", directory=self.home, account=None, store=self.store, sub=self.sub, index=0, attempt=attempt, seals=self.seals
        )

    def take(self, n: int, text: str, *, by: Seals | None = None, attempt: int = 1) -> Checkpoint:
        (self.home / "file").write_text(text)
        saved = Checkpoint(sub=self.sub, index=0, attempt=attempt, n=n)
        now_us = time.time_ns() // 1000
        told = take(
            [self.part(attempt)],
            self.store,
            saved,
            (),
            stop=True,
            limit=1 << 20,
            made_us=now_us,
            is_over=lambda: False,
            seals=by or self.seals,
        )
        assert "stored" in told
        return saved

    def restored(self) -> tuple[str, list[str]]:
        """(what the job begins with, "" = nothing; what is told of others)."""
        found = newest(self.store, self.part(attempt=9), self.sub, 0, RestoredCheckpoint())
        left = self.home / "file"
        return left.read_text() if left.exists() else "", found.lost


def test_what_a_starter_took_is_restored(tmp_path: Path, known: Known) -> None:
    job = Job(tmp_path, seals(known))
    saved = job.take(1, "mine")
    (job.home / "file").write_text("changed")
    assert job.restored() == ("mine", [])
    assert answer(job.part(), SimpleNamespace(step="restore", row=saved.key)) == (0, "")  # type: ignore[arg-type]


FORGERIES: dict[str, Callable[[Manifest, StarterSeals], Manifest]] = {
    "no Starter has sealed it": lambda manifest, _: msgspec.structs.replace(manifest, seal=None),
    "is not what Starter n1 has sealed": lambda manifest, _: msgspec.structs.replace(manifest, made_us=manifest.made_us + 1),
    "sealed by user mallory": lambda manifest, users: users.seal(manifest),
    "nobody is known": lambda manifest, _: msgspec.structs.replace(manifest, seal=CheckpointSeal(key_id="0" * 32, signature=b"x" * 64)),
}


@pytest.mark.parametrize("why", FORGERIES)
def test_a_forged_one_is_refused_and_the_job_begins_with_the_one_before(tmp_path: Path, known: Known, why: str) -> None:
    job = Job(tmp_path, seals(known))
    job.take(1, "sealed")
    last = job.take(2, "forged")
    manifest = decode_manifest(job.store.get(last.key)[0])  # type: ignore[index]
    job.store.put(last.key, encode_manifest(FORGERIES[why](manifest, seals(known, "user"))))
    text, told = job.restored()
    assert text == "sealed"
    assert [sentence.startswith("checkpoint 1.2 is refused (UNTRUSTED): ") and why in sentence for sentence in told] == [True]
    with pytest.raises(DataLost, match=why):
        answer(job.part(), SimpleNamespace(step="restore", row=last.key))  # type: ignore[arg-type]
    job.store.delete(Checkpoint(sub=42, index=0, attempt=1, n=1).key)
    assert job.restored()[0] == ""


def test_files_that_nobody_has_sealed_are_not_even_decoded(tmp_path: Path, known: Known) -> None:
    job = Job(tmp_path, seals(known))
    last = job.take(1, "forged")
    manifest = decode_manifest(job.store.get(last.key)[0])  # type: ignore[index]
    row = encode_manifest(msgspec.structs.replace(manifest, seal=None))
    job.store.put(last.key, row.replace(b'"files":[', b'"files":[7,'))
    text, [told] = job.restored()
    assert text == ""
    assert "is refused (UNTRUSTED): no Starter has sealed it" in told


def test_one_of_another_job_attempt_or_cluster_is_refused(tmp_path: Path, known: Known) -> None:
    mallory, job = Job(tmp_path, seals(known), sub=41), Job(tmp_path, seals(known))
    job.take(1, "mine")
    his = mallory.take(1, "his")
    for key in mallory.store.keys("ckpt/"):
        value = mallory.store.get(key)
        job.store.put(key, value[0])
    row = job.store.get(his.key)
    mine = job.store.get(Checkpoint(sub=42, index=0, attempt=1, n=1).key)
    assert row is not None
    assert mine is not None
    job.store.put(Checkpoint(sub=42, index=0, attempt=1, n=7).key, row[0])
    job.store.put(Checkpoint(sub=42, index=0, attempt=3, n=1).key, mine[0])
    text, told = job.restored()
    assert text == "mine"
    assert ["a copy of checkpoint" in sentence for sentence in told] == [True, True]
    job.seals = seals(known, cluster_id="another")
    assert job.restored()[0] == ""


def test_a_piece_or_a_list_of_a_node_that_was_exchanged_is_not_used(tmp_path: Path, known: Known) -> None:
    job = Job(tmp_path, seals(known))
    job.take(1, "mine")
    row = next(key for key in job.store.keys("ckpt/") if keys.parse_checkpoint(key) is None)
    job.store.put(row, b"his")
    assert job.restored()[0] == ""
    remote = RemotePart(node="n2", hold="", peers=None, coordinator=None, store=job.store)  # type: ignore[arg-type]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RemotePart, "_step", lambda *_args, **_options: (0, row))
        with pytest.raises(DataLost, match="not what that node has stored"):
            remote.collect(stop=True, max_bytes=100)
        patch.setattr(directories, "MOST_LIST_BYTES", 2)
        with pytest.raises(DataLost, match="3 bytes, more than rmgr ever writes there"):
            remote.collect(stop=True, max_bytes=100)


def test_forged_ones_push_out_no_sealed_one(tmp_path: Path, known: Known) -> None:
    job = Job(tmp_path, seals(known))
    job.take(1, "first")
    forged = encode_manifest(Manifest(sub=42, index=0, attempt=9, n=9, made_us=1, nodes=("n1",), size_bytes=0, files=()))
    for attempt in (1, 8, 9):
        job.store.put(Checkpoint(sub=42, index=0, attempt=attempt, n=99).key, forged)
    job.take(2, "second")
    assert job.restored()[0] == "second"
    assert [str(one) for one in files.checkpoints_of(job.store, 42, 0)] == ["9.99", "8.99", "1.2", "1.1"]


def test_a_revoked_starters_are_refused(tmp_path: Path, known: Known) -> None:
    job = Job(tmp_path, seals(known))
    job.take(1, "mine")
    known.revoked.add(BUNDLES.credentials(*PEOPLE["starter"]).identity.key_id)
    assert job.restored()[0] == ""


def test_an_older_release_reads_what_this_one_seals(known: Known) -> None:
    class Older(msgspec.Struct):
        sub: int
        n: int
        format: int = 1

    bare = Manifest(sub=1, index=0, attempt=1, n=2, made_us=1, nodes=("n1",), size_bytes=0, files=())
    old = msgspec.json.decode(encode_manifest(seals(known).seal(bare)), type=Older)
    assert (old.sub, old.n, old.format) == (1, 2, 1)
    before = msgspec.json.encode({**msgspec.to_builtins(bare), "newer": 5})
    with pytest.raises(PermissionDenied):
        seals(known).check(before, decode_manifest(before))


def test_an_open_cluster_seals_nothing() -> None:
    assert seals_of(None, None, Meta(cluster_id="c")) is OPEN
