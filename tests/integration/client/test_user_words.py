"""Error messages name the cause, the task and the next command, with the promised exit code."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

from rmgr import TaskQueue
from rmgr.client.connection import Connection
from rmgr.dev.cluster import DevCluster
from rmgr.errors import ConfigError, TaskFailed, WrongCluster
from tests.harness.ended_sessions import LONG_S
from tests.integration.commands import Shell, wait_line


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--zk", "host:99999", "jobs"], "option --zk: zk = 'host:99999' is not valid: 'host:99999' is not HOST or HOST:PORT: ports are 1"),
        (["--zk", "host:x", "jobs"], "option --zk: zk = 'host:x' is not valid: 'host:x' is not HOST or HOST:PORT"),
        (["--zk", "h1:2181,,h2", "jobs"], "is not HOST or HOST:PORT"),
        (["--store", "mysql:foo", "jobs"], "'mysql:foo' is not the URL of a store"),
        (["submit", "-t", "12:99:00", "--", "true"], "minutes and seconds go to 59"),
        (["submit", "-a", "1-99999999999", "--", "true"], "99999999999 is larger than"),
        (["submit", "--gpus", "1", "--", "true"], "no node can ever run this: it needs 1 core, 1 gpu"),
        (["submit", "-N", "3", "-n", "2", "--", "true"], "-N 3 nodes are more than -n 2 processes"),
        (["submit", "--no-resubmit", "--requeue", "--", "true"], "contradict each other"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_happens(sh: Shell, words: list[str], told: str) -> None:
    ended = sh(*words)
    assert (ended.code, ended.out) == (2, "")
    assert told in ended.err


def test_a_bad_value_in_a_file_is_told_with_file_and_line(sh: Shell) -> None:
    sh.file("bad.toml", "[cluster]\n\nsession_timeout_s = 'x'\n")
    ended = sh("--config", "bad.toml", "jobs")
    assert ended.code == 2
    assert "bad.toml:3: session_timeout_s = 'x' is not valid" in ended.err
    assert "durations look like" in ended.err


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["submit", "--wait", "--", "./absent"], 127, "no such program: ./absent"),
        (["submit", "--wait", "--cwd", "/absent/directory", "--", "pwd"], 126, "the work directory /absent/directory cannot be used"),
        (["run", "-t", "200ms", "--", "sleep", "30"], 124, "(TIME_LIMIT): over its limit of 200ms\n      next: rmgr rerun "),
        (["run", "--", "sh", "-c", "kill -SEGV $$"], 139, "killed by SIGSEGV"),
        (["run", "--", "sh", "-c", "sh -c 'kill -SEGV $$'; exit $?"], 139, "with exit code 139 (128 + SIGSEGV) (EXIT_CODE)\n"),
        (["submit", "--wait", "--output", "user/absent=f", "--", "true"], 1, "was not written"),
    ],
)
def test_how_work_failed_is_told(sh: Shell, words: list[str], code: int, told: str) -> None:
    ended = sh(*words)
    assert ended.code == code, ended
    assert told in ended.err
    assert "next: rmgr" in ended.err


def test_a_program_that_cannot_start_is_not_told_to_have_no_output(sh: Shell) -> None:
    assert "no output" not in sh("submit", "--wait", "--", "./absent").err
    sh("submit", "--wait", "--cwd", "/absent/directory", "--", "pwd")
    assert re.search(r"next: rmgr rerun \d+ --cwd DIR\n", sh.ok("explain", "last").out)
    sh("submit", "--wait", "-o", "/absent/directory/x", "--", "pwd")
    assert re.search(r"next: rmgr rerun \d+ -o FILE\n", sh.ok("explain", "last").out)


def _raises(number: int) -> None:
    raise (KeyError if number % 2 else ValueError)(f"bad {number}")


def _crashes() -> None:
    import ctypes

    ctypes.string_at(0)


def test_calls_that_raised_are_told_by_type_each_with_its_traceback(sh: Shell, connection: Connection) -> None:
    with TaskQueue(_raises, connection=connection) as queue:
        futures = [queue.submit_call(number) for number in range(5)]
        assert all(future.exception(60) for future in futures)
        number = queue.name.rpartition("-")[2].lstrip("0")
    told = sh.ok("explain", number).out
    assert "3 of 5 tasks: ValueError" in told
    assert "2 of 5 tasks: KeyError" in told
    assert f"next: rmgr explain {number}_0\n" in told
    one = sh.ok("explain", f"{number}_1").out
    assert "    | Traceback (most recent call last):\n    |   File " in one
    assert "in _raises\n" in one
    assert "    | KeyError: 'bad 1'\n" in one
    [group] = sh.ok("explain", f"{number}_1", "--json").json["failures"]
    assert (group["error"], group["traceback"][-1]) == ("KeyError: 'bad 1'",) * 2


def test_a_call_that_crashed_is_told_with_its_innermost_place(sh: Shell, connection: Connection) -> None:
    with TaskQueue(_crashes, connection=connection) as queue:
        error = queue.submit_call().exception(60)
    assert isinstance(error, TaskFailed)
    assert error.message.endswith("SIGNAL (killed by SIGSEGV)")
    assert error.hint == f"rmgr logs {error.task_id}"
    assert error.log_tail.startswith("Fatal Python error: Segmentation fault\n")
    told = sh.ok("explain", error.task_id).out
    assert "failed: killed by SIGSEGV on n" in told
    assert "| Fatal Python error: Segmentation fault: File " in told
    assert "in string_at\n" in told


def test_nobody_is_sent_to_a_log_that_is_empty(connection: Connection) -> None:
    with TaskQueue(os._exit, connection=connection) as queue:
        error = queue.submit_call(7).exception(60)
    assert isinstance(error, TaskFailed)
    assert error.hint == f"rmgr explain {error.task_id}"


def test_a_dependency_that_cannot_be_met_any_more_is_told_with_its_cause(sh: Shell) -> None:
    failed = sh.submit("--", "false")
    assert sh("wait", failed).code == 1
    ended = sh("submit", "--wait", "--after", f"ok:{failed}", "--", "true")
    assert ended.code == 130
    assert f"CANCELLED (DEPENDENCY_FAILED): ok:{failed}: submission {failed} ended FAILED" in ended.err
    told = sh.ok("explain", "last").out
    assert told.startswith(f"{int(failed) + 1} is CANCELLED")
    assert "; it never ran" in told
    assert "rmgr logs" not in told


def test_a_wait_says_what_it_waits_for(sh: Shell) -> None:
    held = sh.submit("--hold", "--", "true")
    try:
        for words in (["wait", held], ["wait", held, "--progress"]):
            with sh.running(*words) as waits:
                wait_line(waits, f"{held} waits: held by its user; rmgr release {held} lets it go on", stream="stderr")
            assert sh(*words, "--timeout", "1").code == 6
    finally:
        sh.ok("cancel", held)


def test_an_open_task_queue_says_that_it_is_open(sh: Shell, connection: Connection) -> None:
    with TaskQueue(len, connection=connection) as queue:
        assert queue.submit_call(b"abc").result(timeout=60) == 3
        said = sh.ok("explain", str(queue.id)).out
        assert "its only task has ended; its TaskQueue is still open for more" in said
        assert f"rmgr cancel {queue.id}" in said


def test_output_over_the_cap_is_told(zookeeper_parts: None, tmp_path: Path) -> None:
    environment = {"RMGR_STARTER_LOG_CAP_BYTES": "1M"}
    with DevCluster(
        tmp_path / "dev", nodes=1, cores=1, watchdogs=1, heap_mb=128, environment=environment, secured=True, session_timeout_s=LONG_S
    ) as cluster:
        sh = Shell(tmp_path / "home", cluster.environment())
        ended = sh("run", "--", "sh", "-c", "head -c 8000000 /dev/zero | tr '\\0' x; echo; echo the end")
        assert ended.code == 0
        assert ended.out.endswith("\nthe end\n")
        assert "wrote more to stdout than is kept (1.0M)" in ended.err
        assert "bytes from the middle of it are missing" in ended.err
        kept = sh.ok("logs", "last").out
        assert len(kept) < 2_200_000
        assert "bytes of output dropped here, the limit is 1048576" in kept
        # The same directory as a cluster of another kind: refused before anything starts, and named.
        cluster.stop()
        for other, is_said in (
            (DevCluster(cluster.directory, zookeepers=3, secured=True), "has 1 ZooKeeper server, not 3"),
            (DevCluster(cluster.directory, secured=False), "is secured"),
            (DevCluster(cluster.directory, store="cassandra", secured=True), "keeps its values in sqlite"),
        ):
            with pytest.raises(ConfigError, match=is_said):
                other.start()
            assert not other.state.is_running
        # The same directory with the data store emptied: ZooKeeper remembers that the cluster has used one, and nothing starts.
        kept = {path: path.read_bytes() for path in cluster.directory.glob("store.db*") if path.is_file()}
        for path in kept:
            path.unlink()
        again = DevCluster(cluster.directory, nodes=1, cores=1, watchdogs=1, heap_mb=128, secured=True)
        with pytest.raises(WrongCluster) as refused:
            again.start()
        assert "the data store is empty, but cluster" in refused.value.message
        assert "\n" not in refused.value.message
        assert f"rm -r {cluster.directory}" in refused.value.hint
        assert not again.state.is_running
        for path, data in kept.items():
            path.write_bytes(data)
        # The same directory with ZooKeeper's data wiped: the store remembers the cluster, and nothing starts.
        shutil.rmtree(cluster.directory / "zookeeper")
        again = DevCluster(cluster.directory, nodes=1, cores=1, watchdogs=1, heap_mb=128, secured=True)
        with pytest.raises(WrongCluster) as refused:
            again.start()
        assert "there is no cluster in ZooKeeper, but cluster" in refused.value.message
        assert "\n" not in refused.value.message
        assert f"rm -r {cluster.directory}" in refused.value.hint
        assert not again.state.is_running


@pytest.mark.parametrize("words", [["jobs", "-q", "nope"], ["cancel", "--queue", "nope"], ["wait", "--queue", "nope"]])
def test_a_filter_by_a_queue_that_is_not_there_is_told(sh: Shell, words: list[str]) -> None:
    ended = sh(*words)
    assert ended.code == 3, ended
    assert "there is no queue 'nope'" in ended.err
    assert "queues: batch, default" in ended.err
