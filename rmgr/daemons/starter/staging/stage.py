"""Stages what single tasks need before they start: values of their input keys, work directories with files in them.

Tasks at the head of a block are staged a few at a time on IO threads, ahead of the lanes (`TaskFiles` makes their files). A block whose
tasks need nothing passes through untouched. Tasks that are staged or being staged stay on this node (`kept`); staging stops where it is
once its task is not wanted any more. While the room for staged files is full, the first task without room gets the next one.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from rmgr.coord.protocol.ports import Store
from rmgr.coord.protocol.records import decode_keyed
from rmgr.daemons.starter.core.blocks import BlockVerdict, ClaimedBlock
from rmgr.daemons.starter.core.fetch import ArgumentsPiece, FetchFailure
from rmgr.daemons.starter.core.io import Convoy, StoreIO
from rmgr.daemons.starter.core.shares import BATCH_TASKS
from rmgr.daemons.starter.core.uploads import GivenUpError, NoRoom, StagingShare, Uploads, Wish, disk_bytes, on_disk
from rmgr.daemons.starter.staging.accounts import Accounts, hand_over
from rmgr.daemons.starter.staging.inputs import ROWS_TOGETHER, Input, Inputs, Left, OutputClaims, TaskReads
from rmgr.errors import CoordinationUnavailable, NotFound, PermissionDenied, RmgrError, StoreUnavailable, UsageError, ValueTooLarge
from rmgr.model.block import MAX_KEYED_BYTES, MAX_KEYS, MAX_LEFT_KEYS, KeyedPayload
from rmgr.model.frames import MAX_INLINE_PAYLOAD, KeyedCall, KeyedInput
from rmgr.model.line import ClaimStage
from rmgr.model.submission import Command, expand_output_name, has_own_name
from rmgr.runner.host.files import remove_tree
from rmgr.runtime import machine

if TYPE_CHECKING:
    from rmgr.daemons.starter.node.node import NodeAgent

#: Tasks of a block that are staged ahead of the lanes.
_AHEAD = 16
#: The same for keyed calls of known length, in seconds of all slots.
_AHEAD_S = 0.5
#: Most tasks at the head of a block that are looked at: more are not handed to a slot at once.
_HEAD = BATCH_TASKS
#: A staged task may be given away after it waited for a slot this long, and as long as its staging took: to stage it again is no loss.
_PATIENCE_S = 1.0
#: A task without room asks again when some was given back, and after this time, since given-back bytes are not counted.
ASK_AGAIN_S = 1.0
#: Shortest time between two log lines about a full room.
_LOGGED_S = 60.0
#: Most memory for values of a node's keyed calls if [starter] values_cap_bytes is not set.
VALUES_CAP_BYTES = 64 * 1024 * 1024
#: Largest input value that travels in the message; larger ones are files.
INLINE_INPUT = 256 * 1024
#: Most bytes of one step of a file's name, and of the whole name (the path above it is the Starter's).
_MAX_STEP, _MAX_NAME = 255, 3000
#: Called after the claim of a task: with the error if it cannot have its keys, else with None.
Waiting = Callable[[Exception | None], None]


@dataclass(slots=True)
class _State:
    needed: bool
    begun_to: int = -1  #: all of its ready tasks up to this one are here or coming
    is_fetched: bool = False  #: a task of it was staged, so its uploads are on this node
    here: dict[int, Staged] = field(default_factory=dict)
    coming: dict[int, Wish] = field(default_factory=dict)


@dataclass(slots=True)
class _Short:
    """The task that gets the next room. given: `StagingRoom.given` when it found none, at since_s (monotonic)."""

    block: ClaimedBlock
    index: int
    given: int
    since_s: float


class Stager:
    """Stages tasks of one node. directory: for files and work directories."""

    def __init__(self, node: NodeAgent, directory: Path) -> None:
        shared = node.shared
        self._node = node
        self._io = shared.io
        self._blocks = node.blocks  #: in the order in which they start
        self._reading = ReadAhead(shared.io, shared.inputs, self._read, claims=shared.claims, cap_bytes=shared.config.values_cap_bytes)
        self._files = TaskFiles(shared.inputs, shared.fetcher.uploads, directory, node.accounts)
        self._room = shared.fetcher.uploads.room
        self._short: dict[str, _Short] = {}  #: by the user whose own limit is reached, "" for the limit of all
        self._logged_s = -math.inf  # last log line about a full room
        self._states: dict[ClaimedBlock, _State] = {}

    def is_needed(self, block: ClaimedBlock) -> bool:
        """Returns whether its tasks must be staged one by one."""
        state = self._states.get(block)
        if state is None:
            if block.is_dropped:
                return False
            command: Command | None = block.info.record.command
            needed = block.data.keyed or (command is not None and bool(command.uploads or command.input_files))
            state = self._states[block] = _State(needed, is_fetched=command is None or not command.uploads)
        return state.needed

    def startable(self, block: ClaimedBlock) -> int:
        """Returns how many of its first ready tasks may start now; starts to stage the next ones."""
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
                self._begin(block, state, index, wish, lambda store, index=index, wish=wish: self._files.make(store, block, index, wish))  # type: ignore[misc]
        return count

    @property
    def held_bytes(self) -> int:
        """Bytes of memory for inputs that are read ahead."""
        return self._reading.held_bytes

    @property
    def left(self) -> LeftKeys:
        """Output keys that are left to this node."""
        return self._reading.left

    def meet(self, block: ClaimedBlock) -> None:
        """Reads inputs of the first tasks of a block that the node may get; if it does not get it, call `forget`."""
        if block.data.keyed and block.verdict is not BlockVerdict.REFUSED and block.payloads is not None:
            self.read_ahead(block)

    def read_ahead(self, block: ClaimedBlock) -> bool:
        """Starts to read inputs of a keyed block before its tasks' turn. Returns: False if the memory for them is full."""
        if not self.is_needed(block) or not block.ready or block.ready[-1] <= self._states[block].begun_to:
            return True
        state, has_room = self._states[block], self._reading.has_room
        is_next = not has_room and not state.here and not state.coming and self._is_first(block)
        if not has_room and not is_next:
            return False
        pace_s = self._node.pace(block)
        for index in islice(block.ready, max(_AHEAD, int(_AHEAD_S / pace_s)) if pace_s else _AHEAD):
            if index <= state.begun_to or index in state.here or index in state.coming:
                continue
            if not self._may_begin(block, index):
                return True
            wish = Wish()
            try:
                if not self._reading.begin(block, index, wish, is_next=is_next):
                    return False
            except PermissionDenied as error:  # it ends like a task whose staging fails; other work of the node goes on
                self._begin(block, state, index, wish, partial(_refuse, error))
            state.coming[index] = wish
            state.begun_to = index
            is_next = False
        return True

    def _is_first(self, block: ClaimedBlock) -> bool:
        """Returns whether it is the first keyed block with waiting tasks: it may read one task even if other blocks fill the memory."""
        return next((other for other in self._blocks.values() if other.ready and other.data.keyed), None) is block

    def _begin(self, block: ClaimedBlock, state: _State, index: int, wish: Wish, job: Callable[[Store], Staged]) -> None:
        done, user = (lambda result: self._staged(block, state, index, wish, result)), block.info.record.user
        self._io.run(job, done, user=user, is_read=True, is_long=not block.data.keyed)

    def kept(self, block: ClaimedBlock, now_s: float) -> int:
        """Returns how many waiting tasks, from the front, must stay on this node: up to the last one that is staged, being staged, or next
        to get room. Cost: O(tasks staged ahead)."""
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
        """Returns what a staged task starts with, None if it is not staged."""
        state = self._states.get(block)
        return state.here.get(index) if state is not None else None

    def done(self, block: ClaimedBlock, index: int) -> None:
        """Removes the files of a task that is over or not this node's any more, also files that are being made."""
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
        """Has tasks staged again whose staged files were removed."""
        for block, state in self._states.items():
            for index in [one for one, staged in state.here.items() if one in block.ready]:
                staged = state.here[index]
                if not all(os.path.lexists(path) for path in filter(None, (*staged.files, staged.directory))):
                    self._remove(state.here.pop(index))
                    state.begun_to = -1

    def forget(self, block: ClaimedBlock) -> None:
        """Forgets a block that is over."""
        state = self._states.get(block)
        if state is not None:
            for index in (*state.here, *state.coming, *(short.index for short in self._short.values())):
                self.done(block, index)
            state.needed = False
            del self._states[block]
        self.left.forget(block)

    def outputs_of(self, block: ClaimedBlock, index: int) -> tuple[str, ...]:
        """Returns the output keys of a keyed task; none if its arguments never came, since then it has claimed none."""
        try:
            return keyed_of(block, index).outputs if block.data.keyed and block.payloads is not None else ()
        except PermissionDenied:
            return ()

    # -- files that the user named -------------------------------------------------------------------------------------------

    def named_outputs(self, block: ClaimedBlock, index: int) -> tuple[str, str]:
        """Returns the files that the user named for stdout and stderr of a command, "" if none.

        Its slot finds out, with the user's rights, whether they can be written: here a hanging file server would stop all work.
        """
        command: Command | None = block.info.record.command
        if command is None or not (command.out or command.err):
            return "", ""
        found = []
        for pattern in (command.out, command.err):
            record = block.info.record
            name = expand_output_name(
                pattern, job=record.id, index=block.info.label(index), attempt=block.key.attempt, name=record.name, node=block.node
            )
            path = os.path.join(command.cwd, name) if name else ""
            found.append(os.path.abspath(path) if os.path.isabs(path) else "")
        return found[0], found[1]

    def appends(self, block: ClaimedBlock) -> tuple[bool, bool]:
        """Returns whether several tasks may write into the file that is named for (stdout, stderr)."""
        command: Command | None = block.info.record.command
        names = (command.out, command.err) if command is not None else ("", "")
        return bool(names[0]) and not has_own_name(names[0]), bool(names[1]) and not has_own_name(names[1])

    # -- back on the owner's thread ----------------------------------------------------------------------------------------------

    def _read(self, want: Want, result: Message | FoundInputs | Exception) -> bool:
        """Takes the inputs of a keyed call; large ones become files now. Returns False if the block is only announced, not yet the
        node's."""
        block, index, wish = want.block, want.index, want.wish
        state = self._states.get(block)
        staged: Staged | Exception | None = result if isinstance(result, Exception) else None
        if isinstance(result, Message):
            now_s = machine.monotonic()
            size, user = len(result.data), block.info.record.user
            staged = Staged(payload=result.data, user=user, took_s=now_s - want.since_s, since_s=now_s, memory_bytes=size)
        if state is not None and wish.is_wanted and isinstance(result, FoundInputs):
            self._io.run(
                lambda store: self._files.make(store, block, index, wish, want, result),
                lambda staged: self._on_staged(want, state, staged),
                user=block.info.record.user,
                is_read=True,
            )
        elif state is not None and staged is not None:
            self._on_staged(want, state, staged)
        else:
            self._reading.settle(want.need_bytes, 0)
        return state is None or not wish.is_wanted or self._blocks.get(block.key) is block

    def _on_staged(self, want: Want, state: _State, staged: Staged | Exception) -> None:
        self._reading.settle(want.need_bytes, staged.memory_bytes if isinstance(staged, Staged) else 0)
        self._staged(want.block, state, want.index, want.wish, staged)

    def _staged(self, block: ClaimedBlock, state: _State, index: int, wish: Wish, result: Staged | Exception) -> None:
        if not wish.is_wanted:  # it was given up just as it became ready
            if isinstance(result, Staged):
                self._remove(result)
            return
        del state.coming[index]
        if isinstance(result, Exception) and self._blocks.get(block.key) is not block:
            state.begun_to = -1  # the block is not the node's yet: asked again when it is
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
            self._node.ends.unstartable(block, block.take_ready([index]), FetchFailure.of(result, _sentence(result)))

    # -- when the room is full -------------------------------------------------------------------------------------------------

    def _may_begin(self, block: ClaimedBlock, index: int) -> bool:
        """Returns whether staging may begin: a task that waits for room comes before others, and asks again only when room was given
        back."""
        for user in ("", block.info.record.user) if self._short else ():
            short = self._short.get(user)
            if short is not None:
                is_due = short.given != self._room.given or machine.monotonic() > short.since_s + ASK_AGAIN_S
                if not is_due or short.block is not block or short.index != index:
                    return False
        return True

    def _is_short(self, block: ClaimedBlock, index: int) -> bool:
        return any(short.block is block and short.index == index for short in self._short.values())

    def _served(self, block: ClaimedBlock, index: int) -> None:
        """Notes that a task does not wait for room any more."""
        for user in [user for user, short in self._short.items() if short.block is block and short.index == index]:
            del self._short[user]

    def _wait_for_room(self, block: ClaimedBlock, index: int, user: str) -> None:
        """Makes a task the next to get room. Staged later tasks that have not begun give their room back, as they might wait for its cores.

        user: whose own limit is reached; only tasks of that user give way. "" = the limit of all.
        """
        order = {other: number for number, other in enumerate(self._blocks.values())}
        place = order.get(block, len(order)), index
        now_s = machine.monotonic()
        short = self._short.get(user)
        if short is None and now_s > self._logged_s + _LOGGED_S:
            self._logged_s = now_s
            why = "staged files fill their room on this node's disk ([starter] staging_cap_bytes)"
            why = f"staged files of {user} fill that user's room on this node's disk ([starter] staging_cap_user_bytes)" if user else why
            limit = self._room.cap_user_bytes if user else self._room.cap_bytes
            self._node.log.warning("staging_waits", task_id=f"{block.key.submission}_{index}", why=why, limit=limit)
        if short is None or place <= (order.get(short.block, len(order)), short.index):
            self._short[user] = _Short(block, index, self._room.given, now_s)
        for other, state in self._states.items():
            if user and other.info.record.user != user:
                continue
            for later in [one for one in state.here if one in other.ready and (order.get(other, len(order)), one) > place]:
                self._remove(state.here.pop(later))
                state.begun_to = -1

    def _remove(self, staged: Staged) -> None:
        self._reading.settle(staged.memory_bytes, 0)
        if staged.files or staged.directory:
            self._io.run(lambda _store: self._remove_now(staged), lambda _result: None, user=staged.user)

    def _remove_now(self, staged: Staged) -> None:
        remove_files(staged)
        taken, staged.disk_bytes = staged.disk_bytes, 0
        self._room.settle(taken, 0, user=staged.user)


