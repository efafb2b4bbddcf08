"""Output of tasks on its way to people, programs and files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rmgr.cli.submit.run import JsonLines, Labelled, Plain, ToFiles
from rmgr.cli.waiting import AwaitedSubmission, Follow, FollowedEnd, fetch_files, how, tell_failure
from rmgr.client.logs import OutputPiece, read_ended, read_flushed, tail_of
from rmgr.coord.decisions.keeping import SubmissionEnd, Unmet, is_branch_not_taken, weigh
from rmgr.coord.protocol import keys
from rmgr.errors import UsageError
from rmgr.model.block import Fragment, Outcome
from rmgr.model.states import Reason, State
from rmgr.model.submission import Command, Condition, Dependency, Phase, Submission, Work
from rmgr.model.views import JobView


def a_piece(data: bytes, position: int = 0, stream: str = "stdout", attempt: int = 1) -> OutputPiece:
    return OutputPiece(submission=42, position=position, attempt=attempt, stream=stream, data=data, time_us=1_790_000_000_000_000)


def an_end(position: int = 0, **fields: object) -> FollowedEnd:
    values = {"state": State.COMPLETED, "reason": "", "exit_code": 0, "node": "n1", "attempt": 1, "error": ""} | fields
    return FollowedEnd(submission=42, position=position, index=position + 1, **values)  # type: ignore[arg-type]


def label(position: int) -> str:
    return f"42_{position}"


def test_plain_output_is_byte_for_byte(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    sink = Plain()
    for data in (b"a\xff", b"\n\0", b"no end"):
        sink.take(a_piece(data))
    sink.take(a_piece(b"err", stream="stderr"))
    sink.close()
    assert capfdbinary.readouterr() == (b"a\xff\n\0no end", b"err")


def test_labelled_lines_are_whole_lines(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    sink = Labelled(label)
    sink.take(a_piece(b"one\ntw", 1))
    sink.take(a_piece(b"other\n", 2))
    sink.take(a_piece(b"o\n\nrest", 1))
    sink.take(a_piece(b"oops", 2, "stderr"))
    sink.done(1)
    sink.close()
    out, err = capfdbinary.readouterr()
    assert out == b"42_1: one\n42_2: other\n42_1: two\n42_1: \n42_1: rest\n"
    assert err == b"42_2: oops\n"


def test_json_lines_never_split_a_character(capsys: pytest.CaptureFixture[str]) -> None:
    sink = JsonLines(label)
    for data in ("ä€".encode()[:3], "ä€".encode()[3:], b"\xff\n"):
        sink.take(a_piece(data))
    sink.done(0)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert "".join(line["data"] for line in lines) == "ä€\ufffd\n"
    assert lines[0] == {"schema": "rmgr/1", "time": "2026-09-21T14:13:20.000Z", "task": "42_0", "stream": "stdout", "data": "ä"}


def test_files_one_for_all_or_one_for_each_task(tmp_path: Path) -> None:
    for pattern, expected in (("all.txt", {"all.txt": b"abc"}), ("%j.%a.txt", {"42.10.txt": b"ac", "42.11.txt": b"b"})):
        sink = ToFiles(str(tmp_path / pattern), 42, lambda position: position + 10)
        for data, position in ((b"a", 0), (b"b", 1), (b"c", 0)):
            sink.take(a_piece(data, position))
        sink.done(0)
        sink.close()
        assert {name: (tmp_path / name).read_bytes() for name in expected} == expected
    nowhere = ToFiles(str(tmp_path / "absent" / "x"), 42, lambda position: position)
    with pytest.raises(UsageError, match=r"-o: .*/absent/x cannot be written: No such file or directory"):
        nowhere.close()
    empty = ToFiles(str(tmp_path / "empty"), 42, lambda position: position)
    empty.close()
    assert (tmp_path / "empty").read_bytes() == b""


def test_stored_output_is_parts_then_the_rest() -> None:
    from tests.harness.memory_store import MemoryStore

    store = MemoryStore("cli-output")
    for part, data in enumerate((b"one ", b"two ", b"three ")):
        store.put(keys.log(42, 7, 1, "stdout", part), data)
    assert b"".join(read_ended(store, 42, 7, 1, "stdout", parts=3, rest=b"rest")) == b"one two three rest"
    assert b"".join(read_flushed(store, 42, 7, 1, "stdout")) == b"one two three "
    assert b"".join(read_flushed(store, 42, 7, 2, "stdout")) == b""
    assert list(read_ended(None, 42, 7, 1, "stderr", parts=0, rest=b"x")) == [b"x"]
    assert tail_of([b"a\nb\n", b"c\nd"], 2) == ["c", "d"]


def test_an_end_is_told_in_one_line() -> None:
    failed = an_end(state=State.FAILED, reason=str(Reason.EXIT_CODE), exit_code=3, attempt=2, error="exit code 3")
    assert how(failed) == "FAILED on n1 with exit code 3 (EXIT_CODE), attempt 2"
    lost = an_end(state=State.FAILED, reason=str(Reason.NODE_LOST), exit_code=None, error="node n1 was lost")
    assert how(lost) == "FAILED on n1 (NODE_LOST): node n1 was lost"
    empty = an_end(state=State.FAILED, reason="BAD_OUTPUT", exit_code=0, error="its output file 'x' was not written")
    assert how(empty) == "FAILED on n1 (BAD_OUTPUT): its output file 'x' was not written", "it ended well, and that was not enough"


def test_the_worst_end_decides() -> None:
    item = AwaitedSubmission(42, frozenset({0, 1, 2}))
    for position, code in ((0, 0), (1, 7), (2, 3)):
        state = State.FAILED if code else State.COMPLETED
        item.ends[position] = an_end(position, state=state, reason="EXIT_CODE" if code else "", exit_code=code)
    assert (item.is_ended, item.state, item.code, item.worst and item.worst.position) == (True, State.FAILED, 7, 1)
    assert item.counts[State.FAILED] == 2


def test_history_is_an_end_too() -> None:
    job = JobView(
        id=7, name="x", user="ada", queue="default", state=State.FAILED, reason=Reason.TIME_LIMIT, exit_code=143, counts={"FAILED": 1}
    )
    item = AwaitedSubmission(7, past=job)
    assert (item.is_ended, item.state, item.code, item.counts) == (True, State.FAILED, 124, {State.FAILED: 1})


@pytest.mark.parametrize(
    ("phase", "reason", "state", "code"),
    [
        (Phase.CANCELLED, Reason.USER_CANCEL, State.CANCELLED, 130),
        (Phase.CLOSED, Reason.USER_CANCEL, State.CANCELLED, 130),
        (Phase.CLOSED, Reason.NONE, State.COMPLETED, 0),
    ],
)
def test_work_without_tasks_ended_as_its_record_says(phase: Phase, reason: Reason, state: State, code: int) -> None:
    submission = Submission(id=42, name="x", user="ada", queue="default", work=Work.PYTHON, phase=phase, reason=reason)
    item = AwaitedSubmission(42, submission=submission)
    assert (item.state, item.code) == (state, code)


@pytest.mark.parametrize("is_past", [False, True])
@pytest.mark.parametrize(
    ("reason", "detail", "code"),
    [
        (Reason.DEPENDENCY_FAILED, "fail:41: submission 41 ended COMPLETED", 0),
        (Reason.DEPENDENCY_FAILED, "fail:41: submission 41 was cancelled before anything of it ran", 130),
        (Reason.DEPENDENCY_FAILED, "ok:41: submission 41 ended FAILED", 130),
        (Reason.USER_CANCEL, "fail:41: submission 41 ended COMPLETED", 130),  # somebody's words
    ],
)
def test_a_branch_that_was_not_needed_is_no_failure(is_past: bool, reason: Reason, detail: str, code: int) -> None:
    if is_past:
        job = JobView(id=42, name="x", user="ada", queue="default", state=State.CANCELLED, reason=reason, detail=detail)
        item = AwaitedSubmission(42, past=job)
    else:
        item = AwaitedSubmission(42, submission=SimpleNamespace(reason=reason, reason_detail=detail, max_fails=-1))  # type: ignore[arg-type]
        item.ends[0] = an_end(state=State.CANCELLED, reason=str(reason), exit_code=None)
    assert item.code == code
    told: list[str] = []
    session: Any = SimpleNamespace(note=told.append)
    tell_failure(session, item, with_tail=False) if code == 0 else None
    assert told == ([f"42 was not needed: {detail}"] if code == 0 else [])


@pytest.mark.parametrize("phase", [Phase.CANCELLED, Phase.CLOSED])
@pytest.mark.parametrize("is_late", [False, True])
def test_an_end_that_is_here_before_the_record_that_explains_it_is_judged_by_both(is_late: bool, phase: Phase) -> None:
    detail = "fail:41: submission 41 ended COMPLETED"
    open_ = Submission(id=42, name="x", user="ada", queue="default", work=Work.COMMAND)
    cancelled = replace(open_, phase=phase, reason=Reason.DEPENDENCY_FAILED, reason_detail=detail)
    asked = list[object]()

    def ask(question: object) -> object:
        asked.append(question)
        return SimpleNamespace(record=cancelled)

    handle = SimpleNamespace(submission=open_ if is_late else cancelled)
    engine = SimpleNamespace(attach=lambda number, listener, **_: listeners.append(listener) or handle)
    listeners: list[Any] = []
    session: Any = SimpleNamespace(followed=[], submitter=lambda: engine, left_s=lambda most: most, ask=ask)
    follow = Follow(session)
    item = follow.add(42, [0])
    outcome = Outcome(index=0, state=State.CANCELLED, reason=Reason.DEPENDENCY_FAILED)
    listeners[0].on_outcomes(Fragment(attempt=0), [outcome])
    follow.next()
    listeners[0].on_progress()  # what the handle knows is older, or the same
    follow.next()
    assert (item.is_ended, item.is_not_taken, item.code) == (True, True, 0)
    assert len(asked) == is_late


def test_the_leader_records_such_a_branch_so() -> None:
    after = (Dependency(condition=Condition.FAIL, submission=41),)
    verdict = weigh(after, {41: SubmissionEnd(state=State.COMPLETED, began=True)})
    assert isinstance(verdict, Unmet)
    assert is_branch_not_taken(Reason.DEPENDENCY_FAILED, verdict.detail)
    spared = weigh(after, {41: SubmissionEnd(state=State.CANCELLED)})
    assert isinstance(spared, Unmet)
    assert not is_branch_not_taken(Reason.DEPENDENCY_FAILED, spared.detail)


@pytest.mark.parametrize(("total", "id_"), [(3, "42_2"), (1, "42")])
def test_one_awaited_task_of_several_is_named(total: int, id_: str, capsys: pytest.CaptureFixture[str]) -> None:
    handle = SimpleNamespace(progress=SimpleNamespace(total=total))
    item = AwaitedSubmission(42, frozenset({1}), handle=handle)
    item.ends[1] = an_end(1, state=State.FAILED, reason="EXIT_CODE", exit_code=3)
    tell_failure(cast("Any", None), item, with_tail=False)
    err = capsys.readouterr().err
    assert err.startswith(f"rmgr: {id_} FAILED"), err
    assert f"rmgr explain {id_}\n" in err


def test_a_file_of_several_tasks_is_not_fetched_and_that_is_told(tmp_path: Path) -> None:
    """Their logs have none of it: an empty file would say that there was nothing."""
    notes: list[str] = []
    ends = {number: an_end(number, log=(b"", b""), log_parts=(0, 0)) for number in (0, 1)}
    command = Command(argv=("x",), out=str(tmp_path / "all"))
    item: Any = SimpleNamespace(submission=SimpleNamespace(command=command, name="x"), ends=ends)
    fetch_files(cast("Any", SimpleNamespace(note=notes.append)), item)
    assert notes == [f"-o {tmp_path / 'all'} stays on the nodes: several tasks write into it, %a gives each its own"]
    assert not (tmp_path / "all").exists()


def test_a_dependency_that_failed_is_what_to_look_at_next(capsys: pytest.CaptureFixture[str]) -> None:
    submission: Any = SimpleNamespace(reason=Reason.DEPENDENCY_FAILED, reason_detail="ok:41: submission 41 ended FAILED")
    item = AwaitedSubmission(42, submission=submission, handle=SimpleNamespace(progress=SimpleNamespace(total=1)))
    item.ends[0] = an_end(state=State.CANCELLED, reason=str(Reason.DEPENDENCY_FAILED), exit_code=None, node="")
    tell_failure(cast("Any", None), item, with_tail=False)
    assert capsys.readouterr().err.endswith("      next: rmgr explain 41\n")


def test_nothing_is_fetched_of_what_could_not_begin(tmp_path: Path) -> None:
    ends = {0: an_end(state=State.FAILED, reason=Reason.START_FAILED, log=(b"", b""), log_parts=(0, 0))}
    command = Command(argv=("x",), out="/proc/x", err=str(tmp_path / "err"))
    item: Any = SimpleNamespace(submission=SimpleNamespace(command=command, name="x"), ends=ends)
    fetch_files(cast("Any", None), item)  # no note
    assert not (tmp_path / "err").exists()


def test_both_streams_may_be_fetched_into_one_file(tmp_path: Path) -> None:
    """Slurm's -o without -e is that."""
    both = str(tmp_path / "%j.%a")
    command = Command(argv=("x",), out=both, err=both)
    ends = {number: an_end(number, log=(b"out\n", b"err\n"), log_parts=(0, 0)) for number in (0, 1)}
    item: Any = SimpleNamespace(submission=SimpleNamespace(command=command, name="x"), ends=ends)
    (tmp_path / "42.2").write_text("the node wrote it: it is this machine\n")
    fetch_files(cast("Any", None), item)
    assert (tmp_path / "42.1").read_text() == "out\nerr\n"
    assert (tmp_path / "42.2").read_text() == "the node wrote it: it is this machine\n"
