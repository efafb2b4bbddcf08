"""Slurm's variables and programs for work submitted with --slurm-env have Slurm's meanings; impossible ones are refused."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from rmgr.model.frames import BatchShape, CommandItem
from rmgr.runner.host import slurm
from rmgr.runner.host.environment import command_environment, shared_variables
from rmgr.runner.ranks import srun
from rmgr.runner.ranks.client import NotInJob, OwnAllocation
from rmgr.runner.ranks.ranks import slurm_variables

MIB = 1024 * 1024


@pytest.mark.parametrize(
    ("nodes", "told"),
    [
        (["n1"], "n1"),
        (["n1", "n2", "n3", "n7"], "n[1-3,7]"),
        (["node009", "node010"], "node[009-010]"),
        (["n9", "n10"], "n[9,10]"),  # another width: 9-10 would be n9 and n10 too, but 09 would not
        (["n2", "n1"], "n[2,1]"),  # the order is that of the ranks
        (["login", "n1", "n2", "gpu3"], "login,n[1-2],gpu3"),
        (["a-1", "a-2"], "a-[1-2]"),
    ],
)
def test_nodes_are_written_in_brackets_and_read_again(nodes: list[str], told: str) -> None:
    assert slurm.bracketed(nodes) == told
    assert slurm.hostnames(told) == nodes


def environment(
    own: dict[str, str], *, index: int = 0, label: int = -1, attempt: int = 1, memory: int = 0, cores: int = 2
) -> dict[str, str]:
    shape = BatchShape(submission=42, cores=cores, memory_bytes=memory, environ={"RMGR_JOB_NAME": "name", **own})
    base = {"SLURM_JOB_ID": "stale", "SLURM_STEP_ID": "0", "PATH": "/bin"} | shared_variables(shape, "n1")
    return command_environment(base, shape, CommandItem(seq=1, index=index, attempt=attempt, label=label))


def test_without_the_option_nothing_of_slurm_is_made() -> None:
    assert environment({})["SLURM_JOB_ID"] == "stale"  # what its Starter has
    assert "SLURM_NTASKS" not in environment({})


def test_a_pulled_task_has_one_process_on_its_node() -> None:
    found = environment({slurm.FLAG: "1", "SLURM_SUBMIT_DIR": "/home/ann", "SLURM_JOB_PARTITION": "default"}, memory=512 * MIB)
    expected = {
        "SLURM_JOB_ID": "42",
        "SLURM_NTASKS": "1",
        "SLURM_CPUS_PER_TASK": "2",
        "SLURM_CPUS_ON_NODE": "2",
        "SLURM_JOB_NODELIST": "n1",
        "SLURM_JOB_NUM_NODES": "1",
        "SLURM_NNODES": "1",
        "SLURM_PROCID": "0",
        "SLURM_LOCALID": "0",
        "SLURM_SUBMIT_DIR": "/home/ann",
        "SLURM_JOB_NAME": "name",
        "SLURM_JOB_PARTITION": "default",
        "SLURM_MEM_PER_NODE": "512",
    }
    assert {name: found.get(name) for name in expected} == expected
    assert "SLURM_STEP_ID" not in found  # Open MPI would look for the step's daemon
    assert "SLURM_ARRAY_TASK_ID" not in found
    assert "SLURM_RESTART_COUNT" not in found
    assert environment({slurm.FLAG: "1"}, attempt=3)["SLURM_RESTART_COUNT"] == "2"
    assert environment({slurm.FLAG: "1", "SLURM_NTASKS": "7"})["SLURM_NTASKS"] == "7"  # --env of the user's


def test_a_task_of_an_array_has_its_number_and_an_id_of_its_own() -> None:
    own = {slurm.FLAG: "1", "SLURM_ARRAY_TASK_COUNT": "3", "SLURM_ARRAY_TASK_MIN": "5", "SLURM_ARRAY_TASK_MAX": "9"}
    found = environment(own, index=1, label=7)
    assert (found["SLURM_ARRAY_JOB_ID"], found["SLURM_ARRAY_TASK_ID"], found["SLURM_JOB_ID"]) == ("42", "7", "42_7")
    assert (found["SLURM_ARRAY_TASK_COUNT"], found["SLURM_ARRAY_TASK_MIN"], found["SLURM_ARRAY_TASK_MAX"]) == ("3", "5", "9")


def test_a_placed_job_has_its_nodes_and_each_rank_its_number(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("n1 slots=2\nn2 slots=2\nn3 slots=1\n")
    placed = {"RMGR_NODELIST": "n1,n2,n3", "RMGR_HOSTFILE": str(hosts), "RMGR_NPROCS": "5", "RMGR_THREADS": "3", "RMGR_CPUS_ON_NODE": "6"}
    found = environment({slurm.FLAG: "1", **placed}, memory=100 * MIB, cores=3)
    assert found["SLURM_JOB_NODELIST"] == "n[1-3]"
    assert (found["SLURM_NTASKS"], found["SLURM_NNODES"], found["SLURM_CPUS_PER_TASK"]) == ("5", "3", "3")
    assert (found["SLURM_TASKS_PER_NODE"], found["SLURM_JOB_CPUS_PER_NODE"]) == ("2(x2),1", "6(x2),3")
    assert (found["SLURM_CPUS_ON_NODE"], found["SLURM_MEM_PER_NODE"]) == ("6", "200")
    rank = slurm_variables(found | {"RMGR_RANK": "3", "RMGR_NODE": "n2", "RMGR_NPROCS": "4", "RMGR_CPUS_ON_NODE": "6"}, 1)
    assert (rank["SLURM_PROCID"], rank["SLURM_LOCALID"], rank["SLURM_NODEID"]) == ("3", "1", "1")
    assert (rank["SLURM_NTASKS"], rank["SLURMD_NODENAME"]) == ("4", "n2")


# -- srun ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "step"),
    [
        ("./a -n 2", srun.Step(argv=("./a", "-n", "2"))),
        ("-n 4 -c2 --label ./a x", srun.Step(argv=("./a", "x"), processes=4, cores=2, label=True)),
        ("--ntasks=3 -N2 -K1 -u -vv -J name -- ./a", srun.Step(argv=("./a",), processes=3, nodes=2, kill_on_bad_exit=True)),
        ("--kill-on-bad-exit=0 --export=ALL --mpi=none ./a", srun.Step(argv=("./a",))),
        ("--chdir /tmp --ntasks-per-node=2 ./a", srun.Step(argv=("./a",), each_node=2, directory="/tmp")),
    ],
)
def test_what_a_step_can_do_is_understood(line: str, step: srun.Step) -> None:
    assert srun.parsed(line.split()) == step


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("", "there is no command to run"),
        ("-n 0 ./a", "is not a number from 1"),
        ("-n", "--ntasks needs a value"),
        ("--mpi=pmix ./a", "mpirun ./solver"),
        ("--exclusive -n1 ./a", "a job array does"),
        ("--pty bash", "rmgr run --pty bash"),
        ("--multi-prog conf", "choose by $SLURM_PROCID"),
        ("-o out ./a", "redirect in the shell"),
        ("-t 10 ./a", "give it to rmgr submit"),
        ("--mem=4G ./a", "give it to rmgr submit"),
        ("--export=NONE ./a", "export NAME=VALUE before srun"),
        ("--het-group=0 ./a", "there is no option --het-group=0 here"),
    ],
)
def test_what_a_step_cannot_do_is_refused_with_words(line: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert srun.main(line.split(), {}) == 2
    err = capsys.readouterr().err
    assert told in err
    assert err.startswith("srun: ")


def test_a_shape_that_a_step_would_not_have_is_refused() -> None:
    place = OwnAllocation(here="n1", shares=(("n1", 2), ("n2", 1)), door="x")
    for step in (srun.Step(argv=("a",)), srun.Step(argv=("a",), processes=2, nodes=1), srun.Step(argv=("a",), cores=2)):
        srun.check_shape(step, place, 2)
    for step, told in (
        (srun.Step(argv=("a",), processes=2, nodes=2), r"--nodes=2: its ranks are on n1 \(2\)"),
        (srun.Step(argv=("a",), each_node=2), "--ntasks-per-node=2"),
        (srun.Step(argv=("a",), cores=4), "rmgr submit -c 4"),
    ):
        with pytest.raises(srun.Unlike, match=told):
            srun.check_shape(step, place, 2)
    with pytest.raises(NotInJob, match="-n 4 is more than the job has"):
        srun.check_shape(srun.Step(argv=("a",), processes=4), place, 2)


def test_a_program_of_mpi_is_sent_to_mpirun(tmp_path: Path) -> None:
    solver = tmp_path / "solver"
    solver.write_bytes(b"\x7fELF" + b"\0" * 100 + b"\0libmpi.so.40\0")
    with pytest.raises(srun.Unlike, match=r"mpirun .*solver"):
        solver.chmod(0o755)
        srun.check_program(str(solver))
    script = tmp_path / "script"
    script.write_text("#!/bin/sh\n# libmpi\n")
    script.chmod(0o755)
    srun.check_program(str(script))
    srun.check_program("no-such-program")


def run(*words: str, environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, env=environ, capture_output=True, text=True, timeout=60, check=False)


def test_the_programs_run_by_themselves(tmp_path: Path) -> None:
    place = slurm.furnish(str(tmp_path))
    assert slurm.furnish(str(tmp_path)) == place  # again, for the next batch
    task = {"RMGR_TASK_ID": "42_0", "RMGR_NODELIST": "n1", "PATH": os.environ["PATH"], "SLURM_JOB_NODELIST": "n[1-2]"}
    ran = run(f"{place}/srun", "sh", "-c", "echo $RMGR_TASK_ID; exit 3", environ=task)
    assert (ran.returncode, ran.stdout, ran.stderr) == (3, "42_0\n", "")
    assert run(f"{place}/srun", "-n", "2", "true", environ=task).stderr.startswith("srun: -n 2 is more than the job has (1)")
    assert run(f"{place}/srun", "true", environ={}).stderr.startswith("srun: this is not work of rmgr")
    assert run(f"{place}/srun", "no-such-thing", environ=task).returncode == 127
    assert run(f"{place}/scontrol", "show", "hostnames", environ=task).stdout == "n1\nn2\n"
    assert run(f"{place}/scontrol", "show", "hostnames", "a[08-10],b", environ=task).stdout == "a08\na09\na10\nb\n"
    assert run(f"{place}/scontrol", "update", "x", environ=task).returncode == 2
    shutil.rmtree(place)
