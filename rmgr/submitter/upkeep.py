"""Looks after one submission: commits what its owner adds, reads its fragments, repairs failed attempts, watches its record.

    owner ──grow──> ENQUEUE or HAND ──> ZooKeeper ──fragments──> Follower ──> the listener
                                                  ──failed/────> RESUBMIT, as the rule in `coord/ops/leader.py` decides

Names of failed ranges are deterministic, so the leader may act on the same record: whichever comes second finds it gone. Back-off counts
from when this owner saw the record; a successor starts it again.
Lives on the Submitter's thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from enum import Enum, auto
from typing import TYPE_CHECKING

import msgspec

from rmgr.coord import validity
from rmgr.coord.ops import work as ops
from rmgr.coord.ops.leader import Again, resubmit, rule
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Committed, Conflict, Multi, Stamped, Unknown
from rmgr.coord.protocol.records import decode_block, decode_failed
from rmgr.errors import NotFound, RequestTooLarge, RmgrError, StateConflict, Unavailable
from rmgr.model.block import MAX_TASKS, FailedRange
from rmgr.model.line import Ahead, ClaimStage, Told
from rmgr.model.states import LOSSES
from rmgr.model.submission import Phase, Submission, Tail
from rmgr.model.units import counted
from rmgr.procedures.output_keys import delete_outputs
from rmgr.runtime.failpoint import failpoint
from rmgr.runtime.machine import Backoff
from rmgr.runtime.story import Bell, Pause, Stories, Story
from rmgr.submitter.follower import Follower
from rmgr.submitter.handing import Handing
from rmgr.submitter.port import Growing, Grown, Growth, KeptListener, NotTaken, Read, Stored
from rmgr.submitter.records import FULL_LOOK_S

if TYPE_CHECKING:
    from rmgr.submitter.direct import DirectWork

_LOG = logging.getLogger("rmgr.submitter")
#: The record is watched only if the submission is not over after this time (s): until then the record just read, or made, is known.
_RECORD_S = 0.5
#: Pause before a failed read is repeated, and before failed ranges are listed again after another process was faster (s).
_AGAIN_S, _BEHIND_S = 1.0, 0.2
#: Failed ranges of a new submission, which is often over by then, are first listed after `_FRESH_S`; then every `_RESYNC_S`.
_FRESH_S, _RESYNC_S = 0.25, 20.0
#: Time limit of the answer to one commit, and the first and the longest pause before it is sent again (s).
_COMMIT_S, _RETRY_S, _LONGEST_S = 10.0, 0.05, 1.0


class Upkeep:
    """`port.Kept` of one submission.

    Args:
        is_owned: its record names `work`'s guid as owner. wants_ownership: taken over once its owner is gone.
    """

    def __init__(self, work: DirectWork, stored: Stored, listener: KeptListener, *, is_owned: bool, wants_ownership: bool) -> None:
        self.work = work
        self.submitter = submitter = work.submitter
        self.guid = work.guid
        self.number = stored.submission.id
        self.submission, self.version = stored.submission, stored.version
        self.tail, self.tail_version = stored.tail, stored.tail_version
        self.is_owned = is_owned
        self.wants_ownership = wants_ownership
        self.is_over = False
        self.stories = Stories(submitter.loop)
        self._listener = listener
        self._ended = 0  #: tasks whose end is in a fragment
        # Blocks are set aside, not queued; the leader brings back those that a held submission, or one with a cap, may have waiting.
        self._is_held = bool(stored.submission.max_running) or stored.submission.phase is Phase.HELD
        self._handing = Handing(submitter, stored.submission)
        self._last: Multi | None = None  #: the last HAND, for messages about its keys
        self._follower = Follower(
            self.number,
            submitter,
            self._on_fragments,
            self.die,
            believes=submitter.believes,
            decode=submitter.decode,
            unfinished=lambda: self.tail.next - self._ended,
            may_end=lambda: self.tail.complete and self.tail.next - self._ended <= MAX_TASKS,
        )
        self._record_bell, self._tail_bell, self._failed_bell = Bell(submitter.loop), Bell(submitter.loop), Bell(submitter.loop)

    # -- port.Kept

    @property
    def most_left(self) -> int:
        return 0 if self._is_held else self._handing.most_left

    def grow(self, growth: Growth) -> Growing:
        done: Growing = Future()
        self.stories.begin(self._grow(growth, done), key="grow")
        return done

    def announce(self, growth: Growth) -> None:
        target = self._target(growth)
        if target is not None:
            self._handing.announce(self._hand(growth, target), is_early=True)

    def claimed(self, stage: ClaimStage) -> None:
        if self._last is not None:
            self._handing.say_claimed(self._last, stage)

    def read_tail(self) -> Future[Tail]:
        done: Future[Tail] = Future()

        def read() -> Story[None]:
            try:
                done.set_result((yield from self._read_tail())[0])
            except RmgrError as error:
                done.set_exception(error)

        self.stories.begin(read())
        return done

    def nudge(self) -> None:
        if not self.is_over:
            self._follower.nudge()
            self._failed_bell.ring()

    def leave(self) -> None:
        if not self.is_over:
            self.is_over = True
            self._follower.stop()
            self.stories.stop()
            self.submitter.forget(self)

    # -- from the Submitter

    def rest(self, *, is_resting: bool) -> None:
        """Pauses or resumes reading fragments."""
        self._follower.rest(is_resting=is_resting)

    def start(self, *, is_fresh: bool, fragment: int = 0) -> None:
        """Begins to follow from `fragment` on, and to look after the submission if it is owned."""
        self._follower.start(fresh=is_fresh, first=fragment)
        self.stories.begin(self._watch_record())
        if self.is_owned:
            self.stories.begin(self._watch_failed(is_fresh=is_fresh), key="repair")
        else:
            self.stories.begin(self._watch_tail())

    def heard(self, message: Ahead | Told) -> None:
        """Takes a Starter's report about its commits of this submission."""
        self._follower.heard(message)

    def die(self, error: RmgrError) -> None:
        """Ends with `error`: nothing more will come."""
        if not self.is_over:
            self.leave()
            self._listener.on_dead(error)

    def taken_over(self, stored: Stored) -> None:
        """Takes the submission over: this owner owns it from now on."""
        self.is_owned = True
        self.submission, self.version = stored.submission, stored.version
        self.tail, self.tail_version = stored.tail, stored.tail_version
        self.stories.begin(self._watch_failed(), key="repair")
        self._listener.on_owned(stored)

    # -- growing: ENQUEUE or HAND, until the tail shows it -------------------------------------------------------------------------

    def _grow(self, growth: Growth, done: Growing) -> Story[None]:
        if growth.tail == self.tail:  # it was committed before, through a lost session or gateway
            done.set_result(Grown(self.tail))
            return
        queue = self.submission.queue
        cap = self.submitter.records.most_pending(queue)
        is_full = False
        while not (self._is_held or (yield from self.submitter.gauge.admit(queue, len(growth.blocks), cap))):
            if not is_full:
                is_full = True
                self._listener.on_full(cap)
            yield Pause(FULL_LOOK_S)
        if is_full:
            self._listener.on_full(0)
        if growth.is_alone:
            yield from self._handing.learned()
        target = self._target(growth)
        if target is not None and (yield from self._is_handed(growth, self._hand(growth, target))):
            done.set_result(Grown(self.tail))
        elif growth.leaves_keys:
            done.set_result(NotTaken())
        else:
            yield from self._enqueue(growth)
            done.set_result(Grown(self.tail))

    def _target(self, growth: Growth) -> tuple[str, int] | None:
        return None if self._is_held else self._handing.target(growth)

    def _hand(self, growth: Growth, target: tuple[str, int]) -> Multi:
        (node, version), (key, data) = target, growth.blocks[0]
        return ops.hand(
            self.number, tail=growth.tail, tail_version=self.tail_version, key=key, data=data, node=node, node_version=version
        )  # fmt: skip

    def _is_handed(self, growth: Growth, multi: Multi) -> Story[bool]:
        """Returns False, having committed nothing, if the node is not in the expected state."""
        self._last = multi
        fate = yield from self._commit(growth, multi, announces=True)
        if isinstance(fate, Conflict):
            self._handing.refused(fate.path)
            return False
        self._handing.taken()
        return True

    def _enqueue(self, growth: Growth) -> Story[None]:
        multi = ops.enqueue(
            self.number,
            self.submission.queue,
            tail=growth.tail,
            tail_version=self.tail_version,
            blocks=growth.blocks,
            held=self._is_held,
            ended=growth.ended,
        )
        fate = yield from self._commit(growth, multi)
        if isinstance(fate, Conflict):
            what = f"submission {self.number} cannot be extended: {fate.kind} at {fate.path}"
            yield from self._end(StateConflict(what, hint="rmgr doctor"))

    def _commit(self, growth: Growth, multi: Multi, *, announces: bool = False) -> Story[Conflict | None]:
        """Commits, however often the answer is lost. Returns a conflict if it was not committed and the tail is not the cause."""
        coordinator, pauses = self.submitter.coordinator, Backoff(_RETRY_S, _LONGEST_S)
        while True:
            failpoint("submitter.before_enqueue")
            try:
                pending = coordinator.commit(multi, timeout_s=_COMMIT_S)
                if announces:
                    self._handing.announce(multi)
                answer = yield pending
                if not isinstance(answer, Committed):
                    # An earlier try may have been committed late, by a session that is gone: the tail's bytes show that.
                    now, version = yield from self._read_tail()
            except Unavailable as error:
                self._listener.on_trouble(error)
            except (RequestTooLarge, RmgrError) as error:
                yield from self._end(error)
            else:
                if isinstance(answer, Committed):
                    self._take_tail(growth.tail, self.tail_version + 1)
                    return None
                match fate_of(growth.tail, before=(self.tail, self.tail_version), now=(now, version), answer=answer):
                    case Fate.COMMITTED:
                        self._take_tail(now, version)
                        return None
                    case Fate.COMPLETED if not growth.blocks:
                        self._take_tail(now, version)
                        return None
                    case Fate.COMPLETED:
                        count = growth.tail.next - now.next
                        yield from self._end(_ended_error(self.number, count))
                    case Fate.TAKEN_OVER:
                        what = f"submission {self.number} was taken over by another Submitter"
                        yield from self._end(StateConflict(what, hint="TaskQueue.attach(name) follows it"))
                    case Fate.REFUSED:
                        assert isinstance(answer, Conflict)
                        return answer
            yield Pause(pauses.next_s())

    def _take_tail(self, tail: Tail, version: int) -> None:
        failpoint("submitter.after_enqueue")
        self.tail, self.tail_version = tail, version

    def _read_tail(self) -> Story[tuple[Tail, int]]:
        found = yield self.submitter.coordinator.get(paths.tail(self.number))
        if found is None:
            raise NotFound(f"submission {self.number} is gone", hint=f"rmgr history {self.number}")
        return validity.tail(found, self.number), found.version

    def _end(self, error: RmgrError) -> Story[None]:
        """Ends the submission here, and with it the calling story."""
        self.die(error)
        yield Future()

    # -- following

    def _on_fragments(self, fragments: Sequence[Read]) -> None:
        for one in fragments:
            fragment = one.fragment
            self._handing.ran_on = fragment.node
            self._ended += sum(count for _, _, count in fragment.ranges) if fragment.row else len(fragment.outcomes)
        if self._ended == self.tail.next and not self._is_held:
            self._handing.learn()
        self._listener.on_fragments(fragments)

    def _watch_record(self) -> Story[None]:
        yield Pause(self.submitter.jitter(_RECORD_S))
        while True:
            found = yield from self._patiently(paths.sub(self.number), self._record_bell.ring)
            try:
                record = validity.submission(found.data, self.number) if found is not None else None
            except RmgrError as error:
                yield from self._end(error)
            self._on_record(record, found.version if found is not None else 0)
            yield self._record_bell.heard()

    def _on_record(self, record: Submission | None, version: int) -> None:
        if record is None:
            self._follower.nudge()  # collected: the rest is in pages
        elif version < self.version:
            return
        else:
            self.submission, self.version = record, version
            if self.is_owned and record.phase is not Phase.CANCELLED and record.owner not in {self.guid, ""}:
                self.die(StateConflict(f"submission {self.number} was taken over by another Submitter"))
                return
        self._listener.on_record(record, version)

    def _watch_tail(self) -> Story[None]:
        """Watches the tail of a submission of another owner, until it is complete or this owner's."""
        while not (self.is_owned or self.tail.complete):
            found = yield from self._patiently(paths.tail(self.number), self._tail_bell.ring)
            if found is None or self.is_owned:
                return
            try:
                tail = validity.tail(found, self.number)
            except RmgrError as error:
                yield from self._end(error)
            self.tail, self.tail_version = tail, found.version
            self._listener.on_tail(tail)
            if not tail.complete:
                yield self._tail_bell.heard()

    def _patiently(self, path: str, watch: Callable[[], None]) -> Story[Stamped | None]:
        """Reads a znode, repeating the read as long as there is no answer. Any other error ends the submission here."""
        while True:
            try:
                found: Stamped | None = yield self.submitter.coordinator.get(path, watch=watch)
            except Unavailable:
                yield Pause(self.submitter.jitter(_AGAIN_S))
            except RmgrError as error:
                yield from self._end(error)
            else:
                return found

    # -- failed attempts

    def _watch_failed(self, *, is_fresh: bool = False) -> Story[None]:
        submitter, number, bell = self.submitter, self.number, self._failed_bell
        if is_fresh:
            yield Pause(submitter.jitter(_FRESH_S))
        while True:
            try:
                names = yield submitter.coordinator.children(paths.failed(number), watch=bell.ring)
            except RmgrError:
                names = None  # read again later
            for name in names or ():
                self.stories.begin(self._settle_failed(name), key=("failed", name))
            yield bell.heard(submitter.jitter(_RESYNC_S))

    def _settle_failed(self, name: str) -> Story[None]:
        """Handles one failed range until it is gone."""
        try:
            is_mine = yield from self._try_resubmit(name)
        except RmgrError as error:
            if not isinstance(error, Unavailable):
                _LOG.warning("resubmit_failed", extra={"path": name, "error": str(error)})
            self.submitter.loop.after(self.submitter.jitter(_AGAIN_S), self._failed_bell.ring)
        else:
            if not is_mine:  # another process was faster, or the answer is unknown: the list shows which
                self.submitter.loop.after(self.submitter.jitter(_BEHIND_S), self._failed_bell.ring)

    def _try_resubmit(self, name: str) -> Story[bool]:
        """Tries to commit what the rule says. Returns False if another look is due."""
        submitter, number = self.submitter, self.number
        path = f"{paths.failed(number)}/{name}"
        found = yield submitter.coordinator.get(path)
        if found is not None and (delay_s := self._resubmit_delay_s(decode_failed(found.data))) > 0:
            yield Pause(delay_s)
            found = yield submitter.coordinator.get(path)  # for its version
        if found is None:
            return True
        gate = yield submitter.coordinator.stat(paths.gate(number))
        submission = self.submission
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
            submitter.loop.io(lambda: delete_outputs(submitter.store, submission, first, count, attempt, failed, is_final=is_final))
        return True

    def _resubmit_delay_s(self, failed: FailedRange) -> float:
        try:
            block = decode_block(failed.block)
        except msgspec.DecodeError:
            return 0.0
        max_losses = self.submitter.records.known_settings.max_losses
        ruling = rule(failed.reason, block, alone=failed.alone, backoff_us=self.submission.backoff_us, max_losses=max_losses)
        return ruling.backoff_us / 1e6 if isinstance(ruling, Again) else 0.0


