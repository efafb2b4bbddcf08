"""Pipelines as configuration: meaning of tables, stages per partition, and errors that name table, key, value and nearest name."""

from __future__ import annotations

import tomllib

import pytest

from rmgr.errors import ConfigError
from rmgr.sched.engine import run_pass
from rmgr.sched.job import Job
from rmgr.sched.pipeline import configured, limits_of, pipeline_from
from rmgr.sched.plan import Start
from rmgr.sched.policies.orders import Fcfs, Sjf
from rmgr.sched.policies.searches import Conservative, Easy, FirstFit
from rmgr.sched.policy import Cause, Stage
from rmgr.sched.queue_class import HPC2500
from rmgr.sched.records import Limits
from rmgr.sched.state.cluster import ClusterState

TWO_PARTITIONS = """
[[stage]]
policy = "easy"
partitions = ["batch"]
[stage.parameters]
order = "sjf"

[[stage]]
policy = "first_fit"
partitions = ["debug"]

[[partition]]
name = "batch"
nodes = 4
cores = 2
memory = "4G"

[[partition]]
name = "debug"

[[node]]
partition = "debug"
count = 2

[[node]]
partition = "batch"
count = 1
cores = 8
site = "kyoto"
speed = 1.5
features = ["gpu", "fast"]
"""
#: Tables 2 to 4 of paper 000.
QUEUES = "".join(
    f'[[queue]]\nname = "{c.name}"\nmax_cpus = {c.max_cpus}\nmax_processes = {c.max_processes}\nmax_threads = {c.max_threads}\n'
    f"reservation_threshold = {c.reservation_threshold}\nmax_reservations = {c.max_reservations}\n"
    + ('max_time = "2h"\n' if c.max_time_us else "")
    + ("head_trigger = true\n" if c.head_trigger else "")
    for c in HPC2500
)


def test_each_partition_has_its_stages_and_the_machine_its_nodes() -> None:
    found = pipeline_from(tomllib.loads(TWO_PARTITIONS))
    assert found.stages == (Stage(Easy(order=Sjf()), ("batch",)), Stage(FirstFit(order=Fcfs()), ("debug",)))
    assert found.policies == ("easy", "first_fit")
    assert found.partitions == ("batch", "debug")
    assert [(n.id, n.partition, n.cores) for n in found.nodes] == [
        *((i, "batch", 2) for i in range(4)),
        (4, "debug", 1),
        (5, "debug", 1),
        (6, "batch", 8),
    ]
    assert found.nodes[0].memory_bytes == 4 << 30
    assert (found.nodes[6].site, found.nodes[6].speed, found.nodes[6].features) == ("kyoto", 1.5, ("gpu", "fast"))


def test_a_pass_serves_every_partition_by_its_own_stage() -> None:
    found = pipeline_from(tomllib.loads(TWO_PARTITIONS))
    state = ClusterState(found.nodes)
    # batch (16 cores): the smallest first, the larger ones behind it; debug (2 cores): 5 does not fit, 6 passes it.
    for job_id, processes, partition in ((1, 12, "batch"), (2, 3, "batch"), (4, 1, "debug"), (5, 2, "debug"), (6, 1, "debug")):
        state.job_submitted(Job(id=job_id, submit_us=0, processes=processes, limit_us=10, partition=partition))
    plan = run_pass(state, frozenset({Cause.JOB_SUBMITTED}), now=0, seed=0, pipeline=found.stages)
    assert not plan.faults
    assert [d.job_id for d in plan.decisions if isinstance(d, Start)] == [2, 1, 4, 6]


def test_queue_classes_are_the_fields_of_their_dataclass() -> None:
    assert pipeline_from(tomllib.loads(QUEUES + '[[stage]]\npolicy = "easy"\n')).queues == HPC2500


def test_a_name_alone_is_a_pipeline_on_every_partition() -> None:
    assert configured("conservative", {"order": "sjf"}).stages == (Stage(Conservative(order=Sjf())),)


