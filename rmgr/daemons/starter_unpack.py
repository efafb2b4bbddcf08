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

from rmgr.daemons.starter_room import on_disk
from rmgr.errors import DataLost, PermissionDenied
from rmgr.model.submission import MAX_UPLOAD_MEMBERS

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: What a directory or a link takes on disk, at most as a rule.
_ENTRY_BYTES = 4096
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def unpack(archive: str | Path, target: Path, *, name: str, max_bytes: int, check: Callable[[int], None] = lambda _: None) -> None:
    """Unpacks a tar archive below `target`, an existing directory that nobody else can reach yet.

    Args:
        name: of the upload, for messages. max_bytes: of all files that are made, second names included (each is a file of its own).
        check: called before each member is made with what it takes on disk; raises when it is not to be.
    Raises: PermissionDenied naming a member that leads out, is no file, directory or link, or is too much; DataLost for bytes
        that are no archive; OSError.
    """
    links: list[tuple[tuple[str, ...], str]] = []
    left = max_bytes
    root = os.open(target, _DIRECTORY)
    try:
        with tarfile.open(archive, "r:") as tar:
            for count, member in enumerate(tar, 1):
                parts = _parts(member.name, name)
                left -= member.size if member.isreg() else 0
                if left < 0 or count > MAX_UPLOAD_MEMBERS or member.issparse():
                    raise PermissionDenied(f"the upload {name} is larger unpacked than it may be ({member.name})")
                if not parts:
                    continue
                if not member.islnk():
                    check(on_disk(member.size) if member.isreg() else _ENTRY_BYTES)
                if member.issym():
                    links.append((parts, _link(member, parts, name)))
                elif member.isdir():
                    with _inside(root, (*parts,), name):
                        pass
                elif member.isreg() or member.islnk():
                    left -= _file(tar, member, root, parts, name, left, check)
                else:
                    raise PermissionDenied(f"the upload {name} has {member.name}, which is no file, directory or link")
        for parts, to in links:
            with _inside(root, parts[:-1], name) as parent:
                os.symlink(to, parts[-1], dir_fd=parent)
    except tarfile.TarError as error:
        raise DataLost(f"the uploaded directory {name} cannot be unpacked: {error}") from None
    except (FileExistsError, NotADirectoryError) as error:
        raise PermissionDenied(f"the upload {name} has two things of one name: {error.filename}") from None
    finally:
        os.close(root)


def _file(
    tar: tarfile.TarFile, member: tarfile.TarInfo, root: int, parts: tuple[str, ...], name: str, left: int, check: Callable[[int], None]
) -> int:
    """Makes a file; returns the bytes of a second name, which the archive does not hold. left: how many those may be."""
    if member.islnk():  # another name of a file that stands before it in the archive: becomes a file of its own
        source = _parts(member.linkname, name)
        with _inside(root, source[:-1], name) as parent, os.fdopen(_open_old(parent, source, name), "rb") as content:
            stat = os.fstat(content.fileno())
            if stat.st_size > left:
                raise PermissionDenied(f"the upload {name} is larger unpacked than it may be ({member.name})")
            check(on_disk(stat.st_size))
            _write(content, root, parts, stat.st_mode, name)
        return stat.st_size
    content = tar.extractfile(member)  # type: ignore[assignment]
    assert content is not None, "a regular file"
    with content:
        _write(content, root, parts, member.mode, name)
    return 0


def _write(content: IO[bytes], root: int, parts: tuple[str, ...], mode: int, name: str) -> None:
    with _inside(root, parts[:-1], name) as parent:
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
def _inside(root: int, parts: tuple[str, ...], name: str) -> Iterator[int]:
    """The directory `parts` below `root`, made if absent; no step of the way is a link."""
    here = os.dup(root)
    try:
        for part in parts:
            with contextlib.suppress(FileExistsError):
                os.mkdir(part, 0o755, dir_fd=here)
            try:
                below = os.open(part, _DIRECTORY, dir_fd=here)
            except OSError as error:
                raise PermissionDenied(f"the upload {name} has {'/'.join(parts)} below something that is no directory: {error}") from None
            os.close(here)
            here = below
        yield here
    finally:
        os.close(here)


def _parts(path: str, name: str) -> tuple[str, ...]:
    """The steps of a relative path. Raises: PermissionDenied for an absolute one, and one with `..`."""
    pure = PurePosixPath(path)
    if pure.is_absolute() or ".." in pure.parts or "\0" in path:
        raise PermissionDenied(f"the upload {name} has a member {path!r}, which leads out of the work directory")
    return pure.parts


def _link(member: tarfile.TarInfo, parts: tuple[str, ...], name: str) -> str:
    """Where a symbolic link leads. Raises: PermissionDenied if that is, as it is written, outside of the upload."""
    to = member.linkname
    where = os.path.normpath(os.path.join(*parts[:-1], to))
    if os.path.isabs(to) or "\0" in to or where.split(os.sep)[0] == "..":
        raise PermissionDenied(f"the upload {name} has a link {member.name} to {to!r}, which leads out of it")
    return to
