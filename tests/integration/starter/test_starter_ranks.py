"""Ranks of a job over two real Starters, by rmgr and by plain mpirun: environment, output, codes, signals; ended with all that may end."""

from __future__ import annotations

import os
import pickle
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from rmgr.adapters.host.accounts import Account
from rmgr.dev.cluster import ONE_MACHINE
from rmgr.dev.zookeeper import ZooKeeperServer
from rmgr.model.node import OrderKind
from rmgr.model.states import Reason, State
from rmgr.model.submission import Command
from tests.harness.hand_leader import put, unhold
from tests.harness.reachable import open_place
from tests.harness.starter_rig import Rig, call, own_rig
from tests.harness.waiting import eventually, unchanged
from tests.harness.work_node import is_alive
from tests.integration.starter.test_starter_orders import order

#: What a user types, and what he gets from the whole command line.
RUN, AGENT = "rmgr run", "rmgr agent"
WHOLE = f"{shlex.quote(sys.executable)} -m rmgr.cli.main"


@pytest.fixture
def rig(rig: Rig) -> Rig:
    for node in ("n1", "n2"):
        rig.ready(node, cores=2, serves=True)
    return rig


def lives(pid_file: Path) -> bool:
    """The process that has written its pid there; one that nobody has reaped yet is dead."""
    return is_alive(int(pid_file.read_text()))


def job(rig: Rig, script: str, shares: tuple[tuple[str, int], ...] = (("n1", 1), ("n2", 2)), **more: object) -> tuple[int, object]:
    script = f"exec > {rig.directory}/out 2> {rig.directory}/err\n{script}"  # whole, whatever was flushed meanwhile
    number = rig.submit(Command(argv=("sh", "-c", script)), queue="batch", grace_us=500_000, **more)
    return number, put(rig, number, shares)


def told(rig: Rig) -> list[str]:
    return sorted((rig.directory / "out").read_text().splitlines())


def complaints(rig: Rig) -> str:
    return (rig.directory / "err").read_text()


def test_ranks_have_their_environment_labels_input_and_codes(rig: Rig) -> None:
    say = "sh -c 'echo $RMGR_RANK.$RMGR_LOCAL_RANK/$RMGR_NPROCS on $RMGR_NODE of $RMGR_JOB_ID: $FOO `cat`'"
    script = f"""export FOO=bar
    echo hello | {RUN} --label {say}
    {WHOLE} run sh -c 'exit $((RMGR_RANK+3))'; echo "code $?"
    {RUN} -n 1 sh -c 'echo one; echo bad >&2; kill -9 $$'; echo "code $?"
    {RUN} -n 4 true; echo "code $?"
    {AGENT} n2 'echo agent on' '$RMGR_NODE; exit 9'; echo "code $?"
    {WHOLE} agent n3 true; echo "code $?"
    {RUN} --help | grep -c kill-on-bad-exit; {RUN} -n 0 true; echo "code $?"
    {RUN} /no/such/program; echo "code $?"; exit 6"""
    number, placed = job(rig, script)
    outcome = rig.outcomes(number, 1)[0]
    assert (outcome.reason, outcome.exit_code) == (Reason.EXIT_CODE, 6)
    assert told(rig) == sorted(
        [
            f"0: 0.0/3 on n1 of {number}: bar hello",
            f"1: 1.0/3 on n2 of {number}: bar",
            f"2: 2.1/3 on n2 of {number}: bar",
            "code 5",
            "one",
            "code 137",
            "code 2",
            "agent on n2",
            "code 9",
            "code 125",
            "2",
            "code 2",
            "code 127",
        ]
    ), complaints(rig)
    assert "rank 2 on node n2: /no/such/program cannot be started" in complaints(rig)
    unhold(rig, placed)


