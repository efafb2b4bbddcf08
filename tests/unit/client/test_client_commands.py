"""Commands of the client: what leaves the submitting machine, names that no node could open, jobs submitted at once."""

from __future__ import annotations

import os
import socket
import sys
import sysconfig
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rmgr.cli.control.operate import move_each
from rmgr.client.commands import sending
from rmgr.client.commands.request import CommandOptions, CommandRequest, command_of
from rmgr.client.commands.sending import pack_directory, ship_uploads
from rmgr.client.specs import Options, draft_of, python_environment, source_directories
from rmgr.coord.decisions.rights import ANYBODY
from rmgr.coord.ops import leader as leader_ops
from rmgr.coord.protocol import keys, paths
from rmgr.coord.protocol.multi import Committed
from rmgr.coord.protocol.records import decode_record
from rmgr.daemons.starter.core.uploads import unpack
from rmgr.errors import CoordinationUnavailable, Infeasible, StateConflict, UsageError, ValueTooLarge
from rmgr.model.block import StopKind, StopRequest
from rmgr.model.submission import OnDisconnect, Work
from rmgr.submitter.answers import Answers
from rmgr.submitter.questions import MoveTask
from tests.harness.memory import MemoryCoordinator
from tests.harness.memory_store import MemoryStore
from tests.harness.memory_tree import MemoryTree
from tests.harness.waiting import eventually


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    made = tmp_path / "tree"
    (made / "sub" / "__pycache__").mkdir(parents=True)
    (made / "sub" / "__pycache__" / "x.pyc").write_bytes(b"cache")
    (made / "sub" / "run.sh").write_text("#!/bin/sh\n")
    (made / "sub" / "run.sh").chmod(0o755)
    (made / "a.txt").write_text("a")
    (made / "link").symlink_to("sub/run.sh")
    os.link(made / "a.txt", made / "twin.txt")
    return made


def session(store: MemoryStore) -> Any:
    return SimpleNamespace(data_store=lambda: store, left_s=lambda default: default)


def test_a_directory_is_the_same_archive_wherever_and_whenever_it_is_packed(tree: Path, tmp_path: Path) -> None:
    first = pack_directory(tree)
    copy = tmp_path / "copy"
    copy.mkdir()
    unpack(put(tmp_path, first), copy, name="tree", max_bytes=1 << 20)
    assert sorted(str(path.relative_to(copy)) for path in copy.rglob("*")) == ["a.txt", "link", "sub", "sub/run.sh", "twin.txt"]
    assert os.access(copy / "sub" / "run.sh", os.X_OK)
    assert pack_directory(copy) == first


