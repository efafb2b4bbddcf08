"""Row 39: forged writes into ZooKeeper or the data store are refused and reported, and none of their work runs.

The attacker has what a stolen gateway has: its session in ZooKeeper (he is mallory, and works here himself), and the file of the data
store. The victim is ann. A canary file says whether anything ran.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rmgr.adapters.identity.trust import publish
from rmgr.client.connection import connect
from rmgr.client.taskqueue import TaskQueue
from rmgr.config import ClusterConfig, Config
from rmgr.coord.ops import membership
from rmgr.coord.ops.work import HANDED_SEQ
from rmgr.coord.protocol import keys, paths
from rmgr.coord.protocol.multi import Committed, Create, Delete, Set
from rmgr.coord.protocol.records import decode_fragment, encode_fragment, encode_outcomes, encode_payloads
from rmgr.coord.seal import seal_fragment
from rmgr.errors import DataLost, RmgrError, TaskFailed
from rmgr.model.block import BlockData, BlockKey, Fragment, FragmentSeal, Outcome
from rmgr.model.identity import Revocation, Role
from rmgr.model.states import Reason, State
from rmgr.model.submission import Command, PythonEnvironment, Upload, Work
from tests.harness import forgeries
from tests.harness.attacker import Bomb, Person, Scene, changed, unique
from tests.harness.gateway_process import GatewayProcess
from tests.harness.live_files import below
from tests.harness.waiting import eventually


def bomb(scene: Scene) -> bytes:
    return pickle.dumps(Bomb(scene.canary))


def refused(scene: Scene, number: int, *words: str, target: str = "") -> None:
    """The task ended UNTRUSTED, the node said so, nothing ran."""
    [outcome] = scene.outcomes(number)
    assert (outcome.state, outcome.reason) == (State.FAILED, Reason.UNTRUSTED), outcome
    assert all(word in outcome.error for word in words), outcome.error
    assert outcome.error in eventually(lambda: scene.audited(target or f"{number}_0"), "an audit line")
    assert not scene.canary.exists()


def test_work_that_its_user_signed_runs_and_its_outcome_is_signed_by_its_node(scene: Scene) -> None:
    number = scene.submit()
    [outcome] = scene.outcomes(number)
    assert outcome.state is State.COMPLETED
    assert scene.canary.read_text() == "ran\n"
    found = scene.ann.zk.get(paths.fragment(number, 0)).result(60)
    assert found is not None
    assert decode_fragment(found.data).seal is not None


def test_a_user_without_a_way_to_zookeeper_signs_and_verifies_through_a_gateway(scene: Scene, tmp_path: Path) -> None:
    security = scene.cluster.security
    assert security is not None
    daemons = scene.cluster.environment() | {"RMGR_SECURITY_DIR": str(security.bundle(Role.SUBMITTER, "gateway"))}
    with GatewayProcess(daemons, tmp_path) as gateway:
        config = Config(cluster=ClusterConfig(gateway=gateway.endpoint), security=scene.ann.config.security)
        with connect(config=config) as connection:
            queue = TaskQueue(_blob, connection=connection, name=unique())
            assert [len(future.result(60)) for future in queue.map(None, [10, 50_000])] == [10, 50_000]
            later = queue.submit_call(50_000)
            eventually(later.done, "it is done")
            row = keys.output(queue.id, later.index, 1)
            scene.store.put(row, bomb(scene))
            with pytest.raises(DataLost):
                later.result(60)
            queue.close()
    assert not scene.canary.exists()


# -- blocks and records in ZooKeeper ----------------------------------------------------------------------------------------------


def _task_beyond(scene: Scene, number: int, key: BlockKey, data: BlockData) -> tuple[BlockKey, BlockData]:
    return replace(key, first=0, count=2), data


@pytest.mark.parametrize(
    ("forge", "words"),
    [
        (forgeries.other_argument, ("not what its user signed",)),
        (forgeries.no_seal, ("nobody signed it",)),
        (forgeries.own_seal, ("signed by user mallory", "run for ann")),
        (forgeries.own_seal_with_her_key_id, ("not what its user signed",)),
        (forgeries.unknown_key, ("nobody is known by the key",)),
        (forgeries.no_key, ("no name that a key can have",)),
        (forgeries.other_authority, ("another authority",)),
        (forgeries.more_cores, ("asks for 2 cores",)),
        (forgeries.later, ("not what its user signed",)),
    ],
    ids=lambda item: item.__name__ if callable(item) else "",
)
def test_a_forged_block_in_the_queue_is_refused(scene: Scene, forge: Callable[..., Any], words: tuple[str, ...]) -> None:
    number, key, data = scene.intercepted((b"entry",))
    scene.plant(*forge(scene, number, key, data))
    refused(scene, number, *words)


def test_a_block_that_shares_its_signature_runs_without_the_others(scene: Scene) -> None:
    number, [_, (key, data), _] = scene.intercepted_together()
    scene.plant(key, data)
    [outcome] = scene.outcomes(number)
    assert (outcome.index, outcome.state) == (1, State.COMPLETED), outcome


@pytest.mark.parametrize(
    ("forge", "words"),
    [
        (forgeries.path_of_another, ("not what its user signed",)),
        (forgeries.seal_of_another, ("not what its user signed",)),
        (forgeries.task_of_another, ("not what its user signed",)),
        (forgeries.path_cut_off, ("its path has 32 bytes where 64 are needed",)),
        (forgeries.no_path, ("not what its user signed",)),
        (forgeries.a_level_higher, ("not what its user signed",)),
        (forgeries.other_root, ("not what its user signed",)),
        (forgeries.own_root, ("signed by user mallory", "run for ann")),
    ],
    ids=lambda item: item.__name__ if callable(item) else "",
)
def test_a_forged_block_of_several_is_refused_where_the_others_ran(scene: Scene, forge: Callable[..., Any], words: tuple[str, ...]) -> None:
    """The node has verified their root: what does not hang from it is refused all the same."""
    number, blocks = scene.intercepted_together()
    scene.plant(*blocks[2])
    [ran] = scene.outcomes(number)
    assert ran.state is State.COMPLETED, ran
    scene.canary.unlink()
    scene.plant(*forge(scene, blocks))
    outcome = scene.outcomes(number, 2)[1]
    assert (outcome.state, outcome.reason) == (State.FAILED, Reason.UNTRUSTED), outcome
    assert all(word in outcome.error for word in words), outcome.error
    assert outcome.error in eventually(lambda: scene.audited(f"{number}_0"), "an audit line")
    assert not scene.canary.exists()


def test_a_block_with_more_tasks_than_were_signed_is_refused(scene: Scene) -> None:
    number, key, data = scene.intercepted()
    scene.plant(*_task_beyond(scene, number, key, data))
    for outcome in scene.outcomes(number, 2):
        assert outcome.reason is Reason.UNTRUSTED
    assert not scene.canary.exists()


@pytest.mark.parametrize(
    "changes",
    [
        {"command": Command(argv=("/bin/sh", "-c", "exit 0"), env={"LD_PRELOAD": "/tmp/evil.so"})},
        {"command": Command(argv=("/bin/rm", "-rf", "x"))},
        {"work": Work.PYTHON, "python": PythonEnvironment(python="/bin/sh")},
        {"grace_us": 1},
    ],
    ids=["environment", "command", "interpreter", "limit"],
)
def test_a_changed_record_is_refused(scene: Scene, changes: dict[str, Any]) -> None:
    number, key, data = scene.intercepted()
    scene.plant(key, data, more=(scene.rewrite(number, **changes),))
    refused(scene, number, "not what its user signed")


def test_work_in_another_users_name_is_refused(scene: Scene) -> None:
    """Mallory makes ann's record his, or signs his own command in her name: the key says who he is."""
    number, key, data = scene.intercepted()
    publish(scene.mallory.zk, scene.mallory.credentials)
    rewritten = scene.rewrite(number, command=Command(argv=("/bin/sh", "-c", f"touch {scene.canary}")))
    forged = forgeries.record(scene, number, command=Command(argv=("/bin/sh", "-c", f"touch {scene.canary}")))
    [(_, mine)] = forgeries.sealed_by_mallory(scene, forged, [(key, data)])
    scene.plant(key, mine, more=(rewritten,))
    refused(scene, number, "signed by user mallory")


