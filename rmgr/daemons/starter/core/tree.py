"""How a Starter changes and reads ZooKeeper: fenced, pipelined commits whose outcome is never guessed, and watched znodes.

An unknown outcome is read back until it is known. Everything belongs to one registration. Once the session or a fence is lost, answers for
the old registration are dropped: the Starter reads what it left from the tree when it registers again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Check, Committed, Conflict, ConflictKind, Multi, Outcome, Stamped, Stat, Unknown
from rmgr.coord.protocol.ports import Coordinator
from rmgr.coord.protocol.readback import Verdict, judge, proof_paths, resolved
from rmgr.coord.protocol.records import decode_record
from rmgr.errors import CoordinationUnavailable, QuotaReached, RmgrError
from rmgr.model.node import NodeRecord
from rmgr.runtime import machine
from rmgr.runtime.aside import Aside
from rmgr.runtime.machine import Log
from rmgr.runtime.story import Bell, Pause, Stories, Story, StoryLoop

#: How long a commit may wait for the coordination service before it counts as unknown.
_TIMEOUT_S = 30.0
#: Pause between two attempts to read back.
_PAUSE_S = 0.5
#: Pause before sending again what ZooKeeper's quota has refused: a full tree must not make the Starter forget what ended.
#: At first, and at most.
_FULL_PAUSE_S, _MOST_FULL_PAUSE_S = 2.0, 30.0
V = TypeVar("V")
#: Read again this often without a hint (jittered).
_RESYNC_S = 20.0
#: The same for znodes that each node of a job or a gang watches: there a lost watch costs only time.
SELDOM_S = 60.0
_FAILED_PAUSE_S = 0.5


class IdleStage(StrEnum):
    """Whether `/idle/<node>` stands, as far as known."""

    ABSENT = "absent"
    SETTING = "setting"  #: a multi that creates it is in flight
    SET = "set"
    CLEARING = "clearing"  #: a multi that deletes it is in flight


#: Stage -> possible next stages. SET -> ABSENT: another process has handed the node work.
IDLE_CHANGES: dict[IdleStage, frozenset[IdleStage]] = {
    IdleStage.ABSENT: frozenset({IdleStage.SETTING}),
    IdleStage.SETTING: frozenset({IdleStage.SET, IdleStage.ABSENT}),
    IdleStage.SET: frozenset({IdleStage.CLEARING, IdleStage.ABSENT}),
    IdleStage.CLEARING: frozenset({IdleStage.SET, IdleStage.ABSENT}),
}


@dataclass(slots=True)
class IdleMark:
    """The mark of one node that wants work. One multi at a time changes it."""

    stage: IdleStage = IdleStage.ABSENT

    @property
    def is_set(self) -> bool:
        """Whether the mark stands, and this node is not deleting it."""
        return self.stage is IdleStage.SET

    @property
    def stood(self) -> bool:
        """Whether the mark stood when the last multi that changes it was answered."""
        return self.stage in (IdleStage.SET, IdleStage.CLEARING)

    def goes(self, stage: IdleStage) -> bool:
        """Changes the stage; False, without a change, if `IDLE_CHANGES` does not allow it."""
        is_next = stage in IDLE_CHANGES[self.stage]
        if is_next:
            self.stage = stage
        return is_next

    def answered(self, *, stands: bool) -> None:
        """Notes the answer to the multi that was to change the mark: whether it stands now."""
        self.goes(IdleStage.SET if stands else IdleStage.ABSENT)


def settle_again() -> None:
    """A message that only makes the nodes settle, as they do after each message."""


class Committer:
    """Commits on behalf of the nodes of one Starter.

    Args: count: counts an event by name (fenced_writes, ambiguous_commits).
    Attributes: on_fenced: called with the node whose fence has moved; its commit gets no other answer.
    """

    def __init__(self, coordinator: Coordinator, loop: StoryLoop, *, count: Callable[[str], None], log: Log) -> None:
        self._coordinator = coordinator
        self._post = loop.post
        self._stories = Stories(loop)  #: of this registration
        self.on_fenced: Callable[[str], object] = lambda _: None
        self._count = count
        self._log = log
        self._fences: dict[str, int] = {}
        self._registration = 0
        self.in_flight = 0
        self._full: dict[object, str] = {}  #: commits that wait for room below a quota -> which one
        self.is_paused = False  #: the lease is over: nothing may be committed until it is valid again

    @property
    def may_commit(self) -> bool:
        """Whether the Starter is registered and its lease is valid."""
        return self.is_registered and not self.is_paused

    @property
    def is_registered(self) -> bool:
        """Whether there is a registration."""
        return bool(self._fences)

    def fence(self, node: str) -> int:
        """Returns the version of the node's record that guards every commit. Raises: KeyError if not registered."""
        return self._fences[node]

    @property
    def over_quota(self) -> str:
        """Which quota of ZooKeeper is used up, so that commits wait; "" if none do."""
        return next(iter(self._full.values()), "")

    def start(self, fences: Mapping[str, int]) -> None:
        """Begins a new registration; ends the one before, as `stop` does."""
        self.stop()
        self._fences = dict(fences)

    def stop(self) -> None:
        """Ends the registration; commits in flight get no answer."""
        self._registration += 1
        self._stories.stop()
        self._full.clear()
        self._fences = {}
        self.in_flight = 0

    def commit(self, multi: Multi, done: Callable[[Outcome], None], *, early: Callable[[Committed], None] | None = None) -> None:
        """Commits; calls `done` in the owner's mailbox with Committed, or with a Conflict that is not the fence's.

        early: called first, on the thread that brings the answer, if the first attempt was committed.
        """
        future = self._coordinator.commit(multi, timeout_s=_TIMEOUT_S)
        self.in_flight += 1
        if early is not None:
            future.add_done_callback(lambda answer: _tell_early(early, answer))
        registration = self._registration
        future.add_done_callback(lambda answer: self._post(lambda: self._on_outcome(registration, multi, done, answer)))

    def outcome_of(self, multi: Multi) -> Future[Outcome]:
        """Commits for a story; there is no answer once the registration is over."""
        answer: Future[Outcome] = Future()
        self.commit(multi, answer.set_result)
        return answer

    # -- inside ------------------------------------------------------------------------------------------------------------

    def _on_outcome(self, registration: int, multi: Multi, done: Callable[[Outcome], None], answer: Future[Outcome]) -> None:
        if registration != self._registration:
            return
        try:
            outcome: Outcome | QuotaReached = answer.result()
        except QuotaReached as full:
            outcome = full
        if isinstance(outcome, (Unknown, QuotaReached)):
            self._stories.begin(self._insist(multi, done, outcome))
        else:
            self._finish(multi, done, outcome)

    def _insist(self, multi: Multi, done: Callable[[Outcome], None], outcome: Unknown | QuotaReached) -> Story[None]:
        """Sends again what the quota has refused, and reads back unknown outcomes, until the outcome is known."""
        me, pauses = object(), machine.Backoff(_FULL_PAUSE_S, _MOST_FULL_PAUSE_S)
        while True:
            if isinstance(outcome, QuotaReached):
                self._full[me] = outcome.message.partition(";")[0]
                self._log.warning("commit_over_quota", op=multi.name, detail=outcome.message)
                yield Pause(pauses.next_s())
            else:
                self._count("ambiguous_commits")
                self._log.warning("commit_unknown", op=multi.name, detail=outcome.cause)
                verdict = yield from self._read_back(multi)
                if verdict is Verdict.PROVEN:
                    self._finish(multi, done, resolved(multi), is_counted=True)
                    return
                if verdict is Verdict.GUARD_FELL:
                    assert multi.guard is not None
                    self._finish(multi, done, Conflict(0, multi.guard.path, ConflictKind.BAD_VERSION))
                    return
            try:
                again: Outcome = yield self._coordinator.commit(multi, timeout_s=_TIMEOUT_S)
            except QuotaReached as full:
                outcome = full
                continue
            self._full.pop(me, None)
            if not isinstance(again, Unknown):
                self._finish(multi, done, again)
                return
            outcome = again

    def _read_back(self, multi: Multi) -> Story[Verdict]:
        """Reads what became of the multi; one connection answers in order, so reads after `sync` show it."""
        while True:
            synced = self._coordinator.sync()
            reads = [self._coordinator.get(path) for path in proof_paths(multi)]
            seen: list[Stamped | None] = [None] * len(reads)
            try:
                yield synced
                for at, read in enumerate(reads):
                    seen[at] = yield read
                break
            except CoordinationUnavailable:
                yield Pause(_PAUSE_S)
        verdict = judge(multi, seen)
        self._log.info("commit_read_back", op=multi.name, outcome=verdict.value)
        return verdict

    def _finish(self, multi: Multi, done: Callable[[Outcome], None], outcome: Outcome, *, is_counted: bool = False) -> None:
        guard = multi.guard
        if isinstance(outcome, Committed) and outcome.resolved and not is_counted:
            self._count("ambiguous_commits")
        if isinstance(outcome, Conflict) and guard is not None and outcome.path == guard.path:
            self._count("fenced_writes")
            self.on_fenced(node_of(guard))
            return
        self.in_flight -= 1
        done(outcome)


