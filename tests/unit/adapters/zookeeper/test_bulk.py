"""Bulk reads on ZooKeeper's wire: the bytes of a request, and every kind of result in an answer."""

from __future__ import annotations

import struct
from concurrent.futures import Future
from typing import Any

import pytest

from rmgr.adapters.zookeeper.session import allowed, gather
from rmgr.adapters.zookeeper.wire import BulkRead, Refused
from rmgr.coord.protocol.multi import Stamped, Stat
from rmgr.errors import PermissionDenied, RmgrError

END = bytes.fromhex("ffffffff01ffffffff")


def result(data: bytes | None, **stat: int) -> bytes:
    """One GetDataResponse in a multi response."""
    names = ("czxid", "mzxid", "ctime", "mtime", "version", "cversion", "aversion", "owner", "length", "children", "pzxid")
    fields = [stat.get(name, 0) for name in names]
    body = struct.pack("!i", -1) if data is None else struct.pack("!i", len(data)) + data
    return struct.pack("!iBi", 4, 0, 0) + body + struct.pack("!qqqqiiiqiiq", *fields)


def error(code: int) -> bytes:
    return struct.pack("!iBii", -1, 0, code, code)


def test_a_request_is_a_getdata_without_watch_for_each_path() -> None:
    # type 4, not done, no error; the path; no watch. Then the end.
    assert BulkRead.type == 22
    assert BulkRead(["/a", "/b/ü"]).serialize() == bytes.fromhex(
        "0000000400ffffffff" "00000002" "2f61" "00" "0000000400ffffffff" "00000005" "2f622fc3bc" "00"
    ) + END  # fmt: skip


def test_an_answer_is_data_and_stat_or_none_each() -> None:
    answer = result(b"abc", mzxid=1 << 40, mtime=5, version=3, cversion=7, owner=9, children=1) + error(-101) + result(None) + result(b"")
    found = BulkRead(["/a", "/b", "/c", "/d"]).deserialize(b"head" + answer + END, 4)
    nothing = Stat(version=0, mzxid=0, children=0, creates=0, ephemeral_owner=0, mtime_ms=0)
    assert found == [
        Stamped(b"abc", Stat(version=3, mzxid=1 << 40, children=1, creates=4, ephemeral_owner=9, mtime_ms=5)),
        None,
        Stamped(b"", nothing),
        Stamped(b"", nothing),
    ]


@pytest.mark.parametrize(("code", "kind"), [(-102, PermissionDenied), (-4, RmgrError)])
def test_one_that_may_not_be_read_is_named(code: int, kind: type[RmgrError]) -> None:
    found = BulkRead(["/a", "/b"]).deserialize(result(b"abc") + error(code) + END, 0)
    assert found == Refused(1, code)
    told: Any = allowed(["/a", "/b"], found)
    assert type(told) is kind
    assert "/b" in told.message


def test_parts_are_one_list_when_the_last_has_come_and_one_error_is_the_answer() -> None:
    parts: list[Future[Any]] = [Future(), Future(), Future()]
    whole = gather(parts)
    parts[2].set_result([3])
    parts[0].set_result([1, None])
    assert not whole.done()
    parts[1].set_result([2])
    assert whole.result(0) == [1, None, 2, 3]
    parts = [Future(), Future()]
    whole = gather(parts)
    parts[0].set_exception(RmgrError("it was lost"))
    parts[1].set_result([1])
    with pytest.raises(RmgrError, match="it was lost"):
        whole.result(0)
