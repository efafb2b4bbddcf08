"""Carries out requests (`/requests`), writes the answer, and clears it away later.

Placed jobs that run are moved by the leader alone, whoever wants it. Doing a request twice does no harm: a successor does
what has no answer.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial

from rmgr.coord import validity
from rmgr.coord.ops import leader as leader_ops
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Outcome, Stamped
from rmgr.coord.protocol.records import decode_record
from rmgr.daemons.leader.core.doors import LeaderCommits
from rmgr.daemons.leader.core.term import Term
from rmgr.daemons.leader.core.watched_cache import names_below
from rmgr.errors import RmgrError
from rmgr.model.tasks.request import StopRequest

#: How long an answer stays for who has asked.
_KEEP_S = 60.0


class RequestKeeper:
    """Answers one request after the other as they are seen.

    Args: stop: takes a request (guid, request) about jobs that run; its answer comes by callback.
    """

    def __init__(
        self,
        tree: LeaderCommits,
        term: Term,
        stop: Callable[[str, StopRequest, Callable[[StopRequest], None]], None],
    ) -> None:
        self._tree = tree
        self._term = term
        self._stop = stop
        self._known: set[str] = set()  # under way, or answered and waiting to be cleared
        self._names = names_below(tree, paths.REQUESTS, self._on_names)

    def start(self) -> None:
        """Begins to look."""
        self._names.refresh()

    resync = start

    def _on_names(self) -> None:
        names = set(self._names.value or ())
        self._known &= names
        for guid in sorted(names - self._known):
            self._known.add(guid)
            self._tree.get(paths.request(guid), partial(self._on_request, guid), failed=partial(self._known.discard, guid))

    def _on_request(self, guid: str, found: Stamped | None) -> None:
        if found is None:
            self._known.discard(guid)
            return
        path = paths.request(guid)
        try:
            request = validity.decode(found.data, StopRequest, path)
        except RmgrError as error:
            self._term.log.warning("request_unreadable", path=paths.request(guid), error=error.message)
            self._refuse(guid, found, error)
            return
        if request.answered:
            self._clear_later(guid)
            return
        try:
            self._stop(guid, request, lambda answer: self._answer(guid, answer, found.version))
        except Exception as error:  # noqa: BLE001 - the boundary of one request: whoever has asked is told
            self._term.aside.add(path, found.version, error)
            self._answer(guid, replace(request, answered=True, error=f"the leader cannot handle it: {error}"), found.version)

    def _refuse(self, guid: str, found: Stamped, error: RmgrError) -> None:
        """Who asks is told, if it is a request at all."""
        with suppress(RmgrError):
            request = decode_record(found.data, StopRequest, paths.request(guid))  # what is wrong in it is only told back
            if not request.answered:
                self._answer(guid, replace(request, answered=True, error=error.message), found.version)
                return
        self._clear_later(guid)

    def _answer(self, guid: str, request: StopRequest, version: int) -> None:
        self._term.log.info("request_answered", submission=request.submission, count=len(request.done), error=request.error)
        self._tree.commit(leader_ops.answer_request(guid, request, version), partial(self._answered, guid))

    def _answered(self, guid: str, _outcome: Outcome) -> None:
        self._clear_later(guid)  # without an answer, too: who has asked has long given up by then

    def _clear_later(self, guid: str) -> None:
        self._tree.after(_KEEP_S, lambda: self._tree.commit(leader_ops.clear_request(guid)))
