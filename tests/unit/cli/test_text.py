"""Texts from users: a byte-order mark, lines that end only at line feeds, characters that a terminal cannot show."""

from __future__ import annotations

import codecs
import gzip
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rmgr import config
from rmgr.adapters.policy_files import read_toml
from rmgr.cli.control.settings import is_cluster_settings, parse_settings, read_settings_file
from rmgr.cli.display.render import emit
from rmgr.cli.listing.logs import last_lines, parse_lines
from rmgr.cli.session import Session
from rmgr.cli.submit.jobs_file import raw_jobs, read_jobs
from rmgr.cli.submit.run import JsonLines
from rmgr.cli.submit.submit import submit
from rmgr.cli.words.script import looks_like_script, read_script
from rmgr.client.commands.request import read_entries
from rmgr.client.logs import OutputPiece, tail_of
from rmgr.errors import ConfigError, UsageError
from rmgr.sim.calls.scenario import SHIPPED, read_scenario
from rmgr.sim.workload.events import read_events
from rmgr.sim.workload.jobs import SwfReader

MARK = codecs.BOM_UTF8
#: What `str.splitlines` takes for a line's end besides "\n" and "\r", and JSON, TOML and `tail` do not.
ODD = "\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"
SWF = b"1 0 -1 10 2 -1 -1 2 20 -1 1 7 3 -1 -1 -1 -1 -1\n"
SETTINGS = b'default_queue = "default"\n[queues.default]\n'

# -- byte-order marks ---------------------------------------------------------------------------------------------------------


def _script(path: Path) -> object:
    read = read_script(str(path))
    return read.text, read.directives, read.foreign, read.notes, looks_like_script(str(path))


def _jobs(path: Path) -> object:
    with submit.make_context("submit", ["--from", str(path)], obj=Session()) as ctx:
        return [job.request for job in read_jobs(ctx, Session(), str(path))], [raw.where for raw in raw_jobs(str(path), "jobs")]


def _configuration(path: Path) -> object:
    return config.load(file=str(path), env={}).cluster.zk


def _trace(path: Path) -> object:
    reader = SwfReader(path)
    return list(reader), reader.header


@pytest.mark.parametrize(
    ("name", "data", "read"),
    [
        ("job.sh", b"#!/bin/sh\n#RMGR -J marked\necho\n", _script),
        ("job.sh", b"#!/bin/sh\n#SBATCH -n 4\necho\n", _script),
        ("job.sh", b"#RMGR -c 2\necho no shebang\n", _script),
        ("true", b"#!/bin/sh\n", _script),
        ("lines", b"a b\nc\n", lambda path: read_entries(str(path))),
        ("jobs.toml", b'[[job]]\ncommand = ["x"]\n', _jobs),
        ("jobs.jsonl", b'{"command": ["x"]}\n{"command": ["y"]}\n', _jobs),
        ("jobs", b'{"command": ["x"]}\n', _jobs),
        ("config.toml", b'[cluster]\nzk = "there:2181"\n', _configuration),
        ("cluster.toml", SETTINGS, read_settings_file),
        ("cluster.toml", SETTINGS, is_cluster_settings),
        ("policy.toml", b'policy = "easy"\n', read_toml),
        ("trace.swf", b"; MaxProcs: 8\n" + SWF, _trace),
        ("bare.swf", SWF, _trace),
        ("trace.swf.gz", b"; MaxProcs: 8\n" + SWF, _trace),
        ("events", b'{"at": 0, "event": "cancel", "job": 17}\n', read_events),
        ("events", b'# what happens\n{"at": 0, "event": "cancel", "job": 17}\n', read_events),
        ("calls.toml", min(SHIPPED.glob("*.toml")).read_bytes(), read_scenario),
    ],
)  # fmt: skip
def test_a_byte_order_mark_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, data: bytes, read: Callable[[Path], object]
) -> None:
    monkeypatch.chdir(tmp_path)
    path, found = Path(name), []
    for written in (data, MARK + data):
        path.write_bytes(gzip.compress(written) if name.endswith(".gz") else written)
        found.append(read(path))
    assert found[0] == found[1]


