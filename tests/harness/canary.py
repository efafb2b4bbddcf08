"""A user who works beside an attack, and how long her answers take, by kind. She is a separate process, so that tests do not delay her.

    python -m tests.harness.canary GATEWAY BUNDLE SINGS

She works only while the file SINGS exists, because answers between two attacks are not measured.

Each answer is a line of JSON: kind, time of the question (monotonic, s), duration (fair s, see `fair_time`), and what was wrong, if
anything.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Self

from rmgr.client.connection import Connection, connect
from rmgr.client.taskqueue import TaskQueue
from rmgr.config import ClusterConfig, Config, SecurityConfig
from tests.harness import forked
from tests.harness.fair_time import FairTimer
from tests.places import ROOT

KINDS = ("call", "keyed", "command")
#: Pause between two questions of one kind (s), and time after which a question is given up (s).
PAUSE_S, GIVES_UP_S = 0.4, 60.0


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer. took_s: in fair seconds. wrong: what was wrong, "" if nothing was."""

    kind: str
    asked_s: float
    took_s: float
    wrong: str = ""


class Canary:
    """The process, and its answers so far."""

    def __init__(self, gateway: str, bundle: Path, log: Path) -> None:
        self._log, self._sings = log, log.with_suffix(".sings")
        self._read, self._answers = 0, list[Answer]()
        kept = {name: value for name, value in os.environ.items() if not name.startswith("RMGR_")}
        words = [sys.executable, "-m", "tests.harness.canary", gateway, str(bundle), str(self._sings)]
        with log.open("wb") as sink:
            self._process = subprocess.Popen(words, cwd=ROOT, env=kept, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink)

    def sing(self) -> None:
        """Starts the questions."""
        self._sings.touch()

    def rest(self) -> None:
        """Stops the questions until the next `sing`."""
        self._sings.unlink()

    def answers(self, since_s: float = 0.0) -> list[Answer]:
        """Returns the answers to questions asked since `since_s`."""
        with self._log.open("rb") as log:
            log.seek(self._read)
            for line in log:
                if not line.endswith(b"\n"):  # the process is still writing it
                    break
                self._read += len(line)
                if line.startswith(b"{") and line.endswith(b"}\n"):
                    self._answers.append(Answer(**json.loads(line)))
        return [one for one in self._answers if one.asked_s >= since_s]

    def enough(self, since_s: float, each: int) -> bool:
        """Whether at least `each` questions of each kind have been asked and answered since `since_s`."""
        assert self._process.poll() is None, self._log.read_text(errors="replace")[-4000:]
        kinds = [one.kind for one in self.answers(since_s)]
        return all(kinds.count(kind) >= each for kind in KINDS)

    def medians(self, since_s: float = 0.0) -> dict[str, float]:
        """Returns the median duration of the answers of each kind (fair s)."""
        answers = self.answers(since_s)
        return {kind: statistics.median(one.took_s for one in answers if one.kind == kind) for kind in KINDS}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait(60)


def twice(number: int) -> int:
    """The function that the canary calls."""
    return 2 * number


def _asks(connection: Connection, gateway: str, bundle: str) -> Mapping[str, Callable[[int], str]]:
    calls, keyed = TaskQueue(twice, connection=connection), TaskQueue(twice, connection=connection, overwrite=True)
    connection.store.put("canary/in", 21)
    environment = {**os.environ, "RMGR_GATEWAY": gateway, "RMGR_SECURITY_DIR": bundle}
    command = [sys.executable, "-m", "rmgr.cli.main", "submit", "--wait", "--", "echo", "sings"]

    def call(number: int) -> str:
        found = calls.submit_call(number).result(GIVES_UP_S)
        return "" if found == 2 * number else repr(found)

    def with_keys(number: int) -> str:
        key = f"canary/out{number % 50}"
        keyed.submit(inputs=["canary/in"], outputs=[key]).result(GIVES_UP_S)
        found = connection.store.get(key)
        return "" if found == 42 else repr(found)

    def job(_number: int) -> str:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=GIVES_UP_S, check=False)
        return "" if (done.returncode, done.stdout) == (0, "sings\n") else f"{done.returncode} {done.stdout}{done.stderr}"

    return {"call": call, "keyed": with_keys, "command": job}


def _sing(kind: str, ask: Callable[[int], str], sings: Path, out: IO[str], lock: threading.Lock, timer: FairTimer) -> None:
    for number in range(1 << 30):
        while not sings.exists():
            time.sleep(0.05)
        asked_s, granted_s = time.monotonic(), timer.elapsed_s
        try:
            wrong = ask(number)
        except Exception as error:  # reported to the test as a wrong answer
            wrong = repr(error)
        took_s = timer.elapsed_s - granted_s
        with lock:
            out.write(json.dumps({"kind": kind, "asked_s": asked_s, "took_s": took_s, "wrong": wrong}) + "\n")
            out.flush()
        time.sleep(PAUSE_S)


def _main(gateway: str, bundle: str, sings: str) -> None:
    forked.install()
    connection = connect(config=Config(cluster=ClusterConfig(gateway=gateway), security=SecurityConfig(dir=bundle)))
    asks, lock = _asks(connection, gateway, bundle), threading.Lock()
    with FairTimer() as timer:
        words = (Path(sings), sys.stdout, lock, timer)
        threads = [threading.Thread(target=_sing, args=(kind, ask, *words)) for kind, ask in asks.items()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


if __name__ == "__main__":
    _main(*sys.argv[1:])
