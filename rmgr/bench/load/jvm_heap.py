"""Measures the used heap of a Java process through HotSpot's own attach protocol, so that no JDK is needed (only `java`)."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import time
from pathlib import Path

from rmgr.errors import Unavailable

_DEADLINE_S = 30.0
_LOOK_S = 0.02
#: "def new generation   total 39296K, used 1234K", "tenured generation ...", and what follows of other collectors; never "Metaspace".
_USED = re.compile(r"^ *(?!Metaspace|class space)\S[^\n]*?total \S+, used (\d+)K", re.MULTILINE)


def live_heap_bytes(pid: int) -> int:
    """Bytes of objects that are reachable in process `pid`: a full collection, then what is in use.

    Raises: Unavailable when it is no HotSpot JVM of this user, or does not answer. Cost: the pause of a full collection.
    """
    _ask(pid, "GC.run")
    used = _USED.findall(_ask(pid, "GC.heap_info"))
    if not used:
        raise Unavailable(f"process {pid} does not tell its heap")
    return sum(map(int, used)) * 1024


def _ask(pid: int, command: str) -> str:
    """The answer of a diagnostic command (what `jcmd` does)."""
    deadline_s = time.monotonic() + _DEADLINE_S
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
        peer.settimeout(_DEADLINE_S)
        try:
            peer.connect(str(_listening(pid, deadline_s)))
            peer.sendall(b"1\0jcmd\0" + command.encode() + b"\0\0\0")
            parts = []
            while part := peer.recv(65_536):
                parts.append(part)
        except OSError as error:
            raise Unavailable(f"the Java process {pid} cannot be asked: {error}") from error
    code, _, answer = b"".join(parts).decode(errors="replace").partition("\n")
    if code.strip() != "0":
        raise Unavailable(f"the Java process {pid} refuses {command}: {answer.strip()[:200]}")
    return answer


def _listening(pid: int, deadline_s: float) -> Path:
    """Where it listens; a file of a known name and SIGQUIT make it begin."""
    path = Path(f"/proc/{pid}/root", "tmp", f".java_pid{pid}")
    if path.exists():
        return path
    wish = Path(f"/proc/{pid}/cwd/.attach_pid{pid}")
    try:
        wish.touch(mode=0o600)
        try:
            os.kill(pid, signal.SIGQUIT)
            while not path.exists():
                if time.monotonic() > deadline_s:
                    raise Unavailable(f"the Java process {pid} does not listen")
                time.sleep(_LOOK_S)
        finally:
            with contextlib.suppress(OSError):
                wish.unlink()
    except OSError as error:
        raise Unavailable(f"the Java process {pid} cannot be asked: {error}") from error
    return path
