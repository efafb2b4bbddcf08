"""Ordinary programs print the same with `ProcessPoolExecutor` and with rmgr."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.harness.programs import PROGRAMS
from tests.places import ROOT

if TYPE_CHECKING:
    from rmgr.dev.cluster import DevCluster

#: Where the pool comes from: the one line that differs.
_POOL = """
import sys
def pool(workers=2, output="log", **options):
    if "home" in sys.argv:
        import concurrent.futures, multiprocessing
        return concurrent.futures.ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("fork"), **options)
    import rmgr
    return rmgr.Executor(workers, output=output, **options)
"""
_PYTEST = """
import sys
def test_it(capsys):
    main()
    with capsys.disabled():
        print(capsys.readouterr().out)
"""


def ended(words: list[str], directory: Path, given: str | None = None, *, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    """How it ends, and what it has written. path: where it finds modules of its own."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*([str(path)] if path is not None else []), str(ROOT)])}
    return subprocess.run(words, cwd=directory, env=environment, capture_output=True, text=True, timeout=120, check=False, input=given)


def run(words: list[str], directory: Path, given: str | None = None, *, path: Path | None = None) -> str:
    """What it prints. path: where it finds modules of its own."""
    done = ended(words, directory, given, path=path)
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def program(name: str) -> str:
    return _POOL + textwrap.dedent(PROGRAMS[name])


#: `tests/unit/runner/test_program.py` runs all of them, with a worker alone.
_SOME = [
    "initializer",
    "initializer that makes a name",
    "class attributes",
    "pool in a call",
    "processes and threads in calls",
    "wrappers",
    "exceptions of the program",
    "one worker keeps its globals",
    "pools one after the other",
    "pools side by side",
    "a fresh callable a call",
    "subclasses that register",
    "metaclasses that remember",
]


@pytest.mark.parametrize("name", _SOME)
def test_a_program_prints_what_it_prints_at_home(live: DevCluster, tmp_path: Path, name: str) -> None:
    (tmp_path / "main.py").write_text(program(name))
    at_home = run([sys.executable, "main.py", "home"], tmp_path)
    assert at_home.strip(), "it prints nothing"
    assert run([sys.executable, "main.py"], tmp_path) == at_home


@pytest.mark.parametrize("way", ["module", "text", "pytest", "importlib", "interactive"])
def test_however_it_is_started(live: DevCluster, tmp_path: Path, way: str) -> None:
    text = program("everything")
    (tmp_path / "main.py").write_text(text)
    at_home = run([sys.executable, "main.py", "home"], tmp_path)
    if way == "module":
        (tmp_path / "package").mkdir()
        (tmp_path / "package" / "__init__.py").write_text("")
        (tmp_path / "package" / "main.py").write_text(text)
        found = run([sys.executable, "-m", "package.main"], tmp_path)
    elif way == "text":
        found = run([sys.executable, "-c", text], tmp_path)
    elif way == "interactive":
        found = run([sys.executable, "-i", "-q"], tmp_path, f"exec(compile({text!r}, '<cell>', 'exec'))\n")
    else:
        (tmp_path / "test_main.py").write_text(text + _PYTEST)
        words = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            f"--import-mode={'importlib' if way == 'importlib' else 'prepend'}",
        ]
        found = run([*words, "test_main.py"], tmp_path)
    assert at_home.strip() in found


def test_calls_of_a_call_go_to_workers_with_its_values(live: DevCluster, tmp_path: Path) -> None:
    text = """
        import rmgr
        from rmgr.client.specs import python_environment
        items = [1]
        def use():
            return len(items), python_environment().worker_group
        if __name__ == "__main__":
            for n in range(2):
                with rmgr.Executor(1) as executor:
                    count, group = executor.submit(use).result()
                    print(count, group == python_environment().worker_group, group != "")
                items.append(2)
    """
    (tmp_path / "main.py").write_text(textwrap.dedent(text))
    assert run([sys.executable, "main.py"], tmp_path).splitlines() == ["1 True False", "2 True True"]


def test_a_registered_function_brings_its_values_as_they_were_then(live: DevCluster, tmp_path: Path) -> None:
    text = """
        import rmgr
        items = [1]
        def use():
            return len(items)
        if __name__ == "__main__":
            id = rmgr.connect().register(use)
            told = []
            for n in range(2):
                with rmgr.Executor(1) as executor:
                    told.append(executor.submit(use).result())
                with rmgr.TaskQueue(id) as queue:
                    told.append(queue.submit_call().result())
                items.append(2)
            print(told)
    """
    (tmp_path / "main.py").write_text(textwrap.dedent(text))
    assert run([sys.executable, "main.py"], tmp_path).strip() == "[1, 1, 2, 1]"


