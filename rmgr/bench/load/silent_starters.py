"""Thousands of Starters that do nothing but live: a registered node and a real session each, all in one thread on bare sockets.

To the leader they are ordinary nodes, but they claim nothing. `rmgr bench scale` runs the program as
`python -m rmgr.bench.load.silent_starters SPEC`: it says `{"ready": n}` when all are registered, and for each line of its standard
input `{"alive": n}`, the number of live sessions. Killing the process kills all its Starters at once.
"""

from __future__ import annotations

import math
import os
import selectors
import socket
import struct
import sys
import threading
import time
from collections import deque
from collections.abc import Callable

import msgspec

from rmgr.adapters.zookeeper.wire import OP_MULTI, OPEN_ACL, decode_multi, encode_acl, encode_multi
from rmgr.bench.load.processes import say
from rmgr.coord.ops import work as ops
from rmgr.coord.protocol.multi import Committed, Multi
from rmgr.errors import Unavailable
from rmgr.model.base import Capacity
from rmgr.model.node import NodeRecord, NodeState, StarterEntry
from rmgr.model.version import release

#: Connections being made at once: a server's listen backlog has room for 50.
_CONNECTING = 40
#: Number of pings in one session timeout.
_PINGS = 3
_TICK_S = 0.05
_PATIENCE_S = 300.0
_LENGTH, _REPLY = struct.Struct("!i"), struct.Struct("!iqi")
_PING = struct.pack("!iii", 8, -2, 11)


class SilentStartersSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes `<prefix><first>` .. of so many cores each, in the tree `root` of the server at host and port."""

    host: str
    port: int
    root: str
    session_timeout_s: float
    prefix: str
    first: int
    count: int
    cores: int = 1


class Silent:
    """One Starter: connects, registers, pings."""

    def __init__(self, spec: SilentStartersSpec, number: int) -> None:
        self.spec = spec
        self.multi = _register(f"{spec.prefix}{number}", f"{os.getpid():08x}{number:08x}", spec.cores)
        self.link = socket.socket()
        self.link.setblocking(False)
        self.link.connect_ex((spec.host, spec.port))
        self.is_registered = False
        self.ping_s = -math.inf
        self._received = bytearray()
        self._hear: Callable[[bytes], None] = self._introduced

    def connected(self) -> None:
        """Asks for a session. Raises: OSError."""
        hello = struct.pack("!iqiqi", 0, 0, round(self.spec.session_timeout_s * 1000), 0, 16) + bytes(17)
        self._send(hello)

    def readable(self) -> bool:
        """Reads and handles what has come; False if the server has closed the connection. Raises: OSError, Unavailable."""
        part = self.link.recv(65536)
        self._received += part
        while len(self._received) >= 4 and len(self._received) >= 4 + (length := _LENGTH.unpack_from(self._received)[0]):
            frame = bytes(self._received[4 : 4 + length])
            del self._received[: 4 + length]
            self._hear(frame)
        return bool(part)

    def ping(self, now_s: float) -> None:
        """Sends a ping. Raises: OSError."""
        self.ping_s = now_s + self.spec.session_timeout_s / _PINGS
        self.link.send(_PING)

    def _introduced(self, _frame: bytes) -> None:
        self._hear = self._answered
        acl = encode_acl(OPEN_ACL)
        self._send(struct.pack("!ii", 1, OP_MULTI) + encode_multi(self.multi, self.spec.root, lambda _: acl))

    def _answered(self, frame: bytes) -> None:
        xid, _, error = _REPLY.unpack_from(frame)
        if xid == 1:
            answer = None if error else decode_multi(self.multi, self.spec.root, frame, _REPLY.size)
            if not isinstance(answer, Committed):
                raise Unavailable(f"a silent Starter could not register: {answer or error}")
            self.is_registered = True

    def _send(self, body: bytes) -> None:
        self.link.sendall(_LENGTH.pack(len(body)) + body)


def _register(node: str, guid: str, cores: int) -> Multi:
    me = release()
    record = NodeRecord(
        node=node, incarnation=1, state=NodeState.UP, guid=guid, capacity=Capacity(cores=cores, memory_bytes=cores << 30),
        endpoint="127.0.0.1:1", host="silent", pid=os.getpid(), registered_us=time.time_ns() // 1000,
        version=me.version, protocol=me.protocol,
    )  # fmt: skip
    return ops.register([(record, None)], StarterEntry(guid=guid, nodes=(node,), endpoint="127.0.0.1:1", host="silent", pid=os.getpid()))


class Crowd:
    """All silent Starters, served by the thread that calls `run`."""

    def __init__(self, spec: SilentStartersSpec) -> None:
        self.spec = spec
        self.questions: deque[str] = deque()
        self.is_over = False
        self._selector = selectors.DefaultSelector()
        self._coming = deque(range(spec.first, spec.first + spec.count))
        self._connecting: set[Silent] = set()
        self._alive: deque[Silent] = deque()  #: in the order of their next pings

    def run(self) -> None:
        """Runs until standard input ends. Raises: Unavailable."""
        end_s, told = time.monotonic() + _PATIENCE_S, False
        while not self.is_over:
            self._connect()
            for key, _ in self._selector.select(_TICK_S):
                self._serve(key.data, key.events)
            self._ping()
            if not told and not self._coming and not self._connecting:
                told = True
                say({"ready": len(self._alive)})
            if not told and time.monotonic() > end_s:
                raise Unavailable(f"{len(self._coming) + len(self._connecting)} silent Starters did not register")
            while self.questions:
                self.questions.popleft()
                say({"alive": len(self._alive)})

    def _connect(self) -> None:
        while self._coming and len(self._connecting) < _CONNECTING:
            silent = Silent(self.spec, self._coming.popleft())
            self._connecting.add(silent)
            self._selector.register(silent.link, selectors.EVENT_WRITE, silent)

    def _serve(self, silent: Silent, events: int) -> None:
        try:
            if events & selectors.EVENT_WRITE:
                silent.connected()
                self._selector.modify(silent.link, selectors.EVENT_READ, silent)
                return
            stands = silent.readable()
        except OSError:
            stands = False
        if not stands:
            if not silent.is_registered:
                raise Unavailable("ZooKeeper closed the connection of a silent Starter before it was registered")
            self._selector.unregister(silent.link)
            silent.link.close()
            self._alive.remove(silent)
        elif silent.is_registered and silent in self._connecting:
            self._connecting.discard(silent)
            silent.ping_s = time.monotonic() + self.spec.session_timeout_s / _PINGS
            self._alive.append(silent)

    def _ping(self) -> None:
        now_s = time.monotonic()
        while self._alive and self._alive[0].ping_s <= now_s:
            silent = self._alive.popleft()
            self._alive.append(silent)
            try:
                silent.ping(now_s)
            except OSError:
                silent.ping_s = now_s + self.spec.session_timeout_s / _PINGS  # the selector will notice its end


def main() -> None:
    """Runs the program; see the first lines of the file."""
    crowd = Crowd(msgspec.json.decode(sys.argv[1], type=SilentStartersSpec))

    def listen() -> None:
        for line in sys.stdin:
            crowd.questions.append(line)
        crowd.is_over = True

    threading.Thread(target=listen, daemon=True).start()
    crowd.run()


if __name__ == "__main__":
    main()