class Fate(Enum):
    """What became of a growth whose commit was refused or not answered."""

    COMMITTED = auto()  #: by an earlier try, whose answer was lost
    COMPLETED = auto()  #: the leader considered the owner dead and completed the submission without the growth
    TAKEN_OVER = auto()  #: another Submitter extends the submission
    REFUSED = auto()  #: the tail does not explain it
    OPEN = auto()  #: not committed so far: send it again


def fate_of(sent: Tail, *, before: tuple[Tail, int], now: tuple[Tail, int], answer: Conflict | Unknown) -> Fate:
    """Reads the fate of a growth, which would leave the tail `sent`, from the tail and its version: `before` it, and `now`."""
    (old, old_version), (tail, version) = before, now
    if tail == sent:
        return Fate.COMMITTED
    if tail.complete and tail.next == old.next and tail.reigns == old.reigns:
        return Fate.COMPLETED
    if version != old_version:
        return Fate.TAKEN_OVER
    return Fate.OPEN if isinstance(answer, Unknown) else Fate.REFUSED


def _ended_error(number: int, count: int) -> StateConflict:
    """Returns the error if the leader considered the owner dead and completed the submission; what was sent before runs, or has run."""
    return StateConflict(
        f"submission {number} was ended while this program was cut off or stood still: its last {counted(count, 'task')}"
        f" {'were' if count != 1 else 'was'} not submitted",
        hint=f"make a new one; what was sent before goes on: rmgr tasks {number}",
    )