def test_which_rank_failed_and_where_is_said(rig: Rig) -> None:
    number, placed = job(rig, f"{RUN} sh -c '[ $RMGR_RANK = 0 ] || kill -SEGV $$'")
    assert rig.outcomes(number, 1)[0].exit_code == 139
    ended = "ended with code 139 (128 + SIGSEGV)\n"
    assert sorted(complaints(rig).splitlines(True)) == [f"rmgr run: rank {rank} on node n2 {ended}" for rank in (1, 2)]
    unhold(rig, placed)
    number, placed = job(rig, f"{RUN} sh -c 'exit $RMGR_RANK'; {RUN} -n 1 sh -c 'exit 4'; {RUN} /no/such/program")
    rig.outcomes(number, 1)
    lines = complaints(rig).splitlines()
    assert sorted(lines[:2]) == [f"rmgr run: rank {rank} on node n2 ended with code {rank}" for rank in (1, 2)]
    assert all("cannot be started" in line for line in lines[2:]), "one rank's code is its job's; what has not begun is told once"
    unhold(rig, placed)


def test_what_ranks_use_on_all_nodes_is_the_jobs(rig: Rig) -> None:
    """Rank 0, on the node of the script, uses nothing; the two on the other one a second of a processor between them, and memory."""
    burn = "import os, time; keep = bytearray(90 << 20) if os.environ['RMGR_RANK'] == '2' else b''\nwhile os.environ['RMGR_RANK'] != '0' "
    burn += "and time.process_time() < 0.5: pass"
    number, placed = job(rig, f"{RUN} {shlex.quote(sys.executable)} -I -S -c {shlex.quote(burn)}")
    outcome = rig.outcomes(number, 1)[0]
    assert outcome.state is State.COMPLETED, complaints(rig)
    assert 1_000_000 <= outcome.cpu_us < 10_000_000
    assert outcome.max_rss_kib > 90 << 10
    unhold(rig, placed)


def test_ranks_that_use_too_much_memory_are_ended_for_it_and_it_is_said(rig: Rig) -> None:
    hog = "import os, time; keep = [bytearray(1 << 20) for _ in range(400)] if os.environ['RMGR_RANK'] == '1' else []; time.sleep(600)"
    script = f"{RUN} {shlex.quote(sys.executable)} -I -S -c {shlex.quote(hog)}; sleep 600"
    number = rig.submit(
        Command(argv=("sh", "-c", f"exec > {rig.directory}/out 2> {rig.directory}/err; {script}")), queue="batch", memory_mib=100
    )
    placed = put(rig, number, (("n1", 1), ("n2", 1)), memory_mib=100)
    outcome = rig.outcomes(number, 1)[0]  # though it was not on the node of the script, and that goes on
    assert (outcome.state, outcome.reason) == (State.FAILED, Reason.OUT_OF_MEMORY), complaints(rig)
    assert outcome.error == "node n2: out of memory: the job has 100M there, and its processes used more"
    unhold(rig, placed)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one processor")
@pytest.mark.parametrize("victim", ["$PPID", "$(sed -n s/^PPid://p /proc/$PPID/status)"], ids=["their program", "its slot"])
def test_a_rank_that_kills_what_has_started_it_fails_its_job_and_blames_no_node(rig: Rig, victim: str) -> None:
    script = f"""{RUN} sh -c 'if [ $RMGR_RANK = 1 ]; then kill -9 {victim}; fi; sleep 60'; echo "code $?"; exit 3"""
    number, placed = job(rig, script)
    outcome = rig.outcomes(number, 1)[0]
    assert (outcome.reason, outcome.exit_code) == (Reason.EXIT_CODE, 3)
    assert told(rig) == ["code 125"], complaints(rig)
    assert "was killed by SIGKILL" in complaints(rig)
    unhold(rig, placed)
    again, placed = job(rig, f"{RUN} true")
    assert rig.outcomes(again, 1)[0].state is State.COMPLETED, complaints(rig)
    unhold(rig, placed)
    assert [one.agent(name).strikes.last for one, name in zip(rig.starters, ("n1", "n2"), strict=True)] == ["", ""]


