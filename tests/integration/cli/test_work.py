"""The command line on a real cluster keeps the promises of cli.md: submitting, waiting, output, exit codes, all details of work."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.waiting import eventually
from tests.integration.commands import Shell, interrupt, wait_line


@pytest.fixture
def sh(in_both_ways: Shell) -> Shell:
    return in_both_ways


def until(what: str, sh: Shell, *words: str) -> None:
    """Until the output of a command contains `what`."""
    eventually(lambda: what in sh(*words).out, lambda: f"{what!r} appears in rmgr {' '.join(words)}: {sh(*words)}")


# -- submit -------------------------------------------------------------------------------------------------------------------


def test_submit_prints_an_id_and_wait_the_output(sh: Shell) -> None:
    assert sh.ok("submit", "--wait", "--", "echo", "hello").out == "hello\n"
    submitted = sh.ok("submit", "-J", "x", "echo", "-n", "hello")
    assert submitted.out.startswith("Submitted job ")
    number = submitted.out.split()[-1]
    sh.ok("wait", number)
    assert sh.ok("logs", number).out == "hello"
    assert sh.ok("show", number, "--json").json["name"] == "x"


def test_json_of_submit_and_of_a_wait(sh: Shell) -> None:
    first = sh.ok("submit", "--json", "--", "true").json
    assert first == {"schema": "rmgr/1", "id": first["id"], "tasks": 1}
    shown = sh.ok("submit", "--wait", "--json", "--", "true").json
    assert (shown["state"], shown["exit_code"], shown["counts"]["COMPLETED"]) == ("COMPLETED", 0, 1)
    assert [attempt["attempt"] for attempt in shown["attempts"]] == [1]


def test_the_same_token_gives_the_same_id(sh: Shell) -> None:
    first = sh.submit("--token", "once", "--", "true")
    again = sh.ok("submit", "--token", "once", "--json", "--", "true").json
    assert again["id"] == first
    assert sh.ok("jobs", "-a", "--json", first).json["jobs"][0]["tasks"] == 1


def test_a_script_runs_with_its_directives_and_arguments(sh: Shell) -> None:
    sh.file("job.sh", '#!/bin/sh\n#RMGR -J scripted --array 1-2\n#RMGR --env WORD=hi\necho "$WORD $1 $RMGR_ARRAY_INDEX"\n')
    number = sh.submit("job.sh", "there")
    sh.ok("wait", number)
    lines = sorted(sh.ok("logs", number).out.splitlines())
    assert lines == [f"{number}_1: hi there 1", f"{number}_2: hi there 2"]
    assert sh.ok("show", number, "--json").json["name"] == "scripted"
    named = sh.submit("-J", "mine", "job.sh")  # the command line wins
    assert sh.ok("show", named, "--json").json["name"] == "mine"


def test_a_script_without_shebang_and_one_from_stdin_run_by_the_shell(sh: Shell) -> None:
    sh.file("plain.sh", "echo plain $RMGR_ATTEMPT\n")
    assert sh.ok("submit", "--wait", "plain.sh").out == "plain 1\n"
    assert sh.ok("submit", "--wait", "-", stdin="echo piped\n").out == "piped\n"


def test_each_line_is_a_task(sh: Shell) -> None:
    sh.file("lines", "a b\n\nc\n")
    number = sh.submit("--each-line", "lines", "--", "sh", "-c", 'echo "<$RMGR_ENTRY>"')
    sh.ok("wait", number)
    assert sh.ok("logs", number).out == f"{number}_0: <a b>\n{number}_1: <c>\n"


def test_files_travel_through_upload_input_and_output(sh: Shell) -> None:
    sh.file("one.txt", "1\n")
    (sh.directory / "lib").mkdir()
    (sh.directory / "lib" / "two.txt").write_text("2\n")
    sh.ok("store", "put", "in/3", "-", stdin="3\n")
    made = sh.ok(
        "submit", "--wait", "--upload", "one.txt", "--upload", "lib", "--input", "in/3=three.txt", "--output", "out/6=sum.txt",
        "--", "sh", "-c", "cat one.txt lib/two.txt three.txt | tee sum.txt",
    )  # fmt: skip
    assert made.out == "1\n2\n3\n"
    assert sh.ok("store", "get", "out/6").out == "1\n2\n3\n"
    taken = sh("submit", "--output", "out/6=x", "--", "true")
    assert (taken.code, "out/6" in taken.err) == (1, True)
    sh.ok("store", "rm", "out/6")


def test_output_files_are_written_on_the_node(sh: Shell) -> None:
    number = sh.submit("--array", "4,9", "-o", "o.%j.%a", "--", "sh", "-c", "echo $RMGR_ARRAY_INDEX")
    sh.ok("wait", number)
    assert [(sh.directory / f"o.{number}.{index}").read_text() for index in (4, 9)] == ["4\n", "9\n"]


def test_a_log_is_that_of_its_own_work_although_a_file_is_written_again(sh: Shell) -> None:
    for word in ("first", "second"):
        assert sh.ok("submit", "--wait", "-o", "again.out", "--", "echo", word).out.splitlines()[-1] == word
    assert sh.ok("logs", "last").out == "second\n"
    assert (sh.directory / "again.out").read_text() == "first\nsecond\n"


def test_output_that_nobody_wants_fails_no_work_and_blames_no_node(sh: Shell) -> None:
    ended = sh.ok("submit", "--wait", "-o", "/dev/null", "--", "sh", "-c", "echo gone; echo kept >&2")
    assert ("gone" in ended.out + ended.err, "kept" in ended.err) == (False, True)
    os.mkfifo(sh.directory / "pipe")
    for name in ("pipe", "/dev/stdout"):
        ended = sh("submit", "--wait", "-o", name, "--", "echo", "x")
        assert (ended.code, "cannot be written" in ended.err) == (126, True), ended
    assert {node["state"] for node in sh.ok("nodes", "--json").json["nodes"]} == {"up"}


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["submit"], 2, "nothing to run"),
        (["submit", ""], 2, "nothing to run"),
        (["submit", "-n", "2", "--", ""], 2, "nothing to run"),
        (["run", "--", "", "x"], 2, "nothing to run"),
        (["submit", "nope.sh"], 2, "no script nope.sh"),
        (["submit", "-q", "defualt", "--", "true"], 3, "did you mean 'default'"),
        (["submit", "-c", "99", "--", "true"], 2, "the largest node"),
        (["submit", "--mem", "9000G", "--", "true"], 2, "the largest node"),
        (["submit", "--mem", "1X", "--", "true"], 2, "--mem: '1X' is not a size"),
        (["submit", "-t", "soon", "--", "true"], 2, "--time: 'soon' is not a duration"),
        (["submit", "-a", "5-1", "--", "true"], 2, "runs backwards"),
        (["submit", "--after", "ok:999999", "--", "true"], 3, "no submission 999999"),
        (["submit", "--after", "okk:1", "--", "true"], 2, "is not a dependency"),
        (["submit", "--input", "nokey=x", "--", "true"], 3, "no key 'nokey'"),
        (["submit", "-n", "40", "--", "true"], 2, "are more than partition default ever has"),
        (["submit", "-N", "2", "-q", "default", "--", "true"], 2, "-q batch"),
        (["submit", "-N", "2", "--nodelist", "n1,nn2", "--", "true"], 3, "did you mean 'n2'?"),
        (["submit", "--output", "k=../x", "--", "true"], 2, "'../x' leads out of the work directory"),
        (["submit", "--input", "k=/etc/x", "--", "true"], 2, "'/etc/x' leads out of the work directory"),
        (["submit", "--env", "=x", "--", "true"], 2, "is not an environment variable"),
        (["submit", "--no-resubmit", "--retries", "2", "--", "true"], 2, "exclude each other"),
        (["submit", "--each-line", "absent", "--", "true"], 2, "cannot be read"),
        (["submit", "--upload", "absent", "--", "true"], 2, "no file or directory"),
        (["show", "999999"], 3, "no submission 999999"),
        (["show", "x"], 2, "selects nothing"),
        (["jobs", "--state", "faild"], 2, "FAILED"),
        (["cancel", "999999"], 3, "no submission"),
        (["wait", "999999"], 3, "no submission"),
        (["drain", "n9"], 3, "there is no node 'n9'"),
        (["lgos", "1"], 2, "rmgr logs"),
        (["squeue"], 2, "rmgr jobs"),
        (["show", "1", "--jsno"], 2, "--json"),
    ],
)
def test_bad_input_gets_a_clear_error_and_its_exit_code(sh: Shell, words: list[str], code: int, told: str) -> None:
    ended = sh(*words)
    assert ended.code == code, ended
    assert told in ended.err
    assert ended.out == ""
    as_json = sh(words[0], "--json", *words[1:])
    if words[0] in {"submit", "show", "jobs", "cancel", "wait", "drain"}:
        assert as_json.code == code
        assert set(as_json.error) == {"code", "message", "hint"}
        assert as_json.error["hint"]
        assert as_json.err == ""


def test_a_bad_directive_names_its_line(sh: Shell) -> None:
    sh.file("bad.sh", "#!/bin/sh\n# a comment\n#RMGR --time soon\necho\n")
    ended = sh("submit", "bad.sh")
    assert ended.code == 2
    assert "bad.sh:3: --time: 'soon' is not a duration" in ended.err


def test_a_dry_run_submits_nothing(sh: Shell) -> None:
    def known() -> set[str]:  # what they are doing meanwhile is their own business
        return {job["id"] for job in sh.ok("jobs", "-a", "--json").json["jobs"]}

    before = known()
    assert "would submit dry" in sh.ok("submit", "--dry-run", "-J", "dry", "--", "true").out
    assert known() == before


# -- exit codes and output ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--", "sh", "-c", "exit 3"], 3),
        (["--", "sh", "-c", "kill -9 $$"], 137),
        (["-t", "1", "--", "sleep", "30"], 124),
        (["--", "no-such-command-anywhere"], 127),
        (["--array", "1-3", "--", "sh", "-c", "exit $RMGR_ARRAY_INDEX"], 3),
    ],
)
def test_run_exits_with_the_codes_of_the_work(sh: Shell, words: list[str], code: int) -> None:
    ended = sh("run", *words)
    assert ended.code == code
    assert "next: rmgr" in ended.err


def test_run_keeps_streams_apart_and_bytes_as_they_are(sh: Shell) -> None:
    ended = sh.ok("run", "--", "sh", "-c", "printf 'out\\n'; printf 'err\\n' >&2")
    assert (ended.out, ended.err) == ("out\n", "err\n")


def test_run_streams_while_the_command_runs(sh: Shell) -> None:
    sh.file("gate", "")
    gate = sh.directory / "gate"
    with sh.running("run", "--", "sh", "-c", f"echo first; while [ -e {gate} ]; do sleep 0.05; done; echo second") as process:
        assert wait_line(process, "first") == "first\n"
        gate.unlink()
        assert process.communicate(timeout=60)[0] == "second\n"
        assert process.returncode == 0


def test_json_lines_of_run(sh: Shell) -> None:
    ended = sh.ok("run", "--json", "--", "sh", "-c", "echo one; echo two >&2")
    lines = [json.loads(line) for line in ended.out.splitlines()]
    assert {(line["stream"], line["data"]) for line in lines} == {("stdout", "one\n"), ("stderr", "two\n")}
    assert all(set(line) == {"schema", "time", "task", "stream", "data"} for line in lines)


def test_a_failure_tells_task_node_code_last_lines_and_what_next(sh: Shell) -> None:
    number = sh.submit("--", "sh", "-c", "seq 1 30; exit 4")
    ended = sh("wait", number)
    assert ended.code == 4
    assert f"{number} FAILED on n" in ended.err
    assert "exit code 4" in ended.err
    assert [line.strip() for line in ended.err.splitlines() if line.strip().startswith("|")] == [f"| {n}" for n in range(21, 31)]
    assert f"next: rmgr logs {number}" in ended.err


def test_wait_gives_the_highest_code_and_its_own_timeout(sh: Shell) -> None:
    good, bad = sh.submit("--", "true"), sh.submit("--", "sh", "-c", "exit 7")
    ended = sh("wait", good, bad, "--json")
    assert ended.code == 7
    assert ended.json["items"] == [
        {"id": good, "state": "COMPLETED", "reason": "", "exit_code": 0},
        {"id": bad, "state": "FAILED", "reason": "EXIT_CODE", "exit_code": 7},
    ]
    slow = sh.submit("--", "sleep", "60")
    assert sh("wait", slow, "--timeout", "0.5").code == 6
    sh.ok("cancel", slow, "--reason", "enough")
    assert sh("wait", slow).code == 130
    assert "enough" in sh.ok("show", slow).out


def test_logs_of_running_work_and_of_the_past(sh: Shell) -> None:
    gate = sh.directory / sh.file("gate2", "")
    number = sh.submit("--", "sh", "-c", f"echo early; while [ -e {gate} ]; do sleep 0.05; done; echo late; exit 5")
    until("early", sh, "logs", number)
    with sh.running("logs", "-f", number) as process:
        wait_line(process, "early")
        gate.unlink()
        assert process.communicate(timeout=60)[0] == "late\n"
        assert process.returncode == 5
    assert sh.ok("logs", number).out == "early\nlate\n"
    assert sh.ok("logs", number, "--tail", "1").out == "late\n"
    silent = sh.ok("logs", number, "--stream", "stderr")
    assert (silent.out, silent.err) == ("", f"rmgr: {number} has written nothing to stderr: rmgr explain {number}\n")
    sh.ok("logs", number, "-o", "copy.txt")
    assert (sh.directory / "copy.txt").read_text() == "early\nlate\n"


def test_why_there_is_no_output_is_said(sh: Shell) -> None:
    gate = sh.directory / sh.file("gate4", "")
    running = sh.submit("--", "sh", "-c", f"while [ -e {gate} ]; do sleep 0.05; done")
    eventually(lambda: "has written nothing yet" in sh("logs", running).err)
    gate.unlink()
    assert sh("wait", running).code == 0
    held = sh.submit("--hold", "--", "echo", "late")
    told = {number: sh.ok("logs", number).err for number in (running, held)}
    sh.ok("cancel", held)
    elsewhere = sh.submit("-o", "/dev/null", "--", "echo", "gone")
    assert sh("wait", elsewhere).code == 0
    told |= {"followed": sh.ok("logs", "-f", elsewhere).err, "cancelled": sh.ok("logs", held).err, elsewhere: sh.ok("logs", elsewhere).err}
    assert {number: words.partition(": ")[2].partition(": ")[0].partition(" ")[2] for number, words in told.items()} == {
        "followed": "has written nothing but to /dev/null on its nodes\n",
        running: "has written nothing",
        held: "has not begun",
        "cancelled": "never ran",
        elsewhere: "has written nothing but to /dev/null on its nodes",
    }


def test_last_lines_are_those_of_tail(sh: Shell, tmp_path: Path) -> None:
    text = "one\\ntwo \\342\\200\\250 \\302\\205 \\f\\v\\n\\n10%%\\r90%%\\r\\nlast"  # U+2028, U+0085 and others end no line
    number = sh.submit("--", "printf", text)
    sh.ok("wait", number)
    whole = tmp_path / "whole"
    sh.ok("logs", number, "-o", str(whole))
    for lines in range(8):
        tail = subprocess.run(["tail", "-n", str(lines), whole], capture_output=True, check=True, timeout=10).stdout
        words = [sys.executable, "-m", "rmgr.cli.main", "logs", number, "-n", str(lines)]
        assert subprocess.run(words, capture_output=True, check=True, timeout=60, env=sh.environment).stdout == tail
    assert "tail -n +5" in sh("logs", number, "-n", "+2").err
    refused = sh("logs", "-f", number, "-n", "2")  # it printed two lines, and followed nothing
    assert (refused.code, refused.out) == (2, "")
    assert "-f follows all" in refused.err


def test_a_script_of_slurm_runs_with_the_lines_that_were_said(sh: Shell) -> None:
    theirs = "#SBATCH -J theirs --array=4,9 --nice=10 -t 5\n#SBATCH -o both.%A_%a --mem=64 --mail-type=NONE\n"
    sh.file("theirs.sh", f"#!/bin/sh\n{theirs}echo out; sleep 0.1; echo err >&2\n")
    refused = sh("submit", "theirs.sh")
    assert (refused.code, refused.out) == (2, "")
    ours = [line.removeprefix("rmgr: ") for line in refused.err.splitlines() if line.startswith("rmgr: #RMGR")]
    assert "without an equal" not in refused.err
    sh.file("ours.sh", "\n".join(["#!/bin/sh", *ours, "echo out; sleep 0.1; echo err >&2", ""]))
    number = sh.submit("ours.sh")
    sh.ok("wait", number)
    shown = sh.ok("show", number, "--json").json
    told = (shown["name"], shown["priority"], shown["time_limit"], shown["mem_bytes"], shown["tasks"])
    assert told == ("theirs", -10, 300.0, 64 << 20, 2)
    assert [(sh.directory / f"both.{number}_{index}").read_text() for index in (4, 9)] == ["out\nerr\n"] * 2


def test_scripts_and_lists_with_a_byte_order_mark(sh: Shell) -> None:
    mark = "\ufeff"
    sh.file("marked.sh", f'{mark}#!/bin/sh\n#RMGR -J marked --array 3\necho "$RMGR_ARRAY_INDEX $0"\n')
    number = sh.submit("./marked.sh")
    assert sh.ok("wait", number).code == 0
    assert sh.ok("logs", number).out.startswith("3 ")
    assert sh.ok("show", number, "--json").json["name"] == "marked"
    sh.file("marked.txt", f"{mark}first\nsecond\n")
    number = sh.submit("--each-line", "marked.txt", "--", "sh", "-c", 'echo "<$RMGR_ENTRY>"')
    sh.ok("wait", number)
    assert sh.ok("logs", number).out == f"{number}_0: <first>\n{number}_1: <second>\n"
    assert sh.ok("submit", "--wait", "-", stdin=f"{mark}#!/bin/sh\necho piped\n").out == "piped\n"


def test_scripts_and_lists_may_have_any_encoding(sh: Shell) -> None:
    (sh.directory / "latin.sh").write_bytes(b"#!/bin/sh\n# f\xfcr alle\nprintf '%s' '\xfc' | od -An -tx1\n")
    assert sh.ok("submit", "--wait", "./latin.sh").out == " fc\n"
    (sh.directory / "latin.txt").write_bytes(b"f\xfcr\nall\n")
    number = sh.submit("--each-line", "latin.txt", "--", "sh", "-c", "printf %s \"$RMGR_ENTRY\" | od -An -tx1")
    assert sh("wait", number).code == 0
    assert sh.ok("logs", number).out == f"{number}_0:  66 fc 72\n{number}_1:  61 6c 6c\n"


@pytest.mark.parametrize(("encoding", "shown"), [("ascii", "n?ive ? ??"), ("latin-1", "näive ? ??"), ("utf-8", "näive → 日本")])
def test_what_calls_print_is_shown_as_far_as_the_terminal_can(sh: Shell, encoding: str, shown: str) -> None:
    program = sh.directory / sh.file("prints.py", "")
    program.write_text(
        """\
