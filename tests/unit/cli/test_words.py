"""Words that users type and read: files as arguments, selectors, exit codes of work, states and reasons."""

from __future__ import annotations

import json
import re
from pathlib import Path

import click
import pytest

from rmgr.cli import calls, main
from rmgr.cli.words.glossary import KINDS, TOPICS
from rmgr.cli.words.params import exit_code_of, highest
from rmgr.cli.words.selectors import Filter, Target, parse, parse_one, resolve
from rmgr.errors import NotFound, RmgrError, UsageError
from rmgr.model import arrays
from rmgr.model.node import NodeState
from rmgr.model.states import GIVEN_UP, LOSSES, OWN_FAILURES, Reason, State
from rmgr.model.views import JobView
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
    text = (ROOT / "rmgr/docs/cli.md").read_text("utf-8").partition("\n## 10. ")[2]
    for topic, entries in TOPICS.items():
        shown = "| `{}` | {} | {} |" if topic != "words" else "| {} | {} | {} |"
        table = [f"### {topic.capitalize()}\n", f"| {topic.removesuffix('s')} | kind | means |", "|---|---|---|"]
        table += [shown.format(entry.name, entry.kind, entry.meaning.replace("|", "\\|")) for entry in entries]
        assert "\n".join(table) in text, topic


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


@pytest.mark.parametrize(
    ("word", "said"), [("OUT_OF_MEMORY", "it used more memory than"), ("RUNNING", "it runs"), ("fencing", "a lost node can commit nothing")]
)
def test_one_word_is_explained_alone(capsys: pytest.CaptureFixture[str], word: str, said: str) -> None:
    assert main.run(["help", word]) == 0
    out = capsys.readouterr().out.splitlines()
    assert len(out) == 2
    assert out[1].split(maxsplit=1)[0] == word
    assert said in out[1]


def test_a_word_that_nothing_explains_is_told_what_is_near(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["help", "POISN"]) == 2
    assert "did you mean 'POISON'?" in capsys.readouterr().err


def test_help_of_a_command_is_as_ever_and_a_slip_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["help", "submit"]) == 0
    assert capsys.readouterr().out.startswith("Usage: rmgr submit")
    assert main.run(["help"]) == 0
    assert "First steps" in capsys.readouterr().out
    assert main.run(["help", "reason"]) == 2
    assert "did you mean 'reasons'?" in capsys.readouterr().err
    assert main.run(["help", "admin", "init"]) == 0
    assert capsys.readouterr().out.startswith("Usage: rmgr admin init")


def a_job(number: int, **fields: object) -> JobView:
    return JobView(id=number, **{"name": f"j{number}", "user": "ada", "queue": "default", "state": State.RUNNING, **fields})  # type: ignore[arg-type]


JOBS = [
    a_job(1, state=State.COMPLETED),
    a_job(2, queue="fast"),
    a_job(3, name="train-a"),
    a_job(4, name="train-b", state=State.INITIAL),
    a_job(9, user="bob"),
]


def select(*words: str, **filters: object) -> list[str]:
    targets = resolve(parse(words, Filter(**filters)), JOBS, me="ada")  # type: ignore[arg-type]
    return [id_ for target in targets for id_ in target.ids]


def test_words_select() -> None:
    assert select("3") == ["3"]
    assert select("taskq-0000000003", "1") == ["1", "3"]
    assert select("1-9:2") == ["1", "3", "9"]
    assert select("1,4") == ["1", "4"]
    assert select("last") == ["4"]  # bob's 9 is newer, and not ada's
    assert select("all") == ["1", "2", "3", "4"]
    assert select("2_7", "2_1-3", "2_[5]") == ["2_7", "2_1", "2_2", "2_3", "2_5"]
    assert select("2_7", "2") == ["2"]  # the whole swallows its part


def test_filters_select_among_ones_own_unless_a_user_is_named() -> None:
    assert select(name="train-*") == ["3", "4"]
    assert select(queue="fast") == ["2"]
    assert select(states=(State.INITIAL,)) == ["4"]
    assert select(user="bob") == ["9"]
    assert select("1-4", states=(State.RUNNING,)) == ["2", "3"]
    assert select("last", name="j*") == ["2"]