def test_slots_and_ranks_have_processors_of_their_own(zookeeper: ZooKeeperServer, tmp_path: Path) -> None:
    where = f'{shlex.quote(sys.executable)} -I -S -c "import os; print(sorted(os.sched_getaffinity(0)))"'
    with own_rig(zookeeper, tmp_path) as rig:
        agent = rig.ready(cores=2, bind_cpus="yes").agent()
        number, placed = job(rig, f'{RUN} -l sh -c \'echo $RMGR_CPU_BIND; {where}\'; echo "all $RMGR_CPU_BIND"', (("n1", 2),))
        rig.outcomes(number, 1)
        first, second = sorted(os.sched_getaffinity(0))[:2]
        assert told(rig) == [f"0: {first}", f"0: [{first}]", f"1: {second}", f"1: [{second}]", f"all {first},{second}"], complaints(rig)
        unhold(rig, placed)

        script = f"exec > {rig.directory}/out; {RUN} -l sh -c 'echo $RMGR_CPU_BIND of $RMGR_CPUS_ON_NODE; {where}'"
        alone = rig.submit(Command(argv=("sh", "-c", script)), queue="batch")
        put(rig, alone, (("n1", 1),), whole=(2,))  # of one process and core, with the node for itself
        rig.outcomes(alone, 1)
        assert told(rig) == [f"0: {first},{second} of 2", f"0: [{first}, {second}]"]

        def bound(go: str) -> tuple[list[int], str]:
            while not os.path.exists(go):
                time.sleep(0.01)
            return sorted(os.sched_getaffinity(0)), os.environ["RMGR_CPU_BIND"]

        calls = rig.submit(bound, [call(str(tmp_path / "go"))] * 2, blocks=2)
        eventually(lambda: agent.lanes.free_cores == 0, "both to run")
        (tmp_path / "go").touch()
        values = [pickle.loads(outcome.value) for outcome in rig.outcomes(calls, 2).values()]
        assert sorted(values) == [([first], str(first)), ([second], str(second))]


def test_one_bad_rank_ends_the_others_and_signals_reach_them_all(rig: Rig, tmp_path: Path) -> None:
    bad = f"""trap "touch {tmp_path}/term-$RMGR_RANK; exit 1" TERM
    if [ $RMGR_RANK = 1 ]; then exit 7; fi; while :; do sleep 0.02; done"""
    user = f"""trap "touch {tmp_path}/usr-$RMGR_RANK; exit 0" USR1; touch {tmp_path}/up-$RMGR_RANK; while :; do sleep 0.02; done"""
    (tmp_path / "bad.sh").write_text(bad)
    (tmp_path / "user.sh").write_text(user)
    script = f"""trap : USR1
    {RUN} -K sh {tmp_path}/bad.sh; echo "code $?"
    {RUN} sh {tmp_path}/user.sh & pid=$!
    wait $pid; wait $pid; echo "code $?" """
    number, placed = job(rig, script)
    eventually(lambda: all((tmp_path / f"up-{rank}").exists() for rank in range(3)), "all traps")
    order(rig, OrderKind.SIGNAL, number, signal=10)
    rig.outcomes(number, 1)
    assert told(rig) == ["code 0", "code 7"], complaints(rig)
    assert sorted(path.name for path in tmp_path.glob("usr-*")) == ["usr-0", "usr-1", "usr-2"]
    assert "rank 1 on node n2 ended with code 7" in complaints(rig)
    unhold(rig, placed)


def test_a_suspended_job_stands_still_on_all_its_nodes(rig: Rig, tmp_path: Path) -> None:
    tick = f"while [ ! -e {tmp_path}/go ]; do echo >> {tmp_path}/ticks-$RMGR_RANK; sleep 0.01; done"
    number, placed = job(rig, f"{RUN} sh -c {shlex.quote(tick)}")
    files = [tmp_path / f"ticks-{rank}" for rank in range(3)]
    eventually(lambda: all(file.exists() and file.stat().st_size > 3 for file in files), "ticks")
    order(rig, OrderKind.SUSPEND, number)

    eventually(lambda: unchanged(lambda: [file.stat().st_size for file in files], 0.2), "no more ticks")
    (tmp_path / "go").touch()
    order(rig, OrderKind.RESUME, number)
    assert rig.outcomes(number, 1)[0].state is State.COMPLETED
    unhold(rig, placed)


