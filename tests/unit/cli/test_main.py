"""The plumbing of commands: their help, imports and loads, global options anywhere, errors and exit codes."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from rmgr import errors
from rmgr.cli import daemons, main
from rmgr.cli.main import SECTIONS
from rmgr.cli.session import Session, command
from rmgr.cli.session.commands import GlobalOption
from rmgr.cli.session.errors import in_time
from rmgr.errors import DeadlineExceeded, Unavailable
from tests.places import ROOT


def commands(group: click.Group, path: str = "rmgr") -> Iterator[tuple[str, click.Command]]:
    """Every command with its path, groups included."""
    ctx = click.Context(group)
    for name in group.list_commands(ctx):
        found = group.get_command(ctx, name)
        assert found is not None
        yield f"{path} {name}", found
        if isinstance(found, click.Group):
            yield from commands(found, f"{path} {name}")


ALL = dict(commands(main.cli))


@pytest.mark.parametrize("path", sorted(ALL))
def test_every_command_has_help_with_examples_and_the_global_options(path: str) -> None:
    made = ALL[path]
    assert (made.help or "").strip()
    assert "Examples:" in (made.epilog or "")
    assert path.split()[1] in (made.epilog or "")
    names = {option for parameter in made.params if isinstance(parameter, GlobalOption) for option in parameter.opts}
    assert {"--zk", "--store", "--gateway", "--config", "--json", "--timeout", "-v"} <= names
    text = made.get_help(click.Context(made, info_name=path))
    assert "--json" in text


@pytest.mark.parametrize("width", [60, 80])
@pytest.mark.parametrize("path", ["rmgr", *sorted(ALL)])
def test_help_fits_a_terminal_except_for_what_is_typed(monkeypatch: pytest.MonkeyPatch, path: str, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    made = ALL[path] if path != "rmgr" else main.cli
    text = made.get_help(click.Context(made, info_name=path))
    typed = re.compile(r" *(Usage:|rmgr |id=|printf |[A-Z_]+=|\{|echo |--kind )")
    assert [line for line in text.splitlines() if len(line) > width and not typed.match(line)] == []


def run(*words: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = main.run(words)
    told = capsys.readouterr()
    return code, told.out, told.err


def test_no_arguments_print_help(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run("--help", capsys=capsys)
    assert code == 0
    for section in main.SECTIONS:
        assert f"{section}:" in out
    assert "Exit codes:" in out
    assert run(capsys=capsys) == (0, out, "")
    code, out, _ = run("config", capsys=capsys)
    assert (code, "apply" in out) == (0, True)


def test_help_imports_nothing_heavy() -> None:
    program = (
        "import sys; from rmgr.cli import main; code = main.run(['--help']);"
        "heavy = {'kazoo', 'grpc', 'rich', 'psutil', 'msgspec', 'structlog', 'cloudpickle', 'sqlite3'} & set(sys.modules);"
        "print(sorted(heavy), file=sys.stderr); sys.exit(code)"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stderr == "[]\n"


def test_global_options_stand_before_and_after_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (("--json", "version"), ("version", "--json")):
        code, out, _ = run(*words, capsys=capsys)
        assert code == 0
        assert set(json.loads(out)) == {"schema", "version", "python", "protocol"}


@pytest.mark.parametrize(
    ("words", "told", "hint"),
    [
        (("versio",), "no command 'versio'", "rmgr version"),
        (("sbatch", "x"), "no command 'sbatch'", "rmgr submit"),
        (("config", "aply"), "no command 'aply' below rmgr config", "rmgr config apply"),
        (("completion", "basj"), "no shell 'basj'", "'bash'"),
        (("version", "--timeout", "x"), "--timeout: 'x' is not a duration", "1h30m"),
        (("version", "--jsn"), "--jsn", "rmgr version --help"),
        (("show",), "ID", "as in: rmgr show 42   (rmgr show --help)"),
        (("sim", "run", "x.swf"), "--policy", "as in: rmgr sim run KTH-SP2-1996-2.1-cln.swf.gz --policy easy   (rmgr sim run --help)"),
        (("completion", "tcsh"), "no shell 'tcsh'", "known: bash, fish, zsh"),
        (("jobs", "--states", "R"), "--states", "-s STATE"),
    ],
)
def test_usage_errors_name_what_and_what_to_type(words: tuple[str, ...], told: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(*words, capsys=capsys)
    assert (code, out) == (2, "")
    assert told in err
    assert hint in err
    code, out, err = run(*words, "--json", capsys=capsys)
    assert (code, err) == (2, "")
    document = json.loads(out)
    assert document["error"]["code"] == "USAGE"
    assert told in document["error"]["message"]
    assert hint in document["error"]["hint"]


@pytest.mark.parametrize(
    ("words", "told", "hint"),
    [
        (("submit", "--nice=100", "--", "true"), "--nice", ": --priority=-100"),
        (("run", "--nice", "--", "true"), "--nice", "--priority=-N (larger is earlier here"),
        (("submit", "--gpus=a100:2", "--", "true"), "'a100:2'", "--gpus=2 --features=a100"),
        (("submit", "-G", "a100:2", "--", "true"), "-G", "--gpus=2 --features=a100"),
        (("submit", "--exclusive=user", "--", "true"), "--exclusive", "for this job alone"),
        (("submit", "--requeue=expedited", "--", "true"), "--requeue", "--requeue alone"),
        (("submit", "--dependency=singleton", "--", "true"), "--dependency", "--after=any:ID"),
        (("submit", "-d", "singleton", "--", "true"), "one name", "--after=any:ID"),
        (("submit", "-d", "afternotok:7", "--", "true"), "before it began", "--after=fail:7"),
        (("submit", "--dependency=afterok:7?afterany:8", "--", "true"), "--dependency", "all must be met"),
        (("submit", "-N", "2-4", "--", "true"), "'2-4'", "here it is -N 2"),
        (("submit", "--export=ALL", "--", "true"), "--export", "--env=NAME for each"),
        (("submit", "--export=A,B=1", "--", "true"), "--export", ": --env=A --env=B=1"),
        (("submit", "--export=NONE", "--", "true"), "--export", "leave it out"),
        (("submit", "--signal=USR1@60", "--", "true"), "--signal", "SIGTERM"),
        (("submit", "--mail-type=END", "--", "true"), "--mail-type", "no mail is sent"),
        (("submit", "-m", "abe", "--", "true"), "-m", "no mail is sent"),
        (("submit", "-m", "block", "--", "true"), "-m", "spread evenly"),
        (("submit", "-W", "block=true", "--", "true"), "-W", "here it is --wait"),
        (("submit", "-Wdepend=afterok:7", "--", "true"), "-W", "here it is --after=ok:7"),
        (("submit", "-W", "depend=beforeok:7", "--", "true"), "-W", "submit that one later"),
        (("submit", "-W", "umask=022", "--", "true"), "-W", "--env=RMGR_UMASK=0022"),
        (("submit", "-W", "--", "true"), "-W", "here it is --wait"),
        (("submit", "-l", "walltime=1:00:00", "--", "true"), "-l", "here it is --time=1:00:00"),
        (("submit", "-l", "--", "true"), "-l", "-t TIME (walltime)"),
        (("submit", "-l", "select=2:ncpus=4:mem=8gb", "--", "true"), "-l", "--processes=2 --cores=4 --mem=8G"),
        (("submit", "-lcput=60", "--", "true"), "-l", "--time limits"),
        (("submit", "-j", "oe", "--", "true"), "-j", "rmgr logs"),
        (("submit", "-r", "n", "--", "true"), "-r", "here it is --no-requeue"),
        (("submit", "-N", "myjob", "--", "true"), "-N", "here it is --name=myjob"),
        (("submit", "-S", "/bin/bash", "--", "true"), "-S", "first line"),
        (("submit", "-P", "chem", "--", "true"), "-P", "--account"),
        (("submit", "--deadline=noon", "--", "true"), "--deadline", "--time limits"),
        (("submit", "-q", "q", "--licenses", "a:2", "--", "true"), "--licenses", "--resource=NAME=2"),
        (("submit", "--cores", "x", "--", "true"), "--cores", "rmgr submit --help"),  # no option of theirs
        (("submit", "--xyz", "--", "x", "--nice=1"), "--xyz", "rmgr submit --help"),
    ],
)
def test_options_of_others_are_answered_with_what_their_values_are_here(
    words: tuple[str, ...], told: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(*words, capsys=capsys)
    assert (code, out) == (2, "")
    assert told in err
    assert hint in err


@pytest.mark.parametrize(
    ("error", "code", "exit_code"),
    [
        (errors.UsageError("x"), "USAGE", 2),
        (errors.ConfigError("x"), "USAGE", 2),
        (errors.Infeasible("x" * 100_000), "INFEASIBLE", 2),
        (errors.NotFound("x"), "NOT_FOUND", 3),
        (errors.PermissionDenied("x"), "PERMISSION", 4),
        (errors.NotConnected("x"), "UNAVAILABLE", 5),
        (errors.StoreUnavailable("x"), "UNAVAILABLE", 5),
        (errors.DeadlineExceeded("x"), "UNAVAILABLE", 6),
        (errors.QueueFull("x"), "RESOURCE_EXHAUSTED", 7),
        (errors.ValueTooLarge("x"), "RESOURCE_EXHAUSTED", 7),
        (errors.SubmitUnknown("x", token="t0"), "UNKNOWN_OUTCOME", 8),
        (errors.KeyExists("x"), "CONFLICT", 1),
        (ValueError("x"), "INTERNAL", 1),
        (OSError(36, "File name too long", "x"), "USAGE", 2),
        (UnicodeEncodeError("utf-8", "echo \udcff", 5, 6, "surrogates not allowed"), "USAGE", 2),
    ],
)
def test_errors_have_their_code_and_exit_code(
    error: Exception, code: str, exit_code: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    @command("fail", examples="fail")
    def fail(_session: Session) -> None:
        """Fails."""
        raise error

    monkeypatch.setitem(main.COMMANDS, "fail", ("", ""))
    monkeypatch.setattr(type(main.cli), "get_command", lambda *_: fail)
    got, out, err = run("fail", "--json", capsys=capsys)
    assert (got, err) == (exit_code, "")
    assert json.loads(out)["error"]["code"] == code
    got, out, err = run("fail", capsys=capsys)
    assert (got, out) == (exit_code, "")
    assert err.startswith("rmgr: ")
    assert len(err) < 3000
    if isinstance(error, errors.SubmitUnknown):
        assert "--token t0" in err


@pytest.mark.parametrize(("raised", "code"), [(KeyboardInterrupt(), 130), (BrokenPipeError(), 141), (SystemExit(9), 9)])
def test_ends_that_are_no_errors(
    raised: BaseException, code: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    @command("fail", examples="fail")
    def fail(_session: Session) -> None:
        """Ends."""
        raise raised

    monkeypatch.setitem(main.COMMANDS, "fail", ("", ""))
    monkeypatch.setattr(type(main.cli), "get_command", lambda *_: fail)
    got, out, err = run("fail", capsys=capsys)
    assert (got, out) == (code, "")
    assert "Traceback" not in err


@pytest.mark.parametrize(("closed", "told"), [(">&-", b""), ("2>&- <&-", b"there"), ("", b"gr\xf6\xdfe ?")])
def test_closed_streams_and_other_encodings_end_no_command(closed: str, told: bytes) -> None:
    """Cron and some schedulers close streams; a name that latin-1 lacks once ended the table of everybody's jobs."""
    script = "from rmgr.cli import main; main.run = lambda _: print('there gr\\xf6\\xdfe \\u540d', flush=True) or 7; main.main([])"
    line = ["sh", "-c", f'exec "$0" -c "$1" {closed}', sys.executable, script]
    ended = subprocess.run(line, stdout=subprocess.PIPE, timeout=60, check=False, env=os.environ | {"PYTHONIOENCODING": "latin-1"})
    assert (ended.returncode, told in ended.stdout, bool(ended.stdout)) == (7, True, bool(told))


