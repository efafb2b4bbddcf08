"""The gateways of a cluster as one client knows them: where they are, which one it uses now, and its channel to each."""

from __future__ import annotations

import getpass
import os
import random
import threading
from urllib.parse import quote

import grpc

from rmgr.adapters.access.auth import USER_KEY, open_channel
from rmgr.adapters.identity.credentials import Credentials
from rmgr.adapters.rpc.server import OPTIONS
from rmgr.errors import UsageError
from rmgr.model.cluster.identity import Role

#: A connection of its own for each purpose, so that a large value does not stand before a heartbeat.
_OPTIONS = (*OPTIONS, ("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1))


class Gateways:
    """Args:
    text: "HOST:PORT,HOST:PORT"; a client begins with any of them and goes on to the next when one fails.
    credentials: who we are, None in an open cluster.

    Raises: UsageError. Thread-safe.
    """

    def __init__(self, text: str, credentials: Credentials | None = None) -> None:
        self._credentials = credentials
        self.endpoints = tuple(parse(part) for part in text.split(",") if part.strip())
        if not self.endpoints:
            raise UsageError(f"{text!r} names no gateway", hint="--gateway HOST:PORT, or several: HOST:PORT,HOST:PORT")
        self._at = random.randrange(len(self.endpoints))
        self._channels: dict[str, grpc.Channel] = {}
        self._lock = threading.Lock()
        self._closed = False

    def __str__(self) -> str:
        return ",".join(self.endpoints)

    @property
    def current(self) -> str:
        """The gateway to ask."""
        return self.endpoints[self._at]

    def failed(self, endpoint: str) -> None:
        """`endpoint` does not answer: the next one is asked from now on."""
        with self._lock:
            if self.endpoints[self._at] == endpoint:
                self._at = (self._at + 1) % len(self.endpoints)

    def channel(self, endpoint: str) -> grpc.Channel:
        """The channel to one of them, opened on first use. Raises ValueError when closed (as a closed channel does)."""
        with self._lock:
            if self._closed:
                raise ValueError("closed")
            if endpoint not in self._channels:
                self._channels[endpoint] = open_channel(endpoint, self._credentials, Role.SUBMITTER, _OPTIONS)
            return self._channels[endpoint]

    def close(self) -> None:
        """Ends all channels. Idempotent."""
        with self._lock:
            self._closed = True
            channels = list(self._channels.values())
        for channel in channels:
            channel.close()


def parse(text: str) -> str:
    """`HOST:PORT` as it is. Raises UsageError."""
    host, colon, port = text.strip().rpartition(":")
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise UsageError(f"{text.strip()!r} is not a gateway's address", hint="--gateway HOST:PORT")
    return f"{host}:{port}"


def user_name() -> str:
    """Who this process works for, as the gateway of an open cluster is told."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return str(os.getuid()) if hasattr(os, "getuid") else "unknown"


def user_metadata(user: str) -> tuple[tuple[str, str], ...]:
    """Metadata that names the user, "" = nobody."""
    return ((USER_KEY, quote(user)),) if user else ()