def put(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "archive"
    path.write_bytes(data)
    return path


def test_uploads_are_stored_once_by_the_hash_of_their_content(tree: Path) -> None:
    store = MemoryStore("shipping")
    puts: list[str] = []
    store_put = store.put
    store.put = lambda key, *rest, **options: (puts.append(key), store_put(key, *rest, **options))[1]  # type: ignore[method-assign]
    first = ship_uploads(session(store), [str(tree), str(tree / "a.txt")])
    again = ship_uploads(session(store), [f"{tree}/.", str(tree / "a.txt")])
    assert first == again
    assert [upload.name for upload in first] == ["tree", "a.txt"]
    assert puts == [keys.upload(upload.sha256) for upload in first], "each was stored once"


def test_what_cannot_travel_is_named(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore("refused")

    def refused(kind: type[Exception], told: str, *names: Path | str) -> None:
        with pytest.raises(kind, match=told):
            ship_uploads(session(store), [str(name) for name in names])

    refused(UsageError, "there is no file or directory", tree / "absent")
    refused(UsageError, "two of them have the same name", tree / "a.txt", tree / ".." / "tree" / "a.txt")
    refused(UsageError, "no name to go by", "/")
    (tree / "out").symlink_to("/etc/passwd")
    refused(UsageError, "the link .*/tree/out leads out of .*/tree, to /etc/passwd", tree)
    (tree / "out").unlink()
    (tree / "sub" / "up").symlink_to("../../other")
    refused(UsageError, "leads out of", tree)
    (tree / "sub" / "up").unlink()
    (tree / "sub" / "up").symlink_to("../a.txt")
    ship_uploads(session(store), [str(tree)])
    os.mkfifo(tree / "pipe")
    refused(UsageError, "pipe is neither a file, a directory nor a link", tree)
    refused(UsageError, "pipe is neither a file nor a directory", tree / "pipe")
    (tree / "pipe").unlink()
    with socket.socket(socket.AF_UNIX) as listener:
        monkeypatch.chdir(tree)
        listener.bind("sock")
        refused(UsageError, "sock is neither a file, a directory nor a link", tree)
    (tree / "sock").unlink()
    monkeypatch.setattr(sending, "MAX_UPLOAD_BYTES", 10_000)
    with (tree / "huge").open("wb") as file:
        file.truncate(1 << 40)  # refused by its size, not after reading it
    refused(ValueTooLarge, "huge has 1.0T or more", tree / "huge")
    refused(ValueTooLarge, "tree has 1.0T or more", tree)
    (tree / "huge").unlink()
    monkeypatch.setattr(sending, "MAX_UPLOAD_MEMBERS", 3)
    refused(ValueTooLarge, "more than 3 files", tree)
    refused(UsageError, "is not UTF-8", os.fsdecode(bytes(tree) + b"/\xff"))


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


def test_a_directory_that_a_shell_would_have_read_is_suggested_as_it_reads_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    monkeypatch.chdir(tmp_path)
    for given, whole in (("~/run", "/home/ada/run"), ("$HOME/run", "/home/ada/run"), ("run", f"{tmp_path}/run")):
        with pytest.raises(UsageError, match="nodes know no directory of yours") as caught:
            command_of(CommandRequest(options=CommandOptions(cwd=given), words=("true",)))
        assert caught.value.hint == f"the whole path: --cwd={whole}"


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


def test_a_file_that_only_a_node_may_have_a_directory_for_is_marked(tmp_path: Path) -> None:
    def made(**more: str) -> bool:
        return command_of(CommandRequest(options=CommandOptions(**more), words=("true",))).named_only

    assert not made()
    assert not made(out=f"{tmp_path}/%a", err="/dev/null")
    assert made(out=f"{tmp_path}/absent/%a")
    assert made(out=f"{tmp_path}/%a", err="there/x", cwd="/absent")


def test_jobs_are_asked_at_once_and_each_gets_its_own_answer() -> None:
    coordinator = MemoryCoordinator(MemoryTree())
    coordinator.ensure(["/", paths.REQUESTS])
    answers = {
        0: {"done": ((7, 0, "it waits"),)},
        1: {"error": "job 7_1 cannot go elsewhere", "code": "INFEASIBLE", "hint": "rmgr nodes"},
        2: {"left": ((7, 2, "it goes on"),)},
    }

    def lead() -> None:
        """Answers once all three stand there, the last first."""
        eventually(lambda: len(coordinator.children(paths.REQUESTS).result(60) or []) == 3, "three requests")
        found = []
        for guid in coordinator.children(paths.REQUESTS).result(60) or []:
            stamped = coordinator.get(paths.request(guid)).result(60)
            found.append((decode_record(stamped.data, StopRequest), guid, stamped.version))
        for request, guid, version in sorted(found, key=lambda one: -one[0].index):
            answered = replace(request, answered=True, **answers[request.index])  # type: ignore[arg-type]
            assert isinstance(coordinator.commit(leader_ops.answer_request(guid, answered, version)).result(60), Committed)

    leader = threading.Thread(target=lead)
    leader.start()
    asked = [(f"7_{index}", MoveTask(number=7, guid=f"{index:032x}", index=index, attempt=1)) for index in range(3)]
    answering = Answers(coordinator, lambda: None, ANYBODY, owner_of=lambda _: "ann")
    moved, stuck, stays = move_each(answering, asked, deadline_s=time.monotonic() + 60)
    leader.join(60)
    assert isinstance(moved, StopRequest)
    assert moved.done == ((7, 0, "it waits"),)
    assert isinstance(stuck, Infeasible)
    assert stuck.hint == "rmgr nodes"
    assert isinstance(stays, StateConflict)
    assert stays.message == "it goes on"
    coordinator.close()


def test_who_waits_for_a_move_goes_on_waiting_while_zookeeper_is_away() -> None:
    class Away:
        """ZooKeeper falls silent as soon as the order is given, and is back at the third question."""

        asked = 0

        def ask(self, question: Any, *, timeout_s: float = 30.0) -> Any:
            self.asked += 1
            if self.asked in {2, 3}:
                raise CoordinationUnavailable("ZooKeeper: the session was lost")
            return StopRequest(kind=StopKind.MIGRATE, answered=self.asked > 1, done=((7, 0, "it waits"),))

    (moved,) = move_each(Away(), [("7", MoveTask(number=7, guid="a" * 32, attempt=1))], deadline_s=time.monotonic() + 60)
    assert isinstance(moved, StopRequest)
    assert moved.done == ((7, 0, "it waits"),)


def test_who_waits_for_a_move_looks_once_more_before_it_gives_up() -> None:
    deadline_s = time.monotonic() + 0.3

    class Late:
        """The answer stands there as soon as the time is over."""

        def ask(self, question: Any, *, timeout_s: float = 30.0) -> Any:
            return StopRequest(kind=StopKind.MIGRATE, answered=time.monotonic() >= deadline_s, done=((7, 0, "it waits"),))

    (moved,) = move_each(Late(), [("7", MoveTask(number=7, guid="a" * 32, attempt=1))], deadline_s=deadline_s)
    assert isinstance(moved, StopRequest), moved


def test_directories_of_the_user_travel_and_installed_ones_do_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("script", "library", "here", "site-packages"):
        (tmp_path / name).mkdir()
    installed = [sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"), str(tmp_path / "site-packages"), "/no/such/place"]
    monkeypatch.setattr(sys, "path", [str(tmp_path / "script"), *installed, str(tmp_path / "library")])
    monkeypatch.chdir(tmp_path / "here")
    script, library, here = (str(tmp_path / name) for name in ("script", "library", "here"))
    assert source_directories() == (script, "", library, here)
    monkeypatch.setattr(sys, "path", [""])
    assert source_directories() == (os.getcwd(),)
    (tmp_path / "app.pyz").touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path / "app.pyz")])
    assert source_directories() == (str(tmp_path / "app.pyz"), os.getcwd()), "of a program in a zip file"
    half = tmp_path / os.fsdecode(b"\xff")
    half.mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path / "script"), str(half)])
    with pytest.warns(RuntimeWarning, match="is not UTF-8: workers will not find modules there"):
        assert source_directories() == (str(tmp_path / "script"), os.getcwd())


def test_the_words_of_a_program_travel_as_far_as_a_record_holds_them(monkeypatch: pytest.MonkeyPatch) -> None:
    for words, kept in (
        (["main.py", "", "-n", "é"], ("main.py", "", "-n", "é")),
        (["main.py", "x" * 5000], ("main.py",)),
        (["main.py", "\udcff"], ("main.py",)),
        (["main.py", "\0"], ("main.py",)),
        (["main.py", 7], ("main.py",)),
        (["\udcff", "a"], ()),
        ([], ()),
    ):
        monkeypatch.setattr(sys, "argv", words)
        assert python_environment().argv == kept


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
    assert list(kept) == [*map(str, many[: len(kept) - 1]), str(tmp_path)]
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


@pytest.mark.parametrize("bad", [{"name": 5}, {"name": "a\0b"}, {"name": "half \udcff"}, {"token": "half \udcff"}, {"features": "avx,gpu"}])
def test_words_that_no_starter_would_believe_are_refused_before_anything_is_submitted(bad: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=f"{next(iter(bad))} = "):
        draft_of(Options(**{"name": "a", **bad}), work=Work.PYTHON)
    assert draft_of(Options(name="é" * 1000, features=("avx",)), work=Work.PYTHON).name == "é" * 1000
