"""Connection reservation beside pulled work: how soon a job runs that waited for others, once the last of them has ended.

Every core of the cluster has a placed job of one core, and pulled tasks of 0.3 s wait for any of them. A job of all cores is promised
what these jobs have, and they end. The gap is from the last of them that says it ends to the first instruction of the job, on one clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rmgr.bench.load.live_workload import WorkloadStage, pipeline_with, send
from rmgr.bench.measuring import MeasuringPlan, Row, percentile, row
from rmgr.coord.protocol import paths
from rmgr.errors import Unavailable
from rmgr.model.tasks.placing import Rigid
from rmgr.model.tasks.submission import Command, Submission

_ROUNDS, _PULLED = 20, 5_000
_PATIENCE_S, _POLL_S = 120.0, 0.005
_ONE = 'touch "$1/begun.$RMGR_ARRAY_INDEX"; while [ ! -e "$1/go" ]; do sleep 0.02; done; date +%s%N > "$1/ended.$RMGR_ARRAY_INDEX"'
_ALL = 'date +%s%N > "$1/new" && mv "$1/new" "$1/ran"'
_PULL = '[ -e "$1/stop" ] || sleep 0.3'


def classes(cores: int) -> dict[str, object]:
    """Jobs of one core, and jobs of up to `cores`, one of which may reserve."""
    small = {"name": "one", "max_cpus": 1, "max_processes": 1, "max_threads": 1}
    large = {"name": "all", "max_cpus": cores, "max_processes": cores, "max_threads": 1, "reservation_threshold": 20, "max_reservations": 1}
    return {"stage": [{"policy": "connection_reservation"}], "queue": [small, large]}


class Gaps:
    """Measures them.

    Args:
        draft: a submission of this command, with these options. begin: submits an array of so many tasks, and does not wait.
        nodes: their names; cores: of each.
    """

    def __init__(
        self,
        plan: MeasuringPlan,
        connection: Any,
        directory: Path,
        *,
        draft: Callable[..., Submission],
        begin: Callable[[Submission, int], None],
        nodes: tuple[str, ...],
        cores: int,
        setup: str,
    ) -> None:
        self._plan, self._engine, self._directory = plan, connection.submitter, directory
        assert connection.coordinator is not None
        self._coordinator = connection.coordinator
        self._stage = WorkloadStage(connection)
        self._draft, self._begin = draft, begin
        self._nodes, self._cores, self._setup = nodes, cores * len(nodes), setup

    def rows(self) -> list[Row]:
        """p50 and p95. Raises: Unavailable."""
        self._stage.use(pipeline_with("gaps", classes(self._cores)))
        count, found = self._plan.count(_ROUNDS), []
        pulled = self._command(_PULL, self._directory)
        self._begin(self._draft(pulled, queue="default", array=f"1-{_PULLED}"), _PULLED)
        try:
            self._round(0)
            rounds = self._plan.rounds("jobs that take over from others")
            found += [[self._round(number * count + at) for at in range(count)] for number in rounds]
        finally:
            (self._directory / "stop").touch()
        what = f"a job of {self._cores} cores beside pulled work: end of the last job whose cores it was promised to its first instruction"
        return [
            row("rmgr", self._setup, f"{what}, {name}", "ms", [percentile(one, share) for one in found])
            for share, name in ((0.5, "p50"), (0.95, "p95"))
        ]

    def _command(self, script: str, where: Path) -> Command:
        return Command(argv=("/bin/sh", "-c", script, "sh", str(where)))

    def _round(self, number: int) -> float:
        where = self._directory / f"gap-{number}"
        where.mkdir()
        self._begin(self._draft(self._command(_ONE, where), array=f"1-{self._cores}"), self._cores)
        self._until("jobs on all cores", lambda: len(list(where.glob("begun.*"))) == self._cores)
        job = send(self._engine, self._draft(self._command(_ALL, where), rigid=Rigid(processes=self._cores)))
        self._until("the promise", lambda: all(f"r-{job}.0" in self._held(node) for node in self._nodes))
        (where / "go").touch()
        self._until("the job", (where / "ran").exists)
        last = max(int(path.read_text()) for path in where.glob("ended.*"))
        return (int((where / "ran").read_text()) - last) / 1e6

    def _held(self, node: str) -> list[str]:
        return self._coordinator.children(paths.hold(node), timeout_s=10.0).result(11.0) or []

    def _until(self, what: str, is_so: Callable[[], bool]) -> None:
        end_s = time.monotonic() + _PATIENCE_S
        while not is_so():
            if time.monotonic() > end_s:
                raise Unavailable(f"{what}: not after {_PATIENCE_S:g} s")
            time.sleep(_POLL_S)