_WARNS = """
import warnings
class Mine(UserWarning):
    pass
def warn(what):
    try:
        warnings.warn(f"told of {what}", Mine if what == "mine" else UserWarning)
        warnings.warn("outdated", DeprecationWarning)
    except Warning as error:
        return f"raised {error}"
    return what
if __name__ == "__main__":
    warnings.filterwarnings("ignore", message="TOLD of this")
    warnings.filterwarnings("error", category=Mine)
    for _ in range(2):
        with pool(1, output="echo") as executor:
            print([executor.submit(warn, what).result() for what in ("this", "mine", "that")])
"""


@pytest.mark.parametrize("options", [[], ["-W", "error:told of that"]])
def test_what_a_program_ignores_is_not_shown_and_what_is_an_error_for_it_is_one(
    live: DevCluster, tmp_path: Path, options: list[str]
) -> None:
    """Filters of warnings are the program's, as in forked workers: those of `-W` too, and of a class of its own."""
    (tmp_path / "main.py").write_text(_POOL + _WARNS)
    told = []
    for words in (["home"], []):
        done = ended([sys.executable, *options, "main.py", *words], tmp_path)
        assert done.returncode == 0, done.stderr
        told.append((done.stdout, sorted(set(done.stderr.splitlines()))))
    assert told[0] == told[1]
    assert "raised told of mine" in told[0][0]
    assert ("raised told of that" in told[0][0]) == bool(options)


_SETS = """
import csv, decimal, io, locale, logging, socket, sys
import numpy as np
class Coloured(logging.Formatter):
    pass
log = logging.getLogger("app.part")
def depth(n):
    return 0 if n == 0 else 1 + depth(n - 1)
def use(n):
    log.info("part of %d", n)
    logging.getLogger("app").debug("too small")
    logging.getLogger("quiet").warning("not told")
    logging.getLogger("alone").debug("told alone")
    rows = [len(row[0]) for row in csv.reader(io.StringIO("x" * 200_000))]
    try:
        found = np.array([1.0]) / np.array([0.0])
    except FloatingPointError as error:
        found = str(error)
    digits = decimal.Decimal(1) / decimal.Decimal(7), len(str(10**5000)), str(np.array([1.23456]))
    return depth(3000), digits, rows, found, socket.getdefaulttimeout(), locale.setlocale(locale.LC_ALL), log.isEnabledFor(20)
if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="{levelname} of {name}: {message}", style="{")
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(Coloured("%(colour)s %(message)s"))
    alone, quiet = logging.getLogger("alone"), logging.getLogger("quiet")
    alone.addHandler(handler)
    alone.setLevel(logging.DEBUG)
    alone.propagate, quiet.disabled = False, True
    sys.setrecursionlimit(5000)
    sys.set_int_max_str_digits(6000)
    decimal.getcontext().prec = 50
    decimal.getcontext().traps[decimal.Inexact] = False
    csv.field_size_limit(10**6)
    socket.setdefaulttimeout(7.5)
    locale.setlocale(locale.LC_ALL, "C.UTF-8")
    np.seterr(divide="raise")
    np.set_printoptions(precision=2)
    with pool(1, output="echo") as executor:
        print(executor.submit(use, 1).result())
"""


def test_what_a_program_sets_of_its_interpreter_holds_in_calls(live: DevCluster, tmp_path: Path) -> None:
    """As in forked workers; a handler that has a formatter of the program's own class is the usual one."""
    (tmp_path / "main.py").write_text(_POOL + _SETS)
    home, here = (ended([sys.executable, "main.py", *words], tmp_path) for words in (["home"], []))
    assert (home.returncode, here.returncode) == (0, 0), here.stderr
    assert here.stdout.splitlines() == ["DEBUG:alone:told alone", *home.stdout.splitlines()[-1:]]
    assert here.stderr.splitlines() == ["INFO of app.part: part of 1"]
    assert home.stderr.splitlines()[0] == here.stderr.splitlines()[0]


