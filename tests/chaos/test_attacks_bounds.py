"""Whoever floods finds a bound, and nobody else notices: every limit of users is reached here by somebody who means it.

Mallory has a gateway user's bundle and clients of his own making; ann works beside him. One secured cluster, one gateway of it as a
process of its own. Limits are made small for a test, and are what they were after it.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from rmgr.adapters.access.auth import open_channel
from rmgr.adapters.gateway.coordinator import GatewayCoordinator
from rmgr.adapters.gateway.store import GatewayStore
from rmgr.adapters.rpc.server import OPTIONS
from rmgr.coord.protocol import keys, paths
from rmgr.coord.protocol.multi import Delete, Exists, Multi
from rmgr.errors import LimitReached, PermissionDenied, StoreUnavailable, Throttled, Unavailable
from rmgr.model.base.states import Reason
from rmgr.model.cluster.identity import Role
from rmgr.model.cluster.limits import BOUNDS, UserLimits
from rmgr.model.tasks.block import NO_SEQ, BlockData, BlockKey
from rmgr.model.tasks.submission import Command, Phase, Submission, Work
from tests.harness.flooded import Flooded, quietly, run_command, upload
from tests.harness.submitted import submit
from tests.harness.waiting import eventually

pytestmark = pytest.mark.xdist_group("attacks_bounds")


# -- requests


def test_a_flood_is_slowed_down_and_refused_and_others_are_served(limited: Callable[..., Flooded]) -> None:
    world = limited(requests_per_s=60)
    store = GatewayStore(world.gateway.endpoint, credentials=world.people["mallory"])
    with world.session("mallory") as mine, contextlib.closing(store):
        began = time.monotonic()
        refused: list[str] = []
        flood = [mine.get(paths.CONFIG, timeout_s=60) for _ in range(400)]
        while len(refused) < 10:
            assert time.monotonic() - began < 120, refused
            if all(one.done() for one in flood):
                flood += [mine.get(paths.CONFIG, timeout_s=60) for _ in range(400)]
            try:
                store.head("name/any", timeout_s=0.2)
            except Throttled as error:
                refused.append(str(error))
            except StoreUnavailable:  # no answer in 0.2 s: the machine is slow. Given more time it would try until it has its turn
                continue
        assert all("mallory has reached the limit requests_per_s = 60" in text for text in refused)
        assert all(one.exception(60) is None for one in flood)
        assert time.monotonic() - began > 2.0
    assert world.told("mallory", fresh=False).users["mallory"].refused["requests_per_s"] >= 10
    world.set_limits(UserLimits())
    world.works()


def test_refused_requests_are_counted_and_not_written(limited: Callable[..., Flooded]) -> None:
    world = limited(audit_lines=10, requests_per_s=0)
    with world.session("mallory") as mine:
        size = len(world.gateway.log())
        forbidden = Multi(name="FENCE", ops=(Delete(paths.node("n1")),), proof=Exists(paths.node("n1")))
        for _ in range(20):
            tried = [mine.commit(forbidden, timeout_s=30) for _ in range(250)]
            assert all(isinstance(one.exception(60), PermissionDenied) for one in tried)
        lines = [json.loads(line) for line in world.gateway.log()[size:].splitlines() if '"audit' in line]
    written = [line for line in lines if line["event"] == "audit" and line["who"] == "mallory"]
    assert 1 <= len(written) <= 20  # two windows at most
    assert len(world.gateway.log()) - size < 20_000


# -- what is held


def test_watches_are_bounded_and_given_back(limited: Callable[..., Flooded]) -> None:
    world = limited(watches=300, requests_per_s=0)
    for _ in range(2):
        with world.session("mallory") as mine:
            asked = [mine.stat(f"/nodes/never-{at}", watch=_nothing, timeout_s=30) for at in range(500)]
            failed = [one.exception(60) for one in asked if one.exception(60) is not None]
            assert len(failed) == 200
            assert all(isinstance(error, LimitReached) and "watches = 300" in error.message for error in failed)
            assert world.used("watches") == 300
            world.works()
        eventually(lambda: world.used("watches") == 0, "they are given back")


def test_who_reads_nothing_is_not_read_from_and_gives_everything_back(limited: Callable[..., Flooded]) -> None:
    from rmgr.v1 import gateway_pb2 as pb
    from rmgr.v1 import gateway_pb2_grpc

    world = limited(held_bytes=1 << 20, requests_per_s=0)
    options = (*OPTIONS, ("grpc.use_local_subchannel_pool", 1), ("grpc.http2.lookahead_bytes", 1 << 16))
    with open_channel(world.gateway.endpoint, world.people["mallory"], Role.SUBMITTER, options) as channel:
        session: list[int] = []

        def asks() -> Iterator[Any]:
            yield pb.Asks(hello=pb.Hello(version=1, session_timeout_ms=60_000, user="mallory"))
            while not session:
                time.sleep(0.01)
            for message in range(400):
                wanted = [pb.Ask(id=message * 100 + at + 1, session=session[0], timeout_ms=60_000, get=paths.CONFIG) for at in range(100)]
                yield pb.Asks(asks=wanted)
            time.sleep(600)

        call = gateway_pb2_grpc.GatewayStub(channel).Session(asks(), timeout=120)
        for tells in call:
            session += [tell.session.session for tell in tells.tells if tell.WhichOneof("what") == "session"]
            if session:
                break  # and from now on he reads nothing
        eventually(lambda: world.asked() >= 200, "much was asked")
        eventually(lambda: _stands_still(world.asked), "no more is read from him")
        assert world.asked() < 20_000
        assert world.used("held_bytes") < 16 << 20
        world.works()
        call.cancel()
    eventually(lambda: world.used("held_bytes") == 0, "it is given back")


def _stands_still(value: Callable[[], int]) -> bool:
    before = value()
    time.sleep(1.0)
    return value() == before


def _nothing() -> None: ...


# -- what is in the cluster


def held(world: Flooded, mine: GatewayCoordinator, tasks: int, size: int = 20) -> int:
    """A submission that waits until it is released, with so much to each task."""
    command = Command(argv=("true",))
    draft = Submission(id=0, name="flood", user="mallory", queue="default", work=Work.COMMAND, command=command)
    draft = replace(draft, phase=Phase.HELD, reason=Reason.USER_HOLD)
    key = BlockKey(priority=0, seq=NO_SEQ, submission=0, first=0, count=tasks, attempt=1, cores=1, memory_mib=0)
    blocks = [(key, BlockData(payloads=(b"x" * size,) * tasks))]
    signer = world.signer(world.mallory)
    end_s = time.monotonic() + 30
    return submit(mine, draft, owner="", deadline_s=end_s, blocks=blocks, tasks=tasks, complete=True, signer=signer).submission.id


@pytest.mark.parametrize(
    ("limits", "name"),
    [
        ({"open_submissions": 3}, "open_submissions"),
        ({"unfinished_tasks": 250}, "unfinished_tasks"),
        ({"zookeeper_bytes": 60_000}, "zookeeper_bytes"),
    ],
)
def test_what_waits_for_one_user_is_bounded(limited: Callable[..., Flooded], limits: dict[str, int], name: str) -> None:
    eventually(lambda: not _open(limited()), "nothing of his is left from before")
    world = limited()
    base = world.used("zookeeper_bytes")
    world = limited(**{key: value + (base if key == "zookeeper_bytes" else 0) for key, value in limits.items()})
    numbers: list[int] = []
    with world.session("mallory") as mine:
        with pytest.raises(LimitReached, match=f"mallory has reached the limit {name} = "):
            numbers += (held(world, mine, 100, 150) for _ in range(10))
        assert 2 <= len(numbers) <= 3
        if name == "zookeeper_bytes":  # a small one may still fit
            with pytest.raises(LimitReached):
                held(world, mine, 100, 150)
        else:
            done = world.rmgr("mallory", "submit", "--hold", "--array", "1-100", "--", "true")
            assert done.returncode == 7, done.stderr
            assert name in done.stderr
            assert "rmgr limits" in done.stderr
        shown = json.loads(world.rmgr("mallory", "limits", "--json").stdout)
        [row] = [one for one in shown["limits"] if one["name"] == name]
        assert row["refused"] >= 2
        assert row["used"] > 0
        world.works()
        assert world.rmgr("mallory", "cancel", *map(str, numbers)).returncode == 0
        eventually(lambda: quietly(lambda: numbers.append(held(world, mine, 1)) or True), "he goes on")
        world.rmgr("mallory", "cancel", str(numbers[-1]))


def _open(world: Flooded) -> int:
    return world.used("open_submissions")


def test_what_one_user_writes_into_the_store_is_bounded(limited: Callable[..., Flooded]) -> None:
    written = limited().used("store_bytes")
    world = limited(store_bytes=written + 1_000_000)
    store = GatewayStore(world.gateway.endpoint, credentials=world.people["mallory"])
    try:
        first, second, large, small = (os.urandom(size) for size in (600_000, 600_001, 5_000_000, 1000))
        store.put(upload(first), first)
        for value in (second, large):
            with pytest.raises(LimitReached, match="store_bytes = "):
                store.put(upload(value), value)
            assert store.get(upload(value)) is None
        store.put(upload(small), small)
        world.works()
    finally:
        store.close()


def answered(world: Flooded) -> int:
    """Bytes that mallory has; 0: the connections of this process to the gateway that was killed wait before they try again."""
    with contextlib.suppress(Unavailable):
        return world.used("store_bytes")
    return 0


def test_what_he_has_written_counts_after_a_restart_of_the_gateway(limited: Callable[..., Flooded]) -> None:
    world = limited()
    value = os.urandom(300_000)
    store = GatewayStore(world.gateway.endpoint, credentials=world.people["mallory"])
    try:
        store.put(upload(value), value)
    finally:
        store.close()
    before = world.used("store_bytes")
    assert before >= len(value)
    row = keys.use(world.gateway.endpoint)
    eventually(lambda: (found := world.store.get(row)) is not None and str(before).encode() in found[0], "it is written down")
    world.gateway.kill()
    world.gateway.start()
    assert eventually(lambda: answered(world), "it answers again") >= before
    world = limited(store_bytes=before)
    store = GatewayStore(world.gateway.endpoint, credentials=world.people["mallory"])
    try:
        for change in (lambda: store.put(upload(value[1:]), value[1:]), lambda: store.put(row, b"{}"), lambda: store.delete(row)):
            with pytest.raises((LimitReached, PermissionDenied)):
                change()
    finally:
        store.close()
    world.works()


# -- what is shown


def test_limits_are_shown_to_their_user_and_to_operators(flooded: Flooded) -> None:
    done = flooded.rmgr("ann", "limits", "--json")
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert shown["user"] == "ann"
    assert [row["name"] for row in shown["limits"]] == [bound.name for bound in BOUNDS]
    assert flooded.rmgr("ann", "limits", "mallory").returncode == 4
    direct = {"RMGR_ZK": flooded.cluster.state.zookeeper, "RMGR_SECURITY_DIR": str(flooded.people["ann"].directory)}
    kept = {key: value for key, value in os.environ.items() if not key.startswith("RMGR_")}
    done = run_command(kept | direct, "limits", "--json")
    assert done.returncode == 0, done.stderr
    rows = {row["name"]: row for row in json.loads(done.stdout)["limits"]}
    assert rows["open_submissions"]["used"] is not None
    table = flooded.rmgr("ann", "limits", "--all").stdout
    assert all(bound.name in table for bound in BOUNDS)
