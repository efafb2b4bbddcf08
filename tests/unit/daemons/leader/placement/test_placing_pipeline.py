"""The policies that place in a partition, and the queue of a job whose user named a queue class."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest

from rmgr.cli.words.selectors import Filter
from rmgr.coord.views import answers
from rmgr.daemons.leader.placement.pipeline import checked, configuration, idle_priority, named, pipeline_of
from rmgr.daemons.leader.placement.view import copied
from rmgr.errors import ConfigError, Infeasible
from rmgr.model.base import Request
from rmgr.model.queue import ClusterSettings, Dispatch, PipelineSpec, QueueSpec
from rmgr.model.submission import Rigid
from rmgr.model.views import QueueView
from rmgr.procedures.admission import class_views
from rmgr.sched.policies.orders import FairShare
from rmgr.sched.records import Limits
from tests.harness.leader_bench import Bench, placing


def settings_with(*queues: QueueSpec, pipelines: tuple[PipelineSpec, ...] = ()) -> ClusterSettings:
    return ClusterSettings(queues=queues, pipelines=pipelines)


def placed(name: str, policy: str = "", partition: str = "default") -> QueueSpec:
    return QueueSpec(name=name, policy=policy, partition=partition, dispatch=Dispatch.PLACE)


def test_a_partition_without_a_pipeline_has_the_policy_of_its_first_place_queue() -> None:
    pulled = QueueSpec(name="default", policy="fifo")
    settings = settings_with(pulled, placed("batch"), placed("big", "conservative", "large"), placed("small", "sjf", "large"))
    assert configuration(settings, "default").policies == ("easy",)
    assert configuration(settings, "large").policies == ("conservative",)
    assert configuration(settings, "none").policies == ("easy",)


def test_a_pipeline_that_was_set_wins_with_its_parameters_and_classes() -> None:
    set_ = named("default", "easy", {"order": "sjf"})
    assert (
        type(configuration(settings_with(placed("batch", "fcfs"), pipelines=(set_,)), "default").stages[0].policy.order).__name__ == "Sjf"
    )
    document = {"stage": [{"policy": "queue_select"}, {"policy": "easy"}], "queue": [{"name": "small", "max_cpus": 8}]}
    several = PipelineSpec(partition="default", document=json.dumps(document), name="classes.toml")
    found = configuration(settings_with(placed("batch"), pipelines=(several,)), "default")
    assert (found.policies, [queue.name for queue in found.queues]) == (("queue_select", "easy"), ["small"])
    assert pipeline_of(settings_with(placed("batch"), pipelines=(several,)), "default").name == "classes.toml"


@pytest.mark.parametrize(
    ("policy", "params", "typed"),
    [
        ("easy", {}, "rmgr policy set easy --param order=priority"),
        ("easy", {"order": "sjf", "max_wait": "12h"}, "rmgr policy set easy --param order=priority --param max_wait=12h"),
        ("queue_select", {}, "rmgr policy list NAME"),
        ("dqt", {}, "rmgr policy list NAME"),
        ("conservative", {}, "rmgr policy set conservative --param order=priority"),
        ("easy", {"order": "priority"}, ""),
        ("easy", {"order": "priority", "max_wait": "12h"}, ""),
        ("priority", {}, ""),
        ("dqt", {"weights": "0:1,5:2"}, ""),
        ("no-such-plug-in", {}, ""),
    ],
)
def test_who_gives_a_priority_that_the_policy_does_not_look_at_is_told(policy: str, params: dict[str, str], typed: str) -> None:
    settings = settings_with(QueueSpec(name="pulled"), placed("batch"), pipelines=(named("default", policy, params),))
    told = idle_priority(settings, "batch")
    assert typed in told
    assert bool(told) is bool(typed)
    assert idle_priority(settings, "pulled") == idle_priority(settings, "none") == ""
    if " set " in typed:
        assert told.endswith(typed)
        two = settings_with(*settings.queues, placed("big", partition="large"), pipelines=settings.pipelines)
        assert idle_priority(two, "batch").endswith(f"{typed} --partition default")
        params = dict(word.split("=") for word in typed.split() if "=" in word)
        mended = named("default", typed.split()[3], params)
        assert idle_priority(settings_with(placed("batch"), pipelines=(mended,)), "batch") == "", "what is typed helps"


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        (named("default", "easyy", {}), "did you mean easy"),
        (named("default", "easy", {"ordr": "sjf"}), "did you mean order"),
        (named("default", "./mine.py", {}), "entry point of group rmgr.policies"),
        (PipelineSpec(partition="default", document="{", name="x"), "not valid JSON"),
        (PipelineSpec(partition="default", document="[]", name="x"), "no table"),
        (PipelineSpec(partition="default", document="{}", name="x"), "no [[stage]]"),
    ],
)
def test_a_pipeline_that_cannot_be_used_says_which_and_what_to_do(spec: PipelineSpec, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        configuration(settings_with(placed("batch"), pipelines=(spec,)), "default")
    assert "partition default" in caught.value.message
    assert told in f"{caught.value.message} {caught.value.hint}"


TWO = {
    "stage": [
        {"policy": "easy", "partitions": ["default"], "parameters": {"order": "fair_share", "half_life": "7d"}},
        {"policy": "first_fit", "partitions": ["debug"]},
    ],
    "partition": [
        {"name": "default", "max_cpus_per_user": 100, "max_time": "36h"},
        {"name": "debug", "queues": ["short"], "max_jobs_per_user": 1},
    ],
    "queue": [{"name": "a"}, {"name": "b", "partition": "debug"}],
}
PLACES = (placed("batch"), placed("short", partition="debug"))


def filed(document: object, *partitions: str) -> ClusterSettings:
    """That file in each of the partitions."""
    text = json.dumps(document)
    return settings_with(*PLACES, pipelines=tuple(PipelineSpec(partition=name, document=text, name="two.toml") for name in partitions))


def test_a_partition_has_its_own_stages_classes_and_limits_of_a_file_and_no_others() -> None:
    settings = filed(TWO, "default", "debug")
    here, there = checked(settings, "default"), checked(settings, "debug")
    assert (here.policies, there.policies) == (("easy",), ("first_fit",))
    assert ([stage.partitions for stage in here.stages], [stage.partitions for stage in there.stages]) == ([("default",)], [("debug",)])
    assert here.limits == {"default": Limits(max_cpus_per_user=100, max_time_us=36 * 3_600_000_000)}
    assert there.limits == {"debug": Limits(max_jobs_per_user=1)}
    assert ([queue.name for queue in here.queues], [queue.name for queue in there.queues]) == (["a"], ["a", "b"])
    assert isinstance(here.stages[0].policy.order, FairShare)
    assert (here.usage_half_life_us, there.usage_half_life_us) == (7 * 24 * 3_600_000_000, 0)


def test_a_file_without_a_stage_for_the_partition_places_nothing_there() -> None:
    with pytest.raises(ConfigError, match=r"no \[\[stage\]\] serves partition default, only debug"):
        configuration(filed({"stage": TWO["stage"][1:]}, "default"), "default")


EASY = {"stage": [{"policy": "easy"}]}


@pytest.mark.parametrize(
    ("document", "told"),
    [
        (EASY | {"node": [{"count": 3}]}, "[[node]]: only the simulator obeys it | [[simulated.node]]"),
        (
            EASY | {"partition": [{"name": "default", "nodes": 3, "cores": 4}]},
            "[[partition]] 1 (default): only the simulator obeys cores, nodes | [[simulated.partition]] with name",
        ),
        (EASY | {"partition": [{"name": "default", "queues": ["short"]}]}, "queue short is in partition debug; the cluster's settings say"),
        (EASY | {"partition": [{"name": "default", "queues": ["none"]}]}, "queue none is no queue whose jobs are placed | [queues.none]"),
        (EASY | {"partition": [{"name": "debug", "max_jobs_per_user": 1}]}, "it limits partition debug, and not default"),
        (EASY | {"partition": [{"name": "default", "max_job_per_user": 1}]}, "did you mean max_jobs_per_user"),
        (EASY | {"simulated": {"nodes": []}}, "no table of [simulated] is called 'nodes'; did you mean node"),
        (
            EASY | {"partition": [{"name": "default", "cores": 1}], "simulated": {"partition": [{"name": "default", "cores": 2}]}},
            "[[partition]] 1 (default): only the simulator obeys cores",
        ),
        (EASY | {"simulated": {"partition": [{"name": "default", "max_time": "1h"}]}}, "is called 'max_time'"),
    ],
)
def test_what_the_leader_would_not_obey_is_refused_when_it_is_set(document: object, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        checked(filed(document, "default"), "default")
    whole = f"{caught.value.message} | {caught.value.hint}"
    assert all(part in whole for part in told.split(" | ")), whole


def test_the_machine_of_simulations_is_nothing_to_the_leader() -> None:
    machine = {"partition": [{"name": "default", "nodes": 8}], "node": [{"count": 2, "partition": "default"}]}
    assert checked(filed(EASY | {"simulated": machine}, "default"), "default").nodes == ()


def test_use_is_kept_with_one_half_life() -> None:
    other = named("debug", "first_fit", {"order": "fair_share", "half_life": "1d"})
    settings = filed(TWO, "default")
    settings = settings_with(*PLACES, pipelines=(*settings.pipelines, other))
    with pytest.raises(ConfigError, match="half_life 1d, and partition default has 7d"):
        checked(settings, "debug")


CLASSES = {
    "stage": [{"policy": "connection_reservation"}],
    "queue": [
        {"name": "small", "max_cpus": 2, "max_threads": 2, "max_reservations": 1},
        {"name": "wide", "max_cpus": 8, "max_threads": 2, "max_reservations": 1},
    ],
}


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench(placing(*CLASSES["stage"], queue=CLASSES["queue"]))
    bench.lead()
    bench.starter("n1", "n2")  # of two cores each
    bench.advance(1)
    yield bench
    bench.close()


def submit(bench: Bench, processes: int, queue_class: str = "", **fields: object) -> int:
    rigid = Rigid(processes=processes, queue_class=queue_class)
    number = bench.submitter.submit(1, block=1, queue="batch", rigid=rigid, **fields)
    bench.advance(1)
    return number


def running(bench: Bench) -> set[int]:
    return set(bench.look.running("n1", "n2"))


def classes_of(bench: Bench) -> dict[int, str]:
    """Of every job that waits or runs, as the scheduler sees it."""
    state = bench.leader.placer.state
    part = state.partitions["default"]
    return {job.id >> 20: job.queue for job in (*part.jobs.values(), *(run.job for run in part.running.values()))}


def test_a_job_stands_in_the_class_that_its_user_named_under_every_leader(bench: Bench) -> None:
    chosen, named, waits = submit(bench, 1), submit(bench, 1, "wide"), submit(bench, 4, "wide")
    expected = {chosen: "small", named: "wide", waits: "wide"}
    assert classes_of(bench) == expected
    assert running(bench) == {chosen, named}
    bench.lead()
    bench.advance(1)
    assert classes_of(bench) == expected


def test_what_its_class_does_not_admit_is_set_aside_with_the_reason_and_others_are_placed(bench: Bench) -> None:
    """Whoever went round his client; also before and after another leader has come."""
    large, threads = submit(bench, 3, "small"), submit(bench, 1, "small", request=Request(cores=3))
    told = "queue class small, which its user named, allows CPUs <= 2, threads a process <= 2; it asks for 3 processes x 1 thread (3 CPUs)"
    for _ in range(2):
        jobs = bench.leader.placer.view().jobs
        assert told in jobs[large, 0].reason
        assert "it asks for 1 process x 3 threads" in jobs[threads, 0].reason
        assert submit(bench, 1, "small") in running(bench)
        bench.lead()
        bench.advance(1)
    assert not running(bench) & {large, threads}
    record = bench.look.sub(large)
    with pytest.raises(Infeasible, match="it would never start: queue class small"):
        copied(bench.leader.placer, record)


def told(bench: Bench) -> dict[str, QueueView]:
    """What `rmgr queues` is told of each class."""
    return {view.id: view for view in bench.leader.placer.view().classes}


def test_a_class_tells_who_waits_and_runs_in_it_what_was_promised_and_which_trigger_fired(bench: Bench) -> None:
    """Also after another leader has come: counts of triggers are records."""
    submit(bench, 2), submit(bench, 2)
    large = submit(bench, 4)
    submit(bench, 1, "small")
    for _ in range(2):
        small, wide = told(bench)["small"], told(bench)["wide"]
        assert [(view.pending, view.running, view.state, view.partition) for view in (small, wide)] == [
            (1, 2, "open", "default"),
            (1, 0, "open", "default"),
        ]
        assert wide.limits == {"max_cpus": 8, "max_threads": 2}
        assert wide.of_class.fired == (0, 0, 1)
        (promise,) = wide.of_class.promised
        assert (promise.job, promise.cores, promise.held, promise.waits_for) == (str(large), 4, 0, ("1", "2"))
        assert wide.of_class.chosen == "by connection_reservation: the strictest that admits it"
        bench.lead()
        bench.advance(1)
    registry = bench.metrics.registry
    bench.advance(2)
    where = {"partition": "default", "queue_class": "wide"}
    assert registry.get_sample_value("rmgr_leader_class_waiting_jobs", where) == 1
    assert registry.get_sample_value("rmgr_leader_class_promised_cores", where) == 4
    assert registry.get_sample_value("rmgr_leader_class_reservations", {**where, "trigger": "no_waiter"}) == 1
    assert registry.get_sample_value("rmgr_leader_class_running_jobs", {**where, "queue_class": "small"}) == 2


def test_explain_names_the_class_and_the_rule_that_chose_it(bench: Bench) -> None:
    chosen, named = submit(bench, 2), submit(bench, 1, "wide")
    snapshot = replace(bench.leader.snapshot(), placing=bench.leader.placer.view())
    details = [answers.explain(snapshot, number, None).why[-1] for number in (chosen, named)]
    assert [(why.what, why.id) for why in details] == [("class", "small"), ("class", "wide")]
    assert details[0].detail == (
        "its queue class, chosen for 2 processes x 1 thread by connection_reservation: the strictest that admits it "
        "(CPUs <= 2, threads a process <= 2)"
    )
    assert details[1].detail == "its queue class, named by its user (-q wide) (CPUs <= 8, threads a process <= 2)"
    jobs = answers.jobs(snapshot)
    assert {job.id: job.route for job in jobs} == {chosen: "small", named: "wide"}
    assert [job.id for job in jobs if Filter(queue="wide").admits(job)] == [named]
    assert len([job for job in jobs if Filter(queue="batch").admits(job)]) == 2


def test_without_a_leader_the_settings_tell_of_classes(bench: Bench) -> None:
    views = class_views(bench.leader.term.settings)
    assert [(view.id, view.limits) for view in views] == [(view.id, view.limits) for view in told(bench).values()]
    assert not any(view.of_class.is_known for view in views if view.of_class is not None)


def test_a_job_whose_class_is_gone_is_given_another(bench: Bench) -> None:
    number = submit(bench, 2, "narrow")
    assert classes_of(bench) == {number: "small"}
