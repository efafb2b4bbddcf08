"""A workload of the simulator on a live cluster: its jobs are submitted when it says and run as long as it says, on real nodes.

A job is a command that sleeps. One that is asked to stop (migration) keeps what is left of its time in its checkpoint directory, and goes
on with that. So both tell the same story: when each job started, ended, and how often it was stopped.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rmgr.client.connection import Connection
from rmgr.client.ports import TaskSpec
from rmgr.client.specs import Options, draft_of
from rmgr.client.submission.engine import Engine
from rmgr.client.submission.packing import Buffer, block_of
from rmgr.errors import RmgrError, Unavailable
from rmgr.model.base.resources import Request
from rmgr.model.base.states import State
from rmgr.model.cluster.queue import PipelineSpec
from rmgr.model.tasks.block import Fragment, Outcome
from rmgr.model.tasks.placing import Rigid
from rmgr.model.tasks.submission import Command, Submission, Work
from rmgr.procedures.admission import admit
from rmgr.sim.workload.jobs import Workload, WorkloadJob
from rmgr.submitter.port import Order
from rmgr.submitter.questions import ApplySettings, ReadSettings

PARTITION = "default"
_QUEUE = "batch"
#: Sleeps "$1" milliseconds, less what earlier attempts have slept; asked to save, it saves what is left.
_SLEEP = """cd "$RMGR_CHECKPOINT_DIR"; read -r left 2>/dev/null < left || left=$1
now() { read -r up _ < /proc/uptime; echo "${up%.*}${up#*.}0"; }
trap asked=yes USR1
while [ $left -gt 0 ]; do
    asked= began=$(now)
    sleep "$((left / 1000)).$(printf %03d $((left % 1000)))" & wait $!
    [ "$asked" ] || exit 0
    kill $!; left=$((left - $(now) + began)); [ $left -gt 0 ] || left=0
    echo $left > new; mv new left; cp .rmgr/number .rmgr/saved; [ ! -e .rmgr/stop ] || exit 85
