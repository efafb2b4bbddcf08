"""Plain `mpirun` of Open MPI inside an allocation of two Starters uses rmgr as its launcher, without ssh or options."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from rmgr.model.base.states import State
from rmgr.model.tasks.submission import Command
from tests.harness.hand_leader import put, unhold
from tests.harness.starter_rig import Rig

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
    for node in ("n1", "n2"):
        rig.start(node, cores=2, serves=True)
        rig.wait_registered(node)
    # As root in a container; two nodes on one machine, which Open MPI takes for several only if asked.
    (tmp_path / "sum.py").write_text(SCRIPT)
    python = f"{shlex.quote(sys.executable)} {tmp_path}/sum.py"
    script = f"""export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1; exec 2> {tmp_path}/err
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
