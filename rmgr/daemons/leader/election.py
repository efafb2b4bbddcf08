"""The election of one WatchDog: enter the line in each session, wait behind the predecessor, take over, step down.

    session -> entry -> first? -> TAKE-OVER committed -> `leads(record, E)`
                    -> behind: watch the predecessor only, look again when it goes
Lives in the WatchDog's loop. Entries and watches are only hints. A WatchDog leads only by the version that its TAKE-OVER gave to /epoch,
and each of its writes checks that version.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from rmgr.coord.decisions import liveness
from rmgr.coord.decisions.liveness import Absent, Behind, First
from rmgr.coord.ops import leader as ops
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Committed
from rmgr.coord.protocol.ports import Coordinator
from rmgr.coord.protocol.records import decode_record
from rmgr.errors import RmgrError, WrongCluster
from rmgr.model.cluster.node import EpochRecord
from rmgr.runtime import machine
from rmgr.runtime.failpoint import failpoint
from rmgr.runtime.machine import Log
from rmgr.runtime.story import Bell, Pause, Stories, Story, StoryLoop

_AGAIN_S = 0.2


class Candidacy:
    """This WatchDog's place in the line of candidates.

    Args:
        record: endpoint, host and pid of this WatchDog; epoch, candidate and time are filled in at each take-over.
        loop: the loop that it lives in.
        leads: called with the record and the version E of /epoch after a committed take-over.
    """

    def __init__(
        self, coordinator: Coordinator, record: EpochRecord, loop: StoryLoop, *, leads: Callable[[EpochRecord, int], None], log: Log
    ) -> None:
        self._coordinator = coordinator
        self._record = record
        self._loop = loop
        self._leads = leads
        self._log = log
        self._stories = Stories(loop)
        self._guid = ""  # of the entry; each session has its own, so an entry of an old session is never taken for the current one
        self._is_leading = False
        self._unreadable = ""  # why `/epoch` could not be read
        self.is_standing = False  #: in the line, or leading

    def enter(self) -> None:
        """Makes a new entry for a new session."""
        self._guid = machine.guid()
        self._is_leading = False
        self._begin(self._stand(enters=True))

    def leave(self) -> None:
        """Forgets the entry, which went with its session."""
        self._stories.stop()
        self._guid = ""
        self._is_leading = False
        self.is_standing = False

    def look(self) -> None:
        """Looks again at the place in the line, after a reconnection or a hint."""
        if self._guid and not self._is_leading:
            self._begin(self._stand())

    def stepped_down(self) -> None:
        """Returns to the line after a pause: the leadership ended, but the session may still be there."""
        self._is_leading = False
        if self._guid:
            self._begin(self._stand(pauses=True))

    def _begin(self, story: Story[None]) -> None:
        """Replaces the current story; its answers are ignored from now on."""
        self._stories.stop()
        self._stories.begin(story)

    def _stand(self, *, enters: bool = False, pauses: bool = False) -> Story[None]:
        """Stays in the line until this WatchDog leads."""
        while True:
            if pauses:
                yield Pause(_AGAIN_S * machine.uniform(0.5, 1.5))
            pauses = True
            try:
                if enters:
                    enters = False
                    yield self._coordinator.commit(ops.stand(self._guid, replace(self._record, since_us=machine.wall_us())))
                # Whatever the outcome, the list of candidates shows it.
                children = (yield self._coordinator.children(paths.WATCHDOGS)) or []
                for double in liveness.doubles(children, self._guid):
                    self._coordinator.commit(ops.leave_line(double))
                match liveness.standing(children, self._guid):
                    case Absent():
                        enters = True
                    case First(name):
                        if (yield from self._take_over(name)):
                            return
                    case Behind(name, predecessor):
                        self.is_standing, pauses = True, False
                        self._log.info("candidate_waits", candidate=name, leader=predecessor)
                        gone = Bell(self._loop)
                        if (yield self._coordinator.stat(f"{paths.WATCHDOGS}/{predecessor}", watch=gone.ring)) is not None:
                            yield gone.heard()
            except RmgrError as error:
                pauses = True
                self._log.debug("election_read_failed", error=error.message)

    def _take_over(self, name: str) -> Story[bool]:
        """Tries to take over. Returns whether this WatchDog leads."""
        found = yield self._coordinator.get(paths.EPOCH)
        try:
            old = EpochRecord() if found is None else decode_record(found.data, EpochRecord, paths.EPOCH)
        except WrongCluster as error:  # nobody leads until an operator mends `/epoch`, or this installation
            if self._unreadable != error.message:  # reported once
                self._unreadable = error.message
                self._log.warning("epoch_unreadable", path=paths.EPOCH, error=error.message, hint=error.hint)
            return False
        self._unreadable = ""
        record = replace(self._record, epoch=old.epoch + 1, candidate=name, since_us=machine.wall_us())
        failpoint("leader.before_take_over")
        multi = ops.take_over(name, record, None if found is None else found.version)
        outcome = yield self._coordinator.commit(multi)
        if not isinstance(outcome, Committed):
            self._log.info("take_over_not_committed", epoch=record.epoch, outcome=type(outcome).__name__)
            return False
        self._is_leading = self.is_standing = True
        failpoint("leader.after_take_over")
        self._leads(record, ops.epoch_version(multi, outcome))
        return True
