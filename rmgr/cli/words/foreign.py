"""Translates commands and options of Slurm, PBS, LSF, HTCondor, HyperQueue and Dask into rmgr's; used only after an error."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Collection, Sequence

from rmgr.cli.words import qsub, sbatch

#: What to type here -> words that are no command here and mean this; the words after them follow. The longest match counts.
COMMANDS = {
    word: ours
    for ours, words in {
        "submit": "sbatch, qsub, bsub, oarsub, condor_submit, job submit, job run, job dispatch",
        "submit --array": "array",
        "run": "srun, condor_run",
        "run --pty bash": "salloc, qrsh, qlogin",
        "jobs": "squeue, scontrol show jobs, qstat, qselect, bjobs, oarstat, condor_q, job, job list, ps, ls, list",
        "explain": "sprio, job explain",
        "history": "sacct, bhist, qacct, condor_history",
        "report": "sreport, bacct, usage",
        "jobs -o +share": "sshare",
        "show": "sstat, seff, scontrol show job, job info, job show, job status, task info, info, inspect, describe",
        "nodes": (
            "sinfo, scontrol show node, scontrol show nodes, bhosts, lsload, qhost, pbsnodes, condor_status, worker list, worker info, "
            "workers, node, node list, node status"
        ),
        "status": "sdiag, scontrol ping, job summary",
        "cancel": "scancel, qdel, bkill, oardel, condor_rm, job cancel, job stop, kill, stop, del, delete, rm, remove",
        "logs -f": "sattach, job attach, attach, bpeek, condor_tail, tail",
        "limits": "sacctmgr",
        "queues": "scontrol show partition, bqueues, queue",
        "config show": "scontrol show config",
        "hold": "scontrol hold, qhold, bstop, condor_hold",
        "release": "scontrol release, qrls, bresume, condor_release",
        "rerun": "scontrol requeue, requeue, resubmit, restart, retry, qrerun, brequeue",
        "logs": "output, job logs, job cat, log, cat",
        "wait": "condor_wait, job wait",
        "tasks": "job tasks, job task-ids, task, task list",
        "wait --progress": "job progress",
        "starter": "worker, worker start",
        "drain": "worker stop, node drain, condor_drain, cordon",
        "watchdog": "scheduler",
        "jobs --watch": "dashboard, top, watch",
        "resume": "undrain, uncordon",
        "dev": "start",
        "admin init": "init",
        "store put": "put",
        "store get": "get",
    }.items()
    for word in words.split(", ")
}
#: Commands whose arguments mean nothing to rmgr's commands.
_ALONE = {"sacctmgr", "sreport", "sshare", "sdiag"}
#: Command lines with no counterpart here -> what to do instead.
_ADVICE = {
    "scontrol update": "rmgr update ID --priority N -t TIME --mem SIZE; a node: rmgr drain NODE, rmgr resume NODE",
    "scontrol": "rmgr show ID, rmgr update ID, rmgr hold ID, rmgr release ID; nodes: rmgr nodes, rmgr drain NODE, rmgr resume NODE",
    **dict.fromkeys(("suspend", "pause", "scontrol suspend"), "waiting work: rmgr hold ID; running work: rmgr migrate ID, rmgr cancel ID"),
    **dict.fromkeys(("ts", "tsp", "pueue"), "rmgr submit -- CMD; rmgr jobs; rmgr logs ID; rmgr wait ID"),
    "qalter": "rmgr update ID --priority N -t TIME --mem SIZE",
    "bmod": "rmgr update ID --priority N -t TIME --mem SIZE",
    "parallel": "rmgr submit --each-line FILE -- sh -c 'CMD \"$RMGR_ENTRY\"'; seq 1 9 | rmgr submit --each-line - ...",
    "xargs": "rmgr submit --each-line - -- sh -c 'CMD \"$RMGR_ENTRY\"'",
}
#: Selectors of `rmgr cancel` and `rmgr rerun`: after `kill` or `restart`, other words name nodes, values or queues.
_SELECTOR = re.compile(r"\d[\d,:_%-]*|taskq-\d+|last|all")
#: Names of programs before their own commands.
_PROGRAMS = {"hq", "dask", "slurm", "flux", "nomad", "rmgr"}

#: Options of other systems -> ours.
OPTIONS = {
    "--job-name": "-J NAME",
    "-p": "-q QUEUE (of a placed job also --partition)",
    "--qos": "-q QUEUE",
    "--ntasks": "-n P, processes of one job; many tasks are an array: -a 1-P",
    "--ntasks-per-node": "-N NODES -n P: they are spread evenly",
    "--cpus-per-task": "-c C",
    "--cpus": "-c C",
    "--ncpus": "-c C",
    "--nthreads": "-c C",
    "--mem-per-cpu": "--mem SIZE, of each task or process with all its cores",
    "--memory": "--mem SIZE",
    "--time-limit": "-t TIME",
    "--time-request": "-t TIME",
    "--walltime": "-t TIME",
    "--error": "-e FILE",
    "--stdout": "-o FILE",
    "--stderr": "-e FILE",
    "--dependency": "-d afterok:ID (or ok:ID), any:ID, fail:ID",
    "--gres": "--gpus N, or --resource NAME=N, of each process",
    "-G": "--gpus N, of each process",
    "--chdir": "--cwd DIR",
    "-D": "--cwd DIR",
    "--constraint": "--features A,B",
    "-C": "--features A,B",
    "--nice": "--priority=-N (larger is earlier here, and later there)",
    "--export": "--env NAME=VALUE, or --env NAME, for each variable",
    "--wrap": "-- sh -c 'COMMAND'",
    "--test-only": "--dry-run",
    "--max-parallel": "-a 1-100%8: 8 at a time",
    "--from-json": "--each-line FILE",
    "--crash-limit": "--retries N",
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
    "-l": "-t TIME (walltime), -c CORES (ncpus), --mem SIZE (mem), -N NODES -n P (select, nodes:ppn)",
    "-j": "-o FILE -e FILE, with the same name",
    "-V": "--env NAME for each variable: the whole environment does not go along",
    "-r": "--requeue, or --no-requeue",
    "-P": "--account NAME",
    "-I": "rmgr run --pty bash",
    "-S": "#!/bin/bash, in the first line of the script",
}
#: (command of rmgr, option) for options whose value that command takes as a plain word.
_WORD_ALONE = dict.fromkeys((("queues", "-p"), ("queues", "-q"), ("queues", "--partition")), "the queue's name alone: rmgr queues QUEUE")
_WORD_ALONE |= dict.fromkeys((("nodes", "-n"), ("nodes", "-w"), ("nodes", "--nodelist")), "the node's name alone: rmgr nodes NODE")
#: An option named in a hint.
_NAMED_OPTION = re.compile(r"(?<![\w-])--?[a-zA-Z][a-z-]*")
#: Option of qsub -> values that would mean nothing in Slurm's option of this name, or in ours.
_VALUES_OF_PBS = {
    "-j": re.compile(""),
    "-l": re.compile(""),
    "-M": re.compile(".*@"),
    "-m": re.compile("[abefjn]+$"),
    "-N": re.compile("[^0-9]"),
    "-P": re.compile(""),
    "-R": re.compile(""),
    "-r": re.compile(""),
    "-S": re.compile("/"),
    "-W": re.compile("[a-z_]+="),
}


def command_for(words: Sequence[str]) -> str:
    """Returns the command line to type instead of these words, like `rmgr show 14`; "" if unknown. Leaves out options of other systems."""
    rest = list(itertools.takewhile(lambda word: not word.startswith("-"), words))
    if rest and rest[0] in _PROGRAMS:
        rest = rest[1:]
    for length in (3, 2, 1):
        found = COMMANDS.get(" ".join(rest[:length]), "") if len(rest) >= length else ""
        if found in {"cancel", "rerun"} and not all(map(_SELECTOR.fullmatch, rest[length:])):
            return ""
        if found:
            return shlex.join(["rmgr", *found.split(), *([] if rest[0] in _ALONE else rest[length:])])
    return shlex.join(["rmgr", *rest]) if rest and rest[0] != words[0] else ""


def advice_for(words: Sequence[str]) -> str:
    """Returns what to do if no command here does what these words do elsewhere; "" if unknown."""
    return _ADVICE.get(" ".join(words[:2])) or _ADVICE.get(words[0], "")


def below_jobs(words: Sequence[str]) -> str:
    """Returns what to type instead of `rmgr jobs cancel 14`, `rmgr jobs list`; "" for other words."""
    return command_for(["job", *words]) if f"job {words[0]}" in COMMANDS else ""


def option_for(option: str, words: Sequence[str] = (), *, command: str = "submit", known: Collection[str] | None = None) -> str:
    """Returns what to type instead of an option of another system, or why nothing does the same; "" if unknown.

    Args:
        words: everything typed, with the option's value. command: the command it was typed to. known: options of this
            command: a hint that names only others is dropped. None: keep every hint.
    """
    message = f"here it is {OPTIONS[option]}" if option in OPTIONS else ""
    if command not in {"submit", "run"}:
        if (command, option) in _WORD_ALONE:
            return _WORD_ALONE[command, option]
        named = _NAMED_OPTION.findall(OPTIONS.get(option, ""))
        return message if known is None or not named or set(named) & set(known) else ""
    value = _value_of(option, words)
    if option == "--wrap":  # a command line is no value to check
        return message
    is_of_pbs = value is not None and option in _VALUES_OF_PBS and _VALUES_OF_PBS[option].match(value) is not None
    if not (is_of_pbs or sbatch.is_known(option)) or (value is None and message):
        return message
    try:
        ours = qsub.said(option, value) if is_of_pbs else sbatch.said(option, value)
    except sbatch.Unlike as why:
        return f"{option}{'' if value is None else f' {value}'}: {why}" if value is not None or not message else message
    if not ours:
        return f"leave it out: it is so anyway without {option}"
    return f"{message}: {shlex.join(ours)}" if message and not is_of_pbs else f"here it is {shlex.join(ours)}"


def _value_of(option: str, words: Sequence[str]) -> str | None:
    """Returns the value typed after an option, or None."""
    typed = list(itertools.takewhile(lambda word: word != "--", words))
    for at, word in enumerate(typed):
        if word == option:
            behind = typed[at + 1 : at + 2] if sbatch.takes_value(option) or option == "-W" else []
            return next((value for value in behind if not value.startswith("-") and (option != "-W" or "=" in value)), None)
        if option.startswith("--") and word.startswith(f"{option}="):
            return word.partition("=")[2]
        if not option.startswith("--") and word.startswith(option) and len(word) > len(option):
            return word[len(option) :]
    return None
