"""The resubmit rule, carried out by the owner: FAILED attempts wait again, or end, as `coord/ops/leader.py` decides.

Watches `failed/` of one submission. Names are deterministic, so the leader may act on the same record: whichever comes second
finds it gone. Back-off counts from when this owner saw the record; a successor starts it again.
Lives on the Submitter's thread.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import msgspec

from rmgr.coord.ops.leader import Again, resubmit, rule
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Committed
from rmgr.coord.protocol.records import decode_block, decode_failed
from rmgr.errors import RequestTooLarge, RmgrError, Unavailable
from rmgr.model.base.states import LOSSES
from rmgr.model.tasks.block import FailedRange
from rmgr.model.tasks.submission import Phase
from rmgr.procedures.output_keys import delete_outputs
from rmgr.runtime.failpoint import failpoint
from rmgr.runtime.story import Bell, Pause, Story

if TYPE_CHECKING:
    from rmgr.submitter.upkeep import Upkeep

_LOG = logging.getLogger("rmgr.submitter")
_RESYNC_S = 20.0
_FRESH_S = 0.25
#: Pause before the list is read again after an error, and after another process was faster (s).
_AGAIN_S, _BEHIND_S = 1.0, 0.2


class Repair:
    """Repairs failed attempts of one submission for its owner."""

    def __init__(self, upkeep: Upkeep) -> None:
        self._upkeep = upkeep
        self._submitter = upkeep.submitter
        self._bell = Bell(self._submitter.loop)

    def start(self, *, is_fresh: bool = False) -> None:
        """Begins; slightly later for a new submission, which is often over by then."""
        self._upkeep.stories.begin(self._watch(is_fresh), key="repair")

    def look(self) -> None:
        """Reads the names of the failed ranges again."""
        self._bell.ring()

    def _watch(self, is_fresh: bool) -> Story[None]:
        submitter, number = self._submitter, self._upkeep.number
        if is_fresh:
            yield Pause(submitter.jitter(_FRESH_S))
        while True:
            try:
                names = yield submitter.coordinator.children(paths.failed(number), watch=self._bell.ring)
            except RmgrError:
                names = None  # read again later
            for name in names or ():
                self._upkeep.stories.begin(self._settle(name), key=("failed", name))
            yield self._bell.heard(submitter.jitter(_RESYNC_S))

    def _settle(self, name: str) -> Story[None]:
        """Handles one failed range until it is gone."""
        try:
            is_mine = yield from self._try_commit(name)
        except RmgrError as error:
            if not isinstance(error, Unavailable):
                _LOG.warning("resubmit_failed", extra={"path": name, "error": str(error)})
            self._submitter.loop.after(self._submitter.jitter(_AGAIN_S), self.look)
        else:
            if not is_mine:  # another process was faster, or the answer is unknown: the list shows which
                self._submitter.loop.after(self._submitter.jitter(_BEHIND_S), self.look)

    def _try_commit(self, name: str) -> Story[bool]:
        """Tries to commit what the rule says. Returns False if another look is due."""
        submitter, upkeep = self._submitter, self._upkeep
        path = f"{paths.failed(upkeep.number)}/{name}"
        found = yield submitter.coordinator.get(path)
        if found is not None and (delay_s := self._delay_s(decode_failed(found.data))) > 0:
            yield Pause(delay_s)
            found = yield submitter.coordinator.get(path)  # for its version
        if found is None:
            return True
        gate = yield submitter.coordinator.stat(paths.gate(upkeep.number))
        submission = upkeep.submission
        if submission.phase is Phase.CANCELLED:
            return True  # the leader ends the task
        failed = decode_failed(found.data)
        first, count, attempt = paths.parse_failed_range(name)
        multi, final = resubmit(
            submission,
            first,
            count,
            attempt,
            failed,
            found.version,
            # With a cap on running tasks, the range is set aside like the others, and the leader brings it back.
            gate=gate is not None and not submission.max_running,
            max_losses=submitter.records.known_settings.max_losses,
        )
        failpoint("submitter.before_resubmit")
        try:
            outcome = yield submitter.coordinator.commit(multi)
        except RequestTooLarge as error:
            _LOG.error("resubmit_failed", extra={"path": name, "error": str(error)})
            return True
        if not isinstance(outcome, Committed):
            return False
        failpoint("submitter.after_resubmit")
        if final is not None or failed.reason in LOSSES:
            is_final = final is not None
            submitter.loop.io(
                lambda: delete_outputs(submitter.store, submission, first, count, attempt, failed, is_final=is_final)
            )
        return True

    def _delay_s(self, failed: FailedRange) -> float:
        submission = self._upkeep.submission
        try:
            block = decode_block(failed.block)
        except msgspec.DecodeError:
            return 0.0
        max_losses = self._submitter.records.known_settings.max_losses
        ruling = rule(failed.reason, block, alone=failed.alone, backoff_us=submission.backoff_us, max_losses=max_losses)
        return ruling.backoff_us / 1e6 if isinstance(ruling, Again) else 0.0
