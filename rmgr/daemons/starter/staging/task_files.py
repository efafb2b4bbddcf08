"""Files of single tasks, made before these start: inputs of keyed calls that are too large for a message, work directories of commands.

Runs on IO threads. What is made is counted against the room for staged files (`core/uploads.py`), and is removed when it
cannot be finished.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from rmgr.coord.protocol.ports import Store
from rmgr.daemons.starter.core.blocks import ClaimedBlock
from rmgr.daemons.starter.core.uploads import GivenUpError, StagingShare, Uploads, Wish, disk_bytes, on_disk
from rmgr.daemons.starter.staging.accounts import Accounts, hand_over
from rmgr.daemons.starter.staging.inputs import Input, Inputs
from rmgr.errors import NotFound, PermissionDenied, UsageError, ValueTooLarge
from rmgr.model.tasks.block import KeyedPayload
from rmgr.model.tasks.submission import Command
from rmgr.model.wire.frames import MAX_INLINE_PAYLOAD, KeyedCall, KeyedInput
from rmgr.runner.host.files import remove_tree
from rmgr.runtime import machine

if TYPE_CHECKING:
    from rmgr.daemons.starter.staging.stage import FoundInputs, Want

#: Input values up to this many bytes travel in the message, larger ones as files.
INLINE_INPUT = 256 * 1024
#: Bytes of one step of a file's name, and of all (what is above it is ours).
_MAX_STEP, _MAX_NAME = 255, 3000
_PLACEHOLDER = re.compile(r"%([jatxN%])")


@dataclass(slots=True, kw_only=True)
class Staged:
    """Staged inputs of a task. payload: its message, or (str) a file with it. directory: its work directory."""

    payload: bytes | str = b""
    directory: str = ""
    files: tuple[str, ...] = ()
    outputs: int = 0
    disk_bytes: int = 0  #: taken of the room
    user: str = ""
    took_s: float = 0.0
    since_s: float = -math.inf  #: when it was ready (monotonic)
    memory_bytes: int = 0  #: of its message


class TaskFiles:
    """Makes the files of tasks of one node.

    Args: directory: for files and work directories. accounts: whose the files are to be, None = the Starter's.
    """

    def __init__(self, inputs: Inputs, uploads: Uploads, directory: Path, accounts: Accounts | None) -> None:
        self._inputs = inputs
        self._uploads = uploads
        self._room = uploads.room
        self._directory = directory
        self._accounts = accounts
        directory.mkdir(parents=True, exist_ok=True)
        if accounts is not None:
            directory.chmod(0o711)

    def make(
        self, store: Store, block: ClaimedBlock, index: int, wish: Wish, want: Want | None = None, found: FoundInputs | None = None
    ) -> Staged:
        """Makes the files of a task: all that a command needs, those inputs of a keyed call (`want`, `found`) that must be files.

        Raises: NoRoom, GivenUpError, NotFound, PermissionDenied, UsageError, StoreUnavailable, OSError.
        """
        begun_s = machine.monotonic() if want is None else want.since_s
        info = block.info
        what = f"task {block.key.submission}_{info.label(index) if info.array is not None else index}"
        share = StagingShare(self._room, wish, what, info.record.user)
        account = self._accounts.resolve(info.record.user) if self._accounts is not None else None
        staged = Staged()
        try:
            if want is not None and found is not None:
                staged = self._stage_call(store, want.keyed, found, share)
            else:
                staged = self._stage_command(store, block, share)
            if account is not None:
                for path in filter(None, (*staged.files, staged.directory)):
                    hand_over(Path(path), account)
            staged.disk_bytes = sum(disk_bytes(Path(path)) for path in filter(None, (*staged.files, staged.directory)))
            if not wish.is_wanted:
                raise GivenUpError
        except BaseException:
            remove_files(staged)
            share.settle(0)
            raise
        share.settle(staged.disk_bytes)
        staged.user = info.record.user
        staged.since_s = machine.monotonic()
        staged.took_s = staged.since_s - begun_s
        return staged

    def _stage_call(self, store: Store, keyed: KeyedPayload, found: FoundInputs, share: StagingShare) -> Staged:
        inputs: list[KeyedInput] = []
        files: list[str] = []
        left_bytes = MAX_INLINE_PAYLOAD - INLINE_INPUT
        try:
            for user_key, one in zip(keyed.inputs, found.inputs, strict=True):
                if one.data is not None and one.size <= left_bytes:
                    left_bytes -= one.size
                    inputs.append(KeyedInput(data=one.data, pickled=one.pickled))
                else:
                    inputs.append(self._input(store, user_key, one, files, share))
            call = encode_call(inputs, keyed)
            if len(call) > MAX_INLINE_PAYLOAD:
                files.append(self._new_file())
                share.making(on_disk(len(call)))
                Path(files[-1]).write_bytes(call)
                return Staged(payload=files[-1], files=tuple(files), outputs=len(keyed.outputs))
        except BaseException:
            remove_files(Staged(files=tuple(files)))
            raise
        return Staged(payload=call, files=tuple(files), outputs=len(keyed.outputs), memory_bytes=len(call))

    def _input(self, store: Store, user_key: str, found_in: Input, files: list[str], share: StagingShare) -> KeyedInput:
        share.making(on_disk(found_in.size))
        files.append(self._new_file())
        if found_in.data is not None:
            Path(files[-1]).write_bytes(found_in.data)
        elif self._accounts is not None:
            to_file(store, user_key, found_in, files[-1], share)  # handed over to its user; what is fetched may be the store's own
        else:
            try:
                found = store.fetch(found_in.row, files[-1], largest=found_in.size, is_compared=False)
            except ValueTooLarge:  # another one by now: its room is taken as it comes
                to_file(store, user_key, found_in, files[-1], share)
                return KeyedInput(pickled=found_in.pickled, path=files[-1])
            if found is None:
                raise NotFound(f"the value of the input key {user_key!r} is gone")
            found_in.check(user_key, found[1])
            if found[0] is None:
                return KeyedInput(pickled=found_in.pickled, path=files[-1], sha256=found[1], key=user_key)
            Path(files[-1]).write_bytes(found[0])
        return KeyedInput(pickled=found_in.pickled, path=files[-1])

    def _stage_command(self, store: Store, block: ClaimedBlock, share: StagingShare) -> Staged:
        command: Command = block.info.record.command
        with contextlib.ExitStack() as stack:
            kept = []
            for upload in command.uploads:
                used = self._uploads.kept(store, upload.sha256, name=upload.name, held_bytes=share.held_bytes)
                kept.append(stack.enter_context(used))
                share.held_bytes += kept[-1].disk_bytes
            rows = self._inputs.find(store, block.info.record.user, [key for key, _ in command.input_files], trust=None)
            sizes = [on_disk(one.size) for one in rows]
            share.take(sum(one.copy_bytes for one in kept) + sum(sizes))
            directory = self._directory / machine.guid()
            directory.mkdir(mode=0o755 if self._accounts is None else 0o700)
            try:
                for found_in, size, (key, name) in zip(rows, sizes, command.input_files, strict=True):  # first: no upload's link is there
                    target = inside(directory, name)
                    make_way(directory, target, name)
                    share.making(size)
                    to_file(store, key, found_in, str(target), share)
                for upload, one in zip(command.uploads, kept, strict=True):
                    self._uploads.copy(one, directory / plain(upload.name), name=upload.name, is_dir=upload.is_dir, check=share.making)
            except BaseException:
                remove_tree(directory)
                raise
        return Staged(directory=str(directory))

    def _new_file(self) -> str:
        return str(self._directory / machine.guid())


def encode_call(inputs: list[KeyedInput], keyed: KeyedPayload) -> bytes:
    """The message of a task."""
    return msgspec.msgpack.encode(KeyedCall(tuple(inputs), len(keyed.outputs)))


def remove_files(staged: Staged) -> None:
    """Removes what was made for a task."""
    for path in staged.files:
        Path(path).unlink(missing_ok=True)
    if staged.directory:
        remove_tree(Path(staged.directory))


# -- files -----------------------------------------------------------------------------------------------------------------
# Files of staged work: names that lead nowhere else, and values that go from the data store into them.


def inside(directory: Path, name: str) -> Path:
    """`name` below `directory`. Raises: PermissionDenied when it leads elsewhere."""
    target = Path(os.path.normpath(directory / name))
    if directory != target and directory not in target.parents:
        raise PermissionDenied(f"the file name {name!r} leads out of the work directory")
    return target


def make_way(directory: Path, target: Path, name: str) -> None:
    """Makes the directories on the way to a file. Raises: UsageError for a name that no file can have here."""
    steps = target.relative_to(directory).parts
    if not steps or "\0" in name or len(os.fsencode(name)) > _MAX_NAME or any(len(os.fsencode(step)) > _MAX_STEP for step in steps):
        raise UsageError(f"no file can have the name {name[:80]!r} ({len(name)} characters)")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise UsageError(f"the input file {name[:80]!r} lies below another input file") from None
    if target.is_dir():
        raise UsageError(f"the input file {name[:80]!r} has the name of a directory with other input files")


def plain(name: str) -> str:
    """The name of an upload: one step below the work directory. Raises: PermissionDenied, UsageError."""
    if len(os.fsencode(name)) > _MAX_STEP:
        raise UsageError(f"no file can have the name {name[:80]!r} ({len(name)} characters)")
    if name in {"", ".", ".."} or "/" in name or "\0" in name:
        raise PermissionDenied(f"the upload has the name {name!r}, which is no file name")
    return name


def to_file(store: Store, key: str, found_in: Input, path: str, share: StagingShare) -> None:
    """The value of an input as a file; its size has its room already. Raises: NotFound, NoRoom, ValueTooLarge, GivenUpError."""
    chunks = store.stream(found_in.row)
    if chunks is None:
        raise NotFound(f"{found_in.row} is not in the data store")
    digest, size = hashlib.sha256(), 0
    with open(path, "wb") as file:
        for chunk in chunks:
            size += len(chunk)
            share.making(max(0, min(len(chunk), size - found_in.size)))  # one that is larger by now; raises once nobody waits for it
            file.write(chunk)
            if found_in.about is not None:
                digest.update(chunk)
    found_in.check(key, digest.digest())


# -- names of output files -------------------------------------------------------------------------------------------------
# Placeholders in the names of output files: %j job, %a array index, %t attempt, %x name, %N node, %% a percent sign.


def expand(pattern: str, info: Any, index: int, attempt: int, node: str) -> str:
    """`pattern` for one attempt of one task; what is not a placeholder stays."""
    if "%" not in pattern:
        return pattern
    values = {
        "j": str(info.record.id),
        "a": str(info.label(index)),
        "t": str(attempt),
        "x": info.record.name.replace("/", "_"),
        "N": node,
        "%": "%",
    }
    return _PLACEHOLDER.sub(lambda match: values[match[1]], pattern)


def has_own_name(pattern: str) -> bool:
    """Each task of a submission has a file of its own."""
    return any(match[1] == "a" for match in _PLACEHOLDER.finditer(pattern))
