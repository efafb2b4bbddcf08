"""Work goes on, and is not blamed, when a Starter's directories are removed, as by a cleaner of temporary files."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rmgr.coord.protocol import keys, paths
from rmgr.coord.protocol.records import decode_record
from rmgr.dev.zookeeper import ZooKeeperServer
from rmgr.model.block import Outcome
from rmgr.model.states import Reason, State
from rmgr.model.submission import Command, Tail, Upload
from tests.harness.hand_leader import put, unhold
from tests.harness.starter_rig import Rig, call, own_rig
from tests.harness.waiting import eventually

#: What is removed, below the work directory of the Starter; "" = all of it.
OUTER = ("", "n1", "n1/run", "n1/run/cache", "n1/run/records", "n1/stage", "n1/jobs", "blobs")
INNER = ("n1/run/s*", "n1/run/s*/*", "n1/stage/*", "blobs/*", "blobs/uploads/*")


@pytest.fixture(scope="module")
def rig(zookeeper: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with own_rig(zookeeper, tmp_path_factory.mktemp("removed")) as made:
        made.ready()
        yield made


def remove(rig: Rig, kind: str, node: str = "n1") -> None:
    """As a cleaner does it: another process, file by file, while the Starter is at work in there."""
    root = rig.directory / "work" / node
    subprocess.run(["rm", "-rf", *(sorted(root.glob(kind)) if kind else [root])], timeout=60, check=False)


def large() -> Callable[..., int]:
    """A function that travels by value, in a file."""
    ballast = os.urandom(1 << 20)

    def size(*values: bytes) -> int:
        return len(ballast) + sum(map(len, values))

    return size


def wide() -> Callable[[], bytes]:
    """A call whose value goes through a file."""

    def value() -> bytes:
        return b"v" * 100_000

    return value


class Work:
    """Every way in which work needs files of the Starter; made once, submitted again and again."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.large, self.wide = large(), wide()
        self.script = rig.upload(b"#!/bin/sh\ncat\npwd\necho made > file\ncat file\n")
        self.stdin = rig.upload(b"i" * 3_000_000)
        self.upload = rig.upload(b"u" * 1000)
        rig.store.put(keys.named("big"), b"k" * 1_000_000)

    def submit(self, count: int) -> list[int]:
        rig = self.rig
        plain = Command(argv=("sh", "-c", "echo made > file && cat file"))
        return [
            rig.submit(plain, [b""] * count),
            rig.submit(Command(script_sha256=self.script, stdin_sha256=self.stdin), [b""] * 2),
            rig.submit(Command(argv=("cat", "up.txt"), uploads=(Upload(name="up.txt", sha256=self.upload, is_dir=False),)), [b""] * count),
            rig.submit(self.large, [call(b"a" * 200_000)] * count, row=True),
            rig.submit(self.wide, [call()] * count),
        ]

    def run(self, count: int) -> dict[int, dict[int, Outcome]]:
        return {number: finished(self.rig, number) for number in self.submit(count)}


def finished(rig: Rig, number: int) -> dict[int, Outcome]:
    return rig.outcomes_in_the_end(number, total(rig, number))


def total(rig: Rig, number: int) -> int:
    return decode_record(rig.zk.get(paths.tail(number)).result(60).data, Tail).next


@pytest.fixture(scope="module")
def work(rig: Rig) -> Work:
    return Work(rig)


def well(ends: dict[int, dict[int, Outcome]]) -> list[Any]:
    """What has not ended well."""
    found = [(number, index, end) for number, outcomes in ends.items() for index, end in outcomes.items()]
    return [(number, index, end.reason, end.error) for number, index, end in found if end.state is not State.COMPLETED]


