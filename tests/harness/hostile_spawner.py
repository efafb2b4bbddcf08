"""What a user's processes may do with the socket of his spawner, done by a program that stands in the spawner's place.

Started as the interpreter of a slot: HOSTILE -P -m rmgr.runner.spawner FD closed. What it does is in its environment (LC_RMGR_ATTACK).
Needs nothing but the standard library and `rmgr.model`, `rmgr.runner` of PYTHONPATH.
"""

from __future__ import annotations

import array
import contextlib
import os
import socket
import sys
import time

from rmgr.model.wire import frames, stream
from rmgr.runner.host.board import create_board

DEVNULL = os.open(os.devnull, os.O_RDWR)


def send(control: socket.socket, data: bytes, fds: list[int]) -> None:
    control.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else [])


def for_ever(control: socket.socket, data: bytes, fds: list[int]) -> None:
    while True:
        send(control, data, fds)


def main() -> None:
    control = socket.socket(fileno=int(next(word for word in reversed(sys.argv) if word.isdigit())))
    control.recv(1 << 16)
    attack = os.environ["LC_RMGR_ATTACK"]
    up = stream.encode(frames.SpawnerUp(pid=os.getpid()))
    send(control, up, [create_board()])
    surprise = stream.encode(frames.Surprise("leftovers", "x"))
    match attack:
        case "descriptors":  # with every message
            for_ever(control, surprise, [DEVNULL])
        case "many":  # in one message
            for_ever(control, surprise, [DEVNULL] * 250)
        case "trickle":  # with bytes of a frame that never ends
            control.sendall(stream.encode(frames.Surprise("leftovers", "x" * 1_000_000))[:8])
            for_ever(control, b"x", [DEVNULL])
        case "workers":  # that nobody asked for
            for_ever(control, stream.encode(frames.WorkerForked(worker=7, pid=os.getpid(), directory="/")), [DEVNULL, create_board()])
        case "pages":  # one after the other
            for_ever(control, up, [create_board()])
        case "flood":
            for_ever(control, surprise * 1000, [])
        case "long":
            for_ever(control, stream.encode(frames.CommandsReturned(tuple(range(1_000_000)))), [])
        case "labels":
            for number in range(1000):
                send(control, stream.encode(frames.Surprise(f"word-{number}")), [])
        case "deaf":
            time.sleep(60)
        case "orphan":  # the spawner dies, its socket stays open in a process that nobody finds
            if os.fork():
                os._exit(0)
            os.setsid()
            if os.fork():
                os._exit(0)
            control.set_inheritable(True)
            with contextlib.suppress(OSError):
                os.execve(sys.executable, [sys.executable, "-S", "-c", "import time; time.sleep(60)"], {})
        case _:
            raise SystemExit(f"{attack}?")
    time.sleep(60)


if __name__ == "__main__":
    main()