def test_ranks_end_with_their_launch_with_their_hold_and_with_the_job(rig: Rig, tmp_path: Path) -> None:
    say = f"say() {{ echo $2 > {tmp_path}/new-$1; mv {tmp_path}/new-$1 {tmp_path}/$1; }}"  # whoever sees a file reads the whole of it
    stay = f"sh -c '{say}; say $0-$RMGR_RANK $$; sleep 600 & say $0-child-$RMGR_RANK $!; wait'"
    script = f"""{RUN} {stay} first & pid=$!
    while [ ! -e {tmp_path}/first-child-0 -o ! -e {tmp_path}/first-child-2 ]; do sleep 0.02; done; kill -9 $pid
    touch {tmp_path}/killed; {RUN} {stay} second; echo "code $?"; {RUN} -n 1 {stay} third"""
    number, placed = job(rig, script, (("n1", 1), ("n2", 2)), resubmit=False)
    eventually((tmp_path / "killed").exists, "the first launch killed")
    eventually(lambda: not lives(tmp_path / "first-2") and not lives(tmp_path / "first-child-2"), "its ranks gone")
    eventually(lambda: all((tmp_path / f"second-child-{rank}").exists() for rank in range(3)), "the second to run")
    helper = rig.starters[1].agent("n2")
    unhold(rig, placed)  # as if the leader had lost the head
    eventually(lambda: not lives(tmp_path / "second-1") and not lives(tmp_path / "second-child-1"), "ranks of the hold gone")
    eventually(lambda: helper.lanes.free_cores == 2, "its cores free")
    eventually((tmp_path / "third-child-0").exists, "the script to go on")
    order(rig, OrderKind.CANCEL, number)
    outcome = rig.outcomes(number, 1)[0]
    assert (outcome.state, told(rig)) == (State.CANCELLED, ["code 125"])
    assert not lives(tmp_path / "third-child-0")


def test_a_cancel_that_comes_between_the_scripts_end_and_the_word_of_its_nodes_is_obeyed(rig: Rig, tmp_path: Path) -> None:
    number, placed = job(rig, f"touch {tmp_path}/up; while [ ! -e {tmp_path}/go ]; do sleep 0.02; done; exit 3", (("n1", 1), ("n2", 1)))
    eventually((tmp_path / "up").exists, "the script")
    head, helper = (running.agent(node) for running, node in zip(rig.starters, ("n1", "n2"), strict=True))
    unhold(rig, placed)  # n2 cannot say that all is well there
    eventually(lambda: not helper.jobs.holds, "the hold gone")
    (tmp_path / "go").touch()
    eventually(lambda: len(head.jobs.verdicts) == 1, "its end to be in doubt")
    order(rig, OrderKind.CANCEL, number)
    outcome = rig.outcomes(number, 1, 40.0)[0]
    assert (outcome.state, outcome.exit_code) == (State.CANCELLED, 3)


def test_a_job_whose_helper_died_is_lost_though_its_script_failed_first(zookeeper: ZooKeeperServer, tmp_path: Path) -> None:
    with own_rig(zookeeper, tmp_path) as rig:
        rig.start("n1", cores=1, serves=True)
        helper = rig.spawn("n2", cores=1)
        rig.wait_registered("n1")
        rig.wait_registered("n2")
        script = f"{RUN} sh -c 'touch {tmp_path}/up-$RMGR_RANK; sleep 600'; code=$?; echo $code; touch {tmp_path}/failed; exit $code"
        number, placed = job(rig, script, (("n1", 1), ("n2", 1)))
        eventually(lambda: (tmp_path / "up-0").exists() and (tmp_path / "up-1").exists(), "both ranks")
        helper.kill()
        eventually((tmp_path / "failed").exists, "the script to fail")
        assert told(rig) == ["125"]
        assert rig.failed(number) == {}  # why is not known yet
        rig.spawn("n2", cores=1)  # another process by that name; nobody has fenced the first
        eventually(lambda: rig.failed(number), "its end told")
        assert [(record.reason, record.exit_code) for record in rig.failed(number).values()] == [(Reason.NODE_LOST, 125)]
        unhold(rig, placed)


