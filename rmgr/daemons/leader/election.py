"""The election of one WatchDog: stand in each session, wait behind the predecessor, take over, step down.

    session -> entry -> first? -> TAKE-OVER committed -> `leads(record, E)`
                    -> behind: watch the predecessor only, look again when it goes
Lives in the WatchDog's loop. What an entry or a watch says is a hint; only the version that TAKE-OVER gave to /epoch
makes a leader, and every write of it checks that version.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any

from rmgr.coord.decisions import liveness
from rmgr.coord.decisions.liveness import Absent, Behind, First
from rmgr.coord.ops.leader import take_over
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Committed, Multi, Outcome, Stamped
from rmgr.coord.protocol.ports import Coordinator
from rmgr.coord.protocol.records import decode_record
from rmgr.errors import RmgrError
from rmgr.model.cluster.node import EpochRecord
from rmgr.runtime import machine
from rmgr.runtime.failpoint import failpoint
from rmgr.runtime.logger import Log

Thunk = Callable[[], None]

_AGAIN_S = 0.2


class Candidacy:
    """This WatchDog in the line of candidates.

    Args:
        record: who it is (endpoint, host, pid); epoch, candidate and time are filled in at each take-over.
        post: runs a thunk in the loop. after: the same later.
        leads: called with the record and the version E of /epoch when a take-over was committed.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        record: EpochRecord,
        *,
        post: Callable[[Thunk], None],
        after: Callable[[float, Thunk], Any],
        leads: Callable[[EpochRecord, int], None],
        log: Log,
        wall_us: Callable[[], int],
    ) -> None:
        self._coordinator = coordinator
        self._record = record
        self._post = post
        self._after = after
        self._leads = leads
        self._log = log
        self._wall_us = wall_us
        self._guid = ""  # of the entry: one a session, so that an old session's entry is never taken for ours
        self._turn = 0  # answers to questions of an earlier turn are not heard any more
        self._is_leading = False
        self.is_standing = False  #: seen in the line, or leading

    def enter(self) -> None:
        """A new session: a new entry."""
        self._guid = machine.guid()
        self._is_leading = False
        self._stand()

    def leave(self) -> None:
        """The session is gone, and the entry with it."""
        self._turn += 1
        self._guid = ""
        self._is_leading = False
        self.is_standing = False

    def look(self) -> None:
        """Where do we stand? After a reconnection, a hint, or the end of a leadership."""
        if self._guid and not self._is_leading:
            self._turn += 1
            self._ask(self._coordinator.children(paths.WATCHDOGS), self._on_line)

    def stepped_down(self) -> None:
        """The leadership has ended, the session perhaps not: back into the line after a moment."""
        self._is_leading = False
        self._later(self.look)

    # -- the line

    def _stand(self) -> None:
        self._turn += 1
        multi = liveness.stand(self._guid, replace(self._record, since_us=self._wall_us()))
        self._commit(multi, lambda _outcome: self.look())  # whatever came of it: the line tells

    def _on_line(self, names: list[str] | None) -> None:
        children = names or []
        for double in liveness.doubles(children, self._guid):
            self._commit(liveness.withdraw(double), lambda _outcome: None)
        match liveness.standing(children, self._guid):
            case Absent():
                self._later(self._stand)
            case First(name):
                self._ask(self._coordinator.get(paths.EPOCH), partial(self._on_epoch, name))
            case Behind(name, predecessor):
                self.is_standing = True
                self._log.info("candidate_waits", candidate=name, leader=predecessor)
                path = f"{paths.WATCHDOGS}/{predecessor}"
                hint = partial(self._post, partial(self._hinted, self._turn))
                self._ask(self._coordinator.stat(path, watch=hint), lambda found: self.look() if found is None else None)

    def _hinted(self, turn: int) -> None:
        if turn == self._turn:
            self.look()

    # -- taking over

    def _on_epoch(self, name: str, found: Stamped | None) -> None:
        old = EpochRecord() if found is None else decode_record(found.data, EpochRecord, paths.EPOCH)
        record = replace(self._record, epoch=old.epoch + 1, candidate=name, since_us=self._wall_us())
        failpoint("leader.before_take_over")
        multi = take_over(name, record, None if found is None else found.version)
        self._commit(multi, partial(self._on_taken_over, multi, record))

    def _on_taken_over(self, multi: Multi, record: EpochRecord, outcome: Outcome) -> None:
        if not isinstance(outcome, Committed):
            self._log.info("take_over_not_committed", epoch=record.epoch, outcome=type(outcome).__name__)
            self._later(self.look)
            return
        self._is_leading = self.is_standing = True
        failpoint("leader.after_take_over")
        self._leads(record, liveness.epoch_version(multi, outcome))

    # -- answers into the loop

    def _commit(self, multi: Multi, then: Callable[[Outcome], None]) -> None:
        self._ask(self._coordinator.commit(multi), then)

    def _ask(self, future: Future[Any], then: Callable[[Any], None]) -> None:
        turn = self._turn
        future.add_done_callback(lambda done: self._post(partial(self._answered, turn, done, then)))

    def _answered(self, turn: int, future: Future[Any], then: Callable[[Any], None]) -> None:
        if turn != self._turn:
            return
        try:
            value = future.result()
        except RmgrError as error:
            self._log.debug("election_read_failed", error=error.message)
            self._later(self.look)
            return
        then(value)

    def _later(self, what: Thunk) -> None:
        turn = self._turn
        self._after(_AGAIN_S * machine.uniform(0.5, 1.5), lambda: what() if turn == self._turn else None)
