"""Where a daemon's measurements can be read: Prometheus' text over plain HTTP."""

from __future__ import annotations

import contextlib
import importlib
import socket
import threading
from collections.abc import Callable
from typing import Any

from prometheus_client.registry import CollectorRegistry

from rmgr.adapters.listening import check_place

_END_S = 1.0
_PAUSE_S = 0.1
_BACKLOG = 16


def serve_metrics(place: str, registry: CollectorRegistry) -> tuple[str, Callable[[], None]]:
    """Serves `registry` at HOST:PORT (port 0: a free one); returns the address with the real port, and what ends it.

    Raises: ConfigError when it is no place, Unavailable when nobody can listen there.
    """
    check_place(place, "metrics: ")
    host, _, port = place.rpartition(":")
    server = _Server(host.strip("[]"), int(port), registry)
    return f"{host}:{server.port}", server.end


class _Server:
    """Sleeps until somebody asks: Prometheus' own server looks twice a second whether it is to end."""

    def __init__(self, host: str, port: int, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._answer: Callable[[socket.socket, Any], None] | None = None
        self._ended = threading.Event()
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        self._listener = socket.socket(family, kind)
        try:
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._listener.bind(address)
            self._listener.listen(_BACKLOG)
        except OSError:
            self._listener.close()
            raise
        self._host, self.port = self._listener.getsockname()[:2]
        self._thread = threading.Thread(target=self._serve, name="metrics", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Idempotent."""
        if not self._ended.is_set():
            self._ended.set()
            with contextlib.suppress(OSError), socket.create_connection((self._host, self.port), _END_S):
                self._thread.join(_END_S)

    def _serve(self) -> None:
        with self._listener:
            while not self._ended.is_set():
                try:
                    caller, address = self._listener.accept()
                except OSError:  # no file is left
                    self._ended.wait(_PAUSE_S)
                    continue
                if self._ended.is_set():
                    caller.close()
                else:
                    self._answering()(caller, address)

    def _answering(self) -> Callable[[socket.socket, Any], None]:
        if self._answer is None:
            http = importlib.import_module("rmgr.daemons.metrics_http")
            self._answer = http.answering(self._registry, self._host, self.port)
        return self._answer
