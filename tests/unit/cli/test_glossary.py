"""One table of states, reasons and words: it is whole, it agrees with the rules, and cli.md has the same."""

from __future__ import annotations

import json
import re

import click
import pytest

from rmgr.cli import main
from rmgr.cli.words.glossary import KINDS, TOPICS, document
from rmgr.model.base.states import GIVEN_UP, LOSSES, OWN_FAILURES, Reason, State
from rmgr.model.cluster.node import NodeState
from tests.places import ROOT


def test_every_state_and_reason_has_its_row_and_the_kind_that_the_rules_give_it() -> None:
    states = [(entry.kind, entry.name) for entry in TOPICS["states"]]
    assert set(states) == {("work", str(state)) for state in State} | {("node", str(state)) for state in NodeState}
    kinds = {entry.name: entry.kind for entry in TOPICS["reasons"]}
    assert kinds.keys() == set(map(str, Reason)) - {""}
    for kind, reasons in (("its own failure", OWN_FAILURES), ("loss", LOSSES), ("attempt given up", GIVEN_UP)):
        assert {name for name, found in kinds.items() if found == kind} == set(map(str, reasons))
    assert set(kinds.values()) == KINDS.keys()
    for topic, entries in TOPICS.items():
        assert len({entry.name for entry in entries}) == len(entries), topic
        groups = [entry.kind for entry in entries]
        runs = [kind for at, kind in enumerate(groups) if at == 0 or groups[at - 1] != kind]
        assert len(runs) == len(set(runs)), "a group stands together"


def test_the_document_has_the_same_tables() -> None:
    text = (ROOT / "rmgr/docs/cli.md").read_text("utf-8")
    assert document().strip() in text.partition("\n## 10. ")[2], "print(rmgr.cli.words.glossary.document())"


def test_options_and_commands_that_it_names_are_there() -> None:
    ctx = click.Context(main.cli)
    commands = {name: made for name in main.cli.list_commands(ctx) if (made := main.cli.get_command(ctx, name)) is not None}
    options = {name for made in commands.values() for parameter in made.params for name in (*parameter.opts, *parameter.secondary_opts)}
    for entries in TOPICS.values():
        for entry in entries:
            assert set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", entry.meaning)) <= options, entry
            assert set(re.findall(r"\brmgr ([a-z]+)", entry.meaning)) <= commands.keys(), entry


@pytest.mark.parametrize("topic", list(TOPICS))
@pytest.mark.parametrize("columns", [80, 200])
def test_help_prints_a_topic(topic: str, columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main.run(["help", topic]) == 0
    out = capsys.readouterr().out
    for entry in TOPICS[topic]:
        assert f"  {entry.name} " in out
    for words in (["help", topic, "--json"], ["--json", "help", topic], ["help", "--json", topic]):
        assert main.run(words) == 0
        told = json.loads(capsys.readouterr().out)
        assert [entry["name"] for entry in told[topic]] == [entry.name for entry in TOPICS[topic]]


def test_help_of_a_command_is_as_ever_and_a_slip_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["help", "submit"]) == 0
    assert capsys.readouterr().out.startswith("Usage: rmgr submit")
    assert main.run(["help"]) == 0
    assert "First steps" in capsys.readouterr().out
    assert main.run(["help", "reason"]) == 2
    assert "did you mean 'reasons'?" in capsys.readouterr().err
    assert main.run(["help", "admin", "init"]) == 0
    assert capsys.readouterr().out.startswith("Usage: rmgr admin init")
