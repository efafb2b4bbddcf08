"""Old signed work does not run again: whoever puts back what a submission was, once it has ended, is refused on every node.

The attacker has a user's own session in ZooKeeper. He has kept record and block of ann's submission as she signed them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from rmgr.coord.decisions import ended
from rmgr.coord.ops.leader import no_outcome
from rmgr.coord.ops.operator import set_settings
from rmgr.coord.ops.work import HANDED_SEQ
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Committed, Create, Delete, Set
from rmgr.coord.protocol.records import encode_block, encode_fragment, encode_record
from rmgr.errors import RmgrError
from rmgr.model.base.states import Reason, State
from rmgr.model.cluster.identity import Role
from rmgr.model.tasks.block import BlockData, BlockKey
from rmgr.model.tasks.submission import Command, Phase, Tail
from rmgr.procedures.bootstrap import read_settings
from tests.harness import forgeries
from tests.harness.attacker import Person, Scene, unique
from tests.harness.waiting import eventually

RETENTION_US = 5_000_000  # who looks at how a task has ended comes that late on a busy machine


@pytest.fixture(scope="module", autouse=True)
def kept_shortly(attacked: Scene) -> Iterator[None]:
    """Submissions that have ended go from ZooKeeper at once, while these tests run."""
    before_us = read_settings(attacked.ann.zk).retention_us
    _keep_for(attacked, RETENTION_US)
    yield
    _keep_for(attacked, before_us)


Kept = tuple[int, bytes, BlockKey, BlockData]


def _keep_for(scene: Scene, retention_us: int) -> None:
    """How long ended submissions stay in ZooKeeper."""
    admin = Person(scene.cluster, Role.ADMIN, "admin")
    try:
        found = admin.zk.get(paths.CONFIG).result(60)
        assert found is not None
        settings = replace(read_settings(admin.zk), retention_us=retention_us)
        outcome = admin.zk.commit(set_settings(settings, found.version)).result(60)
        assert isinstance(outcome, Committed), outcome
    finally:
        admin.zk.close()


def _ran(scene: Scene, *, count: int = 1) -> Kept:
    """A submission of ann's that has ended, and what mallory has kept of it."""
    number, key, data = scene.intercepted((b"",) * count)
    found = scene.mallory.zk.get(paths.sub(number)).result(60)
    assert found is not None
    scene.plant(key, data)
    assert all(outcome.state is State.COMPLETED for outcome in scene.outcomes(number, count))
    assert scene.canary.read_text() == "ran\n" * count
    scene.canary.unlink()
    return number, found.data, key, data


def _collected(scene: Scene, number: int) -> None:
    eventually(lambda: scene.mallory.zk.stat(paths.sub(number)).result(60) is None, f"{number} is collected")


def _put_back(scene: Scene, kept: Kept) -> None:
    """Everything as it was before anything of it ran."""
    number, record, key, data = kept
    tail = encode_record(Tail(next=key.count, complete=True))
    places = (Create(paths.sub(number), record), Create(paths.tail(number), tail), Create(paths.done(number)), Create(paths.failed(number)))
    for _ in range(5):
        scene.plant(key, data, more=places)
        if not _is_taken_along(scene, number):
            return
    raise AssertionError(f"{number} is collected again whenever it is put back")


def _is_taken_along(scene: Scene, number: int) -> bool:
    """The leader was not done with collecting the submission, and took what was put back along; the node has not answered."""

    def there(path: str) -> bool:
        return scene.mallory.zk.stat(path).result(60) is not None

    for _ in range(20):
        if there(paths.fragment(number, 0)):
            return False
        if not there(paths.sub(number)):
            return True
        time.sleep(0.01)
    return False


def _refused(scene: Scene, number: int, already: int = 0) -> None:
    """The node said so, and nothing ran."""
    outcome = scene.outcomes(number, already + 1)[already]
    assert (outcome.state, outcome.reason) == (State.FAILED, Reason.UNTRUSTED), outcome
    assert "its submission is closed" in outcome.error
    assert not scene.canary.exists()


def test_a_collected_submission_that_is_put_back_does_not_run_where_it_ran(scene: Scene) -> None:
    kept = _ran(scene)
    _collected(scene, kept[0])
    _put_back(scene, kept)
    _refused(scene, kept[0])


