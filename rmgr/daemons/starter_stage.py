"""What single tasks need before they start: values of their input keys, work directories with files in them.

Tasks at the head of a block are staged a few at a time on IO threads, ahead of the lanes; a block whose tasks need
nothing passes through untouched. What is staged or being staged stays on this node (`kept`); what nobody waits for any more
is given up where it stands. While the room for staged files is full, the first task without room is the next to get it.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import shutil
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from rmgr.adapters.leftovers import remove_tree
from rmgr.adapters.store_rules import fetch, get_hashed
from rmgr.coord.ports import Encoding, Store
from rmgr.coord.records import decode_keyed
from rmgr.daemons.starter_accounts import Accounts, hand_over
from rmgr.daemons.starter_arguments import Piece
from rmgr.daemons.starter_blocks import ClaimedBlock
from rmgr.daemons.starter_fetch import Failure
from rmgr.daemons.starter_inputs import Input, Inputs
from rmgr.daemons.starter_io import StoreIO
from rmgr.daemons.starter_names import expand, has_own_name
from rmgr.daemons.starter_room import GivenUpError, NoRoom, Share, Wish, disk_bytes, on_disk
from rmgr.daemons.starter_uploads import Uploads
from rmgr.errors import NotFound, PermissionDenied, RmgrError, UsageError
from rmgr.model.block import BlockKey
from rmgr.model.frames import MAX_INLINE_PAYLOAD, KeyedCall, KeyedInput
from rmgr.model.submission import Command

#: Tasks of a block staged ahead of the lanes.
_AHEAD = 16
#: Input values up to this many bytes travel in the message, larger ones as files.
_INLINE_INPUT = 256 * 1024
#: A staged task that has waited for a slot this long, and as long as its staging took, may be given away: to stage it again is no loss.
_PATIENCE_S = 1.0
#: A task without room asks again when some was given back, and after this long: what was given back meanwhile was not counted.
_ASK_AGAIN_S = 1.0
#: Bytes of one step of a file's name, and of all (what is above it is ours).
_MAX_STEP, _MAX_NAME = 255, 3000
#: A full room is logged this often at most.
_TOLD_S = 60.0


@dataclass(slots=True, kw_only=True)
class Staged:
    """What a task starts with. payload: its message, or (str) a file with it. directory: its work directory."""

    payload: bytes | str = b""
    directory: str = ""
    files: tuple[str, ...] = ()
    outputs: int = 0
    disk_bytes: int = 0  #: taken of the room
    user: str = ""
    took_s: float = 0.0
    since_s: float = -math.inf  #: when it was ready (monotonic)


@dataclass(slots=True)
class _State:
    needed: bool
    is_fetched: bool = False  #: a task of it was staged: its uploads are on this node
    here: dict[int, Staged] = field(default_factory=dict)
    coming: dict[int, Wish] = field(default_factory=dict)


@dataclass(slots=True)
class _Short:
    """The task that gets the next room. given: `Room.given` when there was none for it, at since_s (monotonic)."""

    block: ClaimedBlock
    index: int
    given: int
    since_s: float


class Stager:
    """Stages tasks of one node.

    Args:
        wake: tells the owner that something was staged. directory: for files and work directories.
        accounts: whose the files are to be, None = the Starter's.
        on_unstartable: tells (block, indices, failure) of tasks that cannot be started. uploads: of all nodes of the Starter.
        blocks: the node's claimed blocks, in the order in which they start (the owner's own dictionary).
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
        blocks: Mapping[BlockKey, ClaimedBlock],
        log: Any,
        accounts: Accounts | None = None,
    ) -> None:
        self._io = io
        self._accounts = accounts
        self._inputs = inputs
        self._uploads = uploads
        self._room = uploads.room
        self._blocks = blocks
        self._log = log
        self._short: dict[str, _Short] = {}  #: by the user whose own limit it is, "" = that of all
        self._told_s = -math.inf  # when the log was told last that the room is full
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
            state = self._states[block] = _State(needed, is_fetched=command is None or not command.uploads)
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
        for index in islice(block.ready, _AHEAD if state.is_fetched else 1):  # the others would wait for the same uploads, each on a thread
            if index not in state.here and index not in state.coming and self._may_begin(block, index):
                wish = state.coming[index] = Wish()
                self._io.run(
                    lambda store, index=index, wish=wish: self._stage(store, block, index, wish),  # type: ignore[misc]
                    lambda result, index=index, wish=wish: self._staged(block, state, index, wish, result),  # type: ignore[misc]
                    is_read=True,
                    is_long=not block.data.keyed,
                )
        return count

    def kept(self, block: ClaimedBlock, now_s: float) -> int:
        """How many of its waiting tasks, from the front on, are not to be given to another node: up to the last one that is
        staged, being staged, or the next to get room. Cost: O(tasks staged ahead)."""
        state = self._states.get(block)
        if state is None or not state.needed:
            return 0
        kept = 0
        for count, index in enumerate(islice(block.ready, _AHEAD), 1):
            staged = state.here.get(index)
            if staged is not None:
                is_kept = now_s - staged.since_s <= max(_PATIENCE_S, staged.took_s)
            else:
                is_kept = index in state.coming or self._is_short(block, index)
            kept = count if is_kept else kept
        return kept

    def take(self, block: ClaimedBlock, index: int) -> Staged | None:
        """What a staged task starts with."""
        state = self._states.get(block)
        return state.here.get(index) if state is not None else None

    def done(self, block: ClaimedBlock, index: int) -> None:
        """The task is over, or not this node's any more: its files go, those that are on their way as well."""
        state = self._states.get(block)
        if state is None:
            return
        wish = state.coming.pop(index, None)
        if wish is not None:
            wish.is_wanted = False
        self._served(block, index)
        staged = state.here.pop(index, None)
        if staged is not None:
            self._remove(staged)

    def forget_lost(self) -> None:
        """What was staged and has been removed is staged again."""
        for block, state in self._states.items():
            for index in [one for one, staged in state.here.items() if one in block.ready]:
                staged = state.here[index]
                if not all(os.path.lexists(path) for path in filter(None, (*staged.files, staged.directory))):
                    self._remove(state.here.pop(index))

    def forget(self, block: ClaimedBlock) -> None:
        """The block is over."""
        state = self._states.get(block)
        if state is not None:
            for index in (*state.here, *state.coming, *(short.index for short in self._short.values())):
                self.done(block, index)
            state.needed = False
            del self._states[block]

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

    def _stage(self, store: Store, block: ClaimedBlock, index: int, wish: Wish) -> Staged:
        begun_s = time.monotonic()
        info = block.info
        what = f"task {block.key.submission}_{info.label(index) if info.array is not None else index}"
        share = Share(self._room, wish, what, info.record.user)
        account = self._accounts.resolve(info.record.user) if self._accounts is not None else None
        staged = Staged()
        try:
            stage = self._stage_call if block.data.keyed else self._stage_command
            staged = stage(store, block, index, share)
            if account is not None:
                for path in filter(None, (*staged.files, staged.directory)):
                    hand_over(Path(path), account)
            staged.disk_bytes = sum(disk_bytes(Path(path)) for path in filter(None, (*staged.files, staged.directory)))
            if not wish.is_wanted:
                raise GivenUpError
        except BaseException:
            _remove_files(staged)
            share.settle(0)
            raise
        share.settle(staged.disk_bytes)
        staged.user = info.record.user
        staged.since_s = time.monotonic()
        staged.took_s = staged.since_s - begun_s
        return staged

    def _stage_call(self, store: Store, block: ClaimedBlock, index: int, share: Share) -> Staged:
        payload = block.payload(index)
        keyed = decode_keyed(payload.read() if isinstance(payload, Piece) else payload)
        user = block.info.record.user
        self._inputs.check_outputs(store, user, keyed.outputs)
        rows = self._inputs.find(store, user, keyed.inputs, trust=keyed.trust)
        inputs: list[KeyedInput] = []
        files: list[str] = []
        try:
            for user_key, row in zip(keyed.inputs, rows, strict=True):
                inputs.append(self._input(store, user_key, row, files, share))
            call = msgspec.msgpack.encode(KeyedCall(tuple(inputs), len(keyed.outputs)))
            if len(call) > MAX_INLINE_PAYLOAD:
                path = self._new_file()
                files.append(path)
                share.making(on_disk(len(call)))
                Path(path).write_bytes(call)
                return Staged(payload=path, files=tuple(files), outputs=len(keyed.outputs))
        except BaseException:
            _remove_files(Staged(files=tuple(files)))
            raise
        return Staged(payload=call, files=tuple(files), outputs=len(keyed.outputs))

    def _input(self, store: Store, user_key: str, found_in: Input, files: list[str], share: Share) -> KeyedInput:
        row = found_in.row
        head = store.head(row) if found_in.about is None else found_in.about[:2]
        if head is None:
            raise NotFound(f"the value of the input key {user_key!r} is gone")
        pickled = head[1] is Encoding.PICKLE
        if head[0] <= _INLINE_INPUT:
            value = get_hashed(store, row)
            if value is None:
                raise NotFound(f"the value of the input key {user_key!r} is gone")
            found_in.check(user_key, value[2])
            return KeyedInput(data=value[0], pickled=pickled)
        share.making(on_disk(head[0]))
        files.append(self._new_file())
        if self._accounts is not None:
            _to_file(store, user_key, found_in, files[-1], share)  # handed over to its user; what is fetched may be the store's own
        elif (found := fetch(store, row, files[-1])) is None:
            raise NotFound(f"the value of the input key {user_key!r} is gone")
        else:
            found_in.check(user_key, found[1])
            if found[0] is not None:
                Path(files[-1]).write_bytes(found[0])
        return KeyedInput(pickled=pickled, path=files[-1])

    def _stage_command(self, store: Store, block: ClaimedBlock, _index: int, share: Share) -> Staged:
        command: Command = block.info.record.command
        with contextlib.ExitStack() as stack:
            kept = []
            for upload in command.uploads:
                used = self._uploads.kept(store, upload.sha256, name=upload.name, held_bytes=share.held_bytes)
                kept.append(stack.enter_context(used))
                share.held_bytes += kept[-1].disk_bytes
            rows = self._inputs.find(store, block.info.record.user, [key for key, _ in command.input_files], trust=None)
            sizes = [on_disk(_size(store, one.row)) for one in rows]
            share.take(sum(one.copy_bytes for one in kept) + sum(sizes))
            directory = self._directory / uuid.uuid4().hex
            directory.mkdir(mode=0o755 if self._accounts is None else 0o700)
            try:
                for found_in, size, (key, name) in zip(rows, sizes, command.input_files, strict=True):  # first: no upload's link is there
                    target = inside(directory, name)
                    _make_way(directory, target, name)
                    share.making(size)
                    _to_file(store, key, found_in, str(target), share)
                for upload, one in zip(command.uploads, kept, strict=True):
                    self._uploads.copy(one, directory / _plain(upload.name), name=upload.name, is_dir=upload.is_dir, check=share.making)
            except BaseException:
                shutil.rmtree(directory, ignore_errors=True)
                raise
        return Staged(directory=str(directory))

    def _new_file(self) -> str:
        return str(self._directory / uuid.uuid4().hex)

    # -- back on the owner's thread ----------------------------------------------------------------------------------------------

    def _staged(self, block: ClaimedBlock, state: _State, index: int, wish: Wish, result: Staged | Exception) -> None:
        if not wish.is_wanted:  # it was given up just when it was ready
            if isinstance(result, Staged):
                self._remove(result)
            return
        del state.coming[index]
        if isinstance(result, NoRoom):
            self._wait_for_room(block, index, result.user)
            return
        self._served(block, index)
        if isinstance(result, Staged):
            state.here[index] = result
            state.is_fetched = True
        elif index in block.ready:
            self._on_unstartable(block, block.take_ready([index]), Failure.of(result, _sentence(result)))
        self._wake()

    # -- when the room is full -------------------------------------------------------------------------------------------------

    def _may_begin(self, block: ClaimedBlock, index: int) -> bool:
        """While a task waits for room no other one takes it away, and it asks again only when something was given back."""
        for user in ("", block.info.record.user) if self._short else ():
            short = self._short.get(user)
            if short is not None:
                is_due = short.given != self._room.given or time.monotonic() > short.since_s + _ASK_AGAIN_S
                if not is_due or short.block is not block or short.index != index:
                    return False
        return True

    def _is_short(self, block: ClaimedBlock, index: int) -> bool:
        return any(short.block is block and short.index == index for short in self._short.values())

    def _served(self, block: ClaimedBlock, index: int) -> None:
        """It waits for room no more."""
        for user in [user for user, short in self._short.items() if short.block is block and short.index == index]:
            del self._short[user]

    def _wait_for_room(self, block: ClaimedBlock, index: int, user: str) -> None:
        """It is the next to get room. Tasks behind it that have not begun give theirs back: they might wait for its cores.

        user: whose own limit is reached, and only his tasks give way; "" = that of all.
        """
        order = {other: number for number, other in enumerate(self._blocks.values())}
        place = order.get(block, len(order)), index
        now_s = time.monotonic()
        short = self._short.get(user)
        if short is None and now_s > self._told_s + _TOLD_S:
            self._told_s = now_s
            why = "staged files fill their room on this node's disk ([starter] staging_cap_bytes)"
            why = f"staged files of {user} fill his room on this node's disk ([starter] staging_cap_user_bytes)" if user else why
            limit = self._room.cap_user_bytes if user else self._room.cap_bytes
            self._log.warning("staging_waits", task_id=f"{block.key.submission}_{index}", why=why, limit=limit)
        if short is None or place <= (order.get(short.block, len(order)), short.index):
            self._short[user] = _Short(block, index, self._room.given, now_s)
        for other, state in self._states.items():
            if user and other.info.record.user != user:
                continue
            for later in [one for one in state.here if one in other.ready and (order.get(other, len(order)), one) > place]:
                self._remove(state.here.pop(later))
        self._wake()

    def _remove(self, staged: Staged) -> None:
        if staged.files or staged.directory:
            self._io.run(lambda _store: self._remove_now(staged), lambda _result: None)

    def _remove_now(self, staged: Staged) -> None:
        _remove_files(staged)
        taken, staged.disk_bytes = staged.disk_bytes, 0
        self._room.settle(taken, 0, user=staged.user)


