"""Lists of jobs: the meaning of their keys, and the errors of wrong lists."""

from __future__ import annotations

import io
import json
from pathlib import Path
from types import SimpleNamespace

import click
import pytest

from rmgr.cli.session import Session
from rmgr.cli.submit.jobs_file import read_jobs
from rmgr.cli.submit.submit import submit
from rmgr.client.commands.sending import ListedJob, in_order
from rmgr.errors import UsageError
from rmgr.model.submission import Condition, Dependency


def read(path: Path, text: str, name: str = "jobs.toml") -> list[ListedJob]:
    file = path / name
    file.write_text(text)
    with submit.make_context("submit", ["--from", str(file)], obj=Session()) as ctx:
        return read_jobs(ctx, Session(), str(file))


def refused(path: Path, text: str, name: str = "jobs.toml") -> UsageError:
    with pytest.raises(UsageError) as caught:
        read(path, text, name)
    assert caught.value.hint
    assert name in caught.value.message
    return caught.value


def test_keys_are_the_long_options_with_either_dash(tmp_path: Path) -> None:
    first, second = read(
        tmp_path,
        """
        [defaults]
        cores = 2
        time-limit-is-not-a-key = 1
        """.replace("time-limit-is-not-a-key = 1", 'time = "15m"')
        + """
        [[job]]
        name = "a"
        command = ["./a", "x", 3]
        max-fails = 2
        array = "1-4%2"
        mem = "2G"
        env = { A = "1", B = 2 }
        resubmit = false
        features = ["gpu", "ssd"]
        [[job]]
        command = "one | two"
        cores = 1
        each_line = "names.txt"
        no_resubmit = true
        env = ["C=3"]
        hold = true
        processes = 4
        """,
    )
    options = first.request.options
    assert (options.name, options.cores, options.time_us, options.max_fails, options.array) == ("a", 2, 900_000_000, 2, "1-4%2")
    assert (options.memory_bytes, options.env, options.resubmit) == (2 << 30, (("A", "1"), ("B", "2")), False)
    assert options.features == ("gpu", "ssd")
    assert first.request.words == ("./a", "x", "3")
    other = second.request.options
    assert (other.name, other.cores, other.each_line, other.resubmit, other.hold) == ("one", 1, "names.txt", False, True)
    assert other.rigid is not None
    assert other.rigid.processes == 4
    assert second.request.words == ("/bin/sh", "-c", "one | two")


def test_json_lines_hold_the_same(tmp_path: Path) -> None:
    lines = [{"defaults": {"queue": "q"}}, {"name": "a", "command": ["true"]}, {"command": "true", "after": "a"}]
    entries = read(tmp_path, "\n\n".join(map(json.dumps, lines)), "jobs.jsonl")
    assert [entry.request.options.queue for entry in entries] == ["q", "q"]
    assert entries[1].needs == ((Condition.OK, 0),)


@pytest.mark.parametrize(("text", "places"), [('[[job]]\ncommand = "true"', 1), ('{"command": "true"}\n{"command": "true"}\n', 2)])
def test_standard_input_may_be_either(monkeypatch: pytest.MonkeyPatch, text: str, places: int) -> None:
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(text.encode())))
    with submit.make_context("submit", ["--from", "-"], obj=Session()) as ctx:
        assert len(read_jobs(ctx, Session(), "-")) == places


def test_dependencies_are_names_of_the_list_or_ids(tmp_path: Path) -> None:
    jobs = "".join(f'[[job]]\nname = "{name}"\ncommand = "true"\n' for name in ("prep", "x:y, z", "fail:9"))
    *_, last = read(tmp_path, jobs + '[[job]]\ncommand = "true"\nafter = ["any:prep,fail:12", 41, "x:y, z", "fail:9", "fail:x:y, z"]')
    assert last.needs == ((Condition.ANY, 0), (Condition.OK, 1), (Condition.OK, 2), (Condition.FAIL, 1))
    assert last.request.options.after == (
        Dependency(condition=Condition.FAIL, submission=12),
        Dependency(condition=Condition.OK, submission=41),
    )


