"""Taking a submission over from an owner that died: its record and tail change in one multi, so the old one is fenced.

An owner lives as long as its entry in /submitters exists; a follower that wants the submission waits for that to go.
Lives on the Submitter's thread.
"""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rmgr.coord import paths, validity
from rmgr.coord.multi import Committed, Stamped
from rmgr.coord.owner_ops import take_ownership, taken_over
from rmgr.errors import NotFound, RmgrError
from rmgr.model.submission import Phase, Submission, Tail
from rmgr.runtime.failpoint import failpoint

if TYPE_CHECKING:
    from rmgr.client.lane import SubmissionHandle


class Takeover:
    """How a lane that follows becomes one that owns."""

    def __init__(self, lane: SubmissionHandle) -> None:
        self._lane = lane
        self._busy = False

    def look(self, alive: frozenset[str]) -> None:
        """Acts if the owner is not among the living. A complete submission is left to the leader."""
        lane = self._lane
        if lane.owned or self._busy or lane.submission.owner in alive:
            return
        if lane.progress.tail.complete or lane.submission.phase in {Phase.CANCELLED, Phase.CLOSED}:
            return
        self._busy = True
        coordinator = lane.engine.coordinator
        record_read = coordinator.get(paths.sub(lane.number))
        tail_read = coordinator.get(paths.tail(lane.number))
        tail_read.add_done_callback(lambda _: lane.engine.post(lambda: self._read(record_read, tail_read)))

    def _read(self, record_read: Future[Stamped | None], tail_read: Future[Stamped | None]) -> None:
        self._busy = False
        lane, engine = self._lane, self._lane.engine
        try:
            record, tail = record_read.result(0), tail_read.result(0)
        except (RmgrError, TimeoutError):
            engine.after(1.0, engine.look_at_owners)
            return
        if record is None or tail is None:
            lane.die(NotFound(f"submission {lane.number} is gone", hint=f"rmgr history {lane.number}"))
            return
        try:
            mine = replace(validity.submission(record.data, lane.number), owner=engine.guid)
            grown = taken_over(validity.tail(tail, lane.number), engine.guid, f"{engine.guid[:12]}-over")
        except RmgrError as error:
            lane.die(error)
            return
        if grown.complete:
            return
        self._busy = True
        failpoint("submitter.before_take_over")
        asked = engine.coordinator.commit(take_ownership(mine, record.version, grown, tail.version))
        asked.add_done_callback(
            lambda answer: engine.post(lambda: self._committed(answer, mine, record.version + 1, grown, tail.version + 1))
        )

    def _committed(self, answer: Future[Any], record: Submission, version: int, tail: Tail, tail_version: int) -> None:
        self._busy = False
        engine = self._lane.engine
        if answer.exception(0) is None and isinstance(answer.result(0), Committed):
            failpoint("submitter.after_take_over")
            self._lane.taken_over(record, version, tail, tail_version)
        else:
            engine.after(engine.jitter(0.2), engine.look_at_owners)
