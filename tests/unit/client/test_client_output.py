"""Output of tasks in a client: the echo of calls, and the data store's part for nodes that do not answer."""

from __future__ import annotations

import io
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import pytest

from rmgr.client import logs
from rmgr.client.logs import EndedTask, LineCutter, LiveOutput, OutputPiece
from rmgr.client.output import LiveEcho, LongEcho, write
from rmgr.client.progress import shown_on
from rmgr.coord.decisions.rights import ANYBODY
from rmgr.coord.protocol import keys, paths
from rmgr.coord.protocol.multi import Committed, Create, Exists, Multi
from rmgr.coord.protocol.records import encode_record
from rmgr.daemons.starter.staging.logs import StoredStream
from rmgr.model.base import Capacity
from rmgr.model.block import BlockKey, Outcome, gap_line
from rmgr.model.node import NodeRecord, NodeState
from rmgr.model.states import State
from rmgr.procedures.bootstrap import bootstrap
from rmgr.submitter.answers import Answers
from rmgr.submitter.questions import Question
from tests.harness.memory import MemoryCoordinator
from tests.harness.memory_store import MemoryStore
from tests.harness.memory_tree import MemoryTree


def test_a_slow_look_is_followed_by_another_within_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now_s=100.0)
    monkeypatch.setattr("rmgr.client.output.machine.monotonic", lambda: clock.now_s)
    looks: list[float] = []

    def look_now() -> None:
        looks.append(clock.now_s)
        clock.now_s += 2.0 if len(looks) == 1 else 0.001  # the first one loads what it needs, on a busy machine

    core: Any = SimpleNamespace(has_pending=True)
    live: Any = SimpleNamespace(look_now=look_now, follows=False)
    echo = LongEcho(core)
    while clock.now_s < 120.0:
        echo.look(live)
        clock.now_s += echo.tick_s(live)
    assert looks[1] - looks[0] < 8.0
    assert len(looks) >= 10


@pytest.mark.parametrize(
    ("encoding", "errors", "shown"),
    [
        ("ascii", "strict", b"n?ive ? ??\nplain\n"),
        ("latin-1", "strict", b"n\xe4ive ? ??\nplain\n"),
        ("utf-8", "strict", "näive → 日本\nplain\n".encode()),
        ("ascii", "surrogateescape", b"n?ive ? ??\nplain\n"),  # Python's own, in the locale C
        ("ascii", "backslashreplace", b"n\\xe4ive \\u2192 \\u65e5\\u672c\nplain\n"),  # whose stream it is has chosen
    ],
)
def test_what_a_stream_cannot_show_is_replaced_and_nothing_is_dropped(
    monkeypatch: pytest.MonkeyPatch, encoding: str, errors: str, shown: bytes
) -> None:
    data = "näive → 日本\nplain\n".encode()
    outs = {name: io.BytesIO() for name in ("stdout", "stderr")}
    for name, raw in outs.items():
        monkeypatch.setattr(sys, name, io.TextIOWrapper(raw, encoding=encoding, errors=errors))
    write(cast("Any", None), 1, Outcome(index=0, state=State.COMPLETED, log=(data, data)), 1)
    assert [raw.getvalue() for raw in outs.values()] == [shown, shown]
    live = LiveEcho(cast("Any", SimpleNamespace(handle=None, number=1)))
    for stream, raw in outs.items():
        raw.seek(0)
        raw.truncate()
        piece = OutputPiece(submission=1, position=0, attempt=1, stream=stream, data=data, time_us=0)
        live.show(LineCutter().take(piece))
    assert [raw.getvalue() for raw in outs.values()] == [shown, shown]


