"""Traces: every field unchanged, the normalisation of papers.md section 6, and errors that name line and field."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest

from rmgr.errors import UsageError
from rmgr.sim.workload.jobs import SECOND, SwfReader, Workload, read_trace

Write = Callable[..., Path]


def line(job: object, submit: object, run: object, size: object, *, requested: object = -1, estimate: object = -1, user: object = 7) -> str:
    return f"{job} {submit} -1 {run} {size} -1 -1 {requested} {estimate} -1 1 {user} 3 -1 -1 -1 -1 -1"


@pytest.fixture
def trace(tmp_path: Path) -> Write:
    def write(*lines: str, name: str = "t.swf", header: str = "; MaxProcs: 8\n") -> Path:
        path = tmp_path / name
        data = (header + "\n".join(lines) + "\n").encode()
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return path

    return write


def shape(workload: Workload) -> list[tuple[int, int, int, int, int]]:
    return [(j.source, j.submit_us // SECOND, j.run_us // SECOND, j.estimate_us // SECOND, j.processors) for j in workload.jobs]


def test_each_rule_of_the_normalisation_touches_its_records_and_says_so(trace: Write) -> None:
    workload = read_trace(
        trace(
            line(1, 100, 10, 4, estimate=60),
            line(2, 90, 10, 2, estimate=5),  # earlier submit; runs longer than requested
            line(3, 100, 0, 4),  # no run time
            line(4, 100, -1, 4),
            line(5, 101, 7, -1, requested=3),  # size from the request
            line(6, 101, 7, 0, requested=-1),  # no size
            line(7, -1, 7, 1),  # no submit time
            line(8, 101, 7, 64),  # larger than the machine
        )
    )
    assert shape(workload) == [(2, 0, 10, 10, 2), (1, 10, 10, 60, 4), (5, 11, 7, 7, 3), (8, 11, 7, 7, 8)]
    assert [job.number for job in workload.jobs] == [1, 2, 3, 4]
    assert workload.touched == {
        "records read": 8,
        "dropped: run time missing or zero": 2,
        "dropped: no size": 1,
        "dropped: no submit time": 1,
        "size taken from the request": 1,
        "size cut to the machine": 1,
        "no requested time: run time taken": 2,
        "requested time raised to the run time": 1,
        "moved into submit order": 1,
    }
    assert (workload.jobs[0].user, workload.jobs[0].account, workload.jobs[0].queue) == ("u7", "g3", "")


def test_fractions_are_cut_off_wherever_they_stand(trace: Write) -> None:
    workload = read_trace(trace(line(1, 5.9, 3.7, "2.0", estimate="1e1"), line(2, 6, 0.9, 1), line(3, "6.2", 1, 1)))
    assert shape(workload) == [(1, 0, 3, 10, 2), (3, 1, 1, 1, 1)]  # the run time 0.9 is 0


def test_jobs_of_one_second_keep_the_order_of_the_file(trace: Write) -> None:
    workload = read_trace(trace(line(9, 5, 1, 1), line(3, 4, 1, 1), line(8, 5, 1, 1), line(1, 5, 1, 1)))
    assert [job.source for job in workload.jobs] == [3, 9, 8, 1]


def test_gz_is_told_by_its_bytes_and_gives_the_same_workload(trace: Write, tmp_path: Path) -> None:
    lines = [line(n, n, 5, 2, estimate=9) for n in range(1, 50)]
    plain, packed = read_trace(trace(*lines)), read_trace(trace(*lines, name="t.swf.gz"))
    (tmp_path / "t.swf").write_bytes((tmp_path / "t.swf.gz").read_bytes())
    assert plain == packed == read_trace(tmp_path / "t.swf")


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        (line(2, "soon", 5, 1), "line 3, field 2 (submit time): 'soon' is not a number"),
        (line(2, 1, "5s", 1), "line 3, field 4 (run time): '5s' is not a number"),
        (line(2, 1, 5, 1, user="alice"), "line 3, field 12 (user): 'alice' is not a number"),
        (line(2, 1, "nan", 1), "line 3, field 4 (run time): 'nan' is not a number"),
        (line(2, 1, "inf", 1), "line 3, field 4 (run time): 'inf' is not a number"),
        (line(2, 1, "1_000", 1), "line 3, field 4 (run time): '1_000' is not a number"),
        (line(2, 1, "9" * 30, 1), "line 3, field 4 (run time): '999999999999999999999999999999' is beyond 10^12"),
        (line(2, 1, "1e300", 1), "line 3, field 4 (run time): '1e300' is beyond 10^12"),
        (line(2, 1, "1e999", 1), "line 3, field 4 (run time): '1e999' is beyond 10^12"),
        (line(2, 1, "-Infinity", 1), "line 3, field 4 (run time): '-Infinity' is not a number"),
        ("2 1 -1 5", "line 3: 4 fields instead of 18, field 5 (allocated processors) is missing"),
        (line(2, 1, 5, 1) + " 4", "line 3: 19 fields instead of 18"),
        ("2 1 -1 \x00\xff", "line 3, field 4 (run time)"),
    ],
)
def test_a_bad_line_is_named_with_its_field(trace: Write, bad: str, told: str) -> None:
    path = trace(line(1, 0, 5, 1), bad, line(3, 9, 5, 1))
    with pytest.raises(UsageError) as error:
        read_trace(path)
    assert str(path) in error.value.message
    assert told in error.value.message


@pytest.mark.parametrize(
    ("broken", "told"),
    [
        (lambda data: data[: len(data) // 2], r"ends in the middle, after line [1-9]"),
        (lambda data: data[:-6] + bytes([data[-6] ^ 255]) + data[-5:], "damaged"),  # the check sum
    ],
    ids=["ends in the middle", "damaged"],
)
def test_a_gz_that_is_not_whole_gives_no_workload(trace: Write, broken: Callable[[bytes], bytes], told: str) -> None:
    path = trace(*(line(n, n, n * 7 % 1000 + 1, 1) for n in range(1, 5000)), name="t.swf.gz")
    path.write_bytes(broken(path.read_bytes()))
    with pytest.raises(UsageError, match=told):
        read_trace(path)


@pytest.mark.parametrize("encoded", ["; MaxProcs: 4\n".encode("utf-16"), b"BZh91AY&SY\x00\xff", b"\xfd7zXZ\x00"])
def test_a_file_in_another_encoding_or_packing_is_told(trace: Write, encoded: bytes) -> None:
    path = trace()
    path.write_bytes(encoded)
    with pytest.raises(UsageError, match=r"line 1, field 1 \(job number\)") as error:
        read_trace(path)
    assert "SWF is ASCII text, plain or gz" in str(error.value.hint)


@pytest.mark.parametrize("lines", [[], ["; nothing"], [line(1, 0, 0, 1)]])
def test_a_trace_without_jobs_is_refused(trace: Write, lines: list[str]) -> None:
    with pytest.raises(UsageError, match=r"holds no record|none of its 1 records"):
        read_trace(trace(*lines))


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nowhere\.swf cannot be read: No such file"):
        read_trace(tmp_path / "nowhere.swf")


def test_a_pipe_is_refused_before_it_is_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")  # to open one waits for its writer; to read it a second time gives nothing
    with pytest.raises(UsageError, match="pipe is no file"):
        read_trace(tmp_path / "pipe")


def test_a_trace_from_another_system_is_the_same_workload(trace: Write) -> None:
    header, lines = "; MaxProcs: 8\n", [line(n, n, 5, 2, estimate=9) for n in range(1, 9)]
    plain = read_trace(trace(*lines, header=header))
    path = trace(*lines, header=header)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n").replace(b" ", b"\t", 3))
    assert read_trace(path) == plain
    path.write_bytes("; Installation: Zürich\n".encode("latin-1") + path.read_bytes().removeprefix(b"\xef\xbb\xbf"))
    assert read_trace(path) == plain


def test_the_machine_comes_from_the_header_or_from_the_caller(trace: Write) -> None:
    path = trace(line(1, 0, 5, 64), header="; MaxNodes: 16\n; Acknowledge: Somebody\n")
    workload = read_trace(path)
    assert (workload.processors, workload.jobs[0].processors, workload.acknowledgement) == (16, 16, "Somebody")
    assert read_trace(path, processors=4).jobs[0].processors == 4
    with pytest.raises(UsageError, match="does not say how large the machine was"):
        read_trace(trace(line(1, 0, 5, 64), header="; Version: 2\n"))


def test_arrivals_are_stretched_exactly_and_to_a_load(trace: Write) -> None:
    workload = read_trace(trace(*(line(n, 7 * n, 8, 4) for n in range(11))))
    assert workload.offered_load == Fraction(11 * 8 * 4, 8 * 70)
    assert [j.submit_us // SECOND for j in workload.stretched(Fraction("0.9")).jobs[:5]] == [0, 6, 12, 18, 25]
    heavier = workload.at_load(Fraction("0.9")).offered_load
    assert heavier is not None
    assert abs(heavier - Fraction("0.9")) < Fraction(1, 50)
    with pytest.raises(UsageError, match="not possible"):
        workload.at_load(Fraction(0))


def test_reading_does_not_need_the_whole_file(trace: Write) -> None:
    reader = iter(SwfReader(trace(line(1, 0, 5, 1), line(2, 1, "bad", 1))))
    assert next(reader).run == 5
    with pytest.raises(UsageError):
        next(reader)
