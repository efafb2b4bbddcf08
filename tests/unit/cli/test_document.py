"""rmgr/docs/cli.md matches the parser, the golden JSON, the columns and the Python API: nothing is missing or invented."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import click
import pytest

import rmgr
from rmgr import errors
from rmgr.cli.display import columns
from rmgr.cli.main import BELOW, cli, load
from rmgr.sim.runs.output import COLUMNS as JOB_COLUMNS
from tests import places
from tests.places import ROOT

TEXT = (ROOT / "rmgr/docs/cli.md").read_text(encoding="utf-8")
GOLDEN = {path.stem: json.loads(path.read_text()) for path in places.GOLDEN.glob("*.json")}
#: A file of golden JSON and the row of section 5 that describes it, where they differ in name.
ROW_OF = {"show_task": "show of a task", "explain_placed": "explain"}
#: Lists of objects whose fields have a row of their own.
_ELSEWHERE = {("jobs", "jobs"), ("status", "parts")}
_QUOTED = re.compile(r"`([^`]+)`")
_OPTION = re.compile(r"(?<![\w-])--?[A-Za-z][\w-]*")
_FIELD = re.compile(r"(\w+)(?:[\[{]([\w ]*)[\]}])?")


def section(number: int) -> str:
    return TEXT.partition(f"\n## {number}. ")[2].partition("\n## ")[0]


def rows(text: str) -> Iterator[list[str]]:
    """Cells of the rows of all tables; without those of names and lines."""
    for line in text.splitlines():
        if line.startswith("| ") and not line.startswith("|---"):
            yield [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def options_in(text: str) -> frozenset[str]:
    """Every spelling of the options that stand in backticks."""
    return frozenset(found for quoted in _QUOTED.findall(text) for word in quoted.split()[:1] for found in _OPTION.findall(word))


def options_of(command: click.Command) -> frozenset[str]:
    found = [param for param in command.params if isinstance(param, click.Option) and not param.hidden]
    return frozenset(name for param in found for name in (*param.opts, *param.secondary_opts))


GLOBAL = options_of(cli)


def walk(command: click.Command, name: str, context: click.Context) -> Iterator[tuple[str, click.Command]]:
    """(words, command) of every command that can be typed."""
    if isinstance(command, click.Group):
        for word in command.list_commands(context):
            below = command.get_command(context, word)
            assert below is not None
            yield from walk(below, f"{name} {word}".strip(), click.Context(below, parent=context, info_name=word))
        if not command.invoke_without_command:
            return
    yield name, command


@cache
def parsed() -> dict[str, click.Command]:
    below = {" ".join(words): load(where) for words, where in BELOW.items()}
    return dict(walk(cli, "", click.Context(cli, info_name="rmgr"))) | below


@cache
def documented() -> dict[str, str]:
    """Command -> the cell of its options in section 2. A command's words are those before its first argument."""
    found = {}
    for signature, _, options in rows(section(2)):
        if signature.startswith("`rmgr "):
            words = signature.strip("`").split()[1:]
            found[" ".join(word for word in words if re.fullmatch(r"[a-z-]+", word))] = options
    return found


def shared() -> frozenset[str]:
    """Options of section 3."""
    return options_in(" ".join(cells[0] for cells in rows(section(3))))


def told(name: str) -> frozenset[str]:
    """Options that the document gives a command."""
    cell, _, _ = documented()[name].partition("; in a job ")
    if not cell.startswith("section 3"):
        return options_in(cell)
    without, _, also = cell.partition("; also ")
    return (shared() - options_in(without)) | options_in(also)


def test_every_command_is_documented_and_no_other() -> None:
    assert sorted(documented()) == sorted(parsed())


@pytest.mark.parametrize("name", sorted(parsed()))
def test_every_option_is_documented_and_no_other(name: str) -> None:
    assert sorted(told(name)) == sorted(options_of(parsed()[name]) - GLOBAL)


def test_options_before_any_command_are_documented() -> None:
    assert options_in(" ".join(cells[0] for cells in rows(section(1)))) == GLOBAL


