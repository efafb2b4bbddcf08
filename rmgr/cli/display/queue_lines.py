"""Draws queue classes for `rmgr queues`: a line for each, and one class in words."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rmgr.cli.display.columns import node_list
from rmgr.cli.display.render import Column, clock, paint, printable
from rmgr.model.base.units import counted, format_duration
from rmgr.model.views import ClassView, PromiseView, QueueView


def _of(queue: QueueView) -> ClassView:
    assert queue.of_class is not None
    return queue.of_class


def _known(queue: QueueView, text: str) -> str:
    """What only the leader knows is "?" without one."""
    return text if _of(queue).is_known else "?"


def _limit(queue: QueueView, name: str) -> str:
    return str(queue.limits.get(name, ""))


def _time(queue: QueueView) -> str:
    seconds = queue.limits.get("max_time_s", 0)
    return format_duration(float(seconds)) if seconds else ""


def _cores(queue: QueueView) -> int:
    return sum(promise.cores for promise in _of(queue).promised)


def _promised(queue: QueueView) -> str:
    cores = _cores(queue)
    return f"{cores} for {node_list([promise.job for promise in _of(queue).promised], most=2)}" if cores else ""


def _reserves(queue: QueueView, text: str) -> str:
    return text if _of(queue).max_reservations else ""


CLASS_COLUMNS = (
    Column(name="CLASS", text=lambda q: q.id, is_id=True),
    Column(name="WAIT", text=lambda q: _known(q, str(q.pending)), order=lambda q: q.pending, right=True),
    Column(name="RUN", text=lambda q: _known(q, str(q.running)), order=lambda q: q.running, right=True),
    Column(name="CPUS", text=lambda q: _limit(q, "max_cpus"), right=True),
    Column(name="PROCS", text=lambda q: _limit(q, "max_processes"), right=True),
    Column(name="THREADS", text=lambda q: _limit(q, "max_threads"), right=True),
    Column(name="TIME", text=_time, order=lambda q: float(q.limits.get("max_time_s", 0)), right=True),
    Column(name="OVER", text=lambda q: _reserves(q, str(_of(q).threshold)), order=lambda q: _of(q).threshold, right=True),
    Column(name="RES", text=lambda q: _reserves(q, f"{len(_of(q).promised)}/{_of(q).max_reservations}"), right=True),
    Column(name="FIRED", text=lambda q: _reserves(q, _known(q, "/".join(map(str, _of(q).fired)))), right=True),
    Column(name="PROMISED", text=_promised, order=_cores),
    Column(name="PARTITION", text=lambda q: q.partition, default=False),
    Column(name="STATE", text=lambda q: q.state, state=True, default=False),
    Column(name="POLICY", text=lambda q: q.policy, default=False),
    Column(name="LIMITS", text=lambda q: _of(q).limits, default=False),
    Column(name="CHOSEN", text=lambda q: _of(q).chosen, default=False),
)


def draw_class(queue: QueueView) -> None:
    """One class, in words."""
    out, found = sys.stdout, _of(queue)
    lines = [
        ("class", f"{queue.id} of partition {queue.partition}, placed by {queue.policy}, {queue.state}"),
        ("limits", found.limits),
        ("jobs", f"{queue.pending} wait, {queue.running} run" if found.is_known else "only the leader knows, and it does not answer"),
    ]
    lines += [("chosen", found.chosen)] if found.chosen else []
    lines += [("reserves", _when(found)), *_fired(found)]
    lines += [("promised" if not at else "", _promise(promise)) for at, promise in enumerate(found.promised)]
    for name, told in lines:
        out.write(f"{paint(f'{name:<9}', 'bold', out)}  {printable(told)}\n")
    out.flush()


def _when(found: ClassView) -> str:
    if not found.max_reservations:
        return "nothing: its jobs wait for free cores"
    head = ", or as the first of it when something has ended and it cannot start" if found.head_trigger else ""
    return (
        f"cores of running jobs, for at most {found.max_reservations} of its jobs at a time ({len(found.promised)} now): for one whose "
        f"individual priority is above {found.threshold}, one that comes to the empty class and cannot start{head}"
    )


def _fired(found: ClassView) -> Sequence[tuple[str, str]]:
    if not found.max_reservations or not found.is_known:
        return ()
    priority, head, no_waiter = found.fired
    return (("fired", f"priority {priority}, head {head}, no waiter {counted(no_waiter, 'time')} (reservations made)"),)


def _promise(promise: PromiseView) -> str:
    free = f", {promise.held} of them free already" if promise.held else ""
    waits = f"; waits for the end of {node_list(promise.waits_for, most=8)}" if promise.waits_for else ""
    start = f"; starts by {clock(promise.expected_start_us)}" if promise.expected_start_us else ""
    return f"{counted(promise.cores, 'core')} for {promise.job}{free}{waits}{start}"