def test_bytes_that_are_no_text_are_written_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    data = b"na\xefve \xff\xfe\nplain\n"
    outs = {name: io.BytesIO() for name in ("stdout", "stderr")}
    for name, raw in outs.items():
        monkeypatch.setattr(sys, name, io.TextIOWrapper(raw, encoding="utf-8"))
    write(cast("Any", None), 1, Outcome(index=0, state=State.COMPLETED, log=(data, data)), 1)
    live = LiveEcho(cast("Any", SimpleNamespace(handle=None, number=1)))
    for stream in outs:
        piece = OutputPiece(submission=1, position=0, attempt=1, stream=stream, data=data, time_us=0)
        live.show(LineCutter().take(piece))
    assert [raw.getvalue() for raw in outs.values()] == [data * 2, data * 2]
    monkeypatch.setattr(sys, "stdout", io.StringIO())  # it takes no bytes
    write(cast("Any", None), 1, Outcome(index=0, state=State.COMPLETED, log=(data, b"")), 1)
    assert cast("io.StringIO", sys.stdout).getvalue() == "na\ufffdve \ufffd\ufffd\nplain\n"


def test_streams_without_an_encoding_get_the_text_itself() -> None:
    class Kept:  # as notebooks put in the place of stdout
        def __init__(self) -> None:
            self.text = ""

        def write(self, text: str) -> None:
            self.text += text

    assert shown_on("日本\udcff", cast("Any", Kept())) == "日本\udcff"
    assert shown_on("日本", cast("Any", SimpleNamespace(encoding="no such", errors="strict"))) == "日本"
    assert shown_on("a\udcff", cast("Any", SimpleNamespace(encoding="utf-8", errors="strict"))) == "a?"


A = TypeVar("A")

NUMBER = 7


@dataclass
class Scene:
    """A node whose Starter lives and cannot be reached; it has claimed tasks 0 to 2 of a submission."""

    zookeeper: MemoryCoordinator
    store: MemoryStore
    notes: list[str] = field(default_factory=list)
    via: str = ""

    def ask(self, question: Question[A], most_s: float = 10.0) -> A:
        return Answers(self.zookeeper, lambda: self.store, ANYBODY).ask(question, timeout_s=most_s)

    def credentials(self) -> None:
        return None

    def data_store(self) -> MemoryStore:
        return self.store

    def note(self, text: str) -> None:
        self.notes.append(text)

    def write(self, position: int, part: int, data: bytes, stream: str = "stdout", attempt: int = 1) -> None:
        self.store.put(keys.log(NUMBER, position, attempt, stream, part), data)


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    monkeypatch.setattr(logs, "SILENT_FIRST_S", 0.0)
    monkeypatch.setattr(logs, "SURE", 2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]  # free again, and nobody listens there
    coordinator = MemoryCoordinator(MemoryTree())
    bootstrap(coordinator)
    record = NodeRecord(
        node="n1", incarnation=1, state=NodeState.UP, guid="g1", capacity=Capacity(cores=2, memory_bytes=0), endpoint=f"127.0.0.1:{port}"
    )
    key = BlockKey(priority=0, seq=1, submission=NUMBER, first=0, count=3, attempt=1, cores=1, memory_mib=0)
    coordinator.ensure([paths.running_node("n1")])
    made = (Create(paths.node("n1"), encode_record(record)), Create(paths.running_block("n1", key)))
    multi = Multi(name="TEST", ops=made, proof=Exists(paths.node("n1")))
    assert isinstance(coordinator.commit(multi).result(60), Committed)
    yield Scene(coordinator, MemoryStore())
    coordinator.close()


def looked(output: LiveOutput) -> list[tuple[int, str, bytes]]:
    output.look_now()
    return [(piece.position, piece.stream, piece.data) for piece in output.pieces()]


def end(position: int, parts: int, rest: bytes) -> EndedTask:
    return EndedTask(submission=NUMBER, position=position, attempt=1, log=(rest, b""), log_parts=(parts, 0))


