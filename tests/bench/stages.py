"""Runs `rmgr WORDS` and writes down when it passed each stage of a submission, for a bench that asks where the time goes.

    RMGR_STAGES=FILE python -m tests.bench.stages submit --wait -- true

FILE gets one JSON object: stage -> seconds since 1970. What the cluster did (`cluster_stages`) is read afterwards: ZooKeeper notes when a
znode was made (milliseconds), a Starter when the task began and how long it ran.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rmgr.coord.protocol.ports import Coordinator

#: In this order. loaded: the interpreter and this file. reached: the gateway has answered a first question. checked: settings, nodes and
#: the store were read. recorded: ZooKeeper has the submission, answered: the client knows. began, ran: the task. told: ZooKeeper has its
#: end, heard: the client knows. printed: its output was fetched and the process has ended.
STAGES = ("loaded", "reached", "checked", "recorded", "answered", "began", "ran", "told", "heard", "printed")


def cluster_stages(coordinator: Coordinator, number: int) -> dict[str, float]:
    """When ZooKeeper got the submission and its end, and when the task began and ended, by the clocks of ZooKeeper and of its Starter."""
    from rmgr.coord.protocol import paths
    from rmgr.coord.protocol.records import decode_fragment

    tail = coordinator.get(paths.tail(number)).result(10)
    found: dict[str, float] = {}
    if tail is not None:
        found["recorded"] = tail.stat.mtime_ms / 1e3
    for name in coordinator.children(paths.done(number)).result(10) or []:
        stamped = coordinator.get(f"{paths.done(number)}/{name}").result(10)
        if stamped is None:
            continue
        fragment = decode_fragment(stamped.data)
        found["told"] = stamped.stat.mtime_ms / 1e3
        for outcome in fragment.outcomes:
            found["began"] = (fragment.base_us + outcome.started_us) / 1e6
            found["ran"] = found["began"] + outcome.elapsed_us / 1e6
    return found


def _timed(noted: dict[str, float], function: Callable[..., Any], *, before: str = "", after: str = "") -> Callable[..., Any]:
    @wraps(function)
    def call(*words: Any, **named: Any) -> Any:
        if before:
            noted[before] = time.time()
        try:
            return function(*words, **named)
        finally:
            if after:
                noted.setdefault(after, time.time())

    return call


def main() -> None:
    """As `rmgr`."""
    noted: dict[str, float] = {"loaded": time.time()}
    from rmgr.cli import main as rmgr
    from rmgr.cli import waiting
    from rmgr.cli.session import Session
    from rmgr.submitter.remote import RemoteAnswers

    RemoteAnswers.ask = _timed(noted, RemoteAnswers.ask, after="reached")  # type: ignore[method-assign]
    Session.submit = _timed(noted, Session.submit, before="checked", after="answered")  # type: ignore[method-assign]
    ended = waiting.until_ended

    def until_ended(*words: Any, **named: Any) -> Any:
        answer = ended(*words, **named)
        noted["heard"] = time.time()
        noted["number"] = words[1].items[0].number
        Path(os.environ["RMGR_STAGES"]).write_text(json.dumps(noted))
        return answer

    waiting.until_ended = until_ended
    rmgr.main(sys.argv[1:])


if __name__ == "__main__":
    main()