def test_ranks_that_the_system_ends_are_a_loss_and_those_that_the_work_ends_are_its_failure(rig: Rig, tmp_path: Path) -> None:
    stay = f"sh -c 'touch {tmp_path}/$0-$RMGR_RANK; sleep 600'"
    # The hold goes while its ranks run: the script fails of it.
    number, placed = job(rig, f"{RUN} {stay} lost", (("n1", 1), ("n2", 1)))
    eventually((tmp_path / "lost-1").exists, "both ranks")
    unhold(rig, placed)
    eventually(lambda: rig.failed(number), "its end told")
    (record,) = rig.failed(number).values()
    assert (record.reason, record.exit_code) == (Reason.NODE_LOST, 125)
    assert record.error.startswith("node n2 lost ranks of the job: its processes were ended"), record.error
    # No rank starts any more where the hold has gone; the script had none running there.
    number, placed = job(rig, f"touch {tmp_path}/up; while [ ! -e {tmp_path}/go ]; do sleep 0.02; done; {RUN} true", (("n1", 1), ("n2", 1)))
    eventually((tmp_path / "up").exists, "the script")
    unhold(rig, placed)
    eventually(lambda: not rig.starters[1].agent("n2").jobs.holds, "the hold gone")
    (tmp_path / "go").touch()
    eventually(lambda: rig.failed(number), "its end told")
    assert [record.reason for record in rig.failed(number).values()] == [Reason.NODE_LOST]
    # A rank kills what runs it.
    number, placed = job(rig, f"{RUN} sh -c '[ $RMGR_RANK = 0 ] || kill -9 $PPID'", (("n1", 1), ("n2", 1)))
    outcome = rig.outcomes(number, 1)[0]
    assert (outcome.reason, outcome.exit_code) == (Reason.EXIT_CODE, 125), complaints(rig)
    assert "was killed by SIGKILL" in complaints(rig)
    unhold(rig, placed)


def test_a_hold_whose_program_was_killed_keeps_its_directory_until_the_hold_ends(rig: Rig, tmp_path: Path) -> None:
    wait = f"while [ ! -e {tmp_path}/go ]; do sleep 0.02; done"
    script = f"touch {tmp_path}/up; {wait}; {RUN} sh -c '[ $RMGR_RANK = 0 ] || kill -9 $PPID'; sleep 600"
    number, placed = job(rig, script, (("n1", 1), ("n2", 1)))
    eventually((tmp_path / "up").exists, "the script")
    [hold] = rig.starters[1].agent("n2").jobs.holds
    first = hold.place
    assert first is not None
    (tmp_path / "go").touch()
    eventually(lambda: hold.place not in {None, first} and hold.is_ready, "the hold has another program")
    assert first.is_dir(), "a checkpoint may still be read there"
    order(rig, OrderKind.CANCEL, number)
    unhold(rig, placed)
    eventually(lambda: not list(first.parent.glob("hold-*")), lambda: list(first.parent.glob("hold-*")))


def test_exclusive_ranks_on_another_node_have_a_lease_from_their_first_moment(rig: Rig, tmp_path: Path) -> None:
    script = f"while [ ! -e {tmp_path}/go ]; do sleep 0.02; done; {RUN} true"
    number, placed = job(rig, script, (("n1", 1), ("n2", 1)), on_disconnect="exclusive")
    [hold] = eventually(lambda: [one for one in rig.starters[1].agent("n2").jobs.holds if one.is_ready], "its cores there")
    (tmp_path / "go").touch()
    assert rig.outcomes(number, 1)[0].state is State.COMPLETED
    assert (hold.fates, hold.is_ready) == ({}, True), "its first program still runs"
    unhold(rig, placed)


