"""rmgr installed from a checkout is complete: it writes nothing there, and no command needs the checkout again."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from rmgr.dev import cassandra
from tests.places import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
BACKEND = PROJECT["build-system"]["build-backend"]
DEADLINE_S = 120.0


@pytest.fixture(scope="module", autouse=True)
def backend() -> None:
    """What builds rmgr: here, so that the tests need no package index."""
    try:
        importlib.import_module(BACKEND)
    except ModuleNotFoundError:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(f"{BACKEND} is missing: pip install '.[test]'")


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A private checkout that cannot be written."""
    made = tmp_path_factory.mktemp("checkout")
    for name in ("rmgr", "deploy", "proto", "tests"):
        shutil.copytree(ROOT / name, made / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE", "SECURITY.md", "docker-compose.yml"):
        shutil.copy(ROOT / name, made)
    for path in (made, *made.rglob("*")):
        path.chmod(0o500 if path.is_dir() else 0o400)
    yield made
    for path in (made, *made.rglob("*")):
        path.chmod(0o700)


def files(top: Path) -> set[str]:
    return {str(path.relative_to(top)) for path in top.rglob("*") if "__pycache__" not in path.parts}


def python(*words: str, environ: Mapping[str, str] | None = None, where: Path = Path("/")) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], env=environ, cwd=where, capture_output=True, text=True, timeout=60, check=False)


def start_pip(checkout: Path, target: Path) -> subprocess.Popen[str]:
    words = ["-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--no-index", "--target", str(target), "."]
    return subprocess.Popen([sys.executable, *words], cwd=checkout, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.fixture(scope="module")
def installed(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two directories into which rmgr was installed at the same time."""
    before = {path: path.stat().st_mtime_ns for path in (checkout, *checkout.rglob("*"))}
    targets = [tmp_path_factory.mktemp("installed") for _ in range(2)]
    running = [start_pip(checkout, target) for target in targets]
    try:
        for pip in running:
            said, _ = pip.communicate(timeout=DEADLINE_S)
            assert pip.returncode == 0, said
    finally:
        for pip in running:
            pip.kill()
            pip.wait(60)
    assert {path: path.stat().st_mtime_ns for path in (checkout, *checkout.rglob("*"))} == before, "the checkout was written"
    return targets


def test_two_installations_at_once_from_a_checkout_that_cannot_be_written_are_whole(checkout: Path, installed: list[Path]) -> None:
    for target in installed:
        assert files(target / "rmgr") == files(checkout / "rmgr")
    needed = {"py.typed", "README.md", "sched/README.md", "v1/node_pb2.pyi", "dev/cassandra-5.0.pom.xml", "dev/zookeeper-3.9.pom.xml"}
    assert needed <= files(installed[0] / "rmgr")
    ran = python(str(installed[0] / "bin" / "rmgr"), "version", environ=os.environ | {"PYTHONPATH": str(installed[0])})
    assert (ran.returncode, PROJECT["project"]["version"] in ran.stdout) == (0, True), ran.stderr


@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_a_wheel_and_an_sdist_are_built_and_each_runs_in_a_fresh_environment(checkout: Path, tmp_path: Path, kind: str) -> None:
    program = f"import {BACKEND} as backend, sys; print(backend.build_{kind}(sys.argv[1]))"
    built = python("-B", "-c", program, str(tmp_path), where=checkout)
    assert built.returncode == 0, built.stderr
    made = tmp_path / built.stdout.split()[-1]
    if kind == "sdist":
        with tarfile.open(made) as archive:
            names = {name.partition("/")[2] for name in archive.getnames()}
        assert {"SECURITY.md", "tests/run.sh", "proto/rmgr/v1/node.proto", "deploy/Dockerfile", "rmgr/py.typed"} <= names

    venv.create(tmp_path / "venv")
    fresh = tmp_path / "venv" / "bin"
    [site] = (tmp_path / "venv").glob("lib/python*/site-packages")
    (site / "borrowed.pth").write_text(
        f"{sysconfig.get_path('purelib')}\n"
    )  # what rmgr needs; ours is a .pth file in there, which is not read
    words = ["install", "-q", "--no-deps", "--no-build-isolation", "--no-index", str(made)]
    pip = python("-m", "pip", "--python", str(fresh / "python"), *words)
    assert pip.returncode == 0, pip.stdout + pip.stderr
    assert (site / "rmgr" / "__init__.py").exists()
    ran = subprocess.run([fresh / "rmgr", "--version"], cwd="/", capture_output=True, text=True, timeout=60, check=False)
    assert (ran.returncode, ran.stdout.split()[:2]) == (0, ["rmgr", PROJECT["project"]["version"]]), ran.stderr


def test_an_editable_installation_is_a_path(checkout: Path, tmp_path: Path) -> None:
    """Every process that starts pays for anything else: a finder costs 20 ms."""
    program = f"import {BACKEND} as backend, sys; print(backend.build_editable(sys.argv[1]))"
    ran = python("-c", program, str(tmp_path), where=checkout)
    assert ran.returncode == 0, ran.stderr
    with zipfile.ZipFile(tmp_path / ran.stdout.split()[-1]) as wheel:
        modules = [name for name in wheel.namelist() if ".dist-info/" not in name]
        assert [Path(name).suffix for name in modules] == [".pth"]
        assert Path(wheel.read(modules[0]).decode().strip()) == checkout


@pytest.mark.usefixtures("cassandra_parts")
def test_what_fetches_cassandra_needs_no_checkout_and_says_what_it_lacks(installed: list[Path], tmp_path: Path) -> None:
    tools = tmp_path / "bin"  # all that a machine without Maven has
    tools.mkdir()
    for name in ("cksum", "sh"):
        (tools / name).symlink_to(shutil.which(name) or "/bin/" + name)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("RMGR_")}
    environ |= {"PATH": str(tools), "JAVA_HOME": str(Path(cassandra.java()).parents[1]), "PYTHONPATH": str(installed[0])}
    environ |= {"XDG_CACHE_HOME": str(tmp_path / "cache"), "HOME": str(tmp_path)}
    words = [str(installed[0] / "bin" / "rmgr"), "dev", "--store", "cassandra", "--dir", str(tmp_path / "dev")]
    ran = python(*words, environ=environ)
    assert ran.returncode == 5, ran.stderr
    assert str(tmp_path / "cache" / "rmgr" / cassandra.JARS) in ran.stderr
    assert "apt-get install maven" in ran.stderr
    assert "checkout" not in ran.stderr
    assert not (tmp_path / "cache").exists()
    assert python("-m", "rmgr.dev.jars", "--check", cassandra.JARS, environ=environ).returncode == 1