def _refuse(error: PermissionDenied, _store: Store) -> Staged:
    raise error


def _sentence(error: Exception) -> str:
    return error.message if isinstance(error, RmgrError) else f"{type(error).__name__}: {error}"


# -- reading inputs ahead --------------------------------------------------------------------------------------------------
# Inputs of keyed calls, read before their tasks' turn: many at a time, within a limit of memory. A task's inputs are read once: its message
# is kept until the task has ended here or was given away. Values that are too large for a message, alone or together, become files
# (`Stager`); all others go from the store's answer into the worker's message. Output keys that their Submitter has left unclaimed (HAND,
# protocol.md 5) are claimed at the same time. No task starts before both are done.


class ReadAhead:
    """Reads inputs for one node.

    Args:
        arrived: gets each task with its `Message`, its `FoundInputs`, or the error, on the owner's thread. Returns False if no node has to
            settle.
        claims: of output keys that are left to this node; None: there are none.
        cap_bytes: of messages and reads in progress. A task that alone needs more is read when nothing else is held.
    """

    def __init__(
        self,
        io: StoreIO,
        inputs: Inputs,
        arrived: Callable[[Want, Message | FoundInputs | Exception], bool],
        *,
        claims: OutputClaims | None = None,
        cap_bytes: int = VALUES_CAP_BYTES,
    ) -> None:
        self._io = io
        self._inputs = inputs
        self._tell = arrived
        self.cap_bytes = cap_bytes
        self.held_bytes = 0
        self._convoy: Convoy[Want] = Convoy(io, self._carry, self._arrived, weight=_weight_of_all, most=ROWS_TOGETHER, is_read=True)
        self.left = LeftKeys(io, claims, self._tell_all_of)

    def begin(self, block: ClaimedBlock, index: int, wish: Wish, *, is_next: bool) -> bool:
        """Reads for a task; False if the memory is full. is_next: it may exceed the memory once. Raises: OSError, PermissionDenied."""
        keyed = keyed_of(block, index)
        need_bytes = min(len(keyed.inputs) * INLINE_INPUT, MAX_INLINE_PAYLOAD)
        if self.held_bytes + need_bytes > self.cap_bytes and not is_next and self.held_bytes:
            return False
        self.held_bytes += need_bytes
        want = Want(block, index, wish, keyed, need_bytes)
        if keyed.claims_by and keyed.outputs:
            self.left.begin(want)
        if _weight_of_all(want) <= ROWS_TOGETHER:
            self._convoy.add(want)
        else:  # it takes seconds of a thread: others' inputs, read by few jobs, must not wait for it
            user, few = block.info.record.user, [want]
            carry, arrived = (lambda store: self._carry(store, few)), (lambda result: self._arrived(few, result))
            self._io.run(carry, arrived, user=user, is_read=True, is_long=True, tells=True)
        return True

    @property
    def has_room(self) -> bool:
        """Whether a task with one input may be read."""
        return self.held_bytes + INLINE_INPUT <= self.cap_bytes or not self.held_bytes

    def settle(self, taken_bytes: int, really_bytes: int) -> None:
        """Corrects the memory taken to the bytes really held; 0 gives it back."""
        self.held_bytes += really_bytes - taken_bytes

    # -- on an IO thread

    def _carry(self, store: Store, wants: list[Want]) -> list[Message | FoundInputs | Exception]:
        wanted = [want for want in wants if want.wish.is_wanted]
        asks = [
            TaskReads(
                user=want.block.info.record.user,
                inputs=want.keyed.inputs,
                outputs=() if want.keyed.claims_by else want.keyed.outputs,  # owners of claimed keys are checked at the claim
                trust=want.keyed.trust,
            )
            for want in wanted
        ]
        found = dict(zip(wanted, self._inputs.find_many(store, asks, largest=INLINE_INPUT), strict=True)) if asks else {}
        return [_message(want.keyed, found[want]) if want in found else GivenUpError() for want in wants]

    # -- on the owner's thread

    def _arrived(self, wants: list[Want], result: list[Message | FoundInputs | Exception] | Exception) -> bool:
        must_settle = False
        for number, want in enumerate(wants):
            want.found = result if isinstance(result, Exception) else result[number]
            must_settle = self._tell_all_of(want) or must_settle
        return must_settle

    def _tell_all_of(self, want: Want) -> bool:
        """Delivers a task whose inputs are here and whose keys are claimed or refused. Returns: whether its node has to settle."""
        if want.found is None or want.is_claiming:
            return False
        found, want.found = want.found, None
        return self._tell(want, want.refusal or found)


