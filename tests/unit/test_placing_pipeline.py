"""Who places in a partition: what its settings name, else the policy of its first place queue, else easy."""

from __future__ import annotations

import json

import pytest

from rmgr.daemons.placing_pipeline import configuration, named, pipeline_of
from rmgr.errors import ConfigError
from rmgr.model.queue import ClusterSettings, Dispatch, PipelineSpec, QueueSpec


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
