"""Runs the policies of one partition in a process of their own: `python -m rmgr.daemons.leader.placement.plugin_child SECONDS BYTES`.

Requests and answers go through the socket that is its stdin, each preceded by its length: pickles of the parent in, JSON out. The kernel
ends the process if one request takes much longer than SECONDS, even without the parent; more than BYTES of memory raises MemoryError. The
standard streams lead nowhere: a policy may print what it likes.
"""

from __future__ import annotations

import json
import os
import pickle
import resource
import signal
import struct
import sys
from typing import Any, BinaryIO

from rmgr.adapters import policy_files
from rmgr.errors import RmgrError
from rmgr.sched.engine import run_pass
from rmgr.sched.pipeline import Configuration, served
from rmgr.sched.policy import Stage
from rmgr.sched.state.cluster import ClusterState
from rmgr.sched.vetting import Vetted, encode_plan

LENGTH = struct.Struct(">Q")


def main(words: list[str]) -> int:
    """Answers requests until their socket is closed."""
    seconds, most_bytes = float(words[0]), int(words[1])
    for limit, most in ((resource.RLIMIT_DATA, most_bytes), (resource.RLIMIT_CORE, 0)):
        resource.setrlimit(limit, (most, most))
    requests, answers = os.fdopen(os.dup(0), "rb"), os.dup(0)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    known: dict[str, Configuration] = {}
    while (request := _read(requests)) is not None:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, seconds)
        answer = json.dumps(_answer(request, known)).encode()
        signal.setitimer(signal.ITIMER_REAL, 0)
        view = memoryview(LENGTH.pack(len(answer)) + answer)
        while view:
            view = view[os.write(answers, view) :]
    return 0


def _answer(request: dict[str, Any], known: dict[str, Configuration]) -> dict[str, Any]:
    partition, document = request["partition"], request["document"]
    try:
        key = json.dumps(document, sort_keys=True)
        if key not in known:
            known.clear()
            known[key] = served(document, partition, find=policy_files.policy_class)
        found = known[key]
        state = ClusterState.restored(request["snapshot"], request["half_life_us"])
        stages = tuple(Stage(Vetted(stage.policy), stage.partitions) for stage in found.stages)  # type: ignore[arg-type]
        plan = run_pass(state, request["causes"], now=request["now_us"], seed=0, pipeline=stages)
        return {
            "plan": encode_plan(plan, partition),
            "policies": [stage.policy.name for stage in found.stages],
            "half_life_us": found.usage_half_life_us,
        }
    except RmgrError as error:
        return {"error": error.message}
    except BaseException as error:  # noqa: BLE001 - a user's policy may raise anything: whoever asked is told
        return {"error": f"{type(error).__name__}: {error}"}


def _read(requests: BinaryIO) -> dict[str, Any] | None:
    """Returns the next request, None at the end."""
    head = requests.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    (length,) = LENGTH.unpack(head)
    data = requests.read(length)
    if len(data) < length:
        return None
    request: dict[str, Any] = pickle.loads(data)  # noqa: S301 - of the WatchDog that started this process
    return request


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