def keyed_of(block: ClaimedBlock, index: int) -> KeyedPayload:
    """Returns the arguments of a task in keyed form. Raises: PermissionDenied if they are anything else; OSError."""
    payload = block.payload(index)
    why = f"they have {len(payload):,} bytes, at most {MAX_KEYED_BYTES:,} are allowed"
    if len(payload) <= MAX_KEYED_BYTES:
        try:
            keyed = decode_keyed(payload.read() if isinstance(payload, ArgumentsPiece) else payload)
        except msgspec.DecodeError as error:
            why = str(error)
        else:
            most = MAX_LEFT_KEYS if keyed.claims_by else MAX_KEYS
            if len(keyed.outputs) <= most and len(keyed.inputs) + len(keyed.outputs) <= MAX_KEYS:
                return keyed
            why = f"{len(keyed.inputs):,} inputs and {len(keyed.outputs):,} outputs are more than a task may have"
    message = f"refused: the arguments of task {block.key.submission}_{index} are no keys: {why}"
    raise PermissionDenied(message, hint="only rmgr's own library writes them; rmgr version")


def _message(keyed: KeyedPayload, found: list[Input] | Exception) -> Message | FoundInputs | Exception:
    if isinstance(found, Exception):
        return found
    inputs = []
    for one in found:
        if one.data is None:
            return FoundInputs(found)
        inputs.append(KeyedInput(data=one.data, pickled=one.pickled))
    call = encode_call(inputs, keyed) if sum(len(one.data) for one in inputs) < MAX_INLINE_PAYLOAD else b""
    return Message(call) if 0 < len(call) <= MAX_INLINE_PAYLOAD else FoundInputs(found)


