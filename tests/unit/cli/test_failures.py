"""Reports of failures: one for all equal ends, with the next command, and what `rmgr rerun --failed` submits; each error has a hint."""

from __future__ import annotations

import ast
import io
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rmgr import errors
from rmgr.cli.display.columns import where_or_why
from rmgr.cli.display.shapes import LINE_BYTES, Failure, cell, harmless, of_job, sentence, steps, word_for
from rmgr.cli.listing import show
from rmgr.cli.listing.show import BadEnds, told
from rmgr.cli.main import run
from rmgr.cli.submit.rerun import check_numbers
from rmgr.cli.waiting import FollowedEnd
from rmgr.client.commands.request import array_of, lines_of
from rmgr.errors import DataLost, RequestTooLarge
from rmgr.model.states import Reason, State
from rmgr.model.submission import Command, Submission, Work, parse_array
from rmgr.model.views import ExplainView, FailureView, JobView, WhyView
from rmgr.runner.remote import dump_exception
from tests.places import ROOT

MIB = 1 << 20


def a_job(tasks: int = 1, failed: int = 1, **fields: Any) -> JobView:
    counts = {"FAILED": failed, "COMPLETED": tasks - failed}
    return JobView(id=22, name="sweep", user="ada", queue="default", state=State.FAILED, counts=counts, tasks=tasks, **fields)


def a_failure(**fields: Any) -> Failure:
    given = {"reason": Reason.EXIT_CODE, "exit_code": 3, "nodes": {"n2": 5, "n3": 3}, "task": "22_7", "error": "exit code 3", **fields}
    return Failure(**given)


STARVED = a_failure(
    reason=Reason.OUT_OF_MEMORY, exit_code=137, nodes={"n1": 1}, task="22_0", error="over its 50M (peak 52M)", started_us=1_000_000,
    ended_us=1_100_000, max_rss_kib=52 * 1024,
)
CRASHED = b'''x
Fatal Python error: Aborted

Current thread 0x1 (most recent call first):
  File "a.py", line 2 in f
  File "b.py", line 3 in g
'''
WRONG = a_failure(stderr="ValueError: bad parameter 7", has_output=True)


def test_tasks_that_ended_alike_are_told_once() -> None:
    lines = told(BadEnds([WRONG], "243 of 256 tasks at 04:08:20: enough"), a_job(256, 8), 256)
    assert lines == [
        ("failed", "8 of 256 tasks: exit code 3 (5 on n2, 3 on n3)"),
        ("", "22_7 | ValueError: bad parameter 7"),
        ("cancelled", "243 of 256 tasks at 04:08:20: enough"),
    ]
    assert steps(a_job(256, 8), [WRONG]) == ["rmgr logs 22 --failed", "rmgr rerun 22 --failed"]


def test_tasks_that_ended_alike_are_named_the_first_of_many() -> None:
    few, many = a_failure(nodes={"n2": 2}, first=("22_7", "22_14")), a_failure(first=("22_7", "22_14", "22_21"))
    assert sentence(few, 256) == "2 of 256 tasks: exit code 3 on n2: 22_7, 22_14"
    assert sentence(many, 256) == "8 of 256 tasks: exit code 3 (5 on n2, 3 on n3): 22_7, 22_14, 22_21, ..."


def test_a_limit_is_told_with_what_was_used_and_how_to_move_it() -> None:
    assert told(BadEnds([STARVED]), a_job(), 1) == [("failed", "out of memory on n1 after 100ms, over its 50M (peak 52M)")]
    assert steps(a_job(memory_bytes=50 * MIB), [STARVED]) == ["rmgr rerun 22 --mem 256M"], "a log that is empty is not named"
    late = a_failure(reason=Reason.TIME_LIMIT, exit_code=143, nodes={"n1": 1}, error="over its limit of 10m")
    assert sentence(late, 1) == "out of time on n1, over its limit of 10m"
    assert steps(a_job(asked={"time_limit": 600.0}), [late]) == ["rmgr rerun 22 -t 20m"]


