"""Exceptions arrive as they were raised."""

from __future__ import annotations

import hashlib
import json
import pickle
import socket
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import CancelledError
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pytest

from rmgr.client.futures import Settled, error_of, load, raised_by, value_of
from rmgr.coord.protocol import keys
from rmgr.coord.protocol.ports import Encoding
from rmgr.errors import PickleFailed, RemoteError, RemoteTraceback, TaskFailed
from rmgr.model.block import Outcome
from rmgr.model.states import Reason, State
from rmgr.runner.remote import dump_exception, dump_value
from rmgr.runner.unpickling import loads
from tests.harness.memory_store import MemoryStore


class BuildsItsMessage(Exception):
    def __init__(self, key: str) -> None:
        super().__init__(f"no input called {key}")
        self.key = key


class TakesOthers(ValueError):
    def __init__(self, *, code: int, why: str) -> None:
        super().__init__(why)
        self.code = code


class OfTheSystem(FileNotFoundError):
    def __init__(self, path: str) -> None:
        super().__init__(2, "not there", path)
        self.extra = 7


class SaysHow(Exception):
    def __init__(self, a: int, b: int) -> None:
        super().__init__(f"{a} and {b}")
        self.a, self.b = a, b

    def __reduce__(self) -> tuple[Any, ...]:
        return SaysHow, (self.a, self.b)


class Slotted(Exception):
    __slots__ = ("n",)

    def __init__(self, n: int) -> None:
        super().__init__("slotted")
        self.n = n

    def __getstate__(self) -> tuple[None, dict[str, int]]:
        return None, {"n": self.n}

    def __setstate__(self, state: tuple[None, dict[str, int]]) -> None:  # type: ignore[override]
        self.n = state[1]["n"]

    def __reduce__(self) -> tuple[Any, ...]:
        return Slotted, (self.n,)


class HasSlots(KeyError):
    __slots__ = ("code", "empty", "nothing")

    def __init__(self, code: int) -> None:
        super().__init__("slots")
        self.code, self.nothing = code, None


class HidesItsArgs(Exception):
    def __init__(self, message: str, number: int) -> None:
        self.message, self.number = message, number

    @property
    def args(self) -> tuple[Any, ...]:  # type: ignore[override]
        return self.message, self.number


class HoldsOthers(Exception):
    def __init__(self, **errors: Exception) -> None:
        super().__init__(f"{len(errors)} errors")
        self.errors = errors


@dataclass(frozen=True)
class Frozen(ValueError):
    code: int
    why: str = "so"


@dataclass(frozen=True, slots=True)
class FrozenSlots(Exception):
    code: int


