"""Tasks that read and write keys of the data store, with and without resubmit, and the checker of the final values of their keys."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Self

from breakable import Chaos
from ledger import read_ledger, work

from rmgr.client.taskqueue import TaskQueue
from rmgr.coord.protocol import keys
from rmgr.errors import NotFound
from rmgr.model.states import State
from rmgr.model.views import TaskView

#: Size of a value (bytes): too large for an outcome.
SIZE = 20_000


def marking(ledger: str, seconds: float) -> Callable[[bytes], bytes]:
    """Returns the task's function: it records its run in the ledger, and returns its token followed by its input."""

    def run(value: bytes) -> bytes:
        return f"{work(ledger, seconds)} ".encode() + value

    return run


class KeyedWork:
    """Two submissions of a chaos cluster whose tasks each read a key and write another one."""

    def __init__(self, chaos: Chaos, tasks: int, seconds: float) -> None:
        self._chaos = chaos
        self._connection = chaos.connection()
        self._place = chaos.ledger.name  #: prefix of the keys: another test may have run keyed work on the same cluster
        self._inputs = {f"{self._place}/in/{number}": os.urandom(SIZE) for number in range(tasks)}
        for key, value in self._inputs.items():
            self._connection.store.put(key, value)
        self._queues: dict[bool, TaskQueue] = {}
        function = marking(str(chaos.ledger), seconds)
        for resubmit in (True, False):
            queue = self._queues[resubmit] = TaskQueue(function, connection=self._connection, resubmit=resubmit)
            for number in range(tasks):
                queue.submit([f"{self._place}/in/{number}"], [self._key(number, resubmit=resubmit)])
            queue.flush(timeout=60)
            chaos.submissions.append(queue.id)
            chaos.acknowledged += tasks

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def check(self, tasks: dict[str, TaskView]) -> int:
        """Checks that each key has the committed attempt's value, or none if its task failed; returns the number of failed tasks."""
        failed = 0
        for resubmit, queue in self._queues.items():
            for number, value in enumerate(self._inputs.values()):
                task = tasks[f"{queue.id}_{number}"]
                found = self._value(self._key(number, resubmit=resubmit))
                if task.state is State.COMPLETED:
                    assert found == f"{task.id}.{task.attempt} ".encode() + value, f"{task.id} has another value than it has committed"
                    continue
                failed += 1
                assert not resubmit, f"{task.id} may run again, and ended {task.state} {task.reason}"
                assert (task.state, task.reason, found) == (State.FAILED, "NODE_LOST", None)
        runs = [span.task for span in read_ledger(self._chaos.ledger) if span.task.startswith(f"{self._queues[False].id}_")]
        assert len(runs) == len(set(runs)), "no task without resubmit started twice"
        return failed

    def rows_of_lost(self, tasks: dict[str, TaskView]) -> list[str]:
        """Returns the store's rows of outputs whose attempt was not committed."""
        committed = {(task.id, task.attempt) for task in tasks.values() if task.state is State.COMPLETED}
        store = self._connection.submitter.store
        rows = [row for queue in self._queues.values() for row in store.keys(keys.outputs_of(queue.id))]
        found = [(row, keys.parse_output(row)) for row in rows]
        return [row for row, of in found if (f"{of.sub}_{of.index}", of.attempt) not in committed]

    def _key(self, number: int, *, resubmit: bool) -> str:
        return f"{self._place}/{'again' if resubmit else 'once'}/{number}"

    def _value(self, key: str) -> Any:
        try:
            return self._connection.store.get(key)
        except NotFound:
            return None
