"""The resubmit rule, carried out by the owner: attempts that ended FAILED wait again, or end, as `coord/ops/rules.py` says.

Watches `failed/` of one submission. Names are deterministic, so the leader may act on the same record: the one that
comes second finds it gone. Back-off is counted from when the record was seen; a successor starts it again.
Lives on the Submitter's thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, Protocol

import msgspec

from rmgr.client.submission.doors import SubmitterLoop
from rmgr.coord.ops.leader import resubmit
from rmgr.coord.ops.rules import Again, rule
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Committed, Stamped, Stat
from rmgr.coord.protocol.records import decode_block, decode_failed
from rmgr.errors import PermissionDenied, RequestTooLarge, RmgrError, Unavailable
from rmgr.model.base.states import LOSSES
from rmgr.model.cluster.queue import ClusterSettings
from rmgr.model.tasks.outcome import FailedRange
from rmgr.model.tasks.submission import Phase, Submission
from rmgr.procedures.removal import delete_outputs
from rmgr.runtime.failpoint import failpoint

_LOG = logging.getLogger("rmgr.submitter")
_RESYNC_S = 20.0
_FRESH_S = 0.25


class SettingsReader(Protocol):
    """Reads the settings of the cluster. known_settings: as they were read last."""

    known_settings: ClusterSettings

    def settings(self) -> ClusterSettings:
        """Reads them. May wait."""
        ...


class RepairedSubmission(Protocol):
    """A submission of this Submitter's own."""

    number: int
    submission: Submission


class Repair:
    """Repairs failed attempts for the owner of their submission."""

    def __init__(self, handle: RepairedSubmission, loop: SubmitterLoop, settings: SettingsReader) -> None:
        self._handle = handle
        self._loop = loop
        self._settings = settings
        self._active = False
        self._looking = False
        self._again = False
        self._known: dict[str, Any] = {}  #: name -> timer or None (being acted upon)

    def start(self, *, fresh: bool = False) -> None:
        """Begins; with a submission that has just been made, a little later: many are over by then."""
        self._active = True
        if fresh:
            self._loop.after(self._loop.jitter(_FRESH_S), self.look)
        else:
            self.look()
        self._schedule()

    def stop(self) -> None:
        """Acts no more."""
        self._active = False
        for timer in self._known.values():
            if timer is not None:
                timer.cancel()
        self._known.clear()

    def look(self) -> None:
        """Reads the names of the failed ranges and watches for more."""
        if not self._active:
            return
        if self._looking:
            self._again = True
            return
        self._looking, self._again = True, False
        asked = self._loop.coordinator.children(paths.failed(self._handle.number), watch=lambda: self._loop.post(self.look))
        asked.add_done_callback(lambda _: self._loop.post(lambda: self._listed(asked)))

    def _schedule(self) -> None:
        def resync() -> None:
            if self._active:
                self.look()
                self._schedule()

        self._loop.after(self._loop.jitter(_RESYNC_S), resync)

    def _listed(self, asked: Future[list[str] | None]) -> None:
        self._looking = False
        if not self._active:
            return
        try:
            names = asked.result(0) or []
        except RmgrError:
            return  # the resync comes
        present = set(names)
        for name in [name for name in self._known if name not in present]:
            timer = self._known.pop(name)
            if timer is not None:
                timer.cancel()
        for name in names:
            if name not in self._known:
                self._known[name] = None
                self._read(name)
        if self._again:
            self.look()

    def _read(self, name: str) -> None:
        asked = self._loop.coordinator.get(f"{paths.failed(self._handle.number)}/{name}")

        def then(found: Stamped | None) -> None:
            if found is None:
                self._known.pop(name, None)
                return
            failed = decode_failed(found.data)
            delay_s = self._delay_s(failed)
            self._known[name] = self._loop.after(delay_s, lambda: self._act(name)) if delay_s > 0 else None
            if not delay_s:
                self._decide(name, found)

        self._then(name, asked, then)

    def _delay_s(self, failed: FailedRange) -> float:
        submission = self._handle.submission
        try:
            block = decode_block(failed.block)
        except msgspec.DecodeError:
            return 0.0
        ruling = rule(failed.reason, block, alone=failed.alone, backoff_us=submission.backoff_us, max_losses=self._max_losses)
        return ruling.backoff_us / 1e6 if isinstance(ruling, Again) else 0.0

    @property
    def _max_losses(self) -> int:
        return self._settings.known_settings.max_losses

    def _act(self, name: str) -> None:
        """The back-off is over: the record is read again, for its version."""
        if self._active and name in self._known:
            self._known[name] = None
            asked = self._loop.coordinator.get(f"{paths.failed(self._handle.number)}/{name}")
            self._then(name, asked, lambda found: self._decide(name, found) if found else self._known.pop(name, None))

    def _decide(self, name: str, found: Stamped) -> None:
        asked = self._loop.coordinator.stat(paths.gate(self._handle.number))

        def then(gate: Stat | None) -> None:
            submission = self._handle.submission
            if submission.phase is Phase.CANCELLED:
                self._known.pop(name, None)  # the leader ends it
                return
            failed = decode_failed(found.data)
            first, count, attempt = paths.parse_failed_range(name)
            # A cap on what runs: it waits aside like the rest, and the leader brings it back.
            open_gate = gate is not None and not submission.max_running
            multi, final = resubmit(submission, first, count, attempt, failed, found.version, gate=open_gate, max_losses=self._max_losses)
            clean: Callable[[], None] | None = None
            if final is not None or failed.reason in LOSSES:
                store, is_final = self._loop.store, final is not None
                clean = partial(delete_outputs, store, submission, first, count, attempt, failed, is_final=is_final)
            failpoint("submitter.before_resubmit")
            try:
                committed = self._loop.coordinator.commit(multi)
            except RequestTooLarge as error:
                _LOG.error("resubmit_failed", extra={"path": name, "error": str(error)})
                return
            self._then(name, committed, lambda outcome: self._acted(name, outcome, clean))

        self._then(name, asked, then)

    def _acted(self, name: str, outcome: object, clean: Callable[[], None] | None) -> None:
        self._known.pop(name, None)
        if isinstance(outcome, Committed):
            failpoint("submitter.after_resubmit")
            if clean is not None:
                self._loop.io(clean)
        else:  # somebody else was faster, or nobody knows: the list says so
            self._loop.after(self._loop.jitter(0.2), self.look)

    def _then(self, name: str, asked: Future[Any], then: Callable[[Any], None]) -> None:
        asked.add_done_callback(lambda _: self._loop.post(lambda: self._continue(name, asked, then)))

    def _continue(self, name: str, asked: Future[Any], then: Callable[[Any], None]) -> None:
        if not self._active:
            return
        try:
            value = asked.result(0)
        except RmgrError as error:
            self._known.pop(name, None)
            if isinstance(error, PermissionDenied):  # a gateway counts losses by other settings than those of a while ago
                self._loop.io(self._settings.settings)
            if not isinstance(error, Unavailable):
                _LOG.warning("resubmit_failed", extra={"path": name, "error": str(error)})
            self._loop.after(self._loop.jitter(1.0), self.look)
        else:
            then(value)
