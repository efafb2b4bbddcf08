"""Scripts: directives, their lines, and messages for users who come from another system."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from rmgr.cli.words.script import (
    check_interpreter,
    ignoring,
    looks_like_script,
    read_script,
    refused,
    translation,
    unset_other,
    unset_slurm,
)
from rmgr.errors import UsageError


def script(tmp_path: Path, text: str, name: str = "job.sh") -> str:
    path = tmp_path / name
    path.write_text(text)
    return str(path)


def test_directives_stand_in_the_leading_block(tmp_path: Path) -> None:
    read = read_script(
        script(tmp_path, "#!/bin/bash\n\n#RMGR -J big --time 1h  # an hour\n# RMGR --hold\n#RMGR\n#RMGR\t-c 2\necho\n#RMGR -c 8\n")
    )
    assert read.directives == ((3, ("-J", "big", "--time", "1h")), (6, ("-c", "2")))
    assert [note.partition(": ")[0].rpartition("/")[2] for note in read.notes] == ["job.sh:8"]


@pytest.mark.parametrize(
    ("text", "line", "told"),
    [
        ("#!/bin/sh\n#RMGR --name 'x\n", 2, "cannot be read"),
        ("#!/bin/sh\n#\n#RMGR name=x\n", 3, "where an option should be"),
        ("#!/bin/sh\r\necho\r\n", 1, "DOS"),
    ],
)
def test_a_malformed_script_is_refused_with_its_line(tmp_path: Path, text: str, line: int, told: str) -> None:
    path = tmp_path / "job.sh"
    path.write_bytes(text.encode())
    with pytest.raises(UsageError, match=told) as caught:
        read_script(str(path))
    assert f"job.sh:{line}" in caught.value.message


@pytest.mark.parametrize(("text", "told"), [(b"", "empty"), (b" \n", "empty"), (b"\x7fELF\0\0", "no text")])
def test_what_is_no_script_is_refused(tmp_path: Path, text: bytes, told: str) -> None:
    path = tmp_path / "x"
    path.write_bytes(text)
    with pytest.raises(UsageError, match=told):
        read_script(str(path))


def test_standard_input_is_a_script() -> None:
    read = read_script("-", io.BytesIO(b"#!/bin/sh\n#RMGR -J in\necho\n"))
    assert (read.name, read.directives) == ("stdin", ((2, ("-J", "in")),))


def test_lines_of_slurm_are_refused_with_the_lines_to_add(tmp_path: Path) -> None:
    lines = (
        "#!/bin/sh\n#SBATCH --job-name=x --cpus-per-task=4\n#SBATCH --dependency=afterok:7 --mail-type=END -n 4\n"
        "#SBATCH --mail-user me@here -t 5\n#SBATCH --wckey=w\n"
    )
    read = read_script(script(tmp_path, lines))
    told = translation(read)
    assert told[:3] == ["#RMGR --name=x --cores=4", "#RMGR --after=ok:7 -n 4", "#RMGR -t 5m"]
    starts = ("--mail-type=END  (", "--mail-user me@here  (", "--wckey=w  (")
    assert all(line.startswith(f"# without an equal here: {start}") for line, start in zip(told[3:], starts, strict=True))
    error = refused(read)
    assert error.message.endswith("job.sh:2: #SBATCH lines are not obeyed here")
    assert "--ignore-sbatch" in str(error.hint)


def test_the_lines_to_add_are_obeyed(tmp_path: Path) -> None:
    """What is said to a user of Slurm is put into the script: each line can be read."""
    lines = "#SBATCH -J x -N 2 --ntasks-per-node=2 --mem=4G --nice=10 -o o.%A_%a --begin=noon --exclusive\n#SBATCH --wrap=x --export=NONE\n"
    told = translation(read_script(script(tmp_path, f"#!/bin/sh\n{lines}")))
    again = read_script(script(tmp_path, "#!/bin/sh\n" + "\n".join(told) + "\necho\n"))
    assert again.foreign == ()
    assert [words for _, words in again.directives] == [
        (
            *("-J", "x", "-N", "2", "--processes=4", "--mem=2048M", "--priority=-10"),
            *("-o", "o.%j_%a", "--err", "o.%j_%a", "--begin=12:00", "--exclusive"),
        ),
    ]


def test_lines_of_pbs_are_refused_with_the_lines_to_add_and_those_are_obeyed(tmp_path: Path) -> None:
    lines = "#!/bin/sh\n#PBS -N x -j oe\n#PBS -l nodes=2:ppn=2,walltime=1:00:00\n#PBS -l mem=8gb\n#PBS -V\n#PBS -o out\n"
    read = read_script(script(tmp_path, lines))
    told = translation(read)
    assert told[:-1] == [
        "#RMGR --name=x",
        "#RMGR --processes=4 --nodes=2 --time=1:00:00",
        "#RMGR --mem=2G",
        "#RMGR --out=out --err=out",
    ]
    assert told[-1].startswith("# without an equal here: -V  (")
    error = refused(read)
    assert error.message.endswith("job.sh:2: #PBS lines are not obeyed here")
    assert "--ignore-pbs" in str(error.hint)
    again = read_script(script(tmp_path, "#!/bin/sh\n" + "\n".join(told) + "\n" + lines))
    assert (again.foreign, again.notes) == ((), ())


def test_a_script_of_two_systems_is_translated_from_slurm_and_each_is_ignored_by_name(tmp_path: Path) -> None:
    read = read_script(script(tmp_path, "#!/bin/sh\n#PBS -N pbs\n#SBATCH -J slurm\n"))
    assert translation(read) == ["#RMGR -J slurm"]
    assert "--ignore-sbatch" in str(refused(read).hint)
    rest = ignoring(read, ["#SBATCH"])
    assert translation(rest) == ["#RMGR --name=pbs"]
    assert "job.sh:2" in refused(rest).message
    assert ignoring(rest, ["#PBS"]).foreign == ()


def test_lines_of_slurm_beside_ours_are_comments(tmp_path: Path) -> None:
    read = read_script(script(tmp_path, "#!/bin/sh\n#SBATCH -J x\n#RMGR -J x\n"))
    assert (read.notes, read.foreign) == ((), ())


def test_a_file_is_a_script_and_a_command_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    script(tmp_path, "echo no shebang\n")
    script(tmp_path, "plain notes\n", "sleep")  # also a command: only a #! line makes it the script
    script(tmp_path, "#!/bin/sh\n", "true")
    (tmp_path / "a.out").write_bytes(b"\x7fELF\0\0")
    answers = {word: looks_like_script(word) for word in ("job.sh", "./job.sh", "sleep", "true", "./a.out", "echo", "only-on-nodes")}
    assert answers == {
        "job.sh": True,
        "./job.sh": True,
        "sleep": False,
        "true": True,
        "./a.out": False,
        "echo": False,
        "only-on-nodes": False,
    }


@pytest.mark.parametrize(
    ("name", "text", "hint"),
    [
        ("a.py", "print(1)\n", "#!/usr/bin/env python3, or: rmgr submit --upload {0} -- python3 a.py"),
        ("b c.R", "print(1)\n", "rmgr submit --upload '{0}' -- Rscript 'b c.R'"),
        ("a.py", "#!/usr/bin/python3\n", ""),
        ("a.sh", "echo\n", ""),
        ("a", "echo\n", ""),
    ],
)
def test_a_script_that_no_shell_can_read_says_what_can(tmp_path: Path, name: str, text: str, hint: str) -> None:
    (tmp_path / name).write_text(text)
    read, told = read_script(str(tmp_path / name)), ""
    try:
        check_interpreter(read)
    except UsageError as error:
        told = error.hint
    assert hint.format(tmp_path / name) in told
    assert bool(hint) == bool(told)


def test_a_script_that_does_not_exist_is_refused_with_the_nearest_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    script(tmp_path, "#!/bin/sh\n")
    with pytest.raises(UsageError, match="no script jb") as caught:
        looks_like_script("jb.sh")
    assert caught.value.hint == "did you mean job.sh?"
    with pytest.raises(UsageError, match=r"no script train\.py"):
        looks_like_script("train.py")
    with pytest.raises(UsageError, match="directory"):
        looks_like_script("./")


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('echo "task $SLURM_ARRAY_TASK_ID"', "reads SLURM_ARRAY_TASK_ID, which nothing sets"),
        ("x=${SLURM_NTASKS:-1}", "reads SLURM_NTASKS"),
        ('rank = int(os.environ["SLURM_PROCID"])', "reads SLURM_PROCID"),
        ("os.getenv('SLURM_LOCALID')", "reads SLURM_LOCALID"),
        ("echo $SLURMD_NODENAME", "reads SLURMD_NODENAME"),
        ("cd /tmp && srun ./a", "calls srun, which is not there"),
        ("for i in 1 2; do srun ./a; done", "calls srun"),
        ("# srun $SLURM_JOB_ID", ""),
        ("echo slurm; ./my-srun x", ""),
    ],
)
def test_work_that_reads_variables_of_slurm_is_warned_of(tmp_path: Path, line: str, told: str) -> None:
    read = read_script(script(tmp_path, f"#!/bin/sh\n\n{line}\necho\n"))
    said = unset_slurm(read, ())
    assert told in said
    assert bool(said) == bool(told)
    if told:
        assert "job.sh:3: it " in said
        assert "--slurm-env" in said
        assert "\n" not in said


def test_words_of_a_command_are_looked_at_too_and_what_is_set_by_hand_is_left_out() -> None:
    assert "reads SLURM_JOB_ID" in unset_slurm(None, ["sh", "-c", "echo $SLURM_JOB_ID"])
    assert unset_slurm(None, ["sh", "-c", "echo $SLURM_JOB_ID"], ["SLURM_JOB_ID"]) == ""
    assert unset_slurm(None, ["echo", "SLURM_JOB_ID"]) == ""


def test_variables_of_other_systems_are_told_with_what_holds_the_same(tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/sh\n# $HQ_TASK_ID\ncd $PBS_O_WORKDIR\n")
    read = read_script(str(script))
    assert unset_other(read, ()) == f"{script}:3: it reads PBS_O_WORKDIR, which nothing sets: --env PBS_O_WORKDIR=VALUE sets it"
    assert unset_other(read, (), ["PBS_O_WORKDIR"]) == ""
    assert unset_other(None, ["sh", "-c", "echo ${SGE_TASK_ID}"]) == "it reads SGE_TASK_ID, which nothing sets: here it is RMGR_ARRAY_INDEX"


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("#rmgr -c 2", "only lines that begin with #RMGR and a blank are obeyed"),
        ("#RMGR--name x", "only lines that begin with #RMGR and a blank are obeyed"),
        ("#RMGR --name=$USER-job", "no shell reads #RMGR lines: $USER stays as it is"),
        ("#RMGR -o ${HOME}/x", "no shell reads #RMGR lines: ${HOME} stays as it is"),
        ("#RMGR -o ~/x", "no shell reads #RMGR lines: ~ stays as it is"),
        ("#flux: -N 2", "#flux: lines are not read here; write them as #RMGR lines"),
        ("#OAR -l nodes=2", "#OAR lines are not read here; write them as #RMGR lines"),
        ("#RMGR --name x", ""),
        ("# RMGR --name x", ""),
        ("##RMGR --name x", ""),
        ("# RMGR makes jobs of scripts", ""),
    ],
)
def test_lines_that_are_nearly_directives_and_variables_in_them_are_told(tmp_path: Path, line: str, told: str) -> None:
    script = tmp_path / "job.sh"
    script.write_text(f"#!/bin/sh\n{line}\necho\n")
    assert read_script(str(script)).notes == ((f"{script}:2: {told}",) if told else ())


def test_a_script_of_slurm_that_reads_its_variables_is_told_the_option_as_a_line(tmp_path: Path) -> None:
    read = read_script(script(tmp_path, "#!/bin/sh\n#SBATCH -a 1-3\necho $SLURM_ARRAY_TASK_ID\n"))
    assert translation(read) == ["#RMGR -a 1-3", "#RMGR --slurm-env"]