@pytest.mark.parametrize("names", ["stdout", "stderr", "stdout, sys.stderr"])
def test_readers_that_are_gone_are_told_by_one_exit_code(names: str) -> None:
    """Python itself would try to write the rest once more, and end with 120."""
    lines = (
        "import os, sys; from rmgr.cli.session import errors; there, here = os.pipe(); os.close(there)",
        f"for stream in (sys.{names},): os.dup2(here, stream.fileno()); stream.write('unread')",
        "sys.exit(errors.flush(0))",
    )
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    ended = subprocess.run([sys.executable, "-c", "\n".join(lines)], env=environ, timeout=60, check=False, capture_output=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (141, b"", b"")


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("as_json", [False, True])
def test_a_full_disk_behind_stdout_hides_no_id(unbuffered: str, as_json: bool) -> None:
    script = """if True:
        import sys; from rmgr.cli import main; from rmgr.cli.session import errors
        def run(_):
            try:
                with errors.told_anyway("submitted job 42"):
                    print("Submitted job 42")
            except OSError as error:
                return errors.report(error, as_json=bool(sys.argv[1:]))
        main.run = run; main.main([])"""
    environ = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    with Path("/dev/full").open("w") as full:
        line = [sys.executable, "-c", script, *["json"] * as_json]
        ended = subprocess.run(line, stdout=full, stderr=subprocess.PIPE, env=environ, timeout=60, check=False, text=True)
    assert ended.returncode == 1
    assert ended.stderr == "rmgr: submitted job 42\nrmgr: the output could not be written: No space left on device\n"


def test_a_json_word_of_the_work_is_not_ours() -> None:
    assert main.asked_for_json(["submit", "--json", "--", "x"])
    assert not main.asked_for_json(["submit", "--", "x", "--json"])


def test_nothing_configured_says_rmgr_dev(bare_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run("jobs", capsys=capsys)
    assert code == 5
    assert "rmgr dev" in err
    code, _, err = run("report", capsys=capsys)
    assert (code, "no cluster is configured" in err, "rmgr dev" in err) == (5, True, True)
    code, _, err = run("jobs", "--zk", "127.0.0.1:1/x", "--timeout", "3", capsys=capsys)
    assert (code, "is it running? its address comes from --zk" in err) == (6, True)
    (bare_home / ".rmgr").mkdir()
    (bare_home / ".rmgr" / "dev.toml").write_text(f'[dev]\npids = [{os.getpid()}]\ndirectory = "/x"\n\n[cluster]\nzk = "127.0.0.1:1/x"\n')
    code, _, err = run("jobs", "--timeout", "3", capsys=capsys)
    assert (code, "it is that of your rmgr dev: rmgr dev status tells" in err) == (6, True)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run("completion", shell, capsys=capsys)
    assert code == 0
    assert "_RMGR_COMPLETE" in out


def test_completion_offers_commands_and_options(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("_RMGR_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_CWORD", "1")
    monkeypatch.setenv("COMP_WORDS", "rmgr su")
    assert run(capsys=capsys)[1].split() == ["plain,submit", "plain,submitter"]
    monkeypatch.setenv("COMP_CWORD", "2")
    monkeypatch.setenv("COMP_WORDS", "rmgr submit --pri")
    assert run(capsys=capsys)[1].split() == ["plain,--priority"]


def test_a_wait_that_ran_out_names_what_goes_on() -> None:
    for followed, told in (([42, 43], "rmgr wait 42 43"), ([], "a longer --timeout")):
        with pytest.raises(errors.DeadlineExceeded) as caught:
            Session(timeout_s=0.0, followed=followed).left_s()
        assert told in caught.value.hint


@pytest.mark.parametrize("words", [("submit", "--", "true"), ("run", "--", "true"), ("submit", "--from", "jobs.toml"), ("rerun", "7")])
def test_what_submits_says_at_its_timeout_that_nothing_was_submitted(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bare_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "jobs.toml").write_text('[[job]]\ncommand = ["true"]\n')
    code, _, err = run(words[0], "--zk", "127.0.0.1:1/x", "--timeout", "0.2", *words[1:], capsys=capsys)
    assert (code, "not done within 200ms (--timeout), nothing was submitted" in err) == (6, True)


def test_ctrl_c_while_modules_are_imported_prints_no_traceback() -> None:
    """Unless somebody has it ignored (nohup, a script's `&`), and never in programs that are not `rmgr`."""
    script = (
        "import signal, sys; from signal import SIGINT; sys.argv = [{name!r}]; signal.signal(SIGINT, signal.{before}); import rmgr.cli\n"
        "told = [signal.getsignal(SIGINT)]; from rmgr.cli import main\n"
        "main.nothing_is_left = lambda: False; main.run = lambda _: told.append(signal.getsignal(SIGINT)) or 0\n"
        "try: main.main([])\nfinally: sys.exit(0 if told == [signal.{during}, signal.{after}] else 9)"
    )
    for name, *handlers in (
        ("/usr/bin/rmgr", "default_int_handler", "SIG_DFL", "default_int_handler"),
        ("/usr/bin/rmgr", "SIG_IGN", "SIG_IGN", "SIG_IGN"),
        ("pytest", "default_int_handler", "default_int_handler", "default_int_handler"),
    ):
        words = dict(zip(("before", "during", "after"), handlers, strict=True))
        ended = subprocess.run([sys.executable, "-c", script.format(name=name, **words)], timeout=60, check=False)
        assert ended.returncode == 0, (name, handlers)


def test_help_is_grouped_and_as_wide_as_the_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    _, narrow, _ = run("submit", "--help", capsys=capsys)
    monkeypatch.setenv("COLUMNS", "140")
    _, wide, _ = run("submit", "--help", capsys=capsys)
    titles = [line for line in narrow.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert titles[:5] == ["What it needs:", "When it starts, and how often:", "Files and output:", "Checkpoints:", "Submitting:"]
    options = narrow.partition("Examples:")[0].splitlines()
    assert max(map(len, options)) <= 80 < max(map(len, wide.partition("Examples:")[0].splitlines()))


#: Third-party libraries, and parts of the standard library that cost as much as one.
COSTLY = {
    *("kazoo", "grpc", "google", "cassandra", "rich", "cryptography", "structlog", "prometheus_client", "psutil", "cloudpickle", "numpy"),
    *("asyncio", "sqlite3", "ssl", "tarfile", "tempfile", "importlib.metadata", "multiprocessing", "email", "http"),
}
_PROGRAM = "import json, sys; from rmgr.cli.main import run; code = run(sys.argv[1:]); sys.stderr.write(json.dumps([code, *sys.modules]))"


def loaded(*words: str) -> set[str]:
    """Modules after a command line has run, without those that Python itself loads here."""
    ended = subprocess.run([sys.executable, "-c", _PROGRAM, *words], capture_output=True, text=True, cwd=ROOT, timeout=60, check=True)
    code, *modules = json.loads(ended.stderr.splitlines()[-1])
    assert code == 0, ended
    return set(modules)


@pytest.mark.parametrize(
    "words", [["--help"], ["submit", "--help"], ["status", "--help"], ["jobs", "--help"], ["completion", "bash"]], ids=" ".join
)
def test_help_loads_nothing_that_talks_to_a_cluster(words: list[str]) -> None:
    assert COSTLY & loaded(*words) == set()


def test_the_version_is_told_by_little_more_than_the_parser() -> None:
    assert (COSTLY | {"msgspec", "difflib", "pathlib", "traceback", "rmgr.cli.display.render"}) & loaded("--version") == set()


def test_what_asks_a_daemon_by_grpc_loads_no_log() -> None:
    program = "import json, sys, rmgr.adapters.rpc.services; print(json.dumps([*sys.modules]))"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, timeout=60, check=True)
    assert {"structlog", "rich"} & set(json.loads(ended.stdout)) == set()


def started(module: str) -> set[str]:
    """Modules after one of them was imported, as a program that has the standard library alone does it."""
    program = f"import json, sys; sys.path.insert(0, {str(ROOT)!r}); import {module}; print(json.dumps([*sys.modules]))"
    ended = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, timeout=60, check=True)
    return set(json.loads(ended.stdout))


#: Compressors, OpenSSL, paths: 2 MiB of memory and 8 ms of a start.
_OTHERS = {"bz2", "hashlib", "lzma", "pathlib", "secrets", "shlex", "shutil", "urllib", "zlib"}


def test_a_spawner_loads_nothing_that_its_workers_do_without() -> None:
    """Each slot has one, and each worker is a fork of it."""
    theirs = {"rmgr.runner.host.home", "rmgr.runner.python.rank_call", "rmgr.runner.ranks.ranks", "subprocess"}
    assert ((COSTLY - {"cloudpickle"}) | theirs | _OTHERS) & started("rmgr.runner.spawner") == set()


def test_ranks_start_with_little_of_the_standard_library() -> None:
    """`rmgr run` in a job's script, and what starts ranks on its nodes: `dataclasses` alone is 9 ms, since it reads source."""
    for module in ("rmgr.runner.ranks.client", "rmgr.runner.ranks.ranks"):
        assert (COSTLY | _OTHERS | {"dataclasses", "inspect"}) & started(module) == set()


@pytest.mark.parametrize("role", sorted(SECTIONS["Daemons"]))
def test_the_module_of_each_daemon_can_be_run(role: str) -> None:
    assert callable(importlib.import_module(daemons.MODULES[role]).run)


@pytest.mark.parametrize("waited", ["1.5s", "900ms", "1m30s"])
def test_an_outage_until_the_timeout_is_over_is_told_with_one_time(waited: str) -> None:
    outage = Unavailable(f"no gateway answers at h1:7 within {waited}: nothing listens there", hint="start one")
    for undone, more in (("", ""), ("nothing was submitted", ", nothing was submitted")):
        told = in_time(outage, Session(timeout_s=2.0, started=time.monotonic() - 2.0, undone=undone))
        assert isinstance(told, DeadlineExceeded)
        assert told.message == f"not done within 2s (--timeout){more}: no gateway answers at h1:7: nothing listens there"
        assert told.hint == "start one"
