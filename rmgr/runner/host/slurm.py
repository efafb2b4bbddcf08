"""The SLURM_* variables of work that was submitted with `--slurm-env`, made from its own RMGR_* variables; and its programs.

What only the submitter knows (directory, queue, array) is already in the command's variables; the flag is one of them, so that records need
no field for it.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
from collections.abc import Iterable, Mapping, Sequence

#: Work with this variable gets those of Slurm, and `srun`.
FLAG = "RMGR_SLURM_ENV"
_NUMBERED = re.compile(r"(.*?)([0-9]+)")
_MIB = 1024 * 1024
#: Open MPI sees Slurm's variables and would ask Slurm's daemons, which are not here.
_NOT_SLURMS = {"OMPI_MCA_plm": "rsh", "OMPI_MCA_ras": "^slurm", "PRTE_MCA_plm": "ssh", "PRTE_MCA_ras": "^slurm"}
_PROGRAM = """import sys
sys.path.insert(0, {root!r})
from rmgr.runner.ranks.srun import {main}
sys.exit({main}(sys.argv[1:]))"""
#: Name in the work's PATH -> function that it calls.
_PROGRAMS = {"srun": "main", "scontrol": "scontrol"}


def bracketed(nodes: Sequence[str]) -> str:
    """Returns `n[1-3,7],login`: names in their order, as Slurm writes them; digits keep their width."""
    pieces: list[str] = []
    for prefix, group in itertools.groupby(nodes, key=_prefix):
        names = list(group)
        runs: list[list[str]] = []
        for name in names:
            digits = name[len(prefix) :]
            if runs and len(runs[-1][-1]) == len(digits) and digits and int(digits) == int(runs[-1][-1]) + 1:
                runs[-1].append(digits)
            else:
                runs.append([digits])
        told = ",".join(run[0] if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
        pieces += [prefix + told if len(names) == 1 else f"{prefix}[{told}]"] if runs[0][0] else names
    return ",".join(pieces)


def _prefix(name: str) -> str:
    match = _NUMBERED.fullmatch(name)
    return match[1] if match else name


def hostnames(text: str) -> list[str]:
    """Returns the nodes of a bracketed list, in order. Raises: ValueError."""
    names: list[str] = []
    for piece in re.findall(r"[^,\[\]]+(?:\[[^\[\]]*\])?", text):
        prefix, _, inside = piece.rstrip("]").partition("[")
        if not inside:
            names.append(prefix)
            continue
        for part in inside.split(","):
            first, _, last = part.partition("-")
            names += [f"{prefix}{number:0{len(first)}d}" for number in range(int(first), int(last or first) + 1)]
    return names


def _repeated(numbers: Iterable[int]) -> str:
    """Returns `2(x3),1`, as Slurm writes a number for each node."""
    runs = ((number, len(list(group))) for number, group in itertools.groupby(numbers))
    return ",".join(f"{number}(x{count})" if count > 1 else str(number) for number, count in runs)


def _shares(environ: Mapping[str, str]) -> list[tuple[str, int]]:
    """Returns (node, processes there), the node of the script first."""
    nodes = environ.get("RMGR_NODELIST", "").split(",")
    with contextlib.suppress(OSError, KeyError, ValueError, IndexError), open(environ["RMGR_HOSTFILE"], encoding="utf-8") as file:
        return [(line.split()[0], int(line.split()[1].removeprefix("slots="))) for line in file if line.strip()]
    return [(node, int(environ.get("RMGR_NPROCS", "1")) if len(nodes) == 1 else 1) for node in nodes]


def variables(environ: Mapping[str, str], memory_bytes: int, own: Mapping[str, str]) -> dict[str, str]:
    """Returns Slurm's variables for one attempt, at the start of its script.

    Args:
        environ: its variables. memory_bytes: of one process, 0 = no limit. own: set by its user; they stay.
    """
    shares = _shares(environ)
    nodes, threads = [node for node, _ in shares], int(environ.get("RMGR_THREADS", "1"))
    processes, here = environ.get("RMGR_NPROCS", "1"), shares[0][1]
    cpus = environ.get("RMGR_CPUS_ON_NODE") or str(here * threads)
    number, index = environ.get("RMGR_JOB_ID", ""), environ.get("RMGR_ARRAY_INDEX", "0")
    is_array = "SLURM_ARRAY_TASK_COUNT" in own
    job = f"{number}_{index}" if is_array else number
    found = {
        "SLURM_JOB_ID": job,
        "SLURM_JOBID": job,
        "SLURM_NTASKS": processes,
        "SLURM_NPROCS": processes,
        "SLURM_CPUS_PER_TASK": str(threads),
        "SLURM_CPUS_ON_NODE": cpus,
        "SLURM_JOB_CPUS_PER_NODE": _repeated([int(cpus), *(count * threads for _, count in shares[1:])]),
        "SLURM_TASKS_PER_NODE": _repeated(count for _, count in shares),
        "SLURM_JOB_NODELIST": bracketed(nodes),
        "SLURM_NODELIST": bracketed(nodes),
        "SLURM_JOB_NUM_NODES": str(len(nodes)),
        "SLURM_NNODES": str(len(nodes)),
        "SLURM_PROCID": "0",
        "SLURM_LOCALID": "0",
        "SLURM_NODEID": "0",
        "SLURMD_NODENAME": nodes[0],
        "SLURM_JOB_NAME": environ.get("RMGR_JOB_NAME", ""),
    }
    if is_array:
        found |= {"SLURM_ARRAY_JOB_ID": number, "SLURM_ARRAY_TASK_ID": index}
    if memory_bytes:
        found["SLURM_MEM_PER_NODE"] = str(memory_bytes * here // _MIB)
    if (attempt := environ.get("RMGR_ATTEMPT", "1")) != "1":
        found["SLURM_RESTART_COUNT"] = str(int(attempt) - 1)
    found |= {name: value for name, value in _NOT_SLURMS.items() if name not in environ}
    return found | {name: value for name, value in own.items() if name.startswith("SLURM")}


def add(environ: dict[str, str], memory_bytes: int, own: Mapping[str, str]) -> None:
    """Adds Slurm's variables; removes those of a Slurm job in which the Starter itself runs."""
    for name in [name for name in environ if name.startswith(("SLURM_", "SLURMD_"))]:
        del environ[name]
    environ.update(variables(environ, memory_bytes, own))


def furnish(directory: str) -> str:
    """Makes `srun` and `scontrol` in a directory below `directory`; returns its path. Raises: OSError."""
    import shlex  # like the path imports: few spawners need them

    from rmgr.runner.host import home

    place = os.path.join(directory, "slurm")
    os.makedirs(place, exist_ok=True)
    for name, main in _PROGRAMS.items():
        program = shlex.quote(_PROGRAM.format(root=str(home.ROOT), main=main))
        path = os.path.join(place, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(f'#!/bin/sh\nexec {shlex.quote(home.PYTHON)} -I -S -c {program} "$@"\n')
        os.chmod(path, 0o755)  # noqa: S103 - run by whoever the work belongs to
    return place
