"""Forks the spawners of slots, of a test and of a forked Starter, from one that has loaded everything: 10 ms of processor instead of 100.

A separate program without threads, started and asked by `tests/harness/forked.py`. Its forks are children of the process that asks, as
executed ones are, and have what others read about them: variables in /proc, arguments, directory, session, descriptors. They differ in
the command that /proc shows, and in a hash seed that is the same in all of them. This file loads nothing that a spawner does not load.
"""

from __future__ import annotations

import ctypes
import fcntl
import gc
import marshal
import os
import signal
import socket
import sys
from typing import NoReturn

from rmgr.runner import spawner

#: Number of the system call `clone`, by machine; its flags come first, and nothing else is set.
_CLONE = {"x86_64": 56, "aarch64": 220}
_CLONE_PARENT = 0x8000
_LARGEST = 1 << 18


def fork() -> int:
    """Forks, as `os.fork` does, a child of the parent."""
    python, words = ctypes.pythonapi, (_CLONE[os.uname().machine], _CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0)
    python.PyOS_BeforeFork()
    pid: int = ctypes.PyDLL(None).syscall(*map(ctypes.c_long, words))
    if pid == 0:
        python.PyOS_AfterFork_Child()
    else:
        python.PyOS_AfterFork_Parent()
    return pid


def become(order: dict[str, object], received: list[int]) -> NoReturn:
    """Turns this fork into the spawner that was ordered. Descriptors: the three streams, then those that are passed."""
    words: list[str] = order["words"]  # type: ignore[assignment]
    environ: dict[str, str] = order["environ"]  # type: ignore[assignment]
    passed: list[int] = order["passed"]  # type: ignore[assignment]
    targets = (0, 1, 2, *passed)
    least = max(*targets, *received) + 1
    for target, fd in zip(targets, [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, least) for fd in received], strict=True):
        os.dup2(fd, target, inheritable=True)
    os.closerange(least, least + len(received))
    for fd in {*received} - {*targets}:
        os.close(fd)
    os.chdir(str(order["cwd"]))
    os.setsid()
    os.environ.clear()
    os.environ.update(environ)
    _show(environ)
    sys.argv = [str(spawner.__file__), *words[4:]]
    sys.orig_argv = words
    sys.modules["__main__"] = spawner
    spawner.main(int(words[4]), closed="closed" in words[5:])
    raise SystemExit


def _show(environ: dict[str, str]) -> None:
    """Writes the variables where /proc reads them: who is left over after its Starter is found by one of them."""
    with open("/proc/self/stat", "rb") as file:
        begin, end = map(int, file.read().rpartition(b") ")[2].split()[47:49])
    block = b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in environ.items())
    assert len(block) < end - begin, "more variables than there is room for"
    ctypes.memset(begin, 0, end - begin)
    ctypes.memmove(begin, block, len(block))


def serve(line: socket.socket) -> None:
    """Forks until the other end of the line is closed. An answer: the pid, -1 if the system refuses another process."""
    gc.collect()
    gc.freeze()
    line.send(b".")
    while True:
        message, received, _, _ = socket.recv_fds(line, _LARGEST, 16)
        if not message:
            os._exit(0)
        pid = fork()
        if pid == 0:
            line.close()
            become(marshal.loads(message), received)
        for fd in received:
            os.close(fd)
        line.send(str(pid).encode())


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
