"""Gangs of a live cluster in the leader: record and starts in one commit, its clock, its successor, other policies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from rmgr.adapters.policy_files import recorded
from rmgr.coord.ops import leader as leader_ops
from rmgr.coord.ops import place as place_ops
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Holds, Multi, Set, Stat
from rmgr.coord.protocol.records import decode_block, decode_record, encode_record
from rmgr.coord.views import answers
from rmgr.coord.views.answers import on_the_move
from rmgr.coord.views.snapshot import ClusterSnapshot
from rmgr.daemons.leader.placement.arrivals import fitting, gangs_of
from rmgr.model.base import Request
from rmgr.model.block import BlockData, BlockKey, NodeHold, StopKind, StopRequest, job_id, task_of
from rmgr.model.node import LEAD_US, GangRecord, InboxOrder
from rmgr.model.queue import ClusterSettings
from rmgr.model.submission import Rigid
from rmgr.model.views import GangSummary
from rmgr.procedures.snapshot import claimed_blocks
from rmgr.runtime import machine
from rmgr.sched.capacity.gangs import Carousel, Timetable
from rmgr.sched.job import Job, Node, Running
from rmgr.sched.records import Gang
from rmgr.sched.state.cluster import ClusterState
from rmgr.sched.state.event_log import Opening
from rmgr.sim.replay import verify
from rmgr.sim.runs.output import read_log
from tests.harness.leader_bench import Bench, Starter, committed, placing
from tests.property.test_placing_failover import stop

QUANTUM_US = 500_000


def settings(policy: str, **parameters: object) -> ClusterSettings:
    return placing({"policy": policy, "parameters": parameters})


class Cluster:
    """Two nodes of two cores that can stop work between slots. The boot clock of a machine is no other's."""

    def __init__(self, *, freezer: str = "v2", clock: bool = True, memory_bytes: int = 0, **parameters: object) -> None:
        self.bench = Bench(settings("dqt", quantum=QUANTUM_US / 1e6, **parameters))
        self.bench.tree.now_ms = lambda: round(self.bench.now_s * 1e3)
        self.bench.boot_us = {"n1": 7_000_000_000, "n2": -3_000_000} if clock else {}
        self.bench.lead()
        self.nodes = self.bench.starter("n1", freezer=freezer, memory_bytes=memory_bytes)
        self.others = self.bench.starter("n2", freezer=freezer, memory_bytes=memory_bytes)
        self.bench.advance(1)

    def starter_of(self, node: str) -> Starter:
        return self.nodes if node == "n1" else self.others

    def submit(self, processes: int = 4, **fields: object) -> int:
        request = Request(time_limit_us=600_000_000, **fields)
        number = self.bench.submitter.submit(1, block=1, queue="batch", rigid=Rigid(processes=processes, checkpoint=True), request=request)
        self.bench.advance(1)
        return number

    def record(self) -> tuple[GangRecord, Stat]:
        found = self.bench.outside.get(paths.gangs("default")).result(60)
        record = decode_record(found.data, GangRecord)
        assert record.origin_us + record.slot * record.slot_us >= record.set_us + LEAD_US, "its readers learn of it before its first slot"
        return record, found.stat

    def members(self) -> dict[int, int]:
        """Submission -> attempt, as the record has them."""
        return {task_of(job)[0]: attempt for job, attempt, _ in self.record()[0].attempts}

    def running(self) -> dict[int, tuple[str, BlockData, Stat]]:
        found = {}
        for node in ("n1", "n2"):
            for key in self.bench.look.keys(paths.running_node(node)):
                stamped = self.bench.outside.get(paths.running_block(node, key)).result(60)
                found[key.submission] = (node, decode_block(stamped.data), stamped.stat)
        return found

    def key_of(self, number: int) -> tuple[str, BlockKey]:
        node, _, _ = self.running()[number]
        return node, next(key for key in self.bench.look.keys(paths.running_node(node)) if key.submission == number)

    def end(self, number: int) -> None:
        node, key = self.key_of(number)
        self.starter_of(node).complete(node, key)
        self.bench.advance(1)

    def orders(self) -> list[tuple[str, str, InboxOrder]]:
        return self.bench.look.orders("n1", "n2")

    def reason(self, number: int) -> str:
        return self.bench.leader.placer.view().jobs[number, 0].reason

    def another_leader(self) -> None:
        self.bench.leader.close()
        self.bench.lead(self.bench.connect())
        self.bench.advance(1)

    def set_policy(self, new: ClusterSettings) -> None:
        found = self.bench.outside.get(paths.CONFIG).result(60)
        committed(self.bench.outside, _set(paths.CONFIG, encode_record(new), found.version))
        self.bench.advance(1)


