"""Destinations of the output of tasks: the same streams here, with a label a line for arrays, JSON lines, or files."""

from __future__ import annotations

import codecs
import sys
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Protocol

from rmgr.cli.display.render import SCHEMA, iso, json_line, paint
from rmgr.client.logs import OutputPiece
from rmgr.coord.protocol.keys import STREAMS
from rmgr.errors import UsageError


class Sink(Protocol):
    """Takes pieces in order; `done` when nothing follows of a task (position), `close` at the end."""
    def take(self, piece: OutputPiece) -> None: ...
    def done(self, position: int) -> None: ...
    def close(self) -> None: ...


class Plain:
    """stdout to stdout, stderr to stderr, byte for byte."""

    def take(self, piece: OutputPiece) -> None:
        stream = sys.stdout if piece.stream == STREAMS[0] else sys.stderr
        stream.flush()
        stream.buffer.write(piece.data)
        stream.buffer.flush()

    def done(self, position: int) -> None:
        """Nothing is held back."""

    def close(self) -> None:
        """Nothing is held back."""


class Labelled:
    """Writes whole lines only, each with its task before it: `42_7: text`."""

    def __init__(self, label: Callable[[int], str]) -> None:
        self._label = label
        self._rest: dict[tuple[int, str], bytes] = {}

    def take(self, piece: OutputPiece) -> None:
        key = (piece.position, piece.stream)
        lines = (self._rest.pop(key, b"") + piece.data).split(b"\n")
        self._rest[key] = lines.pop()
        if lines:
            self._write(piece.position, piece.stream, b"\n".join(lines))

    def done(self, position: int) -> None:
        for stream in STREAMS:
            rest = self._rest.pop((position, stream), b"")
            if rest:
                self._write(position, stream, rest)

    def close(self) -> None:
        for position in sorted({position for position, _ in self._rest}):
            self.done(position)

    def _write(self, position: int, stream: str, data: bytes) -> None:
        out = sys.stdout if stream == STREAMS[0] else sys.stderr
        label = paint(f"{self._label(position)}:", "dim", out).encode()
        out.flush()
        out.buffer.write(b"".join(label + b" " + line + b"\n" for line in data.split(b"\n")))
        out.buffer.flush()


class JsonLines:
    """One JSON value a line: {"time","task","stream","data"}; bytes that are no UTF-8 become U+FFFD."""

    def __init__(self, label: Callable[[int], str]) -> None:
        self._label = label
        self._decoders: dict[tuple[int, str], codecs.IncrementalDecoder] = {}

    def take(self, piece: OutputPiece) -> None:
        key = (piece.position, piece.stream)
        decoder = self._decoders.get(key)
        if decoder is None:
            decoder = self._decoders[key] = codecs.getincrementaldecoder("utf-8")("replace")
        self._write(piece.position, piece.stream, decoder.decode(piece.data), piece.time_us)

    def done(self, position: int) -> None:
        for stream in STREAMS:
            decoder = self._decoders.pop((position, stream), None)
            if decoder is not None:
                self._write(position, stream, decoder.decode(b"", final=True), 0)

    def close(self) -> None:
        for position in sorted({position for position, _ in self._decoders}):
            self.done(position)

    def _write(self, position: int, stream: str, text: str, time_us: int) -> None:
        if text:
            line = {"schema": SCHEMA, "time": iso(time_us), "task": self._label(position), "stream": stream, "data": text}
            sys.stdout.write(json_line(line))
            sys.stdout.flush()


class ToFiles:
    """Into one file, or with %a (and %j, %t) one for each task. stdout and stderr both, in the order in which they come."""

    def __init__(self, pattern: str, number: int, index_of: Callable[[int], int]) -> None:
        self._pattern = pattern
        self._number = number
        self._index_of = index_of
        self._open: dict[str, BinaryIO] = {}

    def take(self, piece: OutputPiece) -> None:
        self._file(piece.position, piece.attempt).write(piece.data)

    def done(self, position: int) -> None:
        if "%a" in self._pattern:
            for name in [name for name in self._open if name == self._name(position, 0) or "%t" in self._pattern]:
                self._open.pop(name).close()

    def close(self) -> None:
        if not self._open and "%" not in self._pattern:
            Path(self._pattern).write_bytes(b"")
        for file in self._open.values():
            file.close()
        self._open.clear()

    def _file(self, position: int, attempt: int) -> BinaryIO:
        name = self._name(position, attempt)
        file = self._open.get(name)
        if file is None:
            try:
                file = self._open[name] = Path(name).open("wb")  # noqa: SIM115 - closed by done or close
            except OSError as error:
                raise UsageError(
                    f"-o: {name} cannot be written: {error.strerror}", hint="name a file in a directory that exists"
                ) from error
        return file

    def _name(self, position: int, attempt: int) -> str:
        values = {"%a": str(self._index_of(position)), "%j": str(self._number), "%t": str(attempt)}
        name = self._pattern
        for placeholder, value in values.items():
            name = name.replace(placeholder, value)
        return name
