"""`rmgr policy list|show|set|check`: how queues choose what runs next; answered from the cluster's settings.

Work of pull queues is taken by Starters in the order of priority, then arrival ("fifo"). The policies of the catalogue place jobs; today
they run in the simulator only: the leader has no placing policy yet, and queues with `dispatch = place` wait for one.
"""

from __future__ import annotations

import sys
from dataclasses import replace

import click

from rmgr.cli.command import command, command_group
from rmgr.cli.context import Session
from rmgr.cli.operate import apply_settings, read_settings
from rmgr.cli.params import DURATION, Parsed, nearest, parse_pair
from rmgr.cli.render import Column, Layout, emit, table
from rmgr.errors import ConfigError, Infeasible, NotFound, UsageError
from rmgr.model.queue import ClusterSettings, Dispatch, QueueSpec

#: Names that a queue of a cluster can have today.
_IN_FORCE = ("fifo",)
PARAMETER = Parsed("parameter", parse_pair("NAME=VALUE"))
_NONE_YET = "the leader has no placing policy yet: work in queues with dispatch = place waits for one"


@command_group("policy", examples="rmgr policy list\nrmgr policy list easy\nrmgr policy show\nrmgr policy check")
def policy(_session: Session) -> None:
    """How queues choose what runs next."""


@command(
    "list",
    group=policy,
    examples="rmgr policy list\nrmgr policy list easy\nrmgr policy list ./my_policy.py\nrmgr policy list --json",
    exits="0 ok, 2 no such policy, or a file that is none",
)
@click.argument("name", required=False, metavar="[NAME|FILE.py]")
def list_(session: Session, name: str | None) -> None:
    """Policies with their parameters: of rmgr, of plug-ins (entry points of group rmgr.policies); or one of them, or that of a file."""
    from rmgr.cli import policy_list

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
        session.note(f"policies of dispatch place run in the simulator (rmgr sim run --policy NAME); {_NONE_YET}")


@command("show", group=policy, examples="rmgr policy show\nrmgr policy show fast --json", exits="0 ok, 3 no such queue")
@click.argument("queue", required=False)
def show(session: Session, queue: str | None) -> None:
    """The policy of each queue, or of one."""
    settings, _ = read_settings(session)
    shown = [_queue(settings, queue)] if queue else list(settings.queues)
    if session.json:
        emit({"queues": {item.name: {"policy": policy_of(item), "parameters": {}} for item in shown}})
        return
    columns = (
        Column(name="QUEUE", text=lambda q: q.name, is_id=True),
        Column(name="DISPATCH", text=lambda q: str(q.dispatch)),
        Column(name="POLICY", text=lambda q: policy_of(q) or "(no placing policy yet)"),
    )
    table(shown, columns, Layout())


@command(
    "set",
    group=policy,
    examples="rmgr policy set default fifo",
    exits="0 ok, 2 no such policy, or one that the queue cannot use, 3 no such queue",
)
@click.argument("queue")
@click.argument("name", metavar="POLICY")
def set_(session: Session, queue: str, name: str) -> None:
    """Gives a queue another policy."""
    settings, version = read_settings(session)
    spec = _queue(settings, queue)
    if name not in _IN_FORCE:
        from rmgr.cli import policy_list

        try:
            known = policy_list.one(name)
        except ConfigError as error:
            raise UsageError(f"{error.message}; {_NONE_YET}", hint=error.hint) from error
        raise Infeasible(f"{known.name} places jobs: {_NONE_YET}", hint=f"try it: rmgr sim run TRACE.swf --policy {name}")
    if spec.dispatch is Dispatch.PLACE:
        raise Infeasible(f"queue {queue} places its work, and {name} is for pull queues; {_NONE_YET}", hint="rmgr queues")
    changed = policy_of(spec) != name
    if changed:
        queues = tuple(replace(item, policy=name) if item.name == queue else item for item in settings.queues)
        apply_settings(session, replace(settings, queues=queues), version)
    if session.json:
        emit({"queues": {queue: {"policy": name, "parameters": {}}}, "changed": changed})
    else:
        sys.stdout.write(f"queue {queue} has policy {name}" + ("" if changed else " already") + "\n")


@command(
    "check",
    group=policy,
    examples="""\
    rmgr policy check
    rmgr policy check ./my_policy.py --worlds 1000
    rmgr policy check easy --param order=sjf --seed 7""",
    exits="0 every law holds (every queue has a policy), 1 one is broken (one has none), 2 no such policy, or a file that is none",
)
@click.argument("name", required=False, metavar="[NAME|FILE.py|FILE.toml]")
@click.option("--param", "params", type=PARAMETER, multiple=True, metavar="NAME=VALUE", help="of the policy, as order=sjf; repeatable")
@click.option("--worlds", type=click.IntRange(1, 1_000_000), default=200, show_default=True, help="small clusters to try it on")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="of the first world; the next one has the next seed")
@click.option("--budget", type=DURATION, default="1", show_default=True, help="the longest that one pass may take; 0: as long as it likes")
def check(session: Session, name: str | None, params: tuple[tuple[str, str], ...], worlds: int, seed: int, budget: float) -> None:
    """A policy before the laws that every policy keeps, on small worlds drawn by seeds. Without a name: whether every queue has a policy.

    The laws: same input, same plan; nothing survives in the policy; nothing is given twice; nothing starts where or when it may not; every
    job has its turn and a reason; raising and sleeping hurt nobody else. For a broken one the smallest world found is told.
    """
    if name is not None:
        from rmgr.cli.policy_check import judge

        judge(session, name, dict(params), worlds=worlds, seed=seed, budget_s=budget)
        return
    if params:
        raise UsageError("--param is for the policy that is checked", hint="rmgr policy check NAME --param order=sjf")
    _check_queues(session)


def _check_queues(session: Session) -> None:
    """Whether every queue has a policy that can start its work."""
    from rmgr.cli.errors import WorkEnded

    settings, _ = read_settings(session)
    lacking = [queue.name for queue in settings.queues if not policy_of(queue)]
    if session.json:
        emit(
            {"ok": not lacking, "queues": {item.name: {"policy": policy_of(item), "ok": bool(policy_of(item))} for item in settings.queues}}
        )
    else:
        for queue in settings.queues:
            sys.stdout.write(f"{queue.name}: {policy_of(queue) or 'NONE: no placing policy yet; its work waits'}\n")
    if lacking:
        raise WorkEnded(1)


def policy_of(queue: QueueSpec) -> str:
    """Name of the policy in force, "" when there is none."""
    if queue.dispatch is Dispatch.PULL:
        return queue.policy or "fifo"
    return queue.policy if queue.policy in _IN_FORCE else ""


def _queue(settings: ClusterSettings, name: str) -> QueueSpec:
    spec = settings.queue(name)
    if spec is None:
        error = nearest("queue", name, [queue.name for queue in settings.queues], listed_by="rmgr queues")
        raise NotFound(error.message, hint=error.hint)
    return spec