class RefusesAttributes(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(code)
        vars(self)["code"] = code

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{name} is not for you")


class CodedGroup(ExceptionGroup[Exception]):
    def __new__(cls, message: str, errors: list[Exception], code: int) -> Self:
        made = super().__new__(cls, message, errors)
        made.code = code
        return made

    code: int


class Unreadable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def raised(make: Callable[[], BaseException]) -> BaseException:
    try:
        raise make()
    except BaseException as error:
        return error


def travelled(error: BaseException) -> BaseException:
    found = pickle.loads(dump_exception(error)[0])
    assert isinstance(found, BaseException)
    return found


def caught(function: Callable[[], object]) -> BaseException:
    try:
        function()
    except BaseException as error:
        return error
    raise AssertionError("it raised nothing")


CASES = {
    "builds its message": lambda: BuildsItsMessage("a.dat"),
    "takes other arguments": lambda: TakesOthers(code=3, why="so"),
    "of the system": lambda: OfTheSystem("a.dat"),
    "plain OSError": lambda: OSError(5, "io", "a"),
    "two names": lambda: FileExistsError(17, "exists", "a", None, "b"),
    "says how": lambda: SaysHow(1, 2),
    "slotted": lambda: Slotted(3),
    "exit": lambda: SystemExit(3),
    "import": lambda: ImportError("m", name="n", path="p"),
    "syntax": lambda: caught(lambda: compile("a b", "f.py", "exec")),
    "unicode": lambda: caught(b"\xff".decode),
    "key": lambda: KeyError("k"),
    "attribute": lambda: caught(lambda: object().nothing),  # type: ignore[attr-defined]
    "stop": lambda: StopIteration(3),
    "process": lambda: subprocess.CalledProcessError(3, ["a"], b"out", b"err"),
    "json": lambda: caught(lambda: json.loads("{")),
    "group": lambda: ExceptionGroup("g", [BuildsItsMessage("x"), OfTheSystem("y"), ExceptionGroup("h", [KeyError(1)])]),
    "group that takes more": lambda: CodedGroup("g", [BuildsItsMessage("x"), KeyError(1)], 7),
    "no arguments": Exception,
    "many": lambda: Exception(1, "a", None, [1]),
    "slots": lambda: HasSlots(3),
    "hides its args": lambda: HidesItsArgs("m", 3),
    "task failed": lambda: TaskFailed("t", task_id="1_2", reason="r"),
}


def told(error: BaseException) -> dict[str, Any]:
    names = (
        "errno", "strerror", "filename", "filename2", "code", "name", "path", "msg", "lineno", "start", "end", "reason", "value", "empty",
        "nothing", "__notes__",
    )
    found = {name: getattr(error, name) for name in names if hasattr(error, name)}
    args = [told(arg) if isinstance(arg, BaseException) else arg for arg in error.args if not isinstance(arg, list)]
    inside = [told(one) for one in getattr(error, "exceptions", ())]
    return {"type": type(error), "text": str(error), "args": args, "inside": inside, "attributes": vars(error), **found}


@pytest.mark.parametrize("name", CASES)
def test_class_text_arguments_and_attributes_are_the_same(name: str) -> None:
    error = raised(CASES[name])
    error.add_note("a note")
    assert told(travelled(error)) == told(error)


@pytest.mark.parametrize("make", [lambda: Frozen(3), lambda: Frozen(code=3), lambda: FrozenSlots(code=3), lambda: RefusesAttributes(3)])
def test_an_exception_that_refuses_changes_arrives_as_it_was_raised(make: Callable[[], BaseException]) -> None:
    def fail() -> None:
        try:
            raise KeyError("first")
        except KeyError as first:
            raise make() from first

    error = caught(fail)
    found = travelled(error)
    assert (type(found), found.args, str(found)) == (type(error), error.args, str(error))
    assert (vars(found), found.code) == (vars(error), 3)  # type: ignore[attr-defined]
    assert isinstance(found.__cause__, KeyError)
    assert isinstance(found.__cause__.__cause__, RemoteTraceback)


def test_exceptions_that_an_exception_holds_arrive_too() -> None:
    found = travelled(raised(lambda: HoldsOthers(one=TakesOthers(code=3, why="so"), two=BuildsItsMessage("a"))))
    assert isinstance(found, HoldsOthers)
    assert {name: told(error) for name, error in found.errors.items()} == {
        "one": told(TakesOthers(code=3, why="so")),
        "two": told(BuildsItsMessage("a")),
    }


@pytest.mark.parametrize("error", [TakesOthers(code=3, why="so"), Frozen(code=3), Frozen(3), HidesItsArgs("m", 3)])
def test_an_exception_that_python_cannot_unpickle_arrives_as_a_value(error: Exception) -> None:
    def same(found: object) -> bool:
        return type(found) is type(error) and vars(found) == vars(error) and str(found) == str(error)

    kept = loads(dump_value([error, TakesOthers, (error, error), error, 7]))
    assert same(kept[0])
    assert kept[1] is TakesOthers
    assert kept[2][0] is kept[2][1] is kept[0] is kept[3]
    assert kept[4] == 7
    outcome = Outcome(index=2, state=State.COMPLETED, value=dump_value(error), pickled=True)
    assert same(value_of(Settled(outcome, "n1", 1), 7, None, 1.0))  # type: ignore[arg-type]


def test_what_else_cannot_be_unpickled_is_said_as_it_is() -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        loads(pickle.dumps(RaisesWhenRead()))
    with pytest.raises(TypeError, match="takes 1 positional argument but 2 were given"):
        loads(pickle.dumps([TakesOthers(code=3, why="so"), RaisesWhenRead()]))


def test_a_module_that_raises_while_it_is_imported_is_imported_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "raises_at_import.py").write_text("import sys\nsys.times_imported += 1\nraise RuntimeError('no')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "times_imported", 0, raising=False)
    with pytest.raises(RuntimeError, match="no"):
        loads(b"craises_at_import\nname\n.")
    assert sys.times_imported == 1  # type: ignore[attr-defined]


def test_the_remote_traceback_is_the_cause_and_the_context_stays() -> None:
    def fail() -> None:
        try:
            raise KeyError("first")
        except KeyError:
            raise BuildsItsMessage("second")  # noqa: B904 - without a cause, here

    found = travelled(caught(fail))
    assert isinstance(found.__cause__, RemoteTraceback)
    assert "During handling of the above exception" in str(found.__cause__)
    assert isinstance(found.__context__, KeyError)
    assert found.__suppress_context__ is False


def test_a_cause_of_its_own_stays_and_the_remote_traceback_is_at_the_end() -> None:
    def fail() -> None:
        try:
            try:
                raise OfTheSystem("deep")
            except OSError as error:
                raise KeyError("middle") from error
        except KeyError as error:
            raise BuildsItsMessage("top") from error

    found = travelled(caught(fail))
    assert isinstance(found.__cause__, KeyError)
    deepest = found.__cause__.__cause__
    assert isinstance(deepest, OfTheSystem)
    assert (deepest.errno, deepest.extra) == (2, 7)
    assert isinstance(deepest.__cause__, RemoteTraceback)
    assert found.__context__ is found.__cause__
    assert found.__suppress_context__


def test_a_suppressed_context_stays_suppressed() -> None:
    def fail() -> None:
        try:
            raise KeyError("first")
        except KeyError:
            raise ValueError("second") from None

    found = travelled(caught(fail))
    assert isinstance(found.__context__, KeyError)
    assert found.__suppress_context__


def test_a_chain_in_a_circle_ends() -> None:
    one, two = ValueError("one"), KeyError("two")
    one.__cause__, two.__cause__ = two, one
    found = travelled(one)
    assert isinstance(found, ValueError)
    assert isinstance(found.__cause__, KeyError)


def test_a_long_chain_is_cut() -> None:
    error: BaseException = ValueError(0)
    for number in range(1, 5000):
        later = ValueError(number)
        later.__cause__ = error
        error = later
    assert travelled(error).args == (4999,)


def test_what_cannot_be_pickled_is_left_out_and_the_rest_arrives() -> None:
    with socket.socket() as connection:
        error = BuildsItsMessage("a")
        error.connection = connection  # type: ignore[attr-defined]
        error.args = ("a", connection)
        found = travelled(raised(lambda: error))
    assert isinstance(found, BuildsItsMessage)
    assert found.key == "a"
    assert not hasattr(found, "connection")
    assert found.args[0] == "a"
    assert "socket" in found.args[1]


def test_what_raises_while_it_is_shown_or_built_arrives_in_words() -> None:
    assert isinstance(travelled(raised(Unreadable)), Unreadable)

    class Local(Exception):
        def __reduce__(self) -> Any:
            raise RuntimeError("never")

    found = travelled(raised(lambda: Local("words")))
    assert isinstance(found, RemoteError)
    assert "words" in str(found)


@pytest.mark.parametrize("is_damaged", [False, True])
def test_an_exception_with_a_long_message_is_fetched_from_the_store(is_damaged: bool) -> None:
    data, line = dump_exception(raised(lambda: ValueError("x" * 10_000)))
    store = MemoryStore()
    store.put(keys.output(7, 2, 3), data[1:] if is_damaged else data, encoding=Encoding.PICKLE)
    outcome = Outcome(
        index=2, state=State.FAILED, reason=Reason.EXCEPTION, error=line, value_size=len(data), value_sha256=hashlib.sha256(data).digest()
    )
    settled = Settled(outcome, "n1", 3)
    error = error_of(settled, 7, raised_by(settled, 7, store, None))
    assert isinstance(error, TaskFailed if is_damaged else ValueError)


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, GeneratorExit])
def test_what_would_end_the_client_arrives_as_a_failure(kind: type[BaseException]) -> None:
    data, line = dump_exception(raised(lambda: kind(3)))
    outcome = Outcome(index=2, state=State.FAILED, reason=Reason.EXCEPTION, value=data, error=line)
    settled = Settled(outcome, "n1", 1)
    error = error_of(settled, 7, raised_by(settled, 7, MemoryStore(), None))
    assert isinstance(error, TaskFailed)
    assert type(error.__cause__) is kind
    assert error.__cause__.args == (3,)
    assert "7_2" in str(error)


class RaisesWhenRead:
    def __reduce__(self) -> tuple[Any, ...]:
        return int, ("x",)


class EndsWhoReadsIt:
    def __reduce__(self) -> tuple[Any, ...]:
        return sys.exit, (3,)


def test_a_result_that_would_end_who_reads_it_is_an_error() -> None:
    with pytest.raises(PickleFailed, match="SystemExit: 3"):
        load(pickle.dumps(EndsWhoReadsIt()), Encoding.PICKLE, "the result of task 7_2")
    outcome = Outcome(index=2, state=State.COMPLETED, value=pickle.dumps(EndsWhoReadsIt()), pickled=True)
    with pytest.raises(PickleFailed, match="SystemExit: 3"):
        value_of(Settled(outcome, "n1", 1), 7, None, 1.0)  # type: ignore[arg-type]


def test_a_cancelled_task_is_a_cancelled_error() -> None:
    outcome = Outcome(index=0, state=State.CANCELLED, reason=Reason.USER_CANCEL)
    assert isinstance(error_of(Settled(outcome, "", 1), 7, None), CancelledError)
