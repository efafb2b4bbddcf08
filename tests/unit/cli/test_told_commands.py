"""Commands in messages and documents exist, with their options; terms of other systems lead to one."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from rmgr.cli import main
from rmgr.cli.main import BELOW, cli, load
from rmgr.cli.words import foreign
from tests.places import ROOT

#: What an f-string fills in.
HOLE = "\0"
#: A command ends with its sentence, or where another one begins.
COMMAND = re.compile(r"(?<![\w/.@$-])rmgr((?: +[^\s;,`\"'()|&<>]+)+)")
#: The name of the program at a word's end, before a space or the end of a piece of a text.
NAMED = re.compile(r"""(?<![\w/.@$-])rmgr[ "'\\]""")
#: Words after `rmgr` that begin no command: placeholders, and options before any command.
FREE = re.compile(r"^(?:COMMAND|-|\.\.\.|" + HOLE + ")")
#: Words that follow the name of the program in sentences; none is like a command.
PROSE = {
    *("a", "again", "amendment", "asks", "cluster", "directly", "ever", "finds", "goes", "in", "is", "knows", "looks", "needs", "of"),
    *("on", "one", "placed", "record", "records", "result", "spawner", "that", "through", "tries", "understands", "unites", "value"),
    *("waits", "was", "work", "works", "writes", "yet"),
}
#: Options that a server's function gives a command, and those that it has inside a job.
_LOOSE = {"call": None, "run": {"-l", "--label"}}


def docstrings(tree: ast.AST) -> set[int]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and node.body and isinstance(node.body[0], ast.Expr):
            found.add(id(node.body[0].value))
    return found


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Line and text of each string of a file that is no docstring; what an f-string fills in is a hole. None of a file without commands."""
    source = path.read_text()
    tree = ast.parse(source if NAMED.search(source) else "")
    hidden = docstrings(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            hidden |= {id(part) for part in node.values}
            yield node.lineno, "".join(str(part.value) if isinstance(part, ast.Constant) else HOLE for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in hidden:
            yield node.lineno, node.value


def wrong_in(text: str) -> list[str]:
    """What of the commands in `text` the command line does not know."""
    found = []
    for match in COMMAND.finditer(text):
        words = []
        for word in match[1].split():
            words.append(word.partition(HOLE)[0].rstrip(".:]") if word[0] != HOLE else HOLE)
            if word.endswith((":", ".")):
                break
        if not words or FREE.match(words[0]) or not re.fullmatch(r"[a-z-]+", words[0]):
            continue
        command: click.Command = cli
        context = click.Context(cli)
        at = 0
        while isinstance(command, click.Group) and at < len(words):
            below = command.get_command(context, words[at])
            if below is None:
                break
            command, at = below, at + 1
        if at == 0:
            found += [f"rmgr {words[0]}"] if words[0] not in PROSE else []
            continue
        if tuple(words[:2]) in BELOW:
            command, at = load(BELOW[words[0], words[1]]), 2
        loose = _LOOSE.get(words[0], set())
        if loose is None:
            continue
        if isinstance(command, click.Group) and not command.invoke_without_command and at < len(words) and words[at][:1].isalpha():
            found.append(f"rmgr {' '.join(words[: at + 1])}")
            continue
        known = {name for of in (command, cli) for parameter in of.params for name in (*parameter.opts, *parameter.secondary_opts)}
        for word in words[at:]:
            name = word.partition("=")[0]
            if re.fullmatch(r"--?[a-z][a-z-]*", name) and name not in known | loose | {"--help", "-h", "--"} and word[:2] not in known:
                found.append(f"rmgr {' '.join(words)}: {name}")
            if word == "--":
                break
    return found


FILES = sorted(path for path in (ROOT / "rmgr").rglob("*.py") if "v1" not in path.parts)


@pytest.mark.parametrize("room", sorted({path.relative_to(ROOT / "rmgr").parts[0] for path in FILES}))
def test_commands_in_messages_are_those_of_the_command_line(room: str) -> None:
    wrong = {
        f"{path.relative_to(ROOT)}:{line}": told
        for path in FILES
        if path.relative_to(ROOT / "rmgr").parts[0] == room
        for line, text in texts(path)
        if (told := wrong_in(text))
    }
    assert wrong == {}


DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "SECURITY.md", "CONTRIBUTING.md", "deploy/README.md")),
    *sorted((ROOT / "rmgr/docs").glob("*.md")),
]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_in_documents_are_those_of_the_command_line(path: Path) -> None:
    quoted = re.findall(r"`(rmgr [^`]+)`", path.read_text()) + re.findall(r"^(?:\\$ |sudo )?(rmgr [^\n]+)$", path.read_text(), re.MULTILINE)
    assert [told for text in quoted for told in wrong_in(text.partition("  #")[0].replace("\\|", "|"))] == []


def test_a_wrong_command_is_found() -> None:
    assert wrong_in("try rmgr jbos -a; rmgr jobs --al, or rmgr nodes --forget n7.") == ["rmgr jbos", "rmgr jobs --al: --al"]
    assert wrong_in(f"rmgr admin add-usr {HOLE}; rmgr {HOLE} --what; rmgr resume {HOLE}") == ["rmgr admin add-usr"]


def test_every_answer_is_a_command_that_there_is() -> None:
    ctx = click.Context(main.cli)
    for words, meant in foreign.COMMANDS.items():
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
    for theirs, told in foreign.OPTIONS.items():
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
        (["array", "1-10", "./work.sh"], "rmgr submit --array 1-10 ./work.sh"),
        (["restart", "7_3"], "rmgr rerun 7_3"),
        (["restart", "n1"], ""),
        (["sacctmgr", "show", "user", "ann"], "rmgr limits"),
        (["requeue", "12"], "rmgr rerun 12"),
        (["scontrol", "update", "JobId=7"], ""),
        (["scontrol", "show", "hostnames"], ""),
    ],
)
def test_words_behind_them_follow(words: list[str], told: str) -> None:
    assert foreign.command_for(words) == told


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["scontrol", "update", "JobId=7"], "rmgr update ID --priority N -t TIME --mem SIZE; a node: rmgr drain NODE"),
        (["scontrol", "top", "7"], "rmgr show ID, rmgr update ID"),
        (["scontrol", "show", "job", "7"], "did you mean: rmgr show 7"),
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
