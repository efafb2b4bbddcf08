"""Users who submit in loops, all at once, do not keep another one from his number: each of them has clients of his own making."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rmgr.adapters.gateway.coordinator import GatewayCoordinator
from rmgr.client.identity.signing import Signer
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Multi, Outcome
from rmgr.model.base.states import Reason
from rmgr.model.cluster.identity import Role
from rmgr.model.tasks.submission import Command, Phase, Submission, Work
from tests.harness.flooded import Flooded
from tests.harness.submitted import submit
from tests.harness.waiting import eventually
from tests.places import ROOT

pytestmark = pytest.mark.xdist_group("attacks_turns")

#: How many submit in loops; how often ann does meanwhile, and how long she thinks in between.
LOOPS, TIMES, THINKS_S = 40, 9, 0.5


def tries_of(zk: GatewayCoordinator, signer: Signer, name: str) -> int:
    """Submits something that is held, so that no Starter is part of this. Returns: how often SUBMIT was sent."""
    sent: list[str] = []
    commit = zk.commit

    def counted(multi: Multi, *, timeout_s: float = 10.0) -> Future[Outcome]:
        sent.append(multi.name)
        return commit(multi, timeout_s=timeout_s)

    zk.commit = counted  # type: ignore[method-assign]
    try:
        draft = Submission(id=0, name=name, user="ann", queue="default", work=Work.COMMAND, command=Command(argv=("true",)))
        draft = replace(draft, phase=Phase.HELD, reason=Reason.USER_HOLD)
        submit(zk, draft, owner="", deadline_s=time.monotonic() + 60, complete=True, signer=signer)
    finally:
        zk.commit = commit  # type: ignore[method-assign]
    return sent.count("SUBMIT")


def test_a_person_gets_her_number_beside_many_who_submit_in_loops(zookeeper_parts: None, tmp_path: Path) -> None:
    world = Flooded(tmp_path, heap_mb=256)
    security = world.cluster.security
    assert security is not None
    bundles = [str(security.bundle(Role.USER, f"loop{at}")) for at in range(LOOPS)]
    kept = {key: value for key, value in os.environ.items() if not key.startswith("RMGR_")}
    words = [sys.executable, "-m", "tests.bench.flood", "hostile", world.gateway.endpoint, world.leader, "45", "submit", *bundles]
    children: list[subprocess.Popen[Any]] = []
    try:
        signer = Signer(world.people["ann"], world.cluster_id, ttl_s=3600)
        with world.session("ann") as zk:
            children.append(subprocess.Popen(words, env=kept, cwd=ROOT, stdout=subprocess.PIPE, text=True))
            there = partial(world.admin.zk.children, paths.subs_bucket(1))
            eventually(lambda: len(there().result(60) or ()) > LOOPS, lambda: f"they submit: {world.gateway.autopsy()}")
            tries: list[int] = []
            for at in range(TIMES):
                time.sleep(THINKS_S)
                tries.append(tries_of(zk, signer, f"a{at}"))
        assert children[0].poll() is None, "they went on to the end"
        assert statistics.median(tries) <= 3, tries
        assert sum(tries) <= 6 * TIMES, tries
    finally:
        for child in children:
            child.kill()
            child.wait(60)
        world.close()