def test_ranks_are_their_users_and_no_other_socket_is_reached_through_them(zookeeper: ZooKeeperServer, anna: Account) -> None:
    with open_place(mode=0o777) as directory, own_rig(zookeeper, directory) as rig:
        helper = [rig.start(node, cores=1, serves=True, as_users=True).agent(node) for node in ("n1", "n2")][1]
        for node in ("n1", "n2"):
            rig.wait_registered(node)
        script = f"""{AGENT} n2 id -un; {AGENT} n1 id -un; touch {directory}/first
        while [ ! -e {directory}/go ]; do sleep 0.02; done; {AGENT} n2 true; echo "code $?" """
        number, placed = job(rig, script, (("n1", 1), ("n2", 1)), user=anna.name)
        eventually((directory / "first").exists, "two commands run")
        hold = helper.jobs.holds.get(f"{number}.0.1")
        assert hold.place.stat().st_uid == anna.uid
        (hold.place / "ranks").unlink()  # as he might
        with socket.socket(socket.AF_UNIX) as roots:
            roots.bind(str(directory / "roots"))
            roots.listen()
            (hold.place / "ranks").symlink_to(directory / "roots")
            (directory / "go").touch()
            rig.outcomes(number, 1)
        assert told(rig) == sorted([anna.name, anna.name, "code 125"]), complaints(rig)
        assert "is not its user's" in complaints(rig)
        unhold(rig, placed)


PROGRAM = r"""
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
int main(int argc, char **argv) {
    int rank, size, mine, sum;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    mine = rank + 1;
    MPI_Allreduce(&mine, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    printf("rank %d of %d on %s: %d\n", rank, size, getenv("RMGR_NODE"), sum);
    MPI_Finalize();
    return 0;
}
"""

SCRIPT = """
import os
from mpi4py import MPI
world = MPI.COMM_WORLD
print(f"rank {world.rank} of {world.size} on {os.environ['RMGR_NODE']}: {world.allreduce(world.rank + 1)}", flush=True)
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("mpirun") is None or shutil.which("mpicc") is None or find_spec("mpi4py") is None:
        what = "Open MPI or mpi4py is missing: openmpi-bin, libopenmpi-dev, mpi4py"
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(what)
    where = tmp_path_factory.mktemp("mpi")
    (where / "sum.c").write_text(PROGRAM)
    subprocess.run(["mpicc", "-o", str(where / "sum"), str(where / "sum.c")], check=True, timeout=120)
    return where / "sum"


def test_mpirun_runs_allreduces_of_c_and_of_mpi4py_over_two_starters(rig: Rig, tmp_path: Path, program: Path) -> None:
    # As root in a container; two nodes on one machine, which Open MPI takes for several only if asked.
    (tmp_path / "sum.py").write_text(SCRIPT)
    python = f"{shlex.quote(sys.executable)} {tmp_path}/sum.py"
    machine = " ".join(f"{name}={value}" for name, value in ONE_MACHINE.items())
    script = f"""export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 {machine}; exec 2> {tmp_path}/err
    mpirun {program} > {tmp_path}/c && mpirun {python} > {tmp_path}/python"""
    number = rig.submit(Command(argv=("sh", "-c", script)), queue="batch")
    job = put(rig, number, (("n1", 2), ("n2", 2)))
    outcome = rig.outcomes(number, 1, 120.0)[0]
    assert outcome.state is State.COMPLETED, (tmp_path / "err").read_text()
    for out in ("c", "python"):
        told = (tmp_path / out).read_text()  # mpirun may pass on a line of one rank before the last one of another has ended
        lines = sorted(re.findall(r"rank \d of \d on \w\d: \d\d", told))
        assert lines == [f"rank {rank} of 4 on {node}: 10" for rank, node in enumerate(("n1", "n1", "n2", "n2"))]
    unhold(rig, job)
