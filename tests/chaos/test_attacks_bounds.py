"""A flooding user meets a limit and other users notice nothing: the tests reach every limit of users on purpose.

Moll has a gateway user's bundle and clients of his own making; amy works beside him. One secured cluster, one gateway of it as a
process of its own. Limits are made small for a test, and are what they were after it.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from rmgr.adapters.gateway.store import GatewayStore
from rmgr.audit_book import WINDOW_S
from rmgr.coord.protocol import keys
from rmgr.errors import LimitReached, PermissionDenied, RmgrError, StoreUnavailable, Throttled, Unavailable
from rmgr.model.block import NO_SEQ, BlockData, BlockKey
from rmgr.model.identity import Role
from rmgr.model.queue import BOUNDS, UserLimits
from rmgr.model.states import Reason
from rmgr.model.submission import Command, Phase, Submission, Work
from rmgr.submitter import messages as m
from rmgr.submitter import questions as q
from tests.harness.fair_time import FairTimer
from tests.harness.flooded import Flooded, run_command, upload
from tests.harness.handmade import Handmade
from tests.harness.waiting import eventually
from tests.places import ROOT

# -- requests


def questions(mine: Handmade, kept: int, first: int, count: int) -> None:
    """So many words that the gateway reads a znode for."""
    mine.say(*(m.AskTail(kept, first + at) for at in range(count)))


def test_a_flood_is_slowed_down_and_refused_and_others_are_served(limited: Callable[..., Flooded]) -> None:
    world = limited(requests_per_s=60)
    store = GatewayStore(world.gateway.endpoint, credentials=world.people["moll"])
    with world.client("moll") as mine, contextlib.closing(store):
        kept = mine.keep(held(mine, 1))
        began = time.monotonic()
        refused: list[str] = []
        questions(mine, kept, 1, 1)
        eventually(lambda: mine.of(m.TailIs), "its record was read")
        said = 401
        questions(mine, kept, 2, said - 1)
        while len(refused) < 10:
            assert time.monotonic() - began < 120, refused
            if len(mine.of(m.TailIs)) >= said:
                questions(mine, kept, said + 1, 400)
                said += 400
            try:
                store.head("name/any", timeout_s=0.2)
            except Throttled as error:
                refused.append(str(error))
            except StoreUnavailable:  # no answer in 0.2 s: the machine is slow. Given more time it would try until it has its turn
                continue
        assert all("moll has reached the limit requests_per_s = 60" in text for text in refused)
        eventually(lambda: len(mine.of(m.TailIs)) >= said, lambda: f"{said} are answered, not {len(mine.of(m.TailIs))}")
        assert not [one for one in mine.of(m.TailIs) if one.fault]
        assert time.monotonic() - began > 2.0
    assert world.told("moll", fresh=False).users["moll"].refused["requests_per_s"] >= 10
    world.set_limits(UserLimits())
    world.rmgr("moll", "cancel", "all")
    world.works()


def test_refused_requests_are_counted_and_not_written(limited: Callable[..., Flooded]) -> None:
    world = limited(audit_lines=10, requests_per_s=0)
    with world.client("amy") as hers:
        number = held(hers, 1)
    with world.client("moll") as mine:
        size, began = len(world.gateway.log()), time.monotonic()
        for _ in range(20):
            before = len(mine.of(m.Dead))
            for _ in range(250):
                mine.keep(number)
            eventually(lambda before=before: len(mine.of(m.Dead)) == before + 250, "all are refused")
        with pytest.raises(PermissionDenied):
            mine.ask(q.DrainNode(node="n1"))
        lines = [json.loads(line) for line in world.gateway.log()[size:].splitlines() if '"audit' in line]
        windows = 2 + int((time.monotonic() - began) / WINDOW_S)  # that it can have touched
    assert all("belongs to amy" in one.fault.message for one in mine.of(m.Dead))
    written = [line for line in lines if line["event"] == "audit" and line["who"] == "moll"]
    assert 1 <= len(written) <= 10 * windows
    assert len(world.gateway.log()) - size < 10_000 * windows
    world.rmgr("amy", "cancel", str(number))


LOOPS, TIMES, WITHIN_S = 40, 6, 20.0


def test_a_person_submits_beside_many_who_submit_in_loops(limited: Callable[..., Flooded]) -> None:
    """Each of them is a user with a client of his own making."""
    world = limited()
    security = world.cluster.security
    assert security is not None
    bundles = [str(security.bundle(Role.USER, f"loop{at}")) for at in range(LOOPS)]
    kept = {key: value for key, value in os.environ.items() if not key.startswith("RMGR_")}
    words = [sys.executable, "-m", "tests.bench.flood", "hostile", world.gateway.endpoint, world.leader, "600", "submit", *bundles]
    child = subprocess.Popen(words, env=kept, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        before = world.asked("submit")
        eventually(lambda: world.asked("submit") > before + LOOPS, lambda: f"they submit: {world.gateway.autopsy()}")
        with world.client("amy") as hers:
            for _ in range(TIMES):
                with FairTimer() as timer:
                    held(hers, 1)
                assert timer.elapsed_s < WITHIN_S
        assert child.poll() is None, "they went on to the end"
    finally:
        child.kill()
        child.wait(60)
    world.works()
    world.rmgr("amy", "cancel", "all")


# -- what is in the cluster


def held(mine: Handmade, tasks: int, size: int = 20) -> int:
    """A submission that waits until it is released, with so much to each task."""
    draft = Submission(id=0, name="flood", user=mine.name, queue="default", work=Work.COMMAND, command=Command(argv=("true",)))
    draft = replace(draft, phase=Phase.HELD, reason=Reason.USER_HOLD)
    key = BlockKey(priority=0, seq=NO_SEQ, submission=0, first=0, count=tasks, attempt=1, cores=1, memory_mib=0)
    return mine.submit(draft, [(key, BlockData(payloads=(b"x" * size,) * tasks))]).submission.id


@pytest.mark.parametrize(
    ("limits", "name"),
    [
        ({"open_submissions": 3}, "open_submissions"),
        ({"unfinished_tasks": 250}, "unfinished_tasks"),
        ({"zookeeper_bytes": 60_000}, "zookeeper_bytes"),
    ],
)
def test_what_waits_for_one_user_is_bounded(limited: Callable[..., Flooded], limits: dict[str, int], name: str) -> None:
    eventually(lambda: not _open(limited()), "nothing of his or hers is left from before")
    world = limited()
    base = world.used("zookeeper_bytes")
    world = limited(**{key: value + (base if key == "zookeeper_bytes" else 0) for key, value in limits.items()})
    numbers: list[int] = []
    with world.client("moll") as mine:
        with pytest.raises(LimitReached, match=f"moll has reached the limit {name} = "):
            numbers += (held(mine, 100, 150) for _ in range(10))
        assert 2 <= len(numbers) <= 3
        if name == "zookeeper_bytes":  # a small one may still fit
            with pytest.raises(LimitReached):
                held(mine, 100, 150)
        else:
            done = world.rmgr("moll", "submit", "--hold", "--array", "1-100", "--", "true")
            assert done.returncode == 7, done.stderr
            assert name in done.stderr
            assert "rmgr limits" in done.stderr
        shown = json.loads(world.rmgr("moll", "limits", "--json").stdout)
        [row] = [one for one in shown["limits"] if one["name"] == name]
        assert row["refused"] >= 2
        assert row["used"] > 0
        world.works()
        assert world.rmgr("moll", "cancel", *map(str, numbers)).returncode == 0
    refusals: list[str] = []

    def goes_on() -> bool:
        try:
            with world.client("moll") as mine:  # the first stream may have ended, if the machine stood still
                numbers.append(held(mine, 1))
        except RmgrError as error:
            refusals.append(str(error))
        return numbers[-1] != cancelled

    cancelled = numbers[-1]
    eventually(goes_on, lambda: f"he goes on: {refusals[-1:]}")
    world.rmgr("moll", "cancel", str(numbers[-1]))


def _open(world: Flooded) -> int:
    return world.used("open_submissions") + world.used("open_submissions", "amy")


def test_what_one_user_writes_into_the_store_is_bounded(limited: Callable[..., Flooded]) -> None:
    written = limited().used("store_bytes")
    world = limited(store_bytes=written + 1_000_000)
    store = GatewayStore(world.gateway.endpoint, credentials=world.people["moll"])
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
    """Bytes that moll has; 0: the connections of this process to the gateway that was killed wait before they try again."""
    with contextlib.suppress(Unavailable):
        return world.used("store_bytes")
    return 0


def test_what_he_has_written_counts_after_a_restart_of_the_gateway(limited: Callable[..., Flooded]) -> None:
    world = limited()
    value = os.urandom(300_000)
    store = GatewayStore(world.gateway.endpoint, credentials=world.people["moll"])
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
    store = GatewayStore(world.gateway.endpoint, credentials=world.people["moll"])
    try:
        for change in (lambda: store.put(upload(value[1:]), value[1:]), lambda: store.put(row, b"{}"), lambda: store.delete(row)):
            with pytest.raises((LimitReached, PermissionDenied)):
                change()
    finally:
        store.close()
    world.works()


# -- what is shown


def test_limits_are_shown_to_their_user_and_to_operators(flooded: Flooded) -> None:
    done = flooded.rmgr("amy", "limits", "--json")
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert shown["user"] == "amy"
    assert [row["name"] for row in shown["limits"]] == [bound.name for bound in BOUNDS]
    assert flooded.rmgr("amy", "limits", "moll").returncode == 4
    direct = {"RMGR_ZK": flooded.cluster.state.zookeeper, "RMGR_SECURITY_DIR": str(flooded.people["amy"].directory)}
    kept = {key: value for key, value in os.environ.items() if not key.startswith("RMGR_")}
    done = run_command(kept | direct, "limits", "--json")
    assert done.returncode == 0, done.stderr
    rows = {row["name"]: row for row in json.loads(done.stdout)["limits"]}
    assert rows["open_submissions"]["used"] is not None
    table = flooded.rmgr("amy", "limits", "--all").stdout
    assert all(bound.name in table for bound in BOUNDS)
