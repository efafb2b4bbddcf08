"""Whether a daemon can listen where it is told to: asked of the kernel before gRPC, whose own words tell nobody what to do."""

from __future__ import annotations

import errno
import socket

from rmgr.errors import ConfigError, Unavailable

_HINTS = {
    errno.EADDRINUSE: ("another process listens there", "is the daemon running already? port 0 is any free one"),
    errno.EADDRNOTAVAIL: ("this machine has no such address", "name one of its own (ip address), or 0.0.0.0 for all of them"),
    errno.EACCES: ("this user may not", "take a port above 1023"),
}


def check_place(listen: str, what: str = "") -> None:
    """HOST:PORT can be listened on now. Raises: ConfigError when it is no place; Unavailable with the reason. Cost: 0.1 ms.

    what: for whom ("metrics: "), before the message.

    Somebody else may take the port in the moment after: gRPC's own error is the net below.
    """
    host, colon, port = listen.rpartition(":")
    if not colon or not host or not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"{what}{listen!r} is not a place to listen on", hint="HOST:PORT, as in 127.0.0.1:7071; port 0 is any free one")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)[0]
    except (socket.gaierror, UnicodeError):
        why = f"{what}cannot listen on {listen}: the name {host} does not resolve"
        raise Unavailable(why, hint="name an address of this machine") from None
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
            if int(port):
                probe.listen(1)
        except OSError as error:
            why, hint = _HINTS.get(error.errno or 0, (error.strerror or str(error), "rmgr doctor"))
            raise Unavailable(f"{what}cannot listen on {listen}: {why}", hint=hint) from None
