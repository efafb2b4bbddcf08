"""Names of files that no node could open are refused where the work is asked for."""

from __future__ import annotations

from typing import Any

import pytest

from rmgr.client.commands.request import CommandOptions, CommandRequest, command_of
from rmgr.errors import UsageError

LONG = "n" * 300


@pytest.mark.parametrize(
    ("option", "more"),
    [
        ("--out", {"out": LONG}),
        ("--err", {"err": LONG}),
        ("--cwd", {"cwd": f"/{LONG}"}),
        ("--python", {"python": f"/{LONG}"}),
        ("--input", {"inputs": (("k", LONG),)}),
        ("--output", {"outputs": (("k", f"/x/{LONG}"),)}),
    ],
)
def test_a_name_that_no_file_can_have_is_refused_with_its_option(option: str, more: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=f"{option}: no file can have the name .*: it has a step of 300 bytes, and at most 255") as caught:
        command_of(CommandRequest(options=CommandOptions(**more), words=("true",)))
    assert len(caught.value.message) < 250
    assert caught.value.hint


@pytest.mark.parametrize(
    ("name", "words"),
    [("a\0b", "has a NUL character"), ("a\udcffb", "is not UTF-8"), ("é" * 200, "step of 400 bytes"), ("d/" * 2100, "has 4200 bytes")],
)
def test_it_says_what_is_wrong(name: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        command_of(CommandRequest(options=CommandOptions(outputs=(("k", name),)), words=("true",)))


def test_the_longest_possible_names_pass() -> None:
    name = "/".join(["n" * 255] * 15)
    command = command_of(CommandRequest(options=CommandOptions(outputs=(("k", name),), out=f"/{name}"), words=("true",)))
    assert (command.output_files, command.out) == ((("k", name),), f"/{name}")
