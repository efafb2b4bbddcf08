"""Runs `rmgr` at a pseudo-terminal, as a user at a terminal sees it."""

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
from collections.abc import Mapping, Sequence

from tests.places import ROOT

#: A shell with a known prompt.
SHELL = ("env", "PS1=$ ", "bash", "--norc", "--noprofile", "+o", "history")


class Terminal:
    """A command of rmgr at its own terminal. environment: replaces this process's environment."""

    def __init__(self, words: Sequence[str], *, lines: int = 31, columns: int = 97, environment: Mapping[str, str] | None = None) -> None:
        self.master, self._slave = pty.openpty()
        self.seen = ""
        self.resize(lines, columns)
        self.before = termios.tcgetattr(self._slave)
        environ = {**(os.environ if environment is None else environment), "PYTHONPATH": str(ROOT), "TERM": "dumb"}
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
        """Waits until the output matches a pattern; returns the match and forgets the output up to it."""
        end_s = time.monotonic() + deadline_s
        while (found := re.search(pattern, self.seen)) is None:
            assert time.monotonic() < end_s, f"{pattern!r} is not in {self.seen!r}"
            if select.select([self.master], [], [], 0.1)[0]:
                self.seen += os.read(self.master, 4096).decode()
        self.seen = self.seen[found.end() :]
        return found

    def close(self) -> None:
        self.process.kill()
        self.process.wait(60)
        os.close(self.master)
        os.close(self._slave)

    def is_as_before(self) -> bool:
        return termios.tcgetattr(self._slave) == self.before