def _weight_of_all(want: Want) -> int:
    return 1 + len(want.keyed.inputs) + len(want.keyed.outputs)


# -- output keys left to this node -----------------------------------------------------------------------------------------
# Output keys that a Submitter has left to this node (HAND, protocol.md 5): when their tasks may begin, and when they may be committed. A
# client with a direct line claims them itself while the HAND is committed, and reports its progress. No task begins before it is certain
# that no other task can have its keys; none is committed as completed before it has them. If the client does not report in time, this node
# claims them. That is always safe, since the pointer of a task is the same, whichever process writes it and however often.


class LeftKeys:
    """The tasks of one node whose keys were left to it. Owner's thread.

    Args: claims: None if no keys are left here. told: gets each task whose start no longer waits for its claim.
    """

    def __init__(self, io: StoreIO, claims: OutputClaims | None, told: Callable[[Want], bool]) -> None:
        self._claims = claims
        self._told = told
        self._open: dict[ClaimedBlock, dict[int, Want]] = {}
        self._waiting: dict[tuple[ClaimedBlock, int], Waiting] = {}
        self._convoy: Convoy[Want] = Convoy(io, self._carry, self._arrived, weight=_weight_of_outputs, most=ROWS_TOGETHER, is_read=True)

    def begin(self, want: Want) -> None:
        """Takes a task whose keys were left."""
        stage = want.block.claims
        if stage is ClaimStage.MADE:
            return
        self._open.setdefault(want.block, {})[want.index] = want
        want.is_claiming = stage is not ClaimStage.DECIDED
        if stage is ClaimStage.HERE:
            self._convoy.add(want)

    def advance(self, block: ClaimedBlock, stage: ClaimStage) -> bool:
        """Notes the client's report on the claim of a block. HERE: this node claims what is not claimed yet.

        Returns: whether a task waited for it: one with its inputs, or one that has ended.
        """
        if block.claims in (ClaimStage.HERE, ClaimStage.MADE):
            return False
        block.claims = stage
        wants = list(self._open.get(block, {}).values())
        was_awaited = any(want.found is not None or (block, want.index) in self._waiting for want in wants)
        for want in wants:
            if stage is ClaimStage.HERE:
                self._convoy.add(want)
            elif stage is ClaimStage.MADE:
                self._claimed(want, None)
            elif stage is ClaimStage.DECIDED:
                self._may_begin(want)
        return was_awaited

    def has(self, block: ClaimedBlock) -> bool:
        """Returns whether keys of its tasks were left and not all claimed when the first task began."""
        return block in self._open

    def when_claimed(self, block: ClaimedBlock, index: int, then: Waiting) -> None:
        """Calls `then` once the task has its keys, with None; or with the reason for which it cannot have them."""
        want = self._open.get(block, {}).get(index)
        if want is None or want.is_claimed:
            then(want.refusal if want is not None else None)
        else:
            self._waiting[block, index] = then

    def forget(self, block: ClaimedBlock) -> None:
        """Drops the claims of a block that is over."""
        for want in self._open.pop(block, {}).values():
            self._waiting.pop((block, want.index), None)
            self._may_begin(want)

    def _may_begin(self, want: Want) -> None:
        if want.is_claiming:
            want.is_claiming = False
            self._told(want)

    def _claimed(self, want: Want, refusal: Exception | None) -> None:
        if want.is_claimed:
            return
        want.is_claimed, want.refusal = True, refusal
        self._may_begin(want)
        waiting = self._waiting.pop((want.block, want.index), None)
        if waiting is not None:
            waiting(refusal)

    def _carry(self, store: Store, wants: list[Want]) -> dict[tuple[int, int], Exception]:
        """Claims keys, on an IO thread."""
        asks = [Left(want.block, want.index, want.keyed) for want in wants if want.wish.is_wanted]
        try:
            return self._claims.claim(store, asks) if self._claims is not None and asks else {}
        except CoordinationUnavailable as error:  # the owner of a key is unknown now: retried, as if the store were away
            raise StoreUnavailable(error.message) from error

    def _arrived(self, wants: list[Want], result: dict[tuple[int, int], Exception] | Exception) -> bool:
        for want in wants:
            why = result if isinstance(result, Exception) else result.get((want.block.key.submission, want.index))
            self._claimed(want, why)
        return True


