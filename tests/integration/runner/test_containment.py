"""Hostile work is contained: escapees, bombs, floods, hogs; nothing outlives its Starter, exclusive work not its lease.

    test -> Starter (a process of its own where it must die) -> spawner -> worker or command -> what that starts
Each test runs with cgroups where they can be made, and without.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import cloudpickle
import psutil
import pytest

from rmgr.adapters.host import leftovers
from rmgr.adapters.host.process import NodeRunner, Slot, WorkerSpec
from rmgr.adapters.host.workevents import SlotLost, Surprised, TasksEnded, TasksReturned, WorkerEnded
from rmgr.model.frames import BatchShape
from rmgr.model.states import Reason
from tests.harness.fair_time import FairTimer
from tests.harness.waiting import eventually
from tests.harness.work_node import WorkNode, boottime_ns, is_alive, marked, pid_in
from tests.places import ROOT

cloudpickle.register_pickle_by_value(sys.modules[__name__])
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="nodes run Linux")
SECOND_NS = 1_000_000_000
MIB = 1024 * 1024


@pytest.fixture(scope="module", params=[True, False], ids=["cgroup", "plain"])
def node(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkNode]:
    with WorkNode(tmp_path_factory.mktemp("node") / "run", cgroups=request.param, pids_limit=300) as node:
        yield node


@pytest.fixture
def slot(node: WorkNode) -> Iterator[Slot]:
    slot = node.slot(0)
    yield slot
    slot.close()
    node.wait(SlotLost, lambda event: event.slot is slot)
    node.seen.clear()


def _daemonise(path: str) -> None:
    """Forks twice, leaves its session, ignores what can be ignored, sleeps."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            with open(path, "w") as file:
                file.write(f"{os.getpid()}\n")
            time.sleep(600)
        os._exit(0)
    os.wait()


DAEMON = """
import os, signal, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        open(sys.argv[1], "w").write(f"{os.getpid()}\\n")
        time.sleep(600)
    os._exit(0)
os.wait()
while not os.path.exists(sys.argv[1]) or not open(sys.argv[1]).read():
    time.sleep(0.005)
"""


