"""Uploaded directories on the node: an archive is unpacked into a work directory, and nothing of it can land anywhere else.

The archive is a user's, and the Starter may be root. So no path is ever followed: each directory on the way is opened by
itself without following links, files are made anew, and symbolic links are made last, when nothing is written any more.
(Python's own filters come with 3.11.4, and a chain of links has led out of them more than once.)
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO

from rmgr.daemons.starter.core.room import on_disk
from rmgr.errors import DataLost, PermissionDenied
from rmgr.model.tasks.submission import MAX_UPLOAD_MEMBERS

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: What a directory or a link takes on disk, at most as a rule.
_ENTRY_BYTES = 4096
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
#: Steps of a path, bytes of one step and of all: every step is opened for every member.
_MAX_STEPS, _MAX_STEP_BYTES, _MAX_PATH_BYTES = 100, 255, 4095
#: Bytes of a header that names a member or says more of it: it is read whole.
_MAX_HEADER_BYTES = 64 * 1024
_HEADERS = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)


class _Member(tarfile.TarInfo):
    """A member whose headers have a bound."""

    def _proc_member(self, tar: tarfile.TarFile) -> tarfile.TarInfo:
        if self.size < 0 or (self.type in _HEADERS and self.size > _MAX_HEADER_BYTES):
            raise tarfile.ReadError("a header that is too long")
        return super()._proc_member(tar)  # type: ignore[misc,no-any-return]


class _Limits:
    """What an upload may still make: contents in bytes (second names too), and things of any kind (directories on the way too)."""

    def __init__(self, name: str, max_bytes: int, check: Callable[[int], None]) -> None:
        self.name = name
        self._bytes = max_bytes
        self._things = MAX_UPLOAD_MEMBERS
        self._check = check

    def read(self) -> None:
        """A member of the archive, whatever becomes of it."""
        self._things -= 1

    def make(self, path: str, size: int, disk_bytes: int) -> None:
        """A thing is about to be made. Raises: PermissionDenied; whatever the caller's check raises."""
        self._bytes -= size
        if size < 0 or self._bytes < 0 or self._things < 0:
            raise PermissionDenied(f"the upload {self.name} is larger unpacked than it may be ({path[:_MAX_PATH_BYTES]})")
        self._check(disk_bytes)

    def directory(self, path: str) -> None:
        """One on the way to a member."""
        self._things -= 1
        self.make(path, 0, _ENTRY_BYTES)


def unpack(archive: str | Path, target: Path, *, name: str, max_bytes: int, check: Callable[[int], None] = lambda _: None) -> None:
    """Unpacks a tar archive below `target`, an existing directory that nobody else can reach yet.

    Args:
        name: of the upload, for messages. max_bytes: of all files that are made, second names included (each is a file of its own).
        check: called before each file, directory or link is made with what it takes on disk; raises when it is not to be.
    Raises: PermissionDenied naming a member that leads out, is no file, directory or link, or is too much (`MAX_UPLOAD_MEMBERS`
        files, directories and links, those on the way included); DataLost for bytes that are no archive; OSError.
    """
    links: list[tuple[tuple[str, ...], str]] = []
    limits = _Limits(name, max_bytes, check)
    root = os.open(target, _DIRECTORY)
    try:
        with tarfile.open(archive, "r:", tarinfo=_Member) as tar:
            for member in tar:
                limits.read()
                parts = _parts(member.name, name)
                if member.issparse():
                    raise PermissionDenied(f"the upload {name} is larger unpacked than it may be ({member.name})")
                if member.issym():
                    limits.make(member.name, 0, _ENTRY_BYTES)
                    if parts:
                        links.append((parts, _link(member, parts, name)))
                elif member.isdir():
                    limits.make(member.name, 0, 0)
                    with _inside(root, (*parts,), limits):
                        pass
                elif member.isreg() or member.islnk():
                    if parts:
                        _file(tar, member, root, parts, limits)
                else:
                    raise PermissionDenied(f"the upload {name} has {member.name}, which is no file, directory or link")
        for parts, to in links:
            with _inside(root, parts[:-1], limits) as parent:
                os.symlink(to, parts[-1], dir_fd=parent)
    except (tarfile.TarError, RecursionError, OverflowError, ValueError) as error:
        raise DataLost(f"the uploaded directory {name} cannot be unpacked: {error}") from None
    except (FileExistsError, NotADirectoryError) as error:
        raise PermissionDenied(f"the upload {name} has two things of one name: {error.filename}") from None
    finally:
        os.close(root)