def _set(path: str, data: bytes, version: int) -> Multi:
    return Multi(name="TEST", ops=(Set(path, data, version),), proof=Holds(path, data))


@pytest.fixture(autouse=True)
def boot_clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Bench]]:
    """The leader's own boot clock moves with the bench, and the wall too, which is a day ahead: no slot goes by it."""
    made: list[Bench] = []
    known = Bench.__init__

    def begin(self: Bench, *args: object, **named: object) -> None:
        self.now_s = 1000.0
        made.append(self)
        known(self, *args, **named)

    monkeypatch.setattr(Bench, "__init__", begin)
    monkeypatch.setattr(machine, "boottime_ns", lambda: round(made[-1].now_s * 1e9) - 400_000_000_000)
    monkeypatch.setattr(machine, "wall_us", lambda: round((made[-1].now_s + 86_400) * 1e6))
    yield made
    for bench in made:
        bench.close()


def test_the_record_and_the_starts_are_one_commit_and_say_who_has_which_slots() -> None:
    cluster = Cluster()
    first, second = cluster.submit(), cluster.submit()
    record, stat = cluster.record()
    assert cluster.members() == {first: 1, second: 1}
    assert (record.policy, record.slot_us, record.leaves, record.clock.node) == ("dqt", QUANTUM_US, (("n1", 2), ("n2", 2)), "n1")
    running = cluster.running()
    assert {number: block.allocation.gang for number, (_, block, _) in running.items() if block.allocation} == {
        first: "default",
        second: "default",
    }
    assert running[second][2].czxid == stat.mzxid  # one commit
    held = cluster.bench.look.read(paths.hold_of("n2", first, 0, 1), NodeHold)
    assert (held.gang, held.generation) == ("default", 0)
    allocation = running[second][1].allocation
    assert allocation.generation == stat.version == 1


def test_a_first_slot_begins_after_its_readers_have_learned_of_it() -> None:
    cluster = Cluster()
    cluster.submit()
    cluster.bench.advance(3.3)
    pass_us = round(cluster.bench.now_s * 1e6)
    cluster.submit()
    record, _ = cluster.record()
    gang_us = pass_us - 400_000_000 + 7_000_000_000  # the clock of n1
    begins_us = record.origin_us + record.slot * record.slot_us
    assert gang_us + LEAD_US <= begins_us < gang_us + 1_000_000 + LEAD_US + record.slot_us


def test_each_generation_goes_on_where_the_one_before_it_stands() -> None:
    cluster = Cluster()
    first = cluster.submit()
    cluster.submit(2)
    before, _ = cluster.record()
    cluster.bench.advance(4.2)
    third = cluster.submit(1)
    after, _ = cluster.record()
    cluster.end(first)
    last, _ = cluster.record()
    assert (before.origin_us, before.clock) == (last.origin_us, last.clock)
    old, new = Timetable(before, "n1"), Timetable(after, "n1")
    old.skip_to(after.slot)
    for _ in range(2):  # until the round ends nobody new is served
        assert [row for row in new.row() if row[1] != job_id(third, 0)] == [row for row in old.row() if row[1] != job_id(third, 0)]
    assert first not in cluster.members()


def test_a_successor_takes_the_gang_over_and_stops_nobody() -> None:
    cluster = Cluster()
    numbers = [cluster.submit() for _ in range(3)]
    before, stat = cluster.record()
    cluster.another_leader()
    assert cluster.record()[1].version == stat.version
    assert cluster.orders() == []
    fourth = cluster.submit()
    after, _ = cluster.record()
    assert cluster.members() == dict.fromkeys((*numbers, fourth), 1)
    assert (after.origin_us, after.clock) == (before.origin_us, before.clock)
    assert set(cluster.running()) == {*numbers, fourth}


