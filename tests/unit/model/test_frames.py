"""Frames arrive as they were sent, however the stream is cut; broken streams are refused; threads that first decode a type."""

from __future__ import annotations

import re
import subprocess
import sys

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmgr.coord.validity import LONG
from rmgr.model import frames, stream
from rmgr.model.frames import (
    BatchShape,
    CommandBatch,
    CommandEnd,
    CommandEnds,
    CommandItem,
    Output,
    TaskBatch,
    TaskEnd,
    TaskEnds,
    TaskExtra,
    TaskItem,
    Value,
)
from rmgr.model.line import Message
from rmgr.model.states import Reason
from rmgr.model.stream import FrameError, FrameReader, encode
from tests.places import ROOT

TASKS = TaskBatch(
    shape=BatchShape(submission=42, environ={"A": "ü"}), function="ab" * 32, blob=b"\x00\xff",
    items=(TaskItem(1, 0), TaskItem(2, 7, attempt=3, label=9, payload=b"x" * 300)),
)
ENDS = TaskEnds(
    (
        TaskEnd(1, 1_700_000_000_000_000, 3, 2, b"r"),
        TaskEnd(2, 1, 2, 3, b"", True, TaskExtra(reason=Reason.EXCEPTION, error=b"e", summary="E: x", out=Output(size=1, data=b"o"))),
        TaskEnd(3, 1, 2, 3, b"", True, TaskExtra(values=(Value(data=b"1", pickled=False), Value(path="/x", size=5)))),
    )
)


def nested(items: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    return st.lists(items, max_size=20) | st.dictionaries(st.text(max_size=40), items, max_size=20)


def values_in(value: object) -> int:
    if isinstance(value, dict):
        return 1 + sum(1 + values_in(item) for item in value.values())
    return 1 + sum(map(values_in, value)) if isinstance(value, list) else 1


def test_every_direction_has_tags_of_its_own() -> None:
    for union in (frames.ToSpawner, frames.FromSpawner, frames.ToWorker, frames.FromWorker):
        tags = [kind.__struct_config__.tag for kind in union.__args__]
        assert len(tags) == len(set(tags))


@pytest.mark.parametrize(
    ("kind", "frame"),
    [
        (frames.ToWorker, TASKS),
        (frames.FromWorker, ENDS),
        (
            frames.ToSpawner,
            CommandBatch(shape=BatchShape(exclusive=True), argv=("echo", "a b"), items=(CommandItem(5, 0, entry=b"\xff"),)),
        ),
        (frames.ToSpawner, frames.Stop(worker=3, seq=9, reason=Reason.TIME_LIMIT, grace_us=0)),
        (frames.FromSpawner, CommandEnds((CommandEnd(seq=5, reason=Reason.SIGNAL, signal=9, err=Output(size=9, path="/e", dropped=4)),))),
        (frames.FromSpawner, frames.WorkerGone(worker=1, reason=Reason.WORKER_LOST, seq=4, signal=9)),
    ],
)
def test_a_frame_survives_the_wire(kind: object, frame: object) -> None:
    assert [frame] == FrameReader(kind).feed(encode(frame))


@given(st.lists(st.integers(1, 40), min_size=1, max_size=200))
def test_frames_arrive_however_the_stream_is_cut(cuts: list[int]) -> None:
    stream = encode(TASKS) + encode(frames.Granted(7)) + encode(TASKS)
    reader: FrameReader[object] = FrameReader(frames.ToWorker)
    got, position = [], 0
    for cut in cuts:
        got += reader.feed(stream[position : position + cut])
        position += cut
    got += reader.feed(stream[position:])
    assert [TASKS, frames.Granted(7), TASKS] == got
    assert reader.pending == 0


def test_a_frame_that_announces_too_much_is_refused_before_it_is_read() -> None:
    with pytest.raises(FrameError, match="announced"):
        FrameReader(frames.ToWorker).feed((stream.MAX_FRAME + 1).to_bytes(4, "little"))


@pytest.mark.parametrize("body", [b"\xc1", b"\x91\x63", b"\x92\x28\x01", b"\x93"])
def test_a_frame_that_does_not_decode_is_refused(body: bytes) -> None:
    with pytest.raises(FrameError, match="decode"):
        FrameReader(frames.ToWorker).feed(len(body).to_bytes(4, "little") + body)


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (frames.FromWorker, b"\x93\x3f\xc4\x00\xa2\xff\xfe"),  # a summary that is no UTF-8
        (frames.FromWorker, b"\x93\x3e\x01" + b"\x91" * 100_000 + b"\x01"),  # a field that nobody knows, nested without end
        (frames.FromSpawner, b"\x93\x19\xa2\xff\xfe\xa0"),
        (Message, b"\x94\x01\xa2\xff\xfe\xa1b\xc4\x00"),
        (Message, b"\x95\x03\x01\x01\x01" + b"\x91" * 50_000 + b"\x01"),
    ],
)
def test_what_a_user_can_write_ends_the_stream_and_never_who_reads_it(kind: object, body: bytes) -> None:
    with pytest.raises(FrameError, match="decode"):
        FrameReader(kind).feed(len(body).to_bytes(4, "little") + body)


