"""`rmgr policy list|show|set|check`: how queues choose what runs next; answered from the cluster's settings.

Starters take the work of pull queues: users take turns, each with their work by priority, then arrival ("fair"), or all work goes in that
order ("fifo"). The leader places the jobs of place queues: one pipeline of policies for each partition, which is kept in the settings and
which the leader takes up at its next pass.

The room reads the catalogue and cluster settings; its changes go through `control`.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from rmgr.cli.control.operate import apply_settings, read_settings
from rmgr.cli.control.settings import text_of, warn_of_pulls
from rmgr.cli.display.render import Column, Layout, clock, emit, iso, table
from rmgr.cli.session import Session, command, command_group
from rmgr.cli.session.errors import WorkEnded
from rmgr.cli.words.params import DURATION, PARAMETER, missing
from rmgr.errors import ConfigError, UsageError
from rmgr.model.queue import FAIR, FIFO, ClusterSettings, Dispatch, PipelineSpec, QueueSpec
from rmgr.model.servers import CALLS, DEFAULT_CALL_POLICY

#: Stands for calls, which have no queue, in lists of queues.
_CALLS = QueueSpec(name=f"({CALLS})", partition=CALLS, dispatch=Dispatch.PLACE, policy=DEFAULT_CALL_POLICY)


@command_group(
    "policy", examples="rmgr policy list\nrmgr policy list easy\nrmgr policy show\nrmgr policy set conservative\nrmgr policy check"
)
def policy(_session: Session) -> None:
    """Shows, sets and checks how queues choose what runs next."""


@command(
    "list",
    group=policy,
    examples="rmgr policy list\nrmgr policy list easy\nrmgr policy list ./my_policy.py\nrmgr policy list --json",
    exits="0 ok, 2 no such policy, or a file that is none",
)
@click.argument("name", required=False, metavar="[NAME|FILE.py]")
def list_(session: Session, name: str | None) -> None:
    """Lists policies with their parameters: rmgr's, plug-ins (entry points of group rmgr.policies), or one of them, or that of a file."""
    from rmgr.cli.policy import catalogue as policy_list

    found = policy_list.everything() if name is None else [policy_list.one(name)]
    if session.json:
        policy_list.tell(found)
        return
    if name is not None:
        policy_list.draw_one(found[0])
    else:
        policy_list.draw(found)
        session.note("rmgr policy list NAME: kind, range and meaning of its parameters")
    if any(item.dispatch == "place" for item in found):
        session.note("a policy of dispatch place: rmgr policy set NAME lets it place; rmgr sim run --policy NAME tries it out")


@command(
    "show",
    group=policy,
    examples="rmgr policy show\nrmgr policy show batch --json\nrmgr policy show --partition calls",
    exits="0 ok, 3 no such queue or partition",
)
@click.argument("queue", required=False)
@click.option("--partition", metavar="P", default="", help="of its queues; calls: what picks servers for calls")
def show(session: Session, queue: str | None, partition: str) -> None:
    """Shows the policy of each queue, or of one, with the parameters that were set. Place queues of one partition share a policy."""
    settings, _ = read_settings(session)
    shown = [_queue(settings, queue)] if queue else list(settings.queues)
    if partition and partition != CALLS:
        known = {item.partition for item in settings.queues} | {CALLS}
        if partition not in known:
            raise missing("partition", partition, known, listed_by="rmgr policy show")
    if partition:
        shown = [item for item in shown if item.partition == partition]
    if partition == CALLS or (not queue and not partition and settings.pipeline(CALLS) is not None):
        shown.append(_CALLS)
    if session.json:
        told = {"queues": {item.name: told_of(settings, item) for item in shown if item is not _CALLS}}
        who = {"by": settings.changed_by, "since": iso(settings.changed_us)}
        emit(told | ({"calls": told_of(settings, _CALLS)} if _CALLS in shown else {}) | who)
        return
    columns = (
        Column(name="QUEUE", text=lambda q: q.name, is_id=True),
        Column(name="PARTITION", text=lambda q: q.partition),
        Column(name="DISPATCH", text=lambda q: "call" if q is _CALLS else str(q.dispatch)),
        Column(name="POLICY", text=settings.policy_of),
        Column(name="PARAMETERS", text=lambda q: _parameters_text(told_of(settings, q))),
    )
    table(shown, columns, Layout())
    if settings.changed_by:
        session.note(f"the settings were changed last by {settings.changed_by}, {clock(settings.changed_us)}")