def test_without_a_clock_no_tree_is_set_and_members_turn_on() -> None:
    cluster = Cluster(clock=False)
    number = cluster.submit()
    assert cluster.running() == {}
    assert "the clock of node n1, by which slots are counted, cannot be read: nobody answers" in cluster.reason(number)
    cluster.bench.boot_us["n1"] = 5
    for reader in cluster.bench.readers:
        reader.answer()
    cluster.bench.advance(1)
    assert set(cluster.running()) == {number}
    cluster.bench.boot_us.clear()
    cluster.another_leader()
    other = cluster.submit()
    assert set(cluster.running()) == {number}
    assert "cannot be read" in cluster.reason(other)


@pytest.mark.parametrize("is_known", [True, False])
def test_gang_time_goes_on_when_its_reference_is_renewed(is_known: bool) -> None:
    cluster = Cluster()
    number = cluster.submit()
    before, stat = cluster.record()
    if not is_known:
        cluster.bench.leader.close()
    cluster.bench.boot_us["n1"] = -99_000_000_000  # its machine was started again
    cluster.nodes.register()
    if not is_known:
        cluster.bench.lead(cluster.bench.connect())
    cluster.bench.advance(2)
    after, again = cluster.record()
    assert again.version == stat.version + 1
    assert cluster.members() == {number: 1}
    assert (after.clock.node, after.clock.incarnation) == ("n1", 2)
    assert after.origin_us == before.origin_us
    now_us = round(cluster.bench.now_s * 1e6)
    shown_us = now_us - 400_000_000 + cluster.bench.boot_us["n1"] + after.clock.offset_us
    expected_us = now_us - 400_000_000 + 7_000_000_000
    assert abs(shown_us - expected_us) < 2_000, "the wall clock of ZooKeeper tells milliseconds"
    cluster.bench.advance(30)
    assert cluster.record()[1].version == again.version  # once


def test_a_node_that_cannot_stop_work_takes_no_job_of_a_gang() -> None:
    cluster = Cluster(freezer="")
    number = cluster.submit()
    assert cluster.running() == {}
    told = "no node of partition default is up that can stop work between slots: rmgr nodes -o +freezer; [starter] freezer = "
    assert told in cluster.reason(number)


def _migrate(cluster: Cluster, number: int) -> str:
    committed(cluster.bench.outside, leader_ops.ask_leader("g1", StopRequest(kind=StopKind.MIGRATE, submission=number)))
    cluster.bench.advance(1)
    ((_, guid, order),) = cluster.orders()
    assert order.submission == number
    return guid


def test_a_member_that_was_asked_to_leave_keeps_its_place_until_it_has_left() -> None:
    cluster = Cluster()
    first, second = cluster.submit(2), cluster.submit()
    guid = _migrate(cluster, first)
    third = cluster.submit()
    assert cluster.members() == {first: 1, second: 1, third: 1}
    cluster.another_leader()
    fourth = cluster.submit()
    assert cluster.members() == {first: 1, second: 1, third: 1, fourth: 1}
    node, key = cluster.key_of(first)
    stop(cluster.starter_of(node), node, key, guid)
    cluster.bench.advance(2)
    assert cluster.members().get(first) in {None, 2}
    assert set(cluster.members()) >= {second, third, fourth}


def test_a_member_that_refuses_to_leave_goes_on_with_its_turns() -> None:
    cluster = Cluster()
    first, second = cluster.submit(2), cluster.submit()
    guid = _migrate(cluster, first)
    node, key = cluster.key_of(first)
    found = cluster.bench.outside.get(paths.running_block(node, key)).result(60)
    data = msgspec.structs.replace(decode_block(found.data), story=("it cannot",), stamp=guid)
    starter = cluster.starter_of(node)
    committed(starter.coordinator, place_ops.note(node, starter.versions[node], key, data, found.version, orders=(guid,)))
    cluster.bench.advance(1)
    third = cluster.submit()
    assert cluster.members() == {first: 1, second: 1, third: 1}
    cluster.another_leader()
    assert cluster.orders() == []
    assert set(cluster.running()) == {first, second, third}


