"""Runs `rmgr` as a shell user does: each command in its own process, against a real cluster."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rmgr.dev.cluster import DevCluster
from rmgr.dev.keeper import stop_processes
from tests.harness.ended_sessions import LONG_S, expiring
from tests.harness.waiting import PATIENCE_S, eventually

#: Lends a cluster of the run: the fixture `lend_secured`.
Lend = Callable[[], AbstractContextManager[DevCluster]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The exit code and output of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The only JSON value on stdout."""
        assert self.out.count("\n") == 1, self.out
        return json.loads(self.out)

    @property
    def error(self) -> dict[str, str]:
        """The error printed by a failed command with --json."""
        return self.json["error"]  # type: ignore[no-any-return]


class Shell:
    """One user on one machine.

    Args:
        home: becomes HOME; commands see nothing of the real one. environment: more variables.
    """

    def __init__(self, home: Path, environment: Mapping[str, str] | None = None) -> None:
        self.home = home
        home.mkdir(parents=True, exist_ok=True)
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("RMGR_", "XDG_")) and key != "COLUMNS"}
        self.environment = {**kept, "HOME": str(home), "NO_COLOR": "1", **(environment or {})}
        self.directory = home / "here"
        self.directory.mkdir(exist_ok=True)

    def __call__(self, *words: str, stdin: str = "", timeout_s: float = PATIENCE_S) -> Ended:
        """Runs a command to its end."""
        ended = subprocess.run(
            [sys.executable, "-m", "rmgr.cli.main", *words],
            input=stdin,
            capture_output=True,
            text=True,
            env=self.environment,
            cwd=self.directory,
            timeout=timeout_s,
            check=False,
        )
        return Ended(code=ended.returncode, out=ended.stdout, err=ended.stderr)

    def ok(self, *words: str, stdin: str = "") -> Ended:
        """Runs a command that must succeed."""
        ended = self(*words, stdin=stdin)
        assert ended.code == 0, (words, ended)
        return ended

    def submit(self, *words: str) -> str:
        """Submits work and returns its id."""
        return self.ok("submit", "--parsable", *words).out.strip()

    @contextmanager
    def running(self, *words: str, before: Sequence[str] = ()) -> Iterator[subprocess.Popen[str]]:
        """Runs a command in the background and kills it at the end if necessary. before: a program that executes it, with arguments."""
        process = subprocess.Popen(
            [*before, sys.executable, "-m", "rmgr.cli.main", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.environment,
            cwd=self.directory,
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
            process.communicate(timeout=60)

    def file(self, name: str, text: str) -> str:
        """Writes a file into the directory in which commands run; returns its name."""
        (self.directory / name).write_text(text)
        return name


def wait_line(process: subprocess.Popen[str], text: str, *, stream: str = "stdout", deadline_s: float = 60.0) -> str:
    """Reads stdout (or stderr) up to a line that contains `text`; kills the process if the line does not come in time."""
    source = process.stdout if stream == "stdout" else process.stderr
    assert source is not None
    lines = []
    too_late = threading.Timer(deadline_s, process.kill)  # reading has no deadline of its own
    too_late.start()
    try:
        while line := source.readline():
            if text in line:
                return line
            lines.append(line)
    finally:
        too_late.cancel()
    raise AssertionError(f"{text!r} did not come after {lines} (exit code {process.poll()})")


def interrupt(process: subprocess.Popen[str]) -> None:
    """Sends SIGINT, as Ctrl-C does."""
    process.send_signal(signal.SIGINT)


def watchdogs(cluster: DevCluster) -> list[str]:
    """Returns the ids of the cluster's WatchDogs."""
    return [process.id for process in cluster.state.processes if process.role == "watchdog"]


def new_watchdogs(cluster: DevCluster, **variables: str) -> None:
    """Replaces a lent cluster's WatchDogs by two new ones with these variables; returns when one of them leads."""
    old = [process for process in cluster.state.processes if process.role == "watchdog"]
    names = [name for name in (f"w{number}" for number in range(1, len(old) + 3)) if name not in watchdogs(cluster)][:2]
    for name in names:
        cluster.start_watchdog(name, environment=variables)
    eventually(lambda: cluster.snapshot(submissions=False).watchdogs == len(old) + 2, "two more stand for election")
    stop_processes(replace(cluster.state, processes=tuple(old)))
    cluster.state = replace(cluster.state, processes=tuple(process for process in cluster.state.processes if process not in old))
    new = {cluster.process(name).pid for name in names}
    eventually(lambda: (found := cluster.snapshot(submissions=False)).leader_alive and found.epoch and found.epoch.pid in new, "one leads")


@contextmanager
def cluster_and_shell(directory: Path, *, nodes: int = 2, watchdogs: int = 1) -> Iterator[tuple[DevCluster, Shell]]:
    """Starts a cluster, and yields it with a user whose environment names it."""
    words, where = ("srvr", "mntr"), directory / "cluster"
    made = DevCluster(where, nodes=nodes, cores=2, watchdogs=watchdogs, heap_mb=128, zookeeper_words=words, session_timeout_s=LONG_S)
    with made as cluster, expiring(cluster):
        yield cluster, Shell(directory / "home", cluster.environment())
