"""Hands claimed tasks to lanes, in the order of their blocks' claims, and as many at once as keep the slots busy.

A task that does not fit now stops everything behind it (nothing may pass a large task for ever), unless its queue allows `backfill_pull`. A
task that only lacks resources other than cores and memory stops later tasks that need the same.
"""

from __future__ import annotations

import math
import os
from collections.abc import Container
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import msgspec

from rmgr.adapters.host.process import WorkerSpec
from rmgr.coord.protocol import keys
from rmgr.daemons.starter.core import fetch
from rmgr.daemons.starter.core.blocks import ClaimedBlock
from rmgr.daemons.starter.core.shares import AHEAD_S, BATCH_TASKS, LOW_COMMANDS_S, LOW_S, batch_size
from rmgr.daemons.starter.core.submissions import Admission, Info, admission_of
from rmgr.daemons.starter.execution.lanes import WorkerLane
from rmgr.daemons.starter.staging.stage import Staged
from rmgr.model.block import BlockKey
from rmgr.model.frames import BatchShape, CommandBatch, CommandItem, TaskBatch, TaskItem
from rmgr.model.node import Freezer
from rmgr.model.states import Reason
from rmgr.model.submission import MAX_SCRIPT_BYTES, Command
from rmgr.runtime import machine
from rmgr.runtime.failpoint import failpoint

if TYPE_CHECKING:
    from rmgr.daemons.starter.node.node import NodeAgent

#: For arguments that travel with their task.
_INLINE: dict[str, Any] = {}
#: Most bytes of arguments in one message.
BATCH_BYTES = 4 * 1024 * 1024
#: More than the limit: the client may have replaced the interpreter in the first line.
_MOST_SCRIPT_BYTES = MAX_SCRIPT_BYTES + 64 * 1024
#: Most bytes of arguments fetched ahead of the slots.
AHEAD_BYTES = 16 * 1024 * 1024
#: A slot whose task has run this long gives up its waiting tasks when another slot is free.
_LONG_S = 0.03
#: Least waiting time that makes it worth taking tasks back from a slot.
_WORTH_S = 0.005


