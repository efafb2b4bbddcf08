"""Whose a submission is, where its record is gone and where it is still to come."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rmgr.coord.decisions.progress import Progress
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Create, Exists, Multi
from rmgr.coord.protocol.records import encode_record
from rmgr.daemons.gateway.values import Owners
from rmgr.model.tasks.submission import Command, Submission, Work
from rmgr.procedures.history import history_rows, summary
from tests.harness.memory import MemoryCoordinator
from tests.harness.memory_store import MemoryStore

ANN = Submission(id=42, name="x", user="ann", queue="default", work=Work.COMMAND, command=Command(argv=("true",)))


class World:
    def __init__(self) -> None:
        self.zk, self.store = MemoryCoordinator(), MemoryStore("")
        self.zk.ensure([*paths.SKELETON, paths.subs_bucket(ANN.id)], timeout_s=60)
        self.owners = Owners(self.zk, self.store)

    def history_says(self, record: Submission) -> None:
        """Anybody who may write to the store can have this."""
        for key, row in history_rows(summary(record, Progress(), now_us=1)):
            self.store.put(key, row)

    def submits(self, record: Submission) -> None:
        path = paths.sub(record.id)
        self.zk.commit(Multi(name="TEST", ops=(Create(path, encode_record(record)),), proof=Exists(path))).result(60)


@pytest.fixture
def world() -> World:
    return World()


def test_a_history_of_a_number_that_is_still_to_come_gives_it_to_nobody(world: World) -> None:
    world.history_says(replace(ANN, user="eve"))
    assert world.owners(ANN.id) == "eve"
    world.submits(ANN)  # at another gateway, which writes the same number
    assert world.owners(ANN.id) == "ann"
    world.history_says(replace(ANN, user="eve"))
    assert world.owners(ANN.id) == "ann"


def test_what_left_before_a_submission_that_is_there_is_read_once(world: World) -> None:
    world.history_says(ANN)
    world.submits(replace(ANN, id=ANN.id + 1))
    assert world.owners(ANN.id + 1) == "ann"
    assert world.owners(ANN.id) == "ann"
    world.history_says(replace(ANN, user="eve"))
    assert world.owners(ANN.id) == "ann"