def test_a_signature_that_is_too_old_starts_nothing(scene: Scene) -> None:
    number = scene.submit(signer=scene.signer(ttl_s=-1.0))
    refused(scene, number, "expired")


def test_a_block_of_one_submission_is_worth_nothing_in_another(scene: Scene) -> None:
    _, key, data = scene.intercepted()
    second, _, _ = scene.intercepted()
    scene.plant(replace(key, submission=second), data)
    refused(scene, second, "not what its user signed")


def test_a_block_that_is_replayed_after_its_submission_is_closed_runs_no_second_time(scene: Scene) -> None:
    number, key, data = scene.intercepted()
    scene.plant(key, data)  # it is ann's own work, and runs once
    [outcome] = scene.outcomes(number)
    assert outcome.state is State.COMPLETED
    eventually(lambda: forgeries.record(scene, number).phase == "CLOSED", "the submission is closed")
    scene.canary.unlink()
    scene.plant(key, data)
    refused_, = scene.outcomes(number, 2)[1:]
    assert (refused_.state, refused_.reason) == (State.FAILED, Reason.UNTRUSTED)
    assert "closed" in refused_.error
    assert not scene.canary.exists()


def test_a_revoked_key_starts_nothing_any_more(scene: Scene) -> None:
    name = f"eve-{unique()}"
    eve = Person(scene.cluster, Role.USER, name)
    try:
        publish(eve.zk, eve.credentials)
        key_id = eve.credentials.identity.key_id
        admin = Person(scene.cluster, Role.ADMIN, "admin")
        try:
            gone = Revocation(key_id=key_id, name=name, role=Role.USER, by="admin", since_us=1)
            outcome = admin.zk.commit(membership.revoke(gone)).result(60)
            assert isinstance(outcome, Committed), outcome
        finally:
            admin.zk.close()
        number = scene.submit(signer=scene.signer(eve))
        refused(scene, number, "revoked")
        denied = eve.zk.commit(membership.revoke(replace(gone, key_id="1" * 32)))
        with pytest.raises(RmgrError):  # nobody but the admin revokes
            denied.result(60)
    finally:
        eve.zk.close()


