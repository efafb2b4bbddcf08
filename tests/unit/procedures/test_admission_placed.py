"""Placed requests at the client: their queue, contradictions, and needs that a partition can never meet."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from rmgr.client.specs import Options, draft_of
from rmgr.errors import Infeasible, NotFound, RmgrError, StateConflict, UsageError
from rmgr.model.base import Capacity, NodeAttributes, Request
from rmgr.model.node import NodeRecord, NodeState
from rmgr.model.queue import ClusterSettings, Dispatch, PipelineSpec, QueueSpec, UserLimits
from rmgr.model.submission import Rigid, Submission, Terms, Work
from rmgr.procedures.admission import admit, check_admitted, check_changed, chosen_classes


def placing(name: str, **fields: object) -> QueueSpec:
    return QueueSpec(name=name, dispatch=Dispatch.PLACE, **fields)  # type: ignore[arg-type]


def node(name: str, cores: int, gib: int = 8, *, partition: str = "default", gpus: int = 0) -> NodeRecord:
    capacity = Capacity(cores=cores, memory_bytes=gib << 30, resources={"gpu": gpus} if gpus else {})
    attributes = NodeAttributes(partition=partition)
    return NodeRecord(node=name, incarnation=1, state=NodeState.UP, guid=name, capacity=capacity, attributes=attributes)


SETTINGS = ClusterSettings(
    queues=(
        QueueSpec(name="default"),
        placing("old", state="closed"),
        placing("theirs", users=("somebody-else",)),
        placing("batch", max_time_us=3_600_000_000, default_time_us=60_000_000),
        placing("other", partition="far", max_cores=4),
        QueueSpec(name="pulled-far", partition="far"),
    )
)
NODES = [node("n1", 4), node("n2", 4), node("n3", 2, gpus=2), node("f1", 8, partition="far")]


def ask(
    rigid: Rigid | None = None, *, partition: str = "", tasks: int = 1, settings: ClusterSettings = SETTINGS, **options: object
) -> Submission:
    draft = draft_of(Options(**options), work=Work.COMMAND, rigid=rigid, user="ann")  # type: ignore[arg-type]
    return admit(draft, settings, NODES, partition=partition, tasks=tasks)


def test_a_placed_request_without_a_queue_goes_to_the_first_open_place_queue_that_takes_it() -> None:
    assert ask(Rigid(processes=4)).queue == "batch"
    assert ask(Rigid(processes=4)).request.time_limit_us == 60_000_000
    assert ask(Rigid(processes=4), partition="far").queue == "other"
    assert (ask().queue, ask(partition="far").queue, ask(partition="default").queue) == ("default", "other", "default")


def test_what_goes_to_a_place_queue_is_a_placed_job_whatever_it_asks_for() -> None:
    assert ask(queue="batch").rigid == Rigid()
    assert ask(queue="default").rigid is None


@pytest.mark.parametrize(
    ("rigid", "more", "error", "told"),
    [
        (Rigid(processes=2, nodes=3), {}, UsageError, "-N 3 nodes are more than -n 2 processes"),
        (Rigid(processes=3, nodes=3, nodelist=("n1", "n2")), {}, UsageError, "--nodelist names only 2 | name more nodes, or -N 2"),
        (Rigid(nodelist=("n1",), exclude=("n1", "n2")), {}, UsageError, "n1: both in --nodelist and in --exclude"),
        (Rigid(nodelist=("n11",)), {}, NotFound, "there is no node 'n11' | did you mean 'n1'?"),
        (Rigid(exclude=("x",)), {}, NotFound, "--exclude: there is no node 'x' | known: n1, n2, n3"),
        (Rigid(nodelist=("f1",)), {}, Infeasible, "f1 is in partition far, the queue's jobs run in default | --partition far"),
        (Rigid(exclude=("n1", "n2", "n3")), {}, Infeasible, "--exclude n1,n2,n3 leaves no node"),
        (Rigid(processes=11), {}, Infeasible, "are more than partition default ever has: its 3 nodes have room for 10 | -n 10 at most"),
        (Rigid(processes=0), {}, UsageError, "-n 0 is not between 1 and | -n: processes of one job"),
        (Rigid(processes=2, nodes=-1), {}, UsageError, "-N -1 is no number of nodes | -N 1 or more"),
        (Rigid(processes=4, nodes=4), {}, Infeasible, "-N 4 is more than partition default has for this: 3 nodes | -N 3 at most"),
        (Rigid(processes=10, nodes=2), {}, Infeasible, "spread over 2 nodes, are 5 on a node; partition default has no such nodes"),
        (Rigid(processes=7, nodes=3), {}, Infeasible, "are 3 on a node; partition default has 2 such nodes"),
        (Rigid(processes=2), {"cores": 5}, Infeasible, "the largest node of partition default, n2, has 4 cores and 8.0G"),
        (Rigid(processes=2), {"resources": {"gpu": 3}}, Infeasible, "no node can ever run one of these processes"),
        (Rigid(processes=2), {"resources": {"gpus": 1}}, Infeasible, "4 cores and 8.0G, 0 gpus | no node has 'gpus': did you mean 'gpu'?"),
        (Rigid(), {"resources": {"fpga": 1}}, Infeasible, "0 fpga | no node has 'fpga': known: gpu  (rmgr nodes lists what they have)"),
        (Rigid(processes=2), {"time": "2h"}, Infeasible, "a time limit of 2h is more than queue batch allows (1h)"),
        (Rigid(processes=5), {"queue": "other"}, Infeasible, "5 cores are more than queue other allows (4)"),
        (Rigid(processes=2), {"queue": "old"}, StateConflict, "queue old is closed"),
        (Rigid(processes=2), {"queue": "default"}, UsageError, "take the work of queue default one process a task; -n 2 needs | -q batch"),
        (Rigid(checkpoint_every_us=1), {"queue": "default"}, UsageError, "task; --checkpoint-every needs a queue whose jobs"),
        (Rigid(checkpoint_every_us=1, restart="start"), {}, UsageError, "--checkpoint-every: nothing is stored | without one of them"),
        (Rigid(processes=2), {"queue": "batch", "partition": "far"}, UsageError, "queue batch is in partition default, not in far"),
        (
            Rigid(processes=2),
            {"partition": "fra"},
            NotFound,
            "no queue is in a partition 'fra'; there are default, far | did you mean 'far'?",
        ),
        (Rigid(), {"tasks": 1 << 21}, UsageError, "a placed submission has at most"),
    ],
)
def test_what_cannot_be_says_what_to_type(rigid: Rigid, more: dict[str, object], error: type[RmgrError], told: str) -> None:
    with pytest.raises(error) as caught:
        ask(rigid, **more)  # type: ignore[arg-type]
    message, _, hint = told.partition(" | ")
    assert message in caught.value.message
    assert hint in caught.value.hint


def test_where_no_node_has_anything_to_count_nothing_is_guessed() -> None:
    draft = draft_of(Options(resources={"gpus": 1}), work=Work.COMMAND, user="ann")
    with pytest.raises(Infeasible) as caught:
        admit(draft, SETTINGS, [node("n1", 4)])
    assert caught.value.hint == "no node has 'gpus', nor anything else to count  (rmgr nodes lists what they have)"


@pytest.mark.parametrize(
    "rigid",
    [
        Rigid(processes=10),
        Rigid(processes=7, nodes=2),
        Rigid(processes=5, nodes=3),
        Rigid(processes=8, nodelist=("n1", "n2")),
        Rigid(processes=3, exclude=("n1",)),
    ],
)
def test_processes_that_do_not_divide_over_the_nodes_are_spread_evenly(rigid: Rigid) -> None:
    assert ask(rigid).rigid == rigid


def test_without_a_place_queue_the_configuration_that_is_missing_is_told() -> None:
    with pytest.raises(Infeasible) as caught:
        ask(Rigid(processes=2), settings=ClusterSettings(queues=(QueueSpec(name="default"),)))
    assert '[queues.batch] with dispatch = "place"' in caught.value.hint
    with pytest.raises(StateConflict, match="queue old is closed"):
        ask(Rigid(processes=2), settings=ClusterSettings(queues=(QueueSpec(name="default"), placing("old", state="closed"))))


# -- where a policy chooses the class ----------------------------------------------------------------------------------------

SMALL = {"name": "small", "max_cpus": 2}


def choosing(
    policy: str, *queues: QueueSpec, partition: str = "default", classes: tuple[object, ...] = (SMALL,), **stage: object
) -> ClusterSettings:
    document = {"stage": [{"policy": policy, **stage}], **({"queue": list(classes)} if classes else {})}
    pipeline = PipelineSpec(partition=partition, document=json.dumps(document), name="classes.toml")
    return ClusterSettings(queues=queues or ClusterSettings().queues, pipelines=(pipeline,))


def queue_of(
    settings: ClusterSettings, rigid: Rigid | None = None, *, work: Work = Work.COMMAND, partition: str = "", queue: str = ""
) -> str:
    draft = draft_of(Options(queue=queue), work=work, rigid=rigid, user="ann")
    return admit(draft, settings, NODES, partition=partition).queue


def test_a_command_of_one_process_goes_where_a_policy_chooses_its_class() -> None:
    settings = choosing("queue_select")
    assert queue_of(settings) == "batch"
    assert queue_of(settings, Rigid(processes=2)) == "batch"
    assert ask(settings=settings).rigid == Rigid(), "it is a placed job of one process"
    assert queue_of(choosing("connection_reservation")) == "batch"
    named = ClusterSettings(queues=(QueueSpec(name="default"), placing("batch", policy="queue_select")))
    assert queue_of(named) == "batch", "without a pipeline the queue's own policy counts"
    assert (queue_of(settings, queue="default"), queue_of(settings, work=Work.PYTHON)) == ("default", "default")


@pytest.mark.parametrize(
    "settings",
    [
        ClusterSettings(),
        choosing("easy"),
        choosing("queue_first_fit"),
        choosing("connection_reservation", parameters={"select": "no"}),
        choosing("connection_reservation", parameters={"select": False}),
        choosing("queue_select", partitions=["far"]),
        choosing("queue_select", QueueSpec(name="default"), placing("batch", state="closed")),
        choosing("queue_select", QueueSpec(name="default"), placing("batch", users=("ben",))),
        choosing("queue_select", QueueSpec(name="default"), placing("batch"), placing("p", partition="far"), partition="far"),
        replace(ClusterSettings(), pipelines=(PipelineSpec(partition="default", document="no JSON"),)),
    ],
    ids=lambda settings: settings.pipelines[0].document if settings.pipelines else "the default settings",
)
def test_where_nobody_chooses_for_him_it_is_pulled_as_ever(settings: ClusterSettings) -> None:
    assert queue_of(settings) == "default"


def test_the_class_is_chosen_in_the_partition_that_was_named() -> None:
    queues = (QueueSpec(name="default"), QueueSpec(name="pulled", partition="far"), placing("batch"), placing("p", partition="far"))
    settings = choosing("queue_select", *queues, partition="far")
    assert (queue_of(settings, partition="far"), queue_of(settings, partition="default"), queue_of(settings)) == ("p", "default", "default")


def test_a_queue_with_the_name_of_a_class_is_nobodys_without_being_named() -> None:
    queues = (QueueSpec(name="default"), placing("small"), placing("any"))
    settings = choosing("queue_select", *queues)
    assert (queue_of(settings), queue_of(settings, Rigid(processes=2)), queue_of(settings, queue="small")) == ("any", "any", "small")
    assert queue_of(choosing("easy", *queues), Rigid(processes=2)) == "small"
    assert queue_of(choosing("queue_select", QueueSpec(name="default"), placing("small"))) == "small"
    assert chosen_classes(choosing("queue_select", *queues, classes=()), "default") >= {"ss8", "d512"}
    elsewhere = choosing("queue_select", *queues, classes=({**SMALL, "partition": "far"},))
    assert queue_of(elsewhere, Rigid(processes=2)) == "small"


LIMITED = {"stage": [{"policy": "fcfs"}], "partition": [{"name": "default", "max_time": "30m", "max_cpus_per_user": 6}]}


@pytest.mark.parametrize(
    ("rigid", "more", "told"),
    [
        (
            Rigid(),
            {"time": "40m"},
            "a time limit of 40m never runs in partition default, by its policy limited.toml: the longest is 30m",
        ),
        (Rigid(processes=8), {}, "8 cores never run in partition default, by its policy limited.toml: a user may have 6 at once"),
    ],
)
def test_what_the_limits_of_the_policy_file_never_let_run_is_refused(rigid: Rigid, more: dict[str, object], told: str) -> None:
    spec = PipelineSpec(partition="default", document=json.dumps(LIMITED, sort_keys=True), name="limited.toml")
    settings = replace(SETTINGS, pipelines=(spec,))
    assert ask(Rigid(processes=2), settings=settings).queue == "batch"
    with pytest.raises(Infeasible) as caught:
        ask(rigid, settings=settings, **more)
    assert told in caught.value.message


def test_a_task_that_takes_more_cores_than_its_user_may_have_at_once_is_refused() -> None:
    settings = replace(SETTINGS, limits=UserLimits(max_cores_per_user=4, cores_of={"ann": 2}))
    fits = ask(cores=2, queue="default", settings=settings)
    assert ask(cores=4, queue="batch", settings=settings).queue == "batch", "placed jobs obey the limits of their policy"
    for refused in (
        lambda: ask(cores=4, queue="default", settings=settings),
        lambda: check_admitted(replace(fits, request=Request(cores=4)), settings),
        lambda: check_changed(replace(fits, request=Request(cores=4)), Terms(cores=4), settings, NODES),
    ):
        with pytest.raises(Infeasible) as caught:
            refused()
        assert caught.value.message == "each task takes 4 cores, and ann may have 2 cores at once (max_cores_per_user)"
        assert caught.value.hint == "-c 2; or an operator: rmgr admin limit ann --cores 4"
    check_changed(replace(fits, request=Request(cores=4)), Terms(time_limit_us=1), settings, NODES)  # of before: it stays as it is


def test_what_no_queue_class_admits_is_refused_as_the_leader_would() -> None:
    """Of processes and threads that were asked for, with -N and without; a queue with the name of a class is that class."""
    classes = [{"name": "narrow", "max_cpus": 4, "max_processes": 4, "max_threads": 1}, {"name": "wide", "max_cpus": 6, "max_threads": 2}]
    document = json.dumps({"stage": [{"policy": "queue_select"}], "queue": classes})
    pipelines = (PipelineSpec(partition="default", document=document, name="mine"),)
    settings = replace(SETTINGS, queues=(*SETTINGS.queues, placing("narrow")), pipelines=pipelines)
    for nodes in (0, 2):
        assert ask(Rigid(processes=4, nodes=nodes), settings=settings).queue == "batch"
        assert ask(Rigid(processes=3, nodes=nodes), cores=2, settings=settings).queue == "batch"
        with pytest.raises(Infeasible, match=r"no queue class .* admits 4 processes x 2 threads \(8 CPUs\)") as caught:
            ask(Rigid(processes=4, nodes=nodes), cores=2, settings=settings)
        assert "wide: CPUs <= 6, threads a process <= 2" in str(caught.value.hint)
    with pytest.raises(Infeasible, match="3 processes x 2 threads"):
        ask(Rigid(processes=3), cores=2, queue="narrow", settings=settings)
    broken = replace(settings, pipelines=(replace(pipelines[0], document="{"),))
    assert ask(Rigid(processes=4), cores=2, settings=broken).queue == "batch"  # nobody places there: status says so


# -- a class that is named -----------------------------------------------------------------------------------------------------

CLASSES = (SMALL, {"name": "wide", "max_cpus": 8, "max_threads": 1}, {"name": "quick", "max_cpus": 4, "max_time": "1h"})


def named(settings: ClusterSettings, queue: str, rigid: Rigid | None = None, **more: object) -> Submission:
    return ask(rigid, queue=queue, settings=settings, **more)


@pytest.mark.parametrize("policy", ["queue_select", "connection_reservation", "queue_first_fit"])
def test_a_job_is_sent_to_a_class_by_hand(policy: str) -> None:
    """It stands in the first place queue of the partition, and its record says which class its user chose."""
    settings = choosing(policy, classes=CLASSES)
    for rigid in (None, Rigid(processes=2), Rigid(processes=2, nodes=2)):
        sent = named(settings, "wide", rigid)
        assert (sent.queue, sent.rigid) == ("batch", replace(rigid or Rigid(), queue_class="wide"))
        check_admitted(sent, settings)
    function = admit(draft_of(Options(queue="wide"), work=Work.PYTHON, user="ann"), settings, NODES)
    assert (function.queue, function.rigid) == ("batch", Rigid(queue_class="wide"))


@pytest.mark.parametrize(
    ("queue", "rigid", "more", "told"),
    [
        ("small", Rigid(processes=3), {}, "class small does not admit 3 processes x 1 thread | CPUs <= 2 | -q wide admits it"),
        ("wide", Rigid(), {"cores": 2}, "1 process x 2 threads (2 CPUs) | CPUs <= 8, threads a process <= 1 | small"),
        ("quick", Rigid(processes=3), {"time": "1m", "cores": 2}, "(6 CPUs) | time < 1h | no class of this partition admits"),
        ("quick", Rigid(), {}, "1 thread (1 CPU) for their time limit | CPUs <= 4, time | -q small"),
    ],
)  # fmt: skip
def test_what_the_named_class_does_not_admit_is_refused_here_and_by_the_gateway(
    queue: str, rigid: Rigid, more: dict[str, object], told: str
) -> None:
    """Of processes and threads that were asked for; the hint names a class that admits it."""
    settings = choosing("queue_select", classes=CLASSES)
    for shape in (rigid, replace(rigid, nodes=min(rigid.processes, 2))):
        with pytest.raises(Infeasible) as caught:
            named(settings, queue, shape, **more)
        words = f"{caught.value.message} | {caught.value.hint}"
        assert all(part in words for part in told.split(" | ")), words
        lax = named(choosing("queue_select", classes=({"name": queue},)), queue, shape, **more)
        with pytest.raises(Infeasible) as again:
            check_admitted(lax, settings)
        assert again.value.message == caught.value.message


def test_a_class_that_is_not_there_or_is_in_several_partitions_is_told() -> None:
    queues = (QueueSpec(name="default"), placing("batch"), placing("p", partition="far"), placing("shut", partition="off", state="closed"))
    pipelines = tuple(choosing("queue_select", partition=where).pipelines[0] for where in ("default", "far", "off"))
    settings = ClusterSettings(queues=queues, pipelines=pipelines)
    with pytest.raises(UsageError, match="class of several partitions: default, far, off") as caught:
        named(settings, "small")
    assert "--partition default" in caught.value.hint
    assert ask(queue="small", settings=settings, partition="far").queue == "p"
    with pytest.raises(StateConflict, match="queue shut is closed"):
        ask(queue="small", settings=settings, partition="off")
    here = replace(settings, pipelines=pipelines[:1])
    with pytest.raises(UsageError, match="small is a queue class of partition default, not of far"):
        ask(queue="small", settings=here, partition="far")
    with pytest.raises(NotFound, match="there is no queue 'smal'; the queues are default, batch, p, shut, small") as unknown:
        named(here, "smal")
    assert unknown.value.hint == "did you mean 'small'?"
    sent = named(here, "small")
    with pytest.raises(NotFound, match="partition default has no queue class 'small'"):
        check_admitted(sent, replace(here, pipelines=choosing("queue_select", classes=CLASSES[1:]).pipelines))
