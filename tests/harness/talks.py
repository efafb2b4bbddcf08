"""Streams between clients and gateways in the test's own process: a gateway that echoes every message, and its clients."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any

from rmgr.adapters.access.auth import Caller
from rmgr.adapters.access.limits import Bounds
from rmgr.adapters.gateway.talk import LOOK_S, Outbox, Stream, TalkLink, Talks
from rmgr.adapters.identity.credentials import Credentials
from rmgr.adapters.rpc.channels import Gateways
from rmgr.adapters.rpc.server import RpcServer
from rmgr.errors import RmgrError
from tests.harness.waiting import eventually


class Echo:
    """A `Talker` that echoes every message, or ends the stream with `refusal`."""

    refusal: RmgrError | None = None

    def __init__(self, caller: Caller, stream: Stream) -> None:
        self.caller, self.stream = caller, stream
        self.is_over = False
        self.taken_again = 0

    def heard(self, words: Sequence[bytes]) -> Sequence[Callable[[], None]]:
        if self.refusal is not None:
            raise self.refusal
        for word in words:
            self.stream.say(word)
        return ()

    def taken(self) -> None:
        self.taken_again += 1

    def over(self) -> None:
        self.is_over = True


def refusing(error: RmgrError) -> Callable[[Caller, Stream], Echo]:
    """Returns a maker of talkers that end the stream at its first message."""

    def made(caller: Caller, stream: Stream) -> Echo:
        talker = Echo(caller, stream)
        talker.refusal = error
        return talker

    return made


class TalkServer:
    """A gateway that serves only streams."""

    def __init__(
        self, talker: Callable[[Caller, Stream], Echo] = Echo, *, listen: str = "127.0.0.1:0", most: int = 200, bounds: Bounds | None = None
    ) -> None:
        self.bounds = bounds or Bounds()
        self.counts: Counter[tuple[str, str]] = Counter()
        self.talkers: list[Echo] = []
        self.revoked: Collection[str] = set()
        self._talker = talker
        self.talks = Talks(self._make, most=most, is_revoked=lambda key_id: key_id in self.revoked, bounds=self.bounds, count=self._count)
        self.rpc = RpcServer(listen, threads=64)
        self.endpoint = self.rpc.endpoint
        self.rpc.add_generic(self.talks.handler)
        self.rpc.start()

    def _make(self, caller: Caller, stream: Stream) -> Echo:
        self.talkers.append(self._talker(caller, stream))
        return self.talkers[-1]

    def _count(self, what: str, kind: str) -> None:
        self.counts[what, kind] += 1

    def stop(self, grace_s: float = 1.0) -> None:
        """Stops the gateway in good order."""
        self.talks.stop(grace_s)
        self.rpc.stop(grace_s)

    def kill(self) -> None:
        """Ends the gateway and its streams at once, as a crash does."""
        self.rpc.stop(0)
        self.talks.stop(0)


class TalkClient:
    """A `TalkLink` and the messages that it has received; `ups` and `downs` count streams that began and ended."""

    def __init__(self, *endpoints: str, credentials: Credentials | None = None) -> None:
        self.heard: list[bytes] = []
        self.ups = self.downs = 0
        self.outbox: Any = None
        self.link = TalkLink(Gateways(",".join(endpoints), credentials), up=self._up, heard=self._heard, down=self._down)
        self.link.start()
        self._closing = threading.Event()
        self._looking = threading.Thread(target=self._look, daemon=True)
        self._looking.start()

    def _look(self) -> None:
        while not self._closing.wait(LOOK_S):
            self.link.check()

    def _up(self, outbox: Outbox) -> None:
        self.ups, self.outbox = self.ups + 1, outbox

    def _heard(self, words: list[bytes]) -> None:
        self.heard.extend(words)

    def _down(self) -> None:
        self.downs += 1

    def reaches(self, word: bytes) -> bool:
        """Whether a message comes back, on this stream or a later one."""

        def said_again() -> bool:
            if self.outbox is not None:
                self.outbox.say(word)
            return word in self.heard

        return eventually(said_again, lambda: f"{word!r} comes back: {self.link.last_error}")

    def close(self, timeout_s: float = 5.0) -> None:
        self.link.close(timeout_s)
        self._closing.set()
        self._looking.join(60)
