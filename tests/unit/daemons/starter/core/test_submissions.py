"""A Starter's records of submissions: nonces never older than the records read beside them, and unreadable records."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from rmgr.audit_book import AuditBook
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Committed, Create, Delete, Exists, Gone, Holds, Multi, Op, Set, Stamped, Stat
from rmgr.coord.protocol.records import encode_record
from rmgr.daemons.starter.core import submissions
from rmgr.daemons.starter.core.submissions import Nonces, RecordCache
from rmgr.errors import DataLost
from rmgr.model.queue import ClusterSettings
from rmgr.model.submission import Command, Submission, Work
from tests.harness.memory import MemoryCoordinator
from tests.harness.memory_tree import MemoryTree

A, B = (paths.nonce("ann", letter * 32, 1) for letter in "ab")


class Reading(MemoryCoordinator):
    """Counts what it reads."""

    reads = 0

    def get(self, path: str, **how: Any) -> Future[Stamped | None]:
        self.reads += 1
        return super().get(path, **how)


class World:
    """A tree, one Starter's view of it, and its mailbox, which is emptied by hand."""

    def __init__(self) -> None:
        self.tree = MemoryTree()
        self.leader, self.mine = (Reading(self.tree, session_timeout_s=10.0, guarded=False) for _ in range(2))
        self.leader.ensure(["/", paths.NONCES])
        self.messages: list[Callable[[], None]] = []
        self.nonces = Nonces(self.mine, SimpleNamespace(post=self.messages.append))

    def run(self) -> None:
        while self.messages:
            self.messages.pop(0)()

    def known(self, path: str) -> submissions.Nonce | None:
        self.nonces.ask(path)
        self.run()
        return self.nonces.look(path)

    def commit(self, op: Op) -> None:
        proof = Gone(op.path) if isinstance(op, Delete) else Holds(op.path, op.data) if isinstance(op, Set) else Exists(op.path)
        assert isinstance(self.leader.commit(Multi(name="TEST", ops=(op,), proof=proof)).result(60), Committed)


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    made.commit(Create(A, b"42"))
    yield made
    for coordinator in (made.leader, made.mine):
        coordinator.close()


def test_what_goes_on_is_known_and_then_its_end(world: World) -> None:
    assert world.nonces.look(A) is None
    known = world.known(A)
    assert (known.found.data, known.found.version, known.has_ended) == (b"42", 0, False)
    world.commit(Set(A, b"42", 0))
    assert world.nonces.look(A) is None, "the watch has fired: nothing is believed although no message was opened"
    assert world.known(A).has_ended


def test_an_end_is_a_change_and_is_read_only_for_who_still_has_something_of_it(world: World) -> None:
    world.known(A)
    before, reads = world.nonces.generation, world.mine.reads
    assert not world.nonces.has_ended(A)
    world.commit(Set(A, b"42", 0))
    world.run()
    assert (world.nonces.generation, world.mine.reads, world.tree.watches("data")) == (before + 1, reads, 0)
    assert not world.nonces.has_ended(A), "it is being read"
    world.run()
    assert (world.nonces.generation, world.mine.reads) == (before + 2, reads + 1)
    assert world.nonces.has_ended(A)


def test_an_end_is_known_for_ever(world: World) -> None:
    world.commit(Set(A, b"42", 0))
    assert world.known(A) is not None
    world.mine.drop_link()
    world.commit(Delete(A))
    world.run()
    assert world.nonces.look(A).has_ended
    assert world.nonces.has_ended(A)


def test_what_is_not_there_is_known_until_it_comes(world: World) -> None:
    assert world.known(B).found is None
    world.commit(Create(B, b"43"))
    assert world.nonces.look(B) is None
    assert world.known(B).found is not None


def test_a_change_while_it_is_read_makes_it_be_read_again(world: World) -> None:
    world.nonces.ask(A)
    world.commit(Set(A, b"42", 0))
    assert world.nonces.look(A) is None
    world.run()
    assert world.nonces.look(A) is None
    assert world.known(A).has_ended