def _weight_of_outputs(want: Want) -> int:
    return 1 + len(want.keyed.outputs)


# -- messages and wants of a task ------------------------------------------------------------------------------------------
# A keyed task whose inputs must be read, and whose output keys may have to be claimed, before it starts.


@dataclass(frozen=True, slots=True)
class Message:
    """A task's message, with all that it needs."""

    data: bytes


@dataclass(frozen=True, slots=True)
class FoundInputs:
    """The inputs of a task, some of which must become files."""

    inputs: list[Input]


@dataclass(slots=True, eq=False)
class Want:
    """A task whose inputs must be read. need_bytes: memory taken until they are here.

    found: what was read. is_claiming: it may not begin yet, since its output keys are not certain. is_claimed: it has them, or `refusal`
    says why it cannot.
    """

    block: ClaimedBlock
    index: int
    wish: Wish
    keyed: KeyedPayload
    need_bytes: int
    found: Message | FoundInputs | Exception | None = None
    is_claiming: bool = False
    is_claimed: bool = False
    refusal: Exception | None = None
    since_s: float = field(init=False)

    def __post_init__(self) -> None:
        self.since_s = machine.monotonic()


# -- files of single tasks -------------------------------------------------------------------------------------------------
# Files made before their tasks start, on IO threads: inputs of keyed calls that are too large for a message, work directories of commands.
# They count against the room for staged files (`core/uploads.py`), and are removed if they cannot be finished.


