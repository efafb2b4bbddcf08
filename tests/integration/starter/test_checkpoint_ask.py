"""Only processes of the job that catch SIGUSR1 are asked for a checkpoint; and which of them end with a part of the job."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from rmgr.daemons.starter.checkpoint import directories as asking
from tests.harness.waiting import eventually

#: Writes what it is told; ready once its handler stands.
LISTENS = """
import pathlib, signal, sys, time
signal.signal(signal.SIGUSR1, lambda *_: pathlib.Path(sys.argv[1] + ".told").touch())
pathlib.Path(sys.argv[1]).touch()
while True: time.sleep(0.05)
"""
#: Its child is another program once it may be.
FORKS = """
import os, pathlib, signal, sys, time
signal.signal(signal.SIGUSR1, lambda *_: None)
parent, child = os.getpid(), os.fork()
if child == 0:
    while not os.path.exists(sys.argv[1] + ".exec") and os.getppid() == parent: time.sleep(0.01)
    os.execvp("sleep", ["sleep", "60"])
pathlib.Path(sys.argv[1] + ".child").write_text(f"{child}\\n")
pathlib.Path(sys.argv[1]).touch()
os.waitpid(child, 0)
"""
DEAF = LISTENS.replace('signal.signal(signal.SIGUSR1, lambda *_: pathlib.Path(sys.argv[1] + ".told").touch())', "")
IGNORES = LISTENS.replace("lambda *_:", "signal.SIG_IGN) #")


class Family:
    """Processes with the mark of one slot."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.marker = uuid.uuid4().hex
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, program: str, *, command: tuple[str, ...] = (sys.executable,), marker: str = "") -> None:
        argv = (*command, "-c", program, str(self.directory / name))
        self.processes[name] = subprocess.Popen(argv, env={**os.environ, "RMGR_SLOT": marker or self.marker})
        eventually((self.directory / name).exists, f"{name} is up")

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait(30)


@pytest.fixture
def family(tmp_path: Path) -> Iterator[Family]:
    made = Family(tmp_path)
    yield made
    made.close()


def test_only_processes_of_the_job_that_catch_the_signal_get_it(family: Family, tmp_path: Path) -> None:
    launcher = tmp_path / "mpirun"
    launcher.symlink_to(sys.executable)
    family.start("listens", LISTENS)
    family.start("deaf", DEAF)
    family.start("ignores", IGNORES)
    family.start("launcher", LISTENS, command=(str(launcher),))
    family.start("rmgr", LISTENS + "\nif 0: import rmgr.runner.ranks.client")
    family.start("other job", LISTENS, marker="another")
    told = asking.notify(family.marker, None)
    assert told == [family.processes["listens"].pid]
    eventually((tmp_path / "listens.told").exists, "it was told")
    assert asking.notify(family.marker, None, told) == []
    assert sorted(path.name for path in tmp_path.glob("*.told")) == ["listens.told"]
    assert all(process.poll() is None for process in family.processes.values()), "nobody has died of it"


def test_a_child_that_has_not_become_another_program_yet_does_not_die_of_its_parents_handler(
    family: Family, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    family.start("script", FORKS)
    child = int((tmp_path / "script.child").read_text())

    def sleep(_: float) -> None:
        (tmp_path / "script.exec").touch()
        eventually(lambda: not asking.catches(child, signal.SIGUSR1), "it runs the other program")

    monkeypatch.setattr(asking, "machine", SimpleNamespace(sleep=sleep))
    assert asking.catches(child, signal.SIGUSR1)
    assert asking.notify(family.marker, None) == [family.processes["script"].pid]
    assert psutil.Process(child).name() == "sleep"
    psutil.Process(child).kill()


def test_what_is_left_of_a_part_is_ended_and_others_are_not(family: Family) -> None:
    family.start("one", LISTENS)
    family.start("server", DEAF)
    family.start("other job", DEAF, marker="another")
    assert asking.end_all(family.marker, None, (family.processes["server"].pid,))
    assert {name: process.poll() for name, process in family.processes.items()} == {"one": -9, "server": None, "other job": None}


def test_a_request_is_whole_and_an_answer_that_makes_no_sense_is_none(tmp_path: Path) -> None:
    asking.write_request(tmp_path, None, number=3, stop=True, deadline_us=5_500_000)
    assert (tmp_path / ".rmgr" / "request").read_text() == '{"deadline":5.5,"number":3,"stop":true}'
    assert (tmp_path / ".rmgr" / "number").read_text() == "3\n"
    assert (tmp_path / ".rmgr" / "stop").exists()
    assert asking.answered(tmp_path, None) == 0
    (tmp_path / ".rmgr" / "saved").write_text("three")
    assert asking.answered(tmp_path, None) == 0
    (tmp_path / ".rmgr" / "saved").write_text("3\n")
    assert asking.answered(tmp_path, None) == 3
    (tmp_path / ".rmgr" / "saved").unlink()
    os.mkfifo(tmp_path / ".rmgr" / "saved")  # whoever reads it must not wait
    assert asking.answered(tmp_path, None) == 0