def test_parts_come_as_the_store_gets_them_once_and_it_is_said_once(scene: Scene) -> None:
    begun: list[tuple[int, int, str]] = []
    output = LiveOutput(scene, NUMBER)
    output.on_attempt = lambda *told: begun.append(told)
    scene.write(0, 0, b"one ")
    assert looked(output) == []  # one call that failed is no node that is away
    assert scene.notes == []
    assert looked(output) == [(0, "stdout", b"one ")]
    assert looked(output) == []
    scene.write(0, 1, b"two ")
    scene.write(2, 0, b"oh", "stderr")
    assert looked(output) == [(0, "stdout", b"two "), (2, "stderr", b"oh")]
    assert begun == [(0, 1, "n1"), (2, 1, "n1")]
    assert len(scene.notes) == 1
    assert "node n1 does not answer at 127.0.0.1:" in scene.notes[0]
    assert [piece.data for piece in output.ended(end(0, 2, b"three"))] == [b"three"]
    scene.write(0, 2, b"late")
    assert looked(output) == []
    output.close()


def test_a_gap_is_shown_and_nothing_twice(scene: Scene) -> None:
    output = LiveOutput(scene, NUMBER, streams=("stdout",), wanted=frozenset({1}))
    scene.write(0, 0, b"not asked for")
    scene.write(1, 0, b"head")
    scene.write(1, 1, gap_line(100, 50))
    scene.write(1, 2, b"tail", "stderr")
    looked(output)
    assert looked(output) == [(1, "stdout", b"head"), (1, "stdout", gap_line(100, 50))]
    scene.write(1, 9, b"tail")
    assert b"".join(piece.data for piece in output.ended(end(1, 10, b" end"))) == b"tail end"


def test_output_beyond_the_cap_goes_on_behind_what_its_writer_has_deleted(scene: Scene) -> None:
    stored, row, cap = StoredStream(), partial(keys.log, NUMBER, 0, 1, "stdout"), 400
    output, seen = LiveOutput(scene, NUMBER), b""
    looked(output)

    def flush(count: int) -> None:
        for _ in range(count):
            data = b"%039d\n" % stored.size
            scene.store.put(row(stored.parts), data)
            stored.add(stored.size + len(data), len(data), cap)
            stored.cut(scene.store, row, cap, None)

    def look() -> bytes:
        return b"".join(data for _ in range(12) for _, _, data in looked(output))

    def lines(first: int, end: int) -> bytes:
        return b"".join(b"%039d\n" % (number * 40) for number in range(first, end))

    flush(7)  # two of them after the first half
    assert look() == lines(0, 7)
    flush(13)
    seen = look()
    assert seen == gap_line(8 * 40, cap) + lines(15, 20), "the tail, and how much between it and what was seen is gone"
    flush(1)
    assert look() == lines(20, 21)
    flush(10)
    assert look() == gap_line(5 * 40, cap) + lines(26, 31)
    assert b"".join(piece.data for piece in output.ended(end(0, stored.parts, b"end"))) == b"end"


def test_who_looks_late_sees_the_first_half_and_the_end(scene: Scene) -> None:
    for part, data in {0: b"he", 1: b"ad", 2: gap_line(100, 50), 7: b"ta", 8: b"il"}.items():
        scene.write(0, part, data)
    output = LiveOutput(scene, NUMBER)
    assert b"".join(data for _ in range(9) for _, _, data in looked(output)) == b"head" + gap_line(100, 50) + b"tail"
    assert b"".join(piece.data for piece in output.ended(end(0, 9, b" end"))) == b" end"


def test_every_gap_counts_in_what_is_said_at_the_end(scene: Scene) -> None:
    output = LiveOutput(scene, NUMBER, streams=("stdout",))
    for part, data in enumerate((b"head", gap_line(100, 50), b"middle", gap_line(11, 50), b"tail")):
        scene.write(1, part, data)
    shown = b"".join(piece.data for piece in output.ended(end(1, 5, b" end")))
    assert shown == b"head" + gap_line(100, 50) + b"middle" + gap_line(11, 50) + b"tail end"
    [note] = scene.notes
    assert f"{NUMBER}_1 wrote more to stdout than is kept (50): 111 bytes from the middle of it are missing (2 lines say where)" in note


def test_a_store_that_is_away_stops_nothing(scene: Scene) -> None:
    output = LiveOutput(scene, NUMBER)
    scene.write(0, 0, b"one")
    scene.store.close()
    assert looked(output) + looked(output) + looked(output) == []
    assert len(scene.notes) == 1
