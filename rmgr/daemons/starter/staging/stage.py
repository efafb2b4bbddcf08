"""Stages what single tasks need before they start: values of their input keys, work directories with files in them.

Tasks at the head of a block are staged a few at a time on IO threads, ahead of the lanes; a block whose tasks need
nothing passes through untouched. What is staged or being staged stays on this node (`kept`); what nobody waits for any more
is given up where it stands. While the room for staged files is full, the first task without room is the next to get it.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from rmgr.adapters.host.leftovers import remove_tree
from rmgr.coord.protocol.ports import Store
from rmgr.coord.protocol.records import decode_keyed
from rmgr.daemons.starter.core.arguments import ArgumentsPiece
from rmgr.daemons.starter.core.blocks import ClaimedBlock
from rmgr.daemons.starter.core.estimate import BATCH_TASKS
from rmgr.daemons.starter.core.fetch import FetchFailure
from rmgr.daemons.starter.core.io import StoreIO
from rmgr.daemons.starter.core.room import GivenUpError, NoRoom, StagingShare, Wish, disk_bytes, on_disk
from rmgr.daemons.starter.core.uploads import Uploads
from rmgr.daemons.starter.staging.accounts import Accounts, hand_over
from rmgr.daemons.starter.staging.ahead import CAP_BYTES, INLINE_INPUT, FoundInputs, Message, ReadAhead, Want, encode_call
from rmgr.daemons.starter.staging.inputs import Input, Inputs
from rmgr.daemons.starter.staging.names import expand, has_own_name
from rmgr.daemons.starter.staging.stage_files import inside, make_way, plain, to_file
from rmgr.errors import NotFound, RmgrError
from rmgr.model.tasks.block import BlockKey, KeyedPayload
from rmgr.model.tasks.submission import Command
from rmgr.model.wire.frames import MAX_INLINE_PAYLOAD, KeyedInput
from rmgr.runtime import machine
from rmgr.runtime.logger import Log

#: Tasks of a block staged ahead of the lanes.
_AHEAD = 16
#: The same of keyed calls, in seconds of all slots, where it is known how long they take.
_AHEAD_S = 0.5
#: So many tasks at the head of a block are looked at: more are not handed to a slot at once.
_HEAD = BATCH_TASKS
#: A staged task that has waited for a slot this long, and as long as its staging took, may be given away: to stage it again is no loss.
_PATIENCE_S = 1.0
#: A task without room asks again when some was given back, and after this long: what was given back meanwhile was not counted.
_ASK_AGAIN_S = 1.0
#: A full room is logged this often at most.
_TOLD_S = 60.0


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


@dataclass(slots=True)
class _State:
    needed: bool
    begun_to: int = -1  #: all of its ready tasks up to this one are here or coming
    is_fetched: bool = False  #: a task of it was staged: its uploads are on this node
    here: dict[int, Staged] = field(default_factory=dict)
    coming: dict[int, Wish] = field(default_factory=dict)


@dataclass(slots=True)
class _Short:
    """The task that gets the next room. given: `StagingRoom.given` when there was none for it, at since_s (monotonic)."""

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
        values_cap_bytes: memory for inputs that are read ahead. pace: seconds of all slots that a task of a block takes, None = unknown.
    """

    def __init__(
        self,
        io: StoreIO,
        inputs: Inputs,
        *,
        wake: Callable[[], None],
        directory: Path,
        on_unstartable: Callable[[ClaimedBlock, list[int], FetchFailure], None],
        uploads: Uploads,
        blocks: Mapping[BlockKey, ClaimedBlock],
        log: Log,
        accounts: Accounts | None = None,
        values_cap_bytes: int = CAP_BYTES,
        pace: Callable[[ClaimedBlock], float | None] = lambda _: None,
    ) -> None:
        self._pace = pace
        self._reading = ReadAhead(io, inputs, self._read, cap_bytes=values_cap_bytes)
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
        for index in islice(block.ready, _HEAD):
            if index not in state.here:
                break
            count += 1
        if block.data.keyed:
            self.read_ahead(block)
            return count
        for index in islice(block.ready, _AHEAD if state.is_fetched else 1):  # the others would wait for the same uploads, each on a thread
            if index not in state.here and index not in state.coming and self._may_begin(block, index):
                wish = state.coming[index] = Wish()
                self._begin(block, state, index, wish, lambda store, index=index, wish=wish: self._stage(store, block, index, wish))  # type: ignore[misc]
        return count

    @property
    def held_bytes(self) -> int:
        """Memory for inputs that are read ahead."""
        return self._reading.held_bytes

    def meet(self, block: ClaimedBlock) -> None:
        """It may be the node's own soon: inputs of its first tasks are read while that is being decided. Else: `forget`."""
        if block.data.keyed and not block.refusal and block.payloads is not None:
            self.read_ahead(block)

    def read_ahead(self, block: ClaimedBlock) -> bool:
        """Sees to it that inputs of a keyed block are read before the turn of its tasks. False: the memory for them is full."""
        if not self.is_needed(block) or not block.ready or block.ready[-1] <= self._states[block].begun_to:
            return True
        state, has_room = self._states[block], self._reading.has_room
        is_next = not has_room and not state.here and not state.coming and self._is_first(block)
        if not has_room and not is_next:
            return False
        pace_s = self._pace(block)
        for index in islice(block.ready, max(_AHEAD, int(_AHEAD_S / pace_s)) if pace_s else _AHEAD):
            if index <= state.begun_to or index in state.here or index in state.coming:
                continue
            if not self._may_begin(block, index):
                return True
            wish = Wish()
            if not self._reading.begin(block, index, wish, is_next=is_next):
                return False
            state.coming[index] = wish
            state.begun_to = index
            is_next = False
        return True

    def _is_first(self, block: ClaimedBlock) -> bool:
        """No keyed block before it has tasks that wait: it may read one task though the memory is full of others."""
        return next((other for other in self._blocks.values() if other.ready and other.data.keyed), None) is block

    def _begin(self, block: ClaimedBlock, state: _State, index: int, wish: Wish, job: Callable[[Store], Staged]) -> None:
        self._io.run(job, lambda result: self._staged(block, state, index, wish, result), is_read=True, is_long=not block.data.keyed)

    def kept(self, block: ClaimedBlock, now_s: float) -> int:
        """How many of its waiting tasks, from the front on, are not to be given to another node: up to the last one that is
        staged, being staged, or the next to get room. Cost: O(tasks staged ahead)."""
        state = self._states.get(block)
        if state is None or not state.needed:
            return 0
        kept = 0
        for count, index in enumerate(islice(block.ready, max(_AHEAD, len(state.here) + len(state.coming))), 1):
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
                    state.begun_to = -1

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
        return decode_keyed(payload.read() if isinstance(payload, ArgumentsPiece) else payload).outputs

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

    def _stage(
        self, store: Store, block: ClaimedBlock, index: int, wish: Wish, want: Want | None = None, found: FoundInputs | None = None
    ) -> Staged:
        """Of a command all that it needs; of a keyed call what of its inputs must become files."""
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
            _remove_files(staged)
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
            _remove_files(Staged(files=tuple(files)))
            raise
        return Staged(payload=call, files=tuple(files), outputs=len(keyed.outputs), memory_bytes=len(call))

    def _input(self, store: Store, user_key: str, found_in: Input, files: list[str], share: StagingShare) -> KeyedInput:
        share.making(on_disk(found_in.size))
        files.append(self._new_file())
        if found_in.data is not None:
            Path(files[-1]).write_bytes(found_in.data)
        elif self._accounts is not None:
            to_file(store, user_key, found_in, files[-1], share)  # handed over to its user; what is fetched may be the store's own
        elif (found := store.fetch(found_in.row, files[-1])) is None:
            raise NotFound(f"the value of the input key {user_key!r} is gone")
        else:
            found_in.check(user_key, found[1])
            if found[0] is not None:
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
                shutil.rmtree(directory, ignore_errors=True)
                raise
        return Staged(directory=str(directory))

    def _new_file(self) -> str:
        return str(self._directory / machine.guid())

    # -- back on the owner's thread ----------------------------------------------------------------------------------------------

    def _read(self, want: Want, result: Message | FoundInputs | Exception) -> None:
        """The inputs of a keyed call are here, or some of them are to become files."""
        block, index, wish = want.block, want.index, want.wish
        state = self._states.get(block)
        staged: Staged | Exception | None = result if isinstance(result, Exception) else None
        if isinstance(result, Message):
            now_s = machine.monotonic()
            size, user = len(result.data), block.info.record.user
            staged = Staged(payload=result.data, user=user, took_s=now_s - want.since_s, since_s=now_s, memory_bytes=size)
        if state is not None and wish.is_wanted and isinstance(result, FoundInputs):
            self._io.run(
                lambda store: self._stage(store, block, index, wish, want, result),
                lambda staged: self._settled(want, state, staged),
                is_read=True,
            )
        elif state is not None and staged is not None:
            self._settled(want, state, staged)
        else:
            self._reading.settle(want.need_bytes, 0)

    def _settled(self, want: Want, state: _State, staged: Staged | Exception) -> None:
        self._reading.settle(want.need_bytes, staged.memory_bytes if isinstance(staged, Staged) else 0)
        self._staged(want.block, state, want.index, want.wish, staged)

    def _staged(self, block: ClaimedBlock, state: _State, index: int, wish: Wish, result: Staged | Exception) -> None:
        if not wish.is_wanted:  # it was given up just when it was ready
            if isinstance(result, Staged):
                self._remove(result)
            return
        del state.coming[index]
        if isinstance(result, Exception) and self._blocks.get(block.key) is not block:
            state.begun_to = -1  # it is not the node's own yet: asked again when it is
            return
        if isinstance(result, NoRoom):
            state.begun_to = -1
            self._wait_for_room(block, index, result.user)
            return
        self._served(block, index)
        if isinstance(result, Staged):
            state.here[index] = result
            state.is_fetched = True
        elif index in block.ready:
            self._on_unstartable(block, block.take_ready([index]), FetchFailure.of(result, _sentence(result)))
        self._wake()

    # -- when the room is full -------------------------------------------------------------------------------------------------

    def _may_begin(self, block: ClaimedBlock, index: int) -> bool:
        """While a task waits for room no other one takes it away, and it asks again only when something was given back."""
        for user in ("", block.info.record.user) if self._short else ():
            short = self._short.get(user)
            if short is not None:
                is_due = short.given != self._room.given or machine.monotonic() > short.since_s + _ASK_AGAIN_S
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
        now_s = machine.monotonic()
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
                state.begun_to = -1
        self._wake()

    def _remove(self, staged: Staged) -> None:
        self._reading.settle(staged.memory_bytes, 0)
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


def _sentence(error: Exception) -> str:
    return error.message if isinstance(error, RmgrError) else f"{type(error).__name__}: {error}"
