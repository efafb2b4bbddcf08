"""Frames between the ranks of a job: as long as they may be, and no longer."""

from __future__ import annotations

import pytest

from rmgr.runner.ranks import ranks


def test_a_frame_of_gigabytes_is_refused_when_it_is_announced() -> None:
    head = (2**32 - 1).to_bytes(4, "little") + bytes([ranks.USED]) + bytes(4)
    with pytest.raises(ranks.FrameTooLong, match="16,777,216"):
        list(ranks.Cutter().feed(head))


def test_the_longest_frame_arrives() -> None:
    rest = bytes(ranks.MOST_FRAME_BYTES)
    assert list(ranks.Cutter().feed(ranks.frame(ranks.SPEC, 1, rest))) == [(ranks.SPEC, 1, rest)]
