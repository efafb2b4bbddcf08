"""The ledger outside rmgr: runs as recorded by the tasks themselves, and the one checker that compares them with rmgr's answers.

Each task, and each rank of a job, appends lines to one file (O_APPEND): `event task attempt node pid boottime [rank]`. A task
that is alive writes `beat` every 50 ms, so the end of a killed attempt is known to that precision from the ledger alone.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import psutil

from rmgr.coord.protocol import paths
from rmgr.coord.protocol.ports import Coordinator, Store
from rmgr.model.states import State
from rmgr.model.views import TaskView
from rmgr.procedures.snapshot import read_tasks

BEAT_S = 0.05
#: A task in bash: start, some beats, end. Variables: LEDGER, BEATS (their number), LATER (their number in later attempts), BEAT (pause, s);
#: it ends early when the file STOP appears. A beat starts no process: its pause is a read that times out, because processes of `sleep`
#: would cost more than all other work of a test's cluster.
SHELL = """
exec 9<> <(:)
say() {
  read up idle < /proc/uptime
  echo "$1 $RMGR_TASK_ID $RMGR_ATTEMPT ${RMGR_NODE:-${RMGR_NODELIST:-?}} $$ $up ${RMGR_RANK:-0}" >> "$LEDGER"
}
say start; i=0; [ "$RMGR_ATTEMPT" = 1 ] || BEATS=${LATER:-$BEATS}
while [ $i -lt "$BEATS" ] && ! [ -e "${STOP:-$LEDGER.stop}" ]; do say beat; read -rt "${BEAT:-0.05}" -u 9; i=$((i+1)); done
[ "${PAD:-0}" = 0 ] || head -c "$PAD" /dev/zero | tr '\\0' x
say end; echo "$RMGR_TASK_ID.$RMGR_ATTEMPT"
"""


def work(ledger: str, seconds: float) -> str:
    """The Python task: records its run in the ledger and returns its token. Ends early when `LEDGER.stop` appears."""
    task, attempt, node = (os.environ.get(f"RMGR_{name}", "?") for name in ("TASK_ID", "ATTEMPT", "NODELIST"))

    def say(event: str) -> None:
        line = f"{event} {task} {attempt} {node} {os.getpid()} {time.clock_gettime(time.CLOCK_BOOTTIME):.3f}\n"
        handle = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(handle, line.encode())
        finally:
            os.close(handle)

    say("start")
    end = time.monotonic() + seconds
    while time.monotonic() < end and not os.path.exists(f"{ledger}.stop"):
        time.sleep(min(BEAT_S, max(0.0, end - time.monotonic())))
        say("beat")
    say("end")
    return f"{task}.{attempt}"


@dataclass(frozen=True)
class Span:
    """One execution, as the task itself recorded it (times in s since boot)."""

    task: str
    attempt: int
    node: str
    pid: int
    start: float
    last: float
    ended: bool
    rank: int = 0


def read_ledger(path: Path) -> list[Span]:
    """Returns all executions, in order of their start."""
    spans: dict[tuple[str, int, str, int], dict[str, float]] = {}
    if not path.exists():
        return []
    for line in path.read_text().splitlines():
        event, task, attempt, node, pid, at, *rank = line.split()
        entry = spans.setdefault((task, int(attempt), node, int(pid)), {})
        entry[event], entry["rank"] = float(at), int(rank[0]) if rank else 0
        entry["last"] = max(entry.get("last", 0.0), float(at))
    found = [
        Span(task, attempt, node, pid, entry.get("start", entry["last"]), entry["last"], "end" in entry, int(entry["rank"]))
        for (task, attempt, node, pid), entry in spans.items()
    ]
    return sorted(found, key=lambda span: span.start)


def check(
    coordinator: Coordinator,
    store: Store,
    ledger: Path,
    submissions: Iterable[int],
    *,
    cores: dict[str, int],
    expected: int,
    results: dict[str, str] | None = None,
    exclusive: bool = False,
    max_attempts: int = 10,
    ranks: Mapping[int, int] | None = None,
) -> dict[str, TaskView]:
    """Checks I1-I6 for all tasks of `submissions` against the ledger; returns the tasks by id.

    expected: number of acknowledged tasks. results: the application's result of each task. cores: of each node.
    exclusive: whether attempts of a task may not overlap (I5).
    ranks: number of processes of a submission whose script starts them with `rmgr run` and does nothing else.
    """
    tasks: dict[str, TaskView] = {}
    for number in submissions:
        for view in read_tasks(coordinator, store, number)[1]:
            tasks[view.id] = view
    assert len(tasks) == expected, f"I1: {expected} tasks were acknowledged, {len(tasks)} are known"
    lost = [task for task, view in tasks.items() if not view.state.is_final]
    assert not lost, f"I1: tasks without an end after the drain: {lost[:5]}"
    spans = read_ledger(ledger)
    by_task: dict[tuple[str, int], list[Span]] = defaultdict(list)
    for span in spans:
        by_task[span.task, span.rank].append(span)
    assert {task for task, _ in by_task} <= set(tasks), "a task ran that nobody had submitted"
    for task, view in tasks.items():
        processes = (ranks or {}).get(view.submission, 0)
        for rank in range(max(1, processes) if view.state is State.COMPLETED else 0):
            ends = [span for span in by_task[task, rank] if span.ended and span.attempt == view.attempt]
            assert len(ends) == 1, f"I2: {task} committed attempt {view.attempt}, the ledger has {len(ends)} ends of it (rank {rank})"
            if not processes:
                assert ends[0].node in {view.node, "?"}, f"I3: {task} was committed by {view.node}, it ended on {ends[0].node}"
    for task, value in (results or {}).items():
        assert value == f"{task}.{tasks[task].attempt}", f"I2: {task} gave {value!r}, committed is attempt {tasks[task].attempt}"
    for (task, _), runs in by_task.items():
        attempts = [span.attempt for span in runs]
        assert attempts == sorted(set(attempts)), f"I4: attempts of {task} in order of their start: {attempts}"
        assert attempts[-1] <= max_attempts, f"I4: {task} was tried {attempts[-1]} times"
        if exclusive:
            for earlier, later in pairwise(runs):
                assert earlier.last <= later.start, f"I5: {task} attempts {earlier.attempt} and {later.attempt} ran at the same time"
    check_cores(spans, cores)
    return tasks


def check_cores(spans: list[Span], cores: dict[str, int]) -> None:
    """Checks I6: a node never runs more one-core tasks than it has cores (a killed task's span ends at its last beat)."""
    for node, capacity in cores.items():
        events = sorted(event for span in spans if span.node == node for event in ((span.start, 1), (span.last, -1)))
        running = most = 0
        for _, change in events:
            running += change
            most = max(most, running)
        assert most <= capacity, f"I6: {node} with {capacity} cores ran {most} tasks at once"


def check_nothing_left(
    coordinator: Coordinator, directory: Path, nodes: Iterable[str], queues: Iterable[str] = ("default", "batch")
) -> None:
    """Checks I9: no znode of work, no order, no cores held for a job, and no process of a task is left."""
    left = []
    for node in nodes:
        left += [f"running {node} {name}" for name in coordinator.children(paths.running_node(node)).result(60) or ()]
        left += [f"inbox {node} {name}" for name in coordinator.children(paths.inbox_node(node)).result(60) or ()]
        left += [f"hold {node} {name}" for name in coordinator.children(paths.hold(node)).result(60) or ()]
    for queue in queues:
        left += [f"pending {name}" for name in coordinator.children(paths.pending(queue)).result(60) or ()]
        left += [f"held {name}" for name in coordinator.children(paths.held(queue)).result(60) or ()]
    assert not left, f"I9: left in ZooKeeper: {left[:5]}"
    assert not (orphans := task_processes(directory)), f"I9: processes of tasks are left: {orphans}"


def task_processes(directory: Path) -> list[tuple[int, str]]:
    """Returns pid and command line of each process with a task's environment whose cluster lives in `directory`."""
    found = []
    for process in psutil.process_iter(["pid"]):
        with contextlib.suppress(psutil.Error):
            environment = process.environ()
            if environment.get("RMGR_TASK_ID") and str(directory) in environment.get("RMGR_STORE", "") + environment.get("LEDGER", ""):
                found.append((process.pid, " ".join(process.cmdline())[:100]))
    return found
