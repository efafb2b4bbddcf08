"""Lanes of calls: for each server and each of its links when calls of one replication were transferred and computed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rmgr.errors import UsageError
from rmgr.sim.calls.runs import CallRow
from rmgr.sim.plots.canvas import PALETTE, Figure, Patch, legend_below, named, new_figure, set_time_axis

#: Bars of one lane that overlap are drawn in so many tracks at most.
_TRACKS = 8
_MOST_CLIENTS = len(PALETTE)


class _Bar(NamedTuple):
    """start and end in seconds."""

    client: str
    start_s: float
    end_s: float


def calls(rows: Sequence[CallRow]) -> Figure:
    """The picture of one policy, case and seed. A lane a server (waiting and computing) and, below it, a lane a link; colours are clients.

    Raises: UsageError for no calls.
    """
    if not rows:
        raise UsageError("there are no calls to draw", hint="rmgr sim calls ... --out DIR")
    clients = sorted({row.client for row in rows}, key=lambda name: (len(name), name))
    colours = {client: PALETTE[at % _MOST_CLIENTS] for at, client in enumerate(clients)}
    lanes: list[tuple[str, list[_Bar]]] = []
    for server in sorted({row.server for row in rows}):
        mine = [row for row in rows if row.server == server]
        lanes.append((f"{server}: computing", [_Bar(row.client, row.arrived_s, row.ended_s) for row in mine]))
        for client in (name for name in clients if any(row.client == name for row in mine)):
            bars = [_Bar(client, row.sent_s, row.arrived_s) for row in mine if row.client == client]
            lanes.append((f"{server}: link of {client}", bars))
    figure = new_figure(height=max(3.0, 0.34 * len(lanes) + 1.4))
    axes = figure.add_subplot()
    axis = set_time_axis(axes, 0.0, max(row.ended_s for row in rows))
    axes.set_xlabel(axes.get_xlabel().replace("the first submit", "the beginning"))
    for at, (_, bars) in enumerate(lanes):
        tracks = _tracks(bars)
        height = 0.84 / (max(track for track, _ in tracks) + 1)
        for track, bar in tracks:
            left, right = axis.at(bar.start_s), axis.at(bar.end_s)
            axes.barh(
                at - 0.42 + (track + 0.5) * height,
                right - left,
                left=left,
                height=height,
                color=colours[bar.client],
                linewidth=0.2,
                edgecolor="white",
            )
    axes.set_yticks(range(len(lanes)), [name for name, _ in lanes])
    axes.set_ylim(len(lanes) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
    first = rows[0]
    mean = sum(row.ended_s - row.issued_s for row in rows) / len(rows)
    named(axes, f"Calls under {first.policy}, case {first.case}", f"seed {first.seed}", f"{len(rows)} calls", f"mean {mean:.2f} s")
    legend_below(figure, [Patch(color=colours[client]) for client in clients[:_MOST_CLIENTS]], clients[:_MOST_CLIENTS])
    return figure


def _tracks(bars: Sequence[_Bar]) -> list[tuple[int, _Bar]]:
    """Each bar with the first track that is free for it; those beyond the last track share it."""
    free: list[float] = []
    placed = []
    for bar in sorted(bars, key=lambda bar: (bar.start_s, bar.end_s)):
        track = next((at for at, end in enumerate(free) if end <= bar.start_s), len(free))
        if track == len(free) and track < _TRACKS:
            free.append(bar.end_s)
        track = min(track, _TRACKS - 1)
        free[track] = max(free[track], bar.end_s)
        placed.append((track, bar))
    return placed
