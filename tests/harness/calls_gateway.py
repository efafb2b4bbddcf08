"""A gateway for servers of calls, played by the test: it serves the RPCs Serve, Take and Give, and makes the offers that the test orders.

`ServerProcess` is a real `rmgr server` that connects to it.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import grpc

from rmgr.v1 import calls_pb2 as pb
from tests.harness.waiting import eventually

PIECE = 1 << 20


@dataclass(eq=False)
class PlayedTry:
    """One offer of a call. hold: an event before which only the first piece of the arguments is sent."""

    key: bytes
    arguments: bytes
    verdicts: list[Any] = field(default_factory=list)
    outcome: Any = None
    answer: bytes = b""
    takes: int = 0
    is_answered: threading.Event = field(default_factory=threading.Event)
    hold: threading.Event | None = None
    takes_answer: bool = True

    def said(self, *kinds: str) -> bool:
        """Whether the offer has had verdicts of all these kinds."""
        return {pb.Verdict.Kind.Name(one.kind) for one in list(self.verdicts)} >= set(kinds)

    def verdict(self, within_s: float = 60.0) -> str:
        """Waits for the first verdict; returns its kind."""
        eventually(lambda: self.verdicts, "no verdict", within_s=within_s)
        return str(pb.Verdict.Kind.Name(self.verdicts[0].kind))

    def ended(self, within_s: float = 90.0) -> str:
        """Waits for the outcome; returns its kind."""
        assert self.is_answered.wait(within_s), f"no outcome within {within_s} s; {self.verdicts}"
        return str(pb.CallOutcome.Kind.Name(self.outcome.kind))


@dataclass(eq=False)
class PlayedStream:
    """One stream of a server."""

    hello: Any
    out: queue.SimpleQueue[Any] = field(default_factory=queue.SimpleQueue)
    messages: list[Any] = field(default_factory=list)
    is_over: bool = False

    def loads(self) -> list[Any]:
        return [one.load for one in list(self.messages) if one.WhichOneof("what") == "load"]

    def beats(self) -> int:
        return sum(one.WhichOneof("what") == "beat" for one in list(self.messages))

    def is_leaving(self) -> bool:
        return any(one.WhichOneof("what") == "leaving" for one in list(self.messages))

    def said_over(self) -> bool:
        """Whether the last message said that this life of the server is over."""
        return bool(self.messages) and self.messages[-1].WhichOneof("what") == "over"


class PlayedGateway:
    """The played gateway, a context manager. port: 0 = any free port."""

    def __init__(self, port: int = 0) -> None:
        self.streams: list[PlayedStream] = []
        self.tries: dict[bytes, PlayedTry] = {}
        self.probes: dict[bytes, int] = {}
        self.probed: dict[bytes, int] = {}
        self.is_mute = False  #: sends no beats
        self._server = grpc.server(ThreadPoolExecutor(64), options=(("grpc.so_reuseport", 0),))
        methods = {
            "Serve": grpc.stream_stream_rpc_method_handler(self._serve, pb.FromServer.FromString, pb.ToServer.SerializeToString),
            "Take": grpc.unary_stream_rpc_method_handler(self._take, pb.TakeRequest.FromString, pb.Piece.SerializeToString),
            "Give": grpc.stream_unary_rpc_method_handler(self._give, pb.GivePart.FromString, pb.GiveReply.SerializeToString),
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("rmgr.v1.Calls", methods),))
        self.port = self._server.add_insecure_port(f"127.0.0.1:{port}")
        self.endpoint = f"127.0.0.1:{self.port}"
        self._server.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Ends all streams at once."""
        for stream in self.streams:
            stream.out.put(None)
        self._server.stop(0).wait(60)

    # -- what the test does

    def stream(self, number: int = 1) -> PlayedStream:
        """Waits for the `number`-th stream (from 1), and returns it."""
        eventually(lambda: len(self.streams) >= number, lambda: f"{len(self.streams)} streams came")
        return self.streams[number - 1]

    def tell(self, **what: Any) -> None:
        """Sends a message on the newest stream."""
        self.streams[-1].out.put(pb.ToServer(**what))

    def offer(
        self,
        function: str,
        arguments: bytes,
        *,
        id: tuple[str, bytes, int] | None = None,
        lowest: int = 1,
        attempt: int = 1,
        version: int = 0,
        left_s: float = 120.0,
        size: int | None = None,
        said_bytes: int = 0,
        **options: Any,
    ) -> PlayedTry:
        """Offers a call to the newest stream."""
        user, guid, number = id or ("ann", os.urandom(16), 1)
        one = PlayedTry(os.urandom(16), arguments, **options)
        self.tries[one.key] = one
        offer = pb.Offer(
            key=one.key, id=pb.CallId(user=user, guid=guid, number=number), lowest=lowest, attempt=attempt, function=function,
            function_version=version, bytes=len(arguments) if size is None else size, left_ms=round(left_s * 1000), said_bytes=said_bytes,
        )
        self.tell(offer=offer)
        return one

    # -- what the server calls

    def _serve(self, requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
        stream = PlayedStream(next(requests).hello)
        context.add_callback(lambda: stream.out.put(None))
        threading.Thread(target=self._read, args=(stream, requests), daemon=True).start()
        yield pb.ToServer(welcome=pb.ServerWelcome(version=1, gateway=self.endpoint))
        self.streams.append(stream)
        while True:
            try:
                message = stream.out.get(timeout=2.0)
            except queue.Empty:
                if self.is_mute:
                    continue
                message = pb.ToServer(beat=True)
            if message is None:
                return
            yield message

    def _read(self, stream: PlayedStream, requests: Iterator[Any]) -> None:
        try:
            for message in requests:
                stream.messages.append(message)
                if message.WhichOneof("what") == "verdict" and message.verdict.key in self.tries:
                    self.tries[message.verdict.key].verdicts.append(message.verdict)
                elif message.WhichOneof("what") == "answer":
                    self._answered(message.answer, message.answer.data)
        except grpc.RpcError:
            pass
        stream.is_over = True
        stream.out.put(None)

    def _take(self, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        if request.key in self.probes:
            yield pb.Piece(data=bytes(self.probes[request.key]))
            return
        one = self.tries.get(request.key)
        if one is None:
            return
        one.takes += 1
        for at in range(0, len(one.arguments), PIECE):
            yield pb.Piece(data=one.arguments[at : at + PIECE])
            while one.hold is not None and not one.hold.wait(0.05):
                if not context.is_active():
                    return

    def _give(self, requests: Iterator[Any], _context: grpc.ServicerContext) -> Any:
        first = next(requests)
        data = [first.data, *(part.data for part in requests)]
        if first.key in self.probes:
            self.probed[first.key] = len(b"".join(data))
            return pb.GiveReply(is_taken=True)
        return pb.GiveReply(is_taken=self._answered(first, b"".join(data)))

    def _answered(self, first: Any, data: bytes) -> bool:
        one = self.tries.get(first.key)
        if one is None:
            return False
        one.outcome, one.answer = first.outcome, data
        one.is_answered.set()
        return one.takes_answer


class ServerProcess:
    """A real `rmgr server`; a context manager that ends it.

    Args:
        directory: for its spool, log and functions.
    """

    def __init__(self, directory: Path, dial: str, *options: str, functions: str = "", environment: dict[str, str] | None = None) -> None:
        self._log = directory / "server.log"
        words = ["server", "--name", "s1", "--dial", dial, "--spool", str(directory / "spool"), "--log-format", "json"]
        words += ["--metrics", "127.0.0.1:0", "--log-level", "debug", *options]
        if functions:
            (directory / "functions.toml").write_text(functions)
            words += ["--functions", str(directory / "functions.toml")]
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("RMGR_")}
        with self._log.open("ab") as sink:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "rmgr.cli.main", *words], stdin=subprocess.DEVNULL, stdout=sink, stderr=sink,
                env={**inherited, "RMGR_STRICT_LOG": "1", "PYTHONFAULTHANDLER": "1", "HOME": str(directory), **(environment or {})},
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
        self._process.wait(60)

    @property
    def pid(self) -> int:
        return self._process.pid

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def wait(self, timeout_s: float = 60.0) -> int:
        """Waits for the server's end; returns its exit code."""
        return self._process.wait(timeout_s)

    def log(self) -> str:
        return self._log.read_text()

    def lines(self, event: str) -> list[dict[str, Any]]:
        """Returns the lines of the server's log with this event."""
        told = [json.loads(line) for line in self.log().splitlines() if line.startswith("{")]
        return [line for line in told if line.get("event") == event]

    def is_alive(self) -> bool:
        return self._process.poll() is None


def executions(path: Path) -> Sequence[str]:
    """Returns the lines that functions wrote, one for each execution that began."""
    return path.read_text().splitlines() if path.exists() else []