def test_another_policy_leaves_the_gang_turning_until_its_jobs_have_ended() -> None:
    cluster = Cluster()
    first, second = cluster.submit(), cluster.submit()
    cluster.set_policy(settings("easy"))
    cluster.another_leader()
    third = cluster.submit()
    assert cluster.members() == {first: 1, second: 1}
    assert set(cluster.running()) == {first, second}
    cluster.end(first)
    assert cluster.members() == {second: 1}
    assert set(cluster.running()) == {second}
    cluster.end(second)
    running = cluster.running()
    assert set(running) == {third}
    assert running[third][1].allocation.gang == ""
    cluster.set_policy(settings("dqt", quantum=QUANTUM_US / 1e6))
    fourth = cluster.submit()
    assert set(cluster.running()) == {third}  # its nodes join when they are empty
    cluster.end(third)
    assert set(cluster.running()) == {fourth}
    assert cluster.orders() == []


def test_an_unreadable_record_is_told_once_and_its_jobs_keep_their_nodes() -> None:
    cluster = Cluster()
    first, second = cluster.submit(2), cluster.submit()
    found = cluster.bench.outside.get(paths.gangs("default")).result(60)
    committed(cluster.bench.outside, _set(paths.gangs("default"), b"\x00", found.version))
    cluster.another_leader()
    assert cluster.orders() == []
    third = cluster.submit()
    assert set(cluster.running()) == {first, second, third}
    assert set(cluster.members()) == {first, second, third}
    assert len(cluster.bench.events("gang_not_readable")) == 1


def test_a_live_log_with_a_gang_run_again_gives_the_same_decisions(tmp_path: Path) -> None:
    cluster = Cluster()
    first, second = cluster.submit(2), cluster.submit()
    _migrate(cluster, first)
    cluster.submit(1)
    cluster.end(second)
    cluster.nodes.register()
    cluster.bench.advance(2)
    cluster.submit(3)
    cluster.bench.leader.close()
    file = cluster.bench.last_log(tmp_path / "live.jsonl")
    opening = next(iter(read_log(file)))
    assert isinstance(opening, Opening)
    history = verify(read_log(file), recorded(opening.pipelines).stages)
    assert history.decided >= 1


def test_a_partition_with_too_many_cores_has_no_tree() -> None:
    cluster = Cluster()
    cluster.bench.starter("n3", cores=1_021, freezer="v2")
    cluster.bench.advance(1)
    number = cluster.submit(1)
    assert cluster.running() == {}
    assert "1,025 cores" in cluster.reason(number) or "1025 cores" in cluster.reason(number)


def test_who_does_not_fit_into_the_record_waits_and_the_record_is_never_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmgr.daemons.leader.placement.gangs.most_members", lambda *_: 2)
    cluster = Cluster()
    numbers = [cluster.submit(1) for _ in range(3)]
    assert set(cluster.members()) == set(numbers[:2])
    assert "as many jobs as nodes read at once: it comes when one of them has ended (rmgr queues --tree)" in cluster.reason(numbers[2])
    cluster.end(numbers[0])
    assert set(cluster.members()) == set(numbers[1:])