@pytest.mark.parametrize("kind", OUTER + INNER)
def test_directories_removed_from_an_idle_node_are_made_again_and_the_next_tasks_run(rig: Rig, work: Work, kind: str) -> None:
    assert well(work.run(2)) == []
    remove(rig, kind)
    ends = work.run(10)
    assert well(ends) == []
    agent = rig.starters[0].agent()
    assert not agent.drains
    assert len(agent.strikes._own) < 3, agent.strikes.last
    agent.strikes._own.clear()


@pytest.mark.parametrize("kind", ["", "n1/run/s*", "n1/run/s*/*", "n1/stage/*", "blobs"])
def test_directories_removed_under_load_cost_no_task_its_success(rig: Rig, work: Work, kind: str) -> None:
    numbers = work.submit(20)
    for _ in range(3):
        numbers.extend(work.submit(20))  # whatever a quick machine has done meanwhile, there is work when the directories go
        before = sum(map(rig.finals, numbers))
        remove(rig, kind)
        count = sum(total(rig, number) for number in numbers)  # a quick machine may be through with all of it
        eventually(
            lambda before=before, count=count: sum(map(rig.finals, numbers)) > min(before, count - 1) or any(map(rig.failed, numbers))
        )
    assert well({number: finished(rig, number) for number in numbers}) == []
    assert well(work.run(2)) == []
    assert not rig.starters[0].agent().drains
    rig.starters[0].agent().strikes._own.clear()


@pytest.fixture
def placing(zookeeper: ZooKeeperServer, tmp_path: Path) -> Iterator[Rig]:
    with own_rig(zookeeper, tmp_path) as made:
        for node in ("n1", "n2"):
            made.ready(node, serves=True)
        yield made


def placed_until_it_ends(rig: Rig, number: int, shares: tuple[tuple[str, int], ...]) -> Outcome:
    """As a leader does it: a job that was lost is placed again."""
    while True:
        placed = put(rig, number, shares)
        eventually(lambda: rig.finals(number) or rig.failed(number), f"the end of {number}")
        unhold(rig, placed)
        if rig.finals(number):
            return rig.outcomes(number, 1)[0]
        for where, failed in rig.failed(number).items():
            assert failed.reason is Reason.NODE_LOST, failed
            rig.resubmit(number, where, failed)


def test_placed_jobs_run_on_nodes_whose_directories_were_removed(placing: Rig) -> None:
    script = "echo made > file && cat file $RMGR_HOSTFILE && test -d $RMGR_CHECKPOINT_DIR && test -x $(command -v rmgr)"
    ranks = f"rmgr run sh -c 'echo made > file && test -d $RMGR_CHECKPOINT_DIR' && {script}"
    for kind in ("", "*/jobs", "*/run/s*", "*/jobs/*"):
        for node in ("n1", "n2"):
            remove(placing, kind, node)
        for number, shares in (
            (placing.submit(Command(argv=("sh", "-c", script)), queue="batch"), (("n1", 1),)),
            (placing.submit(Command(argv=("sh", "-c", ranks)), queue="batch"), (("n1", 1), ("n2", 1))),
        ):
            outcome = placed_until_it_ends(placing, number, shares)
            assert outcome.state is State.COMPLETED, (kind, outcome.reason, outcome.error, outcome.log)
            assert len(outcome.past) <= 1, (kind, outcome.past)


def test_a_job_whose_directory_is_removed_while_it_runs_is_lost_and_has_not_failed(placing: Rig, tmp_path: Path) -> None:
    script = f"touch {tmp_path}/runs; while [ -d $RMGR_CHECKPOINT_DIR ]; do sleep 0.05; done; exec rmgr run true"
    number = placing.submit(Command(argv=("sh", "-c", script)), queue="batch")
    placed = put(placing, number, (("n1", 1), ("n2", 1)))
    eventually((tmp_path / "runs").exists, "it to run")
    remove(placing, "")
    ((failed,),) = [eventually(lambda: list(placing.failed(number).values()), "its end")]
    assert failed.reason is Reason.NODE_LOST, failed
    unhold(placing, placed)
