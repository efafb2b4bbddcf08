"""Several jobs are asked at once: whoever is slow or refuses holds up no other."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

from rmgr.client.commands.moving import move_each
from rmgr.coord.decisions.rights import ANYBODY
from rmgr.coord.ops import leader as leader_ops
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Committed
from rmgr.coord.protocol.records import decode_record
from rmgr.errors import Infeasible, StateConflict
from rmgr.model.tasks.block import StopRequest
from rmgr.submitter.answers import Answers
from rmgr.submitter.questions import MoveTask
from tests.harness.memory import MemoryCoordinator
from tests.harness.memory_tree import MemoryTree
from tests.harness.waiting import eventually


def test_jobs_are_asked_at_once_and_each_gets_its_own_answer() -> None:
    coordinator = MemoryCoordinator(MemoryTree())
    coordinator.ensure(["/", paths.REQUESTS])
    answers = {
        0: {"done": ((7, 0, "it waits"),)},
        1: {"error": "job 7_1 cannot go elsewhere", "code": "INFEASIBLE", "hint": "rmgr nodes"},
        2: {"left": ((7, 2, "it goes on"),)},
    }

    def lead() -> None:
        """Answers once all three stand there, the last first."""
        eventually(lambda: len(coordinator.children(paths.REQUESTS).result(60) or []) == 3, "three requests")
        found = []
        for guid in coordinator.children(paths.REQUESTS).result(60) or []:
            stamped = coordinator.get(paths.request(guid)).result(60)
            found.append((decode_record(stamped.data, StopRequest), guid, stamped.version))
        for request, guid, version in sorted(found, key=lambda one: -one[0].index):
            answered = replace(request, answered=True, **answers[request.index])  # type: ignore[arg-type]
            assert isinstance(coordinator.commit(leader_ops.answer_request(guid, answered, version)).result(60), Committed)

    leader = threading.Thread(target=lead)
    leader.start()
    asked = [(f"7_{index}", MoveTask(number=7, guid=f"{index:032x}", index=index, attempt=1)) for index in range(3)]
    answering = Answers(coordinator, lambda: None, ANYBODY, owner_of=lambda _: "ann")
    moved, stuck, stays = move_each(answering, asked, deadline_s=time.monotonic() + 60)
    leader.join(60)
    assert isinstance(moved, StopRequest)
    assert moved.done == ((7, 0, "it waits"),)
    assert isinstance(stuck, Infeasible)
    assert stuck.hint == "rmgr nodes"
    assert isinstance(stays, StateConflict)
    assert stays.message == "it goes on"
    coordinator.close()
