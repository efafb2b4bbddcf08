"""What a submission tells of the process that made it."""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from rmgr.client.specs import Options, draft_of, python_environment, source_directories
from rmgr.errors import UsageError
from rmgr.model.tasks.submission import OnDisconnect, Work


def test_directories_of_the_user_travel_and_installed_ones_do_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("script", "library", "here", "site-packages"):
        (tmp_path / name).mkdir()
    installed = [sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"), str(tmp_path / "site-packages"), "/no/such/place"]
    monkeypatch.setattr(sys, "path", [str(tmp_path / "script"), *installed, str(tmp_path / "library")])
    monkeypatch.chdir(tmp_path / "here")
    assert source_directories() == tuple(str(tmp_path / name) for name in ("script", "here", "library"))
    monkeypatch.setattr(sys, "path", [""])
    assert source_directories() == (os.getcwd(),)


def test_a_program_whose_directory_was_removed_has_workers_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone, library = tmp_path / "gone", tmp_path / "library"
    gone.mkdir()
    library.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    monkeypatch.setattr(sys, "path", ["", "relative", str(library)])
    assert source_directories() == (str(library),)


def test_many_directories_of_the_user_travel_and_who_has_too_many_is_warned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    many = [tmp_path / f"library{number:03}" for number in range(400)]
    for path in many:
        path.mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(path) for path in many[:60]])
    assert set(source_directories()) == {str(tmp_path), *map(str, many[:60])}
    monkeypatch.setattr(sys, "path", [str(path) for path in many])
    with pytest.warns(RuntimeWarning, match=r"directories at the end of sys.path .* modules="):
        kept = source_directories()
    assert list(kept) == [str(many[0]), str(tmp_path), *map(str, many[1 : len(kept) - 1])]
    assert 60 < len(kept) < 400
    assert sum(len(path) + 1 for path in kept) <= 8192


def test_an_environment_names_the_python_that_pickled(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = python_environment(python="/opt/python", modules=("a", "a", "b"), initializer="i", group="g")
    assert environment.version == f"{sys.version_info.major}.{sys.version_info.minor}"
    assert (environment.python, environment.modules, environment.initializer, environment.worker_group) == (
        "/opt/python",
        ("a", "b"),
        "i",
        "g",
    )


def test_options_become_a_record_in_its_units() -> None:
    options = Options(
        cores=2, memory="2G", time="1h30m", backoff=0.5, priority=3, features=["gpu"], resources={"disk": 1}, on_disconnect="exclusive"
    )
    record = draft_of(options, work=Work.PYTHON, function="f")
    request = record.request
    assert (request.cores, request.memory_bytes, request.time_limit_us, request.features) == (2, 2 << 30, 5_400_000_000, ("gpu",))
    assert (record.backoff_us, record.on_disconnect, record.function, record.name) == (500_000, OnDisconnect.EXCLUSIVE, "f", "python")
    for bad in (Options(time=1e300), Options(time=float("nan")), Options(backoff=-1), Options(memory=1 << 70)):
        with pytest.raises(UsageError):
            draft_of(bad, work=Work.PYTHON)
    for bad in (Options(time="soon"), Options(memory="lots"), Options(cores=0), Options(cores=1.5), Options(on_disconnect="x")):  # type: ignore[arg-type]
        with pytest.raises(UsageError):
            draft_of(bad, work=Work.PYTHON)


@pytest.mark.parametrize(
    "bad", [{"name": 5}, {"name": "a\0b"}, {"name": "half \udcff"}, {"token": "half \udcff"}, {"features": "avx,gpu"}]
)
def test_words_that_no_starter_would_believe_are_refused_before_anything_is_submitted(bad: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=f"{next(iter(bad))} = "):
        draft_of(Options(**{"name": "a", **bad}), work=Work.PYTHON)
    assert draft_of(Options(name="é" * 1000, features=("avx",)), work=Work.PYTHON).name == "é" * 1000
