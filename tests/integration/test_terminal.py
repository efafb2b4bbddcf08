"""`rmgr run --pty`: a shell on the first node of an allocation, through a real terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from rmgr.dev.cluster import DevCluster

ROOT = Path(__file__).resolve().parents[2]
_SHELL = ("env", "PS1=$ ", "bash", "--norc", "--noprofile", "+o", "history")


class Terminal:
    """A command line of rmgr at a terminal of its own."""

    def __init__(self, words: Sequence[str], *, lines: int = 31, columns: int = 97) -> None:
        self.master, self._slave = pty.openpty()
        self.seen = ""
        self.resize(lines, columns)
        self.before = termios.tcgetattr(self._slave)
        environ = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "dumb"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "rmgr.cli.main", "run", *words],
            stdin=self._slave,
            stdout=self._slave,
            stderr=self._slave,
            env=environ,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 1),  # noqa: PLW1509 - pytest has no other thread that matters
        )

    def resize(self, lines: int, columns: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def wait(self, pattern: str, deadline_s: float = 60.0) -> re.Match[str]:
        """What it shows next that looks like this; what was shown before is forgotten."""
        end_s = time.monotonic() + deadline_s
        while (found := re.search(pattern, self.seen)) is None:
            assert time.monotonic() < end_s, f"{pattern!r} is not in {self.seen!r}"
            if select.select([self.master], [], [], 0.1)[0]:
                self.seen += os.read(self.master, 4096).decode()
        self.seen = self.seen[found.end() :]
        return found

    def close(self) -> None:
        self.process.kill()
        self.process.wait(30)
        os.close(self.master)
        os.close(self._slave)

    def is_as_before(self) -> bool:
        return termios.tcgetattr(self._slave) == self.before


@pytest.fixture
def shell(live: DevCluster) -> Iterator[Terminal]:
    made = Terminal(["-N", "2", "--pty", *_SHELL])
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
    end_s = time.monotonic() + 60.0
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < end_s
        time.sleep(0.02)


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
