"""Limits how many connections one address begins at a gRPC port while this daemon is busy, by a filter on its listening sockets.

gRPC reports a connection after its TLS handshake, which has then cost 2 to 4 ms of a processor: a stranger can take
a daemon's time just by making handshakes as fast as possible. So while the process is busy, this guard reads the kernel's table of
connections several times a second. For an address that begins more than its share, the kernel then admits only a part of the connection
requests (a classic packet filter, which needs no rights). A caller that was not admitted tries again by itself: TCP does, after a second.
Existing connections are never touched, and nobody is refused while the daemon has time.
"""

from __future__ import annotations

import contextlib
import ctypes
import ipaddress
import os
import socket
import stat
import struct
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

#: Connections that one address (of IPv6 a /64) may begin per second while the daemon is busy: at most a third of its time. Many people
#: may share an address.
PER_S = 100.0
#: Share of processor time from which on the process counts as busy; seconds between checks of that, and between looks at connections.
BUSY_PART, _QUIET_S, _LOOK_S = 0.3, 2.0, 0.25
#: Least pause between two looks, as a multiple of the time one look takes: they are rarer on a machine with very many connections.
_SELDOM = 20
#: Number of looks by which an address is judged, seconds for which it stays limited, and most limited addresses.
_LOOKS, _HOLD_S, _MOST = 8, 10.0, 64
#: The smallest part admitted, so that honest users behind the same address get through, too.
_LEAST_PART = 1 / 8
_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_LISTEN = "0A"
_SO_ATTACH_FILTER, _SO_DETACH_FILTER, _SO_MEMINFO, _DROPS = 26, 27, 55, 8
# Classic BPF. A TCP socket's data begin with the TCP header; negative offsets begin elsewhere.
_LOAD_BYTE, _LOAD_WORD, _AND, _IF_EQUAL, _IF_ABOVE, _RETURN, _JUMP = 0x30, 0x20, 0x54, 0x15, 0x25, 0x06, 0x05
_FLAGS, _SYN_ACK, _SYN = 13, 0x12, 0x02
_NETWORK, _RANDOM = -0x100000, -0x1000 + 56
_V4_SOURCE, _V6_SOURCE = _NETWORK + 12, _NETWORK + 8
_ALL = 0xFFFFFFFF

Address = ipaddress.IPv4Address | ipaddress.IPv6Network


class PortGuard:
    """Args: port: where this process already listens. per_s: see `PER_S`.

    Cost: a check of the process's clock every two seconds; while it is busy, a read of the kernel's table four times a second (1 us per
    connection of the machine). Where the system has no such table or filter, nothing is limited, and one warning says so.
    """

    def __init__(self, port: int, per_s: float | None = None) -> None:
        self._port = port
        self._per_s = PER_S if per_s is None else per_s
        self._sockets: list[socket.socket] = []
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._judge = _Judge(self._per_s)

    @property
    def refused(self) -> int:
        """Number of connection requests that the kernel has not admitted so far; a repeated request counts again."""
        with self._lock:
            return sum(_drops(one) for one in self._sockets)

    def start(self) -> PortGuard:
        """Starts the guard, unless no thread can be had or the port is not one of this process."""
        self._sockets = list(listening(self._port))
        if self._sockets:
            with contextlib.suppress(RuntimeError):
                threading.Thread(target=self._run, name="port-guard", daemon=True).start()
        return self

    def stop(self) -> None:
        """Stops the guard and lifts all limits. Idempotent."""
        self._stopped.set()
        with self._lock:
            sockets, self._sockets = self._sockets, []
        for one in sockets:
            _detach(one)
            one.close()

    def _run(self) -> None:
        burnt_s, at_s = time.process_time(), time.monotonic()
        took_s, has_told = 0.0, False
        while not self._stopped.wait(max(_LOOK_S, _SELDOM * took_s) if self._judge.is_looking else _QUIET_S):
            before, burnt_s = burnt_s, time.process_time()
            since, at_s = at_s, time.monotonic()
            try:
                self._look(at_s, (burnt_s - before) / max(at_s - since, 1e-3))
                took_s = time.monotonic() - at_s
            except OSError as error:  # there is no such table or filter here; or no descriptor is left, as in a flood
                if not has_told:
                    _log().warning("connections_not_bounded", port=self._port, error=str(error))
                has_told = True

    def _look(self, now_s: float, busy_part: float) -> None:
        if busy_part < BUSY_PART and not self._judge.bounded:
            self._judge.forget()
            return
        before = dict(self._judge.bounded)
        bounded = self._judge.look(now_s, set(connections(self._port)))
        if bounded == before:
            return
        for address in bounded.keys() - before.keys():
            _log().warning("connections_bounded", address=str(address), per_s=self._per_s, port=self._port)
        with self._lock:
            for one in self._sockets:
                _attach(one, program(bounded)) if bounded else _detach(one)