def test_a_daemon_that_a_command_leaves_behind_is_dead_when_the_command_is_reported(node: WorkNode, slot: Slot, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    end = node.end_of(node.run(slot, sys.executable, "-c", DAEMON, str(pid_file)))
    assert (end.exit_code, end.leftovers) == (0, 1)
    assert not is_alive(pid_in(pid_file))


def test_background_processes_of_a_command_end_with_it(node: WorkNode, slot: Slot) -> None:
    end = node.end_of(node.shell(slot, "sleep 600 & sleep 600 & echo $!"))
    assert (end.exit_code, end.leftovers) == (0, 2)
    assert not is_alive(int(end.out.data))


def test_a_time_limit_ends_the_daemons_of_a_command_too(node: WorkNode, slot: Slot, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    text = f"(setsid sh -c 'trap \"\" TERM; echo $$ > {pid_file}; sleep 600' &); sleep 600"  # of the shell: it begins at once
    end = node.end_of(node.shell(slot, text, shape=BatchShape(submission=1, limit_us=700_000, grace_us=100_000)))
    assert end.reason is Reason.TIME_LIMIT
    assert not is_alive(pid_in(pid_file))


def test_what_a_command_started_has_the_grace_time_though_the_command_itself_ends_at_once(node: WorkNode, slot: Slot) -> None:
    text = "sh -c \"trap 'sleep 0.2; echo saved; exit 0' TERM; while :; do sleep 0.02; done\" & wait"
    end = node.end_of(node.shell(slot, text, shape=BatchShape(submission=1, limit_us=700_000, grace_us=5_000_000)))
    assert (end.reason, end.out.data) == (Reason.TIME_LIMIT, b"saved\n")


def test_a_daemon_of_a_task_dies_with_its_worker(node: WorkNode, slot: Slot, tmp_path: Path) -> None:
    worker = node.worker(slot)
    pid_file = tmp_path / "pid"
    node.result(node.call(worker, _daemonise, str(pid_file)))
    pid = pid_in(pid_file)
    assert is_alive(pid)
    worker.stop(grace_us=0)
    node.wait(WorkerEnded)
    assert not is_alive(pid)


def test_another_submission_never_meets_the_processes_of_the_last(node: WorkNode, slot: Slot, tmp_path: Path) -> None:
    worker = node.worker(slot)
    pid_file = tmp_path / "pid"
    node.result(node.call(worker, _daemonise, str(pid_file), shape=BatchShape(submission=1)))
    pid = pid_in(pid_file)
    seq = node.call(worker, int, shape=BatchShape(submission=2))
    gone = node.wait(WorkerEnded)
    assert (0, (seq,)) == (gone.seq, gone.unstarted)
    assert not is_alive(pid)


#: Doubles for ever; as process group and as sessions of their own. Only with a pids limit: it takes the machine otherwise.
BOMBS = {
    "group": "b(){ b|b& };b; sleep 60",
    "sessions": 'export T="setsid sh -c \\"\\$T\\" & setsid sh -c \\"\\$T\\" &"; sh -c "$T"; sleep 60',
}
#: 72 processes, half of them orphans, in sessions of their own: what the plain node must find.
CROWD = """
for i in 1 2 3 4 5 6 7 8; do
    setsid sh -c "sleep 600 & sleep 600 & (sleep 600 & sleep 600) &" &
    (sleep 600 & sleep 600) &
done
sleep 60
"""


@pytest.mark.parametrize("kind", ["group", "sessions", "crowd"])
def test_a_fork_bomb_is_contained_and_the_slot_goes_on(node: WorkNode, slot: Slot, kind: str) -> None:
    if kind != "crowd" and "pids" not in slot.features:
        pytest.skip("no cgroup with a limit of processes may be made here: the bomb would take the machine")
    seq = node.shell(slot, BOMBS.get(kind, CROWD), shape=BatchShape(submission=1, limit_us=800_000, grace_us=100_000))
    after = node.end_of(node.run(slot, "echo", "alive"), timeout_s=20)
    assert after.out.data == b"alive\n"
    assert node.end_of(seq).reason in {Reason.TIME_LIMIT, Reason.NONE} or kind == "sessions"  # it may choke on its own limit
    assert [process for process in marked(slot.marker) if process.pid != slot.pid] == []


def test_a_gigabyte_of_output_costs_its_cap_and_keeps_both_ends(node: WorkNode, slot: Slot, tmp_path: Path) -> None:
    parts, each = 10, 100_000_000 if "cgroup" in slot.features else 20_000_000
    text = f"""echo first
    for part in $(seq {parts}); do
        head -c {each} /dev/zero | tr '\\0' x; touch {tmp_path}/wrote-$part; while [ ! -e {tmp_path}/go-$part ]; do sleep 0.01; done
    done; echo; echo last"""
    shape = BatchShape(submission=1, output_cap=4 * MIB)
    seq = node.shell(slot, text, shape=shape)
    path = slot.directory / "stdout"
    for part in range(1, parts + 1):
        eventually((tmp_path / f"wrote-{part}").exists, "the next part")
        eventually(lambda: path.stat().st_blocks * 512 <= 2 * shape.output_cap, "the file was never given back while it grew")
        (tmp_path / f"go-{part}").touch()
    end = node.end_of(seq)
    assert (end.exit_code, end.out.size) == (0, parts * each + 12)
    kept = Path(end.out.path).read_bytes()
    assert kept.startswith(b"first\nxxx")
    assert kept.endswith(b"xxx\nlast\n")
    assert f"{end.out.dropped} bytes of output dropped".encode() in kept
    assert 3 * MIB < len(kept) < 5 * MIB
    assert b"\0" not in kept
    assert node.wait(Surprised).what == "output_capped"


def test_a_task_that_floods_its_output_keeps_both_ends(node: WorkNode, slot: Slot) -> None:
    def flood() -> None:
        print("first")
        for _ in range(3000):
            print("x" * 1023)
        print("last")

    worker = node.worker(slot)
    end = node.ended(node.call(worker, flood, shape=BatchShape(submission=1, output_cap=MIB)))
    assert end.extra is not None
    kept = Path(end.extra.out.path).read_bytes()
    assert kept.startswith(b"first\nxxx")
    assert kept.endswith(b"xxx\nlast\n")
    assert len(kept) < MIB + 8192
    assert end.extra.out.dropped > 1024 * 1024


#: So slow that whoever looks ten times a second sees it before it has twice what it may have.
HOG = "import time\nx = []\nwhile True:\n    x.append(b'x' * 10_000_000)\n    time.sleep(0.02)\n"


def test_a_command_that_eats_memory_is_ended_for_it(node: WorkNode, slot: Slot) -> None:
    end = node.end_of(node.run(slot, sys.executable, "-c", HOG, shape=BatchShape(submission=1, memory_bytes=300 * MIB)))
    assert (end.reason, end.signal) == (Reason.OUT_OF_MEMORY, signal.SIGKILL)
    assert end.max_rss_kib < 2 * 300 * 1024


def test_the_children_of_a_command_count_for_its_memory(node: WorkNode, slot: Slot) -> None:
    text = f'{sys.executable} -c "x = b\'x\' * 150_000_000; import time; time.sleep(60)" & ' * 3 + "wait"
    end = node.end_of(node.shell(slot, text, shape=BatchShape(submission=1, memory_bytes=300 * MIB)))
    assert end.reason is Reason.OUT_OF_MEMORY


def test_a_task_that_eats_memory_is_ended_for_it_and_is_the_only_one(node: WorkNode, slot: Slot) -> None:
    def eat() -> None:
        eaten = []
        while True:
            eaten.append(b"x" * 20_000_000)
            time.sleep(0.005)

    worker = node.worker(slot)
    batch = node.batch(eat, (), (), shape=BatchShape(submission=1, memory_bytes=300 * MIB))
    worker.send(batch)
    gone = node.wait(WorkerEnded)
    assert (batch.items[0].seq, Reason.OUT_OF_MEMORY, (batch.items[1].seq,)) == (gone.seq, gone.reason, gone.unstarted)


def test_a_worker_killed_from_outside_loses_only_the_task_it_ran(node: WorkNode, slot: Slot) -> None:
    worker = node.worker(slot)
    batch = node.batch(time.sleep, (0,), (0,), (60,), (0,))
    worker.send(batch)
    seqs = [item.seq for item in batch.items]
    eventually(lambda: worker.running()[0] == seqs[2])
    os.kill(worker.pid, signal.SIGKILL)
    gone = node.wait(WorkerEnded)
    assert (seqs[2], Reason.WORKER_LOST, (seqs[3],)) == (gone.seq, gone.reason, gone.unstarted)
    assert [node.result(seq) for seq in seqs[:2]] == [None, None]


def test_a_spawner_killed_takes_its_work_along_and_all_of_it_is_accounted_for(node: WorkNode, tmp_path: Path) -> None:
    slot = node.slot(3)
    worker = node.worker(slot)
    task_pid, daemon_pid = tmp_path / "task", tmp_path / "daemon"

    def work(path: str, daemon: str) -> None:
        _daemonise(daemon)
        with open(path, "w") as file:
            file.write(f"{os.getpid()}\n")
        time.sleep(600)

    batch = node.batch(work, (str(task_pid), str(daemon_pid)), ("", ""))
    worker.send(batch)
    first, second = node.run(slot, sys.executable, "-c", DAEMON + "time.sleep(600)", str(tmp_path / "d2")), node.run(slot, "true")
    pids = [pid_in(tmp_path / name) for name in ("task", "daemon", "d2")]
    os.kill(slot.pid, signal.SIGKILL)
    gone = node.wait(WorkerEnded)
    assert (batch.items[0].seq, Reason.WORKER_LOST, (batch.items[1].seq,)) == (gone.seq, gone.reason, gone.unstarted)
    lost = node.wait(SlotLost, lambda event: event.slot is slot)
    assert ((first,), (second,), False) == (lost.running, lost.unstarted, lost.expected)
    eventually(lambda: not [pid for pid in pids if is_alive(pid)])  # killed by now; the kernel may still be taking one apart
    assert slot.is_lost
    assert node.end_of(node.run(node.slot(3), "true")).exit_code == 0


# -- lease -----------------------------------------------------------------------------------------------------------------


def test_exclusive_work_ends_with_its_lease_and_other_work_does_not(node: WorkNode, slot: Slot) -> None:
    worker = node.worker(slot)
    node.runner.renew_lease(boottime_ns() + 60 * SECOND_NS)
    exclusive = BatchShape(submission=1, exclusive=True)
    command = node.shell(slot, "trap '' TERM; while :; do sleep 0.05; done", shape=exclusive)
    queued = node.shell(slot, "true", shape=exclusive)
    keep = node.shell(slot, "sleep 0.3; echo kept", shape=BatchShape(submission=1))
    eventually(lambda: slot.live_output(command, "stdout", 0) is not None)
    batch = node.batch(time.sleep, (60,), (60,), shape=exclusive)
    worker.send(batch)
    eventually(lambda: worker.running()[0])
    now = boottime_ns()
    with FairTimer() as timer:
        node.runner.renew_lease(now + SECOND_NS // 2)
        gone = node.wait(WorkerEnded)
        assert (Reason.LEASE_LOST, batch.items[0].seq) == (gone.reason, gone.seq)
        end = node.end_of(command)
        assert end.reason is Reason.LEASE_LOST
    assert boottime_ns() - now >= SECOND_NS // 2
    assert timer.elapsed_s < 2
    returned = node.wait(TasksReturned, lambda event: event.worker is None)
    assert ((queued,), Reason.LEASE_LOST) == (returned.seqs, returned.reason)
    assert node.end_of(keep).out.data == b"kept\n"


def test_exclusive_tasks_do_not_start_without_a_lease(node: WorkNode, slot: Slot, tmp_path: Path) -> None:
    """The worker refuses it, or its spawner sees first that it has one."""
    worker, ran = node.worker(slot), tmp_path / "ran"
    node.runner.renew_lease(0)
    seq = node.call(worker, ran.touch, shape=BatchShape(submission=1, exclusive=True))
    event = node.wait((TasksEnded, WorkerEnded), lambda event: event.worker is worker)
    if isinstance(event, WorkerEnded):
        assert (event.reason, event.seq) == (Reason.LEASE_LOST, seq)
    else:
        end = node.ends[seq]
        assert end.extra is not None
        assert end.extra.reason is Reason.LEASE_LOST
    assert not ran.exists()


# -- the Starter dies -----------------------------------------------------------------------------------------------------------

STARTER = textwrap.dedent(
    """
    import os, sys, time, pickle, hashlib, cloudpickle
    from rmgr.adapters.host.process import *
    from rmgr.model.frames import *

    directory, cgroups, out, exclusive = sys.argv[1], sys.argv[2] == "1", sys.argv[3], sys.argv[4] == "1"
    runner = NodeRunner(directory=directory, node="n2", on_events=lambda events: None, cgroups=CgroupConfig() if cgroups else None)
    slot = runner.open_slot(0)
    runner.renew_lease(time.clock_gettime_ns(time.CLOCK_BOOTTIME) + 60 * 10**9)
    shape = BatchShape(submission=1, exclusive=exclusive)
    text = f"{sys.executable} {out}/daemon.py {out}/daemon; echo $$ > {out}/command; trap '' TERM; while :; do sleep 1; done"
    slot.run(CommandBatch(shape=shape, argv=("sh", "-c", text), items=(CommandItem(runner.next_seq(), 0),)))
    def work():
        import os, signal, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        with open(out + "/task", "w") as file:
            file.write(f"{os.getpid()}\\n")
        time.sleep(600)
    blob = cloudpickle.dumps(work)
    worker = slot.start_worker(WorkerSpec())
    worker.send(TaskBatch(shape=shape, function="w", blob=blob, items=(TaskItem(runner.next_seq(), 0, payload=pickle.dumps(((), {}))),)))
    open(out + "/spawner", "w").write(f"{slot.pid}\\n")
    while not all(os.path.exists(f"{out}/{name}") for name in ("command", "task", "daemon")):
        time.sleep(0.01)
    runner.renew_lease(time.clock_gettime_ns(time.CLOCK_BOOTTIME) + 3 * 10**9 // 2)  # now that all of it runs
    print(slot.marker, flush=True)
    time.sleep(600)
    """
)


@pytest.fixture(params=["1", "0"], ids=["cgroup", "plain"])
def starter(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], Path, list[int], str]]:
    """(a Starter of its own process with running work, its directory, the pids of its work, the mark of its slot)."""
    exclusive = getattr(request.function, "exclusive", "0")
    script = tmp_path / "starter.py"
    script.write_text(STARTER)
    (tmp_path / "daemon.py").write_text(DAEMON)
    process = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path / "run"), request.param, str(tmp_path), exclusive],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert process.stdout is not None
    marker = process.stdout.readline().strip()
    try:
        pids = [pid_in(tmp_path / name) for name in ("spawner", "command", "task", "daemon")]
        yield process, tmp_path / "run", pids, marker
    finally:
        process.kill()
        process.wait(60)
        process.stdout.close()
        if marker:
            leftovers.kill_marked(marker)
        if (tmp_path / "run").exists():
            leftovers.reap(tmp_path / "run")


