"""A writer of the data store cannot inject state into another user's job: its Starter restores only sealed checkpoints."""

from __future__ import annotations

import hashlib
import pickle
from pathlib import Path

import msgspec
import pytest

from rmgr.adapters.identity.trust import Trust, ZooKeeperKeys, publish
from rmgr.coord.protocol import keys
from rmgr.daemons.starter import main as starter
from rmgr.daemons.starter.checkpoint import files
from rmgr.daemons.starter.checkpoint.files import StarterSeals
from rmgr.model.base.states import State
from rmgr.model.cluster.identity import Role
from tests.harness.bundles import session_bundles
from tests.harness.hand_leader import put
from tests.harness.starter_rig import Rig
from tests.integration.starter.test_checkpoints import back, begins, grows, python, start, steps, stop


def test_a_forged_checkpoint_is_refused_and_the_job_goes_on_from_the_sealed_one(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mallory can write the data store; the Starter has its key, and the cluster's certificates lie in ZooKeeper."""
    bundles = session_bundles()
    mine, mallory = bundles.credentials(Role.STARTER, "n1"), bundles.credentials(Role.USER, "mallory")
    for credentials in (mine, mallory):
        publish(rig.zk, credentials)
    trust = Trust(ZooKeeperKeys(rig.zk), bundles.ca.cert_pem)
    seals = StarterSeals(mine, trust, cluster_id="c")
    monkeypatch.setattr(starter, "seals_of", lambda *_: seals)
    start(rig, "n1")
    ledger = tmp_path / "ledger"
    number = rig.submit(python(ledger), queue="batch")
    put(rig, number)
    grows(ledger)
    stop(rig, number)
    back(rig, number, 2)
    kept = steps(ledger)[-1]
    true = files.read_checkpoint(rig.store, next(files.checkpoints_of(rig.store, number, 0)), seals)
    evil = pickle.dumps(100_000)
    digest = hashlib.sha256(evil).hexdigest()
    rig.store.put(keys.checkpoint_piece(number, 0, 1, digest), evil)
    entry = msgspec.structs.replace(true.files[0], size=len(evil), sha256=digest, rows=((digest, 0, len(evil)),))
    forged = msgspec.structs.replace(true, n=2, files=(entry,), size_bytes=len(evil))
    files.write_checkpoint(rig.store, forged)
    files.write_checkpoint(rig.store, StarterSeals(mallory, trust, cluster_id="c").seal(msgspec.structs.replace(forged, n=3)))
    put(rig, number)
    grows(ledger)
    *refused, _ = begins(rig, number, "attempt 2 begins with checkpoint 1.1")[-3:]
    assert refused[0].startswith("checkpoint 1.3 is refused (UNTRUSTED): it was sealed by user mallory")
    assert refused[1].startswith("checkpoint 1.2 is refused (UNTRUSTED): it is not what Starter n1 has sealed")
    assert steps(ledger)[kept] == kept + 1
    Path(f"{ledger}.end").touch()
    assert rig.outcomes(number, 1)[0].state is State.COMPLETED
