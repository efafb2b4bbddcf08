"""Load around the calls that `bench calls` measures: servers that only live, and a client that only transfers.

    python -m rmgr.bench.load.call_load "servers GATEWAY COUNT"       says {"ready": n} when the gateway has welcomed all of them
    python -m rmgr.bench.load.call_load "transfers GATEWAY BYTES"     echoes so many bytes over and over; says {"ready": 1} after the first

Both end with their standard input. The servers are streams of one process: they answer what a gateway asks, and get no calls.
"""

from __future__ import annotations

import os
import secrets
import sys
import threading

from rmgr.adapters.calls.serving import Asked, Hello, Joined, LineEvent, Lines
from rmgr.bench.load.processes import say
from rmgr.client.calls import Caller
from rmgr.config import ClusterConfig, Config
from rmgr.model.calls.interface import encode_interface, read_functions
from rmgr.model.cluster.servers import ServerLoad
from rmgr.runner.host import home

_IDLE = ServerLoad()
_GOODBYE_S = 5.0
_READY_S = 120.0


def servers(gateway: str, count: int) -> None:
    """Runs servers q1, q2, ... that offer the shipped functions."""
    file = home.source("rmgr.runner.python.shipped").with_suffix(".toml")
    functions = tuple(encode_interface(one.interface) for one in read_functions(file.read_text("utf-8"), str(file)))
    welcomed: set[int] = set()
    all_there = threading.Event()

    def tell(number: int, event: LineEvent) -> None:
        if isinstance(event, Asked):
            event.line.load(event.number, _IDLE)
        elif isinstance(event, Joined):
            welcomed.add(number)
            if len(welcomed) == count:
                all_there.set()

    lines = []
    for number in range(1, count + 1):
        hello = Hello(
            name=f"q{number}",
            site="",
            life=secrets.randbits(63) or 1,
            slots=2,
            mops=100.0,
            mops_declared=True,
            functions=functions,
            most_waiting=100,
        )
        lines.append(Lines([gateway], hello, None, lambda event, number=number: tell(number, event), takes=4))  # type: ignore[misc]
    for one in lines:
        one.start()
    all_there.wait(_READY_S)
    say({"ready": len(welcomed)})
    sys.stdin.read()
    for one in lines:
        one.close(_GOODBYE_S)


def transfers(gateway: str, size_bytes: int) -> None:
    """Makes one call after the other, until this process ends."""
    caller = Caller(Config(cluster=ClusterConfig(gateway=gateway)))
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    data = bytes(size_bytes)
    caller.call("echo", data)
    say({"ready": 1})
    while True:
        caller.call("echo", data)


def main(what: str, gateway: str, number: str) -> None:
    """Runs one of the programs; see the first lines of the file."""
    (servers if what == "servers" else transfers)(gateway, int(number))


if __name__ == "__main__":
    main(*sys.argv[1].split())
