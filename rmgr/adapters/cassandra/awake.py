"""Finds the nodes of a URL that answer: all are asked at once, before the driver asks one after the other.

A node that hangs still accepts connections, for the kernel does that. The driver gives each such node the whole connect
timeout, in the order of its list, and two of them would take up what a command may take. A thread that looks a name up or
connects is left alone when its time is over: it is a daemon.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from queue import Empty, SimpleQueue

from rmgr.adapters.cassandra.link import Lost
from rmgr.model.base.units import format_duration

#: Others that answer within this after the first (s) are taken, too, so that not all clients gather at one node.
_TOGETHER_S = 0.05
_OPTIONS = b"\x05\x00\x00\x00\x05\x00\x00\x00\x00"  # protocol 5, stream 0, opcode OPTIONS, empty body


def awake(hosts: tuple[str, ...], port: int, *, tls: ssl.SSLContext | None, timeout_s: float) -> tuple[str, ...]:
    """Those of `hosts` that say something, anything, at least one. Raises: `Lost` when within `timeout_s` none does."""
    answers: SimpleQueue[tuple[str, str]] = SimpleQueue()
    for host in hosts:
        threading.Thread(target=_look, args=(host, port, tls, timeout_s, answers), name="rmgr-store-awake", daemon=True).start()
    end_s = time.monotonic() + timeout_s
    found: list[str] = []
    problems: dict[str, str] = {}
    while len(found) + len(problems) < len(hosts):
        try:
            host, problem = answers.get(timeout=max(0.0, end_s - time.monotonic()))
        except Empty:
            break
        if problem:
            problems[host] = problem
            continue
        if not found:
            end_s = min(end_s, time.monotonic() + _TOGETHER_S)
        found.append(host)
    if found:
        return tuple(found)
    silent = [host for host in hosts if host not in problems]
    told = [f"{host}: {problem}" for host, problem in problems.items()]
    told += [f"{', '.join(silent)}: no answer in {format_duration(timeout_s)}"] if silent else []
    raise Lost(f"no node can be reached: {'; '.join(told)}", is_outage=True)


def _look(host: str, port: int, tls: ssl.SSLContext | None, timeout_s: float, answers: SimpleQueue[tuple[str, str]]) -> None:
    try:
        with socket.create_connection((host, port), timeout_s) as link:
            link.sendall(_hello(tls) if tls else _OPTIONS)
            link.recv(1)  # also the end of the stream is an answer: the driver finds out what it does not like
    except ConnectionResetError:
        answers.put((host, ""))
    except TimeoutError:
        pass  # silent: whoever waits comes to the end of the same time a moment before or after
    except OSError as error:
        answers.put((host, error.strerror or str(error)))
    else:
        answers.put((host, ""))


def _hello(tls: ssl.SSLContext) -> bytes:
    """The first message of a handshake."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        tls.wrap_bio(incoming, outgoing, server_hostname="cassandra" if tls.check_hostname else None).do_handshake()
    return outgoing.read()
