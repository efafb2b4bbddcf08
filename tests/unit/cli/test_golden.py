"""Machine output and columns, byte for byte: the shapes of cli.md sections 4 and 5 are a contract, changes are additions.

RMGR_UPDATE_GOLDEN=1 writes the files anew; look at the difference before it is committed.
"""

from __future__ import annotations

import io
import json
import os

import pytest

from rmgr.cli.display import columns, shapes
from rmgr.cli.display.columns import CLASS_COLUMNS, draw_class
from rmgr.cli.display.render import Column, Layout, emit, table
from rmgr.model.states import Reason, State
from rmgr.model.views import (
    AttemptView,
    ClassView,
    ExplainView,
    FaultView,
    HeldView,
    JobView,
    LeaderView,
    NodeView,
    PolicyView,
    PromiseView,
    QueueView,
    StatusView,
    TaskView,
    WhyView,
)
from tests.places import GOLDEN

T0 = 1_790_000_000_000_000  # 2026-09-21T14:13:20Z
NOW = T0 + 3_725_000_000

RUNNING = JobView(
    id=42, name="train", user="ada", queue="default", state=State.RUNNING, submitted_us=T0, started_us=T0 + 500_000,
    counts={"INITIAL": 60, "RUNNING": 3, "COMPLETED": 35, "FAILED": 2}, nodes=("n1", "n2", "n3", "n4", "n5"), tasks=100, priority=5,
    work="command", command="./train --epochs 3", cores=2, memory_bytes=2 << 30, after=("ok:41",)
)
WAITING = JobView(
    id=1043, name="evaluate-with-a-long-name", user="ada", queue="fast", state=State.HELD, reason=Reason.DEPENDENCY, submitted_us=T0,
    counts={"HELD": 1}, tasks=1
)
FAILED = JobView(
    id=7, name="prepare", user="bob", queue="default", state=State.FAILED, reason=Reason.EXIT_CODE, submitted_us=T0,
    started_us=T0 + 1_000_000, ended_us=T0 + 13_000_000, exit_code=3, counts={"FAILED": 1}, nodes=("n1",), tasks=1, cpu_us=8_250_000,
    max_rss_kib=20_480, work="command", command="sh prepare.sh"
)
ATTEMPTS = (
    AttemptView(attempt=1, node="n2", state=State.FAILED, reason=Reason.NODE_LOST, started_us=T0, ended_us=T0 + 1_000_000),
    AttemptView(
        attempt=2, node="n1", state=State.FAILED, reason=Reason.EXIT_CODE, started_us=T0 + 2_000_000, ended_us=T0 + 13_000_000,
        exit_code=3, error="exit code 3"
    ),
)
TASKS = [
    TaskView(
        submission=42, index=1, position=0, state=State.COMPLETED, attempt=1, node="n1", started_us=T0, ended_us=T0 + 61_500_000,
        exit_code=0, cpu_us=60_000_000, max_rss_kib=1024
    ),
    TaskView(
        submission=42, index=3, position=1, state=State.FAILED, reason=Reason.EXIT_CODE, attempt=2, node="n1", started_us=T0,
        ended_us=T0 + 250_000, exit_code=3, error="exit code 3", attempts=ATTEMPTS
    ),
    TaskView(submission=42, index=5, position=2, state=State.RUNNING, attempt=1, node="n2", started_us=T0),
    TaskView(submission=42, index=7, position=3, state=State.INITIAL),
]
NODES = [
    NodeView(
        id="n1", state="up", cores=16, cores_used=4, memory_bytes=64 << 30, memory_used_bytes=8 << 30, running=4, load=3.25,
        incarnation=2, pid=4711, host="h1", site="east", speed=1.5, features=("gpu", "ssd"), resources={"gpu": 2, "licence": 1},
        resources_used={"gpu": 1}, endpoint="h1:7070", seen_us=NOW - 2_000_000
    ),
    NodeView(
        id="n2", state="drained", cores=2, cores_used=0, memory_bytes=4 << 30, incarnation=1, pid=12, host="h2", reason="new disk",
        seen_us=NOW - 65_000_000
    ),
    NodeView(
        id="n3", state="fenced", cores=2, cores_used=0, memory_bytes=4 << 30, incarnation=7, pid=13, host="h3", reason="session lost",
        seen_us=NOW - 7_200_000_000
    ),
]
QUEUES = [
    QueueView(id="default", partition="default", dispatch="pull", policy="fifo", state="open", pending=60, running=3),
    QueueView(
        id="fast", partition="default", dispatch="pull", policy="fifo", state="closed", pending=0, running=0, held_tasks=1,
        limits={"max_time_s": 3600, "max_cores": 4}
    ),
    QueueView(
        id="batch",
        partition="default",
        dispatch="place",
        policy="easy",
        state="open",
        pending=1,
        running=2,
        held=(
            HeldView(queue="batch", job="1044", node="n1", cores=8, since_us=T0, expected_start_us=NOW + 60_000_000),
            HeldView(queue="batch", job="1044", node="n2", cores=2),
        ),
    ),
]
CLASSES = [
    QueueView(
        id="ss8", partition="default", dispatch="place", policy="connection_reservation", state="open", pending=0, running=12,
        limits={"max_cpus": 8, "max_processes": 8, "max_threads": 8, "max_time_s": 7200},
        of_class=ClassView(limits="CPUs <= 8, processes <= 8, threads a process <= 8, time < 2:00:00", chosen="its policy chooses it")
    ),
    QueueView(
        id="d512",
        partition="default",
        dispatch="place",
        policy="connection_reservation",
        state="open",
        pending=3,
        running=1,
        limits={"max_cpus": 512, "max_processes": 512, "max_threads": 32},
        of_class=ClassView(
            limits="CPUs <= 512, processes <= 512, threads a process <= 32",
            threshold=20,
            max_reservations=2,
            head_trigger=True,
            fired=(4, 1, 12),
            promised=(
                PromiseView(job="1044", cores=512, held=128, waits_for=("42", "43_7"), expected_start_us=NOW + 60_000_000),
                PromiseView(job="1046", cores=256),
            ),
        ),
    ),
    QueueView(
        id="wide", partition="far", dispatch="place", policy="classes.toml", state="closed", pending=0, running=0,
        of_class=ClassView(limits="no limits", threshold=30, max_reservations=1, is_known=False)
    ),
]
STATUS = StatusView(
    healthy=False,
    leader=LeaderView(id="w1", host="h1", pid=99, epoch=3, since_us=T0, endpoint="h1:7000"),
    zookeeper={"ok": True, "hosts": "h1:2181"},
    store={"ok": False, "url": "sqlite:/srv/store.db", "problem": "disk full"},
    counts={"INITIAL": 60, "RUNNING": 3, "COMPLETED": 35, "FAILED": 2, "CANCELLED": 0, "HELD": 1, "SUSPENDED": 0},
    nodes={"up": 1, "draining": 1, "fenced": 1, "down": 0},
    cluster_id="c0ffee",
    problems=("store: disk full",),
    watchdogs=2,
    uptime_s=3725.0,
    policies=(
        PolicyView(
            partition="default", policy="mine, easy", passes=120, last_pass_s=0.0015,
            faults=(FaultView(policy="mine", count=2, error="ZeroDivisionError: division by zero"),)
        ),
    ),
    healthy_since_us=T0 + 60_000_000,
    cores=32,
    cores_used=20,
    memory_bytes=64 << 30,
    memory_used_bytes=8 << 30,
    oldest_us=T0 + 1_000_000,
    users={"ben": 2, "": 4, "ada": 14},
)
EXPLAIN = ExplainView(
    id="1043", state=State.HELD, reason=Reason.DEPENDENCY,
    why=(WhyView(what="dependency", id="42", detail="waits for ok:42; it is RUNNING"),),
)
PLACED = JobView(
    id=1044, name="mpi", user="ada", queue="batch", state=State.INITIAL, reason=Reason.RESOURCES,
    detail="waits for cores that job 42 has", submitted_us=T0, counts={"INITIAL": 1}, tasks=1, work="command", command="mpirun ./solve",
    cores=2, processes=8, expected_start_us=NOW + 60_000_000
)
EXPLAIN_PLACED = ExplainView(
    id="1044", state=State.INITIAL, reason=Reason.RESOURCES,
    why=(WhyView(what="resources", id="42", detail="waits for cores that job 42 has"),), expected_start_us=NOW + 60_000_000
)

