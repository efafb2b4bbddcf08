"""Jobs that move while they run: counting programs, moved again and again, do every step once; nodes are emptied.

What is compared is a file that every program adds a line to for each step that it makes: after three migrations, one of them with the
leader killed in its middle, each step of each program stands there exactly once.
"""

from __future__ import annotations

import json
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import pytest
from breakable import Chaos

from rmgr.cli.control.operate import move_each
from rmgr.coord.decisions.rights import ANYBODY
from rmgr.coord.protocol import paths
from rmgr.model.block import StopRequest
from rmgr.model.states import Reason, State
from rmgr.runtime import machine
from rmgr.submitter.answers import Answers
from rmgr.submitter.questions import MoveTask
from tests.harness.waiting import eventually

pytestmark = pytest.mark.chaos

#: A shell keeps its number in a file, and looks at a flag between two steps.
SHELL = """cd "$RMGR_CHECKPOINT_DIR"; step=$(cat step 2>/dev/null || echo 0); asked=; trap 'asked=1' USR1
while [ $step -lt $STEPS ] && [ ! -e "$STEPS_FILE.enough" ]; do
  step=$((step + 1)); echo "$RMGR_TASK_ID $step $RMGR_ATTEMPT $RMGR_NODE" >> "$STEPS_FILE"
  echo $step > new; mv new step; sleep 0.3
  if [ -n "$asked" ]; then asked=; cp .rmgr/number .rmgr/saved; [ ! -e .rmgr/stop ] || exit 85; fi
done"""
#: Neither keeps a number nor looks at anything.
PLAIN = """step=0; while [ ! -e "$STEPS_FILE.enough" ]; do
  step=$((step + 1)); echo "$RMGR_TASK_ID $step $RMGR_ATTEMPT $RMGR_NODE" >> "$STEPS_FILE"; sleep 0.3
done"""
PYTHON = """
import os, time
from rmgr import checkpoint
step = checkpoint.restore(default=0)
while step < int(os.environ["STEPS"]) and not os.path.exists(os.environ["STEPS_FILE"] + ".enough"):
    step += 1
    with open(os.environ["STEPS_FILE"], "a") as file:
        print(os.environ["RMGR_TASK_ID"], step, os.environ["RMGR_ATTEMPT"], os.environ["RMGR_NODE"], file=file)
    time.sleep(0.3)
    if checkpoint.should_stop():
        checkpoint.save(step)
        checkpoint.stop()
"""
MPI = """
import os, time
from mpi4py import MPI
from rmgr import checkpoint
world = MPI.COMM_WORLD
mine = f"rank{world.rank}"
step = checkpoint.restore(mine, default=0)
assert world.allreduce(step, MPI.MIN) == world.allreduce(step, MPI.MAX), "both begin with the same step"
while step < int(os.environ["STEPS"]) and not world.bcast(os.path.exists(os.environ["STEPS_FILE"] + ".enough")):
    step += 1
    if world.rank == 0:
        with open(os.environ["STEPS_FILE"], "a") as file:
            print(os.environ["RMGR_TASK_ID"], step, os.environ["RMGR_ATTEMPT"], os.environ["RMGR_NODE"], file=file)
    time.sleep(0.3)
    if world.allreduce(int(checkpoint.should_stop()), MPI.MAX):
        checkpoint.save(step, mine)
        world.Barrier()
        checkpoint.stop()
"""


@pytest.fixture
def moving(cluster_of_run: Chaos) -> Iterator[Chaos]:
    """Four nodes of two cores and two WatchDogs; the test may set another policy."""
    cluster_of_run.heal(n1=2, n2=2, n3=2, n4=2)
    yield cluster_of_run.with_two_watchdogs()
    cluster_of_run.rmgr("policy", "set", "easy")


