"""Old signed work never runs again: every node refuses an ended submission that was put back.

The attacker has a gateway's session in ZooKeeper. He has kept record and block of ann's
submission as she signed them.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from dataclasses import replace

import pytest

from rmgr.coord import nonces
from rmgr.coord.ops import work as ops
from rmgr.coord.ops.leader import no_outcome
from rmgr.coord.ops.membership import set_settings
from rmgr.coord.ops.work import HANDED_SEQ
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Committed, Create, Delete, Set
from rmgr.coord.protocol.records import decode_record, encode_block, encode_fragment, encode_record
from rmgr.daemons.leader.submissions.subs import LISTS_S
from rmgr.errors import RmgrError
from rmgr.model.block import BlockData, BlockKey
from rmgr.model.identity import Role
from rmgr.model.states import Reason, State
from rmgr.model.submission import Command, Phase, Submission, Tail
from rmgr.procedures.bootstrap import read_settings
from tests.harness import forgeries
from tests.harness.attacker import DEADLINE_S, Person, Scene, changed, unique
from tests.harness.waiting import eventually

Kept = tuple[int, bytes, BlockKey, BlockData]


@pytest.fixture
def thief(attacked: Scene) -> Iterator[Person]:
    """A gateway that was taken over."""
    gateway = Person(attacked.cluster, Role.SUBMITTER, "stolen")
    yield gateway
    gateway.zk.close()


def _keep_for(scene: Scene, retention_us: int) -> int:
    """How long ended submissions stay in ZooKeeper from now on. Returns: how long it was so far."""
    admin = Person(scene.cluster, Role.ADMIN, "admin")
    try:
        found = admin.zk.get(paths.CONFIG).result(60)
        assert found is not None
        before = read_settings(admin.zk)
        outcome = admin.zk.commit(set_settings(replace(before, retention_us=retention_us), found.version)).result(60)
        assert isinstance(outcome, Committed), outcome
        return before.retention_us
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
    """It has gone from ZooKeeper; what ends later stays until somebody has looked at how it ended."""
    before_us = _keep_for(scene, 1)
    try:
        eventually(lambda: scene.mallory.zk.stat(paths.sub(number)).result(60) is None, f"{number} is collected")
    finally:
        _keep_for(scene, before_us)
    time.sleep(20 * LISTS_S)  # the leader has noticed it, too, or it would collect what is put back


def _put_back(scene: Scene, kept: Kept, *, answered: bool = True) -> None:
    """Everything as it was before anything of it ran. answered: there is a node that says something to it."""
    number, record, key, data = kept
    tail = encode_record(Tail(next=key.count, complete=True))
    places = (Create(paths.sub(number), record), Create(paths.tail(number), tail), Create(paths.done(number)), Create(paths.failed(number)))
    for _ in range(5):
        scene.plant(key, data, more=places)
        if not _is_taken_along(scene, number, answered=answered):
            return
    raise AssertionError(f"{number} is collected again whenever it is put back")


def _is_taken_along(scene: Scene, number: int, *, answered: bool) -> bool:
    """The leader had not noticed yet that the submission was gone, and took what was put back along; the node has not answered."""

    def there(path: str) -> bool:
        return scene.mallory.zk.stat(path).result(60) is not None

    end_s = time.monotonic() + (DEADLINE_S if answered else 1.0)
    while time.monotonic() < end_s and not there(paths.fragment(number, 0)):
        if not there(paths.sub(number)):
            return True
        time.sleep(0.01)
    return False


def _refused(scene: Scene, number: int, already: int = 0, why: str = "its submission is closed") -> None:
    """The node said so, and nothing ran."""
    outcome = scene.outcomes(number, already + 1)[already]
    assert (outcome.state, outcome.reason) == (State.FAILED, Reason.UNTRUSTED), outcome
    assert why in outcome.error
    assert not scene.canary.exists()


def _submitted_by(thief: Person, record: Submission, key: BlockKey, data: BlockData, *, nonce: bool) -> int:
    """What ann has signed, under the number that is due. nonce: its znode is made, too, as by SUBMIT."""
    for _ in range(20):
        found = thief.zk.get(paths.IDS).result(60)
        assert found is not None
        number = decode_record(found.data, int, paths.IDS)
        multi = ops.submit(
            replace(record, id=number),
            ids_version=found.version,
            tail=Tail(next=key.count, complete=True),
            blocks=[(replace(key, submission=number), data)],
            make_bucket=False,
        )
        made = thief.commit(*(op for op in multi.ops if nonce or not op.path.startswith(paths.NONCES)))
        if isinstance(made, Committed):
            return number
    raise AssertionError("no number was to be had")


def test_a_collected_submission_that_is_put_back_does_not_run_where_it_ran(scene: Scene) -> None:
    kept = _ran(scene)
    _collected(scene, kept[0])
    _put_back(scene, kept)
    _refused(scene, kept[0])


def test_nor_under_another_number(scene: Scene, thief: Person) -> None:
    """While it goes on, and when it has ended."""
    number, key, data = scene.intercepted()
    found = scene.mallory.zk.get(paths.sub(number)).result(60)
    assert found is not None
    record = decode_record(found.data, Submission)
    _refused(scene, _submitted_by(thief, record, key, data, nonce=False), why="its nonce is that of another submission")
    scene.plant(key, data)
    assert scene.outcomes(number)[0].state is State.COMPLETED
    scene.canary.unlink()
    _refused(scene, _submitted_by(thief, record, key, data, nonce=False), why="its nonce is that of another submission")


def test_nor_when_it_is_submitted_anew_after_its_nonce_has_gone(scene: Scene, thief: Person) -> None:
    """Two hours later nothing is left of it, nothing keeps him from making it all again, and it is too late."""
    number, key, data = scene.intercepted()
    found = scene.mallory.zk.get(paths.sub(number)).result(60)
    assert found is not None
    then = replace(decode_record(found.data, Submission), nonce=uuid.uuid4().hex, signed_s=int(time.time()) - 7200)
    [(_, data)] = scene.signer().sealer(then)([(key, changed(data, seal=None))])
    again = _submitted_by(thief, scene.signer().signed(then), key, data, nonce=True)
    _refused(scene, again, why="by ZooKeeper's clock")


def test_what_a_gateway_submits_for_her_in_time_runs_once(scene: Scene, thief: Person) -> None:
    """She has signed it, and was told no number: that is the gateway's to give."""
    number, key, data = scene.intercepted()
    found = scene.mallory.zk.get(paths.sub(number)).result(60)
    assert found is not None
    hers = replace(decode_record(found.data, Submission), nonce=uuid.uuid4().hex, signed_s=int(time.time()))
    [(_, data)] = scene.signer().sealer(hers)([(key, changed(data, seal=None))])
    made = _submitted_by(thief, hers, key, data, nonce=True)
    assert scene.outcomes(made)[0].state is State.COMPLETED
    scene.canary.unlink()
    _refused(scene, _submitted_by(thief, hers, key, data, nonce=False), why="its nonce is that of another submission")


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
    _said(scene, forgeries.record(scene, number))
    assert {(one.state, one.reason) for one in scene.outcomes(number, 6)[4:]} == {(State.FAILED, Reason.UNTRUSTED)}  # the node has seen it
    go.touch()

    def is_over() -> bool:
        names = scene.ann.zk.children(paths.running_node("n1")).result(60)
        return not any(key.submission == number for _, key in paths.blocks_in(names))

    eventually(is_over, "the node has nothing of it any more")
    assert scene.canary.read_text() == "ran\n" * 2


