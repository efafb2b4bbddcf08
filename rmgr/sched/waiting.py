"""Waiting jobs kept sorted by a key: insertion and removal in about the square root of their number, in order without sorting."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

from rmgr.sched.job import Job

Key: TypeAlias = tuple[int, ...]
Entry: TypeAlias = tuple[Key, Job]

#: Entries of a chunk: above twice this it is split. Moving 1,000 pointers costs less than finding the chunk.
CHUNK = 1000


class SortedJobs:
    """Jobs in ascending order of `key`, which must end with the job's id and not change while the job is in here."""

    __slots__ = ("_chunks", "_key", "_lasts", "_size")

    def __init__(self, key: Callable[[Job], Key], jobs: Iterable[Job] = ()) -> None:
        self._key = key
        entries = sorted((key(job), job) for job in jobs)
        self._chunks = [entries[i : i + CHUNK] for i in range(0, len(entries), CHUNK)]
        self._lasts = [chunk[-1][0] for chunk in self._chunks]
        self._size = len(entries)

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Job]:
        for chunk in self._chunks:
            for _, job in chunk:
                yield job

    def first(self) -> Job | None:
        return self._chunks[0][0][1] if self._chunks else None

    def add(self, job: Job) -> None:
        entry = (self._key(job), job)
        chunks = self._chunks
        self._size += 1
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
        key = self._key(job)
        at = bisect_left(self._lasts, key)
        if at == len(self._chunks):
            raise KeyError(job.id)
        chunk = self._chunks[at]
        i = bisect_left(chunk, (key,))  # a shorter tuple sorts before the entry of the same key
        if i == len(chunk) or chunk[i][0] != key:
            raise KeyError(job.id)
        del chunk[i]
        self._size -= 1
        if not chunk:
            del self._chunks[at], self._lasts[at]
        elif i == len(chunk):
            self._lasts[at] = chunk[-1][0]