class Programs:
    """Jobs that count, and the lines that they write."""

    def __init__(self, chaos: Chaos, directory: Path) -> None:
        self.chaos = chaos
        directory.mkdir(exist_ok=True)
        self.file = directory / "steps"
        self.file.touch()

    def submit(self, *words: str, steps: int = 10_000) -> int:
        """A submission that counts to so many, or until it is `enough`."""
        environment = ("--env", f"STEPS={steps}", "--env", f"STEPS_FILE={self.file}")
        done = self.chaos.rmgr("submit", "--parsable", "-q", "batch", *environment, *words)
        assert done.returncode == 0, done.stderr
        number = int(done.stdout)
        self.chaos.submissions.append(number)
        return number

    def lines(self, number: int) -> list[tuple[str, int, int, str]]:
        """(task, step, attempt, node) of what a submission has done so far."""
        rows = (line.split() for line in self.file.read_text().splitlines())
        return [(task, int(step), int(attempt), node) for task, step, attempt, node in rows if task.startswith(f"{number}_")]

    def wait_for(self, number: int, attempt: int, tasks: int = 1) -> None:
        """Until each of its tasks has made a step in that attempt."""
        what = f"{number} runs as attempt {attempt}"
        eventually(lambda: len({row[0] for row in self.lines(number) if row[2] >= attempt}) == tasks, what)

    def enough(self) -> None:
        """They end well now, however many steps they were to make."""
        self.file.with_name(f"{self.file.name}.enough").touch()

    def wait_end(self, number: int) -> None:
        eventually(lambda: all(view.state.is_final for view in self.chaos.tasks(number)), f"{number} has ended", within_s=120.0)

    def check(self, number: int, attempts: int = 0) -> None:
        """Each task has ended well, after so many attempts (0 = any), with every step made once."""
        views = self.chaos.tasks(number)
        assert {view.state for view in views} == {State.COMPLETED}, views
        for view in views:
            done = [row[1] for row in self.lines(number) if row[0] == view.id]
            assert done == list(range(1, len(done) + 1)), view.id
            assert attempts in {0, view.attempt}, view
            assert {one.reason for one in view.attempts[:-1]} <= {Reason.MIGRATED}


@pytest.fixture
def programs(moving: Chaos, tmp_path: Path) -> Programs:
    return Programs(moving, tmp_path)


def migrate_all(chaos: Chaos, attempts: Mapping[int, int], *, killing: bool) -> None:
    """As `rmgr migrate` does it, all at once. killing: the leader, as soon as it has asked one of them."""

    def ask(number: int) -> StopRequest:
        order = MoveTask(number=number, guid=machine.guid(), attempt=attempts[number])
        here = Answers(chaos.cluster.coordinator, lambda: None, ANYBODY)
        (answer,) = move_each(here, [(str(number), order)], deadline_s=time.monotonic() + 120.0)
        assert isinstance(answer, StopRequest), answer
        return answer

    with ThreadPoolExecutor(len(attempts)) as pool:
        asks = [pool.submit(ask, number) for number in attempts]
        if killing:
            leader = chaos.leader()
            eventually(lambda: is_asked(chaos) or any(one.done() for one in asks), "a job was asked")
            chaos.cluster.kill(leader, signal.SIGKILL)
            chaos.cluster.start_watchdog(f"{leader}-again")
        for one in asks:
            assert len(one.result().done) == 1


def is_asked(chaos: Chaos) -> bool:
    """An order to stop lies in the inbox of a node."""
    reads = [chaos.cluster.coordinator.children(paths.inbox_node(node)) for node in chaos.cores]
    return any(paths.parse_start_order(guid) is None for read in reads for guid in read.result(60) or ())


def test_programs_that_are_moved_three_times_do_every_step_once_and_a_killed_leader_changes_nothing(
    moving: Chaos, programs: Programs, tmp_path: Path
) -> None:
    python = tmp_path / "count.py"
    python.write_text(f"#!{sys.executable}\n{PYTHON}")
    jobs = [programs.submit("--", "sh", "-c", SHELL), programs.submit(str(python))]
    moves = dict.fromkeys(jobs, 3)
    if shutil.which("mpirun") is not None and find_spec("mpi4py") is not None:
        ranks = tmp_path / "ranks.py"
        ranks.write_text(MPI)
        script = f"export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1; exec mpirun {shlex.quote(sys.executable)} {ranks}"
        moves[programs.submit("-n", "2", "-N", "2", "--", "sh", "-c", script)] = 1  # its start is dear: once, when the leader dies
    where: dict[int, list[tuple[str, ...]]] = {number: [] for number in moves}
    for turn in (1, 2, 3):
        mine = jobs if turn != 2 else list(moves)
        for number in mine:
            programs.wait_for(number, len(where[number]) + 1)
            where[number].append(moving.nodes_of(number))
        migrate_all(moving, {number: len(where[number]) for number in mine}, killing=turn == 2)
    for number, count in moves.items():
        programs.wait_for(number, count + 1)
        where[number].append(moving.nodes_of(number))
    programs.enough()
    for number, count in moves.items():
        programs.wait_end(number)
        programs.check(number, attempts=count + 1)
        assert all(not set(before) & set(after) for before, after in zip(where[number], where[number][1:], strict=False)), where[number]


