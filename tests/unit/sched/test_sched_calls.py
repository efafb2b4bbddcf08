"""Calls in the scheduling core: facts and records, the verb, predictors, and which server each policy chooses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from rmgr.errors import ConfigError, NotFound, StateConflict
from rmgr.sched.catalogue import CALL_POLICIES, call_policy_named, policy_named
from rmgr.sched.draft import Draft
from rmgr.sched.engine import run_pass
from rmgr.sched.forecast import Added, Ewma, InFlight, Last, Queueing, sends_now, smoothed, throughput_of, waiting_s
from rmgr.sched.job import Job, Node
from rmgr.sched.plan import Accepted, Infeasible, Plan, Send, Why
from rmgr.sched.policy import Cause, Stage
from rmgr.sched.records import Answered, Call, Demand, Link, Server
from rmgr.sched.state.cluster import ClusterState
from rmgr.sched.state.event_log import AT_ONCE, Opening, decode, encode
from rmgr.sched.state.partition import ANSWERED, LEARNT, MEASUREMENTS, CallRecords, power_of

CAUSES = frozenset({Cause.CALL_SUBMITTED})
LINPACK, BYTES = 144_720_000, 2_892_000
WHY = Why("test", "because")


def server(name: str, speed: float = 400e6, load: float = 0, rate: float = 1e6, **fields: Any) -> Server:
    return Server(name, speed, load, (("c", rate),), partition="calls", **fields)


def call(number: int, **fields: Any) -> Call:
    return Call(number, number, LINPACK, BYTES, "c", "calls", **fields)


def state_of(*servers: Server, calls: int = 1) -> ClusterState:
    state = ClusterState()
    for one in servers:
        state.server_changed(one)
    for number in range(1, calls + 1):
        state.call_submitted(call(number))
    return state


def planned(state: ClusterState, name: str, **params: object) -> Plan:
    plan = run_pass(state, CAUSES, now=100, seed=0, pipeline=(Stage(call_policy_named(name, params)),))
    assert plan.faults == ()
    return plan


def picks(state: ClusterState, name: str, **params: object) -> list[str]:
    """Servers in order of calls; the plan is carried out."""
    plan = planned(state, name, **params)
    state.apply(plan, 100)
    return [decision.to for decision in plan.decisions if isinstance(decision, Send)]


def answer(number: int, server_name: str, *, took_s: float, alone_s: float, service_s: float = 1.0, function: str = "") -> Answered:
    end = number * 1_000_000 + round(took_s * 1e6)
    return Answered(
        number, server_name, number * 1_000_000, end, LINPACK, round(service_s * 1e6), round(alone_s * 1e6), 0, function, "calls"
    )


# -- facts and records -----------------------------------------------------------------------------------------------------------


def test_a_partition_has_jobs_or_calls_never_both() -> None:
    state = ClusterState([Node(id=0)])
    for tell in (state.call_submitted, state.server_changed):
        with pytest.raises(StateConflict, match="partition default places jobs"):
            tell(Call(1, 0, 1, 1) if tell == state.call_submitted else Server("a", 1.0, 0))  # type: ignore[arg-type]
    calls = state_of(server("a"))
    with pytest.raises(StateConflict, match="has servers for calls, node 3"):
        calls.node_changed(Node(id=3, partition="calls"))
    with pytest.raises(StateConflict, match="call 1 was submitted before"):
        calls.call_submitted(call(1))


def test_a_job_and_a_call_of_one_number_are_told_apart() -> None:
    state = ClusterState([Node(id=0)])
    state.job_submitted(Job(id=1, submit_us=0))
    state.server_changed(server("a"))
    state.call_submitted(call(1))
    pipeline = (Stage(policy_named("fcfs"), ("default",)), Stage(call_policy_named("rr"), ("calls",)))
    state.apply(run_pass(state, frozenset(Cause), now=1, seed=0, pipeline=pipeline), 1)
    snapshot = state.snapshot()
    assert ([run.job.id for run in snapshot.running], snapshot.waiting, snapshot.calls) == ([1], (), ())


def test_measurements_and_answers_are_bounded_and_survive_a_change_of_leader() -> None:
    state = state_of(calls=0)
    for at in range(MEASUREMENTS + 3):
        state.server_changed(server("a", load=at, at_us=at))
    for number in range(ANSWERED + 5):
        state.call_answered(answer(number, "a", took_s=2, alone_s=1))
    snapshot = state.snapshot()
    assert ([one.load for one in snapshot.measured], len(snapshot.answered)) == (list(range(3, MEASUREMENTS + 3)), ANSWERED)
    assert ClusterState.restored(snapshot).snapshot() == snapshot
    state.server_changed(server("a", load=9, at_us=99, life=1))
    assert [one.load for one in state.snapshot().measured] == [9]  # an earlier life says nothing of this one


def test_learnt_performance_is_a_mean_by_function_and_power_of_two_and_bounded() -> None:
    records = CallRecords()
    for service_s in (1.0, 3.0):
        records.answer(answer(1, "a", took_s=9, alone_s=1, service_s=service_s, function="f"))
    assert records.speed("a", "f", LINPACK) == pytest.approx((LINPACK + LINPACK / 3) / 2)
    assert records.speed("a", "f", 10) == records.speed("a", "f", LINPACK)  # the nearest size that is known
    assert (records.speed("a", "g", LINPACK), records.speed("b", "f", LINPACK)) == (None, None)
    for number in range(LEARNT + 10):
        records.answer(answer(number, f"s{number}", took_s=1, alone_s=1))
    assert len(records.learnt) == LEARNT
    assert records.speed("a", "f", LINPACK) is not None  # shown by two calls, the others by one
    assert [power_of(n) for n in (0, 1, 2, 1023, 1024)] == [0, 0, 1, 9, 10]


def test_the_records_of_calls_go_through_the_event_log() -> None:
    link = Link("c", 1e6, Demand(0.5, 1.0, 0.25))
    state = state_of(server("a", slots=2, functions=("f",), demand=Demand(1.0, 0.5, 2.0), links=(link,), mean_load=1.5))
    state.call_answered(answer(7, "a", took_s=2, alone_s=1))
    opening = Opening("loth", {}, 1, state.snapshot(), AT_ONCE)
    assert decode(encode(opening)) == opening
    old = encode(opening._replace(state=ClusterState.restored(state.snapshot()).snapshot())).replace(',"is_open":true', "")
    assert decode(old) == opening


# -- the verb --------------------------------------------------------------------------------------------------------------------


class Sends:
    name = "sends"

    def __init__(self, *moves: tuple[Any, ...]) -> None:
        self.moves, self.answers = moves, [None]

    def plan(self, draft: Draft, causes: frozenset[Cause]) -> None:
        self.answers = [draft.send(*move[:2], WHY, **(move[2] if len(move) > 2 else {})) for move in self.moves]  # type: ignore[misc]


def test_a_call_goes_to_an_open_server_that_offers_its_function_and_is_not_excluded() -> None:
    state = state_of(server("a", functions=("g",)), server("b", is_open=False), server("c"), calls=0)
    state.call_submitted(call(1, function="f"))
    state.call_submitted(call(2, excluded=("c",)))
    policy = Sends(
        (1, "a"), (1, "b"), (1, "nowhere"), (3, "c"), (2, "c"), (1, "c", {"predicted_us": -1}), (1, "c", {"predicted_us": 5}), (1, "c")
    )
    plan = run_pass(state, CAUSES, now=1, seed=0, pipeline=(Stage(policy),))  # type: ignore[arg-type]
    assert [type(one) for one in policy.answers] == [Infeasible] * 6 + [Accepted, Infeasible]
    assert [(one.job_id, one.to, one.predicted_us) for one in plan.decisions if isinstance(one, Send)] == [(1, "c", 5)]


# -- predictors ------------------------------------------------------------------------------------------------------------------


def test_the_paper_s_formula_to_the_last_digit() -> None:
    """papers.md C4.1: ops / (P / (L + 1)) + bytes / T on the idle and the loaded server."""
    for load in (0, 3):
        found = Last().forecast(call(1), (server("a", 400e6, load, 0.20e6),), 400e6)
        assert found.total_s == LINPACK / (400e6 / (load + 1)) + BYTES / 0.20e6
    assert Last().forecast(call(1), (server("a", rate=1e6),), 400e6, Added(load=2, sharing=3)).total_s == LINPACK / (400e6 / 3) + BYTES / (
        1e6 / 4
    )


@pytest.mark.parametrize(("load", "slots", "sharing"), [(0, 4, 1.0), (3, 4, 1.0), (7, 4, 2.0), (1, 1, 2.0)])
def test_a_server_of_several_slots_slows_down_once_all_are_taken(load: int, slots: int, sharing: float) -> None:
    found = Last().forecast(call(1), (server("a", load=load, slots=slots),), 400e6)
    assert (found.sharing, found.computing_s) == (sharing, LINPACK / (400e6 / sharing))


def test_ewma_weighs_the_newest_measurement_most() -> None:
    measured = [server("a", load=load, rate=rate, mean_load=load + 1, at_us=at) for at, (load, rate) in enumerate([(0, 1e6), (4, 2e6)])]
    assert Ewma().forecast(call(1), measured, 400e6).sharing == 1 + 2
    assert Ewma(mean=True).forecast(call(1), measured, 400e6).sharing == 1 + 3
    assert Ewma().forecast(call(1), measured, 400e6).transfer_s == BYTES / 1.5e6
    with pytest.raises(ValueError, match="nothing to smooth"):
        smoothed(())


def test_queueing_is_the_mean_wait_of_a_queue() -> None:
    """Paper 004, 2.1: M/M/1; with services that do not vary half of it (Pollaczek-Khinchine); never beyond the busiest."""
    assert waiting_s(Demand(0.5, 1.0, 1.0)) == pytest.approx(1.0)
    assert waiting_s(Demand(0.5, 1.0, 0.0)) == pytest.approx(0.5)
    assert waiting_s(Demand(9.0, 1.0, 1.0)) == pytest.approx(49.0)
    link = Link("c", 1e6, Demand(0.25, 2.0, 1.0))
    found = Queueing().forecast(call(1), (server("a", load=99, demand=Demand(0.5, 1.0, 1.0), links=(link,)),), 400e6)
    assert (found.computing_s, found.transfer_s) == (pytest.approx(LINPACK / 400e6 + 1.0), pytest.approx(BYTES / 1e6 + 2.0))


def test_a_link_that_was_never_measured_counts_as_that_of_others_then_as_free() -> None:
    assert throughput_of(Server("a", 1.0, 0, (("x", 1e6), ("y", 3e6))), "c") == 2e6
    bare = Server("a", 400e6, 0, partition="calls")
    assert Last().forecast(call(1), (bare,), 400e6).transfer_s == 0.0


def test_the_next_of_many_calls_waits_where_waiting_is_no_later() -> None:
    flying = [InFlight("a", 2.0)]
    assert sends_now((), {"a": 9.0}, {"a": 9.0})
    assert sends_now(flying, {"a": 4.0, "b": 4.5}, {"a": 2.5, "b": 4.5})  # 4.0 < 2.0 + 2.5
    assert not sends_now(flying, {"a": 4.5, "b": 4.6}, {"a": 2.5, "b": 4.6})  # equal: it waits
    assert not sends_now((), {}, {})


# -- policies --------------------------------------------------------------------------------------------------------------------


def test_rr_takes_the_servers_in_turn_and_passes_over_those_that_cannot() -> None:
    state = state_of(server("a"), server("b"), server("c", is_open=False), server("d"), calls=4)
    assert picks(state, "rr") == ["a", "b", "d", "a"]
    state.call_submitted(call(9))
    assert picks(state, "rr") == ["b"]  # the place is a note: a new leader goes on there


def test_load_looks_at_load_and_performance_only() -> None:
    state = state_of(server("a", 400e6, 9, 1.0), server("b", 40e6, 0, 1e9), calls=1)
    assert picks(state, "load") == ["a"]  # 10 / 400 = 1 / 40: a tie, the lower name
    state = state_of(server("a", 400e6, 10, 1.0), server("b", 40e6, 0, 1e9), calls=2)
    assert picks(state, "load") == ["b", "b"]
    state = state_of(server("a", 400e6, 10, 1.0), server("b", 40e6, 0, 1e9), calls=2)
    assert picks(state, "load+l") == ["b", "a"]  # b is known to have one more


@pytest.mark.parametrize(
    ("name", "chosen"),
    [
        ("loth", ["B", "B", "B", "B"]),
        ("loth+l", ["B", "B", "B", "A"]),  # 6.30, 9.91, 13.53, then 14.82 of A < 17.15
        ("loth+t", ["B", "B", "B", "B"]),  # 6.30, 8.97, 11.65, 14.33 < 14.82
        ("loth+lt", ["B", "B", "A", "B"]),  # B 18.89 > A 14.82; then A 29.6 > B 18.89
    ],
)
def test_loth_and_its_corrections_on_the_printed_system(name: str, chosen: list[str]) -> None:
    """papers.md 4.1 and C4.1: ServerA 400 Mops at 0.20 MB/s, ServerB 40 Mops at 1.08 MB/s, idle."""
    state = state_of(server("A", 400e6, 0, 0.20e6), server("B", 40e6, 0, 1.08e6), calls=4)
    assert picks(state, name) == chosen
    refreshed = 1
    state.server_changed(server("B", 40e6, 0, 1.08e6, at_us=refreshed))
    state.call_submitted(call(9))
    assert picks(state, name) == ["B"]  # measured again: what was sent before counts no more


def test_calls_that_a_load_came_too_early_for_are_told_with_it() -> None:
    state = state_of(server("A", at_us=1, sent=2), server("B", load=1.5, at_us=1), calls=2)
    assert picks(state, "loth") == ["A", "A"]
    state = state_of(server("A", at_us=1, sent=2), server("B", load=1.5, at_us=1), calls=3)
    assert picks(state, "loth+l") == ["B", "A", "B"]  # 2, 2.5, 3
    assert state.snapshot() == ClusterState.restored(state.snapshot()).snapshot()


def test_a_server_that_left_is_gone_with_its_measurements() -> None:
    state = state_of(server("A"), server("B", load=9), calls=0)
    state.server_left("A", "calls")
    state.call_submitted(call(1))
    assert picks(state, "loth") == ["B"]
    assert [one.name for one in state.snapshot().measured] == ["B"]
    with pytest.raises(NotFound, match="no server A in partition calls"):
        state.server_left("A", "calls")


def test_predictions_travel_with_the_call() -> None:
    state = state_of(server("A", 400e6, 0, 0.20e6), server("B", 40e6, 0, 1.08e6))
    (sent,) = (one for one in planned(state, "loth").decisions if isinstance(one, Send))
    assert (sent.to, sent.predicted_us) == ("B", round((LINPACK / 40e6 + BYTES / 1.08e6) * 1e6))
    assert str(sent.why) == "loth: B is expected to take 3.618 s of computing and 2.678 s of transfer"


@pytest.mark.parametrize(("performance", "chosen"), [("declared", "a"), ("calibrated", "b"), ("learnt", "a")])
def test_performance_is_declared_calibrated_or_learnt(performance: str, chosen: str) -> None:
    state = state_of(server("a", 300e6, calibrated=100e6), server("b", 200e6, calibrated=150e6))
    state.call_answered(answer(50, "a", took_s=1, alone_s=1, service_s=LINPACK / 250e6))
    assert picks(state, "loth", performance=performance) == [chosen]


@pytest.mark.parametrize("name", [name for name in CALL_POLICIES if name != "rr"])
@pytest.mark.parametrize("predictor", ["last", "ewma", "queueing"])
def test_a_server_of_unknown_performance_comes_last_and_stops_nobody(name: str, predictor: str) -> None:
    state = state_of(server("a", 0.0), server("b", 40e6), server("c", float("nan")))
    assert picks(state, name, predictor=predictor) == ["b"]
    state = state_of(server("a", 0.0, calibrated=50e6), server("b", 40e6))
    assert picks(state, name, predictor=predictor, performance="calibrated") == ["a"]
    state = state_of(server("a", 0.0))
    assert picks(state, name, predictor=predictor) == ["a"]


def test_adaptive_spreads_while_calls_hinder_each_other_and_returns() -> None:
    state = state_of(server("a", 300e6), server("b", 100e6), calls=2)
    assert picks(state, "adaptive") == ["a", "a"]
    for number in range(20):
        state.call_answered(answer(number, "a", took_s=2.0, alone_s=1.0))
    for number in range(11, 19):
        state.call_submitted(call(number))
    assert sorted(picks(state, "adaptive")) == ["a"] * 6 + ["b"] * 2  # 3 : 1, as their performance
    for number in range(30, 42):  # 8 of the last 20 are slow: between the two shares the mode stays
        state.call_answered(answer(number, "a", took_s=1.0, alone_s=1.0))
    assert dict(_mode(state)) == {"mode": (1,)}
    for number in range(50, 53):
        state.call_answered(answer(number, "a", took_s=1.0, alone_s=1.0))
    state.call_submitted(call(60))
    assert picks(state, "adaptive") == ["a"]
    assert dict(_mode(state)) == {"mode": (0,)}
    with pytest.raises(ConfigError, match=r"return_below 0\.7 is above spread_above 0\.6"):
        call_policy_named("adaptive", {"return_below": "0.7"})


def _mode(state: ClusterState) -> Mapping[str, tuple[int, ...]]:
    planned(state, "adaptive")
    return {note.kind: note.value for note in state.snapshot().notes if note.kind == "mode"}


def test_a_call_that_no_server_can_take_waits_and_says_so() -> None:
    for name in CALL_POLICIES:
        state = state_of(server("a", is_open=False))
        assert str(planned(state, name).why(1, "calls")) == "server: no open server offers what it calls"


def test_policies_for_calls_and_for_jobs_are_not_mixed_up() -> None:
    with pytest.raises(ConfigError, match="loth chooses servers for calls, it places no jobs"):
        policy_named("loth")
    with pytest.raises(ConfigError, match="easy places jobs, it chooses no servers"):
        call_policy_named("easy")
    with pytest.raises(ConfigError, match=r"no policy for calls is called 'lot'; did you mean loth\?"):
        call_policy_named("lot")
    with pytest.raises(ConfigError, match="none of last, ewma, queueing"):
        call_policy_named("loth", {"predictor": "luck"})
    for name in CALL_POLICIES:
        with pytest.raises(ConfigError, match="predictor queueing looks at arrivals, not at the load"):
            call_policy_named(name, {"predictor": "queueing", "load": "mean"})
