"""Hierarchical tasks: one call of a TaskQueue in several processes on several nodes, as ranks and as an MPI program."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from rmgr import TaskQueue
from rmgr.client.specs import program_arguments
from rmgr.errors import TaskFailed
from rmgr.runner.python.rank_call import RankFailed
from tests.harness.waiting import eventually
from tests.places import ROOT

if TYPE_CHECKING:
    from rmgr.client.connection import Connection
    from rmgr.dev.cluster import DevCluster


@pytest.fixture
def mpi() -> None:
    if shutil.which("mpirun") is None or find_spec("mpi4py") is None:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)("Open MPI or mpi4py is missing: openmpi-bin, mpi4py")


def test_each_rank_makes_the_call_and_the_value_of_rank_0_is_the_result(connection: Connection, tmp_path: Path) -> None:
    def ranked(word: str, many: bytes) -> tuple[str, str, int]:
        me = {name: os.environ[f"RMGR_{name}"] for name in ("RANK", "LOCAL_RANK", "NPROCS", "NODE", "THREADS")}
        (tmp_path / me["RANK"]).write_text("{RANK}.{LOCAL_RANK}/{NPROCS} {NODE} {THREADS}".format(**me))
        (tmp_path / f"argv{me['RANK']}").write_text(repr(sys.argv))
        if word == "raise" and me["RANK"] == "2":
            raise ValueError(f"a bad rank on {me['NODE']}")
        if word == "exit" and me["RANK"] == "1":
            os._exit(3)
        while word in {"raise", "exit"}:  # until somebody ends it
            time.sleep(0.02)
        print("said by", me["RANK"])
        return word, me["RANK"], len(many)

    connection.store.put("ranked/word", "hello")
    connection.store.put("ranked/many", bytes(3 << 20))
    with TaskQueue(ranked, processes=3, nodes=2, connection=connection) as queue:
        good = queue.submit_call("plain", many=b"abc")
        assert good.result(60) == ("plain", "0", 3)
        lines = [(tmp_path / str(rank)).read_text().split() for rank in range(3)]
        assert [line[0] for line in lines] == ["0.0/3", "1.1/3", "2.0/3"]
        assert lines[0][1] == lines[1][1] != lines[2][1]
        assert {(tmp_path / f"argv{rank}").read_text() for rank in range(3)} == {repr(list(program_arguments()))}, "those of the program"
        keyed = queue.submit(inputs=["ranked/word", "ranked/many"], outputs=["ranked/a", "ranked/b", "ranked/c"])
        bad = queue.submit_call("raise", b"")
        assert keyed.result(60) is None
        assert [connection.store.get(f"ranked/{key}") for key in "abc"] == ["hello", "0", 3 << 20]
        with pytest.raises(ValueError, match="a bad rank on n"):
            bad.result(60)
        with pytest.raises(RankFailed, match="a rank ended with code 3, and with it the others"):
            queue.submit_call("exit", b"").result(60)
        with pytest.raises(TaskFailed) as caught:
            queue.wait_all(timeout=60)
        assert "ValueError: a bad rank" in caught.value.log_tail


def test_a_function_that_takes_a_communicator_is_an_mpi_program(mpi: None, connection: Connection) -> None:
    def total(mine: int, *, comm: Any) -> tuple[int, int, list[str]]:
        if mine < 0 and comm.rank == 0:
            raise ArithmeticError("a bad root")
        return comm.size, comm.allreduce(comm.rank + mine), comm.gather(os.environ["RMGR_NODE"])

    with TaskQueue(total, processes=4, nodes=2, connection=connection) as queue:
        size, total_of_all, nodes = queue.submit_call(10).result(90)
        assert (size, total_of_all) == (4, 46)
        assert len(nodes) == 4
        assert len(set(nodes)) == 2
        with pytest.raises(ArithmeticError, match="a bad root"):
            queue.submit_call(-10).result(90)


def test_a_call_that_is_cancelled_or_takes_too_long_ends_in_all_its_processes(connection: Connection, tmp_path: Path) -> None:
    def stays(name: str) -> None:
        (tmp_path / f"{name}-{os.environ['RMGR_RANK']}").write_text(str(os.getpid()))
        time.sleep(600)

    def all_gone(name: str) -> bool:
        told = [path.read_text() for path in tmp_path.glob(f"{name}-*")]
        return not any(pid and Path(f"/proc/{pid}").exists() for pid in told)

    with TaskQueue(stays, processes=2, nodes=2, connection=connection) as queue:
        queue.submit_call("cancelled")
        eventually(lambda: all((tmp_path / f"cancelled-{rank}").exists() for rank in range(2)), "both ranks")
        queue.cancel()
        eventually(lambda: all_gone("cancelled"), "no rank left")
    with TaskQueue(stays, processes=2, nodes=2, time=3, connection=connection) as queue:
        with pytest.raises(TaskFailed, match="TIME_LIMIT"):
            queue.submit_call("limited").result(60)
        eventually(lambda: all_gone("limited"), "no rank left")


def test_ranks_that_saved_their_state_go_on_with_it_elsewhere(live: DevCluster, connection: Connection, tmp_path: Path) -> None:
    def counts() -> int:
        from rmgr import checkpoint

        rank = os.environ["RMGR_RANK"]
        step = checkpoint.restore(rank, default=0)
        (tmp_path / f"up-{os.environ['RMGR_ATTEMPT']}-{rank}").write_text(str(step))
        while not (tmp_path / "go").exists():
            step += 1
            with (tmp_path / f"ledger-{rank}").open("a") as ledger:
                ledger.write(f"{step}\n")
            if checkpoint.requested():
                checkpoint.save(step, rank)
                if checkpoint.should_stop():
                    checkpoint.stop()
            time.sleep(0.01)
        return int(rank)

    with TaskQueue(counts, processes=2, nodes=2, connection=connection) as queue:
        future = queue.submit_call()
        queue.flush(60)
        eventually(lambda: all((tmp_path / f"ledger-{rank}").exists() for rank in range(2)), "both ranks")
        argv = [sys.executable, "-m", "rmgr.cli.main", "migrate", str(queue.id)]
        ended = subprocess.run(argv, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=120, check=False)
        assert ended.returncode == 0, ended.stderr
        eventually(lambda: all((tmp_path / f"up-2-{rank}").exists() for rank in range(2)), "both ranks again")
        (tmp_path / "go").touch()
        assert future.result(60) == 0
    for rank in range(2):
        steps = [int(line) for line in (tmp_path / f"ledger-{rank}").read_text().split()]
        assert int((tmp_path / f"up-2-{rank}").read_text()) > 0
        assert steps == list(range(1, len(steps) + 1))