def is_stopped(pid: int) -> bool:
    """Every thread of it: the signal is on its way to those on other processors."""
    try:
        return all(stat.read_text().rpartition(")")[2].split()[0] == "T" for stat in Path(f"/proc/{pid}/task").glob("*/stat"))
    except OSError:  # a thread has just ended
        return False


def test_nothing_outlives_a_killed_starter(starter: tuple[subprocess.Popen[str], Path, list[int], str]) -> None:
    process, directory, pids, marker = starter
    assert all(is_alive(pid) for pid in pids)
    process.kill()
    process.wait(60)
    eventually(lambda: not any(is_alive(pid) for pid in pids) and not marked(marker))
    assert not list(Path("/sys/fs/cgroup").glob(f"*/rmgr-n2-{marker.partition('-')[0]}"))
    runner = NodeRunner(directory=str(directory), node="n2", on_events=lambda events: None)
    runner.close()
    assert not directory.exists()
    assert not list(Path("/sys/fs/cgroup").glob(f"*/rmgr-n2-{marker.partition('-')[0]}"))


def test_a_new_starter_ends_what_a_killed_starter_and_spawner_left(starter: tuple[subprocess.Popen[str], Path, list[int], str]) -> None:
    process, directory, pids, marker = starter
    process.send_signal(signal.SIGSTOP)
    eventually(lambda: is_stopped(process.pid))  # else it may see its spawner die, and end what that left
    os.kill(pids[0], signal.SIGKILL)  # the spawner: now nobody is left who could end the command and its daemon
    process.kill()
    process.wait(60)
    assert is_alive(pids[1])
    assert is_alive(pids[3])
    runner = NodeRunner(directory=str(directory), node="n2", on_events=lambda events: None)
    assert runner.reaped
    assert [pid for pid in pids if is_alive(pid)] == []
    assert marked(marker) == []
    runner.close()
    assert not list(Path("/sys/fs/cgroup").glob(f"*/rmgr-n2-{marker.partition('-')[0]}"))


