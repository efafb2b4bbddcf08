"""Reads of a submission while the leader writes pages never report an ended task as unended."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from rmgr.coord.ops import leader as leader_ops
from rmgr.coord.protocol import keys, paths
from rmgr.coord.protocol.multi import Committed, Create, Gone, Multi, Stamped
from rmgr.coord.protocol.records import join_page, read_fragment
from rmgr.errors import CoordinationUnavailable
from rmgr.model.block import BlockKey
from rmgr.model.states import State
from rmgr.model.submission import Paged
from rmgr.procedures.history import paged_with
from rmgr.procedures.snapshot import fetch, read_claimed, read_progress, read_tasks
from rmgr.runtime import machine
from rmgr.submitter.orders import cancel_tasks
from tests.harness.leader_bench import Bench
from tests.harness.memory import MemoryCoordinator

TASKS = 24


class Late(MemoryCoordinator):
    """Between the reading of /done and that of the fragments something happens, once."""

    between: Callable[[], None] | None = None

    def get(self, path: str, **options: Any) -> Future[Stamped | None]:
        if path.rpartition("/")[2].startswith("r-") and self.between is not None:
            happens, self.between = self.between, None
            happens()
        return super().get(path, **options)


@pytest.fixture
def bench() -> Any:
    made = Bench()
    yield made
    made.close()


def page(bench: Bench, number: int, count: int) -> None:
    """The oldest fragments go to a page, as the leader does it."""
    found = [bench.outside.get(paths.fragment(number, at)).result(60) for at in range(count)]
    data = [item.data for item in found if item is not None]
    bench.store.put(keys.page(number, 0), join_page(data))
    done = bench.outside.get(paths.done(number)).result(60)
    assert done is not None
    paged = paged_with(Paged(), tuple(map(read_fragment, data)))
    assert isinstance(bench.outside.commit(leader_ops.page(number, paged, done.version, 0, count)).result(60), Committed)


@pytest.mark.parametrize("reader", ["tasks", "progress"])
def test_fragments_that_are_paged_out_while_they_are_read_are_read_from_the_page(bench: Bench, reader: str) -> None:
    starter = bench.starter("n1")
    number = bench.submitter.submit(TASKS, block=4)
    for _ in range(TASKS // 4):
        starter.complete("n1", starter.claim("n1"))
    late = Late(bench.tree, auto=True)
    late.between = lambda: page(bench, number, 4)
    try:
        if reader == "tasks":
            states = {view.state for view in read_tasks(late, bench.store, number)[1]}
            assert states == {State.COMPLETED}
        else:
            found = read_progress(late, bench.store, number)
            assert found[1].final == TASKS
    finally:
        late.close()
    assert late.between is None


def test_blocks_that_no_decoder_reads_hide_no_other_work(bench: Bench) -> None:
    starter = bench.starter("n1")
    number = bench.submitter.submit(TASKS, block=4)
    starter.claim("n1")
    key = BlockKey(priority=0, seq=99, submission=number, first=0, count=1, attempt=2, cores=1, memory_mib=0)
    for path in (paths.running_block("n1", key), paths.pending_block("default", key), paths.failed_range(number, 0, 1, 2)):
        made = Multi(name="HOSTILE", ops=(Create(path, b"\x91\xa2\xff\xfe"),), proof=Gone(path))  # a text that is no UTF-8
        assert isinstance(bench.outside.commit(made).result(60), Committed)
    states = [view.state for view in read_tasks(bench.outside, bench.store, number)[1]]
    assert len(states) == TASKS
    assert [key.count for _, key, _ in read_claimed(bench.outside, ["n1"])] == [4]


def test_blocks_that_no_decoder_reads_keep_nobody_from_cancelling_the_others(bench: Bench) -> None:
    number = bench.submitter.submit(TASKS, block=4)
    key = BlockKey(priority=0, seq=99, submission=number, first=0, count=1, attempt=2, cores=1, memory_mib=0)
    for path in (paths.pending_block("default", key), paths.held_block("default", key), paths.failed_range(number, 0, 1, 2)):
        made = Multi(name="HOSTILE", ops=(Create(path, b"\x91\xa2\xff\xfe"),), proof=Gone(path))
        assert isinstance(bench.outside.commit(made).result(60), Committed)
    deadline_s = machine.monotonic() + 60
    assert cancel_tasks(bench.outside, number, [(0, TASKS)], running=False, deadline_s=deadline_s) == ((0, TASKS),)


def test_reads_without_an_answer_are_the_services_fault_and_not_a_crash() -> None:
    client = MemoryCoordinator()
    client.pause()  # the deadline of its reads is later than ours
    try:
        with pytest.raises(CoordinationUnavailable, match=r"ZooKeeper has not answered within 10ms"):
            fetch(["/a", "/b"], client.get, timeout_s=0.01)
    finally:
        client.close()
