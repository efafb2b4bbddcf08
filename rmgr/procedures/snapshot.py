"""Reads a cluster's facts from znodes: for commands when no WatchDog answers, and for the tasks of one submission.

Writes nothing to ZooKeeper or the store. Reads are pipelined: a few round trips in all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

import msgspec

from rmgr.coord import validity
from rmgr.coord.decisions.progress import Progress, stated
from rmgr.coord.decisions.rights import no_submission
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Stamped
from rmgr.coord.protocol.ports import Coordinator, Store
from rmgr.coord.protocol.records import decode_block, decode_failed, read_fragment
from rmgr.coord.views.snapshot import BlockOnNode, ClusterSnapshot
from rmgr.errors import InvalidRecord, NotFound, WrongCluster
from rmgr.model.block import MOST_TASKS, BlockData, BlockKey, Fragment, Outcome
from rmgr.model.node import Drain, EpochRecord, Meta, NodeRecord, Trouble
from rmgr.model.queue import ClusterSettings
from rmgr.model.submission import Paged, Submission, Tail
from rmgr.procedures.bounded import outcomes_in, page_at, pages

if TYPE_CHECKING:
    from rmgr.coord.views.submission import Applied, Claimed, Waiting
    from rmgr.model.views import TaskView

T = TypeVar("T")
R = TypeVar("R")

#: Reads in flight at once.
WINDOW = 256


def fetch(items: Sequence[T], ask: Callable[[T], Future[R]], *, timeout_s: float) -> list[R]:
    """Asks for every item, at most `WINDOW` at a time. Returns the answers in order."""
    answers: list[R] = []
    for at in range(0, len(items), WINDOW):
        flying = [ask(item) for item in items[at : at + WINDOW]]
        answers += [future.result(timeout_s) for future in flying]
    return answers


def read_record(coordinator: Coordinator, path: str, kind: type[T], *, timeout_s: float) -> T | None:
    """Reads and checks one record; None if it does not exist. Raises InvalidRecord, WrongCluster, CoordinationUnavailable."""
    found = coordinator.get(path, timeout_s=timeout_s).result(timeout_s + 1)
    return None if found is None else validity.decode(found.data, kind, path)


def read_records(coordinator: Coordinator, wanted: Sequence[str], kind: type[T], *, timeout_s: float) -> list[T]:
    """Reads and checks those of many records that exist. Raises as `read_record`."""
    found = fetch(wanted, coordinator.get, timeout_s=timeout_s)
    return [validity.decode(item.data, kind, path) for path, item in zip(wanted, found, strict=True) if item is not None]


def read_names(coordinator: Coordinator, path: str, *, timeout_s: float) -> list[str]:
    """Returns the names below a znode, [] if it does not exist. Raises CoordinationUnavailable."""
    return coordinator.children(path, timeout_s=timeout_s).result(timeout_s + 1) or []


def read_snapshot(
    coordinator: Coordinator,
    store: Store | None,
    *,
    shown: Callable[[Submission], bool] = lambda _: True,
    submissions: bool = True,
    timeout_s: float = 10.0,
) -> ClusterSnapshot:
    """Reads everything that `jobs`, `nodes`, `queues`, `status` and `explain` need, as far as this user may see it.

    Args: shown: whether to include a submission. submissions: False skips them all, since reading many takes long.
    Raises CoordinationUnavailable.
    """
    tops = fetch([paths.META, paths.CONFIG, paths.EPOCH], coordinator.get, timeout_s=timeout_s)
    parents = [paths.WATCHDOGS, paths.STARTERS, paths.NODES, paths.DRAINS, paths.TROUBLES, paths.SUBMITTERS, paths.SUBS]
    lists = fetch(parents, coordinator.children, timeout_s=timeout_s)
    watchdogs, starters, node_names, drained, troubled, submitters, buckets = ([] if names is None else names for names in lists)
    meta, settings, epoch = tops
    epoch_record = validity.decode(epoch.data, EpochRecord, paths.EPOCH) if epoch else None
    nodes = read_records(coordinator, [paths.node(name) for name in node_names], NodeRecord, timeout_s=timeout_s)
    drains = read_records(coordinator, [paths.drain(name) for name in drained], Drain, timeout_s=timeout_s)
    troubles = read_records(coordinator, [paths.trouble(name) for name in troubled], Trouble, timeout_s=timeout_s)
    numbers: list[int] = []
    directories = [f"{paths.SUBS}/{bucket}" for bucket in buckets if paths.parse_number(bucket) is not None]  # anybody may create here
    for names in fetch(directories if submissions else (), coordinator.children, timeout_s=timeout_s):
        numbers += [number for name in names or () if (number := paths.parse_number(name)) is not None]
    read: dict[int, tuple[Submission, Progress]] = {}
    waiting: dict[int, int] = {}
    for number in sorted(numbers):
        with suppress(WrongCluster, InvalidRecord):  # unreadable: one record must not hide the others
            found = read_progress(coordinator, store, number, timeout_s=timeout_s)
            if found is not None and shown(found[0]):
                read[number] = found
    living = {paths.entry_guid(name) for name in submitters}
    failed_names = fetch([paths.failed(number) for number in read], coordinator.children, timeout_s=timeout_s)
    for number, names in zip(read, failed_names, strict=True):
        if names:
            waiting[number] = sum(count for _, (_, count, _) in paths.failed_in(names))
    return ClusterSnapshot(
        cluster_id=validity.decode(meta.data, Meta, paths.META).cluster_id if meta else "",
        settings=validity.decode(settings.data, ClusterSettings, paths.CONFIG) if settings else ClusterSettings(),
        epoch=epoch_record,
        leader_alive=epoch_record is not None and epoch_record.candidate in watchdogs,
        watchdogs=len(watchdogs),
        submissions=read,
        claimed=claimed_blocks(coordinator, [record.node for record in nodes], timeout_s=timeout_s),
        nodes={record.node: record for record in nodes},
        alive=frozenset(paths.entry_guid(name) for name in starters),
        drains={record.node: record for record in drains if not record.is_over},
        resumed={record.node: record for record in drains if record.is_over},
        troubles={record.node: record for record in troubles},
        waiting=waiting,
        ownerless=frozenset(  # only the leader knows since when
            number for number, (record, progress) in read.items() if not progress.tail.complete and record.owner not in living
        ),
    )


def read_submission(coordinator: Coordinator, number: int, *, timeout_s: float = 10.0) -> Submission:
    """Reads the record of a submission. Raises NotFound."""
    found = coordinator.get(paths.sub(number), timeout_s=timeout_s).result(timeout_s)
    if found is None:
        raise no_submission(number)
    return validity.submission(found.data, number)


def read_progress(
    coordinator: Coordinator, store: Store | None, number: int, *, timeout_s: float = 10.0
) -> tuple[Submission, Progress] | None:
    """Reads a submission and its progress; None if it is gone. Outcomes in store rows are counted by their ranges."""
    record, tail, done = fetch([paths.sub(number), paths.tail(number), paths.done(number)], coordinator.get, timeout_s=timeout_s)
    if record is None or tail is None or done is None:
        return None
    progress = Progress()
    progress.tail = validity.decode(tail.data, Tail, paths.tail(number))
    submission = validity.submission(record.data, number)
    try:
        paged, fragments = read_whole(coordinator, number, done, timeout_s=timeout_s)
    except NotFound:
        return None
    progress.skip_to(paged)
    for at, fragment in fragments:
        progress.apply(at, fragment, outcomes_of(fragment, store, end=progress.tail.next), end=progress.tail.next)
    return submission, progress


def read_whole(
    coordinator: Coordinator, number: int, done: Stamped, *, timeout_s: float = 10.0
) -> tuple[Paged, list[tuple[int, Fragment]]]:
    """Reads what was paged out, and every other fragment with its number; reads again if a page was written in between.

    Raises: NotFound if the submission is collected meanwhile.
    """
    while True:
        paged = validity.decode(done.data, Paged, paths.done(number)) if done.data else Paged()
        fragments = read_fragments(coordinator, number, paged.base, done, timeout_s=timeout_s)
        if len(fragments) >= done.stat.creates - paged.base:
            return paged, fragments
        again = coordinator.get(paths.done(number), timeout_s=timeout_s).result(timeout_s)
        if again is None:
            raise NotFound(f"submission {number} is being collected", hint=f"rmgr history {number}")
        if again.version == done.version:
            return paged, fragments  # they are lost: the remaining ones are returned
        done = again


def read_fragments(
    coordinator: Coordinator, number: int, base: int, done: Stamped, *, timeout_s: float = 10.0
) -> list[tuple[int, Fragment]]:
    """Reads fragments from `base` on, up to those created when `done` was read, with their numbers."""
    numbers = list(range(base, done.stat.creates))
    found = fetch([paths.fragment(number, at) for at in numbers], coordinator.get, timeout_s=timeout_s)
    return [(at, read_fragment(item.data)) for at, item in zip(numbers, found, strict=True) if item is not None]


def outcomes_of(fragment: Fragment, store: Store | None, *, end: int = MOST_TASKS) -> Iterable[Outcome]:
    """Returns the outcomes of a fragment; without a store only those in its ranges (state by index, below `end`). Raises DataLost."""
    if not fragment.row:
        return fragment.outcomes
    if store is None:
        return stated(fragment, end=end)
    return outcomes_in(store, fragment.row)


def read_claimed(
    coordinator: Coordinator, nodes: Sequence[str], *, submission: int | None = None, timeout_s: float = 10.0
) -> list[tuple[str, BlockKey, BlockData]]:
    """Reads claimed blocks of these nodes, of one submission or of all: (node, key, data)."""
    wanted: list[tuple[str, BlockKey]] = []
    for node, names in zip(
        nodes, fetch([paths.running_node(node) for node in nodes], coordinator.children, timeout_s=timeout_s), strict=True
    ):
        wanted += [(node, key) for _, key in paths.blocks_in(names) if submission is None or key.submission == submission]
    found = fetch([paths.running_block(node, key) for node, key in wanted], coordinator.get, timeout_s=timeout_s)
    claimed: list[tuple[str, BlockKey, BlockData]] = []
    for (node, key), item in zip(wanted, found, strict=True):
        if item is not None:
            with suppress(msgspec.MsgspecError):  # an invalid block must not hide the others
                claimed.append((node, key, decode_block(item.data)))
    return claimed


def claimed_blocks(coordinator: Coordinator, nodes: Sequence[str], *, timeout_s: float = 10.0) -> tuple[BlockOnNode, ...]:
    """Reads claimed blocks of all submissions, in the form of a snapshot."""
    claimed = read_claimed(coordinator, nodes, timeout_s=timeout_s)
    starting = read_starting(coordinator, claimed, timeout_s=timeout_s)
    return tuple(
        BlockOnNode(
            node=node,
            key=key,
            done=data.done,
            claimed_us=data.claimed_us,
            allocation=data.allocation,
            stopping=data.stopping,
            is_starting=(node, key) in starting,
            awaits=data.awaits,
            saving=data.saving,
            answered=data.answered,
            moves=data.moves,
            serial=data.serial,
        )
        for node, key, data in claimed
    )


def read_starting(
    coordinator: Coordinator, claimed: Iterable[tuple[str, BlockKey, BlockData]], *, timeout_s: float = 10.0
) -> set[tuple[str, BlockKey]]:
    """Returns the placed jobs that have not begun: their start orders still stand. Cost: one list for each head node."""
    heads = sorted({node for node, _, data in claimed if data.allocation is not None})
    lists = fetch([paths.inbox_node(node) for node in heads], coordinator.children, timeout_s=timeout_s)
    found = ((node, paths.parse_start_order(guid)) for node, guids in zip(heads, lists, strict=True) for guid in guids or ())
    return {(node, key) for node, key in found if key is not None}


def read_waiting(coordinator: Coordinator, number: int, *, timeout_s: float = 10.0) -> list[Waiting]:
    """Reads failed ranges of a submission that wait for the resubmit rule."""
    ranges = paths.failed_in(read_names(coordinator, paths.failed(number), timeout_s=timeout_s))
    found = fetch([f"{paths.failed(number)}/{name}" for name, _ in ranges], coordinator.get, timeout_s=timeout_s)
    waiting: list[Waiting] = []
    for (_, numbers), item in zip(ranges, found, strict=True):
        if item is not None:
            with suppress(msgspec.MsgspecError):  # as among claimed blocks
                waiting.append((*numbers, decode_failed(item.data)))
    return waiting


def read_tasks(
    coordinator: Coordinator, store: Store | None, number: int, *, first: int = 0, limit: int = 0, timeout_s: float = 10.0
) -> tuple[Submission, list[TaskView]]:
    """Reads tasks of one submission by dense position, from `first` on, at most `limit` (0 = all). Raises NotFound, DataLost."""
    from rmgr.coord.views.submission import task_views

    submission = read_submission(coordinator, number, timeout_s=timeout_s)
    tail, done = fetch([paths.tail(number), paths.done(number)], coordinator.get, timeout_s=timeout_s)
    if tail is None or done is None:
        raise NotFound(f"submission {number} is being collected", hint=f"rmgr history {number}")
    paged, fragments = read_whole(coordinator, number, done, timeout_s=timeout_s)
    grown = validity.tail(tail, number)
    all_of_them = [*read_pages(store, number, paged), *(fragment for _, fragment in fragments)]
    applied: list[Applied] = [(fragment, tuple(outcomes_of(fragment, store, end=grown.next))) for fragment in all_of_them]
    nodes = read_names(coordinator, paths.NODES, timeout_s=timeout_s)
    claimed: list[Claimed] = read_claimed(coordinator, nodes, submission=number, timeout_s=timeout_s)
    starting = read_starting(coordinator, claimed, timeout_s=timeout_s)
    return submission, task_views(
        submission,
        grown,
        fragments=applied,
        claimed=claimed,
        starting=starting,
        waiting=read_waiting(coordinator, number, timeout_s=timeout_s),
        pending=_with_past(coordinator, submission, timeout_s),
        first=first,
        limit=limit,
    )


def _with_past(coordinator: Coordinator, submission: Submission, timeout_s: float) -> list[tuple[BlockKey, BlockData]]:
    """Reads waiting blocks of the submission after their first attempt."""
    wanted: list[str] = []
    for parent in (place(queue) for queue in submission.queues for place in (paths.pending, paths.held)):
        names = read_names(coordinator, parent, timeout_s=timeout_s)
        wanted += [f"{parent}/{name}" for name, key in paths.blocks_in(names) if key.submission == submission.id and key.attempt > 1]
    found = fetch(wanted, coordinator.get, timeout_s=timeout_s)
    waiting: list[tuple[BlockKey, BlockData]] = []
    for path, item in zip(wanted, found, strict=True):
        if item is not None:
            with suppress(msgspec.MsgspecError):  # as among claimed blocks
                waiting.append((paths.parse_block(path.rpartition("/")[2]), decode_block(item.data)))
    return waiting


def read_pages(store: Store | None, number: int, paged: Paged) -> list[Fragment]:
    """Reads paged fragments, oldest first."""
    return [] if store is None else [fragment for _, page in pages(store, number, 0, paged.base, page_at) for fragment in page]
