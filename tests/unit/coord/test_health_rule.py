"""The rule of health: problems, warnings, and neither."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from rmgr.coord.decisions import liveness
from rmgr.coord.decisions.progress import Progress
from rmgr.coord.views.answers import explain, nodes, status
from rmgr.coord.views.health import SOON_DAYS, CertificateHolder, ending, of_servers, only_known, parts, with_part
from rmgr.coord.views.snapshot import BlockOnNode, ClusterSnapshot
from rmgr.model.base import Capacity, NodeAttributes, Request
from rmgr.model.block import BlockKey
from rmgr.model.node import Drain, EpochRecord, NodeRecord, NodeState, Trouble
from rmgr.model.queue import ClusterSettings, Dispatch, QueueSpec
from rmgr.model.submission import Command, Phase, Rigid, Submission, Tail, Work
from rmgr.model.views import Level, PartView, StatusView

QUEUES = (QueueSpec(name="default"), QueueSpec(name="wide", dispatch=Dispatch.PLACE, partition="big"))
DRAIN = Drain(node="n1", reason="new fan", user="op", since_us=1)


def record(name: str = "n1", partition: str = "default", **changes: Any) -> NodeRecord:
    made = NodeRecord(
        node=name, incarnation=1, state=NodeState.UP, guid=f"g-{name}", capacity=Capacity(cores=4, memory_bytes=8 << 30),
        attributes=NodeAttributes(partition=partition, features=(name,)), host="h1",
    )
    return replace(made, **changes)


def job(number: int = 42, tasks: int = 3, **changes: Any) -> dict[int, tuple[Submission, Progress]]:
    progress = Progress()
    progress.tail = Tail(next=tasks, complete=True)
    made = Submission(id=number, name="x", user="ann", queue="default", work=Work.COMMAND, command=Command(argv=("true",)))
    return {number: (replace(made, **changes), progress)}


def facts(*records: NodeRecord, **changes: Any) -> ClusterSnapshot:
    known = {each.node: each for each in records or (record(), record("b1", "big"))}
    values = {
        "nodes": known,
        "alive": frozenset(each.guid for each in known.values()),
        "epoch": EpochRecord(epoch=3, leader="w1"),
        "leader_alive": True,
        "watchdogs": 2,
        "settings": ClusterSettings(queues=QUEUES),
    }
    return ClusterSnapshot(**(values | changes))


def told(snapshot: ClusterSnapshot) -> StatusView:
    return status(snapshot, zookeeper={"ok": True}, store={"ok": True}, now_us=1)


def test_a_cluster_without_work_or_with_all_its_cores_busy_is_well() -> None:
    assert told(facts()).parts == ()
    busy = tuple(
        BlockOnNode(node="n1", key=BlockKey(priority=0, seq=at, submission=42, first=at, count=1, attempt=1, cores=1, memory_mib=0))
        for at in range(4)
    )
    assert told(facts(submissions=job(tasks=9), claimed=busy)).parts == ()
    assert told(facts(submissions=job(tasks=9))).parts == ()  # about to be claimed


@pytest.mark.parametrize(
    ("changes", "drained", "level", "fix"),
    [
        ({"state": NodeState.FENCED, "reason": liveness.LOST}, False, "problem", "start its Starter on h1; if the node is not to come"),
        ({"state": NodeState.FENCED, "reason": liveness.LOST}, True, "warning", "rmgr resume n1"),
        ({"state": NodeState.FENCED, "reason": liveness.REVOKED}, False, "warning", "rmgr admin add-node n1"),
        ({"state": NodeState.FENCED, "reason": liveness.STOPPED}, False, "ok", "start its Starter on h1"),
        ({"guid": "gone"}, False, "problem", "rmgr drain n1"),
        ({"guid": "gone"}, True, "warning", "rmgr resume n1"),
        ({}, True, "warning", "rmgr resume n1"),
        ({}, False, "ok", ""),
    ],
)
def test_what_a_node_that_takes_no_work_is_worth(changes: dict[str, Any], drained: bool, level: str, fix: str) -> None:
    drains = {"n1": DRAIN} if drained else {}
    snapshot = facts(record(**changes), record("n2"), record("b1", "big"), alive=frozenset({"g-n1", "g-n2", "g-b1"}), drains=drains)
    view = next(each for each in nodes(snapshot) if each.id == "n1")
    assert (view.level, fix in view.fix) == (level, True)
    assert ("new fan" in view.reason) is drained
    answer = told(snapshot)
    assert answer.healthy is (level != "problem")
    assert [part.fix for part in answer.parts] == ([view.fix] if level != "ok" else [])
    assert len(answer.problems) + len(answer.warnings) == len(answer.parts)


@pytest.mark.parametrize(
    ("kind", "fix"), [("disk", "free space there on h1"), ("store", "rmgr doctor"), ("of a newer release", "Starter's log on h1")]
)
def test_what_a_starter_itself_cannot_do_is_a_problem_unless_its_node_is_drained(kind: str, fix: str) -> None:
    trouble = Trouble(node="n1", incarnation=1, kind=kind, reason="the disk is full", since_us=1)
    sick = facts(record(), record("n2"), record("b1", "big"), troubles={"n1": trouble})
    (part,) = told(sick).parts
    assert (part.level, part.reason, fix in part.fix) == ("problem", "the disk is full", True)
    (part,) = told(replace(sick, drains={"n1": DRAIN})).parts
    assert (part.level, part.reason, part.fix) == ("warning", "new fan; the disk is full", "rmgr resume n1")


def test_what_daemons_have_set_aside_is_told_and_their_nodes_take_work() -> None:
    words = "dispatch.py:210 was set aside: ValueError: x"
    trouble = Trouble(node="n1", incarnation=1, kind="aside", reason=words, since_us=1)
    answer = told(facts(record(), record("n2"), record("b1", "big"), troubles={"n1": trouble}))
    (part,) = answer.parts
    assert (part.kind, part.id, part.state, part.level, part.reason) == ("node", "n1", "up", "warning", words)
    assert "set_aside" in part.fix
    assert answer.healthy
    (part,) = told(facts(record(), record("n2"), record("b1", "big"), aside={"subs.py:7": "KeyError: 1"})).parts
    assert (part.level, part.reason) == ("warning", "the leader has set subs.py:7 aside: KeyError: 1")
    assert part.fix.startswith("report it")


def test_work_that_only_a_node_that_is_out_could_run_is_a_problem_and_explain_says_the_same() -> None:
    drained = facts(record(), record("n2"), record("b1", "big"), drains={"n1": DRAIN})
    assert told(replace(drained, submissions=job(request=Request(cores=1)))).healthy
    snapshot = replace(drained, submissions=job(request=Request(features=("n1",))))
    answer = told(snapshot)
    assert not answer.healthy
    part = next(part for part in answer.parts if part.kind == "partition")
    assert (part.id, part.state, part.fix) == ("default", "stuck", "rmgr explain 42")
    (why,) = explain(snapshot, 42, None).why
    assert part.reason == f"3 tasks wait that no node can run, 42 first: {why.detail}"
    placed = job(queue="wide", rigid=Rigid(nodes=2))
    two = facts(record("b1", "big"), record("b2", "big"), record(), drains={"b2": DRAIN}, submissions=placed)
    part = next(part for part in told(two).parts if part.kind == "partition")
    assert (part.id, part.state, part.level) == ("big", "stuck", "problem")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"request": Request(cores=99_999)}, "fits 99,999 cores"),
        ({"request": Request(features=("nowhere",))}, "features nowhere"),
        ({"request": Request(resources={"gpu": 1})}, "1 gpu"),
        ({"queue": "wide", "rigid": Rigid(processes=9)}, "room for 4 of its 9 processes"),
        ({"queue": "wide", "rigid": Rigid(nodes=2)}, "too few nodes are up"),
        ({"queue": "wide", "rigid": Rigid(nodelist=("unknown",))}, "room for 0 of its 1 process"),
    ],
)
def test_work_that_no_node_ever_could_run_is_its_users_matter_and_not_the_clusters(changes: dict[str, Any], words: str) -> None:
    snapshot = facts(record(), record("n2"), record("b1", "big"), drains={"n2": DRAIN}, submissions=job(**changes))
    answer = told(snapshot)
    assert answer.healthy
    (part,) = (part for part in answer.parts if part.kind != "node")
    assert (part.kind, part.id, part.state, part.fix, part.level) == ("user", "ann", "infeasible", "rmgr explain 42", "warning")
    assert part.reason.startswith("ann: 3 tasks wait that no node can run, 42 first: ")
    assert words in part.reason
    assert part.reason in answer.warnings
    assert any(why.detail and part.reason.endswith(why.detail) for why in explain(snapshot, 42, None).why)


def test_only_who_may_know_of_a_users_work_is_told_what_of_it_no_node_can_run() -> None:
    work = job(request=Request(cores=9)) | job(43, user="ben", request=Request(cores=9))
    answer = told(facts(submissions=work, watchdogs=1))
    hers = only_known(answer, lambda user: user == "ann")
    assert [part.id for part in hers.parts if part.kind == "user"] == ["ann"]
    assert (hers.healthy, hers.problems, len(hers.warnings)) == (True, (), 2)  # and the single WatchDog
    assert only_known(answer, lambda _: True) == answer


def test_a_user_with_a_thousand_impossible_requests_hides_no_other_work() -> None:
    many = {number: job(number, request=Request(cores=number))[number] for number in range(100, 1300)}
    bens = job(2000, user="ben", request=Request(features=("n1",)))
    answer = told(facts(record(), record("n2"), record("b1", "big"), drains={"n1": DRAIN}, submissions=many | bens))
    assert [part.state for part in answer.parts if part.kind in {"user", "partition"}] == ["stuck", "infeasible"]
    users = {number: job(number, user=f"u{number:02}", request=Request(cores=9))[number] for number in range(20)}
    shown = [part for part in told(facts(submissions=users)).parts if part.kind == "user"]
    assert (len(shown), shown[-1].reason) == (9, "work of 12 more users waits that no node can run")


def test_work_of_a_user_whom_every_fitting_node_refuses_is_stuck_and_others_work_is_not() -> None:
    told_by_it = "/root is private: chmod a+x /root"
    trouble = Trouble(node="n1", incarnation=1, kind="users", reason="1 user", since_us=1, refused={"ann": told_by_it})
    snapshot = facts(record(), record("b1", "big"), troubles={"n1": trouble})
    stuck = [part for part in told(replace(snapshot, submissions=job())).parts if part.kind == "user"]
    assert [(part.reason, part.level) for part in stuck] == [
        (f"ann: 3 tasks wait that no node can run, 42 first: node n1 cannot run work of user ann: {told_by_it}", "warning")
    ]
    assert told_by_it in explain(replace(snapshot, submissions=job()), 42, None).why[0].detail
    for fine in (
        replace(snapshot, submissions=job(user="bob")),
        facts(record(), record("n2"), record("b1", "big"), troubles={"n1": trouble}, submissions=job()),
    ):
        assert not [part for part in told(fine).parts if part.kind in {"partition", "user"}]


def test_a_node_that_keeps_a_user_away_whose_own_slots_fail_is_worth_a_warning() -> None:
    why = "slots of ann fail on node n1 again and again"
    trouble = Trouble(node="n1", incarnation=1, kind="users", reason=why, since_us=1, refused={"ann": why}, barred=("ann",))
    answer = told(facts(record(), record("b1", "big"), troubles={"n1": trouble}, submissions=job()))
    assert answer.healthy
    assert [(part.kind, part.id, part.level) for part in answer.parts] == [("node", "n1", "warning"), ("user", "ann", "warning")]
    both = replace(trouble, refused={"ann": why, "ben": "/root is private"})
    assert not told(facts(record(), record("b1", "big"), troubles={"n1": both})).healthy


def test_work_that_waits_for_its_user_its_own_limit_or_its_back_off_is_nobodys_problem() -> None:
    impossible = Request(cores=5)
    assert told(facts(submissions=job(request=impossible, phase=Phase.HELD))).parts == ()
    assert told(facts(submissions=job(request=impossible), waiting={42: 3})).parts == ()
    assert told(facts(submissions=job(request=impossible, phase=Phase.CANCELLED))).parts == ()


def test_a_partition_without_nodes_is_a_warning_until_work_waits_there() -> None:
    lonely = facts(record())
    (part,) = told(lonely).parts
    assert (part.kind, part.id, part.level) == ("partition", "big", "warning")
    assert told(lonely).healthy
    (part,) = told(replace(lonely, submissions=job(queue="wide", rigid=Rigid()))).parts
    assert (part.state, part.level) == ("stuck", "problem")


def test_a_stopped_queue_warns_and_one_that_is_gone_is_a_problem() -> None:
    stopped = ClusterSettings(queues=(replace(QUEUES[0], state="stopped"), QUEUES[1]))
    (part,) = told(facts(settings=stopped, submissions=job())).parts
    assert (part.kind, part.level, part.reason) == ("queue", "warning", "3 tasks wait in queue default, which is stopped")
    (part,) = told(facts(submissions=job(queue="was"))).parts
    assert (part.level, part.reason) == ("problem", "3 tasks wait in queue was, which is not configured")


def test_one_watchdog_alone_warns_and_what_only_the_leader_knows_is_added() -> None:
    alone = told(facts(watchdogs=1))
    assert (alone.healthy, alone.parts[0].kind, alone.parts[0].fix) == (True, "watchdogs", "rmgr watchdog")
    worse = with_part(alone, PartView(kind="nodes", id="", state="mass loss", reason="all at once", fix="rmgr nodes"))
    assert (worse.healthy, worse.problems, worse.warnings) == (False, ("all at once",), alone.warnings)


def test_of_hundreds_of_lost_nodes_some_are_named_and_all_are_counted() -> None:
    many = [record(f"n{number:03}") for number in range(100)]
    answer = told(facts(*many, record("b1", "big"), record("z1"), alive=frozenset({"g-b1", "g-z1"})))
    assert len(answer.problems) == 9
    assert answer.problems[-1] == "lost: 92 more nodes: rmgr nodes"
    assert sum(part.level == Level.PROBLEM for part in answer.parts) == 100


def test_a_cluster_for_calls_alone_is_well_until_work_waits_or_a_node_is_lost() -> None:
    none = facts(nodes={}, alive=frozenset())
    assert told(none).problems == ("no node is up: nothing can run (start one: rmgr starter)",)
    calm = of_servers(told(none))
    assert (calm.healthy, calm.problems, calm.warnings) == (True, (), ("no Starter: submitted work waits",))
    assert "rmgr starter" in calm.parts[0].fix
    waits = of_servers(told(replace(none, submissions=job())))
    assert (waits.healthy, len(waits.problems)) == (False, 1)
    assert waits.problems[0].startswith("3 tasks wait that no node can run, 42 first: no node of partition default is up")
    stopped = facts(record(state=NodeState.FENCED, reason=liveness.STOPPED))
    assert of_servers(told(stopped)).healthy
    for other in (facts(record(guid="gone"), alive=frozenset()), facts(record(), drains={"n1": DRAIN}), facts()):
        assert of_servers(told(other)) == told(other)  # Starters are there: as ever


def test_who_is_told_that_nodes_are_too_small_hears_what_they_keep_for_calls() -> None:
    kept = record(attributes=NodeAttributes(call_cores=2))
    (pulled,) = explain(facts(kept, submissions=job(request=Request(cores=5))), 42, None).why
    assert pulled.detail == "none of 1 node up fits 5 cores, 0 MiB; n1 keeps 2 of its 6 cores for calls"
    places = ClusterSettings(queues=(QueueSpec(name="wide", dispatch=Dispatch.PLACE),))
    (part,) = told(facts(kept, settings=places, submissions=job(queue="wide", rigid=Rigid(processes=5)))).parts
    assert "room for 4 of its 5 processes, even when they are empty; n1 keeps 2 of its 6 cores for calls: rmgr nodes" in part.reason


def test_explain_says_that_the_store_is_away() -> None:
    snapshot = facts(submissions=job(), store_problem="away since 10:00:00 UTC: refused")
    assert explain(snapshot, 42, None).why[0].what == "store"
    assert "away since 10:00:00 UTC: refused" in explain(snapshot, 42, None).why[0].detail


def test_explain_says_of_running_work_too_that_the_store_has_no_room_and_what_to_do() -> None:
    key = BlockKey(priority=0, seq=1, submission=42, first=0, count=2, attempt=1, cores=1, memory_mib=0)
    full = "away since 10:00:00 UTC: no space left on the disk"
    snapshot = facts(record(), submissions=job(42, 2), claimed=(BlockOnNode(node="n1", key=key),), store_problem=full)
    assert [why.what for why in explain(snapshot, 42, None).why] == ["running", "store"]
    told_to = "free some space there; running work goes on, its outputs wait on their nodes"
    assert explain(snapshot, 42, None).why[1].detail.endswith(told_to)
    (part,) = [part for part in parts(snapshot, (), (), zookeeper={"ok": True}, store={"problem": full}) if part.kind == "store"]
    assert part.fix == told_to


def test_status_counts_what_takes_work_who_runs_and_how_long_the_oldest_waits() -> None:
    work = job(42, 3, user="ann", submitted_us=5) | job(43, 2, user="ben", submitted_us=7)
    claimed = (
        BlockOnNode(node="n1", key=BlockKey(priority=0, seq=1, submission=42, first=0, count=3, attempt=1, cores=1, memory_mib=1024)),
    )
    view = told(facts(record(), record("n2", state=NodeState.FENCED), submissions=work, claimed=claimed))
    assert (view.cores, view.cores_used, view.memory_bytes, view.memory_used_bytes) == (4, 3, 8 << 30, 3 << 30)
    assert (view.users, view.oldest_us) == ({"ann": 3}, 7)
    ahead = (BlockOnNode(node="n1", key=BlockKey(priority=0, seq=1, submission=42, first=0, count=60, attempt=1, cores=1, memory_mib=0)),)
    assert told(facts(record(), submissions=work, claimed=ahead)).users == {"ann": 4}, "what is claimed ahead is on no core"
    assert told(facts(submissions=job(phase=Phase.HELD, submitted_us=5))).oldest_us == 0


def test_since_when_it_is_healthy_is_not_told_of_the_contrary() -> None:
    view = msgspec.structs.replace(told(facts()), healthy_since_us=9)
    problem = PartView(kind="leader", id="", state="silent", reason="it does not answer", fix="rmgr doctor")
    assert with_part(view, problem).healthy_since_us == 0
    assert with_part(view, msgspec.structs.replace(problem, level=Level.WARNING)).healthy_since_us == 9


NOW_S, DAY_S = 1_800_000_000.0, 86_400.0


@pytest.mark.parametrize(
    ("days", "level", "told"),
    [
        (SOON_DAYS - 0.1, Level.WARNING, "ends in 13 days (2027-01-29)"),
        (1.5, Level.WARNING, "ends in 1 day (2027-01-16)"),
        (0.5, Level.WARNING, "ends within a day (2027-01-15)"),
        (0.0, Level.PROBLEM, "has ended (2027-01-15)"),
        (-3.0, Level.PROBLEM, "has ended (2027-01-12)"),
    ],
)
def test_it_is_told_when_and_how_bad_that_is(days: float, level: Level, told: str) -> None:
    [part] = ending({CertificateHolder(role="starter", name="n1"): NOW_S + days * DAY_S}, NOW_S)
    assert (part.id, part.level, part.reason) == ("starter n1", level, f"the certificate of starter n1 {told}")
    assert "rmgr admin add-node n1 --role starter --renew" in part.fix


def test_those_that_last_are_not_told() -> None:
    assert ending({CertificateHolder(role="watchdog", name="w1"): NOW_S + SOON_DAYS * DAY_S}, NOW_S) == ()


def test_a_person_asks_for_a_new_bundle() -> None:
    [part] = ending({CertificateHolder(role="user", name="ann", is_person=True): NOW_S + DAY_S}, NOW_S)
    assert part.fix == "ask the cluster's admin for a new bundle: rmgr admin add-user ann"


def test_of_many_the_first_to_end_are_named_and_the_others_counted() -> None:
    found = ending({CertificateHolder(role="starter", name=f"n{at:02}"): NOW_S + (20 - at) * 0.5 * DAY_S for at in range(20)}, NOW_S)
    assert [part.id for part in found[:2]] == ["starter n19", "starter n18"]
    assert (len(found), found[-1].reason) == (9, "12 more certificates end within 14 days")
