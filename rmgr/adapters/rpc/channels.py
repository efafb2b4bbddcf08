"""gRPC channels of a daemon to others by endpoint: opened on first use, let go when they were not used for some minutes.

Nodes come and go, and a daemon lives for months. A channel that is let go is not closed: a call that is still under way on it
holds it (grpc keeps a channel for as long as it has calls), and its connection ends with the last one.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import grpc

#: Channels that were not asked for in so long are let go, and connections without calls are ended.
KEEP_S = 300.0
#: For channels that are kept here: grpc itself would hold an idle connection for half an hour.
IDLE_OPTIONS: Sequence[tuple[str, Any]] = (("grpc.client_idle_timeout_ms", round(KEEP_S * 1000)),)


class Channels:
    """Args:
    opened: makes a channel to an endpoint; does not block. clock: monotonic seconds.

    Thread-safe.
    """

    def __init__(self, opened: Callable[[str], grpc.Channel], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._opened = opened
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, tuple[float, grpc.Channel]] = OrderedDict()  #: when it was used last, the oldest first

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, endpoint: str) -> grpc.Channel:
        """The channel to `endpoint`, for a call that begins now."""
        now = self._clock()
        with self._lock:
            while self._kept and next(iter(self._kept.values()))[0] < now - KEEP_S:
                self._kept.popitem(last=False)
            _, channel = self._kept.pop(endpoint, (now, None))
            if channel is None:
                channel = self._opened(endpoint)
            self._kept[endpoint] = now, channel
            return channel

    def forget(self, endpoint: str) -> None:
        """The next call gets another channel; those under way go on."""
        with self._lock:
            self._kept.pop(endpoint, None)

    def close(self) -> None:
        """Ends all channels with their calls. Idempotent."""
        with self._lock:
            kept, self._kept = list(self._kept.values()), OrderedDict()
        for _, channel in kept:
            channel.close()
