"""Tasks that read and write keys of the data store, with and without resubmit, and the checker of the final values of their keys.

And clients that die, or compete, while they claim such keys.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from breakable import Chaos
from ledger import read_ledger, work

from rmgr.client.connection import Connection
from rmgr.client.taskqueue import TaskQueue
from rmgr.coord.protocol import keys
from rmgr.dev.cluster import DevCluster
from rmgr.errors import NotFound
from rmgr.model.states import State
from rmgr.model.views import TaskView
from tests.harness import forked

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


class Story:
    """Some inputs, the keys that clients want, and what their tasks did.

    program: of a client; its words are a ledger outside the cluster, a prefix of keys, its own name, its token, the number of tasks, and
    more of the test's. It prints how each task ended, as JSON, in its last line.
    """

    def __init__(self, cluster: DevCluster, connection: Connection, directory: Path, program: str, tasks: int) -> None:
        self._cluster = cluster
        self._program = program
        self._tasks = tasks
        self.store = connection.store
        self.prefix = uuid.uuid4().hex[:8]
        self._ledger = directory / "ledger"
        self._ledger.touch()
        self.store.put_many({f"{self.prefix}/in/{n}": n for n in range(tasks)})

    def client(self, who: str, *words: str, failpoint: str = "") -> subprocess.Popen[str]:
        environment = {key: value for key, value in os.environ.items() if not key.startswith("RMGR_") or key == "RMGR_ZOOKEEPER_LIB"}
        environment |= self._cluster.environment()
        if failpoint:
            environment["RMGR_FAILPOINT"] = failpoint
        told = [str(self._ledger), self.prefix, who, f"{self.prefix}-{who}", str(self._tasks), *words]
        return forked.application(self._program, *told, env=environment)

    def values(self) -> dict[int, tuple[str, int]]:
        """(who wrote it, what) under each output key."""
        names = {f"{self.prefix}/out/{n}": n for n in range(self._tasks)}
        return {names[key]: (value[0], value[1]) for key, value in self.store.get_many(names).items()}

    def runs(self) -> Counter[str]:
        """How often each client's task of each number has run."""
        return Counter(self._ledger.read_text().splitlines())


def ended(process: subprocess.Popen[str]) -> dict[int, str]:
    """How each of its tasks ended: "" or why not."""
    return {int(n): reason for n, reason in json.loads(_output(process, 0).splitlines()[-1]).items()}


def killed(process: subprocess.Popen[str]) -> str:
    """What a client has printed before its failpoint has killed it."""
    return _output(process, -signal.SIGKILL)


def _output(process: subprocess.Popen[str], code: int) -> str:
    try:
        out, err = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == code, err
    return out