import sys, rmgr
def call(number):
    print("before"); print("n\\u00e4ive \\u2192 \\u65e5\\u672c"); print("behind")
    return number
with rmgr.Executor() as executor:
    assert executor.submit(call, 7).result(timeout=50) == 7
"""
    )
    environment = sh.environment | {"PYTHONIOENCODING": f"{encoding}:strict"}
    ended = subprocess.run([sys.executable, program], capture_output=True, check=False, timeout=60, env=environment, cwd=sh.directory)
    assert (ended.returncode, ended.stdout.decode(encoding)) == (0, f"before\n{shown}\nbehind\n"), ended.stderr


def test_large_output_is_kept_whole(sh: Shell) -> None:
    number = sh.submit("--", "sh", "-c", "seq 1 200000")
    sh.ok("wait", number)
    expected = "".join(f"{n}\n" for n in range(1, 200_001))
    assert sh.ok("logs", number).out == expected


# -- Ctrl-C -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_ctrl_c_once_sigterm_and_a_closed_terminal_detach_and_say_how_to_go_on(sh: Shell, by: signal.Signals) -> None:
    gate = sh.directory / sh.file("gate3", "")
    with sh.running("run", "--", "sh", "-c", f"echo begun; while [ -e {gate} ]; do sleep 0.05; done; echo done") as process:
        wait_line(process, "begun")
        process.send_signal(by)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 128 + by
    assert "rmgr logs -f " in err
    number = err.rpartition("rmgr cancel ")[2].strip()
    assert sh.ok("jobs", "--json", number).json["jobs"][0]["state"] == "RUNNING"
    gate.unlink()
    assert sh.ok("logs", "-f", number).out == "begun\ndone\n"


def test_sigterm_after_ctrl_c_is_no_second_one(sh: Shell) -> None:
    with sh.running("run", "--", "sh", "-c", "echo begun; sleep 600") as process:
        wait_line(process, "begun")
        interrupt(process)
        wait_line(process, "detached", stream="stderr")
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 128 + signal.SIGTERM
    number = err.rpartition("rmgr cancel ")[2].strip()
    assert sh.ok("jobs", "--json", number).json["jobs"][0]["state"] == "RUNNING"
    sh.ok("cancel", number)


def test_ctrl_c_twice_cancels(sh: Shell) -> None:
    with sh.running("run", "--", "sh", "-c", "echo begun; sleep 600") as process:
        wait_line(process, "begun")
        interrupt(process)
        wait_line(process, "detached", stream="stderr")
        interrupt(process)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 130
    number = err.split("cancelled ")[-1].strip()
    assert sh("wait", number).code == 130
    assert sh.ok("show", number, "--json").json["state"] == "CANCELLED"


# -- control ------------------------------------------------------------------------------------------------------------------


def test_hold_and_release(sh: Shell) -> None:
    number = sh.submit("--hold", "--", "echo", "freed")
    assert sh.ok("jobs", "--json", number).json["jobs"][0]["state"] == "HELD"
    assert sh.ok("hold", number, "--json").json == {
        "schema": "rmgr/1",
        "changed": [],
        "unchanged": [{"id": number, "why": "it is held already"}],
    }
    assert f"rmgr release {number}" in sh.ok("explain", number).out
    assert sh.ok("release", number, "--json").json["changed"] == [number]
    sh.ok("wait", number)
    assert sh.ok("release", number, "--json").json["unchanged"][0]["why"] == "it has ended COMPLETED"


def test_single_tasks_are_cancelled(sh: Shell) -> None:
    number = sh.submit("--array", "1-6%2", "--", "sh", "-c", 'test "$RMGR_ARRAY_INDEX" = 6 && exit 0; sleep 600')
    until("RUNNING", sh, "tasks", number)
    sh.ok("cancel", f"{number}_1-5")
    assert sh("wait", number).code == 130
    states = {task["index"]: task["state"] for task in sh.ok("tasks", number, "--json").json["tasks"]}
    assert states == {1: "CANCELLED", 2: "CANCELLED", 3: "CANCELLED", 4: "CANCELLED", 5: "CANCELLED", 6: "COMPLETED"}
    shown = sh.ok("show", f"{number}_6", "--json").json
    assert (shown["id"], shown["state"], shown["index"]) == (f"{number}_6", "COMPLETED", 6)
    told = sh.ok("explain", f"{number}_1").out
    assert told.startswith(f"{number}_1 is CANCELLED (USER_CANCEL)\n  ended: cancelled by its user")
    held = sh.submit("--hold", "--array", "1-2", "--", "true")
    sh.ok("cancel", f"{held}_2", "--reason", "not this one")
    assert sh.ok("explain", f"{held}_2").out == f"{held}_2 is CANCELLED (USER_CANCEL)\n  ended: cancelled: not this one; it never ran\n"
    sh.ok("cancel", held)


def test_dependencies_hold_work_back(sh: Shell) -> None:
    first = sh.submit("--hold", "--", "false")
    good, bad = sh.submit("--after", f"ok:{first}", "--", "true"), sh.submit("-d", f"fail:{first}", "--", "true")
    assert f"waits for ok:{first}" in sh.ok("explain", good).out
    sh.ok("release", first)
    assert sh("wait", first).code == 1
    assert sh("wait", good).code == 130
    sh.ok("wait", bad)
    assert "DEPENDENCY_FAILED" in sh.ok("show", good).out


def test_what_was_cancelled_before_it_ran_has_not_failed_for_its_followers(sh: Shell) -> None:
    first = sh.submit("--hold", "--array", "1-3", "--", "true")
    fails, runs = sh.submit("-d", f"fail:{first}", "--", "true"), sh.submit("-d", f"any:{first}", "--", "true")
    last = sh.submit("-d", f"fail:{fails}", "--", "true")
    sh.ok("cancel", first)
    assert (sh("wait", fails).code, sh("wait", last).code) == (130, 130)
    sh.ok("wait", runs)
    assert "cancelled before anything of it ran" in sh.ok("show", fails).out
    ran = sh.submit("--", "sleep", "600")
    until("RUNNING", sh, "tasks", ran)
    mends = sh.submit("-d", f"fail:{ran}", "--", "true")
    sh.ok("cancel", ran)
    sh.ok("wait", mends)


def test_tables_pages_and_filters(sh: Shell) -> None:
    number = sh.submit("-J", "paged", "--array", "0-9", "--", "sh", "-c", "exit $((RMGR_ARRAY_INDEX == 3))")
    assert sh("wait", number).code == 1
    page = sh.ok("tasks", number, "--json", "--limit", "4").json
    assert ([task["index"] for task in page["tasks"]], page["next"]) == ([0, 1, 2, 3], 4)
    last = sh.ok("tasks", number, "--json", "--cursor", "8").json
    assert ([task["index"] for task in last["tasks"]], last["next"]) == ([8, 9], None)
    assert "the list ends before --cursor 10" in sh.ok("tasks", number, "--cursor", "10").err
    worst = sh.ok("tasks", number, "--json", "--sort=-exit,-task", "--limit", "3").json
    assert ([task["index"] for task in worst["tasks"]], worst["next"]) == ([3, 9, 8], 3), "sorted, then cut"
    rest = sh.ok("tasks", number, "--sort=-exit,-task", "--cursor", "3", "-o", "task", "--no-header").out.split()
    assert rest == [f"{number}_{index}" for index in (7, 6, 5, 4, 2, 1, 0)]
    failed = sh.ok("tasks", number, "--state", "failed", "--no-header", "-o", "task,exit").out
    assert failed.split() == [f"{number}_3", "1"]
    found = sh.ok("jobs", "-a", "--name", "pag*", "-o", "jobid,name,state", "--no-header").out.split()
    assert found[-3:] == [number, "paged", "FAILED"]  # the newest
    history = sh.ok("history", number, "--json").json["history"]
    assert [(item["id"], item["state"], item["exit_code"]) for item in history] == [(number, "FAILED", 1)]


def test_of_several_ids_those_that_there_are_are_listed(sh: Shell) -> None:
    number = sh.submit("--", "true")
    sh.ok("wait", number)
    told = sh("jobs", number, "987654", "987653_2", "--json")
    assert told.code == 3
    assert [job["id"] for job in told.json["jobs"]] == [number]
    assert told.json["missing"] == ["987653", "987654"]
    assert told.err == "rmgr: not in memory: 987653, 987654; rmgr history 987653 987654\n"
    assert sh("jobs", number, "987654", "-o", "id", "--no-header").out == f"{number}\n"
    none = sh("jobs", "987654", "987653", "--json")
    assert (none.code, none.json["error"]["code"]) == (3, "NOT_FOUND")


def test_a_command_under_nohup_outlives_its_terminal(sh: Shell) -> None:
    gate = sh.directory / sh.file("gate4", "")
    work = f"echo begun; while [ -e {gate} ]; do sleep 0.05; done; echo done"
    with sh.running("run", "--", "sh", "-c", work, before=("nohup",)) as process:
        wait_line(process, "begun")
        process.send_signal(signal.SIGHUP)
        gate.unlink()
        out, _ = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "done\n")


def test_a_reader_that_goes_away_is_no_error(sh: Shell, tmp_path: Path) -> None:
    import subprocess
    import sys

    script = f"{sys.executable} -m rmgr.cli.main tasks last --limit 0 | head -n 1"
    ended = subprocess.run(["sh", "-c", script], capture_output=True, text=True, env=sh.environment, timeout=60, check=False)
    assert ended.stdout.startswith("TASK")
    assert ended.stderr == ""


def test_all_that_was_asked_for(sh: Shell) -> None:
    first = sh.submit("--hold", "--", "true")
    words = ["--array", "1-8%4", "--max-fails", "2", "--retries", "1", "--backoff", "5s", "-t", "1h", "--mem", "64M", "--account", "lab"]
    number = sh.submit(*words, "--priority", "3", "--after", f"any:{first}", "--", "true")
    try:
        told = sh.ok("show", number, "--json").json
        expected = {
            "time_limit": 3600.0, "cap": 4, "max_fails": 2, "retries": 1, "backoff": 5.0, "array": "1-8%4", "account": "lab", "priority": 3,
            "mem_bytes": 64 << 20, "after": [f"any:{first}"], "resubmit": True, "features": [], "nodes_asked": None,
        }  # fmt: skip
        assert {name: told[name] for name in expected} == expected
        shown = sh.ok("show", number).out
        for text in (
            "1 core, 64M",
            "at most 1h",
            "4 at once",
            "more than 2 failures",
            "1 retry",
            "back-off 5s",
            f"any:{first}",
            "lab",
        ):
            assert text in shown
        task = sh.ok("show", f"{number}_1", "--json").json
        assert {name: task[name] for name in ("time_limit", "retries", "cap", "after")} == {
            name: told[name] for name in ("time_limit", "retries", "cap", "after")
        }
    finally:
        sh.ok("cancel", first, number)


def test_what_a_placed_job_asked_for_stays_known_in_the_history(sh: Shell) -> None:
    words = ["-n", "2", "-N", "2", "-t", "5m", "--exclusive", "--exclude", "n3", "--no-requeue"]
    number = sh.submit(*words, "--", "true")
    assert sh("wait", number).code == 0
    expected = {"time_limit": 300.0, "nodes_asked": 2, "exclusive": True, "exclude": ["n3"], "resubmit": False, "processes": 2}
    told = sh.ok("show", number, "--json").json
    assert {name: told[name] for name in expected} == expected
    assert "on 2 nodes, alone on its nodes, not on n3, never again after a loss" in sh.ok("show", number).out
