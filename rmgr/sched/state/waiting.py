"""Waiting jobs kept sorted by a key: insertion and removal in about the square root of their number, in order without sorting."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from operator import itemgetter
from typing import TypeAlias

from rmgr.sched.job import Job

Key: TypeAlias = tuple[int, ...]
Entry: TypeAlias = tuple[Key, Job]

_JOB: Callable[[Entry], Job] = itemgetter(1)
#: Entries of a chunk: above twice this it is split. Moving 1,000 pointers costs less than finding the chunk.
CHUNK = 1000


class SortedJobs:
    """Jobs in ascending order of `key`, which must end with the job's id. It is asked once for each job.

    A user's key may raise. So jobs can be postponed: they are in here, but out of order until `settle`, the only one to ask the key then.
    """

    __slots__ = ("_chunks", "_key", "_keys", "_lasts", "postponed")

    def __init__(self, key: Callable[[Job], Key], jobs: Iterable[Job] = ()) -> None:
        self._key = key
        self.postponed: dict[int, Job] = {}
        entries = sorted((key(job), job) for job in jobs)
        self._keys = {job.id: its for its, job in entries}
        self._chunks = [entries[i : i + CHUNK] for i in range(0, len(entries), CHUNK)]
        self._lasts = [chunk[-1][0] for chunk in self._chunks]

    def __len__(self) -> int:
        return len(self._keys) + len(self.postponed)

    def __iter__(self) -> Iterator[Job]:
        # not a generator: most passes leave one at its first job, and to close it there costs more than all they do with it
        return map(_JOB, chain.from_iterable(self._chunks))

    def postpone(self, job: Job) -> None:
        """In here from now on, to be sorted in by `settle`."""
        self.postponed[job.id] = job

    def settle(self) -> None:
        """Sorts in what was postponed. After an exception of the key this object is of no use."""
        for job in self.postponed.values():
            self.add(job)
        self.postponed.clear()

    def add(self, job: Job) -> None:
        key = self._keys[job.id] = self._key(job)
        entry = (key, job)
        chunks = self._chunks
        if not chunks:
            chunks.append([entry])
            self._lasts.append(entry[0])
            return
        at = bisect_left(self._lasts, entry[0])
        if at == len(chunks):
            at -= 1
            chunk = chunks[at]
            chunk.append(entry)
            self._lasts[at] = entry[0]
        else:
            chunk = chunks[at]
            insort(chunk, entry)
        if len(chunk) > 2 * CHUNK:
            chunks[at : at + 1] = [chunk[:CHUNK], chunk[CHUNK:]]
            self._lasts[at : at + 1] = [chunk[CHUNK - 1][0], chunk[-1][0]]

    def remove(self, job: Job) -> None:
        """Raises: KeyError when the job is not in here."""
        if self.postponed.pop(job.id, None) is not None:
            return
        key = self._keys.pop(job.id)
        at = bisect_left(self._lasts, key) if len(self._lasts) > 1 else 0
        chunk = self._chunks[at]
        # most jobs start from the head; else: a shorter tuple sorts before the entry of the same key
        i = 0 if chunk[0][1] is job else bisect_left(chunk, (key,))
        del chunk[i]
        if not chunk:
            del self._chunks[at], self._lasts[at]
        elif i == len(chunk):
            self._lasts[at] = chunk[-1][0]
