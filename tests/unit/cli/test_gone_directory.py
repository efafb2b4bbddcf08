"""A command whose working directory has been removed says so, whatever its task there."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmgr.cli.main import run


@pytest.mark.parametrize(
    "words",
    [
        ["sim", "run", "lublin99", "--policy", "fcfs", "--nodes", "8", "--count", "5", "--out", "here"],
        ["policy", "check", "./mine.py"],
    ],
)
def test_a_command_says_that_its_directory_is_gone(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    monkeypatch.setenv("PWD", str(gone))
    assert run(words) == 2
    told = capsys.readouterr().err
    assert "the directory that this command was started in has been removed: " + str(gone) in told
    assert "cd to one that exists" in told
