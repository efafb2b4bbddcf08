"""What single tasks need before they start: values of their input keys, work directories with files in them.

Tasks at the head of a block are staged a few at a time on IO threads, ahead of the lanes; a block whose tasks need
nothing passes through untouched.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import msgspec

from rmgr.adapters.leftovers import remove_tree
from rmgr.adapters.store_rules import fetch
from rmgr.coord.ports import Encoding, Store
from rmgr.coord.records import decode_keyed
from rmgr.daemons.starter_accounts import Accounts, hand_over
from rmgr.daemons.starter_arguments import Piece
from rmgr.daemons.starter_blocks import ClaimedBlock
from rmgr.daemons.starter_fetch import Failure, reason_of
from rmgr.daemons.starter_inputs import Inputs
from rmgr.daemons.starter_io import StoreIO
from rmgr.daemons.starter_names import expand, has_own_name
from rmgr.daemons.starter_uploads import Uploads
from rmgr.errors import NotFound, PermissionDenied, RmgrError
from rmgr.model.frames import MAX_INLINE_PAYLOAD, KeyedCall, KeyedInput
from rmgr.model.submission import Command

#: Tasks of a block staged ahead of the lanes.
_AHEAD = 16
#: Input values up to this many bytes travel in the message, larger ones as files.
_INLINE_INPUT = 256 * 1024


@dataclass(slots=True, kw_only=True)
class Staged:
    """What a task starts with. payload: its message, or (str) a file with it. directory: its work directory."""

    payload: bytes | str = b""
    directory: str = ""
    files: tuple[str, ...] = ()
    outputs: int = 0


@dataclass(slots=True)
class _State:
    needed: bool
    here: dict[int, Staged] = field(default_factory=dict)
    coming: set[int] = field(default_factory=set)


class Stager:
    """Stages tasks of one node.

    Args:
        wake: tells the owner that something was staged. directory: for files and work directories.
        accounts: whose the files are to be, None = the Starter's.
        on_unstartable: tells (block, indices, failure) of tasks that cannot be started. uploads: of all nodes of the Starter.
    """

    def __init__(
        self,
        io: StoreIO,
        inputs: Inputs,
        *,
        wake: Callable[[], None],
        directory: Path,
        on_unstartable: Callable[[ClaimedBlock, list[int], Failure], None],
        uploads: Uploads,
        accounts: Accounts | None = None,
    ) -> None:
        self._io = io
        self._accounts = accounts
        self._inputs = inputs
        self._uploads = uploads
        self._wake = wake
        self._directory = directory
        self._on_unstartable = on_unstartable
        self._states: dict[ClaimedBlock, _State] = {}
        directory.mkdir(parents=True, exist_ok=True)
        if accounts is not None:
            directory.chmod(0o711)

    def is_needed(self, block: ClaimedBlock) -> bool:
        """Its tasks must be staged one by one."""
        state = self._states.get(block)
        if state is None:
            if block.is_dropped:
                return False
            command: Command | None = block.info.record.command
            needed = block.data.keyed or (command is not None and bool(command.uploads or command.input_files))
            state = self._states[block] = _State(needed)
        return state.needed

    def startable(self, block: ClaimedBlock) -> int:
        """How many tasks at the head of its ready ones may start now; sees to it that more follow."""
        if not self.is_needed(block):
            return len(block.ready)
        state = self._states[block]
        count = 0
        for index in islice(block.ready, _AHEAD):
            if index not in state.here:
                break
            count += 1
        for index in islice(block.ready, _AHEAD):
            if index not in state.here and index not in state.coming:
                state.coming.add(index)
                self._io.run(
                    lambda store, index=index: self._stage(store, block, index),  # type: ignore[misc]
                    lambda result, index=index: self._staged(block, state, index, result),  # type: ignore[misc]
                    is_read=True,
                )
        return count

    def take(self, block: ClaimedBlock, index: int) -> Staged | None:
        """What a staged task starts with."""
        state = self._states.get(block)
        return state.here.get(index) if state is not None else None

    def done(self, block: ClaimedBlock, index: int) -> None:
        """The task is over: its files go."""
        state = self._states.get(block)
        staged = state.here.pop(index, None) if state is not None else None
        if staged is not None:
            self._remove(staged)

    def forget(self, block: ClaimedBlock) -> None:
        """The block is over."""
        state = self._states.pop(block, None)
        if state is not None:
            for staged in state.here.values():
                self._remove(staged)
            state.here.clear()
            state.needed = False

    def outputs_of(self, block: ClaimedBlock, index: int) -> tuple[str, ...]:
        """Output keys of a task in the keyed form."""
        if not block.data.keyed:
            return ()
        payload = block.payload(index)
        return decode_keyed(payload.read() if isinstance(payload, Piece) else payload).outputs

    # -- files that the user named -------------------------------------------------------------------------------------------

    def named_outputs(self, block: ClaimedBlock, index: int) -> tuple[str, str]:
        """Files for stdout and stderr of a command: those that the user named, "" where the directory does not exist here."""
        command: Command | None = block.info.record.command
        if command is None or not (command.out or command.err):
            return "", ""
        found = []
        for pattern in (command.out, command.err):
            name = expand(pattern, block.info, index, block.key.attempt, block.node)
            path = os.path.join(command.cwd, name) if name else ""
            found.append(path if path and os.path.isabs(path) and os.path.isdir(os.path.dirname(path)) else "")
        return found[0], found[1]

    def appends(self, block: ClaimedBlock) -> bool:
        """Several tasks write into one named file."""
        command: Command | None = block.info.record.command
        return command is not None and any(name and not has_own_name(name) for name in (command.out, command.err))

    # -- on an IO thread --------------------------------------------------------------------------------------------------------

    def _stage(self, store: Store, block: ClaimedBlock, index: int) -> Staged:
        account = self._accounts.resolve(block.info.record.user) if self._accounts is not None else None
        call = block.data.keyed
        staged = self._stage_call(store, block, index) if call else self._stage_command(store, block.info.record.command)
        if account is not None:
            try:
                for path in filter(None, (*staged.files, staged.directory)):
                    hand_over(Path(path), account)
            except OSError:
                self._remove_now(staged)
                raise
        return staged

    def _stage_call(self, store: Store, block: ClaimedBlock, index: int) -> Staged:
        payload = block.payload(index)
        keyed = decode_keyed(payload.read() if isinstance(payload, Piece) else payload)
        rows = self._inputs.rows(store, keyed.inputs)
        inputs: list[KeyedInput] = []
        files: list[str] = []
        try:
            for user_key, row in zip(keyed.inputs, rows, strict=True):
                inputs.append(self._input(store, user_key, row, files))
            call = msgspec.msgpack.encode(KeyedCall(tuple(inputs), len(keyed.outputs)))
            if len(call) > MAX_INLINE_PAYLOAD:
                path = self._new_file()
                files.append(path)
                Path(path).write_bytes(call)
                return Staged(payload=path, files=tuple(files), outputs=len(keyed.outputs))
        except BaseException:
            self._remove_now(Staged(files=tuple(files)))
            raise
        return Staged(payload=call, files=tuple(files), outputs=len(keyed.outputs))

    def _input(self, store: Store, user_key: str, row: str, files: list[str]) -> KeyedInput:
        head = store.head(row)
        if head is None:
            raise NotFound(f"the value of the input key {user_key!r} is gone")
        pickled = head[1] is Encoding.PICKLE
        if head[0] <= _INLINE_INPUT:
            value = store.get(row)
            if value is None:
                raise NotFound(f"the value of the input key {user_key!r} is gone")
            return KeyedInput(data=value[0], pickled=pickled)
        files.append(self._new_file())
        if self._accounts is not None:
            _to_file(store, row, files[-1])  # handed over to its user; what is fetched may be the store's own
        elif (found := fetch(store, row, files[-1])) is None:
            raise NotFound(f"the value of the input key {user_key!r} is gone")
        elif found[0] is not None:
            Path(files[-1]).write_bytes(found[0])
        return KeyedInput(pickled=pickled, path=files[-1])

    def _stage_command(self, store: Store, command: Command) -> Staged:
        directory = self._directory / uuid.uuid4().hex
        directory.mkdir(mode=0o755 if self._accounts is None else 0o700)
        try:
            if command.input_files:  # first: no link of an upload is there yet
                rows = self._inputs.rows(store, [key for key, _ in command.input_files])
                for row, (_, name) in zip(rows, command.input_files, strict=True):
                    target = inside(directory, name)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    _to_file(store, row, str(target))
            for upload in command.uploads:
                target = directory / _plain(upload.name)
                self._uploads.place(store, upload.sha256, target, name=upload.name, is_dir=upload.is_dir)
        except BaseException:
            shutil.rmtree(directory, ignore_errors=True)
            raise
        return Staged(directory=str(directory))

    def _new_file(self) -> str:
        return str(self._directory / uuid.uuid4().hex)

    # -- back on the owner's thread ----------------------------------------------------------------------------------------------

    def _staged(self, block: ClaimedBlock, state: _State, index: int, result: Staged | Exception) -> None:
        state.coming.discard(index)
        if not state.needed:  # the block is over
            if isinstance(result, Staged):
                self._remove(result)
            return
        if isinstance(result, Staged):
            state.here[index] = result
        elif index in block.ready:
            why = Failure(reason_of(result), _sentence(result), blames_node=not isinstance(result, PermissionDenied))
            self._on_unstartable(block, block.take_ready([index]), why)
        self._wake()

    def _remove(self, staged: Staged) -> None:
        if staged.files or staged.directory:
            self._io.run(lambda _store: self._remove_now(staged), lambda _result: None)

    def _remove_now(self, staged: Staged) -> None:
        for path in staged.files:
            Path(path).unlink(missing_ok=True)
        if staged.directory:
            remove_tree(Path(staged.directory))


def inside(directory: Path, name: str) -> Path:
    """`name` below `directory`. Raises: PermissionDenied when it leads elsewhere."""
    target = Path(os.path.normpath(directory / name))
    if directory != target and directory not in target.parents:
        raise PermissionDenied(f"the file name {name!r} leads out of the work directory")
    return target


def _plain(name: str) -> str:
    """The name of an upload: one step below the work directory. Raises: PermissionDenied."""
    if name in {"", ".", ".."} or "/" in name or "\0" in name:
        raise PermissionDenied(f"the upload has the name {name!r}, which is no file name")
    return name


def _to_file(store: Store, row: str, path: str) -> None:
    chunks = store.stream(row)
    if chunks is None:
        raise NotFound(f"{row} is not in the data store")
    with open(path, "wb") as file:
        file.writelines(chunks)


def _sentence(error: Exception) -> str:
    return error.message if isinstance(error, RmgrError) else f"{type(error).__name__}: {error}"
