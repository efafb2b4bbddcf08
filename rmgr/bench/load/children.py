"""A program of ours as a child that answers in lines of JSON: what measurements are told by processes full of Starters."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from rmgr.errors import Unavailable


class Child:
    """`python -m MODULE ARGUMENT`; it ends when its standard input does. Context manager: it is gone afterwards."""

    def __init__(self, module: str, argument: str, *, log: Path) -> None:
        self._name = module.rpartition(".")[2]
        with log.open("wb") as err:
            command = [sys.executable, "-m", module, argument]
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=err, cwd=log.parent)

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def told(self, what: str) -> Any:
        """The value of `what` in the line that it says next; the child keeps the deadline. Raises: Unavailable when it ended instead."""
        assert self._process.stdout is not None
        try:
            return json.loads(self._process.stdout.readline())[what]
        except (ValueError, KeyError):
            raise Unavailable(f"{self._name} ended instead of saying {what!r}") from None

    def ask(self) -> None:
        """Says a line, which it answers. Raises: Unavailable."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(b"?\n")
            self._process.stdin.flush()
        except OSError:
            raise Unavailable(f"{self._name} has ended") from None

    def asked(self, what: str) -> Any:
        """Its answer to a line of ours. Raises: Unavailable."""
        self.ask()
        return self.told(what)

    def finish(self) -> None:
        """No more questions: it says its last words (`told`) and ends."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def kill(self) -> None:
        """Kills it, as a machine dies. Idempotent."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait(10.0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


def say(what: Mapping[str, Any]) -> None:
    """A line of a child to who started it (`Child.told`)."""
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()
