"""Slurm scripts on real nodes: variables, steps, arrays, warnings where they would compute nonsense, unneeded branches."""

from __future__ import annotations

from pathlib import Path

from tests.integration.commands import Shell


def test_a_script_with_steps_runs_on_all_of_its_nodes(sh: Shell, tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text(
        "#!/bin/bash\n#RMGR --slurm-env -n 4 -N 2 -J steps\n"
        'echo "job $SLURM_JOB_ID $SLURM_JOB_NAME $SLURM_NTASKS $SLURM_NNODES $SLURM_TASKS_PER_NODE $SLURM_SUBMIT_DIR"\n'
        "srun sh -c 'echo rank $SLURM_PROCID $SLURM_LOCALID $SLURM_NODEID $SLURMD_NODENAME of $SLURM_NTASKS'\n"
        "srun -n 2 --label echo two\n"
        'scontrol show hostnames "$SLURM_JOB_NODELIST"\n'
        "srun --exclusive true; echo refused $?\n"
        "srun sh -c 'exit $((SLURM_PROCID == 3 ? 7 : 0))'; echo code $?\n"
    )
    ran = sh("submit", "--wait", str(script))
    assert ran.code == 0, ran.err
    lines = ran.out.splitlines()
    number = ran.err.split("Submitted job ")[1].split()[0]
    assert lines[0] == f"job {number} steps 4 2 2(x2) {sh.directory}"
    nodes = [line for line in lines if line.startswith("n")]
    assert sorted(line for line in lines if line.startswith("rank ")) == [
        f"rank {rank} {rank % 2} {rank // 2} {nodes[rank // 2]} of 4" for rank in range(4)
    ]
    assert sorted(line for line in lines if line.endswith("two")) == ["0: two", "1: two"]
    assert lines[-2:] == ["refused 2", "code 7"]
    assert "srun: --exclusive: steps do not divide the cores of their job" in ran.err
    assert "reads SLURM" not in ran.err


def test_a_signal_before_the_limit_is_sent_as_the_hint_says(sh: Shell) -> None:
    refused = sh("submit", "--signal=USR1@2", "-t", "1h", "--", "true")
    assert "timeout -s USR1 --preserve-status 58m CMD" in refused.err
    saves = "trap 'echo saved; exit 7' USR1; while :; do sleep 0.05; done"
    ran = sh("run", "-t", "1m", "--", "timeout", "-s", "USR1", "--preserve-status", "1s", "sh", "-c", saves)
    assert (ran.code, ran.out) == (7, "saved\n")


def test_a_pulled_array_has_its_numbers_and_a_step_of_one_process(sh: Shell) -> None:
    array = "$SLURM_ARRAY_JOB_ID $SLURM_ARRAY_TASK_ID $SLURM_ARRAY_TASK_MIN $SLURM_ARRAY_TASK_MAX $SLURM_ARRAY_TASK_COUNT"
    command = f'echo "{array}"; srun sh -c "exit 3"'
    ran = sh("submit", "--parsable", "-a", "3-7:2", "--slurm-env", "--", "sh", "-c", command)
    number = ran.out.strip()
    assert sh("wait", number).code == 3
    told = sh("logs", number).out.splitlines()
    assert sorted(told) == [f"{number}_{index}: {number} {index} 3 7 3" for index in (3, 5, 7)]


def test_without_the_option_one_line_says_what_to_type(sh: Shell, tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text('#!/bin/sh\n# $SLURM_JOB_ID\necho "[$SLURM_ARRAY_TASK_ID$SLURM_NTASKS]"\n')
    ran = sh("submit", "--wait", str(script))
    assert (ran.code, ran.out) == (0, "[]\n")
    warned = [line for line in ran.err.splitlines() if "SLURM" in line]
    assert len(warned) == 1
    assert "job.sh:3: it reads SLURM_ARRAY_TASK_ID, which nothing sets: --slurm-env" in warned[0]
    ran = sh("submit", "--wait", "--slurm-env", str(script))
    assert (ran.out, "reads SLURM" in ran.err) == ("[1]\n", False)


def test_a_branch_for_a_failure_that_did_not_come_is_no_failure(sh: Shell) -> None:
    first = sh("submit", "--parsable", "--", "true").out.strip()
    ran = sh("submit", "--wait", "--after", f"fail:{first}", "--", "echo", "cleaned")
    assert (ran.code, ran.out) == (0, "")
    assert f"was not needed: fail:{first}: submission {first} ended COMPLETED" in ran.err
    number = ran.err.split("Submitted job ")[1].split()[0]
    assert sh("wait", number).code == 0
    [item] = sh.ok("wait", number, "--json").json["items"]
    assert (item["state"], item["reason"]) == ("CANCELLED", "DEPENDENCY_FAILED")
    last = sh("submit", "--wait", "--after", f"ok:{number}", "--", "true")
    assert last.code == 130  # what waits for it to succeed is cancelled, as it ever was


def test_a_number_alone_is_noted_as_seconds(sh: Shell) -> None:
    assert "-t 90 is 90 seconds; 90 minutes would be -t 90m" in sh("submit", "--wait", "-t", "90", "--", "true").err
    assert "seconds" not in sh("submit", "--wait", "-t", "90s", "--", "true").err


def test_show_tells_directory_variables_by_name_and_files(sh: Shell, tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "x").write_text("x")
    words = ["--env", "TOKEN=secret", "--upload", str(tmp_path / "lib"), "--output", "slurm/out=file", "-o", str(tmp_path / "log")]
    ran = sh("submit", "--wait", *words, "--", "sh", "-c", "echo y > file")
    assert ran.code == 0, ran.err
    shown = sh.ok("show", "last", "--json").json
    assert (shown["env"], shown["uploads"], shown["outputs"]) == (["TOKEN"], ["lib"], ["slurm/out=file"])
    assert (shown["out"], shown["cwd"]) == (str(tmp_path / "log"), "")
    told = sh("show", "last").out
    assert "secret" not in told
    assert "with the variables TOKEN" in told
