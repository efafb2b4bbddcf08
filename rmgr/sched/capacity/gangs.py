"""Gangs of a partition: whose jobs share nodes in time, and which nodes belong to one as a whole while one of its jobs stands there."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from typing import Protocol

from rmgr.sched.capacity.carousel import Carousel
from rmgr.sched.job import Job, Node, Placement, Running, nodes_of
from rmgr.sched.records import Gang

#: Stands for a gang in a pool: a node that it has is nobody else's.
OWNER = Job(id=0, submit_us=0, exclusive=True)


def memory_on(job: Job, node: Node, count: int, share: int) -> int:
    """Bytes of the node's memory that so many processes of the job count as: what they ask for, or its `share_of_memory`."""
    if job.memory_bytes or not share:
        return count * job.memory_bytes
    return share_of_memory(node.memory_bytes, node.cores, node.cores if job.exclusive else count * job.threads, share)


def share_of_memory(memory_bytes: int, cores: int, used: int, share: int) -> int:
    """What a job that says nothing of memory has of a node's, on so many of its cores: 1/share (`Gang.memory_share`) of their part.

    So jobs that say nothing have memory wherever they have cores.
    """
    return memory_bytes * used // (cores * share)


class _Pool(Protocol):
    def take(self, job: Job, placement: Placement, /) -> None: ...

    def give(self, job: Job, placement: Placement, /) -> None: ...


class GangBook:
    """`job_id in book`: it stands in a gang."""

    __slots__ = ("_carousels", "_given", "_owned", "by_name", "of")

    def __init__(self) -> None:
        self.by_name: dict[str, Gang] = {}
        self.of: dict[int, str] = {}  #: job that runs, or is about to -> gang
        self._carousels: list[tuple[Gang, frozenset[int], Carousel]] = []  # derived, of the last records
        self._given: tuple[Gang, int, dict[int, int]] | None = None  # derived, of the last question
        self._owned: dict[int, int] = {}  # node -> jobs of gangs that run there

    def __contains__(self, job_id: int) -> bool:
        return job_id in self.of

    def __iter__(self) -> Iterator[Gang]:
        return iter(sorted(self.by_name.values()))

    def put(self, gang: Gang) -> None:
        """In place of the one of that name. Without jobs: it goes."""
        old = self.by_name.pop(gang.name, None)
        for job_id in old.homes if old is not None else ():
            self.of.pop(job_id, None)
        homes = gang.homes
        if homes:
            self.by_name[gang.name] = gang
            self.of.update(dict.fromkeys(homes, gang.name))

    def keep(self, running: Container[int]) -> None:
        """Only jobs that run are members; gangs without any go. After records were read."""
        for job_id in [job_id for job_id in self.of if job_id not in running]:
            self.strike(job_id)

    def carousel(self, gang: Gang, closed: frozenset[int]) -> Carousel:
        """The record as live objects: read it, or change a copy. Derived; those of the last two records are kept."""
        for known, shut, carousel in self._carousels:
            if known is gang and shut == closed:
                return carousel
        carousel = Carousel(gang, closed)
        self.remember(gang, closed, carousel)
        return carousel

    def remember(self, gang: Gang, closed: frozenset[int], carousel: Carousel) -> None:
        """This is what the record makes; nobody changes it from now on."""
        self._carousels = [*self._carousels[-1:], (gang, closed, carousel)]

    def given(self, gang: Gang, slot: int) -> Mapping[int, int]:
        """Job -> slots that the record gives it from its first one up to this. Cost: O(nodes of the tree), once a record and slot."""
        if self._given is None or self._given[0] is not gang or self._given[1] != slot:
            carousel = Carousel(gang)  # a remembered one may count from an earlier record
            carousel.advance_to(slot)
            self._given = gang, slot, carousel.given()
        return self._given[2]

    def enter(self, pool: _Pool, run: Running) -> None:
        """One of its jobs runs: nodes that no gang had are taken."""
        for node in nodes_of(run.placement):
            count = self._owned.get(node, 0)
            if not count:
                pool.take(OWNER, ((node, node, 1),))
            self._owned[node] = count + 1

    def leave(self, pool: _Pool, run: Running) -> None:
        """It does not any more, and is no member."""
        self.step_out(pool, run)
        self.strike(run.job.id)

    def step_out(self, pool: _Pool, run: Running) -> None:
        """Nodes on which it was the last are given back."""
        for node in nodes_of(run.placement):
            self._owned[node] -= 1
            if not self._owned[node]:
                del self._owned[node]
                pool.give(OWNER, ((node, node, 1),))

    def strike(self, job_id: int) -> None:
        """The job is no member any more; the record keeps it until it is set again, or goes with the last one."""
        name = self.of.pop(job_id, None)
        if name is not None and name not in self.of.values():
            del self.by_name[name]

    def owns(self, node: int) -> bool:
        """A job of a gang runs there."""
        return node in self._owned

    def vacate(self) -> None:
        """The pool is a new one: nothing of it is taken yet."""
        self._owned.clear()
