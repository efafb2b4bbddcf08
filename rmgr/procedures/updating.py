"""UPDATE: other terms for a submission that was sent: who may change what is said by `coord/decisions/changing.py`, once here, once more by
the gateway. The leader renames its blocks, places its jobs anew, and tells nodes of the time limit of what runs.
"""

from __future__ import annotations

from collections.abc import Callable

from rmgr.coord import validity
from rmgr.coord.decisions import changing
from rmgr.coord.decisions.changing import Doer
from rmgr.coord.ops import work as ops
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import MAX_OPS_OF_ONE_JOB, Multi
from rmgr.coord.protocol.ports import Coordinator
from rmgr.coord.protocol.records import encode_record
from rmgr.errors import InvalidRecord, UsageError
from rmgr.model.base.units import counted
from rmgr.model.cluster.node import NodeRecord
from rmgr.model.tasks.amendments import MOST_CHANGES
from rmgr.model.tasks.submission import Amendment, Phase, Submission, Terms
from rmgr.procedures.admission import check_changed
from rmgr.procedures.bootstrap import read_settings
from rmgr.procedures.control import Changed, HasCoordinator, settle
from rmgr.procedures.snapshot import fetch, read_progress

#: Blocks of which one commit sees that they wait still.
_MOST_WAITING = MAX_OPS_OF_ONE_JOB - MOST_CHANGES - 5
#: Signs an amendment of a submission of that number: "key id:hex".
Sign = Callable[[int, Amendment], str]


def update_submission(
    connection: HasCoordinator, number: int, terms: Terms, *, doer: Doer, sign: Sign | None = None, timeout_s: float = 30.0
) -> Changed:
    """Gives what waits of a submission other terms, and what runs of it another time limit.

    At most one of this and a start is committed where one block is all that waits: what has started keeps its terms, but for
    the time limit (its user may shorten that, an operator lengthen it).

    Args:
        sign: of who makes it; None in an open cluster.
    Raises: NotFound; UsageError, Infeasible, PermissionDenied for terms that no submission may have; CoordinationUnavailable.
    """

    def decide(coordinator: Coordinator, record: Submission, version: int, left_s: float) -> tuple[Submission, Multi] | str:
        standing, waiting = _standing(coordinator, record, terms, left_s)
        change = changing.amended(record, terms, doer, standing)
        if isinstance(change, str):
            return change
        made = change.record
        settings, nodes = read_settings(coordinator, timeout_s=left_s), _nodes(coordinator, left_s)
        check_changed(made, made.changes[-1].terms, settings, nodes)
        if sign is not None:
            made = changing.signed(made, sign(number, made.changes[-1]))
        _check_record(made)
        if len(waiting) > _MOST_WAITING:
            return f"it waits in {counted(len(waiting), 'block')}, and none of so many may start meanwhile: rmgr hold {number} first"
        return made, ops.update(made, version=version, gate=change.gate, waiting=waiting)

    return settle(connection, number, decide, timeout_s=timeout_s, has_come=_has_come)


def _check_record(made: Submission) -> None:
    """What nobody could read must not be written: the work would neither start nor end any more. Raises: UsageError."""
    try:
        validity.submission(encode_record(made), made.id)
    except InvalidRecord as error:
        raise UsageError(f"{made.id}: {error.message.partition(': ')[2]}", hint="rmgr update --help") from error


def _has_come(mine: Submission, record: Submission) -> bool:
    """An amendment whose commit had an unknown outcome stands there; others may have come since."""
    return record.changes[: len(mine.changes)] == mine.changes


def _standing(coordinator: Coordinator, record: Submission, terms: Terms, timeout_s: float) -> tuple[changing.Standing, list[str]]:
    """What of it waits and runs; paths of the blocks of which none may start in the moment of the change."""
    number = record.id
    [tail] = fetch([paths.tail(number)], coordinator.get, timeout_s=timeout_s)
    places = [place(queue) for queue in reversed(record.queues) for place in (paths.pending, paths.held)]
    failed, nodes, *queues = fetch([paths.failed(number), paths.NODES, *places], coordinator.children, timeout_s=timeout_s)
    grows = tail is not None and not validity.tail(tail, number).complete
    blocks = [
        f"{parent}/{name}" for parent, names in zip(places, queues, strict=True)
        for name, key in sorted(paths.blocks_in(names), key=lambda one: paths.claim_order(one[0])) if key.submission == number
    ]  # fmt: skip
    if grows or failed or blocks:
        may_move = not (grows or failed or changing.OF_STILL.isdisjoint(terms.said()))
        is_still = may_move and _is_all(coordinator, record.id, blocks, timeout_s)
        if is_still and record.phase is not Phase.OPEN:
            return changing.Standing(waits=True), []  # nothing starts before its record is another one
        return changing.Standing(waits=True, is_still=is_still), [] if grows or failed else blocks if is_still else blocks[-1:]
    lists = fetch([paths.running_node(node) for node in nodes or ()], coordinator.children, timeout_s=timeout_s)
    runs = any(key.submission == number for names in lists for _, key in paths.blocks_in(names))
    return changing.Standing(waits=False, runs=runs, is_still=False), []


def _is_all(coordinator: Coordinator, number: int, blocks: list[str], timeout_s: float) -> bool:
    """What has not ended of a submission waits in these blocks: nothing of it is claimed."""
    read = read_progress(coordinator, None, number, timeout_s=timeout_s)
    waiting = {(key.first, key.count) for path in blocks for key in (paths.parse_block(path.rpartition("/")[2]),)}  # one may have moved
    return read is not None and read[1].final + sum(count for _, count in waiting) == read[1].total


def _nodes(coordinator: Coordinator, timeout_s: float) -> list[NodeRecord]:
    names = fetch([paths.NODES], coordinator.children, timeout_s=timeout_s)[0] or []
    found = fetch([paths.node(name) for name in names], coordinator.get, timeout_s=timeout_s)
    return [validity.decode(item.data, NodeRecord, paths.NODES) for item in found if item is not None]
