"""Queue classes at submission: which a partition has, what naming one means (`-q CLASS`), and whether they admit a request. Pure.

A class belongs to the pipeline of a partition. A user who names one chooses it by hand: the job goes to the first place queue of that
partition that takes the work, and its record contains the class. What a class does not admit is refused at once.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from rmgr.errors import ConfigError, Infeasible, NotFound
from rmgr.model.base.resources import Request
from rmgr.model.base.units import counted
from rmgr.model.cluster.queue import ClusterSettings, Dispatch, PipelineSpec, QueueSpec
from rmgr.model.tasks.submission import Rigid
from rmgr.model.views import ClassView, QueueView

if TYPE_CHECKING:
    from rmgr.sched.queue_class import Ladder, QueueClass

#: Policies that use queue classes, and whether they choose one for jobs that name none.
_LOOKING = {"queue_first_fit": False, "queue_select": True, "connection_reservation": True}
#: Words for "off" in a policy file (`rmgr/sched/parameters.py`).
_OFF = frozenset({"no", "false", "off", "0"})


def chosen_classes(settings: ClusterSettings, partition: str) -> frozenset[str]:
    """Returns the queue classes among which the partition's policy chooses for jobs that name none; empty if it does not choose."""
    document = _document(settings, partition)
    stages = _stages(document, partition)
    if not any(_selects(stage) for stage in stages):
        return frozenset()
    return frozenset(_names(document, partition))


def class_names(settings: ClusterSettings, partition: str) -> tuple[str, ...]:
    """Returns the queue classes of the partition, chosen by its policy or by users; in the order of the file."""
    document = _document(settings, partition)
    looks = any(stage.get("policy") in _LOOKING for stage in _stages(document, partition))
    return tuple(_names(document, partition)) if looks or document.get("queue") else ()


def homes_of(name: str, settings: ClusterSettings) -> list[str]:
    """Returns the partitions with a queue class of that name."""
    return [partition for partition in sorted(settings.placed()) if name in class_names(settings, partition)]


def ladder_of(settings: ClusterSettings, partition: str) -> Ladder:
    """Returns the partition's queue classes, () if there are none or nothing is placed there. Cost: 1 ms the first time, then 5 us."""
    if not class_names(settings, partition):
        return ()
    spec = settings.pipeline(partition)
    return _ladder("" if spec is None else spec.document, partition)


def class_view(found: QueueClass, partition: str, policy: str, state: str) -> QueueView:
    """Returns a queue class as `rmgr queues` shows it, as far as the settings tell. state: of the queue for its jobs."""
    limits = {
        "max_cpus": found.max_cpus,
        "max_processes": found.max_processes,
        "max_threads": found.max_threads,
        "max_time_s": found.max_time_us // 1_000_000,
    }
    return QueueView(
        id=found.name,
        partition=partition,
        dispatch=Dispatch.PLACE,
        policy=policy,
        state=state,
        pending=0,
        running=0,
        limits={name: most for name, most in limits.items() if most},
        of_class=ClassView(
            limits=found.limits,
            threshold=found.reservation_threshold if found.max_reservations else 0,
            max_reservations=found.max_reservations,
            head_trigger=found.head_trigger and found.max_reservations > 0,
            is_known=False,
        ),
    )


def state_of(partition: str, settings: ClusterSettings) -> str:
    """Returns the state of a class: open as long as any of its queues is open."""
    states = [queue.state for queue in settings.placed().get(partition, ())]
    return "open" if "open" in states else next(iter(states), "closed")


def class_views(settings: ClusterSettings) -> list[QueueView]:
    """Returns all queue classes as far as the settings tell; only the leader knows which jobs are in them."""
    found = []
    for partition, queues in sorted(settings.placed().items()):
        policy, state = settings.policy_of(queues[0]), state_of(partition, settings)
        found += [class_view(known, partition, policy, state) for known in ladder_of(settings, partition)]
    return found