# -- rows of the data store -------------------------------------------------------------------------------------------------------


def test_an_exchanged_function_is_not_run(scene: Scene) -> None:
    with scene.ann.connection() as connection:
        queue = TaskQueue(_length, connection=connection, name=unique())
        scene.store.put(keys.function(queue.function), bomb(scene))
        with pytest.raises(TaskFailed, match="UNTRUSTED") as failed:
            queue.submit_call("abc").result(60)
        assert "not what its name says" in str(failed.value)
        queue.close()
        scene.store.delete(keys.function(queue.function))
    assert eventually(lambda: scene.audited(f"{queue.id}_0"), "an audit line")
    assert not scene.canary.exists()


def test_exchanged_arguments_are_not_used(scene: Scene) -> None:
    with scene.ann.connection() as connection:
        queue = TaskQueue(len, connection=connection, name=unique())
        tasks: Any = queue._tasks
        good = tasks.store_row

        def exchanged(payload: bytes) -> str:
            row: str = good(payload)
            scene.store.put(row, encode_payloads((bomb(scene),)))
            return row

        tasks.store_row = exchanged
        with pytest.raises(TaskFailed, match="UNTRUSTED"):
            queue.submit_call(b"x" * 5_000_000).result(60)
        queue.close()
    assert not scene.canary.exists()


@pytest.mark.parametrize("what", ["script", "stdin", "upload"])
def test_an_exchanged_script_standard_input_or_upload_is_not_used(scene: Scene, what: str) -> None:
    good = b"#!/bin/sh\nexit 0\n" + unique().encode()
    digest = hashlib.sha256(good).hexdigest()
    scene.store.put(keys.upload(digest), f"#!/bin/sh\ntouch {scene.canary}\n".encode())
    command = {
        "script": Command(script_sha256=digest),
        "stdin": replace(scene.touch, stdin_sha256=digest),
        "upload": Command(argv=("./u",), uploads=(Upload(name="u", sha256=digest),)),
    }[what]
    number = scene.submit(command=command)
    refused(scene, number, "not what its name says")


