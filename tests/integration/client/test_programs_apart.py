"""Programs, and objects of calls, never affect each other; names that a program rebinds reach its later calls."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import rmgr
from tests.places import ROOT

if TYPE_CHECKING:
    from rmgr.client.connection import Connection
    from rmgr.dev.cluster import DevCluster

#: More calls than the cluster has cores, long enough that each slot has one.
_CALLS = 12
_STAINS = """
import builtins, decimal, locale, os, random, resource, signal, sys, threading, time, types, warnings
import rmgr
def work(_):
    time.sleep(0.15)
    os.environ["STAIN"] = os.environ["PATH"] = "stain"
    os.environ.pop("HOME", None)
    os.umask(0o077)
    os.chdir("/")
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, lambda *_: os._exit(1))
    signal.alarm(60)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    locale.setlocale(locale.LC_ALL, "C")
    sys.path.insert(0, "/stain")
    sys.modules["stain"] = sys.modules["json"] = types.ModuleType("stain")
    builtins.stain = open = 1
    random.seed(7)
    warnings.simplefilter("error")
    decimal.getcontext().prec = 3
    sys.setrecursionlimit(100)
    sys.stdout.close()
    sys.excepthook = print
    threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()
    return os.getpid()
with rmgr.Executor(output="log") as executor:
    print(len(set(list(executor.map(work, range(12))))))
"""
_LOOKS = """
import builtins, decimal, json, locale, os, random, resource, signal, sys, threading, time, warnings
import rmgr
def work(_):
    time.sleep(0.15)
    umask = os.umask(0); os.umask(umask)
    return json.dumps({
        "environ": [os.environ.get(name) for name in ("STAIN", "PATH", "HOME")], "umask": umask,
        "here": os.path.basename(os.getcwd()), "usr1": str(signal.getsignal(signal.SIGUSR1)), "alarm": signal.alarm(0),
        "files": resource.getrlimit(resource.RLIMIT_NOFILE), "locale": locale.setlocale(locale.LC_ALL), "path": [p for p in sys.path],
        "modules": "stain" in sys.modules, "builtins": hasattr(builtins, "stain"), "filters": len(warnings.filters),
        "prec": decimal.getcontext().prec, "recursion": sys.getrecursionlimit(), "threads": threading.active_count(),
        "hook": sys.excepthook is print, "hash": hash("word")})
with rmgr.Executor(output="log") as executor:
    print(json.dumps(sorted(set(list(executor.map(work, range(12)))))))
