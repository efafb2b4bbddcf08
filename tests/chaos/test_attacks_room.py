"""Whoever fills ZooKeeper's quotas through a gateway leaves room for others, alone or with nine friends. Limits are the defaults.

The quotas are those of a server with a small heap, so that they are reached before any limit of the settings.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from rmgr.adapters.gateway.coordinator import GatewayCoordinator
from rmgr.adapters.identity.credentials import Credentials
from rmgr.client.identity.signing import Signer
from rmgr.coord.protocol import paths, quotas
from rmgr.errors import LimitReached
from rmgr.model.base.states import Reason
from rmgr.model.cluster.identity import Role
from rmgr.model.tasks.block import NO_SEQ, BlockData, BlockKey
from rmgr.model.tasks.submission import Command, Phase, Submission, Work
from tests.harness.flooded import Flooded
from tests.harness.submitted import submit

pytestmark = pytest.mark.xdist_group("attacks_room")
HEAP_MIB = 64  # of the scene's server
FRIENDS = 10


@pytest.fixture(scope="module")
def world(zookeeper_parts: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flooded]:
    made = Flooded(tmp_path_factory.mktemp("room"), heap_mb=HEAP_MIB)
    try:
        yield made
    finally:
        made.close()


def fill(world: Flooded, user: str, blocks: int, size: int, most: int) -> int:
    """Submits what waits until he is refused; returns how many times. Each has so many blocks of so many bytes."""
    assert world.cluster.security is not None
    mine = Credentials.load(world.cluster.security.bundle(Role.USER, user))
    signer = Signer(mine, world.cluster_id, ttl_s=600.0)
    draft = Submission(id=0, name="fill", user=user, queue="default", work=Work.COMMAND, command=Command(argv=("true",)))
    draft = replace(draft, phase=Phase.HELD, reason=Reason.USER_HOLD)
    key = BlockKey(priority=0, seq=NO_SEQ, submission=0, first=0, count=1, attempt=1, cores=1, memory_mib=0)
    sent = [(replace(key, first=at), BlockData(base=at, payloads=(b"x" * size,))) for at in range(blocks)]
    session = GatewayCoordinator.connect(world.gateway.endpoint, connect_timeout_s=30, credentials=mine)
    with session, pytest.raises(LimitReached, match=f"is for users who have less in it than {user}: "):
        made = 0
        while made < most:
            end_s = time.monotonic() + 30
            submit(session, draft, owner="", deadline_s=end_s, blocks=sent, tasks=blocks, complete=blocks > 0, signer=signer)
            made += 1
    world.people[user] = mine
    return made


@pytest.mark.parametrize(("root", "blocks"), [(paths.QUEUES, 180), (paths.SUBS, 0)])
def test_ten_users_do_not_take_the_last_of_a_quota(world: Flooded, root: str, blocks: int) -> None:
    """Blocks that wait, then submissions without any."""
    made = [fill(world, f"{root[1]}{number}", blocks, 10, quotas.limits(HEAP_MIB)[root].znodes) for number in range(FRIENDS)]
    each = blocks if root == paths.QUEUES else 5
    assert made[0] * each > quotas.limits(HEAP_MIB)[root].znodes / 2, made  # one alone has most of it
    for number in range(2):
        world.works()
        done = world.rmgr("ann", "submit", "--hold", "--array", "1-300", "--", "true")
        assert done.returncode == 0, (number, done.stderr)
    shown = json.loads(world.rmgr(f"{root[1]}0", "limits", "--json").stdout)
    assert next(one["refused"] for one in shown["limits"] if one["name"] == "zookeeper_bytes") > 0
