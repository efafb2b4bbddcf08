"""The source keeps the rules of the house: layers, purity, names, one adapter for each foreign library, generated files up to date."""

from __future__ import annotations

import ast
import gc
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.places import ROOT

PACKAGE = ROOT / "rmgr"
STUBS = PACKAGE / "v1"
TREES = ("rmgr", "tests", "deploy", "proto", ".ci")
PURE = ("model", "sched", "coord")

#: Modules that a pure layer never imports.
CLOCKS_AND_CHANCE = {"random", "sched", "secrets", "time", "uuid"}
FILES_AND_NETWORK = {
    "ctypes", "fcntl", "glob", "http", "io", "os", "pathlib", "select", "selectors", "shutil", "socket", "sqlite3", "tempfile", "urllib"
}
PROCESSES_AND_THREADS = {"asyncio", "multiprocessing", "psutil", "queue", "signal", "subprocess", "sys", "threading"}
LOGS = {"logging", "structlog"}
IMPURE_MODULES = CLOCKS_AND_CHANCE | FILES_AND_NETWORK | PROCESSES_AND_THREADS | LOGS
IMPURE_CALLS = frozenset({"open", "print", "input", "exec", "eval", "breakpoint"})
IMPURE_METHODS = frozenset({"now", "utcnow", "today"})  # of datetime and date

FORBIDDEN_NAMES = frozenset({"utils.py", "util.py", "helpers.py", "helper.py", "common.py", "misc.py", "manager.py"})
TOP_LEVEL = frozenset({"rmgr", "proto", "deploy", "tests", "docker-compose.yml", "pyproject.toml", "LICENSE"}) | {
    "README.md", "SECURITY.md", "CONTRIBUTING.md", "CHANGELOG.md"
}

#: The files that may import a foreign library.
OWNERS = {
    "kazoo": ("adapters/zookeeper/client.py",),
    "cassandra": ("adapters/cassandra/driver.py",),
    "matplotlib": ("sim/plots/__init__.py", "sim/plots/canvas.py"),
}

#: Names of child znodes; a path literal begins with one of these or with a constant of `coord/protocol/paths.py`.
PATH_SEGMENTS = ("/gate", "/tail", "/done", "/failed", "/pending", "/held")


def files(*suffixes: str, trees: tuple[str, ...] = TREES) -> list[Path]:
    """Returns every file of the project with one of these suffixes ("": without a suffix), or every file if none is given; no caches."""
    found = [p for tree in trees for p in (ROOT / tree).rglob("*") if p.is_file()]
    found += [p for p in ROOT.iterdir() if p.is_file() and not p.name.startswith(".git")]
    return sorted(p for p in found if "__pycache__" not in p.parts and (not suffixes or p.suffix in suffixes))


def sources() -> list[Path]:
    """Returns the package's modules without generated stubs."""
    return [p for p in sorted(PACKAGE.rglob("*.py")) if STUBS not in p.parents]


def pure_sources() -> list[Path]:
    return [p for p in sources() if p.relative_to(PACKAGE).parts[0] in PURE]


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


@pytest.fixture(scope="module", autouse=True)
def trees() -> Iterator[None]:
    """Turns garbage collection off while syntax trees are cached: they are millions of objects without cycles, and searching them costs
    more than all tests of a file. Then drops the trees, so that the worker's later tests do not pay either.
    """
    gc.disable()
    yield
    tree_of.cache_clear()
    gc.enable()


def shown(path: Path, line: int | None = None) -> str:
    return f"{path.relative_to(ROOT)}" + (f":{line}" if line else "")


@cache
def imports_of(path: Path) -> tuple[tuple[str, int], ...]:
    """Returns (dotted module, line) of every import statement, at any depth."""
    found: list[tuple[str, int]] = []
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            found += [(module, node.lineno), *((f"{module}.{alias.name}", node.lineno) for alias in node.names)]
    return tuple(found)


