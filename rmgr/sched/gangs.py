"""Gangs of a partition: whose jobs share nodes in time, and which nodes belong to one as a whole while one of its jobs stands there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from rmgr.sched.job import Job, Placement, Running, nodes_of
from rmgr.sched.records import Gang

#: Stands for a gang in a pool: a node that it has is nobody else's.
OWNER = Job(id=0, submit_us=0, exclusive=True)


class _Pool(Protocol):
    def take(self, job: Job, placement: Placement, /) -> None: ...

    def give(self, job: Job, placement: Placement, /) -> None: ...


class GangBook:
    """`job_id in book`: it stands in a gang."""

    __slots__ = ("_owned", "by_name", "of")

    def __init__(self) -> None:
        self.by_name: dict[str, Gang] = {}
        self.of: dict[int, str] = {}  #: job -> gang
        self._owned: dict[int, int] = {}  # node -> jobs of gangs that run there

    def __contains__(self, job_id: int) -> bool:
        return job_id in self.of

    def __iter__(self) -> Iterator[Gang]:
        return iter(sorted(self.by_name.values()))

    def put(self, gang: Gang) -> None:
        """In place of the one of that name. Without rows: it goes."""
        old = self.by_name.pop(gang.name, None)
        for job_id in old.jobs if old is not None else ():
            del self.of[job_id]
        if gang.rows:
            self.by_name[gang.name] = gang
            self.of.update(dict.fromkeys(gang.jobs, gang.name))

    def enter(self, pool: _Pool, run: Running) -> None:
        """One of its jobs runs: nodes that no gang had are taken."""
        for node in nodes_of(run.placement):
            count = self._owned.get(node, 0)
            if not count:
                pool.take(OWNER, ((node, node, 1),))
            self._owned[node] = count + 1

    def leave(self, pool: _Pool, run: Running) -> None:
        """It does not any more, and vanishes from the rows."""
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
        """The job vanishes from the rows."""
        name = self.of.get(job_id)
        if name is not None:
            self.put(self.by_name[name].without(job_id))

    def owns(self, node: int) -> bool:
        """A job of a gang runs there."""
        return node in self._owned

    def vacate(self) -> None:
        """The pool is a new one: nothing of it is taken yet."""
        self._owned.clear()
