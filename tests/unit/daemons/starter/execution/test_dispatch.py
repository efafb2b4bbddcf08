"""Tasks with large arguments on their way to the slots: memory is bounded, and large arguments travel as files."""

from __future__ import annotations

import errno
import hashlib
import itertools
import os
import threading
import time
import weakref
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from rmgr.config import StarterConfig
from rmgr.coord.protocol import keys
from rmgr.coord.protocol.records import encode_payloads
from rmgr.daemons.starter.core import fetch as starter_fetch
from rmgr.daemons.starter.core.blocks import ClaimedBlock
from rmgr.daemons.starter.core.fetch import ArgumentsPiece, Blob, FetchFailure, check_content, decode, where
from rmgr.daemons.starter.core.shares import TaskTimes
from rmgr.daemons.starter.core.submissions import Info
from rmgr.daemons.starter.execution import dispatch as starter_dispatch
from rmgr.daemons.starter.execution.dispatch import Dispatcher
from rmgr.daemons.starter.execution.lanes import Lanes
from rmgr.errors import DataLost, PermissionDenied
from rmgr.model.base import Request
from rmgr.model.block import BlockData
from rmgr.model.frames import TaskBatch, TaskItem
from rmgr.model.queue import QueueSpec
from rmgr.model.states import Reason
from rmgr.model.submission import Command, PythonEnvironment, Submission, Work
from rmgr.runner.python.calls import arguments
from rmgr.runtime import machine
from tests.harness.claimed import StoreMail, a_key, claimed
from tests.harness.memory_store import MemoryStore
from tests.harness.waiting import eventually

MIB = 1 << 20


class StuckWorker:
    """Takes nothing of what it is sent: its task runs."""

    def __init__(self) -> None:
        self.batches: list[TaskBatch] = []
        self.is_leaving = False

    @property
    def backlog(self) -> int:
        return sum(len(item.payload) for batch in self.batches for item in batch.items)

    @property
    def load(self) -> int:
        return sum(len(batch.items) for batch in self.batches)

    def send(self, batch: TaskBatch) -> bool:
        self.batches.append(batch)
        return True

    def recall(self, *, keep: int = 0) -> None:
        assert keep == 0


class Slot:
    def __init__(self, runner: Runner) -> None:
        self.number, self.python, self.account, self.is_lost, self.runner = 0, "", None, False, runner
        self.is_up, self.uses = True, 0

    def close(self) -> None: ...

    def start_worker(self, _spec: object) -> StuckWorker:
        self.runner.workers.append(StuckWorker())
        return self.runner.workers[-1]


class Runner:
    def __init__(self) -> None:
        self.workers: list[StuckWorker] = []
        self.node: Any = None
        self.next_seq = itertools.count(1).__next__

    def open_slot(self, _number: int, **_: Any) -> Slot:
        return Slot(self)


class Stager:
    def startable(self, block: ClaimedBlock) -> int:
        return len(block.ready)


class Fetcher:
    """Functions are here; of argument rows it is remembered who asks for which."""

    def __init__(self) -> None:
        self.blobs = self
        self.asked: list[str] = []
        self.rows = self

    def get(self, key: str, _user: str = "") -> Blob | None:
        if key.startswith("args/"):
            self.asked.append(key)
            return None
        return Blob(b"f", "", 1)


RECORD = Submission(id=1, name="x", user="u", queue="q", work=Work.PYTHON, python=PythonEnvironment())
FUNCTION = "f" * 64


def block(first: int, payloads: tuple[Any, ...] = (), row: str = "", count: int = 0) -> ClaimedBlock:
    data = BlockData(function=FUNCTION, base=first, payloads=payloads, row=row)
    return claimed(a_key(first=first, count=count or len(payloads)), data, RECORD)


def dispatch(
    *blocks: ClaimedBlock, fetcher: Fetcher | None = None, cores: int = 2, resources: dict[str, int] | None = None
) -> tuple[Dispatcher, Runner]:
    runner, times = Runner(), TaskTimes()
    times.observe(FUNCTION, 1000, 0.05)  # quick ones: by their number alone, hundreds would be handed on
    config = StarterConfig(log_cap_bytes=1)
    shared = SimpleNamespace(times=times, fetcher=fetcher or Fetcher(), environ={}, config=config, gate=None, separate=False)
    node: Any = SimpleNamespace(
        shared=shared,
        blocks={one.key: one for one in blocks},
        lanes=Lanes(runner, cores=cores, memory_mib=1000, resources=resources),
        stager=Stager(),
        jobs=SimpleNamespace(gangs=SimpleNamespace(label=lambda _block: "")),
        accounts=None,
        ends=SimpleNamespace(unstartable=lambda *_: pytest.fail("nothing is unstartable")),
    )
    runner.node = node
    return Dispatcher(node), runner


