"""The leader's memory while a direct user writes records that cost as much as they can: it has a bound, and ann works."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from rmgr.adapters.rpc.server import LeaderClient
from rmgr.adapters.rpc.use import UseClient
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import MAX_OPS, Committed, Create, Exists, Multi, Op, Set
from rmgr.coord.protocol.records import encode_block, encode_fragment, encode_record
from rmgr.model.base.states import State
from rmgr.model.cluster.identity import Role
from rmgr.model.tasks.block import MAX_TASKS, MOST_TASKS, NO_SEQ, BlockData, BlockKey
from rmgr.model.tasks.outcome import Fragment, Outcome
from rmgr.model.tasks.submission import Phase, Tail
from rmgr.procedures.snapshot import read_submission
from tests.harness.attacker import Scene
from tests.harness.waiting import eventually

pytestmark = pytest.mark.xdist_group("attacks_memory")
#: Submissions that he forges; what each may make the leader hold (bytes), which is some objects, whatever it claims to be.
MANY, EACH = 1500, 48 * 1024
#: As many tasks as one change of a tail can bring.
CLAIMED = MAX_OPS * MAX_TASKS
#: Tasks that the leader keeps together; what it may grow by while it learns of 67 million (bytes), each of which had one once.
PAGE, MAY_GROW = 4096, 48 << 20


@pytest.fixture
def scene(zookeeper_parts: None, tmp_path: Path) -> Iterator[Scene]:
    """A cluster for each test: neither has its quota, or a leader whose memory was fragmented, from the other."""
    made = Scene(tmp_path)
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
    asked = []
    for number in range(first, first + MANY):
        record = replace(mine, id=number, user="mallory", phase=Phase.OPEN, token="", max_running=1, after=())
        ops = [Create(bucket_of(number))] if number % 1000 == 0 else []  # together: the leader removes an empty one
        asked.append(scene.mallory.zk.commit(Multi(name="ATTACK", ops=(*ops, *forged(record, number)), proof=Exists(paths.sub(number)))))
    assert not [answer for answer in (one.result(60) for one in asked) if not isinstance(answer, Committed)]
    highest = 0

    epoch = scene.cluster.snapshot().epoch
    assert epoch is not None
    asks = UseClient(epoch.endpoint, role=Role.WATCHDOG, credentials=scene.mallory.credentials)

    def has_met_them() -> bool:
        nonlocal highest
        highest = max(highest, leader.memory_info().rss)
        known = asks.use(fresh=True).users.get("mallory")
        return known is not None and known.used.get("open_submissions", 0) >= MANY

    eventually(has_met_them, "the leader has met them")
    asks.close()
    for _ in range(3):
        [outcome] = scene.outcomes(scene.submit())
        assert outcome.state is State.COMPLETED
        highest = max(highest, leader.memory_info().rss)
    assert highest - before < MANY * EACH + (64 << 20), (highest - before) >> 20


@pytest.mark.long
def test_what_lies_far_apart_and_what_was_claimed_by_many_changes_weighs_what_it_says(scene: Scene) -> None:
    """His tail claims all that a submission can have, change by change; outcomes lie a page apart, then pages end but for one task."""
    mine = read_submission(scene.mallory.zk, scene.submit())
    scene.outcomes(mine.id)
    leader = psutil.Process(scene.cluster.process("w1").pid)
    numbers = [mine.id + 5000, mine.id + 5001]
    scene.mallory.commit(Set(paths.IDS, encode_record(mine.id + 5002), -1))
    for number in numbers:
        made = list(forged(replace(mine, id=number, user="mallory", phase=Phase.OPEN, token="", after=()), number))[:5]
        if number == numbers[0]:
            made.insert(0, Create(bucket_of(number)))
        asked = Multi(name="ATTACK", ops=tuple(made), proof=Exists(paths.sub(number)))
        assert isinstance(scene.mallory.zk.commit(asked).result(60), Committed)
    for _ in range(MOST_TASKS // CLAIMED // 50 + 1):  # fifty changes of both tails in a commit
        changes = tuple(Set(paths.tail(number), encode_record(Tail(next=1, complete=False)), -1) for number in numbers for _ in range(50))
        answer = scene.mallory.zk.commit(Multi(name="ATTACK", ops=changes, proof=Exists(paths.tail(numbers[0])))).result(60)
        assert isinstance(answer, Committed), answer
    for number in numbers:
        scene.mallory.commit(Set(paths.tail(number), encode_record(Tail(next=MOST_TASKS, complete=False)), -1))
    before = leader.memory_info().rss
    pages = range(0, MOST_TASKS, PAGE)
    far = [Fragment(attempt=1, outcomes=tuple(Outcome(index=at + PAGE - 1, state=State.CANCELLED) for at in pages[first : first + 128]))
           for first in range(0, len(pages), 128)]  # fmt: skip
    ranges = [Fragment(attempt=1, row=f"frag/{numbers[1]:010d}/x", ranges=tuple(
        part for at in pages[first : first + 24] for part in ((State.COMPLETED, at, PAGE - 1), (State.FAILED, at + PAGE - 1, 1))
    )) for first in range(0, len(pages) // 2, 24)]  # fmt: skip
    for number, fragments in zip(numbers, (far, ranges), strict=True):
        ops = [Create(paths.fragment_prefix(number), encode_fragment(fragment), sequence=True) for fragment in fragments]
        for at in range(0, len(ops), 20):
            asked = Multi(name="ATTACK", ops=tuple(ops[at : at + 20]), proof=Exists(paths.sub(number)))
            assert isinstance(scene.mallory.zk.commit(asked).result(60), Committed)

    def counted() -> list[int]:
        return [view.counts.get(name, 0) for view, name in zip(asks.jobs(tuple(numbers)), ("CANCELLED", "COMPLETED"), strict=True)]

    told = [len(pages), sum(count for fragment in ranges for state, _, count in fragment.ranges if state is State.COMPLETED)]
    epoch = scene.cluster.snapshot().epoch
    assert epoch is not None
    with LeaderClient(epoch.endpoint, credentials=scene.mallory.credentials) as asks:
        eventually(lambda: counted() == told, lambda: f"the leader has counted them: {counted()}")
    [outcome] = scene.outcomes(scene.submit())
    assert outcome.state is State.COMPLETED
    assert leader.memory_info().rss - before < MAY_GROW, (leader.memory_info().rss - before) >> 20


def bucket_of(number: int) -> str:
    return paths.sub(number).rpartition("/")[0]


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
