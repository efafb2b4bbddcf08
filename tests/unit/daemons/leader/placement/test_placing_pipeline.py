"""Who places in a partition: what its settings name, else the policy of its first place queue, else easy."""

from __future__ import annotations

import json

import pytest

from rmgr.daemons.leader.placement.pipeline import checked, configuration, idle_priority, named, pipeline_of
from rmgr.errors import ConfigError
from rmgr.model.cluster.queue import ClusterSettings, Dispatch, PipelineSpec, QueueSpec
from rmgr.sched.policies.fair_share import FairShare
from rmgr.sched.records import Limits


def settings_with(*queues: QueueSpec, pipelines: tuple[PipelineSpec, ...] = ()) -> ClusterSettings:
    return ClusterSettings(queues=queues, pipelines=pipelines)


def placing(name: str, policy: str = "", partition: str = "default") -> QueueSpec:
    return QueueSpec(name=name, policy=policy, partition=partition, dispatch=Dispatch.PLACE)


def test_a_partition_without_a_pipeline_has_the_policy_of_its_first_place_queue() -> None:
    pulled = QueueSpec(name="default", policy="fifo")
    settings = settings_with(pulled, placing("batch"), placing("big", "conservative", "large"), placing("small", "sjf", "large"))
    assert configuration(settings, "default").policies == ("easy",)
    assert configuration(settings, "large").policies == ("conservative",)
    assert configuration(settings, "none").policies == ("easy",)


def test_a_pipeline_that_was_set_wins_with_its_parameters_and_classes() -> None:
    set_ = named("default", "easy", {"order": "sjf"})
    assert (
        type(configuration(settings_with(placing("batch", "fcfs"), pipelines=(set_,)), "default").stages[0].policy.order).__name__ == "Sjf"
    )
    document = {"stage": [{"policy": "queue_select"}, {"policy": "easy"}], "queue": [{"name": "small", "max_cpus": 8}]}
    several = PipelineSpec(partition="default", document=json.dumps(document), name="classes.toml")
    found = configuration(settings_with(placing("batch"), pipelines=(several,)), "default")
    assert (found.policies, [queue.name for queue in found.queues]) == (("queue_select", "easy"), ["small"])
    assert pipeline_of(settings_with(placing("batch"), pipelines=(several,)), "default").name == "classes.toml"


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
    settings = settings_with(QueueSpec(name="pulled"), placing("batch"), pipelines=(named("default", policy, params),))
    told = idle_priority(settings, "batch")
    assert typed in told
    assert bool(told) is bool(typed)
    assert idle_priority(settings, "pulled") == idle_priority(settings, "none") == ""
    if " set " in typed:
        assert told.endswith(typed)
        two = settings_with(*settings.queues, placing("big", partition="large"), pipelines=settings.pipelines)
        assert idle_priority(two, "batch").endswith(f"{typed} --partition default")
        params = dict(word.split("=") for word in typed.split() if "=" in word)
        mended = named("default", typed.split()[3], params)
        assert idle_priority(settings_with(placing("batch"), pipelines=(mended,)), "batch") == "", "what is typed helps"


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
        configuration(settings_with(placing("batch"), pipelines=(spec,)), "default")
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
PLACES = (placing("batch"), placing("short", partition="debug"))


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
    assert isinstance(here.stages[0].policy.order, FairShare)  # type: ignore[attr-defined]
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