def test_a_drained_node_is_emptied_of_jobs_that_go_on_elsewhere(moving: Chaos, programs: Programs) -> None:
    job = programs.submit("--array", "1-3", "--", "sh", "-c", SHELL)
    programs.wait_for(job, 1, tasks=3)
    node = programs.lines(job)[0][3]
    there = {row[0] for row in programs.lines(job) if row[3] == node}
    for words, code, told in (((str(job), "--to", "nowhere"), 3, "no node 'nowhere'"), (("999",), 3, "no submission 999")):
        refused = moving.rmgr("migrate", *words)
        assert (refused.returncode, told in refused.stderr) == (code, True), refused.stderr
    saved = moving.rmgr("checkpoint", f"{job}_1", "--json", timeout=120.0)
    assert (saved.returncode, json.loads(saved.stdout)["changed"]) == (0, [f"{job}_1"]), saved.stderr
    done = moving.rmgr("drain", node, "--migrate", "--reason", "test", "--json", timeout=120.0)
    assert done.returncode == 0, done.stderr
    assert all(view.node != node for view in moving.tasks(job) if view.state is State.RUNNING)
    assert sorted(json.loads(done.stdout)["moved"]) == sorted(there)
    programs.enough()
    programs.wait_end(job)
    assert moving.rmgr("resume", node).returncode == 0
    assert {view.id for view in moving.tasks(job) if view.attempt == 2} == there
    programs.check(job)


def test_a_starved_head_makes_those_that_passed_it_migrate_and_they_go_on_behind_it(
    moving: Chaos, programs: Programs, tmp_path: Path
) -> None:
    early = Programs(moving, tmp_path / "early")
    assert moving.rmgr("policy", "set", "migration").returncode == 0
    first = early.submit("-c", "2", "--", "sh", "-c", SHELL)
    early.wait_for(first, 1)
    head = programs.submit("-n", "8", "--", "sh", "-c", SHELL, steps=1)
    passed = programs.submit("-c", "2", "--array", "0-2", "--checkpoint", "--", "sh", "-c", SHELL)
    programs.wait_for(passed, 1, tasks=3)
    assert programs.lines(head) == [], "the machine is full but for two cores, and then full"
    early.enough()
    programs.wait_for(passed, 2, tasks=3)
    programs.enough()
    for number in (first, head, passed):
        programs.wait_end(number)
    early.check(first, attempts=1)
    programs.check(head, attempts=1)
    programs.check(passed, attempts=2)


def reason_of(chaos: Chaos, number: int) -> str:
    """What `rmgr explain` says of it."""
    return chaos.rmgr("explain", str(number)).stdout


def test_jobs_that_do_not_save_their_state_lose_nothing_under_migration(moving: Chaos, programs: Programs, tmp_path: Path) -> None:
    early = Programs(moving, tmp_path / "early")
    assert moving.rmgr("policy", "set", "migration").returncode == 0
    first = early.submit("-c", "2", "--", "sh", "-c", PLAIN)
    early.wait_for(first, 1)
    head = programs.submit("-n", "8", "--", "sh", "-c", SHELL, steps=1)
    passed = programs.submit("-c", "2", "--array", "0-2", "--checkpoint-grace", "300ms", "--", "sh", "-c", PLAIN)
    programs.wait_for(passed, 1, tasks=3)
    early.enough()
    early.wait_end(first)
    eventually(lambda: "passed it and go on" in reason_of(moving, head), "the head says whom it waits for")
    made = len(programs.lines(passed))
    eventually(lambda: len(programs.lines(passed)) >= made + 12, "they go on")
    assert {row[2] for row in programs.lines(passed)} == {1}
    assert "nothing says that it saves its state" in reason_of(moving, passed)
    told = json.loads(moving.rmgr("show", str(passed), "--json").stdout)
    assert (told["saves"], told["moves"], told["max_moves"]) == (False, 0, None)
    programs.enough()
    for number in (head, passed):
        programs.wait_end(number)
    programs.check(passed, attempts=1)