@command(
    "set",
    group=policy,
    examples="""\
    rmgr policy set conservative
    rmgr policy set easy --param order=fair_share --param half_life=7d
    rmgr policy set classes.toml --partition large
    rmgr policy set loth --partition calls       which server a call goes to""",
    exits="0 ok, 2 no such policy, one that cannot place, or a file that is none, 3 no such partition, 4 not an operator",
)
@click.argument("name", metavar="NAME|FILE.toml")
@click.option("--partition", metavar="P", default="", help="partition that it schedules  [the one with place queues]")
@click.option("--param", "params", type=PARAMETER, multiple=True, metavar="NAME=VALUE", help="policy parameter, as order=sjf; repeatable")
def set_(session: Session, name: str, partition: str, params: tuple[tuple[str, str], ...]) -> None:
    """Lets a policy, or the pipeline of a file, place the jobs of a partition, from its next pass on. Running jobs are not touched.

    In partition calls one of rmgr's own policies for calls picks servers, from the next call on.
    """
    settings, version = read_settings(session)
    spec = pipeline_named(name, _partition(settings, partition), dict(params))
    old = settings.pipeline(spec.partition)
    changed = old is None or (old.document, old.name) != (spec.document, spec.name)
    others = tuple(item for item in settings.pipelines if item.partition != spec.partition)
    settings = replace(settings, pipelines=(*others, spec))
    _check_usable(settings, spec.partition)
    if changed:
        apply_settings(session, settings, version)
    warn_of_pulls(settings, [spec.partition])
    is_for_calls = spec.partition == CALLS
    queues = (_CALLS,) if is_for_calls else settings.placed()[spec.partition]
    told = {queue.name: told_of(settings, queue) for queue in queues}
    whose = {"calls": told[_CALLS.name]} if is_for_calls else {"queues": told}
    parameters = _parameters_text(told_of(settings, queues[0]))
    words = f"{spec.name} ({parameters})" if parameters else spec.name
    does = "picks servers for calls" if is_for_calls else "places its jobs"
    text = f"partition {spec.partition}: {words} {does}{'' if changed else ' already'}\n"
    session.answer({**whose, "partition": spec.partition, "changed": changed}, text)


def pipeline_named(name: str, partition: str, params: dict[str, str]) -> PipelineSpec:
    """Returns what `policy set NAME|FILE.toml` records, without checking that it can be used. Raises UsageError, ConfigError."""
    from rmgr.daemons.leader.placement.pipeline import named

    if name in (FAIR, FIFO):
        raise UsageError(
            f'{name} is what Starters do with pull queues (order = "{name}"); it places no jobs',
            hint="rmgr policy list names those that do",
        )
    if partition == CALLS or not name.endswith(".toml"):
        return named(partition, name, params)
    from rmgr.adapters import policy_files
    from rmgr.sched.pipeline import SIMULATED

    if params:
        raise UsageError(f"{name}: a pipeline has its parameters in it, --param cannot change them", hint="[stage.parameters]")
    document = policy_files.read_toml(Path(name))
    document.pop(SIMULATED, None)  # the simulated machine, which no cluster needs
    return PipelineSpec(partition=partition, document=text_of(document, name), name=Path(name).name)


def _check_usable(settings: ClusterSettings, partition: str) -> None:
    from rmgr.daemons.leader.placement.pipeline import checked, refuse_shared_names

    try:
        checked(settings, partition)
        refuse_shared_names(settings, partition)
    except ConfigError as error:
        hint = f"{error.hint}  (rmgr policy list describes them)" if error.hint.startswith("known:") else error.hint
        spec = settings.pipeline(partition)
        where = f"partition {partition}, policy {spec.name}: [[stage]] 1 ({spec.name}): " if spec is not None else ""
        raise UsageError(error.message.removeprefix(where), hint=hint) from error  # the name of a single policy says enough


def _partition(settings: ClusterSettings, given: str) -> str:
    """Returns the partition that is meant. Raises NotFound, UsageError."""
    placed = settings.placed()
    if given:
        if given in placed or given == CALLS:
            return given
        if given in {queue.partition for queue in settings.queues}:
            raise UsageError(
                f"no queue places jobs in partition {given}: Starters take its work",
                hint='a queue with dispatch = "place" first: rmgr config apply',
            )
        raise missing("partition", given, [*placed, CALLS], listed_by="rmgr policy show")
    if len(placed) == 1:
        return next(iter(placed))
    if not placed:
        raise UsageError(
            "no queue places jobs", hint='a queue with dispatch = "place" first: rmgr config show --cluster, rmgr config apply'
        )
    raise UsageError(f"place queues are in several partitions: {', '.join(placed)}", hint=f"--partition {next(iter(placed))}")


