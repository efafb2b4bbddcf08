"""Ends of direct lines for tests: a record of their messages and ends, and the client's side of a line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rmgr.adapters.host.channel import Loop
from rmgr.adapters.rpc.line import DirectLine, LineServer, dial
from rmgr.model.identity import Role
from rmgr.model.line import Message
from tests.harness.bundles import session_bundles


class Post:
    """Records the messages that came on lines, and the lines that ended."""

    def __init__(self) -> None:
        self.came: list[Message] = []
        self.ended: list[DirectLine] = []

    def callbacks(self) -> dict[str, Callable[..., None]]:
        return {"on_message": lambda _line, message: self.came.append(message), "on_end": self.ended.append}


@contextmanager
def sound_loop() -> Iterator[Loop]:
    """Yields a loop for lines; fails if anything in it has raised."""
    crashes: list[BaseException] = []
    made = Loop("lines", on_crash=crashes.append)
    yield made
    made.close()
    assert not crashes


def call(server: LineServer, loop: Loop, role: Role, name: str, post: Post, *, key_id: str = "", cluster: str = "") -> DirectLine:
    expected = key_id or session_bundles().credentials(Role.STARTER).identity.key_id
    bundles = session_bundles(cluster) if cluster else session_bundles()
    return dial(f"127.0.0.1:{server.port}", credentials=bundles.credentials(role, name), key_id=expected, loop=loop, **post.callbacks())