done
"""
#: Says in directory "$1" that it runs; sleeps "$2" seconds once all jobs are said there to be submitted.
_SLEEP_LATER = ': > "$1/runs"; until [ -e "$1/all" ]; do sleep 0.05; done; exec sleep "$2"'
#: Sleeps argv[1] times 10 ms.
_NAPS = "import sys, time\nfor _ in range(int(sys.argv[1])): time.sleep(0.01)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """A job as it was. start_us: of its first attempt; end_us: of its last one; both since the first submission. attempts: 1 + its moves.

    submission: its number, 0 = told by a simulation. state: COMPLETED, or what went wrong, with why. nodes: of its last attempt, the head
    first.
    """

    number: int
    start_us: int
    end_us: int
    attempts: int
    submission: int = 0
    state: State = State.COMPLETED
    why: str = ""
    nodes: tuple[str, ...] = ()


class WorkloadStage:
    """A cluster on which workloads are played, one after the other. Nothing else may be submitted there.

    queue: of jobs that name none; workloads of several partitions may be played at once, each in queues of its own.
    """

    def __init__(self, connection: Connection, *, queue: str = _QUEUE) -> None:
        assert isinstance(connection.submitter, Engine)
        self._engine = connection.submitter
        self._queue = queue

    def use(self, pipeline: PipelineSpec) -> None:
        """Lets it place from now on. Raises: Unavailable."""
        asks = self._engine.asks
        found = asks.ask(ReadSettings(), timeout_s=10.0)
        asks.ask(ApplySettings(settings=replace(found.settings, pipelines=(pipeline,)), version=found.version), timeout_s=10.0)

    def play(
        self,
        workload: Workload,
        *,
        patience_s: float = 300.0,
        checkpoints: bool = False,
        naps: bool = False,
        meeting: Path | None = None,
    ) -> list[Played]:
        """Submits each job at its time (into the queue or queue class that it names) and waits for all; in the order of their numbers.

        checkpoints: jobs can move (a shell more a job). naps: they sleep 10 ms at a time (a Python a job).
        meeting: an empty directory that nodes see. No other job is submitted before the first one runs, and its time begins when all are.
        Raises: Unavailable for one that has not ended so long after the last submission, or not begun in that time.
        """
        self._engine.settings()
        ends = [_End(job.number) for job in workload.jobs]
        began_ns, began_s = time.time_ns(), time.monotonic()
        for job, end in zip(workload.jobs, ends, strict=True):
            wait_s = began_s + job.submit_us / 1e6 - time.monotonic()
            if wait_s > 0:
                time.sleep(wait_s)
            end.submission = self._submit(job, checkpoints=checkpoints, naps=naps, meeting=meeting if end is ends[0] else None)
            self._engine.attach(end.submission, end, own=False, timeout_s=30.0)
            if meeting is not None and end is ends[0]:
                _wait_for(meeting / "runs", patience_s)
                began_s = time.monotonic() - job.submit_us / 1e6
        if meeting is not None:
            meeting.joinpath("all").touch()
        until_s = time.monotonic() + patience_s
        for end in ends:
            if not end.over.wait(max(0.0, until_s - time.monotonic())):
                raise Unavailable(f"job {end.number} (submission {end.submission}) has not ended after {patience_s:g} s")
        return [end.played(began_ns // 1000) for end in ends]

    def _submit(self, job: WorkloadJob, *, checkpoints: bool, naps: bool, meeting: Path | None) -> int:
        """One job in one commit, as `rmgr submit` does; its number."""
        seconds = job.run_us / 1e6
        command: tuple[str, ...] = ("/bin/sleep", f"{seconds:.3f}")
        if meeting is not None:
            command = ("/bin/sh", "-c", _SLEEP_LATER, "sh", str(meeting), f"{seconds:.3f}")
        elif checkpoints:
            command = ("/bin/sh", "-c", _SLEEP, "sh", str(round(seconds * 1000)))
        elif naps:
            command = (sys.executable, "-ISc", _NAPS, str(job.run_us // 10_000))
        draft = replace(
            draft_of(
                Options(queue=job.queue or self._queue, name=f"job-{job.number}"),
                work=Work.COMMAND,
                command=Command(argv=command),
                user=self._engine.user,
                rigid=Rigid(processes=job.processes, checkpoint=checkpoints),
            ),
            request=Request(cores=job.threads, time_limit_us=job.estimate_us),
        )
        return send(self._engine, admit(draft, self._engine.settings(), self._engine.nodes()))


def _wait_for(file: Path, patience_s: float) -> None:
    until_s = time.monotonic() + patience_s
    while not file.exists():
        if time.monotonic() > until_s:
            raise Unavailable(f"the first job has not begun after {patience_s:g} s")
        time.sleep(0.02)


def send(engine: Engine, draft: Submission) -> int:
    """A submission of one task in one commit, as `rmgr submit` does it; its number."""
    buffer = Buffer(single=True)
    buffer.add(TaskSpec(), [b""])
    (packed,) = buffer.take()
    key, data = block_of(packed, submission=0, priority=draft.priority, cores=draft.request.cores, memory_mib=0, user=draft.user)
    order = Order(draft=draft, blocks=[(key, data)], tasks=1, complete=True)
    return engine.submit(order, timeout_s=30.0).submission.id


def pipeline_with(name: str, document: Mapping[str, object]) -> PipelineSpec:
    """The tables of a policy file."""
    return PipelineSpec(partition=PARTITION, document=json.dumps(document, sort_keys=True), name=name)


class _End:
    """Waits for one job."""

    def __init__(self, number: int) -> None:
        self.number, self.submission, self.over = number, 0, threading.Event()
        self._found: tuple[Fragment, Outcome] | None = None
        self._error: RmgrError | None = None

    def on_outcomes(self, fragment: Fragment, outcomes: Sequence[Outcome]) -> None:
        """See `ports.Listener`. On the Submitter's thread."""
        self._found = (fragment, outcomes[0])
        self.over.set()

    def on_progress(self) -> None:
        """See `ports.Listener`."""

    def on_dead(self, error: RmgrError) -> None:
        """See `ports.Listener`."""
        if self._found is None:
            self._error = error
            self.over.set()

    def played(self, began_us: int) -> Played:
        """What became of it."""
        if self._found is None:
            raise self._error or Unavailable(f"job {self.number} is not told")
        fragment, outcome = self._found
        last_us = fragment.base_us + outcome.started_us
        first_us = min([last_us, *(past.started_us for past in outcome.past if past.started_us)])
        return Played(
            number=self.number,
            start_us=first_us - began_us,
            end_us=last_us + outcome.elapsed_us - began_us,
            attempts=1 + len(outcome.past),
            submission=self.submission,
            state=outcome.state,
            why=f"{outcome.reason} {outcome.error}".strip(),
            nodes=(fragment.node, *outcome.helpers),
        )
