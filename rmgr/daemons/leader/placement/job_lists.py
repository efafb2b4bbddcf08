"""Keeps the lists of names that wait in place queues and stand on nodes. Says which of them may have changed since the last turn."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import Protocol

from rmgr.coord.protocol import paths
from rmgr.daemons.leader.core.doors import LeaderReads
from rmgr.daemons.leader.core.watched_cache import WatchedCache, names_below
from rmgr.daemons.leader.placement.lists import LongList
from rmgr.daemons.leader.records.job_table import JobTable

#: Least time between two readings of one list, and what each of its names adds: where thousands wait, a new one waits for more than that.
PACE_S, PACE_A_NAME_S = 0.005, 50e-6
#: Lists that are read again at a resync: so many at once, so far apart.
_AT_ONCE, _APART_S = 50, 0.02


class PendingLists(Protocol):
    """Says what waits in place queues, and has lists compared again."""

    @property
    def pending(self) -> dict[str, WatchedCache[list[str]]]:
        """Queue -> names that wait there."""
        ...

    def look_at(self, path: str) -> None:
        """The list is read, and compared in the next turn."""
        ...


class JobLists:
    """All lists of one leadership. In its loop.

    Args: wake: asks for a turn.
    Attributes: pending: queue -> its list. running: node -> its list. news: paths of lists that are to be compared in the next turn.
    """

    def __init__(self, tree: LeaderReads, job_table: JobTable, wake: Callable[[], None]) -> None:
        self.pending: dict[str, WatchedCache[list[str]]] = {}
        self.running: dict[str, WatchedCache[list[str]]] = {}
        self.news: set[str] = set()
        self._tree = tree
        self._job_table = job_table
        self._wake = wake

    def serve(self, queues: Collection[str]) -> None:
        """These place queues from now on."""
        for name in self.pending.keys() - set(queues):
            self.pending.pop(name).stop()
        for name in set(queues) - self.pending.keys():
            self.pending[name] = self._waiting_in(name)

    def look_on(self, nodes: Iterable[str]) -> list[str]:
        """Begins to read what runs on those of the nodes that are new. Returns: them, by name."""
        fresh = sorted(set(nodes) - self.running.keys())
        for name in fresh:
            # Pulled blocks come and go there all the time: it is watched while jobs run on the node, and read once to find them.
            self.running[name] = self._list(paths.running_node(name), watched=False)
        return fresh

    def watch_head(self, node: str) -> None:
        """A job runs there, or the last one has gone."""
        cache = self.running.get(node)
        if cache is None:
            cache = self.running[node] = self._list(paths.running_node(node))
        wanted = self._job_table.has_jobs(node)
        if wanted and not cache.is_watched:
            cache.is_watched = True
            cache.refresh()
        cache.is_watched = wanted

    def look_at(self, path: str) -> None:
        """A list is to be compared again, as it is now."""
        self.news.add(path)
        for cache in self._all():
            if cache.path == path:
                cache.refresh()
        self._wake()

    def again(self, path: str) -> None:
        """The list is compared once more in the next turn."""
        self.news.add(path)

    def take_news(self) -> set[str]:
        """Paths of lists that are to be compared now."""
        news, self.news = self.news, set()
        return news

    def all_are_news(self) -> None:
        """The state was made anew: whatever has come since is told it."""
        self.news = {cache.path for cache in self._all()}

    def resync(self) -> None:
        """Reads again what is watched."""
        self._read_again([cache for cache in self._all() if cache.is_watched])

    def _all(self) -> tuple[WatchedCache[list[str]], ...]:
        return (*self.pending.values(), *self.running.values())

    def _read_again(self, lists: list[WatchedCache[list[str]]]) -> None:
        """Some of them at a time: the loop has other things to do."""
        for cache in lists[:_AT_ONCE]:
            cache.refresh()
        if len(lists) > _AT_ONCE:
            self._tree.after(_APART_S, partial(self._read_again, lists[_AT_ONCE:]))

    def _waiting_in(self, queue: str) -> WatchedCache[list[str]]:
        path = paths.pending(queue)
        cache = LongList(self._tree, path, lambda: self._listed(path, cache), lambda: self._job_table.took[queue])
        cache.is_chatty, cache.pace_s = True, PACE_S
        cache.refresh()
        return cache

    def _list(self, path: str, *, watched: bool = True) -> WatchedCache[list[str]]:
        cache = names_below(self._tree, path, lambda: self._listed(path, cache))
        cache.is_chatty, cache.is_watched = True, watched
        cache.pace_s = PACE_S
        cache.refresh()
        return cache

    def _listed(self, path: str, cache: WatchedCache[list[str]]) -> None:
        cache.pace_s = PACE_S + PACE_A_NAME_S * len(cache.value or ())
        self.news.add(path)
        self._wake()
