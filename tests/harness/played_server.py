"""A server of calls played by the test: a stream to a gateway, and a function that answers each offer."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import grpc

from rmgr.adapters.calls.links import VERSION
from rmgr.model.arrays import PIECE_BYTES
from rmgr.v1 import calls_pb2 as pb
from rmgr.v1 import calls_pb2_grpc
from tests.harness.waiting import eventually

#: offer, arguments -> outcome, answer
Work = Callable[[Any, bytes], tuple[Any, bytes]]


def echoed(_offer: Any, arguments: bytes) -> tuple[Any, bytes]:
    return pb.CallOutcome(kind=pb.CallOutcome.OK, bytes=len(arguments), ran_us=1000), arguments


class PlayedServer:
    """Answers each offer by `work` on its own thread. `verdicts` replace ACCEPTED for the next offers, one each; -1 = no verdict.

    in_one_piece: sends an answer of any size in one piece. says: sends answers in its stream; with `said_bytes=4096` it also gets
    arguments there.
    """

    def __init__(
        self,
        endpoint: str,
        name: str,
        *,
        work: Work = echoed,
        functions: tuple[bytes, ...] = (b"echo",),
        in_one_piece: bool = False,
        says: bool = False,
        **hello: Any,
    ) -> None:
        self._piece = 1 << 30 if in_one_piece else PIECE_BYTES
        self._says = says
        self.name, self.work = name, work
        self.life = int.from_bytes(os.urandom(8), "big")
        self.verdicts: list[int] = []
        self.offers: list[Any] = []
        self.taken: list[bytes] = []
        self.heard: list[Any] = []
        self.gave: list[bool] = []
        self.load = {"running": 0, "waiting": 0}
        self._out: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._told: dict[bytes, bytes] = {}
        self._channel = grpc.insecure_channel(endpoint)
        self.stub = calls_pb2_grpc.CallsStub(self._channel)
        fields = {"version": VERSION, "name": name, "life": self.life, "slots": 1, "mops": 100.0, "functions": functions, **hello}
        self._out.put(pb.FromServer(hello=pb.ServerHello(**fields)))
        self._stream = self.stub.Serve(iter(self._out.get, None))
        threading.Thread(target=self._read, daemon=True).start()
        eventually(lambda: any(message.WhichOneof("what") == "welcome" for message in self.heard), "the gateway's welcome")

    def say(self, **what: Any) -> None:
        self._out.put(pb.FromServer(**what))

    def close(self) -> None:
        self._stream.cancel()
        self._channel.close()

    def take(self, key: bytes) -> bytes:
        return b"".join(piece.data for piece in self.stub.Take(pb.TakeRequest(key=key)))

    def give(self, key: bytes, outcome: Any, answer: bytes = b"") -> bool:
        return bool(self.stub.Give(_parts(key, outcome, answer, self._piece)).is_taken)

    def _read(self) -> None:
        with suppress(grpc.RpcError):
            for message in self._stream:
                self.heard.append(message)
                what = message.WhichOneof("what")
                if what == "ask":
                    self.say(load=pb.Load(ask=message.ask, **self.load))
                elif what == "probe":
                    threading.Thread(target=self._probed, args=(message.probe,), daemon=True).start()
                elif what == "offer":
                    threading.Thread(target=self._offered, args=(message.offer,), daemon=True).start()
                elif what == "arguments":
                    self._told[message.arguments.key] = message.arguments.data
                elif what == "beat":
                    self.say(beat=True)

    def _probed(self, probe: Any) -> None:
        with suppress(grpc.RpcError, ValueError):
            self.give(probe.key, None, self.take(probe.key))

    def _offered(self, offer: Any) -> None:
        self.offers.append(offer)
        kind = self.verdicts.pop(0) if self.verdicts else pb.Verdict.ACCEPTED
        if kind >= 0:
            self.say(verdict=pb.Verdict(key=offer.key, kind=kind, reason="as the test wants it"))
        if kind != pb.Verdict.ACCEPTED:
            return
        with suppress(grpc.RpcError, ValueError):  # ValueError: the test has closed the channel
            arguments = eventually(lambda: self._told.get(offer.key), "its arguments") if offer.is_said else self.take(offer.key)
            if len(arguments) == offer.bytes:
                self.taken.append(arguments)
                self.say(verdict=pb.Verdict(key=offer.key, kind=pb.Verdict.STARTED))
                outcome, answer = self.work(offer, arguments)
                if self._says:
                    self.say(answer=pb.GivePart(key=offer.key, outcome=outcome, data=answer))
                else:
                    self.gave.append(self.give(offer.key, outcome, answer))


def _parts(key: bytes, outcome: Any, answer: bytes, piece: int) -> Iterator[Any]:
    yield pb.GivePart(key=key, outcome=outcome)
    for at in range(0, len(answer), piece):
        yield pb.GivePart(data=answer[at : at + piece])