def literals_of(path: Path) -> Iterator[tuple[str, int]]:
    """Yields (text, line) of every string literal and literal piece of an f-string, except docstrings."""
    docstrings = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            docstrings.add(id(node.value))
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value, node.lineno


def tool(*words: str) -> str | None:
    """Runs a Python tool in the project's root; returns its output if it fails, else None."""
    ended = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, timeout=500, check=False)
    return None if ended.returncode == 0 else f"{ended.stdout}{ended.stderr}"


# -- tools -----------------------------------------------------------------------------------------------------------------


def test_every_layer_imports_only_lower_ones() -> None:
    complaint = tool("-c", "from importlinter.cli import lint_imports_command; lint_imports_command()", "--no-cache")
    assert complaint is None, complaint


def test_ruff_finds_nothing() -> None:
    complaint = tool("-m", "ruff", "check", "--no-cache", "--output-format", "concise", ".")
    assert complaint is None, complaint


def test_mypy_strict_finds_nothing_in_the_package_and_the_harness_calls_nothing_wrongly() -> None:
    # To write a cache takes a quarter of the time, and the checkout of a continuous integration is used once.
    cache = ["--cache-dir", os.devnull] if os.environ.get("CI") == "true" else []
    complaint = tool("-m", "mypy", *cache)
    assert complaint is None, complaint


# -- files -----------------------------------------------------------------------------------------------------------------


def test_no_two_files_of_tests_have_one_name() -> None:
    names = [path.name for path in (ROOT / "tests").rglob("*.py") if path.name != "conftest.py"]
    assert sorted(name for name in set(names) if names.count(name) > 1) == [], "pytest imports them by that name"


def test_no_file_is_named_after_nothing() -> None:
    assert [shown(p) for p in files(".py") if p.name in FORBIDDEN_NAMES] == []


def test_the_top_level_is_as_the_design_lists_it() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    if listed.returncode != 0:  # not a checkout but an unpacked archive, which holds only committed files
        return
    names = {line.split("/")[0] for line in listed.stdout.splitlines()}
    assert set() == {n for n in names if not n.startswith(".")} - TOP_LEVEL


def test_nothing_names_a_path_or_a_package_index_of_one_machine() -> None:
    # The brackets keep the pattern from matching itself.
    machine = re.compile(
        r"/(?:wor[k]|farm|roo[t]|tmp/setu[p])/|(?:index|find)[-_](?:ur[l]|link[s])|pypi\.or[g]|maven\.or[g]|pythonhoste[d]"
    )
    found = []
    for path in files():
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError:
            continue
        found += [shown(path, n) for n, line in enumerate(lines, 1) if machine.search(line)]
    assert found == []


def test_the_version_stands_in_few_places() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    number = re.compile(rf"(?<![\d.]){re.escape(version)}(?![\d.])")
    held = {"pyproject.toml", "rmgr/model/version.py", "CHANGELOG.md", "deploy/Dockerfile"}  # compared in tests/unit/documents
    found = [
        shown(p) for p in files(".py", ".md", ".sh", ".yml", ".toml", "") if shown(p) not in held and number.search(p.read_text("utf-8"))
    ]
    assert found == []


