"""Keys in order out of an index that lies in many partitions: scopes one after the other, their buckets merged.

Cost of a page: one request for each of the 16 buckets of every scope that it touches; a prefix with its family (and, for
divided families, the submission) touches one scope. For people, tools and collection, never to find work.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import chain
from typing import Any

from rmgr.adapters.cassandra import layout
from rmgr.adapters.cassandra.calls import Calls
from rmgr.adapters.cassandra.statements import ask
from rmgr.adapters.store_rules import CallDeadline, now_ms

#: (key, size in bytes)
Entry = tuple[str, int]

_SCOPES_A_PAGE = 500
_LEAST_PAGE, _LARGEST_PAGE = 8, 1000


class Listing:
    """Reads the index of keys."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def entries(self, prefix: str, after: str, limit: int, deadline: CallDeadline, doing: str) -> Iterator[Entry]:
        """Live entries with `prefix` behind `after`, sorted by key. `limit` is how many the caller wants, about."""
        page = min(_LARGEST_PAGE, max(_LEAST_PAGE, 2 * limit // layout.INDEX_BUCKETS))
        walk = _Walk(self._calls, *layout.span(prefix, after), page, deadline, doing)
        streams = [walk.scope(scope) for scope in self._undivided(prefix, deadline, doing)]
        streams += [walk.family(self._divided(family, prefix, after, deadline, doing)) for family in _divided_families(prefix)]
        return heapq.merge(*streams)

    def scopes(self, register: str, start: str, deadline: CallDeadline, doing: str) -> Iterator[tuple[str, int]]:
        """(scope, since_ms) of one partition of the register from `start` on, in order."""
        while True:
            rows = self._calls.one(ask("scopes", register, start, _SCOPES_A_PAGE), deadline, doing)
            yield from rows
            if len(rows) < _SCOPES_A_PAGE:
                return
            start = rows[-1][0] + "\x01"

    def _undivided(self, prefix: str, deadline: CallDeadline, doing: str) -> list[str]:
        """Scopes that are a whole family, or the keys without one."""
        family, slash, rest = prefix.partition("/")
        if slash:
            return [] if family in layout.DIVIDED and "/" in rest else [f"{family}/"]
        known = [scope for scope, _ in self.scopes(layout.FAMILIES, prefix, deadline, doing) if layout.may_hold(scope, prefix)]
        return [layout.NO_FAMILY, *(scope for scope in known if scope != layout.NO_FAMILY)]

    def _divided(self, family: str, prefix: str, after: str, deadline: CallDeadline, doing: str) -> Iterator[str]:
        """Scopes of a divided family in order, from the one that holds the first key."""
        if prefix.count("/") > 1:  # it names the scope
            yield layout.scope_of(prefix)
            return
        start = prefix
        if after.startswith(family):
            start = max(start, layout.scope_of(after))
        elif after > family:
            return
        for scope, _ in self.scopes(family, start, deadline, doing):
            if not layout.may_hold(scope, prefix):
                if scope > prefix:
                    return
                continue
            yield scope


def _divided_families(prefix: str) -> list[str]:
    return [f"{name}/" for name in sorted(layout.DIVIDED) if f"{name}/".startswith(prefix) or prefix.startswith(f"{name}/")]


class _Walk:
    """One listing on its way."""

    def __init__(self, calls: Calls, low: str, high: str, page: int, deadline: CallDeadline, doing: str) -> None:
        self._calls = calls
        self._low, self._high, self._page = low, high, page
        self._deadline, self._doing = deadline, doing

    def family(self, scopes: Iterator[str]) -> Iterator[Entry]:
        """Entries of scopes that do not overlap and come in order; each is opened when the one before has ended."""
        return chain.from_iterable(map(self.scope, scopes))

    def scope(self, scope: str) -> Iterator[Entry]:
        """Entries of one scope: the first pages of all buckets at once, the others as they are needed."""
        first = [ask("index", scope, bucket, self._low, self._high, self._page) for bucket in range(layout.INDEX_BUCKETS)]
        pages = self._calls.all(first, self._deadline, self._doing)
        yield from heapq.merge(*(self._bucket(scope, bucket, rows) for bucket, rows in enumerate(pages)))

    def _bucket(self, scope: str, bucket: int, rows: list[Any]) -> Iterator[Entry]:
        while True:
            now = now_ms()
            for key, (size, expires_ms) in rows:
                if size >= 0 and (expires_ms is None or expires_ms > now):
                    yield key, size
            if len(rows) < self._page:
                return
            request = ask("index", scope, bucket, rows[-1][0] + "\x01", self._high, self._page)
            rows = self._calls.one(request, self._deadline, self._doing)
