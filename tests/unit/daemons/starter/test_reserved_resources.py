"""What a connection reservation keeps beside cores and memory: pieces of other resources, written by the leader, counted by the Starter."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from rmgr.coord.protocol.records import decode_record
from rmgr.daemons.leader.facts import Names
from rmgr.daemons.leader.placement.holds import Promises
from rmgr.daemons.leader.placement.job_table import JobTable
from rmgr.daemons.starter.execution.holds import Reservations, _Promise
from rmgr.model.tasks.block import Reserved
from rmgr.sched.job import Job
from rmgr.sched.records import Hold, Share


def test_the_leader_writes_what_its_processes_on_each_node_need() -> None:
    names: Any = Names()
    names.learn(("n1", "n2"))
    job = Job(id=7 << 20, submit_us=0, processes=3, threads=2, memory_bytes=3 << 20, resources=(("gpu", 2),))
    hold = Hold(job.id, (Share(1, ((0, 0, 3),)),), (Share(2, ((0, 1, 1),)),))
    placer: Any = SimpleNamespace(context=SimpleNamespace(tree=None), job_table=JobTable(), names=names)
    records = Promises(placer)._records(job, hold)
    found = {node: decode_record(data, Reserved, node) for node, data in records.items()}
    assert {node: (one.memory_mib, one.resources) for node, one in found.items()} == {"n1": (6, (("gpu", 4),)), "n2": (0, ())}


def test_a_starter_keeps_as_much_of_them_as_of_the_cores_that_are_free_by_now() -> None:
    runs: set[str] = {"1.0.1"}
    jobs = SimpleNamespace(holds=SimpleNamespace(has=runs.__contains__), is_taking=lambda _number: False)
    shared = SimpleNamespace(after=lambda _delay_s, _what: None)
    node: Any = SimpleNamespace(orders=SimpleNamespace(is_settled=True), jobs=jobs, shared=shared)
    kept = Reservations(node)
    record = Reserved(shares=(("1.0.1", 2), ("", 2)), memory_mib=100, resources=(("gpu", 3),))
    promise = _Promise(name="r-7.0", submission=7, index=0, record=record)
    assert kept._wanted(promise, record, set()) == (2, 50, (("gpu", 1),))
    runs.clear()
    assert kept._wanted(promise, record, set()) == (4, 100, (("gpu", 3),))
    assert kept._wanted(promise, Reserved(), set()) == (0, 0, ())
