"""A client process that a test can stop: `python -m tests.harness.stopped_caller PATH SIZE [deaf]`.

It calls `doubled_after` with SIZE numbers, which waits on the server for PATH, and prints whether the whole answer is right. deaf: its
gRPC lives and acknowledges, but it reads nothing after the first message of the answer.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

import rmgr
from rmgr.adapters.calls.asking import CallsClient
from rmgr.v1 import calls_pb2 as pb


def deaf(client: Any, ask: Any, arguments: Callable[[], Iterable[bytes]]) -> None:
    """Replaces `CallsClient.attempt`; never returns."""
    named, over = threading.Event(), threading.Event()

    def sent() -> Iterator[Any]:
        yield pb.FromCaller(ask=ask)
        named.wait()
        yield from (pb.FromCaller(data=data) for data in arguments())
        over.wait()

    for message in client._stub.Call(sent(), metadata=client._metadata):
        named.set()
        if message.WhichOneof("what") == "outcome":
            over.wait()


def main(path: str, size: int, *, is_deaf: bool) -> None:
    if is_deaf:
        CallsClient.attempt = deaf  # type: ignore[assignment]
    numbers = np.arange(size, dtype=np.float64)
    print("right" if np.array_equal(rmgr.call("doubled_after", numbers, path, timeout=240), numbers * 2) else "wrong", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), is_deaf=sys.argv[3:] == ["deaf"])