def told_of(settings: ClusterSettings, queue: QueueSpec) -> dict[str, Any]:
    """Returns `policy show --json` of one queue: its policy with the parameters that were set, or the stages of its pipeline."""
    told: dict[str, Any] = {"policy": settings.policy_of(queue), "parameters": {}}
    spec = settings.pipeline(queue.partition)
    if queue.dispatch is Dispatch.PULL or spec is None:
        return told
    stages = spec.tables().get("stage", [])
    if len(stages) == 1 and stages[0].get("policy") == spec.name:
        told["parameters"] = dict(stages[0].get("parameters", {}))
    else:
        told["stages"] = stages
    return told


def _parameters_text(told: dict[str, Any]) -> str:
    stages = told.get("stages", [{"policy": "", "parameters": told["parameters"]}])
    words = (
        (stage.get("policy", ""), " ".join(f"{name}={value}" for name, value in stage.get("parameters", {}).items())) for stage in stages
    )
    return ", then ".join(" ".join(part for part in pair if part) for pair in words)


@command(
    "check",
    group=policy,
    examples="""\
    rmgr policy check
    rmgr policy check --partition calls
    rmgr policy check ./my_policy.py --worlds 1000
    rmgr policy check easy --param order=sjf --seed 7""",
    exits="0 every law holds (every queue has a policy), 1 one is broken (one has none), 2 no such policy, or a file that is none",
)
@click.argument("name", required=False, metavar="[NAME|FILE.py|FILE.toml]")
@click.option("--param", "params", type=PARAMETER, multiple=True, metavar="NAME=VALUE", help="policy parameter, as order=sjf; repeatable")
@click.option("--worlds", type=click.IntRange(1, 1_000_000), default=200, show_default=True, help="small clusters to try it on")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="seed of the first world; others follow it")
@click.option("--budget", type=DURATION, default="1", show_default=True, help="longest time of one pass; 0: unlimited")
@click.option("--partition", metavar="P", default="", help="partition to check it for; without a POLICY its queues, or calls")
def check(
    session: Session, name: str | None, params: tuple[tuple[str, str], ...], worlds: int, seed: int, budget: float, partition: str
) -> None:
    """Tries a policy against the laws of all policies, on small seeded worlds. Without a name: checks that every queue has a policy.

    The laws: same input, same plan; no state survives in the policy; nothing is given twice; nothing starts where or when it may not;
    every job has its turn and a reason; raising and sleeping harm no other partition. For a broken law it shows the smallest world found.
    """
    if name is not None:
        from rmgr.cli.policy.laws import judge

        if partition:
            settings, _ = read_settings(session)
            spec = pipeline_named(name, _partition(settings, partition), dict(params))
            others = tuple(item for item in settings.pipelines if item.partition != spec.partition)
            _check_usable(replace(settings, pipelines=(*others, spec)), spec.partition)
        judge(session, name, dict(params), worlds=worlds, seed=seed, budget_s=budget)
        return
    if params:
        raise UsageError("--param is for the policy that is checked", hint="rmgr policy check NAME --param order=sjf")
    _check_queues(session, partition)


def _check_queues(session: Session, partition: str) -> None:
    """Checks that every queue, or every queue of a partition, has a policy that can start its work."""
    from rmgr.daemons.leader.placement.pipeline import checked

    settings, _ = read_settings(session)
    if partition:
        _partition(settings, partition)
    wrong: dict[str, str] = {}
    queues = [queue for queue in settings.queues if partition in {"", queue.partition}]
    if partition == CALLS or (not partition and settings.pipeline(CALLS) is not None):
        queues.append(_CALLS)
    for queue in queues:
        if queue.dispatch is Dispatch.PLACE:
            try:
                checked(settings, queue.partition)
            except ConfigError as error:
                wrong[queue.name] = error.message
    told = {item.name: {"policy": settings.policy_of(item), "ok": item.name not in wrong} for item in queues}
    calls = {"calls": told.pop(_CALLS.name)} if _CALLS in queues else {}
    text = ""
    for queue in queues:
        problem = f"; its work waits: {wrong[queue.name]}" if queue.name in wrong else ""
        text += f"{queue.name}: {settings.policy_of(queue)}{problem}\n"
    session.answer({"ok": not wrong, "queues": told, **calls}, text)
    if wrong:
        raise WorkEnded(1)


def _queue(settings: ClusterSettings, name: str) -> QueueSpec:
    spec = settings.queue(name)
    if spec is None:
        raise missing("queue", name, [queue.name for queue in settings.queues], listed_by="rmgr queues")
    return spec
