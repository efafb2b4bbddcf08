"""How somebody who asks for a daemon's measurements is answered: Prometheus' own HTTP, loaded with the first question (2 MiB)."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler

from prometheus_client.exposition import ThreadingWSGIServer, make_wsgi_app
from prometheus_client.registry import CollectorRegistry


def answering(registry: CollectorRegistry, host: str, port: int) -> Callable[[socket.socket, Any], None]:
    """What answers on a connection that was accepted at host:port, in a thread of its own."""
    http = ThreadingWSGIServer((host, port), _Silent, bind_and_activate=False)
    http.socket.close()  # connections come from elsewhere
    http.server_name, http.server_port = host, port
    http.setup_environ()
    http.set_app(make_wsgi_app(registry))
    return http.process_request


class _Silent(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Nobody wants a line for each look."""
