"""Makes lines of what tasks write: each knows its task, its attempt and its stream."""

from __future__ import annotations

from collections.abc import Iterator

from rmgr.client.logs.live import OutputPiece


class Line(str):
    """A line that a task has written, without its end; bytes that are no UTF-8 are U+FFFD.

    Attributes: task_id ("42_7"), attempt, stream ("stdout" or "stderr").
    """

    __slots__ = ("attempt", "stream", "task_id")
    task_id: str
    attempt: int
    stream: str

    @classmethod
    def of(cls, data: bytes, piece: OutputPiece) -> Line:
        """A line of the task that wrote `piece`."""
        made = cls(data.decode("utf-8", "replace"))
        made.task_id, made.attempt, made.stream = f"{piece.submission}_{piece.position}", piece.attempt, piece.stream
        return made


class LineCutter:
    """Makes lines of pieces; what does not end yet is kept, for each task and stream."""

    def __init__(self) -> None:
        self._kept: dict[tuple[int, str], tuple[OutputPiece, bytes]] = {}

    def take(self, piece: OutputPiece) -> Iterator[Line]:
        """The lines that `piece` completes. Of an attempt that was followed by another, the last one ends there."""
        before, rest = self._kept.pop((piece.position, piece.stream), (piece, b""))
        if before.attempt != piece.attempt and rest:
            yield Line.of(rest, before)
            rest = b""
        *lines, rest = (rest + piece.data).split(b"\n")
        for line in lines:
            yield Line.of(line.removesuffix(b"\r"), piece)
        if rest:
            self._kept[piece.position, piece.stream] = piece, rest

    def rest(self, index: int | None = None) -> Iterator[Line]:
        """What did not end with a line's end, of one task or of all."""
        for key in [key for key in self._kept if index is None or key[0] == index]:
            piece, rest = self._kept.pop(key)
            yield Line.of(rest, piece)