def test_a_candidate_that_does_not_answer_goes_on_and_the_head_takes_another_under_a_new_leader(
    moving: Chaos, programs: Programs, tmp_path: Path
) -> None:
    early, deaf = Programs(moving, tmp_path / "early"), Programs(moving, tmp_path / "deaf")
    assert moving.rmgr("policy", "set", "migration", "--param", "suspend=minimal").returncode == 0
    first = early.submit("-c", "2", "--", "sh", "-c", PLAIN)
    early.wait_for(first, 1)
    head = programs.submit("-n", "7", "--", "sh", "-c", SHELL, steps=1)
    savers = programs.submit("--array", "0-4", "--checkpoint", "--", "sh", "-c", SHELL)
    programs.wait_for(savers, 1, tasks=5)
    silent = deaf.submit("--checkpoint", "--checkpoint-grace", "4s", "--", "sh", "-c", PLAIN)
    deaf.wait_for(silent, 1)
    early.enough()  # 2 cores are free: 5 of the 6 that passed must go, the last to start among them
    eventually(lambda: "has until" in reason_of(moving, silent), "it was asked")
    leader = moving.leader()
    moving.cluster.kill(leader, signal.SIGKILL)
    moving.cluster.start_watchdog(f"{leader}-again")
    words = "has not saved its state within 4s"
    eventually(lambda: any(words in one for one in story(moving, silent)), "it has refused")
    eventually(lambda: len(programs.lines(head)) == 1, "the head runs")
    made = len(deaf.lines(silent))
    eventually(lambda: len(deaf.lines(silent)) >= made + 3, "it goes on")
    assert {row[2] for row in deaf.lines(silent)} == {1}
    programs.wait_end(head)
    programs.wait_for(savers, 2, tasks=5)
    views = json.loads(moving.rmgr("jobs", "--json").stdout)["jobs"]
    told = {view["id"]: (view["saves"], view["moves"]) for view in views if view["id"] in {str(savers), str(silent)}}
    assert told == {str(savers): (True, 5), str(silent): (True, 0)}
    programs.enough()
    deaf.enough()
    for group, number, attempts in ((programs, savers, 2), (deaf, silent, 1)):
        group.wait_end(number)
        group.check(number, attempts=attempts)


def story(chaos: Chaos, number: int) -> list[str]:
    """Of its checkpoints, as `rmgr show` tells it."""
    told: list[str] = json.loads(chaos.rmgr("show", str(number), "--json").stdout).get("checkpoints", [])
    return told


def test_a_job_that_was_moved_as_often_as_it_may_be_stays(moving: Chaos, programs: Programs, tmp_path: Path) -> None:
    early, late = Programs(moving, tmp_path / "early"), Programs(moving, tmp_path / "late")
    assert moving.rmgr("policy", "set", "migration").returncode == 0
    first, second = early.submit("--", "sh", "-c", PLAIN), late.submit("-c", "2", "--", "sh", "-c", PLAIN)
    early.wait_for(first, 1)
    late.wait_for(second, 1)
    heads = [programs.submit("-n", size, "--", "sh", "-c", SHELL, steps=1) for size in ("6", "8")]
    passed = programs.submit("-c", "2", "--checkpoint", "--max-moves", "1", "--", "sh", "-c", SHELL)
    programs.wait_for(passed, 1)
    early.enough()
    programs.wait_for(passed, 2)
    assert len(programs.lines(heads[0])) == 1, "it went for the first head, and has passed the second"
    late.enough()
    late.wait_end(second)
    words = "it is not moved again: that was done 1 time, and 1 is the most"
    eventually(lambda: words in reason_of(moving, passed), "it says why it stays")
    eventually(lambda: f"jobs {passed} passed it and go on" in reason_of(moving, heads[1]), "the head says so")
    told = json.loads(moving.rmgr("show", str(passed), "--json").stdout)
    assert (told["saves"], told["moves"], told["max_moves"]) == (True, 1, 1)
    programs.enough()
    for number in (*heads, passed):
        programs.wait_end(number)
    programs.check(passed, attempts=2)