def test_every_shell_script_parses() -> None:
    scripts = [p for p in files() if p.suffix == ".sh" or (not p.suffix and p.read_bytes()[:40].startswith(b"#!/usr/bin/env bash"))]
    assert scripts
    for script in scripts:
        parsed = subprocess.run(["bash", "-n", str(script)], capture_output=True, text=True, timeout=120, check=False)
        assert parsed.returncode == 0, parsed.stderr
    if linter := shutil.which("shellcheck"):  # not every machine has it
        linted = subprocess.run([linter, "-x", *map(str, scripts)], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
        assert linted.returncode == 0, linted.stdout


def test_the_scripts_that_people_start_are_executable() -> None:
    started = [ROOT / name for name in ("deploy/quickstart.sh", "tests/run.sh", ".ci/run")]
    assert [shown(p) for p in started if not (p.stat().st_mode & 0o111)] == []


# -- purity ----------------------------------------------------------------------------------------------------------------


def test_pure_code_imports_no_clock_no_chance_and_no_io() -> None:
    found = [
        f"{shown(p, line)} imports {name}" for p in pure_sources() for name, line in imports_of(p) if name.split(".")[0] in IMPURE_MODULES
    ]
    assert found == []


def test_pure_code_calls_no_clock_and_does_no_io() -> None:
    found = []
    for path in pure_sources():
        for node in ast.walk(tree_of(path)):
            if not isinstance(node, ast.Call):
                continue
            if isinstance(node.func, ast.Name) and node.func.id in IMPURE_CALLS:
                found.append(f"{shown(path, node.lineno)} calls {node.func.id}()")
            elif isinstance(node.func, ast.Attribute) and node.func.attr in IMPURE_METHODS:
                owner = node.func.value.attr if isinstance(node.func.value, ast.Attribute) else getattr(node.func.value, "id", "")
                if owner in {"datetime", "date"}:
                    found.append(f"{shown(path, node.lineno)} reads the clock")
    assert found == []


def test_pure_code_keeps_no_state_of_its_own() -> None:
    found = [shown(p, n.lineno) for p in pure_sources() for n in ast.walk(tree_of(p)) if isinstance(n, ast.Global)]
    assert found == []


# -- one place -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("library", sorted(OWNERS))
def test_a_foreign_library_is_imported_by_its_adapter_only(library: str) -> None:
    allowed = {PACKAGE / name for name in OWNERS[library]}
    found = [shown(p, line) for p in sources() if p not in allowed for name, line in imports_of(p) if name.split(".")[0] == library]
    assert sorted(set(found)) == []


def test_generated_stubs_are_imported_by_the_rpc_adapters_only() -> None:
    ends = {PACKAGE / "client" / "calls.py", *(PACKAGE / "daemons" / "gateway" / name for name in ("calls.py", "rows.py"))}  # as they come
    ends.add(PACKAGE / "adapters" / "terminals.py")
    found = {
        shown(p, line)
        for p in sources()
        if p not in ends and p.parent not in {PACKAGE / "adapters" / room for room in ("access", "calls", "rpc", "gateway")}
        for name, line in imports_of(p)
        if name.startswith("rmgr.v1") or name.endswith(("_pb2", "_pb2_grpc"))
    }
    assert set() == found


def test_znode_paths_are_spelt_in_one_file() -> None:
    from rmgr.coord.protocol import paths

    roots = [v for k, v in vars(paths).items() if k.isupper() and isinstance(v, str) and v.startswith("/")]
    starts = (*roots, *PATH_SEGMENTS)
    begins = re.compile(f"(?:{'|'.join(map(re.escape, starts))})(?:/|$)")
    some = [p for p in sources() if p != Path(paths.__file__) and any(start in p.read_text(encoding="utf-8") for start in starts)]
    found = [f"{shown(p, line)} {text!r}" for p in some for text, line in literals_of(p) if begins.match(text)]
    assert found == []


# -- generated -------------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="grpcio-tools for the oldest protobuf is not made for this Python")
def test_the_committed_stubs_are_what_the_contracts_generate(tmp_path: Path) -> None:
    script = ["bash", str(ROOT / "deploy" / "gen_protos.sh"), str(tmp_path)]
    generated = subprocess.run(
        script, env={**os.environ, "PYTHON": sys.executable}, capture_output=True, text=True, timeout=120, check=False
    )
    assert generated.returncode == 0, generated.stderr
    made = {p.name: p.read_text("utf-8") for p in (tmp_path / "rmgr" / "v1").glob("*.py*")}
    kept = {p.name: p.read_text("utf-8") for p in STUBS.glob("*.py*")}
    assert sorted(made) == sorted(kept)
    assert [name for name in made if made[name] != kept[name]] == [], "run deploy/gen_protos.sh"
