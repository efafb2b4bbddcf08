"""What of a stored output is news to someone who watched it grow; the middle that was dropped is told."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rmgr.client.logs import unseen
from rmgr.model.tasks.gap import gap_line, place
from rmgr.runner.host.outputs import open_output, take, trim

CAP = 64 * 1024


def kept(tmp_path: Path, written: bytes) -> bytes:
    """What the runner keeps of this output."""
    fd = open_output(str(tmp_path / "live"))
    try:
        os.write(fd, written)
        trim(fd, CAP)
        output = take(fd, str(tmp_path / "live"), str(tmp_path / "final"), CAP)
    finally:
        os.close(fd)
    return (tmp_path / "final").read_bytes() if output.path else output.data


def pieces(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


@pytest.mark.parametrize("shown", [0, 1, 99, 100, 101, 5000, 6000])
@pytest.mark.parametrize("size", [7, 100, 4096, 10_000])
def test_what_was_shown_is_not_shown_again(shown: int, size: int) -> None:
    data = bytes(range(256)) * 20
    assert b"".join(unseen(pieces(data, size), shown)) == data[shown:]


@pytest.mark.parametrize("size", [97, 4096, 1 << 20])
def test_a_dropped_middle_is_told_and_its_end_is_shown(tmp_path: Path, size: int) -> None:
    written = b"".join(b"%09d\n" % number for number in range(50_000))
    stored, drops = kept(tmp_path, written), []
    whole = b"".join(unseen(pieces(stored, size), 0, on_drop=lambda *told: drops.append(told)))
    assert whole == stored
    [(count, cap)] = drops
    assert cap == CAP
    assert len(stored) - stored.count(b"dropped here") * len(marker(stored)) + count == len(written)
    # Shown into the dropped middle: the line that says so, of what was missed, and the end. Shown into the end: only what follows.
    tail = len(written) - (len(stored) - stored.index(marker(stored)) - len(marker(stored)))
    lagging = b"".join(unseen(pieces(stored, size), tail - 1000))
    assert lagging == gap_line(1000, CAP) + written[tail:]
    almost = b"".join(unseen(pieces(stored, size), len(written) - 30))
    assert almost == written[-30:]


def marker(stored: bytes) -> bytes:
    start = stored.index(b"\n[rmgr: ")
    return stored[start : stored.index(b"]\n", start) + 2]


@pytest.mark.parametrize("digits", [16, 5000])
def test_a_line_that_a_program_prints_stands_for_no_more_than_a_file_can_have(digits: int) -> None:
    line = gap_line(1, 1).replace(b"1 bytes", b"9" * digits + b" bytes")
    placed = list(place([b"a" * 200 + line + b"b" * 200]))
    assert b"".join(one.data for one in placed) == b"a" * 200 + line + b"b" * 200
    assert placed[-1].end == 400 + len(line)
