"""Messages that make a handler raise are set aside: reported once, listed, and out of the way of others."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Create, Delete, Exists, Gone, Multi, Op, Set
from rmgr.coord.protocol.records import encode_record
from rmgr.coord.views import answers, health
from rmgr.model.node import Drain
from rmgr.model.queue import ClusterSettings, Dispatch, QueueSpec
from rmgr.model.submission import Rigid
from rmgr.model.views import Level
from rmgr.runtime.aside import MOST, Aside
from tests.harness.leader_bench import Bench, committed

GARBAGE = (b"\xc1", b"{}", b"null", b"[]", b"", b'{"format":99}', b'"x"', b"7")
#: What anybody with the rights of a Submitter, a Starter or an operator could write, by where it stands.
PLACES = {
    "a drain": paths.drain("n1"),
    "a drain of no node": paths.drain("n9"),
    "a trouble": paths.trouble("n1"),
    "an entry of a Starter": f"{paths.STARTERS}/zz",
    "a failed range": f"{paths.failed(1)}/garbage",
    "a failed range of three words": f"{paths.failed(1)}/0.1.x",
    "a hold": f"{paths.hold('n1')}/zz",
    "a request": paths.request("zz"),
    "a tail": paths.tail(1),
    "a submission": paths.sub(1),
    "an outcome": f"{paths.done(1)}/zz",
    "a running block": f"{paths.running_node('n1')}/zz",
    "what policies remember": paths.placing("default"),
}


class Log:
    """Counts what is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def error(self, event: str, **fields: object) -> None:
        self.told.append(f"{event} {fields['path']} {fields['error']}")


def boom() -> None:
    raise TypeError("no such thing")


def test_a_subject_that_raises_is_told_once_and_not_tried_again_until_it_changes() -> None:
    log, failures = Log(), itertools.count()
    aside = Aside(log, lambda: next(failures))
    assert aside.run("/subs/0/1", 3, boom) is False
    assert aside.run("/subs/0/1", 3, boom) is False
    assert log.told == ["set_aside /subs/0/1 TypeError: no such thing"]
    assert (aside.holds("/subs/0/1", 3), aside.holds("/subs/0/1", 4), aside.holds("/subs/0/2", 3)) == (True, False, False)
    assert aside.told() == {"/subs/0/1": "TypeError: no such thing"}
    assert aside.run("/subs/0/1", 4, lambda: None) is True
    assert aside.told() == {}
    aside.run("/subs/0/1", 5, boom)
    aside.forget("/subs/0/1")
    assert (aside.told(), next(failures)) == ({}, 3)


def test_only_so_many_subjects_are_remembered() -> None:
    aside = Aside(Log(), lambda: None)
    for number in range(MOST + 10):
        aside.run(f"/subs/0/{number}", 0, boom)
    assert len(aside.told()) == MOST
    assert not aside.holds("/subs/0/9", 0)
    assert aside.holds(f"/subs/0/{MOST + 9}", 0)


@pytest.fixture
def bench() -> Iterator[Bench]:
    found = Bench(ClusterSettings(queues=(QueueSpec(name="default"), QueueSpec(name="batch", dispatch=Dispatch.PLACE))))
    yield found
    found.close()


def put(bench: Bench, path: str, data: bytes) -> None:
    there = bench.outside.get(path).result(60) is not None
    op: Op = Set(path, data, -1) if there else Create(path, data)
    committed(bench.outside, Multi(name="SPOIL", ops=(op,), proof=Exists(path)))


@pytest.mark.parametrize("place", PLACES)
def test_a_poisoned_znode_stops_no_others_and_is_told_once_in_two_leaders(bench: Bench, place: str) -> None:
    bench.lead()
    bench.starter("n1", "n2")
    bench.submitter.submit(2)
    bench.advance(0.5)
    for leader in ("the first", "its successor"):
        for data in GARBAGE:
            put(bench, PLACES[place], data)
            bench.advance(60.0)  # resyncs, too
        number = bench.submitter.submit(1, block=1, queue="batch", rigid=Rigid())
        other = bench.submitter.submit(1)
        bench.advance(1.0)
        names = [name for node in ("n1", "n2") for name in bench.look.names(paths.running_node(node))]
        assert number in {key.submission for _, key in paths.blocks_in(names)}, leader
        assert other in {key.submission for key in bench.look.pending()}, leader
        told = [line for line in bench.events("set_aside") if line["path"] == PLACES[place]]
        assert len(told) <= (2 * len(GARBAGE) + 1 if leader != "the first" else len(GARBAGE)), "once for each version"
        bench.leader.close()  # type: ignore[union-attr]
        bench.lead(bench.connect())
        bench.advance(0.5)


def test_what_is_set_aside_is_listed_until_it_is_mended_or_gone(bench: Bench) -> None:
    bench.lead()
    bench.starter("n1")
    bench.advance(0.5)
    leader = bench.leader
    assert leader is not None

    def listed() -> list[str]:
        snapshot = leader.snapshot()
        found = health.parts(snapshot, answers.nodes(snapshot), [], zookeeper={"ok": True}, store={"ok": True})
        return [f"{part.id} {part.level} {part.reason}" for part in found if part.kind == "record"]

    put(bench, paths.drain("n1"), b"{]")
    bench.advance(1.0)
    assert bench.count(bench.metrics.loop_errors) >= 1
    [told] = listed()
    assert told.startswith(f"/drains/n1 {Level.WARNING} the leader has set /drains/n1 aside: WrongCluster: the record at /drains/n1 cannot")
    put(bench, paths.drain("n1"), encode_record(Drain(node="n1", reason="fan", user="op", since_us=1)))
    bench.advance(60.0)
    assert listed() == []
    assert leader.nodes.drains["n1"].reason == "fan"
    put(bench, paths.drain("n2"), b"{]")
    bench.advance(60.0)
    assert len(listed()) == 1
    committed(bench.outside, Multi(name="MEND", ops=(Delete(paths.drain("n2")),), proof=Gone(paths.drain("n2"))))
    bench.advance(60.0)
    assert listed() == []


def test_a_job_that_cannot_be_told_to_the_scheduler_waits_alone_and_its_owner_is_told(bench: Bench) -> None:
    bench.lead()
    bench.starter("n1", "n2")
    poisoned = bench.submitter.submit(1, block=1, queue="batch", rigid=Rigid(processes=-1))
    others = [bench.submitter.submit(1, block=1, queue="batch", rigid=Rigid()) for _ in range(2)]
    bench.advance(1.0)
    assert {key.submission for key in bench.look.keys(paths.running_node("n1"))} == set(others)
    for _ in range(2):
        assert bench.leader is not None
        view = bench.leader.placer.view().jobs[poisoned, 0]
        assert (view.state, view.what) == ("waiting", "set aside")
        assert "processes is -1" in view.reason
        assert f"rmgr cancel {poisoned}" in view.reason
        bench.leader.close()
        bench.lead(bench.connect())
        bench.advance(1.0)