def test_nor_does_one_that_is_opened_again_before_it_is_collected(scene: Scene) -> None:
    number, record, key, data = _ran(scene)
    eventually(lambda: forgeries.record(scene, number).phase is Phase.CLOSED, "it is closed")
    found = scene.mallory.zk.get(paths.sub(number)).result(60)
    assert found is not None
    scene.plant(key, data, more=(Set(paths.sub(number), record, found.version),))
    _refused(scene, number, already=1)


def test_nobody_but_the_leader_says_what_has_ended(scene: Scene, thief: Person) -> None:
    _, record, *_ = _ran(scene)
    signed = decode_record(record, Submission)
    _said(scene, signed)
    nonce = nonces.place_of(signed)
    for op in (Set(nonce, b"1", -1), Delete(nonce), Set(paths.NONCES, b"", -1), Delete(paths.NONCES)):
        with pytest.raises(RmgrError):
            thief.commit(op)


def test_nor_does_it_run_on_a_node_that_has_never_seen_it(scene: Scene) -> None:
    """It was put back while there was no node."""
    kept = _ran(scene)
    _collected(scene, kept[0])
    scene.cluster.kill("n1")
    _put_back(scene, kept, answered=False)
    scene.cluster.start_starter("n1")
    _refused(scene, kept[0])


def _said(scene: Scene, record: Submission) -> None:
    """Its end is said where Starters look."""

    def is_said() -> bool:
        found = scene.mallory.zk.get(nonces.place_of(record)).result(60)
        return found is not None and found.version > 0

    eventually(is_said, f"the end of {record.id} is said")
