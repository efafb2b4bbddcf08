"""Requests of users and policies for running jobs, and their outcome: moved, refused, stopped in place, resumed; after fail-overs, too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from rmgr.coord.ops import leader as leader_ops
from rmgr.coord.ops import membership
from rmgr.coord.ops import place as place_ops
from rmgr.coord.ops import work as ops
from rmgr.coord.protocol import keys, paths
from rmgr.coord.protocol.multi import Delete, Gone, Multi, Set
from rmgr.coord.protocol.records import decode_block
from rmgr.daemons.leader.placement import pipeline, requests
from rmgr.daemons.leader.placement.pipeline import configuration
from rmgr.errors import StoreUnavailable
from rmgr.model.base import Request
from rmgr.model.block import BlockKey, StopKind, StopRequest
from rmgr.model.node import Drain, InboxOrder, OrderKind
from rmgr.model.queue import ClusterSettings, Dispatch, QueueSpec
from rmgr.model.states import Reason
from rmgr.model.submission import Rigid
from rmgr.sched.draft import Draft
from rmgr.sched.pipeline import Configuration, configured
from rmgr.sched.plan import Accepted, Why
from rmgr.sched.policy import Cause, Stage
from rmgr.sched.state.cluster import ClusterState
from rmgr.sim.replay import verify
from rmgr.sim.runs.output import read_log
from tests.harness.leader_bench import Bench, committed
from tests.property.test_leader_killed import Mortal
from tests.property.test_placing_failover import stop

SETTINGS = ClusterSettings(queues=(QueueSpec(name="default"), QueueSpec(name="batch", dispatch=Dispatch.PLACE, policy="first_fit")))


class Cluster:
    """Three nodes of two cores, a leader, jobs that were placed by it."""

    def __init__(self, *, dies_at: int = -1, after: bool = False, settings: ClusterSettings = SETTINGS) -> None:
        self.bench = Bench(settings)
        self.mortal = Mortal(self.bench.tree, auto=True)
        self.bench.lead(self.mortal)
        self.mortal.names.clear()
        self.mortal.left, self.mortal.after = dies_at, after
        self.leaders = 1
        self.nodes = self.bench.starter("n1", "n2", "n3")
        self.policy: Stage | None = None  #: in place of first_fit, which the logs name
        self.is_one_pipeline = True  #: in all logs
        self.rest()

    def rest(self) -> None:
        """Until the leader, or its successor, has nothing to do."""
        self.bench.advance(1)
        if self.mortal.dead and self.leaders == 1:
            self.another_leader()

    def submit(self, processes: int = 2, count: int = 1, rigid: Rigid | None = None, **fields: object) -> int:
        request, rigid = Request(time_limit_us=60_000_000), rigid or Rigid(processes=processes)
        number = self.bench.submitter.submit(count, block=1, queue="batch", rigid=rigid, request=request, **fields)
        self.rest()
        return number

    def where(self, number: int) -> dict[str, int]:
        """Its nodes with its processes on each, {} when it does not run."""
        for node in ("n1", "n2", "n3"):
            for key in self.bench.look.keys(paths.running_node(node)):
                if key.submission == number:
                    found = self.bench.outside.get(paths.running_block(node, key)).result(60)
                    allocation = decode_block(found.data).allocation
                    return dict(allocation.shares)
        return {}

    def ask(self, guid: str, kind: StopKind, number: int = 0, **fields: object) -> None:
        committed(self.bench.outside, leader_ops.ask_leader(guid, StopRequest(kind=kind, submission=number, **fields)))
        self.rest()

    def drain(self, node: str) -> None:
        committed(self.bench.outside, membership.drain(Drain(node=node, reason="r", user="u", since_us=1), None))
        self.rest()

    def answer(self, guid: str) -> StopRequest | None:
        request = self.bench.look.read(paths.request(guid), StopRequest)
        return request if request.answered else None

    def orders(self) -> list[tuple[str, str, InboxOrder]]:
        return self.bench.look.orders("n1", "n2", "n3")

    def obey(self) -> None:
        """Every job that was asked to gives its nodes up."""
        for node, guid, order in self.orders():
            stop(self.nodes, node, self.key_of(node, order.submission), guid)
        self.rest()

    def refuse(self, why: str) -> None:
        for node, guid, order in self.orders():
            key = self.key_of(node, order.submission)
            found = self.bench.outside.get(paths.running_block(node, key)).result(60)
            data = msgspec.structs.replace(decode_block(found.data), story=(why,), stamp=guid)
            committed(self.nodes.coordinator, place_ops.note(node, self.nodes.versions[node], key, data, found.version, orders=(guid,)))
        self.rest()

    def end(self, number: int) -> None:
        node = next(iter(self.where(number)))
        self.nodes.complete(node, self.key_of(node, number))
        self.rest()

    def give_back(self, number: int) -> str:
        """RETURN, as a Starter commits it whose disk is full. Returns its node."""
        node = next(iter(self.where(number)))
        key = self.key_of(node, number)
        found = self.bench.outside.get(paths.running_block(node, key)).result(60)
        version, data = self.nodes.versions[node], decode_block(found.data)
        multi, _ = ops.give_back(node, version, "batch", key, data, found.version, first=key.first, name="RETURN")
        committed(self.nodes.coordinator, multi)
        return node

    def another_leader(self) -> None:
        self.leaders += 1
        self.bench.leader.close()
        self.bench.lead(self.bench.connect())
        self.bench.advance(1)

    def block(self, node: str, number: int) -> str:
        """Its name there."""
        return paths.block_name(self.key_of(node, number))

    def key_of(self, node: str, number: int) -> BlockKey:
        return next(key for key in self.bench.look.keys(paths.running_node(node)) if key.submission == number)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """What its leaders wrote down gives their decisions again, whatever was asked of jobs meanwhile."""
    made = Cluster()
    try:
        yield made
        made.bench.leader.close()
        logs: dict[tuple[int, int], list[str]] = {}
        for key in made.bench.store.keys(keys.events_of()):
            logs.setdefault(keys.parse_events(key)[:2], []).append(key)
        passes = 0
        for at, pieces in logs.items() if made.is_one_pipeline else ():
            file = tmp_path / f"{at[0]}-{at[1]}.jsonl"
            file.write_bytes(b"".join(value[0] for key in pieces if (value := made.bench.store.get(key)) is not None))
            passes += verify(read_log(file), configured("first_fit").stages if made.policy is None else (made.policy,)).passes
        assert passes or not made.is_one_pipeline
    finally:
        made.bench.close()


@pytest.mark.parametrize("fails_over", [False, True])
def test_a_job_that_is_asked_goes_on_elsewhere_and_who_asked_is_told(cluster: Cluster, fails_over: bool) -> None:
    job = cluster.submit()
    assert cluster.where(job) == {"n1": 2}
    cluster.ask("g1", StopKind.MIGRATE, job, attempt=1, detail="asked by u")
    ((node, guid, order),) = cluster.orders()
    block = cluster.block("n1", job)
    assert (node, guid, order.order, order.extra) == ("n1", "g1", OrderKind.CHECKPOINT, {"then": "stop", "why": "user", "block": block})
    assert cluster.answer("g1") is None
    if fails_over:
        cluster.another_leader()
        assert len(cluster.orders()) == 1, "the successor knows that it was asked"
    cluster.obey()
    assert cluster.where(job) == {"n2": 2}, "its next start is not where it was"
    answer = cluster.answer("g1")
    assert (answer.error, answer.left, [one[:2] for one in answer.done]) == ("", (), [(job, 0)])
    cluster.ask("g2", StopKind.MIGRATE, job, attempt=2, to="n3")
    if fails_over:
        cluster.another_leader()
    cluster.obey()
    assert cluster.where(job) == {"n3": 2}
    cluster.ask("g3", StopKind.MIGRATE, job, attempt=2)
    again = cluster.answer("g3")
    assert (again.error, cluster.orders()) == ("", []), "that attempt has moved already"
    cluster.ask("g4", StopKind.MIGRATE, job)
    cluster.obey()
    assert cluster.where(job) == {"n1": 2}, "where it was to go before counts no more"


@pytest.mark.parametrize("fails_over", [False, True])
def test_who_asks_while_a_job_is_being_stopped_says_where_it_goes(cluster: Cluster, fails_over: bool) -> None:
    job = cluster.submit()
    cluster.ask("g1", StopKind.MIGRATE, job, attempt=1)
    cluster.ask("g2", StopKind.MIGRATE, job, attempt=1, to="n3")
    cluster.ask("g3", StopKind.MIGRATE, job, attempt=1)
    cluster.ask("g4", StopKind.MIGRATE, job, attempt=1, to="nowhere")
    refused = cluster.answer("g4")
    assert refused.code == "NOT_FOUND"
    assert [guid for _, guid, _ in cluster.orders()] == ["g1"], "it is asked once"
    if fails_over:
        cluster.another_leader()
    cluster.obey()
    assert cluster.where(job) == {"n3": 2}
    for guid in ("g1", "g2", "g3"):
        answer = cluster.answer(guid)
        assert (answer.error, [one[:2] for one in answer.done]) == ("", [(job, 0)])
    cluster.ask("g5", StopKind.MIGRATE, job, attempt=1, to="n2")
    late = cluster.answer("g5")
    assert (late.code, "attempt 2 runs on n3, not on n2" in late.error) == ("CONFLICT", True), late.error


def test_a_successor_does_not_refuse_a_request_for_a_job_that_is_just_between_two_nodes(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = cluster.submit()
    cluster.ask("g1", StopKind.MIGRATE, job, attempt=1)
    cluster.bench.leader.close()
    ((node, guid, _),) = cluster.orders()
    successor = cluster.bench.connect()
    children = successor.children

    def stopped_meanwhile(path: str, *args: object, **named: object) -> object:
        if path == paths.running_node(node) and cluster.where(job):
            stop(cluster.nodes, node, cluster.key_of(node, job), guid)
        return children(path, *args, **named)

    monkeypatch.setattr(successor, "children", stopped_meanwhile)
    cluster.bench.lead(successor)
    cluster.bench.advance(3)
    answer = cluster.answer("g1")
    assert answer is not None
    assert (answer.error, [one[:2] for one in answer.done], cluster.where(job)) == ("", [(job, 0)], {"n2": 2})


def test_what_cannot_be_asked_is_refused_at_once_with_the_reason(cluster: Cluster) -> None:
    wide, once = cluster.submit(4), cluster.submit(1, resubmit=False)
    cluster.drain("n2")
    waiting = cluster.submit(6)
    for at, (fields, code, words) in enumerate(
        [
            ({"number": once}, "CONFLICT", "--no-requeue"),
            ({"number": wide, "to": "nowhere"}, "NOT_FOUND", "no node 'nowhere'"),
            ({"number": wide, "to": "n2"}, "CONFLICT", "takes nothing new"),
            ({"number": wide, "to": "n3"}, "INFEASIBLE", "too small"),
            ({"number": wide}, "INFEASIBLE", "no other open node"),
            ({"number": waiting}, "CONFLICT", "does not run"),
            ({"number": 99}, "CONFLICT", "no placed job"),
        ]
    ):
        cluster.ask(f"g{at}", StopKind.MIGRATE, **fields)
        answer = cluster.answer(f"g{at}")
        assert (answer.code, words in answer.error, answer.done) == (code, True, ()), answer.error
        assert answer.hint
    assert cluster.orders() == []


def test_tasks_of_an_array_have_the_numbers_that_their_user_knows(cluster: Cluster) -> None:
    tasks = cluster.submit(1, count=2, array="3,7", resubmit=False)
    for index, shown in enumerate(("3", "7")):
        cluster.ask(f"g{index}", StopKind.MIGRATE, tasks, index=index)
        answer = cluster.answer(f"g{index}")
        assert answer.error.startswith(f"job {tasks}_{shown} was submitted with --no-requeue"), answer.error


def test_a_drained_node_is_emptied_but_for_what_may_not_move(cluster: Cluster) -> None:
    first, once = cluster.submit(1), cluster.submit(1, resubmit=False)
    assert cluster.where(first) == cluster.where(once) == {"n1": 1}
    cluster.ask("g1", StopKind.VACATE, node="n1")
    assert cluster.orders() == [], "nobody has drained it yet"
    cluster.drain("n1")
    ((_, _, order),) = cluster.orders()
    assert order.extra["why"] == "drain"
    cluster.obey()
    assert cluster.where(first) == {"n2": 1}
    answer = cluster.answer("g1")
    assert [one[:2] for one in answer.done] == [(first, 0)]
    assert [(one[:2], "--no-requeue" in one[2]) for one in answer.left] == [((once, 0), True)]


@pytest.mark.parametrize("fails_over", [False, True])
def test_a_job_that_refuses_goes_on_and_is_counted_once_its_nodes_are_its_own_again(cluster: Cluster, fails_over: bool) -> None:
    job, other, last = cluster.submit(2), cluster.submit(2), cluster.submit(2)
    cluster.ask("g1", StopKind.MIGRATE, job, to="n2")
    taker = cluster.submit(2)
    assert cluster.where(taker) == {"n1": 2}, "it was given the nodes that the first is to leave, and waits there"
    cluster.refuse("checkpoint refused: the data store is away")
    answer = cluster.answer("g1")
    assert answer.code == "CONFLICT"
    assert "the data store is away" in answer.error
    if fails_over:
        cluster.another_leader()
    cluster.end(taker)
    late = cluster.submit(2)
    assert cluster.where(late) == {}, "no node has room: the first one runs"
    cluster.end(job)
    assert cluster.where(late) == {"n1": 2}
    for number in (late, other, last):
        cluster.end(number)


def test_a_checkpoint_is_stored_or_said_why_not(cluster: Cluster) -> None:
    job = cluster.submit()
    cluster.ask("g1", StopKind.CHECKPOINT, job, grace_us=5_000_000)
    ((node, guid, order),) = cluster.orders()
    block = cluster.block("n1", job)
    assert (node, guid, order.extra) == ("n1", "g1", {"then": "go-on", "why": "user", "grace_us": "5000000", "block": block})
    cluster.another_leader()
    assert [entry[1] for entry in cluster.orders()] == ["g1"]
    cluster.bench.store.put(keys.Checkpoint(sub=job, index=0, attempt=1, n=1).key, b"{}")
    cluster.refuse("checkpoint 1.1: 3 files, 12 bytes")
    cluster.rest()
    answer = cluster.answer("g1")
    assert [one[2] for one in answer.done] == ["checkpoint 1.1: 3 files, 12 bytes"]
    cluster.ask("g2", StopKind.CHECKPOINT, job)
    cluster.refuse("not stored: 2 GiB are more than 1 GiB")
    cluster.rest()
    answer = cluster.answer("g2")
    assert (answer.code, "2 GiB are more than 1 GiB" in answer.error, answer.done) == ("CONFLICT", True, ())


def test_a_store_that_goes_away_behind_the_order_is_not_told_as_if_the_job_was_not_asked(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object, **__: object) -> None:
        raise StoreUnavailable("it is away")

    job = cluster.submit()
    cluster.ask("g1", StopKind.CHECKPOINT, job)
    with monkeypatch.context() as patch:
        patch.setattr(requests, "newest_checkpoint", away)
        cluster.refuse("checkpoint 1.1: 3 files, 12 bytes")
        cluster.bench.advance(1)
        cluster.ask("g2", StopKind.CHECKPOINT, job)
    asked, unasked = cluster.answer("g1"), cluster.answer("g2")
    assert asked.error.endswith("was asked to save its state; whether that is stored is not known: it is away")
    assert unasked.error.endswith("is not asked to save its state: it is away")


@pytest.mark.parametrize("kind", [StopKind.CHECKPOINT, StopKind.MIGRATE])
def test_a_block_that_cannot_be_read_answers_whoever_asked(cluster: Cluster, kind: StopKind) -> None:
    job = cluster.submit()
    cluster.ask("g1", kind, job)
    ((node, guid, _),) = cluster.orders()
    spoil = Set(paths.running_block(node, cluster.key_of(node, job)), b"\xc1", -1)
    obeyed = Delete(paths.inbox(node, guid), -1)
    committed(cluster.nodes.coordinator, Multi(name="SPOILT", ops=(spoil, obeyed), proof=Gone(paths.inbox(node, guid))))
    cluster.bench.advance(5)
    answer = cluster.answer("g1")
    assert "its block cannot be read" in answer.error


def test_a_job_that_is_lost_while_it_is_being_stopped_is_waited_for_and_one_that_ends_is_told(cluster: Cluster) -> None:
    lost, ended = cluster.submit(), cluster.submit()
    for guid, job in (("g1", lost), ("g2", ended)):
        cluster.ask(guid, StopKind.MIGRATE, job, attempt=1)
    cluster.nodes.fail("n1", cluster.key_of("n1", lost), "batch", reason=Reason.NODE_LOST)
    cluster.end(ended)
    cluster.bench.advance(5)
    answer, other = cluster.answer("g1"), cluster.answer("g2")
    assert (answer.error, [one[:2] for one in answer.done]) == ("", [(lost, 0)])
    assert "it has ended, or is held" in other.error


def test_who_asks_for_a_checkpoint_is_told_of_it_when_the_job_ends_as_its_answer(cluster: Cluster) -> None:
    job = cluster.submit()
    cluster.ask("g1", StopKind.CHECKPOINT, job, attempt=1)
    cluster.bench.store.put(keys.Checkpoint(sub=job, index=0, attempt=1, n=2).key, b"{}")
    cluster.obey()
    cluster.rest()
    answer = cluster.answer("g1")
    assert (answer.error, [one[2] for one in answer.done]) == ("", ["checkpoint 1.2 is stored"])
    assert cluster.where(job), "it runs again"


@pytest.mark.parametrize("fails_over", [False, True])
def test_a_moved_job_waits_for_other_nodes_as_long_as_there_are_any(cluster: Cluster, fails_over: bool) -> None:
    job, others = cluster.submit(2), [cluster.submit(2), cluster.submit(2)]
    cluster.ask("g1", StopKind.MIGRATE, job)
    cluster.obey()
    if fails_over:
        cluster.another_leader()
    view = cluster.bench.leader.placer.view().jobs[(job, 0)]
    assert (view.state, "asked to leave n1" in view.reason) == ("waiting", True), view
    for node in ("n2", "n3"):
        cluster.drain(node)
    assert cluster.where(job) == {"n1": 2}, "no other node takes anything any more"
    assert [cluster.where(other) for other in others] == [{"n2": 2}, {"n3": 2}]


def asked_all_day(**fields: int | bool) -> tuple[list[dict[str, int]], list[tuple[str, bool]], Cluster]:
    """(where each job has ended up, what who asked was told, the cluster) after a day of moves and refusals."""
    cluster = Cluster(**fields)
    try:
        first, second, third = cluster.submit(2), cluster.submit(1), cluster.submit(1)
        cluster.ask("g1", StopKind.MIGRATE, first, attempt=1)
        cluster.obey()
        cluster.ask("g2", StopKind.MIGRATE, second, attempt=1, to="n1")
        cluster.refuse("no")
        cluster.drain("n2")
        cluster.ask("g3", StopKind.VACATE, node="n2")
        cluster.obey()
        cluster.ask("g4", StopKind.MIGRATE, third, attempt=99)
        cluster.obey()
        answers = [cluster.answer(guid) for guid in ("g1", "g2", "g3", "g4")]
        told = [(answer.code, bool(answer.done)) for answer in answers if answer is not None]
        return [cluster.where(number) for number in (first, second, third)], told, cluster
    finally:
        cluster.bench.close()


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_leader_may_die_at_any_commit_of_what_it_was_asked(after: bool) -> None:
    where, told, undisturbed = asked_all_day()
    assert len(told) == 4
    for at in range(undisturbed.mortal.names.total()):
        other, others, cluster = asked_all_day(dies_at=at, after=after)
        assert cluster.leaders == 2, at
        assert (other, len(others)) == (where, 4), at


def test_a_node_that_gives_jobs_back_unbegun_is_left_alone_for_longer_and_longer(cluster: Cluster) -> None:
    others = [cluster.submit(), cluster.submit()]
    job = cluster.submit()
    assert cluster.where(job) == {"n3": 2}
    for rest_s in (1, 2, 4):
        assert cluster.give_back(job) == "n3"
        cluster.bench.advance(rest_s - 0.1)
        assert cluster.where(job) == {}
        assert [node for node, _ in cluster.bench.leader.placer.view().partitions["default"].resting] == ["n3"]
        cluster.bench.advance(0.2)
        assert cluster.where(job) == {"n3": 2}
    cluster.give_back(job)  # 8 s
    cluster.end(others[0])
    assert cluster.where(job) == {"n1": 2}
    last = cluster.submit()
    cluster.bench.advance(5)
    assert cluster.where(last) == {}
    cluster.bench.advance(2)
    assert cluster.where(last) == {"n3": 2}


def test_a_node_rests_for_a_second_again_when_it_was_well_for_a_while_and_not_for_jobs_that_end(cluster: Cluster) -> None:
    others = [cluster.submit(), cluster.submit()]
    job = cluster.submit()
    cluster.give_back(job)
    cluster.bench.advance(1.1)
    cluster.bench.advance(20)
    cluster.give_back(job)
    cluster.bench.advance(1.1)
    assert cluster.where(job) == {"n3": 2}
    cluster.end(others[1])
    cluster.end(job)
    assert not cluster.bench.leader.placer.view().partitions["default"].resting


__all__ = ["cluster"]


class Pausing:
    """Whoever waits gets the nodes of the first that runs; who was stopped goes on when there is room again."""

    name = "pausing"

    def plan(self, draft: Draft, causes: frozenset[Cause]) -> None:
        for job in list(draft.by_arrival()):
            if not isinstance(draft.start(job.id, Why("x", "fits")), Accepted):
                draft.suspend(next(draft.running()).job.id, Why("x", "gives way"))
                draft.start(job.id, Why("x", "fits now"))
        for stopped in draft.suspended():
            draft.resume(stopped.run.job.id, Why("x", "goes on"))


@pytest.fixture
def pausing(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], ClusterState]:
    """Lets `Pausing` place from now on, or not any more; also under a leader that has just taken over."""
    stage = Stage(Pausing(), ("default",))

    def configured_so(settings: ClusterSettings, partition: str) -> Configuration:
        found = configuration(settings, partition)
        return found if cluster.policy is None else replace(found, stages=(stage,), policies=("pausing",))

    monkeypatch.setattr(pipeline, "configuration", configured_so)

    def lead(serves: bool = True) -> ClusterState:
        cluster.policy = stage if serves else None
        placer = cluster.bench.leader.placer
        placer.settings_changed()
        cluster.bench.advance(1)
        return placer.state

    return lead


@pytest.mark.parametrize("how", ["policy set", "policy set, then a fail-over", "a fail-over, and its cores are free"])
def test_a_job_goes_on_whose_policy_has_left_since_it_stopped_it(
    cluster: Cluster, pausing: Callable[[bool], ClusterState], how: str
) -> None:
    """At once where its cores are free, else as soon as they are, before whoever waits."""
    cluster.is_one_pipeline = False
    pausing(True)
    first, _, _, fourth = (cluster.submit(2) for _ in range(4))
    assert [order.order for _, _, order in cluster.orders()] == [OrderKind.SUSPEND]
    if "free" in how:
        cluster.bench.leader.close()
        cluster.end(fourth)
        cluster.policy = None
        cluster.another_leader()
        state = pausing(False)
    else:
        state = pausing(False)
        if "fail-over" in how:
            cluster.another_leader()
            state = pausing(False)
        assert [stopped.run.job.id >> 20 for stopped in state.snapshot().suspended] == [first]
        fifth = cluster.submit(2)
        cluster.end(fourth)
        assert cluster.where(fifth) == {}
        state = pausing(False)
    assert {order.order for _, _, order in cluster.orders()} == {OrderKind.SUSPEND, OrderKind.RESUME}
    snapshot = state.snapshot()
    assert (snapshot.suspended, [run.job.id >> 20 for run in snapshot.running]) == ((), [1, 2, 3])


@pytest.mark.parametrize("fails_over", [False, True])
def test_a_suspended_job_keeps_its_place_gives_its_cores_and_goes_on_under_another_leader(
    cluster: Cluster, pausing: Callable[..., ClusterState], fails_over: bool
) -> None:
    lead = pausing
    lead()
    first, _, _, fourth = (cluster.submit(2) for _ in range(4))
    assert cluster.where(first) == cluster.where(fourth) == {"n1": 2}
    assert [order.order for _, _, order in cluster.orders()] == [OrderKind.SUSPEND]
    before = lead().snapshot()
    if fails_over:
        cluster.another_leader()
        assert lead().snapshot().suspended == before.suspended
    cluster.end(fourth)
    assert {order.order for _, _, order in cluster.orders()} == {OrderKind.SUSPEND, OrderKind.RESUME}
    runs = lead().snapshot()
    assert (runs.suspended, [run.job.id >> 20 for run in runs.running]) == ((), [1, 2, 3])
    if fails_over:
        cluster.another_leader()
        assert lead().snapshot().running == runs.running