def test_a_lost_connection_ends_what_is_believed(world: World) -> None:
    assert world.known(A) is not None
    world.mine.drop_link()
    assert world.nonces.look(A) is None
    assert world.known(A) is not None
    world.commit(Set(A, b"42", 0))
    assert world.known(A).has_ended


def test_what_was_used_long_ago_is_forgotten_and_found_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submissions, "KEEP", 3)
    world.commit(Set(A, b"42", 0))
    assert world.known(A) is not None
    for number in range(5):
        assert world.known(paths.nonce("ann", f"{number:032x}", 1)) is not None
    assert world.nonces.look(A) is None
    assert world.known(A).has_ended


def test_numbers_that_there_are_not_fill_no_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submissions, "BOOK", AuditBook(5))
    told: list[str] = []
    cache, asked = asked_cache(told.append)
    for number in range(1000):
        cache.get(number)
        asked[-1].set_result(None)
        assert cache.is_refused(number)
    assert told == ["submission_not_readable"] * 5


STAT = Stat(version=0, mzxid=7, children=0, creates=0, ephemeral_owner=0, mtime_ms=0, czxid=7)


def asked_cache(told: Callable[[str], None] = lambda _: None) -> tuple[RecordCache, list[Future[Stamped | None]]]:
    """A cache, and what it asks for."""
    asked: list[Future[Stamped | None]] = []

    def get(_path: str) -> Future[Stamped | None]:
        asked.append(Future())
        return asked[-1]

    cache = RecordCache(
        SimpleNamespace(get=get, session_id=1), SimpleNamespace(post=lambda call: call()), settings=ClusterSettings,
        log=SimpleNamespace(warning=lambda event, **_: told(event)),
    )
    return cache, asked


def test_a_number_that_somebody_names_before_its_submission_is_made_is_never_left_alone_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr(submissions.machine, "monotonic", lambda: now_s)
    cache, asked = asked_cache()
    for times in range(1, 9):  # a block that names it stands in the queue
        assert cache.get(43) is None
        assert len(asked) == times
        asked[-1].set_result(None)
        assert cache.is_refused(43)
        assert cache.is_absent(43)
        now_s += 5.0
    cache.get(44)
    for _ in range(8):
        asked[-1].set_exception(DataLost("damaged"))
        assert cache.is_refused(44)
        assert not cache.is_absent(44)
        now_s += 600.0
        assert cache.get(44) is None


def test_a_number_that_somebody_announces_before_its_submission_is_made_is_read_once_there_is_work_of_it() -> None:
    cache, asked = asked_cache()
    for _ in range(3):  # anybody may say so, as often as he likes
        assert cache.get(43, is_announced=True) is None
        asked[-1].set_result(None)
        assert not cache.is_refused(43)
    assert cache.get(43, is_announced=True) is None
    assert cache.get(43) is None  # work of it is met while that answer is under way
    asked[-1].set_result(None)
    assert cache.get(43) is None
    record = Submission(id=43, name="x", user="ann", queue="default", work=Work.COMMAND, command=Command(argv=("true",)))
    asked[-1].set_result(Stamped(encode_record(record), STAT))
    info = cache.get(43)
    assert info.record == record
    assert cache.get(44) is None
    asked[-1].set_result(None)
    assert cache.is_refused(44), "work of it is there, and it is not"


def test_a_record_that_names_a_row_for_its_command_is_refused_and_the_row_is_never_read() -> None:
    cache, asked = asked_cache()
    record = Submission(id=45, name="x", user="u", queue="q", work=Work.COMMAND, spec_sha256="e" * 64)
    assert cache.get(45) is None
    asked[-1].set_result(Stamped(encode_record(record), STAT))
    info = cache.get(45)
    assert "spec_sha256" in info.refusal