def test_exclusive_work_of_a_stopped_starter_ends_with_the_lease(starter: tuple[subprocess.Popen[str], Path, list[int], str]) -> None:
    process, _, pids, _ = starter
    process.send_signal(signal.SIGSTOP)
    with FairTimer() as timer:
        eventually(lambda: not any(is_alive(pid) for pid in pids[1:]), "work outlived the lease of its stopped Starter")
    assert timer.elapsed_s < 6
    assert is_alive(pids[0])
    assert psutil.Process(process.pid).status() == psutil.STATUS_STOPPED


test_exclusive_work_of_a_stopped_starter_ends_with_the_lease.exclusive = "1"  # type: ignore[attr-defined]


def test_ordinary_work_of_a_stopped_starter_runs_on(starter: tuple[subprocess.Popen[str], Path, list[int], str]) -> None:
    process, _, pids, _ = starter
    process.send_signal(signal.SIGSTOP)
    deadline = time.monotonic() + 2.5
    while time.monotonic() < deadline:
        assert all(is_alive(pid) for pid in pids)
        time.sleep(0.1)


def test_a_reused_pid_is_not_killed(tmp_path: Path) -> None:
    """A record whose pid now belongs to somebody else (another start time) does nothing."""
    innocent = subprocess.Popen(["sleep", "60"])
    try:
        leftovers.record_spawner(tmp_path, "s0", pid=innocent.pid, marker="nobody-has-this")
        record = tmp_path / "records" / "s0.json"
        record.write_text(record.read_text().replace(":", ":9", 3))
        assert leftovers.reap(tmp_path) == []
        assert innocent.poll() is None
    finally:
        innocent.kill()
        innocent.wait(60)


def test_workers_are_forked_into_groups_that_are_removed(node: WorkNode, slot: Slot) -> None:
    if "cgroup" not in slot.features:
        pytest.skip("no cgroup may be made here, so no worker has one")
    worker = slot.start_worker(WorkerSpec())
    mine = f"/rmgr-n1-{node.runner.guid}/{slot.name}/"  # version 2 has them in `work`, version 1 beside each other

    def groups() -> list[str]:
        """os.walk passes over what others remove meanwhile; Path.glob raises."""
        found = [path for path, _, _ in os.walk("/sys/fs/cgroup") if mine in path]
        return [path for path in found if path.rpartition("/")[2].startswith("w") and not path.endswith("/work")]

    eventually(groups)
    worker.stop(grace_us=0)
    node.wait(WorkerEnded, lambda event: event.worker is worker)
    assert groups() == []