@pytest.mark.parametrize(
    ("words", "kind", "told"),
    [
        ((), UsageError, "nothing is selected"),
        (("x",), UsageError, "'x' selects nothing"),
        (("1-",), UsageError, "'1-' selects nothing"),
        (("5-1",), UsageError, "backwards"),
        (("2_x",), UsageError, "selects nothing"),
        (("7",), NotFound, "no submission 7"),
        (("7_1",), NotFound, "no submission 7"),
        (("20-30",), NotFound, "nothing matches"),
    ],
)
def test_what_selects_nothing_is_an_error_with_a_hint(words: tuple[str, ...], kind: type[RmgrError], told: str) -> None:
    with pytest.raises(kind, match=told) as caught:
        select(*words)
    assert caught.value.hint


def test_all_of_nothing_is_nothing() -> None:
    assert resolve(parse(["all"]), [], me="ada") == []


def test_one_is_one() -> None:
    assert resolve(parse_one("2_7"), JOBS, me="ada") == [Target(submission=2, tasks=(7,))]
    for word in ("all", "1-3", "2_1-2"):
        with pytest.raises(UsageError, match="more than one"):
            parse_one(word)


@pytest.mark.parametrize(
    ("state", "reason", "exit_code", "expected"),
    [
        (State.COMPLETED, Reason.NONE, 0, 0),
        (State.COMPLETED, Reason.NONE, None, 0),
        (State.FAILED, Reason.EXIT_CODE, 3, 3),
        (State.FAILED, Reason.EXIT_CODE, 255, 255),
        (State.FAILED, Reason.SIGNAL, 11, 139),
        (State.FAILED, Reason.SIGNAL, -11, 139),
        (State.FAILED, Reason.SIGNAL, 139, 139),
        (State.FAILED, Reason.SIGNAL, None, 137),
        (State.FAILED, Reason.TIME_LIMIT, 143, 124),
        (State.FAILED, Reason.OUT_OF_MEMORY, None, 137),
        (State.FAILED, Reason.NODE_LOST, None, 125),
        (State.FAILED, Reason.DATA_LOST, None, 125),
        (State.FAILED, Reason.LEASE_LOST, None, 125),
        (State.FAILED, Reason.POISON, None, 125),
        (State.FAILED, Reason.EXCEPTION, None, 1),
        (State.FAILED, Reason.START_FAILED, 127, 127),
        (State.FAILED, Reason.START_FAILED, 126, 126),
        (State.FAILED, Reason.START_FAILED, None, 1),
        (State.FAILED, Reason.BAD_OUTPUT, None, 1),
        (State.CANCELLED, Reason.USER_CANCEL, None, 130),
        (State.CANCELLED, Reason.DEPENDENCY_FAILED, None, 130),
    ],
)
def test_the_end_of_work_has_its_exit_code(state: State, reason: Reason, exit_code: int | None, expected: int) -> None:
    assert exit_code_of(state, reason, exit_code) == expected


def test_of_several_the_highest_counts() -> None:
    assert highest([0, 3, 1]) == 3
    assert highest([]) == 0


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "A.npy").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(UsageError, match=r"A: .*A\.npy has more than the 1,073,741,824 bytes"):
        calls.array_in("A", str(tmp_path / "A.npy"))


def test_of_several_outputs_one_that_cannot_be_written_is_kept_and_the_others_are_where_they_should_be(tmp_path: Path) -> None:
    assert calls.keep("text", tmp_path / "good") is None
    trouble = calls.keep(b"bytes", Path("/dev/full"))
    assert isinstance(trouble, UsageError)
    kept = Path(trouble.hint.split()[1])
    assert kept.read_bytes() == b"bytes"
    kept.unlink()
    kept.parent.rmdir()


def test_a_file_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "MAX_BYTES", 1 << 20)
    for read in (calls.bytes_in, lambda path: calls.array_in("A", path)):
        with pytest.raises(UsageError, match="more than the 1,048,576 bytes that an argument may have"):
            read("/dev/zero")
