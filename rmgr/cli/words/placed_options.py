"""Options of placed jobs: processes, nodes, which nodes, when; and what they are in the record of a submission."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import click

from rmgr.cli.words.moments import BEGINS, parse_begin
from rmgr.cli.words.params import DURATION_US, Parsed
from rmgr.errors import UsageError
from rmgr.model.tasks.block import MOST_ATTEMPTS
from rmgr.model.tasks.placing import FROM_CHECKPOINT, FROM_START, Rigid

_MAX_NODES = 100_000
#: Groups of a list of nodes: `n`, `[1-3,7]`.
_BRACKETS = re.compile(r"^([^\[\]]*)(?:\[([0-9,-]+)\])?([^\[\]]*)$")


def parse_nodes(text: str) -> tuple[str, ...]:
    """`n1,n2` or `n[1-3,7],m1`, each once, in this order. Raises UsageError."""
    found: dict[str, None] = {}
    for part in re.split(r",(?![^\[]*\])", text):
        match = _BRACKETS.match(part.strip())
        if not part.strip() or match is None:
            raise UsageError(f"{text!r} is no list of nodes", hint="as n1,n2 or n[1-3,7]")
        head, inside, tail = match.groups()
        for number in _numbers(inside, text) if inside is not None else ("",):
            found[f"{head}{number}{tail}"] = None
        if len(found) > _MAX_NODES:
            raise UsageError(f"{text!r} names more than {_MAX_NODES} nodes", hint="as n1,n2 or n[1-3,7]")
    return tuple(found)


def _numbers(inside: str, text: str) -> list[str]:
    """`1-3,7` -> 1 2 3 7, with leading zeros as in the first."""
    found: list[str] = []
    for part in inside.split(","):
        first, dash, last = part.partition("-")
        if len(part) > 40:  # no number that Python reads
            raise UsageError(f"{text!r} is no list of nodes: [{inside}]", hint="as n[1-3,7]")
        low, high = (int(first), int(last)) if first and last else (int(first or 0), int(first or -1))
        if not first or (dash and not last) or high < low or high - low > _MAX_NODES:
            raise UsageError(f"{text!r} is no list of nodes: [{inside}]", hint="as n[1-3,7]")
        found += [f"{number:0{len(first)}d}" for number in range(low, high + 1)]
    return found


NODES = Parsed("nodes", parse_nodes)
BEGIN = Parsed("time", parse_begin)

_REQUEUE = "the same as --[no-]resubmit"
PLACED_OPTIONS = (
    click.option("-n", "--processes", type=click.IntRange(1), metavar="P", help="processes of one job, -c cores each  [1, or one a node]"),
    click.option("-N", "--nodes", type=click.IntRange(1), metavar="N", help="on exactly N nodes, spread evenly  [wherever they fit]"),
    click.option("--partition", metavar="NAME", default="", help="where it runs  [that of the queue]"),
    click.option("--exclusive", is_flag=True, help="alone on its nodes, with all their cores and resources"),
    click.option("-w", "--nodelist", type=NODES, metavar="NODES", default=(), help="only on these, as n1,n2 or n[1-3]"),
    click.option("-x", "--exclude", type=NODES, metavar="NODES", default=(), help="on none of these"),
    click.option("--begin", "begin_us", type=BEGIN, metavar="TIME", default=0, help=f"not before: {BEGINS}"),
    click.option("--gpus", type=click.IntRange(1), metavar="N", help="of each process; the same as --resource gpu=N"),
    click.option("--requeue/--no-requeue", default=None, help=_REQUEUE),
    click.option("--kill-on-bad-exit", is_flag=True, help="all processes of a job end when one fails"),
    click.option("--checkpoint-every", "checkpoint_every_us", type=DURATION_US, metavar="TIME", default=0, help="ask it to save its state"),
    click.option(
        "--checkpoint-grace", "checkpoint_grace_us", type=DURATION_US, metavar="TIME", default=None, help="for saving its state  [30s]"
    ),
    click.option("--checkpoint", is_flag=True, help="it saves its state when it is asked to: policies may move it"),
    click.option("--max-moves", type=click.IntRange(1, MOST_ATTEMPTS), metavar="N", help="a policy moves it at most N times  [no cap]"),
    click.option("--restart-from", type=click.Choice((FROM_CHECKPOINT, FROM_START)), default=FROM_CHECKPOINT, help="of a job that moves"),
)  # fmt: skip


def shape_of(values: Mapping[str, Any]) -> Rigid | None:
    """What the options make of a job; None for one process anywhere. Raises UsageError for -N above -n.

    -N without -n: a process a node. What asks for nothing special (-n 1, -N 1) changes nothing.
    """
    nodes = values["nodes"] or 0
    processes = values["processes"] or nodes or 1
    rigid = Rigid(
        processes=processes,
        nodes=nodes if processes > 1 or nodes > 1 else 0,
        exclusive=values["exclusive"],
        nodelist=values["nodelist"],
        exclude=values["exclude"],
        begin_us=values["begin_us"],
        checkpoint_every_us=values["checkpoint_every_us"],
        checkpoint_grace_us=Rigid().checkpoint_grace_us if values["checkpoint_grace_us"] is None else values["checkpoint_grace_us"],
        restart=values["restart_from"],
        checkpoint=values["checkpoint"],
        max_moves=values["max_moves"] or 0,
    )
    if rigid == Rigid():
        return None
    from dataclasses import replace

    from rmgr.procedures.admission import check_shape

    check_shape(rigid)
    return replace(rigid, kill_on_bad_exit=values["kill_on_bad_exit"])


def resources_of(values: Mapping[str, Any]) -> tuple[tuple[str, int], ...]:
    """`--resource`, with `--gpus`. Raises UsageError when they contradict each other."""
    resources: tuple[tuple[str, int], ...] = tuple(values["resources"])
    gpus = values["gpus"]
    if gpus is None:
        return resources
    other = dict(resources).get("gpu", gpus)
    if other != gpus:
        raise UsageError(f"--gpus {gpus} and --resource gpu={other} contradict each other", hint="drop one of them")
    return (*(pair for pair in resources if pair[0] != "gpu"), ("gpu", gpus))


def resubmit_of(values: Mapping[str, Any]) -> bool:
    """`--[no-]resubmit`, by which name ever. Raises UsageError when both are said, and differ."""
    resubmit: bool = values["resubmit"]
    requeue: bool | None = values["requeue"]
    if requeue and not resubmit:
        raise UsageError("--no-resubmit and --requeue contradict each other", hint="they are two names of one thing: drop one")
    return resubmit if requeue is None else requeue