def _tell_early(early: Callable[[Committed], None], answer: Future[Outcome]) -> None:
    if answer.exception() is None and isinstance(outcome := answer.result(), Committed):
        early(outcome)


def node_of(guard: Check) -> str:
    """Returns the node whose fence `guard` checks."""
    return guard.path.removeprefix(paths.node(""))


def record_of(coordinator: Coordinator, node: str) -> Story[NodeRecord | None]:
    """Returns the record of a node, None if absent. Raises: RmgrError."""
    found: Stamped | None = yield coordinator.get(paths.node(node))
    return decode_record(found.data, NodeRecord, node) if found is not None else None


# -- watched znodes --------------------------------------------------------------------------------------------------------
# Watched znodes: read, watched, and read again. A watch is only a hint, so everything is also read now and then.


class WatchedZnode(Generic[V]):
    """One znode to watch.

    Args:
        ask: reads `path`: `coordinator.get`, or another read that takes a watch.
        tell: gets `about`, then the value read, even if unchanged. An exception from it is counted, and does not stop later reads.
        resync_s: how often to read without a hint; inf means never, and the owner calls `look` after a missed change.
    """

    def __init__(
        self,
        ask: Callable[..., Future[V]],
        path: str,
        tell: Callable[..., object],
        *about: object,
        loop: StoryLoop,
        aside: Aside,
        resync_s: float = _RESYNC_S,
    ) -> None:
        self._ask = ask
        self._path = path
        self._tell = tell
        self._about = about
        self._loop = loop
        self._aside = aside
        self._resync_s = resync_s
        self._stories = Stories(loop)
        self._bell: Bell | None = None  #: of the current watching: watches of a lost session ring an old one, unheard

    @property
    def is_on(self) -> bool:
        """Whether the znode is being watched."""
        return self._bell is not None

    def start(self) -> None:
        """Begins, or begins anew."""
        self.stop()
        self._bell = Bell(self._loop)
        self._stories.begin(self._follow(self._bell))

    def look(self) -> None:
        """Reads the znode soon, since it may have changed."""
        if self._bell is not None:
            self._bell.ring()

    def stop(self) -> None:
        """Stops watching."""
        self._bell = None
        self._stories.stop()

    def _follow(self, bell: Bell) -> Story[None]:
        while True:
            pause_s = self._resync_s * machine.uniform(0.7, 1.3)
            try:
                value: V = yield self._ask(self._path, watch=bell.ring)
            except RmgrError:
                pause_s = _FAILED_PAUSE_S
            else:
                self._aside.attempt(self._arrived, value)
            yield bell.heard(pause_s if pause_s < math.inf else None)

    def _arrived(self, value: V) -> None:
        self._tell(*self._about, value)


class CountedChildren:
    """Children that are made and deleted, never changed; tells from the counts of their parent whether their list has missed a change.

    It also notices a name that went and came between two lists. Cost: O(children) a list.
    """

    def __init__(self) -> None:
        self._made = 0  #: children ever made, up to the list
        self._names: frozenset[str] | None = None  #: None while they are being listed

    def list_from(self, parent: Stat) -> None:
        """Prepares for a list that begins now, just after `parent` was read."""
        self._made, self._names = parent.creates, None

    def listed(self, names: Collection[str]) -> None:
        """Takes the list."""
        standing = frozenset(names)
        self._made += len(standing - self._names) if self._names is not None else 0
        self._names = standing

    def has_missed(self, parent: Stat) -> bool:
        """Returns whether `parent`, read now, shows a change since the list; False while a list is under way."""
        return self._names is not None and (self._made, len(self._names)) != (parent.creates, parent.children)
