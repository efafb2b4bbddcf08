"""Two hops of bare gRPC, like a call through a gateway to a server, and nothing else: the baseline of `bench calls`.

    python -m rmgr.bench.load.bare_hops [TARGET]      the far end; with TARGET the hop in between

Says `{"endpoint": HOST:PORT}`, and ends with its standard input. `Small` returns a message. `Bulk` passes pieces on; the far end keeps
them until the last has come, as a server does with arguments, and sends them back. Messages are bytes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

from rmgr.adapters.rpc.channels import OPTIONS
from rmgr.bench.load.processes import say

_SERVICE = "Hops"
_THREADS = 16


class Hops:
    """A client of the hop in between."""

    def __init__(self, endpoint: str) -> None:
        self._channel = grpc.insecure_channel(endpoint, OPTIONS)
        self.small: Any = self._channel.unary_unary(f"/{_SERVICE}/Small")
        self._bulk: Any = self._channel.stream_stream(f"/{_SERVICE}/Bulk")

    def bulk(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        """Sends the pieces; yields what comes back, piece by piece."""
        found: Iterator[bytes] = self._bulk(iter(pieces))
        return found

    def close(self) -> None:
        """Idempotent."""
        self._channel.close()


def _send_back(pieces: Iterator[Any], _context: Any) -> Iterator[Any]:
    yield from list(pieces)


def main(target: str) -> None:
    """Runs one hop; see the first lines of the file."""
    there = Hops(target) if target else None
    small = (lambda piece, _: piece) if there is None else (lambda piece, _: there.small(piece))
    bulk = _send_back if there is None else (lambda pieces, _: there.bulk(pieces))
    server = grpc.server(ThreadPoolExecutor(_THREADS), options=OPTIONS)
    handlers = {
        "Small": grpc.unary_unary_rpc_method_handler(small),
        "Bulk": grpc.stream_stream_rpc_method_handler(bulk),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    say({"endpoint": f"127.0.0.1:{port}"})
    sys.stdin.read()
    server.stop(0).wait(5.0)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "")
