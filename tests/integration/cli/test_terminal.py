"""`rmgr run --pty`: a shell on the first node of an allocation, through a real terminal."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.harness.terminal import SHELL, Terminal
from tests.harness.waiting import eventually
from tests.places import ROOT

if TYPE_CHECKING:
    from rmgr.dev.cluster import DevCluster


@pytest.fixture
def shell(live: DevCluster) -> Iterator[Terminal]:
    made = Terminal(["-N", "2", "--pty", *SHELL])
    yield made
    made.close()


def test_a_shell_has_the_terminal_and_its_job_has_two_nodes(shell: Terminal) -> None:
    shell.wait(r"\$ ")
    assert not shell.is_as_before()
    shell.type("stty size; tty; echo nodes=$RMGR_NODELIST.\r")
    shell.wait(r"\n31 97\r\n/dev/pts/\d+\r\n")
    nodes = shell.wait(r"nodes=(\w+),(\w+)\.").groups()
    shell.resize(20, 60)
    shell.type("while [ $(stty size | tr -d ' ') != 2060 ]; do sleep 0.05; done; echo re''sized\r")
    shell.wait("resized")
    shell.type("rmgr run --label sh -c 'echo on $RMGR_NODE'\r")
    shown = {shell.wait(r"\n([01]): on (\w+)\r").groups() for _ in nodes}
    assert shown == set(zip("01", nodes, strict=True))
    shell.type("sh -c 'echo sle\\eps; exec sleep 600'\r")  # what says so has the terminal
    shell.wait("sleeps")
    shell.type("\x03")  # it takes the sleep, not the shell and not rmgr
    shell.wait(r"\$ ")
    shell.type("echo code=$?.\r")
    assert shell.wait(r"\ncode=(\d+)\.")[1] == "130"
    shell.type("exit 7\r")
    assert shell.process.wait(60) == 7
    assert shell.is_as_before()


def test_whoever_goes_takes_his_shell_with_him(shell: Terminal) -> None:
    shell.wait(r"\$ ")
    shell.type("echo pid=$$.\r")
    pid = int(shell.wait(r"\npid=(\d+)\.")[1])
    shell.process.terminate()
    assert shell.process.wait(60) == 143
    assert shell.is_as_before()
    eventually(lambda: not Path(f"/proc/{pid}").exists(), "it goes")


def test_who_is_ended_before_his_shell_starts_cancels_it(live: DevCluster) -> None:
    waiting = Terminal(["-N", "2", "--begin", "now+1h", "--pty", *SHELL])
    try:
        waiting.wait("waits: ")
        waiting.process.terminate()
        waiting.wait(r"cancelled \d+: it had not started, and its terminal is needed")
        assert waiting.process.wait(60) == 143
    finally:
        waiting.close()


def test_without_a_terminal_it_says_so(live: DevCluster) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "rmgr.cli.main", "run", "--pty", "bash"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 2
    assert "--pty needs a terminal, and stdin is none" in ended.stderr