DOCUMENTS = {
    "submit": {"id": "42", "tasks": 1},
    "jobs": {"jobs": [shapes.job(job) for job in (RUNNING, WAITING, FAILED, PLACED)]},
    "show": shapes.shown_job(FAILED, ATTEMPTS),
    "show_task": shapes.shown_task(TASKS[1], RUNNING),
    "tasks": {"tasks": [shapes.task(task) for task in TASKS], "next": None},
    "nodes": {"nodes": [shapes.node(node) for node in NODES]},
    "queues": {"queues": [shapes.queue(queue) for queue in QUEUES], "classes": [shapes.queue_class(queue) for queue in CLASSES]},
    "status": shapes.status(STATUS),
    "explain": shapes.explain(EXPLAIN),
    "explain_placed": shapes.explain(EXPLAIN_PLACED),
    "history": {"history": [shapes.history(FAILED)]},
    "wait": {"items": [shapes.item("7", State.FAILED, Reason.EXIT_CODE, 3)]},
}
TABLES: dict[str, tuple[list[object], tuple[Column, ...]]] = {
    "jobs": ([RUNNING, WAITING, FAILED, PLACED], columns.job_columns(NOW)),
    "tasks": (list(TASKS), columns.task_columns(NOW)),
    "nodes": (list(NODES), columns.node_columns(NOW)),
    "queues": (list(QUEUES), columns.QUEUE_COLUMNS),
    "classes": (list(CLASSES), CLASS_COLUMNS),
    "held": ([held for queue in QUEUES for held in queue.held], columns.HELD_COLUMNS),
    "history": ([FAILED], columns.HISTORY_COLUMNS),
}