@pytest.mark.parametrize(("limit_s", "option"), [(0.2, "1s"), (30.0, "60s"), (61.0, "3m"), (3600.0, "2h"), (5400.0, "3h")])
def test_a_longer_limit_is_one_that_can_be_typed(limit_s: float, option: str) -> None:
    late = a_failure(reason=Reason.TIME_LIMIT)
    assert steps(a_job(asked={"time_limit": limit_s}), [late]) == [f"rmgr rerun 22 -t {option}"]


def test_what_to_type_names_what_is_meant() -> None:
    lost = a_failure(reason=Reason.NODE_LOST, exit_code=None, error="node n1 was lost")
    assert steps(a_job(9, 1), [lost]) == ["rmgr rerun 22 --lost"]
    gone = a_failure(reason=Reason.NODE_LOST, exit_code=None, nodes={"n1": 1}, error="node n1 was lost")
    assert sentence(gone, 1) == "the node was lost on n1", "once"
    assert steps(a_job(9, 1), [WRONG], task="22_7") == ["rmgr logs 22_7", "rmgr rerun 22 --tasks 7"]
    assert steps(a_job(), [WRONG], mine=False) == ["rmgr logs 22"], "nobody is sent to run what is another's"
    assert steps(a_job(), [a_failure(reason=Reason.START_FAILED)]) == [], "again as it is, it cannot be started either"
    nowhere = a_failure(reason=Reason.START_FAILED, error="the work directory /x cannot be used: No such file or directory")
    assert steps(a_job(), [nowhere]) == ["rmgr rerun 22 --cwd DIR"]
    assert steps(a_job(9, 1), [nowhere], task="22_7") == ["rmgr rerun 22 --tasks 7 --cwd DIR"]
    assert steps(a_job(), [nowhere], mine=False) == []
    unmet = a_job(reason=Reason.DEPENDENCY_FAILED, detail="ok:21: submission 21 ended FAILED")
    assert steps(unmet, []) == ["rmgr explain 21"]


def test_an_exception_is_what_it_said_and_a_missing_program_is_told_in_the_sentence() -> None:
    raised = a_failure(reason=Reason.EXCEPTION, exit_code=None, error="ValueError: x", stderr="a warning", nodes={"n1": 1})
    assert told(BadEnds([raised]), a_job(), 1) == [("failed", "an exception on n1"), ("", "| ValueError: x")]
    absent = a_failure(reason=Reason.START_FAILED, exit_code=127, nodes={"n1": 1}, error="no program x on node n1")
    assert told(BadEnds([absent]), a_job(), 1) == [("failed", "could not be started: no program x on node n1")]
    assert told(BadEnds([absent]), a_job(9), 9)[1] == ("", "22_7 | no program x on node n1")


def test_a_traceback_is_read_without_its_exception() -> None:
    assert show.traceback_in(b"") == show.traceback_in(b"\x80\x05no pickle") == ()
    try:
        raise ValueError("(most recent call last):\n \x1b[31mred")
    except ValueError as error:
        pickled, _ = dump_exception(error)
    lines = show.traceback_in(pickled)
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[1].startswith("  File ")
    assert lines[-2:] == ("ValueError: (most recent call last):", " red")
    raised = a_failure(reason=Reason.EXCEPTION, exit_code=None, nodes={"n1": 2}, error="ValueError: x", kind="ValueError", traceback=lines)
    assert told(BadEnds([raised]), a_job(9), 9)[0] == ("failed", "2 of 9 tasks: ValueError on n1")
    assert told(BadEnds([raised]), a_job(), 1)[1] == ("", "| Traceback (most recent call last):")
    assert steps(a_job(9), [raised]) == ["rmgr explain 22_7", "rmgr rerun 22 --failed"], "which has the whole of it"
    assert steps(a_job(), [raised]) == ["rmgr rerun 22"]