@dataclass(slots=True, kw_only=True)
class Staged:
    """What a staged task starts with. payload: its message, or (str) a file with it. directory: its work directory."""

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

    Args: directory: for files and work directories. accounts: of the files' users, None = the Starter's own.
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
        """Makes the files of a task: all that a command needs, or the inputs of a keyed call (`want`, `found`) that must be files.

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
            to_file(store, user_key, found_in, files[-1], share)  # a copy for its user; a fetched file may be the store's
        else:
            try:
                found = store.fetch(found_in.row, files[-1], largest=found_in.size, is_compared=False)
            except ValueTooLarge:  # replaced by a larger one: its room is taken as it comes
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
                for found_in, size, (key, name) in zip(rows, sizes, command.input_files, strict=True):  # before uploads bring links
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
    """Returns the message of a task."""
    return msgspec.msgpack.encode(KeyedCall(tuple(inputs), len(keyed.outputs)))


def remove_files(staged: Staged) -> None:
    """Removes the files that were made for a task."""
    for path in staged.files:
        Path(path).unlink(missing_ok=True)
    if staged.directory:
        remove_tree(Path(staged.directory))


# -- files -----------------------------------------------------------------------------------------------------------------
# Names that lead nowhere else, and values that go from the data store into files.


def inside(directory: Path, name: str) -> Path:
    """Returns `name` below `directory`. Raises: PermissionDenied if it leads elsewhere."""
    target = Path(os.path.normpath(directory / name))
    if directory != target and directory not in target.parents:
        raise PermissionDenied(f"the file name {name!r} leads out of the work directory")
    return target


def make_way(directory: Path, target: Path, name: str) -> None:
    """Makes the directories above a file. Raises: UsageError for a name that no file can have here."""
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
    """Returns the name of an upload, one step below the work directory. Raises: PermissionDenied, UsageError."""
    if len(os.fsencode(name)) > _MAX_STEP:
        raise UsageError(f"no file can have the name {name[:80]!r} ({len(name)} characters)")
    if name in {"", ".", ".."} or "/" in name or "\0" in name:
        raise PermissionDenied(f"the upload has the name {name!r}, which is no file name")
    return name


def to_file(store: Store, key: str, found_in: Input, path: str, share: StagingShare) -> None:
    """Writes the value of an input, whose room is taken, to a file. Raises: NotFound, NoRoom, ValueTooLarge, GivenUpError."""
    chunks = store.stream(found_in.row)
    if chunks is None:
        raise NotFound(f"{found_in.row} is not in the data store")
    digest, size = hashlib.sha256(), 0
    with open(path, "wb") as file:
        for chunk in chunks:
            size += len(chunk)
            share.making(max(0, min(len(chunk), size - found_in.size)))  # more room if the value has grown; raises if not wanted any more
            file.write(chunk)
            if found_in.about is not None:
                digest.update(chunk)
    found_in.check(key, digest.digest())
