"""Words of other systems: each leads to a command and an option that there are."""

from __future__ import annotations

import re

import click
import pytest

from rmgr.cli import main
from rmgr.cli.words import foreign


def test_every_answer_is_a_command_that_there_is() -> None:
    ctx = click.Context(main.cli)
    for words, meant in foreign._COMMANDS.items():
        name, *more = meant.split()
        assert name in main.cli.list_commands(ctx), words
        made = main.cli.get_command(ctx, name)
        assert made is not None
        if isinstance(made, click.Group) and more:
            made = made.get_command(ctx, more.pop(0))
            assert made is not None, words
        options = {option for parameter in made.params for option in parameter.opts}
        assert {word for word in more if word.startswith("-")} <= options, words
        assert words.split()[0] not in main.cli.list_commands(ctx), f"{words} is a command of ours"


def test_every_option_that_is_named_is_one_of_some_command() -> None:
    ctx = click.Context(main.cli)
    ours = {
        option
        for name in main.cli.list_commands(ctx)
        if (made := main.cli.get_command(ctx, name)) is not None
        for parameter in made.params
        for option in (*parameter.opts, *parameter.secondary_opts)
    } | {"--"}
    for theirs, told in foreign._OPTIONS.items():
        named = set(re.findall(r"(?<![\w-])(--?[a-zA-Z][a-z-]*|--)(?![\w])", told))
        assert named - {"-c"} <= ours, (theirs, named - ours)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["scontrol", "show", "job", "14", "--oneliner"], "rmgr show 14"),
        (["scontrol", "requeue", "14"], "rmgr rerun 14"),
        (["qrerun", "14"], "rmgr rerun 14"),
        (["sinfo", "-N"], "rmgr nodes"),
        (["hq", "job", "cat", "3", "stdout"], "rmgr logs 3 stdout"),
        (["hq", "wait", "3"], "rmgr wait 3"),
        (["sbatch", "a file.sh"], "rmgr submit 'a file.sh'"),
        (["xyzzy"], ""),
        (["init"], "rmgr admin init"),
        (["usage"], "rmgr report"),
        (["remove", "7"], "rmgr cancel 7"),
        (["kill", "7_3", "9-12", "last"], "rmgr cancel 7_3 9-12 last"),
        (["remove", "n7"], ""),  # a node: no job is cancelled
        (["kill", "n1"], ""),
        (["sacctmgr", "show", "user", "ann"], "rmgr limits"),
        (["scontrol", "update", "JobId=7"], ""),
        (["scontrol", "show", "hostnames"], ""),
    ],
)
def test_words_behind_them_follow(words: list[str], told: str) -> None:
    assert foreign.command_for(words) == told


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["scontrol", "update", "JobId=7"], "what was submitted stays as it is: rmgr cancel ID, and submit it again"),
        (["queues", "-p", "batch"], "the queue's name alone: rmgr queues QUEUE"),
        (["nodes", "-p", "batch"], "rmgr nodes --help"),  # it has no -q
        (["jobs", "-p", "batch"], "here it is -q QUEUE"),
        (["nodes", "-w", "n1"], "the node's name alone: rmgr nodes NODE"),
        (["submit", "--deadline", "3h", "x"], "work has no time by which it must have ended"),
        (["submit", "--memry", "3G", "x"], "Did you mean '--mem'?"),
        (["remove", "n3"], "rmgr --help lists the commands"),
        (["result", "3"], "rmgr --help lists the commands"),
        (["stauts"], "did you mean: rmgr status"),
        (["lgos"], "did you mean: rmgr logs"),
        (["hist"], "did you mean: rmgr history"),
        (["config", "shw"], "did you mean: rmgr config show"),
        (["config", "remove"], "known: "),
    ],
)
def test_no_hint_is_better_than_a_wrong_one(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(words) == 2
    err = capsys.readouterr().err
    assert told in err
    assert "--each-line" not in err