@pytest.mark.parametrize("name", ["../../escaped", "/tmp/rmgr-escaped", "a/../../../escaped"])
@pytest.mark.parametrize("what", ["upload", "input"])
def test_file_names_do_not_lead_out_of_the_work_directory(scene: Scene, name: str, what: str) -> None:
    data = unique().encode()
    digest = hashlib.sha256(data).hexdigest()
    scene.store.put(keys.upload(digest), data)
    with scene.ann.connection() as hers:
        hers.store.put("in/escaped", data)
    files = {"uploads": (Upload(name=name, sha256=digest),)} if what == "upload" else {"input_files": (("in/escaped", name),)}
    number = scene.submit(command=replace(scene.touch, **files))
    [outcome] = scene.outcomes(number)
    assert outcome.state is State.FAILED
    assert outcome.reason is Reason.UNTRUSTED
    assert ("is no file name" if what == "upload" else "leads out of the work directory") in outcome.error
    assert outcome.error in eventually(lambda: scene.audited(f"{number}_0"), "an audit line")
    assert not scene.canary.exists()
    assert [path for path in below(scene.directory) if "escaped" in path.name] == []
    assert not Path("/tmp/rmgr-escaped").exists()


# -- results ----------------------------------------------------------------------------------------------------------------------


def test_an_exchanged_result_is_not_unpickled(scene: Scene) -> None:
    with scene.ann.connection() as connection:
        queue = TaskQueue(_blob, connection=connection, name=unique())
        future = queue.submit_call(50_000)
        eventually(future.done, "the task is done")
        row = keys.output(queue.id, 0, 1)
        found = scene.store.get(row)
        assert found is not None
        scene.store.put(row, bomb(scene), encoding=found[1])
        with pytest.raises(DataLost, match=f"task {queue.id}_0 .* is not what its node has stored"):
            future.result(60)
        queue.close()
    assert not scene.canary.exists()


def test_exchanged_outcomes_in_a_row_are_not_read(scene: Scene) -> None:
    with scene.ann.connection() as connection:
        queue = TaskQueue(_blob, connection=connection, name=unique())
        futures = queue.map(None, [7000] * 256)
        assert all(len(future.result(60)) == 7000 for future in futures)
        rows = scene.store.keys(f"frag/{queue.id:010d}/")
        queue.close()
    assert rows
    forged = tuple(Outcome(index=index, value=bomb(scene)) for index in range(256))
    for row in rows:
        scene.store.put(row, encode_outcomes(forged))
    with scene.ann.connection() as connection:
        again = TaskQueue.attach(queue.id, connection=connection)
        ends = [_end_of(future) for future in again.futures()]
    assert any(isinstance(end, DataLost) and "not what its name says" in str(end) for end in ends)
    assert all(isinstance(end, bytes | DataLost) for end in ends)
    assert not scene.canary.exists()


@pytest.mark.parametrize("signed", ["unsigned", "by a user", "with the node's key id", "copied"])
def test_an_outcome_that_no_node_has_signed_is_not_believed(scene: Scene, signed: str) -> None:
    """Ann waits; mallory tells her that her task has completed, with a value that he likes."""
    number, _, _ = scene.intercepted(work=Work.PYTHON, command=None, python=PythonEnvironment())
    publish(scene.mallory.zk, scene.mallory.credentials)
    forged = Fragment(node="n1", attempt=1, outcomes=(Outcome(index=0, value=bomb(scene)),))
    mine = scene.mallory.credentials
    told = {"cluster_id": scene.cluster_id, "submission": number}
    if signed == "by a user":
        forged = seal_fragment(forged, key_id=mine.identity.key_id, sign=mine.sign, **told)
    elif signed == "with the node's key id":
        node = _node_seal(scene)
        forged = changed(seal_fragment(forged, key_id=node.key_id, sign=mine.sign, **told))
    elif signed == "copied":
        forged = changed(forged, seal=_node_seal(scene))
    with scene.ann.connection() as connection:
        queue = TaskQueue.attach(number, connection=connection)
        outcome = scene.mallory.commit(Create(paths.fragment_prefix(number), encode_fragment(forged), sequence=True))
        assert isinstance(outcome, Committed)
        with pytest.raises(DataLost, match=f"task {number}_0 completed, but its outcome cannot be believed"):
            queue.future(0).result(60)
    assert not scene.canary.exists()


