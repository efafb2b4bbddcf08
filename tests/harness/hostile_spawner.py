"""A program in the place of a user's spawner, which misuses the spawner's socket as the user's processes could.

It is started as the interpreter of a slot: HOSTILE -P -m rmgr.runner.spawner FD closed. LC_RMGR_ATTACK names the attack.
It needs the standard library, msgspec, and `rmgr.model` and `rmgr.runner` on PYTHONPATH.
"""

from __future__ import annotations

import array
import contextlib
import os
import socket
import sys
import time
from pathlib import Path

import msgspec

from rmgr.model import frames, stream
from rmgr.runner.host.board import create_board

DEVNULL = os.open(os.devnull, os.O_RDWR)
#: Placeholder in a message for the program's own process id (nine bytes of MessagePack).
OWN_PID = b"\xcf" + b"\xfd" * 8


class Said(msgspec.Struct, frozen=True, array_like=True):
    """One message. is_up: send an honest message before the first one. fds: how many descriptors it carries (a socket, then a board)."""

    is_up: bool
    data: bytes
    fds: int


def send(control: socket.socket, data: bytes, fds: list[int]) -> None:
    control.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else [])


def for_ever(control: socket.socket, data: bytes, fds: list[int]) -> None:
    while True:
        send(control, data, fds)


def say(control: socket.socket, messages: list[Said]) -> None:
    if messages[0].is_up:
        send(control, stream.encode(frames.SpawnerUp(pid=os.getpid())), [create_board()])
    own = b"\xcf" + os.getpid().to_bytes(8, "big")
    for message in messages:
        data = message.data.replace(OWN_PID, own)
        given = [socket.socketpair()[0].detach(), create_board()][: message.fds]
        send(control, data[:1], given)  # an ancillary message needs one byte; the rest may be long
        control.sendall(data[1:])


def main() -> None:
    control = socket.socket(fileno=int(next(word for word in reversed(sys.argv) if word.isdigit())))
    control.recv(1 << 16)
    attack = os.environ["LC_RMGR_ATTACK"]
    up = stream.encode(frames.SpawnerUp(pid=os.getpid()))
    if attack != "said":
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
        case "workers":  # without a request
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
        case "said":  # the messages of a file, after an honest beginning or instead of it
            say(control, msgspec.msgpack.decode(Path(os.environ["LC_RMGR_SAID"]).read_bytes(), type=list[Said]))
            time.sleep(1)
            return
        case "orphan":  # the spawner dies, but its socket stays open in a process that cannot be found
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