def test_a_name_that_did_not_travel_says_why_when_it_is_missed(live: DevCluster, tmp_path: Path) -> None:
    text = """
        import ssl, rmgr
        secure = ssl.create_default_context()
        class Client:
            def plain(self):
                return "plain"
            def use(self):
                return secure.verify_mode
        def ask(client, method):
            return getattr(client, method)()
        with rmgr.Executor(1) as executor:
            print(executor.submit(ask, Client(), "plain").result())
            executor.submit(ask, Client(), "use").result()
    """
    (tmp_path / "main.py").write_text(textwrap.dedent(text))
    done = ended([sys.executable, "main.py"], tmp_path)
    assert (done.returncode, done.stdout) == (1, "plain\n")
    assert done.stderr.splitlines()[-3:] == [
        "NameError: name 'secure' is not defined",
        "secure, a SSLContext of __main__, cannot be pickled: TypeError: cannot pickle 'SSLContext' object",
        "hint: make it in the function, or in an initializer of an Executor: it cannot travel",
    ]


def test_a_global_that_no_process_can_read_is_named(live: DevCluster, tmp_path: Path) -> None:
    text = """
        import rmgr
        class Odd:
            def __reduce__(self):
                return int, ("odd",)
        good, odd = [1], Odd()
        def use():
            return len(good), type(odd)
        with rmgr.Executor(1) as executor:
            executor.submit(use).result()
    """
    (tmp_path / "main.py").write_text(textwrap.dedent(text))
    done = ended([sys.executable, "main.py"], tmp_path)
    told, which, hint = done.stderr.splitlines()[-3:]
    assert done.returncode == 1
    assert told.startswith("definitions of the program that the call needs could not be read, those of ")
    assert {"good", "odd"} <= set(told.rpartition(" of ")[2].split(", "))
    why = "ValueError: invalid literal for int() with base 10: 'odd'"
    assert which == f"odd, a Odd of __main__, can be pickled, and not be read again: {why}"
    assert hint == "hint: make it in the function, or in an initializer of an Executor: it cannot travel"


@pytest.mark.parametrize("call", ["executor.submit(square, 3)", "executor.map(square, [3])", "rmgr.TaskQueue(square).submit_call(3)"])
def test_a_module_that_calls_its_own_function_when_it_is_imported_is_told_so(live: DevCluster, tmp_path: Path, call: str) -> None:
    """The node imports it to run the call, and would make the call too, and so on."""
    (tmp_path / "again.py").write_text(
        textwrap.dedent(f"""
            import rmgr
            def square(x):
                return x * x
            print("imported", flush=True)
            executor = rmgr.Executor(1)
            future = {call}
            print(next(future) if hasattr(future, "__next__") else future.result(60))
        """)
    )
    done = ended([sys.executable, "-c", "import again"], tmp_path)
    assert done.returncode == 1
    assert "importing the module again calls again.square on the cluster" in done.stderr.splitlines()[-2]
    assert done.stdout.count("imported") <= 3, "here, and on one node, which tries once more to read the function"


EXAMPLES = ROOT / "deploy" / "examples"
#: Words of each example, and a pattern of what it prints that does not change from run to run.
_EXAMPLES = {
    "sweep": (["--columns", "10", "--rows", "4", "--iterations", "200"], r"^[·░▒▓█ .:=%@]{10}$"),
    "fragments": (["--cutoff", "4"], r"^(?:internal|Coulomb|Lennard-Jones|total) .*$"),
    "eigen": (["--points", "6", "--cells", "12"], r"^All eigenvalues .*$"),
}


@pytest.mark.parametrize("name", _EXAMPLES)
def test_examples_say_the_same_however_they_are_started(live: DevCluster, tmp_path: Path, name: str) -> None:
    words, pattern = _EXAMPLES[name]
    path = EXAMPLES / f"{name}.py"
    by_path = f"import runpy, sys; sys.argv = [{str(path)!r}, *sys.argv[1:]]; runpy.run_path({str(path)!r}, run_name='__main__')"
    (tmp_path / "test_example.py").write_text(
        f"import {name}\ndef test_it(monkeypatch, capsys):\n    monkeypatch.setattr('sys.argv', {['x', *words]!r})\n"
        f"    assert {name}.main() in (None, 0)\n    with capsys.disabled():\n        print()\n        print(capsys.readouterr().out)\n"
    )
    ways = {
        "script": [str(path), *words],
        "module": ["-m", name, *words],
        "text": ["-c", by_path, *words],
        "pytest": ["-m", "pytest", "-q", "-p", "no:cacheprovider", "test_example.py"],
    }
    serial = re.findall(pattern, run([sys.executable, str(path), "--serial", *words], tmp_path), re.MULTILINE)
    assert serial
    for way, argv in ways.items():
        found = run([sys.executable, *argv], tmp_path, path=EXAMPLES)
        assert re.findall(pattern, found, re.MULTILINE) == serial, way
