"""The answers of `jobs`, `nodes`, `queues`, `status`, `explain` and `tasks` about a snapshot."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from rmgr.cli.display.columns import where_or_why
from rmgr.coord.decisions.changing import Change, Doer, amended
from rmgr.coord.decisions.progress import Progress
from rmgr.coord.views.answers import explain, jobs, nodes, queues, status
from rmgr.coord.views.health import allowed_whys, nobody_up, nobody_up_anywhere, room_whys, state_words
from rmgr.coord.views.snapshot import BlockOnNode, ClusterSnapshot
from rmgr.coord.views.submission import task_views
from rmgr.errors import NotFound
from rmgr.model.base import Capacity, Request
from rmgr.model.block import Allocation, BlockData, BlockKey, FailedRange, Fragment, Outcome, PastAttempt
from rmgr.model.node import Drain, EpochRecord, NodeRecord, NodeState, Trouble
from rmgr.model.queue import ClusterSettings, PipelineSpec, QueueSpec, UserLimits
from rmgr.model.states import Reason, State
from rmgr.model.submission import Command, Condition, Dependency, Phase, Rigid, Submission, Tail, Terms, Work
from rmgr.model.views import FaultView, HeldView, NodeView, PartitionView, PlacedView, PlacingView, PolicyView, WhyView

UNTIL_US = 1_700_000_000_000_000
OUT = Trouble(node="n1", incarnation=1, kind="quarantine", reason="slot_not_opened: no memory", since_us=1, until_us=UNTIL_US)
FULL = Trouble(node="n1", incarnation=1, kind="disk", reason="the disk is full", since_us=1)
SUB = Submission(id=42, name="x", user="ann", queue="default", work=Work.COMMAND, command=Command(argv=("echo", "a b")), submitted_us=5)
NODE = NodeRecord(node="n1", incarnation=1, state=NodeState.UP, guid="g1", capacity=Capacity(cores=4, memory_bytes=8 << 30))


def progress(total, *outcomes, complete=True, node="n1"):
    value = Progress()
    value.tail = Tail(next=total, complete=complete)
    if outcomes:
        value.apply(0, Fragment(node=node, base_us=100, outcomes=outcomes), outcomes)
    return value


def claimed(submission=42, first=0, count=2, node="n1", cores=1, done=0):
    key = BlockKey(priority=0, seq=1, submission=submission, first=first, count=count, attempt=1, cores=cores, memory_mib=0)
    return BlockOnNode(node=node, key=key, done=done, claimed_us=50)


def snapshot(**changes):
    values = {
        "submissions": {42: (SUB, progress(4, Outcome(index=0, exit_code=0, elapsed_us=7)))},
        "claimed": (claimed(first=1),),
        "nodes": {"n1": NODE},
        "alive": frozenset({"g1"}),
        "epoch": EpochRecord(epoch=3, leader="w1", since_us=1_000_000),
        "leader_alive": True,
        "watchdogs": 2,
    } | changes
    return ClusterSnapshot(**values)


def test_a_job_counts_every_task_once():
    (job,) = jobs(snapshot())
    assert job.counts == {"INITIAL": 1, "RUNNING": 2, "COMPLETED": 1, "FAILED": 0, "CANCELLED": 0, "HELD": 0, "SUSPENDED": 0}
    assert (job.state, job.nodes, job.command, job.tasks) == (State.RUNNING, ("n1",), "echo 'a b'", 4)
    assert job.started_us == 100


def test_a_placed_job_that_has_not_begun_is_starting_and_no_task_of_it_runs():
    shares = (("n1", 1), ("n2", 1))
    block = replace(claimed(count=1), allocation=Allocation(shares=shares, threads=1), is_starting=True, awaits="n2 to say so")
    record = replace(SUB, rigid=Rigid(processes=2))
    both = {"n1": NODE, "n2": replace(NODE, node="n2", guid="g2")}
    facts = snapshot(
        submissions={42: (record, progress(1))}, claimed=(block,), nodes=both, alive=frozenset({"g1", "g2"}), settings=ClusterSettings()
    )
    (job,) = jobs(facts)
    assert (job.state, job.started_us, job.counts["RUNNING"], job.counts["STARTING"]) == (State.STARTING, 0, 0, 1)
    assert job.detail == "waits for n2 to say so since 1970-01-01T00:00:00Z"
    for position in (None, 0):
        told = explain(facts, 42, position)
        assert told.state is State.STARTING
        assert [why.detail for why in told.why if why.what == "starting"] == [f"placed on n1, n2, {job.detail}"]
    gone = explain(replace(facts, alive=frozenset({"g1"})), 42, 0)
    assert "no Starter answers there" in gone.why[-1].detail
    assert jobs(replace(facts, claimed=(replace(block, is_starting=False),)))[0].state is State.RUNNING
    assert jobs(replace(facts, claimed=(replace(block, stopping="cancelled"),)))[0].state is State.STOPPING


def test_ended_jobs_are_shown_when_asked_for():
    ended = snapshot(submissions={42: (SUB, progress(1, Outcome(index=0, elapsed_us=7)))}, claimed=())
    assert jobs(ended) == []
    (job,) = jobs(ended, ended=True)
    assert (job.state, job.started_us, job.ended_us) == (State.COMPLETED, 100, 107)
    assert jobs(ended, ended=True, user="bob") == []
    assert [job.id for job in jobs(ended, (42, 43))] == [42]


def test_when_an_operator_has_held_or_cancelled_it_is_told_of_him_alone():
    held = replace(SUB, phase=Phase.HELD, reason=Reason.OPERATOR_HOLD, reason_detail="disk is full", by="root", by_us=77)
    (job,) = jobs(snapshot(submissions={42: (held, progress(1))}, claimed=()))
    assert (job.detail, job.by_us) == ("by root: disk is full", 77)
    own = replace(held, reason=Reason.USER_HOLD, by="")
    assert jobs(snapshot(submissions={42: (own, progress(1))}, claimed=()))[0].by_us == 0


def test_a_queue_whose_program_is_gone_says_so_once_all_of_it_has_ended():
    ended = {42: (SUB, progress(1, Outcome(index=0, elapsed_us=7), complete=False))}
    left = snapshot(submissions=ended, claimed=(), ownerless=frozenset({42}))
    (job,) = jobs(left)
    assert (job.state, job.reason, job.detail) == (State.RUNNING, "OWNER_GONE", "owner gone, 1/1 done")
    assert where_or_why(job) == "owner gone, 1/1 done"
    assert 'TaskQueue.attach("taskq-0000000042")' in explain(left, 42, None).why[0].detail
    assert jobs(replace(left, ownerless=frozenset()))[0].reason == ""
    assert jobs(snapshot(ownerless=frozenset({42})))[0].reason == "", "tasks of it run"


@pytest.mark.parametrize(
    ("changes", "state", "reason"),
    [
        ({}, "up", ""),
        ({"alive": frozenset()}, "lost", "its Starter does not answer"),
        ({"nodes": {"n1": replace(NODE, state=NodeState.FENCED, reason="no contact")}}, "fenced", "no contact"),
        ({"nodes": {"n1": replace(NODE, state=NodeState.FENCED, reason="stopped")}}, "down", "stopped"),
        ({"drains": {"n1": Drain(node="n1", reason="fan", user="op", since_us=1)}}, "draining", "fan"),
        ({"drains": {"n1": Drain(node="n1", reason="fan", user="op", since_us=1)}, "claimed": ()}, "drained", "fan"),
        ({"troubles": {"n1": OUT}}, "quarantined", "slot_not_opened: no memory"),
        ({"troubles": {"n1": FULL}}, "draining", "the disk is full"),
        ({"troubles": {"n1": replace(FULL, kind="of a newer release")}, "claimed": ()}, "drained", "the disk is full"),
        ({"troubles": {"n1": replace(OUT, incarnation=0)}}, "up", ""),
        ({"troubles": {"n1": OUT}, "alive": frozenset()}, "lost", "its Starter does not answer"),
    ],
)
def test_a_node_says_what_is_wrong_with_it(changes, state, reason):
    (view,) = nodes(snapshot(**changes))
    assert (view.state, view.reason) == (state, reason)


def test_status_nodes_and_explain_say_alike_until_when_a_node_is_quarantined():
    facts = snapshot(troubles={"n1": OUT}, claimed=(), submissions={42: (SUB, progress(4))})
    words = "quarantined until 2023-11-14T22:13:20Z"
    (view,) = nodes(facts)
    assert (state_words(view), view.until_us, view.trouble) == (words, UNTIL_US, "quarantine")
    told = status(facts, zookeeper={"ok": True}, store={"ok": True}, now_us=1)
    assert not told.healthy
    assert f"node n1 is {words}: slot_not_opened: no memory" in told.problems
    assert (told.nodes["up"], told.nodes["quarantined"]) == (0, 1)
    (why,) = explain(facts, 42, None).why
    assert f"n1 {words} (slot_not_opened: no memory)" in why.detail
    assert "rmgr resume" not in why.detail, "an operator's resume does not end it"


def test_cores_in_use_never_exceed_the_node():
    (view,) = nodes(snapshot(claimed=(claimed(count=200),)))
    assert (view.cores_used, view.cores) == (4, 4)


JOB = replace(SUB, queue="batch", rigid=Rigid(processes=4))
RESERVED = "waits for cores that job 41 holds"


def placing(*waits, ledger=(), **part):
    partition = PartitionView(policy="easy", passes=7, last_pass_s=0.25, **part)
    return PlacingView(partitions={"default": partition}, jobs={(42, index): view for index, view in enumerate(waits)}, ledger=ledger)


def waiting(what="hold", blocker="41", reason=RESERVED, start_us=0):
    return PlacedView(state="waiting", what=what, blocker=blocker, reason=reason, expected_start_us=start_us)


def placed_snapshot(view, tasks=1, **changes):
    return snapshot(**({"submissions": {42: (JOB, progress(tasks))}, "claimed": (), "placing": view} | changes))


def test_a_place_queue_tells_its_policy_and_what_is_held_for_whom():
    held = HeldView(queue="batch", job="42", node="n1", cores=3, expected_start_us=9)
    batch, default = queues(snapshot(placing=placing(ledger=(held,))))
    assert (batch.id, batch.policy, batch.state, batch.held) == ("batch", "easy", "open", (held,))
    assert (default.policy, default.pending, default.running, default.held) == ("fair", 1, 2, ())
    pipelines = (PipelineSpec(partition="default", document="{}", name="classes.toml"),)
    assert queues(snapshot(settings=ClusterSettings(pipelines=pipelines)))[0].policy == "classes.toml"


def test_a_waiting_job_says_what_it_waits_for_and_when_it_is_expected_to_start():
    facts = placed_snapshot(placing(waiting(start_us=77)))
    (job,) = jobs(facts)
    assert (job.state, job.reason, job.detail, job.processes, job.expected_start_us) == (State.INITIAL, "RESOURCES", RESERVED, 4, 77)
    told = explain(facts, 42, None)
    assert (told.why, told.expected_start_us) == ((WhyView(what="hold", id="41", detail=RESERVED),), 77)
    assert jobs(placed_snapshot(placing(waiting("begin"))))[0].reason == Reason.BEGIN_TIME
    routed = explain(placed_snapshot(placing(msgspec.structs.replace(waiting(), route="ss8"))), 42, None).why[1]
    assert (routed.what, routed.id) == ("class", "ss8")


def test_reasons_of_many_jobs_of_one_submission_are_counted():
    facts = placed_snapshot(placing(waiting(start_us=9), waiting(start_us=5), waiting("order", "", "job 40 first")), tasks=3)
    told = explain(facts, 42, None)
    assert [(why.what, why.id, why.detail) for why in told.why] == [
        ("hold", "41", f"2 of its jobs: {RESERVED}"),
        ("order", "default", "1 of its jobs: job 40 first"),
    ]
    assert (told.expected_start_us, explain(facts, 42, 0).expected_start_us, explain(facts, 42, 2).expected_start_us) == (5, 9, 0)


def test_pulled_work_does_not_wait_for_room_where_no_node_is_up():
    facts = {"submissions": {42: (SUB, progress(1))}, "claimed": ()}
    (view,) = jobs(snapshot(alive=frozenset(), **facts))
    assert (view.state, view.reason, view.detail) == (State.INITIAL, Reason.RESOURCES, "no node of partition default is up: rmgr nodes")
    (view,) = jobs(snapshot(**facts))
    assert (view.reason, view.detail) == (Reason.RESOURCES, "")


def test_without_a_leader_a_placed_job_does_not_wait_for_room():
    (view,) = jobs(placed_snapshot(PlacingView(), leader_alive=False))
    assert (view.state, view.reason) == (State.INITIAL, Reason.NO_POLICY)
    assert "no WatchDog leads" in view.detail
    (led,) = jobs(placed_snapshot(PlacingView()))
    assert (led.reason, led.detail) == (Reason.RESOURCES, "only the leader knows, and did not tell")
    (seen,) = jobs(placed_snapshot(placing()))
    assert (seen.reason, seen.detail) == (Reason.RESOURCES, "")


@pytest.mark.parametrize(
    ("facts", "what", "told"),
    [
        (placed_snapshot(PlacingView()), "leader", "only the leader knows"),
        (placed_snapshot(placing(waiting()), leader_alive=False), "leader", "no WatchDog leads"),
        (placed_snapshot(placing(problem="no policy is called 'x'")), "policy", "nobody places here: no policy is called 'x'"),
        (placed_snapshot(placing()), "pass", "the next scheduling pass"),
        (placed_snapshot(placing(waiting()), alive=frozenset()), "nodes", "no node of partition default is up"),
    ],
)
def test_a_job_that_no_pass_has_looked_at_says_so(facts, what, told):
    (why,) = explain(facts, 42, None).why
    assert why.what == what
    assert told in why.detail


def test_a_running_job_shows_all_nodes_of_its_allocation():
    block = replace(claimed(count=1, cores=2), allocation=Allocation(shares=(("n1", 2), ("n2", 2)), threads=1, memory_mib=64))
    n2 = replace(NODE, node="n2", guid="g2")
    facts = placed_snapshot(placing(), claimed=(block,), nodes={"n1": NODE, "n2": n2}, alive=frozenset({"g1", "g2"}))
    assert jobs(facts)[0].nodes == ("n1", "n2")
    assert [(node.cores_used, node.running) for node in nodes(facts)] == [(2, 1), (2, 1)]
    assert nodes(facts)[1].memory_used_bytes == 128 << 20
    assert explain(facts, 42, 0).why[0].detail == "placed on n1, n2, attempt 1"
    assert explain(facts, 42, None).why[0].detail == "1 of 1 task runs on n1, n2"


def test_a_job_that_has_ended_is_remembered_with_all_its_nodes():
    ended = snapshot(submissions={42: (JOB, progress(1, Outcome(index=0, helpers=("n3", "n2"))))}, claimed=())
    assert jobs(ended, ended=True)[0].nodes == ("n1", "n3", "n2")


def test_status_tells_who_places_and_what_went_wrong():
    ok = {"ok": True}
    view = status(snapshot(placing=placing(faults=(("mine", 3, "ZeroDivisionError"),))), zookeeper=ok, store=ok, now_us=1)
    fault = FaultView(policy="mine", count=3, error="ZeroDivisionError")
    assert view.policies == (PolicyView(partition="default", policy="easy", passes=7, last_pass_s=0.25, faults=(fault,)),)
    assert view.healthy
    broken = status(snapshot(placing=placing(problem="no policy is called 'x'")), zookeeper=ok, store=ok, now_us=1)
    assert broken.problems == ("nobody places the jobs of partition default: no policy is called 'x'",)


def test_status_is_healthy_only_with_a_leader_nodes_zookeeper_and_store():
    good = {"ok": True}
    assert status(snapshot(), zookeeper=good, store=good, now_us=3_000_000).healthy
    assert status(snapshot(), zookeeper=good, store=good, now_us=3_000_000).uptime_s == 2.0
    assert "store: is read-only" in status(snapshot(), zookeeper=good, store={"ok": False, "problem": "is read-only"}, now_us=0).problems
    no_leader = status(snapshot(leader_alive=False), zookeeper=good, store=good, now_us=0)
    assert no_leader.leader is None
    assert not no_leader.healthy
    assert not status(snapshot(nodes={}), zookeeper=good, store=good, now_us=0).healthy


def why(view):
    return [(item.what, item.detail) for item in view.why]


def test_other_resources_are_counted_on_nodes_and_named_where_they_are_lacking():
    node = replace(NODE, capacity=replace(NODE.capacity, resources={"gpu": 2}))
    gpu = replace(SUB, id=7, request=Request(resources={"gpu": 1}))
    placed = replace(gpu, queue="batch", rigid=Rigid(processes=2))
    mine = replace(SUB, request=Request(resources={"gpu": 1}))
    for other, block in (
        (gpu, claimed(submission=7, count=9)),
        (placed, replace(claimed(submission=7, count=1), allocation=Allocation(shares=(("n1", 2),), threads=1))),
    ):
        busy = snapshot(submissions={42: (mine, progress(4)), 7: (other, progress(9))}, claimed=(block,), nodes={"n1": node})
        (view,) = nodes(busy)
        assert (view.resources, view.resources_used) == ({"gpu": 2}, {"gpu": 2})
        if other is placed:
            told = dict(why(explain(busy, 42, None)))
            assert told["resources"].startswith("it needs 1 gpu, and on node n1 2 of 2 are in use; ")
    many = {42: (replace(mine, request=Request(resources={"gpu": 3})), progress(4))}
    assert "1 core, 0 MiB, 3 gpu" in why(explain(snapshot(submissions=many, claimed=(), nodes={"n1": node}), 42, None))[0][1]


def test_explain_names_what_blocks():
    waiting = {42: (SUB, progress(4))}
    busy = snapshot(submissions=waiting | {7: (replace(SUB, id=7), progress(9))}, claimed=(claimed(submission=7, count=4),))
    assert ("resources", "the only fitting node is busy; 5 tasks of ann's before it in queue default") in why(explain(busy, 42, None))
    large = {42: (replace(SUB, request=Request(cores=64)), progress(4))}
    assert "none of 1 node up fits 64 cores" in why(explain(snapshot(submissions=large, claimed=()), 42, None))[0][1]
    assert why(explain(snapshot(submissions=waiting, claimed=(), alive=frozenset()), 42, None))[0][0] == "nodes"
    held = {42: (replace(SUB, phase=Phase.HELD, reason="USER_HOLD"), progress(4))}
    assert "rmgr release 42" in why(explain(snapshot(submissions=held, claimed=()), 42, None))[0][1]
    capped = {42: (replace(SUB, max_running=2), progress(4))}
    assert ("limit", "at most 2 of its tasks run at once") in why(explain(snapshot(submissions=capped), 42, None))
    placed = {42: (replace(capped[42][0], queue="batch"), progress(4))}  # its tasks run on the one core of a node each, two of them
    assert why(explain(snapshot(submissions=placed), 42, None))[-1] == ("limit", "at most 2 of its tasks run at once")


def test_explain_says_whose_turn_it_is_and_who_is_at_a_cap():
    bobs = {7: (replace(SUB, id=7, user="bob", priority=9), progress(9))}
    busy = snapshot(submissions={42: (SUB, progress(4))} | bobs, claimed=(claimed(submission=7, count=4),))
    assert why(explain(busy, 42, None)) == [
        ("resources", "the only fitting node is busy; nothing of ann's before it in queue default"),
        ("turn", "2 users wait there, and take turns: ann has fewest cores now (0), and is next"),
    ]
    assert why(explain(busy, 7, None))[-1] == (
        "turn", "2 users wait there, and take turns: ann has fewer cores now (0) than bob (4), and goes first",
    )  # fmt: skip
    root = Doer(name="root", is_operator=True, now_us=1)
    raised = amended(replace(SUB, id=7, user="bob"), Terms(priority=1), root)
    assert isinstance(raised, Change)
    both = {42: (SUB, progress(4)), 7: (raised.record, progress(9)), 41: (replace(SUB, id=41), progress(3))}
    ordered = snapshot(submissions=both, claimed=(claimed(submission=7, count=4),))
    before = "5 tasks that an operator raised and 3 tasks of ann's before it in queue default"
    assert why(explain(ordered, 42, None))[0] == ("resources", f"the only fitting node is busy; {before}")
    assert why(explain(ordered, 7, None))[-1] == ("resources", "the only fitting node is busy; nothing before it in queue default")
    ordered = replace(ordered, submissions=both | {41: (replace(SUB, id=41, user="cem"), progress(3))})
    before = "5 tasks that an operator raised before it in queue default"
    assert why(explain(ordered, 42, None))[0] == ("resources", f"the only fitting node is busy; {before}")
    fifo = ClusterSettings(queues=(QueueSpec(name="default", order="fifo"),))
    assert why(explain(replace(busy, settings=fifo), 42, None)) == [
        ("resources", "the only fitting node is busy; 5 tasks before it in queue default")
    ]
    limited = replace(busy, settings=ClusterSettings(limits=UserLimits(cores_of={"bob": 4})))
    assert why(explain(limited, 7, None))[-1] == ("limit", "bob has 4 of the 4 cores that bob may have at once; rmgr limits bob")
    assert "limit" not in dict(why(explain(limited, 42, None)))
    [fails] = jobs(replace(busy, waiting={7: 9}, claimed=()), (7,))
    assert (fails.state, fails.reason) == (State.INITIAL, "BACKOFF")
    assert why(explain(replace(busy, waiting={7: 5}), 42, None)) == [
        ("resources", "the only fitting node is busy; nothing of ann's before it in queue default")
    ], "who waits to be tried again stands in no queue"
    paused = replace(busy, submissions=bobs | {42: (replace(SUB, backoff_us=30_000_000), progress(4))}, waiting={42: 1})
    again = "1 task to run again after a failed attempt; the first pause is 30s, each further one twice as long, up to 64 times (--backoff)"
    assert dict(why(explain(paused, 42, None)))["backoff"] == again
    large = {9: (replace(SUB, id=9, user="cem", request=Request(cores=4)), progress(1))}
    never = replace(busy, submissions=large, settings=ClusterSettings(limits=UserLimits(max_cores_per_user=3)))
    told = "each of its tasks takes 4 cores, and cem may have 3 at once, so it does not start"
    typed = "rmgr update 9 -c 3; or an operator: rmgr admin limit cem --cores 4"
    assert why(explain(never, 9, None))[-1] == ("limit", f"{told}; {typed}")
    assert explain(never, 9, None).reason == "LIMIT"
    [waits] = jobs(never, (9,))
    assert (waits.reason, waits.detail) == ("LIMIT", "cem has 0 of 3 cores, it needs 4")


def test_explain_names_the_dependency():
    waits = replace(SUB, phase=Phase.HELD, reason=Reason.DEPENDENCY, after=(Dependency(condition=Condition.OK, submission=7),))
    facts = snapshot(submissions={42: (waits, progress(1)), 7: (replace(SUB, id=7), progress(1))}, claimed=())
    assert why(explain(facts, 42, None)) == [("dependency", "waits for ok:7; it is INITIAL")]


def test_explain_of_a_task():
    facts = snapshot(submissions={42: (replace(SUB, array="1-7:2"), progress(4, Outcome(index=0)))})
    assert (explain(facts, 42, 0).id, explain(facts, 42, 0).state) == ("42_1", State.COMPLETED)
    assert (explain(facts, 42, 1).id, explain(facts, 42, 1).state) == ("42_3", State.RUNNING)
    assert explain(facts, 42, 3).state is State.INITIAL
    with pytest.raises(NotFound, match="no task 42_9: 42 has 4 tasks"):
        explain(facts, 42, 9)
    with pytest.raises(NotFound, match="no submission 1"):
        explain(facts, 1, None)


def test_tasks_tell_their_attempts():
    past = PastAttempt(attempt=1, node="n9", reason=Reason.NODE_LOST, started_us=1, ended_us=2, error="node n9 was lost")
    key = BlockKey(priority=0, seq=1, submission=42, first=1, count=1, attempt=2, cores=1, memory_mib=0)
    failed = FailedRange(
        queue="default", seq=1, priority=0, cores=1, memory_mib=0, reason=Reason.EXIT_CODE, block=b"", node="n2", exit_code=3
    )
    views = task_views(
        replace(SUB, array="10-50:10"),
        Tail(next=5),
        fragments=[
            (Fragment(node="n1", attempt=2, base_us=100), [Outcome(index=0, started_us=5, elapsed_us=7, past=(past,), exit_code=0)])
        ],
        claimed=[("n1", key, BlockData(claimed_us=9, past=(past,)))],
        waiting=[(2, 1, 1, failed)],
        pending=[(replace(key, first=3), BlockData(past=(past,)))],
    )
    assert [view.id for view in views] == ["42_10", "42_20", "42_30", "42_40", "42_50"]
    assert [view.state for view in views] == [State.COMPLETED, State.RUNNING, State.INITIAL, State.INITIAL, State.INITIAL]
    assert [(a.attempt, a.node, a.reason) for a in views[0].attempts] == [(1, "n9", "NODE_LOST"), (2, "n1", "")]
    assert (views[0].started_us, views[0].ended_us) == (105, 112)
    assert [len(view.attempts) for view in views] == [2, 2, 1, 1, 0]
    assert (views[2].reason, views[2].exit_code) == ("BACKOFF", 3)
    assert views[1:3] == task_views(
        replace(SUB, array="10-50:10"), Tail(next=5), fragments=[], claimed=[("n1", key, BlockData(claimed_us=9, past=(past,)))],
        waiting=[(2, 1, 1, failed)], first=1, limit=2,
    )


def test_a_partition_without_a_node_that_takes_work_says_which_are_drained_and_what_to_type():
    def view(name, state, reason=""):
        return NodeView(id=name, state=state, cores=4, cores_used=1, memory_bytes=0, reason=reason)

    drained = [view("n1", NodeState.DRAINED, "disk"), view("n2", NodeState.DRAINING, "disk")]
    lost = view("n3", NodeState.FENCED)
    assert nobody_up(drained, "big") == "no node of partition big is up: n1 drained (disk), n2 draining (disk): rmgr resume n1"
    assert "n3 fenced: start their Starters, or rmgr resume n1; rmgr nodes" in nobody_up([*drained, lost], "big")
    assert "n3 fenced: start their Starters; rmgr nodes" in nobody_up([lost], "big")
    assert "it has none yet" in nobody_up([], "big")
    assert "rmgr resume n1" in nobody_up_anywhere([*drained, lost])
    assert "rmgr starter" in nobody_up_anywhere([lost])
    (told,) = allowed_whys([*drained, lost], Rigid(nodelist=("n1", "x")))
    assert told.detail == "n1 is drained (disk), 3 of its 4 cores free; x is not known"
    assert allowed_whys(drained, Rigid()) == []

    up = [view("n4", NodeState.UP), view("n5", NodeState.UP)]
    two = Request(cores=2)
    assert room_whys([*drained, *up], two, Rigid(processes=4), "big") == []
    (told,) = room_whys([*drained, lost, *up], two, Rigid(processes=5), "big")
    assert told.detail == (
        "the nodes that are up have room for 4 of its 5 processes, even when they are empty; "
        "n1 drained (disk), n2 draining (disk), n3 fenced: rmgr resume n1"
    )
    (told,) = room_whys([lost, *up], two, Rigid(processes=3, nodes=3), "big")
    assert "too few nodes are up for 3 processes, spread over 3 nodes" in told.detail
    assert "n3 fenced: start" in told.detail
    (told,) = room_whys(up, Request(cores=5), Rigid(), "big")  # its node came back with fewer cores
    assert told.detail == "the nodes that are up have room for 0 of its 1 process, even when they are empty: rmgr nodes"
