"""Many queued tasks: how fast they are accepted, and whether the cluster is slower with them than with an empty queue."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from rmgr.adapters.zk_wire import four_letter
from rmgr.client.taskqueue import TaskQueue
from rmgr.dev.bench import SETUP, Bench, Plan, Row, row, two_slots
from rmgr.dev.bench_tasks import no_op

_TASKS = 100_000
_FEW, _MANY = 5, 2_000


def backlog(plan: Plan) -> list[Row]:
    """100,000 no-op tasks queued while the node is drained, in 5 and in 2,000 submissions, then run; once each."""
    total = plan.count(_TASKS)
    rows: list[Row] = []
    with two_slots(plan) as bench:
        _run_out(_fill(bench, 1, 2_000), time.perf_counter())
        rates = []
        for _ in range(plan.repetitions):
            started = time.perf_counter()
            rates.append(_run_out(_fill(bench, 1, plan.count(20_000)), started))
        empty = row("rmgr", SETUP, "run with an empty queue", "tasks/s", rates, ratio=1.0)
        rows.append(empty)
        for submissions in (_FEW, min(_MANY, total)):
            plan.progress(f"{total} tasks in {submissions} submissions")
            before = _zookeeper_bytes(bench)
            _command(bench, "drain", "n1", "--reason", "bench")
            started = time.perf_counter()
            queues = _fill(bench, submissions, total)
            accepted = total / (time.perf_counter() - started)
            held = (_zookeeper_bytes(bench) - before) / total
            what = f"{total} tasks in {submissions} submissions"
            rows.append(row("rmgr", SETUP, f"submit {what}", "tasks/s", [accepted], zookeeper_bytes_per_task=held))
            _command(bench, "resume", "n1")
            rate = _run_out(queues, time.perf_counter())
            rows.append(row("rmgr", SETUP, f"run {what}", "tasks/s", [rate], ratio=rate / empty.rate))
    return rows


def _fill(bench: Bench, submissions: int, tasks: int) -> list[TaskQueue]:
    """Submits `tasks` in so many submissions; returns when all are durable."""
    queues = []
    for number in range(submissions):
        queue = TaskQueue(no_op, connection=bench.connection)
        queue.map(None, range(tasks // submissions + (number < tasks % submissions)))
        queues.append(queue)
    for queue in queues:
        queue.close(timeout=600)
    return queues


def _run_out(queues: list[TaskQueue], started: float) -> float:
    """Waits for the end of all; returns tasks/s since `started`."""
    for queue in queues:
        queue.wait_all(timeout=900)
    return sum(len(queue) for queue in queues) / (time.perf_counter() - started)


def _command(bench: Bench, *words: str) -> None:
    command = [sys.executable, "-m", "rmgr.cli.main", *words]
    subprocess.run(command, env={**os.environ, **bench.environment()}, capture_output=True, check=True, timeout=60)


def _zookeeper_bytes(bench: Bench) -> float:
    """Approximate size of ZooKeeper's data."""
    host, _, port = bench.cluster.state.zookeeper.partition("/")[0].partition(":")
    answer = four_letter(host, int(port), "mntr")
    return next(float(line.split("\t")[1]) for line in answer.splitlines() if line.startswith("zk_approximate_data_size"))
