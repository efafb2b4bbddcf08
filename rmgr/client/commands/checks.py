"""Checks of a request that need the cluster or the data store. Nothing is written; whoever changes it meanwhile is refused later."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rmgr.errors import KeyExists, NotFound, QueueFull, RequestTooLarge, StoreUnavailable, UsageError
from rmgr.model.base.units import counted
from rmgr.model.tasks.block import MAX_TASKS
from rmgr.model.tasks.submission import Phase, Submission

if TYPE_CHECKING:
    from rmgr.client.commands.doors import Asking, CommandHost, HasStore
    from rmgr.model.cluster.limits import UserLimits
    from rmgr.model.cluster.node import NodeRecord
    from rmgr.model.cluster.queue import ClusterSettings

#: Of a record in its znode; the rest of 16 KiB is for what is not command and environment.
MAX_RECORD_BYTES = 15 * 1024
#: Characters of a name, an account, a token.
_MAX_WORD = 1000


@dataclass(frozen=True, slots=True)
class AdmissionFacts:
    """Settings and nodes that requests are checked against, read once."""

    settings: ClusterSettings
    nodes: list[NodeRecord]


def read_facts(host: CommandHost) -> AdmissionFacts:
    """Settings and nodes of the cluster, as they are now. Raises Unavailable."""
    from rmgr.submitter.questions import ReadNodes, ReadSettings

    return AdmissionFacts(host.ask(ReadSettings()).settings, [*host.ask(ReadNodes())])


def check_dependencies(host: CommandHost, draft: Submission) -> None:
    """What it waits for exists, or did. Raises NotFound."""
    from rmgr.coord.protocol import keys
    from rmgr.submitter.questions import WhichExist

    numbers = tuple(dict.fromkeys(item.submission for item in draft.after))
    there = host.ask(WhichExist(numbers=numbers)) if numbers else ()
    for number in numbers:
        if number not in there and host.data_store().head(keys.history(number)) is None:
            raise NotFound(f"--after: there is no submission {number} to wait for", hint="rmgr jobs -a lists them, rmgr history older ones")


def check_inputs(host: CommandHost, names: Iterable[str]) -> None:
    """Input keys are there, and may be read. Raises NotFound, PermissionDenied."""
    if not names:
        return
    from rmgr.coord.decisions.ownership import ANYBODY
    from rmgr.coord.protocol import keys

    values, wait_s = host.values(), host.left_s(30.0) or 30.0
    for key in names:
        values.check_input(key, trust=(ANYBODY,), timeout=wait_s)  # a file of bytes: nobody unpickles it
        if host.data_store().head(keys.named(key), timeout_s=wait_s) is None:
            raise NotFound(
                f"--input: there is no key {key!r} in the data store", hint=f"rmgr store put {key} FILE; rmgr store ls lists keys"
            )


def check_outputs(host: CommandHost, draft: Submission, tasks: int) -> None:
    """Output keys are free. Raises KeyExists, UsageError. Whoever comes between is refused by `claim_outputs`."""
    from rmgr.client.commands.request import output_key

    command = draft.command
    if command is None or not command.output_files:
        return
    values, wait_s = host.values(), host.left_s(30.0) or 30.0
    for key, _ in command.output_files:
        names = [output_key(key, draft, 0, position) for position in range(tasks if "%a" in key else 1)] if "%j" not in key else []
        if tasks > 1 and "%a" not in key:
            raise UsageError(f"--output: all {tasks} tasks would write the key {key!r}", hint="put %a (the array index) into the key")
        for name in names:
            values.check_mine(name, timeout=wait_s)
            if values.exists(name, timeout=wait_s):
                raise KeyExists(
                    f"--output: the key {name!r} exists already", hint=f"choose another key, or delete it: rmgr store rm {name}"
                )


def waiting_blocks(record: Submission, tasks: int) -> int:
    """How many blocks would wait in the queue as soon as it is submitted."""
    if record.phase is not Phase.OPEN or record.max_running:
        return 0
    return tasks if record.rigid is not None else -(-tasks // MAX_TASKS)


def check_room(host: Asking, settings: ClusterSettings, queue: str, more: int, *, what: str = "this is") -> None:
    """The queue takes so many more blocks. Raises QueueFull. Cost: a read, where the queue has a cap."""
    from rmgr.submitter.questions import CountWaiting

    spec = settings.queue(queue)
    cap = spec.max_pending_blocks if spec is not None else 0
    if not cap or not more:
        return
    waiting = host.ask(CountWaiting(queue=queue))
    if waiting + more > cap:
        shorter = "send more tasks in one submission: --array, --each-line" if what == "this is" else "submit shorter lists"
        raise QueueFull(
            f"queue {queue} is full: {counted(waiting, 'waiting block')}, at most {cap} may wait, and {what} {more} more",
            hint=f"wait until some have run (rmgr queues), or {shorter}",
        )


def check_jobs(host: Asking, limits: UserLimits, user: str, *, new: int = 1) -> None:
    """`user` is about to submit so many jobs. Raises, and costs, as `caps.check_cap`."""
    from rmgr.procedures.caps import check_cap
    from rmgr.submitter.questions import ReadUse

    check_cap(lambda: host.ask(ReadUse(user=user)).jobs, limits, user, new=new)


def check_size(record: Submission) -> None:
    """Refuses what does not fit a record. Raises UsageError, RequestTooLarge."""
    from rmgr.coord.protocol.records import encode_record

    size = len(encode_record(record))
    for option, text in (("--name", record.name), ("--account", record.account), ("--token", record.token)):
        if len(text) > _MAX_WORD:
            raise UsageError(f"{option} has {len(text)} characters; at most {_MAX_WORD} are recorded", hint="a shorter one")
    if size > MAX_RECORD_BYTES:
        raise RequestTooLarge(
            f"the command and its environment take {size} bytes; at most {MAX_RECORD_BYTES} are recorded",
            hint="put long argument lists into a file (--upload FILE, --each-line FILE), and variables into the script",
        )


def check_store(host: HasStore) -> None:
    """Work that is accepted while its outputs could not be stored would only fill the nodes' disks. Raises StoreUnavailable."""
    from rmgr.procedures.bootstrap import STORE_READ_S, not_submitted, require_store

    timeout_s = min(STORE_READ_S, host.left_s(STORE_READ_S) or STORE_READ_S)
    try:
        store = host.data_store()
    except StoreUnavailable as error:
        raise not_submitted(error) from error
    require_store(store, timeout_s=timeout_s)
