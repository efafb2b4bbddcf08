"""`rmgr store`: bytes in, bytes out, listings, sums, exit codes; over a real SQLite file and without a cluster."""

from __future__ import annotations

import io
import json
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rmgr.adapters.sqlite.store import SqliteStore
from rmgr.cli import main
from rmgr.cli import store as store_values
from rmgr.cli.store import Opened, find
from rmgr.client.values import Values
from rmgr.coord.protocol import keys
from rmgr.coord.protocol.ports import Encoding
from rmgr.errors import DataLost, NotFound, PermissionDenied
from tests.harness.store_adapters import flip_bit, value_file

BINARY = bytes(range(256)) * 5000


class Shell:
    """Runs `rmgr store ...` in this process."""

    def __init__(self, path: Path, capture: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
        self.path = path
        self._capture = capture
        self._monkeypatch = monkeypatch
        self.error = ""

    def __call__(self, *arguments: str, code: int = 0, stdin: bytes = b"") -> bytes:
        self._monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        self._capture.readouterr()
        found = main.run(["store", *arguments, "--store", f"sqlite:{self.path}"])
        sys.stdout.flush()
        out, error = self._capture.readouterr()
        self.error = error.decode()
        assert found == code, self.error
        return out

    def json(self, *arguments: str, code: int = 0, stdin: bytes = b"") -> Any:
        document = json.loads(self(*arguments, "--json", code=code, stdin=stdin))
        assert document.pop("schema") == "rmgr/1"
        return document


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    with SqliteStore(tmp_path / "store.db") as opened:
        yield opened


@pytest.fixture
def shell(store: SqliteStore, bare_home: Path, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> Shell:
    return Shell(bare_home / "store.db", capfdbinary, monkeypatch)


def test_bytes_from_a_file_come_back_as_they_were(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(BINARY)
    assert shell("put", "in/7", str(tmp_path / "in")) == b""
    assert shell("get", "in/7") == BINARY
    assert shell("get", "in/7", "-o", str(tmp_path / "out")) == b""
    assert (tmp_path / "out").read_bytes() == BINARY
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == 0o666 & ~mask
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".")) == []


def test_values_come_from_stdin_and_from_the_command_line(shell: Shell, store: SqliteStore) -> None:
    shell("put", "a", stdin=BINARY)
    shell("put", "b", "-", stdin=b"")
    shell("put", "c", "--value", "H 0 0 0 é")
    assert shell("get", "a") == BINARY
    assert shell("get", "b") == b""
    assert shell("get", "c") == "H 0 0 0 é".encode()
    assert store.keys() == ["name/a", "name/b", "name/c"], "what users name never meets rmgr's own rows"


def test_put_replaces_or_refuses(shell: Shell) -> None:
    shell("put", "k", "--value", "1")
    assert shell.json("put", "k", "--value", "22") == {"key": "k", "bytes": 2}
    document = shell.json("put", "k", "--value", "3", "--no-overwrite", code=1)
    assert document["error"]["code"] == "CONFLICT"
    assert shell("get", "k") == b"22"


def test_ls_lists_keys_in_order_and_by_prefix(shell: Shell, store: SqliteStore) -> None:
    for key in ("out/2", "out/1", "in/1", "ünter/€"):
        shell("put", key, "--value", key)
    store.put(keys.named("out/3"), b"\x80\x04N.", encoding=Encoding.PICKLE)
    store.put(keys.named("out/4"), keys.encode_pointer(keys.Pointer(sub=4, index=2)), encoding=Encoding.POINTER)
    store.put("fn/" + "0" * 64, b"internal")
    assert shell("ls").decode().split() == ["in/1", "out/1", "out/2", "out/3", "out/4", "ünter/€"]
    assert shell("ls", "out/", "-n", "2").decode().split() == ["out/1", "out/2"]
    assert shell("ls", "out/", "--after", "out/2").decode().split() == ["out/3", "out/4"]
    assert shell("ls", "nothing") == b""
    assert shell("ls", "-l", "out/").decode().splitlines() == [
        "SIZE  KIND    KEY", "   5  bytes   out/1", "   5  bytes   out/2", "   4  python  out/3", "      output  out/4"
    ]


def test_ls_json_pages_with_a_cursor(shell: Shell) -> None:
    for n in range(5):
        shell("put", f"k{n}", "--value", "x" * n)
    first = shell.json("ls", "k", "-n", "2")
    assert first == {"keys": [{"key": "k0", "bytes": 0, "kind": "bytes"}, {"key": "k1", "bytes": 1, "kind": "bytes"}], "next": "k1"}
    second = shell.json("ls", "k", "-n", "3", "--after", "k1")
    assert [entry["key"] for entry in second["keys"]] == ["k2", "k3", "k4"]
    assert second["next"] is None


def test_ls_reads_many_pages(shell: Shell, store: SqliteStore) -> None:
    store.put_many([(keys.named(f"k{n:05d}"), b"") for n in range(2500)])
    assert len(shell("ls").split()) == 2500


def test_get_json_tells_text_as_text_and_bytes_in_base64(shell: Shell, store: SqliteStore) -> None:
    shell("put", "text", "--value", "héllo")
    shell("put", "bytes", stdin=b"\xff\x00")
    store.put(keys.named("object"), b"\x80\x04N.", encoding=Encoding.PICKLE)
    assert shell.json("get", "text") == {"key": "text", "bytes": 6, "encoding": "raw", "text": "héllo"}
    assert shell.json("get", "bytes") == {"key": "bytes", "bytes": 2, "encoding": "raw", "base64": "/wA="}
    assert shell.json("get", "object") == {"key": "object", "bytes": 4, "encoding": "pickle", "base64": "gAROLg=="}


def test_a_pickle_goes_to_a_pipe_or_a_file_but_not_to_a_terminal(
    shell: Shell, store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put(keys.named("object"), b"\x80\x04N.", encoding=Encoding.PICKLE)
    assert shell("get", "object") == b"\x80\x04N."
    monkeypatch.setattr(store_values, "refuse_on_terminal", lambda found, _: _refuse(found))
    assert shell("get", "object", code=2) == b""
    assert "rmgr.connect().store.get('object')" in shell.error
    assert shell("get", "object", "-o", str(tmp_path / "pickle")) == b""
    assert (tmp_path / "pickle").read_bytes() == b"\x80\x04N."


_refuse_on_terminal = store_values.refuse_on_terminal


def _refuse(found: store_values.FoundValue) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    _refuse_on_terminal(found, Terminal())


def test_a_missing_key_is_exit_3_with_a_hint(shell: Shell) -> None:
    shell("put", "out/7", "--value", "1")
    assert shell("get", "out", code=3) == b""
    assert "there is no value 'out'" in shell.error
    assert "'out/7'" in shell.error
    assert shell.json("get", "nothing", code=3)["error"]["code"] == "NOT_FOUND"


def test_rm_deletes_and_tells_what_was_not_there(shell: Shell) -> None:
    for key in ("a", "b", "tmp/1", "tmp/2", "tmpx"):
        shell("put", key, "--value", "1")
    assert shell("rm", "a", "nothing", code=3) == b""
    assert "no such key: nothing" in shell.error
    assert shell.json("rm", "-f", "a", "b") == {"deleted": ["b"], "missing": ["a"]}
    assert shell.json("rm", "--prefix", "tmp/") == {"deleted": ["tmp/1", "tmp/2"], "missing": []}
    assert shell("ls").split() == [b"tmpx"]
    shell("rm", code=2)
    shell("rm", "--prefix", "", code=2)
    assert shell("ls").split() == [b"tmpx"]


def test_du_counts_values_of_users_and_with_all_everything(shell: Shell, store: SqliteStore) -> None:
    shell("put", "a/1", "--value", "12345")
    shell("put", "b", "--value", "1")
    store.put(keys.log(1, 0, 1, "stdout", 0), b"hello")
    assert shell.json("du") == {"prefix": "", "values": 2, "bytes": 6}
    assert shell.json("du", "a/") == {"prefix": "a/", "values": 1, "bytes": 5}
    assert shell.json("du", "--all")["kinds"] == [
        {"kind": "values of users", "values": 2, "bytes": 6},
        {"kind": "logs", "values": 1, "bytes": 5},
    ]
    assert shell("du", "a/").decode().splitlines() == ["VALUES  SIZE  KIND", "     1     5  a/"]
    shell("du", "--all", "a/", code=2)


def test_wrong_sources_are_told_before_anything_is_written(shell: Shell, tmp_path: Path) -> None:
    shell("put", "k", str(tmp_path / "nothing"), code=2)
    shell("put", "k", str(tmp_path), code=2)
    assert "tar c" in shell.error
    shell("put", "", "--value", "1", code=2)
    shell("put", "x" * 1001, "--value", "1", code=2)
    assert shell("ls") == b""


def test_a_device_without_an_end_is_refused_and_an_empty_one_is_an_empty_value(shell: Shell, store: SqliteStore) -> None:
    shell("put", "endless", "/dev/zero", code=2)
    assert "head -c 1M /dev/zero | rmgr store put KEY" in shell.error
    assert store.keys("name/") == []
    shell("put", "empty", "/dev/null")
    assert store.get(keys.named("empty")) == (b"", Encoding.RAW)


def test_a_target_that_cannot_be_written_is_told(shell: Shell, tmp_path: Path) -> None:
    shell("put", "k", "--value", "1")
    shell("get", "k", "-o", str(tmp_path), code=2)
    assert f"-o {tmp_path}/k" in shell.error
    shell("get", "k", "-o", str(tmp_path / "no" / "where"), code=2)


def test_a_damaged_value_is_exit_125_and_leaves_no_file(shell: Shell, store: SqliteStore, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(BINARY)
    shell("put", "k", str(tmp_path / "in"))
    path = value_file(shell.path, "name/k")
    assert path is not None
    flip_bit(path, 5)
    shell("get", "k", "-o", str(tmp_path / "out"), code=125)
    assert "damaged" in shell.error
    assert not (tmp_path / "out").exists()


def test_a_store_that_is_not_there_is_exit_5_and_is_not_made(shell: Shell, tmp_path: Path) -> None:
    shell.path = tmp_path / "other.db"
    shell("ls", code=5)
    assert "there is no store" in shell.error
    assert not shell.path.exists()


def test_no_store_at_all_says_rmgr_dev(shell: Shell, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert main.run(["store", "ls"]) == 5
    assert b"rmgr dev" in capfdbinary.readouterr().err


@pytest.mark.parametrize("name", ["ls", "put", "get", "rm", "du"])
def test_help_has_examples_and_exit_codes(shell: Shell, name: str) -> None:
    text = shell(name, "--help").decode()
    assert "Examples:\n  rmgr store" in text or "Examples:\n  echo" in text
    assert "Exit codes:" in text


# -- outputs: pointers ----------------------------------------------------------------------------------------------------


def test_an_output_is_read_where_its_task_left_it(store: SqliteStore) -> None:
    pointer = keys.Pointer(sub=4, index=2, n=1, by="guid")
    store.put(keys.named("out/2"), keys.encode_pointer(pointer), encoding=Encoding.POINTER)
    store.put(keys.output(4, 2, 3, 1), b"\x80\x04N.", encoding=Encoding.PICKLE)
    asked = []

    def locate(user_key: str, wanted: keys.Pointer) -> str:
        asked.append((user_key, wanted))
        return keys.output(4, 2, 3, 1)

    found = find(Opened(store=store, timeout_s=5, locate=locate, owned=lambda: Values(store, None)), "out/2")
    assert (b"".join(found.parts()), found.encoding, found.size) == (b"\x80\x04N.", Encoding.PICKLE, 4)
    assert asked == [("out/2", pointer)]
    store.delete(keys.output(4, 2, 3, 1))
    with pytest.raises(DataLost, match="4_2"):
        find(Opened(store=store, timeout_s=5, locate=locate, owned=lambda: Values(store, None)), "out/2")


def test_an_output_of_collected_work_needs_no_cluster(shell: Shell, store: SqliteStore) -> None:
    pointer = keys.Pointer(sub=4, index=2)
    store.put(keys.named("out/2"), keys.encode_pointer(pointer), encoding=Encoding.POINTER)
    shell("get", "out/2", code=5)  # no cluster to ask
    store.put(keys.final(pointer), b"42")
    assert shell("get", "out/2") == b"42"
    shell("put", "out/2", "--value", "own")
    assert store.get(keys.final(pointer)) is None, "nothing points to it any more"
    assert shell("get", "out/2") == b"own"


def test_rm_of_an_output_takes_its_final_value_along(shell: Shell, store: SqliteStore) -> None:
    pointer = keys.Pointer(sub=4, index=2)
    store.put(keys.named("out/2"), keys.encode_pointer(pointer), encoding=Encoding.POINTER)
    store.put(keys.final(pointer), b"42")
    shell("rm", "out/2")
    assert store.keys() == []
    with pytest.raises(NotFound):
        find(Opened(store=store, timeout_s=5, locate=lambda *_: "", owned=lambda: Values(store, None)), "out/2")


def test_rm_of_somebody_elses_output_goes_on_where_his_value_may_not_be_touched(store: SqliteStore, tmp_path: Path) -> None:
    class Guarded(SqliteStore):
        """As through a gateway of the release before."""

        def delete(self, key: str, *, timeout_s: float = 30.0) -> bool:
            if key.startswith("final/"):
                raise PermissionDenied("4 belongs to anna")
            return super().delete(key, timeout_s=timeout_s)

    store.put(keys.named("a"), keys.encode_pointer(keys.Pointer(sub=4, index=2)), encoding=Encoding.POINTER)
    store.put(keys.named("b"), b"1")
    with Guarded(tmp_path / "store.db") as guarded:
        opened = Opened(store=guarded, timeout_s=5, locate=lambda *_: "", owned=lambda: Values(guarded, None))
        assert store_values.remove(opened, ["a", "b"], None) == (["a", "b"], [])
