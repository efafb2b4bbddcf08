"""Tells when a server answers nothing at all: gRPC takes calls on one thread, and where that ends or is held the daemon is mute.

Its port still listens then, its process lives, and its main loop and its session are well. So a daemon asks its own server.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import grpc

from rmgr.adapters.access.auth import open_channel
from rmgr.adapters.access.errors import rebuild
from rmgr.adapters.identity.credentials import Credentials
from rmgr.model.cluster.identity import Role

#: No server has this method: the thread that takes calls refuses it by itself, whatever the threads of the pool do.
_NOBODYS = "/rmgr.v1.Nobody/Ask"
_CHECK = "/grpc.health.v1.Health/Check"
#: How long one attempt to connect may take, ms: on its own machine a connection that takes longer has failed, and is no call unanswered.
_ATTEMPT = "grpc.min_reconnect_backoff_ms"
_ANYWHERE = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "[::]": "[::1]"}  # noqa: S104 - compared, not listened at


class OwnVoice:
    """Asks a server from inside its own process, on one connection that is kept.

    Args: endpoint: where it listens. credentials: its own, None in an open cluster. options: of channels.
    """

    def __init__(self, endpoint: str, credentials: Credentials | None, options: tuple[tuple[str, int], ...]) -> None:
        host, _, port = endpoint.rpartition(":")
        self._endpoint = f"{_ANYWHERE.get(host, host)}:{port}"
        self._credentials = credentials
        near = (option for option in options if option[0] != _ATTEMPT)
        self._options = (*near, (_ATTEMPT, 100), ("grpc.use_local_subchannel_pool", 1))
        self._lock = threading.Lock()
        self._channel: grpc.Channel | None = None

    def is_mute(self, timeout_s: float) -> bool:
        """A call was not answered within `timeout_s`, not even by a refusal. A connection that fails says nothing of that."""
        try:
            self._method(_NOBODYS)(b"", timeout=timeout_s)
        except grpc.RpcError as error:
            return bool(error.code() is grpc.StatusCode.DEADLINE_EXCEEDED)
        except ValueError:
            return False  # closed meanwhile
        return False

    def greet(self, timeout_s: float) -> None:
        """One call as any other daemon of this role would make it.

        Raises: TimeoutError; Unavailable when no connection comes about; PermissionDenied, and whatever else the server says.
        """
        try:
            self._method(_CHECK)(b"", timeout=timeout_s)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                raise TimeoutError from None
            raise rebuild(error, self._endpoint) from None

    def _method(self, name: str) -> Any:
        with self._lock:
            if self._channel is None:
                role = self._credentials.identity.role if self._credentials is not None else Role.SUBMITTER
                self._channel = open_channel(self._endpoint, self._credentials, role, self._options)
            return self._channel.unary_unary(name)

    def close(self) -> None:
        """Idempotent."""
        with self._lock, contextlib.suppress(Exception):
            if self._channel is not None:
                self._channel.close()