def test_how_many_jobs_a_record_may_have_follows_the_nodes_while_the_clock_stands_as_it_did(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmgr.daemons.leader.placement.gangs.most_members", lambda nodes, _: len(nodes))
    cluster = Cluster()
    numbers = [cluster.submit(1) for _ in range(3)]
    assert set(cluster.members()) == set(numbers[:2])
    cluster.bench.starter("n3", freezer="v2")
    cluster.bench.advance(1)
    assert set(cluster.members()) == set(numbers)


def test_a_gang_goes_on_as_it_is_where_nodes_come_that_make_its_tree_too_large() -> None:
    cluster = Cluster()
    first = cluster.submit()
    cluster.bench.starter("n3", cores=1_021, freezer="v2")
    cluster.bench.advance(1)
    second = cluster.submit(1)
    assert set(cluster.running()) == {first}
    assert "cores" in cluster.reason(second)
    assert cluster.bench.events("plan_not_carried_out") == []


def test_starts_beyond_the_first_commit_stand_or_fall_with_the_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmgr.daemons.leader.placement.orders.MOST_OPS", 12)
    cluster = Cluster()
    committed_ops: list[Multi] = []
    known = cluster.bench.leader_coordinator.commit

    def commit(multi: Multi, **named: object) -> object:
        committed_ops.append(multi)
        return known(multi, **named)

    monkeypatch.setattr(cluster.bench.leader_coordinator, "commit", commit)
    numbers = [cluster.bench.submitter.submit(1, block=1, queue="batch", rigid=Rigid(processes=1)) for _ in range(5)]
    cluster.bench.advance(1)
    assert set(cluster.members()) == set(numbers)
    places = [multi for multi in committed_ops if multi.name == "PLACE"]
    assert len(places) > 1
    for multi in places:
        assert any(op.path == paths.gangs("default") for op in multi.ops), multi


def test_a_member_that_the_record_lacks_is_in_the_next_one_at_once() -> None:
    cluster = Cluster()
    first, second = cluster.submit(2), cluster.submit()
    record, stat = cluster.record()
    attempts = tuple(one for one in record.attempts if task_of(one[0])[0] != second)
    queues = tuple((node, tuple(one for one in queue if task_of(one[0])[0] != second)) for node, queue in record.queues)
    less = encode_record(replace(record, attempts=attempts, queues=tuple(one for one in queues if one[1]), front=()))
    committed(cluster.bench.outside, _set(paths.gangs("default"), less, stat.version))
    cluster.another_leader()
    assert set(cluster.members()) == {first, second}
    assert cluster.record()[1].version == stat.version + 2
    assert cluster.orders() == []


def test_a_clock_that_no_commit_has_told_of_is_told_by_the_next_one() -> None:
    cluster = Cluster()
    cluster.submit(2)
    _, stat = cluster.record()
    found = cluster.bench.outside.get(paths.gangs("default")).result(60)
    cluster.bench.boot_us["n1"] = 5
    cluster.nodes.register()
    committed(cluster.bench.outside, _set(paths.gangs("default"), found.data, stat.version))  # what the leader sends is refused
    cluster.bench.advance(5)
    record, _ = cluster.record()
    assert (record.clock.node, record.clock.incarnation) == ("n1", 2)


def test_a_job_beside_a_gang_on_a_node_is_crowded_and_members_are_not() -> None:
    machine = [Node(id=0, cores=2), Node(id=1, cores=2)]
    members = [Running(Job(id=at, submit_us=0, processes=4, threads=1), 0, 9, ((0, 0, 2),)) for at in (1, 2)]
    beside = Running(Job(id=3, submit_us=0), 5, 9, ((0, 0, 1),))
    elsewhere = Running(Job(id=4, submit_us=0), 5, 9, ((1, 1, 1),))
    assert fitting([beside, elsewhere], [], machine, members) == ([elsewhere], [beside])


def test_members_that_no_record_has_share_a_tree_though_no_node_of_their_partition_is_there() -> None:
    members = [Running(Job(id=at, submit_us=0, processes=2), 0, 9, ((0, 1, 1),)) for at in (1, 2)]
    for nodes in ([], [Node(id=5, cores=3, partition="other")], [Node(id=at, cores=1) for at in (0, 1)]):
        (gang,) = gangs_of({}, members, nodes)
        assert gang.leaves == ((0, 1, 1),)
        assert set(Carousel(gang).weights) == {1, 2}


def test_a_job_cannot_go_on_where_a_gang_stands_whose_member_is_about_to_leave() -> None:
    state = ClusterState([Node(id=0, cores=2)])
    part = state.partitions["default"]
    member = Running(Job(id=1, submit_us=0, processes=2), 0, 9, ((0, 0, 2),))
    part.gangs.put(Gang("dqt", 1, 0, 0, 2, ((0, 0, 2),), ((0, ((1, 1),)),)))
    part.add_running(member)
    state.job_stopping(member, 1)
    other = Running(Job(id=2, submit_us=0), 0, 9, ((0, 0, 1),))
    assert not part.has_room_for(other)
    assert state.job_went_on(1, 2) == member._replace(start_us=2)
    state.job_ended(1, now=3)
    assert part.has_room_for(other)


def test_what_is_shown_of_members_follows_the_slots() -> None:
    cluster = Cluster()
    wide, narrow, other = cluster.submit(4), cluster.submit(1), cluster.submit(1)
    placer = cluster.bench.leader.placer
    seen: dict[int, set[str]] = {wide: set(), narrow: set(), other: set()}
    for _ in range(8):
        cluster.bench.advance(QUANTUM_US / 1e6)
        view = placer.view()
        doing = {number: view.jobs[number, 0].state for number in seen}
        assert (doing[wide] == "running") is (doing[narrow] == "suspended")
        for number, state in doing.items():
            seen[number].add(state)
    assert set(map(frozenset, seen.values())) == {frozenset({"running", "suspended"})}
    assert placer.view().jobs[wide, 0].turns == "n1-n2 with 2 others: 1 slot of 2, slowdown 2.0 (at most 2)"
    assert placer.view().jobs[narrow, 0].turns.endswith("with 1 other: 1 slot of 2, slowdown 2.0 (at most 2)")
    gang = placer.view().partitions["default"].gang
    assert gang == GangSummary(generation=cluster.record()[1].version, jobs=3, max_tqlb=2, reference="n1", error_us=50)
    assert cluster.bench.count(cluster.bench.metrics.gang_jobs) == 3
    explained = answers.explain(snapshot_of(cluster), narrow, None)
    assert [why.detail for why in explained.why if why.what == "gang"] == [placer.view().jobs[narrow, 0].turns]
    for number in (wide, narrow, other):
        cluster.end(number)
    assert placer.view().partitions["default"].gang is None
    assert cluster.bench.count(cluster.bench.metrics.gang_max_tqlb) == 0


def snapshot_of(cluster: Cluster) -> ClusterSnapshot:
    leader = cluster.bench.leader
    facts = replace(leader.snapshot(), placing=leader.placer.view())
    return replace(facts, claimed=on_the_move(claimed_blocks(cluster.bench.outside, ["n1", "n2"], timeout_s=60), facts))


def test_a_job_that_asks_for_no_memory_has_its_part_of_each_node_and_others_find_the_rest() -> None:
    cluster = Cluster(memory_bytes=8 << 30, most_jobs=4)
    wide, narrow = cluster.submit(), cluster.submit(1)
    (_, block, _), (_, small, _) = cluster.running()[wide], cluster.running()[narrow]
    assert (block.allocation.memory_mib, small.allocation.memory_mib) == (1024, 1024)  # of a process: 1/4 of a node's for two of them
    assert cluster.key_of(wide)[1].memory_mib == 2048
    assert cluster.bench.look.read(paths.hold_of("n2", wide, 0, 1), NodeHold).memory_mib == 2048
    shown = {view.id: view.memory_bytes for view in answers.jobs(snapshot_of(cluster))}
    assert shown == {wide: 1 << 30, narrow: 1 << 30}
    assert "a process has 1.0G" in next(why.detail for why in answers.explain(snapshot_of(cluster), wide, None).why if why.what == "gang")
    asks = cluster.submit(2, memory_bytes=7 << 29)
    assert asks not in cluster.running()
    assert "memory or other resources of its nodes do not do" in cluster.reason(asks)
    cluster.end(wide)
    assert asks in cluster.running()
    cluster.another_leader()
    late = cluster.submit(2)
    assert cluster.record()[0].memory_share == 4
    assert late in cluster.running()


def test_jobs_that_ask_for_no_memory_never_lack_it() -> None:
    cluster = Cluster(memory_bytes=1000 << 20, most_jobs=3)
    numbers = [cluster.submit(1) for _ in range(12)]  # 3 jobs on each of 4 cores
    assert set(cluster.running()) == set(numbers)
    over = cluster.submit(1)
    assert over not in cluster.running()
    assert cluster.reason(over).startswith("its cores have 3 jobs each, as many as they may; rmgr policy set dqt --param most_jobs=N")
    found: dict[str, int] = {}
    for node, block, _ in cluster.running().values():
        found[node] = found.get(node, 0) + block.allocation.memory_mib
    assert all(990 <= mib <= 1000 for mib in found.values())


def test_who_asks_for_threads_or_memory_that_no_node_has_waits_and_holds_up_nobody() -> None:
    cluster = Cluster(memory_bytes=8 << 30)
    for fields in ({"cores": 3}, {"memory_bytes": 9 << 30}):
        number = cluster.submit(1, **fields)
        assert number not in cluster.running()
        assert "more than partition default has" in cluster.reason(number)
    assert cluster.submit(1) in cluster.running()