@pytest.fixture(autouse=True)
def _utc(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    monkeypatch.setenv("TZ", "UTC")
    time.tzset()


def same(name: str, text: str) -> None:
    path = GOLDEN / name
    if os.environ.get("RMGR_UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("name", sorted(DOCUMENTS))
def test_machine_output_is_the_contract(name: str) -> None:
    out = io.StringIO()
    emit(DOCUMENTS[name], out)
    line = out.getvalue()
    assert line.count("\n") == 1  # one value, one line
    document = json.loads(line)
    assert next(iter(document)) == "schema"
    assert document["schema"] == "rmgr/1"
    same(f"{name}.json", json.dumps(document, indent=2) + "\n")


@pytest.mark.parametrize("name", sorted(TABLES))
def test_tables_have_the_columns_of_the_contract(name: str) -> None:
    rows, shown = TABLES[name]
    out = io.StringIO()
    table(rows, shown, Layout(), out)
    same(f"{name}.txt", out.getvalue())

TRIGGERS = (
    "for one whose individual priority is above 20, one that comes to the empty class and cannot start, "
    "or as the first of it when something has ended and it cannot start"
)
IN_WORDS = [
    "class      d512 of partition default, placed by connection_reservation, open",
    "limits     CPUs <= 512, processes <= 512, threads a process <= 32",
    "jobs       3 wait, 1 run",
    f"reserves   cores of running jobs, for at most 2 of its jobs at a time (2 now): {TRIGGERS}",
    "fired      priority 4, head 1, no waiter 12 times (reservations made)",
    "promised   512 cores for 1044, 128 of them free already; waits for the end of 42,43_7; starts by",
    "           256 cores for 1046",
]


def test_a_queue_class_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    draw_class(CLASSES[1])
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(" by ")[0] + " by" if "free already" in line else line for line in lines] == IN_WORDS
    draw_class(CLASSES[2])
    told = capsys.readouterr().out
    assert "jobs       only the leader knows, and it does not answer" in told
    assert "fired" not in told

CONTRACT = {
    "jobs": "ID NAME STATE DONE RUN FAIL TIME LEFT WHERE/WHY",
    "tasks": "TASK STATE ATTEMPT NODE TIME EXIT ERROR",
    "nodes": "NODE STATE CORES MEM GRES RUN LOAD SEEN REASON",
    "queues": "QUEUE STATE POLICY PENDING RUNNING MAXTIME",
    "history": "ID NAME USER STATE EXIT SUBMITTED ELAPSED CPUTIME MAXRSS NODES",
}


@pytest.mark.parametrize("name", sorted(CONTRACT))
def test_the_default_columns_are_those_of_the_contract(name: str) -> None:
    shown = [column.name for column in TABLES[name][1] if column.default]
    assert " ".join(shown) == CONTRACT[name]

FIELDS = {
    "show": "id name user queue state reason submitted started ended exit_code attempts counts nodes",
    "status": "healthy leader zookeeper store counts nodes",
    "explain": "id state why expected_start",
}
ITEM_FIELDS = {
    "jobs": "id name user queue state reason submitted started ended exit_code counts nodes",
    "nodes": "id state cores cores_used mem_bytes load incarnation pid reason",
    "tasks": "id index state reason attempt node started ended exit_code error",
    "queues": "id partition dispatch policy state pending running limits held",
    "history": "id name user state reason exit_code submitted started ended elapsed cpu_seconds max_rss_bytes nodes",
}


def test_every_field_of_the_contract_is_there() -> None:
    for name, fields in FIELDS.items():
        assert set(fields.split()) <= set(DOCUMENTS[name]), name
    for name, fields in ITEM_FIELDS.items():
        assert set(fields.split()) <= set(DOCUMENTS[name][name][0]), name  # type: ignore[index]
    attempt = "attempt node state reason started ended exit_code"
    assert set(attempt.split()) <= set(DOCUMENTS["show"]["attempts"][0])  # type: ignore[index]
    held = "for node cores since expected_start"
    assert held.split() == list(DOCUMENTS["queues"]["queues"][2]["held"][0])  # type: ignore[index]
    counts = "INITIAL RUNNING COMPLETED FAILED CANCELLED HELD SUSPENDED"
    assert list(DOCUMENTS["show"]["counts"]) == counts.split()  # type: ignore[call-overload]