def test_a_worker_that_takes_nothing_is_handed_a_bounded_number_of_bytes() -> None:
    payload = bytes(MIB)
    node, runner = dispatch(block(0, (payload,) * 200))
    for _ in range(50):
        node.run()
    assert len(runner.workers) == 2
    most = 2 * starter_dispatch.BATCH_BYTES + 2 * MIB
    assert all(0 < worker.backlog <= most for worker in runner.workers), [worker.backlog // MIB for worker in runner.workers]


def test_what_is_taken_back_from_a_worker_that_takes_nothing_is_not_sent_to_it_again_and_again() -> None:
    """A machine with too much to do: tasks return before their worker has come to them, and their bytes are still on their way."""
    payload = bytes(MIB // 10)
    waiting = block(0, (payload,) * 200)
    node, runner = dispatch(waiting)
    for _ in range(50):
        node.run()
        node.level(time.monotonic() + 3600.0)
        for lane in [one for one in runner.node.lanes if one.recalling]:
            indices = [index for _, index in runner.node.lanes.ended(lane, list(lane.tasks), None)]
            waiting.put_back(indices)
    most = 2 * starter_dispatch.BATCH_BYTES + 2 * MIB
    assert all(0 < worker.backlog <= most for worker in runner.workers), [worker.backlog // MIB for worker in runner.workers]
    assert all(len(lane.tasks) == 1 for lane in runner.node.lanes), "each has one that stays"


def test_quick_tasks_without_arguments_are_handed_on_by_number() -> None:
    node, runner = dispatch(block(0, (b"",) * 200))
    for _ in range(50):
        node.run()
    assert sum(worker.load for worker in runner.workers) > 50


def test_while_slots_are_busy_some_mib_of_arguments_are_fetched_ahead() -> None:
    fetcher = Fetcher()
    waiting = [block(200 + 4 * number, row=f"args/{number}", count=4) for number in range(30)]
    node, _ = dispatch(block(0, (bytes(MIB),) * 200), *waiting, fetcher=fetcher)
    node.run()
    assert fetcher.asked == [f"args/{number}" for number in range(starter_dispatch.AHEAD_BYTES // starter_dispatch.BATCH_BYTES)]


def test_an_interpreter_on_a_server_that_answers_late_is_looked_at_by_one_thread_and_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, answers, later_s = list[str](), threading.Event(), 0.0

    def access(path: str, _mode: int) -> bool:
        looks.append(path)
        return answers.wait(60)

    began_s = time.monotonic()
    monkeypatch.setattr(machine, "monotonic", lambda: began_s + later_s)
    mail = StoreMail(MemoryStore(str(tmp_path)), threads=2)
    fetcher: Any = starter_fetch.Fetcher(mail.io, tmp_path)
    fetcher.blobs = Fetcher()
    record = replace(RECORD, python=PythonEnvironment(python="/far/python"))
    waiting = claimed(a_key(first=0, count=1), BlockData(function=FUNCTION, payloads=(b"",)), record)
    node, runner = dispatch(waiting, fetcher=fetcher)
    monkeypatch.setattr(os, "access", access)
    for _ in range(5):  # a look on each thread, and so on, if each were another one
        node.run()
        eventually(lambda: looks, "it is looked at")
        later_s += 10.0
    answers.set()
    mail.until(lambda: runner.workers, node.run)
    assert looks == ["/far/python"]
    later_s += 10.0
    assert fetcher.programs.get("/far/python") is None, "it may have gone"
    mail.until(lambda: fetcher.programs.get("/far/python"))
    assert len(looks) == 2
    mail.io.close()


def test_large_arguments_are_a_file_that_workers_read_and_that_goes_with_them(tmp_path: Path) -> None:
    import pickle

    payloads = tuple(pickle.dumps(((os.urandom(MIB), number), {}), 5) for number in range(4))
    row = decode("args/1", encode_payloads(payloads), tmp_path)
    (path,) = tmp_path.iterdir()
    assert path.stat().st_mode & 0o777 == 0o600
    for number in range(4):
        piece = row[number]
        assert isinstance(piece, ArgumentsPiece)
        assert (len(piece), piece.read()) == (len(payloads[number]), payloads[number])
        item = TaskItem(seq=1, index=number, **where(piece))
        assert arguments(item, keyed=False) == (pickle.loads(payloads[number])[0], {}, -1)
    gone = weakref.ref(row)
    del row
    assert gone() is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("what", ["keyed", "command"])
def test_a_starter_reads_no_names_or_lines_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    monkeypatch.setattr(starter_fetch, "MOST_READ_BYTES", MIB)
    monkeypatch.setattr(ArgumentsPiece, "read", lambda _piece: pytest.fail("it is read"))
    row = decode("args/1", encode_payloads((bytes(MIB + 1), b"")), tmp_path)
    waiting = block(0, row="args/1", count=2)
    if what == "keyed":
        waiting.data = msgspec.structs.replace(waiting.data, keyed=True)
    else:
        waiting.info = Info(replace(RECORD, work=Work.COMMAND, python=None, command=Command(argv=("true",))), QueueSpec(name="q"), None)
    fetcher = Fetcher()
    monkeypatch.setattr(fetcher, "get", lambda _key, _user: row)
    node, runner = dispatch(waiting, fetcher=fetcher)
    failures: list[Any] = []
    monkeypatch.setattr(runner.node.ends, "unstartable", lambda _block, _indices, failure: failures.append(failure))
    node.run()
    [failure] = failures
    assert (failure.reason, failure.blames_node) == (Reason.START_FAILED, False)
    assert "args/1 have 1,048,577 bytes" in failure.error


def test_arguments_that_begin_behind_their_tasks_are_lost_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = block(0, row="args/1", count=2)
    waiting.base = 1000
    fetcher = Fetcher()
    monkeypatch.setattr(fetcher, "get", lambda _key, _user: decode("args/1", encode_payloads((b"a", b"b")), tmp_path))
    node, runner = dispatch(waiting, fetcher=fetcher)
    failures: list[Any] = []
    monkeypatch.setattr(runner.node.ends, "unstartable", lambda _block, _indices, failure: failures.append(failure))
    node.run()
    assert [failure.reason for failure in failures] == [Reason.DATA_LOST]


def test_small_arguments_stay_in_memory_and_so_do_large_ones_on_a_full_disk(tmp_path: Path) -> None:
    small = (b"a" * 1000,) * 256
    assert tuple(decode("args/1", encode_payloads(small), tmp_path)) == small
    large = (b"b" * MIB,) * 2
    assert tuple(decode("args/2", encode_payloads(large), tmp_path / "is not there")) == large
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(DataLost, match="cannot be read"):
        decode("args/3", b"\xc1" * MIB, tmp_path)


def test_a_row_is_believed_by_its_own_hash() -> None:
    with pytest.raises(PermissionDenied):
        check_content(keys.arguments(1, 0, "0" * 64), hashlib.sha256(b"arguments").hexdigest())


def needing(number: int, **resources: int) -> ClaimedBlock:
    record = replace(RECORD, id=number, request=Request(resources=resources))
    return claimed(a_key(seq=number, submission=number), BlockData(function=FUNCTION, payloads=(b"",)), record)


def test_a_task_that_lacks_a_resource_holds_up_only_those_behind_it_that_need_the_same() -> None:
    blocks = [needing(1, gpu=1), needing(2, gpu=2), needing(3, gpu=1), needing(4), needing(5, licence=1)]
    node, runner = dispatch(*blocks, cores=4, resources={"gpu": 2, "licence": 1})
    node.run()
    assert [block.key.submission for block in blocks if not block.ready] == [1, 4, 5]
    seen = {worker.batches[0].shape.submission: worker.batches[0].shape.environ for worker in runner.workers}
    assert (seen[1]["CUDA_VISIBLE_DEVICES"], seen[5]["RMGR_RESOURCE_LICENCE"]) == ("0", "0")
    assert "CUDA_VISIBLE_DEVICES" not in seen[4]


def test_what_makes_the_preparation_of_a_block_raise_ends_its_tasks_and_holds_up_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    bad, good = block(0, (b"",) * 2), block(10, (b"",))
    node, runner = dispatch(bad, good)
    bad.info = Info(RECORD, QueueSpec(name="q"), None)
    monkeypatch.setattr(bad.info, "record", None)  # nothing that a record may be: whatever is asked of it raises
    failures: list[tuple[list[int], FetchFailure]] = []
    monkeypatch.setattr(runner.node.ends, "unstartable", lambda _block, indices, failure: failures.append((list(indices), failure)))
    node.run()
    [(indices, failure)] = failures
    assert (indices, failure.reason) == ([0, 1], Reason.START_FAILED)
    assert failure.error.startswith("the node cannot start it: AttributeError: ")
    assert not bad.ready
    assert [len(lane.tasks) for lane in runner.node.lanes] == [1]
    assert len(runner.workers) == 1


def test_what_is_wrong_with_the_node_while_a_block_is_prepared_is_the_nodes() -> None:
    class Away(Fetcher):
        def get(self, key: str, _user: str = "") -> Blob | None:
            raise OSError(errno.EMFILE, "too many open files")

    waiting = block(0, (b"",))
    node, _ = dispatch(waiting, fetcher=Away())
    with pytest.raises(OSError, match="too many open files"):
        node.run()
    assert list(waiting.ready) == [0]
