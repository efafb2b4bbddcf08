"""Where a daemon's measurements can be read: Prometheus' text over plain HTTP."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.exposition import ThreadingWSGIServer

from rmgr.adapters.listening import check_place

_END_S = 1.0


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
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        kind = type("_Listener", (ThreadingWSGIServer,), {"address_family": family})
        self._http: Any = make_server(str(address[0]), port, make_wsgi_app(registry), kind, handler_class=_Silent)
        self._ended = False
        self._thread = threading.Thread(target=self._serve, name="metrics", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._http.server_port)

    def end(self) -> None:
        """Idempotent."""
        if not self._ended:
            self._ended = True
            with contextlib.suppress(OSError), socket.create_connection(self._http.server_address[:2], _END_S):
                self._thread.join(_END_S)

    def _serve(self) -> None:
        while not self._ended:
            self._http.handle_request()
        self._http.server_close()


class _Silent(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Nobody wants a line for each look."""