def _file(tar: tarfile.TarFile, member: tarfile.TarInfo, root: int, parts: tuple[str, ...], limits: _Limits) -> None:
    """Makes a file."""
    name = limits.name
    if member.islnk():  # another name of a file that stands before it in the archive: becomes a file of its own
        source = _parts(member.linkname, name)
        with _inside(root, source[:-1], limits) as parent, os.fdopen(_open_old(parent, source, name), "rb") as content:
            stat = os.fstat(content.fileno())
            limits.make(member.name, stat.st_size, on_disk(stat.st_size))
            _write(content, root, parts, stat.st_mode, limits)
        return
    limits.make(member.name, member.size, on_disk(member.size))
    content = tar.extractfile(member)  # type: ignore[assignment]
    assert content is not None, "a regular file"
    with content:
        _write(content, root, parts, member.mode, limits)


def _write(content: IO[bytes], root: int, parts: tuple[str, ...], mode: int, limits: _Limits) -> None:
    with _inside(root, parts[:-1], limits) as parent:
        out = os.open(parts[-1], _NEW, 0o600, dir_fd=parent)
    with os.fdopen(out, "wb") as file:
        shutil.copyfileobj(content, file, 1 << 20)
        os.fchmod(file.fileno(), mode & 0o755 | 0o600)


def _open_old(parent: int, source: tuple[str, ...], name: str) -> int:
    try:
        return os.open(source[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    except (OSError, IndexError):
        raise PermissionDenied(f"the upload {name} has a link to {'/'.join(source)}, which is no file before it") from None


@contextlib.contextmanager
def _inside(root: int, parts: tuple[str, ...], limits: _Limits) -> Iterator[int]:
    """The directory `parts` below `root`, made if absent; no step of the way is a link."""
    here = os.dup(root)
    try:
        for part in parts:
            try:
                below = _step(here, part, limits)
            except OSError as error:
                raise PermissionDenied(
                    f"the upload {limits.name} has {'/'.join(parts)} below something that is no directory: {error}"
                ) from None
            os.close(here)
            here = below
        yield here
    finally:
        os.close(here)


def _step(here: int, part: str, limits: _Limits) -> int:
    try:
        return os.open(part, _DIRECTORY, dir_fd=here)
    except FileNotFoundError:
        limits.directory(part)
        os.mkdir(part, 0o755, dir_fd=here)
        return os.open(part, _DIRECTORY, dir_fd=here)


def _parts(path: str, name: str) -> tuple[str, ...]:
    """The steps of a relative path. Raises: PermissionDenied for an absolute one, and one with `..`."""
    pure = PurePosixPath(path)
    if pure.is_absolute() or ".." in pure.parts or "\0" in path:
        raise PermissionDenied(f"the upload {name} has a member {path!r}, which leads out of the work directory")
    size = len(os.fsencode(path))
    if size > _MAX_PATH_BYTES or len(pure.parts) > _MAX_STEPS or any(len(os.fsencode(part)) > _MAX_STEP_BYTES for part in pure.parts):
        raise PermissionDenied(f"the upload {name} has a member whose path is too long: {path[:80]!r}... ({size} bytes)")
    return pure.parts


def _link(member: tarfile.TarInfo, parts: tuple[str, ...], name: str) -> str:
    """Where a symbolic link leads. Raises: PermissionDenied if that is, as it is written, outside of the upload."""
    to = member.linkname
    where = os.path.normpath(os.path.join(*parts[:-1], to))
    if len(os.fsencode(to)) > _MAX_PATH_BYTES or os.path.isabs(to) or "\0" in to or where.split(os.sep)[0] == "..":
        raise PermissionDenied(f"the upload {name} has a link {member.name} to {to!r}, which leads out of it"[:_MAX_PATH_BYTES])
    return to
