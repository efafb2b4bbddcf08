"""Codes the gang of a partition for `/gangs/<partition>`: nodes by name, for their numbers are one leader's own; jobs with their attempts.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from rmgr.coord.protocol.multi import MAX_GANGS_BYTES
from rmgr.coord.protocol.records import encode_record
from rmgr.daemons.leader.core.facts import Names
from rmgr.model.base.units import spanned
from rmgr.model.cluster.gang import GangClock, GangRecord
from rmgr.sched.capacity.gangs import Carousel
from rmgr.sched.capacity.holds import each_node
from rmgr.sched.capacity.timetable import numbered
from rmgr.sched.job import Node, Running, nodes_of
from rmgr.sched.records import Gang

#: Upper estimates in bytes: of a job in a record (an entry of its queue, its attempt), of a leaf's share of the front, of the rest.
_JOB, _LEAF, _REST = 80, 40, 2048


def encode_gang(
    gang: Gang, names: Names, attempts: Mapping[int, int], clock: GangClock, before: GangRecord | None, set_us: int | None = None
) -> bytes:
    """attempts: of its jobs. One that has none yet, or no more, has empty slots. before: the record that this one replaces.

    set_us: gang time now, None = nobody knows.
    """
    served = served_until(before, gang.slot) if before is not None and before.origin_us == gang.origin_us else {}
    return encode_record(
        GangRecord(
            policy=gang.name,
            slot_us=gang.slot_us,
            origin_us=gang.origin_us,
            slot=gang.slot,
            width=gang.width,
            leaves=tuple((names.name(node), cores) for node, cores in each_node(gang.leaves)),
            clock=clock,
            queues=gang.queues,
            front=gang.front,
            late=gang.late,
            next_round=gang.next_round,
            memory_share=gang.memory_share,
            attempts=tuple((job, attempts[job], served.get((job, attempts[job]), 0)) for job in gang.jobs if job in attempts),
            set_us=set_us or 0,
        )
    )


def served_until(record: GangRecord, slot: int) -> dict[tuple[int, int], int]:
    """(Job, attempt) -> slots that it was given before this one, as every reader of the record has it."""
    carousel = Carousel(numbered(record))
    carousel.advance_to(slot)
    given = carousel.given()
    return {(job, attempt): served + given.get(job, 0) for job, attempt, served in record.attempts}


def gang_of(record: GangRecord, partition: str, names: Names) -> Gang:
    """The scheduler's record, with the leader's numbers of its nodes."""
    leaves = tuple((names.id(node), names.id(node), cores) for node, cores in record.leaves)
    return numbered(record)._replace(leaves=leaves, policy=record.policy, partition=partition)


class MemberTurn(NamedTuple):
    """runs: it has the present slot; also where nobody knows which that is. told: its share of its nodes, in words; slots: as 1/4.

    served_us: for how long it has had its cores.
    """

    runs: bool
    told: str
    slots: str = ""
    served_us: int = 0


def turns_of(gang: Gang, members: Mapping[int, Running], now_us: int | None, names: Names) -> dict[int, MemberTurn]:
    """Of each member, by job. now_us: gang time, None = nobody knows. Cost: O(nodes of the tree + nodes of members)."""
    carousel = Carousel(gang)
    rotation, tree = carousel.rotation, carousel.tree
    share = [1.0] * tree.nodes  # part of all slots in which a tree node or one below it is served
    for node in range(tree.nodes):
        round_, own = rotation.rounds[node], len(rotation.queues[node].entries)
        for child in tree.children(node):
            share[child] = share[node] * (round_ - own) / round_ if round_ else 0.0
    slot = -1 if now_us is None else (now_us - gang.origin_us) // gang.slot_us
    served: set[int] | None = None
    rounds = list(rotation.rounds)
    if slot >= gang.slot:
        carousel.advance_to(slot)
        served = {job for _, job in rotation.row()}
    beside: dict[int, set[int]] = {}
    for job, run in members.items():
        for at in nodes_of(run.placement):
            beside.setdefault(at, set()).add(job)
    found = {}
    for job, run in members.items():
        if job not in carousel:
            continue
        node, weight = carousel.node_of(job), carousel.weights[job]
        slowdown = rounds[node] / (weight * share[node]) if share[node] and rounds[node] else float(rounds[0])
        there = sorted(nodes_of(run.placement))
        where = spanned([names.name(at) for at in there])
        others = len(set().union(*(beside[at] for at in there))) - 1
        slots = f"{weight} {'slot' if weight == 1 else 'slots'} of {slowdown * weight:.3g}"
        beside_it = f"{where} with {others} {'other' if others == 1 else 'others'}"
        told = f"{beside_it}: {slots}, slowdown {slowdown:.1f} (at most {rounds[0] / weight:.3g})"
        found[job] = MemberTurn(served is None or job in served, told, f"{weight}/{slowdown * weight:.3g}")
    return found


def most_members(nodes: Mapping[int, Node], names: Names) -> int:
    """So many jobs fit into the record of a gang on these nodes, whatever its tree looks like."""
    leaves = sum(len(names.name(node.id).encode()) + 16 + _LEAF * node.cores for node in nodes.values())
    return max(0, (MAX_GANGS_BYTES - _REST - leaves) // _JOB)