def test_run_inside_a_job_has_the_options_of_ranks() -> None:
    assert options_in(documented()["run"].partition("; in a job ")[2]) == told("ranks")


# -- section 4 ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("jobs", columns.job_columns(0)),
        ("tasks", columns.task_columns(0)),
        ("nodes", columns.node_columns(0)),
        ("queues", columns.QUEUE_COLUMNS),
        ("history", columns.HISTORY_COLUMNS),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_columns_are_those_of_the_tables(name: str, found: Any) -> None:
    usual, more = next(cells[1:3] for cells in rows(section(4)) if cells[0] == f"`{name}`")
    assert usual.strip("`").split() == [column.name for column in found if column.default]
    assert more.strip("`").split() == [column.name for column in found if not column.default]


# -- section 5 ----------------------------------------------------------------------------------------------------------------


def fields(text: str) -> dict[str, frozenset[str]]:
    """Field -> the fields of its elements, empty where it has none of its own here."""
    found = {}
    for quoted in _QUOTED.findall(text):
        match = _FIELD.fullmatch(quoted)
        if match:
            found[match[1]] = frozenset((match[2] or "").split())
    return found


def shape(name: str) -> dict[str, frozenset[str]]:
    """Fields of the row of a command in section 5."""
    (cell,) = [cells[1] for cells in rows(section(5)) if name in [part.strip().replace("`", "") for part in cells[0].split(",")]]
    before, inherits, rest = cell.partition("those of `show` without ")
    if not inherits:
        return fields(cell)
    without, _, also = rest.partition(", and ")
    inherited = {field: below for field, below in shape("show").items() if field not in fields(without)}
    return inherited | fields(also) if not before else fields(before)


@pytest.mark.parametrize("name", sorted(GOLDEN))
def test_the_fields_of_machine_output_are_documented_and_no_others(name: str) -> None:
    answer, described = GOLDEN[name], shape(ROW_OF.get(name, name))
    assert sorted(described) == sorted(answer)
    for field, value in answer.items():
        one = value[0] if isinstance(value, list) and value else value
        if isinstance(one, dict) and described[field]:
            assert sorted(described[field]) == sorted(one), field
        assert not (isinstance(value, list) and isinstance(one, dict) and not described[field] and (name, field) not in _ELSEWHERE), field


def test_an_element_of_jobs_has_the_fields_of_show_without_attempts() -> None:
    cell = next(cells[1] for cells in rows(section(5)) if cells[0] == "`jobs`")
    without = fields(cell.partition(" without ")[2])
    assert set(shape("show")) - set(without) == set(GOLDEN["jobs"]["jobs"][0])


def test_the_codes_of_errors_are_those_of_the_tree() -> None:
    def tree(kind: type[errors.RmgrError]) -> Iterator[str]:
        yield kind.code
        for below in kind.__subclasses__():
            if below.__module__ == errors.__name__:
                yield from tree(below)

    listed = section(5).partition("Codes: ")[2].partition(".")[0]
    assert set(re.findall(r"[A-Z_]{4,}", listed)) == set(tree(errors.RmgrError))


# -- sections 8 and 9 ---------------------------------------------------------------------------------------------------------


def test_the_python_api_has_these_names_and_parameters() -> None:
    found = {}
    for cells in rows(section(8)):
        for name in _QUOTED.findall(cells[0]):
            found[name] = _QUOTED.findall(cells[1])
    found.pop("name", None)
    assert "TaskQueue" in found
    public = {f"{kind}.{name}" for kind in ("TaskQueue", "Executor") for name, _ in inspect.getmembers(getattr(rmgr, kind), callable)}
    public = {name for name in public if "._" not in name}
    assert public | {"TaskQueue", "Executor", "connect"} == set(found) - {"Connection.register"}
    for name, parameters in found.items():
        kind, _, method = name.partition(".")
        offered = getattr(rmgr, kind)
        asked = inspect.signature(getattr(offered, method) if method else offered).parameters
        assert parameters == [parameter for parameter in asked if parameter != "self"], name


def test_the_columns_of_jobs_csv_are_those_that_are_written() -> None:
    assert ",".join(JOB_COLUMNS) in section(9)