@pytest.mark.parametrize(
    ("code", "told_"),
    [(1, "1"), (128, "128"), (137, "137 (128 + SIGKILL)"), (139, "139 (128 + SIGSEGV)"), (160, "160"), (255, "255"), (None, "None")],
)
def test_an_exit_code_by_which_a_shell_means_a_signal_has_its_name(code: int | None, told_: str) -> None:
    assert word_for(Reason.EXIT_CODE, code) == f"exit code {told_}"


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (b"\x1b[31mValueError\x1b[0m: x", "ValueError: x"),
        (b"\x1b]0;title\x07safe", "safe"),
        (b"\x1b]8;;http://x\x1b\\link", "link"),
        (b"a\x00b\x07c\x9b31md", "a\\x00b\\x07c\ufffd31md"),
        ("\u009b31mred \u202egnp".encode(), "red \\u202egnp"),
        (b"  \t ", ""),
        (b"x" * 200, "x" * 157 + "..."),
        ("é".encode() * 100, "é" * 78 + "..."),
    ],
)
def test_a_line_of_anybody_steers_no_terminal(data: bytes, line: str) -> None:
    assert harmless(data) == line
    assert len(harmless(data).encode()) <= LINE_BYTES
    assert harmless(data).isprintable()


def test_a_table_names_reasons_codes_and_nodes() -> None:
    views = [FailureView(reason="EXIT_CODE", exit_code=3, node=node, tasks=count) for node, count in (("n2", 5), ("n3", 3))]
    views.append(FailureView(reason="OUT_OF_MEMORY", exit_code=137, node="n1", tasks=9, error="over its 50M"))
    job = a_job(256, 17, failures=tuple(views), reason=Reason.EXIT_CODE)
    assert cell(job) == "9: out of memory on n1; 8: exit code 3 on n2,n3"
    assert where_or_why(job) == cell(job)
    assert where_or_why(a_job(failures=tuple(views[:1]))) == "exit code 3 on n2"
    assert [(failure.tasks, failure.nodes) for failure in of_job(job)] == [(9, {"n1": 9}), (8, {"n2": 5, "n3": 3})]


def test_a_table_names_the_exception_of_a_task_alone() -> None:
    one = FailureView(reason="EXCEPTION", exit_code=None, node="n1", tasks=1, error="numpy.linalg.LinAlgError: Singular matrix")
    assert cell(a_job(failures=(one,))) == "numpy.linalg.LinAlgError on n1"
    assert cell(a_job(9, 2, failures=(one, FailureView(reason="EXCEPTION", exit_code=None, node="n2", tasks=1, error="KeyError: 3")))) == (
        "an exception on n1,n2"
    )


def an_end(position: int, **fields: Any) -> FollowedEnd:
    given = {"state": State.FAILED, "reason": "EXIT_CODE", "exit_code": 3, "node": f"n{position % 2}", "attempt": 1, "error": "", **fields}
    return FollowedEnd(submission=22, position=position, index=position, **given)