def test_nor_where_its_record_was_read_again_a_moment_ago(scene: Scene) -> None:
    """The first block makes the node read and keep the false record; the second comes while that is fresh."""
    kept = _ran(scene, count=2)
    _collected(scene, kept[0])
    _put_back(scene, kept)
    _refused(scene, kept[0])
    scene.plant(*kept[2:])
    _refused(scene, kept[0], already=2)


def test_nor_when_it_is_handed_to_the_node_itself(scene: Scene) -> None:
    kept = _ran(scene)
    _collected(scene, kept[0])
    number, record, key, data = kept
    tail = encode_record(Tail(next=key.count, complete=True))
    places = (Create(paths.tail(number), tail), Create(paths.done(number)), Create(paths.failed(number)), Create(paths.gate(number)))
    handed = Create(paths.running_block("n1", replace(key, seq=HANDED_SEQ)), encode_block(data))
    eventually(lambda: scene.mallory.zk.stat(paths.idle("n1")).result(60) is not None, "the node shows its idle marker")
    made = scene.mallory.commit(Create(paths.sub(number), record), *places, handed, Delete(paths.idle("n1")))
    assert isinstance(made, Committed), made
    _refused(scene, number)


def test_what_a_node_has_of_an_ended_submission_does_not_begin(scene: Scene) -> None:
    """Mallory tells the leader that all of ann's tasks were cancelled: two run, and the node holds two more."""
    go = scene.directory / f"go-{unique()}"
    command = Command(argv=("/bin/sh", "-c", f"echo ran >> {scene.canary}; while [ ! -e {go} ]; do sleep 0.02; done"))
    go.touch()
    scene.outcomes(scene.submit(command=command), 1)  # tasks like these are short: a node takes several
    go.unlink()
    scene.canary.unlink()
    number = scene.submit(payloads=(b"a", b"b", b"c", b"d"), command=command)
    eventually(lambda: scene.canary.exists() and scene.canary.read_text() == "ran\n" * 2, "two run")
    gone = encode_fragment(no_outcome(State.CANCELLED, Reason.USER_CANCEL, range(4)))
    scene.mallory.commit(Create(paths.fragment_prefix(number), gone, sequence=True))
    eventually(lambda: _bit(scene, paths.ended(number // ended.BUCKET), number), "that is written down")
    go.touch()

    def is_over() -> bool:
        names = scene.ann.zk.children(paths.running_node("n1")).result(60)
        return not any(key.submission == number for _, key in paths.blocks_in(names))

    eventually(is_over, "the node has nothing of it any more")
    assert scene.canary.read_text() == "ran\n" * 2


def test_nor_does_one_that_is_opened_again_before_it_is_collected(scene: Scene) -> None:
    _keep_for(scene, 3_600_000_000)
    try:
        number, record, key, data = _ran(scene)
        eventually(lambda: forgeries.record(scene, number).phase is Phase.CLOSED, "it is closed")
        bits = paths.ended(number // ended.BUCKET)
        eventually(lambda: _bit(scene, bits, number), "that is written down")
        found = scene.mallory.zk.get(paths.sub(number)).result(60)
        assert found is not None
        scene.plant(key, data, more=(Set(paths.sub(number), record, found.version),))
        _refused(scene, number, already=1)
    finally:
        _keep_for(scene, RETENTION_US)


def test_nobody_but_the_leader_says_what_has_ended(scene: Scene) -> None:
    number, *_ = _ran(scene)
    bits = paths.ended(number // ended.BUCKET)
    eventually(lambda: _bit(scene, bits, number), "that is written down")
    for op in (Set(bits, b"", -1), Delete(bits), Create(paths.ended(7)), Set(paths.ENDED, b"", -1), Delete(paths.ENDED)):
        with pytest.raises(RmgrError):
            scene.mallory.commit(op)


def test_nor_does_it_run_on_a_node_that_has_never_seen_it(scene: Scene) -> None:
    """It was put back while there was no node."""
    kept = _ran(scene)
    _collected(scene, kept[0])
    scene.cluster.kill("n1")
    _put_back(scene, kept)
    scene.cluster.start_starter("n1")
    _refused(scene, kept[0])


def _bit(scene: Scene, path: str, number: int) -> bool:
    found = scene.mallory.zk.get(path).result(60)
    return found is not None and ended.holds(found.data, number)
