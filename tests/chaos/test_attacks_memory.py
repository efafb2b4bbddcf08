"""The leader's memory while a direct user writes records that cost as much as they can: it has a bound, and ann works."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import psutil
import pytest

from rmgr.adapters.rpc_use import UseClient
from rmgr.client.snapshot import read_submission
from rmgr.coord import paths
from rmgr.coord.multi import MAX_OPS, Committed, Create, Exists, Multi, Op, Set
from rmgr.coord.records import encode_block, encode_fragment, encode_record
from rmgr.model.block import MAX_TASKS, NO_SEQ, BlockData, BlockKey
from rmgr.model.identity import Role
from rmgr.model.outcome import Fragment, Outcome
from rmgr.model.states import State
from rmgr.model.submission import Phase, Tail
from tests.harness.attacker import Scene, until

pytestmark = pytest.mark.xdist_group("attacks_memory")
#: Submissions that he forges; what each may make the leader hold (bytes), which is some objects, whatever it claims to be.
MANY, EACH = 1500, 48 * 1024
#: As many tasks as one change of a tail can bring.
CLAIMED = MAX_OPS * MAX_TASKS


@pytest.fixture(scope="module")
def scene(zookeeper_parts: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    made = Scene(tmp_path_factory.mktemp("memory"))
    try:
        yield made
    finally:
        made.close()


def test_what_a_user_writes_moves_the_leaders_memory_by_no_more_than_it_weighs(scene: Scene) -> None:
    """Each record claims as many tasks as one change can bring; far ones have ended, far ones wait, some beyond what was claimed."""
    mine = read_submission(scene.mallory.zk, scene.submit())
    scene.outcomes(mine.id)
    leader = psutil.Process(scene.cluster.process("w1").pid)
    before = leader.memory_info().rss
    first = 5000
    scene.mallory.commit(Set(paths.IDS, encode_record(first + MANY), -1))
    for bucket in range(first // 1000, (first + MANY) // 1000 + 1):
        scene.mallory.commit(Create(f"{paths.SUBS}/{bucket}"))
    asked = []
    for number in range(first, first + MANY):
        record = replace(mine, id=number, user="mallory", phase=Phase.OPEN, token="", max_running=1, after=())
        asked.append(scene.mallory.zk.commit(Multi(name="ATTACK", ops=tuple(forged(record, number)), proof=Exists(paths.sub(number)))))
    assert all(isinstance(answer.result(60), Committed) for answer in asked)
    highest = 0

    epoch = scene.cluster.snapshot().epoch
    assert epoch is not None
    asks = UseClient(epoch.endpoint, role=Role.WATCHDOG, credentials=scene.mallory.credentials)

    def has_met_them() -> bool:
        nonlocal highest
        highest = max(highest, leader.memory_info().rss)
        known = asks.use(fresh=True).users.get("mallory")
        return known is not None and known.used.get("open_submissions", 0) >= MANY

    until("the leader has met them", has_met_them)
    asks.close()
    for _ in range(3):
        [outcome] = scene.outcomes(scene.submit())
        assert outcome.state is State.COMPLETED
        highest = max(highest, leader.memory_info().rss)
    assert highest - before < MANY * EACH + (64 << 20), (highest - before) >> 20


def forged(record: object, number: int) -> Iterator[Op]:
    yield Create(paths.sub(number), encode_record(record))
    yield Create(paths.gate(number))
    yield Create(paths.tail(number), encode_record(Tail(next=CLAIMED, complete=True, enqueued="x")))
    yield Create(paths.done(number))
    yield Create(paths.failed(number))
    far = tuple(Outcome(index=index, state=State.CANCELLED) for index in range(0, CLAIMED, CLAIMED // 16))
    for ranges in (((State.COMPLETED, 0, CLAIMED),), ((State.COMPLETED, 1 << 25, 1 << 25),)):
        fragment = Fragment(attempt=1, outcomes=far, ranges=ranges)
        yield Create(paths.fragment_prefix(number), encode_fragment(fragment), sequence=True)
    key = BlockKey(priority=0, seq=NO_SEQ, submission=number, first=CLAIMED - 1, count=1, attempt=1, cores=1, memory_mib=0)
    yield Create(f"{paths.held('default')}/{paths.block_prefix(key)}", encode_block(BlockData()), sequence=True)