def test_a_frame_of_millions_of_small_values_is_refused_before_it_is_decoded() -> None:
    count = 4_000_000
    crowd = b"\xdd" + count.to_bytes(4, "big") + b"\x90" * count  # values of an end: a byte each, and a struct of 70 bytes once decoded
    end = msgspec.msgpack.encode(["", b"", "", None, msgspec.Raw(crowd)])
    frame = encode((60, [(1, 1, 1, 1, b"", True, msgspec.Raw(end))]))
    with pytest.raises(FrameError, match="values"):
        FrameReader(frames.FromWorker).feed(frame)


@given(st.recursive(st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(), nested))
def test_values_are_counted_as_the_codec_writes_them(value: object) -> None:
    data, count = msgspec.msgpack.encode(value), values_in(value)
    assert not stream.is_crowded(memoryview(data), count)
    assert stream.is_crowded(memoryview(data), count - 1)


def test_a_large_honest_frame_arrives() -> None:
    values = tuple(Value(data=b"x" * 30_000) for _ in range(1000))
    ends = TaskEnds((TaskEnd(1, 1, 2, 3, b"", True, TaskExtra(values=values)),))
    assert FrameReader(frames.FromWorker).feed(encode(ends)) == [ends]


def test_the_end_of_a_task_with_as_many_output_keys_as_it_may_have_arrives() -> None:
    value = Value(path="/var/lib/rmgr/n1/slot", size=2_000_000, sha256=bytes(32))
    ends = TaskEnds((TaskEnd(1, 1, 2, 3, b"", True, TaskExtra(values=(value,) * LONG)),))
    assert FrameReader(frames.FromWorker).feed(encode(ends)) == [ends]


def test_a_silent_success_is_small() -> None:
    assert len(encode(TaskEnd(1, 1_700_000_000_000_000, 3, 2, b"\x80\x05N."))) < 40


def test_a_worker_writes_task_ends_by_hand_as_the_codec_would() -> None:
    from rmgr.runner.python.worker import ends_header

    ends = [encode(end)[stream.HEADER :] for end in ENDS.ends]
    body = b"".join(ends)
    assert FrameReader(frames.FromWorker).feed(ends_header(len(ends), len(body)) + body) == [ENDS]


def test_what_is_left_of_a_read_outlives_the_memory_it_was_read_into() -> None:
    """A channel reads into the same memory again and again; frames that came whole are decoded from it, uncopied."""
    room, reader = bytearray(1024), FrameReader[object](frames.FromWorker)
    whole = encode(ENDS)
    parts, got = (whole + whole[:7], whole[7:20], whole[20:] + whole), list[object]()
    for part in parts:
        room[: len(part)] = part
        got += reader.feed(memoryview(room)[: len(part)])
        room[:] = bytes(len(room))
    assert got == [ENDS] * 3
    assert reader.pending == 0


_RACE = """
import sys, threading
sys.setswitchinterval(1e-6)
from rmgr.coord.protocol.records import decode_record, encode_record
from rmgr.model.submission import Submission, Work
data = encode_record(Submission(id=1, name="n", user="u", queue="q", work=Work.COMMAND))
barrier = threading.Barrier(8)
def decode():
    barrier.wait()
    assert decode_record(data, Submission).id == 1
threads = [threading.Thread(target=decode) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""
#: One thread decodes in these, or the type has no fields: programs of a rank and of a bench, a dictionary, a token of one struct.
_ALONE = {"runner/python/rank_call.py", "bench/load/silent_starters.py", "bench/load/virtual_starters.py"}
_ALONE |= {"adapters/identity/invitation.py", "runner/python/served.py"}


@pytest.mark.parametrize("attempt", range(10))
def test_threads_that_decode_a_record_for_the_first_time_do_not_end_the_process(attempt: int) -> None:
    """Before its decoder was made by one thread, every fourth such process ended by SIGSEGV."""
    done = subprocess.run([sys.executable, "-c", _RACE], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, f"attempt {attempt}: {done.stderr}"


def test_no_type_is_decoded_without_a_decoder_that_one_thread_has_made() -> None:
    called = re.compile(r"msgspec\.(?:json|msgpack)\.decode\([^\n]*type=")
    found = {str(path.relative_to(ROOT / "rmgr")) for path in (ROOT / "rmgr").rglob("*.py") if called.search(path.read_text())}
    assert found == _ALONE
