"""Draws gangs for `rmgr queues --tree`: the partitions whose queues hold jobs, and a matrix of the slots that come."""

from __future__ import annotations

import sys
from typing import Any

from rmgr.cli.display.render import Column, Layout, table
from rmgr.client.queries import GangView
from rmgr.model.base.units import format_duration, spanned
from rmgr.model.tasks.placing import job_label, task_of
from rmgr.sched.capacity.timetable import Timetable
from rmgr.sched.tree.rotation import states_of
from rmgr.sched.tree.shape import tqlb

COLUMNS = (
    Column(name="NODE", text=lambda row: str(row["node"]), is_id=True),
    Column(name="LEAVES", text=lambda row: row["leaves"]),
    Column(name="QUEUE", text=lambda row: ",".join(_label(job) for job, _ in row["queue"]), keep=True),
    Column(name="TQLB", text=lambda row: str(row["tqlb"]), right=True),
    Column(name="STATE", text=lambda row: row["state"]),
    Column(name="RUNS", text=lambda row: _label(row["runs"]) if row["runs"] is not None else "", keep=True),
)


def shape(view: GangView, slots: int) -> dict[str, Any]:
    """The whole record, from which every later slot follows; the present slot, and as many rows of cores as were asked for."""
    record = view.record
    return {
        "partition": view.partition,
        "policy": record.policy,
        "generation": view.generation,
        "quantum_seconds": record.slot_us / 1e6,
        "slot": view.slot,
        "round_slots": _table(view).round_slots,
        "clock": {"node": record.clock.node, "incarnation": record.clock.incarnation, "offset_us": record.clock.offset_us},
        "origin_us": record.origin_us,
        "first_slot": record.slot,
        "width": record.width,
        "next_round": record.next_round,
        "memory_share": record.memory_share,
        "leaves": [{"node": node, "cores": cores} for node, cores in record.leaves],
        "queues": [{"node": node, "jobs": [{"id": _label(job), "weight": weight} for job, weight in jobs]} for node, jobs in record.queues],
        "front": [{"node": node, "still_to_serve": own, "completed": done} for node, own, done in record.front],
        "newcomers": [{"id": _label(job), "node": node, "weight": weight} for job, node, weight in record.late],
        "attempts": [{"id": _label(job), "attempt": attempt, "served_slots": served} for job, attempt, served in record.attempts],
        "tree": [
            {**row, "queue": [_label(job) for job, _ in row["queue"]], "runs": None if row["runs"] is None else _label(row["runs"])}
            for row in _rows(view)
        ],
        "matrix": [
            {"slot": slot, "cores": [None if job is None else _label(job) for job in cores]} for slot, cores in _matrix(view, slots)
        ],
    }


def draw(view: GangView, layout: Layout, slots: int) -> None:
    """A heading, the tree, and the matrix."""
    record = view.record
    present = "no clock can be read" if view.slot is None else f"slot {view.slot}"
    sys.stdout.write(
        f"{view.partition}: {record.policy}, quantum {format_duration(record.slot_us / 1e6)}, generation {view.generation}, {present}, "
        f"rounds of {_table(view).round_slots}, reference {record.clock.node}\n"
    )
    table(_rows(view), COLUMNS, layout)
    rows = _matrix(view, slots)
    if rows:
        cores = [f"{node}/{core}" for node, count in record.leaves for core in range(count)]
        columns = [Column(name="SLOT", text=lambda row: str(row[0]), is_id=True)]
        columns += [
            Column(name=name, text=lambda row, at=at: "." if row[1][at] is None else _label(row[1][at]), keep=True)  # type: ignore[misc]
            for at, name in enumerate(cores)
        ]
        sys.stdout.write("\n")
        table(rows, columns, Layout(header=layout.header))


def _label(job: int) -> str:
    return job_label(*task_of(job))


def _table(view: GangView) -> Timetable:
    """At the present slot, or the first one of the record where that is not known."""
    found = Timetable(view.record, "")
    found.skip_to(view.record.slot if view.slot is None else view.slot)
    return found


def _rows(view: GangView) -> list[dict[str, Any]]:
    found = _table(view)
    runs = dict(found.row()) if view.slot is not None else {}
    tree, rotation = found.tree, found.rotation
    lengths = {node: sum(weight for _, weight in jobs) for node, jobs in view.record.queues}
    bounds, states = tqlb(tree, lengths), states_of(rotation)
    rows = []
    for node in range(tree.nodes):
        queue = [(job, weight) for at, jobs in view.record.queues if at == node for job, weight in jobs]
        queue += [(job, weight) for job, at, weight in view.record.late if at == node]
        if queue:
            rows.append(
                {
                    "node": node,
                    "leaves": _leaves(view.record.leaves, *tree.span(node)),
                    "queue": queue,
                    "tqlb": bounds[node],
                    "state": states[node].value,
                    "runs": runs.get(node),
                }
            )
    return rows


def _leaves(leaves: tuple[tuple[str, int], ...], low: int, high: int) -> str:
    """`n1-n4` of whole nodes, `n1/0-1` of some cores of one."""
    whole: list[str] = []
    parts: list[str] = []
    at = 0
    for node, cores in leaves:
        first, beyond = max(low - at, 0), min(high - at, cores)
        if first < beyond:
            if (first, beyond) == (0, cores):
                whole.append(node)
            else:
                parts.append(f"{node}/{first}" if beyond - first == 1 else f"{node}/{first}-{beyond - 1}")
        at += cores
    return ",".join(([spanned(whole)] if whole else []) + parts)


def _matrix(view: GangView, slots: int) -> list[tuple[int, list[int | None]]]:
    if not slots:
        return []
    found = _table(view)
    rows = []
    for _ in range(slots):
        cores: list[int | None] = [None] * found.tree.leaves
        slot = found.slot
        for node, job in found.row():
            low, high = found.tree.span(node)
            cores[low:high] = [job] * (high - low)
        found.next()
        rows.append((slot, cores))
    return rows
