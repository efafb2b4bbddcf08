"""A client that begins RPCs and never sends their requests.

    python -m tests.harness.silent_calls ENDPOINT ROLE BUNDLE CONNECTIONS CALLS METHOD ...

Prints "sent" when all calls have begun, and replaces each call that is ended, until its standard input is closed.
"""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc

from rmgr.adapters.access.auth import open_channel
from rmgr.adapters.identity.credentials import Credentials
from rmgr.adapters.rpc.channels import OPTIONS
from rmgr.model.identity import Role

#: Pause between an ended call and the next one (s): floods are tested elsewhere.
_PAUSE_S = 0.5


def main(endpoint: str, role: str, bundle: str, connections: int, calls: int, methods: list[str]) -> None:
    credentials = Credentials.load(Path(bundle))
    options = (*OPTIONS, ("grpc.use_local_subchannel_pool", 1))
    over = threading.Event()
    method = itertools.cycle(methods)

    def never() -> Iterator[bytes]:
        over.wait()
        yield from ()

    def begin(channel: grpc.Channel) -> Any:
        return channel.stream_unary(next(method)).future(never())

    channels = [open_channel(endpoint, credentials, Role(role), options) for _ in range(connections)]
    begun = [(channel, begin(channel)) for channel in channels for _ in range(calls)]
    print("sent", flush=True)

    def until_closed() -> None:
        sys.stdin.read()
        over.set()

    threading.Thread(target=until_closed, daemon=True).start()
    while not over.wait(_PAUSE_S):
        begun = [(channel, begin(channel) if call.done() else call) for channel, call in begun]
    for channel in channels:
        channel.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]), sys.argv[6:])
