"""An uploaded archive that was made to take a node's disk, memory or time is refused before it does."""

from __future__ import annotations

import contextlib
import io
import resource
import tarfile
from pathlib import Path

import pytest

from rmgr.daemons.starter.core import uploads as starter_unpack
from rmgr.daemons.starter.core.uploads import unpack
from rmgr.errors import DataLost, PermissionDenied

MIB = 1024 * 1024


def member(name: str, kind: bytes = tarfile.REGTYPE, size: int = 0, linkname: str = "", **pax: str) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.size, made.linkname, made.pax_headers = kind, size, linkname, pax
    return made


def archive(path: Path, *members: tarfile.TarInfo, data: bytes = b"", layout: int = tarfile.PAX_FORMAT) -> Path:
    with path.open("wb") as file:
        for one in members:
            file.write(one.tobuf(layout))
            if one.isreg():
                file.write(data + b"\0" * (-len(data) % 512))
        file.write(b"\0" * 1024)
    return path


def made_in(target: Path) -> tuple[int, int]:
    """(things, bytes of files) below it."""
    found = list(target.rglob("*"))
    return len(found), sum(one.lstat().st_size for one in found if one.is_file() and not one.is_symlink())


@pytest.fixture
def target(tmp_path: Path) -> Path:
    made = tmp_path / "target"
    made.mkdir()
    return made


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starter_unpack, "MAX_UPLOAD_MEMBERS", 50)


@pytest.mark.parametrize("kind", [tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.DIRTYPE, tarfile.REGTYPE])
def test_links_files_and_directories_count(tmp_path: Path, target: Path, kind: bytes) -> None:
    data = b"x" * 10
    first = member("first", size=len(data))
    others = [member(f"m{n}", kind, size=len(data) if kind == tarfile.REGTYPE else 0, linkname="first") for n in range(60)]
    with pytest.raises(PermissionDenied, match="larger unpacked than it may be"):
        unpack(archive(tmp_path / "a.tar", first, *others, data=data), target, name="up", max_bytes=MIB)
    assert made_in(target)[0] <= 50


def test_directories_on_the_way_count_and_are_checked_for_room(tmp_path: Path, target: Path) -> None:
    path = archive(tmp_path / "a.tar", *(member(f"{n}/" + "/".join("d" * 20) + "/f") for n in range(5)))
    with pytest.raises(PermissionDenied, match="larger unpacked"):
        unpack(path, target, name="up", max_bytes=MIB)
    asked: list[int] = []
    one = archive(tmp_path / "b.tar", member("/".join("e" * 20) + "/f"))
    unpack(one, target, name="up", max_bytes=MIB, check=asked.append)
    assert sum(asked) == 20 * 4096


def test_hard_links_count_with_what_they_copy(tmp_path: Path, target: Path) -> None:
    data = b"x" * (100 * 1024)
    links = [member(f"l{n}", tarfile.LNKTYPE, linkname="first") for n in range(40)]
    path = archive(tmp_path / "a.tar", member("first", size=len(data)), *links, data=data)
    asked: list[int] = []
    with pytest.raises(PermissionDenied, match="larger unpacked"):
        unpack(path, target, name="up", max_bytes=MIB, check=asked.append)
    assert made_in(target)[1] <= MIB
    assert sum(asked) <= 2 * MIB


@pytest.mark.parametrize("layout", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_a_negative_size_gives_nothing_back(tmp_path: Path, target: Path, layout: int) -> None:
    data = b"x" * (100 * 1024)
    less = member("less", size=-(10**9) if layout == tarfile.GNU_FORMAT else 0)
    less.pax_headers = {"size": str(-(10**9))} if layout == tarfile.PAX_FORMAT else {}
    links = [member(f"l{n}", tarfile.LNKTYPE, linkname="first") for n in range(40)]
    path = tmp_path / "a.tar"
    path.write_bytes(
        member("first", size=len(data)).tobuf(layout)
        + data
        + b"\0" * (-len(data) % 512)
        + less.tobuf(layout)
        + b"".join(link.tobuf(layout) for link in links)
        + b"\0" * 1024
    )
    with contextlib.suppress(PermissionDenied, DataLost):
        unpack(path, target, name="up", max_bytes=MIB)
    assert made_in(target)[1] <= MIB


@pytest.mark.parametrize("steps", [["d"] * 2000, ["n" * 300]])
def test_paths_have_a_length(tmp_path: Path, target: Path, steps: list[str]) -> None:
    with pytest.raises(PermissionDenied, match="path is too long"):
        unpack(archive(tmp_path / "a.tar", member("/".join(steps))), target, name="up", max_bytes=MIB)
    assert made_in(target) == (0, 0)


def test_headers_have_a_length(tmp_path: Path, target: Path) -> None:
    path = archive(tmp_path / "a.tar", member("f", comment="x" * 64 * MIB))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(DataLost, match="too long"):
        unpack(path, target, name="up", max_bytes=MIB)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 32 * 1024


def test_headers_of_headers_have_an_end(tmp_path: Path, target: Path) -> None:
    one = member("f", tarfile.GNUTYPE_LONGNAME, size=2).tobuf(tarfile.GNU_FORMAT) + b"x\0" + b"\0" * 510
    path = tmp_path / "a.tar"
    path.write_bytes(one * 20_000 + member("f").tobuf() + b"\0" * 1024)
    with pytest.raises(DataLost):
        unpack(path, target, name="up", max_bytes=MIB)


def test_what_was_not_meant_to_harm_is_unpacked(tmp_path: Path, target: Path) -> None:
    source = tmp_path / "source"
    (source / "a" / "b").mkdir(parents=True)
    (source / "a" / "f").write_bytes(b"f" * 1000)
    (source / "a" / "b" / "link").symlink_to("../f")
    (source / "a" / "hard").hardlink_to(source / "a" / "f")
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        tar.add(source, ".")
    (tmp_path / "a.tar").write_bytes(buffer.getvalue())
    unpack(tmp_path / "a.tar", target, name="up", max_bytes=MIB)
    assert (target / "a" / "b" / "link").read_bytes() == b"f" * 1000
    assert (target / "a" / "hard").read_bytes() == b"f" * 1000