"""


def run(text: str, directory: Path) -> str:
    (directory / "main.py").write_text(textwrap.dedent(text))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    words = [sys.executable, "main.py"]
    done = subprocess.run(words, cwd=directory, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def test_nothing_that_a_program_does_to_its_workers_reaches_the_next_one(live: DevCluster, tmp_path: Path) -> None:
    before = run(_LOOKS, tmp_path)
    assert len(json.loads(before)) == 1, f"workers differ among each other: {before}"
    assert int(run(_STAINS, tmp_path)) > 1
    assert run(_LOOKS, tmp_path) == before


def test_a_module_that_was_edited_between_two_programs_runs_as_it_is_now(live: DevCluster, tmp_path: Path) -> None:
    text = f"""
        import rmgr, helper
        def work(n):
            return helper.version()
        with rmgr.Executor(output="log") as executor:
            print(set(executor.map(work, range({_CALLS}))))
            print({{executor.submit(helper.version).result() for _ in range({_CALLS})}})
    """
    (tmp_path / "helper.py").write_text("def version():\n    return 1\n")
    assert run(text, tmp_path).split() == ["{1}", "{1}"]
    (tmp_path / "helper.py").write_text("def version():\n    return 2222\n")
    assert run(text, tmp_path).split() == ["{2222}", "{2222}"]


def test_a_module_that_a_program_has_edited_and_loaded_again_runs_in_its_next_executor(live: DevCluster, tmp_path: Path) -> None:
    text = f"""
        import importlib, os, pathlib, rmgr, helper
        def seen():
            with rmgr.Executor(output="log") as executor:
                return set(executor.map(helper.version, range({_CALLS})))
        print(seen())
        pathlib.Path("helper.py").write_text("def version(_):\\n    return 2222\\n")
        importlib.reload(helper)
        print(seen())
    """
    (tmp_path / "helper.py").write_text("def version(_):\n    return 1\n")
    assert run(text, tmp_path).split() == ["{1}", "{2222}"]


def test_what_is_bound_anew_is_seen_by_calls_that_are_submitted_later(live: DevCluster, tmp_path: Path) -> None:
    text = """
        import rmgr
        x = 1
        def helper():
            return x
        def ask(_=None):
            return helper()
        with rmgr.Executor(output="log") as executor:
            seen = [executor.submit(ask).result()]
            x = 2
            seen += [executor.submit(ask).result(), *executor.map(ask, range(2))]
        with rmgr.TaskQueue(ask) as queue:
            seen.append(queue.submit_call().result())
            x = 3
            seen += [queue.submit_call().result(), *(future.result() for future in queue.map(None, range(2)))]
            def helper():
                return x * 10
            seen.append(queue.submit_call().result())
        print(seen)
    """
    assert run(text, tmp_path).strip() == str([1, 2, 2, 2, 2, 3, 3, 3, 30])


def test_calls_from_inside_of_a_task_belong_to_its_program(live: DevCluster, tmp_path: Path) -> None:
    text = """
        import rmgr
        from rmgr.runner import program
        table = None
        class Point:
            def __init__(self, n):
                self.n = n
        def fill():
            global table
            table = {"k": 1}
        def inner(point):
            return type(point) is Point, table, program.mine().number, Point(point.n + 1)
        def outer(n):
            fill()
            with rmgr.Executor(output="log") as executor:
                return executor.submit(inner, Point(n)).result()
        with rmgr.Executor(output="log") as executor:
            same, seen, number, point = executor.submit(outer, 3).result()
            print(same, seen, number == program.mine().number, type(point) is Point, point.n, table)
    """
    assert run(text, tmp_path).strip() == "True {'k': 1} True True 4 None"


def test_ranks_have_the_programs_main_too(live: DevCluster, tmp_path: Path) -> None:
    text = """
        import rmgr
        class Point:
            pass
        def work():
            return Point(), hash("word")
        def one():
            return hash("word")
        with rmgr.TaskQueue(work, processes=2) as queue:
            point, number = queue.submit_call().result()
        with rmgr.Executor(output="log") as executor:
            print(type(point) is Point, executor.submit(one).result() == number)
    """
    assert run(text, tmp_path).strip() == "True True"


def _pid(_: Any = None) -> int:
    return os.getpid()


def test_within_one_program_executors_share_workers(connection: Connection) -> None:
    pids = set()
    for _ in range(8):
        with rmgr.Executor(1, connection=connection, output="log") as executor:
            pids.add(executor.submit(_pid).result(60))
    assert len(pids) <= 6, "each Executor got a worker of its own"


@pytest.mark.parametrize("name", ["PYTHONHASHSEED", "RMGR_SPAWNER_PYTHONHASHSEED", "RMGR_SPAWNER_PYTHONPATH"])
def test_work_does_not_see_how_its_spawner_was_started(connection: Connection, name: str) -> None:
    with rmgr.Executor(connection=connection, output="log") as executor:
        assert executor.submit(os.environ.get, name).result(60) is None


@pytest.mark.parametrize("mask", [0o077, 0o002, 0o022])
def test_the_submitters_umask_holds_for_its_work(live: DevCluster, tmp_path: Path, mask: int) -> None:
    """Commands, their ranks, Python calls; also with several processes."""
    text = f"""
        import os, subprocess, sys, rmgr
        os.umask({mask})
        def mine():
            found = os.umask(0)
            os.umask(found)
            return found
        with rmgr.Executor(output="log") as executor:
            print(executor.submit(mine).result())
        with rmgr.TaskQueue(mine, processes=2) as queue:
            print(queue.submit_call().result())
        shell = [sys.executable, "-m", "rmgr.cli.main", "submit", "--wait", "--"]
        print(int(subprocess.run([*shell, "sh", "-c", "umask"], capture_output=True, text=True, check=True).stdout.split()[-1], 8))
        ranks = [*shell[:-1], "-q", "batch", "-N", "2", "--", sys.executable, "-m", "rmgr.cli.main", "run", "sh", "-c", "umask"]
        shown = subprocess.run(ranks, capture_output=True, text=True, check=True).stdout.split()
        print(*{{int(word, 8) for word in shown if len(word) == 4}}, len(shown))
        subprocess.run([*shell[:-1], "--out", {str(tmp_path / "out")!r}, "--", "true"], check=True, capture_output=True)
        print(0o666 & ~os.stat({str(tmp_path / "out")!r}).st_mode & 0o777)
    """
    assert run(text, tmp_path).split() == [str(mask)] * 4 + ["2", str(mask & 0o666)]