def test_a_script_is_read_and_the_entry_wins_over_it(tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/sh\n#RMGR -c 3 --mem 1G\necho\n")
    (entry,) = read(tmp_path, f'[[job]]\nscript = "{script}"\nargs = ["x"]\ncores = 2\n')
    options = entry.request.options
    assert (options.name, options.cores, options.memory_bytes, entry.request.words) == ("job.sh", 2, 1 << 30, ("x",))


A = '[[job]]\nname = "a"\ncommand = "true"\n'


@pytest.mark.parametrize(
    ("text", "told", "hint"),
    [
        ("", "holds no job", "[[job]]"),
        ("[[job]\n", "is no TOML", "[[job]]"),
        ("[[jobs]]\ncommand = 'x'", "'jobs' stands for nothing", "[[job]]"),
        ("[job]\ncommand = 'x'", "no list of tables", "[[job]]"),
        (A + '[[job]]\nname = "b"\ncommand = "true"\ncorse = 2', "job 2, line 4 (b): key corse: there is no such option", "mean 'cores'?"),
        (A + "cpus = 2", "key cpus: there is no such option", "here it is cores"),
        (A + "cpus-per-task = 2", "key cpus_per_task: there is no such option", "here it is cores"),
        (A + "cores = true", "job 1, line 1 (a): key cores: True is neither", "cores ="),
        (A + "cores = 0", "job 1, line 1 (a): key cores: 0 is not in the range", "--cores"),
        (A + 'mem = "much"', "(a): key mem: ", ""),
        (A + 'hold = "yes"', "(a): key hold: 'yes' is neither true nor false", "hold = true"),
        (A + "wait = true", "(a): key wait: that is said of the whole list", "--wait"),
        (A + 'token = "x"', "(a): key token: that is said of the whole list", "--token"),
        (A + "max-fails = 1\nmax_fails = 1", "(a): key max_fails: it stands there twice", "drop"),
        (A + 'stdin = "-"', "(a): key stdin", "file"),
        (A + 'args = ["x"]', "(a): key args: only a script", "command"),
        (A + 'script = "job.sh"', "(a): it has both", "command"),
        (A + "retries = 1\nresubmit = false", "(a): --no-resubmit", "drop"),
        (A + 'after = ["b"]', "(a): key after: no job of this list has the name 'b'", "ids of others"),
        (A + A + '[[job]]\ncommand = "true"\nafter = "a"', "2 jobs have the name 'a'", "name of its own"),
        (A + 'after = ["a"]', "jobs wait for each other: a -> a", "drop"),
        (A + 'after = "b"\n[[job]]\nname = "b"\ncommand = "true"\nafter = "any:a"', "jobs wait for each other: a -> b -> a", "drop"),
        ('[[job]]\nname = "x"', "(x): key command: there is nothing to run", "command ="),
        ("[[job]]\ncommand = []", "key command: [] is no command", "command ="),
        ('[defaults]\nname = "x"\n' + A, "[defaults]: key name", "by itself"),
    ],
)
def test_what_is_wrong_is_told_with_its_place_and_what_to_write(tmp_path: Path, text: str, told: str, hint: str) -> None:
    error = refused(tmp_path, text)
    assert told in error.message
    assert hint in error.hint


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"command": "true"}\n{', "line 2 is no JSON"),
        ("\n[1]\n", "line 2 is no object"),
        ('{"command": "true"}\n\n{"name": "b", "cores": 1}', "line 3 (b): key command"),
    ],
)
def test_json_lines_are_told_by_their_line(tmp_path: Path, text: str, told: str) -> None:
    assert told in refused(tmp_path, text, "jobs.jsonl").message


@pytest.mark.parametrize(
    ("text", "hint"), [('[{"command": "x"},\n {"command": "y"}]', "jq -c '.[]' "), ('{"name": "x",\n "command": "y"}', "jq -c . ")]
)
def test_json_over_several_lines_is_told_how_it_becomes_lines(tmp_path: Path, text: str, hint: str) -> None:
    error = refused(tmp_path, text, "jobs.jsonl")
    assert "line 1 is no JSON" in error.message
    assert hint in error.hint


def test_all_options_of_submit_that_are_of_one_job_are_keys(tmp_path: Path) -> None:
    of_the_list = {"from", "token", "dry_run", "wait", "watch", "progress", "parsable", "ignore_sbatch", "ignore_pbs", "after"}
    everyones = {"zk", "store", "gateway", "config", "json", "timeout", "verbose", "help"}
    for option in submit.params:
        if isinstance(option, click.Option):
            names = {word[2:].replace("-", "_") for word in (*option.opts, *option.secondary_opts) if word.startswith("--")}
            for name in names - of_the_list - everyones:
                value = "true" if option.is_flag else "[{}]"
                told = ""
                try:
                    read(tmp_path, A + f"{name} = {value}" if name != "name" else A)
                except UsageError as error:
                    told = error.message
                assert "no such option" not in told, name
                assert "whole list" not in told, name


def test_what_needs_nobody_goes_first(tmp_path: Path) -> None:
    needs = {"a": ["b"], "b": ["c"], "c": [], "d": ["c"]}
    jobs = "".join(f'[[job]]\nname = "{name}"\ncommand = "true"\nafter = {json.dumps(after)}\n' for name, after in needs.items())
    assert list(in_order(read(tmp_path, jobs))) == [2, 1, 3, 0]


def test_notes_are_made_once_for_a_whole_list(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "jobs.jsonl"
    path.write_text(
        '{"command": ["x"], "time": 90}\n{"command": ["y"], "time": "90"}\n{"command": ["z"], "time": "90s"}\n'
        '{"command": "echo $SLURM_JOB_ID", "slurm_env": true}\n{"command": "echo $SLURM_JOB_ID"}\n{"command": "echo $SLURM_NTASKS"}\n'
    )
    with submit.make_context("submit", ["--from", str(path)], obj=Session()) as ctx:
        jobs = read_jobs(ctx, Session(), str(path))
    assert [job.request.options.slurm_env for job in jobs] == [False, False, False, True, False, False]
    err = capsys.readouterr().err
    assert err.count("-t 90 is 90 seconds") == 1
    assert err.count("which nothing sets") == 1
    assert "line 5: it reads SLURM_JOB_ID" in " ".join(err.split())