@pytest.mark.parametrize("garbage", [b"", b"\xc1", b"\x91\xa1x", b"{}"], ids=["nothing", "no-message", "other-fields", "json"])
def test_garbage_in_the_queue_stops_nobody(scene: Scene, garbage: bytes) -> None:
    number, key, _ = scene.intercepted()
    scene.commit_block(key, garbage)
    after = scene.submit()
    assert scene.outcomes(after)[0].state is State.COMPLETED
    found = scene.ann.zk.get(paths.fragment(number, 0)).result(60)
    assert found is None or decode_fragment(found.data).outcomes[0].reason is Reason.UNTRUSTED


def test_garbage_among_the_outcomes_stops_nobody(scene: Scene) -> None:
    with scene.ann.connection() as connection:
        queue = TaskQueue(_size, connection=connection, name=unique())
        outcome = scene.mallory.commit(Create(paths.fragment_prefix(queue.id), b"\xc1", sequence=True))
        assert isinstance(outcome, Committed)
        assert queue.submit_call("abc").result(60) == 3
        queue.close()
    eventually(lambda: forgeries.record(scene, queue.id).phase == "CLOSED", "the leader closes it")


def test_a_gateway_may_not_touch_what_a_node_has_claimed_nor_its_records(scene: Scene) -> None:
    nodes_own = (paths.node("other"), f"{paths.STARTERS}/s-x-0", paths.inbox_node("x"), paths.running_node("x"))
    for path in (*nodes_own, paths.revoked("2" * 32)):
        with pytest.raises(RmgrError):
            scene.mallory.commit(Create(path, b"x"))
    # A block may be handed to a node (HAND); what is there already belongs to the node.
    key = BlockKey(priority=0, seq=HANDED_SEQ, submission=1, first=0, count=1, attempt=1, cores=1, memory_mib=0)
    path = paths.running_block("n1", key)
    scene.mallory.commit(Create(path, b"x"))
    for touch in (Set(path, b"y", -1), Delete(path)):
        with pytest.raises(RmgrError):
            scene.mallory.commit(touch)


@pytest.mark.parametrize("garbage", [b"", b"x", b"\xff" * 4096])
def test_garbage_in_the_hands_of_a_node_stops_nobody(scene: Scene, garbage: bytes) -> None:
    key = BlockKey(priority=0, seq=HANDED_SEQ, submission=2**31, first=0, count=1, attempt=1, cores=1, memory_mib=0)
    scene.mallory.commit(Create(paths.running_block("n1", key), garbage))
    mark = paths.idle("n1")
    if scene.mallory.zk.stat(mark).result(60) is not None:
        scene.mallory.commit(Delete(mark))  # the node looks what it was handed
    number = scene.submit()
    [outcome] = scene.outcomes(number)
    assert outcome.state is State.COMPLETED


# -- parts ------------------------------------------------------------------------------------------------------------------------


def _node_seal(scene: Scene) -> FragmentSeal:
    """Of an outcome that the node has really signed."""
    number = scene.submit()
    scene.outcomes(number)
    found = scene.ann.zk.get(paths.fragment(number, 0)).result(60)
    assert found is not None
    seal = decode_fragment(found.data).seal
    assert seal is not None
    scene.canary.unlink()
    return seal


def _end_of(future: Any) -> Any:
    try:
        return future.result(60)
    except DataLost as error:
        return error


def _length(text: str) -> int:
    return len(text)


def _size(text: str) -> int:
    """A function of its own: that a node could not have another one is remembered for a second."""
    return len(text)


def _blob(size: int) -> bytes:
    import os as system

    return system.urandom(size)