class _Judge:
    """Judges which addresses begin too many connections. For one thread."""

    def __init__(self, per_s: float) -> None:
        self.bounded: dict[Address, float] = {}  #: address -> part of its requests that is admitted
        self._per_s = per_s
        self._known: set[tuple[Address, int]] | None = None
        self._looks: deque[tuple[float, Counter[Address]]] = deque(maxlen=_LOOKS)
        self._until_s: dict[Address, float] = {}

    @property
    def is_looking(self) -> bool:
        return self._known is not None

    def forget(self) -> None:
        """Forgets the connections begun so far, which do not matter while the daemon has time."""
        self._known = None
        self._looks.clear()

    def look(self, now_s: float, there: set[tuple[Address, int]]) -> dict[Address, float]:
        """Judges by the current connections, `there`: (address, port). Returns `bounded`."""
        fresh = Counter(address for address, _ in there - (there if self._known is None else self._known))
        self._known = there
        if not self._looks:
            self._looks.append((now_s, Counter()))  # connections from before the first look
            return self.bounded
        self._looks.append((now_s, fresh))
        span_s = max(now_s - self._looks[0][0], 1.0)
        begun = sum((some for _, some in self._looks), Counter())
        for address, count in begun.most_common(_MOST):
            if count > self._per_s * span_s:
                self.bounded[address] = max(_LEAST_PART, self.bounded.get(address, 1.0) / 4)
                self._until_s[address] = now_s + _HOLD_S
                for _, some in self._looks:
                    del some[address]  # the connections from before this limit are dealt with
        for address in [address for address, until_s in self._until_s.items() if until_s < now_s]:
            del self._until_s[address], self.bounded[address]
        while len(self.bounded) > _MOST:
            oldest = min(self._until_s, key=self._until_s.__getitem__)
            del self._until_s[oldest], self.bounded[oldest]
        return self.bounded


# -- the kernel ----------------------------------------------------------------------------------------------------------------


def listening(port: int) -> Iterator[socket.socket]:
    """Yields the sockets of this process that listen at a port, each under its own descriptor."""
    seen: set[int] = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            about = os.fstat(int(name))
            if stat.S_ISSOCK(about.st_mode) and about.st_ino not in seen:
                seen.add(about.st_ino)  # a copy made here may have reused the number of a closed descriptor
                one = socket.socket(fileno=os.dup(int(name)))
                is_ours = one.family in (socket.AF_INET, socket.AF_INET6) and one.getsockname()[1] == port
                if is_ours and one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    yield one
                else:
                    one.close()


def connections(port: int) -> Iterator[tuple[Address, int]]:
    """Yields (address, port) of the peer of every connection to a port of this machine. Raises: OSError."""
    for table in _TABLES:
        if not table.exists() and table is not _TABLES[0]:
            continue  # a machine without IPv6
        wanted = f":{port:04X}"
        for line in table.read_text().splitlines()[1:]:
            words = line.split(None, 4)
            if words[1].endswith(wanted) and words[3] != _LISTEN:
                host, _, number = words[2].partition(":")
                yield _address(host), int(number, 16)


def program(bounded: Mapping[Address, float]) -> bytes:
    """Returns a packet filter that admits the given part of the connection requests from each address, and everything else."""
    code = [_step(_LOAD_BYTE, _FLAGS), _step(_AND, _SYN_ACK), _step(_IF_EQUAL, _SYN, 1, 0), _step(_RETURN, _ALL)]
    fours = {address: part for address, part in bounded.items() if isinstance(address, ipaddress.IPv4Address)}
    sixes = {address: part for address, part in bounded.items() if isinstance(address, ipaddress.IPv6Network)}
    code += [_step(_LOAD_BYTE, _NETWORK), _step(_AND, 0xF0), _step(_IF_EQUAL, 0x40, 1, 0)]
    code.append(_step(_JUMP, 6 * len(fours) + 1))
    for four, part in fours.items():
        code += [_step(_LOAD_WORD, _V4_SOURCE), _step(_IF_EQUAL, int(four), 0, 4), *_lot(part)]
    code.append(_step(_RETURN, _ALL))
    for six, part in sixes.items():
        high = int(six.network_address) >> 64
        code += [_step(_LOAD_WORD, _V6_SOURCE), _step(_IF_EQUAL, high >> 32, 0, 6)]
        code += [_step(_LOAD_WORD, _V6_SOURCE + 4), _step(_IF_EQUAL, high & _ALL, 0, 4), *_lot(part)]
    code.append(_step(_RETURN, _ALL))
    return b"".join(code)


def _lot(part: float) -> list[bytes]:
    """Returns the steps that decide by lot whether a request is admitted."""
    return [_step(_LOAD_WORD, _RANDOM), _step(_IF_ABOVE, round(part * _ALL), 0, 1), _step(_RETURN, 0), _step(_RETURN, _ALL)]


def _step(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
    return struct.pack("HBBI", code, yes, no, value & _ALL)


def _attach(one: socket.socket, code: bytes) -> None:
    held = ctypes.create_string_buffer(code, len(code))
    one.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HL", len(code) // 8, ctypes.addressof(held)))


def _detach(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)


def _drops(one: socket.socket) -> int:
    with contextlib.suppress(OSError, struct.error):
        return int(struct.unpack_from("I", one.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, 64), 4 * _DROPS)[0])
    return 0


def _address(told: str) -> Address:
    """Parses an address of the kernel's table: words of four bytes, each in reverse order."""
    raw = b"".join(bytes.fromhex(told[at : at + 8])[::-1] for at in range(0, len(told), 8))
    if len(raw) == 4:
        return ipaddress.IPv4Address(raw)
    whole = ipaddress.IPv6Address(raw)
    return whole.ipv4_mapped or ipaddress.IPv6Network((raw[:8] + bytes(8), 64))


def _log() -> Any:
    import structlog  # imported late: commands that ask a daemon import this module, and have no log

    return structlog.get_logger()
