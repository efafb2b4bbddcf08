"""`srun` in work that was submitted with `--slurm-env`: a step on the nodes of its job, started as by `rmgr run`.

Options that a step does not support are refused with words, so that nothing runs otherwise than asked. Standard library alone, as
client.py.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rmgr.runner.host import slurm
from rmgr.runner.ranks import client

_WHOLE_JOB = "is for the whole job here: give it to rmgr submit"
_SHELL = "redirect in the shell: srun ./a > out"
_EXACT = "steps do not divide the cores of their job among them: a job array does, rmgr submit -a 1-N"
_BOUND = "each rank has processors of its own anyway"
#: Options that a step does not support -> why, and what to type instead.
_REFUSED = {
    "--mpi": "an MPI program is started by mpirun: mpirun ./solver (no options are needed)",
    "--multi-prog": "all ranks run one command: choose by $SLURM_PROCID in it",
    "--pty": "a terminal: rmgr run --pty bash",
    "--exclusive": _EXACT,
    "--exact": _EXACT,
    "--overlap": _EXACT,
    "--relative": "a step begins on the first node of its job",
    "--output": _SHELL,
    "--error": _SHELL,
    "--input": _SHELL,
    "--time": _WHOLE_JOB,
    "--mem": _WHOLE_JOB,
    "--mem-per-cpu": _WHOLE_JOB,
    "--gpus": _WHOLE_JOB,
    "--gpus-per-task": _WHOLE_JOB,
    "--gpus-per-node": _WHOLE_JOB,
    "--gres": _WHOLE_JOB,
    "--nodelist": _WHOLE_JOB,
    "--exclude": _WHOLE_JOB,
    "--partition": _WHOLE_JOB,
    "--account": _WHOLE_JOB,
    "--qos": _WHOLE_JOB,
    "--constraint": _WHOLE_JOB,
    "--dependency": _WHOLE_JOB,
    "--jobid": "a step runs in the job around it alone",
    "--cpu-bind": _BOUND,
    "--mem-bind": _BOUND,
    "--gpu-bind": "each rank has GPUs of its own anyway",
    "--distribution": "ranks are numbered node after node",
    "--wait": "--kill-on-bad-exit ends all ranks when one fails",
}
#: Options without effect on results.
_FLAGS_WITHOUT_EFFECT = {"--unbuffered", "--verbose", "--quiet"}
_NUMBERS = {"--ntasks", "--nodes", "--cpus-per-task", "--ntasks-per-node"}
_WITH_VALUE = {*_NUMBERS, "--job-name", "--export", "--chdir"} | (_REFUSED.keys() - {"--multi-prog", "--pty", "--exact", "--overlap"})
_SHORT = {
    "-n": "--ntasks",
    "-N": "--nodes",
    "-c": "--cpus-per-task",
    "-l": "--label",
    "-K": "--kill-on-bad-exit",
    "-u": "--unbuffered",
    "-v": "--verbose",
    "-Q": "--quiet",
    "-J": "--job-name",
    "-D": "--chdir",
    "-t": "--time",
    "-o": "--output",
    "-e": "--error",
    "-i": "--input",
    "-w": "--nodelist",
    "-x": "--exclude",
    "-p": "--partition",
    "-A": "--account",
    "-G": "--gpus",
    "-C": "--constraint",
    "-d": "--dependency",
    "-m": "--distribution",
    "-r": "--relative",
    "-W": "--wait",
}
#: Options whose value, if any, follows "=".
_MAYBE = {"--exclusive", "--kill-on-bad-exit", "--mpi", "--cpu-bind", "--mem-bind"}
#: A program that is linked with MPI contains this name within its first bytes, of which so many are read.
_MPI, _LOOK_BYTES = b"libmpi", 16 * 1024 * 1024


class Unlike(ValueError):
    """An option or a command with another meaning here; the text says what to type."""


class Step(NamedTuple):
    """What a command line of srun asks for; 0: as many as the job has."""

    argv: tuple[str, ...]
    processes: int = 0
    nodes: int = 0
    cores: int = 0
    each_node: int = 0
    label: bool = False
    kill_on_bad_exit: bool = False
    directory: str = ""


def parsed(words: Sequence[str]) -> Step:
    """Parses the words of a command line. Raises: Unlike."""
    rest, asked, flags = list(words), dict.fromkeys(_NUMBERS, 0), set()
    directory = ""
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        if word == "--":
            break
        name, value = _split_option(word)
        if value is None and name in _WITH_VALUE - _MAYBE:
            if not rest:
                raise Unlike(f"{name} needs a value")
            value = rest.pop(0)
        if name in _REFUSED and not (name == "--mpi" and value == "none"):
            raise Unlike(f"{name}: {_REFUSED[name]}")
        if name in _NUMBERS:
            asked[name] = _positive_number(name, value or "")
        elif name == "--export":
            if value != "ALL":
                raise Unlike(f"--export={value}: ranks have the variables of the script: export NAME=VALUE before srun")
        elif name == "--chdir":
            directory = value or ""
        elif name == "--kill-on-bad-exit" and value in {None, "0", "1"}:
            flags |= {name} if value != "0" else set()
        elif name == "--label" and value is None:
            flags.add(name)
        elif name not in _FLAGS_WITHOUT_EFFECT | {"--job-name", "--mpi"}:
            raise Unlike(f"there is no option {word} here: rmgr run --help, and rmgr/docs/slurm.md")
    if not rest:
        raise Unlike("there is no command to run: srun ./solver")
    return Step(
        argv=tuple(rest),
        processes=asked["--ntasks"],
        nodes=asked["--nodes"],
        cores=asked["--cpus-per-task"],
        each_node=asked["--ntasks-per-node"],
        label="--label" in flags,
        kill_on_bad_exit="--kill-on-bad-exit" in flags,
        directory=directory,
    )


def _split_option(word: str) -> tuple[str, str | None]:
    """Returns (long name, joined value)."""
    if word.startswith("--"):
        name, equals, value = word.partition("=")
        return name, value if equals else None
    return _SHORT.get(word[:2], word[:2]), word[2:] or None


def _positive_number(name: str, value: str) -> int:
    if not (value.isascii() and value.isdigit() and 0 < int(value[:10]) < 10**9):
        raise Unlike(f"{name}={value} is not a number from 1")
    return int(value)


def check_shape(step: Step, place: client.OwnAllocation, cores: int) -> None:
    """Raises: Unlike if the step would have another shape, NotInJob for more processes than there are."""
    spread = place.spread(step.processes or place.processes)
    told = ", ".join(f"{node} ({count})" for node, _, count in spread)
    if step.nodes not in {0, len(spread)}:
        raise Unlike(f"--nodes={step.nodes}: its ranks are on {told}, node after node, each as many as the job has there")
    if step.each_node and any(count != step.each_node for _, _, count in spread):
        raise Unlike(f"--ntasks-per-node={step.each_node}: its ranks are on {told}")
    if step.cores not in {0, cores}:
        raise Unlike(f"--cpus-per-task={step.cores}: each process of the job has {cores}: rmgr submit -c {step.cores}")


def check_program(program: str) -> None:
    """Raises: Unlike for a program linked with MPI: its ranks would not find each other, and each would compute everything."""
    found = shutil.which(program)
    if found is None or os.path.basename(found) in {"env", "sh", "bash"}:
        return
    try:
        with open(found, "rb") as file:
            head = file.read(4)
            is_mpi = head == b"\x7fELF" and _MPI in file.read(_LOOK_BYTES)
    except OSError:
        return  # the error comes when it is started
    if is_mpi:
        raise Unlike(f"{program} is an MPI program, and srun has no MPI here: mpirun {program} (no options are needed)")


def main(words: Sequence[str], environ: Mapping[str, str] | None = None) -> int:
    """Runs a step; returns the highest code of its ranks, 2 if refused."""
    environ = os.environ if environ is None else environ
    try:
        step = parsed(words)
        check_program(step.argv[0])
        place = _allocation_around_us(environ)
        check_shape(step, place, int(environ.get("RMGR_THREADS", "1")))
        if step.directory:
            os.chdir(step.directory)
        if not place.door:
            return _run_in_place(step, environ)
        return client.run(
            step.argv, processes=step.processes, label=step.label, kill_on_bad_exit=step.kill_on_bad_exit, environ=environ
        )
    except (Unlike, client.NotInJob, OSError) as error:
        sys.stderr.write(f"srun: {error}\n")
        return 2


def _allocation_around_us(environ: Mapping[str, str]) -> client.OwnAllocation:
    """Returns the allocation around us; for a pulled task it is this one process."""
    if "RMGR_HOSTFILE" in environ:
        return client.OwnAllocation.of(environ)
    if "RMGR_TASK_ID" not in environ:
        raise client.NotInJob("this is not work of rmgr: rmgr submit --slurm-env job.sh")
    node = environ.get("RMGR_NODELIST", "")
    return client.OwnAllocation(here=node, shares=((node, 1),), door="")


def _run_in_place(step: Step, environ: Mapping[str, str]) -> int:
    """Runs the command in place of this process, with its signals and code."""
    if step.label:
        raise Unlike("--label: this work has one process, so its lines need none")
    try:
        os.execvpe(step.argv[0], list(step.argv), dict(environ))  # noqa: S606 - what was asked for
    except OSError as error:
        sys.stderr.write(f"srun: {step.argv[0]} cannot be started: {error.strerror}\n")
        return 127 if isinstance(error, FileNotFoundError) else 126


def scontrol(words: Sequence[str]) -> int:
    """Runs `scontrol show hostnames [LIST]`, by which scripts get the names of their nodes; refuses anything else."""
    if list(words[:2]) not in (["show", "hostnames"], ["show", "hostname"]) or len(words) > 3:
        sys.stderr.write("scontrol: only `scontrol show hostnames [LIST]` is here; rmgr --help lists what rmgr can do\n")
        return 2
    try:
        names = slurm.hostnames(words[2] if len(words) == 3 else os.environ.get("SLURM_JOB_NODELIST", ""))
    except ValueError:
        sys.stderr.write(f"scontrol: {words[2]!r} is not a list of nodes\n")
        return 2
    sys.stdout.write("".join(f"{name}\n" for name in names))
    return 0
