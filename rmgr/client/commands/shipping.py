"""Stores scripts, files and directories that travel to the nodes, once each, by the hash of their content."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rmgr.client.commands.request import ScriptText
from rmgr.client.values.content import put_once
from rmgr.coord.protocol import keys
from rmgr.errors import UsageError, ValueTooLarge
from rmgr.model.base.units import format_size
from rmgr.model.tasks.submission import MAX_UPLOAD_BYTES, MAX_UPLOAD_MEMBERS, Upload

if TYPE_CHECKING:
    from rmgr.client.commands.doors import HasStore


def ship_script(host: HasStore, script: ScriptText, python: str = "") -> str:
    """Stores the script's text; returns its hash. `python` replaces the interpreter of a `#!...python` line."""
    return _store(host, _script_text(script, python))


def script_sha256(script: ScriptText, python: str = "") -> str:
    """The hash that `ship_script` returns; nothing is stored."""
    return hashlib.sha256(_script_text(script, python)).hexdigest()


def _script_text(script: ScriptText, python: str) -> bytes:
    text = script.text
    if python:
        head, newline, rest = text.partition(b"\n")
        if head.startswith(b"#!") and b"python" in head:
            text = b"#!" + os.fsencode(python) + newline + rest
        elif not head.startswith(b"#!") and script.name.endswith(".py"):
            text = b"#!" + os.fsencode(python) + b"\n" + text
    return text


def ship_stdin(host: HasStore, name: str) -> str:
    """Stores what the work is to read from its standard input; `-` is ours. Raises UsageError, ValueTooLarge."""
    try:
        with contextlib.nullcontext(sys.stdin.buffer) if name == "-" else Path(name).open("rb") as file:
            data = file.read(MAX_UPLOAD_BYTES + 1)
    except OSError as error:
        raise UsageError(f"--stdin: {name} cannot be read: {error.strerror}", hint="name a file, or - for stdin") from error
    if len(data) > MAX_UPLOAD_BYTES:
        raise _too_large(f"--stdin {name}", len(data))
    return _store(host, data)


def ship_lines(host: HasStore, lines: Sequence[bytes]) -> str:
    """Stores the lines of `--each-line`, so that tasks can be run again; "" where they are too many for that."""
    data = b"\n".join(lines)
    return _store(host, data) if len(data) <= MAX_UPLOAD_BYTES else ""


def ship_uploads(host: HasStore, names: Sequence[str]) -> tuple[Upload, ...]:
    """Stores files as they are and directories as archives. Raises UsageError, ValueTooLarge."""
    uploads = []
    for name in names:
        path = Path(name)
        shown = _shown(name)
        try:
            if path.is_dir():
                uploads.append(Upload(name=shown, sha256=_store(host, pack_directory(path)), is_dir=True))
            elif path.is_file():
                uploads.append(Upload(name=shown, sha256=_store(host, _content(path))))
            elif path.exists():
                raise UsageError(f"--upload: {name} is neither a file nor a directory", hint="pipes, sockets and devices cannot travel")
            else:
                raise UsageError(f"--upload: there is no file or directory {name}", hint="paths are those of this machine")
        except OSError as error:
            raise UsageError(f"--upload: {error.filename or name} cannot be read: {error.strerror}") from None
    if len({upload.name for upload in uploads}) != len(uploads):
        raise UsageError("--upload: two of them have the same name", hint="put them into one directory and upload that")
    return tuple(uploads)


def pack_directory(directory: Path) -> bytes:
    """A tar archive whose bytes depend on names, modes and contents only, so that the same code is stored once.

    Raises: UsageError naming what cannot travel (special files, links that lead out of the directory); ValueTooLarge; OSError.
    """
    import tarfile

    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for count, path in enumerate(_tree(directory)):
            if count >= MAX_UPLOAD_MEMBERS:
                raise ValueTooLarge(f"--upload: {directory} has more than {MAX_UPLOAD_MEMBERS} files", hint="pack them into one file first")
            inside = path.relative_to(directory)
            tar.inodes.clear()  # type: ignore[attr-defined]  # a second name of a file is a file of its own
            member = tar.gettarinfo(path, arcname=str(inside))
            member.mtime, member.uid, member.gid, member.uname, member.gname = 0, 0, 0, "", ""
            if member.issym():
                _check_link(directory, inside, member.linkname)
            if out.tell() + member.size > MAX_UPLOAD_BYTES:
                raise _too_large(str(directory), out.tell() + member.size)
            if member.isreg():
                with path.open("rb") as content:
                    tar.addfile(member, content)
            else:
                tar.addfile(member)
    return out.getvalue()


def _tree(directory: Path) -> Iterator[Path]:
    """Everything below, by name; caches of Python left out, no link followed. Raises: UsageError, OSError."""
    with os.scandir(directory) as entries:
        found = sorted(entries, key=lambda entry: entry.name)
    for entry in found:
        if entry.name == "__pycache__":
            continue
        path = Path(entry.path)
        if entry.is_dir(follow_symlinks=False):
            yield path
            yield from _tree(path)
        elif entry.is_file(follow_symlinks=False) or entry.is_symlink():
            yield path
        else:
            raise UsageError(f"--upload: {path} is neither a file, a directory nor a link", hint="pipes, sockets and devices cannot travel")


def _check_link(directory: Path, inside: Path, to: str) -> None:
    """A link must lead to something that travels with it: on the node nothing else is there."""
    where = os.path.normpath(inside.parent / to)
    if os.path.isabs(to) or where.split(os.sep)[0] == "..":
        raise UsageError(
            f"--upload: the link {directory / inside} leads out of {directory}, to {to}",
            hint="replace it by what it leads to, or leave it out",
        )


def _content(path: Path) -> bytes:
    size = path.stat().st_size
    if size > MAX_UPLOAD_BYTES:
        raise _too_large(str(path), size)
    return path.read_bytes()


def _shown(name: str) -> str:
    """The name in the work directory."""
    shown = os.path.basename(os.path.abspath(name))
    try:
        shown.encode()
    except UnicodeEncodeError:
        told = f"--upload: the name of {os.fsencode(name)!r} is not UTF-8"
        raise UsageError(told, hint="rename it, or put it into a directory") from None
    if not shown:
        raise UsageError(f"--upload: {name} has no name to go by in the work directory", hint="name a directory below it")
    return shown


def _too_large(name: str, size: int) -> ValueTooLarge:
    limit = format_size(MAX_UPLOAD_BYTES)
    return ValueTooLarge(f"{name} has {format_size(size)} or more; the limit is {limit}", hint="use a shared file system, or several")


def _store(host: HasStore, data: bytes) -> str:
    digest = hashlib.sha256(data).hexdigest()
    store, key = host.data_store(), keys.upload(digest)
    timeout_s = host.left_s(30.0) or 30.0
    if store.head(key, timeout_s=timeout_s) is None:
        put_once(store, key, data, timeout_s=timeout_s)
    return digest
