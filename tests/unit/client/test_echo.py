"""The echo of calls: what a stream cannot show; when it looks for calls that last."""

from __future__ import annotations

import io
import sys
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rmgr.client.logs import LineCutter, OutputPiece
from rmgr.client.output import LiveEcho, LongEcho, write
from rmgr.client.progress import shown_on
from rmgr.model.base.states import State
from rmgr.model.tasks.block import Outcome


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
        echo._look(live)
        clock.now_s += echo._tick_s(live)
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
        live._write(LineCutter().take(piece))
    assert [raw.getvalue() for raw in outs.values()] == [shown, shown]


def test_streams_without_an_encoding_get_the_text_itself() -> None:
    class Kept:  # as notebooks put in the place of stdout
        def __init__(self) -> None:
            self.text = ""

        def write(self, text: str) -> None:
            self.text += text

    assert shown_on("日本\udcff", cast("Any", Kept())) == "日本\udcff"
    assert shown_on("日本", cast("Any", SimpleNamespace(encoding="no such", errors="strict"))) == "日本"
    assert shown_on("a\udcff", cast("Any", SimpleNamespace(encoding="utf-8", errors="strict"))) == "a?"
