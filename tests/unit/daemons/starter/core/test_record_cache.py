"""Records of submissions that cannot be read: how long they are left alone, and how much is written about them."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from rmgr.audit_book import AuditBook
from rmgr.coord.protocol.multi import Stamped, Stat
from rmgr.coord.protocol.records import encode_record
from rmgr.daemons.starter.core import submissions
from rmgr.daemons.starter.core.submissions import RecordCache
from rmgr.errors import DataLost
from rmgr.model.cluster.queue import ClusterSettings
from rmgr.model.tasks.submission import Command, Submission, Work


def test_numbers_that_there_are_not_fill_no_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submissions, "BOOK", AuditBook(5))
    told: list[str] = []
    cache: Any = SimpleNamespace(
        _refused_s={}, _pauses_s={}, _refused_whys={}, _log=SimpleNamespace(warning=lambda event, **_: told.append(event))
    )
    cache._told_often = lambda more: RecordCache._told_often(cache, more)
    for number in range(1000):
        RecordCache._refuse(cache, number, "its record is gone")
    assert told == ["submission_not_readable"] * 5


def asked_cache() -> tuple[RecordCache, list[Future[Stamped | None]]]:
    """A cache, and what it asks for."""
    asked: list[Future[Stamped | None]] = []

    def get(_path: str) -> Future[Stamped | None]:
        asked.append(Future())
        return asked[-1]

    cache = RecordCache(
        SimpleNamespace(get=get, session_id=1),  # type: ignore[arg-type]
        SimpleNamespace(post=lambda call: call()),  # type: ignore[arg-type]
        settings=ClusterSettings,
        log=SimpleNamespace(warning=lambda *_, **__: None),  # type: ignore[arg-type]
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
    stat = Stat(version=0, mzxid=7, children=0, creates=0, ephemeral_owner=0, mtime_ms=0, czxid=7)
    asked[-1].set_result(Stamped(encode_record(record), stat))
    info = cache.get(43)
    assert info.record == record
    assert cache.get(44) is None
    asked[-1].set_result(None)
    assert cache.is_refused(44), "work of it is there, and it is not"


def test_a_record_that_names_a_row_for_its_command_is_refused_and_the_row_is_never_read() -> None:
    cache, asked = asked_cache()
    record = Submission(id=45, name="x", user="u", queue="q", work=Work.COMMAND, spec_sha256="e" * 64)
    assert cache.get(45) is None
    stat = Stat(version=0, mzxid=7, children=0, creates=0, ephemeral_owner=0, mtime_ms=0, czxid=7)
    asked[-1].set_result(Stamped(encode_record(record), stat))
    info = cache.get(45)
    assert "spec_sha256" in info.refusal