class Dispatcher:
    """Hands the ready tasks of one node's blocks to its lanes."""

    def __init__(self, node: NodeAgent) -> None:
        self._node = node
        self._shared = node.shared
        self._jobs = node.jobs
        self._blocks = node.blocks  #: in the order of their claims
        self._lanes = node.lanes
        self._times = node.shared.times
        self._stager = node.stager
        self._launches: dict[BlockKey, LaunchSpec] = {}
        self._coming: set[BlockKey] = set()  #: blocks whose launch specifications are being prepared

    def forget(self, block: ClaimedBlock) -> None:
        """Forgets a block that is over."""
        block.is_dropped = True
        if isinstance(block.payloads, fetch.Arguments) and not block.data.keyed:
            block.payloads = None  # a file may go with it, and a circle of references keeps it for long
        self._launches.pop(block.key, None)
        self._coming.discard(block.key)
        self._stager.forget(block)
        if block.is_placed:
            self._jobs.forget(block)

    def withhold(self, users: Container[str]) -> None:
        """Looks up the accounts of these users again before any of their waiting work starts. Cost: O(blocks)."""
        for key, block in self._blocks.items():
            if block.info.record.user in users:
                self._launches.pop(key, None)

    def doubt(self, block: ClaimedBlock) -> None:
        """Has a block verified again before more of it begins."""
        block.is_verified = False
        self._launches.pop(block.key, None)

    def forget_lost(self) -> None:
        """Drops what refers to lost files; it is prepared anew."""
        for key, launch in list(self._launches.items()):
            if not all(map(os.path.lexists, launch.files)):
                del self._launches[key]
        for block in self._blocks.values():
            if isinstance(block.payloads, fetch.Arguments) and block.payloads.path and not os.path.lexists(block.payloads.path):
                block.payloads = None

    def run(self) -> None:
        """Makes one pass. Raises: OSError if no slot can be opened."""
        self._lanes.grant()
        wants_grant = self._lanes.wants_grant  # of a pulled task: it goes first, except before tasks without cores
        if wants_grant and not any(map(self._jobs.gangs.label, self._blocks.values())):
            return
        lacking: set[str] = set()  #: resources that an earlier pulled task waits for: later tasks do not get them
        is_crowded = self._lanes.is_owed  #: a placed job needs room
        is_reserved = is_crowded or self._lanes.is_unsure  #: a placed job has not started yet: pulled work waits
        for block in list(self._blocks.values()):
            if not block.ready or (wants_grant and not self._jobs.gangs.label(block)):
                continue
            if is_reserved and not block.is_placed:
                break
            if block.goes_back:
                is_reserved = is_reserved or block.is_placed
                continue
            needs = block.info.needs
            if needs and lacking and any(name in lacking for name, _ in needs):
                continue
            launch = self._launch(block)
            if launch is None:
                self._coming.add(block.key)
                is_reserved = is_reserved or block.is_placed
                continue
            if isinstance(launch, fetch.FetchFailure):
                self._node.ends.unstartable(block, block.take_ready(), launch)
                continue
            if block.is_placed and not self._jobs.may_start(block):
                is_reserved = is_crowded = is_reserved or block.seat is None
                continue
            try:
                waits_for_room = self._start(block, launch)
            except OSError:
                raise  # the node is at fault: no slot can be opened
            except Exception as error:  # noqa: BLE001 - the boundary of one block: all behind it start
                failure = fetch.FetchFailure.of(error, f"the node cannot start it: {words_of(error)}")
                self._node.ends.unstartable(block, block.take_ready(), failure)
                continue
            if block.is_placed:
                is_reserved = is_reserved or waits_for_room
                is_crowded = is_crowded or waits_for_room
            elif waits_for_room and needs and self._lanes.fits(block.key.cores, block.key.memory_mib):
                lacking.update(name for name, count in needs if self._lanes.free_of(name) < count)
            elif waits_for_room and not block.info.queue.backfill_pull:
                self._fetch_ahead()
                return
        if is_crowded:
            self.recall_all()  # tasks that wait behind running ones would keep their slots

    def kept(self, block: ClaimedBlock) -> int:
        """Returns how many waiting tasks, from the front, must stay: their files are here, or on their way to a free slot."""
        key = block.key
        if key in self._coming:
            return self._lanes.slots_for(key.cores) if self._lanes.fits(key.cores, key.memory_mib) else 0
        return self._stager.kept(block, machine.monotonic())

    def _fetch_ahead(self) -> None:
        """Fetches the next arguments and inputs while the slots are busy, some MiB at a time: memory and disk stay bounded."""
        ahead = 0
        for block in self._blocks.values():
            if ahead >= AHEAD_BYTES:
                return
            if block.data.keyed and block.ready and isinstance(self._launch(block), LaunchSpec) and not self._stager.read_ahead(block):
                return
            if block.data.row and block.ready:
                if block.payloads is None:
                    self._launch(block)
                ahead += sum(len(block.payload(index)) for index in block.ready) if block.payloads is not None else BATCH_BYTES

    # -- one block ---------------------------------------------------------------------------------------------------------

    def _launch(self, block: ClaimedBlock) -> LaunchSpec | fetch.FetchFailure | None:
        launch = self._launches.get(block.key)
        if launch is not None:
            return launch
        try:
            return self._prepare(block)
        except OSError:
            raise  # the node is at fault
        except Exception as error:  # noqa: BLE001 - the boundary of one block: whatever it is, it is this block's alone
            return fetch.FetchFailure.of(error, f"the node cannot start it: {words_of(error)}")

    def _prepare(self, block: ClaimedBlock) -> LaunchSpec | fetch.FetchFailure | None:
        admission = admission_of(block, self._shared.gate)
        if admission is not Admission.GRANTED:
            return admission if isinstance(admission, fetch.FetchFailure) else None
        if block.payloads is None:
            row = self._shared.fetcher.rows.get(block.data.row, block.info.record.user)
            if row is None or isinstance(row, fetch.FetchFailure):
                return row
            if block.base > block.key.first or len(row) < block.key.end - block.base:
                return fetch.FetchFailure(Reason.DATA_LOST, f"the arguments {block.data.row} are fewer than the tasks", blames_node=False)
            if row.largest > fetch.MOST_READ_BYTES and (block.data.keyed or not block.info.is_python):
                return fetch.FetchFailure(Reason.START_FAILED, fetch.too_large(block.data.row, row), blames_node=False)
            block.payloads = row
        info: Info = block.info
        if self._node.accounts is not None:
            account = self._node.accounts.get(info.record.user)
            if account is None or isinstance(account, fetch.FetchFailure):
                return account
            info.account = account
            if info.is_python and not block.data.keyed and isinstance(block.payloads, fetch.Arguments):
                handed = self._node.accounts.arguments(account, block.payloads)
                if not isinstance(handed, fetch.Arguments):
                    return handed
                block.payloads = handed
        key = block.key
        shape = info.shape(key.cores, key.memory_mib, environ=self._shared.environ, output_cap=self._shared.config.log_cap_bytes)
        if block.is_placed:
            shape = self._jobs.shape(block, shape)
        made = self._python_launch(block, info, shape) if info.is_python else self._command_launch(info, shape)
        if isinstance(made, LaunchSpec):
            made = self._own(made, info)
        if isinstance(made, LaunchSpec):
            self._launches[key] = made
            self._coming.discard(key)
        return made

    def _own(self, launch: LaunchSpec, info: Info) -> LaunchSpec | fetch.FetchFailure | None:
        """Gives a launch specification files that its user may read, and workers of the user's own."""
        if self._shared.separate and launch.spec is not None:
            size = launch.shape.cores, launch.shape.memory_bytes
            own = info.own_specs.get(size)
            if own is None:
                own = info.own_specs[size] = replace(launch.spec, group=f"{info.record.user}/{launch.spec.group}")
            launch.spec = own
        accounts, account = self._node.accounts, info.account
        if accounts is None or account is None:
            return launch
        archives = []
        for archive in launch.spec.archives if launch.spec is not None else ():
            copy = accounts.copy(account, archive)
            if not isinstance(copy, str):
                return copy
            archives.append(copy)
        if launch.spec is not None:
            launch.spec = replace(launch.spec, archives=tuple(archives))
        for blob in (launch.blob, launch.stdin):
            copy = accounts.copy(account, blob.path) if blob is not None else ""
            if not isinstance(copy, str):
                return copy
            if blob is launch.blob and blob is not None:
                launch.blob = replace(blob, path=copy)
            elif blob is not None:
                launch.stdin = replace(blob, path=copy)
        return launch

    def _python_launch(self, block: ClaimedBlock, info: Info, shape: BatchShape) -> LaunchSpec | fetch.FetchFailure | None:
        spec = info.worker_spec(block.key.cores, block.key.memory_mib, self._shared.fetcher)
        blob = self._shared.fetcher.blobs.get(keys.function(block.data.function), info.record.user)
        if info.python:
            admission = self._python_admission(info, block.node)
            if admission is not Admission.GRANTED:
                return admission if isinstance(admission, fetch.FetchFailure) else None
        if spec is None or isinstance(spec, fetch.FetchFailure):
            return spec
        if blob is None or isinstance(blob, fetch.FetchFailure):
            return blob
        return LaunchSpec(shape, spec=spec, function=block.data.function, blob=blob)

    def _python_admission(self, info: Info, node: str) -> fetch.FetchFailure | Admission:
        """Returns whether an interpreter chosen by a user can be used, else why not."""
        if self._node.accounts is None or info.account is None:
            is_there = self._shared.fetcher.programs.get(info.python, info.record.user)
            if is_there is None:
                return Admission.AWAITED
            missing = f"there is no Python interpreter {info.python} on node {node}"
            return Admission.GRANTED if is_there is True else fetch.FetchFailure(Reason.START_FAILED, missing)
        problem = self._node.accounts.python(info.account, info.python)
        if not problem:
            return Admission.AWAITED if problem is None else Admission.GRANTED
        why = f"{info.account.name} cannot use the Python interpreter {info.python} on node {node}: {problem}"
        return fetch.FetchFailure(Reason.START_FAILED, why, blames_node=False)

    def _command_launch(self, info: Info, shape: BatchShape) -> LaunchSpec | fetch.FetchFailure | None:
        command = info.record.command
        if command is None:
            return LaunchSpec(shape, command=Command())
        launch = LaunchSpec(shape, command=command)
        if command.script_sha256:
            script = self._shared.fetcher.content(keys.upload(command.script_sha256), _MOST_SCRIPT_BYTES, info.record.user)
            if script is None or isinstance(script, fetch.FetchFailure):
                return script
            if not script:
                return fetch.FetchFailure(Reason.START_FAILED, "its script is empty: submit one with a line in it", blames_node=False)
            launch.script = script
        if command.stdin_sha256:
            stdin = self._shared.fetcher.blobs.get(keys.upload(command.stdin_sha256), info.record.user)
            if stdin is None or isinstance(stdin, fetch.FetchFailure):
                return stdin
            launch.stdin = stdin
        return launch

    def _start(self, block: ClaimedBlock, launch: LaunchSpec) -> bool:
        """Hands out what it can. Returns: whether more of its tasks could start if there were room."""
        key, info, now_s = block.key, block.info, machine.monotonic()
        task_s = self._times.of(block.kind)
        slots = self._lanes.slots_for(key.cores, info.needs) if not block.is_placed else 1
        size = batch_size(ready=len(block.ready), slots=slots, task_s=task_s)
        while block.ready:
            startable = self._stager.startable(block)
            if not startable:
                return False
            lane = self._lane(block, info, launch, task_s, now_s)
            if lane is None:
                return not any(lane.serial is block for lane in self._lanes)
            if block.data.serial:
                lane.serial = block
            # Its tasks may have been taken back unread, and may still be in the pipe; a single task is not taken back.
            most = 1 if lane.lags(BATCH_BYTES) else BATCH_TASKS if block.data.serial else size
            self._send(lane, block, launch, min(most, startable), now_s)
        return False

    def _lane(self, block: ClaimedBlock, info: Info, launch: LaunchSpec, task_s: float | None, now_s: float) -> WorkerLane | None:
        """Returns an idle lane, else one that runs the same kind and has little left to do; None: wait."""
        size = cores, memory_mib, needs = self._lanes.size_of(block)
        part = self._jobs.gangs.label(block)
        if block.data.serial:
            mine = next((lane for lane in self._lanes if lane.serial is block), None)
            if mine is not None:
                return mine if len(mine.tasks) < BATCH_TASKS // 2 and not mine.blocked_seq else None
            return self._lanes.open_for(info, launch.spec, *size, part=part)
        lane = self._lanes.open_for(info, launch.spec, *size, part=part)
        if lane is not None or task_s is None or task_s > LOW_S or not block.data.resubmit or block.is_placed:
            return lane
        running = [
            lane
            for lane in self._lanes
            if lane.is_for(info, launch.spec, cores, memory_mib, needs)
            and self._has_little(lane, task_s)
            and not self._is_long(lane, now_s)
        ]
        return min(running, key=lambda lane: len(lane.tasks), default=None)

    def _has_little(self, lane: WorkerLane, task_s: float) -> bool:
        """Returns whether the lane needs more soon: its tasks take little time, and it has received all of them."""
        if lane.lags(BATCH_BYTES):
            return False
        now_s = self._times.of(lane.kind)
        low_s = LOW_S if lane.worker is not None else LOW_COMMANDS_S
        return now_s is not None and len(lane.tasks) <= max(1, int(low_s / max(now_s, task_s)))

    def _send(self, lane: WorkerLane, block: ClaimedBlock, launch: LaunchSpec, count: int, now_s: float) -> None:
        indices = block.hand_out(count)
        send = self._send_calls if launch.spec is not None else self._send_commands
        try:
            sent = send(lane, block, launch, indices)
        except Exception as error:  # noqa: BLE001 - as above
            self._take_back(lane, block, indices)
            failure = fetch.FetchFailure.of(error, f"the node cannot hand it to a worker: {words_of(error)}")
            self._node.ends.unstartable(block, block.take_ready(indices), failure)
            return
        if not lane.tasks or lane.since_s == -math.inf or len(lane.tasks) == len(indices):
            lane.since_s = now_s
        if not sent:  # the worker is about to end, and will be reported
            self._take_back(lane, block, indices)

    def _take_back(self, lane: WorkerLane, block: ClaimedBlock, indices: list[int]) -> None:
        """Lets tasks wait again, as if they had not been handed out."""
        for seq in [seq for seq, task in lane.tasks.items() if task[0] is block and task[1] in indices]:
            del lane.tasks[seq]
        block.put_back(indices)
        if not lane.tasks:
            self._lanes.give_up(lane)

    def _send_calls(self, lane: WorkerLane, block: ClaimedBlock, launch: LaunchSpec, indices: list[int]) -> bool:
        assert lane.worker is not None
        assert launch.blob is not None
        next_seq, label, attempt = self._lanes.runner.next_seq, block.info.label, block.key.attempt
        plain, keyed, tasks, argument = block.info.array is None, block.data.keyed, lane.tasks, block.payload
        items: list[TaskItem] = []
        size = 0
        for at, index in enumerate(indices):
            staged = self._stager.take(block, index) if keyed else None
            payload: bytes | str | fetch.ArgumentsPiece = argument(index) if staged is None else staged.payload
            if self._node.accounts is not None and isinstance(payload, fetch.ArgumentsPiece) and not isinstance(payload, fetch.OwnPiece):
                payload = payload.read()  # the file does not belong to the task's user
            data, there = (payload, _INLINE) if isinstance(payload, bytes) else (b"", fetch.where(payload))
            size += len(data)
            if size > BATCH_BYTES and items:
                block.put_back(indices[at:])
                del indices[at:]
                break
            seq = next_seq()
            tasks[seq] = (block, index)
            shown = -1 if plain else label(index)
            items.append(TaskItem(seq, index, attempt, shown, data, **there) if there else TaskItem(seq, index, attempt, shown, data))
        batch = TaskBatch(
            shape=launch.shape if not lane.is_special else with_own(launch.shape, lane),
            function=launch.function,
            blob=b"" if launch.blob.path else launch.blob.data,
            path=str(launch.blob.path),
            keyed=block.data.keyed,
            items=tuple(items),
        )
        sent = lane.worker.send(batch)
        failpoint("starter.running")
        return sent

    def _send_commands(self, lane: WorkerLane, block: ClaimedBlock, launch: LaunchSpec, indices: list[int]) -> bool:
        command = launch.command
        assert command is not None
        info: Info = block.info
        is_staged, has_named = self._stager.is_needed(block), bool(command.out or command.err)
        items = []
        for index, seq in ((index, self._lanes.runner.next_seq()) for index in indices):
            lane.tasks[seq] = (block, index)
            staged: Staged | None = self._stager.take(block, index) if is_staged else None
            payload = block.payload(index)
            payload = payload.read() if isinstance(payload, fetch.ArgumentsPiece) else payload
            out, err = self._stager.named_outputs(block, index) if has_named else ("", "")
            items.append(
                CommandItem(
                    seq=seq,
                    index=index,
                    attempt=block.key.attempt,
                    label=info.label(index),
                    directory=staged.directory if staged is not None else "",
                    entry=payload.replace(b"\0", b""),
                    out=out,
                    err=err,
                )
            )
        sent = lane.slot.run(
            CommandBatch(
                shape=launch.shape if not lane.is_special else with_own(launch.shape, lane),
                argv=command.argv,
                script=launch.script,
                cwd=command.cwd,
                stdin=b"" if launch.stdin is None or launch.stdin.path else launch.stdin.data,
                stdin_path=str(launch.stdin.path) if launch.stdin is not None else "",
                keep=bool(command.output_files) or is_staged,
                append=self._stager.appends(block),
                named_only=command.named_only,
                is_mixed=bool(info.record.array) or any(item.entry for item in items),
                isolate=bool(lane.part),
                halts=bool(lane.part) and self._lanes.runner.freezer == Freezer.SIGNALS,
                items=tuple(items),
            )
        )
        failpoint("starter.running")
        return sent

    # -- nothing waits behind a long task -----------------------------------------------------------------------------------

    def level(self, now_s: float) -> bool:
        """Takes tasks back from lanes where they would wait: behind a long task, or while another slot is free.

        Returns: whether to look again soon.
        """
        again = False
        for lane in list(self._lanes):
            waiting = len(lane.tasks) - 1
            if waiting < 1 or lane.serial is not None or lane.recalling or lane.info is None or lane.blocked_seq:
                continue
            again = True
            if self._is_long(lane, now_s):
                self._lanes.recall(lane)
            elif self._lanes.fits(*lane.shape) and waiting * self._task_s(lane) > _WORTH_S and not self._has_ready():
                self._lanes.recall(lane, keep=waiting // 2)
        return again

    def is_stalled(self, now_s: float) -> bool:
        """Returns whether no slot is free, and none will be soon."""
        return self._lanes.free_cores == 0 and all(self._is_long(lane, now_s) for lane in self._lanes)

    def frees_soon(self, now_s: float) -> bool:
        """Returns whether a slot is expected to be free within the time for which work is kept ready."""
        for lane in self._lanes:
            task_s = self._task_s(lane)
            left_s = len(lane.tasks) * task_s - (now_s - lane.since_s)
            if task_s and left_s < AHEAD_S and not self._is_long(lane, now_s):
                return True
        return False

    def _is_long(self, lane: WorkerLane, now_s: float) -> bool:
        """Returns whether the lane's running task takes much longer than expected."""
        return now_s - lane.since_s > _LONG_S + 3 * self._task_s(lane)

    def _task_s(self, lane: WorkerLane) -> float:
        return self._times.of(lane.kind) or 0.0

    def recall_all(self) -> None:
        """Takes back all tasks that have not begun."""
        for lane in list(self._lanes):
            if len(lane.tasks) > 1 and not lane.recalling:
                self._lanes.recall(lane)

    def _has_ready(self) -> bool:
        return any(block.ready for block in self._blocks.values())


# -- launch specifications -------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class LaunchSpec:
    """What all tasks of a block need to be started."""

    shape: BatchShape
    spec: WorkerSpec | None = None
    function: str = ""
    blob: fetch.Blob | None = None
    command: Command | None = None
    script: bytes = b""
    stdin: fetch.Blob | None = None

    @property
    def files(self) -> list[str]:
        """Files of this node that its tasks read."""
        blobs = [blob.path for blob in (self.blob, self.stdin) if blob is not None and blob.path]
        return blobs + list(self.spec.archives if self.spec is not None else ())


def with_own(shape: BatchShape, lane: WorkerLane) -> BatchShape:
    """Returns the shape with the lane's own variables."""
    return msgspec.structs.replace(shape, environ=shape.environ | lane.variables)


def words_of(error: Exception) -> str:
    """Returns the class and message of an error."""
    return f"{type(error).__name__}: {error}"