def test_ten_thousand_failures_cost_the_logs_of_a_few(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def ends(_session: object, _number: int) -> Any:
        for position in reversed(range(10_000)):
            yield an_end(position, log=(b"", b""), log_parts=(0, 1))

    def row(_store: object, _number: int, position: int, *_: object) -> bytes:
        read.append(str(position))
        return b"" if position == 0 else b"line 1\nline %d\n\n" % position

    monkeypatch.setattr("rmgr.cli.waiting.read_ends", ends)
    monkeypatch.setattr("rmgr.client.logs.read_part", row)
    session: Any = SimpleNamespace(data_store=lambda: None, detail=lambda _text: None)
    bad = show.read_bad_ends(session, 22, 10_000)
    assert [(one.tasks, one.task, one.stderr, one.has_output) for one in bad.failures] == [(10_000, "22_1", "line 1", True)]
    assert read == ["0", "1"]


@pytest.mark.parametrize(
    ("stderr", "line"),
    [
        (b"bad input\n" + b"rmgr run: rank 1 on node n2 ended with code 5", "bad input"),
        (b"rmgr run: rank 1 on node n2 ended with code 5\n\n", "rmgr run: rank 1 on node n2 ended with code 5"),
        (b"step 7\nrmgr run: rank 1 on node n2 ended with code 139 (128 + SIGSEGV)", "... ended with code 139 (128 + SIGSEGV)"),
        (CRASHED, 'Fatal Python error: Aborted: File "a.py", line 2 in f'),
    ],
)
def test_the_line_that_says_most_is_shown(stderr: bytes, line: str) -> None:
    session: Any = SimpleNamespace()
    assert show.last_line(session, an_end(0, log=(b"", stderr), log_parts=(0, 0))).endswith(line.removeprefix("..."))


@pytest.mark.parametrize("width", [80, 200])
@pytest.mark.parametrize("colour", [True, False])
def test_the_screens_fit_and_commands_stay_whole(monkeypatch: pytest.MonkeyPatch, width: int, colour: bool) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    out = Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    if not colour:
        monkeypatch.setenv("NO_COLOR", "1")
    nodes = {f"node{number}": 10 - number for number in range(9)}
    long = a_failure(nodes=nodes, stderr="x" * 60 + " " + "y" * 60, has_output=True)
    job = a_job(256, sum(nodes.values()), command="work.py")
    lines = [*told(BadEnds([long, STARVED]), job, 256), ("next", "rmgr logs 22 --failed"), ("", "rmgr rerun 22 --failed --mem 256M")]
    why = WhyView(what="resources", id="default", detail="all nodes are busy; " * 8)
    show.draw_explained(ExplainView(id="22", state=State.FAILED, reason="", why=(why,)), lines)
    show.draw_job(job, None, lines)
    drawn = out.getvalue()
    plain = drawn.replace("\x1b[1m", "").replace("\x1b[31m", "").replace("\x1b[0m", "")
    assert ("\x1b" in drawn, "\x1b" in plain) == (colour, False)
    assert max(map(len, plain.splitlines())) <= width
    assert plain.count("rmgr rerun 22 --failed --mem 256M\n") == 2
    assert "10 on node0, 9 on node1, 8 on node2, 7 on node3, 20 on 5 more" in " ".join(plain.split())


@pytest.mark.parametrize(
    ("array", "cap", "positions", "expected"),
    [
        ("", 0, [0], ""),
        ("", 0, [0, 1, 2], "0-2"),
        ("1-8%4", 4, [0, 2, 4, 6], "1-7:2%4"),
        ("10,20,30-32", 0, [1, 2, 3], "20,30-31"),
        ("1-9", 0, [1, 4, 5], "2,5-6"),
        ("9,3,1", 0, [0, 1, 2], "9,3,1"),
        ("1-100:10", 0, [0, 1, 5], "1,11,51"),
    ],
)
def test_tasks_that_run_again_keep_their_numbers(array: str, cap: int, positions: list[int], expected: str) -> None:
    record = Submission(id=1, name="x", user="u", queue="q", work=Work.COMMAND, array=array, max_running=cap)
    made = array_of(record, positions)
    assert made == expected
    if array:
        before, after = parse_array(array), parse_array(made)
        assert [after.index_at(at) for at in range(len(after))] == [before.index_at(at) for at in positions]


def test_lines_that_were_not_kept_are_no_empty_lines() -> None:
    record = Submission(id=1, name="x", user="u", queue="q", work=Work.COMMAND)
    assert lines_of(None, record, [0], 1) == (b"",)  # type: ignore[arg-type]
    with pytest.raises(DataLost, match="the lines of submission 1 are not kept"):
        lines_of(None, record, [0], 2)  # type: ignore[arg-type]


def record(array: str, word: str = "true") -> Submission:
    return Submission(id=42, name="x", user="ann", queue="default", work=Work.COMMAND, command=Command(argv=(word,)), array=array)


SCATTERED = [at for at in range(9000) if at * at % 11 in {3, 4, 5}]


def test_scattered_tasks_are_refused_with_a_first_part_that_fits() -> None:
    work = record("1000001-1009000")
    with pytest.raises(RequestTooLarge, match="the numbers of these 4,908 tasks are too scattered") as told:
        check_numbers(work, SCATTERED, " --failed")
    first, last = map(int, re.findall(r"rmgr rerun 42 --failed --tasks (\d+)-(\d+); then those behind", told.value.hint)[0])
    part = [at for at in SCATTERED if first <= at + 1_000_001 <= last]
    assert len(part) > 500
    check_numbers(work, part, " --failed")
    with pytest.raises(RequestTooLarge):
        check_numbers(work, SCATTERED[: len(part) + 3], " --failed")


@pytest.mark.parametrize(
    ("array", "positions"),
    [("1-9000", list(range(9000))), ("1-9000", list(range(0, 9000, 7))), ("1-9000", SCATTERED[:100]), ("", [0]), ("1-3", [1])],
)
def test_what_can_be_said_in_few_numbers_is_not_refused(array: str, positions: list[int]) -> None:
    check_numbers(record(array), positions, "")


def test_of_a_long_command_it_is_not_the_numbers_that_are_refused() -> None:
    check_numbers(record("1-9000", "x" * 20_000), SCATTERED, " --failed")


KINDS = {name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, errors.RmgrError)}
#: Where people's words are read. (click's own errors get theirs from `with_hint`; an empty one is caught beside it.)
READERS = ("cli", "procedures", "client/commands")