STAGE = '[[stage]]\npolicy = "easy"\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no [[stage]]"),
        ("[[stages]]\n", "no table of a pipeline is called 'stages'; did you mean stage"),
        ('stage = "easy"\n', "stage is no array of tables"),
        ("[[stage]]\n", "[[stage]] 1 names no policy"),
        ('[[stage]]\npolicy = "esay"\n', "[[stage]] 1 (esay): no policy is called 'esay'; did you mean easy"),
        (STAGE + 'order = "sjf"\n', "no key of [[stage]] 1 (easy) is called 'order'"),
        (STAGE + 'partitions = "batch"\n', "[[stage]] 1 (easy): partitions is 'batch': a list of names is expected"),
        (STAGE + "parameters = 3\n", "[[stage]] 1 (easy): parameters is 3: a table is expected"),
        (STAGE + '[stage.parameters]\nodrer = "sjf"\n', "[[stage]] 1 (easy): no parameter of easy is called 'odrer'; did you mean order"),
        (STAGE + '[stage.parameters]\nmax_wait = "-1h"\n', "[[stage]] 1 (easy): max_wait of easy is '-1h'"),
        (STAGE + "[stage.parameters]\nmax_wait = 0\n", "max_wait of easy is 0: it must be at least 1us"),
        (STAGE + STAGE + '[stage.parameters]\norder = "sfj"\n', "[[stage]] 2 (easy): no order is called 'sfj'; did you mean sjf"),
        (STAGE + '[[queue]]\nname = "a"\nmax_cpu = 3\n', "no key of [[queue]] 1 (a) is called 'max_cpu'; did you mean max_cpus"),
        (STAGE + '[[queue]]\nname = "a"\nmax_time = "soon"\n', "max_time of [[queue]] 1 (a) is 'soon': 'soon' is not a duration"),
        (STAGE + '[[queue]]\nname = "a"\nmax_cpus = -3\n', "[[queue]] 1 (a): queue a: max_cpus is -3"),
        (STAGE + "[[queue]]\nmax_cpus = 3\n", "[[queue]] 1 needs name"),
        (STAGE + '[[queue]]\nname = "a"\n[[queue]]\nname = "a"\n', "[[queue]] a stands twice"),
        (STAGE + '[[partition]]\nname = "a"\n', "[[partition]] 1 (a) has no nodes"),
        (
            STAGE + '[[partition]]\nname = "a"\nnodes = 0.5\n',
            "nodes of [[partition]] 1 (a) is 0.5: a whole number is expected, from 0 to 10000000",
        ),
        (
            STAGE + '[[partition]]\nname = "a"\nmax_cores_per_user = 4\nmax_cpus_per_user = 4\n',
            "[[partition]] 1 (a): max_cores_per_user and max_cpus_per_user are the same limit",
        ),
        (
            STAGE + '[[partition]]\nname = "a"\nnodes = 4\ncores = 0\n',
            "cores of [[partition]] 1 (a) is 0: it must be from 1 to 100000 cores",
        ),
        (STAGE + '[[partition]]\nname = "a"\nnodes = 4\n[[node]]\ncount = 1\npartition = "b"\n', "[[node]] 1: no partition is called 'b'"),
        (STAGE + "[[node]]\ncores = 1\n", "[[node]] 1 needs count"),
        (
            STAGE + '[[partition]]\nname = "a"\ncores = 1\n[[simulated.partition]]\nname = "a"\ncores = 2\n',
            "[[simulated.partition]] 1 (a): cores stands in [[partition]], too",
        ),
        (STAGE + "[simulated]\nnodes = 3\n", "no table of [simulated] is called 'nodes'; did you mean node"),
        (
            STAGE + 'partitions = ["a"]\n[[partition]]\nname = "a"\nnodes = 4\n[[partition]]\nname = "b"\nnodes = 4\n',
            "no [[stage]] serves partition b",
        ),
        (
            '[[stage]]\npolicy = "queue_select"\npartitions = ["a"]\n[[queue]]\nname = "q"\npartition = "b"\n',
            "[[stage]] 1 (queue_select): no [[queue]] is in its partitions (a)",
        ),
        (
            STAGE + 'partitions = ["batsch"]\n[[partition]]\nname = "batch"\nnodes = 4\n',
            "[[stage]] 1 (easy): no partition is called 'batsch'; did you mean batch",
        ),
        (
            STAGE + '[[queue]]\nname = "a"\npartition = "bach"\n[[partition]]\nname = "batch"\nnodes = 4\n',
            "[[queue]] a: no partition is called 'bach'; did you mean batch",
        ),
    ],
)
def test_an_error_names_table_key_value_and_the_nearest_name(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        pipeline_from(tomllib.loads(text))
    assert said in error.value.message


def test_the_cap_of_a_user_has_two_names() -> None:
    told = [limits_of(tomllib.loads(f'[[partition]]\nname = "a"\n{key} = 4\n'), "a") for key in ("max_cores_per_user", "max_cpus_per_user")]
    assert told == [Limits(max_cpus_per_user=4)] * 2
