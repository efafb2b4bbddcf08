"""`rmgr policy list|show|set|check`: how queues choose what runs next; answered from the cluster's settings.

Work of pull queues is taken by Starters in the order of priority, then arrival ("fifo"). There is no placing policy
yet: queues with `dispatch = place` wait for one.
"""

from __future__ import annotations

import sys
from dataclasses import replace

import click

from rmgr.cli.command import command, command_group
from rmgr.cli.context import Session
from rmgr.cli.operate import apply_settings, read_settings
from rmgr.cli.params import nearest
from rmgr.cli.render import Column, Layout, emit, table
from rmgr.errors import Infeasible, NotFound
from rmgr.model.queue import ClusterSettings, Dispatch, QueueSpec

#: Policies that exist: name -> (what it does, its parameters).
POLICIES: dict[str, tuple[str, dict[str, str]]] = {
    "fifo": ("pull queues: Starters take work by priority, then arrival; a large task at the head holds back later ones", {}),
}
_NONE_YET = "there is no placing policy yet: work in queues with dispatch = place waits for one"


@command_group("policy", examples="rmgr policy list\nrmgr policy show\nrmgr policy check")
def policy(_session: Session) -> None:
    """How queues choose what runs next."""


@command("list", group=policy, examples="rmgr policy list\nrmgr policy list --json", exits="0 ok")
def list_(session: Session) -> None:
    """Policies that this release has."""
    if session.json:
        emit({"policies": [{"name": name, "summary": told, "parameters": given} for name, (told, given) in POLICIES.items()]})
        return
    rows = [(name, told) for name, (told, _) in POLICIES.items()]
    table(rows, (Column(name="POLICY", text=lambda r: r[0], is_id=True), Column(name="SUMMARY", text=lambda r: r[1])), Layout())
    session.note(_NONE_YET)


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
    if name not in POLICIES:
        error = nearest("policy", name, POLICIES)
        raise type(error)(f"{error.message}; {_NONE_YET}", hint=error.hint)
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


@command("check", group=policy, examples="rmgr policy check", exits="0 every queue has a policy, 1 one has none")
def check(session: Session) -> None:
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
    return queue.policy if queue.policy in POLICIES else ""


def _queue(settings: ClusterSettings, name: str) -> QueueSpec:
    spec = settings.queue(name)
    if spec is None:
        error = nearest("queue", name, [queue.name for queue in settings.queues], listed_by="rmgr queues")
        raise NotFound(error.message, hint=error.hint)
    return spec
