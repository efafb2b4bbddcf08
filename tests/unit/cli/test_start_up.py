"""What a command line loads: time that everybody pays for each command."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.places import ROOT

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