def told_without_hint(source: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in KINDS and node.args:
            has_hint = any(keyword.arg in {"hint", None} for keyword in node.keywords)
            if not has_hint and ast.unparse(node.args[0]) not in {"''", '""'}:
                yield node.lineno, ast.unparse(node)


@pytest.mark.parametrize("room", READERS)
def test_what_is_wrong_is_told_with_what_to_type(room: str) -> None:
    paths = sorted((ROOT / "rmgr" / room).rglob("*.py"))
    assert paths
    found = [f"{path.relative_to(ROOT)}:{line} {told}" for path in paths for line, told in told_without_hint(path.read_text("utf-8"))]
    assert found == []


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("raise UsageError('no')", 1),
        ("raise NotFound('no', hint='rmgr jobs')", 0),
        ("kind(message, hint=hint)", 0),
        ("RmgrError(*told)", 1),
    ],
)
def test_an_error_without_a_hint_is_seen(source: str, count: int) -> None:
    assert len(list(told_without_hint(source))) == count


@pytest.mark.parametrize(
    "words",
    [
        ["sim", "run", "lublin99", "--policy", "fcfs", "--nodes", "8", "--count", "5", "--out", "here"],
        ["policy", "check", "./mine.py"],
    ],
)
def test_a_command_says_that_its_directory_is_gone(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    monkeypatch.setenv("PWD", str(gone))
    assert run(words) == 2
    told = capsys.readouterr().err
    assert "the directory that this command was started in has been removed: " + str(gone) in told
    assert "cd to one that exists" in told


def test_an_explanation_names_each_id_once(capsys: pytest.CaptureFixture[str]) -> None:
    whys = (WhyView(what="hold", id="5", detail="held by its user"), WhyView(what="dependency", id="4", detail="waits for ok:4"))
    whys += (WhyView(what="store", id="", detail="away since noon"),)
    show.draw_explained(ExplainView(id="5", state=State.HELD, reason="USER_HOLD", why=whys), [])
    drawn = capsys.readouterr().out.splitlines()
    assert drawn[:4] == ["5 is HELD (USER_HOLD)", "  hold: held by its user", "  dependency 4: waits for ok:4", "  store: away since noon"]