@pytest.mark.parametrize("data", [MARK, MARK + b"\n\n"])
def test_a_mark_alone_is_an_empty_text(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "text"
    path.write_bytes(data)
    with pytest.raises(UsageError, match="is empty"):
        read_script(str(path))
    with pytest.raises(UsageError, match="has no line"):
        read_entries(str(path))
    with pytest.raises(UsageError, match="is empty"):
        read_script("-", io.BytesIO(data))


def test_lines_of_slurm_below_a_mark_are_refused_with_their_number(tmp_path: Path) -> None:
    path = tmp_path / "job.sh"
    path.write_bytes(MARK + b"#!/bin/sh\n#SBATCH --time=30\n")
    assert read_script(str(path)).foreign == ((2, "#SBATCH --time=30"),)


def test_text_of_another_encoding_is_refused_not_guessed(tmp_path: Path) -> None:
    path = tmp_path / "job.sh"
    path.write_text("#!/bin/sh\n#RMGR -n 4\n", encoding="utf-16")  # what some shells write with `>`
    with pytest.raises(UsageError, match="no text"):
        read_script(str(path))
    with pytest.raises(UsageError, match="NUL"):
        read_entries(str(path))
    with pytest.raises(UsageError, match="UTF-8"):
        raw_jobs(str(path), "jobs")


# -- lines --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("char", ODD)
def test_json_lines_are_cut_at_line_feeds_only(tmp_path: Path, char: str) -> None:
    jobs = tmp_path / "jobs.jsonl"
    # JSON has its control characters escaped; the others may stand as they are
    words = [json.dumps({"name": f"a{char}b", "command": ["x", char]}, ensure_ascii=False) for _ in range(2)]
    jobs.write_bytes("\r\n".join(words).encode() + b"\n{}\n")
    found = raw_jobs(str(jobs), "jobs")
    assert [raw.told.get("command") for raw in found] == [["x", char], ["x", char], None]
    assert found[2].where == "jobs: line 3"
    events = tmp_path / "events"
    events.write_text(f'# a{char}b\n\n{{"at": 0, "event": "cancel", "job": 17}}\n', encoding="utf-8")
    assert len(read_events(events)) == 1


def test_errors_in_toml_name_the_line_that_an_editor_shows(tmp_path: Path) -> None:
    text = f"# {''.join(char for char in ODD if char >= chr(0x80))}\n[queues.default]\n[cluster]\nno_such_key = 1\n"
    assert config.line_of(text, "no_such_key", "cluster") == 4
    assert config.line_of(text.replace("\n", "\r\n"), "no_such_key", "cluster") == 4
    with pytest.raises(ConfigError, match=r"cluster\.toml:4:"):
        parse_settings("# \u2028\x85\n\n[queues.default]\nstate = 'shut'\n", "cluster.toml")


@pytest.mark.parametrize(
    ("data", "lines", "last"),
    [
        (b"a\nb\nc\n", 1, b"c\n"),
        (b"a\nb\nc\n", 2, b"b\nc\n"),
        (b"a\nb\nc\n", 3, b"a\nb\nc\n"),
        (b"a\nb\nc\n", 9, b"a\nb\nc\n"),
        (b"a\nb\nc", 1, b"c"),  # a last line without its end is one
        (b"a\nb\nc", 2, b"b\nc"),
        (b"a\n\n", 1, b"\n"),
        (b"\n\n\n", 2, b"\n\n"),
        (b"a\nb\n", 0, b""),
        (b"", 3, b""),
        (b"10%\r50%\r100%\nend\n", 2, b"10%\r50%\r100%\nend\n"),  # a progress bar is one line
        (b"1\r\n2\r\n3\r\n", 2, b"2\r\n3\r\n"),
        (f"a\n{ODD}\nb\n".encode(), 2, f"{ODD}\nb\n".encode()),
        (b"\xff\nb\xe2\n", 1, b"b\xe2\n"),
        (b"a\0\nb\0", 1, b"b\0"),
    ],
)
def test_last_lines_are_counted_as_tail_counts(data: bytes, lines: int, last: bytes) -> None:
    pieces = [
        OutputPiece(submission=1, position=0, attempt=1, stream=stream, data=data[at : at + size], time_us=0)
        for stream, size in (("stdout", 1), ("stderr", 1000))
        for at in range(0, len(data), size)
    ]
    found = {piece.stream: piece.data for piece in last_lines(iter(pieces), lines)}
    assert found == ({"stdout": last, "stderr": last} if data else {})


@pytest.mark.parametrize("text", ["+5", "-5", "5k", "", "x", "1.5", "\u0665"])
def test_other_forms_of_tail_are_refused(text: str) -> None:
    """`tail -n +5` begins at line 5: that is not the last 5."""
    with pytest.raises(UsageError) as caught:
        parse_lines(text)
    assert caught.value.hint


def test_the_end_of_an_output_in_a_message_has_its_lines_whole() -> None:
    assert tail_of([f"1\n{ODD[3:]}a\n".encode(), b"2\r\n3"], 3) == [f"{ODD[3:]}a", "2", "3"]


# -- characters that a terminal cannot show -------------------------------------------------------------------------------------


def _narrow(monkeypatch: pytest.MonkeyPatch, encoding: str) -> io.BytesIO:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding=encoding, errors="replace", write_through=True))
    return raw


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "utf-8"])
def test_json_says_the_same_in_every_encoding(monkeypatch: pytest.MonkeyPatch, encoding: str) -> None:
    raw = _narrow(monkeypatch, encoding)
    name = "näive → 日本 😀 ?"
    emit({"name": name})
    sink = JsonLines(lambda _position: "1_0")
    sink.take(OutputPiece(submission=1, position=0, attempt=1, stream="stdout", data=name.encode(), time_us=0))
    sink.close()
    first, second = raw.getvalue().decode(encoding).rstrip("\n").split("\n")
    assert (json.loads(first)["name"], json.loads(second)["data"]) == (name, name)
