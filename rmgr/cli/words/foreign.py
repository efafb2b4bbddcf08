"""Translate what users of Slurm, PBS, HyperQueue and Dask type into what is typed here; read only after an error."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Sequence

#: Words that are no command here -> what to type instead; the words behind them follow. The longest that fits counts.
_COMMANDS = {
    "sbatch": "submit",
    "srun": "run",
    "salloc": "run --pty bash",
    "squeue": "jobs",
    "sprio": "explain",
    "sacct": "history",
    "sreport": "report",
    "sshare": "jobs -o +share",
    "sstat": "show",
    "sinfo": "nodes",
    "sdiag": "status",
    "scancel": "cancel",
    "sattach": "logs -f",
    "sacctmgr": "limits",
    "scontrol": "show",
    "scontrol show": "show",
    "scontrol show job": "show",
    "scontrol show jobs": "jobs",
    "scontrol show node": "nodes",
    "scontrol show nodes": "nodes",
    "scontrol show partition": "queues",
    "scontrol show config": "config show",
    "scontrol hold": "hold",
    "scontrol release": "release",
    "scontrol ping": "status",
    "qsub": "submit",
    "qstat": "jobs",
    "qdel": "cancel",
    "qhold": "hold",
    "qrls": "release",
    "bsub": "submit",
    "bjobs": "jobs",
    "bkill": "cancel",
    "job": "jobs",
    "job list": "jobs",
    "job info": "show",
    "job submit": "submit",
    "job cancel": "cancel",
    "job show": "show",
    "job logs": "logs",
    "job tasks": "tasks",
    "job explain": "explain",
    "job wait": "wait",
    "job progress": "wait --progress",
    "job cat": "logs",
    "job summary": "status",
    "job task-ids": "tasks",
    "task": "tasks",
    "task list": "tasks",
    "task info": "show",
    "worker": "starter",
    "worker list": "nodes",
    "worker info": "nodes",
    "worker start": "starter",
    "worker stop": "drain",
    "server": "dev",
    "server start": "dev",
    "server stop": "dev stop",
    "server info": "status",
    "scheduler": "watchdog",
    "dashboard": "jobs --watch",
    "top": "jobs --watch",
    "watch": "jobs --watch",
    "queue": "queues",
    "node": "nodes",
    "node list": "nodes",
    "ps": "jobs",
    "ls": "jobs",
    "list": "jobs",
    "log": "logs",
    "cat": "logs",
    "tail": "logs -f",
    "kill": "cancel",
    "stop": "cancel",
    "del": "cancel",
    "delete": "cancel",
    "rm": "cancel",
    "undrain": "resume",
    "info": "status",
    "start": "dev",
    "put": "store put",
    "get": "store get",
}
#: What stands before the words of another program's own commands.
_PROGRAMS = {"hq", "dask", "slurm", "rmgr"}

#: Options of other systems -> ours.
_OPTIONS = {
    "--job-name": "-J NAME",
    "-p": "-q QUEUE (of a placed job also --partition)",
    "--qos": "-q QUEUE",
    "--ntasks": "-n P, processes of one job; many tasks are an array: -a 1-P",
    "--ntasks-per-node": "-N NODES -n P: they are spread evenly",
    "--cpus-per-task": "-c C",
    "--cpus": "-c C",
    "--ncpus": "-c C",
    "--nthreads": "-c C",
    "--mem-per-cpu": "--mem SIZE, of each task or process",
    "--memory": "--mem SIZE",
    "--time-limit": "-t TIME",
    "--time-request": "-t TIME",
    "--walltime": "-t TIME",
    "--error": "-e FILE",
    "--stdout": "-o FILE",
    "--stderr": "-e FILE",
    "--dependency": "-d afterok:ID (or ok:ID), any:ID, fail:ID",
    "--gres": "--gpus N, or --resource NAME=N",
    "-G": "--gpus N",
    "--chdir": "--cwd DIR",
    "-D": "--cwd DIR",
    "--constraint": "--features A,B",
    "-C": "--features A,B",
    "--licenses": "--resource NAME=N",
    "-L": "--resource NAME=N",
    "--nice": "--priority N (larger is earlier)",
    "--export": "--env NAME=VALUE",
    "--wrap": "-- sh -c 'COMMAND'",
    "--test-only": "--dry-run",
    "--immediate": "--timeout DURATION",
    "--max-parallel": "-a 1-100%8: 8 at a time",
    "--from-json": "--each-line FILE",
    "--crash-limit": "--retries N",
    "--deadline": "-t TIME",
    "-A": "--account NAME",
    "-W": "--wait",
    "--format": "-o COL,...",
    "--noheader": "--no-header",
    "--states": "-s STATE,...",
    "--long": "-o +COL,...",
    "--follow": "-f",
    "--lines": "-n N",
    "--log-file": "-o FILE",
    "--partition": "-q QUEUE",
    "--nodelist": "the node's name alone, as in rmgr nodes n1",
}


def command_for(words: Sequence[str]) -> str:
    """The command line to type instead of these words, `rmgr show 14`; "" where nothing is known. Options of others are left out."""
    rest = list(itertools.takewhile(lambda word: not word.startswith("-"), words))
    if rest and rest[0] in _PROGRAMS:
        rest = rest[1:]
    for length in (3, 2, 1):
        found = _COMMANDS.get(" ".join(rest[:length]), "") if len(rest) >= length else ""
        if found:
            return shlex.join(["rmgr", *found.split(), *rest[length:]])
    return shlex.join(["rmgr", *rest]) if rest and rest[0] != words[0] else ""


def below_jobs(words: Sequence[str]) -> str:
    """What to type instead of `rmgr jobs cancel 14`, `rmgr jobs list`; "" where that is no such thing."""
    return command_for(["job", *words]) if f"job {words[0]}" in _COMMANDS else ""


def option_for(option: str) -> str:
    """What to type here instead of an option of another system; "" where nothing is known."""
    return _OPTIONS.get(option, "")