def _remove_files(staged: Staged) -> None:
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


def _make_way(directory: Path, target: Path, name: str) -> None:
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


def _plain(name: str) -> str:
    """The name of an upload: one step below the work directory. Raises: PermissionDenied, UsageError."""
    if len(os.fsencode(name)) > _MAX_STEP:
        raise UsageError(f"no file can have the name {name[:80]!r} ({len(name)} characters)")
    if name in {"", ".", ".."} or "/" in name or "\0" in name:
        raise PermissionDenied(f"the upload has the name {name!r}, which is no file name")
    return name


def _size(store: Store, row: str) -> int:
    """Bytes of a value, 0 when it is gone."""
    head = store.head(row)
    return head[0] if head is not None else 0


def _to_file(store: Store, key: str, found_in: Input, path: str, share: Share) -> None:
    chunks = store.stream(found_in.row)
    if chunks is None:
        raise NotFound(f"{found_in.row} is not in the data store")
    digest = hashlib.sha256()
    with open(path, "wb") as file:
        for chunk in chunks:
            share.making(0)  # raises once nobody waits for it
            file.write(chunk)
            if found_in.about is not None:
                digest.update(chunk)
    found_in.check(key, digest.digest())


def _sentence(error: Exception) -> str:
    return error.message if isinstance(error, RmgrError) else f"{type(error).__name__}: {error}"