def check_class(request: Request, rigid: Rigid, queue: QueueSpec, settings: ClusterSettings) -> None:
    """Checks that the named class, or any class to choose from, admits the request. A queue with the name of a class counts as the class.

    Raises: NotFound for an unknown class; Infeasible with the request, the limits, and which classes admit it.
    Cost: 100 us in a partition with classes, a lookup elsewhere.
    """
    named = rigid.queue_class or (queue.name if queue.name in class_names(settings, queue.partition) else "")
    if not named and not chosen_classes(settings, queue.partition):
        return
    ladder = ladder_of(settings, queue.partition)
    if not ladder and not rigid.queue_class:
        return  # nothing is placed there, as `rmgr status` says
    open_to = tuple(known for known in ladder if named in {"", known.name})
    if not open_to:
        names = ", ".join(known.name for known in ladder) or "none"
        raise NotFound(f"partition {queue.partition} has no queue class {named!r}", hint=f"its classes: {names} (rmgr queues)")
    from rmgr.sched.job import Job

    job = Job(
        id=0,
        submit_us=1,  # no class considers it
        processes=rigid.processes,
        threads=request.cores,
        limit_us=request.time_limit_us,
        partition=queue.partition,
    )
    if not any(known.admits(job) for known in open_to):
        raise _refusal(job.wanted, job.wanted_cpus, named, open_to, tuple(known for known in ladder if known.admits(job)), queue)


def _refusal(
    shape: tuple[int, int], cpus: int, named: str, open_to: tuple[QueueClass, ...], others: tuple[QueueClass, ...], queue: QueueSpec
) -> Infeasible:
    message = f"{counted(shape[0], 'process')} x {counted(shape[1], 'thread')} ({counted(cpus, 'CPU')})"
    if not named:
        limits = "; ".join(f"{known.name}: {known.limits}" for known in open_to)
        return Infeasible(f"no queue class of partition {queue.partition} admits {message} for their time limit", hint=limits)
    able = f"-q {others[0].name} admits it" if others else "no class of this partition admits it: rmgr queues"
    return Infeasible(f"queue class {named} does not admit {message} for their time limit: it allows {open_to[0].limits}", hint=able)


@lru_cache(maxsize=8)
def _ladder(document: str, partition: str) -> Ladder:
    from rmgr.sched.pipeline import classes_of
    from rmgr.sched.queue_class import HPC2500

    if not document:
        return HPC2500
    try:
        return classes_of(PipelineSpec(partition=partition, document=document).tables(), partition) or HPC2500
    except (ValueError, AttributeError, ConfigError):
        return ()


def _document(settings: ClusterSettings, partition: str) -> dict[str, Any]:
    """Returns the tables of the partition's pipeline, as far as they are readable."""
    spec = settings.pipeline(partition)
    if spec is None:
        queues = settings.placed().get(partition, ())
        return {"stage": [{"policy": queues[0].policy if queues else ""}]}
    try:
        return spec.tables()
    except ConfigError:  # nothing is placed there, as `rmgr status` says
        return {}


def _stages(document: dict[str, Any], partition: str) -> list[dict[str, Any]]:
    """Returns the stages that serve the partition."""
    stages = (stage for stage in document.get("stage", []) if isinstance(stage, dict))
    return [stage for stage in stages if not stage.get("partitions") or partition in stage["partitions"]]


def _names(document: dict[str, Any], partition: str) -> list[str]:
    if not document.get("queue"):
        from rmgr.sched.queue_class import HPC2500

        return [known.name for known in HPC2500]
    tables = [table for table in document["queue"] if isinstance(table, dict) and table.get("partition", "") in {"", partition}]
    return [str(table.get("name", "")) for table in tables]


def _selects(stage: dict[str, Any]) -> bool:
    policy = str(stage.get("policy"))
    if policy == "connection_reservation":
        return str((stage.get("parameters") or {}).get("select", "yes")).lower() not in _OFF
    return _LOOKING.get(policy, False)
